r"""Encoders that take gradient steps: MAML's Dirac and stochastic MAML's Gaussian.

$\Delta(\theta, D_t)$ is the sum of k steps of size $\rho$ on the mean log likelihood of the support set (the mean, so
that one $\rho$ suits any number of points). A task has weights of its own from the first step on: weights with the
tasks in their leading dimensions, so that all tasks descend at once and no loop runs over them (eq. 23; THEORY.md,
section 7).
"""

from collections.abc import Callable, Iterable
from functools import partial
from math import ceil

import torch
from jaxtyping import Int
from torch import Tensor, nn

from metavib.encoders.encoder import Encoder
from metavib.fast.recompute import Step, random_streams, recomputed
from metavib.likelihoods import Likelihood
from metavib.networks.weights import Network, Variances, Weights
from metavib.posteriors.posterior import Encoding
from metavib.posteriors.weights import DiagonalNormal, Dirac
from metavib.priors import WeightPrior
from metavib.random import Noise, seeded, standard_normal
from metavib.tasks.inputs import Inputs, Points
from metavib.tasks.task import Examples


class Descent(nn.Module):
    r"""$\theta \to \theta + \Delta(\theta, D_t)$ by gradient ascent, a separate $\psi$ for each task.

    Args:
        steps: k, any number from 0 (then $\psi = \theta$).
        rate: $\rho$.
        first_order: treat $\Delta$ as a constant when the bound is differentiated; memory then does not grow with k
            (eq. 24).
        recompute: keep only the weights after each step, and make the rest of it again when the bound is
            differentiated: the same gradient in the memory of about one step, for the time of a second descent.
        points: support points that a step looks at; 0 for all. The next step looks at the next ones.
        shuffle: whether they come in a random order, a new one for each pass through the support, as the paper has it;
            otherwise a step looks at points that are spread evenly over the support.

    Example:
        >>> descent = Descent(steps=20, rate=0.5, points=20, shuffle=True)
        >>> descent.steps * descent.points  # points that the steps see in all
        400
    """

    def __init__(
        self,
        *,
        steps: int = 1,
        rate: float = 0.01,
        first_order: bool = False,
        recompute: bool = False,
        points: int = 0,
        shuffle: bool = False,
    ) -> None:
        super().__init__()
        if steps < 0 or not rate > 0:
            raise ValueError(f"inner steps must be >= 0 and their size > 0; got steps={steps}, rate={rate}.")
        if points < 0:
            raise ValueError(f"an inner step looks at a number of points, or at all for 0; got points={points}.")
        self.steps, self.rate, self.first_order, self.recompute = steps, rate, first_order, recompute
        self.points, self.shuffle = points, shuffle

    def forward(
        self,
        network: Network,
        support: Examples,
        objective: Callable[[Weights, Examples], Tensor],
        *,
        depends_on: Iterable[Tensor],
        noise: Noise = None,
    ) -> Weights:
        """The weights of each task after its steps up an objective.

        Args:
            network: whose weights.
            support: of the tasks.
            objective: a number a task for weights a task and points of its support.
            depends_on: the tensors besides the weights that the objective is to be differentiated for.
            noise: what the objective draws from, and the order of the points.
        """
        theta = network.per_task(support.batch_shape)
        orders = self.orders(support, noise)

        def step(psi: Weights, i: int) -> Weights:
            part = self.part(support, i, orders)
            # tasks share no weights, so that the gradient of the sum is each task's own
            slope = torch.func.grad(lambda psi: objective(psi, part).sum())(psi)
            return {name: p + self.rate * slope[name] for name, p in psi.items()}

        steps: list[Step] = [partial(step, i=i) for i in range(self.steps)]
        if self.first_order:
            start = {name: p.detach() for name, p in theta.items()}
            with torch.no_grad():
                psi = _ascend(start, steps)
            return {name: theta[name] + (psi[name] - start[name]) for name in theta}
        if self.recompute:
            streams, others = random_streams(network, noise), list(depends_on)
            steps = [recomputed(step, depends_on=others, streams=streams) for step in steps]
        return _ascend(theta, steps)

    def orders(self, support: Examples, noise: Noise) -> Int[Tensor, "passes *b n"] | None:
        """A random order of the support's points for each pass through it; None where they come as they are."""
        n = support.size
        if not self.shuffle or not 0 < self.points < n:
            return None
        if isinstance(noise, Tensor):  # base samples of the likelihood's, which say nothing of an order
            noise = seeded(0, device=noise.device)
        passes = ceil(self.steps / (n // self.points))
        like = support.x if support.x.is_floating_point() else torch.empty(0, device=support.x.device)
        return standard_normal((passes, *support.y.shape), noise, like=like).argsort(-1)

    def part(self, support: Examples, i: int, orders: Tensor | None = None) -> Examples:
        """What step i looks at: all points, or some, and the next ones at each step.

        They are spread evenly over the support, or over a given order of it. A support that lists its points class by
        class, and is taken as it is, shows a step as many of each class, where there are as many points to a step as
        classes, or a multiple of that.
        """
        n = support.size
        if not 0 < self.points < n:
            return support
        stride, axis = n // self.points, support.y.ndim - 1
        places = (torch.arange(self.points, device=support.y.device) * stride + i) % n
        if orders is None:
            return Examples(*(t.index_select(axis, places) for t in support))
        chosen = orders[i // stride].index_select(-1, places)
        return Examples(*(_gather(t, axis, chosen) for t in support))


def _gather(t: Tensor, axis: int, places: Tensor) -> Tensor:
    """Points of each task, at places of its own."""
    event = t.shape[axis + 1 :]
    return t.gather(axis, places.reshape(*places.shape, *(1,) * len(event)).expand(*places.shape, *event))


def _ascend(psi: Weights, steps: Iterable[Step]) -> Weights:
    for step in steps:
        psi = step(psi)
    return psi


class GradientEncoder(Encoder):
    r"""MAML: $q(\psi) = \delta(\psi - \theta - \Delta(\theta, D_t))$.

    Args:
        descent: how $\Delta$ is made.

    Example:
        >>> from metavib import encoders
        >>> encoders.GradientEncoder(encoders.Descent(steps=5, rate=0.01)).dirac  # a point mass: train with beta = 0
        True
    """

    dirac = True

    def __init__(self, descent: Descent) -> None:
        super().__init__()
        self.descent = descent

    def forward(
        self,
        support: Examples,
        query: Points,
        prior: WeightPrior,
        likelihood: Likelihood,
        noise: Noise = None,
    ) -> Encoding:
        """A point mass over weights."""
        psi = descend(self.descent, support, prior, likelihood, noise)
        return Encoding(Dirac(psi, prior.decode, support.batch_shape), prior.inputs(support, query))


class GaussianGradientEncoder(Encoder):
    r"""Stochastic MAML: $q(\psi) = N(\psi \mid \theta + \Delta(\theta, D_t), \mathrm{diag}(s))$.

    Args:
        descent: how $\Delta$ is made.
        samples: how many weights are drawn for the expected log likelihood.
        variances: the encoder's own s; None to share the prior's, when the KL is $\frac12 \sum \Delta_j^2/s_j$.

    Example:
        >>> from metavib import encoders
        >>> encoders.GaussianGradientEncoder(encoders.Descent(steps=5, rate=0.01), samples=4).dirac
        False
    """

    def __init__(self, descent: Descent, *, samples: int = 1, variances: Variances | None = None) -> None:
        super().__init__()
        self.descent, self.samples, self.variances = descent, samples, variances

    def forward(
        self,
        support: Examples,
        query: Points,
        prior: WeightPrior,
        likelihood: Likelihood,
        noise: Noise = None,
    ) -> Encoding:
        """A Gaussian over weights."""
        if prior.variances is None:
            raise ValueError("a Gaussian encoder needs a prior with a variance: WeightPrior(..., variance=...).")
        s0 = prior.variances()
        psi = descend(self.descent, support, prior, likelihood, noise)
        q = DiagonalNormal(
            psi,
            s0 if self.variances is None else self.variances(),
            prior.network.theta(),
            s0,
            prior.decode,
            samples=self.samples,
            ranks=prior.network.ranks,
        )
        return Encoding(q, prior.inputs(support, query))


def descend(
    descent: Descent, support: Examples, prior: WeightPrior, likelihood: Likelihood, noise: Noise = None
) -> Weights:
    r"""$\theta + \Delta(\theta, D_t)$ on the mean log likelihood of the support set."""

    def objective(psi: Weights, part: Examples) -> Tensor:
        f = prior.network(Inputs(part.x, part.mask, part.size), psi)
        return mean_over_points(likelihood.log_prob(f, part.y), part.mask)

    depends_on = (*likelihood.parameters(), *differentiable(support))
    return descent(prior.network, support, objective, depends_on=depends_on, noise=noise)


def differentiable(support: Examples) -> list[Tensor]:
    """Inputs and outputs that somebody wants a gradient for."""
    return [t for t in (support.x, support.y) if t.requires_grad]


def mean_over_points(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real points of each task; 0 for a task without any."""
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
