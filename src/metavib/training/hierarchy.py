"""A hierarchical prior in a run folder: learned from all groups of a table at once, without steps.

This is to the method `hierarchical` what `metavib.training.loop` is to those that are trained. The folder holds the
same files: the model in `last.safetensors`, and in `metrics.jsonl` one line, with the time it took and how good
predictions of groups held out in turn were.
"""

import time
from pathlib import Path

from metavib.files import to_json, write_atomically
from metavib.model import Model
from metavib.progress import say
from metavib.training import checkpoint, run_folder
from metavib.training.config import Config
from metavib.training.protocols import Experiment
from metavib.training.protocols.table import Table
from metavib.training.run_folder import LAST, METRICS

NAMED = 5  # rows left out that are named


def learn(config: Config, folder: Path, world: Experiment, *, quiet: bool = False) -> Model:
    """Learns the prior of a new group and keeps it in a run folder; returns what is there where it was learned before.

    Args:
        config: everything the run depends on.
        folder: the run folder, as `run_folder.prepare` found it to be right.
        world: a table.
        quiet: say nothing.
    """
    assert isinstance(world, Table)
    if not (folder / LAST).exists():
        run_folder.begin(config, folder)
        if not quiet:
            say(f"learning from {world.described()}")
        start = time.monotonic()
        found, left_out = world.learn()
        if left_out and not quiet:
            named = ", ".join(left_out[:NAMED]) + ", ..." * (len(left_out) > NAMED)
            rows = f"{len(left_out)} row{'s' * (len(left_out) > 1)}"
            say(f"left out: {rows}, whose output cannot be right beside all others ({named})")
        if not quiet and found.report.rows:
            say(f"held out in turn, these groups are predicted so:\n{found.report}")
        line = {"step": 1, "seconds": round(time.monotonic() - start, 3)}
        held_out = [row._asdict() for row in found.report.rows]
        text = to_json(line | {"held_out": held_out, "left_out": len(left_out)}) + "\n"
        write_atomically(folder / METRICS, lambda p: p.write_text(text, encoding="utf-8"))
        checkpoint.save(folder / LAST, config, 1, 0.0, found.model)
    return run_folder.selected(folder)
