"""What an encoder returns: the posterior of each task, and the query points in the space it is defined on."""

from typing import Any, NamedTuple

from torch import Tensor

from metavib.marginals import Marginals
from metavib.posteriors.posterior import Posterior
from metavib.random import Noise


class Encoding(NamedTuple):
    """q(Z | D_t, X): a posterior, and the query inputs as that posterior takes them (features, or raw inputs)."""

    posterior: Posterior
    query: Any

    def kl(self) -> Tensor:
        """KL[q(Z | D_t) || p(Z)], one number a task."""
        return self.posterior.kl()

    def marginals(self, noise: Noise = None) -> Marginals:
        """q(f_v), the latent values at the query points."""
        return self.posterior.marginals(self.query, noise)
