"""Augmentations against Pillow for given parameters, and the distribution of the parameters drawn."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from metavib.data import augmentations as augment

LEVEL = 1 / 255


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def picture(height=96, width=96, channels=3, seed=0):
    """A smooth field, fine texture and hard edges, as uint8 (C, H, W): what resampling can get wrong."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = []
    for _ in range(channels):
        a, b, phase = rng.uniform(0.02, 0.12, 2).tolist() + [rng.uniform(0, 6)]
        smooth = 100 + 60 * np.sin(a * x + b * y + phase)
        texture = rng.normal(0, 25, (height, width))
        edge = 60 * ((x + 2 * y) % 31 < 7)
        planes.append(np.clip(smooth + texture + edge, 0, 255))
    return torch.from_numpy(np.stack(planes).astype(np.uint8))


def pillow(image):
    array = image.numpy().transpose(1, 2, 0)
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def tensor(image):
    array = np.asarray(image)
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return torch.from_numpy(array.copy()).float() / 255


def boxes(*rows):
    return augment.Boxes(*torch.tensor(rows, dtype=torch.float32).T)


@pytest.mark.parametrize("size", [84, 28, 120])
def test_resized_crop_is_pillows_antialiased_crop_and_resize(size):
    images = torch.stack([picture(256, 200, seed=s) for s in range(4)])
    drawn = boxes((0, 0, 256, 200), (17, 40, 201, 150), (100, 3, 40, 61), (255, 199, 1, 1))
    crops = augment.resized_crop(images, drawn, size=size)
    for image, crop, (top, left, height, width) in zip(
        images, crops, torch.stack(drawn, -1).int().tolist(), strict=True
    ):
        box = (left, top, left + width, top + height)
        expected = tensor(pillow(image).crop(box).resize((size, size), Image.Resampling.BILINEAR))
        assert (crop - expected).abs().max() <= 1.01 * LEVEL  # Pillow rounds after each of its two passes


def test_half_precision_is_off_by_less_than_a_pictures_own_rounding(monkeypatch):
    """On a GPU the products are in half precision."""
    images = torch.stack([picture(256, 256, seed=s) for s in range(4)])
    drawn = boxes((0, 0, 256, 256), (17, 40, 201, 150), (100, 3, 40, 61), (0, 100, 72, 72))
    exact = augment.resized_crop(images, drawn, size=84)
    monkeypatch.setattr(augment, "RESAMPLED_IN", {"cpu": torch.float16})
    half = augment.resized_crop(images, drawn, size=84)
    assert half.dtype == exact.dtype and not torch.equal(half, exact)
    assert (half - exact).abs().max() < 0.5 * LEVEL and (half - exact).abs().mean() < 0.05 * LEVEL


def test_a_single_grid_sample_would_alias_where_the_crop_does_not():
    """Why the crop is two matrix products: one bilinear look-up is far off Pillow for 256 pixels to 84."""
    image = picture(256, 256)
    expected = tensor(pillow(image).resize((84, 84), Image.Resampling.BILINEAR))
    exact = augment.resized_crop(image[None], boxes((0, 0, 256, 256)), size=84)[0]
    grid = torch.nn.functional.affine_grid(torch.eye(2, 3)[None], [1, 3, 84, 84], align_corners=False)
    sampled = torch.nn.functional.grid_sample(augment.unit(image[None]), grid, align_corners=False)[0]
    assert (exact - expected).abs().mean() < 0.5 * LEVEL
    assert (sampled - expected).abs().mean() > 5 * LEVEL


@pytest.mark.parametrize("shape", [(256, 256), (90, 120)])
def test_resize_is_pillows(shape):
    image = picture(*shape)
    resized = augment.Resize(96)(image[None])[0]
    expected = tensor(pillow(image).resize((96, 96), Image.Resampling.BILINEAR))
    assert (resized - expected).abs().max() <= 1.01 * LEVEL
    same = picture(96, 96)
    assert torch.equal(augment.Resize(96)(same[None])[0], same.float() / 255)


@pytest.mark.parametrize(("size", "top", "left"), [(84, 6, 3), (10, 43, 40), (90, 3, 0)])
def test_centre_crop_takes_the_centre(size, top, left):
    image = picture(96, 90)
    crop = augment.CentreCrop(size)(image[None])[0]
    assert torch.equal(crop, image[:, top : top + size, left : left + size].float() / 255)


ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@pytest.mark.parametrize("factor", [0.6, 0.85, 1.0, 1.15, 1.4])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_jitter_is_pillows_enhancer(which, factor):
    image = picture(seed=which)
    factors = augment.Factors(*(torch.tensor([factor if i == which else 1.0]) for i in range(3)))
    surplus = augment.jitter(image[None], factors)[0] - tensor(ENHANCERS[which](pillow(image)).enhance(factor))
    # Pillow cuts off what is behind the point, and rounds the greys it blends with.
    assert surplus.min() > -0.5 * LEVEL and surplus.max() < 1.5 * LEVEL


def test_jitter_is_brightness_then_contrast_then_saturation():
    images = torch.stack([picture(seed=s) for s in range(3)])
    factors = augment.Factors(*torch.tensor([[0.6, 1.4, 0.9], [1.4, 0.6, 1.2], [0.7, 1.3, 1.4]]))
    results = augment.jitter(images, factors)
    for image, result, values in zip(images, results, torch.stack(factors, -1).tolist(), strict=True):
        expected = pillow(image)
        for enhancer, factor in zip(ENHANCERS, values, strict=True):
            expected = enhancer(expected).enhance(factor)
        assert (result - tensor(expected)).abs().max() <= 4 * LEVEL  # three roundings, stretched by the factors


def test_saturation_leaves_one_channel_alone():
    image = picture(channels=1)[None]
    factors = augment.Factors(torch.ones(1), torch.ones(1), torch.tensor([0.3]))
    assert torch.allclose(augment.jitter(image, factors), image.float() / 255, atol=1e-6)


@pytest.mark.parametrize(("angle", "scale", "right", "down"), [(0.5, 1.2, 3.0, -2.0), (-0.4, 0.8, 0.0, 5.5)])
@pytest.mark.parametrize("shape", [(64, 64), (48, 80)])
def test_affine_is_pillows_transform_about_the_centre(angle, scale, right, down, shape):
    image = torch.full((1, *shape), 255, dtype=torch.uint8)
    image[:, 12:-12, 12:-12] = picture(shape[0] - 24, shape[1] - 24, channels=1)
    motion = augment.Motion(*(torch.tensor([v]) for v in (angle, scale, right, down)))
    result = augment.affine(image[None], motion, paper=1.0)[0]
    # Pillow wants the inverse map of pixel coordinates: p -> c + R^T (p - c - t) / s.
    cos, sin, (cy, cx) = math.cos(angle) / scale, math.sin(angle) / scale, (shape[0] / 2, shape[1] / 2)
    x0, y0 = cx + right, cy + down
    inverse = (cos, sin, cx - cos * x0 - sin * y0, -sin, cos, cy + sin * x0 - cos * y0)
    expected = pillow(image).transform(
        shape[::-1], Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR, fillcolor=255
    )
    assert (result - tensor(expected)).abs().max() <= 2 * LEVEL


def test_affine_turns_clockwise_and_shifts_right_and_down():
    image = torch.ones(1, 1, 21, 21)
    image[..., 2, 10] = 0  # a dot above the centre
    quarter = augment.Motion(*(torch.tensor([v]) for v in (math.pi / 2, 1.0, 0.0, 0.0)))
    assert augment.affine(image, quarter, paper=1.0)[0, 0, 10, 18] < 0.01
    shift = augment.Motion(*(torch.tensor([v]) for v in (0.0, 1.0, 3.0, 2.0)))
    moved = augment.affine(image, shift, paper=1.0)
    assert moved[0, 0, 4, 13] < 0.01 and moved[0, 0, :2].min() > 0.999


def test_flip_mirrors_whole_images_with_the_given_probability():
    images = torch.rand(2000, 1, 2, 3, generator=generator())
    flipped = augment.RandomFlip(0.3)(images, generator(1))
    mirrored = (flipped == images.flip(-1)).all((1, 2, 3))
    assert ((flipped == images).all((1, 2, 3)) ^ mirrored).all()
    assert abs(mirrored.float().mean() - 0.3) < 4 * math.sqrt(0.21 / 2000)


def test_boxes_fit_and_have_the_area_and_aspect_asked_for():
    images = torch.zeros(4000, 1, 100, 100)
    crop = augment.RandomResizedCrop(20, scale=(0.1, 0.5))
    top, left, height, width = crop.draw(images, generator())
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= 100).all() and (left + width <= 100).all()
    area, aspect = height * width / 1e4, width / height
    assert area.min() > 0.095 and area.max() < 0.51  # whole pixels
    assert abs(area.mean() - 0.3) < 4 * 0.4 / math.sqrt(12 * 4000)
    assert aspect.min() > 0.7 and aspect.max() < 1.4
    assert abs(aspect.log().mean()) < 4 * math.log(16 / 9) / math.sqrt(12 * 4000)
    # Given its size a box is uniform over where it fits, both ends included.
    place = (top + 0.5) / (101 - height)
    assert abs(place.mean() - 0.5) < 4 / math.sqrt(12 * 4000)
    assert (top == 0).any() and (top == 100 - height).any()


def test_where_no_box_fits_the_central_one_of_nearest_aspect_is_taken():
    images = torch.zeros(3, 1, 100, 1000)
    top, left, height, width = augment.RandomResizedCrop(20, scale=(1, 1)).draw(images, generator())
    assert top.tolist() == [0] * 3 and height.tolist() == [100] * 3
    assert width.tolist() == [133] * 3 and left.tolist() == [433] * 3


def test_factors_and_motions_lie_in_their_intervals():
    images = torch.zeros(3000, 1, 40, 20)
    factors = augment.ColourJitter(0.4, 0.2, 0).draw(images, generator())
    for drawn, strength in zip(factors, (0.4, 0.2, 0.0), strict=True):
        assert drawn.min() >= 1 - strength - 1e-6 and drawn.max() <= 1 + strength + 1e-6
        assert abs(drawn.mean() - 1) <= 4 * 2 * strength / math.sqrt(12 * 3000) + 1e-6
    motion = augment.RandomAffine(degrees=20, scale=(0.5, 1.5), shift=0.1).draw(images, generator())
    for drawn, low, high in zip(motion, (-0.3491, 0.5, -2, -4), (0.3491, 1.5, 2, 4), strict=True):
        assert low <= drawn.min() < low + 0.01 * (high - low) and high - 0.01 * (high - low) < drawn.max() <= high


def test_normalise_takes_the_first_statistics_for_one_channel():
    colour, grey = picture()[None], picture(channels=1)[None]
    mean, std = torch.tensor(augment.IMAGENET_MEAN), torch.tensor(augment.IMAGENET_STD)
    expected = (colour.float() / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(augment.Normalise()(colour), expected)
    torch.testing.assert_close(augment.Normalise()(grey), (grey.float() / 255 - 0.485) / 0.229)


TRAINING = augment.Compose(
    (
        augment.RandomResizedCrop(28),
        augment.ColourJitter(),
        augment.RandomFlip(),
        augment.RandomAffine(),
    )
)


def test_a_composition_is_determined_by_its_generator_and_stays_in_the_unit_interval():
    images = torch.stack([picture(48, 40, seed=s) for s in range(6)])
    first, again, other = (TRAINING(images, generator(s)) for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == (6, 3, 28, 28) and first.dtype == torch.float32
    assert first.min() >= -1e-6 and first.max() <= 1 + 1e-6


def test_every_image_has_parameters_of_its_own():
    images = picture(48, 40).expand(8, -1, -1, -1)
    for transform in TRAINING.transforms:
        results = transform(images, generator(3))
        assert len({tuple(r.flatten().tolist()) for r in results}) > 1


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_and_floats_give_the_same(channels):
    images = torch.stack([picture(40, 40, channels, seed=s) for s in range(3)])
    for transform in (*TRAINING.transforms, augment.Resize(28), augment.CentreCrop(20), augment.Normalise()):
        torch.testing.assert_close(
            transform(images, generator(5)), transform(images.float() / 255, generator(5)), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: augment.RandomResizedCrop(28, scale=(0.5, 2)),
        lambda: augment.RandomResizedCrop(28, ratio=(0, 1)),
        lambda: augment.ColourJitter(brightness=1.5),
        lambda: augment.RandomAffine(scale=(0, 1)),
        lambda: augment.Normalise(mean=(0.5,), std=(0.0,)),
        lambda: augment.Normalise(mean=(0.5,), std=(0.5,))(picture()[None]),
        lambda: augment.CentreCrop(50)(picture(40, 60)[None]),
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must|cannot|means"):
        wrong()


def test_quarter_turns_are_rot90_and_have_the_share_asked_for():
    images = torch.rand(40, 3, 5, 5)
    quarters = torch.arange(40) % 4
    wanted = torch.stack([torch.rot90(image, int(k), (-2, -1)) for image, k in zip(images, quarters, strict=True)])
    assert torch.equal(augment.turned(images, quarters), wanted)
    drawn = augment.QuarterTurns(0.6).draw(torch.empty(6000, 1, 2, 2), generator())
    shares = drawn.bincount(minlength=4) / len(drawn)
    torch.testing.assert_close(shares, torch.tensor([0.4, 0.2, 0.2, 0.2]), atol=0.03, rtol=0)
    assert not augment.QuarterTurns(0.0).draw(images, generator()).any()
    assert augment.QuarterTurns(1.0).draw(images, generator()).all()
    with pytest.raises(ValueError, match="square"):
        augment.turned(torch.rand(2, 3, 4, 5), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="share"):
        augment.QuarterTurns(1.5)
