"""Integrals over q(f) against dense quadrature and mpmath, for q from a millionth to a million times p(y | f)'s width.

The range is that of a trained model, and more: squared scales of 1e-6 to 1e6 between q and Student's t, with outputs up
to 200 standard deviations away; counts of 0 to a million, with log rates of -5 to 10 and variances up to 9; logits up
to 50 with variances up to 1000. Values are right to 1e-5 nats and gradients to 1e-4 in float64.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, gammaln, log_expit, logsumexp
from torch import Tensor

from metavib import likelihoods as lk
from metavib import quadrature
from metavib.likelihoods.prediction import RealPrediction
from metavib.marginals import Normal
from oracles import panels

NATS, SLOPE = 1e-5, 1e-4
SCALE = 0.37  # of the Student-t, squared


class Exact:
    """Values and derivatives of both integrals of one point, from log p(y | f) and its derivative on dense nodes."""

    def __init__(self, mean, var, log_p, slope, f, w) -> None:
        log_q = -((f - mean) ** 2) / (2 * var) - 0.5 * math.log(2 * math.pi * var)
        self.predictive = logsumexp(log_q + log_p, b=w)
        tilted, q = w * np.exp(log_q + log_p - self.predictive), w * np.exp(log_q)
        self.expected = float((q * log_p).sum())
        # d/d mu is the mean slope under either density, and d/dv that of the slope times (f - mu) / 2v (Stein)
        times = (f - mean) / (2 * var)
        self.predictive_slopes = np.array([(tilted * slope).sum(), (tilted * slope * times).sum()])
        self.expected_slopes = np.array([(q * slope).sum(), (q * slope * times).sum()])


def student_cases(df: float) -> list[tuple[float, float, float]]:
    away = [0.0, 0.1, 0.5, 1, 2, 3, 5, 7, 8, 9, 12, 20] + [50, 200] * (df < 20)
    return [
        (0.3, ratio * SCALE, 0.3 + r * math.sqrt(SCALE * (1 + ratio))) for ratio in np.logspace(-6, 6, 13) for r in away
    ]


def student_exact(df: float, mean: float, var: float, y: float) -> Exact:
    sd, s = math.sqrt(var), math.sqrt(SCALE)
    f, w = panels([(mean, sd), (y, s)], mean - 40 * sd, max(mean + 40 * sd, y + 40 * s))
    return Exact(mean, var, stats.t.logpdf(y, df, f, s), (df + 1) * (y - f) / (df * SCALE + (y - f) ** 2), f, w)


def poisson_cases() -> list[tuple[float, float, float]]:
    found = set()
    for mean in (-5.0, -2.0, 0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0):
        for var in (1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 2.0, 4.0, 9.0):
            for z in (-3, -1, 0, 1, 3):
                rate = math.exp(mean + z * math.sqrt(var))
                found |= {(mean, var, float(y)) for y in (0, 1, 3, round(rate), round(rate + 3 * math.sqrt(rate)))}
    return sorted(case for case in found if case[2] < 1e6)


def poisson_exact(mean: float, var: float, y: float) -> Exact:
    mode = brentq(lambda f: y - math.exp(f) - (f - mean) / var, -800, 60, xtol=1e-13)
    width, sd = 1 / math.sqrt(math.exp(mode) + 1 / var), math.sqrt(var)
    low, high = min(mode - 60 * width, mean - 14 * sd), max(mode + 30 * width, mean + 14 * sd)
    f, w = panels([(mode, width), (mean, sd)], low, high)
    return Exact(mean, var, y * f - np.exp(f) - gammaln(y + 1), y - np.exp(f), f, w)


def bernoulli_cases() -> list[tuple[float, float, float]]:
    means = (0.0, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    return [
        (m, v, y)
        for m in sorted({*means, *(-m for m in means)})
        for v in (1e-6, 1e-3, 0.1, 1, 3, 10, 30, 100, 300, 1000)
        for y in (0.0, 1.0)
    ]


def bernoulli_exact(mean: float, var: float, y: float) -> Exact:
    sd, sign = math.sqrt(var), 2 * y - 1
    ends = mean - 40 * sd - var, mean + 40 * sd + var
    f, w = panels([(mean, sd), (0.0, 1.0), (mean + sign * var, sd)], *ends)
    return Exact(mean, var, log_expit(sign * f), sign * expit(-sign * f), f, w)


def found(p: lk.Likelihood, cases, dtype: torch.dtype) -> tuple[np.ndarray, ...]:
    """Both integrals `(cases,)` and their derivatives `(cases, 2)` by mean and variance, as the package has them."""
    mean, var, y = (torch.tensor(column, dtype=dtype) for column in zip(*cases, strict=True))
    mean, var = mean[:, None].requires_grad_(), var[:, None].requires_grad_()
    y = y.long() if isinstance(p, lk.Bernoulli) else y
    results = []
    for integral in (p.expected_log_prob, p.log_predictive):
        value = integral(Normal(mean, var), y)
        slopes = torch.autograd.grad(value.sum(), [mean, var])
        results += [value.detach().double().numpy(), torch.cat(slopes, -1).double().numpy()]
    return tuple(results)


def compare(
    p: lk.Likelihood, cases, exact, dtype: torch.dtype, *, nats: float, slope: float, share: float = 1e-3
) -> None:
    """Values to some nats (of themselves, where they are more than one), slopes relative to their natural size.

    The natural size of a derivative by the mean is its own, or a share of the inverse standard deviation of q, beside
    which it is no reason to move; by the variance, its own or that share of the inverse variance.
    """
    expected, expected_slopes, predictive, predictive_slopes = found(p, cases, dtype)
    for i, (mean, var, y) in enumerate(cases):
        e = exact(mean, var, y)
        for name, value, slopes, true, true_slopes in (
            ("expected", expected, expected_slopes, e.expected, e.expected_slopes),
            ("predictive", predictive, predictive_slopes, e.predictive, e.predictive_slopes),
        ):
            at = f"{name} of {type(p).__name__} at mean {mean}, variance {var}, y {y}"
            assert abs(value[i] - true) <= nats * max(1.0, abs(true)), f"{at}: {value[i]}, exact {true}"
            size = np.maximum(abs(true_slopes), share / np.array([math.sqrt(var), var]))
            assert (abs(slopes[i] - true_slopes) <= slope * size).all(), f"{at}: {slopes[i]}, exact {true_slopes}"


def student(df: float = 4.0) -> lk.StudentT:
    return lk.StudentT(SCALE, df=df)


@pytest.mark.parametrize("df", [2.1, 4.0, 30.0, 300.0])
def test_student_t_integrals_hold_for_any_width_of_q(df) -> None:
    compare(
        student(df).double(), student_cases(df), lambda *c: student_exact(df, *c), torch.float64, nats=NATS, slope=SLOPE
    )


def test_poisson_integrals_hold_for_counts_of_any_size() -> None:
    compare(lk.Poisson(), poisson_cases(), poisson_exact, torch.float64, nats=NATS, slope=SLOPE)


def test_bernoulli_integrals_hold_for_any_width_of_q() -> None:
    compare(lk.Bernoulli(), bernoulli_cases(), bernoulli_exact, torch.float64, nats=1e-7, slope=1e-6)


def test_float32_keeps_most_of_it() -> None:
    """Values to 2e-5 of themselves, gradients to two per cent: y - e^f is the difference of numbers of seven digits."""
    options = {"nats": 2e-5, "slope": 2e-2, "share": 0.1}
    compare(student(), student_cases(4.0), lambda *c: student_exact(4.0, *c), torch.float32, **options)
    compare(lk.Poisson(), [c for c in poisson_cases() if c[2] < 1e4], poisson_exact, torch.float32, **options)
    compare(lk.Bernoulli(), bernoulli_cases(), bernoulli_exact, torch.float32, **options)


def test_the_dense_oracle_equals_mpmath() -> None:
    """Thirty digits and adaptive subdivision, at the widest and the narrowest q of each likelihood."""
    mpmath.mp.dps = 30

    def exact(log_p, mean: float, var: float, splits: list[float]) -> tuple[float, float]:
        def q(f):
            return mpmath.exp(-((f - mean) ** 2) / (2 * var)) / mpmath.sqrt(2 * mpmath.pi * var)

        density = mpmath.quad(lambda f: q(f) * mpmath.exp(log_p(f)), splits)
        return float(mpmath.log(density)), float(mpmath.quad(lambda f: q(f) * log_p(f), splits))

    def splits(*centres: tuple[float, float]) -> list[float]:
        away = (0, 0.5, 1, 2, 4, 8, 16, 40, 100, 300, 1000)
        low, high = centres[0][0] - 40 * centres[0][1], centres[0][0] + 40 * centres[0][1]
        points = {c + sign * a * w for c, w in centres for a in away for sign in (-1, 1)}
        return sorted({low, high, *(p for p in points if low < p < high)})

    df, s = 4.0, math.sqrt(SCALE)
    constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * math.log(df * math.pi * SCALE)
    for var, y in ((1e-4, 2.0), (1e6 * SCALE, 900.0)):
        oracle = student_exact(df, 0.3, var, y)
        points = splits((0.3, math.sqrt(var)), (y, s))
        value = exact(
            lambda f, y=y: constant - (df + 1) / 2 * mpmath.log(1 + (y - f) ** 2 / (df * SCALE)), 0.3, var, points
        )
        np.testing.assert_allclose((oracle.predictive, oracle.expected), value, rtol=1e-10)
    for mean, var, y in ((4.0, 1.0, 30), (6.0, 9.0, 0), (10.0, 9.0, 5000)):
        oracle = poisson_exact(mean, var, y)
        points = splits((mean, math.sqrt(var)), (math.log(y + 0.5), 1 / math.sqrt(y + 1)))
        value = exact(lambda f, y=y: y * f - mpmath.exp(f) - mpmath.loggamma(y + 1), mean, var, points)
        np.testing.assert_allclose(oracle.predictive, value[0], rtol=1e-10)
    for mean, var in ((-50.0, 1000.0), (3.0, 100.0)):
        oracle = bernoulli_exact(mean, var, 1.0)
        value = exact(lambda f: -mpmath.log(1 + mpmath.exp(-f)), mean, var, splits((mean, math.sqrt(var)), (0.0, 1.0)))
        np.testing.assert_allclose((oracle.predictive, oracle.expected), value, rtol=1e-10)


# What was wrong before -----------------------------------------------------------------------------------------------


def test_the_sign_of_a_gradient_is_right() -> None:
    """Student-t of squared scale 0.1 under a q of variance 1: 32 Gauss-Hermite nodes gave -0.074 here."""
    p = lk.StudentT(0.1).double()
    mean = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    value = p.log_predictive(
        Normal(mean, torch.ones(1, 1, dtype=torch.float64)), torch.tensor([0.2], dtype=torch.float64)
    )
    assert torch.autograd.grad(value.sum(), mean)[0].item() == pytest.approx(0.1735, abs=1e-3)


@pytest.mark.parametrize("df", [3.0, 4.0, 30.0])
@pytest.mark.parametrize("ratio", [1e-4, 1.0, 100.0, 1e6])
def test_student_t_distribution_function_and_quantiles(df, ratio) -> None:
    """Against dense quadrature of SciPy's, and back: the quantile of that probability is the point again."""
    p, mean, var = student(df).double(), 0.3, ratio * SCALE
    sd, s = math.sqrt(var), math.sqrt(SCALE)
    q = Normal(torch.full((1, 1), mean, dtype=torch.float64), torch.full((1, 1), var, dtype=torch.float64))
    prediction = RealPrediction(q, p, *(t.detach() for t in p.predict(q)))
    for away in (-30.0, -3.0, -0.7, 0.0, 0.2, 2.0, 8.0):
        y = mean + away * math.sqrt(var + SCALE)
        f, w = panels([(mean, sd), (y, s)], mean - 40 * sd, mean + 40 * sd)
        exact = float((w * stats.norm.pdf(f, mean, sd) * stats.t.cdf(y, df, f, s)).sum())
        assert prediction.cdf(torch.tensor([y])).item() == pytest.approx(exact, rel=1e-6, abs=1e-9)
        if 0.01 < exact < 0.99:
            assert prediction.quantile(exact).item() == pytest.approx(y, abs=1e-4 * math.sqrt(var + SCALE))


def test_a_quantile_between_two_nodes_of_the_old_rule() -> None:
    """Student-t at v / sigma^2 = 100: the 55 % quantile was 0.198."""
    p = lk.StudentT(0.01).double()
    q = Normal(torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    prediction = RealPrediction(q, p, *(t.detach() for t in p.predict(q)))
    assert prediction.quantile(0.55).item() == pytest.approx(0.127, abs=5e-4)


@pytest.mark.parametrize(
    ("mean", "var"), [(-5, 0.01), (-5, 9), (0, 1e-6), (0, 1), (2, 4), (4, 1), (6, 1), (10, 1e-3), (10, 9)]
)
def test_poisson_distribution_function(mean, var) -> None:
    """Against dense quadrature of SciPy's, from none to far above the mean."""
    sd = math.sqrt(var)
    counts = {0, 1, 5, *(round(math.exp(mean + z * sd)) for z in (-2, -1, 0, 1, 2, 3))}
    q = Normal(
        torch.full((1, 1), float(mean), dtype=torch.float64), torch.full((1, 1), float(var), dtype=torch.float64)
    )
    for y in counts:
        f, w = panels([(mean, sd), (math.log(y + 1), 1 / math.sqrt(y + 1))], mean - 14 * sd, mean + 14 * sd)
        exact = float((w * stats.norm.pdf(f, mean, sd) * stats.poisson.cdf(y, np.exp(f))).sum())
        at = torch.tensor([y + 0.5], dtype=torch.float64)
        assert lk.Poisson().predictive_cdf(q, at).item() == pytest.approx(exact, abs=1e-6)


# What must hold for every input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "p", [student(), lk.Poisson(), lk.Bernoulli(), lk.Gaussian(SCALE)], ids=lambda p: type(p).__name__
)
@given(mean=st.floats(-300, 300), log_var=st.floats(-40, 10), y=st.integers(0, 1_000_000))
def test_values_and_gradients_are_finite_whatever_q(p, dtype, mean, log_var, y) -> None:
    """Means far beyond any data, variances from none to e^10."""
    y = y % 2 if isinstance(p, lk.Bernoulli) else y
    for result in found(p.to(dtype), [(mean, math.exp(log_var), y), (mean, 0.0, y)], dtype):
        assert np.isfinite(result).all()


@given(mean=st.floats(-20, 20), log_var=st.floats(-20, 7))
def test_the_two_probabilities_of_bernoulli_add_up_to_one(mean, log_var) -> None:
    q = Normal(
        torch.full((1, 1), mean, dtype=torch.float64), torch.full((1, 1), math.exp(log_var), dtype=torch.float64)
    )
    log_p = [lk.Bernoulli().log_predictive(q, torch.tensor([y])).item() for y in (0, 1)]
    assert math.exp(log_p[0]) + math.exp(log_p[1]) == pytest.approx(1.0, abs=1e-9)
    np.testing.assert_allclose(lk.Bernoulli().predict(q)[0], np.exp(log_p), atol=1e-9)


@given(log_a=st.floats(-30, 30), log_p=st.floats(-30, 30))
def test_reach_is_not_short_and_not_much_too_far(log_a, log_p) -> None:
    """Left and right, the exponent has risen to what is negligible, and to no more than a few times that."""
    a, p = (torch.tensor(math.exp(x), dtype=torch.float64) for x in (log_a, log_p))

    def exponent(x: Tensor) -> float:
        return (a * (torch.expm1(x) - x) + p * x * x / 2).item()

    left, right = quadrature.reach(a, p)
    assert left.item() < 0 < right.item()
    for x in (left, right):
        assert quadrature.NEGLIGIBLE * (1 - 1e-6) <= exponent(x) <= 4 * quadrature.NEGLIGIBLE


def test_integrals_can_be_differentiated_twice() -> None:
    """GP+MAML descends on the bound and is then differentiated through the descent."""
    for p, y in ((student(), 1.3), (lk.Poisson(), 4.0), (lk.Bernoulli(), 1)):
        p, y = p.double(), torch.tensor([y], dtype=None if isinstance(p, lk.Bernoulli) else torch.float64)

        def both(mean: Tensor, var: Tensor, p=p, y=y) -> Tensor:
            q = Normal(mean, var)
            return p.expected_log_prob(q, y) + p.log_predictive(q, y)

        at = [torch.tensor([[x]], dtype=torch.float64, requires_grad=True) for x in (0.4, 0.9)]
        assert torch.autograd.gradcheck(both, at) and torch.autograd.gradgradcheck(both, at)
