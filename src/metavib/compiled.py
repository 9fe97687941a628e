"""An objective compiled by `torch.compile`: the same numbers up to rounding, from far fewer kernels.

The bound reads like its formula, and so runs as some hundred small operations. A compiler fuses them: batch-norm, ReLU
and pooling into one pass over the activations, the Monte Carlo expectation into one that never stores its samples.
"""

import warnings
from copy import deepcopy
from typing import Any, final

import torch
from torch import Generator, Tensor

from metavib.noise import Drawn, Noise, Noted
from metavib.objective import Bound, Objective
from metavib.tasks.task import Task


@final
class Compiled:
    """An objective that is compiled at its first call, for the model and the shape of tasks it is called with.

    Compiled code cannot draw from a generator. So the shapes of the base samples that the objective takes are noted
    once, on a copy of the model, and from then on the samples are drawn beforehand: the same ones, in the same order
    and from the same generator, as the objective would have drawn itself.

    Args:
        objective: as written.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.shapes: list[tuple[int, ...]] | None = None
        self.compiled: Any = torch.compile(self._terms, fullgraph=True, dynamic=False)

    def __call__(self, model: Any, task: Task, *, beta: float, noise: Noise = None) -> Bound:
        """The terms of the objective, as it gives them itself."""
        if self.shapes is None and not self._prepare(model, task, beta, noise):
            self.compiled = self._terms
        return Bound(*self.compiled(model, task, beta, self._draw(task, noise)))

    def _terms(self, model: Any, task: Task, beta: float, samples: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        bound = self.objective(model, task, beta=beta, noise=Drawn(samples))
        return bound.fit, bound.rate, bound.value

    def _draw(self, task: Task, noise: Noise) -> list[Tensor]:
        x = task.support.x
        assert self.shapes is not None
        return [torch.randn(shape, generator=noise, dtype=x.dtype, device=x.device) for shape in self.shapes]  # type: ignore[arg-type]

    def _prepare(self, model: Any, task: Task, beta: float, noise: Noise) -> bool:
        """Notes the shapes and compiles, forwards and backwards, on a copy of the model; says whether it can be."""
        assert isinstance(noise, Generator)
        copy, state, noted = deepcopy(model), noise.get_state(), Noted(noise)
        with torch.no_grad():
            self.objective(copy, task, beta=beta, noise=noted)
        self.shapes = noted.shapes
        try:
            *_, value = self.compiled(copy, task, beta, self._draw(task, noise))
            value.sum().backward()
        except Exception as error:  # a compiler may fail in any way, and the objective as written is always there
            warnings.warn(f"this objective cannot be compiled and runs as written: {error}", stacklevel=3)
            return False
        finally:
            noise.set_state(state)
        return True


def compiled(objective: Objective, device: str) -> Objective:
    """The objective in its fastest form for a device."""
    return Compiled(objective) if device.startswith("cuda") else objective
