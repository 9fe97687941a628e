"""Few-shot classification with scikit-learn's conventions."""

import warnings
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from metavib.adapt.learner import Learner, Predictor, Predictors
from metavib.adapt.preparation import ModelSpace
from metavib.estimators.base import SEEDS, FewShotEstimator, check_shots, column_of
from metavib.estimators.columns import KERNELS, Candidate, learn_columns
from metavib.estimators.models import WIDE
from metavib.estimators.pictures import NETWORKS, Evaluation, are_pictures, one_by_one, said_fields, train
from metavib.estimators.tasks import WHOLE_TASKS, ClassTasks, Rows, Shots, hold_out, row_tasks
from metavib.groups import ClassReport, learn_shares
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import Bernoulli, Likelihood, Softmax
from metavib.likelihoods.prediction import ClassPrediction, Prediction
from metavib.model import Model
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks import scaling as scalings
from metavib.tasks.task import Task
from metavib.training import run_folder

LIKELIHOODS = ("softmax", "bernoulli")
SAMPLES = 100  # of the softmax likelihood, in training
QUERIES = 10  # query points of a class in a training task, at most
COMMON, OFTEN = 100, 0.3  # at most so many classes, a row's in so large a share of the tasks, are common to all tasks
COMPARED = 2000  # rows that a kernel without explicit features compares with each other, at most
VALIDATION = 4  # batches of four validation tasks: each is a pass of the network over hundreds of points


class FewShotClassifier(ClassifierMixin, FewShotEstimator):
    """Classification on many small related tasks, or of many classes with few examples each, with uncertainty.

    What a task is:

    * `fit(X, y, tasks=ids)`: the rows with one id; classes need not be the same in two tasks. Where tasks have them in
      common (yes and no, say), a hierarchical prior learns how probable each is, from all tasks and a few rows of a new
      one (`metavib.groups.shares`): nothing is certain after rows of one class.
    * `fit(X, y)`: all rows. Each step draws `ways` of the classes (all of them, where there are no more), so that with
      many classes the model learns to tell apart classes it has never seen. Fit then adapts to all rows, and predicts
      like any classifier; `adapt(X, y)` to new classes.

    By default new classes are told apart by the columns themselves: a kernel on them, how they are whitened and how
    sure predictions are is chosen by tasks of classes held out, in seconds (`metavib.estimators.columns`). With ten
    classes or more, units of a small network that tells these apart are tried beside the columns, and taken where that
    helps on classes held out. `candidates_` has what was tried. How sure to be is also asked of a task's own rows,
    where it has two of a class; they are kept for it (`metavib.encoders.OwnSites`). Rows of a hundred numbers or more
    count as features of a network: these are tried as they are too, and have a temperature for each number of rows of a
    class.

    **Pictures** are learned from as `metavib train images` does it, by the same code: `fit(X, y)` with an array
    `(n, H, W)`, `(n, H, W, C)` or `(n, C, H, W)` of uint8 or of floats from 0 to 1, or with a list of paths, Pillow
    images or arrays of any sizes. Six classes are the least, thirty or more are better; a fifth of them is for
    choosing weights and temperature, and a fifth for the test, which `report_` has. Options from `kernel` to `minutes`
    that differ from their defaults replace what the recipe has; all else is decided by the pictures
    (`metavib.estimators.pictures`).

    Rows may have weights (`sample_weight`), relative to their mean in `fit` (which is 1 where it had none). In `adapt`
    a row of three times that weight is what the row three times would be, exactly. In `fit` a row of
    common classes says as much as so many rows; where new classes are learned from, by the columns or by a network, one
    is drawn into training tasks in proportion to it. Rows of weight 0 are left out. (A table of counts is learned from
    by repeating its rows.)

    Other networks are trained where `backbone` names one, and under a bernoulli likelihood, by the paper's bound
    (`metavib.objective.vib`); options from `n_steps` to `patience`, and `hidden`, are theirs. Early stopping
    looks at tasks held out (at least five ids), else at classes held out (at least three times `ways` of them), else at
    rows held out.

    Args:
        likelihood: softmax; bernoulli for two classes with one latent function.
        backbone: auto (for rows a hierarchical prior where tasks have their classes in common, else the columns
            themselves; the program's network for pictures), hierarchical, mlp, identity (no network), conv4, on
            arrays `(n, C, H, W)`, or a `metavib.networks.Backbone`; for photographs also photographs, the network of
            the model of that name, which stays as it is (`metavib train images --backbone photographs --frozen`).
        hidden: hidden units of the MLP.
        kernel: linear, cosine, rbf, matern32 or matern52 on the features. Only the first two update in constant memory.
            auto: the best for classes held out, of linear, rbf and, on embeddings, which are rows of a hundred numbers
            or more, cosine and Gaussian classes (`metavib.methods.gaussian_classes`); under a network, linear.
        ways: N, the most classes of a training task.
        shots: support points of a class in a training task, a number or a range; None: from 1 to half of the rows of
            the median class, 10 at most.
        n_steps: meta-training steps, at most; None: 1,000, and for pictures as many as its minutes allow, 15,000 at
            most.
        tasks_per_step: tasks a step.
        learning_rate: Adam's, at the start of its cosine schedule.
        beta: weight of the KL.
        validation_fraction: share of the tasks (or classes, or rows) held out; 0: none.
        patience: validations, of 40, without a better score before training stops.
        minutes: the time of a training on pictures, at most; None: ten. The test after it takes another one or two.
        device: where a network is trained, cpu or cuda, and one of pictures used as well; all else is on the CPU, where
            rows are learned from without a network, and where an estimator that is read from a file is used.
        missing: mean: NaN becomes the training mean, and an indicator column is added; auto: so, with a warning; or
            refuse.
        random_state: seed or RandomState; decides everything.
        verbose: draw a progress bar while a network trains; print `report_` where tasks have their classes in common.

    Attributes:
        classes_: labels of the columns of `predict_proba`, sorted; those of its task, in an adapted estimator.
        report_: where tasks have their classes in common, log losses on tasks held out at each number of known rows,
            beside those of the shares of classes among all tasks and among the known rows of each; after a training on
            pictures, its test on classes that were not learned from. `print` shows a table.
        candidates_: where classes are told apart by the columns, the kernels that were tried and the log loss of each
            on tasks of classes held out, the best first.

    Example:
        >>> import numpy as np
        >>> from metavib import FewShotClassifier
        >>> rng = np.random.default_rng(0)
        >>> centres = rng.normal(size=(40, 6))  # forty classes of twelve rows
        >>> y = np.repeat(np.arange(40), 12)
        >>> X = centres[y] + 0.3 * rng.normal(size=(480, 6))
        >>> known = y < 35
        >>> model = FewShotClassifier(random_state=0).fit(X[known], y[known])
        >>> few = np.flatnonzero(~known)[::6]  # two rows of each of five new classes
        >>> new = model.adapt(X[few], y[few])
        >>> rest = np.setdiff1d(np.flatnonzero(~known), few)
        >>> bool(np.mean(new.predict(X[rest]) == y[rest]) > 0.9), new.predict_proba(X[rest]).shape
        (True, (50, 5))
    """

    candidates_: list[Candidate]
    report_: ClassReport | Evaluation
    _objective = staticmethod(vib)

    def __init__(
        self,
        *,
        likelihood: str = "softmax",
        backbone: Any = "auto",
        hidden: tuple[int, ...] = (64, 64),
        kernel: str = "auto",
        ways: int = 5,
        shots: int | tuple[int, int] | None = None,
        n_steps: int | None = None,
        tasks_per_step: int = 8,
        learning_rate: float = 2e-3,
        beta: float = 1e-3,
        validation_fraction: float = 0.15,
        patience: int = 10,
        minutes: float | None = None,
        device: str = "cpu",
        missing: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.likelihood = likelihood
        self.backbone = backbone
        self.hidden = hidden
        self.kernel = kernel
        self.ways = ways
        self.shots = shots
        self.n_steps = n_steps
        self.tasks_per_step = tasks_per_step
        self.learning_rate = learning_rate
        self.beta = beta
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.minutes = minutes
        self.device = device
        self.missing = missing
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, tasks: Any = None, sample_weight: Any = None) -> Self:
        """Meta-trains; without task ids also adapts to all rows.

        Args:
            X: rows `(n, d)`, or pictures.
            y: class labels `(n,)`.
            tasks: the task of each row, any ids.
            sample_weight: how much each row says, relative to others; one where None.
        """
        for of_an_earlier_fit in ("predictors_", "report_"):
            self.__dict__.pop(of_an_earlier_fit, None)
        self.run_ = None
        if are_pictures(X) and isinstance(self.backbone, str) and self.backbone in ("auto", *NETWORKS):
            return self._fit_pictures(X, y, tasks, sample_weight)
        X, y, tasks, weight = self._checked(X, y, tasks, sample_weight, reset=True)
        ids = self._task_ids(tasks, len(y))
        self.classes_ = np.unique(y)
        self._check_options()
        x, random = self._start(X, scalings.as_they_are())
        seed = random.randint(SEEDS)
        if self._common(tasks, y, ids):
            labels = torch.tensor(np.searchsorted(self.classes_, y))
            return self._learn(Rows(self._inputs(X), labels, ids, weight), seed)
        self._check_inputs(len(y))
        rows = Rows(x, torch.as_tensor(_within(y, ids)), ids, weight)
        if self._by_columns():
            gaps = self.missing == "mean" or len(self.scaling_.x.flags) > 0
            if self._wide and not gaps:  # embeddings, whose numbers have a common scale
                self.scaling_ = self.scaling_._replace(x=scalings.unscaled(X.shape[1]))
            self._choose(rows._replace(x=self._inputs(X)), seed)
            return self._settle(X, y, tasks, weight)
        model = self._model(x, self._new_likelihood(), seed)
        source, validation = self._sources(rows, random)

        def sized(task: Task, ways: int) -> tuple[Model, Task]:
            # The weights know nothing of the number of classes: only the likelihood does, and it has none.
            return Model(model.prior, model.encoder, self._likelihood(ways)), task

        def draw(generator: Generator) -> tuple[Model, Task]:
            return sized(*source.sample(self.tasks_per_step, generator))

        self._meta_train(model, draw, [sized(*drawn) for drawn in validation], seed)
        return self._settle(X, y, tasks, weight)

    def _fit_pictures(self, X: Any, y: Any, tasks: Any, sample_weight: Any) -> Self:
        """Trains as `metavib train images` does, and adapts to all pictures."""
        if tasks is not None:
            raise ValueError(
                "pictures are learned from by their classes, and have no task ids: leave out tasks, and give classes "
                "of different tasks different labels."
            )
        if sample_weight is not None:
            raise ValueError("fit draws all pictures of a class alike: leave out sample_weight, which adapt takes.")
        run_folder.check_device(self.device)
        self.mean_weight_ = 1.0
        pictures = one_by_one(X)
        labels = self._labels(column_of(y, len(pictures)))
        self.classes_ = np.unique(labels)
        self._check_options()
        said = said_fields(self.get_params(deep=False), type(self)().get_params(deep=False))
        whole = isinstance(self.random_state, int | np.integer)
        seed = int(self.random_state) if whole else check_random_state(self.random_state).randint(SEEDS)
        found = train(pictures, labels, said, seed=seed, show=bool(self.verbose))
        self.schema_, self.run_, self.report_ = None, found.saved, found.evaluation
        self.history_, self.n_iter_ = found.history, found.history.steps
        self.learner_ = Learner.of(found.saved, device=self.device)
        self.model_ = self.learner_.trained.model
        return self._settle(pictures, labels, None, None)

    def _settle(self, X: np.ndarray, y: np.ndarray, tasks: Any, weight: Tensor | None) -> Self:
        """Adapts to all rows where they are one task."""
        if tasks is None:
            some = self._some(y)
            self._become(self._adapt(X[some], y[some], weight=None if weight is None else weight[some]))
        elif hasattr(self, "predictor_"):
            del self.predictor_  # of an earlier fit
        return self

    def _some(self, y: np.ndarray) -> np.ndarray:
        """The rows that predictions of the classes of fit rest on: all of them, or some of each class.

        A kernel without explicit features compares all rows with each other, which is too much where there are many.
        """
        if len(y) <= COMPARED or isinstance(self.model_.prior.kernel, ExplicitKernel):
            return np.arange(len(y))
        order = np.random.RandomState(0).permutation(len(y))
        _, label, counts = np.unique(y[order], return_inverse=True, return_counts=True)
        place = np.empty(len(y), dtype=np.int64)  # of each row among those of its class
        by_class = np.argsort(label, kind="stable")
        place[by_class] = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(order[np.argsort(place, kind="stable")[:COMPARED]])

    def _by_columns(self) -> bool:
        """Whether new classes are told apart by the columns themselves: rows, of which no network was asked for."""
        return (
            isinstance(self.backbone, str)
            and self.backbone == "auto"
            and len(self._event) == 1
            and (self.likelihood == "softmax")
        )

    @property
    def _wide(self) -> bool:
        """Whether rows are embeddings."""
        return self._event[0] >= WIDE

    def _choose(self, rows: Rows, seed: int) -> None:
        """Chooses a kernel on the columns, by classes held out."""
        self._check_without_network()
        sizes = self._shots(rows)
        kernels = KERNELS[self._wide] if self.kernel == "auto" else (self.kernel,)
        options: Any = {"ways": int(self.ways), "shots": (sizes.low, sizes.high), "embeddings": self._wide}
        model, self.candidates_, temperature = learn_columns(rows, kernels=kernels, seed=seed, **options)
        self.model_, self.history_, self.n_iter_ = model.requires_grad_(False).eval(), None, 1
        self.learner_ = Learner(self.model_, temperature=temperature)
        if self.verbose:
            print(*self.candidates_, sep="\n")

    def _common(self, tasks: Any, y: np.ndarray, ids: np.ndarray) -> bool:
        """Whether tasks have their classes in common: two of them, or some that many tasks show.

        Each row counts: beside classes that all tasks have there may be many that are rare.
        """
        if not self._may_be_hierarchical(tasks, "softmax"):
            return False
        label = np.searchsorted(self.classes_, y)
        shown = np.bincount(np.unique(np.stack([ids, label]), axis=1)[1], minlength=len(self.classes_))
        often = (shown / len(np.unique(ids)))[label].mean()  # the share of tasks that have the class of a row
        few = len(self.classes_) == 2 or (len(self.classes_) <= COMMON and often > OFTEN)
        return self.backbone == "hierarchical" or (few and not self._wide)

    def _learn(self, rows: Rows, seed: int) -> Self:
        """Learns how probable the common classes are, and starts at a task of which nothing is known."""
        self._check_without_network()
        self._check_pairs(rows.ids)
        x, y, ids, weight = rows
        options: Any = {"classes": len(self.classes_), "seed": seed, "weight": weight}
        self.model_, self.report_ = learn_shares(x, y, ids, **options)
        self.learner_ = Learner(self.model_, preparation=ModelSpace(self.classes_.tolist()))
        self.history_, self.n_iter_ = None, 1
        self._become(self._without_rows())
        if self.verbose:
            print(self.report_)
        return self

    def adapt(self, X: Any, y: Any, classes: Any = None, tasks: Any = None, sample_weight: Any = None) -> Self:
        """A new estimator for the task of some rows, whose classes need not be those of fit; this one stays.

        Args:
            X: rows, or none at all.
            y: their labels.
            classes: labels of all classes of the task, those without rows too, so that rows of one class do not mean
                certainty. None: those of fit, where tasks have them in common; else those that the rows show.
            tasks: the task of each row, where they are of many tasks; `predict` and `predict_proba` are then told the
                task of each row too. Columns are the classes of all tasks, and those that are not of a row's task
                have probability 0.
            sample_weight: how many rows each counts as; one where None.
        """
        check_is_fitted(self, "model_")
        X, y, tasks, weight = self._checked(X, y, tasks, sample_weight, reset=False)
        wanted = None if classes is None else np.unique(classes)
        if tasks is None:
            return self._adapted(self._adapt(X, y, wanted, weight))
        options: Any = {"classes": self._named(wanted), "weight": weight}
        return self._adapted(self.learner_.adapt_many(self._points(X, y), tasks, **options))

    def _adapted(self, known: Predictor | Predictors) -> Self:
        adapted = super()._adapted(known)
        adapted.classes_ = np.sort(np.array(known.classes))
        return adapted

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Adds rows to the task this estimator is adapted to; they may be of new classes.

        Memory is constant under explicit kernels; rows of classes that tasks have in common are kept, but for two
        classes that are about as frequent in every task (`metavib.groups.shares`).

        The first call of an estimator that is not fitted is `fit`; one that is only meta-trained adapts.

        Args:
            X: rows.
            y: their labels.
            classes: on the first call, all classes that may come later; they may also just come.
            sample_weight: how many rows each counts as; one where None.
        """
        first = not hasattr(self, "model_")
        if first:
            self.fit(X, y, sample_weight=sample_weight)
            if classes is None:
                return self
        self._check_one_task()
        X, y, _, weight = self._checked(X, y, None, sample_weight, reset=False)
        known = None if first else getattr(self, "predictor_", None)
        wanted = None if classes is None else np.unique(classes)
        points = self._inputs(X), y
        self._become(self._adapt(X, y, wanted, weight) if known is None else known.update(points, weight=weight))
        return self

    def predict(self, X: Any, tasks: Any = None) -> np.ndarray:
        """The most probable class of each row; `tasks` as in `predict_proba`."""
        p = self.predict_proba(X, tasks)
        return self.classes_[p.argmax(1)]

    def predict_proba(self, X: Any, tasks: Any = None) -> np.ndarray:
        """Predictive probabilities `(n, N)`, a column for each of `classes_`.

        Args:
            X: rows.
            tasks: the task of each row, after `adapt` to many tasks; one that is not known is predicted as a task
                without rows.
        """
        return _sorted(self._predicted(X, tasks))[1]

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None, shots: int = 5) -> float:
        """Accuracy; with task ids, of few-shot predictions on each of them, all rows pooled.

        Args:
            X: rows.
            y: labels.
            sample_weight: of the rows, those that are adapted to and those that are scored.
            tasks: where given, the estimator is adapted to `shots` random rows of each class of each task (half of
                them, where there are fewer than twice as many, but one) and predicts the others. This is what
                cross-validation over tasks calls for.
            shots: how many.
        """
        check_shots(shots)
        if tasks is None:
            return super().score(X, y, sample_weight)
        check_is_fitted(self, "model_")
        X, y, tasks, weight = self._checked(X, y, tasks, sample_weight, reset=False)
        ids, random = self._task_ids(tasks, len(y)), np.random.RandomState(0)
        truth, predicted, scored = [], [], []
        for task in np.unique(ids):
            support, query = [], []
            for label in np.unique(y[ids == task]):
                places = random.permutation(np.flatnonzero((ids == task) & (y == label)))
                cut = min(shots, max(1, len(places) // 2))
                support += places[:cut].tolist()
                query += places[cut:].tolist()
            if query:
                counted = None if weight is None else weight[support]
                known = self._adapt(X[support], y[support], weight=counted)
                classes, p = _sorted(known.predict(self._inputs(X[query])))
                predicted.append(classes[p.argmax(1)])
                truth.append(y[query])
                scored.append(np.ones(len(query)) if weight is None else weight[query].numpy())
        if not truth:
            raise ValueError("no task has a class of two rows, one to adapt to and one to predict.")
        found, counts = (np.concatenate(predicted), np.concatenate(scored))
        return float(accuracy_score(np.concatenate(truth), found, sample_weight=counts))

    def _check_options(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)}; got {self.likelihood!r}.")
        if self.ways < 2:
            raise ValueError(f"ways must be at least 2; got {self.ways}.")
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs two classes at least; got one class, {self.classes_.tolist()}.")
        if self.likelihood == "bernoulli" and len(self.classes_) != 2:
            raise ValueError(f"bernoulli tells two classes apart; got {len(self.classes_)}: take softmax.")

    def _check_both(self, X: Any, y: Any, tasks: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._check(X, y, tasks, reset=reset)
        return X, self._labels(y)

    def _labels(self, y: Any) -> np.ndarray:
        """Labels that are classes, and not measurements."""
        if len(y):
            with warnings.catch_warnings():  # many classes with a few rows each are what few-shot learning is for
                warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
                check_classification_targets(y)
        return np.asarray(y)

    def _without_rows(self) -> Predictor:
        """All classes of fit, as the prior has them."""
        x = self._inputs(np.zeros((0, *self._event)))
        return self.learner_.adapt((x, np.zeros(0)), classes=self.classes_.tolist())

    def _new_likelihood(self) -> Likelihood:
        return self._likelihood(2)

    def _likelihood(self, ways: int) -> Likelihood:
        return Bernoulli() if self.likelihood == "bernoulli" else Softmax(ways, samples=SAMPLES)

    def _adapt(self, X: np.ndarray, y: np.ndarray, classes: Any = None, weight: Tensor | None = None) -> Predictor:
        return self.learner_.adapt(self._points(X, y), classes=self._named(classes), weight=weight)

    def _named(self, classes: Any) -> list[Any] | None:
        """The classes of a task, where they are named, or where it may show one of two only."""
        if self.likelihood == "bernoulli" and classes is None:
            classes = self.classes_
        return None if classes is None else list(classes)

    def _points(self, X: np.ndarray, y: np.ndarray) -> tuple[Tensor, np.ndarray]:
        return self._inputs(X), y

    def _become(self, predictor: Predictor) -> None:
        self.predictor_ = predictor
        self.classes_ = np.sort(np.array(predictor.classes))

    def _shots(self, rows: Rows) -> Shots:
        """Sizes of training tasks."""
        counts = np.unique(np.stack([rows.ids, rows.y.numpy()]), axis=1, return_counts=True)[1]
        return Shots(*self._range((1, min(10, max(1, int(np.median(counts)) // 2)))), QUERIES)

    def _sources(self, rows: Rows, random: np.random.RandomState) -> tuple[ClassTasks, list[tuple[Task, int]]]:
        labels, ways, shots = rows.y.numpy(), int(self.ways), self._shots(rows)
        tasks, classes = len(np.unique(rows.ids)), len(np.unique(labels))
        many = tasks == 1 and classes >= 3 * ways
        if many:
            held = np.isin(labels, random.permutation(classes)[: max(ways, round(self.validation_fraction * classes))])
            held &= self.validation_fraction > 0
        else:
            held = hold_out(rows.ids, labels, self.validation_fraction, random)
        source = ClassTasks(rows.select(~held), ways=ways, shots=shots)
        if not held.any():
            return source, []
        if tasks < WHOLE_TASKS and not many:
            batches = row_tasks(rows, held, labels, shots, random)
            sized = [(batch, int(batch.support.y.max()) + 1) for batch in batches]
            return source, [(batch, n) for batch, n in sized if n >= 2]
        try:
            validation = ClassTasks(rows.select(held), ways=ways, shots=shots)
        except ValueError:  # tasks of one class, say
            return source, []
        generator = seeded(random.randint(SEEDS))
        return source, [validation.sample(4, generator) for _ in range(VALIDATION)]


def _within(y: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Labels as numbers 0, 1, ... within each task."""
    numbers = np.zeros(len(y), dtype=np.int64)
    for task in np.unique(ids):
        numbers[ids == task] = np.unique(y[ids == task], return_inverse=True)[1]
    return numbers


def _sorted(prediction: Prediction) -> tuple[np.ndarray, np.ndarray]:
    """Sorted labels, and probabilities in their order."""
    assert isinstance(prediction, ClassPrediction)
    labels = np.array(prediction.classes)
    order = np.argsort(labels)
    return labels[order], prediction.probabilities.numpy()[:, order]
