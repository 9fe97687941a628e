"""Features of pictures in place of the pictures: one array file for all classes of an experiment.

The file is an `.npz` of four arrays, which any program can write (`numpy.savez`):

| array | shape | what |
| --- | --- | --- |
| `features` | `(n, M)` | a row of numbers for each picture, of any floating-point type |
| `labels` | `(n,)` | the class of each row, a whole number that counts into `names` |
| `names` | `(classes,)` | the names of the classes, all different |
| `splits` | `(classes,)` | what each class is for: `train`, `validation` or `test` |

`metavib embed` writes such files from a trained network; features of any other network serve as well. To train on the
classes of one file and to test on those of another, name both (`read_several`).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from metavib.data.archive import damaged, read_npz
from metavib.data.labelled import Labelled, Splits, check_disjoint
from metavib.files import write_atomically


def write_embeddings(path: Path, parts: Splits) -> None:
    """Writes features, held as the `images (n, M)` of each part, as float16.

    Args:
        path: the file, which is replaced as a whole.
        parts: the features of the training, validation and test classes.
    """
    widths = {part.images.shape[1:] for part in parts}
    if len(widths) > 1 or any(part.images.ndim != 2 for part in parts):
        raise ValueError(f"features must be (n, M) with one M; got {[tuple(part.images.shape) for part in parts]}.")
    check_disjoint(parts)
    starts = np.cumsum([0, *(part.classes for part in parts)])
    features = torch.cat([part.images.cpu() for part in parts]).to(torch.float16)
    labels = [part.labels.cpu().numpy() + start for part, start in zip(parts, starts, strict=False)]
    names = [name for part in parts for name in part.names]
    splits = [split for split, part in zip(Splits._fields, parts, strict=True) for _ in part.names]
    _write(path, features, labels=np.concatenate(labels), names=np.array(names), splits=np.array(splits))


def write_vectors(path: Path, data: Labelled) -> None:
    """Writes the features of a task, held as its `images (n, M)`, as float16; its classes are for nothing yet.

    Args:
        path: the file, which is replaced as a whole.
        data: the features with their classes.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "new.npz"
        >>> write_vectors(file, Labelled(torch.eye(2), torch.tensor([0, 1]), ("wren", "tit")))
        >>> read_vectors(file).names
        ('wren', 'tit')
    """
    _write(path, data.images.cpu().to(torch.float16), labels=data.labels.cpu().numpy(), names=np.array(data.names))


def _write(path: Path, features: torch.Tensor, **arrays: np.ndarray) -> None:
    if not bool(features.isfinite().all()):
        raise ValueError("features must be finite and below 65504, the largest float16; divide them by a constant.")

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # an open file, since NumPy would add .npz to a name that lacks it
            np.savez(file, allow_pickle=False, features=features.numpy(), **arrays)

    write_atomically(path, write)


def read_embeddings(path: Path | str) -> Splits:
    """The features of an array file as three labelled sets, whose `images` are `(n, M)` float32.

    Example:
        >>> import numpy as np, tempfile
        >>> file = Path(tempfile.mkdtemp()) / "birds.npz"
        >>> classes = {"names": ["wren", "tit", "crow", "kite"], "splits": ["train", "train", "validation", "test"]}
        >>> np.savez(file, features=np.eye(4), labels=np.arange(4), **classes)
        >>> read_embeddings(file).train.names
        ('wren', 'tit')
    """
    path = Path(path)
    features, labels, names, splits = read_npz(path, "features", "labels", "names", "splits")
    if names.shape != splits.shape or splits.dtype.kind != "U":
        raise damaged(path, f"names and splits must be one text a class; got {names.shape} and {splits.shape}")
    strange = sorted(set(splits.tolist()) - set(Splits._fields))
    if strange:
        raise damaged(path, f"splits must be {', '.join(Splits._fields)}; got {strange[0]!r}")
    found = _labelled(path, features, labels, names)
    return Splits(*(_part(found, splits == split) for split in Splits._fields))


def read_vectors(path: Path | str) -> Labelled:
    """The features of an array file with their classes, whatever these are for; `splits` may be missing."""
    path = Path(path)
    return _labelled(path, *read_npz(path, "features", "labels", "names"))


def _labelled(path: Path, features: np.ndarray, labels: np.ndarray, names: np.ndarray) -> Labelled:
    """The arrays of a file as labelled vectors, once they are known to fit each other."""
    if features.ndim != 2 or features.dtype.kind != "f" or not len(features):
        raise damaged(path, f"features must be numbers (n, M); got {features.dtype} {features.shape}")
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu":
        raise damaged(path, f"labels must be whole numbers ({len(features)},); got {labels.dtype} {labels.shape}")
    if names.ndim != 1 or names.dtype.kind != "U":
        raise damaged(path, f"names and splits must be one text a class; got {names.dtype} {names.shape}")
    if not 0 <= int(labels.min()) <= int(labels.max()) < len(names):
        raise damaged(path, f"labels must lie in 0..{len(names) - 1}; got {labels.min()}..{labels.max()}")
    values = torch.from_numpy(features.astype(np.float32))
    if not bool(values.isfinite().all()):
        raise damaged(path, "some features are infinite or NaN")
    if len(set(names.tolist())) != len(names):
        raise damaged(path, "a class name is there twice")
    return Labelled(values, torch.from_numpy(labels.astype(np.int64)), tuple(names.tolist()))


def read_several(paths: Sequence[Path | str], *, unseen: bool = False) -> Splits:
    """The features of one file; or of two, all classes of the first to train on, and the second's to select and test.

    Args:
        paths: the files.
        unseen: of two files, train and select on the classes that the first has for that, and only test on the second.

    Example:
        >>> import numpy as np, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, classes in (("dogs.npz", ["pug", "boxer", "husky"]), ("birds.npz", ["wren", "tit", "crow"])):
        ...     splits = {"names": classes, "splits": ["train", "validation", "test"]}
        ...     np.savez(folder / name, features=np.eye(3), labels=np.arange(3), **splits)
        >>> [part.names for part in read_several([folder / "dogs.npz", folder / "birds.npz"])]
        [('pug', 'boxer', 'husky'), ('tit',), ('crow',)]
    """
    if not 1 <= len(paths) <= 2:
        raise ValueError(f"embeddings are in one file, or in two: to train on, and to test on; got {len(paths)} files.")
    parts = [read_embeddings(path) for path in paths]
    if len(parts) == 1:
        return parts[0]
    first, last = parts
    widths = [part.train.images.shape[-1] for part in parts]
    if widths[0] != widths[1]:
        raise ValueError(
            f"{paths[0]} has {widths[0]} features and {paths[1]} has {widths[1]}: make them with one network."
        )
    if unseen:
        return check_disjoint(Splits(first.train, first.validation, last.test))
    starts = np.cumsum([0, *(part.classes for part in first)]).tolist()
    train = Labelled(
        torch.cat([part.images for part in first]),
        torch.cat([part.labels + start for part, start in zip(first, starts, strict=False)]),
        tuple(name for part in first for name in part.names),
    )
    return check_disjoint(Splits(train, last.validation, last.test))


def _part(data: Labelled, chosen: np.ndarray) -> Labelled:
    """The rows of some classes, their labels counted anew."""
    renumber = torch.full((data.classes,), -1)
    renumber[torch.from_numpy(chosen)] = torch.arange(int(chosen.sum()))
    own = renumber[data.labels]
    names = tuple(name for name, its in zip(data.names, chosen, strict=True) if its)
    return Labelled(data.images[own >= 0], own[own >= 0], names)
