"""`python -m benchmarks images`: pictures of one's own with all defaults, beside what a user would pick instead.

Three folders of pictures that need no download, written to disk as a user would have them, and read by the very command
a user would type, `metavib train images --root DIR`, with nothing set but the time:

* **glyphs**: 60 characters of matplotlib's fonts, in twenty faces each;
* **digits**: scikit-learn's digits, ten classes of 8 x 8 pixels, of which three are tested on;
* **drawings**: 45 shapes of random strokes, each drawn 14 times by a shaking hand, in a style of its own: ink on paper,
  chalk on a board, or a broad felt pen in colour.

Each method is trained for as long, twice: as it is by default, which is from the network of the model `characters` that
comes with the package where that is good for such pictures (`metavib.training.protocols.pictures.started`), and from
random weights. The baselines of pixels, a logistic regression of what ProtoNet's network sees, and that model itself
see no training here. Test classes are never trained on. All numbers are of one training.

With data at hand two more folders: `--emnist FILE`, scans of handwriting, and `--birds`, photographs of 60 species of
CUB, where the network of the model `photographs` may stay as it is (`--backbone photographs --frozen`).
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from metavib.adapt.learner import Learner
from metavib.baselines.pixels import logistic_regression
from metavib.data import photographs
from metavib.data.folder import class_files
from metavib.data.glyphs import glyphs
from metavib.data.ink import inked
from metavib.likelihoods.prediction import ClassPrediction
from metavib.show.tables import markdown
from metavib.tasks.inputs import points
from metavib.tasks.task import Task
from metavib.training import bundled, recipes, run_folder, runs
from metavib.training.fields import override
from metavib.training.metrics import report
from metavib.training.protocols import experiment, tuned
from metavib.training.protocols.pictures import resolve

DEFAULT = recipes.default_method("images")
RANDOM = " from random weights"
METHODS = tuple(name + start for start in ("", RANDOM) for name in ("gaussian-classes", "gp-vib", "proto-net", "dkt"))
NETWORK = "behind the network of photographs"
BEHIND = {f"Gaussian classes {NETWORK}": "gaussian-classes", f"GP-VIB {NETWORK}": "gp-vib"}  # the first by default
BUNDLED = "the model characters, no training"
TASKS, QUERIES = 200, 8  # of the bundled model's test, and pictures of each class to predict
STYLES = (((250, 248, 240), (30, 30, 40)), ((35, 55, 45), (240, 240, 235)), ((255, 255, 255), (200, 60, 40)))


def write_glyphs(root: Path) -> None:
    """Sixty characters of the built-in test alphabets."""
    data = glyphs().test
    for c in range(60):
        for i, picture in enumerate(data.images[data.labels == c].numpy()):
            _save(root, f"{c:02d}", i, Image.fromarray(picture[0]))


def write_digits(root: Path) -> None:
    """Twenty pictures of each of scikit-learn's digits, grey on black."""
    from sklearn.datasets import load_digits

    found = load_digits()
    for c in range(10):
        for i, picture in enumerate(found.images[found.target == c][:40]):
            _save(root, str(c), i, Image.fromarray((picture * 255 / 16).astype(np.uint8)))


def write_drawings(root: Path) -> None:
    """Shapes of three to five strokes; every drawing of one moves its points a little."""
    rng = np.random.default_rng(0)
    for c in range(45):
        strokes = [rng.uniform(20, 100, (rng.integers(2, 5), 2)) for _ in range(rng.integers(2, 4))]
        paper, ink = STYLES[c % len(STYLES)]
        for i in range(14):
            image = Image.new("RGB", (120, 120), paper)
            pen, shift = ImageDraw.Draw(image), rng.normal(0, 5, 2)
            for stroke in strokes:
                points = stroke + shift + rng.normal(0, 4, stroke.shape)
                pen.line([tuple(p) for p in points.tolist()], fill=ink, width=int(rng.integers(3, 9)), joint="curve")
            _save(root, f"{c:02d}", i, image)


def write_emnist(root: Path, file: Path) -> None:
    """Twenty scans of each of the 62 digits and letters of EMNIST, from an array file (`images`, `label`)."""
    with np.load(file, allow_pickle=False) as found:
        images, labels = found["images"], found["label"]
    for c in range(int(labels.max()) + 1):
        for i, picture in enumerate(images[labels == c][:20]):
            _save(root, f"{c:02d}", i, Image.fromarray(picture))


def write_birds(root: Path) -> None:
    """Twenty photographs of each of 60 species, 256 x 256, from CUB's base classes."""
    data = photographs.cub("base")
    for c in range(60):
        for i, picture in enumerate(data.images[data.labels == c][:20]):
            _save(root, f"{c:02d}", i, Image.fromarray(picture.permute(1, 2, 0).numpy()))


DATA: dict[str, Callable[[Path], None]] = {"glyphs": write_glyphs, "digits": write_digits, "drawings": write_drawings}


def measure(name: str, method: str, root: Path, minutes: float) -> list[dict[str, Any]]:
    """One training with all defaults: its test, and how soon validation was at nine tenths of its best.

    Args:
        name: of the data.
        method: to train, one of `METHODS` or of `BEHIND`.
        root: where the pictures are, and where the run goes.
        minutes: for training.
    """
    said = {"tasks.root": str(root / name), "train.minutes": minutes}
    if method.endswith(RANDOM):
        said["model.pretrained"] = ""
    if method in BEHIND:
        said["model.pretrained"] = "photographs"
        config = tuned.resolve(override(recipes.frozen("images", BEHIND[method]), said), said)
    else:
        config = resolve(override(recipes.recipe("images", method.removesuffix(RANDOM)), said), said)
    folder = root / f"{name}-{method}"
    record = runs.run(config, folder, quiet=True)
    curve = [line for line in run_folder.read_metrics(folder) if "validation" in line]
    best = max(line["validation"]["accuracy"] for line in curve)
    soon = next(line["seconds"] for line in curve if line["validation"]["accuracy"] >= 0.9 * best)
    rows = [_row(name, method, row, soon) for row in record["evaluation"]["rows"]]
    if method in (DEFAULT, DEFAULT + RANDOM, next(iter(BEHIND))):
        for row in record["evaluation"]["rows"]:
            beside = {f"{other}, {NETWORK}" if method in BEHIND else other: m for other, m in row["obvious"].items()}
            rows += [_row(name, other, row | {"metrics": found}, None) for other, found in beside.items()]
    if method == "proto-net" + RANDOM:
        rows += _on_embeddings(name, config, folder)
    return rows


def untrained(name: str, root: Path) -> list[dict[str, Any]]:
    """The model that comes with the package, on tasks of all classes of a folder: nothing is trained."""
    files = class_files(root / name)
    learner = Learner.from_pretrained("characters")
    x = {label: learner.preparation.inputs(paths) for label, paths in files.items()}
    bare = Learner(learner.trained.model, temperature=learner.trained.temperature)  # takes what is prepared already
    rng, rows = np.random.default_rng(0), []
    for shots in (1, 5):
        p, y, _ = on_tasks(bare, x, shots, rng)
        rows.append(_row(name, BUNDLED, {"shots": shots, "metrics": report(p, y, torch.ones_like(y).bool())}, None))
    return rows


def on_tasks(
    learner: Learner, x: Mapping[str, torch.Tensor], shots: int, rng: np.random.Generator, *, tasks: int = TASKS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities, labels and inputs at the queries of tasks of five classes, or of a third of the classes.

    Args:
        learner: to adapt to each task.
        x: pictures of each class, as the learner takes them.
        shots: pictures of each class of a task to learn from.
        rng: draws the tasks.
        tasks: how many.
    """
    ways = min(5, len(x) // 3)
    found, at, truth = [], [], torch.arange(ways).repeat_interleave(QUERIES)
    for _ in range(tasks):
        chosen = {c: x[c][rng.permutation(len(x[c]))] for c in rng.permutation(list(x))[:ways].tolist()}
        labels = [label for label in chosen for _ in range(shots)]
        task = learner.adapt((torch.cat([v[:shots] for v in chosen.values()]), labels), classes=list(chosen))
        at.append(torch.cat([v[shots : shots + QUERIES] for v in chosen.values()]))
        prediction = task.predict(at[-1])
        assert isinstance(prediction, ClassPrediction)
        found.append(prediction.probabilities)
    return torch.stack(found), truth.expand(tasks, -1), torch.stack(at)


def _on_embeddings(name: str, config: Any, folder: Path) -> list[dict[str, Any]]:
    """Logistic regression of what ProtoNet's network sees, on the same test tasks."""
    world, model = experiment(config), run_folder.selected(folder)
    prior: Any = model.prior

    @torch.no_grad()
    def predict(task: Task) -> torch.Tensor:
        support, query = prior.features(task.support, points(task.query))
        return logistic_regression(Task(task.support._replace(x=support), task.query._replace(x=query)), world.ways)

    rows = []
    for shots in config.test.shots:
        found = report(*world.on_test(shots, predict))
        rows.append(_row(name, "logistic regression of ProtoNet's features", {"shots": shots, "metrics": found}, None))
    return rows


def _row(name: str, method: str, row: dict[str, Any], soon: float | None) -> dict[str, Any]:
    found = row["metrics"]
    values = {k: found[k]["mean"] if k in found else None for k in ("accuracy", "nll")}
    return {"data": name, "method": method, "shots": row["shots"], **values, "ece": found.get("ece"), "seconds": soon}


def figure(path: Path) -> None:
    """Draws pictures as they come and as the model `characters` sees them, and how calibrated that model is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    record = run_folder.read_record(bundled.folder_of("characters"))
    assert record is not None
    drawn, axes = plt.subplot_mosaic("abcr\ndefr", figsize=(9, 3.4), width_ratios=(1, 1, 1, 2), layout="constrained")
    with tempfile.TemporaryDirectory() as made:
        write_drawings(Path(made))
        for place, below, shape in zip("abc", "def", ("00", "01", "02"), strict=True):
            with Image.open(Path(made) / shape / "0.png") as picture:
                pixels = np.asarray(picture)
            axes[place].imshow(pixels)
            axes[below].imshow(inked(pixels.transpose(2, 0, 1)), cmap="gray", vmin=0, vmax=255)
    for place in "abcdef":
        axes[place].set(xticks=[], yticks=[])
    axes["b"].set_title("as they come", fontsize=9)
    axes["e"].set_title("as the model sees them", fontsize=9)
    axes["r"].plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for row in record["evaluation"]["rows"]:
        curve = row["metrics"]["reliability"]
        label = f"{row['shots']} of each class, ECE {100 * row['metrics']['ece']:.1f} %"
        axes["r"].plot(curve["confidence"], curve["accuracy"], marker="o", markersize=3, label=label)
    axes["r"].set(xlabel="how sure it is", ylabel="how often it is right", xlim=(0.15, 1.02), ylim=(0, 1.02))
    axes["r"].legend(frameon=False, fontsize=8)
    drawn.savefig(path, dpi=130)


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""

    def cell(value: float | None, scale: float, digits: int) -> str:
        return "" if value is None else f"{scale * value:.{digits}f}"

    ordered = sorted(result["rows"], key=lambda r: ([*DATA, "emnist", "birds"].index(r["data"]), r["shots"]))
    lines = [
        [r["data"], str(r["shots"]), r["method"], cell(r["accuracy"], 100, 1), cell(r["nll"], 1, 3)]
        + [cell(r["ece"], 100, 1), cell(r["seconds"], 1, 0)]
        for r in ordered
    ]
    header = ["data", "shots", "method", "accuracy %", "NLL", "ECE %", "seconds to 90% of it"]
    note = (
        f"Each training took {result['minutes']:g} minutes at most, on {result['machine']}"
        f"{', which others were using too' * result['shared']}; all settings are the defaults."
    )
    if before := sorted({f"{r['method']} on {r['data']}" for r in result["rows"] if r.get("before")}):
        note += f" Measured before the last changes, and not again: {', '.join(before)}."
    return markdown(header, lines) + f"\n\n{note}\n"


def updated(known: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Known results with new rows in the place of old ones; those that were not measured again are marked as such."""
    new = {(r["data"], r["method"], r["shots"]) for r in result["rows"]}
    old = [r | {"before": True} for r in known["rows"] if (r["data"], r["method"], r["shots"]) not in new]
    shared = result["shared"] or (bool(old) and known["shared"])  # old rows stay those of a busy machine
    return result | {"rows": old + result["rows"], "shared": shared}


def main(arguments: list[str] | None = None) -> None:
    """Trains, prints the table, writes it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks images", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each training (10)")
    parser.add_argument("--only", default="", metavar="TEXT", help="data or methods with this in `DATA METHOD`")
    parser.add_argument("--update", action="store_true", help="put what was measured in the place of old results")
    parser.add_argument("--shared", action="store_true", help="say in the table that others use the machine too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    parser.add_argument("--emnist", type=Path, metavar="FILE", help="train on handwriting from this array file alone")
    parser.add_argument("--birds", action="store_true", help="train on birds alone (CUB, where METAVIB_DATA says)")
    parser.add_argument("--figure", type=Path, help="draw the figure of docs/pictures.md there, and train nothing")
    options = parser.parse_args(arguments)
    if options.figure:
        figure(options.figure)
        return
    result: dict[str, Any] = {"minutes": options.minutes, "shared": options.shared, "rows": []}
    result["machine"] = runs.machine("cpu")
    with tempfile.TemporaryDirectory() as made:
        if options.emnist:
            write_emnist(Path(made) / "emnist", options.emnist)
            for method in (DEFAULT, "gp-vib", "proto-net", DEFAULT + RANDOM):
                if options.only in f"emnist {method}":
                    result["rows"] += measure("emnist", method, Path(made), options.minutes)
        if options.birds:
            write_birds(Path(made) / "birds")
            for method in (DEFAULT, *BEHIND):
                if options.only in f"birds {method}":
                    result["rows"] += measure("birds", method, Path(made), options.minutes)
        for name, write in () if options.emnist or options.birds else DATA.items():
            write(Path(made) / name)
            if options.only in f"{name} {BUNDLED}":
                result["rows"] += untrained(name, Path(made))
            for method in METHODS:
                if options.only in f"{name} {method}":
                    print(f"{name}: {method} ...", flush=True)
                    found = measure(name, method, Path(made), options.minutes)
                    result["rows"] += found
    if not result["rows"]:
        parser.error(f"nothing that is measured has {options.only!r} in its name.")
    print("\n" + table(result))
    if not options.only or options.update:
        options.out.mkdir(parents=True, exist_ok=True)
        own = "-emnist" * bool(options.emnist) + "-birds" * options.birds
        file = options.out / f"images{own}"
        if options.update:
            result = updated(json.loads(file.with_suffix(".json").read_text(encoding="utf-8")), result)
        file.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(table(result), encoding="utf-8")


def _save(root: Path, name: str, i: int, image: Image.Image) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    image.save(root / name / f"{i}.png")
