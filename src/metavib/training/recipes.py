"""The numbers of each experiment and method, as default configs.

Sinusoids follow Titsias et al. (2021), section 5.1. Images follow the paper where it gives a number, and otherwise the
protocol of the code it builds on (Patacchiola et al. 2020, after Chen et al. 2019): one task a step, validation on 100
episodes every 100 steps, the best checkpoint tested on 3000 episodes. Recipes of our own have names of their own.
"""

from typing import Any

from metavib.training.config import (
    AUTO,
    CLASSES,
    CLASSIFICATION,
    EMBEDDINGS,
    EXPERIMENTS,
    GRADIENT,
    HIERARCHICAL,
    METHODS,
    TABLE,
    TRANSFER,
    TUNED,
    Config,
    TasksConfig,
)
from metavib.training.fields import override

Changes = dict[str, Any]


def recipe(experiment: str, method: str, *, shots: int | None = None, kernel: str | None = None) -> Config:
    """The default config of a method on an experiment.

    Args:
        experiment: one of `metavib.training.protocols.EXPERIMENTS`.
        method: one of `metavib.training.config.METHODS`, or hierarchical, on tables.
        shots: K; decides the length of training and the queries in some protocols.
        kernel: of the GP methods; None for cosine on pictures of one's own, on `characters` and of Gaussian classes,
            linear elsewhere.
    """
    return _of_any_number(_of_some_shots(experiment, method, shots, kernel))


def _of_some_shots(experiment: str, method: str, shots: int | None, kernel: str | None) -> Config:
    """The recipe of tasks whose classes all have as many points."""
    kernel = kernel or ("cosine" if experiment in _OWN or method == CLASSES else "linear")
    if experiment not in EXPERIMENTS:
        hint = f" For a table: `metavib train table {experiment}`." if experiment.endswith((".csv", ".parquet")) else ""
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}; got {experiment!r}.{hint}")
    if method == HIERARCHICAL:
        if experiment != TABLE:
            raise ValueError(f"{HIERARCHICAL} learns from the rows of a table, and not from {experiment}.")
        return override(Config(tasks=TasksConfig(name=experiment), precision="float64"), _HIERARCHICAL)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join((*METHODS, HIERARCHICAL))}; got {method!r}.")
    if experiment in CLASSIFICATION:
        changes = _images(experiment, method, shots or (15 if experiment == "augmented-omniglot" else 1), kernel)
        if experiment in _OWN:
            changes |= _own(experiment, method, shots)
    elif experiment == EMBEDDINGS:
        changes = _embeddings(method, shots or 1, kernel)
    else:
        changes = {**_regression(experiment, method), "model.kernel": kernel}
        changes |= {} if shots is None else {"tasks.shots": shots}
    return override(Config(tasks=TasksConfig(name=experiment)), {"method": method, **changes})


SEVERAL = 5  # points of a class at most, in tasks whose classes have different numbers of them


def _of_any_number(config: Config) -> Config:
    """Gaussian classes learn from tasks whose classes have different numbers of points, whatever they are tested on.

    Only there the numbers that they learn say what a point more is worth. From tasks of as many points each it would
    be left to chance, and predictions of classes with different numbers of them would mean nothing.
    """
    tasks = config.tasks
    if config.method != CLASSES or tasks.alphabets:  # each alphabet's characters have as many points
        return config
    images, most = tasks.shots + tasks.queries, max(SEVERAL, tasks.shots)
    if config.train.splits > 1:
        numbers = _with_a_second({"tasks.queries": images - 1, "train.splits": images})
    else:
        numbers = {"tasks.shots": most, "tasks.min_shots": 1, "tasks.queries": images - most}
    return override(config, {**numbers, "test.shots": config.test.shots or [tasks.shots]})


# Regression

_FIXED_NOISE: Changes = {"model.noise": 0.5, "model.learn_noise": False}  # log p is then minus the squared error
_SINUSOID: dict[str, Changes] = {  # the paper's rates and beta; five tasks in each step, for all methods
    "gp-vib": {"train.lr": 7.5e-4},
    "maml": {**_FIXED_NOISE, "train.lr": 2e-3, "model.inner_rate": 5e-3, "test.inner_steps": [1, 5, 10]},
    # The paper says neither where weights start nor what the noise is. With noise 0.5 an inner step of 0.1 overshoots;
    # with 5 it is one of 0.01 up minus the squared error, as in Finn et al. (2017). Both were chosen on validation.
    "stochastic-maml": {
        "model.start_variance": 1 / 3,
        "model.noise": 5.0,
        "model.learn_noise": False,
        "train.lr": 5e-4,
        "train.beta": 1e-3,
        "model.inner_rate": 0.1,
        "model.weight_variance": 1e-5,
        "test.inner_steps": [1, 5, 10],
    },
    "gp-maml": {"train.lr": 2e-3, "train.beta": 0.5, "model.inner_rate": 1e-4, "model.inner_mean": False},
}


# Tables of one's own, whose inputs and outputs are standardised: tasks of any size, so training supports of any size.
# Tables of one's own have gaps, which are filled and told of, and numbers or classes for outputs.
_AS_THEY_ARE: Changes = {"tasks.table.missing": "auto", "model.likelihood": AUTO}
_TABLE: Changes = {
    **_AS_THEY_ARE,
    "tasks.shots": 20,
    "tasks.queries": 20,
    "tasks.min_shots": 1,
    "model.widths": [64, 64],
    "model.reach": 2.0,
    "model.bias": True,
    "model.learn_scale": True,
    "model.noise": 0.3,
    "train.steps": 4_000,
    "train.tasks": 16,
    "train.objective": "predictive",
    "train.beta": 0.01,
    "train.lr": 2e-3,
    "train.schedule": "cosine",
    "train.validate_every": 200,
    "train.select": "best",
    "train.save_every": 1_000,
    "train.log_every": 100,
}
_TABLE_METHOD: dict[str, Changes] = {
    "maml": {**_FIXED_NOISE, "train.objective": "vib"},
    "stochastic-maml": {**_FIXED_NOISE, "train.objective": "vib", "train.beta": 1e-4, "model.weight_variance": 1e-5},
    "gp-maml": {"model.inner_rate": 1e-4},  # of the bound of a point: tasks have supports of any size
}


_HIERARCHICAL: Changes = {"method": HIERARCHICAL, "test.shots": [0, 1, 3, 5, 10], "test.tasks": 300, **_AS_THEY_ARE}


def default_method(experiment: str, likelihood: str | None = None, *, frozen: bool = False) -> str:
    """The method where nobody names one: gp-vib; on tables hierarchical, unless a likelihood asks for a network.

    On pictures of one's own, on `characters`, and behind a network that stays as it is it is gaussian-classes, whose
    predictions hold for any numbers of points.

    Args:
        experiment: one of `metavib.training.protocols.EXPERIMENTS`.
        likelihood: of the outputs; None where nobody named one either.
        frozen: whether the network stays as it is.

    Example:
        >>> [default_method(name) for name in ("glyphs", "images", "table")], default_method("table", "poisson")
        (['gp-vib', 'gaussian-classes', 'hierarchical'], 'gp-vib')
    """
    if frozen or experiment in _OWN:
        return CLASSES
    fits = experiment == TABLE and likelihood in (None, "gaussian", "bernoulli", "softmax")
    return HIERARCHICAL if fits else "gp-vib"


def _regression(experiment: str, method: str) -> Changes:
    if method not in _SINUSOID:
        raise ValueError(f"{method} is a classifier; {experiment} takes {', '.join(_SINUSOID)}.")
    beta: Changes = {"train.beta": 0.0} if method == "maml" else {}
    if experiment == "table":
        return {**_TABLE, **beta, **_TABLE_METHOD.get(method, {})}
    if experiment == "gaussian":
        return {**beta, "model.widths": [64, 64], "model.reach": 2.0, "model.noise": 0.1, "train.tasks": 16}
    return {**beta, **_SINUSOID[method]}


def improved(experiment: str, method: str, *, shots: int | None = None, kernel: str | None = None) -> Config:
    """Our own recipe, apart from the paper's; what each change did is in reproduction/findings.md."""
    config = _of_some_shots(experiment, method, shots, kernel)
    if not has_improved(experiment, method):
        known = " and ".join(dict.fromkeys(name for name, _ in _IMPROVED))
        raise ValueError(f"there is no recipe of ours for {method} on {experiment}: for gp-vib on {known}.")
    if experiment == EMBEDDINGS:
        return _of_any_number(override(config, _few_numbers(config)))
    if method in COMPARED:
        changes = {key: v for key, v in _IMPROVED[experiment, "gp-vib"].items() if key not in _LARGE_SITES}
    else:
        changes = dict(_IMPROVED[experiment, method])
    if experiment in CLASSIFICATION:
        changes |= one_or_two(config) if method == CLASSES else _all_splits(config)
    return override(config, changes)


def _all_splits(config: Config) -> Changes:
    """Tasks in all their splits; those of characters have a hundred images of more classes, seen on larger maps.

    DKT learns from all points of a task at once, whatever is its support, and has weights for so many classes: its
    tasks have as many images, of five classes. RelationNet compares the maps of all pairs anew in every split, and
    with 17 of them does little else: it has five at most.
    """
    shots, dkt = config.tasks.shots, config.method == "dkt"
    if config.tasks.channels > 1:
        changes = tasks_of(5, shots + config.tasks.queries, shots)
    else:
        images = 20 if dkt else min(max(5, 2 * shots), 20)  # of a class there are twenty
        changes = {"model.poolings": 2, **tasks_of(100 // images, images, shots)}
    most = {"dkt": 1, "relation-net": 5}.get(config.method, changes["train.splits"])
    return changes | {"train.splits": min(most, changes["train.splits"])}


def one_or_two(config: Config) -> Changes:
    """Our tasks of one shot, of which every second split has one or two points of a class, and the others one.

    What is learned from them serves tasks of any shots, also where classes have different numbers of points.

    Args:
        config: on images; its shots are those of the test.

    Example:
        >>> changes = one_or_two(recipe("cub", "gp-vib", shots=5))
        >>> changes["tasks.min_shots"], changes["tasks.shots"], changes["train.splits"], changes["test.shots"]
        (1, 2, 21, [5])
    """
    images = config.tasks.shots + config.tasks.queries
    changes = _all_splits(override(config, {"tasks.shots": 1, "tasks.queries": images - 1}))
    return {**_with_a_second(changes), "test.shots": list(config.test.shots or [config.tasks.shots])}


def _with_a_second(changes: Changes) -> Changes:
    """Tasks of one shot in all their splits, every second of which has another point of some classes."""
    return {**changes, "tasks.shots": 2, "tasks.min_shots": 1, "tasks.queries": changes["tasks.queries"] - 1}


def tasks_of(ways: int, images: int, shots: int) -> Changes:
    """Training tasks of some classes with some images of each, in all their splits; validation and test are 5-way."""
    return {
        "tasks.ways": ways,
        "tasks.queries": images - shots,
        "train.splits": images // shots,  # each image in the support once
        "test.ways": 0 if ways == 5 else 5,
    }


def has_improved(experiment: str, method: str) -> bool:
    """Whether there is a recipe of our own for this method on this experiment."""
    if experiment == EMBEDDINGS:
        return method not in (*NO_VECTORS, *GRADIENT)
    compared = method in COMPARED and experiment in CLASSIFICATION
    return (experiment, "gp-vib" if compared else method) in _IMPROVED


COMPARED = (CLASSES, "proto-net", "relation-net", "dkt")
"""Methods that have our recipe of GP-VIB on images too: its tasks, crops, motions, schedule, steps and poolings."""


LARGE_START: Changes = {"model.site_m": 5.0, "model.site_s": 0.13}  # where sites would arrive late
SITE_RATES: Changes = {"train.site_lr": 0.01, "train.scale_lr": 0.01}
_LARGE_SITES: Changes = {**LARGE_START, **SITE_RATES}
# All splits of a task; sites that start where they would arrive late, with a rate of their own; weaker crops; rates
# that end at zero, after half the paper's steps at one shot.
_IMPROVED_PHOTOGRAPHS: Changes = {**_LARGE_SITES, "train.steps": 30_000, "train.schedule": "cosine"}
_IMPROVED: dict[tuple[str, str], Changes] = {
    ("cub", "gp-vib"): {**_IMPROVED_PHOTOGRAPHS, "tasks.crop": 0.35},
    # Cut from 84 x 84 pixels: smaller crops are blurred. Validation still gains in the second half of 60,000 steps.
    ("mini-imagenet", "gp-vib"): {**_IMPROVED_PHOTOGRAPHS, "tasks.crop": 0.9, "train.steps": 60_000},
    ("mini-imagenet-cub", "gp-vib"): {**_IMPROVED_PHOTOGRAPHS, "tasks.crop": 0.9},
    ("sinusoid", "gp-vib"): {
        "model.reach": 5.0,
        "model.noise": 0.1,
        "model.noise_floor": 1e-5,
        "train.schedule": "cosine",
        "train.lr": 2e-3,
    },
    # More tasks in a step, which the paper's rates afford, and for stochastic MAML the rates and the start of MAML.
    ("sinusoid", "maml"): {"train.tasks": 25},
    ("sinusoid", "stochastic-maml"): {
        **_FIXED_NOISE,
        "model.start_variance": 2.0,
        "train.tasks": 16,
        "train.lr": 2e-3,
        "train.beta": 1e-4,
        "model.inner_rate": 5e-3,
    },
    ("sinusoid", "gp-maml"): {"model.reach": 5.0, "model.inner_mean": True},
    ("glyphs", "gp-vib"): {},
    ("omniglot-emnist", "gp-vib"): {
        "tasks.augment": True,
        "train.tasks": 4,
        "train.steps": 20_000,
        "train.schedule": "cosine",
    },
}


def demo() -> Config:
    """The recipe of `metavib demo`: GP-VIB on sine curves, short enough to watch."""
    changes = {"train.steps": 30_000, "train.validate_every": 2_000, "train.save_every": 2_000, "train.log_every": 100}
    return override(improved("sinusoid", "gp-vib"), changes)


# Images

_CHARACTERS: Changes = {"tasks.channels": 1, "tasks.size": 28}
_NATURAL: Changes = {"tasks.channels": 3, "tasks.size": 84, "tasks.augment": True}
_DATA: dict[str, Changes] = {
    "glyphs": {**_CHARACTERS, "model.classes": 532, "model.width": 32},
    "omniglot-emnist": {**_CHARACTERS, "model.classes": 1597},
    "omniglot": {**_CHARACTERS, "model.classes": 4112, "model.backbone": "strided-conv4"},
    "augmented-omniglot": {
        **_CHARACTERS,
        "tasks.alphabets": True,
        "tasks.augment": True,
        "tasks.augment_test": True,
        "tasks.ways": 20,
        "model.classes": 731,
        "model.norm": "none",
    },
    "mini-imagenet": {**_NATURAL, "model.classes": 64},
    "cub": {**_NATURAL, "model.classes": 100},
    "mini-imagenet-cub": {**_NATURAL, "model.classes": 100},
    "characters": {**_CHARACTERS, "tasks.ink": True, "tasks.augment": True, "model.classes": 6492},
    # What the folder decides is filled in by `metavib.training.protocols.pictures.resolve`.
    "images": {**_NATURAL, "tasks.fit": "whole", "tasks.crop": 0.35},
}
# Pictures to be used, and not compared: no protocol of the literature. Training ends with its time or where validation
# says so, and predictions are calibrated there.
_OWN: dict[str, Changes] = {
    "characters": {"train.minutes": 60.0, "train.steps": 30_000, "model.width": 64},
    "images": {"train.minutes": 10.0, "train.steps": 15_000, "train.patience": 10},
}
STARTED: Changes = {"train.lr": 1e-3, "train.scale_lr": 1e-3, "train.site_lr": 1e-3}
"""Smaller rates where weights start as those of a bundled model (`metavib.training.protocols.pictures.started`)."""
_CALIBRATED: Changes = {
    "model.width": 32,
    "model.poolings": 3,
    "tasks.queries": 9,
    "train.lr": 2e-3,
    "train.schedule": "cosine",
    "train.validate_every": 1_000,
    "train.calibrate": True,
    "test.shots": [1, 5],
    "test.tasks": 600,
}
_PROTOCOL: dict[str, Changes] = {
    "glyphs": {
        "tasks.queries": 10,
        "train.steps": 1_000,
        "train.validate_every": 250,
        "train.validation_tasks": 50,
        "test.tasks": 600,
        "test.queries": 10,
    },
    "omniglot": {"train.steps": 60_000, "train.tasks": 32, "train.validate_every": 500, "test.tasks": 1_000},
    "augmented-omniglot": {
        "train.steps": 5_000,
        "train.validate_every": 250,
        "train.validation_tasks": 25,
        "test.tasks": 1_000,
    },
}
_GP: Changes = {
    "model.sites": "simplified",
    "model.bias": True,
    "model.learn_scale": True,
    "train.beta": 1e-3,
    "train.scale_lr": 1e-4,
}
_Rates = tuple[float, float, float]
# The longer version's tuning for Omniglot: outer rate, inner rate (1 where there are no inner steps), beta, for 1 shot
# and 5. It has none for MAML, whose inner rate is that of Finn et al. (2017).
_OMNIGLOT: dict[tuple[str, str], tuple[_Rates, _Rates]] = {
    ("maml", "linear"): ((0.001, 0.4, 0.0), (0.001, 0.4, 0.0)),
    ("stochastic-maml", "linear"): ((0.005, 1.5, 1e-7), (0.001, 1.5, 1e-6)),
    ("gp-vib", "cosine"): ((0.001, 1.0, 5e-4), (0.0025, 1.0, 5e-4)),
    ("gp-vib", "linear"): ((0.0025, 1.0, 1e-4), (0.005, 1.0, 1e-4)),
    ("gp-maml", "cosine"): ((7.5e-4, 5e-4, 5e-4), (0.005, 0.002, 5e-4)),
    ("gp-maml", "linear"): ((0.0025, 0.002, 1e-4), (0.001, 5e-4, 5e-5)),
}
# For mini-ImageNet, whose network and steps there are others than in the protocol of table 2 (`longer`).
_MINI_IMAGENET: dict[tuple[str, str], tuple[_Rates, _Rates]] = {
    ("maml", "linear"): ((0.001, 0.01, 0.0), (0.001, 0.01, 0.0)),
    ("stochastic-maml", "linear"): ((5e-4, 0.05, 1e-5), (5e-4, 0.1, 1e-4)),
    ("gp-vib", "cosine"): ((7.5e-4, 1.0, 0.005), (5e-4, 1.0, 0.005)),
    ("gp-vib", "linear"): ((0.0025, 1.0, 0.005), (7.5e-4, 1.0, 0.005)),
    ("gp-maml", "cosine"): ((0.001, 5e-4, 0.001), (5e-4, 5e-4, 5e-4)),
    ("gp-maml", "linear"): ((0.001, 0.002, 1e-4), (7.5e-4, 0.002, 5e-4)),
}
# And for Augmented Omniglot.
_AUGMENTED: dict[tuple[str, str], _Rates] = {
    ("maml", "linear"): (0.01, 0.5, 0.0),
    ("stochastic-maml", "linear"): (0.01, 0.5, 1e-6),
    ("gp-vib", "cosine"): (0.0025, 1.0, 5e-4),
    ("gp-vib", "linear"): (0.005, 1.0, 7.5e-4),  # at the 0.05 found there it diverges here within 50 steps
    ("gp-maml", "cosine"): (0.005, 0.001, 2.5e-4),
    ("gp-maml", "linear"): (0.005, 5e-4, 1e-5),
}


def _images(experiment: str, method: str, shots: int, kernel: str) -> Changes:
    changes: Changes = {
        "model.backbone": "conv4",
        "model.likelihood": "softmax",
        "model.kernel": kernel,
        "tasks.shots": shots,
        "tasks.queries": 16,
        "train.steps": 60_000 if shots < 5 else 40_000,
        "train.tasks": 1,
        "train.beta": 0.0,
        "train.select": "best",
        "train.validate_every": 100,
        "train.validation_tasks": 100,
        "train.save_every": 1_000,
        "train.log_every": 100,
        "test.shots": [],
        "test.tasks": 3_000,
        "test.queries": 15,
        **_DATA[experiment],
    }
    changes |= _PROTOCOL.get(experiment, {})
    if _DATA[experiment]["tasks.channels"] == 1:  # 20 pictures a class (EMNIST, in validation and test, has more)
        if shots >= 20:
            raise ValueError(f"{experiment} has 20 pictures of a class: shots must leave one for a query; got {shots}.")
        changes["tasks.queries"] = min(changes["tasks.queries"], 20 - shots)
        if experiment not in ("omniglot-emnist", "characters"):
            changes["test.queries"] = min(changes["test.queries"], 20 - shots)
    if method == "gp-vib":
        changes |= _GP
    elif method in TRANSFER:
        changes |= _transfer(experiment)
    elif method == "relation-net" and changes["model.backbone"] == "conv4":
        changes["model.poolings"] = 2  # Chen et al.: it compares maps, which four poolings leave little of
    elif method in GRADIENT:
        changes |= _gradient(experiment, method, steps=changes["train.steps"])
    if method in ("gp-vib", "gp-maml") and changes["tasks.channels"] == 3:
        # The paper does not say where its sites start. From the defaults of `SimplifiedSites` features of photographs
        # can shrink until nothing is left to learn from, and a training stays at chance. Chosen on validation.
        changes |= LARGE_START
    if experiment == "glyphs" and method in ("gp-vib", "gp-maml"):
        # A thousand steps are too few for sites and out-scale to find their size at the paper's rates: predictions
        # would be right but timid. Chosen on validation.
        changes |= _LARGE_SITES
    tuned = None
    if experiment == "omniglot" and (method, kernel) in _OMNIGLOT:
        tuned = _OMNIGLOT[method, kernel][shots >= 5]
    elif experiment == "augmented-omniglot":
        tuned = _AUGMENTED.get((method, kernel))
    if tuned is not None:
        lr, inner, beta = tuned
        changes |= {"train.lr": lr, "model.inner_rate": inner, "train.beta": beta}
        if method == "gp-maml":  # the paper's inner rates are for F, not for F / n
            changes["model.inner_mean"] = False
    return changes


def _own(experiment: str, method: str, shots: int | None) -> Changes:
    """Robust starts, and tasks of ten classes in all their splits where the method has any."""
    changes = _CALIBRATED | _OWN[experiment]
    if shots is not None:
        changes |= {"test.shots": [shots]}
    if method in TRANSFER:
        return changes | {"tasks.queries": 16}  # a mini-batch
    images = min(max(10, 2 * (shots or 1)), 20)
    changes["tasks.queries"] = images - (shots or 1)
    if method == "gp-vib":
        changes |= {**_LARGE_SITES, **tasks_of(10, images, shots or 1)}
    elif method == CLASSES:
        many = experiment == "characters" and shots in (None, 1)  # classes: as many pictures in a task, of more of them
        changes |= tasks_of(20, 5, 1) if many else tasks_of(10, images, shots or 1)
        if experiment == "images":  # ten minutes, in which its numbers have a long way to go
            changes |= {"train.site_lr": 0.02}
    elif method == "gp-maml":
        changes |= _LARGE_SITES
    elif method == "relation-net":
        changes |= {"model.poolings": 2}
    return changes


def longer(method: str, *, shots: int = 1, kernel: str = "linear") -> Config:
    """The recipe of the paper's longer version for mini-ImageNet, after the protocol of Finn et al. (2017).

    Other than that of table 2 it has 32 filters in each layer, 4 tasks in each of 60,000 steps for all methods, no
    augmentation, rates and beta of its own search, and 10 inner steps at test of MAML and stochastic MAML, which are
    trained with 5. Its network and data take a GPU; it has not been run here.

    Args:
        method: maml, stochastic-maml, gp-vib or gp-maml.
        shots: 1 or 5, for which it has rates; others take the nearer ones.
        kernel: of the GP methods, linear or cosine.

    Example:
        >>> config = longer("stochastic-maml", shots=5)
        >>> config.model.width, config.train.tasks, config.model.inner_steps, config.test.inner_steps
        (32, 4, 5, (10,))
    """
    if (method, kernel) not in _MINI_IMAGENET:
        known = ", ".join(f"{m} {k}" for m, k in _MINI_IMAGENET)
        raise ValueError(f"the longer version has {known} on mini-ImageNet; got {method} {kernel}.")
    lr, inner, beta = _MINI_IMAGENET[method, kernel][shots >= 5]
    changes: Changes = {
        "tasks.augment": False,
        "model.width": 32,
        "model.inner_rate": inner,
        "model.first_order": False,
        "train.steps": 60_000,
        "train.tasks": 4,
        "train.lr": lr,
        "train.beta": beta,
        "test.tasks": 1_000,
    }
    if method in ("maml", "stochastic-maml"):
        changes["test.inner_steps"] = [10]
    if method == "gp-maml":  # the paper's inner rates are for F, not for F / n
        changes["model.inner_mean"] = False
    return override(recipe("mini-imagenet", method, shots=shots, kernel=kernel), changes)


def _transfer(experiment: str) -> Changes:
    """Mini-batches of 16 images of all classes. Chen et al.: 5 epochs of characters, 200 of birds.

    And 400 of mini-ImageNet, which would be a million steps: it has as many here as birds have.
    """
    steps = {"glyphs": 2_000, "omniglot-emnist": 10_000, "omniglot": 25_000}.get(experiment, 70_000)
    return {"tasks.queries": 16, "train.steps": steps, "train.validate_every": 500 if experiment == "glyphs" else 2_000}


def _gradient(experiment: str, method: str, *, steps: int) -> Changes:
    """Several tasks a step, and as many steps as the other methods: the protocol's code has so many more epochs."""
    if experiment in ("mini-imagenet", "cub", "mini-imagenet-cub", "images"):
        changes: Changes = {"model.inner_steps": 5, "model.inner_rate": 0.01, "train.tasks": 4}
        # As those of Chen et al. are. Through five steps of second order the gradient of a task differs between single
        # and double precision by more than its own length at the start; and a step takes ten times as long.
        changes["model.first_order"] = method != "gp-maml"
    elif experiment == "omniglot-emnist":
        changes = {"model.inner_steps": 1, "model.inner_rate": 0.1, "train.tasks": 32}
        changes["train.steps"] = steps // 100 * 96  # an epoch of 100 episodes has three steps
    elif experiment == "augmented-omniglot" and method == "gp-maml":  # as many at test, on all points
        changes = {"model.inner_steps": 5}
    elif experiment == "augmented-omniglot":  # steps of 20 points at random: 20 of them, and 100 at test
        changes = {"model.inner_steps": 20, "model.inner_points": 20, "model.inner_shuffle": True}
        changes["test.inner_steps"] = [100]
    else:
        changes = {"model.inner_steps": 1, "model.inner_rate": 0.1}
    # Without batch-norm MAML diverges within a few steps at the inner rate that was found for Augmented Omniglot.
    if experiment != "augmented-omniglot" or method != "gp-maml":
        changes["model.norm"] = "transductive"
    if method == "stochastic-maml":
        changes |= {"train.beta": 1e-6, "model.weight_variance": 1e-5}
    if method == "gp-maml":
        changes |= {**_GP, "model.inner_rate": 5e-4}
    return changes


# A network of the supervised stage that goes on learning

# Small rates, since much is known: of Adam, so that no weight moves by more than a hundredth of its size in a hundred
# steps. The few numbers of the features and of the head start as on frozen features. Fewer steps than a compiler is
# worth: training is a matter of minutes.
_TUNED: Changes = {
    "model.backbone": "tuned",
    "model.widths": [64, 160, 320, 640],
    "train.objective": "predictive",
    "train.steps": 1_900,
    "train.tasks": 4,
    "train.lr": 3e-3,
    "train.network_lr": 1e-5,
    "train.schedule": "cosine",
    "train.validate_every": 100,
    "train.validation_tasks": 600,
    "train.log_every": 20,
    "test.tasks": 3_000,
    "test.temperature": True,
}
_TUNED_GP: Changes = {"train.beta": 1e-6, "train.site_lr": 3e-3, "train.scale_lr": 3e-3}


def tuned(experiment: str, method: str, *, shots: int | None = None, kernel: str | None = None) -> Config:
    """Our own recipe for a network of `metavib pretrain` that goes on learning from tasks, in all their splits.

    Args:
        experiment: one with images.
        method: one of `metavib.training.config.TUNED`.
        shots: K.
        kernel: of the GP methods; None for cosine.

    Example:
        >>> tuned("cub", "gp-vib", shots=5).train.splits  # 5 of 20 pictures of a class are the support
        4
    """
    return _of_any_number(_tuned_on(experiment, method, shots, kernel))


def _tuned_on(experiment: str, method: str, shots: int | None, kernel: str | None) -> Config:
    """The recipe of tasks whose classes all have as many points."""
    if experiment not in CLASSIFICATION:
        raise ValueError(f"a network of pictures is tuned on {', '.join(CLASSIFICATION)}; got {experiment!r}.")
    if method not in TUNED:
        raise ValueError(f"a tuned network learns with {', '.join(TUNED)}; got {method!r}.")
    config = _of_some_shots(experiment, method, shots, kernel or "cosine")
    shots, photographs = config.tasks.shots, config.tasks.channels == 3
    images = shots + 15 if photographs else 20
    changes = _TUNED | tasks_of(5, images, shots)
    if photographs:
        changes |= {"model.mirror": True, "tasks.crop": 0.35 if experiment == "cub" else 0.5}
    if method == "gp-vib":
        changes |= _FEW_NUMBERS_GP | _TUNED_GP
    elif method == "proto-net":
        changes["train.lr"] = 0.03  # squared distances of 640 numbers are large at the start: far to go
    elif method == "dkt":
        changes["train.splits"] = 1  # it learns from all points of a task at once, whatever is its support
    return override(config, changes)


SPOILT = ["blur", "noise", "inversion", "grey", "close"]
"""How photographs are spoilt that a handful of numbers is learned from: all that `metavib.data.shifts` can do."""
_OF_VECTORS = ("model.widths", "model.dropout")  # fields of an MLP that may follow
_FROZEN: Changes = {
    "tasks.augment": False,
    "model.mirror": False,
    "train.network_lr": 0.0,
    "train.splits": 1,
    "train.select": "best",
    "train.calibrate": True,
    "test.temperature": False,
}


def frozen(experiment: str, method: str, *, shots: int | None = None, kernel: str | None = None) -> Config:
    """Our own recipe for a network that stays as it is, with a handful of numbers behind it.

    Photographs of a dataset are also learned from spoilt, so that predictions are honest where pictures are not like
    those of training; eight tasks of each way to see them are in every step. Pictures to come are like a user's own.

    Args:
        experiment: one with images.
        method: one of `metavib.training.config.TUNED`.
        shots: K; one where None. Temperatures are fitted at one and at five shots, too.
        kernel: of the GP methods; None for cosine.

    Example:
        >>> config = frozen("cub", "gp-vib")
        >>> config.test.shots, config.train.network_lr, config.tasks.spoilt[0]
        ((1, 5), 0.0, 'blur')
    """
    config = _tuned_on(experiment, method, shots, kernel)
    few = {field: value for field, value in _few_numbers(config).items() if field not in _OF_VECTORS}
    changes = few | _FROZEN | {"test.shots": sorted({1, 5, config.tasks.shots})}
    if config.tasks.channels == 3 and experiment != "images":
        changes |= {"tasks.spoilt": SPOILT, "train.tasks": 8 * (1 + len(SPOILT))}
    return _of_any_number(override(config, changes))


# Embeddings

NO_VECTORS = (*TRANSFER, "relation-net")
"""Methods that learn from pictures alone."""
# The longer version's tuning for embeddings of mini-ImageNet: rate, beta and dropout for 1 shot and 5.
_LEO: dict[tuple[str, str], tuple[_Rates, _Rates]] = {
    ("gp-vib", "cosine"): ((5e-5, 2.5e-3, 0.1), (2.5e-5, 1e-6, 0.1)),
    ("gp-vib", "linear"): ((2.5e-4, 7.5e-4, 0.1), (7.5e-5, 1e-6, 0.2)),
    ("gp-maml", "cosine"): ((5e-5, 1e-4, 0.1), (7.5e-5, 1e-4, 0.2)),
    ("gp-maml", "linear"): ((2.5e-5, 1e-4, 0.1), (1e-4, 1e-6, 0.2)),
}
# Three numbers of the features and three of the head, learned from tasks of the validation classes: the network knows
# its training classes by heart, so that tasks of these say little of tasks with new ones.
_FEW_NUMBERS: Changes = {
    "tasks.learn_from": "validation",
    "model.widths": [],
    "model.dropout": 0.0,
    "train.objective": "predictive",
    "train.steps": 250,
    "train.tasks": 8,
    "train.lr": 0.03,
    "train.schedule": "cosine",
    "train.validate_every": 125,
    "train.validation_tasks": 300,
    "train.select": "last",
    "test.tasks": 1_000,
}
# A larger beta costs likelihood on validation: it widens the prior until the KL of large sites is small.
_FEW_NUMBERS_GP: Changes = {
    "model.site_m": 15.0,
    "model.site_s": 0.2,
    "model.scale": 0.1,
    "train.beta": 1e-6,
    "train.site_lr": 0.03,
    "train.scale_lr": 0.03,
}


def _few_numbers(config: Config) -> Changes:
    """A handful of numbers of the features and of the head."""
    own: dict[str, Changes] = {
        "gp-vib": _FEW_NUMBERS_GP,
        "proto-net": {"train.lr": 0.1},  # squared distances of 640 numbers are large at the start: far to go
    }
    return _FEW_NUMBERS | own.get(config.method, {})


def _embeddings(method: str, shots: int, kernel: str) -> Changes:
    """An MLP on embeddings, some of whose numbers are dropped, as in the longer version; its steps are our choice."""
    if method in NO_VECTORS:
        raise ValueError(f"{method} learns from pictures; on embeddings take logistic-regression or proto-net.")
    changes: Changes = {
        "model.backbone": "embedded",
        "model.widths": [128, 128],
        "model.dropout": 0.1,
        "model.likelihood": "softmax",
        "model.kernel": kernel,
        "tasks.shots": shots,
        "tasks.queries": 15,
        "tasks.inputs": 640,
        "train.steps": 5_000,
        "train.tasks": 4,
        "train.lr": 1e-4,
        "train.beta": 0.0,
        "train.select": "best",
        "train.validate_every": 250,
        "train.validation_tasks": 100,
        "train.save_every": 1_000,
        "train.log_every": 100,
        "test.shots": [],
        "test.tasks": 3_000,
        "test.queries": 15,
        "test.temperature": True,
    }
    if method in ("gp-vib", "gp-maml"):
        changes |= {**_GP, **_LARGE_SITES}
        rate, beta, dropout = _LEO.get((method, kernel), _LEO[method, "linear"])[shots >= 5]
        changes |= {"train.lr": rate, "train.beta": beta, "model.dropout": dropout}
    if method in GRADIENT:
        changes |= {"model.inner_steps": 5, "model.inner_rate": 1e-3 if method == "gp-maml" else 0.01}
    if method == "stochastic-maml":
        changes |= {"train.beta": 1e-6, "model.weight_variance": 1e-5}
    return changes
