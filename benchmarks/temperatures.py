"""`python -m benchmarks temperatures`: what makes probabilities honest, chosen on pictures that no test looks at.

A temperature T turns probabilities into $p_n^{1/T}$, normalised. Two choices about temperatures stand in the package:

* `few-classes`: how far a temperature that was fitted on a few validation classes is drawn towards 1
  (`metavib.training.temperature.trust`). Models are trained as `metavib train images` does, with all defaults but the
  number of steps, on folders of 10 and 30 classes. Then validation classes are drawn again and again from others, a
  temperature is fitted on tasks of each such choice, and what it is worth is measured on tasks of 40 more classes.
  Pictures are those of the built-in training alphabets, and of Omniglot where it is at hand; no test class of the other
  benchmarks is among them.
* `characters`: the temperature of the model of that name, which meets pictures of any kind, and of each kind would need
  another. It is a function of the picture (`metavib.training.temperature.Temperature`), learned on three kinds whose
  classes were not trained on: handwriting (EMNIST's classes of even labels, on which its weights were chosen too),
  print (built-in alphabets of training and validation), and shapes drawn by code. `--write` stores it in the model's
  folder and tests the model again.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.images import on_tasks
from metavib.adapt.learner import Learner
from metavib.data import Labelled, Splits
from metavib.data.characters import emnist, omniglot
from metavib.data.folder import read_classes, split_classes
from metavib.data.glyphs import glyphs
from metavib.data.labelled import concatenate, select_classes
from metavib.data.shifts import drawings
from metavib.files import write_json, write_tensors
from metavib.model import Model
from metavib.show.tables import markdown
from metavib.training import build, bundled, checkpoint, metrics, recipes, run_folder, runs
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.loop import train
from metavib.training.protocols import experiment
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.pictures import decided
from metavib.training.protocols.seen import form
from metavib.training.temperature import REACH, Temperature, fit_temperature, tempered, trust

RESULTS = Path(__file__).parent / "results"
METHODS = ("gaussian-classes", "gp-vib", "proto-net", "dkt")
STEPS = 500
FOLDERS = {10: 3, 30: 6}  # classes of a folder, and how many of them are validated on
OTHERS = 40  # classes that a temperature is tested on
CHOICES, TASKS, TESTS = 12, 30, 200  # of validation classes for each model; tasks of each choice, and of the others
SHOTS = (1, 5)
EACH = 40  # pictures of a class of handwriting, which has more
CONSTANTS = (0.0, 3.0, 6.0, 12.0, 24.0, 48.0, 96.0, inf)  # pairs of classes that T = 1 counts for


# Few classes


def few_classes() -> Iterator[dict[str, Any]]:
    """For each model and number of shots: temperatures of choices of few classes, and what each would be worth."""
    for data, pictures in _pictures().items():
        rng, arrays = np.random.default_rng(0), _by_class(pictures)
        for size, method in ((size, method) for size in FOLDERS for method in METHODS):
            order = rng.permutation(list(arrays)).tolist()
            own, others, rest = order[:size], order[size : size + OTHERS], order[size + OTHERS :]
            config = override(
                recipes.recipe("images", method), {"train.steps": STEPS, "train.minutes": None, "test.tasks": TASKS}
            )
            config = decided(config, [{name: arrays[name] for name in own}])
            stored = read_classes(arrays, form(config.tasks))
            splits = split_classes(select_classes(stored, own), minimum=config.tasks.held_out)
            build.set_torch(config)
            with tempfile.TemporaryDirectory() as made:
                model = train(config, Path(made) / "run", quiet=True, world=Classification(config, splits))
            tested = _probabilities(
                model, override(config, {"test.tasks": TESTS}), splits._replace(test=select_classes(stored, others))
            )
            fitted: dict[int, list[float]] = {shots: [] for shots in SHOTS}
            for _ in range(CHOICES):
                chosen = select_classes(stored, rng.permutation(rest)[: FOLDERS[size]].tolist())
                for shots, (p, y) in _probabilities(model, config, splits._replace(test=chosen)).items():
                    fitted[shots].append(fit_temperature(p, y, cautious=True))
            for shots, (p, y) in tested.items():
                yield {
                    "data": data,
                    "method": method,
                    "classes": FOLDERS[size],
                    "shots": shots,
                    "best": fit_temperature(p, y),
                    "fitted": fitted[shots],
                    "drawn": [_worth(p, y, fitted[shots], FOLDERS[size], constant) for constant in CONSTANTS],
                }


def _worth(p: Tensor, y: Tensor, fitted: Sequence[float], classes: int, constant: float) -> dict[str, float]:
    """Mean NLL and ECE of test tasks under fitted temperatures that are drawn towards 1."""
    drawn = [tempered(p, T ** trust(classes, counts=constant)) for T in fitted]
    nll = np.mean([float(metrics.nll(each, y).mean()) for each in drawn])
    return {"nll": float(nll), "ece": float(np.mean([metrics.ece(each, y) for each in drawn]))}


def _pictures() -> dict[str, Labelled]:
    """Characters that no benchmark is tested on, by the name of the dataset."""
    found = {"glyphs": glyphs().train}
    try:
        found["omniglot"] = omniglot()
    except FileNotFoundError as missing:
        print(f"without Omniglot: {missing}")
    return found


def _by_class(data: Labelled) -> dict[str, list[np.ndarray]]:
    """The pictures of each class, as a user has them."""
    return {name: list(data.images[data.labels == c, 0].numpy()) for c, name in enumerate(data.names)}


def _probabilities(model: Model, config: Config, splits: Splits) -> dict[int, tuple[Tensor, Tensor]]:
    """Probabilities and labels on test tasks of some classes, by the number of shots."""
    world = Classification(config, splits)
    tested = build.at_test(model, config, ways=world.ways)
    return {shots: world.on_test(shots, world.tester(tested))[:2] for shots in SHOTS}


# The model `characters`


def kinds() -> dict[str, Labelled]:
    """Characters of classes that neither the model was trained on nor the benchmark of pictures is tested on."""
    learned, chosen, _ = glyphs()
    return {
        "handwriting": select_classes(emnist(), range(0, 62, 2)),
        "print": concatenate(select_classes(learned, range(0, learned.classes, 6)), chosen),
        "drawings": drawings(112, seed=1),
    }


class OnKind(NamedTuple):
    """Tasks of one kind of pictures: probabilities, labels and features at their queries."""

    p: Tensor
    y: Tensor
    phi: Tensor


def characters(tasks: int) -> tuple[Temperature, list[dict[str, Any]]]:
    """The temperature of the model, and for each kind and number of shots what it is worth there."""
    learner = Learner.from_pretrained("characters")
    plain, rng = Learner(learner.trained.model), np.random.default_rng(0)
    found: dict[tuple[str, int], OnKind] = {}
    for kind, data in kinds().items():
        pictures = {name: learner.preparation.inputs(of_class[:EACH]) for name, of_class in _by_class(data).items()}
        for shots in SHOTS:
            p, y, x = on_tasks(plain, pictures, shots, rng, tasks=tasks)
            phi = learner.trained.all_features(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            found[kind, shots] = OnKind(p, y, phi.to(p.dtype))
    chosen = fit({shots: [on for (_, n), on in found.items() if n == shots] for shots in SHOTS})
    rows = []
    for (kind, shots), (p, y, phi) in found.items():
        pooled = fit_temperature(*(torch.cat([getattr(found[k, shots], part) for k in kinds()]) for part in "py"))
        row: dict[str, Any] = {"kind": kind, "shots": shots, "own": fit_temperature(p, y), "one": pooled}
        warmths: dict[str, Any] = {"none": 1.0, "at one T": pooled, "chosen": chosen.at(shots) * chosen.factor(phi)}
        for name, T in warmths.items():
            q = tempered(p, T)
            row[name] = {"nll": float(metrics.nll(q, y).mean()), "ece": metrics.ece(q, y)}
        rows.append(row)
    return chosen, rows


def fit(found: Mapping[int, Sequence[OnKind]]) -> Temperature:
    r"""The temperature $T_K \exp(b^\top \phi + b_0)$ at K shots with the smallest mean NLL over kinds and shots.

    All kinds count alike. A penalty of $0.01 |b|^2$, of standardised features, keeps b small.

    Args:
        found: tasks of each kind, by the number of shots.
    """
    phi = torch.cat([on.phi.flatten(0, 1) for kinds in found.values() for on in kinds])
    mean, sd = phi.mean(0), phi.std(0).clamp(min=1e-6)
    logs, slope = (torch.zeros(n, dtype=phi.dtype, requires_grad=True) for n in (len(found), phi.shape[-1]))
    optimiser = torch.optim.LBFGS([logs, slope], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = 0.01 * slope.square().sum()
        for log_t, kinds in zip(logs, found.values(), strict=True):
            for p, y, phi in kinds:
                factor = (((phi - mean) / sd) @ slope).clamp(-REACH, REACH).exp()
                nll = metrics.nll(tempered(p, (log_t.exp() * factor).unsqueeze(-1)), y).mean()
                total = total + nll / (len(kinds) * len(found))
        total.backward()
        return total

    optimiser.step(loss)
    b = (slope / sd).detach()
    return Temperature(tuple(found), tuple(logs.detach().exp().tolist()), (*b.tolist(), -float(mean @ b)))


def store(temperature: Temperature) -> None:
    """Writes a temperature into the folder of the model, and tests it again with it."""
    folder = bundled.folder_of("characters")
    saved, record = run_folder.chosen(folder), run_folder.read_record(folder)
    assert record is not None
    header = checkpoint.header(saved.config, saved.step, saved.best, temperature)
    write_tensors(folder / run_folder.BEST, saved.tensors, header)
    evaluation = experiment(saved.config).evaluate(run_folder.selected(folder), temperature=temperature)
    write_json(folder / run_folder.RECORD, record | {"evaluation": evaluation})


# Tables, and the command


def few_classes_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean NLL and ECE over data and shots, for each method, number of validation classes and constant."""
    lines = []
    for method, classes in ((method, classes) for method in METHODS for classes in FOLDERS.values()):
        of = [row["drawn"] for row in rows if (row["method"], row["classes"]) == (method, classes)]
        means = [{k: np.mean([drawn[i][k] for drawn in of]) for k in ("nll", "ece")} for i in range(len(CONSTANTS))]
        lines.append([method, str(classes)] + [f"{mean['nll']:.3f}, {100 * mean['ece']:.1f}" for mean in means])
    return markdown(["NLL, ECE %", "classes", *(f"{constant:g} pairs" for constant in CONSTANTS)], lines)


def characters_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """NLL and ECE of each kind: as the model says it, under one temperature for all, and under what was chosen."""
    names = ("none", "at one T", "chosen")
    lines = [
        [row["kind"], str(row["shots"]), f"{row['own']:.2f}", f"{row['one']:.2f}"]
        + [f"{row[name]['nll']:.3f}, {100 * row[name]['ece']:.1f}" for name in names]
        for row in sorted(rows, key=lambda row: row["shots"])
    ]
    header = ["NLL, ECE %", "shots", "its own best T", "one T", "without T", "at one T", "T of each picture"]
    return markdown(header, lines)


def main(arguments: list[str] | None = None) -> None:
    """Makes one of the two choices, prints what speaks for it, writes that down."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks temperatures", description=__doc__)
    parser.add_argument("choice", choices=("few-classes", "characters"))
    parser.add_argument("--tasks", type=int, default=200, help="of each kind of pictures, for characters (200)")
    parser.add_argument("--write", action="store_true", help="store the temperatures of characters in its folder")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    result: dict[str, Any]
    if options.choice == "characters":
        chosen, rows = characters(options.tasks)
        result, shown = {"tasks": options.tasks, "rows": rows}, characters_table(rows)
        if options.write:
            store(chosen)
    else:
        result = {"rows": list(few_classes())}
        shown = few_classes_table(result["rows"])
    print(shown)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"temperatures-{options.choice}"
    write_json(file.with_suffix(".json"), result | {"machine": runs.machine("cpu")})
    file.with_suffix(".md").write_text(shown + "\n", encoding="utf-8")
