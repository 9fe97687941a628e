"""Run folders and task files of version 0.1: they are read and go on, or are refused with what to do."""

import json
import shutil

import pytest

import tiny
from metavib.adapt import file
from metavib.files import read_tensors, write_tensors
from metavib.training import checkpoint
from metavib.training.config import DROPPED
from metavib.training.fields import to_dict
from program import done, predicted, refused, values, write

SINCE = {
    "model": ("dropout", "inner_mean", "inner_shuffle", "start_variance"),
    "tasks": ("digests", "features", "fit", "held_out", "ink", "kind", "learn_from", "skip_broken", "unseen"),
    "train": ("beta_psi", "calibrate", "minutes", "patience"),
}
"""Fields that configs of version 0.1 did not have."""


def before(config):
    """A config of today as version 0.1 wrote it."""
    for section, names in SINCE.items():
        config[section] = {k: v for k, v in config[section].items() if k not in names}
    for name, value in DROPPED.items():
        section, field = name.split(".")
        config[section][field] = value
    return config


def make_old(run):
    """Turns a run folder into one of version 0.1."""
    for name in ("config.json", "record.json"):
        content = json.loads((run / name).read_text())
        if name == "config.json":
            content = before(content)
        else:
            content["config"] = before(content["config"])
            (run / "evaluation.json").write_text(json.dumps(content["evaluation"]))
        (run / name).write_text(json.dumps(content))
    for path in run.glob("*.safetensors"):
        tensors, header = read_tensors(path)
        config = json.dumps(before(json.loads(header["config"])))
        write_tensors(path, tensors, header | {"format": checkpoint.BEFORE, "config": config})


def trained(tmp_path, config):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(to_dict(config)))
    run = tmp_path / "run"
    done("train", "--config", settings, "--out", run, "--quiet")
    return run


@pytest.fixture
def points(tmp_path):
    """A support that is kept as a memory, and a query."""
    support = write(tmp_path / "support.csv", ["x", "y"], [[i / 20, i % 3] for i in range(200)])
    return support, write(tmp_path / "query.csv", ["x"], [[0.3], [1.7]])


@pytest.mark.parametrize("method", ["gp-vib", "maml"])
def test_a_run_of_before_is_shown_tested_adapted_and_goes_on(tmp_path, points, method) -> None:
    """It predicts as it did, and training goes on to the very weights that it would have had."""
    run, (support, query) = trained(tmp_path, tiny.sinusoid(method)), points
    done("adapt", run, "--support", support, "--out", tmp_path / "task")
    expected = values(predicted(tmp_path / "task", query))
    shutil.copytree(run, tmp_path / "longer")
    done("train", "--resume", tmp_path / "longer", "--steps", 16, "--quiet")
    make_old(run)
    assert "12 of 12 steps" in done("show", run)
    assert "MSE" in done("evaluate", run, "--quiet")
    done("adapt", run, "--support", support, "--out", tmp_path / "task")
    assert values(predicted(tmp_path / "task", query)) == pytest.approx(expected)
    done("train", "--resume", run, "--steps", 16, "--quiet")
    assert tiny.same_state(run / "last.safetensors", tmp_path / "longer" / "last.safetensors")


def test_a_task_file_of_before_is_read(tmp_path, points) -> None:
    run, (support, query) = trained(tmp_path, tiny.sinusoid()), points
    done("adapt", run, "--support", support, "--out", tmp_path / "task")
    expected = values(predicted(tmp_path / "task", query))
    tensors, header = read_tensors(tmp_path / "task")
    assert "x" not in tensors  # the memory alone
    old = {"format": file.OLD_FORMAT, "classes": "[]"} | {k: header[k] for k in ("run", "fingerprint", "event")}
    shapes = {"A": (36,), "b": (8, 1), "c": (1,), "l": (), "n": (), "counts": (0,)}  # of one task, with 8 features
    write_tensors(tmp_path / "task", {name: tensors[name].reshape(shape) for name, shape in shapes.items()}, old)
    assert values(predicted(tmp_path / "task", query)) == pytest.approx(expected)


def test_a_task_file_of_before_of_another_model_says_what_to_do(tmp_path, points) -> None:
    """Such as one of pictures, whose weights are written in another way today and whose pictures were magnified."""
    run, (support, query) = trained(tmp_path, tiny.sinusoid()), points
    done("adapt", run, "--support", support, "--out", tmp_path / "task")
    tensors, header = read_tensors(tmp_path / "task")
    old = {"format": file.OLD_FORMAT, "classes": "[]", "fingerprint": "0" * 64} | {
        k: header[k] for k in ("run", "event")
    }
    write_tensors(tmp_path / "task", tensors, old)
    assert "written by version 0.1" in (said := refused("predict", tmp_path / "task", "--query", query))
    assert "`metavib adapt`" in said
