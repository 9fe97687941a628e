"""The command line: what it prints, what it refuses and how, and that programs can read it."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import program
import tiny
from metavib import cli
from metavib.files import read_tensors, write_json, write_tensors
from metavib.training import checkpoint, recipes, reference, run, run_folder
from metavib.training.config import BOUND, CLASSIFICATION, DROPPED, EXPERIMENTS, METHODS, Config, read
from metavib.training.fields import leaves, override, to_dict
from metavib.training.protocols import classification


@pytest.fixture
def metavib(monkeypatch):
    """The program in this process: arguments to status and output. Tiny images in the place of every dataset."""
    monkeypatch.setattr(classification, "load", lambda tasks: tiny.splits())
    return program.metavib


def write_config(path: Path, config) -> Path:
    write_json(path, to_dict(config))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of each kind, as the program leaves it."""
    root = tmp_path_factory.mktemp("runs")
    patch = pytest.MonkeyPatch()
    patch.setattr(classification, "load", lambda tasks: tiny.splits())
    for method in tiny.REGRESSORS:
        run(tiny.sinusoid(method), root / method, resume=False, quiet=True)
    run(tiny.glyphs(), root / "glyphs", resume=False, quiet=True)
    patch.undo()
    return root


def strict(text: str):
    """JSON as other programs read it: no NaN, no Infinity."""

    def refuse(name: str):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


COMMANDS = [c.name or c.callback.__name__ for c in cli.app.registered_commands]


def test_help_lists_every_command(metavib):
    ended = metavib("--help")
    assert ended.status == 0 and {"train", "evaluate", "plot", "adapt", "update", "predict"} <= set(COMMANDS)
    assert all(name in ended.out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_mentions_each_of_its_options(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "250")
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    for parameter in typer.main.get_command(cli.app).commands[command].params:
        option = parameter.opts[0].startswith("-")
        names = parameter.opts if option else [parameter.metavar or parameter.name]
        assert all(name in result.output for name in names), names
        assert getattr(parameter, "help", "x"), f"{command} {names} has no help"


def test_no_arguments_show_the_help(metavib):
    ended = metavib()
    assert "Usage" in ended.out + ended.err and "Traceback" not in ended.err


def test_train_writes_a_run_and_says_where(metavib, tmp_path):
    path = write_config(tmp_path / "c.json", tiny.sinusoid())
    ended = metavib("train", "sinusoid", "--config", path, "--out", tmp_path / "run", "--quiet")
    assert ended.status == 0 and "| shots K" in ended.out and "metavib plot" in ended.err
    wanted = {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors", "record.json"}
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == wanted
    record = strict((tmp_path / "run" / "record.json").read_text())
    assert record["config"] == to_dict(tiny.sinusoid()) and record["training_seconds"] >= 0
    assert record["machine"] and record["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


@pytest.mark.parametrize("method", tiny.REGRESSORS)
def test_json_is_the_evaluation_and_nothing_else(metavib, runs, method):
    ended = metavib("evaluate", runs / method, "--json")
    assert ended.status == 0 and ended.err == ""
    found = strict(ended.out)
    assert found == strict((runs / method / "record.json").read_text())["evaluation"]
    assert found["method"] == method and {row["shots"] for row in found["rows"]} == {3, 5}
    assert {"mse", "log_density", "coverage_50", "coverage_90", "coverage_95"} == set(found["rows"][0]["metrics"])


def test_train_with_json_prints_json_alone(metavib, tmp_path):
    path = write_config(tmp_path / "c.json", tiny.sinusoid("maml"))
    ended = metavib("train", "sinusoid", "--config", path, "--out", tmp_path / "run", "--json")
    assert ended.status == 0 and ended.err == ""
    assert strict(ended.out) == strict((tmp_path / "run" / "record.json").read_text())["evaluation"]


def test_evaluate_takes_several_shots_and_inner_steps(metavib, runs):
    ended = metavib("evaluate", runs / "maml", "--shots", 5, 10, 20, "--inner-steps", 0, 2, "--tasks", 3, "--json")
    rows = strict(ended.out)["rows"]
    assert [(row["shots"], row["inner_steps"]) for row in rows] == [(k, s) for k in (5, 10, 20) for s in (0, 2)]
    assert {row["tasks"] for row in rows} == {3}
    again = metavib("evaluate", "--shots", 5, 10, 20, runs / "maml", "--inner-steps", 0, 2, "--tasks", 3, "--json")
    assert again.out == ended.out
    other = metavib("evaluate", runs / "maml", "--shots", 5, "--tasks", 3, "--seed", 7, "--json")
    assert strict(other.out)["rows"][0]["metrics"] != rows[0]["metrics"]


def test_evaluate_prints_a_table_with_its_interval_named(metavib, runs):
    ended = metavib("evaluate", runs / "gp-vib", "--shots", 4, 9, "--quiet")
    lines = ended.out.splitlines()
    assert lines[0].startswith("| shots K") and "coverage" in lines[0]
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["4", "9"]
    assert "± is the 95% interval over test tasks" in ended.out


def test_an_evaluation_of_images_says_over_what_its_interval_is(metavib, runs):
    ended = metavib("evaluate", runs / "glyphs", "--quiet")
    assert ended.status == 0, ended.err
    assert "accuracy %" in ended.out and "ECE" in ended.out
    assert "95% interval over 4 test episodes of this one training" in ended.out
    found = strict(metavib("evaluate", runs / "glyphs", "--shots", 1, 4, "--json").out)
    assert [row["shots"] for row in found["rows"]] == [1, 4]


def test_images_are_tested_with_other_ways_and_a_temperature(metavib, runs):
    found = strict(metavib("evaluate", runs / "glyphs", "--ways", 2, "--temperature", "--json").out)
    (row,) = found["rows"]
    assert row["ways"] == 2 and row["temperature"] > 0 and "tempered_metrics" in row
    assert "T = " in metavib("evaluate", runs / "glyphs", "--temperature", "--quiet").out


@pytest.mark.parametrize("name", ["gp-vib", "maml", "glyphs"])
def test_show_says_what_a_run_is(metavib, runs, name):
    ended = metavib("show", runs / name)
    config = checkpoint.load(runs / name / run_folder.LAST).config
    assert (
        ended.status == 0
        and config.method in ended.out
        and f"{config.train.steps} of {config.train.steps}" in ended.out
    )
    found = strict(metavib("show", runs / name, "--json").out)
    assert found["config"] == to_dict(config)
    assert found["evaluation"] == strict((runs / name / "record.json").read_text())["evaluation"]


def test_data_lists_what_is_missing_and_how_to_get_it(metavib, tmp_path):
    ended = metavib("data", "--root", tmp_path)
    assert ended.status == 0 and "glyphs" in ended.out and "missing" in ended.out and "omniglot" in ended.out.lower()
    entries = strict(metavib("data", "--root", tmp_path, "--json").out)
    assert entries and all(entry["found"] == [] for entry in entries) and not list(tmp_path.iterdir())


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return np.asarray(image.convert("L"))


@pytest.mark.parametrize("method", [*tiny.REGRESSORS, "glyphs"])
def test_plot_makes_pictures_that_are_not_blank(metavib, runs, tmp_path, method):
    ended = metavib("plot", runs / method, "--out", tmp_path / "figures")
    assert ended.status == 0, ended.err
    paths = [Path(line) for line in ended.out.split()]
    assert len(paths) >= 2 and {p.name for p in (tmp_path / "figures").iterdir()} == {p.name for p in paths}
    for path in paths:
        pixels = opened(path)
        assert min(pixels.shape) > 200 and (pixels < 200).mean() > 0.002 and pixels.std() > 5, path


def test_plot_depends_on_the_seed_of_its_task(metavib, runs, tmp_path):
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        metavib("plot", runs / "gp-vib", "--out", tmp_path / out, "--seed", seed)
    a, b, c = (opened(tmp_path / out / "predictions.png") for out in "abc")
    assert np.array_equal(a, b) and not np.array_equal(a, c)


BAD = [
    (["train", "sinus"], "experiment must be one of"),
    (["train", "sinusoid", "--method", "mamml"], "mamml"),
    (["train", "sinusoid", "--method", "proto-net"], "proto-net is a classifier"),
    (["train", "sinusoid", "--kernel", "rbg"], "model.kernel must be one of linear"),
    (["train", "sinusoid", "--steps", "-5"], "train.steps must be at least 1; got -5"),
    (["train", "sinusoid", "--beta", "-1"], "beta must be"),
    (["train", "sinusoid", "--method", "maml", "--beta", "0.5"], "infinite KL"),
    (["train", "sinusoid", "--precision", "half"], "precision must be one of"),
    (["train", "sinusoid", "--repeats", "0"], "repeats must be at least 1"),
    (["train", "sinusoid", "--set", "train.stepz=3"], "Did you mean 'train.steps'?"),
    (["train", "sinusoid", "--set", "train.steps=many"], "train.steps: expected int; got 'many'"),
    (["train", "sinusoid", "--set", "train.lr"], "--set takes FIELD=VALUE"),
    (["train", "sinusoid", "--set", "train.lr=[/x]"], "expected float; got '[/x]'"),
    (["train", "sinusoid", "--set", "model.likelihood=cauchy"], "model.likelihood must be one of"),
    (["train", "sinusoid", "--set", "train.schedule=linear"], "train.schedule must be constant or cosine"),
    (["train", "sinusoid", "--config", "missing.json"], "missing.json"),
    (["train", "glyphs", "--repeats", "3"], "one model a run"),
    (["train", "glyphs", "--set", "model.likelihood=gaussian", "--set", "model.sites=exact"], "likelihood of classes"),
    (["train"], "name an experiment to train on (sinusoid, gaussian, table"),
    (["train", "--resume", "nowhere"], "there is no run in nowhere to go on with"),
    (["train", "sinusoid", "--resume", "a", "--out", "b"], "give one of them"),
    (
        ["train", "sinusoid", "--csv", "t.csv"],
        "--csv does nothing for gp-vib on sinusoid: tasks.table.csv is",
    ),
    (["train", "glyphs", "--root", "."], "tasks.root is for experiments with images or embeddings from files"),
    (
        ["train", "sinusoid", "--method", "maml", "--kernel", "rbf"],
        "model.kernel is for gp-vib, gp-maml, dkt and gaussian-classes",
    ),
    (["train", "glyphs", "--set", "model.inner_steps=3"], "model.inner_steps is for maml, stochastic-maml and gp-maml"),
    (["config"], "say what to print"),
    (["config", "train.lrr"], "there is no field 'train.lrr'"),
    (["evaluate", "nowhere"], "there is no run folder nowhere"),
    (["plot", "nowhere"], "there is no run folder nowhere"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_ends_with_a_message_and_nothing_written(metavib, tmp_path, monkeypatch, arguments, message):
    """Status 2, "error: ..." on standard error, no traceback, no output, no file."""
    monkeypatch.chdir(tmp_path)
    ended = metavib(*arguments)
    assert ended.status == 2 and ended.out == ""
    assert ended.err.startswith("error: ") and message in ended.err and "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["trane"], ["train", "sinusoid", "--stepz", "3"], ["train", "sinusoid", "--steps", "x"]]
)
def test_bad_usage_is_status_2_too(metavib, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    ended = metavib(*arguments)
    assert ended.status == 2 and "Traceback" not in ended.err and ended.err and list(tmp_path.iterdir()) == []


def test_a_run_is_neither_overwritten_nor_changed(metavib, runs):
    folder = runs / "gp-vib"
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    ended = metavib("train", "sinusoid", "--config", folder / "config.json", "--out", folder)
    assert ended.status == 2 and "pass --resume" in ended.err
    ended = metavib("train", "sinusoid", "--config", folder / "config.json", "--resume", folder, "--seed", 9)
    assert ended.status == 2 and "another config" in ended.err and "seed = 0 there and 9 here" in ended.err
    ended = metavib("train", "--resume", folder, "--set", "train.lr=0.5")
    assert ended.status == 2 and "train.lr = 0.00075 there and 0.5 here" in ended.err
    ended = metavib("train", "sinusoid", "--config", folder / "config.json", "--resume", folder, "--json")
    assert ended.status == 0 and strict(ended.out) == strict(before["record.json"].decode())["evaluation"]
    assert before == {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_a_damaged_checkpoint_is_named(metavib, runs, tmp_path):
    whole = (runs / "gp-vib" / "last.safetensors").read_bytes()
    (tmp_path / "last.safetensors").write_bytes(whole[: len(whole) // 2])
    for command in ("evaluate", "plot"):
        ended = metavib(command, tmp_path)
        assert ended.status == 2 and "last.safetensors is truncated" in ended.err and "Traceback" not in ended.err


def test_options_reach_the_config(metavib, tmp_path):
    """Named options, then `--set`, on top of the recipe; the resolved config is what is saved."""
    small = {k.replace("__", "."): v for k, v in {"model__widths": "[8,8]", "test__tasks": 4}.items()}
    options = ["--steps", 3, "--seed", 5, "--repeats", 2, "--shots", 4, "--kernel", "rbf", "--beta", 0.5]
    options += ["--precision", "float64"]
    for name, value in {**small, "train.lr": "0.01", "test.shots": "[2]", "train.scale_lr": "none"}.items():
        options += ["--set", f"{name}={value}"]
    ended = metavib("train", "sinusoid", "--out", tmp_path / "run", "--quiet", *options)
    assert ended.status == 0, ended.err
    c = checkpoint.load(tmp_path / "run" / run_folder.LAST).config
    assert (c.train.steps, c.seed, c.repeats, c.tasks.shots, c.model.kernel) == (3, 5, 2, 4, "rbf")
    assert (c.train.beta, c.precision, c.train.lr, c.test.shots, c.model.widths) == (0.5, "float64", 0.01, (2,), (8, 8))
    assert "95% interval over 2 trainings" in ended.out


def test_without_a_folder_the_run_goes_under_its_name(metavib, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "c.json", tiny.sinusoid(seed=3))
    assert metavib("train", "sinusoid", "--config", path, "--quiet").status == 0
    assert (tmp_path / "runs" / "sinusoid-gp-vib-3" / "record.json").exists()


def test_a_disk_that_is_full_ends_with_a_message(metavib, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("metavib.files.Path.write_bytes", full)
    path = write_config(tmp_path / "c.json", tiny.sinusoid())
    ended = metavib("train", "sinusoid", "--config", path, "--out", tmp_path / "run", "--quiet")
    assert ended.status == 2 and "No space left on device" in ended.err and "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--shots", "5", "10", "20"], ["--shots", "5", "--shots", "10", "--shots", "20"]),
        (["RUN", "--shots", "5", "--json"], ["RUN", "--shots", "5", "--json"]),
        (["--shots", "5", "10", "RUN"], ["--shots", "5", "--shots", "10", "RUN"]),
        (["--shots", "5", "--inner-steps", "1", "2"], ["--shots", "5", "--inner-steps", "1", "--inner-steps", "2"]),
        (["--shots", "5", "--shots", "10"], ["--shots", "5", "--shots", "10"]),
        (["--tasks", "5", "10"], ["--tasks", "5", "10"]),
        (["--shots"], ["--shots"]),
        (["--shots", "--json", "5"], ["--shots", "--json", "5"]),
        (["--shots", "-5"], ["--shots", "-5"]),
        ([], []),
    ],
)
def test_an_option_spreads_over_the_numbers_after_it(arguments, expected):
    assert cli.spread(arguments, {"--shots", "--inner-steps"}, str.isdigit) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--target", "sold", "visits", "--task", "shop"],
            ["--target", "sold", "--target", "visits", "--task", "shop"],
        ),
        (["--target", "sold", "sales.csv"], ["--target", "sold", "sales.csv"]),
        (["--target", "sold", "table", "sales.csv"], ["--target", "sold", "table", "sales.csv"]),
        (["--target", "sold", "here", "--quiet"], ["--target", "sold", "here", "--quiet"]),
        (["table", "sales.csv", "--drop", "a", "b c"], ["table", "sales.csv", "--drop", "a", "--drop", "b c"]),
    ],
)
def test_an_option_spreads_over_the_columns_after_it_and_over_no_file(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("a table without an ending")
    assert cli.spread(arguments, {"--target", "--drop"}, cli.is_column) == expected


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n in CLASSIFICATION])
def test_every_image_experiment_trains_from_the_command_line(metavib, tmp_path, name):
    """Each experiment's own recipe, made tiny; the data are ours, the path through the program is the user's."""
    small = dict(tiny._GLYPHS) | {"tasks.channels": 1, "tasks.augment": False, "model.norm": "running", "test.ways": 0}
    if name == "images":
        for c, i in itertools.product(range(9), range(3)):
            (tmp_path / "pictures" / str(c)).mkdir(parents=True, exist_ok=True)
            Image.new("L", (9, 9), 20 * c + i).save(tmp_path / "pictures" / str(c) / f"{i}.png")
        small["tasks.root"] = str(tmp_path / "pictures")
    small = {field: value for field, value in small.items() if counts(field, recipes.recipe(name, "gp-vib"))}
    options = [item for k, v in small.items() for item in ("--set", f"{k}={json.dumps(v)}")]
    ended = metavib("train", name, "--method", "gp-vib", "--out", tmp_path / "run", "--json", *options)
    assert ended.status == 0, ended.err
    assert strict(ended.out)["experiment"] == name


def counts(field: str, config: Config) -> bool:
    place = reference.where(field)
    return place is None or place.holds(config)


def test_a_run_goes_on_with_nothing_typed_again_and_can_be_made_longer(metavib, tmp_path):
    """Stopped, resumed and lengthened, it ends as one that was so long from the start."""
    config, folder = tiny.sinusoid(train__steps=6), tmp_path / "run"
    train_config = override(config, {"train.steps": 4})
    assert metavib("train", "--config", write_config(tmp_path / "c.json", train_config), "--out", folder).status == 0
    ended = metavib("train", "--resume", folder, "--json")
    assert ended.status == 0 and strict(ended.out)["rows"]  # finished: the record is there
    ended = metavib("train", "--resume", folder, "--steps", 6, "--json")
    assert ended.status == 0 and read(folder / "config.json") == config
    whole = metavib(
        "train", "--config", write_config(tmp_path / "d.json", config), "--out", tmp_path / "whole", "--json"
    )
    assert strict(ended.out) == strict(whole.out)
    assert strict((folder / "record.json").read_text())["config"] == to_dict(config)
    ended = metavib("train", "--resume", folder, "--steps", 3)
    assert ended.status == 2 and "train.steps = 6 there and 3 here" in ended.err


def test_a_run_can_be_started_and_gone_on_with_by_the_same_command(metavib, tmp_path):
    """As `torchrun --max-restarts` needs it."""
    arguments = ["train", "sinusoid", "--config", write_config(tmp_path / "c.json", tiny.sinusoid()), "--json"]
    first, second = (metavib(*arguments, "--resume", tmp_path / "run") for _ in range(2))
    assert first.status == second.status == 0 and first.out == second.out


def test_a_run_of_version_0_1_is_read(metavib, runs, tmp_path):
    """Its config has fields that are gone, and its test stands in two files."""
    folder = shutil.copytree(runs / "gp-vib", tmp_path / "old")
    dropped = json.loads((folder / "config.json").read_text())
    for dotted, value in DROPPED.items():
        section, name = dotted.split(".")
        dropped[section][name] = value
    tensors, header = read_tensors(folder / "last.safetensors")
    write_tensors(folder / "last.safetensors", tensors, header | {"config": json.dumps(dropped)})
    write_json(folder / "config.json", dropped)
    record = json.loads((folder / "record.json").read_text())
    write_json(folder / "record.json", record | {"config": dropped})
    write_json(folder / "evaluation.json", record["evaluation"])
    assert strict(metavib("show", folder, "--json").out)["evaluation"] == record["evaluation"]
    assert strict(metavib("evaluate", folder, "--json").out) == record["evaluation"]
    assert strict(metavib("train", "--resume", folder, "--json").out) == record["evaluation"]
    dropped["model"]["dkt_noise"] = 0.3
    write_json(folder / "config.json", dropped)
    ended = metavib("train", "--resume", folder)
    assert ended.status == 2 and "model.dkt_noise = 0.3 was possible until metavib 0.1" in ended.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_a_sentence(metavib, runs, tmp_path):
    for arguments in (["evaluate", runs / "gp-vib"], ["train", "sinusoid", "--out", tmp_path / "run"]):
        ended = metavib(*arguments, "--device", "cuda")
        assert ended.status == 2 and "PyTorch sees no GPU on this machine; use --device cpu" in ended.err
    assert not (tmp_path / "run").exists()


# Configs


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_config_that_is_printed_is_read_again(metavib, tmp_path, name):
    for method in METHODS if name in CLASSIFICATION else BOUND:
        (tmp_path / "c.toml").write_text(metavib("config", name, "--method", method).out)
        assert read(tmp_path / "c.toml") == recipes.recipe(name, method)
    assert strict(metavib("config", name, "--json").out) == to_dict(recipes.recipe(name, recipes.default_method(name)))


def test_the_config_of_a_run_is_printed(metavib, runs, tmp_path):
    (tmp_path / "c.toml").write_text(metavib("config", runs / "maml").out)
    assert read(tmp_path / "c.toml") == tiny.sinusoid("maml")


@pytest.mark.parametrize("field", reference.fields())
def test_every_field_of_a_config_is_explained(metavib, field):
    ended = metavib("config", field)
    assert ended.status == 0 and field in ended.out and reference.fields()[field].meaning[1:20] in ended.out


def test_the_page_of_config_fields_is_up_to_date(metavib):
    """docs/config.md is what `metavib config --markdown` prints, byte for byte."""
    page = (Path(__file__).parents[1] / "docs" / "config.md").read_text()
    assert metavib("config", "--markdown").out == page
    assert all(f"| `{field}` |" in page for field in leaves(Config()))


def test_a_field_is_explained_with_the_recipes_that_set_it(metavib):
    methods = ("gp-vib", "gaussian-classes", "proto-net", "relation-net", "dkt")
    assert ", ".join(f"{method} --improved" for method in methods) + " on cub" in metavib("config", "crop").out
    ended = metavib("config", "steps")  # the last part of a name will do where it is clear
    assert ended.status == 0 and "train.steps" in ended.out
    assert "several fields: tasks.kernel, model.kernel" in metavib("config", "kernel").err


def test_every_place_where_a_field_counts_is_of_fields_that_exist():
    listed = [field for place in reference.PLACES for field in place.fields]
    assert set(listed) <= set(reference.fields()) and len(listed) == len(set(listed))


# The door


def test_the_program_answers_without_pytorch():
    """Help, version and completion start in a fresh process that never imports it, nor anything else that is slow."""
    code = (
        "import sys\nfrom metavib import cli\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "slow = {'torch', 'numpy', 'scipy', 'matplotlib', 'PIL', 'sklearn', 'optuna'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    for argument in ("--help", "--version"):
        ended = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("metavib ")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("metavib tr", "train"), ("metavib train gly", "glyphs"), ("metavib train --method stoch", "stochastic-maml")],
)
def test_a_shell_completes_commands_experiments_and_methods(typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_METAVIB_COMPLETE": "complete_bash"}
    command = [sys.executable, "-c", "from metavib import cli; cli.main()"]
    ended = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True)
    assert offered in ended.stdout.split(), ended


def test_demo_is_a_recipe_that_runs(metavib, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "demo", lambda: tiny.sinusoid())
    ended = metavib("demo", "--out", tmp_path / "demo")
    assert ended.status == 0, ended.err
    assert "MSE" in ended.out and "coverage" in ended.out and (tmp_path / "demo" / "predictions.png").exists()
    assert f"metavib serve {tmp_path / 'demo'} --open" in ended.out
    assert metavib("demo", "--out", tmp_path / "demo").status == 0  # a second time there is nothing to train
