r"""N-way K-shot episodes drawn from labelled images.

An episode draws `ways` classes, and of each class `shots + queries` different images: the first `shots` are
its support, the others its query. Nothing here waits for the device or has a shape that depends on the data,
so that `sample` can be captured in a CUDA graph (register the generator with the graph): a choice without
replacement is the `topk` of random keys, and rows shorter than the longest have the keys of their padding set
below all others.

Random numbers are drawn on the generator's device and moved to the data's. A generator on the CPU therefore
gives the same episodes whatever device holds the images; `fixed` relies on it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from metavib.data.augmentations import Transform, is_random, unit
from metavib.data.labelled import Labelled
from metavib.random import Stream, draw
from metavib.tasks.source import TaskSource
from metavib.tasks.task import Examples, Task, stack


def fixed(source: TaskSource, *, count: int, seed: int, batch: int) -> Iterator[Task]:
    """Yields `count` episodes in batches of `batch` (the last may be smaller), the same whenever the seed is.

    Episode i comes from a CPU generator of its own, seeded by (seed, i): so it depends neither on the batch
    size nor on `count`, nor on the device of the images or on whoever consumed random numbers before.
    """
    if count < 1 or batch < 1:
        raise ValueError(f"count and batch must be at least 1; got count={count} and batch={batch}.")
    for start in range(0, count, batch):
        generators = [_generator(seed, i) for i in range(start, min(start + batch, count))]
        if isinstance(source, Episodes) and not source.random:  # random numbers one by one, the work on them together
            keys = [source.draw((), generator) for generator in generators]
            yield source.build(Keys(*map(torch.stack, zip(*keys, strict=True))), generators[0])
        else:
            yield stack([source.sample((), generator) for generator in generators])


class Keys(NamedTuple):
    """Random numbers whose order decides which `classes` an episode has, and which `images` of each."""

    classes: Tensor
    images: Tensor


@final
class Episodes:
    """N-way K-shot episodes: `ways` classes drawn uniformly, then `shots + queries` images of each.

    A sampled task has support `x (*shape, ways*shots, C, H, W)` and query `x (*shape, ways*queries, C, H,
    W)`, both class-major: the points of class slot 0 first, then those of slot 1, up to `ways - 1`. `y` holds
    the slot.

    Args:
        data: the images, on the device to sample on.
        ways: N, the classes of an episode.
        shots: K, the support images of a class.
        queries: the query images of a class.
        min_shots: if given, every class of every task has a number of shots of its own, uniform in
            [min_shots, shots]; the surplus is masked, and zero, so that tasks are ragged.
        groups: if given, a number for each class, from 0 on: the classes of a task are then all of one group, drawn
            uniformly first from those that have `ways` classes.
        alike: the share of tasks of which that holds; the classes of the others are of any groups.
        few: take classes with fewer than `shots + queries` images as they are: one image at least is a query, as
            many of the others as can be are support, and what is missing is masked. Otherwise they are refused.
        transform: what turns the drawn uint8 images `(N, C, H, W)` into floats, in one call for support and
            query of all tasks together.

    Raises:
        ValueError: if there are fewer than `ways` classes, or a class has fewer than `shots + queries`
            images (fewer than two, where few are allowed).
    """

    def __init__(
        self,
        data: Labelled,
        *,
        ways: int,
        shots: int,
        queries: int,
        min_shots: int | None = None,
        groups: Sequence[int] | None = None,
        alike: float = 1.0,
        few: bool = False,
        transform: Transform = unit,
    ) -> None:
        _check(data, shots=shots, queries=queries, min_shots=min_shots, few=few)
        of_class = torch.tensor([0] * len(data.names) if groups is None else list(groups))
        if of_class.shape != (len(data.names),):
            raise ValueError(f"groups must be a number for each of the {len(data.names)} classes; got {len(of_class)}.")
        sizes = of_class.bincount()
        largest = int(sizes.max())
        if not 1 <= ways <= largest:
            where = "the data" if groups is None else "the largest group"
            raise ValueError(f"ways must be between 1 and the {largest} classes of {where}; got {ways}.")
        members = torch.nn.functional.one_hot(of_class).mT.bool()
        self._members, self._alike = members[sizes >= ways] if groups is not None else None, alike
        self.ways, self.shots, self.queries, self.min_shots = ways, shots, queries, min_shots
        self.transform = transform
        self._pixels, self._images = data.images, _images(data)
        self._few = few and int(self._images.lengths.min()) < shots + queries

    @property
    def random(self) -> bool:
        """Whether anything but the choice of classes and images is random."""
        return self.min_shots is not None or is_random(self.transform)

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Draws tasks with the given batch shape; `()` is one task."""
        return self.build(self.draw(shape, generator), generator)

    def draw(self, shape: tuple[int, ...], generator: Stream) -> Keys:
        """The random numbers that `build` makes tasks of."""
        classes = _uniform((*shape, self._images.rows), generator)
        if self._members is not None:
            group = draw(torch.randint, len(self._members), shape, stream=generator)
            others = ~self._members.to(group.device)[group]
            if self._alike < 1:
                others &= (_uniform(shape, generator) < self._alike).unsqueeze(-1)
            classes = classes.masked_fill(others, -1)
        return Keys(classes, _uniform((*shape, self.ways, self._images.longest), generator))

    def build(self, keys: Keys, generator: Stream) -> Task:
        """The tasks that some keys choose; the generator is for the transform, and for the shots where they vary."""
        classes = keys.classes.to(self._pixels.device).topk(self.ways).indices
        wanted = self.shots + self.queries
        positions = self._images.choose(classes, min(wanted, self._images.longest), keys.images)
        if self._few:
            return self._with_few(classes, positions, generator)
        support, query = positions.split([self.shots, self.queries], dim=-1)
        return _task(self._pixels, support, query, self.min_shots, self.transform, generator)

    def _with_few(self, classes: Tensor, positions: Tensor, generator: Stream) -> Task:
        """The tasks of the images at some positions, of which each class has as many as it has."""
        there = self._images.lengths[classes].unsqueeze(-1)
        as_support = there.sub(1).clamp(max=self.shots)
        in_support = torch.arange(self.shots, device=there.device)
        in_query = as_support + torch.arange(self.queries, device=there.device)
        last = positions.shape[-1] - 1
        support, query = (
            positions.gather(-1, at.expand(*positions.shape[:-1], -1).clamp(max=last)) for at in (in_support, in_query)
        )
        masks = in_support < as_support, in_query < there.clamp(max=last + 1)
        task = _task(self._pixels, support, query, self.min_shots, self.transform, generator)
        return Task(*(_masked(side, mask.flatten(-2)) for side, mask in zip(task, masks, strict=True)))


@final
class AlphabetEpisodes:
    """Episodes within one alphabet: first an alphabet, uniformly, then `ways` of its characters.

    An alphabet is what the names of its classes share before their first `/`, as in `Greek/character01`.
    Alphabets with fewer than `ways` characters are left out. The tasks are laid out as those of `Episodes`.

    Args:
        data: the images, on the device to sample on.
        ways: the characters of an episode.
        shots: the support points of a character.
        queries: the query images of a character.
        pictures: the different images of a character among its shots, where they are fewer: they come in turn,
            every time under a new draw of the transform. As many as there are shots where None.
        transform: as in `Episodes`.

    Raises:
        ValueError: if no alphabet has `ways` characters, or a class has fewer than `pictures + queries` images.
    """

    def __init__(
        self,
        data: Labelled,
        *,
        ways: int,
        shots: int,
        queries: int,
        pictures: int | None = None,
        transform: Transform = unit,
    ) -> None:
        pictures = shots if pictures is None else pictures
        if ways < 1 or not min(1, shots) <= pictures <= shots:
            raise ValueError(
                f"ways must be at least 1, and pictures between 1 and shots; got ways={ways}, pictures={pictures} "
                f"and shots={shots}."
            )
        _check(data, shots=pictures, queries=queries, min_shots=None)
        members: dict[str, list[int]] = {}
        for index, name in enumerate(data.names):
            members.setdefault(name.partition("/")[0], []).append(index)
        large = {alphabet: classes for alphabet, classes in members.items() if len(classes) >= ways}
        if not large:
            raise ValueError(
                f"no alphabet has {ways} characters: the largest has {max(map(len, members.values()))}. "
                "Lower ways, or name the classes 'alphabet/character'."
            )
        self.ways, self.shots, self.queries, self.pictures = ways, shots, queries, pictures
        self.transform = transform
        self.alphabets = tuple(large)
        self._pixels, self._images = data.images, _images(data)
        self._classes = _rows(list(large.values()), data.images.device)

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Draws tasks with the given batch shape; `()` is one task."""
        alphabet = draw(torch.randint, self._classes.rows, shape, stream=generator)
        classes = self._classes.draw(alphabet.to(self._pixels.device), self.ways, generator)
        positions = self._images.draw(classes, self.pictures + self.queries, generator)
        support, query = positions.split([self.pictures, self.queries], dim=-1)
        in_turn = torch.arange(self.shots, device=support.device) % max(1, self.pictures)
        return _task(self._pixels, support[..., in_turn], query, None, self.transform, generator)


class _Rows(NamedTuple):
    """Rows of unequal length, padded: row r holds `entries[r, :lengths[r]]`."""

    entries: Tensor
    lengths: Tensor

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return self.entries.shape[-1]

    def draw(self, row: Tensor, k: int, generator: Stream) -> Tensor:
        """Draws k different entries of each given row, in random order: `row (...)` to `(..., k)`."""
        return self.choose(row, k, _uniform((*row.shape, self.longest), generator))

    def choose(self, row: Tensor, k: int, keys: Tensor) -> Tensor:
        """The k entries of each given row whose `keys (..., longest)` are largest."""
        padding = torch.arange(self.longest, device=row.device) >= self.lengths[row].unsqueeze(-1)
        picks = keys.to(row.device).masked_fill(padding, -1).topk(k).indices
        return self.entries[row].gather(-1, picks)


def _rows(lists: Sequence[Sequence[int]], device: torch.device) -> _Rows:
    entries = torch.zeros(len(lists), max(map(len, lists)), dtype=torch.int64)
    for row, values in zip(entries, lists, strict=True):
        row[: len(values)] = torch.as_tensor(values)
    return _Rows(entries.to(device), torch.tensor([len(values) for values in lists], device=device))


def _images(data: Labelled) -> _Rows:
    """Where the images of each class lie."""
    labels = data.labels.cpu()
    counts = labels.bincount(minlength=len(data.names)).tolist()
    members = labels.argsort(stable=True).split(counts)
    return _rows([positions.tolist() for positions in members], data.images.device)


def _task(
    pixels: Tensor,
    support: Tensor,
    query: Tensor,
    min_shots: int | None,
    transform: Transform,
    generator: Stream,
) -> Task:
    """The task of images at positions `support (..., ways, shots)` and `query (..., ways, queries)`."""
    flat = torch.cat([support.flatten(), query.flatten()])
    images = transform(pixels.index_select(0, flat), generator)
    sides = images.split([support.numel(), query.numel()])
    d_t, d_v = (_examples(x, where) for x, where in zip(sides, (support, query), strict=True))
    if min_shots is None:
        return Task(d_t, d_v)
    ways, shots = support.shape[-2:]
    real = draw(torch.randint, min_shots, shots + 1, support.shape[:-1], stream=generator)
    mask = torch.arange(shots, device=pixels.device) < real.to(pixels.device).unsqueeze(-1)
    return Task(_masked(d_t, mask.flatten(-2)), d_v)


def _masked(side: Examples, mask: Tensor) -> Examples:
    """Examples of which only some are there; the others are zero."""
    mask = side.mask & mask
    x = side.x.masked_fill(~mask.reshape(*mask.shape, *(1,) * (side.x.ndim - mask.ndim)), 0)
    return Examples(x, side.y.masked_fill(~mask, 0), mask)


def _examples(x: Tensor, positions: Tensor) -> Examples:
    """Class-major points with the class slot as label, for positions `(..., ways, each)`."""
    *batch, ways, each = positions.shape
    y = torch.arange(ways, device=x.device).repeat_interleave(each).expand(*batch, -1).contiguous()
    return Examples(x.reshape(*batch, ways * each, *x.shape[1:]), y, torch.ones_like(y, dtype=torch.bool))


def _uniform(shape: tuple[int, ...], generator: Stream) -> Tensor:
    # Double precision makes ties, which devices break differently, improbable.
    return draw(torch.rand, shape, stream=generator, dtype=torch.float64)


def _generator(seed: int, index: int) -> torch.Generator:
    # The CPU generator keeps 32 bits of its seed: hash, rather than add, to keep neighbouring seeds apart.
    state = np.random.SeedSequence((seed, index)).generate_state(1)[0]
    return torch.Generator().manual_seed(int(state))


def _check(data: Labelled, *, shots: int, queries: int, min_shots: int | None, few: bool = False) -> None:
    if shots < 0 or queries < 1:
        raise ValueError(f"shots must be at least 0 and queries at least 1; got {shots} and {queries}.")
    if min_shots is not None and not 0 <= min_shots <= shots:
        raise ValueError(f"min_shots must be between 0 and shots={shots}; got {min_shots}.")
    if len(data.images) != len(data.labels):
        raise ValueError(f"images and labels must be equally many; got {len(data.images)} and {len(data.labels)}.")
    counts = data.labels.cpu().bincount(minlength=len(data.names))
    if len(counts) > len(data.names):
        raise ValueError(f"labels must lie below the {len(data.names)} classes; got {len(counts) - 1}.")
    rarest = int(counts.argmin())
    if few and counts[rarest] < 2:
        raise ValueError(
            f"class {data.names[rarest]!r} has {int(counts[rarest])} image(s), and a task needs two of a class: one to "
            "learn from and one to predict."
        )
    if not few and counts[rarest] < shots + queries:
        raise ValueError(
            f"class {data.names[rarest]!r} has {int(counts[rarest])} images, and shots + queries = "
            f"{shots} + {queries} need {shots + queries}. Lower shots or queries, or leave that class out."
        )
