r"""Classes that are new in every task, told apart by the columns of a table: what is chosen, and by what.

Of other classes little can be learned that holds for new ones: in which directions rows of one class differ
(`metavib.networks.whitened`), how alike rows must be to be of one class, and how sure one may be after a few of them.
These are five numbers of GP-VIB, for each of a few kernels. All are chosen by the log predictive probability of tasks
whose classes were held out: classes are divided into folds, and tasks of a fold see columns that were whitened by the
classes of the *other* folds, as the columns of new classes will be. So few numbers are at their best after a few dozen
steps of L-BFGS, and take seconds. How sure to be is said, beside them, by the rows of a task itself
(`metavib.encoders.own`): a few classes to learn from say little of it.

With ten classes or more to learn from, hidden units of a network that tells them apart are tried beside the columns
(`metavib.networks.whitened.WithUnits`), in the same way: those that tasks of a fold see were trained on the others.

Rows that are features of a network (`embeddings`) are also tried as they are, on the unit sphere
(`metavib.networks.embedded`): their numbers have a common scale, which standardising each would take away. There
classes are taken to be Gaussian, too (`metavib.encoders.classes`), in the place of a kernel. One set of numbers is not
right for one row of a class and for ten of features that are compared as they are, so that for them temperatures are
learned along with the numbers, one for each number of rows of a class.
"""

import warnings
from collections.abc import Mapping, Sequence
from math import inf, log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.encoders import GPEncoder, OwnSites, SimplifiedSites
from metavib.estimators.tasks import WHOLE_TASKS, ClassTasks, Rows, Shots
from metavib.kernels import RBF, Cosine, Kernel, Linear, Matern32, Matern52
from metavib.likelihoods import Softmax
from metavib.methods import gaussian_classes, gp_vib
from metavib.model import Model
from metavib.networks.embedded import Embedded
from metavib.networks.whitened import Whitened, WithUnits, rank_for
from metavib.random import seeded
from metavib.tasks.task import Task, stack
from metavib.training.metrics import nll
from metavib.training.temperature import PLAIN, Temperature, fit_temperature, tempered

CLASSES = "classes"  # in the place of a kernel: Gaussian classes on the unit sphere
KERNELS = (("linear", "rbf"), ("cosine", "linear", "rbf", CLASSES))  # that are tried, on columns and on embeddings
REACHES = (inf, 3.0)  # of standardised columns
SPHERE = 0.0  # in the place of a reach: rows as they are, brought to length one
WIDEST = 2048  # columns on the sphere, whose directions are those of a whole covariance: more than networks have
KNOWN = (1, 3, 10)  # support points of a class in the tasks of a fold, as far as classes have them
FOLDS, EACH = 3, 10  # folds of classes (two, twice, of few), and tasks drawn of each fold at each of these sizes
QUERIES = 8  # query points of a class
MANY = (
    10  # classes that say enough of how sure to be, for embeddings, and of what units of a network are worth, for rows
)
MOST = 300  # classes that a network tells apart
UNITS, EPOCHS, SEEN = 64, 300, 5000  # of this network, and passes over how many rows it is trained for, at most
STEPS = 15  # of L-BFGS
SAMPLES = 50  # of the softmax likelihood
DOUBT = 1e-3  # weight of the squared distance of the numbers from where they start: perfect classes want no bounds
LITTLE = 1e-4  # the same for embeddings, whose numbers have farther to go where nothing is to be whitened
UNTRIED = 1e-2  # the same where no class can be held out: what is best for two classes by themselves is not for others

Body = Whitened | WithUnits | Embedded


class Candidate(NamedTuple):
    """Columns within a `reach` under a `kernel`: `log_loss` is that of tasks whose classes were held out.

    A reach of 0 stands for rows as they are, brought to length one; there may be `units` of a network beside columns.
    """

    kernel: str
    reach: float
    log_loss: float
    units: int = 0


class Columns(NamedTuple):
    """The model of tasks with new classes, what was tried for it, the best first, and its temperature."""

    model: Model
    candidates: list[Candidate]
    temperature: Temperature


class Fold(NamedTuple):
    """Tasks of classes held out, with N of them each; and `others`, the rows that say how columns are whitened.

    Of each of `sizes`, support points of a class, there are equally many tasks: `tasks` have them in a dimension first.
    """

    tasks: Task
    sizes: list[int]
    ways: int
    others: Rows


class Tried(NamedTuple):
    """A candidate, by how much its numbers moved from their start, and the models and folds that they are best on."""

    candidate: Candidate
    moved: Tensor
    models: list[Model]
    folds: list[Fold]


def learn_columns(
    rows: Rows,
    *,
    ways: int,
    shots: tuple[int, int],
    kernels: Sequence[str],
    seed: int,
    embeddings: bool = False,
) -> Columns:
    """Chooses a kernel on the columns, and its numbers.

    Args:
        rows: inputs `(n, d)` in float64, standardised or (of embeddings) as they are, numbers of the classes within
            each task, and tasks.
        ways: the most classes of a task.
        shots: the fewest and the most support points of a class.
        kernels: that are tried, of linear, cosine, rbf, matern32 and matern52; on embeddings also classes.
        seed: of the tasks drawn.
        embeddings: whether rows are features of a network, which are also tried on the unit sphere, up to `WIDEST`.

    Example:
        Classes that differ in one of four columns, of which the others vary more.

        >>> random = np.random.default_rng(0)
        >>> labels = np.repeat(np.arange(12), 8)
        >>> x = random.normal(size=(96, 4)) * [0.1, 3, 3, 3] + random.normal(size=(12, 4))[labels] * [1, 0, 0, 0]
        >>> rows = Rows(torch.tensor(x / x.std(0)), torch.tensor(labels), np.zeros(96, dtype=int))
        >>> found = learn_columns(rows, ways=5, shots=(1, 4), kernels=("linear", "rbf"), seed=0)
        >>> found.candidates[0].log_loss < 0.7  # where guessing has log 4
        True
    """
    folds = _folds(rows, ways, shots, np.random.default_rng(seed))
    doubt = UNTRIED if len(folds) == 1 else LITTLE if embeddings else DOUBT
    tried: list[Tried] = []

    def attempt(kernel: str, reach: float, units: int = 0) -> None:
        pairs = [_among(_whitened(rows, fold.others, reach, units), rows, fold, kernel) for fold in folds]
        models, theirs = [model for model, _ in pairs], [fold for _, fold in pairs]
        loss, moved = _fit(models, theirs, doubt, tempering=embeddings)
        tried.append(Tried(Candidate(kernel, reach, loss, units), moved, models, theirs))

    for reach in REACHES:
        attempt(kernels[0], reach)
    best = min(tried, key=lambda t: t.candidate.log_loss).candidate
    of_functions = [kernel for kernel in kernels if kernel != CLASSES]
    for kernel in of_functions[1:]:
        attempt(kernel, best.reach)
    classes = len(np.unique(np.stack([rows.ids, rows.y.numpy()]), axis=1).T)
    if embeddings and rows.x.shape[1] <= WIDEST:
        for kernel in (*of_functions[:2], *kernels[len(of_functions) :]):
            attempt(kernel, SPHERE)
    elif MANY <= classes <= MOST and not embeddings and len(np.unique(rows.ids)) == 1:
        for kernel in kernels:
            attempt(kernel, best.reach, UNITS)
    tried.sort(key=lambda t: t.candidate.log_loss)
    (kernel, reach, _, units), moved, models, theirs = tried[0]
    model = _on_columns(_whitened(rows, rows, reach, units), kernel)
    with torch.no_grad():
        for p, by in zip(_learned(model), moved, strict=True):
            p.add_(by)
    if (not embeddings or classes < MANY) and kernel != CLASSES:
        model = _by_its_own_rows(model, classes)
    temperature = _temperature(models, theirs) if embeddings else PLAIN
    return Columns(model, [each.candidate for each in tried], temperature)


def like_columns(state: Mapping[str, Tensor], kernel: str) -> Model:
    """A model of the shape that the tensors of a saved one have, before these are loaded into it.

    Args:
        state: the tensors by name, as `state_dict` gives them.
        kernel: its name, as in `Candidate`.
    """
    body: Body
    if "prior.network.body.W" in state:
        (columns, units), (_, rank) = (state[f"prior.network.body.{k}"].shape for k in ("W", "whitened.directions"))
        body = WithUnits(columns, units=units, rank=rank, reach=1.0)
    else:
        columns, rank = state["prior.network.body.directions"].shape
        embedded = "prior.network.body.share" in state
        body = Embedded(columns) if embedded else Whitened(columns, rank=rank, reach=1.0)
    model = _on_columns(body, kernel)
    return _by_its_own_rows(model, 1) if "encoder.sites.learned_from" in state else model


def _folds(rows: Rows, ways: int, shots: tuple[int, int], random: np.random.Generator) -> list[Fold]:
    """Folds of tasks, where there are many, or of classes; of none where there are too few of both."""
    labels = rows.y.numpy()
    _, pair = np.unique(np.stack([rows.ids, labels]), axis=1, return_inverse=True)
    unit = np.unique(rows.ids, return_inverse=True)[1] if len(np.unique(rows.ids)) >= WHOLE_TASKS else pair.reshape(-1)
    count = int(unit.max()) + 1
    number, turns = (FOLDS, 1) if count >= FOLDS * ways else (2, 2)
    sizes = sorted({min(max(k, shots[0]), shots[1]) for k in KNOWN})
    generator = seeded(int(random.integers(2**31)))

    def fold(mine: Rows, others: Rows) -> Fold:
        drawn = [ClassTasks(mine, ways=ways, shots=Shots(k, k, QUERIES)).sample(EACH, generator) for k in sizes]
        most = max(n for _, n in drawn)
        kept = {k: task for k, (task, n) in zip(sizes, drawn, strict=True) if n == most}
        return Fold(stack(list(kept.values())), list(kept), most, others)

    if count >= 4:
        divisions = [random.permutation(np.arange(count) % number)[unit] for _ in range(turns)]
        try:
            return [fold(rows.select(of == k), rows.select(of != k)) for of in divisions for k in range(number)]
        except ValueError:  # no task of a fold has two classes of two rows
            pass
    return [fold(rows, rows)]


def _whitened(rows: Rows, seen: Rows, reach: float, units: int = 0) -> Body:
    """Columns, and units of a network, that are whitened by the rows `seen`, and trained on them."""
    columns = rows.x.shape[1]
    rank = rank_for(len(rows.x), columns + units)
    pairs = np.unique(np.stack([seen.ids, seen.y.numpy()]), axis=1, return_inverse=True)[1].reshape(-1)
    order = np.random.default_rng(0).permutation(len(pairs))
    x, labels = seen.x[order], torch.as_tensor(pairs[order])
    body: Body = Embedded(columns)
    if units:
        body = WithUnits(columns, units=units, rank=rank, reach=reach)
        body.told(*_told_apart(x, labels, units))
    elif reach != SPHERE:
        body = Whitened(columns, rank=rank, reach=reach)
    body = body.double()
    body.look(x, labels)
    return body


def _told_apart(x: Tensor, labels: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """Weights and biases of the hidden units of a network that tells classes apart."""
    from sklearn.neural_network import MLPClassifier

    net = MLPClassifier((units,), max_iter=EPOCHS, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it could be trained for longer
        net.fit(x[:SEEN].numpy(), labels[:SEEN].numpy())
    return torch.tensor(net.coefs_[0]), torch.tensor(net.intercepts_[0])


def _among(whitened: Body, rows: Rows, fold: Fold, kernel: str) -> tuple[Model, Fold]:
    """GP-VIB on whitened columns, and a fold; in the coordinates of the rows, where these are fewer than columns."""
    if not isinstance(whitened, Whitened) or rows.x.shape[1] <= len(rows.x):
        return _on_columns(whitened, kernel), fold
    small, Q = whitened.within(rows.x)
    sides = (side._replace(x=whitened.squashed(side.x) @ Q) for side in fold.tasks)
    return _on_columns(small, kernel, columns=rows.x.shape[1]), fold._replace(tasks=Task(*sides))


def _on_columns(whitened: Body, kernel: str, columns: int | None = None) -> Model:
    """GP-VIB on whitened columns; `columns` of a table, where what is whitened are other coordinates of its rows.

    Or Gaussian classes, where these stand in the kernel's place.
    """
    if kernel == CLASSES:
        return gaussian_classes(whitened, Cosine(learn_scale=False), 2).double()
    k = _kernel(kernel, whitened.features, columns or whitened.features)
    return gp_vib(whitened, k, SimplifiedSites(m=4.0, s=0.3), Softmax(2)).double()


def _by_its_own_rows(model: Model, classes: int) -> Model:
    """The model of tasks whose own rows say how sure to be, beside the classes that it was learned from."""
    assert isinstance(model.encoder, GPEncoder)
    return Model(model.prior, GPEncoder(OwnSites(model.encoder.sites, classes)), model.likelihood).double()


def _kernel(name: str, features: int, columns: int) -> Kernel:
    """A kernel on so many features, whose scale is that of a table's columns."""
    if name == "linear":
        return Linear(bias=True, scale=4.0 * (features + 1) / (columns + 1))  # which it divides by features + 1
    if name == "cosine":
        return Cosine(bias=True, scale=4.0)
    # Rows are sqrt(2 M) apart; the gain of the features stands in for a length scale that is learned.
    kind = RBF if name == "rbf" else Matern32 if name == "matern32" else Matern52
    kernel = kind(columns**0.5, scale=4.0)
    kernel.lengthscale.requires_grad_(False)
    return kernel


def _sized(model: Model, fold: Fold) -> Model:
    """The model of tasks with as many classes as a fold has."""
    return Model(model.prior, model.encoder, Softmax(fold.ways, samples=SAMPLES))


@torch.no_grad()
def _temperature(models: Sequence[Model], folds: Sequence[Fold]) -> Temperature:
    """The best temperature for each number of support points of a class, on tasks of the folds with most classes."""
    most, found = max(fold.ways for fold in folds), dict[int, list[tuple[Tensor, Tensor, Tensor]]]()
    for model, fold in zip(models, folds, strict=True):
        if fold.ways == most:
            sized, noise = _sized(model, fold), seeded(0)
            p = sized.likelihood.predict(sized(fold.tasks, noise), noise)  # type: ignore[operator]
            for shots, *part in zip(fold.sizes, p, fold.tasks.query.y, fold.tasks.query.mask, strict=True):
                found.setdefault(shots, []).append((part[0].flatten(0, 1), part[1].flatten(), part[2].flatten()))
    pooled = {shots: [torch.cat(each) for each in zip(*parts, strict=True)] for shots, parts in found.items()}
    values = tuple(fit_temperature(p, y, mask, cautious=True) for p, y, mask in pooled.values())
    return Temperature(tuple(pooled), values)


def _learned(model: Model) -> list[Tensor]:
    """The numbers that are chosen."""
    return [p for p in model.parameters() if p.requires_grad]


def _fit(models: Sequence[Model], folds: Sequence[Fold], doubt: float, *, tempering: bool) -> tuple[float, Tensor]:
    """The lowest log loss, and by how much the numbers that all models have in common move to get there.

    Args:
        models: one for each fold.
        folds: tasks of classes held out.
        doubt: weight of the squared distance of the numbers from where they start.
        tempering: whether the loss is that under the best temperatures, which are searched along with the numbers.
    """
    from scipy.optimize import minimize

    sizes = sorted({shots for fold in folds for shots in fold.sizes}) if tempering else []
    log_t = {shots: torch.zeros((), dtype=torch.float64, requires_grad=True) for shots in sizes}
    searched = [[*_learned(model), *log_t.values()] for model in models]
    start = torch.stack([p.detach() for p in searched[0]])

    def whole(values: np.ndarray) -> tuple[float, np.ndarray]:
        moved = torch.as_tensor(values) - start
        slope, total = 2 * doubt * moved, float(doubt * moved.square().sum())
        for model, fold, parameters in zip(models, folds, searched, strict=True):
            with torch.no_grad():
                for p, value in zip(parameters, values.tolist(), strict=True):
                    p.fill_(value)
            value = _log_loss(model, fold, log_t) / len(folds)
            slope = slope + torch.stack(torch.autograd.grad(value, parameters, materialize_grads=True))
            total += float(value.detach())
        return total, slope.numpy()

    bounds = [(float(v) - log(1e4), float(v) + log(1e4)) for v in start]
    best = minimize(
        whole, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS, "ftol": 1e-4}
    )
    value = whole(best.x)[0]
    moved = torch.as_tensor(best.x) - start
    return value - doubt * float(moved.square().sum()), moved[: len(moved) - len(log_t)]


def _log_loss(model: Model, fold: Fold, log_t: Mapping[int, Tensor]) -> Tensor:
    """Of the tasks of a fold, under the temperature of each number of support points, where there are any."""
    sized, noise = _sized(model, fold), seeded(0)  # the same draws every time
    _, y, mask = fold.tasks.query
    q = sized(fold.tasks, noise)
    if log_t:
        T = torch.stack([log_t[shots] for shots in fold.sizes]).exp().reshape(-1, 1, 1, 1)
        return nll(tempered(sized.likelihood.predict(q, noise), T), y, mask).mean()  # type: ignore[operator]
    return -torch.where(mask, sized.likelihood.log_predictive(q, y, noise), 0.0).sum() / mask.sum()
