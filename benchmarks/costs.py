"""`python -m benchmarks.costs`: time and memory against what they grow with, and the growth the theory says."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.curves import CURVES, FEATURES, Curve
from benchmarks.measure import Cost, cost, description, side_by_side
from metavib.files import write_json
from metavib.show.plots import COLOURS, STYLE, save

MEASURES = (("fastest", "CPU time (ms)", 1e3, "work"), ("peak", "peak memory (MB)", 1e-6, "memory"))
"""What is drawn: the field of a result, its label, its scale, and the power of the theory beside it.

Of the times, the fastest, and of the processor alone: other work on the machine only adds to a time, and what is asked
here is how it grows.
"""


def counted(curve: Curve) -> dict[str, list[Cost]]:
    """The cost of each line at each size: no clock, the same everywhere."""
    return {line.name: [cost(line.call(size)) for size in curve.sizes] for line in curve.lines}


def measure(curves: Iterable[Curve], *, seconds: float, tell: Callable[[str], Any]) -> dict[str, Any]:
    """All curves as JSON holds them.

    Args:
        curves: what to measure.
        seconds: about how long to time each curve, all its points in turns.
        tell: is told what is being measured.
    """
    found: dict[str, Any] = {}
    load = round(os.getloadavg()[0], 2)
    for curve in curves:
        tell(curve.name)
        costs = counted(curve)
        points = {f"{line.name} {size}": line.call(size) for line in curve.lines for size in curve.sizes}
        times = side_by_side(points, seconds=seconds, at_least=5e-3, clock=time.process_time)
        lines = {}
        for line in curve.lines:
            here = [times[f"{line.name} {size}"] for size in curve.sizes]
            lines[line.name] = {
                "work": line.work,
                "memory": line.memory,
                "seconds": [t.median for t in here],
                "fastest": [t.fastest for t in here],
                **{
                    name: list(column)
                    for name, column in zip(Cost._fields, zip(*costs[line.name], strict=True), strict=True)
                },
            }
        found[curve.name] = {"size": curve.size, "sizes": list(curve.sizes), "lines": lines}
    return {**description("cpu"), "load_at_start": load, "curves": found}


def steepest(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The largest power with which values grow between neighbouring sizes."""
    pairs = zip(sizes[:-1], sizes[1:], values[:-1], values[1:], strict=True)
    return max(log(b / a) / log(y / x) for x, y, a, b in pairs)


def crossing(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float | None:
    """The size from which on the first is the larger, between measured sizes by a straight line in logarithms."""
    gaps = [log(a / b) for a, b in zip(first, second, strict=True)]
    for i in range(len(gaps) - 1, 0, -1):
        if gaps[i - 1] < 0 <= gaps[i]:
            share = gaps[i - 1] / (gaps[i - 1] - gaps[i])
            return exp(log(sizes[i - 1]) + share * log(sizes[i] / sizes[i - 1]))
    return None


def table(result: dict[str, Any]) -> str:
    """For each line: what it costs at both ends, and the steepest growth that was counted beside the theory's."""
    head = (
        "against",
        "line",
        "sizes",
        "CPU time (ms)",
        "peak (MB)",
        "operations grow",
        "theory",
        "memory grows",
        "theory",
    )
    rows = [head, tuple("-" * len(cell) for cell in head)]
    for curve in result["curves"].values():
        sizes = curve["sizes"]
        for name, line in curve["lines"].items():
            rows.append(
                (
                    curve["size"],
                    name,
                    f"{sizes[0]:,} to {sizes[-1]:,}",
                    f"{1e3 * line['fastest'][0]:.3g} to {1e3 * line['fastest'][-1]:.3g}",
                    f"{line['peak'][0] / 1e6:.3g} to {line['peak'][-1] / 1e6:.3g}",
                    f"^{steepest(sizes, line['flops']):.2f}",
                    f"^{line['work']}",
                    f"^{steepest(sizes, line['peak']):.2f}",
                    f"^{line['memory']}",
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows)


def crossings(result: dict[str, Any]) -> str | None:
    """Where dual and primal cost the same, in words."""
    if "support" not in result["curves"]:
        return None
    curve = result["curves"]["support"]
    dual, primal = curve["lines"]["dual"], curve["lines"]["primal"]
    found = {what: crossing(curve["sizes"], dual[key], primal[key]) for key, what in _CROSSINGS.items()}
    said = ", ".join(f"in {what} at n = {n:.0f}" for what, n in found.items() if n is not None)
    return f"Dual and primal cross {said}; the library changes from one to the other at n = M = {FEATURES}."


_CROSSINGS = {"fastest": "time", "flops": "operations", "peak": "memory"}


def figure(result: dict[str, Any]) -> Figure:
    """Two panels a curve, time above memory, in logarithms: a power is a straight line there, the theory's dashed."""
    curves = list(result["curves"].values())
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(3.7 * columns, 5.2 * rows))
        axes = drawn.subplots(2 * rows, columns, squeeze=False)
        for ax in axes.flat[2 * len(curves) :]:
            ax.set_visible(False)
        for i, curve in enumerate(curves):
            row, column = divmod(i, columns)
            for j, (field, label, scale, power) in enumerate(MEASURES):
                ax = axes[2 * row + j, column]
                _panel(ax, curve, field, scale, power)
                ax.set(xscale="log", yscale="log", xlabel=curve["size"], ylabel=label)
                ax.yaxis.set_minor_formatter(NullFormatter())
                low, high = ax.get_ylim()
                ax.set_ylim(min(low, high / 30), 1.5 * high)  # what is constant looks constant
                if not j:
                    ax.legend(frameon=False, fontsize=7.5)
        drawn.suptitle(f"Measured on {result['machine']}; dashed: the theory's slope, from the last point down")
    return drawn


def _panel(ax: Axes, curve: dict[str, Any], field: str, scale: float, power: str) -> None:
    sizes = curve["sizes"]
    for colour, (name, line) in zip(COLOURS, curve["lines"].items(), strict=False):
        values = [scale * value for value in line[field]]
        chosen = name.startswith("the cheaper")
        style: Any = (
            {"color": "#222222", "lw": 0, "marker": "o", "mfc": "none", "ms": 7} if chosen else {"color": colour}
        )
        ax.plot(sizes, values, **{"marker": "o", "ms": 3, "lw": 1.4} | style, label=name)
        if not chosen:
            theory = [values[-1] * (size / sizes[-1]) ** line[power] for size in sizes]
            low = min(v for other in curve["lines"].values() for v in other[field]) * scale / 2
            kept = [(x, y) for x, y in zip(sizes, theory, strict=True) if y >= low]
            ax.plot(*zip(*kept, strict=True), ls="--", lw=0.9, color=colour, alpha=0.7)


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints the table, writes numbers and figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only curves with this in their name; writes no files"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to time each curve, about (20)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    options = parser.parse_args(arguments)
    chosen = [curve for curve in CURVES if options.only in curve.name]
    if not chosen:
        parser.error(f"--only must be part of one of {', '.join(c.name for c in CURVES)}; got {options.only!r}.")
    torch.set_num_threads(1)
    result = measure(chosen, seconds=options.seconds, tell=lambda name: print(f"measuring: {name}", file=sys.stderr))
    print(table(result))
    if said := crossings(result):
        print(f"\n{said}")
    if not options.only:
        write_json(options.out / "costs-cpu.json", result)
        save(figure(result), options.out / "costs-cpu.png")
        print(f"written: {options.out / 'costs-cpu.json'}, {options.out / 'costs-cpu.png'}", file=sys.stderr)


if __name__ == "__main__":
    main()
