r"""What every likelihood p(y | f) can be asked, and the general path by which it answers.

Shapes: `f (..., v, c)` with c = `latents` values a point, `y (..., v)`.
"""

from abc import ABC, abstractmethod
from math import log

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from metavib.marginals import Marginals, Nodes, Normal
from metavib.random import Noise
from metavib.tasks.scaling import Grid

DISTINCT = 1e-12  # difference of two distribution functions that has some digits


class Likelihood(nn.Module, ABC):
    """p(y | f), with c = `latents` latent values behind each output.

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.marginals import Normal
        >>> likelihood, q = Gaussian(noise=1.0), Normal(torch.zeros(1, 1), torch.ones(1, 1))
        >>> y = torch.zeros(1)
        >>> round(likelihood.expected_log_prob(q, y).item(), 3), round(likelihood.log_predictive(q, y).item(), 3)
        (-1.419, -1.266)
    """

    latents: int = 1
    hermite_nodes: int = 32  # exact to polynomials of degree 63 in f

    @abstractmethod
    def targets(self, y: Shaped[Tensor, "*b n"]) -> Float[Tensor, "*b n c"]:
        """Outputs as real site targets: y itself, counts on the log scale, or +1 / -1 for classes."""

    @abstractmethod
    def log_prob(self, f: Float[Tensor, "*b v c"], y: Shaped[Tensor, "*y v"]) -> Float[Tensor, "*b v"]:
        r"""$\log p(y \mid f)$."""

    def check(self, y: Tensor) -> None:  # noqa: B027 - any real y is fine unless a likelihood says otherwise
        """Refuses outputs this likelihood gives no probability to. Called where data enters, never in the loop."""

    def nodes(self, q: Marginals, noise: Noise = None) -> Nodes:
        """Nodes that integrate against q: its own when it is discrete, Gauss-Hermite for a Normal."""
        return q.hermite(self.hermite_nodes) if isinstance(q, Normal) else q.nodes()

    def expected_log_prob(self, q: Marginals, y: Shaped[Tensor, "*b v"], noise: Noise = None) -> Float[Tensor, "*b v"]:
        r"""$E_{q(f)}[\log p(y \mid f)]$, a lower bound on the log predictive density."""
        nodes = self.nodes(q, noise)
        return nodes.mean(self.log_prob(nodes.f, y))

    def log_predictive(self, q: Marginals, y: Shaped[Tensor, "*b v"], noise: Noise = None) -> Float[Tensor, "*b v"]:
        r"""$\log E_{q(f)}[p(y \mid f)]$ (eq. 20)."""
        nodes = self.nodes(q, noise)
        return nodes.log_mean_exp(self.log_prob(nodes.f, y))


class RealLikelihood(Likelihood, ABC):
    """A likelihood of real or count outputs: predictions are a mean, a variance and a distribution function.

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Poisson
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.zeros(1, 1), torch.full((1, 1), 0.02))
        >>> mean, variance = Poisson().predict(q)
        >>> round(mean.item(), 3), round(variance.item(), 3)  # e^0.01, and that and a little of its own
        (1.01, 1.031)
    """

    @abstractmethod
    def moments(self, f: Float[Tensor, "*b v 1"]) -> tuple[Float[Tensor, "*b v"], Float[Tensor, "*b v"]]:
        r"""Mean and variance of $p(y \mid f)$."""

    @abstractmethod
    def cdf(self, f: Float[Tensor, "*b v 1"], y: Float[Tensor, "*y v"]) -> Float[Tensor, "*b v"]:
        r"""$P(Y \le y \mid f)$."""

    def predict(self, q: Marginals, noise: Noise = None) -> tuple[Float[Tensor, "*b v"], Float[Tensor, "*b v"]]:
        """Predictive mean and variance, by the laws of total expectation and variance."""
        nodes = self.nodes(q, noise)
        mean, var = self.moments(nodes.f)
        centre = nodes.mean(mean)
        return centre, nodes.mean(var) + nodes.mean((mean - centre).square())

    def predictive_cdf(self, q: Marginals, y: Float[Tensor, "*b v"], noise: Noise = None) -> Float[Tensor, "*b v"]:
        r"""$P(Y \le y)$ under the predictive distribution: uniform over tasks if predictions are calibrated.

        This is eq. 21.
        """
        nodes = self.nodes(q, noise)
        return nodes.mean(self.cdf(nodes.f, y))

    def around(
        self, q: Marginals, y: Float[Tensor, "*b v"], grid: Grid
    ) -> tuple[Float[Tensor, "*b v"], Float[Tensor, "*b v"]]:
        r"""$P(Y < y)$ and $P(Y \le y)$ where outputs come in steps: the nearest ones to what is predicted.

        Args:
            q: of the latent function.
            y: outputs.
            grid: their steps, and where these end.
        """
        below, above = y - grid.half, y + grid.half
        return grid.bounded(self.predictive_cdf(q, below), below), grid.bounded(self.predictive_cdf(q, above), above)

    def log_mass(self, q: Marginals, y: Float[Tensor, "*b v"], grid: Grid) -> Float[Tensor, "*b v"]:
        r"""$\log P(Y = y)$ of outputs in steps, arguments as of `around`.

        Far out, where two distribution functions are too close to tell, it is the density times the distance.
        """
        below, upto = self.around(q, y, grid)
        mass = upto - below
        density = self.log_predictive(q, y) + log(2 * grid.half) + grid.left(y).log()
        return torch.where(mass > DISTINCT, mass.log(), density)


class ClassLikelihood(Likelihood, ABC):
    """A likelihood of integer class labels: predictions are probabilities.

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Softmax
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.tensor([[2.0, 0.0, 0.0]]), torch.full((1, 3), 1e-6))
        >>> [round(p, 2) for p in Softmax(3).predict(q, torch.Generator())[0].tolist()]
        [0.79, 0.11, 0.11]
    """

    classes: int

    @abstractmethod
    def probabilities(self, f: Float[Tensor, "*b v c"]) -> Float[Tensor, "*b v classes"]:
        r"""$p(y = \cdot \mid f)$."""

    def predict(self, q: Marginals, noise: Noise = None) -> Float[Tensor, "*b v classes"]:
        """Predictive class probabilities."""
        nodes = self.nodes(q, noise)
        return nodes.mean(self.probabilities(nodes.f))

    def check(self, y: Tensor) -> None:
        """Refuses labels that are not integers in 0 .. classes - 1."""
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"class labels must be integers in 0..{self.classes - 1}; got {y.dtype}.")
        if y.numel() and (int(y.min()) < 0 or int(y.max()) >= self.classes):
            raise ValueError(
                f"class labels must lie in 0..{self.classes - 1}; got {int(y.min())}..{int(y.max())}. "
                "Relabel the classes of each task from 0, or build the likelihood for more classes."
            )


def floating(y: Tensor) -> Tensor:
    """Outputs as real numbers."""
    return y if y.is_floating_point() else y.to(torch.get_default_dtype())
