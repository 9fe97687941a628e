"""Metrics against loops and torchmetrics, and summaries that say which spread they show."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metavib.training import metrics
from metavib.training.temperature import fit_temperature


def predictions(seed: int, tasks: int = 3, v: int = 7, N: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(tasks, v, N, generator=g, dtype=torch.float64)).softmax(-1)
    y = torch.randint(N, (tasks, v), generator=g)
    mask = torch.rand(tasks, v, generator=g) < 0.7
    mask[:, 0] = True
    return p, y, mask


@given(st.integers(0, 10_000))
def test_metrics_per_episode_equal_loops(seed: int) -> None:
    p, y, mask = predictions(seed)
    for t in range(len(y)):
        rows = [(p[t, j].numpy(), int(y[t, j])) for j in range(y.shape[1]) if mask[t, j]]
        hits = np.mean([row.argmax() == label for row, label in rows])
        nlls = np.mean([-np.log(row[label]) for row, label in rows])
        briers = np.mean([sum((row[n] - (n == label)) ** 2 for n in range(len(row))) for row, label in rows])
        assert float(metrics.accuracy(p, y, mask)[t]) == pytest.approx(hits)
        assert float(metrics.nll(p, y, mask)[t]) == pytest.approx(nlls)
        assert float(metrics.brier(p, y, mask)[t]) == pytest.approx(briers)


@pytest.mark.parametrize("seed", range(4))
def test_ece_equals_torchmetrics(seed: int) -> None:
    from torchmetrics.functional.classification import multiclass_calibration_error

    p, y, _ = predictions(seed, tasks=20, v=25, N=5)
    theirs = multiclass_calibration_error(p.flatten(0, 1), y.flatten(), num_classes=5, n_bins=15, norm="l1")
    assert metrics.ece(p, y) == pytest.approx(float(theirs), abs=1e-6)  # theirs is float32


def test_ece_with_a_mask_is_that_of_the_real_points() -> None:
    p, y, mask = predictions(3)
    assert metrics.ece(p, y, mask) == pytest.approx(metrics.ece(p[mask][None], y[mask][None]), abs=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_reliability_equals_a_loop_over_points(seed: int, bins: int) -> None:
    p, y, _ = predictions(seed)
    curve = metrics.reliability(p, y, bins=bins)
    held: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for row, label in zip(p.reshape(-1, 4).numpy(), y.flatten().tolist(), strict=True):
        index = next(b for b in range(bins) if row.max() <= (b + 1) / bins or b == bins - 1)
        held[index].append((row.max(), row.argmax() == label))
    assert curve.points.tolist() == [len(h) for h in held]
    for b, h in enumerate(held):
        if h:
            assert float(curve.confidence[b]) == pytest.approx(np.mean([c for c, _ in h]))
            assert float(curve.accuracy[b]) == pytest.approx(np.mean([a for _, a in h]))
        else:
            assert curve.accuracy[b].isnan() and curve.confidence[b].isnan()


def test_certain_and_right_predictions_are_calibrated() -> None:
    y = torch.arange(4)[None]
    p = torch.eye(4)[None]
    assert metrics.ece(p, y) == 0.0
    assert metrics.ece(p, (y + 1) % 4) == 1.0


def test_zero_probabilities_give_finite_numbers() -> None:
    p, y = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[1]])
    assert metrics.nll(p, y).isfinite().all()
    assert fit_temperature(p, y) == pytest.approx(100.0, rel=1e-4)


def test_interval_is_196_standard_errors() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 9.0])
    mean, half = metrics.interval(values)
    assert mean == pytest.approx(4.0)
    assert half == pytest.approx(1.96 * np.std(values.numpy(), ddof=1) / 2)
    assert metrics.interval(torch.tensor([3.0])) == (3.0, float("inf"))
    with pytest.raises(ValueError, match="at least one"):
        metrics.interval(torch.empty(0))


def test_spreads_over_episodes_and_over_trainings_cannot_be_confused() -> None:
    """No field name is shared but the mean, and each prints what it is."""
    values = torch.tensor([0.5, 0.7, 0.9])
    episodes, trainings = metrics.over_episodes(values), metrics.over_trainings(values)
    assert set(episodes._fields) & set(trainings._fields) == {"mean"}
    assert trainings.training_sd == pytest.approx(0.2)
    assert episodes.episode_ci95 == pytest.approx(1.96 * 0.2 / np.sqrt(3))
    assert "95% CI over 3 episodes" in str(episodes) and "SD" not in str(episodes)
    assert "SD over 3 trainings" in str(trainings) and "CI" not in str(trainings)
    assert np.isnan(metrics.over_trainings(torch.tensor([1.0])).training_sd)


@given(st.integers(0, 10_000))
def test_regression_metrics_equal_loops(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    mean, y, log_p = (torch.randn(3, 6, generator=g, dtype=torch.float64) for _ in range(3))
    pit = torch.rand(3, 6, generator=g, dtype=torch.float64)
    mask = torch.rand(3, 6, generator=g) < 0.7
    mask[:, 0] = True
    rows = [[j for j in range(6) if mask[t, j]] for t in range(3)]
    mse = [np.mean([(mean[t, j] - y[t, j]).item() ** 2 for j in row]) for t, row in enumerate(rows)]
    lpd = [np.mean([log_p[t, j].item() for j in row]) for t, row in enumerate(rows)]
    c90 = [np.mean([0.05 <= pit[t, j].item() <= 0.95 for j in row]) for t, row in enumerate(rows)]
    assert metrics.mse(mean, y, mask).tolist() == pytest.approx(mse)
    assert metrics.log_density(log_p, mask).tolist() == pytest.approx(lpd)
    assert metrics.coverage(pit, 0.9, mask).tolist() == pytest.approx(c90)


def test_coverage_of_calibrated_predictions_is_the_level() -> None:
    pit = torch.rand(100, 1000, generator=torch.Generator().manual_seed(0))
    for level in (0.5, 0.9, 0.95):
        assert float(metrics.coverage(pit, level).mean()) == pytest.approx(level, abs=0.005)
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.coverage(pit, 95)
