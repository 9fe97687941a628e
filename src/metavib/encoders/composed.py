r"""GP+MAML: the features take gradient steps, then the GP conditions on them."""

from torch import Tensor

from metavib.encoders.encoder import Encoder
from metavib.encoders.gp import GPEncoder
from metavib.encoders.gradient import Descent, differentiable
from metavib.likelihoods import Likelihood
from metavib.networks.weights import Weights
from metavib.objective import bound
from metavib.posteriors.posterior import Encoding
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Points, points
from metavib.tasks.task import Examples


class ComposedEncoder(Encoder):
    r"""$q(\psi, f) = \delta(\psi - \theta - \Delta)\, q(f \mid D_t; \psi)$.

    $\Delta$ ascends GP-VIB's own objective with the support set in the query's place, $F(D_t, D_t)$. The Dirac on
    $\psi$ carries $\beta_\psi = 0$; the KL is that of the functions (eq. 6).

    Args:
        descent: how $\Delta$ is made.
        gp: the encoder of the functions.
        beta: the weight of the KL in the inner objective.
        mean: ascend $F(D_t, D_t) / n$, a point's share of it, so that a step of one size suits supports of any size.
            The paper's step sizes are for F itself.

    Example:
        >>> import torch
        >>> from metavib.encoders import ComposedEncoder, Descent, ExactSites, GPEncoder
        >>> from metavib import kernels, likelihoods, networks, priors, tasks
        >>> prior = priors.FunctionPrior(networks.MLP(1, (8,)), kernels.Linear())
        >>> encoder = ComposedEncoder(Descent(steps=5, rate=1e-4), GPEncoder(ExactSites()), beta=0.5)
        >>> support = tasks.examples(torch.randn(4, 1), torch.randn(4))
        >>> q = encoder(support, tasks.inputs.points(support), prior, likelihoods.Gaussian())
        >>> q.marginals().mean.shape
        torch.Size([4, 1])
    """

    def __init__(self, descent: Descent, gp: GPEncoder, *, beta: float, mean: bool = False) -> None:
        super().__init__()
        self.descent, self.gp, self.beta, self.mean = descent, gp, beta, mean

    def forward(
        self,
        support: Examples,
        query: Points,
        prior: FunctionPrior,
        likelihood: Likelihood,
        noise: Noise = None,
    ) -> Encoding:
        r"""The GP's posterior under each task's own features $\phi(\cdot; \psi)$."""

        def objective(psi: Weights, part: Examples) -> Tensor:
            q = self.gp(part, points(part), prior, likelihood, noise, weights=psi)
            F = bound(q, likelihood, part, beta=self.beta, noise=noise).value
            return F / part.mask.sum(-1).clamp(min=1) if self.mean else F

        modules = (prior.kernel, self.gp, likelihood)
        depends_on = (*(p for module in modules for p in module.parameters()), *differentiable(support))
        psi = self.descent(prior.network, support, objective, depends_on=depends_on, noise=noise)
        return self.gp(support, query, prior, likelihood, noise, weights=psi)
