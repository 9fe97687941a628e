"""Files that are written whole or not at all, and read without ever running what is in them."""

import glob
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

UNBOUNDED = {"Infinity": inf, "-Infinity": -inf, "NaN": nan}  # numbers that JSON has no sign for
STALE = 3600.0  # seconds after which an unfinished file is taken to be abandoned


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Has errors about the contents of a file say which file it is.

    Example:
        >>> from metavib.files import naming
        >>> with naming("table.csv"):
        ...     float("twelve")
        Traceback (most recent call last):
        ValueError: table.csv: could not convert string to float: 'twelve'
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes to a temporary neighbour, flushes it to disk, and renames it over `path`.

    Whoever reads sees the old file or the new one; a full disk or a kill leaves the old one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder, "a.txt"), lambda path: path.write_text("whole"))
        ...     print(os.listdir(folder))
        ['a.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno and error.filename is None:  # a write that found the disk full does not know its file's name
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    _sweep(path)


def _sweep(path: Path) -> None:
    """Removes what killed writers of this file left behind, once it is too old to be anybody's work in progress."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()


def to_json(value: Any, **options: Any) -> str:
    """A value as JSON that every program reads: infinities and NaN, which JSON does not have, as texts.

    Args:
        value: of dictionaries, lists, texts and numbers.
        options: others of `json.dumps`.

    Example:
        >>> to_json({"log_density": float("-inf"), "shots": [1, 5]})
        '{"log_density": "-Infinity", "shots": [1, 5]}'
        >>> with_numbers({"log_density": "-Infinity", "method": "gp-vib"})
        {'log_density': -inf, 'method': 'gp-vib'}
    """
    return json.dumps(_with_texts(value), allow_nan=False, **options)


def _with_texts(value: Any) -> Any:
    """The same with infinities and NaN as texts."""
    if isinstance(value, dict):
        return {name: _with_texts(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(one) for one in value]
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def with_numbers(value: Any) -> Any:
    """What `to_json` wrote of results, with infinities and NaN as numbers again.

    Example:
        >>> with_numbers(json.loads(to_json([1.0, float("inf")])))
        [1.0, inf]
    """
    if isinstance(value, dict):
        return {name: with_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [with_numbers(one) for one in value]
    return UNBOUNDED.get(value, value) if isinstance(value, str) else value


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, whole or not at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(Path(folder, "a.json"), {"beta": 1.0})
        ...     print(read_json(Path(folder, "a.json")))
        {'beta': 1.0}
    """
    text = to_json(value, indent=2) + "\n"
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Reads JSON; an error names the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.json").write_text("[1, 2]")
        ...     print(read_json(Path(folder, "a.json")))
        [1, 2]
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}).") from error


def write_tensors(path: Path, tensors: dict[str, "Tensor"], metadata: dict[str, str]) -> None:
    """Writes tensors and strings as a safetensors file, whole or not at all.

    Example:
        >>> import tempfile
        >>> import torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_tensors(Path(folder, "a.safetensors"), {"w": torch.ones(2)}, {"step": "7"})
        ...     print(read_tensors(Path(folder, "a.safetensors")))
        ({'w': tensor([1., 1.])}, {'step': '7'})
    """
    from safetensors.torch import save  # PyTorch comes with it, which files of text do not need

    whole = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    # Not `save_file`, which has a temporary file of its own that a kill would leave behind.
    write_atomically(path, lambda temporary: temporary.write_bytes(save(whole, metadata=metadata)))


def read_tensors(path: Path) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """Reads the tensors and strings of a safetensors file; nothing is ever unpickled.

    Example:
        >>> import tempfile
        >>> import torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_tensors(Path(folder, "a.safetensors"), {"n": torch.tensor([7])}, {})
        ...     print(read_tensors(Path(folder, "a.safetensors"))[0]["n"].item())
        7
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is truncated or no safetensors file ({error}).") from error
