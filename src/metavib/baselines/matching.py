r"""MatchingNet (Vinyals et al. 2016): a task is its support set, attended to by similarity.

$$p(y = n \mid x) = \sum_j a(x, x_j) [y_j = n], \qquad
a(x, x_j) \propto \exp\{ \gamma \max(0, \cos(f(x), g(x_j))) \}$$

The paper has $\gamma = 1$ and no maximum. The code behind the published numbers (Chen et al. 2019, and DKT after it)
has $\gamma = 100$, without which a cosine can never be confident, and the maximum: the default here.

Features may be seen in context: $g(x_j)$ may know the rest of the support, and f(x) all of it (`FullContext`). The
recurrences are written out over batched tasks: masked points leave the state as it was, and weights may carry leading
dimensions.

References:
    Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra. Matching Networks for One Shot Learning. arXiv 1606.04080.
"""

from abc import ABC, abstractmethod
from math import sqrt
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from metavib.baselines.embedding import Embedding, PointMass, memberships
from metavib.encoders.encoder import Encoder
from metavib.likelihoods import Likelihood, Softmax
from metavib.model import Model
from metavib.networks import Backbone
from metavib.networks.layers import Linear
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

SMALLEST = 1e-6
"""Added to each class's probability before the logarithm, as the code behind the published numbers does."""


# Features in context


class Context(nn.Module, ABC):
    r"""How features of support and query change in the presence of the support.

    A context is two maps: `support`, from the support's features $\phi_t$ to g, and `query`, from a query's features
    $\phi_v$ (and g) to f.

    Example:
        >>> from metavib.baselines import FullContext, NoContext
        >>> from metavib.baselines.matching import Context
        >>> isinstance(NoContext(), Context), isinstance(FullContext(5), Context)
        (True, True)
    """

    @abstractmethod
    def support(self, phi: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b n m"]:
        """g, the support's features in context."""

    @abstractmethod
    def query(
        self, phi: Float[Tensor, "*b v m"], g: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"]
    ) -> Float[Tensor, "*b v m"]:
        """f, the query's features in the context of the support's."""


@final
class NoContext(Context):
    """Features as they are, whatever the others.

    Example:
        >>> import torch
        >>> from metavib.baselines import NoContext
        >>> phi = torch.randn(3, 4)
        >>> NoContext().support(phi, torch.ones(3, dtype=torch.bool)) is phi
        True
    """

    def support(self, phi: Tensor, mask: Tensor) -> Tensor:
        """The features of the support as they are."""
        return phi

    def query(self, phi: Tensor, g: Tensor, mask: Tensor) -> Tensor:
        """The features of the query as they are."""
        return phi


@final
class FullContext(Context):
    r"""Full-context embeddings: a bidirectional LSTM over the support, an attention LSTM over it for each query.

    $g_j = \phi_j + \overrightarrow{h}_j + \overleftarrow{h}_j$. For the query, from $h_0 = \phi$ and $c_0 = 0$, K
    times:

    $$r_k = \sum_j \mathrm{softmax}_j(h_{k-1} \cdot g_j)\, g_j, \qquad
    h_k = \phi + \mathrm{LSTM}([\phi, r_k]; h_{k-1}, c_{k-1})$$

    This is the wiring of the code behind the published numbers, in which K is the size of the support. The LSTM over
    the support makes g depend on the order its points come in, as it does in the paper.

    Args:
        features: length of $\phi$.
        steps: K; as many as the task has support points where None.

    Example:
        >>> import torch
        >>> from metavib.baselines import FullContext
        >>> context, real = FullContext(4), torch.ones(3, dtype=torch.bool)
        >>> g = context.support(torch.randn(3, 4), real)
        >>> context.query(torch.randn(5, 4), g, real).shape
        torch.Size([5, 4])
    """

    def __init__(self, features: int, *, steps: int | None = None) -> None:
        super().__init__()
        if steps is not None and steps < 0:
            raise ValueError(f"processing steps must be 0 or more; got {steps}.")
        self.steps = steps
        self.forwards = LSTMCell(features, features)
        self.backwards = LSTMCell(features, features)
        self.attention = LSTMCell(2 * features, features)

    def support(self, phi: Tensor, mask: Tensor) -> Tensor:
        """Each point with what the LSTMs say of its neighbours."""
        return phi + _run(self.forwards, phi, mask) + _run(self.backwards, phi.flip(-2), mask.flip(-1)).flip(-2)

    def query(self, phi: Tensor, g: Tensor, mask: Tensor) -> Tensor:
        """Each query after K glimpses of the support."""
        h, c = phi, torch.zeros_like(phi)
        # A task stops after its own K steps: padding adds none.
        limit = mask.sum(-1)[..., None, None]
        for k in range(g.shape[-2] if self.steps is None else self.steps):
            r = attend(h @ g.mT, mask) @ g
            new_h, new_c = self.attention(torch.cat([phi, r], -1), h, c)
            going = (k < limit) if self.steps is None else torch.ones_like(limit, dtype=torch.bool)
            h, c = torch.where(going, phi + new_h, h), torch.where(going, new_c, c)
        return h


@final
class LSTMCell(nn.Module):
    r"""One step of an LSTM, gates in PyTorch's order (input, forget, cell, output).

    $$(i, f, g, o) = W [x, h] + b, \quad c' = \sigma(f) c + \sigma(i) \tanh g, \quad h' = \sigma(o) \tanh c'$$

    Unlike PyTorch's its weights may carry leading dimensions, a set for each task.

    Args:
        inputs: length of x.
        hidden: length of h and c.

    Example:
        >>> import torch
        >>> from metavib.baselines.matching import LSTMCell
        >>> h, c = LSTMCell(3, 2)(torch.randn(5, 3), torch.zeros(5, 2), torch.zeros(5, 2))
        >>> h.shape
        torch.Size([5, 2])
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = Linear(inputs + hidden, 4 * hidden)
        with torch.no_grad():
            for parameter in self.gates.parameters():
                nn.init.uniform_(parameter, -1 / sqrt(hidden), 1 / sqrt(hidden))

    def forward(
        self, x: Float[Tensor, "*b n i"], h: Float[Tensor, "*b n m"], c: Float[Tensor, "*b n m"]
    ) -> tuple[Float[Tensor, "*b n m"], Float[Tensor, "*b n m"]]:
        """The next h and c."""
        i, f, g, o = self.gates(torch.cat([x, h], -1)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


def attend(scores: Float[Tensor, "*b v n"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b v n"]:
    """Softmax over the real points; all zero where there are none."""
    scores = scores.masked_fill(~mask.unsqueeze(-2), -torch.inf)
    # The least finite number beside the scores gives an empty support a finite peak.
    peak = F.pad(scores.detach(), (0, 1), value=torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    w = (scores - peak).exp()
    return w / w.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def _run(cell: LSTMCell, x: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b n m"]:
    h = c = torch.zeros_like(x[..., :1, :])
    outputs = [x[..., :0, :]]
    for j in range(x.shape[-2]):
        here = slice(j, j + 1)
        new_h, new_c = cell(x[..., here, :], h, c)
        real = mask[..., here].unsqueeze(-1)
        h, c = torch.where(real, new_h, h), torch.where(real, new_c, c)
        outputs.append(h)
    return torch.cat(outputs, -2)


# The method


@final
class Matches(PointMass):
    r"""$f_n(x) = \log( \sum_j a(x, x_j) [y_j = n] + 10^{-6} )$, so that the softmax of f is the attention itself.

    Args:
        context: how a query sees the support before it is compared.
        g: the support in its own context.
        mask: which of its points are real.
        Y: their classes, one-hot.
        scale: $\gamma$.

    Example:
        >>> import torch
        >>> from metavib.baselines import NoContext
        >>> from metavib.baselines.matching import Matches
        >>> g, Y = torch.eye(2), torch.eye(2)  # two support points, at right angles, of two classes
        >>> q = Matches(NoContext(), g, torch.ones(2, dtype=torch.bool), Y, scale=100.0)
        >>> q.values(torch.tensor([[0.9, 0.1]])).exp().round()
        tensor([[1., 0.]])
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

    Example:
        >>> from metavib.baselines import NoContext
        >>> from metavib.baselines.matching import MatchingEncoder
        >>> MatchingEncoder(NoContext(), scale=10.0).dirac
        True
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


def matching_net(backbone: Backbone, ways: int, *, context: Context | None = None, scale: float = 100.0) -> Model:
    """MatchingNet (Vinyals et al. 2016): train with beta = 0.

    Args:
        backbone: the network.
        ways: classes of a task.
        context: `FullContext(backbone.features)` for full-context embeddings, as in DKT's comparison; none where None.
        scale: what the cosines are multiplied with.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.matching_net(networks.Conv4(1, 28), ways=5)
        >>> type(model.encoder).__name__, model.dirac
        ('MatchingEncoder', True)
    """
    encoder = MatchingEncoder(NoContext() if context is None else context, scale=scale)
    return Model(Embedding(backbone), encoder, Softmax(ways))
