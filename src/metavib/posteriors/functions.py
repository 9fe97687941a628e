r"""Gaussian posteriors over functions, made from Gaussian sites $N(m_j \mid f_j, s_j)$, in two equal forms.

With $K = Z Z^\top$, Z `n x M`, and $S = \mathrm{diag}(s)$ (THEORY.md, sections 4 and 5):

* `Dual` factorises $K + S$, `n x n`; for any kernel.
* `Primal` factorises $A + I$, $A = Z^\top S^{-1} Z$, `M x M`; for explicit kernels. It needs only the memory
  (A, b, c, l, n), of constant size, which points are added to and taken from.

Both share one factorisation between all c outputs, whose variance is therefore the same. Where the prior has a mean
m(x), all of this holds for f - m: sites are those of the residuals (`GPEncoder` subtracts the mean), and `marginals`
adds the mean again. Where the kernel is known up to a factor, so are the marginals (`Student`).

The algebra is in float64 whatever the precision of the features, and its results are in that precision again. A
variance is what is left of $k_{**}$ when all but the last digits of it are explained: with features of size 100 and
site variances of 0.001, float32 has no digit left for it. The matrices are small beside the network's, so that this
costs little.
"""

from math import log, pi

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from metavib import linalg
from metavib.kernels import ExplicitKernel, Kernel
from metavib.marginals import Normal, Student
from metavib.posteriors.memory import Memory, Sites, memorise
from metavib.posteriors.posterior import Posterior
from metavib.random import Noise


class Dual(Posterior):
    r"""The posterior through the Cholesky factor of K + S.

    Args:
        kernel: compares embeddings.
        z: embeddings of the support points; their precision is that of the results.
        mask: which of them are real.
        sites: their pseudo-observations.

    Example:
        Two points with sites of variance 1: at the first one the variance falls from 1 to 1/2.

        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors import Dual, Sites
        >>> kernel, x = Linear(scale=2.0), torch.eye(2)
        >>> sites = Sites(torch.tensor([[1.0], [3.0]]), torch.ones(2))
        >>> q = Dual(kernel, kernel.embed(x), torch.tensor([True, True]), sites)
        >>> q.marginals(x[:1])
        Normal(mean=tensor([[0.5000]], grad_fn=<ToCopyBackward0>), var=tensor([[0.5000]], grad_fn=<ToCopyBackward0>))
    """

    def __init__(self, kernel: Kernel, z: Float[Tensor, "*b n M"], mask: Bool[Tensor, "*b n"], sites: Sites) -> None:
        self.kernel, self.mask, self.dtype = kernel, mask, z.dtype
        self.z, self.sites = z.double(), Sites(sites.m.double(), sites.s.double())
        self.K = kernel.gram(self.z, self.z) * (mask[..., :, None] & mask[..., None, :])
        self.factor = linalg.factorise(self.K + torch.diag_embed(self.sites.s))
        self.L_m = self.factor.solve(self.sites.m)  # L^-1 m

    def marginals(self, x: Float[Tensor, "*b v m"], noise: Noise = None) -> Normal | Student:
        r"""$\mu_* = k_* (K+S)^{-1} m$, $v_* = k_{**} - k_* (K+S)^{-1} k_*^\top$ at features x (eq. 8)."""
        z = self.kernel.embed(x).double()
        k = self.kernel.gram(self.z, z) * self.mask[..., :, None]
        L_k = self.factor.solve(k)  # L^-1 k_*^T
        var = self.kernel.diagonal(z) - L_k.square().sum(-2)
        mean = _add_mean(L_k.mT @ self.L_m, self.kernel, x)
        # Rounding can take the difference of two equal numbers below zero.
        q = Normal(mean.to(x.dtype), var.clamp(min=0).unsqueeze(-1).to(x.dtype))
        return _up_to_a_factor(q, self.kernel, x, self.mask.sum(-1), self.deviation())

    def deviation(self) -> Tensor:
        r"""$\delta = m^\top (K+S)^{-1} m$, how far the points are from what the prior expects; n on average."""
        return self.L_m.square().sum((-2, -1))

    def kl(self) -> Tensor:
        r"""$\frac12 [ \sum_c a_c^\top K a_c + C ( \log|K+S| - \sum \log s - n + \sum_j s_j (K+S)^{-1}_{jj} ) ]$.

        The site form $E_q[\log N(m \mid f, s)] - \log N(m \mid 0, K+S)$ after its equal parts cancel, with
        $a = (K+S)^{-1} m$: no inverse of K (eq. 9). $a^\top K a$ is also $m^\top a - a^\top S a$, but where targets
        contradict each other that is a small difference of large numbers.
        """
        m, s = self.sites
        L_inv = self.factor.inverse()
        a = L_inv.mT @ self.L_m
        trace = (s * L_inv.square().sum(-2)).sum(-1)
        fit = (a * (self.K @ a)).sum((-2, -1))
        kl = 0.5 * (fit + m.shape[-1] * (self.factor.logdet() - s.log().sum(-1) - s.shape[-1] + trace))
        return kl.to(self.dtype)

    def log_evidence(self) -> Tensor:
        r"""$\sum_c \log N(m_c \mid 0, K + S)$ (eq. 10)."""
        n, c = self.mask.sum(-1).double(), self.sites.m.shape[-1]
        return -0.5 * (self.deviation() + c * (self.factor.logdet() + n * log(2 * pi))).to(self.dtype)

    def update(self, x: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"], sites: Sites) -> "Dual":
        """The posterior after more points, which keeps them all: memory and cost grow with their number."""
        z = torch.cat([self.z.to(self.dtype), self.kernel.embed(x)], -2)
        m, s = torch.cat([self.sites.m, sites.m], -2), torch.cat([self.sites.s, sites.s], -1)
        return Dual(self.kernel, z, torch.cat([self.mask, mask], -1), Sites(m, s))


class Primal(Posterior):
    """The posterior through the Cholesky factor of A + I, from the memory alone.

    Args:
        kernel: an explicit kernel.
        memory: what the points had to say, in float64.
        dtype: precision of `kl` and `log_evidence`.

    Example:
        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors import Primal, Sites, memorise
        >>> kernel, phi = Linear(), torch.tensor([[1.0], [2.0]])
        >>> sites = Sites(torch.tensor([[1.0], [2.0]]), torch.tensor([0.1, 0.1]))
        >>> q = Primal(kernel, memorise(kernel.embed(phi), torch.tensor([True, True]), sites))
        >>> at = q.marginals(torch.tensor([[3.0]]))
        >>> round(at.mean.item(), 2), round(at.var.item(), 2)  # nearly 3, which the two points suggest
        (2.94, 0.18)
    """

    def __init__(self, kernel: ExplicitKernel, memory: Memory, *, dtype: torch.dtype = torch.float64) -> None:
        self.kernel, self.memory, self.dtype = kernel, memory, dtype
        self.factor = linalg.factorise(memory.A + linalg.identity_like(memory.A), what="A + I")
        self.L_b = self.factor.solve(memory.b)  # L^-1 b
        self.w = self.factor.solve_transposed(self.L_b)  # (A + I)^-1 b

    @property
    def finite(self) -> bool:
        """Whether its means are numbers, as those of all points are."""
        return bool(self.w.isfinite().all())

    def marginals(self, x: Float[Tensor, "*b v m"], noise: Noise = None) -> Normal | Student:
        r"""$\mu_* = z_*^\top w$, $v_* = z_*^\top (A+I)^{-1} z_*$ at features x (eq. 12)."""
        z = self.kernel.embed(x).double()
        var = self.factor.solve(z.mT).square().sum(-2)
        q = Normal(_add_mean(z @ self.w, self.kernel, x).to(x.dtype), var.unsqueeze(-1).to(x.dtype))
        return _up_to_a_factor(q, self.kernel, x, self.memory.n, self.deviation())

    def deviation(self) -> Tensor:
        r"""$\delta = c - b^\top (A+I)^{-1} b$, how far the points are from what the prior expects; n on average."""
        return (self.memory.c.sum(-1) - self.L_b.square().sum((-2, -1))).clamp(min=0)

    def kl(self) -> Tensor:
        r"""$\frac12 [ \sum_c w_c^\top w_c + C ( \log|A+I| - \mathrm{tr}\, A (A+I)^{-1} ) ]$ (eq. 13)."""
        L_inv = self.factor.inverse()
        trace = L_inv.shape[-1] - L_inv.square().sum((-2, -1))  # tr A(A+I)^-1 = M - tr (A+I)^-1
        kl = 0.5 * (self.w.square().sum((-2, -1)) + self.w.shape[-1] * (self.factor.logdet() - trace))
        return kl.to(self.dtype)

    def log_evidence(self) -> Tensor:
        r"""$\sum_c -\frac12 [ c - b^\top (A+I)^{-1} b + \log|A+I| + l + n \log 2\pi ]$ (eq. 14)."""
        _, b, _, l, n = self.memory  # noqa: E741 - the paper's letter
        outputs = b.shape[-1]
        return -0.5 * (self.deviation() + outputs * (self.factor.logdet() + l + n * log(2 * pi))).to(self.dtype)

    def update(self, x: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"], sites: Sites) -> "Primal":
        """The posterior after more points; this one stays as it is."""
        return self.merge(memorise(self.kernel.embed(x), mask, sites))

    def merge(self, other: Memory) -> "Primal":
        """The posterior given this memory's points and another's."""
        return Primal(self.kernel, self.memory + other, dtype=self.dtype)

    def forget(self, other: Memory) -> "Primal":
        """The posterior without the points of another memory, which must be among this one's."""
        return Primal(self.kernel, self.memory - other, dtype=self.dtype)


class EachPoint(Posterior):
    """A posterior for each query point, under features that were made for that point.

    Args:
        each: of all query points, the first batch dimension being theirs.
        mask: which of these are real, `(..., v)`.

    Example:
        >>> import torch
        >>> from metavib.kernels import Linear
        >>> from metavib.posteriors import EachPoint, Sites, posterior
        >>> phi = torch.tensor([[[1.0]], [[2.0]]])  # one support point, whose feature differs for two query points
        >>> sites = Sites(torch.ones(2, 1, 1), torch.ones(2, 1))
        >>> each = posterior(Linear(), phi, torch.ones(2, 1, dtype=torch.bool), sites)
        >>> q = EachPoint(each, torch.ones(2, dtype=torch.bool))
        >>> q.marginals(phi).mean.flatten().tolist()
        [0.5, 0.8...]
    """

    def __init__(self, each: Dual | Primal, mask: Bool[Tensor, "*b v"]) -> None:
        self.each, self.mask = each, mask

    def marginals(self, x: Float[Tensor, "v *b 1 m"], noise: Noise = None) -> Normal:
        """q(f) at each point under its own posterior, `(..., v, c)`."""
        q = self.each.marginals(x, noise)
        mean, var = q.mean, q.var
        return Normal(mean.squeeze(-2).movedim(0, -2), var.squeeze(-2).movedim(0, -2))

    def kl(self) -> Tensor:
        """The mean over the real query points: each of them is a part of the bound, and has a KL of its own."""
        kl = self.each.kl().movedim(0, -1)
        return torch.where(self.mask, kl, 0.0).sum(-1) / self.mask.sum(-1).clamp(min=1)


def posterior(kernel: Kernel, phi: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"], sites: Sites) -> Dual | Primal:
    """The posterior in its cheaper form: primal where an explicit kernel has fewer features than there are points."""
    z = kernel.embed(phi)
    if isinstance(kernel, ExplicitKernel) and z.shape[-2] > z.shape[-1]:
        return Primal(kernel, memorise(z, mask, sites), dtype=z.dtype)
    return Dual(kernel, z, mask, sites)


def _up_to_a_factor(q: Normal, kernel: Kernel, phi: Tensor, n: Tensor, deviation: Tensor) -> Normal | Student:
    r"""The same marginals where the size of the process is known up to a factor (eq. 33a)."""
    if (freedom := kernel.freedom()) is None:
        return q
    of_task, of_output = freedom.double()
    ratio = (of_task + deviation) / (of_task + n)
    df = 1 / (1 / of_output + 1 / (of_task + n))
    ratio, df, n = (t[..., None, None].expand_as(q.mean).to(q.mean.dtype) for t in (ratio, df, n))
    mean = q.mean
    if (before := kernel.before(phi)) is not None:
        level, factor = before
        mean, ratio = torch.where(n > 0, mean, mean + level), torch.where(n > 0, ratio, ratio * factor)
    return Student(mean, ratio * q.var, ratio, df)


def _add_mean(residual: Tensor, kernel: Kernel, phi: Tensor) -> Tensor:
    """The mean of f, from that of f - m(x)."""
    mean = kernel.mean(phi)
    return residual if mean is None else residual + mean.double()
