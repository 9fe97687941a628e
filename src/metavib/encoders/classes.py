"""Classes that are Gaussian in the space of embeddings: what their points say of them, and nothing that is learned."""

from math import log
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavib.encoders.additive import AdditiveEncoder
from metavib.encoders.sites import UnitSites
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import Likelihood, Softmax
from metavib.posteriors.classes import GaussianClasses, PrimalClasses, Scatter, classes
from metavib.posteriors.memory import TaskMemory
from metavib.posteriors.posterior import Encoding
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples


@final
class ClassEncoder(AdditiveEncoder):
    r"""$q(w_n \mid D_t) \propto p(w_n) \prod_{j: y_j = n} N(z_j \mid w_n, \sigma^2 I)$, exactly (eq. 35).

    Four numbers are learned: how many points of a class the prior of its mean counts for ($\kappa$), the variance of
    points around it ($\sigma^2$), how many points of a task that counts for ($\nu$), and d (`GaussianClasses`). What
    they say holds for any number of points, also where classes have different numbers of them.

    Args:
        kappa: $\kappa$ at the start.
        variance: $\sigma^2$ at the start.
        nu: $\nu$ at the start.
        dimensions: d at the start.

    Example:
        >>> from metavib.encoders import ClassEncoder
        >>> {name: round(value.item(), 2) for name, value in ClassEncoder().scatter._asdict().items()}
        {'kappa': 0.5, 'variance': 0.04, 'nu': 150.0, 'dimensions': 12.0}
    """

    def __init__(
        self, kappa: float = 0.5, *, variance: float = 0.04, nu: float = 150.0, dimensions: float = 12.0
    ) -> None:
        super().__init__(UnitSites())
        self.log_kappa = nn.Parameter(torch.tensor(log(kappa)))
        self.log_variance = nn.Parameter(torch.tensor(log(variance)))
        self.log_nu = nn.Parameter(torch.tensor(log(nu)))
        self.log_dimensions = nn.Parameter(torch.tensor(log(dimensions)))

    @property
    def scatter(self) -> Scatter:
        """What is known of classes before a task is."""
        logs = self.log_kappa, self.log_variance, self.log_nu, self.log_dimensions
        return Scatter(*(value.exp() for value in logs))

    def forward(
        self,
        support: Examples,
        query: Points,
        prior: FunctionPrior,
        likelihood: Likelihood,
        noise: Noise = None,
        *,
        weight: Tensor | None = None,
    ) -> Encoding:
        """The posterior over the classes.

        Args:
            support: the points.
            query: where predictions are asked for.
            prior: its network and explicit kernel make embeddings.
            likelihood: softmax, which makes Bayes' rule of densities.
            noise: of no use here.
            weight: how many points each support point counts as; one where None.
        """
        if (known := _unsuitable(prior, likelihood)) is not None:
            raise TypeError(f"Gaussian classes cannot be learned: {known}.")
        assert isinstance(prior.kernel, ExplicitKernel)
        if self.in_parts(support, prior, likelihood):
            memory = self.memory(support, prior, likelihood, by_class=True, weight=weight)
            phi_v = prior.features_of(query)
            return Encoding(PrimalClasses(prior.kernel, memory, self.scatter, dtype=phi_v.dtype), phi_v)
        phi_t, phi_v = prior.features(support, query)
        found = self.condition(phi_t, support.y, support.mask, prior, likelihood, weight=weight)
        return Encoding(found, phi_v)

    def condition(
        self,
        phi: Tensor,
        y: Tensor,
        mask: Tensor,
        prior: FunctionPrior,
        likelihood: Likelihood,
        *,
        dtype: torch.dtype | None = None,
        weight: Tensor | None = None,
    ) -> GaussianClasses:
        """The posterior of the classes, dual or primal; those without points are where the prior has them."""
        assert isinstance(prior.kernel, ExplicitKernel)
        phi = phi.to(dtype=dtype)
        Y = (F.one_hot(y, likelihood.latents) * mask.unsqueeze(-1)).to(phi.dtype)
        Y = Y if weight is None else Y * weight.unsqueeze(-1)
        return classes(prior.kernel, phi, Y, self.scatter)

    def recall(self, kernel: ExplicitKernel, memory: TaskMemory) -> GaussianClasses:
        """The posterior of all classes, those without points among them."""
        return PrimalClasses(kernel, memory.sums, self.scatter)

    def obstacle(self, prior: FunctionPrior, likelihood: Likelihood) -> str | None:
        """As for all additive encoders; and outputs must be classes."""
        return super().obstacle(prior, likelihood) or _unsuitable(prior, likelihood)


def _unsuitable(prior: FunctionPrior, likelihood: Likelihood) -> str | None:
    """What Gaussian classes cannot do without."""
    if not isinstance(likelihood, Softmax):
        return f"each class needs a latent value of its own, as under Softmax, and {type(likelihood).__name__} has none"
    if not isinstance(prior.kernel, ExplicitKernel):
        return f"classes lie among embeddings, and the kernel {type(prior.kernel).__name__} has none of finite size"
    return "the support has other features for each query point" if prior.each_point else None
