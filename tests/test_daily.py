"""Daily use through the program itself: a CSV file in, a run, a task's state, rows out."""

import csv
import errno
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import oracles
from metavib import files
from metavib.adapt.file import run_of
from metavib.adapt.learner import Learner
from metavib.training import checkpoint, run_folder
from program import (
    HEADER,
    OUTPUTS,
    alone,
    done,
    metavib,
    predicted,
    refused,
    settings,
    task_rows,
    train_table,
    values,
    write,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run on each kind of table, all through the program, with files of a new task beside it."""
    root = tmp_path_factory.mktemp("home")
    for kind in OUTPUTS:
        place = root / kind
        place.mkdir()
        run = train_table(place, kind)
        new = task_rows(kind, 100, 20)
        write(place / "support.csv", HEADER, new[:8])
        write(place / "more.csv", HEADER, new[8:13])
        write(place / "all.csv", HEADER, new[:13])
        write(place / "query.csv", HEADER[:3], [row[:3] for row in new[13:]])
        done("adapt", run, "--support", place / "support.csv", "--out", place / "task.safetensors")
    return root


@pytest.fixture
def place(home, tmp_path):
    """A copy of the Gaussian table's files, to be broken; the run stays where it was."""
    for name in ("support.csv", "more.csv", "all.csv", "query.csv", "task.safetensors"):
        shutil.copy(home / "gaussian" / name, tmp_path / name)
    return tmp_path


def numpy_features(run: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """phi of raw rows by hand: standardised columns, two ReLU layers, a constant 1."""
    tensors = {k: t.double().numpy() for k, t in checkpoint.load(run / run_folder.BEST).part("model").items()}
    table = checkpoint.load(run / run_folder.LAST).config.tasks.table

    def phi(x: np.ndarray) -> np.ndarray:
        h = (x - np.array(table.mean)) / np.array(table.scale)
        for layer in (0, 1):
            name = f"prior.network.body.layers.{layer}"
            h = np.maximum(h @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"], 0)
        return oracles.append_one(h)

    return phi, tensors


def test_a_table_is_predicted_in_its_own_units_as_slow_numpy_does(home):
    """From the CSV files alone: standardise, features, dense GP posterior, back to units, normal quantiles."""
    folder = home / "gaussian"
    phi, tensors = numpy_features(folder / "run")
    config = checkpoint.load(folder / "run" / run_folder.LAST).config
    support = np.array([row[1:] for row in task_rows("gaussian", 100, 20)[:8]], dtype=float)
    query = np.array([row[1:3] for row in task_rows("gaussian", 100, 20)[13:]], dtype=float)
    rows = np.array([r[3] for s in range(12) for r in task_rows("gaussian", s)])
    y_mean, y_scale = config.tasks.table.y_mean, config.tasks.table.y_scale
    assert rows.min() < y_mean < rows.max() and 50 < y_scale < 1000
    noise = config.model.noise_floor + np.log1p(np.exp(tensors["likelihood.noise.raw"]))
    k = oracles.linear(float(tensors["prior.kernel.log_scale"]))
    a, b = phi(support[:, :2]), phi(query)
    m = ((support[:, 2] - y_mean) / y_scale)[:, None]
    K, K_star, diagonal = oracles.pairwise(k, a, a), oracles.pairwise(k, b, a), np.array([k(z, z) for z in b])
    mean, var = oracles.marginals(K, K_star, diagonal, m, np.full(len(a), noise))
    mean, sd = mean[:, 0] * y_scale + y_mean, np.sqrt(var + noise) * y_scale
    low, high = stats.norm(mean, sd).interval(0.9)
    found = predicted(folder / "task.safetensors", folder / "query.csv", "--level", 0.9)
    assert list(found[0]) == ["query", *HEADER[:3], "mean", "sd", "low 90%", "high 90%"]
    assert [row["query"] for row in found] == [str(i) for i in range(1, 8)]
    assert [[row[name] for name in HEADER[:3]] for row in found] == [r[:3] for r in task_rows("gaussian", 100, 20)[13:]]
    np.testing.assert_allclose(values(found), np.stack([mean, sd, low, high], -1), rtol=1e-5)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_the_program_says_what_the_python_api_says(home, kind):
    folder = home / kind
    task = Learner.from_run(folder / "run").adapt(folder / "support.csv")
    said = task.predict(folder / "query.csv")
    found = predicted(folder / "task.safetensors", folder / "query.csv")
    if kind == "bernoulli":
        assert [row["class"] for row in found] == said.labels and set(said.labels) <= {0, 1}
        wanted = torch.cat([said.entropy[:, None], said.probabilities], -1).numpy()
        assert list(found[0]) == ["query", *HEADER[:3], "class", "entropy", "p(0)", "p(1)"]
    else:
        wanted = torch.stack([said.mean, said.variance.sqrt(), *said.interval(0.95)], -1).numpy()
    np.testing.assert_allclose(values(found), wanted, rtol=1e-12)


def test_counts_are_predicted_as_counts(home):
    """Nothing is standardised: rates are positive, and the ends of an interval are counts."""
    found = values(predicted(home / "poisson" / "task.safetensors", home / "poisson" / "query.csv"))
    mean, sd, low, high = found.T
    assert (mean > 0).all() and (sd**2 >= mean - 1e-9).all()  # a mixture of Poissons is no narrower than one
    assert (low == low.round()).all() and (high == high.round()).all() and (0 <= low).all() and (low < high).all()


def test_heavy_tails_make_wider_intervals_than_a_normal_of_the_same_deviation_would_far_out(home):
    def widths(level: float) -> np.ndarray:
        place = home / "student-t"
        _, sd, low, high = values(predicted(place / "task.safetensors", place / "query.csv", "--level", level)).T
        return (high - low) / (2 * sd * stats.norm.ppf((1 + level) / 2))

    assert (widths(0.9999) > 1.05).all() and (widths(0.5) < 1).all()


def test_binary_probabilities_sum_to_one_and_the_class_is_the_larger(home):
    found = predicted(home / "bernoulli" / "task.safetensors", home / "bernoulli" / "query.csv")
    for row in found:
        assert row["p(0)"] + row["p(1)"] == pytest.approx(1) and row["class"] == int(row["p(1)"] > 0.5)
        entropy = -sum(p * np.log(p) for p in (row["p(0)"], row["p(1)"]))
        assert row["entropy"] == pytest.approx(entropy)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_update_is_adapting_to_all_and_forget_takes_it_back(home, tmp_path, kind):
    source, state = home / kind, tmp_path / "task.safetensors"
    shutil.copy(source / "task.safetensors", state)
    before = values(predicted(state, source / "query.csv"))
    assert "13 points" in done("update", state, "--points", source / "more.csv")
    done("adapt", source / "run", "--support", source / "all.csv", "--out", tmp_path / "all.safetensors")
    after = values(predicted(state, source / "query.csv"))
    whole = values(predicted(tmp_path / "all.safetensors", source / "query.csv"))
    np.testing.assert_allclose(after, whole, rtol=1e-5, atol=1e-7)
    assert not np.allclose(after, before, rtol=1e-3)
    done("update", state, "--points", source / "more.csv", "--forget", "--out", tmp_path / "less.safetensors")
    np.testing.assert_allclose(
        values(predicted(tmp_path / "less.safetensors", source / "query.csv")), before, rtol=1e-3
    )
    np.testing.assert_array_equal(values(predicted(state, source / "query.csv")), after)  # --out left it alone
    few = state.stat().st_size
    for command in (
        ["adapt", source / "run", "--support", source / "all.csv"],
        ["update", state, "--points", source / "all.csv"],
    ):
        done(*command, "--out", tmp_path / f"{command[0]}.safetensors", "--sums")
    sizes = {(tmp_path / f"{name}.safetensors").stat().st_size for name in ("adapt", "update")}
    assert len(sizes) == 1 and few < sizes.pop()  # sums take as much room after 13 points as after 26


def test_every_form_of_output_says_the_same(home, tmp_path):
    """JSON and CSV to the last bit, the table to four digits; --out writes what is printed otherwise."""
    state, query = home / "gaussian" / "task.safetensors", home / "gaussian" / "query.csv"
    numbers = values(predicted(state, query))
    text = done("predict", state, "--query", query, "--csv")
    read = list(csv.DictReader(io.StringIO(text)))
    assert list(read[0]) == ["query", *HEADER[:3], "mean", "sd", "low 95%", "high 95%"]
    np.testing.assert_array_equal(np.array([[float(v) for v in list(row.values())[4:]] for row in read]), numbers)
    table = done("predict", state, "--query", query).splitlines()
    cells = np.array([[float(cell) for cell in line.strip("|").split("|")[4:]] for line in table[2:]])
    np.testing.assert_allclose(cells, numbers, rtol=1e-3)
    assert done("predict", state, "--query", query, "--csv", "--out", tmp_path / "a" / "p.csv") == ""
    assert (tmp_path / "a" / "p.csv").read_text() == text
    # Without a word about the form, the file's name says it.
    for name, option in (("q.csv", "--csv"), ("q.json", "--json"), ("q.txt", None), ("q", None)):
        assert done("predict", state, "--query", query, "--out", tmp_path / name) == ""
        assert (tmp_path / name).read_text() == done(
            "predict", state, "--query", query, *[option] * (option is not None)
        )
    message = refused("predict", state, "--query", query, "--out", tmp_path / "q.xlsx")
    assert ".csv, .json" in message and "q.xlsx" in message and not (tmp_path / "q.xlsx").exists()


def test_columns_may_come_in_any_order_with_others_between(place):
    rows = [row[1:] for row in task_rows("gaussian", 100, 20)[13:]]
    write(place / "other.csv", ["note", "temperature", "demand", "hour"], [["x", t, "?", h] for h, t, _ in rows])
    state = place / "task.safetensors"
    found = predicted(state, place / "other.csv")
    assert alone(found) == alone(predicted(state, place / "query.csv"))
    assert list(found[0])[:5] == ["query", "note", "temperature", "demand", "hour"] and found[0]["demand"] == "?"


# Many tasks in one file


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_table_of_many_tasks_is_adapted_to_at_once(home, tmp_path, kind):
    """Each row comes back as its own task predicts it, with how much is known of that task; 0 for one never seen."""
    run, tasks, cities = home / kind / "run", tmp_path / "tasks.safetensors", (100, 101, 102)
    rows = {seed: task_rows(kind, seed, 20) for seed in (*cities, 103)}
    known = {100: 8, 101: 3, 102: 15}
    write(tmp_path / "s.csv", HEADER, [row for seed, n in known.items() for row in rows[seed][:n]])
    asked = [row[:3] for i in range(15, 20) for seed in rows for row in [rows[seed][i]]]  # one of each city in turn
    write(tmp_path / "q.csv", ["id", *HEADER[:3]], [[f"row {i}", *row] for i, row in enumerate(asked)])
    assert "3 tasks, 26 points" in done("adapt", run, "--support", tmp_path / "s.csv", "--task", "city", "--out", tasks)
    found = predicted(tasks, tmp_path / "q.csv")
    assert [row["id"] for row in found] == [f"row {i}" for i in range(20)]
    assert [row["city"] for row in found] == [row[0] for row in asked]
    assert [row["support"] for row in found] == [8, 3, 15, 0] * 5
    for i, seed in enumerate(cities):
        write(tmp_path / "one.csv", HEADER, rows[seed][: known[seed]])
        write(tmp_path / "own.csv", HEADER[:3], asked[i::4])
        done("adapt", run, "--support", tmp_path / "one.csv", "--out", tmp_path / "one.safetensors")
        alone = values(predicted(tmp_path / "one.safetensors", tmp_path / "own.csv"))
        np.testing.assert_allclose(values(found[i::4]), alone, rtol=1e-4, atol=1e-6)
    prior = Learner.from_run(run).adapt(([], [])).predict([[row[1], row[2]] for row in asked[3::4]])
    numbers = [[v for v in row.values() if isinstance(v, float)] for row in prior.rows()]
    np.testing.assert_allclose(values(found[3::4]), numbers, rtol=1e-4, atol=1e-6)

    write(tmp_path / "more.csv", HEADER, [*rows[101][3:8], *rows[103][:2]])
    assert "4 tasks, 33 points" in done("update", tasks, "--points", tmp_path / "more.csv")
    assert [row["support"] for row in predicted(tasks, tmp_path / "q.csv")] == [8, 8, 15, 2] * 5
    done("update", tasks, "--points", tmp_path / "more.csv", "--forget", "--sums")
    again = predicted(tasks, tmp_path / "q.csv")
    assert [row["support"] for row in again] == [8, 3, 15, 0] * 5
    np.testing.assert_allclose(values(again), values(found), rtol=1e-3, atol=1e-5)
    assert "x" not in files.read_tensors(tasks)[0]  # sums alone


def test_many_tasks_are_refused_where_there_is_one_and_the_other_way_round(home, place):
    run, state = home / "gaussian" / "run", place / "task.safetensors"
    assert "holds one task" in refused("predict", state, "--query", place / "query.csv", "--task", "city")
    message = refused("adapt", run, "--support", place / "support.csv", "--task", "town", "--out", state)
    assert "'town'" in message and str(place / "support.csv") in message
    done("adapt", run, "--support", place / "support.csv", "--task", "city", "--out", place / "tasks.safetensors")
    write(place / "q.csv", HEADER[1:3], [[3.0, 280.0]])  # which city?
    assert "'city'" in refused("predict", place / "tasks.safetensors", "--query", place / "q.csv")


def test_a_run_named_from_one_folder_is_found_from_another(home, place, monkeypatch):
    """Relative paths: of the run, and of the file."""
    shutil.copytree(home / "gaussian" / "run", place / "run")
    monkeypatch.chdir(place)
    done("adapt", "run", "--support", "support.csv", "--out", "t.safetensors")
    wanted = predicted(Path("t.safetensors"), Path("query.csv"))
    (place / "deeper").mkdir()
    monkeypatch.chdir(place / "deeper")
    assert predicted(Path("../t.safetensors"), Path("../query.csv")) == wanted
    shutil.move(place / "run", place / "deeper" / "run")
    assert "--run" in refused("predict", "../t.safetensors", "--query", "../query.csv")
    assert predicted(Path("../t.safetensors"), Path("../query.csv"), "--run", "run") == wanted


# What is refused, and what it leaves behind.


def edited(source: Path, name: str, line: int, column: int, cell: str) -> Path:
    lines = [row.split(",") for row in source.read_text().splitlines()]
    lines[line - 1][column] = cell
    path = source.parent / name
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    return path


BROKEN = {
    "text": (4, 1, "noon", ("line 4", "'hour'", "'noon'")),
    "infinity": (3, 2, "inf", ("line 3", "'temperature'", "'inf'")),
    "missing input": (5, 1, "", ("line 5", "'hour'", "missing")),
    "nan": (2, 2, "NaN", ("line 2", "'temperature'", "missing")),
    "missing target": (6, 3, "", ("line 6", "'demand'", "missing")),
    "target as text": (3, 3, "lots", ("line 3", "'demand'", "'lots'")),
    "column renamed": (1, 1, "hours", ("'hour'", "Did you mean 'hours'?")),
    "column twice": (1, 1, "temperature", ("'temperature' twice",)),
}


GAPS = ("missing input", "nan")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", GAPS)
def test_gaps_where_training_had_none_are_filled_and_told_of(place, case):
    line, column, cell, (_, name, _) = BROKEN[case]
    bad = edited(place / "query.csv", "bad.csv", line, column, cell)
    ended = metavib("predict", place / "task.safetensors", "--query", bad, "--csv")
    told = f"missing values, which training had none of: column {name} in 1 of"
    assert ended.status == 0 and told in " ".join(ended.err.split()), ended


@pytest.mark.parametrize("case", [case for case in BROKEN if case not in GAPS])
def test_bad_cells_are_named_by_file_row_and_column_and_the_state_stays(home, place, case):
    line, column, cell, words = BROKEN[case]
    bad, state = edited(place / "more.csv", "bad.csv", line, column, cell), place / "task.safetensors"
    before = state.read_bytes()
    for command in (["update", state, "--points", bad], ["adapt", home / "gaussian" / "run", "--support", bad]):
        message = refused(*command, *(["--out", state] if command[0] == "adapt" else []))
        assert str(bad) in message and all(word in message for word in words), message
    assert state.read_bytes() == before
    assert not any(p.name.startswith(".") for p in place.iterdir())  # no half of a file


@pytest.mark.parametrize("case", ["text", "infinity", "column renamed"])
def test_bad_queries_are_named_and_nothing_is_written(place, case):
    line, column, cell, words = BROKEN[case]
    bad = edited(place / "query.csv", "bad.csv", line, column, cell)
    message = refused("predict", place / "task.safetensors", "--query", bad, "--csv", "--out", place / "p.csv")
    assert str(bad) in message and all(word in message for word in words), message
    assert not (place / "p.csv").exists()


@pytest.mark.parametrize("case", [case for case in BROKEN if case != "missing target"])
def test_training_on_a_bad_table_is_refused_before_there_is_a_run(home, tmp_path, case):
    line, column, cell, words = BROKEN[case]
    shutil.copy(home / "gaussian" / "data.csv", tmp_path / "data.csv")
    bad = edited(tmp_path / "data.csv", "bad.csv", line, column, cell)
    columns = ["--task", "city", "--target", "demand", "--set", 'tasks.table.features=["hour","temperature"]']
    columns += ["--missing", "refuse"]
    message = refused("train", "table", "--csv", bad, *columns, "--out", tmp_path / "run", "--quiet")
    assert str(bad) in message and all(word in message for word in words), message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "city", "--target", "demands"], ("'demands'", "Did you mean 'demand'?")),
        (["--task", "town", "--target", "demand"], ("'town'",)),
        (["--target", "demand"], ("--task",)),
        (["--task", "city"], ("--target",)),
        (["--task", "demand", "--target", "demand"], ("'demand' cannot be both",)),
        (["--task", "city", "--target", "demand", "--likelihood", "poisson"], ("'demand'", "counts")),
        (["--task", "city", "--target", "demand", "--likelihood", "bernoulli"], ("'demand'", "0 and 1")),
    ],
)
def test_training_with_columns_that_do_not_fit_is_refused_before_there_is_a_run(home, tmp_path, options, words):
    data = home / "gaussian" / "data.csv"
    message = refused("train", "table", "--csv", data, *options, "--out", tmp_path / "run", "--quiet")
    assert all(word in message for word in words) and not (tmp_path / "run").exists(), message


@pytest.mark.parametrize(("kind", "cell"), [("poisson", "2.5"), ("poisson", "-1"), ("bernoulli", "2")])
def test_outputs_the_likelihood_has_no_room_for_are_refused_by_file_and_column(home, tmp_path, kind, cell):
    shutil.copy(home / kind / "more.csv", tmp_path / "more.csv")
    bad = edited(tmp_path / "more.csv", "bad.csv", 3, 3, cell)
    message = refused("update", home / kind / "task.safetensors", "--points", bad, "--out", tmp_path / "t.safetensors")
    assert str(bad) in message and "'demand'" in message, message
    assert not (tmp_path / "t.safetensors").exists()


def test_missing_files_are_named(home, place):
    nothing, state, run = place / "nothing", place / "task.safetensors", home / "gaussian" / "run"
    before = state.read_bytes()
    for command in (
        ["adapt", run, "--support", nothing, "--out", state],
        ["adapt", nothing, "--support", place / "support.csv", "--out", state],
        ["update", state, "--points", nothing],
        ["update", nothing, "--points", place / "more.csv"],
        ["predict", nothing, "--query", place / "query.csv"],
        ["predict", state, "--query", nothing],
    ):
        assert str(nothing) in refused(*command)
    assert state.read_bytes() == before and not nothing.exists()


def test_what_was_never_learned_is_not_forgotten(home, place):
    state = place / "task.safetensors"
    before = state.read_bytes()
    assert "not all among those learned" in refused("update", state, "--points", place / "more.csv", "--forget")
    assert "cannot be forgotten where only 8" in refused("update", state, "--points", place / "all.csv", "--forget")
    assert state.read_bytes() == before


@pytest.mark.parametrize("level", [0, 1, -0.5, "nan"])
def test_a_level_outside_the_unit_interval_is_refused(place, level):
    message = refused("predict", place / "task.safetensors", "--query", place / "query.csv", "--level", level)
    assert "between 0 and 1" in message


def test_a_state_of_another_run_is_refused(home, place):
    state = place / "task.safetensors"
    before = state.read_bytes()
    for command in (
        ["predict", state, "--query", place / "query.csv"],
        ["update", state, "--points", place / "more.csv"],
    ):
        message = refused(*command, "--run", home / "student-t" / "run")
        assert str(state) in message and "another model" in message
    assert state.read_bytes() == before


def test_a_run_that_moved_is_named_with_run(home, place):
    """The state says where its run was; where that is gone, an error says what to do, and --run does it."""
    shutil.copytree(home / "gaussian" / "run", place / "run")
    done("adapt", place / "run", "--support", place / "support.csv", "--out", place / "t.safetensors")
    shutil.move(place / "run", place / "elsewhere")
    message = refused("predict", place / "t.safetensors", "--query", place / "query.csv")
    assert str(place / "run") in message and "--run" in message
    moved = predicted(place / "t.safetensors", place / "query.csv", "--run", place / "elsewhere")
    assert moved == predicted(place / "task.safetensors", place / "query.csv")
    done("update", place / "t.safetensors", "--points", place / "more.csv", "--run", place / "elsewhere")
    assert run_of(place / "t.safetensors") == place / "elsewhere"  # from now on it knows
    assert len(predicted(place / "t.safetensors", place / "query.csv")) == 7


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def read_only(*args, **kwargs):
    raise PermissionError(errno.EACCES, "Permission denied", str(kwargs.get("dir")))


@pytest.mark.parametrize(
    ("broken", "function", "words"),
    [("Path.write_bytes", full, "No space left"), ("os.fsync", full, "No space left"),
     ("os.replace", full, "No space left"), ("tempfile.mkstemp", read_only, "Permission denied")],
)  # fmt: skip
def test_a_full_disk_or_a_read_only_folder_leaves_the_old_state(place, monkeypatch, broken, function, words):
    """At every step of writing: the message names the place, the old file is whole and there is no litter."""
    state, before = place / "task.safetensors", (place / "task.safetensors").read_bytes()
    names = {p.name for p in place.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(f"metavib.files.{broken}", function)
        message = refused("update", state, "--points", place / "more.csv")
    assert words in message and str(place) in message
    assert state.read_bytes() == before and {p.name for p in place.iterdir()} == names
    assert "13 points" in done("update", state, "--points", place / "more.csv")  # and it works once there is room


def test_a_full_disk_leaves_the_old_predictions(place, monkeypatch):
    out, command = place / "p.csv", ["predict", place / "task.safetensors", "--query", place / "query.csv", "--csv"]
    done(*command, "--out", out)
    before = out.read_bytes()
    done("update", place / "task.safetensors", "--points", place / "more.csv")
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        message = refused(*command, "--out", out)
    assert "No space left" in message and str(out) in message and out.read_bytes() == before
    done(*command, "--out", out)
    assert out.read_bytes() != before


@pytest.mark.parametrize("method", ["maml", "stochastic-maml", "gp-maml"])
def test_a_method_without_a_memory_keeps_its_points(tmp_path, method):
    """Adapt, update, forget and predict all the same, as the Python API does with the points at hand."""
    options = settings(**{"model.widths": [8, 8], "tasks.shots": 3, "tasks.queries": 3, "test.shots": [2]})
    run, state = tmp_path / "run", tmp_path / "t.safetensors"
    done("train", "sinusoid", "--method", method, "--steps", 2, "--out", run, "--quiet", *options)
    x, y = np.array([0.1, 1.0, -2.0, 3.0]), np.array([0.2, 0.5, -0.7, 0.3])
    for name, rows in (("s", slice(2)), ("more", slice(2, 4)), ("all", slice(4))):
        write(tmp_path / f"{name}.csv", ["x", "y"], np.stack([x, y], -1)[rows].tolist())
    write(tmp_path / "q.csv", ["x"], [[0.3], [0.6]])
    learner = Learner.from_run(run)

    def wanted(n: int) -> np.ndarray:
        said = learner.adapt((x[:n], y[:n])).predict(np.array([0.3, 0.6]))
        return torch.stack([said.mean, said.variance.sqrt(), *said.interval(0.95)], -1).numpy()

    assert "keeps its points" in done("show", run)
    assert "2 points" in done("adapt", run, "--support", tmp_path / "s.csv", "--out", state)
    np.testing.assert_allclose(values(predicted(state, tmp_path / "q.csv")), wanted(2), rtol=1e-12)
    assert "4 points" in done("update", state, "--points", tmp_path / "more.csv")
    np.testing.assert_allclose(values(predicted(state, tmp_path / "q.csv")), wanted(4), rtol=1e-12)
    done("update", state, "--points", tmp_path / "more.csv", "--forget")
    np.testing.assert_allclose(values(predicted(state, tmp_path / "q.csv")), wanted(2), rtol=1e-12)
    assert "2 of 2 are not" in refused("update", state, "--points", tmp_path / "more.csv", "--forget")


# Sinusoids


def test_sinusoids_come_as_x_and_y(tmp_path):
    options = settings(**{"model.widths": [8, 8], "tasks.shots": 3, "tasks.queries": 3, "test.shots": [2]})
    run, state = tmp_path / "run", tmp_path / "t.safetensors"
    done("train", "sinusoid", "--steps", 5, "--out", run, "--quiet", *options)
    x = np.linspace(-4, 4, 9)
    write(tmp_path / "s.csv", ["x", "y"], [[a, np.sin(a)] for a in x])
    write(tmp_path / "q.csv", ["x"], [[a] for a in x + 0.3])
    assert "9 points" in done("adapt", run, "--support", tmp_path / "s.csv", "--out", state)
    said = Learner.from_run(run).adapt((x[:, None], np.sin(x))).predict((x + 0.3)[:, None])
    wanted = torch.stack([said.mean, said.variance.sqrt(), *said.interval(0.95)], -1).numpy()
    np.testing.assert_allclose(values(predicted(state, tmp_path / "q.csv")), wanted, rtol=1e-12)
    write(tmp_path / "nan.csv", ["x", "y"], [[0.5, 1.0], ["", 2.0]])
    for command in (["update", state, "--points"], ["predict", state, "--query"]):
        message = refused(*command, tmp_path / "nan.csv")
        assert str(tmp_path / "nan.csv") in message and "'x'" in message and "line 3" in message
