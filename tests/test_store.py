"""Records: what is written is read back, whatever becomes of the config and whoever else writes at the same time."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from metavib.files import read_json
from metavib.training.config import Config
from metavib.training.fields import override, to_dict
from reproduction import store


def record(name: str = "a", config: Config | None = None, **more) -> store.Record:
    """The record of a run, as short as one can be."""
    made = {"name": name, "variant": "", "config": to_dict(config or tiny.sinusoid())}
    return made | {"evaluation": {"rows": []}, "training_seconds": 1.5, "validation": [], "machine": "m", **more}


def leaves(values: dict, section: str = "") -> dict:
    """The fields of a config with their sections, `{"model.width": 64}`."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found.update(leaves(value, f"{section}{key}."))
        else:
            found[f"{section}{key}"] = value
    return found


changes = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 9),
        "tasks.ways": st.integers(2, 20),
        "tasks.root": st.none() | st.text("ab/", min_size=1),
        "model.widths": st.lists(st.integers(1, 99), max_size=3),
        "model.reach": st.none() | st.floats(0.1, 10),
        "train.beta": st.floats(0, 1),
        "train.schedule": st.sampled_from(["constant", "cosine"]),
        "test.shots": st.lists(st.integers(0, 20), max_size=4),
    },
)


@given(changes)
def test_a_record_is_read_back_as_it_was_written(tmp_path, changed):
    config = override(Config(), changed)
    written = record(config=config, validation=[[5, 0.5], [10, 0.25], [12, 0.125]], data={"a.npz": "0f"}, commit=None)
    store.add(tmp_path / "s.jsonl", [written])
    read = store.read(tmp_path / "s.jsonl")["a"]
    assert read | {"config": written["config"]} == written and store.config(read) == config
    assert leaves(read["config"]) | leaves(written["config"]) == leaves(read["config"])  # and what was dropped since


@given(changes)
def test_only_what_differs_from_the_frozen_defaults_is_stored(changed):
    config = override(Config(), changed)
    stored = json.loads(store.line(record(config=config)))["config"]
    frozen, values = leaves(read_json(store.DEFAULTS)), leaves(to_dict(config))
    assert leaves(stored) == {key: value for key, value in values.items() if frozen[key] != value}


def test_another_default_in_the_code_changes_no_record(tmp_path, monkeypatch):
    """Records resolve against the committed defaults: freeze others, and the same line means something else."""
    store.add(tmp_path / "s.jsonl", [record(config=Config())])
    assert '"config":{}' in (tmp_path / "s.jsonl").read_text()
    other = to_dict(replace(Config(), seed=7))
    (tmp_path / "defaults.json").write_text(json.dumps(other))
    monkeypatch.setattr(store, "DEFAULTS", tmp_path / "defaults.json")
    assert store.config(store.read(tmp_path / "s.jsonl")["a"]) == replace(Config(), seed=7)


def test_the_frozen_defaults_have_every_field_of_the_config():
    """Else a record says nothing of the field, and a later change of its default would change what records mean."""
    frozen = {store.RENAMES.get(key, key) for key in leaves(read_json(store.DEFAULTS))}
    missing = set(leaves(to_dict(Config()))) - frozen
    assert not missing, f"add to {store.DEFAULTS} with the value that does what the code did before: {missing}."


def test_a_renamed_field_is_found_under_its_new_name(tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    text = store.line(record(config=tiny.sinusoid(train__lr=0.5))).replace('"lr":0.5', '"old_rate":0.5')
    path.write_text(text + "\n")
    assert store.config(store.read(path)["a"]) is None
    monkeypatch.setattr(store, "RENAMES", {"train.old_rate": "train.lr"})
    assert store.config(store.read(path)["a"]) == tiny.sinusoid(train__lr=0.5)


def test_a_field_that_was_dropped_makes_no_record_unreadable(tmp_path, monkeypatch):
    """At its default it counts for nothing; with another value the record is of a config that exists no more."""
    frozen = read_json(store.DEFAULTS)
    frozen["model"]["gone"], frozen["old"] = 3, {"inside": True}
    (tmp_path / "defaults.json").write_text(json.dumps(frozen))
    monkeypatch.setattr(store, "DEFAULTS", tmp_path / "defaults.json")
    config = tiny.sinusoid()
    same = to_dict(config)
    same["model"] |= {"gone": 3}
    other = to_dict(config)
    other["model"] |= {"gone": 4}
    section = to_dict(config) | {"old": {"inside": False}}
    configs = {"same": same, "other": other, "section": section}
    store.add(tmp_path / "s.jsonl", [record(name) | {"config": c} for name, c in configs.items()])
    read = store.read(tmp_path / "s.jsonl")
    assert store.config(read["same"]) == config
    assert store.config(read["other"]) is None and read["other"]["config"]["model"]["gone"] == 4
    assert store.config(read["section"]) is None and read["section"]["config"]["old"] == {"inside": False}


def test_a_value_that_is_refused_today_is_of_a_config_that_exists_no_more():
    values = to_dict(tiny.sinusoid())
    values["train"]["schedule"] = "triangular"
    assert store.config(record() | {"config": values}) is None


@pytest.mark.parametrize(
    "curve",
    [[], [[300, 0.5]], [[100, 0.1], [200, 0.2]], [[100, 0.1], [200, 0.2], [250, 0.3]], [[1, 0.1], [5, 0.2], [7, 0.0]]],
)
def test_validations_keep_their_steps_regular_or_not(curve):
    assert store._pairs(json.loads(store.line(record(validation=curve)))["validation"]) == curve


def test_the_same_run_again_replaces_its_line_and_lines_stand_in_order(tmp_path):
    path = tmp_path / "s.jsonl"
    store.add(path, [record("b"), record("a", machine="first")])
    store.add(path, [record("a", machine="second"), record("c")])
    assert [(name, r["machine"]) for name, r in store.read(path).items()] == [("a", "second"), ("b", "m"), ("c", "m")]
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["a", "b", "c"]


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    names = [f"r{i}" for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.add(tmp_path / "s.jsonl", [record(name)]), names))
    assert sorted(store.read(tmp_path / "s.jsonl")) == sorted(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "a"', "line 2: this is not JSON"),
        ('{"name": "a"}', "line 2 is not the record of a run"),
        ("[]", "line 2 is not the record of a run"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, text, message):
    (tmp_path / "s.jsonl").write_text(f"{store.line(record())}\n{text}\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        store.read(tmp_path / "s.jsonl")


def test_where_nothing_was_written_there_are_no_records(tmp_path):
    assert store.read(tmp_path / "none.jsonl") == {}


@pytest.mark.parametrize("path", sorted(store.FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_committed_records_are_written_as_the_program_writes_them(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines == [store.line(found) for found in store.read(path).values()]
