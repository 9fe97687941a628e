r"""A trained model in daily use: adapt to a task, learn on as points arrive, predict.

    learner = Learner.from_run("runs/demand")   # or Learner(model)
    task = learner.adapt(rows)                  # a predictor of this task
    task = task.update(more_rows)               # another one, which knows more
    task.predict(where).interval(0.95)
    task.save("task.safetensors")               # learner.load("task.safetensors") is the same predictor again

There are two kinds of predictors, with the same verbs (`metavib.adapt.predictor`): `Memorised`, of constant size, where
the model's encoder allows it, and `Conditioned`, which keeps its points, for everything else. `adapt_many` takes many
tasks at once (`metavib.adapt.many`).

A learner of a run takes data as the user has them and prepares them as training did (`metavib.adapt.preparation`); one
of a bare model takes arrays in the model's own space. Predictions are in float64 on the model's device, and always the
same for the same points: where an expectation is estimated by sampling (softmax), each class has base samples of its
own, drawn from a stream that its label names. So probabilities depend neither on the order of the classes nor on the
other points asked for.
"""

import warnings
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from metavib.adapt import believed
from metavib.adapt.believed import Judged
from metavib.adapt.file import read
from metavib.adapt.many import Predictors as Predictors
from metavib.adapt.points import Support
from metavib.adapt.predictor import Predictor as Predictor
from metavib.adapt.predictor import predictor
from metavib.adapt.preparation import ModelSpace, Preparation, of_run
from metavib.adapt.trained import SAMPLES, Trained
from metavib.files import naming
from metavib.model import Model
from metavib.networks import repeats
from metavib.training import build, bundled, checkpoint, run_folder, targets
from metavib.training.temperature import PLAIN, Temperature


@final
class Learner:
    """Adapts a trained model to tasks.

    Args:
        model: trained; it is copied, so that what happens to it later changes nothing here.
        preparation: what is done to the user's data before the model sees it; nothing where None.
        samples: base samples of predictive class probabilities.
        temperature: of these probabilities, fitted on validation tasks.

    Example:
        A kernel on the inputs themselves, a linear regression; it needs no training.

        >>> from metavib import Learner, encoders, kernels, likelihoods, methods, networks
        >>> parts = encoders.ExactSites(), likelihoods.Gaussian(noise=0.01)
        >>> learner = Learner(methods.gp_vib(networks.MLP(1, ()), kernels.Linear(), *parts))
        >>> task = learner.adapt(([[1.0], [2.0]], [2.0, 4.0]))
        >>> task.predict([[3.0]]).mean.round(decimals=2)
        tensor([5.9900], dtype=torch.float64)
        >>> task.update(([[3.0]], [9.0])).n, task.n  # a predictor never changes
        (3, 2)
    """

    def __init__(
        self,
        model: Model,
        *,
        preparation: Preparation | None = None,
        samples: int = SAMPLES,
        temperature: Temperature = PLAIN,
    ) -> None:
        options: Any = {"samples": samples, "temperature": temperature}
        self.trained = Trained(model, preparation or ModelSpace(), **options)

    @classmethod
    def from_run(
        cls,
        folder: str | Path,
        *,
        target: str | None = None,
        device: str = "cpu",
        precision: str | None = None,
        repeat: int = 0,
    ) -> "Learner":
        """The learner of a run folder: the checkpoint its config selects, under its test-time settings.

        Args:
            folder: of a run that has been trained, on any device; or the name of a model that comes with the package.
            target: which one, where the folder holds runs of several targets (`metavib.adapt.targets.Learners` reads
                all of them).
            device: where to use it.
            precision: float32 or float64; that of training where None (float32 for a training in bf16).
            repeat: which one, where the run is several repeats of a training.
        """
        folder = _of_target(bundled.folder(folder), target)
        saved = run_folder.chosen(folder)
        with naming(folder):
            return cls.of(saved, device=device, precision=precision, repeat=repeat)

    @classmethod
    def of(
        cls, saved: checkpoint.Checkpoint, *, device: str = "cpu", precision: str | None = None, repeat: int = 0
    ) -> "Learner":
        """The learner of a checkpoint, under the test-time settings of its config.

        Args:
            saved: of a training.
            device: where to use it.
            precision: as in `from_run`.
            repeat: as in `from_run`.
        """
        config = saved.config
        precision = precision or ("float32" if config.precision == "bf16" else config.precision)
        if precision not in build.DTYPES:
            raise ValueError(f"precision must be one of {', '.join(build.DTYPES)}; got {precision!r}.")
        if not 0 <= repeat < config.repeats:
            raise ValueError(f"there are repeats 0 to {config.repeats - 1}; got {repeat}.")
        model = build.at_test(checkpoint.restore_model(saved), config)
        if config.repeats > 1:
            model = repeats.unstack(model, repeat)
        model = build.in_precision(model, precision).to(device)
        return cls(model, preparation=of_run(config), temperature=saved.temperature)

    @classmethod
    def from_pretrained(cls, name: str, *, device: str = "cpu", precision: str | None = None) -> "Learner":
        """The learner of a model that comes with the package, which needs no training.

        Args:
            name: one of `metavib.training.bundled.names()`; `metavib models` says what each is.
            device: where to use it.
            precision: float32 or float64; float32 where None.
        """
        return cls.from_run(bundled.folder_of(name), device=device, precision=precision)

    @property
    def device(self) -> torch.device:
        """Where the model is, and where predictions come out."""
        return self.trained.device

    @property
    def preparation(self) -> Preparation:
        """What is done to the user's data before the model sees it, and to predictions before the user does."""
        return self.trained.preparation

    @property
    def fingerprint(self) -> str:
        """What tells this model from others, whatever device and precision it is used in."""
        return self.trained.fingerprint

    def adapt(self, support: Any, *, classes: Sequence[Hashable] | None = None, weight: Any = None) -> Predictor:
        """What is known of a task after its support set.

        Args:
            support: of one task; it may be empty.
            classes: labels of a classifier's classes, those without points included, in the order of the columns of
                its probabilities; the labels that occur, sorted, where None. Two for a binary likelihood: no, yes.
                Of a class without points nothing is known: its latent function is the prior's.
            weight: how many points each counts as `(n,)`, under GP-VIB and the hierarchical prior; one where None. A
                point of weight 3 is what the same point three times would be.

        Under a hierarchical prior rows that cannot be right are left out with a warning (`metavib.adapt.believed`), and
        rows of many tasks, by the column that names them, are taken as one with a warning.
        """
        if not isinstance(support, Judged):
            warn_of_tasks(support, self.preparation)
        return self._adapt(support, classes=classes, weight=weight)

    def _adapt(self, support: Any, *, classes: Sequence[Hashable] | None = None, weight: Any = None) -> Predictor:
        """`adapt`, once it is known whether the points are of one task."""
        judged = support if isinstance(support, Judged) else self.judge(support, weight=weight)
        if judged is not support:
            believed.tell(judged.wrong, support, self.preparation)
        points = judged.right
        return predictor(self.trained, Support((points,)), self.trained.classes(points.labels, classes))

    def judge(self, support: Any, *, weight: Any = None) -> Judged:
        """Which points `adapt` would leave out, since they cannot be right; what it returns `adapt` takes as well.

        Args:
            support: of one task, as for `adapt`.
            weight: how many points each counts as; one where None.

        Example:
            A network believes every point; a hierarchical prior looks closer.

            >>> from metavib import Learner, encoders, kernels, likelihoods, methods, networks
            >>> parts = encoders.ExactSites(), likelihoods.Gaussian(noise=0.1)
            >>> learner = Learner(methods.gp_vib(networks.MLP(1, ()), kernels.Linear(), *parts))
            >>> learner.judge(([[1.0], [2.0]], [2.0, 4e6])).left_out
            []
        """
        points = self.trained.points(support, weight=weight)
        return Judged(points, believed.wrong_together(self.trained, points, np.zeros(len(points.x), dtype=np.int64)))

    def adapt_many(
        self, support: Any, tasks: Any = None, *, classes: Sequence[Hashable] | None = None, weight: Any = None
    ) -> Predictors:
        """What is known of many tasks after the points of all of them, by the task of each.

        Args:
            support: points of all tasks, as for `adapt`.
            tasks: the task of each point, `(n,)`; or the column of a table that names it, that of the run where None.
            classes: labels of a classifier's classes, the same in all tasks; those that occur in each where None.
            weight: how many points each counts as `(n,)`; one where None.
        """
        return Predictors(self.trained, {}, classes=classes).update(support, tasks, weight=weight)

    def load(self, path: str | Path) -> Predictor:
        """The predictor that a task file holds; its predictions are those of the one saved, to the last bit.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no task file, is damaged, or was made with another model.
        """
        found = read(Path(path), self.trained)
        if found.column:
            raise ValueError(f"{path} holds many tasks, by their {found.column!r}: read it with load_many.")
        (task,) = found.tasks
        return predictor(self.trained, task.what, task.classes)

    def from_bytes(self, content: bytes) -> Predictor:
        """The predictor that the content of a task file holds, as `load` makes it of the file."""
        found = read(content, self.trained)
        if found.column:
            raise ValueError(f"the task file holds many tasks, by their {found.column!r}; one is expected.")
        (task,) = found.tasks
        return predictor(self.trained, task.what, task.classes)

    def load_many(self, path: str | Path) -> Predictors:
        """The predictors that a file of many tasks holds.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no file of many tasks, is damaged, or was made with another model.
        """
        found = read(Path(path), self.trained)
        if not found.column:
            raise ValueError(f"{path} holds one task: read it with load.")
        return Predictors.of_file(self.trained, found)


def warn_of_tasks(support: Any, preparation: Preparation) -> None:
    """Warns where points of many tasks, by the column of the run that names them, are about to be taken as one."""
    column = preparation.column
    try:
        ids = set(map(str, preparation.ids(support, column))) if column and not isinstance(support, tuple) else set()
    except (ValueError, OSError):  # without such a column the points are of one task
        return
    if len(ids) > 1:
        warnings.warn(
            f"rows of {len(ids)} tasks, by their {column!r}, are taken as one: adapt_many (on the command line --task "
            f"{column}) adapts to each of them.",
            UserWarning,
            stacklevel=3,
        )


def _of_target(folder: Path, target: str | None) -> Path:
    """The run of a target, where a folder holds runs of several; else the folder."""
    found = targets.folders(folder)
    if "" in found and target is None:
        return folder
    if target not in found:
        named = "has no runs of several targets" if "" in found else f"holds runs of the targets {', '.join(found)}"
        way_out = "leave target out" if "" in found else "name one, target=..., or read all with adapt.targets.Learners"
        raise ValueError(f"{folder} {named}; got target={target!r}: {way_out}.")
    return found[target]
