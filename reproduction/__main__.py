"""The paper's tables and figures from the command line: `python -m reproduction make table-2`, `... report`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from metavib.cli import guarded
from metavib.show import tables
from metavib.show.console import print_markdown
from reproduction import cli_report, store
from reproduction import reproduce as reproductions

app = typer.Typer(
    name="reproduction",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The tables and figures of the paper, its numbers beside ours.",
    rich_markup_mode="markdown",
)
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


@app.command(epilog=f"NAME is one of:\n\n{reproductions.listing()}")
def make(
    name: Annotated[str, typer.Argument(help="A table or figure; they are listed below.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute's version: a few of the runs, tiny, on built-in data.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where run folders, tables and figures go.")] = Path("results"),
    records: Annotated[Path, typer.Option(help="Folder of the records.")] = store.FOLDER,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERNS",
            help="Run only those whose name fits one of these, separated by commas; '' for none, just the table.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(metavar="I/N", help="Run the I-th of N parts of the list: one a machine.")
    ] = "1/1",
    seeds: Annotated[int | None, typer.Option(help="Trainings of each cell. Table 2: 3 of GP-VIB, else 1.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time. Default: 8 on a GPU, else one a core.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only list the runs, and which of them are on record.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a table or figure of the paper, its numbers beside ours.

    Runs what is missing, skips what is recorded, goes on where it was killed, and writes a record a run.

    Runs are named COLUMN/ROW-SHOTS-seedN, and `--only` picks them, `*` standing for anything:

    `python -m reproduction make table-2 --only 'cub/*'` one dataset;

    `python -m reproduction make table-2 --only '*/gp-vib-*-seed0'` one training of GP-VIB everywhere, our own
    recipes too;

    `python -m reproduction make table-2 --only 'cub/*-5-seed0,mini-imagenet/maml-*'` both of these;

    `python -m reproduction make table-2 --part 2/4` the second of four machines; collect the records in one folder
    afterwards.

    Example: `python -m reproduction make table-1 --quick`
    """
    if list_:
        runs = reproductions.plan(name, out, records=records, fast=quick, only=only, part=part, seeds=seeds)
        rows = [[key, "on record" if recorded else "missing"] for key, (_, recorded) in runs.items()]
        print_markdown(tables.markdown(("run", "status"), rows))
        return
    options: Any = {"records": records, "only": only, "part": part, "seeds": seeds, "jobs": jobs}
    print_markdown(reproductions.reproduce(name, out, fast=quick, quiet=quiet, **options))


app.command()(cli_report.report)


def main() -> None:
    """The program; errors are sentences, as in `metavib`."""
    guarded(lambda: app(prog_name="python -m reproduction"))


if __name__ == "__main__":
    main()
