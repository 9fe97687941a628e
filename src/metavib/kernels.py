r"""Covariance functions on deep features.

A kernel first *embeds* a feature vector, $z = e(\phi)$, then compares embeddings, $k(x, x') = \kappa(z, z')$. For
the explicit kernels $\kappa$ is the dot product, so $K = Z Z^\top$ with Z of M columns: that is what makes the
primal posterior and its constant-size memory possible. The stationary kernels have no such finite embedding.

The bias feature (a constant 1 appended to $\phi$) is the kernel's too: M counts it.
"""

from abc import ABC, abstractmethod
from math import log, sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from metavib.linalg import root
from metavib.networks.layers import Positive, lift
from metavib.networks.norm import TaskNorm
from metavib.tasks.inputs import Inputs


class Kernel(nn.Module, ABC):
    """k(x, x') on features: embed once, compare often.

    Example:
        >>> import torch
        >>> from metavib.kernels import RBF
        >>> kernel = RBF(lengthscale=2.0)
        >>> z = kernel.embed(torch.tensor([[0.0], [2.0]]))
        >>> [round(k, 3) for k in kernel.gram(z, z)[0].tolist()], kernel.diagonal(z).tolist()
        ([1.0, 0.607], [1.0, 1.0])
    """

    def mean(self, phi: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b n 1"] | None:
        """The mean m(x) of the process, where it has one; None is a mean of zero, that of most kernels."""
        return None

    def before(self, phi: Float[Tensor, "*b n m"]) -> tuple[Float[Tensor, "*b n 1"], Float[Tensor, ""]] | None:
        """What is added to the mean, and the factor of all variances, as long as no point is known; None: nothing."""
        return None

    def freedom(self) -> Float[Tensor, " 2"] | None:
        """How well the size of the process is known, in degrees of freedom (`Given`); None is perfectly, as by most."""
        return None

    def prepare(self, phi: Float[Tensor, "*b p m"], inputs: Inputs) -> Float[Tensor, "*b p m"]:
        """What must see all points of a task together (batch-norm); nothing, for most kernels."""
        return phi

    @abstractmethod
    def embed(self, phi: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b n M"]:
        r"""$z = e(\phi)$, point by point."""

    @abstractmethod
    def gram(self, z: Float[Tensor, "*b n M"], z2: Float[Tensor, "*b v M"]) -> Float[Tensor, "*b n v"]:
        r"""$\kappa(z_i, z'_j)$."""

    @abstractmethod
    def diagonal(self, z: Float[Tensor, "*b n M"]) -> Float[Tensor, "*b n"]:
        r"""$\kappa(z_i, z_i)$."""


class ExplicitKernel(Kernel, ABC):
    r"""A kernel that is the dot product of its embeddings, $K = Z Z^\top$.

    Example:
        A kernel of squares.

        >>> import torch
        >>> from metavib.kernels import ExplicitKernel
        >>> class Squares(ExplicitKernel):
        ...     def embed(self, phi):
        ...         return phi.square()
        >>> kernel, phi = Squares(), torch.tensor([[1.0], [3.0]])
        >>> kernel.gram(kernel.embed(phi), kernel.embed(phi)).tolist()
        [[1.0, 9.0], [9.0, 81.0]]
    """

    def gram(self, z: Tensor, z2: Tensor) -> Tensor:
        r"""$z_i \cdot z'_j$."""
        return z @ z2.mT

    def diagonal(self, z: Tensor) -> Tensor:
        r"""$|z_i|^2$."""
        return z.square().sum(-1)


class Given(ExplicitKernel):
    r"""$GP(m, k)$ with $k(x, x') = z \cdot z'$, of features $\phi = (z, m)$ that hold embedding and mean as they are.

    For priors whose features know all of it themselves, such as that of a group given other groups
    (`metavib.groups`).

    Args:
        freedom: degrees of freedom `(2,)` of the size of the process and of the noise, where these are known up to a
            factor (eq. 33a): those of the factor that a task has for itself, and of that of each output.
        start: the factor of all variances as long as no point is known, where features are $\phi = (z, d, m)$ and the
            mean is d + m until then (`metavib.groups.start`).

    Example:
        >>> import torch
        >>> phi = torch.tensor([[1.0, 2.0, 30.0]])
        >>> Given().embed(phi).tolist(), Given().mean(phi).tolist()
        ([[1.0, 2.0]], [[30.0]])
    """

    degrees: Tensor | None
    start: Tensor | None

    def __init__(self, freedom: Float[Tensor, " 2"] | None = None, start: Float[Tensor, ""] | None = None) -> None:
        super().__init__()
        self.register_buffer("degrees", freedom)
        self.register_buffer("start", start)

    def freedom(self) -> Tensor | None:
        """The degrees of freedom of the size of the process, of a task's and of an output's."""
        return self.degrees

    def embed(self, phi: Tensor) -> Tensor:
        """All features but the last, or the last two."""
        return phi[..., : -1 if self.start is None else -2]

    def mean(self, phi: Tensor) -> Tensor:
        """The last feature."""
        return phi[..., -1:]

    def before(self, phi: Tensor) -> tuple[Tensor, Tensor] | None:
        """The last feature but one, and the factor."""
        return None if self.start is None else (phi[..., -2:-1], self.start)


class Linear(ExplicitKernel):
    r"""$k(x, x') = \frac{e^v}{M} \phi \cdot \phi'$.

    Args:
        bias: append a constant 1 to $\phi$.
        learn_scale: learn v.
        scale: $e^v$ at the start.

    Example:
        >>> import torch
        >>> from metavib.kernels import Linear
        >>> phi = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
        >>> k = Linear()
        >>> z = k.embed(phi)
        >>> [[round(v, 3) for v in row] for row in k.gram(z, z).tolist()]
        [[0.5, 1.5], [1.5, 12.5]]
    """

    def __init__(self, *, bias: bool = False, learn_scale: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.bias = bias
        self.log_scale = nn.Parameter(torch.tensor(log(scale)), requires_grad=learn_scale)

    def embed(self, phi: Tensor) -> Tensor:
        r"""$\sqrt{e^v / M}\, \phi$."""
        phi = append_one(phi) if self.bias else phi
        return phi * (lift(self.log_scale, 2) / 2).exp() / sqrt(phi.shape[-1])


class Cosine(ExplicitKernel):
    r"""$k(x, x') = e^v \frac{\phi \cdot \phi'}{|\phi| |\phi'|}$.

    Features that are all zero have no direction and are uncorrelated with anything.

    Args:
        bias: append a constant 1 to $\phi$.
        learn_scale: learn v.
        scale: $e^v$ at the start.

    Example:
        >>> import torch
        >>> from metavib.kernels import Cosine
        >>> phi = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
        >>> k = Cosine()
        >>> z = k.embed(phi)
        >>> [[round(v, 3) for v in row] for row in k.gram(z, z).tolist()]
        [[1.0, 0.6], [0.6, 1.0]]
    """

    def __init__(self, *, bias: bool = False, learn_scale: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.bias = bias
        self.log_scale = nn.Parameter(torch.tensor(log(scale)), requires_grad=learn_scale)

    def embed(self, phi: Tensor) -> Tensor:
        r"""$e^{v/2} \phi / |\phi|$."""
        phi = append_one(phi) if self.bias else phi
        return unit(phi) * (lift(self.log_scale, 2) / 2).exp()


class BNCosine(ExplicitKernel):
    r"""The cosine kernel on batch-normalised features, without learned shift and scale.

    Args:
        features: length of $\phi$.
        norm: the batch-norm encoding, one of `metavib.networks.norm.ENCODINGS`.
        bias: append a constant 1 to the normalised $\phi$.
        learn_scale: learn v.
        scale: $e^v$ at the start.

    Example:
        >>> from metavib.kernels import BNCosine
        >>> sum(p.numel() for p in BNCosine(features=64).parameters())  # the scale v alone is learned
        1
    """

    def __init__(
        self,
        features: int,
        *,
        norm: str = "running",
        bias: bool = False,
        learn_scale: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm = TaskNorm(features, encoding=norm, affine=False)
        self.cosine = Cosine(bias=bias, learn_scale=learn_scale, scale=scale)

    def prepare(self, phi: Tensor, inputs: Inputs) -> Tensor:
        """Batch-norm over the points of each task."""
        return self.norm(phi, inputs)

    def embed(self, phi: Tensor) -> Tensor:
        r"""$e^{v/2} \phi / |\phi|$."""
        return self.cosine.embed(phi)


class Stationary(Kernel, ABC):
    r"""$k(x, x') = e^v g(r)$ with $r = |\phi - \phi'| / \ell$.

    Args:
        lengthscale: starting value of $\ell$.
        bias: append a constant 1 to $\phi$; it cancels in r and is accepted so that kernels are interchangeable.
        learn_scale: learn v.
        scale: $e^v$ at the start.

    Example:
        The rational quadratic kernel of exponent 1, $g(r) = 1 / (1 + r^2/2)$.

        >>> import torch
        >>> from metavib.kernels import Stationary
        >>> class RationalQuadratic(Stationary):
        ...     def of_squared_distance(self, r2):
        ...         return 1 / (1 + r2 / 2)
        >>> kernel = RationalQuadratic(lengthscale=1.0)
        >>> z = kernel.embed(torch.tensor([[0.0], [2.0]]))
        >>> [round(k, 3) for k in kernel.gram(z, z)[0].tolist()]
        [1.0, 0.333]
    """

    def __init__(
        self, lengthscale: float = 1.0, *, bias: bool = False, learn_scale: bool = True, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.lengthscale = Positive(lengthscale, floor=1e-4)
        self.log_scale = nn.Parameter(torch.tensor(log(scale)), requires_grad=learn_scale)

    @abstractmethod
    def of_squared_distance(self, r2: Tensor) -> Tensor:
        """g as a function of r squared."""

    def embed(self, phi: Tensor) -> Tensor:
        r"""$\phi / \ell$."""
        return phi / lift(self.lengthscale(), 2)

    def gram(self, z: Tensor, z2: Tensor) -> Tensor:
        r"""$e^v g(|z - z'|)$."""
        # |z|^2 - 2 z z' + |z'|^2 cancels badly far from the origin: move the origin, which no distance sees.
        origin = z2.detach().mean(-2, keepdim=True)
        z, z2 = z - origin, z2 - origin
        r2 = z.square().sum(-1)[..., :, None] + z2.square().sum(-1)[..., None, :] - 2 * z @ z2.mT
        return lift(self.log_scale, 2).exp() * self.of_squared_distance(r2.clamp(min=0))

    def diagonal(self, z: Tensor) -> Tensor:
        """$e^v$ everywhere."""
        return lift(self.log_scale, 1).exp().expand(z.shape[:-1])


class RBF(Stationary):
    r"""$g(r) = e^{-r^2/2}$.

    Example:
        >>> import torch
        >>> from metavib.kernels import RBF
        >>> phi = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
        >>> k = RBF(lengthscale=4.0)
        >>> z = k.embed(phi)
        >>> [[round(v, 3) for v in row] for row in k.gram(z, z).tolist()]
        [[1.0, 0.535], [0.535, 1.0]]
    """

    def of_squared_distance(self, r2: Tensor) -> Tensor:
        """The Gaussian bell."""
        return (-r2 / 2).exp()


class Matern32(Stationary):
    r"""$g(r) = (1 + \sqrt3 r) e^{-\sqrt3 r}$.

    Example:
        >>> import torch
        >>> from metavib.kernels import Matern32
        >>> phi = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
        >>> k = Matern32(lengthscale=4.0)
        >>> z = k.embed(phi)
        >>> [[round(v, 3) for v in row] for row in k.gram(z, z).tolist()]
        [[1.0, 0.423], [0.423, 1.0]]
    """

    def of_squared_distance(self, r2: Tensor) -> Tensor:
        """Once differentiable functions."""
        r = sqrt(3) * root(r2)
        return (1 + r) * (-r).exp()


class Matern52(Stationary):
    r"""$g(r) = (1 + \sqrt5 r + \tfrac53 r^2) e^{-\sqrt5 r}$.

    Example:
        >>> import torch
        >>> from metavib.kernels import Matern52
        >>> phi = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
        >>> k = Matern52(lengthscale=4.0)
        >>> z = k.embed(phi)
        >>> [[round(v, 3) for v in row] for row in k.gram(z, z).tolist()]
        [[1.0, 0.458], [0.458, 1.0]]
    """

    def of_squared_distance(self, r2: Tensor) -> Tensor:
        """Twice differentiable functions."""
        r = sqrt(5) * root(r2)
        return (1 + r + 5 / 3 * r2) * (-r).exp()


def append_one(phi: Tensor) -> Tensor:
    """Appends the bias feature.

    Example:
        >>> import torch
        >>> append_one(torch.tensor([[2.0, 3.0]])).tolist()
        [[2.0, 3.0, 1.0]]
    """
    return torch.cat([phi, torch.ones_like(phi[..., :1])], -1)


def unit(phi: Tensor) -> Tensor:
    r"""$\phi / |\phi|$ for features of any magnitude; zero stays zero.

    Example:
        >>> import torch
        >>> [round(v, 3) for v in unit(torch.tensor([3.0, 4.0])).tolist()]
        [0.6, 0.8]
    """
    # Dividing by the largest entry first keeps the squares from over- and underflowing. It is a constant to the
    # gradient, since the result does not depend on it; and then |phi| >= 1 except at zero, whose gradient stays finite.
    largest = phi.detach().abs().amax(-1, keepdim=True)
    phi = phi / largest.masked_fill(largest == 0, 1.0)
    return phi / phi.square().sum(-1, keepdim=True).clamp(min=1.0).sqrt()
