"""Handwritten characters, 28 x 28, one channel, black on white: Omniglot and EMNIST.

**Omniglot** (Lake et al. 2015): 1,623 characters of 50 alphabets, 20 drawings each. A class is named
`Alphabet/characterNN`; classes are ordered by part (background, then evaluation), alphabet and number.

**EMNIST** by class (Cohen et al. 2017): 62 classes of digits and letters with 200 images each. Pictures come out
upright, and black on white like Omniglot (EMNIST itself is white on black). Classes are in the order of EMNIST's
labels: 0-9, A-Z, a-z. The cross-domain experiments of Chen et al. (2019) and after use a fixed subset that Dong and
Xing (2018) drew and distribute as class folders; the packed npz holds the same images. From EMNIST's own idx files the
subset is the first 200 images of each class in the order of the training file: of the same distribution, but not the
same images.
"""

import re
import string
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from metavib.data.archive import damaged, decode_image, members, read_gz, read_npz
from metavib.data.cache import cached
from metavib.data.catalog import Found, find
from metavib.data.ink import VERSION, inked
from metavib.data.labelled import Labelled, labelled

SIDE = 28
_CROP_FROM = 32  # int(1.15 * 28)


def character(ink: np.ndarray, *, crop: bool) -> np.ndarray:
    """A 28 x 28 picture, ink dark on light paper, from a drawing `(h, w)` whose ink is 255 and paper 0.

    Args:
        ink: the drawing, uint8.
        crop: True resizes to 32 x 32 (bilinear, antialiased) and takes the centre, as the evaluation of Chen
            et al. (2019) and of all who built on it does; False resizes the whole drawing to 28 x 28
            (Lanczos), and leaves one that has this size alone.
    """
    if crop:
        large = Image.fromarray(255 - ink).resize((_CROP_FROM, _CROP_FROM), Image.Resampling.BILINEAR)
        margin = (_CROP_FROM - SIDE) // 2
        return np.asarray(large)[margin : margin + SIDE, margin : margin + SIDE]
    if ink.shape == (SIDE, SIDE):
        return 255 - ink
    return 255 - np.asarray(Image.fromarray(ink).resize((SIDE, SIDE), Image.Resampling.LANCZOS))


Form = Callable[[np.ndarray], np.ndarray]
"""From a drawing `(h, w)` whose ink is 255 to a picture of 28 x 28."""


def _form(*, crop: bool, ink: bool) -> tuple[str, Form]:
    """What a form is called, for its cache, and how it is made."""
    if ink:
        return f"-ink{VERSION}", lambda drawing: inked(255 - drawing, side=SIDE)
    return "-crop" if crop else "", partial(character, crop=crop)


# Omniglot

BACKGROUND = (
    "Alphabet_of_the_Magi", "Anglo-Saxon_Futhorc", "Arcadian", "Armenian", "Asomtavruli_(Georgian)",
    "Balinese", "Bengali", "Blackfoot_(Canadian_Aboriginal_Syllabics)", "Braille", "Burmese_(Myanmar)",
    "Cyrillic", "Early_Aramaic", "Futurama", "Grantha", "Greek", "Gujarati", "Hebrew",
    "Inuktitut_(Canadian_Aboriginal_Syllabics)", "Japanese_(hiragana)", "Japanese_(katakana)", "Korean",
    "Latin", "Malay_(Jawi_-_Arabic)", "Mkhedruli_(Georgian)", "N_Ko",
    "Ojibwe_(Canadian_Aboriginal_Syllabics)", "Sanskrit", "Syriac_(Estrangelo)", "Tagalog", "Tifinagh",
)  # fmt: skip
"""The 30 alphabets of `images_background.zip`; the other 20 are in `images_evaluation.zip`."""

_DRAWING = re.compile(r"(?:^|/)([^/]+)/character(\d+)/\d+_(\d+)\.png$")


def omniglot(
    *, root: Path | str | None = None, cache: Path | str | None = None, crop: bool = False, ink: bool = False
) -> Labelled:
    """All of Omniglot, from the two published zips (or their folders), or packed as one npz.

    Args:
        root: where datasets lie.
        cache: where caches live.
        crop: how a drawing becomes 28 x 28; see `character`. Cropping starts from
            the 105 x 105 drawings wherever they are present.
        ink: makes the 28 x 28 by `metavib.data.ink.inked` instead, from the 105 x 105 drawings wherever present.
    """
    packing, files = omniglot_files(root, crop=crop or ink)
    name, form = _form(crop=crop, ink=ink)

    def build() -> Labelled:
        if packing.startswith("packed"):
            return _omniglot_packed(files[0], form)
        return _omniglot_published(files, form)

    return cached(f"omniglot{name}", files, build, root=cache)


def omniglot_files(root: Path | str | None = None, *, crop: bool = False) -> Found:
    """The files that are read. Without cropping all forms give the same pixels; with it, 28 x 28 is the last resort."""
    prefer = ("packed-105", "zip", "folder", "packed-28") if crop else ("packed-28", "packed-105", "zip", "folder")
    return find("omniglot", root, prefer=prefer)


def alphabet(name: str) -> str:
    """The alphabet of a class, from its name."""
    return name.split("/")[0]


def _omniglot_published(files: tuple[Path, ...], form: Form) -> Labelled:
    pictures = {}
    for part, file in enumerate(files):
        for name, data in members(file, lambda name: _DRAWING.search(name) is not None):
            match = _DRAWING.search(name)
            assert match is not None
            ink = 255 - decode_image(data, name=f"{file} ({name})", channels=1)[0]
            key = (part, match[1], int(match[2]), int(match[3]))
            pictures[key] = form(ink)
        if not any(key[0] == part for key in pictures):
            raise damaged(file, "it has no Alphabet/characterNN/CCCC_DD.png in it")
    keys = sorted(pictures)
    return _order(np.stack([pictures[key] for key in keys]), [f"{a}/character{c:02d}" for _, a, c, _ in keys])


def _omniglot_packed(path: Path, form: Form) -> Labelled:
    keys = ("alphabet", "character", "evaluation", "drawer", "alphabet_names")
    alphabets, characters, evaluation, drawers, names = read_npz(path, *keys)
    if len({len(column) for column in (alphabets, characters, evaluation, drawers)}) != 1:
        raise damaged(path, "its columns have different lengths")
    rows = np.lexsort((drawers, characters, alphabets, evaluation))
    if len(alphabets) and int(alphabets.max()) >= len(names):
        raise damaged(path, "an alphabet has no name")
    pictures = [form(ink) for ink in _drawings(path, rows)]
    return _order(np.stack(pictures), [f"{names[alphabets[r]]}/character{int(characters[r]):02d}" for r in rows])


def _drawings(path: Path, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Each drawing with ink 255, from bits or from bytes."""
    if "105" in path.name:
        packed, shape = read_npz(path, "packed", "shape")
        if shape.shape != (2,):
            raise damaged(path, f"its shape should be height and width, not {shape.tolist()}")
        height, width = (int(side) for side in shape)
        if len(packed) != len(rows) or packed.shape[1:] != (-(-height * width // 8),):
            raise damaged(path, f"{packed.shape} packed bits do not fit {len(rows)} drawings of {height} x {width}")
        for r in rows:
            yield 255 * np.unpackbits(packed[r], count=height * width).reshape(height, width)
    else:
        (images,) = read_npz(path, "images")
        if images.shape != (len(rows), SIDE, SIDE) or images.dtype != np.uint8:
            raise damaged(path, f"expected {len(rows)} images of 28 x 28, got {images.dtype} {images.shape}")
        yield from images[rows]


def _order(pictures: np.ndarray, names: list[str]) -> Labelled:
    """Numbers the classes in the order in which they first appear."""
    index = {name: c for c, name in enumerate(dict.fromkeys(names))}
    return labelled(pictures[:, None], [index[name] for name in names], tuple(index))


# EMNIST

EMNIST_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
EMNIST_PER_CLASS = 200

_PICTURE = re.compile(r"(?:^|/)(\d{1,2})/(\d+)\.png$")


def emnist(
    *, root: Path | str | None = None, cache: Path | str | None = None, crop: bool = False, ink: bool = False
) -> Labelled:
    """The 62 classes of EMNIST, from the packed npz, the class folders (or their zip), or the idx files.

    Args:
        root: where datasets lie.
        cache: where caches live.
        crop: whether to resize to 32 and take the centre 28; see `character`.
        ink: makes the 28 x 28 by `metavib.data.ink.inked` instead.
    """
    packing, files = find("emnist", root)
    if packing == "folder":
        files = (files[0].parent,)
    name, form = _form(crop=crop, ink=ink)

    def build() -> Labelled:
        if packing == "packed":
            drawings, labels = _emnist_packed(files[0])
        elif packing == "idx":
            drawings, labels = _idx(*files)
        else:
            drawings, labels = _class_folders(files[0])
        missing = sorted(set(range(len(EMNIST_CLASSES))) - set(labels.tolist()))
        if missing:
            raise damaged(files[0], f"it has no images of {', '.join(EMNIST_CLASSES[c] for c in missing)}")
        return labelled(np.stack([form(drawing) for drawing in drawings])[:, None], labels, EMNIST_CLASSES)

    return cached(f"emnist{name}", files, build, root=cache)


def _emnist_packed(path: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels, names = read_npz(path, "images", "label", "class_names")
    if tuple(names.tolist()) != EMNIST_CLASSES:
        raise damaged(path, f"its classes should be {EMNIST_CLASSES[0]} to {EMNIST_CLASSES[-1]}")
    if images.shape != (len(labels), SIDE, SIDE) or images.dtype != np.uint8:
        raise damaged(path, f"expected {len(labels)} images of 28 x 28, got {images.dtype} {images.shape}")
    return images, labels.astype(np.int64)


def _class_folders(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """White on black PNGs in folders named by label, `0` to `61`."""
    pictures = {}
    for name, data in members(path, lambda name: _PICTURE.search(name) is not None):
        match = _PICTURE.search(name)
        assert match is not None
        if int(match[1]) < len(EMNIST_CLASSES):
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
    keep = np.sort(np.concatenate([np.flatnonzero(labels == c)[:EMNIST_PER_CLASS] for c in range(len(EMNIST_CLASSES))]))
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
