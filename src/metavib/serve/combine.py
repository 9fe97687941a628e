"""Requests that arrive together are answered together.

A pass of the network over fifty pictures takes little longer than over one, and so does a transaction that writes fifty
tasks. So threads that want such a thing at the same moment combine: the first one works for all who have come by then,
and when it is done the next one in the row works for those who have come meanwhile. An idle server answers at once.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar, final

Item = TypeVar("Item")
Result = TypeVar("Result")


class Busy(Exception):
    """An answer did not come in time."""


@final
class Combiner(Generic[Item, Result]):
    """Works for many threads at once.

    Args:
        work: answers several items; a result for each in their order, or the exception it ends with.
        most: items at a time.
        wait: seconds to wait at most for those who are on their way (`coming`) before work begins.
        patience: seconds after which an item is given up.

    Example:
        >>> double = Combiner(lambda items: [2 * i for i in items])
        >>> double(21)
        42
    """

    def __init__(
        self,
        work: Callable[[list[Item]], list[Result | Exception]],
        *,
        most: int = 64,
        wait: float = 0.002,
        patience: float = 30.0,
    ) -> None:
        self._work, self._most, self._wait, self._patience = work, most, wait, patience
        self._changed = threading.Condition()
        self._row: deque[_Place[Item, Result]] = deque()
        self._coming = 0
        self._gate = threading.Semaphore(max(1, (os.cpu_count() or 1) // 2))
        self._working = False

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While this is open, an item of the calling thread is on its way.

        Half as many threads as there are cores prepare at a time: more of them only take Python's lock from each other
        at every operation of PyTorch, which lets go of it.
        """
        with self._changed:
            self._coming += 1
        try:
            with self._gate:
                yield
        finally:
            with self._changed:
                self._coming -= 1
                if not self._coming:  # who waits for them is woken once, by the last
                    self._changed.notify_all()

    def __call__(self, item: Item) -> Result:
        """What `work` makes of the item; its exception is raised here."""
        place: _Place[Item, Result] = _Place(item)
        with self._changed:
            self._row.append(place)
            if len(self._row) >= self._most:
                self._changed.notify_all()
            if not self._working:
                self._working = place.leads = True
                place.called.set()
        if not place.called.wait(self._patience):
            with self._changed:
                if not place.called.is_set():
                    if place in self._row:
                        self._row.remove(place)
                    raise Busy("the server is too busy to answer in time; ask again in a moment.")
        if place.leads:
            self._lead()
        if isinstance(place.outcome, Exception):
            raise place.outcome
        return place.outcome

    def _lead(self) -> None:
        """Works for the first of the row, the calling thread's own item among them, and calls the next leader."""
        until = time.monotonic() + self._wait
        with self._changed:
            while self._coming and len(self._row) < self._most and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            places = [self._row.popleft() for _ in range(min(self._most, len(self._row)))]
        try:
            outcomes: list[Result | Exception] = self._work([p.item for p in places])
            for place, outcome in zip(places, outcomes, strict=True):
                place.outcome = outcome
        except Exception as error:
            for place in places:
                place.outcome = error
        finally:
            with self._changed:
                self._working = bool(self._row)
                if self._row:
                    self._row[0].leads = True
                    self._row[0].called.set()
        for place in places:
            place.called.set()


@final
class _Place(Generic[Item, Result]):
    """A thread's place in the row: called when its answer is there, or when it is its turn to work."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.called = threading.Event()
        self.leads = False
        self.outcome: Result | Exception = Busy("nobody worked for this item.")
