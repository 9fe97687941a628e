"""The limits that tie the methods to each other, and refusal of what the theory forbids."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

import cases
import oracles
from metavib import kernels, likelihoods
from metavib.encoders import Descent, ExactSites, FullSites, GeneralSites, SimplifiedSites
from metavib.methods import gp_maml, gp_vib, maml, stochastic_maml
from metavib.model import Model
from metavib.networks.layers import softplus_inverse
from metavib.objective import vib
from metavib.tasks import Task, task
from metavib.tasks.inputs import points

models = pytest.mark.parametrize("case", cases.MODELS, ids=repr)
each = pytest.mark.parametrize("likelihood", cases.LIKELIHOODS, ids=repr)


def same_weights(source: Model, target: Model) -> None:
    """Copies what the two have in common; the target has nothing else, or the test would compare unlike models."""
    state = {name: p for name, p in source.state_dict().items() if name in target.state_dict()}
    assert target.load_state_dict(state, strict=False).missing_keys == []


@each
@pytest.mark.parametrize("steps", [0, 2])
def test_without_variance_stochastic_maml_is_maml(likelihood, steps) -> None:
    """std -> 0: every sample is the mean."""
    descent = cases.descent(steps)
    stochastic = stochastic_maml(
        cases.backbone(), likelihood.build(), descent=descent, variance=1e-20, samples=cases.SAMPLES
    ).double()
    plain = maml(cases.backbone(), likelihood.build(), descent=descent).double()
    same_weights(stochastic, plain)
    t, noise = cases.tasks(plain.likelihood, (3,)), cases.base_samples(stochastic, (3,))
    assert_close(vib(stochastic, t, beta=0.0, noise=noise).fit, vib(plain, t, beta=0.0).fit, rtol=1e-7, atol=1e-7)
    assert_close(stochastic(t, noise).mean, plain(t).mean, rtol=1e-7, atol=1e-7)
    assert float(stochastic(t, noise).var.detach().max()) < 1e-15


def test_stochastic_maml_approaches_maml_as_its_variance_falls() -> None:
    plain = maml(cases.backbone(), cases.gaussian(), descent=cases.descent()).double()
    t, gaps = cases.tasks(plain.likelihood, (3,)), []
    for variance in (1e-2, 1e-4, 1e-6):
        wide = stochastic_maml(
            cases.backbone(), cases.gaussian(), descent=cases.descent(), variance=variance, samples=7
        )
        wide = wide.double()
        wide.load_state_dict(plain.state_dict(), strict=False)
        noise = cases.base_samples(wide, (3,))
        gaps.append(float((wide(t, noise).mean - plain(t).mean).abs().max().detach()))
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2] > 0


@each
def test_without_inner_steps_gp_maml_is_gp_vib(likelihood) -> None:
    descent = Descent(steps=0)
    parts = (kernels.Linear(bias=True), SimplifiedSites(), likelihood.build())
    composed = gp_maml(cases.backbone(), *parts, descent=descent, beta=0.5).double()
    plain = gp_vib(cases.backbone(), kernels.Linear(bias=True), SimplifiedSites(), likelihood.build()).double()
    state = {name.replace("encoder.gp.", "encoder."): p for name, p in composed.state_dict().items()}
    plain.load_state_dict(state)
    t, noise = cases.tasks(plain.likelihood, (3,)), cases.base_samples(plain, (3,))
    for a, b in zip(vib(composed, t, beta=0.5, noise=noise), vib(plain, t, beta=0.5, noise=noise), strict=True):
        assert_close(a, b)
    assert_close(composed(t, noise).mean, plain(t, noise).mean)


@each
def test_without_inner_steps_maml_is_the_network_itself(likelihood) -> None:
    model = maml(cases.backbone(), likelihood.build(), descent=Descent(steps=0)).double()
    t = cases.tasks(model.likelihood, (3,))
    f = model.prior.network.body(cases.inputs(t.query))
    assert_close(model(t).f, f)
    assert_close(vib(model, t, beta=0.0).fit, model.likelihood.log_prob(f, t.query.y).sum(-1))


@models
def test_empty_support_is_the_prior(case) -> None:
    """KL = 0; GP methods predict N(m(x), k(x, x)), gradient methods the network at theta, Gaussian classes nothing."""
    model = cases.build(case)
    t = cases.tasks(model.likelihood, (2,), n=0)
    noise = cases.base_samples(model, (2,))
    bound = vib(model, t, beta=0.0, noise=noise)
    q = model(t, noise)
    if model.dirac:
        assert_close(q.mean, model.prior.network.body(cases.inputs(t.query)))
        return
    kl = bound.rate
    if case.name == "stochastic-maml separate prior":  # its variance is its own, whatever the support
        ratio = torch.tensor(0.02 / 0.1, dtype=torch.float64)
        count = sum(p.numel() for p in model.prior.network.parameters())
        assert_close(kl, (count * 0.5 * (ratio - 1 - ratio.log())).expand(2), rtol=1e-6, atol=0)
        return
    assert_close(kl, torch.zeros(2, dtype=torch.float64), rtol=0, atol=0)
    if case.name == "gaussian-classes":  # all classes are the same, and lie at the origin
        assert_close(q.mean, q.mean[..., :1].expand_as(q.mean), rtol=0, atol=0)
        return
    if hasattr(model.prior, "kernel"):
        k = model.prior.kernel
        if case.name.startswith("stochastic gp-maml"):  # under each draw of the features' weights
            each = [k.diagonal(k.embed(phi)) for phi in model.encode(t.support, points(t.query), noise).query]
            assert_close(q.mean, torch.zeros_like(q.mean), rtol=0, atol=0)
            assert_close(q.var, torch.stack(each).mean(0).unsqueeze(-1).expand_as(q.var))
            return
        phi = model.prior.features(t.support, t.query)[1]
        if model.prior.each_point:  # the support would have features for each query point, and these come first
            phi = phi.squeeze(-2).movedim(0, -2)
        mean = k.mean(phi)
        assert_close(q.mean, torch.zeros_like(q.mean) if mean is None else mean, rtol=0, atol=0)
        assert_close(q.var.squeeze(-1), k.diagonal(k.embed(phi)))


@models
def test_a_dirac_encoder_takes_no_beta_above_zero(case) -> None:
    """Its KL is infinite: refused with the remedy; beta = 0 is MAML and finite."""
    model = cases.build(case)
    t, noise = cases.tasks(model.likelihood), cases.base_samples(model)
    assert bool(vib(model, t, beta=0.0, noise=noise).value.isfinite())
    if model.dirac:
        assert bool(vib(model, t, beta=0.0, noise=noise).rate.isposinf())
        with pytest.raises(ValueError, match=r"infinite KL .* Set beta = 0 \(MAML\), or use a Gaussian encoder"):
            vib(model, t, beta=1e-9, noise=noise)
    else:
        assert bool(vib(model, t, beta=1e-9, noise=noise).value.isfinite())


@pytest.mark.parametrize("beta", [-1.0, -1e-12, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["gp-vib Linear", "maml Gaussian", "stochastic-maml Gaussian", "gp-maml Gaussian"])
def test_a_beta_that_is_no_weight_is_refused(name, beta) -> None:
    model = cases.build(next(c for c in cases.MODELS if c.name == name))
    with pytest.raises(ValueError, match="beta must be a finite number, 0 or above; got"):
        vib(model, cases.tasks(model.likelihood), beta=beta)


def exact_gp(seed: int, noise: float = 0.3) -> Model:
    case = cases.case(
        Model, lambda: gp_vib(cases.backbone(), kernels.Linear(), ExactSites(), likelihoods.Gaussian(noise))
    )
    return cases.build(case, seed=seed)


def prior_covariance(model: Model, t: Task) -> np.ndarray:
    """Cov[y_t, y_v] under the model, by a product of embeddings."""
    phi = torch.cat(model.prior.features(t.support, t.query))
    z = model.prior.kernel.embed(phi).detach().numpy()
    return z @ z.T + model.likelihood.noise().item() * np.eye(len(z))


def log_joint(C: np.ndarray, y: np.ndarray) -> float:
    return 0.0 if not len(y) else float(stats.multivariate_normal(np.zeros(len(y)), C).logpdf(y))


@given(n=st.integers(0, 8), v=st.integers(1, 6), seed=st.integers(0, 500))
def test_at_beta_one_the_bound_of_an_exact_gp_is_an_elbo(n, v, seed) -> None:
    """With q = p(f | y_t) exactly: fit <= log p(y_v | y_t), and F(beta = 1) <= log p(y_v).

    The first is Jensen's inequality; the gap of the second is KL[p(f | y_t) || p(f | y_v)], checked as an equality in
    weight space.
    """
    model = exact_gp(seed % 3)
    t = cases.tasks(model.likelihood, n=n, v=v, seed=seed)
    bound = vib(model, t, beta=1.0)
    C = prior_covariance(model, t)
    y_t, y_v = t.support.y.numpy(), t.query.y.numpy()
    conditional = log_joint(C, np.concatenate([y_t, y_v])) - log_joint(C[:n, :n], y_t)
    assert bound.fit.item() <= conditional + 1e-9
    evidence = log_joint(C[n:, n:], y_v)
    assert bound.value.item() <= evidence + 1e-9

    def weights(phi: torch.Tensor, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        Z = model.prior.kernel.embed(phi).detach().numpy()
        cov = np.linalg.inv(np.eye(Z.shape[1]) + Z.T @ Z / model.likelihood.noise().item())
        return cov @ Z.T @ y / model.likelihood.noise().item(), cov

    phi_t, phi_v = model.prior.features(t.support, t.query)
    gap = oracles.kl_normal(*weights(phi_t, y_t), *weights(phi_v, y_v))
    assert evidence - bound.value.item() == pytest.approx(gap, rel=1e-6, abs=1e-7)


@given(n=st.integers(1, 9), seed=st.integers(0, 500))
def test_with_the_query_for_support_the_elbo_is_tight(n, seed) -> None:
    """D_t = D_v: q is the posterior of what it is judged on, and F(beta = 1) = log p(y_v)."""
    model = exact_gp(seed % 3)
    points = cases.tasks(model.likelihood, n=n, v=1, seed=seed).support
    t = task(points, points)
    expected = log_joint(prior_covariance(model, t)[:n, :n], points.y.numpy())
    assert vib(model, t, beta=1.0).value.item() == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("likelihood", [likelihoods.StudentT(), likelihoods.Poisson(), likelihoods.Bernoulli()])
def test_exact_sites_are_refused_for_other_likelihoods(likelihood) -> None:
    model = gp_vib(cases.backbone(), kernels.Linear(), ExactSites(), likelihood).double()
    with pytest.raises(TypeError, match="exact sites need a Gaussian likelihood; got .* Use SimplifiedSites"):
        vib(model, cases.tasks(likelihood), beta=1.0)


def test_general_sites_are_refused_for_several_latent_values() -> None:
    model = gp_vib(cases.backbone(), kernels.Linear(), GeneralSites(cases.FEATURES), likelihoods.Softmax(3)).double()
    with pytest.raises(TypeError, match="one latent value a point; Softmax has 3"):
        vib(model, cases.tasks(model.likelihood), beta=1.0, noise=cases.base_samples(model))


def test_simplified_sites_at_one_and_the_noise_are_exact_sites() -> None:
    exact = exact_gp(0)
    simple = gp_vib(cases.backbone(), kernels.Linear(), SimplifiedSites(), likelihoods.Gaussian()).double()
    simple.load_state_dict(exact.state_dict(), strict=False)
    noise = exact.likelihood.noise().item()
    torch.nn.init.constant_(simple.encoder.sites.s.raw, softplus_inverse(noise))
    t = cases.tasks(exact.likelihood, (3,))
    for a, b in zip(vib(exact, t, beta=1.0), vib(simple, t, beta=1.0), strict=True):
        assert_close(a, b)


def test_full_sites_without_weights_are_simplified_sites() -> None:
    full, simple = FullSites(cases.FEATURES, m=1.3, s=0.5).double(), SimplifiedSites(m=1.3, s=0.5).double()
    for head in (full.m, full.s):
        torch.nn.init.zeros_(head.weight)
    p = likelihoods.Softmax(3)
    phi, y = torch.randn(2, 5, cases.FEATURES, dtype=torch.float64), torch.randint(3, (2, 5))
    mask = torch.ones(2, 5, dtype=torch.bool)
    for a, b in zip(full(phi, y, mask, p), simple(phi, y, mask, p), strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_student_t_of_many_degrees_of_freedom_is_gaussian() -> None:
    t, g = likelihoods.StudentT(0.5, df=1e7).double(), likelihoods.Gaussian(0.5).double()
    f, y = torch.randn(6, 1, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    assert_close(t.log_prob(f, y), g.log_prob(f, y), rtol=1e-5, atol=1e-5)
