"""Tables in Markdown: any rows, and the test of one run."""

from collections.abc import Iterable, Sequence
from typing import Any

FEW = 10  # test groups, of which it is said that they say little of others


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, columns padded so that it reads well as plain text too."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    padded = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines]
    rule = "| " + " | ".join("-" * w for w in widths) + " |"
    return "\n".join([padded[0], rule, *padded[1:]])


# One run


def plus_minus(found: dict[str, Any], digits: int = 3, scale: float = 1.0) -> str:
    """A metric of one run with its 95% interval: over repeats where there are several, else over test tasks."""
    half = next((found[key] for key in ("ci95_over_repeats", "ci95_over_tasks", "episode_ci95") if key in found), None)
    mean = f"{scale * found['mean']:.{digits}f}"
    return mean if half is None else f"{mean} ± {scale * half:.{digits}f}"


def evaluation(result: dict[str, Any]) -> str:
    """The test of one run, a row for each number of shots and inner steps."""
    if result["experiment"] == "table" and "target" in result:
        return of_table(result)
    return classification(result) if "episodes" in result["rows"][0] else regression(result)


def regression(result: dict[str, Any]) -> str:
    """A table of errors, log densities and coverage, a row for each number of shots and inner steps."""
    names = list(result["rows"][0]["metrics"])
    rows = []
    for row in result["rows"]:
        rows.append(_sizes(row) + [plus_minus(row["metrics"][n], 4 if n == "mse" else 3) for n in names])
    over = f"{result['repeats']} trainings" if result["repeats"] > 1 else "test tasks"
    return markdown(_heads(result["rows"][0]) + [_title(n) for n in names], rows) + (
        f"\n\n± is the 95% interval over {over}."
    )


def classification(result: dict[str, Any]) -> str:
    """A table of accuracies in per cent, NLL, Brier score and ECE, a row for each number of shots and inner steps.

    What takes no meta-training stands below, where it was tested too.
    """
    if any("obvious" in row for row in result["rows"]):
        return _beside_obvious(result)
    rows = []
    for row in result["rows"]:
        for kind in ("metrics", "tempered_metrics"):
            if kind in row:
                label = ", ".join(filter(None, (row.get("shift"), *_temperature(row, kind))))
                rows.append([*_sizes(row), *_class_cells(row[kind]), label])
    header = [*_heads(result["rows"][0]), "accuracy %", "NLL", "Brier", "ECE %", "under"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    episodes = result["rows"][0]["episodes"]
    return markdown(header, rows) + f"\n\n± is the 95% interval over {episodes} test episodes of this one training."


def _temperature(row: dict[str, Any], kind: str) -> list[str]:
    return [] if kind == "metrics" else [f"T = {row['temperature']:.2f}"]


def _beside_obvious(result: dict[str, Any]) -> str:
    """The same where pictures are the user's own, with what takes no meta-training below each row."""
    rows = []
    for row in result["rows"]:
        b, c = row.get("likeness", (0.0, 0.0))
        alike = f" exp({b:.1f} r {'-' if c < 0 else '+'} {abs(c):.1f} r²)" if b or c else ""
        plain = row["temperature"] == 1 and not alike
        label = result["method"] + ("" if plain else f", T = {row['temperature']:.2f}{alike}")
        label += f", {row['shift']}" if "shift" in row else ""
        rows.append([label, *_sizes(row), *_class_cells(row["metrics"])])
        for name, found in row.get("obvious", {}).items():
            cells = _class_cells(found) if "nll" in found else [plus_minus(found["accuracy"], 2, 100), "", "", ""]
            rows.append([name, *_sizes(row), *cells])
    header = ["method", *_heads(result["rows"][0]), "accuracy %", "NLL", "Brier", "ECE %"]
    episodes = result["rows"][0]["episodes"]
    alike = " r is how alike the classes of a task are, from about 0 to 1." if "likeness" in result["rows"][0] else ""
    return markdown(header, rows) + (
        f"\n\n± is the 95% interval over {episodes} test episodes of classes that training never saw. T is the "
        f"temperature of the probabilities, fitted on validation.{alike}" + _ahead(result)
    )


def _ahead(result: dict[str, Any]) -> str:
    """Says where something obvious is more accurate, and what to do about it; nothing where nothing is."""
    found = [
        f"{name} at {row['shots']} shot{'s' * (row['shots'] > 1)}"
        for row in result["rows"]
        for name, other in row.get("obvious", {}).items()
        if other["accuracy"]["mean"] - other["accuracy"]["episode_ci95"] > row["metrics"]["accuracy"]["mean"]
    ]
    if not found:
        return ""
    return (
        f"\n\nMore accurate than this model: {', '.join(found)}. More classes to learn from help most. Without them "
        "take a bundled model (`metavib models`), or features of a large network (`metavib embed`)."
    )


def roles(table: dict[str, Any]) -> str:
    """What the columns of a run's table are for."""
    inputs = (", ".join(table["features"][:8]) or "no inputs") + ", ..." * (len(table["features"]) > 8)
    return f"table {table['csv']}: {table['target']!r} from {inputs}; a group is a {table['task']!r}"


def of_table(result: dict[str, Any]) -> str:
    """The test of a run on a table, beside what takes no meta-learning, in the units of the table."""
    first = result["rows"][0]
    metrics, others = first["metrics"], list(first["obvious"])
    real = "mse" in metrics
    header = ["rows known of a group", "groups", *_heads(first)[1:], "typical error" if real else "log loss", *others]
    header += [_title(name) for name in metrics if name not in ("mse", "log_density", "coverage_50")]
    header += ["log density"] if real else []
    rows = []
    for row in result["rows"]:
        found = [row["metrics"], *(row["obvious"][name] for name in others)]
        cells = [str(row["shots"]), str(row["tasks"]), *_sizes(row)[1:]]
        cells += [_typical(m["mse"]) if real else _loss(m) for m in found]
        own = [name for name in metrics if name not in ("mse", "log_density", "coverage_50")]
        cells += [plus_minus(row["metrics"][name], 2) for name in own]
        rows.append(cells + ([plus_minus(row["metrics"]["log_density"])] if real else []))
    unit = "the root of the mean squared error, in the units of" if real else "minus the mean log probability, of"
    loss = "the typical error is" if real else "the log loss is"
    beside = " The two columns beside it are ridges, of all rows and of the known ones of a group." if real else ""
    groups = f"{first['tasks']} group{'s' * (first['tasks'] != 1)} that {'were' if first['tasks'] != 1 else 'was'}"
    few = " So few groups say little of others: where there is a table of groups held out in turn, it says more."
    few *= first["tasks"] < FEW
    return markdown(header, rows) + (
        f"\n\nOn {groups} not learned from; {loss} {unit} {result['target']!r}; ± is a 95% interval over groups."
        f"{beside}{few}"
    )


def held_out(rows: list[dict[str, Any]], target: str) -> str:
    """How well groups that were learned from are predicted, each held out in its turn.

    Args:
        rows: the fields of `metavib.groups.report.Row`, or of classes those of `metavib.groups.class_report.ClassRow`.
        target: the column that is predicted.
    """
    real = "rmse" in rows[0]
    if real:
        columns = {"typical error": "rmse", "one function for all": "shared", "each group alone": "alone"}
        last = {"90% coverage": "coverage"}
    else:
        columns = {"log loss": "log_loss", "shares of all groups": "usual", "smoothed shares of the K rows": "smoothed"}
        last = {"accuracy": "accuracy"}
    cells = [
        [str(r["known"]), str(r["groups"])]
        + [f"{r[name]:.4g}" if real else f"{r[name]:.3f}" for name in columns.values()]
        + [f"{r[name]:.2f}" for name in last.values()]
        for r in rows
    ]
    return markdown(["rows known of a group", "groups", *columns, *last], cells) + (
        "\n\nThe same of the groups that were learned from, each held out in its turn"
        f"{f', in the units of {target!r}' * real}."
    )


def _typical(mse: dict[str, Any]) -> str:
    """The root of a mean squared error, with its interval."""
    root, half = mse["mean"] ** 0.5, mse.get("ci95_over_repeats", mse["ci95_over_tasks"])
    return f"{root:.4g}" if half is None or not root else f"{root:.4g} ± {half / 2 / root:.2g}"


def _loss(found: dict[str, Any]) -> str:
    return plus_minus(found["log_density"], scale=-1).replace("± -", "± ")


def _class_cells(found: dict[str, Any]) -> list[str]:
    cells = [plus_minus(found["accuracy"], 2, 100), plus_minus(found["nll"]), plus_minus(found["brier"])]
    return [*cells, f"{100 * found['ece']:.2f}"]


_SIZES = {"ways": "ways N", "shots": "shots K", "inner_steps": "inner steps"}


def _heads(row: dict[str, Any]) -> list[str]:
    return [title for key, title in _SIZES.items() if key in row]


def _sizes(row: dict[str, Any]) -> list[str]:
    """Shots of classes that have different numbers of points are from fewest to most."""
    from_to = f"{row['min_shots']} to {row['shots']}" if "min_shots" in row else None
    return [from_to if from_to and key == "shots" else str(row[key]) for key in _SIZES if key in row]


def _title(metric: str) -> str:
    known = {"mse": "MSE", "log_density": "log density", "gap_to_optimum": "gap to optimum"}
    return known.get(metric, f"{metric.removeprefix('coverage_')}% coverage" if "coverage" in metric else metric)
