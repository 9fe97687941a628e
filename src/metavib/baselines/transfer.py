r"""Feature Transfer and Baseline++ (Chen et al. 2019): learn features on all training classes, then a new head a task.

Both phases are Dirac encodings of the head's weights, $q(w \mid D_t) = \delta(w - \hat w)$, with $\beta = 0$:

1. `CommonHead`: $\hat w$ is learned and the same whatever the support. The bound on the mini-batches of
   `metavib.baselines.all_way` is the ordinary cross-entropy over all training classes.
2. `FittedHead`: $\hat w(D_t)$ is fitted to the support by gradient descent, the features held fixed. Used at
   meta-test only.
"""

from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from metavib.baselines.embedding import Embedding, PointMass
from metavib.baselines.heads import Head
from metavib.encoders.encoder import Encoder
from metavib.encoders.gradient import mean_over_points
from metavib.likelihoods import Likelihood
from metavib.networks.layers import lift
from metavib.networks.weights import Weights
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples


@final
class HeadWeights(PointMass):
    r"""$f(x) = \mathrm{head}(\phi(x); \hat w)$.

    Args:
        head: the classifier.
        weights: $\hat w$, with the tasks in leading dimensions or shared by all.
        batch_shape: the tasks.
    """

    def __init__(self, head: Head, weights: Weights, batch_shape: torch.Size) -> None:
        self.head, self.weights, self.batch_shape = head, weights, batch_shape

    @property
    def Z(self) -> Float[Tensor, "*b rows m"]:
        """The rows of the classes."""
        rows = next(w for name, w in self.weights.items() if self.head.ranks[name] == 2)
        return rows.expand(*self.batch_shape, *rows.shape[-2:])

    def values(self, x: Float[Tensor, "*b v m"]) -> Float[Tensor, "*b v c"]:
        """The head at features x."""
        return self.head(x, self.weights)


@final
class CommonHead(Encoder):
    r"""$\hat w$ learned, whatever the support: phase 1.

    Args:
        head: the family of classifiers.
        classes: how many classes there are to tell apart in training.
    """

    dirac = True

    def __init__(self, head: Head, classes: int) -> None:
        super().__init__()
        self.head = head
        self.weights = nn.ParameterDict({name: nn.Parameter(w) for name, w in head.initial(classes).items()})

    def forward(
        self, support: Examples, query: Points, prior: Embedding, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """The same point mass for every task."""
        _, phi_v = prior.features(support, query)
        return Encoding(HeadWeights(self.head, dict(self.weights.items()), support.batch_shape), phi_v)


class SGD(NamedTuple):
    """How a new head is fitted; the defaults are Chen et al.'s.

    `epochs` passes over the support in mini-batches of `batch` make `epochs * ceil(n / batch)` steps. Each step here
    follows the gradient of the whole support, which is what a mini-batch's is on average: as many steps of
    the same size, without the noise, the same at every call, and all tasks at once.
    """

    epochs: int = 100
    batch: int = 4
    rate: float = 0.01
    momentum: float = 0.9
    dampening: float = 0.9
    decay: float = 1e-3


@final
class FittedHead(Encoder):
    r"""$\hat w(D_t)$ fitted to the support's mean log likelihood, from the head's fresh weights: phase 2.

    The features are held fixed, so no gradient reaches the network: this encoder is for meta-testing.

    Args:
        head: the family of classifiers.
        sgd: step size, momentum and the rest.
    """

    dirac = True

    def __init__(self, head: Head, sgd: SGD = SGD()) -> None:  # noqa: B008 - a NamedTuple cannot change
        super().__init__()
        if sgd.epochs < 0 or sgd.batch < 1:
            raise ValueError(f"epochs must be >= 0 and batch >= 1; got {sgd.epochs} and {sgd.batch}.")
        self.head, self.sgd = head, sgd

    def forward(
        self, support: Examples, query: Points, prior: Embedding, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """A point mass at each task's own head."""
        phi_t, phi_v = (phi.detach() for phi in prior.features(support, query))
        weights = self.fit(phi_t, support, likelihood)
        return Encoding(HeadWeights(self.head, weights, support.batch_shape), phi_v)

    @torch.no_grad()
    def fit(self, phi: Float[Tensor, "*b n m"], support: Examples, likelihood: Likelihood) -> Weights:
        """The weights of each task's head after its own number of steps.

        Rows of weights never leave the span of the support's features and of the row they start from, and descent does
        not depend on the basis: where there are fewer points than features it runs in coordinates of that span.
        """
        w = self._fresh(phi, likelihood.latents)
        if support.size + 1 >= phi.shape[-1]:
            return self._descend(w, phi, support, likelihood)
        rows = next(name for name, rank in self.head.ranks.items() if rank == 2)
        Q = torch.linalg.qr(torch.cat([phi, w[rows][..., :1, :]], -2).mT).Q
        w = self._descend({**w, rows: w[rows] @ Q}, phi @ Q, support, likelihood)
        return {**w, rows: w[rows] @ Q.mT}

    def _descend(self, w: Weights, phi: Tensor, support: Examples, likelihood: Likelihood) -> Weights:
        def loss(w: Weights) -> Tensor:
            return -mean_over_points(likelihood.log_prob(self.head(phi, w), support.y), support.mask).sum()

        sgd, gradient = self.sgd, torch.func.grad(loss)  # tasks share no weights: no cross terms in the sum
        steps = sgd.epochs * -(-support.mask.sum(-1) // sgd.batch)
        velocity: Weights = {}
        for k in range(sgd.epochs * -(-support.size // sgd.batch)):
            slope = {name: g + sgd.decay * w[name] for name, g in gradient(w).items()}
            # torch.optim.SGD's convention: the first velocity is the slope, undamped.
            velocity = {
                name: sgd.momentum * velocity[name] + (1 - sgd.dampening) * g if k else g for name, g in slope.items()
            }
            going = k < steps  # a task's padding earns it no further steps
            w = {name: p - sgd.rate * velocity[name] * lift(going, self.head.ranks[name]) for name, p in w.items()}
        return w

    def _fresh(self, phi: Tensor, classes: int) -> Weights:
        def expand(p: Tensor, rank: int) -> Tensor:
            return p.to(phi).expand(*phi.shape[:-2], *p.shape[p.ndim - rank :])

        return {name: expand(p, self.head.ranks[name]) for name, p in self.head.fresh(classes).items()}
