"""Second-order MAML on sinusoids, one inner step, in three ways: `higher`, `torchopt`, and an eager `torch.func.vmap`.

A step draws its tasks, adapts to the support of each, and takes one step of Adam on the mean squared error of the
queries. The first two go through the tasks one by one, as the examples of their authors do.
"""

from abc import ABC, abstractmethod
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.references.networks import Regressor
from benchmarks.references.sines import Sines, sines


class MAML(ABC):
    """Network and outer optimiser.

    Args:
        tasks: tasks a step.
        inner_rate: size of the inner step.
        seed: of the tasks.
    """

    def __init__(self, *, tasks: int = 25, inner_rate: float = 0.005, seed: int = 0) -> None:
        self.tasks, self.inner_rate, self.rng = tasks, inner_rate, np.random.default_rng(seed)
        self.network = Regressor()
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=2e-3)

    @abstractmethod
    def backward(self, tasks: Sines) -> Tensor:
        """Leaves the gradient of the mean query error in the parameters; returns that error."""

    def step(self) -> Tensor:
        """One step of training; returns the error before it."""
        self.optimiser.zero_grad()
        loss = self.backward(sines(self.tasks, self.rng))
        self.optimiser.step()
        return loss


@final
class HigherMAML(MAML):
    """With `higher`: a functional copy of the network and of its optimiser for each task."""

    def backward(self, tasks: Sines) -> Tensor:
        """Task by task; gradients add up."""
        import higher

        inner = torch.optim.SGD(self.network.parameters(), lr=self.inner_rate)
        total = torch.zeros(())
        for x_t, y_t, x_v, y_v in zip(*tasks, strict=True):
            with higher.innerloop_ctx(self.network, inner, copy_initial_weights=False) as (adapted, descent):
                descent.step(F.mse_loss(adapted(x_t), y_t))
                loss = F.mse_loss(adapted(x_v), y_v) / self.tasks
                loss.backward()
            total += loss.detach()
        return total


@final
class TorchOptMAML(MAML):
    """With `torchopt`: a differentiable SGD, and the network's state put back after each task."""

    def backward(self, tasks: Sines) -> Tensor:
        """Task by task; errors add up, one backward pass."""
        import torchopt

        inner = torchopt.MetaSGD(self.network, lr=self.inner_rate)
        start = torchopt.extract_state_dict(self.network, by="reference")
        inner_start = torchopt.extract_state_dict(inner, by="reference")
        total = torch.zeros(())
        for x_t, y_t, x_v, y_v in zip(*tasks, strict=True):
            inner.step(F.mse_loss(self.network(x_t), y_t))
            total = total + F.mse_loss(self.network(x_v), y_v) / self.tasks
            torchopt.recover_state_dict(self.network, start)
            torchopt.recover_state_dict(inner, inner_start)
        total.backward()
        torchopt.stop_gradient(self.network)
        return total.detach()


@final
class VmapMAML(MAML):
    """With `torch.func`: all tasks at once."""

    def backward(self, tasks: Sines) -> Tensor:
        """A gradient inside a vmap."""
        weights = dict(self.network.named_parameters())

        def error(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(functional_call(self.network, weights, (x,)), y)

        def query_error(x_t: Tensor, y_t: Tensor, x_v: Tensor, y_v: Tensor) -> Tensor:
            slopes = grad(error)(weights, x_t, y_t)
            adapted = {name: w - self.inner_rate * slopes[name] for name, w in weights.items()}
            return error(adapted, x_v, y_v)

        loss = vmap(query_error)(*tasks).mean()
        loss.backward()
        return loss.detach()
