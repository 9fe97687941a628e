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


def test_too_many_splits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"splits.*at most 17; got 18"):
        override(tiny.glyphs("gp-vib"), {"tasks.shots": 1, "tasks.queries": 16, "train.splits": 18})
    task = experiment(tiny.sinusoid()).sample((), seeded(0))
    with pytest.raises(ValueError, match="every point in the support once; got 1000 splits"):
        resplit(task, 1000)


@pytest.mark.parametrize("change", [{"method": "maml", "train.beta": 0.0}, {"model.norm": "support+point"}])
def test_is_refused_where_features_know_their_roles(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="train.splits above 1 is for gp-vib"):
        override(tiny.glyphs("gp-vib"), {"train.splits": 2, "tasks.shots": 1, "tasks.queries": 4, **change})


def test_a_config_builds_it() -> None:
    config = override(tiny.glyphs("gp-vib"), {"train.splits": 2, "tasks.shots": 1, "tasks.queries": 4})
    assert build.objective(config) == OverSplits(vib, 2)
    assert build.objective(replace(config, train=replace(config.train, splits=1))) is vib


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
