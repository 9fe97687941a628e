"""A table or figure from one command: runs what is missing of it, and shows what is on record.

What is recorded under the same config is skipped, a run that was killed goes on, and tables and figures are made from
the records alone (figure 2 from a trained model too). Records are lines of `<records>/<reproduction>.jsonl`, run
folders lie in `<out>/<reproduction>/runs`. A run that another reproduction has on record is not run again, nor is a
model trained again that another one has trained and tests otherwise.
"""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from metavib.files import read_json, write_atomically
from metavib.training import recipes
from metavib.training.config import Config, read
from metavib.training.fields import override
from metavib.training.run_folder import CONFIG, LAST, RECORD
from reproduction import store
from reproduction.grids.grid import TITLES, base, read_name
from reproduction.lists import SEEDS, Runs
from reproduction.queue import run_all
from reproduction.reproductions import REPRODUCTIONS as REPRODUCTIONS
from reproduction.reproductions import Reproduction

QUICK_NOTE = (
    "*A quick version: a few tiny trainings on built-in data. It tries the machinery; its numbers say nothing.*\n\n"
)
GLYPH_CLASSES = recipes.recipe("glyphs", "gp-vib").model.classes


def quick(config: Config) -> Config:
    """A run of a few seconds: the same code on built-in data, a fraction of the steps, repeats and channels."""
    config = replace(config, repeats=min(2, config.repeats))
    if config.model.backbone == "mlp":
        return override(config, {**_steps(200), "test.tasks": 100})
    model, test, tasks = config.model, config.test, config.tasks
    pictures = 20  # of a class; more shots than that only where they are augmented draws
    changes: dict[str, Any] = {
        **_steps(10),
        "device": "cpu",
        "precision": "float32",
        "tasks.name": "glyphs",
        "tasks.shuffled": False,
        "tasks.root": None,
        "tasks.channels": 1,
        "tasks.size": 28,
        "tasks.queries": min(pictures - tasks.shots, tasks.queries),
        "train.tasks": min(2, config.train.tasks),
        "train.splits": min(2, config.train.splits),
        "train.validation_tasks": 4,
        "model.width": 8,
        "model.samples": 50,
        "model.classes": GLYPH_CLASSES,
        "model.head_epochs": 10,
        "model.inner_steps": min(5, model.inner_steps),
        "test.inner_steps": [steps for steps in test.inner_steps if steps <= 10] or ([10] if test.inner_steps else []),
        "test.tasks": 10,
        "test.queries": min(5, test.queries),
        "test.shots": [k for k in test.shots if k + 5 <= pictures or tasks.alphabets],
    }
    return override(config, changes)


def _steps(steps: int) -> dict[str, int]:
    """A training of so many steps."""
    return {
        "train.steps": steps,
        "train.validate_every": steps // 2,
        "train.save_every": steps,
        "train.log_every": steps // 10,
    }


def reproduce(
    name: str,
    out: Path,
    *,
    records: Path = store.FOLDER,
    fast: bool = False,
    only: str | None = None,
    part: str = "1/1",
    seeds: int | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> str:
    """Runs what is missing of a table or figure, writes it under `out/<name>`, and returns it in Markdown.

    Args:
        name: one of `REPRODUCTIONS`.
        out: folder of the run folders, tables and figures.
        records: folder of the records; those of a quick version lie in its own folder.
        fast: a quick version of a few of the runs, on built-in data, in a folder of its own.
        only: patterns of run names, separated by commas, such as `cub/gp-vib-*-seed0`: run no others. `""` runs none.
            All runs unless told (in a quick version: a few).
        part: which of several equal parts of the list of runs, such as `2/4`: each machine takes one.
        seeds: trainings of each cell.
        jobs: runs at a time; eight on a GPU, else one a core, unless told.
        quiet: no progress bar.

    Raises:
        ValueError: there is no such reproduction, no such run, or no GPU for runs that need one; nothing was run.
        reproduction.queue.RunFailed: some runs failed; the others are on record and in the table.
    """
    entry = known(name)
    folder, home = out / f"{name}{'-quick' * fast}", _home(name, out, fast=fast)
    book = _book(name, out, records, fast=fast)
    wanted = plan(name, out, records=records, fast=fast, only=only, part=part, seeds=seeds)
    missing = {key: config for key, (config, recorded) in wanted.items() if not recorded}
    if not entry.weights:
        missing = _copy_recorded(missing, book, out if fast else records)
    if any(c.device.startswith("cuda") for c in missing.values()) and not torch.cuda.is_available():
        raise ValueError(
            f"missing runs of {name} need a GPU ({len(missing)} in all), and PyTorch sees none here. `--quick` is a "
            "version for any machine; `--only ''` runs nothing and shows what is on record."
        )

    def keep(key: str) -> None:
        store.add(book, [_named(key, read_json(home / "runs" / key / RECORD))])

    try:
        run_all(missing, home / "runs", jobs=jobs, quiet=quiet, trained=_trained(missing, out), done=keep)
    finally:  # what has come out is shown, whatever else failed
        text = _write(entry, book, folder, note=QUICK_NOTE if fast else "")
    if text is None:
        raise ValueError(f"nothing is on record in {book}: run some of it first.")
    return text


def known(name: str) -> Reproduction:
    """A reproduction by its name."""
    if name not in REPRODUCTIONS:
        raise ValueError(f"there is no {name!r} to reproduce; there are {', '.join(REPRODUCTIONS)}.")
    return REPRODUCTIONS[name]


def listing() -> str:
    """What there is to reproduce, a line each."""
    return "\n\n".join(f"{name}: {entry.about}" for name, entry in REPRODUCTIONS.items())


def plan(
    name: str,
    out: Path,
    *,
    records: Path = store.FOLDER,
    fast: bool = False,
    only: str | None = None,
    part: str = "1/1",
    seeds: int | None = None,
) -> dict[str, tuple[Config, bool]]:
    """The runs that a call of `reproduce` with these arguments is about, in order, and whether each is on record."""
    entry = known(name)
    home = _home(name, out, fast=fast)
    if seeds is not None and not entry.seeded:
        raise ValueError(f"{name} trains its repeats side by side in one run and takes no number of seeds.")
    if seeds is not None and not 1 <= seeds <= SEEDS:
        raise ValueError(f"seeds must be between 1 and {SEEDS}; got {seeds}.")
    configs = entry.configs(seeds) if entry.seeded else entry.configs()
    patterns = [p.strip() for p in (entry.quick if fast and only is None else "*" if only is None else only).split(",")]
    wanted = {key: c for key, c in configs.items() if any(fnmatchcase(key, p) for p in patterns)}
    for pattern in filter(None, patterns):
        if not any(fnmatchcase(key, pattern) for key in configs):
            raise ValueError(f"no run of {name} is called {pattern!r}; there are {', '.join(configs)}.")
    index, count = _fraction(part)
    chosen = dict(list(wanted.items())[index::count])
    if fast:
        chosen = {key: quick(config) for key, config in chosen.items()}
    known_records = store.read(_book(name, out, records, fast=fast))
    return {key: (c, recorded(known_records, key, c) and _has(entry, home, key)) for key, c in chosen.items()}


def recorded(found: store.Records, name: str, config: Config) -> bool:
    """Whether a run of this name and this very config is on record."""
    return name in found and store.config(found[name]) == config


def _named(name: str, record: store.Record) -> store.Record:
    """A record under its name, and which variant of the paper's recipe it is."""
    row = read_name(name).row
    like = base(row, TITLES)
    return {"name": name, "variant": "" if like is None else row[len(like) :].strip("-"), **record}


def _write(entry: Reproduction, book: Path, folder: Path, *, note: str) -> str | None:
    """Shows all that is on record, in a folder, after a note; None where nothing is."""
    every = store.read(book)
    found = {key: every[key] for key in entry.every() if key in every}
    if not found:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    text = note + entry.show(found, folder)
    write_atomically(folder / "README.md", lambda p: p.write_text(text + "\n", encoding="utf-8"))
    return text


def _home(name: str, out: Path, *, fast: bool) -> Path:
    """Where the run folders of a reproduction lie."""
    return out / f"{known(name).of or name}{'-quick' * fast}"


def _book(name: str, out: Path, records: Path, *, fast: bool) -> Path:
    """The file with the records of a reproduction."""
    return _home(name, out, fast=True) / "records.jsonl" if fast else records / f"{known(name).of or name}.jsonl"


def _has(entry: Reproduction, home: Path, key: str) -> bool:
    return not entry.weights or (home / "runs" / key / LAST).exists()


def _fraction(part: str) -> tuple[int, int]:
    index, _, count = part.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise ValueError(f"a part is written as 2/4, the second of four; got {part!r}.")
    return int(index) - 1, int(count)


def _copy_recorded(missing: Runs, book: Path, folder: Path) -> Runs:
    """Copies what another reproduction has on record under the very same config; returns what is still missing."""
    if not missing:
        return {}
    elsewhere = list(_on_record(folder))
    left, copied = {}, []
    for key, config in missing.items():
        same = next((record for record, other in elsewhere if other == config), None)
        if same is None:
            left[key] = config
        else:
            copied.append(_named(key, {k: v for k, v in same.items() if k not in ("name", "variant")}))
    if copied:
        store.add(book, copied)
    return left


def _on_record(folder: Path) -> Iterator[tuple[store.Record, Config | None]]:
    """Every record below a folder, and its config."""
    for path in sorted(folder.rglob("*.jsonl")):
        if path.name != "metrics.jsonl":  # the log of a training
            yield from ((record, store.config(record)) for record in store.read(path).values())


def _trained(missing: Runs, out: Path) -> dict[str, Path]:
    """Run folders, of any reproduction, whose training is that of a missing run, tested otherwise."""
    if not missing:
        return {}
    trainings = {}
    for path in sorted(out.glob(f"*/runs/**/{CONFIG}")):
        if (path.parent / RECORD).exists() and (path.parent / LAST).exists():
            trainings[path.parent] = read(path)
    found = {}
    for key, config in missing.items():
        same = (folder for folder, other in trainings.items() if replace(other, test=config.test) == config != other)
        if folder := next(same, None):
            found[key] = folder
    return found
