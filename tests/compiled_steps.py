"""Three training steps and a prediction, as written and on the fast path; prints how far apart they are.

A process of its own, since the checks of shapes that all other tests run under cannot be compiled. Called as
`python compiled_steps.py EXPERIMENT METHOD BACKEND DEVICE`.
"""

import json
import sys
import warnings
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Generator, Tensor

from metavib.model import Model
from metavib.random import seeded
from metavib.training import build, recipes
from metavib.training.config import Config
from metavib.training.engine import compiles, fastest
from metavib.training.engine.compile import WORTH, Compiled
from metavib.training.engine.graph import WARM_UP
from metavib.training.fields import override
from metavib.training.protocols import classification, experiment
from metavib.training.step import Step, adam

STEPS = 3
SMALL = {
    "model.width": 2,
    "tasks.size": 16,
    "tasks.queries": 2,
    "train.tasks": 2,
    "tasks.ways": 3,
    "model.samples": 4,
    "test.tasks": 60,
    "test.queries": 2,
}


def config(name: str, method: str, device: str) -> Config:
    """A training that is over in a moment, in double precision, where rounding cannot hide a mistake."""
    small: dict[str, Any] = SMALL if name == "glyphs" else {"train.tasks": 3, "model.widths": [6, 6]}
    shared = {"precision": "float64", "device": device, "train.steps": max(WORTH.values())}
    return override(recipes.recipe(name, method), {**shared, **small})


def steps(of: Config, world: Any, fast: bool) -> dict[str, Any]:
    """Bounds, gradients, weights and streams of a few steps from the same start."""
    objective, model = build.objective(of), build.model(of).to(of.device).train()
    optimiser = adam(model, of)
    streams = [seeded(of.seed, i, device=of.device) for i in range(2)]
    step = Step(model, objective, world, optimiser, streams, shape=(of.train.tasks,), beta=of.train.beta)
    take = fastest(step, of) if fast else step
    bounds = [float(take()[-1].mean()) for _ in range(STEPS + WARM_UP * (of.device != "cpu"))]
    return {"bounds": bounds, "model": model, "streams": [s.get_state() for s in streams]}


def main(name: str, method: str, backend: str, device: str) -> None:
    """Prints a JSON object."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend=backend)  # type: ignore[assignment]
    of = config(name, method, device)
    assert compiles(of)  # or what is compared with what is written would be that itself
    world = experiment(of)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain, fast = (steps(of, world, way) for way in (False, True))
        again = steps(of, world, True)
    gaps = {
        "bounds": max(abs(a - b) / (1 + abs(a)) for a, b in zip(plain["bounds"], fast["bounds"], strict=True)),
        "state": distance(plain["model"].state_dict(), fast["model"].state_dict()),
        "gradients": distance(gradients(plain["model"]), gradients(fast["model"])),
        "again": distance(again["model"].state_dict(), fast["model"].state_dict()),
    }
    same = all(torch.equal(a, b) for a, b in zip(plain["streams"], fast["streams"], strict=True))
    if name == "glyphs" and method not in ("feature-transfer", "baseline++"):
        gaps["predictions"] = predictions(world, plain["model"].eval(), device)
        if device != "cpu":
            gaps["test"] = tested(world, plain["model"].eval())
    failed = [str(w.message) for w in caught if "cannot be" in str(w.message)]
    print(json.dumps({"gaps": gaps, "same streams": same, "failed": failed}))


@torch.no_grad()
def predictions(world: Any, model: Model, device: str) -> float:
    """How far apart the probabilities of a batch of validation episodes are."""
    tasks = world._validation_tasks(world.config.tasks.ways, world.config.tasks.shots)[0]
    draws: list[Generator] = [seeded(7, device=device) for _ in range(2)]
    (plain,) = world.probabilities(model, draws[:1], tasks)
    (fast,) = Compiled(world.probabilities)(model, draws[1:], tasks)
    return float((plain - fast).abs().max())


def tested(world: Any, model: Model) -> float:
    """How far apart the negative log likelihoods of a test are that is recorded, and of one that is not."""
    world.chunk = 7  # of 60 episodes: some batches before the recorded one, some after it, and a smaller one
    recorded = world.evaluate(model, quiet=True)
    with patch.object(classification, "replayed", lambda step, device, streams: step):
        written = world.evaluate(model, quiet=True)
    one, other = (found["rows"][0]["metrics"]["nll"]["mean"] for found in (recorded, written))
    return abs(one - other)


def gradients(model: Model) -> dict[str, Tensor]:
    """Of the last step."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest number of each tensor where that is above 1."""
    assert one.keys() == other.keys()
    return max(float(((a - other[k]).abs() / a.abs().max().clamp(min=1)).max()) for k, a in one.items() if a.numel())


if __name__ == "__main__":
    main(*sys.argv[1:])
