"""Where tasks come from, and what all sources share."""

from typing import Protocol

import torch
from torch import Tensor

from metavib.random import Stream, draw
from metavib.tasks.task import Examples, Task


class TaskSource(Protocol):
    """A distribution over tasks."""

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Independent tasks in leading dimensions of the given shape, on the generator's device."""
        ...


def check_sizes(shots: int, queries: int, min_shots: int | None) -> None:
    """Refuses sizes no task can have."""
    if shots < 0 or queries < 1:
        raise ValueError(f"need shots >= 0 and queries >= 1; got {shots} and {queries}.")
    if min_shots is not None and not 0 <= min_shots <= shots:
        raise ValueError(f"min_shots must lie in 0..shots = {shots}; got {min_shots}.")


def divide(x: Tensor, y: Tensor, shots: int, min_shots: int | None, generator: Stream) -> Task:
    """The first `shots` points of `x (..., n, d)`, `y (..., n)` as support, the rest as query.

    Where `min_shots` is given, each task keeps a number of support points uniform in [min_shots, shots]; the rest are
    masked.
    """
    mask = torch.ones_like(y, dtype=torch.bool)
    if min_shots is not None:
        counts = draw(torch.randint, min_shots, shots + 1, (*y.shape[:-1], 1), stream=generator)
        mask[..., :shots] = torch.arange(shots, device=generator.device) < counts
    x, y = x * mask.unsqueeze(-1), y * mask
    return Task(
        Examples(x[..., :shots, :], y[..., :shots], mask[..., :shots]),
        Examples(x[..., shots:, :], y[..., shots:], mask[..., shots:]),
    )
