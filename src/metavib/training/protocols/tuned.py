"""Pictures with a network of the supervised stage that goes on learning: it starts where frozen features are.

Training tasks are of pictures, in random crops, as in `metavib.training.protocols.classification`. For validation and
test every picture is sent through the network once, and tasks are then made of the vectors: thousands of tasks of the
same few thousand pictures cost one pass over these. Without a step of training the result is, to the last digit, that
of the experiment `embeddings` on the file that `metavib embed` writes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, final

from metavib.data import Labelled, Splits
from metavib.data.catalog import dataset_root
from metavib.model import Model
from metavib.networks.tuned import Tuned
from metavib.random import Stream
from metavib.tasks.task import Task
from metavib.training.config import Config
from metavib.training.embedding import View, features
from metavib.training.metrics import PLAIN, Temperature
from metavib.training.pretrain import BACKBONE, load_backbone
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.experiment import Experiment


def resolve(config: Config) -> Config:
    """The config with what the network's file decides filled in: its widths.

    A path that leads somewhere from the current folder becomes absolute; another one is looked for below the folder of
    the datasets, wherever that is.
    """
    name = config.model.pretrained
    known = replace(config.model, pretrained=str(Path(name).absolute()) if Path(name).exists() else name)
    stage = load_backbone(where(replace(config, model=known))).config
    if stage.tasks.channels != config.tasks.channels:
        raise ValueError(
            f"{name} sees pictures of {stage.tasks.channels} channels; those of {config.tasks.name} have "
            f"{config.tasks.channels}."
        )
    return replace(config, model=replace(known, widths=stage.widths))


def where(config: Config) -> Path:
    """The file of the network that a config names."""
    if not config.model.pretrained:
        raise ValueError("model.backbone = tuned starts from a network of `metavib pretrain`: pass --backbone RUN.")
    path = dataset_root(config.tasks.root) / config.model.pretrained  # an absolute path stays what it is
    return path / BACKBONE if path.is_dir() else path


@final
class Tuning(Experiment):
    """Episodes of pictures to train on, and of the vectors that the model's own network makes of them to test on.

    Args:
        config: that of the run.
        splits: the pictures, where they are at hand; read from disk otherwise.
    """

    def __init__(self, config: Config, splits: Splits | None = None) -> None:
        self.config, self.pictures = config, Classification(config, splits)
        self.view = View(config.model.view or config.tasks.size, config.model.mirror)

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Training episodes of pictures."""
        return self.pictures.sample(shape, generator)

    def acquaint(self, model: Model) -> None:
        """Gives a new model the weights of the supervised stage, and shows it what its vectors are like."""
        network, train = tuned(model), self.pictures.splits.train
        stage = load_backbone(where(self.config), device=self.config.device)
        network.trunk.body.load_state_dict(stage.network.body.state_dict())
        network.head.look(self._vectors(network, train).images, train.labels)
        model.train()

    def check(self) -> None:
        """Refuses validation and test episodes of more classes or images than there are."""
        self.pictures.check()

    def validate(self, model: Model) -> dict[str, float]:
        """As with pictures, on vectors."""
        return self._of_vectors(model, "validation").validate(model)

    def temperature(self, validation: dict[str, float], start: dict[str, float]) -> Temperature:
        """As with pictures."""
        return self.pictures.temperature(validation, start)

    def evaluate(self, model: Model, *, temperature: Temperature = PLAIN, quiet: bool = False) -> dict[str, Any]:
        """As with pictures, on vectors."""
        world = self._of_vectors(model, "validation", "test")
        return world.evaluate(model, temperature=temperature, quiet=quiet)

    def _of_vectors(self, model: Model, *parts: str) -> Classification:
        """The same experiment with vectors in place of the pictures of some parts."""
        splits, network = self.pictures.splits, tuned(model)
        found = {part: self._vectors(network, getattr(splits, part)) for part in parts}
        return Classification(self.config, splits._replace(**found))

    def _vectors(self, network: Tuned, data: Labelled) -> Labelled:
        return data._replace(images=features(network.trunk, data.images, self.config.tasks, self.view))


def tuned(model: Model) -> Tuned:
    """The network of the supervised stage in a model."""
    return next(part for part in model.modules() if isinstance(part, Tuned))
