"""The tutorials and the examples of the gallery run, and what they show is what they promise."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from docs.tools import sessions

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted(page.stem for page in (ROOT / "docs" / "tutorials").glob("*.md"))


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, folder: Path, shorter: dict[str, str]) -> str:
    """What a tutorial prints, with a shorter training."""
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    for old, new in shorter.items():
        assert old in text, f"{name}.md has no {old!r} any more"
        text = text.replace(old, new)
    shown = sessions.run(text, name, folder)
    return "\n".join(re.findall(r'```text title="Output"\n(.*?)```', shown, re.DOTALL))


def test_every_tutorial_and_every_example_of_the_gallery_is_tested_here() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in TUTORIALS if f'run("{name}"' not in tests] == []
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    names = set(re.findall(r"examples/(\w+)\.py", gallery)) - {"stream"}  # in test_examples_learner.py
    assert len(names) == 4 and all(f'example("{name}")' in tests for name in names)


def test_a_table_with_groups(tmp_path) -> None:
    """Six rows say more of a tile than their mean does."""
    said = run("table", tmp_path, {})
    error, spread = (float(n) for n in re.search(r"error (\d+); of the mean of the six rows (\d+)", said).groups())
    assert error < spread
    six, sixteen = (float(n) for n in re.findall(r"90 % intervals (\d+)", said))
    assert sixteen < six and "340 tiles" in said


def test_pictures_from_folders(tmp_path) -> None:
    said = run("pictures", tmp_path, {"n_steps=120": "n_steps=25"})
    assert int(re.search(r"(\d+)% of 90 pictures right", said)[1]) > 15  # ten classes
    assert "11 classes" in said


def test_characters_with_the_bundled_model(tmp_path) -> None:
    said = run("characters", tmp_path, {})
    assert int(re.search(r"(\d+)% of 48 right", said)[1]) > 85  # twelve letters, one picture of each
    before, after = (int(n) for n in re.findall(r"(\d+) of 12 bold", said))
    assert after >= before


def test_serving(tmp_path) -> None:
    said = run("serving", tmp_path, {"--steps 400": "--steps 60"})
    before, after = (float(n) for n in re.search(r"intervals: ([\d.]+), then ([\d.]+)", said).groups())
    assert after < before
    assert "task: sensor-17\nversion: 2\n" in said and "| low 95%" in said


def test_streaming(tmp_path) -> None:
    """Merging and forgetting are exact up to rounding, and the memory does not grow."""
    said = run("streaming", tmp_path, {"range(400)": "range(60)"})
    assert len(set(re.findall(r"(\d+) bytes", said))) == 1
    assert all(float(n) < 1e-3 for n in re.findall(r"(?:differ|differs) .*?by ([\d.e+-]+)", said))
    assert "True None" in said and "False the kernel RBF" in said
    assert (tmp_path / "the-same-task-as-points-arrive.png").exists()


def test_a_new_encoder(tmp_path) -> None:
    said = run("new-encoder", tmp_path, {"500": "100", "501": "101"})
    process, gp = (float(n) for n in re.findall(r"mean squared error ([\d.]+)", said))
    assert gp < process < 10
    assert "False - Reader encodes all support points together" in said


def test_a_new_likelihood(tmp_path) -> None:
    said = run("new-likelihood", tmp_path, {"range(400)": "range(100)", "range(40)": "range(5)"})
    closed, general = (eval(n) for n in re.findall(r"tensor\((\[.*?\])\)", said))
    assert closed == pytest.approx(general, rel=1e-3)
    assert "waiting times must be positive; got -3." in said
    assert 60 < float(re.search(r"intervals: ([\d.]+)%", said)[1]) <= 100


def test_embeddings(tmp_path) -> None:
    said = run("embeddings", tmp_path, {"n_steps=150": "n_steps=40", "range(10)": "range(3)"})
    right = [float(n) for n in re.findall(r"each: ([\d.]+)% right", said)]
    assert 30 < right[0] < right[-1] and right[-1] > 70  # five classes
    assert "[5 6 7]" in said


def test_tuning(tmp_path) -> None:
    said = run("tuning", tmp_path, {"--trials 10 --steps 80": "--trials 2 --steps 10", "--steps 300": "--steps 10"})
    assert "learning rate" in said and "| 5       |" in said
    assert (tmp_path / "what-mattered.png").exists()


def test_several_processes(tmp_path) -> None:
    """One process and two end with the same weights, up to rounding."""
    said = run("several-processes", tmp_path, {"--steps 40": "--steps 5", "--steps 60": "--steps 8"})
    assert float(re.search(r"largest difference ([\d.e+-]+)", said)[1]) < 1e-4


def test_one_cell_of_the_paper(tmp_path) -> None:
    said = run("paper-cell", tmp_path, {})
    assert "K =  5: 0.0" in said and "ten trainings" in said


def test_a_band_tightens(tmp_path) -> None:
    error = example("band").main(["--steps", "150", "--out", str(tmp_path / "band.png")])
    assert error < 1.5  # the function varies by 2
    assert (tmp_path / "band.png").exists()


def test_intervals_mean_what_they_say(tmp_path) -> None:
    found = example("calibration").main(["--steps", "100", "--out", str(tmp_path / "calibration.png")])
    inside, widths = zip(*found.values(), strict=True)
    assert min(inside) > 0.8  # of intervals of 90 %
    assert list(widths) == sorted(widths, reverse=True)


def test_a_class_that_nobody_knew_is_learned(tmp_path, capsys) -> None:
    assert example("unknown_classes").main(["--steps", "60", "--out", str(tmp_path / "classes.png")]) > 0.9
    entropies = dict(re.findall(r"(oak|elm|yew) ([\d.]+)", capsys.readouterr().out))
    assert float(entropies["yew"]) > max(float(entropies["oak"]), float(entropies["elm"]))


def test_one_bound_serves_four_encoders(tmp_path) -> None:
    errors = example("four_encoders").main(["--steps", "60", "--out", str(tmp_path / "four.png")])
    assert list(errors) == ["MAML", "stochastic MAML", "GP-VIB", "GP+MAML"]
    assert errors["GP-VIB"] < errors["MAML"] and max(errors.values()) < 200  # after so few steps
