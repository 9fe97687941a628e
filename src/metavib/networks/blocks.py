"""Pieces of convolutional networks: convolution then batch-norm, and pooling, over `(..., p, channels, h, w)`."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavib.fast import pooling as pool
from metavib.fast import windows
from metavib.networks.layers import Conv2d
from metavib.networks.norm import ENCODINGS, Moments, TaskNorm
from metavib.tasks.inputs import Inputs

NORMS = ("none", *ENCODINGS)
"""What may follow a convolution: nothing, or batch-norm in one of its encodings."""


class ConvNorm(nn.Module):
    """A convolution that keeps the size of the image (but for its stride), then batch-norm.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        kernel_size: side of the kernel, odd.
        stride: step between positions; 2 halves the image, rounding up.
        norm: one of `NORMS`.
        bias: give the convolution a bias, where no batch-norm follows that would take it away again.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel_size: int = 3, *, stride: int = 1, norm: str, bias: bool = True
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}; got {norm!r}.")
        self.conv = Conv2d(
            inputs, outputs, kernel_size, stride=stride, padding=kernel_size // 2, bias=bias and norm == "none"
        )
        self.norm = None if norm == "none" else TaskNorm(outputs, encoding=norm)

    @property
    def pointwise(self) -> bool:
        """Whether points are treated one by one."""
        return self.norm is None or self.norm.pointwise

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        """`(..., p, outputs, h, w)` from `(..., p, inputs, h, w)`, the activations at `inputs`."""
        if self.norm is None:
            return self.conv(x)
        if self.norm.pointwise:
            return self.conv.convolve(x, *self._folded(self.norm))
        return self.norm(self.conv(x), inputs)

    def pooled(self, x: Tensor, inputs: Inputs) -> Tensor:
        """The same, then `max_pool`; what of batch-norm can comes after it, where it has less to do."""
        norm = self.norm
        if norm is not None and norm.pointwise:
            weight, shift = self._folded(norm)
            y = self._peaks(x, weight)
            return y + shift[..., None, :, None, None].to(y.dtype)
        if norm is None or self.conv.stride != 1 or not windows.suit(x, self.conv.weight):
            return max_pool(self(x, inputs))
        a, w = windows.windows(x), windows.placed(self.conv.weight)
        scale, shift = norm.affine(Moments(*windows.moments(a, w)), inputs, 4 * prod(a.shape[-2:]))
        if norm.weight is not None:  # the sign of the scale
            w = w * torch.where(norm.weight < 0, -1.0, 1.0)[..., None, :, None]
        y = windows.largest(a, w)
        return torch.addcmul(shift[..., None, None], y, scale.abs()[..., None, None]).to(y.dtype)

    def _folded(self, norm: TaskNorm) -> tuple[Tensor, Tensor]:
        """Weights and shift of a convolution whose batch-norm is a fixed scale and shift: no pass of its own."""
        scale, shift = norm.running_affine()
        return self.conv.weight * scale[..., None, None, None], shift

    def _peaks(self, x: Tensor, weight: Tensor) -> Tensor:
        """`max_pool` of a convolution with these weights: in windows on a GPU, where few channels are slow."""
        if x.device.type == "cuda" and self.conv.stride == 1 and windows.suit(x, weight):
            return windows.largest(windows.windows(x), windows.placed(weight))
        return max_pool(self.conv.convolve(x, weight, None))


def max_pool(x: Tensor) -> Tensor:
    """The largest of each 2 x 2 positions; a last odd row or column is left out."""
    compiling, cpu = torch.compiler.is_compiling(), x.device.type == "cpu"
    if compiling and not cpu:  # so that it is fused with what is before and after it, forwards and backwards
        high, wide = (size // 2 * 2 for size in x.shape[-2:])
        return x[..., :high, :wide].unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).amax((-3, -1))
    if cpu and not compiling:
        return pool.max_pool(x)
    return F.max_pool2d(x.flatten(0, -4), 2).unflatten(0, x.shape[:-3])


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


def pointwise(network: nn.Module) -> bool:
    """Whether a network of these pieces treats points one by one."""
    return all(piece.pointwise for piece in network.modules() if isinstance(piece, ConvNorm))
