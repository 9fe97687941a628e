"""Arrays from `.npz` files, and the pictures packed in them.

An `.npz` is a zip of `.npy` files. Each header is compared with the size of its member before anything is
allocated, and arrays of Python objects are refused: nothing is ever unpickled.
"""

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from metavib.data.archive import damaged

MAX_BYTES = 2 * 2**30
# NumPy reads headers with Python's own parser, which raises nearly anything on hostile text; even MemoryError.
_DAMAGE = (
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


def read_npz(path: Path, *keys: str, max_bytes: int = MAX_BYTES) -> tuple[np.ndarray, ...]:
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
    except _DAMAGE as error:
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
