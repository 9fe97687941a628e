"""`python -m benchmarks.tables.scale GROUPS ROWS`: seconds and memory that the regressor takes for many made groups."""

import argparse
import resource
import time

import numpy as np
import torch

from metavib.estimators import FewShotRegressor

COLUMNS = 5


def main() -> None:
    """Prints a line for learning from all groups, for adapting to as many new ones, and for predicting their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", type=int)
    parser.add_argument("rows", type=int, help="rows of each group")
    options = parser.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(options.groups), options.rows)
    x = random.normal(size=(len(group), COLUMNS))
    level, slope = random.normal(size=(2, options.groups))
    y = np.sin(x[:, 0]) + level[group] + 0.5 * slope[group] * x[:, 1] + 0.3 * random.normal(size=len(group))
    before, clock = _peak(), time.process_time()
    regressor = FewShotRegressor(random_state=0).fit(x, y, tasks=group)
    clock = _tell("learn from", options.groups, clock)
    adapted = regressor.adapt(x, y, tasks=group)
    clock = _tell("adapt to", options.groups, clock)
    adapted.predict(x, tasks=group)
    _tell("predict all rows of", options.groups, clock)
    print(f"peak memory {_peak():.0f} MB, of which {before:.0f} MB before learning")


def _tell(what: str, groups: int, since: float) -> float:
    print(f"{what} {groups} groups: {time.process_time() - since:.1f} s of one core", flush=True)
    return time.process_time()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
