r"""Monte Carlo expectations in bounded memory: many draws are made, used and dropped in parts.

The expectation of a softmax takes k draws of every latent value. Kept all at once, as automatic differentiation would
have them, they can be the largest thing in a training step. A mean over draws is the sum of the means over parts of
them, so a part at a time is enough, and for each part the derivative is computed together with the value. Values,
gradients and random numbers are those of all draws at once, up to the rounding of a sum.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from metavib.marginals import Nodes, Normal
from metavib.random import Noise, standard_normal

AT_ONCE = 2**23
"""Values that are drawn at once, 32 MB in float32: more than this are drawn and used in parts."""


def in_parts(g: Callable[[Nodes], Tensor], q: Normal, k: int, noise: Noise) -> list[Tensor]:
    r"""g of the k draws that `q.monte_carlo` makes: one result, or where they are many one result for each part.

    A draw is in one part, with the weight 1/k that it has among all. So the results of a g that sums over draws add up
    to that of all draws.

    Args:
        g: from nodes to numbers of each point, which depend on its mean and variance alone. Where a gradient is wanted
            it gives one number for a point.
        q: what is drawn from.
        k: how many draws.
        noise: as in `Normal.monte_carlo`; a generator on a CPU gives the same draws in parts as at once.
    """
    k = len(noise) if isinstance(noise, Tensor) else k
    size = _draws_at_once(q.mean.numel())
    # A compiler never stores the draws, and a derivative within a derivative needs them all.
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if size > k // 2 or transformed or not isinstance(noise, Generator | Tensor):
        return [g(q.monte_carlo(k, noise))]
    results, starts = [], range(0, k - size + 1, size)
    for start in starts:
        stop = k if start == starts[-1] else start + size
        part = noise[start:stop] if isinstance(noise, Tensor) else noise
        epsilon = standard_normal((stop - start, *q.mean.shape), part, like=q.mean)
        if torch.is_grad_enabled() and (q.mean.requires_grad or q.var.requires_grad):
            results.append(_WithDerivative.apply(*q, lambda q, e=epsilon: g(q.at(e, of=k))))
        else:
            results.append(g(q.at(epsilon, of=k)))
    return results


def _draws_at_once(values: int) -> int:
    """How many draws of some values each are made at once.

    A multiple of 16, since a generator on a CPU makes numbers sixteen at a time: cut there, its stream is the same.
    """
    return max(16, AT_ONCE // max(values, 1) // 16 * 16)


class _WithDerivative(torch.autograd.Function):
    """A function of a `Normal` whose derivative is computed along with its value, so that nothing inside it is kept.

    Its numbers, one for each point, depend on that point's mean and variance alone: the derivative is no larger than
    these.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, function: Callable[[Normal], Tensor]) -> Tensor:
        with torch.enable_grad():
            q = Normal(mean.detach().requires_grad_(), var.detach().requires_grad_())
            value = function(q)
            total = value.sum()
        ctx.save_for_backward(*torch.autograd.grad(total, q))
        return value.detach()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        if torch.is_grad_enabled():  # create_graph=True: the derivative would be taken for a constant, silently
            raise RuntimeError("samples in parts are differentiated once; raise metavib.fast.draws.AT_ONCE for more.")
        of_mean, of_var = ctx.saved_tensors
        return slope.unsqueeze(-1) * of_mean, slope.unsqueeze(-1) * of_var, None
