r"""X: all inputs of a task, support first, as networks see them.

The bound conditions on the inputs of support *and* query (THEORY.md, section 2, eq. 4): a batch-norm layer may use
both. So a network is called once on all points of a task and told how many of them are the support.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from metavib.tasks.task import Examples


class Points(NamedTuple):
    """Inputs without outputs: `x (..., v, *event)`, `mask (..., v)`. What an encoder may know of the query."""

    x: Tensor
    mask: Tensor


class Inputs(NamedTuple):
    """All inputs of each task: `x (..., p, *event)`, `mask (..., p)`, the first `n` points being the support.

    They may come in several `sets` of equally many points, one set after the other, each of which begins with n support
    points of its own.
    """

    x: Tensor
    mask: Tensor
    n: int
    sets: int = 1


def points(examples: Examples) -> Points:
    """The inputs of some examples: their outputs are left behind."""
    return Points(examples.x, examples.mask)


def join(support: Examples, query: Points) -> Inputs:
    """Support and query inputs of each task as one set."""
    axis = support.y.ndim - 1
    x = torch.cat([support.x, query.x], axis)
    return Inputs(x, torch.cat([support.mask, query.mask], -1), support.size)


def join_each(support: Examples, query: Points) -> Inputs:
    """The support with each query point by itself: as many sets as there are query points, of one point more than it.

    Example:
        >>> import torch
        >>> from metavib.tasks import examples
        >>> support = examples(torch.tensor([[1.0], [2.0]]), torch.zeros(2))
        >>> query = Points(torch.tensor([[7.0], [8.0], [9.0]]), torch.ones(3, dtype=torch.bool))
        >>> join_each(support, query).x.flatten().tolist()
        [1.0, 2.0, 7.0, 1.0, 2.0, 8.0, 1.0, 2.0, 9.0]
    """
    axis, v = support.y.ndim - 1, query.mask.shape[-1]

    def sets(t: Tensor, q: Tensor) -> Tensor:
        repeated = t.unsqueeze(axis).expand(*t.shape[:axis], v, *t.shape[axis:])
        return torch.cat([repeated, q.unsqueeze(axis + 1)], axis + 1).flatten(axis, axis + 1)

    return Inputs(sets(support.x, query.x), sets(support.mask, query.mask), support.size, v)
