"""A network of the supervised stage that goes on learning: where it starts, what it keeps, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import program
import tiny
from metavib.adapt.learner import Learner
from metavib.data import Splits, shifts
from metavib.data.embeddings import write_embeddings
from metavib.data.shifts import shifted
from metavib.data.table import digest
from metavib.networks.norm import TaskNorm
from metavib.networks.tuned import Tuned
from metavib.random import seeded
from metavib.tasks.inputs import Inputs
from metavib.tasks.task import Examples
from metavib.training import build, bundled, loop, pretrain, recipes, run, run_folder
from metavib.training.config import TUNED, Config
from metavib.training.embedding import View, embedded
from metavib.training.fields import override, to_dict
from metavib.training.protocols import embeddings, tuned
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.seen import evaluation_transform
from metavib.training.protocols.tuned import Frozen, Tuning
from metavib.training.step import adam
from metavib.training.temperature import Temperature, tempered

SIZE = 32
SMALL: dict[str, Any] = {
    "tasks.size": SIZE,
    "tasks.augment": False,
    "tasks.queries": 3,
    "tasks.ways": 3,
    "model.samples": 20,
    "model.view": 40,
    "model.mirror": True,
    "train.steps": 6,
    "train.tasks": 2,
    "train.splits": 2,
    "train.validate_every": 3,
    "train.validation_tasks": 10,
    "train.log_every": 2,
    "test.tasks": 20,
    "test.queries": 5,
}


def pictures() -> Splits:
    return Splits(*(tiny.images(name, 6, size=SIZE, seed=i) for i, name in enumerate(Splits._fields)))


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Path:
    """A supervised stage of a few steps."""
    folder = tmp_path_factory.mktemp("stage") / "run"
    changes = {"widths": [4, 8, 8, 8], "tasks.ways": 3, "tasks.size": SIZE, "tasks.augment": False, "batch": 12}
    short = {"epochs": 4, "episodes": 10, "validate_every": 2}
    config = override(pretrain.pretraining("glyphs"), changes | short)
    pretrain.pretrain(config, folder, quiet=True, splits=pictures())
    return folder


def config(stage: Path, method: str = "gp-vib", **changes: Any) -> Config:
    splits = {"train.splits": 1} if method == "dkt" else {}
    made = override(recipes.tuned("glyphs", method, shots=1), SMALL | splits | {"model.pretrained": str(stage)})
    return tuned.resolve(override(made, changes))


@pytest.mark.parametrize("method", TUNED)
def test_before_the_first_step_it_is_the_route_over_frozen_features(stage, tmp_path, method):
    """A test is that of the experiment `embeddings` on the vectors of `metavib embed` (whose file rounds them)."""
    one = {"tasks.shots": 1, "tasks.min_shots": None}  # Gaussian classes learn from classes of several sizes
    ours = config(stage, method, **one)
    world = Tuning(ours, pictures())
    model = build.model(ours)
    world.acquaint(model)
    found = world.evaluate(model, quiet=True)

    network = pretrain.load_backbone(stage).network
    vectors, _ = embedded(network, pictures(), ours.tasks, [View(40, mirror=True)], episodes=6)
    write_embeddings(tmp_path / "vectors.npz", vectors)
    same = {name: value for name, value in SMALL.items() if not name.startswith(("model.v", "model.mi", "tasks.size"))}
    frozen = override(
        recipes.improved("embeddings", method, shots=1, kernel="cosine"),
        same | one | {"train.splits": 1, "tasks.features": [str(tmp_path / "vectors.npz")], "tasks.augment": False},
    )
    frozen = embeddings.resolve(frozen)
    beside = Classification(frozen, vectors)
    start = build.model(frozen)
    beside.acquaint(start)
    wanted = beside.evaluate(start, quiet=True)
    for key in ("metrics", "tempered_metrics"):
        ours_, theirs = found["rows"][0][key], wanted["rows"][0][key]
        assert ours_["nll"]["mean"] == pytest.approx(theirs["nll"]["mean"], rel=1e-6)
        assert ours_["accuracy"]["mean"] == pytest.approx(theirs["accuracy"]["mean"])
    assert found["rows"][0]["metrics"]["accuracy"]["mean"] > 0.6  # of 3


def test_pictures_and_their_vectors_have_the_same_features(stage):
    """What a user's picture goes through is what validation and test go through."""
    ours = config(stage)
    world, model = Tuning(ours, pictures()), build.model(ours)
    world.acquaint(model)
    model.eval()
    network, data = tuned.tuned(model), pictures().test
    vectors = world.vectors(network.trunk, data).images
    everything = torch.ones(len(vectors), dtype=torch.bool)
    seen = evaluation_transform(ours.tasks)(data.images, torch.Generator())
    torch.testing.assert_close(
        network(Inputs(seen, everything, 0)), network(Inputs(vectors, everything, 0)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("method", TUNED)
def test_a_run_learns_from_tasks_and_leaves_the_statistics_of_its_stage_alone(stage, tmp_path, method):
    ours = config(stage, method, **{"train.network_lr": 1e-3})
    trained = loop.train(ours, tmp_path / "run", quiet=True, world=Tuning(ours, pictures()))
    lines = run_folder.read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines if "validation" in line] == [0, 3, 6]
    assert lines[0]["validation"]["accuracy"] > 0.6
    last = run_folder.latest(tmp_path / "run").part("model")
    before = pretrain.load_backbone(stage).network.body.state_dict()
    after = {name.split(".trunk.body.")[1]: t for name, t in last.items() if ".trunk.body." in name}
    assert after.keys() == before.keys()
    for name, t in before.items():
        assert torch.equal(after[name], t) == ("running" in name), name
    assert all(not part.training for part in trained.modules() if isinstance(part, TaskNorm))


def test_the_best_on_validation_may_be_the_frozen_start(stage, tmp_path, monkeypatch):
    """Where no step makes validation better, what is tested and used is what was there before."""
    ours, scores = config(stage), iter((0.9, 0.8, 0.9))
    monkeypatch.setattr(Tuning, "validate", lambda self, model: {"score": next(scores)})
    chosen = loop.train(ours, tmp_path / "run", quiet=True, world=Tuning(ours, pictures()))
    assert run_folder.chosen(tmp_path / "run").step == 0
    before = pretrain.load_backbone(stage).network.body.state_dict()
    assert tiny.same_tensors(tuned.tuned(chosen).trunk.body.state_dict(), before)


def test_a_stopped_run_goes_on_to_the_same_numbers(stage, tmp_path):
    ours = config(stage, **{"train.save_every": 2})
    world = Tuning(ours, pictures())
    whole = loop.train(ours, tmp_path / "whole", quiet=True, world=world)

    class Stopped(Exception):
        pass

    def stop(step: int, score: float) -> None:
        if step == 3:
            raise Stopped

    with pytest.raises(Stopped):
        loop.train(ours, tmp_path / "part", quiet=True, world=world, watch=stop)
    again = loop.train(ours, tmp_path / "part", resume=True, quiet=True, world=Tuning(ours, pictures()))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_the_network_has_a_rate_of_its_own(stage):
    ours = config(stage, **{"train.network_lr": 1e-4, "train.lr": 1e-2, "train.site_lr": 1e-2, "train.scale_lr": 1e-2})
    model = build.model(ours)
    groups = {group["lr"]: len(group["params"]) for group in adam(model, ours).param_groups}
    trunk = len(list(tuned.tuned(model).trunk.parameters()))
    assert groups == {1e-4: trunk, 1e-2: len(list(model.parameters())) - trunk}


def test_half_precision_is_left_to_the_network(stage):
    """Centring and whitening of vectors are done in full: the same numbers with bfloat16 as without."""
    x = Inputs(torch.randn(5, 8), torch.ones(5, dtype=torch.bool), 0)
    full, half = (build.model(config(stage, precision=name)).eval() for name in ("float32", "bf16"))
    assert tuned.tuned(half).trunk.bf16
    torch.testing.assert_close(half.prior.network(x), full.prior.network(x), rtol=0, atol=0)


def still(stage: Path, method: str = "gp-vib", **changes: Any) -> Config:
    """A network that stays as it is, and tasks of pictures seen in three ways."""
    small = {field: value for field, value in SMALL.items() if field not in ("train.splits", "model.mirror")}
    options = {"tasks.spoilt": ["blur", "inversion"], "test.shots": [1, 2], "train.steps": 12, "train.tasks": 6}
    made = override(recipes.frozen("glyphs", method, shots=2), small | options | {"model.pretrained": str(stage)})
    return tuned.resolve(override(made, changes), ["tasks.spoilt", *changes])


@pytest.mark.parametrize("method", TUNED)
def test_behind_a_network_that_stays_as_it_is_a_handful_of_numbers_learn(stage, tmp_path, method):
    ours = still(stage, method)
    world = Frozen(ours, pictures())
    start = build.model(ours)
    world.acquaint(start)
    before = {name: t.clone() for name, t in start.state_dict().items()}
    before_nll = world.validate(start)["nll"]
    trained = loop.train(ours, tmp_path / "run", quiet=True, world=Frozen(ours, pictures()))
    after = run_folder.latest(tmp_path / "run").part("model")
    moved = {name for name, t in before.items() if not torch.equal(t, after[name])}
    assert moved and all(before[name].numel() <= 3 for name in moved) and not any(".trunk." in name for name in moved)
    assert world.validate(trained)["nll"] <= before_nll
    known = run_folder.chosen(tmp_path / "run").temperature
    found = world.evaluate(trained, temperature=known, quiet=True)
    assert [row["shots"] for row in found["rows"]] == [1, 2] and all("obvious" in row for row in found["rows"])
    assert bool(known.likeness) == (
        method in ("gp-vib", "gaussian-classes")
    )  # of which a memory tells how alike classes are


def test_temperatures_by_likeness_are_the_same_in_validation_in_the_test_and_in_use(stage):
    """Pictures in one way resemble each other more than those of different ways do; a learner sees it as the test."""
    world = Frozen(still(stage), pictures())
    model = build.model(world.config)
    world.acquaint(model)
    known = Temperature.of_numbers(world.validate(model))
    assert known.shots == (1, 2) and len(known.likeness) == 2 and -1 <= known.seen[0] < known.seen[1] <= 1
    model.eval()
    for shots in known.shots:
        tasks = world._tasks._validation_tasks(world._tasks.ways, shots)[0]
        plain, warm = (
            world._tasks.probabilities(model, [seeded(7)], tasks, temperature=T)[0] for T in (Temperature(), known)
        )
        for i in (0, 1):
            few = Examples(*(t[i] for t in tasks.support))
            of_use = Learner(model, temperature=known).trained
            T = of_use.warmth(of_use.points((few.x, few.y.tolist())))
            torch.testing.assert_close(tempered(plain[i], T.float()), warm[i], rtol=1e-3, atol=1e-5)


def test_a_task_shows_all_its_pictures_in_one_way(stage):
    """Vectors of each way to see a picture, computed one by one, tell which it was."""
    world = Frozen(still(stage), pictures())
    network, data = tuned.stage(world.config).network, pictures().validation
    ways = [data, shifted(data, "blur"), shifted(data, "inversion")]
    vectors = [world.tuning.vectors(network, way).images for way in ways]
    tasks, seen = world.sample((60,), torch.Generator().manual_seed(0)), set()
    for i in range(60):
        x = torch.cat([side.x[i][side.mask[i]] for side in tasks])
        near = [bool((torch.cdist(x.double(), of_way.double()) < 1e-4).any(-1).all()) for of_way in vectors]
        assert sum(near) == 1
        seen.add(near.index(True))
    assert seen == {0, 1, 2}


def test_what_the_network_has_not_seen_is_learned_from(stage):
    """Training classes, unless the supervised stage was on them."""
    assert still(stage).tasks.learn_from == "validation"
    elsewhere = override(recipes.frozen("omniglot", "gp-vib"), {"model.pretrained": str(stage)})
    assert tuned.resolve(elsewhere).tasks.learn_from == "train"
    assert tuned.resolve(elsewhere, ["tasks.learn_from"]).tasks.learn_from == "validation"  # what was said stays
    same = Frozen(still(stage, **{"tasks.learn_from": "validation"}), pictures())
    assert torch.equal(same._tasks.splits.train.images, same._tasks.splits.validation.images)
    other = Frozen(still(stage, **{"tasks.learn_from": "train"}), pictures())
    assert not torch.equal(other._tasks.splits.train.images, other._tasks.splits.validation.images)


def test_photographs_are_spoilt_in_every_way_there_is():
    assert tuple(recipes.frozen("cub", "gp-vib").tasks.spoilt) == shifts.SPOILT
    assert not recipes.frozen("glyphs", "gp-vib").tasks.spoilt


def test_pictures_unlike_those_of_training_go_through_the_network_too(stage):
    ours = config(stage, **{"test.shifts": ["inversion", "drawings"], "test.unknown": False})
    world = Tuning(ours, pictures())
    model = build.model(ours)
    world.acquaint(model)
    found = world.evaluate(model, quiet=True)["rows"]
    assert [row.get("shift") for row in found] == [None, "inversion", "drawings"]
    direct = Classification(ours, pictures()._replace(test=shifted(pictures().test, "inversion")))
    wanted = Tuning(override(ours, {"test.shifts": []}), direct.splits).evaluate(model, quiet=True)["rows"][0]
    assert found[1]["metrics"]["nll"]["mean"] == pytest.approx(wanted["metrics"]["nll"]["mean"], rel=1e-5)


def test_the_network_of_a_model_of_the_package_is_named_by_its_name(tmp_path, monkeypatch):
    """A folder of photographs is learned from behind the network of `photographs`, as it sees pictures."""
    rng = np.random.default_rng(0)
    for c in range(9):
        (tmp_path / "album" / f"thing {c}").mkdir(parents=True)
        for i in range(6):
            pixels = rng.normal(30 * c, 20, (40, 60, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "album" / f"thing {c}" / f"{i}.png")
    options = {"tasks.root": str(tmp_path / "album"), "model.pretrained": "photographs", "train.steps": 4}
    monkeypatch.chdir(tmp_path)
    Path("photographs").mkdir()  # of pictures: no network
    made = tuned.resolve(override(recipes.frozen("images", "gp-vib"), options))
    known = bundled.checkpoint_of("photographs").config
    assert made.model.widths == known.model.widths and made.tasks.size == known.tasks.size
    assert made.tasks.learn_from == "train" and made.tasks.spoilt == ()
    record = run(override(made, {"test.tasks": 4, "train.validation_tasks": 4}), tmp_path / "run", quiet=True)
    assert record["evaluation"]["rows"] and record["network"] == digest(tuned.where(made))
    learner = Learner.from_run(tmp_path / "run")
    task = learner.adapt({c: [tmp_path / "album" / f"thing {c}" / "0.png"] for c in range(3)})
    assert task.predict([tmp_path / "album" / "thing 1" / "3.png"]).probabilities.shape == (1, 3)


def test_what_cannot_be_frozen_is_refused(stage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"tasks\.spoilt is for a network that stays as it is"):
        config(stage, **{"tasks.spoilt": ["blur"]})
    with pytest.raises(ValueError, match=r"tasks\.spoilt may be blur, .*; got fog"):
        Frozen(still(stage, **{"tasks.spoilt": ["fog"]}), pictures()).check()
    with pytest.raises(ValueError, match="characters has no network of a supervised stage"):
        tuned.resolve(override(recipes.frozen("glyphs", "gp-vib"), {"model.pretrained": "characters"}))
    ended = program.metavib("train", "glyphs", "--frozen", "--out", "run")
    assert ended.status and "name that network" in ended.err and not (tmp_path / "run").exists()


def test_widths_come_from_the_file_and_other_pictures_are_refused(stage):
    assert config(stage).model.widths == (4, 8, 8, 8)
    with pytest.raises(ValueError, match="sees pictures of 1 channels; those of cub have 3"):
        tuned.resolve(override(recipes.tuned("cub", "gp-vib"), {"model.pretrained": str(stage)}))
    with pytest.raises(FileNotFoundError, match="metavib pretrain"):
        tuned.resolve(override(recipes.tuned("cub", "gp-vib"), {"model.pretrained": "nothing.safetensors"}))
    with pytest.raises(ValueError, match="a tuned network learns with"):
        recipes.tuned("cub", "maml")
    with pytest.raises(ValueError, match="is tuned on"):
        recipes.tuned("sinusoid", "gp-vib")
    with pytest.raises(ValueError, match="--backbone RUN"):
        tuned.where(recipes.tuned("glyphs", "gp-vib"))
    with pytest.raises(ValueError, match=r"model\.view"):
        override(recipes.tuned("cub", "gp-vib"), {"model.view": 3})


def test_no_picture_sees_another_while_training():
    phi = Tuned(1, (4, 4, 4, 4)).train()
    x, mask = torch.rand(6, 1, 16, 16), torch.ones(6, dtype=torch.bool)
    together = phi(Inputs(x, mask, 0))
    torch.testing.assert_close(together[:2], phi(Inputs(x[:2], mask[:2], 0)))


def test_from_the_command_line_and_back_to_features(tmp_path, monkeypatch):
    """pretrain, train --backbone, then embed of the tuned network, and a learner of the run."""
    monkeypatch.chdir(tmp_path)
    small = ["--set", "widths=[4,8,8,8]", "--set", "episodes=10", "--set", "tasks.augment=false"]
    program.done("pretrain", "glyphs", "--epochs", "1", *small, "--out", "stage", "--quiet")
    sets = [f"{name}={json.dumps(value)}" for name, value in SMALL.items() if name != "tasks.size"]
    options = [part for text in sets for part in ("--set", text)]
    program.done("train", "glyphs", "--backbone", "stage", *options, "--out", "tuned", "--quiet")
    record = run_folder.read_record(Path("tuned"))
    assert record is not None and record["evaluation"]["rows"][0]["metrics"]["accuracy"]["mean"] > 0.38  # of 3
    assert record["network"] == digest(Path("stage/backbone.safetensors"))
    program.done("embed", "tuned", "glyphs", "--episodes", "6", "--out", "tuned.npz", "--quiet")
    learner = Learner.from_run("tuned")
    assert learner.adapt((torch.rand(4, 1, 28, 28), ["a", "b"] * 2)).predict(torch.rand(1, 1, 28, 28)) is not None
    run_folder.pack(Path("tuned"), Path("packed"))  # which says no more where its network came from
    again = override(run_folder.chosen(Path("packed")).config, {"test.tasks": 12})
    Path("again.json").write_text(json.dumps(to_dict(again)))
    program.done("train", "glyphs", "--config", "again.json", "--trained", "packed", "--out", "again", "--quiet")
    assert run_folder.read_record(Path("again"))["evaluation"]["rows"][0]["episodes"] == 12
    ended = program.metavib("train", "glyphs", "--backbone", "stage", "--improved", "--out", "c")
    assert ended.status and "give one of them" in ended.err
