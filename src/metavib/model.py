"""A meta learner: a prior, an encoder and a likelihood."""

from torch import nn

from metavib.encoders.encoder import Encoder
from metavib.likelihoods import Likelihood
from metavib.marginals import Marginals
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points, points
from metavib.tasks.task import Examples, Task


class Model(nn.Module):
    """p(Z), q(Z | D_t) and p(y | f): all that a method is.

    Args:
        prior: owns the network's weights and the kernel; of the kind the encoder expects.
        encoder: owns what turns a support set into a posterior.
        likelihood: owns the noise.

    Example:
        >>> from metavib import encoders, kernels, likelihoods, networks, priors
        >>> from metavib.model import Model
        >>> prior = priors.FunctionPrior(networks.MLP(1, (40, 40)), kernels.Linear())
        >>> model = Model(prior, encoders.GPEncoder(encoders.ExactSites()), likelihoods.Gaussian(0.1))  # GP-VIB
        >>> model.dirac
        False
    """

    def __init__(self, prior: nn.Module, encoder: Encoder, likelihood: Likelihood) -> None:
        super().__init__()
        self.prior, self.encoder, self.likelihood = prior, encoder, likelihood

    @property
    def dirac(self) -> bool:
        """Whether the encoder is a point mass, so that only beta = 0 makes sense."""
        return self.encoder.dirac

    def encode(self, support: Examples, query: Points, noise: Noise = None) -> Encoding:
        """q(Z | D_t, X)."""
        return self.encoder(support, query, self.prior, self.likelihood, noise)

    def forward(self, task: Task, noise: Noise = None) -> Marginals:
        """q(f) at the query points of each task."""
        return self.encode(task.support, points(task.query), noise).marginals(noise)
