r"""Feature Transfer and Baseline++ (Chen et al. 2019): learn features on all training classes, then a new head a task.

Both phases are Dirac encodings of the head's weights, $q(w \mid D_t) = \delta(w - \hat w)$, with $\beta = 0$:

1. `CommonHead`: $\hat w$ is learned and the same whatever the support. The bound on mini-batches of all classes
   (`AllWay`) is the ordinary cross-entropy over all training classes.
2. `FittedHead`: $\hat w(D_t)$ is fitted to the support by gradient descent, the features held fixed. Used at
   meta-test only.

A head is applied under weights handed to it, which may carry the tasks in leading dimensions; `fresh` are the ones a
new task starts from. There all classes start alike, where Chen et al. draw a random row for each: what is predicted
of a task then does not depend on how its classes happen to be numbered, nor on a generator.

References:
    Chen, Liu, Kira, Wang, Huang. A Closer Look at Few-shot Classification. arXiv 1904.04232.
"""

from abc import ABC, abstractmethod
from math import sqrt
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from metavib.baselines.embedding import Embedding, PointMass
from metavib.data.augmentations import Transform, unit
from metavib.data.labelled import Labelled
from metavib.encoders.encoder import Encoder
from metavib.encoders.gradient import mean_over_points
from metavib.likelihoods import Likelihood, Softmax
from metavib.model import Model
from metavib.networks import Backbone
from metavib.networks.layers import lift
from metavib.networks.weights import Weights
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise, Stream, draw
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples, Task

FEW, MANY = 2.0, 10.0
"""Scales of the cosine head for up to 200 classes, and for more."""


# Heads


class Head(nn.Module, ABC):
    r"""A family of classifiers on fixed features, $f(\phi; w)$, without weights of its own: they are handed to it.

    Example:
        >>> import torch
        >>> from metavib.baselines.transfer import LinearHead
        >>> head = LinearHead(features=4)
        >>> head(torch.randn(7, 4), head.fresh(classes=3)).shape
        torch.Size([7, 3])
    """

    features: int
    ranks: dict[str, int]
    """How many trailing dimensions of each weight are its own."""

    @abstractmethod
    def initial(self, classes: int) -> Weights:
        """Weights to begin training with: a random row for each class."""

    @abstractmethod
    def fresh(self, classes: int) -> Weights:
        """Weights a new task begins with: the same row for every class."""

    @abstractmethod
    def anew(self) -> "Head":
        """The head to fit to a new task, whose classes are few; it starts where this one says."""

    @abstractmethod
    def forward(self, phi: Float[Tensor, "*b n m"], weights: Weights) -> Float[Tensor, "*b n c"]:
        """The scores of each class."""


@final
class LinearHead(Head):
    r"""$f = W \phi + b$.

    Args:
        features: length of $\phi$.

    Example:
        >>> from metavib.baselines.transfer import LinearHead
        >>> {name: tuple(w.shape) for name, w in LinearHead(4).initial(classes=3).items()}
        {'weight': (3, 4), 'bias': (3,)}
    """

    ranks = {"weight": 2, "bias": 1}

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def initial(self, classes: int) -> Weights:
        r"""W uniform in $\pm 1/\sqrt m$ as PyTorch draws it, b = 0."""
        return {"weight": nn.Linear(self.features, classes).weight.detach(), "bias": torch.zeros(classes)}

    def fresh(self, classes: int) -> Weights:
        """Zero: any common row gives the same probabilities."""
        return {"weight": torch.zeros(classes, self.features), "bias": torch.zeros(classes)}

    def anew(self) -> "LinearHead":
        """Nothing depends on the number of classes."""
        return self

    def forward(self, phi: Tensor, weights: Weights) -> Tensor:
        r"""$W \phi + b$ under the given weights."""
        return phi @ weights["weight"].mT + weights["bias"].unsqueeze(-2)


@final
class CosineHead(Head):
    r"""$f_n = \gamma\, g_n \cos(\phi, v_n)$: a direction and a learned norm for each class (weight normalisation).

    $g_n v_n / |v_n|$ is the class's weight vector; Chen et al.'s code learns $g_n$ although their text says cosine.

    Args:
        features: length of $\phi$.
        scale: $\gamma$: `FEW` in their code, `MANY` for more than 200 classes.

    Example:
        >>> from metavib.baselines.transfer import CosineHead
        >>> {name: tuple(w.shape) for name, w in CosineHead(4).initial(classes=3).items()}
        {'v': (3, 4), 'g': (3,)}
    """

    ranks = {"v": 2, "g": 1}
    common: Tensor

    def __init__(self, features: int, *, scale: float = FEW) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"the scale of the cosines must be positive; got {scale}.")
        self.features, self.scale = features, scale
        # Random and not, say, all ones: features that are all positive would lie along that direction, and the gradient
        # has no part along v. Saved with the model, so that its predictions are too.
        self.register_buffer("common", _uniform(1, features))

    def initial(self, classes: int) -> Weights:
        """The directions v as PyTorch draws the rows of a linear layer, and g their norms."""
        v = _uniform(classes, self.features)
        return {"v": v, "g": v.norm(dim=-1)}

    def fresh(self, classes: int) -> Weights:
        """One random direction for all classes, and its norm."""
        v = self.common.expand(*self.common.shape[:-2], classes, -1)
        return {"v": v, "g": v.norm(dim=-1)}

    def anew(self) -> "CosineHead":
        """The same start with the scale for few classes."""
        head = CosineHead(self.features, scale=FEW)
        head.common = self.common
        return head

    def forward(self, phi: Tensor, weights: Weights) -> Tensor:
        r"""$\gamma\, g_n \cos(\phi, v_n)$ under the given weights."""
        directions = F.normalize(weights["v"], dim=-1)
        return self.scale * (F.normalize(phi, dim=-1, eps=1e-8) @ directions.mT) * weights["g"].unsqueeze(-2)


def _uniform(rows: int, features: int) -> Tensor:
    return torch.empty(rows, features).uniform_(-1 / sqrt(features), 1 / sqrt(features))


# The two phases


@final
class HeadWeights(PointMass):
    r"""$f(x) = \mathrm{head}(\phi(x); \hat w)$.

    Args:
        head: the family of classifiers.
        weights: $\hat w$, with the tasks in leading dimensions or shared by all.
        batch_shape: shape of the tasks.

    Example:
        >>> import torch
        >>> from metavib.baselines.transfer import HeadWeights, LinearHead
        >>> head = LinearHead(4)
        >>> HeadWeights(head, head.fresh(3), torch.Size([2])).values(torch.randn(2, 7, 4)).shape
        torch.Size([2, 7, 3])
    """

    def __init__(self, head: Head, weights: Weights, batch_shape: torch.Size) -> None:
        self.head, self.weights, self.batch_shape = head, weights, batch_shape

    @property
    def Z(self) -> Float[Tensor, "*b rows m"]:
        """The rows of the classes."""
        rows = next(w for name, w in self.weights.items() if self.head.ranks[name] == 2)
        return rows.expand(*self.batch_shape, *rows.shape[-2:])

    def values(self, x: Float[Tensor, "*b v m"]) -> Float[Tensor, "*b v c"]:
        """The scores of the classes at features x, under the task's weights."""
        return self.head(x, self.weights)


@final
class CommonHead(Encoder):
    r"""$\hat w$ is learned, and the same whatever the support: the first phase.

    Args:
        head: the family of classifiers.
        classes: how many classes there are to tell apart in training.

    Example:
        >>> from metavib.baselines.transfer import CommonHead, LinearHead
        >>> sum(p.numel() for p in CommonHead(LinearHead(4), classes=10).parameters())
        50
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
    follows the gradient of the whole support, which is what a mini-batch's is on average: as many steps of the same
    size, without the noise, the same at every call, and all tasks at once.

    Example:
        >>> from metavib.baselines import SGD
        >>> SGD(epochs=20).rate
        0.01
    """

    epochs: int = 100
    batch: int = 4
    rate: float = 0.01
    momentum: float = 0.9
    dampening: float = 0.9
    decay: float = 1e-3


@final
class FittedHead(Encoder):
    r"""$\hat w(D_t)$ is fitted to the support's mean log likelihood, from the head's fresh weights: the second phase.

    The features are held fixed, so that no gradient reaches the network: this encoder is for meta-testing.

    Args:
        head: the family of classifiers.
        sgd: step size, momentum and the rest.

    Example:
        >>> import torch
        >>> from metavib.baselines import SGD
        >>> from metavib.baselines.transfer import FittedHead, LinearHead
        >>> from metavib.likelihoods import Softmax
        >>> from metavib.tasks import examples
        >>> phi, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
        >>> w = FittedHead(LinearHead(1), SGD(rate=1.0)).fit(phi, examples(phi, y), Softmax(2))
        >>> LinearHead(1)(phi, w).argmax(-1)  # it has learned its support
        tensor([0, 1])
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


def feature_transfer(backbone: Backbone, classes: int) -> Model:
    """Feature Transfer, phase 1: a linear head over all training classes. Train on `AllWay` with beta = 0.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.feature_transfer(networks.Conv4(1, 28), classes=64)
        >>> type(model.encoder).__name__, model.dirac
        ('CommonHead', True)
    """
    return Model(Embedding(backbone), CommonHead(LinearHead(backbone.features), classes), Softmax(classes))


def baseline_pp(backbone: Backbone, classes: int) -> Model:
    """Baseline++ (Chen et al. 2019), phase 1: a cosine head over all classes. Train on `AllWay` with beta = 0.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.baseline_pp(networks.Conv4(1, 28), classes=64)
        >>> type(model.encoder).__name__, model.dirac
        ('CommonHead', True)
    """
    head = CosineHead(backbone.features, scale=FEW if classes <= 200 else MANY)
    return Model(Embedding(backbone), CommonHead(head, classes), Softmax(classes))


def fine_tuned(trained: Model, ways: int, *, sgd: SGD | None = None) -> Model:
    """Phase 2 of Feature Transfer and Baseline++: the trained features, a new head fitted to each task.

    Args:
        trained: a model of phase 1, whose network is shared, not copied.
        ways: classes of a new task.
        sgd: how the head is fitted; as Chen et al. do where None.

    Example:
        >>> from metavib import baselines, networks
        >>> trained = baselines.baseline_pp(networks.Conv4(1, 28), classes=64)  # to be trained on all classes
        >>> model = baselines.fine_tuned(trained, ways=5)
        >>> model.prior is trained.prior
        True
    """
    if not isinstance(trained.encoder, CommonHead):
        raise TypeError(
            "fine_tuned takes a model made by feature_transfer or baseline_pp; "
            f"got one whose encoder is {type(trained.encoder).__name__}."
        )
    return Model(trained.prior, FittedHead(trained.encoder.head.anew(), sgd or SGD()), Softmax(ways))


# Tasks of the first phase


@final
class AllWay:
    """Mini-batches of all training classes, as tasks with an empty support: what the first phase trains on.

    The query of such a task is `batch_size` images of any class with their global labels. Images are drawn
    independently, with replacement, where a loader would shuffle: an epoch has no meaning for a source of tasks.
    Without a support, batch-norm as `support+point` would normalise every image by itself: train on these with
    `running` or `transductive`.

    Args:
        data: the images, on the device to sample on.
        batch_size: images in a batch; 16 in Chen et al.
        transform: what turns uint8 images into floats.

    Example:
        >>> import torch
        >>> from metavib.baselines import AllWay
        >>> from metavib.data import labelled
        >>> data = labelled(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), [0, 0, 1, 1, 2, 2], ["a", "b", "c"])
        >>> task = AllWay(data, batch_size=4).sample((), torch.Generator())
        >>> task.support.size, task.query.size
        (0, 4)
    """

    def __init__(self, data: Labelled, *, batch_size: int = 16, transform: Transform = unit) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
        if not len(data.labels):
            raise ValueError("there must be at least one image to draw from; got an empty set.")
        self.data, self.batch_size, self.transform = data, batch_size, transform

    @property
    def classes(self) -> int:
        """How many classes there are to tell apart."""
        return len(self.data.names)

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Independent mini-batches in leading dimensions of the given shape; `()` is one."""
        images, labels, _ = self.data
        index = draw(torch.randint, len(labels), (*shape, self.batch_size), stream=generator)
        index = index.to(images.device)
        x = self.transform(images.index_select(0, index.flatten()), generator)
        x, y = x.reshape(*index.shape, *x.shape[1:]), labels[index]
        mask = torch.ones_like(y, dtype=torch.bool)
        nothing = [slice(None)] * len(shape) + [slice(0)]
        return Task(Examples(x[*nothing], y[*nothing], mask[*nothing]), Examples(x, y, mask))
