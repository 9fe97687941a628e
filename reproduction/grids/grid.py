"""What a table is before anybody decides how it looks, and how the names of runs are read.

A grid is a table whose cells are text or a `Cell`: our number and the paper's. `metavib.show.tables` writes grids as
Markdown, the report's page as HTML. Runs are named `[<experiment>/]<row>[-<shots>][-seed<n>]`; trainings that differ in
the seed alone share a cell.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from reproduction.compare import Cell, Estimate, over_trainings

Record = dict[str, Any]
Records = dict[str, Record]

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
TITLES = {
    "feature-transfer": "Feature Transfer",
    "baseline++": "Baseline++",
    "matching-net": "MatchingNet",
    "proto-net": "ProtoNet",
    "relation-net": "RelationNet",
    "maml": "MAML",
    "stochastic-maml": "stochastic MAML",
    "dkt-linear": "DKT linear",
    "dkt-cosine": "DKT cosine",
    "dkt-bn-cosine": "DKT BN-cosine",
    "gp-vib": "GP-VIB",
    "gp-vib-linear": "GP-VIB linear",
    "gp-vib-cosine": "GP-VIB cosine",
    "gp-maml": "GP+MAML",
    "gp-maml-linear": "GP+MAML linear",
    "gp-maml-cosine": "GP+MAML cosine",
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
}
_NAME = re.compile(r"(?:([^/]+)/)?(.+?)(?:-(\d+))?(?:-seed(\d+))?")


class Name(NamedTuple):
    """What the name of an image run says; None where it does not say."""

    experiment: str | None
    row: str
    shots: int | None
    seed: int | None


class Row(NamedTuple):
    """A line of a grid."""

    label: str
    cells: tuple[Cell | str, ...]


class Grid(NamedTuple):
    """A table: `header` names the first column (of the labels) and then one column for each cell of a row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    @property
    def cells(self) -> list[Cell]:
        """Those that compare."""
        return [cell for row in self.rows for cell in row.cells if isinstance(cell, Cell)]


def read_name(name: str) -> Name:
    """The parts of a run's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"a run is named [<experiment>/]<row>[-<shots>][-seed<n>]; got {name!r}.")
    experiment, row, shots, seed = match.groups()
    return Name(experiment, row, None if shots is None else int(shots), None if seed is None else int(seed))


def title(row: str) -> str:
    """A row's name for people: the method's, then what is special about it."""
    known = base(row, TITLES)
    if known is None:
        return row
    rest = row[len(known) :].strip("-").replace("-", " ")
    return TITLES[known] + (f", {rest}" if rest else "")


def base(row: str, known: Iterable[str]) -> str | None:
    """The known row that a row of ours varies: `gp-vib-linear` for `gp-vib-linear-improved`."""
    fits = [name for name in known if row == name or row.startswith(f"{name}-")]
    return max(fits, key=len, default=None)


def by_experiment(records: Records) -> dict[str, Records]:
    """The records of each experiment, by name without the experiment; in the order of `EXPERIMENTS`."""
    groups: dict[str, Records] = {}
    for name, record in records.items():
        experiment = read_name(name).experiment or record["evaluation"].get("experiment", "")
        groups.setdefault(experiment, {})[name.rpartition("/")[2]] = record
    return {experiment: groups[experiment] for experiment in ordered(groups, list(EXPERIMENTS))}


def by_cell(records: Records) -> dict[tuple[str, int], list[Record]]:
    """The trainings of each row and number of shots; the shots are those tested where the name says none."""
    cells: dict[tuple[str, int], list[Record]] = {}
    for name, record in records.items():
        _, row, shots, _ = read_name(name)
        cells.setdefault((row, shots or record["evaluation"]["rows"][0]["shots"]), []).append(record)
    return cells


def ordered(rows: Iterable[str], known: Sequence[str]) -> list[str]:
    """Rows in the order of the paper's table; after them our variants, in the same order, and what else there is."""

    def place(row: str) -> tuple[bool, int, str]:
        like = base(row, known)
        numbers_by_size = re.sub(r"\d+", lambda digits: digits[0].zfill(9), row)
        return row not in known, len(known) if like is None else known.index(like), numbers_by_size

    return sorted(set(rows), key=place)


def metric(found: Sequence[Record], name: str, scale: float = 1.0, *, shots: int | None = None) -> Estimate | None:
    """A metric of image runs that differ in the seed alone; None where there are none.

    Args:
        found: the runs.
        name: of the metric.
        scale: 100 for per cent.
        shots: at test; those of the first test unless told.
    """
    rows = [record["evaluation"]["rows"] for record in found]
    tested = [row for rows_of in rows for row in (rows_of[:1] if shots is None else rows_of)]
    return estimate([row["metrics"][name] for row in tested if shots in (None, row["shots"])], scale)


def estimate(values: Sequence[dict[str, Any]], scale: float = 1.0) -> Estimate | None:
    """One metric of several trainings, each as its test reported it; None where there are none."""
    if not values:
        return None
    if "repeats" in values[0]:  # a run with trainings side by side
        return over_trainings([scale * mean for value in values for mean in value["repeats"]])
    ci95 = values[0].get("episode_ci95", values[0].get("ci95_over_tasks")) if len(values) == 1 else None
    return over_trainings([scale * value["mean"] for value in values], None if ci95 is None else scale * ci95)


def number(found: Estimate | None, digits: int) -> str:
    """Mean and 95% interval: over trainings where there are several, else over the tests of one."""
    if found is None:
        return "not run"
    mean, half = f"{found.mean:.{digits}f}", found.interval
    return mean if half is None else f"{mean} ± {half:.{digits}f}"


SPREAD = "± is the 95% interval: over trainings where there are several, else over the test tasks of one."


def cost(records: Records) -> str:
    """What the runs of an image experiment took, in a sentence."""
    if not records:
        return ""
    first = next(iter(records.values()))
    row, seconds = first["evaluation"]["rows"][0], sum(record["training_seconds"] for record in records.values())
    machines = ", ".join(dict.fromkeys(record["machine"] for record in records.values()))
    runs, minutes = (
        f"{n} {unit}{'s' * (n != 1)}" for n, unit in ((len(records), "run"), (round(seconds / 60), "minute"))
    )
    return f" {row['ways']}-way, {row['episodes']} test episodes; {runs}, {minutes} of training in all on {machines}."
