"""Kernels on features, against loops over pairs of points."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import oracles
from metavib import kernels
from metavib.tasks.inputs import Inputs

V, ELL = 0.3, 0.7


def build(kernel: type, **options) -> kernels.Kernel:
    k = (kernel(ELL, **options) if issubclass(kernel, kernels.Stationary) else kernel(**options)).double()
    torch.nn.init.constant_(k.log_scale, V)
    return k


def oracle(kernel: type, k: kernels.Kernel):
    if issubclass(kernel, kernels.Stationary):
        ell = float(k.lengthscale().detach())
        name = {kernels.RBF: "rbf", kernels.Matern32: "matern32", kernels.Matern52: "matern52"}[kernel]
        return getattr(oracles, name)(ell, V)
    return (oracles.linear if kernel is kernels.Linear else oracles.cosine)(V)


ALL = [kernels.Linear, kernels.Cosine, kernels.RBF, kernels.Matern32, kernels.Matern52]


@pytest.mark.parametrize("kernel", ALL)
@given(
    n=st.integers(0, 6),
    v=st.integers(0, 4),
    m=st.integers(1, 5),
    bias=st.booleans(),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 999),
)
def test_gram_and_diagonal_equal_loops_over_pairs(kernel, n, v, m, bias, scale, seed) -> None:
    rng = np.random.default_rng(seed)
    a, b = scale * rng.normal(size=(n, m)), scale * rng.normal(size=(v, m))
    k = build(kernel, bias=bias)
    z, z2 = k.embed(torch.as_tensor(a)), k.embed(torch.as_tensor(b))
    if bias:  # in r the constant cancels; for the others it is one more feature
        a, b = oracles.append_one(a), oracles.append_one(b)
    of_pair = oracle(kernel, k)
    tol = dict(rtol=1e-8, atol=1e-9)
    assert_close(k.gram(z, z2), torch.as_tensor(oracles.pairwise(of_pair, a, b)), **tol)
    assert_close(k.diagonal(z), torch.as_tensor(np.array([of_pair(x, x) for x in a], dtype=float)), **tol)
    assert_close(k.gram(z, z).diagonal(dim1=-2, dim2=-1), k.diagonal(z), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kernel", ALL)
@given(batch=st.sampled_from([(2,), (2, 3)]), seed=st.integers(0, 99))
def test_batched_equals_looped(kernel, batch, seed) -> None:
    phi = torch.as_tensor(np.random.default_rng(seed).normal(size=(*batch, 4, 3)))
    k = build(kernel)
    K = k.gram(k.embed(phi), k.embed(phi))
    for i in np.ndindex(*batch):
        assert_close(K[i], k.gram(k.embed(phi[i]), k.embed(phi[i])))


@pytest.mark.parametrize("kernel", [kernels.Linear, kernels.Cosine])
def test_scale_is_fixed_where_asked(kernel) -> None:
    """Sines: v = 0 and not learned."""
    k = kernel(learn_scale=False)
    assert [p.requires_grad for p in k.parameters()] == [False]
    assert float(k.log_scale) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosine_ignores_the_magnitude_of_features(dtype) -> None:
    """From 1e-30 to 1e30, in float32 too; all-zero features are uncorrelated with anything, themselves included."""
    rng = np.random.default_rng(0)
    phi = torch.as_tensor(rng.normal(size=(3, 4)), dtype=dtype)
    k = kernels.Cosine().to(dtype)
    z = k.embed(phi)
    for magnitude in (1e-30, 1e30):
        assert_close(k.embed(phi * magnitude), z)
    zero = k.embed(torch.zeros(2, 4, dtype=dtype))
    assert not bool(k.gram(zero, z).any()) and not bool(k.diagonal(zero).any())
    biased = kernels.Cosine(bias=True).to(dtype)
    assert_close(biased.diagonal(biased.embed(torch.zeros(2, 4, dtype=dtype))), torch.ones(2, dtype=dtype))


@pytest.mark.parametrize("kernel", ALL)
def test_gradients_are_finite_where_features_vanish_or_coincide(kernel) -> None:
    """First and second order: gradient encoders differentiate twice."""
    phi = torch.zeros(4, 3, dtype=torch.float64)
    phi[2:] = 1.0
    phi.requires_grad_()
    k = build(kernel)
    z = k.embed(phi)
    (first,) = torch.autograd.grad((k.gram(z, z) * torch.arange(16.0).reshape(4, 4)).sum(), phi, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), phi)
    assert bool(first.isfinite().all()) and bool(second.isfinite().all())


def test_batch_norm_cosine_is_the_cosine_of_normalised_features() -> None:
    """Transductive: mean and variance over all points of the task, by NumPy."""
    phi = np.random.default_rng(0).normal(size=(2, 6, 3)) * 3 + 1
    k = kernels.BNCosine(3, norm="transductive").double()
    x = torch.as_tensor(phi)
    z = k.embed(k.prepare(x, Inputs(x, torch.ones(2, 6, dtype=torch.bool), 4)))
    for t in range(2):
        hat = (phi[t] - phi[t].mean(0)) / np.sqrt(phi[t].var(0) + k.norm.eps)
        assert_close(k.gram(z[t], z[t]), torch.as_tensor(oracles.pairwise(oracles.cosine(), hat, hat)))


@pytest.mark.parametrize("kernel", [kernels.Linear, kernels.Cosine, kernels.RBF])
def test_the_out_scale_starts_where_it_is_told(kernel) -> None:
    """Covariances are `scale` times those of the kernel that starts at one."""
    phi = torch.randn(3, 4)
    one, seven = kernel(), kernel(scale=7.0)
    torch.testing.assert_close(seven.diagonal(seven.embed(phi)), 7 * one.diagonal(one.embed(phi)))
