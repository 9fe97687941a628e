"""Tasks from a table of one's own: inputs, outputs, and a task id each row."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metavib.random import Stream, draw
from metavib.tasks.source import check_sizes
from metavib.tasks.task import Examples, Task, examples


class TableTasks:
    """Tasks that are the rows of a table with the same id, split anew into support and query each time.

    Args:
        x: inputs, `(rows, features)` or `(rows,)`.
        y: outputs, `(rows,)`.
        ids: the task of each row, any values that can be compared for equality.
        shots: support points of a task; a task with too few rows gives up to all but one of them.
        queries: query points of a task, at most; the rest of the rows, as far as they go.
        min_shots: where set, each task drawn has a number of support points of its own, uniform in [min_shots, shots].
        weight: how much more often than others a row is drawn, `(rows,)`, above zero; all as often where None.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        ids: Any,
        *,
        shots: int = 10,
        queries: int = 10,
        min_shots: int | None = None,
        weight: Tensor | None = None,
    ) -> None:
        rows = examples(x, y, name="table")
        if rows.y.ndim != 1:
            raise ValueError(f"a table has one row a point: y must be (rows,); got {tuple(rows.y.shape)}.")
        ids = _ids(ids)
        if ids.shape != (len(rows.y),):
            raise ValueError(f"task ids must be one a row, ({len(rows.y)},); got {ids.shape}.")
        check_sizes(shots, queries, min_shots)
        self.shots, self.queries, self.min_shots = shots, queries, min_shots
        self.names, number = np.unique(ids, return_inverse=True)
        counts = np.bincount(number, minlength=len(self.names))
        short = [str(name) for name, count in zip(self.names, counts, strict=True) if count < 2]
        if short:
            raise ValueError(
                f"every task needs at least two rows, one to learn from and one to predict; "
                f"{len(short)} of {len(self.names)} have one: {', '.join(short[:5])}{' ...' * (len(short) > 5)}."
            )
        # Rows sorted by task, and where each task's begin.
        order = torch.as_tensor(np.argsort(number, kind="stable"))
        self._x, self._y = rows.x[order], rows.y[order]
        self._weight = None if weight is None else weight[order]
        self._counts = torch.as_tensor(counts)
        self._starts = torch.cumsum(self._counts, 0) - self._counts

    def __len__(self) -> int:
        return len(self.names)

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Tasks drawn with replacement, rows of each without."""
        drawn = draw(torch.randint, len(self), shape, stream=generator)
        return self.split(drawn, generator)

    def split(self, number: Tensor, generator: Stream) -> Task:
        """The tasks of given numbers, each split at random into support and query."""
        counts = self._counts[number].unsqueeze(-1)
        shots = torch.full_like(counts, self.shots)
        if self.min_shots is not None:
            shots = draw(torch.randint, self.min_shots, self.shots + 1, counts.shape, stream=generator)
        shots = torch.minimum(shots, counts - 1)
        # A random order of each task's rows: sort random keys, those past the task's end last.
        keys = draw(torch.rand, *number.shape, int(self._counts.max()), stream=generator)
        places = torch.arange(keys.shape[-1])
        if self._weight is not None:  # times at which rows come, each at its own rate: the first ones are drawn
            rows = (self._starts[number].unsqueeze(-1) + places).clamp(max=len(self._weight) - 1)
            keys = -torch.log1p(-keys) / self._weight[rows]
        keys = keys.masked_fill(places >= counts, inf)
        order = keys.argsort(-1)
        support = self._take(number, order, torch.zeros_like(shots), shots, self.shots)
        query = self._take(number, order, shots, counts - shots, self.queries)
        return Task(support, query)

    def _take(self, number: Tensor, order: Tensor, first: Tensor, available: Tensor, size: int) -> Examples:
        slots = torch.arange(size)
        mask = slots < available
        within = order.gather(-1, (first + slots).clamp(max=order.shape[-1] - 1))
        rows = torch.where(mask, self._starts[number].unsqueeze(-1) + within, 0)
        x, y = self._x[rows], self._y[rows]
        lifted = mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
        return Examples(torch.where(lifted, x, 0), torch.where(mask, y, 0), mask)


def _ids(ids: Any) -> np.ndarray:
    """Task ids as an array; a missing one is refused, since rows without a task would become a task."""
    ids = np.asarray(ids)
    missing = sum(value is None or value != value for value in ids.ravel().tolist())
    if missing:
        raise ValueError(f"{missing} of {ids.size} rows have no task id (None or NaN); drop or fill them first.")
    return ids


def split_tasks(ids: Any, *, fractions: Sequence[float] = (0.7, 0.15, 0.15), seed: int = 0) -> tuple[np.ndarray, ...]:
    """Row masks that divide a table by task: no task has rows in two parts.

    Args:
        ids: the task of each row.
        fractions: share of the tasks each part gets, at least one task each.
        seed: decides which.
    """
    ids = _ids(ids)
    names = np.unique(ids)
    parts = len(fractions)
    if len(names) < parts:
        raise ValueError(
            f"dividing by task into {parts} parts needs at least {parts} tasks; the id column has {len(names)}"
            f" ({', '.join(map(str, names[:3]))}). Is it the right column?"
        )
    shuffled = np.random.default_rng(seed).permutation(names)
    sizes = np.maximum(1, np.round(np.asarray(fractions) / np.sum(fractions) * len(names)).astype(int))
    while sizes.sum() != len(names):  # rounding: settle the difference on the largest part
        sizes[np.argmax(sizes)] += np.sign(len(names) - sizes.sum())
    chunks = np.split(shuffled, np.cumsum(sizes)[:-1])
    return tuple(np.isin(ids, chunk) for chunk in chunks)
