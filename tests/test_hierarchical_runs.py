"""A hierarchical prior as a run: what `metavib train table` learns, writes, and says of groups it never saw."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge

import serving
from metavib.adapt.learner import Learner
from metavib.estimators import FewShotRegressor
from metavib.groups import Report
from metavib.groups.report import Row
from metavib.random import seeded
from metavib.serve import Client
from metavib.tasks.table import split_tasks
from metavib.training import checkpoint, run_folder
from metavib.training.config import HIERARCHICAL, Config
from metavib.training.protocols import experiment, obvious
from metavib.training.protocols.experiment import TEST
from metavib.training.recipes import default_method, recipe
from program import done, metavib, refused


def frame(seed=0, groups=24, rows=9):
    """Towns whose demand rises with the hour, each from a level of its own; a note that is no input."""
    rng = np.random.default_rng(seed)
    town = np.repeat([f"t{i}" for i in range(groups)], rows)
    hour, sky = rng.uniform(0, 24, len(town)), rng.choice(["sun", "rain"], len(town))
    level = np.repeat(300 * rng.normal(size=groups), rows)
    demand = 5000 + level + 20 * hour + 100 * (sky == "sun") + 10 * rng.normal(size=len(town))
    busy = np.where(demand > 5000 + level / 2 + 290, "yes", "no")
    grade = np.array(["low", "middle", "high"])[np.clip(np.round((demand - 4700) / 400), 0, 2).astype(int)]
    return pd.DataFrame({"town": town, "hour": hour, "sky": sky, "demand": demand, "busy": busy, "grade": grade})


@pytest.fixture(scope="module", params=["demand", "busy", "grade"])
def trained(request, tmp_path_factory):
    """A run for each kind of output: numbers, two classes, three classes."""
    place, target = tmp_path_factory.mktemp("run"), request.param
    data = frame()[["town", "hour", "sky", target]]
    data.to_csv(place / "data.csv", index=False)
    table = ["--csv", place / "data.csv", "--task", "town", "--target", target]
    said = done("train", "table", *table, "--out", place / "run", "--quiet")
    return place / "run", target, data, said


def test_training_says_what_it_predicts_from_and_which_rows_it_leaves_out(tmp_path):
    data = frame(groups=12)[["town", "hour", "sky", "demand"]]
    data.loc[4, "demand"] = 1e7
    data.to_csv(tmp_path / "data.csv", index=False)
    names = [tmp_path / "data.csv", "--task", "town", "--target", "demand", "--set", "test.tasks=4"]
    said = " ".join(metavib("train", "table", *names, "--out", tmp_path / "run").err.split())
    assert "'demand' is predicted from hour, sky (2 values)" in said
    assert "left out: 1 row, whose output cannot be right beside all others (line 6)" in said


@pytest.mark.filterwarnings("default")
def test_rows_of_several_groups_that_are_taken_for_one_are_told_of(trained, tmp_path):
    run, _, data, _ = trained
    data[:9].to_csv(tmp_path / "one.csv", index=False)
    data[:20].to_csv(tmp_path / "three.csv", index=False)
    file, told = tmp_path / "task.safetensors", "three.csv has rows of 3 tasks ('town'), which"
    for name, said in (("three", "are learned as one"), ("one", "")):
        ended = metavib("adapt", run, "--support", tmp_path / f"{name}.csv", "--out", file)
        assert ended.status == 0 and (f"{told} {said}" in " ".join(ended.err.split())) == bool(said), ended
    ended = metavib("predict", file, "--query", tmp_path / "three.csv", "--csv")
    assert f"{told} are predicted as one" in " ".join(ended.err.split())
    apart = metavib("adapt", run, "--support", tmp_path / "three.csv", "--task", "town", "--out", file)
    assert apart.err == "" and metavib("predict", file, "--query", tmp_path / "three.csv", "--csv").err == ""


def test_the_run_says_how_good_it_is_beside_simpler_methods(trained):
    run, target, _, said = trained
    record = json.loads((run / "record.json").read_text())
    rows = record["evaluation"]["rows"]
    assert record["config"]["method"] == HIERARCHICAL and [row["shots"] for row in rows] == [0, 1, 3, 5, 8]
    assert f"{target!r}" in said and "groups that were not learned from" in said
    shown = done("show", run)
    assert "each held out in its turn" in shown and "So few groups say little" in said
    assert all(shown.count(f" {name} ") == 2 for name in rows[0]["obvious"])  # in both tables
    if target == "demand":
        names = set(rows[0]["obvious"])  # those of the table that is printed before the test
        before = str(Report([Row(0, 1, *[1.0] * 5)]))
        assert names == {obvious.POOLED, obvious.OWN} and all(name in before for name in names)
        ours = [row["metrics"]["mse"]["mean"] for row in rows]
        others = [[m["mse"]["mean"] for m in row["obvious"].values()] for row in rows]
        assert ours[1] < 0.2 * min(others[1]) and all(a < min(b) for a, b in zip(ours[1:], others[1:], strict=True))
        assert 10**2 * 0.7 < ours[-1] < 10**2 * 2  # the noise has a standard deviation of 10
    else:
        ours = [-row["metrics"]["log_density"]["mean"] for row in rows]
        others = [min(-m["log_density"]["mean"] for m in row["obvious"].values()) for row in rows]
        assert ours[-1] < ours[0] and all(a < b for a, b in zip(ours[1:], others[1:], strict=True))
    assert done("show", run).count("no steps: learned from all groups at once") == 1
    assert json.loads(done("evaluate", run, "--shots", 1, "--tasks", 30, "--json"))["rows"][0]["shots"] == 1


def test_files_data_frames_and_many_groups_are_one_prediction(trained, tmp_path):
    run, target, data, _ = trained
    learner = Learner.from_run(run)
    new = frame(seed=1, groups=3)[data.columns]
    known, asked = new[new.groupby("town").cumcount() < 4], new[new.groupby("town").cumcount() >= 4]
    known.to_csv(tmp_path / "known.csv", index=False)
    asked.drop(columns=target).to_csv(tmp_path / "asked.csv", index=False)
    done("adapt", run, "--support", tmp_path / "known.csv", "--task", "town", "--out", tmp_path / "t.safetensors")
    rows = json.loads(done("predict", tmp_path / "t.safetensors", "--query", tmp_path / "asked.csv", "--json"))
    assert [row["support"] for row in rows] == [4] * 15
    many = learner.adapt_many(known, "town").predict(asked.drop(columns=target))
    for town, mine in asked.groupby("town"):
        task = learner.adapt(known[known.town == town])
        task.save(tmp_path / "one.safetensors")
        found = task.predict(mine)
        again = learner.load(tmp_path / "one.safetensors").predict(mine)
        at = np.flatnonzero(asked.town == town)
        for a, b, c in ((found, again, many),):
            one, two, all_ = (p.mean if target == "demand" else p.probabilities for p in (a, b, c))
            assert torch.equal(one, two)
            torch.testing.assert_close(all_[at], one)
        if target == "demand":
            np.testing.assert_allclose([rows[i]["mean"] for i in at], found.mean, rtol=1e-9)
            np.testing.assert_allclose([rows[i]["high 95%"] for i in at], found.interval(0.95).high, rtol=1e-9)
    if target == "demand":
        assert np.sqrt(np.mean((many.mean.numpy() - asked[target]) ** 2)) < 25


def test_points_are_added_taken_away_and_brought_together(trained):
    run, target, data, _ = trained
    learner = Learner.from_run(run)
    values = lambda task: task.predict(data[:5]).mean if target == "demand" else task.predict(data[:5]).probabilities  # noqa: E731
    whole, first, rest = learner.adapt(data[:8]), learner.adapt(data[:3]), learner.adapt(data[3:8])
    for same in (first.update(data[3:8]), first.merge(rest), learner.adapt(data[:9]).forget(data[8:9])):
        torch.testing.assert_close(values(same), values(whole), rtol=1e-6, atol=1e-6)
    assert whole.constant_size == (target == "demand")


def test_a_file_without_rows_is_a_task_of_which_nothing_is_known(trained, tmp_path):
    """Its header is enough to adapt by; there is nothing to predict in it, and nothing to train on."""
    run, target, data, _ = trained
    data[:0].to_csv(tmp_path / "none.csv", index=False)
    data[:5].drop(columns=target).to_csv(tmp_path / "query.csv", index=False)
    task = tmp_path / "none.safetensors"
    assert "0 points" in done("adapt", run, "--support", tmp_path / "none.csv", "--out", task)
    found = json.loads(done("predict", task, "--query", tmp_path / "query.csv", "--json"))
    learner = Learner.from_run(run)
    wanted = learner.adapt(data[:0]).predict(data[:5]).rows()
    name = next(iter(wanted[0]))
    assert [row[name] for row in found] == [row[name] for row in wanted]
    ended = metavib("predict", task, "--query", tmp_path / "none.csv")
    assert ended.status == 2 and "none.csv: there are no rows to predict" in " ".join(ended.err.split())
    ended = metavib("predict", run, "--query", tmp_path / "query.csv")
    assert ended.status == 2 and "is a folder, and what is known of a task is a file" in " ".join(ended.err.split())
    ended = metavib("train", "table", tmp_path / "none.csv", "--task", "town", "--target", target)
    assert ended.status == 2 and "a header and no rows" in " ".join(ended.err.split())


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_numbers_stand_beside_their_predictions_as_they_were_written(trained, tmp_path, form):
    run, target, data, _ = trained
    asked = data[:3].drop(columns=target).assign(hour=[7, 123456, 9])
    asked.to_csv(tmp_path / "q.csv", index=False)
    asked.to_parquet(tmp_path / "q.parquet")
    data[:4].to_csv(tmp_path / "known.csv", index=False)
    done("adapt", run, "--support", tmp_path / "known.csv", "--out", tmp_path / "task")
    lines = done("predict", tmp_path / "task", "--query", tmp_path / f"q.{form}", "--csv").splitlines()
    assert [line.split(",")[2] for line in lines] == ["hour", "7", "123456", "9"]
    assert " 123456 " in done("predict", tmp_path / "task", "--query", tmp_path / f"q.{form}")
    asked.assign(hour=[7.5, 8, 9]).to_csv(tmp_path / "q.csv", index=False)
    rows = json.loads(done("predict", tmp_path / "task", "--query", tmp_path / "q.csv", "--json"))
    assert [row["hour"] for row in rows] == [7.5, 8.0, 9.0]


def test_the_service_takes_rows_as_the_table_has_them(trained, tmp_path):
    """A task that is made and asked over HTTP says what the learner says; of no rows too."""
    run, target, data, _ = trained
    known, asked = data[:4].drop(columns="town"), data[4:9].drop(columns=["town", target])
    learner = Learner.from_run(run)
    with serving.serving(serving.engines({"towns": run}), f"{tmp_path}/tasks.db") as found:
        for name, rows in (("some", known), ("none", known[:0])):
            points = {"points": {"rows": rows.to_dict("records")}} if len(rows) else {}
            made = found.http.post("/v1/tasks", json={"model": "towns", "name": name, **points})
            assert made.status_code == 201, made.text
            body = {"inputs": {"rows": asked.to_dict("records")}}
            answer = found.http.post(f"/v1/tasks/{name}/predict", json=body).json()["predictions"]
            expected = learner.adapt(data[:4][: len(rows)]).predict(asked)
            if target == "demand":
                np.testing.assert_allclose([row["mean"] for row in answer], expected.mean, rtol=1e-5)
                for name, end in expected.interval(0.95)._asdict().items():  # of Student's t
                    np.testing.assert_allclose([row[name] for row in answer], end, rtol=1e-4)
            else:
                shares = [row["probabilities"] for row in answer]
                np.testing.assert_allclose(shares, expected.probabilities, rtol=1e-5)


def test_the_service_says_which_rows_it_left_out(trained, tmp_path):
    """Their numbers are in the answer, in that to a repeated request, and in what the client makes of it."""
    run, target, data, _ = trained
    few, learner = data[:6].drop(columns="town"), Learner.from_run(run)
    if target != "demand":
        assert learner.judge(few).left_out == []
        return
    wrong = few.assign(demand=[*few.demand[:2], 1e6, few.demand.iloc[3], -1e6, few.demand.iloc[5]])
    rows = {"points": {"rows": wrong.to_dict("records")}}
    with serving.serving(serving.engines({"towns": run}), f"{tmp_path}/tasks.db") as found:
        made = found.http.post("/v1/tasks", json={"model": "towns", "name": "t", **rows}).json()
        assert made["left_out"] == [3, 5] == learner.judge(wrong).left_out and made["points"] == 4
        updates = [
            found.http.post("/v1/tasks/t/update", json=rows, headers={"idempotency-key": "once"}).json()
            for _ in range(2)
        ]
        assert [u["left_out"] for u in updates] == [[3, 5]] * 2 and [u["points"] for u in updates] == [8, 8]
        calls = {"calls": [{"verb": "update", "task": "t", "points": {"rows": few.to_dict("records")}}]}
        (answer,) = found.http.post("/v1/batch", json=calls).json()["answers"]
        assert answer["points"] == 14 and "left_out" not in answer
        with Client(found.address) as client:
            task = client.adapt("towns", wrong, name="u")
            assert task.left_out == (3, 5) and task.n == 4
            assert task.update(few).left_out == () and client.task("u").left_out == ()
            assert client.update({"u": wrong})["u"].left_out == (3, 5)


def test_a_run_that_was_learned_is_not_learned_again(trained):
    run, target, *_ = trained
    before = (run / run_folder.LAST).read_bytes()
    done("train", "--resume", run, "--quiet")
    assert (run / run_folder.LAST).read_bytes() == before


def test_a_file_that_was_tampered_with_is_refused(trained, tmp_path):
    run, *_ = trained
    saved = checkpoint.load(run / run_folder.LAST)
    name = next(n for n in saved.tensors if n.endswith("varying"))
    for change in (
        lambda t: t | {name: t[name] + 100},
        lambda t: {k: v for k, v in t.items() if not k.endswith("root")},
        lambda t: t | {next(k for k in t if k.endswith("root")): torch.zeros(3, 2)},
    ):
        with pytest.raises(ValueError, match="column|root"):
            checkpoint.restore_model(saved._replace(tensors=change(saved.tensors)))


def test_it_is_what_the_estimator_learns_from_the_same_groups(tmp_path):
    """Up to standardisation, whose means the run takes from fewer groups."""
    data = frame()[["town", "hour", "demand"]]
    data.to_csv(tmp_path / "data.csv", index=False)
    done(
        "train",
        "table",
        "--csv",
        tmp_path / "data.csv",
        "--task",
        "town",
        "--target",
        "demand",
        "--out",
        tmp_path / "run",
        "--quiet",
    )
    *learned, test = split_tasks(data.town)
    mine, new = data[learned[0] | learned[1]], data[test]
    estimator = FewShotRegressor(random_state=0).fit(mine[["hour"]], mine.demand, tasks=mine.town)
    few, rest = new[:3], new[3:9]
    mean, sd = estimator.adapt(few[["hour"]], few.demand).predict(rest[["hour"]], return_std=True)
    found = Learner.from_run(tmp_path / "run").adapt(few).predict(rest)
    np.testing.assert_allclose(found.mean, mean, atol=6)
    np.testing.assert_allclose(found.variance.sqrt(), sd, rtol=0.3)


def test_the_ridges_beside_it_are_scikit_learns(trained):
    run, target, *_ = trained
    if target != "demand":
        return
    world = experiment(run_folder.chosen(run).config)
    tasks = world._tasks(world.split.test, shots=3, queries=5).split(torch.arange(3), seeded(0, TEST))
    x, y = world._rows(world.split.train)
    found = obvious.ridges(x, y, tasks)
    everywhere = Ridge(1.0).fit(x, y)
    for i in range(3):
        own = Ridge(1.0).fit(tasks.support.x[i], tasks.support.y[i])
        np.testing.assert_allclose(found[obvious.POOLED][i], everywhere.predict(tasks.query.x[i]))
        np.testing.assert_allclose(found[obvious.OWN][i], own.predict(tasks.query.x[i]))


def test_options_of_networks_are_refused_and_other_likelihoods_take_a_network(tmp_path):
    frame().to_csv(tmp_path / "data.csv", index=False)
    table = ["--csv", tmp_path / "data.csv", "--task", "town", "--target", "demand", "--out", tmp_path / "run"]
    assert "--steps does nothing for hierarchical" in refused("train", "table", *table, "--steps", 5)
    assert "--method gp-vib" in refused("train", "table", *table, "--set", "train.lr=0.1")
    assert "for poisson outputs train a network" in refused(
        "train", "table", *table, "--method", "hierarchical", "--likelihood", "poisson"
    )
    assert default_method("table", "student-t") == "gp-vib" and recipe("table", HIERARCHICAL).precision == "float64"
    with pytest.raises(ValueError, match="learns from the rows of a table"):
        Config(method=HIERARCHICAL)
    with pytest.raises(ValueError, match="and not from glyphs"):
        recipe("glyphs", HIERARCHICAL)


@pytest.mark.parametrize("wrong", [60_000.0, 1e6])
def test_a_row_that_cannot_be_right_is_left_out_and_said_so(wrong, tmp_path):
    data = frame(groups=12)[["town", "hour", "demand"]]
    data.loc[split_tasks(data.town)[0].argmax(), "demand"] = wrong
    data.to_csv(tmp_path / "data.csv", index=False)
    ended = metavib(
        "train", "table", tmp_path / "data.csv", "--task", "town", "--target", "demand", "--out", tmp_path / "run"
    )
    assert ended.status == 0 and "left out: 1 row, whose output cannot be right" in ended.err
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["left_out"] == 1
    sd = Learner.from_run(tmp_path / "run").adapt(data[12:18]).predict(data[18:20]).variance.sqrt()
    assert float(sd.max()) < 200  # the outputs with that row have a standard deviation of 6,500 and 100,000
    few = data[12:18].copy()
    few.loc[few.index[1], "demand"] = wrong
    few.to_csv(tmp_path / "few.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        ended = metavib(
            "adapt", tmp_path / "run", "--support", tmp_path / "few.csv", "--out", tmp_path / "t.safetensors"
        )
    assert ended.status == 0 and "5 points" in ended.out
    assert ended.err.startswith("warning: 1 of 6 rows are left out, the first of them line 3")


def test_figures_name_the_rows_that_cannot_be_right_by_their_lines(tmp_path):
    data = frame(groups=15, rows=9)[["town", "hour", "demand"]]
    places = np.flatnonzero(split_tasks(data.town)[2])[:2]
    data.loc[places, "demand"] = 1e6, -1e6
    data.to_csv(tmp_path / "data.csv", index=False)
    named = "--task", "town", "--target", "demand", "--out", tmp_path / "run"
    assert metavib("train", "table", tmp_path / "data.csv", *named).status == 0
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        ended = metavib("plot", tmp_path / "run")
    assert ended.status == 0, ended.err
    said = " ".join(ended.err.split())
    assert "2 rows of test groups are not learned from" in said
    assert all(f"line {place + 2}" in said for place in places) and "of 6 rows" not in said


def test_groups_of_one_row_are_learned_from_and_not_tested_on(tmp_path):
    data = frame(groups=12)[["town", "hour", "demand"]]
    lone = pd.DataFrame({"town": [f"one {i}" for i in range(8)], "hour": 3.0, "demand": 5000.0})
    pd.concat([data, lone]).to_csv(tmp_path / "data.csv", index=False)
    done(
        "train",
        "table",
        "--csv",
        tmp_path / "data.csv",
        "--task",
        "town",
        "--target",
        "demand",
        "--out",
        tmp_path / "run",
        "--quiet",
    )
    assert json.loads((tmp_path / "run" / "record.json").read_text())["evaluation"]["rows"][0]["tasks"] < 3
