"""Ragged tasks in one batch equal each task alone, for every model; what lies under a mask cannot be seen."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import cases
from metavib.encoders import GaussianGradientEncoder
from metavib.model import Model
from metavib.objective import Bound, vib
from metavib.tasks import Examples, Task, examples, stack, task

SIZES = [(7, 4), (2, 6), (0, 1), (5, 3)]  # (n, v): above M and below it, and an empty support
models = pytest.mark.parametrize("case", cases.MODELS, ids=repr)


def ragged(model: Model) -> list[Task]:
    return [cases.tasks(model.likelihood, n=n, v=v, seed=i) for i, (n, v) in enumerate(SIZES)]


def run(model: Model, batch: Task, noise: Tensor) -> Bound:
    return vib(model, batch, beta=0.0 if model.dirac else 0.7, noise=noise)


def noises(model: Model) -> tuple[Tensor, list[Tensor]]:
    """Base samples for the batch, and for each task alone."""
    together = cases.base_samples(model, (len(SIZES),))
    own = isinstance(model.encoder, GaussianGradientEncoder)
    return together, [together[:, i if own else 0] for i in range(len(SIZES))]


@models
def test_masked_equals_alone(case) -> None:
    """Every term, and the marginals at the real query points."""
    model = cases.build(case)
    tasks = ragged(model)
    noise, each = noises(model)
    together, q = run(model, stack(tasks), noise), model(stack(tasks), noise)
    for i, (one, epsilon) in enumerate(zip(tasks, each, strict=True)):
        for alone, many in zip(run(model, one, epsilon), together, strict=True):
            assert_close(alone, many[i], rtol=1e-8, atol=1e-9)
        v = one.query.size
        assert_close(model(one, epsilon).mean, q.mean[i, :v], rtol=1e-8, atol=1e-9)
        assert_close(model(one, epsilon).var, q.var[i, :v], rtol=1e-8, atol=1e-9)


@models
def test_gradients_of_masked_tasks_equal_the_sum_of_each_alone(case) -> None:
    model = cases.build(case)
    tasks = ragged(model)
    noise, each = noises(model)
    parameters = list(model.parameters())

    def gradient(value: Tensor) -> list[Tensor]:
        return torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)

    together = gradient(run(model, stack(tasks), noise).value.sum())
    alone = [gradient(run(model, t, e).value) for t, e in zip(tasks, each, strict=True)]
    for many, *ones in zip(together, *alone, strict=True):
        assert_close(many, sum(ones), rtol=1e-7, atol=1e-8)


def spoiled(s: Examples, rng: np.random.Generator) -> Examples:
    """The same examples with other inputs and outputs under the mask (`examples` puts zeros there)."""
    x = s.x + 3 * torch.as_tensor(rng.normal(size=s.x.shape)) * ~s.mask.unsqueeze(-1)
    garbage = torch.full_like(s.y, 7.7) if s.y.is_floating_point() else torch.ones_like(s.y)
    return Examples(x, torch.where(s.mask, s.y, garbage), s.mask)


@models
def test_garbage_under_masks_does_not_leak(case) -> None:
    """Not in the values, and not in the gradients."""
    model = cases.build(case)
    clean = stack(ragged(model))
    rng = np.random.default_rng(0)
    dirty = Task(spoiled(clean.support, rng), spoiled(clean.query, rng))
    noise, _ = noises(model)
    a, b = run(model, clean, noise), run(model, dirty, noise)
    for one, other in zip(a, b, strict=True):
        assert_close(one, other, rtol=1e-8, atol=1e-9)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(a.value.sum(), parameters), torch.autograd.grad(b.value.sum(), parameters), strict=True
    ):
        assert_close(one, other, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("name", ["gp-vib Linear", "gp-vib RBF", "maml Gaussian", "stochastic-maml Gaussian"])
def test_nan_under_a_mask_is_replaced_where_data_enters(name, bad) -> None:
    model = cases.build(next(c for c in cases.MODELS if c.name == name))
    one = cases.tasks(model.likelihood, n=3, v=2)

    def widened(s: Examples) -> Examples:
        x = torch.cat([torch.full((1, cases.INPUTS), bad, dtype=s.x.dtype), s.x])
        y = torch.cat([torch.full((1,), bad, dtype=s.y.dtype), s.y])
        return examples(x, y, torch.cat([torch.tensor([False]), s.mask]))

    wide = task(widened(one.support), widened(one.query))
    noise = cases.base_samples(model)
    for a, b in zip(run(model, one, noise), run(model, wide, noise), strict=True):
        assert_close(a, b)


@models
def test_a_support_that_is_all_padding_is_an_empty_support(case) -> None:
    model = cases.build(case)
    empty = cases.tasks(model.likelihood, n=0)
    padded = cases.tasks(model.likelihood, n=3)
    masked = examples(padded.support.x, padded.support.y, torch.zeros(3, dtype=torch.bool))
    noise = cases.base_samples(model)
    for a, b in zip(run(model, empty, noise), run(model, task(masked, empty.query), noise), strict=True):
        assert_close(a, b)
