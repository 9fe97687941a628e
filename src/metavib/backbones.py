r"""$\phi(x; \theta)$: networks from the inputs of a task to features.

A backbone is called on `Inputs`, all points of each task at once, and returns `(..., p, M)`. One whose features of a
point do not depend on the other points says so (`pointwise`), which spares gradient encoders the support's
share of the final pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from metavib.inputs import Inputs
from metavib.layers import Linear


class Backbone(nn.Module, ABC):
    """A network from inputs to M features."""

    features: int

    @property
    @abstractmethod
    def pointwise(self) -> bool:
        """Whether each point's features depend on that point alone."""

    @abstractmethod
    def forward(self, inputs: Inputs) -> Tensor:
        """Features `(..., p, M)` of inputs `(..., p, *event)`."""


class MLP(Backbone):
    """Fully connected layers with ReLU; the features are the last hidden layer.

    Args:
        inputs: length of an input vector.
        widths: hidden units of each layer; the last is M. Empty: the identity.
    """

    pointwise = True

    def __init__(self, inputs: int, widths: Sequence[int] = (40, 40)) -> None:
        super().__init__()
        sizes = [inputs, *widths]
        self.layers = nn.ModuleList(Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True))
        self.features = sizes[-1]

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, inputs)`."""
        x = inputs.x
        for layer in self.layers:
            x = layer(x).relu()
        return x
