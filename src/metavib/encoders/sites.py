r"""How support points become Gaussian sites $N(m_j \mid f_j, s_j)$ (eq. 7; THEORY.md, section 4).

The bounds $\tilde m \in [-20, 20]$ and $s \in [10^{-3}, 20]$ hold for all amortised sites, which are clipped to them.
The lower one on s keeps K + S well conditioned and is the only jitter there is. Gradients pass a variance at its bounds
as if it were not clipped, so that it can always leave them again.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from metavib.kernels import Kernel
from metavib.likelihoods import Gaussian, Likelihood, Warped
from metavib.networks.layers import Linear, lift, softplus_inverse
from metavib.posteriors.memory import Sites

M_BOUND = 20.0
S_BOUNDS = (1e-3, 20.0)


class SiteEncoder(nn.Module, ABC):
    """Features and outputs of the support to sites.

    Example:
        Sites that distrust every output alike.

        >>> import torch
        >>> from metavib.encoders import SiteEncoder
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.posteriors import Sites
        >>> class Vague(SiteEncoder):
        ...     def sites(self, phi, y, likelihood):
        ...         return Sites(likelihood.targets(y), torch.full(y.shape, 5.0))
        >>> y, mask = torch.tensor([1.5, 0.0]), torch.tensor([True, False])  # one point, one of padding
        >>> m, s = Vague()(torch.zeros(2, 3), y, mask, Gaussian())
        >>> m.flatten().tolist(), s.tolist()
        ([1.5, 0.0], [5.0, 1.0])
    """

    together: str | None = None
    """Why the site of a point depends on the other points of its task; None where it does not."""

    @abstractmethod
    def sites(self, phi: Float[Tensor, "*b n m"], y: Shaped[Tensor, "*b n"], likelihood: Likelihood) -> Sites:
        """A site for every point, padding included."""

    def forward(
        self,
        phi: Float[Tensor, "*b n m"],
        y: Shaped[Tensor, "*b n"],
        mask: Bool[Tensor, "*b n"],
        likelihood: Likelihood,
    ) -> Sites:
        """A site for every point; the neutral one, m = 0 and s = 1, for padding."""
        m, s = self.sites(phi, y, likelihood)
        s = s.expand(torch.broadcast_shapes(s.shape, mask.shape))
        return Sites(m.masked_fill(~mask.unsqueeze(-1), 0.0), s.masked_fill(~mask, 1.0))

    def under(
        self,
        kernel: Kernel,
        phi: Float[Tensor, "*b n m"],
        y: Shaped[Tensor, "*b n"],
        mask: Bool[Tensor, "*b n"],
        likelihood: Likelihood,
        weight: Float[Tensor, "*b n"] | None = None,
    ) -> Sites:
        """Sites of f - m(x) under a prior; of f itself where the prior's mean is zero.

        Args:
            kernel: of the prior, and its mean.
            phi: features.
            y: outputs.
            mask: which points are real.
            likelihood: p(y | f).
            weight: how many points each counts as; one where None.
        """
        m, s = self(phi, y, mask, likelihood)
        s = s if weight is None else torch.where(mask, s / weight, s)
        mean = kernel.mean(phi)
        return Sites(m if mean is None else m - (mean * mask.unsqueeze(-1)).to(m.dtype), s)


class ExactSites(SiteEncoder):
    r"""$m = y$, $s = \sigma^2$: the exact posterior under a Gaussian likelihood, of y or of what it becomes.

    Example:
        >>> import torch
        >>> from metavib.encoders import ExactSites
        >>> from metavib.likelihoods import Gaussian
        >>> phi, y = torch.zeros(2, 3), torch.tensor([1.5, -2.0])
        >>> m, s = ExactSites()(phi, y, torch.ones(2, dtype=torch.bool), Gaussian(noise=0.1))
        >>> [round(v, 2) for v in m.flatten().tolist()], [round(v, 2) for v in s.tolist()]
        ([1.5, -2.0], [0.1, 0.1])
    """

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """The observations themselves."""
        if not isinstance(likelihood, Gaussian | Warped):
            raise TypeError(
                f"exact sites need a Gaussian likelihood; got {type(likelihood).__name__}. "
                "Use SimplifiedSites, FullSites or GeneralSites."
            )
        return Sites(likelihood.targets(y).to(phi.dtype), lift(likelihood.noise(), 1))


class UnitSites(SiteEncoder):
    r"""$m_j = Y_j$, $s_j = 1$: nothing is learned, and each point counts once.

    Sums over such sites are numbers and sums of points: what encoders know that look at the points of a class
    themselves (`metavib.encoders.classes.ClassEncoder`).

    Example:
        >>> import torch
        >>> from metavib.encoders import UnitSites
        >>> from metavib.likelihoods import Softmax
        >>> y = torch.tensor([0, 2])
        >>> UnitSites()(torch.zeros(2, 4), y, torch.ones(2, dtype=torch.bool), Softmax(3)).m.tolist()
        [[1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]]
    """

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """The targets, with variances of one."""
        m = likelihood.targets(y).to(phi.dtype)
        return Sites(m, torch.ones_like(m[..., 0]))


class SimplifiedSites(SiteEncoder):
    r"""$m = y\, \tilde m$, $s = \sigma^2$ with two learned scalars: the paper's default in classification.

    Args:
        m: starting value of $\tilde m$.
        s: starting value of $\sigma^2$.

    Example:
        >>> import torch
        >>> from metavib.encoders import SimplifiedSites
        >>> from metavib.likelihoods import Bernoulli
        >>> phi, y = torch.zeros(2, 3), torch.tensor([0, 1])
        >>> m, s = SimplifiedSites(m=5.0, s=0.13)(phi, y, torch.ones(2, dtype=torch.bool), Bernoulli())
        >>> [round(v, 2) for v in m.flatten().tolist()], [round(v, 2) for v in s.tolist()]
        ([-5.0, 5.0], [0.13, 0.13])
    """

    def __init__(self, *, m: float = 1.0, s: float = 0.69) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.tensor(float(m)))
        self.s = Variance(s)

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """The same m and s for every point."""
        m = lift(self.m.clamp(-M_BOUND, M_BOUND), 2)
        return Sites(m * likelihood.targets(y).to(phi.dtype), lift(self.s(), 1))


class Variance(nn.Module):
    r"""A learned site variance, $\mathrm{softplus}(a)$ clipped to its bounds.

    Args:
        value: where it starts, within the bounds and above the lower one.
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        low, high = S_BOUNDS
        if not low < value <= high:
            raise ValueError(f"the starting value must lie in ({low}, {high}]; got {value}.")
        self.raw = nn.Parameter(torch.tensor(softplus_inverse(value)))

    def forward(self) -> Tensor:
        """The value."""
        return _variance(self.raw)


class FullSites(SiteEncoder):
    r"""$m_j = y_j\, \tilde m(x_j)$, $s_j = s(x_j)$: two heads on $\phi$, the second through a softplus.

    Args:
        features: length of $\phi$.
        m: what $\tilde m$ starts near.
        s: what s starts near.

    Example:
        >>> import torch
        >>> from metavib.encoders import FullSites
        >>> from metavib.likelihoods import Softmax
        >>> phi, y = torch.zeros(2, 3), torch.tensor([0, 2])
        >>> m, s = FullSites(features=3)(phi, y, torch.ones(2, dtype=torch.bool), Softmax(3))
        >>> m.shape, s.shape  # a column for each class, one variance for all of them
        (torch.Size([2, 3]), torch.Size([2]))
    """

    def __init__(self, features: int, *, m: float = 1.0, s: float = 0.69) -> None:
        super().__init__()
        self.m = _head(features, m)
        self.s = _head(features, softplus_inverse(s))

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """Each point its own m and s."""
        m = self.m(phi).clamp(-M_BOUND, M_BOUND)
        return Sites(m * likelihood.targets(y).to(phi.dtype), _variance(self.s(phi).squeeze(-1)))


class GeneralSites(SiteEncoder):
    r"""$m_j = m(y_j, x_j)$, $s_j = s(y_j, x_j)$: a small network on $(y_j, \phi_j)$.

    For any likelihood of one latent value: real, count or binary y.

    The targets enter squashed by $\mathrm{asinh}$ beside themselves, so that outliers do not saturate the hidden layer.

    Args:
        features: length of $\phi$.
        hidden: hidden units.

    Example:
        >>> import torch
        >>> from metavib.encoders import GeneralSites
        >>> from metavib.likelihoods import Poisson
        >>> phi, y = torch.zeros(2, 3), torch.tensor([0, 7])
        >>> m, s = GeneralSites(features=3)(phi, y, torch.ones(2, dtype=torch.bool), Poisson())
        >>> m.shape, s.shape
        (torch.Size([2, 1]), torch.Size([2]))
    """

    def __init__(self, features: int, *, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = Linear(features + 2, hidden)
        self.m = _head(hidden, 0.0)
        self.s = _head(hidden, softplus_inverse(0.69))

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """The network corrects the target itself, m = y + g(y, phi), so that it starts from a sound encoder."""
        t = likelihood.targets(y).to(phi.dtype)
        if t.shape[-1] != 1:
            raise TypeError(
                f"general sites encode one latent value a point; {type(likelihood).__name__} has {t.shape[-1]}. "
                "Use SimplifiedSites or FullSites."
            )
        h = self.hidden(torch.cat([phi, t, t.asinh()], -1)).relu()
        return Sites((t + self.m(h)).clamp(-M_BOUND, M_BOUND), _variance(self.s(h).squeeze(-1)))


def _head(features: int, value: float) -> Linear:
    """A linear map to one number that starts near a given value."""
    head = Linear(features, 1)
    with torch.no_grad():
        head.weight.mul_(0.1)
        head.bias.fill_(value)
    return head


def _variance(a: Tensor) -> Tensor:
    """Softplus, clipped; its derivative is that of the softplus everywhere."""
    s = F.softplus(a)
    return s + (s.clamp(*S_BOUNDS) - s).detach()
