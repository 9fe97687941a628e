"""The command line of hyperparameter search."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metavib.cli.options import (
    Categories,
    ConfigFile,
    Csv,
    Device,
    Drop,
    Features,
    Given,
    Improved,
    Inputs,
    Json,
    KernelName,
    LikelihoodName,
    Method,
    Missing,
    Precision,
    Quiet,
    Root,
    Seed,
    Shots,
    Target,
    TaskColumn,
    assignments,
    names,
    resolved,
    together,
)
from metavib.files import to_json
from metavib.show import tables
from metavib.show.console import note, print_markdown
from metavib.training.config import EXPERIMENTS, Config

if TYPE_CHECKING:
    from metavib.tune import Result, Search, Space

SHOWN = 10  # trials of the table


def tune(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=f"One of: {', '.join(EXPERIMENTS)}.")],
    method: Method = None,
    trials: Annotated[int, typer.Option(help="Trials the study is to have in all, whoever runs them.")] = 30,
    ranges: Annotated[
        list[str],
        typer.Option(
            "--range",
            metavar="FIELD=RANGE",
            help="Search a field over values, `train.lr=1e-4,1e-3`, or an interval, `train.lr=1e-4..0.1`. "
            "Default: the paper's ranges of the learning rates and beta, those a method has.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    study: Annotated[
        str | None, typer.Option(help="Name of the study. Default: `EXPERIMENT-METHOD-KERNEL-SHOTS`.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the study is kept, for many machines to share: a database or Redis by its URL, or a journal "
            "file by its path. Default: an SQLite file in the folder.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the search. Default: `runs/tune-STUDY`.")] = None,
    jobs: Annotated[int, typer.Option(help="Trials at a time on this machine.")] = 1,
    no_pruning: Annotated[bool, typer.Option("--no-pruning", help="Train every trial to its end.")] = False,
    sampler_seed: Annotated[
        int | None, typer.Option(help="Makes the values that are tried repeatable, for one worker.")
    ] = None,
    config: ConfigFile = None,
    improved: Improved = False,
    assign: Annotated[
        list[str],
        typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the config; what is set is not searched."),
    ] = [],  # noqa: B006
    steps: Annotated[int | None, typer.Option(help="Meta-training steps of a trial.")] = None,
    seed: Seed = None,
    shots: Shots = None,
    kernel: KernelName = None,
    device: Device = None,
    precision: Precision = None,
    root: Root = None,
    csv: Csv = None,
    task: TaskColumn = [],  # noqa: B006
    target: Target = [],  # noqa: B006
    inputs: Inputs = [],  # noqa: B006
    drop: Drop = [],  # noqa: B006
    categories: Categories = [],  # noqa: B006
    missing: Missing = None,
    likelihood: LikelihoodName = None,
    features: Features = [],  # noqa: B006
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Search hyperparameters on the validation tasks (needs the extra: `pip install metavib[tune]`).

    Goes on with a study that exists. Start it on several machines with one `--storage` and they share the work. Writes
    `best.json`, a config for `metavib train`, and `search.png`, a figure of what mattered. Test tasks are not touched.

    Example: `metavib tune sinusoid --method gp-vib --trials 30 --steps 5000`
    """
    from metavib.training import build
    from metavib.tune import Search, with_curve
    from metavib.tune import tune as run

    options: dict[str, tuple[str, Any]] = {
        "--steps": ("train.steps", steps),
        "--seed": ("seed", seed),
        "--shots": ("tasks.shots", shots),
        "--kernel": ("model.kernel", kernel),
        "--device": ("device", device),
        "--precision": ("precision", precision),
        "--root": ("tasks.root", root),
        "--csv": ("tasks.table.csv", csv),
        "--task": ("tasks.table.task", together(task)),
        "--target": ("tasks.table.target", together(target)),
        "--inputs": ("tasks.table.features", names(inputs)),
        "--drop": ("tasks.table.drop", names(drop)),
        "--categories": ("tasks.table.categories", names(categories)),
        "--missing": ("tasks.table.missing", missing),
        "--likelihood": ("model.likelihood", likelihood),
        "--features": ("tasks.features", list(map(str, features)) or None),
    }
    each = resolved(name, method or "gp-vib", Given(assign, options), config=config, improved=improved)
    if len(each) > 1:
        raise ValueError(f"a search is of one target, and {', '.join(each)} are several: search for each.")
    (wanted,) = each.values()
    fixed = set(assignments(assign))
    named = study or _name(wanted)
    search = Search(
        config=wanted if "train.validate_every" in fixed else with_curve(wanted),
        space=_space(wanted, ranges, fixed),
        folder=out or Path("runs") / f"tune-{named}",
        study=named,
        storage=storage,
        trials=trials,
        prune=not no_pruning,
        seed=sampler_seed,
    )
    build.set_torch(search.config)
    result = run(search, jobs=jobs, quiet=quiet or json_)
    _draw(search, result)
    _show(search, result, json_=json_)


def _name(config: Config) -> str:
    """A study's, unless it is given one."""
    kernel = [config.model.kernel] if config.method in ("gp-vib", "gp-maml", "dkt") else []
    return "-".join([config.tasks.name, config.method, *kernel, f"{config.tasks.shots}-shot"])


def _space(config: Config, texts: list[str], fixed: set[str]) -> "Space":
    """The ranges that were given, else the paper's without what was set."""
    from metavib.tune import paper, parse

    given = dict(parse(text, config) for text in texts)
    for field in fixed & given.keys():
        raise ValueError(f"{field} is both set and searched: leave out --set or --range.")
    dropout = config.model.backbone == "embedded" and bool(config.model.widths)
    return given or {field: r for field, r in paper(config.method, dropout=dropout).items() if field not in fixed}


def _draw(search: "Search", result: "Result") -> None:
    from metavib.show import plots
    from metavib.tune.figure import figure

    title = f"{search.study}: {len(result.trials)} trials"
    plots.save(figure(result, search.space, title), search.folder / "search.png")


def _show(search: "Search", result: "Result", *, json_: bool) -> None:
    best = None if result.best is None else result.best.number
    if json_:
        found = {
            "study": search.study,
            "folder": str(search.folder),
            "best": best,
            "config": None if best is None else str(search.folder / "best.json"),
            "importances": result.importances,
            "trials": [asdict(trial) for trial in result.trials],
        }
        typer.echo(to_json(found, indent=2))
        return
    print_markdown(table(result, search.space))
    counts = Counter(trial.state for trial in result.trials)
    note(f"{len(result.trials)} trials: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    note(f"what mattered: {search.folder / 'search.png'}")
    if best is not None:
        path = search.folder / "best.json"
        note(f"best: trial {best}, {path}; next: `metavib train {search.config.tasks.name} --config {path}`")


def table(result: "Result", space: "Space") -> str:
    """The best trials in Markdown: what was tried, and what came of it on the validation tasks."""
    judged, sign = result.metric
    others = [name for name in (result.best.validation if result.best else {}) if name not in ("score", judged)]
    rows = []
    for trial in result.trials[:SHOWN]:
        values = [_cell(trial.values.get(field)) for field in space]
        scores = [None if trial.score is None else sign * trial.score, *map(trial.validation.get, others), trial.step]
        state = trial.state if trial.same_as is None else f"{trial.state}, as trial {trial.same_as}"
        rows.append([str(trial.number), *values, *map(_cell, scores), state])
    header = ["trial", *space, *(name.replace("_", " ") for name in (judged, *others)), "step", "state"]
    return tables.markdown(header, rows)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
