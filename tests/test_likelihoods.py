"""Likelihoods against SciPy's distributions and quadrature, and closed forms against the general path."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import expit
from torch import Tensor
from torch.testing import assert_close

import oracles
from cases import LIKELIHOODS, Case, outputs
from metavib import likelihoods as lk
from metavib.marginals import Normal, Point, Samples
from metavib.random import seeded

means = st.floats(-2.5, 2.5).map(lambda x: round(x, 4))
variances = st.floats(0.0, 1.5).map(lambda x: round(x, 4))
LIKELIHOODS = [
    *LIKELIHOODS,
    Case("below an edge", lk.LogNormal, lambda: lk.LogNormal(0.3, edge=(6.0, 1.6, -0.2, 80.0))),
]
real = [c for c in LIKELIHOODS if issubclass(c.cls, lk.RealLikelihood)]
scalar = [c for c in LIKELIHOODS if c.cls is not lk.Softmax]


class Mirrored:
    """The distribution of -Y, with the questions that tests ask of SciPy's."""

    def __init__(self, of) -> None:
        self.of, self.dist = of, of.dist

    def logpdf(self, y):
        return self.of.logpdf(-y)

    def cdf(self, y):
        return self.of.sf(-y)

    def mean(self):
        return -self.of.mean()

    def var(self):
        return self.of.var()


class Shares:
    """The distribution of l + (h - l) / (1 + e^-g) of a Gaussian g, with the questions that tests ask of SciPy's."""

    def __init__(self, low, high, logit) -> None:
        self.low, self.width, self.logit, self.dist = low, high - low, logit, logit.dist

    def logpdf(self, y):
        u = (y - self.low) / self.width
        return self.logit.logpdf(np.log(u / (1 - u))) - np.log(u * (1 - u) * self.width)

    def cdf(self, y):
        u = np.clip((y - self.low) / self.width, 0, 1)
        with np.errstate(divide="ignore"):
            return self.logit.cdf(np.log(u) - np.log1p(-u))

    def mean(self):
        return self._expected(lambda u: u)

    def var(self):
        return self._expected(lambda u: u**2) - self.mean() ** 2

    def _expected(self, of):
        x, w = np.polynomial.hermite_e.hermegauss(80)
        g = np.multiply.outer(x, self.logit.std()) + self.logit.mean()
        return np.tensordot(w / w.sum(), of(self.low + self.width * expit(g)), 1)


class Squares:
    """e + r^2 for a Gaussian r, all but none of which is below 0: densities and moments by those of r."""

    dist = stats.norm  # it is continuous

    def __init__(self, edge: float, root) -> None:
        self.edge, self.root = edge, root

    def logpdf(self, y):
        r = np.sqrt(y - self.edge)
        return self.root.logpdf(r) - np.log(2 * r)

    def cdf(self, y):
        return self.root.cdf(np.sqrt(np.maximum(y - self.edge, 0)))

    def mean(self):
        return self.edge + self.root.moment(2)

    def var(self):
        return self.root.moment(4) - self.root.moment(2) ** 2


def frozen(likelihood: lk.Likelihood, f: np.ndarray | float):
    """p(y | f) as SciPy has it."""
    if isinstance(likelihood, lk.Gaussian):
        return stats.norm(f, np.sqrt(likelihood.noise().item()))
    if isinstance(likelihood, lk.LogNormal):
        edge, centre, spread, _ = (v.item() for v in likelihood.units)
        shape = abs(spread) * np.sqrt(likelihood.noise().item())
        if spread > 0:
            return stats.lognorm(shape, edge, np.exp(centre + spread * f))
        return Mirrored(stats.lognorm(shape, -edge, np.exp(centre + spread * f)))
    if isinstance(likelihood, lk.LogitNormal):
        low, high, centre, spread, *_ = (v.item() for v in likelihood.units)
        return Shares(low, high, stats.norm(centre + spread * f, spread * np.sqrt(likelihood.noise().item())))
    if isinstance(likelihood, lk.RootNormal):
        edge, centre, spread, _ = (v.item() for v in likelihood.units)
        return Squares(edge, stats.norm(centre + spread * f, spread * np.sqrt(likelihood.noise().item())))
    if isinstance(likelihood, lk.StudentT):
        return stats.t(likelihood.df, f, np.sqrt(likelihood.scale().item()))
    if isinstance(likelihood, lk.Poisson):
        return stats.poisson(np.exp(f))
    return stats.bernoulli(expit(f))


def log_p(likelihood: lk.Likelihood, f: np.ndarray | float, y: float) -> np.ndarray:
    p = frozen(likelihood, f)
    return p.logpdf(y) if isinstance(p.dist, stats.rv_continuous) else p.logpmf(y)


def normal(mean: float, var: float) -> Normal:
    return Normal(torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[var]], dtype=torch.float64))


def label(likelihood: lk.Likelihood, seed: int) -> Tensor:
    return outputs(likelihood, (1,), np.random.default_rng(seed))


@pytest.mark.parametrize("case", scalar)
@given(f=st.floats(-3, 3), seed=st.integers(0, 999))
def test_log_prob_equals_scipy(case, f, seed) -> None:
    p = case.build().double()
    y = label(p, seed)
    assert_close(p.log_prob(torch.tensor([[f]], dtype=torch.float64), y).item(), float(log_p(p, f, y.item())))


@pytest.mark.parametrize("case", scalar)
@settings(max_examples=12)
@given(mean=means, var=variances, seed=st.integers(0, 999))
def test_expected_log_likelihood_and_predictive_equal_quadrature(case, mean, var, seed) -> None:
    """E_q[log p] and log E_q[p] against Simpson's rule on SciPy's densities."""
    p = case.build().double()
    q, y = normal(mean, var), label(p, seed)
    coarse = case.cls in (lk.StudentT, lk.Poisson)  # heavy tails, and a double exponential
    tol = dict(rtol=1e-4, atol=1e-4) if coarse else dict(rtol=1e-6, atol=1e-6)
    expected = oracles.integral(lambda f: log_p(p, f, y.item()), mean, var)
    assert_close(p.expected_log_prob(q, y).item(), expected, **tol)
    density = oracles.integral(lambda f: np.exp(log_p(p, f, y.item())), mean, var)
    assert_close(p.log_predictive(q, y).item(), np.log(density), **{k: 50 * t for k, t in tol.items()})
    assert p.expected_log_prob(q, y).item() <= p.log_predictive(q, y).item() + 1e-9  # Jensen


@pytest.mark.parametrize("case", real)
@settings(max_examples=12)
@given(mean=means, var=variances.filter(lambda v: v <= 1), at=st.floats(-2.0, 4.0))
def test_predictive_moments_and_cdf_equal_integration(case, mean, var, at) -> None:
    p = case.build().double()
    q = normal(mean, var)
    centre = oracles.integral(lambda f: frozen(p, f).mean(), mean, var)
    spread = oracles.integral(lambda f: frozen(p, f).var() + (frozen(p, f).mean() - centre) ** 2, mean, var)
    found_mean, found_var = p.predict(q)
    tol = dict(rtol=1e-6, atol=1e-6)
    assert_close(found_mean.item(), centre, **tol)
    assert_close(found_var.item(), spread, **tol)
    y = torch.tensor([at], dtype=torch.float64)
    cdf = oracles.integral(lambda f: frozen(p, f).cdf(at), mean, var)
    assert_close(p.predictive_cdf(q, y).item(), cdf, rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", real)
@given(f=st.floats(-3, 3), y=st.floats(-30, 60))
def test_cdf_equals_scipy(case, f, y) -> None:
    p = case.build().double()
    found = p.cdf(torch.tensor([[f]], dtype=torch.float64), torch.tensor([y], dtype=torch.float64))
    assert_close(found.item(), float(frozen(p, f).cdf(y)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("df", [2.1, 3.0, 10.0, 100.0, 1000.0])
def test_student_t_cdf_for_any_degrees_of_freedom(df) -> None:
    p = lk.StudentT(1.0, df=df).double()
    y = np.array([-1e6, -40.0, -3.0, -0.1, 0.0, 1.0, 5.0, 1e3])
    found = p.cdf(torch.zeros(8, 1, dtype=torch.float64), torch.as_tensor(y))
    scale = np.sqrt(p.scale().item())
    np.testing.assert_allclose(found.detach().numpy(), stats.t(df, 0, scale).cdf(y), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "case", [c for c in LIKELIHOODS if c.cls in (lk.Gaussian, lk.LogNormal, lk.LogitNormal, lk.RootNormal, lk.Poisson)]
)
@given(mean=means, var=variances.filter(lambda v: v <= 0.8), seed=st.integers(0, 999))
def test_closed_forms_equal_the_general_path(case, mean, var, seed) -> None:
    """What a likelihood overrides equals what its base class computes by nodes."""
    p = case.build().double()
    q, y = normal(mean, var), label(p, seed)
    tol = dict(rtol=1e-8, atol=1e-8)
    assert_close(p.expected_log_prob(q, y), lk.Likelihood.expected_log_prob(p, q, y), **tol)
    for one, other in zip(p.predict(q), lk.RealLikelihood.predict(p, q), strict=True):
        assert_close(one, other, **tol)
    wide = dict(rtol=1e-3, atol=1e-3)  # a narrow density seen by 32 nodes
    assert_close(p.log_predictive(q, y), lk.Likelihood.log_predictive(p, q, y), **wide)
    at = y.double()
    assert_close(p.predictive_cdf(q, at), lk.RealLikelihood.predictive_cdf(p, q, at), rtol=0, atol=2e-2)


@pytest.mark.parametrize("case", LIKELIHOODS)
def test_points_and_samples_are_their_own_nodes(case) -> None:
    """A Point gives log p itself; Samples the mean of log p, and the log of the mean of p, by loops."""
    p = case.build().double()
    rng = np.random.default_rng(0)
    f = torch.as_tensor(rng.normal(size=(6, 2, 3, p.latents)))
    y = outputs(p, (2, 3), rng)
    each = torch.stack([p.log_prob(f[k], y) for k in range(6)])
    for k in range(6):
        assert_close(p.expected_log_prob(Point(f[k]), y), each[k])
        assert_close(p.log_predictive(Point(f[k]), y), each[k])
    assert_close(p.expected_log_prob(Samples(f), y), each.mean(0))
    assert_close(p.log_predictive(Samples(f), y), each.exp().mean(0).log())
    if isinstance(p, lk.ClassLikelihood):
        assert_close(p.predict(Samples(f)), torch.stack([p.probabilities(f[k]) for k in range(6)]).mean(0))
        return
    mean, var = (torch.stack(m) for m in zip(*(p.moments(f[k]) for k in range(6)), strict=True))
    assert_close(p.predict(Samples(f))[0], mean.mean(0))
    assert_close(p.predict(Samples(f))[1], var.mean(0) + mean.var(0, correction=0))
    cdf = torch.stack([p.cdf(f[k], y.double()) for k in range(6)])
    assert_close(p.predictive_cdf(Samples(f), y.double()), cdf.mean(0))


@pytest.mark.parametrize("case", LIKELIHOODS)
def test_a_normal_without_variance_is_a_point(case, generator) -> None:
    p = case.build().double()
    rng = np.random.default_rng(0)
    f, y = torch.as_tensor(rng.normal(size=(3, p.latents))), outputs(p, (3,), rng)
    q = Normal(f, torch.zeros(3, 1, dtype=torch.float64))
    assert_close(p.expected_log_prob(q, y, generator), p.log_prob(f, y))
    assert_close(p.log_predictive(q, y, generator), p.log_prob(f, y))


# Log-normal ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize(
    ("mean", "var", "furthest"), [(0.3, 0.4, 5.0), (0.3, 0.4, -0.5), (0.0, 2.0, 1.0), (2.0, 0.0, 1.0)]
)
def test_log_normal_means_bound_how_far_outputs_are_from_their_edge(side, mean, var, furthest) -> None:
    """None that is rare counts as further than twice the furthest seen: integration of min(D, bound)."""
    p = lk.LogNormal(0.3, edge=(1.5, 0.2, side * 0.7, furthest)).double()
    z = np.linspace(-10, 10, 100_001)
    w = stats.norm.pdf(z) * (z[1] - z[0])
    m, s = 0.2 + 0.7 * side * mean, 0.7 * np.sqrt(var + p.noise().item())
    y = 1.5 + side * np.exp(np.minimum(m + s * z, max(np.log(2) + furthest, m + 2 * s - s**2 / 0.5)))
    centre = np.sum(w * y)
    found = p.predict(normal(mean, var))
    assert_close(found[0].item(), centre, rtol=1e-4, atol=1e-4)
    assert_close(found[1].item(), np.sum(w * (y - centre) ** 2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_log_normal_means_believe_known_rows_far_out_and_no_line_drawn_there(place) -> None:
    """All outputs seen were below e: e^4 is predicted where it is known to a tenth, and at most 2 e where it is not."""
    p = lk.LogNormal(1e-3, edge=(0.0, 0.0, 1.0, 1.0), floor=1e-6, lift=place).double()
    sure, unsure = (p.predict(normal(4.0, var))[0].item() for var in (0.01, 9.0))
    assert sure == pytest.approx(np.exp(4), rel=0.02)
    assert np.exp(1) < unsure <= 2 * np.exp(1) * (1 + 1e-9)


@given(f=st.floats(-2, 2), var=st.floats(0, 2), noise=st.floats(0.01, 2), place=st.floats(0, 1))
def test_log_normal_predictions_lie_between_scipys_means_around_the_median_function_and_over_all(
    f, var, noise, place
) -> None:
    """Of f itself nothing is averaged over but the noise, wherever predictions are told to lie."""
    p = lk.LogNormal(noise, edge=(0.0, 0.0, 1.0, 80.0), floor=1e-6, lift=place).double()
    sigma = np.sqrt(p.noise().item())
    around, over = (stats.lognorm(s, scale=np.exp(f)).mean() for s in (sigma, np.sqrt(var + sigma**2)))
    place = p.lift.item()
    assert_close(p.predict(normal(f, var))[0].item(), around ** (1 - place) * over**place, rtol=1e-6, atol=0.0)
    assert_close(p.moments(torch.tensor([[f]], dtype=torch.float64))[0].item(), around, rtol=1e-6, atol=0.0)


def test_log_normal_outputs_beyond_their_edge_have_no_density() -> None:
    p, q = lk.LogNormal(0.5, edge=(0.0, 0.0, 1.0, 9.0)).double(), normal(0.2, 0.3)
    y = torch.tensor([-1.0, 0.0, 1e-9, 2.0], dtype=torch.float64)
    assert p.log_predictive(q, y).isinf().tolist() == [True, True, False, False]
    assert p.predictive_cdf(q, y)[:2].tolist() == [0.0, 0.0]
    assert p.targets(y).isfinite().all()  # a row that should not be there is far away, and no error
    for level in (0.05, 0.5, 0.9):
        assert_close(p.predictive_cdf(q, p.predictive_quantile(q, level)).item(), level)


# Root-normal --------------------------------------------------------------------------------------------------------


@given(mean=st.floats(-6, 6), sd=st.floats(0, 4), spread=st.floats(0.1, 1.5))
def test_root_normal_moments_equal_adaptive_quadrature_also_where_roots_would_be_negative(mean, sd, spread) -> None:
    p = lk.RootNormal(0.01, root=(1.5, 0.4, spread, 1e-3)).double()
    s = np.sqrt(sd**2 + p.noise().item())

    def moment(k):
        def integrand(z):
            return max(0.4 + spread * (mean + s * z), 0) ** (2 * k) * stats.norm.pdf(z)

        kink = np.clip((-0.4 / spread - mean) / s, -9, 9)
        return integrate.quad(integrand, -9, 9, points=[kink, 0.0], limit=200)[0]

    found = p.predict(normal(mean, sd**2))
    assert_close(found[0].item(), 1.5 + moment(1), rtol=1e-6, atol=1e-8)
    assert_close(found[1].item(), moment(2) - moment(1) ** 2, rtol=1e-4, atol=1e-6)


def test_root_normal_outputs_have_a_bounded_density_at_their_edge_and_none_below_it() -> None:
    p, q = lk.RootNormal(0.5, root=(0.0, 1.0, 1.0, 0.04)).double(), normal(0.2, 0.3)
    y = torch.tensor([-1.0, 0.0, 0.04, 2.0], dtype=torch.float64)
    found = p.log_predictive(q, y)
    assert found.isinf().tolist() == [True, False, False, False] and found[1] < found[2]
    below = p.predictive_cdf(q, y)
    assert below[0] == 0 and 0 < below[1] < below[2]  # all that is predicted below the edge is at it
    assert p.predictive_quantile(q, 0.5 * below[1].item()).item() == 0.0 and p.targets(y).isfinite().all()
    for level in (0.3, 0.5, 0.9):
        assert_close(p.predictive_cdf(q, p.predictive_quantile(q, level)).item(), level)


# Logit-normal -------------------------------------------------------------------------------------------------------


@given(mean=st.floats(-8, 8), sd=st.floats(0, 6), spread=st.floats(0.1, 1.5))
def test_logit_normal_moments_equal_adaptive_quadrature_and_stay_between_the_ends(mean, sd, spread) -> None:
    p = lk.LogitNormal(0.01, band=(0.0, 1.0, 0.2, spread, 0.0, 1.0)).double()
    s = np.sqrt(sd**2 + p.noise().item())

    def moment(k):
        def integrand(z):
            return expit(0.2 + spread * (mean + s * z)) ** k * stats.norm.pdf(z)

        return integrate.quad(integrand, -9, 9, points=[0.0], limit=200)[0]

    found = p.predict(normal(mean, sd**2))
    assert_close(found[0].item(), moment(1), rtol=1e-6, atol=1e-8)
    assert_close(found[1].item(), moment(2) - moment(1) ** 2, rtol=1e-4, atol=1e-8)
    ends = [p.predictive_quantile(normal(mean, sd**2), q).item() for q in (0.001, 0.999)]
    assert 0 <= ends[0] <= ends[1] <= 1


def test_shares_at_the_ends_have_a_density_where_such_were_seen_and_none_otherwise() -> None:
    """A share of exactly 0 counts as half of the smallest other one, and what is predicted below that is 0."""
    q, y = normal(-1.0, 0.3), torch.tensor([-0.1, 0.0, 0.3, 1.0, 1.1], dtype=torch.float64)
    open_, closed = (
        lk.LogitNormal(0.5, band=(0.0, 1.0, 0.0, 1.0, *ends)).double() for ends in ((0.0, 1.0), (0.01, 0.98))
    )
    assert open_.log_predictive(q, y).isinf().tolist() == [True, True, False, True, True]
    assert open_.predictive_cdf(q, y)[[0, 1, 3, 4]].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert closed.log_predictive(q, y).isinf().tolist() == [True, False, False, False, True]
    at = torch.tensor([0.01, 0.98], dtype=torch.float64)
    assert_close(closed.log_predictive(q, y[[1, 3]]), open_.log_predictive(q, at), rtol=1e-5, atol=1e-5)
    assert closed.predictive_cdf(q, y)[[0, 3]].tolist() == [0.0, 1.0]
    assert_close(closed.predictive_cdf(q, y)[1], open_.predictive_cdf(q, at)[0], rtol=1e-5, atol=1e-5)
    assert closed.predictive_quantile(q, 1e-5).item() == 0.0 and closed.predictive_quantile(q, 0.5).item() > 0.1
    assert open_.targets(y).isfinite().all() and closed.targets(y).isfinite().all()


# Softmax ------------------------------------------------------------------------------------------------------------


def test_softmax_log_prob_and_probabilities_equal_scipy() -> None:
    f = np.random.default_rng(0).normal(size=(4, 3)) * 5
    p = lk.Softmax(3)
    y = torch.tensor([0, 1, 2, 1])
    found = p.log_prob(torch.as_tensor(f), y)
    for j in range(4):
        assert_close(found[j].item(), oracles.log_softmax_prob(f[j], int(y[j])))
    assert_close(p.probabilities(torch.as_tensor(f)).sum(-1), torch.ones(4, dtype=torch.float64))
    assert_close(p.probabilities(torch.as_tensor(f)).log().gather(-1, y[:, None]).squeeze(-1), found)


def test_softmax_of_two_classes_is_the_sigmoid_of_their_difference() -> None:
    """f_1 - f_0 ~ N(mu_1 - mu_0, v_0 + v_1): a one-dimensional integral, and Bernoulli's."""
    mean, var = np.array([0.4, -0.9]), np.array([0.7, 0.3])
    q = Normal(torch.as_tensor(mean)[None], torch.as_tensor(var)[None])
    p = lk.Softmax(2, samples=200_000)
    difference = normal(mean[1] - mean[0], var.sum())
    for y in (0, 1):
        label = torch.tensor([y])
        exact = lk.Bernoulli().expected_log_prob(difference, label).item()
        assert_close(exact, oracles.integral_2d(lambda f, y=y: oracles.log_softmax_prob(f, y), mean, var, 40))
        assert_close(p.expected_log_prob(q, label, seeded(0)).item(), exact, rtol=0, atol=5e-3)
        predictive = lk.Bernoulli().log_predictive(difference, label).item()
        assert_close(p.log_predictive(q, label, seeded(1)).item(), predictive, rtol=0, atol=5e-3)
    found = p.predict(q, seeded(2))
    assert_close(found, lk.Bernoulli().predict(difference), rtol=0, atol=5e-3)


def test_softmax_estimate_is_unbiased_and_its_error_shrinks() -> None:
    """Three classes: 400 estimates of 50 samples scatter about one of 400,000 as their standard error says."""
    q = Normal(torch.tensor([[0.3, -0.5, 1.1]], dtype=torch.float64), torch.tensor([[0.8]], dtype=torch.float64))
    y = torch.tensor([1])
    truth = lk.Softmax(3, samples=400_000).expected_log_prob(q, y, seeded(0)).item()
    few = lk.Softmax(3, samples=50)
    estimates = torch.cat([few.expected_log_prob(q, y, seeded(1, i)) for i in range(400)])
    error = estimates.std() / 20
    assert abs(estimates.mean() - truth) < 4 * error
    assert error < 0.01


def test_common_random_numbers_give_identical_values() -> None:
    q = Normal(torch.randn(2, 4, 3, generator=seeded(0)), torch.rand(2, 4, 1, generator=seeded(1)))
    y = torch.randint(3, (2, 4), generator=seeded(2))
    p = lk.Softmax(3, samples=11)
    epsilon = torch.randn(11, 2, 4, 3, generator=seeded(3))
    a, b = p.expected_log_prob(q, y, epsilon), p.expected_log_prob(q, y, epsilon)
    assert bool((a == b).all())
    assert bool((a == p.expected_log_prob(q, y, seeded(3))).all())  # a generator draws the same base samples
    by_hand = torch.stack([p.log_prob(q.mean + q.var.sqrt() * e, y) for e in epsilon]).mean(0)
    assert_close(a, by_hand)


def test_softmax_default_is_the_papers_200_samples(generator) -> None:
    q = Normal(torch.zeros(2, 5), torch.ones(2, 1))
    assert len(lk.Softmax(5).nodes(q, generator).f) == 200


def test_relabelling_classes_permutes_probabilities() -> None:
    f = torch.randn(7, 4, 3, dtype=torch.float64, generator=seeded(0))
    y = torch.randint(3, (4,), generator=seeded(1))
    order = torch.tensor([2, 0, 1])
    p = lk.Softmax(3)
    relabelled = order.argsort()[y]  # class order[j] is called j now
    assert_close(p.expected_log_prob(Samples(f[..., order]), relabelled), p.expected_log_prob(Samples(f), y))
    assert_close(p.predict(Samples(f[..., order])), p.predict(Samples(f))[..., order])


# Quadrature ------------------------------------------------------------------------------------------------------


def test_gauss_hermite_and_the_oracle_equal_adaptive_quadrature() -> None:
    """Three ways to E[log sigmoid(f)]: 32 nodes, Simpson's rule, and SciPy's quad."""
    mean, var = 0.7, 2.3

    def integrand(f: float) -> float:
        return float(-np.logaddexp(0, -f) * np.exp(-((f - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var))

    adaptive = integrate.quad(integrand, -20, 20, epsabs=1e-13, limit=200)[0]
    assert_close(oracles.integral(lambda f: -np.logaddexp(0, -f), mean, var), adaptive, rtol=1e-10, atol=1e-10)
    found = lk.Bernoulli().expected_log_prob(normal(mean, var), torch.tensor([1])).item()
    assert_close(found, adaptive, rtol=1e-8, atol=1e-8)


@given(mean=means, var=variances, degree=st.integers(0, 9))
def test_gauss_hermite_is_exact_for_polynomials(mean, var, degree) -> None:
    nodes = normal(mean, var).hermite(10)
    found = nodes.mean(nodes.f.squeeze(-1) ** degree).item()
    assert_close(
        found, float(stats.norm(mean, np.sqrt(var) or 1e-300).moment(degree)) if degree else 1.0, rtol=1e-8, atol=1e-8
    )


def test_gradients_at_zero_variance_are_finite() -> None:
    """A query point the prior leaves no doubt about must not turn every gradient into NaN."""
    for case in LIKELIHOODS:
        p = case.build().double()
        mean = torch.zeros(2, p.latents, dtype=torch.float64, requires_grad=True)
        var = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
        y = outputs(p, (2,), np.random.default_rng(0))
        value = p.expected_log_prob(Normal(mean, var), y, seeded(0)).sum()
        for gradient in torch.autograd.grad(value, [mean, var]):
            assert bool(gradient.isfinite().all()), case


# Outputs ------------------------------------------------------------------------------------------------------------


def test_targets() -> None:
    y = torch.tensor([0, 2, 1])
    assert lk.Softmax(3).targets(y).tolist() == [[1, -1, -1], [-1, -1, 1], [-1, 1, -1]]
    assert lk.Bernoulli().targets(torch.tensor([0, 1])).tolist() == [[-1], [1]]
    assert_close(lk.Poisson().targets(y), torch.log1p(y.float())[:, None])
    assert lk.Gaussian().targets(torch.tensor([0.5])).tolist() == [[0.5]]
    assert lk.StudentT().targets(torch.tensor([0.5])).tolist() == [[0.5]]


@pytest.mark.parametrize("p", [lk.Bernoulli(), lk.Softmax(2)])
def test_labels_are_checked(p) -> None:
    p.check(torch.tensor([0, 1]))
    p.check(torch.zeros(0, dtype=torch.long))
    with pytest.raises(TypeError, match=r"must be integers in 0\.\.1; got torch.float32"):
        p.check(torch.tensor([0.0, 1.0]))
    with pytest.raises(TypeError, match="torch.bool"):
        p.check(torch.tensor([True]))
    with pytest.raises(ValueError, match=r"must lie in 0\.\.1; got -1\.\.2"):
        p.check(torch.tensor([-1, 2]))


@pytest.mark.parametrize("bad", [[-1.0], [0.5], [-1]])
def test_counts_are_checked(bad) -> None:
    lk.Poisson().check(torch.tensor([0, 3]))
    lk.Poisson().check(torch.tensor([0.0, 3.0]))
    with pytest.raises(ValueError, match="must be counts 0, 1, 2"):
        lk.Poisson().check(torch.tensor(bad))


def test_impossible_likelihoods_are_refused() -> None:
    with pytest.raises(ValueError, match="df must be above 2"):
        lk.StudentT(df=2.0)
    with pytest.raises(ValueError, match="at least 2 classes; got 1"):
        lk.Softmax(1)
    with pytest.raises(ValueError, match="starting value must lie in"):
        lk.Gaussian(1e-3)


# The predicted class ------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 9999), classes=st.integers(2, 6), margin=st.sampled_from([0.0, 1e-3, 0.1, 3.0]))
def test_probabilities_are_in_the_order_of_the_means(seed, classes, margin) -> None:
    """Whatever is drawn: a larger mean is more probable, equal means are equally probable, and all add up to one."""
    rng = np.random.default_rng(seed)
    mean = torch.as_tensor(margin * rng.integers(-3, 4, (2, 5, classes)), dtype=torch.float32)
    q = Normal(mean, torch.as_tensor(rng.uniform(0.1, 9, (2, 5, 1)), dtype=torch.float32))
    p = lk.ordered(q, lk.Softmax(classes, samples=4).predict(q, seeded(seed)))
    assert_close(p.sum(-1), torch.ones(2, 5))
    ahead = mean.unsqueeze(-1) > mean.unsqueeze(-2)
    assert bool((p.unsqueeze(-1) >= p.unsqueeze(-2))[ahead].all())
    same = mean.unsqueeze(-1) == mean.unsqueeze(-2)
    assert_close((p.unsqueeze(-1) - p.unsqueeze(-2))[same], torch.zeros(int(same.sum())), rtol=0, atol=1e-6)
    assert bool((mean.gather(-1, p.argmax(-1, keepdim=True)) == mean.amax(-1, keepdim=True)).all())


def test_means_at_small_margins_decide_the_class() -> None:
    """200 draws by themselves prefer another class for a point in ten or more at these margins."""
    q = Normal(0.1 * torch.randn(2000, 5, generator=seeded(0)), torch.full((2000, 1), 2.0))
    drawn = lk.Softmax(5).predict(q, seeded(1))
    assert (drawn.argmax(-1) != q.mean.argmax(-1)).float().mean() > 0.1
    assert torch.equal(lk.ordered(q, drawn).argmax(-1), q.mean.argmax(-1))


def test_order_takes_no_estimate_further_from_the_truth() -> None:
    """Point by point, in the largest and in the mean error over the classes."""
    q = Normal(torch.randn(50, 5, generator=seeded(0)).double(), torch.full((50, 1), 3.0, dtype=torch.float64))
    truth = lk.ordered(q, lk.Softmax(5, samples=100_000).predict(q, seeded(1)))
    drawn = lk.Softmax(5).predict(q, seeded(2))
    dealt = lk.ordered(q, drawn)
    for norm in (1, 2, float("inf")):
        before, after = (torch.linalg.vector_norm(p - truth, norm, -1) for p in (drawn, dealt))
        assert bool((after <= before + 1e-12).all()) and bool((after < before).any())


def test_probabilities_without_a_known_order_stay_as_they_are() -> None:
    """Classes with variances of their own, draws that are q themselves, and two classes of one function."""
    several, f = torch.tensor([[0.1, 1.0, 5.0]]), torch.randn(4, 1, 3, generator=seeded(1))
    for q in (Normal(torch.zeros(1, 3), several), Samples(f), Point(f[0])):
        p = lk.Softmax(3).predict(q, seeded(0))
        assert lk.ordered(q, p) is p
    q = Normal(torch.ones(1, 1), torch.ones(1, 1))
    p = lk.Bernoulli().predict(q)
    assert lk.ordered(q, p) is p
