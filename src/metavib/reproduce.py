"""The paper's tables and figures, one command each.

Each experiment is a set of named configs; `metavib.runs` does what is missing, and the records it leaves are all that
tables and figures are made from.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from metavib import checkpoint, plots, recipes, tables
from metavib.config import Config
from metavib.files import read_json, write_atomically, write_json
from metavib.runs import run_all
from metavib.strict import override
from metavib.train import LAST

BETAS = (1e-7, 1e-5, 1e-3, 1e-2, 1e-1, 0.5, 1.0)


def table_1(*, repeats: int = 10) -> dict[str, Config]:
    """Sinusoids: the paper's four methods, and our improved GP-VIB."""
    methods = ("maml", "stochastic-maml", "gp-vib", "gp-maml")
    configs = {method: replace(recipes.recipe("sinusoid", method), repeats=repeats) for method in methods}
    return {**configs, "gp-vib-improved": replace(recipes.improved("sinusoid", "gp-vib"), repeats=repeats)}


def figure_2() -> dict[str, Config]:
    """GP-VIB on one sinusoid with K = 1, 2, 3, 4, 5, 7 points."""
    return {"gp-vib": recipes.recipe("sinusoid", "gp-vib")}


def beta_sinusoid(*, repeats: int = 5) -> dict[str, Config]:
    """GP-VIB on sinusoids against beta."""
    base = replace(recipes.recipe("sinusoid", "gp-vib"), repeats=repeats)
    return {f"beta-{beta:g}": override(base, {"train.beta": beta}) for beta in BETAS}


REPRODUCTIONS = {"table-1": table_1, "figure-2": figure_2, "beta-sinusoid": beta_sinusoid}


def quick(config: Config) -> Config:
    """A minute's version of a run: the same code, a fraction of the steps, fewer repeats and tasks."""
    steps = max(200, config.train.steps // 30)
    changes: dict[str, Any] = {"train.steps": steps, "train.validate_every": steps // 2, "train.save_every": steps}
    changes |= {"train.log_every": max(1, steps // 20), "test.tasks": 100}
    return override(replace(config, repeats=min(2, config.repeats)), changes)


def reproduce(name: str, out: Path, *, fast: bool = False, jobs: int | None = None, quiet: bool = False) -> str:
    """Runs what is missing of a table or figure, writes it under `out/<name>`, and returns it in Markdown."""
    if name not in REPRODUCTIONS:
        raise ValueError(f"there is no {name!r} to reproduce; there are {', '.join(REPRODUCTIONS)}.")
    configs = REPRODUCTIONS[name]()
    if fast:
        configs = {key: quick(config) for key, config in configs.items()}
    folder = out / (f"{name}-quick" if fast else name)
    run_all(configs, folder / "runs", jobs=jobs, quiet=quiet)
    records = {key: read_json(folder / "runs" / key / "record.json") for key in configs}
    for key, record in records.items():
        write_json(folder / f"{key}.json", record)
    return show(name, records, folder)


def show(name: str, records: dict[str, Any], folder: Path) -> str:
    """Tables and figures from the records (and, for figure 2, the trained model)."""
    if name == "table-1":
        text = tables.table_1(records)
    elif name == "beta-sinusoid":
        text = tables.beta(records)
        plots.save(plots.beta_curve(records), folder / "beta.png")
    else:
        saved = checkpoint.load(folder / "runs" / "gp-vib" / LAST)
        figure = plots.predictions(checkpoint.restore_model(saved), saved.config)
        plots.save(figure, folder / "figure-2.png")
        text = f"Figure 2: {folder / 'figure-2.png'}\n\n" + tables.table_1(records)
    write_atomically(folder / "README.md", lambda p: p.write_text(text + "\n", encoding="utf-8"))
    return text
