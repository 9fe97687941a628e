"""Why a training ends before its time, and how it is asked to."""

import signal
from typing import Any, final


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
