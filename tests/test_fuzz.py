"""Whatever bytes a file holds, its reader gives a right answer or an error that names the file, and nothing else.

No traceback of the library's inside, no code run from a file, no memory beyond what the file deserves.
"""

import gzip
import io
import json
import os
import pickle
import resource
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import data_files
import tiny
from metavib.adapt.learner import Learner
from metavib.data import archive, characters
from metavib.data.archive import read_npz
from metavib.data.cache import MANIFEST, cached
from metavib.data.labelled import Labelled
from metavib.data.schema import Rows, read_rows
from metavib.files import naming, read_json, write_json
from metavib.training import build, checkpoint, config, run_folder
from metavib.training.fields import to_dict
from metavib.training.step import adam

RUN = tiny.sinusoid(train__validate_every=0, model__bias=True)
FILES = {"a/b.txt": b"hello " * 30, "c.bin": data_files.noise(0, 300).tobytes()}


class Reader(NamedTuple):
    """A reader of foreign bytes.

    Args:
        file: what the file is called.
        make: writes a valid one.
        read: reads it.
        sound: whether an answer is one the library could stand by, from damaged bytes or not.
    """

    file: str
    make: Callable[[Path], object]
    read: Callable[[Path], Any]
    sound: Callable[[Any], bool]


@cache
def learner() -> Learner:
    return Learner(build.model(RUN))


def save_checkpoint(path: Path) -> None:
    model = build.model(RUN)
    optimiser, streams = training(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimiser.step()
    checkpoint.save(path, RUN, 3, -1.5, model, optimiser, streams)


def training(model):
    return adam(model, RUN), {"tasks": torch.Generator(), "noise": torch.Generator()}


def resume(path: Path) -> Any:
    """All that training reads of a checkpoint, as it does, and a step from there."""
    saved = checkpoint.load(path)
    with naming(path):
        model = checkpoint.restore_model(saved)
        optimiser, streams = training(model)
        checkpoint.restore_training(saved, optimiser, streams)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimiser.step()
    return model


def read_state(path: Path) -> Any:
    return learner().load(path).predict([[0.3]])


def save_state(path: Path) -> None:
    learner().adapt(([[0.1], [0.7]], [1.0, -1.0])).save(path, run=Path("somewhere"))


def picture(kind: str) -> Callable[[Path], object]:
    pixels = data_files.noise(3, 9, 7, 3)
    return lambda path: path.write_bytes(data_files.encode(pixels, kind))


def see(path: Path) -> np.ndarray:
    return archive.decode_image(path.read_bytes(), name=str(path), channels=3, size=6, keep_aspect=True)


def idx(which: int) -> tuple[Callable[[Path], object], Callable[[Path], Any]]:
    """EMNIST's images (0) or labels (1), the other one whole."""
    images, labels = data_files.noise(4, 62, 28, 28), np.arange(62, dtype=np.uint8)
    values, magics = (images, labels), (2051, 2049)

    def make(path: Path) -> None:
        for i in (0, 1):
            place = path if i == which else path.with_name("other.gz")
            data_files.write_idx(place, values[i], magics[i])

    def read(path: Path) -> Any:
        pair = (path, path.with_name("other.gz"))
        return characters._idx(*(pair if which == 0 else pair[::-1]))

    return make, read


def remembered(path: Path) -> Labelled:
    """Through the cache, whose manifest was tampered with: the dataset, come what may."""
    source = path.with_name("source")
    source.write_bytes(b"1")
    folder = next((p.parent for p in path.parent.rglob(MANIFEST)), None)
    if path.exists() and folder is not None:
        (folder / MANIFEST).write_bytes(path.read_bytes())
    found = cached("tiny", (source,), lambda: tiny.images("c", 2, 3), root=path.with_name("cache"))
    if not path.exists():
        path.write_bytes(next(path.parent.rglob(MANIFEST)).read_bytes())
    return found


def all_members(path: Path) -> dict[str, bytes]:
    return dict(archive.members(path, lambda name: True))


def in_memory(found: dict[str, bytes]) -> bool:
    return all(isinstance(data, bytes) and ".." not in name and name[:1] != "/" for name, data in found.items())


def toml(path: Path) -> None:
    lines = [f"{k} = {json.dumps(v)}" for k, v in to_dict(RUN).items() if not isinstance(v, dict)]
    for section in ("train", "model"):
        values = {k: v for k, v in to_dict(RUN)[section].items() if v is not None}
        lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    path.write_text("\n".join(lines) + "\n")


def is_array(*shape: int) -> Callable[[Any], bool]:
    return lambda found: found.shape == shape and found.dtype == np.uint8


CSV = "city,hour,demand\n" + "".join(f"Bern,{i}.5,{100 + i}\nBasel,,{i}e2\n" for i in range(6))
METRICS = '{"step": 1, "seconds": 0.5, "value": -1.0}\n{"step": 2, "seconds": 0.9, "value": null}\n'

READERS = {
    "checkpoint": Reader("last.safetensors", save_checkpoint, resume, lambda m: set(m.state_dict()) != set()),
    "run": Reader(
        "last.safetensors",
        save_checkpoint,
        lambda p: Learner.from_run(p.parent),
        lambda found: len(found.fingerprint) == 64,
    ),
    "state": Reader("task.safetensors", save_state, read_state, lambda p: bool((p.variance > 0).all())),
    "csv": Reader(
        "t.csv",
        lambda p: p.write_text(CSV),
        lambda p: read_rows(p, target="demand", task="city"),
        lambda c: isinstance(c, Rows) and bool(np.isfinite(c.y).all()) and not np.isinf(c.x).any(),
    ),
    "zip": Reader("a.zip", lambda p: data_files.write_zip(p, FILES), all_members, in_memory),
    "tar": Reader("a.tar", lambda p: data_files.write_tar(p, FILES, "w"), all_members, in_memory),
    "tar.gz": Reader("a.tar.gz", lambda p: data_files.write_tar(p, FILES, "w:gz"), all_members, in_memory),
    "tar.bz2": Reader("a.tar.bz2", lambda p: data_files.write_tar(p, FILES, "w:bz2"), all_members, in_memory),
    "tar.xz": Reader("a.tar.xz", lambda p: data_files.write_tar(p, FILES, "w:xz"), all_members, in_memory),
    "npz": Reader(
        "a.npz",
        lambda p: np.savez_compressed(p, a=np.arange(40).reshape(5, 8), b=np.array(["x", "yz"])),
        lambda p: read_npz(p, "a", "b"),
        lambda found: all(not array.dtype.hasobject and array.size < 2000 for array in found),
    ),
    "idx images": Reader("i.gz", *idx(0), lambda found: len(found[0]) == len(found[1]) <= 62),
    "idx labels": Reader("l.gz", *idx(1), lambda found: len(found[0]) == len(found[1]) <= 62),
    "gz": Reader(
        "x.gz",
        lambda p: p.write_bytes(gzip.compress(b"abc" * 99)),
        lambda p: archive.read_gz(p, limit=1000),
        lambda found: len(found) <= 1000,
    ),
    **{kind: Reader(f"p.{kind.lower()}", picture(kind), see, is_array(3, 6, 6)) for kind in archive.FORMATS},
    "json config": Reader("c.json", lambda p: write_json(p, to_dict(RUN)), config.read, lambda c: c.repeats > 0),
    "toml config": Reader("c.toml", toml, config.read, lambda c: c.repeats > 0),
    "json": Reader("e.json", lambda p: p.write_text('{"rows": [1, 2, {"a": null}]}'), read_json, lambda found: True),
    "metrics": Reader(
        "metrics.jsonl",
        lambda p: p.write_text(METRICS),
        lambda p: run_folder.drop_metrics_after(p.parent, 1),
        lambda seconds: isinstance(seconds, int | float),
    ),
    "manifest": Reader("m.json", remembered, remembered, lambda found: found.images.shape == (6, 1, 16, 16)),
}


@cache
def valid(name: str) -> tuple[bytes, ...]:
    """A valid file of a reader; its bytes, and those of others whose beginnings may be spliced onto it."""
    made = []
    for other in (name, *(o for o in READERS if o != name)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, READERS[other].file)
            READERS[other].make(path)
            made.append(path.read_bytes())
    return tuple(made)


def refusal(read: Callable[[Path], Any], path: Path) -> tuple[Any, Exception | None]:
    """What a reader gives, or how it refuses; any other exception goes through and fails the test."""
    try:
        return read(path), None
    except (ValueError, OSError) as error:  # FileNotFoundError is one of the latter
        assert path.name in str(error) or path.parent.name in str(error), f"{error!r} does not name {path}"
        return None, error


@pytest.fixture(params=READERS)
def reader(request, tmp_path):
    path = tmp_path / READERS[request.param].file
    READERS[request.param].make(path)
    return request.param, READERS[request.param], path


def test_a_valid_file_is_read(reader):
    _, (_, _, read, sound), path = reader
    assert sound(read(path))


HOSTILE = st.one_of(
    st.binary(max_size=64).map(lambda b: lambda whole, others: b),
    st.floats(0, 1).map(lambda share: lambda whole, others: whole[: int(share * len(whole))]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1, max_size=6).map(
        lambda flips: lambda whole, others: flipped(whole, flips)
    ),
    st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=12), st.booleans()).map(
        lambda edit: lambda whole, others: spliced(whole, *edit)
    ),
    st.tuples(st.integers(0, 99), st.floats(0, 1), st.floats(0, 1)).map(
        lambda cut: lambda whole, others: grafted(whole, others[cut[0] % len(others)], *cut[1:])
    ),
)


def flipped(whole: bytes, flips: list[tuple[float, int]]) -> bytes:
    data = bytearray(whole)
    for share, bit in flips:
        data[min(int(share * len(data)), len(data) - 1)] ^= 1 << bit
    return bytes(data)


def spliced(whole: bytes, share: float, piece: bytes, replace: bool) -> bytes:
    at = int(share * len(whole))
    return whole[:at] + piece + whole[at + len(piece) * replace :]


def grafted(whole: bytes, head: bytes, share: float, rest: float) -> bytes:
    """The beginning of another file on the rest of this one."""
    return head[: int(share * len(head))] + whole[int(rest * len(whole)) :]


@settings(max_examples=40)
@given(damage=HOSTILE)
def test_damaged_files_are_refused_by_name_or_read_soundly(reader, damage):
    """Random bytes, truncations, flipped bits, inserted and replaced bytes, other formats' headers."""
    name, (_, make, read, sound), path = reader
    whole, *others = valid(name)
    path.write_bytes(damage(whole, others))
    found, error = refusal(read, path)
    assert error is not None or sound(found)
    path.write_bytes(whole)
    make(path)


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 4096, b"\xff" * 100, b"[" * 100_000, b'{"a":' * 50_000,
                                     b"1" + b"0" * 5000, b'{"train": {"lr": 1' + b"0" * 400 + b"}}\n", b"\xef\xbb\xbf",
                                     b"a,b\n" * 50_000, b'"' + b"a" * 300_000])  # fmt: skip
def test_odd_contents_are_refused_by_name_or_read_soundly(reader, content):
    _, (_, _, read, sound), path = reader
    path.write_bytes(content)
    found, error = refusal(read, path)
    assert error is not None or sound(found)


def test_a_missing_file_or_a_folder_in_its_place_is_an_error_that_names_it(reader):
    name, (_, _, read, _), path = reader
    path.unlink()
    if name in ("metrics", "manifest"):  # a run starts anew, a cache is built again
        read(path)
    else:
        with pytest.raises((OSError, ValueError), match=path.name):
            read(path)
    path.unlink(missing_ok=True)
    path.mkdir()
    if read is all_members:
        assert read(path) == {}  # a folder reads like an archive of what is in it
    else:
        with pytest.raises((OSError, ValueError), match=path.name):
            read(path)


# No code


class Bomb:
    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def pickled(trace: Path) -> dict[str, bytes]:
    """Pickles that make a folder when loaded: bare, as torch saves, as NumPy saves, and in an npz."""
    made = {f"protocol {p}": pickle.dumps(Bomb(str(trace)), p) for p in (0, 2, 5)}
    for name, save in {
        "torch": lambda out: torch.save({"w": Bomb(str(trace))}, out),
        "npy": lambda out: np.save(out, np.array([Bomb(str(trace))]), allow_pickle=True),
        "npz": lambda out: np.savez(out, a=np.array([Bomb(str(trace))]), b=np.zeros(1)),
    }.items():
        out = io.BytesIO()
        save(out)
        made[name] = out.getvalue()
    return made


def test_no_reader_runs_a_pickle(reader, tmp_path):
    _, (_, _, read, sound), path = reader
    trace = tmp_path / "exploded"
    for content in pickled(trace).values():
        path.write_bytes(content)
        found, error = refusal(read, path)
        assert error is not None or sound(found)
        assert not trace.exists()
    with pytest.raises(FileExistsError):  # the bombs are live
        os.mkdir(trace)
        pickle.loads(pickle.dumps(Bomb(str(trace))))


# Bounded memory


def safetensors(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def greedy_checkpoint(path: Path, change: dict[str, Any]) -> None:
    """A checkpoint whose config asks for a model of terabytes, with the tensors of a small one."""
    save_checkpoint(path)
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    values = json.loads(header["__metadata__"]["config"])
    for key, value in change.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    header["__metadata__"]["config"] = json.dumps(values)
    path.write_bytes(safetensors(header, raw[8 + size :]))


def npy(header: str, data: bytes = b"\0" * 8) -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def greedy_npz(path: Path, header: str) -> None:
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("a.npy", npy(header))
        out.writestr("b.npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"))


def greedy_tar(path: Path, kind: bytes, begin: bytes = b"", headers: dict[str, str] | None = None) -> None:
    """A small compressed tar with a header, or a sparse map, of many megabytes."""
    with gzip.open(path, "wb", compresslevel=1) as out:
        info = tarfile.TarInfo("x")
        info.type, info.size = kind, 96 * 2**20
        if headers:
            info.pax_headers = headers
        out.write(info.tobuf(tarfile.PAX_FORMAT if headers else tarfile.GNU_FORMAT))
        out.write(begin.ljust(2**20, b"1"))
        for _ in range(95):
            out.write(b"1" * 2**20)
        out.write(b"\0" * 1024)


def lying_zip(path: Path, size: int) -> None:
    """A zip whose directory declares a member of another size than it has."""
    data_files.write_zip(path, {"a.txt": b"x" * 100})
    raw = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = raw.index(mark) + offset
        raw[at : at + 4] = struct.pack("<I", size)
    path.write_bytes(raw)


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), *chunks)
    parts += ((b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def bmp(width: int, height: int) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9", "GNU.sparse.name": "x"}
FLOAT = {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}
SHAPE = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}"
GREEDY: dict[str, tuple[str, Callable[[Path], object]]] = {
    "header of 4 EiB": ("state", lambda p: p.write_bytes(safetensors(b"{}", length=2**62))),
    "header of 90 MB": ("state", lambda p: p.write_bytes(safetensors(b"{}", length=90_000_000))),
    "tensor of 4 TB": ("checkpoint", lambda p: p.write_bytes(safetensors({"model/w": FLOAT}, b"\0" * 64))),
    "model of 4 TB": ("checkpoint", lambda p: greedy_checkpoint(p, {"model.widths": [10**6, 10**6]})),
    "inputs by the billion": ("run", lambda p: greedy_checkpoint(p, {"tasks.inputs": 10**11})),
    "sizes beyond integers": ("run", lambda p: greedy_checkpoint(p, {"model.widths": [10**18, 10**18]})),
    "npz of 8 TB": ("npz", lambda p: greedy_npz(p, SHAPE.format("<f8", (10**12,)))),
    "npz of one huge string": ("npz", lambda p: greedy_npz(p, SHAPE.format("<U500000000", (1,)))),
    "zip member of 4 GB": ("zip", lambda p: lying_zip(p, 2**32 - 2)),
    "zip member of 60 MB": ("zip", lambda p: lying_zip(p, 60 * 2**20)),
    "tar with a long name": ("tar.gz", lambda p: greedy_tar(p, tarfile.GNUTYPE_LONGNAME)),
    "tar with a large pax header": ("tar.gz", lambda p: greedy_tar(p, tarfile.XHDTYPE)),
    "tar with a large sparse map": ("tar.gz", lambda p: greedy_tar(p, tarfile.REGTYPE, b"999999\n", SPARSE)),
    "gz of 96 MB": ("gz", lambda p: p.write_bytes(gzip.compress(b"\0" * (96 * 2**20), 1))),
    "png of 4e18 pixels": ("PNG", lambda p: p.write_bytes(png(2**31 - 1, 2**31 - 1))),
    "png of 100 megapixels": ("PNG", lambda p: p.write_bytes(png(10_000, 10_000))),
    "png with a text of 96 MB": (
        "PNG",
        lambda p: p.write_bytes(png(4, 4, (b"zTXt", b"k\0\0" + zlib.compress(b"\0" * (96 * 2**20), 1)))),
    ),
    "bmp of 4e18 pixels": ("BMP", lambda p: p.write_bytes(bmp(2**31 - 1, 2**31 - 1))),
    "json of many brackets": ("json config", lambda p: p.write_bytes(b"[" * 10**6)),
}
ROOM = 64 * 2**20


def chain(error: BaseException | None) -> list[str]:
    return [] if error is None else [repr(error), *chain(error.__cause__ or error.__context__)]


@pytest.mark.parametrize("case", GREEDY)
def test_sizes_a_file_declares_cost_no_memory(case, tmp_path):
    """In a child that may take 64 MiB more than it has: refused for what it declares, not for want of memory."""
    name, make = GREEDY[case]
    path = tmp_path / READERS[name].file
    make(path)
    READERS["PNG"].make(tmp_path / "warm.png")
    see(tmp_path / "warm.png")  # decoders are loaded before the limit is set
    learner()
    before, after = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
            _, error = refusal(READERS[name].read, path)
            said = "; ".join(chain(error)) or "read"
        except BaseException as error:
            said = f"raised {error!r}"
        os.write(after, said.encode()[:4000])
        os._exit(0)
    os.close(after)
    with open(before, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    assert said and not said.startswith(("raised", "read", "nothing")), said
    assert "MemoryError" not in said and "alloc" not in said.lower() and "not enough memory" not in said.lower(), said


@pytest.mark.parametrize("dtype", ["F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "C64", "U16", "F4"])
def test_a_tensor_of_another_type_is_cast_or_refused(tmp_path, dtype):
    """Floats of any precision are weights; whole numbers, truth values and complex ones are not."""
    path = tmp_path / run_folder.LAST
    save_checkpoint(path)
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    name = next(k for k in header if k.startswith("model/") and k.endswith("weight"))
    shape, bits = header[name]["shape"], {"64": 64, "16": 16, "U8": 8, "OOL": 8, "4M3": 8, "5M2": 8, "F4": 4}
    width = next(v for k, v in bits.items() if dtype.endswith(k))
    header[name] |= {"dtype": dtype, "data_offsets": [len(data), len(data) + int(np.prod(shape)) * width // 8]}
    # Every byte must belong to a tensor: the old one's place goes to another name, which is not looked at.
    at, end = json.loads(raw[8 : 8 + size])[name]["data_offsets"]
    header["streams/old"] = {"dtype": "U8", "shape": [end - at], "data_offsets": [at, end]}
    path.write_bytes(safetensors(header, data + b"\0" * (int(np.prod(shape)) * width // 8)))
    found, error = refusal(lambda p: Learner.from_run(p.parent), path)
    if dtype.startswith(("F", "BF")) and dtype != "F4":
        assert error is None and found.trained.dtype == torch.float32
    else:
        assert error is not None and (f"has {name.removeprefix('model/')} of type" in str(error) or dtype == "F4")
