"""Tasks without inputs: the general form of the bound against exact cases, in which everything is Gaussian."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from metavib import kernels, likelihoods
from metavib.encoders import ExactSites
from metavib.methods import gp_vib
from metavib.networks import MLP
from metavib.objective import vib as supervised
from metavib.random import seeded
from metavib.tasks import examples, task
from metavib.unsupervised import LatentModel, Observations, observations, vib

W = torch.tensor([[1.5, 0.0], [0.0, 0.7], [1.0, 0.0]], dtype=torch.float64)  # orthogonal columns: y = W Z + noise
NOISE = 0.8


class LinearDecoder(nn.Module):
    """g(Z) = W Z, which is not learned."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z @ self.weights.mT


def linear_model(weights: torch.Tensor = W, *, samples: int = 1) -> LatentModel:
    torch.manual_seed(0)
    d, k = weights.shape
    return LatentModel(nn.Linear(d, 2 * k), LinearDecoder(weights), noise=NOISE, samples=samples).double()


def sets(tasks: int, n: int, v: int, *, weights: torch.Tensor = W, seed: int = 0) -> tuple[Observations, Observations]:
    """Observations of tasks that the model itself makes."""
    generator = seeded(seed)
    z = torch.randn(tasks, 1, weights.shape[1], generator=generator, dtype=torch.float64)
    noise = torch.randn(tasks, n + v, len(weights), generator=generator, dtype=torch.float64)
    y = z @ weights.mT + NOISE**0.5 * noise
    return observations(y[:, :n]), observations(y[:, n:])


def exact_sites(model: LatentModel) -> None:
    """Sites m = W^T y / |w|^2, s = sigma^2 / |w|^2: their product with the prior is the exact posterior."""
    squares = W.square().sum(0)
    with torch.no_grad():
        model.encoder.weight.copy_(torch.cat([W.mT / squares[:, None], torch.zeros(2, 3, dtype=torch.float64)]))
        model.encoder.bias.copy_(torch.cat([torch.zeros(2), torch.log(torch.expm1(NOISE / squares))]))


def optimum(n: int, v: int, beta: float, weights: torch.Tensor = W) -> tuple[float, float]:
    """The largest mean of F over all encoders, and its rate: q has v / beta times the weight of a point (section 2)."""
    a = (weights.square().sum(0) / NOISE).numpy()
    p = 1 / (1 + n * a)  # variance of Z given the support, whose mean has the variance 1 - p
    u = 1 / (1 + v * a / beta)
    c = 1 - u  # by how much the mean is drawn to zero
    error = p + (1 - c) ** 2 * (1 - p) + u
    d = len(weights)
    fit = -0.5 * v * (d * np.log(2 * np.pi * NOISE) + d + (a * error).sum())
    rate = 0.5 * (c**2 * (1 - p) + u - 1 - np.log(u)).sum()
    return fit - beta * rate, rate


def test_the_posterior_is_the_exact_one_of_a_linear_model() -> None:
    """Against N(0, I) times the likelihood, dense, for masked sets of several sizes."""
    model = linear_model()
    exact_sites(model)
    support, _ = sets(5, 4, 1)
    mask = torch.tensor([[True] * k + [False] * (4 - k) for k in range(5)])
    with torch.no_grad():
        q = model.encode(observations(torch.where(mask[..., None], support.y, torch.nan), mask))
    w = W.numpy()
    for i in range(5):
        y = support.y[i, :i].numpy()
        cov = np.linalg.inv(np.eye(2) + i * w.T @ w / NOISE)
        np.testing.assert_allclose(q.mean[i].numpy(), cov @ w.T @ y.sum(0) / NOISE, atol=1e-10)
        np.testing.assert_allclose(np.diag(q.var[i].numpy()), cov, atol=1e-10)
    assert q.kl()[0] == 0  # an empty support leaves the prior


def test_the_bound_is_that_of_gp_vib_on_a_constant_feature() -> None:
    """Numbers around a common mean are the GP without inputs: the same posterior, KL and, on average, fit."""
    one = torch.ones(1, 1, dtype=torch.float64)
    model = LatentModel(nn.Linear(1, 2), LinearDecoder(one), noise=NOISE, samples=20_000).double()
    with torch.no_grad():
        model.encoder.weight.copy_(torch.tensor([[1.0], [0.0]]))
        model.encoder.bias.copy_(torch.tensor([0.0, np.log(np.expm1(NOISE))]))
    support, query = sets(3, 4, 2, weights=one)
    gp = gp_vib(
        MLP(1, ()), kernels.Linear(learn_scale=False), ExactSites(), likelihoods.Gaussian(NOISE, learn=False)
    ).double()
    pair = task(*(examples(torch.ones_like(o.y), o.y.squeeze(-1)) for o in (support, query)))
    f = gp(pair)
    q = model.encode(support)
    assert_close(q.mean, f.mean[:, 0])
    assert_close(q.var, f.var[:, 0])
    with torch.no_grad():
        found, known = vib(model, support, query, beta=0.7, noise=seeded(0)), supervised(gp, pair, beta=0.7)
    assert_close(found.rate, known.rate)
    assert_close(found.fit, known.fit, rtol=0, atol=5e-2)
    assert_close(found.value, found.fit - 0.7 * found.rate)


def test_the_predictive_density_is_the_exact_one() -> None:
    model = linear_model(samples=100_000)
    exact_sites(model)
    support, query = sets(2, 3, 2)
    q = model.encode(support)
    with torch.no_grad():
        found = model.log_predictive(q, query, seeded(0))
    for i in range(2):
        cov = W @ torch.diag(q.var[i]) @ W.mT + NOISE * torch.eye(3, dtype=torch.float64)
        exact = torch.distributions.MultivariateNormal(W @ q.mean[i], cov.detach())
        assert_close(found[i], exact.log_prob(query.y[i]).detach(), rtol=0, atol=2e-2)


@pytest.mark.parametrize(("n", "v", "beta"), [(2, 3, 1.0), (5, 2, 0.3)])
def test_a_trained_encoder_comes_to_the_best_there_is(n, v, beta) -> None:
    """The decoder is the true one. The maximum over all encoders is known, and of the form that the sites have."""
    model = linear_model()
    optimiser = torch.optim.Adam(model.encoder.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 300)
    noise = seeded(1)
    for step in range(300):
        loss = -vib(model, *sets(100, n, v, seed=10 + step), beta=beta, noise=noise).value.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    model.samples = 10
    with torch.no_grad():
        found = vib(model, *sets(5_000, n, v, seed=5), beta=beta, noise=seeded(2))
        exact_sites(model)
        bayes = vib(model, *sets(5_000, n, v, seed=5), beta=beta, noise=seeded(2))
    best, rate = optimum(n, v, beta)
    assert found.value.mean().item() == pytest.approx(best, abs=0.06)
    assert found.rate.mean().item() == pytest.approx(rate, rel=0.05)
    assert bayes.value.mean().item() < best  # Bayes' rule is not what maximises F (section 2)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_the_bound_is_below_the_information_bottleneck(beta) -> None:
    """One support and one query observation of one number: (Z, y_t, y_v) is Gaussian, all informations are known."""
    one = torch.ones(1, 1, dtype=torch.float64)
    best, _ = optimum(1, 1, beta, one)
    a = 1 / NOISE
    u = 1 / (1 + a / beta)
    slope = (1 - u) * a / (1 + a)  # the mean of Z is this times y_t
    y = 1 + NOISE  # the variance of an observation
    z = u + slope**2 * y
    with_support, with_query = (slope * c / (z * y) ** 0.5 for c in (y, 1.0))  # correlations of Z
    kept, told = (-0.5 * np.log(1 - r**2) for r in (with_support, with_query))
    assert 0.5 * np.log(2 * np.pi * np.e * y) + best <= told - beta * kept


def test_observations_are_checked_where_they_enter() -> None:
    with pytest.raises(ValueError, match=r"real vectors, \(..., n, d\); got torch.int64 of shape \(3,\)"):
        observations(torch.arange(3))
    with pytest.raises(ValueError, match="finite numbers; some are NaN"):
        observations(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="beta must be a finite number"):
        vib(linear_model(), *sets(1, 1, 1), beta=-1.0)
