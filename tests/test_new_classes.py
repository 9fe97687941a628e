"""Classes that are new in every task, told apart by the columns of a table."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from metavib import FewShotClassifier
from metavib.adapt.learner import Learner
from metavib.encoders import OwnSites, SimplifiedSites, additive
from metavib.encoders.own import ranks
from metavib.estimators import columns
from metavib.estimators.columns import SPHERE, learn_columns
from metavib.estimators.tasks import Rows
from metavib.kernels import RBF
from metavib.likelihoods import Bernoulli, Gaussian, Softmax
from metavib.networks.whitened import Whitened, rank_for
from metavib.tasks.inputs import Inputs


def table(classes=24, each=14, seed=0):
    """Classes that differ in three of eight columns; rows of one class differ along a direction across all of them."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    mixing = rng.normal(size=(8, 8)) * np.linspace(3, 0.3, 8)
    x = rng.normal(size=(len(labels), 8)) @ mixing + 3 * (rng.normal(size=(classes, 8)) * (np.arange(8) < 3))[labels]
    return x, labels


def look(x, labels, **options):
    whitened = Whitened(x.shape[1], rank=rank_for(*x.shape), **options).double()
    whitened.look(torch.tensor(x), torch.tensor(labels))
    return whitened


def features(whitened, x):
    with torch.no_grad():
        return whitened(Inputs(torch.tensor(x), torch.ones(len(x), dtype=torch.bool), 0)).numpy()


@pytest.mark.parametrize("each", [14, 2])  # with two rows of each of three classes there are fewer rows than columns
@pytest.mark.parametrize("ridge", [1e-2, 3.0])
def test_whitening_is_the_inverse_root_of_the_covariance_within_classes(ridge, each):
    x, labels = table(24 if each == 14 else 3, each)
    whitened = look(x, labels, reach=float("inf"))
    whitened.log_ridge.data.fill_(np.log(ridge))
    u = (x - x.mean(0)) / x.std(0)
    own = u - np.stack([u[labels == c].mean(0) for c in np.unique(labels)])[labels]
    covariance = own.T @ own / np.square(own).sum() * u.shape[1]
    values, vectors = np.linalg.eigh((covariance + ridge * np.eye(8)) / (1 + ridge))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    np.testing.assert_allclose(features(whitened, x), u @ root, atol=1e-9)


def test_a_large_ridge_leaves_the_columns_as_they_are_and_a_reach_bounds_them():
    x, labels = table()
    plain, bounded = look(x, labels, reach=float("inf")), look(x, labels, reach=2.0)
    for whitened in (plain, bounded):
        whitened.log_ridge.data.fill_(25.0)
    far = x.mean(0) + 1e3 * x.std(0)
    np.testing.assert_allclose(features(plain, x), (x - x.mean(0)) / x.std(0), atol=1e-6)
    np.testing.assert_allclose(features(bounded, far[None]), 2.0, rtol=1e-4)


def test_numbers_are_chosen_by_classes_held_out_and_depend_on_the_seed_alone():
    x, labels = table(12, 6)
    rows = Rows(torch.tensor((x - x.mean(0)) / x.std(0)), torch.tensor(labels), np.zeros(len(labels), dtype=int))
    found = [learn_columns(rows, ways=3, shots=(1, 1), kernels=("linear",), seed=s) for s in (0, 0, 1)]
    losses = [[c.log_loss for c in f.candidates] for f in found]
    assert losses[0] == losses[1] != losses[2] and losses[0] == sorted(losses[0])
    assert len(losses[0]) == 3  # two reaches of the columns, and with hidden units beside them


@pytest.mark.parametrize("shots", [1, 5])
def test_new_classes_are_told_apart_better_than_by_logistic_regression_and_nearest_centroids(shots):
    x, labels = table(40)
    known = labels < 24
    learner = FewShotClassifier(random_state=0).fit(x[known], labels[known])
    assert learner.history_ is None and learner.candidates_[0].log_loss <= learner.candidates_[-1].log_loss
    rng, scale = np.random.default_rng(1), x[known].std(0)
    right, nll = np.zeros(3), np.zeros(2)
    for _ in range(15):
        classes = np.sort(rng.permutation(np.arange(24, 40))[:5])
        rows = np.stack([rng.permutation(np.flatnonzero(labels == c))[: shots + 8] for c in classes])
        few, others = rows[:, :shots].ravel(), rows[:, shots:].ravel()
        truth, z = np.searchsorted(classes, labels[others]), x / scale
        ours = learner.adapt(x[few], labels[few]).predict_proba(x[others])
        theirs = LogisticRegression(max_iter=1000).fit(z[few], labels[few]).predict_proba(z[others])
        means = np.stack([z[few][labels[few] == c].mean(0) for c in classes])
        for i, p in enumerate((ours, theirs, -np.square(z[others][:, None] - means).sum(-1))):
            right[i] += np.mean(p.argmax(1) == truth)
        nll += [-np.log(p[np.arange(len(truth)), truth]).mean() for p in (ours, theirs)]
    assert right[0] > right[1:].max() and nll[0] < nll[1]


def test_many_rows_of_the_classes_of_fit_are_predicted_from_some_of_each(monkeypatch):
    monkeypatch.setattr("metavib.estimators.classifier.COMPARED", 60)
    x, labels = table(6, 20)
    e = FewShotClassifier(kernel="rbf", random_state=0).fit(x, labels)
    assert e.predictor_.n == 60 and e.score(x, labels) > 0.5
    assert FewShotClassifier(kernel="linear", random_state=0).fit(x, labels).predictor_.n == 120


def embeddings(classes=24, each=12, seed=0):
    """Features as a network has them: not negative, and the larger ones are those that say something of the class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    size = np.where(np.arange(120) < 30, 1.0, 0.05)
    x = 1.5 * (size * rng.normal(size=(classes, 120)))[labels] + rng.normal(size=(len(labels), 120))
    return size * np.maximum(x, 0) * np.exp(0.3 * rng.normal(size=(len(labels), 1))), labels


def test_features_of_a_network_are_compared_as_they_are_and_are_calibrated_for_one_row_as_for_five(tmp_path):
    """Their columns are not standardised where that is worse for classes held out; a file keeps all of it."""
    x, labels = embeddings()
    known = labels < 18
    learner = FewShotClassifier(random_state=0).fit(x[known], labels[known])
    best, *others = learner.candidates_
    assert (best.kernel, best.reach) == (columns.CLASSES, SPHERE) and best.log_loss < 0.95 * others[0].log_loss
    assert {c.reach for c in others} > {SPHERE} and not {c.kernel for c in others} & {columns.CLASSES}
    assert learner.predictor_.constant_size
    temperature = learner.learner_.trained.temperature
    assert temperature.shots[0] == 1 and len(temperature.shots) > 1 and not temperature.plain
    few = np.flatnonzero(~known)[::4]
    new = learner.adapt(x[few], labels[few])
    p = new.predict_proba(x[~known])
    assert np.mean(new.classes_[p.argmax(1)] == labels[~known]) > 0.8
    new.save(tmp_path / "new.safetensors")
    again = FewShotClassifier.load(tmp_path / "new.safetensors")
    np.testing.assert_array_equal(again.predict_proba(x[~known]), p)
    assert again.learner_.trained.temperature == temperature


def test_embeddings_have_a_temperature_for_each_number_of_rows_and_tables_none():
    x, labels = embeddings(16, 20, seed=1)
    rows = Rows(torch.tensor(x), torch.tensor(labels), np.zeros(len(labels), dtype=int))
    options = {"ways": 3, "shots": (1, 10), "kernels": ("linear",), "seed": 0}
    found, plain = learn_columns(rows, **options, embeddings=True), learn_columns(rows, **options)
    assert found.temperature.shots == (1, 3, 10) and plain.temperature.plain
    assert len({round(T, 6) for T in found.temperature.values}) == 3


def test_numbers_and_temperatures_that_are_searched_together_are_better_than_one_after_the_other():
    x, labels = embeddings(16, 20, seed=1)
    rows = Rows(torch.tensor(x), torch.tensor(labels), np.zeros(len(labels), dtype=int))
    folds = columns._folds(rows, 3, (1, 10), np.random.default_rng(0))
    models = [columns._on_columns(columns._whitened(rows, fold.others, SPHERE), "linear") for fold in folds]
    columns._fit(models, folds, columns.DOUBT, tempering=False)
    T = columns._temperature(models, folds)
    log_t = {shots: torch.tensor(value).log() for shots, value in zip(T.shots, T.values, strict=True)}
    after = np.mean([columns._log_loss(model, fold, log_t).item() for model, fold in zip(models, folds, strict=True)])
    for model, fresh in zip(models, folds, strict=True):
        model.load_state_dict(columns._on_columns(columns._whitened(rows, fresh.others, SPHERE), "linear").state_dict())
    together, _ = columns._fit(models, folds, columns.LITTLE, tempering=True)
    assert together < after - 0.005


def test_of_more_columns_than_rows_the_coordinates_of_the_rows_are_as_good(monkeypatch):
    """The same candidates, losses and numbers as in all columns, for every kernel."""
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 5)
    x = random.normal(size=(6, 80))[y] + random.normal(size=(30, 80))
    rows = Rows(torch.tensor(x), torch.tensor(y), np.zeros(30, dtype=int))
    options = {"ways": 3, "shots": (1, 2), "kernels": ("linear", "cosine", "rbf"), "seed": 0}
    few = learn_columns(rows, **options)
    monkeypatch.setattr(columns, "_among", lambda w, rows, fold, kernel: (columns._on_columns(w, kernel), fold))
    many = learn_columns(rows, **options)
    assert [c.kernel for c in few.candidates] == [c.kernel for c in many.candidates]
    np.testing.assert_allclose([c.log_loss for c in few.candidates], [c.log_loss for c in many.candidates], rtol=1e-5)
    for mine, its in zip(few.model.state_dict().values(), many.model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-3)


def test_of_thousands_of_columns_rows_are_kept_and_predictions_are_those_of_a_memory(monkeypatch):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(14), 5)
    x = rng.normal(size=(70, additive.WIDEST + 2)) + rng.normal(size=(14, additive.WIDEST + 2))[labels]
    learned = FewShotClassifier(kernel="linear", random_state=0).fit(x[:50], labels[:50])
    new, known = slice(50, 70), np.arange(50, 70) % 5 < 3
    few = learned.adapt(x[new][known], labels[new][known])
    found = few.predict_proba(x[new])
    assert not few.predictor_.constant_size and "2,050 features" in few.learner_.trained.obstacle
    monkeypatch.setattr(additive, "WIDEST", 10_000)
    learned.learner_ = Learner(learned.model_, temperature=learned.learner_.trained.temperature)
    whole = learned.adapt(x[new][known], labels[new][known])
    assert whole.predictor_.constant_size
    np.testing.assert_allclose(whole.predict_proba(x[new]), found, atol=1e-9)


def own(phi, y, *, classes, learned_from=3, mask=None, kernel=None):
    """Targets of sites under a plain kernel, over those that they start from."""
    inner, real = SimplifiedSites(m=2.0, s=0.5).double(), torch.ones_like(y, dtype=torch.bool) if mask is None else mask
    parts = kernel or RBF(1.0, scale=4.0).double(), phi, y, real, Softmax(classes)
    with torch.no_grad():
        (m, s), plain = OwnSites(inner, learned_from).double().under(*parts), inner.under(*parts)
    torch.testing.assert_close(s, plain.s)
    return m.abs().amax((-2, -1)) / 2.0


def rows_of(distance, each=4, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), each)
    return torch.tensor(rng.normal(size=(len(y), 2)) + distance * np.eye(classes)[y][:, :2]), torch.tensor(y)


@pytest.mark.parametrize(("distance", "learned_from"), [(0.0, 2), (2.0, 2), (5.0, 2), (5.0, 30)])
def test_targets_are_as_large_as_rows_left_out_say(distance, learned_from):
    """By numbers: folds of one row of each class, a posterior by inverses, and the sum that is smallest."""
    phi, y = rows_of(distance)
    x, labels = phi.numpy(), y.numpy()
    K = 4 * np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1))
    targets = 2.0 * (2 * np.eye(3)[labels] - 1)
    key = np.modf(1e4 * np.sin(x.sum(1)))[0]
    rank = np.array([np.sum(key[labels == c] < v) for c, v in zip(labels, key, strict=True)])
    mean, var = np.zeros((12, 3)), np.zeros(12)
    for k in range(4):
        out, rest = rank == k, rank != k
        gain = K[np.ix_(out, rest)] @ np.linalg.inv(K[np.ix_(rest, rest)] + 0.5 * np.eye(rest.sum()))
        mean[out] = gain @ targets[rest]
        var[out] = 4 - np.einsum("ij,ij->i", gain, K[np.ix_(out, rest)])
    grid = np.linspace(-2, 2, 41)
    f = np.exp(grid)[:, None, None] * mean / np.sqrt(1 + np.pi * var / 4)[:, None]
    losses = -log_softmax(f, -1)[:, np.arange(12), labels].sum(1) + learned_from / 2 * grid**2
    assert float(own(phi, y, classes=3, learned_from=learned_from)) == pytest.approx(np.exp(grid[losses.argmin()]))


def test_classes_far_apart_have_larger_targets_than_classes_that_are_the_same_and_single_rows_those_they_had():
    near, far = (float(own(*rows_of(d), classes=3)) for d in (0.0, 6.0))
    assert near < 0.8 and far > 1.2
    assert float(own(*rows_of(6.0, each=1), classes=3)) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_targets_depend_neither_on_the_order_of_rows_nor_on_tasks_beside_them(seed):
    """A task in another order, and one in a batch with a larger one and with padding."""
    (phi, y), (more, labels) = rows_of(2.0, each=3, seed=seed), rows_of(4.0, each=5, seed=seed + 9)
    order = torch.tensor(np.random.default_rng(seed).permutation(9))
    alone = own(phi, y, classes=3)
    torch.testing.assert_close(own(phi[order], y[order], classes=3), alone)
    mask = torch.arange(15) < torch.tensor([[9], [15]])
    padded = torch.stack([torch.cat([phi, torch.full((6, 2), 7.0).double()]), more])
    both = own(padded, torch.stack([torch.cat([y, torch.zeros(6).long()]), labels]), classes=3, mask=mask)
    torch.testing.assert_close(both, torch.stack([alone, own(more, labels, classes=3)]))


def test_points_are_numbered_within_their_class():
    """By a loop; equal points alike, padding and points without another one of their class not at all."""
    rng = np.random.default_rng(0)
    phi, y = torch.tensor(rng.integers(0, 9, (4, 30, 1))).double(), torch.tensor(rng.integers(0, 40, (4, 30)))
    mask = torch.tensor(rng.random((4, 30)) < 0.8)
    y[:2] %= 3
    found = ranks(phi, y, mask)
    for i in range(4):
        for c in y[i].unique():
            mine = mask[i] & (y[i] == c)
            different = phi[i, mine].unique()
            numbers = {float(value): set(found[i, mine & (phi[i, :, 0] == value)].tolist()) for value in different}
            wanted = [{k} for k in range(len(different))] if len(different) > 1 else [{-1}] * len(different)
            assert sorted(numbers.values(), key=min) == wanted
        assert (found[i, ~mask[i]] == -1).all()


def test_some_points_of_each_class_say_enough_of_a_large_task():
    phi, y = rows_of(2.0, each=400)
    assert float(own(phi, y, classes=3)) == pytest.approx(float(own(phi[:1200:3], y[:1200:3], classes=3)), rel=0.25)


def test_a_row_of_weight_three_is_that_row_three_times():
    phi, y = rows_of(3.0)
    weight, kernel, inner = torch.ones(12).double(), RBF(1.0, scale=4.0).double(), SimplifiedSites(m=2.0, s=0.5)
    weight[::3] = 3.0
    sites, again = OwnSites(inner, 2).double(), torch.arange(12).repeat_interleave(weight.long())
    with torch.no_grad():
        m, s = sites.under(kernel, phi, y, torch.ones(12, dtype=torch.bool), Softmax(3), weight)
        copies = sites.under(kernel, phi[again], y[again], torch.ones(len(again), dtype=torch.bool), Softmax(3))
        plain = sites.under(kernel, phi, y, torch.ones(12, dtype=torch.bool), Softmax(3))
    torch.testing.assert_close(m[again], copies.m)
    torch.testing.assert_close(s[::3], plain.s[::3] / 3)
    assert not torch.allclose(m, plain.m)


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Bernoulli()], ids=lambda p: type(p).__name__)
def test_outputs_without_a_function_for_each_class_are_refused(likelihood):
    phi, y, mask = torch.randn(4, 2), torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.ones(4, dtype=torch.bool)
    sites = OwnSites(SimplifiedSites(), learned_from=3)
    with pytest.raises(TypeError, match="a function of its own; got .*Use SimplifiedSites"):
        sites(phi, y, mask, likelihood)
    with pytest.raises(TypeError, match="a function of its own; got .*Use SimplifiedSites"):
        sites.under(RBF(), phi, y, mask, likelihood)


def test_few_classes_to_learn_from_are_no_reason_to_be_wrong_about_how_sure_to_be(tmp_path):
    """Four classes that are far apart, and new ones that are the same; a file keeps what a task's rows say."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(7), 30)
    x = rng.normal(size=(210, 3)) + np.where(labels < 4, 6.0, 0.0)[:, None] * rng.normal(size=(7, 3))[labels]
    learned = FewShotClassifier(kernel="linear", random_state=0).fit(x[labels < 4], labels[labels < 4])
    known, asked = ((labels >= 4) & (np.arange(210) % 30 < 5), (labels >= 4) & (np.arange(210) % 30 >= 5))
    few = learned.adapt(x[known], labels[known])
    assert not few.predictor_.constant_size and "points of a task together" in few.learner_.trained.obstacle
    p = few.predict_proba(x[asked])
    plain = deepcopy(learned)
    plain.model_.encoder.sites = plain.model_.encoder.sites.inner
    plain.learner_ = Learner(plain.model_)
    before = plain.adapt(x[known], labels[known]).predict_proba(x[asked])
    assert log_loss(labels[asked], p) < log_loss(labels[asked], before) - 0.05
    learned.save(tmp_path / "few.metavib")
    again = FewShotClassifier.load(tmp_path / "few.metavib").adapt(x[known], labels[known])
    np.testing.assert_array_equal(again.predict_proba(x[asked]), p)
    state = plain.model_.state_dict()
    columns.like_columns(state, learned.candidates_[0].kernel).load_state_dict(state)  # as files were before


@pytest.mark.parametrize("classes", [2, 4])
def test_numbers_stay_closer_to_where_they_start_where_no_class_can_be_held_out(classes, monkeypatch):
    """Of two classes; of four, two are held out, and nothing changes."""
    x, labels = table(classes, 10)
    rows = Rows(torch.tensor((x - x.mean(0)) / x.std(0)), torch.tensor(labels), np.zeros(len(labels), dtype=int))

    def moved():
        model = learn_columns(rows, ways=2, shots=(2, 2), kernels=("linear",), seed=0).model
        start = columns._on_columns(columns._whitened(rows, rows, float("inf")), "linear")
        pairs = zip(columns._learned(model), columns._learned(start), strict=True)
        return sum(float((a - b).detach().square()) for a, b in pairs)

    doubted = moved()
    monkeypatch.setattr(columns, "UNTRIED", columns.DOUBT)
    assert doubted < 0.7 * moved() if classes == 2 else doubted == moved()


def test_a_dozen_classes_say_which_functions_of_the_columns_matter(tmp_path):
    """Classes differ in how far from zero three columns are, on either side; units of a network are folds of them."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(18), 20)
    size = 2.5 * rng.uniform(size=(18, 3))[labels] + 0.2 * rng.normal(size=(360, 3))
    x, base, known = size * rng.choice([-1, 1], (360, 3)), labels < 14, (labels >= 14) & (np.arange(360) % 20 < 4)
    asked = (labels >= 14) & ~known

    def loss(model):
        return log_loss(labels[asked], model.adapt(x[known], labels[known]).predict_proba(x[asked]))

    folded = FewShotClassifier(kernel="linear", ways=3, shots=3, random_state=0).fit(x[base], labels[base])
    best, *others = folded.candidates_
    assert best.units and all(best.log_loss < other.log_loss - 0.2 for other in others) and loss(folded) < 0.9
    folded.save(tmp_path / "units.metavib")
    again = FewShotClassifier.load(tmp_path / "units.metavib")
    assert again.candidates_ == folded.candidates_ and loss(again) == loss(folded)
