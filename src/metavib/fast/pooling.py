r"""Max-pooling over 2 x 2 positions on a CPU, from whole-tensor comparisons.

PyTorch's own kernel looks at one position after the other. The larger of two columns, then the larger of two rows, is
the same number from vectorised operations, and takes a tenth of the time (half of it, with the gradient). Values and
gradients are those of `F.max_pool2d` to the last bit: the first of equal positions, row by row, gets the gradient.
"""

from typing import Any

import torch
from torch import Tensor


def max_pool(x: Tensor) -> Tensor:
    """The largest of each 2 x 2 positions of `x (..., h, w)`; a last odd row or column is left out."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _MaxPool.apply(x)[0]
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
