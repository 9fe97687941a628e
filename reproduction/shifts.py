"""Models on pictures unlike those of their training: how right, how sure, and what is none of their classes."""

from collections.abc import Collection, Iterable
from math import ceil

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from metavib.data.shifts import OF_CHARACTERS, OF_PHOTOGRAPHS
from metavib.show.plots import COLOURS, INK, STYLE
from reproduction.store import Record, Records
from reproduction.tables import EXPERIMENTS, Grid, Row, by_experiment, by_line, cost, title
from reproduction.tables import row as row_of_record

PLAIN = "as in training"
KINDS = (("metrics", ""), ("tempered_metrics", ", with a temperature"))
APART, ALIKE = "classes have different numbers of points", "classes have as many each"
BY = {"probability": "probability", "mean": "mean, or distance", "variance": "variance"}


def tables(records: Records) -> list[Grid]:
    """Accuracy, NLL and ECE under each shift, a grid for each number of shots; then the AUROC of the unknown."""
    lines = {title(*line): found[0] for line, found in by_line(records).items()}
    tested = sorted({row["shots"] for record in records.values() for row in record["evaluation"]["rows"]})
    grids = [_scores(lines, shots, cost(records)) for shots in tested]
    return grids + [_unknown(lines, shots) for shots in tested]


def shifts_of(records: Iterable[Record]) -> tuple[str, ...]:
    """What pictures of a study can be shifted to; the ordinary test, which has no name, comes first."""
    channels = {record["config"]["tasks"].get("channels", 1) for record in records}
    return ("", *(OF_CHARACTERS if channels <= {1} else OF_PHOTOGRAPHS))


def _scores(lines: dict[str, Record], shots: int, note: str) -> Grid:
    rows, shifts = [], shifts_of(lines.values())
    for name, record in lines.items():
        tests = by_shift(record, shots)
        for kind, suffix in KINDS:
            cells = []
            for shift in shifts:
                found = tests.get(shift, {}).get(kind)
                cells.append(_in_short(found, 2))
            rows.append(Row(name + suffix, tuple(cells)))
    header = ("accuracy %, NLL, ECE %", *(shift or PLAIN for shift in shifts))
    return Grid(f"{shots}-shot", header, tuple(rows), note)


def _in_short(found: Record | None, digits: int) -> str:
    """Accuracy, NLL and ECE of a test."""
    if found is None:
        return "not run"
    accuracy, nll, ece = found["accuracy"]["mean"], found["nll"]["mean"], found["ece"]
    return f"{100 * accuracy:.1f}, {nll:.{digits}f}, {100 * ece:.1f}"


LEARNED = {
    "learned": ", from such tasks",
    "numbers": ", from one or two points",
    "one": ", from one point",
    "five": ", from five points",
    "sites": ", larger sites",
    "longer": ", 12,000 steps",
    "ink": ", in one form",
    "alike": ", from alike ones, too",
    "again": ", a second training",
}
"""What a method learned from, by a word of its variant."""


def _learner(record: Record) -> str:
    """A method, and what it learned from where a study has several of that."""
    words = record["variant"].split("-")
    return title(row_of_record(record)) + "".join(text for word, text in LEARNED.items() if word in words)


def unequal(records: Records) -> list[Grid]:
    """Accuracy, NLL and ECE by the points that classes have: all as many, or each its own number.

    Where runs fit a temperature on validation, each has a second row with the scores under it.
    """
    groups = by_experiment(records)
    return [_by_points(group, EXPERIMENTS[name] if len(groups) > 1 else "") for name, group in groups.items()]


def _by_points(records: Records, name: str) -> Grid:
    found: dict[str, dict[tuple[bool, int], Record]] = {}
    for record in records.values():
        for row in record["evaluation"]["rows"]:
            tests = found.setdefault(_learner(record), {})
            tests["min_shots" in row, row["shots"]] = row
    columns = sorted({key for tests in found.values() for key in tests})
    heads = (
        f"1 to {shots} points" if apart else f"{shots} points each" if shots > 1 else "1 point each"
        for apart, shots in columns
    )
    rows = tuple(
        Row(learner + suffix, tuple(_in_short(tests.get(key, {}).get(kind), 3) for key in columns))
        for learner, tests in found.items()
        for kind, suffix in KINDS
        if any(kind in row for row in tests.values())
    )
    return Grid(name, ("accuracy %, NLL, ECE %", *heads), rows, cost(records))


def unequal_figure(records: Records) -> Figure:
    """Accuracy, NLL and ECE against the most points of a class: solid where classes have different numbers of them.

    Of several experiments it is the first.
    """
    records = next(iter(by_experiment(records).values()))
    names = list(dict.fromkeys(map(_learner, records.values())))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    tested = sorted({row["shots"] for record in records.values() for row in record["evaluation"]["rows"]})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.9))
        axes = figure.subplots(1, 3)
        for record in records.values():
            rows = record["evaluation"]["rows"]
            found = [row["metrics"] for row in rows]
            heights = (
                [100 * m["accuracy"]["mean"] for m in found],
                [m["nll"]["mean"] for m in found],
                [100 * m["ece"] for m in found],
            )
            style = {"color": colours[_learner(record)], "ls": "-" if "min_shots" in rows[0] else ":", "lw": 1.4}
            for ax, y in zip(axes, heights, strict=True):
                ax.plot([row["shots"] for row in rows], y, marker="o", ms=3, **style)
        for ax, label in zip(axes, ("accuracy %", "NLL", "ECE %"), strict=True):
            ax.set(xlabel="most points of a class", ylabel=label, xticks=tested)
        axes[1].set_yscale("log")
        axes[1].yaxis.set_major_formatter("{x:g}")
        axes[1].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[1].yaxis.set_minor_locator(NullLocator())
        kinds = [Line2D([], [], color=INK, ls=ls, label=label) for ls, label in (("-", APART), (":", ALIKE))]
        lines = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
        figure.legend(handles=lines + kinds, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _unknown(lines: dict[str, Record], shots: int) -> Grid:
    rows, shifts = [], shifts_of(lines.values())
    for name, record in lines.items():
        tests = by_shift(record, shots)
        for by, label in BY.items():
            cells = [tests.get(shift, {}).get("unknown", {}).get(by) for shift in shifts]
            if any(cell is not None for cell in cells):
                shown = ("not run" if cell is None else f"{cell:.3f}" for cell in cells)
                rows.append(Row(f"{name}, by its {label}", tuple(shown)))
    return Grid(f"None of these, {shots}-shot", ("AUROC", *(shift or PLAIN for shift in shifts)), tuple(rows))


def by_shift(record: Record, shots: int) -> dict[str, Record]:
    """The tests of a run with some shots, by their shift; the ordinary one has none."""
    return {row.get("shift", ""): row for row in record["evaluation"]["rows"] if row["shots"] == shots}


def one_form(records: Records) -> Figure:
    """Validation during training, and accuracy against confidence at the fewest shots.

    A colour is a method, and a way to draw the line what it has learned from. Longer and second trainings are left out.
    """
    forms = {"as drawn": ":", "in one form": "--", "in one form, and from alike ones": "-"}
    lines = {line: found[0] for line, found in by_line(records).items() if not line[1].endswith(("longer", "again"))}
    colours = dict(zip(dict.fromkeys(row for row, _ in lines), COLOURS, strict=False))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.5, 4.2))
        during, sure = figure.subplots(1, 2)
        sure.plot([0, 1], [0, 1], color=INK, lw=0.6)
        for (row, _), record in lines.items():
            style = {"color": colours[row], "ls": forms[_form(record["config"]["tasks"])], "lw": 1.4}
            during.plot(*zip(*((step, 100 * score) for step, score in record["validation"]), strict=True), **style)
            curve = record["evaluation"]["rows"][0]["metrics"]["reliability"]
            if kept := _kept(curve):
                sure.plot(*zip(*kept, strict=True), **style)
        during.set(xlabel="training steps", ylabel="accuracy on validation %")
        sure.set(xlabel="how sure", ylabel="how often right")
        marks = [Line2D([], [], color=colour, label=title(row)) for row, colour in colours.items()]
        marks += [Line2D([], [], color=INK, ls=ls, label=label) for label, ls in forms.items()]
        figure.legend(handles=marks, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _form(tasks: Record) -> str:
    """In what form a run learned characters, by the `tasks` of its config."""
    if tasks.get("alike"):
        return "in one form, and from alike ones"
    return "in one form" if tasks.get("ink") else "as drawn"


def _kept(curve: dict[str, list[float | None]]) -> list[tuple[float, float]]:
    """Confidence and accuracy of the bins that have enough points to say something."""
    points = zip(curve["confidence"], curve["accuracy"], curve["points"], strict=True)
    return [(c, a) for c, a, n in points if n is not None and n >= 20 and c is not None and a is not None]


def reliability(records: Records, *, variants: Collection[str]) -> Figure:
    """Accuracy against confidence at the fewest shots, without a temperature of ours: a panel for each shift.

    Args:
        records: of the study.
        variants: those that have lines: all of them would be a tangle.
    """
    lines = {title(*line): found[0] for line, found in by_line(records).items() if line[1] in variants}
    fewest = min(row["shots"] for record in records.values() for row in record["evaluation"]["rows"])
    with matplotlib.rc_context(STYLE):
        shifts = shifts_of(records.values())
        columns = ceil(len(shifts) / 2)
        figure = Figure(figsize=(0.5 + 3 * columns, 6.2))
        axes = figure.subplots(2, columns, sharex=True, sharey=True)
        for ax in axes.flat[len(shifts) :]:
            ax.set_axis_off()
        for ax, shift in zip(axes.flat, shifts, strict=False):
            ax.plot([0, 1], [0, 1], color=INK, lw=0.6, ls="--")
            for i, (name, record) in enumerate(lines.items()):
                if shift in (tests := by_shift(record, fewest)):
                    if kept := _kept(tests[shift]["metrics"]["reliability"]):
                        colour = COLOURS[i % len(COLOURS)]
                        ax.plot(*zip(*kept, strict=True), "o-", ms=3, lw=1, color=colour, label=name)
            ax.set_title(shift or PLAIN, fontsize=9)
        for ax in axes[-1]:
            ax.set_xlabel("how sure")
        for ax in axes[:, 0]:
            ax.set_ylabel("how often right")
        known = {text: mark for ax in figure.axes for mark, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(known.values(), known, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure
