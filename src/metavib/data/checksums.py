"""Which data a run was made with: SHA-256 of the files of each experiment."""

import hashlib
from pathlib import Path

from metavib.data import omniglot
from metavib.data.catalog import find

Place = Path | str | None

_DATASETS = {
    "omniglot-emnist": ("omniglot", "emnist"),
    "omniglot": ("omniglot",),
    "augmented-omniglot": ("omniglot",),
    "mini-imagenet": ("mini-imagenet",),
    "cub": ("cub",),
    "mini-imagenet-cub": ("mini-imagenet", "cub"),
}


def checksums(experiment: str, root: Place = None) -> dict[str, str]:
    """SHA-256 by file name, of the files an experiment's datasets are read from.

    Args:
        experiment: a key of `metavib.data.EXPERIMENTS`.
        root: where datasets lie: the argument, else `$METAVIB_DATA`, else `./data`.
    """
    found: dict[str, str] = {}
    for dataset in _DATASETS[experiment]:
        if dataset == "omniglot":
            files = omniglot.sources(root, crop=experiment == "omniglot-emnist").files
        else:
            files = find(dataset, root).files
        found |= {file.name: checksum(file) for file in files}
    return found


def checksum(path: Path) -> str:
    """SHA-256 of a file; of a folder, that of the names and checksums of the files in it, in order."""
    if not path.is_dir():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    lines = [f"{checksum(p)}  {p.relative_to(path).as_posix()}\n" for p in path.rglob("*") if p.is_file()]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
