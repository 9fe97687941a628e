"""GP-VIB: sites at the support points, conditioned on exactly."""

import torch
import torch.nn.functional as F
from torch import Tensor

from metavib.encoders.encoder import Encoder
from metavib.encoders.sites import FullSites, SimplifiedSites, SiteEncoder
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import ClassLikelihood, Likelihood, Softmax
from metavib.networks.weights import Weights
from metavib.posteriors.functions import Dual, EachPoint, Primal, posterior
from metavib.posteriors.memory import Memory, Sites, memorise
from metavib.posteriors.posterior import Encoding
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

WIDEST = 2048  # features of which a memory is kept: it has a number for each pair of them
PART = 300  # support points of a task that go through the network at a time where no gradient is wanted


class GPEncoder(Encoder):
    r"""$q(f_v, f_t) = p(f_v \mid f_t)\, q(f_t)$ with $q(f_t) \propto p(f_t) \prod_j N(m_j \mid f_j, s_j)$ (eq. 7).

    Args:
        sites: how support points become sites.

    Example:
        >>> from metavib import encoders
        >>> encoders.GPEncoder(encoders.SimplifiedSites(m=5.0, s=0.13)).dirac
        False
    """

    def __init__(self, sites: SiteEncoder) -> None:
        super().__init__()
        self.sites = sites

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
        if support.size > PART and not torch.is_grad_enabled() and self.obstacle(prior, likelihood) is None:
            assert isinstance(prior.kernel, ExplicitKernel)
            memory = self.memory(support, prior, likelihood, weights=weights, part=PART, weight=weight)
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
        """The posterior given points by their features, in the cheaper of its two forms.

        Args:
            phi: features `(..., n, m)`.
            y: outputs `(..., n)`.
            mask: which points are real.
            prior: over functions of the features.
            likelihood: p(y | f).
            dtype: of features and sites from here on; their own where None.
            weight: how many points each counts as; one where None.
        """
        m, s = self.sites.under(prior.kernel, phi, y, mask, likelihood, weight)
        return posterior(prior.kernel, phi.to(dtype=dtype), mask, Sites(m.to(dtype=dtype), s.to(dtype=dtype)))

    def memory(
        self,
        support: Examples,
        prior: FunctionPrior,
        likelihood: Likelihood,
        *,
        part: int,
        weights: Weights | None = None,
        dtype: torch.dtype | None = None,
        by_class: bool = False,
        weight: Tensor | None = None,
    ) -> Memory:
        """What a support has to say, added up part by part (eq. 11).

        However long the support, no more than a part of it goes through the network at a time.

        Args:
            support: of one task or a batch of them, with a point at least.
            prior: without an `obstacle`.
            likelihood: p(y | f).
            part: points of a task in a part.
            weights: stand in for the prior's where given.
            dtype: of features and sites before they are summed up; their own where None. Sums are in float64.
            by_class: a column is the sum over the points of its class alone, as a `TaskMemory` keeps it.
            weight: how many points each counts as; one where None.
        """
        memory, axis = None, support.y.ndim - 1
        parts = list(zip(*(t.split(part, axis) for t in support), strict=True))
        counted = [None] * len(parts) if weight is None else weight.split(part, axis)
        for (x, y, mask), w in zip(parts, counted, strict=True):
            phi = prior.features_of(Points(x, mask), weights)
            m, s = self.sites.under(prior.kernel, phi, y, mask, likelihood, w)
            m = m * F.one_hot(y, m.shape[-1]) if by_class else m
            sums = memorise(prior.kernel.embed(phi.to(dtype=dtype)), mask, Sites(m.to(dtype=dtype), s.to(dtype=dtype)))
            memory = sums if memory is None else memory + sums
        assert memory is not None
        return memory

    def obstacle(self, prior: FunctionPrior, likelihood: Likelihood) -> str | None:
        """None where the kernel is explicit, each point has features and a site of its own, and classes may grow.

        Of more than `WIDEST` features no memory is kept. It would be larger than a thousand points, and to factorise it
        would take seconds where a few points (n x n, `Dual`) take milliseconds.
        """
        kernel, sites = prior.kernel, self.sites
        if not isinstance(kernel, ExplicitKernel):
            return (
                f"the kernel {type(kernel).__name__} has no explicit feature map, so no memory of constant size exists"
            )
        width = prior.network.body.features
        if isinstance(width, int) and width > WIDEST:
            return (
                f"a memory would have a number for each pair of {width:,} features, and is kept of {WIDEST:,} at most"
            )
        if (mixing := prior.mixing or sites.together) is not None:
            return mixing
        if isinstance(likelihood, ClassLikelihood) and likelihood.latents > 1:
            if not isinstance(likelihood, Softmax) or not isinstance(sites, SimplifiedSites | FullSites):
                names = f"{type(sites).__name__} for {type(likelihood).__name__}"
                return f"{names} are not known to be +1 and -1 times the same number for every class"
        return None
