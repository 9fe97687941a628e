"""From the options of a command to a config: `metavib train` and `metavib tune` read them alike."""

from pathlib import Path
from typing import Annotated, Any

import typer

from metavib.training import recipes
from metavib.training.config import Config, read
from metavib.training.fields import override
from metavib.training.protocols.table import resolve

# Options of both commands.
ConfigFile = Annotated[Path | None, typer.Option(help="A config file, JSON or TOML, in place of the recipe.")]
Improved = Annotated[bool, typer.Option("--improved", help="Our own recipe in place of the paper's.")]
Seed = Annotated[int | None, typer.Option(help="Decides weights and training tasks.")]
Shots = Annotated[int | None, typer.Option(help="K, support points of a training task.")]
KernelName = Annotated[str | None, typer.Option(help="linear, cosine, bn-cosine, rbf, matern32 or matern52.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Precision = Annotated[str | None, typer.Option(help="float32, float64, bf16; on a GPU also tf32.")]
Root = Annotated[Path | None, typer.Option("--root", "--data", help="Folder of the dataset.")]
Csv = Annotated[Path | None, typer.Option(help="File of the experiment `table`.")]
TaskColumn = Annotated[str | None, typer.Option(help="Its column with the task of each row.")]
Target = Annotated[str | None, typer.Option(help="Its column with the output of each row.")]
LikelihoodName = Annotated[str | None, typer.Option(help="gaussian, student-t, poisson or bernoulli outputs.")]


def resolved(
    name: str, method: str, *, config: Path | None, improved: bool, assign: list[str], given: dict[str, Any]
) -> Config:
    """The config of a run: a recipe or a file, then what was given, then `--set`.

    Args:
        name: the experiment.
        method: decides the recipe, where no file does.
        config: a config file in place of the recipe.
        improved: our own recipe in place of the paper's.
        assign: `FIELD=VALUE` texts.
        given: values of fields that have options of their own; None: not given.
    """
    given = {field: str(value) if isinstance(value, Path) else value for field, value in given.items()}
    default = recipes.improved if improved else recipes.recipe
    sizes: Any = {"shots": given.get("tasks.shots"), "kernel": given.get("model.kernel") or "linear"}
    base = read(config) if config else default(name, method, **sizes)
    base = override(base, {k: v for k, v in given.items() if v is not None} | assignments(assign))
    return resolve(base) if name == "table" else base


def assignments(texts: list[str]) -> dict[str, str]:
    """`FIELD=VALUE` texts by field."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, such as train.lr=2e-3; got {text!r}.")
        pairs[key.strip()] = value.strip()
    return pairs
