"""Task files: what is known of a task, or of many, in one small file.

A task file is a safetensors file, written whole or not at all; nothing in it is ever unpickled. Each task is kept in
one of two forms: its points, or the memory they add up to (`metavib.posteriors.memory.TaskMemory`), whose size does not
depend on how many there were. A predictor chooses the smaller one.

Metadata (strings; lists are JSON), format `metavib-task-2`:

| name            | content                                                                                        |
| --------------- | ---------------------------------------------------------------------------------------------- |
| format          | `metavib-task-2`                                                                               |
| fingerprint     | of the model (`metavib.adapt.trained.fingerprint`): only this model can read the file          |
| run, run_nearby | folder of the run it was made with: absolute, and seen from the folder of the file; or empty   |
|                 | (the name of a model that comes with the package stands in both)                               |
| column          | what the ids are called, where there are many tasks: the column of a table                     |
| ids             | a list, the id of each task; `[null]` for one that has none                                    |
| classes         | a list, for each task the list of its classes' labels; empty where outputs are no classes      |
| all_classes     | the list of labels that all tasks have, new ones too; or null                                  |
| batches         | a list, for each task the sizes of the batches its points came in, or null: kept as a memory   |
| event           | a list, the shape of one input                                                                 |

Tensors: `x (n, *event)` and `y (n,)`, the points of all tasks that are kept so, one task after the other, as the model
takes them (y of a classifier: places in the task's list of classes), and `weight (n,)`, how many points each counts as,
where that is not one for all; and, one column or entry a memory, in float64: `A (k, M (M + 1) / 2)` the lower halves
row by row, `b (M, columns)`, `c (columns,)`, `l (k,)`, `n (k,)`, `counts (classes,)`.

Files of the format `metavib-state-1`, which held the memory of one task, are read as well.

A file of several targets (format `metavib-targets-1`) has the metadata `run`, `run_nearby` and `column` as above, and
`targets`, a list of their names; its tensors `target/0`, `target/1`, ... are the bytes of a task file for each.
"""

import json
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.torch import save
from torch import Tensor

from metavib.adapt.points import Batch, Support
from metavib.adapt.trained import Trained
from metavib.files import write_tensors
from metavib.posteriors.memory import Labels, Memory, TaskMemory
from metavib.training import bundled

FORMAT = "metavib-task-2"
OLD_FORMAT = "metavib-state-1"
TARGETS_FORMAT = "metavib-targets-1"
MEMORY = ("A", "b", "c", "l", "n", "counts")


class Kept(NamedTuple):
    """What is kept of one task: its points, or the memory they add up to.

    Args:
        what: one or the other.
        classes: labels of the task's classes; none where outputs are no classes.
        id: what the task is called among others; None for one alone.
    """

    what: Support | TaskMemory
    classes: Labels
    id: Hashable = None


@dataclass(frozen=True)
class TaskFile:
    """What a task file holds.

    Args:
        tasks: what is kept of each.
        column: what their ids are called; empty for one task without an id.
        classes: labels that all tasks have, those that are still to come as well; None where each has its own.
    """

    tasks: list[Kept]
    column: str = ""
    classes: Labels | None = None


def write(path: Path, file: TaskFile, trained: Trained, *, run: Path | None = None) -> None:
    """Writes a task file, atomically.

    Labels and ids must be strings, numbers or None.

    Args:
        path: of the file.
        file: what it is to hold.
        trained: the model that learned it.
        run: the folder of its run, if it has one, for whoever finds the file.
    """
    tensors, header = _packed(file, trained)
    write_tensors(path, tensors, header | _whereabouts(path, run))


def to_bytes(file: TaskFile, trained: Trained) -> bytes:
    """The content of a task file that is not on a disk, and names no run."""
    tensors, header = _packed(file, trained)
    return save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata=header)


def _packed(file: TaskFile, trained: Trained) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata."""
    tasks = file.tasks
    for label in (*(file.classes or ()), *(k for task in tasks for k in (*task.classes, task.id))):
        if label is not None and not isinstance(label, str | int | float):
            raise ValueError(
                f"a task file holds labels and ids that are strings, numbers or None; got {label!r} of type "
                f"{type(label).__name__}. Name them by strings."
            )
    supports = [(task.what, task.classes) for task in tasks if isinstance(task.what, Support)]
    memories = [task.what for task in tasks if isinstance(task.what, TaskMemory)]
    sizes = [[len(b.x) for b in t.what.batches] if isinstance(t.what, Support) else None for t in tasks]
    event = next((task.what.event for task in tasks), ())  # of no task at all there is none
    tensors: dict[str, Tensor] = {}
    if supports:
        tensors["x"] = torch.cat([support.whole.x for support, _ in supports])
        tensors["y"] = torch.cat([trained.places(support.whole, classes) for support, classes in supports])
        if any(support.whole.weight is not None for support, _ in supports):
            tensors["weight"] = torch.cat([support.whole.counted for support, _ in supports])
    if memories:
        M = memories[0].sums.A.shape[-1]
        rows, columns = torch.tril_indices(M, M)
        parts = zip(*(m.sums for m in memories), strict=True)
        A, b, c, l, n = (list(part) for part in parts)  # noqa: E741 - the paper's letter
        tensors |= {"A": torch.stack([a[rows, columns] for a in A]), "b": torch.cat(b, -1), "c": torch.cat(c)}
        tensors |= {"l": torch.stack(l), "n": torch.stack(n), "counts": torch.cat([m.counts for m in memories])}
    lists = {"ids": [t.id for t in tasks], "classes": [t.classes for t in tasks], "batches": sizes, "event": event}
    lists["all_classes"] = file.classes
    header = {"format": FORMAT, "fingerprint": trained.fingerprint, "column": file.column}
    return tensors, header | {name: json.dumps(value, allow_nan=False) for name, value in lists.items()}


def read(path: Path | bytes, trained: Trained) -> TaskFile:
    """What a task file holds, for the model that learned it.

    Args:
        path: of the file, or its content.
        trained: the model.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no task file, is damaged, or was made with another model.
    """
    with _opened(path) as file:
        header, name = file.metadata() or {}, "the task file" if isinstance(path, bytes) else path
        if header.get("format") not in (FORMAT, OLD_FORMAT):
            raise ValueError(
                f"{name} is no task file: expected the format {FORMAT!r}, got {header.get('format')!r}. Task files are "
                "written by `metavib adapt`, and by a predictor's `save`."
            )
        if header.get("fingerprint") != trained.fingerprint:
            way_out = "Load that model, or adapt anew."
            if header["format"] == OLD_FORMAT:
                way_out = "It was written by version 0.1: make it again with `metavib adapt`, from the task's points."
            raise ValueError(
                f"{name} was made with another model (fingerprint {str(header.get('fingerprint'))[:12]}, this model's "
                f"is {trained.fingerprint[:12]}): what it says means nothing here. {way_out}"
            )
        return _Reader(file, header, name, trained).tasks()


def write_each(path: Path, parts: Mapping[str, bytes], *, column: str = "", run: Path | None = None) -> None:
    """Writes a task file of several targets, atomically.

    Args:
        path: of the file.
        parts: the content of a task file for each target.
        column: what the ids of tasks are called, where there are many.
        run: the folder of their runs, if they have one.
    """
    tensors = {
        f"target/{i}": torch.frombuffer(bytearray(part), dtype=torch.uint8) for i, part in enumerate(parts.values())
    }
    header = {"format": TARGETS_FORMAT, "targets": json.dumps(list(parts)), "column": column}
    write_tensors(path, tensors, header | _whereabouts(path, run))


def read_each(path: Path) -> dict[str, bytes]:
    """The content of a task file for each target, as `write_each` wrote it; what it says is still to be checked."""
    with _opened(path) as file:
        header = file.metadata() or {}
        if header.get("format") != TARGETS_FORMAT:
            raise ValueError(
                f"{path} is no task file of several targets: expected the format {TARGETS_FORMAT!r}, got "
                f"{header.get('format')!r}. One is written by `metavib adapt` with a run of several targets."
            )
        try:
            names = _labels(json.loads(header["targets"]))
            found = {str(name): file.get_tensor(f"target/{i}") for i, name in enumerate(names)}
            return {name: tensor.numpy().tobytes() for name, tensor in found.items()}
        except (KeyError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} has a damaged header: {error}.") from error


def is_of_several(path: Path) -> bool:
    """Whether a task file is of several targets."""
    with _opened(path) as file:
        return (file.metadata() or {}).get("format") == TARGETS_FORMAT


def column_of(path: Path) -> str:
    """What the ids of a file of many tasks are called; empty for a file of one task."""
    with _opened(path) as file:
        return (file.metadata() or {}).get("column", "")


def run_of(path: Path) -> Path:
    """The folder of the run that a task file names: where it lies seen from the file, or else where it was."""
    with _opened(path) as file:
        header = file.metadata() or {}
    if header.get("format") not in (FORMAT, OLD_FORMAT, TARGETS_FORMAT) or not header.get("run"):
        raise ValueError(f"{path} does not say which run it was made with; name it with --run.")
    if header["run"] in bundled.names():
        return bundled.folder_of(header["run"])
    nearby = Path(os.path.normpath(path.absolute().parent / header.get("run_nearby", header["run"])))
    return nearby if nearby.is_dir() else Path(header["run"])


def _whereabouts(path: Path, run: Path | None) -> dict[str, str]:
    if run is None:
        return {"run": "", "run_nearby": ""}
    if name := bundled.name_of(run):
        return {"run": name, "run_nearby": name}
    return {"run": str(run.absolute()), "run_nearby": os.path.relpath(run.absolute(), path.absolute().parent)}


@contextmanager
def _opened(path: Path | bytes) -> Iterator[Any]:
    if isinstance(path, Path) and path.is_dir():
        raise FileNotFoundError(
            f"{path} is a folder, and what is known of a task is a file. `metavib adapt RUN --support FILE --out "
            "task.safetensors` makes one; a FILE with a header alone is a task of which nothing is known."
        )
    if isinstance(path, Path) and not path.is_file():
        raise FileNotFoundError(f"there is no task file {path}.")
    name = path if isinstance(path, Path) else "the task file"
    try:
        if isinstance(path, bytes):
            yield _Content(path)
        else:
            with safe_open(path, "pt") as file:
                yield file
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{name} is truncated or no safetensors file ({error}).") from error


class _Content:
    """A task file in memory, with the methods that `safe_open` has for one on a disk."""

    def __init__(self, content: bytes) -> None:
        self.entries = dict(deserialize(content))  # refuses whatever is no safetensors file
        self.header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])

    def metadata(self) -> dict[str, str]:
        return self.header.get("__metadata__") or {}

    def keys(self) -> Iterable[str]:
        return self.entries.keys()

    def get_slice(self, name: str) -> "_Shape":
        return _Shape(self.entries[name]["shape"], self.entries[name]["dtype"])

    def get_tensor(self, name: str) -> Tensor:
        entry = self.entries[name]
        kind = {"F64": "<f8", "F32": "<f4", "I64": "<i8"}[entry["dtype"]]
        return torch.from_numpy(np.frombuffer(entry["data"], kind).reshape(entry["shape"]).copy())


class _Shape(NamedTuple):
    shape: list[int]
    dtype: str

    def get_shape(self) -> list[int]:
        return self.shape

    def get_dtype(self) -> str:
        return self.dtype


class _Reader:
    """Reads a file and believes none of it: shapes are checked first, so that nothing too large is read."""

    def __init__(self, file: Any, header: dict[str, str], path: Path | str, trained: Trained) -> None:
        self.file, self.path, self.trained = file, path, trained
        self.old, self.column = header["format"] == OLD_FORMAT, header.get("column", "")
        try:
            self.event = _sizes(json.loads(header["event"]))
            classes = json.loads(header["classes"])
            self.ids = [None] if self.old else _labels(json.loads(header["ids"]))
            self.classes = [_labels(classes)] if self.old else [_labels(k) for k in _list(classes)]
            batches = [None] if self.old else _list(json.loads(header["batches"]))
            self.batches = [None if sizes is None else _sizes(sizes) for sizes in batches]
            common = None if self.old else json.loads(header["all_classes"])
            self.all_classes = None if common is None else _labels(common)
            if not len(self.ids) == len(self.classes) == len(self.batches) or not (self.ids or self.column):
                raise ValueError("its lists of tasks differ in length, or are empty")
            some = [k for k, sizes in zip(self.classes, self.batches, strict=True) if sizes is None]
            if strange := {k for k in self.classes if trained.common and not set(k) <= set(trained.common)}:
                raise ValueError(f"a task has the classes {list(strange.pop())[:9]}, which the model does not know")
            self.blanks = [trained.blank(k, self.event, "meta") for k in some]  # shapes alone
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} has a damaged header: {error}.") from error

    def tasks(self) -> TaskFile:
        tensors = self._tensors()
        supports = iter(self._supports(tensors)) if "x" in tensors else iter(())
        memories = iter(self._memories(tensors)) if "A" in tensors else iter(())
        kept = [
            Kept(next(memories) if sizes is None else next(supports), classes, id)
            for id, classes, sizes in zip(self.ids, self.classes, self.batches, strict=True)
        ]
        return TaskFile(kept, self.column, self.all_classes)

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors, once their names, shapes and types are known to be right."""
        wanted: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        points = sum(sum(sizes) for sizes in self.batches if sizes is not None)
        if any(sizes is not None for sizes in self.batches):
            wanted["x"] = (points, *self.event), ("F32", "F64")
            wanted["y"] = (points,), ("I64",) if self.trained.classifies else ("F32", "F64")
            if "weight" in self.file.keys():  # noqa: SIM118 - this is no dictionary
                wanted["weight"] = (points,), ("F64",)
        if self.blanks:
            M, k = self.blanks[0].sums.A.shape[-1], len(self.blanks)
            columns = sum(blank.sums.c.numel() for blank in self.blanks)
            classes = sum(blank.counts.numel() for blank in self.blanks)
            one = () if self.old else (k,)
            shapes = ((*one, M * (M + 1) // 2), (M, columns), (columns,), one, one, (classes,))
            wanted |= {name: (shape, ("F64",)) for name, shape in zip(MEMORY, shapes, strict=True)}
        if set(self.file.keys()) != set(wanted):
            found = sorted(self.file.keys())[:9]
            raise ValueError(f"{self.path} is damaged: it should hold {sorted(wanted)} and holds {found}.")
        for name, (shape, types) in wanted.items():
            entry = self.file.get_slice(name)
            if tuple(entry.get_shape()) != shape or entry.get_dtype() not in types:
                kind = {"F64": "float64", "I64": "int64"}.get(types[-1])
                raise ValueError(
                    f"{self.path} is damaged: {name} should be {kind} {shape}, and is {entry.get_dtype()} "
                    f"{entry.get_shape()}."
                )
        return {name: self.file.get_tensor(name) for name in wanted}

    def _supports(self, tensors: dict[str, Tensor]) -> Iterator[Support]:
        trained = self.trained
        x, y = tensors["x"].to(trained.device, trained.dtype), tensors["y"].to(trained.device)
        if not bool(x.isfinite().all()) or not bool(y.isfinite().all()):
            raise ValueError(f"{self.path} is damaged: its points have NaN or infinite values.")
        weight = tensors["weight"].to(trained.device) if "weight" in tensors else None
        if weight is not None and not bool((weight.isfinite() & (weight > 0)).all()):
            raise ValueError(f"{self.path} is damaged: its weights are not all above zero.")
        y = y if trained.classifies else y.to(trained.dtype)
        if not trained.classifies:
            try:
                trained.model.likelihood.check(y)
            except ValueError as error:
                raise ValueError(f"{self.path} is damaged: {error}") from error
        start = 0
        for classes, sizes in zip(self.classes, self.batches, strict=True):
            if sizes is None:
                continue
            batches = []
            for size in sizes:
                at = slice(start, start + size)
                start += size
                places = y[at].tolist() if trained.classifies else []
                if any(not 0 <= place < len(classes) for place in places):
                    raise ValueError(f"{self.path} is damaged: a point is of none of the classes {list(classes)[:9]}.")
                # Clones lie aligned in memory as the originals did: the same instructions run, to the same last bit.
                real = x.new_zeros(size) if trained.classifies else y[at].clone()
                counted = None if weight is None else weight[at].clone()
                batches.append(Batch(x[at].clone(), real, [classes[place] for place in places], counted))
            yield Support(tuple(batches) or (Batch(x[:0].clone(), x.new_zeros(0), []),))

    def _memories(self, tensors: dict[str, Tensor]) -> Iterator[TaskMemory]:
        A, b, c, l, n, counts = (tensors[name].clone() for name in MEMORY)  # noqa: E741 - the paper's letter
        if self.old:
            A, l, n = A[None], l[None], n[None]  # noqa: E741
        negative = any(bool((t < 0).any()) for t in (counts, n, c))
        finite = all(bool(t.isfinite().all()) for t in (A, b, c, l, n, counts))
        if not finite or negative or bool((n != n.round()).any()):
            raise ValueError(f"{self.path} is damaged: its numbers are no sums over points.")
        M = self.blanks[0].sums.A.shape[-1]
        rows, columns = torch.tril_indices(M, M)
        widths = [blank.sums.c.numel() for blank in self.blanks]
        shares = counts.split([blank.counts.numel() for blank in self.blanks])
        parts = zip(self.blanks, A, b.split(widths, -1), c.split(widths), l, n, shares, strict=True)
        for blank, A_i, b_i, c_i, l_i, n_i, count in parts:
            if len(count) and float(count.sum()) != float(n_i):
                total = f"{float(count.sum()):.0f} points, {float(n_i):.0f} in all"
                raise ValueError(f"{self.path} is damaged: its classes hold {total}.")
            whole = torch.zeros(M, M, dtype=torch.float64)
            whole[rows, columns] = A_i
            whole[columns, rows] = A_i
            # What every prediction factorises.
            if int(torch.linalg.cholesky_ex(whole + torch.eye(M, dtype=torch.float64)).info):
                raise ValueError(
                    f"{self.path} is damaged: its A = Z' S^-1 Z has negative eigenvalues, as no set of points has."
                )
            memory = Memory(whole, b_i.contiguous(), c_i.clone(), l_i.clone(), n_i.clone())
            yield TaskMemory(memory, count.clone(), blank.classes, blank.event).to(self.trained.device)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list of tasks is no list")
    return value


def _labels(labels: Any) -> Labels:
    if not isinstance(labels, list) or not all(k is None or isinstance(k, str | int | float) for k in labels):
        raise ValueError("classes or ids are no list of strings and numbers")
    if any(isinstance(k, float) and isnan(k) for k in labels) or len(set(labels)) != len(labels):
        raise ValueError("a class or an id stands there twice, or is NaN")
    return tuple(labels)


def _sizes(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or not all(isinstance(k, int) and 0 <= k < 2**48 for k in sizes):
        raise ValueError("the shape of an input, or the sizes of batches, are no list of sizes")
    return tuple(sizes)
