"""From what a user has to what a model takes, exactly as training did, and predictions back into the user's units.

A run knows how its data was prepared: the columns of its table and how they were standardised, the size and colours of
its pictures. `Learner.from_run` gives its learner that preparation, so that a user never does it by hand:

* `Rows`, for runs on tables, sinusoids and Gaussian processes: CSV and Parquet files, data frames (pandas, polars,
  Arrow), dictionaries, lists of rows, arrays whose columns are in the run's order; all in the table's own units.
* `Vectors`, for runs on embeddings: arrays with a vector each row, and array files as `metavib embed` writes them.
* `Pictures`, for runs on images: files and folders, Pillow images, the bytes of a file, arrays of pixels.
* `ModelSpace`, for a model without a run: tensors and arrays as they are.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metavib.data import schema as schemas
from metavib.data.embeddings import read_vectors
from metavib.data.folder import class_files
from metavib.data.picture import SUFFIXES, split
from metavib.data.schema import Schema
from metavib.data.table import Table, by_name, cells_of, in_memory, read, read_cells
from metavib.files import naming
from metavib.likelihoods import ClassLikelihood, Likelihood
from metavib.likelihoods.prediction import Prediction, RealPrediction
from metavib.random import seeded
from metavib.tasks import scaling as scalings
from metavib.tasks.scaling import Scaling, check_finite, tell_of_new_gaps
from metavib.tasks.task import Examples
from metavib.training import build
from metavib.training.config import CLASSIFICATION, EMBEDDINGS, TABLE, Config
from metavib.training.protocols.table import check_outputs, scaling, schema

WHOLE = re.compile(r"[+-]?[0-9]{1,18}")  # numbers that are written without a point, and have room in 64 bits


class Preparation(ABC):
    """What is done to a user's data before a model sees it, and to predictions before the user does."""

    column: str = ""
    """The column that names the task of a row, where the run had one."""

    classes: tuple[Hashable, ...] | None = None
    """Labels of the classes that every task has, where the run knew them."""

    @abstractmethod
    def inputs(self, data: Any) -> Any:
        """Inputs to predict at, as the model takes them: `(v, *event)`."""

    @abstractmethod
    def points(self, data: Any) -> tuple[Any, Any]:
        """Inputs and outputs of a support, as the model takes them: of a pair (x, y), or of data that holds both."""

    @abstractmethod
    def ids(self, data: Any, column: str) -> list[Hashable]:
        """The task of each row, by the column that names it."""

    @abstractmethod
    def beside(self, path: Path) -> list[dict[str, Any]]:
        """What the rows of a file are, to stand beside their predictions."""

    def place(self, data: Any, row: int) -> str:
        """Where a row of the data is, counted from 0: its line in a file that has lines, else its number from 1."""
        return f"row {row + 1}"

    def restore(self, prediction: Prediction) -> Prediction:
        """A prediction in the units of the data."""
        return prediction


@final
class ModelSpace(Preparation):
    """Nothing is done: tensors and arrays are in the model's own space already.

    Args:
        classes: labels of the classes that every task has, where the model knows them.
    """

    def __init__(self, classes: Sequence[Hashable] | None = None) -> None:
        self.classes = None if classes is None else tuple(classes)

    def inputs(self, data: Any) -> Any:
        """The inputs as they came: they are in the model's own space already."""
        return _writable(data)

    def points(self, data: Any) -> tuple[Any, Any]:
        """Inputs and outputs of a pair (x, y), or of the examples that are no padding."""
        if not _is_pair(data):
            raise TypeError(f"expected a pair (x, y) of inputs and outputs; got {type(data).__name__}.")
        x, y = _pair(data)
        return _writable(x), _writable(y)

    def ids(self, data: Any, column: str) -> list[Hashable]:
        """Refused: arrays have no column that could name a task."""
        raise ValueError("arrays have no column of tasks: pass the task of each row, tasks=[...].")

    def beside(self, path: Path) -> list[dict[str, Any]]:
        """Refused: no file is in the model's own space."""
        raise ValueError(f"{path}: a model without a run reads no files; pass arrays.")


@final
class Rows(Preparation):
    """Rows of a table, in its own units.

    Args:
        features: columns of the inputs.
        target: column of the outputs.
        scaling: how inputs and outputs are standardised.
        likelihood: decides what outputs may be.
        missing: what is done about missing inputs, one of `metavib.tasks.scaling.MISSING`.
        column: names the task of a row, where the run had such a column.
        schema: what the columns become as numbers; None where they are numbers.
        classes: labels that the outputs may be; none for real outputs, and for 0 and 1.

    Example:
        >>> from metavib.likelihoods import Gaussian
        >>> scaling = Scaling(scalings.columns([[0.0], [20.0]]), scalings.outputs([100.0, 300.0]))
        >>> rows = Rows(("hour",), "demand", scaling, Gaussian())
        >>> x, y = rows.points({"hour": [0.0, 10.0], "demand": [100, 200]})
        >>> x.tolist(), y.round(decimals=9).tolist()
        ([[-1.0], [0.0]], [-1.0, 0.0])
    """

    def __init__(
        self,
        features: Sequence[str],
        target: str,
        scaling: Scaling,
        likelihood: Likelihood,
        *,
        missing: str = "refuse",
        column: str = "",
        schema: Schema | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        self.features, self.target, self.column = tuple(features), target, column
        self.scaling, self.likelihood, self.missing = scaling, likelihood, missing
        self.schema = schemas.numbers(features) if schema is None else schema
        self.classes = tuple(classes) or None

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns that are read as texts: 007 may be the name of a category, or of a class."""
        return (*self.schema.texts, *((self.target,) if self.classes else ()))

    def inputs(self, data: Any) -> Tensor:
        """Standardised inputs `(v, d)`."""
        return self._inputs(self._table(data), data)

    def points(self, data: Any) -> tuple[Tensor, Any]:
        """Standardised inputs and outputs: of rows that hold the target too, or of a pair of rows and outputs."""
        if _is_pair(data):
            x, y = _pair(data)
            outputs = Table({self.target: cells_of(y.cpu() if isinstance(y, Tensor) else y, self.target)})
            if not self.classes:
                check_finite(outputs.numbers(self.target)[:, None], names=(self.target,))
            return self.inputs(x), self._outputs(outputs)
        table = self._table(data, self.target)
        if table is None:
            raise ValueError(
                f"an array has no column {self.target!r}: pass a pair of inputs and outputs, or a table with both."
            )
        return self._inputs(table, data), self._outputs(table)

    def ids(self, data: Any, column: str) -> list[Hashable]:
        """The cells of the task column, or the combinations of several."""
        if _is_path(data):
            names = [column, *(name.strip() for name in column.split(","))]
            return read(data, texts=names).ids(column)
        table = in_memory(data) if by_name(data) is not None else Table({})
        try:
            table.named(column)
        except ValueError as error:
            raise ValueError(f"the data have no column {column!r}: pass the task of each row, tasks=[...].") from error
        return table.ids(column)

    def beside(self, path: Path) -> list[dict[str, Any]]:
        """All cells of each row, inputs that are numbers as such: a column of whole ones as whole ones."""
        table, rows = self._table(path), read_cells(path)
        assert table is not None
        for name in [column.name for column in self.schema.columns if isinstance(column, schemas.Number)]:
            numbers = table.numbers(name).tolist()
            cells = [None if v != v else str(row[name]).strip() for row, v in zip(rows, numbers, strict=True)]
            whole = all(cell is None or WHOLE.fullmatch(cell) for cell in cells)
            for row, cell, v in zip(rows, cells, numbers, strict=True):
                row[name] = None if cell is None else int(cell) if whole else v
        return rows

    def place(self, data: Any, row: int) -> str:
        """The line of a CSV file, or the number of a row."""
        table = read(data, columns=()) if _is_path(data) else data
        lines = table.lines if isinstance(table, Table) else None
        return super().place(data, row) if lines is None else f"line {lines[row]}"

    def restore(self, prediction: Prediction) -> Prediction:
        """In the units of the target; probabilities have none."""
        return prediction.restored(self.scaling.y) if isinstance(prediction, RealPrediction) else prediction

    def _table(self, data: Any, *target: str) -> Table | None:
        """The columns wanted of a file or a frame; None for an array, which has no names."""
        wanted = (*self.features, *target)
        if _is_path(data):
            return read(data, columns=wanted, texts=self.texts)
        if by_name(data) is None:
            return None
        return in_memory(data).only(wanted)

    def _inputs(self, table: Table | None, source: Any) -> Tensor:
        with _naming(source):
            if table is not None:
                x = self.schema.encode(table)
            else:
                x = self._array(source)
            lines = None if table is None else table.lines
            check_finite(x, names=self.schema.sources, missing=self.missing, lines=lines)
            tell_of_new_gaps(x, self.scaling.x, names=self.schema.sources, missing=self.missing)
        return self.scaling.x.standardise(torch.tensor(x))

    def _array(self, data: Any) -> np.ndarray:
        """Rows without names, in the order of the columns."""
        width, names = len(self.features), ", ".join(self.features[:20]) + ", ..." * (len(self.features) > 20)
        try:
            cells = np.asarray(data, dtype=np.float64 if self.schema.plain else object)
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected rows of numbers, a data frame or a dictionary of columns: {error}.") from error
        if cells.ndim == 1 and (width == 1 or not len(cells)):
            cells = cells.reshape(len(cells), width)
        if cells.ndim != 2 or cells.shape[1] != width:
            raise ValueError(f"an array of rows must be (n, {width}), with the columns {names}; got {cells.shape}.")
        if self.schema.plain:
            return cells
        return self.schema.encode(Table({n: cells_of(cells[:, i], n) for i, n in enumerate(self.features)}))

    def _outputs(self, table: Table) -> Any:
        if self.classes:
            labels = table.labels(self.target)
            for i, label in enumerate(labels):
                if label not in self.classes:
                    raise ValueError(
                        f"{table.place(i)}, column {self.target!r}: {label!r} is none of the classes "
                        f"{', '.join(map(str, self.classes))}."
                    )
            return labels
        values = torch.tensor(table.outputs(self.target))
        with naming(table.source) if table.source else nullcontext():
            check_finite(values.numpy()[:, None], names=(self.target,), lines=table.lines)
            check_outputs(values, self.target, self.likelihood)
        return values.long() if isinstance(self.likelihood, ClassLikelihood) else self.scaling.y.standardise(values)


@final
class Pictures(Preparation):
    """Pictures of any kind, brought to the network's size and normalised as in training.

    A picture may be the path of a file, the bytes of one, a Pillow image, or an array of pixels: `(H, W)`, `(H, W, C)`
    or `(C, H, W)`, of uint8 or of floats from 0 to 1. Several are a list of them, a folder (which is searched to its
    depths), or one array `(n, C, H, W)` or `(n, H, W, C)`. All forms of the same picture give the same predictions.

    Args:
        config: of the run.
    """

    def __init__(self, config: Config) -> None:
        from metavib.training.protocols.seen import evaluation_transform, form

        self.form = form(config.tasks)
        self._transform = evaluation_transform(config.tasks)

    @property
    def channels(self) -> int:
        """Of a picture as the network sees it: 1 for grey, 3 for colour."""
        return self.form.channels

    def inputs(self, data: Any) -> Tensor:
        """Pictures as the network takes them."""
        return self._transformed(self._pixels(data))

    def points(self, data: Any) -> tuple[Tensor, list[Hashable]]:
        """Pictures and labels: of a pair, of a dictionary from labels to pictures, or of a folder of class folders."""
        if _is_path(data):
            found = [(file, label) for label, files in class_files(Path(data)).items() for file in files]
            return self.inputs([file for file, _ in found]), [label for _, label in found]
        return _labelled(data, self.inputs, what="pictures", source="a folder of class folders")

    def ids(self, data: Any, column: str) -> list[Hashable]:
        """Refused: pictures have no columns."""
        raise ValueError("pictures have no column of tasks: pass the task of each picture, tasks=[...].")

    def beside(self, path: Path) -> list[dict[str, Any]]:
        """The name of each file."""
        return [{"query": f.name if path.is_file() else str(f.relative_to(path))} for f in picture_files(path)]

    def _transformed(self, pixels: Tensor) -> Tensor:
        return self._transform(pixels, seeded(0))

    def _pixels(self, data: Any) -> Tensor:
        """Pictures as training stored them: uint8 `(n, C, side, side)`."""
        if isinstance(data, Tensor):
            data = data.detach().cpu().numpy()
        if _is_path(data):
            data = picture_files(Path(data))
        elif isinstance(data, Image.Image | bytes):
            data = [data]
        elif isinstance(data, np.ndarray):
            data = split(data, self.channels)
        elif not isinstance(data, Sequence):
            raise TypeError(f"expected pictures: paths, Pillow images or arrays of pixels; got {type(data).__name__}.")
        pictures = [self.form.read(one, name=f"picture {i + 1}") for i, one in enumerate(data)]
        empty = np.zeros((0, self.channels, self.form.size, self.form.size), np.uint8)
        return torch.as_tensor(np.stack(pictures) if pictures else empty)


@final
class Vectors(Preparation):
    """Embeddings, as the network behind them gave them: `(n, width)`, in an array or in an array file.

    Args:
        width: length of a vector.

    Example:
        >>> Vectors(2).inputs([[3.0, 4.0]])
        tensor([[3., 4.]])
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def inputs(self, data: Any) -> Tensor:
        """The vectors."""
        if _is_path(data):
            return self._checked(read_vectors(data).images, data)
        return self._checked(torch.as_tensor(_writable(np.asarray(data)), dtype=torch.get_default_dtype()), data)

    def points(self, data: Any) -> tuple[Tensor, Any]:
        """Vectors and labels: of a pair, of a dictionary from labels to vectors, or of an array file with labels."""
        if _is_path(data):
            found = read_vectors(data)
            return self._checked(found.images, data), [found.names[i] for i in found.labels.tolist()]
        return _labelled(data, self.inputs, what="vectors", source="an array file with features, labels and names")

    def ids(self, data: Any, column: str) -> list[Hashable]:
        """Refused: vectors have no columns."""
        raise ValueError("embeddings have no column of tasks: pass the task of each row, tasks=[...].")

    def beside(self, path: Path) -> list[dict[str, Any]]:
        """The number of each row."""
        return [{"query": row} for row in range(read_vectors(path).size)]

    def _checked(self, x: Tensor, source: Any) -> Tensor:
        where = f"{source}: " if _is_path(source) else ""
        if x.ndim != 2 or x.shape[-1] != self.width:
            raise ValueError(
                f"{where}expected vectors of {self.width} numbers, (n, {self.width}); got {tuple(x.shape)}."
            )
        if not bool(x.isfinite().all()):
            raise ValueError(f"{where}some numbers are infinite or NaN; leave these rows out.")
        return x


def of_run(config: Config) -> Preparation:
    """What the run of a config did to its data."""
    name, table = config.tasks.name, config.tasks.table
    if name == EMBEDDINGS:
        return Vectors(config.tasks.inputs)
    if name in CLASSIFICATION:
        return Pictures(config)
    likelihood = build.likelihood(config)
    if name == TABLE:
        columns: Any = {"missing": table.missing, "column": table.task}
        columns |= {"schema": schema(table), "classes": table.classes}
        return Rows(table.features, table.target, scaling(table), likelihood, **columns)
    return Rows(("x",), "y", Scaling(scalings.unscaled(1), scalings.as_they_are()), likelihood)


def picture_files(path: Path) -> list[Path]:
    """A picture, or all pictures below a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        raise FileNotFoundError(f"{path}: no pictures found ({', '.join(SUFFIXES)}).")
    return files


# What the data may be


def _is_path(data: Any) -> bool:
    return isinstance(data, str | PathLike)


def _is_pair(data: Any) -> bool:
    return isinstance(data, Examples) or (isinstance(data, tuple) and len(data) == 2)


def _pair(data: Any) -> tuple[Any, Any]:
    if not isinstance(data, Examples):
        return data
    if data.mask.ndim != 1:
        raise ValueError(f"a learner adapts to one task, y (n,); got y {tuple(data.y.shape)}. Adapt to each alone.")
    return data.x[data.mask], data.y[data.mask]


def _labelled(data: Any, inputs: Callable[[Any], Tensor], *, what: str, source: str) -> tuple[Tensor, Any]:
    """Inputs and labels of a pair of them, or of a dictionary from labels to what `inputs` takes."""
    if isinstance(data, Mapping):
        parts = {label: inputs(some) for label, some in data.items()}
        return torch.cat(list(parts.values())), [label for label, part in parts.items() for _ in part]
    if not _is_pair(data):
        raise TypeError(
            f"expected a pair of {what} and labels, a dictionary from labels to {what}, or {source}; got "
            f"{type(data).__name__}."
        )
    x, y = _pair(data)
    return inputs(x), y


def _writable(values: Any) -> Any:
    """The same values; a copy of an array that must not be written to, of which PyTorch would warn."""
    locked = isinstance(values, np.ndarray) and not values.flags.writeable
    return values.copy() if locked else values


def _naming(source: Any) -> Any:
    """Errors about a file name it."""
    source = source.source if isinstance(source, Table) else source
    return naming(source) if _is_path(source) and source else nullcontext()
