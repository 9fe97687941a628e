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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

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


def _absent(path: Path, name: str, names: list[str]) -> ValueError:
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
