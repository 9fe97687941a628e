"""An experiment: tasks to train on, how a model is validated, and how it is tested."""

from abc import ABC, abstractmethod
from typing import Any

from metavib.model import Model
from metavib.random import Stream
from metavib.tasks.task import Task
from metavib.training.temperature import PLAIN, Temperature

VALIDATION, TEST = 20, 30  # names of random streams, apart from training's by construction
PROTOTYPES = "prototypes"  # among the metrics of a validation: what nearest class means of the same features reach


class Experiment(ABC):
    """What the training loop asks of an experiment: tasks to train on, a validation, and a test.

    Example:
        >>> import torch
        >>> from metavib.training.protocols import experiment
        >>> from metavib.training.recipes import recipe
        >>> sines = experiment(recipe("sinusoid", "gp-vib"))
        >>> sines.sample((3,), torch.Generator()).support.x.shape  # three tasks of ten points
        torch.Size([3, 10, 1])
    """

    @abstractmethod
    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Training tasks, drawn anew.

        Args:
            shape: leading dimensions of the tasks.
            generator: what they are drawn from; nothing else decides.
        """

    def acquaint(self, model: Model, *, quiet: bool = True) -> None:  # noqa: B027 - most know nothing before a step
        """Lets a new model see the training data before its first step, where a part of it is taken from them.

        Args:
            model: new.
            quiet: draw no progress bar.
        """

    def check(self) -> None:  # noqa: B027 - nothing to refuse where tasks are made anew
        """Refuses, before any work, a validation or test that the data cannot give."""

    def obvious(self) -> dict[str, float]:
        """What obvious methods reach on the validation tasks, by their names, in the first metric of `validate`."""
        return {}

    @abstractmethod
    def validate(self, model: Model) -> dict[str, float]:
        """Metrics on the validation tasks, always the same ones.

        The first of them is what a progress bar shows; `score` is what models are selected by, the larger the better.
        """

    def temperature(self, validation: dict[str, float], start: dict[str, float]) -> Temperature:
        """The temperature of class probabilities that a validation has fitted, where it fits one.

        Args:
            validation: of the model.
            start: of the weights that training started from, where these were those of another model; else empty.
        """
        return PLAIN

    @abstractmethod
    def evaluate(self, model: Model, *, temperature: Temperature = PLAIN, quiet: bool = False) -> dict[str, Any]:
        """The test of a trained model, as JSON holds it.

        Args:
            model: trained.
            temperature: of its class probabilities, fitted on validation.
            quiet: draw no progress bar.
        """
