"""Accuracies on images: the paper's main table, and the experiments of its longer version."""

from collections.abc import Sequence
from typing import NamedTuple

from reproduction import published as paper
from reproduction.compare import Cell, Estimate, published
from reproduction.grids.grid import (
    EXPERIMENTS,
    MAIN_TABLE,
    SPREAD,
    Grid,
    Record,
    Records,
    Row,
    base,
    by_cell,
    by_experiment,
    cost,
    metric,
    ordered,
    title,
)


def table_2(records: Records) -> list[Grid]:
    """The paper's main table, a grid for each pair of columns: every method, run or not, and our own recipes."""
    groups = by_experiment(records)
    experiments = ordered([e for e, _ in paper.TABLE_2_COLUMNS] + list(groups), [e for e, _ in paper.TABLE_2_COLUMNS])
    return [_table_2(experiment, groups.get(experiment, {})) for experiment in experiments]


def _table_2(experiment: str, records: Records) -> Grid:
    found = by_cell(records)
    rows = []
    for row in ordered([*MAIN_TABLE, *(row for row, _ in found)], list(MAIN_TABLE)):
        cells = []
        for shots in (1, 5):
            known = paper.table_2(base(row, paper.TABLE_2) or "", experiment, shots)
            theirs = known and published(known[0], sd=known[1], trainings=paper.TABLE_2_TRAININGS)
            ours = metric(found.get((row, shots), []), "accuracy", 100)
            cells.append(Cell(f"{experiment}/{row}-{shots}", ours, theirs))
        rows.append(Row(title(row), tuple(cells)))
    note = " ".join(filter(None, (_best(rows, i, shots) for i, shots in enumerate((1, 5))))) + cost(records)
    name = EXPERIMENTS.get(experiment, experiment)
    return Grid(name, ("method", "1-shot accuracy %", "5-shot accuracy %"), tuple(rows), note.strip())


def _best(rows: Sequence[Row], column: int, shots: int) -> str:
    """Who is first in a column, here and in the paper."""
    cells = {row.label: row.cells[column] for row in rows}
    ours = {label: c.ours.mean for label, c in cells.items() if isinstance(c, Cell) and c.ours}
    theirs = {
        label: c.paper.mean
        for label, c in cells.items()
        if isinstance(c, Cell) and c.paper and label in (title(row) for row in MAIN_TABLE)
    }
    if not ours or not theirs:
        return ""
    first, known = max(ours, key=ours.__getitem__), max(theirs, key=theirs.__getitem__)
    return (
        f"Best at {shots} shot{'s' * (shots > 1)}: {first} with {ours[first]:.2f}; in the paper's column {known} with "
        f"{theirs[known]:.2f}."
    )


class Column(NamedTuple):
    """A column of a further experiment: shots in training and at test, and whether the paper's numbers are for it."""

    label: str
    trained: int
    tested: int
    compared: bool


FURTHER = {
    "omniglot": (Column("1-shot", 1, 1, True), Column("5-shot", 5, 5, True)),
    "mini-imagenet": (Column("1-shot", 1, 1, True), Column("5-shot", 5, 5, True)),
    # 20 classes: 15 drawings each, or 100 augmented ones each, which is what the paper's methods see at test.
    "augmented-omniglot": (Column("300 points", 15, 15, False), Column("2,000 points", 15, 100, True)),
}


def further(records: Records, experiment: str) -> list[Grid]:
    """The longer version's experiments: accuracy and NLL of each row, run or not."""
    columns = FURTHER[experiment]
    found = by_cell(records)
    rows = []
    for row in ordered([*paper.FURTHER, *(row for row, _ in found)], list(paper.FURTHER)):
        cells: list[Cell] = []
        for _, trained, tested, compared in columns:
            runs = found.get((row, trained), [])
            accuracy, nll = metric(runs, "accuracy", 100, shots=tested), metric(runs, "nll", shots=tested)
            known = (_further(row, experiment, trained, runs), _further_nll(row, experiment, trained, runs))
            theirs = known if compared else (None, None)
            cells += [
                Cell(f"{row}-{tested}", accuracy, theirs[0], digits=3, interval=True),
                Cell(f"{row}-{tested}-nll", nll, theirs[1], digits=3, lower=True, interval=True),
            ]
        rows.append(Row(title(row), tuple(cells)))
    header = [cell for column in columns for cell in (f"{column.label} accuracy %", f"{column.label} NLL")]
    return [Grid(EXPERIMENTS[experiment], ("method", *header), tuple(rows), f"{SPREAD}{cost(records)}")]


def _further(row: str, experiment: str, shots: int, runs: list[Record]) -> Estimate | None:
    """The paper's accuracy: of the deeper network where the runs have it, which is published without a spread."""
    known = base(row, paper.FURTHER)
    if known is None:
        return None
    if experiment == "augmented-omniglot" and _deeper(runs):
        norm = runs[0]["config"]["model"]["norm"] != "none"
        mean = paper.DEEPER.get((known, norm))
        return None if mean is None else published(mean, trainings=paper.FURTHER_REPEATS)
    accuracy, ci95 = paper.FURTHER[known][experiment, shots]
    return published(accuracy, ci95=ci95, trainings=paper.FURTHER_REPEATS)


def _further_nll(row: str, experiment: str, shots: int, runs: list[Record]) -> Estimate | None:
    known = base(row, paper.FURTHER_NLL)
    if known is None or _deeper(runs):
        return None
    return published(paper.FURTHER_NLL[known][experiment, shots], trainings=paper.FURTHER_REPEATS)


def _deeper(runs: list[Record]) -> bool:
    return bool(runs) and runs[0]["config"]["model"]["extra"] > 0


def omniglot(records: Records) -> list[Grid]:
    """Omniglot 5-way, 1 and 5 shots."""
    return further(records, "omniglot")


def augmented_omniglot(records: Records) -> list[Grid]:
    """Augmented Omniglot 20-way, 15 shots."""
    return further(records, "augmented-omniglot")
