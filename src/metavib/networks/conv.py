"""Conv4, the four-layer network of the few-shot literature, pooled and strided."""

from torch import Tensor, nn

from metavib.networks.backbone import Backbone
from metavib.networks.blocks import ConvNorm, pointwise, rectify
from metavib.tasks.inputs import Inputs

LAYERS = 4


class Conv4(Backbone):
    """Four times 3 x 3 convolution, batch-norm, ReLU, 2 x 2 max-pool; flattened.

    Images of 84 x 84 give M = 25 * width (1600 with 64 channels, 800 with 32), of 28 x 28 M = width.

    Args:
        channels: channels of an image.
        image_size: its side, at least 16 with four poolings.
        width: channels of every layer.
        norm: the batch-norm encoding, one of `metavib.networks.norm.ENCODINGS`, or "none" for no batch-norm.
        extra: convolutions (each with batch-norm and ReLU, and no pooling) after each of the four layers; one, in the
            deeper network for Augmented Omniglot.
        poolings: layers that are pooled, from the first; two leave larger maps, for what compares maps (RelationNet).
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

    The network of Finn et al. (2017) for Omniglot: 28 x 28 becomes 14, 7, 4 and 2 a side, and the mean over the last
    2 x 2 positions makes 64 features of 64 channels. Any size of image does.

    Args:
        channels: channels of an image.
        width: channels of every layer, and M.
        norm: the batch-norm encoding, one of `metavib.networks.norm.ENCODINGS`, or "none" for no batch-norm.
        extra: convolutions (of stride 1, each with batch-norm and ReLU) after each of the four layers.
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
