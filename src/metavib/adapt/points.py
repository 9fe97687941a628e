"""Points of tasks as they are kept: in the batches they came in, with labels that are plain values."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metavib.posteriors.memory import Labels


@dataclass(frozen=True, eq=False)
class Batch:
    """Points of one task that came together, in memory of their own.

    Args:
        x: inputs `(n, *event)`.
        y: real outputs `(n,)`; zeros for classes.
        labels: of classes; none for real outputs.
        weight: how many points each counts as `(n,)`, in float64; one where None.
    """

    x: Tensor
    y: Tensor
    labels: list[Hashable]
    weight: Tensor | None = None

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def counted(self) -> Tensor:
        """How many points each counts as."""
        return torch.ones_like(self.y, dtype=torch.float64) if self.weight is None else self.weight

    def select(self, places: Any) -> "Batch":
        """Some of the points, by their places."""
        labels = [self.labels[i] for i in places] if self.labels else []
        return Batch(self.x[places], self.y[places], labels, None if self.weight is None else self.weight[places])

    def _rows(self) -> Iterator[tuple[bytes, Hashable, float]]:
        """Each point as a value that equals another's where the points do."""
        outputs: Sequence[Hashable] = self.labels or self.y.tolist()
        inputs = (self.x.flatten(1) + 0.0).cpu().numpy()  # zero has two signs, and is one number
        points = zip(inputs, outputs, self.counted.tolist(), strict=True)
        return ((row.tobytes(), y, weight) for row, y, weight in points)


@dataclass(frozen=True, eq=False)
class Support:
    """All points of a task, in the batches they came in; one at least, which may be empty.

    The batches are kept apart because sums over points depend, in their last bits, on how these were batched.
    """

    batches: tuple[Batch, ...]

    @property
    def n(self) -> int:
        """How many points there are."""
        return sum(len(batch.x) for batch in self.batches)

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs and outputs, eight to a label."""
        return sum(batch.x.nbytes + 8 * len(batch.x) for batch in self.batches)

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.batches[0].event

    @cached_property
    def whole(self) -> Batch:
        """All points as one batch."""
        if len(self.batches) == 1:
            return self.batches[0]
        x, y = (torch.cat([getattr(batch, name) for batch in self.batches]) for name in ("x", "y"))
        weighted = any(batch.weight is not None for batch in self.batches)
        weight = torch.cat([batch.counted for batch in self.batches]) if weighted else None
        return Batch(x, y, [label for batch in self.batches for label in batch.labels], weight)

    def __add__(self, other: "Support") -> "Support":
        """The points of both."""
        return Support((*self.batches, *other.batches))

    def without(self, gone: Batch) -> "Support":
        """The points that are left without some, each of which must be among them."""
        places: dict[Any, list[int]] = defaultdict(list)
        for i, row in enumerate(self.whole._rows()):
            places[row].append(i)
        missing, leave = 0, set()
        for row in gone._rows():
            if places[row]:
                leave.add(places[row].pop())
            else:
                missing += 1
        if missing:
            raise ValueError(
                f"these points are not all among those learned: {missing} of {len(gone.x)} are not. Forget exactly the "
                "points that were learned, each once, with the outputs and weights they were learned with."
            )
        keep = [i for i in range(self.n) if i not in leave]
        return Support((self.whole.select(keep),))


def plain_labels(y: Any) -> list[Hashable]:
    """Labels as plain Python values: those of tensors and arrays by value, so that 3 is 3 wherever it came from."""
    labels = [k.item() if isinstance(k, np.generic) or (isinstance(k, Tensor) and not k.ndim) else k for k in y]
    for k in labels:
        if not isinstance(k, Hashable) or isinstance(k, Tensor) or k != k:  # NaN is no label
            raise ValueError(f"class labels must be hashable, and not NaN; got {k!r} of type {type(k).__name__}.")
    return labels


def distinct(labels: list[Hashable]) -> Labels:
    """Distinct labels, sorted; in order of appearance where they cannot be compared."""
    found = tuple(dict.fromkeys(labels))
    try:
        return tuple(sorted(found))  # type: ignore[type-var]
    except TypeError:
        return found
