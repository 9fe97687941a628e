r"""RelationNet (Sung et al. 2018): a learned comparison of a query's feature map with that of each class.

The scores f are what a small network makes of a pair of maps. Two likelihoods turn them into losses:
`RelationScores`, the paper's squared error, and `metavib.likelihoods.Softmax`, Chen et al.'s variant.

References:
    Sung, Yang, Zhang, Xiang, Torr, Hospedales. Learning to Compare: Relation Network for Few-Shot Learning. arXiv
    1711.06025.
"""

from math import prod
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from metavib.baselines.embedding import Embedding, PointMass, Space, class_means
from metavib.encoders.encoder import Encoder
from metavib.likelihoods import ClassLikelihood, Likelihood
from metavib.marginals import Marginals
from metavib.model import Model
from metavib.networks import Backbone
from metavib.networks.layers import Conv2d, Linear
from metavib.networks.norm import TaskNorm
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Inputs, Points, join
from metavib.tasks.task import Examples


@final
class RelationModule(nn.Module):
    """Scores of pairs of maps: 2 x [3x3 convolution, batch-norm, ReLU, 2x2 max-pool], 8 hidden units, one output.

    Maps under 10 x 10 are padded by one, and a map down to a single row or column is not pooled further. So any map
    will do: those of Conv4 with two poolings, 21 x 21 for images of 84 and 7 x 7 for images of 28, or with four. A
    batch-norm layer sees the pairs of all points of a task, support and query, with all its classes.

    Args:
        map_shape: channels, height and width of a feature map.
        norm: the batch-norm encoding, one of `metavib.networks.norm.ENCODINGS`, or "none" for no batch-norm.
        hidden: units between the convolutions and the score.

    Example:
        >>> import torch
        >>> from metavib.baselines.relation import RelationModule
        >>> from metavib.tasks.inputs import Inputs
        >>> module, x = RelationModule((2, 7, 7), norm="none"), torch.randn(6, 98)  # maps of six points
        >>> maps = torch.randn(3, 98)  # of three classes
        >>> module(maps, Inputs(x, torch.ones(6, dtype=torch.bool), 3)).shape
        torch.Size([6, 3])
    """

    def __init__(self, map_shape: tuple[int, int, int], *, norm: str = "running", hidden: int = 8) -> None:
        super().__init__()
        C, h, w = self.map_shape = map_shape
        padding = 1 if max(h, w) < 10 else 0
        # The convolution of two maps on top of each other is the sum of the convolutions of each: so a map is
        # convolved once, and not once for every pair it is in.
        self.conv_class = Conv2d(C, C, 3, padding=padding, bias=False)
        self.conv_point = Conv2d(C, C, 3, padding=padding)
        self.conv = Conv2d(C, C, 3, padding=padding)
        self.norm_pair, self.norm = (None if norm == "none" else TaskNorm(C, encoding=norm) for _ in range(2))
        for _ in range(2):
            h, w = h - 2 + 2 * padding, w - 2 + 2 * padding
            h, w = h // _window(h), w // _window(w)
        self.fc = Linear(C * h * w, hidden)
        self.score = Linear(hidden, 1)

    def forward(self, c: Float[Tensor, "*b ways m"], inputs: Inputs) -> Float[Tensor, "*b p ways"]:
        """Scores of every point with every class, for flattened maps of both (`inputs.x (..., p, m)`)."""
        phi, p, ways = inputs.x, inputs.x.shape[-2], c.shape[-2]
        one = self.conv_class(c.unflatten(-1, self.map_shape)).unsqueeze(-5)  # (..., 1, ways, C, h, w)
        two = self.conv_point(phi.unflatten(-1, self.map_shape)).unsqueeze(-4)  # (..., p, 1, C, h, w)
        x = _finish(one + two, self.norm_pair, inputs)
        x = self.conv(x.flatten(-5, -4)).unflatten(-4, (p, ways))
        x = _finish(x, self.norm, inputs)
        x = self.fc(x.flatten(-5, -4).flatten(-3)).relu()
        return self.score(x).squeeze(-1).unflatten(-1, (p, ways))


@final
class Relations(PointMass):
    """f_n(x) is the relation module's score of x and the map of class n.

    Args:
        module: scores pairs.
        c: mean maps of the classes, flattened.

    Example:
        >>> import torch
        >>> from metavib.baselines.relation import RelationModule, Relations
        >>> Relations(RelationModule((2, 7, 7), norm="none"), torch.randn(3, 98)).Z.shape
        torch.Size([3, 98])
    """

    def __init__(self, module: RelationModule, c: Float[Tensor, "*b ways m"]) -> None:
        self.module, self.c = module, c

    @property
    def Z(self) -> Float[Tensor, "*b ways m"]:
        """The maps of the classes."""
        return self.c

    def values(self, x: Inputs) -> Float[Tensor, "*b v ways"]:
        """Scores of the query points of x, the features of all points of each task."""
        return self.module(self.c, x)[..., x.n :, :]


@final
class RelationEncoder(Encoder):
    r"""$\hat Z$ is the mean feature map of each class, and the module compares with it.

    Args:
        module: owns the comparison's weights.

    Example:
        >>> from metavib.baselines import relation_net
        >>> from metavib.networks import Conv4
        >>> model = relation_net(Conv4(1, 28, width=8, poolings=2), ways=5, map_shape=(8, 7, 7))
        >>> type(model.encoder).__name__
        'RelationEncoder'
    """

    dirac = True

    def __init__(self, module: RelationModule) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, support: Examples, query: Points, prior: Space, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """A point mass at the classes' maps."""
        phi_t, phi_v = prior.features(support, query)
        if phi_t.shape[-1] != prod(self.module.map_shape):
            raise ValueError(
                f"the relation module takes maps of {' x '.join(map(str, self.module.map_shape))} = "
                f"{prod(self.module.map_shape)} features; the backbone gives {phi_t.shape[-1]}. "
                "Build it with the backbone's map_shape."
            )
        c = class_means(phi_t, support.y, support.mask, likelihood.latents)
        seen = join(support, query)
        return Encoding(Relations(self.module, c), Inputs(torch.cat([phi_t, phi_v], -2), seen.mask, seen.n))


@final
class RelationScores(ClassLikelihood):
    r"""RelationNet's squared error as a likelihood: $\log p = -\sum_n (\sigma(f_n) - [y = n])^2$.

    That is $\log N$ of the one-hot label given $\sigma(f)$, variance 1/2, up to a constant; it is also minus the Brier
    score, whose minimum has $\sigma(f_n) = p(y = n \mid x)$. So the scores are the probabilities once they are
    normalised: $p(y = n) = \sigma(f_n) / \sum_{n'} \sigma(f_{n'})$, and these are what the predictive density is about.

    Args:
        classes: N, the ways of the task.

    Example:
        >>> import torch
        >>> from metavib.baselines import RelationScores
        >>> RelationScores(2).probabilities(torch.tensor([[0.0, 0.0]]))
        tensor([[0.5000, 0.5000]])
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"RelationScores needs at least 2 classes; got {classes}.")
        self.classes = self.latents = classes

    def targets(self, y: Tensor) -> Tensor:
        """+1 in the column of a point's class, -1 in the others."""
        return 2.0 * F.one_hot(y, self.classes).to(torch.get_default_dtype()) - 1.0

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$-\sum_n (\sigma(f_n) - [y = n])^2$."""
        return -(f.sigmoid() - F.one_hot(y, self.classes)).square().sum(-1)

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """Log of the normalised scores, averaged over q."""
        nodes = self.nodes(q, noise)
        log_r = F.logsigmoid(nodes.f)
        log_p = log_r - log_r.logsumexp(-1, keepdim=True)
        return nodes.log_mean_exp(log_p).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def probabilities(self, f: Tensor) -> Tensor:
        r"""$\sigma(f_n) / \sum_{n'} \sigma(f_{n'})$: the scores, normalised to sum to one."""
        return F.logsigmoid(f).softmax(-1)


def relation_net(
    backbone: Backbone,
    ways: int,
    *,
    map_shape: tuple[int, int, int],
    norm: str = "running",
    likelihood: ClassLikelihood | None = None,
) -> Model:
    """RelationNet (Sung et al. 2018): train with beta = 0.

    Args:
        backbone: the network; its features are a flattened map.
        ways: classes of a task.
        map_shape: channels, height and width of that map.
        norm: the relation module's batch-norm encoding.
        likelihood: the squared error of the paper where None; `Softmax(ways)` for the variant with cross-entropy.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.relation_net(networks.Conv4(1, 28, poolings=2), ways=5, map_shape=(64, 7, 7))
        >>> type(model.encoder).__name__, model.dirac
        ('RelationEncoder', True)
    """
    encoder = RelationEncoder(RelationModule(map_shape, norm=norm))
    return Model(Embedding(backbone), encoder, RelationScores(ways) if likelihood is None else likelihood)


def _window(size: int) -> int:
    return 2 if size > 1 else 1


def _finish(x: Float[Tensor, "*b p ways C h w"], norm: TaskNorm | None, inputs: Inputs) -> Tensor:
    """What follows a convolution of pairs: batch-norm, ReLU and pooling."""
    if norm is not None:
        # The classes a point is paired with are positions to the norm: the channels follow the points.
        x = norm(x.movedim(-3, -4), inputs).movedim(-4, -3)
    window = (_window(x.shape[-2]), _window(x.shape[-1]))
    return F.max_pool2d(x.relu().flatten(0, -4), window).unflatten(0, x.shape[:-3])
