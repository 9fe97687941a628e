"""The hand-over between training and prediction: the bound asks a posterior for kl(), the user for update()."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from metavib.marginals import Marginals
from metavib.random import Noise


class Posterior(ABC):
    """q(Z | D_t) of each task in a batch."""

    @abstractmethod
    def kl(self) -> Tensor:
        """KL[q(Z) || p(Z)], one number a task; infinite where q is not absolutely continuous to p."""

    @abstractmethod
    def marginals(self, x: Any, noise: Noise = None) -> Marginals:
        """q(f(x)) at each point, for x in the space the posterior's functions are defined on."""
