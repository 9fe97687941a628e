"""Reads archives and pictures that nobody vouches for.

Members are read into memory one by one and never written to disk; names that would leave the archive, links,
encrypted members and sizes beyond a cap are refused before a byte is unpacked. A damaged file raises a
`ValueError` that names it and says what to do. A folder reads like an archive of what is in it, so that a
reader takes a dataset packed or unpacked alike.

An `.npz` is a zip of `.npy` files. Each header is compared with the size of its member before anything is
allocated, and arrays of Python objects are refused: nothing is ever unpickled.
"""

import bz2
import gzip
import io
import lzma
import math
import os
import stat
import tarfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # Pillow reads many more, none of them needed, each one more risk
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
MAX_PIXELS = 50_000_000
HEADERS = 2**20  # bytes of a member's headers in a tar


class _Refused(ValueError):
    """Refused on purpose: the message is complete as it is."""


_PASSED_ON = (_Refused, FileNotFoundError, PermissionError)
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
)


class Limits(NamedTuple):
    """What an archive may ask of us: bytes of one member, number of members, bytes in all.

    Example:
        >>> from metavib.data.archive import Limits
        >>> Limits(members=10).member // 2**20
        64
    """

    member: int = 64 * 2**20
    members: int = 500_000
    total: int = 8 * 2**30


def members(path: Path, wanted: Callable[[str], bool], *, limits: Limits | None = None) -> Iterator[tuple[str, bytes]]:
    """The files in a zip, a tar (also compressed) or a folder, as pairs of name and content.

    Args:
        path: the archive, told by its name (`.zip`, `.tar`, `.tgz`, `.tar.gz`, …), or a folder.
        wanted: which names to read; names are relative with forward slashes.
        limits: caps on sizes and counts.
    """
    limits = limits or Limits()
    if path.is_dir():
        return _folder_members(path, wanted, limits)
    if path.name.lower().endswith(".zip"):
        return _zip_members(path, wanted, limits)
    if path.name.lower().endswith((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")):
        return _tar_members(path, wanted, limits)
    raise ValueError(f"{path}: expected a folder, a .zip or a .tar(.gz); rename or repack the file.")


def gather(
    path: Path,
    rows: Mapping[str, int],
    decode: Callable[[str, bytes], np.ndarray],
    *,
    key: Callable[[str], str] = str,
    limits: Limits | None = None,
) -> np.ndarray:
    """Decodes named members, in whatever order the archive has them, into the rows they belong to.

    Args:
        path: the archive or folder.
        rows: for each member's name the row it goes to: 0 to `len(rows) - 1`, each once.
        decode: turns a member's name and content into an array; all of one shape.
        key: what of a member's name `rows` knows it by.
        limits: caps on sizes and counts.
    """
    out: np.ndarray | None = None
    missing = dict(rows)
    for name, data in members(path, lambda name: key(name) in rows, limits=limits):
        picture = decode(f"{path} ({name})", data)
        if out is None:
            out = np.empty((len(rows), *picture.shape), picture.dtype)
        out[rows[key(name)]] = picture
        missing.pop(key(name), None)
    if missing or out is None:
        raise ValueError(
            f"{path}: {len(missing)} of {len(rows)} files missing, the first {next(iter(missing), '')!r}; "
            "it is incomplete: download or copy it again."
        )
    return out


def decode_image(
    data: bytes,
    *,
    name: str,
    channels: int,
    size: int | None = None,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
    keep_aspect: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """Decodes one PNG, JPEG, WebP or BMP into uint8 pixels `(channels, H, W)`.

    Args:
        data: the content of the file.
        name: what to call it in an error message.
        channels: 1 for grey, 3 for colour. Transparency is laid on white.
        size: the side of the square to resize to; None keeps the size.
        resample: Pillow's filter, which is antialiased when it shrinks.
        keep_aspect: cut the central square out before resizing, rather than squeeze the whole picture into
            it.
        max_pixels: refuse a picture with more, before it is decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = image.size
            if width * height > max_pixels:
                raise ValueError(f"{width} x {height} pixels are more than the {max_pixels} allowed")
            image = opaque(image, channels)
    except Exception as error:  # Pillow's decoders raise nearly anything on hostile bytes; all of it means one thing
        raise ValueError(
            f"{name} cannot be read as a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image ({error}); "
            "replace or remove it."
        ) from error
    return fitted(image, size=size, resample=resample, keep_aspect=keep_aspect)


def opaque(image: Image.Image, channels: int) -> Image.Image:
    """A picture of any kind in grey (1 channel) or in colour (3), with transparency laid on white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise ValueError(f"pixels of type {image.mode} have more than 8 bits; save it with 8 bits a channel")
    if "A" in image.mode or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def fitted(
    image: Image.Image,
    *,
    size: int | None,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
    keep_aspect: bool = False,
) -> np.ndarray:
    """The pixels `(channels, H, W)` of an opaque picture, resized; arguments as in `decode_image`."""
    if keep_aspect:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), resample)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_file(path: Path, *, limit: int = Limits().member) -> bytes:
    """The content of a file, refused by its size where that is above the limit."""
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"{path}: {size} bytes are more than the {limit} allowed; is it the right file?")
    return path.read_bytes()


def read_gz(path: Path, *, prefix: int | None = None, limit: int = 2**30) -> bytes:
    """The content of a .gz file, or only its first `prefix` bytes; more than `limit` bytes are refused."""
    if prefix is not None and prefix > limit:
        raise ValueError(
            f"{path}: it says it holds {prefix} bytes, more than the {limit} allowed; is it the right file?"
        )
    try:
        with gzip.open(path) as file:
            data = file.read(limit + 1 if prefix is None else prefix)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    if len(data) > limit:
        raise ValueError(f"{path}: it unpacks to more than the {limit} bytes allowed; is it the right file?")
    return data


def damaged(path: Path, error: Any) -> ValueError:
    """The error for a file that is not what its name says, or was cut short."""
    return ValueError(f"{path} is damaged or incomplete ({error}); delete it and download or copy it again.")


def _zip_members(path: Path, wanted: Callable[[str], bool], limits: Limits) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            _check_count(path, len(infos), limits)
            total = 0
            for info in infos:
                name = _safe_name(path, info.filename)
                if info.is_dir() or not wanted(name):
                    continue
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise _Refused(f"{path}: member {name!r} is a link, which is not followed.")
                if info.flag_bits & 0x1:
                    raise _Refused(f"{path}: member {name!r} is encrypted; unpack the archive to a folder first.")
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise _Refused(f"{path}: member {name!r} uses an unusual compression; repack it as a plain zip.")
                total += info.file_size
                _check_size(path, name, info.file_size, total, limits)
                data = archive.read(info)
                if len(data) != info.file_size:
                    raise EOFError(f"member {name!r} is cut short")
                yield name, data
    except _PASSED_ON:
        raise
    except _DAMAGE as error:
        raise damaged(path, error) from error


def _tar_members(path: Path, wanted: Callable[[str], bool], limits: Limits) -> Iterator[tuple[str, bytes]]:
    try:
        # A stream is read once, front to back: no seeking to offsets the archive names.
        with _unpacked(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            count = total = 0
            for info in archive:
                count += 1
                _check_count(path, count, limits)
                name = _safe_name(path, info.name)
                total += info.size
                _check_size(path, name, info.size if wanted(name) else 0, total, limits)
                file.left = info.size + HEADERS
                if info.isdir() or not wanted(name):
                    continue
                if not info.isreg():
                    raise _Refused(f"{path}: member {name!r} is a link or a device, which is not followed.")
                content = archive.extractfile(info)
                data = b"" if content is None else content.read()
                if len(data) != info.size:
                    raise EOFError(f"member {name!r} is cut short")
                yield name, data
    except _PASSED_ON:
        raise
    except _DAMAGE as error:
        raise damaged(path, error) from error


class _Metered(io.RawIOBase):
    """A stream of which only so many bytes may be read before the meter is set anew.

    `tarfile` reads long names and extended headers into memory, however large a compressed archive says they are.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file, self.left = path, file, HEADERS

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise _Refused(f"{self.path}: a member's header is more than the {HEADERS} bytes allowed.")
        return data

    def close(self) -> None:
        self.file.close()
        super().close()


def _unpacked(path: Path) -> _Metered:
    """The bytes of a tar, decompressed as its first bytes say."""
    with open(path, "rb") as file:
        magic = file.read(6)
    known = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
    opened: Callable[..., Any] = next((o for start, o in known if magic.startswith(start)), open)
    return _Metered(path, opened(path, "rb"))


def _folder_members(path: Path, wanted: Callable[[str], bool], limits: Limits) -> Iterator[tuple[str, bytes]]:
    count = total = 0
    for folder, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            full = Path(folder, file)
            name = full.relative_to(path).as_posix()
            if not wanted(name):
                continue
            size = full.stat().st_size
            count, total = count + 1, total + size
            _check_count(path, count, limits)
            _check_size(path, name, size, total, limits)
            yield name, full.read_bytes()


def _safe_name(path: Path, name: str) -> str:
    parts = PurePosixPath(name).parts
    if "\\" in name or "\0" in name or name.startswith("/") or ".." in parts or (parts and ":" in parts[0]):
        raise _Refused(
            f"{path}: member {name!r} points outside the archive; the archive is not as published: "
            "get it from its official source."
        )
    return "/".join(part for part in parts if part != ".")


def _check_count(path: Path, count: int, limits: Limits) -> None:
    if count > limits.members:
        raise _Refused(f"{path}: more than the {limits.members} members allowed; is it the right file?")


def _check_size(path: Path, name: str, size: int, total: int, limits: Limits) -> None:
    if size > limits.member:
        raise _Refused(f"{path}: member {name!r} is {size} bytes, more than the {limits.member} allowed.")
    if total > limits.total:
        raise _Refused(f"{path}: it unpacks to more than the {limits.total} bytes allowed; is it the right file?")


# Arrays in .npz files, and the pictures packed in them

NPZ_BYTES = 2 * 2**30
# NumPy reads headers with Python's own parser, which raises nearly anything on hostile text; even MemoryError.
_NPZ_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    RuntimeError,
    MemoryError,
)


def read_npz(path: Path, *keys: str, max_bytes: int = NPZ_BYTES) -> tuple[np.ndarray, ...]:
    """The named arrays of an `.npz` file, in the order named."""
    try:
        with zipfile.ZipFile(path) as archive:
            present = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            missing = [key for key in keys if key not in present]
            if missing:
                raise ValueError(f"it has no array named {', '.join(missing)}, only {', '.join(present)}")
            if sum(present[key].file_size for key in keys) > max_bytes:
                raise ValueError(f"it unpacks to more than the {max_bytes} bytes allowed")
            return tuple(_read_array(archive, present[key]) for key in keys)
    except (FileNotFoundError, PermissionError):
        raise
    except _NPZ_DAMAGE as error:
        raise damaged(path, error or type(error).__name__) from error


def decode_rows(
    path: Path,
    files: np.ndarray,
    offsets: np.ndarray,
    decode: Callable[[str, bytes], np.ndarray],
    header: bytes = b"",
) -> np.ndarray:
    """Decodes pictures laid end to end: picture i is `header + files[offsets[i]:offsets[i + 1]]`."""
    count = len(offsets) - 1
    if count < 1 or int(offsets[0]) < 0 or int(offsets[-1]) > len(files) or bool((np.diff(offsets) < 0).any()):
        raise damaged(path, "its offsets do not fit its data")
    out: np.ndarray | None = None
    for i in range(count):
        picture = decode(f"{path} (image {i})", header + files[offsets[i] : offsets[i + 1]].tobytes())
        if out is None:
            out = np.empty((count, *picture.shape), picture.dtype)
        out[i] = picture
    assert out is not None
    return out


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{info.filename} has npy version {version}, not (1, 0) or (2, 0)")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject or dtype.itemsize == 0:
            raise ValueError(f"{info.filename} holds {dtype} values, which are not read")
        size = math.prod(shape) * dtype.itemsize
        if size > info.file_size:
            raise ValueError(f"{info.filename} claims {size} bytes of values and has {info.file_size}")
        data = file.read()
    if len(data) != size:
        raise ValueError(f"{info.filename} should hold {size} bytes of values and has {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
