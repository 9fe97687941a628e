"""A learner takes what the user has: every form of the same rows gives the same predictions, in the table's units."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

import cases
import tiny
from learners import model
from metavib import likelihoods
from metavib.adapt.learner import Learner
from metavib.adapt.preparation import Rows, of_run
from metavib.tasks import examples
from metavib.tasks import scaling as scalings
from metavib.tasks.scaling import Scaling
from metavib.training import build

FEATURES = ("hour", "heat")
UNITS = Scaling(scalings.columns([[0.0, 270.0], [24.0, 290.0]]), scalings.outputs([4000.0, 6000.0]))


def learner(likelihood=None, **options) -> Learner:
    prepared = Rows(FEATURES, "demand", UNITS, likelihood or likelihoods.Gaussian(), **options)
    return Learner(model(likelihood), preparation=prepared)


def rows(n: int = 6, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = {"hour": rng.uniform(0, 24, n), "heat": rng.integers(270, 290, n)}
    return pd.DataFrame({"note": ["x"] * n, "demand": rng.normal(5000, 300, n), **x})


def polars(frame: pd.DataFrame):
    return pytest.importorskip("polars").DataFrame({k: frame[k].to_numpy() for k in frame.columns})


def arrow(frame: pd.DataFrame):
    return pytest.importorskip("pyarrow").table({k: frame[k].to_list() for k in frame.columns})


FORMS = {
    "pandas": lambda f: f,
    "columns in another order": lambda f: f[f.columns[::-1]],
    "polars": polars,
    "arrow": arrow,
    "dictionary of lists": lambda f: f.to_dict("list"),
    "dictionary of arrays": lambda f: {k: f[k].to_numpy() for k in f.columns},
    "rows": lambda f: f.to_dict("records"),
    "numbers as text": lambda f: f.astype(str),
    "decimals": lambda f: f.assign(hour=[Decimal(repr(v)) for v in f.hour.tolist()]),
    "nullable": lambda f: f.assign(heat=f.heat.astype("Int64")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_gives_the_same_predictions(form, tmp_path) -> None:
    known, asked = rows(), rows(4, seed=1)
    wanted = learner().adapt((known[list(FEATURES)].to_numpy(), known.demand)).predict(asked[list(FEATURES)].to_numpy())
    task = learner().adapt(FORMS[form](known))
    found = task.predict(FORMS[form](asked))
    assert torch.equal(found.mean, wanted.mean) and torch.equal(found.variance, wanted.variance)
    pair = learner().adapt((FORMS[form](known.drop(columns="demand")), known.demand.tolist()))
    assert torch.equal(pair.predict(FORMS[form](asked.drop(columns="demand"))).mean, wanted.mean)
    known.to_csv(tmp_path / "known.csv", index=False)
    from_file = learner().adapt(str(tmp_path / "known.csv")).update(FORMS[form](asked)).forget(FORMS[form](asked))
    assert_close(from_file.predict(asked).mean, wanted.mean)


def test_arrays_tensors_and_examples_are_columns_in_order() -> None:
    known = rows()
    x, y = known[list(FEATURES)].to_numpy(), known.demand.to_numpy()
    wanted = learner().adapt((x, y)).predict(x).mean
    padded = examples(np.concatenate([x, x]), np.concatenate([y, y]), torch.arange(12) < 6)
    for data in ((torch.tensor(x), torch.tensor(y)), (x.tolist(), y.tolist()), padded):
        assert torch.equal(learner().adapt(data).predict(torch.tensor(x)).mean, wanted)
    one = learner().adapt((x, y)).predict({"hour": x[0, 0], "heat": x[0, 1]}).mean
    assert_close(one, wanted[:1])
    assert learner().adapt(([], [])).n == 0


def test_predictions_are_in_the_units_of_the_table() -> None:
    """Mean, variance, quantiles, distribution function and density, against SciPy on the standardised prediction."""
    known, asked = rows(), rows(5, seed=1)
    x, y = UNITS.x.standardise(torch.tensor(known[list(FEATURES)].to_numpy())), (known.demand - 5000) / 1000
    bare = Learner(model()).adapt((x, y.to_numpy()))
    plain = bare.predict(UNITS.x.standardise(torch.tensor(asked[list(FEATURES)].to_numpy())))
    found = learner().adapt(known).predict(asked)
    normal = stats.norm(plain.mean.numpy() * 1000 + 5000, plain.variance.sqrt().numpy() * 1000)
    np.testing.assert_allclose(found.mean, normal.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.variance, normal.var(), rtol=1e-12)
    np.testing.assert_allclose(torch.stack(list(found.interval(0.9))), normal.interval(0.9), rtol=1e-10)
    at = torch.tensor(asked.demand.to_numpy())
    np.testing.assert_allclose(found.cdf(at), normal.cdf(at), rtol=1e-9)
    np.testing.assert_allclose(found.log_density(at), normal.logpdf(at), rtol=1e-9)
    assert found.rows(0.9)[0] == {
        "mean": float(found.mean[0]),
        "sd": float(found.variance[0].sqrt()),
        "low 90%": float(found.interval(0.9).low[0]),
        "high 90%": float(found.interval(0.9).high[0]),
    }


@pytest.mark.parametrize("p", [0.025, 0.5, 0.9])
def test_quantiles_found_by_bisection_are_in_units_too(p) -> None:
    found = learner(likelihoods.StudentT(0.4)).adapt(rows()).predict(rows(4, seed=1))
    assert_close(found.cdf(found.quantile(p)), torch.full((4,), p, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert bool((found.quantile(p) - 5000).abs().max() < 50_000)


@given(st.floats(1e-3, 1e6), st.floats(-1e6, 1e6))
def test_other_units_of_the_same_table_give_the_same_predictions(scale, shift) -> None:
    """A table in other units, standardised by its own mean and scale: what is predicted is only converted."""
    known, asked = rows(), rows(3, seed=1)
    units = Scaling(UNITS.x, scalings.outputs(np.array([4000.0, 6000.0]) * scale + shift))
    there = Learner(model(), preparation=Rows(FEATURES, "demand", units, likelihoods.Gaussian()))
    found = there.adapt(known.assign(demand=known.demand * scale + shift)).predict(asked)
    wanted = learner().adapt(known).predict(asked)
    tolerance = 1e-7 * (abs(shift) + 5000 * scale)
    assert_close(found.mean, wanted.mean * scale + shift, rtol=1e-9, atol=tolerance)
    assert_close(found.variance.sqrt(), wanted.variance.sqrt() * scale, rtol=1e-6, atol=tolerance)


def test_missing_inputs_are_the_training_mean_where_the_run_says_so() -> None:
    known, asked = rows(), rows(3, seed=1).astype({"heat": float})
    asked.loc[1, "heat"] = np.nan
    task = learner(missing="mean").adapt(known)
    filled = asked.fillna({"heat": 280.0})
    assert torch.equal(task.predict(asked).mean, task.predict(filled).mean)
    for gap in (None, float("nan"), "", "NA"):
        row = {"hour": asked.hour[1], "heat": gap}
        assert_close(task.predict([row]).mean, task.predict(filled).mean[1:2])
    with pytest.raises(ValueError, match="column 'heat' has missing values .* row 2"):
        learner().adapt(known).predict(asked)


WRONG = {
    "column": (lambda f: f.drop(columns="hour").assign(hours=1.0), "no column 'hour'. Did you mean 'hours'"),
    "target": (lambda f: f.drop(columns="demand"), "no column 'demand'"),
    "text": (lambda f: f.assign(hour=["noon", *f.hour[1:]]), "row 1, column 'hour': 'noon' is no finite number"),
    "dates": (lambda f: f.assign(hour=pd.Timestamp("2020-01-01")), "row 1, column 'hour'"),
    "infinite": (lambda f: f.assign(hour=np.inf), "column 'hour' has infinite values in 6 of 6 rows"),
    "no target": (lambda f: f.assign(demand=[*f.demand[:5], None]), "row 6, column 'demand': the target is missing"),
    "array alone": (lambda f: f[list(FEATURES)].to_numpy(), "an array has no column 'demand'"),
    "array too wide": (lambda f: (np.zeros((3, 3)), np.zeros(3)), r"must be \(n, 2\), with the columns hour, heat"),
    "ragged": (lambda f: ([[1, 2], [3]], [1, 2]), "expected rows of numbers"),
    "lengths": (lambda f: {"hour": [1, 2], "heat": [1], "demand": [1, 2]}, "equally long; got hour 2, heat 1"),
    "outputs": (lambda f: (f, [1.0, 2.0]), "same leading dimensions"),
    "outputs as text": (lambda f: (f, ["a"] * 6), "row 1, column 'demand': 'a' is no finite number"),
    "outputs missing": (lambda f: (f, [None] * 6), "column 'demand' has missing values"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_the_table_is_refused_by_name(case) -> None:
    make, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        learner().adapt(make(rows()))


def test_binary_and_count_outputs_stay_as_they_are() -> None:
    known = rows()
    units = Scaling(UNITS.x, scalings.as_they_are())

    def of(likelihood):
        return Learner(model(likelihood), preparation=Rows(FEATURES, "demand", units, likelihood))

    binary = of(likelihoods.Bernoulli())
    task = binary.adapt(known.assign(demand=[0, 1, 1, 0, 0, 1]))
    assert task.classes == (0, 1)
    pair = binary.adapt((known, [0, 1, 1, 0, 0, 1]))
    assert torch.equal(task.predict(known).probabilities, pair.predict(known).probabilities)
    with pytest.raises(ValueError, match="column 'demand' must hold 0 and 1"):
        binary.adapt(known)
    counts = of(likelihoods.Poisson())
    assert bool((counts.adapt(known.assign(demand=[0, 3, 1, 2, 0, 1])).predict(known).mean > 0).all())
    with pytest.raises(ValueError, match="column 'demand': Poisson outputs must be counts"):
        counts.adapt(known.assign(demand=-1))


def test_sinusoids_take_x_and_y_by_name_and_by_place() -> None:
    config = tiny.sinusoid()
    learner = Learner(build.model(config), preparation=of_run(config))
    x, y = np.linspace(-2, 2, 5), np.linspace(0, 1, 5)
    wanted = learner.adapt((x, y)).predict(x).mean
    for data in (pd.DataFrame({"x": x, "y": y}), (x[:, None], y), {"x": x, "y": y}):
        assert torch.equal(learner.adapt(data).predict(pd.DataFrame({"x": x})).mean, wanted)
    assert torch.equal(Learner(build.model(config)).adapt((x, y)).predict(x).mean, wanted)


def test_a_bare_model_takes_pairs_alone() -> None:
    bare = Learner(model())
    with pytest.raises(TypeError, match=r"a pair \(x, y\) of inputs and outputs; got DataFrame"):
        bare.adapt(rows())
    assert bare.adapt((np.zeros((2, cases.INPUTS)), [0.0, 1.0])).n == 2
