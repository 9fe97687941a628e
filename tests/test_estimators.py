"""Estimators keep scikit-learn's conventions, and meta-train, adapt and predict what they promise."""

import importlib
import pickle
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from metavib.estimators import FewShotClassifier, FewShotRegressor, adapt
from metavib.estimators.tasks import ClassTasks, Rows, Shots, hold_out
from metavib.networks import MLP
from metavib.objective import predictive, vib
from metavib.random import seeded
from metavib.tasks import scaling as scalings

SMALL = {"n_steps": 20, "tasks_per_step": 4, "hidden": (16,), "random_state": 0}


def lines(tasks=12, rows=15, *, noise=0.1, seed=0):
    """Tasks that are lines of their own, far from zero and in large units."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(tasks), rows)
    slope, level = rng.normal(size=(2, tasks))
    x = rng.uniform(-3, 3, (len(ids), 1))
    return x, 1000 + 50 * (level[ids] + slope[ids] * x[:, 0] + noise * rng.normal(size=len(ids))), ids


def blobs(classes=20, rows=8, seed=0):
    """Classes that are blobs in four dimensions."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), rows)
    return rng.normal(size=(classes, 4))[labels] * 2 + 0.5 * rng.normal(size=(len(labels), 4)), labels


@pytest.fixture(scope="module")
def regressor():
    x, y, ids = lines()
    return FewShotRegressor(backbone="mlp", n_steps=150, random_state=0).fit(x, y, tasks=ids)


# Networks draw rows at random, in proportion to their weights: other rows than those of a table with repeated rows.
RANDOM = {"check_sample_weight_equivalence_on_dense_data": "training draws rows at random"}


# Some fifty fits of a classifier that chooses by classes held out take minutes; those of a network are short ones.
@pytest.mark.parametrize(
    "estimator", [FewShotRegressor(**SMALL), FewShotClassifier(**SMALL, backbone="mlp")], ids=["real", "class"]
)
def test_scikit_learns_own_checks_pass(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)  # the check of array API input needs an environment variable
        results = check_estimator(estimator, on_fail=None, expected_failed_checks=RANDOM)
    failed = [(r["check_name"], r["exception"]) for r in results if r["status"] not in ("passed", "skipped", "xfail")]
    skipped = [r["check_name"] for r in results if r["status"] == "skipped"]
    assert not failed and skipped == ["check_array_api_input"] and len(results) > 45


def test_adapting_to_a_new_task_beats_its_mean_and_leaves_the_learner_alone(regressor):
    x, y, _ = lines(1, 60, seed=5)
    before = regressor.model_.state_dict()
    here = regressor.adapt(x[:6], y[:6])
    assert np.mean((here.predict(x[6:]) - y[6:]) ** 2) < 0.3 * np.mean((y[:6].mean() - y[6:]) ** 2)
    assert here is not regressor and here.model_ is regressor.model_ and not hasattr(regressor, "predictor_")
    assert all(torch.equal(a, b) for a, b in zip(before.values(), regressor.model_.state_dict().values(), strict=True))


def test_a_meta_trained_estimator_predicts_a_task_without_rows(regressor):
    """K = 0 is the prior: what adapting to no rows gives, in both estimators; before fit there is nothing."""
    x, y, ids = lines()
    mean, sd = regressor.predict(x[:5], return_std=True)
    again = regressor.adapt(x[:0], y[:0]).predict(x[:5], return_std=True)
    np.testing.assert_array_equal(mean, again[0])
    assert (sd > regressor.adapt(x[:9], y[:9]).predict(x[:5], return_std=True)[1]).all()
    sorter = FewShotClassifier(**SMALL).fit(x, np.where(y > 1000, "high", "low"), tasks=ids)
    p = sorter.predict_proba(x[:5])
    assert sorter.classes_.tolist() == ["high", "low"]
    np.testing.assert_array_equal(p, sorter.adapt(x[:0], [], classes=["low", "high"]).predict_proba(x[:5]))
    for kind in (FewShotRegressor, FewShotClassifier):
        with pytest.raises(NotFittedError):
            kind().predict(x)


@pytest.mark.parametrize(
    ("kind", "scoring"),
    [(FewShotRegressor, "neg_mean_absolute_error"), (FewShotClassifier, "neg_log_loss"), (FewShotClassifier, "f1")],
)
def test_every_scorer_of_scikit_learn_scores_tasks_that_were_never_seen(kind, scoring):
    x, y, ids = lines()
    y = y if kind is FewShotRegressor else (y > np.median(y)).astype(int)
    with sklearn.config_context(enable_metadata_routing=True):
        e = kind(**SMALL).set_fit_request(tasks=True)
        scores = cross_val_score(e, x, y, cv=GroupKFold(3), scoring=scoring, params={"tasks": ids, "groups": ids})
    assert scores.shape == (3,) and np.isfinite(scores).all()


def test_classes_without_rows_are_not_ruled_out():
    x, y, ids = lines()
    labels = np.where(y > np.median(y), "yes", "no")
    e = FewShotClassifier(**SMALL).fit(x, labels, tasks=ids)
    here = e.adapt(x[:3], ["yes"] * 3, classes=["no", "yes"])
    p = here.predict_proba(x)
    assert here.classes_.tolist() == ["no", "yes"] and (p[:, 0] > 0).all() and (p.sum(1) == pytest.approx(1))
    with pytest.raises(ValueError, match="'maybe'"):
        e.adapt(x[:3], ["maybe"] * 3, classes=["no", "yes"])


FRAMES = {
    "pandas": lambda f: f,
    "polars": lambda f: pl.DataFrame(f.to_dict("list")),
    "arrow": lambda f: pa.Table.from_pandas(f),
}


@pytest.mark.parametrize("form", FRAMES)
def test_frames_of_texts_dates_and_truth_values_are_learned_from(form):
    """Every kind of frame gives the same numbers; values that are new are average; errors name the column."""
    x, y, ids = lines()
    rng = np.random.default_rng(0)
    sky, when = rng.choice(["sun", "rain", "fog"], len(y)), pd.Timestamp("2024-01-01") + pd.to_timedelta(ids, "D")
    frame = pd.DataFrame({"heat": x[:, 0], "sky": sky, "open": rng.random(len(y)) > 0.5, "day": when})
    y = y + 100 * (sky == "sun")
    make = FRAMES[form]
    e = FewShotRegressor(**SMALL, missing="mean").fit(make(frame), y, tasks=ids)
    wanted = FewShotRegressor(**SMALL, missing="mean").fit(frame, y, tasks=ids).adapt(frame[:6], y[:6])
    assert list(e.feature_names_in_) == list(frame) and e.n_features_in_ == 4
    here = e.adapt(make(frame[:6]), y[:6])
    np.testing.assert_allclose(here.predict(make(frame[:20])), wanted.predict(frame[:20]), rtol=1e-9)
    assert np.isfinite(here.predict(make(frame[:2].assign(sky="hail")))).all()
    assert np.isfinite(e.adapt(make(frame[:0]), y[:0]).predict(make(frame[:2]))).all()
    with pytest.raises(ValueError, match="row 1, column 'heat': 'warm' is no finite number"):
        here.predict(make(frame[:1].astype({"heat": object}).assign(heat="warm")))
    pickled = pickle.loads(pickle.dumps(here))
    np.testing.assert_array_equal(pickled.predict(frame[:3]), here.predict(frame[:3]))


def test_two_columns_of_ids_are_one_task_for_each_combination():
    x, y, ids = lines()
    both = np.stack([ids // 4, ids % 4], 1)
    one = FewShotRegressor(**SMALL).fit(x, y, tasks=[f"{a:02d},{b}" for a, b in both])
    for tasks in (both, pd.DataFrame(both, columns=["a", "b"])):
        e = FewShotRegressor(**SMALL).fit(x, y, tasks=tasks)
        np.testing.assert_allclose(e.adapt(x[:4], y[:4]).predict(x), one.adapt(x[:4], y[:4]).predict(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: (np.where(x > 0, "a", "b"), y), "an array of inputs holds numbers. Pass a data frame"),
        (lambda x, y: (x, ["a"] * len(y)), "y must be numbers .* FewShotClassifier learns labels"),
        (lambda x, y: (x, [None, *y[1:]]), "y is missing .* in 1 of 180 rows, the first of them row 1"),
        (
            lambda x, y: (x, np.stack([np.where(y > y[3], y, np.nan)] * 2, 1)),
            "in all columns of .* needs one output at least",
        ),
        (lambda x, y: (x, np.where(np.arange(180) == 6, np.inf, y)), "y is infinite in 1 of 180 rows, .* row 7"),
        (lambda x, y: (x, pd.to_datetime(y, unit="D")), "numbers or labels; got dates or durations"),
        (lambda x, y: (x, pd.to_timedelta(y, unit="D")), "numbers or labels; got dates or durations"),
        (lambda x, y: (pd.DataFrame(np.hstack([x, x]), columns=["a", "a"]), y), "two columns named 'a'; rename one"),
        (lambda x, y: ([{"a": v} for v in x[:, 0]], y), "got dictionaries: make a data frame of them"),
        (lambda x, y: (pl.DataFrame({"a": x[:, 0]}).lazy(), y), r"got a lazy frame: pass frame.collect\(\)"),
    ],
)
def test_inputs_and_outputs_that_do_not_fit_are_explained(make, message):
    x, y, ids = lines()
    with pytest.raises((ValueError, TypeError), match=message):
        FewShotRegressor(**SMALL).fit(*make(x, y), tasks=ids)


@pytest.mark.parametrize("form", FRAMES)
def test_a_column_that_counts_rows_is_no_input_and_no_rows_come_in_any_form(form):
    x, y, ids = lines()
    frame, index = pd.DataFrame({"x": x[:, 0], "sky": np.where(x[:, 0] > 1, "sun", "rain")}), "Unnamed: 0"
    e = FewShotRegressor(**SMALL).fit(FRAMES[form](frame.assign(**{index: range(len(y))})), y, tasks=ids)
    assert list(e.feature_names_in_) == ["x", "sky"]
    wanted = e.predict(FRAMES[form](frame[:5]))
    np.testing.assert_array_equal(e.predict(FRAMES[form](frame[:5].assign(**{index: 9}))), wanted)
    for nothing in ([], FRAMES[form](frame[:0])):
        np.testing.assert_array_equal(e.adapt(nothing, []).predict(FRAMES[form](frame[:5])), wanted)
    with pytest.raises(ValueError, match=r"got one row: pass a frame of it, frame.iloc\[\[0\]\]"):
        e.predict(frame.iloc[0])


def test_an_output_far_from_all_others_is_warned_of(regressor):
    x, y, _ = lines(1, 6, seed=7)
    y[3] += 5000
    with pytest.warns(UserWarning, match="standard deviations of the training outputs from their mean in row 4"):
        regressor.adapt(x, y)


def test_a_pipeline_adapts_and_stays_as_it_is():
    x, y, ids = lines()
    pipe = make_pipeline(StandardScaler(), FewShotRegressor(**SMALL)).fit(x, y, fewshotregressor__tasks=ids)
    before = pipe.predict(x)
    here = adapt(pipe, x[:6], y[:6])
    scaled = pipe[:-1].transform(x)
    np.testing.assert_array_equal(here.predict(x), pipe[-1].adapt(scaled[:6], y[:6]).predict(scaled))
    np.testing.assert_array_equal(pipe.predict(x), before)
    np.testing.assert_array_equal(adapt(pipe, x[:0], y[:0]).predict(x), before)  # nothing is known of a task
    with pytest.raises(TypeError, match="last step of a pipeline that adapts is a few-shot estimator; got Standard"):
        adapt(make_pipeline(StandardScaler()), x, y)


def test_partial_fit_row_by_row_is_adapting_to_all_rows(regressor):
    x, y, _ = lines(1, 20, seed=6)
    whole, stream = regressor.adapt(x, y), regressor.adapt(x[:3], y[:3])
    for i in range(3, 20):
        stream.partial_fit(x[i : i + 1], y[i : i + 1])
    for a, b in zip(whole.predict(x, return_std=True), stream.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)
    assert stream.predictor_.n == 20


def test_intervals_are_the_quantiles_of_mean_and_deviation(regressor):
    x, y, _ = lines(1, 20, seed=7)
    here = regressor.adapt(x, y)
    mean, std = here.predict(x, return_std=True)
    expected = mean[:, None] + std[:, None] * np.array([-1.6448536269514722, 1.6448536269514722])
    np.testing.assert_allclose(here.predict_interval(x, 0.9), expected, rtol=1e-9)


def test_predictions_are_in_the_units_of_the_data():
    """Other units of y change the mean, the deviation and the interval accordingly, and nothing else."""
    x, y, ids = lines()
    a, b = (FewShotRegressor(**SMALL).fit(x, z, tasks=ids).adapt(x[:5], z[:5]) for z in (y, 3 * y - 700))
    (mean, std), (mean_b, std_b) = (e.predict(x, return_std=True) for e in (a, b))
    np.testing.assert_allclose(mean_b, 3 * mean - 700, rtol=1e-4)
    np.testing.assert_allclose(std_b, 3 * std, rtol=1e-3)


def test_the_seed_decides_everything():
    x, y, ids = lines()
    a, b, c = (FewShotRegressor(**SMALL | {"random_state": s}).fit(x, y, tasks=ids) for s in (1, 1, 2))
    first, again, other = (e.adapt(x[:4], y[:4]).predict(x[4:9]) for e in (a, b, c))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_training_improves_on_held_out_tasks_and_keeps_the_best(regressor):
    history = regressor.history_
    scores = dict(history.scores)
    assert scores[history.step] == max(scores.values()) > scores[0]


def test_early_stopping_ends_training_and_goes_back():
    """A rate at which training only does harm: it stops after `patience` validations, at the weights it began with."""
    x, y, ids = lines()
    e = FewShotRegressor(backbone="mlp", n_steps=400, learning_rate=3.0, patience=3, hidden=(16,), random_state=0)
    e.fit(x, y, tasks=ids)
    assert e.history_.steps < 400 and e.history_.step <= e.history_.steps - 3 * 10
    assert np.isfinite(e.adapt(x[:3], y[:3]).predict(x)).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t", "poisson"])
def test_every_likelihood_of_real_outputs_predicts_and_covers(likelihood):
    rng = np.random.default_rng(0)
    x, _, ids = lines()
    rate = np.exp(1 + rng.normal(size=12)[ids] * 0.5 + 0.2 * x[:, 0])
    y = rng.poisson(rate)
    e = FewShotRegressor(**SMALL | {"n_steps": 60}, likelihood=likelihood).fit(x, y, tasks=ids).adapt(x[:10], y[:10])
    mean, std = e.predict(x[:10], return_std=True)
    low, high = e.predict_interval(x[:10], 0.9).T
    assert (std > 0).all() and (low <= mean).all() and (mean <= high + 1).all()
    if likelihood == "poisson":
        assert (mean > 0).all() and np.array_equal(low, low.round()) and (low >= 0).all()


def test_counts_of_ordinary_sizes_are_learned_from():
    """Rates of 5 to 1000: q(f) is wide beside p(y | f), e^f large. Predictions beat those of one rate for all tasks."""
    rng = np.random.default_rng(0)
    x, _, ids = lines(tasks=16)
    rate = np.exp(rng.uniform(np.log(5), np.log(1000), 16)[ids] + 0.1 * x[:, 0])
    y = rng.poisson(rate)
    e = FewShotRegressor(n_steps=100, likelihood="poisson", random_state=0).fit(x, y, tasks=ids)
    assert all(np.isfinite(score) for _, score in e.history_.scores)
    errors, baseline = [], []
    for task in range(16):
        rows = ids == task
        mean = e.adapt(x[rows][:5], y[rows][:5]).predict(x[rows][5:])
        errors.append(np.square(np.log(mean / rate[rows][5:])).mean())
        baseline.append(np.square(np.log(y.mean() / rate[rows][5:])).mean())
    assert np.mean(errors) < 0.1 * np.mean(baseline)


def test_counts_must_be_counts():
    with pytest.raises(ValueError, match="counts"):
        FewShotRegressor(**SMALL, likelihood="poisson").fit(np.zeros((4, 1)), [1, 2, 0.5, 3])


def test_frames_keep_their_names_and_missing_values_are_refused_by_them():
    x, y, ids = lines()
    frame = pd.DataFrame({"heat": x[:, 0], "load": x[:, 0] ** 2})
    e = FewShotRegressor(**SMALL).fit(frame, pd.Series(y), tasks=pd.Series(ids).map("t{}".format))
    assert list(e.feature_names_in_) == ["heat", "load"] and e.n_features_in_ == 2
    broken = frame.copy()
    broken.loc[3, "load"] = np.nan
    with pytest.raises(ValueError, match=r"column 'load' has missing values \(NaN\) in 1 of 180 rows"):
        FewShotRegressor(**SMALL, missing="refuse").fit(broken, y, tasks=ids)
    with pytest.warns(UserWarning, match="missing values, which training had none of: column 'load' in 1 of 5 rows"):
        e.adapt(broken[:5], y[:5])
    with pytest.raises(ValueError, match="feature names"):
        e.adapt(frame[["load", "heat"]], y)


def test_a_second_id_of_the_tasks_is_not_used_and_predictions_are_those_without_it(tmp_path):
    x, y, ids = lines()
    frame = pd.DataFrame({"code": [f"c{i}" for i in ids], "heat": x[:, 0]})
    with pytest.warns(UserWarning, match="column 'code' is not used"):
        e = FewShotRegressor(random_state=0).fit(frame, y, tasks=ids)
    plain = FewShotRegressor(random_state=0).fit(frame[["heat"]], y, tasks=ids).adapt(frame[["heat"]][:5], y[:5])
    adapted = e.adapt(frame[:5].assign(code="unheard of"), y[:5])
    np.testing.assert_array_equal(adapted.predict(frame), plain.predict(frame[["heat"]]))
    adapted.save(tmp_path / "e.safetensors")
    loaded = FewShotRegressor.load(tmp_path / "e.safetensors")
    np.testing.assert_array_equal(loaded.predict(frame), adapted.predict(frame))
    np.testing.assert_array_equal(adapted.predict(pl.DataFrame(frame.to_dict("list"))), adapted.predict(frame))


def test_missing_values_become_the_mean_and_an_indicator():
    x, y, ids = lines()
    x = np.concatenate([x, x], 1)
    x[::7, 1] = np.nan
    with pytest.warns(UserWarning, match="missing values: column 1 in 26 of 180 rows. The mean"):
        told = FewShotRegressor(**SMALL).fit(x, y, tasks=ids)
    e = FewShotRegressor(**SMALL, missing="mean").fit(x, y, tasks=ids)
    np.testing.assert_array_equal(told.adapt(x[:8], y[:8]).predict(x), e.adapt(x[:8], y[:8]).predict(x))
    assert e.scaling_.x.flags.tolist() == [1] and e.scaling_.x.width == 3
    z = e.scaling_.x.standardise(torch.tensor([[np.nan, np.nan], [0.0, 1.0]], dtype=torch.float64))
    assert z[0].tolist() == [0, 0, 1] and z[1, 2] == 0
    assert np.isfinite(e.adapt(x[:8], y[:8]).predict(x)).all()


def test_clone_pickle_and_pipeline():
    x, y, ids = lines()
    pipe = make_pipeline(StandardScaler(), FewShotRegressor(**SMALL, backbone="mlp"))
    pipe.fit(x, y, fewshotregressor__tasks=ids)
    assert pipe[-1].history_.steps == 20
    here = pipe[-1].adapt(pipe[:-1].transform(x[:5]), y[:5])
    again = pickle.loads(pickle.dumps(here))
    assert np.array_equal(here.predict(x), again.predict(x))
    fresh = clone(here)
    assert fresh.get_params() == here.get_params() and not hasattr(fresh, "model_")


@pytest.mark.parametrize("kind", [FewShotRegressor, FewShotClassifier])
def test_cross_validation_over_tasks(kind):
    """No task is in two folds; each is scored after adapting to a few of its rows."""
    x, y, ids = lines()
    if kind is FewShotClassifier:
        y = (y > np.median(y)).astype(int)
    with sklearn.config_context(enable_metadata_routing=True):
        e = kind(**SMALL).set_fit_request(tasks=True).set_score_request(tasks=True)
        scores = cross_val_score(e, x, y, cv=GroupKFold(3), params={"tasks": ids, "groups": ids})
    assert scores.shape == (3,) and (scores > 0.3).all()


def test_without_ids_the_data_is_one_task():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (80, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 1]
    e = FewShotRegressor(n_steps=60, random_state=0).fit(x[:60], y[:60])
    assert e.score(x[60:], y[60:]) > 0.7 and e.predictor_.n == 60


def test_tasks_of_one_row_are_learned_from_and_left_out_by_networks_with_a_warning():
    x, y, ids = lines()
    with pytest.warns(UserWarning, match="1 of 13 tasks are left out .* single row") as heard:
        FewShotRegressor(**SMALL | {"backbone": "mlp"}).fit(
            np.append(x, [[0.0]], 0), np.append(y, 0.0), tasks=np.append(ids, 99)
        )
    assert heard[0].filename == __file__
    # Without a network a group of one row says where groups lie: fifty of them move the mean of what is predicted.
    higher = y.mean() + y.std() * np.random.default_rng(0).normal(1.0, 0.5, size=50)
    both = FewShotRegressor(random_state=0).fit(
        np.append(x, np.zeros((50, 1)), 0), np.append(y, higher), tasks=np.append(ids, 100 + np.arange(50))
    )
    few = FewShotRegressor(random_state=0).fit(x, y, tasks=ids)
    assert both.predict([[0.0]])[0] > few.predict([[0.0]])[0] + 0.3 * y.std()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "cauchy"}, "likelihood must be one of gaussian"),
        ({"backbone": "transformer"}, "backbone must be one of"),
        ({"backbone": "conv4"}, r"images \(n, C, H, W\) with conv4"),
        ({"shots": (5, 2)}, "1 <= low <= high"),
        ({"kernel": "wavelet"}, "model.kernel must be one of"),
        ({"missing": "drop"}, "missing must be one of"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    x, y, ids = lines()
    with pytest.raises(ValueError, match=message):
        FewShotRegressor(**SMALL | options).fit(x, y, tasks=ids)


def test_ids_must_be_one_a_row_and_present():
    x, y, ids = lines()
    with pytest.raises(ValueError, match="one id a row"):
        FewShotRegressor(**SMALL).fit(x, y, tasks=ids[:-1])
    with pytest.raises(ValueError, match="that of row 46 is missing"):
        FewShotRegressor(**SMALL).fit(x, y, tasks=np.where(ids == 3, np.nan, ids))
    with pytest.raises(ValueError, match=r"pass the column itself, as frame\['shop'\]"):
        FewShotRegressor(**SMALL).fit(x, y, tasks="shop")


def test_kernels_without_a_memory_keep_their_rows():
    x, y, ids = lines()
    e = FewShotRegressor(**SMALL, kernel="rbf", backbone="identity").fit(x, y, tasks=ids)
    grown = e.adapt(x[:5], y[:5]).partial_fit(x[5:6], y[5:6])
    np.testing.assert_array_equal(grown.predict(x), e.adapt(x[:6], y[:6]).predict(x))


# Classes


def test_many_classes_teach_to_tell_new_ones_apart():
    x, labels = blobs(30)
    known = labels < 20
    e = FewShotClassifier(n_steps=40, random_state=0).fit(x[known], labels[known])
    assert e.classes_.tolist() == list(range(20)) and e.score(x[known], labels[known]) > 0.6
    names = np.array([f"new {i}" for i in labels])
    first = ~known & (np.arange(len(labels)) % 8 < 3)
    rest = ~known & ~first
    here = e.adapt(x[first], names[first])
    assert here.classes_.tolist() == sorted(set(names[~known])) and here.score(x[rest], names[rest]) > 0.6
    assert e.classes_.tolist() == list(range(20))  # the learner is as it was
    np.testing.assert_allclose(here.predict_proba(x[rest]).sum(1), 1, rtol=1e-9)


def test_new_classes_may_come_in_an_update_and_columns_stay_sorted():
    x, labels = blobs(8)
    e = FewShotClassifier(**SMALL).fit(x, labels)
    here = e.adapt(x[labels >= 6], labels[labels >= 6]).partial_fit(x[labels == 2], labels[labels == 2])
    assert here.classes_.tolist() == [2, 6, 7]
    whole = e.adapt(x[np.isin(labels, [2, 6, 7])], labels[np.isin(labels, [2, 6, 7])])
    np.testing.assert_allclose(here.predict_proba(x), whole.predict_proba(x), atol=1e-9)


def test_two_classes_under_a_bernoulli_likelihood_and_tasks():
    x, y, ids = lines()
    yes = np.where(y > 1000, "yes", "no")
    e = FewShotClassifier(**SMALL, likelihood="bernoulli").fit(x, yes, tasks=ids)
    mine = ids == 4
    here = e.adapt(x[mine][:6], yes[mine][:6])
    assert here.classes_.tolist() == ["no", "yes"] and here.predict_proba(x).shape == (len(x), 2)
    with pytest.raises(ValueError, match="take softmax"):
        FewShotClassifier(**SMALL, likelihood="bernoulli").fit(*blobs(3))


def test_images_are_told_apart():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 6)
    patterns = rng.integers(0, 256, (6, 1, 16, 16))
    x = np.clip(patterns[labels] + rng.integers(-30, 30, (36, 1, 16, 16)), 0, 255).astype(np.uint8)
    e = FewShotClassifier(backbone="conv4", n_steps=4, tasks_per_step=2, ways=3, random_state=0).fit(x, labels)
    assert e.score(x, labels) > 0.9 and e.scaling_.x.mean.shape == (1, 1, 1)
    with pytest.raises(ValueError, match="square"):
        FewShotClassifier(**SMALL, backbone="conv4").fit(x[:, :, :15], labels)


def test_a_backbone_of_ones_own_is_copied_and_not_trained():
    x, y, ids = lines()
    own = MLP(1, (7,))
    weights = [p.clone() for p in own.parameters()]
    e = FewShotRegressor(**SMALL, backbone=own).fit(x, y, tasks=ids)
    assert e.model_.prior.network.body.features == 7
    assert all(torch.equal(a, b) for a, b in zip(weights, own.parameters(), strict=True))
    with pytest.raises(TypeError, match="Pointwise"):
        FewShotRegressor(**SMALL, backbone=torch.nn.Linear(1, 3)).fit(x, y, tasks=ids)


# The pieces


def test_class_tasks_take_classes_of_one_task_and_disjoint_rows():
    ids, y = np.repeat([0, 1], 24), np.tile(np.repeat(np.arange(4), 6), 2)
    rows = Rows(torch.arange(48.0).unsqueeze(-1), torch.as_tensor(y), ids)
    task, ways = ClassTasks(rows, ways=3, shots=Shots(1, 2, 3)).sample(20, seeded(0))
    assert ways == 3 and task.support.y.shape == (20, 6)
    for t in range(20):
        sides = [(s.x[t][s.mask[t]].flatten().int(), s.y[t][s.mask[t]]) for s in task]
        both = torch.cat([places for places, _ in sides])
        assert len(set(both.tolist())) == len(both) and len(set(ids[both].tolist())) == 1
        place_of = {}
        for places, labels in sides:
            for place, label in zip(places.tolist(), labels.tolist(), strict=True):
                assert place_of.setdefault(label, y[place]) == y[place]  # a label is one class throughout
        assert len(set(place_of.values())) == 3


def test_whole_tasks_are_held_out_where_there_are_enough():
    ids, same, random = np.repeat(np.arange(10), 4), np.zeros(40), np.random.RandomState(0)
    held = hold_out(ids, same, 0.2, random)
    assert held.sum() == 8 and len(set(ids[held])) == 2 and not set(ids[held]) & set(ids[~held])
    few = hold_out(np.zeros(40), np.repeat([0, 1], 20), 0.2, random)
    assert few[:20].sum() == few[20:].sum() == 4
    assert not hold_out(ids, same, 0.0, random).any()


def test_the_predictive_bound_is_above_the_bound(regressor):
    """log E p >= E log p, with the same KL."""
    x, y, ids = lines()
    model = regressor.model_
    z = (torch.tensor(x) - regressor.scaling_.x.mean) / regressor.scaling_.x.scale
    t = regressor.scaling_.y.standardise(torch.tensor(y))
    from metavib.tasks.table import TableTasks

    tasks = TableTasks(z, t, ids, shots=4, queries=6).sample((9,), seeded(0))
    upper, lower = predictive(model, tasks, beta=0.3), vib(model, tasks, beta=0.3)
    assert (upper.fit > lower.fit).all() and torch.equal(upper.rate, lower.rate)
    torch.testing.assert_close(upper.value, upper.fit - 0.3 * upper.rate)


def test_scaling_survives_its_state_and_refuses_half_of_it():
    both = scalings.Scaling(scalings.columns([[1.0, 2.0], [3.0, 2.0]]), scalings.outputs([1.0, 5.0]))
    again = scalings.from_state(both.state())
    assert all(torch.equal(a, b) for a, b in zip((*both.x, *both.y), (*again.x, *again.y), strict=True))
    assert both.x.scale.tolist() == [1.0, 1.0] and float(both.y.scale) == 2.0  # a constant column is left as it is
    with pytest.raises(ValueError, match=r"lacks 'y.scale'"):
        scalings.from_state({k: v for k, v in both.state().items() if k != "y.scale"})


def test_scaling_of_extreme_numbers_neither_overflows_nor_divides_by_zero():
    x = np.array([[1e300, 1e-300, 5.0], [-1e300, 3e-300, 5.0]])
    z = scalings.columns(x).standardise(torch.tensor(x))
    assert z.isfinite().all() and z[:, 0].abs().allclose(torch.ones(2, dtype=torch.float64))
    assert z[:, 2].tolist() == [0, 0]
    with pytest.raises(ValueError, match="column 'b' has no values"):
        scalings.columns([[1.0, np.nan], [2.0, np.nan]], names=["a", "b"], missing="mean")
    with pytest.raises(ValueError, match="column 0 has infinite values in 1 of 2 rows"):
        scalings.columns([[np.inf], [1.0]])


def test_without_scikit_learn_the_remedy_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "sklearn" or n.startswith("metavib.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install metavib\[sklearn\]"):
        importlib.import_module("metavib.estimators")


# The hierarchical prior, the default for rows with task ids


@pytest.fixture(scope="module")
def hierarchy():
    x, y, ids = lines()
    return FewShotRegressor(random_state=0).fit(x, y, tasks=ids)


def test_by_default_tasks_are_learned_from_without_a_network(hierarchy):
    x, y, _ = lines(1, 60, seed=5)
    here = hierarchy.adapt(x[:6], y[:6])
    assert np.sqrt(np.mean((here.predict(x[6:]) - y[6:]) ** 2)) < 1.5 * 50 * 0.1  # the noise is 0.1 times 50
    assert hierarchy.history_ is None and [row.known for row in hierarchy.report_.rows] == [0, 1, 3, 5, 10]
    assert hierarchy.report_.rows[-1].rmse < 20 < hierarchy.report_.rows[0].rmse  # in the units of y


def test_before_any_row_a_task_is_what_all_tasks_are(hierarchy):
    """Levels and slopes vary by 50 around 1000: the mean is near there, and the deviation holds them."""
    mean, sd = hierarchy.predict(np.array([[-2.0], [0.0], [2.0]]), return_std=True)
    assert (np.abs(mean - 1000) < 100).all() and (sd > 25).all() and (sd < 300).all() and sd[0] > sd[1] < sd[2]
    x, y, _ = lines(1, 3, seed=6)
    stream = pickle.loads(pickle.dumps(hierarchy))
    assert np.array_equal(stream.partial_fit(x, y).predict(x), hierarchy.adapt(x, y).predict(x))


def test_many_tasks_in_one_call_are_what_each_is_alone(hierarchy):
    x, y, ids = lines(5, 8, seed=8)
    names = np.array(["Bern", "Basel", "Biel", "Brig", "Baden"])[ids]
    many = hierarchy.adapt(x[::2], y[::2], tasks=names[::2])
    mean, sd = many.predict(x[1::2], return_std=True, tasks=names[1::2])
    interval = many.predict_interval(x[1::2], 0.8, tasks=names[1::2])
    for name in np.unique(names):
        mine, asked = (names == name)[::2], (names == name)[1::2]
        alone = hierarchy.adapt(x[::2][mine], y[::2][mine])
        its, its_sd = alone.predict(x[1::2][asked], return_std=True)
        np.testing.assert_allclose(mean[asked], its, rtol=1e-8)
        np.testing.assert_allclose(sd[asked], its_sd, rtol=1e-6)
        np.testing.assert_allclose(interval[asked], alone.predict_interval(x[1::2][asked], 0.8), rtol=1e-8)
    np.testing.assert_allclose(many.predict(x[:2], tasks=["Chur", "Chur"]), hierarchy.predict(x[:2]))
    np.testing.assert_allclose(many.adapt(x[:3], y[:3]).predict(x), hierarchy.adapt(x[:3], y[:3]).predict(x))
    with pytest.raises(ValueError, match=r"many tasks predicts; it needs the task of each row, tasks="):
        many.predict(x)
    with pytest.raises(ValueError, match=r"one task predicts; it needs adapt\(X, y, tasks=ids\)"):
        hierarchy.predict(x, tasks=names)


def test_a_hierarchy_needs_tasks_and_rows():
    x, y, _ = lines()
    with pytest.raises(ValueError, match="learns from rows .* no task ids"):
        FewShotRegressor(backbone="hierarchical").fit(x, y)
    with pytest.raises(ValueError, match="likelihood='poisson'"):
        FewShotRegressor(backbone="hierarchical", likelihood="poisson").fit(
            x, np.arange(len(y)), tasks=np.arange(len(y)) // 9
        )


@pytest.mark.parametrize("shots", [1, 5])
def test_on_embeddings_defaults_are_as_right_as_baselines_and_more_honest(shots):
    """Classes around directions of their own, as a network's features have them; new classes from a few examples."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 120)) * np.linspace(2.0, 0.2, 120)
    X = np.repeat(centres, 15, 0) + 1.5 * rng.normal(size=(600, 120))
    X, y = np.maximum(X * rng.uniform(0.5, 2, (600, 1)), 0), np.repeat(np.arange(40), 15)
    known = y < 28
    learner = FewShotClassifier(n_steps=150, random_state=0).fit(X[known], y[known])
    right, nll = np.zeros(3), np.zeros(3)
    for _ in range(40):
        classes = rng.permutation(np.arange(28, 40))[:5]
        rows = np.stack([rng.permutation(np.flatnonzero(y == c))[: shots + 8] for c in classes])
        few, others = rows[:, :shots].ravel(), rows[:, shots:].ravel()
        truth = np.searchsorted(np.sort(classes), y[others])
        means = np.stack([X[few][y[few] == c].mean(0) for c in np.sort(classes)])
        nearest = np.square(X[others][:, None] - means).sum(-1).argmin(1)
        ours = learner.adapt(X[few], y[few]).predict_proba(X[others])
        theirs = LogisticRegression(max_iter=1000).fit(X[few], y[few]).predict_proba(X[others])
        for i, p in enumerate((ours, theirs)):
            right[i] += np.mean(p.argmax(1) == truth)
            nll[i] -= np.log(p[np.arange(len(truth)), truth]).mean()
        right[2] += np.mean(nearest == truth)
    assert right[0] >= right[1:].max() - 0.4 and nll[0] < nll[1]  # within a hundredth of 40 tasks


@pytest.mark.parametrize("estimator", [FewShotRegressor, FewShotClassifier])
def test_no_task_has_fewer_than_no_rows_to_adapt_to(estimator):
    with pytest.raises(ValueError, match="shots must be 0 or above; got -1"):
        estimator().score([[0.0]], [0.0], tasks=[0], shots=-1)


def test_any_scorer_of_scikit_learn_scores_tasks_without_rows():
    """Predictions before any row are those of the shared function, here a steep line."""
    x, y, ids = lines()
    cv, params = GroupKFold(2), {"tasks": ids}
    options = {"groups": ids, "params": params, "scoring": "neg_root_mean_squared_error"}
    found = cross_val_score(FewShotRegressor(random_state=0), x, y + 2000 * x[:, 0], cv=cv, **options)
    assert (found > -300).all()  # levels and slopes differ by 50 and 50 |x|; y by 3500


def test_the_report_is_printed_where_asked_for(capsys):
    x, y, ids = lines(6, 4)
    e = FewShotRegressor(random_state=0, verbose=True).fit(x, y, tasks=ids)
    assert capsys.readouterr().out == f"{e.report_}\n" and "one function for all" in str(e.report_)
