"""The classes each experiment trains, selects and tests on.

| experiment | train | validation | test |
| --- | --- | --- | --- |
| `omniglot-emnist` | 1,597: Omniglot without Latin | 31: EMNIST, even labels | 31: EMNIST, odd labels |
| `omniglot` | 4,112 = 4 x 1,028 | 688 = 4 x 172 | 1,692 = 4 x 423 |
| `omniglot`, shuffled | 4,400 = 4 x 1,100 | 400 = 4 x 100 | 1,692 = 4 x 423 |
| `augmented-omniglot` | 731 of 21 alphabets | 172 of 5 | 659 of 20 |
| `mini-imagenet` | 64 | 16 | 20 |
| `cub` | 100 | 50 | 50 |
| `mini-imagenet-cub` | 100: all of mini-ImageNet | 50 of CUB | 50 of CUB |
| `characters` | 6,492 = 4 x 1,623: all of Omniglot | 31: EMNIST, even labels | 31: EMNIST, odd labels |

References:
    Vinyals et al. (2016), Matching Networks for One Shot Learning (Omniglot's split).
    Finn et al. (2017), Model-Agnostic Meta-Learning (Omniglot, shuffled).
    Ravi and Larochelle (2017), Optimization as a Model for Few-Shot Learning (mini-ImageNet's).
    Chen et al. (2019), A Closer Look at Few-shot Classification (CUB's, and the two across datasets).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metavib.data import characters, photographs
from metavib.data.catalog import find
from metavib.data.labelled import Splits, check_disjoint, concatenate, select_classes
from metavib.data.labelled import rotations as with_rotations

Place = Path | str | None

VALIDATION_ALPHABETS = ("Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)")
"""The alphabets whose characters are Omniglot's validation classes in the split of Vinyals et al."""

_VINYALS, _FINN = (1028, 172, 423), (1100, 100, 423)  # characters in train, validation and test
_WAYS = 20  # of Augmented Omniglot: an alphabet with fewer characters makes no task


def splits(name: str, *, root: Place = None, cache: Place = None, **options: Any) -> Splits:
    """The train, validation and test classes of an experiment, by its name.

    Args:
        name: a key of `EXPERIMENTS`.
        root: where datasets lie: the argument, else `$METAVIB_DATA`, else `./data`.
        cache: where caches live: the argument, else `$METAVIB_CACHE`, else `~/.cache/metavib`.
        **options: those of the experiment's own function; those with characters have `crop` and `ink`, two
            `rotations` and one `shuffled`.

    Example:
        Data that is not there is asked for, with the places it can be had from.

        >>> from metavib.data import EXPERIMENTS, splits
        >>> list(EXPERIMENTS)[:3]
        ['omniglot-emnist', 'omniglot', 'augmented-omniglot']
        >>> splits("cub", root="an-empty-folder")
        Traceback (most recent call last):
        FileNotFoundError: cub was not found in ...
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment is named {name!r}; there are {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name](root=root, cache=cache, **options)


def omniglot_emnist(
    *, root: Place = None, cache: Place = None, rotations: bool = False, crop: bool = True, ink: bool = False
) -> Splits:
    """From Omniglot without its Latin alphabet to EMNIST.

    Args:
        root: where datasets lie.
        cache: where caches live.
        rotations: adds the training characters' quarter turns as classes, 4 x 1,597 = 6,388. The text of
            Titsias et al. (2021) speaks of rotations (and of 4,114 classes, which is no multiple of four);
            the code it builds on has the 1,597 unrotated ones.
        crop: resizes to 32 and takes the centre 28, as that code does, rather than resize to 28.
        ink: brings every picture to dark ink on white paper instead (`metavib.data.ink`).
    """
    drawn = characters.omniglot(root=root, cache=cache, crop=crop, ink=ink)
    written = characters.emnist(root=root, cache=cache, crop=crop, ink=ink)
    train = select_classes(drawn, [name for name in drawn.names if characters.alphabet(name) != "Latin"])
    even, odd = (select_classes(written, range(start, written.classes, 2)) for start in (0, 1))
    if rotations:
        return _checked("omniglot-emnist", Splits(with_rotations(train), even, odd), (4 * 1597, 31, 31))
    return _checked("omniglot-emnist", Splits(train, even, odd), (1597, 31, 31))


def omniglot(
    *,
    root: Place = None,
    cache: Place = None,
    rotations: bool = True,
    shuffled: bool = False,
    crop: bool = False,
    ink: bool = False,
) -> Splits:
    """Omniglot with the split of Vinyals et al. (2016), or with that of Finn et al. (2017).

    The first follows a rule: of the characters in order, the background alphabets first, the first 1,200 are
    for training, less those of five background alphabets, which validate; the other 423 test. The second shuffles
    the characters: 1,100 for training, 100 for validation and 423 for the test, so that the others of a test
    character's alphabet are mostly known.

    Args:
        root: where datasets lie.
        cache: where caches live.
        rotations: whether quarter turns are classes of their own.
        shuffled: the second split (with an order of our own: that of Finn et al. is their disk's).
        crop: resizes to 32 and takes the centre 28, rather than resize to 28.
        ink: brings every picture to dark ink on white paper instead (`metavib.data.ink`).
    """
    data = characters.omniglot(root=root, cache=cache, crop=crop, ink=ink)
    parts = _shuffled(data.names) if shuffled else _in_order(data.names)
    chosen = Splits(*(select_classes(data, names) for names in parts))
    train, validation, test = _FINN if shuffled else _VINYALS
    if rotations:
        return _checked("omniglot", Splits(*map(with_rotations, chosen)), (4 * train, 4 * validation, 4 * test))
    return _checked("omniglot", chosen, (train, validation, test))


def _in_order(names: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    seen = sum(_VINYALS[:2])
    train = [name for name in names[:seen] if characters.alphabet(name) not in VALIDATION_ALPHABETS]
    validation = [name for name in names[:seen] if characters.alphabet(name) in VALIDATION_ALPHABETS]
    return train, validation, list(names[seen:])


def _shuffled(names: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    order = [names[i] for i in np.random.default_rng(0).permutation(len(names))]
    train, validation, _ = _FINN
    return order[:train], order[train : train + validation], order[train + validation :]


def augmented_omniglot(*, root: Place = None, cache: Place = None, crop: bool = False, ink: bool = False) -> Splits:
    """Omniglot by alphabet: train on background alphabets, test on the evaluation ones.

    An alphabet is a task of 20 characters, so the four background alphabets with fewer are left out. The
    validation alphabets are those of Vinyals et al. `metavib.data.characters.alphabet` gives the alphabet of a
    class name.

    Args:
        root: where datasets lie.
        cache: where caches live.
        crop: resizes to 32 and takes the centre 28, rather than resize to 28.
        ink: brings every picture to dark ink on white paper instead (`metavib.data.ink`).
    """
    data = characters.omniglot(root=root, cache=cache, crop=crop, ink=ink)
    length = Counter(map(characters.alphabet, data.names))

    def part_of(name: str) -> str:
        script = characters.alphabet(name)
        if script not in characters.BACKGROUND:
            return "test"
        return "validation" if script in VALIDATION_ALPHABETS else "train"

    usable = [name for name in data.names if length[characters.alphabet(name)] >= _WAYS]
    parts = (select_classes(data, [name for name in usable if part_of(name) == part]) for part in Splits._fields)
    return _checked("augmented-omniglot", Splits(*parts), (731, 172, 659))


def mini_imagenet(*, root: Place = None, cache: Place = None) -> Splits:
    """mini-ImageNet with the split of Ravi and Larochelle (2017), 84 x 84."""
    parts = Splits(
        *(photographs.mini_imagenet(part, root=root, cache=cache) for part in photographs.MINI_IMAGENET_CLASSES)
    )
    for (part, names), data in zip(photographs.MINI_IMAGENET_CLASSES.items(), parts, strict=True):
        strange = sorted(set(data.names) - set(names))
        if strange:  # another division of the same images would give numbers that compare with nothing
            raise ValueError(
                f"mini-imagenet: {strange[0]} is not among the {part} classes of Ravi and Larochelle (2017); "
                "use their train.csv, val.csv and test.csv."
            )
    return _checked("mini-imagenet", parts, (64, 16, 20))


def cub(*, root: Place = None, cache: Place = None) -> Splits:
    """CUB with the split of Chen et al. (2019): training pictures 256 x 256, the others 96 x 96."""
    parts = (photographs.cub(part, root=root, cache=cache) for part in ("base", "val", "novel"))
    return _checked("cub", Splits(*parts), (100, 50, 50))


def mini_imagenet_cub(*, root: Place = None, cache: Place = None) -> Splits:
    """From all 100 classes of mini-ImageNet (84 x 84) to CUB's validation and novel classes (96 x 96)."""
    train = concatenate(*mini_imagenet(root=root, cache=cache))
    held_out = (photographs.cub(part, root=root, cache=cache) for part in ("val", "novel"))
    return _checked("mini-imagenet-cub", Splits(train, *held_out), (100, 50, 50))


def all_characters(*, root: Place = None, cache: Place = None, ink: bool = True) -> Splits:
    """All of Omniglot with its quarter turns, to EMNIST, every character as ink (`metavib.data.ink`) or as it is.

    For a model that is to be used, and not compared: the 26 letters of Omniglot's Latin alphabet, drawn with a mouse,
    are among the training classes here, and letters of the same names, written with a pen, are validated and tested on.
    """
    drawn = characters.omniglot(root=root, cache=cache, ink=ink)
    written = characters.emnist(root=root, cache=cache, ink=ink)
    even, odd = (select_classes(written, range(start, written.classes, 2)) for start in (0, 1))
    return _checked("characters", Splits(with_rotations(drawn), even, odd), (4 * 1623, 31, 31))


EXPERIMENTS: dict[str, Callable[..., Splits]] = {
    "omniglot-emnist": omniglot_emnist,
    "omniglot": omniglot,
    "augmented-omniglot": augmented_omniglot,
    "mini-imagenet": mini_imagenet,
    "cub": cub,
    "mini-imagenet-cub": mini_imagenet_cub,
    "characters": all_characters,
}


def _checked(name: str, parts: Splits, expected: tuple[int, int, int]) -> Splits:
    """The splits, unless a file that is incomplete or not the real one gave another number of classes."""
    found = tuple(part.classes for part in parts)
    if found != expected:
        raise ValueError(
            f"{name} should have {expected} classes in train, validation and test; the files give {found}. "
            "Some of them are incomplete or of another dataset: `metavib data` lists them."
        )
    return check_disjoint(parts)


# Which data a run was made with

_DATASETS = {
    "omniglot-emnist": ("omniglot", "emnist"),
    "omniglot": ("omniglot",),
    "augmented-omniglot": ("omniglot",),
    "mini-imagenet": ("mini-imagenet",),
    "cub": ("cub",),
    "mini-imagenet-cub": ("mini-imagenet", "cub"),
    "characters": ("omniglot", "emnist"),
}
CHARACTERS = tuple(name for name, datasets in _DATASETS.items() if "omniglot" in datasets)
"""The experiments whose pictures show characters, and can be brought to ink on paper."""


def datasets(experiment: str) -> frozenset[str]:
    """The datasets that the pictures of an experiment come from; of one's own pictures these alone.

    Example:
        >>> from metavib.data.class_splits import datasets
        >>> sorted(datasets("mini-imagenet-cub")), sorted(datasets("images"))
        (['cub', 'mini-imagenet'], ['images'])
    """
    return frozenset(_DATASETS.get(experiment, (experiment,)))


def checksums(experiment: str, root: Place = None, *, ink: bool = False) -> dict[str, str]:
    """SHA-256 by file name, of the files an experiment's datasets are read from.

    Args:
        experiment: a key of `metavib.data.EXPERIMENTS`.
        root: where datasets lie: the argument, else `$METAVIB_DATA`, else `./data`.
        ink: whether characters are brought to ink on paper, from the largest drawings that there are.
    """
    found: dict[str, str] = {}
    for dataset in _DATASETS[experiment]:
        if dataset == "omniglot":
            large = ink or experiment in ("omniglot-emnist", "characters")
            files = characters.omniglot_files(root, crop=large).files
        else:
            files = find(dataset, root).files
        found |= {file.name: checksum(file) for file in files}
    return found


def checksum(path: Path) -> str:
    """SHA-256 of a file; of a folder, that of the names and checksums of the files in it, in order."""
    if not path.is_dir():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    lines = [f"{checksum(p)}  {p.relative_to(path).as_posix()}\n" for p in path.rglob("*") if p.is_file()]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
