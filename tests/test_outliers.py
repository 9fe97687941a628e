"""Rows that cannot be right: found, left out, told of; and none found where all are right."""

import warnings

import numpy as np
import pytest
import torch

from metavib import FewShotRegressor, Learner
from metavib.groups import learn
from metavib.groups import outliers as of_outliers
from metavib.groups.outliers import FAR, outliers, usual


def table(groups=30, each=8, seed=0):
    rng = np.random.default_rng(seed)
    group, x = np.repeat(np.arange(groups), each), rng.normal(size=(groups * each, 1))
    return x, x[:, 0] + rng.normal(size=groups)[group] + 0.2 * rng.normal(size=len(group)), group


@pytest.fixture(scope="module")
def learned():
    x, y, group = table()
    return learn(torch.tensor(x), torch.tensor(y), group, seed=0).model


def test_the_row_furthest_from_what_the_others_say_goes_first(learned):
    """Against a loop over rows and groups: the Gaussian of each row given the others, the worst dropped each time."""
    x, y, group = table(9, 7, seed=1)
    y[[3, 10, 11, 40]] += [30.0, -25.0, 60.0, 3.0]
    with torch.no_grad():
        phi = learned.prior.network.body.phi
        body = learned.prior.network.body
        features = torch.cat([phi.shared(torch.tensor(x)), phi.own(torch.tensor(x))], -1)
        z, mean = (features @ body.root).numpy(), (phi.shared(torch.tensor(x)) @ body.w).numpy()
        noise = float(learned.likelihood.noise())
    wrong = np.zeros(len(y), dtype=bool)
    for g in range(9):
        kept = list(np.flatnonzero(group == g))
        while kept:
            far = []
            for i in kept:
                rest = [j for j in kept if j != i]
                K = z[rest] @ z[rest].T + noise * np.eye(len(rest))
                gain = np.linalg.solve(K, z[rest] @ z[i]) if rest else np.zeros(0)
                expected, variance = mean[i] + gain @ (y - mean)[rest], z[i] @ z[i] + noise - gain @ (z[rest] @ z[i])
                far.append(abs(y[i] - expected) / np.sqrt(variance))
            if max(far) <= FAR:
                break
            wrong[kept.pop(int(np.argmax(far)))] = True
    np.testing.assert_array_equal(outliers(learned, torch.tensor(x), torch.tensor(y), group), wrong)
    assert wrong[[3, 10, 11, 40]].all() and wrong.sum() == 4


def test_rows_of_many_groups_are_looked_at_part_by_part(learned, monkeypatch):
    """The same rows are found, and the same usual distance, however many are looked at at once."""
    x, y, group = table(60, 7, seed=1)
    y[[3, 40]] += [30.0, -25.0]
    rows = learned, torch.tensor(x), torch.tensor(y), group
    weight = torch.ones(len(y)).double()
    wrong, distance = outliers(*rows), usual(*rows, weight)
    monkeypatch.setattr(of_outliers, "AT_ONCE", 12)
    assert wrong.any() and (outliers(*rows) == wrong).all()
    assert usual(*rows, weight) == pytest.approx(distance, rel=1e-9)
    monkeypatch.setattr(of_outliers, "USUAL", len(y) // 3)
    assert usual(*rows, weight) == pytest.approx(distance, rel=0.2)


def test_one_wrong_row_moves_neither_the_prior_nor_a_task():
    x, y, group = table()
    spoilt = y.copy()
    spoilt[17] = 100.0
    clean = FewShotRegressor(random_state=0).fit(x, y, tasks=group)
    with pytest.warns(UserWarning, match="1 of 240 rows are left out, the first of them row 18"):
        robust = FewShotRegressor(random_state=0).fit(x, spoilt, tasks=group)
    new, truth, _ = table(1, 30, seed=5)
    known = truth[:6].copy()
    known[2] = 100.0
    with pytest.warns(UserWarning, match="1 of 6 rows are left out, the first of them row 3"):
        mean, sd = robust.adapt(new[:6], known).predict(new[6:], return_std=True)
    best = clean.adapt(new[[0, 1, 3, 4, 5]], known[[0, 1, 3, 4, 5]]).predict(new[6:])
    assert np.abs(mean - best).max() < 0.3 and np.mean(np.abs(mean - truth[6:]) < 2 * sd) > 0.8
    with pytest.warns(UserWarning, match="1 of 1 rows"):
        later = clean.adapt(new[:5], truth[:5]).partial_fit(new[5:6], [-80.0])
    assert later.predictor_.n == 5


def test_a_task_far_from_all_others_is_believed_once_its_rows_agree_and_right_tables_lose_nothing():
    x, y, group = table()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        e = FewShotRegressor(random_state=0).fit(x, y, tasks=group)
        far = e.adapt(x[:8], y[:8] + 15.0)
    assert np.abs(far.predict(x[:8]) - y[:8] - 15.0).max() < 3.0


@pytest.mark.parametrize("deviations", [3.0, 10.0])
def test_a_moderately_wrong_row_of_a_small_table_spoils_nothing(deviations):
    """Of 90 rows, one that is so many robust standard deviations of all outputs off: as good as without it.

    New groups may have such rows too, so that deviations are larger, but by no more than two fifths.
    """
    x, y, group = table(15, 6, seed=2)
    spoilt = y.copy()
    spoilt[40] += deviations * 1.4826 * np.median(np.abs(y - np.median(y)))
    with pytest.warns(UserWarning, match="1 of 90 rows are left out, the first of them row 41"):
        robust = FewShotRegressor(random_state=0).fit(x, spoilt, tasks=group)
    clean = FewShotRegressor(random_state=0).fit(np.delete(x, 40, 0), np.delete(y, 40), tasks=np.delete(group, 40))
    (mean, sd), (clean_mean, clean_sd) = (e.predict(x, return_std=True) for e in (robust, clean))
    np.testing.assert_allclose(mean, clean_mean, atol=0.05)
    assert (sd > 0.95 * clean_sd).all() and (sd < 1.4 * clean_sd).all()
    widths = [np.diff(e.predict_interval(x, 0.9)) for e in (robust, clean)]
    assert (widths[0] < 1.25 * widths[1]).all()


def test_positive_outputs_with_one_negative_row_are_still_taken_by_their_logarithms():
    x, y, group = table()
    y = np.exp(y)
    y[17] = -50.0
    with pytest.warns(UserWarning, match="1 of 240 rows are left out, the first of them row 18"):
        robust = FewShotRegressor(random_state=0).fit(x, y, tasks=group)
    assert robust.report_.logarithms == "Logarithms are taken of the outputs."
    assert (robust.predict_interval(x) > 0).all()


def test_a_learner_and_many_tasks_leave_out_the_rows_that_an_estimator_does(learned):
    """All ways to new rows come by one place: adapting and updating, one task and many, known ones and new ones."""
    learner, (x, y, group) = Learner(learned), table(4, 6, seed=3)
    spoilt = y.copy()
    spoilt[[2, 15]] += 80.0
    right = spoilt == y
    clean = learner.adapt_many((x[right], y[right]), group[right])
    with pytest.warns(UserWarning, match="2 of 24 rows are left out, the first of them row 3"):
        many = learner.adapt_many((x, spoilt), group)
    assert torch.equal(many.predict(x, group).mean, clean.predict(x, group).mean)
    with pytest.warns(UserWarning, match="1 of 6 rows are left out, the first of them row 3"):
        one = learner.adapt((x[:6], spoilt[:6]))
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        assert torch.equal(
            one.update((x[:2], [y[0], 90.0])).predict(x).mean, one.update((x[:1], y[:1])).predict(x).mean
        )
    with pytest.warns(UserWarning, match="3 of 6 rows are left out, the first of them row 1"):
        more = clean.update((x[:6], [90.0, y[1], -90.0, 70.0, y[4], y[5]]), [0, 0, 1, "new", "new", "newer"])
    assert more.points_of([0, 1, "new", "newer"]) == [6, 6, 1, 1]


def test_a_task_most_of_whose_rows_are_far_off_is_unlike_all_others_and_believed(learned):
    """One row, or most of them: the state with ten times the murders of the rest. A warning says so."""
    learner, (x, y, _) = Learner(learned), table(1, 3, seed=4)
    for rows in (1, 2, 3):
        with pytest.warns(UserWarning, match=f"{rows} of {rows} rows lie more than 8 .* believed"):
            far = learner.adapt((x[:rows], 60.0 * np.arange(1, rows + 1)))
        assert far.n == rows
    with pytest.warns(UserWarning, match="1 of 3 rows lie more"):
        many = learner.adapt_many((x, [*y[:2], 60.0]), ["usual", "usual", "other"])
    assert many.points_of(["usual", "other"]) == [2, 1]


def test_a_first_row_that_was_wrong_does_not_shut_out_the_right_ones_after_it(learned):
    """Row by row, alone and among many tasks: predictions come back, and are less sure than without that row."""
    learner, (x, y, _) = Learner(learned), table(1, 8, seed=4)
    right = learner.adapt((x, y)).predict(x)
    with pytest.warns(UserWarning, match="believed"):
        task, many = learner.adapt(([[0.0]], [60.0])), learner.adapt_many(([[0.0]], [60.0]), ["a"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(8):
            task, many = task.update((x[i : i + 1], y[i : i + 1])), many.update((x[i : i + 1], y[i : i + 1]), ["a"])
    found = task.predict(x)
    assert task.n == 9 and many.points_of(["a"]) == [9]
    assert (found.mean - right.mean).abs().max() < 60 / 8 + 3 and (found.variance > 100 * right.variance).all()
    torch.testing.assert_close(many.predict(x, ["a"] * 8).mean, found.mean)


@pytest.mark.parametrize("seed", range(3))
def test_a_table_without_noise_loses_no_rows(seed):
    """Outputs of a formula: what is left between a row and what others say of it is rounding."""
    rng = np.random.default_rng(seed)
    group, x = np.repeat(np.arange(16), 10), rng.normal(size=(160, 2))
    y = 3 + x[:, 0] + rng.normal(size=16)[group]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = FewShotRegressor(random_state=0).fit(x, y, tasks=group)
    y[41] += 10.0
    with pytest.warns(UserWarning, match="1 of 160 rows are left out, the first of them row 42"):
        again = FewShotRegressor(random_state=0).fit(x, y, tasks=group)
    assert np.abs(again.predict(x) - exact.predict(x)).max() < 0.2
