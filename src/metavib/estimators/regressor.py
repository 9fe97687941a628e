"""Few-shot regression with scikit-learn's conventions."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from metavib.adapt.learner import Predictor
from metavib.adapt.prediction import RealPrediction
from metavib.estimators.base import SEEDS, FewShotEstimator, left_out
from metavib.estimators.tasks import WHOLE_TASKS, Rows, Shots, hold_out, row_tasks
from metavib.kernels import Kernel
from metavib.likelihoods import Gaussian, Likelihood, Poisson, StudentT
from metavib.model import Model
from metavib.objective import predictive
from metavib.random import seeded
from metavib.tasks import scaling as scalings
from metavib.tasks.table import TableTasks
from metavib.tasks.task import Examples, Task, examples

LIKELIHOODS = {"gaussian": lambda: Gaussian(0.3), "student-t": lambda: StudentT(0.3), "poisson": Poisson}
QUERIES = 50  # query points of a training task, at most


class FewShotRegressor(RegressorMixin, FewShotEstimator):
    """Regression on many small related tasks, with uncertainty.

    `fit(X, y, tasks=ids)` meta-trains on all tasks, holding some out to stop early by; `adapt(X, y)` then returns an
    estimator for a new task from a few of its rows, at once. Without ids the data is one task, split at random into
    support and query at each step, and `fit` also adapts to all of it.

    Args:
        likelihood: gaussian; student-t for heavy tails; poisson for counts.
        backbone: auto (an MLP for rows, Conv4 for images), mlp, identity (given embeddings, or a linear model), conv4,
            or a `metavib.networks.Backbone`.
        hidden: hidden units of the MLP.
        kernel: linear, cosine, rbf, matern32 or matern52 on the features. Only the first two update in constant memory.
        shots: support points of a training task, a number or a range; None: from 1 to half of the median task, 50 at
            most (one task: from a quarter, 32 at most, to three quarters of its rows, 128 at most).
        n_steps: meta-training steps, at most.
        tasks_per_step: tasks a step.
        learning_rate: Adam's, at the start of its cosine schedule.
        beta: weight of the KL.
        validation_fraction: share of the tasks held out to stop early and to select weights by (of the rows, where
            there are fewer than five tasks); 0: none.
        patience: validations, of 40, without a better score before training stops.
        missing: refuse, or mean: NaN becomes the training mean, and an indicator column is added.
        random_state: seed or RandomState; decides everything.
        verbose: draw a progress bar.
    """

    _objective = staticmethod(predictive)

    def __init__(
        self,
        *,
        likelihood: str = "gaussian",
        backbone: Any = "auto",
        hidden: tuple[int, ...] = (64, 64),
        kernel: str = "linear",
        shots: int | tuple[int, int] | None = None,
        n_steps: int = 2000,
        tasks_per_step: int = 16,
        learning_rate: float = 2e-3,
        beta: float = 1e-2,
        validation_fraction: float = 0.15,
        patience: int = 10,
        missing: str = "refuse",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.likelihood = likelihood
        self.backbone = backbone
        self.hidden = hidden
        self.kernel = kernel
        self.shots = shots
        self.n_steps = n_steps
        self.tasks_per_step = tasks_per_step
        self.learning_rate = learning_rate
        self.beta = beta
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.missing = missing
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, tasks: Any = None) -> Self:
        """Meta-trains; without task ids also adapts to all rows.

        Args:
            X: rows `(n, d)` or images `(n, C, H, W)`.
            y: outputs `(n,)`.
            tasks: the task of each row, any ids.
        """
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)}; got {self.likelihood!r}.")
        X, y = self._check_both(X, y, reset=True)
        ids = self._task_ids(tasks, len(y))
        likelihood = LIKELIHOODS[self.likelihood]()
        likelihood.check(torch.tensor(y))
        scaling = scalings.as_they_are() if self.likelihood == "poisson" else scalings.outputs(y)
        x, random = self._start(X, scaling)
        seed = random.randint(SEEDS)
        rows = self._trainable(Rows(x, self._outputs(y).float(), ids))
        model = self._model(x, likelihood, seed)
        _start_scale(model, rows.y)
        source, validation = self._sources(rows, random)

        def draw(generator: Generator) -> tuple[Model, Task]:
            return model, source.sample((self.tasks_per_step,), generator)

        self._meta_train(model, draw, [(model, task) for task in validation], seed)
        if tasks is None:
            self.predictor_ = self.learner_.adapt(self._examples(X, y))
        elif hasattr(self, "predictor_"):
            del self.predictor_  # of an earlier fit
        return self

    def adapt(self, X: Any, y: Any) -> Self:
        """A new estimator for the task of some rows (one is enough); this one stays as it is."""
        check_is_fitted(self, "model_")
        X, y = self._check_both(X, y, reset=False)
        return self._adapted(self.learner_.adapt(self._examples(X, y)))

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Adds rows to the task this estimator is adapted to, in constant memory.

        The first call of an estimator that is not fitted is `fit`; one that is only meta-trained adapts.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        X, y = self._check_both(X, y, reset=False)
        points = self._examples(X, y)
        known = getattr(self, "predictor_", None)
        self.predictor_ = self.learner_.adapt(points) if known is None else known.update(points)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictive means `(n,)`, and standard deviations where asked for, of outputs (noise included)."""
        predictor = self._adapted_predictor()
        found = _real(predictor, self._inputs(self._check(X, reset=False)))
        mean = self.scaling_.y.restore(found.mean).numpy()
        return (mean, self.scaling_.y.restore_variance(found.variance).sqrt().numpy()) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """The central interval that holds an output with a given probability: `(n, 2)`, lower and upper ends."""
        predictor = self._adapted_predictor()
        ends = _real(predictor, self._inputs(self._check(X, reset=False))).interval(level)
        return torch.stack([self.scaling_.y.restore(end) for end in ends], -1).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None, shots: int = 5) -> float:
        """R² of the predictions; with task ids, of few-shot predictions on each of them, all rows pooled.

        Args:
            X: rows.
            y: outputs.
            sample_weight: of the rows; not with task ids.
            tasks: where given, the estimator is adapted to `shots` random rows of each task (half of them, in a
                task with fewer than twice as many) and predicts the others. This is what cross-validation over tasks
                calls for.
            shots: how many.
        """
        if tasks is None:
            return super().score(X, y, sample_weight)
        if sample_weight is not None:
            raise ValueError("sample_weight and tasks do not go together in score.")
        check_is_fitted(self, "model_")
        X, y = self._check_both(X, y, reset=False)
        ids, random = self._task_ids(tasks, len(y)), np.random.RandomState(0)
        truth, predicted = [], []
        for task in np.unique(ids):
            places = random.permutation(np.flatnonzero(ids == task))
            support, query = np.split(places, [min(shots, len(places) // 2)])
            predictor = self.learner_.adapt(self._examples(X[support], y[support]))
            predicted.append(self.scaling_.y.restore(_real(predictor, self._inputs(X[query])).mean).numpy())
            truth.append(y[query])
        return float(r2_score(np.concatenate(truth), np.concatenate(predicted)))

    def _check_both(self, X: Any, y: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._check(X, y, reset=reset)
        return X, np.asarray(y, dtype=np.float64)

    def _outputs(self, y: np.ndarray) -> Tensor:
        return self.scaling_.y.standardise(torch.tensor(y))

    def _examples(self, X: np.ndarray, y: np.ndarray) -> Examples:
        self.model_.likelihood.check(torch.tensor(y))
        return examples(self._inputs(X), self._outputs(y))

    def _trainable(self, rows: Rows) -> Rows:
        """Tasks of one row have nothing to be predicted from it."""
        counts = np.bincount(rows.ids)
        if not (counts >= 2).any():
            raise ValueError(f"no task has two rows, one to learn from and one to predict; got {len(counts)} tasks.")
        left_out(int((counts == 1).sum()), len(counts), "they have a single row")
        return rows.select(counts[rows.ids] >= 2)

    def _sources(self, rows: Rows, random: np.random.RandomState) -> tuple[TableTasks, list[Task]]:
        counts = np.bincount(rows.ids)
        counts = counts[counts > 0]
        n = int(np.median(counts))
        few, one = (1, min(50, max(1, n // 2))), (max(1, min(32, n // 4)), max(1, min(128, 3 * n // 4)))
        default = few if len(counts) > 1 else one
        shots = Shots(*self._range(default), QUERIES)
        same = np.zeros(len(rows.ids), dtype=np.int64)
        held = hold_out(rows.ids, same, self.validation_fraction, random)
        sizes: dict[str, int] = {"shots": shots.high, "queries": shots.queries, "min_shots": shots.low}
        training = rows.select(~held)
        source = TableTasks(training.x, training.y, training.ids, **sizes)
        if not held.any():
            return source, []
        if len(counts) < WHOLE_TASKS:
            return source, row_tasks(rows, held, same, shots, random)
        part = rows.select(held)
        tasks = TableTasks(part.x, part.y, part.ids, **sizes)
        turns = torch.arange(len(tasks)).repeat(max(1, 64 // len(tasks)))
        return source, [tasks.split(turns, seeded(random.randint(SEEDS)))]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.likelihood == "poisson"
        return tags


def _real(predictor: Predictor, x: Tensor) -> RealPrediction:
    prediction = predictor.predict(x)
    assert isinstance(prediction, RealPrediction)
    return prediction


def _start_scale(model: Model, y: Tensor) -> None:
    """Starts the prior's out-scale where the outputs are: counts are not standardised."""
    kernel, likelihood = model.prior.kernel, model.likelihood
    assert isinstance(kernel, Kernel) and isinstance(likelihood, Likelihood)
    if isinstance(likelihood, Poisson):
        with torch.no_grad():
            for name, parameter in kernel.named_parameters():
                if name.endswith("log_scale"):
                    parameter.fill_(float(likelihood.targets(y).square().mean().log().clamp(min=0.0)))
