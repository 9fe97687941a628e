r"""q(f(x)): what any posterior says of the latent function at a point, in three forms.

This is where gradient-based and GP methods become the same thing. A likelihood asks for one thing only,
*nodes*: values $f_k$ and weights $w_k$ such that $E_q[g(f)] \approx \sum_k w_k g(f_k)$ (eq. 15).

* `Point`: all mass at one value (MAML). One node; exact.
* `Samples`: draws of a posterior over weights, reparameterised (stochastic MAML). The draws are the nodes.
* `Normal`: independent Gaussians (GP methods). Nodes by Gauss-Hermite for one latent value a point, by reparameterised
  Monte Carlo for several.

Shapes: `(..., v, c)` for v points of c latent values; a leading dimension of nodes k before all of them. The variance
of a `Normal` may have c = 1 where all outputs share it.
"""

from collections.abc import Callable
from functools import lru_cache
from math import log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from metavib.linalg import root
from metavib.random import Noise, standard_normal

AT_ONCE = 2**23
"""Values that Monte Carlo draws at once, 32 MB in float32: more than this are drawn and used in parts."""


class Nodes(NamedTuple):
    r"""$E_q[g(f)] \approx \sum_k w_k g(f_k)$: values `f (k, ..., v, c)`, log-weights `log_w (k,)`."""

    f: Tensor
    log_w: Tensor

    def mean(self, g: Tensor) -> Tensor:
        r"""$\sum_k w_k g_k$ for `g (k, ...)`."""
        return torch.tensordot(self.log_w.exp(), g, dims=1)

    def log_mean_exp(self, log_g: Tensor) -> Tensor:
        r"""$\log \sum_k w_k \exp(\log g_k)$ for `log_g (k, ...)`."""
        return torch.logsumexp(log_g + self.log_w.reshape(-1, *(1,) * (log_g.ndim - 1)), 0)


class Point(NamedTuple):
    """All mass at f `(..., v, c)`."""

    f: Tensor

    @property
    def mean(self) -> Tensor:
        """f itself."""
        return self.f

    @property
    def var(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.f)

    def nodes(self) -> Nodes:
        """One node of weight one."""
        return Nodes(self.f[None], self.f.new_zeros(1))


class Samples(NamedTuple):
    """Equally weighted draws f `(k, ..., v, c)`."""

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
    """Independent Gaussians: mean `(..., v, c)`, var `(..., v, c)` or `(..., v, 1)` where outputs share it."""

    mean: Tensor
    var: Tensor

    def hermite(self, k: int) -> Nodes:
        r"""Gauss-Hermite with k nodes, for one latent value a point: $f_k = \mu + \sqrt{2 v} x_k$ (eq. 16)."""
        x, log_w = _hermite(k, self.mean.dtype, self.mean.device)
        return Nodes(self.mean + root(2 * self.var) * x.reshape(-1, *(1,) * self.mean.ndim), log_w)

    def monte_carlo(self, k: int, noise: Noise) -> Nodes:
        r"""Reparameterised draws, $f_k = \mu + \sqrt{v} \epsilon_k$ (eq. 17).

        `noise` is a generator, or $\epsilon$ itself, broadcastable to `(k, ..., v, c)`: handing over the same
        one twice gives common random numbers.
        """
        epsilon = standard_normal((k, *self.mean.shape), noise, like=self.mean)
        return self._at(epsilon, len(epsilon))

    def _at(self, epsilon: Tensor, k: int) -> Nodes:
        """The nodes of some of k base samples."""
        return Nodes(self.mean + root(self.var) * epsilon, self.mean.new_full((len(epsilon),), -log(k)))

    def over_draws(self, g: Callable[[Nodes], Tensor], k: int, noise: Noise) -> list[Tensor]:
        r"""g of the nodes of `monte_carlo`, in parts if they are many: a node is in one part, with its weight of all.

        Args:
            g: from nodes to numbers of each point, which depend on its mean and variance alone; one a point where a
                gradient is wanted.
            k: how many draws.
            noise: as in `monte_carlo`; a generator on a CPU gives the same draws in parts as at once.
        """
        k = len(noise) if isinstance(noise, Tensor) else k
        size = _draws_at_once(self.mean.numel())
        plain = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if size > k // 2 or plain or not isinstance(noise, Generator | Tensor):
            return [g(self.monte_carlo(k, noise))]
        parts, starts = [], range(0, k - size + 1, size)
        for start in starts:
            stop = k if start == starts[-1] else start + size
            part = noise[start:stop] if isinstance(noise, Tensor) else noise
            epsilon = standard_normal((stop - start, *self.mean.shape), part, like=self.mean)
            if torch.is_grad_enabled() and (self.mean.requires_grad or self.var.requires_grad):
                parts.append(_Lean.apply(self.mean, self.var, lambda q, e=epsilon: g(q._at(e, k))))
            else:
                parts.append(g(self._at(epsilon, k)))
        return parts


Marginals = Point | Samples | Normal


def _draws_at_once(values: int) -> int:
    """How many draws of some values each are made at once.

    A multiple of 16, since a generator on a CPU makes numbers sixteen at a time: cut there, its stream is the same.
    """
    return max(16, AT_ONCE // max(values, 1) // 16 * 16)


class _Lean(torch.autograd.Function):
    """A function of a `Normal` whose derivative is made along with its value, so that nothing inside it is kept.

    Its numbers, one a point, depend on that point's mean and variance alone: the derivative is no larger than these.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, function: Callable[[Normal], Tensor]) -> Tensor:
        with torch.enable_grad():
            q = Normal(mean.detach().requires_grad_(), var.detach().requires_grad_())
            value = function(q)
            total = value.sum()
        ctx.save_for_backward(*torch.autograd.grad(total, q))
        return value.detach()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        if torch.is_grad_enabled():  # create_graph=True: the derivative would be a constant, and nobody told
            raise RuntimeError("samples in parts are differentiated once; raise metavib.marginals.AT_ONCE for more.")
        of_mean, of_var = ctx.saved_tensors
        return slope.unsqueeze(-1) * of_mean, slope.unsqueeze(-1) * of_var, None


@lru_cache(maxsize=16)
def _hermite(k: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.hermite.hermgauss(k)
    log_w = np.log(w) - log(sqrt(pi))
    return torch.as_tensor(x, dtype=dtype, device=device), torch.as_tensor(log_w, dtype=dtype, device=device)
