"""A run folder: the files that a training writes, and what is read back from them.

config.json           everything the run depends on
metrics.jsonl         a line every so often: step, bound and its terms, validation
last.safetensors      the newest state; a run that was killed goes on from it
best.safetensors      the weights that were best on validation
record.json           the finished run: config, test, training time, validation curve, commit, machine, data

A packed run (`pack`) is what using it needs, and no more: config, chosen weights in half precision, record.
"""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from metavib.files import naming, read_json, to_json, with_numbers, write_atomically, write_json, write_tensors
from metavib.model import Model
from metavib.training import checkpoint
from metavib.training.config import HIERARCHICAL, Config, read
from metavib.training.fields import differences, to_dict

CONFIG, METRICS, RECORD = "config.json", "metrics.jsonl", "record.json"
LAST, BEST = "last.safetensors", "best.safetensors"
MOVES = "tasks.table.csv"  # a field that may change: the digest of the file says that it is still the same one


def prepare(config: Config, folder: Path, *, resume: bool) -> None:
    """Refuses a folder that holds something else, or a device that is not there, before any work; writes nothing.

    Args:
        config: of the run that is to be trained there. A run that is there already may be made longer by it, and
            changed in nothing else.
        folder: new or empty, unless resuming.
        resume: whether to go on with a run that is there.
    """
    check_device(config.device)
    if (folder / CONFIG).exists():
        if not resume:
            raise FileExistsError(
                f"{folder} holds a run already; pass --resume {folder} to go on with it, or name another folder."
            )
        _check_same(read(folder / CONFIG), config, folder)
    elif folder.exists() and any(not entry.name.startswith(f".{CONFIG}") for entry in folder.iterdir()):
        raise FileExistsError(f"{folder} exists and is no run; name a new folder.")


def begin(config: Config, folder: Path) -> None:
    """Writes the config of a run that is about to start or to go on; a record from before it was made longer goes."""
    write_json(folder / CONFIG, to_dict(config))
    (folder / RECORD).unlink(missing_ok=True)


def check_device(device: str) -> None:
    """Refuses a device that PyTorch does not see."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device = {device!r}, but PyTorch sees no GPU on this machine; use --device cpu, or device='cpu'."
        )


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last one that a kill cut short does not count."""
    try:
        text = (folder / METRICS).read_bytes()
    except FileNotFoundError:
        return []
    try:
        lines = [with_numbers(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / METRICS} is damaged: a line is not JSON ({error}).") from error
    for line in lines:
        numbers = (line.get("step"), line.get("seconds", 0.0)) if isinstance(line, dict) else (None,)
        if not all(type(number) in (int, float) for number in numbers):
            raise ValueError(f"{folder / METRICS} is damaged: a line's step or seconds is no number.")
    return lines


def drop_metrics_after(folder: Path, step: int) -> float:
    """Drops what a killed run logged after its last checkpoint; returns the seconds it had spent until then."""
    kept = [line for line in read_metrics(folder) if line["step"] <= step]
    text = "".join(to_json(line) + "\n" for line in kept)
    write_atomically(folder / METRICS, lambda p: p.write_text(text, encoding="utf-8"))
    return kept[-1].get("seconds", 0.0) if kept else 0.0


def newest(folder: Path) -> checkpoint.Checkpoint | None:
    """The newest state of a training; None before the first is saved."""
    return checkpoint.load(folder / LAST) if (folder / LAST).exists() else None


def chosen(folder: Path) -> checkpoint.Checkpoint:
    """The checkpoint of a run that is to be used: its last, or the best on validation, as its config says."""
    if not (folder / LAST).exists() and (folder / BEST).exists():
        return checkpoint.load(folder / BEST)  # of a packed run
    saved = checkpoint.load(folder / LAST)
    return checkpoint.load(folder / BEST) if saved.config.train.select == "best" else saved


def is_run(folder: Path) -> bool:
    """Whether a folder holds a model that was trained."""
    return (folder / LAST).exists() or (folder / BEST).exists()


def latest(folder: Path) -> checkpoint.Checkpoint:
    """The newest state of a run, which says how far it is; of a packed one the chosen one."""
    return newest(folder) or chosen(folder)


def pack(folder: Path, out: Path) -> None:
    """Writes what using a finished run needs into another folder: its config, its chosen weights, its record.

    Weights of a network are stored in half precision, and neither config nor record say where files lay.

    Args:
        folder: of the run.
        out: a new folder.
    """
    saved, record = chosen(folder), read_record(folder)
    if record is None:
        raise ValueError(f"{folder} is not finished: pack it once `metavib train --resume {folder}` is done.")
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} exists and is not empty; name a new folder.")
    tasks, model = replace(saved.config.tasks, root=None), replace(saved.config.model, pretrained="")
    config = replace(saved.config, tasks=tasks, model=model)
    halves = config.method != HIERARCHICAL  # whose few numbers are those of an exact computation
    weights = {name: t for name, t in saved.tensors.items() if name.startswith("model/")}
    weights = {name: t.half() if halves and t.is_floating_point() else t for name, t in weights.items()}
    write_json(out / CONFIG, to_dict(config))
    write_tensors(out / BEST, weights, checkpoint.header(config, saved.step, saved.best, saved.temperature))
    write_json(out / RECORD, record | {"config": to_dict(config)})


def selected(folder: Path, *, device: str = "cpu") -> Model:
    """The model of a run that is to be tested and used, in evaluation mode."""
    with naming(folder):
        return checkpoint.restore_model(chosen(folder)).to(device).eval()


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a finished run; None while it is not finished."""
    if not (folder / RECORD).exists():
        return None
    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or not {"config", "evaluation", "training_seconds"} <= set(record):
        raise ValueError(f"{folder / RECORD} is no record of a run; delete it, and `metavib train --resume {folder}`.")
    return record | {"evaluation": with_numbers(record["evaluation"])}


def _check_same(old: Config, new: Config, folder: Path) -> None:
    """Refuses another config than a run was started with, but for more steps or more time."""
    found = differences(old, new)
    found.pop(MOVES, None)
    if "train.steps" in found and new.train.steps > old.train.steps:
        del found["train.steps"]
    if "train.minutes" in found and (new.train.minutes or inf) > (old.train.minutes or inf):
        del found["train.minutes"]
    if found:
        named = ", ".join(
            f"{field} = {_short(was)} there and {_short(wanted)} here" for field, (was, wanted) in found.items()
        )
        raise ValueError(
            f"{folder} holds a run with another config; resume it without changing options ({named}), or start "
            "another run in a folder of its own. Only train.steps and train.minutes may grow."
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
