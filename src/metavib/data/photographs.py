"""Photographs in colour: mini-ImageNet and CUB.

**mini-ImageNet** (Vinyals et al. 2016) as split by Ravi and Larochelle (2017): 64 / 16 / 20 classes of 600 pictures,
84 x 84. A class is named by its WordNet id; classes are in the order of those ids.

**CUB-200-2011** (Wah et al. 2011), 200 species of birds, with the split of Chen et al. (2019): 100 / 50 / 50. Over the
sorted classes, i = 0, 1, …: base where i is even, validation where i % 4 == 1, novel where i % 4 == 3. Base pictures
come out 256 x 256, for random crops to start from; the others 96 x 96, whose central 84 x 84 is the crop that
evaluation uses. All are resized without keeping their aspect ratio, as Chen et al. do.
"""

import csv
import io
from pathlib import Path

import numpy as np
from PIL import Image

from metavib.data.archive import damaged, decode_image, decode_rows, gather, members, read_npz
from metavib.data.cache import cached
from metavib.data.catalog import find
from metavib.data.labelled import Labelled, concatenate, labelled

# mini-ImageNet

MINI_IMAGENET_SIDE = 84
MINI_IMAGENET_PARTS = ("train", "val", "test")
# By WordNet id, as listed in the train.csv, val.csv and test.csv published with their code.
MINI_IMAGENET_CLASSES: dict[str, tuple[str, ...]] = {
    part: tuple(ids.split())
    for part, ids in {
        "train": """
            n01532829 n01558993 n01704323 n01749939 n01770081 n01843383 n01910747 n02074367 n02089867 n02091831
            n02101006 n02105505 n02108089 n02108551 n02108915 n02111277 n02113712 n02120079 n02165456 n02457408
            n02606052 n02687172 n02747177 n02795169 n02823428 n02966193 n03017168 n03047690 n03062245 n03207743
            n03220513 n03337140 n03347037 n03400231 n03476684 n03527444 n03676483 n03838899 n03854065 n03888605
            n03908618 n03924679 n03998194 n04067472 n04243546 n04251144 n04258138 n04275548 n04296562 n04389033
            n04435653 n04443257 n04509417 n04515003 n04596742 n04604644 n04612504 n06794110 n07584110 n07697537
            n07747607 n09246464 n13054560 n13133613
        """,
        "val": """
            n01855672 n02091244 n02114548 n02138441 n02174001 n02950826 n02971356 n02981792 n03075370 n03417042
            n03535780 n03584254 n03770439 n03773504 n03980874 n09256479
        """,
        "test": """
            n01930112 n01981276 n02099601 n02110063 n02110341 n02116738 n02129165 n02219486 n02443484 n02871525
            n03127925 n03146219 n03272010 n03544143 n03775546 n04146614 n04149813 n04418357 n04522168 n07613480
        """,
    }.items()
}


def mini_imagenet(part: str, *, root: Path | str | None = None, cache: Path | str | None = None) -> Labelled:
    """One part of mini-ImageNet, from its csv and the images (a folder or zip), or the packed npz files.

    Images of another size are resized to 84 x 84 without keeping their aspect ratio (Lanczos, as Ravi and
    Larochelle do).

    Args:
        part: "train", "val" or "test".
        root: where datasets lie.
        cache: where caches live.
    """
    if part not in MINI_IMAGENET_PARTS:
        raise ValueError(f"mini-ImageNet has the parts {', '.join(MINI_IMAGENET_PARTS)}; got {part!r}.")
    form, files = find("mini-imagenet", root)
    if form == "packed":
        files = tuple(file for file in files if file.name.startswith(f"mini_imagenet_{part}"))
        return cached(f"mini-imagenet-{part}", files, lambda: concatenate(*map(_mini_packed, files)), root=cache)
    table, images = files[MINI_IMAGENET_PARTS.index(part)], files[-1]
    return cached(f"mini-imagenet-{part}", (table, images), lambda: _mini_published(table, images), root=cache)


def _mini_packed(path: Path) -> Labelled:
    header, scans, offsets, labels, wnids = read_npz(path, "jpeg_header", "jpeg_scan", "offsets", "label", "wnid")
    if len(offsets) != len(labels) + 1:
        raise damaged(path, f"{len(labels)} labels for {len(offsets) - 1} images")
    return labelled(
        decode_rows(path, scans, offsets, _decode_mini, header.tobytes()), labels.astype(np.int64), wnids.tolist()
    )


def _mini_published(table: Path, images: Path) -> Labelled:
    rows = sorted(_read_mini_table(table), key=lambda row: (row[1], row[0]))
    index = {wnid: c for c, wnid in enumerate(dict.fromkeys(wnid for _, wnid in rows))}
    # Known by the last part of the name alone: a zip of the images may or may not have their folder in it.
    places = {file: i for i, (file, _) in enumerate(rows)}
    pictures = gather(images, places, _decode_mini, key=lambda name: name.rpartition("/")[2])
    return labelled(pictures, [index[wnid] for _, wnid in rows], tuple(index))


def _read_mini_table(path: Path) -> list[tuple[str, str]]:
    """The pairs of file name and class in a csv with the header `filename,label`."""
    try:
        reader = csv.reader(io.StringIO(path.read_text("utf-8-sig")), strict=True)
        header = [cell.strip() for cell in next(reader, [])]
        rows = [tuple(row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, error) from error
    if header != ["filename", "label"]:
        raise ValueError(f"{path}: expected a csv whose first line is filename,label; it is {','.join(header)[:80]!r}.")
    odd = next((i for i, row in enumerate(rows) if len(row) != 2), None)
    if odd is not None or not rows:
        raise damaged(path, "it has no rows" if odd is None else f"line {odd + 2} does not have two columns")
    if len({file for file, _ in rows}) != len(rows):
        raise damaged(path, "a file name is in it twice")
    return rows  # type: ignore[return-value]


def _decode_mini(name: str, data: bytes) -> np.ndarray:
    return decode_image(data, name=name, channels=3, size=MINI_IMAGENET_SIDE, resample=Image.Resampling.LANCZOS)


# CUB

CUB_SIDES = {"base": 256, "val": 96, "novel": 96}
CUB_PARTS = tuple(CUB_SIDES)

_CUB_TABLES = ("images.txt", "classes.txt", "image_class_labels.txt")


def cub(part: str, *, root: Path | str | None = None, cache: Path | str | None = None) -> Labelled:
    """One part of CUB, from the published tgz, its folder, or the packed npz files.

    Args:
        part: "base", "val" or "novel".
        root: where datasets lie.
        cache: where caches live.
    """
    if part not in CUB_PARTS:
        raise ValueError(f"CUB has the parts {', '.join(CUB_PARTS)}; got {part!r}.")
    form, files = find("cub", root)
    if form == "packed":
        file = files[CUB_PARTS.index(part)]
        return cached(f"cub-{part}", (file,), lambda: _cub_packed(file, CUB_SIDES[part]), root=cache)
    return cached(f"cub-{part}", files, lambda: _cub_published(files[0], part), root=cache)


def cub_part(index: int) -> str:
    """The part that the class of this index, among the sorted classes, belongs to."""
    return ("base", "val", "base", "novel")[index % 4]


def _cub_packed(path: Path, side: int) -> Labelled:
    pictures, offsets, labels, names = read_npz(path, "files", "offsets", "label", "class_names")
    if len(offsets) != len(labels) + 1:
        raise damaged(path, f"{len(labels)} labels for {len(offsets) - 1} images")

    def decode(name: str, data: bytes) -> np.ndarray:
        return decode_image(data, name=name, channels=3, size=side)

    return labelled(decode_rows(path, pictures, offsets, decode), labels.astype(np.int64), names.tolist())


def _cub_published(path: Path, part: str) -> Labelled:
    top, tables = _read_cub_tables(path)
    images, classes, labels = (tables[name] for name in _CUB_TABLES)
    if images.keys() != labels.keys() or not set(labels.values()) <= classes.keys():
        raise damaged(path, f"{_CUB_TABLES[0]}, {_CUB_TABLES[1]} and {_CUB_TABLES[2]} do not fit each other")
    names = [name for i, name in enumerate(sorted(classes.values())) if cub_part(i) == part]
    rows = sorted((classes[labels[key]], file) for key, file in images.items() if classes[labels[key]] in names)

    def decode(name: str, data: bytes) -> np.ndarray:
        return decode_image(data, name=name, channels=3, size=CUB_SIDES[part])

    pictures = gather(path, {f"{top}images/{file}": i for i, (_, file) in enumerate(rows)}, decode)
    return labelled(pictures, [names.index(name) for name, _ in rows], names)


def _read_cub_tables(path: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """The lines `number value` of the three text files, and the folder of the archive they lie in."""
    tables: dict[str, dict[str, str]] = {}
    top = ""
    for name, data in members(path, lambda name: name.count("/") <= 1 and name.split("/")[-1] in _CUB_TABLES):
        top, _, file = name.rpartition("/")
        try:
            lines = [line.split() for line in data.decode("utf-8").splitlines() if line.strip()]
            tables[file] = {number: value for number, value in lines}
        except ValueError as error:
            raise damaged(path, f"{name}: each line should be a number and a value; {error}") from error
        if len(tables) == len(_CUB_TABLES):
            return f"{top}/" if top else "", tables
    raise damaged(path, f"it has no {', '.join(name for name in _CUB_TABLES if name not in tables)}")
