"""The library's side of each comparison: its real training step, its real test, its learner in use."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metavib.adapt.learner import Learner
from metavib.data import Labelled, Splits
from metavib.encoders import ExactSites
from metavib.kernels import Linear
from metavib.likelihoods import Gaussian
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import MLP
from metavib.random import seeded
from metavib.training import build, pretrain
from metavib.training.config import Config
from metavib.training.engine import fastest
from metavib.training.pretrain import Pretraining
from metavib.training.protocols import Experiment, experiment
from metavib.training.protocols.classification import Classification
from metavib.training.step import Step, adam

Call = Callable[[], Any]

PICTURES = {"omniglot-emnist": (1597, 20, 1, 32), "omniglot": (4112, 20, 1, 28), "cub": (100, 60, 3, 96)}
"""Classes, images of each, channels and side: the sizes of what an experiment trains on, or a little more."""


def our_step(config: Config, world: Experiment) -> Call:
    """A step of training as `metavib.training.loop.train` takes it, in its fastest form for the config's device."""
    return fastest(_step(config, world), config)


def plain_step(config: Config, world: Experiment) -> tuple[Call, Model]:
    """The same step as written, and its model: what operations are counted on."""
    step = _step(config, world)
    return step, step.model


def _step(config: Config, world: Experiment) -> Step:
    model, options = build.model(config).to(config.device).train(), config.train
    streams = [seeded(config.seed, i, device=config.device) for i in range(2)]
    objective, optimiser = build.objective(config), adam(model, config)
    return Step(model, objective, world, optimiser, streams, shape=(options.tasks,), beta=options.beta)


def world_of(config: Config, pictures: Tensor | None = None) -> Experiment:
    """The experiment of a config, on the pictures given (to train and to test on) where it is one of images."""
    if pictures is None:
        return experiment(config)
    data = labelled(pictures)
    return Classification(config, Splits(data, data, data))


def random_pictures(classes: int, each: int, channels: int, side: int) -> Tensor:
    """Noise `(classes, each, channels, side, side)` for a dataset: how long a step takes does not depend on it."""
    return torch.randint(0, 256, (classes, each, channels, side, side), dtype=torch.uint8, generator=seeded(0))


def labelled(pictures: Tensor) -> Labelled:
    """Pictures by class as the library holds them."""
    classes, each = pictures.shape[:2]
    labels = torch.arange(classes).repeat_interleave(each)
    return Labelled(pictures.flatten(0, 1), labels, tuple(f"class {c}" for c in range(classes)))


def supervised_step(config: Pretraining, pictures: Tensor) -> Call:
    """A step of `metavib pretrain` on pictures chosen once, in its fastest form for the config's device."""
    data = labelled(pictures)
    splits = Splits(data, data, data).to(config.device)
    step = pretrain._Run(config, Path(), splits, data.size // config.batch)._fastest(config.tasks.size)
    index = torch.randperm(data.size, generator=seeded(0))[: config.batch].to(config.device)
    return lambda: step(index)


def our_use(config: Config, world: Experiment) -> Call:
    """Adapting to one task and predicting its query, as a user of `metavib.Learner` does."""
    learner = Learner(build.model(config).to(config.device))
    task = world.sample((), seeded(0, device=config.device))

    def use() -> Any:
        return learner.adapt((task.support.x, task.support.y)).predict(task.query.x)

    return use


class Groups:
    """A table of many small groups, and what a user may do to predict three rows of each from the five that are known.

    Args:
        count: how many groups.
    """

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.count, self.x, self.y = count, rng.normal(size=(count, 5, 4)), rng.normal(size=(count, 5))
        self.query = rng.normal(size=(count, 3, 4))
        model = gp_vib(MLP(4, (64, 64)), Linear(bias=True), ExactSites(), Gaussian(0.1))
        self.learner = Learner(model)

    def at_once(self) -> Any:
        """All groups in one call."""
        ids = np.arange(self.count)
        known = self.learner.adapt_many((self.x.reshape(-1, 4), self.y.ravel()), ids.repeat(5))
        return known.predict(self.query.reshape(-1, 4), ids.repeat(3))

    def one_by_one(self) -> Any:
        """The same predictions, a group at a time."""
        return [self.learner.adapt((x, y)).predict(q) for x, y, q in zip(self.x, self.y, self.query, strict=True)]

    def ridges(self) -> Any:
        """A regression of scikit-learn for each group: nothing is learned from the others."""
        from sklearn.linear_model import Ridge

        return [Ridge().fit(x, y).predict(q) for x, y, q in zip(self.x, self.y, self.query, strict=True)]


def our_test(config: Config, pictures: Tensor, *, episodes: int) -> Call:
    """The final test of a run, on as many episodes."""
    config = replace(config, test=replace(config.test, tasks=episodes))
    world, model = world_of(config, pictures), build.model(config).to(config.device).eval()
    return lambda: world.evaluate(model, quiet=True)


def fresh_import() -> float:
    """How many seconds the package takes to import in a fresh process, once torch is imported."""
    code = (
        "import time, torch; t = time.perf_counter(); from metavib import Learner, vib; print(time.perf_counter() - t)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
