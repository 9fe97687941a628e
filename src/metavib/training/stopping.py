"""Why a training ends before its last step: it is asked to, its time is over, or validation improves no more."""

import signal
import time
from collections.abc import Callable
from typing import Any, final

VALIDATIONS = 30  # at least, of a training with a limit on its time
FIRST = 5.0  # seconds after which the first of them is due


class Interrupted(Exception):
    """Training was asked to stop and has saved its state.

    Example:
        >>> from metavib.training.stopping import Interrupted
        >>> str(Interrupted("stopped after 10 of 100 steps"))
        'stopped after 10 of 100 steps'
    """


class RankLost(RuntimeError):
    """Another process of the run ended, so that this one cannot go on.

    Example:
        >>> from metavib.training.stopping import RankLost
        >>> isinstance(RankLost("another process of this run ended"), RuntimeError)
        True
    """


class FirstFailed(RankLost):
    """The first process of the run met an error, which it reports itself.

    Example:
        >>> from metavib.training.stopping import FirstFailed, RankLost
        >>> issubclass(FirstFailed, RankLost)
        True
    """


@final
class Stop:
    """Ctrl-C and SIGTERM as a question that a loop asks between steps; a second one stops at once.

    Attributes:
        asked: whether one came.
        at_once: where it is not empty, already the first one stops at once: the block ends with `Interrupted`, which
            says this. For what takes long and loses nothing.

    Example:
        >>> from metavib.training.stopping import Stop
        >>> with Stop() as stop:
        ...     print(stop.asked)
        False
    """

    def __init__(self) -> None:
        self.asked, self.at_once = False, ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        try:
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signals are somebody else's business
            pass
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt and self.at_once:
            raise Interrupted(self.at_once) from None

    def _ask(self, number: int, frame: object) -> None:
        if self.asked or self.at_once:
            raise KeyboardInterrupt
        self.asked = True


@final
class Clock:
    """The time a training has taken, and how much of it is left, where there is a limit.

    With a limit a validation is due after every thirtieth of it, the first much sooner; but validations take a tenth of
    the time at most.

    Args:
        minutes: the limit; None for none.
        spent: seconds of it that were used before.
    """

    def __init__(self, minutes: float | None, spent: float = 0.0) -> None:
        self.limit = None if minutes is None else 60 * minutes
        self._begin = time.monotonic() - spent
        self._validated, self._cost = self.seconds, 0.0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begin

    @property
    def share(self) -> float:
        """The share of the limit that is used; 0 without one."""
        return 0.0 if self.limit is None else min(1.0, self.seconds / self.limit)

    @property
    def over(self) -> bool:
        """Whether all time is used."""
        return self.limit is not None and self.seconds >= self.limit

    @property
    def due(self) -> bool:
        """Whether it is time for a validation."""
        if self.limit is None:
            return False
        pause = self.limit / VALIDATIONS if self._cost else min(FIRST, self.limit / VALIDATIONS)
        return self.seconds - self._validated >= max(pause, 10 * self._cost)

    def timed(self, validate: Callable[[Any], dict[str, float]], model: Any) -> dict[str, float]:
        """A validation, whose time is noted."""
        begin = self.seconds
        found = validate(model)
        self._validated = self.seconds
        self._cost = self._validated - begin
        return found


def exhausted(scores: list[float], patience: int) -> bool:
    """Whether as many validations as patience allows have passed since the best."""
    return bool(patience and scores) and len(scores) - 1 - scores.index(max(scores)) >= patience
