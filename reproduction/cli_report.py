"""The command `report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[Path, typer.Argument(help="Folder of the records, as `metavib reproduce` writes it.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option(help="Folder to write `RESULTS.md` and `results/report.html` into.")] = Path("."),
) -> None:
    """Make `RESULTS.md` and a page to look at from the records alone: every table and figure beside the paper's.

    Each cell has our number, the paper's, and the difference in standard errors; cells without a run say so.
    Explanations of single cells are read from `results/notes.json`.

    Example: `metavib report`
    """
    from reproduction.report import report as write  # figures take a while to import

    for path in write(results, out):
        typer.echo(path)
