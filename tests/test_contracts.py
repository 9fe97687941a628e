"""What every encoder, site encoder, kernel, likelihood, prior and posterior owes the rest, checked over all cases."""

import gc
import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import cases
import metavib
from metavib import priors
from metavib.encoders import Encoder, SiteEncoder
from metavib.kernels import ExplicitKernel, Kernel
from metavib.likelihoods import ClassLikelihood, Likelihood, RealLikelihood
from metavib.marginals import Normal
from metavib.model import Model
from metavib.objective import Bound, vib
from metavib.posteriors import Posterior
from metavib.random import seeded
from metavib.tasks import Task, select
from metavib.tasks.inputs import points

DTYPES = [torch.float32, torch.float64]
BATCHES = [(), (3,), (2, 3)]
models = pytest.mark.parametrize("case", cases.MODELS, ids=repr)

# Parts with a test file of their own: each package, and the file that must be there.
ELSEWHERE = {
    "metavib.baselines": "test_baselines.py",
    "metavib.groups.shares": "test_shares.py",
    "metavib.encoders.own": "test_new_classes.py",  # a choice among some numbers, through which nothing is trained
}


def run(model: Model, task: Task, noise: Tensor | None = None) -> Bound:
    beta = 0.0 if model.dirac else 0.7
    return vib(model, task, beta=beta, noise=cases.base_samples(model, task.batch_shape) if noise is None else noise)


# Models: one of each encoder, with each part it can be made of ------------------------------------------------------


@models
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_dtype(case, batch, dtype) -> None:
    """One number a task; c latent values a query point; the dtype of the data, and finite."""
    model = cases.build(case, dtype=dtype)
    task = cases.tasks(model.likelihood, batch, dtype=dtype)
    noise = cases.base_samples(model, batch)
    bound = run(model, task, noise)
    assert bound.fit.shape == bound.rate.shape == bound.value.shape == batch
    q = model(task, noise)
    assert q.mean.shape == (*batch, task.query.size, model.likelihood.latents)
    assert q.var.shape in {q.mean.shape, (*q.mean.shape[:-1], 1)}
    for t in (bound.fit, bound.value, q.mean, q.var):
        assert t.dtype == dtype and bool(t.isfinite().all())
    assert bool((q.var >= 0).all()) and bool((bound.rate >= 0).all())


@models
def test_gradients_reach_every_trainable_parameter(case) -> None:
    model = cases.build(case)
    run(model, cases.tasks(model.likelihood, (4,), n=6)).value.sum().backward()
    for name, p in model.named_parameters():
        assert p.requires_grad, f"{name} is frozen, though every case is built to learn all it has"
        assert p.grad is not None and bool(p.grad.isfinite().all()), name
        assert bool(p.grad.any()), f"the gradient of {name} is zero"


@models
def test_batched_equals_looped(case) -> None:
    model = cases.build(case)
    task = cases.tasks(model.likelihood, (2, 3))
    noise = cases.base_samples(model, (2, 3))
    together, q = run(model, task, noise), model(task, noise)
    for i in np.ndindex(2, 3):
        at = noise[:, *(j if size > 1 else 0 for j, size in zip(i, noise.shape[1:3], strict=True))]
        alone = run(model, select(task, i), at)
        for one, many in zip(alone, together, strict=True):
            assert_close(one, many[i])
        assert_close(model(select(task, i), at).mean, q.mean[i])
        assert_close(model(select(task, i), at).var, q.var[i])


@models
def test_state_dict_round_trip(case) -> None:
    """A model built anew and given the state predicts the same; before, it does not."""
    old, new = cases.build(case, seed=0), cases.build(case, seed=1)
    task = cases.tasks(old.likelihood, (2,))
    expected = run(old, task).fit
    assert not torch.allclose(run(new, task).fit, expected)
    new.load_state_dict(old.state_dict())
    assert_close(run(new, task).fit, expected, rtol=0, atol=0)


@models
def test_every_parameter_has_exactly_one_owner(case) -> None:
    """Prior, encoder or likelihood: never two of them, never the model itself."""
    model = cases.build(case)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    owned = [id(p) for part in (model.prior, model.encoder, model.likelihood) for p in part.parameters()]
    assert len(owned) == len(set(owned)) == len(names)
    assert {name.partition(".")[0] for name in names} <= {"prior", "encoder", "likelihood"}


@models
def test_nothing_is_kept_from_a_forward_pass(case) -> None:
    """Same input, same output, and no attribute changes: conditioning returns a new object."""
    model = cases.build(case).eval()
    task = cases.tasks(model.likelihood, (2,))
    before = {name: {k: id(v) for k, v in vars(m).items()} for name, m in model.named_modules()}
    first, second = run(model, task), run(model, cases.tasks(model.likelihood, (2,), seed=1)) and run(model, task)
    assert_close(first.fit, second.fit, rtol=0, atol=0)
    assert before == {name: {k: id(v) for k, v in vars(m).items()} for name, m in model.named_modules()}


@models
def test_repr_names_the_parts(case) -> None:
    model = cases.build(case)
    for part in (model.prior, model.encoder, model.likelihood):
        assert type(part).__name__ in repr(model)


def test_cases_hold_every_kind_of_prior_and_posterior() -> None:
    """The models above meet every prior, and every posterior in both forms."""
    met, posteriors = set(), set()
    for case in cases.MODELS:
        model = cases.build(case)
        met.add(type(model.prior))
        for n in (2, 9):  # below and above M: dual and primal
            task = cases.tasks(model.likelihood, n=n)
            noise = cases.base_samples(model)
            posteriors.add(type(model.encode(task.support, points(task.query), noise).posterior))
    assert met == cases.PRIORS
    assert posteriors == cases.POSTERIORS


# Kernels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases.KERNELS, ids=repr)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_contract(case, batch, dtype) -> None:
    """Shapes, dtype, symmetry, a diagonal that agrees, and no negative eigenvalue."""
    k = case.build().to(dtype)
    phi = torch.randn(*batch, 6, cases.FEATURES, generator=seeded(0)).to(dtype)
    z = k.embed(phi)
    K = k.gram(z, z)
    assert K.shape == (*batch, 6, 6) and K.dtype == dtype
    assert k.gram(z, z[..., :2, :]).shape == (*batch, 6, 2)
    tol = 1e-5 if dtype == torch.float32 else 1e-10
    assert_close(K, K.mT)
    assert_close(k.diagonal(z), K.diagonal(dim1=-2, dim2=-1), rtol=tol, atol=tol)
    assert float(torch.linalg.eigvalsh(K.detach()).min()) > -tol
    if isinstance(k, ExplicitKernel):
        assert_close(K, z @ z.mT)


# Likelihoods --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases.LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_likelihood_contract(case, batch, dtype) -> None:
    """Shapes and dtypes of everything a likelihood answers, probabilities that are some, and Jensen's inequality."""
    p = case.build().to(dtype)
    rng = np.random.default_rng(0)
    y = cases.outputs(p, (*batch, 4), rng)
    y = y.to(dtype) if y.is_floating_point() else y
    p.check(y)
    assert p.targets(y).shape == (*batch, 4, p.latents)
    for shared in (1, p.latents):
        q = Normal(
            torch.as_tensor(rng.normal(size=(*batch, 4, p.latents)), dtype=dtype),
            torch.as_tensor(rng.uniform(0.1, 1.0, size=(*batch, 4, shared)), dtype=dtype),
        )
        expected, density = p.expected_log_prob(q, y, seeded(0)), p.log_predictive(q, y, seeded(0))
        for t in (expected, density):
            assert t.shape == (*batch, 4) and t.dtype == dtype and bool(t.isfinite().all())
        assert bool((expected <= density + 1e-5).all())
        if isinstance(p, ClassLikelihood):
            found = p.predict(q, seeded(0))
            assert found.shape == (*batch, 4, p.classes) and found.dtype == dtype
            assert_close(found.sum(-1), torch.ones(*batch, 4, dtype=dtype))
            assert_close(found.gather(-1, y[..., None]).squeeze(-1).log(), density)
        else:
            assert isinstance(p, RealLikelihood)
            mean, var = p.predict(q)
            cdf = p.predictive_cdf(q, y.to(dtype))
            for t in (mean, var, cdf):
                assert t.shape == (*batch, 4) and t.dtype == dtype
            assert bool((var > 0).all()) and bool(((cdf >= 0) & (cdf <= 1)).all())


# Sites --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", cases.SITES, ids=repr)
@pytest.mark.parametrize("likelihood", cases.LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_site_contract(sites, likelihood, dtype) -> None:
    """A site for each point, within the bounds; the neutral one under a mask; a refusal where theory has none."""
    encoder, p = sites.build().to(dtype), likelihood.build().to(dtype)
    rng = np.random.default_rng(0)
    phi = torch.as_tensor(100 * rng.normal(size=(2, 5, cases.FEATURES)), dtype=dtype)
    y = cases.outputs(p, (2, 5), rng)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    if not cases.allowed(sites.cls, likelihood.cls):
        with pytest.raises(TypeError, match="Use SimplifiedSites"):
            encoder(phi, y, mask, p)
        return
    m, s = encoder(phi, y, mask, p)
    assert m.shape == (2, 5, p.latents) and s.shape == (2, 5)
    assert m.dtype == s.dtype == dtype
    assert bool((s >= 1e-3 * (1 - 1e-6)).all()) and bool((s <= 20).all())
    assert not bool(m[1, 3:].any()) and bool((s[1, 3:] == 1).all())


# No part escapes ----------------------------------------------------------------------------------------------------


def final_subclasses(cls: type) -> set[type]:
    """Every class below `cls` that can be instantiated, in any module of the package."""
    for module in pkgutil.walk_packages(metavib.__path__, "metavib."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, open_ = set(), [cls]
    while open_:
        for sub in open_.pop().__subclasses__():
            open_.append(sub)
            if sub.__module__.split(".")[0] == "metavib" and not inspect.isabstract(sub):
                found.add(sub)
    return found


COVERED = {
    Encoder: cases.ENCODERS,
    SiteEncoder: {c.cls for c in cases.SITES},
    Kernel: {c.cls for c in cases.KERNELS},
    Likelihood: {c.cls for c in cases.LIKELIHOODS},
    Posterior: cases.POSTERIORS,
}


@pytest.mark.parametrize("cls", COVERED, ids=lambda c: c.__name__)
def test_no_final_class_is_without_a_case(cls) -> None:
    escaped = {
        sub
        for sub in final_subclasses(cls) - COVERED[cls]
        if not any(sub.__module__.startswith(package) for package in ELSEWHERE)
    }
    assert not escaped, f"{sorted(c.__qualname__ for c in escaped)} have no case: add one each to tests/cases.py."
    for file in ELSEWHERE.values():
        assert (Path(__file__).parent / file).exists()


def test_no_prior_is_without_a_case() -> None:
    """Priors share no base class: whatever module `metavib.priors` defines under that name is one."""
    found = {c for name, c in vars(priors).items() if name.endswith("Prior") and inspect.isclass(c)}
    assert found == cases.PRIORS


def test_a_new_class_without_a_case_is_noticed() -> None:
    """The check itself works: a class made here, as if in the package, shows up."""

    class Newcomer(ExplicitKernel):
        __module__ = "metavib.kernels"

        def embed(self, phi: Tensor) -> Tensor:
            return phi

    assert Newcomer in final_subclasses(Kernel) - COVERED[Kernel]
    del Newcomer
    gc.collect()  # classes are circular; it must not be found by a later test


def test_concrete_classes_are_not_subclassed() -> None:
    """Abstract or final, nothing between."""
    for cls in COVERED:
        for sub in final_subclasses(cls):
            assert not [s for s in sub.__subclasses__() if s.__module__.startswith("metavib.")], sub
