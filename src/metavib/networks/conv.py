"""Convolutional networks of the few-shot literature: a convolution with its batch-norm, and Conv4 made of four of them.

Activations have the shape `(..., p, channels, h, w)`, p points (images) of each task.
"""

from math import prod

import torch
from torch import Tensor, nn

from metavib.fast import windows
from metavib.fast.activations import max_pool, rectify
from metavib.networks.backbone import Backbone
from metavib.networks.layers import Conv2d
from metavib.networks.norm import ENCODINGS, UNION, Moments, TaskNorm
from metavib.tasks.inputs import Inputs

LAYERS = 4  # of Conv4
NORMS = ("none", *ENCODINGS, UNION)
"""What may follow a convolution: nothing, or batch-norm in one of its encodings."""


class ConvNorm(nn.Module):
    """A convolution that keeps the size of the image (but for its stride), then batch-norm as part of the encoding.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        kernel_size: side of the filters, odd.
        stride: step between positions; 2 halves the image, rounding up.
        norm: one of `NORMS`.
        bias: give the convolution a bias, where no batch-norm follows that would take it away again.

    Example:
        >>> import torch
        >>> from metavib.networks.conv import ConvNorm
        >>> from metavib.tasks.inputs import Inputs
        >>> x = torch.randn(6, 3, 8, 8)  # six images of one task
        >>> ConvNorm(3, 16, stride=2, norm="transductive")(x, Inputs(x, torch.ones(6, dtype=torch.bool), 1)).shape
        torch.Size([6, 16, 4, 4])
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
        """The same, then `max_pool`; what of batch-norm can wait comes after it, on a quarter of the numbers."""
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


def pointwise(network: nn.Module) -> bool:
    """Whether a network of these pieces treats points one by one."""
    return all(piece.pointwise for piece in network.modules() if isinstance(piece, ConvNorm))


class Conv4(Backbone):
    """Conv4, the network of the few-shot literature: four times 3 x 3 convolution, batch-norm, ReLU, 2 x 2 max-pool.

    The last maps are flattened: images of 84 x 84 give M = 25 * width (1600 with 64 channels, 800 with 32), images of
    28 x 28 M = width.

    Args:
        channels: channels of an image.
        image_size: its side, at least 16 with four poolings.
        width: channels of every layer.
        norm: the batch-norm encoding, one of `metavib.networks.norm.ENCODINGS`, or "none" for no batch-norm.
        extra: further convolutions (each with batch-norm and ReLU, and no pooling) after each of the four layers; one,
            in the deeper network for Augmented Omniglot.
        poolings: how many layers are pooled, from the first; two leave larger maps, for what compares maps
            (RelationNet).

    Example:
        >>> from metavib.networks import Conv4
        >>> Conv4(3, 84).features, Conv4(1, 28, width=32).features
        (1600, 32)
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        *,
        width: int = 64,
        norm: str = "running",
        extra: int = 0,
        poolings: int = LAYERS,
    ) -> None:
        super().__init__()
        if not 0 <= poolings <= LAYERS:
            raise ValueError(f"poolings must be between 0 and the {LAYERS} layers; got {poolings}.")
        side = image_size // 2**poolings
        if side < 1:
            raise ValueError(
                f"{poolings} poolings need images of at least {2**poolings} pixels a side; got {image_size}."
            )
        self.poolings = poolings
        self.layers = nn.ModuleList(ConvNorm(channels if i == 0 else width, width, norm=norm) for i in range(LAYERS))
        self.extras = _extras(width, norm, extra)
        self.features = width * side**2

    @property
    def pointwise(self) -> bool:
        """Without batch-norm, and at test under `running`."""
        return pointwise(self)

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of images `(..., p, channels, image_size, image_size)`."""
        x = inputs.x
        for i, (layer, extras) in enumerate(zip(self.layers, self.extras, strict=True)):
            # The largest of the rectified is the rectified largest: pooling first leaves ReLU a quarter of the work.
            assert isinstance(layer, ConvNorm)
            x = rectify(layer.pooled(x, inputs) if i < self.poolings else layer(x, inputs))
            x = _apply(extras, x, inputs)
        return x.flatten(-3)


class StridedConv4(Backbone):
    """Four times 3 x 3 convolution of stride 2, batch-norm, ReLU; averaged over positions, so that M = width.

    The network of Finn et al. (2017) for Omniglot: 28 x 28 becomes 14, 7, 4 and 2 a side, and the mean over the last 2
    x 2 positions makes 64 features of 64 channels. Any size of image does.

    Args:
        channels: channels of an image.
        width: channels of every layer, and M.
        norm: the batch-norm encoding, one of `metavib.networks.norm.ENCODINGS`, or "none" for no batch-norm.
        extra: further convolutions (of stride 1, each with batch-norm and ReLU) after each of the four layers.

    Example:
        >>> from metavib.networks import StridedConv4
        >>> StridedConv4(1).features
        64
    """

    def __init__(self, channels: int, *, width: int = 64, norm: str = "running", extra: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ConvNorm(channels if i == 0 else width, width, stride=2, norm=norm) for i in range(LAYERS)
        )
        self.extras = _extras(width, norm, extra)
        self.features = width

    @property
    def pointwise(self) -> bool:
        """Without batch-norm, and at test under `running`."""
        return pointwise(self)

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of images `(..., p, channels, height, width)`."""
        x = inputs.x
        for layer, extras in zip(self.layers, self.extras, strict=True):
            x = _apply(extras, rectify(layer(x, inputs)), inputs)
        return x.mean((-2, -1))


def _extras(width: int, norm: str, extra: int) -> nn.ModuleList:
    if extra < 0:
        raise ValueError(f"extra counts the convolutions added after each layer, 0 or more; got {extra}.")
    return nn.ModuleList(nn.ModuleList(ConvNorm(width, width, norm=norm) for _ in range(extra)) for _ in range(LAYERS))


def _apply(extras: nn.Module, x: Tensor, inputs: Inputs) -> Tensor:
    for layer in extras.children():
        x = rectify(layer(x, inputs))
    return x
