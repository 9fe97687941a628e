"""What the program prints: tables for people, notes beside them."""

import typer
from rich.console import Console
from rich.markdown import Markdown


def print_markdown(text: str) -> None:
    """A drawn table on a terminal, plain Markdown in a pipe."""
    console = Console()
    console.print(Markdown(text)) if console.is_terminal else typer.echo(text)


def note(text: str) -> None:
    """A line on standard error, so that standard output holds results alone."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)
