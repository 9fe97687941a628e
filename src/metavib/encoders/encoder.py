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

    Example:
        >>> from metavib.encoders import Encoder, ExactSites, GPEncoder
        >>> encoder = GPEncoder(ExactSites())
        >>> isinstance(encoder, Encoder), encoder.dirac
        (True, False)
    """

    dirac: bool = False
    """Whether the posterior is a point mass, whose KL is infinite."""

    @abstractmethod
    def forward(
        self, support: Examples, query: Points, prior: Any, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """The posterior of each task. The query's outputs are not among the arguments, by design."""

    def obstacle(self, prior: Any, likelihood: Likelihood) -> str | None:
        """Why points cannot be added to what this encoder made of others; None where they can.

        This is the one rule for what has a memory of constant size (THEORY.md, section 5): a long support is encoded
        part by part by it, and a learner keeps a task's memory or its points by it.
        """
        return (
            f"{type(self).__name__} encodes all support points together, and a new one changes what became of the old"
        )
