"""Pictures of one's own: what a recipe leaves open is decided by looking at the folder.

`resolve` fills in a config as `metavib train images --root DIR` uses it:

* **Where**: the absolute path of the folder, so that a run is found again from another working directory.
* **What the pictures show**: characters where most of a picture is paper, of the colour of its border; photographs
  otherwise. Which of the two decides how they are augmented.
* **Channels and size**: one channel where all pictures are grey; 28 pixels for characters, 56 for photographs (84 on a
  GPU), 32 where they are hardly larger.
* **Ways, shots, queries**: as many classes and pictures in a task as the folder allows, up to the recipe's.
* **Where training starts**: from the bundled model `characters`, where that model, as it is, makes a third fewer errors
  on the validation tasks than what pixels allow; from random weights otherwise (`started`).

Whatever was said on the command line stays as it was said.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from metavib.data import Splits
from metavib.data.archive import opaque
from metavib.data.folder import class_files, given_parts, held_out_sizes
from metavib.data.ink import without_grain
from metavib.data.picture import eight_bits, picture
from metavib.training import build, bundled
from metavib.training.config import TRANSFER, TUNED, Config, TasksConfig
from metavib.training.fields import override
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.seen import load
from metavib.training.recipes import STARTED

SOME = 60  # pictures that are looked at
TINT = 12  # grey levels by which the colours of a grey picture may differ, as those of a JPEG do
PAPER = 24  # grey levels by which paper may differ from the border
MOSTLY = 0.6  # the share of paper in a picture of a character
CHARACTER, SMALL, PHOTOGRAPH, ON_GPU = 28, 32, 56, 84  # pixels a side
WAYS, LARGEST = 5, 10  # classes of a task in validation and test, and in training
START = "characters"  # the bundled model that training may start from
FEWER = 2 / 3  # of the errors of pixels, that this model may make, for training to start from it
TRIED = 20  # tasks that say so, at each number of shots
NETWORK = ("backbone", "width", "extra", "poolings", "norm")  # fields of a model that say what its network is
SEEN = ("tasks.kind", "tasks.channels", "tasks.size", "tasks.fit", "tasks.ink")  # what a network sees of a picture


Classes = Mapping[str, Sequence[Any]]
"""Pictures by the name of their class: paths, or whatever else `metavib.data.picture.picture` takes."""


class Look(NamedTuple):
    """What one picture looks like: its shorter side in pixels, whether it is grey, and its share of paper."""

    side: int
    grey: bool
    paper: float


@dataclass(frozen=True)
class Counts:
    """Pictures of each class that has two at least, in each part of a folder.

    Args:
        train: of the training classes; or of all classes, where the folder does not say which are.
        held_out: classes for validation and for test; None where the folder does not say.
        least: pictures of the smallest class of all.
        usual: the median of the pictures of a class.

    Example:
        >>> from metavib.training.protocols.pictures import Counts
        >>> Counts((8, 9, 10, 20, 20, 20), None, 8, 15).ways  # two classes each to train, validate and test
        2
    """

    train: tuple[int, ...]
    held_out: tuple[int, int] | None
    least: int
    usual: int

    @property
    def ways(self) -> int:
        """Classes of a task in validation and test."""
        most = len(self.train) // 3 if self.held_out is None else min(self.held_out)
        return max(2, min(WAYS, most))

    def training_classes(self, ways: int) -> int:
        """How many classes there are to train on."""
        if self.held_out is not None or len(self.train) < 3 * ways:
            return len(self.train)
        return len(self.train) - sum(held_out_sizes(len(self.train), minimum=ways))


def resolve(config: Config, said: Collection[str] = ()) -> Config:
    """The config with what the folder decides filled in.

    Args:
        config: from the recipe of `images`, with `tasks.root`.
        said: fields that the user has set, which stay as they are.
    """
    if config.tasks.root is None:
        raise ValueError("images needs the folder of class folders: pass --root DIR.")
    root = Path(config.tasks.root).absolute()
    folders = given_parts(root) or (root,)
    config = decided(override(config, {"tasks.root": str(root)}), [class_files(part) for part in folders], said)
    return started(config, load, said)


def decided(config: Config, parts: Sequence[Classes], said: Collection[str] = ()) -> Config:
    """The config with what some pictures decide filled in.

    Args:
        config: from the recipe of `images`.
        parts: the pictures of all classes; or those to train on, to validate on and to test on.
        said: fields that the user has set, which stay as they are.
    """
    found = _appearance([look for classes in parts for look in _looks(classes)], config)
    config = override(config, _unsaid(found, said))
    return override(config, _unsaid(_sizes(config, _counts(parts), said), said))


def started(config: Config, splits: Callable[[TasksConfig], Splits], said: Collection[str] = ()) -> Config:
    """The config with the model that training starts from filled in, where that is better than random weights.

    The bundled model `characters` has seen 1,623 characters, which no folder of a user's has. Whether it is good for
    pictures like these is asked of the validation tasks: it must make at most two thirds of the errors that nearest
    neighbours and a logistic regression of the pixels make, the better of the two. Where places or colours tell classes
    apart, which the model does not see, or where pictures are photographs, it does not. Colour photographs are not
    tried. The weights of step 0 are validated like all others, so that a training never ends with worse ones. Another
    method than that of `characters` starts from its network alone.

    Args:
        config: from `decided`.
        splits: the pictures in the form that a network sees, by its config.
        said: fields that the user has set: another network or form of pictures starts from random weights.
    """
    own = {field for field in said if field in SEEN or field.startswith("model.")}
    plain = config.tasks.channels == 1 or config.tasks.kind == "characters"
    if config.method not in TUNED or own or not plain:
        return config
    begun = _begun(config, bundled.checkpoint_of(START).config, said)
    few = {"train.validation_tasks": min(TRIED, config.train.validation_tasks)}
    with warnings.catch_warnings(action="ignore"):  # pictures are read again for training, which warns of them
        pixels, world = (Classification(override(c, few), splits(c.tasks)) for c in (config, begun))
    model = build.model(begun).to(begun.device)
    world.acquaint(model)
    errors = 1 - world.validate(model)["accuracy"]
    return begun if errors <= FEWER * (1 - max(pixels.obvious().values())) else config


def _begun(config: Config, known: Config, said: Collection[str]) -> Config:
    """The config with pictures and network of another; of the same method with all of its model, at rates to match."""
    tasks = replace(
        config.tasks, kind="characters", **{f: getattr(known.tasks, f) for f in ("ink", "channels", "size", "fit")}
    )
    same = config.method == known.method
    model = known.model if same else replace(config.model, **{f: getattr(known.model, f) for f in NETWORK})
    rates = STARTED if same else {"train.lr": STARTED["train.lr"]}
    begun = replace(config, tasks=tasks, model=replace(model, pretrained=START))
    return override(begun, _unsaid(rates, said))


def _unsaid(changes: dict[str, Any], said: Collection[str]) -> dict[str, Any]:
    return {field: value for field, value in changes.items() if field not in said}


def _appearance(looks: list[Look], config: Config) -> dict[str, Any]:
    if not looks:  # nothing can be opened: the reader says why
        return {}
    side = float(np.median([look.side for look in looks]))
    if np.median([look.paper for look in looks]) >= MOSTLY:
        kind, size = "characters", CHARACTER
    else:
        kind, size = "photographs", ON_GPU if config.device.startswith("cuda") else PHOTOGRAPH
        size = size if side > SMALL * 1.25 else SMALL
    return {
        "tasks.kind": kind,
        "tasks.channels": 1 if all(look.grey for look in looks) else 3,
        "tasks.size": size,
        "model.poolings": 3 if size < ON_GPU else 4,
    }


def _counts(parts: Sequence[Classes]) -> Counts:
    counts = [tuple(len(each) for each in classes.values() if len(each) > 1) for classes in parts]
    if not counts[0]:
        raise ValueError("no class has two pictures, one to learn from and one to predict: add pictures.")
    everything = [n for part in counts for n in part]
    held_out = (len(counts[1]), len(counts[2])) if len(counts) == 3 else None
    return Counts(counts[0], held_out, min(everything), int(np.median(everything)))


def _sizes(config: Config, counts: Counts, said: Collection[str]) -> dict[str, Any]:
    """Ways, shots and queries of the tasks, as far as the folder has classes and pictures for them."""
    tasks, shots = config.tasks, config.tasks.shots
    ways = tasks.ways if "tasks.ways" in said else counts.ways
    larger = config.train.splits > 1 and "tasks.ways" not in said  # learns from larger tasks, and is used on any
    changes: dict[str, Any] = {
        "tasks.held_out": ways,
        "tasks.ways": min(LARGEST, counts.training_classes(ways)) if larger else ways,
        "test.ways": ways if larger else 0,
    }
    if "tasks.shots" not in said and counts.usual < 7:
        changes["test.shots"] = [1]
    if config.method in TRANSFER:
        return changes | {"model.classes": counts.training_classes(ways)}
    images = min(shots + tasks.queries, max(counts.train))
    if tasks.min_shots is not None and "tasks.shots" not in said:  # classes have up to so many points
        changes["tasks.shots"] = shots = max(1, min(shots, images // 2))
    changes["tasks.queries"] = max(1, images - shots)
    if config.train.splits > 1:  # a support of which nothing is missing
        changes["train.splits"] = max(1, min(images, counts.least) // (shots if tasks.min_shots is None else 1))
    return changes


def _looks(classes: Classes) -> list[Look]:
    """Some pictures of each class, as far as they can be opened."""
    each = max(1, SOME // len(classes))
    some = [one for pictures in classes.values() for one in pictures[:each]][:: max(1, len(classes) * each // SOME)]
    looks = []
    for one in some:
        try:
            looks.append(look(picture(one)))
        except Exception:  # noqa: BLE001, S112 - Pillow raises nearly anything, and the reader names every such file
            continue
    return looks


def look(image: Image.Image) -> Look:
    """What one picture looks like, but for its grain."""
    small = np.asarray(opaque(eight_bits(image), 3).resize((32, 32), Image.Resampling.BOX), dtype=np.float64)
    pixels = np.stack([without_grain(channel) for channel in small.transpose(2, 0, 1)], -1)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    paper = (np.abs(pixels - np.median(border, axis=0)) <= PAPER).all(-1).mean()
    grey = np.quantile(np.ptp(pixels, axis=-1), 0.99) <= TINT
    return Look(min(image.size), bool(grey), float(paper))
