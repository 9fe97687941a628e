r"""Augmentation of batches of images in torch, on whatever device they are.

Every transform is a frozen dataclass called as `transform(images, generator)`: images `(N, C, H, W)`, uint8
or float in [0, 1], to float images, in [0, 1] until `Normalise`. Each image of a batch has parameters of its
own. The random ones split in two: `draw` makes the parameters, and a function of this module (`resized_crop`,
`jitter`, `affine`) applies given ones; so that the second can be held against another implementation.

Nothing waits for the device and no shape depends on the data, so that all of it can be captured in a CUDA
graph. Random numbers are drawn on the generator's device and moved to the images'.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metavib.random import Stream, draw

Transform = Callable[[Tensor, Stream], Tensor]
"""From images `(N, C, H, W)`, uint8 as stored, to the floats a network takes."""

RESAMPLED_IN = {"cuda": torch.float16}
"""Half precision where it is faster: off by a twentieth of a grey level, less than a picture's own rounding."""

KNOTS = 5  # points a side of a smooth field
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def unit(images: Tensor, generator: Stream | None = None) -> Tensor:
    """Pixels as floats in [0, 1]: uint8 is divided by 255, floats pass."""
    return images if images.is_floating_point() else images.to(torch.get_default_dtype()) / 255


@dataclass(frozen=True)
class Compose:
    """One transform after the other.

    Args:
        transforms: what to apply, in order.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import CentreCrop, Compose, Normalise
        >>> transform = Compose((CentreCrop(4), Normalise()))
        >>> transform(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.Generator()).shape
        torch.Size([2, 3, 4, 4])
    """

    transforms: tuple[Transform, ...]

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """Applies all, in order, with the same generator."""
        images = unit(images)
        for transform in self.transforms:
            images = transform(images, generator)
        return images


def is_random(transform: Transform) -> bool:
    """Whether a transform may draw from its generator; the ones made here that do not are known."""
    if isinstance(transform, Compose):
        return any(map(is_random, transform.transforms))
    return transform is not unit and not isinstance(transform, (CentreCrop, Normalise, Resize))


@dataclass(frozen=True)
class Normalise:
    """Subtracts a mean and divides by a standard deviation, channel by channel; ImageNet's unless told.

    An image of fewer channels than there are means uses the first of them: characters, with their one channel, have the
    first mean and deviation.

    Args:
        mean: mean of each channel.
        std: standard deviation of each channel.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import Normalise
        >>> Normalise(mean=(0.5,), std=(0.25,))(torch.ones(1, 1, 1, 1), torch.Generator())
        tensor([[[[2.]]]])
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise ValueError(f"mean and std must be equally long, and std positive; got {self.mean} and {self.std}.")

    def __call__(self, images: Tensor, generator: Stream | None = None) -> Tensor:
        """The normalised images."""
        if images.shape[1] > len(self.mean):
            raise ValueError(f"images have {images.shape[1]} channels, and there are {len(self.mean)} means.")
        # Numbers, not tensors: a copy from the host could not be captured in a CUDA graph.
        channels = zip(unit(images).unbind(1), self.mean, self.std, strict=False)
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], dim=1)


@dataclass(frozen=True)
class Resize:
    """Resizes to `size x size`, bilinear and antialiased as Pillow's, whatever the aspect.

    Args:
        size: the new side.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import Resize
        >>> Resize(4)(torch.ones(1, 3, 8, 6), torch.Generator()).shape
        torch.Size([1, 3, 4, 4])
    """

    size: int

    def __call__(self, images: Tensor, generator: Stream | None = None) -> Tensor:
        """The resized images."""
        if images.shape[-2:] == (self.size, self.size):
            return unit(images)
        return F.interpolate(unit(images), size=(self.size, self.size), mode="bilinear", antialias=True)


@dataclass(frozen=True)
class CentreCrop:
    """The `size x size` pixels at the centre, placed as torchvision's are.

    Args:
        size: the side of the crop.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import CentreCrop
        >>> CentreCrop(2)(torch.arange(16.0).reshape(1, 1, 4, 4), torch.Generator())
        tensor([[[[ 5.,  6.],
                  [ 9., 10.]]]])
    """

    size: int

    def __call__(self, images: Tensor, generator: Stream | None = None) -> Tensor:
        """The cropped images."""
        height, width = images.shape[-2:]
        if min(height, width) < self.size:
            raise ValueError(f"cannot crop {self.size} pixels from images of {height} x {width}; resize them first.")
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return unit(images[..., top : top + self.size, left : left + self.size])


class Boxes(NamedTuple):
    """A box in each image, in pixels: `top`, `left`, `height`, `width`, each `(N,)`.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import RandomResizedCrop
        >>> boxes = RandomResizedCrop(4).draw(torch.zeros(5, 3, 8, 8), torch.Generator())
        >>> boxes.height.shape
        torch.Size([5])
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and aspect, resized to `size x size`.

    The area is uniform in `scale` times the image's, the logarithm of the aspect width/height uniform in that of
    `ratio`, and the place uniform. Of ten such boxes the first that fits in the image is taken, and if none does the
    largest central box with an aspect in `ratio`: the distribution that torchvision's transform of this name has.

    Args:
        size: side of the result.
        scale: interval of the share of the image's area.
        ratio: interval of the aspect.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import RandomResizedCrop
        >>> RandomResizedCrop(84, scale=(0.35, 1.0))(torch.rand(2, 3, 96, 96), torch.Generator()).shape
        torch.Size([2, 3, 84, 84])
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(
                "scale must be an interval in (0, 1] and ratio an interval of positive numbers; "
                f"got scale={self.scale} and ratio={self.ratio}."
            )

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """The crops."""
        return resized_crop(images, self.draw(images, generator), size=self.size)

    def draw(self, images: Tensor, generator: Stream) -> Boxes:
        """A random box for each image."""
        (n, _, high, wide), tries, device = images.shape, 10, images.device
        area = high * wide * _uniform((tries, n), *self.scale, generator, device)
        narrow, broad = map(math.log, self.ratio)
        aspect = _uniform((tries, n), narrow, broad, generator, device).exp()
        width, height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
        fits = (width >= 1) & (width <= wide) & (height >= 1) & (height <= high)
        last = torch.ones_like(fits[:1])
        width = torch.cat([width, torch.full_like(width[:1], min(wide, round(high * self.ratio[1])))])
        height = torch.cat([height, torch.full_like(height[:1], min(high, round(wide / self.ratio[0])))])
        first = torch.cat([fits, last]).to(torch.uint8).argmax(0, keepdim=True)
        width, height = width.gather(0, first)[0], height.gather(0, first)[0]
        # Uniform among the whole pixels where the box fits; the fallback is central.
        top = (_uniform((n,), 0, 1, generator, device) * (high - height + 1)).floor()
        left = (_uniform((n,), 0, 1, generator, device) * (wide - width + 1)).floor()
        fallback = first[0] == tries
        top = torch.where(fallback, ((high - height) / 2).floor(), top)
        left = torch.where(fallback, ((wide - width) / 2).floor(), left)
        return Boxes(top, left, height, width)


def resized_crop(images: Tensor, boxes: Boxes, *, size: int) -> Tensor:
    r"""Crops a box from each image and resizes it to `size x size`, antialiased.

    Resampling by a triangle filter as wide as a pixel of the result is separable and linear: for each image $Y = W_r X
    W_c^\top$, with weights that differ between images. Two batched products compute what Pillow's `crop` and `resize`
    do, but for its rounding. One `grid_sample` would alias, since it looks at 4 pixels where the filter has 36: on
    smooth and textured pictures of 256 pixels brought to 84 its mean error is 13 grey levels, that of twice the grid
    averaged 5, that of this 0.3.
    """
    images = unit(images)
    exact = images.dtype
    dtype = RESAMPLED_IN.get(images.device.type, exact) if exact == torch.float32 else exact
    rows = _triangle(boxes.top, boxes.height, images.shape[-2], size).to(dtype)
    columns = _triangle(boxes.left, boxes.width, images.shape[-1], size).to(dtype)
    return (rows.unsqueeze(1) @ images.to(dtype) @ columns.mT.unsqueeze(1)).to(exact)


def _triangle(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """Weights `(N, size, pixels)` that resample `[start, start + length)` of a line of pixels to `size`."""
    start, length = start[:, None, None], length[:, None, None]
    source = torch.arange(pixels, device=start.device) + 0.5
    step = length / size
    centre = start + (torch.arange(size, device=start.device)[:, None] + 0.5) * step
    weights = (1 - (source - centre).abs() / step.clamp(min=1)).clamp(min=0)
    weights = weights * ((source > start) & (source < start + length))  # nothing from outside the box
    return weights / weights.sum(-1, keepdim=True)


class Factors(NamedTuple):
    """Factors of brightness, contrast and saturation, each `(N,)`; 1 changes nothing.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import Factors, jitter
        >>> images, one = torch.rand(2, 3, 4, 4), torch.ones(2)
        >>> torch.allclose(jitter(images, Factors(one, one, one)), images)
        True
    """

    brightness: Tensor
    contrast: Tensor
    saturation: Tensor


@dataclass(frozen=True)
class ColourJitter:
    """Changes brightness, contrast and saturation, in this order, by factors uniform in 1 +- strength.

    Args:
        brightness: strength of the change of brightness.
        contrast: strength of the change of contrast.
        saturation: strength of the change of saturation.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import ColourJitter
        >>> ColourJitter(0.4, 0.4, 0.4)(torch.rand(2, 3, 4, 4), torch.Generator()).shape
        torch.Size([2, 3, 4, 4])
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        if not all(0 <= strength <= 1 for strength in (self.brightness, self.contrast, self.saturation)):
            raise ValueError(f"the strengths of a jitter must lie in [0, 1]; got {self}.")

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """The jittered images."""
        return jitter(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: Stream) -> Factors:
        """Random factors for each image."""
        strengths = (self.brightness, self.contrast, self.saturation)
        return Factors(
            *(_uniform((len(images),), 1 - a, 1 + a, generator, images.device) for a in strengths),
        )


def jitter(images: Tensor, factors: Factors) -> Tensor:
    """Blends images with black, then with their mean grey, then with their own grey, clipping each time.

    What Pillow's `ImageEnhance.Brightness`, `Contrast` and `Color` do in turn, without their rounding to 8
    bits.
    """
    images = unit(images)
    brightness, contrast, saturation = (f.to(images.dtype)[:, None, None, None] for f in factors)
    images = (brightness * images).clamp(0, 1)
    mean = grey(images).mean((-2, -1), keepdim=True)
    images = torch.lerp(mean.expand_as(images), images, contrast).clamp(0, 1)
    return torch.lerp(grey(images).expand_as(images), images, saturation).clamp(0, 1)


def grey(images: Tensor) -> Tensor:
    """Luma of ITU-R 601, `(N, 1, H, W)`, of floats."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


@dataclass(frozen=True)
class RandomFlip:
    """Mirrors left and right with the given probability.

    Args:
        probability: of being mirrored.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import RandomFlip
        >>> RandomFlip(1.0)(torch.tensor([[[[1.0, 2.0]]]]), torch.Generator())
        tensor([[[[2., 1.]]]])
    """

    probability: float = 0.5

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """The images, some mirrored."""
        flip = _uniform((len(images), 1, 1, 1), 0, 1, generator, images.device) < self.probability
        return torch.where(flip, unit(images).flip(-1), unit(images))


@dataclass(frozen=True)
class QuarterTurns:
    """Turns a share of the pictures by one, two or three quarters, each with the same probability.

    A network that must also say how a picture was turned learns more of its contents than the class alone asks for.

    Args:
        share: the probability that a picture is turned at all.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"the share of turned pictures must lie in [0, 1]; got {self.share}.")

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """The images, some turned."""
        return turned(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: Stream) -> Tensor:
        """How many quarters each image is turned by, `(N,)`, 0 to 3."""
        chance = _uniform((len(images),), 0, 1, generator, images.device)
        # Below `share` the chance falls into one of three equal parts; above it the picture stays as it is.
        which = (3 * chance / max(self.share, 1e-12)).floor().clamp(max=2) + 1
        return torch.where(chance < self.share, which, 0.0).long()


def turned(images: Tensor, quarters: Tensor) -> Tensor:
    """Each image turned counter-clockwise by its number of quarters `(N,)`, as `torch.rot90` turns all alike."""
    if images.shape[-2] != images.shape[-1]:
        raise ValueError(f"quarter turns need square pictures; got {tuple(images.shape[-2:])}.")
    k = quarters[:, None, None, None]
    images = torch.where(k % 2 == 1, images.mT, images)
    images = torch.where((k == 1) | (k == 2), images.flip(-2), images)
    return torch.where(k >= 2, images.flip(-1), images)


class Motion(NamedTuple):
    """A rotation (radians, clockwise as seen), scale and shift (pixels, right and down) of each image, each `(N,)`.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import RandomAffine
        >>> RandomAffine().draw(torch.zeros(5, 1, 28, 28), torch.Generator()).scale.shape
        torch.Size([5])
    """

    angle: Tensor
    scale: Tensor
    right: Tensor
    down: Tensor


@dataclass(frozen=True)
class RandomAffine:
    """Rotates, scales and shifts, as for Augmented Omniglot; what comes in from outside is paper.

    Args:
        degrees: the rotation is uniform in [-degrees, degrees].
        scale: the scale is uniform in this interval.
        shift: the shift is uniform in [-shift, shift] times the width and the height.
        paper: the colour of the surroundings, in [0, 1]; characters are black on white. None: that of the border of
            the picture, whatever it is there.

    Example:
        >>> import torch
        >>> from metavib.data.augmentations import RandomAffine
        >>> RandomAffine(degrees=10.0)(torch.rand(2, 1, 28, 28), torch.Generator()).shape
        torch.Size([2, 1, 28, 28])
    """

    degrees: float = 30.0
    scale: tuple[float, float] = (0.8, 1.2)
    shift: float = 0.1
    paper: float | None = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] or self.degrees < 0 or self.shift < 0:
            raise ValueError(
                f"scale must be an interval of positive numbers, degrees and shift not negative; got {self}."
            )

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """The moved images."""
        return affine(images, self.draw(images, generator), paper=self.paper)

    def draw(self, images: Tensor, generator: Stream) -> Motion:
        """A random motion for each image."""
        (n, _, high, wide), device, turn = images.shape, images.device, math.radians(self.degrees)
        return Motion(
            _uniform((n,), -turn, turn, generator, device),
            _uniform((n,), *self.scale, generator, device),
            _uniform((n,), -self.shift * wide, self.shift * wide, generator, device),
            _uniform((n,), -self.shift * high, self.shift * high, generator, device),
        )


def affine(images: Tensor, motion: Motion, *, paper: float | None) -> Tensor:
    r"""Moves each image about its centre: $p \mapsto c + s R (p - c) + t$, bilinear.

    Each pixel of the result looks up where it came from, $c + R^\top (p - c - t) / s$. Scales below about a
    half would alias.
    """
    images = unit(images)
    high, wide = images.shape[-2:]
    angle, scale, right, down = (m.to(images.dtype) for m in motion)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    # affine_grid counts in half widths and half heights from the centre.
    across = torch.stack([cos, sin * high / wide, -(cos * right + sin * down) * 2 / wide], -1)
    along = torch.stack([-sin * wide / high, cos, -(cos * down - sin * right) * 2 / high], -1)
    grid = F.affine_grid(torch.stack([across, along], -2), list(images.shape), align_corners=False)
    if paper is None:
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return F.grid_sample(images - paper, grid, align_corners=False) + paper  # outside is 0, so paper


@dataclass(frozen=True)
class RandomWarp:
    r"""Bends characters as handwriting does: an affine map with shear and aspect, and a smooth field on top of it.

    The field is a displacement of `KNOTS` x `KNOTS` points, made smooth by cubic interpolation, $B d B^\top$. All draws
    are uniform; what comes in from outside is white paper.

    Args:
        degrees: largest rotation.
        scale: interval of the size.
        aspect: largest logarithm of the ratio of width to height.
        shear: largest shear.
        shift: largest shift, as a share of the side.
        elastic: largest displacement of a point, as a share of the side.
    """

    degrees: float = 20.0
    scale: tuple[float, float] = (0.85, 1.2)
    aspect: float = 0.2
    shear: float = 0.3
    shift: float = 0.06
    elastic: float = 0.07

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """The bent images."""
        images = unit(images)
        return F.grid_sample(images - 1, self.draw(images, generator), align_corners=False) + 1

    def draw(self, images: Tensor, generator: Stream) -> Tensor:
        """Where each pixel of each result looks, `(N, H, W, 2)`, in half sides from the centre."""
        n, device, side = len(images), images.device, images.shape[-1]

        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return _uniform((n, *shape), low, high, generator, device)

        angle = uniform(-1, 1) * math.radians(self.degrees)
        scale, aspect = uniform(*self.scale), (uniform(-1, 1) * self.aspect).exp()
        shear, shift = uniform(-1, 1) * self.shear, 2 * self.shift * uniform(-1, 1, 2)
        cos, sin = angle.cos() / scale, angle.sin() / scale
        rows = [
            torch.stack([aspect * cos, aspect * (sin + shear * cos), shift[:, 0]], -1),
            torch.stack([-sin / aspect, (cos - shear * sin) / aspect, shift[:, 1]], -1),
        ]
        grid = F.affine_grid(torch.stack(rows, -2).to(images.dtype), list(images.shape), align_corners=False)
        eye = torch.eye(KNOTS, device=device, dtype=images.dtype)[None, None]
        basis = F.interpolate(eye, (KNOTS, side), mode="bicubic", align_corners=True)[0, 0]
        field = basis.mT @ (2 * self.elastic * uniform(-1, 1, 2, KNOTS, KNOTS)).to(images.dtype) @ basis
        return grid + field.movedim(1, -1)


@dataclass(frozen=True)
class BroaderPen:
    """Draws dark strokes on white paper again with a broader pen, by up to `pixels` on each side.

    Args:
        pixels: the most that a stroke gains on each side; what it gains is uniform.
    """

    pixels: int = 2

    def __call__(self, images: Tensor, generator: Stream) -> Tensor:
        """The images with broader strokes."""
        ink = 1 - unit(images)
        gain = _uniform((len(images), 1, 1, 1), 0, self.pixels, generator, images.device).to(ink.dtype)
        for i in range(self.pixels):
            # A disc of a radius between one and the square root of two: a cross, then a square, in turns.
            across = _broader(ink, -1)
            broader = torch.maximum(across, _broader(ink, -2)) if i % 2 == 0 else _broader(across, -2)
            ink = torch.lerp(ink, broader, (gain - i).clamp(0, 1))
        return 1 - ink


def _broader(ink: Tensor, axis: int) -> Tensor:
    """The largest of each pixel and its two neighbours along an axis.

    These are the numbers of `F.max_pool2d`, whose kernel looks at one position after the other, in a small part of the
    time on a CPU.
    """
    first, last = ink.narrow(axis, 0, 1), ink.narrow(axis, -1, 1)
    padded, pixels = torch.cat([first, ink, last], axis), ink.shape[axis]
    return torch.maximum(ink, torch.maximum(padded.narrow(axis, 0, pixels), padded.narrow(axis, 2, pixels)))


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: Stream, device: torch.device) -> Tensor:
    draws = draw(torch.rand, shape, stream=generator).to(device)
    return low + (high - low) * draws
