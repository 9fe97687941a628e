"""What datasets there are, where to get them, and which of their files are here.

Each dataset is known in several forms: the files as they are published, and the same packed in `.npz`. Any
one form that is complete will do.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Form(NamedTuple):
    """One way a dataset may lie on the disk: all of `files`, which may be folders.

    Example:
        >>> from metavib.data.catalog import Form
        >>> Form("zip", ("images.zip",)).name
        'zip'
    """

    name: str
    files: tuple[str, ...]


class Dataset(NamedTuple):
    """Facts about a dataset; `folders` are sub-folders of the root to look in beside the root itself.

    Example:
        >>> from metavib.data.catalog import DATASETS
        >>> [dataset.name for dataset in DATASETS]
        ['omniglot', 'emnist', 'mini-imagenet', 'cub']
    """

    name: str
    what: str
    licence: str
    cite: str
    where: str
    folders: tuple[str, ...]
    forms: tuple[Form, ...]


class Found(NamedTuple):
    """A complete form of a dataset and the paths of its files, in the form's order.

    Example:
        >>> from pathlib import Path
        >>> from metavib.data.catalog import Found
        >>> Found("zip", (Path("images.zip"),)).form
        'zip'
    """

    form: str
    files: tuple[Path, ...]


class Entry(NamedTuple):
    """A dataset and how much of it is here.

    `form` is the name of a complete form, or None; `found` lists files present, of any form; `missing` what the form
    nearest to complete still lacks; `remedy` says what to do and is empty when the dataset is ready.

    Example:
        >>> from metavib.data import catalog
        >>> entry = catalog("/nowhere")[0]
        >>> entry.name, entry.ready
        ('omniglot', False)
    """

    name: str
    what: str
    licence: str
    cite: str
    where: str
    expected: tuple[Form, ...]
    form: str | None
    found: tuple[Path, ...]
    missing: tuple[str, ...]
    remedy: str

    @property
    def ready(self) -> bool:
        """Whether the dataset can be read."""
        return self.form is not None


_EMNIST_IDX = ("emnist-byclass-train-images-idx3-ubyte.gz", "emnist-byclass-train-labels-idx1-ubyte.gz")
_MINI_CSV = ("train.csv", "val.csv", "test.csv")

DATASETS = (
    Dataset(
        "omniglot",
        "1,623 handwritten characters of 50 alphabets, 20 drawings each, 105 x 105, black on white",
        "MIT",
        "Lake, Salakhutdinov, Tenenbaum (2015), Human-level concept learning through probabilistic program induction",
        "the folder python/ of github.com/brendenlake/omniglot",
        ("omniglot",),
        (
            Form("packed-28", ("omniglot_28.npz",)),
            Form("packed-105", ("omniglot_105.npz",)),
            Form("zip", ("images_background.zip", "images_evaluation.zip")),
            Form("folder", ("images_background", "images_evaluation")),
        ),
    ),
    Dataset(
        "emnist",
        "handwritten digits and letters of 62 classes, 200 images each, 28 x 28",
        "NIST asks for a citation; no licence is stated with the subset of 62 x 200",
        "Cohen, Afshar, Tapson, van Schaik (2017), EMNIST: an extension of MNIST to handwritten letters",
        "the EMNIST page of nist.gov (gzip.zip, the files emnist-byclass-train-*), or the subset of 62 x 200 "
        "that the cross-domain experiments use: data/emnist.zip of github.com/NanqingD/DAOSL",
        ("emnist", "EMNIST", "gzip"),
        (
            Form("packed", ("emnist_62x200.npz",)),
            Form("zip", ("emnist.zip",)),
            Form("folder", ("emnist/0", "emnist/61")),
            Form("idx", _EMNIST_IDX),
        ),
    ),
    Dataset(
        "mini-imagenet",
        "60,000 photographs of 100 ImageNet classes, 84 x 84, split 64 / 16 / 20",
        "ImageNet's terms: non-commercial research and education",
        "Vinyals et al. (2016), Matching Networks for One Shot Learning; Ravi and Larochelle (2017), "
        "Optimization as a Model for Few-Shot Learning",
        "image-net.org (ILSVRC 2012, after registration) for the images; train.csv, val.csv and test.csv are "
        "with the code of Ravi and Larochelle, github.com/twitter-research/meta-learning-lstm",
        ("mini-imagenet", "mini_imagenet", "miniImagenet", "miniImageNet"),
        (
            Form("packed", tuple(f"mini_imagenet_{part}.npz" for part in ("train_a", "train_b", "val", "test"))),
            Form("zip", (*_MINI_CSV, "images.zip")),
            Form("folder", (*_MINI_CSV, "images")),
        ),
    ),
    Dataset(
        "cub",
        "11,788 photographs of 200 species of birds, split 100 / 50 / 50",
        "non-commercial research; the copyright is with the owners of the images",
        "Wah, Branson, Welinder, Perona, Belongie (2011), The Caltech-UCSD Birds-200-2011 Dataset",
        "the Caltech Vision Lab (vision.caltech.edu, datasets) or data.caltech.edu: CUB_200_2011.tgz",
        ("cub", "CUB"),
        (
            Form("packed", ("cub_base.npz", "cub_val.npz", "cub_novel.npz")),
            Form("archive", ("CUB_200_2011.tgz",)),
            Form("folder", ("CUB_200_2011",)),
        ),
    ),
)


def dataset_root(root: Path | str | None = None) -> Path:
    """Where datasets lie: the argument, else `$METAVIB_DATA`, else `./data`.

    Example:
        >>> from metavib.data import dataset_root
        >>> dataset_root("photographs").name
        'photographs'
    """
    return Path(root or os.environ.get("METAVIB_DATA") or "data")


def catalog(root: Path | str | None = None) -> list[Entry]:
    """Every dataset known, and what of it was found under the root."""
    return [_entry(dataset, dataset_root(root)) for dataset in DATASETS]


def find(name: str, root: Path | str | None = None, *, prefer: Sequence[str] = ()) -> Found:
    """The files of a dataset.

    Args:
        name: the dataset's name in the catalog.
        root: where datasets lie; see `dataset_root`.
        prefer: forms to take before the others, where several are complete.

    Raises:
        FileNotFoundError: no form is complete; the message lists what would do, and where to get it.
    """
    dataset, root = _dataset(name), dataset_root(root)
    forms = sorted(dataset.forms, key=lambda f: prefer.index(f.name) if f.name in prefer else len(prefer))
    for form in forms:
        paths = _paths(dataset, form, root)
        if all(paths):
            return Found(form.name, tuple(path for path in paths if path))
    accepted = "\n".join(f"  {' + '.join(form.files)}" for form in dataset.forms)
    raise FileNotFoundError(
        f"{name} was not found in {root.absolute()} (nor in its sub-folders {', '.join(dataset.folders)}). "
        f"Any one of these would do:\n{accepted}\n{_entry(dataset, root).remedy}"
    )


def _entry(dataset: Dataset, root: Path) -> Entry:
    looked = [(form, _paths(dataset, form, root)) for form in dataset.forms]
    complete = next((form.name for form, paths in looked if all(paths)), None)
    found = tuple(dict.fromkeys(path for _, paths in looked for path in paths if path))
    form, paths = min(looked, key=lambda pair: pair[1].count(None) - 100 * any(pair[1]))
    missing = () if complete else tuple(f for f, path in zip(form.files, paths, strict=True) if path is None)
    put = f"put the files into {root.absolute()}, or name their folder with METAVIB_DATA"
    remedy = "" if complete else f"Get it from {dataset.where}; {put}."
    return Entry(*dataset[:5], dataset.forms, complete, found, missing, remedy)


def _paths(dataset: Dataset, form: Form, root: Path) -> list[Path | None]:
    """Each file of a form, all from the one folder that has most of them."""
    places = [root, *(root / folder for folder in dataset.folders)]
    looked = [[place / file if (place / file).exists() else None for file in form.files] for place in places]
    return min(looked, key=lambda paths: paths.count(None))


def _dataset(name: str) -> Dataset:
    for dataset in DATASETS:
        if dataset.name == name:
            return dataset
    raise ValueError(f"no dataset is named {name!r}; there are {', '.join(d.name for d in DATASETS)}.")
