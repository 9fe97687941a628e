"""Tables in Markdown, made from records alone."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from metavib import metrics, paper

TITLES = {"maml": "MAML", "stochastic-maml": "stochastic MAML", "gp-vib": "GP-VIB", "gp-maml": "GP+MAML"}
# The rows of the paper's main table: name -> method and kernel.
MAIN_TABLE = {
    "feature-transfer": ("feature-transfer", "linear"),
    "baseline++": ("baseline++", "linear"),
    "matching-net": ("matching-net", "linear"),
    "proto-net": ("proto-net", "linear"),
    "maml": ("maml", "linear"),
    "relation-net": ("relation-net", "linear"),
    "dkt-linear": ("dkt", "linear"),
    "dkt-cosine": ("dkt", "cosine"),
    "dkt-bn-cosine": ("dkt", "bn-cosine"),
    "gp-vib-linear": ("gp-vib", "linear"),
    "gp-vib-cosine": ("gp-vib", "cosine"),
}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, columns padded so that it reads well as plain text too."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    padded = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines]
    rule = "| " + " | ".join("-" * w for w in widths) + " |"
    return "\n".join([padded[0], rule, *padded[1:]])


def plus_minus(metric: dict[str, Any], digits: int = 3) -> str:
    """Mean and 95% interval: over repeats where there are several, else over tasks."""
    spread = metric.get("ci95_over_repeats", metric["ci95_over_tasks"])
    number = f"{metric['mean']:.{digits}f}"
    return number if spread is None else f"{number} ± {spread:.{digits}f}"


def evaluation(result: dict[str, Any]) -> str:
    """The test of one run, a row for each number of shots and inner steps."""
    return classification(result) if "episodes" in result["rows"][0] else regression(result)


def regression(result: dict[str, Any]) -> str:
    """Errors, log densities and coverage."""
    names = list(result["rows"][0]["metrics"])
    rows = []
    for row in result["rows"]:
        rows.append(_sizes(row) + [plus_minus(row["metrics"][n], 4 if n == "mse" else 3) for n in names])
    over = f"{result['repeats']} trainings" if result["repeats"] > 1 else "test tasks"
    return markdown(_heads(result["rows"][0]) + [_title(n) for n in names], rows) + (
        f"\n\n± is the 95% interval over {over}."
    )


def classification(result: dict[str, Any]) -> str:
    """Accuracies in per cent, NLL, Brier score and ECE."""
    rows = []
    for row in result["rows"]:
        for kind in ("metrics", "tempered_metrics"):
            if kind in row:
                label = "" if kind == "metrics" else f"T = {row['temperature']:.2f}"
                rows.append([*_sizes(row), *_class_cells(row[kind]), label])
    header = [*_heads(result["rows"][0]), "accuracy %", "NLL", "Brier", "ECE %", "temperature"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    episodes = result["rows"][0]["episodes"]
    return markdown(header, rows) + f"\n\n± is the 95% interval over {episodes} test episodes of this one training."


def _class_cells(found: dict[str, Any]) -> list[str]:
    accuracy, nll, brier = (found[name] for name in ("accuracy", "nll", "brier"))
    return [
        f"{100 * accuracy['mean']:.2f} ± {100 * accuracy['episode_ci95']:.2f}",
        f"{nll['mean']:.3f} ± {nll['episode_ci95']:.3f}",
        f"{brier['mean']:.3f} ± {brier['episode_ci95']:.3f}",
        f"{100 * found['ece']:.2f}",
    ]


_SIZES = {"ways": "ways N", "shots": "shots K", "inner_steps": "inner steps"}


def _heads(row: dict[str, Any]) -> list[str]:
    return [title for key, title in _SIZES.items() if key in row]


def _sizes(row: dict[str, Any]) -> list[str]:
    return [str(row[key]) for key in _SIZES if key in row]


def table_1(records: dict[str, Any]) -> str:
    """Sinusoids: mean squared error at K = 5, 10, 20, the paper's number beside ours."""
    shots = [row["shots"] for row in next(iter(records.values()))["evaluation"]["rows"]]
    shots = sorted(set(shots))
    header = ["method"] + [cell for k in shots for cell in (f"K = {k}", "paper")]
    rows = []
    for name, record in records.items():
        result = record["evaluation"]
        for steps in dict.fromkeys(row.get("inner_steps") for row in result["rows"]):
            cells = [_label(name, result["method"], steps)]
            for k in shots:
                row = next(r for r in result["rows"] if r["shots"] == k and r.get("inner_steps") == steps)
                theirs = paper.TABLE_1.get((result["method"], steps), {}).get(k)
                cells += [plus_minus(row["metrics"]["mse"], 4), "" if theirs is None else f"{theirs[0]} ± {theirs[1]}"]
            rows.append(cells)
    first = next(iter(records.values()))
    repeats = first["evaluation"]["repeats"]
    over = (
        f"{repeats} trainings (the paper's: over 10)" if repeats > 1 else "test tasks (the paper's: over 10 trainings)"
    )
    seconds = "; ".join(f"{name} {record['training_seconds']:.0f} s" for name, record in records.items())
    note = (
        f"Mean squared error on {first['evaluation']['rows'][0]['tasks']} new sinusoids; ± is the 95% interval over "
        f"{over}. Trained on {first['machine']}: {seconds}, all repeats together."
    )
    return markdown(header, rows) + "\n\n" + note


def images(records: dict[str, Any]) -> str:
    """Accuracy, NLL and ECE of image runs named `<row>-<shots>` or `<row>-<shots>-seed<n>`, the paper's beside ours.

    The spread of a cell is named in the cell: an interval over test episodes where there is one training, a standard
    deviation over trainings where there are several.
    """
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name, record in records.items():
        row, shots = image_cell(name)
        cells.setdefault((row, shots), []).append(record)
    experiment = next(iter(records.values()))["evaluation"]["experiment"]
    shots_run = sorted({shots for _, shots in cells})
    theirs = any(experiment == column for column, _ in paper.TABLE_2_COLUMNS)
    columns = ["accuracy %", *["paper %"] * theirs, "NLL", "ECE %"]
    rows = []
    for row in dict.fromkeys(row for row, _ in cells):
        line = [row]
        for shots in shots_run:
            found = cells.get((row, shots), [])
            known = paper.table_2(row, experiment, shots)
            beside = ["" if known is None else f"{known[0]:.2f} ± {known[1]:.2f} SD"] if theirs else []
            accuracy, nll, ece = _image_cells([r["evaluation"]["rows"][0]["metrics"] for r in found])
            line += [accuracy, *beside, nll, ece]
        rows.append(line)
    header = ["method"] + [f"{k}-shot: {column}" for k in shots_run for column in columns]
    return markdown(header, rows) + "\n\n" + _image_note(records)


def image_cell(name: str) -> tuple[str, int]:
    """Row and shots of a run's name."""
    row, _, shots = name.partition("-seed")[0].rpartition("-")
    return row, int(shots)


def _image_cells(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["not run", "", ""]
    if len(found) == 1:
        accuracy, nll, _, ece = _class_cells(found[0])
        return [f"{accuracy} over episodes", nll.partition(" ")[0], ece]
    accuracies = metrics.over_trainings(torch.tensor([100 * f["accuracy"]["mean"] for f in found]))
    means = [
        sum(values) / len(found) for values in ([f["nll"]["mean"] for f in found], [100 * f["ece"] for f in found])
    ]
    spread = f"{accuracies.training_sd:.2f} SD over {accuracies.trainings} trainings"
    return [f"{accuracies.mean:.2f} ± {spread}", f"{means[0]:.3f}", f"{means[1]:.2f}"]


def _image_note(records: dict[str, Any]) -> str:
    first = next(iter(records.values()))
    row, seconds = first["evaluation"]["rows"][0], sum(record["training_seconds"] for record in records.values())
    return (
        f"{row['ways']}-way {first['evaluation']['experiment']}, {row['episodes']} test episodes. 'Over episodes': 95% "
        "interval over the test episodes of one training; 'SD': standard deviation over trainings. "
        f"Machine: {first['machine']}; {seconds / 60:.0f} minutes of training for {len(records)} runs."
    )


def beta(records: dict[str, Any]) -> str:
    """Error and log density against beta."""
    shots = [row["shots"] for row in next(iter(records.values()))["evaluation"]["rows"]]
    header = ["beta"] + [f"MSE, K = {k}" for k in shots] + [f"log density, K = {k}" for k in shots]
    rows = []
    for record in records.values():
        cells = [row["metrics"] for row in record["evaluation"]["rows"]]
        rows.append(
            [f"{record['config']['train']['beta']:g}"]
            + [plus_minus(m["mse"], 4) for m in cells]
            + [plus_minus(m["log_density"], 2) for m in cells]
        )
    repeats = next(iter(records.values()))["evaluation"]["repeats"]
    return markdown(header, rows) + f"\n\n± is the 95% interval over {repeats} trainings."


def _label(name: str, method: str, steps: int | None) -> str:
    title = TITLES.get(name, f"{TITLES.get(method, method)}, {name.removeprefix(method).strip('-')}")
    return title if steps is None else f"{title}, {steps} step{'s' * (steps != 1)}"


def _title(metric: str) -> str:
    known = {"mse": "MSE", "log_density": "log density", "gap_to_optimum": "gap to optimum"}
    return known.get(metric, f"{metric.removeprefix('coverage_')}% coverage" if "coverage" in metric else metric)
