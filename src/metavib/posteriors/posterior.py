"""What an encoder returns: the posterior of each task, and the query points in the space it is defined on."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor

from metavib.marginals import Marginals
from metavib.random import Noise


class Posterior(ABC):
    """q(Z | D_t) of each task in a batch: the hand-over between training and prediction.

    The bound asks a posterior for `kl()`, the user for predictions at new points.

    Example:
        >>> import torch
        >>> from metavib import kernels, methods, networks
        >>> from metavib.encoders import ExactSites
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.posteriors import Posterior
        >>> from metavib.tasks import examples
        >>> from metavib.tasks.inputs import Points
        >>> model = methods.gp_vib(networks.MLP(1, (8,)), kernels.Linear(), ExactSites(), Gaussian(0.1))
        >>> query = Points(torch.ones(2, 1), torch.ones(2, dtype=torch.bool))
        >>> posterior, phi = model.encode(examples(torch.zeros(3, 1), torch.ones(3)), query)
        >>> isinstance(posterior, Posterior), bool(posterior.kl() > 0), posterior.marginals(phi).mean.shape
        (True, True, torch.Size([2, 1]))
    """

    @abstractmethod
    def kl(self) -> Tensor:
        """KL[q(Z) || p(Z)], one number a task; infinite where q is not absolutely continuous to p."""

    @abstractmethod
    def marginals(self, x: Any, noise: Noise = None) -> Marginals:
        """q(f(x)) at each point, for x in the space the posterior's functions are defined on."""


class Encoding(NamedTuple):
    """q(Z | D_t, X): a posterior, and the query inputs as that posterior takes them (features, or raw inputs).

    Example:
        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> from metavib.tasks import examples
        >>> from metavib.tasks.inputs import points
        >>> parts = networks.MLP(1, (8,)), kernels.Linear(), encoders.ExactSites(), likelihoods.Gaussian(0.1)
        >>> model = methods.gp_vib(*parts)
        >>> q = model.encode(examples([0.0, 1.0], [0.5, -0.5]), points(examples([2.0, 3.0], [0.0, 0.0])))
        >>> q.marginals().mean.shape, q.kl().shape  # at two query points; one number for the task
        (torch.Size([2, 1]), torch.Size([]))
    """

    posterior: Posterior
    query: Any

    def kl(self) -> Tensor:
        """KL[q(Z | D_t) || p(Z)], one number a task."""
        return self.posterior.kl()

    def marginals(self, noise: Noise = None) -> Marginals:
        """q(f_v), the latent values at the query points."""
        return self.posterior.marginals(self.query, noise)
