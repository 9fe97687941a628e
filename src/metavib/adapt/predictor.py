"""What is known of one task: predictors, which never change. To learn is to make another one.

Both kinds have the same verbs (predict, update, merge, forget, save) and differ in what these cost:

| | `Memorised` | `Conditioned` |
| --- | --- | --- |
| for | GP-VIB and Gaussian classes with an explicit kernel and features of each point by itself | every other method |
| keeps | the memory of its points, of constant size | its points |
| an update | one pass of the new points, $M^2$ additions each | keeps them; free |
| a prediction | $M^2$ a point, after one factorisation, $M^3/3$, when first asked | encodes the whole support anew |
| forgetting | subtraction, exact up to rounding | removes the points |
"""

from abc import ABC, abstractmethod
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from metavib.adapt import believed
from metavib.adapt.believed import Judged
from metavib.adapt.file import Kept, TaskFile, to_bytes, write
from metavib.adapt.points import Batch, Support
from metavib.adapt.trained import Trained
from metavib.likelihoods import Softmax
from metavib.likelihoods.prediction import Prediction
from metavib.posteriors.classes import GaussianClasses
from metavib.posteriors.functions import Primal
from metavib.posteriors.memory import Labels, TaskMemory, union

FORMS = ("smaller", "points", "memory")


class Predictor(ABC):
    """What is known of one task.

    Args:
        trained: the model.
    """

    constant_size: bool
    """Whether what it keeps, and what an update or a prediction costs, does not grow with the points."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained

    @property
    @abstractmethod
    def classes(self) -> Labels:
        """Labels of a classifier's columns; none for real outputs."""

    @property
    @abstractmethod
    def n(self) -> int:
        """How many points it has learned from."""

    @property
    @abstractmethod
    def counts(self) -> list[int]:
        """How many points of each class, in the order of `classes`."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that it takes while it is in use, its factorised posterior included."""

    @property
    @abstractmethod
    def event(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the model that the task belongs to: a task is read only with that model."""
        return self._trained.fingerprint

    def predict(self, x: Any) -> Prediction:
        """The distribution of the outputs at inputs `(v, *event)`."""
        return self.predict_prepared(self._trained.inputs(x, self.event))

    def predict_prepared(self, x: Tensor) -> Prediction:
        """The same at inputs that `Trained.inputs` has prepared already."""
        self._check_classes()
        return self._trained.preparation.restore(self._predict(x))

    def update(self, points: Any, *, weight: Any = None) -> "Predictor":
        """The predictor that has also seen these points, one or many; they may be of new classes.

        Args:
            points: as for `Learner.adapt`.
            weight: how many points each counts as; one where None.

        Under a hierarchical prior points that cannot be right are left out with a warning (`metavib.adapt.believed`).
        """
        if isinstance(points, Judged):
            return self._update(points.right)
        judged = self.judge(points, weight=weight)
        believed.tell(judged.wrong, points, self._trained.preparation)
        return self._update(judged.right)

    def judge(self, points: Any, *, weight: Any = None) -> Judged:
        """Which points `update` would leave out, since they cannot be right; what it returns `update` takes as well.

        Args:
            points: as for `Learner.adapt`.
            weight: how many points each counts as; one where None.
        """
        new = self._trained.points(points, self.event, weight)
        return Judged(new, self._wrong(new))

    def merge(self, other: "Predictor") -> "Predictor":
        """The predictor that knows what both know.

        They may have seen different classes, but no common points: what both have seen would count twice.
        """
        if other.fingerprint != self.fingerprint:
            raise ValueError(
                "the two predictors are of different models, whose features have nothing in common; adapt both with "
                "the same model."
            )
        if other.event != self.event:
            raise ValueError(f"inputs of the two tasks differ: {self.event} and {other.event}.")
        return self._merge(other)

    def forget(self, points: Any, *, weight: Any = None) -> "Predictor":
        """The predictor that has never seen these points, which must be among those it learned from.

        A class left without points is forgotten with them; one that was named and never had any stays.

        Args:
            points: as for `Learner.adapt`.
            weight: that of each when it was learned; one where None.
        """
        return self._forget(self._trained.points(points, self.event, weight))

    def save(self, path: str | Path, *, form: str = "smaller", run: Path | None = None) -> None:
        """Writes what it knows into a task file (`metavib.adapt.file`), atomically.

        `Learner.load` makes a predictor of it again, whose predictions are the same to the last bit.

        Args:
            path: the file.
            form: "memory": the sums, of constant size, and not a single point; "points": the points; "smaller": one or
                the other. What was learned from many points is there as a memory alone, what a model without a
                memory learned as points alone.
            run: the folder of the run it was made with, for whoever finds the file.
        """
        write(Path(path), self._file(form), self._trained, run=run)

    def to_bytes(self, *, form: str = "smaller") -> bytes:
        """What `save` writes, without a file and without the name of a run; `Learner.from_bytes` reads it."""
        return to_bytes(self._file(form), self._trained)

    def _file(self, form: str) -> TaskFile:
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}; got {form!r}.")
        return TaskFile([Kept(self._kept(form), self.classes)])

    def _wrong(self, points: Batch) -> np.ndarray:
        """Which of some new points cannot be right, as a mask."""
        if self.n and believed.looks(self._trained):
            known = np.full(len(points.x), self.n)
            return believed.wrong_beside(self._trained, points, self._predict(points.x), known)
        return believed.wrong_together(self._trained, points, np.zeros(len(points.x), dtype=np.int64))

    def _check_classes(self) -> None:
        if self._trained.classifies and not self.classes:
            raise ValueError("nothing is known of any class yet: adapt or update with labelled points first.")

    @abstractmethod
    def _predict(self, x: Tensor) -> Prediction: ...

    @abstractmethod
    def _update(self, points: Batch) -> "Predictor": ...

    @abstractmethod
    def _merge(self, other: Any) -> "Predictor": ...

    @abstractmethod
    def _forget(self, points: Batch) -> "Predictor": ...

    @abstractmethod
    def _kept(self, form: str) -> Support | TaskMemory: ...


@final
class Memorised(Predictor):
    """A predictor of constant size: a memory that points are added to, merged with another, and taken from.

    While the points themselves take less room than the memory they are kept beside it, for a smaller file.

    Args:
        trained: the model.
        memory: what the points had to say.
        support: the points, where they are at hand: `trained.remembered(support)` is `memory` to the last bit.

    Example:
        Two places learn one task and add up what they know.

        >>> from metavib import Learner, encoders, kernels, likelihoods, methods, networks
        >>> parts = encoders.ExactSites(), likelihoods.Gaussian(noise=0.1)
        >>> learner = Learner(methods.gp_vib(networks.MLP(1, ()), kernels.Linear(), *parts))
        >>> here, there = learner.adapt(([[1.0]], [2.0])), learner.adapt(([[2.0]], [4.0]))
        >>> both = here.merge(there)
        >>> both.n, both.constant_size, both.memory.sums.A.round(decimals=2).tolist()  # (1 + 4) / 0.1
        (2, True, [[50.0]])
        >>> both.forget(([[2.0]], [4.0])).predict([[1.0]]).mean == here.predict([[1.0]]).mean
        tensor([True])
    """

    constant_size = True

    def __init__(self, trained: Trained, memory: TaskMemory, support: Support | None = None) -> None:
        super().__init__(trained)
        self.memory = memory
        self._support = support if support is not None and support.nbytes < memory.nbytes else None

    @property
    def classes(self) -> Labels:
        """Labels of a classifier's columns; none for real outputs."""
        return self.memory.classes

    @property
    def n(self) -> int:
        """How many points it has learned from."""
        return self.memory.n

    @property
    def counts(self) -> list[int]:
        """How many points of each class."""
        return [int(count) for count in self.memory.counts.tolist()]

    @property
    def nbytes(self) -> int:
        """The memory, its factor, the inverse of that, and base samples of each class."""
        support = 0 if self._support is None else self._support.nbytes
        return 3 * self.memory.sums.A.nbytes + 8 * self._trained.samples * len(self.classes) + support

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.memory.event

    @cached_property
    def posterior(self) -> Primal | GaussianClasses:
        """q(Z | D_t), with its KL; factorised when first asked for."""
        return self._trained.posterior(self.memory)

    @cached_property
    def _noise(self) -> Tensor | None:
        softmax = isinstance(self._trained.model.likelihood, Softmax)
        return self._trained.base_samples(self.classes) if softmax else None

    @cached_property
    def _seen(self) -> list[bool]:
        return self.memory.seen

    @cached_property
    def _warmth(self) -> Tensor:
        return self._trained.warmth(self.memory)

    def predict_from(self, phi: Tensor) -> Prediction:
        """The same as `predict`, at inputs that have been through the network already: `phi = trained.all_features(x)`.

        So one pass of the network serves many tasks.
        """
        self._check_classes()
        return self._trained.preparation.restore(self._of(phi))

    def _predict(self, x: Tensor) -> Prediction:
        return self._of(self._trained.all_features(x))

    def _of(self, phi: Tensor) -> Prediction:
        q = self._trained.marginals_at(self.posterior, phi, self._seen)
        return self._trained.prediction(q, self.classes, self._noise, warmth=self._warmth, phi=phi)

    def _update(self, points: Batch) -> "Memorised":
        classes = self._trained.more_classes(self.classes, points.labels)
        support = None if self._support is None else self._support + Support((points,))
        return Memorised(self._trained, self.memory + self._trained.memory(points, classes), support)

    def _merge(self, other: "Memorised") -> "Memorised":
        if self._support is None or other._support is None:
            return Memorised(self._trained, self.memory + other.memory.to(self._trained.device))
        # Batch after batch, as `remembered` will add them up again.
        classes = union(self.classes, other.classes)
        memory = self.memory.with_classes(classes)
        for batch in other._support.batches:
            memory = memory + self._trained.memory(batch, classes)
        return Memorised(self._trained, memory, self._support + other._support)

    def _forget(self, points: Batch) -> "Memorised":
        """Up to rounding, where the points themselves are no longer at hand.

        Features of the same point may differ in the last digits from one pass of the network to the next, in float32 by
        about one part in ten million. Where most of a long stream is forgotten again, what is left is that much less
        exact; float64 is the remedy.
        """
        trained = self._trained
        gone = trained.memory(points, trained.more_classes(self.classes, points.labels))
        rest = self.memory.without(gone, tolerance=1e3 * torch.finfo(trained.dtype).eps)
        if self._support is None:
            return Memorised(trained, rest)
        left = self._support.without(points)
        return Memorised(trained, trained.remembered(left, rest.classes), left)

    def _kept(self, form: str) -> Support | TaskMemory:
        if form == "points" and self._support is None:
            raise ValueError(f"of the {self.n} points only the memory is left: save it with form='memory'.")
        return self.memory if form == "memory" or self._support is None else self._support


@final
class Conditioned(Predictor):
    """A predictor that keeps its support and encodes it, with the query, at each prediction: it grows with its points.

    Under batch-norm `support+point` or `union` a prediction depends on its own point and the support alone; under
    `transductive` on all points asked for together, as the encoding says.

    Args:
        trained: the model.
        support: the points.
        classes: labels of the columns.

    Example:
        >>> from metavib import Learner, encoders, kernels, likelihoods, methods, networks
        >>> parts = encoders.ExactSites(), likelihoods.Gaussian(noise=0.1)
        >>> learner = Learner(methods.gp_vib(networks.MLP(1, ()), kernels.RBF(), *parts))
        >>> task = learner.adapt(([[1.0]], [2.0])).update(([[2.0]], [4.0]))
        >>> task.n, task.constant_size
        (2, False)
        >>> learner.trained.obstacle
        'the kernel RBF has no explicit feature map, so no memory of constant size exists'
    """

    constant_size = False

    def __init__(self, trained: Trained, support: Support, classes: Labels) -> None:
        super().__init__(trained)
        self._support, self._classes = support, classes

    @property
    def classes(self) -> Labels:
        """Labels of a classifier's columns; none for real outputs."""
        return self._classes

    @property
    def n(self) -> int:
        """How many points it has learned from."""
        return self._support.n

    @property
    def counts(self) -> list[int]:
        """How many points of each class."""
        found = Counter(self._support.whole.labels)
        return [found[label] for label in self.classes]

    @property
    def nbytes(self) -> int:
        """Bytes that the points take, which are all that is kept."""
        return self._support.nbytes

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self._support.event

    def _predict(self, x: Tensor) -> Prediction:
        q, noise = self._trained.encoded(self._support.whole, self.classes, x)
        warmth, kind = self._trained.warmth(self._support.whole), self._trained.kind_of(x)
        return self._trained.prediction(q, self.classes, noise, warmth=warmth, phi=kind)

    def _update(self, points: Batch) -> "Conditioned":
        classes = self._trained.more_classes(self.classes, points.labels)
        return Conditioned(self._trained, self._support + Support((points,)), classes)

    def _merge(self, other: "Conditioned") -> "Conditioned":
        classes = self._trained.more_classes(self.classes, list(other.classes))
        return Conditioned(self._trained, self._support + other._support, classes)

    def _forget(self, points: Batch) -> "Conditioned":
        left = self._support.without(points)
        before, after = set(self._support.whole.labels), set(left.whole.labels)
        gone = before - after if self._trained.any_ways else set()
        return Conditioned(self._trained, left, tuple(k for k in self.classes if k not in gone))

    def _kept(self, form: str) -> Support:
        if form == "memory":
            raise TypeError(f"this model keeps no memory of constant size: {self._trained.obstacle}. Save the points.")
        return self._support


def predictor(trained: Trained, kept: Support | TaskMemory, classes: Labels) -> Predictor:
    """The predictor of a task of which points or a memory are kept."""
    if isinstance(kept, TaskMemory):
        return Memorised(trained, kept)
    if trained.obstacle is None:
        return Memorised(trained, trained.remembered(kept, classes), kept)
    return Conditioned(trained, kept, classes)
