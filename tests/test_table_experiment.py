"""The experiment on a table of one's own: a CSV file in, a run folder out that needs nothing else."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.linear_model import Ridge

from metavib.adapt.learner import Learner
from metavib.adapt.preparation import of_run
from metavib.data.schema import read_rows
from metavib.data.table import digest
from metavib.objective import predictive
from metavib.random import seeded
from metavib.show import groups, tables
from metavib.training import build, checkpoint, recipes, run_folder
from metavib.training import loop as train
from metavib.training.fields import override
from metavib.training.protocols import experiment
from metavib.training.protocols.obvious import OWN, POOLED
from metavib.training.protocols.table import resolve, scaling
from program import done, metavib, refused

SMALL = {
    "model.widths": [16],
    "train.steps": 30,
    "train.tasks": 4,
    "train.validate_every": 10,
    "train.validation_tasks": 8,
    "train.save_every": 10,
    "tasks.shots": 6,
    "tasks.queries": 5,
    "test.shots": [3],
    "test.tasks": 12,
    "test.queries": 5,
}


def write(path, *, target=lambda a, b, w, rng: 500 + 40 * (w[0] + w[1] * a / 100 + 0.1 * rng.normal()), tasks=14):
    """Towns with relations of their own; inputs and outputs in large units."""
    rng = np.random.default_rng(0)
    rows = ["town,a,b,y"]
    for t in range(tasks):
        w = rng.normal(size=2)
        for a, b in rng.normal(size=(12, 2)) * [100, 0.01]:
            rows.append(f"town {t},{a:.6g},{b:.6g},{target(a, b, w, rng):.6g}")
    path.write_text("\n".join(rows) + "\n")
    return path


def config(path, method="gp-vib", **changes):
    given = {"tasks.table.csv": str(path), "tasks.table.task": "town", "tasks.table.target": "y"}
    dotted = {k.replace("__", "."): v for k, v in changes.items()}
    return override(recipes.recipe("table", method), SMALL | given | dotted)


@pytest.fixture
def csv(tmp_path):
    return write(tmp_path / "towns.csv")


def test_resolving_fills_in_what_the_file_decides_and_twice_is_once(csv):
    found = resolve(config(csv))
    table = found.tasks.table
    assert table.features == ("a", "b") and found.tasks.inputs == 2 and table.digest == digest(csv)
    assert resolve(found) == found
    # Means and scales are those of the training tasks alone.
    rows = experiment(found).split.train
    np.testing.assert_allclose(table.mean, rows.x.mean(0))
    np.testing.assert_allclose(table.scale, rows.x.std(0))
    assert table.y_mean == pytest.approx(rows.y.mean()) and table.y_scale == pytest.approx(rows.y.std())


def test_no_task_is_in_two_parts_and_training_sees_its_own_alone(csv):
    world = experiment(resolve(config(csv)))
    names = [set(part.tasks) for part in world.split]
    assert sum(map(len, names)) == len(set.union(*names)) == 14
    drawn = world.sample((200,), seeded(0))
    y = world.scaling.y.restore(drawn.query.y[drawn.query.mask].double())
    assert np.isclose(y.numpy()[:, None], world.split.train.y, atol=0.01).any(1).all()


@pytest.mark.parametrize("method", ["gp-vib", "maml", "stochastic-maml", "gp-maml"])
def test_every_method_trains_and_is_tested_in_a_run_folder(csv, tmp_path, method):
    wanted = resolve(config(csv, method))
    model = train.train(wanted, tmp_path / "run", quiet=True)
    result = experiment(wanted).evaluate(model, quiet=True)
    (row,) = result["rows"]
    assert result["method"] == method and row["tasks"] == 2 and row["splits"] == 6
    assert all(np.isfinite(m["mean"]) for m in row["metrics"].values())
    assert set(row["metrics"]) == {"mse", "log_density", "coverage_50", "coverage_90", "coverage_95"}


def test_scores_are_in_the_units_of_the_table(tmp_path):
    """Outputs 1000 times as large: squared errors a million times as large, densities a thousandth, coverage equal."""
    scores = []
    for unit in (1, 1000):
        path = write(tmp_path / f"{unit}.csv", target=lambda a, b, w, rng, u=unit: u * (w[0] + w[1] * a / 100))
        wanted = resolve(config(path, precision="float64"))
        scores.append(experiment(wanted).validate(build.model(wanted)))
    a, b = scores
    assert b["mse"] == pytest.approx(1e6 * a["mse"], rel=1e-3)
    assert b["log_density"] == pytest.approx(a["log_density"] - np.log(1000), abs=1e-3)
    assert b["coverage_90"] == pytest.approx(a["coverage_90"], abs=0.01)


def test_a_run_needs_its_folder_alone_to_adapt_and_predict(csv, tmp_path):
    """Without the CSV file: columns and standardisation come from the checkpoint's config."""
    wanted = resolve(config(csv))
    train.train(wanted, tmp_path / "run", quiet=True)
    csv.unlink()
    saved = checkpoint.load(tmp_path / "run" / run_folder.LAST).config
    assert saved == wanted
    (tmp_path / "support.csv").write_text("y,b,a\n500,0.01,3\n510,0.0,-50\n")  # columns in another order
    (tmp_path / "query.csv").write_text("a,b\n3,0.01\n")
    rows = of_run(saved)
    (x_t, y_t), x = rows.points(tmp_path / "support.csv"), rows.inputs(tmp_path / "query.csv")
    assert torch.equal(x_t[:1], x)
    scale = scaling(saved.tasks.table)
    torch.testing.assert_close(scale.y.restore(y_t), torch.tensor([500.0, 510.0], dtype=torch.float64))
    prediction = Learner.from_run(tmp_path / "run").adapt(tmp_path / "support.csv").predict(tmp_path / "query.csv")
    assert 300 < float(prediction.mean) < 700


@pytest.mark.parametrize("likelihood", ["student-t", "poisson", "bernoulli"])
def test_other_outputs_take_other_sites_and_scores(tmp_path, likelihood):
    def target(a, b, w, rng):
        return rng.poisson(np.exp(1 + w[0] / 2)) if likelihood != "bernoulli" else int(a * w[0] > 0)

    wanted = resolve(config(write(tmp_path / "t.csv", target=target), model__likelihood=likelihood))
    assert wanted.model.sites == "general" and (wanted.tasks.table.y_scale == 1) == (likelihood != "student-t")
    scores = experiment(wanted).validate(train.train(wanted, tmp_path / "run", quiet=True))
    assert ("accuracy" in scores) == (likelihood == "bernoulli") and np.isfinite(scores["score"])


def test_counts_of_ordinary_sizes_train_from_the_command_line(tmp_path):
    """Rates of 5 to 1000, through `metavib train table`; every number on record is finite."""

    def target(a, b, w, rng):
        return rng.poisson(np.clip(np.exp(5 + 2 * w[0]), 5, 1000))

    path = write(tmp_path / "counts.csv", target=target)
    changes = SMALL | {"train.steps": 60}
    options = [item for k, v in changes.items() for item in ("--set", f"{k}={json.dumps(v)}")]
    options += ["--task", "town", "--target", "y", "--likelihood", "poisson", "--out", tmp_path / "run", "--quiet"]
    done("train", "table", "--csv", path, *options)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    (row,) = record["evaluation"]["rows"]
    assert all(np.isfinite(m["mean"]) for m in row["metrics"].values())


def test_a_file_that_changed_is_refused(csv):
    wanted = resolve(config(csv))
    csv.write_text(csv.read_text().replace("town 3", "town 33"))
    with pytest.raises(ValueError, match="contents have changed"):
        experiment(wanted)


def test_missing_inputs_are_refused_by_column_or_flagged(csv):
    text = csv.read_text().splitlines()
    csv.write_text(
        "\n".join(
            [text[0], *(r.replace(r.split(",")[2], "NA", 1) if i % 5 == 0 else r for i, r in enumerate(text[1:]))]
        )
    )
    with pytest.raises(ValueError, match="column 'b' has missing values"):
        resolve(config(csv, tasks__table__missing="refuse"))
    wanted = resolve(config(csv, tasks__table__missing="mean"))
    with pytest.warns(UserWarning, match="missing values: column 'b' in 25 of 120 rows. The mean"):
        told = resolve(config(csv)).tasks.table
    assert replace(told, missing="mean") == wanted.tasks.table
    assert wanted.tasks.inputs == 3 and wanted.tasks.table.flags == (1,)
    assert experiment(wanted).sample((2,), seeded(0)).query.x.shape[-1] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks__table__csv": None}, "--csv FILE"),
        ({"tasks__table__task": ""}, "--task COLUMN"),
        ({"tasks__table__task": "twon"}, "there is no column 'twon'. Did you mean 'town'"),
        ({"tasks__table__target": "y,b"}, "a run has one target, and y, b are several"),
        ({"tasks__table__target": "a", "tasks__table__features": ["a"]}, "cannot be an input as well"),
        ({"model__likelihood": "poisson"}, "counts"),
        ({"model__likelihood": "bernoulli"}, "must hold 0 and 1"),
        (
            {"model__likelihood": "softmax"},
            "towns.csv: column .y. has 168 different values, where one of classes has between 2",
        ),
        ({"model__backbone": "conv4"}, "must be mlp"),
        ({"device": "cuda"}, "set device = cpu"),
    ],
)
def test_what_cannot_be_is_refused_before_training(csv, changes, message):
    with pytest.raises(ValueError, match=message):
        experiment(resolve(config(csv, **changes)))


def test_a_config_that_was_not_resolved_says_so(csv):
    with pytest.raises(ValueError, match="was not resolved"):
        experiment(config(csv))
    with pytest.raises(ValueError, match=r"train\.objective must be vib or predictive"):
        config(csv, train__objective="elbo")
    assert build.objective(config(csv)) is predictive
    assert build.objective(replace(config(csv), train=replace(config(csv).train, objective="vib"))) is not predictive


# The reader


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("a,b\n1,2\n3\n", "line 3: 1 cell, where the header has 2"),
        ("a,b\n1,2\n3,4,5\n", "line 3: 3 cells"),
        ("a,b\n1,2\n2,3\n1,x\n", "line 4, column 'b': 'x' is no finite number"),
        ("a,b\n1,inf\n", "'inf' is no finite number"),
        ("a,b\n1,1_000\n", "'1_000' is no finite number"),
        ("a,a\n1,2\n", "names column 'a' twice"),
        ("a,\n1,2\n", "column 2 of the header has no name"),
        ("a;b\n1;2\n3\n", "line 3: 1 cell, where the header has 2"),
        ('a,b\n"1,2\n', "this is not CSV"),
        (b"a,b\n1,\xff\n", "not UTF-8 text"),
        ("a,b\n1," + "9" * 20_000 + "\n", "more than 10000 characters"),
        ("a,b\n1," + "9" * 200_000 + "\n", "line 2"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        read_rows(path)


def test_missing_and_infinite_inputs_are_refused_with_their_line(csv, tmp_path):
    """The header is line 1, and blank lines count, in training and after it; a Parquet file has rows."""
    refuse = {"tasks__table__missing": "refuse"}
    preparation = of_run(resolve(config(csv, **refuse)))
    head, *rows = Path(csv).read_text().splitlines()
    gap = ",".join([*rows[2].split(",")[:1], "", *rows[2].split(",")[2:]])
    (tmp_path / "gap.csv").write_text("\n".join([head, *rows[:2], "", gap, *rows[3:]]))
    message = "in 1 of {} rows, the first of them {}: fill or drop"
    with pytest.raises(ValueError, match=message.format(len(rows), "line 5")):
        resolve(config(tmp_path / "gap.csv", **refuse))
    with pytest.raises(ValueError, match=message.format(len(rows), "line 5")):
        preparation.points(tmp_path / "gap.csv")
    frame = pd.read_csv(tmp_path / "gap.csv")
    frame.to_parquet(tmp_path / "gap.parquet")
    for rows_of in (frame, tmp_path / "gap.parquet"):
        with pytest.raises(ValueError, match=message.format(len(rows), "row 3")):
            preparation.points(rows_of)


def test_a_missing_target_or_task_is_refused_with_its_place(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("t,a,y\nu,1,2\nu,3,NA\n")
    with pytest.raises(ValueError, match="line 3, column 'y': the target is missing"):
        read_rows(path, target="y", task="t")
    path.write_text("t,a,y\n ,1,2\n")
    with pytest.raises(ValueError, match="line 2, column 't': the task is missing"):
        read_rows(path, target="y", task="t")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_rows(tmp_path / "none.csv")


def test_a_table_from_a_spreadsheet_is_read(tmp_path):
    """A byte order mark, quotes, blanks, CRLF, blank lines and missing cells."""
    path = tmp_path / "t.csv"
    path.write_bytes('\ufefft, a ,"b, c",y\r\n"x ""y""",1,,3\r\n\r\nz, 2.5e1 ,7,4\r\n'.encode())
    found = read_rows(path, task="t", target="y")
    assert found.names == ("a", "b, c") and found.tasks.tolist() == ['x "y"', "z"]
    np.testing.assert_array_equal(found.x, [[1, np.nan], [25, 7]])
    assert found.y.tolist() == [3, 4]


@given(
    st.lists(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=6)
)
def test_numbers_come_back_to_the_last_bit(tmp_path, rows):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows))
    np.testing.assert_array_equal(read_rows(path).x, np.array(rows))


@given(st.one_of(st.binary(max_size=80), st.text(alphabet='ab,"\n\r;1.e-\x00', max_size=80).map(str.encode)))
def test_any_bytes_are_a_table_or_a_clear_refusal(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    try:
        with warnings.catch_warnings(action="ignore"):  # of columns that are not used
            found = read_rows(path)
    except ValueError as error:
        assert "t.csv" in str(error)
    else:
        assert found.x.shape == (len(found.x), len(found.names))


# Tables as people have them


@pytest.fixture(scope="module", params=["csv", "parquet"])
def shops(request, tmp_path_factory):
    """A table with all kinds of columns in a file, and its labels: two columns name a task, one counts the rows."""
    rng, n = np.random.default_rng(0), 160
    frame = pd.DataFrame(
        {
            "city": np.repeat([f"c{i}" for i in range(8)], 20),
            "shop": np.tile(np.repeat([1, 2], 10), 8),
            "sky": rng.choice(["sun", "rain", "fog"], n),
            "open": rng.random(n) > 0.3,
            "day": pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d"),
            "heat": rng.normal(10, 5, n).round(2),
            "note": [f"text {i}" for i in range(n)],
        }
    )
    frame["demand"] = (50 + 20 * (frame.sky == "sun") + 10 * frame.open + frame.heat + rng.normal(size=n)).round(3)
    frame["busy"] = np.where(frame.demand > frame.demand.median(), "yes", "no")
    frame["level"] = pd.cut(frame.demand, 3, labels=["low", "middle", "high"]).astype(str)
    frame.loc[::9, "sky"] = None
    folder = tmp_path_factory.mktemp("shops")
    path = folder / f"shops.{request.param}"
    frame.to_csv(path) if request.param == "csv" else frame.to_parquet(path)
    return folder, path, frame


TARGETS = {"demand": "gaussian", "busy": "bernoulli", "level": "softmax"}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("target", TARGETS)
def test_a_table_of_all_kinds_of_columns_goes_from_file_to_predictions(shops, target):
    """Training, adapting and predicting through the program; a frame in Python gives what the file gives."""
    folder, path, frame = shops
    run, file, query = folder / f"run-{target}", folder / f"{target}.safetensors", folder / f"query{path.suffix}"
    others = ",".join(name for name in TARGETS if name != target)
    names = ["--task", "city,shop", "--target", target, "--drop", others, "--missing", "mean"]
    options = [item for k, v in SMALL.items() for item in ("--set", f"{k}={json.dumps(v)}")]
    trained = metavib(
        "train", "table", "--method", "gp-vib", "--table", path, *names, *options, "--out", run, "--quiet"
    )
    assert trained.status == 0 and "column 'note' is not used" in " ".join(trained.err.split())
    saved = checkpoint.load(run / run_folder.LAST).config
    assert saved.model.likelihood == TARGETS[target] and saved.tasks.table.features == ("sky", "open", "day", "heat")
    done("adapt", run, "--support", path, "--task", "city,shop", "--out", file)
    asked = frame.iloc[:30].assign(sky="hail").drop(columns=target)
    asked.to_csv(query, index=False) if path.suffix == ".csv" else asked.to_parquet(query)
    rows = json.loads(done("predict", file, "--query", query, "--json"))
    assert [row["support"] for row in rows] == [10] * 30 and [row["sky"] for row in rows] == ["hail"] * 30
    done("predict", file, "--query", query, "--out", folder / "p.parquet")
    assert pd.read_parquet(folder / "p.parquet").to_dict("list").keys() == rows[0].keys()
    drawn = done("plot", run, "--out", folder / "figures").split()
    assert {Path(name).name for name in drawn} >= {"learning_curve.png", "errors.png"}
    for name in drawn:
        with Image.open(name) as picture:
            assert picture.size[0] > 500
    learner = Learner.from_run(run)
    found = learner.adapt_many(frame, "city,shop").predict(asked)
    if target == "demand":
        np.testing.assert_allclose([row["mean"] for row in rows], found.mean, rtol=1e-6)
        assert np.abs(found.mean.numpy() - frame.demand[:30]).mean() < 3 * frame.demand.std()
    else:
        classes = tuple(sorted(set(frame[target])))
        assert found.classes == classes
        np.testing.assert_allclose([[row[f"p({k})"] for k in classes] for row in rows], found.probabilities, atol=1e-6)
        one = learner.adapt(frame[:3].assign(**{target: classes[0]})).predict(asked[:1])  # all classes, seen or not
        assert one.classes == classes
        with pytest.raises(ValueError, match=f"row 1, column '{target}': 'maybe' is none of the classes {classes[0]}"):
            learner.adapt(frame[:1].assign(**{target: "maybe"}))


def test_the_figure_of_errors_is_of_test_groups_and_knows_no_more_rows_than_they_have(csv, tmp_path):
    """Against a slow loop over groups; the ridges are scikit-learn's."""
    wanted = resolve(config(csv))
    train.train(wanted, tmp_path / "run", quiet=True)
    learner = Learner.from_run(tmp_path / "run")
    found = groups.compare(learner, wanted)
    assert found.known == (0, 1, 2, 3, 5, 10) and found.groups == 2  # groups have twelve rows
    world = groups._World(learner, wanted)
    assert set(world.ids[world.test]) == set(experiment(wanted).split.test.tasks)
    squares, pooled, own, inside = [], [], [], []
    everywhere = Ridge(1.0).fit(world.x[world.train], world.y[world.train])
    frame = pd.read_csv(csv)
    for support, query in world.splits(3):
        assert len(support) == 6 and len(query) == 18 and not set(support) & set(query)
        for name in np.unique(world.ids[query]):
            a, b = (rows[world.ids[rows] == name] for rows in (support, query))
            said = learner.adapt(frame.iloc[a]).predict(frame.iloc[b])
            squares += ((said.mean.numpy() - frame.y.iloc[b]) ** 2).tolist()
            low, high = said.interval(0.9)
            inside += ((low.numpy() <= frame.y.iloc[b]) & (frame.y.iloc[b] <= high.numpy())).tolist()
            pooled += ((everywhere.predict(world.x[b]) - world.y[b]) ** 2).tolist()
            own += ((Ridge(1.0).fit(world.x[a], world.y[a]).predict(world.x[b]) - world.y[b]) ** 2).tolist()
    at = found.known.index(3)
    wanted_errors = {"gp-vib": squares, POOLED: pooled, OWN: own}
    for name, values in wanted_errors.items():
        assert found.errors[name][at] == pytest.approx(np.mean(values) ** 0.5, rel=1e-4), name
    assert found.coverage[at] == pytest.approx(np.mean(inside), abs=0.03)
    figure = groups.errors(found, "gp-vib", classes=False)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xydata()[:, 1], found.errors["gp-vib"])
    assert len(groups.groups(learner, wanted).axes) == 2  # two groups
    squares = [(learner.adapt(frame[:0]).predict(frame.iloc[world.test]).mean.numpy() - world.y[world.test]) ** 2]
    assert found.errors["gp-vib"][0] == pytest.approx(np.mean(squares) ** 0.5, rel=1e-4)  # before the first row
    before = np.mean((world.y[world.train].mean() - world.y[world.test]) ** 2) ** 0.5
    assert found.errors[OWN][0] == pytest.approx(before)
    assert figure.axes[0].get_ylabel() == "RMSE, y"


def test_in_the_figure_of_errors_groups_count_alike_however_many_rows_they_have(csv, tmp_path):
    frame = pd.read_csv(csv)
    tested = sorted(set(experiment(resolve(config(csv))).split.test.tasks))
    short = frame.drop(frame.index[frame.town == tested[0]][3:])  # three rows of the twelve
    short.to_csv(tmp_path / "short.csv", index=False)
    wanted = resolve(config(tmp_path / "short.csv"))
    train.train(wanted, tmp_path / "run", quiet=True)
    learner = Learner.from_run(tmp_path / "run")
    found = groups.compare(learner, wanted)
    squares = []
    for name in tested:
        mine = short[short.town == name]
        squares.append(np.mean((learner.adapt(short[:0]).predict(mine).mean.numpy() - mine.y) ** 2))
    assert found.errors["gp-vib"][0] == pytest.approx(np.mean(squares) ** 0.5, rel=1e-4)


def test_groups_with_numbers_for_ids_are_drawn_where_they_were_not_learned_from(csv, tmp_path):
    """A Parquet file has numbers as they are, whose order is not that of their texts."""
    frame = pd.read_csv(csv)
    frame["town"] = frame.town.str.removeprefix("town ").astype(int)
    frame.to_parquet(tmp_path / "t.parquet")
    wanted = resolve(config(tmp_path / "t.parquet"))
    train.train(wanted, tmp_path / "run", quiet=True)
    world = groups._World(Learner.from_run(tmp_path / "run"), wanted)
    assert set(world.ids[world.test]) == set(map(str, experiment(wanted).split.test.tasks))


def test_groups_along_dates_are_drawn_over_their_own_time(tmp_path):
    days, sensor = np.tile(np.arange(8), 14), np.repeat(np.arange(14), 8)
    at = pd.Timestamp("2024-03-01") + pd.to_timedelta(10 * sensor + days, "D")
    y = np.sin(days) + 5 * np.random.default_rng(0).normal(size=14)[sensor]
    kind = np.where(sensor % 2, "old", "new")  # which is the same for all rows of a sensor
    pd.DataFrame({"sensor": sensor, "at": at, "kind": kind, "heat": y}).to_csv(tmp_path / "heat.csv", index=False)
    run = tmp_path / "run"
    table = ["train", "table", tmp_path / "heat.csv", "--task", "sensor", "--target", "heat", "--out", run, "--quiet"]
    done(*table, "--set", "test.tasks=4")
    learner = Learner.from_run(run)
    figure = groups.groups(learner, run_folder.chosen(run).config)
    for ax in figure.axes:
        number = int(ax.get_title().removeprefix("sensor "))
        first = pd.Timestamp("2024-03-01") + pd.Timedelta(days=10 * number)
        mean = next(line for line in ax.lines if line.get_label() == "mean").get_xydata()
        assert mean[0, 0] == (first - pd.Timestamp(0)).days and mean[-1, 0] == mean[0, 0] + 7


def test_reported_numbers_of_support_points_are_those_that_tasks_have(csv):
    wanted = resolve(config(csv, test__shots=[3, 11, 50, 100]))
    rows = experiment(wanted).evaluate(build.model(wanted), quiet=True)["rows"]
    assert [row["shots"] for row in rows] == [3, 11]


def test_only_groups_with_more_rows_than_are_known_are_tested_on(csv, tmp_path):
    frame = pd.read_csv(csv)
    small = sorted(set(experiment(resolve(config(csv))).split.test.tasks))[0]
    kept = (frame.town != small) | (frame.groupby("town").cumcount() < 4)
    frame[kept].to_csv(tmp_path / "t.csv", index=False)
    wanted = resolve(config(tmp_path / "t.csv", test__shots=[0, 3, 5, 50]))
    result = experiment(wanted).evaluate(build.model(wanted), quiet=True)
    assert [(row["shots"], row["tasks"]) for row in result["rows"]] == [(0, 2), (3, 2), (5, 1), (11, 1)]
    lines = [[cell.strip() for cell in line.split("|")] for line in tables.evaluation(result).split("\n")]
    assert [line[1:3] for line in lines[2:6]] == [["0", "2"], ["3", "2"], ["5", "1"], ["11", "1"]]


def rewritten(csv, tmp_path, column, change, name="t.csv"):
    """The table with other cells in a column."""
    frame = pd.read_csv(csv)
    frame[column] = change(frame[column])
    frame.to_csv(tmp_path / name, index=False)
    return tmp_path / name


DAYS = pd.Series(pd.date_range("2024-01-01", periods=168))
MISTAKES = {
    "decimal commas": (
        "y",
        lambda y: y.map(lambda v: f"{v:.3f}".replace(".", ",")),
        "line 2, column 'y': '[0-9]*,[0-9]*' is no finite number. Write numbers as 1234.5",
    ),
    "day before month": (
        "a",
        lambda a: DAYS.dt.strftime("%d/%m/%Y"),
        "line 2, column 'a': '01/01/2024' looks like a date",
    ),
    "days with points": ("a", lambda a: DAYS.dt.strftime("%d.%m.%Y"), "'01.01.2024' looks like a date"),
}


def test_rows_without_a_target_or_a_task_are_left_out_and_said_so(csv, tmp_path):
    """What is learned is what the file without these rows would give."""
    rows = Path(csv).read_text().splitlines()
    frame = pd.read_csv(csv, dtype=str)
    frame.loc[3, "y"], frame.loc[7, "town"] = "n/a", None
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    (tmp_path / "without.csv").write_text("\n".join(r for i, r in enumerate(rows) if i not in (4, 8)))
    with pytest.warns(UserWarning, match="2 of 168 rows have no 'y' or no 'town', and are left out; .* line 5"):
        found = resolve(config(tmp_path / "gaps.csv"))
    wanted = resolve(config(tmp_path / "without.csv"))
    assert found.tasks.table.y_mean == wanted.tasks.table.y_mean and found.tasks.table.mean == wanted.tasks.table.mean
    mine, its = experiment(found).split.train, experiment(wanted).split.train
    np.testing.assert_array_equal(mine.y, its.y)


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_of_newcomers_are_answered_with_what_to_do(case, csv, tmp_path):
    column, change, message = MISTAKES[case]
    with pytest.raises(ValueError, match=message):
        resolve(config(rewritten(csv, tmp_path, column, change)))


def test_dates_may_have_points_where_the_year_comes_first_and_versions_are_no_dates(csv, tmp_path):
    points = rewritten(csv, tmp_path, "a", lambda a: DAYS.dt.strftime("%Y.%m.%d"))
    assert '"moment"' in resolve(config(points)).tasks.table.columns[0]
    versions = rewritten(csv, tmp_path, "a", lambda a: [f"1.{i % 3}.12" for i in range(len(a))])
    assert '"category"' in resolve(config(versions)).tasks.table.columns[0]
    named = config(
        rewritten(csv, tmp_path, "a", lambda a: ["1/2/2024", "2/2/2024"] * 84), tasks__table__categories=["a"]
    )
    assert '"category"' in resolve(named).tasks.table.columns[0]


def test_zeros_and_ones_are_two_classes_unless_a_likelihood_is_named(csv, tmp_path):
    binary = rewritten(csv, tmp_path, "y", lambda y: (y > 500).astype(int))
    assert resolve(config(binary)).model.likelihood == "bernoulli"
    assert resolve(config(binary, model__likelihood="gaussian")).model.likelihood == "gaussian"
    assert resolve(config(csv)).model.likelihood == "gaussian"


def test_labels_that_differ_in_case_are_spoken_of(csv, tmp_path):
    with pytest.warns(UserWarning, match="the labels 'Yes' and 'yes', which count as two classes"):
        resolve(config(rewritten(csv, tmp_path, "y", lambda y: ["Yes", "yes", "no"] * 56)))


def test_the_program_answers_what_newcomers_type(csv, tmp_path):
    assert "For a table: `metavib train table t.csv`" in refused("train", "t.csv", "--task", "town")
    message = refused("train", "table", csv, "--task", "town", "--target", "y", "--features", "a")
    assert "columns of a table are chosen by --inputs a" in message
    assert "is a file, and no run folder" in refused("show", csv)
    (tmp_path / "t.csv.gz").write_bytes(b"")
    packed = refused("train", "table", tmp_path / "t.csv.gz", "--task", "town", "--target", "y")
    assert "the file is compressed; unpack it first" in packed
    assert "no column 'Y'. Did you mean 'y'?" in refused("train", "table", csv, "--task", "town", "--target", "Y")


def test_rows_of_many_tasks_that_are_taken_as_one_and_tasks_that_are_not_known_are_spoken_of(csv, tmp_path):
    run = tmp_path / "run"
    train.train(resolve(config(csv)), run, quiet=True)
    done("adapt", run, "--support", csv, "--task", "town", "--out", tmp_path / "many")
    others = rewritten(csv, tmp_path, "town", lambda town: "elsewhere")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        pooled = metavib("adapt", run, "--support", csv, "--out", tmp_path / "one")
        unknown = metavib("predict", tmp_path / "many", "--query", others)
    assert pooled.status == unknown.status == 0
    assert (
        "rows of 14 tasks, by their 'town', are taken as one: adapt_many (on the command line --task town)"
        in pooled.err
    )
    assert "none of the tasks that 'town' names in" in unknown.err


def test_a_run_whose_file_has_moved_is_tested_drawn_and_gone_on_with_from_its_new_place(csv, tmp_path, monkeypatch):
    run, here = tmp_path / "run", tmp_path / "moved"
    here.mkdir()
    train.train(resolve(config(csv, **{"train.tasks": 1})), run, quiet=True)
    before = done("evaluate", run, "--json", "--quiet")
    csv.rename(here / "here.csv")
    monkeypatch.chdir(here)
    for command in ("evaluate", "plot"):
        message = refused(command, run)
        assert f"{csv} is not there: a run on a table is trained and tested on" in message and "--csv FILE" in message
    assert done("evaluate", run, "--csv", "here.csv", "--json", "--quiet") == before
    assert "errors.png" in done("plot", run, "--csv", "here.csv", "--out", tmp_path / "figures")
    assert "1 task a step" in done("show", run)
    steps = str(config(csv).train.steps + 1)
    assert "is not there" in refused("train", "--resume", run, "--steps", steps, "--quiet")
    done("train", "--resume", run, "--csv", "here.csv", "--steps", steps, "--quiet")
    done("evaluate", run, "--quiet")  # which knows the new place from then on
    other = rewritten(here / "here.csv", tmp_path, "town", lambda town: "elsewhere")
    for command in ("evaluate", "plot"):
        assert "its contents have changed" in refused(command, run, "--csv", other)


def test_features_may_be_named_and_labels_refused_where_numbers_are_needed(shops, tmp_path):
    _, path, _ = shops
    names = ["--csv", path, "--task", "city", "--target", "busy", "--out", tmp_path / "run", "--quiet"]
    assert "no column 'warmth'" in refused("train", "table", *names, "--inputs", "heat,warmth")
    assert "'busy' holds labels, and poisson takes numbers" in refused(
        "train", "table", *names, "--inputs", "heat", "--likelihood", "poisson"
    )
    refuse = ["--inputs", "heat,sky", "--missing", "refuse"]
    assert "column 'sky' has missing values" in refused("train", "table", *names, *refuse)
    assert not (tmp_path / "run").exists()
