r"""q(f(x)): what any posterior says of the latent function at a point, in four forms.

This is where gradient-based and GP methods become the same thing. A likelihood asks for one thing only,
*nodes*: values $f_k$ and weights $w_k$ such that $E_q[g(f)] \approx \sum_k w_k g(f_k)$ (eq. 15).

* `Point`: all mass at one value (MAML). One node; exact.
* `Samples`: draws of a posterior over weights, reparameterised (stochastic MAML). The draws are the nodes.
* `Normal`: independent Gaussians (GP methods). Nodes by Gauss-Hermite for one latent value a point, by reparameterised
  Monte Carlo for several.
* `Student`: Gaussians that are known up to a factor, which they share with the noise of the outputs (groups of rows).
  No nodes of f alone; outputs that are Gaussian, or that a link makes so, in closed form.

Shapes: `(..., v, c)` for v points of c latent values; a leading dimension of nodes k before all of them. The variance
of a `Normal` may have c = 1 where all outputs share it.
"""

from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.linalg import root
from metavib.quadrature import hermite
from metavib.random import Noise, standard_normal


class Nodes(NamedTuple):
    r"""$E_q[g(f)] \approx \sum_k w_k g(f_k)$: values `f (k, ..., v, c)`, log-weights `log_w`.

    Weights are `(k,)` where all points share them, and `(k, ..., v)` where each point has its own.

    Example:
        >>> import torch
        >>> from metavib.marginals import Nodes
        >>> nodes = Nodes(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([0.25, 0.75]).log())
        >>> nodes.mean(nodes.f).item()
        2.5
    """

    f: Tensor
    log_w: Tensor

    def mean(self, g: Tensor) -> Tensor:
        r"""$\sum_k w_k g_k$ for `g (k, ...)`."""
        return torch.tensordot(self.log_w.exp(), g, dims=1) if self.log_w.ndim == 1 else (self.log_w.exp() * g).sum(0)

    def log_mean_exp(self, log_g: Tensor) -> Tensor:
        r"""$\log \sum_k w_k \exp(\log g_k)$ for `log_g (k, ...)`."""
        ones = (1,) * (log_g.ndim - self.log_w.ndim)
        return torch.logsumexp(log_g + self.log_w.reshape(*self.log_w.shape, *ones), 0)


class Point(NamedTuple):
    """All mass at f `(..., v, c)`.

    Example:
        >>> import torch
        >>> from metavib.marginals import Point
        >>> q = Point(torch.tensor([[2.0]]))
        >>> q.mean.item(), q.var.item()
        (2.0, 0.0)
    """

    f: Tensor

    @property
    def mean(self) -> Tensor:
        """The value f that has all the mass."""
        return self.f

    @property
    def var(self) -> Tensor:
        """Zero, since a point mass has no spread."""
        return torch.zeros_like(self.f)

    def nodes(self) -> Nodes:
        """One node of weight one."""
        return Nodes(self.f[None], self.f.new_zeros(1))


class Samples(NamedTuple):
    """Equally weighted draws f `(k, ..., v, c)`.

    Example:
        >>> import torch
        >>> from metavib.marginals import Samples
        >>> q = Samples(torch.tensor([[[1.0]], [[3.0]]]))  # two draws, one point, one latent value
        >>> q.mean.item(), q.var.item()
        (2.0, 1.0)
    """

    f: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of the draws."""
        return self.f.mean(0)

    @property
    def var(self) -> Tensor:
        """Variance of the draws under q as it stands: divided by k, not k - 1, since the draws *are* q here."""
        return self.f.var(0, correction=0)

    def nodes(self) -> Nodes:
        """The draws themselves."""
        return Nodes(self.f, self.f.new_full((len(self.f),), -log(len(self.f))))


class Normal(NamedTuple):
    """Independent Gaussians: mean `(..., v, c)`, var `(..., v, c)` or `(..., v, 1)` where outputs share it.

    Example:
        >>> import torch
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.tensor([[2.0]]), torch.tensor([[0.25]]))
        >>> nodes = q.hermite(8)
        >>> round(nodes.mean(nodes.f.square()).item(), 4)  # E_q[f^2] = 2^2 + 0.25
        4.25
    """

    mean: Tensor
    var: Tensor

    def hermite(self, k: int) -> Nodes:
        r"""Gauss-Hermite with k nodes, for one latent value a point: $f_k = \mu + \sqrt{2 v} x_k$ (eq. 16)."""
        x, log_w = hermite(k, self.mean.dtype, self.mean.device)
        return Nodes(self.mean + root(2 * self.var) * x.reshape(-1, *(1,) * self.mean.ndim), log_w)

    def monte_carlo(self, k: int, noise: Noise) -> Nodes:
        r"""Reparameterised draws, $f_k = \mu + \sqrt{v} \epsilon_k$ (eq. 17).

        `noise` is a generator, or $\epsilon$ itself, broadcastable to `(k, ..., v, c)`: handing over the same
        one twice gives common random numbers.
        """
        return self.at(standard_normal((k, *self.mean.shape), noise, like=self.mean))

    def at(self, epsilon: Tensor, *, of: int | None = None) -> Nodes:
        """The nodes of base samples `epsilon (k, ..., v, c)`, of weight 1/k each; 1/`of` where they are only a part."""
        k = of or len(epsilon)
        return Nodes(self.mean + root(self.var) * epsilon, self.mean.new_full((len(epsilon),), -log(k)))


class Student(NamedTuple):
    r"""Gaussians known up to a factor, all `(..., v, 1)`: $f \mid \lambda \sim N(\mu, s / \lambda)$.

    The noise of an output is known up to the same factor, $\rho \sigma^2 / \lambda$, and $\lambda$ has the gamma
    density of shape and rate $\nu / 2$. So an output is $t_\nu(y \mid \mu, s + \rho \sigma^2)$ (eq. 33a).

    Args:
        mean: $\mu$.
        spread: s, the squared scale of f.
        ratio: $\rho$.
        df: $\nu$, above 2 so that variances exist.

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.marginals import Student
        >>> q = Student(*(torch.tensor([[value]]) for value in (2.0, 0.5, 1.0, 4.0)))
        >>> mean, variance = Gaussian(noise=0.1).predict(q)
        >>> round(mean.item(), 2), round(variance.item(), 2)  # (0.5 + 0.1) 4 / (4 - 2)
        (2.0, 1.2)
    """

    mean: Tensor
    spread: Tensor
    ratio: Tensor
    df: Tensor

    @property
    def var(self) -> Tensor:
        r"""$s\, \nu / (\nu - 2)$."""
        return self.spread * self.df / (self.df - 2)

    def nodes(self) -> Nodes:
        """None: the noise shares a factor with f, which nodes of f alone know nothing of."""
        raise TypeError(
            "this likelihood has no closed form where functions and noise are known up to a common factor: take a "
            "Gaussian, a LogNormal, a LogitNormal or a RootNormal one."
        )


Marginals = Point | Samples | Normal | Student
