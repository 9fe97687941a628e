"""Freed memory stays with the process."""

import ctypes
import subprocess
import sys

import pytest

from metavib.training.engine import allocator

# A block of 64 MB, as an activation is, filled, freed and made again: how many pages the kernel had to bring in anew.
SCRIPT = """
import resource, torch
from metavib.training.engine.allocator import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def glibc() -> bool:
    return hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


@pytest.mark.skipif(not glibc(), reason="needs glibc")
def test_blocks_are_made_of_the_same_pages_again() -> None:
    faults = [
        int(subprocess.run([sys.executable, "-c", SCRIPT.format(kept=kept)], capture_output=True, check=True).stdout)
        for kept in (False, True)
    ]
    assert faults[1] < faults[0] / 2  # a few blocks are new until the heap has found its size


def test_without_glibc_nothing_happens(monkeypatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
