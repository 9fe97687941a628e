"""Configs from files: the same as written, and refused with the field's name where they make no sense."""

import json
import re

import pytest

import tiny
from metavib.training import config as configs
from metavib.training.config import METHODS, Config, read
from metavib.training.fields import from_dict, override, to_dict
from metavib.training.loop import train


def toml(values: dict, prefix: str = "") -> str:
    """The simplest possible TOML: scalars first, then sections; None has no TOML and is left out."""
    plain = {k: v for k, v in values.items() if not isinstance(v, dict) and v is not None}
    lines = [f"{k} = {json.dumps(v)}" for k, v in plain.items()]
    for name, section in values.items():
        if isinstance(section, dict):
            lines += [f"[{prefix}{name}]", toml(section, f"{prefix}{name}.")]
    return "\n".join(lines)


@pytest.mark.parametrize("method", METHODS)
def test_json_and_toml_give_the_config_that_was_written(tmp_path, method):
    config = tiny.glyphs(method)
    values = to_dict(config)
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.toml").write_text(toml(values))
    assert read(tmp_path / "a.json") == read(tmp_path / "a.toml") == config


def test_what_a_file_leaves_out_keeps_its_default(tmp_path):
    (tmp_path / "a.toml").write_text("seed = 4\n[train]\nsteps = 7\n")
    assert read(tmp_path / "a.toml") == override(Config(), {"seed": 4, "train.steps": 7})


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "seed: 3", "\x00\xff", '{"seed": 1}}'])
@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path, text, suffix):
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(text.encode("latin-1"))
    if suffix == "toml" and not text:
        assert read(path) == Config()  # an empty TOML file is a table without entries
        return
    with pytest.raises(ValueError, match=r"bad\." + suffix):
        read(path)


def test_a_json_file_that_holds_no_table_is_refused(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="expected a table of Config fields"):
        read(tmp_path / "list.json")


ALPHABETS = {"tasks.name": "augmented-omniglot", "tasks.alphabets": True}
BAD = [
    (ALPHABETS | {"test.min_shots": 1}, "Leave them out; got None and 1"),
    (ALPHABETS | {"tasks.min_shots": 1}, "Leave them out; got 1 and None"),
    ({"method": "mamml"}, "method must be one of gp-vib"),
    ({"precision": "half"}, "precision must be one of"),
    ({"model.scale": 0.0}, "model.scale must be positive; got 0.0"),
    ({"tasks.crop": 0.0}, "tasks.crop is a share of an area"),
    ({"tasks.crop": 1.5}, "tasks.crop"),
    ({"tasks.shuffled": True}, "tasks.shuffled is another split of omniglot; sinusoid has one split"),
    ({"tasks.rotations": True}, "sinusoid does not take them: leave it false"),
    ({"train.schedule": "linear"}, "train.schedule must be constant or cosine; got 'linear'"),
    ({"train.steps": -1}, "train.steps must be at least 1; got -1"),
    ({"train.steps": 0}, "train.steps"),
    ({"train.tasks": 0}, "train.tasks"),
    ({"train.save_every": 0}, "train.save_every"),
    ({"train.log_every": -5}, "train.log_every"),
    ({"train.validation_tasks": 0}, "train.validation_tasks"),
    ({"train.validate_every": -1}, "train.validate_every"),
    ({"train.lr": 0.0}, "train.lr must be positive"),
    ({"train.lr": "NaN"}, "train.lr"),
    ({"train.lr": "Infinity"}, "train.lr"),
    ({"train.scale_lr": -1.0}, "train.scale_lr"),
    ({"train.site_lr": 0.0}, "train.site_lr"),
    ({"train.select": "first"}, "train.select must be last or best"),
    ({"train.select": "best", "train.validate_every": 0}, "train.validate_every"),
    ({"train.beta": -1.0}, "beta must be"),
    ({"train.beta": "NaN"}, "beta must be"),
    ({"repeats": 0}, "repeats must be at least 1"),
    ({"seed": -1}, "seed"),
    ({"test.seed": -1}, "test.seed"),
    ({"test.tasks": 0}, "test.tasks"),
    ({"test.queries": 0}, "test.queries"),
    ({"test.shots": [5, -1]}, "test.shots"),
    ({"test.inner_steps": [-1]}, "test.inner_steps"),
    ({"test.weight_samples": 0}, "test.weight_samples"),
    ({"test.ways": 1}, "test.ways"),
    ({"train.stepz": 3}, "unknown option 'train.stepz'. Did you mean 'train.steps'?"),
    ({"train.steps": "many"}, "train.steps: expected int; got 'many'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[str(c) for c, _ in BAD])
def test_a_config_that_makes_no_sense_cannot_be_made(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        override(tiny.sinusoid(), changes)


@pytest.mark.parametrize("method", configs.DIRAC)
def test_a_dirac_encoder_with_beta_is_refused(method):
    with pytest.raises(ValueError, match=r"infinite KL.*Set beta = 0"):
        from_dict(Config, {"method": method, "train": {"beta": 0.5}})


UNBUILDABLE = [
    ({"model.kernel": "rbg"}, "model.kernel must be one of linear"),
    ({"model.likelihood": "cauchy"}, "model.likelihood must be one of gaussian"),
    ({"model.backbone": "vgg"}, "model.backbone must be mlp"),
    ({"model.backbone": "conv4"}, "model.backbone must be mlp"),
    ({"model.sites": "some"}, "model.sites must be one of exact"),
    ({"model.likelihood": "student-t"}, "model.sites = exact needs the gaussian likelihood"),
    ({"model.likelihood": "bernoulli", "model.sites": "full"}, "needs a likelihood of real outputs; got 'bernoulli'"),
    ({"model.likelihood": "poisson", "model.sites": "full"}, "must be counts"),
    ({"model.noise": -1.0}, "starting value must lie in"),
    ({"model.noise": 1e-4}, "starting value must lie in"),
    ({"tasks.name": "cosines"}, "tasks.name must be one of sinusoid"),
    ({"tasks.shots": -1}, "shots >= 0"),
    ({"tasks.queries": 0}, "queries >= 1"),
    ({"tasks.min_shots": 50}, "min_shots must lie in"),
    (
        {"tasks.name": "augmented-omniglot", "tasks.alphabets": True, "test.min_shots": 1},
        "Leave them out; got None and 1",
    ),
    ({"tasks.name": "augmented-omniglot", "tasks.alphabets": True, "tasks.min_shots": 1}, "Leave them out; got 1 and"),
    ({"tasks.name": "augmented-omniglot", "tasks.alphabets": True, "tasks.alike": 0.5}, "got 0.5 with augmented-"),
    ({"tasks.name": "glyphs", "tasks.alike": 1.5}, "a share of training tasks, between 0 and 1; got 1.5"),
    ({"tasks.alike": 0.5}, "got 0.5 with sinusoid, gp-vib and tasks.alphabets = False"),
    ({"tasks.name": "glyphs", "method": "baseline++", "tasks.alike": 0.5}, "got 0.5 with glyphs, baseline++ and"),
    ({"method": "gp-maml", "model.inner_steps": -1}, "inner steps must be >= 0"),
    ({"method": "gp-maml", "model.inner_rate": 0.0}, "their size > 0"),
    ({"method": "proto-net", "train.beta": 0.0}, "classifier"),
]


@pytest.mark.parametrize(("changes", "message"), UNBUILDABLE, ids=[str(c) for c, _ in UNBUILDABLE])
def test_what_cannot_be_built_is_refused_before_a_file_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(override(tiny.sinusoid(), changes), tmp_path / "run", quiet=True)
    assert not list(tmp_path.iterdir())
