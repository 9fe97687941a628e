"""Factors written out for a compiler are those of LAPACK, and so are their derivatives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metavib import linalg
from metavib.fast import small_factors


def positive(n: int, seed: int, batch: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    X = torch.randn(*batch, n, n + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return X @ X.mT + 0.1 * torch.eye(n, dtype=X.dtype)


@given(n=st.integers(1, small_factors.ROWS), c=st.integers(1, 4), seed=st.integers(0, 99))
def test_both_forms_of_a_factor_do_the_same(n: int, c: int, seed: int) -> None:
    A = positive(n, seed)
    B = torch.randn(2, 3, n, c, dtype=A.dtype, generator=torch.Generator().manual_seed(seed + 1))
    mine, lapacks = small_factors.Inverted(small_factors.inverse_factor(A)), linalg.Triangular(torch.linalg.cholesky(A))
    torch.testing.assert_close(mine.inverse(), lapacks.inverse())
    torch.testing.assert_close(mine.logdet(), lapacks.logdet())
    torch.testing.assert_close(mine.solve(B), lapacks.solve(B))
    torch.testing.assert_close(mine.solve_transposed(B), lapacks.solve_transposed(B))


@pytest.mark.parametrize("n", [1, 5, small_factors.ROWS])
def test_its_derivatives_are_those_of_the_library(n: int) -> None:
    """Of solves and determinant together, as in the bound of a GP."""
    B = torch.randn(2, 3, n, 2, dtype=torch.float64)

    def slope(A: torch.Tensor, factor: linalg.Factor) -> torch.Tensor:
        value = factor.solve(B).sin().sum() + factor.solve_transposed(B).square().sum() + factor.logdet().sum()
        (first,) = torch.autograd.grad(value, A, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), A)
        return torch.stack([first, second])

    A = positive(n, 5).requires_grad_()
    symmetric = (A + A.mT) / 2
    mine = slope(A, small_factors.Inverted(small_factors.inverse_factor(symmetric)))
    torch.testing.assert_close(mine, slope(A, linalg.factorise((A + A.mT) / 2)))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # the compiler's own doing
def test_it_can_be_compiled_in_one_piece() -> None:
    """As it is used: traced forwards and backwards, here without the code that a GPU would run."""

    def value(A: torch.Tensor) -> torch.Tensor:
        X = small_factors.inverse_factor((A + A.mT) / 2)
        return small_factors.product(X, A).square().sum() + X.diagonal(dim1=-2, dim2=-1).log().sum()

    A, again = positive(5, 1).requires_grad_(), positive(5, 1).requires_grad_()
    found, expected = torch.compile(value, backend="aot_eager", fullgraph=True)(A), value(again)
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(A.grad, again.grad)


def test_a_matrix_without_a_factor_becomes_nan() -> None:
    """As `linalg.cholesky` on a GPU: the bound is NaN, and the training loop stops."""
    A = torch.eye(3, dtype=torch.float64)
    A[1, 1] = -1
    factor = small_factors.Inverted(small_factors.inverse_factor(A))
    assert factor.logdet().isnan() and factor.solve(A).isnan().any()
