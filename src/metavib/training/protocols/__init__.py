"""Tasks to train on, and how models are validated and tested on them."""

from metavib.training.config import CLASSIFICATION, EMBEDDINGS, EXPERIMENTS, REGRESSION, TABLE, Config
from metavib.training.protocols.experiment import Experiment as Experiment
from metavib.training.protocols.regression import Regression as Regression


def experiment(config: Config) -> Experiment:
    """The experiment that a config names: where its tasks come from, and how models are validated and tested on them.

    Args:
        config: that of the run; its data is read here.
    """
    if config.tasks.name in REGRESSION:
        return Regression(config)
    if config.tasks.name in (*CLASSIFICATION, EMBEDDINGS):
        from metavib.training.protocols.classification import Classification  # readers of images only where needed

        if config.model.backbone == "tuned":
            from metavib.training.protocols.tuned import Frozen, Tuning

            return Frozen(config) if config.frozen else Tuning(config)
        return Classification(config)
    if config.tasks.name == TABLE:
        from metavib.training.protocols.table import Table

        return Table(config)
    raise ValueError(f"tasks.name must be one of {', '.join(EXPERIMENTS)}; got {config.tasks.name!r}.")
