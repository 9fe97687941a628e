"""Many runs at once: each a process of its own, as many at a time as there are cores, or eight on a GPU.

A run that is already finished is skipped and one that was killed goes on, so the same call again does only what
is missing. A run has a lock, which its process inherits: several calls, on one machine or on several that share the
folder, never work on the same run, and a run that outlived its caller is waited for rather than started twice.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from metavib.files import write_json
from metavib.progress import Bar
from metavib.training.config import Config, read
from metavib.training.engine import compiles
from metavib.training.fields import to_dict
from metavib.training.run_folder import CONFIG, RECORD
from metavib.training.stopping import Interrupted
from reproduction.shared_gpu import shared_gpu

POLL = 0.5  # seconds
GPU_JOBS = 8  # small networks leave most of a GPU idle: eight trainings at once take little longer than one
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"  # a run that compiles would start one a core: all together have that many
TOLD = 3  # failures whose last words are repeated


class RunFailed(RuntimeError):
    """Some runs ended without a result."""


def run_all(
    configs: Mapping[str, Config],
    root: Path,
    *,
    jobs: int | None = None,
    quiet: bool = False,
    trained: Mapping[str, Path] | None = None,
    done: Callable[[str], Any] = lambda name: None,
) -> None:
    """Trains and tests every config in `root/<name>`, several at a time.

    Args:
        configs: by name, in the order in which to start them.
        root: folder of the run folders.
        jobs: processes at a time; eight on a GPU, else as many as there are cores, unless told.
        quiet: no progress bar.
        trained: run folders whose training is that of a run here, by its name: it is tested and not trained again.
        done: called with the name of each run once it is finished.

    Raises:
        RunFailed: some runs failed; all others are finished.
        Interrupted: after Ctrl-C or SIGTERM, once every run has saved its state.
    """
    waiting = []
    for name, config in configs.items():
        if _finished(root / name, config):
            done(name)
        else:
            waiting.append(name)
    if not waiting:
        return
    total = sum(c.train.steps for c in configs.values())
    cuda = any(configs[name].device.startswith("cuda") for name in waiting)
    jobs = jobs or (GPU_JOBS if cuda else os.cpu_count() or 1)
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    alone: AbstractContextManager[dict[str, str]] = nullcontext({})
    sharing = shared_gpu() if cuda and min(jobs, len(waiting)) > 1 else alone
    with sharing as shared, Bar(f"{len(configs)} runs", total, show=not quiet) as advance:
        variables = {**shared, COMPILERS: os.environ.get(COMPILERS, str(max(1, (os.cpu_count() or 1) // jobs)))}
        try:
            with _terminable():
                while waiting or running:
                    for name in waiting[:]:
                        if len(running) == jobs:
                            break
                        if _twin_compiles(name, running, configs, root):
                            continue
                        process = _start(configs[name], root / name, variables, (trained or {}).get(name))
                        if process is not None:  # else another call is at work on it: ask again later
                            running[name] = process
                            waiting.remove(name)
                    time.sleep(POLL)
                    for name in [n for n, process in running.items() if process.poll() is not None]:
                        if running.pop(name).returncode:
                            failed.append(name)
                        else:
                            done(name)
                    advance(sum(_steps(root / n) for n in configs), ", ".join(running))
        except KeyboardInterrupt:
            left = len(waiting) + len(running) + len(failed)
            lost = f" {', '.join(failed)} failed; the logs are in {root}." if failed else ""
            raise Interrupted(
                f"stopped with {len(configs) - left} of {len(configs)} runs finished; the same command goes on.{lost}"
            ) from None
        finally:
            for process in running.values():
                process.terminate()  # each saves its state and can be resumed
            for process in running.values():
                process.wait()
    if failed:
        raise RunFailed(_last_words(failed, root, len(configs)))


def _twin_compiles(name: str, running: Iterable[str], configs: Mapping[str, Config], root: Path) -> bool:
    """Whether a training that differs in its seed alone is still compiling: it then leaves its code in a cache."""
    config = configs[name]
    twins = (n for n in running if replace(configs[n], seed=config.seed) == config)
    return compiles(config) and any(not _steps(root / twin) for twin in twins)


def _last_words(failed: list[str], root: Path, count: int) -> str:
    told = []
    for name in failed[:TOLD]:
        log = (root / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        told.append(f"the run {name} failed:\n{log[-2000:].strip()}")
    if len(failed) > TOLD:
        told.append(f"the others that failed: {', '.join(failed[TOLD:])}; their logs are in {root}.")
    return f"{len(failed)} of {count} runs failed.\n\n" + "\n\n".join(told)


@contextmanager
def _terminable() -> Iterator[None]:
    """Lets SIGTERM end the block as Ctrl-C does, so that no run is left behind."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: signals are somebody else's business
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _finished(folder: Path, config: Config) -> bool:
    """Whether a run is there; results of another config are no results of this one, and starting it will say so."""
    return (folder / RECORD).exists() and read(folder / CONFIG) == config


def _start(
    config: Config, folder: Path, variables: Mapping[str, str] | None = None, trained: Path | None = None
) -> "subprocess.Popen[bytes] | None":
    """The process of a run; None while another one holds its lock."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "wb") as lock:
        if not _locked(lock):
            return None
        wanted = folder.parent / f"{folder.name}.config.json"
        write_json(wanted, to_dict(config))
        command = [sys.executable, "-m", "metavib", "train", config.tasks.name, "--config", str(wanted)]
        command += ["--resume", str(folder), "--quiet"]
        command += [] if trained is None else ["--trained", str(trained)]
        with open(folder.parent / f"{folder.name}.log", "wb") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(variables or {}), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                pass_fds=(lock.fileno(),),  # the lock is the child's for as long as it lives, whatever becomes of us
                process_group=0,  # Ctrl-C comes to us alone: a run that is asked to stop twice stops without saving
            )


def _locked(file: IO[bytes]) -> bool:
    """Takes the lock of an open file, if nobody has it."""
    import fcntl  # POSIX alone, and so are reproductions; the rest of the package is not

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _steps(folder: Path) -> int:
    """How far a run has come. Asked often, of many runs: the last whole line is all that is read as JSON."""
    try:
        whole, _, _ = (folder / "metrics.jsonl").read_bytes().rpartition(b"\n")
        return json.loads(whole.rpartition(b"\n")[2])["step"] if whole else 0
    except FileNotFoundError:
        return 0
