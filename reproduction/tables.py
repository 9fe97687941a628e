"""From records to tables: which runs share a line, what stands in its cells, and how a table is written.

A record has its place from its config: the experiment, the row of the paper's table (method and kernel) and the shots;
and from its variant, which says what we changed in the paper's recipe. Trainings that differ in the seed alone share
a cell. The name of a run decides nothing.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import PurePath
from statistics import fmean
from typing import Any, NamedTuple

from metavib.show.tables import markdown as markdown
from metavib.training.config import CLASSES
from reproduction import published as paper
from reproduction.compare import Cell, Estimate, over_trainings
from reproduction.store import Record, Records

MAIN_TABLE = tuple(dict.fromkeys(row for row, _, _ in paper.TABLE_2))
LONGER_VERSION = tuple(dict.fromkeys(row for row, _, _ in paper.FURTHER))


class Method(NamedTuple):
    """What stands behind a row of the paper's tables: a method, its kernel where it has one, and its name."""

    method: str
    kernel: str
    title: str


ROWS = {
    "feature-transfer": Method("feature-transfer", "linear", "Feature Transfer"),
    "baseline++": Method("baseline++", "linear", "Baseline++"),
    "matching-net": Method("matching-net", "linear", "MatchingNet"),
    "proto-net": Method("proto-net", "linear", "ProtoNet"),
    "relation-net": Method("relation-net", "linear", "RelationNet"),
    "maml": Method("maml", "linear", "MAML"),
    "stochastic-maml": Method("stochastic-maml", "linear", "stochastic MAML"),
    "dkt-linear": Method("dkt", "linear", "DKT linear"),
    "dkt-cosine": Method("dkt", "cosine", "DKT cosine"),
    "dkt-bn-cosine": Method("dkt", "bn-cosine", "DKT BN-cosine"),
    "nearest-centroids": Method("nearest-centroids", "linear", "nearest centroids"),
    "logistic-regression": Method("logistic-regression", "linear", "logistic regression"),
    "gaussian-classes": Method("gaussian-classes", "cosine", "Gaussian classes"),
    "gp-vib": Method("gp-vib", "linear", "GP-VIB"),
    "gp-vib-linear": Method("gp-vib", "linear", "GP-VIB linear"),
    "gp-vib-cosine": Method("gp-vib", "cosine", "GP-VIB cosine"),
    "gp-maml": Method("gp-maml", "linear", "GP+MAML"),
    "gp-maml-linear": Method("gp-maml", "linear", "GP+MAML linear"),
    "gp-maml-cosine": Method("gp-maml", "cosine", "GP+MAML cosine"),
}
EXPERIMENTS = {
    "sinusoid": "Sinusoids",
    "glyphs": "Glyphs",
    "cub": "CUB",
    "mini-imagenet": "mini-ImageNet",
    "omniglot-emnist": "Omniglot → EMNIST",
    "mini-imagenet-cub": "mini-ImageNet → CUB",
    "omniglot": "Omniglot",
    "augmented-omniglot": "Augmented Omniglot",
    "resnet12-cub": "CUB, features of ResNet-12",
    "resnet12-mini-imagenet": "mini-ImageNet, features of ResNet-12",
    "resnet12-mini-imagenet-cub": "mini-ImageNet → CUB, features of ResNet-12",
    "resnet12-mini-imagenet-to-birds": "mini-ImageNet → CUB, nothing known of birds, features of ResNet-12",
}
Line = tuple[str, str]  # a row of the paper's table, and which variant of it


class Row(NamedTuple):
    """A line of a table: its label, and a cell for every further column."""

    label: str
    cells: tuple[Cell | str, ...]


class Grid(NamedTuple):
    """A table, before anybody decides how it looks.

    Args:
        title: what stands above it; may be empty.
        header: the head of the labels, then that of each column of cells.
        rows: the lines.
        note: a sentence or two that stand below it.

    Example:
        >>> print(Grid("", ("method", "NLL"), (Row("GP-VIB", ("0.5",)),), "Less is better.").markdown())
        | method | NLL |
        | ------ | --- |
        | GP-VIB | 0.5 |
        <BLANKLINE>
        Less is better.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    @property
    def cells(self) -> list[Cell]:
        """The cells that hold a number of ours, of the paper, or of both; texts are left out."""
        return [cell for row in self.rows for cell in row.cells if isinstance(cell, Cell)]

    def markdown(self) -> str:
        """The table in Markdown: beside each number of ours the paper's and the difference, where there are any."""
        header, columns = [self.header[0]], [[row.label for row in self.rows]]
        for name, column in zip(self.header[1:], zip(*(row.cells for row in self.rows), strict=True), strict=True):
            texts = [(c.text, c.paper_text, c.difference_text) if isinstance(c, Cell) else (c, "", "") for c in column]
            for head, found in zip((name, "paper", "difference"), zip(*texts, strict=True), strict=True):
                if head == name or any(found):
                    header.append(head)
                    columns.append(list(found))
        text = markdown(header, zip(*columns, strict=True))
        return "\n\n".join(filter(None, (f"**{self.title}**" if self.title else "", text, self.note)))


# Where a record stands


def experiment(record: Record) -> str:
    """The experiment of a record; on embeddings the file whose classes are tested, without its ending."""
    tasks = record["config"]["tasks"]
    return PurePath(tasks["features"][-1]).stem if tasks.get("features") else tasks["name"]


def row(record: Record) -> str:
    """The row of the paper's table that a record belongs to."""
    return row_of(record["config"]["method"], record["config"]["model"]["kernel"], experiment(record))


def row_of(method: str, kernel: str, experiment: str) -> str:
    """The row of a method: with its kernel, where it has one and images are what it is run on."""
    return f"{method}-{kernel}" if method in ("dkt", "gp-vib", "gp-maml") and experiment != "sinusoid" else method


def shots(record: Record) -> int:
    """The shots of the cell that a record belongs to."""
    tasks, test = record["config"]["tasks"], record["config"].get("test", {})
    return shots_of(tasks["shots"], tasks.get("min_shots"), test.get("shots", ()))


def shots_of(most: int, least: int | None, tested: Sequence[int]) -> int:
    """The shots of a training task, or of the test, where training tasks have any number of points of a class.

    Args:
        most: points of a class in a training task.
        least: the fewest of them, where classes have different numbers.
        tested: shots at test.
    """
    return tested[0] if least is not None and len(tested) == 1 else most


def title(row: str, variant: str = "") -> str:
    """The name of a line for people: method, kernel, and what is special about it."""
    name = ROWS[row].title if row in ROWS else row
    return f"{name}, {variant.replace('-', ' ')}" if variant else name


def by_experiment(records: Records) -> dict[str, Records]:
    """The records of each experiment, in the order of `EXPERIMENTS`."""
    found: dict[str, Records] = {}
    for name, record in records.items():
        found.setdefault(experiment(record), {})[name] = record
    known = list(EXPERIMENTS)
    return dict(sorted(found.items(), key=lambda item: known.index(item[0]) if item[0] in known else len(known)))


def by_line(records: Records, known: Sequence[str] = MAIN_TABLE, *, whole: bool = False) -> dict[Line, list[Record]]:
    """The records of each line: the known rows in their order, then variants of them in the same order.

    Args:
        records: of one experiment.
        known: the rows of the paper's table.
        whole: whether rows without any record are there too.
    """
    found: dict[Line, list[Record]] = {(name, ""): [] for name in known} if whole else {}
    for record in records.values():
        found.setdefault((row(record), record["variant"]), []).append(record)

    def place(line: Line) -> tuple[bool, int, str]:
        like, variant = line
        by_size = re.sub(r"\d+", lambda digits: digits[0].zfill(9), variant)
        return bool(variant) or like not in known, known.index(like) if like in known else len(known), by_size

    return {line: found[line] for line in sorted(found, key=place)}


def key(line: Line) -> str:
    """A line as the name of a cell begins: `gp-vib-linear-improved`."""
    return "-".join(filter(None, line))


# What stands in a cell


def metric(found: Iterable[Record], name: str, scale: float = 1.0, *, tested: int | None = None) -> Estimate | None:
    """A metric of runs that differ in the seed alone; None where there are none.

    Args:
        found: the runs.
        name: of the metric.
        scale: 100 for per cent.
        tested: shots at test; those of the first test unless told.
    """
    tests = [record["evaluation"]["rows"] for record in found]
    rows = [test for tests_of in tests for test in (tests_of[:1] if tested is None else tests_of)]
    return estimate([test["metrics"][name] for test in rows if tested in (None, test["shots"])], scale)


def estimate(values: Sequence[dict[str, Any]], scale: float = 1.0) -> Estimate | None:
    """One metric of several trainings, each as its test reported it; None where there are none."""
    if not values:
        return None
    if "repeats" in values[0]:  # a run with several trainings side by side
        return over_trainings([scale * mean for value in values for mean in value["repeats"]])
    ci95 = values[0].get("episode_ci95", values[0].get("ci95_over_tasks")) if len(values) == 1 else None
    return over_trainings([scale * value["mean"] for value in values], None if ci95 is None else scale * ci95)


def cost(records: Records) -> str:
    """What the runs of an image experiment took, in a sentence."""
    if not records:
        return ""
    test = next(iter(records.values()))["evaluation"]["rows"][0]
    seconds = sum(record["training_seconds"] for record in records.values())
    machines = ", ".join(dict.fromkeys(record["machine"] for record in records.values()))
    runs, minutes = (
        f"{n} {unit}{'s' * (n != 1)}" for n, unit in ((len(records), "run"), (round(seconds / 60), "minute"))
    )
    return f"{test['ways']}-way, {test['episodes']} test episodes; {runs}, {minutes} of training in all on {machines}."


# The paper's tables


def table_1(records: Records, *, whole: bool = True) -> list[Grid]:
    """Sinusoids: the mean squared error for K = 5, 10 and 20, a row for each method and number of inner steps at test.

    Args:
        records: of runs on sinusoids.
        whole: whether the rows of the paper that were not run are there too.
    """
    lines = by_line(records, tuple(dict.fromkeys(method for method, _, _ in paper.TABLE_1)), whole=whole)
    rows = []
    for (method, variant), found in lines.items():
        tests = {(t["shots"], t.get("inner_steps")): t for record in found for t in record["evaluation"]["rows"]}
        for steps in dict.fromkeys([s for _, s in tests] or [s for m, s, _ in paper.TABLE_1 if m == method]):
            name, label = key((method, variant)), title(method, variant)
            if steps is not None:
                name, label = f"{name}-{steps}", f"{label}, {steps} step{'s' * (steps != 1)}"
            cells = []
            for k in paper.TABLE_1_SHOTS:
                ours = estimate([tests[k, steps]["metrics"]["mse"]]) if (k, steps) in tests else None
                theirs = paper.TABLE_1.get((method, steps, k))
                cells.append(Cell(f"{name}/{k}", ours, theirs, 4, 3, lower=True, interval=True, alike=not variant))
            rows.append(Row(label, tuple(cells)))
    note = _errors_note([record for found in lines.values() for record in found])
    return [Grid("", ("method", *(f"K = {k}" for k in paper.TABLE_1_SHOTS)), tuple(rows), note)]


def _errors_note(records: list[Record]) -> str:
    if not records:
        return ""
    result = records[0]["evaluation"]
    over = f"{result['repeats']} trainings" if result["repeats"] > 1 else "the test tasks of one training"
    seconds = "; ".join(f"{title(row(r), r['variant'])} {r['training_seconds']:.0f} s" for r in records)
    return (
        f"Mean squared error on {result['rows'][0]['tasks']} new sinusoids, less is better; ± is the 95% interval "
        f"over {over} (the paper's: over {paper.TABLE_1_TRAININGS} trainings). Trained on {records[0]['machine']}: "
        f"{seconds}, all repeats together."
    )


LIKE_WITH_LIKE = tuple(
    row for row in (*MAIN_TABLE, CLASSES) if row.startswith(("gp-vib", "proto-net", "relation-net", "dkt", CLASSES))
)
"""The rows of table 2 that are also there with our own recipe, and a method that has no other."""


def table_2(records: Records) -> list[Grid]:
    """The paper's main table, in two blocks for each pair of columns.

    The first has every method with the paper's recipe, run or not; the second compares like with like: the methods that
    can be trained with our own recipe, too.
    """
    groups = by_experiment(records)
    experiments = dict.fromkeys((*paper.TABLE_2_EXPERIMENTS, *groups))
    return [grid for name in experiments for grid in _blocks(name, groups.get(name, {}))]


def _blocks(name: str, records: Records) -> list[Grid]:
    """The two blocks of one pair of columns."""
    heading = EXPERIMENTS.get(name, name)
    ours = {run: record for run, record in records.items() if record["variant"].startswith("improved")}
    paper_s = {run: record for run, record in records.items() if run not in ours}
    same: dict[Line, list[Record]] = {(row, "improved"): [] for row in LIKE_WITH_LIKE} | by_line(ours, LIKE_WITH_LIKE)
    return [
        _table_2(name, f"{heading}, the paper's recipe", by_line(paper_s, whole=True), paper_s),
        _table_2(name, f"{heading}, our recipe for all", same, ours),
    ]


def _table_2(name: str, heading: str, lines: dict[Line, list[Record]], records: Records) -> Grid:
    rows = []
    for line, found in lines.items():
        cells = []
        for k in (1, 5):
            ours = metric([record for record in found if shots(record) == k], "accuracy", 100)
            theirs = paper.TABLE_2.get((line[0], name, k))
            cells.append(Cell(f"{name}/{key(line)}-{k}", ours, theirs, alike=not line[1]))
        rows.append(Row(title(*line), tuple(cells)))
    note = " ".join(filter(None, (*(_best(name, rows, i, k) for i, k in enumerate((1, 5))), cost(records))))
    return Grid(heading, ("method", "1-shot accuracy %", "5-shot accuracy %"), tuple(rows), note)


def _best(name: str, rows: Sequence[Row], column: int, k: int) -> str:
    """Who is first in a column, here and in the paper."""
    cells = {row.label: row.cells[column] for row in rows}
    ours = {label: cell.ours.mean for label, cell in cells.items() if isinstance(cell, Cell) and cell.ours}
    theirs = {
        title(r): number.mean for (r, column, shots), number in paper.TABLE_2.items() if (column, shots) == (name, k)
    }
    if not ours or not theirs:
        return ""
    first, known = max(ours, key=ours.__getitem__), max(theirs, key=theirs.__getitem__)
    return (
        f"Best at {k} shot{'s' * (k > 1)}: {first} with {ours[first]:.2f}; in the paper's column {known} with "
        f"{theirs[known]:.2f}."
    )


class Column(NamedTuple):
    """A column of a further experiment: shots in training and at test, and whether the paper's numbers are for it."""

    label: str
    trained: int
    tested: int
    compared: bool = True


FURTHER = {
    "omniglot": (Column("1-shot", 1, 1), Column("5-shot", 5, 5)),
    # 20 classes: 15 drawings each, or 100 augmented ones each, which is what the paper's methods see at test.
    "augmented-omniglot": (Column("300 points", 15, 15, compared=False), Column("2,000 points", 15, 100)),
}


DEEPER = ("deeper", "deeper-norm")  # variants that the paper has numbers of, without and with batch-norm


def further(records: Records, name: str) -> list[Grid]:
    """An experiment of the longer version: accuracy and NLL of each row, run or not, and of our variants."""
    rows = []
    for line, found in by_line(records, LONGER_VERSION, whole=True).items():
        cells: list[Cell] = []
        for _, trained, tested, compared in FURTHER[name]:
            runs = [record for record in found if shots(record) == trained]
            accuracy, nll = metric(runs, "accuracy", 100, tested=tested), metric(runs, "nll", tested=tested)
            theirs = _further(name, line[0], trained, runs) if compared else (None, None)
            alike = not line[1] or line[1] in DEEPER
            cells += [
                Cell(f"{key(line)}-{tested}", accuracy, theirs[0], digits=3, interval=True, alike=alike),
                Cell(f"{key(line)}-{tested}-nll", nll, theirs[1], digits=3, lower=True, interval=True, alike=alike),
            ]
        rows.append(Row(title(*line), tuple(cells)))
    heads = [f"{column.label} {score}" for column in FURTHER[name] for score in ("accuracy %", "NLL")]
    return [Grid(EXPERIMENTS[name], ("method", *heads), tuple(rows), cost(records))]


def _further(name: str, line: str, k: int, runs: list[Record]) -> tuple[Estimate | None, Estimate | None]:
    """The paper's accuracy and NLL: of its deeper network where the runs have such a one, which has no NLL."""
    model = runs[0]["config"]["model"] if runs else {"extra": 0}
    if model["extra"]:
        return paper.DEEPER.get((line, model["norm"] != "none")), None
    return paper.FURTHER.get((line, name, k)), paper.FURTHER_NLL.get((line, name, k))


# Tables of our own


SCORES = {"accuracy": "accuracy %", "nll": "NLL", "brier": "Brier", "ece": "ECE %"}


def quality(records: Records, scores: Sequence[str]) -> list[Grid]:
    """Scores of image runs that the paper has no numbers for, a grid for each experiment.

    Runs whose probabilities were also tested under a temperature, fitted on validation, have a second row.

    Args:
        records: of any experiments.
        scores: some of `SCORES`.
    """
    grids = []
    for name, group in by_experiment(records).items():
        trained = sorted({shots(record) for record in group.values()})
        rows = []
        for line, found in by_line(group).items():
            for kind, suffix in (("metrics", ""), ("tempered_metrics", ", with a temperature")):
                if kind == "metrics" or any(kind in record["evaluation"]["rows"][0] for record in found):
                    cells = []
                    for k, score in product(trained, scores):
                        tests = [r["evaluation"]["rows"][0] for r in found if shots(r) == k]
                        cells.append(_score(f"{key(line)}-{k}", score, [test[kind] for test in tests if kind in test]))
                    rows.append(Row(title(*line) + suffix, tuple(cells)))
        heads = [f"{k}-shot {SCORES[score]}" for k, score in product(trained, scores)]
        grids.append(Grid(EXPERIMENTS.get(name, name), ("method", *heads), tuple(rows), cost(group)))
    return grids


def _score(name: str, score: str, tests: list[dict[str, Any]]) -> Cell | str:
    """One score of some tests: accuracies with their spread, all others as the mean alone."""
    if score == "accuracy":
        return Cell(name, estimate([test[score] for test in tests], 100), None)
    if not tests:
        return "not run"
    if score == "ece":
        return f"{100 * fmean(test['ece'] for test in tests):.2f}"
    return f"{fmean(test[score]['mean'] for test in tests):.3f}"
