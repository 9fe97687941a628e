"""How good probabilities are: NLL, Brier score and ECE of image runs."""

from statistics import fmean
from typing import Any

from reproduction.compare import Cell
from reproduction.grids.grid import (
    EXPERIMENTS,
    MAIN_TABLE,
    Grid,
    Record,
    Records,
    Row,
    by_cell,
    by_experiment,
    cost,
    metric,
    ordered,
    title,
)

_SCORES = ("NLL", "Brier", "ECE %")


def images(records: Records) -> list[Grid]:
    """Accuracy, NLL and ECE of image runs the paper has no numbers for."""
    return [_images(EXPERIMENTS.get(e, e), group) for e, group in by_experiment(records).items()]


def _images(name: str, records: Records) -> Grid:
    found = by_cell(records)
    shots_run = sorted({shots for _, shots in found})
    rows = []
    for row in ordered((row for row, _ in found), list(MAIN_TABLE)):
        cells: list[Cell | str] = []
        for shots in shots_run:
            runs = found.get((row, shots), [])
            nll, _, ece = _scores(runs, "metrics")
            cells += [Cell(f"{row}-{shots}", metric(runs, "accuracy", 100), None), nll, ece]
        rows.append(Row(title(row), tuple(cells)))
    header = [f"{shots}-shot {score}" for shots in shots_run for score in ("accuracy %", "NLL", "ECE %")]
    return Grid(name, ("method", *header), tuple(rows), cost(records).strip())


def calibration(records: Records) -> list[Grid]:
    """NLL, Brier score and ECE of image runs: as they are, and where it was fitted on validation with a temperature."""
    return [_calibration(EXPERIMENTS.get(e, e), group) for e, group in by_experiment(records).items()]


def _calibration(name: str, records: Records) -> Grid:
    found = by_cell(records)
    shots_run = sorted({shots for _, shots in found})
    rows = []
    for row in ordered((row for row, _ in found), list(MAIN_TABLE)):
        for kind, suffix in (("metrics", ""), ("tempered_metrics", ", with a temperature")):
            cells = [cell for shots in shots_run for cell in _scores(found.get((row, shots), []), kind)]
            if kind == "metrics" or any(cell != "not run" for cell in cells):
                rows.append(Row(title(row) + suffix, tuple(cells)))
    header = [f"{shots}-shot {score}" for shots in shots_run for score in _SCORES]
    note = "Means over trainings; less is better. ECE: expected calibration error, 15 bins." + cost(records)
    return Grid(name, ("method", *header), tuple(rows), note)


def _scores(runs: list[Record], kind: str) -> list[str]:
    rows = [run["evaluation"]["rows"][0] for run in runs]
    tested: list[dict[str, Any]] = [row[kind] for row in rows if kind in row]
    if not tested:
        return ["not run"] * len(_SCORES)
    return [
        f"{fmean(m['nll']['mean'] for m in tested):.3f}",
        f"{fmean(m['brier']['mean'] for m in tested):.3f}",
        f"{100 * fmean(m['ece'] for m in tested):.2f}",
    ]
