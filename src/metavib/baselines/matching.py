r"""MatchingNet (Vinyals et al. 2016): a task is its support set, attended to by similarity.

$$p(y = n \mid x) = \sum_j a(x, x_j) [y_j = n], \qquad
a(x, x_j) \propto \exp\{ \gamma \max(0, \cos(f(x), g(x_j))) \}$$

The paper has $\gamma = 1$ and no maximum. The code behind the published numbers (Chen et al. 2019, and DKT after it)
has $\gamma = 100$, without which a cosine can never be confident, and the maximum: the default here.

References:
    Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra. Matching Networks for One Shot Learning. arXiv 1606.04080.
"""

from typing import final

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from metavib.baselines.context import Context, attend
from metavib.baselines.embedding import Embedding, PointMass, memberships
from metavib.encoders.encoder import Encoder
from metavib.likelihoods import Likelihood
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

SMALLEST = 1e-6
"""Added to each class's probability before the logarithm, as the code behind the published numbers does."""


@final
class Matches(PointMass):
    r"""$f_n(x) = \log( \sum_j a(x, x_j) [y_j = n] + 10^{-6} )$, so that the softmax of f is the attention itself.

    Args:
        context: how a query sees the support before it is compared.
        g: the support in its own context.
        mask: which of its points are real.
        Y: their classes, one-hot.
        scale: $\gamma$.
    """

    def __init__(
        self,
        context: Context,
        g: Float[Tensor, "*b n m"],
        mask: Bool[Tensor, "*b n"],
        Y: Float[Tensor, "*b n ways"],
        *,
        scale: float,
    ) -> None:
        self.context, self.g, self.mask, self.Y, self.scale = context, g, mask, Y, scale

    @property
    def Z(self) -> Float[Tensor, "*b n m"]:
        """The support in its context."""
        return self.g

    def values(self, x: Float[Tensor, "*b v m"]) -> Float[Tensor, "*b v ways"]:
        """Log attention of features x to each class."""
        f = self.context.query(x, self.g, self.mask)
        cosine = F.normalize(f, dim=-1, eps=1e-8) @ F.normalize(self.g, dim=-1, eps=1e-8).mT
        return (attend(self.scale * cosine.relu(), self.mask) @ self.Y + SMALLEST).log()


@final
class MatchingEncoder(Encoder):
    r"""$\hat Z = \{ (g(x_j), y_j) \}$: nothing of the support is thrown away.

    Args:
        context: embeddings in context: `NoContext`, or `FullContext` for the paper's full-context embeddings.
        scale: $\gamma$, what the cosines are multiplied with.
    """

    dirac = True

    def __init__(self, context: Context, *, scale: float = 100.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"the scale of the cosines must be positive; got {scale}.")
        self.context, self.scale = context, scale

    def forward(
        self, support: Examples, query: Points, prior: Embedding, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """A point mass at the support itself."""
        phi_t, phi_v = prior.features(support, query)
        Y = memberships(support.y, support.mask, likelihood.latents).to(phi_t.dtype)
        g = self.context.support(phi_t, support.mask)
        return Encoding(Matches(self.context, g, support.mask, Y, scale=self.scale), phi_v)
