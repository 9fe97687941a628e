"""Memory for time: a function of weights whose inside is not kept for the backward pass but made again there.

`torch.utils.checkpoint` does this too, but not around a function that itself takes a gradient with `torch.func`, as an
inner step does.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from metavib.random import Drawn, Noise, Noted, Portion

Weights = dict[str, Tensor]
Step = Callable[[Weights], Weights]
Rewindable = Generator | Drawn


def recomputed(step: Step, *, depends_on: Iterable[Tensor], streams: Iterable[Rewindable] = ()) -> Step:
    """The same function, of which nothing but the argument is kept for the backward pass.

    That pass calls the function once more and differentiates it, once: there is no derivative of the derivative.

    Args:
        step: from weights to new weights of the same names.
        depends_on: the other tensors it uses that gradients are wanted for; one that is not named here is a constant.
        streams: what it draws from; the second call draws what the first one drew.
    """
    others, streams = list(depends_on), list(streams)

    def lean(weights: Weights) -> Weights:
        names = list(weights)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(step(dict(zip(names, tensors, strict=True))).values())

        return dict(
            zip(names, _Recomputed.apply(function, streams, len(names), *weights.values(), *others), strict=True)
        )

    return lean


def random_streams(network: nn.Module, noise: Noise) -> list[Rewindable]:
    """What a pass through a network may draw from: the given stream, and PyTorch's own where there is dropout."""
    given = noise.generator if isinstance(noise, Noted | Portion) else noise
    found: list[Rewindable] = [given] if isinstance(given, Generator | Drawn) else []
    if any(isinstance(module, _DropoutNd) and module.training and module.p for module in network.modules()):
        device = next(network.parameters()).device
        found.append(torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator)
    return found


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., tuple[Tensor, ...]],
        streams: Sequence[Rewindable],
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.streams, ctx.count = function, streams, count
        ctx.states = [_place(stream) for stream in streams]
        ctx.save_for_backward(*tensors)
        return function(*tensors[:count])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the derivative would be a constant, and nobody told
            raise RuntimeError("recomputed inner steps are differentiated once; set recompute=False for more.")
        wanted = ctx.needs_input_grad[3:]
        arguments, others = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        # The arguments are cut off from what made them; the others are those that the function itself refers to.
        arguments = tuple(t.detach().requires_grad_(w) for t, w in zip(arguments, wanted, strict=False))
        now = [_place(stream) for stream in ctx.streams]
        try:
            _go_to(ctx.streams, ctx.states)
            with torch.enable_grad():
                outputs = ctx.function(*arguments)
        finally:
            _go_to(ctx.streams, now)
        targets = [t for t, w in zip((*arguments, *others), wanted, strict=True) if w]
        found = iter(torch.autograd.grad(outputs, targets, slopes, allow_unused=True))
        return (None, None, None, *(next(found) if w else None for w in wanted))


def _place(stream: Rewindable) -> Any:
    return stream.used if isinstance(stream, Drawn) else stream.get_state()


def _go_to(streams: Sequence[Rewindable], places: Sequence[Any]) -> None:
    for stream, place in zip(streams, places, strict=True):
        if isinstance(stream, Drawn):
            stream.used = place
        else:
            stream.set_state(place)
