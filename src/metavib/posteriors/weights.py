r"""Posteriors over network weights $\psi$: a Dirac and a diagonal Gaussian."""

from collections.abc import Callable

import torch
from torch import Tensor

from metavib.marginals import Point, Samples
from metavib.posteriors.posterior import Posterior
from metavib.random import Noise, standard_normal
from metavib.tasks.inputs import Inputs

Weights = dict[str, Tensor]
Decoder = Callable[[Weights, Inputs], Tensor]
"""f(x; psi): values `(..., v, c)` at the query points of some inputs, under given weights."""


class Dirac(Posterior):
    r"""$q(\psi) = \delta(\psi - \hat\psi)$.

    Args:
        psi: weights, each with the tasks in its leading dimensions.
        decode: the network.
    """

    def __init__(self, psi: Weights, decode: Decoder, batch_shape: torch.Size) -> None:
        self.psi, self.decode, self.batch_shape = psi, decode, batch_shape

    def marginals(self, x: Inputs, noise: Noise = None) -> Point:
        r"""All mass at $f(x; \hat\psi)$."""
        return Point(self.decode(self.psi, x))

    def kl(self) -> Tensor:
        """Infinite against any prior with a density."""
        return next(iter(self.psi.values())).new_full(self.batch_shape, torch.inf)


class DiagonalNormal(Posterior):
    r"""$q(\psi) = N(\psi \mid \hat\psi, \mathrm{diag}(s))$ with prior $N(\theta, \mathrm{diag}(s_0))$.

    Args:
        psi: means, each with the tasks in its leading dimensions.
        s: variances, broadcastable to the means.
        theta: prior means.
        s0: prior variances; the very same dictionary as `s` where prior and posterior share them.
        decode: the network.
        samples: how many weights are drawn for the marginals.
        ranks: number of trailing dimensions of each weight that are its own, not the tasks'.
    """

    def __init__(
        self,
        psi: Weights,
        s: Weights,
        theta: Weights,
        s0: Weights,
        decode: Decoder,
        *,
        samples: int,
        ranks: dict[str, int],
    ) -> None:
        self.psi, self.s, self.theta, self.s0 = psi, s, theta, s0
        self.decode, self.samples, self.ranks = decode, samples, ranks

    def marginals(self, x: Inputs, noise: Noise = None) -> Samples:
        r"""$f(x; \hat\psi + \sqrt{s}\, \epsilon)$ for each draw of $\epsilon$, a pass at a time to save memory."""
        # One draw of base samples for all weights keeps `noise` a single generator or tensor (samples, ..., P).
        sizes = [mean.shape[mean.ndim - self.ranks[name] :].numel() for name, mean in self.psi.items()]
        first = next(iter(self.psi))
        batch = self.psi[first].shape[: self.psi[first].ndim - self.ranks[first]]
        epsilon = standard_normal((self.samples, *batch, sum(sizes)), noise, like=self.psi[first])
        drawn: Weights = {}
        for (name, mean), part in zip(self.psi.items(), epsilon.split(sizes, -1), strict=True):
            own = mean.shape[mean.ndim - self.ranks[name] :]
            drawn[name] = mean + self.s[name].sqrt() * part.reshape(*part.shape[:-1], *own)
        one_by_one = ({name: w[i] for name, w in drawn.items()} for i in range(self.samples))
        return Samples(torch.stack([self.decode(psi, x) for psi in one_by_one]))

    def kl(self) -> Tensor:
        r"""$\frac12 \sum_j [ \Delta_j^2 / s_{0j} + s_j/s_{0j} - 1 - \log s_j/s_{0j} ]$, $\Delta = \hat\psi - \theta$.

        With a shared variance only $\frac12 \sum_j \Delta_j^2 / s_j$ is left (eq. 25).
        """
        total = torch.zeros(())
        for name, mean in self.psi.items():
            own = tuple(range(-self.ranks[name], 0))
            terms = (mean - self.theta[name]).square() / self.s0[name]
            if self.s is not self.s0:
                ratio = self.s[name] / self.s0[name]
                terms = terms + ratio - 1 - ratio.log()
            total = total + 0.5 * terms.sum(own)
        return total
