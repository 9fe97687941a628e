"""Tasks to train on, and how models are validated and tested on them."""

from typing import TYPE_CHECKING

from metavib.training.config import CLASSIFICATION, EMBEDDINGS, EXPERIMENTS, REGRESSION, TABLE, Config
from metavib.training.protocols.experiment import Experiment as Experiment
from metavib.training.protocols.regression import Regression as Regression

if TYPE_CHECKING:
    from metavib.data import Splits


def experiment(config: Config, splits: "Splits | None" = None) -> Experiment:
    """The experiment that a config names: where its tasks come from, and how models are validated and tested on them.

    Args:
        config: that of the run.
        splits: pictures, where they are at hand; the data is read here otherwise.
    """
    if config.tasks.name in REGRESSION:
        return Regression(config)
    if config.tasks.name in (*CLASSIFICATION, EMBEDDINGS):
        from metavib.training.protocols.classification import Classification  # readers of images only where needed

        if config.model.backbone == "tuned":
            from metavib.training.protocols.tuned import Frozen, Tuning

            return Frozen(config, splits) if config.frozen else Tuning(config, splits)
        return Classification(config, splits)
    if config.tasks.name == TABLE:
        from metavib.training.protocols.table import Table

        return Table(config)
    raise ValueError(f"tasks.name must be one of {', '.join(EXPERIMENTS)}; got {config.tasks.name!r}.")
