"""Pictures unlike those a model was trained on: the same ones spoilt, or others in their place.

| shift | what becomes of the pictures of the test classes |
| --- | --- |
| `blur` | out of focus: a Gaussian of 1/14 of the side, 2 pixels of 28 |
| `noise` | grain: normal noise of a quarter of the range of grey |
| `inversion` | light on dark |
| `grey` | of photographs: no colours |
| `close` | of photographs: a tenth to three tenths of the area, somewhere, as large as the whole |
| `emnist` | of characters, other pictures: handwriting, EMNIST's classes of odd labels |
| `drawings` | of characters, other pictures: shapes of a few strokes, made by code |
| `birds` | of photographs, other pictures: CUB's novel classes |
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from metavib.data import characters, photographs
from metavib.data.augmentations import RandomResizedCrop, Resize, grey, unit
from metavib.data.ink import all_inked
from metavib.data.labelled import Labelled, first_of_each, labelled, select_classes

OF_CHARACTERS = ("blur", "noise", "inversion", "emnist", "drawings")
SPOILT = ("blur", "noise", "inversion", "grey", "close")
OF_PHOTOGRAPHS = (*SPOILT, "birds")
EACH = 60  # pictures of a class that are spoilt, where it has more: cleaning each of them again takes its time
CLOSE = (0.1, 0.3)  # the share of a photograph's area that is seen close up
PART = 500  # pictures as floats at once


def shifted(data: Labelled, name: str, *, ink: bool = False, root: str | None = None) -> Labelled:
    """The pictures under a shift, always the same ones.

    Args:
        data: of the test classes, uint8.
        name: one of `OF_CHARACTERS` or `OF_PHOTOGRAPHS`.
        ink: bring what comes out to dark ink on white paper, as a user's picture would be (`metavib.data.ink`).
        root: where datasets lie.

    Example:
        >>> import torch
        >>> from metavib.data import labelled
        >>> from metavib.data.shifts import shifted
        >>> black = labelled(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), [0, 0], ["night"])
        >>> int(shifted(black, "inversion").images.min())
        255
    """
    side = data.images.shape[-1]
    if name == "emnist":
        written = characters.emnist(root=root, crop=side > 28, ink=ink)
        return select_classes(written, range(1, written.classes, 2))
    if name == "birds":
        return _resized(photographs.cub("novel", root=root), side)
    if name == "drawings":
        found = drawings(side)
    elif name in SPOILT:
        found = first_of_each(data, EACH)
        found = found._replace(images=_spoilt(found.images, name))
    else:
        known = ", ".join(dict.fromkeys(OF_CHARACTERS + OF_PHOTOGRAPHS))
        raise ValueError(f"a shift must be one of {known}; got {name!r}.")
    if not ink:
        return found
    return found._replace(images=torch.from_numpy(all_inked(found.images.cpu().numpy())).to(found.images.device))


def drawings(side: int, *, classes: int = 60, each: int = 20, seed: int = 0) -> Labelled:
    """Shapes of two to four bent strokes, each drawn anew by a shaking hand with a pen of some breadth.

    Args:
        side: of a picture.
        classes: how many shapes.
        each: pictures of a shape.
        seed: which shapes.

    Example:
        >>> from metavib.data.shifts import drawings
        >>> drawings(28, classes=2, each=3).images.shape
        torch.Size([6, 1, 28, 28])
    """
    rng = np.random.default_rng(seed)
    pictures = []
    for _ in range(classes):
        strokes = [rng.uniform(20, 92, (rng.integers(3, 6), 2)) for _ in range(rng.integers(2, 5))]
        for _ in range(each):
            image, breadth, moved = Image.new("L", (112, 112), 255), int(rng.integers(4, 9)), rng.normal(0, 4, 2)
            pen = ImageDraw.Draw(image)
            for stroke in strokes:
                points = stroke + moved + rng.normal(0, 3.5, stroke.shape)
                pen.line([tuple(point) for point in points.tolist()], fill=0, width=breadth, joint="curve")
            pictures.append(np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)))
    images = torch.from_numpy(np.stack(pictures))[:, None]
    names = [f"drawing {c}" for c in range(classes)]
    return labelled(images, np.repeat(np.arange(classes), each).tolist(), names)


def _resized(data: Labelled, side: int) -> Labelled:
    """Whole pictures at another side."""
    return data._replace(images=_as_floats(data.images, Resize(side)))


def _as_floats(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Pictures that were changed as floats from 0 to 1, some at a time."""
    return torch.cat([(255 * change(unit(part))).round().clamp(0, 255).to(torch.uint8) for part in images.split(PART)])


def _spoilt(images: Tensor, name: str) -> Tensor:
    if name == "inversion":
        return 255 - images
    if name == "grey":
        return _as_floats(images, lambda x: grey(x).expand_as(x))
    if name == "close":
        crop = RandomResizedCrop(images.shape[-1], scale=CLOSE)
        return _as_floats(images, partial(crop, generator=torch.Generator().manual_seed(0)))
    x = images.cpu().float()
    if name == "noise":
        x = x + 64 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    else:
        spread = x.shape[-1] / 14
        reach = int(3 * spread)
        line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / spread) ** 2)
        line = (line / line.sum()).expand(x.shape[1], 1, 1, -1)
        for each, pad in ((line, (reach, reach, 0, 0)), (line.mT, (0, 0, reach, reach))):
            x = F.conv2d(F.pad(x, pad, mode="replicate"), each, groups=x.shape[1])
    return x.round().clamp(0, 255).to(torch.uint8).to(images.device)
