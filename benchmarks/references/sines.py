"""Sinusoids, drawn with NumPy as most code of the literature does."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Sines(NamedTuple):
    """Tasks of equal size: support `x_t, y_t (tasks, shots, 1)`, query `x_v, y_v (tasks, queries, 1)`."""

    x_t: Tensor
    y_t: Tensor
    x_v: Tensor
    y_v: Tensor


def sines(tasks: int, rng: np.random.Generator, *, shots: int = 10, queries: int = 10) -> Sines:
    """Some tasks y = A sin(x - p)."""
    amplitude = rng.uniform(0.1, 5.0, (tasks, 1, 1))
    phase = rng.uniform(0.0, np.pi, (tasks, 1, 1))
    x = rng.uniform(-5.0, 5.0, (tasks, shots + queries, 1))
    y = amplitude * np.sin(x - phase)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    return Sines(x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:])
