r"""How many rows each row of a new group counts as, where classes are common to all: chosen by groups held out.

The log-odds of a group are Gaussian under the prior. Those of real groups have other shapes: of people of whom most are
always in a union or never, the first row says nearly all, and a Gaussian of whatever variance waits for more. And where
groups change in time, early rows say less than it thinks. Either is seen in groups held out, and mended to first order
by a power of the likelihood: with $p(y \mid f)^\omega$ each row counts as $\omega$ of them. Before the first row
nothing changes.
"""

from collections.abc import Callable, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.groups import learning
from metavib.groups.class_report import HeldOut
from metavib.model import Model
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

COUNTS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
KNOWN = (1, 3, 10)  # rows of a group held out, of which the others are predicted
QUERIES = 20  # of these, at most
GROUPS = 100  # of a fold, at most
WIDTH = 0.5  # standard deviation of the logarithm of the count, beforehand
ROWS = 3000  # that the shared function is learned from without a fold


class Counted(NamedTuple):
    """The count that is best, the loss under it, and the groups held out beside models that know nothing of them."""

    best: float
    loss: float
    held: list[HeldOut]


def choose_count(
    without: Callable[[Sequence[np.ndarray], int], Callable[[float], Model]],
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    sets: Sequence[np.ndarray],
    fold: np.ndarray,
    folds: int,
    *,
    seed: int,
) -> Counted:
    """The count under which rows of groups held out are most probable, given some others of their group.

    A group counts as one row would, since its rows go together: what is compared are sums over groups of the mean log
    loss of their rows, and a prior that the count is about one.

    Args:
        without: makes models given some groups alone, none of them of a fold, one for each count.
        x: rows `(rows, d)`.
        y: the class of each.
        weight: how many rows each stands for.
        sets: the rows of each group.
        fold: of each group.
        folds: how many of the folds are held out, one after another.
        seed: of which rows are known.
    """
    random = np.random.default_rng(seed)
    losses = {count: [0.0] for count in COUNTS}
    held = []
    for k in range(folds):
        rest = [rows for rows, f in zip(sets, fold, strict=True) if f != k]
        model = without(learning.sample(rest, ROWS, learning.EVIDENCE_EACH, random), k)
        mine = [random.permutation(sets[i]) for i in np.flatnonzero(fold == k)[:GROUPS]]
        for count in COUNTS:
            losses[count] += [loss(model(count), x, y, weight, mine, known) for known in KNOWN]
        held.append((model, mine, np.concatenate([np.zeros(0, dtype=np.int64), *rest])))
    whole = {count: sum(losses[count]) / len(KNOWN) + 0.5 * (log(count) / WIDTH) ** 2 for count in COUNTS}
    best = min(COUNTS, key=whole.__getitem__)
    return Counted(best, whole[best], [HeldOut(model(best), mine, others) for model, mine, others in held])


@torch.no_grad()
def loss(model: Model, x: Tensor, y: Tensor, weight: Tensor, sets: Sequence[np.ndarray], known: int) -> float:
    """The sum over groups of the mean log loss of their rows, after the first ones of each.

    Args:
        model: of a new group.
        x: rows `(rows, d)`.
        y: the class of each.
        weight: how many rows each stands for.
        sets: the rows of each group, of which those that have no more than the known ones are passed over.
        known: how many rows are known.
    """
    sets = [rows for rows in sets if len(rows) > known]
    if not sets:
        return 0.0
    few = torch.as_tensor(np.stack([rows[:known] for rows in sets]))
    support = Examples(x[few], y[few], torch.ones_like(few, dtype=torch.bool))
    asked, real = _padded([rows[known : known + QUERIES] for rows in sets])
    options: Any = {"weight": weight[few]}
    q = model.encoder(support, Points(x[asked], real), model.prior, model.likelihood, **options).marginals()
    losses, counted = -model.likelihood.log_predictive(q, y[asked]), weight[asked] * real
    return float(((losses * counted).sum(1) / counted.sum(1)).sum())


def _padded(sets: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Rows of groups side by side, and which of them are real."""
    longest = max(len(rows) for rows in sets)
    places = torch.zeros(len(sets), longest, dtype=torch.int64)
    for i, rows in enumerate(sets):
        places[i, : len(rows)] = torch.as_tensor(rows)
    return places, torch.arange(longest) < torch.tensor([[len(rows)] for rows in sets])
