"""Calibration: how often the truth lies inside an interval, against how often the interval says it does.

    python examples/calibration.py

Functions are drawn from a Gaussian process with noise, which the model does not know: it learns its own features from
tasks. For new tasks with two, five and twenty points, the share of outputs inside the central intervals is drawn
against their level. Intervals get narrower with more points, and stay as honest.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from metavib import encoders, kernels, likelihoods, methods, networks
from metavib.model import Model
from metavib.objective import predictive
from metavib.tasks.gaussian import GaussianTasks

SHOTS = (2, 5, 20)


def meta_train(steps: int) -> Model:
    """GP-VIB on functions with a lengthscale of 1 and a noise variance of 0.05, by log predictive densities."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    phi, kernel = networks.MLP(1, (64, 64), reach=2.0), kernels.Linear()
    model = methods.gp_vib(phi, kernel, encoders.ExactSites(), likelihoods.Gaussian(noise=0.1))
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    tasks = GaussianTasks(shots=20, queries=20, min_shots=1, lengthscale=1.0, noise=0.05)
    for _ in range(steps):
        bound = predictive(model, tasks.sample((8,), generator), beta=0.1)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()
    return model


@torch.no_grad()
def coverage(model: Model, shots: int, levels: np.ndarray) -> tuple[np.ndarray, float]:
    """The share of the outputs of 400 new tasks inside each interval, and the mean width of those of 90 %."""
    tasks = GaussianTasks(shots=shots, queries=50, lengthscale=1.0, noise=0.05)
    new = tasks.sample((400,), torch.Generator().manual_seed(1))
    q = model(new)
    p = model.likelihood.predictive_cdf(q, new.query.y)  # where in its predictive distribution each output lies
    inside = np.array([float(((p - 0.5).abs() < level / 2).double().mean()) for level in levels])
    _, variance = model.likelihood.predict(q)
    return inside, float(2 * 1.645 * variance.sqrt().mean())


def main(argv: list[str] | None = None) -> dict[int, tuple[float, float]]:
    """Draws; returns the share inside the 90 % intervals and their mean width, for each number of points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="of meta-training")
    parser.add_argument("--out", type=Path, default=Path("intervals-that-mean-what-they-say.png"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    model, levels = meta_train(options.steps), np.linspace(0.05, 0.95, 19)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color="#222222", lw=1, ls="--", label="perfect")
    found = {}
    for shots, colour in zip(SHOTS, ("#8fb8e8", "#3f7fc8", "#123f70"), strict=True):
        inside, width = coverage(model, shots, levels)
        found[shots] = float(np.interp(0.9, levels, inside)), width
        left.plot(levels, inside, color=colour, label=f"{shots} points")
        right.bar(str(shots), width, color=colour)
        print(f"{shots:2} points: {found[shots][0]:.1%} inside the 90 % intervals, mean width {width:.2f}")
    left.set(xlabel="level of the interval", ylabel="share of outputs inside", xlim=(0, 1), ylim=(0, 1))
    right.set(xlabel="points of the new task", ylabel="mean width of the 90 % intervals")
    left.legend(frameon=False, fontsize=8)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, dpi=150)
    return found


if __name__ == "__main__":
    main()
