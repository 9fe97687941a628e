"""Tasks from a known GP: drawn from it, and carrying the density no predictor can beat."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

from metavib.random import seeded
from metavib.tasks.gaussian import GaussianTasks
from metavib.tasks.task import select

SKLEARN = {
    "rbf": RBF(0.5),
    "matern32": Matern(0.5, nu=1.5),
    "matern52": Matern(0.5, nu=2.5),
    "linear": ConstantKernel(0.5) * DotProduct(1.0),  # (x x' + 1) / M with M = 2: the bias feature counts
}


@pytest.mark.parametrize("kernel", SKLEARN)
def test_the_optimum_is_the_exact_gps_predictive_density(kernel):
    """Against scikit-learn's regressor under the same kernel and noise, and SciPy's normal density."""
    source = GaussianTasks(kernel=kernel, noise=0.04, shots=6, queries=5)
    tasks = source.sample((4,), seeded(0)).to(torch.float64)
    found = source.optimum(tasks)
    for t in range(4):
        (x, y, _), query = (tuple(a.numpy() for a in side) for side in select(tasks, t))
        gp = GaussianProcessRegressor(SKLEARN[kernel], alpha=0.04, optimizer=None).fit(x, y)
        mean, std = gp.predict(query[0], return_std=True)
        expected = stats.norm.logpdf(query[1], mean, np.sqrt(std**2 + 0.04))
        np.testing.assert_allclose(found[t].numpy(), expected, atol=1e-6)  # the lengthscale is a float32


@pytest.mark.parametrize("kernel", SKLEARN)
def test_outputs_have_the_covariance_of_the_process(kernel):
    """Whitened by the covariance of their own inputs, the outputs are standard normal (a test of 4000 numbers)."""
    source = GaussianTasks(kernel=kernel, noise=0.1, shots=4, queries=4)
    tasks = source.sample((500,), seeded(1))
    x = torch.cat([tasks.support.x, tasks.query.x], -2).double().numpy()
    y = torch.cat([tasks.support.y, tasks.query.y], -1).double().numpy()
    roots = np.linalg.cholesky(np.stack([SKLEARN[kernel](a) for a in x]) + 0.1 * np.eye(8))
    white = np.linalg.solve(roots, y[..., None])
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest((x.ravel() + 2) / 4, "uniform").pvalue > 1e-3


def test_masked_support_points_do_not_count():
    """The optimum of a ragged task is that of the task with its real points alone."""
    source = GaussianTasks(shots=7, queries=5, min_shots=0)
    tasks = source.sample((20,), seeded(2))
    counts = tasks.support.mask.sum(-1)
    assert counts.min() < 3 and counts.max() > 5
    best = source.optimum(tasks)
    for t in range(20):
        one = select(tasks, t)
        alone = one._replace(support=type(one.support)(*(a[: counts[t]] for a in one.support)))
        torch.testing.assert_close(source.optimum(alone), best[t], rtol=1e-9, atol=1e-9)


def test_with_no_support_the_optimum_is_the_prior():
    source = GaussianTasks(kernel="matern32", noise=0.3, shots=0, queries=6)
    tasks = source.sample((3,), seeded(3))
    expected = stats.norm.logpdf(tasks.query.y.double().numpy(), 0, np.sqrt(1.3))
    np.testing.assert_allclose(source.optimum(tasks).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("kernel", SKLEARN)
def test_wrong_hyperparameters_are_worse_on_average(kernel):
    """The gap of another process to the true one is a KL divergence: positive in expectation."""
    source = GaussianTasks(kernel=kernel, noise=0.05, shots=6, queries=5)
    tasks = source.sample((400,), seeded(4))
    best = source.optimum(tasks).mean()
    wrong = [GaussianTasks(kernel=kernel, noise=0.3), GaussianTasks(kernel=kernel, noise=0.005)]
    if kernel != "linear":
        wrong.append(GaussianTasks(kernel=kernel, noise=0.05, lengthscale=1.5))
    assert all(best > other.optimum(tasks).mean() + 0.01 for other in wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "cosine"}, "kernel must be one of rbf"),
        ({"noise": 0.0}, "noise variance must be positive; got 0.0"),
        ({"noise": float("nan")}, "noise variance must be positive"),
        ({"shots": -1}, "shots >= 0"),
        ({"queries": 0}, "queries >= 1"),
        ({"shots": 3, "min_shots": 4}, "min_shots must lie in"),
        ({"min_shots": -1}, "min_shots must lie in"),
    ],
)
def test_a_process_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GaussianTasks(**options)


def test_the_same_stream_gives_the_same_tasks_and_shapes_are_as_asked():
    source = GaussianTasks(shots=3, queries=4)
    a, b = source.sample((2, 3), seeded(5)), source.sample((2, 3), seeded(5))
    assert all(torch.equal(s, t) for x, y in zip(a, b, strict=True) for s, t in zip(x, y, strict=True))
    assert a.support.x.shape == (2, 3, 3, 1) and a.query.y.shape == (2, 3, 4)
    assert source.sample((), seeded(5)).support.y.shape == (3,)
