"""Predictions of groups whose variances are known up to a factor: Student-t, against SciPy and against known laws."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from metavib import FewShotRegressor
from metavib.groups import learning, like
from metavib.groups.features import Sizes
from metavib.groups.learning import draft, fit_features
from metavib.groups.outliers import outliers
from metavib.groups.prior import empty, widened
from metavib.groups.report import Held, report
from metavib.groups.tails import LOWEST, Residuals, Tails, fitted, tails, usual
from metavib.kernels import Given, Linear
from metavib.likelihoods import Gaussian, LogNormal, Poisson
from metavib.marginals import Normal, Student
from metavib.posteriors import Dual, Primal, Sites, memorise

positive = st.floats(0.05, 5.0)


def column(value: float) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


@given(mean=st.floats(-3, 3), spread=positive, ratio=positive, df=st.floats(2.1, 60), y=st.floats(-30, 30))
def test_outputs_under_a_student_are_scipys_t(mean, spread, ratio, df, y) -> None:
    q, p = Student(*(column(v) for v in (mean, spread, ratio, df))), Gaussian(0.3).double().requires_grad_(False)
    law = stats.t(df, mean, np.sqrt(spread + ratio * float(p.noise())))
    at = torch.tensor([y], dtype=torch.float64)
    assert p.log_predictive(q, at).item() == pytest.approx(law.logpdf(y))
    assert p.predictive_cdf(q, at).item() == pytest.approx(law.cdf(y), abs=1e-12)
    assert p.predictive_quantile(q, 0.95).item() == pytest.approx(law.ppf(0.95))
    found_mean, found_var = p.predict(q)
    assert found_mean.item() == pytest.approx(mean) and found_var.item() == pytest.approx(law.var())


def test_outputs_by_logarithms_have_the_t_of_their_logarithm() -> None:
    q = Student(*(column(v) for v in (0.4, 0.5, 1.2, 5.0)))
    p = LogNormal(0.3, edge=(0.0, 0.2, 0.7, 9.0)).double().requires_grad_(False)
    law, y = stats.t(5, 0.4, np.sqrt(0.5 + 1.2 * float(p.noise()))), 3.0
    z, at = (np.log(y) - 0.2) / 0.7, torch.tensor([y], dtype=torch.float64)
    assert p.log_predictive(q, at).item() == pytest.approx(law.logpdf(z) - np.log(0.7 * y))
    assert p.predictive_cdf(q, at).item() == pytest.approx(law.cdf(z))
    assert p.predictive_quantile(q, 0.05).item() == pytest.approx(np.exp(0.2 + 0.7 * law.ppf(0.05)))


def test_a_likelihood_without_a_closed_form_refuses_a_student() -> None:
    q = Student(*(column(v) for v in (0.4, 0.5, 1.2, 5.0)))
    with pytest.raises(TypeError, match="no closed form"):
        Poisson().log_predictive(q, torch.tensor([1]))


@pytest.mark.parametrize("known", [0, 1, 4])
def test_without_tails_of_rows_it_is_the_student_t_process(known) -> None:
    """A row given others has the density of SciPy's multivariate t: that of all over that of the others."""
    rng, a = np.random.default_rng(known), 5.0
    phi, y, noise = rng.normal(size=(known + 1, 3)), rng.normal(size=known + 1), 0.3
    kernel = Given(torch.tensor([a, 1e12], dtype=torch.float64))
    p = Gaussian(noise, floor=1e-6).double().requires_grad_(False)
    cov, mean = phi[:, :2] @ phi[:, :2].T + noise * np.eye(known + 1), phi[:, 2]
    joint = stats.multivariate_t(mean, cov, a).logpdf(y)
    others = stats.multivariate_t(mean[:known], cov[:known, :known], a).logpdf(y[:known]) if known else 0.0
    features, targets = torch.tensor(phi), torch.tensor(y - mean)[:, None]
    z, real = kernel.embed(features[:known]), torch.ones(known, dtype=torch.bool)
    sites = Sites(targets[:known], torch.full((known,), noise, dtype=torch.float64))
    for posterior in (Dual(kernel, z, real, sites), Primal(kernel, memorise(z, real, sites))):
        q = posterior.marginals(features[known:])
        found = p.log_predictive(q, torch.tensor(y[known:])).item()
        assert found == pytest.approx(joint - others, abs=1e-8)


@given(seed=st.integers(0, 99), n=st.integers(0, 6))
def test_many_degrees_of_freedom_are_the_gaussian_and_primal_is_dual(seed, n) -> None:
    rng = np.random.default_rng(seed)
    phi, real = torch.tensor(rng.normal(size=(n + 2, 4))), torch.ones(n, dtype=torch.bool)
    sites = Sites(torch.tensor(rng.normal(size=(n, 1))), torch.full((n,), 0.2, dtype=torch.float64))

    def q(freedom, form):
        kernel = Given(None if freedom is None else torch.tensor(freedom, dtype=torch.float64))
        z = kernel.embed(phi[:n])
        made = Dual(kernel, z, real, sites) if form == "dual" else Primal(kernel, memorise(z, real, sites))
        return made.marginals(phi[n:])

    normal, wide, primal = q(None, "dual"), q((1e9, 1e9), "dual"), q((1e9, 1e9), "primal")
    assert isinstance(normal, Normal) and isinstance(wide, Student) and isinstance(primal, Student)
    assert_close(wide.var, normal.var, rtol=1e-6, atol=1e-9)
    for mine, its in zip(q((5.0, 7.0), "dual"), q((5.0, 7.0), "primal"), strict=True):
        assert_close(mine, its, rtol=1e-8, atol=1e-8)


def test_kernels_know_their_size_unless_told_otherwise() -> None:
    assert Linear().freedom() is None and not Given().state_dict()


def simulated(rng, groups, of_group, of_row):
    """Residuals of unit variance after 0 and 5 rows, of groups and rows with factors of their own."""
    parts = []
    lam = rng.gamma(of_group / 2, 2 / of_group, groups) if of_group else np.ones(groups)
    for known in (0, 5):
        own = rng.gamma(of_row / 2, 2 / of_row, (groups, 8)) if of_row else np.ones((groups, 8))
        off = rng.normal(size=(groups, 8)) / np.sqrt(lam[:, None] * own)
        deviation = rng.chisquare(known, groups) / lam if known else np.zeros(groups)
        columns = (
            np.full((groups, 8), known),
            off,
            np.ones((groups, 8)),
            np.repeat(deviation[:, None], 8, 1),
            np.ones((groups, 8)),
        )
        parts.append(Residuals(*(c.ravel().astype(float) for c in columns)))
    return parts


@pytest.mark.parametrize(("of_group", "of_row"), [(None, None), (6.0, None), (None, 6.0), (6.0, 9.0)])
def test_width_and_tails_are_found(of_group, of_row) -> None:
    """Densities of other groups come within 0.02 nats of those under the factors that they were drawn with."""
    rng = np.random.default_rng(0)
    found, _ = fitted(simulated(rng, 300, of_group, of_row), [13] * 300)
    truth = Tails(1.0, of_group or 1e9, of_row or 1e9)
    for part in simulated(rng, 2000, of_group, of_row):
        assert part.log_density(found).mean() > part.log_density(truth).mean() - 0.02
    if of_group and not of_row:
        assert found.groups < 15 < found.rows
    if of_row and not of_group:
        assert found.rows < 15 < found.groups


def test_few_groups_leave_the_width_near_what_the_evidence_says() -> None:
    """The same rows, 1.6 times as far off as expected: 200 groups say so, and four are believed less."""
    parts = simulated(np.random.default_rng(0), 200, None, None)

    def of(groups: int) -> Tails:
        some = [Residuals(*(column[: 8 * groups] for column in part)) for part in parts]
        return fitted([part._replace(off=1.6 * part.off) for part in some], [13] * groups)[0]

    assert usual().factor < of(4).factor < of(200).factor == pytest.approx(2.56, rel=0.2)


@pytest.mark.parametrize(("groups", "least"), [(4, 0.84), (8, 0.885), (16, 0.89), (60, 0.89)])
def test_intervals_hold_where_variances_are_known_from_as_many_groups(groups, least) -> None:
    """What G groups say of a variance is off by a chi-squared of G - 1 degrees of freedom over these, by chance.

    Means over 60 such chances, with no row known and with five, are 0.88, 0.90, 0.90 and 0.90 for 4, 8, 16 and 60
    groups. With the prior of many groups, as if variances were known, they would be 0.83, 0.875, 0.89 and 0.90.
    """
    inside = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        learned = rng.chisquare(groups - 1) / (groups - 1)

        def taken(part, learned=learned):
            return part._replace(var=learned * part.var, deviation=part.deviation / learned)

        found, _ = fitted([taken(part) for part in simulated(rng, groups, None, None)], [13] * groups)
        for part in map(taken, simulated(rng, 100, None, None)):
            c, a, *_ = found
            scale = np.sqrt(c * part.var * (a + part.deviation / c) / (a + part.known))
            inside.append(np.mean(abs(part.off) < scale * stats.t.ppf(0.95, found.freedom(part.known))))
    assert least < np.mean(inside) < 0.91


@given(a=st.floats(LOWEST, 500), nu=st.floats(LOWEST, 500), n=st.integers(0, 20))
def test_neutral_tails_leave_the_variance_of_a_prediction_as_it_is(a, nu, n) -> None:
    found = Tails(3.0, a, nu).neutral([n])
    assert stats.t(found.freedom(np.array(n)), 0, np.sqrt(found.factor)).var() == pytest.approx(1.0)


def test_noise_that_was_taken_for_too_small_is_found() -> None:
    """A model learned from the first forty groups, and the same with a quarter of its noise, tried on forty others."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(80), 12), torch.tensor(rng.uniform(-1.7, 1.7, (960, 1)))
    level, slope = rng.normal(size=(2, 80))
    y = torch.tensor(0.7 * level[group] + 0.4 * slope[group] * x[:, 0].numpy() + 0.4 * rng.normal(size=960))
    model = draft(x[:480], y[:480], group[:480], seed=0).refined.model
    others = [np.flatnonzero(group == i) for i in range(40, 80)]
    found = []
    for noise in (1.0, 0.25):
        held = Held(widened(deepcopy(model), 1.0, noise=noise), others, [np.zeros(0, dtype=np.int64)] * 40)
        found.append(tails([held], x, y, torch.ones(960, dtype=torch.float64), 0).noise)
    assert found[0] <= 1.4 and 2.8 <= found[1] <= 4.0


def test_intervals_hold_where_ten_groups_say_how_much_groups_differ() -> None:
    """Lines of their own, four times ten groups of eight rows: what is not known of variances is in the width.

    (Over 24 times the means are 0.894, 0.903 and 0.905, with a deviation of 0.07, 0.04 and 0.02 from time to time.)
    """
    inside: dict[int, list[float]] = {0: [], 1: [], 5: []}
    for seed in range(4):
        rng = np.random.default_rng(seed)

        def draw(groups, rng=rng):
            x, (level, slope) = rng.uniform(-1, 1, (groups, 8)), rng.normal(size=(2, groups, 1))
            return x, 1 + x + level + 0.5 * slope * x + 0.3 * rng.normal(size=(groups, 8))

        x, y = draw(10)
        learned = FewShotRegressor(random_state=0).fit(x.reshape(-1, 1), y.ravel(), tasks=np.repeat(np.arange(10), 8))
        x, y = draw(150)
        for known, found in inside.items():
            names, asked, truth = np.arange(150), x[:, known:].reshape(-1, 1), y[:, known:].ravel()
            model, tasks = learned, None
            if known:
                rows = x[:, :known].reshape(-1, 1), y[:, :known].ravel()
                model, tasks = learned.adapt(*rows, tasks=names.repeat(known)), names.repeat(8 - known)
            low, high = model.predict_interval(asked, tasks=tasks).T
            found.append(float(np.mean((low <= truth) & (truth <= high))))
    for known, reach in ((0, 0.07), (1, 0.05), (5, 0.03)):
        assert abs(np.mean(inside[known]) - 0.9) < reach


@pytest.mark.parametrize("groups", [8, 60, 120])
def test_no_kernel_is_learned_from_the_groups_that_it_is_judged_by(groups, monkeypatch) -> None:
    """However many there are: a kernel that has followed a group predicts it better than a new one."""
    fits, judged = [], []

    def fit(features, x, y, sets, noise, **options):
        fits.append(set(np.concatenate(sets).tolist()))
        return fit_features(features, x, y, sets, noise, **options)

    def judge(held, *others):
        judged.extend(held)
        return report(held, *others)

    monkeypatch.setattr(learning, "fit_features", fit)
    monkeypatch.setattr(learning, "report", judge)
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(groups), 3), torch.tensor(rng.normal(size=(3 * groups, 1)))
    y = torch.tensor(rng.normal(size=groups)[group] + 0.3 * rng.normal(size=3 * groups))
    whole = learning.learn(x, y / y.std(), group, seed=0).model
    assert len(fits) == 1 + learning.folds(groups)
    start = "prior.network.body.phi.own_constant"
    for each in judged:
        rows = set(np.concatenate(each.groups).tolist())
        assert any(not rows & seen for seen in fits[1:])
        assert each.model.state_dict()[start] != whole.state_dict()[start]


def crises(rng, groups, rows=14):
    """Lines of their own with little noise, and one row in twenty that is a tenth of the table's range off."""
    group, x = np.repeat(np.arange(groups), rows), rng.uniform(-1, 1, (groups * rows, 1))
    level, slope = rng.normal(size=(2, groups))
    wide = rng.random(len(group)) < 0.05
    return (
        x,
        level[group] + slope[group] * x[:, 0] + np.where(wide, 1.0, 0.05) * rng.normal(size=len(group)),
        group,
        wide,
    )


@pytest.fixture(scope="module")
def shaken():
    x, y, group, _ = crises(np.random.default_rng(0), 60)
    with pytest.warns(UserWarning, match="left out"):
        return FewShotRegressor(random_state=0).fit(x, y, tasks=group)


def test_densities_survive_rows_far_off(shaken) -> None:
    """Under Gaussian noise of 0.05 a row of the wide kind costs 200 nats, and 7 % of rows make -10 on average."""
    x, y, group, wide = crises(np.random.default_rng(1), 100)
    place = np.tile(np.arange(14), 100)
    known = (place < 10) & ~wide
    model = shaken.adapt(x[known], y[known], tasks=group[known])
    found = model.predict_distribution(x[place >= 10], tasks=group[place >= 10])
    truth = y[place >= 10]
    # the law itself, its line known: a mixture of two Gaussians
    law = np.log(0.95 * stats.norm.pdf(0, 0, 0.05) + 0.05 * stats.norm.pdf(0, 0, 1))
    log_p = found.log_density(torch.tensor(truth)).numpy()
    assert log_p.mean() > law - 1.3 and log_p.min() > -12
    low, high = (end.numpy() for end in found.interval(0.9))
    assert 0.86 < ((low < truth) & (truth < high)).mean() < 0.97


def test_files_and_many_groups_give_the_same_tails(shaken, tmp_path) -> None:
    shaken.save(tmp_path / "shaken.safetensors")
    back = FewShotRegressor.load(tmp_path / "shaken.safetensors")
    x, y = np.array([[-0.5], [0.5], [0.0]]), np.array([0.2, 0.4, 0.5])
    alone, many = shaken.adapt(x, y), back.adapt(x, y, tasks=["a"] * 3)
    at = np.array([[0.3], [-0.9]])
    for level in (0.5, 0.9, 0.99):
        np.testing.assert_allclose(alone.predict_interval(at, level), many.predict_interval(at, level, tasks=["a"] * 2))
    streamed = back.adapt(x[:1], y[:1]).partial_fit(x[1:], y[1:])
    np.testing.assert_allclose(streamed.predict_interval(at), alone.predict_interval(at), rtol=1e-6)


def test_a_group_further_off_than_others_has_wider_intervals(shaken) -> None:
    x = np.linspace(-1, 1, 8)[:, None]
    calm = 0.5 * x[:, 0]
    wild = calm + 0.15 * np.array([1, -1, 1, -1, -1, 1, -1, 1])
    narrow, wide = (np.diff(shaken.adapt(x, y).predict_interval([[0.1]]))[0, 0] for y in (calm, wild))
    assert wide > 1.3 * narrow


def test_a_file_with_impossible_tails_is_refused() -> None:
    model = widened(empty(Sizes(1, 0, 1, 0, 0, 0), rank=2), 1.0, (9.0, LOWEST))
    state = model.state_dict()
    like(state).load_state_dict(state)
    for wrong in (torch.tensor([9.0, 1.0]), torch.tensor([9.0])):
        with pytest.raises(ValueError, match="degrees"):
            like(state | {"prior.kernel.degrees": wrong.double()})


def test_a_row_is_wrong_by_the_deviations_of_rows_with_tails() -> None:
    x, y, group = (
        torch.zeros(3, 1, dtype=torch.float64),
        torch.tensor([0.0, 0.0, 9.0], dtype=torch.float64),
        np.zeros(3, int),
    )
    plain, heavy = (
        empty(Sizes(1, 0, 1, 0, 0, 0), rank=2),
        widened(empty(Sizes(1, 0, 1, 0, 0, 0), rank=2), 1.0, (9.0, 5.0)),
    )
    assert outliers(plain, x, y, group).tolist() == [False, False, True]
    assert not outliers(heavy, x, y, group).any()  # sqrt(5 / 3) times further
