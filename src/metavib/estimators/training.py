"""Meta-training in memory: the loop behind `fit`, without a run folder."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import isfinite, nan
from typing import NamedTuple

import torch
from torch import Generator

from metavib.model import Model
from metavib.objective import Objective
from metavib.progress import Bar
from metavib.random import seeded
from metavib.tasks.task import Task
from metavib.training import metrics
from metavib.training.step import backward, decay

Draw = Callable[[Generator], tuple[Model, Task]]
"""Draws the tasks of a step, and gives the model to train on them: one for all, or one a number of classes."""

VALIDATIONS = 40  # during a training that is not stopped early


class Schedule(NamedTuple):
    """How long and how fast: `steps` of Adam from `rate`, on a cosine to zero, up `objective`; `beta` weighs the KL.

    Training stops early once `patience` validations in a row (of `VALIDATIONS`) brought nothing better.
    """

    objective: Objective
    steps: int
    rate: float
    beta: float
    patience: int


class History(NamedTuple):
    """What happened: `steps` taken, the `step` whose weights were kept, and the mean log density at each validation."""

    steps: int
    step: int
    scores: tuple[tuple[int, float], ...]


def meta_train(
    model: Model,
    draw: Draw,
    validation: Sequence[tuple[Model, Task]],
    schedule: Schedule,
    *,
    seed: int,
    device: str = "cpu",
    show: bool = False,
) -> History:
    """Trains a model in place and leaves it with the weights that were best on validation, in evaluation mode.

    It is trained on a device, and comes back to the CPU, where a few rows are adapted to as fast.

    Args:
        model: owns the weights; the models that `draw` and `validation` name must share them.
        draw: training tasks.
        validation: tasks to stop and select by; none: the last weights are kept.
        schedule: of the training.
        seed: of tasks and noise.
        device: where to train.
        show: draw a progress bar.

    Raises:
        FloatingPointError: if the weights become NaN or infinite and there is nothing better to go back to.
    """
    tasks, noise = seeded(seed, 0), seeded(seed, 1, device=device)
    model.to(device)
    validation = [(each, task.to(device)) for each, task in validation]
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=schedule.rate)
    every = max(1, schedule.steps // VALIDATIONS)
    best_state, best_step, best = deepcopy(model.state_dict()), 0, _score(validation)
    scores, step = [(0, best)], 0
    with Bar("meta-training", schedule.steps, show=show) as advance:
        for step in range(1, schedule.steps + 1):
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate * decay("cosine", (step - 1) / schedule.steps)
            optimiser.zero_grad()
            shared, batch = draw(tasks)
            bound = backward(schedule.objective(shared.train(), batch.to(device), beta=schedule.beta, noise=noise))
            optimiser.step()
            if step % every and step != schedule.steps:
                continue
            if validation:
                score = _score(validation)
                scores.append((step, score))
                if score > best or not isfinite(best):
                    best_state, best_step, best = deepcopy(model.state_dict()), step, score
            advance(step, f"bound {float(bound.value.mean()):.3f}" + f", held out {best:.3f}" * bool(validation))
            if validation and step - best_step >= schedule.patience * every:
                break
    if validation:
        model.load_state_dict(best_state)
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise FloatingPointError("the weights became NaN or infinite: lower learning_rate, or look for outliers in X.")
    model.cpu().eval()
    return History(step, best_step if validation else step, tuple(scores) if validation else ())


@torch.no_grad()
def _score(validation: Sequence[tuple[Model, Task]]) -> float:
    """Mean over tasks of the mean log predictive density of their queries."""
    values = []
    for model, task in validation:
        model.eval()
        noise = seeded(0, device=task.query.y.device)  # the same draws every time, so that scores can be compared
        q = model(task, noise)
        values.append(metrics.log_density(model.likelihood.log_predictive(q, task.query.y, noise), task.query.mask))
    return float(torch.cat(values).mean()) if values else nan
