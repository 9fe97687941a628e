"""Pictures of one's own, from files to pixels: every form people have them in, characters as ink, what is refused."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from metavib.baselines.pixels import logistic_regression, nearest_neighbour
from metavib.data.augmentations import BroaderPen, RandomWarp
from metavib.data.folder import folder, folder_splits
from metavib.data.ink import _grain, inked
from metavib.data.labelled import labelled
from metavib.data.picture import Form, split
from metavib.random import Drawn, seeded
from metavib.tasks.episodes import Episodes, fixed
from metavib.tasks.task import Task, examples
from metavib.training.resplit import resplit


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def encoded(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


# A colour picture of four corners: red and green above, blue and black below.
CORNERS = np.zeros((8, 8, 3), np.uint8)
CORNERS[:4, :4, 0] = CORNERS[:4, 4:, 1] = CORNERS[4:, :4, 2] = 255


@pytest.mark.parametrize("form", ["PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_every_lossless_format_gives_the_same_pixels(form):
    found = Form(8, 3).read(encoded(Image.fromarray(CORNERS), form, **({"lossless": True} if form == "WEBP" else {})))
    np.testing.assert_array_equal(found, CORNERS.transpose(2, 0, 1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_upright_whichever_way_the_camera_was_held(orientation):
    """EXIF says by which of eight motions the stored picture becomes the seen one; their inverses store it."""
    stored = {1: (0, 0), 2: (0, 1), 3: (2, 0), 4: (2, 1), 5: (1, 1), 6: (1, 0), 7: (3, 1), 8: (3, 0)}
    turns, mirrored = stored[orientation]
    pixels = np.rot90(CORNERS[:, ::-1] if mirrored else CORNERS, turns)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(Image.fromarray(np.ascontiguousarray(pixels)), "PNG", exif=exif)
    for source in (file, Image.open(io.BytesIO(file))):
        np.testing.assert_array_equal(Form(8, 3).read(source), CORNERS.transpose(2, 0, 1))


@pytest.mark.parametrize(("top", "bits"), [(255, 8), (4095, 12), (65535, 16)])
def test_more_than_eight_bits_are_brought_to_eight_by_what_they_hold(top, bits):
    grey = np.linspace(0, top, 16).reshape(4, 4)
    found = Form(4, 1).read(encoded(Image.fromarray(np.rint(grey).astype(np.uint16)), "TIFF"))[0]
    np.testing.assert_allclose(found, grey * 255 / top, atol=0.51)


def test_palettes_and_transparency_become_colours_on_white():
    clear = np.dstack([CORNERS, np.full((8, 8), 255, np.uint8)])
    clear[4:, 4:, 3] = 0
    found = Form(8, 3).read(encoded(Image.fromarray(clear), "PNG"))
    assert (found[:, 4:, 4:] == 255).all() and tuple(found[:, 0, 0]) == (255, 0, 0)
    palette = Image.fromarray(CORNERS).convert("P", palette=Image.Palette.ADAPTIVE)
    np.testing.assert_array_equal(Form(8, 3).read(encoded(palette, "PNG")), CORNERS.transpose(2, 0, 1))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 20))
@settings(max_examples=50, deadline=None)
def test_a_picture_that_is_not_square_keeps_its_sides(width, height, size):
    """White in the middle of black, its outermost rows or columns grey: they are still there, at the ends."""
    pixels = np.full((height, width), 200, np.uint8)
    found = Form(size, 1).read(pixels)[0]
    assert found.shape == (size, size) and (found == 200).all()  # the paper beside it has the border's colour
    pixels = np.zeros((10, 40), np.uint8)
    pixels[:, :2] = pixels[:, -2:] = 255
    whole, centre = Form(20, 1).read(pixels)[0], Form(20, 1, "centre").read(pixels)[0]
    assert whole[10, 0] > 200 and whole[10, -1] > 200 and whole[10, 10] < 50
    assert (centre == 0).all()


def test_arrays_paths_bytes_and_images_are_one_picture(root):
    image = Image.fromarray(CORNERS)
    image.save(root / "a.png")
    form = Form(8, 3)
    expected = form(image)
    as_floats = CORNERS / 255.0
    for source in (root / "a.png", str(root / "a.png"), (root / "a.png").read_bytes(), CORNERS, as_floats,
                   CORNERS.transpose(2, 0, 1), torch.as_tensor(CORNERS), as_floats.astype(np.float32)):  # fmt: skip
        np.testing.assert_array_equal(form.read(source), expected)
    with pytest.raises(ValueError, match="before any normalisation; got float64 from -1"):
        form.read(as_floats * 2 - 1)
    with pytest.raises(FileNotFoundError, match="there is no picture"):
        form.read(root / "b.png")
    assert [p.shape for p in split(np.zeros((5, 8, 8), np.uint8), 1)] == [(8, 8)] * 5
    with pytest.raises(ValueError, match="may be 3 grey pictures"):
        split(np.zeros((3, 8, 8), np.uint8), 1)


def test_all_broken_files_are_named_at_once_and_may_be_left_out(root):
    for c in "abc":
        (root / c).mkdir()
        for i in range(2):
            Image.fromarray(CORNERS).save(root / c / f"{i}.png")
    (root / "a" / "torn.png").write_bytes((root / "a" / "0.png").read_bytes()[:60])
    (root / "b" / "text.jpg").write_text("no picture")
    with pytest.raises(ValueError, match=r"2 of 8 pictures cannot be read(?s:.*)torn\.png(?s:.*)text\.jpg.*") as error:
        folder(root)
    assert "--skip-broken" in str(error.value)
    with pytest.warns(UserWarning, match="2 pictures that cannot be read are left out"):
        found = folder(root, skip_broken=True)
    assert found.counts.tolist() == [2, 2, 2]


def test_a_class_of_a_single_picture_is_left_out_of_tasks_and_named(root):
    for c, count in zip("abcdefg", (1, 2, 2, 2, 3, 2, 5), strict=True):
        (root / c).mkdir()
        for i in range(count):
            Image.fromarray(CORNERS + c.encode()[0]).save(root / c / f"{i}.png")
    with pytest.warns(UserWarning, match=r"1 of 7 classes have a single picture and are left out \(a\)"):
        splits = folder_splits(root, size=8)
    assert sorted(name for part in splits for name in part.names) == list("bcdefg")


# Classes with few pictures


@pytest.fixture(scope="module")
def uneven():
    """Classes of 2, 3, 5 and 12 pictures; a picture's brightness is its number."""
    labels = np.repeat(range(4), (2, 3, 5, 12))
    return labelled(np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1), labels, list("abcd"))


@pytest.mark.parametrize(("shots", "queries"), [(1, 1), (1, 9), (2, 4), (5, 3), (11, 1), (20, 9)])
def test_classes_with_few_pictures_give_what_they_have(uneven, shots, queries):
    """One query at least, as much support as possible up to K, never a picture in both."""
    source = Episodes(uneven, ways=4, shots=shots, queries=queries, few=True, transform=lambda x, g: x.float())
    task = source.sample((50,), seeded(0))
    counts = uneven.counts
    for support, query in zip(*(_members(side) for side in task), strict=True):
        assert not set(support) & set(query) and len({*support, *query}) == len(support) + len(query)
        classes = uneven.labels[support], uneven.labels[query]
        for c, n in enumerate(counts.tolist()):
            as_support, as_query = (int((labels == c).sum()) for labels in classes)
            assert as_support == min(shots, n - 1) and as_query == min(queries, n - as_support)
    assert (task.support.x[~task.support.mask] == 0).all()


def _members(side):
    """Which pictures are in one side of each task."""
    return [[int(v) for v, real in zip(x.flatten(), m, strict=True) if real] for x, m in zip(*side[::2], strict=True)]


def test_enough_pictures_are_the_episodes_there_were_before(uneven):
    rich = labelled(torch.arange(40, dtype=torch.uint8).reshape(-1, 1, 1, 1), torch.arange(40) // 10, list("abcd"))
    sizes = {"ways": 3, "shots": 2, "queries": 5}
    plain, few = (next(fixed(Episodes(rich, **sizes, few=f), count=4, seed=1, batch=4)) for f in (False, True))
    for a, b in zip((*plain.support, *plain.query), (*few.support, *few.query), strict=True):
        assert torch.equal(a, b)


def test_all_splits_have_whole_supports_as_long_as_the_smallest_class_allows(uneven):
    features = Episodes(uneven, ways=4, shots=1, queries=9, few=True, transform=lambda x, g: x.float() + 1)
    task = features.sample((3,), seeded(0))
    flat = Task(*(side._replace(x=side.x.flatten(2)) for side in task))
    again = resplit(flat, 2, classes=4)
    assert again.support.mask.all() and (again.support.x > 0).all()


# What takes no meta-training


@pytest.mark.parametrize("shots", [1, 3])
def test_baselines_of_pixels_are_scikit_learns(shots):
    g = torch.Generator().manual_seed(shots)
    y = torch.arange(4).repeat_interleave(shots).expand(3, -1)
    centres = torch.randn(3, 4, 30, generator=g)
    x = centres.repeat_interleave(shots, 1) + 0.5 * torch.randn(3, 4 * shots, 30, generator=g)
    at = centres.repeat_interleave(5, 1) + torch.randn(3, 20, 30, generator=g)
    task = Task(examples(x, y), examples(at, torch.zeros(3, 20, dtype=torch.long)))
    p, nearest = logistic_regression(task, 4), nearest_neighbour(task, 4)
    for i in range(3):
        model = LogisticRegression(tol=1e-10, max_iter=10_000).fit(x[i].numpy(), y[i].numpy())
        np.testing.assert_allclose(p[i].numpy(), model.predict_proba(at[i].numpy()), atol=2e-3)
        one = KNeighborsClassifier(1).fit(x[i].numpy(), y[i].numpy())
        np.testing.assert_array_equal(nearest[i].argmax(-1).numpy(), one.predict(at[i].numpy()))


# Characters as ink


def drawn(height: int = 60, width: int = 60) -> np.ndarray:
    """Black on white: a hook, which no turn or mirror image is like."""
    pixels = np.full((height, width), 255, np.uint8)
    pixels[15:45, 20:24] = 0
    pixels[41:45, 20:40] = 0
    return pixels


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_ink_knows_neither_place_nor_size_nor_polarity(down, right, scale, inverted):
    page = np.full((180 + 60, 180 + 60), 255, np.uint8)
    large = drawn().repeat(scale, 0).repeat(scale, 1)
    page[down : down + 60 * scale, right : right + 60 * scale] = large
    difference = np.abs(inked(255 - page if inverted else page).astype(int) - inked(drawn()))
    assert difference.mean() < 12  # grey levels: the rim of a stroke falls on pixels differently


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("side", [28, 14])
def test_ink_is_the_same_where_a_picture_is_cut_tightly_around_it(side, inverted):
    """Strokes with soft edges leave less than half of such a picture to the paper."""
    page = Image.fromarray(np.full((120, 120), 255, np.uint8))
    ImageDraw.Draw(page).line([(30, 30), (80, 30), (35, 85), (85, 85)], fill=0, width=14, joint="curve")
    page = page.filter(ImageFilter.GaussianBlur(4))
    tight = page.crop(ImageOps.invert(page).point(lambda v: 255 * (v > 60)).getbbox())
    assert (np.asarray(tight) > 243).mean() < 0.5
    tight = np.asarray(tight.resize((side, side * tight.height // tight.width), Image.Resampling.BOX))
    found, expected = (inked(255 - p if inverted else p).astype(int) for p in (tight, np.asarray(page)))
    assert np.abs(found - expected).mean() < 20


def test_ink_is_found_on_tinted_shaded_and_noisy_paper():
    rng, (h, w) = np.random.default_rng(0), (60, 60)
    shade = 120 + 90 * np.linspace(0, 1, w)[None] * np.linspace(0.5, 1, h)[:, None]
    photo = np.where(drawn() == 0, shade - 70, shade) + rng.normal(0, 3, (h, w))
    colours = np.clip(photo[None] * np.array([1.0, 0.95, 0.8])[:, None, None], 0, 255).astype(np.uint8)
    assert np.abs(inked(colours).astype(int) - inked(drawn())).mean() < 12
    assert (inked(np.full((30, 30), 130, np.uint8)) == 255).all()  # an empty page
    assert (inked((shade + rng.normal(0, 3, (h, w))).astype(np.uint8)) == 255).all()  # and one half in the shade


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("inverted", [False, True])
def test_ink_is_the_same_under_grain(size, inverted):
    """Normal noise of a quarter of the range of grey, which is cut off at black and white."""
    page = drawn().repeat(size, 0).repeat(size, 1).astype(float)
    noisy = page + np.random.default_rng(0).normal(0, 64, page.shape)
    noisy = np.rint(noisy).clip(0, 255).astype(np.uint8)
    difference = np.abs(inked(255 - noisy if inverted else noisy).astype(int) - inked(drawn()))
    assert difference.mean() < 12  # 24 to 34 without smoothing


@given(st.integers(16, 80), st.integers(0, 255), st.integers(-60, 60))
@settings(max_examples=40, deadline=None)
def test_a_clean_picture_has_no_grain(side, paper, shade):
    """Neither slopes of light nor a line of ink is taken for it; grain itself is, at its own size."""
    page = paper + shade * np.linspace(0, 1, side)[None] * np.linspace(0, 1, side)[:, None]
    assert _grain(page) < 0.1
    page[side // 3 : side // 3 + 2] = 128
    assert _grain(page) < 0.1
    if side >= 40:
        assert abs(_grain(page + np.random.default_rng(0).normal(0, 20, page.shape)) - 20) < 3


def test_ink_that_fills_its_picture_is_found():
    """Digits that touch the rim of their picture, blurred: no surface under most pixels is the paper."""
    for pixels in load_digits().images[:50]:
        digit = Image.fromarray((255 - 255 / 16 * pixels).astype(np.uint8))
        for side in (8, 28, 64):
            picture = np.asarray(digit.resize((side, side), Image.Resampling.BICUBIC))
            found = 255 - inked(picture).astype(int)
            assert 0.05 < (found > 128).mean() < 0.5


def test_a_broader_pen_is_dilation():
    """By SciPy's: pens of one pixel more draw a cross, those of two a square around it, and others lie between."""
    images = torch.rand(5, 2, 9, 7, generator=torch.Generator().manual_seed(0))
    ink = (1 - images).numpy()
    cross = ndimage.grey_dilation(ink, footprint=ndimage.generate_binary_structure(2, 1)[None, None], mode="nearest")
    square = ndimage.grey_dilation(cross, size=(1, 1, 3, 3), mode="nearest")
    pens = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]).reshape(-1, 1, 1, 1)  # shares of two pixels
    found = 1 - BroaderPen(2)(images, Drawn([pens], images.device)).numpy()
    between = ((ink[1] + cross[1]) / 2, (cross[3] + square[3]) / 2)
    for drawn_by, expected in zip(found, (ink[0], between[0], cross[2], between[1], square[4]), strict=True):
        np.testing.assert_allclose(drawn_by, expected, atol=1e-6)


def test_pens_only_add_ink_and_warps_are_of_the_same_shape():
    images = torch.as_tensor(inked(drawn()))[None, None].expand(50, 1, 28, 28)
    bold = BroaderPen(2)(images, seeded(0))
    assert (bold <= images / 255 + 1e-6).all() and bold.sum((1, 2, 3)).std() > 0
    assert bold.min() >= -1e-6 and bold.max() <= 1 + 1e-6
    bent = RandomWarp()(images, seeded(0))
    assert bent.shape == images.shape and bent.isfinite().all() and not torch.allclose(bent[0], bent[1])
    still = RandomWarp(degrees=0, scale=(1, 1), aspect=0, shear=0, shift=0, elastic=0)
    assert torch.allclose(still(images, seeded(0)), images / 255, atol=1e-5)
    assert torch.equal(BroaderPen(2)(images, seeded(3)), BroaderPen(2)(images, seeded(3)))
