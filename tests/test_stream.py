"""A million points: predictions of a float32 model agree with a float64 batch solution, and nothing grows."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from metavib import kernels, likelihoods
from metavib.adapt.learner import Learner
from metavib.adapt.predictor import Memorised
from metavib.encoders import ExactSites, FullSites, SimplifiedSites
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import MLP

M = 20
MILLION = 1_000_000


def model(dtype: torch.dtype, *, classes: int = 0) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sites = FullSites(M) if classes else ExactSites()
        likelihood = likelihoods.Softmax(classes) if classes else likelihoods.Gaussian(0.1)
        return gp_vib(MLP(1, (M, M), reach=5.0), kernels.Linear(bias=True), sites, likelihood).to(dtype)


def stream(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A wave on a slope, with noise, far from zero mean."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-5, 5, n)
    return torch.as_tensor(x), torch.as_tensor(np.sin(x) + 0.2 * x + 3.0 + 0.3 * rng.normal(size=n))


def in_batches(learner: Learner, x: Tensor, y: Tensor, size: int) -> Memorised:
    task = learner.adapt((x[:0], y[:0]))
    for start in range(0, len(x), size):
        task = task.update((x[start : start + size], y[start : start + size]))
    assert isinstance(task, Memorised)
    return task


def batch_solution(double: Model, x: Tensor, y: Tensor, x_v: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f in NumPy, float64: one least-squares problem over all points, never squared to Z'Z.

    (A + I)^-1 b solves min |Z w - y|^2 / s + |w|^2; its QR factor gives the variance.
    """
    learner = Learner(double)
    z, z_v = (double.prior.kernel.embed(learner.trained.features(t[:, None])).detach().numpy() for t in (x, x_v))
    s = float(double.likelihood.noise().detach())
    rows = np.concatenate([z / s**0.5, np.eye(z.shape[1])])
    Q, R = np.linalg.qr(rows)
    w = np.linalg.solve(R, Q.T @ np.concatenate([y.numpy() / s**0.5, np.zeros(z.shape[1])]))
    half = np.linalg.solve(R.T, z_v.T)
    return z_v @ w, (half**2).sum(0)


@pytest.fixture(scope="module")
def million() -> tuple[Tensor, Tensor]:
    return stream(MILLION)


def test_a_million_points_in_float32_agree_with_the_float64_batch_solution(million) -> None:
    """In 1,000 updates. Rounding of the features is all that is left; a memory in float32 would be off by percents."""
    x, y = million
    x_v = torch.linspace(-6, 6, 50, dtype=torch.float64)
    task = in_batches(Learner(model(torch.float32)), x, y, 1000)
    found = task.predict(x_v)
    mean, var = batch_solution(model(torch.float64), x, y, x_v)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.q.var[:, 0], var, rtol=1e-4)
    assert bool((found.q.var > 0).all())
    assert task.n == MILLION


def test_a_million_points_in_float64_agree_to_nine_digits(million) -> None:
    x, y = million
    x_v = torch.linspace(-6, 6, 50, dtype=torch.float64)
    found = in_batches(Learner(model(torch.float64)), x, y, 8192).predict(x_v)
    mean, var = batch_solution(model(torch.float64), x, y, x_v)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.q.var[:, 0], var, rtol=1e-7)


def test_single_points_are_not_lost_on_a_memory_of_a_million() -> None:
    """20,000 updates after 2^20 points: in float32 four bits of each would be left."""
    one = total = Learner(model(torch.float32)).adapt(stream(1)).memory
    for _ in range(20):
        total = total + total  # exact
    for _ in range(20_000):
        total = total + one
    for found, expected in zip(total.sums, one.sums, strict=True):
        assert_close(found, (2**20 + 20_000) * expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_point_by_point_equals_the_batch(dtype) -> None:
    """3,000 updates of one point; variances shrink, and are never negative on the way."""
    x, y = stream(3000)
    learner = Learner(model(dtype))
    x_v = torch.linspace(-6, 6, 20)
    task = learner.adapt((x[:0], y[:0]))
    before = task.predict(x_v).q.var
    for i in range(3000):
        task = task.update((x[i : i + 1], y[i : i + 1]))
        if i % 300 == 0:
            now = task.predict(x_v).q.var
            assert bool((now >= 0).all()) and bool((now <= before * (1 + 1e-9)).all())
            before = now
    found, mean_var = task.predict(x_v), batch_solution(model(torch.float64), x, y, x_v.double())
    tol = 1e-3 if dtype == torch.float32 else 1e-9
    np.testing.assert_allclose(found.mean, mean_var[0], rtol=tol, atol=tol)
    np.testing.assert_allclose(found.q.var[:, 0], mean_var[1], rtol=max(tol, 1e-7))


def test_a_classifier_streams_as_it_adapts() -> None:
    """100,000 points of four classes, the last of which appears half way."""
    x, y = stream(100_000)
    labels = torch.bucketize(y, torch.tensor([2.0, 3.0, 4.0]))
    labels[:50_000].clamp_(max=2)
    learner = Learner(model(torch.float32, classes=4))
    task = in_batches(learner, x, labels, 5000)
    double = Learner(model(torch.float64, classes=4)).adapt((x, labels))
    x_v = torch.linspace(-5, 5, 20)
    assert task.classes == (0, 1, 2, 3)
    assert_close(task.predict(x_v).probabilities, double.predict(x_v).probabilities, rtol=1e-3, atol=1e-3)


class Operations(TorchDispatchMode):
    """Every tensor operation and the sizes it works on: cost without a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, tuple[torch.Size, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        flat = [a for arg in args for a in (arg if isinstance(arg, list | tuple) else (arg,))]
        self.done.append((str(func), tuple(a.shape for a in flat if isinstance(a, Tensor))))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("classes", [0, 3])
def test_the_cost_of_an_update_and_of_a_prediction_does_not_grow(classes) -> None:
    """The very same operations on tensors of the very same sizes after ten points and after a hundred thousand."""
    learner = Learner(model(torch.float32, classes=classes))
    x, y = stream(100_000)
    y = torch.arange(100_000) % classes if classes else y
    costs = []
    for n in (10, 100_000):
        task = learner.adapt((x[:n], y[:n]))
        sizes = [t.numel() for t in (*task.memory.sums, task.memory.counts)]
        with Operations() as update:
            later = task.update((x[:1], y[:1]))
        with Operations() as first:
            later.predict(x[:5])
        with Operations() as second:
            later.predict(x[:5])
        costs.append((sizes, update.done, first.done, second.done))
    assert costs[0] == costs[1]
    sizes, update, first, second = costs[0]
    columns = classes or 1
    assert sum(sizes) == (M + 1) ** 2 + (M + 1) * columns + columns + 2 + classes
    # The factorisation waits for a prediction, and is done once.
    factorised = [sum("cholesky" in name for name, _ in done) for done in (update, first, second)]
    assert factorised == [0, 1, 0]


def test_sites_of_a_stream_may_differ_from_point_to_point() -> None:
    """Simplified sites: all the same; full sites: each its own. Both stream."""
    x, y = stream(2000)
    labels = (y > 3).long()
    for sites in (SimplifiedSites(), FullSites(M)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            built = gp_vib(MLP(1, (M, M)), kernels.Cosine(), sites, likelihoods.Bernoulli()).double()
        learner = Learner(built)
        found, once = in_batches(learner, x, labels, 7), learner.adapt((x, labels))
        assert_close(found.predict(x[:9]).probabilities, once.predict(x[:9]).probabilities, rtol=1e-9, atol=1e-9)
