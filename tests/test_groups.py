"""A shared function and one of each group: the algebra against dense formulas, the limits against other libraries."""

import warnings
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from metavib import FewShotRegressor, Learner
from metavib.groups import evidence, hierarchical, learn, like
from metavib.groups.features import CONSTANT, FURTHEST, KNOTS, Features, Layout, Sizes, layout, spread_over
from metavib.groups.learning import choose, edges, fit_features, refine
from metavib.groups.outliers import learn_from_right_rows
from metavib.groups.prior import empty
from metavib.groups.report import LIFTS, Held, lift
from metavib.groups.rows import blocks, members
from metavib.tasks.scaling import Edge, as_they_are, edged, rooted
from metavib.tasks.task import examples


def random_groups(seed=0, sizes=(3, 1, 4, 2), M=5, q=3):
    """Blocks of groups with random features, and the dense covariance of all their rows."""
    rng = np.random.default_rng(seed)
    phi, psi = rng.normal(size=(sum(sizes), M)), rng.normal(size=(sum(sizes), q))
    y, s = rng.normal(size=sum(sizes)), rng.uniform(0.2, 1.0, sum(sizes))
    group = np.repeat(np.arange(len(sizes)), sizes)
    made = []
    for b in blocks(members(group)):
        parts = [b.take(torch.tensor(values)) for values in (phi, psi, y)]
        made.append(evidence.Group(*parts, torch.where(b.mask > 0, b.take(torch.tensor(s)), 1.0)))
    return made, phi, psi, y, s, group


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sampled_from([1, 7, 20, inf]))
def test_blocks_hold_every_row_of_every_group_once(sizes, most) -> None:
    """And no more rows than they may, unless it is one group that has more."""
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    seen = []
    for b in blocks(members(group), rows=most):
        assert b.mask.numel() <= most or len(b.mask) == 1
        for index, mask in zip(b.places, b.mask, strict=True):
            rows = index[mask > 0].numpy()
            assert len(set(group[rows])) == 1 and len(rows) == sizes[group[rows[0]]]
            seen += rows.tolist()
    assert sorted(seen) == list(range(len(group)))


@pytest.mark.parametrize("sizes", [(3, 1, 4, 2), (1,), (6,), (1, 1, 1)])
def test_the_evidence_is_the_density_of_all_rows_together(sizes) -> None:
    made, phi, psi, y, s, group = random_groups(sizes=sizes)
    same = group[:, None] == group[None]
    cov = phi @ phi.T + same * (psi @ psi.T) + np.diag(s)
    expected = stats.multivariate_normal(np.zeros(len(y)), cov).logpdf(y)
    assert float(evidence.log_evidence(made, len(y))) == pytest.approx(expected, rel=1e-10)


def test_the_gradient_of_the_evidence_is_that_of_differences() -> None:
    made, *_, y, _, _ = random_groups()
    tensors = [t.clone().requires_grad_() for block in made for t in block]

    def of(*tensors):
        groups = [evidence.Group(*tensors[i : i + 4]) for i in range(0, len(tensors), 4)]
        return evidence.log_evidence(groups, len(y))

    assert torch.autograd.gradcheck(of, tensors, atol=1e-6)


def test_what_groups_say_adds_up_and_is_taken_back() -> None:
    made, *_ = random_groups(sizes=(3, 9))
    a, b = (evidence.said(block) for block in made)
    for mine, back in zip(a, (a + b) - b, strict=True):
        assert_close(mine, back)
    total = evidence.shared(a + b)
    assert_close(total.L @ total.L.mT, (a + b).A + torch.eye(5, dtype=torch.float64))


def dense(features, x, y, group, noise, *, root, at, support, outputs):
    """A new group by the textbook: condition the joint Gaussian of all rows, old and new, on what is known."""
    everything = np.concatenate([x, support, at])
    number = np.concatenate([group, np.full(len(support) + len(at), -1)])
    with torch.no_grad():
        phi, psi = features.shared(torch.tensor(everything)).numpy(), features.own(torch.tensor(everything)).numpy()
    cov = phi @ phi.T + (number[:, None] == number[None]) * (psi @ root @ root.T @ psi.T)
    n = len(x) + len(support)
    gain = np.linalg.solve(cov[:n, :n] + noise * np.eye(n), cov[:n, n:]).T
    mean = gain @ np.concatenate([y, outputs])
    return mean, np.diag(cov[n:, n:] - gain @ cov[:n, n:]) + noise


def adapted(model, x, y, at):
    found = Learner(model).adapt(examples(torch.tensor(x), torch.tensor(y))).predict(torch.tensor(at))
    return found.mean.numpy(), found.variance.numpy()


@pytest.mark.parametrize("known", [0, 1, 7])
def test_the_prior_of_a_new_group_is_the_hierarchical_process_given_the_others(known) -> None:
    """Through features, root and memory, or by one dense conditioning on all rows: the same predictions."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(6), 5), rng.normal(size=(30, 2))
    y = np.sin(x[:, 0]) + rng.normal(size=6)[group] + 0.1 * rng.normal(size=30)
    features = spread_over(torch.tensor(x), layout(x, y, group), rng).requires_grad_(False)
    at, support, outputs = (rng.uniform(-1, 1, (n, 2)) for n in (4, known, known))
    outputs = outputs[:, 0]
    found = refine(features, torch.tensor(x), torch.tensor(y), members(group), 0.2, rng, strength=np.inf)
    every = np.eye(features.widths[1])
    expected = dense(features, x, y, group, 0.2, root=every, at=at, support=support, outputs=outputs)
    for mine, its in zip(adapted(found.model, support, outputs, at), expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=5e-3, atol=5e-3)  # directions that hardly matter are left out


def test_a_stationary_kernel_is_that_of_gpytorch() -> None:
    """At rows among the knots: a Matern process, shared and own, as GPyTorch writes it."""
    with warnings.catch_warnings():  # GPyTorch still scripts functions as it is imported
        warnings.simplefilter("ignore", DeprecationWarning)
        from gpytorch.kernels import MaternKernel

    rng = np.random.default_rng(0)
    values = np.linspace(-1.5, 1.5, KNOTS)
    x = torch.tensor(np.tile(values, 3)[:, None])
    features = spread_over(x, Layout([0], [0]), rng).requires_grad_(False)
    features.lines.fill_(-40.0)
    features.own_lines.fill_(-40.0)
    features.slope.fill_(0.0)
    features.own_constant.fill_(-40.0)
    at = torch.tensor(values[:, None])
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = float(features.length.exp())
    with torch.no_grad():
        K = kernel(at).to_dense()
        phi, psi = features.shared(at)[..., 1:], features.own(at)
        assert_close(phi @ phi.mT, features.bends.exp() * K, rtol=0, atol=1e-6)
        assert_close(psi @ psi.mT, features.own_bends.exp() * K, rtol=0, atol=1e-6)


def test_lines_with_a_full_covariance_are_the_mixed_model_of_statsmodels() -> None:
    """Random intercepts and slopes: the predictor of a new group is statsmodels' best linear unbiased one."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    rng = np.random.default_rng(1)
    group, x = np.repeat(np.arange(60), 6), rng.normal(size=(360, 1))
    cov = np.array([[0.5, 0.2], [0.2, 0.3]])
    own = rng.multivariate_normal(np.zeros(2), cov, 60)[group]
    y = 0.3 + 0.8 * x[:, 0] + own[:, 0] + own[:, 1] * x[:, 0] + 0.3 * rng.normal(size=360)
    design = np.concatenate([np.ones((360, 1)), x], 1)
    fit = MixedLM(y, design, group, exog_re=design).fit(reml=True)

    features = Features(Sizes(1, 0, 1, 0, 0, 0)).requires_grad_(False)
    features.varying.copy_(torch.tensor([0]))
    features.lines.fill_(np.log(100.0))  # flat, as fixed effects are
    features.own_constant.fill_(0.0)
    features.own_lines.fill_(0.0)
    root = torch.zeros(3, 2, dtype=torch.float64)
    root[:2] = torch.linalg.cholesky(torch.tensor(np.asarray(fit.cov_re)))
    given_all = []
    for b in blocks(members(group)):
        xs = b.take(torch.tensor(x))
        s = torch.full(b.mask.shape, fit.scale, dtype=torch.float64)
        given_all.append(
            evidence.said(evidence.Group(features.shared(xs), features.own(xs) @ root, b.take(torch.tensor(y)), s))
        )
    assert len(given_all) == 1
    shared = evidence.shared(given_all[0])
    scales = torch.tensor([2.0, 10.0])
    np.testing.assert_allclose((shared.w * scales).numpy(), np.asarray(fit.fe_params), rtol=2e-2, atol=2e-3)

    model = hierarchical(features, shared, root, float(fit.scale), torch.tensor(x))
    support, outputs, at = rng.normal(size=(3, 1)), rng.normal(size=3), rng.normal(size=(5, 1))
    Z, Zs = (np.concatenate([np.ones((len(v), 1)), v], 1) for v in (support, at))
    # BLUP: X beta + Z_* G Z' (Z G Z' + sigma^2 I)^-1 (y - X beta)
    G, beta = np.asarray(fit.cov_re), np.asarray(fit.fe_params)
    effect = G @ Z.T @ np.linalg.solve(Z @ G @ Z.T + fit.scale * np.eye(3), outputs - Z @ beta)
    np.testing.assert_allclose(adapted(model, support, outputs, at)[0], Zs @ (beta + effect), rtol=0.05, atol=0.02)


@pytest.fixture(scope="module")
def learned():
    """Groups of a known law: a shared curve, random levels and slopes, noise."""
    x, y, group = curves(np.random.default_rng(3), groups=60)
    centre, scale = y.mean(), y.std()
    found = learn(torch.tensor(x), torch.tensor((y - centre) / scale), group, seed=0)
    return found, centre, scale


def curves(rng, groups, rows=8):
    group, x = np.repeat(np.arange(groups), rows), rng.uniform(-2, 2, (groups * rows, 1))
    level, slope = rng.normal(size=(2, groups))
    y = 2 * np.sin(2 * x[:, 0]) + level[group] + 0.5 * slope[group] * x[:, 0] + 0.2 * rng.normal(size=len(group))
    return x, y, group


def ideal(x, y, at):
    """The exact posterior under the law of `curves`."""
    k = lambda a, b: 1 + 0.25 * a @ b.T  # noqa: E731
    gain = np.linalg.solve(k(x, x) + 0.04 * np.eye(len(x)), k(x, at)).T
    mean = 2 * np.sin(2 * at[:, 0]) + gain @ (y - 2 * np.sin(2 * x[:, 0]))
    return mean, np.diag(k(at, at) - gain @ k(x, at)) + 0.04


@pytest.mark.parametrize("known", [0, 1, 4])
def test_what_is_learned_predicts_nearly_as_well_as_the_law_itself(learned, known) -> None:
    (model, _), centre, scale = learned
    x, y, group = curves(np.random.default_rng(4), groups=150)
    errors, best, inside = [], [], []
    learner = Learner(model)
    for rows in members(group):
        s, q = rows[:known], rows[known:]
        data = examples(torch.tensor(x[s]), torch.tensor((y[s] - centre) / scale))
        found = learner.adapt(data).predict(torch.tensor(x[q]))
        mean, sd = found.mean.numpy() * scale + centre, found.variance.sqrt().numpy() * scale
        errors.append(mean - y[q])
        best.append(ideal(x[s], y[s], x[q])[0] - y[q])
        inside.append(np.abs(mean - y[q]) < 1.645 * sd)
    rmse, optimal = (np.sqrt(np.mean(np.concatenate(e) ** 2)) for e in (errors, best))
    assert rmse < 1.1 * optimal
    assert 0.84 < np.concatenate(inside).mean() < 0.96


def test_the_report_of_groups_held_out_tells_the_truth(learned) -> None:
    (_, report), _, scale = learned
    rows = {row.known: row for row in report.rows}
    assert rows[0].rmse == pytest.approx(rows[0].shared) and rows[0].rmse == pytest.approx(1.2 / scale, rel=0.25)
    assert rows[5].rmse < 0.4 * rows[5].shared and rows[5].rmse < 0.7 * rows[5].alone
    assert all(0.8 < row.coverage <= 1.0 for row in rows.values())


@pytest.mark.parametrize("kind", ["constant column", "columns of groups", "few values", "two groups", "many columns"])
def test_tables_of_every_shape_are_learned_from(kind) -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(2 if kind == "two groups" else 7), 5)
    x = rng.normal(size=(len(group), 25 if kind == "many columns" else 2))
    if kind == "constant column":
        x[:, 1] = 0.0
    if kind == "columns of groups":
        x = x[group]
    if kind == "few values":
        x = np.sign(x)
    y = rng.normal(size=len(group))
    model, report = learn(torch.tensor(x), torch.tensor(y), group, seed=0)
    mean, variance = adapted(model, x[:3], y[:3], x)
    assert np.isfinite(mean).all() and (variance > 0).all() and np.abs(mean).max() < 10
    assert [row.known for row in report.rows][:1] == ([0] if kind != "two groups" else [])


def test_the_kernels_leave_out_a_column_that_says_nothing() -> None:
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(20), 6), rng.normal(size=(120, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=120)
    t, z = torch.tensor(x), torch.tensor(y)
    features = spread_over(t, layout(x, y, group), rng)
    noise = fit_features(features, t, z, members(group), 0.1).noise
    assert noise < 0.05 and float(features.bends[0] - features.bends[1]) > 1.5


# Logarithms


def lognormal_groups(rng, groups=40, rows=8):
    """Outputs that are log-normal in every group: levels of their own, a line that all share."""
    group, x = np.repeat(np.arange(groups), rows), rng.normal(size=(groups * rows, 1))
    return (
        x,
        np.exp(1 + 0.5 * x[:, 0] + 0.8 * rng.normal(size=groups)[group] + 0.3 * rng.normal(size=len(group))),
        group,
    )


@pytest.fixture(scope="module")
def positive():
    x, y, group = lognormal_groups(np.random.default_rng(0))
    return FewShotRegressor(random_state=0).fit(x, y, tasks=group)


@pytest.mark.parametrize("known", [0, 1, 4])
def test_log_normal_groups_are_found_and_have_the_density_of_their_law(positive, known) -> None:
    """The evidence is for the logarithm, from zero; densities, quantiles and means are those of SciPy's log-normal."""
    assert "Logarithms are taken of the outputs." in str(positive.report_)
    units, y_scaling = positive.model_.likelihood.units, positive.scaling_.y
    assert float(y_scaling.restore(units.edge)) == pytest.approx(0.0, abs=1e-9)
    x, y, group = lognormal_groups(np.random.default_rng(1), groups=100)
    gaps, inside = [], []
    for rows in members(group):
        s, q = rows[:known], rows[known:]
        found = (positive.adapt(x[s], y[s]) if known else positive).predict_distribution(x[q])
        # the exact posterior under the law itself
        K = 0.64 * np.ones((known, known)) + 0.09 * np.eye(known)
        gain = np.linalg.solve(K, np.full(known, 0.64)) if known else np.zeros(0)
        mean = 1 + 0.5 * x[q, 0] + gain @ (np.log(y[s]) - 1 - 0.5 * x[s, 0])
        law = stats.lognorm(np.sqrt(0.64 - 0.64 * gain.sum() + 0.09), scale=np.exp(mean))
        gaps.append(law.logpdf(y[q]) - found.log_density(torch.tensor(y[q])).numpy())
        low, high = found.interval(0.9)
        assert (low > 0).all() and (found.mean > 0.99 * found.quantile(0.5)).all()
        inside.append((low.numpy() < y[q]) & (y[q] < high.numpy()))
    assert abs(np.concatenate(gaps).mean()) < 0.06
    assert 0.83 < np.concatenate(inside).mean() < 0.95


def test_predictions_of_positive_outputs_are_scipys_log_t(positive) -> None:
    """From the marginals of the latent function to the table's own units, Jacobian included."""
    found = positive.adapt([[0.3]], [5.0]).predict_distribution([[0.0], [1.0]])
    mean, var = (v.numpy() for v in found.likelihood.normal.predict_scale(found.q))
    edge, centre, spread, _ = (float(v) for v in found.likelihood.units)
    scale = float(positive.scaling_.y.scale)
    law = stats.lognorm(spread * np.sqrt(var), scale=scale * np.exp(centre + spread * mean))
    at = np.array([3.0, 9.0])
    logs = stats.t(found.q.df.numpy()[:, 0], centre + np.log(scale) + spread * mean, spread * np.sqrt(var))
    np.testing.assert_allclose(found.log_density(torch.tensor(at)), logs.logpdf(np.log(at)) - np.log(at), rtol=1e-8)
    np.testing.assert_allclose(found.cdf(torch.tensor(at)), logs.cdf(np.log(at)), rtol=1e-8)
    np.testing.assert_allclose(found.quantile(0.05), np.exp(logs.ppf(0.05)), rtol=1e-8)
    lift = float(found.likelihood.lift)
    around = stats.lognorm(spread * np.sqrt(found.likelihood.noise().item()), scale=law.median())  # f at its median
    np.testing.assert_allclose(found.mean, law.mean() ** lift * around.mean() ** (1 - lift), rtol=1e-6)
    np.testing.assert_allclose(found.variance.sqrt(), law.std(), rtol=1e-3)
    np.testing.assert_allclose(found.mean, positive.adapt([[0.3]], [5.0]).predict([[0.0], [1.0]]))


# Square roots


def growing_groups(rng, groups=40, rows=8):
    """Squares of what is Gaussian in every group: levels of their own, a line that all share."""
    group, x = np.repeat(np.arange(groups), rows), rng.normal(size=(groups * rows, 1))
    root = 5 + x[:, 0] + 0.8 * rng.normal(size=groups)[group] + 0.4 * rng.normal(size=len(group))
    return x, np.maximum(root, 0) ** 2, group


@pytest.fixture(scope="module")
def growing():
    x, y, group = growing_groups(np.random.default_rng(0))
    return FewShotRegressor(random_state=0).fit(x, y, tasks=group)


@pytest.mark.parametrize("known", [0, 1, 4])
def test_squares_of_gaussian_groups_are_found_and_have_the_density_of_their_law(growing, known) -> None:
    """The evidence is for the square root, from zero; densities and means are those of the law, exactly conditioned."""
    assert growing.report_.logarithms == "Square roots are taken of the outputs."
    assert float(growing.scaling_.y.restore(growing.model_.likelihood.units.edge)) == pytest.approx(0.0, abs=1e-9)
    x, y, group = growing_groups(np.random.default_rng(1), groups=100)
    gaps, inside, off = [], [], []
    for rows in members(group):
        s, q = rows[:known], rows[known:]
        found = (growing.adapt(x[s], y[s]) if known else growing).predict_distribution(x[q])
        K = 0.64 * np.ones((known, known)) + 0.16 * np.eye(known)
        gain = np.linalg.solve(K, np.full(known, 0.64)) if known else np.zeros(0)
        mean, var = 5 + x[q, 0] + gain @ (np.sqrt(y[s]) - 5 - x[s, 0]), 0.64 - 0.64 * gain.sum() + 0.16
        law = stats.norm(mean, np.sqrt(var)).logpdf(np.sqrt(y[q])) - np.log(2 * np.sqrt(y[q]))
        gaps.append(law - found.log_density(torch.tensor(y[q])).numpy())
        off.append((found.mean.numpy() - mean**2 - var) / y.std())
        low, high = found.interval(0.9)
        assert (low >= 0).all()
        inside.append((low.numpy() < y[q]) & (y[q] < high.numpy()))
    assert abs(np.concatenate(gaps).mean()) < 0.06 and np.abs(np.concatenate(off)).mean() < 0.1
    assert 0.83 < np.concatenate(inside).mean() < 0.95


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=20, unique=True), st.floats(0, 10))
def test_square_roots_come_back_and_rise_with_outputs(values, below) -> None:
    y = torch.tensor(sorted(values), dtype=torch.float64)
    link = rooted(y, -below)
    z = link.standardise(y)
    torch.testing.assert_close(link.restore(z), y, rtol=1e-6, atol=1e-6)
    assert (z.diff() >= 0).all() and link.log_slope(y).isfinite().all()
    assert link.restore(torch.tensor(-1e9).double()) == -below


@pytest.mark.parametrize("name", ["positive", "growing"])
def test_files_keep_what_is_taken_of_the_outputs(name, request, tmp_path) -> None:
    learned = request.getfixturevalue(name)
    learned.save(tmp_path / "learned.safetensors")
    back = FewShotRegressor.load(tmp_path / "learned.safetensors")
    assert back.report_ == learned.report_
    for mine, its in zip(
        learned.predict([[0.5]], return_std=True), back.predict([[0.5]], return_std=True), strict=True
    ):
        np.testing.assert_array_equal(mine, its)


def test_gaussian_groups_stay_as_they_are_and_a_wrong_row_is_no_evidence_for_logarithms(learned) -> None:
    assert not learned[0].report.logarithms
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(20), 6), torch.tensor(rng.normal(size=(120, 1)))
    y = torch.tensor(rng.normal(size=20)[group] + 0.1 * rng.normal(size=120))
    y[7] = 50.0
    (_, report), wrong = learn_from_right_rows(x, y, group, seed=0, units=as_they_are())
    assert np.flatnonzero(wrong).tolist() == [7] and not report.logarithms


@pytest.mark.parametrize("side", [1, -1])
def test_columns_enter_by_their_logarithms_where_that_is_the_law(side) -> None:
    """Sizes over four orders of magnitude, whose ratios matter: also for rows beyond all that were seen."""
    rng = np.random.default_rng(0)
    group, size = np.repeat(np.arange(20), 6), np.exp(1.5 * rng.normal(size=120))
    y = np.log(size) + 0.3 * rng.normal(size=20)[group] + 0.1 * rng.normal(size=120)
    x = torch.tensor(side * (size - size.mean()) / size.std())[:, None]
    found = choose(x, torch.tensor(y / y.std()), group, (), np.random.default_rng(0))
    assert found.features.sizes.warped == 1
    assert found.features.shared(torch.tensor([[-1e6], [1e6]], dtype=torch.float64)).isfinite().all()


@given(st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=20, unique=True), st.sampled_from([-2.0, 0.0]))
def test_all_outputs_lie_on_one_side_of_every_edge(values, zero) -> None:
    y = torch.tensor(values, dtype=torch.float64).abs()
    if float(y.max() - y.min()) < 1e-6:
        return
    for edge in edges(y, zero):
        units = edged(y, edge)
        assert (units.distance(y) > 0).all() and torch.isfinite(units.log_slope(y)).all()
        assert_close(units.restore(units.standardise(y)), y, rtol=1e-6, atol=1e-6 * float(y.abs().max()))
        assert (torch.diff(units.standardise(y.sort().values)) >= 0).all()


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=5), st.booleans())
def test_inputs_count_as_no_further_off_than_some_deviations_beyond_all_rows(far, by_logarithm) -> None:
    """Within reach features are those of the columns themselves; beyond it they are those of where it ends."""
    rows = torch.linspace(-1.7, 1.7, 40, dtype=torch.float64)[:, None]
    edges = {0: edged(rows[:, 0], -2.0)} if by_logarithm else {}
    features = spread_over(rows, Layout([0], [0]), np.random.default_rng(0), edges).requires_grad_(False)
    free = Features(features.sizes._replace(bounded=0)).requires_grad_(False)
    free.load_state_dict({name: value for name, value in features.state_dict().items() if name != "ends"})
    x = torch.tensor(far, dtype=torch.float64)[:, None]
    lowest, highest = free.columns(rows[[0, -1]]).flatten().tolist()
    expected = np.clip(free.columns(x).numpy(), lowest - FURTHEST, highest + FURTHEST)
    np.testing.assert_allclose(features.columns(x).numpy(), expected)
    assert_close(features.shared(rows), free.shared(rows))
    narrower = features.learned_from(rows[10:20])
    entered = free.columns(rows[10:20])
    assert narrower.columns(x).max() <= entered.max() + FURTHEST


def test_an_input_that_slipped_is_predicted_as_one_at_the_end_of_reach(learned) -> None:
    model = learned[0].model
    x, y = np.array([[0.0], [0.5]]), np.array([0.3, -0.2])
    end = model.prior.network.body.phi.ends[1].item() + FURTHEST
    mean, var = adapted(model, x, y, np.array([[end], [1e4], [end - 1]]))
    assert mean[0] == mean[1] != mean[2] and var[0] == var[1] != var[2]


def test_files_from_before_inputs_had_ends_are_read_and_wrong_ends_are_refused(learned) -> None:
    state = learned[0].model.state_dict()
    name = "prior.network.body.phi.ends"
    old = {key: value for key, value in state.items() if key != name}
    like(old).load_state_dict(old)
    with pytest.raises(ValueError, match="ends of inputs"):
        like(state | {name: torch.zeros(2, 9).double()})


def test_files_from_before_logarithms_are_read(learned) -> None:
    state = learned[0].model.state_dict()
    assert not any("warped" in name or "edge" in name for name in state)
    like(state).load_state_dict(state)


def lift_of(y: np.ndarray) -> float:
    r"""Where a model of $\log y \sim N(f, 1)$, $f \sim N(0, 1)$, should predict by groups of one row each."""
    model = empty(Sizes(1, 0, 1, 0, 0, 0), 1, Edge(*torch.tensor([0.0, 0.0, 1.0, 80.0], dtype=torch.float64)))
    model.prior.network.body.root[0] = 1 / CONSTANT
    x, outputs, sets = torch.zeros(len(y), 1, dtype=torch.float64), torch.tensor(y), list(np.arange(len(y))[:, None])
    held = [Held(model, sets[k::4], []) for k in range(4)]
    return lift(held, x, outputs, torch.ones_like(outputs), as_they_are())


@pytest.mark.parametrize("place", LIFTS)
def test_a_prediction_lies_where_groups_held_out_have_the_smallest_errors(place) -> None:
    """Outputs at e^(1/2), the mean with the function at its median, at e, the mean, or halfway: that is found."""
    assert lift_of(np.full(24, np.exp(0.5 + 0.5 * place))) == place


def test_few_groups_average_over_functions_only_for_a_large_gain() -> None:
    """Outputs at the quantiles of the law itself, whose mean is best by 1 %: 800 groups say so, and 8 are too few."""
    few, many = (np.exp(stats.norm.ppf((np.arange(n) + 0.5) / n, 0, np.sqrt(2))) for n in (8, 800))
    assert lift_of(few) == 0 and lift_of(many) == 1
