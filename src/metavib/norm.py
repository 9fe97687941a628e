r"""Batch-norm is part of the encoding: three named choices, the same in meta-training and meta-testing.

* `running`: statistics of the task's own points (support and query) while training, running averages at test.
* `transductive`: statistics over support and query together, at test too.
* `support+point`: the support is normalised by its own statistics, each query point by the statistics of the support and
  itself alone, at every layer. No query point ever sees another.

Statistics are per task and per channel, over points and positions, and leave masked points out.
"""

import torch
from torch import Tensor, nn

from metavib.inputs import Inputs

ENCODINGS = ("running", "transductive", "support+point")


class TaskNorm(nn.Module):
    r"""$\hat x = (x - \mu) / \sqrt{v + \epsilon}$, then scale and shift; $\mu, v$ as the encoding says.

    Args:
        channels: size of the channel dimension, which follows the dimension of points: `(..., p, channels, *positions)`.
        encoding: one of `ENCODINGS`.
        affine: learn a scale and a shift a channel.
        momentum: weight of a new batch in the running averages.
        eps: added to the variance.
    """

    def __init__(
        self, channels: int, *, encoding: str, affine: bool = True, momentum: float = 0.1, eps: float = 1e-5
    ) -> None:
        super().__init__()
        if encoding not in ENCODINGS:
            raise ValueError(f"batch-norm encoding must be one of {', '.join(ENCODINGS)}; got {encoding!r}.")
        self.encoding, self.momentum, self.eps = encoding, momentum, eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Normalises `x (..., p, channels, *positions)`, the activations at `inputs`."""
        raise NotImplementedError
