"""The paper's tables and figures, one command each.

Each is a set of named configs and a way to show their records. What is recorded under the same config is skipped, a
run that was killed goes on, and tables and figures are made from the records alone (figure 2 from a trained model too).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from metavib import checkpoint, plots, recipes, tables
from metavib.config import Config
from metavib.files import read_json, write_atomically, write_json
from metavib.runs import run_all
from metavib.strict import from_dict, override
from metavib.train import LAST

Records = dict[str, Any]
GLYPH_CLASSES = recipes.recipe("glyphs", "gp-vib").model.classes
BETAS = (1e-7, 1e-5, 1e-3, 1e-2, 1e-1, 0.5, 1.0)


@dataclass(frozen=True)
class Reproduction:
    """A table or figure.

    Args:
        configs: the runs it needs, by name.
        show: from the records and the folder they lie in to Markdown; figures go into that folder.
    """

    configs: Callable[[], dict[str, Config]]
    show: Callable[[Records, Path], str]


def table_1() -> dict[str, Config]:
    """Sinusoids: the paper's four methods, and our improved GP-VIB; 10 repeats of each."""
    methods = ("maml", "stochastic-maml", "gp-vib", "gp-maml")
    configs = {method: recipes.recipe("sinusoid", method) for method in methods}
    configs["gp-vib-improved"] = recipes.improved("sinusoid", "gp-vib")
    return {name: replace(config, repeats=10) for name, config in configs.items()}


def improved_sinusoid() -> dict[str, Config]:
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


def figure_2() -> dict[str, Config]:
    """GP-VIB on one sinusoid with K = 1, 2, 3, 4, 5, 7 points."""
    return {"gp-vib": recipes.recipe("sinusoid", "gp-vib")}


def beta() -> dict[str, Config]:
    """GP-VIB on sinusoids against beta; 5 repeats of each."""
    base = replace(recipes.recipe("sinusoid", "gp-vib"), repeats=5)
    return {f"sinusoid/beta-{beta:g}": override(base, {"train.beta": beta}) for beta in BETAS}


def glyphs() -> dict[str, Config]:
    """The methods of the paper's main table on the built-in characters, 5-way 1- and 5-shot."""
    configs = {}
    for name, (method, kernel) in tables.MAIN_TABLE.items():
        for shots in (1, 5):
            configs[f"{name}-{shots}"] = recipes.recipe("glyphs", method, shots=shots, kernel=kernel)
    return configs


def table_2() -> dict[str, Config]:
    """Omniglot to EMNIST: the methods of the paper's main table, and our improved GP-VIB; 3 seeds of GP-VIB."""
    configs = {}
    for shots in (1, 5):
        for name, (method, kernel) in tables.MAIN_TABLE.items():
            config = recipes.recipe("omniglot-emnist", method, shots=shots, kernel=kernel)
            for seed in range(3 if method == "gp-vib" else 1):
                configs[f"{name}-{shots}-seed{seed}"] = replace(config, seed=seed)
        for kernel in ("linear", "cosine"):
            config = recipes.improved("omniglot-emnist", "gp-vib", shots=shots, kernel=kernel)
            configs[f"gp-vib-{kernel}-improved-{shots}-seed0"] = config
    plain = override(configs["gp-vib-linear-improved-1-seed0"], {"tasks.augment": False})
    configs["gp-vib-linear-improved-unaugmented-1-seed0"] = plain
    return {
        f"omniglot-emnist/{name}": replace(config, device="cuda", precision="tf32") for name, config in configs.items()
    }


def _show_figure_2(records: Records, folder: Path) -> str:
    saved = checkpoint.load(folder / "runs" / "gp-vib" / LAST)
    plots.save(plots.predictions(checkpoint.restore_model(saved), saved.config), folder / "figure-2.png")
    return "![One task with more and more points](figure-2.png)\n\n" + tables.table_1(records)


def _show_beta(records: Records, folder: Path) -> str:
    plots.save(plots.beta_curve(records), folder / "beta.png")
    return "![Error against beta](beta.png)\n\n" + tables.beta(records)


def _show_table_2(records: Records, folder: Path) -> str:
    return _show_images({name.partition("/")[2]: record for name, record in records.items()}, folder)


def _show_images(records: Records, folder: Path) -> str:
    plots.save(plots.reliability(records), folder / "reliability.png")
    return tables.images(records) + "\n\n![Reliability](reliability.png)"


REPRODUCTIONS = {
    "table-1": Reproduction(table_1, lambda records, folder: tables.table_1(records)),
    "improved-sinusoid": Reproduction(improved_sinusoid, lambda records, folder: tables.table_1(records)),
    "figure-2": Reproduction(figure_2, _show_figure_2),
    "beta": Reproduction(beta, _show_beta),
    "glyphs": Reproduction(glyphs, _show_images),
    "table-2": Reproduction(table_2, _show_table_2),
}


def quick(config: Config) -> Config:
    """A minute's version of a run: the same code, a fraction of the steps, fewer repeats and tasks."""
    images = config.model.backbone != "mlp"
    steps = 20 if images else max(200, config.train.steps // 30)
    changes: dict[str, Any] = {"train.steps": steps, "train.validate_every": steps // 2, "train.save_every": steps}
    changes |= {"train.log_every": max(1, steps // 20), "test.tasks": 10 if images else 100}
    if images:
        changes |= {"train.validation_tasks": 5, "model.width": 8, "device": "cpu", "precision": "float32"}
        changes |= {"tasks.name": "glyphs", "model.classes": GLYPH_CLASSES}  # nothing to download
    return override(replace(config, repeats=min(2, config.repeats)), changes)


def reproduce(
    name: str,
    out: Path,
    *,
    fast: bool = False,
    only: str = "*",
    jobs: int | None = None,
    quiet: bool = False,
) -> str:
    """Runs what is missing of a table or figure, writes it under `out/<name>`, and returns it in Markdown.

    Args:
        name: one of `REPRODUCTIONS`.
        out: folder of the results.
        fast: a minute's version, under a name of its own.
        only: a pattern of run names, such as `gp-vib-*-seed0`: run no others. `""` runs none.
        jobs: runs at a time; one a core unless told.
        quiet: no progress bar.
    """
    if name not in REPRODUCTIONS:
        raise ValueError(f"there is no {name!r} to reproduce; there are {', '.join(REPRODUCTIONS)}.")
    configs = REPRODUCTIONS[name].configs()
    if fast:
        configs = {key: quick(config) for key, config in configs.items()}
    folder = out / (f"{name}-quick" if fast else name)
    wanted = {key: config for key, config in configs.items() if fnmatch(key, only)}
    if only and not wanted:
        raise ValueError(f"no run of {name} is called {only!r}; there are {', '.join(configs)}.")
    missing = {key: config for key, config in wanted.items() if not recorded(folder / f"{key}.json", config)}
    run_all(missing, folder / "runs", jobs=jobs, quiet=quiet)
    for key in missing:
        write_json(folder / f"{key}.json", read_json(folder / "runs" / key / "record.json"))
    records = {key: read_json(folder / f"{key}.json") for key in configs if (folder / f"{key}.json").exists()}
    if not records:
        raise ValueError(f"nothing is on record in {folder}: run some of it first.")
    text = REPRODUCTIONS[name].show(records, folder)
    write_atomically(folder / "README.md", lambda p: p.write_text(text + "\n", encoding="utf-8"))
    return text


def recorded(path: Path, config: Config) -> bool:
    """Whether a run of this very config is on record."""
    return path.exists() and from_dict(Config, read_json(path)["config"]) == config
