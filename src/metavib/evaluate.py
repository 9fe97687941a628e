"""Meta-testing: how good a trained model is on new tasks, with intervals.

Every number is a mean over test tasks that depend on the test seed and the sizes alone, so all methods are judged on
the same tasks. Two spreads exist and are never mixed: `ci95_over_tasks`, the 95% interval of that mean for one
training, and `ci95_over_repeats`, the 95% interval of the mean over independent trainings.
"""

from dataclasses import replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from metavib import build
from metavib.config import Config
from metavib.likelihoods import RealLikelihood
from metavib.model import Model
from metavib.noise import seeded
from metavib.progress import bar
from metavib.tasks.gaussian import GaussianTasks
from metavib.tasks.task import Examples, Task, select

VALIDATION, TEST = 20, 30  # names of random streams, apart from training's
LEVELS = (0.5, 0.9, 0.95)
CHUNK = 250  # tasks at once: enough to be fast, small enough for any memory


def evaluate(model: Model, config: Config, *, quiet: bool = False) -> dict[str, Any]:
    """The test of a trained regression model: a row for each number of shots and of inner steps.

    Args:
        model: trained under `config`, repeats and all.
        config: its `test` section says what to test.
        quiet: no progress bar.
    """
    test = config.test
    steps = test.inner_steps or (config.model.inner_steps,)
    if config.method == "gp-vib":
        steps = (0,)
    rows = []
    with bar("testing", len(test.shots) * len(steps) * test.tasks, show=not quiet) as advance:
        done = 0
        for shots in test.shots:
            tasks = test_tasks(config, shots)
            for inner in steps:
                scores: list[dict[str, Tensor]] = []
                tested = at_test(model, config, inner_steps=inner)
                for chunk in range(0, test.tasks, CHUNK):
                    part = select(tasks, slice(chunk, chunk + CHUNK))
                    scores.append(score(tested, part, config))
                    done += part.batch_shape[0]
                    advance(done, f"K = {shots}")
                columns = {name: torch.cat([s[name] for s in scores], -1) for name in scores[0]}
                row = {"shots": shots, "tasks": test.tasks, "metrics": {k: summarise(v) for k, v in columns.items()}}
                rows.append(row if config.method == "gp-vib" else {**row, "inner_steps": inner})
    return {"experiment": config.tasks.name, "method": config.method, "repeats": config.repeats, "rows": rows}


def validate(model: Model, config: Config) -> dict[str, float]:
    """Mean error and log density on the validation tasks, at the sizes of training."""
    source = build.source(config.tasks)
    tasks = source.sample((config.train.validation_tasks,), seeded(VALIDATION))
    tested = at_test(model, config, inner_steps=config.model.inner_steps)
    scores = score(tested, tasks.to(next(model.parameters()).device), config)
    return {name: float(scores[name].mean()) for name in ("mse", "log_density")}


def test_tasks(config: Config, shots: int) -> Task:
    """The test tasks of a given number of shots."""
    source = build.source(replace(config.tasks, shots=shots, min_shots=None, queries=config.test.queries))
    return source.sample((config.test.tasks,), seeded(config.test.seed, TEST, shots))


def at_test(model: Model, config: Config, *, inner_steps: int) -> Model:
    """The same weights under test-time settings: inner steps, and more draws of the weights."""
    options = replace(config.model, inner_steps=inner_steps, weight_samples=config.test.weight_samples)
    tested = build.model(replace(config, model=options)).to(next(model.parameters()).device)
    tested.load_state_dict(model.state_dict())
    return tested.eval()


@torch.no_grad()
def score(model: Model, tasks: Task, config: Config) -> dict[str, Tensor]:
    """Scores of each task, `(repeats, tasks)`: squared error, log predictive density, coverage of central intervals."""
    likelihood, noise = model.likelihood, seeded(config.test.seed, TEST)
    assert isinstance(likelihood, RealLikelihood)
    tasks = tasks.to(build.DTYPES[config.precision])
    shape = (config.repeats, *tasks.batch_shape)
    if config.repeats > 1:
        tasks = Task(*(Examples(*(t.expand(config.repeats, *t.shape) for t in part)) for part in tasks))
    q, y, mask = model(tasks, noise), tasks.query.y, tasks.query.mask
    mean, _ = likelihood.predict(q)
    tail = (likelihood.predictive_cdf(q, y) - 0.5).abs()
    points = {"mse": (mean - y).square(), "log_density": likelihood.log_predictive(q, y)}
    points |= {f"coverage_{level:.0%}".rstrip("%"): (tail <= level / 2).to(y.dtype) for level in LEVELS}
    source = build.source(config.tasks)
    if isinstance(source, GaussianTasks):
        best = source.optimum(tasks)
        points |= {"optimal_log_density": best, "gap_to_optimum": best - points["log_density"]}
    return {k: (torch.where(mask, v, 0).sum(-1) / mask.sum(-1)).reshape(shape) for k, v in points.items()}


def summarise(values: Tensor) -> dict[str, Any]:
    """Mean and intervals of scores `(repeats, tasks)`."""
    repeats, tasks = values.shape
    means = values.mean(-1)
    # The error of a mean over repeats and tasks: tasks are shared by the repeats, so average those first.
    over_tasks = 1.96 * float(values.mean(0).std()) / sqrt(tasks) if tasks > 1 else None
    summary: dict[str, Any] = {"mean": float(means.mean()), "ci95_over_tasks": over_tasks}
    if repeats > 1:
        summary |= {"ci95_over_repeats": 1.96 * float(means.std()) / sqrt(repeats), "repeats": means.tolist()}
    return summary
