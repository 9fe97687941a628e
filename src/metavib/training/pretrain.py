r"""The supervised stage: a network learns to tell all training classes apart before it learns to learn.

$$\ell = \mathrm{CE}_\epsilon\big(y,\ \gamma \cos(\phi(x), w_c)\big) + \mathrm{CE}\big(k,\ V \phi(x)\big)$$

The first term is the class, with smoothed labels and a scaled cosine for each class; the second asks by how many
quarters k a picture was turned. A network that has been through this stage can teach another (`Teacher`): part of the
first term is then what the teacher makes of the same crop, in place of the label. Stochastic gradient descent with
Nesterov's momentum; the rate rises for a few epochs and falls to zero by half a cosine. After every few epochs nearest
centroids classify tasks of the *validation* classes, and the network that does so best is kept. A run folder holds

    config.json             everything the run depends on
    metrics.jsonl           a line every so often: step, loss, accuracy on the batch, validation
    last.safetensors        the newest state; a killed run goes on from it
    backbone.safetensors    the network that was best on validation: matrices in half precision, which halves the file

References:
    Chen, Liu, Kira, Wang, Huang. A Closer Look at Few-shot Classification. arXiv 1904.04232 (cosines).
    Gidaris, Bursuc, Komodakis, Pérez, Cord. Boosting Few-Shot Visual Learning with Self-Supervision. arXiv 1906.05186.
    Tian, Wang, Krishnan, Tenenbaum, Isola. Rethinking Few-Shot Image Classification. arXiv 2003.11539 (teachers).
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import cos, inf, log, pi
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavib.data import Splits
from metavib.data.augmentations import QuarterTurns, turned
from metavib.data.labelled import Labelled
from metavib.files import naming, read_tensors, to_json, write_json, write_tensors
from metavib.networks.resnet import ResNet12
from metavib.networks.weights import Network
from metavib.progress import Bar
from metavib.random import Stream, draw, seeded
from metavib.tasks.inputs import Inputs
from metavib.training import build, run_folder
from metavib.training.config import CLASSIFICATION, PRECISIONS, Config, TasksConfig
from metavib.training.embedding import View, centroid_scores, features, queries_of
from metavib.training.engine.compile import Work, compiled
from metavib.training.engine.graph import replayed
from metavib.training.fields import from_dict, override, to_dict
from metavib.training.protocols import seen
from metavib.training.protocols.experiment import VALIDATION
from metavib.training.recipes import recipe
from metavib.training.stopping import Interrupted, Stop

BACKBONE = "backbone.safetensors"
FORMAT = "metavib-pretraining-1"
PRETRAIN = 40  # name of the random streams, apart from those of meta-training, validation and test
LOOK = 20  # steps between looks at the loss and at the clock: each waits for the device


@dataclass(frozen=True)
class Pretraining:
    """Everything a supervised stage depends on.

    Args:
        tasks: the experiment whose training classes are told apart, and whose validation classes choose the network.
        widths: channels of the four blocks of ResNet-12; the last is M.
        epochs: passes over the training pictures.
        seconds: a limit on the time of training, compiling and validating included; the schedule of the learning rate
            then ends with the limit, should it come before the last epoch. None: no limit.
        batch: pictures a step.
        sides: sides of the training crops, one after the other for equal shares of the training; small ones first cost
            less. Empty: `tasks.size`.
        turns: share of the pictures that are turned by one to three quarters; 0: none, and no question about turns.
        lr: the peak learning rate.
        warm_up: epochs over which the rate rises to its peak.
        momentum: Nesterov's.
        weight_decay: of matrices; biases, scales and shifts have none.
        smoothing: how much of a label's weight is spread over all classes.
        scale: where the factor of the cosines starts; it is learned.
        dropout: share of the features that are set to zero, anew for every picture, before classes are told apart.
        teacher: a run of this stage, or its network's file, whose network teaches this one; empty for none.
        taught: how much of the classes' loss is the teacher's say; the rest is the label's.
        softness: what teacher's and pupil's scores are divided by before they are compared.
        validate_every: epochs between validations.
        episodes: validation tasks of each number of shots.
        save_every: epochs between checkpoints.
        seed: of weights, order and augmentation.
        device: where to compute, as in `metavib.training.config.Config`.
        precision: format of numbers, as there.
        threads: of PyTorch on a CPU, as there.
    """

    tasks: TasksConfig = field(default_factory=TasksConfig)
    widths: tuple[int, ...] = (64, 160, 320, 640)
    epochs: int = 100
    seconds: float | None = None
    batch: int = 128
    sides: tuple[int, ...] = ()
    turns: float = 0.5
    lr: float = 0.1
    warm_up: float = 2.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.1
    scale: float = 10.0
    dropout: float = 0.0
    teacher: str = ""
    taught: float = 0.5
    softness: float = 4.0
    validate_every: int = 10
    episodes: int = 500
    save_every: int = 20
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}.")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths must be positive, one a block; got {self.widths}.")
        for name in ("epochs", "batch", "validate_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.episodes < 2:
            raise ValueError(f"episodes must be at least 2, for an interval; got {self.episodes}.")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be positive, or none for no limit; got {self.seconds}.")
        if any(side < 16 for side in self.crops):
            raise ValueError(
                f"crops must have sides of at least 16 pixels, which four poolings need; got {self.crops}."
            )
        for name in ("turns", "momentum", "smoothing", "dropout", "taught"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1); got {getattr(self, name)}.")
        for name in ("lr", "scale", "softness"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} must be positive; got {getattr(self, name)}.")
        for name in ("warm_up", "weight_decay", "seed"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be 0 or above; got {getattr(self, name)}.")

    @property
    def crops(self) -> tuple[int, ...]:
        """Sides of the training crops, in their order."""
        return self.sides or (self.tasks.size,)


_CHANGES: dict[str, dict[str, Any]] = {
    # Cut from 256 pixels. A hundred epochs are 4,500 steps. Birds do not hang upside down: asked about turns, a
    # network is six points worse on them.
    "cub": {"tasks.crop": 0.2, "epochs": 120, "turns": 0.0},
    # Cut from 84 pixels: crops of 64 lose little sharpness and cost half. Nearest centroids on validation classes have
    # 61.4 and 76.9 % at one and five shots after 50 epochs without turns, and 57.4 and 74.1 % after 60 with them. After
    # 181 epochs with three pictures of four turned it is 61.1 and 78.0 % (64.3 and 79.4 as `metavib embed` shows them),
    # at four times the cost, and birds suffer.
    "mini-imagenet": {"tasks.crop": 0.3, "epochs": 50, "sides": [64, 84], "validate_every": 5, "turns": 0.0},
    "mini-imagenet-cub": {"tasks.crop": 0.3, "epochs": 40, "sides": [64, 84], "validate_every": 5, "turns": 0.0},
    # Characters that are turned are often other characters.
    "glyphs": {"widths": [16, 32, 64, 64], "epochs": 10, "turns": 0.0, "tasks.augment": True, "lr": 0.05},
}


def pretraining(experiment: str, *, teacher: str = "") -> Pretraining:
    """The supervised stage of an experiment with images, in our own numbers: the paper has no such stage.

    Args:
        experiment: one with images.
        teacher: a run of this stage whose network teaches this one. Labels are then not smoothed: what a teacher says
            is soft already, and says which classes are alike.

    Example:
        >>> pretraining("cub").tasks.size
        84
    """
    if experiment not in CLASSIFICATION:
        raise ValueError(f"there is a supervised stage for {', '.join(CLASSIFICATION)}; got {experiment!r}.")
    tasks = recipe(experiment, "gp-vib").tasks
    taught = {"teacher": teacher, "smoothing": 0.0} if teacher else {}
    return override(Pretraining(tasks=tasks), _CHANGES.get(experiment, {}) | taught)


class Supervised(nn.Module):
    r"""A network with the heads of its supervised stage: scaled cosines for classes, a linear one for turns.

    Args:
        backbone: $\phi$.
        classes: how many there are to tell apart.
        scale: $\gamma$ at the start.
    """

    def __init__(self, backbone: ResNet12, classes: int, *, scale: float) -> None:
        super().__init__()
        self.network = Network(backbone)
        self.rows = nn.Parameter(torch.randn(classes, backbone.features) / backbone.features**0.5)
        self.log_scale = nn.Parameter(torch.tensor(log(scale)))
        self.turns = nn.Linear(backbone.features, 4)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores of the classes `(N, classes)` and of the turns `(N, 4)` for pictures `(N, C, H, W)`.

        Features that are not `kept (N, M)` have no say in the classes; None keeps all.
        """
        phi = _phi(self.network, x)
        left = phi if kept is None else phi * kept
        cosines = F.normalize(left, dim=-1) @ F.normalize(self.rows, dim=-1).mT
        return self.log_scale.exp() * cosines, self.turns(phi)


def _phi(network: Network, x: Tensor) -> Tensor:
    return network(Inputs(x, torch.ones(len(x), dtype=torch.bool, device=x.device), 0))


class Teacher(nn.Module):
    r"""What a trained network makes of a picture: $\gamma \cos(\phi(x), c_k)$, $c_k$ the mean direction of class k.

    The network never changes. $\gamma$ is the one of `SCALES` under which the labels of the training pictures are the
    most probable, so that no head of its own stage is needed.

    Args:
        network: of a supervised stage, on any classes.
        data: the training pictures, of which the means are taken.
        tasks: says which part of a picture is its centre.
    """

    SCALES = tuple(2 ** (k / 2) for k in range(13))
    rows: Tensor
    scale: Tensor

    def __init__(self, network: Network, data: Labelled, tasks: TasksConfig) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)
        phi = F.normalize(features(network, data.images, tasks, View(tasks.size)), dim=-1)
        rows = F.normalize(phi.new_zeros(data.classes, phi.shape[-1]).index_add_(0, data.labels, phi), dim=-1)
        loss = {scale: float(F.cross_entropy(scale * phi @ rows.mT, data.labels)) for scale in self.SCALES}
        self.register_buffer("rows", rows)
        self.register_buffer("scale", torch.tensor(min(loss, key=lambda scale: loss[scale]), device=phi.device))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes `(N, classes)` for pictures `(N, C, H, W)`."""
        return self.scale * F.normalize(_phi(self.network, x), dim=-1) @ self.rows.mT


def pretrain(
    config: Pretraining, folder: Path, *, resume: bool = False, quiet: bool = False, splits: Splits | None = None
) -> dict[str, Any]:
    """Trains a network on the training classes in a run folder; returns the last line of its metrics.

    Args:
        config: everything the run depends on.
        folder: new or empty, unless resuming.
        resume: go on from the folder's newest checkpoint (from the start where there is none yet).
        quiet: no progress bar.
        splits: the data, where it is at hand; read from disk otherwise.

    Raises:
        metavib.training.stopping.Interrupted: after Ctrl-C or SIGTERM, once the state is saved.
    """
    build.set_torch(Config(device=config.device, precision=config.precision, threads=config.threads))
    prepare(config, folder, resume=resume)
    splits = (seen.load(config.tasks) if splits is None else splits).to(config.device)
    steps_of_epoch = splits.train.size // config.batch
    if not steps_of_epoch:
        raise ValueError(f"batch must be at most the {splits.train.size} training pictures; got {config.batch}.")
    queries_of(splits.validation)  # refuses classes that are too small to be tested on
    run = _Run(config, folder, splits, steps_of_epoch)
    write_json(folder / run_folder.CONFIG, to_dict(config))
    if (folder / run_folder.LAST).exists():
        run.restore(folder / run_folder.LAST)
    run.train(quiet=quiet)
    return run_folder.read_metrics(folder)[-1]


class _Run:
    """A supervised stage in progress.

    Args:
        config: of the stage.
        folder: of the run.
        splits: the data, on the device.
        steps_of_epoch: how many.
    """

    def __init__(self, config: Pretraining, folder: Path, splits: Splits, steps_of_epoch: int) -> None:
        self.config, self.folder, self.splits, self.steps_of_epoch = config, folder, splits, steps_of_epoch
        with torch.random.fork_rng(devices=[]):  # PyTorch's initialisers draw from the global generator
            torch.manual_seed(config.seed)
            backbone = ResNet12(config.tasks.channels, widths=config.widths)
            model = Supervised(backbone, splits.train.classes, scale=config.scale)
        model.network.bf16 = config.precision == "bf16"
        self.model = model.to(config.device, build.DTYPES[config.precision]).train()
        self.optimiser = sgd(self.model, config)
        self.teacher: Teacher | None = None
        if config.teacher:
            network = load_backbone(Path(config.teacher), device=config.device).network
            network.bf16 = model.network.bf16
            taught = Teacher(network, splits.train, config.tasks)
            self.teacher = taught.to(build.DTYPES[config.precision])
        self.stream = seeded(config.seed, PRETRAIN, device=config.device)
        self.step, self.best, self.spent = 0, -inf, 0.0
        self.programs: dict[int, Callable[[Tensor], tuple[Tensor, ...]]] = {}  # a step, by the side of its crops
        self.orders: dict[int, Tensor] = {}  # of the pictures, by epoch

    @property
    def steps(self) -> int:
        """Steps of the whole training, if time allows."""
        return self.config.epochs * self.steps_of_epoch

    @property
    def progress(self) -> float:
        """The share of the training that is over: of its steps or of its time, whichever is more."""
        limit = self.config.seconds
        return max(self.step / self.steps, 0.0 if limit is None else self.spent / limit)

    def train(self, *, quiet: bool) -> None:
        """Steps until the last one, or until the time is over; a validation ends it."""
        config, start = self.config, time.monotonic() - self.spent
        with Bar("pretraining", self.steps, start=self.step, show=not quiet) as advance, Stop() as stop:
            while self.progress < 1:
                side = config.crops[int(self.progress * len(config.crops))]
                hit, loss = self._take_step(side)
                epoch, within = divmod(self.step, self.steps_of_epoch)
                if within and self.step % LOOK:
                    continue
                line: dict[str, Any] = {"step": self.step, "loss": float(loss), "accuracy": float(hit), "side": side}
                if not abs(line["loss"]) < inf:
                    raise FloatingPointError(f"the loss is infinite or NaN at step {self.step}; lower lr.")
                self.spent = time.monotonic() - start
                over, stopped = self.progress >= 1, stop.asked
                if over or not within:
                    if over or epoch % config.validate_every == 0:
                        line["validation"] = self._validate()
                    self.spent = time.monotonic() - start
                    self._note({**line, "seconds": round(self.spent, 3)})
                advance(self.step, f"loss {line['loss']:.3f}" + f", best {self.best:.4f}" * (self.best > -inf))
                if over or stopped or (not within and epoch % config.save_every == 0):
                    self._save()
                if stopped and not over:
                    raise Interrupted(f"stopped after {self.step} of {self.steps} steps; continue with --resume.")

    def _take_step(self, side: int) -> tuple[Tensor, ...]:
        epoch, within = divmod(self.step, self.steps_of_epoch)
        if side not in self.programs:  # pictures of another size are another program, and the last is needed no more
            self.programs = {side: self._fastest(side)}
        if epoch not in self.orders:
            self.orders = {epoch: self._order(epoch)}
        batch = self.orders[epoch].narrow(0, within * self.config.batch, self.config.batch)
        self._set_rate()
        self.step += 1
        return self.programs[side](batch)

    def _order(self, epoch: int) -> Tensor:
        """The order of the pictures in an epoch, which depends on the seed and the epoch alone."""
        chosen = torch.randperm(self.splits.train.size, generator=seeded(self.config.seed, PRETRAIN, 1, epoch))
        return chosen.to(self.config.device)

    def _fastest(self, side: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """A step on pictures by their positions, with crops of some side, compiled and recorded where that pays."""
        (images, labels, _), model, optimiser = self.splits.train, self.model, self.optimiser
        loss = loss_of(self.config, side, self.teacher)
        work = compiled(loss, self.config.device, times=self.steps // len(self.config.crops))

        def step(index: Tensor) -> tuple[Tensor, Tensor]:
            optimiser.zero_grad()
            hit, loss = work(model, [self.stream], images.index_select(0, index), labels[index])
            loss.backward()
            optimiser.step()
            return hit.detach(), loss.detach()

        return replayed(step, self.config.device, [self.stream])

    def _set_rate(self) -> None:
        """Linear up to the peak, then half a cosine down to zero."""
        config = self.config
        rise = min(1.0, (self.step + 1) / max(1.0, config.warm_up * self.steps_of_epoch))
        rate = config.lr * rise * 0.5 * (1 + cos(pi * self.progress))
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # a recorded step reads its learning rate from memory
            else:
                group["lr"] = rate

    def _validate(self) -> dict[str, float]:
        """Nearest centroids on the validation classes; the network is kept where it is the best so far."""
        config, data = self.config, self.splits.validation
        phi = features(self.model.network, data.images, config.tasks, View(config.tasks.size))
        self.model.train()
        with_features = data._replace(images=phi)
        sizes: Any = {"ways": config.tasks.ways, "episodes": config.episodes, "seed": 1000 * VALIDATION}
        found = centroid_scores(with_features, **sizes)
        accuracy = {f"{shots}-shot": score.mean for shots, score in found.items()}
        score = sum(accuracy.values()) / len(accuracy)
        if score > self.best:
            self.best = score
            save_backbone(self.folder / BACKBONE, config, self.model.network, step=self.step)
        return {**accuracy, "score": score}

    def _note(self, line: dict[str, Any]) -> None:
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(to_json(line) + "\n")

    def _save(self) -> None:
        tensors = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors[f"momentum/{index}"] = state["momentum_buffer"]
        tensors["stream"] = self.stream.get_state()
        header = {"step": str(self.step), "best": repr(self.best), "spent": repr(self.spent)}
        header |= {"format": FORMAT, "config": json.dumps(to_dict(self.config))}
        write_tensors(self.folder / run_folder.LAST, tensors, header)

    def restore(self, path: Path) -> None:
        """Goes on from a checkpoint of this very config."""
        tensors, header = _read(path)
        with naming(path):
            if from_dict(Pretraining, json.loads(header["config"])) != self.config:
                raise ValueError("it is of a run with another config.")
            model = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
            momentum = {
                int(name.removeprefix("momentum/")): {"momentum_buffer": t}
                for name, t in tensors.items()
                if name.startswith("momentum/")
            }
            try:
                self.model.load_state_dict(model)
                self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": momentum})
                self.stream.set_state(tensors["stream"])
                self.step, self.best, self.spent = int(header["step"]), float(header["best"]), float(header["spent"])
            except (RuntimeError, KeyError) as error:
                raise ValueError(f"it does not fit its own config: {error}") from error
        run_folder.drop_metrics_after(self.folder, self.step)


def loss_of(config: Pretraining, side: int, teacher: Teacher | None = None) -> Work:
    """From a `Supervised` model, a random stream and a batch of pictures to its accuracy and the loss."""
    transform = seen.training_transform(replace(config.tasks, size=side))
    dtype = build.DTYPES[config.precision]

    def loss(model: Supervised, streams: Sequence[Stream], images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        (stream,) = streams
        x = transform(images, stream).to(dtype)
        quarters = QuarterTurns(config.turns).draw(x, stream) if config.turns else None
        x = x if quarters is None else turned(x, quarters)
        kept = None
        if config.dropout:
            kept = draw(torch.rand, (len(x), model.rows.shape[-1]), stream=stream).to(dtype) >= config.dropout
        classes, turns = model(x, kept)
        value = F.cross_entropy(classes, labels, label_smoothing=config.smoothing)
        if teacher is not None:
            # The labels alone decide how sure to be: followed in this too, a teacher throws the scale about.
            sure = model.log_scale.exp()
            apart = _apart(classes / sure * sure.detach(), teacher(x), config.softness)
            value = (1 - config.taught) * value + config.taught * apart
        if quarters is not None:
            value = value + F.cross_entropy(turns, quarters)
        return _hits(classes, labels), value

    return loss


def _apart(scores: Tensor, taught: Tensor, softness: float) -> Tensor:
    r"""$T\, \mathrm{KL}$ of a pupil's probabilities from the teacher's, both at the temperature T.

    The factor makes the gradient of a score as large as that of the label's term.
    """
    found, wanted = ((s / softness).log_softmax(-1) for s in (scores, taught))
    return softness * F.kl_div(found, wanted, log_target=True, reduction="batchmean")


def _hits(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.detach().argmax(-1) == labels).float().mean()


def sgd(model: nn.Module, config: Pretraining) -> torch.optim.SGD:
    """Stochastic gradient descent with Nesterov's momentum; what is no matrix is not decayed."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    for group in groups:  # each with a rate of its own in memory, where a recorded step reads it
        group["lr"] = torch.tensor(config.lr, device=config.device) if config.device.startswith("cuda") else config.lr
    return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.momentum > 0, fused=True)


def prepare(config: Pretraining, folder: Path, *, resume: bool) -> None:
    """Refuses a folder that holds something else or a device that is not there, before any work; writes nothing."""
    run_folder.check_device(config.device)
    if (folder / run_folder.CONFIG).exists():
        if not resume:
            raise FileExistsError(f"{folder} holds a run already; pass --resume to go on, or name another folder.")
        if read(folder / run_folder.CONFIG) != config:
            raise ValueError(f"{folder} holds a run with another config; resume it without changing options.")
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} exists and is no run; name a new folder.")


def read(path: Path) -> Pretraining:
    """The config of a supervised stage, as its run folder holds it."""
    with naming(path):
        try:
            return from_dict(Pretraining, json.loads(path.read_text(encoding="utf-8")))
        except RecursionError as error:
            raise ValueError(f"it is not JSON ({error}).") from error


class Pretrained(NamedTuple):
    """A network that has been through its supervised stage, and the config of that stage."""

    config: Pretraining
    network: Network


def save_backbone(path: Path, config: Pretraining, network: Network, *, step: int) -> None:
    """Writes a network: matrices as float16, the rest in full, so that no running average overflows."""
    tensors = {
        name: t.half() if t.ndim > 1 and t.is_floating_point() else t for name, t in network.body.state_dict().items()
    }
    write_tensors(path, tensors, {"format": FORMAT, "config": json.dumps(to_dict(config)), "step": str(step)})


def load_backbone(path: Path, *, device: str = "cpu") -> Pretrained:
    """The network of a supervised stage, from its run folder or from the file itself; its weights are float32."""
    path = path / BACKBONE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no network {path}: is that a run of `metavib pretrain`, and has it validated?"
        )
    tensors, header = _read(path)
    with naming(path):
        config = from_dict(Pretraining, json.loads(header["config"]))
        with torch.device("meta"):  # shapes alone: nothing of the file decides how much memory is asked for
            wanted = ResNet12(config.tasks.channels, widths=config.widths).state_dict()
        if {name: t.shape for name, t in wanted.items()} != {name: t.shape for name, t in tensors.items()}:
            raise ValueError("its weights do not fit its own config.")
        backbone = ResNet12(config.tasks.channels, widths=config.widths)
        backbone.load_state_dict(tensors)
    return Pretrained(config, Network(backbone.to(device)).eval())


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors, header = read_tensors(path)
    if header.get("format") != FORMAT or "config" not in header:
        raise ValueError(
            f"{path} is no file of `metavib pretrain` of this version: expected format {FORMAT!r}, "
            f"got {header.get('format')!r}."
        )
    return tensors, header
