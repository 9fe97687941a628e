"""The command line of pretrained networks: train one on all classes, and write down what it sees."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metavib.cli.options import Device, Json, Precision, Quiet, Root, Seed, assignments
from metavib.files import write_json
from metavib.show import tables
from metavib.show.console import note, print_markdown
from metavib.training.config import CLASSIFICATION, Config, TasksConfig
from metavib.training.fields import override
from metavib.training.recipes import recipe

if TYPE_CHECKING:
    from metavib.networks.weights import Network


def pretrain(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=f"One of: {', '.join(CLASSIFICATION)}.")],
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: `runs/EXPERIMENT-pretrained-SEED`.")] = None,
    assign: Annotated[
        list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the config, e.g. `lr=0.05`.")
    ] = [],  # noqa: B006 - typer copies it
    epochs: Annotated[int | None, typer.Option(help="Passes over the training pictures.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit; the learning rate reaches zero with it, should it come first.")
    ] = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    root: Root = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped or killed.")] = False,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Train a ResNet-12 to tell all training classes apart, before it learns to learn.

    The validation classes choose the network, by nearest centroids. Writes a run folder with the resolved config,
    metrics as JSON lines, a checkpoint, and the chosen network.

    Example: `metavib pretrain cub --device cuda --precision bf16`
    """
    from metavib.training import pretrain as stage

    given: dict[str, Any] = {"epochs": epochs, "seconds": seconds, "seed": seed, "device": device}
    given |= {"precision": precision, "tasks.root": None if root is None else str(root)}
    changes = {field: value for field, value in given.items() if value is not None} | assignments(assign)
    config = override(stage.pretraining(name), changes)
    folder = out or Path("runs") / f"{name}-pretrained-{config.seed}"
    last = stage.pretrain(config, folder, resume=resume, quiet=quiet or json_)
    if json_:
        typer.echo(json.dumps(last, indent=2))
        return
    found = {f"validation, {shots}": f"{accuracy:.2%}" for shots, accuracy in last["validation"].items()}
    print_markdown(tables.markdown(("nearest centroids", "accuracy"), found.items()))
    note(f"run folder: {folder}; next: `metavib embed {folder} {name}`")


def embed(
    source: Annotated[
        Path, typer.Argument(help="A run of `metavib pretrain` or `metavib train`, or a network's file.")
    ],
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=f"One of: {', '.join(CLASSIFICATION)}.")],
    out: Annotated[Path | None, typer.Option(help="The array file. Default: `EXPERIMENT.npz`.")] = None,
    size: Annotated[
        list[int],
        typer.Option(help="Side of the pictures as the network sees them; of several the best on validation."),
    ] = [],  # noqa: B006
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Average the features of a picture and of its mirror image.")
    ] = False,
    episodes: Annotated[int, typer.Option(help="Test tasks of nearest centroids.")] = 3_000,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, bf16; on a GPU also tf32.")] = "float32",
    root: Root = None,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Write the features of all pictures of an experiment to one array file, and say how good nearest centroids are.

    The file holds the features of the training, validation and test classes with their labels and names; methods train
    on it in seconds. Beside it lies a file of the same name with `.json` for the scores.

    Example: `metavib embed runs/cub-pretrained-0 cub --size 84 --size 96 --mirror`
    """
    from metavib.data.embeddings import write_embeddings
    from metavib.training import build
    from metavib.training.embedding import View, embedded
    from metavib.training.protocols import classification

    if name not in CLASSIFICATION:
        raise ValueError(f"experiment must be one of {', '.join(CLASSIFICATION)}; got {name!r}.")
    build.set_torch(Config(device=device, precision=precision))
    network, own = _network(source)
    network.bf16 = precision == "bf16"
    tasks = override(recipe(name, "gp-vib").tasks, {} if root is None else {"root": str(root)})
    if tasks.channels != own.channels:
        raise ValueError(f"{source} sees pictures of {own.channels} channels; those of {name} have {tasks.channels}.")
    views = [View(side, mirror) for side in size or [tasks.size]]
    splits = classification.load(tasks)
    parts, scores = embedded(network.to(device), splits, tasks, views, episodes=episodes, quiet=quiet or json_)
    path = out or Path(f"{name}.npz")
    write_embeddings(path, parts)
    write_json(path.with_suffix(".json"), scores)
    if json_:
        typer.echo(json.dumps(scores, indent=2))
        return
    rows = [[shots, f"{s['mean']:.2%} ± {s['episode_ci95']:.2%}"] for shots, s in scores["test"]["centroids"].items()]
    print_markdown(tables.markdown(("nearest centroids, test", "accuracy"), rows))
    note(f"{path}: {sum(part.size for part in parts):,} pictures, {parts.train.images.shape[-1]} features each")


def _network(source: Path) -> tuple["Network", TasksConfig]:
    """The network of a supervised stage or of a meta-trained run, and the pictures it was trained on."""
    from metavib.networks.weights import Network
    from metavib.training import pretrain as stage
    from metavib.training import run_folder

    if (source / run_folder.LAST).exists() and not (source / stage.BACKBONE).exists():
        model = run_folder.selected(source)
        return next(m for m in model.modules() if isinstance(m, Network)), run_folder.chosen(source).config.tasks
    pretrained = stage.load_backbone(source)
    return pretrained.network, pretrained.config.tasks
