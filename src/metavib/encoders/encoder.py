"""An encoder is a module whose forward returns a posterior."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from metavib.likelihoods import Likelihood
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples


class Encoder(nn.Module, ABC):
    r"""$q(Z \mid D_t, X)$: from support set and query inputs to a posterior (eq. 4).

    Prior and likelihood are arguments: an encoder owns only what turns examples into a posterior.
    """

    dirac: bool = False
    """Whether the posterior is a point mass, whose KL is infinite."""

    @abstractmethod
    def forward(
        self, support: Examples, query: Points, prior: Any, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """The posterior of each task. The query's outputs are not among the arguments, by design."""
