"""Pictures of the user's own: a folder with one sub-folder a class.

    pictures/                     pictures/
      daisy/   a.jpg b.png …        train/       daisy/ … rose/ …
      rose/    c.jpg …       or     validation/  tulip/ …
      tulip/   …                    test/        orchid/ …

Without `train`, `val` (or `validation`) and `test`, the classes are divided at random, by a seed. Anything
but PNG, JPEG, WebP, BMP, GIF and TIFF files, told by their names, is passed over. What becomes of a picture is said in
`metavib.data.picture`.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metavib.data.cache import cached
from metavib.data.ink import VERSION
from metavib.data.labelled import Labelled, Splits, check_disjoint, labelled, select_classes
from metavib.data.picture import SUFFIXES, Form

BROKEN = 20  # files that cannot be read, named in one message
_OTHERWISE = "Replace or remove them, or pass --skip-broken to go on without."
_PARTS = (("train",), ("validation", "val"), ("test",))


def folder(
    path: Path | str,
    *,
    size: int = 84,
    channels: int = 3,
    fit: str = "centre",
    ink: bool = False,
    skip_broken: bool = False,
    cache: Path | str | None = None,
) -> Labelled:
    """The pictures in a folder of class folders; a class is named by its folder, and classes are sorted.

    Args:
        path: the folder.
        size: the side to which every picture is brought.
        channels: 1 for grey, 3 for colour.
        fit: whether all of a picture is kept, or its central square; see `metavib.data.picture.Form`.
        ink: bring characters to dark ink on white paper.
        skip_broken: leave out files that cannot be read, with a warning, instead of refusing the folder.
        cache: where caches live.
    """
    path, form = Path(path), Form(size, channels, fit, ink)
    classes = class_files(path)
    name = f"pictures-{size}x{size}x{channels}" + f"-{fit}" * (fit != "centre") + "-some" * skip_broken
    name += f"-ink{VERSION}" * ink
    options: Any = {"skip_broken": skip_broken, "otherwise": _OTHERWISE}
    return cached(name, (path,), lambda: read_classes(classes, form, **options), root=cache)


def folder_splits(
    path: Path | str,
    *,
    minimum: int = 2,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    **options: Any,
) -> Splits:
    """Splits a folder of class folders by class.

    Args:
        path: the folder; with sub-folders `train`, `val` (or `validation`) and `test` these are the split.
        minimum: how many classes each part needs at least: the number of ways of the tasks.
        fractions: otherwise, the shares of train, validation and test in the classes.
        seed: otherwise, what decides which class goes where.
        **options: those of `folder`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from metavib.data import folder_splits
        >>> with tempfile.TemporaryDirectory() as place:
        ...     for n, name in enumerate("ash beech elm fir hazel larch lime oak pine yew".split()):
        ...         Path(place, "trees", name).mkdir(parents=True)
        ...         for k in range(2):
        ...             Image.new("RGB", (40, 30), (20 * n, 100 * k, 0)).save(Path(place, "trees", name, f"{k}.png"))
        ...     train, validation, test = folder_splits(Path(place, "trees"), size=28, cache=Path(place, "cache"))
        >>> train.classes, validation.classes, test.classes
        (6, 2, 2)
    """
    path = Path(path)
    parts = given_parts(path)
    if parts is not None:
        splits = check_disjoint(Splits(*(in_pairs(folder(part, **options)) for part in parts)))
    else:
        splits = split_classes(in_pairs(folder(path, **options)), fractions=fractions, seed=seed, minimum=minimum)
    for name, part in zip(Splits._fields, splits, strict=True):
        if part.classes < minimum:
            raise ValueError(
                f"{path}: {name} has {part.classes} class{'es' * (part.classes != 1)} and needs {minimum}; "
                "add classes or ask for fewer ways (--ways)."
            )
    return splits


def given_parts(path: Path) -> tuple[Path, Path, Path] | None:
    """The sub-folders for training, validation and test, where all three are there."""
    found = [next((path / name for name in names if (path / name).is_dir()), None) for names in _PARTS]
    train, validation, test = found
    return None if train is None or validation is None or test is None else (train, validation, test)


def class_files(path: Path) -> dict[str, list[Path]]:
    """The picture files of each class of a folder of class folders, in order; none of them is opened."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path.absolute()} is not a folder; it should have one sub-folder a class. Has it moved? Say where it is "
            "with --root."
        )
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise ValueError(f"{path}: it has no sub-folders; put the pictures of each class into a folder of its own.")
    classes = {
        place.name: [f for f in sorted(place.iterdir()) if f.suffix.lower() in SUFFIXES and not f.name.startswith(".")]
        for place in folders
    }
    empty = [name for name, files in classes.items() if not files]
    if empty:
        more = f" (and {len(empty) - 1} more)" * (len(empty) > 1)
        raise ValueError(
            f"{path / empty[0]}{more}: it has no pictures ({', '.join(SUFFIXES)}); add some or remove the folder."
        )
    return classes


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
    held_out = held_out_sizes(data.classes, fractions=fractions, minimum=minimum)
    order = torch.randperm(data.classes, generator=torch.Generator().manual_seed(seed)).tolist()
    validation, test = order[: held_out[0]], order[held_out[0] : sum(held_out)]
    train = order[sum(held_out) :]
    return Splits(*(select_classes(data, sorted(part)) for part in (train, validation, test)))


def in_pairs(data: Labelled) -> Labelled:
    """Without the classes of a single picture, which can be no part of a task."""
    kept = (data.counts > 1).nonzero().flatten().tolist()
    if len(kept) < data.classes:
        alone = [name for name, n in zip(data.names, data.counts.tolist(), strict=True) if n == 1]
        warnings.warn(
            f"{len(alone)} of {data.classes} classes have a single picture and are left out ({', '.join(alone[:5])}): "
            "a task needs two of a class, one to learn from and one to predict.",
            stacklevel=4,
        )
    return select_classes(data, kept)


def held_out_sizes(classes: int, *, fractions: Sequence[float] = (0.6, 0.2, 0.2), minimum: int = 1) -> list[int]:
    """How many of some classes are for validation and for test; as many as the least are left to train on."""
    sizes = [max(minimum, round(share * classes)) for share in fractions[1:]]
    while sum(sizes) > classes - minimum:
        sizes[sizes.index(max(sizes))] -= 1
    return sizes


def read_classes(
    classes: Mapping[str, Sequence[Any]], form: Form, *, skip_broken: bool = False, otherwise: str = "Replace them."
) -> Labelled:
    """All pictures of some classes. Those that cannot be read are refused together, or left out together, and named.

    Args:
        classes: the pictures of each class: paths, or whatever else `form` reads.
        form: what they become.
        skip_broken: leave out what cannot be read, with a warning.
        otherwise: what a user can do about a picture that cannot be read, for the message.
    """
    pictures, labels, broken = [], [], []
    for label, (name, sources) in enumerate(classes.items()):
        for i, source in enumerate(sources):
            try:
                pictures.append(form.read(source, name=f"picture {i + 1} of {name}"))
                labels.append(label)
            except (ValueError, OSError) as error:
                broken.append(str(error))
    names = list(classes)
    kept = sorted(set(labels))
    gone = [name for label, name in enumerate(names) if label not in kept]
    if broken and (not skip_broken or not kept):
        some = "\n".join(f"  {error}" for error in broken[:BROKEN])
        more = f"\n  and {len(broken) - BROKEN} more" * (len(broken) > BROKEN)
        raise ValueError(
            f"{len(broken)} of {len(broken) + len(pictures)} pictures cannot be read:\n{some}{more}\n{otherwise}"
        )
    if broken:
        without = f", and the classes {', '.join(gone[:5])} with them" if gone else ""
        warnings.warn(f"{len(broken)} pictures that cannot be read are left out{without}.", stacklevel=2)
    return labelled(np.stack(pictures), [kept.index(label) for label in labels], [names[label] for label in kept])
