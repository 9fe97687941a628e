r"""Classifiers on fixed features: the last layer of Feature Transfer and of Baseline++.

A head is applied under weights handed to it, which may carry the tasks in leading dimensions; `fresh` are the ones a
new task starts from. There all classes start alike, where Chen et al. draw a random row for each: what is predicted
of a task then does not depend on how its classes happen to be numbered, nor on a generator.

References:
    Chen, Liu, Kira, Wang, Huang. A Closer Look at Few-shot Classification. arXiv 1904.04232.
"""

from abc import ABC, abstractmethod
from math import sqrt
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from metavib.networks.weights import Weights

FEW, MANY = 2.0, 10.0
"""Scales of the cosine head for up to 200 classes, and for more."""


class Head(nn.Module, ABC):
    r"""A family of classifiers $f(\phi; w)$, without weights of its own."""

    features: int
    ranks: dict[str, int]
    """How many trailing dimensions of each weight are its own."""

    @abstractmethod
    def initial(self, classes: int) -> Weights:
        """Weights to begin training with: a random row a class."""

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
        """The affine map."""
        return phi @ weights["weight"].mT + weights["bias"].unsqueeze(-2)


@final
class CosineHead(Head):
    r"""$f_n = \gamma\, g_n \cos(\phi, v_n)$: a direction and a learned norm a class (weight normalisation).

    $g_n v_n / |v_n|$ is the class's weight vector; Chen et al.'s code learns $g_n$ although their text says cosine.

    Args:
        features: length of $\phi$.
        scale: $\gamma$: `FEW` in their code, `MANY` for more than 200 classes.
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
        """V as PyTorch draws a linear layer's rows, g their norms."""
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
        """Scaled cosines."""
        directions = F.normalize(weights["v"], dim=-1)
        return self.scale * (F.normalize(phi, dim=-1, eps=1e-8) @ directions.mT) * weights["g"].unsqueeze(-2)


def _uniform(rows: int, features: int) -> Tensor:
    return torch.empty(rows, features).uniform_(-1 / sqrt(features), 1 / sqrt(features))
