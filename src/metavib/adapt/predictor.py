"""What is known of one task: predictors, which never change. To learn is to make another one."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from metavib.adapt import state as states
from metavib.adapt.prediction import ClassPrediction, RealPrediction
from metavib.adapt.state import Labels, State
from metavib.adapt.trained import STREAM, Data, Trained, distinct
from metavib.likelihoods import Bernoulli, Softmax
from metavib.marginals import Marginals, Normal, Point, Samples
from metavib.posteriors import Primal
from metavib.priors import FunctionPrior
from metavib.random import Noise, seeded
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples


class Predictor(ABC):
    """What is known of one task."""

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
    def state(self) -> State:
        """All it has learned, in constant size: what `metavib.adapt.state.save` writes."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The model's."""

    @abstractmethod
    def predict(self, x: Any) -> RealPrediction | ClassPrediction:
        """The distribution of the outputs at inputs `(v, *event)`."""

    @abstractmethod
    def update(self, points: Data) -> "Predictor":
        """The predictor that has also seen these points, one or many; they may be of new classes."""

    @abstractmethod
    def merge(self, other: "Predictor") -> "Predictor":
        """The predictor that knows what both know; each must have learned the task from points of its own."""

    @abstractmethod
    def forget(self, points: Data) -> "Predictor":
        """The predictor that has never seen these points, which must be among those it learned from."""


@final
class Memorised(Predictor):
    """A predictor of constant size: a memory that points are added to, merged with another, and taken from.

    Args:
        trained: the model.
        state: what the points had to say.
    """

    def __init__(self, trained: Trained, state: State) -> None:
        self._trained, self._state = trained, state

    @property
    def classes(self) -> Labels:
        """Labels of a classifier's columns; none for real outputs."""
        return self._state.classes

    @property
    def n(self) -> int:
        """How many points it has learned from."""
        return self._state.n

    @property
    def state(self) -> State:
        """All it has learned."""
        return self._state

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._trained.fingerprint

    @cached_property
    def posterior(self) -> Primal:
        """q(f | D_t), with its KL and evidence; factorised when first asked for."""
        return self._trained.posterior(self._state)

    @cached_property
    def _noise(self) -> Tensor | None:
        softmax = isinstance(self._trained.model.likelihood, Softmax)
        return self._trained.base_samples(self.classes) if softmax else None

    def predict(self, x: Any) -> RealPrediction | ClassPrediction:
        """The distribution of the outputs at inputs `(v, *event)`."""
        _check_classes(self._trained, self.classes)
        x = self._trained.inputs(x, self._state.event)
        return self._trained.prediction(self._trained.marginals(self.posterior, x), self.classes, self._noise)

    def update(self, points: Data) -> "Memorised":
        """The predictor that has also seen these points: their sums are added to its own."""
        return Memorised(self._trained, self._state + self._state_of(points))

    def merge(self, other: Predictor) -> "Memorised":
        """The predictor that knows what both know; they may have seen different classes, but no common points."""
        if other.fingerprint != self.fingerprint:
            raise ValueError(
                "the two predictors are of different models, whose features have nothing in common; adapt both with "
                "the same model."
            )
        if other.state.event != self._state.event:
            raise ValueError(f"inputs of the two tasks differ: {self._state.event} and {other.state.event}.")
        return Memorised(self._trained, self._state + other.state.to(self._trained.device))

    def forget(self, points: Data) -> "Memorised":
        """The predictor that has never seen these points; a class left without points is forgotten with them.

        Up to rounding: features of the same point may differ in the last digits from one pass of the network to the
        next, in float32 by about one part in ten million. Where most of a long stream is forgotten again, what is left
        is that much less exact; float64 is the remedy.
        """
        rest = self._state.without(self._state_of(points), tolerance=1e3 * torch.finfo(self._trained.dtype).eps)
        return Memorised(self._trained, rest)

    def _state_of(self, data: Data) -> State:
        points = self._trained.points(data, self._state.event)
        known = states.union(self.classes, distinct(points.labels))
        if len(known) > 2 and isinstance(self._trained.model.likelihood, Bernoulli):
            raise ValueError(
                f"a binary likelihood has two classes, here {list(self.classes)}; got {known[2]!r} too. Train with a "
                "softmax likelihood for tasks whose classes may grow."
            )
        return self._trained.memory(points, known)


@final
class Conditioned(Predictor):
    """A predictor that keeps its support and encodes it, with the query, at each prediction.

    Under batch-norm `support+point` a prediction depends on its own point and the support alone; under `transductive`
    on all points asked for together, as the encoding says.

    Args:
        trained: the model.
        support: the points; labels as columns.
        labels: of the columns.
    """

    def __init__(self, trained: Trained, support: Examples, labels: Labels) -> None:
        self._trained, self._support, self._labels = trained, support, labels

    @property
    def classes(self) -> Labels:
        """Labels of a classifier's columns; none for real outputs."""
        return self._labels

    @property
    def n(self) -> int:
        """How many points it has learned from."""
        return self._support.size

    @property
    def state(self) -> State:
        """Refused: there is no state of constant size."""
        raise self._refusal("no state of constant size", "keep the support points themselves, and adapt again")

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._trained.fingerprint

    @torch.no_grad()
    def predict(self, x: Any) -> RealPrediction | ClassPrediction:
        """The distribution of the outputs at inputs `(v, *event)`."""
        trained, model = self._trained, self._trained.model
        _check_classes(trained, self._labels)
        x = trained.inputs(x, tuple(self._support.x.shape[1:]))
        likelihood = trained.sized(model.likelihood, self._labels)
        noise: Noise = seeded(STREAM, device=trained.device)
        if isinstance(likelihood, Softmax) and isinstance(model.prior, FunctionPrior):
            noise = trained.base_samples(self._labels).to(trained.dtype)
        query = Points(x, torch.ones(len(x), dtype=torch.bool, device=x.device))
        q = _double(model.encoder(self._support, query, model.prior, likelihood, noise).marginals(noise))
        return trained.prediction(q, self._labels, noise.double() if isinstance(noise, Tensor) else noise)

    def update(self, points: Data) -> Predictor:
        """Refused: there is no memory to add points to."""
        raise self._refusal("no memory to add points to", "adapt again with all points, the old and the new")

    def merge(self, other: Predictor) -> Predictor:
        """Refused: there are no memories to add up."""
        raise self._refusal("no memory to merge", "adapt again with the points of both places")

    def forget(self, points: Data) -> Predictor:
        """Refused: there is no memory to take points from."""
        raise self._refusal("no memory to take points from", "adapt again with the points that are left")

    def _refusal(self, lack: str, remedy: str) -> TypeError:
        return TypeError(f"this predictor has {lack}: {self._trained.obstacle}. Instead, {remedy}.")


def _check_classes(trained: Trained, classes: Labels) -> None:
    if trained.classifies and not classes:
        raise ValueError("nothing is known of any class yet: adapt or update with labelled points first.")


def _double(q: Marginals) -> Marginals:
    if isinstance(q, Normal):
        return Normal(q.mean.double(), q.var.double())
    return Point(q.f.double()) if isinstance(q, Point) else Samples(q.f.double())
