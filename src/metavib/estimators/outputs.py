"""Outputs of several columns, each of which has a regressor of its own: how they are taken apart and checked.

What one output says of another is not learned: the columns of a `FewShotRegressor` predict, to the last bit, what a
`FewShotRegressor` of each would. A row may lack some of its outputs; it serves those that it has.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import _safe_indexing, check_consistent_length

from metavib.data.table import Table, cells_of, in_memory
from metavib.estimators.base import is_frame
from metavib.files import naming
from metavib.groups import Report
from metavib.likelihoods import Likelihood
from metavib.tasks import scaling as scalings

Name = str | int
"""Of an output: that of its column in a data frame, or the place of its column in an array."""


class Reports(dict[Name, Report]):
    """The reports of several outputs, by their names; printed, they stand one below the other."""

    def __str__(self) -> str:
        return "\n\n".join(f"{name}:\n{report}" for name, report in self.items())


def are_several(y: Any) -> bool:
    """Whether outputs have more than one column."""
    if is_frame(y):
        return len(in_memory(y).names) > 1
    shape = np.asarray(y).shape
    return len(shape) == 2 and shape[1] > 1


def columns_of(y: Any, names: Sequence[Name] | None = None) -> dict[Name, np.ndarray]:
    """The columns of outputs `(n, p)` as numbers, NaN where a row lacks one; all checked before any is learned from.

    Args:
        y: a data frame or an array.
        names: those of fit, in the order of which columns come back; None: those that y has.

    Raises:
        ValueError: a cell is no finite number, a row lacks all of its outputs, or columns are not those of fit.

    Example:
        >>> columns_of([[1, 2], [3, None]])
        {0: array([1., 3.]), 1: array([ 2., nan])}
    """
    if is_frame(y):
        table = in_memory(y)
        found: list[Name] = list(table.names)
    else:
        cells = np.asarray(y)
        if names is not None and cells.shape == (0,):  # no rows, which have no columns to count
            cells = np.zeros((0, len(names)))
        cells = cells[:, None] if cells.ndim == 1 else cells
        found = list(range(cells.shape[1]) if names is None or cells.shape[1] != len(names) else names)
        table = Table({str(name): cells_of(column, str(name)) for name, column in zip(found, cells.T, strict=True)})
    if names is not None and set(found) != set(names):
        raise ValueError(
            f"y must have the columns of fit, {', '.join(map(repr, names))}; got {', '.join(map(repr, found))}."
        )
    columns = {name: table.numbers(str(name)) for name in names or found}
    for name, column in columns.items():
        scalings.check_finite(column[:, None], names=(str(name),), missing="mean")
    bare = np.flatnonzero(np.isnan(list(columns.values())).all(0))
    if len(bare):
        raise ValueError(
            f"y is missing (NaN or None) in all columns of {len(bare)} of {len(table)} rows, the first of them row "
            f"{bare[0] + 1}: a row needs one output at least. Leave these rows out."
        )
    return columns


class Share(NamedTuple):
    """The rows that have one of several outputs: inputs, that output, and what else there is of each row."""

    X: Any
    y: np.ndarray
    others: dict[str, Any]
    whole: bool

    def said_of(self, name: Name) -> str:
        """How warnings and errors about these rows begin: rows are counted among those that have the output."""
        return f"output {name!r}" + (", among the rows that have it" if not self.whole else "")

    def naming(self, name: Name) -> AbstractContextManager[None]:
        """Has errors begin so too, where rows are counted otherwise than the user does."""
        return nullcontext() if self.whole else naming(self.said_of(name))


def share_of(column: np.ndarray, X: Any, **others: Any) -> Share:
    """The rows that have an output.

    Args:
        column: the output of each row, NaN where it has none.
        X: the inputs of all rows, an array or a frame.
        others: what else there is of each row, such as its task and weight; None where there is nothing.

    Example:
        >>> share_of(np.array([5.0, np.nan]), [[1.0], [2.0]], tasks=["a", "b"])[:3]
        ([[1.0]], array([5.]), {'tasks': ['a']})
    """
    check_consistent_length(X, column, *others.values())
    rows = np.flatnonzero(~np.isnan(column))
    if len(rows) == len(column):
        return Share(X, column, others, whole=True)
    some = {key: None if of_rows is None else _safe_indexing(of_rows, rows) for key, of_rows in others.items()}
    return Share(_safe_indexing(X, rows), column[rows], some, whole=False)


def check_likelihood(columns: Mapping[Name, np.ndarray], likelihood: Likelihood) -> None:
    """Refuses outputs that a likelihood has no room for, by the name of their column."""
    for name, column in columns.items():
        with naming(f"column {name!r}"):
            likelihood.check(torch.tensor(column[~np.isnan(column)]))


def check_values(columns: Mapping[Name, np.ndarray]) -> None:
    """Refuses an output that no row has, where there is nothing to be done without."""
    scalings.check_learnable(np.stack(list(columns.values()), 1), names=list(map(str, columns)))
