"""Progress bars with a rate and the time left, on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Bar
from rich.text import Text


class Advance(Protocol):
    """Moves a bar to a count, with a note beside it."""

    def __call__(self, completed: int, note: str = "") -> None: ...  # noqa: D102


class _Rate(ProgressColumn):
    def render(self, task: Bar) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2f}/s")


@contextmanager
def bar(what: str, total: int, *, start: int = 0, show: bool = True) -> Iterator[Advance]:
    """A bar for `total` steps; nothing is drawn where `show` is false."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        handle = progress.add_task(what, total=total, completed=start, note="")

        def advance(completed: int, note: str = "") -> None:
            progress.update(handle, completed=completed, note=note)

        yield advance
