"""`python -m benchmarks embeddings`: new classes by features of a frozen network, with all defaults.

A user has arrays: features of pictures, made by a network of somebody else's. `FewShotClassifier().fit(X, y)` learns
from some classes, `adapt` gets one or five pictures of each of five others. Beside it stands what one would pick
instead, on the same tasks:

* **logistic regression**, of scikit-learn with its defaults, on the few pictures;
* the same on features that are standardised by what the classes of `fit` are like, with the strength of its penalty
  chosen on tasks of those classes, one for each number of shots;
* **nearest centroids** by the cosine, whose probabilities have the temperature that is best on such tasks.

Networks are the two that come with the package, features those that `metavib embed` writes. They have trained on none
of the classes here: mini-ImageNet (16 classes of its validation to learn from, 20 of its test to be tested on), CUB (50
and 50), EMNIST (31 and 31). Needs these datasets; where one is missing, it is left out.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from metavib import FewShotClassifier
from metavib.data import Labelled, characters, photographs
from metavib.data.labelled import select_classes
from metavib.files import write_json
from metavib.networks.weights import Network
from metavib.show.tables import markdown
from metavib.training import bundled, metrics, run_folder, runs
from metavib.training.embedding import View, features
from metavib.training.temperature import fit_temperature

RESULTS = Path(__file__).parent / "results"
EACH = 40  # pictures of a class
WAYS, SHOTS, QUERIES = 5, (1, 5), 10
CHOOSING = 60  # tasks of the classes of fit, that baselines choose by
PENALTIES = tuple(10.0**n for n in range(-4, 3))


class Episode(NamedTuple):
    """Rows and labels of a task, and the rows and labels to predict."""

    x: np.ndarray
    y: np.ndarray
    query: np.ndarray
    truth: np.ndarray


class Method(Protocol):
    """Gives probabilities `(v, WAYS)` of the classes 0 to 4 at the queries of an episode."""

    def __call__(self, episode: Episode) -> np.ndarray: ...


def episodes(x: np.ndarray, y: np.ndarray, shots: int, count: int, seed: int) -> Iterator[Episode]:
    """Tasks of five classes, always the same ones."""
    rng, rows = np.random.default_rng(seed), [np.flatnonzero(y == c) for c in range(int(y.max()) + 1)]
    for _ in range(count):
        drawn = [rng.permutation(rows[c])[: shots + QUERIES] for c in rng.permutation(len(rows))[:WAYS]]
        few, rest = (np.concatenate(part) for part in ([d[:shots] for d in drawn], [d[shots:] for d in drawn]))
        yield Episode(x[few], np.repeat(np.arange(WAYS), shots), x[rest], np.repeat(np.arange(WAYS), QUERIES))


def ours(x: np.ndarray, y: np.ndarray, shots: int) -> Method:
    """`FewShotClassifier` with nothing said but a seed."""
    model = FewShotClassifier(random_state=0).fit(x, y)
    return lambda episode: model.adapt(episode.x, episode.y).predict_proba(episode.query)


def logistic(x: np.ndarray, y: np.ndarray, shots: int) -> Method:
    """Logistic regression as it comes."""
    return lambda episode: LogisticRegression(max_iter=1000).fit(episode.x, episode.y).predict_proba(episode.query)


def chosen_logistic(x: np.ndarray, y: np.ndarray, shots: int) -> Method:
    """Logistic regression of standardised features, its penalty chosen on tasks of known classes."""
    mean, sd = x.mean(0), x.std(0) + 1e-6

    def with_penalty(C: float) -> Method:
        def predict(episode: Episode) -> np.ndarray:
            fitted = LogisticRegression(C=C, max_iter=1000).fit((episode.x - mean) / sd, episode.y)
            return fitted.predict_proba((episode.query - mean) / sd)

        return predict

    known = list(episodes(x, y, shots, CHOOSING, seed=1))
    return min((with_penalty(C) for C in PENALTIES), key=lambda method: scores(method, known)["nll"])


def centroids(x: np.ndarray, y: np.ndarray, shots: int) -> Method:
    """Nearest centroids by the cosine, at the temperature that is best on tasks of known classes."""

    def cosines(episode: Episode) -> np.ndarray:
        unit, at = (part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (episode.x, episode.query))
        means = unit.reshape(WAYS, -1, unit.shape[-1]).mean(1)
        return at @ (means / np.linalg.norm(means, axis=-1, keepdims=True)).T

    known = list(episodes(x, y, shots, CHOOSING, seed=1))
    logits = torch.from_numpy(np.stack([cosines(episode) for episode in known]))
    T = fit_temperature(logits.softmax(-1), torch.from_numpy(np.stack([episode.truth for episode in known])))
    return lambda episode: np.exp(log_softmax(cosines(episode) / T, axis=-1))


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, int], Method]] = {
    "FewShotClassifier": ours,
    "nearest centroids, T chosen": centroids,
    "logistic regression": logistic,
    "logistic regression, standardised, C chosen": chosen_logistic,
}


def scores(method: Method, tasks: list[Episode]) -> dict[str, float]:
    """Accuracy, NLL and ECE over all queries."""
    p = torch.from_numpy(np.stack([method(episode) for episode in tasks]).astype(np.float64))
    y = torch.from_numpy(np.stack([episode.truth for episode in tasks]))
    return {
        "accuracy": float(metrics.accuracy(p, y).mean()),
        "nll": float(metrics.nll(p, y).mean()),
        "ece": metrics.ece(p, y),
    }


def datasets() -> dict[str, Callable[[], tuple[str, Labelled, Labelled]]]:
    """The network, the classes to learn from and those to be tested on, of each dataset."""

    def emnist() -> tuple[str, Labelled, Labelled]:
        written = characters.emnist(ink=True)
        even, odd = (select_classes(written, range(part, written.classes, 2)) for part in (0, 1))
        return "characters", even, odd

    return {
        "mini-ImageNet": lambda: (
            "photographs",
            photographs.mini_imagenet("val"),
            photographs.mini_imagenet("test"),
        ),
        "CUB": lambda: ("photographs", photographs.cub("val"), photographs.cub("novel")),
        "EMNIST": emnist,
    }


def embedded(network: str, data: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of some pictures of each class, as `metavib embed` makes them."""
    saved = run_folder.chosen(bundled.folder_of(network))
    inner = [m for m in run_folder.selected(bundled.folder_of(network)).modules() if isinstance(m, Network)][-1]
    kept = torch.cat([(data.labels == c).nonzero().flatten()[:EACH] for c in range(data.classes)])
    phi = features(inner, data.images[kept], saved.config.tasks, View(saved.config.tasks.size))
    return phi.numpy(), data.labels[kept].numpy()


def measure(tasks: int, only: str = "") -> list[dict[str, Any]]:
    """A row for each dataset, number of shots and method."""
    rows = []
    for name, load in datasets().items():
        if only not in name:
            continue
        try:
            network, *parts = load()
        except FileNotFoundError as missing:
            print(f"without {name}: {missing}")
            continue
        (x, y), (x_new, y_new) = (embedded(network, part) for part in parts)
        for shots in SHOTS:
            tested = list(episodes(x_new, y_new, shots, tasks, seed=0))
            for method, learn in METHODS.items():
                found = scores(learn(x, y, shots), tested)
                rows.append({"data": name, "network": network, "shots": shots, "method": method, **found})
                print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""

    def cell(row: Mapping[str, Any]) -> str:
        return f"{100 * row['accuracy']:.1f}, {row['nll']:.3f}, {100 * row['ece']:.1f}"

    cases = list(dict.fromkeys((row["data"], row["shots"]) for row in rows))
    lines = [
        [data, str(shots)]
        + [cell(row) for m in METHODS for row in rows if (row["data"], row["shots"], row["method"]) == (data, shots, m)]
        for data, shots in cases
    ]
    return markdown(["accuracy %, NLL, ECE %", "shots", *METHODS], lines)


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints the table, writes it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks embeddings", description=__doc__)
    parser.add_argument("--tasks", type=int, default=300, help="of each dataset and number of shots (300)")
    parser.add_argument("--only", default="", metavar="TEXT", help="datasets with this in their name; writes no files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    rows = measure(options.tasks, options.only)
    print("\n" + table(rows))
    if not options.only:
        options.out.mkdir(parents=True, exist_ok=True)
        found = {"tasks": options.tasks, "machine": runs.machine("cpu"), "rows": rows}
        write_json(options.out / "embeddings.json", found)
        note = f"Five-way tasks, {options.tasks} of each dataset and number of shots, on {found['machine']}.\n"
        (options.out / "embeddings.md").write_text(f"{table(rows)}\n\n{note}", encoding="utf-8")
