"""The general form of the bound: tasks without inputs. A class is known from a few of its members, none has a label.

    python examples/curves_of_a_class.py

A task is a class of curves, waves of one amplitude and phase; an observation is one of them, twelve noisy numbers. What
the curves of a class share is a hidden vector Z, of which the model knows nothing but that it exists. After some curves
of a new class, how probable is another one? Beside the model's answer: the exact one, by Bayes' rule for somebody who
knows that they are waves, and that of a Gaussian for all curves, which knows of no classes.
"""

import argparse
from math import pi

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from metavib.random import seeded
from metavib.unsupervised import LatentModel, Observations, observations, vib

TIMES = torch.linspace(0, 2 * pi, 13)[:-1]
WAVES = torch.stack([TIMES.sin(), TIMES.cos()], -1)  # a wave is a combination of these two, with normal weights
NOISE = 0.25


def classes(tasks: int, n: int, v: int, generator: torch.Generator) -> tuple[Observations, Observations]:
    """Some classes, with n curves to learn from and v others each."""
    weights = torch.randn(tasks, 1, 2, generator=generator)
    y = weights @ WAVES.mT + NOISE**0.5 * torch.randn(tasks, n + v, len(TIMES), generator=generator)
    return observations(y[:, :n]), observations(y[:, n:])


def exact(support: Observations, query: Observations) -> Tensor:
    """The log density of each query curve given the support, of the model that made them."""
    n = support.y.shape[-2]
    cov = torch.linalg.inv(torch.eye(2) + n * WAVES.mT @ WAVES / NOISE)
    mean = support.y.sum(-2) @ WAVES @ cov / NOISE
    spread = WAVES @ cov @ WAVES.mT + NOISE * torch.eye(len(TIMES))
    return MultivariateNormal((mean @ WAVES.mT).unsqueeze(-2), spread).log_prob(query.y)


def main(argv: list[str] | None = None) -> dict[int, tuple[float, float, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="steps of training")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    k, d = 3, len(TIMES)  # one number more than there is to know
    h = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 2 * k))
    g = nn.Sequential(nn.Linear(k, 64), nn.ReLU(), nn.Linear(64, d))
    model, generator = LatentModel(h, g, noise=1.0, samples=4), seeded(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.steps)
    for _ in range(options.steps):
        n = int(torch.randint(1, 6, (), generator=generator))
        bound = vib(model, *classes(32, n, n, generator), beta=1.0, noise=generator)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()
        schedule.step()

    model.samples, found = 500, {}
    for n in (0, 1, 5):
        support, query = classes(500, n, 3, seeded(1))
        with torch.no_grad():
            ours = model.log_predictive(model.encode(support), query, seeded(2))
        nothing = exact(Observations(support.y[:, :0], support.mask[:, :0]), query)
        found[n] = tuple(log_p.mean().item() for log_p in (ours, exact(support, query), nothing))
        scores = "log density of another {:.2f}; exact {:.2f}; without classes {:.2f}".format(*found[n])
        print(f"after {n} curves: {scores}")
    return found


if __name__ == "__main__":
    main()
