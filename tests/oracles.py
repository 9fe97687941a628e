"""Slow and obvious references in NumPy and SciPy, float64: loops, dense inverses, textbook formulas.

Nothing here is shared with the package, and nothing is clever: a formula is written the way the definition reads, so
that an agreement means something. Shapes are of one task: `phi (n, m)`, `K (n, n)`, sites `m (n, c)`, `s (n,)`.
"""

from collections.abc import Callable

import numpy as np
from scipy import integrate, stats
from scipy.special import softmax

Array = np.ndarray


# Kernels ------------------------------------------------------------------------------------------------------------


def pairwise(k: Callable[[Array, Array], float], a: Array, b: Array) -> Array:
    """k of every pair, by two loops."""
    return np.array([[k(x, y) for y in b] for x in a]).reshape(len(a), len(b))


def append_one(phi: Array) -> Array:
    return np.concatenate([phi, np.ones((len(phi), 1))], 1)


def linear(v: float = 0.0) -> Callable[[Array, Array], float]:
    return lambda x, y: np.exp(v) * float(np.dot(x, y)) / len(x)


def cosine(v: float = 0.0) -> Callable[[Array, Array], float]:
    def k(x: Array, y: Array) -> float:
        lengths = np.linalg.norm(x) * np.linalg.norm(y)
        return 0.0 if lengths == 0 else np.exp(v) * float(np.dot(x, y)) / lengths

    return k


def rbf(ell: float, v: float = 0.0) -> Callable[[Array, Array], float]:
    return lambda x, y: np.exp(v) * np.exp(-np.sum((x - y) ** 2) / (2 * ell**2))


def matern32(ell: float, v: float = 0.0) -> Callable[[Array, Array], float]:
    def k(x: Array, y: Array) -> float:
        r = np.sqrt(3) * np.linalg.norm(x - y) / ell
        return np.exp(v) * (1 + r) * np.exp(-r)

    return k


def matern52(ell: float, v: float = 0.0) -> Callable[[Array, Array], float]:
    def k(x: Array, y: Array) -> float:
        r = np.sqrt(5) * np.linalg.norm(x - y) / ell
        return np.exp(v) * (1 + r + r**2 / 3) * np.exp(-r)

    return k


# Gaussian posteriors over functions ---------------------------------------------------------------------------------


def log_normal(x: Array, mean: Array, cov: Array) -> float:
    """log N(x | mean, cov); of no dimensions, log 1."""
    return 0.0 if len(x) == 0 else float(stats.multivariate_normal(mean, cov).logpdf(x))


def posterior(K: Array, m: Array, s: Array) -> tuple[Array, Array]:
    """Mean `(n, c)` and covariance of q(f_t): K (K+S)^-1 m and K - K (K+S)^-1 K."""
    G = K @ np.linalg.inv(K + np.diag(s))
    return G @ m, K - G @ K


def marginals(K: Array, k_star: Array, k_star_star: Array, m: Array, s: Array) -> tuple[Array, Array]:
    """Mean `(v, c)` and variance `(v,)` point by point; `k_star (v, n)`, `k_star_star (v,)`."""
    inverse = np.linalg.inv(K + np.diag(s))
    means = [k @ inverse @ m for k in k_star]
    variances = [kk - k @ inverse @ k for k, kk in zip(k_star, k_star_star, strict=True)]
    return np.array(means).reshape(len(k_star), m.shape[1]), np.array(variances).reshape(len(k_star))


def log_evidence(K: Array, m: Array, s: Array) -> float:
    """log N(m | 0, K + S), summed over the outputs."""
    return sum(log_normal(column, np.zeros(len(s)), K + np.diag(s)) for column in m.T)


def kl_normal(mean0: Array, cov0: Array, mean1: Array, cov1: Array) -> float:
    """KL[N(mean0, cov0) || N(mean1, cov1)], the textbook formula."""
    if len(mean0) == 0:
        return 0.0
    inverse = np.linalg.inv(cov1)
    delta = mean1 - mean0
    logdets = np.linalg.slogdet(cov1)[1] - np.linalg.slogdet(cov0)[1]
    return 0.5 * float(np.trace(inverse @ cov0) + delta @ inverse @ delta - len(delta) + logdets)


def kl_dense(K: Array, m: Array, s: Array) -> float:
    """KL[q(f_t) || N(0, K)], K of full rank."""
    mean, cov = posterior(K, m, s)
    return sum(kl_normal(column, cov, np.zeros(len(s)), K) for column in mean.T)


def kl_sites(K: Array, m: Array, s: Array) -> float:
    """E_q[log N(m | f, s)] - log N(m | 0, K + S), any K."""
    mean, cov = posterior(K, m, s)
    expected = 0.0
    for column, mu in zip(m.T, mean.T, strict=True):
        for j in range(len(s)):
            expected += stats.norm(mu[j], np.sqrt(s[j])).logpdf(column[j]) - cov[j, j] / (2 * s[j])
    return expected - log_evidence(K, m, s)


def kl_weights(Z: Array, m: Array, s: Array) -> float:
    """KL[q(w) || N(0, I)] for f = Z w: a Bayesian linear regression on the embeddings."""
    precision = np.eye(Z.shape[1]) + sum((np.outer(z, z) / v for z, v in zip(Z, s, strict=True)), 0.0)
    cov = np.linalg.inv(precision)
    means = cov @ (Z.T @ (m / s[:, None]))
    return sum(kl_normal(mean, cov, np.zeros(Z.shape[1]), np.eye(Z.shape[1])) for mean in means.T)


# Likelihoods --------------------------------------------------------------------------------------------------------


def integral(g: Callable[[Array], Array], mean: float, var: float) -> float:
    """E[g(f)] for f ~ N(mean, var), by Simpson's rule on 8001 points over twelve standard deviations either side."""
    sd = np.sqrt(var)
    if sd < 1e-150:
        return float(g(np.array([mean]))[0])
    f = np.linspace(mean - 12 * sd, mean + 12 * sd, 8001)
    return float(integrate.simpson(g(f) * stats.norm(mean, sd).pdf(f), x=f))


def integral_2d(g: Callable[[Array], float], mean: Array, var: Array, nodes: int = 80) -> float:
    """E[g(f)] for two independent Gaussians, by a dense grid of Gauss-Hermite nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    total = 0.0
    for xa, wa in zip(x, w, strict=True):
        for xb, wb in zip(x, w, strict=True):
            total += wa * wb * g(mean + np.sqrt(var) * np.array([xa, xb]))
    return total


def log_softmax_prob(f: Array, y: int) -> float:
    return float(np.log(softmax(f)[y]))


def panels(centres: list[tuple[float, float]], low: float, high: float) -> tuple[Array, Array]:
    """Nodes and weights of an integral from low to high, of functions that have their features around some centres.

    Gauss-Legendre with 20 nodes on panels that grow geometrically with the distance from each centre, in units of its
    width: dense wherever a width says so, whatever the ratio of the widths.
    """
    away = np.concatenate([[0.0], np.logspace(-3, 6, 70)])
    edges = np.concatenate([[low, high], *(c + sign * w * away for c, w in centres for sign in (-1, 1))])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    x, w = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * x).ravel(), (half * w).ravel()


def gaussian_classes(
    z: Array, y: Array, w: Array, x: Array, ways: int, *, kappa: float, variance: float, nu: float, dimensions: float
) -> Array:
    """Latent values of Gaussian classes at x, point by point and class by class, with matrices written out."""
    M, counts = z.shape[1], [w[y == n].sum() for n in range(ways)]
    scatter, seen = np.zeros((M, M)), 0
    for n in range(ways):
        own, weight = z[y == n], w[y == n]
        if len(own):
            seen += 1
            centre = (weight[:, None] * own).sum(0) / weight.sum()
            for point, each in zip(own, weight, strict=True):
                scatter += each * np.outer(point - centre, point - centre)
    sigma = (nu * variance * np.eye(M) + scatter) / (nu + max(0.0, sum(counts) - seen))
    f = np.zeros((len(x), ways))
    for n in range(ways):
        mean = (w[y == n, None] * z[y == n]).sum(0) / (kappa + counts[n])
        rho = 1 + 1 / (kappa + counts[n])
        for i, point in enumerate(x):
            d = point - mean
            f[i, n] = -0.5 * (d @ np.linalg.inv(sigma) @ d / rho + dimensions * np.log(rho))
    return f
