"""Labelled images: what the constructor refuses, and what selecting, joining and rotating classes keep."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metavib.data.labelled import (
    Labelled,
    Splits,
    check_disjoint,
    concatenate,
    invert,
    labelled,
    rotations,
    select_classes,
)


def _data(counts=(2, 1, 3), side=4, prefix="c"):
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 1, side, side), dtype=np.uint8)
    return labelled(images, labels, [f"{prefix}{i}" for i in range(len(counts))])


def test_labelled_keeps_pixels_and_counts_its_classes():
    data = _data()
    assert (data.size, data.classes, data.counts.tolist()) == (6, 3, [2, 1, 3])
    assert data.images.dtype == torch.uint8 and data.labels.dtype == torch.int64
    moved = data.to("cpu")
    assert isinstance(moved, Labelled) and moved.names == data.names


@pytest.mark.parametrize(
    ("images", "labels", "names", "error", "match"),
    [
        (np.zeros((2, 1, 3, 3), np.float32), [0, 1], "ab", ValueError, "uint8"),
        (np.zeros((2, 3, 3), np.uint8), [0, 1], "ab", ValueError, r"\(n, C, H, W\)"),
        (np.zeros((2, 1, 3, 3), np.uint8), [0.0, 1.0], "ab", TypeError, "whole numbers"),
        (np.zeros((2, 1, 3, 3), np.uint8), [0], "ab", ValueError, "one for each of the 2"),
        (np.zeros((2, 1, 3, 3), np.uint8), [0, 2], "ab", ValueError, r"0\.\.1"),
        (np.zeros((2, 1, 3, 3), np.uint8), [-1, 0], "ab", ValueError, r"0\.\.1"),
        (np.zeros((2, 1, 3, 3), np.uint8), [0, 1], "aa", ValueError, "repeated: a"),
        (np.zeros((2, 1, 3, 3), np.uint8), [0, 1], "abc", ValueError, "without any: c"),
    ],
)
def test_what_is_no_labelled_set_is_refused(images, labels, names, error, match):
    with pytest.raises(error, match=match):
        labelled(images, labels, tuple(names))


@given(st.permutations(range(5)).flatmap(lambda p: st.integers(1, 5).map(lambda k: p[:k])))
def test_select_classes_is_a_filter_and_a_renaming(chosen):
    """Each selected class has the pictures it had, under its place in the selection; names and indices agree."""
    data = _data((2, 1, 3, 1, 2))
    part = select_classes(data, chosen)
    assert part.names == tuple(data.names[c] for c in chosen)
    for new, old in enumerate(chosen):
        assert torch.equal(part.images[part.labels == new], data.images[data.labels == old])
    again = select_classes(data, part.names)
    assert torch.equal(again.images, part.images) and torch.equal(again.labels, part.labels)


def test_select_classes_refuses_what_is_not_there():
    with pytest.raises(ValueError, match="no such class: z"):
        select_classes(_data(), ["z"])
    with pytest.raises(ValueError, match=r"0\.\.2"):
        select_classes(_data(), [3])
    with pytest.raises(ValueError, match="twice"):
        select_classes(_data(), [1, 1])


def test_selecting_and_concatenating_are_inverse():
    data = _data()
    joined = concatenate(*(select_classes(data, [c]) for c in range(3)))
    assert joined.names == data.names
    assert torch.equal(joined.images, data.images) and torch.equal(joined.labels, data.labels)


def test_concatenate_refuses_other_shapes_and_shared_names():
    with pytest.raises(ValueError, match="one shape"):
        concatenate(_data(), _data(side=5, prefix="d"))
    with pytest.raises(ValueError, match="repeated"):
        concatenate(_data(), _data())
    with pytest.raises(ValueError, match="got none"):
        concatenate()


def test_invert_is_its_own_inverse_and_swaps_ink_and_paper():
    data = _data()
    assert torch.equal(invert(data).images.int(), 255 - data.images.int())
    assert torch.equal(invert(invert(data)).images, data.images)


def test_rotations_are_classes_of_their_own():
    """Four times the classes; each block of them is numpy's rotation of the pictures."""
    data = _data()
    turned = rotations(data)
    assert turned.classes == 12 and turned.names[:4] == ("c0/rot000", "c1/rot000", "c2/rot000", "c0/rot090")
    for k in range(4):
        block = (turned.labels >= 3 * k) & (turned.labels < 3 * (k + 1))
        expected = np.stack([np.rot90(image[0], k) for image in data.images.numpy()])
        assert np.array_equal(turned.images[block][:, 0].numpy(), expected)
        assert turned.names[3 * k].endswith(f"/rot{90 * k:03d}")
        assert torch.equal(turned.labels[block] - 3 * k, data.labels)


def test_rotations_need_squares():
    with pytest.raises(ValueError, match="square"):
        rotations(labelled(np.zeros((1, 1, 2, 3), np.uint8), [0], ["a"]))


def test_splits_that_share_a_class_are_refused():
    apart = Splits(_data(prefix="a"), _data(prefix="b"), _data(prefix="c"))
    assert check_disjoint(apart) is apart
    assert isinstance(apart.to("cpu"), Splits)
    with pytest.raises(ValueError, match="train and test .* share 3: a0, a1, a2"):
        check_disjoint(apart._replace(test=_data(prefix="a")))
