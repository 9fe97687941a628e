"""A task that never ends: a million noisy points of one sinusoid, learned in constant memory.

    python examples/stream.py

The model is meta-trained on many sinusoids first. Then one new sinusoid arrives in batches of a hundred points: the
time of an update and the size of what is remembered stay the same. The uncertainty shrinks as points come in; the error
shrinks to what is left of a sine after the closest function that the learned features can make, of which the
uncertainty knows nothing: it is the model's own.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from metavib.adapt.learner import Learner
from metavib.encoders import ExactSites
from metavib.kernels import Linear
from metavib.likelihoods import Gaussian
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import MLP
from metavib.objective import vib
from metavib.tasks import Examples, Task
from metavib.tasks.sinusoid import Sinusoids

NOISE = 0.3


def meta_train(steps: int) -> Model:
    """A GP-VIB that has seen many noisy sinusoids."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = gp_vib(MLP(1, (40, 40), reach=5.0), Linear(), ExactSites(), Gaussian(noise=NOISE**2))
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    tasks = Sinusoids(shots=10, queries=20)
    for _ in range(steps):
        bound = vib(model, noisy(tasks.sample((5,), generator), generator), beta=1.0)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()
    return model


def noisy(task: Task, generator: torch.Generator) -> Task:
    def add(part: Examples) -> Examples:
        return part._replace(y=part.y + NOISE * torch.randn(part.y.shape, generator=generator))

    return Task(add(task.support), add(task.query))


def stream(learner: Learner, points: int, batch: int, folder: Path) -> dict[str, np.ndarray]:
    """Learns from a stream; returns what was measured along the way."""
    rng = np.random.default_rng(1)
    grid = np.linspace(-5, 5, 101)
    truth = 3 * np.sin(grid - 1)
    task = learner.adapt((np.zeros((0, 1)), np.zeros(0)))
    for _ in range(100):  # a clock is read from here on: wake everything up
        task.update((grid, truth))
    looks = set(np.unique(np.geomspace(1, points // batch, 60).astype(int)))
    seen, seconds, rows = [], [], []
    for i in range(1, points // batch + 1):
        x = rng.uniform(-5, 5, batch)
        y = 3 * np.sin(x - 1) + NOISE * rng.normal(size=batch)
        start = time.perf_counter()
        task = task.update((x, y))
        seconds.append(time.perf_counter() - start)
        seen.append(i * batch)
        if i in looks:
            found = task.predict(grid)
            task.save(folder / "task.safetensors", form="memory")
            size = (folder / "task.safetensors").stat().st_size
            error = float(np.sqrt(np.mean((found.mean.numpy() - truth) ** 2)))
            rows.append((i * batch, size, error, float(found.q.var.mean().sqrt())))
    phi = learner.trained.features(torch.as_tensor(grid[:, None], dtype=torch.float32)).double().numpy()
    closest = np.sqrt(np.mean((phi @ np.linalg.lstsq(phi, truth)[0] - truth) ** 2))
    names = ("at", "size", "error", "sd")
    measured = {"seen": np.array(seen), "seconds": np.array(seconds), "closest": closest}
    return measured | dict(zip(names, np.array(rows).T, strict=True))


def plot(m: dict[str, np.ndarray], batch: int) -> Figure:
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    bins = np.array_split(np.arange(len(m["seen"])), 50)
    at = [m["seen"][b].mean() for b in bins]
    low, centre, high = (np.array([np.percentile(m["seconds"][b], q) for b in bins]) * 1e6 for q in (10, 50, 90))
    left.fill_between(at, low, high, color="#8fb8e8", alpha=0.5, lw=0, label="10% to 90%")
    left.plot(at, centre, color="#1f5fa8", label="median")
    left.set(title=f"time of an update of {batch} points", ylabel="microseconds", ylim=(0, 3 * np.median(centre)))
    middle.plot(m["at"], 8 * m["at"], color="#222222", ls="--", lw=1, label="the points themselves")
    middle.plot(m["at"], m["size"], color="#1f5fa8", label="the state file")
    middle.set(title="what is remembered", ylabel="bytes", yscale="log")
    right.plot(m["at"], m["error"], color="#222222", lw=1, label="error of the mean")
    right.axhline(m["closest"], color="#222222", ls=":", lw=1, label="closest function of the features")
    right.plot(m["at"], m["sd"], color="#1f5fa8", label="predicted SD of f")
    right.set(title="what is known of the function", ylabel="root mean square", yscale="log")
    for ax in (left, middle, right):
        ax.set(xscale="linear" if ax is left else "log", xlabel="points seen")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8)
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5000, help="of meta-training")
    parser.add_argument("--out", type=Path, default=Path("docs/stream.png"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measured = stream(Learner(meta_train(options.steps)), options.points, options.batch, options.out.parent)
    (options.out.parent / "task.safetensors").unlink()
    plot(measured, options.batch).savefig(options.out, dpi=150)
    first, last = (1e6 * np.median(part) for part in np.array_split(measured["seconds"], 10)[::9])
    print(f"an update of {options.batch} points: {first:.0f} us in the first tenth, {last:.0f} us in the last")
    print(f"the state: {measured['size'][0]:.0f} bytes at first, {measured['size'][-1]:.0f} at last")
    print(f"error of the mean {measured['error'][0]:.3f}, then {measured['error'][-1]:.4f}; see {options.out}")


if __name__ == "__main__":
    main()
