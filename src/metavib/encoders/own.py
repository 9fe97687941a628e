r"""How sure a task may be, by its own points: sites whose targets are as large as points left out say (`OwnSites`).

How easily classes are told apart differs from task to task. Of a handful of classes to learn from little is known of
how much: five new classes may be all but the same, or far apart. A task with two points of a class or more shows it
itself. Its points are left out by folds, each time as many of every class, and predicted from the others; the targets
of all sites are then multiplied by the factor c under which that goes best,

$$\sum_j -\log p_c(y_j \mid \text{the other folds}) + \tfrac{N}{2} (\log c)^2,$$

where N is the number of classes learned from: the more of these there are, the better c = 1 is known. The posterior
mean is c times what it was, and no variance changes. Equal points of a class are left out together, and a point of
weight w counts as w of them.
"""

from math import pi
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from metavib.encoders.sites import SiteEncoder
from metavib.kernels import Kernel
from metavib.likelihoods import ClassLikelihood, Likelihood
from metavib.posteriors.functions import posterior
from metavib.posteriors.memory import Sites

FOLDS = 5
STEPS, STEP = 20, 0.1  # of log c that are tried, up and down from zero
ENOUGH = 500  # points of a task that are asked, the first ones of each class


@final
class OwnSites(SiteEncoder):
    """Sites of several classes, with targets as large as a task's own points say.

    Args:
        inner: sites that it starts from.
        learned_from: N, of how many classes these were learned.

    Example:
        Two classes that are far apart: three points of each make their targets larger.

        >>> import torch
        >>> from metavib.encoders import OwnSites, SimplifiedSites
        >>> from metavib.kernels import Linear
        >>> from metavib.likelihoods import Softmax
        >>> phi, y = torch.tensor([[-3.0], [-3.1], [-2.9], [3.0], [3.1], [2.9]]), torch.tensor([0, 0, 0, 1, 1, 1])
        >>> sites, all_real = OwnSites(SimplifiedSites(m=1.0, s=1.0), learned_from=3), torch.ones(6, dtype=torch.bool)
        >>> m, _ = sites.under(Linear(), phi, y, all_real, Softmax(2))
        >>> bool(m[0, 0] > 1.2), bool(m[0, 0] == -m[0, 1])
        (True, True)
    """

    together = "how sure to be is learned from all points of a task together, which are kept"
    learned_from: Tensor

    def __init__(self, inner: SiteEncoder, learned_from: int) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("learned_from", torch.tensor(float(learned_from)))

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """The sites that it starts from."""
        _check_classes(likelihood)
        return self.inner.sites(phi, y, likelihood)

    def under(
        self,
        kernel: Kernel,
        phi: Tensor,
        y: Tensor,
        mask: Tensor,
        likelihood: Likelihood,
        weight: Tensor | None = None,
    ) -> Sites:
        """The same with targets times c."""
        _check_classes(likelihood)
        m, s = self.inner.under(kernel, phi, y, mask, likelihood, weight)
        if not y.numel():
            return Sites(m, s)
        counted = torch.ones_like(phi[..., 0]) if weight is None else weight
        rank = ranks(phi, y, mask)
        asked = [phi, y, mask, m, s.expand(y.shape), counted, rank]
        if y.shape[-1] > ENOUGH:
            some = torch.where(mask, rank, y.shape[-1]).argsort(dim=-1, stable=True)[..., :ENOUGH]
            asked = [_taken(t, some) for t in asked]
        c = self._factor(kernel, *asked)
        return Sites(c.unsqueeze(-1).unsqueeze(-1) * m, s)

    def _factor(
        self, kernel: Kernel, phi: Tensor, y: Tensor, mask: Tensor, m: Tensor, s: Tensor, counted: Tensor, rank: Tensor
    ) -> Float[Tensor, "*b"]:
        r"""c of each task.

        The difference of two functions has the variance 2 v. What that makes of a logistic function's mean is $\sigma(d
        / \sqrt{1 + \pi v / 4})$ (MacKay, 1992), all but exactly, and the softmax of several is treated alike.
        """
        fold = torch.where(rank < 0, rank, rank % FOLDS)
        f = torch.zeros_like(m)
        for k in range(FOLDS):
            left = fold == k
            if bool(left.any()):
                rest = Sites(m.masked_fill(left.unsqueeze(-1), 0.0), s.masked_fill(left, 1.0))
                q = posterior(kernel, phi, mask & ~left, rest).marginals(phi)
                f = torch.where(left.unsqueeze(-1), q.mean / (1 + pi * q.var / 4).sqrt(), f)
        log_c = STEP * torch.arange(-STEPS, STEPS + 1, dtype=m.dtype, device=m.device)
        counted = counted * (fold >= 0)
        losses = [
            -(counted * torch.log_softmax(c * f, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)).sum(-1)
            for c in log_c.exp()
        ]
        loss = torch.stack(losses, -1) + 0.5 * self.learned_from * log_c.square()
        return log_c[loss.argmin(-1)].exp()


def ranks(phi: Float[Tensor, "*b n m"], y: Int[Tensor, "*b n"], mask: Bool[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """The number of each point in its class, from 0; -1 for padding, and where no other point of the class differs.

    Equal points have the same number. Numbers are as good as random, but come from what a point is, and not from when
    it came: a task is the same in whatever order it is learned.

    Example:
        >>> import torch
        >>> phi, y = torch.tensor([[3.0], [1.0], [2.0], [1.0], [7.0]]), torch.tensor([0, 0, 0, 0, 1])
        >>> found = ranks(phi, y, torch.ones(5, dtype=torch.bool)).tolist()
        >>> sorted(found[:3]), found[1] == found[3], found[4]
        ([0, 1, 2], True, -1)
    """
    key = (1e4 * torch.sin(phi.double().sum(-1))).frac()
    y = torch.where(mask, y, y.max() + 1)
    order = key.argsort(dim=-1, stable=True)
    order = order.gather(-1, y.gather(-1, order).argsort(dim=-1, stable=True))  # by class, and within it by key
    of, key = y.gather(-1, order), key.gather(-1, order)
    first = torch.ones_like(of, dtype=torch.bool)
    first[..., 1:] = of[..., 1:] != of[..., :-1]
    fresh = first.clone()
    fresh[..., 1:] |= key[..., 1:] != key[..., :-1]
    number = fresh.long().cumsum(-1)
    rank = number - (number * first).cummax(-1).values
    group = first.long().cumsum(-1) - 1
    alone = torch.zeros_like(rank).scatter_reduce(-1, group, rank, "amax").gather(-1, group) == 0
    found = torch.zeros_like(rank).scatter(-1, order, rank.masked_fill(alone, -1))
    return found.masked_fill(~mask, -1)


def _check_classes(likelihood: Likelihood) -> None:
    if not isinstance(likelihood, ClassLikelihood) or likelihood.latents < 2:
        raise TypeError(
            "how sure to be of classes is learned where each has a function of its own; got "
            f"{type(likelihood).__name__}. Use SimplifiedSites."
        )


def _taken(t: Tensor, places: Int[Tensor, "*b k"]) -> Tensor:
    """Some of the points of each task."""
    if t.ndim == places.ndim:
        return t.gather(-1, places)
    return t.gather(-2, places.unsqueeze(-1).expand(*places.shape, t.shape[-1]))
