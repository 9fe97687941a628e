"""Outputs in steps (counts, marks) are predicted in steps: a probability of each, and intervals that end at them."""

import json
from math import inf

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from metavib import FewShotRegressor, Learner
from metavib.groups.report import Held, report
from metavib.likelihoods import Gaussian, LogNormal, StudentT
from metavib.likelihoods.prediction import RealPrediction
from metavib.marginals import Normal
from metavib.tasks import scaling as scalings
from program import done

LIKELIHOODS = {
    "gaussian": lambda: Gaussian(0.3),
    "student-t": lambda: StudentT(0.3),
    "log-normal": lambda: LogNormal(0.3, edge=(-2.0, 0.3, 0.6, 80.0)),
}


def prediction(name, mean, var, units):
    q = Normal(torch.tensor([[mean]]).double(), torch.tensor([[var]]).double())
    likelihood = LIKELIHOODS[name]().double().requires_grad_(False)
    return RealPrediction(q, likelihood, *likelihood.predict(q)).restored(units)


@pytest.mark.parametrize("name", LIKELIHOODS)
@given(mean=st.floats(-1, 2), var=st.floats(0.01, 1.0), scale=st.floats(0.5, 20), p=st.floats(0.001, 0.999))
def test_probabilities_of_whole_numbers_add_up_and_quantiles_are_the_first_that_reach_them(name, mean, var, scale, p):
    """Beside the continuous prediction they are made of."""
    units = scalings.Outputs(torch.tensor(2.0).double(), torch.tensor(scale).double())
    real, whole = (prediction(name, mean, var, units._replace(step=torch.tensor(s))) for s in (0.0, 1.0))
    k = torch.arange(0, 4000, dtype=torch.float64)
    upto = whole.cdf(k)
    np.testing.assert_allclose(upto, real.cdf(k + 0.5), atol=1e-12)
    mass = whole.log_density(k).exp()
    np.testing.assert_allclose(mass[:500].cumsum(0), upto[:500], atol=1e-6)
    quantile = whole.quantile(p)
    assert quantile == quantile.round() and float(quantile) >= 0
    if float(real.quantile(p)) < 3999:
        first = int(np.searchsorted(upto.numpy(), p))
        assert abs(float(quantile) - first) <= (abs(float(upto[first]) - p) < 1e-6)  # but for rounding
    level = abs(2 * p - 1)
    if 0.01 < level < 0.99 and float(real.quantile((1 + level) / 2)) < 3999:
        middle = upto - mass / 2
        inside = k[(middle >= (1 - level) / 2 - 1e-9) & (middle <= (1 + level) / 2 + 1e-9)]
        inside = inside if len(inside) else whole.quantile(0.5)
        assert [float(end) for end in whole.interval(level)] == [float(inside[0]), float(inside[-1])]
    assert whole.log_density(torch.tensor([-1.0]).double()).item() == float("-inf")
    assert whole.cdf(torch.tensor([-0.5]).double()).item() == 0.0 and float(whole.mean) >= 0


def test_masses_are_scipys_also_far_out():
    units = scalings.Outputs(torch.tensor(10.0).double(), torch.tensor(2.0).double(), torch.tensor(1.0).double())
    found = prediction("gaussian", 0.5, 0.2, units)
    law = stats.norm(11.0, 2 * np.sqrt(0.2 + found.likelihood.noise().item()))
    k = np.array([5.0, 11, 14, 17, 30, 60])
    wanted = np.log(np.where(k > 11, law.sf(k - 0.5) - law.sf(k + 0.5), law.cdf(k + 0.5) - law.cdf(k - 0.5)))
    got = found.log_density(torch.tensor(k)).numpy()
    np.testing.assert_allclose(got[:4], wanted[:4], rtol=1e-6)
    low = prediction("gaussian", -5.2, 0.2, units).log_density(torch.zeros(1).double()).item()
    assert low == pytest.approx(stats.norm(-0.4, law.std()).logcdf(0.5))  # of 0 all below a half
    np.testing.assert_allclose(got[4:], law.logpdf(k[4:]), rtol=1e-6)  # of which 1 - 1e-16 is all that is left


def counts(seed, groups=40, rows=8):
    """Counts of groups with rates of their own."""
    rng = np.random.default_rng(seed)
    group, x = np.repeat(np.arange(groups), rows), rng.normal(size=(groups * rows, 1))
    rate = np.exp(1.2 + 0.3 * x[:, 0] + 0.7 * rng.normal(size=groups)[group])
    return x, rng.poisson(rate), group, rate


@pytest.fixture(scope="module")
def learned():
    x, y, group, _ = counts(0)
    return FewShotRegressor(random_state=0).fit(x, y, tasks=group)


def test_the_report_is_of_whole_intervals(learned):
    """Coverage, width and error of groups without a known row are those of `predict_interval` and `predict`."""
    x, y, group, _ = counts(1)
    units = learned.scaling_.y
    sets = [np.flatnonzero(group == i) for i in range(40)]
    rows = learned._inputs(x), learned._outputs(y)
    options = (*rows, torch.ones(len(y)).double(), np.random.default_rng(0))
    row = report([Held(learned.model_, sets, [])], *options, units).rows[0]
    low, high = learned.predict_interval(x, 0.9).T
    assert row.coverage == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert row.width == pytest.approx(np.mean(high - low))
    assert row.rmse == pytest.approx(np.sqrt(np.mean((learned.predict(x) - y) ** 2)))


def test_counts_of_groups_are_predicted_as_counts(learned, tmp_path):
    """Their log probabilities stand beside those of the Poisson law with rates known exactly; files keep it."""
    x, y, group, rate = counts(1)
    known = np.tile(np.arange(8) < 4, 40)
    many = learned.adapt(x[known], y[known], tasks=group[known])
    asked = x[~known], group[~known]
    ends = many.predict_interval(asked[0], 0.9, tasks=asked[1])
    assert (ends == ends.round()).all() and (ends >= 0).all() and not np.signbit(ends).any()
    inside = (ends[:, 0] <= y[~known]) & (y[~known] <= ends[:, 1])
    assert 0.85 < inside.mean() < 0.95
    found = many.predict_distribution(*asked).log_density(torch.tensor(y[~known]).double()).numpy()
    law = stats.poisson(rate[~known]).logpmf(y[~known])
    assert (found <= 0).all() and 0 < (law - found).mean() < 0.3
    assert (many.predict(asked[0], tasks=asked[1]) >= 0).all()
    many.save(tmp_path / "counts.safetensors")
    again = FewShotRegressor.load(tmp_path / "counts.safetensors")
    np.testing.assert_array_equal(again.predict_interval(asked[0], 0.9, tasks=asked[1]), ends)


def test_outputs_with_fractions_or_below_zero_are_real(learned):
    x, y, group, _ = counts(0)
    below_zero = np.random.default_rng(0).normal(0, 3, len(y)).round()  # no end has many rows: it is no scale
    for changed in (y + 0.5, below_zero):
        e = FewShotRegressor(backbone="mlp", hidden=(4,), n_steps=1, random_state=0).fit(x, changed, tasks=group)
        assert not e.scaling_.y.stepped and (e.predict_interval(x[:9]) % 1 != 0).all()
    assert learned.scaling_.y.stepped


STEPPED = {
    "counts": (np.random.default_rng(0).poisson(3.0, 400), (1.0, 0.0, inf)),
    "large counts": (np.random.default_rng(0).poisson(300.0, 400), (1.0, 0.0, inf)),
    "marks": (np.random.default_rng(0).integers(1, 6, 400), (1.0, 1.0, 5.0)),
    "percentages with full marks": (
        np.random.default_rng(0).normal(90, 15, 400).round().clip(0, 100),
        (1.0, 0.0, 100.0),
    ),
    "agreement from -3 to 3": (np.random.default_rng(0).integers(-3, 4, 400), (1.0, -3.0, 3.0)),
    "stars by halves": (np.random.default_rng(0).integers(1, 11, 400) / 2, (0.5, 0.5, 5.0)),
    "tenths without an end": (np.random.default_rng(0).normal(0, 0.5, 400).round(1), (0.0, 0.0, inf)),
    "a few rows by halves": (np.array([0.5, 1, 1.5, 2]), (0.0, 0.0, inf)),
    "a coin": (np.random.default_rng(0).integers(0, 2, 400), (1.0, 0.0, 1.0)),
}


@pytest.mark.parametrize("name", STEPPED)
def test_steps_and_ends_are_found_where_they_are(name):
    y, wanted = STEPPED[name]
    assert tuple(float(v) for v in scalings.steps_of(y)) == wanted


@given(mean=st.floats(-2, 2), var=st.floats(0.01, 1.0), p=st.floats(0.01, 0.99), step=st.sampled_from([0.1, 0.5, 1.0]))
def test_probabilities_on_a_scale_are_those_of_a_law_whose_ends_have_what_lies_beyond(mean, var, p, step):
    """Beside SciPy; a thousandth of what lies beyond an end stays there, so that no output is impossible."""
    low, high = -3 * step, 4 * step
    numbers = (torch.tensor(v, dtype=torch.float64) for v in (0.4, 1.3, step, low, high))
    found = prediction("gaussian", mean, var, scalings.Outputs(*numbers))
    law = stats.norm(0.4 + 1.3 * mean, 1.3 * np.sqrt(var + found.likelihood.noise().item()))
    k = torch.arange(-3, 5).double() * step
    mass = np.diff(law.cdf(np.r_[-np.inf, k[:-1] + step / 2, np.inf]))
    mass[[0, -1]] -= 1e-3 * np.array([law.cdf(low - step / 2), law.sf(high + step / 2)])
    got = torch.cat([found.log_density(each[None]) for each in k]).exp() * step
    np.testing.assert_allclose(got, mass, rtol=1e-6, atol=1e-9)
    outside = torch.tensor([low - step, high + step, high + 3 * step]).double()
    beyond = torch.cat([found.log_density(each[None]) for each in outside])
    assert beyond.isfinite().all() and (beyond.exp() * step <= 1e-3).all()
    upto = np.cumsum(mass)
    if np.abs(upto - p).min() > 1e-3:  # where what stays beyond the ends does not matter
        first = k[np.searchsorted(upto, p).clip(max=7)]
        assert float(found.quantile(p)) == pytest.approx(float(first), abs=1e-9)
    lower, upper = found.interval(0.9)
    assert low - 1e-9 <= float(lower) <= float(upper) <= high + 1e-9 and low <= float(found.mean) <= high


def test_marks_are_predicted_within_their_scale(tmp_path):
    """Ends of intervals and means stay within it, a file keeps it, and probabilities add up to all but a thousandth."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(30), 8), rng.normal(size=(240, 1))
    y = (3.6 + 0.5 * x[:, 0] + rng.normal(size=30)[group] + 0.7 * rng.normal(size=240)).round().clip(1, 5)
    model = FewShotRegressor(random_state=0).fit(x, y, tasks=group)
    many = model.adapt(x[:3], y[:3])
    ends = many.predict_interval(x, 0.9)
    assert ends.min() >= 1 and ends.max() <= 5 and (ends % 1 == 0).all()
    assert many.predict(3 + x).max() <= 5
    found = many.predict_distribution(x)
    total = sum(found.log_density(torch.full((240,), float(k)).double()).exp() for k in range(6))
    assert ((total > 0.998) & (total <= 1 + 1e-12)).all()
    many.save(tmp_path / "marks.safetensors")
    np.testing.assert_array_equal(FewShotRegressor.load(tmp_path / "marks.safetensors").predict_interval(x, 0.9), ends)


def test_a_run_on_counts_predicts_and_is_tested_as_counts(tmp_path):
    """The command line's ends are whole numbers, and the log density of the test is that of the learner."""
    x, y, group, _ = counts(0, groups=20)
    table = pd.DataFrame({"shop": group, "x": x[:, 0], "sold": y})
    table.to_csv(tmp_path / "sold.csv", index=False)
    done("train", "table", tmp_path / "sold.csv", "--task", "shop", "--target", "sold", "--out", tmp_path / "run")
    rows = json.loads((tmp_path / "run" / "record.json").read_text())["evaluation"]["rows"]
    assert all(row["metrics"]["log_density"]["mean"] < 0 for row in rows)
    learner = Learner.from_run(tmp_path / "run")
    assert learner.preparation.scaling.y.stepped
    found = learner.adapt(table[:4]).predict(table[4:8])
    assert (torch.stack(found.interval(0.9)) % 1 == 0).all() and (
        found.log_density(torch.tensor(y[4:8]).double()) < 0
    ).all()
