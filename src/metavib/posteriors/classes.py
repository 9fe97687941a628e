r"""Posteriors over classes that are Gaussian in the space of embeddings, in two equal forms (THEORY.md, section 14).

A class n is a point $w_n$ of the space, and embeddings of its points lie around it, $z \sim N(w_n, \Sigma)$, with one
$\Sigma$ for all classes of a task. With $w_n \sim N(0, \frac{\sigma^2}{\kappa} I)$, $K_n$ points of sum $g_n$ give

$$q(w_n) = N\Big(\mu_n, \frac{\sigma^2}{\kappa + K_n} I\Big), \qquad \mu_n = \frac{g_n}{\kappa + K_n}.$$

$\Sigma$ is what all tasks have, $\sigma^2 I$, which counts for $\nu$ points, and what this task shows: with the scatter
$S_w$ of its n points around the means of their N classes,

$$\hat\Sigma = \frac{\nu \sigma^2 I + S_w}{\nu + n - N}.$$

A query point of class n has the density $N(z; \mu_n, \rho_n \hat\Sigma)$ with $\rho_n = 1 + 1 / (\kappa + K_n)$:
points of a class of which little is known may lie further off. So the latent values are

$$f_n(x) = -\tfrac12 \Big( \rho_n^{-1} (z - \mu_n)^\top \hat\Sigma^{-1} (z - \mu_n) + d \log \rho_n \Big).$$

d is how many dimensions speak for themselves: M if $\Sigma$ were exact, fewer where features go together.

* `DualClasses` factorises an `n x n` matrix, of the points.
* `PrimalClasses` factorises an `M x M` matrix, from the memory alone (`metavib.posteriors.memory`): sums over points.

The algebra is in float64, as that of functions is (`metavib.posteriors.functions`).
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from metavib import linalg
from metavib.kernels import ExplicitKernel
from metavib.marginals import Point
from metavib.posteriors.memory import Memory, Sites, memorise
from metavib.posteriors.posterior import Posterior
from metavib.random import Noise


class Scatter(NamedTuple):
    r"""What is known of classes before a task is: $\kappa$, $\sigma^2$, $\nu$ and d.

    Args:
        kappa: how many points of a class the prior of its mean counts for.
        variance: $\sigma^2$, the variance of embeddings around their class.
        nu: how many points of a task this variance counts for.
        dimensions: d, how many dimensions speak for themselves.

    Example:
        >>> import torch
        >>> from metavib.posteriors.classes import Scatter
        >>> Scatter(*map(torch.tensor, (0.5, 0.04, 150.0, 12.0))).nu.item()
        150.0
    """

    kappa: Tensor
    variance: Tensor
    nu: Tensor
    dimensions: Tensor


class GaussianClasses(Posterior, ABC):
    r"""q(w_1, ..., w_N) and $\hat\Sigma$ (eq. 36): what both forms share.

    Args:
        kernel: makes embeddings.
        sums: $g_n$ `(..., M, N)`.
        counts: $K_n$ `(..., N)`.
        scatter: what is known of classes before.
        dtype: of the KL.

    Example:
        Classes of one and of nine points, both at 1 from the query: the first may be further off than it seems.

        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors.classes import DualClasses, GaussianClasses, Scatter
        >>> known = Scatter(*map(torch.tensor, (1e-6, 0.5, 1e6, 1.0)))
        >>> z, Y = torch.tensor([[-1.0]] + 9 * [[1.0]]), torch.tensor([[1.0, 0.0]] + 9 * [[0.0, 1.0]])
        >>> q = DualClasses(Linear(learn_scale=False), z, Y, known)
        >>> p = q.marginals(torch.zeros(1, 1)).f.softmax(-1)
        >>> isinstance(q, GaussianClasses), [round(each, 2) for each in p[0].tolist()]
        (True, [0.53, 0.47])
    """

    def __init__(
        self,
        kernel: ExplicitKernel,
        sums: Float[Tensor, "*b M N"],
        counts: Float[Tensor, "*b N"],
        scatter: Scatter,
        *,
        dtype: torch.dtype,
    ) -> None:
        self.kernel, self.counts, self.dtype = kernel, counts, dtype
        self.scatter = scatter = Scatter(*(t.double() for t in scatter))
        self.centres = (sums / counts.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-2)).mT  # zero without points
        self.a = (scatter.nu * scatter.variance)[..., None, None]
        known = scatter.kappa[..., None] + counts
        self.means = (sums / known.unsqueeze(-2)).mT  # mu_n, a row a class
        self.spread = 1 + 1 / known  # rho_n
        more = (counts.sum(-1) - (counts > 0).sum(-1)).clamp(min=0)  # n - N
        self.weight = (scatter.nu + more)[..., None, None]

    @abstractmethod
    def apart(self, z: Float[Tensor, "*b v M"]) -> Float[Tensor, "*b v N"]:
        r"""$(z_i - \mu_n)^\top \hat\Sigma^{-1} (z_i - \mu_n)$."""

    @property
    def finite(self) -> bool:
        """Whether its means are numbers, as those of all points are."""
        return bool(self.apart(self.means).isfinite().all())

    def marginals(self, x: Float[Tensor, "*b v m"], noise: Noise = None) -> Point:
        """All mass at f, in which the classes are integrated out (eq. 37)."""
        rho, d = self.spread.unsqueeze(-2), self.scatter.dimensions[..., None, None]
        apart = self.apart(self.kernel.embed(x).double())
        return Point(-0.5 * (apart / rho + d * rho.log()).to(x.dtype))

    def kl(self) -> Tensor:
        r"""That of each class's Gaussian from the prior of all (eq. 38), summed up."""
        kappa = self.scatter.kappa[..., None]
        share = kappa / (kappa + self.counts)
        lengths = self.means.square().sum(-1) * kappa / self.scatter.variance[..., None]
        return 0.5 * (self.means.shape[-1] * (share - 1 - share.log()) + lengths).sum(-1).to(self.dtype)


@final
class DualClasses(GaussianClasses):
    r"""The posterior from the points themselves.

    With the residuals R of the points from their classes' means, $S_w = R^\top R$, and $a = \nu \sigma^2$,
    $(a I + R^\top R)^{-1} = \frac1a (I - R^\top (a I + R R^\top)^{-1} R)$.

    Args:
        kernel: makes embeddings.
        z: embeddings of the support `(..., n, M)`; their precision is that of the results.
        Y: how many points each counts as, in the column of its class `(..., n, N)`; zero for padding.
        scatter: what is known of classes before.

    Example:
        Two points of one class and one of another, whose means are shrunk towards the origin.

        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors.classes import DualClasses, Scatter
        >>> known = Scatter(*map(torch.tensor, (1.0, 0.1, 10.0, 1.0)))
        >>> z, Y = torch.tensor([[1.0], [3.0], [-2.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> DualClasses(Linear(), z, Y, known).means.round(decimals=2).tolist()
        [[1.33], [-1.0]]
    """

    def __init__(
        self, kernel: ExplicitKernel, z: Float[Tensor, "*b n M"], Y: Float[Tensor, "*b n N"], scatter: Scatter
    ) -> None:
        dtype, z, Y = z.dtype, z.double(), Y.double()
        super().__init__(kernel, z.mT @ Y, Y.sum(-2), scatter, dtype=dtype)
        self.residuals = linalg.root(Y.sum(-1)).unsqueeze(-1) * (z - (Y > 0).to(z.dtype) @ self.centres)
        gram = self.residuals @ self.residuals.mT
        self.factor = linalg.factorise(gram + self.a * linalg.identity_like(gram), what="R R' + a I")

    def apart(self, z: Tensor) -> Tensor:
        """Less along directions in which the points differ within their classes."""
        less = _between(self._seen(z), self._seen(self.means))
        return (_between(z, self.means) - less).clamp(min=0) * (self.weight / self.a)

    def _seen(self, z: Tensor) -> Tensor:
        """L^-1 R z, a row a vector."""
        return self.factor.solve(self.residuals @ z.mT).mT


@final
class PrimalClasses(GaussianClasses):
    r"""The posterior from a memory with a column for each class and sites m = s = 1.

    Then $A = \sum_j z_j z_j^\top$, $b = (g_1, \dots, g_N)$ and $c = (K_1, \dots, K_N)$, and
    $S_w = A - \sum_n g_n g_n^\top / K_n$.

    Args:
        kernel: makes embeddings.
        memory: what the points had to say.
        scatter: what is known of classes before.
        dtype: of the KL.

    Example:
        What two memories have to say together is what their sum has.

        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors import PrimalClasses, Scatter, Sites, memorise
        >>> known = Scatter(*map(torch.tensor, (1.0, 0.1, 10.0, 1.0)))
        >>> def memory(z, y):
        ...     m = torch.nn.functional.one_hot(torch.tensor(y), 2).double()
        ...     return memorise(torch.tensor(z), torch.ones(len(y), dtype=torch.bool), Sites(m, torch.ones(len(y))))
        >>> both = memory([[1.0], [3.0]], [0, 0]) + memory([[-2.0]], [1])
        >>> PrimalClasses(Linear(), both, known).means.tolist()
        [[1.333...], [-1.0]]
    """

    def __init__(
        self, kernel: ExplicitKernel, memory: Memory, scatter: Scatter, *, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__(kernel, memory.b, memory.c, scatter, dtype=dtype)
        within = memory.A - self.centres.mT @ memory.b.mT
        self.factor = linalg.factorise(within + self.a * linalg.identity_like(within), what="S_w + a I")

    def apart(self, z: Tensor) -> Tensor:
        """Between vectors that the factor has whitened."""
        white = (self.factor.solve(each.mT).mT for each in (z, self.means))
        return _between(*white).clamp(min=0) * self.weight


def _between(p: Float[Tensor, "*b v M"], q: Float[Tensor, "*b w M"]) -> Float[Tensor, "*b v w"]:
    """Squared distances of rows; rounding may take one a little below zero."""
    return p.square().sum(-1).unsqueeze(-1) - 2 * p @ q.mT + q.square().sum(-1).unsqueeze(-2)


def classes(
    kernel: ExplicitKernel,
    phi: Float[Tensor, "*b n m"],
    Y: Float[Tensor, "*b n N"],
    scatter: Scatter,
) -> GaussianClasses:
    """The posterior in its cheaper form: primal where there are more points than features.

    Example:
        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors.classes import Scatter, classes
        >>> known = Scatter(*map(torch.tensor, (0.5, 0.1, 10.0, 1.0)))
        >>> Y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> type(classes(Linear(), torch.randn(2, 3), Y, known)).__name__
        'DualClasses'
    """
    z = kernel.embed(phi)
    if z.shape[-2] <= z.shape[-1]:
        return DualClasses(kernel, z, Y, scatter)
    real = Y.sum(-1) > 0
    counted = torch.where(real, Y.sum(-1), 1.0)  # as under `metavib.encoders.UnitSites`
    memory = memorise(z, real, Sites((Y > 0).to(Y.dtype), 1 / counted))
    return PrimalClasses(kernel, memory, scatter, dtype=z.dtype)
