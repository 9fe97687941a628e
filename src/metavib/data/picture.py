"""A picture of the user's own, whatever it comes as, in the form a network was trained on.

Training reads folders of pictures and predictions take them in many forms; both go through one `Form`, so that a model
never sees a picture in another way than it was trained on.

* Formats: PNG, JPEG, WebP, BMP, GIF (its first frame) and TIFF (its first page), told by their content.
* Rotation: as the camera noted it (EXIF), so that what was upright is upright.
* Colours: palettes, CMYK and transparency become grey or RGB; what is transparent becomes white.
* More than 8 bits: values up to 255 stay as they are, values up to 4095 count as 12 bits and larger ones as 16; floats
  must lie between 0 and 1, or between 0 and 255.
* Sides: a picture that is not square keeps all of it (`fit` is "whole"): it is shrunk until its longer side fits, and
  what is left beside it gets the colour of its border. The protocols of the literature take the central square instead
  ("centre").
"""

import io
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from metavib.data import archive
from metavib.data.ink import inked
from metavib.files import naming

FORMATS = (*archive.FORMATS, "GIF", "TIFF")
SUFFIXES = (*archive.SUFFIXES, ".gif", ".tif", ".tiff")
FITS = ("centre", "whole")


@dataclass(frozen=True)
class Form:
    """What pictures become: uint8 `(channels, size, size)`.

    Args:
        size: the side, in pixels.
        channels: 1 for grey, 3 for colour.
        fit: "whole" for all of the picture on paper of its border's colour, "centre" for its central square.
        ink: bring characters to dark ink in the middle of white paper (`metavib.data.ink`), whatever `fit` says.

    Example:
        >>> from PIL import Image
        >>> from metavib.data.picture import Form
        >>> wide = Image.new("RGB", (40, 20), "red")
        >>> Form(8, 3)(wide).shape
        (3, 8, 8)
    """

    size: int
    channels: int
    fit: str = "whole"
    ink: bool = False

    def __post_init__(self) -> None:
        if self.channels not in (1, 3) or self.size < 1:
            raise ValueError(f"expected 1 or 3 channels and a positive size; got {self.channels} and {self.size}.")
        if self.fit not in FITS:
            raise ValueError(f"fit must be one of {', '.join(FITS)}; got {self.fit!r}.")

    def __call__(self, image: Image.Image) -> np.ndarray:
        """The pixels of a Pillow image."""
        image = archive.opaque(eight_bits(image), self.channels)
        if self.ink:
            return inked(np.asarray(image), side=self.size)[None]
        if self.fit == "whole":
            image = on_paper(image, self.size)
        return archive.fitted(image, size=self.size, keep_aspect=True)

    def read(self, source: Any, *, name: str = "") -> np.ndarray:
        """The pixels of a picture: the path of a file, the content of one, a Pillow image, or an array of pixels.

        Args:
            source: arrays are `(H, W)`, `(H, W, C)` or `(C, H, W)`, of whole numbers from 0 to 255 or floats from 0
                to 1.
            name: what to call it in an error message; files have their own names.
        """
        if isinstance(source, str | PathLike):
            path = Path(source)
            if not path.is_file():
                raise FileNotFoundError(f"there is no picture {path}.")
            return self.read(archive.read_file(path), name=str(path))
        if isinstance(source, bytes):
            try:
                return self(opened(source))
            except Exception as error:  # Pillow raises nearly anything on hostile bytes; all of it means one thing
                why = "it holds none of them" if isinstance(error, UnidentifiedImageError) else error
                raise ValueError(
                    f"{name} cannot be read as a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image ({why}); "
                    "replace or remove it."
                ) from error
        with naming(name):
            return self(picture(source))


def picture(source: Any) -> Image.Image:
    """A picture as a Pillow image, upright: of a file or the content of one, of a Pillow image, of an array of pixels.

    Example:
        >>> import numpy as np
        >>> from metavib.data.picture import picture
        >>> picture(np.zeros((20, 30))).size  # Pillow has the width first
        (30, 20)
    """
    if isinstance(source, str | PathLike):
        return opened(archive.read_file(Path(source)))
    if isinstance(source, bytes):
        return opened(source)
    if isinstance(source, Image.Image):
        return ImageOps.exif_transpose(source)
    return Image.fromarray(_eight_bits(_last(source)))


def opened(data: bytes, *, max_pixels: int = archive.MAX_PIXELS) -> Image.Image:
    """A picture from the content of a file, upright; one with too many pixels is refused before it is decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > max_pixels:
            raise ValueError(f"{width} x {height} pixels are more than the {max_pixels} allowed")
        image.load()
        return ImageOps.exif_transpose(image)


def eight_bits(image: Image.Image) -> Image.Image:
    """The same picture with 8 bits a channel."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;"):
        return image
    values = np.asarray(image, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    tops = (1.0, 255.0) if image.mode == "F" else (255.0, 4095.0, 65535.0)
    top = next((top for top in tops if high <= top), None)
    if low < 0 or top is None or high != high:
        raise ValueError(f"pixels of type {image.mode} lie between 0 and {tops[-1]:.0f}; got {low:g} to {high:g}")
    return Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))


def on_paper(image: Image.Image, size: int) -> Image.Image:
    """All of a picture in the middle of a square of its border's median colour."""
    if image.width == image.height:
        return image
    scale = size / max(image.size)
    width, height = (max(1, round(scale * side)) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    colour = np.median(border, axis=0).astype(int)
    paper = Image.new(image.mode, (size, size), tuple(colour.tolist()) if colour.ndim else int(colour))
    paper.paste(small, ((size - width) // 2, (size - height) // 2))
    return paper


# Arrays of pixels


def split(pixels: np.ndarray, channels: int) -> list[np.ndarray]:
    """One array as a list of pictures, for a model of so many channels."""
    shape = pixels.shape
    if pixels.ndim == 2 or (pixels.ndim == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, channels))):
        return [pixels]
    if pixels.ndim == 3 and shape[0] in (3, 4):
        raise ValueError(
            f"an array {shape} may be {shape[0]} grey pictures, or one of {shape[0]} channels: pass (n, C, H, W)."
        )
    if pixels.ndim in (3, 4):
        return list(pixels)
    raise ValueError(f"expected pictures (H, W), (H, W, C), (n, C, H, W) or (n, H, W, C); got {shape}.")


def _last(one: Any) -> np.ndarray:
    """One picture with its channels last: `(H, W)` or `(H, W, C)`."""
    pixels = np.asarray(one.detach().cpu() if hasattr(one, "detach") else one)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[-1] not in (3, 4)) or not pixels.size:
        raise ValueError(f"expected pixels (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels; got {pixels.shape}.")
    return pixels


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    """Pixels from 0 to 255, from whole numbers in that range or from floats between 0 and 1."""
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    kind, low, high = pixels.dtype.kind, pixels.min(), pixels.max()
    largest = {"f": 1, "b": 1, "i": 255, "u": 255}.get(kind)
    if largest is None or not 0 <= low <= high <= largest:
        raise ValueError(
            "pixels are whole numbers from 0 to 255 or floats from 0 to 1, before any normalisation; got "
            f"{pixels.dtype} from {low} to {high}."
        )
    return np.ascontiguousarray(np.rint(pixels * (255.0 / largest)).astype(np.uint8))
