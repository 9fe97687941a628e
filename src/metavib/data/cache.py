"""Decodes a dataset once and keeps its pixels in a file that later runs map into memory.

One folder a dataset and variant, with a payload (safetensors: images and labels) and `manifest.json`, which
names the payload, its checksum, the class names and the source files with their sizes, times and checksums.
Both are written under another name, flushed to the disk and moved into place, the manifest last: whatever
moment a process dies at, the folder is either complete or rebuilt by the next one. A payload is named by its
checksum, so that two processes that build at once never write to the same file, and whichever manifest comes
last is whole.

A file is taken as unchanged while its size and time are those in the manifest; otherwise its checksum
decides.
"""

import contextlib
import hashlib
import json
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from metavib.data.labelled import Labelled, labelled

VERSION = 1
MANIFEST = "manifest.json"
_STALE_SECONDS = 24 * 3600  # a temporary file this old belongs to a process that died

Record = dict[str, Any]


def cache_root(root: Path | str | None = None) -> Path:
    """Where caches live: the argument, else `$METAVIB_CACHE`, else `~/.cache/metavib`.

    Example:
        >>> from metavib.data import cache_root
        >>> cache_root("scratch").name
        'scratch'
    """
    return Path(root or os.environ.get("METAVIB_CACHE") or Path.home() / ".cache" / "metavib")


def cached(
    name: str, sources: Sequence[Path], build: Callable[[], Labelled], *, root: Path | str | None = None
) -> Labelled:
    """The dataset `build` decodes, from the cache where it holds exactly what the sources give.

    A cache that is absent, out of date or damaged is rebuilt. Where the cache cannot be written, the dataset
    is decoded into memory, with a warning.

    Args:
        name: the dataset and its variant, a folder name.
        sources: the files and folders that `build` reads; a change to any of them makes the cache out of
            date.
        build: decodes the sources; its result may depend on nothing but them and `name`.
        root: where caches live; see `cache_root`.
    """
    folder = cache_folder(name, sources, root=root)
    stored = _open(folder, sources)
    if stored is not None:
        return stored
    data = build()
    try:
        _write(folder, sources, data)
    except (OSError, SafetensorError) as error:  # the latter is how safetensors reports a full disk
        warnings.warn(
            f"the cache folder {folder} cannot be written ({error}); {name} is held in memory and will be "
            "decoded again next time. Set METAVIB_CACHE to a folder you may write to.",
            stacklevel=2,
        )
        return data
    return _open(folder, sources) or data


def cache_folder(name: str, sources: Sequence[Path], *, root: Path | str | None = None) -> Path:
    """The folder of one cached dataset: its name, and a key for where its sources lie."""
    places = "\n".join(str(Path(source).resolve()) for source in sources)
    return cache_root(root) / f"{name}-{hashlib.sha256(places.encode()).hexdigest()[:12]}"


def _open(folder: Path, sources: Sequence[Path]) -> Labelled | None:
    """The stored dataset, or None where there is none that can be trusted."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        if manifest["version"] != VERSION or len(manifest["sources"]) != len(sources):
            return None
        payload = folder / Path(manifest["payload"]["name"]).name
        now = {
            **manifest,
            "payload": _record(payload, manifest["payload"]),
            "sources": [_record(s, known) for s, known in zip(sources, manifest["sources"], strict=True)],
        }
        if _checksums(now) != _checksums(manifest):
            return None
        with safe_open(payload, framework="pt") as file:
            data = labelled(file.get_tensor("images"), file.get_tensor("labels"), manifest["names"])
        if list(data.images.shape) != manifest["shape"]:
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, SafetensorError):
        return None
    if now != manifest:  # touched or copied, but the same content: note the new times, so as not to hash again
        with contextlib.suppress(OSError):
            _write_manifest(folder, now)
    return data


def _write(folder: Path, sources: Sequence[Path], data: Labelled) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with _temporary(folder) as temporary:
        save_file({"images": data.images.contiguous(), "labels": data.labels.contiguous()}, temporary)
        _flush(temporary)
        checksum = _sha256(temporary)
        payload = folder / f"{checksum[:16]}.safetensors"
        os.replace(temporary, payload)
    manifest = {
        "version": VERSION,
        "payload": _record(payload, {"sha256": checksum}),
        "shape": list(data.images.shape),
        "names": list(data.names),
        "sources": [_record(source, {}) for source in sources],
    }
    _write_manifest(folder, manifest)
    _sweep(folder, payload)


def _write_manifest(folder: Path, manifest: Record) -> None:
    with _temporary(folder) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1), "utf-8")
        _flush(temporary)
        os.replace(temporary, folder / MANIFEST)


def _record(path: Path, known: Record) -> Record:
    """Name, size, time and checksum of a file; the checksum is the known one where size and time agree.

    A folder is recorded by the names, sizes and times of the files in it: reading them all would cost as
    much as decoding them.
    """
    if path.is_dir():
        lines = sorted(f"{p.relative_to(path).as_posix()} {_stamp(p)}" for p in path.rglob("*") if p.is_file())
        return {"name": path.name, "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest()}
    size, modified = _stamp(path)
    same = known.get("size") == size and known.get("mtime_ns") == modified
    return {
        "name": path.name,
        "size": size,
        "mtime_ns": modified,
        "sha256": known["sha256"] if same else _sha256(path),
    }


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _checksums(manifest: Record) -> list[str]:
    return [record["sha256"] for record in (manifest["payload"], *manifest["sources"])]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A path in the folder that no other process has; what is written there is removed unless moved away."""
    path = folder / f".tmp-{secrets.token_hex(8)}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path, payload: Path) -> None:
    """Removes payloads no manifest names any more, and what dead processes left behind."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # someone else may be using or removing it
            left_behind = path.name.startswith(".tmp-") and time.time() - path.stat().st_mtime > _STALE_SECONDS
            if left_behind or (path.suffix == ".safetensors" and path != payload):
                path.unlink()
