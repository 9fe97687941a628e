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
from metavib.likelihoods import Likelihood, Softmax
from metavib.posteriors.functions import posterior
from metavib.posteriors.memory import Sites

FOLDS = 5
STEPS, STEP = 20, 0.1  # of log c that are tried, up and down from zero


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
        m, s = self.inner.under(kernel, phi, y, mask, likelihood, weight)
        assert isinstance(likelihood, Softmax)
        fold = folds(phi, y, mask)
        mean, var = torch.zeros_like(m), torch.ones_like(m[..., :1])
        for k in range(FOLDS):
            left = fold == k
            if bool(left.any()):
                kept = Sites(m.masked_fill(left.unsqueeze(-1), 0.0), s.masked_fill(left, 1.0))
                q = posterior(kernel, phi, mask & ~left, kept).marginals(phi)
                mean, var = (torch.where(left.unsqueeze(-1), new, old) for new, old in ((q.mean, mean), (q.var, var)))
        counted = (fold >= 0) * (1.0 if weight is None else weight)
        return Sites(self._factor(mean, var, y, counted).unsqueeze(-1).unsqueeze(-1) * m, s)

    def _factor(
        self,
        mean: Float[Tensor, "*b n N"],
        var: Float[Tensor, "*b n 1"],
        y: Int[Tensor, "*b n"],
        counted: Float[Tensor, "*b n"],
    ) -> Float[Tensor, "*b"]:
        r"""c of each task.

        The difference of two functions has the variance 2 v. What that makes of a logistic function's mean is $\sigma(d
        / \sqrt{1 + \pi v / 4})$ (MacKay, 1992), all but exactly, and the softmax of several is treated alike.
        """
        log_c = STEP * torch.arange(-STEPS, STEPS + 1, dtype=mean.dtype, device=mean.device)
        f = (mean / (1 + pi * var / 4).sqrt()).unsqueeze(-1) * log_c.exp()  # (..., n, N, factors)
        at = y[..., None, None].expand(*y.shape, 1, len(log_c))
        losses = -torch.log_softmax(f, -2).gather(-2, at).squeeze(-2)
        loss = (counted.unsqueeze(-1) * losses).sum(-2) + 0.5 * self.learned_from * log_c.square()
        return log_c[loss.argmin(-1)].exp()


def folds(phi: Float[Tensor, "*b n m"], y: Int[Tensor, "*b n"], mask: Bool[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """The fold of each point, one class like the other; -1 for padding, and where no other point of the class differs.

    Points of a class are numbered by what they are, not by when they came: a task is the same in whatever order it is
    learned.

    Example:
        >>> import torch
        >>> phi, y = torch.tensor([[3.0], [1.0], [2.0], [1.0], [7.0]]), torch.tensor([0, 0, 0, 0, 1])
        >>> folds(phi, y, torch.ones(5, dtype=torch.bool)).tolist()
        [2, 0, 1, 0, -1]
    """
    same = (y[..., :, None] == y[..., None, :]) & mask[..., :, None] & mask[..., None, :]
    key, place = phi.sum(-1), torch.arange(y.shape[-1], device=y.device)
    mine, other = key[..., :, None], key[..., None, :]
    again = (same & (mine == other) & (place < place[:, None])).any(-1)  # of a point that came before
    below = same & (other < mine) & ~again[..., None, :]
    alone = ~(same & (mine != other)).any(-1)
    return (below.sum(-1) % FOLDS).masked_fill(alone, -1)
