"""A step as a CUDA graph: recorded once, replayed without the host's overhead.

On a CPU a step is simply called. On a GPU the first calls run as written, then one is recorded, and from there on
a call is a single launch. Every call is one step, whichever way it runs.
"""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Generator, Tensor

WARM_UP = 3  # steps that run as written first: lazy initialisation cannot be recorded


class Replayed:
    """A step that is recorded as a CUDA graph after a few calls and replayed from then on.

    Args:
        step: from tensors, or from none, to tensors; it reads and writes the same memory every time.
        generators: the random streams it draws from, which must go on from replay to replay.

    Example:
        >>> from metavib.training.engine.graph import Replayed
        >>> Replayed(lambda: (), []).graph is None  # nothing is recorded before a few steps have run as written
        True
    """

    def __init__(self, step: Callable[..., tuple[Tensor, ...]], generators: Iterable[Generator]) -> None:
        self.step, self.generators = step, list(generators)
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One step, which overwrites what the last returned; inputs of another size than recorded run as written."""
        self.calls += 1
        if self.calls == WARM_UP + 1:
            self._record(inputs)
        if self.graph is None or [t.shape for t in inputs] != [t.shape for t in self.inputs]:
            return self._as_written(inputs)
        for held, given in zip(self.inputs, inputs, strict=True):
            held.copy_(given)
        self.graph.replay()
        return self.outputs

    def _as_written(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # where recording will run too
            outputs = self.step(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        return outputs

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        graph, self.inputs = torch.cuda.CUDAGraph(), tuple(t.clone() for t in inputs)
        for generator in self.generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph):
                self.outputs = self.step(*self.inputs)
            self.graph = graph
        except RuntimeError as error:
            warnings.warn(f"this step cannot be recorded as a CUDA graph and runs as written: {error}", stacklevel=3)


def replayed(
    step: Callable[..., tuple[Tensor, ...]], device: str, generators: Iterable[Generator]
) -> Callable[..., tuple[Tensor, ...]]:
    """The step in its fastest form for a device."""
    return Replayed(step, generators) if device.startswith("cuda") else step
