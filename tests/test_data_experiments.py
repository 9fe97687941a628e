"""The splits of the experiments have the documented classes, none twice; and what the catalog says is where."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from data_files import (
    BACKGROUND,
    EVALUATION,
    REAL,
    cub_packed,
    emnist_packed,
    mini_imagenet_packed,
    needs_real,
    noise,
    omniglot_packed,
    omniglot_rows,
)
from metavib.data import catalog, dataset_root, splits
from metavib.data.archive import read_npz
from metavib.data.catalog import DATASETS, find
from metavib.data.characters import alphabet, emnist, omniglot
from metavib.data.class_splits import CHARACTERS, EXPERIMENTS, checksums
from metavib.data.ink import inked
from metavib.data.photographs import MINI_IMAGENET_CLASSES as CLASSES
from metavib.training.config import TasksConfig
from metavib.training.protocols.seen import load

COUNTS = {
    "omniglot-emnist": (1597, 31, 31),
    "omniglot": (4112, 688, 1692),
    "augmented-omniglot": (731, 172, 659),
    "mini-imagenet": (64, 16, 20),
    "cub": (100, 50, 50),
    "mini-imagenet-cub": (100, 50, 50),
    "characters": (6492, 31, 31),
}

PACKED = {dataset.name: dataset.forms[0].files for dataset in DATASETS}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Every dataset, packed, with all its classes and an image or two each; and a cache."""
    root, cache = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("cache")
    rows = omniglot_rows(BACKGROUND, EVALUATION, drawers=1)
    omniglot_packed(root / "omniglot_28.npz", rows, images=noise(0, len(rows), 28, 28))
    emnist_packed(root / "emnist_62x200.npz")
    train = list(CLASSES["train"])
    for part, wnids in (
        ("train_a", train[:32]),
        ("train_b", train[32:]),
        ("val", CLASSES["val"]),
        ("test", CLASSES["test"]),
    ):
        mini_imagenet_packed(root / f"mini_imagenet_{part}.npz", list(wnids), per_class=1, side=16)
    cub_packed(root, 200)
    return {"root": root, "cache": cache}


def test_every_experiment_is_tested_here():
    assert EXPERIMENTS.keys() == COUNTS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_splits_have_the_documented_number_of_classes_and_share_none(places, name):
    parts = splits(name, **places)
    assert tuple(part.classes for part in parts) == COUNTS[name]
    names = [class_name for part in parts for class_name in part.names]
    assert len(set(names)) == len(names)
    assert all(part.counts.min() >= 1 for part in parts)


def test_omniglot_to_emnist_trains_without_latin_and_tests_on_odd_labels(places):
    parts = splits("omniglot-emnist", **places)
    assert not any(name.startswith("Latin/") for name in parts.train.names)
    assert parts.validation.names[:6] == ("0", "2", "4", "6", "8", "A")
    assert parts.test.names[:6] == ("1", "3", "5", "7", "9", "B")
    rotated = splits("omniglot-emnist", rotations=True, **places)
    assert rotated.train.classes == 4 * 1597 and rotated.test.classes == 31
    whole = splits("omniglot-emnist", crop=False, **places)
    assert whole.train.images.shape == parts.train.images.shape
    assert not np.array_equal(whole.test.images, parts.test.images)


def test_the_rule_gives_the_lists_of_vinyals_et_al(places):
    """Checksums of the three published lists, each sorted and without rotations."""
    parts = splits("omniglot", rotations=False, **places)
    digests = [hashlib.sha256("\n".join(sorted(part.names)).encode()).hexdigest()[:16] for part in parts]
    assert digests == ["c350ea5778649d32", "d3f56052fbd17195", "bbbdc01c73fd2d34"]


def test_shuffled_characters_test_on_alphabets_that_training_knows(places):
    parts = splits("omniglot", rotations=False, shuffled=True, **places)
    assert [part.classes for part in parts] == [1100, 100, 423]
    ordered = splits("omniglot", rotations=False, **places)
    assert sorted(n for part in parts for n in part.names) == sorted(n for part in ordered for n in part.names)
    known, tested = ({alphabet(name) for name in part.names} for part in (parts.train, parts.test))
    assert len(tested) == 50 and tested <= known
    again = splits("omniglot", rotations=True, shuffled=True, **places)
    assert [part.classes for part in again] == [4400, 400, 1692]


def test_augmented_omniglot_splits_by_alphabet_with_20_characters_each(places):
    parts = splits("augmented-omniglot", **places)
    alphabets = [{alphabet(name) for name in part.names} for part in parts]
    assert [len(a) for a in alphabets] == [21, 5, 20]
    assert alphabets[0] | alphabets[1] < set(BACKGROUND) and alphabets[2] == set(EVALUATION)
    assert all(
        sum(alphabet(n) == a for n in part.names) >= 20 for part, s in zip(parts, alphabets, strict=True) for a in s
    )


@pytest.mark.parametrize("name", CHARACTERS)
def test_characters_are_ink_in_every_part_where_a_config_says_so(name, places, monkeypatch):
    monkeypatch.setenv("METAVIB_CACHE", str(places["cache"]))
    drawn = {}  # a drawing of 28 x 28 is its own picture where nothing is cut off
    for data in (omniglot(**places), emnist(crop=False, **places)):
        drawn |= {data.names[label]: image for image, label in zip(data.images, data.labels.tolist(), strict=True)}
    tasks = TasksConfig(name=name, channels=1, size=28, root=str(places["root"]))
    for plain, ink in zip(load(tasks), load(replace(tasks, ink=True)), strict=True):
        assert plain.names == ink.names
        for label, n in enumerate(ink.names[:5]):
            found = ink.images[ink.labels == label][-1]
            assert np.array_equal(found[0], inked(drawn[n.removesuffix("/rot000")].numpy()))
            assert not np.array_equal(found, plain.images[plain.labels == label][-1])


def test_what_is_brought_to_ink_is_read_from_the_largest_drawings(tmp_path):
    rows = omniglot_rows({"Greek": 1}, {"Angelic": 1}, drawers=1)
    omniglot_packed(tmp_path / "omniglot_28.npz", rows, images=noise(0, len(rows), 28, 28))
    omniglot_packed(tmp_path / "omniglot_105.npz", rows)
    assert list(checksums("omniglot", tmp_path)) == ["omniglot_28.npz"]
    assert list(checksums("omniglot", tmp_path, ink=True)) == ["omniglot_105.npz"]


def test_mini_imagenet_to_cub_trains_on_all_hundred_classes(places):
    train = splits("mini-imagenet-cub", **places).train
    assert set(train.names) == {wnid for part in CLASSES.values() for wnid in part}
    assert train.images.shape[1:] == (3, 84, 84)


def test_incomplete_or_other_files_are_refused(places, tmp_path):
    rows = omniglot_rows({"Greek": 24, "Latin": 26}, {"Angelic": 20}, drawers=1)
    omniglot_packed(tmp_path / "omniglot_28.npz", rows, images=noise(0, len(rows), 28, 28))
    emnist_packed(tmp_path / "emnist_62x200.npz")
    with pytest.raises(ValueError, match=r"should have \(1597, 31, 31\) classes .* give \(44, 31, 31\)"):
        splits("omniglot-emnist", root=tmp_path, cache=tmp_path / "cache")
    for part in ("train_a", "train_b", "val", "test"):
        mini_imagenet_packed(tmp_path / f"mini_imagenet_{part}.npz", [f"n-{part}"], per_class=1, side=16)
    with pytest.raises(ValueError, match="n-train_a is not among the train classes"):
        splits("mini-imagenet", root=tmp_path, cache=tmp_path / "cache")


def test_an_unknown_experiment_or_option_is_refused(places):
    with pytest.raises(ValueError, match="no experiment is named 'imagenet'; there are omniglot-emnist"):
        splits("imagenet", **places)
    with pytest.raises(TypeError, match="rotations"):
        splits("cub", rotations=True, **places)


# --- the catalog ------------------------------------------------------------------------------------------------------


def test_the_catalog_says_what_was_found(places):
    entries = {entry.name: entry for entry in catalog(places["root"])}
    assert list(entries) == ["omniglot", "emnist", "mini-imagenet", "cub"]
    assert all(entry.ready and not entry.missing and not entry.remedy for entry in entries.values())
    assert [path.name for path in entries["omniglot"].found] == ["omniglot_28.npz"]
    assert all(entry.what and entry.licence and entry.cite and entry.where for entry in entries.values())


def test_the_catalog_says_what_is_missing_and_where_to_get_it(tmp_path):
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "omniglot" / "images_background.zip").write_bytes(b"")
    entry = catalog(tmp_path)[0]
    assert not entry.ready and entry.form is None
    assert [p.name for p in entry.found] == ["images_background.zip"] and entry.missing == ("images_evaluation.zip",)
    assert "github.com/brendenlake/omniglot" in entry.remedy and str(tmp_path) in entry.remedy


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: d.name)
def test_a_missing_dataset_is_an_error_with_folder_files_and_source(tmp_path, dataset):
    with pytest.raises(FileNotFoundError) as caught:
        find(dataset.name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message and dataset.where in message
    assert all(file in message for form in dataset.forms for file in form.files)


def test_files_of_one_form_come_from_one_folder(tmp_path):
    """Half of a form here and half there is not a dataset."""
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "images_background.zip").write_bytes(b"")
    (tmp_path / "omniglot" / "images_evaluation.zip").write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        find("omniglot", tmp_path)
    (tmp_path / "omniglot" / "images_background.zip").write_bytes(b"")
    assert {path.parent for path in find("omniglot", tmp_path).files} == {tmp_path / "omniglot"}


def test_an_unknown_dataset_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no dataset is named 'mnist'; there are omniglot"):
        find("mnist", tmp_path)


def test_the_root_is_the_argument_then_the_variable_then_data(monkeypatch, tmp_path):
    monkeypatch.setenv("METAVIB_DATA", str(tmp_path))
    assert dataset_root() == tmp_path and str(dataset_root("here")) == "here"
    monkeypatch.delenv("METAVIB_DATA")
    assert str(dataset_root()) == "data"


# --- the real files, where they are at hand ---------------------------------------------------------------------------


@needs_real("omniglot_28.npz", "omniglot_105.npz", "emnist_62x200.npz")
def test_real_characters_split_as_documented_with_one_polarity(tmp_path):
    for name in ("omniglot-emnist", "omniglot", "augmented-omniglot"):
        parts = splits(name, root=REAL, cache=tmp_path)
        assert tuple(part.classes for part in parts) == COUNTS[name]
        for part in parts:
            assert part.counts.unique().tolist() in ([20], [200])
            corners = part.images[:, 0, ::27, ::27].float()  # paper is light, in both datasets
            assert corners.mean() > 230 and part.images.float().mean() < corners.mean()


@needs_real("omniglot_28.npz", "splits.json")
def test_real_omniglot_classes_are_those_of_the_split_list(tmp_path):
    listed = json.loads((REAL / "splits.json").read_text("utf-8"))["omniglot_vinyals"]
    parts = splits("omniglot", rotations=False, root=REAL, cache=tmp_path)
    for part, key in zip(parts, ("train", "val", "test"), strict=True):
        assert set(part.names) == set(listed[key])
    assert set(omniglot(root=REAL, cache=tmp_path).names) == {name for names in listed.values() for name in names}


@needs_real("splits.json", *PACKED["mini-imagenet"], *PACKED["cub"])
def test_real_colour_classes_are_those_of_the_split_list():
    listed = json.loads((REAL / "splits.json").read_text("utf-8"))
    for part, entries in listed["mini_imagenet_ravi_larochelle"].items():
        files = sorted(REAL.glob(f"mini_imagenet_{part}*.npz"))
        columns = [read_npz(file, "wnid", "label") for file in files]
        assert [str(w) for wnids, _ in columns for w in wnids] == [entry["wnid"] for entry in entries]
        assert CLASSES[part] == tuple(entry["wnid"] for entry in entries)
        assert all(np.bincount(labels).tolist() == [600] * len(wnids) for wnids, labels in columns)
    names = sorted(name for part in listed["cub_chen2019"].values() for name in part)
    for part, picks in (("base", (0, 2)), ("val", (1,)), ("novel", (3,))):
        class_names, labels = read_npz(REAL / f"cub_{part}.npz", "class_names", "label")
        assert class_names.tolist() == [name for i, name in enumerate(names) if i % 4 in picks]
        assert len(np.unique(labels)) == len(class_names)
