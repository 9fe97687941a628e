"""What a practitioner would pick for classes: of rows of new groups, or classes that are new altogether."""

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, gammaln, log_expit, log_softmax, softmax
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

from benchmarks.tables.protocol import Columns, Rows, Trial

Probabilities = tuple[np.ndarray, np.ndarray]
"""Labels, and a column of probabilities for each."""


class Method(ABC):
    """Learns from labelled rows of many groups, gives probabilities for rows of new ones."""

    def fit(self, rows: Rows) -> "Method":
        self.columns = Columns(rows.x)
        self.labels, y = np.unique(rows.y, return_inverse=True)
        group = np.unique(rows.group, return_inverse=True)[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.learn(self.columns(rows.x), y, group)
        return self

    def predict(self, trials: list[Trial]) -> list[Probabilities]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [self.adapt(self.columns(t.x), t.y, self.columns(t.query)) for t in trials]

    @abstractmethod
    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None: ...

    @abstractmethod
    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> Probabilities: ...


class Known(Method, ABC):
    """Classes are the same in every group: labels become numbers."""

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> Probabilities:
        return self.labels, self.probabilities(x, np.searchsorted(self.labels, y), query)

    @abstractmethod
    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray: ...


class Share(Known):
    """The share of each class among the group's known rows, smoothed: a Dirichlet prior by marginal likelihood."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        counts = np.zeros((group.max() + 1, len(self.labels)))
        np.add.at(counts, (group, y), 1)

        def loss(log_a: np.ndarray) -> float:
            a = np.exp(np.clip(log_a, -7, 9))
            n = counts.sum(1)
            fit = gammaln(a.sum()) - gammaln(n + a.sum()) + (gammaln(counts + a) - gammaln(a)).sum(1)
            return -float(fit.sum())

        start = np.log(counts.sum(0) / counts.sum() * 5 + 1e-3)
        self.prior = np.exp(np.clip(minimize(loss, start, method="Nelder-Mead").x, -7, 9))

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        p = self.prior + np.bincount(y, minlength=len(self.labels))
        return np.tile(p / p.sum(), (len(query), 1))


class LogisticEach(Known):
    """Logistic regression on the group's known rows; their smoothed share where they are of one class."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        self.share = np.bincount(y) / len(y)

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        seen = np.unique(y)
        if len(seen) < 2:
            p = self.share * len(self.labels) + np.bincount(y, minlength=len(self.labels))
            return np.tile(p / p.sum(), (len(query), 1))
        p = np.full((len(query), len(self.labels)), 0.01)
        p[:, seen] += LogisticRegression().fit(x, y).predict_proba(query)
        return p / p.sum(1, keepdims=True)


class Pooled(Known, ABC):
    """One classifier for all groups; with an offset of each class for each group (a random effect, at its mode)."""

    offset = True

    @abstractmethod
    def model(self) -> object: ...

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        self.fitted = self.model().fit(x, y)  # type: ignore[attr-defined]
        self.spread = 0.0
        if not self.offset:
            return
        folds = GroupKFold(min(5, len(np.unique(group))))
        p = cross_val_predict(self.model(), x, y, groups=group, cv=folds, method="predict_proba")
        log_p = np.log(np.maximum(p, 1e-6))
        random = np.random.default_rng(0)
        halves = []
        for g in random.permutation(np.unique(group))[:100]:
            order = random.permutation(np.flatnonzero(group == g))
            if len(order) > 1:
                cut = min(5, len(order) // 2)
                halves.append((order[:cut], order[cut : cut + 20]))

        def loss(log_s: float) -> float:
            self.spread = float(np.exp(log_s))
            return sum(
                -np.log(self._shift(log_p[known], y[known], log_p[other])[np.arange(len(other)), y[other]]).sum()
                for known, other in halves
            )

        self.spread = float(np.exp(min(np.linspace(-4, 3, 15), key=loss)))

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        q = np.log(np.maximum(self.fitted.predict_proba(query), 1e-6))  # type: ignore[attr-defined]
        known = np.log(np.maximum(self.fitted.predict_proba(x), 1e-6)) if len(y) else q[:0]  # type: ignore[attr-defined]
        return self._shift(known, y, q)

    def _shift(self, known: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        if not len(y) or not self.spread:
            return softmax(query, 1)

        def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
            p = log_softmax(known + b, 1)
            one_hot = np.eye(len(b))[y]
            value = -p[np.arange(len(y)), y].sum() + 0.5 * (b**2).sum() / self.spread
            return float(value), (np.exp(p) - one_hot).sum(0) + b / self.spread

        b = minimize(loss, np.zeros(query.shape[1]), jac=True, method="L-BFGS-B").x
        return softmax(query + b, 1)


class LogisticPooled(Pooled):
    """Logistic regression on all rows; groups are not told apart."""

    offset = False

    def model(self) -> object:
        return LogisticRegression(max_iter=1000)


class LogisticOffset(Pooled):
    """Logistic regression on all rows, with offsets."""

    def model(self) -> object:
        return LogisticRegression(max_iter=1000)


class BoostingOffset(Pooled):
    """Boosted trees on all rows, with offsets."""

    def model(self) -> object:
        return HistGradientBoostingClassifier(random_state=0)


class GPBoost(Known):
    """Boosted trees and a random effect a group, learned together (PyPI: gpboost); of several classes, one by one.

    The effect of a new group has the posterior that its known rows give, by numbers.
    """

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        import gpboost as gpb

        self.parts = []
        for c in range(len(self.labels)) if len(self.labels) > 2 else (1,):
            effects = gpb.GPModel(group_data=group, likelihood="bernoulli_logit")
            booster = gpb.train(
                params={"objective": "binary", "verbose": -1, "num_threads": 1},
                train_set=gpb.Dataset(x, (y == c).astype(float)),
                gp_model=effects,
                num_boost_round=100,
            )
            variance = float(np.asarray(effects.get_cov_pars(format_pandas=False)).ravel()[0])
            self.parts.append((c, booster, variance))

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        p = np.stack([self._yes(x, y == c, query, booster, variance) for c, booster, variance in self.parts], 1)
        p = np.concatenate([1 - p, p], 1) if len(self.parts) == 1 else p
        return p / p.sum(1, keepdims=True)

    def _yes(self, x: np.ndarray, yes: np.ndarray, query: np.ndarray, booster: Any, variance: float) -> np.ndarray:
        effect = np.linspace(-6, 6, 241) * np.sqrt(variance)
        log_p = -0.5 * effect**2 / max(variance, 1e-12)
        if len(yes):
            log_p = log_p + log_expit(np.where(yes, 1, -1)[:, None] * (self._trees(booster, x)[:, None] + effect)).sum(
                0
            )
        return expit(self._trees(booster, query)[:, None] + effect) @ softmax(log_p)

    def _trees(self, booster: Any, x: np.ndarray) -> np.ndarray:
        new = np.full(len(x), -1)
        return np.asarray(booster.predict(data=x, group_data_pred=new, pred_latent=True)["fixed_effect"])


class Few(Method, ABC):
    """Classes are new in every episode: what is learned beforehand are features, and how sure to be."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        pass

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> Probabilities:
        labels, y = np.unique(y, return_inverse=True)
        return labels, self.probabilities(x, y, query)

    @abstractmethod
    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray: ...


class Centroid(Few):
    """The nearest mean of a class; probabilities under the temperature that is best on episodes of base classes."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        self.temperature = 1.0
        random = np.random.default_rng(0)
        episodes = []
        for _ in range(20):
            known, other = [], []
            for c in random.permutation(y.max() + 1)[:5]:
                order = random.permutation(np.flatnonzero(y == c))
                known += [(i, c) for i in order[:3]]
                other += [(i, c) for i in order[3:8]]
            episodes.append((known, other))

        def loss(log_t: float) -> float:
            self.temperature = float(np.exp(log_t))
            total = 0.0
            for known, other in episodes:
                (i, a), (j, b) = (np.array(part).T for part in (known, other))
                labels, place = np.unique(a, return_inverse=True)
                p = self.probabilities(x[i], place, x[j])
                total -= np.log(np.maximum(p[np.arange(len(j)), np.searchsorted(labels, b)], 1e-12)).sum()
            return total

        self.temperature = float(np.exp(minimize_scalar(loss, bounds=(-4, 8), method="bounded").x))

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        means = np.stack([x[y == c].mean(0) for c in range(y.max() + 1)])
        distance = ((query[:, None] - means[None]) ** 2).sum(-1)
        return softmax(-distance / self.temperature, 1)


class LogisticFew(Few):
    """Logistic regression on the known rows."""

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        return LogisticRegression(max_iter=1000).fit(x, y).predict_proba(query)


class NeighboursFew(Few):
    """The nearest known rows."""

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        p = KNeighborsClassifier(min(3, len(y)), weights="distance").fit(x, y).predict_proba(query) + 0.05
        return p / p.sum(1, keepdims=True)


class FeaturesFew(Few):
    """Logistic regression on the hidden layer of a network that tells the base classes apart."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        net = MLPClassifier((64,), random_state=0, max_iter=300).fit(x, y)
        self.W, self.b = net.coefs_[0], net.intercepts_[0]

    def probabilities(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        x, query = (np.maximum(part @ self.W + self.b, 0) for part in (x, query))
        return LogisticRegression(max_iter=1000).fit(x, y).predict_proba(query)


GROUPS: dict[str, type[Method]] = {
    "smoothed share": Share,
    "logistic, each group": LogisticEach,
    "logistic, pooled": LogisticPooled,
    "logistic + offset": LogisticOffset,
    "boosting + offset": BoostingOffset,
    "GPBoost": GPBoost,
}
NEW: dict[str, type[Method]] = {
    "nearest centroid": Centroid,
    "logistic": LogisticFew,
    "kNN": NeighboursFew,
    "MLP features": FeaturesFew,
}
