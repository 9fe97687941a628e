"""The cache of decoded pixels: the same data again, rebuilt whenever it cannot be trusted, whole at every moment."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from metavib.data import cache as module
from metavib.data.cache import MANIFEST, cache_folder, cache_root, cached
from metavib.data.labelled import Labelled, labelled


class Source:
    """A source file of raw pixels, and a build that counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self.path, self.root, self.builds = folder / "source.bin", folder / "cache", 0
        self.path.write_bytes(np.random.default_rng(0).bytes(6 * 16))

    def build(self) -> Labelled:
        self.builds += 1
        pixels = np.frombuffer(self.path.read_bytes(), np.uint8).reshape(-1, 1, 4, 4).copy()
        return labelled(pixels, np.arange(len(pixels)) % 2, ("even", "odd"))

    def get(self) -> Labelled:
        return cached("tiny", [self.path], self.build, root=self.root)

    @property
    def folder(self) -> Path:
        return cache_folder("tiny", [self.path], root=self.root)

    @property
    def payload(self) -> Path:
        (path,) = self.folder.glob("*.safetensors")
        return path

    def is_sound(self) -> bool:
        expected, got = self.build(), self.get()
        return (
            all(torch.equal(a, b) for a, b in zip(expected[:2], got[:2], strict=True)) and expected.names == got.names
        )


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path)


def test_the_second_time_nothing_is_decoded(source):
    first, second = source.get(), source.get()
    assert source.builds == 1
    assert torch.equal(first.images, second.images) and torch.equal(first.labels, second.labels)
    assert second.names == ("even", "odd")
    manifest = json.loads((source.folder / MANIFEST).read_text())
    assert manifest["version"] == 1 and manifest["shape"] == [6, 1, 4, 4]
    assert manifest["sources"][0]["name"] == "source.bin" and len(manifest["sources"][0]["sha256"]) == 64
    assert sorted(p.name for p in source.folder.iterdir()) == sorted([MANIFEST, source.payload.name])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_pixels_are_mapped_not_read(source):
    data = source.get()
    assert str(source.payload) in Path("/proc/self/maps").read_text()
    assert data.size == 6


def test_writing_to_mapped_pixels_leaves_the_cache_alone(source):
    data = source.get()
    data.images.zero_()
    assert source.is_sound()


def test_changed_sources_are_decoded_again(source):
    source.get()
    source.path.write_bytes(bytes(4 * 16))
    assert source.get().size == 4 and source.builds == 2
    assert source.get().size == 4 and source.builds == 2
    assert len(list(source.folder.glob("*.safetensors"))) == 1


def test_touched_sources_are_recognised_by_their_checksum(source, monkeypatch):
    """A new time alone costs one checksum, not a decode; after that the new time is known."""
    source.get()
    os.utime(source.path, (1, 1))
    source.get()
    assert source.builds == 1
    monkeypatch.setattr(module, "_sha256", lambda path: pytest.fail("hashed again"))
    source.get()


def test_a_change_in_a_folder_of_sources_is_noticed(tmp_path):
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    (tmp_path / "pictures" / "a" / "1").write_bytes(b"1")
    calls = []

    def build():
        calls.append(1)
        return labelled(np.zeros((1, 1, 2, 2), np.uint8), [0], ["a"])

    def get():
        return cached("f", [tmp_path / "pictures"], build, root=tmp_path / "cache")

    get(), get()
    assert len(calls) == 1
    (tmp_path / "pictures" / "a" / "2").write_bytes(b"2")
    get()
    assert len(calls) == 2


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 0xFF
    path.write_bytes(raw)
    os.utime(path, ns=(0, 0))  # two writes within the clock's resolution must not pass for one


DAMAGE = {
    "payload gone": lambda s: s.payload.unlink(),
    "payload cut": lambda s: s.payload.write_bytes(s.payload.read_bytes()[:-7]),
    "payload empty": lambda s: s.payload.write_bytes(b""),
    "payload flipped": lambda s: _flip(s.payload),
    "manifest gone": lambda s: (s.folder / MANIFEST).unlink(),
    "manifest cut": lambda s: (s.folder / MANIFEST).write_bytes((s.folder / MANIFEST).read_bytes()[:50]),
    "manifest no object": lambda s: (s.folder / MANIFEST).write_text("[1, 2]"),
    "manifest null": lambda s: (s.folder / MANIFEST).write_text("null"),
    "manifest of another version": lambda s: (s.folder / MANIFEST).write_text('{"version": 99}'),
    "manifest without names": lambda s: (s.folder / MANIFEST).write_text(
        json.dumps(json.loads((s.folder / MANIFEST).read_text()) | {"names": ["one"]})
    ),
    "manifest of another shape": lambda s: (s.folder / MANIFEST).write_text(
        json.dumps(json.loads((s.folder / MANIFEST).read_text()) | {"shape": [1, 2, 3, 4]})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_cache_is_rebuilt(source, damage):
    source.get()
    damage(source)
    assert source.get().size == 6 and source.builds == 2
    assert source.is_sound()


def test_a_manifest_cannot_name_a_payload_elsewhere(source):
    source.get()
    manifest = json.loads((source.folder / MANIFEST).read_text())
    manifest["payload"]["name"] = "../../elsewhere.safetensors"
    (source.folder / MANIFEST).write_text(json.dumps(manifest))
    assert source.is_sound()


@pytest.mark.parametrize("moment", range(3))
def test_a_kill_at_any_moment_leaves_a_cache_that_is_rebuilt(source, monkeypatch, moment):
    """Dies before the payload is moved, between payload and manifest, or after both; the next run is whole."""

    class Killed(BaseException):
        pass

    moves = []
    replace = os.replace

    def dying(old, new):
        if len(moves) == moment:
            raise Killed
        moves.append(new)
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", dying)
        if moment < 2:
            with pytest.raises(Killed):
                source.get()
        else:
            source.get()
    assert (source.folder / MANIFEST).exists() == (moment == 2)
    assert source.is_sound()
    assert not list(source.folder.glob(".tmp-*"))


def test_what_a_dead_process_left_is_swept_and_what_a_live_one_writes_is_not(source):
    source.folder.mkdir(parents=True)
    old, young = source.folder / ".tmp-old", source.folder / ".tmp-young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (1, 1))
    source.get()
    assert not old.exists() and young.exists()


def _race(folder, barrier, results):
    source = Source.__new__(Source)
    source.path, source.root, source.builds = folder / "source.bin", folder / "cache", 0

    def build():
        barrier.wait(30)  # both have found no cache, and build now
        return Source.build(source)

    data = cached("tiny", [source.path], build, root=source.root)
    results.put((data.size, int(data.images.sum())))


def test_two_processes_that_build_at_once_both_get_the_data(source, tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_race, args=(tmp_path, barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    expected = source.build()
    assert got == [(6, int(expected.images.sum()))] * 2
    assert source.is_sound() and not list(source.folder.glob(".tmp-*"))


def test_where_nothing_can_be_written_the_data_come_from_memory_with_a_warning(source):
    source.root.write_text("a file where a folder should be")
    with pytest.warns(UserWarning, match="cannot be written .* METAVIB_CACHE"):
        assert source.get().size == 6


def test_a_full_disk_is_a_warning_and_leaves_nothing(source, monkeypatch):
    def full(tensors, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert source.get().size == 6
    assert list(source.folder.iterdir()) == []


def test_the_root_is_the_argument_then_the_variable_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "env"))
    assert cache_root("here") == Path("here") and cache_root() == tmp_path / "env"
    monkeypatch.delenv("METAVIB_CACHE")
    assert cache_root() == Path.home() / ".cache" / "metavib"
