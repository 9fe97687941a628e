r"""The bound: the variational information bottleneck of Titsias et al. (2021).

$$F = E_{q(Z \mid D_t)}[\log p(D_v \mid Z)] - \beta\, KL[q(Z \mid D_t) \,\|\, p(Z)]$$

Every method is this one function of a model (prior, encoder, likelihood). F bounds the information bottleneck (eqs. 1
to 4; THEORY.md, section 2).
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from metavib.likelihoods import Likelihood
from metavib.posteriors.posterior import Encoding
from metavib.random import Noise
from metavib.tasks.inputs import Points, points
from metavib.tasks.task import Examples, Task


class Bound(NamedTuple):
    r"""The terms of F, one number a task: `fit` $E_q[\log p(D_v|Z)]$, `rate` the KL, `value` fit - beta * rate.

    Example:
        >>> import torch
        >>> from metavib.objective import Bound
        >>> fit, rate = torch.tensor([-3.0]), torch.tensor([2.0])
        >>> Bound(fit, rate, fit - 0.5 * rate).value.item()
        -4.0
    """

    fit: Tensor
    rate: Tensor
    value: Tensor


class Encodes(Protocol):
    """What the bound asks of a model.

    Example:
        >>> from metavib import kernels, methods, networks
        >>> from metavib.encoders import ExactSites
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.objective import Encodes
        >>> model: Encodes = methods.gp_vib(networks.MLP(1, (8,)), kernels.Linear(), ExactSites(), Gaussian(0.1))
        >>> model.dirac, type(model.likelihood).__name__
        (False, 'Gaussian')
    """

    @property
    def likelihood(self) -> Likelihood: ...  # noqa: D102

    @property
    def dirac(self) -> bool: ...  # noqa: D102

    def encode(self, support: Examples, query: Points, noise: Noise = None) -> Encoding: ...  # noqa: D102


class Objective(Protocol):
    """What a training maximises; `vib` is the one, baselines that are no instance of it bring their own.

    Example:
        >>> from metavib import baselines, vib
        >>> from metavib.objective import Objective
        >>> objectives: list[Objective] = [vib, baselines.evidence]
    """

    def __call__(self, model: Any, task: Task, *, beta: float, noise: Noise = None) -> Bound: ...  # noqa: D102


def vib(model: Encodes, task: Task, *, beta: float, noise: Noise = None) -> Bound:
    r"""$F$ of each task in a batch, for any model.

    Args:
        model: prior, encoder and likelihood.
        task: one task or a batch of them.
        beta: weight of the KL; 1 makes F an ELBO on $\log p(D_v)$ (eq. 5).
        noise: generator (or base samples) for the models that estimate an expectation by sampling.

    Example:
        >>> import torch
        >>> from metavib import encoders, kernels, likelihoods, methods, networks, vib
        >>> from metavib.tasks import examples, task
        >>> _ = torch.manual_seed(0)
        >>> parts = networks.MLP(1, (8,)), kernels.Linear(), encoders.ExactSites(), likelihoods.Gaussian(0.1)
        >>> model = methods.gp_vib(*parts)
        >>> support = examples([[0.0], [1.0]], [0.5, -0.5])
        >>> query = examples([[2.0]], [-1.0])
        >>> F = vib(model, task(support, query), beta=1.0)
        >>> bool(F.value == F.fit - F.rate), F.value.shape  # one task, one number
        (True, torch.Size([]))
    """
    check_beta(beta, dirac=model.dirac)
    q = model.encode(task.support, points(task.query), noise)  # q(Z | D_t, X)
    return bound(q, model.likelihood, task.query, beta=beta, noise=noise)


def bound(q: Encoding, likelihood: Likelihood, query: Examples, *, beta: float, noise: Noise = None) -> Bound:
    """F of an encoding that is already there (eq. 2).

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.kernels import Linear
        >>> from metavib.objective import bound
        >>> from metavib.posteriors import Encoding, Primal, Sites, memorise
        >>> from metavib.tasks import examples
        >>> kernel, phi = Linear(), torch.tensor([[1.0]])  # features of the one support point
        >>> sites = Sites(torch.tensor([[1.0]]), torch.tensor([0.1]))
        >>> q = Primal(kernel, memorise(kernel.embed(phi), torch.tensor([True]), sites), dtype=torch.float32)
        >>> F = bound(Encoding(q, torch.tensor([[2.0]])), Gaussian(0.1), examples([[2.0]], [1.9]), beta=1.0)
        >>> round(F.rate.item(), 2)
        1.16
    """
    # E_q[log p(D_v | Z)]
    log_p = likelihood.expected_log_prob(q.marginals(noise), query.y, noise)
    fit = torch.where(query.mask, log_p, 0.0).sum(-1)
    # KL[q(Z | D_t) || p(Z)]
    rate = q.kl()
    return Bound(fit, rate, fit - beta * rate if beta else fit)


def check_beta(beta: float, *, dirac: bool) -> None:
    """Refuses what the theory forbids.

    Example:
        >>> from metavib.objective import check_beta
        >>> check_beta(1.0, dirac=False)  # says nothing where all is well
        >>> check_beta(0.0, dirac=True)
    """
    if not 0 <= beta < float("inf"):
        raise ValueError(f"beta must be a finite number, 0 or above; got {beta}.")
    if beta > 0 and dirac:
        raise ValueError(
            f"a Dirac encoder has infinite KL against any prior, so its bound with beta = {beta} is minus infinity. "
            "Set beta = 0 (MAML), or use a Gaussian encoder (stochastic MAML)."
        )


def predictive(model: Encodes, task: Task, *, beta: float, noise: Noise = None) -> Bound:
    r"""The bound with log predictive densities in place of expected log likelihoods; arguments as in `vib`.

    $$F_p = \sum_j \log E_{q(f_j \mid D_t)}[p(y_j \mid f_j)] - \beta\, KL[q(Z \mid D_t) \,\|\, p(Z)]$$

    Its first term is what predictions are judged by, $E_q[\log p] \le \log E_q[p]$, so that $F \le F_p$. It does not
    bound the information bottleneck (eq. 5a), but what the support tells of each query output, less what Z keeps of the
    support (eq. 5b; THEORY.md, section 2). The two differ where the posterior is wide:
    $E_q[\log N(y \mid f, \sigma^2)]$ charges $v / 2\sigma^2$ for a posterior variance v, and with a handful of support
    points the cheapest way to pay less is a noise $\sigma^2$ that is too large, which then explains away the data that
    do come. In $F_p$ the variance of a prediction is $v + \sigma^2$, and $\sigma^2$ is left with the noise alone. F is
    the paper's; this one is the default on tables of real outputs, and RESULTS.md ("The two objectives") has both.

    Example:
        >>> import torch
        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> from metavib.tasks import examples, task
        >>> _ = torch.manual_seed(0)
        >>> from metavib.objective import predictive, vib
        >>> parts = networks.MLP(1, (8,)), kernels.Linear(), encoders.ExactSites(), likelihoods.Gaussian(0.1)
        >>> model = methods.gp_vib(*parts)
        >>> support = examples([[0.0], [1.0]], [0.5, -0.5])
        >>> query = examples([[2.0]], [-1.0])
        >>> given = task(support, query)
        >>> bool(predictive(model, given, beta=1.0).value >= vib(model, given, beta=1.0).value)
        True
    """
    check_beta(beta, dirac=model.dirac)
    q = model.encode(task.support, points(task.query), noise)  # q(Z | D_t, X)
    log_p = model.likelihood.log_predictive(q.marginals(noise), task.query.y, noise)
    fit = torch.where(task.query.mask, log_p, 0.0).sum(-1)
    rate = q.kl()
    return Bound(fit, rate, fit - beta * rate if beta else fit)
