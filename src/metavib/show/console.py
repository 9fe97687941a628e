"""What the program prints: tables for people, notes beside them."""

import typer


def print_markdown(text: str) -> None:
    """Prints Markdown: drawn on a terminal, as it is in a pipe."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text)) if console.is_terminal else typer.echo(text)


def note(text: str) -> None:
    """Prints a line on standard error, so that standard output holds results alone."""
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(text)
