r"""ProtoNet (Snell et al. 2017): a task is the mean features of its classes.

References:
    Snell, Swersky, Zemel. Prototypical Networks for Few-shot Learning. arXiv 1703.05175.
"""

from typing import final

from jaxtyping import Float
from torch import Tensor

from metavib.baselines.embedding import Embedding, PointMass, Space, class_means
from metavib.encoders.encoder import Encoder
from metavib.likelihoods import Likelihood, Softmax
from metavib.model import Model
from metavib.networks import Backbone
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples


@final
class Prototypes(PointMass):
    r"""A prototype for each class, and the nearest one wins: $f_n(x) = -|\phi(x) - c_n|^2$.

    Args:
        c: the prototypes, one for each class.

    Example:
        >>> import torch
        >>> from metavib.baselines.proto import Prototypes
        >>> Prototypes(torch.tensor([[0.0], [2.0]])).values(torch.tensor([[0.5]]))
        tensor([[-0.2500, -2.2500]])
    """

    def __init__(self, c: Float[Tensor, "*b ways m"]) -> None:
        self.c = c

    @property
    def Z(self) -> Float[Tensor, "*b ways m"]:
        """The prototypes."""
        return self.c

    def values(self, x: Float[Tensor, "*b v m"]) -> Float[Tensor, "*b v ways"]:
        """Minus the squared distances of features x from the prototypes."""
        # The direct difference: |x|^2 + |c|^2 - 2 x.c loses what matters when x and c are long and close.
        return -(x.unsqueeze(-2) - self.c.unsqueeze(-3)).square().sum(-1)


@final
class PrototypeEncoder(Encoder):
    r"""$\hat Z = (c_1, \dots, c_N)$, where $c_n$ is the mean of $\phi(x_j)$ over the support points of class n.

    A class without support points has its prototype at the origin.

    Example:
        >>> import torch
        >>> from metavib.baselines import proto_net
        >>> from metavib.networks import MLP
        >>> from metavib.tasks import examples, task
        >>> model = proto_net(MLP(1, ()), ways=2)  # features are the inputs themselves
        >>> support = examples(torch.tensor([[-1.0], [1.0], [4.0]]), torch.tensor([0, 0, 1]))
        >>> model(task(support, examples(torch.tensor([[1.0]]), torch.tensor([0])))).f  # prototypes at 0 and 4
        tensor([[-1., -9.]])
    """

    dirac = True

    def forward(
        self, support: Examples, query: Points, prior: Space, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """A point mass at the prototypes."""
        phi_t, phi_v = prior.features(support, query)
        return Encoding(Prototypes(class_means(phi_t, support.y, support.mask, likelihood.latents)), phi_v)


def proto_net(backbone: Backbone, ways: int) -> Model:
    """ProtoNet (Snell et al. 2017): train with beta = 0.

    Args:
        backbone: the network.
        ways: classes of a task.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.proto_net(networks.Conv4(1, 28), ways=5)
        >>> type(model.encoder).__name__, model.dirac
        ('PrototypeEncoder', True)
    """
    return Model(Embedding(backbone), PrototypeEncoder(), Softmax(ways))
