"""Options that several commands share, and how they become a config."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metavib.training.config import EMBEDDINGS, EXPERIMENTS, HIERARCHICAL, METHODS, TABLE

if TYPE_CHECKING:
    from metavib.training.config import Config

KERNELS = ("linear", "cosine", "bn-cosine", "rbf", "matern32", "matern52")


def _starting(names: tuple[str, ...]) -> Any:
    """What a shell offers after some letters of a name."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


Experiment = Annotated[
    str | None,
    typer.Argument(
        metavar="EXPERIMENT", help=f"One of: {', '.join(EXPERIMENTS)}.", autocompletion=_starting(EXPERIMENTS)
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help=f"One of: {', '.join((*METHODS, HIERARCHICAL))}. Without it: hierarchical on a table, gaussian-classes "
        "on images, on characters and behind a network that stays as it is (--frozen, and embeddings --improved), "
        "gp-vib elsewhere.",
        autocompletion=_starting((*METHODS, HIERARCHICAL)),
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(help="A config file, JSON or TOML, to start from in place of a recipe.")
]
Improved = Annotated[
    bool, typer.Option("--improved", help="Start from this project's own recipe in place of the paper's.")
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change any field of the config, e.g. `train.lr=2e-3`; `metavib config FIELD` explains it.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Decides the starting weights and the training tasks.")]
Shots = Annotated[int | None, typer.Option(help="K: support points of a training task, or of each of its classes.")]
Ways = Annotated[int | None, typer.Option(help="N: classes of a task. Default: as the recipe or the folder has it.")]
KernelName = Annotated[
    str | None, typer.Option(help=f"Kernel of a GP method: {', '.join(KERNELS)}.", autocompletion=_starting(KERNELS))
]
Device = Annotated[str | None, typer.Option(help="Where to compute: cpu or cuda.")]
Precision = Annotated[str | None, typer.Option(help="Format of numbers: float32, float64, bf16; on a GPU also tf32.")]
Root = Annotated[Path | None, typer.Option("--root", "--data", help="Folder of the dataset.")]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", "--table", help="The file of the experiment `table`: CSV, or Parquet by its name."),
]
MovedCsv = Annotated[
    Path | None,
    typer.Option("--csv", "--table", help="Where the file of a run on a table is, if it has moved since."),
]
TableFile = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="The file of the experiment `table`, as `--csv` names it too.")
]
TaskColumn = Annotated[
    list[str],
    typer.Option(
        metavar="COLUMN", help="Column of the table that says which task a row belongs to; or two: `school,year`."
    ),
]
Target = Annotated[
    list[str],
    typer.Option(
        metavar="COLUMN,...",
        help="Columns with the outputs to predict: numbers, or class labels. Rows may lack some of several.",
    ),
]
Inputs = Annotated[
    list[str],
    typer.Option(metavar="COLUMN,...", help="Columns of the table that are inputs. Default: all others."),
]
Drop = Annotated[list[str], typer.Option(metavar="COLUMN,...", help="Columns of the table that are no inputs.")]
Categories = Annotated[
    list[str],
    typer.Option(metavar="COLUMN,...", help="Inputs that name categories although they look like numbers."),
]
Missing = Annotated[
    str | None,
    typer.Option(
        help="Missing inputs: mean (the training mean, and a column that says where), auto (so, with a warning), or "
        "refuse. Default: auto."
    ),
]
Features = Annotated[
    list[Path],
    typer.Option(
        help="An array file of the experiment `embeddings`, as `metavib embed` writes it. Two of them: to train on all "
        "classes of the first, and to test on those of the second."
    ),
]
Backbone = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="A run of `metavib pretrain`, its network's file, or `photographs`, whose network comes with the package: "
        "train that network further, from tasks of pictures.",
    ),
]
Frozen = Annotated[
    bool,
    typer.Option(
        "--frozen",
        help="With --backbone: the network stays as it is, and the few numbers behind it are learned in a minute, from "
        "classes that it has not seen. Photographs of a dataset are also learned from spoilt (tasks.spoilt).",
    ),
]
LikelihoodName = Annotated[
    str | None,
    typer.Option(
        help="Kind of outputs: gaussian, student-t (heavy tails, outliers), poisson (counts), bernoulli (two "
        "classes) or softmax (more). Without it: gaussian for numbers, and what fits for labels and for 0 and 1."
    ),
]


def there(run: Path) -> Path:
    """A run folder, or that of the bundled model of this name, which must be there."""
    found = run_or_model(run)
    if not found.is_dir():
        raise FileNotFoundError(
            f"there is no run folder {run}; `metavib train` makes one, and `metavib models` lists the models of the "
            "package."
        )
    return found


def run_or_model(run: Path) -> Path:
    """A run folder, or that of the bundled model of this name (`metavib models`)."""
    from metavib.training import bundled

    if run.is_file():
        raise ValueError(f"{run} is a file, and no run folder; `metavib train` makes one.")
    return bundled.folder(run)


Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run folder, as `metavib train` writes it, or the name of a bundled model (`metavib models`).",
        callback=there,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Draw no progress bars.")]


class Given:
    """What was said on the command line about fields of a config.

    Args:
        assign: the texts `FIELD=VALUE` of `--set`.
        options: for each option that stands for a field, that field and the value given; None for not given.

    Attributes:
        named: values of fields that were given by options of their own.
        values: all values by field; `--set` has the last word.
        options: what each field was given by, for messages.

    Example:
        >>> given = Given(["train.lr=0.01"], {"--steps": ("train.steps", 100), "--seed": ("seed", None)})
        >>> given.values
        {'train.steps': 100, 'train.lr': '0.01'}
    """

    def __init__(self, assign: list[str], options: dict[str, tuple[str, Any]]) -> None:
        said = {option: (field, _plain(value)) for option, (field, value) in options.items() if value is not None}
        set_ = assignments(assign)
        self.named = {field: value for field, value in said.values()}
        self.values = self.named | set_
        self.options = {field: option for option, (field, _) in said.items()} | {f: f"--set {f}" for f in set_}


def resolved(
    name: str, method: str | None, given: Given, *, config: Path | None, improved: bool, frozen: bool = False
) -> "dict[str, Config]":
    """The config of a new run, with what its files decide filled in; one for each target of a table, by its name.

    Arguments as in `described`. What was said about pictures, or stands in a file, stays.
    """
    from metavib.training import targets
    from metavib.training.fields import leaves
    from metavib.training.protocols import embeddings, pictures, tuned

    found = described(name, method, given, config=config, improved=improved, frozen=frozen)
    if name == TABLE:
        return targets.resolve(found)
    said = given.values if config is None else leaves(found)
    if found.model.backbone == "tuned":
        return {"": tuned.resolve(found, said)}
    if name == "images":
        return {"": pictures.resolve(found, said)}
    return {"": embeddings.resolve(found) if name == EMBEDDINGS else found}


def described(
    name: str, method: str | None, given: Given, *, config: Path | None, improved: bool, frozen: bool = False
) -> "Config":
    """A recipe or a file, changed by what was given.

    Args:
        name: the experiment.
        method: decides the recipe, where no file does; None for the default of the experiment.
        given: what was said about fields.
        config: a config file in place of the recipe.
        improved: our own recipe in place of the paper's.
        frozen: the network of `--backbone` stays as it is.
    """
    from metavib.training import recipes
    from metavib.training.config import read
    from metavib.training.fields import override
    from metavib.training.reference import check_counts

    if config is None:
        default = recipes.improved if improved else recipes.recipe
        if given.named.get("model.pretrained"):
            if improved:
                raise ValueError("--backbone has a recipe of its own, and so has --improved: give one of them.")
            default = recipes.frozen if frozen else recipes.tuned
        elif frozen:
            raise ValueError("--frozen says that the network of --backbone stays as it is: name that network.")
        sizes: Any = {"shots": given.named.get("tasks.shots"), "kernel": given.named.get("model.kernel")}
        still = frozen or (improved and name == EMBEDDINGS)
        usual = recipes.default_method(name, given.values.get("model.likelihood"), frozen=still)
        base = default(name, method or usual, **sizes)
    else:
        base = read(config)
        if improved:
            raise ValueError("--improved chooses a recipe and --config a file to start from: give one of them.")
        if method is not None:
            base = override(base, {"method": method})
        if base.tasks.name != name:
            raise ValueError(f"{config} is of the experiment {base.tasks.name}, not of {name}.")
    found = override(base, _splits(base, given.values) | given.values)
    check_counts(given.options, found)
    return found


def names(texts: list[str]) -> list[str] | None:
    """Names that are separated by commas, or came one by one; a name that has one itself is given by `--set`.

    Example:
        >>> names(["hour,day", "shop"])
        ['hour', 'day', 'shop']
    """
    return [name.strip() for text in texts for name in text.split(",") if name.strip()] or None


def moved(csv: Path | None) -> str | None:
    """The new place of a run's file, from wherever it is looked for."""
    return None if csv is None else str(csv.absolute())


def together(texts: list[str]) -> str | None:
    """Columns that are named together, or came one by one: `--task school --task year` is `--task school,year`."""
    return ",".join(texts) or None


def _splits(base: "Config", values: dict[str, Any]) -> dict[str, Any]:
    """As many splits of a task as its new number of points allows, where a recipe had all of them."""
    if base.train.splits == 1 or not {"tasks.shots", "tasks.queries"} & values.keys():
        return {}
    sizes = [str(values.get(f"tasks.{n}", getattr(base.tasks, n))) for n in ("shots", "queries")]
    if not all(size.isdecimal() for size in sizes):  # which is refused as what it is
        return {}
    shots, queries = map(int, sizes)
    return {"train.splits": max(1, (shots + queries) // max(1, shots))}


def assignments(texts: list[str]) -> dict[str, str]:
    """What `--set` was given, by field: `train.lr=2e-3` sets `train.lr` to the text `2e-3`."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, such as train.lr=2e-3; got {text!r}.")
        pairs[key.strip()] = value.strip()
    return pairs


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
