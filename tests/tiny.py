"""Runs so small that a test can afford them: configs, images, and what a run leaves behind."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavib.data.labelled import Labelled, Splits
from metavib.files import read_tensors
from metavib.random import seeded
from metavib.tasks import Task, examples, task
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.recipes import recipe

REGRESSORS = ("gp-vib", "maml", "stochastic-maml", "gp-maml")

_SINUSOID: dict[str, Any] = {
    "model.widths": [8, 8],
    "tasks.shots": 5,
    "tasks.queries": 5,
    "train.steps": 12,
    "train.tasks": 2,
    "train.validate_every": 5,
    "train.validation_tasks": 4,
    "train.save_every": 4,
    "train.log_every": 2,
    "test.shots": [3, 5],
    "test.tasks": 6,
    "test.queries": 7,
    "test.weight_samples": 3,
}


def sinusoid(method: str = "gp-vib", **changes: Any) -> Config:
    """A run of a few steps on sinusoids; changes as in `train__lr=0.1`."""
    return override(recipe("sinusoid", method), _SINUSOID | _dotted(changes))


_GLYPHS: dict[str, Any] = {
    "tasks.ways": 3,
    "tasks.shots": 2,
    "tasks.queries": 3,
    "tasks.size": 16,
    "model.width": 4,
    "model.classes": 6,
    "model.samples": 5,
    "model.inner_steps": 1,
    "train.steps": 3,
    "train.tasks": 2,
    "train.validate_every": 2,
    "train.validation_tasks": 3,
    "train.save_every": 2,
    "train.log_every": 1,
    "test.shots": [],  # as in training, which recipes of Gaussian classes do not have
    "test.tasks": 4,
    "test.queries": 3,
    "test.weight_samples": 2,
}


def glyphs(method: str = "gp-vib", **changes: Any) -> Config:
    """A run of a few steps on images of 16 x 16, to be trained on `splits()`."""
    return override(recipe("glyphs", method), _GLYPHS | _dotted(changes))


def images(name: str, classes: int, each: int = 8, *, size: int = 16, seed: int = 0) -> Labelled:
    """Pictures of random classes: a pattern a class, and noise."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 256, (classes, 1, 1, size, size), generator=g)
    noise = torch.randint(-40, 41, (classes, each, 1, size, size), generator=g)
    pixels = (patterns + noise).clamp(0, 255).to(torch.uint8).flatten(0, 1)
    labels = torch.arange(classes).repeat_interleave(each)
    return Labelled(pixels, labels, tuple(f"{name}/{c}" for c in range(classes)))


def picture_tasks(
    tasks: int, *, ways: int = 5, shots: int = 1, queries: int = 1, size: int = 28, dtype: torch.dtype = torch.float32
) -> Task:
    """Tasks of random images."""
    generator = seeded(0)

    def draw(each: int):
        x = torch.randn(tasks, ways * each, 1, size, size, generator=generator, dtype=dtype)
        return examples(x, torch.arange(ways).repeat(each).expand(tasks, -1))

    return task(draw(shots), draw(queries))


def splits() -> Splits:
    """Six, four and five classes to train, validate and test on."""
    return Splits(images("train", 6), images("validation", 4, seed=1), images("test", 5, seed=2))


def same_state(a: Path, b: Path) -> bool:
    """Whether two checkpoints hold the same numbers to the last bit, and the same header."""
    (tensors, header), (others, other_header) = read_tensors(a), read_tensors(b)
    return header == other_header and same_tensors(tensors, others)


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two states are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _dotted(changes: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in changes.items()}
