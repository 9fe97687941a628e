"""Everything a run depends on, as frozen dataclasses with a default for every field.

A config is read from a file (JSON or TOML), overridden by `--set section.field=value`, saved resolved in the run
folder, and suffices to rebuild the model. `metavib.training.recipes` holds the paper's numbers.
"""

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from metavib.files import naming
from metavib.objective import check_beta
from metavib.training.fields import from_dict

GRADIENT = ("maml", "stochastic-maml", "gp-maml")
BOUND = ("gp-vib", *GRADIENT)
TRANSFER = ("feature-transfer", "baseline++")
BASELINES = (*TRANSFER, "matching-net", "proto-net", "relation-net", "dkt")
METHODS = (*BOUND, *BASELINES)
DIRAC = ("maml", *BASELINES)
PRECISIONS = ("float32", "tf32", "bf16", "float64")


@dataclass(frozen=True)
class TableConfig:
    """A table of one's own, in a CSV file. `metavib.training.protocols.table.resolve` fills in what the file decides.

    Args:
        csv: the file.
        task, target: the columns with the task of a row and with its output.
        features: the columns with the inputs; empty: all others.
        missing: refuse missing inputs, or replace them by the training mean and add an indicator column.
        digest: SHA-256 of the file, so that no run goes on with another one.
        mean, scale, flags: standardisation of the inputs, and which of them have an indicator column.
        y_mean, y_scale: standardisation of real outputs.
    """

    csv: str | None = None
    task: str = ""
    target: str = ""
    features: tuple[str, ...] = ()
    missing: str = "refuse"
    digest: str = ""
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    flags: tuple[int, ...] = ()
    y_mean: float = 0.0
    y_scale: float = 1.0


@dataclass(frozen=True)
class TasksConfig:
    """Which tasks, and of what size.

    Args:
        name: the experiment.
        shots: K, support points of a task (of a class, in classification).
        queries: query points of a task (of a class).
        min_shots: where set, tasks are ragged: a number of support points each, uniform in [min_shots, shots].
        kernel, lengthscale, noise: of the process that `gaussian` tasks are drawn from.
        ways: N, classes of a task, in classification.
        channels, size: of an image as the network sees it.
        enlarge: images are resized to this many times `size` before their centre is taken.
        augment: random crops, colours and flips of training images; random motions of characters.
        crop: least share of an image's area in a random crop.
        jitter: strength of the changes in brightness, contrast and colour.
        degrees, zoom, shift: the motions: largest rotation, range of scales, largest shift in image sides.
        alphabets: the classes of a task are of one alphabet, the part of a class name before its first `/`; more shots
            than pictures of a class are further draws of the augmentation.
        augment_test: augment the images of validation and test too.
        rotations: 90 degree rotations as classes of their own (Omniglot to EMNIST; Omniglot always has them).
        shuffled: Omniglot's characters are split at random, as Finn et al. (2017) do, and not by alphabet.
        root: folder of the dataset; None: `$METAVIB_DATA`, else `data`.
        inputs: length of an input vector, where inputs are vectors.
        table: the table that tasks are drawn from, in the experiment of that name.
    """

    name: str = "sinusoid"
    shots: int = 10
    queries: int = 10
    min_shots: int | None = None
    kernel: str = "rbf"
    lengthscale: float = 0.5
    noise: float = 0.01
    ways: int = 5
    channels: int = 1
    size: int = 28
    enlarge: float = 1.15
    augment: bool = False
    crop: float = 0.08
    jitter: float = 0.4
    degrees: float = 30.0
    zoom: tuple[float, ...] = (0.8, 1.2)
    shift: float = 0.1
    alphabets: bool = False
    augment_test: bool = False
    rotations: bool = False
    shuffled: bool = False
    root: str | None = None
    inputs: int = 1
    table: TableConfig = field(default_factory=TableConfig)


@dataclass(frozen=True)
class ModelConfig:
    """Prior, encoder and likelihood.

    Args:
        backbone: mlp, conv4, strided-conv4 or resnet12.
        width, extra: channels of a convolutional network, and its extra convolutions after each layer.
        poolings: layers of conv4 that are pooled.
        norm: the batch-norm encoding: running, transductive or support+point; none for no batch-norm.
        classes: training classes, all of which feature-transfer and baseline++ learn to tell apart.
        context: full-context embeddings in matching-net.
        head_epochs, head_rate: how feature-transfer and baseline++ fit a new head at test.
        dkt_noise: the fixed noise variance of DKT.
        widths: hidden units of the MLP; the last layer is phi.
        reach: half-width of the inputs' range, over which the MLP's first layer is spread at the start.
        kernel: linear, cosine, bn-cosine, rbf, matern32 or matern52.
        bias: append a constant 1 to phi.
        learn_scale: learn the kernel's out-scale v.
        scale: where the factor e^v starts.
        sites: exact, simplified, full or general.
        site_m, site_s: where the amortised sites start.
        likelihood: gaussian, student-t, poisson, bernoulli or softmax.
        noise, noise_floor, learn_noise: the noise variance of a real-valued likelihood.
        samples: Monte Carlo samples of the softmax likelihood.
        inner_steps, inner_rate, first_order: the gradient encoders' descent.
        inner_points: support points that an inner step looks at, others at each step; 0: all.
        recompute: make the inside of each inner step again in the backward pass instead of keeping it: less memory.
        weight_variance: starting value of s in stochastic MAML.
        prior_variance: where set, the prior has a variance of its own that starts here.
        weight_samples: weights drawn a task and step in stochastic MAML.
    """

    backbone: str = "mlp"
    width: int = 64
    extra: int = 0
    poolings: int = 4
    norm: str = "running"
    classes: int = 0
    context: bool = False
    head_epochs: int = 100
    head_rate: float = 0.01
    dkt_noise: float = 0.1
    widths: tuple[int, ...] = (40, 40)
    reach: float | None = None
    kernel: str = "linear"
    bias: bool = False
    learn_scale: bool = False
    scale: float = 1.0
    sites: str = "exact"
    site_m: float = 1.0
    site_s: float = 0.69
    likelihood: str = "gaussian"
    noise: float = 1.0
    noise_floor: float = 1e-3
    learn_noise: bool = True
    samples: int = 200
    inner_steps: int = 1
    inner_rate: float = 0.01
    first_order: bool = False
    recompute: bool = False
    inner_points: int = 0
    weight_variance: float = 1e-4
    prior_variance: float | None = None
    weight_samples: int = 1


@dataclass(frozen=True)
class TrainConfig:
    """Meta-training.

    Args:
        steps: how many.
        tasks: tasks a step.
        objective: vib, the paper's bound; predictive, its form with log predictive densities (`metavib.objective`).
        splits: into support and query that a task's bound is averaged over (`metavib.training.splits`); of GP-VIB.
        beta: weight of the KL.
        lr: Adam's learning rate.
        scale_lr: that of the kernel's out-scale v, where it has one of its own.
        site_lr: that of the encoder's own parameters, where they have one of their own.
        schedule: constant, or cosine (to zero at the last step).
        restart_every: steps after which Adam's moments start anew (100 in DKT's code); 0: never.
        validate_every: steps between validations; 0: never.
        validation_tasks: how many tasks, always the same ones.
        select: which model is tested: the last, or the best on validation.
        save_every: steps between checkpoints.
        log_every: steps between lines of the metrics.
    """

    steps: int = 60_000
    tasks: int = 5
    objective: str = "vib"
    splits: int = 1
    beta: float = 1.0
    lr: float = 1e-3
    scale_lr: float | None = None
    site_lr: float | None = None
    schedule: str = "constant"
    restart_every: int = 0
    validate_every: int = 5_000
    validation_tasks: int = 200
    select: str = "last"
    save_every: int = 5_000
    log_every: int = 500


@dataclass(frozen=True)
class TestConfig:
    """Meta-testing, on tasks that depend on `seed` and the sizes alone, the same for every method.

    Args:
        shots: support sizes (of a class, in classification); empty: as in training.
        ways: classes of a task, in validation too; 0: as in training.
        tasks: how many tasks of each size.
        queries: query points of a task (of a class).
        inner_steps: gradient steps at test; empty: as in training.
        weight_samples: weights drawn by stochastic MAML.
        temperature: report class probabilities also under a temperature fitted on validation.
        seed: of the test tasks.
    """

    __test__ = False  # no test class, whatever pytest thinks of its name

    shots: tuple[int, ...] = (5, 10, 20)
    ways: int = 0
    tasks: int = 1000
    queries: int = 100
    inner_steps: tuple[int, ...] = ()
    weight_samples: int = 20
    temperature: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Config:
    """A run.

    Args:
        method: one of `METHODS`.
        seed: of weights and training tasks.
        repeats: independent trainings side by side, each with weights and tasks of its own.
        device: cpu or cuda.
        precision: float32, float64, bf16 (networks in bfloat16), or on a GPU tf32 (convolutions in TensorFloat-32);
            weights and the GP algebra are float32 in all but float64.
        threads: of PyTorch on a CPU; 0 leaves its own choice. Small networks are fastest with one.
        tasks, model, train, test: the sections.
    """

    method: str = "gp-vib"
    seed: int = 0
    repeats: int = 1
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    tasks: TasksConfig = field(default_factory=TasksConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    test: TestConfig = field(default_factory=TestConfig)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}.")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}.")
        if self.train.objective not in ("vib", "predictive"):
            raise ValueError(f"train.objective must be vib or predictive; got {self.train.objective!r}.")
        if self.train.schedule not in ("constant", "cosine"):
            raise ValueError(f"train.schedule must be constant or cosine; got {self.train.schedule!r}.")
        for name in ("steps", "tasks", "splits", "validation_tasks", "save_every", "log_every"):
            if getattr(self.train, name) < 1:
                raise ValueError(f"train.{name} must be at least 1; got {getattr(self.train, name)}.")
        for name in ("validate_every", "restart_every"):
            if getattr(self.train, name) < 0:
                raise ValueError(f"train.{name} must be 0 (never) or above; got {getattr(self.train, name)}.")
        if self.train.splits > 1:
            self._check_splits()
        if self.train.select not in ("last", "best"):
            raise ValueError(f"train.select must be last or best; got {self.train.select!r}.")
        if self.train.select == "best" and not self.train.validate_every:
            raise ValueError("train.select = best needs validations: set train.validate_every above 0.")
        for name in ("lr", "scale_lr", "site_lr"):
            rate = getattr(self.train, name)
            if rate is not None and not 0 < rate < float("inf"):
                raise ValueError(f"train.{name} must be positive; got {rate}.")
        if not 0 < self.model.scale < float("inf"):
            raise ValueError(f"model.scale must be positive; got {self.model.scale}.")
        if not 0 < self.tasks.crop <= 1:
            raise ValueError(f"tasks.crop is a share of an area, above 0 and at most 1; got {self.tasks.crop}.")
        if self.tasks.shuffled and self.tasks.name != "omniglot":
            raise ValueError(
                f"tasks.shuffled is another split of omniglot; {self.tasks.name} has one split: leave it false."
            )
        if self.tasks.rotations and self.tasks.name != "omniglot-emnist":
            raise ValueError(
                "tasks.rotations adds quarter turns to omniglot-emnist (omniglot always has them); "
                f"{self.tasks.name} does not take them: leave it false."
            )
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}.")
        if self.seed < 0 or self.test.seed < 0:
            raise ValueError(f"seed and test.seed must be 0 or above; got {self.seed} and {self.test.seed}.")
        if self.test.tasks < 2:
            raise ValueError(f"test.tasks must be at least 2, for an interval; got {self.test.tasks}.")
        self._check_test()
        check_beta(self.train.beta, dirac=self.method in DIRAC)

    @property
    def unrolled(self) -> int:
        """Inner steps of a training step, each of which takes a compiler as long as a step without any; at least 1."""
        return max(1, self.model.inner_steps) if self.method in GRADIENT else 1

    def _check_splits(self) -> None:
        """A task can be split anew only where its points may trade places, after the network."""
        tasks = self.tasks
        if self.method != "gp-vib" or self.model.norm == "support+point" or tasks.min_shots is not None:
            raise ValueError(
                "train.splits above 1 is for gp-vib, on tasks that all have the same shots, with a batch-norm that "
                f"does not tell support from query; got method = {self.method}, model.norm = {self.model.norm} and "
                f"tasks.min_shots = {tasks.min_shots}."
            )
        if self.train.splits * tasks.shots > tasks.shots + tasks.queries:
            raise ValueError(
                f"train.splits must leave no point in the support twice: with {tasks.shots} shots and {tasks.queries} "
                f"queries at most {(tasks.shots + tasks.queries) // max(tasks.shots, 1)}; got {self.train.splits}."
            )

    def _check_test(self) -> None:
        """What would otherwise fail after hours of training."""
        for name in ("queries", "weight_samples"):
            if getattr(self.test, name) < 1:
                raise ValueError(f"test.{name} must be at least 1; got {getattr(self.test, name)}.")
        for name in ("shots", "inner_steps"):
            if min(getattr(self.test, name), default=0) < 0:
                raise ValueError(f"test.{name} must be 0 or above; got {getattr(self.test, name)}.")
        if self.test.ways < 0 or self.test.ways == 1:
            raise ValueError(f"test.ways must be 0 (as in training), or 2 or above; got {self.test.ways}.")


def read(path: Path) -> Config:
    """A config from a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a readable JSON or TOML config: {error}.") from error
    with naming(path):
        return from_dict(Config, values)
