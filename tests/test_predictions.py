"""What a task predicts: means, variances, intervals and probabilities, those of the model itself and of SciPy."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import cases
import oracles
from learners import DTYPES, model, points, same, softmax
from metavib import kernels, likelihoods
from metavib.adapt.learner import Learner
from metavib.encoders import ExactSites
from metavib.likelihoods.prediction import RealPrediction
from metavib.methods import gp_vib
from metavib.networks import MLP
from metavib.priors import FunctionPrior
from metavib.random import seeded
from metavib.tasks import Task, examples
from metavib.tasks.inputs import Inputs


@pytest.mark.parametrize("case", cases.MODELS, ids=repr)
def test_predictions_are_the_models_own(case) -> None:
    """Adapt and predict = the likelihood's predictions from the model's marginals, for every method."""
    built = cases.build(case).eval()
    task = cases.tasks(built.likelihood, n=7, v=5)
    if isinstance(built.likelihood, likelihoods.Poisson):  # the learner takes counts in the model's precision
        task = Task(task.support._replace(y=task.support.y.double()), task.query)
    softmax = isinstance(built.likelihood, likelihoods.Softmax)
    learner = Learner(built, samples=4000)
    classes = range(cases.CLASSES) if softmax else None
    if softmax:  # of a class without points the learner knows the prior alone
        task = Task(task.support._replace(y=torch.arange(7) % cases.CLASSES), task.query)
    found = learner.adapt(task.support, classes=classes).predict(task.query.x)
    noise = seeded(40)
    if softmax and isinstance(learner.trained.model.prior, FunctionPrior):
        noise = learner.trained.base_samples(tuple(range(cases.CLASSES)))
        built.likelihood.samples = 4000
    with torch.no_grad():
        q = built(task, noise)
        expected = built.likelihood.predict(q, noise)
    if isinstance(found, RealPrediction):
        assert_close(found.mean, expected[0], rtol=1e-9, atol=1e-9)
        assert_close(found.variance, expected[1], rtol=1e-9, atol=1e-9)
    else:
        assert_close(found.probabilities, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_regression_equals_the_dense_oracle(dtype) -> None:
    learner = Learner(model(dtype=dtype))
    (x, y), (x_v, _) = points(9), points(4, seed=1)
    found = learner.adapt((x, y)).predict(x_v)
    prior = learner.trained.model.prior
    with torch.no_grad():
        phi = [prior.network(Inputs(t.to(dtype), torch.ones(len(t), dtype=torch.bool), 0)) for t in (x, x_v)]
    phi, phi_v = (oracles.append_one(t.double().numpy()) for t in phi)
    k = oracles.linear()
    mean, var = oracles.marginals(
        oracles.pairwise(k, phi, phi),
        oracles.pairwise(k, phi_v, phi),
        np.array([k(f, f) for f in phi_v]),
        y.numpy()[:, None],
        np.full(9, 0.3),
    )
    tol = 1e-6 if dtype == torch.float32 else 1e-7  # the noise is born in float32 from softplus
    assert_close(found.mean, torch.as_tensor(mean[:, 0]), rtol=tol, atol=tol)
    assert_close(found.variance, torch.as_tensor(var + 0.3), rtol=tol, atol=tol)
    assert found.mean.dtype == torch.float64


def test_without_points_the_prediction_is_the_prior() -> None:
    x, _ = points(5)
    found = Learner(model()).adapt((x[:0], torch.zeros(0))).predict(x)
    assert_close(found.mean, torch.zeros(5, dtype=torch.float64))
    assert bool((found.variance > 0.3).all())


def test_masked_points_do_not_count() -> None:
    learner, (x, y) = Learner(model()), points(6)
    padded = examples(x, y, torch.tensor([True, True, False, True, False, False]))
    same(learner.adapt(padded), learner.adapt((x[[0, 1, 3]], y[[0, 1, 3]])))


def test_identity_features_serve_given_embeddings() -> None:
    """No hidden layer: the kernel on the inputs themselves, a linear regression."""
    with torch.random.fork_rng():
        built = gp_vib(MLP(2, ()), kernels.Linear(), ExactSites(), likelihoods.Gaussian(0.1)).double()
    x, y = points(20)
    w = torch.linalg.solve(x.T @ x / 2 / 0.1 + torch.eye(2), x.T / 2**0.5 @ y / 0.1)
    found = Learner(built).adapt((x, y)).predict(x)
    assert_close(found.mean, x / 2**0.5 @ w, rtol=1e-6, atol=1e-6)


# Distributions


LEVELS = (0.5, 0.9, 0.99)


def test_gaussian_intervals_are_those_of_scipy() -> None:
    found = Learner(model()).adapt(points(8)).predict(points(6, seed=1)[0])
    normal = stats.norm(found.mean.numpy(), found.variance.sqrt().numpy())
    for level in LEVELS:
        low, high = found.interval(level)
        np.testing.assert_allclose(low, normal.interval(level)[0], rtol=1e-10)
        np.testing.assert_allclose(high, normal.interval(level)[1], rtol=1e-10)


def latent(found: RealPrediction) -> np.ndarray:
    """20,000 quantiles of q(f) at the first point: a dense sum over f."""
    mean, sd = float(found.q.mean[0, 0]), float(found.q.var[0, 0]) ** 0.5
    return stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000, mean, sd)


@pytest.mark.parametrize("level", LEVELS)
def test_student_t_and_poisson_intervals_hold_their_level(level) -> None:
    """Against a mixture of SciPy's distributions over 20,000 quantiles of q(f)."""
    (x, y), (x_v, _) = points(8), points(3, seed=1)
    heavy = Learner(model(likelihoods.StudentT(0.4))).adapt((x, y)).predict(x_v)
    sides = (1 - level) / 2, (1 + level) / 2
    for y_p, p in zip(heavy.interval(level), sides, strict=True):
        assert stats.t.cdf(float(y_p[0]), 4.0, latent(heavy), 0.4**0.5).mean() == pytest.approx(p, abs=1e-4)
    counts = Learner(model(likelihoods.Poisson())).adapt((x, y.abs().round())).predict(x_v)
    rates = np.exp(latent(counts))
    upto = stats.poisson.cdf(np.arange(100)[:, None], rates).mean(1)
    for p in sides:
        k = int(counts.quantile(p)[0])
        assert k == float(counts.quantile(p)[0]) and upto[k] >= p > (upto[k - 1] if k else 0)
    middle = (upto + np.append(0, upto[:-1])) / 2  # mid-P values
    inside = np.flatnonzero((sides[0] <= middle) & (middle <= sides[1]))
    assert [float(end[0]) for end in counts.interval(level)] == [inside[0], inside[-1]]


def test_intervals_cover_as_often_as_they_say() -> None:
    """Functions and outputs drawn from the model itself: 2,000 tasks, one query point each."""
    learner = Learner(model(dtype=torch.float64))
    rng = np.random.default_rng(0)
    x, _ = points(6)
    z = learner.trained.model.prior.kernel.embed(learner.trained.features(x)).detach().numpy()
    inside = {level: 0 for level in LEVELS}
    for _ in range(2000):
        y = z @ rng.normal(size=z.shape[1]) + rng.normal(size=6) * 0.3**0.5
        found = learner.adapt((x[:5], y[:5])).predict(x[5:])
        for level in LEVELS:
            low, high = found.interval(level)
            inside[level] += bool(low <= y[5] <= high)
    for level in LEVELS:
        assert inside[level] / 2000 == pytest.approx(level, abs=4 * (level * (1 - level) / 2000) ** 0.5)


def test_quantiles_of_point_and_sampled_posteriors() -> None:
    """MAML: a Gaussian round one value; stochastic MAML: a mixture whose distribution function is met."""
    (x, y), (x_v, _) = points(8), points(3, seed=1)
    by_name = {repr(case): case for case in cases.MODELS}
    found = Learner(cases.build(by_name["maml Gaussian"])).adapt((x, y)).predict(x_v)
    expected = stats.norm.ppf(0.9, found.mean.numpy(), found.variance.sqrt().numpy())
    np.testing.assert_allclose(found.quantile(0.9), expected, rtol=1e-9)
    found = Learner(cases.build(by_name["stochastic-maml Gaussian"])).adapt((x, y)).predict(x_v)
    sd = float(found.likelihood.noise().detach()) ** 0.5
    mixed = stats.norm.cdf(found.quantile(0.9).numpy()[None], found.q.f[..., 0].numpy(), sd).mean(0)
    np.testing.assert_allclose(mixed, 0.9, rtol=1e-9)


def test_levels_outside_0_and_1_are_refused() -> None:
    found = Learner(model()).adapt(points(3)).predict(points(2)[0])
    for level in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="between 0 and 1; got"):
            found.interval(level)
    with pytest.raises(ValueError, match="probability between 0 and 1"):
        found.quantile(1.0)


def test_class_probabilities_and_entropy() -> None:
    """Softmax: Monte Carlo within its error of a long one. Bernoulli: SciPy's integral. Entropy: SciPy's."""
    (x, y), (x_v, _) = points(12, classes=3), points(4, seed=1)
    learner = Learner(softmax())
    task = learner.adapt((x, y))
    found, q = task.predict(x_v), learner.trained.marginals(task.posterior, x_v)
    f = q.mean + q.var.sqrt() * torch.randn(200_000, 4, 3, generator=seeded(1), dtype=torch.float64)
    assert_close(found.probabilities, f.softmax(-1).mean(0), rtol=0, atol=0.03)
    assert_close(found.probabilities.sum(-1), torch.ones(4, dtype=torch.float64))
    np.testing.assert_allclose(found.entropy, stats.entropy(found.probabilities.numpy(), axis=-1), rtol=1e-12)
    binary = Learner(model(likelihoods.Bernoulli()))
    two = binary.adapt((x, y > 0))
    found, q = two.predict(x_v), binary.trained.marginals(two.posterior, x_v)
    grid = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    for i in range(4):
        f = float(q.mean[i, 0]) + float(q.var[i, 0]) ** 0.5 * grid
        assert float(found.probabilities[i, 1]) == pytest.approx((1 / (1 + np.exp(-f))).mean(), abs=1e-5)
        assert found.labels[i] == int(found.probabilities[i, 1] > 0.5)
    certain = Learner(softmax()).adapt((x, ["only"] * 12)).predict(x_v)
    assert certain.labels == ["only"] * 4 and bool((certain.probabilities == 1).all())
    assert bool((certain.entropy == 0).all())


def test_a_prediction_depends_on_its_own_point_alone_and_is_always_the_same() -> None:
    learner, (x, y) = Learner(softmax()), points(12, classes=3)
    task = learner.adapt((x, y))
    together = task.predict(x).probabilities
    assert torch.equal(together, learner.adapt((x, y)).predict(x).probabilities)
    alone = torch.cat([task.predict(x[i : i + 1]).probabilities for i in range(12)])
    assert_close(together, alone, rtol=1e-12, atol=1e-12)


def test_long_queries_and_supports_go_through_in_parts(monkeypatch) -> None:
    """Memory is bounded, and the parts are not to be seen in the result."""
    learner, (x, y) = Learner(softmax()), points(30, classes=3)
    whole = learner.adapt((x, y))
    expected = whole.predict(x).probabilities
    monkeypatch.setattr("metavib.adapt.trained.PASS", 8)
    parts = learner.adapt((x, y))
    same(parts, whole)
    assert_close(parts.predict(x).probabilities, expected, rtol=1e-10, atol=1e-10)
