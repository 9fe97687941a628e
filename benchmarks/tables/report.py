"""What came out, as tables: ranks, ratios to the best, coverage, each at every K."""

from collections import defaultdict
from collections.abc import Iterable
from math import erf, sqrt
from typing import Any

import numpy as np

from benchmarks.tables.protocol import KNOWN, LEVEL

NEAR = 0.03  # of 90 %: what is asked for

Cell = tuple[str, int]


def cells(records: Iterable[dict[str, Any]], score: str) -> dict[str, dict[Cell, float]]:
    """method -> (table, K) -> mean over splits; only methods that were run on all splits of a table count on it."""
    values: dict[str, dict[Cell, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in records:
        for known, scores in r["scores"].items():
            if score in scores:
                values[r["method"]][r["table"], int(known)].append(scores[score])
    longest = defaultdict(int)
    for found in values.values():
        for cell, each in found.items():
            longest[cell] = max(longest[cell], len(each))
    return {
        method: {cell: float(np.mean(each)) for cell, each in found.items() if len(each) == longest[cell]}
        for method, found in values.items()
    }


def ranks(found: dict[str, dict[Cell, float]], *, largest: bool = False) -> dict[str, dict[int, float]]:
    """Mean rank of each method at each K; 1 is the best, a score that is not a number the last."""
    return _over_tables(found, lambda column, x: 1 + sum(o < x for o in column) if x == x else len(column), largest)


def ratios(found: dict[str, dict[Cell, float]]) -> dict[str, dict[int, float]]:
    """Geometric mean over tables of a score over the best one's."""
    logs = _over_tables(found, lambda column, x: np.log(x / min(column)), False)
    return {method: {k: float(np.exp(v)) for k, v in row.items()} for method, row in logs.items()}


def worst(found: dict[str, dict[Cell, float]], method: str) -> list[tuple[float, Cell]]:
    """A method's ratio to the best in each cell, the largest first."""
    best = {c: min(row[c] for row in found.values() if c in row and row[c] == row[c]) for c in found[method]}
    return sorted(((found[method][c] / best[c], c) for c in best), reverse=True)


def _over_tables(found: dict[str, dict[Cell, float]], measure: Any, largest: bool) -> dict[str, dict[int, float]]:
    every = sorted({cell for row in found.values() for cell in row})
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in every:
        sign = -1.0 if largest else 1.0
        column = {m: sign * row[cell] for m, row in found.items() if cell in row}
        real = [x for x in column.values() if x == x]
        for method, x in column.items():
            values[method][cell[1]].append(measure(real, x))
    return {method: {k: float(np.mean(v)) for k, v in row.items()} for method, row in values.items()}


def markdown(rows: dict[str, dict[int, float]], title: str, digits: int = 2) -> str:
    """A table with a line for each method, the best first, and a column for each K."""
    known = [k for k in KNOWN if any(k in row for row in rows.values())]
    order = sorted(rows, key=lambda m: np.nanmean([rows[m].get(k, np.nan) for k in known]))
    lines = [f"| {title} | " + " | ".join(f"K = {k}" for k in known) + " |", "| --- |" + " ---: |" * len(known)]
    for m in order:
        shown = [f"{rows[m][k]:.{digits}f}" if k in rows[m] else "" for k in known]
        lines.append(f"| {m} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def by_table(found: dict[str, dict[Cell, float]], method: str, title: str, digits: int = 2) -> str:
    """A method's score on each table."""
    known = [k for k in KNOWN if any(c[1] == k for c in found[method])]
    lines = [f"| {title} | " + " | ".join(f"K = {k}" for k in known) + " |", "| --- |" + " ---: |" * len(known)]
    for name in dict.fromkeys(c[0] for c in found[method]):
        row = [found[method].get((name, k)) for k in known]
        lines.append(f"| {name} | " + " | ".join("" if v is None else f"{v:.{digits}f}" for v in row) + " |")
    return "\n".join(lines)


def coverage(records: list[dict[str, Any]], method: str) -> str:
    """How far right intervals would be from 90 % by chance, and in how many cells a method's are further from it.

    The standard error of a mean over splits is that of a mean of independent ones, which is a little too small: splits
    have some of their groups in common.
    """
    found = cells(records, "coverage")[method]
    squares, counts = (defaultdict(list) for _ in range(2))
    for r in records:
        for known, scores in r["scores"].items():
            if r["method"] == method and "coverage_error" in scores:
                squares[r["table"], int(known)].append(scores["coverage_error"] ** 2)
                counts[r["table"], int(known)].append(scores["groups"])
    error = {cell: float(np.sqrt(np.sum(each)) / len(each)) for cell, each in squares.items()}
    if set(error) != set(found):
        return ""
    table = by_table({method: error}, method, "standard error of the coverage of right intervals", 3)
    groups = by_table({method: {c: float(np.mean(n)) for c, n in counts.items()}}, method, "groups predicted", 0)
    near = sum(abs(found[c] - LEVEL) <= NEAR for c in found)
    chance = sum(erf(NEAR / (max(error[c], 1e-9) * sqrt(2))) for c in found)
    beyond = [c for c in found if abs(found[c] - LEVEL) > max(NEAR, 1.96 * error[c])]
    which = ", ".join(f"{name} K = {known} ({100 * found[name, known]:.0f} %)" for name, known in beyond)
    return (
        f"{table}\n\n{groups}\n\n{method}'s coverage is within 87 to 93 % in {near} of {len(found)} cells; right "
        f"intervals would be in about {chance:.0f} by these standard errors. It is outside by more than 1.96 of them "
        f"in {len(beyond)}: {which or 'none'}."
    )


def calibration(records: list[dict[str, Any]], method: str) -> str:
    """What chance makes of the calibration errors of right probabilities, and how many of a method's are small."""
    measured = cells(records, "ece")[method]
    parts = []
    for score, labels in (("ece_chance", "one by one"), ("ece_groups", "by groups")):
        if method not in (found := cells(records, score)):
            continue
        mean, high = found[method], cells(records, f"{score}_95")[method]
        parts.append(by_table({method: mean}, method, f"calibration error of right probabilities, labels {labels}", 3))
        above = [cell for cell in mean if measured[cell] > high[cell]]
        which = ", ".join(f"{name} K = {known}" for name, known in above)
        beyond = float(np.mean([measured[cell] - mean[cell] for cell in mean]))
        parts.append(
            f"With labels {labels}, {method}'s calibration error is within the 95 % quantile of chance in "
            f"{len(mean) - len(above)} of {len(mean)} cells, not in {which or 'none'}; it is {100 * beyond:.1f} points "
            "beyond the mean of chance on average."
        )
    small = sum(error < 0.05 for error in measured.values())
    parts.append(f"{method}'s calibration error is below 5 % in {small} of {len(measured)} cells.")
    return "\n\n".join(parts)


def seconds(records: Iterable[dict[str, Any]]) -> str:
    """Median and largest time to fit, and mean time to adapt to and predict a group."""
    fits, groups = defaultdict(list), defaultdict(list)
    for r in records:
        fits[r["method"]].append(r["fit_s"])
        groups[r["method"]].append(1000 * r["predict_s"] / max(r["groups"], 1))
    lines = ["| seconds | fit, median | fit, longest | ms a group |", "| --- | ---: | ---: | ---: |"]
    for m in fits:
        lines.append(f"| {m} | {np.median(fits[m]):.2f} | {max(fits[m]):.1f} | {np.mean(groups[m]):.1f} |")
    return "\n".join(lines)


def report(records: list[dict[str, Any]], ours: str, how: str) -> str:
    """All of it, as Markdown.

    Args:
        records: of every method on every division of every table.
        ours: the method that is looked at closely.
        how: in a sentence, it was measured.
    """
    parts = [
        "# Tables of groups, measured",
        f"{how} What is measured, and what it says: [tables of many groups](../../docs/tables.md). Times are of a "
        "machine that other work shared.",
    ]
    for kind, title in (
        ("real", "Real outputs"),
        ("classes", "Classes that groups have in common"),
        ("new", "Classes that are new"),
    ):
        mine = [r for r in records if r["kind"] == kind]
        if not mine:
            continue
        parts.append(f"## {title}\n\n{len({r['table'] for r in mine})} tables.")
        if kind == "real":
            rmse, log_density = cells(mine, "rmse"), cells(mine, "log_density")
            parts.append(markdown(ranks(rmse), "mean rank, RMSE"))
            parts.append(markdown(ranks(log_density, largest=True), "mean rank, log density"))
            parts.append(markdown(ratios(rmse), "RMSE over the best, geometric mean", 3))
            if ours in rmse:
                bad = ", ".join(f"{c[0]} K = {c[1]}: {v:.2f}" for v, c in worst(rmse, ours)[:8])
                parts.append(f"{ours}'s largest ratios: {bad}.")
                parts.append(by_table(cells(mine, "coverage"), ours, f"coverage of 90 % intervals, {ours}", 3))
                parts.append(coverage(mine, ours))
            parts.append(markdown(ratios(cells(mine, "width")), "width of 90 % intervals over the narrowest"))
        else:
            for score, name in (("log_loss", "log loss"), ("error", "error"), ("ece", "calibration error")):
                found = cells(mine, score)
                parts.append(markdown(ranks(found), f"mean rank, {name}"))
                for method in [ours, "smoothed share", "nearest centroid", "logistic"]:
                    if found.get(method):
                        parts.append(by_table(found, method, f"{name}, {method}", 3))
            if ours in cells(mine, "ece_chance"):
                parts.append(calibration(mine, ours))
        parts.append(seconds(mine))
    return "\n\n".join(parts) + "\n"
