"""Layers whose weights may carry leading dimensions (`metavib.parameters`): a set of weights a task, or a repeat."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    r"""$W x + b$ for `x (..., n, in)` and `W (..., out, in)`.

    Initialised as PyTorch does, uniform in $\pm 1/\sqrt{in}$.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        template = nn.Linear(inputs, outputs)
        self.weight, self.bias = template.weight, template.bias

    def forward(self, x: Tensor) -> Tensor:
        """Applies the weights, each set to the points of its own batch element."""
        if self.weight.ndim == 2:
            return F.linear(x, self.weight, self.bias)
        if x.ndim == self.weight.ndim == 3:
            return torch.baddbmm(self.bias.unsqueeze(-2), x, self.weight.mT)
        return x @ self.weight.mT + self.bias.unsqueeze(-2)
