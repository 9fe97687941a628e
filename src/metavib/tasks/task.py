r"""Examples, tasks, and the batches they form.

A task is a support set $D_t$ to learn from and a query set $D_v$ to be judged on. Tasks always live in leading
batch dimensions: `x` is `(..., n, *event)`, `y` and `mask` are `(..., n)`, and one task is the case where `...` is
empty. Tasks of unequal sizes share a batch by padding; a padded point has `mask = False` and drops out of every
term of the bound exactly.

Checks happen here, once, where data enters; nothing downstream checks again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Examples(NamedTuple):
    """Inputs, outputs and which of them are real: `x (..., n, *event)`, `y (..., n)`, `mask (..., n)`.

    Example:
        >>> from metavib.tasks import examples
        >>> five = examples([[0.0], [1.0], [2.0], [3.0], [4.0]], [1.0, 2.0, 3.0, 4.0, 5.0])
        >>> five.size, five.batch_shape
        (5, torch.Size([]))
    """

    x: Tensor
    y: Tensor
    mask: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions: the tasks (and repeats) held."""
        return self.y.shape[:-1]

    @property
    def size(self) -> int:
        """The number n of points that each task has room for, padding included."""
        return self.y.shape[-1]

    def to(self, *args: Any) -> "Examples":
        """Moves to a device, or floating tensors to a dtype, as `Tensor.to` does."""
        dtype = next((a for a in args if isinstance(a, torch.dtype)), None)
        device = next((a for a in args if not isinstance(a, torch.dtype)), None)
        return Examples(*(t.to(device=device, dtype=dtype if t.is_floating_point() else None) for t in self))


class Task(NamedTuple):
    """A support set to adapt to and a query set to predict; both may carry the same leading batch dimensions.

    Example:
        >>> from metavib.tasks import examples, task
        >>> one = task(examples([[0.0]], [1.0]), examples([[1.0], [2.0]], [2.0, 3.0]))
        >>> one.support.size, one.query.size
        (1, 2)
    """

    support: Examples
    query: Examples

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions: the tasks (and repeats) held."""
        return self.query.batch_shape

    def to(self, *args: Any) -> "Task":
        """Moves to a device or dtype, as `Tensor.to` does."""
        return Task(self.support.to(*args), self.query.to(*args))


def examples(x: Any, y: Any, mask: Any = None, *, name: str = "examples") -> Examples:
    """Builds checked examples from anything array-like.

    Args:
        x: inputs `(..., n, *event)`, real; integers (raw pixels, say) become floats.
        y: outputs `(..., n)`: real values, counts, or integer class labels.
        mask: which points are real, `(..., n)`; all of them unless told. Values under a false mask are ignored
            and replaced by zeros, so that padding may hold anything.
        name: what to call these examples in an error message.

    Example:
        >>> from metavib.tasks import examples
        >>> found = examples([0.0, 1.0, 9.0], [1.0, 2.0, float("nan")], mask=[True, True, False])  # the last is padding
        >>> found.x.shape, found.y.tolist()
        (torch.Size([3, 1]), [1.0, 2.0, 0.0])
    """
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if y.ndim < 1:
        raise ValueError(f"{name}: y must have at least one dimension, (..., n); got a scalar.")
    if y.is_complex() or x.is_complex():
        raise TypeError(f"{name}: x and y must be real; got x {x.dtype} and y {y.dtype}.")
    if x.ndim < y.ndim or x.shape[: y.ndim] != y.shape:
        raise ValueError(
            f"{name}: x must be (..., n, *features) and y (..., n) with the same leading dimensions; "
            f"got x {tuple(x.shape)} and y {tuple(y.shape)}."
        )
    if x.ndim == y.ndim:  # scalar inputs: (..., n) means (..., n, 1)
        x = x.unsqueeze(-1)
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    mask = torch.ones_like(y, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    if mask.dtype != torch.bool or mask.shape != y.shape:
        raise ValueError(
            f"{name}: mask must be boolean with y's shape {tuple(y.shape)}; got {mask.dtype} {tuple(mask.shape)}."
        )
    if not bool(mask.all()):
        x = x.masked_fill(~_expand(mask, x), 0)
        y = y.masked_fill(~mask, 0)
    for letter, values in (("x", x), ("y", y)):
        if values.is_floating_point() and not bool(values.isfinite().all()):
            bad = int((~values.isfinite()).sum())
            raise ValueError(
                f"{name}: {letter} has {bad} NaN or infinite value{'s' * (bad > 1)} among {values.numel()}; "
                "remove or impute them (or mask those points) first."
            )
    return Examples(x, y, mask)


def task(support: Examples, query: Examples) -> Task:
    """Pairs a support and a query set after checking that they belong together.

    An empty support is a task like any other (the posterior is the prior); an empty query is an error, since
    there would be nothing to predict.

    Example:
        >>> from metavib.tasks import examples, task
        >>> task(examples([], []), examples([1.0], [2.0])).support.size  # nothing is known of it yet
        0
    """
    if support.batch_shape != query.batch_shape:
        raise ValueError(
            "support and query must carry the same leading (task) dimensions; "
            f"got {tuple(support.batch_shape)} and {tuple(query.batch_shape)}."
        )
    event, event_query = support.x.shape[support.y.ndim :], query.x.shape[query.y.ndim :]
    if event != event_query:
        raise ValueError(
            f"support and query inputs must have the same shape per point; got {tuple(event)} and {tuple(event_query)}."
        )
    if query.size == 0 or not bool(query.mask.any(-1).all()):
        raise ValueError("every task needs at least one query point; got a task with an empty query set.")
    return Task(support, query)


def stack(tasks: Sequence[Task]) -> Task:
    """Batches tasks, of equal or unequal sizes, along a new leading dimension; shorter ones are padded and masked.

    Example:
        >>> from metavib.tasks import examples, stack, task
        >>> small = task(examples([0.0], [1.0]), examples([1.0], [2.0]))
        >>> large = task(examples([0.0, 2.0], [1.0, 3.0]), examples([1.0], [2.0]))
        >>> stack([small, large]).support.mask.tolist()
        [[True, False], [True, True]]
    """
    if not tasks:
        raise ValueError("stack needs at least one task; got none.")
    return Task(pad([t.support for t in tasks]), pad([t.query for t in tasks]))


def pad(sets: Sequence[Examples]) -> Examples:
    """Stacks sets of examples, padding each with masked points to the size of the largest.

    Example:
        >>> from metavib.tasks import examples, pad
        >>> pad([examples([0.0], [1.0]), examples([0.0, 2.0], [1.0, 3.0])]).y.tolist()
        [[1.0, 0.0], [1.0, 3.0]]
    """
    n = max(s.size for s in sets)
    return Examples(*(torch.stack(column) for column in zip(*(_pad_to(s, n) for s in sets), strict=True)))


def select(tasks: Task, index: Any) -> Task:
    """The tasks at an index of the leading dimensions.

    Example:
        >>> from metavib.tasks import examples, select, stack, task
        >>> one = task(examples([0.0], [1.0]), examples([1.0], [2.0]))
        >>> select(stack([one, one, one]), [0, 2]).batch_shape
        torch.Size([2])
    """
    return Task(Examples(*(t[index] for t in tasks.support)), Examples(*(t[index] for t in tasks.query)))


def _pad_to(s: Examples, n: int) -> Examples:
    extra, axis = n - s.size, s.y.ndim - 1
    if not extra:
        return s

    def widen(t: Tensor) -> Tensor:
        return torch.cat([t, t.new_zeros(*t.shape[:axis], extra, *t.shape[axis + 1 :])], axis)

    return Examples(*map(widen, s))


def _expand(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
