"""Repeats stacked in one model equal the separate models, values and gradients."""

import pytest
import torch
from torch.testing import assert_close

import cases
from metavib.encoders import ExactSites, GaussianGradientEncoder
from metavib.kernels import Linear
from metavib.methods import gp_vib
from metavib.networks.repeats import stack, unstack
from metavib.objective import vib
from metavib.tasks import select

models = pytest.mark.parametrize("case", cases.MODELS, ids=repr)
REPEATS, TASKS = 2, 3


@models
def test_stacked_equals_separate(case) -> None:
    """Bound, marginals and the gradient of every parameter."""
    separate = [cases.build(case, seed=r) for r in range(REPEATS)]
    together = stack(separate)
    batch = (REPEATS, TASKS)
    task, noise = cases.tasks(together.likelihood, batch, n=6), cases.base_samples(together, batch)
    beta = 0.0 if together.dirac else 0.7
    bound, q = vib(together, task, beta=beta, noise=noise), together(task, noise)
    bound.value.sum().backward()
    assert bound.value.shape == batch
    for r, model in enumerate(separate):
        at = noise[:, r if isinstance(model.encoder, GaussianGradientEncoder) else 0]
        alone = vib(model, select(task, r), beta=beta, noise=at)
        for one, many in zip(alone, bound, strict=True):
            assert_close(one, many[r])
        assert_close(model(select(task, r), at).mean, q.mean[r])
        alone.value.sum().backward()
        for (name, p), stacked in zip(model.named_parameters(), together.parameters(), strict=True):
            assert stacked.shape == (REPEATS, 1, *p.shape)
            assert_close(p.grad, stacked.grad[r, 0], rtol=1e-7, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


@models
def test_unstacking_gives_the_models_back(case) -> None:
    separate = [cases.build(case, seed=r) for r in range(REPEATS)]
    together = stack(separate)
    for r, model in enumerate(separate):
        again = unstack(together, r)
        assert again.state_dict().keys() == model.state_dict().keys()
        for name, value in model.state_dict().items():
            assert_close(again.state_dict()[name], value, rtol=0, atol=0)


def test_stacking_copies_and_keeps_what_is_frozen() -> None:
    model = gp_vib(cases.backbone(), Linear(learn_scale=False), ExactSites(), cases.gaussian())
    together = stack([model, model])
    assert not together.prior.kernel.log_scale.requires_grad
    with torch.no_grad():
        next(together.parameters()).add_(1.0)
    assert not torch.allclose(next(together.parameters())[0, 0], next(model.parameters()))


def test_adam_steps_of_stacked_models_equal_separate_ones() -> None:
    """The repeats stay independent through an optimiser that acts on each number alone."""
    case = next(c for c in cases.MODELS if c.name == "gp-vib Linear")
    separate = [cases.build(case, seed=r) for r in range(REPEATS)]
    together = stack(separate)
    task = cases.tasks(together.likelihood, (REPEATS, TASKS))

    def train(model, tasks) -> None:
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(5):
            optimiser.zero_grad()
            (-vib(model, tasks, beta=1.0).value.mean(-1).sum()).backward()
            optimiser.step()

    train(together, task)
    for r, model in enumerate(separate):
        train(model, select(task, r))
        for p, stacked in zip(model.parameters(), together.parameters(), strict=True):
            assert_close(stacked[r, 0], p, rtol=1e-6, atol=1e-8)
