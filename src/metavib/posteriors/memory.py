r"""What a task's points have to say, in constant size: sums over points, so that memories add up.

With $K = Z Z^\top$ a posterior needs of the support nothing but five sums (eq. 11). They are made here, from features
and sites, and nowhere else; `metavib.posteriors.functions.Primal` is the posterior they give.
"""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


class Sites(NamedTuple):
    """Pseudo-observations N(m | f, s), one a support point: `m (..., n, c)`, `s (..., n)`.

    A masked point is the site m = 0, s = 1 at z = 0, which drops out of every term exactly.
    """

    m: Tensor
    s: Tensor


class Memory(NamedTuple):
    r"""All that a task's points have to say under an explicit kernel, in constant size (eq. 11).

    `A` $= Z^\top S^{-1} Z$ `(..., M, M)`, `b` $= Z^\top S^{-1} m$ `(..., M, c)`, `c` $= \sum m^2/s$ `(..., c)`,
    `l` $= \sum \log s$ `(...)`, `n` points `(...)`. Additive: memories of disjoint points add up, and points are
    forgotten by subtraction.
    """

    A: Tensor
    b: Tensor
    c: Tensor
    l: Tensor  # noqa: E741 - the paper's letter
    n: Tensor

    def __add__(self, other: "Memory") -> "Memory":  # type: ignore[override]
        """The memory of both sets of points."""
        return Memory(*(mine + its for mine, its in zip(self, other, strict=True)))

    def __sub__(self, other: "Memory") -> "Memory":
        """The memory without the other's points, which must be among this one's."""
        return Memory(*(mine - its for mine, its in zip(self, other, strict=True)))


def memorise(z: Float[Tensor, "*b n M"], mask: Bool[Tensor, "*b n"], sites: Sites) -> Memory:
    """The memory of some points."""
    z = z * mask.unsqueeze(-1)
    weighted = z / sites.s.unsqueeze(-1)
    return Memory(
        A=weighted.mT @ z,
        b=weighted.mT @ sites.m,
        c=(sites.m.square() / sites.s.unsqueeze(-1)).sum(-2),
        l=sites.s.log().sum(-1),
        n=mask.sum(-1).to(z.dtype),
    )
