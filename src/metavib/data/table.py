"""Tables of the user's own: a CSV file with a header, read column by column, or refused with the row and the column.

city,temperature,hour,demand
Bern,3.5,8,112
Bern,,9,118            an empty cell (or NA, NaN, null, none, in any case) is a missing value
Basel,5.1,8,96
"""

import csv
import difflib
import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MISSING = frozenset(("", "na", "nan", "null", "none"))
BYTES = 2**31  # the largest file that is read
CELL = 10_000  # characters of the longest cell


class Columns(NamedTuple):
    """What was asked for: `x (n, d)` with NaN for missing, `y (n,)`, `tasks (n,)` as text; and the names of x."""

    x: np.ndarray
    y: np.ndarray | None
    tasks: np.ndarray | None
    features: tuple[str, ...]


def read_csv(
    path: Path | str, *, features: Sequence[str] = (), target: str | None = None, task: str | None = None
) -> Columns:
    """Reads some columns of a CSV file.

    Args:
        path: the file: UTF-8, columns separated by commas, names in the first line.
        features: columns of the inputs, in the order wanted; empty: all but target and task.
        target: column of the outputs, which may not be missing.
        task: column of the task of each row, any text.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, with the row and the column.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file.")
    if path.stat().st_size > BYTES:
        raise ValueError(f"{path}: files of more than {BYTES >> 30} GiB are not read; this one is larger.")
    rows = _rows(path)
    _, header = next(rows, (0, []))
    names = _names(path, header)
    other = [name for name in (target, task) if name is not None]
    wanted = tuple(features) or tuple(name for name in names if name not in other)
    present = set(names)
    for name in (*other, *wanted):
        if name not in present:
            raise _absent(path, name, names)
    if not wanted:
        raise ValueError(f"{path}: no column is left for the inputs beside {' and '.join(map(repr, other))}.")
    for role, chosen in (("target", target), ("task", task)):
        if chosen in wanted:
            raise ValueError(f"{path}: column {chosen!r} is the {role} and cannot be an input as well.")
    if target is not None and target == task:
        raise ValueError(f"{path}: column {target!r} cannot be both target and task.")

    place = {name: i for i, name in enumerate(names)}
    places = [place[name] for name in wanted]
    x, y, tasks = array("d"), array("d"), list[str]()
    for line, cells in rows:
        if len(cells) != len(names):
            raise ValueError(
                f"{path}, line {line}: {len(cells)} cell{'s' * (len(cells) != 1)}, where the header has {len(names)}."
            )
        x.extend(_number(path, line, names[i], cells[i]) for i in places)
        if target is not None:
            value = _number(path, line, target, cells[place[target]])
            if value != value:
                raise ValueError(f"{path}, line {line}, column {target!r}: the target is missing; leave the row out.")
            y.append(value)
        if task is not None:
            name = cells[place[task]].strip()
            if not name:
                raise ValueError(f"{path}, line {line}, column {task!r}: the task is missing; leave the row out.")
            tasks.append(name)
    if not x:
        raise ValueError(f"{path}: the file has a header and no rows.")
    return Columns(
        np.frombuffer(x).reshape(-1, len(wanted)),
        None if target is None else np.frombuffer(y),
        None if task is None else np.array(tasks),
        wanted,
    )


def from_memory(data: Any, *, features: Sequence[str], target: str | None = None) -> Columns:
    """Columns by name of what is no file: a data frame, a dictionary of columns, rows as dictionaries, or an array.

    Args:
        data: a pandas, polars or Arrow table; a dictionary from names to columns, or to the numbers of one row; a
            list of such rows; or an array `(n, d)` whose columns are the features in their order, without target
            (`(n,)` where there is one feature).
        features: columns of the inputs, in the order wanted.
        target: column of the outputs, which may not be missing.

    Raises:
        ValueError: if a column is not there or holds something else than numbers, with its name and the row.
    """
    columns = by_name(data)
    if columns is None:
        return Columns(_matrix(data, features), None, None, tuple(features))
    for name in (*features, *([] if target is None else [target])):
        if name not in columns:
            raise _absent("the data", name, list(map(str, columns)))
    x = [_numbers(columns[name], name) for name in features]
    if len({len(column) for column in x}) > 1:
        sizes = ", ".join(f"{name} {len(column)}" for name, column in zip(features, x, strict=True))
        raise ValueError(f"the columns must be equally long; got {sizes}.")
    y = None if target is None else _numbers(columns[target], target)
    if y is not None and np.isnan(y).any():
        row = int(np.flatnonzero(np.isnan(y))[0]) + 1
        raise ValueError(f"row {row}, column {target!r}: the target is missing; leave the row out.")
    return Columns(np.stack(x, -1), y, None, tuple(features))


def by_name(data: Any) -> Mapping[Any, Any] | None:
    """The columns of a data frame, a dictionary or a list of rows, by name; None for anything without names."""
    if isinstance(data, Mapping):
        if any(isinstance(v, str) or not hasattr(v, "__len__") for v in data.values()):
            return {name: [value] for name, value in data.items()}  # one row
        return data
    if isinstance(data, Sequence) and len(data) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        return {name: [row.get(name) for row in data] for name in names}
    if hasattr(data, "column_names"):  # Arrow, whose `columns` are no names
        return {name: data.column(name).to_pylist() for name in data.column_names}
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        return {name: data[name] for name in data.columns}
    return None


def read_text(path: Path | str) -> list[dict[str, str]]:
    """All cells of a CSV file as they are, a dictionary a row."""
    path = Path(path)
    rows = _rows(path)
    names = _names(path, next(rows, (0, []))[1])
    return [dict(zip(names, cells, strict=True)) for _, cells in rows]


def digest(path: Path | str) -> str:
    """SHA-256 of a file: whether it is still the same."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, with their numbers."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if cells:
                    if max(map(len, cells)) > CELL:
                        raise ValueError(f"{path}, line {reader.line_num}: a cell of more than {CELL} characters.")
                    yield reader.line_num, cells
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: it is not UTF-8 text ({error.reason} at byte {error.start}); save the table as CSV in UTF-8."
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: this is not CSV ({error}).") from error


def _names(path: Path, header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    if not names:
        raise ValueError(f"{path}: the file is empty; it should begin with a line of column names.")
    for separator, title in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            raise ValueError(f"{path}: the columns are separated by {title}; save the table with commas.")
    if "" in names:
        raise ValueError(f"{path}: column {names.index('') + 1} of the header has no name.")
    if len(set(names)) != len(names):
        repeated = Counter(names).most_common(1)[0][0]
        raise ValueError(f"{path}: the header names column {repeated!r} twice; rename one of them.")
    return names


def _absent(path: Path | str, name: str, names: list[str]) -> ValueError:
    close = difflib.get_close_matches(name, names[:1000], n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"It has {', '.join(names[:20])}{', ...' * (len(names) > 20)}."
    return ValueError(f"{path}: there is no column {name!r}. {hint}")


def _number(path: Path, line: int, column: str, cell: str) -> float:
    text = cell.strip()
    if text.lower() in MISSING:
        return float("nan")
    try:
        value = float(text) if "_" not in text else float("inf")  # to Python 1_000 is a number, to a table it is not
    except ValueError:
        value = float("inf")
    if value - value == 0:
        return value
    shown = text if len(text) <= 40 else text[:40] + "..."
    raise ValueError(
        f"{path}, line {line}, column {column!r}: {shown!r} is no finite number. "
        "Correct it, or name the columns to use as inputs without this one."
    )


def _matrix(data: Any, features: Sequence[str]) -> np.ndarray:
    try:
        x = np.asarray(data, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected rows of numbers, a data frame or a dictionary of columns: {error}.") from error
    if x.ndim == 1 and (len(features) == 1 or not len(x)):
        x = x.reshape(len(x), len(features))
    if x.ndim != 2 or x.shape[1] != len(features):
        names = ", ".join(features[:20]) + ", ..." * (len(features) > 20)
        raise ValueError(f"an array of rows must be (n, {len(features)}), with the columns {names}; got {x.shape}.")
    return x


def _numbers(values: Any, column: str) -> np.ndarray:
    """A column of a table in memory as numbers, NaN for missing."""
    cells = np.asarray(values)
    if cells.ndim != 1:
        raise ValueError(f"column {column!r} must have one number a row; got {cells.shape}.")
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    return np.array([_cell(i, column, cell) for i, cell in enumerate(cells.tolist())], dtype=np.float64)


def _cell(i: int, column: str, cell: Any) -> float:
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return float("nan")
    text = str(cell).strip()
    if text.lower() in MISSING:
        return float("nan")
    try:
        return float(text) if "_" not in text else float(cell)
    except (TypeError, ValueError):
        shown = text if len(text) <= 40 else text[:40] + "..."
        raise ValueError(f"row {i + 1}, column {column!r}: {shown!r} is no number.") from None
