"""The command line of daily use: adapt to a task, update what is known of it, predict."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metavib.cli.options import Run, run_or_model
from metavib.files import to_json, write_atomically
from metavib.show import tables

if TYPE_CHECKING:  # commands import PyTorch when they are called: `metavib --help` does without
    from metavib.adapt.learner import Learner, Predictor, Predictors

Row = dict[str, Any]

TaskFile = Annotated[Path, typer.Argument(metavar="FILE", help="A task file, as `metavib adapt` writes it.")]
RunOption = Annotated[Path | None, typer.Option("--run", help="The run the file was made with, where it has moved.")]
TaskColumn = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column that names the task of each row, or two: `school,year`.")
]
Sums = Annotated[bool, typer.Option("--sums", help="Write sums over the points, and never a point itself.")]


def adapt(
    run: Run,
    support: Annotated[Path, typer.Option(help="Points of the task: a table, or a folder of class folders.")],
    task: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column that names the task of each row: adapts to all of these tasks at once."
        ),
    ] = None,
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
    from metavib.adapt.learner import Learner

    out, learner = out or Path("task.safetensors"), Learner.from_run(run)
    options: Any = {"classes": None if classes is None else [name.strip() for name in classes.split(",")]}
    known = learner.adapt(support, **options) if task is None else learner.adapt_many(support, task, **options)
    known.save(out, run=run, form="memory" if sums else "smaller")
    typer.echo(f"{out}: {_known(known)}")


def update(
    file: TaskFile,
    points: Annotated[Path, typer.Option(help="More points; classes and tasks may be new.")],
    forget: Annotated[bool, typer.Option("--forget", help="Take the points away instead of adding them.")] = False,
    task: TaskColumn = None,
    out: Annotated[Path | None, typer.Option(help="Where the new file goes. Default: in the old one's place.")] = None,
    sums: Sums = False,
    run: RunOption = None,
) -> None:
    """Add points to what is known of a task, or of many, or take some away.

    Example: `metavib update task.safetensors --points more.csv`
    """
    folder, learner = _learner(file, run)
    known: Predictor | Predictors
    if _many(file, task):
        tasks = learner.load_many(file)
        known = tasks.forget(points, task) if forget else tasks.update(points, task)
    else:
        one = learner.load(file)
        known = one.forget(points) if forget else one.update(points)
    known.save(out or file, run=folder, form="memory" if sums else "smaller")
    typer.echo(f"{out or file}: {_known(known)}")


def predict(
    file: TaskFile,
    query: Annotated[Path, typer.Option(help="Where to predict: a table, a picture, or a folder of pictures.")],
    level: Annotated[float, typer.Option(help="Probability of the interval, for real outputs.")] = 0.95,
    task: TaskColumn = None,
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
    the prior.

    Example: `metavib predict task.safetensors --query q.csv --out p.csv`
    """
    write = _writer(json_=json_, csv_=csv_, out=out)
    _, learner = _learner(file, run)
    beside = learner.preparation.beside(query)
    if not beside:
        raise ValueError(f"{query}: there are no rows to predict.")
    if _many(file, task):
        tasks = learner.load_many(file)
        found = tasks.predict(query, task).rows(level)
        known = tasks.points_of(learner.preparation.ids(query, task or tasks.column))
        found = [{"support": n} | row for n, row in zip(known, found, strict=True)]
    else:
        found = learner.load(file).predict(query).rows(level)
    content = write([_joined(i, *rows) for i, rows in enumerate(zip(beside, found, strict=True))])
    if out is None:
        typer.echo(content.decode(), nl=False)
    else:
        write_atomically(out, lambda p: p.write_bytes(content))


def _many(file: Path, task: str | None) -> bool:
    """Whether a file holds many tasks."""
    from metavib.adapt.file import column_of

    column = column_of(file)
    if task and not column:
        raise ValueError(f"{file} holds one task, which has no id: leave --task {task} out, or adapt with it.")
    return bool(column)


def _learner(file: Path, run: Path | None) -> "tuple[Path, Learner]":
    from metavib.adapt.file import run_of
    from metavib.adapt.learner import Learner
    from metavib.training import run_folder

    folder = run_or_model(run or run_of(file))
    if not run_folder.is_run(folder):
        raise FileNotFoundError(f"{file} was made with the run {folder}, which is not there; name it with --run.")
    return folder, Learner.from_run(folder)


def _joined(i: int, beside: Row, found: Row) -> Row:
    """A row of the query and its prediction; cells of the query that are called like one of the prediction say so."""
    own = {f"query {name}" if name in found else name: None if cell != cell else cell for name, cell in beside.items()}
    return {"query": str(i + 1)} | own | found


def _known(known: "Predictor | Predictors") -> str:
    from metavib.adapt.learner import Predictors

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
