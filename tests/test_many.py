"""Many tasks at once: each row is predicted as its own task alone would predict it, in one call."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import cases
from learners import WAYS, model, points, softmax
from metavib import kernels, likelihoods
from metavib.adapt import many as working
from metavib.adapt.learner import Learner
from metavib.adapt.many import Predictors
from metavib.adapt.preparation import Rows
from metavib.baselines import proto_net
from metavib.encoders import GeneralSites
from metavib.files import read_tensors
from metavib.likelihoods.prediction import ClassPrediction, Prediction
from metavib.methods import gaussian_classes
from metavib.posteriors import TaskMemory
from metavib.tasks import scaling as scalings
from metavib.tasks.scaling import Scaling

NAMES = {repr(case): case for case in cases.MODELS}
KINDS = {
    "gaussian": lambda: (model(), 0),
    "rbf": lambda: (model(kernel=kernels.RBF()), 0),
    "student-t": lambda: (model(likelihoods.StudentT(0.4), sites=GeneralSites(cases.FEATURES, hidden=5)), 0),
    "bernoulli": lambda: (model(likelihoods.Bernoulli()), 2),
    "softmax": lambda: (softmax(), 3),
    "softmax rbf": lambda: (softmax(kernel=kernels.RBF()), 3),
    "gaussian classes": lambda: (gaussian_classes(cases.backbone(), kernels.Cosine(), WAYS).double(), 3),
    "float32": lambda: (model(dtype=torch.float32), 0),
    "maml": lambda: (cases.build(NAMES["maml Gaussian"]), 0),
    "stochastic maml": lambda: (cases.build(NAMES["stochastic-maml Gaussian"]), 0),
    "batch-norm": lambda: (cases.build(NAMES["gp-vib BNCosine"]), 0),
    "proto-net": lambda: (proto_net(cases.backbone(), 3).double(), 3),
}


def numbers(found: Prediction) -> torch.Tensor:
    return found.probabilities if isinstance(found, ClassPrediction) else torch.stack([found.mean, found.variance], -1)


def crowd(rng: np.random.Generator, sizes: list[int], classes: int):
    """Points of tasks of some sizes, dealt in any order, and the name of each one's task."""
    ids = rng.permutation(np.repeat([f"task {i}" for i in range(len(sizes))], sizes))
    x, y = points(len(ids), seed=int(rng.integers(1000)), classes=classes)
    return (x, y), ids


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_each_row_is_predicted_as_its_own_task_alone_predicts_it(kind, seed, sizes) -> None:
    """Whatever the sizes (none, fewer and more points than features), the order of rows, and tasks never seen."""
    built, classes = KINDS[kind]()
    learner, rng = Learner(built, samples=50), np.random.default_rng(seed)
    named = {"classes": range(classes)} if classes else {}
    (x, y), ids = crowd(rng, sizes, classes)
    many = learner.adapt_many((x, y), tasks=ids, **named)
    assert sorted(many) == sorted(set(ids)) and many.n == sum(sizes)
    if classes and not sum(sizes):
        return
    asked = [f"task {i}" for i in rng.integers(0, len(sizes) + 1, 15)]
    x_v, _ = points(15, seed=seed + 1)
    found = numbers(many.predict(x_v, tasks=asked))
    assert many.points_of(asked) == [int((ids == k).sum()) for k in asked]
    tol = 1e-4 if kind == "float32" else 1e-8
    for id in set(asked):
        mine, its = ids == id, [k == id for k in asked]
        alone = learner.adapt((x[mine], y[mine]), **named)
        assert_close(found[its], numbers(alone.predict(x_v[its])), rtol=tol, atol=tol)
        if id in many:
            assert torch.equal(numbers(many[id].predict(x_v)), numbers(alone.predict(x_v)))


def test_tasks_of_many_sizes_are_worked_on_in_chunks(monkeypatch) -> None:
    """Memory is bounded, and the chunks are not to be seen in the result."""
    learner, rng = Learner(softmax(), samples=20), np.random.default_rng(0)
    data, ids = crowd(rng, rng.integers(0, 30, 40).tolist(), 3)
    x_v, asked = points(200, seed=5)[0], [f"task {i}" for i in rng.integers(0, 40, 200)]
    whole = learner.adapt_many(data, ids, classes=(0, 1, 2)).predict(x_v, asked).probabilities
    monkeypatch.setattr(working, "SIDE_BY_SIDE", 300)
    chunks = list(working._chunks([3, 0, 9, 9, 50], [1, 1, 2, 2, 1], features=5))
    assert sorted(i for chunk in chunks for i in chunk) == [0, 1, 2, 3, 4] and len(chunks) > 2
    found = learner.adapt_many(data, ids, classes=(0, 1, 2)).predict(x_v, asked).probabilities
    assert_close(found, whole, rtol=1e-9, atol=1e-9)


def test_long_tasks_are_kept_as_memories_and_short_ones_as_points() -> None:
    """As in a file of one task, whichever is smaller; predictions do not show it."""
    learner, rng = Learner(model()), np.random.default_rng(0)
    (x, y), ids = crowd(rng, [2, 300, 5], 0)
    many = learner.adapt_many((x, y), ids)
    kinds = {id: isinstance(many._tasks[id].what, TaskMemory) for id in many}
    assert kinds == {"task 0": False, "task 1": True, "task 2": False}
    for id in many:
        found = many.predict(x[:4], [id] * 4).mean
        assert_close(found, learner.adapt((x[ids == id], y[ids == id])).predict(x[:4]).mean)
    again = many.update((x, y), ids).forget((x, y), ids)
    for id in many:
        assert_close(again.predict(x[:4], [id] * 4).mean, many.predict(x[:4], [id] * 4).mean)


@pytest.mark.parametrize("kind", ["gaussian", "softmax", "gaussian classes", "maml"])
def test_updates_merges_and_forgetting_are_those_of_each_task(kind, tmp_path) -> None:
    built, classes = KINDS[kind]()
    learner, rng = Learner(built, samples=50), np.random.default_rng(1)
    named = {"classes": range(classes)} if classes else {}
    (x, y), ids = crowd(rng, [3, 40, 7, 1], classes)
    half = rng.random(len(ids)) < 0.5
    x_v, asked = points(12, seed=3)[0], [f"task {i}" for i in rng.integers(0, 5, 12)]

    def said(many: Predictors) -> torch.Tensor:
        return numbers(many.predict(x_v, asked))

    whole = learner.adapt_many((x, y), ids, **named)
    here, there = (learner.adapt_many((x[s], y[s]), ids[s], **named) for s in (half, ~half))
    for grown in (here.update((x[~half], y[~half]), ids[~half]), here.merge(there), there.merge(here)):
        assert_close(said(grown), said(whole), rtol=1e-9, atol=1e-9)
        assert grown.n == whole.n and set(grown) == set(whole)
    more = points(9, seed=8, classes=classes)
    where = ["task 0", "task 1", "task 2"] * 3
    assert_close(said(whole.update(more, where).forget(more, where)), said(whole), rtol=1e-6, atol=1e-6)
    for form in ("smaller", *(["memory"] if kind != "maml" else [])):
        whole.save(tmp_path / form, form=form)
        back = learner.load_many(tmp_path / form)
        assert_close(said(back), said(whole), rtol=1e-12, atol=1e-12)
        assert list(back) == list(whole) and back.n == whole.n and back.classes == whole.classes
    if kind != "maml":
        tensors, _ = read_tensors(tmp_path / "memory")
        assert "x" not in tensors and len(tensors["A"]) == len(whole)  # not a single point
    with pytest.raises(ValueError, match="nothing was learned of the task 'nowhere'"):
        whole.forget((x[:1], y[:1]), ["nowhere"])
    with pytest.raises(ValueError, match="not all among those learned|cannot be forgotten of 0 learned"):
        whole.forget((x[:1] + 9, y[:1]), ["task 0"])


def test_tasks_may_have_classes_of_their_own() -> None:
    """A row's probabilities are those of its own task's classes, and zero for the classes of others."""
    learner, (x, _) = Learner(softmax()), points(10)
    labels = ["cat", "dog", "cat", "eel", "fox", "fox", "gnu", "cat", "dog", "dog"]
    ids = ["a", "a", "a", "b", "b", "b", "b", "c", "c", "c"]
    many = learner.adapt_many((x, labels), ids)
    assert many.classes == ("cat", "dog", "eel", "fox", "gnu")
    found = many.predict(x, ids[::-1])
    assert_close(found.probabilities.sum(-1), torch.ones(10, dtype=torch.float64))
    for i, id in enumerate(ids[::-1]):
        alone = many[id].predict(x[i : i + 1])
        columns = [many.classes.index(k) for k in alone.classes]
        assert_close(found.probabilities[i, columns], alone.probabilities[0])
        assert found.labels[i] == alone.labels[0]
    cold = many.predict(x[:2], ["z", "z"])  # nothing is known: all classes are possible
    assert bool((cold.probabilities > 0).all())


def test_a_task_never_seen_is_the_prior() -> None:
    learner, (x, y) = Learner(model()), points(6)
    many = learner.adapt_many((x, y), ["a", "a", "b", "b", "b", "b"])
    cold, prior = many.predict(x, ["z"] * 6), learner.adapt((x[:0], y[:0])).predict(x)
    assert_close(cold.mean, prior.mean)
    assert_close(cold.variance, prior.variance)
    assert many.points_of(["z", "a"]) == [0, 2] and "z" not in many and "a" in many
    none = learner.adapt_many((x[:0], y[:0]), [])
    assert_close(none.predict(x, ["z"] * 6).variance, prior.variance)
    assert many.predict(x[:0], []).mean.shape == (0,)


def test_ids_that_print_alike_are_one() -> None:
    """A CSV file has text where a frame has numbers."""
    learner, (x, y) = Learner(model()), points(4)
    many = learner.adapt_many((x, y), np.array([1, 1, 2, 2]))
    assert list(many) == [1, 2] and many.points_of(["1", 2, 3]) == [2, 2, 0]
    assert torch.equal(many.predict(x, ["1", "1", "2", "2"]).mean, many.predict(x, [1, 1, 2, 2]).mean)
    assert many.update((x, y), ["1", "1", "2", "3"]).n == 8


def test_a_table_names_its_tasks(tmp_path) -> None:
    """By the run's own column, or another; frames and files alike, and the file remembers which."""
    units = Scaling(scalings.columns([[0.0, 0.0], [2.0, 4.0]]), scalings.outputs([0.0, 20.0]))
    prepared = Rows(("a", "b"), "y", units, likelihoods.Gaussian(), column="town")
    learner, rng = Learner(model(), preparation=prepared), np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=8), "b": rng.normal(size=8), "y": rng.normal(size=8)})
    frame["town"], frame["street"] = ["Bern", "Basel"] * 4, list("ppqqrrss")
    frame.to_csv(tmp_path / "t.csv", index=False)
    wanted = learner.adapt(frame[::2]).predict(frame)
    for data in (frame, tmp_path / "t.csv"):
        many = learner.adapt_many(data)
        assert many.column == "town" and list(many) == ["Bern", "Basel"]
        assert_close(many.predict(frame.assign(town="Bern")).mean, wanted.mean)
        streets = learner.adapt_many(data, "street")
        assert streets.column == "street" and len(streets) == 4
        streets.save(tmp_path / "s")
        back = learner.load_many(tmp_path / "s")
        assert back.column == "street" and torch.equal(back.predict(data).mean, streets.predict(data).mean)
    pair = learner.adapt_many((frame.drop(columns="y"), frame.y))
    assert_close(pair.predict(frame).mean, learner.adapt_many(frame).predict(frame).mean)
    with pytest.raises(ValueError, match="no column 'country': pass the task of each row"):
        learner.adapt_many(frame, "country")


def test_what_is_wrong_is_refused() -> None:
    learner, (x, y) = Learner(model()), points(4)
    with pytest.raises(ValueError, match="the task of each row: 4 of them; got 3"):
        learner.adapt_many((x, y), ["a"] * 3)
    with pytest.raises(ValueError, match="arrays have no column of tasks"):
        learner.adapt_many((x, y))
    many = learner.adapt_many((x, y), ["a"] * 4)
    with pytest.raises(ValueError, match=r"shape \(2,\); got \(3,\)"):
        many.predict(torch.zeros(1, 3), ["a"])
    with pytest.raises(KeyError):
        many["b"]
    with pytest.raises(ValueError, match="nothing is known of any class yet"):
        Learner(softmax()).adapt_many((x[:0], []), []).predict(x, ["a"] * 4)


def test_files_of_one_task_and_of_many_are_told_apart(tmp_path) -> None:
    learner, (x, y) = Learner(model()), points(4)
    learner.adapt((x, y)).save(tmp_path / "one")
    learner.adapt_many((x, y), ["a", "a", "b", "b"]).save(tmp_path / "many")
    with pytest.raises(ValueError, match="many holds many tasks, by their 'task': read it with load_many"):
        learner.load(tmp_path / "many")
    with pytest.raises(ValueError, match="one holds one task: read it with load"):
        learner.load_many(tmp_path / "one")
    with pytest.raises(ValueError, match="there is nothing to save"):
        learner.adapt_many((x[:0], y[:0]), []).save(tmp_path / "none")
    assert not (tmp_path / "none").exists()
