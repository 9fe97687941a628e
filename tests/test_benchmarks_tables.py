"""The benchmark of tables: what is divided how, what is counted how, on made tables alone."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

import benchmarks.tables.__main__ as command
from benchmarks.tables import classification, data, few, lists, protocol, regression, report, run


def made(kind: str = "real", *, groups: int = 12, rows: int = 14, seed: int = 0) -> data.Table:
    random = np.random.default_rng(seed)
    group = np.repeat([f"g{i}" for i in range(groups)], rows)
    x = pd.DataFrame({"t": random.normal(size=len(group)), "sex": random.choice(["f", "m"], len(group))})
    offset = np.repeat(random.normal(size=groups), rows)
    real = 2 * x["t"].to_numpy() + offset + 0.1 * random.normal(size=len(group))
    if kind == "real":
        return data.Table("made", kind, x, real, group)
    if kind == "classes":
        return data.Table("made", kind, x, np.where(real > 0, "yes", "no"), group)
    return data.Table("made", kind, x.assign(t=offset * 5 + x["t"]), group, np.zeros(len(group), dtype=int))


def test_no_table_is_both_chosen_on_and_measured() -> None:
    """The three lists have no data set in common, whatever a table is called."""
    of = [{(s.package, s.item) for s in part.values()} for part in (lists.BENCHMARK, lists.DEVELOPMENT, lists.RESERVE)]
    assert not of[0] & of[1] and not of[0] & of[2] and not of[1] & of[2]
    assert len(lists.EVERY) == len(lists.BENCHMARK) + len(lists.DEVELOPMENT) + len(lists.RESERVE)


@pytest.mark.parametrize(("option", "expected"), [("--development", lists.DEVELOPMENT), ("--reserve", lists.RESERVE)])
def test_each_list_is_an_option(option, expected, tmp_path, monkeypatch, capsys) -> None:
    asked: list[str] = []
    monkeypatch.setattr(command, "measure", lambda names, *_, **__: asked.extend(names) or [])
    command.main([option, "--splits", "1", "--cache", str(tmp_path)])
    assert asked == list(expected)
    with pytest.raises(SystemExit):
        command.main(["--tables", "no such table"])
    assert "there is no table no such table; there are sleepstudy" in capsys.readouterr().err


def test_no_group_is_both_learned_from_and_tried_on_and_known_rows_are_nested() -> None:
    table = made()
    train, trials = protocol.split(table, 0)
    learned = set(train.y.tolist())
    assert [known for known, _ in trials] == list(protocol.KNOWN)
    before: list[set[float]] = [set() for _ in trials[0][1]]
    for known, groups in trials:
        for i, trial in enumerate(groups):
            assert len(trial.y) == known
            assert not learned & set(trial.y.tolist()) and not learned & set(trial.truth.tolist())
            assert not set(trial.y.tolist()) & set(trial.truth.tolist())
            assert before[i] <= set(trial.y.tolist())
            before[i] = set(trial.y.tolist())


def test_new_classes_are_none_of_the_base_classes() -> None:
    train, trials = protocol.split_classes(made("new"), 0)
    for _, episodes in trials:
        for trial in episodes:
            assert not set(train.y) & set(trial.truth)
            assert set(trial.truth) <= set(trial.y)


def test_scores_of_a_prediction_that_is_right() -> None:
    """The truth with a known spread around it has an RMSE of zero and the density of a Gaussian at its mean."""
    _, trials = protocol.split(made(), 0)
    groups = trials[2][1]
    found = protocol.score_real(groups, [protocol.Gauss(t.truth, np.full(len(t.truth), 0.5)) for t in groups])
    assert found["rmse"] == 0 and found["coverage"] == 1
    assert found["log_density"] == pytest.approx(-np.log(0.5) - 0.5 * np.log(2 * np.pi))
    assert found["width"] == pytest.approx(2 * 1.6448536 * 0.5)


def test_standard_error_of_a_coverage_is_that_of_right_intervals() -> None:
    """Groups whose rows are hit or missed together, 90 % of them: the mean square of the error is the true variance."""
    random = np.random.default_rng(0)
    off, squares = [], []
    for _ in range(400):
        hit = random.random(20) < 0.9  # of each group, all rows
        sizes = random.integers(1, 9, size=20)
        trials = [protocol.Trial(pd.DataFrame(), np.array([]), pd.DataFrame(), np.zeros(n)) for n in sizes]
        means = [np.full(n, 0.0 if h else 9.0) for n, h in zip(sizes, hit, strict=True)]
        spans = [protocol.Gauss(mean, np.ones(len(mean))) for mean in means]
        found = protocol.score_real(trials, spans)
        off.append(found["coverage"] - 0.9)
        squares.append(found["coverage_error"] ** 2)
        assert found["groups"] == 20
    assert np.mean(squares) == pytest.approx(np.mean(np.square(off)), rel=0.15)


def test_cells_that_miss_by_more_than_chance_are_named() -> None:
    def record(table: str, coverage: float, error: float) -> dict[str, Any]:
        scores = {"coverage": coverage, "coverage_error": error, "groups": 12}
        return {"method": "ours", "table": table, "scores": {"0": scores}}

    text = report.coverage([record("far", 0.7, 0.05), record("unsure", 0.8, 0.1), record("near", 0.88, 0.001)], "ours")
    assert "within 87 to 93 % in 1 of 3 cells" in text
    assert text.endswith("in 1: far K = 0 (70 %).")
    assert "| far | 0.050 |" in text and "| unsure | 12 |" in text


def test_calibration_error_of_one_probability() -> None:
    """Probability 0.8 for a class that half of the rows have: an error of 0.3."""
    trial = protocol.Trial(pd.DataFrame(), np.array([]), pd.DataFrame(), np.array(["a", "b"] * 10))
    found = protocol.score_classes([trial], [(np.array(["a", "b"]), np.tile([0.8, 0.2], (20, 1)))])
    assert found["ece"] == pytest.approx(0.3)
    assert found["error"] == pytest.approx(0.5)
    assert found["log_loss"] == pytest.approx(-np.log([0.8, 0.2]).mean())


def test_chance_makes_a_calibration_error_of_right_probabilities() -> None:
    """Of 50 rows in one bin, right with probability 0.8, the share is as far from it as a binomial law says."""
    trial = protocol.Trial(pd.DataFrame(), np.array([]), pd.DataFrame(), np.array(["a"] * 40 + ["b"] * 10))
    found = protocol.score_classes([trial], [(np.array(["a", "b"]), np.tile([0.8, 0.2], (50, 1)))])
    k = np.arange(51)
    assert found["ece"] == pytest.approx(0, abs=1e-12)
    assert found["ece_chance"] == pytest.approx(np.sum(binom.pmf(k, 50, 0.8) * abs(k / 50 - 0.8)), abs=0.01)
    assert found["ece_chance_95"] == pytest.approx(0.11, abs=0.02)  # |Z| < 1.96 of sqrt(0.8 * 0.2 / 50)


def test_chance_is_larger_where_labels_of_a_group_go_together() -> None:
    """Right probabilities: the mean over random signs of groups is the mean of the calibration error itself."""
    random = np.random.default_rng(0)
    measured, alone, together = [], [], []
    for _ in range(60):
        level = random.normal(size=30)
        yes = random.random((30, 10)) < 1 / (1 + np.exp(-2 * (level[:, None] + 0.8)))
        p = np.mean(1 / (1 + np.exp(-2 * (random.normal(size=100_000) + 0.8))))
        trials = [protocol.Trial(pd.DataFrame(), np.array([]), pd.DataFrame(), np.where(y, "yes", "no")) for y in yes]
        found = protocol.score_classes(trials, [(np.array(["no", "yes"]), np.tile([1 - p, p], (10, 1)))] * 30)
        measured.append(found["ece"])
        alone.append(found["ece_chance"])
        together.append(found["ece_groups"])
        assert found["ece_groups_95"] > found["ece_groups"]
    assert np.mean(together) == pytest.approx(np.mean(measured), rel=0.15)
    assert np.mean(alone) < 0.6 * np.mean(measured)


def test_what_defaults_are_chosen_on_is_not_what_they_are_measured_on() -> None:
    """No table of one list is in another, under whatever name."""
    places = [
        {(s.package, s.item) for s in each.values()} for each in (lists.BENCHMARK, lists.DEVELOPMENT, lists.RESERVE)
    ]
    assert not places[0] & places[1] and not places[0] & places[2] and not places[1] & places[2]
    assert {s.kind for s in lists.DEVELOPMENT.values()} == {"real", "classes", "new"}


def test_some_groups_of_a_large_table() -> None:
    frame = pd.DataFrame({"g": np.repeat(list("abcdef"), 9), "t": np.arange(54)})
    some = lists._some_groups(4, "g", rows=5)(frame)
    assert some.groupby("g")["t"].nunique().tolist() == [5] * 4
    assert (frame.set_index("t")["g"].loc[some["t"]].to_numpy() == some["g"].to_numpy()).all()


def test_columns_become_numbers() -> None:
    x = pd.DataFrame({"n": [1.0, 3.0, np.nan], "t": ["a", "b", "c"]})
    columns = protocol.Columns(x)
    assert columns(x).shape == (3, 5)
    assert columns(pd.DataFrame({"n": [2.0], "t": ["unknown"]})).tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0]]


def test_ranks_and_ratios() -> None:
    records = [
        {"table": t, "kind": "real", "split": 0, "method": m, "scores": {"1": {"rmse": v, "log_density": -v}}}
        for t, m, v in (("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 4.0), ("b", "y", 2.0))
    ]
    rmse = report.cells(records, "rmse")
    assert report.ranks(rmse) == {"x": {1: 1.5}, "y": {1: 1.5}}
    assert report.ratios(rmse)["x"][1] == pytest.approx(2**0.5)
    assert report.worst(rmse, "x")[0] == (2.0, ("b", 1))
    assert report.ranks(report.cells(records, "log_density"), largest=True) == {"x": {1: 1.5}, "y": {1: 1.5}}


@pytest.mark.parametrize("name", ["group mean", "ridge, each group", "ridge + offset", "kNN + offset"])
def test_peers_predict_made_tables(name) -> None:
    """Those that know the columns come close to the noise, and all give finite densities."""
    train, trials = protocol.split(made(), 0)
    known, groups = trials[-1]
    model = regression.METHODS[name]().fit(train)
    found = protocol.score_real(groups, model.predict(groups))
    assert known == 10 and np.isfinite(found["log_density"])
    assert found["rmse"] < (0.5 if name != "group mean" else 3.0)


@pytest.mark.parametrize("name", ["smoothed share", "logistic, each group", "logistic + offset"])
def test_peers_give_probabilities(name) -> None:
    train, trials = protocol.split(made("classes"), 0)
    model = classification.GROUPS[name]().fit(train)
    for _, groups in trials:
        for labels, p in model.predict(groups):
            assert labels.tolist() == ["no", "yes"]
            np.testing.assert_allclose(p.sum(1), 1)


def test_what_has_not_changed_is_not_run_again(tmp_path, monkeypatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(data, "load", lambda name: made())
    monkeypatch.setitem(lists.EVERY, "made", lists.Source("", "", "", ""))
    monkeypatch.setattr(run, "methods", lambda kind: {"group mean": regression.GroupMean})
    first = run.measure(["made"], tmp_path, tell=told.append)
    assert len(told) == len(first) == 5
    assert run.measure(["made"], tmp_path, tell=told.append) == first
    assert len(told) == 5
    path = next(tmp_path.rglob("0-*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "another"}))
    run.measure(["made"], tmp_path, tell=told.append)
    assert len(told) == 5 + 1
    assert "group mean" in report.report(first, "group mean", "Made up.")


def test_few_groups_are_learned_from_and_others_tried_on() -> None:
    table = made(groups=14)
    short = table.group == "g3"
    short[np.flatnonzero(short)[:3]] = False  # of this group three rows are left, too few to count at every K
    table = table._replace(x=table.x[~short].reset_index(drop=True), y=table.y[~short], group=table.group[~short])
    rows, trials = few.draw(table, 8, seed=0)
    assert len(np.unique(rows.group)) == 8 and "g3" not in rows.group
    assert [(known, len(of)) for known, of in trials] == [(0, 5), (1, 5), (3, 5)]
    assert not {y for _, of in trials for t in of for y in (*t.y, *t.truth)} & set(rows.y)


def test_scores_of_few_groups_do_not_depend_on_the_units_of_outputs() -> None:
    table = made()
    tables = [table, table._replace(name="in other units", y=1000 * table.y - 7)]
    found, seconds = few.measure(regression.METHODS["ridge + offset"], tables, 8, 2)
    assert set(seconds) == {"made", "in other units"} and len(found) == 2 * 2 * 3
    for draw in range(2):
        for known in few.KNOWN:
            assert found["made", draw, known] == pytest.approx(found["in other units", draw, known], rel=1e-6)


def test_the_mean_of_few_groups_is_over_tables_of_the_means_of_draws() -> None:
    values = {("a", 0, 1): 1.0, ("a", 1, 1): 3.0, ("b", 0, 1): 6.0, ("b", 0, 0): 99.0}
    assert few.mean_and_error(values, 1) == pytest.approx((4.0, 2.0))  # of 2 and 6, whose deviation is sqrt(8)
    score = {"rmse": 1.0, "log density": -1.0, "coverage": 0.9}
    cells = [(table, 0, known) for table in "ab" for known in few.KNOWN]
    text = few.summary({"ours": dict.fromkeys(cells, score), "twice": dict.fromkeys(cells, score | {"rmse": 2.0})})
    assert "| ours | 0.000 ± 0.000 |" in text and "| twice | 0.693 ± 0.000 |" in text
