"""How methods are tried: new groups, of which K rows are known.

The groups of a table are divided at random five times, two thirds to learn from and one third (at most `GROUPS`) to be
tried on. Of each group to be tried on K rows, drawn at random, are known; the others (at most `QUERIES`) are predicted.
The rows known at K = 3 are among those known at K = 5, and all methods see the same ones. A group counts at a K if it
has more than K rows; a K counts on a table if at least `FEWEST` groups do.

For new classes it is the classes that are divided: an episode has at most five classes that nobody has learned from, K
rows known of each.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd
from scipy.special import ndtri
from scipy.stats import norm

from benchmarks.tables.data import Table

KNOWN = (0, 1, 3, 5, 10)
GROUPS, QUERIES, FEWEST = 50, 30, 3
EPISODES, WAYS, PER_CLASS = 20, 5, 10
LEVEL = 0.9  # of intervals
DRAWS = 200  # of labels, for what chance makes of a calibration error


class Rows(NamedTuple):
    """Rows to learn from."""

    x: pd.DataFrame
    y: np.ndarray
    group: np.ndarray


class Trial(NamedTuple):
    """A new group: known rows `x`, `y`, and the inputs `query` of the others, whose outputs `truth` no method sees."""

    x: pd.DataFrame
    y: np.ndarray
    query: pd.DataFrame
    truth: np.ndarray


class Density(Protocol):
    """A prediction of real outputs at some rows."""

    mean: np.ndarray

    def log_density(self, y: np.ndarray) -> np.ndarray: ...

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]: ...


class Gauss(NamedTuple):
    """The prediction of most methods: independent Gaussians."""

    mean: np.ndarray
    sd: np.ndarray

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return norm.logpdf(y, self.mean, self.sd)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        half = ndtri((1 + level) / 2) * self.sd
        return self.mean - half, self.mean + half


def split(table: Table, seed: int) -> tuple[Rows, list[tuple[int, list[Trial]]]]:
    """Rows to learn from, and for each K the groups to be tried on."""
    random = np.random.default_rng([seed, 1])
    names = random.permutation(np.unique(table.group))
    cut = round(2 / 3 * len(names))
    return divide(table, names[:cut], names[cut:], random)


def divide(
    table: Table, learned: np.ndarray, tried: np.ndarray, random: np.random.Generator
) -> tuple[Rows, list[tuple[int, list[Trial]]]]:
    """Rows of the groups to learn from, and for each K those to be tried on, all of them given by name."""
    train = np.isin(table.group, learned)
    rows = Rows(table.x[train].reset_index(drop=True), table.y[train], table.group[train])
    orders = [random.permutation(np.flatnonzero(table.group == name)) for name in tried]
    orders = sorted(orders, key=lambda order: len(order) < 2)[:GROUPS]
    found = []
    for known in KNOWN:
        trials = [_trial(table, o[:known], o[known : known + QUERIES]) for o in orders if len(o) > known]
        if len(trials) >= FEWEST:
            found.append((known, trials))
    return rows, found


def split_classes(table: Table, seed: int) -> tuple[Rows, list[tuple[int, list[Trial]]]]:
    """Rows of base classes, and for each K episodes of new ones."""
    random = np.random.default_rng([seed, 2])
    labels, counts = np.unique(table.y, return_counts=True)
    names = random.permutation(labels)
    new = names[: max(3, round(len(names) / 3))]
    base = ~np.isin(table.y, new)
    rows = Rows(table.x[base].reset_index(drop=True), table.y[base], table.group[base])
    smallest = int(counts[np.isin(labels, new)].min())
    found = []
    for known in KNOWN[1:]:
        if smallest < known + 2:
            continue
        trials = []
        for _ in range(EPISODES):
            support, query = [], []
            for label in random.permutation(new)[:WAYS]:
                order = random.permutation(np.flatnonzero(table.y == label))
                support.append(order[:known])
                query.append(order[known : known + PER_CLASS])
            trials.append(_trial(table, np.concatenate(support), np.concatenate(query)))
        found.append((known, trials))
    return rows, found


def _trial(table: Table, known: np.ndarray, query: np.ndarray) -> Trial:
    return Trial(table.x.iloc[known], table.y[known], table.x.iloc[query], table.y[query])


def score_real(trials: Sequence[Trial], predictions: Sequence[Density]) -> dict[str, float]:
    r"""RMSE, mean log density, coverage and mean width of 90 % intervals, over all rows predicted.

    Beside the coverage stands its standard error if the intervals are right, $\sqrt{\sum_i (h_i - 0.9\, n_i)^2} / n$
    for $h_i$ hits among the $n_i$ rows of group i: rows of one group are hit or missed together, and so a cell of a
    few groups says little, however many rows it has.
    """
    truth = np.concatenate([t.truth for t in trials])
    mean = np.concatenate([p.mean for p in predictions])
    log_p = np.concatenate([p.log_density(t.truth) for p, t in zip(predictions, trials, strict=True)])
    ends = [p.interval(LEVEL) for p in predictions]
    low, high = (np.concatenate(side) for side in zip(*ends, strict=True))
    inside = (low <= truth) & (truth <= high)
    of = np.repeat(np.arange(len(trials)), [len(t.truth) for t in trials])
    return {
        "rmse": float(np.sqrt(np.mean((truth - mean) ** 2))),
        "log_density": float(np.mean(log_p)),
        "coverage": float(np.mean(inside)),
        "coverage_error": float(np.linalg.norm(np.bincount(of, inside - LEVEL)) / len(truth)),
        "groups": len(trials),
        "width": float(np.mean(high - low)),
    }


def score_classes(
    trials: Sequence[Trial], predictions: Sequence[tuple[np.ndarray, np.ndarray]], *, bins: int = 15
) -> dict[str, float]:
    """Error, log loss, and expected calibration error (of the largest probability, bins of equal width).

    Beside the calibration error stands what chance alone makes of it, twice, its mean and its 95 % quantile. First,
    under labels drawn one by one from the predicted probabilities themselves, which are then right by construction.
    With a few hundred rows that is several per cent. But labels of one group go together: who has said yes where it
    was not expected says it again, and a cell of fifty groups says little, however many rows it has. So, second, under
    random signs of groups: where probabilities are right, the sum over a group of what hits are beyond their
    probabilities is as likely to be positive as negative, and keeps its size.
    """
    right, largest, losses, sizes = [], [], [], []
    for trial, (labels, p) in zip(trials, predictions, strict=True):
        column = {label: i for i, label in enumerate(labels.tolist())}
        places = np.array([column.get(label, -1) for label in trial.truth.tolist()])
        assigned = np.where(places >= 0, p[np.arange(len(p)), places], 0.0)
        losses.append(-np.log(np.maximum(assigned, 1e-12)))
        right.append(p.argmax(1) == places)
        largest.append(p.max(1))
        sizes.append(len(p))
    hit, sure = np.concatenate(right), np.concatenate(largest)
    drawn = np.random.default_rng(0).random((DRAWS, len(sure))) < sure
    chance = [calibration_error(labels - sure, sure, bins) for labels in drawn]
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (DRAWS, len(sizes)))
    together = [calibration_error(np.repeat(sign, sizes) * (hit - sure), sure, bins) for sign in signs]
    return {
        "error": float(1 - hit.mean()),
        "log_loss": float(np.concatenate(losses).mean()),
        "ece": calibration_error(hit - sure, sure, bins),
        "ece_chance": float(np.mean(chance)),
        "ece_chance_95": float(np.quantile(chance, 0.95)),
        "ece_groups": float(np.mean(together)),
        "ece_groups_95": float(np.quantile(together, 0.95)),
    }


def calibration_error(beyond: np.ndarray, sure: np.ndarray, bins: int) -> float:
    """The mean distance of how often predictions hit from how sure they are, over bins of equal width of the latter.

    Args:
        beyond: by how much each prediction hit more often (once, or never) than it was sure to.
        sure: the probability of the label that was predicted.
        bins: how many.
    """
    number = np.minimum((sure * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(number, beyond, minlength=bins)).sum() / len(beyond))


class Columns:
    """A table as numbers, for methods that take nothing else: learned from the rows to learn from.

    Numbers are standardised, missing ones become the mean and, where there were any, a column says so; each value of a
    column of text becomes a column of zeros and ones (unknown values: zeros).
    """

    def __init__(self, x: pd.DataFrame) -> None:
        self.parts: list[tuple[str, object]] = []
        for name in x.columns:
            column = x[name]
            if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
                values = column.to_numpy(np.float64)
                scale = np.nanstd(values)
                gaps = bool(np.isnan(values).any())
                self.parts.append((name, (np.nanmean(values), scale if scale > 0 else 1.0, gaps)))
            else:
                levels = column.astype(str).value_counts().index[:30]
                self.parts.append((name, list(levels[:-1]) if len(levels) == 2 else list(levels)))
        self.smooth = [i for i, varied in enumerate(self._varied(x)) if varied]

    def __call__(self, x: pd.DataFrame) -> np.ndarray:
        columns = [np.zeros((len(x), 0))]
        for name, what in self.parts:
            if isinstance(what, tuple):
                mean, scale, gaps = what
                z = (x[name].to_numpy(np.float64) - mean) / scale
                columns.append(np.nan_to_num(z)[:, None])
                if gaps:
                    columns.append(np.isnan(z)[:, None].astype(np.float64))
            else:
                columns.append((x[name].astype(str).to_numpy()[:, None] == np.array(what)[None]).astype(np.float64))
        return np.concatenate(columns, 1)

    def _varied(self, x: pd.DataFrame) -> Iterator[bool]:
        """Whether a column of numbers has enough values for a curve."""
        for name, what in self.parts:
            if isinstance(what, tuple):
                yield x[name].nunique() > 5
                yield from [False] * what[2]
            else:
                yield from [False] * len(what)
