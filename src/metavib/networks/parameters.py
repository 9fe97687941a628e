r"""Parameters under constraints, and parameters with leading dimensions.

Every parameter may carry leading batch dimensions, which broadcast against those of the tasks: weights of shape
`(out, in)` are shared by all tasks, `(tasks, out, in)` belong to one task each (what a gradient encoder makes of them),
`(repeats, 1, out, in)` to one repeat of an experiment each (what `metavib.networks.repeats` makes of them). Code
that uses a parameter lines it up from the right with `lift` and asks no further.
"""

from math import expm1, log

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def lift(parameter: Tensor, ranks: int) -> Tensor:
    """Appends trailing dimensions of size one, so that a scalar parameter's batch dimensions meet those of a tensor."""
    return parameter.reshape(*parameter.shape, *(1,) * ranks)


class Positive(nn.Module):
    r"""A positive scalar $\mathrm{floor} + \mathrm{softplus}(a)$, at most `ceiling`.

    The floor is approached smoothly, so a value that has come down to it can always rise again.
    """

    def __init__(self, value: float, *, floor: float = 0.0, ceiling: float = float("inf"), learn: bool = True) -> None:
        super().__init__()
        if not floor < value <= ceiling:
            raise ValueError(f"the starting value must lie in ({floor}, {ceiling}]; got {value}.")
        self.floor, self.ceiling = floor, ceiling
        self.raw = nn.Parameter(torch.tensor(softplus_inverse(value - floor)), requires_grad=learn)

    def forward(self) -> Tensor:
        """The value."""
        return (self.floor + F.softplus(self.raw)).clamp(max=self.ceiling)


def softplus_inverse(value: float) -> float:
    r"""a with $\log(1 + e^a) = $ value."""
    return value + log(-expm1(-value))
