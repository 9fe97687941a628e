"""metavib's estimators with their defaults, as methods of the benchmark."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.tables.protocol import Columns, Density, Rows, Trial


class Regressor:
    """`FewShotRegressor()`, and `options` where something is to be otherwise."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def fit(self, rows: Rows) -> "Regressor":
        from metavib.estimators import FewShotRegressor

        self.columns = Columns(rows.x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = FewShotRegressor(random_state=0, **self.options).fit(
                self.columns(rows.x), rows.y, tasks=rows.group
            )
        return self

    def predict(self, trials: list[Trial]) -> list[Density]:
        """All groups in one call; one without known rows is predicted as a task that is not known."""
        known = [i for i, t in enumerate(trials) for _ in range(len(t.y))]
        asked = [i for i, t in enumerate(trials) for _ in range(len(t.query))]
        model, tasks = self.model, None
        if known:
            x, y = np.concatenate([self.columns(t.x) for t in trials]), np.concatenate([t.y for t in trials])
            model, tasks = model.adapt(x, y, tasks=known), asked
        rows = np.concatenate([self.columns(t.query) for t in trials])
        found, ends = model.predict_distribution(rows, tasks), np.cumsum([len(t.query) for t in trials])
        return [Part(found, slice(end - len(t.query), end)) for t, end in zip(trials, ends, strict=True)]


class Part(NamedTuple):
    """Some rows of a prediction of all."""

    whole: Any
    rows: slice

    @property
    def mean(self) -> np.ndarray:
        return self.whole.mean[self.rows].numpy()

    def log_density(self, y: np.ndarray) -> np.ndarray:
        every = self.whole.mean.clone()
        every[self.rows] = torch.as_tensor(y)
        return self.whole.log_density(every)[self.rows].numpy()

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = (end[self.rows].numpy() for end in self.whole.interval(level))
        return low, high


class Classifier:
    """`FewShotClassifier()`, and `options` where something is to be otherwise."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def fit(self, rows: Rows) -> "Classifier":
        from metavib.estimators import FewShotClassifier

        self.columns = Columns(rows.x)
        grouped = len(np.unique(rows.group)) > 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = FewShotClassifier(random_state=0, **self.options)
            self.model.fit(self.columns(rows.x), rows.y, tasks=rows.group if grouped else None)
        return self

    def predict(self, trials: list[Trial]) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for t in trials:
            adapted = self.model.adapt(self.columns(t.x), t.y) if len(t.y) else self.model
            found.append((adapted.classes_, adapted.predict_proba(self.columns(t.query))))
        return found
