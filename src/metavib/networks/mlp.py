"""A fully connected network, for vectors: sines, tables, given embeddings."""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn

from metavib.networks.backbone import Backbone
from metavib.networks.layers import Linear
from metavib.tasks.inputs import Inputs


class MLP(Backbone):
    r"""Fully connected layers with ReLU; the features are the last hidden layer.

    Args:
        inputs: length of an input vector.
        widths: hidden units of each layer; the last is M. Empty: the identity.
        dropout: probability with which a hidden unit is set to zero while training.
        reach: half-width of the range the inputs come from; where given, the hyperplanes on which the first layer's
            units switch on are spread over it, instead of crowding round the origin.

    Weights start as $N(0, 2/in)$ (He et al. 2015), so that features keep the scale of the inputs.
    """

    pointwise = True

    def __init__(
        self, inputs: int, widths: Sequence[int] = (40, 40), *, dropout: float = 0.0, reach: float | None = None
    ) -> None:
        super().__init__()
        sizes = [inputs, *widths]
        layers = [Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
        self.dropout = nn.Dropout(dropout)
        self.features = sizes[-1]
        with torch.no_grad():
            for layer in layers:
                layer.weight.normal_(std=sqrt(2 / layer.weight.shape[-1]))
            if reach is not None and layers:
                # w . x + b = 0 at the distance |b| / |w| from the origin.
                layers[0].bias.uniform_(-reach, reach).mul_(layers[0].weight.norm(dim=-1))
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, inputs)`."""
        x = inputs.x
        for layer in self.layers:
            x = self.dropout(layer(x).relu())
        return x
