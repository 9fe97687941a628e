"""Everything a run depends on, as frozen dataclasses with a default for every field.

A config is made by a recipe (`metavib.training.recipes`) or read from a file (JSON or TOML), changed by
`--set section.field=value`, saved whole in the run folder, and suffices to rebuild the model. What each field means
stands in the `Args` of its class, from where docs/config.md and `metavib config FIELD` take it.

Nothing here imports PyTorch, so that `metavib --help` can name experiments and methods at once.
"""

import json
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from metavib.files import naming
from metavib.training.fields import from_dict

GRADIENT = ("maml", "stochastic-maml", "gp-maml")
BOUND = ("gp-vib", *GRADIENT)
CLASSES = "gaussian-classes"
"""The method of the bound that is for classes alone."""
TRANSFER = ("feature-transfer", "baseline++")
BASELINES = (
    *TRANSFER,
    "matching-net",
    "proto-net",
    "relation-net",
    "nearest-centroids",
    "logistic-regression",
    "dkt",
)
METHODS = (*BOUND, CLASSES, *BASELINES)
"""Methods that are trained in steps."""
HIERARCHICAL = "hierarchical"
"""The method of tables that takes no steps: a hierarchical prior, learned by the evidence of all groups at once."""

DIRAC = ("maml", *BASELINES)
"""Methods whose encoder is a point mass, so that only beta = 0 makes sense."""

SPLIT_ANEW = ("gp-vib", CLASSES, "proto-net", "relation-net")
"""Methods whose tasks can be split into support and query several times after one pass through the network."""

TUNED = ("gp-vib", CLASSES, "proto-net", "dkt")
"""Methods that can train a network of the supervised stage further."""

AUTO = "auto"
"""The likelihood of a table whose file has not been looked at: the one that fits its outputs."""

REGRESSION = ("sinusoid", "gaussian")
CLASSIFICATION = (
    "glyphs",
    "omniglot-emnist",
    "omniglot",
    "augmented-omniglot",
    "mini-imagenet",
    "cub",
    "mini-imagenet-cub",
    "characters",
    "images",
)
TABLE = "table"
EMBEDDINGS = "embeddings"
EXPERIMENTS = (*REGRESSION, TABLE, *CLASSIFICATION, EMBEDDINGS)

KINDS = ("characters", "photographs")
PRECISIONS = ("float32", "tf32", "bf16", "float64")

DROPPED: dict[str, Any] = {
    "tasks.enlarge": 1.15,
    "tasks.degrees": 30.0,
    "tasks.zoom": [0.8, 1.2],
    "tasks.shift": 0.1,
    "model.head_rate": 0.01,
    "model.dkt_noise": 0.1,
    "model.prior_variance": None,
    "model.weight_samples": 1,
    "train.restart_every": 0,
}
"""Fields that configs had until version 0.1, and what the code has done since: these values."""


@dataclass(frozen=True)
class TableConfig:
    """A table of one's own, in a file. `metavib.training.protocols.table.resolve` fills in what the file decides.

    Args:
        csv: the file, CSV or Parquet by its name.
        task: the column that says which task a row belongs to; several, whose values together say it, with commas.
        target: the column with the output of each row: numbers, or labels of classes.
        features: the columns with the inputs; empty means all other columns.
        drop: columns that are no inputs.
        others: other targets of the same rows, which are no inputs either; a row that has one of these may lack the
            target, and is then left out.
        categories: input columns that name categories although they look like numbers or dates (codes, years).
        missing: what to do about missing inputs: mean, which puts the training mean in their place and adds a column
            that says where; auto, as the recipes have it, which does so with a warning; or refuse the file.
        digest: SHA-256 of the file, filled in from it, so that no run goes on with another one.
        columns: what each input column became as numbers, as JSON, filled in from the file; empty where all are
            numbers.
        classes: labels of the classes, filled in from the file where the outputs are labels.
        mean: mean of each column of numbers over the training tasks, filled in from the file.
        scale: standard deviation of each column of numbers over the training tasks, filled in from the file.
        flags: numbers of the columns that have an indicator of missing values, filled in from the file.
        y_mean: mean of a real output over the training tasks, filled in from the file.
        y_scale: standard deviation of a real output over the training tasks, filled in from the file.
        y_step: distance of neighbouring outputs that come in steps (1 of counts and of marks), and 0 of any others;
            filled in from the file.
        y_low: where the scale of outputs in steps begins, if it does; filled in from the file.
        y_high: where the scale of outputs in steps ends, if it does; filled in from the file.

    Example:
        >>> from metavib.training.config import TableConfig
        >>> TableConfig(csv="sales.csv", task="shop", target="sold").missing
        'refuse'
    """

    csv: str | None = None
    task: str = ""
    target: str = ""
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: str = "refuse"
    digest: str = ""
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    flags: tuple[int, ...] = ()
    y_mean: float = 0.0
    y_scale: float = 1.0
    y_step: float = 0.0
    y_low: float | None = 0.0
    y_high: float | None = None


@dataclass(frozen=True)
class TasksConfig:
    """Which tasks there are, and of what size.

    Args:
        name: the experiment: sinusoid, gaussian, table, glyphs, omniglot-emnist, omniglot, augmented-omniglot,
            mini-imagenet, cub, mini-imagenet-cub, characters, images or embeddings.
        shots: K, the number of support points of a task (of each class, in classification).
        queries: the number of query points of a task (of each class, in classification).
        min_shots: where set, every task draws its own number of support points, uniformly between this and `shots`; in
            classification every class of it does. With `train.splits` the splits go through these numbers instead.
        kernel: kernel of the Gaussian process that the tasks of `gaussian` are drawn from: rbf, matern32 or matern52.
        lengthscale: lengthscale of that kernel.
        noise: noise variance of those tasks.
        ways: N, the number of classes of a task.
        channels: colour channels of an image as the network sees it.
        size: side of an image as the network sees it, in pixels.
        kind: what the pictures show, characters or photographs, which decides how they are augmented; empty means
            characters where they have one channel.
        ink: bring every picture of a character to dark ink in the middle of white paper (`metavib.data.ink`).
        fit: what is kept of a picture that is not square: its centre, of which the network sees the inner part, as in
            the protocols of the literature; or the whole, on paper of its border's colour.
        held_out: classes for validation and for test each, at the least, where a folder of pictures does not say which
            these are; 0 means as many as a task has.
        skip_broken: leave out files that cannot be read as pictures, instead of refusing the folder.
        augment: augment the training images: random crops, colours and flips of photographs, random motions of
            characters, whose strokes are also made bolder where `ink` has made them alike.
        crop: the least share of a photograph's area that a random crop keeps.
        jitter: strength of the random changes of a photograph's brightness, contrast and colour.
        alphabets: take the classes of a task from one alphabet, which is the part of a class name before its first `/`;
            shots beyond the pictures of a class are further draws of the augmentation.
        alike: the share of training tasks whose classes are all of one alphabet, and so resemble each other, which
            teaches a model to doubt; the classes of the others, and of all tasks of validation and test, are any.
        augment_test: augment the images of validation and test too.
        rotations: make classes of their own of the quarter turns of Omniglot's characters, in omniglot-emnist
            (omniglot always does).
        shuffled: split Omniglot's characters at random, as Finn et al. (2017) do, and not by alphabet.
        root: folder of the dataset; none means `$METAVIB_DATA`, or `data` where that is not set.
        inputs: length of an input vector; filled in from the file on tables and embeddings.
        features: array files of embeddings, as `metavib embed` writes them: one, or two of which all classes of the
            first train, and those of the second validate and test.
        digests: SHA-256 of these files, filled in from them, so that no run goes on with others.
        learn_from: the classes whose tasks the model learns from: train, or validation. The second is for models with a
            handful of parameters on features of a network that knows the training classes by heart.
        spoilt: where the network stays as it is, learn and validate also on tasks whose pictures are all out of focus
            (blur), grainy (noise), light on dark (inversion), without colours (grey) or close up (close), as often as
            on ordinary ones.
        unseen: of two files, choose on the validation classes of the first, so that nothing is known of the second
            before the test.
        table: the table that the tasks of `table` come from.

    Example:
        >>> from metavib.training.config import TasksConfig
        >>> TasksConfig(name="glyphs", shots=5).ways
        5
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
    kind: str = ""
    ink: bool = False
    fit: str = "centre"
    held_out: int = 0
    skip_broken: bool = False
    augment: bool = False
    crop: float = 0.08
    jitter: float = 0.4
    alphabets: bool = False
    alike: float = 0.0
    augment_test: bool = False
    rotations: bool = False
    shuffled: bool = False
    root: str | None = None
    inputs: int = 1
    features: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    learn_from: str = "train"
    spoilt: tuple[str, ...] = ()
    unseen: bool = False
    table: TableConfig = field(default_factory=TableConfig)


@dataclass(frozen=True)
class ModelConfig:
    """Prior, encoder and likelihood.

    Args:
        backbone: the network that makes the features: mlp, conv4, strided-conv4, resnet12; embedded, which centres and
            whitens embeddings and may have an MLP behind; or tuned, a ResNet-12 of `metavib pretrain` that goes on
            learning, its features centred and whitened in the same way.
        pretrained: the run of `metavib pretrain` whose network is tuned, or that network's file; where it is no path,
            a file below the folder of the datasets. Of pictures of one's own: the bundled model whose weights training
            starts from, filled in by looking at the pictures; empty for random weights.
        view: side to which pictures are brought at validation and test, where the network is tuned; 0 means
            `tasks.size`.
        mirror: average features over a picture and its mirror image at validation and test, where the network is tuned.
        width: channels of every layer of conv4 and strided-conv4.
        extra: further convolutions after each layer of conv4 and strided-conv4.
        poolings: how many of conv4's four layers are pooled, from the first.
        norm: the batch-norm encoding: running, transductive, support+point or union; none for no batch-norm. Union is
            the paper's non-transductive one: it sends the support through the network once for each query point.
        classes: number of training classes, all of which feature-transfer and baseline++ learn to tell apart.
        context: use full-context embeddings in matching-net.
        head_epochs: passes over the support in which feature-transfer and baseline++ fit a new head at test.
        widths: hidden units of each layer of the MLP; the last layer is phi. Empty means no MLP. Of a tuned network the
            channels of its blocks, filled in from its file.
        dropout: probability with which a number of an embedding is set to zero before the MLP, while training.
        reach: half the width of the range that inputs come from, over which the MLP's first layer is spread at the
            start; none leaves it around zero.
        start_variance: variance of a starting weight of the MLP, times the number of inputs of its layer: 2 as in He et
            al. (2015), 1/3 as in PyTorch.
        kernel: kernel on the features: linear, cosine, bn-cosine, rbf, matern32 or matern52.
        bias: append a constant 1 to phi.
        learn_scale: learn the kernel's out-scale v.
        scale: where the kernel's factor e^v starts.
        sites: how support points become sites: exact, simplified, full or general.
        site_m: where the factor m of simplified and full sites starts.
        site_s: where the variance s of simplified and full sites starts.
        likelihood: how outputs depend on the function: gaussian, student-t, poisson, bernoulli or softmax; on tables
            also auto, which is gaussian for numbers and one of classes for labels, 0 and 1 among them.
        noise: where the noise variance of a real-valued likelihood starts.
        noise_floor: lower bound of that noise variance.
        learn_noise: learn the noise variance of the Gaussian likelihood.
        samples: Monte Carlo samples of the softmax likelihood.
        inner_steps: gradient steps of an encoder that adapts weights.
        inner_rate: size of these steps.
        inner_mean: in gp-maml, take these steps on the bound of a point, F / n; otherwise on F, as the paper does.
        first_order: leave second derivatives out of their gradient.
        inner_points: support points that each of these steps looks at, others every time; 0 means all.
        inner_shuffle: have these points come in a random order, as the paper does; otherwise they are spread evenly
            over the support.
        recompute: compute the inside of each inner step again in the backward pass instead of keeping it, which takes
            less memory and more time.
        weight_variance: where the variance s of the weights starts, in stochastic MAML and in gp-maml with
            train.beta_psi.

    Example:
        >>> from metavib.training.config import ModelConfig
        >>> ModelConfig(kernel="cosine").widths
        (40, 40)
    """

    backbone: str = "mlp"
    pretrained: str = ""
    view: int = 0
    mirror: bool = False
    width: int = 64
    extra: int = 0
    poolings: int = 4
    norm: str = "running"
    classes: int = 0
    context: bool = False
    head_epochs: int = 100
    widths: tuple[int, ...] = (40, 40)
    dropout: float = 0.0
    reach: float | None = None
    start_variance: float = 2.0
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
    inner_mean: bool = True
    first_order: bool = False
    inner_points: int = 0
    inner_shuffle: bool = False
    recompute: bool = False
    weight_variance: float = 1e-4


@dataclass(frozen=True)
class TrainConfig:
    """Meta-training.

    Args:
        steps: number of training steps.
        minutes: a limit on the time of training, validations included; the schedule of the learning rate ends with it,
            should it come before the last step, and there are thirty validations at least. None means no limit.
        patience: stop after so many validations in a row that were not the best so far; 0 means never.
        tasks: number of tasks in each step.
        objective: what is maximised: vib, the paper's bound, or predictive, its form with log predictive densities
            (see `metavib.objective`).
        splits: into how many pairs of support and query each task is split anew, its bound being the average over them
            (see `metavib.training.resplit`).
        beta: weight of the KL.
        beta_psi: in gp-maml, a Gaussian over the network's weights, and the weight of its KL; none for a Dirac, as in
            the paper's experiments.
        lr: Adam's learning rate.
        network_lr: learning rate of the network's weights, where it is tuned: none means `lr`, and with 0 the network
            stays as it is, every picture goes through it once, and a handful of numbers behind it are learned.
        scale_lr: learning rate of the kernel's out-scale; none means `lr`.
        site_lr: learning rate of the encoder's own parameters; none means `lr`.
        schedule: how learning rates change: constant, or cosine, which ends at zero.
        validate_every: steps between validations; 0 means never.
        validation_tasks: number of validation tasks, always the same ones.
        select: which model is tested and used: the last, or the best on validation.
        calibrate: fit a temperature to the class probabilities on the validation tasks, call that model best whose
            NLL is then smallest, and keep the temperature with it for every prediction; false means that the best is
            the most accurate, and probabilities are the model's own.
        save_every: steps between checkpoints.
        log_every: steps between lines of the metrics.

    Example:
        >>> from metavib.training.config import TrainConfig
        >>> TrainConfig(steps=100).lr
        0.001
    """

    steps: int = 60_000
    minutes: float | None = None
    patience: int = 0
    tasks: int = 5
    objective: str = "vib"
    splits: int = 1
    beta: float = 1.0
    beta_psi: float | None = None
    lr: float = 1e-3
    network_lr: float | None = None
    scale_lr: float | None = None
    site_lr: float | None = None
    schedule: str = "constant"
    validate_every: int = 5_000
    validation_tasks: int = 200
    select: str = "last"
    calibrate: bool = False
    save_every: int = 5_000
    log_every: int = 500


@dataclass(frozen=True)
class TestConfig:
    """Meta-testing, on tasks that depend on `seed` and the sizes alone, the same for every method.

    Args:
        shots: numbers of support points to test with (of each class, in classification); empty means as in training.
        min_shots: where set, every class of a test task has a number of points of its own, between this and `shots`.
        ways: classes of a task in validation and test; 0 means as in training.
        tasks: number of test tasks for each number of shots.
        queries: number of query points of a test task (of each class, in classification).
        inner_steps: numbers of gradient steps to test with; empty means as in training.
        weight_samples: number of weights that stochastic MAML, or gp-maml with train.beta_psi, draws at test.
        temperature: report class probabilities also under a temperature that is fitted on validation.
        shifts: test also on pictures unlike those of training: blur, noise, inversion; of characters also emnist and
            drawings, of photographs grey, close and birds (see `metavib.data.shifts`).
        unknown: say also how well pictures of classes that a task does not have are told from those it has.
        seed: decides the test tasks.

    Example:
        >>> from metavib.training.config import TestConfig
        >>> TestConfig(shots=(1, 5)).tasks
        1000
    """

    __test__ = False  # no test class, whatever pytest thinks of its name

    shots: tuple[int, ...] = (5, 10, 20)
    min_shots: int | None = None
    ways: int = 0
    tasks: int = 1000
    queries: int = 100
    inner_steps: tuple[int, ...] = ()
    weight_samples: int = 20
    temperature: bool = False
    shifts: tuple[str, ...] = ()
    unknown: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Config:
    """The method, and where and how often it is trained.

    Args:
        method: one of gp-vib, maml, stochastic-maml and gp-maml; for classes also gaussian-classes; on tables also
            hierarchical, which learns a function that all groups share and how far a group's own may differ, without
            steps, so that no field of `train` and none of the network counts; or a baseline: feature-transfer,
            baseline++, matching-net, proto-net, relation-net, nearest-centroids, logistic-regression or dkt.
        seed: decides weights and training tasks.
        repeats: number of independent trainings side by side, each with weights and tasks of its own.
        device: where to compute: cpu or cuda.
        precision: format of numbers: float32, float64, bf16 (networks compute in bfloat16), or on a GPU tf32
            (convolutions in TensorFloat-32); weights and the GP algebra are float32 in all but float64.
        threads: threads of PyTorch on a CPU; 0 leaves PyTorch its own choice. Small networks are fastest with one.
        tasks: which tasks there are.
        model: prior, encoder and likelihood.
        train: meta-training.
        test: meta-testing.

    Example:
        >>> from metavib.training.config import Config, TrainConfig
        >>> config = Config(method="gp-vib", train=TrainConfig(steps=100))
        >>> config.train.steps, config.train.lr, config.tasks.name
        (100, 0.001, 'sinusoid')
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
        if self.method not in (*METHODS, HIERARCHICAL):
            raise ValueError(f"method must be one of {', '.join((*METHODS, HIERARCHICAL))}; got {self.method!r}.")
        self._check_hierarchical()
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}.")
        if self.train.objective not in ("vib", "predictive"):
            raise ValueError(f"train.objective must be vib or predictive; got {self.train.objective!r}.")
        if self.train.schedule not in ("constant", "cosine"):
            raise ValueError(f"train.schedule must be constant or cosine; got {self.train.schedule!r}.")
        for name in ("steps", "tasks", "splits", "validation_tasks", "save_every", "log_every"):
            if getattr(self.train, name) < 1:
                raise ValueError(f"train.{name} must be at least 1; got {getattr(self.train, name)}.")
        if self.train.validate_every < 0:
            raise ValueError(f"train.validate_every must be 0 (never) or above; got {self.train.validate_every}.")
        if self.train.splits > 1:
            self._check_splits()
        if self.train.select not in ("last", "best"):
            raise ValueError(f"train.select must be last or best; got {self.train.select!r}.")
        self._check_validations()
        for name in ("lr", "network_lr", "scale_lr", "site_lr"):
            rate = getattr(self.train, name)
            still = name == "network_lr" and rate == 0
            if rate is not None and not still and not 0 < rate < float("inf"):
                least = "0 or above" if name == "network_lr" else "positive"
                raise ValueError(f"train.{name} must be {least}; got {rate}.")
        if self.tasks.spoilt and not self.frozen:
            raise ValueError(
                "tasks.spoilt is for a network that stays as it is (model.backbone = tuned and train.network_lr = 0, "
                f"or --frozen); got {', '.join(self.tasks.spoilt)}."
            )
        if self.model.view and self.model.view < 16:
            raise ValueError(f"model.view is a side of at least 16 pixels, or 0; got {self.model.view}.")
        if not 0 < self.model.scale < float("inf"):
            raise ValueError(f"model.scale must be positive; got {self.model.scale}.")
        if self.tasks.kind not in ("", *KINDS):
            raise ValueError(f"tasks.kind must be one of {', '.join(KINDS)}, or empty; got {self.tasks.kind!r}.")
        if self.tasks.held_out < 0 or self.tasks.held_out == 1:
            raise ValueError(f"tasks.held_out must be 0 (as in a task), or 2 or above; got {self.tasks.held_out}.")
        if self.tasks.fit not in ("centre", "whole"):
            raise ValueError(f"tasks.fit must be centre or whole; got {self.tasks.fit!r}.")
        if self.tasks.ink and (self.tasks.channels != 1 or self.tasks.kind == "photographs"):
            raise ValueError(
                "tasks.ink is for characters of one channel; got "
                f"tasks.channels = {self.tasks.channels} and tasks.kind = {self.tasks.kind!r}."
            )
        if not 0 < self.tasks.crop <= 1:
            raise ValueError(f"tasks.crop is a share of an area, above 0 and at most 1; got {self.tasks.crop}.")
        if not 0 <= self.model.dropout < 1:
            raise ValueError(f"model.dropout is a probability, 0 or above and below 1; got {self.model.dropout}.")
        if self.tasks.learn_from not in ("train", "validation"):
            raise ValueError(f"tasks.learn_from must be train or validation; got {self.tasks.learn_from!r}.")
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
        if self.model.norm == "union" and self.method not in BOUND:
            raise ValueError(f"model.norm = union is for {', '.join(BOUND)}; got {self.method}. Take support+point.")
        self._check_alike()
        self._check_test()
        from metavib.objective import check_beta  # PyTorch comes with it, which reading this module does not need

        check_beta(self.train.beta, dirac=self.method in DIRAC)
        self._check_beta_psi()

    def on(self, device: str) -> "Config":
        """The same run on another device; formats of numbers that a GPU alone computes fast in are float32 on a CPU.

        Example:
            >>> from metavib.training.recipes import recipe
            >>> from dataclasses import replace
            >>> config = replace(recipe("cub", "gp-vib"), device="cuda", precision="bf16")
            >>> config.on("cpu").precision, config.on("cpu") == recipe("cub", "gp-vib")
            ('float32', True)
        """
        precision = "float32" if device == "cpu" and self.precision in ("tf32", "bf16") else self.precision
        return replace(self, device=device, precision=precision)

    def trains_like(self, other: "Config") -> bool:
        """Whether a training under either leaves the same model, whatever the device and how it is tested.

        Validation has the ways of the test, and where predictions are calibrated its shots and queries, too.

        Example:
            >>> from metavib.training.fields import override
            >>> from metavib.training.recipes import frozen, recipe
            >>> starts = recipe("cub", "gp-vib"), frozen("cub", "gp-vib")
            >>> [one.trains_like(override(one, {"test.shots": [3]})) for one in starts]
            [True, False]
        """
        mine, calibrated = self.test, self.train.calibrate
        seen: dict[str, Any] = {"shots": mine.shots, "queries": mine.queries} if calibrated else {}
        test = replace(other.test, ways=mine.ways, **seen)
        return replace(self, test=test).on("cpu") == other.on("cpu")

    @property
    def frozen(self) -> bool:
        """Whether a network of a supervised stage stays as it is, and only what is behind it learns."""
        return self.model.backbone == "tuned" and self.train.network_lr == 0

    @property
    def unrolled(self) -> int:
        """Inner steps of a training step, each of which takes a compiler as long as a step without any; at least 1."""
        return max(1, self.model.inner_steps) if self.method in GRADIENT else 1

    def _check_hierarchical(self) -> None:
        """A hierarchical prior learns from the groups of a table, in float64."""
        if self.method == HIERARCHICAL and (self.tasks.name, self.precision, self.repeats) != (TABLE, "float64", 1):
            raise ValueError(
                f"{HIERARCHICAL} learns from the rows of a table, in float64, once; got tasks.name = "
                f"{self.tasks.name}, precision = {self.precision} and repeats = {self.repeats}."
            )

    def _check_validations(self) -> None:
        """What needs validations, or a limit that makes sense."""
        train = self.train
        for name, wants in (("select = best", train.select == "best"), ("patience", train.patience > 0)):
            if wants and not train.validate_every:
                raise ValueError(f"train.{name} needs validations: set train.validate_every above 0.")
        if train.patience < 0:
            raise ValueError(f"train.patience must be 0 (never) or above; got {train.patience}.")
        if train.calibrate and (self.tasks.name not in CLASSIFICATION or not train.validate_every):
            raise ValueError("train.calibrate is for images, with validations: set train.validate_every above 0.")
        if train.minutes is not None and not 0 < train.minutes < float("inf"):
            raise ValueError(f"train.minutes must be positive, or none for no limit; got {train.minutes}.")

    def _check_beta_psi(self) -> None:
        """It is a part of what beta weighs."""
        beta, beta_psi = self.train.beta, self.train.beta_psi
        if beta_psi is None:
            return
        if self.method != "gp-maml":
            raise ValueError(f"train.beta_psi is for gp-maml, whose weights have a KL of their own; got {self.method}.")
        if not 0 <= beta_psi < float("inf") or (beta_psi and not beta):
            raise ValueError(
                f"train.beta_psi must be a finite number, 0 or above, and 0 where train.beta is; got {beta_psi} with "
                f"train.beta = {beta}."
            )

    def _check_splits(self) -> None:
        """A task can be split anew only where its points may trade places, after the network."""
        tasks = self.tasks
        if self.method not in SPLIT_ANEW or self.model.norm in ("support+point", "union"):
            raise ValueError(
                f"train.splits above 1 is for {', '.join(SPLIT_ANEW)}, with a batch-norm that does not tell support "
                f"from query; got method = {self.method} and model.norm = {self.model.norm}."
            )
        if tasks.min_shots is not None and tasks.name not in (*CLASSIFICATION, EMBEDDINGS):
            raise ValueError(
                "train.splits above 1 with tasks.min_shots is for classes, which then have different numbers of points "
                f"in each split; got {tasks.name}."
            )
        once = 1 if tasks.min_shots is not None else tasks.shots
        if self.train.splits * once > tasks.shots + tasks.queries:
            raise ValueError(
                f"train.splits must leave no point in the support twice: with {tasks.shots} shots and {tasks.queries} "
                f"queries at most {(tasks.shots + tasks.queries) // max(once, 1)}; got {self.train.splits}."
            )

    def _check_alike(self) -> None:
        """Tasks have classes that are alike where names say which are."""
        tasks = self.tasks
        if not 0 <= tasks.alike <= 1:
            raise ValueError(f"tasks.alike is a share of training tasks, between 0 and 1; got {tasks.alike}.")
        if tasks.alike and (tasks.alphabets or tasks.name not in CLASSIFICATION or self.method in TRANSFER):
            raise ValueError(
                "tasks.alike above 0 is for tasks of some characters of many alphabets, where tasks.alphabets has not "
                f"put all tasks in one, and not for mini-batches of all classes; got {tasks.alike} with {tasks.name}, "
                f"{self.method} and tasks.alphabets = {tasks.alphabets}."
            )

    def _check_test(self) -> None:
        """What would otherwise fail after hours of training."""
        for name in ("queries", "weight_samples"):
            if getattr(self.test, name) < 1:
                raise ValueError(f"test.{name} must be at least 1; got {getattr(self.test, name)}.")
        for name in ("shots", "inner_steps"):
            if min(getattr(self.test, name), default=0) < 0:
                raise ValueError(f"test.{name} must be 0 or above; got {getattr(self.test, name)}.")
        if self.test.min_shots is not None and (
            self.test.min_shots < 0 or self.tasks.name not in (*CLASSIFICATION, EMBEDDINGS)
        ):
            raise ValueError(
                "test.min_shots is a number of points of a class, 0 or above, where classes are new in each task; got "
                f"{self.test.min_shots} with {self.tasks.name}."
            )
        drawn = self.tasks.min_shots if self.train.splits == 1 else None  # of several splits each has its own numbers
        if self.tasks.alphabets and (drawn, self.test.min_shots) != (None, None):
            raise ValueError(
                "tasks.min_shots and test.min_shots give classes different numbers of points; tasks of one alphabet "
                f"(tasks.alphabets) have as many of each. Leave them out; got {drawn} and {self.test.min_shots}."
            )
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
        return from_saved(values)


def from_saved(values: Any) -> Config:
    """A config from what a file holds, maybe of an older version: fields that were dropped since are looked through.

    A dropped field is fine as long as its value is what the code still does; another value is refused.
    """
    return from_dict(Config, _without_dropped(values))


def _without_dropped(values: Any, path: str = "") -> Any:
    if not isinstance(values, dict):
        return values
    kept = {}
    for name, value in values.items():
        dotted = f"{path}{name}"
        if dotted not in DROPPED:
            kept[name] = _without_dropped(value, f"{dotted}.")
        elif value != DROPPED[dotted]:
            raise ValueError(
                f"{dotted} = {value!r} was possible until metavib 0.1; the option is gone, and the code does what "
                f"{DROPPED[dotted]!r} did. Take it out, or use metavib 0.1 for this run."
            )
    return kept
