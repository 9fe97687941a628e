"""Pictures unlike those of training: what becomes of them, and what a test says of models on them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.metrics import roc_auc_score

import tiny
from metavib.data import Labelled, Splits, shifts
from metavib.data.shifts import drawings, shifted
from metavib.show import tables
from metavib.tasks.episodes import Episodes, fixed
from metavib.tasks.inputs import points
from metavib.tasks.task import Examples, Task
from metavib.training import build
from metavib.training.metrics import auroc
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.experiment import TEST


def pictures(size: int = 28) -> Labelled:
    return tiny.images("a", 3, size=size)


def test_blur_is_a_gaussian_of_a_fourteenth_of_the_side():
    data = pictures()
    found = shifted(data, "blur").images.float().numpy()
    wanted = gaussian_filter(data.images.float().numpy(), (0, 0, 2, 2), mode="nearest", truncate=3.0)
    np.testing.assert_allclose(found, wanted, atol=0.51)  # of 255: both are rounded to a grey


def test_noise_has_a_quarter_of_the_range_and_is_always_the_same():
    grey = Labelled(torch.full((60, 1, 28, 28), 128, dtype=torch.uint8), torch.zeros(60).long(), ("fog",))
    found = shifted(grey, "noise").images.float()
    assert found.mean() == pytest.approx(128, abs=1) and found.std() == pytest.approx(62, abs=2)  # the ends are cut off
    assert torch.equal(found, shifted(grey, "noise").images.float())


def test_the_first_pictures_of_each_class_are_spoilt(monkeypatch):
    monkeypatch.setattr(shifts, "EACH", 2)
    labels = torch.tensor([1, 0, 1, 1, 0, 0, 1])
    found = shifted(Labelled(torch.arange(7, dtype=torch.uint8).reshape(7, 1, 1, 1), labels, ("a", "b")), "inversion")
    assert found.labels.tolist() == [1, 0, 1, 0] and (255 - found.images).flatten().tolist() == [0, 1, 2, 4]


def test_photographs_without_colours_have_the_brightness_that_pillow_gives_them():
    colours = torch.randint(0, 256, (5, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = shifted(Labelled(colours, torch.zeros(5).long(), ("a",)), "grey").images
    assert torch.equal(found[:, 0], found[:, 1]) and torch.equal(found[:, 0], found[:, 2])
    for picture, grey in zip(colours, found, strict=True):
        wanted = np.asarray(Image.fromarray(picture.permute(1, 2, 0).numpy()).convert("L"), dtype=float)
        np.testing.assert_allclose(grey[0].numpy(), wanted, atol=1)


def test_close_up_a_slope_is_a_flatter_slope():
    """A tenth to three tenths of the area, of any shape, fill the picture: steps from pixel to pixel shrink by that."""
    slope = torch.linspace(0, 255, 100).round().to(torch.uint8).expand(40, 3, 100, 100)
    data = Labelled(slope, torch.zeros(40).long(), ("a",))
    found = shifted(data, "close").images.float()
    share = (found[..., -1] - found[..., 0]).mean((1, 2)) / 255  # of the width
    assert (share > 0.25).all() and (share < 0.66).all() and share.std() > 0.02
    assert torch.equal(found, shifted(data, "close").images.float())


def test_birds_are_the_novel_classes_at_the_side_of_the_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(shifts.photographs, "cub", lambda part, *, root: tiny.images(part, 4, size=96))
    found = shifted(tiny.images("a", 3, size=40), "birds")
    assert found.images.shape[1:] == (1, 40, 40) and found.names[0].startswith("novel") and found.classes == 4


def test_an_inverted_picture_is_the_same_ink():
    """A user's picture of light on dark is brought to dark on light before a model sees it."""
    data = drawings(28, classes=3, each=2)
    assert torch.equal(shifted(data, "inversion").images, 255 - data.images)
    plain, inverted = (shifted(x, "inversion", ink=True).images for x in (data, shifted(data, "inversion")))
    assert (plain.float() - inverted.float()).abs().mean() < 2


def test_drawings_of_a_shape_are_alike():
    """Blurred, most of them are nearest to the mean of the other drawings of their own shape, of twelve."""
    x = shifted(drawings(28, classes=12, each=6), "blur").images.flatten(1).float().unflatten(0, (12, 6))
    own = (x.sum(1, keepdim=True) - x) / 5
    to_own = (x - own).square().sum(-1)
    to_all = torch.cdist(x.flatten(0, 1), x.mean(1)).square().unflatten(0, (12, 6))
    others = to_all.masked_fill(torch.eye(12, dtype=torch.bool)[:, None], torch.inf).min(-1).values
    assert (to_own < others).float().mean() > 0.7


def test_another_shift_is_refused():
    with pytest.raises(ValueError, match="a shift must be one of blur, noise"):
        shifted(pictures(), "fog")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_auroc_is_scikit_learns(known, unknown):
    """With ties, as probabilities of one have them."""
    wanted = roc_auc_score([1] * len(known) + [0] * len(unknown), known + unknown)
    assert auroc(torch.tensor(known).float(), torch.tensor(unknown).float()) == pytest.approx(wanted)


def world(**changes) -> Classification:
    options = {"test__shifts": ["blur", "drawings"], "test__unknown": True, "test__temperature": True}
    parts = (tiny.images(name, 6, size=32, seed=i) for i, name in enumerate(Splits._fields))
    return Classification(tiny.glyphs(tasks__size=28, **(options | changes)), Splits(*parts))


@pytest.mark.parametrize("method", ["gp-vib", "proto-net"])
def test_a_test_has_a_row_for_each_shift_and_the_ordinary_one_first(method):
    there = world(method=method)
    there.check()
    model = build.model(there.config).eval()
    found = there.evaluate(model, quiet=True)
    assert [row.get("shift") for row in found["rows"]] == [None, "blur", "drawings"]
    assert all(row["temperature"] == found["rows"][0]["temperature"] for row in found["rows"])  # of plain validation
    assert found["rows"][1]["metrics"]["nll"] != found["rows"][0]["metrics"]["nll"]
    scores = {"probability", "mean"} | ({"variance"} if method == "gp-vib" else set())
    assert all(row["unknown"].keys() == scores for row in found["rows"])
    assert "drawings, T = " in tables.evaluation(found)


def test_unknown_pictures_are_those_of_the_classes_left_out_of_the_support():
    """ProtoNet's score by hand: minus the squared distance to the nearest centroid, against scikit-learn's area."""
    there = world(method="proto-net", test__shifts=[])
    model = build.model(there.config).eval()
    (row,) = there.evaluate(model, quiet=True)["rows"]
    ways, shots, queries = 3, 2, 3
    options = {"ways": 2 * ways, "shots": shots, "queries": queries}
    source = Episodes(there.splits.test, **options, transform=there._test_source(shots).transform)
    truth, scores = [], []
    for task in fixed(source, count=4, seed=1000 * TEST, batch=4):
        few = Task(Examples(*(t[:, : ways * shots] for t in task.support)), task.query)
        with torch.no_grad():
            support, query = model.prior.features(few.support, points(few.query))
        centroids = support.unflatten(1, (ways, shots)).mean(2)
        distances = (query[:, :, None] - centroids[:, None]).square().sum(-1)
        scores.append(-distances.min(-1).values)
        truth.append(task.query.y < ways)
    wanted = roc_auc_score(torch.cat(truth).flatten(), torch.cat(scores).flatten())
    assert row["unknown"]["mean"] == pytest.approx(wanted)


def test_what_cannot_be_tested_is_refused_before_training():
    with pytest.raises(ValueError, match=r"test\.shifts of these pictures may be blur, .*; got fog"):
        world(test__shifts=["fog"]).check()
    with pytest.raises(ValueError, match="twice as many test classes"):
        world(test__ways=4).check()
