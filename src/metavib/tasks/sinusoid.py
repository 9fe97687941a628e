r"""Sinusoids (Finn et al. 2017): $y = A \sin(x - p)$, no noise."""

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor

from metavib.random import Stream, draw
from metavib.tasks.source import check_sizes, divide
from metavib.tasks.task import Task


@dataclass(frozen=True)
class Sinusoids:
    r"""$y = A \sin(x - p)$, $A \sim U[0.1, 5]$, $p \sim U[0, \pi]$, $x \sim U[-5, 5]$.

    Args:
        shots: K, support points of a task.
        queries: query points of a task.
        min_shots: where set, each task has a number of support points of its own, uniform in [min_shots, shots].
    """

    shots: int = 10
    queries: int = 10
    min_shots: int | None = None

    def __post_init__(self) -> None:
        check_sizes(self.shots, self.queries, self.min_shots)

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Independent sinusoids, support and query points drawn alike."""

        def uniform(low: float, high: float, *size: int) -> Tensor:
            return low + (high - low) * draw(torch.rand, *shape, *size, stream=generator)

        amplitude, phase = uniform(0.1, 5.0, 1), uniform(0.0, pi, 1)
        x = uniform(-5.0, 5.0, self.shots + self.queries)
        y = amplitude * torch.sin(x - phase)
        return divide(x.unsqueeze(-1), y, self.shots, self.min_shots, generator)
