"""Sinusoids: the paper's table 1."""

from reproduction import published as paper
from reproduction.compare import Cell, Estimate, published
from reproduction.grids.grid import Grid, Record, Records, Row, estimate, ordered, title

SHOTS = (5, 10, 20)


def table_1(records: Records) -> list[Grid]:
    """Mean squared error at K = 5, 10, 20: every row of the paper's table, run or not, and our own recipes."""
    known = list(dict.fromkeys(method for method, _ in paper.TABLE_1))
    rows: list[Row] = []
    for name in ordered([*known, *records], known):
        if name in records:
            rows += _rows({name: records[name]}, SHOTS)
        else:
            rows += [_row(name, name, steps, None, SHOTS) for method, steps in paper.TABLE_1 if method == name]
    return [Grid("", _header(SHOTS), tuple(rows), _note(records))]


def sinusoids(records: Records) -> list[Grid]:
    """The same of any runs on sinusoids, and only of them."""
    shots = sorted({row["shots"] for record in records.values() for row in record["evaluation"]["rows"]})
    return [Grid("", _header(shots), tuple(_rows(records, shots)), _note(records))]


def _header(shots: tuple[int, ...] | list[int]) -> tuple[str, ...]:
    return ("method", *(f"K = {k}" for k in shots))


def _rows(records: Records, shots: tuple[int, ...] | list[int]) -> list[Row]:
    rows = []
    for name, record in records.items():
        result = record["evaluation"]
        for steps in dict.fromkeys(row.get("inner_steps") for row in result["rows"]):
            rows.append(_row(name, result["method"], steps, record, shots))
    return rows


def _row(name: str, method: str, steps: int | None, record: Record | None, shots: tuple[int, ...] | list[int]) -> Row:
    tested = {} if record is None else {(r["shots"], r.get("inner_steps")): r for r in record["evaluation"]["rows"]}
    key = name if steps is None else f"{name}-{steps}"
    cells = []
    for k in shots:
        ours = estimate([tested[k, steps]["metrics"]["mse"]]) if (k, steps) in tested else None
        cells.append(Cell(f"{key}/{k}", ours, _published(method, steps, k), 4, 3, lower=True, interval=True))
    return Row(title(name) if steps is None else f"{title(name)}, {steps} step{'s' * (steps != 1)}", tuple(cells))


def _published(method: str, steps: int | None, k: int) -> Estimate | None:
    known = paper.TABLE_1.get((method, steps), {}).get(k)
    return None if known is None else published(known[0], ci95=known[1], trainings=paper.TABLE_1_REPEATS)


def _note(records: Records) -> str:
    if not records:
        return ""
    first = next(iter(records.values()))
    repeats = first["evaluation"]["repeats"]
    over = f"{repeats} trainings" if repeats > 1 else "the test tasks of one training"
    seconds = "; ".join(f"{title(name)} {record['training_seconds']:.0f} s" for name, record in records.items())
    return (
        f"Mean squared error on {first['evaluation']['rows'][0]['tasks']} new sinusoids, less is better; ± is the 95% "
        f"interval over {over} (the paper's: over {paper.TABLE_1_REPEATS} trainings). Trained on {first['machine']}: "
        f"{seconds}, all repeats together."
    )
