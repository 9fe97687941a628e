"""Meta-training: one loop, top to bottom.

A step is: sample tasks, bound, backward, optimiser. A run folder holds

    config.json           everything the run depends on
    metrics.jsonl         a line every so often: step, bound and its terms, validation
    last.safetensors      the newest state; a killed run goes on from it
    evaluation.json       the final test, once training is over

On a CPU a resumed run ends bit-identical to one that was never interrupted: the checkpoint holds weights, optimiser
and random streams, and nothing else decides.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import cos, pi
from pathlib import Path
from typing import Any

import torch

from metavib import build, checkpoint, evaluate
from metavib.config import Config
from metavib.files import read_json, write_atomically, write_json
from metavib.model import Model
from metavib.noise import seeded
from metavib.objective import vib
from metavib.progress import bar
from metavib.strict import to_dict

TRAIN, VALIDATION, TEST = 10, 20, 30  # names of random streams: different by construction
LAST = "last.safetensors"


class Interrupted(Exception):
    """Training was asked to stop and has saved its state."""


def train(config: Config, folder: Path, *, resume: bool = False, quiet: bool = False) -> Model:
    """Trains a model as a config says, in a run folder.

    Args:
        config: everything the run depends on.
        folder: new or empty, unless resuming.
        resume: go on from the folder's newest checkpoint (from the start where there is none yet).
        quiet: no progress bar.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once the state is saved.
    """
    prepare(config, folder, resume=resume)
    options, source = config.train, build.source(config.tasks)
    model = build.model(config).to(config.device)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=options.lr, fused=True)
    streams = {"tasks": seeded(config.seed, TRAIN, 0), "noise": seeded(config.seed, TRAIN, 1)}
    start = 0
    if (folder / LAST).exists():
        saved = checkpoint.load(folder / LAST)
        model.load_state_dict(checkpoint.restore_model(saved).state_dict())
        checkpoint.restore_training(saved, optimiser, streams)
        start = saved.step
    spent = _keep_until(folder, start)

    shape = (options.tasks,) if config.repeats == 1 else (config.repeats, options.tasks)
    dtype, clock = build.DTYPES[config.precision], time.monotonic()
    with bar("training", options.steps, start=start, show=not quiet) as advance, _stoppable() as asked_to_stop:
        for step in range(start + 1, options.steps + 1):
            for group in optimiser.param_groups:
                group["lr"] = options.lr * _decay(options.schedule, (step - 1) / options.steps)
            tasks = source.sample(shape, streams["tasks"]).to(dtype)
            bound = vib(model, tasks, beta=options.beta, noise=streams["noise"])
            loss = -bound.value.mean(-1).sum()  # mean over tasks, sum over repeats: each repeat sees its own gradient
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

            if step % options.log_every == 0 or step == options.steps:
                line: dict[str, Any] = {"step": step, "seconds": round(spent + time.monotonic() - clock, 3)}
                line |= {name: float(term.detach().mean()) for name, term in bound._asdict().items()}
                _check_finite(line, folder)
                if options.validate_every and (step % options.validate_every == 0 or step == options.steps):
                    line |= {"validation": evaluate.validate(model, config)}
                with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                advance(step, f"bound {line['value']:.3f}")
            if step % options.save_every == 0 or step == options.steps or asked_to_stop():
                checkpoint.save(folder / LAST, config, step, model, optimiser, streams)
                if asked_to_stop() and step < options.steps:
                    raise Interrupted(f"stopped after {step} of {options.steps} steps; continue with --resume.")
    return model


def prepare(config: Config, folder: Path, *, resume: bool) -> None:
    """Makes or checks the run folder before any work is done."""
    existing = folder / "config.json"
    if existing.exists():
        if not resume:
            raise FileExistsError(f"{folder} holds a run already; pass --resume to go on, or name another folder.")
        if read_json(existing) != to_dict(config):
            raise ValueError(f"{folder} holds a run with another config; resume it without changing options.")
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} exists and is no run; name a new folder.")
    write_json(existing, to_dict(config))


def _decay(schedule: str, progress: float) -> float:
    return 0.5 * (1 + cos(pi * progress)) if schedule == "cosine" else 1.0


def _check_finite(line: dict[str, Any], folder: Path) -> None:
    if not line["fit"] - line["fit"] == 0:
        raise FloatingPointError(
            f"the bound became {line['fit']} by step {line['step']}; the last good state is in {folder / LAST}. "
            "Lower train.lr or model.inner_rate, or use --precision float64."
        )


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last one that a kill cut short does not count."""
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _keep_until(folder: Path, step: int) -> float:
    """Drops what a killed run logged after its last checkpoint; returns the seconds spent until then."""
    kept = [line for line in read_metrics(folder) if line["step"] <= step]
    text = "".join(json.dumps(line) + "\n" for line in kept)
    write_atomically(folder / "metrics.jsonl", lambda p: p.write_text(text, encoding="utf-8"))
    return kept[-1]["seconds"] if kept else 0.0


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C and SIGTERM into a flag that the loop looks at between steps; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's business
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
