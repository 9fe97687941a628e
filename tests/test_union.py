"""Batch-norm `union`: each query point with the support, the paper's encoding, against one pass for each point."""

import pytest
import torch
from torch.testing import assert_close

import cases
from metavib import kernels, likelihoods, methods
from metavib.encoders import Descent, FullSites, SimplifiedSites
from metavib.networks import Conv4
from metavib.networks.norm import TaskNorm
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks import Task, examples, task
from metavib.tasks.inputs import Inputs, join_each, points

WAYS, SHOTS, QUERIES = 3, 2, 4


def network(norm: str) -> Conv4:
    return Conv4(1, 16, width=4, norm=norm)


def images(batch: tuple[int, ...] = (2,), *, queries: int = QUERIES, seed: int = 0) -> Task:
    generator = seeded(seed)

    def some(count: int):
        x = torch.randn(*batch, count, 1, 16, 16, generator=generator, dtype=torch.float64)
        return examples(x, torch.randint(WAYS, (*batch, count), generator=generator)).to(torch.float64)

    return task(some(WAYS * SHOTS), some(queries))


MODELS = {
    "gp-vib": lambda n: methods.gp_vib(
        network(n), kernels.Linear(bias=True), SimplifiedSites(), likelihoods.Softmax(WAYS)
    ),
    "gp-vib full": lambda n: methods.gp_vib(network(n), kernels.Cosine(), FullSites(4), likelihoods.Softmax(WAYS)),
    "gp-vib rbf": lambda n: methods.gp_vib(network(n), kernels.RBF(), SimplifiedSites(), likelihoods.Softmax(WAYS)),
    "gp-vib bn-cosine": lambda n: methods.gp_vib(
        network(n), kernels.BNCosine(4, norm=n), SimplifiedSites(), likelihoods.Softmax(WAYS)
    ),
    "maml": lambda n: methods.maml(network(n), likelihoods.Softmax(WAYS), descent=Descent(steps=2, rate=0.1)),
    "stochastic-maml": lambda n: methods.stochastic_maml(
        network(n), likelihoods.Softmax(WAYS), descent=Descent(steps=1, rate=0.1), samples=2
    ),
}


def build(name: str, norm: str):
    torch.manual_seed(0)
    return MODELS[name](norm).double()


def alone(tasks: Task, j: int) -> Task:
    """The same tasks with the j-th query point as their only one."""
    axis = tasks.query.y.ndim - 1
    return tasks._replace(query=type(tasks.query)(*(t.narrow(axis, j, 1) for t in tasks.query)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_all_points_at_once_are_each_point_by_itself(name, training) -> None:
    """With one query point, support and query together are its union with the support: `transductive` is the oracle.

    So are the KL of GP methods, whose mean over points counts, and all gradients.
    """
    union, oracle = (build(name, norm).train(training) for norm in ("union", "transductive"))
    oracle.load_state_dict(union.state_dict())
    tasks, noise = images(), seeded(7)
    q = union(tasks, noise)
    each = [oracle(alone(tasks, j), seeded(7)) for j in range(QUERIES)]
    assert_close(q.mean, torch.cat([e.mean for e in each], -2))
    assert_close(q.var, torch.cat([e.var for e in each], -2))
    if name.startswith("gp-vib"):
        base = torch.randn(5, 1, 1, WAYS, generator=seeded(1), dtype=torch.float64)
        found = vib(union, tasks, beta=0.3, noise=base)
        bounds = [vib(oracle, alone(tasks, j), beta=0.3, noise=base) for j in range(QUERIES)]
        assert_close(found.rate, torch.stack([b.rate for b in bounds]).mean(0))
        assert_close(found.fit, torch.stack([b.fit for b in bounds]).sum(0))
        expected = sum(b.fit - 0.3 * b.rate / QUERIES for b in bounds)
        slopes = (
            torch.autograd.grad(v.sum(), list(m.parameters())) for v, m in ((found.value, union), (expected, oracle))
        )
        for one, other in zip(*slopes, strict=True):
            assert_close(one, other)


def test_the_supports_features_depend_on_the_query_point_and_on_no_other() -> None:
    """Which `support+point` does not have: there the support is normalised by itself alone."""
    tasks, other = images(seed=1), images(seed=2)
    changed = tasks.query._replace(x=torch.cat([tasks.query.x[:, :1], other.query.x[:, 1:]], 1))
    union, cheap = build("gp-vib", "union"), build("gp-vib", "support+point")
    cheap.load_state_dict(union.state_dict())
    first, second = (union.prior.features(tasks.support, points(q))[0] for q in (tasks.query, changed))
    assert_close(first[0], second[0])
    assert not torch.allclose(first[1], second[1]) and not torch.allclose(first[0], first[1])
    of_support = cheap.prior.features(tasks.support, points(tasks.query))[0]
    assert_close(of_support, cheap.prior.features(tasks.support, points(changed))[0])
    assert not torch.allclose(first[0], of_support)


def test_padding_of_support_and_query_drops_out() -> None:
    model = build("gp-vib", "union")
    tasks = images()
    whole = model(tasks)
    junk = images(queries=2, seed=9)

    def padded(some, more):
        axis = some.y.ndim - 1
        x, y, mask = (torch.cat([a, b], axis) for a, b in zip(some, more, strict=True))
        mask[..., some.size :] = False
        return type(some)(x, y, mask)

    longer = Task(padded(tasks.support, junk.support), padded(tasks.query, junk.query))
    found = model(longer)
    assert_close(found.mean[:, :QUERIES], whole.mean)
    assert_close(found.var[:, :QUERIES], whole.var)
    base = torch.randn(5, 1, 1, WAYS, generator=seeded(1), dtype=torch.float64)
    for one, other in zip(
        vib(model, longer, beta=0.3, noise=base), vib(model, tasks, beta=0.3, noise=base), strict=True
    ):
        assert_close(one, other)


def test_gp_maml_takes_its_steps_too() -> None:
    """Each support point stands for a query point in them: a bound that can be differentiated comes out."""
    torch.manual_seed(0)
    parts = (network("union"), kernels.Linear(bias=True), SimplifiedSites(), likelihoods.Softmax(WAYS, samples=5))
    model = methods.gp_maml(*parts, descent=Descent(steps=2, rate=1e-3), beta=0.1).double()
    bound = vib(model, images(), beta=0.1, noise=seeded(0))
    bound.value.sum().backward()
    assert bool(bound.value.isfinite().all()) and all(p.grad is not None for p in model.prior.parameters())


def test_several_query_points_at_once_are_refused() -> None:
    norm = TaskNorm(3, encoding="union").double()
    x = torch.randn(5, 3, dtype=torch.float64)
    everyone = torch.ones(5, dtype=torch.bool)
    with pytest.raises(ValueError, match="without other query points; got 3 of them at once"):
        norm(x, Inputs(x, everyone, 2))
    norm(x, Inputs(x, everyone, 4))
    norm(x, Inputs(x, everyone, 5))


def test_sets_hold_the_support_and_one_point_each() -> None:
    t = cases.tasks(likelihoods.Gaussian(), (2,), n=3, v=4)
    inputs = join_each(t.support, points(t.query))
    assert inputs.sets == 4 and inputs.n == 3 and inputs.x.shape == (2, 16, cases.INPUTS)
    for j in range(4):
        part = inputs.x[:, 4 * j : 4 * j + 4]
        assert torch.equal(part, torch.cat([t.support.x, t.query.x[:, j : j + 1]], 1))
