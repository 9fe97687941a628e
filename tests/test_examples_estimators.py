"""The examples of the estimators run, and say what they promise; so does every Python block of the first page."""

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_real_table_is_compared_honestly(capsys):
    """The few-shot learner beats the mean of its rows on both tables, and the pooled model where tiles differ."""
    found = load("table_regression").main(shots=(5,), n_steps=60, repeats=1)
    terrain, diabetes = found["terrain"][5], found["diabetes"][5]
    assert terrain["few-shot"] < min(terrain["pooled ridge"], terrain["mean of the K rows"])
    assert diabetes["few-shot"] < diabetes["mean of the K rows"]
    assert 0.7 < terrain["coverage"] <= 1
    assert "pooled ridge" in capsys.readouterr().out


def test_pictures_in_folders_are_told_apart_better_than_by_chance(capsys):
    accuracy = load("images_from_folders").main(["--classes", "20", "--steps", "4"])
    assert accuracy > 0.15  # ten classes
    assert re.search(r"learned from 20 classes; 10 new ones, 3 pictures each", capsys.readouterr().out)


def test_every_python_block_of_the_first_page_runs_in_order(tmp_path, monkeypatch, capsys):
    """The page is one session: later blocks use what earlier ones made."""
    text = (ROOT / "docs" / "first-own-dataset.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block.replace("n_steps=2000", "n_steps=60"), "first-own-dataset.md", "exec"), session)
    assert (Path(os.getcwd()) / "demand.csv").exists()
    assert np.isfinite(session["mean"]).all()
    assert "coverage" in capsys.readouterr().out
