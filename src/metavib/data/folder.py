"""Pictures of the user's own: a folder with one sub-folder a class.

    pictures/                     pictures/
      daisy/   a.jpg b.png …        train/       daisy/ … rose/ …
      rose/    c.jpg …       or     validation/  tulip/ …
      tulip/   …                    test/        orchid/ …

Without `train`, `val` (or `validation`) and `test`, the classes are divided at random, by a seed. Anything
but PNG, JPEG, WebP and BMP files, told by their names, is passed over.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from metavib.data.archive import SUFFIXES, decode_image, read_file
from metavib.data.cache import cached
from metavib.data.labelled import Labelled, Splits, check_disjoint, labelled, select_classes

_PARTS = (("train",), ("validation", "val"), ("test",))


def folder(path: Path | str, *, size: int = 84, channels: int = 3, cache: Path | str | None = None) -> Labelled:
    """The pictures in a folder of class folders; a class is named by its folder, and classes are sorted.

    Args:
        path: the folder.
        size: the side to which the central square of every picture is resized.
        channels: 1 for grey, 3 for colour.
        cache: where caches live.
    """
    path = Path(path)
    if channels not in (1, 3) or size < 1:
        raise ValueError(f"expected 1 or 3 channels and a positive size; got {channels} channels, size {size}.")
    if not path.is_dir():
        raise FileNotFoundError(f"{path.absolute()} is not a folder; it should have one sub-folder a class.")
    return cached(f"folder-{size}x{size}x{channels}", (path,), lambda: _read(path, size, channels), root=cache)


def folder_splits(
    path: Path | str,
    *,
    size: int = 84,
    channels: int = 3,
    minimum: int = 2,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    cache: Path | str | None = None,
) -> Splits:
    """Splits a folder of class folders by class.

    Args:
        path: the folder; with sub-folders `train`, `val` (or `validation`) and `test` these are the split.
        size: the side to which the central square of every picture is resized.
        channels: 1 for grey, 3 for colour.
        minimum: how many classes each part needs at least: the number of ways of the tasks.
        fractions: otherwise, the shares of train, validation and test in the classes.
        seed: otherwise, what decides which class goes where.
        cache: where caches live.
    """
    path = Path(path)
    given = [next((path / name for name in names if (path / name).is_dir()), None) for names in _PARTS]
    if all(given):
        parts = [folder(part, size=size, channels=channels, cache=cache) for part in given if part]
        splits = check_disjoint(Splits(*parts))
    else:
        splits = split_classes(
            folder(path, size=size, channels=channels, cache=cache),
            fractions=fractions,
            seed=seed,
            minimum=minimum,
        )
    for name, part in zip(Splits._fields, splits, strict=True):
        if part.classes < minimum:
            raise ValueError(
                f"{path}: {name} has {part.classes} class{'es' * (part.classes != 1)} and needs {minimum}; "
                "add classes or ask for fewer ways."
            )
    return splits


def split_classes(
    data: Labelled, *, fractions: Sequence[float] = (0.6, 0.2, 0.2), seed: int = 0, minimum: int = 1
) -> Splits:
    """Divides classes at random into train, validation and test; each gets `minimum` at least."""
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions must be three positive numbers that sum to 1; got {tuple(fractions)}.")
    if data.classes < 3 * minimum:
        raise ValueError(
            f"splitting needs {3 * minimum} classes at least, {minimum} each for train, validation and test; "
            f"got {data.classes}. Add classes or ask for fewer ways."
        )
    held_out = [max(minimum, round(share * data.classes)) for share in fractions[1:]]
    while sum(held_out) > data.classes - minimum:  # leave enough to train on
        held_out[held_out.index(max(held_out))] -= 1
    order = torch.randperm(data.classes, generator=torch.Generator().manual_seed(seed)).tolist()
    validation, test = order[: held_out[0]], order[held_out[0] : sum(held_out)]
    train = order[sum(held_out) :]
    return Splits(*(select_classes(data, sorted(part)) for part in (train, validation, test)))


def _read(path: Path, size: int, channels: int) -> Labelled:
    classes = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise ValueError(f"{path}: it has no sub-folders; put the pictures of each class into a folder of its own.")
    files = [
        (file, c)
        for c, place in enumerate(classes)
        for file in sorted(place.iterdir())
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    ]
    empty = sorted(set(range(len(classes))) - {c for _, c in files})
    if empty:
        raise ValueError(
            f"{classes[empty[0]]}: it has no pictures ({', '.join(SUFFIXES)}); add some or remove the folder."
        )
    pictures = np.empty((len(files), channels, size, size), np.uint8)
    for i, (file, _) in enumerate(files):
        pictures[i] = decode_image(read_file(file), name=str(file), channels=channels, size=size, keep_aspect=True)
    return labelled(pictures, [c for _, c in files], [place.name for place in classes])
