"""Gradients of every parameter of every method against central differences, in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import cases
from metavib.encoders import Descent, ExactSites
from metavib.kernels import Linear
from metavib.likelihoods import Gaussian
from metavib.methods import gp_maml, maml, stochastic_maml
from metavib.model import Model
from metavib.networks import MLP
from metavib.objective import vib
from metavib.tasks import Task

H = 1e-5
exact = [c for c in cases.MODELS if c.name != "maml first order"]


def value(model: Model, task: Task, noise: Tensor, beta: float) -> Tensor:
    return vib(model, task, beta=beta, noise=noise).value.sum()


def along(model: Model, p: Tensor, direction: Tensor, *args) -> float:
    """The central difference of the bound along a direction of one parameter."""
    with torch.no_grad():
        start = p.clone()
        p.copy_(start + H * direction)
        up = value(model, *args).item()
        p.copy_(start - H * direction)
        down = value(model, *args).item()
        p.copy_(start)
    return (up - down) / (2 * H)


@pytest.mark.parametrize("case", exact, ids=repr)
@pytest.mark.parametrize("n", [4, 9])
def test_every_parameter_against_central_differences(case, n) -> None:
    """Weights, scales, lengthscales, noises, sites, variances: each along two random directions; dual and primal."""
    model = cases.build(case, seed=3)
    task, noise = cases.tasks(model.likelihood, (2,), n=n, v=3, seed=1), cases.base_samples(model, (2,))
    args = (task, noise, 0.0 if model.dirac else 0.7)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(value(model, *args), parameters)
    rng = np.random.default_rng(0)
    for name, p, gradient in zip(names, parameters, gradients, strict=True):
        for _ in range(2):
            direction = torch.as_tensor(rng.normal(size=p.shape))
            direction = direction / direction.norm()
            expected = along(model, p, direction, *args)
            found = (gradient * direction).sum().item()
            assert found == pytest.approx(expected, rel=2e-5, abs=2e-6), name


# Gradient encoders --------------------------------------------------------------------------------------------------


def small(steps: int, *, first_order: bool = False, likelihood: Gaussian | None = None) -> Model:
    torch.manual_seed(0)
    descent = Descent(steps=steps, rate=0.2, first_order=first_order)
    return maml(MLP(cases.INPUTS, (4,)), likelihood or Gaussian(0.5), descent=descent).double()


def meta_gradient(model: Model, task: Task) -> list[Tensor]:
    return list(torch.autograd.grad(vib(model, task, beta=0.0).value.sum(), list(model.prior.parameters())))


@pytest.mark.parametrize("steps", [1, 3])
def test_second_order_meta_gradient_of_each_weight(steps) -> None:
    """MAML's meta-gradient, number by number, is that of the bound after the inner steps."""
    model = small(steps)
    task = cases.tasks(model.likelihood, (2,), seed=2)
    for p, gradient in zip(model.prior.parameters(), meta_gradient(model, task), strict=True):
        for i in np.ndindex(*p.shape):
            direction = torch.zeros_like(p)
            direction[i] = 1.0
            expected = along(model, p, direction, task, None, 0.0)
            assert gradient[i].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_first_order_is_the_gradient_at_the_adapted_weights(steps) -> None:
    """By its definition: the query's gradient taken at psi, psi held constant; it differs from the second order."""
    model = small(steps, first_order=True)
    task = cases.tasks(model.likelihood, seed=2)
    found = meta_gradient(model, task)
    psi = {name: p.detach().clone() for name, p in model.prior.network.theta().items()}

    def log_p(weights: dict[str, Tensor], s) -> Tensor:
        f = torch.func.functional_call(model.prior.network.body, weights, (cases.inputs(s),))
        return model.likelihood.log_prob(f, s.y)

    for _ in range(steps):  # plain gradient ascent, one task, no functional transforms
        psi = {name: p.requires_grad_() for name, p in psi.items()}
        slopes = torch.autograd.grad(log_p(psi, task.support).mean(), list(psi.values()))
        psi = {name: (p + 0.2 * g).detach() for (name, p), g in zip(psi.items(), slopes, strict=True)}
    leaves = {name: p.requires_grad_() for name, p in psi.items()}
    expected = torch.autograd.grad(log_p(leaves, task.query).sum(), list(leaves.values()))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)
    # Delta is a constant to the likelihood's noise too, which the inner objective also contains.
    raw = model.likelihood.noise.raw
    (noise,) = torch.autograd.grad(vib(model, task, beta=0.0).value, raw)
    (held,) = torch.autograd.grad(log_p(psi, task.query).sum(), raw)
    assert_close(noise, held)
    second = meta_gradient(small(steps), task)
    assert max(float((a - b).abs().max()) for a, b in zip(found, second, strict=True)) > 1e-3


def test_first_and_second_order_take_the_same_steps() -> None:
    """They differ in the gradient alone: the bound is the same."""
    task = cases.tasks(Gaussian(), (2,), seed=2)
    assert_close(vib(small(3), task, beta=0.0).value, vib(small(3, first_order=True), task, beta=0.0).value)


def test_first_order_without_steps_is_the_plain_gradient() -> None:
    task = cases.tasks(Gaussian(), (2,), seed=2)
    for a, b in zip(meta_gradient(small(0), task), meta_gradient(small(0, first_order=True), task), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("method", ["stochastic-maml", "gp-maml"])
def test_second_order_through_the_other_gradient_encoders(method, steps) -> None:
    """Every weight, number by number, through the inner objective too."""
    torch.manual_seed(0)
    backbone, descent = MLP(cases.INPUTS, (3,)), Descent(steps=steps, rate=0.1)
    if method == "stochastic-maml":
        model = stochastic_maml(backbone, Gaussian(0.5), descent=descent, variance=0.05, samples=cases.SAMPLES)
    else:
        model = gp_maml(backbone, Linear(), ExactSites(), Gaussian(0.5), descent=descent, beta=0.5)
    model = model.double()
    task = cases.tasks(model.likelihood, (2,), seed=5)
    args = (task, cases.base_samples(model, (2,)), 0.3)
    parameters = list(model.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(value(model, *args), parameters), strict=True):
        for i in np.ndindex(*p.shape):
            direction = torch.zeros_like(p)
            direction[i] = 1.0
            assert gradient[i].item() == pytest.approx(along(model, p, direction, *args), rel=1e-4, abs=1e-5)
