"""A run on pictures of one's own: what the folder decides, how long it takes, and that its probabilities are honest."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from metavib.adapt.learner import Learner
from metavib.adapt.preparation import of_run
from metavib.data.labelled import concatenate
from metavib.data.shifts import drawings
from metavib.data.table import digest
from metavib.random import seeded
from metavib.show import tables
from metavib.tasks.inputs import points
from metavib.training import build, bundled, loop, recipes, run, run_folder
from metavib.training.config import METHODS
from metavib.training.fields import override
from metavib.training.protocols import experiment, pictures
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.pictures import look, resolve
from metavib.training.stopping import Clock, exhausted
from metavib.training.temperature import tempered
from program import done, refused


def character(c: int, i: int, side: int = 30) -> Image.Image:
    """White chalk on a black board: a bar whose place and direction are the class's."""
    pixels = np.full((side, side + 6), 10, np.uint8)
    at, shake = 3 + 5 * (c // 2), np.random.default_rng(31 * c + i).integers(0, 3)
    pixels[(slice(at, at + 3), slice(shake, 25)) if c % 2 else (slice(shake, 25), slice(at, at + 3))] = 230
    return Image.fromarray(pixels)


def photograph(c: int, i: int) -> Image.Image:
    """Colours that differ everywhere."""
    rng = np.random.default_rng(100 * c + i)
    return Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((90, 70))


def album(root: Path, make, counts) -> Path:
    for c, count in enumerate(counts):
        (root / f"class {c:02d}").mkdir(parents=True)
        for i in range(count):
            make(c, i).save(root / f"class {c:02d}" / f"{i}.png")
    return root


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pictures, "TRIED", 4)
    return tmp_path / "pictures"


def resolved(root: Path, method: str = recipes.default_method("images"), said: dict | None = None, **options):
    base = recipes.recipe("images", method, **options)
    return resolve(override(base, {"tasks.root": str(root)} | (said or {})), said or ())


# What the folder decides


def test_characters_are_told_from_photographs(root, tmp_path):
    drawn, seen = album(root, character, [12] * 20), album(tmp_path / "seen", photograph, [12] * 20)
    grey, colour = resolved(drawn), resolved(seen)
    assert (grey.tasks.kind, grey.tasks.channels, grey.tasks.size) == ("characters", 1, 28)
    assert (colour.tasks.kind, colour.tasks.channels, colour.tasks.size) == ("photographs", 3, 56)
    assert look(character(0, 0)).grey and not look(photograph(0, 0)).grey
    assert resolved(seen, said={"tasks.size": 40}).tasks.size == 40  # what was said stays


@pytest.mark.parametrize(
    ("counts", "ways", "trained", "splits", "shots"),
    [
        ([12] * 60, 5, 10, 10, (1, 5)),
        ([12] * 15, 5, 5, 10, (1, 5)),
        ([12] * 6, 2, 2, 10, (1, 5)),
        ([4] * 20, 5, 10, 4, (1,)),
        ([12] * 19 + [3], 5, 10, 3, (1, 5)),
        ([12] * 20 + [1], 5, 10, 10, (1, 5)),
    ],
)
def test_ways_shots_and_splits_follow_the_counts(root, counts, ways, trained, splits, shots):
    config = resolved(album(root, character, counts))
    assert (config.test.ways, config.tasks.ways, config.train.splits) == (ways, trained, splits)
    assert config.test.shots == shots and Path(config.tasks.root).is_absolute()
    if 1 not in counts:
        world = experiment(override(config, {"train.validation_tasks": 2}))
        world.check()
        task = world.sample((2,), torch.Generator())
        assert task.support.x.shape == (2, trained * config.tasks.shots, 1, 28, 28)
        assert not set(world.splits.train.names) & set(world.splits.test.names)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_config_that_can_be_trained(root, method):
    config = resolved(album(root, character, [12] * 20), method)
    world = experiment(override(config, {"train.validation_tasks": 2}))
    world.check()
    assert world.sample((1,), torch.Generator()).query.x.isfinite().all()


def test_the_number_of_ways_that_is_asked_for_is_held_out(root):
    config = resolved(album(root, character, [4] * 30), said={"tasks.ways": 8})
    world = experiment(config)
    assert [part.classes for part in world.splits] == [14, 8, 8] and config.test.ways == 0


def test_another_number_of_test_ways_leaves_the_split_as_it_was(root):
    config = resolved(album(root, character, [4] * 30))
    before, after = (experiment(override(config, {"test.ways": n})).splits.test.names for n in (5, 2))
    assert before == after


# How long it takes


def test_a_limit_on_time_ends_a_training_and_its_schedule(root, tmp_path):
    config = override(resolved(album(root, character, [6] * 9)), _SMALL | {"train.minutes": 0.02, "train.patience": 0})
    begin = time.monotonic()
    loop.train(config, tmp_path / "run", quiet=True)
    lines = run_folder.read_metrics(tmp_path / "run")
    assert lines[-1]["step"] < config.train.steps and "validation" in lines[-1]
    assert lines[-1]["seconds"] >= 1.2 and time.monotonic() - begin < 120
    saved = run_folder.chosen(tmp_path / "run")
    best = max((line["validation"] for line in lines if "validation" in line), key=lambda v: v["score"])
    assert saved.temperature.shots == (1,) and saved.temperature.values == (best["temperature at 1"],)
    assert saved.best == best["score"] == -best["nll"]


def test_more_time_may_be_given_to_a_run(root, tmp_path, capsys):
    config = override(resolved(album(root, character, [6] * 9)), _SMALL | {"train.minutes": 0.01, "train.patience": 0})
    loop.train(config, tmp_path / "run", quiet=True)
    done_before = run_folder.latest(tmp_path / "run").step
    loop.train(override(config, {"train.steps": 10_001}), tmp_path / "run", resume=True)  # which has no time left
    assert "no further step: all its time is used" in capsys.readouterr().err
    assert run_folder.latest(tmp_path / "run").step == done_before
    longer = override(config, {"train.minutes": 0.03, "train.steps": 10_001})
    loop.train(longer, tmp_path / "run", resume=True, quiet=True)
    assert run_folder.latest(tmp_path / "run").step > done_before
    with pytest.raises(ValueError, match=r"Only train\.steps and train\.minutes may grow"):
        loop.train(override(config, {"train.lr": 0.1}), tmp_path / "run", resume=True, quiet=True)


def test_a_killed_run_goes_on_from_its_last_validation_where_time_is_limited(root, tmp_path):
    config = override(resolved(album(root, character, [6] * 9)), _SMALL | {"train.minutes": 0.05, "train.patience": 0})
    seen = []

    def kill(step: int, score: float) -> None:
        seen.append(step)
        if len(seen) == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        loop.train(override(config, {"train.save_every": 10**6}), tmp_path / "run", quiet=True, watch=kill)
    assert run_folder.latest(tmp_path / "run").step in seen[:2]


def test_the_clock_counts_what_was_spent_before():
    clock = Clock(1.0, spent=30.0)
    assert 0.5 <= clock.share < 0.6 and not clock.over and not clock.due
    assert Clock(1.0, spent=61.0).over and Clock(None, spent=1e9).share == 0 and not Clock(None).over


@pytest.mark.parametrize(
    ("scores", "patience", "ends"),
    [([], 3, False), ([1, 2, 3], 2, False), ([3, 2, 1], 2, True), ([1, 3, 2, 2], 2, True), ([3, 1, 1], 0, False)],
)
def test_patience_counts_validations_since_the_best(scores, patience, ends):
    assert exhausted(scores, patience) == ends


def test_training_without_progress_stops_early(root, tmp_path):
    options = {"train.patience": 2, "train.validate_every": 1, "train.lr": 1e-12, "train.site_lr": 1e-12}
    config = override(resolved(album(root, character, [6] * 9)), _SMALL | options | {"train.scale_lr": 1e-12})
    loop.train(config, tmp_path / "run", quiet=True)
    assert run_folder.latest(tmp_path / "run").step < 500  # what the batch-norm still learns ends sooner


# Honest, and the same everywhere

_SMALL = {
    "model.width": 4,
    "train.steps": 100_000 // 10,
    "train.validate_every": 50,
    "train.validation_tasks": 3,
    "test.tasks": 5,
    "test.queries": 3,
    "tasks.ways": 2,
    "test.ways": 2,
    "tasks.held_out": 2,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the program with all its defaults but for a few seconds and a small network."""
    root = tmp_path_factory.mktemp("own")
    patch = pytest.MonkeyPatch()
    patch.setenv("METAVIB_CACHE", str(root / "cache"))
    album(root / "pictures", character, [8] * 11)
    album(root / "support", character, [2, 2])
    patch.chdir(root)
    left_open = ("tasks.ways", "test.ways", "tasks.held_out")
    said = [f"--set={field}={value}" for field, value in _SMALL.items() if field not in left_open]
    out = done("train", "images", "--root", "pictures", "--minutes", "0.05", "--out", "run", "--quiet", *said)
    yield root, out
    patch.undo()


def test_baselines_stand_beside_the_result(trained):
    root, out = trained
    row = json.loads((root / "run" / "record.json").read_text())["evaluation"]["rows"][0]
    names = ("nearest neighbour of pixels", "logistic regression of pixels", "nearest prototypes of its own features")
    assert tuple(row["obvious"]) == names and all(name in out for name in names)
    assert all(0 <= found["accuracy"]["mean"] <= 1 for found in row["obvious"].values())
    assert all(0 <= v["prototypes"] <= 1 for v in _validations(root / "run"))


def _validations(run: Path) -> list[dict]:
    return [line["validation"] for line in run_folder.read_metrics(run) if "validation" in line]


@torch.no_grad()
def test_prototypes_are_class_means_of_the_features_that_the_model_itself_uses(trained):
    """One pass of the network gives the model's own probabilities, and distances from means as NumPy has them."""
    root, _ = trained
    world, model = experiment(run_folder.chosen(root / "run").config), run_folder.selected(root / "run")
    task = world._validation_tasks(world.ways, 5)[0]
    plain = world.probabilities(model, [seeded(7)], task)[0]
    p, beside = world.beside_prototypes(model, [seeded(7)], task)
    torch.testing.assert_close(p, plain)
    support, query = (model.prior.features_of(points(side)) for side in task)
    z, at = (model.prior.kernel.embed(phi).double().numpy() for phi in (support, query))
    for b in range(len(z)):
        y, real = task.support.y[b].numpy(), task.support.mask[b].numpy()
        means = np.stack([z[b][real & (y == c)].mean(0) for c in range(world.ways)])
        far = ((at[b][:, None] - means) ** 2).sum(-1)
        expected = np.exp(-far) / np.exp(-far).sum(-1, keepdims=True)
        np.testing.assert_allclose(beside[b].numpy(), expected, atol=1e-5)
    found = run_folder.chosen(root / "run")
    assert world.validate(model.train())["prototypes"] == pytest.approx(
        next(v["prototypes"] for v in _validations(root / "run") if v["score"] == found.best), abs=0.02
    )


def test_the_temperature_of_validation_is_that_of_every_prediction(trained):
    """Predictions of the learner are those of the untempered model, to the power of 1/T."""
    root, _ = trained
    saved = run_folder.chosen(root / "run")
    assert saved.temperature.shots == (1, 5) and not saved.temperature.plain
    learner = Learner.from_run(root / "run")
    assert learner.trained.temperature == saved.temperature
    plain = Learner(learner.trained.model, preparation=of_run(saved.config))
    query = [character(c, 90) for c in range(2)]
    p, raw = (t.adapt(root / "support").predict(query).probabilities for t in (learner, plain))
    torch.testing.assert_close(p, tempered(raw, saved.temperature.at(2)))  # two pictures of a class
    x, y = learner.preparation.points(root / "support")
    many = learner.adapt_many((root / "support"), ["one"] * len(y))
    torch.testing.assert_close(many.predict(query, ["one"] * 2).probabilities, p)
    evaluated = experiment(saved.config).evaluate(
        run_folder.selected(root / "run"), temperature=saved.temperature, quiet=True
    )
    record = json.loads((root / "run" / "record.json").read_text())["evaluation"]
    assert evaluated["rows"][0]["metrics"]["nll"]["mean"] == pytest.approx(record["rows"][0]["metrics"]["nll"]["mean"])


def test_paths_images_and_arrays_of_any_kind_are_one_picture(trained):
    root, _ = trained
    task = Learner.from_run(root / "run").adapt(root / "support")
    image = character(0, 0)
    path = root / "support" / "class 00" / "0.png"
    pixels = np.asarray(image)
    expected = task.predict([path]).probabilities
    for source in ([image], [path.read_bytes()], [pixels], pixels[None], pixels[None] / 255.0):
        assert torch.equal(task.predict(source).probabilities, expected)


def test_a_run_is_found_from_another_working_directory(trained, tmp_path, monkeypatch):
    root, _ = trained
    monkeypatch.chdir(tmp_path)
    assert "accuracy" in done("evaluate", root / "run", "--quiet", "--tasks", "3")


def test_options_of_pictures_are_refused_elsewhere(tmp_path):
    assert "tasks.skip_broken is for the experiment images" in refused("train", "glyphs", "--skip-broken")
    assert "pass --root DIR" in refused("train", "images")


def test_a_packed_run_predicts_as_the_run_does(trained, tmp_path):
    root, _ = trained
    run_folder.pack(root / "run", tmp_path / "packed")
    assert {p.name for p in (tmp_path / "packed").iterdir()} == {"config.json", "best.safetensors", "record.json"}
    whole, packed = (Learner.from_run(folder) for folder in (root / "run", tmp_path / "packed"))
    query = [character(c, 90) for c in range(2)]
    p, q = (learner.adapt(root / "support").predict(query).probabilities for learner in (whole, packed))
    torch.testing.assert_close(p, q, atol=0.02, rtol=0)  # half precision
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert config["tasks"]["root"] is None and str(root) not in (tmp_path / "packed" / "record.json").read_text()
    assert "class 00" in done("adapt", tmp_path / "packed", "--support", root / "support", "--out", tmp_path / "t")
    assert "go on with" not in done("show", tmp_path / "packed")


def test_an_interrupted_run_is_not_packed(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        run_folder.pack(tmp_path / "none", tmp_path / "out")
    run_folder.begin(tiny.glyphs(), tmp_path / "begun")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        run_folder.pack(tmp_path / "begun", tmp_path / "out")


# Where training starts


def sketch(c: int, i: int) -> Image.Image:
    """One of a few shapes of strokes, which differ in nothing but their ink."""
    return Image.fromarray(_SKETCHES[c][i])


_DRAWN = drawings(48, classes=9, each=6, seed=5)
_SKETCHES = _DRAWN.images[:, 0].numpy().reshape(9, 6, 48, 48)
_BRIEF = {"train.steps": 2, "train.minutes": None, "train.validate_every": 1, "train.validation_tasks": 6}
_BRIEF |= {"test.tasks": 4, "test.queries": 3, "test.shots": [1]}


def test_training_starts_from_the_bundled_model_where_validation_is_for_it(root, tmp_path):
    drawn = album(root, sketch, [6] * 9)
    config, known = resolved(drawn), bundled.checkpoint_of("characters")
    assert (config.model.pretrained, config.tasks.ink, config.tasks.kind) == ("characters", True, "characters")
    assert replace(config.model, pretrained="") == known.config.model and config.train.lr == recipes.STARTED["train.lr"]
    assert not resolved(album(tmp_path / "bars", character, [6] * 9)).model.pretrained  # whose places tell them apart
    assert not resolved(drawn, "matching-net").model.pretrained
    for said in ({"model.kernel": "cosine"}, {"model.pretrained": ""}, {"tasks.size": 28}):
        assert not resolved(drawn, said=said).tasks.ink


def test_a_run_that_starts_from_the_bundled_model_is_no_worse_than_it_on_validation(root, tmp_path):
    """Step 0 is that model itself, with a temperature of all classes that it has not seen."""
    config = override(resolved(album(root, sketch, [6] * 9)), _BRIEF)
    record = run(config, tmp_path / "run", quiet=True)
    first, *later = _validations(tmp_path / "run")
    saved, known = run_folder.chosen(tmp_path / "run"), bundled.checkpoint_of("characters")
    assert len(later) == 2 and saved.best == max(v["score"] for v in (first, *later))
    assert record["network"] == digest(bundled.folder_of("characters") / "best.safetensors")
    assert saved.temperature.slope == known.temperature.slope
    world, model = experiment(config), build.model(config)
    world.acquaint(model)
    for name, tensor in known.part("model").items():
        torch.testing.assert_close(model.state_dict()[name], tensor.to(model.state_dict()[name].dtype))
    assert world.validate(model) == first
    both = world.splits._replace(validation=concatenate(world.splits.train, world.splits.validation))
    general = Classification(config, both).validate(model)
    assert world.temperature(first, first).at(1) == pytest.approx(general["temperature at 1"])
    ratio = general["temperature at 1"] / first["temperature at 1"]
    assert world.temperature(later[0], first).at(1) == pytest.approx(later[0]["temperature at 1"] * ratio)


@pytest.mark.parametrize("method", ["gp-vib", "proto-net", "dkt"])
def test_another_method_starts_from_the_network_of_the_bundled_model_alone(root, method):
    """The features are those of the bundled model; numbers behind them are as new, and so is the temperature."""
    known = bundled.checkpoint_of("characters")
    config = override(resolved(album(root, sketch, [6] * 9), method), _BRIEF)
    assert config.model.pretrained == "characters" and config.train.lr == recipes.STARTED["train.lr"]
    own = recipes.recipe("images", method)
    assert (config.model.kernel, config.train.site_lr) == (own.model.kernel, own.train.site_lr)
    world, new, begun = experiment(config), build.model(config), build.model(config)
    world.acquaint(begun)
    assert world.known_temperature.plain
    theirs = known.part("model")
    for name, tensor in begun.state_dict().items():
        network = name.removeprefix("prior.functions.").removeprefix("prior.")
        if network.startswith("network."):
            torch.testing.assert_close(tensor, theirs[f"prior.{network}"].to(tensor.dtype))
        else:
            torch.testing.assert_close(tensor, new.state_dict()[name])


def test_the_network_runs_once_under_a_temperature_of_each_picture(root, monkeypatch):
    """And the probabilities are those of the plain ones, to the power of 1/T of each query picture."""
    config = override(resolved(album(root, sketch, [6] * 9)), _BRIEF)
    world, model = experiment(config), build.model(config)
    world.acquaint(model.eval())
    task, T = world._validation_tasks(world.ways, 1)[0], world.known_temperature
    with torch.no_grad():
        plain = world.probabilities(model, [seeded(7)], task)[0]
        factor = T.factor(model.prior.features_of(points(task.query)))
        passes, forward = [], type(model.prior.network).forward
        monkeypatch.setattr(type(model.prior.network), "forward", lambda *given: (passes.append(1), forward(*given))[1])
        p = world.probabilities(model, [seeded(7)], task, temperature=T)[0]
    assert len(passes) == 1 and T.slope
    torch.testing.assert_close(p, tempered(plain, T.at(1) * factor), atol=1e-5, rtol=1e-4)


def test_a_table_says_where_something_simpler_is_more_accurate():
    share = {"mean": 0.8, "episode_ci95": 0.01, "episodes": 9}
    row = {"ways": 5, "shots": 1, "episodes": 9, "temperature": 1.0}
    row["metrics"] = {"accuracy": share, "nll": share, "brier": share, "ece": 0.01}
    for mean, said in ((0.79, False), (0.805, False), (0.85, True)):  # worse, within the interval, better
        row["obvious"] = {"logistic regression of pixels": row["metrics"] | {"accuracy": share | {"mean": mean}}}
        text = tables.evaluation({"experiment": "images", "method": "gp-vib", "rows": [row]})
        assert ("More accurate than this model: logistic regression of pixels at 1 shot." in text) == said
        assert ("metavib models" in text) == said
    assert "T = " not in text and "how alike" not in text
    row |= {"temperature": 0.8, "likeness": [2.0, -1.5]}
    text = tables.evaluation({"experiment": "images", "method": "gp-vib", "rows": [row]})
    assert "T = 0.80 exp(2.0 r - 1.5 r²)" in text and "how alike the classes of a task are" in text
