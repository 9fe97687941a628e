"""`python -m benchmarks.tables.few`: how good predictions are where there are few groups to learn from.

The tables are those that defaults are chosen on, so that what is seen here may be chosen by. Of each table with
enough groups a few are drawn at random to learn from, some times anew, and others to be tried on, as in
`benchmarks.tables.protocol`. Few groups say little, and so the same table differs much from draw to draw: what counts
is the mean over tables, and its standard error is that of tables, each with the mean of its draws.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.tables.data import Table, load
from benchmarks.tables.lists import DEVELOPMENT
from benchmarks.tables.ours import Regressor
from benchmarks.tables.protocol import Rows, Trial, divide, score_real
from benchmarks.tables.regression import METHODS
from benchmarks.tables.run import OURS

KNOWN = (0, 1, 3)
LEARNED, TRIED, DRAWS = 8, 10, 3
FEWEST = 4  # groups to be tried on, at least
LOWEST = -10.0  # of the mean log density of a draw: a few rows believed impossible would be all that counts
PEERS = ("ridge + offset", "kNN + offset", "boosting + offset", "boosting + group mean", "mixed, linear")
Scores = dict[tuple[str, int, int], dict[str, float]]  # by table, draw and K


def enough(table: Table) -> np.ndarray:
    """The names of the groups that count at every K, since they have more rows than that."""
    names, counts = np.unique(table.group, return_counts=True)
    return names[counts > max(KNOWN)]


def draw(table: Table, groups: int, seed: int) -> tuple[Rows, list[tuple[int, list[Trial]]]]:
    """Rows of some groups to learn from, drawn at random, and for each K others to be tried on."""
    random = np.random.default_rng([seed, 3])
    names = random.permutation(enough(table))
    rows, trials = divide(table, names[:groups], names[groups : groups + TRIED], random)
    return rows, [(known, of) for known, of in trials if known in KNOWN]


def measure(
    make: Callable[[], Any], tables: Iterable[Table], groups: int, draws: int
) -> tuple[Scores, dict[str, float]]:
    """A method's scores on each draw of each table, and the seconds that it learned for on each table.

    Errors are in standard deviations of the outputs learned from, and densities are those of such outputs.
    """
    found: Scores = {}
    seconds: dict[str, float] = defaultdict(float)
    for table in tables:
        for seed in range(draws):
            rows, trials = draw(table, groups, seed)
            scale, start = float(rows.y.std()) or 1.0, time.perf_counter()
            model = make().fit(rows)
            seconds[table.name] += (time.perf_counter() - start) / draws
            for known, of in trials:
                score = score_real(of, model.predict(of))
                found[table.name, seed, known] = {
                    "rmse": score["rmse"] / scale,
                    "log density": max(score["log_density"] + float(np.log(scale)), LOWEST),
                    "coverage": score["coverage"],
                }
    return found, seconds


def mean_and_error(values: dict[tuple[str, int, int], float], known: int) -> tuple[float, float]:
    """The mean over tables of the means over their draws at some K, and its standard error."""
    of: dict[str, list[float]] = defaultdict(list)
    for (table, _, k), value in values.items():
        if k == known:
            of[table].append(value)
    means = [float(np.mean(each)) for each in of.values()]
    return float(np.mean(means)), float(np.std(means, ddof=1) / np.sqrt(len(means)))


def summary(found: dict[str, Scores]) -> str:
    """Errors over the best method's on the same draw, densities and coverage of each method at each K."""
    best = {cell: min(of[cell]["rmse"] for of in found.values()) for cell in next(iter(found.values()))}
    columns: dict[str, Callable[[Scores], dict[Any, float]]] = {
        "RMSE over the best, logarithm": lambda of: {c: float(np.log(s["rmse"] / best[c])) for c, s in of.items()},
        "log density": lambda of: {c: s["log density"] for c, s in of.items()},
        "coverage": lambda of: {c: s["coverage"] for c, s in of.items()},
    }
    lines = []
    for title, value in columns.items():
        lines += [
            "",
            f"| {title} | " + " | ".join(f"K = {k}" for k in KNOWN) + " |",
            "| --- |" + " ---: |" * len(KNOWN),
        ]
        for method, of in found.items():
            cells = [mean_and_error(value(of), known) for known in KNOWN]
            lines.append(f"| {method} | " + " | ".join(f"{mean:.3f} ± {error:.3f}" for mean, error in cells) + " |")
    return "\n".join(lines[1:])


def main(arguments: list[str] | None = None) -> None:
    """Prints the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables.few", description=__doc__)
    parser.add_argument("--groups", type=int, default=LEARNED, help="groups to learn from")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the groups of each table")
    parser.add_argument("--tables", nargs="*", metavar="NAME", help="only these of the tables")
    options = parser.parse_args(arguments)
    names = options.tables or [name for name, source in DEVELOPMENT.items() if source.kind == "real"]
    tables = [t for t in map(load, names) if len(enough(t)) >= options.groups + FEWEST]
    found = {}
    for method, make in {OURS: Regressor, **{name: METHODS[name] for name in PEERS}}.items():
        found[method], seconds = measure(make, tables, options.groups, options.draws)
        slowest = max(seconds, key=seconds.__getitem__)
        print(f"{method}: {sum(seconds.values()):.0f} s, {slowest} {seconds[slowest]:.1f} s", file=sys.stderr)
    print(f"{len(tables)} tables, {options.groups} groups to learn from, {options.draws} draws of each.\n")
    print(summary(found))


if __name__ == "__main__":
    main()
