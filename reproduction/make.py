"""A study from one command: runs what is missing of it, and shows what is on record.

What is recorded under the same config is skipped, and a run that was killed goes on. Tables and figures are made from
the records alone (figure 2 from a trained model too). Records are lines of `<records>/<study>.jsonl`; run folders, the
table and the figures lie in `<out>/<study>`. A run that another study has on record is not run again, nor is a model
trained again that another study has trained and tests otherwise.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from metavib.files import read_json, write_atomically
from metavib.training import bundled, recipes
from metavib.training.config import Config, read
from metavib.training.fields import override
from metavib.training.run_folder import CONFIG, LAST, RECORD, is_run
from reproduction import store
from reproduction.queue import RunFailed, run_all
from reproduction.studies import STUDIES
from reproduction.study import SEEDS, Run, Runs, Study

QUICK_NOTE = (
    "*A quick version: a few tiny trainings on built-in data. It tries the machinery; its numbers say nothing.*\n\n"
)
GLYPH_CLASSES = recipes.recipe("glyphs", "gp-vib").model.classes


def make(
    study: Study,
    out: Path,
    records: Path,
    *,
    quick: bool = False,
    only: str | None = None,
    part: str = "1/1",
    seeds: int | None = None,
    jobs: int | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> str:
    """Runs what is missing of a study, writes its table and figures, and returns them in Markdown.

    Args:
        study: one of `STUDIES`.
        out: folder of the run folders, tables and figures; each study has a folder there.
        records: folder of the records.
        quick: a quick version of a few of the runs, on built-in data; it wants folders of its own.
        only: patterns of run names, separated by commas, such as `cub/gp-vib-*-seed0`: run no others. `""` runs none.
            All runs unless told (in a quick version: a few).
        part: which of several equal parts of the list of runs, such as `2/4`: each machine takes one.
        seeds: trainings of each cell.
        jobs: runs at a time; eight on a GPU, else one for each core, unless told.
        device: `cpu` for runs that are written for a GPU; each has its own unless told.
        quiet: no progress bar.

    Raises:
        ValueError: there is no such run, or no GPU for runs that need one; nothing was run.
        reproduction.queue.RunFailed: some runs failed; the others are on record and in the table.
    """
    folder, book = out / (study.of or study.name), records / study.book
    wanted = plan(study, out, records, quick=quick, only=only, part=part, seeds=seeds)
    missing = {name: run for name, (run, recorded) in wanted.items() if not recorded}
    if not study.models:
        missing = _copy_recorded(missing, book)
    configs = {name: run.config.on(device or run.config.device) for name, run in missing.items()}
    if any(config.device.startswith("cuda") for config in configs.values()) and not torch.cuda.is_available():
        raise ValueError(
            f"missing runs of {study.name} need a GPU ({len(missing)} in all), and PyTorch sees none here. `--device "
            "cpu` runs them slowly on this machine, `--quick` is a version for any machine, and `--only ''` runs "
            "nothing and shows what is on record."
        )

    def keep(name: str) -> None:
        found = read_json(folder / name / RECORD)
        store.add(book, [{"name": name, "variant": missing[name].variant, **found}])

    problems: list[RunFailed] = []
    try:
        for turn in _in_turn(configs):
            try:
                run_all(turn, folder, jobs=jobs, quiet=quiet, trained=_trained(turn, out), done=keep)
            except RunFailed as problem:
                problems.append(problem)
        if problems:
            raise problems[0]
    finally:  # what has come out is shown, whatever else failed
        text = _write(study, out / study.name, book, note=QUICK_NOTE if quick else "")
    if text is None:
        raise ValueError(f"nothing is on record in {book}: run some of it first.")
    return text


def plan(
    study: Study,
    out: Path,
    records: Path,
    *,
    quick: bool = False,
    only: str | None = None,
    part: str = "1/1",
    seeds: int | None = None,
) -> dict[str, tuple[Run, bool]]:
    """The runs that a call of `make` with these arguments is about, in order, and whether each is on record."""
    if seeds is not None and not study.seeded:
        raise ValueError(f"{study.name} trains its repeats side by side in one run and takes no number of seeds.")
    if seeds is not None and not 1 <= seeds <= SEEDS:
        raise ValueError(f"seeds must be between 1 and {SEEDS}; got {seeds}.")
    runs = study.runs(seeds)
    if only is None:
        only = study.quick if quick else "*"
    patterns = [pattern.strip() for pattern in only.split(",")]
    for pattern in filter(None, patterns):
        if not any(fnmatchcase(name, pattern) for name in runs):
            near = ", ".join(get_close_matches(pattern, runs, n=3, cutoff=0.0))
            raise ValueError(
                f"no run of {study.name} is called {pattern!r}; the nearest are {near}, and `--list` without `--only` "
                f"shows all {len(runs)}."
            )
    index, count = _fraction(part)
    chosen = [name for name in runs if any(fnmatchcase(name, pattern) for pattern in patterns)][index::count]
    found, wanted = store.read(records / study.book), {}
    for name in chosen:
        run = Run(quickened(runs[name].config), runs[name].variant) if quick else runs[name]
        there = name not in study.models or (out / study.name / name / LAST).exists()
        wanted[name] = run, there and recorded(found, name, run.config)
    return wanted


def recorded(found: store.Records, name: str, config: Config) -> bool:
    """Whether a run of this name and config is on record, wherever it ran; or one tested without a temperature."""
    there = store.config(found[name]) if name in found else None
    if there is None:
        return False
    config = config.on("cpu")
    return there.on("cpu") in (config, replace(config, test=replace(config.test, temperature=False)))


def merge(files: Iterable[Path], records: Path) -> dict[str, int]:
    """Adds records that were made elsewhere; returns how many there were of each study.

    Args:
        files: such as `elsewhere/table-2.jsonl`; the name of a file says which study its records are of.
        records: the folder to add them to. A run that is on record there is replaced.
    """
    found = {}
    for path in files:
        if path.suffix != ".jsonl" or path.stem not in STUDIES:
            known = ", ".join(STUDIES)
            raise ValueError(f"{path} is not named after a study, such as table-2.jsonl; there are {known}.")
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}.")
        found[path] = store.read(path)
    for path, lines in found.items():
        store.add(records / path.name, lines.values())
    return {path.stem: len(lines) for path, lines in found.items()}


def quickened(config: Config) -> Config:
    """A run of a few seconds: the same code on built-in data, a fraction of the steps, repeats and channels."""
    config = replace(config, repeats=min(2, config.repeats))
    model, test, tasks = config.model, config.test, config.tasks
    steps = 200 if model.backbone == "mlp" else 10
    length = {"train.steps": steps, "train.validate_every": steps // 2, "train.save_every": steps}
    length |= {"train.log_every": steps // 10}
    if model.backbone == "mlp":
        return override(config, {**length, "test.tasks": 100})
    pictures = 20  # of a class; more shots than that only where they are augmented draws
    if model.backbone in ("embedded", "tuned"):
        plain: dict[str, Any] = {"model.backbone": "conv4", "model.pretrained": "", "train.minutes": None}
        plain |= {"tasks.learn_from": "train", "tasks.spoilt": [], "train.network_lr": None}
        config = override(config, plain)
    changes: dict[str, Any] = {
        **length,
        "tasks.features": [],
        "tasks.digests": [],
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
        "test.shifts": [shift for shift in test.shifts if shift in ("blur", "noise", "inversion", "drawings")],
    }
    return override(config, changes)


def _fraction(part: str) -> tuple[int, int]:
    index, _, count = part.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise ValueError(f"a part is written as 2/4, the second of four; got {part!r}.")
    return int(index) - 1, int(count)


def _write(study: Study, folder: Path, book: Path, *, note: str) -> str | None:
    """Writes the table and the figures of all that is on record, after a note; None where nothing is."""
    every = store.read(book)
    found = {name: every[name] for name in study.runs(SEEDS) if name in every}
    if not found:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    text = note + study.show(found, folder)
    write_atomically(folder / "table.md", lambda p: p.write_text(text + "\n", encoding="utf-8"))
    return text


def _copy_recorded(missing: Runs, book: Path) -> Runs:
    """Copies what another study has on record under the very same config; returns what is still missing."""
    books = sorted(book.parent.glob("*.jsonl")) if missing else []
    elsewhere = [(record, store.config(record)) for path in books for record in store.read(path).values()]
    left, copied = {}, []
    for name, run in missing.items():
        same = next((record for record, config in elsewhere if config == run.config), None)
        if same is None:
            left[name] = run
        else:
            copied.append(same | {"name": name, "variant": run.variant})
    if copied:
        store.add(book, copied)
    return left


def _in_turn(missing: dict[str, Config]) -> tuple[dict[str, Config], dict[str, Config]]:
    """The runs that train, and those that test what one of these has trained."""
    training: dict[str, Config] = {}
    testing: dict[str, Config] = {}
    for name, config in missing.items():
        known = any(other != config and other.trains_like(config) for other in training.values())
        (testing if known else training)[name] = config
    return training, testing


def _trained(missing: dict[str, Config], out: Path) -> dict[str, Path]:
    """Run folders, of any study or of the package, whose training is that of a missing run, tested otherwise."""
    trainings = {}
    known = [bundled.folder_of(name) / CONFIG for name in bundled.names()]
    for path in [*known, *sorted(out.glob(f"*/**/{CONFIG}"))] if missing else []:
        if (path.parent / RECORD).exists() and is_run(path.parent):
            with suppress(ValueError):  # a config that exists no more
                trainings[path.parent] = read(path)
    found = {}
    for name, config in missing.items():
        same = (folder for folder, other in trainings.items() if other != config and other.trains_like(config))
        if folder := next(same, None):
            found[name] = folder
    return found
