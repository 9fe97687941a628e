r"""Posteriors over network weights $\psi$: a Dirac, a diagonal Gaussian, and one with functions under these weights."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from metavib.marginals import Normal, Point, Samples
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

    Example:
        >>> import torch
        >>> from metavib.posteriors import Dirac
        >>> q = Dirac({"w": torch.tensor(2.0)}, lambda psi, x: psi["w"] * x, torch.Size())
        >>> q.marginals(torch.tensor([[3.0]])).f.item(), q.kl().item()
        (6.0, inf)
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

    Example:
        >>> import torch
        >>> from metavib.posteriors import DiagonalNormal
        >>> psi, theta, s = ({"w": torch.tensor([number])} for number in (0.3, 0.1, 0.04))
        >>> q = DiagonalNormal(psi, s, theta, s, lambda w, x: x, samples=1, ranks={"w": 1})
        >>> round(q.kl().item(), 3)  # 0.2^2 / (2 * 0.04)
        0.5
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

    def draw(self, noise: Noise = None) -> list[Weights]:
        r"""Weights $\hat\psi + \sqrt{s}\, \epsilon$, one set for each of the samples."""
        # One draw of base samples for all weights keeps `noise` a single generator or tensor (samples, ..., P).
        sizes = [mean.shape[mean.ndim - self.ranks[name] :].numel() for name, mean in self.psi.items()]
        first = next(iter(self.psi))
        batch = self.psi[first].shape[: self.psi[first].ndim - self.ranks[first]]
        epsilon = standard_normal((self.samples, *batch, sum(sizes)), noise, like=self.psi[first])
        drawn: Weights = {}
        for (name, mean), part in zip(self.psi.items(), epsilon.split(sizes, -1), strict=True):
            own = mean.shape[mean.ndim - self.ranks[name] :]
            drawn[name] = mean + self.s[name].sqrt() * part.reshape(*part.shape[:-1], *own)
        return [{name: w[i] for name, w in drawn.items()} for i in range(self.samples)]

    def marginals(self, x: Inputs, noise: Noise = None) -> Samples:
        r"""$f(x; \psi)$ for each draw of $\psi$, a pass at a time to save memory."""
        return Samples(torch.stack([self.decode(psi, x) for psi in self.draw(noise)]))

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


class Joint(Posterior):
    r"""$q(\psi, f) = q(\psi)\, q(f \mid \psi)$: a Gaussian over weights, and functions under each draw of them.

    Args:
        weights: $q(\psi)$.
        functions: $q(f \mid \psi)$, a posterior for each draw of $\psi$.
        charge: what a nat of $KL[q(\psi) \,\|\, p(\psi)]$ costs beside one of the functions, $\beta_\psi / \beta$.
            With 1 the KL is that of the pair (eq. 6).

    Example:
        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors import DiagonalNormal, Joint, Primal, Sites, memorise
        >>> psi, theta, s = ({"w": torch.tensor([number])} for number in (0.3, 0.1, 0.04))
        >>> weights = DiagonalNormal(psi, s, theta, s, lambda w, x: x, samples=1, ranks={"w": 1})
        >>> z, sites = torch.ones(1, 1), Sites(torch.ones(1, 1), torch.ones(1))
        >>> functions = Primal(Linear(), memorise(z, torch.tensor([True]), sites))
        >>> q = Joint(weights, [functions], charge=1.0)
        >>> round((q.kl() - functions.kl()).item(), 3)  # that of the weights
        0.5
    """

    def __init__(self, weights: DiagonalNormal, functions: Sequence[Posterior], *, charge: float) -> None:
        self.weights, self.functions, self.charge = weights, list(functions), charge

    def marginals(self, x: Sequence[Tensor], noise: Noise = None) -> Normal:
        """The Gaussian with the mean and variance of q(f), which is a mixture over the draws of the weights.

        It is q(f) itself where there is one draw, and as good as it under a Gaussian likelihood, whose expectation
        takes nothing but mean and variance.

        Args:
            x: the query's features under each draw.
            noise: of no use here.
        """
        parts = [q.marginals(phi, noise) for q, phi in zip(self.functions, x, strict=True)]
        if len(parts) == 1:
            return Normal(parts[0].mean, parts[0].var)
        means = torch.stack([part.mean for part in parts])
        within = torch.stack([part.var for part in parts]).mean(0)
        return Normal(means.mean(0), within + means.var(0, correction=0))

    def kl(self) -> Tensor:
        r"""$E_{q(\psi)} KL[q(f \mid \psi) \,\|\, p(f \mid \psi)]$, and that of the weights at its own price."""
        of_functions = torch.stack([q.kl() for q in self.functions]).mean(0)
        return of_functions + self.charge * self.weights.kl() if self.charge else of_functions
