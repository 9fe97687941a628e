"""The numbers of each experiment and method: the paper's where it gives them, ours named apart.

PAPER follows Titsias et al. (2021), section 5.1, with the inner learning rates re-expressed for this package's inner
objective (the mean log likelihood of the support).
"""

from dataclasses import replace
from typing import Any

from metavib.config import Config, ModelConfig, TasksConfig, TestConfig, TrainConfig
from metavib.strict import override

EXPERIMENTS = ("sinusoid", "gaussian")

_MAML = {"train.lr": 1e-3, "train.beta": 0.0, "model.noise": 0.5, "model.learn_noise": False}
PAPER: dict[tuple[str, str], dict[str, Any]] = {
    ("sinusoid", "gp-vib"): {"train.lr": 7.5e-4},
    ("sinusoid", "maml"): {**_MAML, "model.inner_rate": 0.01, "test.inner_steps": [1, 5, 10]},
    ("sinusoid", "stochastic-maml"): {
        "train.lr": 5e-4,
        "train.beta": 1e-3,
        "model.noise": 0.5,
        "model.learn_noise": False,
        "model.inner_rate": 0.1,
        "test.inner_steps": [1, 5, 10],
    },
    ("sinusoid", "gp-maml"): {"train.lr": 2e-3, "train.beta": 0.5, "model.inner_rate": 1e-4},
}


def recipe(experiment: str, method: str) -> Config:
    """The default config of a method on an experiment."""
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}; got {experiment!r}.")
    beta = 0.0 if method == "maml" else 1.0
    config = Config(
        method=method,
        tasks=TasksConfig(name=experiment),
        model=ModelConfig(),
        train=TrainConfig(beta=beta),
        test=TestConfig(),
    )
    if experiment == "gaussian":
        config = replace(config, model=ModelConfig(widths=(64, 64), noise=0.1), train=replace(config.train, tasks=16))
    return override(config, PAPER.get((experiment, method), {}))


def improved_sinusoid() -> Config:
    """Our GP-VIB for sinusoids, apart from the paper's; what each change did is in THEORY.md, section 7."""
    changes = {
        "model.reach": 5.0,
        "model.noise": 0.1,
        "model.noise_floor": 1e-5,
        "train.schedule": "cosine",
        "train.lr": 2e-3,
        "tasks.min_shots": 3,
    }
    return override(recipe("sinusoid", "gp-vib"), changes)


def demo() -> Config:
    """The quick path to something to look at."""
    changes = {"train.steps": 12_000, "train.validate_every": 2_000, "train.save_every": 2_000, "train.log_every": 100}
    return override(improved_sinusoid(), changes)
