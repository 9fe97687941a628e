"""Omniglot (Lake et al. 2015): 1,623 characters of 50 alphabets, 20 drawings each.

Pictures come out 28 x 28, one channel, black on white as in the published PNGs. A class is named
`Alphabet/characterNN`; classes are ordered by part (background, then evaluation), alphabet and number.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from metavib.data.archive import damaged, decode_image, members
from metavib.data.cache import cached
from metavib.data.catalog import Found, find
from metavib.data.characters import SIDE, character
from metavib.data.labelled import Labelled, labelled
from metavib.data.packed import read_npz

BACKGROUND = (
    "Alphabet_of_the_Magi", "Anglo-Saxon_Futhorc", "Arcadian", "Armenian", "Asomtavruli_(Georgian)",
    "Balinese", "Bengali", "Blackfoot_(Canadian_Aboriginal_Syllabics)", "Braille", "Burmese_(Myanmar)",
    "Cyrillic", "Early_Aramaic", "Futurama", "Grantha", "Greek", "Gujarati", "Hebrew",
    "Inuktitut_(Canadian_Aboriginal_Syllabics)", "Japanese_(hiragana)", "Japanese_(katakana)", "Korean",
    "Latin", "Malay_(Jawi_-_Arabic)", "Mkhedruli_(Georgian)", "N_Ko",
    "Ojibwe_(Canadian_Aboriginal_Syllabics)", "Sanskrit", "Syriac_(Estrangelo)", "Tagalog", "Tifinagh",
)  # fmt: skip
"""The 30 alphabets of `images_background.zip`; the other 20 are in `images_evaluation.zip`."""

_MEMBER = re.compile(r"(?:^|/)([^/]+)/character(\d+)/\d+_(\d+)\.png$")


def omniglot(*, root: Path | str | None = None, cache: Path | str | None = None, crop: bool = False) -> Labelled:
    """All of Omniglot, from the two published zips (or their folders), or packed as one npz.

    Args:
        root: where datasets lie.
        cache: where caches live.
        crop: how a drawing becomes 28 x 28; see `metavib.data.characters.character`. Cropping starts from
            the 105 x 105 drawings wherever they are present.
    """
    form, files = sources(root, crop=crop)

    def build() -> Labelled:
        if form.startswith("packed"):
            return _packed(files[0], crop)
        return _published(files, crop)

    return cached("omniglot-crop" if crop else "omniglot", files, build, root=cache)


def sources(root: Path | str | None = None, *, crop: bool = False) -> Found:
    """The files that are read. Without cropping all forms give the same pixels; with it, 28 x 28 is the last resort."""
    prefer = ("packed-105", "zip", "folder", "packed-28") if crop else ("packed-28", "packed-105", "zip", "folder")
    return find("omniglot", root, prefer=prefer)


def alphabet(name: str) -> str:
    """The alphabet of a class, from its name."""
    return name.split("/")[0]


def _published(files: tuple[Path, ...], crop: bool) -> Labelled:
    pictures = {}
    for part, file in enumerate(files):
        for name, data in members(file, lambda name: _MEMBER.search(name) is not None):
            match = _MEMBER.search(name)
            assert match is not None
            ink = 255 - decode_image(data, name=f"{file} ({name})", channels=1)[0]
            key = (part, match[1], int(match[2]), int(match[3]))
            pictures[key] = character(ink, crop=crop)
        if not any(key[0] == part for key in pictures):
            raise damaged(file, "it has no Alphabet/characterNN/CCCC_DD.png in it")
    keys = sorted(pictures)
    return _order(np.stack([pictures[key] for key in keys]), [f"{a}/character{c:02d}" for _, a, c, _ in keys])


def _packed(path: Path, crop: bool) -> Labelled:
    keys = ("alphabet", "character", "evaluation", "drawer", "alphabet_names")
    alphabets, characters, evaluation, drawers, names = read_npz(path, *keys)
    if len({len(column) for column in (alphabets, characters, evaluation, drawers)}) != 1:
        raise damaged(path, "its columns have different lengths")
    rows = np.lexsort((drawers, characters, alphabets, evaluation))
    if len(alphabets) and int(alphabets.max()) >= len(names):
        raise damaged(path, "an alphabet has no name")
    pictures = [character(ink, crop=crop) for ink in _drawings(path, rows)]
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
