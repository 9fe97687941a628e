r"""Sinusoids (Finn et al. 2017): $y = A \sin(x - p)$, no noise."""

from dataclasses import dataclass
from math import pi

import torch
from torch import Generator, Tensor

from metavib.tasks.task import Examples, Task


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
        if self.shots < 0 or self.queries < 1:
            raise ValueError(f"need shots >= 0 and queries >= 1; got {self.shots} and {self.queries}.")
        if self.min_shots is not None and not 0 <= self.min_shots <= self.shots:
            raise ValueError(f"min_shots must lie in 0..shots = {self.shots}; got {self.min_shots}.")

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Task:
        """Independent sinusoids, support and query points drawn alike."""

        def uniform(low: float, high: float, *size: int) -> Tensor:
            return low + (high - low) * torch.rand(*shape, *size, generator=generator, device=generator.device)

        amplitude, phase = uniform(0.1, 5.0, 1), uniform(0.0, pi, 1)
        x = uniform(-5.0, 5.0, self.shots + self.queries)
        y = amplitude * torch.sin(x - phase)
        mask = torch.ones_like(y, dtype=torch.bool)
        if self.min_shots is not None:
            choices = (self.min_shots, self.shots + 1)
            counts = torch.randint(*choices, (*shape, 1), generator=generator, device=generator.device)
            mask[..., : self.shots] = torch.arange(self.shots, device=generator.device) < counts
        x, y = (x * mask).unsqueeze(-1), y * mask
        k = self.shots
        return Task(
            Examples(x[..., :k, :], y[..., :k], mask[..., :k]),
            Examples(x[..., k:, :], y[..., k:], mask[..., k:]),
        )
