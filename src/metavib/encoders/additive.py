"""Encoders whose posterior depends on sums over support points alone: they have a memory of constant size."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from metavib.encoders.encoder import Encoder
from metavib.encoders.sites import SiteEncoder
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import Likelihood
from metavib.networks.weights import Weights
from metavib.posteriors.classes import GaussianClasses
from metavib.posteriors.functions import Dual, Primal
from metavib.posteriors.memory import Memory, Sites, TaskMemory, memorise
from metavib.priors import FunctionPrior
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

WIDEST = 2048  # features of which a memory is kept: it has a number for each pair of them
PART = 300  # support points of a task that go through the network at a time where no gradient is wanted


class AdditiveEncoder(Encoder):
    r"""Each support point becomes a site $N(m_j \mid f_j, s_j)$, and sums over these are all that the posterior needs.

    That is so wherever there is no `obstacle`: the sums are then a `Memory`, which points are added to.

    Args:
        sites: how support points become sites.

    Example:
        >>> from metavib.encoders import AdditiveEncoder, ClassEncoder, GPEncoder, SimplifiedSites
        >>> [isinstance(encoder, AdditiveEncoder) for encoder in (GPEncoder(SimplifiedSites()), ClassEncoder())]
        [True, True]
    """

    def __init__(self, sites: SiteEncoder) -> None:
        super().__init__()
        self.sites = sites

    @abstractmethod
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
    ) -> Dual | Primal | GaussianClasses:
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

    @abstractmethod
    def recall(self, kernel: ExplicitKernel, memory: TaskMemory) -> Primal | GaussianClasses:
        """The posterior of the points that a memory is of."""

    def in_parts(self, support: Examples, prior: FunctionPrior, likelihood: Likelihood) -> bool:
        """Whether a support is so long that it is added up part by part: where no gradient is wanted, and it can be."""
        if support.size <= PART or torch.is_grad_enabled():
            return False
        return isinstance(prior, FunctionPrior) and self.obstacle(prior, likelihood) is None

    def memory(
        self,
        support: Examples,
        prior: FunctionPrior,
        likelihood: Likelihood,
        *,
        part: int | None = None,
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
            part: points of a task in a part; `PART` where None.
            weights: stand in for the prior's where given.
            dtype: of features and sites before they are summed up; their own where None. Sums are in float64.
            by_class: a column is the sum over the points of its class alone, as a `TaskMemory` keeps it.
            weight: how many points each counts as; one where None.
        """
        memory, axis, part = None, support.y.ndim - 1, part or PART
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
        """None where the kernel is explicit, and each point has features and a site of its own.

        Of more than `WIDEST` features no memory is kept. It would be larger than a thousand points, and to factorise it
        would take seconds where a few points (n x n) take milliseconds.
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
        return prior.mixing or sites.together
