r"""A 3 x 3 convolution of few channels, batch-norm and 2 x 2 max-pooling, in one product: the first layer of Conv4.

Its output, before pooling, is the largest thing in the network, and the usual way passes over it eight times: for the
convolution, the statistics, their use, and the derivatives of all three. Two facts spare most of that.

* The four positions of a pooling window see one window of 4 x 4 pixels. With these windows as columns of a matrix A
  and the filter, at each of its four places in the window, as rows of a matrix W, convolution is W A, and pooling is
  the largest of four rows.
* Statistics of a linear map's outputs follow from those of its inputs: with $\bar a$ the mean of a point's columns and
  C their covariance, an output has mean $\bar a^\top w$ and variance $w^\top C w$. For few channels C is small, and the
  outputs themselves are never looked at.

And the largest of the normalised is the largest, normalised: where batch-norm's scale is positive, that is, and
elsewhere after a change of the filter's sign.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE, CHANNELS = 3, 4
"""Of the filters, and the most channels for which the products are smaller than what they replace."""


def suit(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution of `x (..., h, w)` that is then pooled can be done in windows, and should."""
    few, even = x.shape[-3] <= CHANNELS, all(size % 2 == 0 for size in x.shape[-2:])
    return few and even and weight.shape[-1] == SIDE and not x.requires_grad


def windows(x: Tensor) -> Tensor:
    """`(..., 16 c, h/2, w/2)` from `x (..., c, h, w)`: what each pooling window sees, with a border of zeros."""
    around = F.pad(x, (1, 1, 1, 1)).unfold(-2, SIDE + 1, 2).unfold(-2, SIDE + 1, 2)  # (..., c, h/2, w/2, 4, 4)
    return around.movedim((-2, -1), (-4, -3)).flatten(-5, -3)


def placed(weight: Tensor) -> Tensor:
    """`(..., 4, out, 16 c)` from filters `(..., out, c, 3, 3)`: each at its four places in a window of 4 x 4."""
    places = [F.pad(weight, (right, 1 - right, down, 1 - down)) for down in (0, 1) for right in (0, 1)]
    return torch.stack(places, -5).flatten(-3)


def largest(a: Tensor, w: Tensor) -> Tensor:
    """`(..., p, out, h/2, w/2)`: of the four positions of each window the largest, from `windows` and `placed`."""
    places, filters, size = w.shape[-3:-1], w.flatten(-3, -2).unsqueeze(-3), a.shape[-2:]
    if a.device.type == "cpu" and not torch.compiler.is_compiling():
        return (filters @ a.flatten(-2)).unflatten(-2, places).max(-3).values.unflatten(-1, size)
    # Channels last, as convolutions on a GPU and compiled ones want it; the two ways to say it are fast on one each.
    y = (a.flatten(-2).mT @ filters.mT).unflatten(-1, places)
    return (y.amax(-2) if a.device.type == "cuda" else y.max(-2).values).mT.unflatten(-1, size)


def moments(a: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each point and channel over the positions of the convolution, `(..., p, out)`."""
    a, w = (t if t.dtype == torch.float64 else t.float() for t in (a.flatten(-2), w))
    with _in_full(a.device.type):
        mean = a.mean(-1, keepdim=True)
        away = a - mean
        C = away @ away.mT / a.shape[-1]
        means = (mean.squeeze(-1) @ w.flatten(-3, -2).mT).unflatten(-1, w.shape[-3:-1])  # at each of the four places
        squares = (w.unsqueeze(-1) * w.unsqueeze(-2)).mean(-4).flatten(-2)  # w_i w_j, over the places
        # The variance within places, and that between them: nothing cancels.
        return means.mean(-2), C.flatten(-2) @ squares.mT + means.var(-2, correction=0)


def _in_full(kind: str) -> AbstractContextManager[None]:
    """Products as precise as their factors; tensors that are shapes alone have no precision."""
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
