"""Randomness is an argument: a generator, or the noise itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor


class Noted:
    """A generator, and a note of every draw from it: the function that drew, and what it was asked for.

    Example:
        >>> import torch
        >>> from metavib.random import Noted, draw, seeded
        >>> stream = Noted(seeded(0))
        >>> _ = draw(torch.rand, 2, stream=stream)
        >>> [(function.__name__, arguments) for function, arguments, _ in stream.calls]
        [('rand', (2,))]
    """

    def __init__(self, generator: Generator) -> None:
        self.generator, self.device = generator, generator.device
        self.calls: list[tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = []


class Drawn:
    """What was drawn beforehand, used up in order: compiled code cannot draw from a generator.

    Example:
        >>> import torch
        >>> from metavib.random import Drawn, draw
        >>> stream = Drawn([torch.zeros(2), torch.ones(2)], torch.device("cpu"))
        >>> draw(torch.rand, 2, stream=stream).tolist(), draw(torch.rand, 2, stream=stream).tolist()
        ([0.0, 0.0], [1.0, 1.0])
    """

    def __init__(self, draws: list[Tensor], device: torch.device) -> None:
        self.draws, self.device, self.used = draws, device, 0

    def take(self) -> Tensor:
        """The next base samples of the stream."""
        self.used += 1
        return self.draws[self.used - 1]


@dataclass(frozen=True)
class Portion:
    """A generator that draws for many tasks, of which an equal portion is here: what it draws for others is dropped.

    So a task meets the same noise wherever it is computed.

    Args:
        generator: the stream of all tasks.
        axis: the dimension of base samples that holds the tasks.
        index: which portion is here.
        count: how many portions there are.

    Example:
        The second half of four tasks has what the third and the fourth have among all.

        >>> import torch
        >>> from metavib.random import Portion, seeded, standard_normal
        >>> like = torch.zeros(())
        >>> everything = standard_normal((4, 3), seeded(0), like=like)
        >>> here = standard_normal((2, 3), Portion(seeded(0), axis=0, index=1, count=2), like=like)
        >>> torch.equal(here, everything[2:])
        True
    """

    generator: Generator
    axis: int
    index: int
    count: int

    def take(self, shape: tuple[int, ...], *, like: Tensor) -> Tensor:
        """Base samples of the tasks that are here."""
        here = shape[self.axis]
        whole = (*shape[: self.axis], here * self.count, *shape[self.axis + 1 :])
        return standard_normal(whole, self.generator, like=like).narrow(self.axis, here * self.index, here)


Stream = Generator | Noted | Drawn
Noise = Stream | Portion | Tensor | None


def draw(function: Callable[..., Tensor], *args: Any, stream: Stream, **options: Any) -> Tensor:
    """`function(*args, **options)`, one of torch.rand, torch.randn and torch.randint, from a stream on its device.

    Example:
        >>> import torch
        >>> from metavib.random import draw, seeded
        >>> draw(torch.randint, 10, (3,), stream=seeded(0)).shape
        torch.Size([3])
    """
    if isinstance(stream, Drawn):
        return stream.take()
    if isinstance(stream, Noted):
        stream.calls.append((function, args, options))
        stream = stream.generator
    return function(*args, **options, generator=stream, device=stream.device)


def standard_normal(shape: tuple[int, ...], noise: Noise, *, like: Tensor) -> Tensor:
    """Standard normal base samples, drawn from a generator or handed over.

    Args:
        shape: the shape wanted.
        noise: a stream to draw from, or a tensor of base samples broadcastable to `shape` in all but its first
            dimension, whose length then replaces `shape[0]`.
        like: gives dtype and device.

    Example:
        >>> import torch
        >>> from metavib.random import seeded, standard_normal
        >>> standard_normal((200, 5), seeded(0), like=torch.zeros(())).shape
        torch.Size([200, 5])
    """
    if isinstance(noise, Stream):
        return draw(torch.randn, shape, stream=noise, dtype=like.dtype)
    if isinstance(noise, Portion):
        return noise.take(shape, like=like)
    if isinstance(noise, Tensor):
        wanted = (len(noise), *shape[1:])
        aligned = noise.reshape(len(noise), *(1,) * (len(shape) - noise.ndim), *noise.shape[1:])
        if aligned.ndim != len(shape) or any(a not in (1, w) for a, w in zip(aligned.shape, wanted, strict=True)):
            raise ValueError(
                f"base samples must broadcast to (samples, {', '.join(map(str, shape[1:]))}); got {tuple(noise.shape)}."
            )
        return aligned
    raise ValueError(
        "this model's bound is estimated by sampling: pass noise=torch.Generator(), or the base samples themselves."
    )


def seeded(*seeds: int, device: torch.device | str = "cpu") -> Generator:
    """A generator for the stream named by some integers below 2**32; different names give unrelated streams.

    Names that differ by trailing zeros alone are the same: (1,) is (1, 0).

    Example:
        >>> import torch
        >>> from metavib.random import seeded
        >>> first, again, other = (torch.rand(1, generator=seeded(3, k)).item() for k in (1, 1, 2))
        >>> first == again, first == other
        (True, False)
    """
    if not all(0 <= seed < 2**32 for seed in seeds):
        raise ValueError(f"seeds must be whole numbers from 0 to below 2**32; got {seeds}.")
    # SeedSequence mixes the integers well, so that neighbouring seeds (0, 1), (1, 0) share nothing.
    import numpy as np

    state = int(np.random.SeedSequence(list(seeds)).generate_state(1, np.uint64)[0])
    return Generator(device).manual_seed(state % 2**63)
