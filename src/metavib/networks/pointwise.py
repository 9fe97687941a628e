"""Any PyTorch module as a backbone."""

from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from metavib.networks.backbone import Backbone
from metavib.tasks.inputs import Inputs


class Pointwise(Backbone):
    """A module from `(N, *event)` to `(N, M)` that treats its N points one by one, a pretrained network say.

    Batch-norm layers inside it stay in evaluation mode, training or not: their statistics would mix points, and tasks.
    (A network whose batch-norm is to be part of the encoding is written with `metavib.networks.norm.TaskNorm`.)
    Where each task
    has weights of its own the module is called once a task; the layers of `metavib.networks.layers` need one call
    for all.

    Args:
        module: the network.
        features: M.
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
