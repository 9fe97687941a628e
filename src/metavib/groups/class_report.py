"""How good probabilities of common classes are in new groups: measured on groups held out, beside plain shares."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.groups.report import KNOWN, QUERIES, in_columns
from metavib.groups.rows import block
from metavib.likelihoods import ClassLikelihood
from metavib.model import Model
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples, Task

USUAL, SMOOTHED = "shares of all groups", "smoothed shares of the K rows"
ROWS = 2.0  # rows that the shares of all groups count for


class HeldOut(NamedTuple):
    """A model, groups that it knows nothing of by their rows in some order, and the rows of others."""

    model: Model
    groups: Sequence[np.ndarray]
    others: np.ndarray


class ClassRow(NamedTuple):
    """Predictions with K rows `known` of each of some `groups`, over which these numbers are means.

    `log_loss` is minus the mean log probability of the classes of other rows, and `accuracy` the share of them that
    have the most probable class; `usual` is the log loss of the shares of classes among all groups, and `smoothed` that
    of their shares among the known rows of each group, drawn towards those.
    """

    known: int
    groups: int
    log_loss: float
    accuracy: float
    usual: float
    smoothed: float


class ClassReport(NamedTuple):
    """How good probabilities of classes are in groups held out.

    Example:
        >>> print(ClassReport([ClassRow(0, 9, 0.6, 0.7, 0.6, 0.6), ClassRow(5, 9, 0.25, 0.9, 0.6, 0.5)]))
        rows known of a new group  log loss  shares of all groups  smoothed shares of the K rows  classes right
                                0     0.600                 0.600                          0.600           70 %
                                5     0.250                 0.600                          0.500           90 %

    Attributes:
        rows: for each number of known rows.
    """

    rows: list[ClassRow]

    def __str__(self) -> str:
        titles = ("rows known of a new group", "log loss", USUAL, SMOOTHED, "classes right")
        cells = [
            (f"{r.known}", f"{r.log_loss:.3f}", f"{r.usual:.3f}", f"{r.smoothed:.3f}", f"{100 * r.accuracy:.0f} %")
            for r in self.rows
        ]
        return in_columns(titles, cells)


def shares(y: Tensor, classes: int, tasks: Task, *, weight: Tensor | None = None) -> dict[str, Tensor]:
    """Probabilities `(tasks, v, classes)`: shares among all rows, and those among a group's known rows, smoothed.

    Args:
        y: the classes of all rows that were learned from.
        classes: how many there are.
        tasks: groups `(tasks, ...)` to predict.
        weight: how many rows each of those learned from counts as; one where None.
    """
    usual = torch.bincount(y, weights=weight, minlength=classes).double() + 0.5
    usual = usual / usual.sum()
    one_hot = torch.nn.functional.one_hot(tasks.support.y, classes) * tasks.support.mask.unsqueeze(-1)
    counts = one_hot.sum(-2).double() + ROWS * usual
    own = counts / counts.sum(-1, keepdim=True)
    shape = (*tasks.query.y.shape, classes)
    return {USUAL: usual.expand(shape), SMOOTHED: own.unsqueeze(-2).expand(shape)}


@torch.no_grad()
def report(held: Sequence[HeldOut], x: Tensor, y: Tensor, weight: Tensor) -> ClassReport:
    """Predictions of groups held out with the first of their rows known, where three groups at least have more rows."""
    found = []
    for known in KNOWN:
        large = [each._replace(groups=[rows for rows in each.groups if len(rows) > known]) for each in held]
        scores = [_scores(each, known, x, y, weight) for each in large if each.groups]
        groups = sum(len(each.groups) for each in large)
        if groups >= 3:
            found.append(ClassRow(known, groups, *torch.cat(scores, 1).mean(1).tolist()))
    return ClassReport(found)


def _scores(held: HeldOut, known: int, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Log loss, accuracy, and the log losses of plain shares, of each group: `(4, groups)`."""
    model, likelihood = held.model, held.model.likelihood
    assert isinstance(likelihood, ClassLikelihood)
    few = torch.as_tensor(np.stack([rows[:known] for rows in held.groups]))
    asked, real = block([rows[known : known + QUERIES] for rows in held.groups])
    support = Examples(x[few], y[few], torch.ones_like(few, dtype=torch.bool))
    task = Task(support, Examples(x[asked], y[asked], real > 0))
    options: Any = {"weight": weight[few]}
    at = Points(task.query.x, task.query.mask)
    q = model.encoder(support, at, model.prior, likelihood, **options).marginals()
    p = likelihood.predict(q)
    plain = shares(y[held.others], p.shape[-1], task, weight=weight[held.others])

    def log_loss(p: Tensor) -> Tensor:
        return -p.gather(-1, task.query.y.unsqueeze(-1)).squeeze(-1).log()

    of_rows = (log_loss(p), p.argmax(-1) == task.query.y, log_loss(plain[USUAL]), log_loss(plain[SMOOTHED]))
    counted = weight[asked] * real
    return torch.stack([(values * counted).sum(1) / counted.sum(1) for values in of_rows])
