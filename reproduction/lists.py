"""The runs behind each table and figure of the paper, and behind our own studies, by name.

Runs stand in the order "most telling first", so that whoever stops early has the best part. A run's name says what it
is, `<column>/<row>-<shots>-seed<n>` in full (`cub/gp-vib-linear-5-seed0`), so that patterns pick columns, methods,
shots and seeds.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from metavib.training import recipes
from metavib.training.config import Config
from metavib.training.fields import override
from reproduction import tables

Runs = dict[str, Config]

SEEDS = 10  # the most trainings a cell can have: as many as the paper has anywhere
COLUMNS = ("omniglot-emnist", "mini-imagenet", "cub", "mini-imagenet-cub")  # of table 2, most telling first
VARIED = re.compile("improved-[a-z]")  # in the name of a run with more or less than our recipe has
LENGTHS = (300, 1_000, 3_000, 10_000, 60_000)
BETAS = (1e-7, 1e-5, 1e-3, 1e-2, 1e-1, 0.5, 1.0)
# Rows of the paper's longer version: name -> method and kernel.
FURTHER = {
    "gp-vib-linear": ("gp-vib", "linear"),
    "gp-vib-cosine": ("gp-vib", "cosine"),
    "maml": ("maml", "linear"),
    "stochastic-maml": ("stochastic-maml", "linear"),
    "gp-maml-linear": ("gp-maml", "linear"),
    "gp-maml-cosine": ("gp-maml", "cosine"),
}


# Sinusoids


def table_1() -> Runs:
    """Sinusoids: the paper's four methods, and our improved GP-VIB; 10 repeats of each."""
    methods = ("maml", "stochastic-maml", "gp-vib", "gp-maml")
    configs = {method: recipes.recipe("sinusoid", method) for method in methods}
    configs["gp-vib-improved"] = recipes.improved("sinusoid", "gp-vib")
    return {name: replace(config, repeats=10) for name, config in configs.items()}


def improved_sinusoid() -> Runs:
    """What brought the error of GP-VIB on sinusoids down, one change after the other; 5 repeats of each."""
    base = override(recipes.recipe("sinusoid", "gp-vib"), {"model.reach": None, "repeats": 5})
    steps: dict[str, dict[str, Any]] = {
        "gp-vib-plain": {},
        "gp-vib-reach": {"model.reach": 5.0},
        "gp-vib-reach-cosine": {"model.reach": 5.0, "train.schedule": "cosine"},
        "gp-vib-reach-cosine-lr": {"model.reach": 5.0, "train.schedule": "cosine", "train.lr": 2e-3},
    }
    configs = {name: override(base, step) for name, step in steps.items()}
    return {**configs, "gp-vib-all": replace(recipes.improved("sinusoid", "gp-vib"), repeats=5)}


def figure_2() -> Runs:
    """GP-VIB on one sinusoid with K = 1, 2, 3, 4, 5, 7 points."""
    return {"gp-vib": recipes.recipe("sinusoid", "gp-vib")}


# Images


def table_2(seeds: int | None = None) -> Runs:
    """The paper's main table: every column and method, and recipes of our own; 3 trainings of GP-VIB, 1 of others."""
    ours_first = sorted(tables.MAIN_TABLE, key=lambda row: not row.startswith("gp-vib"))
    runs: Runs = {}
    for column in COLUMNS:
        cells: Runs = {}
        for row, shots in product(ours_first, (1, 5)):
            method, kernel = tables.MAIN_TABLE[row]
            cells[f"{row}-{shots}"] = recipes.recipe(column, method, shots=shots, kernel=kernel)
            if recipes.has_improved(column, method):
                cells[f"{row}-improved-{shots}"] = recipes.improved(column, method, shots=shots, kernel=kernel)
        if column == "omniglot-emnist":
            cells |= _explanations(cells)
        elif column == "mini-imagenet":
            cells |= _variants(cells)
        runs |= {f"{column}/{name}": config for name, config in _seeded(cells, seeds)}
    return runs


def _explanations(cells: Runs) -> Runs:
    """Runs with more or less of something, to see what it does: of characters, which are quickly trained."""
    runs: Runs = {}
    for name, config in cells.items():
        row, _, shots = name.rpartition("-")
        if config.method == "maml":  # whose steps have 32 tasks: as many episodes as the others have, and a few times
            runs[f"{row}-shorter-{shots}"] = _as_many_episodes(config)
            runs[f"{row}-eighth-{shots}"] = override(config, {"train.steps": config.train.steps // 8})
        if row in ("relation-net", "gp-vib-linear-improved"):
            runs[f"{row}-pooled-{shots}"] = override(config, {"model.poolings": 4})
        if row in ("gp-vib-linear-improved", "gp-vib-cosine-improved"):
            narrow = _narrow(config, cells[name.replace("-improved", "")])
            runs[f"{row}-pooled-narrow-{shots}"] = override(narrow, {"model.poolings": 4})
    less = override(runs["gp-vib-linear-improved-pooled-narrow-1"], {"tasks.augment": False})
    return runs | {"gp-vib-linear-improved-pooled-narrow-unaugmented-1": less}


def _as_many_episodes(maml: Config) -> Config:
    """MAML on as many training episodes as the other methods have."""
    other = recipes.recipe(maml.tasks.name, "gp-vib", shots=maml.tasks.shots)
    return override(maml, {"train.steps": other.train.steps * other.train.tasks // maml.train.tasks})


def _variants(cells: Runs) -> Runs:
    """Our recipe on mini-ImageNet in half its steps, the same with twice the channels, and with smaller crops.

    The last at five shots alone, where the recipe is not first.
    """
    runs: Runs = {}
    for name, config in cells.items():
        if "-improved-" in name:
            shorter = override(config, {"train.steps": config.train.steps // 2})
            runs[name.replace("improved", "improved-shorter")] = shorter
            runs[name.replace("improved", "improved-wide")] = override(shorter, {"model.width": 128})
            if config.tasks.shots == 5:
                runs[name.replace("improved", "improved-crops")] = override(config, {"tasks.crop": 0.7})
    return runs


def _narrow(improved: Config, paper: Config) -> Config:
    """Our recipe on the paper's tasks, each in one split."""
    tasks = {"tasks.ways": paper.tasks.ways, "tasks.queries": paper.tasks.queries, "test.ways": paper.test.ways}
    return override(improved, {**tasks, "train.splits": 1})


def _on_gpu(config: Config) -> Config:
    """Photographs keep a GPU busy, which bfloat16 halves; characters hardly do."""
    return replace(config, device="cuda", precision="bf16" if config.tasks.size > 28 else "tf32")


def _on_cpu(config: Config) -> Config:
    """The first steps of a long training, in two thirds of the time that float32 takes."""
    return replace(config, precision="bf16")


def _seeded(
    cells: Runs, seeds: int | None, *, place: Callable[[Config], Config] = _on_gpu
) -> Iterator[tuple[str, Config]]:
    """All cells with the first seed, then those that are trained more often with the next, each in its place."""
    for seed in range(SEEDS):
        for name, config in cells.items():
            if seed < (seeds or (3 if config.method == "gp-vib" and not VARIED.search(name) else 1)):
                yield f"{name}-seed{seed}", place(replace(config, seed=seed))


def starts(seeds: int | None = None) -> Runs:
    """The first 300 steps of GP-VIB from mini-ImageNet to CUB with one shot, by where its sites start; on a CPU."""
    paper = override(recipes.recipe("mini-imagenet-cub", "gp-vib", shots=1), {"train.steps": 300, "test.tasks": 60})
    cells = {"gp-vib-linear-paper": paper, "gp-vib-linear-start": override(paper, recipes.LARGE_START)}
    return dict(_seeded(cells, seeds or 3, place=_on_cpu))


def crops(seeds: int | None = None) -> Runs:
    """The first 3,000 steps of ProtoNet on mini-ImageNet with five shots, by the size of training crops; on a CPU."""
    changes = {"train.steps": 3_000, "train.validate_every": 500, "train.validation_tasks": 300, "test.tasks": 60}
    paper = override(recipes.recipe("mini-imagenet", "proto-net", shots=5), changes)
    cells = {"proto-net-paper": paper, "proto-net-large-crops": override(paper, {"tasks.crop": 0.9})}
    return dict(_seeded(cells, seeds or 1, place=_on_cpu))


def improved_photographs(seeds: int | None = None) -> Runs:
    """What helps on photographs, most of it with one shot, in 10,000 steps, judged on validation alone."""
    splits: dict[str, Any] = {"train.splits": 17}
    start, rates = recipes.LARGE_START, recipes.SITE_RATES
    changes: dict[str, dict[str, Any]] = {
        "paper": {},
        "mean": {"train.beta": 0.08},  # the paper's, if its fit is the mean over 80 query points and not their sum
        "start": start,
        "splits": splits,
        "start-splits": start | splits,
        "start-splits-crops": start | splits | {"tasks.crop": 0.35},
        "start-splits-unaugmented": start | splits | {"tasks.augment": False},
        "start-splits-rates": start | splits | rates,
        "start-splits-full": start | splits | {"model.sites": "full"},
        **{
            f"start-splits-rates-crop-{crop}": start | splits | rates | {"tasks.crop": crop}
            for crop in (0.35, 0.7, 0.9)
        },
    }
    of_linear = ("paper", "start-splits", "start-splits-crops")
    cells: Runs = {}
    for column in ("cub", "mini-imagenet"):
        for kernel, names in (("cosine", changes), ("linear", of_linear)):
            base = override(recipes.recipe(column, "gp-vib", shots=1, kernel=kernel), _SHORTER)
            cells |= {f"{column}/gp-vib-{kernel}-{name}": override(base, changes[name]) for name in names}
        cells[f"{column}/dkt-cosine"] = override(recipes.recipe(column, "dkt", shots=1, kernel="cosine"), _SHORTER)
    for (column, shots), sizes in SIZES.items():
        base = override(recipes.recipe(column, "gp-vib", shots=shots, kernel="cosine"), _SHORTER | start | rates)
        crop = 0.9 if column == "mini-imagenet" else 0.35
        for ways, images, poolings in sizes:
            name = f"{'one-shot' if shots == 1 else 'five-shots'}-{ways}-ways-{poolings}-poolings"
            change = {"tasks.crop": crop, "model.poolings": poolings, **recipes.tasks_of(ways, images, shots)}
            cells[f"{column}/gp-vib-cosine-{name}"] = override(base, change)
    return dict(_seeded(cells, seeds or 1))


SIZES = {
    ("mini-imagenet", 1): ((20, 5, 4), (32, 3, 4), (5, 17, 3), (5, 17, 2)),
    ("mini-imagenet", 5): ((5, 21, 4), (10, 10, 4), (16, 10, 4), (5, 21, 3)),
    ("cub", 1): ((20, 5, 4), (5, 17, 3)),
}
"""Classes of a training task, images of each and poolings of Conv4 that `improved_photographs` compares, by shots."""
_SHORTER = {"train.steps": 10_000, "test.tasks": 600}


def glyphs() -> Runs:
    """The methods of the paper's main table on the built-in characters, 5-way 1- and 5-shot, and our own recipe."""
    configs = {}
    for (name, (method, kernel)), shots in product(tables.MAIN_TABLE.items(), (1, 5)):
        paper = configs[f"{name}-{shots}"] = recipes.recipe("glyphs", method, shots=shots, kernel=kernel)
        if recipes.has_improved("glyphs", method):
            improved = recipes.improved("glyphs", method, shots=shots, kernel=kernel)
            configs[f"{name}-improved-{shots}"] = improved
            configs[f"{name}-improved-narrow-{shots}"] = _narrow(improved, paper)
    return configs


def omniglot(seeds: int | None = None) -> Runs:
    """Omniglot 5-way with 1 and 5 shots, the rows of the paper's longer version; then each in a sixth of the steps.

    GP-VIB in so many steps on shuffled characters too.
    """
    shorter = _shorter_omniglot(FURTHER)
    ours = {name: config for name, config in shorter.items() if config.method == "gp-vib"}
    shuffled = {name.replace("shorter", "shorter-shuffled"): _shuffled(config) for name, config in ours.items()}
    return dict(_seeded(_grid("omniglot", FURTHER, (1, 5)) | shorter | shuffled, seeds or 1))


def _shorter_omniglot(rows: dict[str, tuple[str, str]]) -> Runs:
    named = {f"{row}-shorter": what for row, what in rows.items()}
    return {name: _in_steps(config, 10_000) for name, config in _grid("omniglot", named, (1, 5)).items()}


def _in_steps(config: Config, steps: int) -> Config:
    """A training of so many steps, whose rates end at zero."""
    return override(config, {"train.steps": steps, "train.schedule": "cosine"})


def _shuffled(config: Config) -> Config:
    """The characters of all alphabets split at random."""
    return override(config, {"tasks.shuffled": True, "model.classes": 4 * 1100})


def lengths(seeds: int | None = None) -> Runs:
    """GP-VIB on Omniglot, one shot, linear kernel, trained longer and longer; up to 3,000 steps on a CPU.

    On the recipe's split, whose test characters are of new alphabets, and with those of all alphabets shuffled; with
    these for 3,000 steps under transductive batch-norm too.
    """
    paper = recipes.recipe("omniglot", "gp-vib", shots=1)
    cells = {f"gp-vib-linear-{steps}-steps-1": _in_steps(paper, steps) for steps in LENGTHS}
    cells |= {f"gp-vib-linear-shuffled-{steps}-steps-1": _shuffled(_in_steps(paper, steps)) for steps in LENGTHS}
    transductive = override(_shuffled(_in_steps(paper, 3_000)), {"model.norm": "transductive"})
    cells["gp-vib-linear-shuffled-transductive-3000-steps-1"] = transductive
    return dict(_seeded(cells, seeds or 1, place=lambda c: c if c.train.steps <= 3_000 else _on_gpu(c)))


def augmented_omniglot(seeds: int | None = None) -> Runs:
    """Augmented Omniglot, 20-way 15-shot; tested with 300 support points, and with 2,000 augmented ones streamed.

    GP+MAML, cosine kernel, with first-order inner steps too: with the linear kernel these end in NaN by step 600.
    """
    cells = _grid("augmented-omniglot", FURTHER, (15,))
    cells["gp-maml-cosine-first-order-15"] = override(cells["gp-maml-cosine-15"], {"model.first_order": True})
    return dict(_seeded({name: override(c, {"test.shots": [15, 100]}) for name, c in cells.items()}, seeds or 1))


def rates(seeds: int | None = None) -> Runs:
    """The first 900 steps of GP+MAML, cosine kernel, on Augmented Omniglot, by learning rate and order; on a CPU."""
    paper = recipes.recipe("augmented-omniglot", "gp-maml", shots=15, kernel="cosine")
    paper = override(paper, {"train.steps": 900, "train.validate_every": 100, "test.tasks": 20})
    cells = {
        "gp-maml-cosine-paper": paper,
        "gp-maml-cosine-half": override(paper, {"train.lr": paper.train.lr / 2}),
        "gp-maml-cosine-first-order": override(paper, {"model.first_order": True}),
    }
    return dict(_seeded(cells, seeds or 1, place=_on_cpu))


def beta(seeds: int | None = None) -> Runs:
    """GP-VIB against beta: sinusoids, 5 repeats of each; Omniglot to EMNIST with 5 shots and with 1, linear kernel."""
    base = replace(recipes.recipe("sinusoid", "gp-vib"), repeats=5)
    runs = {f"sinusoid/beta-{beta:g}": override(base, {"train.beta": beta}) for beta in BETAS}
    cells: Runs = {}
    for shots, beta in product((5, 1), BETAS):
        config = recipes.recipe("omniglot-emnist", "gp-vib", shots=shots)
        cells[f"beta-{beta:g}-{shots}"] = override(config, {"train.beta": beta})
    return runs | {f"omniglot-emnist/{name}": config for name, config in _seeded(cells, seeds or 1)}


def shots(seeds: int | None = None) -> Runs:
    """Accuracy against K = 1 ... 20 at meta-test on Omniglot to EMNIST, of methods trained with 1 shot and with 5."""
    rows = ("gp-vib-linear", "gp-vib-cosine", "proto-net", "maml", "dkt-linear")
    cells = _grid("omniglot-emnist", {row: tables.MAIN_TABLE[row] for row in rows}, (1, 5))
    cells |= {name: _as_many_episodes(config) for name, config in cells.items() if config.method == "maml"}
    changes = {"test.shots": list(range(1, 21)), "test.tasks": 1_000}
    return dict(_seeded({name: override(config, changes) for name, config in cells.items()}, seeds or 1))


def inner_steps(seeds: int | None = None) -> Runs:
    """GP+MAML and MAML on Omniglot, in the shorter training, against the number of inner steps at test."""
    cells = _shorter_omniglot({row: FURTHER[row] for row in ("gp-maml-linear", "maml", "gp-maml-cosine")})
    changes = {"test.inner_steps": [0, 1, 2, 3, 4, 5, 7, 10]}
    return dict(_seeded({name: override(config, changes) for name, config in cells.items()}, seeds or 1))


def _grid(experiment: str, rows: dict[str, tuple[str, str]], shots: Iterable[int]) -> Runs:
    return {
        f"{row}-{k}": recipes.recipe(experiment, method, shots=k, kernel=kernel)
        for (row, (method, kernel)), k in product(rows.items(), shots)
    }
