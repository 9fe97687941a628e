"""What is predicted of a group before its first row, where levels of groups go with where their rows lie."""

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

from metavib import FewShotRegressor
from metavib.groups import like
from metavib.groups.features import Sizes
from metavib.groups.prior import LENGTH, across, empty, started, widened
from metavib.groups.start import Above, chosen, fitted
from metavib.tasks import examples, task


def towns(rng, groups, between, rows=6):
    """Outputs fall by 1 with x within a group; levels rise by `between` with the middle of a group's inputs."""
    middle, group = 2 * rng.normal(size=groups), np.repeat(np.arange(groups), rows)
    x = middle[group] + 0.3 * rng.normal(size=len(group))
    y = -(x - middle[group]) + between * middle[group] + 0.3 * rng.normal(size=(groups, 1)).repeat(rows, 1).ravel()
    return x[:, None], y + 0.1 * rng.normal(size=len(group)), group


@pytest.fixture(scope="module")
def rising():
    x, y, group = towns(np.random.default_rng(0), 60, between=1.0)
    return FewShotRegressor(random_state=0).fit(x, y, tasks=group)


def test_a_new_group_is_predicted_by_what_holds_between_groups_and_then_by_what_holds_within(rising) -> None:
    """Without a row the best prediction is the line between groups, 0.96 x; after one row outputs fall with x."""
    assert rising.model_.prior.kernel.start is not None
    x, y, group = towns(np.random.default_rng(1), 200, between=1.0)
    within_reach = np.abs(x[:, 0]) < 3.5
    ideal = x[:, 0] * (4 - 0.09) / (4 + 0.09)  # the slope of y on x over all groups: cov(x, y) / var(x)
    error, best = (np.sqrt(np.mean((m - y)[within_reach] ** 2)) for m in (rising.predict(x), ideal))
    assert error < 1.1 * best
    sd = rising.predict(x, return_std=True)[1][within_reach]
    assert 0.7 * best < np.median(sd) < 1.8 * best  # the same for all rows, and towns at the rim are off further
    new = rising.adapt([[1.0]], [1.3])
    assert np.diff(new.predict([[0.8], [1.2]])) == pytest.approx(-0.4, abs=0.1)


def test_levels_that_do_not_go_with_inputs_leave_the_shared_function() -> None:
    x, y, group = towns(np.random.default_rng(0), 40, between=-1.0)  # the line between groups is that within
    model = FewShotRegressor(random_state=0).fit(x, y, tasks=group).model_
    assert model.prior.kernel.start is None and not any("anchors" in name for name in model.state_dict())


def test_files_and_many_groups_have_the_same_start(rising, tmp_path) -> None:
    rising.save(tmp_path / "rising.safetensors")
    back = FewShotRegressor.load(tmp_path / "rising.safetensors")
    at = np.array([[-1.0], [0.5], [2.0]])
    np.testing.assert_array_equal(back.predict_interval(at), rising.predict_interval(at))
    many = back.adapt([[1.0], [1.1]], [1.3, 1.2], tasks=["a", "a"])
    alone = rising.adapt([[1.0], [1.1]], [1.3, 1.2])
    np.testing.assert_allclose(many.predict_interval(at, tasks=["new"] * 3), rising.predict_interval(at), rtol=1e-8)
    np.testing.assert_allclose(many.predict_interval(at, tasks=["a"] * 3), alone.predict_interval(at), rtol=1e-8)


def test_it_is_the_kernel_ridge_regression_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x, r, at = rng.normal(size=(30, 3)), rng.normal(size=30), rng.normal(size=(5, 3))
    ridge = KernelRidge(alpha=2.0, kernel="rbf", gamma=1 / (2 * 3 * LENGTH**2)).fit(x, r)
    rows = Above(torch.tensor(x), torch.tensor(r), *torch.full((3, 30), 7.0, dtype=torch.float64))
    np.testing.assert_allclose(fitted(rows, 2.0, 1.0).at(torch.tensor(at)).numpy(), ridge.predict(at))
    assert torch.equal(across(rows.x, rows.x).diagonal().round(decimals=12), torch.ones(30, dtype=torch.float64))


@pytest.mark.parametrize("level", [True, False])
def test_only_what_other_groups_confirm_is_worth_it(level) -> None:
    rng = np.random.default_rng(0)

    def part() -> Above:
        x = rng.normal(size=(60, 2))
        r = np.sin(x[:, 0]) * level + 0.5 * rng.normal(size=60)
        return Above(torch.tensor(x), torch.tensor(r), *torch.ones(2, 60, dtype=torch.float64), torch.tensor(x[:, 1]))

    _, left, factor, share = chosen([part() for _ in range(4)])
    assert share == 1  # the shared function is right
    assert left < 0.75 if level else left > 0.97
    assert factor == pytest.approx(0.25, rel=0.3)  # the noise is all that is left


def test_a_shared_function_that_errs_between_groups_is_given_up_before_the_first_row() -> None:
    """Outputs are sin(x) and noise; g is far from it, in another way in each part: only without it is that found."""
    rng = np.random.default_rng(0)

    def part() -> Above:
        x, g = rng.normal(size=(60, 1)), 3 * rng.normal() + 2 * rng.normal(size=60)
        y = np.sin(x[:, 0]) + 0.5 * rng.normal(size=60)
        return Above(torch.tensor(x), torch.tensor(y - g), *torch.ones(2, 60, dtype=torch.float64), torch.tensor(g))

    best = chosen([part() for _ in range(4)])
    assert best.share == 0 and best.factor == pytest.approx(0.25, rel=0.3)


def test_in_place_of_the_shared_function_it_is_the_regression_of_all_rows() -> None:
    """The mean without a row is scikit-learn's kernel ridge regression of the outputs, whatever the shared function."""
    rng = np.random.default_rng(0)
    x, y, g, at = rng.normal(size=(30, 1)), rng.normal(size=30), rng.normal(size=30), rng.normal(size=(5, 1))
    ones = torch.ones(2, 30, dtype=torch.float64)
    start = fitted(Above(torch.tensor(x), torch.tensor(y - g), *ones, torch.tensor(g)), 2.0, 0.5, share=0.0)
    model = started(empty(Sizes(1, 0, 1, 0, 0, 0), rank=2), *start)
    model.prior.network.body.w.copy_(torch.tensor([5.0, -7.0]))
    model = widened(model, 1.0, (9.0, 9.0))
    none = examples(torch.zeros(0, 1, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    asked = examples(torch.tensor(at), torch.zeros(5, dtype=torch.float64))
    ridge = KernelRidge(alpha=2.0, kernel="rbf", gamma=1 / (2 * LENGTH**2)).fit(x, y)
    np.testing.assert_allclose(model(task(none, asked)).mean.squeeze(-1).numpy(), ridge.predict(at))


def test_a_file_with_a_start_of_other_columns_is_refused() -> None:
    anchors, weights = torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    model = widened(started(empty(Sizes(1, 0, 1, 0, 0, 0), rank=2), anchors, weights, 0.5), 1.0, (9.0, 9.0))
    state, body = model.state_dict(), "prior.network.body."
    like(state).load_state_dict(state)
    for name, wrong in ((f"{body}anchors", torch.zeros(4, 2)), (f"{body}weights", torch.zeros(3))):
        with pytest.raises(ValueError, match="before the first row"):
            like(state | {name: wrong.double()})
