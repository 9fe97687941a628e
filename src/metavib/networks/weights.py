r"""Network weights as values: $\theta$ read from a module, $\psi$ put in its place, variances beside them."""

from math import log

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metavib.tasks.inputs import Inputs

Weights = dict[str, Tensor]


class Network(nn.Module):
    """A network with a memory of how many dimensions of each weight are its own.

    Weights get leading dimensions later, a set for each task or repeat; their own rank is what they are born with.

    Args:
        body: the network itself.

    Example:
        >>> from metavib.networks import MLP
        >>> from metavib.networks.weights import Network
        >>> network = Network(MLP(2, (3,)))
        >>> {name: tuple(w.shape) for name, w in network.theta().items()}
        {'layers.0.weight': (3, 2), 'layers.0.bias': (3,)}
        >>> network.per_task((7,))["layers.0.weight"].shape
        torch.Size([7, 3, 2])
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.bf16 = False  # compute in bfloat16, whatever the weights are kept in
        self.ranks = {name: p.ndim for name, p in body.named_parameters()}

    def theta(self) -> Weights:
        r"""The weights $\theta$."""
        return dict(self.body.named_parameters())

    def per_task(self, batch_shape: torch.Size) -> Weights:
        r"""$\theta$ once a task: each weight expanded to lead with the tasks' dimensions."""

        def expand(name: str, p: Tensor) -> Tensor:
            rank = self.ranks[name]
            lead = torch.broadcast_shapes(p.shape[: p.ndim - rank], batch_shape)
            return p.expand(*lead, *p.shape[p.ndim - rank :])

        return {name: expand(name, p) for name, p in self.theta().items()}

    def forward(self, inputs: Inputs, weights: Weights | None = None) -> Tensor:
        """The network's outputs under its own weights, or under given ones."""
        if not self.bf16:
            return self._outputs(inputs, weights)
        with torch.autocast(inputs.x.device.type, torch.bfloat16):
            outputs = self._outputs(inputs, weights)
        return outputs.float()  # the GP algebra that follows is never in half precision

    def _outputs(self, inputs: Inputs, weights: Weights | None) -> Tensor:
        return self.body(inputs) if weights is None else functional_call(self.body, weights, (inputs,))


class Variances(nn.Module):
    """A learned positive variance for each weight of a network.

    Args:
        network: whose weights they belong to.
        value: where all of them start.

    Example:
        >>> from metavib.networks import MLP
        >>> from metavib.networks.weights import Network, Variances
        >>> s = Variances(Network(MLP(2, (3,))), 0.25)()
        >>> s["layers.0.bias"].tolist()
        [0.25, 0.25, 0.25]
    """

    def __init__(self, network: Network, value: float) -> None:
        super().__init__()
        if not value > 0:
            raise ValueError(f"the starting variance of the weights must be positive; got {value}.")
        for name, p in network.theta().items():
            self.register_parameter(_key(name), nn.Parameter(torch.full_like(p, log(value))))
        self.names = list(network.ranks)

    def forward(self) -> Weights:
        """The variances, by the name of the weight."""
        return {name: getattr(self, _key(name)).exp() for name in self.names}


def _key(name: str) -> str:
    return name.replace(".", "_")
