r"""GP+MAML: the features take gradient steps, then the GP conditions on them; weights are a Dirac or a Gaussian."""

import torch
from torch import Tensor

from metavib.encoders.encoder import Encoder
from metavib.encoders.gp import GPEncoder
from metavib.encoders.gradient import Descent, differentiable
from metavib.likelihoods import Likelihood
from metavib.networks.weights import Weights
from metavib.objective import bound
from metavib.posteriors.posterior import Encoding
from metavib.posteriors.weights import DiagonalNormal, Joint
from metavib.priors import FunctionPrior
from metavib.random import Noise, seeded
from metavib.tasks.inputs import Inputs, Points, points
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
        psi = self.climb(support, prior, likelihood, noise)
        return self.gp(support, query, prior, likelihood, noise, weights=psi)

    def climb(self, support: Examples, prior: FunctionPrior, likelihood: Likelihood, noise: Noise = None) -> Weights:
        r"""$\psi = \theta + \Delta$, of each task its own."""

        def objective(psi: Weights, part: Examples) -> Tensor:
            q = self.gp(part, points(part), prior, likelihood, noise, weights=psi)
            F = bound(q, likelihood, part, beta=self.beta, noise=noise).value
            return F / part.mask.sum(-1).clamp(min=1) if self.mean else F

        modules = (prior.kernel, self.gp, likelihood)
        depends_on = (*(p for module in modules for p in module.parameters()), *differentiable(support))
        return self.descent(prior.network, support, objective, depends_on=depends_on, noise=noise)


class GaussianComposedEncoder(Encoder):
    r"""$q(\psi, f) = N(\psi \mid \theta + \Delta, \mathrm{diag}(s))\, q(f \mid D_t; \psi)$: stochastic GP+MAML.

    GP+MAML with a Gaussian in the place of its Dirac, so that the KL of the weights is finite and may be charged for:

    $$F = \mathrm{fit} - \beta_\psi\, KL[q(\psi) \,\|\, p(\psi)]
    - \beta\, E_{q(\psi)} KL[q(f \mid \psi) \,\|\, p(f \mid \psi)]$$

    with $p(\psi) = N(\theta, \mathrm{diag}(s))$, so that the first KL is $\frac12 \sum_j \Delta_j^2 / s_j$ (eq. 6a).

    Args:
        composed: the encoder with the Dirac: inner steps, and the GP on top.
        samples: how many weights are drawn for each task.
        charge: $\beta_\psi / \beta$. The bound's own $\beta$ is then the price of both KLs together.

    Example:
        >>> import torch
        >>> from metavib.encoders import ComposedEncoder, Descent, ExactSites, GaussianComposedEncoder, GPEncoder
        >>> from metavib import kernels, likelihoods, networks, priors, tasks
        >>> prior = priors.FunctionPrior(networks.MLP(1, (8,)), kernels.Linear(), variance=1e-4)
        >>> composed = ComposedEncoder(Descent(steps=5, rate=1e-4), GPEncoder(ExactSites()), beta=0.5)
        >>> encoder = GaussianComposedEncoder(composed, samples=3, charge=0.1)
        >>> support = tasks.examples(torch.randn(4, 1), torch.randn(4))
        >>> noise = torch.Generator().manual_seed(0)
        >>> q = encoder(support, tasks.inputs.points(support), prior, likelihoods.Gaussian(), noise)
        >>> q.marginals().mean.shape, bool(q.kl().isfinite())
        (torch.Size([4, 1]), True)
    """

    def __init__(self, composed: ComposedEncoder, *, samples: int = 1, charge: float = 1.0) -> None:
        super().__init__()
        if not 0 <= charge < float("inf"):
            raise ValueError(f"the price of the weights' KL must be a finite number, 0 or above; got charge={charge}.")
        self.composed, self.samples, self.charge = composed, samples, charge

    @property
    def descent(self) -> Descent:
        """How the features' weights are adapted."""
        return self.composed.descent

    def forward(
        self,
        support: Examples,
        query: Points,
        prior: FunctionPrior,
        likelihood: Likelihood,
        noise: Noise = None,
    ) -> Encoding:
        r"""A Gaussian over weights, and the GP's posterior under each draw of them."""
        if prior.variances is None:
            raise ValueError("a Gaussian over weights needs a prior with a variance: FunctionPrior(..., variance=...).")
        s, network = prior.variances(), prior.network
        psi = self.composed.climb(support, prior, likelihood, noise)
        q = DiagonalNormal(psi, s, network.theta(), s, _undecoded, samples=self.samples, ranks=network.ranks)
        if isinstance(noise, Tensor):  # base samples of the likelihood: all tasks then have the same draws of weights
            own = sum(p.shape[p.ndim - network.ranks[name] :].numel() for name, p in psi.items())
            shape = (self.samples, *(1,) * len(support.batch_shape), own)
            stream: Noise = torch.randn(shape, generator=seeded(0), dtype=noise.dtype).to(noise.device)
        else:
            stream = noise
        each = [
            self.composed.gp(support, query, prior, likelihood, noise, weights=weights) for weights in q.draw(stream)
        ]
        return Encoding(Joint(q, [e.posterior for e in each], charge=self.charge), [e.query for e in each])


def _undecoded(psi: Weights, x: Inputs) -> Tensor:
    """Weights have no values of their own here: the functions stand between them and the outputs."""
    raise TypeError("under GP+MAML values come from the functions, not from the weights alone.")
