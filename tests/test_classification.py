"""Few-shot classification end to end on tiny images: every method under one protocol."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from metavib.data import Splits
from metavib.random import seeded
from metavib.show import tables
from metavib.tasks.task import Task
from metavib.training import build, run_folder
from metavib.training import loop as train
from metavib.training.config import BASELINES, METHODS, TRANSFER, Config
from metavib.training.fields import override
from metavib.training.metrics import report
from metavib.training.protocols import classification, seen
from metavib.training.protocols.classification import Classification
from metavib.training.temperature import Temperature, fit_temperature, tempered

SPLITS = tiny.splits()

VARIANTS: dict[str, Config] = {
    **{f"gp-vib {k} {s}": tiny.glyphs(model__kernel=k, model__sites=s)
       for k in ("linear", "cosine", "bn-cosine") for s in ("simplified", "full")},
    **{f"dkt {k}": tiny.glyphs("dkt", model__kernel=k) for k in ("linear", "cosine", "bn-cosine")},
    **{method: tiny.glyphs(method) for method in METHODS if method not in ("gp-vib", "dkt")},
    "matching-net context": tiny.glyphs("matching-net", model__context=True),
    "gp-vib support+point": tiny.glyphs(model__norm="support+point"),
    "gp-vib transductive": tiny.glyphs(model__norm="transductive"),
    "gp-vib no norm": tiny.glyphs(model__norm="none"),
    "gp-vib bernoulli": tiny.glyphs(tasks__ways=2, model__likelihood="bernoulli"),
    "maml bernoulli": tiny.glyphs("maml", tasks__ways=2, model__likelihood="bernoulli"),
    "gp-vib strided": tiny.glyphs(model__backbone="strided-conv4"),
    "gp-vib ragged": tiny.glyphs(tasks__min_shots=1),
    "proto-net ragged": tiny.glyphs("proto-net", tasks__min_shots=1),
}  # fmt: skip


def world(config: Config) -> Classification:
    return Classification(config, SPLITS)


@pytest.fixture(autouse=True)
def tiny_images(monkeypatch):
    monkeypatch.setattr(train, "experiment", world)


def numbers(found) -> list[float]:
    """Every number in nested results."""
    if isinstance(found, dict):
        return [n for value in found.values() for n in numbers(value)]
    if isinstance(found, list):
        return [n for value in found for n in numbers(value)]
    return [found] if isinstance(found, int | float) else []


@pytest.mark.parametrize("name", VARIANTS)
def test_every_method_trains_and_tests(tmp_path, name):
    """A few steps move the weights, and the test gives numbers in their ranges, in strict JSON."""
    config = VARIANTS[name]
    start = build.model(config).state_dict()
    model = train.train(config, tmp_path / "run", quiet=True)
    moved = [n for n, t in model.state_dict().items() if t.is_floating_point() and not torch.equal(t, start[n])]
    assert any(n.startswith("prior.") for n in moved)
    result = world(config).evaluate(model, quiet=True)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    (row,) = result["rows"]
    assert (row["ways"], row["shots"], row["episodes"]) == (config.tasks.ways, 2, 4)
    assert np.isfinite(numbers(row)).all()
    found = row["metrics"]
    assert 0 <= found["accuracy"]["mean"] <= 1 and 0 <= found["brier"]["mean"] <= 2 and 0 <= found["ece"] <= 1
    assert found["nll"]["mean"] > 0 and sum(found["reliability"]["points"]) == 4 * config.tasks.ways * 3
    lines = run_folder.read_metrics(tmp_path / "run")
    assert all(0 <= line["validation"]["accuracy"] <= 1 for line in lines if "validation" in line)


def test_the_variants_leave_out_no_method():
    assert {config.method for config in VARIANTS.values()} == set(METHODS)


def drawn(config: Config, monkeypatch) -> dict[str, list[Task]]:
    """The episodes a model is shown in validation and in the test."""
    shown: dict[str, list[Task]] = {}
    here = world(config)
    probabilities = Classification.probabilities

    def spy(self, model, streams, tasks):
        shown.setdefault(stage, []).append(tasks)
        return probabilities(self, model, streams, tasks)

    monkeypatch.setattr(Classification, "probabilities", spy)
    model = build.model(config)
    stage = "validation"
    here.validate(model)
    stage = "test"
    here.evaluate(model, quiet=True)
    monkeypatch.undo()
    return shown


def test_the_class_with_the_largest_mean_is_predicted_in_validation_and_test(monkeypatch):
    """Untrained, so that means are close to each other and ten draws say nothing of their order."""
    config = tiny.glyphs(model__samples=10)
    shown, model = drawn(config, monkeypatch), build.model(config).eval()
    hits = {}
    for stage, tasks in shown.items():
        with torch.no_grad():
            right = [(model(t).mean.argmax(-1) == t.query.y).float().mean(-1) for t in tasks]
        hits[stage] = torch.cat(right).mean().item()
    here = world(config)
    (row,) = here.evaluate(model, quiet=True)["rows"]
    assert row["metrics"]["accuracy"]["mean"] == pytest.approx(hits["test"])
    assert here.validate(model)["accuracy"] == pytest.approx(hits["validation"])


def joined(tasks: list[Task]) -> list[Tensor]:
    return [torch.cat([getattr(getattr(t, side), part) for t in tasks]) for side in ("support", "query")
            for part in ("x", "y", "mask")]  # fmt: skip


def test_test_episodes_are_the_same_for_every_method_seed_and_batch_size(monkeypatch):
    base = joined(drawn(tiny.glyphs(), monkeypatch)["test"])
    others = [tiny.glyphs(method) for method in METHODS]
    others += [tiny.glyphs(seed=5), tiny.glyphs(train__tasks=4, tasks__min_shots=1), tiny.glyphs(tasks__queries=2)]
    for config in others:
        for a, b in zip(joined(drawn(config, monkeypatch)["test"]), base, strict=True):
            assert torch.equal(a, b), config.method
    monkeypatch.setattr(classification, "CHUNK", {"cpu": 3})  # the last batch is then a smaller one
    for a, b in zip(joined(drawn(tiny.glyphs(), monkeypatch)["test"]), base, strict=True):
        assert torch.equal(a, b)
    reseeded = joined(drawn(tiny.glyphs(test__seed=1), monkeypatch)["test"])
    assert not torch.equal(reseeded[0], base[0])


def test_a_result_does_not_depend_on_the_batch_size(monkeypatch):
    """Deterministic predictions: the numbers are those of any other batching, to rounding."""
    config = tiny.glyphs("proto-net", precision="float64", test__tasks=7)
    model = build.model(config)
    results = []
    for chunk in (1, 3, 100):
        monkeypatch.setattr(classification, "CHUNK", {"cpu": chunk})
        results.append(numbers(world(config).evaluate(model, quiet=True)))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-9)
    np.testing.assert_allclose(results[0], results[2], rtol=1e-9)


@pytest.mark.parametrize("method", ["gp-vib", "proto-net", *TRANSFER])
def test_classes_of_training_validation_and_test_never_mix(monkeypatch, method):
    """Every image shown at a stage is an image of that stage's own classes."""
    config = tiny.glyphs(method)
    here, shown = world(config), drawn(config, monkeypatch)
    transform = seen.evaluation_transform(config.tasks)
    images = {
        n: {transform(i[None], None).numpy().tobytes() for i in getattr(SPLITS, n).images} for n in SPLITS._fields
    }
    assert not images["train"] & images["validation"] and not images["train"] & images["test"]
    stages = {**shown, "train": [here.sample((5,), torch.Generator().manual_seed(0))]}
    for stage, tasks in stages.items():
        x = torch.cat([side.x.flatten(0, 1) for task in tasks for side in task])
        assert {i[None].numpy().tobytes() for i in x} <= images[stage], stage


@pytest.mark.parametrize("method", ["gp-vib", "gp-maml", "proto-net", "matching-net", "relation-net", *TRANSFER])
def test_other_ways_and_shots_at_test(method):
    config = override(tiny.glyphs(method), {"test.ways": 5, "test.shots": [1, 4]})
    rows = world(config).evaluate(build.model(config), quiet=True)["rows"]
    assert [(row["ways"], row["shots"]) for row in rows] == [(5, 1), (5, 4)]
    assert np.isfinite(numbers(rows)).all()
    assert all(sum(row["metrics"]["reliability"]["points"]) == 4 * 5 * 3 for row in rows)


@pytest.mark.parametrize("method", ["gp-vib", "gp-maml", "proto-net", "matching-net", "relation-net", *TRANSFER])
def test_validation_has_the_ways_of_the_test_and_follows_the_weights(monkeypatch, method):
    """A model trained with 4 ways and tested with 3 is validated as one of 3 ways with its weights of that moment."""
    config = tiny.glyphs(method, tasks__ways=4, test__ways=3, precision="float64")
    assert all(int(task.query.y.max()) == 2 for task in drawn(config, monkeypatch)["validation"])
    of_three = override(config, {"tasks.ways": 3, "test.ways": 0, "tasks.queries": config.test.queries})
    model, here = build.model(config), world(config)
    for _ in range(2):
        other = build.model(of_three)
        other.load_state_dict(model.state_dict())
        assert here.validate(model) == pytest.approx(world(of_three).validate(other), rel=1e-9)
        assert model.training
        with torch.no_grad():  # as an optimiser and batch-norm move them
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.add_(0.1 * torch.rand(tensor.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("method", ["maml", "stochastic-maml", "dkt"])
def test_other_ways_are_refused_where_weights_belong_to_ways(tmp_path, method):
    config = tiny.glyphs(method, test__ways=4)
    with pytest.raises(ValueError, match=f"{method} has weights for 3 ways and cannot be tested with 4"):
        train.train(config, tmp_path / "run", quiet=True)
    assert not list(tmp_path.iterdir())


def test_more_ways_or_images_than_there_are_is_refused():
    model = build.model(tiny.glyphs())
    with pytest.raises(ValueError, match="ways must be between 1 and the 5 classes"):
        world(tiny.glyphs(test__ways=6)).evaluate(model, quiet=True)
    with pytest.raises(ValueError, match="has 8 images, and shots"):
        world(tiny.glyphs(test__shots=[6])).evaluate(model, quiet=True)
    with pytest.raises(ValueError, match="ways must be between 1 and the 6 classes"):
        world(tiny.glyphs(tasks__ways=7))


def test_inner_steps_at_test_make_a_row_each():
    config = tiny.glyphs("maml", test__inner_steps=[0, 3])
    rows = world(config).evaluate(build.model(config), quiet=True)["rows"]
    assert [row["inner_steps"] for row in rows] == [0, 3]
    assert rows[0]["metrics"] != rows[1]["metrics"]


def test_a_temperature_is_fitted_on_validation_and_changes_no_prediction(monkeypatch):
    """It is reported beside the plain numbers; accuracy stays, and the NLL it was fitted on cannot rise."""
    config = tiny.glyphs("proto-net", test__temperature=True, train__validation_tasks=6)
    model, fitted, fit = build.model(config), [], fit_temperature
    monkeypatch.setattr(classification, "fit_temperature", lambda *given: (fitted.append(given), fit(*given))[1])
    (row,) = world(config).evaluate(model, quiet=True)["rows"]
    assert row["temperature"] > 0 and row["metrics"]["accuracy"] == row["tempered_metrics"]["accuracy"]
    ((p, y, _),) = fitted
    assert len(p) == 6  # the validation episodes; there are four test episodes
    tempered = (p.double().log() / row["temperature"]).softmax(-1)
    nll = [float(-q.gather(-1, y[..., None]).log().mean()) for q in (p.double(), tempered)]
    assert nll[1] <= nll[0] + 1e-9
    (plain,) = world(tiny.glyphs("proto-net")).evaluate(model, quiet=True)["rows"]
    assert "temperature" not in plain and "tempered_metrics" not in plain
    assert plain["metrics"] == row["metrics"]


def test_ragged_training_is_ragged_and_the_test_is_not(monkeypatch):
    config = tiny.glyphs(tasks__min_shots=1)
    counts = world(config).sample((50,), torch.Generator().manual_seed(0)).support.mask.sum(-1)
    assert set(counts.tolist()) == {3, 4, 5, 6}
    shown = drawn(config, monkeypatch)
    assert all(t.support.mask.all() for t in shown["test"])
    assert not all(t.support.mask.all() for t in shown["validation"])


def test_classes_that_are_alike_are_of_one_alphabet_in_training_alone():
    """In all three parts six classes of two alphabets; tasks of three, in every one of which training stays in one."""
    config = tiny.glyphs(tasks__alike=1.0, test__tasks=40)
    names = [f"{alphabet}/{c}" for alphabet in "ab" for c in range(3)]
    parts = [tiny.images("", 6, 24, seed=seed)._replace(names=tuple(names)) for seed in range(3)]
    here = Classification(config, Splits(*parts))
    seen_of = {
        "train": (parts[0], here.sample((40,), torch.Generator().manual_seed(0))),
        "validation": (parts[1], here._validation_source(3, 2).sample((40,), torch.Generator().manual_seed(0))),
        "test": (parts[2], here._test_source(2).sample((40,), torch.Generator().manual_seed(0))),
    }
    for stage, (data, tasks) in seen_of.items():
        pictures = seen.evaluation_transform(config.tasks)(data.images, None).flatten(1)
        which = torch.cdist(tasks.support.x.flatten(2), pictures[None]).argmin(-1)
        alphabets = data.labels[which] // 3
        assert bool((alphabets == alphabets[:, :1]).all()) == (stage == "train"), stage
    with pytest.raises(ValueError, match="the 3 classes of a task from one alphabet.* the largest has 1 to train on"):
        Classification(config, Splits(*(part._replace(names=tuple("abcdef")) for part in parts)))


def test_classes_of_the_test_may_have_different_numbers_of_points(monkeypatch):
    """Each its own, from the fewest to the most; the row says so, and equal numbers are another way to say `shots`."""
    config = tiny.glyphs(test__min_shots=1, test__shots=[3], test__tasks=30)
    counts = torch.cat([t.support.mask.unflatten(-1, (3, 3)).sum(-1) for t in drawn(config, monkeypatch)["test"]])
    assert set(counts.flatten().tolist()) == {1, 2, 3} and bool((counts[:, 0] != counts[:, 1]).any())
    model = build.model(config)
    (row,) = world(config).evaluate(model, quiet=True)["rows"]
    assert (row["min_shots"], row["shots"]) == (1, 3) and np.isfinite(numbers(row)).all()
    assert "| 1 to 3" in tables.evaluation(
        {"experiment": "glyphs", "method": "gp-vib", "kernel": "linear", "rows": [row]}
    )
    with pytest.raises(ValueError, match="test.min_shots is a number of points of a class, 0 or above"):
        tiny.sinusoid(test__min_shots=1)


def test_a_temperature_of_unequal_classes_is_that_of_their_mean_number(monkeypatch):
    """Task by task; where all classes have as many points it is the same as without asking for different numbers."""
    config = tiny.glyphs(test__min_shots=1, test__shots=[3], test__tasks=8)
    known = Temperature((1, 3), (0.5, 4.0))
    model, here = build.model(config), world(config)
    for t in drawn(config, monkeypatch)["test"]:
        plain, warm = (here.probabilities(model.eval(), [seeded(0)], t, T)[0] for T in (Temperature(), known))
        for i, mask in enumerate(t.support.mask):
            expected = tempered(plain[i], known.at(float(mask.sum()) / 3))
            torch.testing.assert_close(warm[i], expected)


def test_fewer_shots_at_test_than_ragged_training_ever_had():
    config = tiny.glyphs(tasks__min_shots=2, test__shots=[1])
    (row,) = world(config).evaluate(build.model(config), quiet=True)["rows"]
    assert row["shots"] == 1 and np.isfinite(numbers(row)).all()


def test_validation_leaves_the_model_in_training_and_its_averages_alone():
    for method in ("gp-vib", "maml", "feature-transfer"):
        config = tiny.glyphs(method)
        model = build.model(config).train()
        before = {name: t.clone() for name, t in model.state_dict().items()}
        scores = world(config).validate(model)
        assert model.training and tiny.same_tensors(model.state_dict(), before)
        assert scores["score"] == scores["accuracy"] and world(config).validate(model) == scores


def test_the_report_is_what_a_loop_over_episodes_gives():
    g = torch.Generator().manual_seed(0)
    p = torch.rand(4, 6, 3, generator=g, dtype=torch.float64).softmax(-1)
    y = torch.randint(3, (4, 6), generator=g)
    mask = torch.rand(4, 6, generator=g) < 0.7
    found = report(p, y, mask)
    accuracy, nll, brier = [], [], []
    for e in range(4):
        hits, losses, squares = [], [], []
        for v in range(6):
            if mask[e, v]:
                q, t = p[e, v].numpy(), int(y[e, v])
                hits.append(float(q.argmax() == t))
                losses.append(-np.log(q[t]))
                squares.append(sum((q[n] - (n == t)) ** 2 for n in range(3)))
        accuracy.append(np.mean(hits))
        nll.append(np.mean(losses))
        brier.append(np.mean(squares))
    for name, values in (("accuracy", accuracy), ("nll", nll), ("brier", brier)):
        assert found[name]["mean"] == pytest.approx(np.mean(values))
        assert found[name]["episode_ci95"] == pytest.approx(1.96 * np.std(values, ddof=1) / 2)
        assert found[name]["episodes"] == 4
    assert sum(found["reliability"]["points"]) == int(mask.sum())
    assert None in found["reliability"]["confidence"]  # an empty bin has no mean, and JSON no NaN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 2}, "one model a run"),
        ({"model.likelihood": "gaussian"}, "needs a likelihood of classes; got 'gaussian'"),
        ({"model.likelihood": "bernoulli"}, "bernoulli tells 2 classes apart; got tasks of 3 ways"),
        ({"model.likelihood": "bernoulli", "tasks.ways": 2, "test.ways": 3}, "got tasks of 3 ways"),
        ({"model.backbone": "mlp"}, r"model\.backbone = mlp takes vectors"),
        ({"tasks.shots": 6}, "has 8 images, and shots"),
        ({"tasks.min_shots": 3}, "min_shots must be between"),
        ({"method": "feature-transfer", "train.beta": 0.0, "model.classes": 9}, r"model\.classes must be the 6"),
        ({"test.shots": [6]}, "has 8 images, and shots"),
        ({"test.queries": 7}, "has 8 images, and shots"),
        ({"tasks.ways": 6}, "ways must be between 1 and the 4 classes"),
    ],
)
def test_what_cannot_be_trained_and_tested_is_refused_before_a_file_is_written(tmp_path, changes, message):
    for method in ("gp-vib", "maml"):
        with pytest.raises(ValueError, match=message):
            train.train(override(tiny.glyphs(method), changes), tmp_path / "run", quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["gp-vib", "proto-net", "maml", "dkt"])
def test_the_images_are_easy_enough_to_be_learned(tmp_path, method):
    """Patterns under noise: a few steps of any method bring accuracy on new classes far above chance."""
    changes = {"train__steps": 30, "train__lr": 1e-2, "model__width": 16, "test__tasks": 20}
    config = tiny.glyphs(method, train__validate_every=0, train__select="last", **changes)
    model = train.train(config, tmp_path / "run", quiet=True)
    (row,) = world(config).evaluate(model, quiet=True)["rows"]
    assert row["metrics"]["accuracy"]["mean"] > 0.8


def test_baselines_are_all_dirac_or_evidence():
    assert {method for method in BASELINES if not build.model(tiny.glyphs(method)).dirac} == {"dkt"}
