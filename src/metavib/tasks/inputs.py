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
    """All inputs of each task: `x (..., p, *event)`, `mask (..., p)`, the first `n` points being the support."""

    x: Tensor
    mask: Tensor
    n: int


def points(examples: Examples) -> Points:
    """The inputs of some examples: their outputs are left behind."""
    return Points(examples.x, examples.mask)


def join(support: Examples, query: Points) -> Inputs:
    """Support and query inputs of each task as one set."""
    axis = support.y.ndim - 1
    x = torch.cat([support.x, query.x], axis)
    return Inputs(x, torch.cat([support.mask, query.mask], -1), support.size)
