"""What a practitioner would pick for real outputs of many small groups, each with its defaults."""

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor

from benchmarks.tables.protocol import KNOWN, Columns, Gauss, Rows, Trial

ALPHAS = np.logspace(-3, 3, 13)


class Method(ABC):
    """Learns from the rows of many groups, predicts rows of new ones."""

    columns: Columns

    def fit(self, rows: Rows) -> "Method":
        self.columns = Columns(rows.x)
        self.centre, self.scale = float(rows.y.mean()), float(rows.y.std()) or 1.0
        group = np.unique(rows.group, return_inverse=True)[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.learn(self.columns(rows.x), (rows.y - self.centre) / self.scale, group)
        return self

    def predict(self, trials: list[Trial]) -> list[Gauss]:
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for t in trials:
                y = (t.y - self.centre) / self.scale
                mean, sd = self.adapt(self.columns(t.x), y, self.columns(t.query))
                found.append(Gauss(mean * self.scale + self.centre, np.maximum(sd, 1e-4) * self.scale))
        return found

    @abstractmethod
    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None: ...

    @abstractmethod
    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


class Effects:
    """A random effect a group on what a pooled model leaves: variances by the analysis of variance."""

    def __init__(self, residual: np.ndarray, group: np.ndarray) -> None:
        n = np.bincount(group)
        means = np.bincount(group, residual) / n
        within = np.sum((residual - means[group]) ** 2) / max(len(residual) - len(n), 1)
        between = np.sum(n * (means - residual.mean()) ** 2) / max(len(n) - 1, 1)
        size = (n.sum() - np.sum(n**2) / n.sum()) / max(len(n) - 1, 1)
        self.noise = max(within, 1e-6)
        self.spread = max((between - within) / max(size, 1e-9), 0.0)

    def __call__(self, residual: np.ndarray) -> tuple[float, float]:
        """The effect's mean, and the standard deviation of a new row."""
        k = len(residual)
        left = self.spread * self.noise / (self.noise + k * self.spread)
        return float(left / self.noise * residual.sum()), float(np.sqrt(left + self.noise))


class GroupMean(Method):
    """The mean of the group, shrunken towards that of all."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        self.effects = Effects(y, group)

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, sd = self.effects(y)
        return np.full(len(query), mean), np.full(len(query), sd)


class RidgeEach(Method):
    """Ridge regression on the known rows of the group alone; the mean of all where there are none."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        self.within = Effects(y, group).noise

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(y) < 3:
            mean = y.mean() if len(y) else 0.0
            return np.full(len(query), mean), np.full(len(query), np.sqrt(self.within) if len(y) else 1.0)
        model = RidgeCV(ALPHAS).fit(x, y)
        loo = -model.best_score_
        return model.predict(query), np.full(len(query), np.sqrt(max(loo, 1e-6)))


class GPREach(Method):
    """A Gaussian process on the known rows of the group alone."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        pass

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not len(y):
            return np.zeros(len(query)), np.ones(len(query))
        kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, normalize_y=False, random_state=0)
        if len(y) < 3:
            model.optimizer = None
        return model.fit(x, y).predict(query, return_std=True)


class Pooled(Method, ABC):
    """One model for all groups, and an effect a group on its out-of-fold residuals."""

    @abstractmethod
    def model(self) -> Any: ...

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        folds = GroupKFold(min(5, len(np.unique(group))))
        out = cross_val_predict(self.model(), x, y, groups=group, cv=folds)
        self.effects = Effects(y - out, group)
        self.fitted = self.model().fit(x, y)

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, sd = self.effects(y - self.fitted.predict(x) if len(y) else y)
        return self.fitted.predict(query) + mean, np.full(len(query), sd)


class RidgeOffset(Pooled):
    """Ridge regression on all rows, with an offset for each group."""

    def model(self) -> Any:
        return RidgeCV(ALPHAS)


class BoostingOffset(Pooled):
    """Boosted trees on all rows, with an offset for each group."""

    def model(self) -> Any:
        return HistGradientBoostingRegressor(random_state=0)


class NeighboursOffset(Pooled):
    """The nearest rows of all groups, with an offset for each group."""

    def model(self) -> Any:
        return KNeighborsRegressor(10, weights="distance")


class BoostingMean(Method):
    """Boosted trees that see the mean and number of some other rows of the group as two further columns."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        random = np.random.default_rng(0)
        places = [np.flatnonzero(group == g) for g in range(group.max() + 1)]
        xs, ys, ks, gs = [], [], [], []
        for k in KNOWN:
            for mine in places:
                order = random.permutation(mine)
                if len(order) <= k:
                    continue
                known, other = order[:k], order[k:]
                xs.append(self._widen(x[other], y[known]))
                ys.append(y[other])
                ks.append(np.full(len(other), k))
                gs.append(group[other])
        X, Y, k, g = (np.concatenate(part) for part in (xs, ys, ks, gs))
        model = HistGradientBoostingRegressor(random_state=0)
        out = cross_val_predict(model, X, Y, groups=g, cv=GroupKFold(min(5, len(np.unique(g)))))
        self.sd = {v: float(np.std((Y - out)[k == v])) for v in np.unique(k)}
        self.fitted = model.fit(X, Y)

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sd = self.sd[max(k for k in self.sd if k <= len(y))]
        return self.fitted.predict(self._widen(query, y)), np.full(len(query), sd)

    def _widen(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        extra = np.array([y.mean() if len(y) else np.nan, len(y)])
        return np.concatenate([x, np.tile(extra, (len(x), 1))], 1)


class Mixed(Method, ABC):
    """A linear mixed model (statsmodels, REML) with random slopes; best linear unbiased predictions for new groups."""

    slopes = 3  # random slopes at most, of the columns that vary most within groups

    @abstractmethod
    def fixed(self, x: np.ndarray) -> np.ndarray:
        """The design of the fixed effects."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        from statsmodels.regression.mixed_linear_model import MixedLM

        self.prepare(x)
        n = np.bincount(group)
        centred = x - (np.stack([np.bincount(group, c) / n for c in x.T], 1))[group]
        self.within = np.argsort(-centred.var(0), kind="stable")[: self.slopes]
        self.within = self.within[centred.var(0)[self.within] > 0.02]
        X = self.fixed(x)
        # Columns that are linear combinations of others before them have no effect of their own.
        _, r, order = _pivoted(X)
        self.kept = np.sort(order[: int((np.abs(np.diag(r)) > 1e-8 * abs(r[0, 0])).sum())])
        self.within_used = self.within
        for used in (self.within, self.within[:1], self.within[:0]):
            try:
                fit = MixedLM(y, X[:, self.kept], group, exog_re=self._random(x, used)).fit(reml=True)
                good = np.isfinite(fit.scale) and fit.scale > 0 and np.isfinite(np.asarray(fit.cov_re)).all()
            except Exception:  # noqa: BLE001 - singular designs end in errors of many kinds
                good = False
            if good:
                break
        self.within_used = used
        self.beta = np.asarray(fit.fe_params)
        self.beta_cov = np.asarray(fit.cov_params())[: len(self.beta), : len(self.beta)]
        self.beta_cov = np.nan_to_num(self.beta_cov)
        self.cov, self.noise = np.asarray(fit.cov_re), float(fit.scale)

    def prepare(self, x: np.ndarray) -> None:  # noqa: B027 - nothing to prepare in a linear model
        pass

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q, zq = self.fixed(query)[:, self.kept], self._random(query, self.within_used)
        mean = q @ self.beta
        total = zq @ self.cov @ zq.T + q @ self.beta_cov @ q.T
        if len(y):
            f, z = self.fixed(x)[:, self.kept], self._random(x, self.within_used)
            cross = zq @ self.cov @ z.T + q @ self.beta_cov @ f.T
            own = z @ self.cov @ z.T + f @ self.beta_cov @ f.T + self.noise * np.eye(len(y))
            gain = np.linalg.solve(own, cross.T).T
            mean = mean + gain @ (y - f @ self.beta)
            total = total - gain @ cross.T
        return mean, np.sqrt(np.maximum(np.diag(total), 0) + self.noise)

    def _random(self, x: np.ndarray, used: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(x), 1)), x[:, used]], 1)


class MixedLinear(Mixed):
    """Linear fixed effects."""

    def fixed(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(x), 1)), x], 1)


class MixedSplines(Mixed):
    """Cubic splines of four degrees of freedom as fixed effects of the columns of numbers."""

    def prepare(self, x: np.ndarray) -> None:
        self.knots = {j: np.unique(np.quantile(x[:, j], (0, 0.25, 0.5, 0.75, 1))) for j in self.columns.smooth}

    def fixed(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(x), 1)), x] + [_natural(x[:, j], k) for j, k in self.knots.items()], 1)


def _natural(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Natural cubic splines without their constant and linear part: linear beyond the outermost knots."""
    if len(knots) < 3:
        return np.zeros((len(x), 0))

    def d(k: int) -> np.ndarray:
        cube = np.maximum(x - knots[k], 0) ** 3 - np.maximum(x - knots[-1], 0) ** 3
        return cube / (knots[-1] - knots[k])

    return np.stack([d(k) - d(len(knots) - 2) for k in range(len(knots) - 2)], 1)


def _pivoted(X: np.ndarray) -> Any:
    from scipy.linalg import qr

    return qr(X, mode="economic", pivoting=True)


class GPBoost(Method):
    """Boosted trees and a random effect a group, learned together (PyPI: gpboost)."""

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        import gpboost as gpb

        effects = gpb.GPModel(group_data=group, likelihood="gaussian")
        self.booster = gpb.train(
            params={"objective": "regression_l2", "verbose": -1, "num_threads": 1},
            train_set=gpb.Dataset(x, y),
            gp_model=effects,
            num_boost_round=100,
        )
        noise, spread = np.asarray(effects.get_cov_pars(format_pandas=False)).ravel()[:2]
        self.effects = Effects(np.zeros(2), np.zeros(2, dtype=int))
        self.effects.noise, self.effects.spread = float(noise), float(spread)

    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, sd = self.effects(y - self._trees(x) if len(y) else y)
        return self._trees(query) + mean, np.full(len(query), sd)

    def _trees(self, x: np.ndarray) -> np.ndarray:
        new = np.full(len(x), -1)
        return np.asarray(self.booster.predict(data=x, group_data_pred=new, pred_latent=True)["fixed_effect"])


class HierarchicalGP(Method):
    """A function all groups share plus one a group (GPyTorch), kernel parameters by marginal likelihood.

    f_i = g + h_i; g and h_i each have a linear and an RBF kernel with a length scale for each column, h_i a constant
    too. Exact, on the rows of as many groups as fit into `rows`.
    """

    rows, steps = 800, 100

    def learn(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        import gpytorch
        from gpytorch.kernels import ConstantKernel as Constant
        from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel

        random = np.random.default_rng(0)
        chosen, count = [], 0
        for g in random.permutation(np.unique(group)):
            mine = random.permutation(np.flatnonzero(group == g))[:30]
            chosen.append(mine)
            count += len(mine)
            if count >= self.rows:
                break
        index = np.concatenate(chosen)
        d = x.shape[1]
        X, Y = torch.tensor(x[index]), torch.tensor(y[index])
        same = torch.tensor(group[index][:, None] == group[index][None]).double()
        shared = ScaleKernel(RBFKernel(ard_num_dims=d)) + LinearKernel(ard_num_dims=d)
        own = ScaleKernel(RBFKernel(ard_num_dims=d)) + LinearKernel(ard_num_dims=d) + Constant()
        noise = gpytorch.likelihoods.GaussianLikelihood()
        shared, own, noise = shared.double(), own.double(), noise.double()
        with torch.no_grad():
            noise.noise = 0.1
            for kernel in (shared, own):
                kernel.kernels[1].variance = torch.full((1, d), 0.1).double()
        parameters = [*shared.parameters(), *own.parameters(), *noise.parameters()]
        adam = torch.optim.Adam(parameters, lr=0.1)
        for _ in range(self.steps):
            adam.zero_grad()
            K = shared(X).to_dense() + same * own(X).to_dense()
            L = torch.linalg.cholesky(K + (noise.noise + 1e-6) * torch.eye(len(Y)).double())
            a = torch.linalg.solve_triangular(L, Y[:, None], upper=False)
            loss = 0.5 * a.square().sum() + L.diagonal().log().sum()
            loss.backward()
            adam.step()
        with torch.no_grad():
            K = shared(X).to_dense() + same * own(X).to_dense()
            self.noise = float(noise.noise)
            self.L = torch.linalg.cholesky(K + (self.noise + 1e-6) * torch.eye(len(Y)).double())
            self.a = torch.cholesky_solve(Y[:, None], self.L)
        self.x, self.shared, self.own = X, shared, own

    @torch.no_grad()
    def adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        joint = torch.tensor(np.concatenate([x, query]))
        cross = self.shared(joint, self.x).to_dense()
        half = torch.linalg.solve_triangular(self.L, cross.T, upper=False)
        mean = (cross @ self.a)[:, 0]
        cov = self.shared(joint).to_dense() + self.own(joint).to_dense() - half.T @ half
        n = len(y)
        if n:
            own = cov[:n, :n] + (self.noise + 1e-6) * torch.eye(n).double()
            gain = torch.linalg.solve(own, cov[:n, n:]).T
            after = mean[n:] + gain @ (torch.tensor(y) - mean[:n])
            var = cov[n:, n:].diagonal() - (gain * cov[n:, :n]).sum(1)
        else:
            after, var = mean, cov.diagonal()
        return after.numpy(), np.sqrt(np.maximum(var.numpy(), 0) + self.noise)


METHODS: dict[str, type[Method]] = {
    "group mean": GroupMean,
    "ridge, each group": RidgeEach,
    "GPR, each group": GPREach,
    "ridge + offset": RidgeOffset,
    "kNN + offset": NeighboursOffset,
    "boosting + offset": BoostingOffset,
    "boosting + group mean": BoostingMean,
    "mixed, linear": MixedLinear,
    "mixed, splines": MixedSplines,
    "GPBoost": GPBoost,
    "hierarchical GP": HierarchicalGP,
}
