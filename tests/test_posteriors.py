"""Posteriors over functions and over weights, against dense float64 oracles over random sizes."""

import warnings
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import oracles
from metavib import kernels
from metavib.networks.layers import softplus_inverse
from metavib.posteriors import DiagonalNormal, Dirac, Dual, Memory, Primal, Sites, memorise, posterior
from metavib.tasks.inputs import Inputs

EXPLICIT = [kernels.Linear, kernels.Cosine]
sizes = st.fixed_dictionaries(
    {
        "n": st.integers(0, 12),
        "v": st.integers(1, 5),
        "M": st.integers(1, 8),
        "c": st.integers(1, 4),
        "seed": st.integers(0, 10_000),
    }
)


class Problem:
    """One task: features, sites, and what the oracle needs of them."""

    def __init__(self, n: int, v: int, M: int, c: int, seed: int, batch: tuple[int, ...] = ()) -> None:
        rng = np.random.default_rng(seed)
        self.phi, self.phi_v = rng.normal(size=(*batch, n, M)), rng.normal(size=(*batch, v, M))
        self.m = rng.normal(size=(*batch, n, c)) * 2
        self.s = rng.uniform(1e-3, 2.0, size=(*batch, n))
        self.mask = torch.ones(*batch, n, dtype=torch.bool)

    @property
    def x(self) -> Tensor:
        return torch.as_tensor(self.phi)

    @property
    def x_v(self) -> Tensor:
        return torch.as_tensor(self.phi_v)

    @property
    def sites(self) -> Sites:
        return Sites(torch.as_tensor(self.m), torch.as_tensor(self.s))

    def dual(self, kernel: kernels.Kernel) -> Dual:
        return Dual(kernel, kernel.embed(self.x), self.mask, self.sites)

    def primal(self, kernel: kernels.ExplicitKernel) -> Primal:
        return Primal(kernel, memorise(kernel.embed(self.x), self.mask, self.sites))

    def part(self, *index: slice) -> tuple[Tensor, Tensor, Sites]:
        m, s = self.sites
        return self.x[index], self.mask[index], Sites(m[index], s[index])


def make(kernel: type[kernels.Kernel], v: float = 0.4) -> kernels.Kernel:
    k = kernel().double()
    torch.nn.init.constant_(k.log_scale, v)
    if isinstance(k, kernels.Stationary):  # born in float32: set the lengthscale to 1 in float64
        torch.nn.init.constant_(k.lengthscale.raw, softplus_inverse(1.0 - k.lengthscale.floor))
    return k


def gram(kernel: type[kernels.Kernel], v: float = 0.4):
    return {
        kernels.Linear: oracles.linear(v),
        kernels.Cosine: oracles.cosine(v),
        kernels.RBF: oracles.rbf(1.0, v),
        kernels.Matern32: oracles.matern32(1.0, v),
        kernels.Matern52: oracles.matern52(1.0, v),
    }[kernel]


def close(actual: Tensor, expected, tol: float = 1e-8) -> None:
    assert_close(actual, torch.as_tensor(np.asarray(expected)), rtol=tol, atol=tol)


@pytest.mark.parametrize("kernel", [*EXPLICIT, kernels.RBF, kernels.Matern32, kernels.Matern52])
@pytest.mark.parametrize("form", ["dual", "primal"])
@given(size=sizes)
def test_marginals_kl_and_evidence_equal_the_dense_oracle(kernel, form, size) -> None:
    """Both forms, any n (0 and n > M included), any number of outputs."""
    if form == "primal" and kernel not in EXPLICIT:
        return
    p = Problem(**size)
    q = getattr(p, form)(make(kernel))
    k = gram(kernel)
    K, ks = oracles.pairwise(k, p.phi, p.phi), oracles.pairwise(k, p.phi_v, p.phi)
    mean, var = oracles.marginals(K, ks, np.array([k(x, x) for x in p.phi_v]), p.m, p.s)
    found = q.marginals(p.x_v)
    close(found.mean, mean)
    close(found.var.squeeze(-1), var)
    assert bool((found.var >= 0).all())
    close(q.log_evidence(), oracles.log_evidence(K, p.m, p.s))
    close(q.kl(), oracles.kl_sites(K, p.m, p.s))


@given(size=sizes)
def test_kl_equals_the_dense_gaussian_kl_where_k_has_full_rank(size) -> None:
    """KL[q(f_t) || N(0, K)] by inverses of K, for a kernel whose K has full rank."""
    p = Problem(**size)
    kernel = kernels.Matern32
    K = oracles.pairwise(gram(kernel), p.phi, p.phi)
    if size["n"] and np.linalg.cond(K) > 1e6:
        return  # the oracle, not the package, inverts K
    close(p.dual(make(kernel)).kl(), oracles.kl_dense(K, p.m, p.s), 1e-6)


@pytest.mark.parametrize("kernel", EXPLICIT)
@given(size=sizes)
def test_kl_in_function_space_equals_kl_in_weight_space(kernel, size) -> None:
    """f = Z w: the KL of q(f_t), of a K of any rank, is that of q(w) against N(0, I)."""
    p = Problem(**size)
    k = make(kernel)
    expected = oracles.kl_weights(k.embed(p.x).detach().numpy(), p.m, p.s)
    close(p.dual(k).kl(), expected)
    close(p.primal(k).kl(), expected)


@pytest.mark.parametrize("kernel", EXPLICIT)
@given(size=sizes, batch=st.sampled_from([(), (1,), (3,), (2, 3)]))
def test_primal_equals_dual(kernel, size, batch) -> None:
    p = Problem(**size, batch=batch)
    k = make(kernel)
    dual, primal = p.dual(k), p.primal(k)
    for a, b in zip(dual.marginals(p.x_v), primal.marginals(p.x_v), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)
    assert_close(dual.kl(), primal.kl(), rtol=1e-8, atol=1e-8)
    assert_close(dual.log_evidence(), primal.log_evidence(), rtol=1e-8, atol=1e-8)


@given(size=sizes, batch=st.sampled_from([(1,), (3,), (2, 3)]), form=st.sampled_from(["dual", "primal"]))
def test_batched_equals_looped(size, batch, form) -> None:
    p = Problem(**size, batch=batch)
    k = make(kernels.Linear)
    together = getattr(p, form)(k)
    mean, var = together.marginals(p.x_v)
    for i in np.ndindex(*batch):
        alone = Problem(**size)
        alone.phi, alone.phi_v, alone.m, alone.s = p.phi[i], p.phi_v[i], p.m[i], p.s[i]
        q = getattr(alone, form)(k)
        assert_close(q.kl(), together.kl()[i])
        assert_close(q.log_evidence(), together.log_evidence()[i])
        assert_close(q.marginals(alone.x_v).mean, mean[i])
        assert_close(q.marginals(alone.x_v).var, var[i])


def same(a: Dual | Primal, b: Dual | Primal, x: Tensor, tol: float = 1e-9) -> None:
    for one, other in zip(a.marginals(x), b.marginals(x), strict=True):
        assert_close(one, other, rtol=tol, atol=tol)
    assert_close(a.kl(), b.kl(), rtol=tol, atol=tol)
    assert_close(a.log_evidence(), b.log_evidence(), rtol=tol, atol=tol)


@given(size=sizes, cut=st.integers(0, 12))
def test_memory_streamed_merged_and_forgotten_equals_joint(size, cut) -> None:
    """Point by point = batch; merged = joint; forgetting undoes updating; KL and evidence from the memory alone."""
    p = Problem(**size)
    k = make(kernels.Cosine)
    joint = p.primal(k)
    empty = Primal(k, memorise(*_embedded(k, p.part(slice(0, 0)))))
    streamed = empty
    for j in range(size["n"]):
        streamed = streamed.update(*p.part(slice(j, j + 1)))
    same(streamed, joint, p.x_v)
    first, second = p.part(slice(0, cut)), p.part(slice(cut, None))
    half = Primal(k, memorise(*_embedded(k, first)))
    other = memorise(*_embedded(k, second))
    same(half.merge(other), joint, p.x_v)
    same(half.update(*second), joint, p.x_v)
    same(joint.forget(other), half, p.x_v, 1e-7)
    same(Primal(k, Memory(*(t.clone() for t in joint.memory))), joint, p.x_v)
    assert joint.memory.A.shape == (size["M"], size["M"])


@given(size=sizes, cut=st.integers(0, 12))
def test_dual_update_equals_joint(size, cut) -> None:
    """The growing form: kernels without an explicit map take more points too."""
    p = Problem(**size)
    k = make(kernels.Matern32)
    (x, mask, sites), second = p.part(slice(0, cut)), p.part(slice(cut, None))
    same(Dual(k, k.embed(x), mask, sites).update(*second), p.dual(k), p.x_v)


def _embedded(k: kernels.Kernel, part: tuple[Tensor, Tensor, Sites]) -> tuple[Tensor, Tensor, Sites]:
    x, mask, sites = part
    return k.embed(x), mask, sites


def test_forgetting_what_was_never_known_is_refused() -> None:
    """A + I loses its positive eigenvalues: an error, not a posterior."""
    p = Problem(4, 1, 3, 1, 0)
    k = make(kernels.Linear)
    known = Primal(k, memorise(*_embedded(k, p.part(slice(0, 1)))))
    with pytest.raises(ValueError, match=r"Cholesky of A \+ I failed"):
        known.forget(memorise(k.embed(10 * p.x), p.mask, p.sites))


def test_update_leaves_the_posterior_it_starts_from_alone() -> None:
    p = Problem(6, 3, 4, 2, 0)
    k = make(kernels.Linear)
    q = Primal(k, memorise(*_embedded(k, p.part(slice(0, 3)))))
    before = [t.clone() for t in (*q.memory, *q.marginals(p.x_v))]
    q.update(*p.part(slice(3, None)))
    for old, new in zip(before, (*q.memory, *q.marginals(p.x_v)), strict=True):
        assert_close(old, new, rtol=0, atol=0)


@given(size=sizes, padding=st.integers(1, 4), form=st.sampled_from(["dual", "primal"]))
def test_masked_points_drop_out_exactly(size, padding, form) -> None:
    """A masked point with arbitrary features and the neutral site changes no term."""
    p, wide = Problem(**size), Problem(**{**size, "n": size["n"] + padding})
    rng = np.random.default_rng(size["seed"])
    order = rng.permutation(size["n"] + padding)  # padding anywhere, not only last
    real = np.sort(order[: size["n"]])
    wide.phi[real], wide.m[:], wide.s[:] = p.phi, 0.0, 1.0
    wide.m[real], wide.s[real], wide.phi_v = p.m, p.s, p.phi_v
    wide.phi[np.sort(order[size["n"] :])] *= 1e3
    wide.mask[:] = False
    wide.mask[torch.as_tensor(real)] = True
    k = make(kernels.Linear)
    a, b = getattr(p, form)(k), getattr(wide, form)(k)
    same(b, a, p.x_v, 1e-10)


@given(size=sizes, form=st.sampled_from(["dual", "primal"]))
def test_order_of_support_points_does_not_matter(size, form) -> None:
    p, q = Problem(**size), Problem(**size)
    order = np.random.default_rng(0).permutation(size["n"])
    q.phi, q.m, q.s = p.phi[order], p.m[order], p.s[order]
    k = make(kernels.Linear)
    same(getattr(q, form)(k), getattr(p, form)(k), p.x_v)


@pytest.mark.parametrize("kernel", [kernels.Linear, kernels.Cosine, kernels.RBF])
@pytest.mark.parametrize(("n", "primal"), [(0, False), (4, False), (5, True), (9, True)])
def test_the_cheaper_form_is_chosen(kernel, n, primal) -> None:
    """Primal where an explicit kernel has fewer features (4) than there are points."""
    p = Problem(n, 2, 4, 1, 0)
    q = posterior(make(kernel), p.x, p.mask, p.sites)
    assert type(q) is (Primal if primal and kernel is not kernels.RBF else Dual)


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_empty_support_is_the_prior(form) -> None:
    p = Problem(0, 3, 4, 2, 0)
    k = make(kernels.Linear)
    q = getattr(p, form)(k)
    mean, var = q.marginals(p.x_v)
    for term in (q.kl(), q.log_evidence()):
        assert_close(term, torch.zeros((), dtype=torch.float64), rtol=0, atol=0)
    assert_close(mean, torch.zeros(3, 2, dtype=torch.float64), rtol=0, atol=0)
    assert_close(var.squeeze(-1), k.diagonal(k.embed(p.x_v)))


# Second opinions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", [kernels.Linear, kernels.RBF, kernels.Matern32, kernels.Matern52])
def test_agrees_with_scikit_learn(kernel, seed) -> None:
    """GaussianProcessRegressor with alpha = s: mean, deviation and log marginal likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

    p = Problem(7, 4, 3, 1, seed)
    v = 0.4
    theirs = {
        kernels.Linear: ConstantKernel(np.exp(v) / 3) * DotProduct(sigma_0=0.0),
        kernels.RBF: ConstantKernel(np.exp(v)) * RBF(1.0),
        kernels.Matern32: ConstantKernel(np.exp(v)) * Matern(1.0, nu=1.5),
        kernels.Matern52: ConstantKernel(np.exp(v)) * Matern(1.0, nu=2.5),
    }[kernel]
    with np.errstate(divide="ignore"):  # DotProduct takes log sigma_0
        gp = GaussianProcessRegressor(theirs, alpha=p.s, optimizer=None).fit(p.phi, p.m[:, 0])
        evidence = gp.log_marginal_likelihood_value_
    mean, sd = gp.predict(p.phi_v, return_std=True)
    q = p.dual(make(kernel, v))
    close(q.marginals(p.x_v).mean.squeeze(-1), mean)
    close(q.marginals(p.x_v).var.squeeze(-1), sd**2, 1e-7)
    close(q.log_evidence(), evidence)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", [kernels.RBF, kernels.Linear])
def test_agrees_with_gpytorch(kernel, seed) -> None:
    """GPyTorch's ExactGP with fixed noise s: mean, variance and exact marginal log likelihood."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import gpytorch

    p = Problem(7, 4, 3, 1, seed)
    x, y, noise = p.x, p.sites.m[:, 0], p.sites.s
    base = gpytorch.kernels.RBFKernel() if kernel is kernels.RBF else gpytorch.kernels.LinearKernel()
    if kernel is kernels.RBF:
        base.lengthscale = 1.0
    else:
        base.variance = 1 / 3

    class ExactGP(gpytorch.models.ExactGP):
        def __init__(self, likelihood) -> None:
            super().__init__(x, y, likelihood)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), base

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise=noise)
    gp = ExactGP(likelihood).double()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, gp)(gp(x), y) * len(y)
    gp.eval()
    theirs = gp(p.x_v)
    q = p.dual(make(kernel, 0.0))
    found = q.marginals(p.x_v)
    assert_close(found.mean.squeeze(-1), theirs.mean, rtol=1e-6, atol=1e-6)
    assert_close(found.var.squeeze(-1), theirs.variance, rtol=1e-6, atol=1e-6)
    assert_close(q.log_evidence(), evidence, rtol=1e-6, atol=1e-6)


# Numbers at the edge ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [kernels.Linear, kernels.Cosine, kernels.RBF, kernels.Matern32, kernels.Matern52])
def test_duplicated_support_points_are_two_observations(kernel, dtype) -> None:
    """The same point twice with variance s, at the floor of s, equals it once with s/2; K is then rank deficient."""
    p = Problem(3, 2, 4, 1, 1)
    s = 1e-3
    once = Sites(p.sites.m.to(dtype), torch.full((3,), s / 2, dtype=dtype))
    twice = Sites(torch.cat([once.m, once.m]), torch.full((6,), s, dtype=dtype))
    k = kernel().to(dtype)
    z = k.embed(p.x.to(dtype))
    a = Dual(k, z, p.mask, once)
    b = Dual(k, torch.cat([z, z]), torch.cat([p.mask, p.mask]), twice)
    tol = 2e-3 if dtype == torch.float32 else 1e-9
    assert_close(b.marginals(p.x_v.to(dtype)).mean, a.marginals(p.x_v.to(dtype)).mean, rtol=tol, atol=tol)
    assert_close(b.marginals(p.x_v.to(dtype)).var, a.marginals(p.x_v.to(dtype)).var, rtol=tol, atol=tol)
    assert_close(b.kl(), a.kl(), rtol=tol, atol=tol)


@pytest.mark.parametrize("kernel", [kernels.RBF, kernels.Matern32, kernels.Matern52])
def test_stationary_kernels_bear_an_offset_in_float32(kernel) -> None:
    """Features far from the origin, some duplicated, at the floor of s: distances must not drown in rounding."""
    p = Problem(6, 3, 4, 1, 2)
    phi = np.concatenate([p.phi, p.phi[:2]]) + 300.0
    m, s = np.concatenate([p.m, p.m[:2]]), np.full(8, 1e-3)
    K = oracles.pairwise(gram(kernel, 0.0), phi, phi)
    ks = oracles.pairwise(gram(kernel, 0.0), p.phi_v + 300.0, phi)
    mean, var = oracles.marginals(K, ks, np.ones(3), m, s)
    k = kernel()
    x, x_v = torch.as_tensor(phi, dtype=torch.float32), torch.as_tensor(p.phi_v + 300.0, dtype=torch.float32)
    sites = Sites(torch.as_tensor(m, dtype=torch.float32), torch.as_tensor(s, dtype=torch.float32))
    found = Dual(k, k.embed(x), torch.ones(8, dtype=torch.bool), sites).marginals(x_v)
    assert_close(found.mean.double(), torch.as_tensor(mean), rtol=5e-3, atol=5e-3)
    assert_close(found.var.squeeze(-1).double(), torch.as_tensor(var), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("kernel", [kernels.Linear, kernels.Cosine, kernels.Matern52])
@pytest.mark.parametrize(("n", "m", "s"), [(5, 20.0, 1e-3), (12, 1.0, 1e-3), (50, 20.0, 20.0), (50, 1.0, 1e-3)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
def test_kl_and_variance_in_float32_at_the_bounds_of_the_sites(kernel, n, m, s, scale) -> None:
    """Targets and variances at their bounds, n below and above M = 8, weak and strong kernels: as in float64."""
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(n, 8)) * np.sqrt(scale)
    target = rng.choice([-m, m], (n, 2))

    def run(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        sites = Sites(torch.as_tensor(target, dtype=dtype), torch.full((n,), s, dtype=dtype))
        x = torch.as_tensor(phi, dtype=dtype)
        q = posterior(kernel().to(dtype), x, torch.ones(n, dtype=torch.bool), sites)
        return q.kl().double(), q.marginals(x).var.double()

    (kl, var), (kl64, var64) = run(torch.float32), run(torch.float64)
    assert float(kl.detach()) >= 0
    assert_close(kl, kl64, rtol=5e-4, atol=1e-2)
    assert_close(var, var64, rtol=1e-2, atol=1e-5 * max(scale, 1))


def test_n_far_above_m_keeps_its_precision_in_float32() -> None:
    """Ten thousand points of three features, in the primal form: posterior as in float64."""
    rng = np.random.default_rng(0)
    phi, w = rng.normal(size=(10_000, 3)), np.array([1.0, -2.0, 0.5])
    m, s = phi @ w + 0.1 * rng.normal(size=10_000), np.full(10_000, 1e-2)
    found = {}
    for dtype in (torch.float32, torch.float64):
        k = kernels.Linear().to(dtype)
        sites = Sites(torch.as_tensor(m, dtype=dtype)[:, None], torch.as_tensor(s, dtype=dtype))
        q = posterior(k, torch.as_tensor(phi, dtype=dtype), torch.ones(10_000, dtype=torch.bool), sites)
        assert isinstance(q, Primal)
        found[dtype] = (q.marginals(torch.as_tensor(phi[:5], dtype=dtype)), q.kl())
    (mean, var), kl = found[torch.float32]
    (mean64, var64), kl64 = found[torch.float64]
    assert_close(mean.double(), mean64, rtol=1e-4, atol=1e-4)
    assert_close(var.double(), var64, rtol=1e-3, atol=0)
    assert_close(kl.double(), kl64, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "kernel", [kernels.Linear, kernels.Cosine, kernels.RBF, kernels.Matern32], ids=lambda k: k.__name__
)
@given(
    different=st.integers(1, 8),
    copies=st.integers(1, 6),
    size=st.sampled_from([1e-3, 1.0, 30.0, 100.0, 1000.0]),
    s=st.sampled_from([1e-3, 0.1, 20.0]),
    outscale=st.sampled_from([1.0, 100.0]),
    M=st.sampled_from([2, 8, 64]),
    seed=st.integers(0, 9999),
)
def test_hostile_tasks_in_float32_are_as_in_float64(kernel, different, copies, size, s, outscale, M, seed) -> None:
    """Copies of points with contradictory targets, features and out-scales far larger than the site variances.

    Marginals are asked for at the support, where the variance is all but explained away, and elsewhere.
    """
    if issubclass(kernel, kernels.Stationary):
        size = min(size, 1.0)  # in lengthscales: beyond a few of them points have nothing to do with each other
    rng = np.random.default_rng(seed)
    phi = np.tile(size * rng.normal(size=(different, M)), (copies, 1)).astype(np.float32)
    target = rng.choice([-20.0, 20.0], (different * copies, 3))
    elsewhere = (size * rng.normal(size=(4, M))).astype(np.float32)

    def run(dtype: torch.dtype) -> list[Tensor]:
        x, x_v = torch.as_tensor(phi, dtype=dtype), torch.as_tensor(np.concatenate([phi, elsewhere]), dtype=dtype)
        sites = Sites(torch.as_tensor(target, dtype=dtype), torch.full((len(phi),), s, dtype=dtype))
        q = posterior(kernel(scale=outscale).to(dtype), x, torch.ones(len(phi), dtype=torch.bool), sites)
        results = [q.kl(), q.log_evidence(), *q.marginals(x_v)]
        assert all(r.dtype == dtype for r in results)
        return [r.detach().double() for r in results]

    for found, exact in zip(run(torch.float32), run(torch.float64), strict=True):
        assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_what_float32_could_not_tell() -> None:
    """Ten copies each of four points with contradictory targets: 14.7 for 16.5, and a quadratic form of -3.3."""
    rng = np.random.default_rng(0)
    phi = np.tile(rng.normal(size=(4, 4)), (10, 1))
    target, s = rng.choice([-1.0, 1.0], (40, 1)), np.full(40, 1e-3)
    exact = oracles.kl_sites(oracles.pairwise(oracles.linear(), phi, phi), target, s)
    x = torch.as_tensor(phi, dtype=torch.float32)
    k = kernels.Linear()
    sites = Sites(torch.as_tensor(target, dtype=torch.float32), torch.as_tensor(s, dtype=torch.float32))
    assert_close(Dual(k, k.embed(x), torch.ones(40, dtype=torch.bool), sites).kl().item(), exact, rtol=1e-5, atol=0)


def test_all_zero_features_learn_nothing() -> None:
    """k = 0 everywhere: mean 0, variance 0, KL 0, evidence that of the sites alone."""
    p = Problem(3, 2, 4, 2, 0)
    p.phi[:] = 0
    p.phi_v[:] = 0
    for kernel in EXPLICIT:
        for q in (p.dual(make(kernel)), p.primal(make(kernel))):
            mean, var = q.marginals(p.x_v)
            assert not bool(mean.any()) and not bool(var.any())
            assert_close(q.kl(), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-12)
            close(q.log_evidence(), oracles.log_evidence(np.zeros((3, 3)), p.m, p.s))


# Weights ------------------------------------------------------------------------------------------------------------


def weights(batch: tuple[int, ...], seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {"W": torch.as_tensor(rng.normal(size=(*batch, 3, 2))), "b": torch.as_tensor(rng.normal(size=(*batch, 3)))}


def decode(psi: dict[str, Tensor], inputs: Inputs) -> Tensor:
    return inputs.x @ psi["W"].mT + psi["b"].unsqueeze(-2)


@given(batch=st.sampled_from([(), (2,), (2, 3)]), seed=st.integers(0, 1000), shared=st.booleans())
def test_diagonal_normal_kl_equals_the_dense_gaussian_kl(batch, seed, shared) -> None:
    """Against the textbook formula with diagonal covariances; shared variances leave only Delta^2 / 2s."""
    psi, theta = weights(batch, seed), weights((), seed + 1)
    s0 = {name: t.square() + 0.1 for name, t in weights((), seed + 2).items()}
    s = s0 if shared else {name: t.square() + 0.1 for name, t in weights((), seed + 3).items()}
    q = DiagonalNormal(psi, s, theta, s0, decode, samples=1, ranks={"W": 2, "b": 1})
    found = q.kl()
    assert found.shape == batch

    def flat(w: dict[str, Tensor]) -> np.ndarray:
        return torch.cat([t.reshape(-1) for t in w.values()]).numpy()

    for i in np.ndindex(*batch):
        mean = flat({name: t[i] for name, t in psi.items()})
        expected = oracles.kl_normal(mean, np.diag(flat(s)), flat(theta), np.diag(flat(s0)))
        close(found[i], expected)
        if shared:
            close(found[i], 0.5 * np.sum((mean - flat(theta)) ** 2 / flat(s)))


def test_diagonal_normal_marginals_are_the_network_at_drawn_weights() -> None:
    psi, s = weights((2,), 0), {name: t.square() for name, t in weights((), 1).items()}
    q = DiagonalNormal(psi, s, psi, s, decode, samples=4, ranks={"W": 2, "b": 1})
    x = torch.randn(2, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = Inputs(x, torch.ones(2, 5, dtype=torch.bool), 0)
    noise = torch.randn(4, 2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    f = q.marginals(inputs, noise).f
    for k in range(4):
        for t in range(2):
            W = psi["W"][t] + s["W"].sqrt() * noise[k, t, :6].reshape(3, 2)
            b = psi["b"][t] + s["b"].sqrt() * noise[k, t, 6:]
            assert_close(f[k, t], x[t] @ W.T + b)
    drawn = q.marginals(inputs, torch.Generator().manual_seed(1))
    assert_close(drawn.f, f)


def test_dirac_is_one_network_and_its_kl_is_infinite() -> None:
    psi = weights((2,), 0)
    q = Dirac(psi, decode, torch.Size((2,)))
    x = torch.ones(2, 5, 2, dtype=torch.float64)
    inputs = Inputs(x, torch.ones(2, 5, dtype=torch.bool), 0)
    assert_close(q.marginals(inputs).f, decode(psi, inputs))
    assert q.kl().shape == (2,)
    assert bool(torch.isposinf(q.kl()).all())


def test_memory_holds_what_the_paper_names() -> None:
    """(A, b, c, l, n) by loops over points."""
    p = Problem(4, 1, 3, 2, 0)
    A, b, c, l, n = memorise(p.x, p.mask, p.sites)  # noqa: E741 - the paper's letter
    close(A, sum(np.outer(z, z) / s for z, s in zip(p.phi, p.s, strict=True)))
    close(b, sum(np.outer(z, m) / s for z, m, s in zip(p.phi, p.m, p.s, strict=True)))
    close(c, sum(m**2 / s for m, s in zip(p.m, p.s, strict=True)))
    close(l, sum(log(s) for s in p.s))
    assert float(n) == 4
