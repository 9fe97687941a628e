"""Which points a task learns from: all of them, but under a hierarchical prior none that cannot be right.

This is where every way to new points comes by, that of learners, of estimators, of the command line and of the service:
a gross error among a handful of rows would move all predictions of its task. What "cannot be right" means is decided by
`metavib.groups.outliers`. Whoever hands over such a point is warned, also where it is believed because nothing else is
known of its task.
"""

import warnings
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from metavib.adapt.points import Batch
from metavib.adapt.preparation import Preparation
from metavib.adapt.trained import Trained
from metavib.groups import Hierarchy
from metavib.groups.outliers import FAR, believable, beyond_reach, outliers
from metavib.likelihoods import RealLikelihood
from metavib.likelihoods.prediction import Prediction, RealPrediction
from metavib.priors import FunctionPrior


class Judged(NamedTuple):
    """Points as a model takes them, and which of them cannot be right, as a mask.

    `Learner.adapt` and `Predictor.update` take it where points are expected: what it says is then not warned of.
    """

    points: Batch
    wrong: np.ndarray

    @property
    def right(self) -> Batch:
        """The points that are learned from."""
        return self.points.select(np.flatnonzero(~self.wrong).tolist()) if self.wrong.any() else self.points

    @property
    def left_out(self) -> list[int]:
        """Which points are not, numbered from 1."""
        return (np.flatnonzero(self.wrong) + 1).tolist()


def looks(trained: Trained) -> bool:
    """Whether gross errors are looked for: under a hierarchical prior of real outputs."""
    prior = trained.model.prior
    return (
        isinstance(prior, FunctionPrior)
        and isinstance(prior.network.body, Hierarchy)
        and isinstance(trained.model.likelihood, RealLikelihood)
    )


def wrong_together(trained: Trained, points: Batch, group: np.ndarray) -> np.ndarray:
    """Which points cannot be right beside the others of their task, and the prior, as a mask.

    A task of which more than half of the points are so far off is taken to be unlike all others, and a warning says so.

    Args:
        trained: the model.
        points: of tasks of which nothing else is known.
        group: the task of each, numbered from 0.
    """
    if not looks(trained):
        return np.zeros(len(group), dtype=bool)
    far = _far(trained, points, group)
    kept = far & believable(far, group)
    if kept.any():
        warnings.warn(
            f"{kept.sum()} of {len(kept)} rows lie more than {FAR:.0f} standard deviations from what all tasks that "
            "were learned from say of them. They are believed, since they are most of what is known of their task; "
            "check them if it should not be unlike all others.",
            UserWarning,
            stacklevel=4,
        )
    return far & ~kept


def wrong_beside(trained: Trained, points: Batch, found: Prediction, known: np.ndarray) -> np.ndarray:
    """Which points cannot be right beside what is known of their task already, as a mask.

    A single known point may be wrong itself: what all other tasks find possible, it cannot rule out.

    Args:
        trained: the model, which `looks`.
        points: of tasks of which something is known.
        found: what that says of them, in the model's own space.
        known: how many points of its task are known, for each.
    """
    likelihood = trained.model.likelihood
    assert isinstance(found, RealPrediction) and isinstance(likelihood, RealLikelihood)
    far = beyond_reach(found.q, points.y, likelihood, points.counted).cpu().numpy()
    doubted = np.flatnonzero(far & (known < 2))
    far[doubted] = _far(trained, points.select(doubted.tolist()), np.arange(len(doubted)))
    return far


def _far(trained: Trained, points: Batch, group: np.ndarray) -> np.ndarray:
    """Which points are far off what the others of their task, and the prior, say of them, as a mask."""
    if not len(group):
        return np.zeros(0, dtype=bool)
    model = trained.model if trained.device.type == "cpu" else deepcopy(trained.model).cpu()
    weight = None if points.weight is None else points.weight.cpu()
    return outliers(model, points.x.cpu(), points.y.cpu(), group, weight)


def tell(wrong: np.ndarray, data: Any, preparation: Preparation) -> None:
    """Warns of rows that are left out since they cannot be right.

    Args:
        wrong: which, as a mask.
        data: what they are rows of.
        preparation: knows where in the data a row is.
    """
    if wrong.any():
        warnings.warn(
            f"{wrong.sum()} of {len(wrong)} rows are left out, the first of them "
            f"{preparation.place(data, int(wrong.argmax()))}: their outputs lie more than {FAR:.0f} standard "
            "deviations from what all other rows say of them.",
            UserWarning,
            stacklevel=4,
        )
