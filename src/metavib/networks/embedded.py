r"""What is done to the features of a pretrained network before a kernel compares them (`Embedded`).

A network that was trained to tell classes apart gives every new picture a vector; what is left to learn on top of it is
little, and most of that is known from the *training* classes: where their vectors lie, and in which directions pictures
of one class differ. `Embedded` takes both from them once (`look`), and leaves three numbers to be learned.
"""

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavib.networks.backbone import MLP, Backbone
from metavib.networks.layers import lift
from metavib.tasks.inputs import Inputs


class Embedded(Backbone):
    r"""Embeddings, on the unit sphere, centred and whitened by what training classes are like.

    $$z = g \sqrt M \Big(\frac{e + \lambda}{1 + \lambda}\Big)^{-1/2} Q^\top \Big(\frac{x}{|x|} - t\, c\Big)$$

    c is the mean of the unit vectors of the training classes, and $Q\, \mathrm{diag}(e)\, Q^\top$ their covariance
    within a class, divided so that e is 1 on average. Directions in which pictures of one class differ much count less.
    t, $\lambda$ and g are learned: t = 0 does not centre, and a large $\lambda$ does not whiten. Numbers of z are about
    one in size where g is. Before `look` has seen any vectors, z is $g \sqrt M x / |x|$.

    An MLP may follow, whose last hidden layer is then $\phi$; inputs are dropped before it, as Titsias et al. (2021)
    have it.

    Args:
        inputs: length of a vector.
        widths: hidden units of each layer of the MLP; empty for none.
        dropout: probability with which a number of z is set to zero while training.

    Example:
        >>> import torch
        >>> from metavib.networks.embedded import Embedded
        >>> from metavib.tasks.inputs import Inputs
        >>> vectors = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
        >>> Embedded(2)(Inputs(vectors, torch.ones(2, dtype=torch.bool), 0)).tolist()
        [[0.8485281467437744, 1.1313709020614624], [0.0, 1.4142135381698608]]
    """

    pointwise = True
    centre: Tensor
    directions: Tensor
    spread: Tensor

    def __init__(self, inputs: int, widths: tuple[int, ...] = (), *, dropout: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(inputs))  # Q^T c
        self.register_buffer("directions", torch.eye(inputs))
        self.register_buffer("spread", torch.ones(inputs))
        self.share = nn.Parameter(torch.ones(()))  # t
        self.log_ridge = nn.Parameter(torch.zeros(()))  # log lambda
        self.log_gain = nn.Parameter(torch.tensor(0.5 * log(inputs)))  # log (g sqrt M)
        self.dropout = nn.Dropout(dropout)
        self.mlp = MLP(inputs, widths)
        self.features = self.mlp.features

    @torch.no_grad()
    def look(self, vectors: Tensor, labels: Tensor) -> None:
        """Takes centre and covariance from vectors `(n, inputs)` of training classes, `labels (n,)` from 0 on."""
        x = F.normalize(vectors.double(), dim=-1)
        centre = x.mean(0)
        counts = labels.bincount().clamp(min=1).double()
        means = x.new_zeros(len(counts), x.shape[-1]).index_add_(0, labels, x) / counts.unsqueeze(-1)
        own = x - means[labels]
        covariance = own.mT @ own
        level = covariance.trace() / len(covariance)
        if not level > 0:
            raise ValueError(
                "embeddings need a training class with two different vectors, to see how one class varies."
            )
        spread, directions = torch.linalg.eigh(covariance / level)
        self.centre.copy_(centre @ directions)
        self.directions.copy_(directions)
        self.spread.copy_(spread.clamp(min=0))

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, inputs)`."""
        x = F.normalize(inputs.x, dim=-1) @ self.directions - lift(self.share, 2) * self.centre
        gain, ridge = lift(self.log_gain, 2).exp(), lift(self.log_ridge, 2).exp()
        z = x * gain * ((1 + ridge) / (self.spread + ridge)).sqrt()
        return self.mlp(inputs._replace(x=self.dropout(z)))
