r"""What the columns of a table become as numbers, learned once and the same ever after.

A `Schema` is learned from the rows one trains on, is stored with the model as JSON, and is applied to every table that
comes later, by name: the order of the columns does not matter, nor whether they come from a file or a data frame.

* A `Number` stays what it is; a missing value is NaN.
* A `Category` (texts, truth values, columns that a frame declares categorical) becomes an indicator for each of its
  values, 1 where a row has it and 0 elsewhere; two values need one indicator only. A value that was never seen in
  training, or was too rare there, gets the share of each value among the training rows: it counts as an average row.
* A `Moment` (dates and times) becomes the number of days since 1970 and, for the cycles that the training rows cover
  (day, week, year), the sine and cosine of the place in the cycle, so that 23:59 is next to 00:00.

* A column that can say nothing of new groups is `Unused`: one without any value, or texts of which (almost) none comes
  in two groups, such as names of people or a second id.

A missing category or date is NaN in its first column alone. What is done about NaN is decided after this
(`metavib.tasks.scaling`): refuse, or take the mean and add one indicator for the column.
"""

import json
import re
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from math import pi
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from metavib.data.table import Table, is_missing, read, shown, with_commas

VALUES = 50
"""Values of a category that have an indicator, at most: the most frequent ones."""

SHARED = 0.1
"""The share of a column's texts that come in two groups or more, at least: of others no new group will have any."""

CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}
"""Lengths of the cycles of a date, in days."""

_DATE = re.compile(r"\d{4}([-/.])\d{1,2}\1\d{1,2}([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?(Z|[+-]\d{2}:?\d{2}))?)?")
_OTHER_DATE = re.compile(r"\d{1,2}(([-/.])\d{1,2}\2\d{4}|/\d{1,2}/\d{2})([T ,]+\d{1,2}:\d{2}.*)?")
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")
_EPOCH = datetime(1970, 1, 1)


class Column(ABC):
    """A column of a table, and the columns of numbers it becomes."""

    name: str

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers."""

    @abstractmethod
    def encode(self, table: Table) -> np.ndarray:
        """The column of a table as numbers `(n, k)`, with NaN in the first of them for a missing value."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All that is to be kept, for JSON."""

    @abstractmethod
    def examples(self, typical: float) -> tuple[str, ...]:
        """Cells that it may have, given a typical value of its first column of numbers."""


@final
@dataclass(frozen=True)
class Number(Column):
    """Numbers, which stay as they are.

    Example:
        >>> from metavib.data.table import in_memory
        >>> Number("hour").encode(in_memory({"hour": ["8", 9.5]}))
        array([[8. ],
               [9.5]])
    """

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Its own."""
        return (self.name,)

    def encode(self, table: Table) -> np.ndarray:
        """The numbers."""
        return table.numbers(self.name)[:, None]

    def state(self) -> dict[str, Any]:
        """Kind and name."""
        return {"kind": "number", "name": self.name}

    def examples(self, typical: float) -> tuple[str, ...]:
        """The typical number."""
        return (f"{typical:g}",)


@final
@dataclass(frozen=True)
class Category(Column):
    """Names of categories: an indicator for each value.

    Args:
        name: of the column.
        values: those that have an indicator; of two values only the second.
        shares: the share of each value among the rows that it was learned from: the numbers of an unknown value.

    Example:
        >>> from metavib.data.table import in_memory
        >>> weather = Category("weather", ("fog", "rain", "sun"), (0.2, 0.3, 0.5))
        >>> weather.encode(in_memory({"weather": ["sun", "rain", "hail"]}))
        array([[0. , 0. , 1. ],
               [0. , 1. , 0. ],
               [0.2, 0.3, 0.5]])
    """

    name: str
    values: tuple[str, ...]
    shares: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The column and the value, `weather=rain`."""
        return tuple(f"{self.name}={value}" for value in self.values[len(self.values) == 2 :])

    def encode(self, table: Table) -> np.ndarray:
        """Indicators; shares for unknown values."""
        place = {value: i for i, value in enumerate(self.values)}
        texts = table.texts(self.name)
        found = np.tile(np.array(self.shares), (len(texts), 1))
        which = np.array([place.get(value, -1) if value is not None else -1 for value in texts], dtype=np.int64)
        found[which >= 0] = np.eye(len(self.values))[which[which >= 0]]
        found = found[:, len(self.values) == 2 :]
        found[[value is None for value in texts], 0] = np.nan
        return found

    def state(self) -> dict[str, Any]:
        """Kind, name, values and shares."""
        return {"kind": "category", "name": self.name, "values": self.values, "shares": self.shares}

    def examples(self, typical: float) -> tuple[str, ...]:
        """The values."""
        return self.values


@final
@dataclass(frozen=True)
class Moment(Column):
    """Dates and times: days since 1970, and places in cycles.

    Dates are written as in 2024-02-29, with a time after it or not (2024-02-29 08:30, 2024-02-29T08:30:00+01:00), or
    are the dates of Python, NumPy, pandas, polars or Arrow; those with a time zone are taken to UTC. A time alone
    (08:30) is a part of a day.

    Args:
        name: of the column.
        cycles: some of `CYCLES`.

    Example:
        >>> from metavib.data.table import in_memory
        >>> Moment("at", ("day",)).encode(in_memory({"at": ["1970-01-02", "06:00"]})).round(2)
        array([[1.  , 0.  , 1.  ],
               [0.25, 1.  , 0.  ]])
    """

    name: str
    cycles: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The column, then sine and cosine for each cycle."""
        return (self.name, *(f"{self.name} {part} of {cycle}" for cycle in self.cycles for part in ("sine", "cosine")))

    def encode(self, table: Table) -> np.ndarray:
        """Days, then sine and cosine of each cycle; of a missing date these are 0."""
        at = days(table, self.name)
        angles = [2 * pi * (at / CYCLES[cycle] % 1.0) for cycle in self.cycles]
        waves = [wave for angle in angles for wave in (np.sin(angle), np.cos(angle))]
        return np.stack([at, *(np.nan_to_num(wave) for wave in waves)], 1)

    def state(self) -> dict[str, Any]:
        """Kind, name and cycles."""
        return {"kind": "moment", "name": self.name, "cycles": self.cycles}

    def examples(self, typical: float) -> tuple[str, ...]:
        """The typical moment, to the minute: a date where it is after the first day of 1970, else a time."""
        at = _EPOCH + timedelta(days=typical)
        return (f"{at:%H:%M}" if 0 <= typical < 1 else f"{at:%Y-%m-%d %H:%M}",)


@final
@dataclass(frozen=True)
class Unused(Column):
    """A column that says nothing of rows to come, and becomes no numbers.

    Example:
        >>> from metavib.data.table import in_memory
        >>> Unused("name").encode(in_memory({"name": ["Ann", "Bob"]})).shape
        (2, 0)
    """

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """None."""
        return ()

    def encode(self, table: Table) -> np.ndarray:
        """No numbers."""
        return np.zeros((len(table), 0))

    def state(self) -> dict[str, Any]:
        """Kind and name."""
        return {"kind": "unused", "name": self.name}

    def examples(self, typical: float) -> tuple[str, ...]:
        """An empty cell."""
        return ("",)


@final
@dataclass(frozen=True)
class Schema:
    """What the input columns of a table become.

    Args:
        columns: in the order of the model's inputs.

    Example:
        >>> from metavib.data.table import in_memory
        >>> seen = in_memory({"sky": ["sun", "rain", "sun"], "hour": [8, 9, 10]})
        >>> schema = learn(seen, ["hour", "sky"])
        >>> schema.names
        ('hour', 'sky=sun')
        >>> schema.encode(in_memory({"hour": [7], "sky": ["sun"]}))
        array([[7., 1.]])
        >>> Schema.from_json(schema.to_json()) == schema
        True
    """

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the table's columns."""
        return tuple(column.name for column in self.columns)

    @property
    def used(self) -> "Schema":
        """The columns that become numbers."""
        return Schema(tuple(column for column in self.columns if not isinstance(column, Unused)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def sources(self) -> tuple[str, ...]:
        """The table's column from which each column of numbers comes, for messages that a user understands."""
        return tuple(column.name for column in self.columns for _ in column.names)

    @property
    def parts(self) -> tuple[int, ...]:
        """The place among `columns` of the one from which each column of numbers comes."""
        return tuple(i for i, column in enumerate(self.columns) for _ in column.names)

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns that must be read as text: a category may be called 007."""
        return tuple(column.name for column in self.columns if not isinstance(column, Number))

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers."""
        return not self.texts

    def encode(self, table: Table) -> np.ndarray:
        """The columns of a table as numbers `(n, d)`, NaN for missing."""
        return np.concatenate([np.zeros((len(table), 0)), *(column.encode(table) for column in self.columns)], 1)

    def to_json(self) -> tuple[str, ...]:
        """A line of JSON for each column."""
        return tuple(json.dumps(column.state(), ensure_ascii=False) for column in self.columns)

    @staticmethod
    def from_json(lines: Iterable[str]) -> "Schema":
        """What `to_json` gave."""
        return Schema(tuple(_column(line) for line in lines))


def numbers(names: Iterable[str]) -> Schema:
    """The schema of a table of numbers."""
    return Schema(tuple(Number(name) for name in names))


def learn(
    table: Table, features: Sequence[str], *, categories: Sequence[str] = (), groups: Sequence[Any] | None = None
) -> Schema:
    """What columns become, as their cells suggest.

    A column of texts most of which are numbers is one of numbers, and the others are mistakes, which `encode` refuses;
    the same holds for dates. Columns that can say nothing of new groups are not used, which a warning tells.

    Args:
        table: the rows to train on.
        features: the columns, in the order wanted.
        categories: those of them that name categories although they look like numbers or dates (codes, years).
        groups: the group of each row, where there are groups.
    """
    for name in categories:
        if name not in features:
            raise ValueError(f"column {name!r} is to be a category and is none of the inputs {', '.join(features)}.")
    of = list(range(len(table)) if groups is None else groups)
    found = Schema(tuple(_learned(table, name, of, forced=name in categories) for name in features))
    unused = [repr(column.name) for column in found.columns if isinstance(column, Unused)]
    if unused and len(table):
        warnings.warn(
            f"{table.source}{': ' * bool(table.source)}column{'s' * (len(unused) > 1)} {', '.join(unused)} "
            f"{'are' if len(unused) > 1 else 'is'} not used, which can say nothing of new groups: (almost) no text "
            "there comes in two groups, or nothing is there at all.",
            UserWarning,
            stacklevel=2,
        )
    return found


class Rows(NamedTuple):
    """Rows of a table as numbers: `x (n, d)` with NaN for missing, `y (n,)`, `tasks (n,)`; and the names of x."""

    x: np.ndarray
    y: np.ndarray | None
    tasks: np.ndarray | None
    names: tuple[str, ...]


def read_rows(
    path: Path | str, *, features: Sequence[str] = (), target: str | None = None, task: str | None = None
) -> Rows:
    """The rows of a CSV or Parquet file as numbers.

    Args:
        path: the file.
        features: columns of the inputs, in the order wanted; empty: all but target and task.
        target: column of the outputs, numbers none of which may be missing.
        task: column of the task of each row, any text; or several, `school,year`.
    """
    table = read(path, texts=[] if task is None else [task, *task.split(",")])
    roles = check_roles(table, features, target=target, task=task)
    schema = learn(table, table.features(features, beside=roles))
    return Rows(
        schema.encode(table),
        None if target is None else table.outputs(target),
        None if task is None else np.array(table.ids(task)),
        schema.names,
    )


def check_roles(table: Table, features: Sequence[str], *, target: str | None, task: str | None) -> tuple[str, ...]:
    """The columns that are target and task, which must be there and may have no second role."""
    source = table.source or "the data"
    ids = () if task is None else table.named(task)
    roles = [("target", [] if target is None else [target]), ("task", ids)]
    for role, names in roles:
        for name in names:
            table[name]
            if name in features:
                raise ValueError(f"{source}: column {name!r} is the {role} and cannot be an input as well.")
    if target in ids:
        raise ValueError(f"{source}: column {target!r} cannot be both target and task.")
    return tuple(name for _, names in roles for name in names)


def is_text(table: Table, name: str) -> bool:
    """Whether the cells of a column are names of something rather than numbers: labels of classes, when in a target."""
    cells = table[name]
    if cells.dtype.kind != "O":
        return cells.dtype.kind == "b" or name in table.categories
    present = [cell for cell in cells.tolist() if not is_missing(cell)]
    return name in table.categories or not _mostly(present, _numeric)


def days(table: Table, name: str) -> np.ndarray:
    """Days since 1970 of a column of dates and times, NaN for missing."""
    cells = table[name]
    if cells.dtype.kind == "M":
        return (cells - np.datetime64(0, "us")) / np.timedelta64(1, "D")
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells.tolist()):
        if not is_missing(cell):
            at = _days(cell)
            if at is None:
                raise ValueError(
                    f"{table.place(i)}, column {name!r}: {shown(cell)} is no date like 2024-02-29, 2024-02-29 08:30 or "
                    "08:30, as others in this column are."
                )
            found[i] = at
    return found


def _learned(table: Table, name: str, groups: Sequence[Any], *, forced: bool) -> Column:
    cells = table[name]
    if not table.present(name).any():
        return Unused(name)
    if not forced and name not in table.categories:
        if cells.dtype.kind in "iuf":
            return Number(name)
        if cells.dtype.kind == "M":
            return _moment(table, name)
        if cells.dtype.kind == "O":
            present = [cell for cell in cells.tolist() if not is_missing(cell)]
            if _mostly(present, _numeric):
                table.numbers(name)
                return Number(name)
            if _mostly(present, lambda cell: _days(cell) is not None):
                return _moment(table, name)
            if _mostly(present, _looks_like_date):
                first = next(i for i, cell in enumerate(cells.tolist()) if _looks_like_date(cell))
                raise ValueError(
                    f"{table.place(first)}, column {name!r}: {shown(cells[first])} looks like a date, and which of its "
                    "numbers is the month is not known: write dates as 2024-02-29. Where such texts are names, say so, "
                    f"with --categories {name} or a categorical column."
                )
    return _category(table, name, groups)


def _moment(table: Table, name: str) -> Moment:
    at = days(table, name)
    at = at[~np.isnan(at)]
    span = float(np.ptp(at)) if len(at) else 0.0
    covers = {"day": len(np.unique((at % 1.0).round(6))) > 1, "week": span >= 14, "year": span >= 365}
    return Moment(name, tuple(cycle for cycle in CYCLES if covers[cycle]))


def _category(table: Table, name: str, groups: Sequence[Any]) -> Column:
    texts = table.texts(name)
    counts = Counter(value for value in texts if value is not None)
    within = Counter(value for value, _ in set(zip(texts, groups, strict=True)))  # groups that have a value
    shared = sum(count for value, count in counts.items() if within[value] > 1)
    if shared < SHARED * sum(counts.values()) and not {"true", "false"} >= set(counts):
        return Unused(name)
    values = sorted(sorted(counts, key=lambda value: (-counts[value], value))[:VALUES])
    total = sum(counts[value] for value in values)
    return Category(name, tuple(values), tuple(counts[value] / total for value in values))


def _mostly(cells: Sequence[Any], holds: Any) -> bool:
    """Whether more than half of the cells are of a kind; of none that holds."""
    return not cells or 2 * sum(map(holds, cells)) > len(cells)


def _numeric(cell: Any) -> bool:
    """Whether a cell is meant as a number: inf, 1_000 and 1,5 too, which are refused later."""
    if isinstance(cell, bool | np.bool_):
        return False
    if with_commas(cell):
        return True
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    except OverflowError:
        pass
    return True


def _looks_like_date(cell: Any) -> bool:
    """Whether a text is a date that does not begin with its year: day or month may come first."""
    return isinstance(cell, str) and _OTHER_DATE.fullmatch(cell.strip()) is not None


def _days(cell: Any) -> float | None:
    """A date or a time in days since 1970; None for anything else."""
    try:
        if isinstance(cell, np.datetime64):
            cell = cell.astype("datetime64[us]").item()
        if isinstance(cell, str):
            said = cell.strip()
            if _DATE.fullmatch(said):
                day, _, rest = said.replace("T", " ").partition(" ")
                year, month, of_month = map(int, re.split("[-/.]", day))
                cell = datetime.fromisoformat(f"{year:04d}-{month:02d}-{of_month:02d} {_padded(rest)}".strip())
            elif _TIME.fullmatch(said):
                cell = time.fromisoformat(_padded(said))
        if isinstance(cell, datetime):
            at = cell if cell.tzinfo is None else cell.astimezone(UTC).replace(tzinfo=None)
            return (at - _EPOCH) / timedelta(days=1)
        if isinstance(cell, date):
            return float((cell - _EPOCH.date()).days)
        if isinstance(cell, time):
            return (cell.hour * 3600 + cell.minute * 60 + cell.second + cell.microsecond / 1e6) / 86400
    except (ValueError, OverflowError):
        pass
    return None


def _padded(clock: str) -> str:
    """A time with two digits for the hour and no blank before its zone."""
    return ("0" + clock if clock[1:2] == ":" else clock).replace(" ", "")


def _column(line: str) -> Column:
    try:
        state = json.loads(line)
        kind, name = state["kind"], str(state["name"])
        if kind == "number":
            return Number(name)
        if kind == "unused":
            return Unused(name)
        if kind == "moment" and set(state["cycles"]) <= set(CYCLES):
            return Moment(name, tuple(state["cycles"]))
        if kind == "category" and len(state["values"]) == len(state["shares"]):
            return Category(name, tuple(map(str, state["values"])), tuple(map(float, state["shares"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"what a column becomes is not understood: {shown(line)} ({error!r}).") from error
    raise ValueError(f"what a column becomes is not understood: {shown(line)}.")
