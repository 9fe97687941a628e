"""Grids of numbers in Markdown: ours, the paper's, and how far apart they are."""

from collections.abc import Callable
from typing import Any

from metavib.show.tables import markdown
from reproduction import grids
from reproduction.compare import Cell
from reproduction.grids import Grid
from reproduction.grids.grid import MAIN_TABLE as MAIN_TABLE

Records = dict[str, Any]


def grid(table: Grid) -> str:
    """A grid: beside each number of ours the paper's and the difference in standard errors, where there are any."""
    header, columns = [table.header[0]], [[row.label for row in table.rows]]
    for name, column in zip(table.header[1:], zip(*(row.cells for row in table.rows), strict=True), strict=True):
        header.append(name)
        columns.append([cell.text if isinstance(cell, Cell) else cell for cell in column])
        for label, texts in (
            ("paper", [cell.paper_text if isinstance(cell, Cell) else "" for cell in column]),
            ("difference", [cell.difference_text if isinstance(cell, Cell) else "" for cell in column]),
        ):
            if any(texts):
                header.append(label)
                columns.append(texts)
    text = markdown(header, zip(*columns, strict=True))
    return "\n\n".join(filter(None, (f"**{table.title}**" if table.title else "", text, table.note)))


def _in_markdown(made: Callable[[Records], list[Grid]]) -> Callable[[Records], str]:
    return lambda records: "\n\n".join(map(grid, made(records)))


table_1 = _in_markdown(grids.table_1)
sinusoids = _in_markdown(grids.sinusoids)
table_2 = _in_markdown(grids.table_2)
omniglot = _in_markdown(grids.omniglot)
augmented_omniglot = _in_markdown(grids.augmented_omniglot)
images = _in_markdown(grids.images)
calibration = _in_markdown(grids.calibration)
beta = _in_markdown(grids.beta)
shots = _in_markdown(grids.shots)
inner_steps = _in_markdown(grids.inner_steps)
