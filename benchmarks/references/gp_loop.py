"""Deep-kernel GP regression on sinusoids with GPyTorch: an exact GP on learned features, one task after the other.

A step draws its tasks, adds up an objective over them in a loop, and takes one step of Adam. Two objectives:

* `EvidenceLoop`: the marginal likelihood of all points of a task, the loop of deep kernel transfer for regression. It
  does less than GP-VIB: nothing is encoded or predicted.
* `BoundLoop`: GP-VIB's own bound, from the pieces GPyTorch offers: predictions at the query and at the support of a GP
  conditioned on the support, and the marginal likelihood of the support.
"""

from abc import ABC, abstractmethod
from typing import final

import gpytorch
import numpy as np
import torch
from torch import Tensor

from benchmarks.references.networks import Regressor
from benchmarks.references.sines import Sines, sines


class LinearGP(gpytorch.models.ExactGP):
    """f ~ GP(0, a z . z') on features z."""

    def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood) -> None:
        super().__init__(torch.ones(2, 40), torch.ones(2), likelihood)  # a place for data, set for each task
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.LinearKernel()

    def forward(self, z: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at some features."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(z), self.covar_module(z))


class GPLoop(ABC):
    """Network, GP and optimiser.

    Args:
        tasks: tasks a step.
        seed: of the tasks.
    """

    def __init__(self, *, tasks: int = 5, seed: int = 0) -> None:
        self.tasks, self.rng = tasks, np.random.default_rng(seed)
        self.features = Regressor().features
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.gp = LinearGP(self.likelihood)
        self.mll = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.gp)
        self.optimiser = torch.optim.Adam([*self.features.parameters(), *self.gp.parameters()], lr=1e-3)

    @abstractmethod
    def objective(self, z_t: Tensor, y_t: Tensor, z_v: Tensor, y_v: Tensor) -> Tensor:
        """What is maximised, of one task: features and outputs of its support and query."""

    def loss(self, tasks: Sines) -> Tensor:
        """Minus the objective, averaged over tasks."""
        total = torch.zeros(())
        for x_t, y_t, x_v, y_v in zip(*tasks, strict=True):
            z = self.features(torch.cat([x_t, x_v]))
            total = total - self.objective(z[: len(x_t)], y_t.squeeze(-1), z[len(x_t) :], y_v.squeeze(-1))
        return total / self.tasks

    def step(self) -> Tensor:
        """One step of training; returns the loss before it."""
        self.optimiser.zero_grad()
        loss = self.loss(sines(self.tasks, self.rng))
        loss.backward()
        self.optimiser.step()
        return loss.detach()


@final
class EvidenceLoop(GPLoop):
    """Maximises the marginal likelihood of support and query together."""

    def objective(self, z_t: Tensor, y_t: Tensor, z_v: Tensor, y_v: Tensor) -> Tensor:
        """The log marginal likelihood, a point's share of it."""
        z, y = torch.cat([z_t, z_v]), torch.cat([y_t, y_v])
        self.gp.train()
        self.gp.set_train_data(inputs=z, targets=y, strict=False)
        return self.mll(self.gp(z), y)


@final
class BoundLoop(GPLoop):
    """Maximises GP-VIB's bound, beta = 1."""

    def objective(self, z_t: Tensor, y_t: Tensor, z_v: Tensor, y_v: Tensor) -> Tensor:
        """Expected log likelihood of the query, minus the KL in its site form."""
        self.gp.train()
        self.gp.set_train_data(inputs=z_t, targets=y_t, strict=False)
        evidence = self.mll(self.gp(z_t), y_t) * len(y_t)
        self.gp.eval()
        with gpytorch.settings.detach_test_caches(False), gpytorch.settings.debug(False):
            q = self.gp(torch.cat([z_t, z_v]))
        fit = self.likelihood.expected_log_prob(torch.cat([y_t, y_v]), q)
        return fit[len(y_t) :].sum() - (fit[: len(y_t)].sum() - evidence)
