"""Makes small image datasets in the formats they are published in, and packed; for the tests of the readers."""

import gzip
import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REAL = Path(os.environ.get("METAVIB_DATA") or Path(__file__).parents[2] / "shared" / "data")

# The number of characters of every alphabet of Omniglot (Lake et al. 2015): background, then evaluation.
BACKGROUND = {
    "Alphabet_of_the_Magi": 20, "Anglo-Saxon_Futhorc": 29, "Arcadian": 26, "Armenian": 41, "Asomtavruli_(Georgian)": 40,
    "Balinese": 24, "Bengali": 46, "Blackfoot_(Canadian_Aboriginal_Syllabics)": 14, "Braille": 26,
    "Burmese_(Myanmar)": 34, "Cyrillic": 33, "Early_Aramaic": 22, "Futurama": 26, "Grantha": 43, "Greek": 24,
    "Gujarati": 48, "Hebrew": 22, "Inuktitut_(Canadian_Aboriginal_Syllabics)": 16, "Japanese_(hiragana)": 52,
    "Japanese_(katakana)": 47, "Korean": 40, "Latin": 26, "Malay_(Jawi_-_Arabic)": 40, "Mkhedruli_(Georgian)": 41,
    "N_Ko": 33, "Ojibwe_(Canadian_Aboriginal_Syllabics)": 14, "Sanskrit": 42, "Syriac_(Estrangelo)": 23, "Tagalog": 17,
    "Tifinagh": 55,
}  # fmt: skip
EVALUATION = {
    "Angelic": 20, "Atemayar_Qelisayer": 26, "Atlantean": 26, "Aurek-Besh": 26, "Avesta": 26, "Ge_ez": 26,
    "Glagolitic": 45, "Gurmukhi": 45, "Kannada": 41, "Keble": 26, "Malayalam": 47, "Manipuri": 40, "Mongolian": 30,
    "Old_Church_Slavonic_(Cyrillic)": 45, "Oriya": 46, "Sylheti": 28, "Syriac_(Serto)": 23, "Tengwar": 25,
    "Tibetan": 42, "ULOG": 26,
}  # fmt: skip


def needs_real(*names: str) -> pytest.MarkDecorator:
    """Skips a test where the real files are not at hand."""
    return pytest.mark.skipif(not all((REAL / n).exists() for n in names), reason=f"needs {', '.join(names)}")


def encode(pixels: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """An image file of pixels `(h, w)` or `(h, w, 3)`."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def noise(seed: int, *shape: int) -> np.ndarray:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def strokes(seed: int, side: int = 105) -> np.ndarray:
    """A drawing as bits: 1 is ink."""
    ink = np.zeros((side, side), np.uint8)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        r, c = rng.integers(10, side - 30, 2)
        ink[r : r + 20, c : c + 4] = 1
    return ink


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        place = path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return path


def truncate(path: Path, keep: float = 0.6) -> None:
    """Cuts a file short, as a broken download does."""
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])


def omniglot_rows(*parts: dict[str, int], drawers: int = 2) -> list[tuple[int, str, int, int]]:
    """Part, alphabet, character and drawer of every drawing, in order."""
    return [
        (part, name, character + 1, drawer + 1)
        for part, alphabets in enumerate(parts)
        for name, count in alphabets.items()
        for character in range(count)
        for drawer in range(drawers)
    ]


def omniglot_files(rows: list[tuple[int, str, int, int]], part: int) -> dict[str, bytes]:
    """The PNGs of one published zip: 1 bit a pixel, black on white."""
    files = {}
    for i, (p, name, character, drawer) in enumerate(rows):
        if p == part:
            top = ("images_background", "images_evaluation")[part]
            path = f"{top}/{name}/character{character:02d}/{character:04d}_{drawer:02d}.png"
            files[path] = encode(strokes(i) == 0)
    return files


def omniglot_packed(path: Path, rows: list[tuple[int, str, int, int]], **arrays: np.ndarray) -> Path:
    part, name, character, drawer = zip(*rows, strict=True)
    names = sorted(set(name))
    np.savez_compressed(
        path,
        alphabet=np.array([names.index(n) for n in name], np.uint8),
        alphabet_names=np.array(names),
        character=np.array(character, np.uint8),
        drawer=np.array(drawer, np.uint8),
        evaluation=np.array(part, np.uint8),
        **arrays,
    )
    return path


def pack_bits(drawings: list[np.ndarray]) -> dict[str, np.ndarray]:
    bits = np.stack(drawings)
    return {"packed": np.packbits(bits.reshape(len(bits), -1), axis=1), "shape": np.array(bits.shape[1:])}


def emnist_packed(path: Path, per_class: int = 2) -> np.ndarray:
    names = [chr(c) for c in (*range(48, 58), *range(65, 91), *range(97, 123))]
    images = noise(1, 62 * per_class, 28, 28)
    np.savez_compressed(
        path, images=images, label=np.repeat(np.arange(62, dtype=np.uint8), per_class), class_names=names
    )
    return images


def write_idx(path: Path, values: np.ndarray, magic: int) -> Path:
    header = struct.pack(f">{1 + values.ndim}I", magic, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes(), 1))
    return path


def join(files: list[bytes]) -> dict[str, np.ndarray]:
    """Files laid end to end, and where each begins."""
    offsets = np.cumsum([0, *map(len, files)])
    return {"files": np.frombuffer(b"".join(files), np.uint8), "offsets": offsets.astype(np.int64)}


def mini_imagenet_packed(path: Path, wnids: list[str], per_class: int = 2, side: int = 84) -> list[bytes]:
    """Baseline JPEGs that share one header; returns them whole."""
    files = [encode(noise(i, side, side, 3), "JPEG", quality=75) for i in range(len(wnids) * per_class)]
    start = files[0].index(b"\xff\xda") + 2 + struct.unpack(">H", files[0][files[0].index(b"\xff\xda") + 2 :][:2])[0]
    assert all(file[:start] == files[0][:start] for file in files)
    joined = join([file[start:] for file in files])
    np.savez(
        path,
        jpeg_header=np.frombuffer(files[0][:start], np.uint8),
        jpeg_scan=joined["files"],
        offsets=joined["offsets"],
        label=np.repeat(np.arange(len(wnids), dtype=np.uint8), per_class),
        wnid=np.array(wnids),
        number=np.arange(len(files), dtype=np.int32),
    )
    return files


def cub_names(classes: int) -> list[str]:
    return [f"{i + 1:03d}.Bird_{chr(65 + i % 26)}" for i in range(classes)]


def cub_files(classes: int, per_class: int = 2) -> dict[str, bytes]:
    """The tables and pictures of CUB as published."""
    names = cub_names(classes)
    rows = [(name, f"{name}/bird_{k}_{c}.jpg") for c, name in enumerate(names) for k in range(per_class)]
    files = {
        "classes.txt": "".join(f"{c + 1} {name}\n" for c, name in enumerate(names)).encode(),
        "images.txt": "".join(f"{i + 1} {file}\n" for i, (_, file) in enumerate(rows)).encode(),
        "image_class_labels.txt": "".join(f"{i + 1} {names.index(n) + 1}\n" for i, (n, _) in enumerate(rows)).encode(),
    }
    for i, (_, file) in enumerate(rows):
        files[f"images/{file}"] = encode(np.full((30, 40, 3), i * 3 % 256, np.uint8), "JPEG")
    return {f"CUB_200_2011/{name}": data for name, data in files.items()}


def cub_packed(root: Path, classes: int) -> None:
    names = cub_names(classes)
    for part, picks in (("base", (0, 2)), ("val", (1,)), ("novel", (3,))):
        chosen = [name for i, name in enumerate(names) if i % 4 in picks]
        files = [encode(np.full((8, 8, 3), int(name[:3]), np.uint8), "WEBP", lossless=True) for name in chosen]
        np.savez(
            root / f"cub_{part}.npz",
            label=np.arange(len(files), dtype=np.uint8),
            class_names=np.array(chosen),
            **join(files),
        )
