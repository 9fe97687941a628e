r"""The predictive form of the bound, for tasks with noise of their own and few points.

$$F_p = \sum_j \log E_{q(f_j \mid D_t)}[p(y_j \mid f_j)] - \beta\, KL[q(Z \mid D_t) \,\|\, p(Z)]$$

Its first term is what predictions are judged by, $E_q[\log p] \le \log E_q[p]$, so that $F \le F_p$. The two differ
where the posterior is wide: $E_q[\log N(y \mid f, \sigma^2)]$ charges $v / 2\sigma^2$ for a posterior variance v, and
with a handful of support points the cheapest way to pay less is a noise $\sigma^2$ that is too large, which then
explains away the data that do come. In $F_p$ the variance of a prediction is $v + \sigma^2$, and $\sigma^2$ is left
with the noise alone. F is the paper's; this one is the default on tables of real outputs.
"""

import torch

from metavib.inputs import points
from metavib.noise import Noise
from metavib.objective import Bound, Encodes, check_beta
from metavib.tasks.task import Task


def predictive(model: Encodes, task: Task, *, beta: float, noise: Noise = None) -> Bound:
    r"""$F_p$ of each task in a batch, for any model; arguments as in `metavib.objective.vib`."""
    check_beta(beta, dirac=model.dirac)
    q = model.encode(task.support, points(task.query), noise)  # q(Z | D_t, X)
    log_p = model.likelihood.log_predictive(q.marginals(noise), task.query.y, noise)
    fit = torch.where(task.query.mask, log_p, 0.0).sum(-1)
    rate = q.kl()
    return Bound(fit, rate, fit - beta * rate if beta else fit)
