"""Cholesky, solves and log-determinants against NumPy; failures that explain themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from metavib import linalg


def spd(n: int, batch: tuple[int, ...], seed: int) -> torch.Tensor:
    B = np.random.default_rng(seed).normal(size=(*batch, n, n + 2))
    return torch.as_tensor(B @ B.swapaxes(-1, -2) + 0.1 * np.eye(n))


@given(n=st.integers(0, 8), c=st.integers(1, 3), batch=st.sampled_from([(), (2,), (2, 3)]), seed=st.integers(0, 999))
def test_factor_solves_and_logdet_equal_numpy(n, c, batch, seed) -> None:
    A = spd(n, batch, seed)
    B = torch.as_tensor(np.random.default_rng(seed + 1).normal(size=(*batch, n, c)))
    L, factor = linalg.cholesky(A), linalg.factorise(A)
    assert_close(L @ L.mT, A)
    assert_close(factor.solve_transposed(factor.solve(B)), torch.as_tensor(np.linalg.solve(A, B)))
    assert_close(factor.inverse(), torch.as_tensor(np.linalg.inv(L)))
    assert_close(factor.logdet(), torch.as_tensor(np.linalg.slogdet(A.numpy())[1]))


def test_identity_takes_size_and_dtype() -> None:
    A = torch.zeros(2, 3, 3, dtype=torch.float64)
    assert_close(linalg.identity_like(A), torch.eye(3, dtype=torch.float64))


def test_a_singular_matrix_is_refused_with_its_size_and_diagonal() -> None:
    A = torch.stack([torch.eye(3), torch.ones(3, 3)])
    with pytest.raises(
        ValueError, match=r"K \+ S failed for 1 of 2 matrices of size 3 .*float32.*singular to rounding"
    ):
        linalg.cholesky(A)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite_is_refused_with_the_count(bad) -> None:
    A = torch.eye(3)
    A[2, 2] = bad
    with pytest.raises(ValueError, match=r"A \+ I failed .* 1 entries are NaN or infinite"):
        linalg.cholesky(A, what="A + I")


def test_a_matrix_that_needs_a_gradient_is_refused_with_the_same_words() -> None:
    with pytest.raises(ValueError, match="singular to rounding"):
        linalg.cholesky(torch.ones(2, 2, requires_grad=True) * 1.0)


def test_nothing_is_added_to_the_diagonal() -> None:
    """A matrix that float64 can just factor comes back as it is: no jitter."""
    A = torch.diag(torch.tensor([1.0, 1e-300], dtype=torch.float64))
    assert_close(linalg.cholesky(A).diagonal().square(), A.diagonal(), rtol=1e-12, atol=0)


def test_root_is_the_square_root_with_finite_derivatives_of_every_order_at_zero() -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([0.0, 1e-20, 0.25, 4.0], dtype=dtype, requires_grad=True)
        y = linalg.root(x)
        assert_close(y.detach(), x.detach().sqrt(), rtol=1e-6, atol=0)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert first[0] == 0 and second[0] == 0
        assert_close(first[2:].detach(), torch.tensor([1.0, 0.25], dtype=dtype))
        assert bool(second.isfinite().all())
