"""A fully connected network, for vectors: sines, tables, given embeddings."""

from collections.abc import Sequence

from torch import Tensor, nn

from metavib.backbones.backbone import Backbone
from metavib.inputs import Inputs
from metavib.layers import Linear


class MLP(Backbone):
    """Fully connected layers with ReLU; the features are the last hidden layer.

    Args:
        inputs: length of an input vector.
        widths: hidden units of each layer; the last is M. Empty: the identity.
        dropout: probability with which a hidden unit is set to zero while training.
    """

    pointwise = True

    def __init__(self, inputs: int, widths: Sequence[int] = (40, 40), *, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [inputs, *widths]
        self.layers = nn.ModuleList(Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True))
        self.dropout = nn.Dropout(dropout)
        self.features = sizes[-1]

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, inputs)`."""
        x = inputs.x
        for layer in self.layers:
            x = self.dropout(layer(x).relu())
        return x
