"""The same step in less time: compiled, recorded as a CUDA graph, shared out to several processes.

A step (`metavib.training.step.Step`) is written once, as if there were one process and no compiler. `fastest` is the
one place where it is made fast; `ranks` shares its tasks out.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from metavib.networks.layers import Conv2d
from metavib.training.config import Config
from metavib.training.engine.compile import Compiled, pays
from metavib.training.engine.graph import Replayed
from metavib.training.step import Step


def fastest(step: Step, config: Config) -> Callable[[], tuple[Tensor, ...]]:
    """The step, compiled if training is long, and on a GPU recorded: the same numbers up to rounding.

    Bound and gradient are compiled in one piece where operations are small: that is one call, and nothing is kept from
    the first half for the second. With convolutions they are compiled apart, because what is not kept is computed
    again, and pooling's choice would be made again at each of its four positions. A recorded step has no calls to
    save, so on a GPU they are always apart.
    """
    if compiles(config):
        if config.device == "cpu" and not any(isinstance(part, Conv2d) for part in step.model.modules()):
            step.gradient = Compiled(step.gradient)
        else:
            step.bound = Compiled(step.bound)
    return Replayed(step, step.streams) if config.device.startswith("cuda") else step


def compiles(config: Config) -> bool:
    """Whether the steps of a training are worth compiling."""
    return pays(config.device, times=config.train.steps // config.unrolled)


def seconds_as_written(step: Step) -> float:
    """How long a step takes uncompiled, about: what a training can be expected to take at most."""
    step.rehearse()  # the first one also makes room and loads libraries
    begin = time.perf_counter()
    step.rehearse()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin
