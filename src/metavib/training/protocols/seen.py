"""What a network sees of pictures: which are read, the form in which they are stored, and what becomes of them then.

`load` reads the pictures of an experiment, split by class; `form` is how they are stored; `evaluation_transform` and
`training_transform` make of a stored picture what the network sees.
"""

from typing import Any

from metavib.data import Splits, class_splits
from metavib.data.augmentations import (
    BroaderPen,
    CentreCrop,
    ColourJitter,
    Compose,
    Normalise,
    RandomAffine,
    RandomFlip,
    RandomResizedCrop,
    RandomWarp,
    Resize,
    Transform,
    unit,
)
from metavib.data.folder import folder_splits
from metavib.data.glyphs import glyphs
from metavib.data.picture import Form
from metavib.training.config import EMBEDDINGS, TasksConfig
from metavib.training.protocols import embeddings

ENLARGED = 1.15  # an image is stored this many times larger than the centre that the network sees


def load(tasks: TasksConfig) -> Splits:
    """The images (or embeddings) of an experiment, split by class."""
    if tasks.name == EMBEDDINGS:
        return embeddings.load(tasks)
    if tasks.name == "glyphs":
        return glyphs(ink=tasks.ink)
    if tasks.name == "images":
        if tasks.root is None:
            raise ValueError("images needs the folder of class folders: pass --root DIR.")
        minimum = tasks.held_out or tasks.ways
        return folder_splits(tasks.root, **vars(form(tasks)), minimum=minimum, skip_broken=tasks.skip_broken)
    options: dict[str, Any] = {"ink": tasks.ink} if tasks.name in class_splits.CHARACTERS else {}
    if tasks.name == "omniglot-emnist":
        options["rotations"] = tasks.rotations
    elif tasks.name == "omniglot":
        options["shuffled"] = tasks.shuffled
    return class_splits.splits(tasks.name, root=tasks.root, **options)


def evaluation_transform(tasks: TasksConfig) -> Transform:
    """Each image as the network sees it, normalised as the literature does: by ImageNet's mean and SD, whatever it is.

    All of it, or its centre (`tasks.fit`). Embeddings are left as they are.
    """
    if tasks.name == EMBEDDINGS:
        return unit
    return Compose((_seen(tasks), Normalise()))


def training_transform(tasks: TasksConfig) -> Transform:
    """The same without augmentation; with it random crops, colours and flips, or random motions of characters.

    Characters that are all ink (`tasks.ink`) are also bent, and drawn with broader pens.
    """
    if not tasks.augment:
        return evaluation_transform(tasks)
    if kind(tasks) == "characters":
        moved: tuple[Transform, ...] = (RandomAffine(paper=None if tasks.fit == "whole" else 1.0),)
        return Compose((_seen(tasks), *((RandomWarp(), BroaderPen()) if tasks.ink else moved), Normalise()))
    return Compose(
        (
            RandomResizedCrop(tasks.size, scale=(tasks.crop, 1.0)),
            ColourJitter(tasks.jitter, tasks.jitter, tasks.jitter),
            RandomFlip(),
            Normalise(),
        )
    )


def _seen(tasks: TasksConfig) -> Transform:
    return Resize(tasks.size) if tasks.fit == "whole" else CentreCrop(tasks.size)


def kind(tasks: TasksConfig) -> str:
    """What the pictures show: characters or photographs."""
    return tasks.kind or ("characters" if tasks.channels == 1 else "photographs")


def form(tasks: TasksConfig) -> Form:
    """The form in which pictures are stored, before `evaluation_transform` makes of them what the network sees.

    Readers of glyphs and of Augmented Omniglot bring a picture to the network's size; the others leave a margin.
    """
    exact = tasks.ink or tasks.name in ("glyphs", "augmented-omniglot")
    return Form(tasks.size if exact else stored_size(tasks), tasks.channels, tasks.fit, tasks.ink)


def stored_size(tasks: TasksConfig) -> int:
    """Side of an image before its centre is taken."""
    return tasks.size if tasks.fit == "whole" and kind(tasks) == "characters" else int(tasks.size * ENLARGED)
