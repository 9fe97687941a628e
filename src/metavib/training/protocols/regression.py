"""Few-shot regression: error, log predictive density and coverage on new tasks, with intervals.

Every number is a mean over test tasks that depend on the test seed and the sizes alone, so all methods are judged on
the same tasks. Two spreads exist and are never mixed: `ci95_over_tasks`, the 95% interval of that mean for one
training, and `ci95_over_repeats`, the 95% interval of the mean over independent trainings.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Any, final

import torch
from torch import Tensor

from metavib.likelihoods import RealLikelihood
from metavib.model import Model
from metavib.networks.repeats import share
from metavib.progress import Advance, Bar
from metavib.random import Stream, seeded
from metavib.tasks.gaussian import GaussianTasks
from metavib.tasks.sinusoid import Sinusoids
from metavib.tasks.source import TaskSource
from metavib.tasks.task import Task, select
from metavib.training import build, metrics
from metavib.training.config import BOUND, HIERARCHICAL, Config, TasksConfig
from metavib.training.protocols.experiment import TEST, VALIDATION, Experiment
from metavib.training.temperature import PLAIN, Temperature

LEVELS = (0.5, 0.9, 0.95)
CHUNK = 250  # tasks at once: enough to be fast, small enough for any memory


def source(tasks: TasksConfig) -> TaskSource:
    """The distribution tasks are drawn from."""
    if tasks.name == "sinusoid":
        return Sinusoids(shots=tasks.shots, queries=tasks.queries, min_shots=tasks.min_shots)
    return GaussianTasks(
        kernel=tasks.kernel,
        lengthscale=tasks.lengthscale,
        noise=tasks.noise,
        shots=tasks.shots,
        queries=tasks.queries,
        min_shots=tasks.min_shots,
    )


@final
class Regression(Experiment):
    """Sinusoids, or tasks drawn from a known Gaussian process.

    Args:
        config: that of the run.

    Example:
        >>> from metavib.training import build
        >>> from metavib.training.fields import override
        >>> from metavib.training.protocols import Regression
        >>> from metavib.training.recipes import recipe
        >>> config = override(recipe("sinusoid", "gp-vib"), {"test.tasks": 5, "test.shots": [3]})
        >>> result = Regression(config).evaluate(build.model(config), quiet=True)
        >>> [row["shots"] for row in result["rows"]], sorted(result["rows"][0]["metrics"])[-2:]
        ([3], ['log_density', 'mse'])
    """

    def __init__(self, config: Config) -> None:
        if config.method not in BOUND:
            raise ValueError(f"{config.method} is a classifier; {config.tasks.name} takes {', '.join(BOUND)}.")
        if config.model.backbone != "mlp":
            raise ValueError(f"model.backbone must be mlp on {config.tasks.name}; got {config.model.backbone!r}.")
        likelihood = build.likelihood(config)
        if not isinstance(likelihood, RealLikelihood):
            raise ValueError(
                f"{config.tasks.name} needs a likelihood of real outputs; got {config.model.likelihood!r}."
            )
        self.config, self.source = config, source(config.tasks)
        self.dtype = build.DTYPES[config.precision]
        likelihood.check(self.source.sample((8,), seeded(VALIDATION)).query.y)  # counts where counts are needed

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Training tasks of sinusoids or of the Gaussian process."""
        return self.source.sample(shape, generator).to(self.dtype)

    def validate(self, model: Model) -> dict[str, float]:
        """Mean error and log density at the sizes of training."""
        tasks = self.source.sample((self.config.train.validation_tasks,), seeded(VALIDATION)).to(self.config.device)
        mode = model.training
        scores = self.score(model.eval(), tasks)
        model.train(mode)
        result = {name: float(scores[name].mean()) for name in ("mse", "log_density")}
        return {**result, "score": -result["mse"]}

    def evaluate(self, model: Model, *, temperature: Temperature = PLAIN, quiet: bool = False) -> dict[str, Any]:
        """A row for each number of shots and of inner steps."""
        config, test = self.config, self.config.test
        sizes, steps = test.shots or (config.tasks.shots,), steps_at_test(config)
        rows: list[dict[str, Any]] = []
        with Bar("testing", len(sizes) * len(steps) * test.tasks, show=not quiet) as advance:
            for shots in sizes:
                tasks = self.test_tasks(shots)
                for inner in steps:
                    tested, done = build.at_test(model, config, inner_steps=inner), len(rows) * test.tasks
                    columns = score_all(partial(self.score, tested), tasks, advance, done=done, note=f"K = {shots}")
                    metrics_of = {name: summarise(values) for name, values in columns.items()}
                    row = {"shots": shots, "tasks": test.tasks, "metrics": metrics_of}
                    rows.append(row if inner is None else {**row, "inner_steps": inner})
        return {"experiment": config.tasks.name, "method": config.method, "repeats": config.repeats, "rows": rows}

    def test_tasks(self, shots: int) -> Task:
        """The test tasks of a given number of shots."""
        test = self.config.test
        sized = source(replace(self.config.tasks, shots=shots, min_shots=None, queries=test.queries))
        return sized.sample((test.tasks,), seeded(test.seed, TEST, shots)).to(self.config.device)

    @torch.no_grad()
    def score(self, model: Model, tasks: Task) -> dict[str, Tensor]:
        """Scores of each task, `(repeats, tasks)`: squared error, log predictive density, coverage of intervals."""
        likelihood, repeats = model.likelihood, self.config.repeats
        assert isinstance(likelihood, RealLikelihood)
        tasks = tasks.to(self.dtype)
        shape = (repeats, *tasks.batch_shape)
        tasks = share(tasks, repeats)
        q = model(tasks, seeded(self.config.test.seed, TEST, device=self.config.device))
        _, y, mask = tasks.query
        mean, _ = likelihood.predict(q)
        pit, log_p = likelihood.predictive_cdf(q, y), likelihood.log_predictive(q, y)
        scores = {"mse": metrics.mse(mean, y, mask), "log_density": metrics.log_density(log_p, mask)}
        scores |= {f"coverage_{round(100 * level)}": metrics.coverage(pit, level, mask) for level in LEVELS}
        if isinstance(self.source, GaussianTasks):
            best = metrics.log_density(self.source.optimum(tasks), mask)
            scores |= {"optimal_log_density": best, "gap_to_optimum": best - scores["log_density"]}
        return {name: values.reshape(shape).cpu() for name, values in scores.items()}


def steps_at_test(config: Config) -> tuple[int | None, ...]:
    """The numbers of inner steps to test with; GP-VIB and a hierarchical prior take none."""
    return (
        (None,) if config.method in ("gp-vib", HIERARCHICAL) else config.test.inner_steps or (config.model.inner_steps,)
    )


def score_all(
    score: Callable[[Task], dict[str, Tensor]], tasks: Task, advance: Advance, *, done: int, note: str
) -> dict[str, Tensor]:
    """Scores of all tasks, `(repeats, tasks)`, a chunk at a time, on a bar that stands at `done`."""
    scores = []
    for start in range(0, tasks.batch_shape[0], CHUNK):
        scores.append(score(select(tasks, slice(start, start + CHUNK))))
        advance(done + min(start + CHUNK, tasks.batch_shape[0]), note)
    return {name: torch.cat([s[name] for s in scores], -1) for name in scores[0]}


def summarise(values: Tensor) -> dict[str, Any]:
    """Mean and intervals of scores `(repeats, tasks)`."""
    repeats, tasks = values.shape
    means = values.mean(-1)
    # The error of a mean over repeats and tasks: tasks are shared by the repeats, so average those first.
    over_tasks = metrics.interval(values.mean(0)).ci95 if tasks > 1 else None
    summary: dict[str, Any] = {"mean": float(means.mean()), "ci95_over_tasks": over_tasks}
    if repeats > 1:
        summary |= {"ci95_over_repeats": 1.96 * float(means.std()) / sqrt(repeats), "repeats": means.tolist()}
    return summary
