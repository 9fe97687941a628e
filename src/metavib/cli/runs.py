"""Commands about runs: train one, test it, look at it."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metavib.cli.options import (
    Backbone,
    Categories,
    ConfigFile,
    Csv,
    Device,
    Drop,
    Experiment,
    Features,
    Frozen,
    Given,
    Improved,
    Inputs,
    Json,
    KernelName,
    LikelihoodName,
    Method,
    Missing,
    MovedCsv,
    Precision,
    Quiet,
    Root,
    Run,
    Seed,
    Set,
    Shots,
    TableFile,
    Target,
    TaskColumn,
    Ways,
    described,
    moved,
    names,
    resolved,
    together,
)
from metavib.files import to_json
from metavib.training.config import (
    CLASSIFICATION,
    EMBEDDINGS,
    EXPERIMENTS,
    HIERARCHICAL,
    REGRESSION,
    TABLE,
    TUNED,
    read,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from metavib.training.config import Config


def train(
    name: Experiment = None,
    file: TableFile = None,
    method: Method = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: `runs/EXPERIMENT-METHOD-SEED`.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on with the run in this folder, with its own config: nothing is typed again, and `--steps` may "
            "make it longer. With EXPERIMENT, start it there if it is not there yet.",
        ),
    ] = None,
    config: ConfigFile = None,
    improved: Improved = False,
    assign: Set = [],  # noqa: B006 - typer copies it
    steps: Annotated[int | None, typer.Option(help="Number of training steps.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Time for training, which ends with it should that come before the last step."),
    ] = None,
    seed: Seed = None,
    repeats: Annotated[
        int | None, typer.Option(help="Number of independent trainings side by side (not with images).")
    ] = None,
    ways: Ways = None,
    shots: Shots = None,
    queries: Annotated[
        int | None, typer.Option(help="Query points of a training task, or of each of its classes.")
    ] = None,
    kernel: KernelName = None,
    beta: Annotated[float | None, typer.Option(help="Weight of the KL in the bound.")] = None,
    device: Device = None,
    precision: Precision = None,
    root: Root = None,
    size: Annotated[int | None, typer.Option(help="Side of a picture as the network sees it, in pixels.")] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out pictures that cannot be read (experiment `images`).")
    ] = False,
    csv: Csv = None,
    task: TaskColumn = [],  # noqa: B006
    target: Target = [],  # noqa: B006
    inputs: Inputs = [],  # noqa: B006
    drop: Drop = [],  # noqa: B006
    categories: Categories = [],  # noqa: B006
    missing: Missing = None,
    likelihood: LikelihoodName = None,
    features: Features = [],  # noqa: B006
    backbone: Backbone = None,
    frozen: Frozen = False,
    trained: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Train nothing: test the model of this finished run under the new `test.*`."),
    ] = None,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Meta-train a method on an experiment, and test it on new tasks.

    Writes a run folder: the whole config, metrics as JSON lines, checkpoints, and the record of the finished run. Stop
    it with Ctrl-C whenever you like and continue with `--resume RUN`: on a CPU the result is the same to the last bit.
    Of several targets of a table the folder has a run for each, and all commands that take RUN take it.

    Examples: `metavib train table sales.csv --task shop --target sold`, `metavib train glyphs`,
    `metavib train sinusoid --method maml --steps 5000`,
    `metavib train embeddings --features cub.npz --improved`,
    `metavib train cub --backbone runs/cub-pretrained-0 --shots 5`,
    `metavib train images --root pictures --backbone photographs --frozen`,
    `metavib train --resume runs/glyphs-gp-vib-0`
    """
    options: dict[str, tuple[str, Any]] = {
        "--steps": ("train.steps", steps),
        "--seed": ("seed", seed),
        "--repeats": ("repeats", repeats),
        "--minutes": ("train.minutes", minutes),
        "--ways": ("tasks.ways", ways),
        "--shots": ("tasks.shots", shots),
        "--queries": ("tasks.queries", queries),
        "--size": ("tasks.size", size),
        "--skip-broken": ("tasks.skip_broken", skip_broken or None),
        "--kernel": ("model.kernel", kernel),
        "--beta": ("train.beta", beta),
        "--device": ("device", device),
        "--precision": ("precision", precision),
        "--root": ("tasks.root", root),
        "--csv": ("tasks.table.csv", moved(csv)),
        "FILE": ("tasks.table.csv", moved(file)),
        "--task": ("tasks.table.task", together(task)),
        "--target": ("tasks.table.target", together(target)),
        "--inputs": ("tasks.table.features", names(inputs)),
        "--drop": ("tasks.table.drop", names(drop)),
        "--categories": ("tasks.table.categories", names(categories)),
        "--missing": ("tasks.table.missing", missing),
        "--likelihood": ("model.likelihood", likelihood),
        "--features": ("tasks.features", list(map(str, features)) or None),
        "--backbone": ("model.pretrained", backbone),
    }
    if csv is not None and file is not None:
        raise ValueError(f"the table is named twice, {file} and --csv {csv}: name it once.")
    if name == TABLE and features:
        raise ValueError(
            f"--features are array files of embeddings; columns of a table are chosen by --inputs {features[0]}."
        )
    given = Given(assign, options)
    if resume is not None and out is not None:
        raise ValueError("--resume names the run folder, and so does --out: give one of them.")
    if name is None and config is not None:
        name = read(config).tasks.name
    if name is None:
        wanted = _resumed(resume, method, given, improved=improved)
    elif trained is not None and config is not None and name != TABLE:  # of a finished run, which lacks nothing
        wanted = {"": described(name, method, given, config=config, improved=improved)}
    else:
        wanted = resolved(name, method, given, config=config, improved=improved, frozen=frozen)
    one = next(iter(wanted.values()))
    folder = resume or out or Path("runs") / f"{one.tasks.name}-{one.method}-{one.seed}"

    from metavib.training import runs, targets

    if one.tasks.name == "images" and not (quiet or json_) and resume is None and trained is None:
        _hint(one)
    again: Any = {"resume": resume is not None, "quiet": quiet or json_}
    if trained is None:
        records = targets.train(wanted, folder, **again)
    elif len(wanted) == 1:
        records = {name: runs.retest(config, folder, trained, **again) for name, config in wanted.items()}
    else:
        raise ValueError(f"--trained tests the model of one target, and {', '.join(wanted)} are several: name one.")
    if not all(records.values()):  # a process that is not the first of its run
        return
    _show_evaluation({name: record["evaluation"] for name, record in records.items()}, json_=json_)
    if not json_:
        from metavib.show.console import note

        support = "FOLDER" if one.tasks.name in CLASSIFICATION else "FILE"  # of pictures
        use = (
            f"`metavib adapt {folder} --support {support}`, then `metavib predict`"
            if _takes_files(one.tasks.name)
            else ""
        )
        note(f"run folder: {folder}; next: " + " or ".join(filter(None, (use, f"`metavib plot {folder}`"))))


def _hint(config: "Config") -> None:
    """Says what else there is for photographs, whose training starts from random weights."""
    from metavib.progress import say
    from metavib.training.protocols.seen import kind

    if kind(config.tasks) == "photographs" and not config.model.pretrained and config.method in TUNED:
        say(
            "these are photographs, and weights start at random: with `--backbone photographs --frozen` the network of "
            "a model that comes with the package is used as it is, which takes a minute and is better for most of them "
            "(`metavib models photographs` says what it has learned from)"
        )


def evaluate(
    run: Run,
    shots: Annotated[list[int], typer.Option(help="Support sizes to test with, e.g. `--shots 5 10 20`.")] = [],  # noqa: B006
    ways: Annotated[int | None, typer.Option(help="Number of classes of a test task.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Number of test tasks for each support size.")] = None,
    inner_steps: Annotated[
        list[int], typer.Option(help="Numbers of gradient steps at test, for MAML and its kin, e.g. `1 5 10`.")
    ] = [],  # noqa: B006
    temperature: Annotated[
        bool,
        typer.Option("--temperature", help="Also report probabilities under a temperature fitted on validation tasks."),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Decides the test tasks.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; any run can be tested on either.")] = "cpu",
    root: Root = None,
    csv: MovedCsv = None,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Test a trained run on new tasks.

    Regression: error, log predictive density, coverage of the 50, 90 and 95% intervals. Classification: accuracy,
    negative log likelihood (NLL), Brier score, expected calibration error (ECE). All with 95% intervals.

    Example: `metavib evaluate runs/sinusoid-gp-vib-0 --shots 5 10 20`
    """
    options: dict[str, tuple[str, Any]] = {
        "--shots": ("test.shots", shots or None),
        "--tasks": ("test.tasks", tasks),
        "--ways": ("test.ways", ways),
        "--inner-steps": ("test.inner_steps", inner_steps or None),
        "--temperature": ("test.temperature", temperature or None),
        "--seed": ("test.seed", seed),
        "--device": ("device", device),
        "--root": ("tasks.root", root),
        "--csv": ("tasks.table.csv", moved(csv)),
    }
    from metavib.training import run_folder, targets
    from metavib.training.fields import override
    from metavib.training.protocols import experiment
    from metavib.training.reference import check_counts

    run_folder.check_device(device)
    given = Given([], options)
    found = {}
    for target, folder in targets.folders(run).items():
        chosen = run_folder.chosen(folder)
        tested = override(chosen.config, given.values)
        check_counts(given.options, tested)
        model = run_folder.selected(folder, device=device)
        found[target] = experiment(tested).evaluate(model, temperature=chosen.temperature, quiet=quiet or json_)
    _show_evaluation(found, json_=json_)


def plot(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures. Default: the run folder.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the task that is drawn.")] = 1,
    csv: MovedCsv = None,
) -> None:
    """Draw a run: its learning curve, and predictions on one task, or how calibrated its class probabilities are.

    Predictions (of functions) are drawn with 1, 2, 3, 4, 5 and 7 support points. Of a run on a table: new groups with
    intervals, errors against the number of known rows beside simpler methods, and the coverage of the intervals.

    Example: `metavib plot runs/sinusoid-gp-vib-0`
    """
    from metavib.show import plots
    from metavib.training import targets

    for folder in targets.folders(run).values():
        for name, figure in _figures(folder, seed, moved(csv)).items():
            path = (out or run) / folder.relative_to(run) / name
            plots.save(figure, path)
            typer.echo(path)


def _figures(run: Path, seed: int, csv: str | None = None) -> "dict[str, Figure]":
    """The figures of a run by the names of their files; of a table, whose file may have moved."""
    from metavib.show import plots
    from metavib.training import run_folder
    from metavib.training.fields import override
    from metavib.training.reference import check_counts

    saved, lines = run_folder.latest(run), run_folder.read_metrics(run)
    if csv is not None:
        check_counts({"tasks.table.csv": "--csv"}, saved.config)
        saved = saved._replace(config=override(saved.config, {"tasks.table.csv": csv}))
    tasks = saved.config.tasks.name
    title = f"{saved.config.method} on {tasks}"
    stepped = [line for line in lines if "value" in line]
    figures = {"learning_curve.png": plots.learning_curve(stepped, title)} if stepped else {}
    if tasks in REGRESSION:
        figures["predictions.png"] = plots.predictions(run_folder.selected(run), saved.config, seed=seed)
    elif tasks in (*CLASSIFICATION, EMBEDDINGS) and (record := run_folder.read_record(run)):
        tested = record["evaluation"]["rows"][0]["metrics"]  # the first of its tests
        figures["reliability.png"] = plots.reliability({saved.config.method: [tested]})
    elif tasks == TABLE:
        from metavib.adapt.learner import Learner
        from metavib.show import groups

        learner = Learner.from_run(run)
        classes = learner.trained.classifies
        figures["errors.png"] = groups.errors(
            groups.compare(learner, saved.config), saved.config.method, classes=classes
        )
        if not classes:
            figures["groups.png"] = groups.groups(learner, saved.config, seed=seed)
    return figures


def show(run: Run, json_: Json = False) -> None:
    """Say what a run is and how good it was.

    Example: `metavib show runs/sinusoid-gp-vib-0`
    """
    from metavib.show.console import print_markdown
    from metavib.training import run_folder, targets
    from metavib.training.fields import to_dict

    found = targets.folders(run)
    if json_:
        shown: dict[str, Any] = {}
        for target, folder in found.items():
            shown[target] = None
            if not target or run_folder.is_run(folder):  # else it has not begun
                saved, record = run_folder.latest(folder), run_folder.read_record(folder)
                about = {"config": to_dict(saved.config), "step": saved.step}
                shown[target] = about | {"evaluation": record and record["evaluation"]}
        typer.echo(to_json(_one_or_each(shown), indent=2))
        return
    print_markdown(
        "\n\n".join(
            f"Nothing is learned of {target!r} yet; go on with `metavib train --resume {run}`."
            if target and not run_folder.is_run(folder)
            else _described(folder)
            for target, folder in found.items()
        )
    )


def _described(run: Path) -> str:
    """What a run is and how good it was, as a table."""
    from metavib.adapt.learner import Learner
    from metavib.show import tables
    from metavib.training import checkpoint, run_folder
    from metavib.training.fields import to_dict

    saved, record = run_folder.latest(run), run_folder.read_record(run)
    c, lines, result = saved.config, run_folder.read_metrics(run), record and record["evaluation"]
    done = f"{saved.step} of {c.train.steps} steps"
    if record is None:
        done += f"; go on with `metavib train --resume {run}`"
    each = f"{c.train.tasks} task{'s' * (c.train.tasks > 1)} a step"
    seconds = lines[-1].get("seconds", 0.0) if lines else (record or {}).get("training_seconds", 0.0)
    parameters = sum(p.numel() for p in checkpoint.restore_model(saved).parameters())
    obstacle = Learner.from_run(run).trained.obstacle
    about = {
        "experiment": f"{c.tasks.name}, {c.tasks.shots}-shot",
        "method": c.method + (f", {c.model.kernel} kernel" if c.method in ("gp-vib", "gp-maml", "dkt") else ""),
        "training": f"{done}, {each}, beta {c.train.beta:g}, {seconds:.0f} s",
        "model": f"{parameters:,} parameters, {c.repeats} repeat{'s' * (c.repeats > 1)}, {c.precision}, seed {c.seed}",
        "adapted to a task": "keeps " + (f"its points: {obstacle}" if obstacle else "a memory of constant size"),
    }
    if c.tasks.name == TABLE:
        about |= {"experiment": tables.roles(to_dict(c)["tasks"]["table"])}
    if c.method == HIERARCHICAL:
        about |= {"training": f"no steps: learned from all groups at once in {seconds:.0f} s"}
    text = tables.markdown(("run", str(run)), about.items())
    text += "\n\n" + tables.evaluation(result) if result else ""
    turns = lines[-1].get("held_out") if lines else None
    return text + ("\n\n" + tables.held_out(turns, c.tasks.table.target) if turns else "")


def demo(out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo")) -> None:
    """See something in about two minutes: train GP-VIB on sine curves, test it on new ones, draw its predictions."""
    from metavib.show import tables
    from metavib.show.console import print_markdown
    from metavib.training import recipes, runs

    record = runs.run(recipes.demo(), out, resume=True)
    print_markdown(tables.evaluation(record["evaluation"]))
    plot(out, None, 1)
    typed = sys.argv[0]
    program = typed if Path(typed).name == "metavib" and shutil.which("metavib") is None else "metavib"
    typer.echo(
        f"\nTo click points into a plane and watch this model learn:  {program} serve {shlex.quote(str(out))} --open"
    )


def _resumed(run: Path | None, method: str | None, given: Given, *, improved: bool) -> "dict[str, Config]":
    """The config of the run that is to go on, or of each target's, changed by what was given."""
    from metavib.training import run_folder, targets
    from metavib.training.fields import override
    from metavib.training.reference import check_counts

    if run is None:
        raise ValueError(
            f"name an experiment to train on ({', '.join(EXPERIMENTS)}), or a run to go on with (--resume RUN)."
        )
    if not any((run / name).exists() for name in (run_folder.CONFIG, targets.TARGETS)):
        raise FileNotFoundError(f"there is no run in {run} to go on with; name an experiment to start one there.")
    if improved:
        raise ValueError("--improved chooses the recipe of a new run; a run that goes on keeps its config.")
    changes = given.values | ({} if method is None else {"method": method})
    try:
        found = {target: override(config, changes) for target, config in targets.configs(run).items()}
    except ValueError as error:
        raise ValueError(
            f"{run} goes on with the config that it has, and {', '.join(changes)} would change it ({error}) Only "
            "--steps and --minutes may grow; start another run for other options."
        ) from error
    for config in found.values():
        check_counts(given.options, config)
    return found


def _takes_files(experiment: str) -> bool:
    """Whether points of a new task come from the user's own files, and not from a function that is known."""
    return experiment in (*CLASSIFICATION, EMBEDDINGS, TABLE)


def _show_evaluation(results: dict[str, dict[str, Any]], *, json_: bool) -> None:
    """Prints the test of a run, or of the run of each target."""
    if json_:
        typer.echo(to_json(_one_or_each(results), indent=2))
        return
    from metavib.show import tables
    from metavib.show.console import print_markdown

    print_markdown("\n\n".join(map(tables.evaluation, results.values())))


def _one_or_each(found: dict[str, Any]) -> Any:
    """What was found of one run; of several targets, a dictionary by their names."""
    return found if len(found) > 1 else next(iter(found.values()))
