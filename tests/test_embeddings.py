"""Array files of features: what is written is what is read, and anything else is refused with its name."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from metavib.data.embeddings import read_embeddings, read_several, read_vectors, write_embeddings
from metavib.data.labelled import Labelled, Splits


def parts(width: int = 3, seed: int = 0) -> Splits:
    g = torch.Generator().manual_seed(seed)
    return Splits(*(part._replace(images=torch.randn(part.size, width, generator=g)) for part in tiny.splits()))


GOOD = {
    "features": np.eye(6),
    "labels": np.array([0, 1, 2, 0, 1, 2]),
    "names": np.array(["a", "b", "c"]),
    "splits": np.array(["train", "validation", "test"]),
}


@given(st.integers(1, 7), st.integers(0, 10))
def test_what_is_written_is_what_is_read(tmp_path: Path, width: int, seed: int):
    """Up to half precision, class by class."""
    written = parts(width, seed)
    write_embeddings(tmp_path / "f.npz", written)
    for found, wanted in zip(read_embeddings(tmp_path / "f.npz"), written, strict=True):
        assert found.names == wanted.names and torch.equal(found.labels, wanted.labels)
        torch.testing.assert_close(found.images, wanted.images.half().float())


def test_a_file_made_by_hand_is_read_in_any_order_of_the_classes(tmp_path):
    np.savez(tmp_path / "f.npz", **(GOOD | {"splits": np.array(["test", "train", "train"])}))
    found = read_embeddings(tmp_path / "f.npz")
    assert found.train.names == ("b", "c") and found.test.names == ("a",) and found.validation.names == ()
    assert found.train.labels.tolist() == [0, 1, 0, 1]
    assert found.train.images.argmax(-1).tolist() == [1, 2, 4, 5] and found.train.images.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.eye(6, dtype=int)}, "features must be numbers"),
        ({"features": np.zeros((6, 2, 2))}, "features must be numbers"),
        ({"features": np.full((6, 2), np.nan)}, "infinite or NaN"),
        ({"labels": np.arange(5)}, "labels must be whole numbers"),
        ({"labels": np.arange(6.0)}, "labels must be whole numbers"),
        ({"labels": np.arange(6)}, "labels must lie in 0..2"),
        ({"labels": -np.ones(6, dtype=int)}, "labels must lie in 0..2"),
        ({"names": np.arange(3)}, "names and splits must be one text a class"),
        ({"names": np.array(["a", "b"])}, "names and splits must be one text a class"),
        ({"names": np.array(["a", "a", "b"])}, "twice"),
        ({"splits": np.array(["train", "val", "test"])}, "got 'val'"),
        ({"names": np.array([None, 1, "x"])}, "not read"),
    ],
)
def test_a_malformed_file_is_refused_by_name(tmp_path, changes, message):
    np.savez(tmp_path / "odd.npz", **(GOOD | changes))
    with pytest.raises(ValueError, match=message) as error:
        read_embeddings(tmp_path / "odd.npz")
    assert "odd.npz" in str(error.value)


def test_a_file_without_one_of_the_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "short.npz", features=np.eye(2), labels=np.arange(2))
    with pytest.raises(ValueError, match="no array named names, splits"):
        read_embeddings(tmp_path / "short.npz")


def test_what_cannot_be_written_is_refused_and_leaves_no_file(tmp_path):
    good = parts()
    odd = {
        "one M": good._replace(test=good.test._replace(images=torch.zeros(40, 5))),
        "float16": good._replace(test=good.test._replace(images=torch.full((40, 3), 1e6))),
        "no class in common": good._replace(test=Labelled(good.test.images, good.test.labels, good.train.names[:5])),
    }
    for message, wrong in odd.items():
        with pytest.raises(ValueError, match=message):
            write_embeddings(tmp_path / "f.npz", wrong)
    assert not list(tmp_path.iterdir())


def test_of_two_files_all_classes_of_the_first_train_and_the_second_validates_and_tests(tmp_path):
    first, other = parts(), parts(seed=1)
    second = Splits(*(part._replace(names=tuple(f"other {name}" for name in part.names)) for part in other))
    write_embeddings(tmp_path / "first.npz", first)
    write_embeddings(tmp_path / "second.npz", second)
    found = read_several([tmp_path / "first.npz", tmp_path / "second.npz"])
    assert found.train.names == (*first.train.names, *first.validation.names, *first.test.names)
    assert found.validation.names == second.validation.names and found.test.names == second.test.names
    surprise = read_several([tmp_path / "first.npz", tmp_path / "second.npz"], unseen=True)
    assert [part.names for part in surprise] == [first.train.names, first.validation.names, second.test.names]
    for part in first:  # each picture is still of its class
        for label, name in enumerate(part.names):
            mine = found.train.images[found.train.labels == found.train.names.index(name)]
            torch.testing.assert_close(mine, part.images[part.labels == label].half().float())


def test_files_that_do_not_go_together_are_refused(tmp_path):
    write_embeddings(tmp_path / "a.npz", parts())
    write_embeddings(tmp_path / "b.npz", parts(width=4))
    with pytest.raises(ValueError, match="3 features and .*b.npz has 4: make them with one network"):
        read_several([tmp_path / "a.npz", tmp_path / "b.npz"])
    with pytest.raises(ValueError, match="no class in common"):
        read_several([tmp_path / "a.npz", tmp_path / "a.npz"])
    with pytest.raises(ValueError, match="in one file, or in two.*got 0 files"):
        read_several([])


def test_vectors_of_a_task_need_no_splits(tmp_path):
    np.savez(tmp_path / "f.npz", **{name: array for name, array in GOOD.items() if name != "splits"})
    found = read_vectors(tmp_path / "f.npz")
    assert found.names == ("a", "b", "c") and found.labels.tolist() == [0, 1, 2, 0, 1, 2]
