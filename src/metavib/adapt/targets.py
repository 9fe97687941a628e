"""Several targets of the same rows in daily use: a learner for each, with the verbs of one.

learners = Learners.from_run("runs/shops")   # of `metavib train table --target sold --target visits`
shop = learners.adapt(rows)                  # rows have both targets, or one of them
shop.predict(where)["sold"].interval(0.95)
shop.save("shop.safetensors")                # learners.load("shop.safetensors") is the same again
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from metavib.adapt import file
from metavib.adapt.file import column_of, read_each, to_bytes, write_each
from metavib.adapt.learner import Learner, Predictor, Predictors, warn_of_tasks
from metavib.adapt.preparation import Rows
from metavib.data.table import Table, by_name, in_memory, read
from metavib.likelihoods.prediction import Prediction
from metavib.training import targets


@final
class Learners(Mapping[str, Learner]):
    """The learners of several targets, by their names.

    Args:
        learners: of each.

    Example:
        Two targets of the same rows, each by a linear regression.

        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> from metavib.adapt.preparation import Rows
        >>> from metavib.tasks import scaling
        >>> def learner(target):
        ...     parts = encoders.ExactSites(), likelihoods.Gaussian(noise=0.01)
        ...     units = scaling.Scaling(scaling.unscaled(1), scaling.as_they_are())
        ...     model = methods.gp_vib(networks.MLP(1, ()), kernels.Linear(), *parts)
        ...     return Learner(model, preparation=Rows(["hour"], target, units, parts[1]))
        >>> learners = Learners({target: learner(target) for target in ("heat", "rain")})
        >>> known = learners.adapt({"hour": [1.0, 2.0], "heat": [2.0, 4.0], "rain": [-1.0, -2.0]})
        >>> {target: round(found.mean.item(), 1) for target, found in known.predict({"hour": [3.0]}).items()}
        {'heat': 6.0, 'rain': -3.0}
    """

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self._learners = dict(learners)

    @classmethod
    def from_run(cls, folder: str | Path, *, device: str = "cpu", precision: str | None = None) -> "Learners":
        """The learners of a folder of runs, as `metavib train table` makes it where several targets are named.

        Args:
            folder: of the runs.
            device: where to use them.
            precision: float32 or float64; that of training where None.
        """
        found = targets.folders(Path(folder))
        if "" in found:
            raise ValueError(f"{folder} has no runs of several targets; metavib.Learner.from_run reads a run of one.")
        return cls({name: Learner.from_run(one, device=device, precision=precision) for name, one in found.items()})

    def __getitem__(self, target: str) -> Learner:
        return self._learners[target]

    def __iter__(self) -> Iterator[str]:
        return iter(self._learners)

    def __len__(self) -> int:
        return len(self._learners)

    def adapt(self, support: Any, *, weight: Any = None) -> "Adapted":
        """What is known of a task after its support set. Arguments as in `Learner.adapt`.

        A row that lacks some of the targets serves those that it has.
        """
        warn_of_tasks(support, next(iter(self.values())).preparation)
        return Adapted(self, _each(self, self, "_adapt", support, weight=weight))

    def adapt_many(self, support: Any, tasks: Any = None, *, weight: Any = None) -> "Adapted":
        """What is known of many tasks after the points of all of them. Arguments as in `Learner.adapt_many`."""
        return Adapted(self, _each(self, self, "adapt_many", support, tasks, weight=weight))

    def load(self, path: str | Path) -> "Adapted":
        """What `Adapted.save` wrote, of one task or of many.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no task file of these targets, is damaged, or was made with other models.
        """
        parts, many = read_each(Path(path)), bool(column_of(Path(path)))
        if set(parts) != set(self):
            raise ValueError(f"{path} is of the targets {', '.join(parts)}, and not of {', '.join(self)}.")
        found: dict[str, Any] = {}
        for name, learner in self.items():
            trained = learner.trained
            found[name] = (
                Predictors.of_file(trained, file.read(parts[name], trained))
                if many
                else learner.from_bytes(parts[name])
            )
        return Adapted(self, found)


@final
class Adapted(Mapping[str, Predictor | Predictors]):
    """What is known of a task, or of many, by the targets: the predictor of each, which never changes.

    Args:
        learners: those that learned it.
        known: a `Predictor` for each target or, of many tasks, its `Predictors`.
    """

    def __init__(self, learners: Learners, known: Mapping[str, Any]) -> None:
        self._learners, self._known = learners, dict(known)

    def __getitem__(self, target: str) -> Any:
        return self._known[target]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def update(self, points: Any, *tasks: Any, weight: Any = None) -> "Adapted":
        """The same after these points too, each with some of the targets; of many tasks, the task of each as well."""
        return Adapted(self._learners, _each(self._learners, self, "update", points, *tasks, weight=weight))

    def forget(self, points: Any, *tasks: Any, weight: Any = None) -> "Adapted":
        """The same as if these points, which must be among those learned, had never been seen."""
        return Adapted(self._learners, _each(self._learners, self, "forget", points, *tasks, weight=weight))

    def merge(self, other: "Adapted") -> "Adapted":
        """What both know; they may have seen no common points."""
        if set(other) != set(self):
            raise ValueError(f"the two are of the targets {', '.join(self)} and {', '.join(other)}.")
        return Adapted(self._learners, {name: known.merge(other[name]) for name, known in self.items()})

    def predict(self, x: Any, *tasks: Any) -> dict[str, Prediction]:
        """The distribution of each target at some inputs; of many tasks, the task of each as well."""
        return {name: known.predict(x, *tasks) for name, known in self.items()}

    def save(self, path: str | Path, *, form: str = "smaller", run: Path | None = None) -> None:
        """Writes all of it into one task file, atomically; `Learners.load` reads it. As `Predictor.save`."""
        parts, column = {}, ""
        for name, known in self.items():
            if isinstance(known, Predictors):
                parts[name], column = to_bytes(known.file(form=form), self._learners[name].trained), known.column
            else:
                parts[name] = known.to_bytes(form=form)
        if column and not any(known.n for known in self.values()):
            raise ValueError("nothing is known of any task: there is nothing to save.")
        write_each(Path(path), parts, column=column, run=run)


def _each(
    learners: Learners, those: Mapping[str, Any], verb: str, data: Any, *tasks: Any, weight: Any
) -> dict[str, Any]:
    """What a verb makes of each and the rows that have its target; warnings say of which target they are."""
    found, table = {}, _table(learners, data, *tasks)
    if table is not None:
        table.check_present(list(learners))
    for name, one in those.items():
        share, said = _Share(data if table is None else table, tasks, weight), f"output {name!r}"
        if table is not None and not (have := table.present(name)).all():
            share, said = _Share(table, tasks, weight).select(have), f"{said}, among the rows that have it"
        with warnings_of(said):
            found[name] = getattr(one, verb)(share.rows, *share.tasks, weight=share.weight)
    return found


class _Share(NamedTuple):
    """Rows that are learned from, what is said of their tasks, and their weights."""

    rows: Any
    tasks: tuple[Any, ...]
    weight: Any

    def select(self, which: np.ndarray) -> "_Share":
        """Some of the rows, by a mask."""
        tasks = tuple(t if t is None or isinstance(t, str) else list(compress(t, which)) for t in self.tasks)
        return _Share(self.rows.select(which), tasks, None if self.weight is None else np.asarray(self.weight)[which])


def _table(learners: Learners, data: Any, *tasks: Any) -> Table | None:
    """All rows of a file or a frame, with cells as training read them; None for data whose columns have no names."""
    if not isinstance(data, str | Path):
        return None if by_name(data) is None else in_memory(data)
    texts: list[str] = []
    for learner in learners.values():
        rows = learner.preparation
        assert isinstance(rows, Rows)
        texts += [*rows.texts, rows.column, *rows.column.split(",")]
    texts += [name for column in tasks if isinstance(column, str) for name in (column, *column.split(","))]
    return read(Path(data), texts=[name.strip() for name in texts])


@contextmanager
def warnings_of(what: str) -> Iterator[None]:
    """Has warnings begin with what they are about, such as one of several outputs."""
    with warnings.catch_warnings(record=True) as heard:
        yield
    for one in heard:
        warnings.warn(f"{what}: {one.message}", one.category, stacklevel=5)
