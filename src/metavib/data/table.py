"""Tables of the user's own, as they are: a CSV or Parquet file, a data frame, a dictionary of columns, a list of rows.

city,weather,hour,demand
Bern,sun,8,112
Bern,,9,118            an empty cell (or NA, N/A, NaN, null, none, in any case) is a missing value
Basel,rain,8,96

A `Table` holds the columns by their names and knows the place of each row, so that every error can name it. What its
columns become as numbers is told by a `metavib.data.schema.Schema`.
"""

import csv
import difflib
import hashlib
import io
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, TextIO, final

import numpy as np

MISSING = frozenset(("", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "nat"))
PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")  # endings of files that are to be unpacked first
INDEX = ("", "Unnamed: 0", "__index_level_0__", "rownames", "row.names", "...1")  # what pandas and R call rows' names
COUNTS = ("X", "X1", "index", "level_0", "row", "rowid", "row_id")  # names of columns that may count the rows of a file
SEPARATORS = (",", ";", "\t")  # of the cells of a line: that which gives the header most of them
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
GROUPED = re.compile(r"\s*[+-]?\d{1,3}(([,' ]\d{3})+(\.\d+)?|(\.\d{3})+,\d+)\s*")  # 1,234.5 and 1.234,5
LOOKED_AT = 100_000  # characters of the first line that say what separates cells
BYTES = 2**31  # the largest file that is read
CELL = 10_000  # characters of the longest cell


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, all of the same length.

    Args:
        columns: the cells of each column: an array of numbers, truth values or dates, or one of any objects (texts, a
            mixture), in which None is a missing value.
        source: the file they come from, for error messages; empty for a table in memory.
        lines: the line of each row in that file, where it has lines.
        categories: columns that are known to name categories, whatever their cells look like.
        rows: how many rows there are, where there is no column that says it.

    Example:
        >>> table = in_memory({"city": ["Bern", "Basel"], "hour": [8, 9]})
        >>> table.names, len(table), table.numbers("hour")
        (('city', 'hour'), 2, array([8., 9.]))
        >>> table.numbers("city")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: row 1, column 'city': 'Bern' is no finite number. Correct it, or leave this column out. ...
    """

    columns: Mapping[str, np.ndarray]
    source: str = ""
    lines: Sequence[int] | None = None
    categories: frozenset[str] = frozenset()
    rows: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else self.rows

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, but not of one that only names or counts the rows."""
        return tuple(name for name in self.columns if name not in self.index)

    @property
    def index(self) -> tuple[str, ...]:
        """Columns that only name or count the rows, as programs write them beside a table.

        `rownames` always is one; `X` or `index` where its numbers are 1, 2, 3, ... (or begin at 0) to the last row.
        """
        return tuple(name for name, cells in self.columns.items() if name in INDEX or _counts_rows(name, cells))

    def __getitem__(self, name: str) -> np.ndarray:
        """The cells of a column."""
        if name not in self.columns:
            raise absent(self.source or "the data", name, self.names)
        return self.columns[name]

    def place(self, row: Any) -> str:
        """Where a row is: the line of a file, or its number in memory, from 1."""
        if self.lines is None:
            return f"{self.source}{', ' * bool(self.source)}row {row + 1}"
        return f"{self.source}, line {self.lines[row]}"

    def only(self, names: Sequence[str]) -> "Table":
        """Some of the columns, which must be there."""
        return Table({name: self[name] for name in names}, self.source, self.lines, self.categories, len(self))

    def select(self, which: np.ndarray) -> "Table":
        """Some of the rows, by a mask or by their places."""
        lines = None if self.lines is None else np.asarray(self.lines)[which].tolist()
        columns = {name: cells[which] for name, cells in self.columns.items()}
        return Table(columns, self.source, lines, self.categories, len(np.arange(len(self))[which]))

    def features(
        self, chosen: Sequence[str] = (), *, drop: Sequence[str] = (), beside: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Names of the input columns; none, where the others have roles of their own.

        Args:
            chosen: these, in their order; empty: all.
            drop: less these.
            beside: less these too, which have another role in the table (target, task).
        """
        for name in (*chosen, *drop, *beside):
            self[name]
        return tuple(n for n in (chosen or self.names) if n not in drop and (chosen or n not in beside))

    def numbers(self, name: str) -> np.ndarray:
        """A column as numbers, NaN for missing values."""
        cells = self[name]
        if cells.dtype.kind in "biuf":
            return cells.astype(np.float64)
        found = np.fromiter((number(cell) for cell in cells.tolist()), np.float64, len(cells))
        for i in np.flatnonzero(np.isinf(found)):
            if isinstance(cells[i], str) or not _is_number(cells[i]):  # infinite numbers are refused with the others
                how = "Write numbers as 1234.5." if with_commas(cells[i]) else "Correct it, or leave this column out."
                how += " Where its cells are names, make it one of categories (--categories, a categorical column)."
                raise ValueError(f"{self.place(i)}, column {name!r}: {shown(cells[i])} is no finite number. {how}")
        return found

    def texts(self, name: str) -> list[str | None]:
        """A column as texts that are the same however the table came, None for missing values."""
        return [text(cell) for cell in self[name].tolist()]

    def outputs(self, name: str) -> np.ndarray:
        """A column of numbers in which nothing may be missing."""
        found = self.numbers(name)
        self._complete(name, "target", np.isnan(found))
        return found

    def labels(self, name: str) -> list[str]:
        """A column of class labels, as texts, in which nothing may be missing."""
        found = self.texts(name)
        self._complete(name, "target", [label is None for label in found])
        return found  # type: ignore[return-value]

    def ids(self, column: str) -> list[Any]:
        """The task of each row: the cells of a column or, of several (`school,year`), one text for each combination."""
        names = self.named(column)
        texts = [self.texts(name) for name in names]
        for name, cells in zip(names, texts, strict=True):
            self._complete(name, "task", [cell is None for cell in cells])
        if len(names) > 1:
            return [_line(row) for row in zip(*texts, strict=True)]
        return [c.strip() if isinstance(c, str) else c for c in self[names[0]].tolist()]

    def named(self, text: str) -> tuple[str, ...]:
        """The columns that a text names, which must be there: one, or several whose names are separated by commas."""
        names = (text,) if text in self.columns else tuple(name.strip() for name in text.split(","))
        for name in names:
            self[name]
        return names

    def present(self, name: str) -> np.ndarray:
        """Which rows have a value in a column, as a mask."""
        return np.array([not is_missing(cell) for cell in self[name].tolist()], dtype=bool)

    def check_present(self, targets: Sequence[str]) -> None:
        """Refuses a row that lacks all of several targets, by its place."""
        bare = np.flatnonzero(~np.any([self.present(name) for name in targets], axis=0))
        if len(bare):
            raise ValueError(
                f"{self.place(bare[0])}: none of the targets {', '.join(targets)} is there ({len(bare)} of {len(self)} "
                "rows have none); leave the row out."
            )

    def _complete(self, name: str, role: str, missing: Any) -> None:
        gaps = np.flatnonzero(missing)
        if len(gaps):
            raise ValueError(f"{self.place(gaps[0])}, column {name!r}: the {role} is missing; leave the row out.")


# Files


def read(path: Path | str, *, columns: Sequence[str] | None = None, texts: Sequence[str] = ()) -> Table:
    """The table of a file: CSV (UTF-8, names in the first line) or Parquet, by its name.

    Cells are separated by commas, semicolons or tabs, whichever divides the first line most; between semicolons a
    number may be written with a comma, 1,5.

    Args:
        path: the file.
        columns: those to read; all where None.
        texts: columns to keep as text, even if all their cells are numbers: ids such as 007.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, with the line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file.")
    if path.stat().st_size > BYTES:
        raise ValueError(f"{path}: files of more than {BYTES >> 30} GiB are not read; this one is larger.")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path, columns)
    if path.suffix.lower() in PACKED:
        raise ValueError(f"{path}: the file is compressed; unpack it first, or save the table as Parquet.")
    rows = _rows(path)
    names = header(path, next(rows, (0, []))[1])
    wanted = _wanted(path, [name for name in names if name], columns)
    as_text = {name for name in wanted if name in texts}
    found = _read_csv(path, names, wanted, as_text)
    if as_text > set(texts) & set(wanted):  # columns with other cells than numbers: once more, for their texts
        found = _read_csv(path, names, wanted, as_text)
    return found


def read_cells(path: Path | str) -> list[dict[str, Any]]:
    """All cells of a file as they are, a dictionary a row."""
    path = Path(path)
    if path.suffix.lower() in (".parquet", ".pq"):
        table = _read_parquet(path, None)
        return [
            dict(zip(table.columns, row, strict=True))
            for row in zip(*(c.tolist() for c in table.columns.values()), strict=True)
        ]
    rows = _rows(path)
    names = header(path, next(rows, (0, []))[1])
    return [{n: c for n, c in zip(names, cells, strict=True) if n} for _, cells in rows]


def digest(path: Path | str) -> str:
    """SHA-256 of a file, which must be there: whether it is still the same."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file.")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_csv(path: Path, names: Sequence[str], wanted: Sequence[str], as_text: set[str]) -> Table:
    """Numbers of the columns that hold nothing else; other columns are added to `as_text`, and read if they are there.

    A table of numbers is much smaller as numbers than as texts, so that texts are kept of no more columns than needed.
    """
    numbers = {name: array("d") for name in wanted if name not in as_text}
    texts: dict[str, list[str | None]] = {name: [] for name in as_text}
    same: dict[str, str] = {}  # one object for equal texts
    where = {name: i for i, name in enumerate(names)}
    lines, rows = array("q"), _rows(path)
    next(rows)
    for line, cells in rows:
        if len(cells) != len(names):
            raise ValueError(
                f"{path}, line {line}: {len(cells)} cell{'s' * (len(cells) != 1)}, where the header has {len(names)}."
            )
        lines.append(line)
        for name, column in texts.items():
            cell = cells[where[name]].strip()
            column.append(None if cell.lower() in MISSING else same.setdefault(cell, cell))
        for name in list(numbers):
            value = number(cells[where[name]])
            if value - value != 0 and value == value:
                as_text.add(name)
                del numbers[name]
            else:
                numbers[name].append(value)
    found: dict[str, np.ndarray] = {}
    for name in wanted:
        if name in numbers:
            found[name] = np.frombuffer(numbers[name])
        elif name in texts:
            found[name] = np.array(texts[name], dtype=object)
    return Table(found, str(path), lines, rows=len(lines))


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path}: Parquet files are read by pyarrow: pip install metavib[parquet].") from error
    try:
        names = pyarrow.parquet.read_schema(path).names
        data = pyarrow.parquet.read_table(path, columns=_wanted(path, names, columns))
        found = in_memory(data)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: this is no Parquet file ({str(error).splitlines()[0]}).") from error
    return Table(found.columns, str(path), None, found.categories, found.rows)


def _wanted(path: Path, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """Names of the columns to read, in the order of the file."""
    for name in columns or ():
        if name not in names:
            raise absent(path, name, names)
    return [name for name in names if columns is None or name in columns]


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, with their numbers."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            separator = _separator(file)
            reader = csv.reader(file, strict=True, delimiter=separator)
            for cells in reader:
                if cells:
                    if max(map(len, cells)) > CELL:
                        raise ValueError(f"{path}, line {reader.line_num}: a cell of more than {CELL} characters.")
                    if separator == ";":
                        cells = [c.replace(",", ".") if "," in c and DECIMAL_COMMA.fullmatch(c) else c for c in cells]
                    yield reader.line_num, cells
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: it is not UTF-8 text ({error.reason} at byte {error.start}); save the table as CSV in UTF-8."
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: this is not CSV ({error}).") from error


def _separator(file: TextIO) -> str:
    """What separates the cells of a file, by its first line that is not blank; the file begins anew afterwards."""
    first = next((line for line in file if line.strip()), "")[:LOOKED_AT]
    file.seek(0)
    cells = {separator: next(csv.reader([first], delimiter=separator), []) for separator in SEPARATORS}
    return max(SEPARATORS, key=lambda separator: len(cells[separator]))


def header(path: Path, cells: list[str]) -> list[str]:
    """The names of the columns; the first one may have none, and then counts the rows."""
    names = [name.strip() for name in cells]
    if not names:
        raise ValueError(f"{path}: the file is empty; it should begin with a line of column names.")
    if "" in names[1:] or names == [""]:
        raise ValueError(f"{path}: column {names.index('', len(names) > 1) + 1} of the header has no name.")
    if len(set(names)) != len(names):
        repeated = Counter(names).most_common(1)[0][0]
        raise ValueError(f"{path}: the header names column {repeated!r} twice; rename one of them.")
    return names


def absent(source: Path | str, name: str, names: Sequence[str]) -> ValueError:
    """An error about a column that is not there, with the one that may have been meant."""
    by_letters = {other.lower(): other for other in names[:1000]}
    close = difflib.get_close_matches(name.lower(), list(by_letters), n=1)
    hint = (
        f"Did you mean {by_letters[close[0]]!r}?"
        if close
        else f"It has {', '.join(names[:20])}{', ...' * (len(names) > 20)}."
    )
    return ValueError(f"{source}: there is no column {name!r}. {hint}")


# Memory


def in_memory(data: Any) -> Table:
    """The table of a pandas, polars or Arrow frame, a dictionary of columns or of one row, or a list of such rows.

    A table is its own.

    Raises:
        ValueError: if its columns are not equally long.
        TypeError: if it has no names, as an array has none.
    """
    if isinstance(data, Table):
        return data
    columns = by_name(data)
    if columns is None:
        raise TypeError(f"expected a data frame, a dictionary of columns or a list of rows; got {type(data).__name__}.")
    found = {str(name): cells_of(values, str(name)) for name, values in columns.items()}
    if len({len(cells) for cells in found.values()}) > 1:
        sizes = ", ".join(f"{name} {len(cells)}" for name, cells in found.items())
        raise ValueError(f"the columns must be equally long; got {sizes}.")
    kinds = {str(name): str(getattr(v, "dtype", getattr(v, "type", ""))) for name, v in columns.items()}
    declared = [n for n, kind in kinds.items() if kind.lower().startswith(("categor", "enum", "dictionary"))]
    rows = len(next(iter(found.values()))) if found else _rows_without_columns(data)
    return Table(found, categories=frozenset(declared), rows=rows)


def _rows_without_columns(data: Any) -> int:
    """How many rows data without any column have: a list of empty rows, or a frame that knows."""
    if isinstance(data, Mapping):
        return 0
    return len(data) if isinstance(data, Sequence) else int(data.shape[0])


def by_name(data: Any) -> Mapping[Any, Any] | None:
    """The columns of a data frame, a dictionary or a list of rows, by name; None for anything without names."""
    if isinstance(data, Mapping):
        if any(isinstance(v, str) or not hasattr(v, "__len__") for v in data.values()):
            return {name: [value] for name, value in data.items()}  # one row
        return data
    if isinstance(data, Sequence) and len(data) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        return {name: [row.get(name) for row in data] for name in names}
    if hasattr(data, "collect") and hasattr(data, "lazy"):
        raise TypeError("rows come in a data frame or an array; got a lazy frame: pass frame.collect().")
    if hasattr(data, "column_names"):  # Arrow, whose `columns` are no names
        return {name: data.column(name) for name in data.column_names}
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        return {name: data[name] for name in data.columns}
    return None


def cells_of(values: Any, name: str) -> np.ndarray:
    """The cells of a column in memory, `(n,)`."""
    try:
        cells = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"column {name!r} must have one value a row: {error}.") from error
    if cells.ndim != 1:
        raise ValueError(f"column {name!r} must have one value a row; got {cells.shape}.")
    if cells.dtype.kind == "c":
        raise ValueError(f"column {name!r} must hold real numbers; got complex ones. Take their parts, as .real.")
    if cells.dtype.kind == "m":
        return cells / np.timedelta64(1, "s")  # durations in seconds
    if cells.dtype.kind == "M":
        return cells.astype("datetime64[us]")  # whose cells are Python's dates
    if cells.dtype.kind in "biuf":
        return cells
    objects = np.empty(len(cells), dtype=object)  # NumPy would have made 1 and "a" the texts "1" and "a"
    objects[:] = [
        None if is_missing(v) else v for v in (values if isinstance(values, list | tuple) else cells.tolist())
    ]
    nested = [i for i, v in enumerate(objects) if isinstance(v, list | tuple | set | Mapping | np.ndarray)]
    if nested:
        kind = type(objects[nested[0]]).__name__
        raise ValueError(f"column {name!r} must have one value a row; row {nested[0] + 1} has a {kind}. Leave it out.")
    return objects


# Cells


def is_missing(cell: Any) -> bool:
    """Whether a cell holds no value: None, NaN, NaT, NA, or a text that says so."""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)


def number(cell: Any) -> float:
    """A cell as a number: NaN for a missing value, infinity for what is none."""
    if is_missing(cell):
        return float("nan")
    if isinstance(cell, str) and "_" in cell:  # to Python 1_000 is a number, to a table it is not
        return float("inf")
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("inf")


def with_commas(cell: Any) -> bool:
    """Whether a text is a number as some write it, 1,5 or 1,234.5, which is refused: 1,234 may be either of two."""
    return isinstance(cell, str) and bool(DECIMAL_COMMA.fullmatch(cell) or GROUPED.fullmatch(cell))


def text(cell: Any) -> str | None:
    """A cell as a text, the same from every source: 3 and 3.0 are "3", true is "true" in any case; None for missing."""
    if is_missing(cell):
        return None
    if isinstance(cell, str):
        found = cell.strip()
        return found.lower() if found.lower() in ("true", "false") else found
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell)).lower()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    if isinstance(cell, date | time):
        return cell.isoformat()
    return str(cell)


def shown(cell: Any) -> str:
    """A cell as an error message quotes it."""
    said = str(cell).strip()
    return repr(said if len(said) <= 40 else said[:40] + "...")


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float | np.number)


def _counts_rows(name: str, cells: np.ndarray) -> bool:
    """Whether a column is called like one that counts the rows of a file, and does."""
    if name not in COUNTS or cells.dtype.kind not in "iuf" or len(cells) < 3:
        return False
    return bool(np.array_equal(cells - cells[0], np.arange(len(cells))) and cells[0] in (0, 1))


def _line(cells: Sequence[str | None]) -> str:
    """Texts as a line of CSV, which is another one for other texts."""
    found = io.StringIO()
    csv.writer(found, lineterminator="").writerow(cells)
    return found.getvalue()
