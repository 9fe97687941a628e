"""Progress bars with a rate and the time left, on standard error, in 80 columns; lines now and then in a file."""

import time
from math import inf
from types import TracebackType
from typing import Any, Protocol, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.progress import Task as Drawn
from rich.progress_bar import ProgressBar
from rich.text import Text

PAUSE = 0.2  # seconds between two drawings of a bar
LINES = 30.0  # seconds between two lines, where standard error is no terminal and a bar cannot be drawn again


def say(text: str) -> None:
    """A line about what is going on, on standard error.

    Example:
        >>> from metavib.progress import say
        >>> say("reading 3 tables")
    """
    Console(stderr=True, soft_wrap=True).print(text, style="dim", highlight=False)


class Advance(Protocol):
    """Moves a progress bar to a count, with a note beside it; a note stands until the next one.

    Example:
        >>> from metavib.progress import Advance, Bar
        >>> def work(advance: Advance) -> None:
        ...     advance(10, "a tenth")
        >>> with Bar("working", 100, show=False) as advance:
        ...     work(advance)
    """

    def __call__(self, completed: int, note: str | None = None) -> None: ...  # noqa: D102


@final
class Bar:
    """A bar for a number of steps, as a context that gives an `Advance`.

    Calling it costs next to nothing, so that a loop can call it after every step: it is drawn a few times a second.
    Where standard error is no terminal (a file, a log) it is a plain line every half minute.

    Args:
        what: is going on.
        total: how many steps there are.
        start: how many of them are done already.
        limit: seconds after which it ends before the last step, if there is such a limit: the bar is then full when
            either is reached.
        spent: seconds of the limit that were used before.
        show: false draws nothing.

    Example:
        >>> from metavib.progress import Bar
        >>> with Bar("counting", 3, show=False) as advance:
        ...     for i in range(3):
        ...         advance(i + 1, "nearly there")
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        start: int = 0,
        limit: float | None = None,
        spent: float = 0.0,
        show: bool = True,
    ) -> None:
        done = MofNCompleteColumn() if limit is None else _Steps()
        columns = (TextColumn("{task.description}"), _Filled(None), done, _Rate(), _Left())
        note = TextColumn("[dim]{task.fields[note]}")
        console = Console(stderr=True)
        self._progress = Progress(*columns, note, console=console, disable=not show, expand=True)
        end = None if limit is None else time.monotonic() + limit - spent
        fields: Any = {"note": "", "expected": None, "limit": limit, "end": end}
        self._task = self._progress.add_task(what, total=total, completed=start, **fields)
        self._show, self._total, self._drawn = show, total, 0.0
        self._plain, self._told = show and not console.is_terminal, time.monotonic()

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._progress.stop()

    def __call__(self, completed: int, note: str | None = None) -> None:
        """Moves the bar; a note stands until the next one."""
        if not self._show:
            return
        now = time.monotonic()
        if note is None and completed < self._total and now - self._drawn < PAUSE:
            return
        self._drawn = now
        if note is None:
            self._progress.update(self._task, completed=completed)
        else:
            self._progress.update(self._task, completed=completed, note=note)
        if self._plain and now - self._told >= LINES and completed < self._total:
            self._told = now
            say(self._line())

    def _line(self) -> str:
        """Where it stands: the count, the rate, the time left and the note."""
        task = next(task for task in self._progress.tasks if task.id == self._task)
        done = f"{int(task.completed):,}" + (f" of {self._total:,}" if task.fields["limit"] is None else " steps")
        parts = (done, _Rate().render(task).plain, _Left().render(task).plain, task.fields["note"])
        return f"{task.description}: " + ", ".join(part for part in parts if part)

    def expect(self, seconds: float) -> None:
        """Says how long a step will take at most, so that the time left can be shown before the first one is done."""
        self._progress.update(self._task, expected=seconds)


class _Filled(BarColumn):
    """A bar whose share is that of the steps, or of the time where that is larger."""

    def render(self, task: Drawn) -> ProgressBar:
        bar = super().render(task)
        if task.fields["limit"] is not None and not task.finished:
            share = 1 - max(0.0, task.fields["end"] - time.monotonic()) / task.fields["limit"]
            bar.update(max(bar.completed, share * (bar.total or 0)), bar.total)
        return bar


class _Steps(ProgressColumn):
    """The number of steps alone, where nobody knows how many there will be."""

    def render(self, task: Drawn) -> Text:
        return Text(f"{int(task.completed):,} steps")


class _Rate(ProgressColumn):
    def render(self, task: Drawn) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s")


class _Left(ProgressColumn):
    """The time left from the rate so far; from what was expected, before there is one."""

    def render(self, task: Drawn) -> Text:
        expected, remaining, end = task.fields["expected"], task.remaining or 0, task.fields["end"]
        if task.finished:
            return Text(f"in {_clock(task.finished_time or 0)}")
        most = inf if end is None else max(0.0, end - time.monotonic())
        if task.time_remaining is not None:
            return Text(f"{_clock(min(most, task.time_remaining))} left")
        if expected is None and most == inf:
            return Text("")
        return Text(f"< {_clock(min(most, inf if expected is None else expected * remaining))} left")


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds, as short as can be."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
