"""The runs of every study: a function for each, which `reproduction.studies` names beside what it shows.

Runs stand in the order "most telling first", so that whoever stops early has the best part. Their names say what they
are, `<column>/<row>-<variant>-<shots>-seed<n>` in full, so that patterns pick columns, methods, shots and seeds.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from metavib.data.shifts import OF_CHARACTERS, OF_PHOTOGRAPHS
from metavib.training import bundled, recipes
from metavib.training.config import CLASSES, Config, read
from metavib.training.fields import override
from metavib.training.run_folder import CONFIG
from reproduction.study import Run, Runs, seeded
from reproduction.tables import LONGER_VERSION, MAIN_TABLE, ROWS

COLUMNS = ("omniglot-emnist", "mini-imagenet", "cub", "mini-imagenet-cub")  # of table 2, most telling first
BETAS = (1e-7, 1e-5, 1e-3, 1e-2, 1e-1, 0.5, 1.0)
MEAN = {"model.inner_mean": True}  # inner steps of GP+MAML on F / n, where the paper's are on F
SPREAD = {"model.reach": 5.0}  # units that switch on all over the range of the sinusoids' inputs
SMALL_START = {"model.site_m": 1.0, "model.site_s": 0.69}  # of sites: the defaults of `SimplifiedSites`
_ON_A_CPU: dict[str, Any] = {"device": "cpu", "precision": "float32"}
PLAIN_STEPS = ("maml", "stochastic-maml")  # whose inner steps are the whole of adapting


def paper_s(experiment: str, row: str, shots: int) -> Run:
    """A cell of the paper, with its recipe."""
    return Run(recipes.recipe(experiment, ROWS[row].method, shots=shots, kernel=ROWS[row].kernel))


def gp_vib_first(rows: tuple[str, ...]) -> list[str]:
    """Rows in the order in which they are run."""
    return sorted(rows, key=lambda row: not row.startswith("gp-vib"))


# Sinusoids


def table_1(seeds: int | None) -> Runs:
    """The paper's four methods with its own settings and with ours, ten trainings of each side by side.

    Of GP-VIB there is also the paper's recipe with units that switch on all over the inputs' range, and nothing else.
    """
    methods = ("gp-vib", "gp-maml", "maml", "stochastic-maml")
    runs = {method: Run(recipes.recipe("sinusoid", method)) for method in methods}
    runs |= {f"{method}-improved": Run(recipes.improved("sinusoid", method), "improved") for method in methods}
    runs["gp-vib-reach"] = runs["gp-vib"].changed("reach", SPREAD)
    return {name: Run(replace(config, repeats=10), variant) for name, (config, variant) in runs.items()}


def figure_2(seeds: int | None) -> Runs:
    """One training of GP-VIB, with units that switch on all over the inputs' range."""
    return {"gp-vib": Run(recipes.recipe("sinusoid", "gp-vib")).changed("reach", SPREAD)}


# The main table, and built-in characters


def table_2(seeds: int | None) -> Runs:
    """Every column and method of the main table, and recipes of our own.

    There are three trainings of GP-VIB with the paper's recipe and with ours, and one of everything else. Each is also
    tested under a temperature that is fitted on validation; runs on record from before that are not run again for it.
    """

    def trainings(run: Run) -> int:
        return seeds or (3 if run.config.method == "gp-vib" and run.variant in ("", "small-start", "improved") else 1)

    runs: Runs = {}
    for column in COLUMNS:
        rows = product(gp_vib_first(MAIN_TABLE), (1, 5))
        cells = [run for row, shots in rows for run in _paper_s_and_ours(column, row, shots)]
        classes = _ours(column, CLASSES, 1)  # one training, of one or two points of a class, is tested on any number
        cells += [classes.changed("", {"test.shots": [shots]}) for shots in (1, 5)]
        if column == "omniglot-emnist":
            cells += _more_or_less_on_characters(cells)
        else:
            cells += _in_fewer_steps([run for run in cells if run.config.method == "maml"])
        if column == "mini-imagenet":
            cells += _more_or_less_on_photographs(cells)
        cells = [run.changed("", {"test.temperature": True}) for run in cells]
        runs |= seeded({f"{column}/{run.cell}": run for run in cells}, trainings)
    return runs


def glyphs(seeds: int | None) -> Runs:
    """Every method of the main table on the built-in characters, and our own recipe on large and on small tasks."""
    cells: list[Run] = []
    for row, shots in product(MAIN_TABLE, (1, 5)):
        paper, *ours = _paper_s_and_ours("glyphs", row, shots)
        narrow = [run.changed("narrow", _small_tasks(paper.config)) for run in ours if run.config.method == "gp-vib"]
        cells += [paper, *ours, *narrow]
    return {run.cell: run for run in cells}


def _paper_s_and_ours(column: str, row: str, shots: int) -> list[Run]:
    """A cell with the paper's recipe, and with ours where there is one.

    The paper does not say where the sites of GP-VIB start. On photographs there is a reading of it beside the recipe's,
    a small start, from where some trainings stay at chance.
    """
    cells, method = [paper_s(column, row, shots)], ROWS[row].method
    if method == "gp-vib" and cells[0].config.tasks.channels == 3:
        cells.append(cells[0].changed("small-start", SMALL_START))
    if recipes.has_improved(column, method):
        cells.append(_ours(column, row, shots))
    return cells


def _ours(column: str, row: str, shots: int) -> Run:
    """A cell with our own recipe."""
    return Run(recipes.improved(column, ROWS[row].method, shots=shots, kernel=ROWS[row].kernel), "improved")


def _half_as_long(run: Run) -> Run:
    """The run in half its steps."""
    return run.changed("shorter", {"train.steps": run.config.train.steps // 2})


def _more_or_less_on_characters(cells: list[Run]) -> list[Run]:
    """Runs with more or less of something, to see what it does; characters are quickly trained."""
    paper = {run.cell: run.config for run in cells if not run.variant}
    pooled, more = {"model.poolings": 4}, []
    for run in cells:
        if run.variant == "improved":
            more.append(run.changed("ink-alike", {"tasks.ink": True, "tasks.alike": 0.5}))
        config, ours = run.config, run.variant == "improved" and run.config.method == "gp-vib"
        if config.method == "maml":  # its steps have 32 tasks: as many episodes as the others have, and a few times
            more.append(run.changed("shorter", _as_many_episodes(config)))
            more.append(run.changed("eighth", {"train.steps": config.train.steps // 8}))
        if (config.method == "relation-net" and not run.variant) or (ours and config.model.kernel == "linear"):
            more.append(run.changed("pooled", pooled))
        if ours:
            small = _small_tasks(paper[Run(config).cell])
            more.append(run.changed("pooled-narrow", small | pooled))
            if config.model.kernel == "linear" and config.tasks.shots == 1:
                more.append(run.changed("pooled-narrow-unaugmented", small | pooled | {"tasks.augment": False}))
        if run.variant == "improved" and config.method in ("gp-vib", "proto-net") and config.tasks.shots == 1:
            more.append(run.changed("five-way", recipes.tasks_of(5, 20, 1)))  # as DKT has
    return more


def _more_or_less_on_photographs(cells: list[Run]) -> list[Run]:
    """Our recipe in half its steps, the same with twice the channels, and at five shots with smaller crops."""
    more = []
    for run in (run for run in cells if run.variant == "improved" and run.config.method == "gp-vib"):
        half = _half_as_long(run)
        more += [half, run.changed("wide", {"train.steps": half.config.train.steps, "model.width": 128})]
        if run.config.tasks.shots == 5:
            more.append(run.changed("crops", {"tasks.crop": 0.7}))
    return more


def _as_many_episodes(maml: Config) -> dict[str, int]:
    """The change that has MAML train on as many episodes as the other methods."""
    other = recipes.recipe(maml.tasks.name, "gp-vib", shots=maml.tasks.shots)
    return {"train.steps": other.train.steps * other.train.tasks // maml.train.tasks}


def _small_tasks(paper: Config) -> dict[str, int]:
    """The changes that have our recipe train on the tasks of the paper's, each in one split."""
    tasks = {"tasks.ways": paper.tasks.ways, "tasks.queries": paper.tasks.queries, "test.ways": paper.test.ways}
    return {**tasks, "train.splits": 1}


# The longer version


def omniglot(seeds: int | None) -> Runs:
    """Its rows at 1 and 5 shots, then each in a sixth of the steps, GP-VIB so also on shuffled characters.

    GP+MAML is also there with inner steps on the mean over points.
    """
    cells = [paper_s("omniglot", row, k) for row, k in product(gp_vib_first(LONGER_VERSION), (1, 5))]
    short = _in_fewer_steps(cells)
    short += [run.changed("mean", MEAN) for run in short if run.config.method == "gp-maml"]
    shuffled = {"tasks.shuffled": True, "model.classes": 4 * 1100}  # the characters of all alphabets, split at random
    cells += short + [run.changed("shuffled", shuffled) for run in short if run.config.method == "gp-vib"]
    return seeded({run.cell: run for run in cells}, lambda run: seeds or 1)


def _in_fewer_steps(cells: list[Run]) -> list[Run]:
    """Trainings of 10,000 steps whose rates end at zero."""
    return [run.changed("shorter", {"train.steps": 10_000, "train.schedule": "cosine"}) for run in cells]


def augmented_omniglot(seeds: int | None) -> Runs:
    """20-way 15-shot; tested with 300 support points, and with 2,000 augmented ones that are streamed.

    After the paper's rows come those of its deeper network, one more convolution after each layer, without and with
    batch-norm; then what we changed in the inner steps: points in a fixed order for MAML; for GP+MAML the mean over
    points, and twenty steps of twenty points, with the cosine kernel also of first order (with the linear one these
    end in NaN by step 600).
    """
    rows = [paper_s("augmented-omniglot", row, 15) for row in gp_vib_first(LONGER_VERSION)]
    rows = [run.changed("", {"test.shots": [15, 100]}) for run in rows]
    cells = list(rows)
    for run in (run for run in rows if run.config.method in ("gp-vib", "gp-maml")):
        cells.append(run.changed("deeper", {"model.extra": 1}))
        cells.append(run.changed("deeper-norm", {"model.extra": 1, "model.norm": "running"}))
    for run in rows:
        if run.config.method == "gp-maml":
            twenty = run.changed("twenty", {**MEAN, "model.inner_steps": 20, "model.inner_points": 20})
            cells += [run.changed("mean", MEAN), twenty]
            if run.config.model.kernel == "cosine":
                cells.append(twenty.changed("first-order", {"model.first_order": True}))
        elif run.config.method != "gp-vib":
            cells.append(run.changed("strided", {"model.inner_shuffle": False}))
    return seeded({run.cell: run for run in cells}, lambda run: seeds or 1)


# Features of a pretrained network

Files = tuple[tuple[str, str], ...]
"""Files of features below the folder of the datasets, each with its SHA-256."""
# What is on record was made from these.
_MINI_IMAGENET = "resnet12-mini-imagenet.npz", "9c58e8ad254f6d556628c0ddd6c148a0e050f4901ab6a385e527a70cc2b58436"
FEATURES: dict[str, Files] = {
    "cub": (("resnet12-cub.npz", "a718a858ad1f497c1f7aba343545b729e68a1794761d1209e8193b66f10dba38"),),
    "mini-imagenet": (_MINI_IMAGENET,),
    "mini-imagenet-cub": (
        ("resnet12-mini-imagenet-cub.npz", "0ee1e24a2590c383a6cab1b4e31a561555c56e75b3792d3f2405400ec5ad495a"),
    ),
}
# To know nothing of birds, a method learns from classes of mini-ImageNet that its network has not seen either.
UNSEEN: Files = (
    _MINI_IMAGENET,
    ("resnet12-mini-imagenet-to-birds.npz", "e1979f8a6bdb6914925969824bc8f0b8dc2881066f35fe9afa772c401349eaef"),
)
ON_FEATURES = ("gp-vib-cosine", "nearest-centroids", "dkt-cosine", "proto-net", "logistic-regression", "gp-vib-linear")


def embeddings(seeds: int | None) -> Runs:
    """Methods with a handful of numbers to learn, then with the MLP and the dropout of the longer version."""
    cells: Runs = {}
    for column, shots, row in product(FEATURES, (1, 5), ON_FEATURES):
        run = on_features(FEATURES[column], row, shots)
        cells[f"{column}/{run.cell}"] = run
    for shots, row in product((1, 5), ("gp-vib-cosine", "nearest-centroids", "proto-net", "dkt-cosine")):
        run = on_features(UNSEEN, row, shots).changed("unseen", {"tasks.unseen": True})
        cells[f"mini-imagenet-cub/{run.cell}"] = run
    with_mlp = ("gp-vib-cosine", "gp-vib-linear", "proto-net", "maml")
    for column, shots, row in product(("mini-imagenet", "cub", "mini-imagenet-cub"), (1, 5), with_mlp):
        method, kernel, _ = ROWS[row]
        config = recipes.recipe("embeddings", method, shots=shots, kernel=kernel)
        run = Run(_reading(config, FEATURES[column]), "mlp").changed("", {"test.tasks": 1_000})
        cells[f"{column}/{run.cell}"] = run
    return cells


def on_features(files: Files, row: str, shots: int) -> Run:
    """A method on files of features, with our recipe."""
    method, kernel, _ = ROWS[row]
    return Run(_reading(recipes.improved("embeddings", method, shots=shots, kernel=kernel), files))


def _reading(config: Config, files: Files) -> Config:
    """The config with files of features."""
    names, digests = zip(*files, strict=True)
    return override(config, {"tasks.features": names, "tasks.digests": digests, "tasks.inputs": 640})


# Networks of the supervised stage, by the column they are trained for, below the folder of the datasets.
NETWORKS = {
    "cub": "resnet12-cub.safetensors",
    "mini-imagenet": "resnet12-mini-imagenet.safetensors",
    "mini-imagenet-cub": "resnet12-mini-imagenet-cub.safetensors",
}


def resnet12(seeds: int | None) -> Runs:
    """GP-VIB end to end in every column, then ProtoNet and DKT with the same network."""
    cells: Runs = {}
    for row, column, shots in product(("gp-vib-cosine", "proto-net", "dkt-cosine"), NETWORKS, (1, 5)):
        method, kernel, _ = ROWS[row]
        run = Run(recipes.tuned(column, method, shots=shots, kernel=kernel))
        run = run.changed("", {"model.pretrained": NETWORKS[column], "train.minutes": 2.0})
        cells[f"{column}/{run.cell}"] = run
    return seeded(cells, lambda run: seeds or 1)


# Pictures unlike those of training

_SHIFTED = {
    "test.shifts": list(OF_CHARACTERS),
    "test.unknown": True,
    "test.shots": [1, 5],
    "test.tasks": 100,
    "test.queries": 15,
    "test.temperature": True,
}
# Trainings of a minute on a CPU: a small Conv4, tasks of five characters in all their splits.
_MINUTES = {
    "model.backbone": "conv4",
    "model.width": 16,
    "model.poolings": 3,
    "train.steps": 600,
    "train.tasks": 1,
    "train.lr": 2e-3,
    "train.schedule": "cosine",
    "train.validate_every": 200,
    "train.validation_tasks": 100,
}


def shift_photographs(seeds: int | None) -> Runs:
    """The bundled model of photographs and others on the same network, on pictures of other kinds; then small networks.

    Numbers behind the network are learned from ordinary pictures alone, and from spoilt ones too, as those of the
    bundled model are.
    """
    tested = _SHIFTED | {"test.shifts": list(OF_PHOTOGRAPHS), "test.tasks": 600}
    photographs = read(bundled.folder_of("photographs") / CONFIG)
    runs = {"bundled": Run(override(photographs, tested), "bundled")}
    for row in ("gp-vib-cosine", "proto-net", "gaussian-classes"):
        run = _behind_photographs(row).changed("", tested)
        behind = [run.changed("ordinary", {"tasks.spoilt": [], "train.tasks": 8})]
        behind += [] if row == "gaussian-classes" else [run.changed("spoilt", {})]  # as the bundled model has learned
        runs |= {each.cell: each for each in behind}
    for row in ("gp-vib-cosine", "proto-net"):
        method, kernel, _ = ROWS[row]
        run = Run(recipes.improved("mini-imagenet", method, shots=1, kernel=kernel), "small")
        run = run.changed("", _ON_ONE_CORE | tested)
        runs[run.cell] = run
    return runs


def unequal(seeds: int | None) -> Runs:
    """Methods behind the network of the bundled `photographs`, tested where all classes have as many points or not.

    What is learned is the same, from ordinary pictures, and trained once. GP-VIB and ProtoNet are also learned from
    tasks whose classes have one to five points, as Gaussian classes always are.
    """
    runs: Runs = {}
    for row, (variant, least) in product(("gaussian-classes", "gp-vib-cosine", "proto-net", "dkt-cosine"), UNEQUAL):
        few = {"tasks.spoilt": [], "train.tasks": 8, "test.shots": [5, 10, 20], "test.tasks": 600}
        run = _behind_photographs(row).changed("", few).changed(variant, {"test.min_shots": least})
        runs[run.cell] = run
    for run in (runs["gp-vib-cosine-unequal-1"], runs["proto-net-unequal-1"]):
        run = run.changed("learned", {"tasks.shots": 5, "tasks.min_shots": 1, "tasks.queries": 11})
        runs[run.cell] = run
    return runs


UNEQUAL = (("equal", None), ("unequal", 1))
"""Whether classes of a test task have different numbers of points, and the fewest they have then."""
_SHORT = {**_ON_A_CPU, "train.steps": 4_000, "train.tasks": 1, "train.validate_every": 500, "test.tasks": 1_000}
_LARGE_SITES = recipes.LARGE_START | recipes.SITE_RATES  # as the recipe of the built-in characters has for being short


def any_number(seeds: int | None) -> Runs:
    """Networks that learn from tasks of characters, tested on as many points of each class or not.

    They learn from one or two points of each class, from one, or from five, in all splits: on the built-in characters,
    and in a short training from Omniglot to EMNIST.
    """
    others = list(product(("gp-vib-cosine", "proto-net"), (1, 5)))
    runs: Runs = {}
    for column, changes, more in (("glyphs", {}, others), ("omniglot-emnist", _SHORT, others[:2])):
        learners = []
        for row in ("gaussian-classes", "gp-vib-cosine", "proto-net"):
            numbers = recipes.one_or_two(paper_s(column, row, 1).config)
            learners.append(_ours(column, row, 1).changed("numbers", numbers | changes))
        learners += [_ours(column, row, k).changed("one" if k == 1 else "five", changes) for row, k in more]
        if changes:
            classes, gp_vib, *_ = learners
            learners.append(gp_vib.changed("sites", _LARGE_SITES))
            learners.append(classes.changed("longer", {"train.steps": 12_000}))
        for run, (variant, least) in product(learners, UNEQUAL):
            shots = [1, 5, 10] if least is None else [5, 10]
            run = run.changed(variant, {"test.min_shots": least, "test.shots": shots})
            runs[run.cell if column == "glyphs" else f"{column}/{run.cell}"] = run
    return runs


def ink(seeds: int | None) -> Runs:
    """Methods from Omniglot to EMNIST in short trainings, on characters as they are drawn and brought to one form.

    Of the latter also from tasks every second of which has characters of one alphabet, in two trainings of our own
    methods; Gaussian classes three times as long, too, as drawn and from such tasks. A training serves all shots.
    """
    tested = {"test.shots": [1, 5, 10], "test.temperature": True}
    drawn = [_ours("omniglot-emnist", "dkt-cosine", 1).changed("", _SHORT | tested)]
    for row in ("proto-net", "gp-vib-cosine", "gaussian-classes"):
        numbers = recipes.one_or_two(paper_s("omniglot-emnist", row, 1).config)
        starts = _LARGE_SITES if row == "gp-vib-cosine" else {}
        drawn.append(_ours("omniglot-emnist", row, 1).changed("", numbers | _SHORT | starts | tested))
    in_one_form = [run.changed("ink", {"tasks.ink": True}) for run in drawn]
    alike = [run.changed("alike", {"tasks.alike": 0.5}) for run in in_one_form]
    longer = [runs[-1].changed("longer", {"train.steps": 12_000}) for runs in (alike, drawn)]
    again = [run.changed("again", {"seed": 1}) for run in alike[-2:]]
    return {run.cell: run for run in reversed(again + longer + alike + in_one_form + drawn)}


def _behind_photographs(row: str) -> Run:
    """A method behind the network of the bundled `photographs`, which stays as it is."""
    method, kernel, _ = ROWS[row]
    widths = read(bundled.folder_of("photographs") / CONFIG).model.widths
    network = {"model.pretrained": "photographs", "model.widths": widths}
    return Run(override(recipes.frozen("mini-imagenet", method, kernel=kernel), network))


# Trainings of five minutes on a CPU: pictures of half the side, half the channels.
_ON_ONE_CORE = {
    **_ON_A_CPU,
    "tasks.size": 42,
    "tasks.fit": "whole",
    "model.width": 32,
    "train.steps": 3_000,
    "train.lr": 2e-3,
    "train.validate_every": 500,
}


def shift(seeds: int | None) -> Runs:
    """Models of Omniglot's characters on pictures of other kinds, the bundled model among them; then some remedies."""
    characters = read(bundled.folder_of("characters") / CONFIG)
    runs = [Run(override(characters, _SHIFTED), "bundled")]
    for row in ("gp-vib-cosine", "proto-net", "gp-vib-linear"):
        method, kernel, _ = ROWS[row]
        starts = recipes.LARGE_START | recipes.SITE_RATES if method == "gp-vib" else {}
        config = recipes.recipe("omniglot", method, shots=1, kernel=kernel)
        runs.append(Run(override(config, {**_MINUTES, **recipes.tasks_of(5, 10, 1), **starts, **_SHIFTED})))
    cosine = runs[1]
    runs.append(cosine.changed("augmented", {"tasks.augment": True}))
    runs += [cosine.changed(f"beta-{b:g}", {"train.beta": b}) for b in (0.1, 0.01)]
    runs.append(cosine.changed("full", {"model.sites": "full"}))
    # Of what the bundled model does: pictures of one form, and then strokes that are bent and broader, too.
    one_form = cosine.changed("ink", {"tasks.ink": True})
    bent = one_form.changed("augmented", {"tasks.augment": True})
    longer = {"train.steps": 3_000, "train.validate_every": 500}
    runs += [one_form, bent, bent.changed("longer", longer), cosine.changed("longer", longer)]
    return {run.cell: run for run in runs}


# What a number does as a setting changes


# The protocol has 60,000 steps of 32 tasks, for a GPU.
_FEW_MINUTES = {**_ON_A_CPU, "train.steps": 2_000, "train.tasks": 4, "train.schedule": "cosine"}


def beta(seeds: int | None) -> Runs:
    """GP-VIB on sinusoids, five trainings side by side, and from Omniglot to EMNIST with 5 shots and with 1.

    Then on Omniglot in short trainings on a CPU, on mini-ImageNet with our recipe in half its steps, and on Augmented
    Omniglot.
    """
    base = replace(override(recipes.recipe("sinusoid", "gp-vib"), SPREAD), repeats=5)
    on_a_cpu = {f"sinusoid/beta-{b:g}": Run(override(base, {"train.beta": b})) for b in BETAS}
    on_a_cpu |= _by_beta(paper_s("omniglot", "gp-vib-linear", k).changed("", _FEW_MINUTES) for k in (5, 1))
    bases = [paper_s("omniglot-emnist", "gp-vib-linear", k) for k in (5, 1)]
    bases += [_half_as_long(_ours("mini-imagenet", "gp-vib-cosine", k)) for k in (5, 1)]
    bases.append(paper_s("augmented-omniglot", "gp-vib-linear", 15))
    return on_a_cpu | seeded(_by_beta(bases), lambda run: seeds or 1)


def _by_beta(bases: Iterable[Run]) -> Runs:
    """Each run with every beta."""
    cells = {}
    for run, b in product(bases, BETAS):
        tasks = run.config.tasks
        cells[f"{tasks.name}/beta-{b:g}-{tasks.shots}"] = run.changed("", {"train.beta": b})
    return cells


def shots(seeds: int | None) -> Runs:
    """Omniglot to EMNIST, trained with 1 shot and with 5, tested with 1 to 20; MAML on as many episodes as others.

    Then sinusoids with 1 to 20 points, in three trainings side by side with our recipe; trainings of table 2 on
    mini-ImageNet with our recipe, tested with 1 to 20, and methods behind the network of the bundled `photographs`;
    and Augmented Omniglot, 20 to 2,000 points one after the other.
    """
    tested, cells = {"test.shots": list(range(1, 21)), "test.tasks": 1_000}, []
    for row, k in product(("gp-vib-linear", "gp-vib-cosine", "proto-net", "maml", "dkt-linear"), (1, 5)):
        run = paper_s("omniglot-emnist", row, k)
        length = _as_many_episodes(run.config) if row == "maml" else {}
        cells.append(run.changed("", length | tested))
    sinusoids = {}
    for method in ("gp-vib", "gp-maml", "maml", "stochastic-maml"):
        config = replace(recipes.improved("sinusoid", method), repeats=3)
        # From less than five points ten inner steps lead to ever larger errors on some tasks.
        steps = {"test.inner_steps": [10], "test.shots": list(range(5, 21))} if method in PLAIN_STEPS else {}
        sinusoids[f"sinusoid/{method}-improved"] = Run(override(config, tested | steps), "improved")
    more = {}
    for row, k in product(("gp-vib-cosine", "proto-net", "dkt-cosine"), (1, 5)):
        run = _ours("mini-imagenet", row, k).changed("", tested)
        more[f"mini-imagenet/{run.cell}"] = run
    for row in ("gp-vib-linear", "gp-vib-cosine"):
        run = paper_s("augmented-omniglot", row, 15).changed("", {"test.shots": [1, 2, 5, 10, 15, 25, 50, 100]})
        more[f"augmented-omniglot/{run.cell}"] = run
    rows = ("gp-vib-cosine", "proto-net", "gaussian-classes")
    behind = [_behind_photographs(row).changed("frozen", tested) for row in rows]
    on_a_cpu = sinusoids | {f"mini-imagenet/{run.cell}": run for run in behind}
    return seeded({run.cell: run for run in cells} | more, lambda run: seeds or 1) | on_a_cpu


def inner_steps(seeds: int | None) -> Runs:
    """GP+MAML and MAML on Omniglot, in the shorter training, against the number of inner steps at test.

    GP+MAML with inner steps on F, as the paper has them, and on the mean over points. Then MAML on mini-ImageNet, in
    as many steps.
    """
    rows = ("gp-maml-linear", "maml", "gp-maml-cosine")
    cells = _in_fewer_steps([paper_s("omniglot", row, k) for row, k in product(rows, (1, 5))])
    cells += [run.changed("mean", MEAN) for run in cells if run.config.method == "gp-maml"]
    photographs = _in_fewer_steps([paper_s("mini-imagenet", "maml", k) for k in (1, 5)])
    photographs = [run.changed("", {"test.tasks": 600}) for run in photographs]  # which a CPU does
    named = {run.cell: run for run in cells} | {f"mini-imagenet/{run.cell}": run for run in photographs}
    tested = {"test.inner_steps": [0, 1, 2, 3, 4, 5, 7, 10]}
    return seeded({name: run.changed("", tested) for name, run in named.items()}, lambda run: seeds or 1)


_NOISY = {"tasks.noise": 0.1, "model.noise": 0.3, "train.steps": 2_000, "train.lr": 2e-3, "train.schedule": "cosine"}


def objectives(seeds: int | None) -> Runs:
    """GP-VIB by the bound F and by its predictive form F_p, few points and many, KL at full weight and hardly any.

    Functions come from a known Gaussian process, so that the best possible score is known.
    """
    base = replace(recipes.recipe("gaussian", "gp-vib"), repeats=3)
    runs = {}
    for k, b, objective in product((3, 20), (1.0, 0.01), ("vib", "predictive")):
        changes = {"tasks.shots": k, "test.shots": [k], "train.beta": b, "train.objective": objective}
        runs[f"{objective}-beta-{b:g}-{k}"] = Run(override(base, {**_NOISY, **changes}))
    return runs
