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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import cos, inf, isfinite, pi
from pathlib import Path
from typing import Any

import torch

from metavib.files import naming, write_atomically, write_json
from metavib.model import Model
from metavib.networks.layers import Conv2d
from metavib.objective import Bound, Objective
from metavib.progress import bar
from metavib.random import seeded
from metavib.training import build, checkpoint
from metavib.training.config import Config, read
from metavib.training.engine.compile import Compiled, Work, pays
from metavib.training.engine.graph import replayed
from metavib.training.engine.ranks import ALONE, Ranks
from metavib.training.fields import to_dict
from metavib.training.protocols import Experiment, experiment

TRAIN = 10  # name of the random stream, apart from those of validation and test by construction
CONFIG, LAST, BEST = "config.json", "last.safetensors", "best.safetensors"


class Interrupted(Exception):
    """Training was asked to stop and has saved its state."""


def train(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    world: Experiment | None = None,
    watch: Callable[[int, float], None] | None = None,
    ranks: Ranks = ALONE,
) -> Model:
    """Trains a model as a config says, in a run folder; returns the one to be tested.

    Args:
        config: everything the run depends on.
        folder: new or empty, unless resuming.
        resume: go on from the folder's newest checkpoint (from the start where there is none yet).
        quiet: no progress bar.
        world: the config's experiment, where it is at hand; its data is read otherwise.
        watch: told step and score after each validation; it may raise, which ends the training.
        ranks: the processes that share out the tasks of each step; the first of them writes the folder.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once the state is saved.
    """
    ranks.on_first(prepare, config, folder, resume=resume)
    # Whatever a config can be refused for is refused here, before there is a file.
    options, world = config.train, world or experiment(config)
    world.check()
    model = build.model(config).to(config.device).train()
    objective = ranks.sharded(build.objective(config), model, options.tasks)
    optimiser = adam(model, config)
    streams = {name: seeded(config.seed, TRAIN, i, device=config.device) for i, name in enumerate(("tasks", "noise"))}
    ranks.on_first(write_json, folder / CONFIG, to_dict(config))
    start, best = 0, -inf
    if saved := ranks.on_first(_newest, folder):
        if saved.config != config:
            raise ValueError(f"{folder / LAST} is of a run with another config than {folder / CONFIG}.")
        with naming(folder / LAST):
            model.load_state_dict(checkpoint.restore_model(saved).state_dict())
            checkpoint.restore_training(saved, optimiser, streams)
        start, best = saved.step, saved.best
    spent = ranks.on_first(keep_until, folder, start)

    shape = (options.tasks,) if config.repeats == 1 else (config.repeats, options.tasks)

    def one_step() -> Bound:
        return ascend(slope, model, list(streams.values()), optimiser)

    alone = ranks.count == 1  # what ranks say to each other can be neither compiled nor recorded
    bound_of_tasks = sampled(objective, world, shape, beta=options.beta)
    slope = fastest(bound_of_tasks, model, config) if alone else differentiated(bound_of_tasks)
    take_step = replayed(one_step, config.device, streams.values()) if alone else one_step
    clock = time.monotonic()
    show = ranks.first and not quiet
    with bar("training", options.steps, start=start, show=show) as advance, stoppable() as asked_to_stop:
        if alone and compiles(config):
            advance(start, "compiling, half a minute")
        for step in range(start + 1, options.steps + 1):
            _set_rates(optimiser, decay(options.schedule, (step - 1) / options.steps))
            if options.restart_every and (step - 1) % options.restart_every == 0:
                _forget_moments(optimiser)
            bound = Bound(*take_step())
            last = step == options.steps
            stopping = ranks.any(asked_to_stop())
            saving = step % options.save_every == 0 or last or stopping
            validating = options.validate_every and (step % options.validate_every == 0 or last)
            noting = step % options.log_every == 0 or validating or last
            if noting or saving:
                bound = ranks.gathered(bound)
            if noting and ranks.first:
                line: dict[str, Any] = {"step": step, "seconds": round(spent + time.monotonic() - clock, 3)}
                line |= {name: _number(term) for name, term in zip(Bound._fields, bound, strict=True)}
                _check_finite((bound.value,), step, folder)
                if validating:
                    line["validation"] = world.validate(model)
                    _check_finite(map(torch.tensor, line["validation"].values()), step, folder)
                    if line["validation"]["score"] > best:
                        best = line["validation"]["score"]
                        checkpoint.save(folder / BEST, config, step, best, model)
                with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(line, allow_nan=False) + "\n")
                advance(step, f"bound {line['value']:.3f}" + f", best {best:.4f}" * (best > -inf))
                if validating and watch:
                    watch(step, line["validation"]["score"])
            if saving:
                ranks.on_first(_check_finite, (bound.value, *model.parameters()), step, folder)
                ranks.on_first(checkpoint.save, folder / LAST, config, step, best, model, optimiser, streams)
                if not last and stopping:
                    raise Interrupted(f"stopped after {step} of {options.steps} steps; continue with --resume.")
    return ranks.on_first(selected, folder).to(config.device)


def sampled(objective: Objective, world: Experiment, shape: tuple[int, ...], *, beta: float) -> Work:
    """From a model and two random streams, of tasks and of noise, to the objective on tasks drawn anew."""

    def bound_of(model: Model, streams: Sequence[Any]) -> Bound:
        tasks, noise = streams
        return objective(model, world.sample(shape, tasks), beta=beta, noise=noise)

    return bound_of


def differentiated(bound_of: Work) -> Work:
    """The same terms, detached, with the gradient of minus the bound, averaged over tasks, left in `grad`.

    Where gradients are off there is none: then the terms alone are made, and what is drawn for them.
    """

    def slope(model: Model, streams: Sequence[Any]) -> Bound:
        bound = Bound(*bound_of(model, streams))
        if torch.is_grad_enabled():  # mean over tasks, sum over repeats: each repeat sees its own gradient
            bound.value.backward(torch.full_like(bound.value, -1 / bound.value.shape[-1]))
        return Bound(*(term.detach() for term in bound))

    return slope


def fastest(bound_of: Work, model: Model, config: Config) -> Work:
    """`differentiated(bound_of)`, compiled if training is long: in one piece, or the bound and its gradient apart.

    One piece is one call, and keeps nothing for a second: much, where operations are small. But what is kept is not
    made again, and in one piece the compiler makes pooling's choice again at each of its four positions. And a GPU's
    recorded step has no calls to save.
    """
    if not compiles(config):
        return differentiated(bound_of)
    if config.device == "cpu" and not any(isinstance(part, Conv2d) for part in model.modules()):
        return Compiled(differentiated(bound_of))
    return differentiated(Compiled(bound_of))


def compiles(config: Config) -> bool:
    """Whether the steps of a training are worth compiling."""
    return pays(config.device, times=config.train.steps // config.unrolled)


def ascend(slope: Work, model: Model, streams: Sequence[Any], optimiser: torch.optim.Optimizer) -> Bound:
    """One step up an objective that has been `differentiated`; returns its terms."""
    optimiser.zero_grad()
    bound = Bound(*slope(model, streams))
    optimiser.step()
    return bound


def chosen(folder: Path) -> checkpoint.Checkpoint:
    """The checkpoint of a run that is to be used: its last, or the best on validation, as its config says."""
    saved = checkpoint.load(folder / LAST)
    return checkpoint.load(folder / BEST) if saved.config.train.select == "best" else saved


def selected(folder: Path, *, device: str = "cpu") -> Model:
    """The model of a run that is to be tested."""
    with naming(folder):
        return checkpoint.restore_model(chosen(folder)).to(device).eval()


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


def _forget_moments(optimiser: torch.optim.Adam) -> None:
    """Adam as new; in place, since a recorded step reads its moments from memory."""
    for moments in optimiser.state.values():
        for moment in moments.values():
            moment.zero_()


def _set_rates(optimiser: torch.optim.Adam, factor: float) -> None:
    for group in optimiser.param_groups:
        rate = group["peak"] * factor
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] = rate
        elif rate != group.get("now"):  # a launch of its own each time, and most schedules are constant
            group["lr"].fill_(rate)
            group["now"] = rate


def prepare(config: Config, folder: Path, *, resume: bool) -> None:
    """Refuses a folder that holds something else or a device that is not there, before any work; writes nothing."""
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device = {config.device!r}, but PyTorch sees no GPU on this machine; use --device cpu.")
    if (folder / CONFIG).exists():
        if not resume:
            raise FileExistsError(f"{folder} holds a run already; pass --resume to go on, or name another folder.")
        if read(folder / CONFIG) != config:
            raise ValueError(f"{folder} holds a run with another config; resume it without changing options.")
    elif folder.exists() and any(not entry.name.startswith(f".{CONFIG}") for entry in folder.iterdir()):
        raise FileExistsError(f"{folder} exists and is no run; name a new folder.")


def decay(schedule: str, progress: float) -> float:
    """The share of the peak learning rate that is left after a share of the steps."""
    return 0.5 * (1 + cos(pi * progress)) if schedule == "cosine" else 1.0


def _number(term: torch.Tensor) -> float | None:
    """A mean as JSON holds it: the infinite KL of a Dirac encoder is no number there."""
    mean = float(term.mean())
    return mean if isfinite(mean) else None


def _check_finite(tensors: Iterable[torch.Tensor], step: int, folder: Path) -> None:
    """Stops a training that has diverged before its state replaces the last good one."""
    if all(bool(t.isfinite().all()) for t in tensors):
        return
    last = f"the last good state is in {folder / LAST}" if (folder / LAST).exists() else "nothing was saved yet"
    raise FloatingPointError(
        f"the bound, the weights or the validation became infinite or NaN by step {step}; {last}. "
        "Lower train.lr or model.inner_rate, or use --precision float64."
    )


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last one that a kill cut short does not count."""
    try:
        text = (folder / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    try:
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / 'metrics.jsonl'} is damaged: a line is not JSON ({error}).") from error
    for line in lines:
        numbers = (line.get("step"), line.get("seconds", 0.0)) if isinstance(line, dict) else (None,)
        if not all(type(number) in (int, float) for number in numbers):
            raise ValueError(f"{folder / 'metrics.jsonl'} is damaged: a line's step or seconds is no number.")
    return lines


def _newest(folder: Path) -> checkpoint.Checkpoint | None:
    return checkpoint.load(folder / LAST) if (folder / LAST).exists() else None


def keep_until(folder: Path, step: int) -> float:
    """Drops what a killed run logged after its last checkpoint; returns the seconds spent until then."""
    kept = [line for line in read_metrics(folder) if line["step"] <= step]
    text = "".join(json.dumps(line) + "\n" for line in kept)
    write_atomically(folder / "metrics.jsonl", lambda p: p.write_text(text, encoding="utf-8"))
    return kept[-1].get("seconds", 0.0) if kept else 0.0


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
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
