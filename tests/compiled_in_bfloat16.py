"""A few steps of MAML with five inner ones in bfloat16, on the fast path; prints the bounds and the gradient's length.

A process of its own, since the checks of shapes that all other tests run under cannot be compiled. Called as
`python compiled_in_bfloat16.py BACKEND DEVICE`.
"""

import json
import sys
from functools import partial

import torch

from metavib.random import seeded
from metavib.training import build, recipes
from metavib.training.engine import compiles, fastest
from metavib.training.engine.compile import WORTH
from metavib.training.fields import override
from metavib.training.protocols import experiment
from metavib.training.step import Step, adam

CHANGES = {
    "model.inner_steps": 5,
    "model.first_order": True,
    "model.width": 8,
    "tasks.queries": 4,
    "train.tasks": 2,
    "train.steps": 5 * max(WORTH.values()),
    "precision": "bf16",
}


def main(backend: str, device: str) -> None:
    """Prints a JSON object."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend=backend)  # type: ignore[assignment]
    config = override(recipes.recipe("glyphs", "maml"), {**CHANGES, "device": device})
    assert compiles(config)
    model = build.model(config).to(device).train()
    streams = [seeded(0, i, device=device) for i in range(2)]
    step = Step(model, build.objective(config), experiment(config), adam(model, config), streams, shape=(2,), beta=0.0)
    take = fastest(step, config)
    bounds = [float(take()[-1].mean()) for _ in range(5)]
    squares = [float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None]
    print(json.dumps({"bounds": bounds, "length": sum(squares) ** 0.5}))


main(*sys.argv[1:])
