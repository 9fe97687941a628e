"""The examples of the learner run, and say what they promise."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tiny
from metavib.training.loop import train

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stream_learns_in_constant_memory(tmp_path, capsys) -> None:
    """Twenty thousand points: a plot, a state as large as at first, and a smaller error."""
    out = tmp_path / "docs" / "stream.png"
    load("stream").main(["--points", "20000", "--steps", "300", "--out", str(out)])
    said = capsys.readouterr().out
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in out.parent.iterdir()] == ["stream.png"]
    first, last = re.search(r"state: (\d+) bytes at first, (\d+) at last", said).groups()
    assert first == last
    start, end = map(float, re.search(r"mean ([\d.]+), then ([\d.]+);", said).groups())
    assert end < start


def test_two_places_merge_to_what_one_would_have_learned(capsys) -> None:
    load("two_places").main(["--points", "40", "--steps", "60"])
    said = capsys.readouterr().out
    assert re.search(r"here alone +40 points, knows common, odd:", said)
    assert re.search(r"merged +80 points, knows common, odd, rare:", said)
    assert float(re.search(r"in one place by ([\d.e+-]+);", said)[1]) < 1e-4


def test_a_test_on_parts_of_the_classes_says_how_far_other_classes_would_have_it(tmp_path, capsys) -> None:
    train(tiny.glyphs(), tmp_path, quiet=True)
    mean, error = load("which_classes").main([str(tmp_path), "--parts", "4", "--tasks", "5"])
    said = capsys.readouterr().out
    parts = [float(accuracy) for accuracy in re.findall(r"part \d, \d+ classes: ([\d.]+)%", said)]
    assert len(parts) == 4 and 100 * mean == pytest.approx(np.mean(parts), abs=0.01)
    assert 100 * error == pytest.approx(np.std(parts, ddof=1) / 2, abs=0.01)


def test_the_turns_of_a_character_stay_together() -> None:
    names = tuple(f"{c}/rot{turn:03d}" for turn in (0, 90, 180, 270) for c in "abcdefg")
    parts = load("which_classes").deal(names, 3)
    assert sorted(name for part in parts for name in part) == sorted(names)
    characters = [{name[0] for name in part} for part in parts]
    assert [len(part) for part in parts] == [4 * len(c) for c in characters] == [12, 8, 8]


def test_classes_of_curves_are_known_from_a_few_members(capsys) -> None:
    """A short training: near the exact answer after some curves, and far above a model that knows of no classes."""
    found = load("curves_of_a_class").main(["--steps", "1000"])
    assert "after 5 curves: log density of another" in capsys.readouterr().out
    for n in (1, 5):
        ours, exact, without = found[n]
        assert without + 1 < ours < exact + 0.05
        assert exact - ours < 0.3
