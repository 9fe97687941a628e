"""The command line of pretrained networks: train one on all classes, and write down what it sees."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metavib.cli.options import Device, Json, Precision, Quiet, Root, Seed, assignments
from metavib.files import to_json, write_json
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
    config = override(stage.pretraining(name, teacher=changes.get("teacher", "")), changes)
    folder = out or Path("runs") / f"{name}-pretrained-{config.seed}"
    last = stage.pretrain(config, folder, resume=resume, quiet=quiet or json_)
    if json_:
        typer.echo(to_json(last, indent=2))
        return
    found = {f"validation, {shots}": f"{accuracy:.2%}" for shots, accuracy in last["validation"].items()}
    print_markdown(tables.markdown(("nearest centroids", "accuracy"), found.items()))
    note(f"run folder: {folder}; next: `metavib embed {folder} {name}`")


def embed(
    source: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK",
            help="A run of `metavib pretrain` or `metavib train`, a model of `metavib models`, a network's file, or "
            "`package.module:function`, a "
            "function that returns any PyTorch network from pictures to features.",
        ),
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
    turns: Annotated[
        bool,
        typer.Option("--turns", help="Also try the mean over quarter turns, and take what is best on validation."),
    ] = False,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of `package.module:function`, as a safetensors file.")
    ] = None,
    split: Annotated[
        bool,
        typer.Option(
            "--split/--no-split",
            help="Without a split the folder `--root` may have few classes, as a new task has: its features are for "
            "`metavib adapt --support` and `metavib predict --query`, and nothing is scored.",
        ),
    ] = True,
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

    A network of your own, or of any library, is named by the function that builds it: it turns pictures
    `(n, 3, size, size)`, normalised as those of ImageNet, into features `(n, M)`.

    Examples: `metavib embed runs/cub-pretrained-0 cub --size 84 --size 96 --mirror`,
    `metavib embed mine:network images --root pictures --size 224`
    """
    from metavib.data.embeddings import write_embeddings, write_vectors
    from metavib.data.folder import folder
    from metavib.training import build
    from metavib.training.embedding import View, embedded, features
    from metavib.training.protocols import seen

    if name not in CLASSIFICATION:
        raise ValueError(f"experiment must be one of {', '.join(CLASSIFICATION)}; got {name!r}.")
    if not split and (name != "images" or len(size) > 1 or turns):
        raise ValueError(
            "--no-split is for a folder of your own (the experiment images) and takes one --size and no --turns: it "
            "has no validation classes to choose by."
        )
    build.set_torch(Config(device=device, precision=precision))
    tasks = override(recipe(name, "gp-vib").tasks, {} if root is None else {"root": str(root)})
    network, own = _network(source, weights, replace(tasks, size=size[0] if size else tasks.size))
    network.bf16 = precision == "bf16"
    if name == "images":
        theirs = replace(tasks, channels=own.channels, size=max(size or [own.size]), kind=own.kind, ink=own.ink)
        tasks = _own_pictures(theirs, split=split)
    if tasks.channels != own.channels:
        raise ValueError(f"{source} sees pictures of {own.channels} channels; those of {name} have {tasks.channels}.")
    sides, ways = size or [tasks.size], (False, True) if turns else (False,)
    views = [View(side, mirror, every) for side in sides for every in ways]
    path = out or Path(f"{name}.npz")
    if not split:
        assert tasks.root is not None
        found = folder(tasks.root, **vars(seen.form(tasks)))
        write_vectors(path, found._replace(images=features(network.to(device), found.images, tasks, views[0])))
        note(f"{path}: {found.size:,} pictures of {', '.join(found.names[:5])}{', ...' * (found.classes > 5)}")
        return
    splits = seen.load(tasks)
    parts, scores = embedded(network.to(device), splits, tasks, views, episodes=episodes, quiet=quiet or json_)
    write_embeddings(path, parts)
    write_json(path.with_suffix(".json"), scores)
    if json_:
        typer.echo(to_json(scores, indent=2))
        return
    rows = [[shots, f"{s['mean']:.2%} ± {s['episode_ci95']:.2%}"] for shots, s in scores["test"]["centroids"].items()]
    print_markdown(tables.markdown(("nearest centroids, test", "accuracy"), rows))
    note(f"{path}: {sum(part.size for part in parts):,} pictures, {parts.train.images.shape[-1]} features each")


def _own_pictures(tasks: TasksConfig, *, split: bool) -> TasksConfig:
    """What a folder of the user's own decides: how many classes a task has, and which are held out."""
    from metavib.training.protocols.pictures import resolve

    if tasks.root is None:
        raise ValueError("images needs the folder of class folders: pass --root DIR.")
    if not split:
        return tasks
    config = resolve(replace(recipe("images", "gp-vib"), tasks=tasks), ("tasks.channels", "tasks.size", "tasks.kind"))
    return replace(config.tasks, ways=config.tasks.held_out)


def _network(source: str, weights: Path | None, tasks: TasksConfig) -> tuple["Network", TasksConfig]:
    """The network of a supervised stage, of a meta-trained run or of a function, and the pictures it looks at."""
    from metavib.networks.imported import embedding, is_name
    from metavib.networks.weights import Network
    from metavib.training import bundled, run_folder
    from metavib.training import pretrain as stage

    place = bundled.folder(source)
    if is_name(source) and not place.exists():
        return embedding(source, weights, channels=tasks.channels, size=tasks.size), tasks
    if weights is not None:
        raise ValueError(f"--weights are those of package.module:function; {source} has its own.")
    if run_folder.is_run(place) and not (place / stage.BACKBONE).exists():
        model = run_folder.selected(place)
        # Of networks within each other the innermost: one that was tuned, without what is done to its features.
        return [m for m in model.modules() if isinstance(m, Network)][-1], run_folder.chosen(place).config.tasks
    pretrained = stage.load_backbone(place)
    return pretrained.network, pretrained.config.tasks
