"""From rows with a task id (or a class) each to the tasks that estimators train and validate on."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from metavib.tasks.table import TableTasks
from metavib.tasks.task import Examples, Task, examples, stack

WHOLE_TASKS = 5  # with fewer tasks than this, rows are held out rather than tasks
SPLITS = 8  # validation tasks, where their queries are always the same rows
QUERIES = 256  # of those tasks, at most


class Rows(NamedTuple):
    """A table ready for training: inputs `x (n, *event)`, outputs `y (n,)`, numbers of tasks `ids (n,)`.

    `weight (n,)` is how much each row says, relative to others; one where None.
    """

    x: Tensor
    y: Tensor
    ids: np.ndarray
    weight: Tensor | None = None

    def select(self, which: np.ndarray) -> "Rows":
        """Some of the rows, by mask or index."""
        index = torch.as_tensor(which)
        weight = None if self.weight is None else self.weight[index]
        return Rows(self.x[index], self.y[index], self.ids[which], weight)


class Shots(NamedTuple):
    """Sizes of the tasks drawn: support points (of a class) uniform in [low, high], at most `queries` query points."""

    low: int
    high: int
    queries: int


class ClassTasks:
    """Tasks of N classes: each draws a task id, N of the classes in it, and rows of each for support and query.

    Labels are the places of the classes in the draw, 0 .. N - 1. A class with a single row in a task cannot be in both
    support and query and is left out, and so is a task with fewer than two classes.

    Args:
        rows: with class labels as outputs.
        ways: the largest N; a task with fewer classes has all of them.
        shots: sizes, of a class.
    """

    def __init__(self, rows: Rows, *, ways: int, shots: Shots) -> None:
        pairs = np.stack([rows.ids, rows.y.numpy()], 1)
        classes, group, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
        group = group.reshape(-1)
        task, few = classes[:, 0], counts < 2
        rich = np.isin(task, [t for t in np.unique(task) if np.sum((task == t) & ~few) >= 2])
        kept = np.flatnonzero(~few & rich)
        if not len(kept):
            raise ValueError(
                "no task has two classes of two rows each, one to learn from and one to predict; got "
                f"{len(rows.ids)} rows of {len(np.unique(pairs[:, 1]))} class(es) in {len(np.unique(task))} task(s)."
            )
        chosen = np.isin(group, kept)
        used = rows.select(chosen)
        self._rows = TableTasks(
            used.x,
            torch.zeros(len(used.y)),
            np.searchsorted(kept, group[chosen]),
            shots=shots.high,
            queries=shots.queries,
            min_shots=shots.low,
            weight=used.weight,
        )
        self._members = [torch.as_tensor(np.flatnonzero(task[kept] == t)) for t in np.unique(task[kept])]
        self._ways = torch.tensor([min(ways, len(members)) for members in self._members])

    def sample(self, count: int, generator: Generator) -> tuple[Task, int]:
        """Tasks of one number of classes, which is returned beside them; the first task drawn decides it."""
        first = torch.randint(len(self._members), (1,), generator=generator)
        ways = int(self._ways[first])
        like = (self._ways == ways).nonzero().flatten()
        drawn = like[torch.randint(len(like), (count,), generator=generator)].tolist()
        classes = [self._choose(self._members[t], ways, generator) for t in drawn]
        split = self._rows.split(torch.stack(classes), generator)
        return Task(*(_by_place(side) for side in split)), ways

    def _choose(self, members: Tensor, ways: int, generator: Generator) -> Tensor:
        return members[torch.randperm(len(members), generator=generator)[:ways]]


def _by_place(drawn: Examples) -> Examples:
    """`(..., N, each)` to `(..., N * each)`, labelled by place."""
    x, _, mask = drawn
    ways, each = mask.shape[-2:]
    y = torch.arange(ways).repeat_interleave(each).expand(*mask.shape[:-2], -1)
    mask = mask.flatten(-2)
    return Examples(x.flatten(mask.ndim - 1, mask.ndim), y.masked_fill(~mask, 0), mask)


def hold_out(ids: np.ndarray, strata: np.ndarray, fraction: float, random: np.random.RandomState) -> np.ndarray:
    """Which rows are kept for validation, as a mask: those of whole tasks, or where there are few, rows of each.

    Args:
        ids: the task of each row.
        strata: classes, of which each keeps a row to train on; all the same for real outputs.
        fraction: share of the tasks, or rows.
        random: decides.
    """
    held = np.zeros(len(ids), bool)
    if fraction <= 0:
        return held
    tasks = np.unique(ids)
    if len(tasks) >= WHOLE_TASKS:
        chosen = random.permutation(tasks)[: max(1, round(fraction * len(tasks)))]
        return np.isin(ids, chosen)
    for task in tasks:
        for stratum in np.unique(strata[ids == task]):
            places = np.flatnonzero((ids == task) & (strata == stratum))
            held[random.permutation(places)[: int(fraction * len(places))]] = True
    return held


def row_tasks(
    rows: Rows, held: np.ndarray, strata: np.ndarray, shots: Shots, random: np.random.RandomState
) -> list[Task]:
    """Validation tasks, a batch for each id: queries are rows held out, supports are others, drawn several times."""
    batches = []
    numbers = [t for t in np.unique(rows.ids) if held[rows.ids == t].any()]
    for number in numbers:
        mine = rows.ids == number
        query = random.permutation(np.flatnonzero(mine & held))[:QUERIES]
        tasks = []
        for _ in range(max(2, SPLITS // len(numbers))):
            support: list[int] = []
            for stratum in np.unique(strata[mine]):
                places = np.flatnonzero(mine & ~held & (strata == stratum))
                support += random.permutation(places)[: random.randint(shots.low, shots.high + 1)].tolist()
            tasks.append(Task(_examples(rows, support), _examples(rows, query)))
        batches.append(stack(tasks))
    return batches


def _examples(rows: Rows, which: Sequence[int] | np.ndarray) -> Examples:
    index = torch.as_tensor(np.asarray(which, dtype=np.int64))
    return examples(rows.x[index], rows.y[index])
