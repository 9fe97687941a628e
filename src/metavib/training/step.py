"""One step of meta-training: sample tasks, bound, backward, optimiser."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import cos, pi
from typing import Any, final

import torch
from torch import Generator, Tensor

from metavib.model import Model
from metavib.objective import Bound, Objective
from metavib.training.config import Config
from metavib.training.protocols.experiment import Experiment

Work = Callable[..., tuple[Tensor, ...]]
"""`work(model, streams)`, from a model and the random streams of tasks and of noise to the terms of a bound."""


@final
class Step:
    r"""One call is one step up the objective, averaged over newly drawn tasks; it returns the terms of that objective.

    $$\theta \leftarrow \mathrm{Adam}\Big(\theta,\; -\nabla_\theta \tfrac{1}{T} \sum_{t=1}^{T} F(\text{task}_t)\Big)$$

    Model and streams are arguments of `bound` and `gradient`, although the step knows its own, because a compiler tries
    these functions on copies first. `metavib.training.engine.fastest` may replace one of the two by its compiled form,
    and records the whole step on a GPU: so everything a step reads and writes stays in the same memory for ever, and
    nothing in it asks the GPU for a number.

    Args:
        model: what is trained, in training mode.
        objective: what is maximised, `metavib.objective.vib` as a rule.
        experiment: where tasks come from.
        optimiser: made by `adam` for the model.
        streams: random streams of the tasks and of the noise.
        shape: how many tasks, `(tasks,)`, or `(repeats, tasks)` for several trainings side by side.
        beta: weight of the KL.

    Example:
        >>> from metavib.objective import vib
        >>> from metavib.random import seeded
        >>> from metavib.training import build
        >>> from metavib.training.protocols import experiment
        >>> from metavib.training.recipes import recipe
        >>> from metavib.training.step import Step, adam
        >>> config = recipe("sinusoid", "gp-vib")
        >>> model = build.model(config)
        >>> streams = [seeded(0), seeded(1)]
        >>> step = Step(model, vib, experiment(config), adam(model, config), streams, shape=(5,), beta=1.0)
        >>> first = step().value.mean()
        >>> for _ in range(200):
        ...     last = step().value.mean()
        >>> bool(last > first)
        True
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        experiment: Experiment,
        optimiser: torch.optim.Optimizer,
        streams: Sequence[Generator],
        *,
        shape: tuple[int, ...],
        beta: float,
    ) -> None:
        self.model, self.objective, self.experiment = model, objective, experiment
        self.optimiser, self.streams, self.shape, self.beta = optimiser, list(streams), shape, beta
        self.bound: Work = self._bound
        self.gradient: Work = self._gradient

    def __call__(self) -> Bound:
        """Takes the step."""
        self.optimiser.zero_grad()
        bound = Bound(*self.gradient(self.model, self.streams))
        self.optimiser.step()
        return bound

    def _bound(self, model: Model, streams: Sequence[Any]) -> Bound:
        """The objective on tasks drawn anew."""
        of_tasks, of_noise = streams
        tasks = self.experiment.sample(self.shape, of_tasks)
        return self.objective(model, tasks, beta=self.beta, noise=of_noise)

    def _gradient(self, model: Model, streams: Sequence[Any]) -> Bound:
        """The same, with its gradient left in the parameters' `grad`."""
        return backward(Bound(*self.bound(model, streams)))

    def rehearse(self) -> None:
        """Computes a bound and its gradient as written, on a copy of the model, and leaves everything as it was."""
        states = [stream.get_state() for stream in self.streams]
        backward(self._bound(deepcopy(self.model), self.streams))
        for stream, state in zip(self.streams, states, strict=True):
            stream.set_state(state)


def backward(bound: Bound) -> Bound:
    """Leaves the gradient of minus the bound, averaged over tasks, in `grad`; returns the terms, detached.

    Where gradients are off there is none to leave. A compiler uses that to note what is drawn.
    """
    if torch.is_grad_enabled():  # mean over tasks, sum over repeats: each repeat sees its own gradient
        bound.value.backward(torch.full_like(bound.value, -1 / bound.value.shape[-1]))
    return Bound(*(term.detach() for term in bound))


def adam(model: Model, config: Config) -> torch.optim.Adam:
    """Adam, with rates of their own for the kernel's out-scale, the encoder, and a network that knows something."""
    options, cuda = config.train, config.device.startswith("cuda")
    rates: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        rate = options.lr
        if name.endswith("log_scale") and options.scale_lr is not None:
            rate = options.scale_lr
        elif name.startswith("encoder.") and options.site_lr is not None:
            rate = options.site_lr
        elif ".trunk." in name and options.network_lr is not None:
            rate = options.network_lr
        if parameter.requires_grad:
            rates.setdefault(rate, []).append(parameter)
    groups: list[dict[str, Any]] = []
    for rate, parameters in rates.items():
        # A recorded step reads its learning rate from memory.
        lr = torch.tensor(rate, device=config.device) if cuda else rate
        groups.append({"params": parameters, "lr": lr, "peak": rate})
    return torch.optim.Adam(groups, fused=True, capturable=cuda)


def set_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Sets every learning rate to a share of its peak."""
    for group in optimiser.param_groups:
        rate = group["peak"] * factor
        if not isinstance(group["lr"], Tensor):
            group["lr"] = rate
        elif rate != group.get("now"):  # a launch of its own each time, and most schedules are constant
            group["lr"].fill_(rate)
            group["now"] = rate


def decay(schedule: str, progress: float) -> float:
    """The share of the peak learning rate that is left after a share of the steps."""
    return 0.5 * (1 + cos(pi * progress)) if schedule == "cosine" else 1.0
