"""The command line of daily use: adapt to a task, update what is known of it, predict."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from metavib.adapt.file import run_of
from metavib.adapt.learner import Learner, Predictor
from metavib.files import write_atomically
from metavib.show import tables
from metavib.training import run_folder

Row = dict[str, Any]

State = Annotated[Path, typer.Argument(help="A task's state, as `metavib adapt` writes it.")]
RunOption = Annotated[Path | None, typer.Option("--run", help="The run the state was made with, where it has moved.")]


def adapt(
    run: Annotated[Path, typer.Argument(help="A run folder, as `metavib train` writes it.")],
    support: Annotated[Path, typer.Option(help="Points of the task: a CSV file, or a folder of class folders.")],
    out: Annotated[Path, typer.Option(help="Where the task's state goes.")] = Path("task.safetensors"),
) -> None:
    """Adapt a trained run to a new task.

    Writes all that is known of the task into one small file, whose size does not depend on the number of points.

    Example: `metavib adapt runs/table-gp-vib-0 --support new.csv --out task.safetensors`
    """
    predictor = Learner.from_run(run).adapt(support)
    predictor.save(out, run=run)
    typer.echo(f"{out}: {_known(predictor)}")


def update(
    state: State,
    points: Annotated[Path, typer.Option(help="More points of the task; classes may be new.")],
    forget: Annotated[bool, typer.Option("--forget", help="Take the points away instead of adding them.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where the new state goes. Default: in the old one's place.")] = None,
    run: RunOption = None,
) -> None:
    """Add points to what is known of a task, or take some away.

    Example: `metavib update task.safetensors --points more.csv`
    """
    folder, learner = _learner(state, run)
    predictor = learner.load(state)
    changed = predictor.forget(points) if forget else predictor.update(points)
    changed.save(out or state, run=folder)
    typer.echo(f"{out or state}: {_known(changed)}")


def predict(
    state: State,
    query: Annotated[Path, typer.Option(help="Where to predict: a CSV file, a picture, or a folder of pictures.")],
    level: Annotated[float, typer.Option(help="Probability of the interval, for real outputs.")] = 0.95,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write there instead of printing.")] = None,
    run: RunOption = None,
) -> None:
    """Predict at new points: mean, standard deviation and interval, or class probabilities and entropy.

    Example: `metavib predict task.safetensors --query q.csv --csv`
    """
    write = _writer(json_=json_, csv_=csv_, out=out)
    _, learner = _learner(state, run)
    found = learner.load(state).predict(query).rows(level)
    beside = learner.preparation.beside(query)
    text = write([_joined(i, *rows) for i, rows in enumerate(zip(beside, found, strict=True))])
    if out is None:
        typer.echo(text)
    else:
        write_atomically(out, lambda p: p.write_text(text + "\n", encoding="utf-8"))


def _learner(state: Path, run: Path | None) -> tuple[Path, Learner]:
    folder = run or run_of(state)
    if not (folder / run_folder.LAST).exists():
        raise FileNotFoundError(f"{state} was made with the run {folder}, which is not there; name it with --run.")
    return folder, Learner.from_run(folder)


def _joined(i: int, beside: Row, found: Row) -> Row:
    """A row of the query and its prediction; cells of the query that are called like one of the prediction say so."""
    own = {f"query {name}" if name in found else name: cell for name, cell in beside.items()}
    return {"query": str(i + 1)} | own | found


def _known(predictor: Predictor) -> str:
    classes = f", classes {', '.join(map(str, predictor.classes))}" if predictor.classes else ""
    kept = "" if predictor.constant_size else "; this method keeps its points, so that the file grows with them"
    return f"{predictor.n} points{classes}{kept}"


def _writer(*, json_: bool, csv_: bool, out: Path | None) -> Callable[[list[Row]], str]:
    """The form of the output: the one asked for, that of the file's name, or a table to read."""
    if json_ and csv_:
        raise ValueError("--json and --csv are two forms of the same output: choose one.")
    suffix = "" if out is None else out.suffix.lower()
    if json_ or (suffix == ".json" and not csv_):
        return _json
    if csv_ or suffix == ".csv":
        return _csv
    if suffix not in ("", ".md", ".txt"):
        raise ValueError(f"{out}: predictions are written as .csv, .json, or a table (.md, .txt); got {suffix!r}.")
    return _table


def _json(found: list[Row]) -> str:
    return json.dumps(found, indent=2)


def _csv(found: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().rstrip("\n")


def _table(found: list[Row]) -> str:
    def cell(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return tables.markdown(list(found[0]), [[cell(v) for v in row.values()] for row in found])
