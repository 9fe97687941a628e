"""Meta-training: one loop, top to bottom.

A step is: sample tasks, bound, backward, optimiser. A run folder holds

    config.json           everything the run depends on
    metrics.jsonl         a line every so often: step, bound and its terms, validation
    last.safetensors      the newest state; a killed run goes on from it
    best.safetensors      the weights that were best on validation
    evaluation.json       the final test, once training is over

On a CPU a resumed run ends bit-identical to one that was never interrupted: the checkpoint holds weights, optimiser
and random streams, and nothing else decides.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import cos, inf, pi
from pathlib import Path
from typing import Any

import torch

from metavib import build, checkpoint
from metavib.capture import replayed
from metavib.config import Config
from metavib.experiments import experiment
from metavib.files import read_json, write_atomically, write_json
from metavib.model import Model
from metavib.noise import seeded
from metavib.objective import Bound
from metavib.progress import bar
from metavib.strict import to_dict

TRAIN = 10  # name of the random stream, apart from those of validation and test by construction
LAST, BEST = "last.safetensors", "best.safetensors"


class Interrupted(Exception):
    """Training was asked to stop and has saved its state."""


def train(config: Config, folder: Path, *, resume: bool = False, quiet: bool = False) -> Model:
    """Trains a model as a config says, in a run folder; returns the one to be tested.

    Args:
        config: everything the run depends on.
        folder: new or empty, unless resuming.
        resume: go on from the folder's newest checkpoint (from the start where there is none yet).
        quiet: no progress bar.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once the state is saved.
    """
    prepare(config, folder, resume=resume)
    options, objective, world = config.train, build.objective(config), experiment(config)
    model = build.model(config).to(config.device).train()
    optimiser = adam(model, config)
    streams = {name: seeded(config.seed, TRAIN, i, device=config.device) for i, name in enumerate(("tasks", "noise"))}
    start, best = 0, -inf
    if (folder / LAST).exists():
        saved = checkpoint.load(folder / LAST)
        model.load_state_dict(checkpoint.restore_model(saved).state_dict())
        checkpoint.restore_training(saved, optimiser, streams)
        start, best = saved.step, saved.best
    spent = _keep_until(folder, start)

    shape = (options.tasks,) if config.repeats == 1 else (config.repeats, options.tasks)

    def one_step() -> Bound:
        tasks = world.sample(shape, streams["tasks"])
        bound = objective(model, tasks, beta=options.beta, noise=streams["noise"])
        loss = -bound.value.mean(-1).sum()  # mean over tasks, sum over repeats: each repeat sees its own gradient
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return Bound(*(term.detach() for term in bound))

    take_step = replayed(one_step, config.device, streams.values())
    clock = time.monotonic()
    with bar("training", options.steps, start=start, show=not quiet) as advance, _stoppable() as asked_to_stop:
        for step in range(start + 1, options.steps + 1):
            _set_rates(optimiser, _decay(options.schedule, (step - 1) / options.steps))
            bound = take_step()
            last = step == options.steps
            validating = options.validate_every and (step % options.validate_every == 0 or last)
            if step % options.log_every == 0 or validating or last:
                line: dict[str, Any] = {"step": step, "seconds": round(spent + time.monotonic() - clock, 3)}
                line |= {name: float(term.mean()) for name, term in zip(Bound._fields, bound, strict=True)}
                _check_finite(line, folder)
                if validating:
                    line["validation"] = world.validate(model)
                    if line["validation"]["score"] > best:
                        best = line["validation"]["score"]
                        checkpoint.save(folder / BEST, config, step, best, model)
                with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                advance(step, f"bound {line['value']:.3f}" + f", best {best:.4f}" * (best > -inf))
            if step % options.save_every == 0 or last or asked_to_stop():
                checkpoint.save(folder / LAST, config, step, best, model, optimiser, streams)
                if asked_to_stop() and not last:
                    raise Interrupted(f"stopped after {step} of {options.steps} steps; continue with --resume.")
    return selected(folder)


def selected(folder: Path) -> Model:
    """The model of a run that is to be tested: its last, or the best on validation, as its config says."""
    saved = checkpoint.load(folder / LAST)
    if saved.config.train.select == "best":
        saved = checkpoint.load(folder / BEST)
    return checkpoint.restore_model(saved).to(saved.config.device).eval()


def adam(model: Model, config: Config) -> torch.optim.Adam:
    """Adam, with a learning rate apart for the kernel's out-scale and for the encoder's own parameters."""
    options, cuda = config.train, config.device.startswith("cuda")
    rates: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        rate = options.lr
        if name.endswith("log_scale") and options.scale_lr is not None:
            rate = options.scale_lr
        elif name.startswith("encoder.") and options.site_lr is not None:
            rate = options.site_lr
        if parameter.requires_grad:
            rates.setdefault(rate, []).append(parameter)
    groups: list[dict[str, Any]] = []
    for rate, parameters in rates.items():
        # A recorded step reads its learning rate from memory.
        lr = torch.tensor(rate, device=config.device) if cuda else rate
        groups.append({"params": parameters, "lr": lr, "peak": rate})
    return torch.optim.Adam(groups, fused=True, capturable=cuda)


def _set_rates(optimiser: torch.optim.Adam, factor: float) -> None:
    for group in optimiser.param_groups:
        rate = group["peak"] * factor
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


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
