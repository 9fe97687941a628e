r"""Classes that all tasks have in common: how probable each of them is, from what other tasks and a few rows say.

The indicator of a class, 1 for its rows and 0 for the others, is a real output like any other. Under the hierarchical
prior of `metavib.groups` (THEORY.md, section 12) its predictive mean is the best linear predictor of the indicator, and
so an estimate of the class's probability that shrinks towards what is usual: with no rows of a task it is what the
columns say in all tasks, with n rows and no columns it is the smoothed share

$$P(y = c) = \frac{n_c + \lambda\, \bar p_c}{n + \lambda}, \qquad \lambda = \sigma^2 / \tau^2,$$

with $\sigma^2$ the variance of the indicator within tasks and $\tau^2$ that between them. Rows of one class never mean
certainty.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from metavib.adapt.learner import Learner, Predictor
from metavib.adapt.prediction import ClassPrediction, RealPrediction
from metavib.estimators.tasks import Rows
from metavib.groups import learn
from metavib.model import Model
from metavib.tasks import scaling as scalings
from metavib.tasks.task import examples

FLOOR = 0.02  # no probability is smaller, or than half of the class's share of the rows learned from


class Column(NamedTuple):
    """The indicator of one class: how it is standardised, its model, and what adapts that to tasks."""

    scaling: scalings.Outputs
    model: Model
    learner: Learner


class SharesPredictor:
    """What is known of a task whose classes are common: it updates and predicts as a predictor of a learner does.

    Args:
        shares: what was learned from other tasks.
        classes: the classes of the task, a selection of the common ones.
        tasks: what the learner of each column knows of the task.
    """

    def __init__(self, shares: "Shares", classes: tuple[Hashable, ...], tasks: Sequence[Predictor]) -> None:
        self.shares, self.classes, self.tasks = shares, classes, tuple(tasks)

    @property
    def n(self) -> int:
        """How many rows are known of the task."""
        return self.tasks[0].n

    def update(self, points: tuple[Tensor, Any]) -> "SharesPredictor":
        """The task after more rows, of the common classes; this one stays as it is."""
        x, labels = points
        more = self.shares.indicators(labels)
        tasks = [task.update(examples(x, y)) for task, y in zip(self.tasks, more, strict=True)]
        seen = {*self.classes, *np.asarray(labels).tolist()}
        return SharesPredictor(self.shares, tuple(c for c in self.shares.classes if c in seen), tasks)

    def predict(self, x: Tensor) -> ClassPrediction:
        """Probabilities at inputs `(v, d)`."""
        means = []
        for column, task in zip(self.shares.columns, self.tasks, strict=True):
            found = task.predict(x)
            assert isinstance(found, RealPrediction)
            means.append(column.scaling.restore(found.mean))
        p = self.shares.probabilities(torch.stack(means, -1))
        p = p[:, [self.shares.classes.index(c) for c in self.classes]]
        return ClassPrediction(p / p.sum(-1, keepdim=True), p.argmax(-1), self.classes)


class Shares:
    """Learns how probable the common classes are in a new task; it adapts as a `metavib.adapt.learner.Learner` does.

    Args:
        rows: standardised inputs in float64, numbers of the classes as outputs, and the task of each row.
        classes: the labels, by their numbers.
        seed: decides which rows are learned from.

    Example:
        People who say yes each with a frequency of their own, about one in four in the mean.

        >>> random = np.random.default_rng(0)
        >>> person, x = np.repeat(np.arange(40), 8), torch.tensor(random.normal(size=(320, 1)))
        >>> yes = random.random(320) < random.beta(1, 3, 40)[person]
        >>> shares = Shares(Rows(x, torch.tensor(yes).long(), person), ("no", "yes"), seed=0)
        >>> unknown = shares.adapt((x[:0], [])).predict(x[:1]).probabilities[0, 1]
        >>> bool(0.1 < unknown < 0.4), bool(unknown < shares.adapt((x[:1], ["yes"])).predict(x[:1]).probabilities[0, 1])
        (True, True)
    """

    def __init__(self, rows: Rows, classes: Sequence[Hashable], *, seed: int) -> None:
        self.classes = tuple(classes)
        counts = np.bincount(rows.y.numpy(), minlength=len(self.classes))
        self.floor = torch.tensor(np.minimum(FLOOR, counts / counts.sum() / 2))
        group = np.unique(rows.ids, return_inverse=True)[1]
        self.columns = []
        for number in range(1 if len(self.classes) == 2 else len(self.classes)):
            y = (rows.y == self._class_of(number)).double()
            scaling = scalings.outputs(y.numpy())
            model = learn(rows.x, scaling.standardise(y), group, seed=seed).model
            self.columns.append(Column(scaling, model, Learner(model)))

    @property
    def models(self) -> nn.ModuleList:
        """The model of each column."""
        return nn.ModuleList([column.model for column in self.columns])

    def adapt(self, points: tuple[Tensor, Any], *, classes: Sequence[Hashable] | None = None) -> SharesPredictor:
        """What is known of a task after some rows, or none.

        Args:
            points: inputs, and the labels of the common classes.
            classes: those of them that the task has; all where None.
        """
        x, labels = points
        indicators, wanted = self.indicators(labels), set(self.classes if classes is None else classes)
        self._check(wanted)
        if others := set(np.asarray(labels).tolist()) - wanted:
            raise ValueError(f"the labels {', '.join(sorted(map(repr, others)))} are none of the task's classes.")
        known = zip(self.columns, indicators, strict=True)
        tasks = [column.learner.adapt(examples(x, y)) for column, y in known]
        return SharesPredictor(self, tuple(c for c in self.classes if c in wanted), tasks)

    def indicators(self, labels: Any) -> list[Tensor]:
        """The standardised indicator of each column's class."""
        labels = np.asarray(labels).tolist()
        self._check(set(labels))
        found = []
        for number, column in enumerate(self.columns):
            label = self.classes[self._class_of(number)]
            found.append(column.scaling.standardise(torch.tensor([float(k == label) for k in labels]).double()))
        return found

    def probabilities(self, means: Tensor) -> Tensor:
        """Probabilities `(v, N)` from the predictive means of the columns' indicators."""
        p = torch.cat([1 - means, means], -1) if len(self.classes) == 2 else means
        p = p.maximum(self.floor)
        return p / p.sum(-1, keepdim=True)

    def _class_of(self, column: int) -> int:
        """The number of the class whose indicator a column is: of two classes the second has the only one."""
        return 1 if len(self.classes) == 2 else column

    def _check(self, labels: set[Hashable]) -> None:
        if new := labels - set(self.classes):
            raise ValueError(
                f"tasks have the classes {', '.join(map(repr, self.classes))} in common; got "
                f"{', '.join(sorted(map(repr, new)))}. For classes that are new in each task take backbone='mlp'."
            )
