"""A run from its config to its record: train, test, write down."""

from dataclasses import replace
from pathlib import Path

from metavib.files import write_json
from metavib.training import build, loop, record
from metavib.training.config import Config
from metavib.training.engine import ranks as processes
from metavib.training.fields import to_dict
from metavib.training.protocols import experiment


def run(config: Config, folder: Path, *, resume: bool, quiet: bool) -> None:
    """Trains, tests and records a run; does nothing where that is done already."""
    build.set_torch(config)
    with processes.joined(config.device) as ranks:
        ranks.on_first(loop.prepare, config, folder, resume=resume)
        if ranks.on_first((folder / "evaluation.json").exists):
            return
        world = experiment(config)  # one for both: its data may be gigabytes
        model = loop.train(config, folder, resume=True, quiet=quiet, world=world, ranks=ranks)
    if not ranks.first:
        return
    result = world.evaluate(model, quiet=quiet)
    write_json(folder / "record.json", record.record(config, result, loop.read_metrics(folder)))
    write_json(folder / "evaluation.json", result)


def retest(config: Config, folder: Path, trained: Path, *, resume: bool, quiet: bool) -> None:
    """Tests the model of a finished run in another way, as a run of its own; nothing is trained."""
    build.set_torch(config)
    loop.prepare(config, folder, resume=resume)
    if (folder / "evaluation.json").exists():
        return
    if replace(loop.chosen(trained).config, test=config.test) != config:
        raise ValueError(f"{trained} was trained under another config than this one: its test alone may differ.")
    write_json(folder / loop.CONFIG, to_dict(config))
    result = experiment(config).evaluate(loop.selected(trained, device=config.device), quiet=quiet)
    write_json(folder / "record.json", record.record(config, result, loop.read_metrics(trained)))
    write_json(folder / "evaluation.json", result)
