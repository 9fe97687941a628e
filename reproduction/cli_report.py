"""The command `report`."""

from pathlib import Path
from typing import Annotated

import typer

from reproduction import store


def report(
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = store.FOLDER,
    out: Annotated[Path, typer.Option(help="Folder to write `RESULTS.md` and `results/report.html` into.")] = Path("."),
) -> None:
    """Make `RESULTS.md` and a page to look at from the records alone: every table and figure beside the paper's.

    Each cell has our number, the paper's, and the difference in standard errors; cells without a run say so.
    Explanations of single cells are read from `notes.json` beside the records.

    Example: `metavib report`
    """
    from reproduction.report import report as write  # figures take a while to import

    for path in write(records, out):
        typer.echo(path)
