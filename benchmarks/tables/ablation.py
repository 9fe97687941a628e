r"""`python -m benchmarks.tables.ablation`: what each part of the prior for tables is worth.

Everything is as `FewShotRegressor()` and `FewShotClassifier()` have it by default, but for one thing at a time:

* **a zero mean**: kernels as learned, but what groups share has its prior again, as if no group had been seen;
* **a point estimate**: what groups share is its mean, known without doubt;
* **noise of 0.21 at least**: of outputs of variance 1, as small as the noise of a network used to get;
* **lines alone**: no curves and no joint process, as in a linear mixed model with random slopes;
* **as they are**: no logarithms, square roots or logits, of columns or outputs;
* **Gaussian**: no tails, and variances that a group's own rows do not change;
* **a network**: the default of before, features of an MLP learned from episodes under a zero mean, at the learning rate
  of before and at five times it. On classes that groups have in common it permutes labels, and learns no base rate.

On made groups the best possible prediction is known: that of who knows the shared function and all variances. Beside
them stand some of the real tables that defaults are chosen on.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.tables import data, ours, protocol
from benchmarks.tables.protocol import Density, Gauss, Rows, Trial
from metavib.adapt.learner import Learner
from metavib.groups import features, learning, outliers
from metavib.groups.prior import Hierarchy, likelihood, link_of
from metavib.kernels import Given
from metavib.model import Model
from metavib.show.tables import markdown
from metavib.tasks import examples
from metavib.training.runs import machine

RESULTS = Path(__file__).parents[1] / "results"
LEVEL, SLOPE, NOISE = 1.0, 0.5, 0.1  # standard deviations of made groups
REAL = ("Loblolly", "Dialyzer", "Cigarette", "ticks", "RatPup", "cake")
CLASSES = ("bacteria", "ohio")
NEW = ("athletes", "glass")
WHOLE, BEST = "as it is", "the best possible"


class Variant(NamedTuple):
    """One thing that is otherwise: options of the estimator, what is done while it learns, or to what it learned."""

    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    meanwhile: Callable[[], AbstractContextManager[Any]] = nullcontext
    afterwards: Callable[[Model], None] = lambda model: None


def _hierarchy(model: Model) -> Hierarchy:
    body = model.prior.network.body  # type: ignore[union-attr]
    assert isinstance(body, Hierarchy)
    return body


def zero_mean(model: Model) -> None:
    """What groups share has its prior again: w ~ N(0, I)."""
    body = _hierarchy(model)
    shared = len(body.w)
    block = torch.zeros(len(body.root), shared, dtype=body.root.dtype)
    block[:shared] = torch.eye(shared)
    own = body.root.clone()
    own[:shared] = 0
    body.w.zero_()
    body.root = torch.cat([block, own], 1)
    body.features = body.root.shape[1] + 1 + ("anchors" in body._buffers)
    _without_start(model)


def point_estimate(model: Model) -> None:
    """What groups share is known without doubt: V = 0."""
    body = _hierarchy(model)
    body.root[: len(body.w)] = 0


def much_noise(model: Model) -> None:
    """Noise of a standard deviation of 0.21 at least."""
    noise = float(model.likelihood.noise())  # type: ignore[operator]
    model.likelihood = likelihood(max(noise, 0.21**2), link_of(model)).requires_grad_(False)


def gaussian(model: Model) -> None:
    """No tails: the degrees of freedom are forgotten."""
    kernel = model.prior.kernel
    assert isinstance(kernel, Given)
    model.prior.kernel = Given(None, kernel.start)


def _without_start(model: Model) -> None:
    """Nothing is added to the mean before the first row."""
    if "anchors" in (body := _hierarchy(model))._buffers:
        body.weights.zero_()
        body.share.fill_(1.0)


@contextmanager
def lines_alone() -> Iterator[None]:
    """Features without curves and without a joint process."""

    def no_centres(x: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
        return x[:0]

    def flat(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> features.Layout:
        return features.layout(x, y, group)._replace(curved=[])

    with patch.object(features, "_centres", no_centres), patch.object(learning, "layout", flat):
        yield


@contextmanager
def as_they_are() -> Iterator[None]:
    """Nothing is tried in the place of columns and outputs."""
    nothing: Callable[..., Any] = lambda *_: []  # noqa: E731
    with patch.object(outliers, "links", nothing), patch.object(learning, "skewed", lambda *_: {}):
        yield


REGRESSORS = {
    WHOLE: Variant(),
    "a zero mean": Variant(afterwards=zero_mean),
    "a point estimate": Variant(afterwards=point_estimate),
    "noise of 0.21 at least": Variant(afterwards=much_noise),
    "lines alone": Variant(meanwhile=lines_alone),
    "as they are": Variant(meanwhile=as_they_are),
    "Gaussian": Variant(afterwards=gaussian),
    "a network": Variant({"backbone": "mlp"}),
    "a network, larger rate": Variant({"backbone": "mlp", "learning_rate": 1e-2}),
}
CLASSIFIERS = {
    WHOLE: Variant(),
    "a network": Variant({"backbone": "mlp"}),
    "a network, larger rate": Variant({"backbone": "mlp", "learning_rate": 1e-2}),
}


class Otherwise(ours.Regressor):
    """`FewShotRegressor()` with one thing otherwise."""

    def __init__(self, variant: Variant) -> None:
        super().__init__(**variant.options)
        self.variant = variant

    def fit(self, rows: Rows) -> "Otherwise":
        with self.variant.meanwhile():
            super().fit(rows)
        if not self.options:
            self._change()
        return self

    def _change(self) -> None:
        """Changes what was learned, and starts anew at a task of which nothing is known."""
        model, none = self.model.model_, torch.zeros(0, _hierarchy(self.model.model_).phi.sizes.columns)
        self.variant.afterwards(model)
        self.model.learner_ = Learner(model)
        self.model.predictor_ = self.model.learner_.adapt(examples(none.double(), torch.zeros(0).double()))


# Made groups


def shared(x: np.ndarray) -> np.ndarray:
    """What made groups share."""
    return np.sin(2 * x) + 0.5 * x


def made(groups: int, seed: int) -> data.Table:
    """Groups of 16 rows that share a curve, each with a level and a slope of its own and little noise."""
    import pandas as pd

    random = np.random.default_rng([seed, groups])
    group, x = np.repeat(np.arange(groups), 16), random.uniform(-2, 2, 16 * groups)
    own = random.normal(size=(groups, 2)) * [LEVEL, SLOPE]
    y = shared(x) + own[group, 0] + own[group, 1] * x + NOISE * random.normal(size=len(x))
    return data.Table(f"made, {groups} groups", "real", pd.DataFrame({"x": x}), y, group)


class Best:
    """The best possible prediction of made groups: all is known but a group's own level and slope."""

    def fit(self, rows: Rows) -> "Best":
        return self

    def predict(self, trials: Sequence[Trial]) -> list[Density]:
        return [self._of(t) for t in trials]

    def _of(self, t: Trial) -> Gauss:
        z, at = (np.stack([np.ones(len(rows)), rows["x"].to_numpy()], 1) for rows in (t.x, t.query))
        spread = np.diag([LEVEL**2, SLOPE**2])
        posterior = np.linalg.inv(np.linalg.inv(spread) + z.T @ z / NOISE**2)
        mean = posterior @ z.T @ (t.y - shared(t.x["x"].to_numpy())) / NOISE**2
        variance = np.einsum("ij,jk,ik->i", at, posterior, at) + NOISE**2
        return Gauss(shared(t.query["x"].to_numpy()) + at @ mean, np.sqrt(variance))


# What came out


def measure(table: data.Table, seed: int, name: str, model: Any) -> dict[str, Any]:
    """The scores of one variant on one division of a table."""
    print(f"{table.name}, division {seed}: {name}", file=sys.stderr, flush=True)
    rows, trials = (protocol.split_classes if table.kind == "new" else protocol.split)(table, seed)
    score = protocol.score_real if table.kind == "real" else protocol.score_classes
    fitted = model.fit(rows)
    scores = {str(known): score(groups, fitted.predict(groups)) for known, groups in trials}
    return {"table": table.name, "kind": table.kind, "division": seed, "variant": name, "scores": scores}


def all_of_it(divisions: int) -> list[dict[str, Any]]:
    """Every variant on every table."""
    found = []
    for seed in range(divisions):
        of_made = [made(groups, seed) for groups in (12, 60)]
        for table in [*of_made, *(data.load(name) for name in REAL)]:
            found += [measure(table, seed, name, Otherwise(variant)) for name, variant in REGRESSORS.items()]
        found += [measure(table, seed, BEST, Best()) for table in of_made]
        for table in (data.load(name) for name in (*CLASSES, *NEW)):
            found += [
                measure(table, seed, name, ours.Classifier(**variant.options)) for name, variant in CLASSIFIERS.items()
            ]
    return found


def mean_of(rows: list[dict[str, Any]], table: str, variant: str, known: int, score: str) -> float | None:
    """Over the divisions; None where no group has so many rows."""
    mine = [r["scores"] for r in rows if (r["table"], r["variant"]) == (table, variant)]
    values = [s[str(known)][score] for s in mine if str(known) in s]
    return float(np.mean(values)) if values else None


def report(result: dict[str, Any]) -> str:
    """The tables as Markdown."""
    rows, parts = result["rows"], ["# What each part of the prior for tables is worth"]
    parts.append(
        f"`python -m benchmarks.tables.ablation`, {result['divisions']} divisions of each table, {result['machine']}. "
        "One thing is otherwise in each line; `benchmarks/tables/ablation.py` says what."
    )
    of = {
        kind: list(dict.fromkeys(r["table"] for r in rows if r["kind"] == kind)) for kind in ("real", "classes", "new")
    }
    simulated = [name for name in of["real"] if name.startswith("made")]
    for name in simulated:
        for score, title in (("rmse", "RMSE"), ("log_density", "log density")):
            lines = [
                [variant, *_cells(rows, [name], variant, lambda value, _: value, score)]
                for variant in (BEST, *REGRESSORS)
            ]
            parts.append(_table(f"{name}: {title}", lines))
    real = [name for name in of["real"] if name not in simulated]
    for score, title, against in (
        ("rmse", "RMSE over that of the default, geometric mean", lambda value, whole: np.log(value / whole)),
        ("log_density", "log density beyond that of the default, mean", lambda value, whole: value - whole),
    ):
        lines = [[variant, *_cells(rows, real, variant, against, score)] for variant in REGRESSORS if variant != WHOLE]
        parts.append(_table(f"{len(real)} real tables: {title}", lines))
    for kind, title in (("classes", "classes that groups have in common"), ("new", "new classes")):
        for name in of[kind]:
            lines = [[v, *_cells(rows, [name], v, lambda value, _: value, "log_loss")] for v in CLASSIFIERS]
            parts.append(_table(f"{name}, {title}: log loss", lines))
    return "\n\n".join(parts) + "\n"


def _cells(
    rows: list[dict[str, Any]],
    tables: Sequence[str],
    variant: str,
    against: Callable[[float, float], float],
    score: str,
) -> list[str]:
    """The mean over tables at each K; of logarithms of ratios the ratio."""
    found = []
    for known in protocol.KNOWN:
        pairs = [(mean_of(rows, t, variant, known, score), mean_of(rows, t, WHOLE, known, score)) for t in tables]
        values = [against(value, whole) for value, whole in pairs if value is not None and whole is not None]
        mean = float(np.mean(values)) if values else None
        ratio = score == "rmse" and len(tables) > 1
        found.append("" if mean is None else f"{np.exp(mean):.2f}" if ratio else f"{mean:.3f}")
    return found


def _table(title: str, lines: list[list[str]]) -> str:
    kept = [i for i in range(len(protocol.KNOWN)) if any(line[1 + i] for line in lines)]
    header = [title, *(f"K = {protocol.KNOWN[i]}" for i in kept)]
    return markdown(header, [[line[0], *(line[1 + i] for i in kept)] for line in lines])


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables, and writes them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables.ablation", description=__doc__)
    parser.add_argument("--divisions", type=int, default=2, help="of the groups of each table (2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    result = {"divisions": options.divisions, "machine": machine("cpu"), "rows": all_of_it(options.divisions)}
    (options.out / "tables-ablation.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = report(result)
    (options.out / "tables-ablation.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
