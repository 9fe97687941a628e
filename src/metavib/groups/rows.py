"""Rows of a table by group, as batches of padded blocks: what all batched algebra over groups works on."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

WASTE = 1.3  # a block holds groups whose sizes differ by no more than this factor (or by two rows)
AT_ONCE = 2**22  # entries of the n x n matrices of a block, at most


class Block(NamedTuple):
    """Groups of about the same size: `places (b, n)` of their rows in the table, and `mask`: which are real."""

    places: Tensor
    mask: Tensor

    def take(self, values: Tensor) -> Tensor:
        """The values `(rows, ...)` of the block's rows `(b, n, ...)`; zeros for padding."""
        taken = values[self.places]
        return taken * self.mask.reshape(*self.mask.shape, *(1,) * (taken.ndim - 2))


def members(group: np.ndarray) -> list[np.ndarray]:
    """The rows of each group, for groups numbered from 0."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.cumsum(np.bincount(group))[:-1])


def blocks(sets: Sequence[np.ndarray], *, rows: float = inf) -> Iterator[Block]:
    """Blocks of groups, each given by the indices of its rows; every group is in one block, small groups first.

    Args:
        sets: the rows of each group.
        rows: of a block, padding included, at most (but one group is never divided).

    Example:
        >>> import numpy as np
        >>> [tuple(b.mask.sum(1).tolist()) for b in blocks([np.arange(9), np.arange(2), np.arange(3)])]
        [(2.0, 3.0), (9.0,)]
    """
    ordered = sorted(sets, key=len)
    start = 0
    while start < len(ordered):
        smallest = max(1, len(ordered[start]))
        largest = max(WASTE * smallest, smallest + 2)
        most, stop = max(start + 1.0, start + rows / largest), start
        while stop < len(ordered) and len(ordered[stop]) <= largest and (stop - start) * largest**2 < AT_ONCE:
            if stop + 1 > most:
                break
            stop += 1
        yield block(ordered[start:stop])
        start = stop


def block(sets: Sequence[np.ndarray]) -> Block:
    """One block of groups, each given by the indices of its rows."""
    n = max(1, *(len(rows) for rows in sets))
    places, mask = np.zeros((len(sets), n), dtype=np.int64), np.zeros((len(sets), n))
    for i, rows in enumerate(sets):
        places[i, : len(rows)], mask[i, : len(rows)] = rows, 1
    return Block(torch.as_tensor(places), torch.as_tensor(mask))
