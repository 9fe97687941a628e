"""Figures people can look at."""

import textwrap
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from metavib.files import write_atomically
from metavib.likelihoods import RealLikelihood
from metavib.model import Model
from metavib.networks.repeats import unstack
from metavib.random import seeded
from metavib.tasks.task import Examples, Task
from metavib.training import build
from metavib.training.config import Config
from metavib.training.protocols.regression import source

PLOT = 50  # name of the random stream of tasks that are drawn
FIGURE_SHOTS = (1, 2, 3, 4, 5, 7)
INK, MEAN, BAND = "#222222", "#1f5fa8", "#8fb8e8"
COLOURS = ("#1f5fa8", "#d1682b", "#3a8f4d", "#8a5bb5", "#b8323f", "#7a6a55", "#c767a3", "#777777", "#a3a32b", "#2aa7b8")
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "metavib",  # the same figure gives the same file
}


def save(figure: Figure, path: Path) -> None:
    """Writes a figure atomically, in the format its name says."""
    kind = path.suffix.removeprefix(".") or "png"
    write_atomically(path, lambda p: figure.savefig(p, format=kind, dpi=150))


@torch.no_grad()
def predictions(model: Model, config: Config, *, seed: int = 1, shots: tuple[int, ...] = FIGURE_SHOTS) -> Figure:
    """One task with more and more support points: truth, posterior mean, and two standard deviations (figure 2).

    The support points of a panel are those of the panel before and more. Of several repeats the first is drawn.
    """
    grid, values, support = _curve(config, seed)
    model = build.at_test(model, config)
    if config.repeats > 1:
        model = unstack(model, 0)
    assert isinstance(model.likelihood, RealLikelihood)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 5))
        axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
        for ax, k in zip(axes, shots, strict=True):
            mean, std = _predict(model, config, Examples(*(t[:k] for t in support)), grid)
            ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color=BAND, alpha=0.5, lw=0, label="± 2 SD")
            ax.plot(grid, values, color=INK, lw=1, ls="--", label="truth")
            ax.plot(grid, mean, color=MEAN, lw=1.6, label="mean")
            ax.plot(support.x[:k, 0], support.y[:k], "o", color=INK, ms=4, label="support")
            ax.set_title(f"K = {k}")
        axes = figure.axes
        limit = 1.6 * float(values.abs().max())
        axes[0].set_ylim(-limit, limit)
        axes[0].set_xlim(float(grid[0]), float(grid[-1]))
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        for ax in axes[3:]:
            ax.set_xlabel("x")
        for ax in axes[::3]:
            ax.set_ylabel("y")
        figure.suptitle(f"{config.method} on one new {config.tasks.name} task", fontsize=11)
    return figure


def learning_curve(lines: list[dict[str, Any]], title: str) -> Figure:
    """The bound, its two terms, and the validation error against the step."""
    checked = [line for line in lines if "validation" in line]
    lines = [line for line in lines if "value" in line]  # before the first step there is only a validation
    steps = [line["step"] for line in lines]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3))
        left, middle, right = figure.subplots(1, 3)
        left.plot(steps, [line["value"] for line in lines], color=MEAN, lw=1)
        left.set_title("bound F, mean over tasks")
        middle.plot(steps, [-line["fit"] for line in lines], color=INK, lw=1, label="− fit")
        if all(line["rate"] is not None for line in lines):  # a Dirac encoder has none
            middle.plot(steps, [line["rate"] for line in lines], color=MEAN, lw=1, label="rate (KL)")
        middle.set_yscale("symlog", linthresh=1)
        middle.set_title("its terms")
        middle.legend(frameon=False)
        for name, value in (("mse", "validation MSE"), ("accuracy", "validation accuracy")):
            points = [(line["step"], line["validation"][name]) for line in checked if name in line["validation"]]
            if points:
                right.plot(*zip(*points, strict=True), "o-", color=MEAN, ms=3, lw=1)
                right.set_title(value)
                right.set_yscale("log" if name == "mse" else "linear")
        for ax in (left, middle, right):
            ax.set_xlabel("step")
        figure.suptitle(title, fontsize=11)
    return figure


def reliability(panels: dict[str, list[dict[str, Any]]]) -> Figure:
    """Accuracy against confidence in 15 bins: calibrated predictions lie on the diagonal.

    Args:
        panels: for each title, the test metrics of one or several trainings, a line each.
    """
    columns = min(6, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 1.7 * columns, 0.6 + 1.8 * rows))
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax, (name, found) in zip(axes.flat, panels.items(), strict=False):
            ax.plot([0, 1], [0, 1], color=INK, lw=0.8, ls="--")
            shares = [sum(counts) for counts in zip(*(m["reliability"]["points"] for m in found), strict=True)]
            places = [(i + 0.5) / len(shares) for i in range(len(shares))]
            heights = [n / max(shares) * 0.3 for n in shares]
            ax.bar(places, heights, width=1 / len(shares), color=BAND, alpha=0.6, lw=0)
            for m in found:
                curve = m["reliability"]
                points = [p for p in zip(curve["confidence"], curve["accuracy"], strict=True) if None not in p]
                ax.plot(*zip(*points, strict=True), "o-", color=MEAN, ms=2.5, lw=1.2, alpha=0.8)
            text = "\n".join(textwrap.wrap(name, 22))
            ax.set_title(f"{text}\nECE {100 * fmean(m['ece'] for m in found):.1f}%", fontsize=7)
            ax.set(xlim=(0, 1), ylim=(0, 1))
        for ax in figure.axes[max(0, len(panels) - columns) : len(panels)]:
            ax.tick_params(labelbottom=True)  # the lowest panel of each column
        for ax in figure.axes[len(panels) :]:
            ax.axis("off")
        figure.supxlabel("confidence (bars: share of points)", fontsize=8)
        figure.supylabel("accuracy", fontsize=8)
    return figure


def _curve(config: Config, seed: int) -> tuple[Tensor, Tensor, Examples]:
    """A task's values at many sorted points, and support points of it."""
    dense = replace(config.tasks, shots=max(FIGURE_SHOTS), min_shots=None, queries=400)
    task = source(dense).sample((), seeded(seed, PLOT))
    order = task.query.x[:, 0].argsort()
    return task.query.x[order, 0], task.query.y[order], task.support


def _predict(model: Model, config: Config, support: Examples, grid: Tensor) -> tuple[Tensor, Tensor]:
    query = Examples(grid[:, None], torch.zeros_like(grid), torch.ones_like(grid, dtype=torch.bool))
    task = Task(support, query).to(build.DTYPES[config.precision])
    mean, var = model.likelihood.predict(model(task, seeded(0)))  # type: ignore[operator]
    return mean.float(), var.sqrt().float()
