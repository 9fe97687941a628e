"""Few-shot regression with scikit-learn's conventions."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin, clone
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from metavib.adapt import believed
from metavib.adapt.learner import Learner, Predictor
from metavib.adapt.targets import warnings_of
from metavib.estimators.base import SEEDS, FewShotEstimator, check_shots
from metavib.estimators.outputs import Name, Reports, are_several, check_likelihood, check_values, columns_of, share_of
from metavib.estimators.tasks import WHOLE_TASKS, Rows, Shots, hold_out, row_tasks
from metavib.groups.outliers import learn_from_right_rows
from metavib.kernels import Kernel
from metavib.likelihoods import Gaussian, Likelihood, Poisson, StudentT
from metavib.likelihoods.prediction import Prediction, RealPrediction
from metavib.model import Model
from metavib.objective import predictive
from metavib.random import seeded
from metavib.tasks import scaling as scalings
from metavib.tasks.table import TableTasks
from metavib.tasks.task import Examples, Task, examples

LIKELIHOODS = {"gaussian": lambda: Gaussian(0.3), "student-t": lambda: StudentT(0.3), "poisson": Poisson}
QUERIES = 50  # query points of a training task, at most
FAR = 10  # standard deviations of the training outputs from their mean


class FewShotRegressor(RegressorMixin, FewShotEstimator):
    """Regression on many small related tasks, with uncertainty.

    `fit(X, y, tasks=ids)` learns from all tasks; `adapt(X, y)` then returns an estimator for a new task from a few of
    its rows, at once, and `adapt(X, y, tasks=ids)` one for many new tasks. Without ids the data is one task, split at
    random into support and query at each step, and `fit` also adapts to all of it.

    By default rows with task ids are learned from without a network: every task is a function that all share plus one
    of its own, both of the columns themselves, and the marginal likelihood of the tasks says how smooth and how large
    these are (`metavib.groups`). It takes seconds, is at home with a dozen tasks and with a hundred thousand, predicts
    a task of which nothing is known yet (`predict` before any `adapt`), and leaves in `report_` how good predictions of
    tasks held out are. Outputs (positive ones, counts, skewed ones) enter by their logarithms or square roots, skewed
    columns by their logarithms, and shares (between 0 and 1) by their logits, where the marginal likelihood is for it.
    Predictions are in the units of y all the same, those of shares between 0 and 1, those by logarithms at the mean,
    the median or halfway between them, whichever has the smallest errors on tasks held out. Where all outputs are whole
    numbers and none is below zero, intervals end at whole numbers, and `predict_distribution` has the probability of
    each. Predictions have the
    tails of Student's t, and are as wide as the rows of their task show: tasks held out set both
    (`metavib.groups.tails`).
    Rows that cannot be right, eight standard deviations from what all others say, are left out with a warning, in `fit`
    and in `adapt`, unless they are most of what is known of a new task (`metavib.groups.outliers`). All options from
    `hidden` to `patience` are those of networks, which are trained instead where `backbone` names one, or where the
    likelihood is not gaussian.

    Rows may have weights (`sample_weight`): the noise variance of a row is divided by its weight, as in weighted least
    squares. Weights are relative to their mean in `fit` (1, where it had none): a row without a weight, and one that is
    predicted, is as noisy as a row of that weight. In `adapt` a row of three times that weight moves predictions as the
    row three times would, exactly; how noisy its task is, it says once. Rows of weight 0 are left out. Networks are
    shown a row in proportion to its weight.

    Outputs may have several columns, an array `(n, p)` or a data frame: each is learned by a regressor of its own
    (`estimators_`), and every method takes and returns them together. A row may lack some of its outputs (NaN or None),
    and serves the others: each output is learned from the rows that have it, as if there were no other rows.

    Networks are trained by the predictive form of the bound (`metavib.objective.predictive`; THEORY.md, section 2), log
    E[p(y | f)] in the place of E[log p(y | f)]: with few rows of a task the bound itself takes for noise what is not
    known yet. On functions of three noisy points it leaves 0.01 nats to the best possible log density, and the bound
    0.25 (RESULTS.md, "The two objectives").

    Args:
        likelihood: gaussian; student-t for heavy tails; poisson for counts.
        backbone: auto (hierarchical for rows with task ids and a gaussian likelihood, else an MLP for rows, Conv4 for
            images), hierarchical, mlp, identity (given embeddings, or a linear model), conv4, or a
            `metavib.networks.Backbone`.
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
        missing: mean: NaN becomes the training mean, and an indicator column is added; auto: so, with a warning; or
            refuse.
        device: where a network is trained, cpu or cuda; a hierarchical prior is learned on the CPU, and adapting and
            predicting are there in either case.
        random_state: seed or RandomState; decides everything.
        verbose: draw a progress bar while a network trains; print `report_` of a hierarchical prior.

    Attributes:
        report_: of a hierarchical prior, errors on tasks held out at each number of known rows, in the units of y,
            beside those of one function for all tasks and of a ridge regression of each task alone; of several outputs,
            a dictionary of such reports by the names of the outputs.
        estimators_: of several outputs, the fitted regressor of each, by its name: that of its column in a data frame,
            or the place of its column in an array. Of the attributes of one output such an estimator has none but
            `report_`, `n_features_in_` and `feature_names_in_`.

    Example:
        Shops whose sales rise alike, each from a level of its own.

        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> shop, day = np.repeat(np.arange(20), 8), np.tile(np.arange(8.0), 20)
        >>> sold = 30 * random.normal(size=20)[shop] + 5 * day + random.normal(size=160)
        >>> shops = FewShotRegressor(random_state=0).fit(day[:, None], sold, tasks=shop)
        >>> new = shops.adapt([[0.0]], [100.0])  # all that is known of a new shop
        >>> mean, sd = new.predict([[7.0]], return_std=True)
        >>> bool(abs(mean[0] - 135) < 3), bool(sd[0] < 4)
        (True, True)
        >>> print(shops.report_)  # doctest: +SKIP

        What is sold, and how many people come: two outputs.

        >>> both = FewShotRegressor(random_state=0).fit(day[:, None], np.stack([sold, 2 * sold + day], 1), tasks=shop)
        >>> both.adapt([[0.0]], [[100.0, 200.0]]).predict([[7.0]]).shape
        (1, 2)
    """

    report_: Any  # a Report; of several outputs a dictionary of them
    n_features_in_: int
    feature_names_in_: np.ndarray
    estimators_: dict[Name, "FewShotRegressor"]

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
        missing: str = "auto",
        device: str = "cpu",
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
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, tasks: Any = None, sample_weight: Any = None) -> Self:
        """Meta-trains; without task ids also adapts to all rows.

        Args:
            X: rows `(n, d)` or images `(n, C, H, W)`.
            y: outputs `(n,)`, or several columns of them `(n, p)`.
            tasks: the task of each row, any ids.
            sample_weight: how precise each row is, relative to others; one where None.
        """
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)}; got {self.likelihood!r}.")
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit
            del self.__dict__[name]
        if are_several(y):
            return self._fit_each(X, columns_of(y), tasks, sample_weight)
        X, y, tasks, weight = self._checked(X, y, tasks, sample_weight, reset=True)
        ids = self._task_ids(tasks, len(y))
        likelihood = self._new_likelihood()
        likelihood.check(torch.tensor(y))
        standard = scalings.outputs(y)._replace(**scalings.steps_of(y)._asdict())
        scaling = scalings.as_they_are() if self.likelihood == "poisson" else standard
        x, random = self._start(X, scaling)
        seed = random.randint(SEEDS)
        if self._hierarchical(tasks):
            return self._learn(Rows(self._inputs(X), self._outputs(y), ids, weight), seed)
        self._check_inputs(len(y))
        rows = self._trainable(Rows(x, self._outputs(y).float(), ids, weight))
        model = self._model(x, likelihood, seed)
        _start_scale(model, rows.y)
        source, validation = self._sources(rows, random)

        def draw(generator: Generator) -> tuple[Model, Task]:
            return model, source.sample((self.tasks_per_step,), generator)

        self._meta_train(model, draw, [(model, task) for task in validation], seed)
        if tasks is None:
            self.predictor_ = self.learner_.adapt(self._points(X, y), weight=weight)
        return self

    def _fit_each(self, X: Any, columns: dict[Name, np.ndarray], tasks: Any, sample_weight: Any) -> Self:
        """Fits a regressor for each of several outputs, once all of them are seen to be in order."""
        check_likelihood(columns, self._new_likelihood())
        check_values(columns)
        found = {}
        for name, column in columns.items():
            if self.verbose:
                print(f"output {name!r}:")
            share = share_of(column, X, tasks=tasks, sample_weight=sample_weight)
            with warnings_of(share.said_of(name)), share.naming(name):
                found[name] = clone(self).fit(share.X, share.y, **share.others)
        return self._of_each(found)

    def _of_each(self, estimators: dict[Name, "FewShotRegressor"]) -> Self:
        """This estimator, with fitted regressors of several outputs and what they have in common."""
        self.estimators_, one = estimators, next(iter(estimators.values()))
        self.n_features_in_ = one.n_features_in_
        if hasattr(one, "feature_names_in_"):
            self.feature_names_in_ = one.feature_names_in_
        if hasattr(one, "report_"):
            self.report_ = Reports({name: each.report_ for name, each in estimators.items()})
        return self

    @property
    def _several(self) -> bool:
        """Whether this estimator was fitted to several outputs."""
        return hasattr(self, "estimators_")

    def _each(self, method: Callable[..., Any], X: Any, y: Any, **of_rows: Any) -> dict[Name, Any]:
        """What a method makes of the regressor of each output, and the rows that have this output."""
        columns, found = columns_of(y, list(self.estimators_)), {}
        check_likelihood(columns, self._new_likelihood())
        for name, one in self.estimators_.items():
            share = share_of(columns[name], X, **of_rows)
            with warnings_of(share.said_of(name)), share.naming(name):
                found[name] = method(one, share.X, share.y, **share.others)
        return found

    def _hierarchical(self, tasks: Any) -> bool:
        """Whether the tasks are learned from by a hierarchical prior rather than a network."""
        return self._may_be_hierarchical(tasks, "gaussian")

    def _learn(self, rows: Rows, seed: int) -> Self:
        """Learns a hierarchical prior, and starts at a task of which nothing is known."""
        self._check_without_network()
        self._check_pairs(rows.ids)
        options: Any = {"seed": seed, "units": self.scaling_.y, "weight": rows.weight}
        (self.model_, self.report_), wrong = learn_from_right_rows(rows.x, rows.y, rows.ids, **options)
        self.learner_, self.history_, self.n_iter_ = Learner(self.model_), None, 1
        believed.tell(wrong, rows, self.learner_.preparation)
        self.predictor_ = self.learner_.adapt(examples(rows.x[:0], rows.y[:0]))
        if self.verbose:
            print(self.report_)
        return self

    def adapt(self, X: Any, y: Any, tasks: Any = None, sample_weight: Any = None) -> Self:
        """A new estimator for the task of some rows (one is enough); this one stays as it is.

        Args:
            X: rows.
            y: their outputs.
            tasks: the task of each row, where they are of many tasks; `predict` is then told the task of each row too.
            sample_weight: how many rows each counts as; one where None.
        """
        if self._several:
            return copy.copy(self)._of_each(
                self._each(type(self).adapt, X, y, tasks=tasks, sample_weight=sample_weight)
            )
        check_is_fitted(self, "model_")
        X, y, tasks, weight = self._checked(X, y, tasks, sample_weight, reset=False)
        self._warn_of_outliers(y)
        if tasks is None:
            return self._adapted(self.learner_.adapt(self._points(X, y), weight=weight))
        return self._adapted(self.learner_.adapt_many(self._points(X, y), tasks, weight=weight))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Adds rows to the task this estimator is adapted to, in constant memory.

        The first call of an estimator that is not fitted is `fit`; one that is only meta-trained adapts.

        Args:
            X: rows.
            y: their outputs.
            sample_weight: how many rows each counts as; one where None.
        """
        if self._several:
            return self._of_each(self._each(type(self).partial_fit, X, y, sample_weight=sample_weight))
        if not hasattr(self, "model_"):
            return self.fit(X, y, sample_weight=sample_weight)
        self._check_one_task()
        X, y, _, weight = self._checked(X, y, None, sample_weight, reset=False)
        self._warn_of_outliers(y)
        points, known = self._points(X, y), getattr(self, "predictor_", None)
        add = self.learner_.adapt if known is None else known.update
        self.predictor_ = add(points, weight=weight)
        return self

    def predict(self, X: Any, return_std: bool = False, tasks: Any = None) -> Any:
        """Predictive means `(n,)`, and standard deviations where asked for, of outputs (noise included).

        Of several outputs both are `(n, p)`.

        Args:
            X: rows.
            return_std: whether to return standard deviations too.
            tasks: the task of each row, after `adapt` to many tasks; one that is not known is predicted as a task
                without rows.
        """
        if self._several:
            each = [one.predict(X, True, tasks) for one in self.estimators_.values()]
            mean, sd = (np.stack(columns, 1) for columns in zip(*each, strict=True))
            return (mean, sd) if return_std else mean
        found = self.predict_distribution(X, tasks)
        return (found.mean.numpy(), found.variance.sqrt().numpy()) if return_std else found.mean.numpy()

    def predict_distribution(self, X: Any, tasks: Any = None) -> Any:
        """All that is known of the outputs of some rows, in the units of y: densities, quantiles, mean and variance.

        It is a `metavib.likelihoods.prediction.RealPrediction`; of several outputs, a dictionary of one for each, by
        its name.
        """
        if self._several:
            return {name: one.predict_distribution(X, tasks) for name, one in self.estimators_.items()}
        return _of_rows(self._predicted(X, tasks)).restored(self.scaling_.y)

    def predict_interval(self, X: Any, level: float = 0.9, tasks: Any = None) -> np.ndarray:
        """The central interval that holds an output with a given probability: `(n, 2)`, lower and upper ends.

        Of several outputs `(n, p, 2)`: each interval holds its own output with that probability.
        """
        if self._several:
            return np.stack([one.predict_interval(X, level, tasks) for one in self.estimators_.values()], 1)
        return torch.stack(self.predict_distribution(X, tasks).interval(level), -1).numpy()

    def _merge(self, other: Self) -> Self:
        if not self._several:
            return super()._merge(other)
        its = getattr(other, "estimators_", {})
        if list(its) != list(self.estimators_):
            raise ValueError(f"the two estimators are of the outputs {list(self.estimators_)} and {list(its)}.")
        return copy.copy(self)._of_each({name: one.merge(its[name]) for name, one in self.estimators_.items()})

    def _forget(self, X: Any, y: Any, tasks: Any, sample_weight: Any) -> Self:
        if not self._several:
            return super()._forget(X, y, tasks, sample_weight)
        return copy.copy(self)._of_each(self._each(type(self).forget, X, y, tasks=tasks, sample_weight=sample_weight))

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None, shots: int = 5) -> float:
        """R² of the predictions; with task ids, of few-shot predictions on each of them, all rows pooled.

        Of several outputs, the mean of the R² of each, on the rows that have it.

        Args:
            X: rows.
            y: outputs.
            sample_weight: of the rows, those that are adapted to and those that are scored.
            tasks: where given, the estimator is adapted to `shots` random rows of each task (half of them, in a
                task with fewer than twice as many) and predicts the others. This is what cross-validation over tasks
                calls for.
            shots: how many.
        """
        if self._several:
            check_values(columns_of(y, list(self.estimators_)))
            score = partial(type(self).score, shots=shots)
            each = self._each(score, X, y, sample_weight=sample_weight, tasks=tasks)
            return float(np.mean(list(each.values())))
        check_shots(shots)
        if tasks is None:
            return super().score(X, y, sample_weight)
        check_is_fitted(self, "model_")
        X, y, tasks, weight = self._checked(X, y, tasks, sample_weight, reset=False)
        ids, random = self._task_ids(tasks, len(y)), np.random.RandomState(0)
        order = random.permutation(len(ids))
        order = order[np.argsort(ids[order], kind="stable")]  # rows of a task one after another, in random order
        sizes = np.bincount(ids)
        place = np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        known = place < np.repeat(np.minimum(shots, sizes // 2), sizes)
        support, query = order[known], order[~known]
        counted = None if weight is None else weight[support]
        many = self.learner_.adapt_many(self._points(X[support], y[support]), ids[support], weight=counted)
        mean = self.scaling_.y.restore(_of_rows(many.predict(self._inputs(X[query]), ids[query])).mean)
        scored = None if weight is None else weight[query].numpy()
        return float(r2_score(y[query], mean.numpy(), sample_weight=scored))

    def _check_both(self, X: Any, y: Any, tasks: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._check(X, y, tasks, reset=reset)
        try:
            return X, np.asarray(y, dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"y must be numbers ({error}); FewShotClassifier learns labels.") from error

    def _warn_of_outliers(self, y: np.ndarray) -> None:
        """Says which outputs lie far from all that training has seen: one of them moves a prediction from few rows.

        A hierarchical prior looks closer, and leaves such rows out (`metavib.adapt.believed`).
        """
        if self.scaling_.y.trivial or believed.looks(self.learner_.trained):
            return
        far = np.abs(self._outputs(y).numpy())
        rows = np.flatnonzero(far > FAR)
        if len(rows):
            warnings.warn(
                f"y lies {far[rows[0]]:.0f} standard deviations of the training outputs from their mean in row "
                f"{rows[0] + 1} ({len(rows)} of {len(y)} rows are more than {FAR} away): is it right? It moves all "
                "predictions of its task.",
                UserWarning,
                stacklevel=3,
            )

    def _without_rows(self) -> Predictor:
        return self.learner_.adapt(self._points(np.zeros((0, *self._event)), np.zeros(0)))

    def _new_likelihood(self) -> Likelihood:
        return LIKELIHOODS[self.likelihood]()

    def _outputs(self, y: np.ndarray) -> Tensor:
        return self.scaling_.y.standardise(torch.tensor(y))

    def _points(self, X: np.ndarray, y: np.ndarray) -> Examples:
        self.model_.likelihood.check(torch.tensor(y))
        return examples(self._inputs(X), self._outputs(y))

    def _sources(self, rows: Rows, random: np.random.RandomState) -> tuple[TableTasks, list[Task]]:
        counts = np.bincount(rows.ids)
        counts = counts[counts > 0]
        n = int(np.median(counts))
        few, one = (1, min(50, max(1, n // 2))), (max(1, min(32, n // 4)), max(1, min(128, 3 * n // 4)))
        default = few if len(counts) > 1 else one
        shots = Shots(*self._range(default), QUERIES)
        same = np.zeros(len(rows.ids), dtype=np.int64)
        held = hold_out(rows.ids, same, self.validation_fraction, random)
        sizes: dict[str, Any] = {"shots": shots.high, "queries": shots.queries, "min_shots": shots.low}
        training = rows.select(~held)
        source = TableTasks(training.x, training.y, training.ids, weight=training.weight, **sizes)
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
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.likelihood == "poisson"
        return tags


def _of_rows(prediction: Prediction) -> RealPrediction:
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
