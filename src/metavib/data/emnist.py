"""EMNIST by class (Cohen et al. 2017), 62 classes of digits and letters with 200 images each.

Pictures come out 28 x 28, one channel, upright, and black on white like Omniglot (EMNIST itself is white on
black). Classes are in the order of EMNIST's labels: 0-9, A-Z, a-z.

The cross-domain experiments of Chen et al. (2019) and after use a fixed subset that Dong and Xing (2018)
drew and distribute as class folders; the packed npz holds the same images. From EMNIST's own idx files the
subset is the first 200 images of each class in the order of the training file: of the same distribution, but
not the same images.
"""

import re
import string
import struct
from pathlib import Path

import numpy as np

from metavib.data.archive import damaged, decode_image, members, read_gz
from metavib.data.cache import cached
from metavib.data.catalog import find
from metavib.data.characters import SIDE, character
from metavib.data.labelled import Labelled, labelled
from metavib.data.packed import read_npz

NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
PER_CLASS = 200

_MEMBER = re.compile(r"(?:^|/)(\d{1,2})/(\d+)\.png$")


def emnist(*, root: Path | str | None = None, cache: Path | str | None = None, crop: bool = False) -> Labelled:
    """The 62 classes of EMNIST, from the packed npz, the class folders (or their zip), or the idx files.

    Args:
        root: where datasets lie.
        cache: where caches live.
        crop: whether to resize to 32 and take the centre 28; see `metavib.data.characters.character`.
    """
    form, files = find("emnist", root)
    if form == "folder":
        files = (files[0].parent,)

    def build() -> Labelled:
        if form == "packed":
            ink, labels = _packed(files[0])
        elif form == "idx":
            ink, labels = _idx(*files)
        else:
            ink, labels = _class_folders(files[0])
        missing = sorted(set(range(len(NAMES))) - set(labels.tolist()))
        if missing:
            raise damaged(files[0], f"it has no images of {', '.join(NAMES[c] for c in missing)}")
        return labelled(np.stack([character(i, crop=crop) for i in ink])[:, None], labels, NAMES)

    return cached("emnist-crop" if crop else "emnist", files, build, root=cache)


def _packed(path: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels, names = read_npz(path, "images", "label", "class_names")
    if tuple(names.tolist()) != NAMES:
        raise damaged(path, f"its classes should be {NAMES[0]} to {NAMES[-1]}")
    if images.shape != (len(labels), SIDE, SIDE) or images.dtype != np.uint8:
        raise damaged(path, f"expected {len(labels)} images of 28 x 28, got {images.dtype} {images.shape}")
    return images, labels.astype(np.int64)


def _class_folders(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """White on black PNGs in folders named by label, `0` to `61`."""
    pictures = {}
    for name, data in members(path, lambda name: _MEMBER.search(name) is not None):
        match = _MEMBER.search(name)
        assert match is not None
        if int(match[1]) < len(NAMES):
            pictures[int(match[1]), int(match[2])] = decode_image(data, name=f"{path} ({name})", channels=1)[0]
    if not pictures:
        raise damaged(path, "it has no class folders 0 to 61 of PNGs in it")
    keys = sorted(pictures)
    if any(picture.shape != (SIDE, SIDE) for picture in pictures.values()):
        raise damaged(path, "its images should be 28 x 28")
    return np.stack([pictures[key] for key in keys]), np.array([label for label, _ in keys])


def _idx(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The first 200 images a class of EMNIST's files, which hold each image transposed."""
    content = read_gz(labels_path)
    (count,) = _idx_header(labels_path, content, magic=2049, dimensions=1)
    labels = np.frombuffer(content, np.uint8, offset=8)
    if len(labels) != count:
        raise damaged(labels_path, f"it should hold {count} labels and has {len(labels)}")
    header = _idx_header(images_path, read_gz(images_path, prefix=16), magic=2051, dimensions=3)
    if header != (count, SIDE, SIDE):
        raise damaged(images_path, f"expected {count} images of 28 x 28, the header says {header}")
    keep = np.sort(np.concatenate([np.flatnonzero(labels == c)[:PER_CLASS] for c in range(len(NAMES))]))
    # 200 a class come early in the file: the rest of its half gigabyte is not unpacked
    needed = int(keep[-1]) + 1 if len(keep) else 0
    content = read_gz(images_path, prefix=16 + needed * SIDE * SIDE)
    if len(content) != 16 + needed * SIDE * SIDE:
        raise damaged(images_path, "it ends before its last image")
    images = np.frombuffer(content, np.uint8, offset=16).reshape(needed, SIDE, SIDE)[keep]
    order = np.argsort(labels[keep], kind="stable")
    return np.ascontiguousarray(images.transpose(0, 2, 1))[order], labels[keep][order].astype(np.int64)


def _idx_header(path: Path, content: bytes, *, magic: int, dimensions: int) -> tuple[int, ...]:
    """The lengths an idx file declares, after checking its magic number (kind of values, dimensions)."""
    if len(content) < 4 * (1 + dimensions):
        raise damaged(path, "it ends within its header")
    found, *lengths = struct.unpack_from(f">{1 + dimensions}I", content)
    if found != magic:
        raise damaged(path, f"its magic number is {found}, not {magic}: it is not the idx file its name says")
    return tuple(lengths)
