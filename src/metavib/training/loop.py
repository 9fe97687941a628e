"""Meta-training: one loop, top to bottom.

A step is: sample tasks, bound, backward, optimiser (`metavib.training.step`). Now and then the loop logs, validates and
saves, in a run folder (`metavib.training.run_folder`). It ends with the last step, with the time it was given, or when
validation has long not improved, whichever comes first.

On a CPU a resumed run ends bit-identical to one that was never interrupted: the checkpoint holds weights, optimiser and
random streams, and nothing else decides. With a limit on time the clock decides too.
"""

from collections.abc import Callable, Iterable
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavib.files import naming, to_json
from metavib.model import Model
from metavib.objective import Bound
from metavib.progress import Bar, say
from metavib.random import seeded
from metavib.training import build, checkpoint, run_folder
from metavib.training.config import Config
from metavib.training.engine import compiles, fastest, seconds_as_written
from metavib.training.engine.ranks import ALONE, Ranks
from metavib.training.fields import differences
from metavib.training.protocols import Experiment, experiment
from metavib.training.protocols.experiment import PROTOTYPES
from metavib.training.run_folder import BEST, CONFIG, LAST, METRICS, MOVES
from metavib.training.step import Step, adam, decay, set_rates
from metavib.training.stopping import Clock, Interrupted, Stop, exhausted
from metavib.training.temperature import PLAIN

TRAIN = 10  # name of the random stream, apart from those of validation and test by construction


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
        folder: the run folder, new or empty unless resuming.
        resume: go on from the folder's newest checkpoint (from the start where there is none yet). The config may then
            ask for more steps than before.
        quiet: draw no progress bar.
        world: the config's experiment, where it is at hand; its data is read otherwise.
        watch: told step and score after each validation; it may raise, which ends the training.
        ranks: the processes that share out the tasks of each step; the first of them writes the folder.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once the state is saved.
    """
    # Whatever a config can be refused for is refused here, before there is a file.
    ranks.on_first(run_folder.prepare, config, folder, resume=resume)
    options, world = config.train, world or experiment(config)
    world.check()

    # What a step needs, as it was left.
    model = build.model(config).to(config.device).train()
    objective = ranks.sharded(build.objective(config), model, options.tasks)
    optimiser = adam(model, config)
    streams = {name: seeded(config.seed, TRAIN, i, device=config.device) for i, name in enumerate(("tasks", "noise"))}
    start, best, temperature = 0, -inf, PLAIN
    if saved := ranks.on_first(run_folder.newest, folder):
        if differences(saved.config, config).keys() - {"train.steps", "train.minutes", MOVES}:
            raise ValueError(f"{folder / LAST} is of a run with another config than {folder / CONFIG}.")
        with naming(folder / LAST):
            model.load_state_dict(checkpoint.restore_model(saved).state_dict())
            checkpoint.restore_training(saved, optimiser, streams)
        start, best, temperature = saved.step, saved.best, saved.temperature
    else:
        world.acquaint(model, quiet=quiet or not ranks.first)
    ranks.on_first(run_folder.begin, config, folder)
    spent = ranks.on_first(run_folder.drop_metrics_after, folder, start or -1)
    before = {line["step"]: line["validation"] for line in run_folder.read_metrics(folder) if "validation" in line}
    scores, at_start = [validation["score"] for validation in before.values()], before.get(0, {})

    # One step, and the fastest way to take it.
    shape = (options.tasks,) if config.repeats == 1 else (config.repeats, options.tasks)
    step = Step(model, objective, world, optimiser, list(streams.values()), shape=shape, beta=options.beta)
    alone = ranks.count == 1  # what ranks say to each other can be neither compiled nor recorded
    take_step = fastest(step, config) if alone else step
    clock = Clock(options.minutes, spent)
    show, note, at_best = ranks.first and not quiet, "", dict[str, float]()
    over = ranks.any(clock.over or exhausted(scores, options.patience))
    if show and over and start < options.steps:
        say(f"no further step: {'all its time is used' if clock.over else 'validation improves no more'}")
    if show and config.model.pretrained and not start:
        say(f"weights start as those of {config.model.pretrained}")
    if show and (known := world.obvious()):
        say(f"on the same validation tasks: {_listed(known)}")
    bar = Bar("training", options.steps, start=start, limit=clock.limit, spent=spent, show=show)
    with bar as advance, Stop() as stop:
        if alone and compiles(config) and start < options.steps and not over:
            stop.at_once = _stopped(start, options.steps, folder)  # a compiler takes its time
            if show:
                advance.expect(seconds_as_written(step))
            advance(start, "compiling, half a minute")
        if not start and config.model.pretrained and ranks.first:  # what is known already is the one to beat
            at_best = at_start = clock.timed(world.validate, model)
            best, temperature = at_best["score"], world.temperature(at_best, at_start)
            scores.append(best)
            checkpoint.save(folder / BEST, config, 0, best, model, temperature=temperature)
            _log(folder, {"step": 0, "seconds": round(clock.seconds, 3), "validation": at_best})
            note = _note(at_best, at_best)
            advance(start, note)
        for n in range(start + 1, start + 1 if over else options.steps + 1):
            set_rates(optimiser, decay(options.schedule, max((n - 1) / options.steps, clock.share)))
            bound = Bound(*take_step())
            stop.at_once = ""
            stopping = ranks.any(stop.asked)
            over, due = (clock.limit is not None and ranks.any(flag) for flag in (clock.over, clock.due))
            last = over or n == options.steps
            validating = options.validate_every and (n % options.validate_every == 0 or due or last)
            saving = n % options.save_every == 0 or due or last or stopping  # of time little is lost by a kill
            logging = n % options.log_every == 0 or validating or last
            advance(n)
            if logging or saving:
                bound = ranks.gathered(bound)
            if logging and ranks.first:
                line: dict[str, Any] = {"step": n, "seconds": round(clock.seconds, 3)}
                line |= {name: _number(term) for name, term in zip(Bound._fields, bound, strict=True)}
                _check_finite((bound.value,), n, folder)
                if validating:
                    validation = line["validation"] = clock.timed(world.validate, model)
                    _check_finite(map(torch.tensor, validation.values()), n, folder)
                    scores.append(validation["score"])
                    temperature = world.temperature(validation, at_start)
                    if validation["score"] > best:
                        best, at_best = validation["score"], validation
                        checkpoint.save(folder / BEST, config, n, best, model, temperature=temperature)
                    note = _note(validation, at_best)
                _log(folder, line)
                advance(n, note or f"bound {line['value']:.3g}")
                if validating and watch:
                    watch(n, line["validation"]["score"])
            if validating and ranks.any(exhausted(scores, options.patience)):
                last = saving = True
            if saving:
                state: Any = (config, n, best, model, optimiser, streams)
                ranks.on_first(_check_finite, (bound.value, *model.parameters()), n, folder)
                ranks.on_first(checkpoint.save, folder / LAST, *state, temperature=temperature)
                if not last and stopping:
                    raise Interrupted(_stopped(n, options.steps, folder))
            if last:
                break
    return ranks.on_first(run_folder.selected, folder).to(config.device)


def _log(folder: Path, line: dict[str, Any]) -> None:
    with open(folder / METRICS, "a", encoding="utf-8") as file:
        file.write(to_json(line) + "\n")


def _listed(known: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in known.items())


def _stopped(step: int, steps: int, folder: Path) -> str:
    return f"stopped after {step} of {steps} steps; continue with --resume {folder}"


def _note(now: dict[str, float], at_best: dict[str, float]) -> str:
    """What stands beside the progress bar: the first of the validation's metrics, and what it was at the best step.

    Where prototypes of the same features are known too, both are of the best step, so that it fits 80 columns.
    """
    name = next(iter(now))
    if PROTOTYPES in at_best:
        return f"{name} {at_best[name]:.3g}, {PROTOTYPES} {at_best[PROTOTYPES]:.3g}"
    return f"{name.replace('_', ' ')} {now[name]:.3g}" + (f", best {at_best[name]:.3g}" if at_best else "")


def _number(term: Tensor) -> float | None:
    """A mean as JSON holds it: the infinite KL of a Dirac encoder is no number there."""
    mean = float(term.mean())
    return mean if isfinite(mean) else None


def _check_finite(tensors: Iterable[Tensor], step: int, folder: Path) -> None:
    """Stops a training that has diverged before its state replaces the last good one."""
    if all(bool(t.isfinite().all()) for t in tensors):
        return
    last = f"the last good state is in {folder / LAST}" if (folder / LAST).exists() else "nothing was saved yet"
    raise FloatingPointError(
        f"the bound, the weights or the validation became infinite or NaN by step {step}; {last}. "
        "Lower train.lr or model.inner_rate, or use --precision float64."
    )
