"""metavib's estimators with their defaults, as methods of the benchmark."""

import warnings

import numpy as np

from benchmarks.tables.protocol import Columns, Gauss, Rows, Trial


class Regressor:
    """`FewShotRegressor()`."""

    def fit(self, rows: Rows) -> "Regressor":
        from metavib.estimators import FewShotRegressor

        self.columns = Columns(rows.x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = FewShotRegressor(random_state=0).fit(self.columns(rows.x), rows.y, tasks=rows.group)
        return self

    def predict(self, trials: list[Trial]) -> list[Gauss]:
        """All groups in one call; one without known rows is predicted as a task that is not known."""
        known = [i for i, t in enumerate(trials) for _ in range(len(t.y))]
        asked = [i for i, t in enumerate(trials) for _ in range(len(t.query))]
        model, tasks = self.model, None
        if known:
            x, y = np.concatenate([self.columns(t.x) for t in trials]), np.concatenate([t.y for t in trials])
            model, tasks = model.adapt(x, y, tasks=known), asked
        rows = np.concatenate([self.columns(t.query) for t in trials])
        mean, sd = model.predict(rows, return_std=True, tasks=tasks)
        ends = np.cumsum([len(t.query) for t in trials])[:-1]
        return [Gauss(m, s) for m, s in zip(np.split(mean, ends), np.split(sd, ends), strict=True)]


class Classifier:
    """`FewShotClassifier()`."""

    def fit(self, rows: Rows) -> "Classifier":
        from metavib.estimators import FewShotClassifier

        self.columns = Columns(rows.x)
        grouped = len(np.unique(rows.group)) > 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = FewShotClassifier(random_state=0)
            self.model.fit(self.columns(rows.x), rows.y, tasks=rows.group if grouped else None)
        return self

    def predict(self, trials: list[Trial]) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for t in trials:
            adapted = self.model.adapt(self.columns(t.x), t.y) if len(t.y) else self.model
            found.append((adapted.classes_, adapted.predict_proba(self.columns(t.query))))
        return found
