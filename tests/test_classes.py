"""Gaussian classes: both forms are the formula written out, and their limits are what they should be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
import oracles
from metavib import Learner, kernels, likelihoods, methods, networks
from metavib.baselines.proto import Prototypes
from metavib.encoders import ClassEncoder
from metavib.posteriors import DualClasses, PrimalClasses, Scatter, memorise
from metavib.posteriors.memory import Memory, Sites
from metavib.priors import FunctionPrior
from metavib.tasks import examples, task
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

WAYS = 3


def known(kappa=0.5, variance=0.1, nu=20.0, dimensions=7.0) -> Scatter:
    return Scatter(*(torch.tensor(v, dtype=torch.float64) for v in (kappa, variance, nu, dimensions)))


def points(n: int, M: int, *, seed: int = 0, ways: int = WAYS):
    """Embeddings, labels (some classes may have no point) and weights."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, M)), rng.integers(0, ways, n), rng.uniform(0.5, 3.0, n)


def both(z, y, w, scatter, ways=WAYS):
    """The two forms of the posterior."""
    kernel, z, w = kernels.Linear(learn_scale=False), torch.as_tensor(z), torch.as_tensor(w)
    one = torch.nn.functional.one_hot(torch.as_tensor(y), ways).double()
    Y = one * w.unsqueeze(-1)
    sums = memorise(z, torch.ones(len(z), dtype=torch.bool), Sites(one, 1 / w))
    return DualClasses(kernel, z, Y, scatter), PrimalClasses(kernel, sums, scatter)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.integers(1, 6), st.integers(0, 10_000), st.floats(0.05, 5.0), st.floats(0.5, 50.0))
def test_both_forms_are_the_densities_of_numpy(n, M, seed, kappa, nu) -> None:
    """Few points and many, more than features or less, classes without any, points that count more than once."""
    z, y, w = points(n, M, seed=seed)
    scatter = known(kappa=kappa, nu=nu)
    x = np.random.default_rng(seed + 1).normal(size=(4, M))
    expected = oracles.gaussian_classes(z, y, w, x, WAYS, **{k: v.item() for k, v in scatter._asdict().items()})
    scaled = torch.as_tensor(x) * M**0.5  # the linear kernel divides by M
    for q in both(z, y, w, scatter):
        torch.testing.assert_close(q.marginals(scaled).f, torch.as_tensor(expected), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("n", [0, 1, 8])
def test_the_kl_is_that_of_torch(n) -> None:
    """Between Gaussians, class by class; none without points."""
    z, y, w = points(n, 4)
    scatter = known()
    prior = torch.distributions.Normal(torch.zeros(4).double(), (scatter.variance / scatter.kappa).sqrt())
    for q in both(z, y, w, scatter):
        expected = torch.zeros(()).double()
        for mean, count in zip(q.means, q.counts, strict=True):
            own = torch.distributions.Normal(mean, (scatter.variance / (scatter.kappa + count)).sqrt())
            expected += torch.distributions.kl_divergence(own, prior).sum()
        torch.testing.assert_close(q.kl(), expected)
        assert n or q.kl().abs() < 1e-12


def test_without_a_prior_and_with_one_scatter_for_all_they_are_prototypes() -> None:
    """kappa to 0 leaves the means, nu to infinity the variance; equal numbers of points leave equal spreads."""
    z, y = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double(), np.arange(9) % WAYS
    q, _ = both(z, y, np.ones(9), known(kappa=1e-9, variance=0.5, nu=1e9))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).double()
    means = torch.stack([z[y == c].mean(0) for c in range(WAYS)])
    expected = Prototypes(means).values(x)
    found = q.marginals(x * 2).f * (1 + 1 / 3)  # embeddings of the linear kernel are x / sqrt(4)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), rtol=1e-5, atol=1e-7)


def test_with_many_points_they_are_linear_discriminant_analysis() -> None:
    """Where a task's own points say everything, the probabilities are those of scikit-learn."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(WAYS), 4000)
    z = rng.normal(size=(WAYS, 3))[y] + rng.normal(size=(len(y), 3)) @ rng.normal(size=(3, 3))
    x = rng.normal(size=(50, 3))
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(z, y).predict_proba(x)
    _, q = both(z, y, np.ones(len(y)), known(nu=1e-3, kappa=1e-3, dimensions=3.0))
    found = q.marginals(torch.as_tensor(x) * 3**0.5).f.softmax(-1)
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=0, atol=2e-3)


def test_a_class_of_few_points_may_lie_further_off() -> None:
    """At the same distance from both classes the one that less is known of is the more probable far away."""
    z, y = np.array([[-1.0]] + 9 * [[1.0]]), np.array([0] + 9 * [1])
    q, _ = both(z, y, np.ones(10), known(kappa=1e-9, variance=0.05, nu=1e9, dimensions=1.0), ways=2)
    f = q.marginals(torch.tensor([[0.0]]).double()).f[0]
    assert f[0] > f[1]


def model(seed: int = 0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = methods.gaussian_classes(networks.MLP(2, (6,)), kernels.Cosine(learn_scale=False), WAYS)
    return built.double()


def test_a_long_support_is_encoded_part_by_part() -> None:
    built, rng = model(), np.random.default_rng(0)
    x, y = torch.as_tensor(rng.normal(size=(700, 2))), torch.as_tensor(rng.integers(0, WAYS, 700))
    query = examples(torch.as_tensor(rng.normal(size=(5, 2))), torch.zeros(5, dtype=torch.long))
    t = task(examples(x, y), query)
    with torch.no_grad():
        parts = built(t).f
    torch.testing.assert_close(built(t).f, parts)


def test_padding_says_nothing() -> None:
    built, t = model(), cases.tasks(likelihoods.Softmax(WAYS), n=6)
    junk = torch.full((2, 2), 50.0).double()
    padded = Examples(
        torch.cat([t.support.x, junk]),
        torch.cat([t.support.y, torch.tensor([0, 1])]),
        torch.cat([t.support.mask, torch.zeros(2, dtype=torch.bool)]),
    )
    torch.testing.assert_close(built(task(padded, t.query)).f, built(t).f)


def test_a_learner_adds_merges_and_forgets(tmp_path) -> None:
    """A memory of constant size: what is predicted is what all points at once would have said."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2)), [["ant", "bee", "cat"][i] for i in np.arange(12) % 3]
    at, learner = rng.normal(size=(4, 2)), Learner(model())
    whole = learner.adapt((x, y))
    first, second = learner.adapt((x[:7], y[:7])), learner.adapt((x[7:], y[7:]))
    assert whole.constant_size and whole.counts == [4, 4, 4]
    expected = whole.predict(at).probabilities
    for other in (first.update((x[7:], y[7:])), first.merge(second)):
        torch.testing.assert_close(other.predict(at).probabilities, expected)
    torch.testing.assert_close(
        whole.forget((x[7:], y[7:])).predict(at).probabilities, first.predict(at).probabilities, rtol=1e-6, atol=1e-8
    )
    whole.save(tmp_path / "task.safetensors", form="memory")
    assert learner.load(tmp_path / "task.safetensors").predict(at).probabilities.equal(expected)
    wider = whole.update((x[:1], ["dog"])).predict(at)
    assert wider.probabilities.shape == (4, 4)
    named = learner.adapt((x, y), classes=("ant", "bee", "cat", "eel")).predict(at).probabilities
    assert named.shape == (4, 4) and bool((named[:, 3] > 0).all())


def test_what_gaussian_classes_cannot_do_is_said() -> None:
    encoder, phi = ClassEncoder(), networks.MLP(2, (6,))
    support = examples(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    query = Points(torch.zeros(1, 2), torch.ones(1, dtype=torch.bool))
    with pytest.raises(TypeError, match="as under Softmax, and Bernoulli has none"):
        encoder(support, query, FunctionPrior(phi, kernels.Cosine()), likelihoods.Bernoulli())
    with pytest.raises(TypeError, match="the kernel RBF has none of finite size"):
        encoder(support, query, FunctionPrior(phi, kernels.RBF()), likelihoods.Softmax(2))


def test_a_memory_that_is_of_no_points_is_told_of() -> None:
    memory = Memory(*(torch.full(s, torch.nan).double() for s in ((2, 2), (2, 3), (3,), (), ())))
    with pytest.raises(ValueError, match="S_w"):
        PrimalClasses(kernels.Linear(), memory, known())
