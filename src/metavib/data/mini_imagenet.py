"""mini-ImageNet (Vinyals et al. 2016) as split by Ravi and Larochelle (2017): 64 / 16 / 20 classes of 600.

Pictures come out 84 x 84 in colour. A class is named by its WordNet id; classes are in the order of those
ids.
"""

import csv
import io
from pathlib import Path

import numpy as np
from PIL import Image

from metavib.data.archive import damaged, decode_image, gather
from metavib.data.cache import cached
from metavib.data.catalog import find
from metavib.data.labelled import Labelled, concatenate, labelled
from metavib.data.packed import decode_rows, read_npz

SIDE = 84
PARTS = ("train", "val", "test")


def mini_imagenet(part: str, *, root: Path | str | None = None, cache: Path | str | None = None) -> Labelled:
    """One part of mini-ImageNet, from its csv and the images (a folder or zip), or the packed npz files.

    Images of another size are resized to 84 x 84 without keeping their aspect ratio (Lanczos, as Ravi and
    Larochelle do).

    Args:
        part: "train", "val" or "test".
        root: where datasets lie.
        cache: where caches live.
    """
    if part not in PARTS:
        raise ValueError(f"mini-ImageNet has the parts {', '.join(PARTS)}; got {part!r}.")
    form, files = find("mini-imagenet", root)
    if form == "packed":
        files = tuple(file for file in files if file.name.startswith(f"mini_imagenet_{part}"))
        return cached(f"mini-imagenet-{part}", files, lambda: concatenate(*map(_packed, files)), root=cache)
    table, images = files[PARTS.index(part)], files[-1]
    return cached(f"mini-imagenet-{part}", (table, images), lambda: _published(table, images), root=cache)


def _packed(path: Path) -> Labelled:
    header, scans, offsets, labels, wnids = read_npz(path, "jpeg_header", "jpeg_scan", "offsets", "label", "wnid")
    if len(offsets) != len(labels) + 1:
        raise damaged(path, f"{len(labels)} labels for {len(offsets) - 1} images")
    return labelled(
        decode_rows(path, scans, offsets, _decode, header.tobytes()), labels.astype(np.int64), wnids.tolist()
    )


def _published(table: Path, images: Path) -> Labelled:
    rows = sorted(_read_table(table), key=lambda row: (row[1], row[0]))
    index = {wnid: c for c, wnid in enumerate(dict.fromkeys(wnid for _, wnid in rows))}
    # Known by the last part of the name alone: a zip of the images may or may not have their folder in it.
    places = {file: i for i, (file, _) in enumerate(rows)}
    pictures = gather(images, places, _decode, key=lambda name: name.rpartition("/")[2])
    return labelled(pictures, [index[wnid] for _, wnid in rows], tuple(index))


def _read_table(path: Path) -> list[tuple[str, str]]:
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


def _decode(name: str, data: bytes) -> np.ndarray:
    return decode_image(data, name=name, channels=3, size=SIDE, resample=Image.Resampling.LANCZOS)
