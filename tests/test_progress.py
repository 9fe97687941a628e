"""Progress bars: in 80 columns, with a rate and the time left, and next to nothing while nobody looks."""

import io

import pytest
from rich.console import Console

from metavib import progress
from metavib.progress import Bar


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def drawn(bar: Bar) -> str:
    """What stands on a terminal of 80 columns."""
    screen = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    screen.print(bar._progress.get_renderable())
    return screen.file.getvalue().rstrip("\n")


def test_a_bar_fits_80_columns_with_everything_on_it(clock) -> None:
    """Count, rate, time left and validation, in one line: none of them is cut."""
    bar = Bar("training", 60_000, start=20_000)
    bar._progress.get_time = clock
    for n in range(20_000, 40_000, 250):
        clock.now += 1.0
        bar(n, "accuracy 0.823, best 0.841")
    (line,) = drawn(bar).splitlines()
    assert len(line) <= 80
    assert line.startswith("training ") and "━" in line
    for part in ("39750/60000", "250/s", "1:21 left", "accuracy 0.823, best 0.841"):
        assert part in line, line


def test_the_time_left_is_known_before_the_first_step(clock) -> None:
    """While a step is compiled, from what it takes as written."""
    bar = Bar("training", 60_000)
    bar._progress.get_time = clock
    assert "left" not in drawn(bar)
    bar.expect(0.01)
    bar(0, "compiling, half a minute")
    assert "< 10:00 left compiling, half a minute" in drawn(bar)


def test_a_bar_moves_every_second_and_is_drawn_a_few_times_in_one(clock) -> None:
    bar = Bar("training", 10_000)
    bar._progress.get_time = clock
    moved = []
    bar._progress.update = lambda task, **fields: moved.append((clock.now, fields["completed"]))
    for n in range(1, 5_001):
        clock.now += 0.001
        bar(n)
    times = [t for t, _ in moved]
    assert 20 <= len(moved) <= 26 and max(b - a for a, b in zip(times, times[1:], strict=False)) < 1
    clock.now += 0.001
    bar(10_000)
    assert moved[-1][1] == 10_000  # the last step is always drawn


def test_in_a_file_a_line_comes_every_half_minute(clock, capsys) -> None:
    """With the count, the rate, the time left and the last note; nothing where it is not to be shown."""
    for show in (True, False):
        bar = Bar("training", 1_000, show=show)
        bar._progress.get_time = clock
        for n in range(1, 101):
            clock.now += 1.0
            bar(n, "accuracy 0.8" if n == 20 else None)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (3 if show else 0)
        if show:
            assert lines[0] == "training: 30 of 1,000, 1/s, 16:10 left, accuracy 0.8"


def test_a_bar_that_is_not_shown_says_nothing(capsys) -> None:
    with Bar("training", 3, show=False) as advance:
        for n in range(3):
            advance(n + 1, "note")
    found = capsys.readouterr()
    assert found.out == found.err == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7262, "2:01:02")])
def test_times_are_as_short_as_can_be(seconds: float, text: str) -> None:
    assert progress._clock(seconds) == text
