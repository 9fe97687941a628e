"""Labelled images, and the three sets of classes an experiment needs.

Everything a reader returns is a `Labelled`: raw pixels `(n, C, H, W)` as uint8, so that a whole dataset fits
on the device, and one label a picture. Meta-learning splits a dataset by *class*: the classes of
`Splits.train`, `.validation` and `.test` never overlap.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Labelled(NamedTuple):
    """Pictures of named classes: raw pixels `images (n, C, H, W)` as uint8, and `labels (n,)` that count into `names`.

    `labelled` builds one and checks it.

    Example:
        >>> import torch
        >>> from metavib.data import labelled
        >>> data = labelled(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), [0, 1, 1], ["ant", "bee"])
        >>> data.classes, data.counts.tolist()
        (2, [1, 2])
    """

    images: Tensor
    labels: Tensor
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """n, the number of pictures."""
        return self.labels.shape[0]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.names)

    @property
    def counts(self) -> Tensor:
        """How many pictures each class has, `(classes,)`."""
        return torch.bincount(self.labels, minlength=self.classes)

    def to(self, device: torch.device | str) -> "Labelled":
        """Moves the pictures and labels to a device."""
        return Labelled(self.images.to(device), self.labels.to(device), self.names)


class Splits(NamedTuple):
    """The classes to meta-train on, to select the model on, and to report on; no class is in two of them.

    Example:
        >>> import torch
        >>> from metavib.data import Splits, labelled
        >>> pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> splits = Splits(*(labelled(pixels, [0, 1], names) for names in (["a", "b"], ["c", "d"], ["e", "f"])))
        >>> splits.test.names
        ('e', 'f')
    """

    train: Labelled
    validation: Labelled
    test: Labelled

    def to(self, device: torch.device | str) -> "Splits":
        """Moves all three sets to a device."""
        return Splits(*(part.to(device) for part in self))


def labelled(images: Any, labels: Any, names: Sequence[str]) -> Labelled:
    """Builds a checked set of labelled images from anything array-like.

    Args:
        images: pixels `(n, C, H, W)`, uint8.
        labels: `(n,)`, whole numbers from 0 to `len(names) - 1`; every class has at least one picture.
        names: one name a class, all different.
    """
    images, labels, names = torch.as_tensor(images), torch.as_tensor(labels), tuple(names)
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(f"images must be uint8 (n, C, H, W); got {images.dtype} {tuple(images.shape)}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels must be whole numbers; got {labels.dtype}.")
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be (n,), one for each of the {images.shape[0]} images; got {tuple(labels.shape)}."
        )
    repeated = _repeated(names)
    if repeated:
        raise ValueError(f"class names must all be different; repeated: {_some(repeated)}.")
    labels = labels.long()
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < len(names):
        raise ValueError(
            f"labels must lie in 0..{len(names) - 1} for {len(names)} class names; "
            f"got {int(labels.min())}..{int(labels.max())}."
        )
    data = Labelled(images, labels, names)
    empty = [names[c] for c in (data.counts == 0).nonzero().flatten().tolist()]
    if empty:
        raise ValueError(f"every class needs at least one image; without any: {_some(empty)}.")
    return data


def select_classes(data: Labelled, which: Sequence[int] | Sequence[str]) -> Labelled:
    """The pictures of some classes, given by index or by name; labels are renumbered in the order given.

    Example:
        >>> import torch
        >>> from metavib.data import labelled, select_classes
        >>> data = labelled(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), [0, 0, 1, 1], ["a", "b"])
        >>> select_classes(data, ["b"]).names
        ('b',)
    """
    position = {name: c for c, name in enumerate(data.names)}
    unknown = [str(w) for w in which if isinstance(w, str) and w not in position]
    if unknown:
        raise ValueError(f"no such class: {_some(unknown)}; the {data.classes} classes include {_some(data.names)}.")
    chosen = [position[w] if isinstance(w, str) else int(w) for w in which]
    outside = [str(c) for c in chosen if not 0 <= c < data.classes]
    if outside:
        raise ValueError(f"class indices must lie in 0..{data.classes - 1}; got {_some(outside)}.")
    if len(set(chosen)) != len(chosen):
        raise ValueError("each class may be selected once; some index or name was given twice.")
    if chosen == list(range(data.classes)):
        return data
    renumber = data.labels.new_full((data.classes,), -1)
    renumber[chosen] = torch.arange(len(chosen), device=data.labels.device)
    labels = renumber[data.labels]
    keep = labels >= 0
    return Labelled(data.images[keep], labels[keep], tuple(data.names[c] for c in chosen))


def concatenate(*sets: Labelled) -> Labelled:
    """All classes of several sets as one; pictures must have one shape, and class names be different.

    Example:
        >>> import torch
        >>> from metavib.data import labelled, concatenate
        >>> data = labelled(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), [0, 0, 1, 1], ["a", "b"])
        >>> more = labelled(data.images, data.labels, ["c", "d"])
        >>> concatenate(data, more).names
        ('a', 'b', 'c', 'd')
    """
    if not sets:
        raise ValueError("concatenate needs at least one set; got none.")
    shapes = {tuple(s.images.shape[1:]) for s in sets}
    if len(shapes) > 1:
        raise ValueError(f"all sets must hold pictures of one shape (C, H, W); got {sorted(shapes)}.")
    starts = [sum(s.classes for s in sets[:i]) for i in range(len(sets))]
    return labelled(
        torch.cat([s.images for s in sets]),
        torch.cat([s.labels + start for s, start in zip(sets, starts, strict=True)]),
        [name for s in sets for name in s.names],
    )


def first_of_each(data: Labelled, count: int) -> Labelled:
    """The first pictures of each class: so many, or all where a class has fewer.

    Example:
        >>> import torch
        >>> from metavib.data.labelled import first_of_each, labelled
        >>> data = labelled(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), [1, 0, 1, 1, 0], ["a", "b"])
        >>> first_of_each(data, 2).labels.tolist()
        [1, 0, 1, 0]
    """
    order = data.labels.argsort(stable=True)
    rank = torch.arange(data.size, device=order.device) - (data.counts.cumsum(0) - data.counts)[data.labels[order]]
    kept = order[rank < count].sort().values
    return data._replace(images=data.images[kept], labels=data.labels[kept])


def invert(data: Labelled) -> Labelled:
    """Swaps ink and paper: 255 minus every pixel.

    Example:
        >>> import torch
        >>> from metavib.data import labelled, invert
        >>> data = labelled(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), [0, 0, 1, 1], ["a", "b"])
        >>> int(invert(data).images.max())
        255
    """
    return data._replace(images=255 - data.images)


def rotations(data: Labelled) -> Labelled:
    """Each class in four orientations, every one a class of its own (Santoro et al. 2016).

    The classes come in blocks, all of them unrotated first; a quarter turn counter-clockwise adds `/rot090`
    to the name, and so on (`/rot000` is the picture as it was).

    Example:
        >>> import torch
        >>> from metavib.data import labelled, rotations
        >>> data = labelled(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), [0, 0, 1, 1], ["a", "b"])
        >>> rotations(data).names[1:4]
        ('b/rot000', 'a/rot090', 'b/rot090')
    """
    if data.images.shape[-2] != data.images.shape[-1]:
        raise ValueError(f"rotations need square pictures; got {tuple(data.images.shape[-2:])}.")
    quarter_turns = range(4)
    return Labelled(
        torch.cat([torch.rot90(data.images, k, (-2, -1)) for k in quarter_turns]),
        torch.cat([data.labels + k * data.classes for k in quarter_turns]),
        tuple(f"{name}/rot{90 * k:03d}" for k in quarter_turns for name in data.names),
    )


def check_disjoint(splits: Splits) -> Splits:
    """Returns the splits after checking that no class name is in two of them.

    Example:
        >>> import torch
        >>> from metavib.data import Splits, check_disjoint, labelled
        >>> one = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
        >>> parts = (labelled(one, [0], [name]) for name in ("a", "b", "c"))
        >>> check_disjoint(Splits(*parts)).test.names
        ('c',)
    """
    for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
        shared = sorted(set(getattr(splits, a).names) & set(getattr(splits, b).names))
        if shared:
            raise ValueError(
                f"{a} and {b} must have no class in common, or the test would be of classes already seen; "
                f"they share {len(shared)}: {_some(shared)}."
            )
    return splits


def _repeated(names: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
