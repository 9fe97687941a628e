"""A band that tightens: what a trained model says of one new function after one, two, three, five and eight points.

python examples/band.py
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from metavib import Learner, encoders, kernels, likelihoods, methods, networks
from metavib.objective import predictive
from metavib.tasks.sinusoid import Sinusoids


def meta_train(steps: int) -> Learner:
    """GP-VIB on sinusoids of random amplitude and phase, two to ten points each, by log predictive densities."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    phi, kernel = networks.MLP(1, (40, 40), reach=5.0), kernels.Linear()
    model = methods.gp_vib(phi, kernel, encoders.ExactSites(), likelihoods.Gaussian(noise=0.1))
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    tasks = Sinusoids(shots=10, queries=20, min_shots=2)
    for _ in range(steps):
        bound = predictive(model, tasks.sample((8,), generator), beta=1.0)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()
    return Learner(model)


def draw(learner: Learner) -> Figure:
    """Five panels, each with more points of the same function."""
    grid, x = np.linspace(-5, 5, 201), np.array([1.5, -2.8, 3.4, -0.6, -4.2, 0.5, 4.5, -1.6])
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    for ax, n in zip(figure.subplots(1, 5, sharey=True), (1, 2, 3, 5, 8), strict=True):
        found = learner.adapt((x[:n], 3 * np.sin(x[:n] - 1))).predict(grid)
        low, high = found.interval(0.95)
        ax.fill_between(grid, low, high, color="#8fb8e8", alpha=0.5, lw=0, label="95 % of outputs")
        ax.plot(grid, found.mean, color="#1f5fa8", label="predicted mean")
        ax.plot(grid, 3 * np.sin(grid - 1), color="#222222", lw=1, ls="--", label="truth")
        ax.plot(x[:n], 3 * np.sin(x[:n] - 1), "o", color="#222222", ms=4)
        ax.set(title=f"{n} point{'s' * (n > 1)}", ylim=(-8, 8))
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def main(argv: list[str] | None = None) -> float:
    """Draws; returns the root mean squared error after eight points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="of meta-training")
    parser.add_argument("--out", type=Path, default=Path("a-band-that-tightens.png"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    learner = meta_train(options.steps)
    draw(learner).savefig(options.out, dpi=150)
    x = np.array([1.5, -2.8, 3.4, -0.6, -4.2, 0.5, 4.5, -1.6])
    grid = np.linspace(-5, 5, 201)
    mean = learner.adapt((x, 3 * np.sin(x - 1))).predict(grid).mean.numpy()
    error = float(np.sqrt(np.mean((mean - 3 * np.sin(grid - 1)) ** 2)))
    print(f"error after eight points: {error:.2f}, where the function varies by {np.std(3 * np.sin(grid - 1)):.2f}")
    return error


if __name__ == "__main__":
    main()
