"""Figures of a run on a table: groups it never saw, predicted from a few of their rows.

`groups` draws some of them with bands; `errors` draws the error against the number of known rows, beside what one
would do without meta-learning, and how often the intervals hold what they promise. All numbers are of test groups, in
the units of the table.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from metavib.adapt import believed
from metavib.adapt.learner import Learner, Predictors
from metavib.adapt.preparation import Rows
from metavib.data.schema import Moment, Number, days
from metavib.data.table import Table
from metavib.likelihoods.prediction import ClassPrediction, RealPrediction
from metavib.show.plots import BAND, COLOURS, INK, MEAN, STYLE
from metavib.tasks.table import split_tasks
from metavib.training.config import Config
from metavib.training.protocols.obvious import OWN, POOLED, ridge
from metavib.training.protocols.table import check_file, read_table

KNOWN = (0, 1, 2, 3, 5, 10, 20, 50)  # rows of a group that are known
WIDE = 4.0  # errors that differ by more than this factor are drawn on a logarithmic scale
ORDERS = 5  # random orders of each group's rows, of which the first are known
PANELS = 6
LEVEL = 0.9
NAMED = 5  # rows that a warning names


class Comparison(NamedTuple):
    """Errors on test groups at each number of known rows.

    Attributes:
        known: numbers of known rows, none above what half of the groups have to spare.
        errors: for each method, its error at each of them: root mean squared, or the share of wrong classes.
        coverage: the share of outputs inside the 90% intervals of the run at each of them; none for classes.
        groups: how many test groups there are.
        target: the column that is predicted.
    """

    known: tuple[int, ...]
    errors: dict[str, tuple[float, ...]]
    coverage: tuple[float, ...]
    groups: int
    target: str


class _World:
    """The table of a run: its rows, their groups, and which of them the run was trained and is tested on."""

    def __init__(self, learner: Learner, config: Config) -> None:
        preparation = learner.preparation
        assert isinstance(preparation, Rows)
        table = config.tasks.table
        self.learner, self.preparation, self.title, self.target = learner, preparation, config.method, table.target
        check_file(table)
        self.cells = read_table(table)
        ids = np.array(self.cells.ids(table.task))
        train, _, test = split_tasks(ids)  # as training did: 2 comes before 10, and "10" before "2"
        self.ids = ids.astype(str)
        self.x = preparation.inputs(self.cells).numpy()
        self.y = np.array(self.cells.labels(table.target)) if preparation.classes else self.cells.outputs(table.target)
        self.train, self.test = np.flatnonzero(train), np.flatnonzero(test)
        self.classes = learner.trained.classifies
        self.left_out: set[int] = set()

    def numbers(self, column: Number | Moment) -> np.ndarray:
        """A column as numbers: dates are days since 1970, as matplotlib has them."""
        return days(self.cells, column.name) if isinstance(column, Moment) else self.cells.numbers(column.name)

    def varies(self, column: str) -> bool:
        """Whether a column has different values within one of the test groups."""
        texts = self.cells.texts(column)
        pairs = {(self.ids[row], texts[row]) for row in self.test}
        return len(pairs) > len({group for group, _ in pairs})

    def sizes(self) -> tuple[int, ...]:
        """Numbers of known rows to look at: more than half of the test groups have one row more at least."""
        counts = np.unique(self.ids[self.test], return_counts=True)[1]
        return tuple(k for k in KNOWN if np.mean(counts > k) > 0.5)

    def splits(self, known: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows of test groups that are known, and the others, in random orders; groups that are too small left out."""
        random = np.random.default_rng(known)
        for _ in range(ORDERS):
            order = random.permutation(self.test)
            order = order[np.argsort(self.ids[order], kind="stable")]
            sizes = np.unique(self.ids[order], return_counts=True)[1]
            place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            large = np.repeat(sizes, sizes) > known
            yield order[large & (place < known)], order[large & (place >= known)]

    def predict(self, support: np.ndarray, query: np.ndarray) -> Any:
        """What the run says of some rows after others of the same groups."""
        return self.adapted(support).predict(self._rows(query), self.ids[query])

    def adapted(self, support: np.ndarray) -> Predictors:
        """What the run knows of groups after some of their rows; which of these cannot be right is kept in mind."""
        trained, group = self.learner.trained, np.unique(self.ids[support], return_inverse=True)[1]
        with warnings.catch_warnings():  # of rows that are believed: these are drawn as they are
            warnings.simplefilter("ignore", UserWarning)
            wrong = believed.wrong_together(trained, trained.points(self._rows(support)), group)
            right = support[~wrong]
            found = self.learner.adapt_many(self._rows(right), self.ids[right])
        self.left_out |= set(support[wrong].tolist())
        return found

    def tell(self) -> None:
        """Warns of rows that were not learned from since they cannot be right, by their places in the file."""
        if self.left_out:
            named = ", ".join(self.cells.place(row) for row in sorted(self.left_out)[:NAMED])
            warnings.warn(
                f"{len(self.left_out)} rows of test groups are not learned from where they are among the known ones, "
                f"since their outputs cannot be right beside all others: {named}"
                f"{', ...' * (len(self.left_out) > NAMED)}.",
                UserWarning,
                stacklevel=3,
            )

    def _rows(self, which: np.ndarray) -> Table:
        return self.cells.select(which)


def compare(learner: Learner, config: Config) -> Comparison:
    """Errors and coverage on the test groups of a run on a table."""
    world = _World(learner, config)
    known = world.sizes()
    found = [_at(world, k) for k in known]
    names = list(found[0][0])
    errors = {name: tuple(of[name] for of, _ in found) for name in names}
    coverage = () if world.classes else tuple(inside for _, inside in found)
    world.tell()
    return Comparison(known, errors, coverage, len(set(world.ids[world.test])), world.target)


def errors(found: Comparison, title: str, *, classes: bool) -> Figure:
    """Error against the number of known rows, and coverage."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6) if found.coverage else (5.5, 3.6))
        axes = figure.subplots(1, 2 if found.coverage else 1, squeeze=False)[0]
        places = range(len(found.known))  # at equal distances, as on a logarithmic scale that has a zero
        for colour, (name, values) in zip(COLOURS, found.errors.items(), strict=False):
            ours = name == title
            axes[0].plot(places, values, "o-", color=colour, lw=2 if ours else 1, ms=4, label=name)
        axes[0].set_ylabel(f"{'share of wrong classes' if classes else 'RMSE'}, {found.target}")
        every = [value for values in found.errors.values() for value in values]
        if not classes and max(every) > WIDE * min(every) > 0:
            axes[0].set_yscale("log")
            axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
            axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes[0].set_title(f"error on {found.groups} new groups")
        axes[0].legend(frameon=False, fontsize=8)
        if found.coverage:
            axes[1].axhline(LEVEL, color=INK, lw=0.8, ls="--")
            axes[1].plot(places, found.coverage, "o-", color=MEAN, lw=2, ms=4)
            axes[1].set(ylim=(0, 1.02), title=f"share inside {LEVEL:.0%} intervals")
        for ax in axes:
            ax.set_xticks(places, [str(k) for k in found.known])
            ax.minorticks_off()
            ax.set_xlabel("K, known rows of a group")
    return figure


def groups(learner: Learner, config: Config, *, seed: int = 1) -> Figure:
    """Some test groups after a few of their rows: known rows, the others, and what was predicted of these with bands.

    Where one input alone varies within groups, and is a number or a date, the band is drawn along it; without inputs it
    is the same for all rows; otherwise rows stand in the order of their predicted means.
    """
    world = _World(learner, config)
    varying = [column for column in world.preparation.schema.columns if world.varies(column.name)]
    along = varying[0] if len(varying) == 1 and isinstance(varying[0], Number | Moment) else None
    known = max((k for k in world.sizes() if 1 <= k <= 5), default=1)
    random = np.random.default_rng(seed)
    names, counts = np.unique(world.ids[world.test], return_counts=True)
    chosen = random.permutation(names[counts > known])[:PANELS]
    with matplotlib.rc_context(STYLE):
        wide = max(1, min(3, len(chosen)))
        rows_of_panels = max(1, -(-len(chosen) // wide))
        figure = Figure(figsize=(max(5.0, 3.0 * wide), 0.4 + 2.3 * rows_of_panels))
        axes = figure.subplots(rows_of_panels, wide, sharey=True, squeeze=False).flat
        for ax, name in zip(axes, chosen, strict=False):
            rows = random.permutation(np.flatnonzero(world.ids == name))
            _panel(ax, world, rows[:known], rows[known:], along)
            ax.set_title(f"{config.tasks.table.task} {name}")
        for ax in figure.axes[len(chosen) :]:
            ax.axis("off")
        for ax in figure.axes[: len(chosen) : wide]:
            ax.set_ylabel(world.target)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        figure.suptitle(f"{world.title}: new groups, {known} row{'s' * (known > 1)} of each known", fontsize=11)
    world.tell()
    return figure


def _panel(ax: Any, world: _World, support: np.ndarray, query: np.ndarray, along: Number | Moment | None) -> None:
    if along is not None:
        at, cells = _along(world, along, np.concatenate([support, query]))
        places = world.numbers(along)
        same = {name: np.repeat(world.cells[name][support[:1]], len(at)) for name in world.preparation.features}
        found = world.adapted(support).predict(same | {along.name: cells}, [world.ids[support[0]]] * len(at))
        _band(ax, at, found, places[support], world.y[support], places[query], world.y[query])
        ax.set_xlabel(along.name)
        if isinstance(along, Moment):
            where = AutoDateLocator(maxticks=5)
            ax.xaxis.set_major_locator(where)
            ax.xaxis.set_major_formatter(ConciseDateFormatter(where, show_offset=bool(at.max() >= 1)))
        return
    if not world.preparation.schema.columns:  # all rows are predicted alike: they stand side by side
        at, n = np.arange(len(support) + len(query)), len(support)
        found = world.adapted(support).predict(np.zeros((2, 0)), [world.ids[support[0]]] * 2)
        _band(ax, at[[0, -1]] + [-0.5, 0.5], found, at[:n], world.y[support], at[n:], world.y[query])
        ax.set_xticks([])
        ax.set_xlabel("rows")
        return
    found = world.predict(support, query)
    order = np.argsort(found.mean.numpy())
    low, high = (end.numpy()[order] for end in found.interval(LEVEL))
    place = np.arange(len(query))
    ax.set_xticks([])
    ax.set_xlim(-1, len(query))
    ax.vlines(place, low, high, color=BAND, lw=3, label=f"{LEVEL:.0%} interval")
    ax.plot(place, found.mean.numpy()[order], "_", color=MEAN, ms=5, label="mean")
    ax.plot(place, world.y[query][order], ".", color=INK, ms=4, label="outputs")
    ax.set_xlabel("rows, by their predicted mean")


def _along(world: _World, column: Number | Moment, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A grid along a column, as numbers to draw at and as cells: over all rows or, of dates, over a group's own."""
    at = world.numbers(column)
    at = at[rows] if isinstance(column, Moment) else at
    ends = at[~np.isnan(at)]
    grid = np.linspace(ends.min(), ends.max(), 100)
    if isinstance(column, Number):
        return grid, grid
    return grid, (grid * 86_400e6).round().astype("datetime64[us]")


def _band(
    ax: Any,
    grid: np.ndarray,
    found: Any,
    at: np.ndarray,
    known: np.ndarray,
    others_at: np.ndarray,
    others: np.ndarray,
) -> None:
    """Mean and interval along a grid, the known rows, and the others."""
    assert isinstance(found, RealPrediction)
    low, high = (end.numpy() for end in found.interval(LEVEL))
    ax.fill_between(grid, low, high, color=BAND, alpha=0.5, lw=0, label=f"{LEVEL:.0%} interval")
    ax.plot(grid, found.mean.numpy(), color=MEAN, lw=1.6, label="mean")
    ax.plot(others_at, others, ".", color="#888888", ms=4, label="others")
    ax.plot(at, known, "o", color=INK, ms=5, label="known")


def _at(world: _World, known: int) -> tuple[dict[str, float], float]:
    """Errors of all methods with some known rows of each group, and the coverage of the run's intervals.

    Groups count alike, however many rows they have, as in the table of the run's test.
    """
    squares: dict[str, list[np.ndarray]] = {}
    inside: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for support, query in world.splits(known):
        found, y = world.predict(support, query), world.y[query]
        _, group, sizes = np.unique(world.ids[query], return_inverse=True, return_counts=True)
        weights.append(1 / sizes[group])
        if isinstance(found, ClassPrediction):
            said = np.array([str(label) for label in found.labels])
            others = _majorities(world, support, query)
            wrong = {world.title: said, **others}
            for name, labels in wrong.items():
                squares.setdefault(name, []).append(labels != y.astype(str))
            continue
        assert isinstance(found, RealPrediction)
        for name, means in {world.title: found.mean.numpy(), **_ridges(world, support, query)}.items():
            squares.setdefault(name, []).append((means - y) ** 2)
        low, high = (end.numpy() for end in found.interval(LEVEL))
        inside.append((low <= y) & (y <= high))

    def mean(values: list[np.ndarray]) -> float:
        return float(np.average(np.concatenate(values), weights=np.concatenate(weights)))

    errors = {name: mean(values) for name, values in squares.items()}
    if world.classes:
        return errors, float("nan")
    return {name: square**0.5 for name, square in errors.items()}, mean(inside)


def _ridges(world: _World, support: np.ndarray, query: np.ndarray) -> dict[str, np.ndarray]:
    """One ridge regression for all training groups, one of the known rows of each group, and their mean."""
    pooled = ridge(world.x[world.train], world.y[world.train], world.x[query])
    own, level = (np.full(len(query), world.y[world.train].mean()) for _ in range(2))  # where no row is known
    for name in np.unique(world.ids[support]):
        mine, asked = support[world.ids[support] == name], world.ids[query] == name
        own[asked] = ridge(world.x[mine], world.y[mine], world.x[query[asked]])
        level[asked] = world.y[mine].mean()
    # Without inputs a group's own ridge is its mean.
    return {POOLED: pooled, OWN: own} | ({"mean of the K rows": level} if world.x.shape[1] else {})


def _majorities(world: _World, support: np.ndarray, query: np.ndarray) -> dict[str, np.ndarray]:
    """The most frequent class of all training groups, and that of the known rows of each group."""
    y = world.y.astype(str)
    everywhere = np.full(len(query), _most(y[world.train]), dtype=y.dtype)
    found = everywhere.copy()
    for name in np.unique(world.ids[support]):
        found[world.ids[query] == name] = _most(y[support[world.ids[support] == name]])
    return {"most frequent class": everywhere, "most frequent of the K rows": found}


def _most(labels: Sequence[str] | np.ndarray) -> str:
    values, counts = np.unique(labels, return_counts=True)
    return str(values[counts.argmax()])
