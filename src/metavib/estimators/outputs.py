"""Outputs of several columns, each of which has a regressor of its own: how they are taken apart and checked.

What one output says of another is not learned: the columns of a `FewShotRegressor` predict, to the last bit, what a
`FewShotRegressor` of each would.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from metavib.data.table import Table, cells_of, in_memory
from metavib.estimators.base import is_frame
from metavib.files import naming
from metavib.likelihoods import Likelihood
from metavib.tasks import scaling as scalings

Name = str | int
"""Of an output: that of its column in a data frame, or the place of its column in an array."""


def are_several(y: Any) -> bool:
    """Whether outputs have more than one column."""
    if is_frame(y):
        return len(in_memory(y).names) > 1
    shape = np.asarray(y).shape
    return len(shape) == 2 and shape[1] > 1


def columns_of(y: Any, names: Sequence[Name] | None = None) -> dict[Name, np.ndarray]:
    """The columns of outputs `(n, p)` as numbers, all of them checked before any is learned from.

    Args:
        y: a data frame or an array.
        names: those of fit, in the order of which columns come back; None: those that y has.

    Raises:
        ValueError: a cell is missing or no finite number, or columns are not those of fit.

    Example:
        >>> columns_of([[1, 2], [3, 4]])
        {0: array([1., 3.]), 1: array([2., 4.])}
    """
    if is_frame(y):
        table = in_memory(y)
        found: list[Name] = list(table.names)
    else:
        cells = np.asarray(y)
        cells = cells[:, None] if cells.ndim == 1 else cells
        found = list(range(cells.shape[1]) if names is None or cells.shape[1] != len(names) else names)
        table = Table({str(name): cells_of(column, str(name)) for name, column in zip(found, cells.T, strict=True)})
    if names is not None and set(found) != set(names):
        raise ValueError(
            f"y must have the columns of fit, {', '.join(map(repr, names))}; got {', '.join(map(repr, found))}."
        )
    columns = {name: table.outputs(str(name)) for name in names or found}
    for name, column in columns.items():
        scalings.check_finite(column[:, None], names=(str(name),))
    return columns


def check_likelihood(columns: Mapping[Name, np.ndarray], likelihood: Likelihood) -> None:
    """Refuses outputs that a likelihood has no room for, by the name of their column."""
    for name, column in columns.items():
        with naming(f"column {name!r}"):
            likelihood.check(torch.tensor(column))
