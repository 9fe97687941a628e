r"""The inverse Cholesky factor of matrices with a few rows, as textbook loops for a compiler.

On a GPU a call of a linear algebra library costs tens of microseconds however small the matrix. Written out entry by
entry, for a batch of matrices at once, the same arithmetic is a chain of elementwise operations, which a compiler puts
into one kernel together with its neighbours. But every operation takes the compiler time, and a solve written out has
dozens, and twice as many backwards. So one thing alone is written out, $X = L^{-1}$, its derivative is a formula, and
solves are products with it. Uncompiled that would be slow, so it is for compiled code alone (`suit`).
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

ROWS = 7  # n^3 / 3 operations are written out, and the compiler writes out sums of fewer than eight terms


def suit(A: Tensor) -> bool:
    """Whether matrices are so small that a GPU had better not call a library for them."""
    return torch.compiler.is_compiling() and A.device.type != "cpu" and 0 < A.shape[-1] <= ROWS


@final
class Inverted:
    """A factor (`metavib.linalg.Factor`) by products with $X = L^{-1}$, of a few rows.

    Args:
        X: the inverse of the Cholesky factor.

    Example:
        >>> import torch
        >>> from metavib.fast.small_factors import Inverted
        >>> factor = Inverted.of(torch.tensor([[4.0]]))
        >>> factor.solve(torch.tensor([[6.0]])), factor.logdet().exp().round()
        (tensor([[3.]]), tensor(4.))
    """

    def __init__(self, X: Tensor) -> None:
        self.X = X

    @classmethod
    def of(cls, A: Tensor) -> "Inverted":
        """Factorises a symmetric positive definite matrix A."""
        return cls(inverse_factor(A))

    def solve(self, B: Tensor) -> Tensor:
        """$X B$."""
        return product(self.X, B)

    def solve_transposed(self, B: Tensor) -> Tensor:
        r"""$X^\top B$."""
        return product(self.X.mT, B)

    def inverse(self) -> Tensor:
        """$X$."""
        return self.X

    def logdet(self) -> Tensor:
        r"""$-2 \sum_i \log X_{ii}$."""
        return -2 * self.X.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def inverse_factor(A: Tensor) -> Tensor:
    r"""$X = L^{-1}$, lower triangular, for $A = L L^\top$; NaN from the first pivot on that is negative."""
    return _InverseFactor.apply(A)


def product(A: Tensor, B: Tensor) -> Tensor:
    """$A B$ for an A with few columns, summed elementwise: a part of its neighbours' kernels."""
    return (A.unsqueeze(-1) * B.unsqueeze(-3)).sum(-2)


class _InverseFactor(torch.autograd.Function):
    r"""X of A, and $\bar A$ of $\bar X$.

    From $dA = dL\,L^\top + L\,dL^\top$ follows $X\,dA\,X^\top = H + H^\top$ with $H = X\,dL$ lower triangular. So
    $H = \Phi(X\,dA\,X^\top)$, where $\Phi$ halves the diagonal and drops what is above it, and $dX = -X\,dL\,X = -H X$.
    Backwards that is $\bar A = -X^\top \Phi(\bar X X^\top) X$; A is symmetric and moves along the symmetric part of it.
    """

    @staticmethod
    def forward(A: Tensor) -> Tensor:
        n = A.shape[-1]
        L: list[list[Tensor]] = [[] for _ in range(n)]  # below the diagonal, whose reciprocals are X's
        X: list[list[Tensor]] = [[] for _ in range(n)]
        for i in range(n):
            for j in range(i):
                L[i].append(_less(A[..., i, j], L[i], L[j]) * X[j][j])
            pivot = _less(A[..., i, i], L[i], L[i]).rsqrt()
            for j in range(i):
                column = [X[k][j] for k in range(j, i)]
                X[i].append(_less(-L[i][j] * column[0], L[i][j + 1 :], column[1:]) * pivot)
            X[i].append(pivot)
        zeros = [torch.zeros_like(A[..., 0, 0])] * n
        return torch.stack([torch.stack([*X[i], *zeros[i + 1 :]], -1) for i in range(n)], -2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, X_bar: Tensor) -> Tensor:
        (X,) = ctx.saved_tensors
        slope = product(X_bar, X.mT).tril()
        slope = slope - 0.5 * torch.diag_embed(slope.diagonal(dim1=-2, dim2=-1))
        A_bar = -product(product(X.mT, slope), X)
        return 0.5 * (A_bar + A_bar.mT)


def _less(rest: Tensor, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The rest less the products of entries of both, as many as both have."""
    for x, y in zip(a, b, strict=False):
        rest = rest - x * y
    return rest
