"""Tasks to train on, and how models are validated and tested on them."""

from metavib.training.config import Config
from metavib.training.protocols.experiment import Experiment as Experiment
from metavib.training.protocols.regression import Regression as Regression

REGRESSION = ("sinusoid", "gaussian")
CLASSIFICATION = (
    "glyphs",
    "omniglot-emnist",
    "omniglot",
    "augmented-omniglot",
    "mini-imagenet",
    "cub",
    "mini-imagenet-cub",
    "images",
)
TABLE = "table"
NAMES = (*REGRESSION, TABLE, *CLASSIFICATION)


def experiment(config: Config) -> Experiment:
    """The experiment of a config."""
    if config.tasks.name in REGRESSION:
        return Regression(config)
    if config.tasks.name in CLASSIFICATION:
        from metavib.training.protocols.classification import (
            Classification,
        )  # images are read only where they are needed

        return Classification(config)
    if config.tasks.name == TABLE:
        from metavib.training.protocols.table import Table

        return Table(config)
    raise ValueError(f"tasks.name must be one of {', '.join(NAMES)}; got {config.tasks.name!r}.")
