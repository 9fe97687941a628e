r"""What the baselines share: a network without a prior of its own, and posteriors that are point masses.

ProtoNet, MatchingNet, RelationNet, Feature Transfer and Baseline++ all encode a task as one value $\hat Z$ in the
space of features: $q(Z \mid D_t) = \delta(Z - \hat Z)$. Their losses are the bound with $\beta = 0$, where no prior
is needed; what is left of p(Z) is the network that spans the space (THEORY.md, section 10).
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from metavib.marginals import Point
from metavib.networks import Backbone
from metavib.networks.weights import Network
from metavib.posteriors.posterior import Posterior
from metavib.random import Noise
from metavib.tasks.inputs import Points, join
from metavib.tasks.task import Examples


@runtime_checkable
class Space(Protocol):
    """Whatever has features of a task's points: a network (`Embedding`), or features that are there already."""

    def features(self, support: Examples, query: Points) -> tuple[Tensor, Tensor]:
        """Those of the support and of the query."""


class Embedding(nn.Module):
    r"""A network without a prior of its own: the space of features $\phi(x; \theta)$, in the prior's place.

    There is no distribution over anything, so that only $\beta = 0$ makes sense.

    Args:
        backbone: $\phi$.

    Example:
        >>> import torch
        >>> from metavib.baselines.embedding import Embedding
        >>> from metavib.networks import MLP
        >>> from metavib.tasks import examples
        >>> from metavib.tasks.inputs import points
        >>> support, query = examples(torch.randn(4, 2), torch.zeros(4)), examples(torch.randn(9, 2), torch.zeros(9))
        >>> phi_t, phi_v = Embedding(MLP(2, (5,))).features(support, points(query))
        >>> phi_t.shape, phi_v.shape
        (torch.Size([4, 5]), torch.Size([9, 5]))
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.network = Network(backbone)

    def features(self, support: Examples, query: Points) -> tuple[Tensor, Tensor]:
        r"""$\phi$ of the support and of the query, in one pass over all points of each task."""
        inputs = join(support, query)
        phi = self.network(inputs)
        return phi[..., : inputs.n, :], phi[..., inputs.n :, :]


class PointMass(Posterior, ABC):
    r"""$q(Z) = \delta(Z - \hat Z)$: a posterior that is one value, so that the latent values are a function of it.

    Subclasses say what $\hat Z$ is (`Z`) and what function it makes (`values`): `metavib.baselines.proto.Prototypes` is
    the shortest.

    Example:
        >>> import torch
        >>> from metavib.baselines.proto import Prototypes
        >>> q = Prototypes(torch.tensor([[0.0], [2.0]]))  # a prototype at 0 and one at 2
        >>> q.marginals(torch.tensor([[0.5]])).f  # minus the squared distances of a feature at 0.5
        tensor([[-0.2500, -2.2500]])
        >>> q.kl()
        tensor(inf)
    """

    @property
    @abstractmethod
    def Z(self) -> Float[Tensor, "*b rows m"]:
        r"""$\hat Z$, or the part of it that stands for it: rows of features, the tasks leading."""

    @abstractmethod
    def values(self, x: Any) -> Float[Tensor, "*b v c"]:
        r"""$f(x; \hat Z)$."""

    def marginals(self, x: Any, noise: Noise = None) -> Point:
        r"""All mass at $f(x; \hat Z)$."""
        return Point(self.values(x))

    def kl(self) -> Tensor:
        """Infinite against any prior with a density."""
        return self.Z.new_full(self.Z.shape[:-2], torch.inf)


def memberships(y: Int[Tensor, "*b n"], mask: Bool[Tensor, "*b n"], ways: int) -> Float[Tensor, "*b n ways"]:
    """One-hot labels; all zero for padding."""
    return (F.one_hot(y, ways) * mask.unsqueeze(-1)).to(torch.get_default_dtype())


def class_means(
    phi: Float[Tensor, "*b n m"], y: Int[Tensor, "*b n"], mask: Bool[Tensor, "*b n"], ways: int
) -> Float[Tensor, "*b ways m"]:
    """Mean features of each class over its real points; zero for a class without any."""
    Y = memberships(y, mask, ways).to(phi.dtype)
    return (Y.mT @ phi) / Y.sum(-2).clamp(min=1).unsqueeze(-1)
