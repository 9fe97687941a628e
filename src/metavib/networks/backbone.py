"""What a backbone is, the one for vectors (`MLP`), and any PyTorch module as one (`Pointwise`)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from metavib.networks.layers import Linear
from metavib.tasks.inputs import Inputs


class Backbone(nn.Module, ABC):
    """A network from inputs to M features: what every kernel, head and weight prior stands on.

    A backbone is called on `metavib.tasks.inputs.Inputs`, all points of each task at once, so that it may look at the
    task (batch-norm does). One whose features of a point do not depend on the other points says so (`pointwise`), which
    spares gradient encoders the support's share of the final pass.

    A new one has `features`, `pointwise` and `forward`:

    Example:
        >>> import torch
        >>> from metavib.networks import Backbone
        >>> from metavib.tasks.inputs import Inputs
        >>> class Squares(Backbone):
        ...     features, pointwise = 2, True
        ...     def forward(self, inputs):
        ...         return torch.cat([inputs.x, inputs.x**2], -1)
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> Squares()(Inputs(x, torch.ones(2, dtype=torch.bool), 2))
        tensor([[1., 1.],
                [3., 9.]])
    """

    features: int

    @property
    @abstractmethod
    def pointwise(self) -> bool:
        """Whether each point's features depend on that point alone."""

    @abstractmethod
    def forward(self, inputs: Inputs) -> Tensor:
        """Features `(..., p, M)` of inputs `(..., p, *event)`."""


class MLP(Backbone):
    """Fully connected layers with ReLU, for vectors; the features are the last hidden layer.

    Weights start as $N(0, 2/in)$ (He et al. 2015), so that features keep the scale of the inputs, or with another
    variance in place of the 2.

    Args:
        inputs: length of an input vector.
        widths: hidden units of each layer; the last is M. Empty: the features are the inputs themselves.
        dropout: probability with which a hidden unit is set to zero while training.
        reach: half the width of the range that the inputs come from. Where given, the hyperplanes on which the first
            layer's units switch on are spread over that range, instead of crowding round the origin.
        variance: of a starting weight, times the number of inputs of its layer.

    Example:
        >>> from metavib.networks import MLP
        >>> MLP(3, (40, 20)).features
        20
    """

    pointwise = True

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int] = (40, 40),
        *,
        dropout: float = 0.0,
        reach: float | None = None,
        variance: float = 2.0,
    ) -> None:
        super().__init__()
        if not variance > 0:
            raise ValueError(f"the variance of starting weights must be positive; got {variance}.")
        sizes = [inputs, *widths]
        layers = [Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
        self.dropout = nn.Dropout(dropout)
        self.features = sizes[-1]
        with torch.no_grad():
            for layer in layers:
                layer.weight.normal_(std=sqrt(variance / layer.weight.shape[-1]))
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


class Pointwise(Backbone):
    """Any PyTorch module as a backbone: a pretrained network, say.

    The module takes `(N, *event)` to `(N, M)` and treats its N points one by one. Batch-norm layers inside it stay in
    evaluation mode, training or not: their statistics would mix points, and tasks. (A network whose batch-norm is to be
    part of the encoding is written with `metavib.networks.norm.TaskNorm`.) Where each task has weights of its own the
    module is called once for each task; the layers of `metavib.networks.layers` need one call for all.

    Args:
        module: the network.
        features: M, the length of its output.

    Example:
        >>> import torch
        >>> from metavib.networks import Pointwise
        >>> from metavib.tasks.inputs import Inputs
        >>> phi = Pointwise(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), features=5)
        >>> x = torch.randn(2, 4, 3, 2, 2)  # two tasks of four pictures
        >>> phi(Inputs(x, torch.ones(2, 4, dtype=torch.bool), 1)).shape
        torch.Size([2, 4, 5])
    """

    pointwise = True

    def __init__(self, module: nn.Module, features: int) -> None:
        super().__init__()
        self.module, self.features = module, features
        self._ranks = {name: p.ndim for name, p in module.named_parameters()}
        self.train(self.training)

    def train(self, mode: bool = True) -> "Pointwise":
        """Sets training mode, but not that of batch-norm layers."""
        super().train(mode)
        for layer in self.module.modules():
            if isinstance(layer, _BatchNorm):
                layer.eval()
        return self

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, *event)`."""
        x, weights = inputs.x, dict(self.module.named_parameters())
        points = inputs.mask.ndim  # how many dimensions of x are no event's
        leads = {name: p.shape[: p.ndim - self._ranks[name]] for name, p in weights.items()}
        own = torch.broadcast_shapes(*leads.values())
        if prod(own) == 1:
            own_weights = {name: p.reshape(p.shape[len(leads[name]) :]) for name, p in weights.items()}
            return self._call(own_weights, x.flatten(0, points - 1)).unflatten(0, x.shape[:points])
        lead = torch.broadcast_shapes(x.shape[: points - 1], own)
        x = x.expand(*lead, *x.shape[points - 1 :]).flatten(0, len(lead) - 1)
        full = {
            name: p.expand(*lead, *p.shape[len(leads[name]) :]).flatten(0, len(lead) - 1) for name, p in weights.items()
        }
        phi = [self._call({name: p[i] for name, p in full.items()}, x[i]) for i in range(len(x))]
        return torch.stack(phi).unflatten(0, lead)

    def _call(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        phi = functional_call(self.module, weights, (x,))
        if phi.shape != (len(x), self.features):
            raise ValueError(
                f"a pointwise backbone of {self.features} features must turn {len(x)} points {tuple(x.shape)} into "
                f"{(len(x), self.features)}; the module gave {tuple(phi.shape)}."
            )
        return phi
