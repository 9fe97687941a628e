"""What a number does as another one changes: beta, shots, inner steps.

`beta_curves` and `tested_curves` give the points, which tables print and figures draw.
"""

from statistics import fmean
from typing import Any

from reproduction import published as paper
from reproduction.compare import Estimate
from reproduction.grids.grid import (
    EXPERIMENTS,
    SPREAD,
    Grid,
    Records,
    Row,
    by_experiment,
    estimate,
    number,
    ordered,
    read_name,
    title,
)

# A curve: for each value of what is varied, the estimate there.
Curve = dict[float, Estimate]
SCORES = {
    "mse": ("MSE", 1, 4),
    "log_density": ("log density", 1, 2),
    "accuracy": ("accuracy %", 100, 2),
    "nll": ("NLL", 1, 3),
}
_ROWS = list(dict.fromkeys((*paper.TABLE_2, *paper.FURTHER)))


def beta_curves(records: Records, score: str) -> dict[int, Curve]:
    """A score against beta, a curve for each number of shots at test; the runs are those of one experiment."""
    found: dict[int, dict[float, list[dict[str, Any]]]] = {}
    for record in records.values():
        for row in record["evaluation"]["rows"]:
            at_shots = found.setdefault(row["shots"], {})
            at_shots.setdefault(record["config"]["train"]["beta"], []).append(row["metrics"][score])
    return {shots: _curve(found[shots], score) for shots in sorted(found)}


def tested_curves(records: Records, varied: str, score: str) -> dict[str, Curve]:
    """A score against what is varied at test (`shots`, `inner_steps`), a curve for each row."""
    found: dict[str, dict[float, list[dict[str, Any]]]] = {}
    for name, record in records.items():
        curve = found.setdefault(read_name(name).row, {})
        for tested in record["evaluation"]["rows"]:
            curve.setdefault(tested[varied], []).append(tested["metrics"][score])
    return {title(row): _curve(found[row], score) for row in ordered(found, _ROWS)}


def by_training(records: Records) -> dict[str, Records]:
    """The runs of each experiment and number of shots in training, under a title that says which."""
    groups: dict[str, Records] = {}
    for experiment, group in by_experiment(records).items():
        for name in sorted(group, key=lambda name: read_name(name).shots or 0):
            shots = read_name(name).shots
            trained = f", trained with K = {shots}" if shots else ""
            groups.setdefault(EXPERIMENTS.get(experiment, experiment) + trained, {})[name] = group[name]
    return groups


def _curve(found: dict[float, list[dict[str, Any]]], score: str) -> Curve:
    points = {value: estimate(found[value], SCORES[score][1]) for value in sorted(found)}
    return {value: point for value, point in points.items() if point is not None}


def scores(records: Records) -> list[str]:
    """What the runs of an experiment are judged by, the first first."""
    found = next(iter(records.values()))["evaluation"]["rows"][0]["metrics"]
    return [score for score in SCORES if score in found]


def beta(records: Records) -> list[Grid]:
    """A grid an experiment: error and log density of real outputs, accuracy and NLL of classes, against beta."""
    return [_beta(EXPERIMENTS.get(e, e), group) for e, group in by_experiment(records).items()]


def _beta(name: str, records: Records) -> Grid:
    curves = {
        f"{SCORES[score][0]}, K = {shots}": (curve, SCORES[score][2])
        for score in scores(records)
        for shots, curve in beta_curves(records, score).items()
    }
    return _grid(name, "beta", curves, "")


def shots(records: Records) -> list[Grid]:
    """Accuracy against the number of shots at test, a column a run."""
    return _tests(records, "shots", "K at test")


def inner_steps(records: Records) -> list[Grid]:
    """Accuracy against the number of inner steps at test, a column a run."""
    return _tests(records, "inner_steps", "steps at test")


def progress(records: Records) -> list[Grid]:
    """Validation accuracy as training goes on, a grid an experiment: thirds of the training, and the best there was."""
    return [_progress(EXPERIMENTS.get(e, e), group) for e, group in by_experiment(records).items()]


def _progress(name: str, records: Records) -> Grid:
    last = max(record["config"]["train"]["steps"] for record in records.values())
    ends = [last * third // 3 for third in (1, 2, 3)]
    trainings: dict[str, list[list[tuple[int, float]]]] = {}
    for run, record in records.items():
        trainings.setdefault(read_name(run).row, []).append(record["validation"])
    rows = []
    for row, curves in trainings.items():
        near = [[100 * score for c in curves for step, score in c if 0.9 * end <= step <= end] for end in ends]
        means = [f"{fmean(scores):.1f}" if scores else "" for scores in near]
        best = fmean(100 * max(score for _, score in curve) for curve in curves)
        rows.append(Row(title(row), (*means, f"{best:.1f}")))
    note = "Means over the validations of the tenth of the steps before each; the best is of a single validation."
    if max(map(len, trainings.values())) > 1:
        note += " All are means over trainings."
    return Grid(name, ("run", *(f"after {end:,} steps" for end in ends), "best"), tuple(rows), note)


def _tests(records: Records, varied: str, corner: str) -> list[Grid]:
    grids = []
    for name, group in by_training(records).items():
        score = scores(group)[0]
        label, _, digits = SCORES[score]
        curves = {row: (curve, digits) for row, curve in tested_curves(group, varied, score).items()}
        grids.append(_grid(name, corner, curves, f"{label[0].upper()}{label[1:]}; "))
    return grids


def _grid(name: str, corner: str, curves: dict[str, tuple[Curve, int]], note: str) -> Grid:
    values = sorted({value for curve, _ in curves.values() for value in curve})
    rows = [
        Row(f"{value:g}", tuple(number(curve.get(value), digits) for curve, digits in curves.values()))
        for value in values
    ]
    return Grid(name, (corner, *curves), tuple(rows), note + SPREAD)
