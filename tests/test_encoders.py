"""Encoders by hand: sites from outputs, gradient steps from autograd, and the bounds on both."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import cases
from metavib import kernels, likelihoods
from metavib.encoders import Descent, ExactSites, FullSites, GaussianGradientEncoder, GeneralSites, SimplifiedSites
from metavib.methods import gp_maml, gp_vib, maml, stochastic_maml
from metavib.model import Model
from metavib.networks import MLP
from metavib.networks.layers import softplus_inverse
from metavib.networks.weights import Variances
from metavib.objective import vib
from metavib.priors import WeightPrior
from metavib.tasks.inputs import points

PHI = torch.randn(2, 5, cases.FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 5, dtype=torch.bool)


def real_y() -> Tensor:
    return torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# Sites --------------------------------------------------------------------------------------------------------------


def test_exact_sites_are_the_observations() -> None:
    p = likelihoods.Gaussian(0.3).double()
    m, s = ExactSites()(PHI, real_y(), MASK, p)
    assert_close(m.squeeze(-1), real_y())
    assert_close(s, p.noise().detach().expand(2, 5))


def test_exact_sites_take_integer_outputs() -> None:
    """Counts and labels as real numbers are still observations of a Gaussian."""
    m, _ = ExactSites()(PHI, torch.arange(10).reshape(2, 5), MASK, likelihoods.Gaussian().double())
    assert_close(m.squeeze(-1), torch.arange(10.0, dtype=torch.float64).reshape(2, 5))


def test_simplified_sites_are_two_scalars() -> None:
    y = torch.randint(3, (2, 5), generator=torch.Generator().manual_seed(0))
    m, s = SimplifiedSites(m=2.5, s=0.7).double()(PHI, y, MASK, likelihoods.Softmax(3))
    for t in range(2):
        for j in range(5):
            for n in range(3):
                assert m[t, j, n].item() == pytest.approx(2.5 if y[t, j] == n else -2.5)
    assert_close(s, torch.full((2, 5), 0.7, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_full_sites_are_two_heads_on_phi() -> None:
    encoder = FullSites(cases.FEATURES).double()
    m, s = encoder(PHI, real_y(), MASK, likelihoods.Gaussian())
    mt = PHI @ encoder.m.weight[0] + encoder.m.bias
    assert_close(m.squeeze(-1), real_y() * mt)
    assert_close(s, nn.functional.softplus(PHI @ encoder.s.weight[0] + encoder.s.bias))


def test_general_sites_depend_on_y_beyond_a_factor() -> None:
    """m(y, x) and s(y, x): each site looks at its own point and output alone."""
    encoder = GeneralSites(cases.FEATURES, hidden=8).double()
    p, y = likelihoods.StudentT(), real_y()
    m, s = encoder(PHI, y, MASK, p)
    other = y.clone()
    other[0, 2] += 3.0
    m2, s2 = encoder(PHI, other, MASK, p)
    changed = torch.zeros(2, 5, dtype=torch.bool)
    changed[0, 2] = True
    assert_close(m2.squeeze(-1)[~changed], m.squeeze(-1)[~changed], rtol=0, atol=0)
    assert_close(s2[~changed], s[~changed], rtol=0, atol=0)
    assert s2[0, 2].item() != s[0, 2].item() and m2[0, 2].item() != m[0, 2].item()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sites_keep_their_bounds(sign) -> None:
    """mt in [-20, 20] and s in [0.001, 20], whatever the parameters have become."""
    p, y = likelihoods.Bernoulli(), torch.ones(2, 5, dtype=torch.long)
    simple, full, general = SimplifiedSites(), FullSites(cases.FEATURES), GeneralSites(cases.FEATURES)
    with torch.no_grad():
        for q in [*simple.parameters(), full.m.bias, full.s.bias, general.m.bias, general.s.bias]:
            q.fill_(sign * 1e3)
    for encoder in (simple, full, general):
        m, s = encoder.double()(PHI, y, MASK, p)
        assert_close(m.squeeze(-1), torch.full((2, 5), sign * 20.0, dtype=torch.float64))
        assert_close(s, torch.full((2, 5), 20.0 if sign > 0 else 1e-3, dtype=torch.float64))


def test_a_variance_at_its_floor_can_rise_again() -> None:
    """The gradient of s there is small but not zero, near the floor and below it."""
    sites = SimplifiedSites(s=1.1e-3).double()
    for below in (0.0, 3.0):
        with torch.no_grad():
            sites.s.raw -= below
        sites.zero_grad()
        _, s = sites(PHI, real_y(), MASK, likelihoods.Gaussian())
        s.sum().backward()
        assert s.min().item() >= 1e-3 * (1 - 1e-9) and sites.s.raw.grad.item() > 0


@pytest.mark.parametrize("s", [0.002, 0.69, 19.0])
def test_variances_are_softplus_between_their_bounds(s) -> None:
    """As the paper has it: clipped to [0.001, 20], and nothing added."""
    raw = softplus_inverse(s)
    full, general = FullSites(cases.FEATURES, s=s), GeneralSites(cases.FEATURES)
    with torch.no_grad():
        for head in (full.s, general.s):
            head.weight.zero_()
            head.bias.fill_(raw)
    simple = SimplifiedSites(s=s)
    assert simple.s.raw.item() == pytest.approx(raw)
    for encoder in (simple, full, general):
        _, found = encoder.double()(PHI, torch.ones(2, 5, dtype=torch.long), MASK, likelihoods.Bernoulli())
        assert_close(found, torch.full((2, 5), s, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("s", [1e-3, 0.0, 21.0])
def test_a_starting_variance_outside_the_bounds_is_refused(s) -> None:
    with pytest.raises(ValueError, match=r"starting value must lie in \(0.001, 20.0\]; got"):
        SimplifiedSites(s=s)


# Gradient steps -----------------------------------------------------------------------------------------------------


def ascend(model: Model, support, steps: int, rate: float) -> dict[str, Tensor]:
    """Plain gradient ascent on the mean log likelihood of one support set, by autograd."""
    psi = {name: p.detach().clone() for name, p in model.prior.network.theta().items()}
    for _ in range(steps):
        psi = {name: p.requires_grad_() for name, p in psi.items()}
        f = torch.func.functional_call(model.prior.network.body, psi, (cases.inputs(support),))
        slopes = torch.autograd.grad(model.likelihood.log_prob(f, support.y).mean(), list(psi.values()))
        psi = {name: (p + rate * g).detach() for (name, p), g in zip(psi.items(), slopes, strict=True)}
    return psi


@pytest.mark.parametrize("likelihood", cases.LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("steps", [1, 5])
def test_maml_takes_plain_gradient_steps(likelihood, first_order, steps) -> None:
    """Batched through weights a task = one task after another by autograd."""
    descent = Descent(steps=steps, rate=0.05, first_order=first_order)
    model = maml(cases.backbone(), likelihood.build(), descent=descent).double()
    batch = cases.tasks(model.likelihood, (3,))
    q = model.encode(batch.support, points(batch.query)).posterior
    for t in range(3):
        expected = ascend(model, type(batch.support)(*(a[t] for a in batch.support)), steps, 0.05)
        for name, p in expected.items():
            assert_close(q.psi[name][t], p)


def test_stochastic_maml_is_centred_on_maml_with_the_papers_kl() -> None:
    r"""KL = 1/2 sum_j Delta_j^2 / s_j."""
    model = stochastic_maml(cases.backbone(), cases.gaussian(), descent=cases.descent(), variance=0.03).double()
    batch = cases.tasks(model.likelihood, (3,))
    q = model.encode(batch.support, points(batch.query)).posterior
    for t in range(3):
        psi = ascend(model, type(batch.support)(*(a[t] for a in batch.support)), 2, 0.1)
        theta, s = model.prior.network.theta(), model.prior.variances()
        expected = sum(((psi[name] - theta[name]).square() / (2 * s[name])).sum() for name in psi)
        assert_close(q.kl()[t], expected)
        assert expected.item() > 0


@pytest.mark.parametrize("mean", [False, True])
def test_gp_maml_ascends_its_own_objective(mean) -> None:
    """One step on F(D_t, D_t), or on F / n, by autograd, one task, then GP-VIB under those weights."""
    parts = (kernels.Linear(bias=True), SimplifiedSites(), cases.gaussian())
    model = gp_maml(cases.backbone(), *parts, descent=Descent(steps=1, rate=0.1), beta=0.5, mean=mean).double()
    plain = gp_vib(cases.backbone(), *parts).double()
    plain.prior.load_state_dict(model.prior.state_dict())
    t = cases.tasks(model.likelihood)
    support_as_query = t._replace(query=t.support)
    weights = list(plain.prior.network.parameters())
    inner = vib(plain, support_as_query, beta=0.5).value / (t.support.size if mean else 1)
    slopes = torch.autograd.grad(inner, weights)
    with torch.no_grad():
        for p, g in zip(weights, slopes, strict=True):
            p.add_(0.1 * g)
    for a, b in zip(vib(model, t, beta=0.5), vib(plain, t, beta=0.5), strict=True):
        assert_close(a, b)


def test_inner_steps_raise_the_inner_objective() -> None:
    fits = []
    for steps in (0, 1, 5, 20):
        torch.manual_seed(0)
        model = maml(cases.backbone(), cases.gaussian(), descent=Descent(steps=steps, rate=0.02)).double()
        t = cases.tasks(model.likelihood, (4,))
        fits.append(vib(model, t._replace(query=t.support), beta=0.0).fit.sum().item())
    assert fits == sorted(fits) and fits[-1] > fits[0] + 0.1


@pytest.mark.parametrize(("options", "match"), [({"steps": -1}, "steps=-1"), ({"rate": 0.0}, "rate=0.0")])
def test_impossible_descents_are_refused(options, match) -> None:
    with pytest.raises(ValueError, match=f"inner steps must be >= 0 and their size > 0; got .*{match}"):
        Descent(**options)


def test_a_gaussian_encoder_needs_a_prior_with_a_variance() -> None:
    prior = WeightPrior(cases.backbone(), 1)
    model = Model(prior, GaussianGradientEncoder(cases.descent()), cases.gaussian()).double()
    with pytest.raises(ValueError, match="needs a prior with a variance"):
        vib(model, cases.tasks(model.likelihood), beta=1.0, noise=torch.Generator())


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_starting_variance_of_weights_must_be_positive(value) -> None:
    prior = WeightPrior(cases.backbone(), 1)
    with pytest.raises(ValueError, match="must be positive; got"):
        Variances(prior.network, value)


def test_weights_of_a_task_are_its_own() -> None:
    """Changing one task's support moves that task's weights alone."""
    model = maml(cases.backbone(), cases.gaussian(), descent=cases.descent()).double()
    batch = cases.tasks(model.likelihood, (3,))
    y = batch.support.y.clone()
    y[1] += 1.0
    before = model(batch).f
    after = model(batch._replace(support=batch.support._replace(y=y))).f
    assert_close(after[[0, 2]], before[[0, 2]], rtol=0, atol=0)
    assert not torch.allclose(after[1], before[1])


def test_a_kernel_on_raw_inputs_needs_no_network() -> None:
    """An MLP without layers is the identity: a plain GP."""
    model = gp_vib(MLP(cases.INPUTS, ()), kernels.RBF(0.5), ExactSites(), cases.gaussian()).double()
    t = cases.tasks(model.likelihood)
    x = np.concatenate([t.support.x, t.query.x])
    assert_close(torch.cat(model.prior.features(t.support, t.query)), torch.as_tensor(x))
    assert bool(vib(model, t, beta=1.0).value.isfinite())
