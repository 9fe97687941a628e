"""Repeats of an experiment side by side: the seeds are one more batch dimension.

Stacked, every parameter of shape `own` becomes `(repeats, 1, *own)` and tasks come as `(repeats, tasks, ...)`: model,
bound and optimiser work on all repeats at once without knowing. Adam acts on each number alone, so the repeats
stay independent (eq. 28; THEORY.md, section 9).
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from metavib.tasks.task import Examples, Task

Model = TypeVar("Model", bound=nn.Module)


def stack(models: Sequence[Model]) -> Model:
    """One model that is all of these side by side, in a leading dimension of its parameters and buffers."""
    return _map(models[0], lambda name: torch.stack([_state(m)[name] for m in models]).unsqueeze(1))


def unstack(model: Model, repeat: int) -> Model:
    """One of the models that were stacked, by its number."""
    state = _state(model)
    return _map(model, lambda name: state[name][repeat, 0])


def share(tasks: Task, repeats: int) -> Task:
    """The same tasks for every repeat, `(repeats, tasks, ...)`; as they are where there is one."""
    if repeats == 1:
        return tasks
    return Task(*(Examples(*(t.expand(repeats, *t.shape) for t in part)) for part in tasks))


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _map(model: Model, value: Callable[[str], Tensor]) -> Model:
    model = deepcopy(model)
    for name, old in _state(model).items():
        owner: nn.Module = model.get_submodule(name.rpartition(".")[0])
        new = value(name).detach().clone()
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        setattr(owner, name.rpartition(".")[2], new)
    return model
