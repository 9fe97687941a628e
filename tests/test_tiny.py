"""Factorisations written out for a compiler are those of LAPACK."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metavib import linalg, tiny


def positive(n: int, seed: int, batch: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    X = torch.randn(*batch, n, n + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return X @ X.mT + 0.1 * torch.eye(n, dtype=X.dtype)


@given(n=st.integers(1, tiny.ROWS), c=st.integers(1, 4), seed=st.integers(0, 99))
def test_factor_and_solves_are_lapacks(n: int, c: int, seed: int) -> None:
    A = positive(n, seed)
    B = torch.randn(2, 3, n, c, dtype=A.dtype, generator=torch.Generator().manual_seed(seed + 1))
    L = torch.linalg.cholesky(A)
    torch.testing.assert_close(tiny.cholesky(A), L)
    torch.testing.assert_close(tiny.solve(L, B), torch.linalg.solve_triangular(L, B, upper=False))
    torch.testing.assert_close(tiny.solve_transposed(L, B), torch.linalg.solve_triangular(L.mT, B, upper=True))


@pytest.mark.parametrize("n", [1, 5, 8])
def test_gradients_are_those_of_the_library(n: int) -> None:
    """Of a function of factor and solve, as in the evidence of a GP."""
    B = torch.randn(2, 3, n, 2, dtype=torch.float64)

    def value(A, cholesky, solve):
        L = cholesky((A + A.mT) / 2)
        return solve(L, B).square().sum() + L.diagonal(dim1=-2, dim2=-1).log().sum()

    A = positive(n, 5).requires_grad_()
    (mine,) = torch.autograd.grad(value(A, tiny.cholesky, tiny.solve), A)
    (theirs,) = torch.autograd.grad(value(A, linalg.cholesky, linalg.solve), A)
    torch.testing.assert_close(mine, theirs)


def test_a_matrix_without_a_factor_becomes_nan() -> None:
    """As `linalg.cholesky` on a GPU: the bound is NaN, and the training loop stops."""
    A = torch.eye(3, dtype=torch.float64)
    A[1, 1] = -1
    assert tiny.cholesky(A)[1:].isnan().any()
