"""Where tasks come from."""

from typing import Protocol

from torch import Generator

from metavib.tasks.task import Task


class TaskSource(Protocol):
    """A distribution over tasks."""

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Task:
        """Independent tasks in leading dimensions of the given shape, on the generator's device."""
        ...
