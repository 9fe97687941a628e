"""What a backbone is."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from metavib.tasks.inputs import Inputs


class Backbone(nn.Module, ABC):
    """A network from inputs to M features.

    One whose features of a point do not depend on the other points says so (`pointwise`), which spares gradient
    encoders the support's share of the final pass.
    """

    features: int

    @property
    @abstractmethod
    def pointwise(self) -> bool:
        """Whether each point's features depend on that point alone."""

    @abstractmethod
    def forward(self, inputs: Inputs) -> Tensor:
        """Features `(..., p, M)` of inputs `(..., p, *event)`."""
