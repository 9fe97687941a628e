"""Shares in the groups of a table: found, predicted as their law says, and never outside 0 to 1."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, logit
from torch.testing import assert_close

from metavib import FewShotRegressor
from metavib.groups.learning import links
from metavib.groups.outliers import learn_from_right_rows
from metavib.groups.rows import members
from metavib.tasks import scaling as scalings
from metavib.tasks.scaling import banded


def share_groups(rng, groups=40, rows=8):
    """Outputs whose logits are Gaussian in every group: levels of their own, a line that all share."""
    group, x = np.repeat(np.arange(groups), rows), rng.normal(size=(groups * rows, 1))
    logit = 1 + 0.5 * x[:, 0] + 1.2 * rng.normal(size=groups)[group] + 0.4 * rng.normal(size=len(group))
    return x, expit(logit), group


@pytest.fixture(scope="module")
def shares():
    x, y, group = share_groups(np.random.default_rng(0))
    return FewShotRegressor(random_state=0).fit(x, y, tasks=group)


@pytest.mark.parametrize("known", [0, 4])
def test_shares_are_found_and_have_the_density_of_their_law(shares, known) -> None:
    """Logit-normal, by the posterior under the law itself; nothing that is predicted leaves the range from 0 to 1."""
    assert "Logits are taken of the outputs, which lie between 0 and 1." in str(shares.report_)
    x, y, group = share_groups(np.random.default_rng(1), groups=60)
    gaps, inside, by_law, errors, best = [], [], [], [], []
    for rows in members(group):
        s, q = rows[:known], rows[known:]
        found = (shares.adapt(x[s], y[s]) if known else shares).predict_distribution(x[q])
        K = 1.44 * np.ones((known, known)) + 0.16 * np.eye(known)
        gain = np.linalg.solve(K, np.full(known, 1.44)) if known else np.zeros(0)
        mean = 1 + 0.5 * x[q, 0] + gain @ (logit(y[s]) - 1 - 0.5 * x[s, 0])
        law = stats.norm(mean, np.sqrt(1.44 - 1.44 * gain.sum() + 0.16))
        gaps.append(law.logpdf(logit(y[q])) - np.log(y[q] * (1 - y[q])) - found.log_density(torch.tensor(y[q])).numpy())
        low, high = found.interval(0.9)
        assert (low >= 0).all() and (high <= 1).all() and ((found.mean > 0) & (found.mean < 1)).all()
        inside.append((low.numpy() < y[q]) & (y[q] < high.numpy()))
        by_law.append(np.abs(law.cdf(logit(y[q])) - 0.5) < 0.45)
        errors.append(found.mean.numpy() - y[q])
        draws = expit(law.mean() + law.std() * stats.norm.ppf((np.arange(200) + 0.5) / 200)[:, None])
        best.append(draws.mean(0) - y[q])
    assert abs(np.concatenate(gaps).mean()) < 0.06
    assert abs(np.concatenate(inside).mean() - np.concatenate(by_law).mean()) < 0.07  # the levels of 40 groups are seen
    assert np.square(np.concatenate(errors)).mean() < 1.05 * np.square(np.concatenate(best)).mean()


def test_predictions_of_shares_are_their_law_in_the_units_of_the_table(shares, tmp_path) -> None:
    """Densities integrate to 1, quantiles invert the distribution function, and a file keeps it all."""
    found = shares.adapt([[0.3]], [0.7]).predict_distribution([[0.0]])
    at = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    density = torch.stack([found.log_density(y[None]) for y in at]).exp().squeeze()
    assert float(density.sum() * 0.001) == pytest.approx(1.0, abs=2e-3)
    assert float((density * at).sum() * 0.001) == pytest.approx(float(found.mean), abs=5e-3)
    for p in (0.02, 0.5, 0.98):
        assert float(found.cdf(found.quantile(p))) == pytest.approx(p)
    shares.save(tmp_path / "shares.safetensors")
    back = FewShotRegressor.load(tmp_path / "shares.safetensors")
    assert back.report_ == shares.report_
    np.testing.assert_array_equal(back.predict([[0.5]], return_std=True), shares.predict([[0.5]], return_std=True))


def test_rounded_shares_lie_at_the_ends_and_gaussian_ones_stay_as_they_are() -> None:
    x, y, group = share_groups(np.random.default_rng(0))
    rounded = FewShotRegressor(random_state=0).fit(x, y.round(1), tasks=group)
    assert (y.round(1) == 1.0).any() and "Logits" in str(rounded.report_)
    band = rounded.model_.likelihood.units
    assert float(rounded.scaling_.y.restore(band.last)) == pytest.approx(0.95)
    ends = rounded.adapt(x[:6], np.ones(6)).predict_interval(x[:6])
    assert (ends[:, 1] == 1.0).all() and (ends[:, 0] > 0.3).all()
    assert torch.isfinite(rounded.predict_distribution(x[:2]).log_density(torch.tensor([1.0, 0.5]).double())).all()
    near = 0.5 + 0.05 * np.random.default_rng(0).normal(size=len(y)) + 0.05 * (group % 2)
    assert not links(torch.tensor(near - 1), 0.0, 1.0) and len(links(torch.tensor(near), 0.0, 1.0)) == 4
    (_, report), _ = learn_from_right_rows(
        torch.tensor(x),
        torch.tensor((near - near.mean()) / near.std()),
        group,
        seed=0,
        units=scalings.outputs(near),
    )
    assert not report.logarithms


@example([0.0, 1.0, 0.5, 0.75, 0.625, 1 - 2**-53])
@example([5e-324, 0.0, 0.5, 0.75, 0.625, 1.0])
@given(st.lists(st.floats(0, 1), min_size=6, max_size=20, unique=True))
def test_logits_come_back_between_the_ends_and_rise_with_outputs(values) -> None:
    y = torch.tensor(values, dtype=torch.float64)
    if len(y[(y > 1e-9) & (y < 1 - 1e-9)]) < 3:
        return
    units = banded(y, 0.0, 1.0)
    z = units.standardise(y)
    assert z.isfinite().all() and torch.isfinite(units.log_slope(y)).all()
    assert (torch.diff(units.standardise(y.sort().values)) >= 0).all()
    back = units.restore(z)
    assert ((back >= 0) & (back <= 1)).all()
    inner = (z.abs() < 7.9) & (y > units.first) & (y < units.last)
    assert_close(back[inner], y[inner], rtol=1e-6, atol=1e-9)
