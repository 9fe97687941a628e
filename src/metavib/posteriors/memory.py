r"""What a task's points have to say, in constant size: sums over points, so that memories add up.

With $K = Z Z^\top$ a posterior needs of the support nothing but five sums (eq. 11), `Memory`. They are made here, from
embeddings and sites, and nowhere else; `metavib.posteriors.functions.Primal` is the posterior they give.

`TaskMemory` is the memory of one task whose classes have names and may come later. With N classes the sites are
$m_{jn} = Y_{jn} \tilde m_j$, where $Y_{jn} = +1$ in the column of the point's own class and $-1$ elsewhere
($\tilde m_j$ a learned scalar, or a function of $x_j$). Kept are the sums over the points of each class alone,
$$g_n = \sum_{j: y_j = n} z_j \tilde m_j / s_j, \qquad
b_n = \sum_j z_j Y_{jn} \tilde m_j / s_j = 2 g_n - \sum_{n'} g_{n'},$$
from which b follows. A class whose first points come later is a column that was $g_n = 0$ so far, exactly as if it had
been there from the start; without the old points, and without an extra number. (b alone would not do: with two classes
$b_1 = -b_2$, and the sum is lost.) And $c_n = \sum_j \tilde m_j^2 / s_j$ is the same for all classes, since $Y^2 = 1$.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Labels = tuple[Hashable, ...]
"""What the classes of a task are called, in the order of their columns."""


class Sites(NamedTuple):
    """Pseudo-observations N(m | f, s), one a support point: `m (..., n, c)`, `s (..., n)`.

    A masked point is the site m = 0, s = 1 at z = 0, which drops out of every term exactly.

    Example:
        >>> import torch
        >>> from metavib.posteriors import Sites
        >>> sites = Sites(m=torch.tensor([[1.0], [-1.0]]), s=torch.tensor([0.1, 0.1]))  # two points, one latent value
        >>> sites.m.shape
        torch.Size([2, 1])
    """

    m: Tensor
    s: Tensor


class Memory(NamedTuple):
    r"""All that a task's points have to say under an explicit kernel, in constant size (eq. 11).

    `A` $= Z^\top S^{-1} Z$ `(..., M, M)`, `b` $= Z^\top S^{-1} m$ `(..., M, c)`, `c` $= \sum m^2/s$ `(..., c)`,
    `l` $= \sum \log s$ `(...)`, `n` points `(...)`. Additive: memories of disjoint points add up, and points are
    forgotten by subtraction.

    Example:
        >>> import torch
        >>> from metavib.posteriors import Sites, memorise
        >>> def known(z, y):
        ...     sites = Sites(torch.tensor(y).unsqueeze(-1), torch.full((len(y),), 0.1))
        ...     return memorise(torch.tensor(z), torch.ones(len(y), dtype=torch.bool), sites)
        >>> here, there = known([[1.0, 0.0]], [2.0]), known([[0.0, 1.0]], [3.0])
        >>> both = here + there
        >>> int(both.n), torch.equal((both - there).A, here.A)
        (2, True)
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

    def symmetric(self) -> "Memory":
        """The same with an A that equals its transpose to the last bit, as half of it in a file makes it again."""
        return self._replace(A=(self.A + self.A.mT) / 2)


def memorise(z: Float[Tensor, "*b n M"], mask: Bool[Tensor, "*b n"], sites: Sites) -> Memory:
    """The memory of some points, in float64 whatever they are in: sums of many large numbers stay exact.

    Example:
        >>> import torch
        >>> from metavib.posteriors import Sites, memorise
        >>> z, sites = torch.tensor([[1.0], [2.0]]), Sites(torch.tensor([[3.0], [5.0]]), torch.tensor([0.5, 0.5]))
        >>> memory = memorise(z, torch.tensor([True, True]), sites)
        >>> memory.A.item(), memory.b.item()  # (1 + 4) / 0.5, (3 + 10) / 0.5
        (10.0, 26.0)
    """
    m, s = sites.m.double(), sites.s.double()
    z = z.double() * mask.unsqueeze(-1)
    weighted = z / s.unsqueeze(-1)
    return Memory(
        A=weighted.mT @ z,
        b=weighted.mT @ m,
        c=(m.square() / s.unsqueeze(-1)).sum(-2),
        l=s.log().sum(-1),
        n=mask.sum(-1).double(),
    )


def likeness(
    means: Float[Tensor, "*b N M"], square: Float[Tensor, "*b"], seen: Bool[Tensor, "*b N"]
) -> Float[Tensor, "*b"]:
    r"""How alike the classes of a task are: the mean over pairs of $\bar z_n \cdot \bar z_{n'} / \overline{|z|^2}$.

    Where all embeddings have one length it is the mean cosine between points of different classes, however many points
    there are of each: 1 where all points are the same, about 0 where classes have nothing in common.

    Args:
        means: $\bar z_n$, the mean embedding of each class; zero for a class without points.
        square: $\overline{|z|^2}$, the mean of the squared lengths.
        seen: which classes have points. With less than two of them there is no pair, and the likeness is 0.

    Example:
        >>> import torch
        >>> from metavib.posteriors import likeness
        >>> pairs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.6, 0.8]]])
        >>> likeness(pairs, torch.ones(2), torch.ones(2, 2, dtype=torch.bool))
        tensor([0.0000, 0.6000])
    """
    n = seen.sum(-1).to(means.dtype)
    among = means.sum(-2).square().sum(-1) - means.square().sum((-2, -1))  # all pairs, each in both orders
    return among / ((n * (n - 1)).clamp(min=1) * square.clamp(min=torch.finfo(square.dtype).tiny))


@dataclass(frozen=True, eq=False)
class TaskMemory:
    """The memory of one task's points, and the classes its columns stand for.

    Args:
        sums: in float64, since a sum over a million points in float32 would lose what the last ones say; for several
            classes a column of `b` and `c` is the sum over the points of its class alone.
        counts: points of each class, `(N,)`; of length 0 where outputs are no classes.
        classes: their labels.
        event: shape of one input.

    Example:
        >>> here = empty_memory(3, 2, ("cat", "dog"), (1,))
        >>> there = empty_memory(3, 1, ("eel",), (1,))
        >>> (here + there).classes
        ('cat', 'dog', 'eel')
    """

    sums: Memory
    counts: Tensor
    classes: Labels
    event: tuple[int, ...]

    @property
    def n(self) -> int:
        """How many points are remembered."""
        return int(self.sums.n)

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers, A by its lower half alone."""
        M = self.sums.A.shape[-1]
        others = sum(t.numel() for t in (*self.sums[1:], self.counts))
        return 8 * (M * (M + 1) // 2 + others)

    @property
    def column_a_class(self) -> bool:
        """Whether each class has a column of its own; two classes may share one (Bernoulli), and real outputs do."""
        return self.sums.b.shape[-1] == len(self.classes)

    def to(self, device: torch.device) -> "TaskMemory":
        """The same on another device."""
        memory = Memory(*(t.to(device) for t in self.sums))
        return TaskMemory(memory, self.counts.to(device), self.classes, self.event)

    @property
    def seen(self) -> list[bool]:
        """Which columns speak of points: those of classes without any do not."""
        columns = self.sums.b.shape[-1]
        return [bool(count) for count in self.counts.tolist()] if self.column_a_class else [True] * columns

    def signed(self) -> Memory:
        r"""The memory under targets +1 and -1 of the classes with points: $b_n = 2 g_n - \sum g$, and one c for all."""
        if not self.column_a_class:
            return self.sums
        A, g, c, l, n = self.sums  # noqa: E741 - the paper's letter
        if not all(self.seen):
            g, c = g[..., self.seen], c[..., self.seen]
        return Memory(A, 2 * g - g.sum(-1, keepdim=True), c.sum(-1, keepdim=True).expand_as(c), l, n)

    @property
    def likeness(self) -> Tensor:
        r"""How alike its classes are (`likeness`), where each has a column and all points have the same $\tilde m$.

        Then $g_n / c_n = \bar z_n / \tilde m$, and $\mathrm{tr}\, A / \sum_n c_n = \overline{|z|^2} / \tilde m^2$.
        """
        A, g, c, *_ = self.sums
        tiny = torch.finfo(c.dtype).tiny
        return likeness((g / c.clamp(min=tiny)).mT, A.diagonal().sum() / c.sum().clamp(min=tiny), self.counts > 0)

    def with_classes(self, classes: Labels) -> "TaskMemory":
        """The same points with classes in a given order, among them all of this memory's; new ones have no points."""
        if classes == self.classes:
            return self
        if not self.column_a_class:
            raise ValueError(f"this task's classes are {list(self.classes)} and stay so; got {list(classes)}.")
        A, g, c, l, n = self.sums  # noqa: E741
        place = torch.tensor([classes.index(k) for k in self.classes], dtype=torch.long, device=g.device)
        wide = (t.new_zeros(*t.shape[:-1], len(classes)).index_copy(-1, place, t) for t in (g, c, self.counts))
        g, c, counts = wide
        return TaskMemory(Memory(A, g, c, l, n), counts, classes, self.event)

    def __add__(self, other: "TaskMemory") -> "TaskMemory":
        """What both sets of points, which have none in common, have to say."""
        classes = union(self.classes, other.classes)
        mine, its = self.with_classes(classes), other.with_classes(classes)
        return TaskMemory(mine.sums + its.sums, mine.counts + its.counts, classes, self.event)

    def without(self, other: "TaskMemory", *, tolerance: float) -> "TaskMemory":
        """What is left without some of the points; a class that loses its last point is forgotten with it.

        Args:
            other: the memory of those points alone.
            tolerance: how far below zero rounding may take the eigenvalues of A, relative to A's largest entry.
        """
        unknown = [k for k in other.classes if k not in self.classes]
        if unknown:
            raise ValueError(f"points of class {unknown[0]!r} were never learned and cannot be forgotten.")
        if other.n > self.n:
            raise ValueError(f"{other.n} points cannot be forgotten where only {self.n} were learned.")
        its = other.with_classes(self.classes)
        counts, memory = self.counts - its.counts, self.sums - its.sums
        for label, left, had in zip(self.classes, counts.tolist(), self.counts.tolist(), strict=True):
            if left < 0:
                raise ValueError(
                    f"{had - left:.0f} points of class {label!r} cannot be forgotten of {had:.0f} learned."
                )
        if not memory.n:  # what rounding left of the sums is nothing but rounding
            memory = Memory(*(torch.zeros_like(t) for t in memory))
        else:
            _check_semidefinite(memory.A, tolerance * float(self.sums.A.diagonal().max()))
        rest = TaskMemory(memory, counts, self.classes, self.event)
        return rest._kept((counts > 0) | (self.counts == 0)) if self.column_a_class else rest

    def _kept(self, keep: Tensor) -> "TaskMemory":
        A, g, c, l, n = self.sums  # noqa: E741
        classes = tuple(k for k, kept in zip(self.classes, keep.tolist(), strict=True) if kept)
        return TaskMemory(Memory(A, g[..., keep], c[..., keep], l, n), self.counts[keep], classes, self.event)


def empty_memory(
    M: int, columns: int, classes: Labels, event: tuple[int, ...], device: torch.device | str = "cpu"
) -> TaskMemory:
    """The memory of no points: the prior."""
    sizes = ((M, M), (M, columns), (columns,), (), (), (len(classes),))
    *memory, counts = (torch.zeros(size, dtype=torch.float64, device=device) for size in sizes)
    return TaskMemory(Memory(*memory), counts, classes, event)


def union(first: Labels, second: Sequence[Hashable]) -> Labels:
    """The classes of both, those of the first in their places."""
    return (*first, *(k for k in second if k not in set(first)))


def _check_semidefinite(A: Tensor, slack: float) -> None:
    shifted = A + slack * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    if int(torch.linalg.cholesky_ex(shifted).info):
        raise ValueError(
            "these points are not all among those learned: without them A = Z' S^-1 Z would have negative eigenvalues, "
            "and no set of points has such an A. Forget exactly the points that were learned, each once."
        )
