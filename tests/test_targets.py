"""Several targets of one table: a run for each, which every command takes together, to the last bit that of its own."""

import csv
import io
import json
import shutil

import numpy as np
import pandas as pd
import pytest

import serving
from metavib import Learner
from metavib.adapt.file import read_each, write_each
from metavib.adapt.targets import Learners
from metavib.files import read_tensors
from metavib.serve.server import resolve
from metavib.training import runs, targets
from metavib.training.stopping import Interrupted
from program import done, metavib, refused

TARGETS = ("sold", "late or not")  # numbers, and labels


def frame(seed=0, shops=12, rows=6):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(shops), rows)
    level, day = rng.normal(size=shops)[shop], rng.integers(0, 30, len(shop))
    sold = (100 + 20 * level + 2 * day + rng.normal(size=len(shop))).round(2)
    late = np.where(level + 0.5 * rng.normal(size=len(shop)) > 0, "yes", "no")
    return pd.DataFrame(
        {"shop": shop, "day": day, "sky": rng.choice(["sun", "fog"], len(shop)), TARGETS[0]: sold, TARGETS[1]: late}
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A table, a folder of runs of both targets, and a run of each alone."""
    place = tmp_path_factory.mktemp("targets")
    frame().to_csv(place / "shops.csv", index=False)
    table = ["train", "table", place / "shops.csv", "--task", "shop", "--quiet", "--set", "test.tasks=6"]
    done(*table, "--target", TARGETS[0], "--target", TARGETS[1], "--out", place / "both")
    for i, (mine, other) in enumerate((TARGETS, TARGETS[::-1])):
        drop = ["--set", f"tasks.table.drop={json.dumps([other])}"]
        done(*table, "--target", mine, *drop, "--out", place / f"alone-{i + 1}")
    return place


def rows(*arguments):
    return json.loads(done("predict", *arguments, "--json"))


def test_each_target_is_learned_as_if_it_were_alone(trained):
    assert list(targets.folders(trained / "both")) == list(TARGETS)
    tested = json.loads(done("evaluate", trained / "both", "--shots", "2", "--json"))
    shown = json.loads(done("show", trained / "both", "--json"))
    for i, (target, folder) in enumerate(targets.folders(trained / "both").items()):
        alone = trained / f"alone-{i + 1}"
        mine, its = (read_tensors(run / "last.safetensors")[0] for run in (folder, alone))
        assert mine.keys() == its.keys() and all(t.equal(its[name]) for name, t in mine.items())
        assert tested[target] == json.loads(done("evaluate", alone, "--shots", "2", "--json"))
        assert shown[target]["evaluation"] == json.loads(done("show", alone, "--json"))["evaluation"]
    text = done("show", trained / "both")
    assert "'sold' from day, sky" in text and "'late or not' from day, sky" in text


@pytest.mark.parametrize("many", [True, False])
def test_tasks_of_all_targets_are_one_file_and_its_predictions_stand_side_by_side(trained, many, tmp_path):
    data = frame(1, shops=3) if many else frame(1, shops=1, rows=18)
    known, others = data[data.index % 6 < 4], data[data.index % 6 >= 4]
    known.to_csv(tmp_path / "known.csv", index=False)
    others.drop(columns=list(TARGETS)).to_csv(tmp_path / "query.csv", index=False)
    column = ["--task", "shop"] if many else []
    said = done("adapt", trained / "both", "--support", tmp_path / "known.csv", *column, "--out", tmp_path / "t")
    assert "sold: " in said and "late or not: " in said and said.count("12 points") == 2
    found = rows(tmp_path / "t", "--query", tmp_path / "query.csv")
    for i, name in enumerate(TARGETS):
        one = tmp_path / f"alone-{i}"
        done("adapt", trained / f"alone-{i + 1}", "--support", tmp_path / "known.csv", *column, "--out", one)
        alone = rows(one, "--query", tmp_path / "query.csv")
        own = [k for k in alone[0] if k not in ("query", "shop", "day", "sky")]
        assert [{k: row[f"{name} {k}"] for k in own} for row in found] == [{k: row[k] for k in own} for row in alone]
    table = done("predict", tmp_path / "t", "--query", tmp_path / "query.csv", "--csv")
    assert list(csv.DictReader(io.StringIO(table)))[0].keys() == found[0].keys()
    # Points are added and taken away again, of all targets at once.
    others[:3].to_csv(tmp_path / "more.csv", index=False)
    assert done("update", tmp_path / "t", "--points", tmp_path / "more.csv").count("15 points") == 2
    assert rows(tmp_path / "t", "--query", tmp_path / "query.csv") != found
    assert done("update", tmp_path / "t", "--points", tmp_path / "more.csv", "--forget").count("12 points") == 2
    for mine, its in zip(rows(tmp_path / "t", "--query", tmp_path / "query.csv"), found, strict=True):
        numbers = [k for k, v in its.items() if isinstance(v, float)]
        np.testing.assert_allclose([mine[k] for k in numbers], [its[k] for k in numbers], rtol=1e-6)


def test_learners_are_those_of_each_target(trained, tmp_path):
    data = frame(1, shops=2)
    learners = Learners.from_run(trained / "both")
    first, second = learners.adapt(data[:3]), learners.adapt(data[3:6])
    both, found = first.merge(second), learners.adapt(data[:3]).update(data[3:6]).predict(data[6:])
    assert both["sold"].n == 6 and list(found) == list(TARGETS) and len(learners) == len(both) == 2
    alone = Learner.from_run(trained / "both", target="sold").adapt(data[:6]).predict(data[6:])
    np.testing.assert_allclose(both.predict(data[6:])["sold"].mean, alone.mean, rtol=1e-8)
    np.testing.assert_allclose(found["sold"].mean, alone.mean, rtol=1e-8)
    first.save(tmp_path / "first.safetensors")
    again = learners.load(tmp_path / "first.safetensors")
    assert again.predict(data[6:])["sold"].mean.equal(first.predict(data[6:])["sold"].mean)
    for whole in (learners, learners["sold"]):
        with pytest.warns(UserWarning, match="rows of 2 tasks, by their 'shop', are taken as one") as heard:
            whole.adapt(data.iloc[[0, 6]])
        assert len(heard) == 1 and heard[0].filename == __file__
    wrong = data[:6].assign(sold=[*data.sold[:5], 1e7])
    with pytest.warns(UserWarning, match="output 'sold': 1 of 6 rows are left out, the first of them row 6"):
        assert learners.adapt(wrong)["sold"].n == 5


def test_what_does_not_fit_is_refused(trained, tmp_path):
    both, alone = trained / "both", trained / "alone-1"
    with pytest.raises(ValueError, match="runs of the targets sold, late or not; got target=None: name one"):
        Learner.from_run(both)
    with pytest.raises(ValueError, match="has no runs of several targets; got target='sold': leave target out"):
        Learner.from_run(alone, target="sold")
    with pytest.raises(ValueError, match="has no runs of several targets"):
        Learners.from_run(alone)
    frame(1)[:6].to_csv(tmp_path / "few.csv", index=False)
    few = ["--support", tmp_path / "few.csv"]
    assert "--classes are those of one target" in refused("adapt", both, *few, "--classes", "a,b")
    done("adapt", both, *few, "--out", tmp_path / "t")
    message = refused("predict", tmp_path / "t", "--query", tmp_path / "few.csv", "--run", alone)
    assert "one of them has several targets" in message
    with pytest.raises(ValueError, match="is no task file: expected the format"):
        Learner.from_run(alone).load(tmp_path / "t")
    parts = read_each(tmp_path / "t")
    write_each(tmp_path / "swapped", dict(zip(parts, reversed(parts.values()), strict=True)))
    with pytest.raises(ValueError, match="was made with another model"):
        Learners.from_run(both).load(tmp_path / "swapped")
    table = ["train", "table", trained / "shops.csv", "--task", "shop", "--out", tmp_path / "run"]
    assert "no column 'solt'. Did you mean 'sold'?" in refused(*table, "--target", "sold,solt")
    assert "a target is named twice" in refused(*table, "--target", "sold", "--target", "sold")
    assert "cannot be both target and task" in refused(*table, "--target", "sold,shop")
    assert "is the target and cannot be an input" in refused(*table, "--target", "sold,day", "--inputs", "day,sky")
    assert "--trained tests the model of one target" in refused(*table, "--target", "sold,day", "--trained", alone)
    assert "a search is of one target" in refused("tune", "table", "--csv", *table[2:-2], "--target", "sold,day")
    assert not (tmp_path / "run").exists()
    again = ["train", "table", trained / "shops.csv", "--task", "shop", "--target", "sold,day"]
    assert "holds runs already" in refused(*again, "--out", both)
    assert "holds runs of the targets sold, late or not; got sold, day" in refused(*again, "--resume", both)
    assert "holds no runs of several targets" in refused(*again, "--out", alone)


def test_runs_that_were_stopped_go_on_with_the_targets_that_are_left(trained, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(trained / "both", run)
    shutil.rmtree(run / "target-2")

    def stopped(config, folder, **options):
        raise Interrupted(f"stopped; continue with --resume {folder}")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "run", stopped)
        ended = metavib("train", "--resume", run)
    assert ended.status == 130 and f"continue with --resume {run}\n" in ended.err.replace(f"{run}/", "elsewhere")
    assert "Nothing is learned of 'late or not' yet" in done("show", run)
    shown = json.loads(done("show", run, "--json"))
    assert shown["late or not"] is None and shown["sold"]["evaluation"]
    done("train", "--resume", run, "--quiet")
    mine, its = (read_tensors(place / "target-2" / "last.safetensors")[0] for place in (run, trained / "both"))
    assert all(t.equal(its[name]) for name, t in mine.items())
    assert "seed = 0 there and 3 here" in refused("train", "--resume", run, "--seed", 3)


def test_figures_and_the_service_have_a_place_for_each_target(trained, tmp_path):
    drawn = done("plot", trained / "both", "--out", tmp_path).split()
    assert f"{tmp_path}/target-1/groups.png" in drawn and f"{tmp_path}/target-2/errors.png" in drawn
    engines = resolve(f"shops={trained / 'both'}", pixels=1)
    assert [engine.name for engine in engines] == [f"shops.{name}" for name in TARGETS]
    data = frame(1)[:3]
    with serving.serving(engines, f"{tmp_path}/tasks.db") as found:
        made = found.http.post("/v1/tasks", json={"model": "shops.sold", "points": {"rows": data.to_dict("records")}})
        assert made.json()["points"] == 3, made.text


def gaps(data):
    """Every fifth row lacks the number, and every fourth of the others the label."""
    place = np.arange(len(data))
    return data.assign(
        **{
            TARGETS[0]: data[TARGETS[0]].where(place % 5 != 1),
            TARGETS[1]: data[TARGETS[1]].where((place % 4 != 2) | (place % 5 == 1)),
        }
    )


def test_rows_that_lack_a_target_serve_the_others(tmp_path):
    """The oracle is a run of each target alone, on a file of the rows that have it."""
    gaps(frame()).to_csv(tmp_path / "shops.csv", index=False)
    options = ["--task", "shop", "--quiet", "--set", "test.tasks=6"]
    both = tmp_path / "both"
    done("train", "table", tmp_path / "shops.csv", "--target", ",".join(TARGETS), *options, "--out", both)
    new = gaps(frame(1, shops=3))
    new.to_csv(tmp_path / "new.csv", index=False)
    adapt = ["--task", "shop", "--out", tmp_path / "t"]
    said = done("adapt", both, "--support", tmp_path / "new.csv", *adapt)
    assert f"sold: 3 tasks, {new.sold.notna().sum()} points" in said
    assert f"late or not: 3 tasks, {new[TARGETS[1]].notna().sum()} points" in said
    found = rows(tmp_path / "t", "--query", tmp_path / "new.csv")
    learners = Learners.from_run(both)
    weight = np.linspace(1, 2, len(new))
    weighted = learners.adapt_many(new, new.shop.tolist(), weight=weight)
    for i, (mine, other) in enumerate((TARGETS, TARGETS[::-1])):
        has = new[new[mine].notna()]
        data = gaps(frame())
        data[data[mine].notna()].drop(columns=other).to_csv(tmp_path / "one.csv", index=False)
        alone = tmp_path / f"alone-{i}"
        done("train", "table", tmp_path / "one.csv", "--target", mine, *options, "--out", alone)
        its, own = (read_tensors(run / "last.safetensors")[0] for run in (both / f"target-{i + 1}", alone))
        assert its.keys() == own.keys() and all(t.equal(its[name]) for name, t in own.items())
        has.drop(columns=other).to_csv(tmp_path / "one.csv", index=False)
        done("adapt", alone, "--support", tmp_path / "one.csv", *adapt[:-1], tmp_path / "one")
        for row, expected in zip(found, rows(tmp_path / "one", "--query", tmp_path / "new.csv"), strict=True):
            assert {k: row.get(f"{mine} {k}", row.get(k)) for k in expected} == expected
        one = Learner.from_run(alone).adapt_many(has, has.shop.tolist(), weight=weight[new[mine].notna()])
        mine, its = weighted[mine].predict(new, new.shop.tolist()), one.predict(new, new.shop.tolist())
        assert [*mine.rows(0.9)] == [*its.rows(0.9)]
    # More rows, with gaps, are learned and forgotten again.
    counts = "; ".join(said.split(": ", 1)[1].strip().split("; "))
    done("update", tmp_path / "t", "--points", tmp_path / "new.csv")
    assert counts in done("update", tmp_path / "t", "--points", tmp_path / "new.csv", "--forget")


def test_rows_without_any_target_are_refused_and_targets_without_rows_are_the_prior(trained, tmp_path):
    data = frame(1, shops=2)
    bare = data.assign(
        **{TARGETS[0]: data.sold.where(data.index != 3), TARGETS[1]: data[TARGETS[1]].where(data.index != 3)}
    )
    bare.to_csv(tmp_path / "bare.csv", index=False)
    message = "line 5: none of the targets sold, late or not is there (1 of 12 rows have none); leave the row out"
    table = ["train", "table", tmp_path / "bare.csv", "--task", "shop", "--out", tmp_path / "run"]
    assert message in refused(*table, "--target", ",".join(TARGETS))
    assert message in refused("adapt", trained / "both", "--support", tmp_path / "bare.csv", "--task", "shop")
    learners = Learners.from_run(trained / "both")
    with pytest.raises(ValueError, match="row 4: none of the targets"):
        learners.adapt(bare[:6])
    data.assign(sold=None).to_csv(tmp_path / "none.csv", index=False)
    assert "column 'sold' has no values at all" in refused(
        "train", "table", tmp_path / "none.csv", *table[3:], "--target", ",".join(TARGETS)
    )
    none = data[:4].assign(sold=np.nan)
    known = learners.adapt(none)
    assert known["sold"].n == 0 and known[TARGETS[1]].n == 4
    assert known.predict(data)["sold"].mean.equal(learners["sold"].adapt(data[:0]).predict(data).mean)
    many = learners.adapt_many(none, "shop")
    many.save(tmp_path / "many", run=trained / "both")
    again = learners.load(tmp_path / "many")
    assert again.predict(data)["sold"].mean.equal(many.predict(data)["sold"].mean)
    assert "0 tasks, 0 points" in done("update", tmp_path / "many", "--points", tmp_path / "none.csv", "--task", "shop")
    with pytest.raises(ValueError, match="nothing to save"):
        learners.adapt_many(data[:0], "shop").save(tmp_path / "no")
    wrong = data[:6].assign(sold=[*data.sold[:4], None, 1e7])
    wrong.to_csv(tmp_path / "wrong.csv", index=False)
    for rows_, place in ((wrong, "row 5"), (tmp_path / "wrong.csv", "line 7")):
        said = f"'sold', among the rows that have it: 1 of 5 rows are left out, the first of them {place}"
        with pytest.warns(UserWarning, match=said):
            assert learners.adapt(rows_)["sold"].n == 4
