"""A step compiled by `torch.compile`: the same numbers up to rounding, from far fewer kernels.

Code that reads like its formula runs as hundreds of small operations. A compiler fuses them: the augmentation of images
into a few passes, batch-norm, ReLU and pooling into one pass over the activations, the Monte Carlo expectation into one
that never stores its samples.
"""

import shutil
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, final

import torch
from torch import Generator, Tensor, nn

from metavib.random import Drawn, Noted

WORTH = {"cpu": 20_000, "cuda": 2_000}  # times from which on compiling pays
COMPILERS = ("g++", "clang++", "cl")
# Else several versions of a pointwise kernel are compiled and timed on a GPU, where all wait for memory all the same.
OPTIONS: dict[str, Any] = {"triton.autotune_pointwise": False}

Work = Callable[..., tuple[Tensor, ...]]
"""`work(model, streams, *inputs)`: tensors, the last of them what is differentiated, if anything is.

Or the work differentiates it itself, and leaves gradients in the parameters' `grad`, which must be None before.
"""


@final
class Compiled:
    """Work that is compiled at its first call, for a model, streams and inputs whose shapes never change.

    Compiled code cannot draw from a generator. So what the work draws is noted once, on a copy of the model, and from
    then on it is drawn beforehand: the same numbers, in the same order and from the same generators, as the work would
    have drawn itself. Work that cannot be compiled runs as written, with a warning.

    Args:
        work: as written.

    Example:
        >>> from metavib.training.engine.compile import Compiled
        >>> fast = Compiled(lambda model, streams: (model.weight.sum(),))  # compiled when it is first called
        >>> fast.notes is None
        True
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.compiled: Work = torch.compile(self._with, fullgraph=True, dynamic=False, options=OPTIONS)
        self.notes: list[Noted] | None = None

    def __call__(self, model: nn.Module, streams: Sequence[Generator], *inputs: Any) -> tuple[Tensor, ...]:
        """What the work itself would return."""
        if self.notes is None:
            self._prepare(model, streams, *inputs)
        return self.compiled(model, self._draw(), *inputs)

    def _with(self, model: nn.Module, draws: list[list[Tensor]], *inputs: Any) -> tuple[Tensor, ...]:
        device = next(model.parameters()).device
        return tuple(self.work(model, [Drawn(each, device) for each in draws], *inputs))

    def _draw(self) -> list[list[Tensor]]:
        assert self.notes is not None
        return [
            [f(*args, **options, generator=note.generator, device=note.device) for f, args, options in note.calls]
            for note in self.notes
        ]

    def _prepare(self, model: nn.Module, streams: Sequence[Generator], *inputs: Any) -> None:
        """Notes the draws and compiles, forwards and backwards, leaving model and streams as they were."""
        states = [stream.get_state() for stream in streams]
        self.notes = [Noted(stream) for stream in streams]
        with torch.no_grad():
            self.work(deepcopy(model), self.notes, *inputs)
        try:
            # The warnings are the compiler's, about its own workings.
            with warnings.catch_warnings(action="ignore"), torch._dynamo.config.patch(trace_autograd_ops=True):
                *_, value = self.compiled(deepcopy(model), self._draw(), *inputs)
                if value.requires_grad:
                    value.sum().backward()
        except Exception as error:  # a compiler may fail in any way, and the work as written is always there
            warnings.warn(f"this step cannot be compiled and runs as written: {error}", stacklevel=4)
            self.compiled = self._with
        finally:
            for stream, state in zip(streams, states, strict=True):
                stream.set_state(state)


def compiled(work: Work, device: str, *, times: int) -> Work:
    """The work in its fastest form for a device, if it is to be done that many times.

    Compiling takes 15 to 40 seconds, which short trainings would not win back, and on a CPU needs a C++ compiler.
    """
    return Compiled(work) if pays(device, times=times) else work


def pays(device: str, *, times: int) -> bool:
    """Whether work that is done so many times on a device is worth compiling there."""
    kind = torch.device(device).type
    return times >= WORTH[kind] and (kind != "cpu" or any(map(shutil.which, COMPILERS)))
