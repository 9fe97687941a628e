"""GP-VIB: sites at the support points, conditioned on exactly."""

from metavib.encoders.encoder import Encoder
from metavib.encoders.sites import SiteEncoder
from metavib.inputs import Points
from metavib.likelihoods import Likelihood
from metavib.noise import Noise
from metavib.posteriors.encoding import Encoding
from metavib.posteriors.functions import posterior
from metavib.priors import FunctionPrior
from metavib.tasks.task import Examples
from metavib.weights import Weights


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
        phi_t, phi_v = prior.features(support, query, weights)
        sites = self.sites(phi_t, support.y, support.mask, likelihood)
        return Encoding(posterior(prior.kernel, phi_t, support.mask, sites), phi_v)
