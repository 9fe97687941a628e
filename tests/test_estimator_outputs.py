"""Regressors of several outputs are, to the last bit, a regressor of each."""

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from safetensors.torch import save_file
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metavib.estimators import FewShotClassifier, FewShotRegressor, adapt
from metavib.files import read_tensors

RNG = np.random.default_rng(0)
TOWN, X = np.repeat(np.arange(12), 8), RNG.normal(size=(96, 2))
HEAT = 50 + 10 * RNG.normal(size=12)[TOWN] + 5 * X[:, 0] + RNG.normal(size=96)
RAIN = np.exp(RNG.normal(size=12)[TOWN] + X[:, 1] + 0.1 * RNG.normal(size=96))
BOTH = pd.DataFrame({"heat": HEAT, "rain": RAIN})
KNOWN = np.tile(np.arange(8) < 3, 12)
FORMS = {"array": BOTH.to_numpy(), "pandas": BOTH, "polars": pl.DataFrame(BOTH), "arrow": pa.Table.from_pandas(BOTH)}


def brief():
    return FewShotRegressor(backbone="mlp", hidden=(4,), n_steps=2, random_state=0)


@pytest.fixture(scope="module")
def alone():
    """An estimator of each output."""
    return [FewShotRegressor(random_state=0).fit(X, y, tasks=TOWN) for y in (HEAT, RAIN)]


@pytest.fixture(scope="module")
def together():
    return FewShotRegressor(random_state=0).fit(X, BOTH, tasks=TOWN)


def assert_same(both, each, **tasks):
    """All that can be asked of several outputs is what can be asked of each."""
    mean, sd = both.predict(X, return_std=True, **tasks)
    intervals, found = both.predict_interval(X, 0.8, **tasks), both.predict_distribution(X, **tasks)
    for i, (name, one) in enumerate(zip(found, each, strict=True)):
        its_mean, its_sd = one.predict(X, return_std=True, **tasks)
        np.testing.assert_array_equal(mean[:, i], its_mean)
        np.testing.assert_array_equal(sd[:, i], its_sd)
        np.testing.assert_array_equal(intervals[:, i], one.predict_interval(X, 0.8, **tasks))
        np.testing.assert_array_equal(found[name].mean.numpy(), its_mean)
    np.testing.assert_array_equal(both.predict(X, **tasks), mean)


def test_several_outputs_are_what_each_is_alone(together, alone):
    assert together.n_features_in_ == 2 and list(together.estimators_) == ["heat", "rain"]
    assert [str(report) for report in together.report_.values()] == [str(e.report_) for e in alone]
    assert_same(together, alone)
    here = [e.adapt(X[:5], y[:5]) for e, y in zip(alone, (HEAT, RAIN), strict=True)]
    assert_same(together.adapt(X[:5], BOTH[:5]), here)
    assert_same(together.adapt(X[:5], BOTH[:5].to_numpy()), here)


@pytest.mark.parametrize("form", FORMS)
def test_outputs_come_in_any_kind_of_frame(form):
    both = brief().fit(X, FORMS[form], tasks=TOWN)
    assert list(both.estimators_) == ([0, 1] if form == "array" else ["heat", "rain"])
    assert_same(both, [brief().fit(X, y, tasks=TOWN) for y in (HEAT, RAIN)])


def test_all_that_is_done_with_one_output_is_done_with_several(together, alone, tmp_path):
    """Updates, many tasks, merging, forgetting, scores and files."""
    outputs = list(zip(alone, (HEAT, RAIN), strict=True))
    here = together.adapt(X[:3], BOTH[:3])
    assert_same(
        here.partial_fit(X[3:5], BOTH[3:5]), [e.adapt(X[:3], y[:3]).partial_fit(X[3:5], y[3:5]) for e, y in outputs]
    )
    assert_same(together, alone)  # which stays as it was
    merged = together.adapt(X[:3], BOTH[:3]).merge(together.adapt(X[3:5], BOTH[3:5]))
    assert_same(merged, [e.adapt(X[:3], y[:3]).merge(e.adapt(X[3:5], y[3:5])) for e, y in outputs])
    assert_same(
        merged.forget(X[:3], BOTH[:3]),
        [e.adapt(X[:3], y[:3]).merge(e.adapt(X[3:5], y[3:5])).forget(X[:3], y[:3]) for e, y in outputs],
    )
    many = together.adapt(X[KNOWN], BOTH[KNOWN], tasks=TOWN[KNOWN])
    each = [e.adapt(X[KNOWN], y[KNOWN], tasks=TOWN[KNOWN]) for e, y in outputs]
    assert_same(many, each, tasks=TOWN)
    for estimator, expected, tasks in ((here, None, {}), (many, each, {"tasks": TOWN}), (together, alone, {})):
        estimator.save(tmp_path / "e.safetensors")
        again = FewShotRegressor.load(tmp_path / "e.safetensors")
        assert list(again.estimators_) == ["heat", "rain"] and again.get_params() == estimator.get_params()
        assert_same(again, expected or list(estimator.estimators_.values()), **tasks)
        assert str(again.report_) == str(estimator.report_)
    assert together.score(X, BOTH) == pytest.approx(r2_score(BOTH, together.predict(X)))
    wanted = np.mean([e.score(X, y, tasks=TOWN, shots=2) for e, y in outputs])
    assert together.score(X, BOTH, tasks=TOWN, shots=2) == wanted


GAPS = BOTH.mask(np.stack([np.arange(96) % 5 == 1, np.arange(96) % 7 == 2], 1) & (np.arange(96) % 35 != 16)[:, None])
HAVE = [GAPS.heat.notna().to_numpy(), GAPS.rain.notna().to_numpy()]


def shares(y, which=slice(None)):
    """Of each output: the rows of a part that have it, its values there, and the towns of these rows."""
    return [(X[which][h[which]], o[which][h[which]], TOWN[which][h[which]]) for o, h in zip(y, HAVE, strict=True)]


@pytest.fixture(scope="module")
def with_gaps():
    return FewShotRegressor(random_state=0).fit(X, GAPS, tasks=TOWN)


def test_rows_that_lack_an_output_serve_those_that_they_have(with_gaps, tmp_path):
    """The oracle is an estimator of each output, which never saw the other rows."""
    y = (HEAT, RAIN)
    alone = [FewShotRegressor(random_state=0).fit(x, its, tasks=of) for x, its, of in shares(y)]
    assert_same(with_gaps, alone)
    first, more = slice(0, 5), slice(5, 8)
    here = [e.adapt(x, its) for e, (x, its, _) in zip(alone, shares(y, first), strict=True)]
    assert_same(with_gaps.adapt(X[first], GAPS[first]), here)
    both = with_gaps.adapt(X[first], GAPS[first]).partial_fit(X[more], GAPS[more])
    assert_same(both, [e.partial_fit(x, its) for e, (x, its, _) in zip(here, shares(y, more), strict=True)])
    assert_same(
        both.forget(X[more], GAPS[more]),
        [e.forget(x, its) for e, (x, its, _) in zip(here, shares(y, more), strict=True)],
    )
    many = with_gaps.adapt(X[KNOWN], GAPS[KNOWN], tasks=TOWN[KNOWN])
    each = [e.adapt(x, its, tasks=of) for e, (x, its, of) in zip(alone, shares(y, KNOWN), strict=True)]
    assert_same(many, each, tasks=TOWN)
    scores = [e.score(x, its, tasks=of, shots=2) for e, (x, its, of) in zip(alone, shares(y), strict=True)]
    assert with_gaps.score(X, GAPS, tasks=TOWN, shots=2) == np.mean(scores)
    scores = [e.score(x, its) for e, (x, its, _) in zip(alone, shares(y), strict=True)]
    assert with_gaps.score(X, GAPS) == np.mean(scores)


@pytest.mark.parametrize("form", FORMS)
def test_rows_with_gaps_come_in_any_form_with_tasks_and_weights(form):
    weight = np.linspace(0.5, 2, 96)
    frame = pd.DataFrame(X, columns=["a", "b"])
    make = {"array": np.asarray, "pandas": lambda d: d, "polars": pl.DataFrame, "arrow": pa.Table.from_pandas}[form]
    both = brief().fit(make(frame), make(GAPS), tasks=TOWN.tolist(), sample_weight=weight)
    at = frame if form != "array" else X
    for (_, its, of), one, have in zip(shares((HEAT, RAIN)), both.estimators_.values(), HAVE, strict=True):
        alone = brief().fit(at[have], its, tasks=of, sample_weight=weight[have])
        np.testing.assert_array_equal(one.predict(at), alone.predict(at))


def test_an_output_that_no_row_has_is_the_prior_after_adapt_and_refused_before(with_gaps, tmp_path):
    none = GAPS[:3].assign(heat=HEAT[:3], rain=np.nan)
    for known, tasks in ((with_gaps.adapt(X[:3], none), {}), (with_gaps.adapt(X[:3], none, tasks=TOWN[:3]), {})):
        if "predictors_" in vars(known.estimators_["heat"]):
            tasks = {"tasks": TOWN}
        found = known.predict(X, **tasks)
        np.testing.assert_allclose(found[:, 1], with_gaps.predict(X)[:, 1], rtol=1e-9)
        assert not np.allclose(found[:8, 0], with_gaps.predict(X)[:8, 0])
        known.save(tmp_path / "e.safetensors")
        np.testing.assert_array_equal(FewShotRegressor.load(tmp_path / "e.safetensors").predict(X, **tasks), found)
    for call in (FewShotRegressor().fit, with_gaps.score):
        with pytest.raises(ValueError, match="column 'rain' has no values at all"):
            call(X[:3], none, tasks=TOWN[:3])


def test_what_is_said_of_rows_with_gaps_says_how_they_are_counted(with_gaps):
    wrong = GAPS[:8].assign(heat=[*HEAT[:7], 1e4], rain=[np.nan, *RAIN[1:8]])
    with pytest.warns(UserWarning, match="^output 'heat': 1 of 8 rows are left out, the first of them row 8"):
        with_gaps.adapt(X[:8], wrong)
    wrong = wrong.assign(heat=[np.nan, *HEAT[1:7], 1e4], rain=RAIN[:8])
    with pytest.warns(UserWarning, match="^output 'heat', among the rows that have it: 1 of 7 rows are left out"):
        with_gaps.adapt(X[:8], wrong)
    at = X[:8].copy()
    at[3, 1] = np.inf
    with pytest.raises(ValueError, match="output 'heat', among the rows that have it: .*infinite values"):
        with_gaps.adapt(at, wrong)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        with_gaps.adapt(X[:7], wrong)


def test_columns_may_come_in_another_order_and_must_be_those_of_fit(together):
    here = together.adapt(X[:4], BOTH[:4])
    np.testing.assert_array_equal(together.adapt(X[:4], BOTH[["rain", "heat"]][:4]).predict(X), here.predict(X))
    for y, message in (
        (BOTH.rename(columns={"rain": "snow"})[:4], "the columns of fit, 'heat', 'rain'; got 'heat', 'snow'"),
        (HEAT[:4], "the columns of fit, 'heat', 'rain'; got 0"),
        (
            BOTH[:4].assign(heat=[1, None, 2, 3], rain=[1, None, 2, 3]),
            "in all columns of 1 of 4 rows, the first of them row 2",
        ),
        (BOTH[:4].assign(rain=[1, "much", 2, 3]), "row 2, column 'rain': 'much' is no finite number"),
        (BOTH[:4].assign(rain=[1, np.inf, 2, 3]), "column 'rain' has infinite values in 1 of 4 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            together.adapt(X[:4], y)
    with pytest.raises(ValueError, match="this estimator is of one output"):
        together.estimators_["heat"].adapt(X[:4], BOTH[:4])
    with pytest.raises(ValueError, match=r"of the outputs \['heat', 'rain'\] and \[\]"):
        together.merge(together.estimators_["heat"])
    with pytest.raises(ValueError, match="column 'heat': Poisson outputs must be counts"):
        FewShotRegressor(likelihood="poisson").fit(X, BOTH, tasks=TOWN)
    with pytest.raises(ValueError, match="1d array"):
        FewShotClassifier().fit(X, (BOTH > 1).astype(int), tasks=TOWN)


def test_a_warning_says_which_output_it_is_about(together):
    wrong = BOTH[:6].assign(heat=[*HEAT[:5], 1e4])
    with pytest.warns(UserWarning, match="output 'heat': 1 of 6 rows are left out, the first of them row 6") as heard:
        together.adapt(X[:6], wrong)
    assert len(heard) == 1 and heard[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together.adapt(X[:6], BOTH[:6])


def test_fitting_anew_forgets_the_outputs_of_before(capsys):
    e = brief().fit(X, BOTH)
    assert e.predict(X).shape == (96, 2) and not hasattr(e, "model_")
    assert e.fit(X, HEAT, tasks=TOWN).predict(X).shape == (96,) and not hasattr(e, "estimators_")
    assert e.fit(X, BOTH).predict(X).shape == (96, 2) and not hasattr(e, "model_")
    e.set_params(verbose=True).fit(X, BOTH, tasks=TOWN)
    assert "output 'rain':" in capsys.readouterr().out


def test_cross_validation_and_pipelines_take_several_outputs():
    scores = cross_val_score(
        brief(), X, BOTH, cv=GroupKFold(3), groups=TOWN, scoring="neg_mean_absolute_error", error_score="raise"
    )
    assert scores.shape == (3,) and np.isfinite(scores).all()
    pipeline = make_pipeline(StandardScaler(), brief())
    pipeline.fit(X, BOTH, fewshotregressor__tasks=TOWN)
    assert adapt(pipeline, X[:3], BOTH[:3]).predict(X).shape == (96, 2)
    for none in (adapt(pipeline, X[:0], BOTH[:0]), adapt(pipeline, [], [])):
        np.testing.assert_array_equal(none.predict(X), pipeline.predict(X))


def test_a_damaged_file_of_several_outputs_is_refused(together, tmp_path):
    path = tmp_path / "e.safetensors"
    together.save(path)
    tensors, texts = read_tensors(path)
    outputs = json.loads(texts["outputs"])
    for changed, said in (
        ({name: t for name, t in tensors.items() if not name.startswith("output/1/")}, {}),
        (tensors, {"outputs": "[]"}),
        (tensors, {"outputs": json.dumps([outputs[0], outputs[0]])}),
        (tensors, {"outputs": json.dumps([["heat", {}], outputs[1]])}),
    ):
        save_file(changed, path, metadata=texts | said)
        with pytest.raises(ValueError, match="is damaged"):
            FewShotRegressor.load(path)
