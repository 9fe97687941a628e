"""The command line of daily use: adapt to a task, update what is known of it, predict."""

import csv
import io
import warnings
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metavib.cli.options import Run, run_or_model, together
from metavib.files import to_json, write_atomically
from metavib.show import tables

if TYPE_CHECKING:  # commands import PyTorch when they are called: `metavib --help` does without
    from metavib.adapt.learner import Learner, Predictor, Predictors
    from metavib.adapt.targets import Adapted, Learners

Row = dict[str, Any]

TaskFile = Annotated[Path, typer.Argument(metavar="FILE", help="A task file, as `metavib adapt` writes it.")]
RunOption = Annotated[Path | None, typer.Option("--run", help="The run the file was made with, where it has moved.")]
TaskColumn = Annotated[
    list[str], typer.Option(metavar="COLUMN", help="Column that names the task of each row, or two: `school,year`.")
]
Sums = Annotated[bool, typer.Option("--sums", help="Write sums over the points, and never a point itself.")]


def adapt(
    run: Run,
    support: Annotated[Path, typer.Option(help="Points of the task: a table, or a folder of class folders.")],
    task: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN", help="Column that names the task of each row: adapts to all of these tasks at once."
        ),
    ] = [],  # noqa: B006 - typer copies it
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes, those without pictures too: `ant,bee,cat`.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The task file. Default: `task.safetensors`.")] = None,
    sums: Sums = False,
) -> None:
    """Adapt a trained run to a new task, or to many.

    Writes all that is known of the task into one small file: its points or, where these take more room, sums over them
    whose size does not depend on their number. With `--task COLUMN` one file holds all tasks of a table. Methods
    without such sums (MAML, ProtoNet, RBF kernels) keep their points.

    Example: `metavib adapt runs/table-gp-vib-0 --support new.csv --task sensor --out tasks.safetensors`
    """
    from metavib.adapt.targets import Learners

    out, column, learner = out or Path("task.safetensors"), together(task), _learner_of(run)
    options: Any = {} if classes is None else {"classes": [name.strip() for name in classes.split(",")]}
    if options and isinstance(learner, Learners):
        raise ValueError(f"--classes are those of one target, and {run} has {', '.join(learner)}: leave it out.")
    if column is None:
        _warn_of_several(learner, support, "are learned as")
    known = learner.adapt(support, **options) if column is None else learner.adapt_many(support, column, **options)
    known.save(out, run=run, form="memory" if sums else "smaller")
    typer.echo(f"{out}: {_known(known)}")


def update(
    file: TaskFile,
    points: Annotated[Path, typer.Option(help="More points; classes and tasks may be new.")],
    forget: Annotated[bool, typer.Option("--forget", help="Take the points away instead of adding them.")] = False,
    task: TaskColumn = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Where the new file goes. Default: in the old one's place.")] = None,
    sums: Sums = False,
    run: RunOption = None,
) -> None:
    """Add points to what is known of a task, or of many, or take some away.

    Example: `metavib update task.safetensors --points more.csv`
    """
    folder, learner = _learner(file, run)
    column, known = _loaded(file, learner, together(task))
    of: Any = () if column is None else (column,)
    known = known.forget(points, *of) if forget else known.update(points, *of)
    known.save(out or file, run=folder, form="memory" if sums else "smaller")
    typer.echo(f"{out or file}: {_known(known)}")


def predict(
    file: TaskFile,
    query: Annotated[Path, typer.Option(help="Where to predict: a table, a picture, or a folder of pictures.")],
    level: Annotated[float, typer.Option(help="Probability of the interval, for real outputs.")] = 0.95,
    task: TaskColumn = [],  # noqa: B006
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write there instead of printing: CSV, JSON or Parquet by the name of the file.")
    ] = None,
    run: RunOption = None,
) -> None:
    """Predict at new points: mean, standard deviation and interval, or class probabilities and entropy.

    Each row of the query comes back with its prediction beside it. In a file of many tasks each row is predicted by its
    own task, and `support` says how many points of it are known: 0 for a task that was never seen, whose prediction is
    the prior. Of several targets each has columns of its own, which begin with its name.

    Example: `metavib predict task.safetensors --query q.csv --out p.csv`
    """
    write = _writer(json_=json_, csv_=csv_, out=out)
    from metavib.adapt.targets import Learners

    _, learner = _learner(file, run)
    one = next(iter(learner.values())) if isinstance(learner, Learners) else learner  # all have the same inputs
    beside = one.preparation.beside(query)
    if not beside:
        raise ValueError(f"{query}: there are no rows to predict.")
    column, known = _loaded(file, learner, together(task))
    if column is None:
        _warn_of_several(learner, query, "are predicted as")
    ids = None if column is None else one.preparation.ids(query, column)
    if isinstance(learner, Learners):
        each = [_named(target, _predicted(known[target], query, ids, level)) for target in known]
        found = [{name: value for row in rows for name, value in row.items()} for rows in zip(*each, strict=True)]
    else:
        found = _predicted(known, query, ids, level)
    if ids is not None and not any(value for row in found for name, value in row.items() if name.endswith("support")):
        warnings.warn(
            f"none of the tasks that {column!r} names in {query} is known: all predictions are those of a task without "
            "points.",
            UserWarning,
            stacklevel=2,
        )
    content = write([_joined(i, *rows) for i, rows in enumerate(zip(beside, found, strict=True))])
    if out is None:
        typer.echo(content.decode(), nl=False)
    else:
        write_atomically(out, lambda p: p.write_bytes(content))


def _warn_of_several(learner: "Learner | Learners", rows: Path, treated: str) -> None:
    """Warns of rows that name several tasks, in the column that named them in training, and are taken for one."""
    from metavib.adapt.preparation import Rows
    from metavib.adapt.targets import Learners

    of_rows = (next(iter(learner.values())) if isinstance(learner, Learners) else learner).preparation
    if not isinstance(of_rows, Rows) or not of_rows.column:
        return
    try:
        several = len(set(of_rows.ids(rows, of_rows.column)))
    except ValueError:  # there is no such column, and the rows are of one task
        return
    if several > 1:
        warnings.warn(
            f"{rows} has rows of {several} tasks ({of_rows.column!r}), which {treated} one and the same. Adapt with "
            f"--task {of_rows.column} to keep them apart.",
            UserWarning,
            stacklevel=3,
        )


def _predicted(known: "Predictor | Predictors", query: Path, ids: "list[Hashable] | None", level: float) -> list[Row]:
    """The prediction of each row of a query, by the one task or by its own."""
    from metavib.adapt.learner import Predictors

    if not isinstance(known, Predictors):
        return known.predict(query).rows(level)
    assert ids is not None
    rows = known.predict(query, ids).rows(level)
    return [{"support": n} | row for n, row in zip(known.points_of(ids), rows, strict=True)]


def _named(target: str, rows: list[Row]) -> list[Row]:
    """Predictions of a target under names that begin with its own."""
    return [{f"{target} {name}": value for name, value in row.items()} for row in rows]


def _loaded(file: Path, learner: "Learner | Learners", task: str | None) -> "tuple[str | None, Any]":
    """What a task file holds, and the column that names tasks in a table of points; None where there is one task."""
    from metavib.adapt.file import column_of, is_of_several
    from metavib.adapt.targets import Learners

    column = column_of(file)
    if task and not column:
        raise ValueError(f"{file} holds one task, which has no id: leave --task {task} out, or adapt with it.")
    if is_of_several(file) != isinstance(learner, Learners):
        raise ValueError(f"{file} was made with another run than this one: one of them has several targets.")
    load = learner.load_many if column and not isinstance(learner, Learners) else learner.load
    return task or column or None, load(file)


def _learner(file: Path, run: Path | None) -> "tuple[Path, Learner | Learners]":
    from metavib.adapt.file import run_of
    from metavib.training import run_folder, targets

    folder = run_or_model(run or run_of(file))
    if not all(map(run_folder.is_run, targets.folders(folder).values())):
        raise FileNotFoundError(f"{file} was made with the run {folder}, which is not there; name it with --run.")
    return folder, _learner_of(folder)


def _learner_of(run: Path) -> "Learner | Learners":
    """The learner of a run, or those of several targets."""
    from metavib.adapt.learner import Learner
    from metavib.adapt.targets import Learners
    from metavib.training import targets

    return Learner.from_run(run) if "" in targets.folders(run) else Learners.from_run(run)


def _joined(i: int, beside: Row, found: Row) -> Row:
    """A row of the query and its prediction; cells of the query that are called like one of the prediction say so."""
    own = {f"query {name}" if name in found else name: None if cell != cell else cell for name, cell in beside.items()}
    return {"query": str(i + 1)} | own | found


def _known(known: "Predictor | Predictors | Adapted") -> str:
    from metavib.adapt.learner import Predictors
    from metavib.adapt.targets import Adapted

    if isinstance(known, Adapted):
        return "; ".join(f"{target}: {_known(one)}" for target, one in known.items())
    names = ", ".join(map(str, known.classes[:20])) + ", ..." * (len(known.classes) > 20)
    classes = f", classes {names}" if names else ""
    if isinstance(known, Predictors):
        return f"{len(known)} task{'s' * (len(known) != 1)}, {known.n} points{classes}"
    kept = "" if known.constant_size else "; this method keeps its points, so that the file grows with them"
    return f"{known.n} points{classes}{kept}"


def _writer(*, json_: bool, csv_: bool, out: Path | None) -> Callable[[list[Row]], bytes]:
    """The form of the output: the one asked for, that of the file's name, or a table to read."""
    if json_ and csv_:
        raise ValueError("--json and --csv are two forms of the same output: choose one.")
    suffix = "" if out is None else out.suffix.lower()
    if json_ or (suffix == ".json" and not csv_):
        return _json
    if csv_ or suffix == ".csv":
        return _csv
    if suffix == ".parquet":
        return _parquet
    if suffix not in ("", ".md", ".txt"):
        raise ValueError(
            f"{out}: predictions are written as .csv, .json, .parquet, or a table (.md, .txt); got {suffix!r}."
        )
    return _table


def _json(found: list[Row]) -> bytes:
    return (to_json(found, indent=2, default=str) + "\n").encode()


def _csv(found: list[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().encode()


def _parquet(found: list[Row]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("Parquet files are written by pyarrow: pip install metavib[parquet].") from error
    buffer = io.BytesIO()
    columns = {name: pyarrow.array([row[name] for row in found], from_pandas=True) for name in found[0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _table(found: list[Row]) -> bytes:
    def cell(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)

    return (tables.markdown(list(found[0]), [[cell(v) for v in row.values()] for row in found]) + "\n").encode()
