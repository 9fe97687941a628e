"""The bound, end to end, against dense oracles; what it does not depend on."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_expit
from torch.testing import assert_close

import cases
import oracles
from metavib import kernels, likelihoods
from metavib.encoders import ExactSites, GPEncoder, SimplifiedSites
from metavib.marginals import Normal
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import Backbone
from metavib.objective import bound, predictive, vib
from metavib.random import seeded
from metavib.tasks import Examples, Task, examples
from metavib.tasks.inputs import Inputs, points

models = pytest.mark.parametrize("case", cases.MODELS, ids=repr)


def gp(kernel: kernels.Kernel, likelihood: likelihoods.Likelihood, sites=None) -> Model:
    build = lambda: gp_vib(cases.backbone(), kernel, sites or SimplifiedSites(m=1.3, s=0.5), likelihood)  # noqa: E731
    return cases.build(cases.case(Model, build))


def dense(model: Model, t: Task, k) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean `(v, c)`, variance `(v,)` and KL of GP-VIB by NumPy, from the network's features and the two scalars."""
    phi_t, phi_v = (p.detach().numpy() for p in model.prior.features(t.support, t.query))
    sites = model.encoder.sites
    s = np.full(t.support.size, sites.s().item())
    m = model.likelihood.targets(t.support.y).double().numpy() * sites.m.item()
    K, ks = oracles.pairwise(k, phi_t, phi_t), oracles.pairwise(k, phi_v, phi_t)
    mean, var = oracles.marginals(K, ks, np.array([k(x, x) for x in phi_v]), m, s)
    return mean, var, oracles.kl_sites(K, m, s)


@settings(max_examples=15)
@given(n=st.integers(0, 9), v=st.integers(1, 4), seed=st.integers(0, 500), beta=st.floats(0, 2))
def test_gp_vib_of_a_gaussian_likelihood_by_hand(n, v, seed, beta) -> None:
    """sum_query [log N(y | mu, s2) - var / 2 s2] - beta KL."""
    model = gp(kernels.Linear(), likelihoods.Gaussian(0.3))
    t = cases.tasks(model.likelihood, n=n, v=v, seed=seed)
    mean, var, kl = dense(model, t, oracles.linear())
    s2 = model.likelihood.noise().item()
    y = t.query.y.numpy()
    fit = sum(-0.5 * (np.log(2 * np.pi * s2) + (y[j] - mean[j, 0]) ** 2 / s2) - var[j] / (2 * s2) for j in range(v))
    found = vib(model, t, beta=beta)
    assert found.fit.item() == pytest.approx(fit, rel=1e-8, abs=1e-8)
    assert found.rate.item() == pytest.approx(kl, rel=1e-8, abs=1e-8)
    assert found.value.item() == pytest.approx(fit - beta * kl, rel=1e-8, abs=1e-8)


@settings(max_examples=15)
@given(n=st.integers(0, 9), v=st.integers(1, 3), seed=st.integers(0, 500))
def test_gp_vib_of_a_binary_likelihood_by_hand(n, v, seed) -> None:
    """Sites at +-m, expected log sigmoid by Simpson's rule."""
    model = gp(kernels.Cosine(), likelihoods.Bernoulli())
    t = cases.tasks(model.likelihood, n=n, v=v, seed=seed)
    mean, var, kl = dense(model, t, oracles.cosine())
    sign = 2 * t.query.y.numpy() - 1
    fit = sum(oracles.integral(lambda f, j=j: log_expit(sign[j] * f), mean[j, 0], var[j]) for j in range(v))
    found = vib(model, t, beta=0.5)
    assert found.fit.item() == pytest.approx(fit, rel=1e-6, abs=1e-6)
    assert found.value.item() == pytest.approx(fit - 0.5 * kl, rel=1e-6, abs=1e-6)


@settings(max_examples=15)
@given(n=st.integers(0, 9), v=st.integers(1, 3), seed=st.integers(0, 500))
def test_gp_vib_of_softmax_by_hand(n, v, seed) -> None:
    """One K + S for all classes, the same variance for each, the KL summed over classes, the samples by a loop."""
    model = gp(kernels.Linear(), likelihoods.Softmax(3, samples=cases.SAMPLES))
    t = cases.tasks(model.likelihood, n=n, v=v, seed=seed)
    mean, var, kl = dense(model, t, oracles.linear())
    epsilon = torch.randn(cases.SAMPLES, v, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    fit = np.mean(
        [
            sum(oracles.log_softmax_prob(mean[j] + np.sqrt(var[j]) * e[j], int(t.query.y[j])) for j in range(v))
            for e in epsilon.numpy()
        ]
    )
    found = vib(model, t, beta=0.1, noise=epsilon)
    assert found.fit.item() == pytest.approx(fit, rel=1e-7, abs=1e-7)
    assert found.rate.item() == pytest.approx(kl, rel=1e-7, abs=1e-7)


@models
def test_value_is_fit_minus_beta_times_rate(case) -> None:
    model = cases.build(case)
    t, noise = cases.tasks(model.likelihood, (3,)), cases.base_samples(model, (3,))
    for beta in (0.0,) if model.dirac else (0.0, 1e-7, 1.0, 3.0):
        found = vib(model, t, beta=beta, noise=noise)
        assert_close(found.value, found.fit - beta * found.rate if beta else found.fit)


@models
def test_bound_of_an_encoding_is_the_bound(case) -> None:
    model = cases.build(case)
    t, noise = cases.tasks(model.likelihood, (3,)), cases.base_samples(model, (3,))
    q = model.encode(t.support, points(t.query), noise)
    for a, b in zip(
        bound(q, model.likelihood, t.query, beta=0.0, noise=noise), vib(model, t, beta=0.0, noise=noise), strict=True
    ):
        assert_close(a, b)


@models
def test_the_encoder_does_not_see_the_query_outputs(case) -> None:
    """Other outputs at the query change the fit, never the rate nor the marginals."""
    model = cases.build(case)
    t, noise = cases.tasks(model.likelihood, (2,)), cases.base_samples(model, (2,))
    other = Task(t.support, t.query._replace(y=cases.tasks(model.likelihood, (2,), seed=9).query.y))
    a, b = vib(model, t, beta=0.0, noise=noise), vib(model, other, beta=0.0, noise=noise)
    assert_close(a.rate, b.rate, rtol=0, atol=0)
    assert_close(model(t, noise).mean, model(other, noise).mean, rtol=0, atol=0)
    assert not torch.allclose(a.fit, b.fit)


def shuffled(s: Examples, order: torch.Tensor) -> Examples:
    return Examples(*(t[:, order] for t in s))


@models
def test_order_of_points_does_not_matter(case) -> None:
    """Support points permuted: nothing changes. Query points permuted: marginals permute, terms do not change."""
    model = cases.build(case)
    t, noise = cases.tasks(model.likelihood, (2,), n=6, v=4), cases.base_samples(model, (2,))
    a, q = vib(model, t, beta=0.0, noise=noise), model(t, noise)
    support, query = torch.tensor([3, 5, 0, 1, 4, 2]), torch.tensor([2, 0, 3, 1])
    moved = Task(shuffled(t.support, support), shuffled(t.query, query))
    for one, other in zip(a, vib(model, moved, beta=0.0, noise=noise), strict=True):
        assert_close(one, other)
    assert_close(model(moved, noise).mean, q.mean[:, query])
    assert_close(model(moved, noise).var, q.var[:, query])


@pytest.mark.parametrize("case", [c for c in cases.MODELS if "Softmax" in c.name and "maml" not in c.name], ids=repr)
@pytest.mark.parametrize("n", [4, 9])
def test_relabelling_classes_permutes_predictions_and_leaves_the_bound(case, n) -> None:
    """With common random numbers, permuted likewise; dual and primal."""
    check_relabelling(cases.build(case), n)


def test_relabelling_classes_under_gp_maml() -> None:
    """The inner steps do not see the names of classes either."""
    check_relabelling(cases.build(next(c for c in cases.MODELS if c.name == "gp-maml Softmax")), 4)


def check_relabelling(model: Model, n: int) -> None:
    t, noise = cases.tasks(model.likelihood, (2,), n=n), cases.base_samples(model, (2,))
    order = torch.tensor([2, 0, 1])
    new = order.argsort()  # class order[j] is called j now

    def renamed(s: Examples) -> Examples:
        return s._replace(y=new[s.y])

    moved = Task(renamed(t.support), renamed(t.query))
    a, b = vib(model, t, beta=0.3, noise=noise), vib(model, moved, beta=0.3, noise=noise[..., order])
    for one, other in zip(a, b, strict=True):
        assert_close(one, other)
    q, r = model(t, noise), model(moved, noise[..., order])
    assert_close(r.mean, q.mean[..., order])
    assert_close(r.var, q.var)
    assert_close(model.likelihood.predict(r, noise[..., order]), model.likelihood.predict(q, noise)[..., order])


def test_sampling_without_noise_is_refused_with_the_remedy() -> None:
    for name in ("gp-vib SimplifiedSites Softmax", "stochastic-maml Gaussian"):
        model = cases.build(next(c for c in cases.MODELS if c.name == name))
        with pytest.raises(ValueError, match=r"pass noise=torch.Generator\(\)"):
            vib(model, cases.tasks(model.likelihood), beta=0.0)


@models
def test_a_generator_repeats_and_common_random_numbers_agree(case) -> None:
    """The same seed twice gives identical values, as the same base samples do."""
    model = cases.build(case)
    t, noise = cases.tasks(model.likelihood, (2,)), cases.base_samples(model, (2,))
    first, second = (vib(model, t, beta=0.0, noise=torch.Generator().manual_seed(4)).fit for _ in range(2))
    assert bool((first == second).all())
    first, second = (vib(model, t, beta=0.0, noise=noise).fit for _ in range(2))
    assert bool((first == second).all())


@pytest.mark.parametrize("likelihood", cases.LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("kernel", [kernels.Linear, kernels.Cosine, kernels.Matern32])
def test_features_that_are_all_zero_give_a_finite_bound_and_gradient(likelihood, kernel) -> None:
    """A dead network: k = 0 or constant, and no NaN in any parameter's gradient."""
    model = gp(kernel(), likelihood.build())
    for p in model.prior.network.parameters():
        torch.nn.init.constant_(p, -1.0 if p.ndim == 1 else 0.0)  # ReLU of -1 is 0
    t, noise = cases.tasks(model.likelihood, (2,)), cases.base_samples(model, (2,))
    found = vib(model, t, beta=0.5, noise=noise)
    assert bool(found.value.isfinite().all())
    found.value.sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is None or bool(p.grad.isfinite().all()), name
    if kernel is not kernels.Matern32:
        assert_close(found.rate, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_inputs_of_any_magnitude_give_finite_numbers(dtype, scale) -> None:
    """Raw pixels or metres: bound and gradients stay finite, for GP methods and a classification likelihood."""
    for name in ("gp-vib Linear", "gp-vib Cosine", "gp-vib RBF", "gp-vib SimplifiedSites Softmax"):
        model = cases.build(next(c for c in cases.MODELS if c.name == name), dtype=dtype)
        t = cases.tasks(model.likelihood, (2,), dtype=dtype)
        t = Task(t.support._replace(x=t.support.x * scale), t.query._replace(x=t.query.x * scale))
        found = vib(model, t, beta=1.0, noise=cases.base_samples(model, (2,)))
        found.value.sum().backward()
        assert bool(found.value.isfinite().all()), name
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters()), name


def test_diverged_weights_are_reported_with_a_diagnosis() -> None:
    model = gp(kernels.Linear(), likelihoods.Gaussian())
    with torch.no_grad():
        next(model.prior.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite: look for diverged weights"):
        vib(model, cases.tasks(model.likelihood), beta=1.0)


def test_gp_encoders_share_one_variance_between_classes() -> None:
    model = gp(kernels.Linear(), likelihoods.Softmax(3))
    assert isinstance(model.encoder, GPEncoder)
    q = model(cases.tasks(model.likelihood, (2,)), None)
    assert q.var.shape == (2, 4, 1)


# The predictive form (THEORY.md, eqs. 5a and 5b)


class One(Backbone):
    """The feature 1 of whatever point, so that f is the same standard normal number everywhere."""

    features, pointwise = 1, True

    def forward(self, inputs: Inputs) -> torch.Tensor:
        return torch.ones(*inputs.mask.shape, 1, dtype=torch.float64)


def test_the_predictive_form_bounds_what_the_support_tells_and_is_above_the_bottleneck() -> None:
    """y = f + noise, both standard normal, one support and one query point: all informations are logs of 1 - r^2."""
    model = gp_vib(One(), kernels.Linear(learn_scale=False), ExactSites(), likelihoods.Gaussian(1.0)).double()
    generator = seeded(0)
    f, noise = (torch.randn(400_000, k, generator=generator, dtype=torch.float64) for k in (1, 2))
    y = f + noise
    x = torch.zeros(*y.shape, 1, dtype=torch.float64)
    tasks = Task(examples(x[:, :1], y[:, :1]), examples(x[:, 1:], y[:, 1:]))
    entropy = 0.5 * np.log(2 * np.pi * np.e * 2)  # of y
    with torch.no_grad():
        both = [objective(model, tasks, beta=1.0) for objective in (vib, predictive)]
    fit, fit_p = (entropy + b.fit.mean().item() for b in both)
    support_tells, z_tells = -0.5 * np.log(1 - 1 / 4), -0.5 * np.log(1 - 1 / 8)
    z_keeps = -0.5 * np.log(1 - 1 / 2)
    assert fit_p == pytest.approx(support_tells, abs=4e-3) and support_tells == pytest.approx(0.144, abs=1e-3)
    assert fit_p > z_tells == pytest.approx(0.067, abs=1e-3)  # so that F_p is no bound of the bottleneck
    assert fit == pytest.approx(-0.153, abs=6e-3) and fit < z_tells  # and F is
    assert both[1].rate.mean().item() == pytest.approx(z_keeps, abs=4e-3)  # p(Z) is the marginal of Z: (5b) is tight


@pytest.mark.parametrize("v", [0.0, 0.1, 2.0])
def test_the_noise_that_the_bound_prefers_is_too_large_by_twice_the_posterior_variance(v) -> None:
    """Predictions that are right have E (y - mu)^2 = v + s0; F then is largest at s0 + 2 v, and F_p at s0."""
    s0, spread = 0.5, (0.5 + v) ** 0.5
    noise = torch.logspace(-2, 1.5, 7001, dtype=torch.float64)
    q = Normal(torch.zeros(2, 1, dtype=torch.float64), torch.full((2, 1), v, dtype=torch.float64))
    y = torch.tensor([-spread, spread], dtype=torch.float64)  # (y - mu)^2 is v + s0
    score = {"F": [], "F_p": []}
    for s in noise[::50]:
        p = likelihoods.Gaussian(s.item(), floor=0.0).double()
        score["F"].append(p.expected_log_prob(q, y).sum().item())
        score["F_p"].append(p.log_predictive(q, y).sum().item())
    best = {name: noise[::50][int(np.argmax(found))].item() for name, found in score.items()}
    assert best["F"] == pytest.approx(s0 + 2 * v, rel=0.06) and best["F_p"] == pytest.approx(s0, rel=0.06)
