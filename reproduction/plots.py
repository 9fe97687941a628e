"""Figures of many runs: curves over a setting, ours beside the paper's, reliability of every row."""

import textwrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from metavib.show import plots
from metavib.show.plots import COLOURS, MEAN, STYLE
from reproduction.compare import Cell
from reproduction.grids import Grid, curves
from reproduction.grids.grid import EXPERIMENTS, MAIN_TABLE, by_cell, by_experiment, ordered, title


def beta_curve(records: dict[str, Any]) -> Figure:
    """Scores against beta, a panel for each experiment and score, a line for each number of shots."""
    panels = [(e, group, score) for e, group in by_experiment(records).items() for score in curves.scores(group)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 3.6 * min(2, len(panels)), 0.4 + 2.8 * -(-len(panels) // 2)))
        axes = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False).flat
        for ax, (experiment, group, score) in zip(axes, panels, strict=True):
            for i, (shots, curve) in enumerate(curves.beta_curves(group, score).items()):
                x, mean, half = _points(curve)
                ax.errorbar(x, mean, half, fmt="o-", ms=3, lw=1.2, capsize=2, color=COLOURS[i], label=f"K = {shots}")
            ax.set(
                xscale="log",
                xlabel="beta",
                ylabel=curves.SCORES[score][0],
                title=EXPERIMENTS.get(experiment, experiment),
            )
            ax.set_yscale("log" if score == "mse" else "linear")
            ax.legend(frameon=False)
    return figure


def shots_curve(records: dict[str, Any]) -> Figure:
    """Accuracy against the number of shots at test, a line a method with its 95% band, a panel a training."""
    return _tested(records, "shots", "shots K at test")


def inner_steps_curve(records: dict[str, Any]) -> Figure:
    """Accuracy against the number of inner steps at test, a line a method with its 95% band, a panel a training.

    Heights are those of the logarithm of the errors: MAML without a step is at chance, and all else is near 100 %.
    """
    figure = _tested(records, "inner_steps", "inner steps at test")
    heights = (lambda accuracy: -np.log10(np.maximum(100 - accuracy, 0.01)), lambda y: 100 - 10**-y)
    for ax in figure.axes:
        ax.set_yscale("function", functions=heights)
        ax.set_yticks([20, 50, 80, 90, 95, 98, 99, 99.5])
    return figure


def _tested(records: dict[str, Any], varied: str, label: str) -> Figure:
    panels = curves.by_training(records)
    colours: dict[str, Any] = {}  # a method has one colour in all panels
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 4.2 * len(panels), 4.2))
        for ax, (name, group) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
            score = curves.scores(group)[0]
            for row, curve in curves.tested_curves(group, varied, score).items():
                colour = colours.setdefault(row, COLOURS[len(colours) % len(COLOURS)])
                x, mean, half = _points(curve)
                ax.plot(x, mean, "o-", ms=2.5, lw=1.4, color=colour, label=row)
                low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
                ax.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
            ax.set(xlabel=label, ylabel=curves.SCORES[score][0], title=name)
            ax.xaxis.get_major_locator().set_params(integer=True)
        lines = {text: line for ax in figure.axes for line, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _points(curve: curves.Curve) -> tuple[list[float], list[float], list[float]]:
    """Where a curve's points lie, and the half-widths of their intervals."""
    return list(curve), [p.mean for p in curve.values()], [p.interval or 0.0 for p in curve.values()]


def comparison(tables: list[Grid]) -> Figure:
    """Our numbers and the paper's, a panel a column, a line a method; bars are 95% intervals of the means."""
    panels = []
    for grid in tables:
        for i, head in enumerate(grid.header[1:]):
            column = {row.label: row.cells[i] for row in grid.rows}
            cells = {label: c for label, c in column.items() if isinstance(c, Cell) and (c.ours or c.paper)}
            if any(c.ours for c in cells.values()):
                panels.append((f"{grid.title}, {head}".removeprefix(", "), cells))
    columns = min(2, len(panels))
    lines = max((len(cells) for _, cells in panels), default=1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 4.4 * columns, 0.6 + (0.7 + 0.21 * lines) * -(-len(panels) // columns)))
        axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False)
        for i, (ax, (head, cells)) in enumerate(zip(axes.flat, panels, strict=False)):
            labels = list(cells)
            told = i % columns and labels == list(panels[i - 1][1])  # by the panel to the left
            for what, colour, mark, shift in (("paper", "#999999", "D", 0.14), ("ours", MEAN, "o", -0.14)):
                found = {label: getattr(cell, what) for label, cell in cells.items() if getattr(cell, what)}
                y = [labels.index(label) + shift for label in found]
                half = [e.interval or 0.0 for e in found.values()]
                style: Any = {"fmt": mark, "ms": 3.5, "lw": 1, "capsize": 1.5, "color": colour, "label": what}
                ax.errorbar([e.mean for e in found.values()], y, xerr=half, **style)
            names = ["" if told else textwrap.fill(label, 30) for label in labels]
            ax.set_yticks(range(len(labels)), names, fontsize=7)
            ax.set_ylim(len(labels) - 0.5, -0.5)
            ax.grid(axis="y", lw=0.3, alpha=0.6)
            ax.set_title(head, fontsize=9)
        for ax in figure.axes[len(panels) :]:
            ax.axis("off")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _panels(records: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The metrics of the trainings of each row and number of shots, in the order of the paper's table."""
    found = {key: [r["evaluation"]["rows"][0]["metrics"] for r in runs] for key, runs in by_cell(records).items()}
    rows = ordered((row for row, _ in found), list(MAIN_TABLE))
    keys = sorted(found, key=lambda key: (key[1], rows.index(key[0])))
    return {f"{title(row)}, {shots}-shot": found[row, shots] for row, shots in keys}


def reliability(records: dict[str, Any]) -> Figure:
    """Accuracy against confidence, a panel a row and a line a training."""
    return plots.reliability(_panels(records))
