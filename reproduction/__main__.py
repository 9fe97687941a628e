"""The laboratory from the command line: `python -m reproduction table-2`, `... report`, `... merge FILES`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from metavib.cli import guarded
from metavib.show.console import print_markdown
from metavib.show.tables import markdown
from reproduction import make, store
from reproduction.studies import STUDIES, find

app = typer.Typer(
    name="reproduction",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The tables and figures of the paper, its numbers beside ours: one command for each study.",
    rich_markup_mode="markdown",
)
Option = typer.Option


def study(
    context: typer.Context,
    quick: Annotated[
        bool, Option("--quick", help="A version of a minute: a few of the runs, tiny, on built-in data.")
    ] = False,
    out: Annotated[
        Path | None,
        Option(help="Where run folders, the table and figures go. Default: `runs/reproduction`, `runs/quick`."),
    ] = None,
    records: Annotated[
        Path | None,
        Option(help="Folder of the records. Default: `reproduction/records`; of a quick version one in `--out`."),
    ] = None,
    only: Annotated[
        str | None,
        Option(
            metavar="PATTERNS",
            help="Run only those whose name fits one of these, separated by commas; '' for none, just the table.",
        ),
    ] = None,
    part: Annotated[
        str, Option(metavar="I/N", help="Run the I-th of N parts of the list, one on each machine.")
    ] = "1/1",
    seeds: Annotated[int | None, Option(help="Trainings of each cell. Table 2: 3 of GP-VIB, else 1.")] = None,
    jobs: Annotated[int | None, Option(help="Runs at a time. Default: 8 on a GPU, else one for each core.")] = None,
    device: Annotated[
        str | None, Option(help="`cpu` runs here, slowly, what is written for a GPU. Default: each run's own.")
    ] = None,
    list_: Annotated[bool, Option("--list", help="Only list the runs, and which of them are on record.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Run what is missing of a study, and print its table.

    What is on record is skipped, what was killed goes on, and each finished run is recorded. Runs are named
    COLUMN/ROW-SHOTS-seedN, and `--only` picks them, `*` standing for anything:

    `python -m reproduction table-2 --only 'cub/*'` one dataset;

    `python -m reproduction table-2 --only '*/gp-vib-*-seed0'` one training of GP-VIB everywhere, our own recipes too;

    `python -m reproduction table-2 --only 'cub/*-5-seed0,mini-imagenet/maml-*'` both of these;

    `python -m reproduction table-2 --part 2/4` on the second of four machines; `merge` gathers their records.
    """
    entry = find(context.info_name or "")
    out = out or Path("runs/quick" if quick else "runs/reproduction")
    records = records or (out / "records" if quick else store.FOLDER)
    which: Any = {"quick": quick, "only": only, "part": part, "seeds": seeds}
    if list_:
        planned = make.plan(entry, out, records, **which)
        rows = [[name, "on record" if recorded else "missing"] for name, (_, recorded) in planned.items()]
        print_markdown(markdown(("run", "status"), rows))
    else:
        print_markdown(make.make(entry, out, records, **which, jobs=jobs, device=device, quiet=quiet))


for entry in STUDIES.values():
    app.command(entry.name, short_help=entry.title)(study)


@app.command()
def report(
    records: Annotated[Path, Option(help="Folder of the records.")] = store.FOLDER,
    out: Annotated[Path, Option(help="Folder to write `RESULTS.md` and `docs/figures` into.")] = Path("."),
) -> None:
    """Write RESULTS.md and its figures from the records."""
    from reproduction.report import report as write

    for path in write(records, out):
        typer.echo(path)


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Records made elsewhere, such as `other/table-2.jsonl`.")],
    records: Annotated[Path, Option(help="Folder of the records to add them to.")] = store.FOLDER,
) -> None:
    """Add records that were made elsewhere; a run that is on record is replaced."""
    for name, count in make.merge(files, records).items():
        typer.echo(f"{name}: {count} record{'s' * (count != 1)}")


def main() -> None:
    """The program; errors are sentences, as in `metavib`."""
    guarded(lambda: app(prog_name="python -m reproduction"))


if __name__ == "__main__":
    main()
