r"""The general form of the bound: tasks without inputs, whose points are observations of something hidden.

A task is a set of observations $y_j$, images of a class or draws from a density. What they share is a vector Z:

$$Z \sim N(0, I), \qquad y_j \mid Z \sim N(g(Z), \sigma^2 I), \qquad
q(Z \mid D_t) \propto p(Z) \prod_{j \in D_t} N(m_j \mid Z, \mathrm{diag}(s_j)), \quad (m_j, s_j) = h(y_j).$$

The encoder is that of GP-VIB with the vector Z in the place of a function: every support point is one Gaussian site, so
that the order of the points does not matter, new ones are added to what is known, and without any of them q is the
prior (eq. 34). The bound is eq. 2, nothing being conditioned on (THEORY.md, section 13).
"""

from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from metavib.networks.layers import Positive
from metavib.objective import Bound, check_beta
from metavib.random import Noise, standard_normal

S_BOUNDS = (1e-3, 1e3)  # of site variances


class Observations(NamedTuple):
    """Points of each task, `y (..., n, d)`, and which of them are real, `mask (..., n)`.

    Example:
        >>> import torch
        >>> from metavib.unsupervised import Observations
        >>> Observations(torch.zeros(10, 2), torch.ones(10, dtype=torch.bool)).y.shape  # ten points of the plane
        torch.Size([10, 2])
    """

    y: Tensor
    mask: Tensor


class Latent(NamedTuple):
    r"""$q(Z \mid D_t) = N(Z \mid \mu, \mathrm{diag}(v))$ of each task, `(..., k)` both.

    Example:
        >>> import torch
        >>> from metavib.unsupervised import Latent
        >>> Latent(torch.zeros(4), torch.ones(4)).kl().item()  # the prior itself
        0.0
    """

    mean: Tensor
    var: Tensor

    def kl(self) -> Tensor:
        r"""$KL[q(Z) \,\|\, N(0, I)] = \frac12 \sum_i [\mu_i^2 + v_i - 1 - \log v_i]$, one number for each task."""
        return 0.5 * (self.mean.square() + self.var - 1 - self.var.log()).sum(-1)

    def draw(self, samples: int, noise: Noise = None) -> Tensor:
        r"""Reparameterised draws $\mu + \sqrt v\, \epsilon$, `(samples, ..., k)`."""
        return self.mean + self.var.sqrt() * standard_normal((samples, *self.mean.shape), noise, like=self.mean)


class LatentModel(nn.Module):
    r"""Prior, encoder and decoder of observations that share a latent vector.

    Args:
        encoder: h, from an observation `(..., d)` to `(..., 2 k)` numbers: site means, and what a softplus turns into
            site variances.
        decoder: g, from Z `(..., k)` to the mean of an observation `(..., d)`.
        noise: starting value of $\sigma^2$, which is learned.
        samples: draws of Z by which the expectation in the bound is estimated.

    Example:
        Numbers around a mean of the task's own. With these sites the posterior is the exact one:

        >>> import torch
        >>> from torch import nn
        >>> from metavib.unsupervised import LatentModel, Observations
        >>> h, g = nn.Linear(1, 2), nn.Identity()  # m = y, s = softplus(0.5413) = 1
        >>> _ = h.weight.data.copy_(torch.tensor([[1.0], [0.0]])), h.bias.data.copy_(torch.tensor([0.0, 0.5413]))
        >>> model = LatentModel(h, g, noise=1.0)
        >>> y = torch.tensor([[1.0], [2.0], [3.0]])
        >>> q = model.encode(Observations(y, torch.ones(3, dtype=torch.bool)))
        >>> round(q.mean.item(), 3), round(q.var.item(), 3)  # 6 / (1 + 3), 1 / (1 + 3)
        (1.5, 0.25)
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, *, noise: float = 1.0, samples: int = 8) -> None:
        super().__init__()
        self.encoder, self.decoder, self.noise, self.samples = encoder, decoder, Positive(noise, floor=1e-4), samples

    def encode(self, support: Observations) -> Latent:
        r"""The precisions of prior and sites add up, and the mean is that of the sites, weighted by them (eq. 34)."""
        m, a = self.encoder(support.y).chunk(2, -1)
        precision = support.mask.unsqueeze(-1) / nn.functional.softplus(a).clamp(*S_BOUNDS)
        total = 1 + precision.sum(-2)
        return Latent((precision * m).sum(-2) / total, 1 / total)

    def log_prob(self, z: Float[Tensor, "s *b k"], query: Observations) -> Float[Tensor, "s *b v"]:
        r"""$\log N(y_j \mid g(Z), \sigma^2 I)$ of every query point under every draw of Z."""
        mean, noise = self.decoder(z).unsqueeze(-2), self.noise()
        d = query.y.shape[-1]
        return -0.5 * ((query.y - mean).square().sum(-1) / noise + d * (log(2 * pi) + noise.log()))

    def log_predictive(self, q: Latent, query: Observations, noise: Noise = None) -> Float[Tensor, "*b v"]:
        r"""$\log E_{q(Z)}[p(y_j \mid Z)]$, point by point, from the model's number of draws."""
        return torch.logsumexp(self.log_prob(q.draw(self.samples, noise), query), 0) - log(self.samples)


def vib(model: LatentModel, support: Observations, query: Observations, *, beta: float, noise: Noise = None) -> Bound:
    r"""$F = E_{q(Z \mid D_t)}[\sum_j \log p(y_j \mid Z)] - \beta\, KL[q(Z \mid D_t) \,\|\, p(Z)]$ of each task (eq. 2).

    Args:
        model: prior, encoder and decoder.
        support: what the tasks are learned from.
        query: what they are judged on.
        beta: weight of the KL.
        noise: generator (or base samples) for the draws of Z.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from metavib.unsupervised import LatentModel, observations, vib
        >>> model = LatentModel(nn.Linear(2, 6), nn.Linear(3, 2))  # points of the plane, three latent numbers
        >>> support, query = observations(torch.randn(7, 5, 2)), observations(torch.randn(7, 9, 2))
        >>> F = vib(model, support, query, beta=1.0, noise=torch.Generator())
        >>> F.value.shape  # seven tasks
        torch.Size([7])
    """
    check_beta(beta, dirac=False)
    q = model.encode(support)
    log_p = model.log_prob(q.draw(model.samples, noise), query).mean(0)
    fit, rate = torch.where(query.mask, log_p, 0.0).sum(-1), q.kl()
    return Bound(fit, rate, fit - beta * rate)


def observations(y: Tensor, mask: Tensor | None = None) -> Observations:
    """Checked observations; all of them are real unless a mask says otherwise.

    Args:
        y: a vector for each point, `(..., n, d)`.
        mask: which points are real; values of others are ignored.

    Example:
        >>> import torch
        >>> from metavib.unsupervised import observations
        >>> observations(torch.zeros(3, 10, 2)).mask.shape  # three tasks of ten points in the plane
        torch.Size([3, 10])
    """
    if y.ndim < 2 or not y.is_floating_point():
        raise ValueError(f"observations are real vectors, (..., n, d); got {y.dtype} of shape {tuple(y.shape)}.")
    mask = torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device) if mask is None else mask
    y = y.masked_fill(~mask.unsqueeze(-1), 0.0)
    if not bool(y.isfinite().all()):
        raise ValueError("observations must be finite numbers; some are NaN or infinite. Remove or mask these points.")
    return Observations(y, mask)
