"""The same bound with four encoders: MAML, stochastic MAML, GP-VIB and GP+MAML differ in how a task is encoded.

    python examples/four_encoders.py

Each is trained by the same loop on the same sinusoids, with the same function `metavib.vib`; then each is given the
same five points of the same new function.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from metavib import Learner, encoders, kernels, likelihoods, methods, networks, vib
from metavib.encoders import Descent
from metavib.model import Model
from metavib.tasks.sinusoid import Sinusoids


def models() -> dict[str, tuple[Model, float]]:
    """The four, each with its weight of the KL."""
    torch.manual_seed(0)

    def phi() -> networks.MLP:
        return networks.MLP(1, (40, 40), reach=5.0)

    half = likelihoods.Gaussian(noise=0.5, learn=False)  # its gradient is that of the mean squared error
    step, small = Descent(steps=1, rate=0.01), Descent(steps=1, rate=1e-3)
    gp = kernels.Linear, encoders.ExactSites, lambda: likelihoods.Gaussian(noise=0.1)
    return {
        "MAML": (methods.maml(phi(), half, descent=step), 0.0),
        "stochastic MAML": (methods.stochastic_maml(phi(), half, descent=step, variance=1e-4), 1e-4),
        "GP-VIB": (methods.gp_vib(phi(), *(part() for part in gp)), 1.0),
        "GP+MAML": (methods.gp_maml(phi(), *(part() for part in gp), descent=small, beta=1.0), 1.0),
    }


def meta_train(model: Model, beta: float, steps: int) -> None:
    """One loop for all of them."""
    tasks, generator = Sinusoids(shots=10, queries=10), torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        bound = vib(model, tasks.sample((8,), generator), beta=beta, noise=generator)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()


@torch.no_grad()
def error(model: Model) -> float:
    """Mean squared error on 300 new functions, five points each."""
    generator = torch.Generator().manual_seed(1)
    new = Sinusoids(shots=5, queries=50).sample((300,), generator)
    with torch.enable_grad():  # two of the encoders take gradient steps
        mean, _ = model.likelihood.predict(model(new, noise=generator))
    return float((mean - new.query.y).square().mean())


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Draws; returns the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="of meta-training, for each")
    parser.add_argument("--out", type=Path, default=Path("one-bound-four-encoders.png"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    grid, x = np.linspace(-5, 5, 201), np.array([1.5, -2.8, 3.4, -0.6, -4.2])
    figure, errors = Figure(figsize=(11, 2.8), layout="constrained"), {}
    for ax, (name, (model, beta)) in zip(figure.subplots(1, 4, sharey=True), models().items(), strict=True):
        meta_train(model, beta, options.steps)
        errors[name] = error(model)
        found = Learner(model).adapt((x, 3 * np.sin(x - 1))).predict(grid)
        low, high = found.interval(0.95)
        ax.fill_between(grid, low, high, color="#8fb8e8", alpha=0.5, lw=0)
        ax.plot(grid, found.mean, color="#1f5fa8")
        ax.plot(grid, 3 * np.sin(grid - 1), color="#222222", lw=1, ls="--")
        ax.plot(x, 3 * np.sin(x - 1), "o", color="#222222", ms=4)
        ax.set(title=name, ylim=(-8, 8))
        ax.spines[["top", "right"]].set_visible(False)
        print(f"{name:16} mean squared error {errors[name]:.2f} on new functions, five points each")
    figure.savefig(options.out, dpi=150)
    return errors


if __name__ == "__main__":
    main()
