"""Pictures in an estimator: what `metavib train images` does with a folder, with pictures that are in memory.

The recipe, the preparation of a picture, the training and the test are those of the program, in the same code; nothing
is decided here but which options of the estimator stand for which fields of a config. With the same pictures in the
same order, the same seed and the same number of steps, the estimator and the program are the same model to the last
bit. (With a limit on time the clock decides how many steps there are.)
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from metavib.data import Labelled, Splits
from metavib.data.folder import in_pairs, read_classes, split_classes
from metavib.data.picture import Form
from metavib.estimators.training import History
from metavib.show import tables
from metavib.training import build, loop, run_folder
from metavib.training.checkpoint import Checkpoint
from metavib.training.config import Config, TasksConfig
from metavib.training.fields import override
from metavib.training.protocols import experiment
from metavib.training.protocols.pictures import SEEN, decided, started
from metavib.training.protocols.seen import form
from metavib.training.protocols.tuned import known
from metavib.training.recipes import default_method, frozen, recipe
from metavib.training.stopping import Interrupted

FIELDS = {
    "kernel": "model.kernel",
    "ways": "tasks.ways",
    "shots": "tasks.shots",
    "minutes": "train.minutes",
    "n_steps": "train.steps",
    "tasks_per_step": "train.tasks",
    "learning_rate": "train.lr",
    "beta": "train.beta",
    "patience": "train.patience",
    "device": "device",
}
"""Options of the estimator that a training on pictures has, by the field of its config."""

NETWORK = "model.pretrained"
"""The field of the model whose network stays as it is, where `backbone` names one."""
NETWORKS = ("photographs",)

FREE = ("backbone", "random_state", "verbose")  # which say nothing of a config


class Evaluation(NamedTuple):
    """The test on classes that training never saw, as `metavib train` prints it: `found`, as JSON holds it.

    Example:
        >>> share = {"mean": 0.9, "episode_ci95": 0.01, "episodes": 600}
        >>> row = {"ways": 5, "shots": 1, "episodes": 600, "temperature": 1.0, "obvious": {}}
        >>> row["metrics"] = {"accuracy": share, "nll": share, "brier": share, "ece": 0.01}
        >>> print(Evaluation({"experiment": "images", "method": "gp-vib", "rows": [row]}).row(1)["ece"])
        0.01
    """

    found: dict[str, Any]

    def row(self, shots: int) -> dict[str, Any]:
        """Accuracy, NLL, Brier score and ECE with so many pictures of each class."""
        return next(row["metrics"] for row in self.found["rows"] if row["shots"] == shots)

    def __str__(self) -> str:
        return tables.evaluation(self.found)


class Trained(NamedTuple):
    """What a training on pictures has left: the chosen weights, what happened, and the test."""

    saved: Checkpoint
    history: History
    evaluation: Evaluation


def are_pictures(X: Any) -> bool:
    """Whether inputs are pictures: an array `(n, H, W)`, `(n, H, W, C)` or `(n, C, H, W)`, or a list of single ones.

    Example:
        >>> import numpy as np
        >>> from metavib.estimators.pictures import are_pictures
        >>> are_pictures(np.zeros((9, 28, 28))), are_pictures(["a.png", "b.png"]), are_pictures([[1.0, 2.0]])
        (True, True, False)
    """
    if isinstance(X, np.ndarray | Tensor) and X.ndim != 1:
        return X.ndim in (3, 4)
    if hasattr(X, "columns") or not hasattr(X, "__len__") or not hasattr(X, "__iter__") or not len(X):
        return False
    first = next(iter(X))
    if isinstance(first, np.ndarray | Tensor):
        return first.ndim in (2, 3)
    return isinstance(first, str | PathLike | bytes | Image.Image)


def one_by_one(X: Any) -> np.ndarray:
    """Pictures as an array of objects `(n,)`, which is taken apart as an array of rows is."""
    if isinstance(X, str | PathLike | bytes | Image.Image):
        raise TypeError(
            f"expected a list of pictures, or an array with one for each label; got one {type(X).__name__}."
        )
    pictures = [one for one in (X.detach().cpu().numpy() if isinstance(X, Tensor) else X)]
    found = np.empty(len(pictures), dtype=object)
    for i, one in enumerate(pictures):
        found[i] = one
    return found


def said_fields(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that options other than the defaults stand for; options of other networks are refused.

    Args:
        params: of the estimator.
        defaults: what they are where nothing was said.
    """
    said = {name: value for name, value in params.items() if name not in FREE and value != defaults[name]}
    network = {NETWORK: params["backbone"]} if params["backbone"] in NETWORKS else {}
    if strange := [name for name in said if name not in FIELDS]:
        raise ValueError(
            f"a training on pictures has no {', '.join(strange)}: it has {', '.join(FIELDS)}. Other networks are "
            "trained with backbone='conv4', or with a Backbone of your own, on arrays (n, C, H, W)."
        )
    if "shots" in said and not isinstance(said["shots"], int | np.integer):
        raise ValueError(f"shots is one number in a training on pictures; got {said['shots']!r}.")
    fields = {FIELDS[name]: value.item() if isinstance(value, np.generic) else value for name, value in said.items()}
    return fields | network


Read = Callable[[Form], Labelled]
"""Brings the pictures to a form, once for each."""


def described(classes: Mapping[str, Sequence[Any]], read: Read, said: Mapping[str, Any], seed: int) -> Config:
    """The config that `metavib train images` would have for these pictures.

    Args:
        classes: the pictures of each class.
        read: brings them to a form.
        said: fields that the user has set.
        seed: of weights and tasks.
    """
    sizes: Any = {"shots": said.get("tasks.shots"), "kernel": said.get("model.kernel")}
    if said.get(NETWORK):
        behind = frozen("images", default_method("images", frozen=True), **sizes)
        config = known(override(behind, {**said, "seed": seed}), said)
        return decided(config, [classes], (*said, *SEEN))
    config = override(recipe("images", default_method("images"), **sizes), {**said, "seed": seed})
    return started(decided(config, [classes], said), partial(_splits, read), said)


def _splits(read: Read, tasks: TasksConfig) -> Splits:
    """The pictures in the form that a network sees, split by class."""
    data = in_pairs(read(form(tasks)))
    return split_classes(data, minimum=tasks.held_out or tasks.ways)


def train(pictures: np.ndarray, y: np.ndarray, said: Mapping[str, Any], *, seed: int, show: bool) -> Trained:
    """Trains on some of the classes, chooses by others and tests on others again, as the program does.

    Args:
        pictures: `(n,)`.
        y: the class of each.
        said: fields of the config that the user has set.
        seed: of weights and tasks.
        show: draw progress bars, with the obvious baselines above them.

    Raises:
        KeyboardInterrupt: after Ctrl-C; nothing is kept.
    """
    classes = {str(label): list(pictures[y == label]) for label in np.unique(y)}
    # What is read to choose where training starts from is also trained on.
    read = cache(partial(read_classes, classes, otherwise="Leave them out of X and y."))
    config = described(classes, read, said, seed)
    build.set_torch(config)
    world = experiment(config, _splits(read, config.tasks))
    with tempfile.TemporaryDirectory(prefix="metavib-") as made:
        folder = Path(made) / "run"
        try:
            model = loop.train(config, folder, quiet=not show, world=world)
        except Interrupted:
            raise KeyboardInterrupt("training on pictures was stopped; nothing is kept") from None
        saved, lines = run_folder.chosen(folder), run_folder.read_metrics(folder)
    scores = tuple((line["step"], line["validation"]["score"]) for line in lines if "validation" in line)
    found = world.evaluate(model, temperature=saved.temperature, quiet=not show)
    weights = {name: t for name, t in saved.tensors.items() if name.startswith("model/")}
    return Trained(saved._replace(tensors=weights), History(lines[-1]["step"], saved.step, scores), Evaluation(found))
