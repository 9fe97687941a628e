"""The built-in characters: splits by alphabet, classes that differ, pictures that vary and can be read."""

import unicodedata

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from metavib.data import glyphs as module
from metavib.data.glyphs import TEST, TRAIN, VALIDATION, Distortion, glyphs
from metavib.data.ink import inked


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("glyphs")


@pytest.fixture(scope="module")
def small(cache):
    return glyphs(instances=4, cache=cache)


STILL = Distortion(rotation=0, shear=0, scale=0, shift=0, elastic=0, stroke=(0, 0), faint=0, noise=0)


@pytest.fixture(scope="module")
def still(cache):
    """One picture of each class, undistorted, in a font of its own choice."""
    return glyphs(instances=1, distortion=STILL, cache=cache)


def test_pictures_may_be_brought_to_ink(still, cache):
    ink = glyphs(instances=1, distortion=STILL, ink=True, cache=cache)
    for plain, found in zip(still, ink, strict=True):
        assert plain.names == found.names
        for drawing, picture in zip(plain.images[:20], found.images[:20], strict=True):
            assert np.array_equal(picture[0], inked(drawing.numpy()))


def test_there_are_enough_classes_and_equally_many_pictures_of_each(small):
    for part, least in zip(small, (200, 40, 60), strict=True):
        assert part.classes >= least
        assert part.images.shape == (4 * part.classes, 1, 28, 28) and part.images.dtype == torch.uint8
        assert part.counts.tolist() == [4] * part.classes


def test_splits_share_neither_alphabet_nor_character(small):
    alphabets = [{name.split("/")[0] for name in part.names} for part in small]
    assert alphabets == [set(TRAIN), set(VALIDATION), set(TEST)]
    assert not (alphabets[0] & alphabets[1] or alphabets[0] & alphabets[2] or alphabets[1] & alphabets[2])
    characters = "".join([*TRAIN.values(), *VALIDATION.values(), *TEST.values()])
    assert len(set(characters)) == len(characters) == sum(part.classes for part in small)


def test_names_say_alphabet_and_character(small):
    assert small.test.names[0] == "armenian/armenian capital letter ayb"
    characters = [c for letters in TRAIN.values() for c in letters]
    assert [name.partition("/")[2] for name in small.train.names] == [unicodedata.name(c).lower() for c in characters]


def test_no_two_characters_look_alike():
    """The rule by which the characters were chosen, with a little room for other versions of the renderer."""
    draw = module._drawer([module._fonts()[0]])
    letters = "".join([*TRAIN.values(), *VALIDATION.values(), *TEST.values()])
    blurred = torch.stack([draw(letter) for letter in letters]).float()
    for _ in range(2):
        blurred = F.avg_pool2d(blurred, 5, stride=1, padding=2)
    blurred = F.normalize(F.avg_pool2d(blurred, 4).flatten(1))
    assert (blurred @ blurred.T).fill_diagonal_(0).max() < 0.93


def test_every_font_has_characters_and_the_first_has_all():
    draw = module._drawer(module._fonts())
    assert draw("A").shape == (16, module.CANVAS, module.CANVAS)
    first = module._drawer(module._fonts()[:1])
    letters = "".join([*TRAIN.values(), *VALIDATION.values(), *TEST.values()])
    assert all(len(first(letter)) == 1 for letter in letters)


def test_the_same_seed_gives_the_same_pictures_and_another_others(small, cache, tmp_path):
    for a, b in zip(small, glyphs(instances=4, cache=tmp_path), strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and a.names == b.names
    other = glyphs(instances=4, seed=1, cache=cache)
    assert other.test.names == small.test.names and not torch.equal(other.test.images, small.test.images)


def test_the_cache_is_used_and_knows_its_parameters(small, cache, monkeypatch):
    def fail(*args):
        raise AssertionError("drawn again")

    monkeypatch.setattr(module, "_drawer", fail)
    again = glyphs(instances=4, cache=cache)
    assert torch.equal(again.train.images, small.train.images)
    with pytest.raises(AssertionError, match="drawn again"):
        glyphs(instances=4, distortion=Distortion(noise=0.01), cache=cache)


def test_pictures_are_dark_ink_on_white_paper_and_none_is_blank(small):
    for part in small:
        ink = 1 - part.images.float() / 255
        assert ink[..., 0, :].mean() < 0.15  # the margin is paper
        strongest = F.avg_pool2d(ink, 2).flatten(1).max(-1).values
        assert strongest.min() > 0.2  # above the noise, which is below that when averaged over four pixels
        assert 0.05 < ink.mean() < 0.35


def test_without_distortion_a_picture_is_the_drawing_made_smaller(still):
    draw = module._drawer(module._fonts())
    characters = [c for letters in TEST.values() for c in letters]
    for picture, character in zip(still.test.images[:40], characters, strict=False):
        drawings = 1 - F.interpolate(draw(character)[:, None] / 255, 28, mode="bilinear", antialias=True)
        error = (picture / 255 - drawings).abs().mean((1, 2, 3)).min()  # whichever font it was
        assert error < 0.02


def test_pictures_of_a_class_differ_from_one_another(small):
    pictures = small.train.images.reshape(small.train.classes, 4, -1).float()
    apart = torch.cdist(pictures, pictures) + 1e6 * torch.eye(4)
    assert apart.min() > 100  # in grey levels over the picture


def test_strokes_widen_and_narrow_by_the_pixels_asked_for():
    ink = torch.zeros(4, 20, 20, dtype=torch.uint8)
    ink[:, 3:17, 8:12] = 255  # a stroke of 4 pixels
    widths = module._stroke(ink, torch.tensor([0.0, 1.0, 1.5, -0.5]))[:, 10].sum(-1)
    torch.testing.assert_close(widths, torch.tensor([4.0, 6.0, 7.0, 3.0]))


def test_at_least_one_instance_is_asked_for():
    with pytest.raises(ValueError, match="instances must be at least 1; got 0"):
        glyphs(instances=0)
