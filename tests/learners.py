"""Small GP-VIBs with random weights, points for them to learn, and what they predict, compared."""

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

import cases
from metavib import kernels, likelihoods
from metavib.adapt.predictor import Predictor
from metavib.encoders import ExactSites, SimplifiedSites
from metavib.likelihoods.prediction import ClassPrediction, RealPrediction
from metavib.methods import gp_vib
from metavib.model import Model

DTYPES = (torch.float32, torch.float64)
WAYS = 4


def model(
    likelihood: likelihoods.Likelihood | None = None, *, sites=None, kernel=None, dtype: torch.dtype = torch.float64
) -> Model:
    """A small GP-VIB with random weights, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kernel = kernels.Linear(bias=True) if kernel is None else kernel
        default = ExactSites() if likelihood is None else SimplifiedSites(m=1.3, s=0.5)
        built = gp_vib(cases.backbone(), kernel, sites or default, likelihood or likelihoods.Gaussian(0.3))
        return built.to(dtype)


def softmax(sites=None, **options) -> Model:
    return model(likelihoods.Softmax(WAYS), sites=sites, **options)


def points(n: int, *, seed: int = 0, classes: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and real outputs, or labels."""
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.normal(size=(n, cases.INPUTS)))
    return x, torch.as_tensor(rng.integers(0, classes, n) if classes else rng.normal(size=n))


def same(a: Predictor, b: Predictor, *, tol: float = 1e-10) -> None:
    """Predictions agree, columns matched by label."""
    x, _ = points(6, seed=99)
    p, q = a.predict(x), b.predict(x)
    assert a.n == b.n
    if isinstance(p, RealPrediction):
        assert isinstance(q, RealPrediction)
        assert_close(p.mean, q.mean, rtol=tol, atol=tol)
        assert_close(p.variance, q.variance, rtol=tol, atol=tol)
        return
    assert isinstance(q, ClassPrediction)
    assert set(p.classes) == set(q.classes)
    order = [q.classes.index(k) for k in p.classes]
    assert_close(p.probabilities, q.probabilities[:, order], rtol=tol, atol=tol)
    assert p.labels == q.labels
