"""Classes that nobody knew: a classifier meets a new class while it is in use, and says what it does not know.

    python examples/unknown_classes.py

The model has been trained on many tasks of three clusters each, anywhere in the plane. In use it is given points of two
classes; then points of a third one come. Colours are the predicted class; where they fade the model is unsure.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from metavib import Learner, encoders, kernels, likelihoods, methods, networks, vib
from metavib.tasks import examples, task

CENTRES = {"oak": (-2.0, -1.0), "elm": (1.5, -1.5), "yew": (0.0, 2.2)}
COLOURS = {"oak": (0.12, 0.37, 0.66), "elm": (0.85, 0.45, 0.1), "yew": (0.2, 0.55, 0.25)}


def meta_train(steps: int) -> Learner:
    """A classifier of three clusters anywhere, from one to eight points of each."""
    torch.manual_seed(0)
    rng, noise = np.random.default_rng(0), torch.Generator().manual_seed(0)
    sites = encoders.SimplifiedSites(m=3.0)
    model = methods.gp_vib(
        networks.MLP(2, (48, 48), reach=4.0), kernels.Linear(bias=True), sites, likelihoods.Softmax(3)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        shots = int(rng.integers(1, 9))
        y = np.tile(np.arange(3), (8, shots + 6))
        centres = rng.normal(size=(8, 3, 2)) * 2.5
        x = np.take_along_axis(centres, y[..., None], 1) + rng.normal(size=(*y.shape, 2)) * 0.6
        parts = (
            examples(torch.as_tensor(x[:, s]).float(), y[:, s]) for s in (slice(3 * shots), slice(3 * shots, None))
        )
        bound = vib(model, task(*parts), beta=0.01, noise=noise)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()
    return Learner(model)


def points(rng: np.random.Generator, name: str, n: int) -> tuple[np.ndarray, list[str]]:
    return np.array(CENTRES[name]) + 0.6 * rng.normal(size=(n, 2)), [name] * n


def main(argv: list[str] | None = None) -> float:
    """Draws; returns the share of new points that are right in the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="of meta-training")
    parser.add_argument("--out", type=Path, default=Path("a-class-that-nobody-knew.png"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    learner, rng = meta_train(options.steps), np.random.default_rng(1)
    oak, elm, yew = (points(rng, name, n) for name, n in (("oak", 4), ("elm", 4), ("yew", 6)))
    known = learner.adapt((np.concatenate([oak[0], elm[0]]), oak[1] + elm[1]))
    stages = {"two classes": known, "one point of a third": known.update((yew[0][:1], yew[1][:1]))}
    stages["six points of it"] = known.update(yew)
    shown = {"two classes": 0, "one point of a third": 1, "six points of it": 6}

    side = np.linspace(-5, 5, 61)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    figure = Figure(figsize=(9.5, 3.3), layout="constrained")
    for ax, (title, predictor) in zip(figure.subplots(1, 3, sharey=True), stages.items(), strict=True):
        p = predictor.predict(grid).probabilities.numpy()
        colours = np.array([COLOURS[name] for name in predictor.classes])
        entropy = -(p * np.log(np.maximum(p, 1e-12))).sum(1, keepdims=True) / np.log(p.shape[1])
        pixels = 1 - (1 - colours[p.argmax(1)]) * (1 - entropy)  # white where nothing is known
        ax.imshow(pixels.reshape(61, 61, 3), origin="lower", extent=(-5, 5, -5, 5), interpolation="bilinear")
        for x, labels in (oak, elm, (yew[0][: shown[title]], yew[1][: shown[title]])):
            if labels and len(x):
                ax.plot(*x.T, "o", color=COLOURS[labels[0]], mec="white", label=labels[0])
        ax.set(title=title, xticks=[], yticks=[])
        ax.legend(frameon=True, fontsize=8, loc="lower left")
    figure.savefig(options.out, dpi=150)

    right, entropies = [], []
    for name in CENTRES:
        x, labels = points(rng, name, 200)
        right += [a == b for a, b in zip(stages["six points of it"].predict(x).labels, labels, strict=True)]
        q = known.predict(x).probabilities.numpy()
        entropies.append((name, float(-(q * np.log(np.maximum(q, 1e-12))).sum(1).mean())))
    print("mean entropy while two classes are known: " + ", ".join(f"{name} {e:.2f}" for name, e in entropies))
    print(f"right in the end: {np.mean(right):.1%}")
    return float(np.mean(right))


if __name__ == "__main__":
    main()
