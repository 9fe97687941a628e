"""CUB-200-2011 (Wah et al. 2011), 200 species of birds, with the split of Chen et al. (2019): 100 / 50 / 50.

Over the sorted classes, i = 0, 1, …: base where i is even, validation where i % 4 == 1, novel where i % 4 ==
3. Base pictures come out 256 x 256, for random crops to start from; the others 96 x 96, whose central 84 x
84 is the crop that evaluation uses. All are resized without keeping their aspect ratio, as Chen et al. do.
"""

from pathlib import Path

import numpy as np

from metavib.data.archive import damaged, decode_image, gather, members
from metavib.data.cache import cached
from metavib.data.catalog import find
from metavib.data.labelled import Labelled, labelled
from metavib.data.packed import decode_rows, read_npz

SIDES = {"base": 256, "val": 96, "novel": 96}
PARTS = tuple(SIDES)

_TABLES = ("images.txt", "classes.txt", "image_class_labels.txt")


def cub(part: str, *, root: Path | str | None = None, cache: Path | str | None = None) -> Labelled:
    """One part of CUB, from the published tgz, its folder, or the packed npz files.

    Args:
        part: "base", "val" or "novel".
        root: where datasets lie.
        cache: where caches live.
    """
    if part not in PARTS:
        raise ValueError(f"CUB has the parts {', '.join(PARTS)}; got {part!r}.")
    form, files = find("cub", root)
    if form == "packed":
        file = files[PARTS.index(part)]
        return cached(f"cub-{part}", (file,), lambda: _packed(file, SIDES[part]), root=cache)
    return cached(f"cub-{part}", files, lambda: _published(files[0], part), root=cache)


def part_of(index: int) -> str:
    """The part that the class of this index, among the sorted classes, belongs to."""
    return ("base", "val", "base", "novel")[index % 4]


def _packed(path: Path, side: int) -> Labelled:
    pictures, offsets, labels, names = read_npz(path, "files", "offsets", "label", "class_names")
    if len(offsets) != len(labels) + 1:
        raise damaged(path, f"{len(labels)} labels for {len(offsets) - 1} images")

    def decode(name: str, data: bytes) -> np.ndarray:
        return decode_image(data, name=name, channels=3, size=side)

    return labelled(decode_rows(path, pictures, offsets, decode), labels.astype(np.int64), names.tolist())


def _published(path: Path, part: str) -> Labelled:
    top, tables = _read_tables(path)
    images, classes, labels = (tables[name] for name in _TABLES)
    if images.keys() != labels.keys() or not set(labels.values()) <= classes.keys():
        raise damaged(path, f"{_TABLES[0]}, {_TABLES[1]} and {_TABLES[2]} do not fit each other")
    names = [name for i, name in enumerate(sorted(classes.values())) if part_of(i) == part]
    rows = sorted((classes[labels[key]], file) for key, file in images.items() if classes[labels[key]] in names)

    def decode(name: str, data: bytes) -> np.ndarray:
        return decode_image(data, name=name, channels=3, size=SIDES[part])

    pictures = gather(path, {f"{top}images/{file}": i for i, (_, file) in enumerate(rows)}, decode)
    return labelled(pictures, [names.index(name) for name, _ in rows], names)


def _read_tables(path: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """The lines `number value` of the three text files, and the folder of the archive they lie in."""
    tables: dict[str, dict[str, str]] = {}
    top = ""
    for name, data in members(path, lambda name: name.count("/") <= 1 and name.split("/")[-1] in _TABLES):
        top, _, file = name.rpartition("/")
        try:
            lines = [line.split() for line in data.decode("utf-8").splitlines() if line.strip()]
            tables[file] = {number: value for number, value in lines}
        except ValueError as error:
            raise damaged(path, f"{name}: each line should be a number and a value; {error}") from error
        if len(tables) == len(_TABLES):
            return f"{top}/" if top else "", tables
    raise damaged(path, f"it has no {', '.join(name for name in _TABLES if name not in tables)}")
