"""Layers and parameters that may carry leading dimensions: a set of weights for each task, or for each repeat.

Every parameter may carry leading batch dimensions, which broadcast against those of the tasks: weights of shape
`(out, in)` are shared by all tasks, `(tasks, out, in)` belong to one task each (what a gradient encoder makes of them),
`(repeats, 1, out, in)` to one repeat of an experiment each (what `metavib.networks.repeats` makes of them). Code that
uses a scalar parameter lines it up from the right with `lift`.

In a layer each set of weights meets the points of its own batch elements in one batched product or one grouped
convolution. Points whose batch elements share a set (the tasks of a repeat, say) are first merged into one longer list,
so that no set of weights is ever copied.
"""

from math import expm1, log, prod, sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def lift(parameter: Tensor, ranks: int) -> Tensor:
    """Appends trailing dimensions of size one, so that a scalar parameter's batch dimensions meet those of a tensor."""
    return parameter.reshape(*parameter.shape, *(1,) * ranks)


class Positive(nn.Module):
    r"""A positive scalar, $\mathrm{floor} + \mathrm{softplus}(a)$ with a learned a, at most `ceiling`.

    The floor is approached smoothly, so that a value that has come down to it can always rise again.

    Args:
        value: where it starts, above the floor.
        floor: lower bound.
        ceiling: upper bound.
        learn: whether a is learned.

    Example:
        >>> from metavib.networks.layers import Positive
        >>> noise = Positive(0.5, floor=0.1)
        >>> round(noise().item(), 4)
        0.5
    """

    def __init__(self, value: float, *, floor: float = 0.0, ceiling: float = float("inf"), learn: bool = True) -> None:
        super().__init__()
        if not floor < value <= ceiling:
            raise ValueError(f"the starting value must lie in ({floor}, {ceiling}]; got {value}.")
        self.floor, self.ceiling = floor, ceiling
        self.raw = nn.Parameter(torch.tensor(softplus_inverse(value - floor)), requires_grad=learn)

    def forward(self) -> Tensor:
        """The value, between floor and ceiling."""
        return (self.floor + F.softplus(self.raw)).clamp(max=self.ceiling)


def softplus_inverse(value: float) -> float:
    r"""The number a with $\log(1 + e^a) = v$ for a value v > 0."""
    return value + log(-expm1(-value))


class Linear(nn.Module):
    r"""$W x + b$ for `x (..., n, in)` and `W (..., out, in)`.

    Weights start as PyTorch's do, uniform in $\pm 1/\sqrt{in}$.

    Args:
        inputs: length of an input vector.
        outputs: length of an output vector.

    Example:
        >>> import torch
        >>> from metavib.networks.layers import Linear
        >>> layer = Linear(3, 2)
        >>> layer(torch.zeros(5, 4, 3)).shape  # five tasks of four points share the weights
        torch.Size([5, 4, 2])
        >>> layer.weight = torch.nn.Parameter(torch.randn(5, 2, 3))  # now each has its own
        >>> layer(torch.zeros(5, 4, 3)).shape
        torch.Size([5, 4, 2])
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        template = nn.Linear(inputs, outputs)
        self.weight, self.bias = template.weight, template.bias

    def forward(self, x: Tensor) -> Tensor:
        """Applies the weights, each set to the points of its own batch element."""
        if self.weight.ndim == 2 and self.bias.ndim == 1:
            return F.linear(x, self.weight, self.bias)
        sets = _Sets.of(x.shape[:-2], self.weight.shape[:-2], self.bias.shape[:-1])
        weight, bias = sets.parameter(self.weight, own=2), sets.parameter(self.bias, own=1)
        y = torch.baddbmm(bias.unsqueeze(-2), sets.gather(x, own=2), weight.mT)
        return sets.scatter(y, x.shape[-2])


class Conv2d(nn.Module):
    r"""Two-dimensional convolution of `x (..., p, in, h, w)` with `W (..., out, in, k, k)`.

    Weights start as $N(0, 2 / (k^2\, \mathrm{out}))$ (the variance), the bias as zero.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        kernel_size: k.
        stride: step between positions.
        padding: zeros added on each side.
        bias: add a learned number to each channel.

    Example:
        >>> import torch
        >>> from metavib.networks.layers import Conv2d
        >>> Conv2d(3, 8, padding=1)(torch.zeros(2, 5, 3, 10, 10)).shape  # two tasks of five images
        torch.Size([2, 5, 8, 10, 10])
    """

    def __init__(
        self, inputs: int, outputs: int, kernel_size: int = 3, *, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        shape = (outputs, inputs, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.randn(shape) * sqrt(2 / (kernel_size**2 * outputs)))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Applies the weights, each set to the points of its own batch element."""
        return self.convolve(x, self.weight, self.bias)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The same convolution with other weights than its own."""
        biases = torch.Size() if bias is None else bias.shape[:-1]
        sets = _Sets.of(x.shape[:-4], weight.shape[:-4], biases)
        weight = sets.parameter(weight, own=4).flatten(0, 1)
        bias = None if bias is None else sets.parameter(bias, own=1).flatten()
        # (sets, points, in, h, w) -> (points, sets * in, h, w): what a grouped convolution takes
        flat = sets.gather(x, own=4).transpose(0, 1).flatten(1, 2)
        # The layout that tensor cores take, since each layer would copy otherwise; of single pixels it says nothing.
        if sets.size == 1 and x.device.type == "cuda" and min(x.shape[-2:]) > 1:
            flat, weight = (t.contiguous(memory_format=torch.channels_last) for t in (flat, weight))
        y = F.conv2d(flat, weight, bias, stride=self.stride, padding=self.padding, groups=sets.size)
        return sets.scatter(y.unflatten(1, (sets.size, -1)).transpose(0, 1), x.shape[-4])


class _Sets(NamedTuple):
    """How sets of weights meet batches of points.

    `lead` is the batch shape, `differ` the first part of it, along which weights differ; the points of the rest of it
    are one list to each set.
    """

    lead: torch.Size
    differ: torch.Size

    @classmethod
    def of(cls, points: torch.Size, *parameters: torch.Size) -> "_Sets":
        """From the leading dimensions of the points and of each parameter."""
        own = torch.broadcast_shapes(*parameters)
        lead = torch.broadcast_shapes(points, own)
        shared = next((i for i, size in enumerate(reversed(own)) if size != 1), len(lead))
        return cls(lead, lead[: len(lead) - shared])

    @property
    def size(self) -> int:
        """Number of sets."""
        return prod(self.differ)

    def parameter(self, parameter: Tensor, *, own: int) -> Tensor:
        """A parameter of `own` dimensions besides its leading ones, as `(size, *own)`."""
        lead, shape = parameter.shape[: parameter.ndim - own], parameter.shape[parameter.ndim - own :]
        lead = lead[: max(0, len(lead) - (len(self.lead) - len(self.differ)))]
        return parameter.reshape(*lead, *shape).expand(*self.differ, *shape).reshape(self.size, *shape)

    def gather(self, x: Tensor, *, own: int) -> Tensor:
        """Points of `own` dimensions besides their leading ones, `(..., p, *event)`, as `(size, points, *event)`."""
        p, *event = x.shape[x.ndim - own :]
        points = prod(self.lead[len(self.differ) :]) * p
        return x.expand(*self.lead, p, *event).reshape(self.size, points, *event)

    def scatter(self, y: Tensor, p: int) -> Tensor:
        """`(size, points, *event)` as `(..., p, *event)`."""
        return y.reshape(*self.lead, p, *y.shape[2:])
