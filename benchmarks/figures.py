"""`python -m benchmarks figures`: one figure for each claim of the documentation, from the results that are committed.

Nothing is measured here. Numbers of tables of groups are read from the report `benchmarks/results/tables.md`; all
others from the JSON files beside it.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks import when_not
from metavib.show.plots import COLOURS, STYLE, save

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OURS, GREY = COLOURS[0], "0.6"
PEERS = ("hierarchical GP", "mixed, splines", "mixed, linear", "boosting + offset", "GPBoost")
PICTURES = {"glyphs": "60 printed characters", "drawings": "45 drawings", "digits": "10 digits of 8 × 8 pixels"}
METHODS = {
    "gaussian-classes": "Gaussian classes, the default",
    "gp-vib": "GP-VIB",
    "dkt": "DKT",
    "proto-net": "ProtoNet",
    "the model characters, no training": "“characters”, no training",
    "logistic regression of pixels": "logistic regression of pixels",
    "nearest neighbour of pixels": "1-NN of pixels",
}


def read_table(page: str, title: str) -> tuple[list[str], dict[str, list[float | None]]]:
    r"""A table of a Markdown page, by the title of its first column: the other titles, and the numbers of each line.

    Example:
        >>> read_table("| score | K = 0 | K = 1 |\n| --- | ---: | ---: |\n| ours | 1.50 |  |\n", "score")
        (['K = 0', 'K = 1'], {'ours': [1.5, None]})
    """
    found = re.search(rf"^\| {re.escape(title)} \|(.*)\|\n\|[-:| ]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE)
    if found is None:
        raise ValueError(f"there is no table with the title {title!r}.")
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in found[2].splitlines()]
    return [c.strip() for c in found[1].split("|")], {r[0]: [float(c) if c else None for c in r[1:]] for r in rows}


def tables() -> Figure:
    """Errors on tables of groups beside those of others, at each number of known rows."""
    columns, lines = read_table(
        (RESULTS / "tables.md").read_text(encoding="utf-8"), "RMSE over the best, geometric mean"
    )
    figure = Figure(figsize=(7, 3.6))
    ax = figure.subplots()
    for i, name in enumerate(("metavib", *PEERS)):
        style: Any = {"lw": 2.4, "zorder": 3} if name == "metavib" else {"lw": 1.3}
        ax.plot(columns, lines[name], "o-", ms=4, color=COLOURS[i], label=name, **style)
    ax.set(yscale="log", ylabel="RMSE over the best method's", xlabel="rows of a new group that are known")
    _plain(ax, (1, 1.1, 1.2, 1.5, 2))
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def coverage() -> Figure:
    """The share of outputs inside 90% intervals, a dot for each table of groups."""
    columns, lines = read_table(
        (RESULTS / "tables.md").read_text(encoding="utf-8"), "coverage of 90 % intervals, metavib"
    )
    few = ("Theoph", "CO2", "BodyWeight")
    figure = Figure(figsize=(7, 3))
    ax = figure.subplots()
    ax.axhline(0.9, color=GREY, lw=1)
    for name, values in lines.items():
        places = [i + 0.3 * (list(lines).index(name) / (len(lines) - 1) - 0.5) for i in range(len(columns))]
        ax.plot(
            places,
            [v if v is not None else float("nan") for v in values],
            "o",
            ms=5,
            alpha=0.8,
            color=COLOURS[1] if name in few else OURS,
        )
    for label, colour in (("twelve or more groups to learn from", OURS), ("eight to eleven", COLOURS[1])):
        ax.plot([], [], "o", color=colour, label=label)
    ax.set(ylabel="inside the 90 % interval", xlabel="rows of a new group that are known", ylim=(0.7, 1.03))
    ax.set_xticks(range(len(columns)), columns)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f} %"))
    ax.legend(frameon=False, loc="lower center")
    return figure


def pictures() -> Figure:
    """Accuracy and calibration on folders of pictures, beside what one would pick instead."""
    rows = json.loads((RESULTS / "images.json").read_text())["rows"]
    figure = Figure(figsize=(9, 5))
    axes = figure.subplots(2, 3, sharey="row", sharex=True)
    for column, (data, title) in zip(axes.T, PICTURES.items(), strict=True):
        column[0].set_title(title)
        for ax, score in zip(column, ("accuracy", "ece"), strict=True):
            for i, method in enumerate(METHODS):
                mine = [r for r in rows if (r["data"], r["method"]) == (data, method) and r[score] is not None]
                ax.plot([i] * len(mine), [100 * r[score] for r in mine], color=COLOURS[i], lw=1.2)
                for r in mine:
                    filled = COLOURS[i] if r["shots"] > 1 else "white"
                    ax.plot(i, 100 * r[score], "o", ms=6, color=COLOURS[i], mfc=filled)
            ax.set(xticks=[], xlim=(-0.6, len(METHODS) - 0.4))
            ax.grid(axis="y", color="0.92")
        column[1].axhline(3, color=GREY, lw=1, ls="--", zorder=4)
    axes[0, 0].set(ylabel="accuracy, %", ylim=(40, 102))
    axes[1, 0].set(ylabel="ECE, % (dashed: 3)", ylim=(0, None))
    handles = [Line2D([], [], color=COLOURS[i], marker="o", label=label) for i, label in enumerate(METHODS.values())]
    figure.legend(handles=handles, loc="outside lower center", ncol=3, frameon=False)
    figure.suptitle("open: one picture of each class; filled: five", fontsize=9)
    return figure


def speed() -> Figure:
    """How many times as fast as others a step is, on a CPU and on a GPU."""
    figure = Figure(figsize=(9, 4.6))
    axes = figure.subplots(1, 2, width_ratios=(1, 1))
    for ax, file in zip(axes, ("speed-cpu", "speed-h200"), strict=True):
        result = json.loads((RESULTS / f"{file}.json").read_text())
        rows = [r for r in result["rows"] if r["ratio"]][::-1]
        ax.barh(range(len(rows)), [r["ratio"] for r in rows], color=[_colour(r["what"]) for r in rows], height=0.7)
        ax.set_yticks(range(len(rows)), [f"{_short(r['what'])}\n{r['reference']}" for r in rows], fontsize=7)
        for i, r in enumerate(rows):
            ax.text(r["ratio"] * 1.08, i, f"{r['ratio']:.3g}×", va="center", fontsize=8)
        ax.axvline(1, color="black", lw=0.8)
        ax.set(xscale="log", xlim=(0.8, 4 * max(r["ratio"] for r in rows)), xlabel="times as fast")
        ax.set_title(result["machine"].removesuffix(", 1 thread"))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    return figure


def limits() -> Figure:
    """Four situations in which something else is better."""
    rows = json.loads((RESULTS / "when-not.json").read_text())["rows"]
    figure = Figure(figsize=(9, 5))
    for ax, situation in zip(figure.subplots(2, 2).flat, when_not.SITUATIONS, strict=True):
        for i, method in enumerate((when_not.OURS, situation.instead[0])):
            values = [when_not.mean(rows, situation.name, size, method) for size in situation.sizes]
            ax.plot(situation.sizes, values, "o-", ms=4, color=COLOURS[i], label=method)
        if min(situation.sizes) > 0:
            ax.set_xscale("log")
            ax.set_xticks(situation.sizes, [f"{size:,g}" for size in situation.sizes])
            ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set(title=situation.name, xlabel=situation.size, ylim=(0, None))
        ax.legend(frameon=False, fontsize=8)
    figure.supylabel("error over that of predicting the mean", fontsize=9)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "peers-tables": tables,
    "peers-coverage": coverage,
    "peers-pictures": pictures,
    "peers-speed": speed,
    "when-not": limits,
}


def _plain(ax: Axes, ticks: tuple[float, ...]) -> None:
    """Plain numbers on a logarithmic axis."""
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.yaxis.set_minor_formatter(NullFormatter())


def _short(what: str) -> str:
    for text in (", 5-way 1-shot 16 query, one task", ", second order, 25 tasks, one inner step", " step", ", 5 tasks"):
        what = what.replace(text, "")
    return what


def _colour(what: str) -> str:
    return COLOURS[("GP-VIB", "DKT", "MAML").index(what.split()[0])]


def main(arguments: list[str] | None = None) -> None:
    """Draws them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks figures", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures", help="folder of the figures")
    options = parser.parse_args(arguments)
    for name, draw in FIGURES.items():
        with matplotlib.rc_context(STYLE):
            save(draw(), options.out / f"{name}.png")
        print(options.out / f"{name}.png")
