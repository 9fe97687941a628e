"""Studies: named runs to tables; what is recorded is skipped, any part can be picked, what is missing is run."""

import doctest
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tiny
from metavib.files import read_json, write_json
from metavib.training import recipes
from metavib.training import runs as records
from metavib.training.config import Config
from metavib.training.fields import override, to_dict
from metavib.training.run_folder import RECORD
from reproduction import compare, make, report, store, studies, tables
from reproduction import queue as runs
from reproduction import study as study_module
from reproduction.__main__ import app
from reproduction.runs import COLUMNS
from reproduction.studies import STUDIES
from reproduction.study import SEEDS, Run

ROOT = Path(__file__).parents[1]
QUICK = make.quickened
GRID = [f"{row}-{shots}" for row in tables.MAIN_TABLE for shots in (1, 5)]


def configs(name: str, seeds: int | None = None) -> dict[str, Config]:
    """The configs of the runs of a study."""
    return {key: run.config for key, run in STUDIES[name].runs(seeds).items()}


def made(name: str, folder: Path, **options) -> str:
    """A study, made in a folder that also has its records."""
    return make.make(STUDIES[name], folder, folder / "records", quiet=True, **options)


def smaller(config: Config) -> Config:
    """A quick run, made tiny."""
    if config.model.backbone == "mlp":
        sizes = {k: v for k, v in tiny._SINUSOID.items() if not k.startswith("test.shots")}
        return override(config, sizes | {"repeats": min(2, config.repeats)})
    changes = {"train.steps": 1, "train.validate_every": 1, "train.validation_tasks": 2, "train.save_every": 1}
    changes |= {"tasks.ways": 3, "tasks.queries": 2, "test.queries": 2, "test.tasks": 2, "test.weight_samples": 2}
    fast = QUICK(config)
    return override(fast, changes | {"model.width": 2, "test.shots": [k for k in fast.test.shots if k in (1, 15, 100)]})


# What there is


def test_there_are_the_studies_promised():
    promised = "table-1 figure-2 table-2 omniglot augmented-omniglot beta shots inner-steps calibration glyphs"
    assert set(promised.split()) <= set(STUDIES)
    listing = re.sub(r"\W+", " ", CliRunner().invoke(app, ["--help"]).output)
    for name, study in STUDIES.items():
        assert study.name == name and re.sub(r"\W+", " ", f"{name} {study.title}") in listing
        for key, run in study.runs(SEEDS).items():
            assert key.count("/") <= 1 and isinstance(run, Run) and isinstance(run.config, Config)
    table_1 = configs("table-1")
    assert {c.method for c in table_1.values()} == set(tiny.REGRESSORS)
    assert {c.repeats for c in table_1.values()} == {10}


def test_make_quick_tries_every_study():
    lines = (ROOT / "Makefile").read_text().splitlines()
    (names,) = (line.removeprefix("STUDIES := ").split() for line in lines if line.startswith("STUDIES := "))
    assert sorted(names) == sorted(STUDIES)


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if study.seeded])
def test_a_run_has_its_cell_from_its_config_and_its_variant_and_its_name_says_the_same(name):
    """Two runs with the same place in a table differ in their seed alone (in `beta`, also in beta)."""
    places = set()
    for key, run in STUDIES[name].runs(3).items():
        beta = run.config.train.beta if name == "beta" else None
        place = (run.config.tasks.name, run.cell, run.config.seed, beta)
        assert place not in places
        places.add(place)
        if run.config.device == "cuda":  # what a CPU does is trained once
            tasks, tested = run.config.tasks, run.config.test.shots
            assert key.endswith(f"-{tables.shots_of(tasks.shots, tasks.min_shots, tested)}-seed{run.config.seed}")
            assert name == "beta" or key.rpartition("/")[2] == f"{run.cell}-seed{run.config.seed}"


def test_table_2_has_every_column_method_and_shot():
    """3 trainings of GP-VIB and 1 of the others, or as many of each as are asked for; recipes of ours beside them."""
    names = set(configs("table-2"))
    for column in ("cub", "mini-imagenet", "omniglot-emnist", "mini-imagenet-cub"):
        for cell in GRID:
            seeds = {name.rpartition("seed")[2] for name in names if name.startswith(f"{column}/{cell}-seed")}
            assert seeds == ({"0", "1", "2"} if cell.startswith("gp-vib") else {"0"}), (column, cell)
    ours = {name for name, run in STUDIES["table-2"].runs(None).items() if run.variant == "improved"}
    assert {name.partition("/")[0] for name in ours} == {
        column for column in COLUMNS if recipes.has_improved(column, "gp-vib")
    }
    five = configs("table-2", 5)
    assert {f"cub/maml-5-seed{seed}" for seed in range(5)} <= set(five) and "cub/maml-5-seed5" not in five
    for name, config in five.items():
        k = config.test.shots[0] if config.method == "gaussian-classes" else config.tasks.shots
        assert name.endswith(f"-{k}-seed{config.seed}") and name.startswith(f"{config.tasks.name}/")
        assert (config.device, config.repeats) == ("cuda", 1) and config.precision in ("tf32", "bf16")


def test_the_most_telling_runs_come_first():
    """Of table 2: a column after the other, in each GP-VIB's first training first and second trainings last."""
    names = [name for name in configs("table-2") if name.startswith("omniglot-emnist/")]
    assert names == list(configs("table-2"))[: len(names)]
    first, second = names.index("omniglot-emnist/maml-1-seed0"), names.index("omniglot-emnist/gp-vib-linear-1-seed1")
    assert names.index("omniglot-emnist/gp-vib-cosine-5-seed0") < first < second


def test_further_experiments_vary_what_they_are_named_for():
    shots, steps = configs("shots"), configs("inner-steps")
    sinusoids = {name: shots.pop(name) for name in list(shots) if name.startswith("sinusoid/")}
    streamed = {name: shots.pop(name) for name in list(shots) if name.startswith("augmented-omniglot/")}
    assert {c.test.shots[::7] for c in streamed.values()} == {(1, 100)}  # of 20 classes: 20 to 2,000 points
    assert {c.test.shots for c in shots.values()} == {tuple(range(1, 21))}
    assert {c.tasks.shots for c in shots.values()} == {1, 5}
    first = {c.method: c.test.shots[0] for c in sinusoids.values()}
    assert first == {"gp-vib": 1, "gp-maml": 1, "maml": 5, "stochastic-maml": 5}
    assert {c.method for c in steps.values()} == {"maml", "gp-maml"} and all(c.test.inner_steps for c in steps.values())
    rows = {"gp-vib-linear", "gp-vib-cosine", "maml", "stochastic-maml", "gp-maml-linear", "gp-maml-cosine"}
    omniglot = configs("omniglot")
    shuffled = {name for name, config in omniglot.items() if config.tasks.shuffled}
    named = {f"{row}{length}-{k}-seed0" for row in rows for length in ("", "-shorter") for k in (1, 5)}
    named |= {f"gp-maml-{kernel}-shorter-mean-{k}-seed0" for kernel in ("linear", "cosine") for k in (1, 5)}
    assert set(omniglot) - shuffled == named
    assert shuffled == {
        f"gp-vib-{kernel}-shorter-shuffled-{k}-seed0" for kernel in ("linear", "cosine") for k in (1, 5)
    }
    table_2 = configs("table-2")
    behind = {c.method for name, c in shots.items() if "-frozen-" in name and c.frozen and c.device == "cpu"}
    assert behind == {"gp-vib", "proto-net", "gaussian-classes"}
    photographs = {name: c for name, c in shots.items() if name.startswith("mini-imagenet/") and not c.frozen}
    once = [(c, table_2[name]) for name, c in photographs.items()]
    once += [(c, omniglot[name]) for name, c in steps.items() if not name.startswith("mini-imagenet/")]
    assert len(photographs) == 6 and all(replace(c, test=other.test) == other for c, other in once)  # trained once
    augmented = configs("augmented-omniglot")
    first_order = {name for name, config in augmented.items() if config.model.first_order}
    varied = {f"{row}-{v}" for row in rows if row.startswith("gp-") for v in ("deeper", "deeper-norm")}
    varied |= {f"{row}-{v}" for row in rows if row.startswith("gp-maml") for v in ("mean", "twenty")}
    varied |= {"maml-strided", "stochastic-maml-strided"}
    assert set(augmented) - first_order == {f"{row}-15-seed0" for row in rows | varied}
    assert first_order == {"gp-maml-cosine-twenty-first-order-15-seed0"}
    assert {(c.tasks.ways, c.tasks.shots, c.test.shots) for c in augmented.values()} == {(20, 15, (15, 100))}
    betas = configs("beta")
    for part in ("sinusoid", "omniglot-emnist", "omniglot", "mini-imagenet", "augmented-omniglot"):
        values = [c.train.beta for name, c in betas.items() if name.startswith(f"{part}/") and c.tasks.shots != 1]
        assert values == sorted(values) and values[-1] == 1.0


@pytest.mark.parametrize("name", STUDIES)
def test_quick_is_the_same_method_on_built_in_data(name):
    for config in configs(name).values():
        fast = make.quickened(config)
        assert fast.train.steps < config.train.steps and fast.method == config.method
        assert fast.train.lr == config.train.lr and fast.repeats <= config.repeats
        assert (fast.device, fast.tasks.name in ("glyphs", "sinusoid", "gaussian")) == ("cpu", True)
        if fast.tasks.name == "glyphs":  # which has twenty drawings of a character
            assert fast.tasks.shots + fast.tasks.queries <= 20


# Which of them


def test_patterns_pick_columns_methods_shots_and_seeds(tmp_path):
    def picked(only, **options):
        return list(make.plan(STUDIES["table-2"], tmp_path, tmp_path, only=only, **options))

    assert {name.partition("/")[0] for name in picked("cub/*")} == {"cub"}
    assert picked("cub/maml-1-seed0, */dkt-linear-5-seed0")[-2:] == [
        "cub/dkt-linear-5-seed0",
        "mini-imagenet-cub/dkt-linear-5-seed0",
    ]
    assert len(picked("*/dkt-linear-5-*")) == 4 and len(picked("*/dkt-linear-5-*", seeds=2)) == 8
    assert picked("") == []
    with pytest.raises(
        ValueError, match="no run of table-2 is called 'cup/[*]'; the nearest are .*cub/.*--list.* shows all"
    ):
        picked("cub/*,cup/*")


@pytest.mark.parametrize("count", [1, 3, 7])
def test_parts_are_disjoint_and_make_the_whole(count, tmp_path):
    def planned(**options):
        return list(make.plan(STUDIES["table-2"], tmp_path, tmp_path, only="cub/*", **options))

    whole = planned()
    parts = [planned(part=f"{i + 1}/{count}") for i in range(count)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [part[0] for part in parts] == whole[:count]  # each machine begins with what is most telling


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(name="table-7"), "there is no study 'table-7'; there are table-1"),
        (dict(part="0/2"), "a part is written as 2/4, the second of four; got '0/2'"),
        (dict(part="3/2"), "a part is written as"),
        (dict(part="half"), "a part is written as"),
        (dict(seeds=0), "seeds must be between 1 and 10; got 0"),
        (dict(seeds=11), "seeds must be between 1 and 10; got 11"),
        (dict(name="table-1", seeds=3), "table-1 trains its repeats side by side in one run"),
        (dict(only=""), "nothing is on record in .*table-2.jsonl: run some of it first"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is(options, message, here, tmp_path):
    options = {"name": "table-2", **options}
    with pytest.raises(ValueError, match=message):
        make.make(studies.find(options.pop("name")), tmp_path, tmp_path, **options)
    assert not list(tmp_path.iterdir()) and not here


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_runs_are_refused_at_once(here, tmp_path):
    with pytest.raises(ValueError, match="missing runs of table-2 need a GPU \\(4 in all\\).*--device cpu.*--quick"):
        made("table-2", tmp_path, only="cub/maml-*-seed0")
    assert not here and not list(tmp_path.iterdir())


def test_a_run_is_moved_to_a_cpu_where_one_is_asked_for_and_is_on_record_wherever_it_ran(tmp_path, monkeypatch):
    """The config that is run differs in its device and precision alone; any other change is another run."""
    name = "cub/proto-net-5-seed0"
    seen: dict[str, Config] = {}
    monkeypatch.setattr(make, "run_all", lambda configs, *_, **__: seen.update(configs))
    with pytest.raises(ValueError, match="nothing is on record"):
        made("table-2", tmp_path, only=name, device="cpu")
    there = configs("table-2")[name]
    assert seen == {name: replace(there, device="cpu", precision="float32")} and there.device == "cuda"
    for config in (there, seen[name]):
        found = {name: {"config": to_dict(config)}}
        assert make.recorded(found, name, there) and make.recorded(found, name, seen[name])
        assert not make.recorded(found, name, override(there, {"train.steps": 7}))
        assert not make.recorded(found, "cub/proto-net-1-seed0", there)


# Doing it


@pytest.mark.parametrize("name", STUDIES)
def test_every_quick_study_runs_and_shows_what_it_ran(name, here, tmp_path, monkeypatch):
    """From nothing to a table and its figures; again, and nothing is run."""
    monkeypatch.setattr(make, "quickened", smaller)
    study = STUDIES[name]
    few = ",".join(pattern.replace("*-5-", "gp-vib-cosine-5-") for pattern in study.quick.split(",")[:2])
    few = few if few != "*" else "gp-vib*"
    text = made(name, tmp_path, quick=True, only=few)
    folder = tmp_path / name
    assert (folder / "table.md").read_text() == text + "\n" and "|" in text
    assert text.startswith("*A quick version") and "its numbers say nothing" in text
    for figure in [part.partition(")")[0] for part in text.split("](")[1:]]:
        assert (folder / figure).stat().st_size > 1000
    started = len(here)
    wanted = make.plan(study, tmp_path, tmp_path / "records", quick=True, only=few)
    assert wanted and all(recorded for _, recorded in wanted.values()) and started <= len(wanted)
    assert made(name, tmp_path, quick=True, only=few) == text
    assert made(name, tmp_path, quick=True, only="") == text and len(here) == started
    kept = store.read(tmp_path / "records" / study.book)
    assert {key: record["variant"] for key, record in kept.items()} == {
        key: run.variant for key, (run, _) in wanted.items()
    }


def test_a_record_of_another_config_does_not_count(here, tmp_path):
    config = recipes.recipe("sinusoid", "gp-vib")
    found = {"r": {"config": to_dict(config)}}
    assert make.recorded(found, "r", config)
    assert not make.recorded(found, "r", replace(config, seed=1))
    assert not make.recorded(found, "none", config)


def test_a_record_that_was_tested_without_a_temperature_counts_and_not_the_other_way_round(here, tmp_path):
    config = recipes.recipe("omniglot-emnist", "gp-vib")
    tempered = override(config, {"test.temperature": True})
    assert make.recorded({"r": {"config": to_dict(config)}}, "r", tempered)
    assert not make.recorded({"r": {"config": to_dict(tempered)}}, "r", config)


def test_what_another_study_has_on_record_is_not_run_again(here, tmp_path):
    """GP-VIB at beta = 0.001 is a run of table 2 and one of the ablation over beta."""
    theirs, ours = "omniglot-emnist/gp-vib-linear-5-seed0", "omniglot-emnist/beta-0.001-5-seed0"
    known = store.read(store.FOLDER / "table-2.jsonl")[theirs]
    store.add(tmp_path / "records" / "table-2.jsonl", [known])
    (tmp_path / "records" / "notes.json").write_text("{")  # somebody's file, which is no record
    text = made("beta", tmp_path, only=ours)
    assert not here and "0.001" in text
    assert store.read(tmp_path / "records" / "beta.jsonl")[ours] == known | {"name": ours}


def test_what_is_trained_is_only_tested_where_the_test_alone_differs(here, tmp_path, monkeypatch):
    """Accuracy against shots needs no trainings of its own where table 2 has them."""
    monkeypatch.setattr(make, "quickened", smaller)
    made("table-2", tmp_path, quick=True, only="omniglot-emnist/gp-vib-linear-1-seed0")
    made("shots", tmp_path, quick=True, only="gp-vib-linear-1-seed0")
    trained = tmp_path / "table-2" / "omniglot-emnist" / "gp-vib-linear-1-seed0"
    assert ["--trained", str(trained)] == here[1][-2:] and "--trained" not in here[0]
    record = store.read(tmp_path / "records" / "shots.jsonl")["gp-vib-linear-1-seed0"]
    assert [row["shots"] for row in record["evaluation"]["rows"]] == [1, 15]


def test_runs_of_a_study_that_differ_in_their_test_alone_are_trained_once(here, tmp_path, monkeypatch):
    monkeypatch.setattr(make, "quickened", smaller)
    made("any-number", tmp_path, quick=True, only="gaussian-classes-*")
    trained = tmp_path / "any-number" / "gaussian-classes-improved-numbers-equal-2"
    assert "--trained" not in here[0] and ["--trained", str(trained)] == here[1][-2:] and len(here) == 2


def test_a_failing_run_leaves_the_others_on_record_and_in_the_table(here, tmp_path, monkeypatch):
    def broken(config: Config) -> Config:
        return override(smaller(config), {"model.kernel": "rbg"} if config.train.beta < 1 else {})

    monkeypatch.setattr(make, "quickened", broken)
    with pytest.raises(runs.RunFailed, match=r"(?s)1 of 2 runs failed.*sinusoid/beta-0.001 failed:.*model\.kernel"):
        made("beta", tmp_path, quick=True, only="sinusoid/beta-0.001,sinusoid/beta-1")
    assert list(store.read(tmp_path / "records" / "beta.jsonl")) == ["sinusoid/beta-1"]
    assert "| 1 " in (tmp_path / "beta" / "table.md").read_text()


# The command line


def test_the_command_makes_a_study_in_folders_of_its_own(here, tmp_path, monkeypatch):
    """A quick version leaves the committed records alone; what it has run is listed as on record."""
    monkeypatch.setattr(make, "quickened", smaller)
    monkeypatch.chdir(tmp_path)
    options = ["beta", "--quick", "--only", "sinusoid/beta-1"]
    ran = CliRunner().invoke(app, [*options, "--quiet"])
    assert ran.exit_code == 0 and "A quick version" in ran.output, ran.output
    assert list(store.read(tmp_path / "runs" / "quick" / "records" / "beta.jsonl")) == ["sinusoid/beta-1"]
    assert (tmp_path / "runs" / "quick" / "beta" / "sinusoid" / "beta-1" / RECORD).exists()
    listed = CliRunner().invoke(app, [*options, "--list"])
    assert "on record" in listed.output and "missing" not in listed.output and len(here) == 1


def test_records_made_elsewhere_are_added_by_one_command(tmp_path):
    known = store.read(store.FOLDER / "table-2.jsonl")
    (a, b, c), ours = list(known.values())[:3], tmp_path / "ours"
    store.add(tmp_path / "first" / "table-2.jsonl", [a, b | {"machine": "elsewhere"}])
    store.add(tmp_path / "second" / "beta.jsonl", [c])
    store.add(ours / "table-2.jsonl", [b, c])
    files = [str(tmp_path / "first" / "table-2.jsonl"), str(tmp_path / "second" / "beta.jsonl")]
    ran = CliRunner().invoke(app, ["merge", *files, "--records", str(ours)])
    assert ran.output.splitlines() == ["table-2: 2 records", "beta: 1 record"]
    merged = store.read(ours / "table-2.jsonl")
    assert merged == {r["name"]: r for r in (a, b | {"machine": "elsewhere"}, c)}
    assert list(store.read(ours / "beta.jsonl")) == [c["name"]]


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        ("table-9.jsonl", ValueError, "is not named after a study, such as table-2.jsonl; there are table-1"),
        ("table-2.json", ValueError, "is not named after a study"),
        ("table-2.jsonl", FileNotFoundError, "there is no file"),
    ],
)
def test_what_is_no_file_of_records_is_not_merged(tmp_path, file, error, message):
    store.add(tmp_path / "beta.jsonl", list(store.read(store.FOLDER / "beta.jsonl").values())[:1])
    with pytest.raises(error, match=message):
        make.merge([tmp_path / "beta.jsonl", tmp_path / file], tmp_path / "ours")
    assert not (tmp_path / "ours").exists()  # nothing of the others either


# Tables and records


@pytest.mark.parametrize("module", [compare, tables, study_module, report])
def test_the_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_a_table_reads_as_plain_text_and_as_markdown():
    text = tables.markdown(["a", "long header"], [["1", "2"], ["three", "4"]])
    lines = text.splitlines()
    assert lines[0] == "| a     | long header |" and lines[1] == "| ----- | ----------- |"
    assert len({len(line) for line in lines}) == 1


def test_a_record_holds_what_is_needed_to_do_it_again(tmp_path):
    config = tiny.sinusoid()
    record = records.record(config, {"rows": []}, [{"step": 1, "seconds": 1.234, "validation": {"score": 0.5}}])
    write_json(tmp_path / "r.json", record)
    again = read_json(tmp_path / "r.json")
    assert again == record and again["config"] == to_dict(config) and again["training_seconds"] == 1.2
    assert {"commit", "machine", "versions"} <= set(again) and {"torch", "python", "numpy"} <= set(again["versions"])
    assert Path(records.__file__).exists() and (again["commit"] is None or len(again["commit"]) >= 40)
