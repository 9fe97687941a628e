"""Cholesky factors and triangular solves of matrices with a few rows, as textbook loops for a compiler.

On a GPU a call of a linear algebra library costs tens of microseconds however small the matrix. Written out entry by
entry, for a batch of matrices at once, the same arithmetic is a chain of elementwise operations, which a compiler puts
into one kernel together with its neighbours. Uncompiled it would be slow: `metavib.linalg` calls it only then.
"""

import torch
from torch import Tensor

ROWS = 8  # n^3 / 6 operations are written out


def cholesky(A: Tensor) -> Tensor:
    r"""Lower triangular $L$ with $L L^\top = A$; NaN from the first pivot on that is not positive."""
    n = A.shape[-1]
    L: list[list[Tensor]] = [[torch.zeros_like(A[..., 0, 0])] * n for _ in range(n)]
    for j in range(n):
        for i in range(j, n):
            rest = A[..., i, j]
            for k in range(j):
                rest = rest - L[i][k] * L[j][k]
            L[i][j] = rest.sqrt() if i == j else rest / L[j][j]
    return torch.stack([torch.stack(row, -1) for row in L], -2)


def solve(L: Tensor, B: Tensor) -> Tensor:
    """$L^{-1} B$, row by row from the first."""
    rows: list[Tensor] = []
    for i in range(L.shape[-1]):
        rest = B[..., i, :]
        for k, row in enumerate(rows):
            rest = rest - L[..., i, k, None] * row
        rows.append(rest / L[..., i, i, None])
    return torch.stack(rows, -2)


def solve_transposed(L: Tensor, B: Tensor) -> Tensor:
    r"""$L^{-\top} B$, row by row from the last: both turned upside down, it is a solve from the first."""
    return solve(L.flip(-1, -2).mT, B.flip(-2)).flip(-2)
