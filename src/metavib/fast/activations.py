"""What follows a convolution, in few passes over the activations: moments, ReLU and max-pooling.

Activations are the largest thing in a convolutional network, and reading and writing them is what takes time. Each
function here gives the numbers of the obvious PyTorch expression in fewer or faster passes, forwards and backwards, and
chooses by itself between a CPU, a GPU and a compiler, which are fast at different things.
"""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Mean and variance


def moments(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and variance (divided by the count) of x over the given axes, its last ones, counted from the end."""
    if torch.compiler.is_compiling():  # which makes one pass of it, and one of its derivative
        var, mean = torch.var_mean(x, axes, correction=0)
        return mean, var
    return _Moments.apply(x, axes)


class _Moments(torch.autograd.Function):
    r"""Mean and variance, with a derivative that makes one pass over x and keeps no copy of it.

    $\partial m / \partial x = 1/P$ and $\partial v / \partial x = 2 (x - m) / P$ over P positions. The derivative is
    itself made of differentiable operations, as second-order gradients need.
    """

    @staticmethod
    def forward(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        # Two passes: the mean first, so that nothing cancels.
        mean = x.mean(axes, keepdim=True)
        var = (x - mean).square_().mean(axes)
        return mean.reshape(var.shape), var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, tuple[int, ...]], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.axes = inputs
        ctx.save_for_backward(x, output[0])

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_var: Tensor) -> tuple[Tensor, None]:
        x, mean = ctx.saved_tensors
        shape = (*mean.shape, *(1,) * len(ctx.axes))
        count = prod(x.shape[axis] for axis in ctx.axes)
        slope = grad_var * (2 / count)
        return torch.addcmul((grad_mean / count - slope * mean).reshape(shape), x, slope.reshape(shape)), None


# ReLU


def rectify(x: Tensor) -> Tensor:
    """The larger of x and zero."""
    transformed = torch._C._are_functorch_transforms_active()  # a derivative within, for which the compiler knows ReLU
    compiled_for_cpu = torch.compiler.is_compiling() and x.device.type == "cpu"
    return _Rectify.apply(x) if compiled_for_cpu and not transformed else x.relu()


class _Rectify(torch.autograd.Function):
    """ReLU, whose derivative is the sign of its output: compiled for a CPU, masks of one byte are slow to read."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.relu()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * y.sign()


# Max-pooling


def max_pool(x: Tensor) -> Tensor:
    """The largest of each 2 x 2 positions; a last odd row or column is left out."""
    compiling, cpu = torch.compiler.is_compiling(), x.device.type == "cpu"
    if compiling and not cpu:
        # Fused with what is before and after it, forwards and backwards. Positions are compared with each other: the
        # derivative of `amax` looks for its result among its arguments, and where a compiler has rounded one of the two
        # to bfloat16 and not the other, it finds none and divides by zero.
        return _largest(x)
    if cpu and not compiling:
        return max_pool_by_comparison(x)
    return F.max_pool2d(x.flatten(0, -4), 2).unflatten(0, x.shape[:-3])


def max_pool_by_comparison(x: Tensor) -> Tensor:
    """`max_pool` on a CPU, from whole-tensor comparisons.

    PyTorch's own kernel looks at one position after the other. The larger of two columns, then the larger of two rows,
    is the same number from vectorised operations, and takes a tenth of the time (half of it, with the gradient). Values
    and gradients are those of `F.max_pool2d` to the last bit: the first of equal positions, row by row, gets the
    gradient.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return _MaxPool.apply(x)[0]
    return _largest(x)


def _largest(x: Tensor) -> Tensor:
    """The larger of two columns, then the larger of two rows."""
    return torch.maximum(*_rows(torch.maximum(*_columns(x))))


class _MaxPool(torch.autograd.Function):
    """The largest, and where it is: whether in the right column (of each row), and whether in the lower row."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = _columns(x)
        upper, lower = _rows(torch.maximum(left, right))
        return torch.maximum(upper, lower), right > left, lower > upper

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], outputs: tuple[Tensor, Tensor, Tensor]) -> None:
        _, right, lower = outputs
        ctx.mark_non_differentiable(right, lower)
        ctx.save_for_backward(right, lower)
        ctx.size = inputs[0].shape[-2:]

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> Tensor:
        return _Scatter.apply(g, *ctx.saved_tensors, ctx.size)


class _Scatter(torch.autograd.Function):
    """A number a window to the position that was largest, zeros elsewhere; the transpose of `_gather`."""

    @staticmethod
    def forward(g: Tensor, right: Tensor, lower: Tensor, size: torch.Size) -> Tensor:
        h, w = size
        x = (g.new_zeros if h % 2 or w % 2 else g.new_empty)((*g.shape[:-2], h, w))
        below = g * lower
        for row, share, is_right in zip(_rows(x), (g - below, below), _rows(right), strict=True):
            left_column, right_column = _columns(row)
            on_the_right = share * is_right
            right_column.copy_(on_the_right)
            left_column.copy_(share - on_the_right)
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, torch.Size], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:3])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None, None]:
        return _gather(v, *ctx.saved_tensors), None, None, None


def _gather(v: Tensor, right: Tensor, lower: Tensor) -> Tensor:
    """Of each window the number at the position that was largest."""
    left_column, right_column = _columns(v)
    upper_row, lower_row = _rows(torch.where(right, right_column, left_column))
    return torch.where(lower, lower_row, upper_row)


def _columns(x: Tensor) -> tuple[Tensor, Tensor]:
    end = x.shape[-1] // 2 * 2
    return x[..., 0:end:2], x[..., 1:end:2]


def _rows(x: Tensor) -> tuple[Tensor, Tensor]:
    end = x.shape[-2] // 2 * 2
    return x[..., 0:end:2, :], x[..., 1:end:2, :]
