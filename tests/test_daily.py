"""Daily use through the program itself: a CSV file or a folder of pictures in, a run, a task's state, rows out."""

import csv
import errno
import io
import json
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import oracles
from metavib import checkpoint, cli, files, states, train
from metavib.experiments.table import read_examples, read_inputs, scaling
from metavib.files import read_tensors
from metavib.learner import Learner


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def metavib(*arguments: object) -> Ended:
    """The program in this process: arguments to status and output."""
    out, err, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["metavib", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
    torch.set_num_threads(threads)
    return Ended(status, out.getvalue(), err.getvalue())


def done(*arguments: object) -> str:
    ended = metavib(*arguments)
    assert ended.status == 0, ended.err
    return ended.out


def refused(*arguments: object) -> str:
    """The message of a command that ends with status 2 and one error, no traceback, nothing on standard output."""
    ended = metavib(*arguments)
    assert ended.status == 2 and ended.out == "" and "Traceback" not in ended.err, ended
    assert ended.err.startswith("error: ")
    return ended.err


def settings(**changes: Any) -> list[str]:
    small = {"train.tasks": 2, "train.validate_every": 10, "train.validation_tasks": 4, "test.tasks": 3} | changes
    return [item for k, v in small.items() for item in ("--set", f"{k}={json.dumps(v)}")]


def write(path: Path, header: list[str], rows: Any) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


# Tables of each kind of output: real numbers far from zero, counts, heavy tails, 0 and 1.

HEADER = ["city", "hour", "temperature", "demand"]
OUTPUTS = {
    "gaussian": lambda rng, f: 5000 + 300 * f + rng.normal(0, 10),
    "student-t": lambda rng, f: 5000 + 300 * f + 10 * rng.standard_t(2.5),
    "poisson": lambda rng, f: rng.poisson(np.exp(1 + f)),
    "bernoulli": lambda rng, f: int(rng.random() < 1 / (1 + np.exp(-3 * f))),
}


def task_rows(kind: str, seed: int, n: int = 12) -> list[list[Any]]:
    """Rows of one city: demand over the hour, with an amplitude of its own."""
    rng = np.random.default_rng(seed)
    amplitude = rng.normal(1.0, 0.3)
    rows = []
    for _ in range(n):
        hour, temperature = float(rng.uniform(0, 24)), float(rng.normal(280, 5))
        f = amplitude * np.sin(hour / 4) + 0.05 * (temperature - 280)
        rows.append([f"city {seed}", hour, temperature, OUTPUTS[kind](rng, f)])
    return rows


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run on each kind of table, all through the program, with files of a new task beside it."""
    root = tmp_path_factory.mktemp("home")
    options = settings(**{"model.widths": [8, 8], "test.shots": [3]})
    for kind in OUTPUTS:
        place = root / kind
        place.mkdir()
        write(place / "data.csv", HEADER, [row for seed in range(12) for row in task_rows(kind, seed)])
        new = task_rows(kind, 100, 20)
        write(place / "support.csv", HEADER, new[:8])
        write(place / "more.csv", HEADER, new[8:13])
        write(place / "all.csv", HEADER, new[:13])
        write(place / "query.csv", HEADER[:3], [row[:3] for row in new[13:]])
        table = ["--csv", place / "data.csv", "--task", "city", "--target", "demand", "--likelihood", kind]
        done("train", "table", *table, "--steps", 20, "--out", place / "run", "--quiet", *options)
        done("adapt", place / "run", "--support", place / "support.csv", "--out", place / "task.safetensors")
    return root


@pytest.fixture
def place(home, tmp_path):
    """A copy of the Gaussian table's files, to be broken; the run stays where it was."""
    for name in ("support.csv", "more.csv", "all.csv", "query.csv", "task.safetensors"):
        shutil.copy(home / "gaussian" / name, tmp_path / name)
    return tmp_path


def predicted(state: Path, query: Path, *more: object) -> list[dict[str, Any]]:
    return json.loads(done("predict", state, "--query", query, "--json", *more))


def values(rows: list[dict[str, Any]]) -> np.ndarray:
    return np.array([[v for v in row.values() if isinstance(v, float)] for row in rows])


def numpy_features(run: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """phi of raw rows by hand: standardised columns, two ReLU layers, a constant 1."""
    tensors = {k: t.double().numpy() for k, t in checkpoint.load(run / train.BEST).part("model").items()}
    table = checkpoint.load(run / train.LAST).config.tasks.table

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
    config = checkpoint.load(folder / "run" / train.LAST).config
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
    assert list(found[0]) == ["query", "mean", "sd", "low 90%", "high 90%"]
    assert [row["query"] for row in found] == [str(i) for i in range(1, 8)]
    np.testing.assert_allclose(values(found), np.stack([mean, sd, low, high], -1), rtol=1e-5)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_the_program_says_what_the_python_api_says(home, kind):
    folder = home / kind
    config = checkpoint.load(folder / "run" / train.LAST).config
    task = Learner.from_run(folder / "run").adapt(read_examples(folder / "support.csv", config))
    said = task.predict(read_inputs(folder / "query.csv", config))
    found = predicted(folder / "task.safetensors", folder / "query.csv")
    if kind == "bernoulli":
        assert [row["class"] for row in found] == said.labels and set(said.labels) <= {0, 1}
        wanted = torch.cat([said.entropy[:, None], said.probabilities], -1).numpy()
        assert list(found[0]) == ["query", "class", "entropy", "p(0)", "p(1)"]
    else:
        units = scaling(config.tasks.table).y
        ends = (units.restore(end) for end in said.interval(0.95))
        wanted = torch.stack([units.restore(said.mean), said.variance.sqrt() * units.scale, *ends], -1).numpy()
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
    assert state.stat().st_size == (tmp_path / "all.safetensors").stat().st_size


def test_every_form_of_output_says_the_same(home, tmp_path):
    """JSON and CSV to the last bit, the table to four digits; --out writes what is printed otherwise."""
    state, query = home / "gaussian" / "task.safetensors", home / "gaussian" / "query.csv"
    numbers = values(predicted(state, query))
    text = done("predict", state, "--query", query, "--csv")
    read = list(csv.DictReader(io.StringIO(text)))
    assert list(read[0]) == ["query", "mean", "sd", "low 95%", "high 95%"]
    np.testing.assert_array_equal(np.array([[float(v) for v in list(row.values())[1:]] for row in read]), numbers)
    table = done("predict", state, "--query", query).splitlines()
    cells = np.array([[float(cell) for cell in line.strip("|").split("|")[1:]] for line in table[2:]])
    np.testing.assert_allclose(cells, numbers, rtol=1e-3)
    assert done("predict", state, "--query", query, "--csv", "--out", tmp_path / "a" / "p.csv") == ""
    assert (tmp_path / "a" / "p.csv").read_text() == text


def test_columns_may_come_in_any_order_with_others_between(place):
    rows = [row[1:] for row in task_rows("gaussian", 100, 20)[13:]]
    write(place / "other.csv", ["note", "temperature", "demand", "hour"], [["x", t, "?", h] for h, t, _ in rows])
    state = place / "task.safetensors"
    assert predicted(state, place / "other.csv") == predicted(state, place / "query.csv")


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
    "missing input": (5, 1, "", ("row 4", "'hour'", "missing")),
    "nan": (2, 2, "NaN", ("row 1", "'temperature'", "missing")),
    "missing target": (6, 3, "", ("line 6", "'demand'", "missing")),
    "target as text": (3, 3, "lots", ("line 3", "'demand'", "'lots'")),
    "column renamed": (1, 1, "hours", ("'hour'", "Did you mean 'hours'?")),
    "column twice": (1, 1, "temperature", ("'temperature' twice",)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_bad_cells_are_named_by_file_row_and_column_and_the_state_stays(home, place, case):
    line, column, cell, words = BROKEN[case]
    bad, state = edited(place / "more.csv", "bad.csv", line, column, cell), place / "task.safetensors"
    before = state.read_bytes()
    for command in (["update", state, "--points", bad], ["adapt", home / "gaussian" / "run", "--support", bad]):
        message = refused(*command, *(["--out", state] if command[0] == "adapt" else []))
        assert str(bad) in message and all(word in message for word in words), message
    assert state.read_bytes() == before
    assert not any(p.name.startswith(".") for p in place.iterdir())  # no half of a file


@pytest.mark.parametrize("case", ["text", "infinity", "nan", "missing input", "column renamed"])
def test_bad_queries_are_named_and_nothing_is_written(place, case):
    line, column, cell, words = BROKEN[case]
    bad = edited(place / "query.csv", "bad.csv", line, column, cell)
    message = refused("predict", place / "task.safetensors", "--query", bad, "--csv", "--out", place / "p.csv")
    assert str(bad) in message and all(word in message for word in words), message
    assert not (place / "p.csv").exists()


@pytest.mark.parametrize("case", BROKEN)
def test_training_on_a_bad_table_is_refused_before_there_is_a_run(home, tmp_path, case):
    line, column, cell, words = BROKEN[case]
    shutil.copy(home / "gaussian" / "data.csv", tmp_path / "data.csv")
    bad = edited(tmp_path / "data.csv", "bad.csv", line, column, cell)
    columns = ["--task", "city", "--target", "demand", "--set", 'tasks.table.features=["hour","temperature"]']
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
    assert states.run_of(place / "t.safetensors") == place / "elsewhere"  # from now on it knows
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


def test_a_method_without_a_memory_says_so(tmp_path, home):
    options = settings(**{"model.widths": [8, 8], "tasks.shots": 3, "tasks.queries": 3, "test.shots": [2]})
    run = tmp_path / "run"
    done("train", "sinusoid", "--method", "maml", "--steps", 2, "--out", run, "--quiet", *options)
    write(tmp_path / "s.csv", ["x", "y"], [[0.1, 0.2], [1.0, 0.5]])
    message = refused("adapt", run, "--support", tmp_path / "s.csv", "--out", tmp_path / "t.safetensors")
    assert "no state of constant size" in message and not (tmp_path / "t.safetensors").exists()


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
        assert str(tmp_path / "nan.csv") in message and "'x'" in message and "row 2" in message


# Pictures


def picture(path: Path, c: int, i: int, side: int = 20) -> None:
    """A bright bar, whose place and direction are the class's, on noise."""
    rng = np.random.default_rng(100 * c + i)
    pixels = rng.integers(0, 60, (side, side + 4, 3), dtype=np.uint8)
    at = 2 + 3 * (c // 2)
    pixels[(slice(at, at + 3), slice(None)) if c % 2 else (slice(None), slice(at, at + 3))] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    """A run on a folder of nine classes of pictures, and classes of a new task."""
    root = tmp_path_factory.mktemp("album")
    patch = pytest.MonkeyPatch()
    patch.setenv("METAVIB_CACHE", str(root / "cache"))
    for c in range(9):
        for i in range(6):
            picture(root / "pictures" / f"class {c}" / f"{i}.png", c, i)
    for c, name in ((0, "ant"), (1, "bee")):
        for i in range(3):
            picture(root / "support" / name / f"{i}.png", c, 50 + i)
    for i in range(4):
        picture(root / "more" / "cat" / f"{i}.jpg", 6, 70 + i)
    for c in (0, 1, 6):
        picture(root / "query" / "deeper" / f"{c}.png", c, 90)
    (root / "query" / "notes.txt").write_text("no picture")
    options = {"tasks.ways": 2, "tasks.queries": 3, "tasks.size": 16, "tasks.augment": False, "model.width": 8}
    options |= {"model.samples": 5, "train.save_every": 10, "train.lr": 5e-3}
    done("train", "images", "--root", root / "pictures", "--shots", 2, "--steps", 30, "--out", root / "run", "--quiet",
         *settings(**options | {"test.queries": 3}))  # fmt: skip
    done("adapt", root / "run", "--support", root / "support", "--out", root / "task.safetensors")
    yield root
    patch.undo()


def test_pictures_are_told_apart_by_the_names_of_their_folders(album):
    found = predicted(album / "task.safetensors", album / "query")
    assert [row["query"] for row in found] == ["deeper/0.png", "deeper/1.png", "deeper/6.png"]
    assert list(found[0]) == ["query", "class", "entropy", "p(ant)", "p(bee)"]
    assert [row["class"] for row in found][:2] == ["ant", "bee"]
    for row in found:
        assert row["p(ant)"] + row["p(bee)"] == pytest.approx(1) and 0 <= row["entropy"] <= np.log(2) + 1e-9
    (one,) = predicted(album / "task.safetensors", album / "query" / "deeper" / "1.png")
    assert (one["query"], one["class"]) == ("1.png", "bee")
    np.testing.assert_allclose(values([one]), values(found[1:2]), atol=1e-6)  # alone as among others
    text = done("predict", album / "task.safetensors", "--query", album / "query", "--csv")
    assert [row["class"] for row in csv.DictReader(io.StringIO(text))] == [row["class"] for row in found]


def test_the_picture_path_is_the_python_api_on_pixels_by_hand(album):
    """Central square, resized to 1.15 times the network's side, central crop, ImageNet's mean and deviation."""

    def pixels(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            w, h = image.size
            square = image.crop(((w - h) // 2, 0, (w - h) // 2 + h, h)).resize((18, 18), Image.Resampling.BILINEAR)
        x = np.asarray(square, dtype=np.float64)[1:17, 1:17].transpose(2, 0, 1) / 255
        mean, sd = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        return (x - mean[:, None, None]) / sd[:, None, None]

    paths = sorted((album / "support").rglob("*.png"))
    task = Learner.from_run(album / "run").adapt(
        (np.stack([pixels(p) for p in paths]).astype(np.float32), [p.parent.name for p in paths])
    )
    said = task.predict(np.stack([pixels(p) for p in sorted((album / "query").rglob("*.png"))]).astype(np.float32))
    found = predicted(album / "task.safetensors", album / "query")
    wanted = torch.cat([said.entropy[:, None], said.probabilities], -1).numpy()
    np.testing.assert_allclose(values(found), wanted, atol=1e-5)


def test_a_new_class_joins_by_an_update_and_leaves_by_forgetting(album, tmp_path):
    state = tmp_path / "task.safetensors"
    shutil.copy(album / "task.safetensors", state)
    before = predicted(state, album / "query")
    assert "10 points, classes ant, bee, cat" in done("update", state, "--points", album / "more")
    after = predicted(state, album / "query")
    assert list(after[0])[3:] == ["p(ant)", "p(bee)", "p(cat)"]
    assert [row["class"] for row in after] == ["ant", "bee", "cat"]
    done("update", state, "--points", album / "more", "--forget")
    again = predicted(state, album / "query")
    assert [list(row) for row in again] == [list(row) for row in before]
    np.testing.assert_allclose(values(again), values(before), atol=1e-3)


def test_pictures_that_cannot_be_read_are_named_and_the_state_stays(album, tmp_path):
    state = tmp_path / "task.safetensors"
    shutil.copy(album / "task.safetensors", state)
    before = state.read_bytes()
    (tmp_path / "bad" / "dog").mkdir(parents=True)
    (tmp_path / "bad" / "dog" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n no picture")
    for command in (["update", state, "--points", tmp_path / "bad"], ["predict", state, "--query", tmp_path / "bad"]):
        assert "broken.png cannot be read" in refused(*command)
    (tmp_path / "empty").mkdir()
    assert "no sub-folders" in refused("update", state, "--points", tmp_path / "empty")
    assert "no pictures found" in refused("predict", state, "--query", tmp_path / "empty")
    assert "is not a folder" in refused("update", state, "--points", album / "query" / "deeper" / "0.png")
    assert state.read_bytes() == before


def test_a_run_shows_what_it_is_and_how_good(home, album):
    for run, words in ((home / "poisson" / "run", ("table", "gp-vib")), (album / "run", ("images", "accuracy"))):
        text = done("show", run)
        assert all(word in text for word in words)
        tensors, _ = read_tensors(run / train.BEST)
        parameters = sum(t.numel() for k, t in tensors.items() if "running" not in k and "batches" not in k)
        shown = int(text.split(" parameters")[0].split()[-1].replace(",", ""))
        assert 0 < shown <= parameters
