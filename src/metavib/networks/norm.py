r"""Batch-norm is part of the encoding: four named choices, the same in meta-training and meta-testing.

* `running`: statistics of the task's own points (support and query) while training, running averages at test.
* `transductive`: statistics over support and query together, at test too.
* `support+point`: the support is normalised by its own statistics, each query point by the statistics of the support
  and itself alone, at every layer. No query point ever sees another.
* `union`: each query point and the whole support are normalised together, by the statistics of both, at every layer. No
  query point sees another here either, but the features of the support are others for each of them. This is the
  paper's $BN(\psi, x_j \cup X_t)$.

Statistics are per task and per channel, over points and positions, and leave masked points out. They all come from the
same two numbers of each point and channel, the mean and variance over positions: pooling these over points (the law
of total variance) is exact, and it is work on `(points, channels)`, not on images. So none of the first three costs
more than another. The fourth sends the support through the network once for each query point: v (n + 1) points instead
of n + v, 480 instead of 85 for 5 support and 80 query images. Of the mask only the numbers are used: no shape depends
on it, and the host never waits for it (THEORY.md, section 8).
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metavib.fast import activations
from metavib.tasks.inputs import Inputs

ENCODINGS = ("running", "transductive", "support+point")  # of a task's points in one pass
UNION = "union"  # of each query point with the support, in sets that `metavib.tasks.inputs.join_each` makes


class Moments(NamedTuple):
    """Mean of each channel and its variance (divided by the count, not by one less), `(..., p or 1, channels)`.

    Example:
        >>> import torch
        >>> from metavib.networks.norm import Moments
        >>> Moments(torch.zeros(1, 4), torch.ones(1, 4)).mean.shape
        torch.Size([1, 4])
    """

    mean: Tensor
    var: Tensor


class TaskNorm(nn.Module):
    r"""Batch-norm as part of the encoding: $\hat x = (x - \mu) / \sqrt{v + \epsilon}$, then a learned scale and shift.

    Which points $\mu$ and v are taken over is the encoding. The running averages are PyTorch's: $\bar\mu \leftarrow (1
    - \alpha) \bar\mu + \alpha \mu$, and so for the unbiased variance, where $\mu$ and v are averaged over the tasks of
    a batch (over those of its own repeat, for averages that carry repeats). They learn from each pass in training mode
    that is not inside a `torch.func` transform: for a gradient encoder that is the final pass, under the adapted
    weights, and not the passes of the inner steps.

    Args:
        channels: size of the channel dimension, which follows that of points: `(..., p, channels, *positions)`.
        encoding: one of `ENCODINGS`, or `UNION`.
        affine: learn a scale and a shift for each channel.
        momentum: $\alpha$, the weight of a new batch in the running averages.
        eps: $\epsilon$, added to the variance.

    Example:
        >>> import torch
        >>> from metavib.networks.norm import TaskNorm
        >>> from metavib.tasks.inputs import Inputs
        >>> x = torch.tensor([[1.0], [3.0], [100.0]])  # two support points, and a query point
        >>> norm, task = TaskNorm(1, encoding="support+point"), Inputs(x, torch.ones(3, dtype=torch.bool), 2)
        >>> norm(x, task)[:2].flatten().round().tolist()  # the support never sees the query
        [-1.0, 1.0]
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, channels: int, *, encoding: str, affine: bool = True, momentum: float = 0.1, eps: float = 1e-5
    ) -> None:
        super().__init__()
        if encoding not in (*ENCODINGS, UNION):
            known = ", ".join((*ENCODINGS, UNION))
            raise ValueError(f"batch-norm encoding must be one of {known}; got {encoding!r}.")
        self.encoding, self.momentum, self.eps = encoding, momentum, eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    @property
    def pointwise(self) -> bool:
        """Whether each point is normalised without a look at the others: running averages, at test."""
        return self.encoding == "running" and not self.training

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Normalises `x (..., p, channels, *positions)`, the activations at `inputs`."""
        positions = x.ndim - inputs.mask.ndim - 1
        if self.pointwise:
            scale, shift = self._affine(self._running())
        else:
            scale, shift = self.affine(_per_point(x, positions), inputs, prod(x.shape[x.ndim - positions :]))
        ones = (1,) * positions
        y = torch.addcmul(shift.reshape(*shift.shape, *ones), x, scale.reshape(*scale.shape, *ones))
        return y.to(x.dtype)

    def affine(self, each: Moments, inputs: Inputs, positions: int) -> tuple[Tensor, Tensor]:
        """Scale and shift `(..., p or 1, channels)` that normalise points by the statistics of others.

        Args:
            each: moments of each point over its positions.
            inputs: all points of each task.
            positions: how many a point has.
        """
        return self._affine(self._statistics(each, inputs, positions))

    def running_affine(self) -> tuple[Tensor, Tensor]:
        """Scale and shift `(..., channels)` of every point, where it is normalised without a look at the others."""
        scale, shift = self._affine(self._running())
        return scale.squeeze(-2), shift.squeeze(-2)

    def _affine(self, statistics: Moments) -> tuple[Tensor, Tensor]:
        # (x - mu) / sqrt(v + eps) * weight + bias, with all that is not x gathered first: one pass over x
        mu, v = statistics
        scale = (v + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight.unsqueeze(-2)
        shift = -mu * scale
        if self.bias is not None:
            shift = shift + self.bias.unsqueeze(-2)
        return scale, shift

    def _running(self) -> Moments:
        return Moments(self.running_mean.unsqueeze(-2), self.running_var.unsqueeze(-2))

    def _statistics(self, each: Moments, inputs: Inputs, positions: int) -> Moments:
        weights = inputs.mask.unsqueeze(-1).to(each.mean.dtype)
        if self.encoding == "support+point":
            return _support_and_point(each, weights, inputs.n)
        if self.encoding == UNION:
            return _within_sets(each, weights, inputs)
        together = _pool(each, weights)
        # No tensor may leave a transform, and to write into a buffer is to leave it.
        if self.encoding == "running" and not torch._C._are_functorch_transforms_active():
            with torch.no_grad():
                self._learn(together, weights.sum(-2) * positions)
        return together

    def _learn(self, statistics: Moments, count: Tensor) -> None:
        mean, var = (s.squeeze(-2) for s in statistics)
        unbiased = var * (count / (count - 1).clamp(min=1))
        for average, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            average.lerp_(_average_to(new, average.shape).to(average.dtype), self.momentum)


def _pool(each: Moments, weights: Tensor) -> Moments:
    """Moments of all points of weight 1 together, `(..., 1, channels)`; zeros where there is none (eq. 26)."""
    share = weights / weights.sum(-2, keepdim=True).clamp(min=1)
    mean = (share * each.mean).sum(-2, keepdim=True)
    # the variance within points, and that between them
    var = (share * (each.var + (each.mean - mean).square())).sum(-2, keepdim=True)
    return Moments(mean, var)


def _support_and_point(each: Moments, weights: Tensor, n: int) -> Moments:
    r"""Moments that each point is normalised by, `(..., p, channels)` (eq. 27).

    For N support points with mean $\mu_t$ and variance $v_t$, and a query point with mean $m_i$ and variance $v_i$,
    $$\mu = \mu_t + \frac{m_i - \mu_t}{N+1}, \qquad v = \frac{N v_t + v_i}{N+1} + \frac{N (m_i - \mu_t)^2}{(N+1)^2}.$$
    """
    support, query = (Moments(each.mean[..., s, :], each.var[..., s, :]) for s in (slice(n), slice(n, None)))
    weights = weights[..., :n, :]
    count = weights.sum(-2, keepdim=True)
    of_support = _pool(support, weights)
    away = query.mean - of_support.mean
    mean = of_support.mean + away / (count + 1)
    var = (count * of_support.var + query.var) / (count + 1) + count * (away / (count + 1)).square()
    return Moments(
        torch.cat([of_support.mean.expand_as(support.mean), mean], -2),
        torch.cat([of_support.var.expand_as(support.var), var], -2),
    )


def _within_sets(each: Moments, weights: Tensor, inputs: Inputs) -> Moments:
    """Moments of all points of each set together, `(..., p, channels)`."""
    p = each.mean.shape[-2]
    if p // inputs.sets - inputs.n > 1:
        raise ValueError(
            f"under batch-norm {UNION!r} each query point goes through the network with the support and without other "
            f"query points; got {p - inputs.n} of them at once. Use another encoding with this method."
        )
    sets = (t.unflatten(-2, (inputs.sets, -1)) for t in (each.mean, each.var, weights))
    mean, var, weights = sets
    pooled = _pool(Moments(mean, var), weights)
    return Moments(*(t.expand_as(mean).flatten(-3, -2) for t in pooled))


def _average_to(statistic: Tensor, shape: torch.Size) -> Tensor:
    """Averages leading dimensions away, those that `shape` lacks and those where it has size one."""
    extra = statistic.ndim - len(shape)
    if extra > 0:
        statistic = statistic.mean(tuple(range(extra)))
    for axis in range(-len(shape), -1):
        if shape[axis] == 1 and statistic.ndim >= -axis:
            statistic = statistic.mean(axis, keepdim=True)
    return statistic


def _per_point(x: Tensor, positions: int) -> Moments:
    """Mean and variance of each point and channel over its positions, `(..., p, channels)`, in float32 or better."""
    x = x if x.dtype == torch.float64 else x.float()
    if not positions:
        return Moments(x, torch.zeros_like(x))
    return Moments(*activations.moments(x, tuple(range(-positions, 0))))
