r"""The evidence of many groups under a shared function and one of each group, with its gradient in closed form.

The rows of group i are $y_i = \Phi_i w + \Psi_i v_i + \epsilon_i$ with $w \sim N(0, I)$ common to all groups, $v_i
\sim N(0, I)$ and $\epsilon_i \sim N(0, S_i)$. Integrating $v_i$ out leaves $C_i = \Psi_i \Psi_i^\top + S_i$; what all
groups say of w is then, as in the memory of a task (eq. 11),

$$A = \sum_i \Phi_i^\top C_i^{-1} \Phi_i,\quad b = \sum_i \Phi_i^\top C_i^{-1} y_i, \qquad
w \mid y \sim N((A+I)^{-1} b,\, (A+I)^{-1}).$$

This is eq. 32. These are sums over groups: the posterior of any set of groups is found by adding what each says.
"""

from collections.abc import Sequence
from math import log, pi
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from metavib import linalg


class Group(NamedTuple):
    """Groups of a block, padding as zeros (in `s` as ones): features `phi`, `psi`, outputs `y`, noise variances `s`."""

    phi: Float[Tensor, "b n M"]
    psi: Float[Tensor, "b n q"]
    y: Float[Tensor, "b n"]
    s: Float[Tensor, "b n"]


class Said(NamedTuple):
    """What some groups say of w: A, b, and the two numbers that complete their evidence."""

    A: Tensor
    b: Tensor
    c: Tensor
    logdet: Tensor

    def __add__(self, other: "Said") -> "Said":  # type: ignore[override]
        return Said(*(mine + its for mine, its in zip(self, other, strict=True)))

    def __sub__(self, other: "Said") -> "Said":
        return Said(*(mine - its for mine, its in zip(self, other, strict=True)))


class Shared(NamedTuple):
    """The posterior of w: its mean, and the Cholesky factor of its precision A + I."""

    w: Tensor
    L: Tensor


def whiten(group: Group) -> tuple[Tensor, Tensor]:
    r"""The Cholesky factors L of $C_i$, and $L^{-1} [\Phi_i, y_i]$."""
    C = group.psi @ group.psi.mT + torch.diag_embed(group.s)
    L = linalg.cholesky(C, what="Psi Psi^T + S")
    return L, torch.linalg.solve_triangular(L, torch.cat([group.phi, group.y.unsqueeze(-1)], -1), upper=False)


def said(group: Group) -> Said:
    """What the groups of a block say of w."""
    L, white = whiten(group)
    return said_by(L, white)


def said_by(L: Tensor, white: Tensor) -> Said:
    """The same from what `whiten` found."""
    flat = white.reshape(-1, white.shape[-1])
    gram = flat.mT @ flat
    logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum()
    return Said(gram[:-1, :-1], gram[:-1, -1], gram[-1, -1], logdet)


def shared(said: Said) -> Shared:
    """The posterior of w given what groups say of it."""
    L = linalg.cholesky(said.A + linalg.identity_like(said.A), what="A + I")
    return Shared(torch.cholesky_solve(said.b.unsqueeze(-1), L).squeeze(-1), L)


def marginals(group: Group, L: Tensor, white: Tensor, shared: Shared) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $f_i = \Phi_i w + \Psi_i v_i$ at the rows of a block, given the outputs of all groups.

    The mean is $y_i - S_i C_i^{-1} (y_i - \Phi_i \hat w)$; the variance is the diagonal of $S_i - S_i C_i^{-1} S_i$,
    which is left where w is known, and of $B V B^\top$ with $B = S_i C_i^{-1} \Phi_i$ and V the covariance of w.

    Args:
        group: the block.
        L: what `whiten` found of it, and
        white: the rest of that.
        shared: the posterior of w.
    """
    left = torch.linalg.solve_triangular(L.mT, white, upper=True)  # C^-1 [Phi, y]
    U, alpha = left[..., :-1], left[..., -1] - left[..., :-1] @ shared.w
    half = _of_rows(shared.L, U)
    own = group.s - group.s.square() * torch.cholesky_inverse(L).diagonal(dim1=-2, dim2=-1)
    return group.y - group.s * alpha, own.clamp(min=0) + group.s.square() * half.square().sum(-1)


def _of_rows(L: Float[Tensor, "M M"], U: Float[Tensor, "b n M"], *, upper: bool = False) -> Float[Tensor, "b n M"]:
    r"""$U L^{-\top}$, all rows of a block at once: group by group the large factor would be read anew for each."""
    return torch.linalg.solve_triangular(L, U.flatten(0, 1).mT, upper=upper).mT.unflatten(0, U.shape[:2])


def log_evidence(groups: Sequence[Group], rows: int) -> Tensor:
    r"""$\log p(y) = \log N(y \mid 0, \mathrm{diag}(C_i) + \Phi \Phi^\top)$ of all groups together.

    $$-2 \log p(y) = c - b^\top (A+I)^{-1} b + \log|A+I| + \sum_i \log|C_i| + n \log 2\pi$$

    Differentiable in everything a `Group` holds. The gradient is made along with the value: with $T$ the covariance of
    all rows, $\alpha = T^{-1} y$ and $U = C^{-1} \Phi$, it is $\alpha w^\top - U (A+I)^{-1}$ for $\Phi$, $G = \frac12
    (\alpha \alpha^\top - T^{-1})$ for $C$ (of which only the blocks of the groups are needed, $T^{-1}_{ii} = C_i^{-1} -
    U_i (A+I)^{-1} U_i^\top$), thence $2 G \Psi$ for $\Psi$ and $\mathrm{diag}\,G$ for s, and $-\alpha$ for y.

    Args:
        groups: blocks.
        rows: n, how many rows they have, padding not counted.
    """
    return _Evidence.apply(rows, *(t for group in groups for t in group))


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: int, *tensors: Tensor) -> Tensor:
        groups = [Group(*tensors[i : i + 4]) for i in range(0, len(tensors), 4)]
        whitened = [whiten(group) for group in groups]
        total = said_by(*whitened[0])
        for pair in whitened[1:]:
            total = total + said_by(*pair)
        w, L_A = shared(total)
        gradients: list[Tensor] = []
        for group, (L, white) in zip(groups, whitened, strict=True):
            left = torch.linalg.solve_triangular(L.mT, white, upper=True)  # C^-1 [Phi, y]
            U, alpha = left[..., :-1], left[..., -1] - left[..., :-1] @ w
            half = _of_rows(L_A, U)  # U L_A^-T
            inverse = torch.cholesky_inverse(L)
            G = 0.5 * (alpha[..., :, None] * alpha[..., None, :] - inverse + half @ half.mT)
            back = _of_rows(L_A.mT, half, upper=True)  # U (A+I)^-1
            gradients += [
                alpha[..., None] * w - back,
                2 * G @ group.psi,
                -alpha,
                G.diagonal(dim1=-2, dim2=-1),
            ]
        ctx.save_for_backward(*gradients)
        logdet = total.logdet + 2 * L_A.diagonal().log().sum()
        return -0.5 * (total.c - total.b @ w + logdet + rows * log(2 * pi))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        return None, *(slope * g for g in ctx.saved_tensors)
