"""Embeddings of one's own or of `metavib embed`: from the files that a config names to labelled vectors.

Everything else about them is as with images (`metavib.training.protocols.classification`). A file is named by its path,
or by its name below the folder of the datasets, and by its checksum, which `resolve` puts into the config.
"""

from dataclasses import replace
from pathlib import Path

from metavib.data import Splits
from metavib.data.catalog import dataset_root
from metavib.data.embeddings import read_several
from metavib.data.table import digest
from metavib.training.config import Config, TasksConfig


def resolve(config: Config) -> Config:
    """The config with what its files decide filled in: checksums, and the length of a vector.

    Resolving twice changes nothing as long as the files are the same. A path that leads somewhere from the current
    folder becomes absolute; another one is looked for below the folder of the datasets, wherever that is.
    """
    tasks = config.tasks
    if not tasks.features:
        raise ValueError("the experiment embeddings needs a file: pass --features FILE (see `metavib embed --help`).")
    if tasks.unseen and len(tasks.features) != 2:
        raise ValueError(
            f"tasks.unseen is for two files, the second of which is a surprise; got {len(tasks.features)}."
        )
    names = tuple(str(Path(name).absolute()) if Path(name).exists() else name for name in tasks.features)
    tasks = replace(tasks, features=names)
    found = tuple(digest(path) for path in files(tasks))
    if tasks.digests and tasks.digests != found:
        raise _changed(tasks, found)
    width = read_several(files(tasks), unseen=tasks.unseen).train.images.shape[-1]
    return replace(config, tasks=replace(tasks, digests=found, inputs=width))


def load(tasks: TasksConfig) -> Splits:
    """The vectors of a resolved config, in place of images; files with other checksums are refused."""
    if not tasks.digests:
        raise ValueError(
            "this config was not resolved: call metavib.training.protocols.embeddings.resolve on it first."
        )
    found = tuple(digest(path) for path in files(tasks))
    if found != tasks.digests:
        raise _changed(tasks, found)
    return read_several(files(tasks), unseen=tasks.unseen)


def files(tasks: TasksConfig) -> list[Path]:
    """Where the files are."""
    paths = [dataset_root(tasks.root) / name for name in tasks.features]  # an absolute path stays what it is
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no file {path}: `metavib embed` makes one from a trained network, and `--root` or "
                "METAVIB_DATA say where to look for relative names."
            )
    return paths


def _changed(tasks: TasksConfig, found: tuple[str, ...]) -> ValueError:
    pairs = zip(files(tasks), tasks.digests, found, strict=False)
    names = [str(path) for path, wanted, is_ in pairs if wanted != is_] or [f"{len(found)} files"]
    return ValueError(f"{', '.join(names)}: not what this config was made with, its checksum is another.")
