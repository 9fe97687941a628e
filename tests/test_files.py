"""Files written whole or not at all, and read without trust."""

import errno
import json
import os
import pickle
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metavib import files
from metavib.files import read_json, read_tensors, to_json, with_numbers, write_atomically, write_json, write_tensors
from metavib.training import run_folder


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@contextmanager
def small_disk(size: int):
    """No file may grow beyond `size` bytes: the kernel refuses the rest of a write, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def full_disk(path: Path) -> None:
    path.write_text("half of i")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("bug")])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_first_write_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a.txt", full_disk)
    assert names(tmp_path) == []


def test_a_disk_that_fills_up_under_a_checkpoint_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": torch.ones(3)}, {"step": "1"})
    with small_disk(4096), pytest.raises(OSError, match=r"a\.safetensors could not be written|too large"):
        write_tensors(path, {"w": torch.zeros(10_000)}, {"step": "2"})
    tensors, metadata = read_tensors(path)
    assert torch.equal(tensors["w"], torch.ones(3)) and metadata == {"step": "1"}
    assert names(tmp_path) == ["a.safetensors"]


def test_a_disk_that_fills_up_under_json_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"old": 1})
    with small_disk(1000), pytest.raises(OSError, match="too large"):
        write_json(tmp_path / "a.json", {"new": "x" * 5000})
    assert read_json(tmp_path / "a.json") == {"old": 1} and names(tmp_path) == ["a.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_os_error(tmp_path):
    (tmp_path / "a.json").write_text("1")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            write_json(tmp_path / "a.json", 2)
        assert read_json(tmp_path / "a.json") == 1 and names(tmp_path) == ["a.json"]
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        write_json(tmp_path / "file" / "a.json", 1)
    assert names(tmp_path) == ["file"]


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path):
    (tmp_path / "a.json").mkdir()  # a folder in the file's place
    with pytest.raises(OSError, match=r"a\.json"):
        write_json(tmp_path / "a.json", 1)
    assert names(tmp_path) == ["a.json"]


def test_contents_reach_the_disk_before_the_name(tmp_path, monkeypatch):
    """fsync of the finished temporary file, then the rename: a power cut never leaves an empty file under the name."""
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (events.append(os.fstat(fd).st_size), fsync(fd)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    write_atomically(tmp_path / "a.txt", lambda p: p.write_text("12345"))
    assert events == [5, "rename"]


def test_folders_are_made_and_the_file_is_readable_by_all(tmp_path):
    write_json(tmp_path / "a" / "b" / "c.json", {"x": [1, 2]})
    assert (tmp_path / "a" / "b" / "c.json").stat().st_mode & 0o777 == 0o644
    assert json.loads((tmp_path / "a" / "b" / "c.json").read_text()) == {"x": [1, 2]}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"{'a': 1}", b'{"a": 1} x'])
def test_damaged_json_is_refused_by_name(tmp_path, content):
    (tmp_path / "metrics.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.json is damaged"):
        read_json(tmp_path / "metrics.json")


def test_missing_files_are_missing(tmp_path):
    for read in (read_json, read_tensors):
        with pytest.raises(FileNotFoundError, match="nothing"):
            read(tmp_path / "nothing")


def sample(path: Path) -> bytes:
    write_tensors(path, {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(4)}, {"format": "x"})
    return path.read_bytes()


def test_tensors_come_back_with_dtype_shape_and_metadata(tmp_path):
    view = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T  # neither contiguous nor float32
    write_tensors(tmp_path / "a", {"v": view, "s": torch.tensor(3), "e": torch.empty(0, 2)}, {"k": "ü"})
    tensors, metadata = read_tensors(tmp_path / "a")
    assert metadata == {"k": "ü"} and tensors["v"].dtype == torch.float64
    assert torch.equal(tensors["v"], view) and tensors["s"].item() == 3 and tensors["e"].shape == (0, 2)


def test_every_truncation_is_refused(tmp_path):
    """Wherever a copy broke off, the file is refused and named."""
    whole = sample(tmp_path / "a.safetensors")
    for length in range(len(whole)):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.safetensors is truncated or no safetensors file"):
            read_tensors(tmp_path / "cut.safetensors")


@given(content=st.binary(max_size=200))
def test_foreign_bytes_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("foreign") / "f.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"f\.safetensors"):
        read_tensors(path)


class Bomb:
    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def test_a_pickle_under_our_name_is_refused_and_never_run(tmp_path):
    trace = tmp_path / "exploded"
    for name, content in {"p": pickle.dumps(Bomb(str(trace))), "h": b"\x80\x02" + b"\x00" * 64}.items():
        (tmp_path / f"{name}.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="no safetensors file"):
            read_tensors(tmp_path / f"{name}.safetensors")
    torch.save({"w": Bomb(str(trace))}, tmp_path / "t.safetensors")
    with pytest.raises(ValueError, match="no safetensors file"):
        read_tensors(tmp_path / "t.safetensors")
    assert not trace.exists()


def test_nothing_in_the_package_can_unpickle():
    """No import of pickle, no torch.load, no numpy.load that allows it, anywhere in the package."""
    package = Path(files.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text and "torch.load(" not in text and "allow_pickle=True" not in text, path


def test_what_a_killed_writer_left_is_swept_once_it_is_old(tmp_path) -> None:
    """A fresh temporary may be another process at work; one of yesterday is litter. Neighbours are left alone."""
    old, fresh, other = (tmp_path / name for name in (".state.json.aa", ".state.json.bb", ".other.json.cc"))
    for file in (old, fresh, other):
        file.write_text("half")
    for file in (old, other):
        os.utime(file, (0, 0))
    write_json(tmp_path / "state.json", {"a": 1})
    assert not old.exists() and fresh.exists() and other.exists()


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


results = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["gp-vib", "", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(results)
def test_results_are_json_that_every_program_reads_and_come_back_as_they_were(value):
    """Infinities and NaN too, which JSON does not have."""
    text = to_json(value)
    back = with_numbers(json.loads(text, parse_constant=refuse))
    assert repr(back) == repr(value)  # NaN is not equal to itself


def test_records_and_metrics_of_a_run_hold_infinite_scores(tmp_path):
    scores = {"rows": [{"metrics": {"log_density": {"mean": float("-inf"), "interval": float("nan")}}}]}
    write_json(tmp_path / run_folder.RECORD, {"config": {"a": "NaN"}, "evaluation": scores, "training_seconds": 1.0})
    json.loads((tmp_path / run_folder.RECORD).read_text(), parse_constant=refuse)
    record = run_folder.read_record(tmp_path)
    assert repr(record["evaluation"]) == repr(scores) and record["config"] == {"a": "NaN"}  # a name is no number
    (tmp_path / run_folder.METRICS).write_text(to_json({"step": 1, "fit": float("inf")}) + "\n")
    assert run_folder.drop_metrics_after(tmp_path, 1) == 0.0
    json.loads((tmp_path / run_folder.METRICS).read_text(), parse_constant=refuse)
    assert run_folder.read_metrics(tmp_path) == [{"step": 1, "fit": float("inf")}]
