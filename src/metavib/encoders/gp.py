"""GP-VIB: sites at the support points, conditioned on exactly."""

import torch
from torch import Tensor

from metavib.encoders.additive import AdditiveEncoder
from metavib.encoders.sites import FullSites, SimplifiedSites, UnitSites
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import ClassLikelihood, Likelihood, Softmax
from metavib.networks.weights import Weights
from metavib.posteriors.functions import Dual, EachPoint, Primal, posterior
from metavib.posteriors.memory import Sites, TaskMemory
from metavib.posteriors.posterior import Encoding
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples


class GPEncoder(AdditiveEncoder):
    r"""$q(f_v, f_t) = p(f_v \mid f_t)\, q(f_t)$ with $q(f_t) \propto p(f_t) \prod_j N(m_j \mid f_j, s_j)$ (eq. 7).

    Args:
        sites: how support points become sites.

    Example:
        >>> from metavib import encoders
        >>> encoders.GPEncoder(encoders.SimplifiedSites(m=5.0, s=0.13)).dirac
        False
    """

    def forward(
        self,
        support: Examples,
        query: Points,
        prior: FunctionPrior,
        likelihood: Likelihood,
        noise: Noise = None,
        *,
        weights: Weights | None = None,
        weight: Tensor | None = None,
    ) -> Encoding:
        r"""The posterior over functions.

        Args:
            support: the points, of which each gives a site.
            query: where the posterior is asked for.
            prior: over functions.
            likelihood: p(y | f).
            noise: of no use here.
            weights: stand in for the prior's $\theta$ where given.
            weight: how many points each support point counts as, `(..., n)`, above zero; one where None. The product
                of w equal sites $N(m \mid f, s)$ is the site $N(m \mid f, s / w)$, but for a constant.
        """
        if self.in_parts(support, prior, likelihood):
            assert isinstance(prior.kernel, ExplicitKernel)
            memory = self.memory(support, prior, likelihood, weights=weights, weight=weight)
            phi_v = prior.features_of(query, weights)
            return Encoding(Primal(prior.kernel, memory, dtype=phi_v.dtype), phi_v)
        phi_t, phi_v = prior.features(support, query, weights)
        if not prior.each_point:
            found = self.condition(phi_t, support.y, support.mask, prior, likelihood, weight=weight)
            return Encoding(found, phi_v)
        y, mask = (t.expand(phi_t.shape[:-1]) for t in (support.y, support.mask))
        weight = None if weight is None else weight.expand(phi_t.shape[:-1])
        found = self.condition(phi_t, y, mask, prior, likelihood, weight=weight)
        return Encoding(EachPoint(found, query.mask), phi_v)

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
    ) -> Dual | Primal:
        """The posterior of the functions, dual or primal."""
        m, s = self.sites.under(prior.kernel, phi, y, mask, likelihood, weight)
        return posterior(prior.kernel, phi.to(dtype=dtype), mask, Sites(m.to(dtype=dtype), s.to(dtype=dtype)))

    def recall(self, kernel: ExplicitKernel, memory: TaskMemory) -> Primal:
        """The posterior of the classes that have points, under targets +1 and -1."""
        return Primal(kernel, memory.signed())

    def obstacle(self, prior: FunctionPrior, likelihood: Likelihood) -> str | None:
        """As for all additive encoders; and classes must be able to grow."""
        if (known := super().obstacle(prior, likelihood)) is not None:
            return known
        if isinstance(likelihood, ClassLikelihood) and likelihood.latents > 1:
            if not isinstance(likelihood, Softmax) or not isinstance(
                self.sites, SimplifiedSites | FullSites | UnitSites
            ):
                names = f"{type(self.sites).__name__} for {type(likelihood).__name__}"
                return f"{names} are not known to be +1 and -1 times the same number for every class"
        return None
