"""What the two estimators share: parameters, checks, meta-training, adaptation."""

import copy
import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from metavib.adapt.learner import Learner, Predictor
from metavib.estimators.models import build_model
from metavib.estimators.training import Draw, History, Schedule, meta_train
from metavib.likelihoods import Likelihood
from metavib.model import Model
from metavib.objective import Objective
from metavib.tasks import scaling as scalings
from metavib.tasks.scaling import Scaling
from metavib.tasks.task import Task

SEEDS = 2**31 - 1


class FewShotEstimator(BaseEstimator):
    """Meta-trains GP-VIB on many small tasks, then adapts to new ones at once.

    Attributes:
        model_: the meta-trained model, in float64.
        scaling_: how inputs and outputs are standardised.
        history_: steps taken, the step whose weights were kept, and the scores on held-out tasks.
        learner_: adapts the model to tasks.
        predictor_: the task this estimator is adapted to; absent after `fit(X, y, tasks=...)`.
        n_features_in_, feature_names_in_: of the inputs.
    """

    likelihood: str
    backbone: Any
    hidden: tuple[int, ...]
    kernel: str
    shots: int | tuple[int, int] | None
    n_steps: int
    tasks_per_step: int
    learning_rate: float
    beta: float
    validation_fraction: float
    patience: int
    missing: str
    random_state: Any
    verbose: bool
    predictor_: Predictor
    _objective: Objective  # what meta-training maximises

    # Adaptation

    @abstractmethod
    def adapt(self, X: Any, y: Any) -> Self:
        """A new estimator for the task of some rows; this one stays as it is."""

    def _adapted(self, predictor: Predictor) -> Self:
        adapted = copy.copy(self)
        adapted.predictor_ = predictor
        return adapted

    def _adapted_predictor(self) -> Predictor:
        check_is_fitted(self, "model_")
        if not hasattr(self, "predictor_"):
            raise NotFittedError(
                f"this {type(self).__name__} is meta-trained and knows no task yet: adapt(X, y) to a few rows of one "
                "returns an estimator that predicts."
            )
        return self.predictor_

    # Checks

    def _check(self, X: Any, y: Any = "no_validation", *, reset: bool) -> Any:
        """Arrays of the right shapes; missing values are looked at later, where columns have names."""
        options: dict[str, Any] = {"dtype": (np.float64, np.float32, np.uint8), "allow_nd": True}
        options |= {"ensure_all_finite": False, "reset": reset}
        if reset:
            options["ensure_min_samples"] = 2
        return validate_data(self, X, y, **options)

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def _inputs(self, X: np.ndarray) -> Tensor:
        """Standardised inputs, in float64."""
        if X.shape[1:] != self._event:
            raise ValueError(f"expected inputs (n, {', '.join(map(str, self._event))}), as in fit; got {X.shape}.")
        scalings.check_finite(X.astype(np.float64), names=self._names(), missing=self.missing)
        return self.scaling_.x.standardise(torch.tensor(X, dtype=torch.float64))

    def _task_ids(self, tasks: Any, rows: int) -> np.ndarray:
        """Numbers of tasks; one task where there are no ids."""
        if tasks is None:
            return np.zeros(rows, dtype=np.int64)
        ids = column_or_1d(np.asarray(tasks))
        if len(ids) != rows:
            raise ValueError(f"tasks must be one id a row, ({rows},); got {ids.shape}.")
        if any(i is None or i != i for i in ids.tolist()):
            raise ValueError("tasks must name the task of every row; some ids are missing (NaN or None).")
        return np.unique(ids.astype(str) if ids.dtype == object else ids, return_inverse=True)[1]

    # Meta-training

    def _start(self, X: np.ndarray, y_scaling: scalings.Outputs) -> tuple[Tensor, np.random.RandomState]:
        """Learns the standardisation; returns standardised inputs in float32, and the source of randomness."""
        if self.n_steps < 0 or self.tasks_per_step < 1 or not 0 <= self.validation_fraction < 1 or self.patience < 1:
            raise ValueError(
                "need n_steps >= 0, tasks_per_step >= 1, 0 <= validation_fraction < 1 and patience >= 1; got "
                f"{self.n_steps}, {self.tasks_per_step}, {self.validation_fraction} and {self.patience}."
            )
        x_scaling = scalings.columns(X, names=self._names(), missing=self.missing)
        self.scaling_, self._event = Scaling(x_scaling, y_scaling), X.shape[1:]
        return self._inputs(X).float(), check_random_state(self.random_state)

    def _model(self, x: Tensor, likelihood: Likelihood, seed: int) -> Model:
        event = tuple(x.shape[1:])
        options: dict[str, Any] = {"backbone": self.backbone, "hidden": tuple(self.hidden), "kernel": self.kernel}
        return build_model(event, likelihood, name=self.likelihood, seed=seed, **options)

    def _meta_train(self, model: Model, draw: Draw, validation: list[tuple[Model, Task]], seed: int) -> History:
        schedule = Schedule(self._objective, self.n_steps, self.learning_rate, self.beta, self.patience)
        history = meta_train(model, draw, validation, schedule, seed=seed, show=bool(self.verbose))
        # Float64 from here on: predictions do not depend on how rows are batched, and streams stay exact.
        self.model_ = model.double().requires_grad_(False).eval()
        self.history_, self.n_iter_ = history, max(1, history.steps)
        self.learner_ = Learner(self.model_)
        return history

    def _range(self, default: tuple[int, int]) -> tuple[int, int]:
        """Smallest and largest number of support points drawn in training."""
        given = default if self.shots is None else self.shots
        low, high = (given, given) if isinstance(given, int | np.integer) else given
        if not 1 <= low <= high:
            raise ValueError(
                f"shots must be a number or a range (low, high) with 1 <= low <= high; got {self.shots!r}."
            )
        return int(low), int(high)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "mean"
        tags.non_deterministic = False
        return tags


def left_out(count: int, total: int, why: str) -> None:
    """Warns of tasks that cannot be trained on."""
    if count:
        warnings.warn(f"{count} of {total} tasks are left out of meta-training: {why}.", UserWarning, stacklevel=3)
