"""GP-VIB: sites at the support points, conditioned on exactly."""

import torch
from torch import Tensor

from metavib.encoders.encoder import Encoder
from metavib.encoders.sites import SiteEncoder
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import Likelihood
from metavib.networks.norm import TaskNorm
from metavib.networks.weights import Weights
from metavib.posteriors.functions import Primal, posterior
from metavib.posteriors.memory import memorise
from metavib.posteriors.posterior import Encoding
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Inputs, Points
from metavib.tasks.task import Examples

PART = 300  # support points of a task that go through the network at a time where no gradient is wanted


class GPEncoder(Encoder):
    r"""$q(f_v, f_t) = p(f_v \mid f_t)\, q(f_t)$ with $q(f_t) \propto p(f_t) \prod_j N(m_j \mid f_j, s_j)$ (eq. 7).

    Args:
        sites: how support points become sites.
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
    ) -> Encoding:
        r"""The posterior over functions; `weights` stand in for the prior's $\theta$ where given."""
        if support.size > PART and not torch.is_grad_enabled() and (kernel := _streamable(prior)) is not None:
            return self._streamed(support, query, prior, kernel, likelihood, weights)
        phi_t, phi_v = prior.features(support, query, weights)
        sites = self.sites(phi_t, support.y, support.mask, likelihood)
        return Encoding(posterior(prior.kernel, phi_t, support.mask, sites), phi_v)

    def _streamed(
        self,
        support: Examples,
        query: Points,
        prior: FunctionPrior,
        kernel: ExplicitKernel,
        likelihood: Likelihood,
        weights: Weights | None,
    ) -> Encoding:
        """The same posterior by way of its memory, to which the support is added part by part (eq. 11).

        However long the support, no more than a part of it goes through the network at a time.
        """

        def phi(x: Tensor, mask: Tensor) -> Tensor:
            inputs = Inputs(x, mask, 0)
            return kernel.prepare(prior.network(inputs, weights), inputs)

        memory = None
        for x, y, mask in zip(*(t.split(PART, support.y.ndim - 1) for t in support), strict=True):
            phi_t = phi(x, mask)
            part = memorise(kernel.embed(phi_t), mask, self.sites(phi_t, y, mask, likelihood))
            memory = part if memory is None else memory + part
        assert memory is not None  # a support longer than a part has a part
        return Encoding(Primal(kernel, memory), phi(query.x, query.mask))


def _streamable(prior: FunctionPrior) -> ExplicitKernel | None:
    """The kernel, if it has a memory and features of a point depend on no other point."""
    kernel = prior.kernel
    norms = (part for part in kernel.modules() if isinstance(part, TaskNorm))
    pointwise = prior.network.body.pointwise and all(norm.pointwise for norm in norms)
    return kernel if isinstance(kernel, ExplicitKernel) and pointwise else None
