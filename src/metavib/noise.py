"""Randomness is an argument: a generator, or the noise itself."""

import torch
from torch import Generator, Tensor

Noise = Generator | Tensor | None


def standard_normal(shape: tuple[int, ...], noise: Noise, *, like: Tensor) -> Tensor:
    """Standard normal base samples, drawn from a generator or handed over.

    Args:
        shape: the shape wanted.
        noise: a `torch.Generator` to draw from, or a tensor of base samples broadcastable to `shape` in all but its
            first dimension, whose length then replaces `shape[0]`.
        like: gives dtype and device.
    """
    if isinstance(noise, Generator):
        return torch.randn(shape, generator=noise, dtype=like.dtype, device=like.device)
    if isinstance(noise, Tensor):
        try:
            torch.broadcast_shapes(noise.shape, (len(noise), *shape[1:]))
        except RuntimeError:
            raise ValueError(
                f"base samples must broadcast to (samples, {', '.join(map(str, shape[1:]))}); got {tuple(noise.shape)}."
            ) from None
        return noise.reshape(len(noise), *(1,) * (len(shape) - noise.ndim), *noise.shape[1:])
    raise ValueError(
        "this model's bound is estimated by sampling: pass noise=torch.Generator(), or the base samples themselves."
    )


def seeded(*seeds: int, device: torch.device | str = "cpu") -> Generator:
    """A generator for the stream named by some integers; different names give unrelated streams."""
    # SeedSequence mixes the integers well, so that neighbouring seeds (0, 1), (1, 0) share nothing.
    import numpy as np

    state = int(np.random.SeedSequence(list(seeds)).generate_state(1, np.uint64)[0])
    return Generator(device).manual_seed(state % 2**63)
