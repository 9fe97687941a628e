"""What one would do with numbers in a table without meta-learning: one line for all groups, or one of each.

Numbers of a run mean little without these beside them. A task is a group whose support is known and whose query is
predicted; rows are standardised as the run has them.
"""

import numpy as np
import torch
from torch import Tensor

from metavib.tasks.task import Task

POOLED, OWN = "one function for all", "each group alone"  # as in `metavib.groups.Report`


def ridge(x: np.ndarray, y: np.ndarray, at: np.ndarray, *, penalty: float = 1.0) -> np.ndarray:
    """Predictions of a linear regression with an intercept and a penalty on the squared slopes."""
    middle, level = x.mean(0), y.mean()
    centred = x - middle
    slopes = np.linalg.solve(centred.T @ centred + penalty * np.eye(x.shape[1]), centred.T @ (y - level))
    return level + (at - middle) @ slopes


def ridges(x: Tensor, y: Tensor, tasks: Task) -> dict[str, Tensor]:
    """Predicted outputs `(tasks, v)` of one ridge for all groups, and of one for the known rows of each group.

    Args:
        x: rows that were learned from.
        y: their outputs.
        tasks: groups `(tasks, ...)` to predict.
    """
    known, query = tasks.support, tasks.query
    pooled = ridge(x.numpy(), y.numpy(), query.x.flatten(0, 1).numpy()).reshape(query.y.shape)
    own = np.empty_like(pooled)
    for i, mask in enumerate(known.mask):
        mine, targets = known.x[i][mask].numpy(), known.y[i][mask].numpy()
        own[i] = ridge(mine, targets, query.x[i].numpy()) if len(mine) else float(y.mean())
    return {POOLED: torch.as_tensor(pooled), OWN: torch.as_tensor(own)}
