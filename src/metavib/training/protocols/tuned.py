"""Pictures with a network of the supervised stage: it goes on learning (`Tuning`), or stays as it is (`Frozen`).

Either starts where frozen features are. For validation and test every picture is sent through the network once, and
tasks are then made of the vectors: thousands of tasks of the same few thousand pictures cost one pass over these.
Without a step of training the result is, to the last digit, that of the experiment `embeddings` on the file that
`metavib embed` writes.

`Tuning` learns from tasks of pictures in random crops, as in `metavib.training.protocols.classification`. `Frozen`
learns from vectors, too, and so in seconds, since no more than a handful of numbers behind the network learn.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

from metavib.data import Labelled, Splits, class_splits
from metavib.data.catalog import dataset_root
from metavib.data.labelled import concatenate, first_of_each
from metavib.data.shifts import SPOILT, shifted
from metavib.model import Model
from metavib.networks.tuned import Tuned
from metavib.networks.weights import Network
from metavib.progress import Bar
from metavib.random import Stream
from metavib.tasks.task import Task
from metavib.training import bundled, run_folder
from metavib.training.config import Config, TasksConfig
from metavib.training.embedding import View, features
from metavib.training.fields import override
from metavib.training.pretrain import BACKBONE, load_backbone
from metavib.training.protocols import pictures
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.experiment import Experiment
from metavib.training.protocols.pictures import SEEN
from metavib.training.protocols.seen import load
from metavib.training.temperature import PLAIN, Temperature

EACH = 100  # pictures of a class that a handful of numbers is learned from


class Stage(NamedTuple):
    """A network that has been through a supervised stage, its widths, and the pictures it looks at."""

    network: Network
    widths: tuple[int, ...]
    tasks: TasksConfig


def resolve(config: Config, said: Collection[str] = ()) -> Config:
    """The config with what the network's file decides filled in, and then a folder of a user's own pictures.

    Args:
        config: from the recipes `tuned` or `frozen` of `metavib.training.recipes`.
        said: fields that the user has set, which stay as they are.
    """
    config = known(config, said)
    return pictures.resolve(config, (*said, *SEEN)) if config.tasks.name == "images" else config


def known(config: Config, said: Collection[str] = ()) -> Config:
    """The config with what the network's file decides filled in: its widths, and how it sees a user's own pictures.

    A path that leads somewhere from the current folder becomes absolute; another one is looked for below the folder of
    the datasets, wherever that is. The name of a model that comes with the package stays a name.

    Args:
        config: from the recipes `tuned` or `frozen` of `metavib.training.recipes`.
        said: fields that the user has set, which stay as they are.
    """
    name = config.model.pretrained
    here = Path(name).exists() and not _comes_with_the_package(config)
    model = replace(config.model, pretrained=str(Path(name).absolute()) if here else name)
    found = stage(replace(config, model=model))
    seen: dict[str, Any] = {}
    if config.tasks.name == "images":
        seen = {field: getattr(found.tasks, field.removeprefix("tasks.")) for field in SEEN}
    if config.frozen:
        apart = class_splits.datasets(found.tasks.name).isdisjoint(class_splits.datasets(config.tasks.name))
        seen["tasks.learn_from"] = "train" if apart else "validation"  # classes that the network has not seen
    config = override(config, {field: value for field, value in seen.items() if field not in said})
    if found.tasks.channels != config.tasks.channels:
        raise ValueError(
            f"{name} sees pictures of {found.tasks.channels} channels; those of {config.tasks.name} have "
            f"{config.tasks.channels}."
        )
    return replace(config, model=replace(model, widths=found.widths))


def stage(config: Config) -> Stage:
    """The network that a config names, from its file or from the model of that name."""
    if not _comes_with_the_package(config):
        pretrained = load_backbone(where(config), device=config.device)
        return Stage(pretrained.network, pretrained.config.widths, pretrained.config.tasks)
    name = config.model.pretrained
    known = bundled.checkpoint_of(name).config
    if known.model.backbone != "tuned":
        raise ValueError(f"the model {name} has no network of a supervised stage; photographs has one.")
    model = run_folder.selected(bundled.folder_of(name), device=config.device)
    return Stage(tuned(model).trunk, known.model.widths, known.tasks)


def where(config: Config) -> Path:
    """The file of the network that a config names."""
    if not config.model.pretrained:
        raise ValueError("model.backbone = tuned starts from a network of `metavib pretrain`: pass --backbone RUN.")
    if _comes_with_the_package(config):
        return bundled.folder_of(config.model.pretrained) / run_folder.BEST
    path = _path(config)
    return path / BACKBONE if path.is_dir() else path


def _path(config: Config) -> Path:
    return dataset_root(config.tasks.root) / config.model.pretrained  # an absolute path stays what it is


def _comes_with_the_package(config: Config) -> bool:
    """Whether the network is that of a model of this name; a user's own network of the same name comes first."""
    own = (Path(config.model.pretrained), _path(config))
    theirs = any(path.is_file() or (path / BACKBONE).exists() for path in own)
    return config.model.pretrained in bundled.names() and not theirs


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

    def acquaint(self, model: Model, *, quiet: bool = True) -> None:
        """Gives a new model the weights of the supervised stage, and shows it what its vectors are like."""
        network, train = tuned(model), self.pictures.splits.train
        network.trunk.body.load_state_dict(stage(self.config).network.body.state_dict())
        network.head.look(self.vectors(network.trunk, train, quiet=quiet).images, train.labels)
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
        """As with pictures, on vectors; those of shifted pictures among them."""
        network, pictures = tuned(model).trunk, self.pictures
        shifts = {name: self.vectors(network, pictures.tested(name), quiet=quiet) for name in self.config.test.shifts}
        world = self._of_vectors(model, "validation", "test", shifts=shifts, quiet=quiet)
        return world.evaluate(model, temperature=temperature, quiet=quiet)

    def vectors(self, network: Network, data: Labelled, *, quiet: bool = True) -> Labelled:
        """What the network of the supervised stage, as it is in a model, makes of pictures."""
        with Bar("pictures through the network", data.size, show=not quiet) as advance:
            phi = features(network, data.images, self.config.tasks, self.view, advance=advance)
        return data._replace(images=phi)

    def _of_vectors(
        self, model: Model, *parts: str, shifts: Mapping[str, Labelled] | None = None, quiet: bool = True
    ) -> Classification:
        """The same experiment with vectors in place of the pictures of some parts, and of shifts of the test's."""
        splits, network = self.pictures.splits, tuned(model).trunk
        found = {part: self.vectors(network, getattr(splits, part), quiet=quiet) for part in parts}
        return Classification(self.config, splits._replace(**found), shifts)


@final
class Frozen(Experiment):
    """Episodes of vectors to train and validate on, some of them of pictures that were spoilt before.

    A handful of numbers behind the network say how features are compared and how sure one may be, and a temperature
    for each number of shots does, too. Learned from ordinary pictures alone they promise too much of others. So every
    task shows its pictures in one of several ways, as they are or spoilt in one way (`tasks.spoilt`), and these
    numbers are those that are best on average. A hundred pictures of each class are enough for them.

    Args:
        config: that of the run.
        splits: the pictures, where they are at hand; read from disk otherwise.
    """

    def __init__(self, config: Config, splits: Splits | None = None) -> None:
        train, validation, test = load(config.tasks) if splits is None else splits
        some = Splits(first_of_each(train, EACH), first_of_each(validation, EACH), test)
        plain = replace(config, tasks=replace(config.tasks, spoilt=()))  # as pictures are tested
        self.config, self.tuning, self._quiet = config, Tuning(plain, some), True

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Training episodes of vectors."""
        return self._tasks.sample(shape, generator)

    def acquaint(self, model: Model, *, quiet: bool = True) -> None:
        """Gives a new model the weights of the supervised stage, and shows it what its vectors are like."""
        self.tuning.acquaint(model, quiet=quiet)
        self._quiet = quiet  # of the vectors that tasks are made of, which go through the network next

    def check(self) -> None:
        """Refuses validation and test episodes of more classes or images than there are, and unknown ways to spoil."""
        self.tuning.check()
        if strange := [name for name in self.config.tasks.spoilt if name not in SPOILT]:
            raise ValueError(f"tasks.spoilt may be {', '.join(SPOILT)}; got {', '.join(strange)}.")

    def validate(self, model: Model) -> dict[str, float]:
        """As with pictures, on vectors of pictures seen in all these ways."""
        return self._tasks.validate(model)

    def temperature(self, validation: dict[str, float], start: dict[str, float]) -> Temperature:
        """As with pictures."""
        return self.tuning.temperature(validation, start)

    def evaluate(self, model: Model, *, temperature: Temperature = PLAIN, quiet: bool = False) -> dict[str, Any]:
        """As with pictures, on vectors."""
        return self.tuning.evaluate(model, temperature=temperature, quiet=quiet)

    @cached_property
    def _tasks(self) -> Classification:
        """The same experiment on vectors, whose tasks are each of pictures seen in one way."""
        config, splits = self.config, self.tuning.pictures.splits
        network = stage(config).network
        validation = self._seen(network, splits.validation)
        learned = validation if config.tasks.learn_from == "validation" else self._seen(network, splits.train)
        parts = Splits(learned, validation, validation)
        return Classification(replace(config, tasks=replace(config.tasks, learn_from="train")), parts)

    def _seen(self, network: Network, data: Labelled) -> Labelled:
        """Vectors of pictures as they are and spoilt in each way, which stands before the names of their classes."""
        ways = {"as they are": data} | {name: shifted(data, name) for name in self.config.tasks.spoilt}
        named = [found._replace(names=tuple(f"{way}/{c}" for c in found.names)) for way, found in ways.items()]
        return self.tuning.vectors(network, concatenate(*named), quiet=self._quiet)


def tuned(model: Model) -> Tuned:
    """The network of the supervised stage in a model."""
    return next(part for part in model.modules() if isinstance(part, Tuned))
