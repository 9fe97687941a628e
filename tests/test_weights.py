"""Weights of rows divide their noise: in what a task learns, in what is learned from all tasks, and in scores."""

import warnings

import numpy as np
import pytest
import sklearn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metavib import Learner, encoders, kernels, likelihoods, methods, networks
from metavib.estimators import FewShotClassifier, FewShotRegressor, adapt
from metavib.groups.features import Layout, layout, spread_over
from metavib.groups.learning import Residuals, Spread, refine, steps
from metavib.groups.outliers import outliers
from metavib.groups.rows import members
from metavib.random import seeded
from metavib.tasks.table import TableTasks

RNG = np.random.default_rng(0)
IDS = np.repeat(np.arange(20), 5)
X = RNG.normal(size=(100, 1))
Y = X[:, 0] + RNG.normal(size=20)[IDS] + 0.3 * RNG.normal(size=100)
SMALL = {"n_steps": 10, "tasks_per_step": 2, "hidden": (8,), "random_state": 0}


def learned(name):
    """An estimator of every kind, fitted; and outputs for it."""
    three = np.digitize(Y, [-0.5, 0.5])
    made = {
        "hierarchical": (FewShotRegressor(random_state=0), Y, IDS),
        "network": (FewShotRegressor(**SMALL, backbone="mlp"), Y, IDS),
        "two classes": (FewShotClassifier(random_state=0), (Y > 0).astype(int), IDS),
        "three classes": (FewShotClassifier(random_state=0), three, IDS),
        "new classes": (FewShotClassifier(random_state=0, kernel="rbf", ways=3), IDS, None),
        "bernoulli": (FewShotClassifier(**SMALL, likelihood="bernoulli"), (Y > 0).astype(int), IDS),
    }
    estimator, y, tasks = made[name]
    return estimator.fit(X, y, tasks=tasks), y


KINDS = ["hierarchical", "network", "two classes", "three classes", "new classes", "bernoulli"]
_FITTED = {}


@pytest.fixture(params=KINDS)
def fitted(request):
    if request.param not in _FITTED:
        _FITTED[request.param] = learned(request.param)
    return _FITTED[request.param]


def said(estimator, *args):
    """Everything an adapted estimator predicts."""
    if isinstance(estimator, FewShotClassifier):
        return estimator.predict_proba(X[:9], *args)
    return np.stack(estimator.predict(X[:9], True, *args))


def test_a_row_of_weight_three_is_that_row_three_times(fitted) -> None:
    """Of every kind of estimator; a weight close to zero is no row at all, and zero exactly none."""
    e, y = fitted
    chosen = np.arange(5) if isinstance(e, FewShotRegressor) else np.array([1, 20, 40, 60, 80])
    weight = np.array([1, 3, 2, 1, 4])
    again = np.repeat(chosen, weight)
    here = e.adapt(X[chosen], y[chosen], sample_weight=weight)
    agree(said(here), said(e.adapt(X[again], y[again])), e, rtol=1e-8)
    few = e.adapt(X[chosen[:4]], y[chosen[:4]], **named(e, y[chosen]))
    np.testing.assert_array_equal(
        said(e.adapt(X[chosen], y[chosen], sample_weight=[1, 1, 1, 1, 0], **named(e, y[chosen]))), said(few)
    )
    if e.learner_.trained.model.likelihood.latents == 1:  # a class with a row is otherwise than one without
        nearly = e.adapt(X[chosen], y[chosen], sample_weight=[1, 1, 1, 1, 1e-12])
        agree(said(nearly), said(few), e, rtol=1e-6)


def agree(mine, its, estimator, rtol) -> None:
    """Under a hierarchical prior each row says once how noisy its task is, whatever its weight."""
    if isinstance(estimator, FewShotRegressor) and estimator._hierarchical(True):
        (mine, mine_sd), (its, its_sd) = mine, its
        np.testing.assert_allclose(mine_sd, its_sd, rtol=0.2)
    np.testing.assert_allclose(mine, its, rtol=rtol)


def named(estimator, y):
    return {"classes": y} if isinstance(estimator, FewShotClassifier) else {}


def test_many_tasks_files_and_forgetting_know_weights(fitted, tmp_path) -> None:
    e, y = fitted
    rows = np.arange(15)[np.arange(15) % 5 > 0] if isinstance(e, FewShotRegressor) else np.arange(0, 60, 5)
    tasks = np.repeat(["a", "b", "c"], 4)
    weight = RNG.uniform(0.2, 3, 12)
    many = e.adapt(X[rows], y[rows], tasks=tasks, sample_weight=weight)
    one = e.adapt(X[rows[4:8]], y[rows[4:8]], sample_weight=weight[4:8])
    if isinstance(e, FewShotRegressor):
        np.testing.assert_allclose(said(many, ["b"] * 9), said(one), rtol=1e-7)
    else:
        at = np.searchsorted(many.classes_, one.classes_)
        np.testing.assert_allclose(said(many, ["b"] * 9)[:, at], said(one), rtol=1e-7)
    for known, file in ((many, "many.safetensors"), (one, "one.safetensors")):
        known.save(tmp_path / file)
        back = type(e).load(tmp_path / file)
        args = (["b"] * 9,) if known is many else ()
        np.testing.assert_array_equal(said(back, *args), said(known, *args))
    two = e.adapt(X[rows[4:6]], y[rows[4:6]], sample_weight=weight[4:6])
    rest = e.adapt(X[rows[6:8]], y[rows[6:8]], sample_weight=weight[6:8])
    np.testing.assert_allclose(said(two.merge(rest)), said(one), rtol=1e-7)
    gone = one.forget(X[rows[6:8]], y[rows[6:8]], sample_weight=weight[6:8])
    np.testing.assert_allclose(said(gone), said(two), rtol=1e-6)
    if not one.predictor_.constant_size:
        with pytest.raises(ValueError, match="outputs and weights"):
            one.forget(X[rows[6:8]], y[rows[6:8]])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=6), st.integers(0, 99))
def test_an_adapted_task_is_the_posterior_under_noise_divided_by_the_weights(weight, seed) -> None:
    """By the textbook, in NumPy."""
    rng, n = np.random.default_rng(seed), len(weight)
    x, y, at = rng.normal(size=(n, 1)), rng.normal(size=n), rng.normal(size=(3, 1))
    kernel, noise = kernels.RBF(1.3), 0.2
    model = methods.gp_vib(networks.MLP(1, ()), kernel, encoders.ExactSites(), likelihoods.Gaussian(noise)).double()
    found = Learner(model).adapt((x, y), weight=weight).predict(at)
    with torch.no_grad():
        every = torch.tensor(np.concatenate([x, at]))
        K = kernel.double().gram(kernel.embed(every), kernel.embed(every)).numpy()
    gain = np.linalg.solve(K[:n, :n] + noise * np.diag(1 / np.array(weight)), K[:n, n:]).T
    np.testing.assert_allclose(found.mean.numpy(), gain @ y, rtol=1e-5)  # the noise is kept in float32
    np.testing.assert_allclose(found.variance.numpy(), np.diag(K[n:, n:] - gain @ K[:n, n:]) + noise, rtol=1e-5)


def test_learning_takes_the_noise_of_a_row_to_be_divided_by_its_weight() -> None:
    """By conditioning all rows, old and new, at once, in NumPy."""
    rng = np.random.default_rng(0)
    y, weight = (Y - Y.mean()) / Y.std(), rng.uniform(0.2, 5, len(Y))
    features = spread_over(torch.tensor(X), layout(X, y, IDS), rng).requires_grad_(False)
    options = {"weight": torch.tensor(weight), "strength": np.inf}
    found = refine(features, torch.tensor(X), torch.tensor(y), members(IDS), 0.2, rng, **options)
    predicted = Learner(found.model).adapt((X[:2], y[:2])).predict(X[2:9])
    everything, number = np.concatenate([X, X[:9]]), np.concatenate([IDS, np.full(9, -1)])
    with torch.no_grad():
        phi, psi = (f(torch.tensor(everything)).numpy() for f in (features.shared, features.own))
    cov, n = phi @ phi.T + (number[:, None] == number[None]) * (psi @ psi.T), len(Y) + 2
    noise = 0.2 / np.concatenate([weight, np.ones(2)])
    gain = np.linalg.solve(cov[:n, :n] + np.diag(noise), cov[:n, n:]).T
    np.testing.assert_allclose(predicted.mean, gain @ np.concatenate([y, y[:2]]), rtol=5e-3, atol=5e-3)
    np.testing.assert_allclose(predicted.variance, np.diag(cov[n:, n:] - gain @ cov[:n, n:]) + 0.2, rtol=5e-3)


def test_lines_of_weighted_rows_are_those_of_statsmodels() -> None:
    """One group, a flat prior: weighted least squares, with the noise of a row of weight one."""
    from statsmodels.api import WLS, add_constant

    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(400, 1)), rng.uniform(0.1, 8, 400)
    y = 0.2 + 0.7 * x[:, 0] + 0.5 * rng.normal(size=400) / np.sqrt(weight)
    features = spread_over(torch.tensor(x), Layout([], []), rng).requires_grad_(False)
    features.lines.fill_(np.log(1e4))
    features.own_constant.fill_(-40.0)
    features.slope.fill_(0.0)
    sets, t = [np.arange(400)], (torch.tensor(x), torch.tensor(y))
    fit = WLS(y, add_constant(x), weights=weight).fit()
    found = refine(features, *t, sets, fit.scale, rng, weight=torch.tensor(weight), strength=np.inf)
    mean = Learner(found.model).adapt((x[:0], y[:0])).predict(x[:9]).mean
    np.testing.assert_allclose(mean, fit.predict(add_constant(x[:9])), rtol=1e-3)
    spread = Spread(torch.eye(1).double(), 1.0)
    residual = torch.tensor((fit.resid * np.sqrt(weight))[None])
    noise = steps(
        spread, [Residuals(torch.zeros(1, 400, 1).double(), residual, torch.ones(1, 400).double())], 1.0
    ).noise
    assert noise == pytest.approx(fit.ssr / 400)  # by maximum likelihood; statsmodels divides by 398


def test_weights_are_relative_to_those_of_fit(tmp_path) -> None:
    """A million times all weights changes nothing, also after a file; rows of weight zero are as if they were not."""
    weight = np.random.default_rng(1).uniform(0.3, 3, len(Y))
    found = []
    for c in (1, 1e6):
        e = FewShotRegressor(random_state=0).fit(X[:50], Y[:50], tasks=IDS[:50], sample_weight=c * weight[:50])
        e.save(tmp_path / "e.safetensors")
        e = FewShotRegressor.load(tmp_path / "e.safetensors")
        found.append(e.adapt(X[:4], Y[:4], sample_weight=c * weight[:4]).predict(X[:20], return_std=True))
    np.testing.assert_allclose(*found, rtol=1e-4)
    some = np.arange(50) % 7 > 0
    network = FewShotRegressor(**SMALL, backbone="mlp")
    without = clone(network).fit(X[:50][some], Y[:50][some], tasks=IDS[:50][some])
    zeros = network.fit(X[:50], Y[:50], tasks=IDS[:50], sample_weight=some.astype(float))
    np.testing.assert_array_equal(without.predict(X), zeros.predict(X))


def test_rows_that_are_less_precise_count_less() -> None:
    """Half of the rows have ten times the noise: weights that say so make a better model of new tasks."""
    rng = np.random.default_rng(3)
    ids = np.repeat(np.arange(40), 10)
    x, bad = rng.normal(size=(400, 1)), rng.random(400) < 0.5
    clean = x[:, 0] + rng.normal(size=40)[ids]
    y = clean + np.where(bad, 3.0, 0.3) * rng.normal(size=400)
    new, weight = ids >= 30, np.where(bad, 0.01, 1.0)
    errors = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a row may be so far off that it is left out
        for name, w in (("weighted", weight), ("plain", np.ones(400))):
            e = FewShotRegressor(random_state=0).fit(x[~new], y[~new], tasks=ids[~new], sample_weight=w[~new])
            known = new & (np.arange(400) % 10 < 5)
            here = e.adapt(x[known], y[known], tasks=ids[known], sample_weight=w[known])
            rest = new & ~known
            mean, sd = here.predict(x[rest], return_std=True, tasks=ids[rest])
            errors[name] = np.sqrt(np.mean((mean - clean[rest]) ** 2)), np.median(sd)
    assert errors["weighted"][0] < 0.4 * errors["plain"][0]
    assert errors["weighted"][1] < 0.6 and errors["plain"][1] > 1.0  # a row of weight one has a noise of 0.3


def test_scores_and_cross_validation_take_weights() -> None:
    weight = RNG.uniform(0.5, 2, len(Y))
    e, _ = _FITTED.setdefault("hierarchical", learned("hierarchical"))
    assert e.score(X, Y, sample_weight=weight) == pytest.approx(r2_score(Y, e.predict(X), sample_weight=weight))
    assert e.score(X, Y, tasks=IDS, sample_weight=np.ones(100)) == pytest.approx(e.score(X, Y, tasks=IDS))
    assert e.score(X, Y, tasks=IDS, sample_weight=weight) != e.score(X, Y, tasks=IDS)
    c, y = _FITTED.setdefault("two classes", learned("two classes"))
    assert c.score(X, y, tasks=IDS, sample_weight=2 * np.ones(100)) == pytest.approx(c.score(X, y, tasks=IDS), abs=0.1)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = FewShotRegressor(**SMALL, backbone="mlp").set_fit_request(tasks=True, sample_weight=True)
        routed = routed.set_score_request(tasks=True, sample_weight=True)
        params = {"tasks": IDS, "groups": IDS, "sample_weight": weight}
        scores = cross_val_score(routed, X, Y, cv=GroupKFold(3), params=params)
    assert np.isfinite(scores).all()


def test_pipelines_and_streams_take_weights() -> None:
    e, _ = _FITTED.setdefault("hierarchical", learned("hierarchical"))
    pipe = make_pipeline(StandardScaler(), FewShotRegressor(**SMALL, backbone="mlp"))
    pipe.fit(X, Y, fewshotregressor__tasks=IDS, fewshotregressor__sample_weight=np.ones(100))
    here, three = (adapt(pipe, X[:2], Y[:2], sample_weight=w) for w in ([1, 3], None))
    assert (here.predict(X[:5]) != three.predict(X[:5])).all()
    streamed = e.adapt(X[:1], Y[:1], sample_weight=[2.0]).partial_fit(X[1:3], Y[1:3], sample_weight=[0.5, 3.0])
    np.testing.assert_allclose(said(streamed), said(e.adapt(X[:3], Y[:3], sample_weight=[2.0, 0.5, 3.0])), rtol=1e-7)


def test_a_row_of_little_weight_may_lie_far_off_and_one_of_much_weight_may_not() -> None:
    e, _ = _FITTED.setdefault("hierarchical", learned("hierarchical"))
    y = np.array([0.0, 0.1, 12.0])
    x, group = e._inputs(X[:3]), np.zeros(3, dtype=int)
    for weight, wrong in ((None, True), (torch.tensor([1.0, 1.0, 1e-4]).double(), False)):
        found = outliers(e.model_, x, e._outputs(y), group, weight)
        assert found.tolist() == [False, False, wrong]


def test_rows_are_drawn_in_proportion_to_their_weights() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    source = TableTasks(torch.arange(4.0)[:, None], torch.arange(4.0), np.zeros(4), shots=1, queries=3, weight=weight)
    drawn = source.sample((4000,), seeded(0)).support.y.flatten().long().bincount(minlength=4)
    assert stats.chisquare(drawn.numpy(), 400 * weight.numpy()).pvalue > 1e-3


def test_weights_that_mean_nothing_are_refused() -> None:
    e = FewShotRegressor(random_state=0)
    with pytest.raises(ValueError, match="[Nn]egative"):
        e.fit(X, Y, tasks=IDS, sample_weight=-np.ones(100))
    with pytest.raises(ValueError, match="two rows at least must have a weight above zero; got 1 of 100"):
        e.fit(X, Y, tasks=IDS, sample_weight=np.eye(100)[0])
    gp = methods.gp_vib(networks.MLP(1, ()), kernels.RBF(), encoders.ExactSites(), likelihoods.Gaussian(0.1))
    for weight in ([1.0], [1.0, 0.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match=r"one finite number above zero for each of the 2 points, \(2,\)"):
            Learner(gp).adapt((X[:2], Y[:2]), weight=weight)
    maml = methods.maml(networks.MLP(1, (4,)), likelihoods.Gaussian(0.1), descent=encoders.Descent(steps=1, rate=0.1))
    with pytest.raises(ValueError, match="GradientEncoder has none. Leave the weights out"):
        Learner(maml).adapt((X[:2], Y[:2]), weight=[1.0, 2.0])
