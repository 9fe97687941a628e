"""Cholesky factorisation that explains its failures, solves and log-determinants with the factor, a root safe at zero.

Nothing here adds jitter: a factorisation that fails is reported, not repaired.
"""

from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from metavib.fast import small_factors


class FactorisationError(ValueError, FloatingPointError):
    """A matrix that has no Cholesky factor: unsuitable inputs, or weights that have diverged.

    Example:
        >>> import torch
        >>> from metavib.linalg import FactorisationError, cholesky
        >>> try:
        ...     cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
        ... except FactorisationError as error:
        ...     print("no Cholesky factor")
        no Cholesky factor
    """


def cholesky(A: Float[Tensor, "*b n n"], *, what: str = "K + S") -> Float[Tensor, "*b n n"]:
    r"""Lower triangular $L$ with $L L^\top = A$.

    On a CPU a failed factorisation raises at once with a diagnosis. On a GPU, where looking would make the host wait
    for the device (and cannot be captured in a graph), the factor of a failed matrix is NaN instead, so
    that the bound is NaN and the training loop, which looks at it now and then, stops.

    Example:
        >>> import torch
        >>> cholesky(torch.tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
        [[2.0, 0.0], [1.0, 1.0]]
    """
    L, info = torch.linalg.cholesky_ex(A)
    failed = info != 0
    if torch.compiler.is_compiling() or A.device.type != "cpu":
        return L.masked_fill(failed[..., None, None], torch.nan)
    # An infinite pivot is no failure to LAPACK: what comes of it would be zeros that look like numbers.
    failed = failed | ~L.diagonal(dim1=-2, dim2=-1).sum(-1).isfinite()
    if bool(failed.any()):
        raise FactorisationError(_diagnose(A, failed, what))
    return L


@runtime_checkable
class Factor(Protocol):
    r"""The Cholesky factor $L$ of $A = L L^\top$, known by what it does.

    Example:
        >>> import torch
        >>> from metavib.linalg import Factor, factorise
        >>> L = factorise(torch.tensor([[4.0, 2.0], [2.0, 2.0]]))
        >>> isinstance(L, Factor), round(L.logdet().item(), 3)  # log 4
        (True, 1.386)
    """

    def solve(self, B: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b n c"]:
        """$L^{-1} B$."""

    def solve_transposed(self, B: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b n c"]:
        r"""$L^{-\top} B$."""

    def inverse(self) -> Float[Tensor, "*b n n"]:
        """$L^{-1}$."""

    def logdet(self) -> Float[Tensor, "*b"]:
        r"""$\log |L L^\top|$."""


@final
class Triangular:
    """A `Factor` by triangular solves with L.

    Example:
        >>> import torch
        >>> L = Triangular(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
        >>> L.solve(torch.tensor([[2.0], [3.0]])).tolist()
        [[1.0], [2.0]]
    """

    def __init__(self, L: Float[Tensor, "*b n n"]) -> None:
        self.L = L

    def solve(self, B: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b n c"]:
        """$L^{-1} B$."""
        return torch.linalg.solve_triangular(self.L, B, upper=False)

    def solve_transposed(self, B: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b n c"]:
        r"""$L^{-\top} B$."""
        return torch.linalg.solve_triangular(self.L.mT, B, upper=True)

    def inverse(self) -> Float[Tensor, "*b n n"]:
        """$L^{-1} I$."""
        return self.solve(identity_like(self.L).expand_as(self.L))

    def logdet(self) -> Float[Tensor, "*b"]:
        r"""$2 \sum_i \log L_{ii}$."""
        return 2 * self.L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def factorise(A: Float[Tensor, "*b n n"], *, what: str = "K + S") -> Factor:
    """The factor of A: by a library, or written out where calling one takes longer than the arithmetic.

    Example:
        >>> import torch
        >>> A = torch.tensor([[4.0, 2.0], [2.0, 2.0]])
        >>> round(factorise(A).logdet().exp().item(), 3)  # the determinant
        4.0
    """
    return small_factors.Inverted.of(A) if small_factors.suit(A) else Triangular(cholesky(A, what=what))


def identity_like(A: Tensor) -> Tensor:
    """The identity matrix with the size, dtype and device of A's last two dimensions.

    Example:
        >>> import torch
        >>> identity_like(torch.zeros(7, 2, 2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def root(x: Tensor) -> Tensor:
    r"""$\sqrt x$ for x >= 0, with all derivatives zero at x = 0 instead of infinite.

    A variance or a squared distance that is exactly zero has a zero gradient of its own, and zero times infinity
    would turn the gradient of every parameter into NaN.

    Example:
        >>> import torch
        >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
        >>> root(x).sum().backward()
        >>> x.grad.tolist()
        [0.25, 0.0]
    """
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0)


def _diagnose(A: Tensor, failed: Tensor, what: str) -> str:
    A = A.detach()  # torch warns of numbers read off a matrix that needs a gradient
    bad = int((~A.isfinite()).sum())
    head = (
        f"Cholesky of {what} failed for {int(failed.sum())} of {failed.numel()} matrices "
        f"of size {A.shape[-1]} ({A.dtype}). "
    )
    if bad:
        return head + f"{bad} entries are NaN or infinite: look for diverged weights or unscaled inputs."
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    return head + (
        f"Its diagonal runs from {float(diagonal.min()):.3g} to {float(diagonal.max()):.3g}: the matrix is singular "
        "to rounding. Raise the lower bound on the site variances s (or the noise), scale the features down, or "
        "use float64."
    )
