r"""Boosted trees over all rows of a table: one column more, for steps and for what columns do together.

The shared function is a sum of lines, curves and one smooth process of all columns. Where a yes depends on steps, or on
two columns of ten that matter together, boosted trees find it with fewer rows. So their log-odds

$$t(x) = \eta \sum_m v_{m,\,\mathrm{leaf}_m(x)}$$

may become a column of the table, beside the others (`WithTrees`): the evidence of the groups sets how much it counts,
and groups may differ in it, as in any column.

Trees know the labels of the rows that they are grown on. So groups are divided into folds, and the column of a row that
anything is learned from is that of trees grown without the row's fold; rows of new groups get that of all trees.

Each tree has eight leaves and follows the gradient and the curvature of the log loss (Friedman 2001; Chen and Guestrin
2016): a leaf's value is $\sum r / (\lambda + \sum h)$ over its rows, with $r = y - p$ and $h = p(1-p)$, and a split is
where $\sum (\sum r)^2 / (\lambda + \sum h)$ over both sides is largest.
"""

from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from metavib.networks import Backbone
from metavib.priors import FunctionPrior
from metavib.tasks.inputs import Inputs

TREES, DEPTH, RATE = 100, 3, 0.1
BINS = 64  # of a column, between which splits are tried
PENALTY, LEAST = 1.0, 1.0  # lambda, and the curvature that a side of a split has at least
DRAWN = 0.7  # share of the rows that each tree is grown on
ROWS = 10_000  # at most
SMALLEST = 1e-3  # deviation of the column that it is divided by, at least
INNER, LEAVES = 2**DEPTH - 1, 2**DEPTH


@final
class Trees(nn.Module):
    """Boosted trees of eight leaves each; what they sum up to is made a column of mean 0 and variance 1.

    Args:
        trees: how many.

    Example:
        A yes where one of two columns is above zero, and not both.

        >>> random = np.random.default_rng(0)
        >>> x = random.normal(size=(500, 2))
        >>> trees = grow(torch.tensor(x), torch.tensor((x[:, 0] > 0) != (x[:, 1] > 0)).double())
        >>> trees(torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()).gt(0).tolist()
        [False, True, True, False]
    """

    column: Tensor
    threshold: Tensor
    leaf: Tensor
    scale: Tensor

    def __init__(self, trees: int = TREES) -> None:
        super().__init__()
        self.register_buffer("column", torch.zeros(trees, INNER, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(trees, INNER, dtype=torch.float64))
        self.register_buffer("leaf", torch.zeros(trees, LEAVES, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor([0.0, 1.0], dtype=torch.float64))  # mean and deviation

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """The column at some rows."""
        flat = x.reshape(-1, x.shape[-1])
        total = flat.new_zeros(len(flat))
        for column, threshold, leaf in zip(self.column, self.threshold, self.leaf, strict=True):
            at = torch.zeros(len(flat), dtype=torch.int64, device=x.device)
            for _ in range(DEPTH):
                right = flat.gather(1, column[at].unsqueeze(1)).squeeze(1) > threshold[at]
                at = 2 * at + 1 + right
            total = total + leaf[at - INNER]
        return ((total - self.scale[0]) / self.scale[1]).reshape(x.shape[:-1])


@final
class WithTrees(Backbone):
    """Features of rows with one column more, that of trees.

    Args:
        inner: features of the columns and, last, of the trees.
        trees: what the last is made by.
    """

    pointwise = True

    def __init__(self, inner: Backbone, trees: Trees) -> None:
        super().__init__()
        self.inner, self.trees, self.features = inner, trees, inner.features

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, d)`."""
        return self.inner(inputs._replace(x=beside(inputs.x, self.trees(inputs.x))))


def with_trees(prior: nn.Module, trees: Trees) -> FunctionPrior:
    """A prior over functions of rows that lack the column of trees."""
    assert isinstance(prior, FunctionPrior) and isinstance(prior.network.body, Backbone)
    found = FunctionPrior(WithTrees(prior.network.body, trees), prior.kernel)
    return found.double().requires_grad_(False).eval()


def beside(x: Float[Tensor, "*b n d"], column: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n D"]:
    """Rows with a column more."""
    return torch.cat([x, column.unsqueeze(-1)], -1)


class Grown(NamedTuple):
    """Trees of all groups, those without each fold of them, and the column that rows are learned from with."""

    trees: Trees
    without: list[Trees]
    column: Tensor


def grow_folds(x: Tensor, y: Tensor, weight: Tensor, fold: np.ndarray) -> Grown:
    """Trees over all rows, and over those of all folds but one.

    Args:
        x: rows `(rows, d)`.
        y: 1 for a yes, 0 for a no.
        weight: how many rows each stands for.
        fold: of each row, from 0; rows of one group are in one fold.
    """
    without, column = [], torch.zeros_like(y)
    for k in range(int(fold.max()) + 1):
        mine = torch.as_tensor(fold == k)
        without.append(grow(x[~mine], y[~mine], weight[~mine]))
        column[mine] = without[-1](x[mine])
    trees = grow(x, y, weight)
    scale = torch.stack([column.mean(), column.std(correction=0).clamp(min=SMALLEST)])
    for each in (trees, *without):
        each.scale.copy_(scale)
    return Grown(trees, without, (column - scale[0]) / scale[1])


def grow(x: Float[Tensor, "rows d"], y: Float[Tensor, " rows"], weight: Tensor | None = None) -> Trees:
    """Boosted trees of the log-odds of a yes, beyond those of all rows together.

    Args:
        x: rows.
        y: 1 for a yes, 0 for a no.
        weight: how many rows each stands for; one where None.
    """
    random = np.random.default_rng(0)
    some = random.permutation(len(x))[:ROWS]
    rows, yes = x.numpy()[some], y.numpy()[some]
    w = np.ones(len(some)) if weight is None else weight.numpy()[some]
    cuts = [_cuts(column) for column in rows.T]
    bins = np.stack([np.searchsorted(cut, column) for cut, column in zip(cuts, rows.T, strict=True)], 1)
    trees, p = Trees(), np.clip(np.average(yes, weights=w), 1e-3, 1 - 1e-3)
    f = np.full(len(yes), np.log(p / (1 - p)))
    for m in range(TREES):
        p = 1 / (1 + np.exp(-f))
        drawn = w * (random.random(len(yes)) < DRAWN)
        columns, places, at = _tree(bins, drawn * (yes - p), drawn * p * (1 - p))
        value = RATE * _values(drawn * (yes - p), drawn * p * (1 - p), at, LEAVES)
        f += value[at]
        trees.column[m] = torch.as_tensor(columns)
        trees.threshold[m] = torch.tensor(
            [_at(cuts[j], i) for j, i in zip(columns.tolist(), places.tolist(), strict=True)]
        )
        trees.leaf[m] = torch.as_tensor(value)
    return trees


def _cuts(column: np.ndarray) -> np.ndarray:
    """Where a column may be split: between its values, or between quantiles where it has many."""
    values = np.unique(column)
    if len(values) > BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, BINS)))
    return (values[1:] + values[:-1]) / 2


def _at(cuts: np.ndarray, place: int) -> float:
    """A threshold; none that a row could be above where there is no split."""
    return float(cuts[place]) if place < len(cuts) else np.inf


def _tree(bins: np.ndarray, r: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns and places of the splits of a tree, from its root on, and the leaf of each row."""
    rows, d = bins.shape
    columns, places = np.zeros(INNER, dtype=np.int64), np.full(INNER, BINS, dtype=np.int64)
    at = np.zeros(rows, dtype=np.int64)  # among the nodes of a level
    for level in range(DEPTH):
        nodes = 2**level
        index = ((at[:, None] * d + np.arange(d)) * BINS + bins).ravel()
        left = [
            np.bincount(index, np.repeat(s, d), nodes * d * BINS).reshape(nodes, d, BINS).cumsum(-1) for s in (r, h)
        ]
        gain = _gain(*left)
        flat = gain.reshape(nodes, -1)
        best = flat.argmax(1)
        found = flat[np.arange(nodes), best] > 0
        mine = nodes - 1 + np.arange(nodes)
        columns[mine] = np.where(found, best // BINS, 0)
        places[mine] = np.where(found, best % BINS, BINS)
        at = 2 * at + (bins[np.arange(rows), columns[mine][at]] > places[mine][at])
    return columns, places, at


def _gain(r: np.ndarray, h: np.ndarray) -> np.ndarray:
    """What splits after each bin add to the square over the curvature; minus infinity where a side has too little."""
    whole_r, whole_h = r[..., -1:], h[..., -1:]
    gain = r**2 / (h + PENALTY) + (whole_r - r) ** 2 / (whole_h - h + PENALTY) - whole_r**2 / (whole_h + PENALTY)
    return np.where((h >= LEAST) & (whole_h - h >= LEAST), gain, -np.inf)


def _values(r: np.ndarray, h: np.ndarray, at: np.ndarray, leaves: int) -> np.ndarray:
    return np.bincount(at, r, leaves) / (np.bincount(at, h, leaves) + PENALTY)
