"""What the two estimators share: parameters, checks, meta-training, adaptation."""

import copy
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_array,
    check_is_fitted,
    check_X_y,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from metavib.adapt.learner import Learner, Predictor, Predictors
from metavib.data.schema import Schema, learn
from metavib.data.table import INDEX, Table, by_name, cells_of, in_memory, is_missing
from metavib.estimators import file
from metavib.estimators.models import build_model
from metavib.estimators.pictures import one_by_one
from metavib.estimators.tasks import Rows
from metavib.estimators.training import Draw, History, Schedule, meta_train
from metavib.likelihoods import Likelihood
from metavib.likelihoods.prediction import Prediction
from metavib.model import Model
from metavib.objective import Objective
from metavib.tasks import scaling as scalings
from metavib.tasks.scaling import Scaling
from metavib.tasks.task import Task
from metavib.training import build, run_folder
from metavib.training.checkpoint import Checkpoint
from metavib.training.config import ModelConfig

SEEDS = 2**31 - 1
STEPS = 1000  # of a network, where nothing was said
NOTHING = "no_validation"  # scikit-learn's word for outputs that were not given


class FewShotEstimator(BaseEstimator):
    """Meta-trains GP-VIB on many small tasks, then adapts to new ones at once.

    Attributes:
        model_: the meta-trained model, in float64.
        scaling_: how inputs and outputs are standardised.
        history_: steps taken, the step whose weights were kept, and the scores on held-out tasks; None without a
            network.
        learner_: adapts the model to tasks.
        predictor_: the task this estimator is adapted to; after `fit(X, y, tasks=...)` absent, or a task without
            rows, which is what predictions are then of.
        predictors_: the tasks this estimator is adapted to, by their ids, after `adapt(X, y, tasks=ids)`.
        mean_weight_: mean of the sample weights in fit, to which later ones are relative; 1 where there were none.
        schema_: what the columns of a data frame become as numbers; None for an array.
        run_: after a training on pictures, its config and weights; None otherwise.
        n_features_in_, feature_names_in_: of the inputs.
    """

    likelihood: str
    backbone: Any
    hidden: tuple[int, ...]
    kernel: str
    shots: int | tuple[int, int] | None
    n_steps: int | None
    tasks_per_step: int
    learning_rate: float
    beta: float
    validation_fraction: float
    patience: int
    missing: str
    device: str
    random_state: Any
    verbose: bool
    model_: Model
    learner_: Learner
    predictor_: Predictor
    predictors_: Predictors
    history_: History | None
    schema_: Schema | None
    run_: Checkpoint | None = None
    mean_weight_: float
    _objective: Objective  # what meta-training maximises

    # Adaptation

    @abstractmethod
    def adapt(self, X: Any, y: Any, *, tasks: Any = None, sample_weight: Any = None) -> Self:
        """A new estimator for the task of some rows; this one stays as it is."""

    def merge(self, other: Self) -> Self:
        """A new estimator that knows what both know of their task, or tasks; they must have no rows in common.

        Args:
            other: adapted from the same fitted estimator.
        """
        return self._merge(other)

    def _merge(self, other: Self) -> Self:
        mine, its = self._known(), other._known()
        if isinstance(mine, Predictors) != isinstance(its, Predictors):
            raise ValueError(
                "one of the two estimators is of one task and the other of many: they have none in common."
            )
        return self._adapted(mine.merge(its))  # type: ignore[arg-type]

    def forget(self, X: Any, y: Any, tasks: Any = None, sample_weight: Any = None) -> Self:
        """A new estimator that has never seen these rows, which must be among those it is adapted to.

        Args:
            X: rows.
            y: their outputs.
            tasks: the task of each row, where this estimator is adapted to many.
            sample_weight: of the rows, as when they were learned.
        """
        return self._forget(X, y, tasks, sample_weight)

    def _forget(self, X: Any, y: Any, tasks: Any, sample_weight: Any) -> Self:
        known = self._known(tasks)
        X, y, tasks, weight = self._checked(X, y, tasks, sample_weight, reset=False)
        if isinstance(known, Predictors):
            return self._adapted(known.forget(self._points(X, y), tasks, weight=weight))
        return self._adapted(known.forget(self._points(X, y), weight=weight))

    def _check_one_task(self) -> None:
        """Refuses to add rows without ids to what is known of many tasks."""
        if hasattr(self, "predictors_"):
            raise ValueError(
                "this estimator is adapted to many tasks, and partial_fit adds rows to one: merge it with what the new "
                "rows say, estimator.merge(estimator.adapt(X, y, tasks=ids))."
            )

    def _adapted(self, known: Predictor | Predictors) -> Self:
        """A copy that is adapted to one task, or to many."""
        adapted = copy.copy(self)
        adapted.__dict__.pop("predictors_", None)
        if isinstance(known, Predictors):
            adapted.predictors_ = known
        else:
            adapted.predictor_ = known
        return adapted

    def _known(self, tasks: Any = NOTHING) -> Predictor | Predictors:
        """What is known of the task, or of the tasks; ids must come, where a call may have them, with the second."""
        check_is_fitted(self, "model_")
        many = getattr(self, "predictors_", None)
        if not (isinstance(tasks, str) and tasks == NOTHING) and (many is None) != (tasks is None):
            needed = "the task of each row, tasks=..." if tasks is None else "adapt(X, y, tasks=ids) before it"
            raise ValueError(
                f"an estimator of {'one task' if many is None else 'many tasks'} predicts; it needs {needed}."
            )
        return self._adapted_predictor() if many is None else many

    def _predicted(self, X: Any, tasks: Any) -> Prediction:
        """Predictions of rows, by the one task or by the task of each row."""
        known = self._known(tasks)
        x = self._check(X, reset=False)
        if isinstance(known, Predictors):
            return known.predict(self._inputs(x), task_names(tasks, len(x)))
        return known.predict(self._inputs(x))

    @abstractmethod
    def _check_both(self, X: Any, y: Any, tasks: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Checked rows and outputs, of tasks or not."""

    @abstractmethod
    def _points(self, X: np.ndarray, y: np.ndarray) -> Any:
        """Rows and outputs as the learner takes them."""

    @abstractmethod
    def _without_rows(self) -> Predictor:
        """A task of which nothing is known: its predictions are the prior's."""

    def _adapted_predictor(self) -> Predictor:
        """The task this estimator is adapted to; before that, one without rows."""
        check_is_fitted(self, "model_")
        return self.predictor_ if hasattr(self, "predictor_") else self._without_rows()

    # Files

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the fitted estimator, with the task or the tasks it is adapted to, into one file, atomically.

        The file is a safetensors file with JSON beside the numbers (`metavib.estimators.file`); nothing is pickled.
        """
        check_is_fitted(self, ("model_", "estimators_"), all_or_any=any)
        file.save(self, Path(path))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The estimator that a file holds, which predicts what the saved one did, to the last bit.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no file that `save` wrote, is damaged, or holds another estimator.
        """
        found = file.load(cls, Path(path))
        assert isinstance(found, cls)
        return found

    @abstractmethod
    def _new_likelihood(self) -> Likelihood:
        """A likelihood as the network was built with."""

    def _blank(self) -> Model:
        """A network of the shape of the fitted one, with no weights of its own yet."""
        width = (self.scaling_.x.width,) if len(self._event) == 1 else self._event
        return self._model(torch.zeros(0, *width), self._new_likelihood(), 0)

    # Checks

    def _check(self, X: Any, y: Any = NOTHING, tasks: Any = None, *, reset: bool) -> Any:
        """Arrays of the right shapes; missing values are looked at later, where columns have names.

        A data frame becomes numbers by its schema, which is learned where `reset` says so, from rows of `tasks`.
        """
        alone = isinstance(y, str) and y == NOTHING
        if not alone and y is not None:
            _check_outputs(y)
        options: dict[str, Any] = {"dtype": (np.float64, np.float32, np.uint8), "allow_nd": True}
        options |= {"ensure_all_finite": False, "ensure_min_features": 0}  # `_check_inputs` looks at these
        if reset or not alone:
            options["ensure_min_samples"] = 2 if reset else 0  # to no rows at all an estimator can adapt
        if not reset and self._of_pictures():
            pictures = one_by_one(X)
            return pictures if alone else (pictures, column_of(y, len(pictures)))
        if not reset and not alone and isinstance(X, list) and not X:  # no rows, which have no columns to check
            return check_X_y(np.zeros((0, *self._event)), y, estimator=self, **options)
        _check_form(X)
        frame = is_frame(X)
        X = without_index(X) if frame else X
        if frame and not in_memory(X).columns:
            X, frame = np.zeros((X.shape[0], 0)), False
        if reset:
            self.schema_ = None
        if frame and (reset or self.schema_ is not None):
            validate_data(self, X, skip_check_array=True, reset=reset)
            table = in_memory(X)
            if reset:
                groups = None if tasks is None else task_names(tasks, len(table)).tolist()
                self.schema_ = learn(table, list(table.columns), groups=groups)
            assert self.schema_ is not None
            rows = self.schema_.encode(table)
        elif self.schema_ is not None and not self.schema_.plain:
            validate_data(self, X, skip_check_array=True, reset=reset)
            cells = np.asarray(X, dtype=object)
            names = self.schema_.features
            rows = self.schema_.encode(Table({name: cells_of(cells[:, i], name) for i, name in enumerate(names)}))
        else:
            with _explaining():
                return validate_data(self, X, y, reset=reset, **options)
        return check_array(rows, **options) if alone else check_X_y(rows, y, estimator=self, **options)

    def _of_pictures(self) -> bool:
        """Whether this estimator was trained on pictures, as `metavib train images` does it."""
        return self.run_ is not None

    def _checked(self, X: Any, y: Any, tasks: Any, sample_weight: Any, *, reset: bool) -> "Given":
        """Checked rows, their outputs, tasks and weights, without the rows of weight zero.

        Weights are over their mean in fit: of a row that has none, and of one that is predicted, as much is known as of
        the average row of fit.
        """
        X, y = self._check_both(X, y, tasks, reset=reset)
        names = None if tasks is None else task_names(tasks, len(y))
        if reset:
            self.mean_weight_ = 1.0
        if sample_weight is None:
            return Given(X, y, names, None)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        some = weight > 0
        if reset and some.sum() < 2:
            raise ValueError(f"two rows at least must have a weight above zero; got {some.sum()} of {len(some)} rows.")
        if reset:
            self.mean_weight_ = float(weight[some].mean())
        relative = torch.tensor(weight[some] / self.mean_weight_)
        return Given(X[some], y[some], None if names is None else names[some], relative)

    def _names(self) -> list[str] | None:
        """The columns that inputs come from, where they have names."""
        return None if self.schema_ is None else list(self.schema_.sources)

    def _inputs(self, X: np.ndarray) -> Any:
        """Standardised inputs, in float64; pictures as they are, which the learner prepares."""
        if self._of_pictures():
            return list(X)
        if X.shape[1:] != self._event:
            raise ValueError(f"expected inputs (n, {', '.join(map(str, self._event))}), as in fit; got {X.shape}.")
        values = X.astype(np.float64)
        scalings.check_finite(values, names=self._names(), missing=self.missing)
        scalings.tell_of_new_gaps(values, self.scaling_.x, names=self._names(), missing=self.missing)
        return self.scaling_.x.standardise(torch.tensor(X, dtype=torch.float64))

    def _task_ids(self, tasks: Any, rows: int) -> np.ndarray:
        """Numbers of tasks; one task where there are no ids."""
        if tasks is None:
            return np.zeros(rows, dtype=np.int64)
        return np.unique(task_names(tasks, rows), return_inverse=True)[1]

    # Meta-training

    def _start(self, X: np.ndarray, y_scaling: scalings.Outputs) -> tuple[Tensor, np.random.RandomState]:
        """Learns the standardisation; returns standardised inputs in float32, and the source of randomness."""
        if self._steps < 0 or self.tasks_per_step < 1 or not 0 <= self.validation_fraction < 1 or self.patience < 1:
            raise ValueError(
                "need n_steps >= 0, tasks_per_step >= 1, 0 <= validation_fraction < 1 and patience >= 1; got "
                f"{self._steps}, {self.tasks_per_step}, {self.validation_fraction} and {self.patience}."
            )
        self._range((1, 1))  # refused before any work, whether it is needed or not, as is the kernel
        if self.kernel != "auto":
            build.kernel(ModelConfig(kernel=self.kernel), 1)
        x_scaling = scalings.columns(X, names=self._names(), missing=self.missing)
        self.scaling_, self._event = Scaling(x_scaling, y_scaling), X.shape[1:]
        return self._inputs(X).float(), check_random_state(self.random_state)

    @property
    def _steps(self) -> int:
        """Meta-training steps of a network, at most."""
        return STEPS if self.n_steps is None else self.n_steps

    def _may_be_hierarchical(self, tasks: Any, likelihood: str) -> bool:
        """Whether a hierarchical prior can learn from these tasks, and no network was asked for."""
        fits = tasks is not None and self.likelihood == likelihood and len(self._event) == 1
        if self.backbone == "hierarchical" and not fits:
            raise ValueError(
                f"backbone='hierarchical' learns from rows (n, d) with task ids, under a {likelihood} likelihood; got "
                f"inputs of shape {self._event}, likelihood={self.likelihood!r} and "
                f"{'no task ids' if tasks is None else 'task ids'}."
            )
        return fits and isinstance(self.backbone, str) and self.backbone in ("auto", "hierarchical")

    def _check_inputs(self, rows: int) -> None:
        """Refuses so many rows without inputs where something else than how tasks differ is to be learned."""
        if self._event == (0,):
            raise ValueError(
                f"Found array with 0 feature(s) (shape=({rows}, 0)) while a minimum of 1 is required. How tasks differ "
                "is learned without inputs too: of rows with task ids, whose outputs are numbers or classes that tasks "
                "have in common, without a network (backbone='auto')."
            )

    def _check_without_network(self) -> None:
        """Refuses other devices than the CPU where no network is trained."""
        if self.device != "cpu":
            raise ValueError(
                f"without a network rows are learned from on the CPU, which takes seconds; got device={self.device!r}. "
                "Leave it out, or have a network trained there, backbone='mlp'."
            )

    def _check_pairs(self, ids: np.ndarray) -> None:
        """Refuses tasks of one row each: nothing says how rows of a task differ from those of another."""
        counts = np.bincount(ids)
        if not (counts >= 2).any():
            raise ValueError(f"no task has two rows, one to learn from and one to predict; got {len(counts)} tasks.")

    def _trainable(self, rows: Rows) -> Rows:
        """Tasks that a network can be trained on: those of one row have nothing to be predicted from it."""
        self._check_pairs(rows.ids)
        counts = np.bincount(rows.ids)
        left_out(int((counts == 1).sum()), len(counts), "they have a single row")
        return rows.select(counts[rows.ids] >= 2)

    def _model(self, x: Tensor, likelihood: Likelihood, seed: int) -> Model:
        event = tuple(x.shape[1:])
        options: dict[str, Any] = {"backbone": self.backbone, "hidden": tuple(self.hidden), "kernel": self.kernel}
        return build_model(event, likelihood, name=self.likelihood, seed=seed, **options)

    def _meta_train(self, model: Model, draw: Draw, validation: list[tuple[Model, Task]], seed: int) -> History:
        run_folder.check_device(self.device)
        schedule = Schedule(self._objective, self._steps, self.learning_rate, self.beta, self.patience)
        options: Any = {"seed": seed, "device": self.device, "show": bool(self.verbose)}
        history = meta_train(model, draw, validation, schedule, **options)
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
        tags.input_tags.allow_nan = self.missing != "refuse"
        tags.non_deterministic = False
        return tags


class Given(NamedTuple):
    """Checked rows: inputs, outputs, names of their tasks where they have some, and weights where they have some."""

    X: np.ndarray
    y: np.ndarray
    tasks: np.ndarray | None
    weight: Tensor | None


def check_shots(shots: int) -> None:
    """Refuses to adapt to fewer rows than none."""
    if shots < 0:
        raise ValueError(f"shots must be 0 or above; got {shots}.")


def left_out(count: int, total: int, why: str) -> None:
    """Warns of tasks that cannot be trained on."""
    if count:
        warnings.warn(f"{count} of {total} tasks are left out of meta-training: {why}.", UserWarning, stacklevel=4)


def is_frame(X: Any) -> bool:
    """Whether rows come as a data frame (pandas, polars, Arrow), whose columns have names."""
    return by_name(X) is not None and (hasattr(X, "columns") or hasattr(X, "column_names"))


def without_index(X: Any) -> Any:
    """A data frame without a column that only counts its rows, as pandas writes one into files."""
    names = list(X.column_names if hasattr(X, "column_names") else X.columns)
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the data frame has two columns named {repeated!r}; rename one of them.")
    kept = [name for name in names if name not in INDEX]
    if len(kept) == len(names):
        return X
    return X.select(kept) if hasattr(X, "column_names") else X[kept]


def task_names(tasks: Any, rows: int) -> np.ndarray:
    """The task of each row as a text; of several columns, one text for each combination."""
    if isinstance(tasks, str):
        raise ValueError(f"tasks must be one id a row, ({rows},): pass the column itself, as frame[{tasks!r}].")
    if is_frame(tasks):
        columns = dict(in_memory(tasks).columns)
    else:
        ids = np.asarray(tasks)
        ids = ids[:, None] if ids.ndim == 1 else ids
        if ids.ndim != 2:
            raise ValueError(
                f"tasks must be one id a row, ({rows},), or columns that say it together; got {ids.shape}."
            )
        columns = {str(i): cells_of(column, "tasks") for i, column in enumerate(ids.T)}
    table = Table(columns)
    if len(table) != rows:
        raise ValueError(f"tasks must be one id a row, ({rows},); got {len(table)} of them.")
    gaps = [i for cells in columns.values() for i, cell in enumerate(cells.tolist()) if is_missing(cell)]
    if gaps:
        raise ValueError(
            f"tasks must name the task of every row; that of row {min(gaps) + 1} is missing (NaN or None)."
        )
    found = table.ids(",".join(columns)) if len(columns) > 1 else table.texts(*columns)
    return np.array(found, dtype=str)


def adapt(pipeline: Pipeline, X: Any, y: Any, **options: Any) -> Pipeline:
    """A pipeline whose last step is adapted to the task of some rows; the one given stays as it is.

    Args:
        pipeline: fitted, with a few-shot estimator as its last step.
        X: rows, as the pipeline takes them, or none at all.
        y: their outputs.
        options: others of that estimator's `adapt`: tasks, classes, sample_weight.

    Example:
        >>> import numpy as np
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from metavib.estimators import FewShotRegressor, adapt
        >>> shop, day = np.repeat(np.arange(20), 8), np.tile(np.arange(8.0), 20)
        >>> sold = 30 * np.random.default_rng(0).normal(size=20)[shop] + 5 * day
        >>> shops = make_pipeline(StandardScaler(), FewShotRegressor(random_state=0))
        >>> _ = shops.fit(day[:, None], sold, fewshotregressor__tasks=shop)
        >>> adapt(shops, [[0.0]], [100.0]).predict([[7.0]]).round()
        array([135.])
    """
    *steps, (name, last) = pipeline.steps
    if not hasattr(last, "adapt"):
        raise TypeError(f"the last step of a pipeline that adapts is a few-shot estimator; got {type(last).__name__}.")
    if steps:
        X = pipeline[:-1].transform(X) if _num_samples(X) else []  # most steps refuse to transform no rows
    return Pipeline([*steps, (name, last.adapt(X, y, **options))])


def column_of(y: Any, rows: int) -> np.ndarray:
    """Labels as an array `(n,)`, one for each of so many pictures."""
    labels = column_or_1d(y)
    if len(labels) != rows:
        raise ValueError(f"y must have a label for each picture; got {len(labels)} of {rows}.")
    return labels


def _check_outputs(y: Any) -> None:
    """Refuses missing outputs by their rows, and several columns; what y is otherwise is scikit-learn's to check."""
    cells = np.asarray(y)
    if cells.ndim == 2 and cells.shape[1] > 1:
        raise ValueError(
            f"y should be a 1d array, got an array of shape {cells.shape} instead: this estimator is of one output. "
            "FewShotRegressor can be fitted to several columns of numbers."
        )
    if cells.dtype.kind in "mM":
        raise ValueError(
            "y must be numbers or labels; got dates or durations. Days since the first date are numbers, and so are "
            "the seconds of a duration."
        )
    if cells.ndim == 1 and cells.dtype.kind in "fO":
        gaps = [i for i, cell in enumerate(cells.tolist()) if is_missing(cell)]
        if gaps:
            raise ValueError(
                f"y is missing (NaN or None) in {len(gaps)} of {len(cells)} rows, the first of them row {gaps[0] + 1}: "
                "Input y contains NaN. Leave these rows out."
            )
    if cells.ndim == 1 and cells.dtype.kind == "f" and np.isinf(cells).any():
        raise ValueError(
            f"y is infinite in {np.isinf(cells).sum()} of {len(cells)} rows, the first of them row "
            f"{np.isinf(cells).argmax() + 1}: Input y contains infinity or a value too large for {cells.dtype!r}. "
            "Correct these rows, or leave them out."
        )


def _check_form(X: Any) -> None:
    """Refuses rows that are neither an array nor a data frame, with what to do."""
    first = X[0] if isinstance(X, list | tuple) and len(X) else X
    if isinstance(first, Mapping) and not hasattr(first, "toarray"):  # which a sparse matrix has, that may be one
        raise TypeError(
            "X must be a data frame or an array of rows; got dictionaries: make a data frame of them, as "
            "pandas.DataFrame(rows)."
        )
    if hasattr(X, "iloc") and getattr(X, "ndim", 2) == 1 and X.dtype == object:
        raise ValueError(
            "X must be a data frame or an array of rows; got one row: pass a frame of it, frame.iloc[[0]]."
        )


@contextmanager
def _explaining() -> Iterator[None]:
    """Says what to do about texts in an array."""
    try:
        yield
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        raise ValueError(
            f"{error}: an array of inputs holds numbers. Pass a data frame (pandas, polars or Arrow), whose columns "
            "may hold texts, dates and truth values as well."
        ) from error
