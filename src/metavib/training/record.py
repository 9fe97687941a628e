"""A record a run: what was done, on what, by which code, and how good it was."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from metavib.training.config import Config, TasksConfig
from metavib.training.fields import to_dict


def record(config: Config, evaluation: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything worth keeping of a finished run, as JSON holds it.

    Args:
        config: the run's.
        evaluation: the test of the trained model.
        metrics: the lines logged while it was trained.
    """
    return {
        "config": to_dict(config),
        "evaluation": evaluation,
        "training_seconds": round(metrics[-1]["seconds"], 1),
        "validation": [
            [line["step"], round(line["validation"]["score"], 5)] for line in metrics if "validation" in line
        ],
        "commit": commit(),
        "machine": machine(config.device),
        "data": data(config.tasks),
        "versions": {name: _version(name) for name in ("metavib", "torch", "numpy")}
        | {"python": sys.version.split()[0]},
    }


def data(tasks: TasksConfig) -> dict[str, str] | str | None:
    """SHA-256 of the data files by name; "generated" where the seed makes the data; None where they cannot be read.

    Files that went away during a long training are no reason to lose its record.
    """
    from metavib.data import class_splits  # readers of images, not needed by every command

    try:
        if tasks.name in class_splits.EXPERIMENTS:
            return class_splits.checksums(tasks.name, tasks.root)
        if tasks.name == "images" and tasks.root is not None:
            return {Path(tasks.root).name: class_splits.checksum(Path(tasks.root))}
    except OSError:
        return None
    if tasks.name == "table":
        return {Path(tasks.table.csv or "").name: tasks.table.digest}
    return "generated"


def machine(device: str) -> str:
    """The machine in words."""
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
