"""ResNet-12, the residual network of the few-shot literature."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from metavib.fast.activations import max_pool
from metavib.networks.backbone import Backbone
from metavib.networks.conv import ConvNorm, pointwise
from metavib.tasks.inputs import Inputs

SLOPE = 0.1
"""Of LeakyReLU below zero."""


class ResNet12(Backbone):
    """ResNet-12: four residual blocks of three convolutions, each halving the image; then the mean over positions.

    A block is conv, norm, LeakyReLU, conv, norm, LeakyReLU, conv, norm, plus a shortcut (1 x 1 conv, norm), LeakyReLU,
    2 x 2 max-pool. The convolutions have no bias where batch-norm follows.

    Args:
        channels: channels of an image, whose sides must be at least 16.
        widths: channels of each block; the last is M.
        norm: the batch-norm encoding, one of `metavib.networks.norm.ENCODINGS`, or "none" for no batch-norm.

    Example:
        >>> from metavib.networks import ResNet12
        >>> ResNet12(3, widths=(8, 16, 32, 64)).features
        64
    """

    def __init__(self, channels: int, *, widths: Sequence[int] = (64, 128, 256, 512), norm: str = "running") -> None:
        super().__init__()
        sizes = [channels, *widths]
        self.blocks = nn.ModuleList(Residual(a, b, norm=norm) for a, b in zip(sizes[:-1], sizes[1:], strict=True))
        self.features = sizes[-1]

    @property
    def pointwise(self) -> bool:
        """Without batch-norm, and at test under `running`."""
        return pointwise(self)

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of images `(..., p, channels, height, width)`."""
        x = inputs.x
        for block in self.blocks:
            x = block(x, inputs)
        return x.mean((-2, -1))


class Residual(nn.Module):
    """A block of ResNet-12.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        norm: one of `metavib.networks.conv.NORMS`.

    Example:
        >>> import torch
        >>> from metavib.networks.resnet import Residual
        >>> from metavib.tasks.inputs import Inputs
        >>> x = torch.randn(4, 3, 16, 16)
        >>> Residual(3, 8, norm="none")(x, Inputs(x, torch.ones(4, dtype=torch.bool), 1)).shape
        torch.Size([4, 8, 8, 8])
    """

    def __init__(self, inputs: int, outputs: int, *, norm: str) -> None:
        super().__init__()
        bias = norm == "none"
        self.layers = nn.ModuleList(
            ConvNorm(inputs if i == 0 else outputs, outputs, norm=norm, bias=bias) for i in range(3)
        )
        self.shortcut = ConvNorm(inputs, outputs, 1, norm=norm, bias=bias)

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        """`(..., p, outputs, h // 2, w // 2)` from `(..., p, inputs, h, w)`."""
        first, second, third = self.layers
        y = F.leaky_relu(first(x, inputs), SLOPE)
        y = F.leaky_relu(second(y, inputs), SLOPE)
        # As in Conv4, an increasing function may wait until after the pooling.
        return F.leaky_relu(max_pool(third(y, inputs) + self.shortcut(x, inputs)), SLOPE)
