"""The ablation of the prior for tables: its oracle, and that what is taken away is gone."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.tables import ablation, protocol


@pytest.fixture(scope="module")
def made():
    return ablation.made(12, 0)


def test_the_best_possible_prediction_is_the_conditional_of_one_gaussian(made):
    """Beside a dense joint distribution of known and unknown rows."""
    _, trials = protocol.split(made, 0)
    trial = dict(trials)[3][0]
    x = np.r_[trial.x["x"], trial.query["x"]]
    covariance = ablation.LEVEL**2 + ablation.SLOPE**2 * np.outer(x, x) + ablation.NOISE**2 * np.eye(len(x))
    a, b, c = covariance[:3, :3], covariance[3:, :3], covariance[3:, 3:]
    mean = ablation.shared(x[3:]) + b @ np.linalg.solve(a, trial.y - ablation.shared(x[:3]))
    sd = np.sqrt(np.diag(c - b @ np.linalg.solve(a, b.T)))
    found = ablation.Best().predict([trial])[0]
    np.testing.assert_allclose([found.mean, found.sd], [mean, sd], rtol=1e-8)
    np.testing.assert_allclose(found.log_density(trial.truth), stats.norm(mean, sd).logpdf(trial.truth))


def test_each_part_that_is_taken_away_changes_what_is_predicted(made):
    """All but logarithms, which these outputs, some of them below zero, do not have."""
    scores = {
        name: ablation.measure(made, 0, name, ablation.Otherwise(variant))["scores"]
        for name, variant in ablation.REGRESSORS.items()
        if not variant.options
    }
    whole = scores.pop(ablation.WHOLE)
    assert scores.pop("as they are") == whole
    assert all(found["3"] != whole["3"] for found in scores.values())
    assert scores["a zero mean"]["0"]["rmse"] > whole["0"]["rmse"]
    assert scores["lines alone"]["10"]["rmse"] > 2 * whole["10"]["rmse"]
    assert scores["noise of 0.21 at least"]["10"]["log_density"] < whole["10"]["log_density"] - 0.3


def test_the_report_has_a_line_for_each_variant():
    scores = {"0": {"rmse": 2.0, "log_density": -1.0}, "1": {"rmse": 1.0, "log_density": 0.0}}
    half = {known: {name: value / 2 for name, value in each.items()} for known, each in scores.items()}
    rows = [
        {"table": table, "kind": "real", "division": 0, "variant": variant, "scores": half if other else scores}
        for table in ("made, 3 groups", "one", "two")
        for variant, other in ((ablation.WHOLE, False), ("lines alone", True), (ablation.BEST, False))
    ]
    text = ablation.report({"rows": rows, "divisions": 1, "machine": "a machine"})
    assert "2 real tables: RMSE over that of the default" in text and "K = 3" not in text
    of_real = text[text.index("2 real tables: RMSE") :]
    line = next(line for line in of_real.splitlines() if line.startswith("| lines alone"))
    assert [cell.strip() for cell in line.split("|")[2:4]] == ["0.50", "0.50"]
