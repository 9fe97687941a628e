"""Two places learn one task, and merge what they know without showing each other a single point.

    python examples/two_places.py

Two clinics sort measurements into the same kinds, with the same trained model. One has never seen the kind "rare". Each
writes a small file with its memory of the task, sums in which no single point is left; adding the two gives exactly
what one place with all the points would have learned.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from metavib.adapt.learner import Learner
from metavib.encoders import SimplifiedSites
from metavib.kernels import Cosine
from metavib.likelihoods import Softmax
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import MLP
from metavib.objective import vib
from metavib.tasks import examples, task

KINDS = {"common": (0.0, 0.0), "odd": (2.5, 0.0), "rare": (1.2, 2.2)}


def meta_train(steps: int) -> Model:
    """A classifier that has seen many tasks: three blobs each, anywhere."""
    torch.manual_seed(0)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    model = gp_vib(MLP(2, (32, 32)), Cosine(bias=True), SimplifiedSites(m=3.0), Softmax(3))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        y = np.tile(np.arange(3), (8, 12))
        centres = rng.normal(size=(8, 3, 2)) * 2
        x = np.take_along_axis(centres, y[..., None], 1) + rng.normal(size=(8, 36, 2)) * 0.7
        parts = (examples(torch.as_tensor(x[:, s]).float(), y[:, s]) for s in (slice(15), slice(15, None)))
        bound = vib(model, task(*parts), beta=1e-3, noise=generator)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()
    return model


def measure(rng: np.random.Generator, kinds: list[str], n: int) -> tuple[np.ndarray, list[str]]:
    """What a place sees."""
    labels = [kinds[i] for i in rng.integers(0, len(kinds), n)]
    return np.array([KINDS[k] for k in labels]) + rng.normal(size=(n, 2)) * 0.7, labels


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=60, help="of each place")
    parser.add_argument("--steps", type=int, default=500, help="of meta-training")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    learner = Learner(meta_train(options.steps))
    here, there = measure(rng, ["common", "odd"], options.points), measure(rng, list(KINDS), options.points)
    x, truth = measure(rng, list(KINDS), 2000)

    with tempfile.TemporaryDirectory() as folder:
        # Each place by itself; only the file travels.
        learner.adapt(there).save(Path(folder, "there.safetensors"), form="memory")
        mine = learner.adapt(here)
        merged = mine.merge(learner.load(Path(folder, "there.safetensors")))
        size = Path(folder, "there.safetensors").stat().st_size
    together = learner.adapt((np.concatenate([here[0], there[0]]), here[1] + there[1]))

    for name, known in (("here alone", mine), ("there alone", learner.adapt(there)), ("merged", merged)):
        found = known.predict(x)
        right = np.mean([a == b for a, b in zip(found.labels, truth, strict=True)])
        print(f"{name:12} {known.n:4} points, knows {', '.join(known.classes)}: {right:.1%} right")
    difference = float((merged.predict(x).probabilities - together.predict(x).probabilities).abs().max())
    print(f"merged differs from learning everything in one place by {difference:.1e}; the file had {size} bytes")
    if difference > 1e-3 or merged.classes != together.classes:
        raise SystemExit("merging should be the same as learning in one place")


if __name__ == "__main__":
    main()
