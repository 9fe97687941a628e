"""The command line: one function a command, nothing decided behind it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from metavib.cli import options as cli_config
from metavib.cli import pretrain as cli_pretrain
from metavib.cli import tasks as cli_daily
from metavib.cli import tune as cli_tune
from metavib.cli.options import (
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
from metavib.show import plots, tables
from metavib.show.console import note, print_markdown
from metavib.training import checkpoint, recipes, run_folder, runs
from metavib.training import loop as training
from metavib.training.config import CLASSIFICATION, EXPERIMENTS, METHODS, REGRESSION
from metavib.training.engine import ranks as distributed
from metavib.training.fields import override, to_dict
from metavib.training.protocols import experiment

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
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=f"One of: {', '.join(EXPERIMENTS)}.")],
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
        record = runs.run(resolved, folder, resume=resume, quiet=quiet or json_)
    else:
        record = runs.retest(resolved, folder, trained, resume=resume, quiet=quiet or json_)
    if not distributed.first():
        return
    _show(record["evaluation"], json_=json_)
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
    saved = checkpoint.load(run / run_folder.LAST)
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
    model = run_folder.selected(run, device=device)
    _show(experiment(resolved).evaluate(model, quiet=quiet or json_), json_=json_)


@app.command()
def plot(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures. Default: the run folder.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the task that is drawn.")] = 1,
) -> None:
    """Draw a run: its learning curve, and predictions on one task for K = 1, 2, 3, 4, 5, 7 or a reliability figure."""
    saved = checkpoint.load(run / run_folder.LAST)
    folder, tasks = out or run, saved.config.tasks.name
    figures = {
        "learning_curve.png": plots.learning_curve(run_folder.read_metrics(run), f"{saved.config.method} on {tasks}")
    }
    if tasks in REGRESSION:
        figures["predictions.png"] = plots.predictions(run_folder.selected(run), saved.config, seed=seed)
    elif tasks in CLASSIFICATION and (record := run_folder.read_record(run)):
        tested = record["evaluation"]["rows"][0]["metrics"]  # the first of its tests
        figures["reliability.png"] = plots.reliability({saved.config.method: [tested]})
    for name, figure in figures.items():
        plots.save(figure, folder / name)
        typer.echo(folder / name)


@app.command()
def show(run: Run, json_: Json = False) -> None:
    """Say what a run is and how good it was."""
    saved = checkpoint.load(run / run_folder.LAST)
    c, lines = saved.config, run_folder.read_metrics(run)
    done = f"{saved.step} of {c.train.steps} steps" + ("" if saved.step == c.train.steps else "; go on with --resume")
    record = run_folder.read_record(run)
    result = record and record["evaluation"]
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


for command in (
    cli_pretrain.pretrain,
    cli_pretrain.embed,
    cli_daily.adapt,
    cli_daily.update,
    cli_daily.predict,
    cli_tune.tune,
):
    app.command()(command)


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo")) -> None:
    """Something to look at in about two minutes: a trained GP-VIB, how good it is on new tasks, its figure."""
    record = runs.run(recipes.demo(), out, resume=True)
    print_markdown(tables.evaluation(record["evaluation"]))
    plot(out, None, 1)


def main() -> None:
    """The program."""
    arguments = sys.argv[1:]
    several = {"--shots", "--inner-steps"} if arguments[:1] == ["evaluate"] else set()
    guarded(lambda: app(args=spread(arguments, several), prog_name="metavib"))


def guarded(program: Callable[[], Any]) -> None:
    """Runs a program: bad input ends with a message and status 2, an interrupt with 130, never with a traceback."""
    try:
        program()
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
