"""How good predictions of new groups are: measured on groups held out, beside what one would do without the others."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.groups.prior import lifted
from metavib.likelihoods import Gaussian, Warped
from metavib.likelihoods.prediction import RealPrediction
from metavib.marginals import Normal, Student
from metavib.model import Model
from metavib.tasks.inputs import Points
from metavib.tasks.scaling import Outputs
from metavib.tasks.task import Examples, Task

KNOWN = (0, 1, 3, 5, 10)  # K, rows known of a group
GROUPS, QUERIES = 200, 30  # groups held out, and rows of each predicted
LIFTS = (1.0, 0.5, 0.0)  # where predicted outputs may lie between those at the median of the function, and the mean
LEVEL = 0.9  # of intervals
AKAIKE = 1.0  # what a parameter costs, in the logarithm of the error times the number of groups


class Held(NamedTuple):
    """A model, and groups that it knows nothing of: their rows, and those left out since they cannot be right."""

    model: Model
    groups: list[np.ndarray]
    aside: list[np.ndarray]


class Row(NamedTuple):
    """Predictions with K rows `known` of each of some `groups`, in the units of the outputs.

    `rmse` is their root mean squared error and `coverage` the share of outputs inside 90 % intervals, which are `width`
    wide on average; `shared` is the error of one function for all groups, `alone` that of a ridge regression on the
    known rows of each group alone.
    """

    known: int
    groups: int
    rmse: float
    coverage: float
    width: float
    shared: float
    alone: float


class Report(NamedTuple):
    """How good predictions of groups held out are.

    Example:
        >>> print(Report([Row(0, 9, 2.0, 0.91, 6.5, 2.0, 3.0), Row(5, 9, 1.0, 0.9, 3.0, 2.0, 1.5)]))
        rows known of a new group  typical error  one function for all  each group alone  90 % intervals hold
                                0              2                     2                 3                 91 %
                                5              1                     2               1.5                 90 %

    Attributes:
        rows: for each number of known rows.
        logarithms: of what logarithms are taken, in a sentence (`metavib.groups.prior.logarithms`).
    """

    rows: list[Row]
    logarithms: str = ""

    def __str__(self) -> str:
        titles = (
            "rows known of a new group",
            "typical error",
            "one function for all",
            "each group alone",
            "90 % intervals hold",
        )
        cells = [
            (f"{r.known}", f"{r.rmse:.4g}", f"{r.shared:.4g}", f"{r.alone:.4g}", f"{100 * r.coverage:.0f} %")
            for r in self.rows
        ]
        return "\n".join([in_columns(titles, cells), *([self.logarithms] if self.logarithms else [])])


def in_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells below their titles; a sentence where there are none, since groups were too few.

    Args:
        titles: of the columns.
        rows: their cells, of each number of known rows.

    Example:
        >>> print(in_columns(("rows known", "error"), []))
        There are too few groups to hold some out: how good predictions of new ones are is not known.
    """
    if not rows:
        return "There are too few groups to hold some out: how good predictions of new ones are is not known."
    lines = [["  ".join(titles)], *([cell.rjust(len(t)) for cell, t in zip(row, titles, strict=True)] for row in rows)]
    return "\n".join("  ".join(line) for line in lines)


@torch.no_grad()
def lift(held: Sequence[Held], x: Tensor, y: Tensor, weight: Tensor, units: Outputs) -> float:
    r"""Where log-normal outputs are best predicted, between the function's median and the mean: by groups held out.

    Errors with different numbers of known rows count alike, by their logarithms. The mean over all functions that may
    be is far above most outputs where little is known, and where it errs it errs by multiples; a dozen groups hardly
    show that. So it is one parameter more, at the price that Akaike's criterion has for one, with G groups as the
    observations: $G \log \mathrm{error}^2 + 2$, or $1/G$ of the logarithm of the error.
    """
    errors, groups = [], max(1, sum(len(each.groups[:GROUPS]) for each in held))
    for place in LIFTS:
        moved = [each._replace(model=lifted(each.model, place)) for each in held]
        rows = report(moved, x, y, weight, np.random.default_rng(0), units).rows
        error = sum(log(max(row.rmse, 1e-12)) for row in rows) / max(1, len(rows))
        errors.append(error + place * AKAIKE / groups)
    return LIFTS[errors.index(min(errors))]


@torch.no_grad()
def report(
    held: Sequence[Held], x: Tensor, y: Tensor, weight: Tensor, random: np.random.Generator, units: Outputs
) -> Report:
    """Predictions of groups held out with some of their rows known, beside baselines, in the units of the outputs."""
    orders = [(model, [random.permutation(rows) for rows in groups[:GROUPS]]) for model, groups, _ in held]
    found = []
    for known in KNOWN:
        parts = [
            _predicted(model, [o for o in of if len(o) > known], known, x, y, weight, units) for model, of in orders
        ]
        parts = [part for part in parts if part is not None]
        groups = sum(len(o) > known for _, of in orders for o in of)
        if groups < 3:
            continue
        error, shared, alone, inside, width, w = (torch.cat(column) for column in zip(*parts, strict=True))
        w = w / w.sum()
        rmse, of_all, of_each = (float((w * e.square()).sum().sqrt()) for e in (error, shared, alone))
        coverage = float((w * inside).sum())
        found.append(Row(known, groups, rmse, coverage, float((w * width).sum()), of_all, of_each))
    return Report(found)


def _predicted(
    model: Model, orders: list[np.ndarray], known: int, x: Tensor, y: Tensor, weight: Tensor, units: Outputs
) -> tuple[Tensor, ...] | None:
    """Errors, those of the two baselines, whether 90 % intervals hold, how wide they are, and weights, of all rows."""
    if not orders:
        return None
    longest = min(QUERIES, max(len(o) for o in orders) - known)
    support = torch.as_tensor(np.stack([o[:known] for o in orders]))
    padded = [np.pad(o[known : known + longest], (0, max(0, known + longest - len(o)))) for o in orders]
    query = torch.as_tensor(np.stack(padded))
    real = torch.arange(longest) < torch.tensor([len(o) - known for o in orders])[:, None]
    all_real, at = torch.ones(support.shape, dtype=torch.bool), Points(x[query], real)
    likelihood, w = model.likelihood, weight[support]
    assert isinstance(likelihood, Gaussian | Warped)
    known_rows = Examples(x[support], y[support], all_real)
    q = model.encoder(known_rows, at, model.prior, likelihood, weight=w).marginals()
    assert isinstance(q, Normal | Student)
    q = type(q)(*(t[real] for t in q))
    found = RealPrediction(q, likelihood, *likelihood.predict(q)).restored(units)
    first = Examples(x[support[:, :0]], y[support[:, :0]], all_real[:, :0])
    shared, _ = likelihood.predict(model(Task(first, Examples(x[query], y[query], real))))
    alone = _ridge(x[support], y[support], x[query], w)
    truth = units.nearest(units.restore(y[query][real]))
    low, high = found.interval(LEVEL)
    errors = (each - truth for each in (found.mean, units.restore(shared[real]), units.restore(alone[real])))
    return *errors, (low <= truth) & (truth <= high), high - low, weight[query][real]


def _ridge(x: Tensor, y: Tensor, at: Tensor, weight: Tensor) -> Tensor:
    """Ridge regressions, one of each group, of penalty 1 on standardised columns; the mean where rows are few."""
    if not x.shape[1]:
        return torch.zeros(at.shape[:2], dtype=at.dtype)
    share = weight / weight.sum(1, keepdim=True)
    level, centre = (share * y).sum(1, keepdim=True), (share.unsqueeze(-1) * x).sum(1, keepdim=True)
    if x.shape[1] < 3:
        return level.expand(at.shape[:2])
    z = x - centre
    A = z.mT @ (weight.unsqueeze(-1) * z) + torch.eye(x.shape[-1], dtype=x.dtype)
    slope = torch.linalg.solve(A, z.mT @ (weight * (y - level)).unsqueeze(-1))
    return level + ((at - centre) @ slope).squeeze(-1)
