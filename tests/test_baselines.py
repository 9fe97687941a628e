"""What holds for every baseline."""

import numpy as np
import pytest
import torch

from metavib.baselines import (
    FullContext,
    baseline_pp,
    dkt_bn_cosine,
    dkt_cosine,
    dkt_linear,
    feature_transfer,
    matching_net,
    proto_net,
    relation_net,
)
from metavib.baselines.matching import Context
from metavib.baselines.transfer import Head
from metavib.encoders import Encoder
from metavib.likelihoods import Likelihood
from metavib.networks import Conv4
from metavib.networks.repeats import stack as stack_models
from metavib.objective import vib
from metavib.posteriors import Posterior
from metavib.tasks.inputs import points
from metavib.tasks.task import Examples, Task, select, stack
from small_baselines import (
    ALL,
    COMMON,
    FITTED,
    METRIC,
    PROCESSES,
    WAYS,
    build,
    close,
    make_task,
    objective,
    probabilities,
)


@pytest.mark.parametrize("name", ALL)
def test_batched_equals_looped(name: str) -> None:
    model, tasks = build(name), make_task(batch=(2, 2))
    values, p = objective(model, tasks), probabilities(model, tasks)
    assert values.shape == (2, 2) and p.shape == (2, 2, 5, WAYS)
    for i in np.ndindex(2, 2):
        one = select(tasks, i)
        close(values[i], objective(model, one))
        close(p[i], probabilities(model, one))


@pytest.mark.parametrize("name", ALL)
def test_masked_equals_alone(name: str) -> None:
    """Tasks of unequal sizes in one batch, and padding in the midst of the support, change nothing."""
    model = build(name)
    tasks = [make_task(1, n=7, v=5), make_task(2, n=4, v=3), make_task(3, n=3, v=6)]
    batch = stack(tasks)
    values, p = objective(model, batch), probabilities(model, batch)
    for i, one in enumerate(tasks):
        close(values[i], objective(model, one))
        close(p[i, : one.query.size], probabilities(model, one))
    one = tasks[0]
    holes = torch.tensor([True, False, True, False, True, True, False])
    punched = one._replace(support=Examples(one.support.x, one.support.y, holes))
    left = one._replace(support=Examples(*(t[holes] for t in one.support)))
    close(objective(model, punched), objective(model, left))
    close(probabilities(model, punched), probabilities(model, left))


@pytest.mark.parametrize("name", [n for n in ALL if n not in COMMON and n != "dkt_linear, own slots"])
def test_relabelling_the_classes_permutes_the_predictions(name: str) -> None:
    model, task = build(name), make_task(4)
    renamed = torch.tensor([2, 0, 1])
    other = Task(*(Examples(e.x, renamed[e.y], e.mask) for e in task))
    close(probabilities(model, other)[:, renamed], probabilities(model, task))
    close(objective(model, other), objective(model, task))


@pytest.mark.parametrize("name", [n for n in ALL if n not in FITTED])
def test_gradients_reach_every_parameter(name: str) -> None:
    model, tasks = build(name), make_task(5, batch=(4,))
    objective(model, tasks).sum().backward()
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), key
            assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", METRIC | PROCESSES)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    model, task = build(name), make_task(6)
    objective(model, task).backward()
    g = torch.Generator().manual_seed(0)
    learned = [p for p in model.parameters() if p.requires_grad]
    direction = [torch.randn(p.shape, generator=g, dtype=p.dtype) for p in learned]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(learned, direction, strict=True))

    def at(step: float) -> float:
        with torch.no_grad():
            for p, d in zip(learned, direction, strict=True):
                p.add_(step * d)
            value = objective(model, task).item()
            for p, d in zip(learned, direction, strict=True):
                p.sub_(step * d)
        return value

    assert slope == pytest.approx((at(1e-7) - at(-1e-7)) / 2e-7, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_probabilities_are_a_distribution_also_without_a_support(name: str) -> None:
    model, task = build(name), make_task(7)
    empty = Task(Examples(*(t[:0] for t in task.support)), task.query)
    none = Task(task.support._replace(mask=torch.zeros_like(task.support.mask)), task.query)
    for each in (task, empty, none):
        p = probabilities(model, each)
        close(p.sum(-1), torch.ones(5, dtype=p.dtype), 1e-5)
        assert (p >= 0).all() and objective(model, each).isfinite()


@pytest.mark.parametrize("name", [n for n in ALL if n not in PROCESSES])
def test_a_point_mass_has_infinite_rate_and_refuses_beta(name: str) -> None:
    model, tasks = build(name), make_task(8, batch=(2,))
    assert vib(model, tasks, beta=0.0).rate.tolist() == [torch.inf, torch.inf]
    with pytest.raises(ValueError, match="Dirac"):
        vib(model, tasks, beta=0.1)


@pytest.mark.parametrize("name", ALL)
def test_repeats_side_by_side_equal_each_alone(name: str) -> None:
    """Parameters with a leading dimension of repeats: what `metavib.networks.repeats` makes of a model."""
    models = [build(name) for _ in range(2)]
    with torch.no_grad():
        for p in models[1].parameters():
            p.mul_(0.9)
    both, tasks = stack_models(models), make_task(9, batch=(2, 3))
    values, p = objective(both, tasks), probabilities(both, tasks)
    for r, model in enumerate(models):
        close(values[r], objective(model, select(tasks, r)))
        close(p[r], probabilities(model, select(tasks, r)))


def test_no_baseline_escapes_the_contracts() -> None:
    """Every encoder, posterior, likelihood, head and context of the baselines is part of a model above."""

    def leaves(cls: type) -> set[type]:
        below = cls.__subclasses__()
        return {cls} if not below else set().union(*map(leaves, below))

    existing = set().union(*(leaves(base) for base in (Encoder, Posterior, Likelihood, Head, Context)))
    used: set[type] = set()
    for name in ALL:
        model, task = build(name), make_task()
        used |= {type(module) for module in model.modules()}
        used.add(type(model.encode(task.support, points(task.query)).posterior))
    assert {cls for cls in existing if cls.__module__.startswith("metavib.baselines")} <= used


@pytest.mark.parametrize(("size", "side"), [(28, 1), (84, 5)])
def test_every_baseline_runs_on_images(size: int, side: int) -> None:
    """Conv4 on both sizes of the protocol: gradients reach all weights, and predictions are distributions."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(WAYS).expand(2, WAYS)
    drawn = (torch.randn(2, WAYS, 1, size, size, generator=g) for _ in range(2))
    tasks = Task(*(Examples(x, y, torch.ones_like(y, dtype=torch.bool)) for x in drawn))

    def conv4() -> Conv4:
        return Conv4(1, size, width=3)

    context = FullContext(3 * side**2, steps=2)
    for model in (
        proto_net(conv4(), WAYS),
        matching_net(conv4(), WAYS, context=context),
        relation_net(conv4(), WAYS, map_shape=(3, side, side)),
        feature_transfer(conv4(), WAYS),
        baseline_pp(conv4(), WAYS),
        dkt_linear(conv4(), WAYS),
        dkt_cosine(conv4(), WAYS),
        dkt_bn_cosine(conv4(), WAYS),
    ):
        objective(model, tasks).sum().backward()
        reached = [p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters() if p.requires_grad]
        assert all(reached)
        model.eval()
        assert torch.allclose(probabilities(model, tasks).sum(-1), torch.ones(2, WAYS), atol=1e-4)
