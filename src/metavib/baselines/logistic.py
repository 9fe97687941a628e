r"""What a practitioner would do with features and a handful of labels: nearest centroids, and logistic regression.

Both start from features of length one, $u = \phi / |\phi|$, and each has one number of its own to learn. On features of
a pretrained network they are hard to beat (Chen et al. 2019; Tian et al. 2020). Logistic regression is solved exactly,
and differentiated through its solution, so that it can be meta-trained like any other method (Bertinetto et al. 2019).

References:
    Bertinetto, Henriques, Torr, Vedaldi. Meta-learning with differentiable closed-form solvers. arXiv 1805.08136.
    Tian, Wang, Krishnan, Tenenbaum, Isola. Rethinking Few-Shot Image Classification: a Good Embedding Is All You Need?
    arXiv 2003.11539.
"""

from math import log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from metavib.baselines.embedding import Embedding, PointMass, class_means, memberships
from metavib.encoders.encoder import Encoder
from metavib.kernels import unit
from metavib.likelihoods import Likelihood, Softmax
from metavib.model import Model
from metavib.networks import Backbone
from metavib.networks.layers import lift
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

NEWTON = 15  # steps, always as many: to ask whether fewer would do, a GPU would have to wait
STEPS = (1.0, 0.5, 0.25, 0.125, 0.03)  # shares of a Newton step, the best of which is taken


@final
class UnitHead(PointMass):
    r"""$f_n(x) = w_n \cdot u(x)$ with one vector of weights a class, and $u = \phi / |\phi|$.

    Args:
        w: the weights.
    """

    def __init__(self, w: Float[Tensor, "*b ways m"]) -> None:
        self.w = w

    @property
    def Z(self) -> Float[Tensor, "*b ways m"]:
        """The weights."""
        return self.w

    def values(self, x: Float[Tensor, "*b v m"]) -> Float[Tensor, "*b v ways"]:
        """Dot products of features x, brought to length one, with the weights."""
        return unit(x) @ self.w.mT


@final
class CentroidEncoder(Encoder):
    r"""$w_n = \gamma\, c_n / |c_n|$, $c_n$ the mean of u over the support points of class n; $\gamma$ is learned.

    Args:
        scale: where $\gamma$ starts.
    """

    dirac = True

    def __init__(self, *, scale: float = 10.0) -> None:
        super().__init__()
        self.log_gamma = nn.Parameter(torch.tensor(log(scale)))

    def forward(
        self, support: Examples, query: Points, prior: Embedding, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """A point mass at the directions of the centroids."""
        phi_t, phi_v = prior.features(support, query)
        c = class_means(unit(phi_t), support.y, support.mask, likelihood.latents)
        return Encoding(UnitHead(lift(self.log_gamma, 2).exp() * unit(c)), phi_v)


@final
class LogisticEncoder(Encoder):
    r"""The weights of largest posterior density under $w_n \sim N(0, \kappa I)$; $\kappa$ is learned.

    $$\hat w = \arg\max_w \sum_j \log \mathrm{softmax}(w u_j)_{y_j} - \frac{1}{2 \kappa} |w|^2$$

    which is scikit-learn's `LogisticRegression(C=kappa, fit_intercept=False)`. At the maximum $w = \kappa A^\top U$
    with $A = Y - P$, one row a support point: what is solved for, by Newton's method, is A. The last step alone is
    differentiated, which gives the exact derivative of the solution.

    Args:
        strength: where $\kappa$ starts.
    """

    dirac = True

    def __init__(self, *, strength: float = 10.0) -> None:
        super().__init__()
        self.log_strength = nn.Parameter(torch.tensor(log(strength)))

    def forward(
        self, support: Examples, query: Points, prior: Embedding, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """A point mass at the fitted weights."""
        phi_t, phi_v = prior.features(support, query)
        u, kappa = unit(phi_t), lift(self.log_strength, 2).exp()
        Y = memberships(support.y, support.mask, likelihood.latents).to(u.dtype)
        A = solve(kappa * u @ u.mT, Y)
        return Encoding(UnitHead(kappa * A.mT @ u), phi_v)


def solve(K: Float[Tensor, "*b n n"], Y: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b n c"]:
    r"""A with $A = Y - \mathrm{softmax}(K A)$ in the rows of Y that sum to one; zero where Y is, which is padding.

    The gradient of the (concave) log posterior density with respect to A is K times the residual of that equation.
    """
    real = Y.sum(-1, keepdim=True)
    with torch.no_grad():
        A, fixed = torch.zeros_like(Y), K.detach()
        for _ in range(NEWTON):
            step = _newton(fixed, Y, real, A)
            A = _best(fixed, Y, real, [A - share * step for share in STEPS])
    return A - _newton(K, Y, real, A)


def _newton(K: Tensor, Y: Tensor, real: Tensor, A: Tensor) -> Tensor:
    """The Newton step from A: the residual R = A - Y + P over its derivative I + (diag P - P P^T) K, point by point."""
    P = real * torch.softmax(K @ A, -1)
    n, c = Y.shape[-2:]
    # dP_jc / dA_kd = (P_jc [c = d] - P_jc P_jd) K_jk
    D = torch.diag_embed(P) - P.unsqueeze(-1) * P.unsqueeze(-2)
    J = torch.einsum("...jcd,...jk->...jckd", D, K).flatten(-2).flatten(-3, -2)
    J = J + torch.eye(n * c, dtype=K.dtype, device=K.device)
    return torch.linalg.solve(J, (A - Y + P).flatten(-2)).unflatten(-1, (n, c))


def _best(K: Tensor, Y: Tensor, real: Tensor, candidates: list[Tensor]) -> Tensor:
    """Of some solutions that with the largest posterior density, task by task."""
    A = torch.stack(candidates)
    F = K @ A
    density = ((Y * F).sum(-1) - real.squeeze(-1) * F.logsumexp(-1)).sum(-1) - 0.5 * (A * F).sum((-2, -1))
    best = density.argmax(0)
    return A.gather(0, best.reshape(1, *best.shape, 1, 1).expand(1, *A.shape[1:])).squeeze(0)


def nearest_centroids(backbone: Backbone, ways: int) -> Model:
    """Nearest centroids by cosine, their probabilities a softmax with a learned scale: train with beta = 0.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.nearest_centroids(networks.Conv4(1, 28), ways=5)
        >>> type(model.encoder).__name__, model.dirac
        ('CentroidEncoder', True)
    """
    return Model(Embedding(backbone), CentroidEncoder(), Softmax(ways))


def logistic_regression(backbone: Backbone, ways: int) -> Model:
    """Logistic regression on the support of each task, its penalty learned over tasks: train with beta = 0.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.logistic_regression(networks.Conv4(1, 28), ways=5)
        >>> type(model.encoder).__name__, model.dirac
        ('LogisticEncoder', True)
    """
    return Model(Embedding(backbone), LogisticEncoder(), Softmax(ways))
