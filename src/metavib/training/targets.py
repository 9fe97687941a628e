"""Runs on one table for several targets: a folder that holds a run for each.

targets.json              the config of each run, by the name of its target
target-1, target-2, ...   these runs, in the same order: run folders as any other

What one target says of another is not learned: each run is, to the last bit, that of its target alone with the other
targets dropped from the inputs. A row that lacks some of the targets serves those that it has. Targets may be of
different kinds, numbers and classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from metavib.files import naming, read_json, write_json
from metavib.progress import say
from metavib.training import run_folder, runs
from metavib.training.config import Config, from_saved, read
from metavib.training.fields import to_dict
from metavib.training.protocols import table
from metavib.training.run_folder import CONFIG
from metavib.training.runs import Record
from metavib.training.stopping import Interrupted

TARGETS = "targets.json"


def resolve(config: Config) -> dict[str, Config]:
    """The config of a run on a table for each target that it names, completed by what the file decides.

    Args:
        config: whose `tasks.table.target` is a column, or several whose names are separated by commas.
    """
    columns = config.tasks.table
    if columns.csv is None or "," not in columns.target:
        return {columns.target: table.resolve(config)}
    targets = table.read_table(columns).named(columns.target)
    if len(set(targets)) < len(targets):
        raise ValueError(f"a target is named twice, in {columns.target}: name each once.")
    found = {}
    for target in targets:
        one = replace(columns, target=target, others=tuple(other for other in targets if other != target))
        found[target] = table.resolve(replace(config, tasks=replace(config.tasks, table=one)))
    return found


def folders(run: Path) -> dict[str, Path]:
    """The runs in a folder by their targets; where it is one run, that run alone, by an empty name.

    Example:
        >>> folders(Path("runs/glyphs-gp-vib-0"))
        {'': PosixPath('runs/glyphs-gp-vib-0')}
    """
    return {name: run / f"target-{i + 1}" for i, name in enumerate(_written(run))} or {"": run}


def configs(run: Path) -> dict[str, Config]:
    """The config of each run in a folder, whether it has begun or not."""
    found, written = {}, _written(run)
    for name, folder in folders(run).items():
        if (folder / CONFIG).exists():
            found[name] = read(folder / CONFIG)
        else:
            with naming(run / TARGETS):
                found[name] = from_saved(written[name])
    return found


def train(configs: Mapping[str, Config], run: Path, *, resume: bool = False, quiet: bool = False) -> dict[str, Record]:
    """Trains, tests and records a run for each target, as `metavib.training.runs.run` does one.

    Args:
        configs: of each, as `resolve` makes them.
        run: the folder, new or empty unless resuming. Of one target it is the run folder itself.
        resume: go on with the runs that are in the folder, if there are some.
        quiet: draw no progress bars.
    """
    if len(configs) == 1:
        return {name: runs.run(config, run, resume=resume, quiet=quiet) for name, config in configs.items()}
    _prepare(configs, run, resume=resume)
    records = {}
    for name, folder in folders(run).items():
        if not quiet:
            say(f"target {name}, in {folder}")
        try:
            records[name] = runs.run(configs[name], folder, resume=True, quiet=quiet)
        except Interrupted as stop:
            raise Interrupted(str(stop).replace(str(folder), str(run))) from None
    return records


def _prepare(configs: Mapping[str, Config], run: Path, *, resume: bool) -> None:
    """Refuses a folder that holds something else, before any work; writes down what is to be trained."""
    if not (run / TARGETS).exists():
        if run.exists() and any(run.iterdir()):
            raise FileExistsError(f"{run} exists and holds no runs of several targets; name a new folder.")
        write_json(run / TARGETS, {name: to_dict(config) for name, config in configs.items()})
        return
    if not resume:
        raise FileExistsError(
            f"{run} holds runs already; pass --resume {run} to go on with them, or name another folder."
        )
    if list(folders(run)) != list(configs):
        raise ValueError(f"{run} holds runs of the targets {', '.join(folders(run))}; got {', '.join(configs)}.")
    for name, folder in folders(run).items():
        run_folder.prepare(configs[name], folder, resume=True)


def _written(run: Path) -> dict[str, object]:
    if not (run / TARGETS).exists():
        return {}
    found = read_json(run / TARGETS)
    if not isinstance(found, dict) or len(found) < 2:
        raise ValueError(f"{run / TARGETS} should have the config of each of several targets.")
    return found
