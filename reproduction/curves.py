"""What a number does as another one changes: beta in training, shots and inner steps at test.

`beta_curves` and `tested_curves` give the points that the tables here print and `reproduction.figures` draws.
"""

from itertools import product
from typing import Any

from reproduction.compare import Estimate
from reproduction.store import Records
from reproduction.tables import (
    EXPERIMENTS,
    LONGER_VERSION,
    MAIN_TABLE,
    Grid,
    Row,
    by_experiment,
    by_line,
    estimate,
    shots,
    title,
)

Curve = dict[float, Estimate]  # for each value of what is varied, the estimate there
SCORES = {
    "mse": ("MSE", 1, 4),
    "log_density": ("log density", 1, 2),
    "accuracy": ("accuracy %", 100, 2),
    "nll": ("NLL", 1, 3),
}
"""What runs are judged by: its name for people, its scale, and its digits behind the point."""
ROWS = tuple(dict.fromkeys((*MAIN_TABLE, *LONGER_VERSION)))


def scores(records: Records) -> list[str]:
    """What the runs of one experiment are judged by, the first first."""
    found = next(iter(records.values()))["evaluation"]["rows"][0]["metrics"]
    return [score for score in SCORES if score in found]


def by_training(records: Records) -> dict[str, Records]:
    """The runs of each experiment and number of shots in training, under a title that says which.

    Those behind a network that stays as it is are together, whatever their numbers were learned from.
    """
    found: dict[str, Records] = {}
    for name, group in by_experiment(records).items():
        for run, record in sorted(group.items(), key=lambda item: shots(item[1])):
            still = record["config"]["train"].get("network_lr") == 0  # and its numbers hold for any K
            how = "behind a network as it is" if still else f"trained with K = {shots(record)}"
            found.setdefault(f"{EXPERIMENTS.get(name, name)}, {how}", {})[run] = record
    return found


def beta_curves(records: Records, score: str) -> dict[int, Curve]:
    """A score against beta, a curve for each number of shots at test; the runs are those of one experiment."""
    found: dict[int, dict[float, list[dict[str, Any]]]] = {}
    for record in records.values():
        for test in record["evaluation"]["rows"]:
            at_shots = found.setdefault(test["shots"], {})
            at_shots.setdefault(record["config"]["train"]["beta"], []).append(test["metrics"][score])
    return {k: _curve(found[k], score) for k in sorted(found)}


def tested_curves(records: Records, varied: str, score: str) -> dict[str, Curve]:
    """A score against what is varied at test (`shots`, `inner_steps`), a curve for each line."""
    curves = {}
    for line, runs in by_line(records, ROWS).items():
        found: dict[float, list[dict[str, Any]]] = {}
        for test in (test for run in runs for test in run["evaluation"]["rows"]):
            found.setdefault(test[varied], []).append(test["metrics"][score])
        curves[title(*line)] = _curve(found, score)
    return curves


def _curve(found: dict[float, list[dict[str, Any]]], score: str) -> Curve:
    points = {value: estimate(found[value], SCORES[score][1]) for value in sorted(found)}
    return {value: point for value, point in points.items() if point is not None}


# Tables of them


def beta(records: Records) -> list[Grid]:
    """Error and log density of real outputs, accuracy and NLL of classes, against beta; a grid for each experiment."""
    grids = []
    for name, group in by_experiment(records).items():
        curves = {
            f"{SCORES[score][0]}, K = {k}": (curve, SCORES[score][2])
            for score in scores(group)
            for k, curve in beta_curves(group, score).items()
        }
        grids.append(_grid(EXPERIMENTS.get(name, name), "beta", curves))
    return grids


def tested(records: Records, varied: str, corner: str) -> list[Grid]:
    """The first score against what is varied at test, a grid for each training and a column for each line."""
    grids = []
    for name, group in by_training(records).items():
        score = scores(group)[0]
        curves = {line: (curve, SCORES[score][2]) for line, curve in tested_curves(group, varied, score).items()}
        grids.append(_grid(name, corner, curves))
    return grids


def objectives(records: Records) -> list[Grid]:
    """Gap to the best possible log density, and coverage of 90% intervals: a row for each beta and objective."""
    found = {}
    for record in records.values():
        options, (test,) = record["config"]["train"], record["evaluation"]["rows"]
        found[options["beta"], options["objective"], test["shots"]] = test["metrics"]
    columns = list(
        product(sorted({k for *_, k in found}), (("gap_to_optimum", "gap", 3), ("coverage_90", "coverage", 2)))
    )
    rows = []
    for b, objective in sorted({key[:2] for key in found}, reverse=True):
        name = {"vib": "F", "predictive": "F_p"}[objective]
        cells = (
            _number(estimate([found[b, objective, k][score]]) if (b, objective, k) in found else None, digits)
            for k, (score, _, digits) in columns
        )
        rows.append(Row(f"{name}, beta = {b:g}", tuple(cells)))
    heads = (f"K = {k}, {head}" for k, (_, head, _) in columns)
    return [Grid("", ("objective", *heads), tuple(rows))]


def _grid(name: str, corner: str, curves: dict[str, tuple[Curve, int]]) -> Grid:
    values = sorted({value for curve, _ in curves.values() for value in curve})
    rows = (
        Row(f"{value:g}", tuple(_number(curve.get(value), digits) for curve, digits in curves.values()))
        for value in values
    )
    return Grid(name, (corner, *curves), tuple(rows))


def _number(found: Estimate | None, digits: int) -> str:
    """Mean and 95% interval: over trainings where there are several, else over the test tasks of one."""
    if found is None:
        return "not run"
    mean, half = f"{found.mean:.{digits}f}", found.interval
    return mean if half is None else f"{mean} ± {half:.{digits}f}"
