"""`python -m benchmarks serve`: the service under load beside the obvious alternative, and under faults."""

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import description
from benchmarks.serve import postgres
from benchmarks.serve.faults import Report, Trial
from benchmarks.serve.load import PICTURE, QUERIES, UPDATE, Cell, Ours, Pickles, cell, in_process, resident, stopped
from metavib.files import write_atomically, write_json
from metavib.training import runs
from metavib.training.fields import override
from metavib.training.recipes import recipe

SIZES = (1, 10, 100, 100_000)
CLIENTS = (1, 10)
RESULTS = Path(__file__).parents[1] / "results"
Tell = Callable[[str], Any]


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables; writes them where the whole was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve", description=__doc__)
    parser.add_argument("--only", choices=("load", "faults"), help="one of the two; writes its file alone")
    parser.add_argument("--tasks", type=int, default=SIZES[-1], help="the most tasks that are stored (100000)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one measurement of one server, at most (6)")
    parser.add_argument("--count", type=int, default=1500, help="requests of one measurement, at most (1500)")
    parser.add_argument("--kills", type=int, default=100, help="of servers (100)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)

    def tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        curves = _trained(folder, "sinusoid")
        if options.only != "faults":
            models = (curves, _trained(folder, "glyphs"))
            found = load(models, folder, options.tasks, count=options.count, seconds=options.seconds, tell=tell)
            _write(options.out, "serve-load", found, load_table(found))
        if options.only != "load":
            faults = under_faults(curves, folder, kills=options.kills, tell=tell)
            _write(options.out, "serve-faults", faults, faults_table(faults))


def _trained(folder: Path, experiment: str) -> Path:
    """A GP-VIB of the recipe's size after a few steps: how well it was trained makes no difference to what it costs."""
    short = {"train.steps": 5, "train.validate_every": 5, "train.validation_tasks": 5, "test.tasks": 5}
    runs.run(override(recipe(experiment, "gp-vib"), short), folder / experiment, resume=False, quiet=True)
    return folder / experiment


def _write(out: Path, name: str, found: dict[str, Any], text: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", found)
    write_atomically(out / f"{name}.md", lambda path: path.write_text(text, encoding="utf-8"))
    print(text)


# Load


def load(
    models: tuple[Path, Path], folder: Path, most: int, *, count: int, seconds: float, tell: Tell
) -> dict[str, Any]:
    """Both servers at growing numbers of stored tasks.

    Args:
        models: run folders of curves and of characters.
        folder: for stores and logs.
        most: tasks in the end.
        count: requests of one measurement.
        seconds: of one measurement.
        tell: where progress is told.
    """
    cells: list[Cell] = []
    memory: list[dict[str, Any]] = []
    stored = 0
    alone = in_process(*models, seconds=4)
    ours, pickles = Ours(*models, folder), Pickles(folder)
    with stopped(ours, pickles):
        for tasks in [n for n in SIZES if n < most] + [most]:
            tell(f"storing {tasks} tasks")
            begun = time.perf_counter()
            ours.store(stored, tasks)
            making = (tasks - stored) / (time.perf_counter() - begun)
            pickles.store(stored, tasks)
            stored = tasks
            for clients in CLIENTS:
                for what in (*QUERIES, UPDATE):
                    tell(f"{tasks} tasks, {clients} clients: {what}")
                    cells += cell((ours, pickles), tasks, clients, what, count=count, seconds=seconds)
            held = {s.name: round(resident(s.process.pid)) for s in (ours, pickles)}
            memory.append({"tasks": tasks, "made_per_second": round(making), "megabytes": held})
        cells += cell((ours,), 1, 1, PICTURE, count=count, seconds=seconds)
    again = in_process(*models, seconds=4)
    alone = {what: (alone[what] + again[what]) / 2 for what in alone}
    return {**description("cpu"), "in_process_ms": alone, "cells": [c._asdict() for c in cells], "memory": memory}


def load_table(found: dict[str, Any]) -> str:
    """The load as a table in Markdown."""
    kinds = list(dict.fromkeys(c["server"] for c in found["cells"]))
    lines = [
        f"Machine: {found['machine']}. Each server is one process. Times in milliseconds: within p50 came half of "
        "the answers, within p95 and p99 came 95 and 99 of 100; CPU is the server's processor time for one of them.",
        "",
        "| stored tasks | clients | request | " + " | ".join(f"{k}: p50 / p95 / p99 | a second | CPU" for k in kinds),
        "| ---: | ---: | --- |" + " ---: | ---: | ---: |" * len(kinds),
    ]
    lines[-2] += " |"
    for first in [c for c in found["cells"] if c["server"] == kinds[0] and c["what"] != PICTURE]:
        place = (first["tasks"], first["clients"], first["what"])
        what = first["what"] if first["what"] == UPDATE else f"predict {first['what']}"
        line = f"| {first['tasks']:,} | {first['clients']} | {what} |"
        for c in [c for c in found["cells"] if (c["tasks"], c["clients"], c["what"]) == place]:
            line += f" {c['p50']:.1f} / {c['p95']:.1f} / {c['p99']:.1f} | {c['rate']:.0f} | {c['cpu']:.1f} |"
        lines.append(line)
    lines += ["", "| stored tasks | tasks made a second, in batches | " + " | ".join(found["memory"][0]["megabytes"])]
    lines[-1] += " |"
    lines.append("| ---: | ---: | ---: | ---: |")
    for row in found["memory"]:
        held = " | ".join(f"{m} MB" for m in row["megabytes"].values())
        lines.append(f"| {row['tasks']:,} | {row['made_per_second']:,} | {held} |")
    lines += ["", "| call | in process | over HTTP, one client, one task | ratio |", "| --- | ---: | ---: | ---: |"]
    for what, alone in found["in_process_ms"].items():
        over = next(c["p50"] for c in found["cells"] if c["what"] == what and c["server"] == Ours.name)
        name = what if what == UPDATE else f"predict {what}"
        lines.append(f"| {name} | {alone:.2f} | {over:.2f} | {over / alone:.1f} |")
    return "\n".join(lines) + "\n"


# Faults


def under_faults(model: Path, folder: Path, *, kills: int, tell: Tell) -> dict[str, Any]:
    """Servers are killed on each kind of store.

    Args:
        model: the run folder that is served.
        folder: for stores and logs.
        kills: on each store.
        tell: where progress is told.
    """
    tell(f"{kills} kills on SQLite")
    reports = {"SQLite, one server": Trial([str(model)], f"{folder}/faults.db", folder).run(kills)}
    if postgres.binaries() is None:
        tell(postgres.MISSING)
    else:
        cluster = postgres.Postgres()
        try:
            tell(f"{kills} kills on PostgreSQL, which is restarted too")
            trial = Trial([str(model)], cluster.url, folder, servers=2)
            reports["PostgreSQL, two servers"] = trial.run(kills, also=lambda i: _crash(cluster, trial.report, i))
        finally:
            cluster.remove()
    return {**description("cpu"), "reports": {name: dataclasses.asdict(r) for name, r in reports.items()}}


def _crash(cluster: postgres.Postgres, report: Report, i: int) -> None:
    """The database crashes before every tenth kill, and is started again."""
    if i % 10 == 9:
        cluster.stop("immediate")
        cluster.start()
        report.restarts += 1


def faults_table(found: dict[str, Any]) -> str:
    """The faults as a table in Markdown."""
    lines = [
        "| store | servers killed | database crashed | updates sent | requests repeated | given up by the client, "
        "of these counted | lost | counted twice |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, r in found["reports"].items():
        about = f"| {name} | {r['kills']} | {r['restarts']} | {r['updates']:,} | {r['retries']:,} "
        lines.append(f"{about}| {r['unsure']}, {r['counted']} | {r['lost']} | {r['twice']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
