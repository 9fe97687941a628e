"""Models that come with the package: run folders that are found by a name instead of a path.

Wherever a run folder is expected, the name of such a model will do: `metavib adapt characters --support DIR`,
`Learner.from_pretrained("characters")`. `folder` is the one function that makes a folder of either. Each model is a run
folder without what only training needs (`metavib.training.run_folder.pack`), so that it is used, shown and tested like
any other; its card is `about.json` in that folder, which `metavib models` prints.
"""

from pathlib import Path
from typing import Any

from metavib.files import read_json
from metavib.model import Model
from metavib.networks.weights import Network
from metavib.training import run_folder
from metavib.training.checkpoint import Checkpoint

MODELS = Path(__file__).parents[1] / "models"
NETWORK = "prior.network."  # begins the names of its weights
ABOUT = "about.json"  # what a model is, in words: what, data, licence, limits


def names() -> list[str]:
    """The names of the models that come with the package.

    Example:
        >>> from metavib.training import bundled
        >>> bundled.names()
        ['characters', 'photographs']
    """
    return sorted(path.parent.name for path in MODELS.glob(f"*/{ABOUT}"))


def folder(model: str | Path) -> Path:
    """The run folder of a model: the folder itself, or that of a model of this name.

    A run folder comes first, so that a user's own `characters` is the user's own.

    Args:
        model: a run folder, or one of `names()`.
    """
    own = Path(model)
    return folder_of(str(model)) if not own.exists() and str(model) in names() else own


def folder_of(name: str) -> Path:
    """The run folder of the model of a name; other names are refused."""
    if name not in names():
        raise ValueError(f"there is no model called {name!r} in this package; there is {', '.join(names())}.")
    return MODELS / name


def checkpoint_of(name: str) -> Checkpoint:
    """The weights of the model of a name, its config and the temperature of its probabilities."""
    return run_folder.chosen(folder_of(name))


def start(model: Model, known: Checkpoint, *, whole: bool) -> None:
    """Gives a new model the weights of one that comes with the package.

    Args:
        model: to be trained.
        known: a GP-VIB or Gaussian classes, whose network has the shape of the new model's.
        whole: all weights; otherwise those of the network alone, as for another method.
    """
    weights = known.part("model")
    if whole:
        model.load_state_dict(weights)
        return
    network = next(part for part in model.modules() if isinstance(part, Network))
    network.load_state_dict({name.removeprefix(NETWORK): w for name, w in weights.items() if name.startswith(NETWORK)})


def name_of(folder: Path) -> str | None:
    """The name of the model that a run folder is; None for other runs."""
    inside = folder.absolute().parent == MODELS
    return folder.name if inside and folder.name in names() else None


def about(name: str) -> dict[str, Any]:
    """What a model is, in words: its card."""
    return read_json(folder_of(name) / ABOUT)
