"""A run from its config to its record: train, test, write down.

The same as `metavib train`, from Python:

    from pathlib import Path

    from metavib.training import run
    from metavib.training.recipes import recipe

    record = run(recipe("glyphs", "gp-vib"), Path("runs/mine"))
    print(record["evaluation"]["rows"][0]["metrics"]["accuracy"])
"""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from metavib.data.table import digest
from metavib.files import write_json
from metavib.training import build, bundled, loop, run_folder
from metavib.training.config import HIERARCHICAL, Config, TasksConfig, from_saved
from metavib.training.engine import ranks as processes
from metavib.training.fields import to_dict
from metavib.training.protocols import experiment
from metavib.training.stopping import Interrupted

Record = dict[str, Any]
"""What is kept of a finished run, as JSON holds it; `record` says what is in it."""


def run(config: Config, folder: Path, *, resume: bool = False, quiet: bool = False) -> Record:
    """Trains, tests and records; returns the record, at once where all of that is done already.

    Under `torchrun` all processes train, and the first one tests; the others return an empty record.

    Args:
        config: everything the run depends on, from `metavib.training.recipes.recipe` or written by hand.
        folder: the run folder, new or empty unless resuming.
        resume: go on with the run that is in the folder, if there is one.
        quiet: draw no progress bars.

    Raises:
        metavib.training.stopping.Interrupted: after Ctrl-C or SIGTERM, once the state is saved.

    Example:
        >>> import tempfile
        >>> from metavib.training import run
        >>> from metavib.training.fields import override
        >>> from metavib.training.recipes import recipe
        >>> tiny = {"train.steps": 2, "train.validation_tasks": 2, "test.shots": [5], "test.tasks": 2}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record = run(override(recipe("sinusoid", "gp-vib"), tiny), Path(folder, "run"), quiet=True)
        >>> [row["shots"] for row in record["evaluation"]["rows"]]
        [5]
    """
    with _saying_how_to_go_on(folder):
        return _run(config, folder, resume=resume, quiet=quiet)


@contextmanager
def _saying_how_to_go_on(folder: Path) -> Iterator[None]:
    """Has Ctrl-C end with a hint also where the loop does not see it: while data are read, and in the test."""
    try:
        yield
    except KeyboardInterrupt:
        if (folder / run_folder.CONFIG).exists():
            raise Interrupted(f"stopped; continue with --resume {folder}") from None
        raise Interrupted("stopped before the first step: the same command starts again.") from None


def _run(config: Config, folder: Path, *, resume: bool, quiet: bool) -> Record:
    build.set_torch(config)
    with processes.joined(config.device) as ranks:
        ranks.on_first(run_folder.prepare, config, folder, resume=resume)
        if known := ranks.on_first(_finished, config, folder):
            return known
        world = experiment(config)  # one for both: its data may be gigabytes
        if config.method == HIERARCHICAL:
            from metavib.training import hierarchy  # tables only where needed

            model = ranks.on_first(hierarchy.learn, config, folder, world, quiet=quiet)
        else:
            model = loop.train(config, folder, resume=True, quiet=quiet, world=world, ranks=ranks)
    if not ranks.first:
        return {}
    found = world.evaluate(model, temperature=run_folder.chosen(folder).temperature, quiet=quiet)
    return _write(folder, record(config, found, run_folder.read_metrics(folder)))


def retest(config: Config, folder: Path, trained: Path, *, resume: bool = False, quiet: bool = False) -> Record:
    """Tests the model of a finished run in another way, as a run of its own; nothing is trained.

    Args:
        config: that of the finished run but for its section `test`, and maybe for its device.
        folder: the new run folder.
        trained: the folder of the finished run.
        resume: return the record that is in the folder, if there is one.
        quiet: draw no progress bars.
    """
    build.set_torch(config)
    run_folder.prepare(config, folder, resume=resume)
    if known := _finished(config, folder):
        return known
    chosen = run_folder.chosen(trained)
    if not chosen.config.trains_like(config):
        also = ", but for its shots" * config.train.calibrate
        raise ValueError(f"{trained} was trained under another config than this one: its test alone may differ{also}.")
    run_folder.begin(config, folder)
    model = run_folder.selected(trained, device=config.device)
    result = experiment(config).evaluate(model, temperature=chosen.temperature, quiet=quiet)
    known = run_folder.read_record(trained) or {}  # of a packed run the record is all that is left of its training
    training = {key: known[key] for key in ("training_seconds", "validation") if key in known}
    return _write(folder, record(config, result, run_folder.read_metrics(trained)) | training)


def record(config: Config, evaluation: dict[str, Any], metrics: list[dict[str, Any]]) -> Record:
    """Everything worth keeping of a finished run.

    Args:
        config: that of the run.
        evaluation: the test of the trained model.
        metrics: the lines logged while it was trained.
    """
    curve = [[line["step"], round(line["validation"]["score"], 5)] for line in metrics if "validation" in line]
    versions = {name: _version(name) for name in ("metavib", "torch", "numpy")}
    return {
        "config": to_dict(config),
        "evaluation": evaluation,
        "training_seconds": round(metrics[-1]["seconds"], 1) if metrics else 0.0,
        "validation": curve,
        "commit": commit(),
        "machine": machine(config.device),
        "data": data(config.tasks),
        **_network(config),
        "versions": versions | {"python": sys.version.split()[0]},
    }


def data(tasks: TasksConfig) -> dict[str, str] | str | None:
    """SHA-256 of the data files by name; "generated" where the seed makes the data; None where they cannot be read.

    Files that went away during a long training are no reason to lose its record.
    """
    from metavib.data import class_splits  # readers of images, not needed by every command

    try:
        if tasks.name in class_splits.EXPERIMENTS:
            return class_splits.checksums(tasks.name, tasks.root, ink=tasks.ink)
        if tasks.name == "images" and tasks.root is not None:
            return {Path(tasks.root).name: class_splits.checksum(Path(tasks.root))}
    except OSError:
        return None
    if tasks.name == "embeddings":
        return {Path(name).name: digest for name, digest in zip(tasks.features, tasks.digests, strict=True)}
    if tasks.name == "table":
        return {Path(tasks.table.csv or "").name: tasks.table.digest}
    return "generated"


def _network(config: Config) -> dict[str, str]:
    """SHA-256 of the network that training began with, where there is one."""
    if not config.model.pretrained:
        return {}
    from metavib.training.protocols import tuned

    starts = config.model.backbone != "tuned"
    path = bundled.folder_of(config.model.pretrained) / run_folder.BEST if starts else tuned.where(config)
    return {"network": digest(path)} if path.exists() else {}


def machine(device: str) -> str:
    """The machine in words: its GPU, or its processor, cores and the threads in use."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{_cpu()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"


def commit() -> str | None:
    """The commit of the code, marked where the working tree differs; `$METAVIB_COMMIT` outside a checkout."""
    root = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain", "--", "."], cwd=root, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("METAVIB_COMMIT")
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def _finished(config: Config, folder: Path) -> Record | None:
    """The record of this very run, if there is one; that of a shorter run is of one that is to go on."""
    known = run_folder.read_record(folder)
    return known if known is not None and from_saved(known["config"]) == config else None


def _write(folder: Path, found: Record) -> Record:
    write_json(folder / run_folder.RECORD, found)
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
