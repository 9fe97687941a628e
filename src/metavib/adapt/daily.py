"""Points of a task from files, and predictions as rows: what `metavib adapt`, `update` and `predict` read and write.

A run on a table takes CSV files with its columns; one on images takes folders (a folder a class where classes are to
be learned, any pictures where they are to be predicted); one on sinusoids or Gaussian processes, CSV files of x and y.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metavib.adapt.prediction import ClassPrediction, RealPrediction
from metavib.adapt.trained import Data
from metavib.data.archive import SUFFIXES, decode_image, read_file
from metavib.data.folder import folder
from metavib.data.table import read_csv
from metavib.files import naming
from metavib.random import seeded
from metavib.tasks.scaling import check_finite
from metavib.tasks.task import examples
from metavib.training.config import CLASSIFICATION, Config
from metavib.training.protocols.table import read_examples, read_inputs, scaling

Row = dict[str, Any]


def read_points(path: Path, config: Config) -> Data:
    """Inputs and outputs of one task, as the run's model takes them."""
    if config.tasks.name in CLASSIFICATION:
        from metavib.training.protocols.classification import stored_size

        found = folder(path, size=stored_size(config.tasks), channels=config.tasks.channels)
        labels: list[Hashable] = [found.names[i] for i in found.labels.tolist()]
        return _transformed(found.images, config), labels
    if config.tasks.name == "table":
        return read_examples(path, config)
    rows = read_csv(path, features=("x",), target="y")
    return examples(_complete(rows.x, path), rows.y, name=str(path)).to(torch.float32)


def read_queries(path: Path, config: Config) -> tuple[Tensor, list[str]]:
    """Inputs to predict at, and a name for each: its line, or its file."""
    if config.tasks.name in CLASSIFICATION:
        from metavib.training.protocols.classification import stored_size

        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not files:
            raise FileNotFoundError(f"{path}: no pictures found ({', '.join(SUFFIXES)}).")
        size, channels = stored_size(config.tasks), config.tasks.channels
        pictures = [
            decode_image(read_file(f), name=str(f), channels=channels, size=size, keep_aspect=True) for f in files
        ]
        names = [f.name if path.is_file() else str(f.relative_to(path)) for f in files]
        return _transformed(torch.as_tensor(np.stack(pictures)), config), names
    if config.tasks.name == "table":
        x = read_inputs(path, config)
    else:
        x = torch.as_tensor(_complete(read_csv(path, features=("x",)).x, path), dtype=torch.float32)
    return x, [str(i + 1) for i in range(len(x))]


def rows(prediction: RealPrediction | ClassPrediction, names: list[str], config: Config, *, level: float) -> list[Row]:
    """A row a query point: mean, standard deviation and interval in the table's own units, or class probabilities."""
    if isinstance(prediction, ClassPrediction):
        columns = [f"p({label})" for label in prediction.classes]
        found = zip(prediction.labels, prediction.entropy.tolist(), prediction.probabilities.tolist(), strict=True)
        return [
            {"query": name, "class": label, "entropy": entropy, **dict(zip(columns, p, strict=True))}
            for name, (label, entropy, p) in zip(names, found, strict=True)
        ]
    low, high = prediction.interval(level)
    sd = prediction.variance.sqrt()
    values: tuple[Tensor, ...] = (prediction.mean, sd, low, high)
    if config.tasks.name == "table":
        units = scaling(config.tasks.table).y
        values = (
            units.restore(prediction.mean),
            units.restore_variance(sd.square()).sqrt(),
            *map(units.restore, (low, high)),
        )
    keys = ("mean", "sd", f"low {level:.0%}", f"high {level:.0%}")
    return [
        {"query": name, **dict(zip(keys, row, strict=True))}
        for name, row in zip(names, torch.stack(values, -1).tolist(), strict=True)
    ]


def _complete(x: np.ndarray, path: Path) -> np.ndarray:
    with naming(path):
        check_finite(x, names=("x",))
    return x


def _transformed(images: Tensor, config: Config) -> Tensor:
    from metavib.training.protocols.classification import evaluation_transform

    return evaluation_transform(config.tasks)(images, seeded(0))
