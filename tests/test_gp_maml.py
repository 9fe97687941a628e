"""GP+MAML with a Gaussian over the features' weights: the KL of both, and what it is in the limits."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import cases
from metavib import kernels, likelihoods, methods
from metavib.encoders import Descent, ExactSites, SimplifiedSites
from metavib.marginals import Normal
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks.inputs import points
from metavib.tasks.sinusoid import Sinusoids
from metavib.training import build
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.recipes import recipe

BETA = 0.5


def parts() -> tuple:
    torch.manual_seed(0)
    return cases.backbone(), kernels.Linear(bias=True), ExactSites(), likelihoods.Gaussian(0.3)


def stochastic(*, beta_psi: float = 0.2, variance: float = 0.01, steps: int = 2, samples: int = 1):
    descent = Descent(steps=steps, rate=0.05)
    options = {"beta": BETA, "beta_psi": beta_psi, "variance": variance, "samples": samples}
    return methods.stochastic_gp_maml(*parts(), descent=descent, **options).double()


def with_dirac(*, steps: int = 2):
    return methods.gp_maml(*parts(), descent=Descent(steps=steps, rate=0.05), beta=BETA).double()


def tasks(n: int = 4):
    return cases.tasks(likelihoods.Gaussian(), (3,), n=n, v=5)


def test_the_bound_has_both_divergences_at_their_own_prices() -> None:
    """Value = fit - beta_psi KL_psi - beta E KL_f, each by hand: NumPy for the weights, gp-vib for the functions."""
    model, t = stochastic(beta_psi=0.2, samples=3), tasks()
    found = vib(model, t, beta=BETA, noise=seeded(5))
    psi = model.encoder.composed.climb(t.support, model.prior, model.likelihood)
    theta, s = model.prior.network.theta(), model.prior.variances()
    kl_psi = np.zeros(3)
    for name in theta:
        terms = ((psi[name] - theta[name]).square() / s[name]).detach().numpy()
        kl_psi += 0.5 * terms.reshape(3, -1).sum(-1)
    q = model.encode(t.support, points(t.query), seeded(5)).posterior
    each = []
    for weights in q.weights.draw(seeded(5)):
        under = model.encoder.composed.gp(t.support, points(t.query), model.prior, model.likelihood, weights=weights)
        each.append((under.kl(), under.marginals()))
    kl_f = torch.stack([kl for kl, _ in each]).mean(0)
    fit = torch.stack([model.likelihood.expected_log_prob(f, t.query.y).sum(-1) for _, f in each]).mean(0)
    assert_close(found.fit, fit)  # of the Gaussian with the mixture's moments, which is all that this likelihood takes
    assert_close(found.rate, kl_f + 0.2 / BETA * torch.as_tensor(kl_psi))
    assert_close(found.value, fit - 0.2 * torch.as_tensor(kl_psi) - BETA * kl_f)
    assert (kl_psi > 0).all()


def test_marginals_are_the_moments_of_the_mixture() -> None:
    model, t = stochastic(variance=0.05, samples=7), tasks()
    q = model.encode(t.support, points(t.query), seeded(3))
    each = [p.marginals(x) for p, x in zip(q.posterior.functions, q.query, strict=True)]
    mean = np.mean([f.mean.detach().numpy() for f in each], 0)
    second = np.mean([(f.var + f.mean.square()).detach().numpy() for f in each], 0)
    found = q.marginals()
    assert isinstance(found, Normal)
    np.testing.assert_allclose(found.mean.detach().numpy(), mean, atol=1e-12)
    np.testing.assert_allclose(found.var.detach().numpy(), second - mean**2, atol=1e-10)


def test_without_variance_it_is_gp_maml() -> None:
    """As s goes to 0, with beta_psi = 0; and then without inner steps GP-VIB."""
    for steps in (2, 0):
        narrow, dirac, t = stochastic(beta_psi=0.0, variance=1e-20, steps=steps), with_dirac(steps=steps), tasks()
        for one, other in zip(vib(narrow, t, beta=BETA, noise=seeded(0)), vib(dirac, t, beta=BETA), strict=True):
            assert_close(one, other, rtol=1e-6, atol=1e-6)
    plain = methods.gp_vib(*parts()).double()
    assert_close(vib(narrow, t, beta=BETA, noise=seeded(0)).value, vib(plain, t, beta=BETA).value, rtol=1e-6, atol=1e-6)


def test_an_empty_support_costs_nothing() -> None:
    bound = vib(stochastic(), tasks(n=0), beta=BETA, noise=seeded(0))
    assert_close(bound.rate, torch.zeros(3, dtype=torch.float64))


def test_a_prior_without_variance_and_senseless_prices_are_refused() -> None:
    model = stochastic()
    model.prior.variances = None
    with pytest.raises(ValueError, match="needs a prior with a variance"):
        vib(model, tasks(), beta=BETA)
    options = {"descent": Descent(), "beta": 0.0, "beta_psi": 0.1}
    with pytest.raises(ValueError, match="needs beta above 0"):
        methods.stochastic_gp_maml(*parts(), **options)
    base = recipe("sinusoid", "gp-maml")
    for changes, message in (
        ({"train.beta_psi": -1.0}, "train.beta_psi must be a finite number"),
        ({"train.beta": 0.0, "train.beta_psi": 0.1}, "0 where train.beta is; got 0.1"),
        ({"method": "gp-vib", "train.beta_psi": 0.1}, "train.beta_psi is for gp-maml"),
    ):
        with pytest.raises(ValueError, match=message):
            override(base, changes)


@pytest.mark.parametrize("experiment", ["sinusoid", "glyphs"])
def test_a_config_builds_it_and_its_bound_has_a_gradient_for_everything(experiment) -> None:
    changes = {"train.beta_psi": 1e-3, "model.weight_variance": 1e-5}
    config: Config = override(recipe(experiment, "gp-maml"), changes)
    model = build.model(config)
    assert model.encoder.charge == pytest.approx(1e-3 / config.train.beta)
    assert build.model(config, weight_samples=4).encoder.samples == 4
    if experiment == "sinusoid":
        t = Sinusoids(shots=4, queries=3).sample((2,), seeded(1))
        vib(model, t, beta=config.train.beta, noise=seeded(0)).value.sum().backward()
        assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.prior.variances.parameters())


def test_classes_have_probabilities() -> None:
    torch.manual_seed(0)
    p = likelihoods.Softmax(3, samples=50)
    model = methods.stochastic_gp_maml(
        *(cases.backbone(), kernels.Cosine(), SimplifiedSites(), p),
        **{"descent": Descent(steps=1, rate=0.01), "beta": 1e-3, "beta_psi": 1e-4, "samples": 5},
    ).double()
    t = cases.tasks(p, (2,), n=6, v=4)
    probabilities = p.predict(model(t, seeded(0)), seeded(0))
    assert_close(probabilities.sum(-1), torch.ones(2, 4, dtype=torch.float64))
