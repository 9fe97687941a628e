"""`python -m benchmarks when-not`: where metavib is the wrong tool, in numbers.

Four situations, each made so that one number decides how well it suits metavib, and each with what one should take
instead. Rows have six columns; an output is the sum of a part that all groups share, a part of the group's own and
noise, and how large each part is, is known, since it is made here. Errors are root mean squares over what is not noise,
of groups that were not learned from, divided by what always predicting the mean makes. Everything has its defaults.

* **few groups**: 2 to 64 groups of 20 rows to learn from, lines with a slope and a level of each group's own; five rows
  of a new group are known. Instead: a mixed model with just these effects (statsmodels).
* **one big task**: groups that mean nothing: one relation, and rows that are dealt out among 20 "groups"; none of a new
  one is known. Instead: boosted trees of all rows.
* **many labels each**: 40 groups to learn from, whose parts are curves of their own; 3 to 300 rows of a new group are
  known. Instead: a Gaussian process of the new group's rows alone.
* **a strong pooled signal**: steps and products of the columns, which all 40 groups share, are a share of the output,
  from none to all of it; five rows of a new group are known. Instead: boosted trees of all rows, plus an offset.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metavib import FewShotRegressor
from metavib.show.tables import markdown
from metavib.training.runs import machine

COLUMNS, NOISE, TESTED, NEW_ROWS = 6, 0.3, 20, 50  # columns, noise's deviation, new groups, rows of each to predict
OURS = "metavib"


class Groups(NamedTuple):
    """Rows of many groups.

    Args:
        x: `(groups, rows, columns)`.
        f: what is not noise, `(groups, rows)`.
        y: with noise.
    """

    x: np.ndarray
    f: np.ndarray
    y: np.ndarray

    def split(self, rows: int) -> tuple["Groups", "Groups"]:
        """The first rows of each group, and the others."""
        return Groups(*(a[:, :rows] for a in self)), Groups(*(a[:, rows:] for a in self))


class Situation(NamedTuple):
    """One way of not suiting metavib.

    Args:
        name: of the situation.
        size: what the number is that decides.
        sizes: those that are tried.
        make: from a size and a generator to groups to learn from, new groups, and how many rows of these are known.
        instead: the name of what to take instead, and a function from training groups, known rows and inputs to
            predictions.
    """

    name: str
    size: str
    sizes: tuple[float, ...]
    make: Callable[[float, np.random.Generator], tuple[Groups, Groups, int]]
    instead: tuple[str, Callable[[Groups, Groups, np.ndarray], np.ndarray]]


# What groups share, and what is their own


def lines(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A level and a slope of each group."""
    level, slope = rng.normal(size=(2, len(x), 1))
    return 0.7 * (level + slope * x[..., 0])


def curves(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A smooth function of two columns for each group, of variance about one."""
    w, b = rng.normal(size=(len(x), 2, 100)), rng.uniform(0, 2 * np.pi, (len(x), 1, 100))
    amplitude = rng.normal(size=(len(x), 1, 100)) * np.sqrt(2 / 100)
    return (amplitude * np.cos(x[..., :2] @ w + b)).sum(-1)


def steps(x: np.ndarray) -> np.ndarray:
    """Steps and products of the columns, of variance about one."""
    f = (
        1.0 * (x[..., 0] > 0.3) * (x[..., 1] < 0.5)
        + 0.8 * (x[..., 2] > 0) * np.sign(x[..., 3])
        + 0.6 * (x[..., 4] > 0.8)
    )
    return (f - 0.4) / 0.85


def made(rows: tuple[int, int], f: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator) -> Groups:
    """Rows of some groups, their function and noisy outputs."""
    x = rng.normal(size=(*rows, COLUMNS))
    truth = f(x)
    return Groups(x, truth, truth + NOISE * rng.normal(size=truth.shape))


def few_groups(groups: float, rng: np.random.Generator) -> tuple[Groups, Groups, int]:
    """Lines, of ever more groups."""
    f = lambda x: lines(x, rng) + 0.7 * x[..., 1]  # noqa: E731
    return made((int(groups), 20), f, rng), made((TESTED, 5 + NEW_ROWS), f, rng), 5


def one_task(rows: float, rng: np.random.Generator) -> tuple[Groups, Groups, int]:
    """One relation, whose rows are dealt out."""
    return made((20, int(rows) // 20), steps, rng), made((TESTED, NEW_ROWS), steps, rng), 0


def many_labels(known: float, rng: np.random.Generator) -> tuple[Groups, Groups, int]:
    """Curves of each group, of which ever more is known."""
    f = lambda x: curves(x, rng)  # noqa: E731
    return made((40, 30), f, rng), made((TESTED, int(known) + NEW_ROWS), f, rng), int(known)


def pooled(share: float, rng: np.random.Generator) -> tuple[Groups, Groups, int]:
    """A share of the variance is of steps that all groups have; the rest are lines of each."""
    f = lambda x: np.sqrt(share) * steps(x) + np.sqrt(1 - share) * lines(x, rng)  # noqa: E731
    return made((40, 50), f, rng), made((TESTED, 5 + NEW_ROWS), f, rng), 5


# What to take instead


def mixed(train: Groups, known: Groups, x: np.ndarray) -> np.ndarray:
    """A mixed model of all columns with a level and a slope of each group; those of a new one from its known rows."""
    import pandas as pd
    import statsmodels.formula.api as smf

    names = [f"x{i}" for i in range(COLUMNS)]
    table = pd.DataFrame(train.x.reshape(-1, COLUMNS), columns=names)
    table["y"], table["group"] = train.y.ravel(), np.repeat(np.arange(len(train.x)), train.x.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of few groups, which is what is asked
        model = smf.mixedlm("y ~ " + " + ".join(names), table, groups=table["group"], re_formula="~x0").fit(reml=True)
    spread, noise = model.cov_re.to_numpy(), float(model.scale)
    found = []
    for its_x, its_y, at in zip(known.x, known.y, x, strict=True):
        z, z_at = (np.stack([np.ones(len(rows)), rows[:, 0]], 1) for rows in (its_x, at))
        fixed, fixed_at = (model.params["Intercept"] + rows @ model.params[names].to_numpy() for rows in (its_x, at))
        own = spread @ z.T @ np.linalg.solve(z @ spread @ z.T + noise * np.eye(len(z)), its_y - fixed)
        found.append(fixed_at + z_at @ own)
    return np.stack(found)


def boosting(train: Groups, known: Groups, x: np.ndarray) -> np.ndarray:
    """Boosted trees of all rows; where rows of the new group are known, plus their mean residual, shrunk."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(random_state=0).fit(train.x.reshape(-1, COLUMNS), train.y.ravel())
    found = trees.predict(x.reshape(-1, COLUMNS)).reshape(x.shape[:2])
    n = known.x.shape[1]
    if n:
        residual = known.y - trees.predict(known.x.reshape(-1, COLUMNS)).reshape(known.y.shape)
        found = found + residual.sum(1, keepdims=True) / (n + 1)
    return found


def alone(train: Groups, known: Groups, x: np.ndarray) -> np.ndarray:
    """A Gaussian process of the known rows of the new group, a lengthscale for each column."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lengthscales at their bounds: columns that do not matter
        for its_x, its_y, at in zip(known.x, known.y, x, strict=True):
            kernel = ConstantKernel() * RBF(np.ones(COLUMNS), (0.1, 100)) + WhiteKernel()
            found.append(GaussianProcessRegressor(kernel, normalize_y=True).fit(its_x, its_y).predict(at))
    return np.stack(found)


def ours(train: Groups, known: Groups, x: np.ndarray) -> np.ndarray:
    """FewShotRegressor with its defaults."""
    ids = np.repeat(np.arange(len(train.x)), train.x.shape[1])
    model = FewShotRegressor(random_state=0).fit(train.x.reshape(-1, COLUMNS), train.y.ravel(), tasks=ids)
    if not known.x.shape[1]:
        return model.predict(x.reshape(-1, COLUMNS)).reshape(x.shape[:2])
    pairs = zip(known.x, known.y, x, strict=True)
    return np.stack([model.adapt(its_x, its_y).predict(at) for its_x, its_y, at in pairs])


SITUATIONS = (
    Situation("few groups", "groups to learn from", (2, 4, 8, 16, 64), few_groups, ("mixed model", mixed)),
    Situation("one big task", "rows in all", (200, 1_000, 4_000), one_task, ("boosted trees", boosting)),
    Situation("many labels each", "known rows", (3, 10, 30, 100, 300), many_labels, ("GP of these rows", alone)),
    Situation(
        "a strong pooled signal", "share of it", (0.0, 0.5, 0.9, 1.0), pooled, ("boosted trees + offset", boosting)
    ),
)


def measure(situation: Situation, size: float, seed: int) -> list[dict[str, Any]]:
    """The error and the seconds of both."""
    train, new, rows = situation.make(size, np.random.default_rng([seed, int(1000 * size)]))
    known, rest = new.split(rows)
    found = []
    for name, predict in ((OURS, ours), situation.instead):
        start = time.perf_counter()
        predicted = predict(train, known, rest.x)
        seconds = time.perf_counter() - start
        error = float(np.sqrt(np.mean((predicted - rest.f) ** 2)) / rest.f.std())
        row = {"situation": situation.name, "size": size, "seed": seed, "method": name}
        found.append(row | {"error": error, "seconds": seconds})
    return found


def mean(rows: list[dict[str, Any]], situation: str, size: float, method: str, what: str = "error") -> float:
    """Over the seeds."""
    mine = [r[what] for r in rows if (r["situation"], r["size"], r["method"]) == (situation, size, method)]
    return float(np.mean(mine))


def table(result: dict[str, Any]) -> str:
    """The errors as Markdown."""
    lines = []
    for situation in SITUATIONS:
        for size in situation.sizes:
            other, rows = situation.instead[0], result["rows"]
            cells = [f"{mean(rows, situation.name, size, m):.2f}" for m in (OURS, other)]
            spent = [f"{mean(rows, situation.name, size, m, 'seconds'):.1f}" for m in (OURS, other)]
            lines.append([situation.name, f"{size:g} {situation.size}", cells[0], other, cells[1], *spent])
    header = ["situation", "", "metavib", "instead", "its error", "metavib, s", "instead, s"]
    note = (
        f"Errors over that of predicting the mean; {result['seeds']} made data sets of each; seconds to learn and to "
        f"predict {TESTED} new groups, on {result['machine']}{', which others were using too' * result['shared']}."
    )
    return markdown(header, lines) + f"\n\n{note}\n"


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints the table, writes it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks when-not", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="made data sets of each (3)")
    parser.add_argument("--shared", action="store_true", help="say in the table that others use the machine too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    options = parser.parse_args(arguments)
    rows = []
    for situation in SITUATIONS:
        for size in situation.sizes:
            for seed in range(options.seeds):
                rows += measure(situation, size, seed)
            print(f"{situation.name}, {size:g} {situation.size}", flush=True)
    result = {"machine": machine("cpu"), "shared": options.shared, "seeds": options.seeds, "rows": rows}
    print("\n" + table(result))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "when-not.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (options.out / "when-not.md").write_text(table(result), encoding="utf-8")
