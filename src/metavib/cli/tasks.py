"""The command line of daily use: adapt to a task, update what is known of it, predict."""

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from metavib.adapt import daily
from metavib.adapt.file import run_of
from metavib.adapt.learner import Learner
from metavib.files import write_atomically
from metavib.show import tables
from metavib.training import run_folder
from metavib.training.config import Config, read

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
    predictor = Learner.from_run(run).adapt(daily.read_points(support, _config(run)))
    predictor.save(out, run=run)
    typer.echo(f"{out}: {predictor.n} points{_classes(predictor.classes)}")


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
    folder, predictor = _load(state, run)
    data = daily.read_points(points, _config(folder))
    changed = predictor.forget(data) if forget else predictor.update(data)
    changed.save(out or state, run=folder)
    typer.echo(f"{out or state}: {changed.n} points{_classes(changed.classes)}")


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
    if json_ and csv_:
        raise ValueError("--json and --csv are two forms of the same output: choose one.")
    folder, predictor = _load(state, run)
    config = _config(folder)
    x, names = daily.read_queries(query, config)
    found = daily.rows(predictor.predict(x), names, config, level=level)
    text = _json(found) if json_ else _csv(found) if csv_ else _table(found)
    if out is None:
        typer.echo(text)
    else:
        write_atomically(out, lambda p: p.write_text(text + "\n", encoding="utf-8"))


def _load(state: Path, run: Path | None) -> tuple[Path, Any]:
    folder = run or run_of(state)
    if not (folder / run_folder.LAST).exists():
        raise FileNotFoundError(f"{state} was made with the run {folder}, which is not there; name it with --run.")
    return folder, Learner.from_run(folder).load(state)


def _config(run: Path) -> Config:
    return read(run / run_folder.CONFIG)


def _classes(labels: tuple[Any, ...]) -> str:
    return f", classes {', '.join(map(str, labels))}" if labels else ""


def _json(found: list[daily.Row]) -> str:
    return json.dumps(found, indent=2)


def _csv(found: list[daily.Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().rstrip("\n")


def _table(found: list[daily.Row]) -> str:
    def cell(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return tables.markdown(list(found[0]), [[cell(v) for v in row.values()] for row in found])
