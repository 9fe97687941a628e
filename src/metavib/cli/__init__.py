"""The command line: one function for each command, nothing decided behind it.

Commands import what they compute with when they are called. So `metavib --help`, `--version` and the completion of a
shell answer at once, without PyTorch.
"""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from metavib.cli import about, pretrain, runs, serve, tasks, tune
from metavib.training.config import EXPERIMENTS
from metavib.training.stopping import FirstFailed, Interrupted

app = typer.Typer(
    name="metavib",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Few-shot learning with honest uncertainty: one variational information bottleneck, every encoder.",
    rich_markup_mode="markdown",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"metavib {version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself; typer shows the help of `app`, not this sentence."""


for command in (
    runs.demo,
    runs.train,
    runs.evaluate,
    runs.show,
    runs.plot,
    tasks.adapt,
    tasks.update,
    tasks.predict,
    serve.serve,
    about.config,
    about.data,
    about.models,
    tune.tune,
    pretrain.pretrain,
    pretrain.embed,
):
    app.command()(command)


def main() -> None:
    """Runs the program on the arguments of the command line.

    Example:
        >>> import sys
        >>> from unittest.mock import patch
        >>> from metavib.cli import main
        >>> with patch.object(sys, "argv", ["metavib", "--no-such-option"]):
        ...     main()
        Traceback (most recent call last):
        SystemExit: 2
    """
    warnings.showwarning = _warned
    arguments = sys.argv[1:]
    if arguments[:1] == ["evaluate"]:
        arguments = spread(arguments, {"--shots", "--inner-steps"}, str.isdigit)
    elif arguments[:1] == ["train"]:
        arguments = spread(arguments, {"--task", "--target", "--inputs", "--drop", "--categories"}, is_column)
    guarded(lambda: app(args=arguments, prog_name="metavib"))


def guarded(program: Callable[[], Any]) -> None:
    """Runs a program: bad input ends with a message and status 2, an interrupt with 130, never with a traceback.

    Example:
        >>> from metavib.cli import guarded
        >>> def program():
        ...     raise ValueError("--ways must be at least 2; got 1.")
        >>> guarded(program)  # the message goes to the standard error stream
        Traceback (most recent call last):
        SystemExit: 2
    """
    try:
        program()
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":  # of several processes the first one speaks
            _note(str(stop))
        raise SystemExit(130) from None
    except FirstFailed:  # the first process says what happened
        raise SystemExit(2) from None
    except (ValueError, TypeError, OSError, RuntimeError, FloatingPointError, ImportError) as error:
        _note(str(error), before="[bold red]error:[/] ")
        raise SystemExit(2) from None


def version() -> str:
    """The version that is installed; a bare checkout has none.

    Example:
        >>> from metavib.cli import version
        >>> isinstance(version(), str)
        True
    """
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("metavib")
    except PackageNotFoundError:
        return "(not installed: run from a checkout)"


def is_column(argument: str) -> bool:
    """Whether a word after the name of a column may be that of another: it is no experiment, and no file.

    Example:
        >>> from metavib.cli import is_column
        >>> is_column("visits"), is_column("sales.csv"), is_column("table")
        (True, False, False)
    """
    path = Path(argument)
    return argument not in EXPERIMENTS and path.suffix.lower() not in (".csv", ".parquet", ".pq") and not path.is_file()


def spread(arguments: list[str], options: set[str], is_value: Callable[[str], bool]) -> list[str]:
    """Lets an option take several values: `--shots 5 10` becomes `--shots 5 --shots 10`, which is what click reads.

    Args:
        arguments: of the command line.
        options: those that take several.
        is_value: whether a word that is no option may be one of their values.

    Example:
        >>> from metavib.cli import spread
        >>> spread(["evaluate", "RUN", "--shots", "5", "10"], {"--shots"}, str.isdigit)
        ['evaluate', 'RUN', '--shots', '5', '--shots', '10']
    """
    result: list[str] = []
    current, taken = "", 0
    for argument in arguments:
        if argument.startswith("-") and not argument.lstrip("-").isdigit():
            current, taken = (argument, 0) if argument in options else ("", 0)
        elif current and is_value(argument):
            if taken:
                result.append(current)
            taken += 1
        else:
            current = ""
        result.append(argument)
    return result


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Shows a warning as a line for users; those of other kinds are for programmers, with their place."""
    if issubclass(category, UserWarning):
        _note(str(message), before="[bold yellow]warning:[/] ")
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def _note(text: str, *, before: str = "") -> None:
    from rich.markup import escape

    from metavib.show.console import note

    note(before + escape(text))
