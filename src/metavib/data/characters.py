"""How drawings of characters become 28 x 28 pixels, black on white."""

import numpy as np
from PIL import Image

SIDE = 28
_CROP_FROM = 32  # int(1.15 * 28)


def character(ink: np.ndarray, *, crop: bool) -> np.ndarray:
    """A 28 x 28 picture, ink dark on light paper, from a drawing `(h, w)` whose ink is 255 and paper 0.

    Args:
        ink: the drawing, uint8.
        crop: True resizes to 32 x 32 (bilinear, antialiased) and takes the centre, as the evaluation of Chen
            et al. (2019) and of all who built on it does; False resizes the whole drawing to 28 x 28
            (Lanczos), and leaves one that has this size alone.
    """
    if crop:
        large = Image.fromarray(255 - ink).resize((_CROP_FROM, _CROP_FROM), Image.Resampling.BILINEAR)
        margin = (_CROP_FROM - SIDE) // 2
        return np.asarray(large)[margin : margin + SIDE, margin : margin + SIDE]
    if ink.shape == (SIDE, SIDE):
        return 255 - ink
    return 255 - np.asarray(Image.fromarray(ink).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
