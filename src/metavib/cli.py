"""The command line: train, evaluate, plot, reproduce."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from metavib import (
    build,
    checkpoint,
    cli_config,
    cli_daily,
    cli_report,
    cli_tune,
    distributed,
    plots,
    recipes,
    records,
    tables,
)
from metavib import reproduce as reproductions
from metavib import train as training
from metavib.cli_config import (
    ConfigFile,
    Csv,
    Device,
    Improved,
    KernelName,
    LikelihoodName,
    Precision,
    Root,
    Seed,
    Shots,
    Target,
    TaskColumn,
)
from metavib.config import METHODS, Config
from metavib.console import note, print_markdown
from metavib.experiments import CLASSIFICATION, NAMES, REGRESSION, experiment
from metavib.files import read_json, write_json
from metavib.strict import override, to_dict

app = typer.Typer(
    name="metavib",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Few-shot learning with honest uncertainty: one variational information bottleneck, every encoder.",
    rich_markup_mode="markdown",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Run = Annotated[Path, typer.Argument(help="A run folder, as `metavib train` writes it.")]
Set = Annotated[
    list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the config, e.g. `train.lr=2e-3`.")
]


@app.command()
def train(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=f"One of: {', '.join(NAMES)}.")],
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(METHODS)}.")] = "gp-vib",
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: `runs/EXPERIMENT-METHOD-SEED`.")] = None,
    config: ConfigFile = None,
    improved: Improved = False,
    assign: Set = [],  # noqa: B006 - typer copies it
    steps: Annotated[int | None, typer.Option(help="Meta-training steps.")] = None,
    seed: Seed = None,
    repeats: Annotated[int | None, typer.Option(help="Independent trainings side by side.")] = None,
    shots: Shots = None,
    kernel: KernelName = None,
    beta: Annotated[float | None, typer.Option(help="Weight of the KL.")] = None,
    device: Device = None,
    precision: Precision = None,
    root: Root = None,
    csv: Csv = None,
    task: TaskColumn = None,
    target: Target = None,
    likelihood: LikelihoodName = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped or killed.")] = False,
    trained: Annotated[
        Path | None, typer.Option(help="A finished run with the same training: test its model, train nothing.")
    ] = None,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Meta-train a method and test it.

    Writes a run folder: the resolved config, metrics as JSON lines, a checkpoint, the final evaluation. Stop it with
    Ctrl-C whenever you like and continue with `--resume`: the result is the same to the last bit.

    Example: `metavib train sinusoid --method gp-vib --steps 5000`
    """
    given: dict[str, Any] = {"train.steps": steps, "seed": seed, "repeats": repeats, "tasks.shots": shots}
    given |= {"model.kernel": kernel, "train.beta": beta, "precision": precision, "device": device, "tasks.root": root}
    given |= {"tasks.table.csv": csv, "tasks.table.task": task, "tasks.table.target": target}
    given |= {"model.likelihood": likelihood}
    resolved = cli_config.resolved(name, method, config=config, improved=improved, assign=assign, given=given)
    folder = out or Path("runs") / f"{name}-{resolved.method}-{resolved.seed}"
    if trained is None:
        run(resolved, folder, resume=resume, quiet=quiet or json_)
    else:
        retest(resolved, folder, trained, resume=resume, quiet=quiet or json_)
    if not distributed.first():
        return
    result = read_json(folder / "evaluation.json")
    _show(result, json_=json_)
    if not json_:
        note(f"run folder: {folder}; next: `metavib plot {folder}`")


@app.command()
def evaluate(
    run: Run,
    shots: Annotated[list[int], typer.Option(help="Support sizes, e.g. `--shots 5 10 20`.")] = [],  # noqa: B006
    ways: Annotated[int | None, typer.Option(help="Classes of a test task.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Test tasks of each size.")] = None,
    inner_steps: Annotated[list[int], typer.Option(help="Gradient steps at test (MAML variants).")] = [],  # noqa: B006
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Also with a temperature fitted on validation (classification).")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Decides the test tasks.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; any run can be tested on either.")] = "cpu",
    root: Annotated[Path | None, typer.Option("--root", "--data", help="Folder of the dataset.")] = None,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Test a trained run on new tasks.

    Regression: error, log predictive density, coverage of the 50, 90 and 95% intervals. Classification: accuracy, NLL,
    Brier score, ECE. All with 95% intervals.

    Example: `metavib evaluate runs/sinusoid-gp-vib-0 --shots 5 10 20`
    """
    saved = checkpoint.load(run / training.LAST)
    given = {
        "test.shots": shots or None,
        "test.tasks": tasks,
        "test.ways": ways,
        "test.inner_steps": inner_steps or None,
        "test.temperature": temperature or None,
        "test.seed": seed,
        "device": device,
        "tasks.root": None if root is None else str(root),
    }
    resolved = override(saved.config, {k: v for k, v in given.items() if v is not None})
    model = training.selected(run, device=device)
    _show(experiment(resolved).evaluate(model, quiet=quiet or json_), json_=json_)


@app.command()
def plot(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures. Default: the run folder.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the task that is drawn.")] = 1,
) -> None:
    """Draw a run: its learning curve, and predictions on one task for K = 1, 2, 3, 4, 5, 7 or a reliability figure."""
    saved = checkpoint.load(run / training.LAST)
    folder, tasks = out or run, saved.config.tasks.name
    figures = {
        "learning_curve.png": plots.learning_curve(training.read_metrics(run), f"{saved.config.method} on {tasks}")
    }
    if tasks in REGRESSION:
        figures["predictions.png"] = plots.predictions(training.selected(run), saved.config, seed=seed)
    elif tasks in CLASSIFICATION and (run / "record.json").exists():
        figures["reliability.png"] = plots.reliability({saved.config.method: read_json(run / "record.json")})
    for name, figure in figures.items():
        plots.save(figure, folder / name)
        typer.echo(folder / name)


@app.command(epilog=f"NAME is one of:\n\n{reproductions.listing()}")
def reproduce(
    name: Annotated[str, typer.Argument(help="A table or figure; they are listed below.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute's version: a few of the runs, tiny, on built-in data.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where records, tables and figures go.")] = Path("results"),
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERNS",
            help="Run only those whose name fits one of these, separated by commas; '' for none, just the table.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(metavar="I/N", help="Run the I-th of N parts of the list: one a machine.")
    ] = "1/1",
    seeds: Annotated[int | None, typer.Option(help="Trainings of each cell. Table 2: 3 of GP-VIB, else 1.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time. Default: 8 on a GPU, else one a core.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only list the runs, and which of them are on record.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a table or figure of the paper, its numbers beside ours.

    Runs what is missing, skips what is recorded, goes on where it was killed, and writes a record a run.

    Runs are named COLUMN/ROW-SHOTS-seedN, and `--only` picks them, `*` standing for anything:

    `metavib reproduce table-2 --only 'cub/*'` one dataset;

    `metavib reproduce table-2 --only '*/gp-vib-*-seed0'` one training of GP-VIB everywhere, our own recipes too;

    `metavib reproduce table-2 --only 'cub/*-5-seed0,mini-imagenet/maml-*'` both of these;

    `metavib reproduce table-2 --part 2/4` the second of four machines; collect the records in one folder afterwards.

    Example: `metavib reproduce table-1 --quick`
    """
    if list_:
        runs = reproductions.plan(name, out, fast=quick, only=only, part=part, seeds=seeds)
        rows = [[key, "on record" if recorded else "missing"] for key, (_, recorded) in runs.items()]
        print_markdown(tables.markdown(("run", "status"), rows))
        return
    options: Any = {"only": only, "part": part, "seeds": seeds, "jobs": jobs}
    print_markdown(reproductions.reproduce(name, out, fast=quick, quiet=quiet, **options))


@app.command()
def show(run: Run, json_: Json = False) -> None:
    """Say what a run is and how good it was."""
    saved = checkpoint.load(run / training.LAST)
    c, lines = saved.config, training.read_metrics(run)
    done = f"{saved.step} of {c.train.steps} steps" + ("" if saved.step == c.train.steps else "; go on with --resume")
    result = read_json(run / "evaluation.json") if (run / "evaluation.json").exists() else None
    if json_:
        typer.echo(json.dumps({"config": to_dict(c), "step": saved.step, "evaluation": result}, indent=2))
        return
    seconds = lines[-1].get("seconds", 0.0) if lines else 0.0
    parameters = sum(p.numel() for p in checkpoint.restore_model(saved).parameters())
    about = {
        "experiment": f"{c.tasks.name}, {c.tasks.shots}-shot",
        "method": c.method + (f", {c.model.kernel} kernel" if c.method in ("gp-vib", "gp-maml", "dkt") else ""),
        "training": f"{done}, {c.train.tasks} tasks a step, beta {c.train.beta:g}, {seconds:.0f} s",
        "model": f"{parameters:,} parameters, {c.repeats} repeat{'s' * (c.repeats > 1)}, {c.precision}, seed {c.seed}",
    }
    text = tables.markdown(("run", str(run)), about.items())
    print_markdown(text + ("\n\n" + tables.evaluation(result) if result else ""))


@app.command()
def data(
    root: Annotated[Path | None, typer.Option(help="Folder to look in. Default: `$METAVIB_DATA`, else `data`.")] = None,
    json_: Json = False,
) -> None:
    """List the datasets: what each is, where to get it, and what was found."""
    from metavib.data import catalog

    entries = catalog(root)
    if json_:
        typer.echo(
            json.dumps([{**e._asdict(), "found": [str(f) for f in e.found]} for e in entries], indent=2, default=str)
        )
        return
    rows = [["glyphs", "built in", "characters from matplotlib's fonts; nothing to download"]]
    rows += [[e.name, f"ready ({e.form})" if e.ready else "missing", e.what] for e in entries]
    print_markdown(tables.markdown(("dataset", "status", "what"), rows))
    for e in entries:
        if not e.ready:
            print_markdown(f"\n**{e.name}**: {e.remedy}")


for command in (cli_daily.adapt, cli_daily.update, cli_daily.predict, cli_tune.tune, cli_report.report):
    app.command()(command)


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo")) -> None:
    """Something to look at in about two minutes: a trained GP-VIB, its row of table 1, its figure."""
    run(recipes.demo(), out, resume=True, quiet=False)
    print_markdown(tables.sinusoids({"gp-vib-demo": read_json(out / "record.json")}))
    plot(out, None, 1)


def run(config: Config, folder: Path, *, resume: bool, quiet: bool) -> None:
    """Trains, tests and records a run; does nothing where that is done already."""
    build.set_torch(config)
    with distributed.joined(config.device) as ranks:
        ranks.on_first(training.prepare, config, folder, resume=resume)
        if ranks.on_first((folder / "evaluation.json").exists):
            return
        world = experiment(config)  # one for both: its data may be gigabytes
        model = training.train(config, folder, resume=True, quiet=quiet, world=world, ranks=ranks)
    if not ranks.first:
        return
    result = world.evaluate(model, quiet=quiet)
    write_json(folder / "record.json", records.record(config, result, training.read_metrics(folder)))
    write_json(folder / "evaluation.json", result)


def retest(config: Config, folder: Path, trained: Path, *, resume: bool, quiet: bool) -> None:
    """Tests the model of a finished run in another way, as a run of its own; nothing is trained."""
    build.set_torch(config)
    training.prepare(config, folder, resume=resume)
    if (folder / "evaluation.json").exists():
        return
    if replace(training.chosen(trained).config, test=config.test) != config:
        raise ValueError(f"{trained} was trained under another config than this one: its test alone may differ.")
    write_json(folder / training.CONFIG, to_dict(config))
    result = experiment(config).evaluate(training.selected(trained, device=config.device), quiet=quiet)
    write_json(folder / "record.json", records.record(config, result, training.read_metrics(trained)))
    write_json(folder / "evaluation.json", result)


def main() -> None:
    """The program: bad input ends with a message and status 2, an interrupt with status 130, never a traceback."""
    try:
        arguments = sys.argv[1:]
        several = {"--shots", "--inner-steps"} if arguments[:1] == ["evaluate"] else set()
        app(args=spread(arguments, several), prog_name="metavib")
    except training.Interrupted as stop:
        if distributed.first():
            note(escape(str(stop)))
        raise SystemExit(130) from None
    except distributed.FirstFailed:  # the first process says what happened
        raise SystemExit(2) from None
    except (ValueError, TypeError, OSError, RuntimeError, FloatingPointError, ImportError) as error:
        note(f"[bold red]error:[/] {escape(str(error))}")
        raise SystemExit(2) from None


def spread(arguments: list[str], options: set[str]) -> list[str]:
    """Lets an option take several numbers: `--shots 5 10` becomes `--shots 5 --shots 10`, which is what click reads."""
    result: list[str] = []
    current, taken = "", 0
    for argument in arguments:
        if argument.startswith("-") and not argument.lstrip("-").isdigit():
            current, taken = (argument, 0) if argument in options else ("", 0)
        elif current and argument.isdigit():
            if taken:
                result.append(current)
            taken += 1
        else:
            current = ""
        result.append(argument)
    return result


def _show(result: dict[str, Any], *, json_: bool) -> None:
    if json_:
        typer.echo(json.dumps(result, indent=2))
    else:
        print_markdown(tables.evaluation(result))
