"""The bound averaged over several splits of a task (eq. 30): more of it from the same features.

Which images of a task are its support is a matter of chance, and the chance is drawn after the network: features of a
point depend on the task's points, not on their roles. So one pass through the network serves several splits into
support and query, at the price of the GP algebra alone. With one shot of 17 images in each class, each image is the
support once and a query sixteen times. The average is over what the expected bound averages over anyway; its gradient
is the same in the mean, and less noisy.

Classes may have different numbers of support points, too: then splits go from as few of each class to all numbers up to
the largest, and what is not in the support of a split is a query of it.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from metavib.baselines.embedding import Embedding
from metavib.encoders.encoder import Encoder
from metavib.kernels import Kernel
from metavib.likelihoods import ClassLikelihood, Likelihood
from metavib.objective import Bound, Objective
from metavib.posteriors.posterior import Encoding
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Points, points
from metavib.tasks.task import Examples, Task


@final
@dataclass(frozen=True)
class Known:
    """A prior over functions of features that are there already: the inputs of its tasks are the features.

    Args:
        kernel: compares features; None for methods that have no prior, such as ProtoNet.

    Example:
        >>> from metavib.kernels import Linear
        >>> from metavib.training.resplit import Known
        >>> Known(Linear()).kernel
        Linear()
    """

    kernel: Kernel | None

    @property
    def each_point(self) -> bool:
        """Features of the support are the same whatever the query point."""
        return False

    def features(self, support: Examples, query: Points, weights: Any = None) -> tuple[Tensor, Tensor]:
        """The inputs themselves."""
        return support.x, query.x


@final
@dataclass(frozen=True)
class OnFeatures:
    """A model of tasks whose inputs are features: the encoder and likelihood of a model, without its network.

    Args:
        prior: over functions of features.
        encoder: the model's own.
        likelihood: the model's own.

    Example:
        >>> from metavib.encoders import ExactSites, GPEncoder
        >>> from metavib.kernels import Linear
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.training.resplit import Known, OnFeatures
        >>> OnFeatures(Known(Linear()), GPEncoder(ExactSites()), Gaussian()).dirac
        False
    """

    prior: Known
    encoder: Encoder
    likelihood: Likelihood

    @property
    def dirac(self) -> bool:
        """Whether the encoder is a point mass."""
        return self.encoder.dirac

    def encode(self, support: Examples, query: Points, noise: Noise = None) -> Encoding:
        """q(f | D_t), by the model's own encoder."""
        return self.encoder(support, query, self.prior, self.likelihood, noise)


@final
@dataclass(frozen=True)
class OverSplits:
    """An objective averaged over splits of each task.

    Args:
        objective: that of one split.
        splits: how many splits; no more than make each point a support point once.
        least: the fewest support points of a class, where classes have different numbers of them.

    Example:
        >>> import torch
        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> from metavib.objective import vib
        >>> from metavib.tasks.sinusoid import Sinusoids
        >>> from metavib.training.resplit import OverSplits
        >>> parts = kernels.Linear(), encoders.ExactSites(), likelihoods.Gaussian()
        >>> model = methods.gp_vib(networks.MLP(1, (8,)), *parts)
        >>> tasks = Sinusoids(shots=5, queries=10).sample((4,), torch.Generator())
        >>> OverSplits(vib, 3)(model, tasks, beta=1.0).value.shape  # still one number for each task
        torch.Size([4])
    """

    objective: Objective
    splits: int
    least: int | None = None

    def __call__(self, model: Any, task: Task, *, beta: float, noise: Noise = None) -> Bound:
        """Terms of each task, averaged; the task must have as many slots for points of each class."""
        prior, likelihood = model.prior, model.likelihood
        assert isinstance(prior, FunctionPrior | Embedding)
        kernel = prior.kernel if isinstance(prior, FunctionPrior) else None
        phi_t, phi_v = prior.features(task.support, points(task.query))
        known = Task(task.support._replace(x=phi_t), task.query._replace(x=phi_v))
        classes = likelihood.classes if isinstance(likelihood, ClassLikelihood) else 1
        of_splits = self.objective(
            OnFeatures(Known(kernel), model.encoder, likelihood),
            resplit(known, self.splits, classes=classes, least=self.least),
            beta=beta,
            noise=noise,
        )
        return Bound(*(term.mean(-1) for term in of_splits))


def resplit(task: Task, splits: int, *, classes: int = 1, least: int | None = None) -> Task:
    """Each task of vectors split anew, `(..., splits, n, m)`.

    Where all classes keep as many support points as they have, the first split is the task as it came.

    Args:
        task: points of the same class (slot) next to each other, as many of each in the support, and in the query.
        splits: how many.
        classes: how many of them there are; 1 where any point may be exchanged with any other.
        least: the fewest support points of a class, where classes are to have different numbers of them. In the first
            split all have so few; in the next these and one more, in turn; and so on, up to as many as there are.
    """
    n, v = (examples.size // classes for examples in task)
    axis = task.query.y.ndim - 1
    if splits * (n if least is None else 1) > n + v:
        raise ValueError(
            f"a task with {n} support and {v} query points (of each class) can be split {(n + v) // max(n, 1)} times "
            f"with every point in the support once; got {splits} splits."
        )
    step, fewest = min(n, (n + v) // splits), n if least is None else least

    def split(support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        together = torch.cat([t.unflatten(axis, (classes, -1)) for t in (support, query)], axis + 1)
        rolled = torch.stack([together.roll(-step * i, axis + 1) for i in range(splits)], axis)
        first, others = rolled.narrow(axis + 2, 0, n), rolled.narrow(axis + 2, fewest, n + v - fewest)
        return first.flatten(axis + 1, axis + 2), others.flatten(axis + 1, axis + 2)

    columns = [split(t, q) for t, q in zip(*task, strict=True)]
    support, query = (Examples(*parts) for parts in zip(*columns, strict=True))
    if least is None:
        return Task(support, query)
    positions = torch.arange(n + v, device=query.y.device)
    chosen = positions < _numbers(splits, classes, least, n, device=positions.device).unsqueeze(-1)
    masks = chosen[..., :n].flatten(-2), ~chosen[..., least:].flatten(-2)
    return Task(*(side._replace(mask=side.mask & mask) for side, mask in zip((support, query), masks, strict=True)))


def _numbers(splits: int, classes: int, least: int, most: int, *, device: torch.device) -> Tensor:
    """How many support points each class has in each split `(splits, classes)`."""
    each, larger = torch.arange(classes, device=device), torch.arange(splits, device=device).unsqueeze(-1)
    return least + each % (larger % (most - least + 1) + 1)
