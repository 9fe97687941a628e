"""The bound over several splits of a task is the mean of the bounds of the tasks that these splits make."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from metavib.encoders import ClassEncoder, GPEncoder, SimplifiedSites
from metavib.kernels import Cosine
from metavib.likelihoods import Softmax
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks import examples
from metavib.tasks.inputs import points
from metavib.tasks.task import Examples, Task, select
from metavib.training import build
from metavib.training.fields import override
from metavib.training.protocols import experiment
from metavib.training.resplit import Known, OnFeatures, OverSplits, resplit


def rolled(task: Task, by: int, *, classes: int = 1) -> Task:
    """One task whose support begins `by` points later in each class; slow and obvious, class by class."""
    support: list[list[torch.Tensor]] = [[], [], []]
    query: list[list[torch.Tensor]] = [[], [], []]
    for column, (s, q) in enumerate(zip(*task, strict=True)):
        for of_support, of_query in zip(s.chunk(classes), q.chunk(classes), strict=True):
            points = torch.cat([of_support, of_query])
            points = torch.cat([points[by:], points[:by]])
            support[column].append(points[: len(of_support)])
            query[column].append(points[len(of_support) :])
    return Task(Examples(*map(torch.cat, support)), Examples(*map(torch.cat, query)))


@pytest.mark.parametrize("kernel", ["linear", "bn-cosine"])
def test_rate_is_the_mean_over_the_splits_of_a_classification(kernel: str) -> None:
    """Batch-norm sees the same points whatever their roles. The fit has samples of its own in each split."""
    config = override(tiny.glyphs("gp-vib"), {"precision": "float64", "model.kernel": kernel, "tasks.queries": 5})
    world, model = experiment(config), build.model(config).train()
    tasks, ways, shots = world.sample((2,), seeded(0)), config.tasks.ways, config.tasks.shots
    together = OverSplits(vib, 3)(model, tasks, beta=0.3, noise=seeded(1))
    for i in range(2):
        splits = [rolled(select(tasks, i), shots * k, classes=ways) for k in range(3)]
        rates = torch.stack([vib(model, split, beta=0.3, noise=seeded(1)).rate for split in splits])
        torch.testing.assert_close(together.rate[i], rates.mean())


def test_bound_and_gradient_are_those_of_the_mean_where_nothing_is_sampled() -> None:
    """Sinusoids: all of the bound has a closed form."""
    config = override(tiny.sinusoid(), {"precision": "float64", "tasks.shots": 3, "tasks.queries": 6})
    world, model = experiment(config), build.model(config)
    task = world.sample((), seeded(0))
    found = []
    for value in (
        OverSplits(vib, 3)(model, task, beta=1.0).value,
        sum(vib(model, rolled(task, 3 * k), beta=1.0).value for k in range(3)) / 3,
    ):
        model.zero_grad()
        value.backward()
        found.append([value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@given(shots=st.integers(1, 4), queries=st.integers(1, 9), ways=st.integers(1, 4), tasks=st.sampled_from([(), (2,)]))
def test_every_point_is_in_every_split_once(shots: int, queries: int, ways: int, tasks: tuple[int, ...]) -> None:
    n, v = ways * shots, ways * queries
    ids = torch.arange(n + v, dtype=torch.float64).expand(*tasks, n + v)
    labels = [torch.arange(ways).repeat_interleave(k).expand(*tasks, ways * k) for k in (shots, queries)]
    masks = [torch.ones_like(y, dtype=torch.bool) for y in labels]
    task = Task(
        *(Examples(x.unsqueeze(-1), y, m) for x, y, m in zip(ids.split([n, v], -1), labels, masks, strict=True))
    )
    splits = (shots + queries) // shots
    again = resplit(task, splits, classes=ways)
    assert torch.equal(again.support.x[..., 0, :, :], task.support.x) and torch.equal(
        again.query.y[..., 0, :], labels[1]
    )
    points = torch.cat([again.support.x, again.query.x], -2).squeeze(-1).sort(-1).values
    assert torch.equal(points, ids.unsqueeze(-2).expand_as(points))
    supports = again.support.x.flatten(-3)
    assert supports.unique(dim=-1).shape[-1] == n * splits  # never twice
    of_class = torch.cat([y.reshape(-1, y.shape[-1])[0] for y in labels])
    assert torch.equal(of_class[again.support.x.squeeze(-1).long()], again.support.y)


def obvious(task: Task, by: int, numbers: list[int]) -> Task:
    """One task whose support begins `by` points later in each class, and has a number of points of each."""
    sides: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for label, number in enumerate(numbers):
        points = torch.cat([side.x[side.y == label] for side in task])
        points = torch.cat([points[by:], points[:by]])
        sides[0].append(points[:number])
        sides[1].append(points[number:])
    labels = ([torch.full((len(x),), label) for label, x in enumerate(side)] for side in sides)
    return Task(*(examples(torch.cat(x), torch.cat(y)) for x, y in zip(sides, labels, strict=True)))


@pytest.mark.parametrize("encoder", [GPEncoder(SimplifiedSites()), ClassEncoder()], ids=["sites", "classes"])
def test_splits_may_have_other_numbers_of_points_of_each_class(encoder) -> None:
    """Of three classes with five points each: one of each class in a split, then one or two, then one to three."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 15, 4, generator=generator, dtype=torch.float64)
    labels = [torch.arange(3).repeat_interleave(k).expand(2, -1) for k in (3, 2)]
    sides = zip(x.split([9, 6], -2), labels, strict=True)
    tasks = Task(*(Examples(x, y, torch.ones_like(y, dtype=torch.bool)) for x, y in sides))
    again = resplit(tasks, 5, classes=3, least=1)
    model = OnFeatures(Known(Cosine()), encoder, Softmax(3))
    found = vib(model, again, beta=0.3, noise=None if encoder.dirac else seeded(1)).rate
    numbers = [[1, 1, 1], [1, 2, 1], [1, 2, 3], [1, 1, 1], [1, 2, 1]]
    assert again.support.mask.unflatten(-1, (3, -1)).sum(-1).tolist() == [numbers] * 2
    for i in range(2):
        for k in range(5):
            alone = obvious(select(tasks, i), k, numbers[k])
            torch.testing.assert_close(found[i, k], vib(model, alone, beta=0.3, noise=seeded(1)).rate)
            one = select(again, (i, k))
            for side, wanted in zip(one, alone, strict=True):
                assert torch.equal(side.x[side.mask], wanted.x) and torch.equal(side.y[side.mask], wanted.y)


def test_points_that_are_missing_stay_so_where_numbers_vary() -> None:
    task = Task(examples(torch.randn(4, 2), [0, 0, 1, 1]), examples(torch.randn(2, 2), [0, 1]))
    task = Task(task.support, task.query._replace(mask=torch.tensor([True, False])))
    again = resplit(task, 2, classes=2, least=1)
    assert (again.support.mask.sum(-1) + again.query.mask.sum(-1)).tolist() == [5, 5]


def test_too_many_splits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"splits.*at most 17; got 18"):
        override(tiny.glyphs("gp-vib"), {"tasks.shots": 1, "tasks.queries": 16, "train.splits": 18})
    with pytest.raises(ValueError, match=r"splits.*at most 9; got 10"):
        override(
            tiny.glyphs("gp-vib"), {"tasks.shots": 4, "tasks.min_shots": 1, "tasks.queries": 5, "train.splits": 10}
        )
    task = experiment(tiny.sinusoid()).sample((), seeded(0))
    with pytest.raises(ValueError, match="every point in the support once; got 1000 splits"):
        resplit(task, 1000)


@pytest.mark.parametrize("change", [{"method": "maml", "train.beta": 0.0}, {"model.norm": "support+point"}])
def test_is_refused_where_features_know_their_roles(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="train.splits above 1 is for gp-vib"):
        override(tiny.glyphs("gp-vib"), {"train.splits": 2, "tasks.shots": 1, "tasks.queries": 4, **change})


def test_numbers_of_points_vary_within_splits_of_classes_alone() -> None:
    with pytest.raises(ValueError, match="with tasks.min_shots is for classes.*got sinusoid"):
        override(tiny.sinusoid(), {"train.splits": 2, "tasks.shots": 2, "tasks.min_shots": 1, "tasks.queries": 4})


def test_a_config_builds_it() -> None:
    config = override(tiny.glyphs("gp-vib"), {"train.splits": 2, "tasks.shots": 1, "tasks.queries": 4})
    assert build.objective(config) == OverSplits(vib, 2)
    assert build.objective(replace(config, train=replace(config.train, splits=1))) is vib
    ragged = override(config, {"tasks.shots": 3, "tasks.min_shots": 1, "tasks.queries": 2})
    assert build.objective(ragged) == OverSplits(vib, 2, 1)
    assert experiment(ragged).sample((), seeded(0)).support.mask.all()  # the splits leave points out, and not the task


@pytest.mark.parametrize("method", ["proto-net", "relation-net"])
def test_a_baseline_over_splits_is_the_mean_of_each_split_by_itself(method: str) -> None:
    """Features depend on the task's points and not on their roles, also where a relation module follows them."""
    config = override(tiny.glyphs(method), {"precision": "float64", "tasks.queries": 5})
    world, model = experiment(config), build.model(config).train()
    tasks, ways, shots = world.sample((2,), seeded(0)), config.tasks.ways, config.tasks.shots
    together = OverSplits(vib, 3)(model, tasks, beta=0.0)
    for i in range(2):
        splits = [rolled(select(tasks, i), shots * k, classes=ways) for k in range(3)]
        fits = torch.stack([vib(model, split, beta=0.0).value for split in splits])
        torch.testing.assert_close(together.value[i], fits.mean())


@pytest.mark.parametrize("encoder", [GPEncoder(SimplifiedSites()), ClassEncoder()], ids=["sites", "classes"])
def test_features_of_long_supports_are_encoded_at_once(encoder) -> None:
    """A long support of pictures goes through the network part by part; features are there, and there is no network."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 4, generator=generator), torch.arange(400) % 3
    model = OnFeatures(Known(Cosine()), encoder, Softmax(3))
    support, query = examples(x, y), points(examples(x[:5], y[:5]))
    wanted = model.encode(support, query).marginals().mean
    with torch.no_grad():
        torch.testing.assert_close(model.encode(support, query).marginals().mean, wanted)
