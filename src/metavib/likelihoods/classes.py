"""Likelihoods of class labels: Bernoulli for two classes, softmax for N."""

from collections.abc import Callable
from functools import reduce
from math import pi, sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from metavib import quadrature
from metavib.fast import draws
from metavib.likelihoods.likelihood import ClassLikelihood, floating
from metavib.marginals import Marginals, Nodes, Normal
from metavib.random import Noise


class Bernoulli(ClassLikelihood):
    r"""$p(y = 1 \mid f) = 1 / (1 + e^{-f})$: two classes, labels 0 and 1, one latent function.

    The logistic function is a mixture of Gaussian distribution functions, $\sum_i w_i \Phi(f / \tau_i)$, each of which
    meets a Gaussian q(f) in closed form: $E_q[\Phi(f / \tau)] = \Phi(\mu / \sqrt{\tau^2 + v})$ (eqs. 22g to 22i).

    Example:
        The less is known of f, the closer are the probabilities to one half.

        >>> import torch
        >>> from metavib.likelihoods import Bernoulli
        >>> from metavib.marginals import Normal
        >>> [[round(p, 3) for p in Bernoulli().predict(Normal(torch.tensor([[2.0]]), torch.tensor([[v]])))[0].tolist()]
        ...  for v in (0.0, 100.0)]
        [[0.119, 0.881], [0.422, 0.578]]
    """

    classes = 2

    def targets(self, y: Tensor) -> Tensor:
        """-1 for class 0 and +1 for class 1."""
        return _signed(y).unsqueeze(-1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$-\log(1 + e^{-y f})$ with $y \in \{-1, +1\}$."""
        return F.logsigmoid(_signed(y).to(f.dtype) * f.squeeze(-1))

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$-\sum_i w_i s_i\, [z_i \Phi(z_i) + \phi(z_i)]$ with $z_i = -y \mu / s_i$ for a Normal q (eq. 22i).

        $s_i^2 = \tau_i^2 + v$, and the brackets are the integral of $\Phi$, as $\log(1 + e^x)$ is that of the logistic.
        """
        if not isinstance(q, Normal):
            return super().expected_log_prob(q, y, noise)
        mean, var = _signed(y).to(q.mean.dtype) * q.mean.squeeze(-1), q.var.squeeze(-1)
        s, log_w = self._mixture(var)
        z = -mean / s
        return -(log_w.exp() * s * (z * torch.special.ndtr(z) + (-0.5 * z * z).exp() / sqrt(2 * pi))).sum(0)

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\log \sum_i w_i \Phi(y \mu / \sqrt{\tau_i^2 + v})$ for a Normal q (eq. 22h)."""
        if not isinstance(q, Normal):
            return super().log_predictive(q, y, noise)
        return self._log_sigmoid(_signed(y).to(q.mean.dtype) * q.mean.squeeze(-1), q.var.squeeze(-1))

    def predict(self, q: Marginals, noise: Noise = None) -> Tensor:
        """Predictive probabilities of class 0 and class 1."""
        if not isinstance(q, Normal):
            return super().predict(q, noise)
        mean, var = q.mean.squeeze(-1), q.var.squeeze(-1)
        return torch.stack([self._log_sigmoid(-mean, var), self._log_sigmoid(mean, var)], -1).softmax(-1)

    def probabilities(self, f: Tensor) -> Tensor:
        """p(0 | f) and p(1 | f)."""
        return torch.cat([torch.sigmoid(-f), torch.sigmoid(f)], -1)

    @staticmethod
    def _mixture(var: Tensor) -> tuple[Tensor, Tensor]:
        """Standard deviations s_i `(i, ...)` of the mixture's parts under q, and logarithms of their weights."""
        tau2, log_w = (t.reshape(-1, *(1,) * var.ndim) for t in quadrature.logistic_mixture(var.dtype, var.device))
        return (tau2 + var).sqrt(), log_w

    def _log_sigmoid(self, mean: Tensor, var: Tensor) -> Tensor:
        r"""$\log E[1 / (1 + e^{-f})]$ for $f \sim N(\mu, v)$, with a small error relative to the probability itself.

        Far below zero the tails of a finite mixture are not the logistic's. There $1 / (1 + e^{-f}) = e^f / (1 + e^f)$
        helps: the factor $e^f$ moves the Gaussian to $\mu + v$ and leaves $e^{\mu + v/2}$ before the integral, exactly.
        """
        far = mean < -var / 2
        moved = torch.where(far, -mean - var, mean)
        s, log_w = self._mixture(var)
        return torch.where(far, mean + var / 2, 0.0) + torch.logsumexp(log_w + torch.special.log_ndtr(moved / s), 0)


class Softmax(ClassLikelihood):
    r"""$p(y = n \mid f) = e^{f_n} / \sum_{n'} e^{f_{n'}}$ over N classes, each with a latent function of its own.

    The expectation over a Normal q has no closed form: it is estimated with reparameterised samples.

    Args:
        classes: N, the ways of the task.
        samples: how many.

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Softmax
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.tensor([[2.0, 0.0, -3.0]]), torch.ones(1, 1))
        >>> p = Softmax(3).predict(q, torch.Generator().manual_seed(0))
        >>> p.argmax().item(), round(p.sum().item(), 3)
        (0, 1.0)
    """

    def __init__(self, classes: int, *, samples: int = 200) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"Softmax needs at least 2 classes; got {classes}.")
        self.classes = self.latents = classes
        self.samples = samples

    def targets(self, y: Tensor) -> Tensor:
        """+1 in the column of a point's class, -1 in the others."""
        return 2.0 * F.one_hot(y, self.classes).to(torch.get_default_dtype()) - 1.0

    def nodes(self, q: Marginals, noise: Noise = None) -> Nodes:
        """Reparameterised samples of a Normal q; the nodes of a discrete q."""
        return q.monte_carlo(self.samples, noise) if isinstance(q, Normal) else q.nodes()

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """A mean over nodes is the sum of those over parts of them."""
        return reduce(torch.add, self._parts(lambda nodes: nodes.mean(self.log_prob(nodes.f, y)), q, noise))

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """The same on the log scale."""
        parts = self._parts(lambda nodes: nodes.log_mean_exp(self.log_prob(nodes.f, y)), q, noise)
        return reduce(torch.logaddexp, parts)

    def predict(self, q: Marginals, noise: Noise = None) -> Tensor:
        """Predictive class probabilities."""
        if torch.is_grad_enabled():  # nobody's gradient of N numbers a point is worth the trouble of parts
            return super().predict(q, noise)
        return reduce(torch.add, self._parts(lambda nodes: nodes.mean(self.probabilities(nodes.f)), q, noise))

    def _parts(self, g: Callable[[Nodes], Tensor], q: Marginals, noise: Noise) -> list[Tensor]:
        return draws.in_parts(g, q, self.samples, noise) if isinstance(q, Normal) else [g(q.nodes())]

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$f_y - \log \sum_n e^{f_n}$."""
        index = y.expand(f.shape[:-1]).unsqueeze(-1)
        return f.gather(-1, index).squeeze(-1) - torch.logsumexp(f, -1)

    def probabilities(self, f: Tensor) -> Tensor:
        """Softmax over the classes."""
        # PyTorch is ten times faster on a CPU where the few classes are not the innermost dimension.
        return torch.softmax(f.movedim(-1, 0).contiguous(), 0).movedim(0, -1)


def ordered(q: Marginals, p: Float[Tensor, "*b v N"]) -> Float[Tensor, "*b v N"]:
    """Estimated probabilities of N classes, in the order that the true ones are known to have.

    Where all classes share their variance, as under every GP posterior here, the class with the largest mean is the
    most probable one, and so on down to the last (eq. 20a). Estimates from a few hundred draws do not know that. Here
    they are dealt to the classes in the order of the means, and equal means share theirs equally: the predicted class
    is then that of the largest mean, whatever was drawn. No estimate gets further from the truth by it. Other
    probabilities are returned as they are.

    Args:
        q: the marginals that p was estimated from.
        p: probabilities, such as `Softmax.predict` gives.

    Example:
        Eight draws say little of two means that are so close.

        >>> import torch
        >>> from metavib.likelihoods import Softmax, ordered
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.tensor([[0.0, 0.01, -3.0]]), torch.ones(1, 1))
        >>> p = Softmax(3, samples=8).predict(q, torch.Generator().manual_seed(6))
        >>> p.argmax().item(), ordered(q, p).argmax().item()
        (0, 1)
    """
    if not isinstance(q, Normal) or q.var.shape[-1] != 1 or q.mean.shape != p.shape:
        return p
    mean = q.mean
    dealt = torch.empty_like(p).scatter(-1, mean.argsort(-1, descending=True), p.sort(-1, descending=True).values)
    equal = (mean.unsqueeze(-1) == mean.unsqueeze(-2)).to(p.dtype)
    return (equal * dealt.unsqueeze(-2)).sum(-1) / equal.sum(-1)


def _signed(y: Tensor) -> Tensor:
    return 2 * floating(y) - 1
