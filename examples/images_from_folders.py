"""Images in folders, one a class: learn from many classes, then tell apart new ones from a few pictures of each.

    python examples/images_from_folders.py                    # pictures made for the occasion
    python examples/images_from_folders.py my/train my/new    # one's own: folders of class folders

The pictures made here are characters of many alphabets. The model is trained on some alphabets, and then sorts
characters of an alphabet it has never seen after three pictures of each.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from metavib.data.folder import folder
from metavib.data.glyphs import glyphs
from metavib.data.labelled import Labelled
from metavib.estimators import FewShotClassifier
from metavib.networks import Conv4


def write_folders(root: Path, data: Labelled, classes: int) -> Path:
    """Pictures of the first classes as PNG files, in a folder a class."""
    for c in range(classes):
        place = root / data.names[c].replace("/", "-").replace(" ", "-")
        place.mkdir(parents=True)
        for i, picture in enumerate(data.images[data.labels == c].numpy()):
            Image.fromarray(picture[0]).save(place / f"{i}.png")
    return root


def read_folders(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures `(n, 1, 28, 28)`, and the name of the folder each lies in."""
    data = folder(root, size=28, channels=1, cache=root.parent / "cache")
    return data.images.numpy(), np.array(data.names)[data.labels.numpy()]


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="of the classes to train on, and of the new ones")
    parser.add_argument("--classes", type=int, default=200, help="to train on, of the pictures made here")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--shots", type=int, default=3, help="pictures of each new class")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        if options.folders:
            train, new = options.folders
        else:
            data = glyphs(instances=20)
            train = write_folders(Path(made) / "train", data.train, options.classes)
            new = write_folders(Path(made) / "new", data.test, 10)
        images, labels = read_folders(train)
        new_images, new_labels = read_folders(new)

    learner = FewShotClassifier(
        backbone=Conv4(1, 28, width=16),  # small enough for a laptop; backbone="auto" has 64 channels
        shots=(1, 5),
        n_steps=options.steps,
        tasks_per_step=2,
        random_state=0,
        verbose=not argv,
    )
    learner.fit(images, labels)  # hundreds of classes: every step is about five of them

    rng = np.random.default_rng(0)
    order = rng.permutation(len(new_labels))
    support = np.concatenate([order[new_labels[order] == c][: options.shots] for c in np.unique(new_labels)])
    query = np.setdiff1d(order, support)
    sorter = learner.adapt(new_images[support], new_labels[support])
    accuracy = sorter.score(new_images[query], new_labels[query])
    print(
        f"learned from {len(np.unique(labels))} classes; {len(sorter.classes_)} new ones, {options.shots} pictures each"
    )
    print(f"accuracy on {len(query)} other pictures of the new classes: {accuracy:.1%}")
    p = sorter.predict_proba(new_images[query])
    sure = p.max(1) > 0.9
    if sure.any():
        hits = sorter.predict(new_images[query][sure]) == new_labels[query][sure]
        print(f"of the {sure.sum()} it is more than 90% sure of: {hits.mean():.1%}")
    return float(accuracy)


if __name__ == "__main__":
    main()
