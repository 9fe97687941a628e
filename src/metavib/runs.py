"""Many runs at once: each a process of its own, one thread each, as many at a time as there are cores.

A run that is already finished is skipped and one that was killed goes on, so the same call again does only what
is missing.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from metavib.config import Config, read
from metavib.files import write_json
from metavib.progress import bar
from metavib.strict import to_dict
from metavib.train import CONFIG

POLL = 0.5  # seconds


class RunFailed(RuntimeError):
    """A run ended without a result."""


def run_all(configs: Mapping[str, Config], root: Path, *, jobs: int | None = None, quiet: bool = False) -> None:
    """Trains and tests every config in `root/<name>`, several at a time.

    Args:
        configs: by name.
        root: folder of the run folders.
        jobs: processes at a time; as many as there are cores unless told.
        quiet: no progress bar.
    """
    if not configs:
        return
    waiting = [name for name, config in configs.items() if not _finished(root / name, config)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    total = sum(c.train.steps for c in configs.values())
    jobs = jobs or os.cpu_count() or 1
    try:
        with bar(f"{len(configs)} runs", total, show=not quiet) as advance:
            while waiting or running:
                while waiting and len(running) < jobs:
                    name = waiting.pop(0)
                    running[name] = _start(configs[name], root / name)
                time.sleep(POLL)
                for name in [n for n, process in running.items() if process.poll() is not None]:
                    if running.pop(name).returncode:
                        log = (root / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                        raise RunFailed(f"the run {name} failed:\n{log[-2000:]}")
                advance(sum(_steps(root / n) for n in configs), ", ".join(running))
    finally:
        for process in running.values():
            process.terminate()  # each saves its state and can be resumed
        for process in running.values():
            process.wait()


def _finished(folder: Path, config: Config) -> bool:
    """Whether a run is there; results of another config are no results of this one, and starting it will say so."""
    return (folder / "evaluation.json").exists() and read(folder / CONFIG) == config


def _start(config: Config, folder: Path) -> "subprocess.Popen[bytes]":
    folder.parent.mkdir(parents=True, exist_ok=True)
    wanted = folder.parent / f"{folder.name}.config.json"
    write_json(wanted, to_dict(config))
    command = [sys.executable, "-m", "metavib", "train", config.tasks.name, "--config", str(wanted)]
    command += ["--out", str(folder), "--resume", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with open(folder.parent / f"{folder.name}.log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _steps(folder: Path) -> int:
    """How far a run has come. Asked often, of many runs: the last whole line is all that is read as JSON."""
    try:
        whole, _, _ = (folder / "metrics.jsonl").read_bytes().rpartition(b"\n")
        return json.loads(whole.rpartition(b"\n")[2])["step"] if whole else 0
    except FileNotFoundError:
        return 0
