r"""Pictures of characters in one form: scans, photographs and drawings become dark ink in the middle of white paper.

A character is the same on a yellow page in the evening light, on a blackboard, or small in the corner of a scan; a
network that has only seen clean drawings does not know that. `inked` takes such differences away, in six steps that
each look at one picture alone:

1. **Grey.** Colours become their brightness; a large picture is shrunk to a side of at most 128 pixels.
2. **Grain.** Strokes go on from pixel to pixel, and grain does not: the median of the second differences is that of the
   grain, since paper is most of a picture. Where it is more than clean pictures have, the picture is smoothed by a
   Gaussian of 0.9 pixels, which leaves a third of the grain and most of a stroke two pixels wide.
3. **Paper.** Most of a picture is paper, whose brightness changes slowly, by light and shadow. A quadratic surface
   $b(x, y)$ is fitted to it, again and again, each time with less weight on the pixels that lie far from the last fit
   (Tukey's biweight): in the end these are the ink. A picture that is cut tightly around its character may have less
   paper than ink; where more pixels lie near the most common brightness than near the surface, paper is that.
4. **Polarity.** Ink lies on one side of the paper, $d = \pm (g - b)$; the sign is that of the heavier tail.
5. **Contrast.** Otsu's threshold $t$ divides $d$ into paper and ink. Half the threshold becomes white, the median of
   the ink black, and what is between is linear.
6. **Place and size.** The box that holds all ink but a half percent at each side (specks) is brought to the middle, its
   longer side to 20 of the 28 pixels.

Sizes are lost by it, as they are in EMNIST: o and O look alike, and so do a comma and a slash.
"""

from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy import ndimage

VERSION = 3  # of the form: to be raised by whoever changes how it is made, so that no cache is mistaken
SIDE, BOX = 28, 20  # pixels: of a picture, and of the longer side of its ink
LOOK = 128  # the longer side of the picture in which ink is looked for
GRAIN = 8.0  # grey levels of grain that are too many
SMOOTH = 0.9  # pixels: the deviation of the Gaussian against them
FEWEST = 16  # pixels a side of a picture whose grain is looked for: in smaller ones strokes leave too little paper
GRID, ROUNDS = 40, 8  # points a side that the paper is fitted to, and how often
NEAR = 12.0  # grey levels by which paper may differ from itself
SPECKS = 0.005  # the share of the ink that may lie outside at each side


def inked(picture: np.ndarray, *, side: int = SIDE) -> np.ndarray:
    """A picture of a character as dark ink on white paper, `(side, side)` uint8.

    Args:
        picture: uint8 `(H, W)`, or `(C, H, W)` with one or three channels.
        side: of the result; the ink's longer side is 20/28 of it.

    Example:
        A white dot on black, out of the middle.

        >>> import numpy as np
        >>> from metavib.data.ink import inked
        >>> picture = np.zeros((50, 90), np.uint8)
        >>> picture[10:20, 60:70] = 200
        >>> found = inked(picture)
        >>> found.shape, int(found[14, 14]), int(found[0, 0]), int((found < 128).sum())  # 20 x 20 pixels of ink
        ((28, 28), 0, 255, 400)
    """
    image = _grey(picture)
    whole = Box(0.0, 0.0, 1.0, 1.0)
    grey = _pixels(image, whole)
    paper = _paper(grey)
    darkness, box = _ink(grey - _surface(paper, grey.shape, whole))
    if box is not None and (part := _surroundings(box, image.size)) is not None:
        grey = _pixels(image, part)  # again, closer: what is small in a large picture has its details
        darkness, box = _ink(grey - _surface(paper, grey.shape, part))
    return np.full((side, side), 255, np.uint8) if box is None else _placed(darkness, box, side)


def all_inked(pictures: np.ndarray) -> np.ndarray:
    """Every one of some pictures `(n, C, side, side)` as ink on paper, `(n, 1, side, side)`.

    Example:
        >>> import numpy as np
        >>> from metavib.data.ink import all_inked
        >>> all_inked(np.zeros((2, 3, 28, 28), np.uint8)).shape
        (2, 1, 28, 28)
    """
    return np.stack([inked(picture, side=pictures.shape[-1]) for picture in pictures])[:, None]


class Box(NamedTuple):
    """A part of a picture, in shares of its width and height."""

    left: float
    top: float
    right: float
    bottom: float


def _grey(picture: np.ndarray) -> Image.Image:
    pixels = picture if picture.ndim == 2 else picture.transpose(1, 2, 0)
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels).convert("L")


def _pixels(image: Image.Image, part: Box) -> np.ndarray:
    """A part of a picture, shrunk to a side of at most `LOOK`, and smoothed where it is grainy."""
    width, height = image.size
    box = part.left * width, part.top * height, part.right * width, part.bottom * height
    wide, high = max(1.0, box[2] - box[0]), max(1.0, box[3] - box[1])
    shrink = min(1.0, LOOK / max(wide, high))
    size = max(1, round(shrink * wide)), max(1, round(shrink * high))
    grey = np.asarray(image.resize(size, Image.Resampling.BOX, box=box), dtype=np.float64)
    return without_grain(grey)


def without_grain(grey: np.ndarray) -> np.ndarray:
    """A picture `(H, W)`, from 0 to 255, smoothed where it is grainy; clean ones are left as they are."""
    return ndimage.gaussian_filter(grey, SMOOTH, mode="nearest") if _grain(grey) > GRAIN else grey


def _grain(grey: np.ndarray) -> float:
    """The deviation of a picture's grain, in grey levels: that of its mixed second differences (Immerkaer 1996).

    Slopes have no such differences, and edges have them at few pixels, which a median does not see. Of grain on white
    paper, which is cut off at white, it is about a half.
    """
    if min(grey.shape) < FEWEST:
        return 0.0
    down = ndimage.correlate1d(grey, [1, -2, 1], axis=0, mode="reflect")
    return _spread(ndimage.correlate1d(down, [1, -2, 1], axis=1, mode="reflect")) / 6


def _terms(shape: tuple[int, ...], part: Box) -> np.ndarray:
    """1, x, y, x^2, xy and y^2 at the pixels of a part of a picture, whose corners have the coordinates 0 and 1."""
    height, width = shape
    across = part.left + (part.right - part.left) * (np.arange(width) + 0.5) / width
    down = part.top + (part.bottom - part.top) * (np.arange(height) + 0.5) / height
    y, x = np.meshgrid(down - 0.5, across - 0.5, indexing="ij")
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], -1)


def _surface(coefficients: np.ndarray, shape: tuple[int, ...], part: Box) -> np.ndarray:
    return _terms(shape, part) @ coefficients


def _paper(grey: np.ndarray) -> np.ndarray:
    """Coefficients of the quadratic surface under most pixels of a picture, fitted to some that lie on a grid.

    In a picture that is cut tightly around its character less than half may be paper, and a surface through most pixels
    then lies between paper and ink. Paper of one brightness, the most common one, is the answer where more pixels lie
    near it.
    """
    step = max(1, min(grey.shape) // GRID)
    at, g = _terms(grey.shape, Box(0.0, 0.0, 1.0, 1.0))[::step, ::step].reshape(-1, 6), grey[::step, ::step].ravel()
    level = np.array([_mode(g), 0, 0, 0, 0, 0])
    surface = _fitted(at, g, level)
    near = [float((np.abs(g - at @ found) <= NEAR).mean()) for found in (surface, level)]
    return surface if near[0] >= near[1] else level


def _fitted(at: np.ndarray, g: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """A surface from a first guess, by rounds of weighted least squares."""
    for _ in range(ROUNDS):
        residual = g - at @ coefficients
        weight = (1 - (residual / (4.685 * max(2.0, _spread(residual)))).clip(-1, 1) ** 2) ** 2
        weighted = at * weight[:, None]
        # A little of the identity, where all weight is on pixels that lie on a line.
        coefficients = np.linalg.solve(at.T @ weighted + 1e-3 * np.eye(6), weighted.T @ g)
    return coefficients


def _ink(d: np.ndarray) -> tuple[np.ndarray, Box | None]:
    """How much ink there is at each pixel, from 0 to 1, and the box that holds it; None where there is no ink.

    Steps 4 and 5, from the distance of each pixel from the paper.
    """
    near = max(1.0, min(_spread(d), NEAR))
    tails = np.where(np.abs(d) > 3 * near, d, 0.0)
    d = d if float(tails.sum()) > 0 else -d
    noise = max(1.0, _spread(d[d <= 0])) if (d <= 0).any() else 1.0  # what lies on the other side is no ink
    d = d.clip(min=0)
    threshold = max(_otsu(d), 4 * noise)
    ink = _clusters(d > threshold)
    if not ink.any():
        return np.zeros_like(d), None
    white, black = max(threshold / 2, 2 * noise), float(np.median(d[ink]))
    return ((d - white) / (black - white)).clip(0, 1), _bounds(ink)


def _mode(values: np.ndarray) -> float:
    """The most common brightness: the median of those within eight grey levels of the place with most around it."""
    counts = np.bincount(values.astype(np.int64), minlength=256)
    place = np.convolve(counts, np.ones(17), "same").argmax()  # the first of many, where all paper has one brightness
    return float(np.median(values[np.abs(values - place) <= 8]))


def _spread(values: np.ndarray) -> float:
    """The standard deviation of most values: that of a Gaussian with the same median distance from zero."""
    return 1.4826 * float(np.median(np.abs(values)))


def _clusters(ink: np.ndarray) -> np.ndarray:
    """The pixels of ink that have two neighbours of ink among the eight: specks of noise have none."""
    padded = np.pad(ink, 1).astype(np.int64)
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    return ink & (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] >= 3)


def _bounds(ink: np.ndarray) -> Box:
    """The box of all ink but a half percent at each side."""

    def ends(line: np.ndarray) -> tuple[float, float]:
        share = np.cumsum(line) / line.sum()
        first, last = np.searchsorted(share, SPECKS, "right"), np.searchsorted(share, 1 - SPECKS)
        return int(first) / len(line), (int(last) + 1) / len(line)

    (left, right), (top, bottom) = ends(ink.sum(0)), ends(ink.sum(1))
    return Box(left, top, right, bottom)


def _surroundings(box: Box, size: tuple[int, int]) -> Box | None:
    """A square around a box, half as large again; None where the picture is hardly larger."""
    width, height = size
    reach = 0.75 * max(width * (box.right - box.left), height * (box.bottom - box.top))
    if 3 * reach > max(size):
        return None
    x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    across, down = reach / width, reach / height
    return Box(max(0.0, x - across), max(0.0, y - down), min(1.0, x + across), min(1.0, y + down))


def _otsu(values: np.ndarray) -> float:
    """The threshold that divides values into two groups whose means are farthest apart (Otsu 1979)."""
    counts, edges = np.histogram(values, bins=128)
    centres = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(counts)[:-1]
    above = counts.sum() - below
    sums = np.cumsum(counts * centres)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = sums[:-1] / below - (sums[-1] - sums[:-1]) / above
    between = np.nan_to_num(below * above * gap**2)
    return float(edges[1:-1][between.argmax()])


def _placed(darkness: np.ndarray, box: Box, side: int) -> np.ndarray:
    """The ink in the middle of white paper, its longer side 20/28 of the paper's."""
    height, width = darkness.shape
    part = box.left * width, box.top * height, box.right * width, box.bottom * height
    wide, high = part[2] - part[0], part[3] - part[1]
    scale = side * BOX / SIDE / max(wide, high)
    shape = max(1, round(wide * scale)), max(1, round(high * scale))
    ink = Image.fromarray(np.rint(255 * darkness).astype(np.uint8)).resize(shape, Image.Resampling.BILINEAR, box=part)
    paper = Image.new("L", (side, side), 0)
    paper.paste(ink, ((side - shape[0]) // 2, (side - shape[1]) // 2))
    return 255 - np.asarray(paper)
