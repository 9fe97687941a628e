"""Checkpoints: all of a training's state and back; anything else is refused by name."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import tiny
from metavib.files import read_tensors, write_tensors
from metavib.random import seeded
from metavib.training import build, checkpoint, run_folder
from metavib.training import loop as train
from metavib.training.temperature import Temperature

FORMAT = checkpoint.FORMAT


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The last checkpoint of a finished run."""
    folder = tmp_path_factory.mktemp("checkpoint") / "run"
    train.train(tiny.sinusoid(train__steps=4), folder, quiet=True)
    return folder / run_folder.LAST


@pytest.fixture
def parts(saved):
    """Its tensors and header, to be tampered with."""
    return read_tensors(saved)


@pytest.mark.parametrize("method", tiny.REGRESSORS)
def test_a_model_comes_back_as_it_was(tmp_path, method):
    config = tiny.sinusoid(method, repeats=2)
    model = build.model(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=seeded(1)))
    checkpoint.save(tmp_path / "m", config, 7, -0.25, model)
    loaded = checkpoint.load(tmp_path / "m")
    assert (loaded.config, loaded.step, loaded.best) == (config, 7, -0.25)
    assert tiny.same_tensors(checkpoint.restore_model(loaded).state_dict(), model.state_dict())


@pytest.mark.parametrize("method", ["gp-vib", "gp-maml"])
def test_a_checkpoint_of_before_predicts_as_it_did(tmp_path, method):
    """Its site variance was 0.001 + softplus(a); the same number comes from the a that is read."""
    config = tiny.glyphs(method)
    checkpoint.save(tmp_path / "m", config, 1, 0.0, build.model(config))
    tensors, header = read_tensors(tmp_path / "m")
    (name,) = (name for name in tensors if name.endswith("sites.s.raw"))
    for a in (-9.0, -2.0, 0.5):
        tensors[name] = torch.full_like(tensors[name], a)
        write_tensors(tmp_path / "m", tensors, header | {"format": checkpoint.BEFORE})
        encoder = checkpoint.restore_model(checkpoint.load(tmp_path / "m")).encoder
        sites = encoder.sites if method == "gp-vib" else encoder.gp.sites
        assert sites.s().item() == pytest.approx(1e-3 + nn.functional.softplus(torch.tensor(a)).item(), rel=1e-5)


def test_no_validation_yet_survives_the_header(tmp_path):
    config = tiny.sinusoid()
    checkpoint.save(tmp_path / "m", config, 1, float("-inf"), build.model(config))
    assert checkpoint.load(tmp_path / "m").best == float("-inf")


def test_optimiser_and_streams_come_back_as_they_were(saved):
    loaded = checkpoint.load(saved)
    model = checkpoint.restore_model(loaded)
    optimiser = train.adam(model, loaded.config)
    streams = {"tasks": seeded(99), "noise": seeded(98)}
    checkpoint.restore_training(loaded, optimiser, streams)
    again = saved.with_name("again.safetensors")
    checkpoint.save(again, loaded.config, loaded.step, loaded.best, model, optimiser, streams)
    assert tiny.same_state(saved, again)
    again.unlink()


def test_a_missing_checkpoint_says_what_to_look_at(tmp_path):
    with pytest.raises(FileNotFoundError, match="is that folder a run"):
        checkpoint.load(tmp_path / "last.safetensors")
    with pytest.raises(FileNotFoundError, match="is that folder a run"):
        checkpoint.load(tmp_path)  # a folder is no checkpoint either


@pytest.mark.parametrize("header", [{}, {"format": "metavib-checkpoint-0"}, {"format": "pt"}])
def test_a_foreign_format_is_refused(tmp_path, header):
    write_tensors(tmp_path / "f.safetensors", {"w": torch.ones(2)}, header)
    with pytest.raises(ValueError, match=r"f\.safetensors is no checkpoint of this version.*" + FORMAT):
        checkpoint.load(tmp_path / "f.safetensors")


def test_a_pickled_checkpoint_is_refused(tmp_path):
    (tmp_path / "f.safetensors").write_bytes(pickle.dumps({"format": FORMAT}))
    with pytest.raises(ValueError, match=r"f\.safetensors is truncated or no safetensors file"):
        checkpoint.load(tmp_path / "f.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"config": "{"},
        {"config": "[]"},
        {"config": '{"method": "mamml"}'},
        {"config": '{"wat": 1}'},
        {"config": '{"train": {"steps": "x"}}'},
        {"step": "many"},
        {"step": "1.5"},
        {"best": "good"},
        {"config": None},
        {"step": None},
    ],
    ids=str,
)
def test_a_damaged_header_is_refused_by_name(tmp_path, parts, change):
    tensors, header = parts
    header = {k: v for k, v in (header | change).items() if v is not None}
    write_tensors(tmp_path / "f.safetensors", tensors, header)
    with pytest.raises(ValueError, match=r"f\.safetensors has a damaged header"):
        checkpoint.load(tmp_path / "f.safetensors")


def tampered(path: Path, parts, change) -> checkpoint.Checkpoint:
    tensors, header = parts
    tensors = dict(tensors)
    change(tensors)
    write_tensors(path, tensors, header)
    return checkpoint.load(path)


def first(tensors: dict) -> str:
    return min(name for name in tensors if name.startswith("model/") and tensors[name].ndim == 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(first(t)), "it lacks prior"),
        (lambda t: t.update({"model/extra.weight": torch.ones(1)}), "has a foreign extra.weight"),
        (lambda t: t.update({first(t): t[first(t)].T}), r"of shape \(1, 8\), not \(8, 1\)"),
        (lambda t: [t.pop(n) for n in list(t) if n.startswith("model/")], "it lacks"),
    ],
    ids=["missing", "foreign", "shape", "no model"],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, parts, change, message):
    loaded = tampered(tmp_path / "f", parts, change)
    with pytest.raises(ValueError, match=r"does not fit its own config.*" + message):
        checkpoint.restore_model(loaded)


def test_a_checkpoint_of_another_method_does_not_fit(tmp_path, parts):
    tensors, header = parts
    values = json.loads(header["config"]) | {"method": "maml"}
    values["train"]["beta"] = 0.0
    write_tensors(tmp_path / "f", tensors, header | {"config": json.dumps(values)})
    with pytest.raises(ValueError, match="does not fit its own config"):
        checkpoint.restore_model(checkpoint.load(tmp_path / "f"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: [t.pop(n) for n in list(t) if n.startswith("optimiser/")], "no whole training state"),
        (lambda t: t.pop("streams/noise"), "no whole training state"),
        (lambda t: t.update({"optimiser/0/exp_avg": torch.ones(5, 5)}), "optimiser state 0 does not fit"),
        (lambda t: t.update({"optimiser/99/exp_avg": torch.ones(1)}), "optimiser state 99 does not fit"),
    ],
    ids=["no optimiser", "no stream", "shape", "foreign"],
)
def test_a_training_cannot_go_on_from_half_a_state(tmp_path, parts, change, message):
    """Moments or streams started anew would go unnoticed and give another result."""
    loaded = tampered(tmp_path / "f", parts, change)
    model = checkpoint.restore_model(loaded)
    streams = {"tasks": seeded(0), "noise": seeded(1)}
    with pytest.raises(ValueError, match=message):
        checkpoint.restore_training(loaded, train.adam(model, loaded.config), streams)


def test_buffers_are_saved_with_the_weights(tmp_path):
    """Batch-norm's running averages are part of a model."""
    config = tiny.glyphs()
    model = build.model(config)
    averages = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    assert averages
    with torch.no_grad():
        for b in averages.values():
            nn.init.uniform_(b, generator=seeded(3))
    checkpoint.save(tmp_path / "m", config, 1, 0.0, model)
    restored = dict(checkpoint.restore_model(checkpoint.load(tmp_path / "m")).named_buffers())
    assert all(torch.equal(restored[name], b) for name, b in averages.items())


@pytest.mark.parametrize("slope", [(), (0.25, -1e-3)])
@pytest.mark.parametrize("alike", [{}, {"likeness": ((0.1 + 0.2, -1.0), (2.0, 0.0)), "seen": (-0.1, 0.7)}])
def test_a_temperature_comes_back_as_it_was(slope, alike):
    known = Temperature((1, 5), (1.5, 0.1 + 0.2), slope, **alike)
    header = checkpoint.header(tiny.sinusoid(), 3, 0.5, known)
    assert checkpoint.described({}, header).temperature == known
