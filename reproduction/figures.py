"""Figures of many runs: scores against a setting, our numbers beside the paper's, how sure every method is."""

import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from metavib.show import plots
from metavib.show.plots import BAND, COLOURS, INK, MEAN, STYLE
from metavib.training import checkpoint
from metavib.training.run_folder import LAST
from reproduction import curves, published
from reproduction.compare import Cell
from reproduction.store import Records
from reproduction.tables import EXPERIMENTS, MAIN_TABLE, by_experiment, by_line, shots, table_2, title


def beta(records: Records) -> Figure:
    """Scores against beta, a panel for each experiment and score, a line for each number of shots."""
    panels = [(e, group, score) for e, group in by_experiment(records).items() for score in curves.scores(group)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 3.6 * min(2, len(panels)), 0.4 + 2.8 * -(-len(panels) // 2)))
        axes = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False).flat
        for ax, (experiment, group, score) in zip(axes, panels, strict=True):
            for i, (k, curve) in enumerate(curves.beta_curves(group, score).items()):
                x, mean, half = _points(curve)
                ax.errorbar(x, mean, half, fmt="o-", ms=3, lw=1.2, capsize=2, color=COLOURS[i], label=f"K = {k}")
            name, label = EXPERIMENTS.get(experiment, experiment), curves.SCORES[score][0]
            ax.set(xscale="log", xlabel="beta", ylabel=label, title=name)
            ax.set_yscale("log" if score == "mse" else "linear")
            ax.legend(frameon=False)
    return figure


def tested_shots(records: Records) -> Figure:
    """Accuracy against the number of shots at test, a line for each method with its 95% band."""
    return _tested(records, "shots", "shots K at test")


def inner_steps(records: Records) -> Figure:
    """Accuracy against the number of inner steps at test, a line for each method with its 95% band.

    Where all else is near 100 %, and MAML without a step at chance, heights are those of the logarithm of the errors.
    """
    figure = _tested(records, "inner_steps", "inner steps at test")
    heights = (lambda accuracy: -np.log10(np.maximum(100 - accuracy, 0.01)), lambda y: 100 - 10**-y)
    for ax in figure.axes:
        if ax.lines and max(np.max(line.get_ydata()) for line in ax.lines) > 90:
            ax.set_yscale("function", functions=heights)
            ax.set_yticks([20, 50, 80, 90, 95, 98, 99, 99.5])
    return figure


def _tested(records: Records, varied: str, label: str) -> Figure:
    """A panel for each number of shots in training, two in a row."""
    panels = curves.by_training(records)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawn = {name: curves.tested_curves(group, varied, curves.scores(group)[0]) for name, group in panels.items()}
    colours = _colours([list(lines) for lines in drawn.values()])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 4.2 * columns, 1 + 3.2 * rows))
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        for ax, (name, group) in zip(axes, panels.items(), strict=False):
            score = curves.scores(group)[0]
            for line, curve in drawn[name].items():
                colour = colours[line]
                x, mean, half = _points(curve)
                ax.plot(x, mean, "o-", ms=2.5, lw=1.4, color=colour, label=line)
                low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
                ax.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
            ax.set(xlabel=label, ylabel=curves.SCORES[score][0], title=name)
            if score == "mse":
                ax.set_yscale("log")
            if max(x) > 50:  # a stream, from a few points to many
                ax.set_xscale("log")
                ax.set_xticks(x, [f"{k:g}" for k in x])
            else:
                ax.xaxis.get_major_locator().set_params(integer=True)
        known = {text: line for ax in figure.axes for line, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(known.values(), known, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _colours(panels: list[list[str]]) -> dict[str, str]:
    """A colour for each line: one for all variants of a method, where no panel has several of them."""
    methods = {line: line.partition(",")[0] for lines in sorted(panels, key=len, reverse=True) for line in lines}
    several = any(len({methods[line] for line in lines}) < len(lines) for lines in panels)
    names = list(methods) if several else list(dict.fromkeys(methods.values()))
    return {line: COLOURS[names.index(line if several else methods[line]) % len(COLOURS)] for line in methods}


def _points(curve: curves.Curve) -> tuple[list[float], list[float], list[float]]:
    """Where the points of a curve lie, and the half-widths of their intervals."""
    return list(curve), [p.mean for p in curve.values()], [p.interval or 0.0 for p in curve.values()]


def comparison(records: Records) -> Figure:
    """Table 2 as a figure: a panel for each column that was run, a line for each method, bars are 95% intervals."""
    panels = []
    for grid in table_2(records):
        for i, head in enumerate(grid.header[1:]):
            column = {row.label: row.cells[i] for row in grid.rows}
            cells = {label: c for label, c in column.items() if isinstance(c, Cell) and (c.ours or c.paper)}
            if any(c.ours for c in cells.values()):
                panels.append((f"{grid.title}, {head}", cells))
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


def first_of_the_paper(records: Records) -> Figure:
    """GP-VIB here, with both recipes, beside the best of the paper's eleven methods in each column of table 2."""
    cells = {cell.key: cell for grid in table_2(records) for cell in grid.cells}
    columns = list(published.TABLE_2_COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 3.8))
        ax = figure.subplots()
        for y, (name, k) in enumerate(columns):
            theirs = {row: published.TABLE_2[row, name, k] for row in MAIN_TABLE}
            best, top = max(theirs.items(), key=lambda item: item[1].mean)
            marks = (
                (top, "#999999", "D", "the best of the paper's table"),
                (cells[f"{name}/gp-vib-cosine-{k}"].ours, BAND, "s", "GP-VIB cosine here, the paper's recipe"),
                (cells[f"{name}/gp-vib-cosine-improved-{k}"].ours, MEAN, "o", "GP-VIB cosine here, our recipe"),
            )
            for found, colour, mark, label in marks:
                if found is not None:
                    style: Any = {"fmt": mark, "ms": 5, "lw": 1.2, "color": colour, "label": label}
                    ax.errorbar(found.mean, y, xerr=found.interval or 0.0, **style)
            ax.annotate(title(best), (top.mean, y - 0.28), fontsize=6.5, color="#777777", ha="center")
        labels = [f"{EXPERIMENTS[name]}, {k}-shot" for name, k in columns]
        ax.set_yticks(range(len(columns)), labels, fontsize=8)
        ax.set_ylim(len(columns) - 0.5, -0.6)
        ax.grid(axis="y", lw=0.3, alpha=0.6)
        ax.set_xlabel("5-way accuracy %; bars are 95% intervals")
        known = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        figure.legend(known.values(), known, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def same_recipe(records: Records) -> Figure | None:
    """Accuracy, NLL and ECE of every method that our own recipe was given; None where it was given to none."""
    ours = {name: record for name, record in records.items() if record["variant"] == "improved"}
    return quality(ours) if ours else None


def quality(records: Records) -> Figure:
    """Accuracy, NLL and ECE of every method: a row of panels for each experiment, a mark for each training."""
    groups = by_experiment(records)
    shown = (("accuracy", "accuracy %", 100.0), ("nll", "NLL", 1.0), ("ece", "ECE %", 100.0))
    with matplotlib.rc_context(STYLE):
        height = sum(0.6 + 0.22 * len(by_line(group)) for group in groups.values())
        figure = Figure(figsize=(9.5, 0.8 + height))
        ratios = [2 + len(by_line(group)) for group in groups.values()]
        axes = figure.subplots(len(groups), len(shown), squeeze=False, sharey="row", height_ratios=ratios)
        for row, (name, group) in zip(axes, groups.items(), strict=True):
            lines = by_line(group)
            for ax, (score, label, scale) in zip(row, shown, strict=True):
                for i, k in enumerate(sorted({shots(record) for record in group.values()})):
                    for j, found in enumerate(lines.values()):
                        for record in (record for record in found if shots(record) == k):
                            value = record["evaluation"]["rows"][0]["metrics"][score]
                            mean, half = (value, 0.0) if score == "ece" else (value["mean"], value["episode_ci95"])
                            style: Any = {"fmt": "os"[i % 2], "ms": 4, "lw": 1, "color": COLOURS[i]}
                            ax.errorbar(scale * mean, j, xerr=scale * half, **style, label=f"{k}-shot")
                ax.set_xlabel(label)
                ax.grid(axis="y", lw=0.3, alpha=0.6)
                ax.set_yticks(range(len(lines)), [title(*line) for line in lines], fontsize=8)
                ax.set_ylim(len(lines) - 0.5, -0.5)
                if score == "ece":
                    ax.set_xscale("log")
                    ax.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"], minor=False)
                    ax.set_xticks([], minor=True)
                    ax.axvline(2, color=INK, lw=0.8, ls="--")
            row[0].set_title(EXPERIMENTS.get(name, name), loc="left", fontsize=9)
        marks = {text: mark for ax in figure.axes for mark, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(marks.values(), marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=8)
    return figure


def reliability(records: Records) -> Figure:
    """Accuracy against confidence, a panel for each line and a curve for each training.

    Of several experiments it is the one with the most runs.
    """
    group = max(by_experiment(records).values(), key=len)
    panels = {}
    for k in sorted({shots(record) for record in group.values()}):
        for line, found in by_line(group).items():
            if runs := [record["evaluation"]["rows"][0]["metrics"] for record in found if shots(record) == k]:
                panels[f"{title(*line)}, {k}-shot"] = runs
    return plots.reliability(panels)


def predictions(run: Path) -> Figure | None:
    """Figure 2: the predictions of a trained model on one task with 1 to 7 points; None where there is no model."""
    if not (run / LAST).exists():
        return None
    saved = checkpoint.load(run / LAST)
    return plots.predictions(checkpoint.restore_model(saved), saved.config)
