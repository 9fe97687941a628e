"""The command line of the service."""

import os
from pathlib import Path
from typing import Annotated

import typer


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="Run folders, as `metavib train` writes them, or names of bundled models (`metavib models`); "
            "`NAME=FOLDER` to rename.",
        ),
    ],
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where tasks are kept: an SQLite file, or `postgresql://USER:PASSWORD@HOST/DATABASE`, which several "
            "servers may share.",
        ),
    ] = "sqlite:///metavib-tasks.db",
    host: Annotated[
        str, typer.Option(help="Address to listen at. Other than this machine's own, a token is required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token that clients must show. Also read from `$METAVIB_TOKEN`."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="The token itself; a file is safer, since others may see a command line.")
    ] = None,
    max_body: Annotated[float, typer.Option(help="Megabytes of the largest request.")] = 16.0,
    max_tasks: Annotated[int, typer.Option(help="Tasks that may be kept.")] = 1_000_000,
    cache: Annotated[float, typer.Option(help="Megabytes of posteriors that are kept at hand.")] = 256.0,
    timeout: Annotated[float, typer.Option(help="Seconds until a request is given up.")] = 30.0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve models over HTTP, with a page where one watches them learn (needs `pip install 'metavib[serve]'`).

    Tasks are made, updated, asked, merged, forgotten from, exported and imported over HTTP; `/docs` on the server
    lists how, with commands that work as pasted. Stop it with Ctrl-C: what was begun is finished.

    Example: `metavib serve runs/sinusoid-gp-vib-0`
    """
    from metavib.serve.server import serve as run
    from metavib.serve.service import Limits

    if token_file is not None:
        token = token_file.read_text(encoding="utf-8").strip()
    limits = Limits(body=round(max_body * 2**20), tasks=max_tasks, cache=round(cache * 2**20), seconds=timeout)
    token = token or os.environ.get("METAVIB_TOKEN") or None
    run(models, store=store, host=host, port=port, token=token, limits=limits, open_page=open_)
