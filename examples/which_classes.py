"""Whether a test would have come out otherwise on other classes: a trained model, tested on parts of its test classes.

    metavib train glyphs --out runs/glyphs
    python examples/which_classes.py runs/glyphs

The interval beside an accuracy says how far other episodes of the same classes would have it. Other classes of the same
kind may have it further off: the test classes are dealt into parts, each is a test of its own, and the spread of these
says how far. Quarter turns of a character stay with it.
"""

import argparse
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from metavib.data.labelled import select_classes
from metavib.training import checkpoint
from metavib.training.fields import override
from metavib.training.protocols.classification import Classification
from metavib.training.protocols.seen import load
from metavib.training.run_folder import chosen


def deal(names: tuple[str, ...], parts: int) -> list[list[str]]:
    """Classes in parts at random, those that are turns of one character (`.../rot090`) in the same."""
    turns: dict[str, list[str]] = {}
    for name in names:
        turns.setdefault(name.partition("/rot")[0], []).append(name)
    order = np.random.default_rng(0).permutation(list(turns))
    return [[name for character in part for name in turns[character]] for part in np.array_split(order, parts)]


def main(argv: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of `metavib train` on images")
    parser.add_argument("--parts", type=int, default=8, help="of the test classes; each needs enough for an episode")
    parser.add_argument("--tasks", type=int, default=1500, help="test episodes of a part")
    options = parser.parse_args(argv)
    if options.parts < 2:
        parser.error(f"--parts must be at least 2, for a spread; got {options.parts}.")
    saved = chosen(options.run)
    model = checkpoint.restore_model(saved)
    config = override(saved.config, {"test.tasks": options.tasks, "device": "cpu", "precision": "float32"})
    splits = load(config.tasks)
    accuracies = []
    for i, names in enumerate(deal(splits.test.names, options.parts), start=1):
        part = Classification(config, splits._replace(test=select_classes(splits.test, names)))
        metrics = part.evaluate(model)["rows"][0]["metrics"]
        accuracies.append(metrics["accuracy"]["mean"])
        print(f"part {i}, {len(names)} classes: {accuracies[-1]:.2%}")
    mean, error = fmean(accuracies), stdev(accuracies) / options.parts**0.5
    print(f"mean {mean:.2%}; its standard error over classes and episodes is {100 * error:.2f} points")
    return mean, error


if __name__ == "__main__":
    main()
