r"""Explicit features of the rows of a table: what the shared function g and a group's own h_i are linear in.

$$g(x) = \phi(x)^\top w,\quad w \sim N(0, I), \qquad h_i(x) = \psi(x)^\top v_i,\quad v_i \sim N(0, I)$$

They are those of eq. 31. Both are sums of parts, each of which is a kernel of its own with a variance that the
evidence of the groups sets:

* a constant;
* lines, with a variance for each column of the table;
* curves, a Matern-5/2 process of each column of many values, with a variance each;
* a joint Matern-5/2 process of all columns, for what columns do together;
* for h_i one line more, $u_i (a_0 + a^\top x)$ with one $u_i \sim N(0, 1)$ for the group: it makes level and slopes
  of a group depend on each other, as the full covariance of random effects does in a mixed model.

A column may enter by the logarithm of its distance from an edge (`metavib.tasks.scaling.Edge`) instead of itself:
sizes, doses and prices matter by their ratios. Which columns do is for the evidence to say (`metavib.groups.learning`).
It has one length scale, which its curve and the joint process share, in g and in h_i: its relevance. The Matern
processes become explicit by Nystrom's method: $k(x, U) L^{-\top}$ with $L L^\top = k(U, U)$ for some inputs U. That is
the process itself wherever the rows are among U, and its projection elsewhere.

An input further than `FURTHEST` deviations beyond all that were learned from counts as no further: a line that goes on
and on would make a slip of the pen (26 for 8.6) the largest error of all.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import log
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from metavib.tasks.scaling import Edge, edged

KNOTS = 12  # inputs U of a curve
CURVES = 24  # columns with a curve, at most: those that go most with the output
POINTS = 50  # inputs U of the joint process
VALUES = 5  # a column of no more values than these is a line, without a curve
CONSTANT = 2.0  # standard deviation of the shared constant, of outputs of variance 1: all but flat
SKEWED = 1.0  # skewness from which on a column is tried by its logarithm
NEAR = 0.2  # distance of an edge from the outermost number, over that number's distance from the nearer quartile
BOUND = 4.0  # deviations of a logarithm from its mean: closer to an edge no row counts, nor further from it
FURTHEST = 3.0  # deviations of a column beyond the rows learned from: no input counts as further off
NUGGET = 1e-6  # share of white noise in the Matern processes, which keeps k(U, U) regular where two of U are close
TYPICAL, WIDTH = 0.1, 2.5  # variance of a part, beforehand, and the standard deviation of its logarithm
LENGTHS = (log(0.1), log(10.0))  # of inputs of variance 1


class Layout(NamedTuple):
    """What is known of the columns of x, as indices: `curved` ones have a curve, `varying` ones vary within groups.

    Example:
        >>> import numpy as np
        >>> x = np.array([[0.0, 1], [1, 1], [2, 1], [3, 5], [4, 5], [5, 5]])
        >>> layout(x, np.arange(6.0), np.repeat([0, 1], 3))
        Layout(curved=[0], varying=[0])
    """

    curved: list[int]
    varying: list[int]


def layout(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> Layout:
    """Looks at the columns of a table of standardised columns x `(rows, d)`, with groups numbered from 0."""
    counts, within, total = np.bincount(group), np.empty(x.shape[1]), x.var(0)
    for j, column in enumerate(x.T):
        within[j] = (column - (np.bincount(group, column) / counts)[group]).var()
    varying = np.flatnonzero(within > 1e-3 * np.maximum(total, 1e-9))
    many = [j for j in range(x.shape[1]) if len(np.unique(x[:, j])) > VALUES]
    together = np.abs((x - x.mean(0)).T @ (y - y.mean())) / np.sqrt(np.maximum(total, 1e-9))
    curved = sorted(sorted(many, key=lambda j: -together[j])[:CURVES])
    return Layout(curved, varying.tolist())


def skewed(x: Float[Tensor, "rows d"], columns: Sequence[int]) -> dict[int, Edge]:
    """Those of some columns that are skewed, with an edge for each just beyond where it begins.

    Example:
        >>> sizes = torch.linspace(-2, 2, 101).exp()
        >>> found = skewed(torch.stack([sizes, sizes.log()], 1), [0, 1])
        >>> {column: round(float(edge.edge), 2) for column, edge in found.items()}
        {0: 0.09}
    """
    found = {}
    for j in columns:
        z = (x[:, j] - x[:, j].mean()) / x[:, j].std().clamp(min=1e-9)
        skewness = float((z**3).mean())
        if abs(skewness) > SKEWED:
            found[j] = edged(x[:, j], beyond(x[:, j], 1 if skewness > 0 else -1))
    return found


def beyond(y: Float[Tensor, " rows"], side: int) -> float:
    """An edge just below all numbers (`side` 1) or just above them (-1)."""
    v = side * y
    low = float(v.min())
    gaps = [float(torch.quantile(v, p)) - low for p in (0.25, 0.5, 0.75)] + [float(v.mean()) - low]
    return side * (low - NEAR * next((gap for gap in gaps if gap > 0), 1.0))


class Sizes(NamedTuple):
    """Lengths of all that a `Features` holds, which is enough to make one of the same shape."""

    columns: int
    curved: int
    varying: int
    own_curved: int
    points: int
    own_points: int
    warped: int = 0
    bounded: int = 0


class Features(nn.Module):
    r"""$\phi$ and $\psi$, and the parameters $\theta$ of their kernels.

    Args:
        sizes: of everything in it; `spread_over` fills in which columns, and which inputs U.

    Example:
        Two columns, of which only the first varies within groups.

        >>> import numpy as np, torch
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> features = spread_over(torch.tensor(x), Layout(curved=[0, 1], varying=[0]), np.random.default_rng(0))
        >>> features.shared(torch.tensor(x[:3])).shape[-1]  # a constant, two lines, two curves, the joint process
        77
        >>> features.own(torch.tensor(x[:3])).shape[-1]  # a constant, a line, the line of level and slope, a curve
        15
    """

    curved: Tensor
    varying: Tensor
    own_curved: Tensor
    knots: Tensor
    own_knots: Tensor
    points: Tensor
    own_points: Tensor
    warped: Tensor
    edges: Tensor
    ends: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        shapes = {
            "curved": (sizes.curved,),
            "varying": (sizes.varying,),
            "own_curved": (sizes.own_curved,),
            "knots": (sizes.curved, KNOTS),
            "own_knots": (sizes.own_curved, KNOTS),
            "points": (sizes.points, sizes.columns),
            "own_points": (sizes.own_points, sizes.varying),
        }
        if sizes.warped:  # which columns enter by a logarithm, and their edges
            shapes |= {"warped": (sizes.warped,), "edges": (len(Edge._fields), sizes.warped)}
        if sizes.bounded:  # the lowest and the highest number of each column, as it enters
            shapes |= {"ends": (2, sizes.columns)}
        for name, shape in shapes.items():
            index = name in ("curved", "varying", "own_curved", "warped")
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64 if index else torch.float64))

        def start(size: int, value: float) -> nn.Parameter:
            return nn.Parameter(torch.full((size,), value, dtype=torch.float64))

        self.length = start(sizes.columns, log(1.5))
        self.joint_length = start(1, 0.0)  # of the joint process, over sqrt(d) times those of the columns
        self.own_length = start(1, 0.0)  # of h over g's
        self.lines = start(sizes.columns, log(0.1))
        self.bends = start(sizes.curved, log(0.1))
        self.surface = start(min(1, sizes.points), log(0.1))
        self.own_constant = start(1, log(0.2))
        self.own_lines = start(sizes.varying, log(0.05 / max(1, sizes.varying)))
        self.own_bends = start(sizes.own_curved, log(0.05 / max(1, sizes.own_curved)))
        self.own_surface = start(min(1, sizes.own_points), log(0.05))
        self.slope = nn.Parameter(torch.tensor([0.3] + [0.02] * sizes.varying, dtype=torch.float64))

    @property
    def widths(self) -> tuple[int, int]:
        r"""Lengths of $\phi$ and $\psi$."""
        s = self.sizes
        return 1 + s.columns + KNOTS * s.curved + s.points, 2 + s.varying + KNOTS * s.own_curved + s.own_points

    @property
    def variances(self) -> list[nn.Parameter]:
        """Logarithms of the variances that are learned, of all parts of g and h_i."""
        shared = [self.lines, self.bends, self.surface]
        return [*shared, self.own_constant, self.own_lines, self.own_bends, self.own_surface]

    def log_prior(self, *, level: float = 1.0, among: int | None = None) -> Tensor:
        r"""$\log p(\theta)$ but for a constant: weak, and wide enough for every table of standardised numbers.

        The lines of a group's own function vary together as much as one line would, however many columns there are, and
        its curves as one curve. Otherwise a group's own function would be the larger the more columns are told of its
        rows, and a dozen groups could not say that it is not.

        Args:
            level: how many times as much as other parts do a group's levels vary, beforehand.
            among: columns among which all own slopes are divided, those that go with the level and the joint process
                too; None: lines among lines and curves among curves alone.
        """
        lines, bends, surface, own_constant, *own = self.variances
        squares = [((v - log(TYPICAL)) / WIDTH).square().sum() for v in (lines, bends, surface)]
        squares += [((own_constant - log(TYPICAL * level)) / WIDTH).square().sum()]
        squares += [((v - log(TYPICAL / (among or max(1, len(v))))) / WIDTH).square().sum() for v in own]
        squares += [self.slope[0].square() / level + ((among or 1) * self.slope[1:]).square().sum()]
        squares += [(self.length - log(1.5)).square().sum()]
        squares += [(ratio / 0.5).square().sum() for ratio in (self.joint_length, self.own_length)]
        return -0.5 * torch.stack(squares).sum()

    def columns(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """The columns as they enter: themselves, or their logarithms, not too far beyond the rows learned from."""
        x = self._entered(x)
        return x.clamp(self.ends[0] - FURTHEST, self.ends[1] + FURTHEST) if self.sizes.bounded else x

    @torch.no_grad()
    def learned_from(self, x: Float[Tensor, "rows d"]) -> "Features":
        """The same features, whose inputs end where these rows do."""
        found = deepcopy(self)
        found.ends.copy_(_ends(self._entered(x)))
        return found

    def _entered(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        return warp(x, self.warped, self.edges) if self.sizes.warped else x

    def shared(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n M"]:
        r"""$\phi(x)$."""
        x = self.columns(x)
        found = [x.new_full((*x.shape[:-1], 1), CONSTANT), x * _sd(self.lines)]
        length = self.length.clamp(*LENGTHS)
        if self.sizes.curved:
            curves = _curves(x[..., self.curved], self.knots, length[self.curved])
            found.append((curves * _sd(self.bends)[:, None]).flatten(-2))
        if self.sizes.points:
            scale = (length + self.joint_length + 0.5 * log(self.sizes.columns)).exp()
            found.append(_nystrom(x / scale, self.points / scale) * _sd(self.surface))
        return torch.cat(found, -1)

    def own(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n M"]:
        r"""$\psi(x)$."""
        x = self.columns(x)
        inner = x[..., self.varying]
        line = self.slope[0] + inner @ self.slope[1:]
        found = [_sd(self.own_constant).expand(*x.shape[:-1], 1), inner * _sd(self.own_lines), line.unsqueeze(-1)]
        length = (self.length + self.own_length).clamp(*LENGTHS)
        if self.sizes.own_curved:
            curves = _curves(x[..., self.own_curved], self.own_knots, length[self.own_curved])
            found.append((curves * _sd(self.own_bends)[:, None]).flatten(-2))
        if self.sizes.own_points:
            scale = (length[self.varying] + self.joint_length + 0.5 * log(self.sizes.varying)).exp()
            found.append(_nystrom(inner / scale, self.own_points / scale) * _sd(self.own_surface))
        return torch.cat(found, -1)


def warp(x: Float[Tensor, "*b n d"], columns: Tensor, edges: Float[Tensor, "4 k"]) -> Float[Tensor, "*b n d"]:
    """Rows with some columns replaced by the logarithms of their distances from edges."""
    return x.index_copy(-1, columns, Edge(*edges).standardise(x[..., columns]).clamp(-BOUND, BOUND))


def spread_over(
    x: Float[Tensor, "rows d"], columns: Layout, random: np.random.Generator, edges: Mapping[int, Edge] | None = None
) -> Features:
    """Features whose inputs U are spread over the rows of a table, with the parameters that all start from.

    Args:
        x: the rows.
        columns: what is known of them.
        random: decides which rows are among U.
        edges: columns that enter by a logarithm.
    """
    curved, varying = columns
    edges = edges or {}
    warped = torch.tensor(list(edges), dtype=torch.int64)
    stacked = torch.stack([torch.stack(list(edge)) for edge in edges.values()], 1) if edges else x.new_zeros(4, 0)
    x = warp(x, warped, stacked) if edges else x
    knots = {j: _knots(x[:, j]) for j in curved}
    own = [j for j in curved if j in varying]
    none = x.new_zeros(0, KNOTS)
    # With one column the joint process would be its curve once more.
    points = _centres(x, random) if x.shape[1] > 1 else x[:0]
    own_points = _centres(x[:, varying], random) if len(varying) > 1 else x[:0, varying]
    sizes = Sizes(x.shape[1], len(curved), len(varying), len(own), len(points), len(own_points), len(edges), 1)
    features = Features(sizes)
    with torch.no_grad():
        for name, values in (
            ("curved", torch.tensor(curved, dtype=torch.int64)),
            ("varying", torch.tensor(varying, dtype=torch.int64)),
            ("own_curved", torch.tensor(own, dtype=torch.int64)),
            *((("warped", warped), ("edges", stacked)) if edges else ()),
            ("knots", torch.stack([knots[j] for j in curved]) if curved else none),
            ("own_knots", torch.stack([knots[j] for j in own]) if own else none),
            ("points", points),
            ("own_points", own_points),
            ("ends", _ends(x)),
        ):
            features.get_buffer(name).copy_(values)
    return features


def _ends(x: Float[Tensor, "rows d"]) -> Float[Tensor, "2 d"]:
    """The lowest and the highest number of each column."""
    return torch.stack([x.amin(0), x.amax(0)])


def _sd(log_variance: Tensor) -> Tensor:
    return (log_variance / 2).exp()


def _matern(squared: Tensor) -> Tensor:
    r"""$(1 + s + s^2/3) e^{-s}$ with $s = \sqrt5 r$."""
    s = (5 * squared.clamp(min=1e-24)).sqrt()
    return (1 + s + s.square() / 3) * torch.exp(-s)


def _curves(x: Float[Tensor, "*b n s"], knots: Float[Tensor, "s k"], log_length: Float[Tensor, " s"]) -> Tensor:
    """Matern features of each column alone, `(..., n, s, k)`."""
    length = log_length.exp()[:, None]
    z, u = x.unsqueeze(-1) / length, knots / length
    among = _matern((u[:, :, None] - u[:, None, :]).square())
    L = torch.linalg.cholesky(among + NUGGET * torch.eye(u.shape[-1], dtype=u.dtype))
    across = _matern((z - u).square()).movedim(-2, 0)  # (s, ..., n, k)
    flat = across.flatten(1, -2)
    return torch.linalg.solve_triangular(L.mT, flat, upper=True, left=False).reshape(across.shape).movedim(0, -2)


def _nystrom(z: Float[Tensor, "*b n d"], u: Float[Tensor, "k d"]) -> Float[Tensor, "*b n k"]:
    """Matern features of all columns together."""
    L = torch.linalg.cholesky(_matern(squared_distances(u, u)) + NUGGET * torch.eye(len(u), dtype=u.dtype))
    return torch.linalg.solve_triangular(L.mT, _matern(squared_distances(z, u)), upper=True, left=False)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of the rows of a and b."""
    return (a.square().sum(-1)[..., None] + b.square().sum(-1) - 2 * a @ b.mT).clamp(min=0)


def _knots(column: Tensor) -> Tensor:
    """`KNOTS` different inputs, among them every value of a column that has no more than these."""
    values = torch.unique(column)
    if len(values) > KNOTS:
        values = torch.unique(torch.as_tensor(np.quantile(column.numpy(), np.linspace(0, 1, KNOTS))))
    while len(values) < KNOTS:  # halve the widest gap
        widest = int(torch.diff(values).argmax())
        middle = (values[widest] + values[widest + 1]) / 2
        values = torch.sort(torch.cat([values, middle[None]])).values
    return values


def _centres(x: Tensor, random: np.random.Generator) -> Tensor:
    """At most `POINTS` different rows: all of them, or the means of clusters where there are more."""
    sample = x[torch.as_tensor(random.permutation(len(x))[:2000])]
    rows = torch.unique(x.round(decimals=9), dim=0) if len(x) <= 20_000 else sample
    if len(rows) <= POINTS:
        return rows
    centres = sample[torch.as_tensor(random.permutation(len(sample))[:POINTS])]
    for _ in range(10):
        nearest = squared_distances(sample, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=len(centres)).to(x.dtype)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
    return torch.unique(centres.round(decimals=9), dim=0)
