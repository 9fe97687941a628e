"""Temperatures against known ones, how alike classes are against loops, and predictions under both by every route."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metavib import Learner, encoders, kernels, likelihoods, methods, networks
from metavib.adapt.many import Predictors
from metavib.posteriors import Sites, TaskMemory, likeness, memorise
from metavib.training import metrics
from metavib.training.temperature import (
    PLAIN,
    REACH,
    Outcomes,
    Temperature,
    Warmth,
    fit_temperature,
    fitted,
    tempered,
    trust,
)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_a_known_temperature_is_recovered(temperature: float) -> None:
    """Labels drawn from softmax(logits), predictions softmax(logits * T): dividing by T mends them."""
    g = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(200, 100, 5, generator=g, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=g).reshape(200, 100)
    p = (temperature * logits).softmax(-1)
    fitted = fit_temperature(p, y)
    assert fitted == pytest.approx(temperature, rel=0.02)
    assert metrics.ece(tempered(p, fitted), y) < 0.01


def test_the_fitted_temperature_is_a_minimum_and_leaves_masked_points_out() -> None:
    g = torch.Generator().manual_seed(5)
    p = (2 * torch.randn(10, 20, 4, generator=g, dtype=torch.float64)).softmax(-1)
    mask = torch.rand(10, 20, generator=g) < 0.7
    y = torch.multinomial(p.flatten(0, 1), 1, generator=g).reshape(mask.shape)
    t = fit_temperature(p, y, mask)
    assert t == pytest.approx(fit_temperature(p[mask][None], y[mask][None]), rel=1e-6)

    def pooled(t: float) -> float:
        q = tempered(p[mask][None], t)
        return float(metrics.nll(q, y[mask][None]))

    assert pooled(t) <= min(pooled(0.97 * t), pooled(1.03 * t), pooled(1.0))


def test_temperatures_are_refused_where_they_make_no_sense():
    for shots, values in (((), ()), ((1, 5), (1.0,)), ((5, 1), (1.0, 2.0)), ((0,), (1.0,)), ((1,), (-1.0,))):
        with pytest.raises(ValueError, match="temperature"):
            Temperature(shots, values)
    with pytest.raises(ValueError, match="finite"):
        Temperature(slope=(float("nan"), 0.0))
    assert PLAIN.plain and PLAIN.at(7) == 1.0


def test_a_point_has_a_temperature_of_its_own_by_its_features_within_reach():
    """exp(b phi + b_0), of which the logarithm is kept within REACH; the last number of the slope is b_0."""
    known = Temperature(slope=(0.1, -0.2, 0.05))
    phi = torch.tensor([[[1.0, 2.0], [0.0, 0.0], [100.0, 0.0], [0.0, 100.0]]], dtype=torch.float64)
    wanted = np.exp([0.1 - 0.4 + 0.05, 0.05, REACH, -REACH])
    np.testing.assert_allclose(known.factor(phi)[0, :, 0].numpy(), wanted, rtol=1e-12)
    assert not known.plain and known.at(3) == 1.0


def test_a_cautious_temperature_is_as_certain_as_so_many_trials_allow():
    """Of n right predictions the best certainty is 1 - 1/(n + 2); where many are wrong, caution changes little."""
    logits = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64).expand(48, 3)
    p, y = logits.softmax(-1), torch.zeros(48, dtype=torch.long)
    found = tempered(p, fit_temperature(p, y, cautious=True))
    assert float(found[0, 0]) == pytest.approx(1 - 1 / 50, abs=1e-4)
    assert fit_temperature(p, y) < 0.011
    y = torch.arange(48) % 3 * (torch.arange(48) % 2)
    plain, cautious = (fit_temperature(p, y, cautious=c) for c in (False, True))
    assert cautious == pytest.approx(plain, rel=0.1)


@given(st.floats(0.05, 20.0), st.integers(1, 60))
def test_a_temperature_of_few_classes_is_nearer_to_one_and_on_the_same_side(T, classes):
    """No pair of classes says nothing; more classes say more; many decide alone."""
    fewer, found, many = (T ** trust(c) for c in (1, classes, 100_000))
    assert fewer == 1 and many == pytest.approx(T, rel=1e-6)
    assert min(1, T) - 1e-12 <= found <= max(1, T) + 1e-12
    assert abs(np.log(T ** trust(classes + 1))) >= abs(np.log(found)) - 1e-12


def test_a_known_dependence_on_likeness_is_recovered():
    """Labels drawn from softmax(logits), predictions softmax(logits T(r)): the fitted temperature is T(r) again."""
    g = torch.Generator().manual_seed(0)
    r = torch.rand(2_000, generator=g, dtype=torch.float64)
    known = Warmth(0.8, 2.0, -1.5)
    logits = 2 * torch.randn(2_000, 50, 5, generator=g, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=g).reshape(2_000, 50)
    p = (known.of(r).reshape(-1, 1, 1) * logits).softmax(-1)
    mask = torch.rand(2_000, 50, generator=g) < 0.9
    found = fitted({1: Outcomes(p, y, mask, r)})
    at = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(found.of(1, at), known.of(at), rtol=0.03, atol=0)
    assert found.seen == (float(r.min()), float(r.max()))
    blind = fitted({1: Outcomes(p, y, mask)})
    assert blind.likeness == () and blind.at(1) == fit_temperature(p, y, mask, cautious=True)


def test_where_all_tasks_are_equally_alike_one_temperature_is_found():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 40, 3, generator=g, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=g).reshape(50, 40)
    part = Outcomes((3 * logits).softmax(-1), y, torch.ones(50, 40, dtype=torch.bool), torch.full((50,), 0.3).double())
    alike, blind = fitted({2: part}), fitted({2: part._replace(likeness=None)})
    anywhere = torch.tensor([-1.0, 0.3, 1.0], dtype=torch.float64)  # beyond what was seen it is what it is there
    torch.testing.assert_close(alike.of(2, anywhere), torch.full((3,), blind.at(2)).double(), rtol=1e-3, atol=0)


def test_between_shots_a_temperature_changes_evenly_and_beyond_what_was_seen_not_at_all():
    known = Temperature((1, 4), (1.0, 2.0), likeness=((1.0, 0.0), (3.0, -2.0)), seen=(-0.1, 0.5))
    r = torch.tensor([-0.8, -0.1, 0.2, 0.5, 0.9], dtype=torch.float64)
    inside = r.clamp(-0.1, 0.5)
    torch.testing.assert_close(known.of(1, r), inside.exp())
    torch.testing.assert_close(known.of(2, r), 1.5 * (2 * inside - inside.square()).exp())
    torch.testing.assert_close(known.of(99, r), 2 * (3 * inside - 2 * inside.square()).exp())
    assert not known.plain and known.of_features and not Temperature((1, 4), (1.0, 2.0)).of_features
    assert Temperature.of_numbers(known.numbers() | {"nll": 1.0}) == known
    for wrong in ({"likeness": ((1.0, 0.0),)}, {"seen": (0.5, 0.1)}):
        with pytest.raises(ValueError, match="likeness"):
            Temperature((1, 4), (1.0, 2.0), **wrong)


@given(st.integers(0, 10_000))
def test_likeness_is_a_mean_over_pairs_of_points_of_different_classes(seed):
    """By loops, from class means, and from a memory, whatever the sites; classes without points have no pairs."""
    rng = np.random.default_rng(seed)
    counts, M = rng.integers(0, 4, 4), 3
    y = np.repeat(np.arange(4), counts)
    z, m, s = rng.normal(0.3, 1.0, (len(y), M)), -3.0, rng.uniform(0.1, 2.0)
    means = np.stack([z[y == c].mean(0) if (y == c).any() else np.zeros(M) for c in range(4)])
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b and counts[a] and counts[b]]
    each = [np.mean([z[i] @ z[j] for i in np.flatnonzero(y == a) for j in np.flatnonzero(y == b)]) for a, b in pairs]
    square = (z**2).sum(1).mean() if len(y) else 0.0
    wanted = np.mean(each) / square if pairs else 0.0
    known = likeness(torch.tensor(means), torch.tensor(square, dtype=torch.float64), torch.tensor(counts > 0))
    assert float(known) == pytest.approx(wanted, abs=1e-9)
    own = torch.tensor(m * (y[:, None] == np.arange(4)))
    sums = memorise(torch.tensor(z), torch.ones(len(y), dtype=torch.bool), Sites(own, torch.full((len(y),), s)))
    memory = TaskMemory(sums, torch.tensor(counts).double(), tuple("abcd"), (M,))
    assert float(memory.likeness) == pytest.approx(wanted, abs=1e-9)


WARM = Temperature((1, 5), (1.3, 1.8), likeness=((2.0, -1.0), (1.0, 0.5)), seen=(-0.5, 0.9))


def learner(temperature: Temperature) -> Learner:
    torch.manual_seed(0)
    sites = encoders.SimplifiedSites(m=5.0, s=0.2)
    likelihood = likelihoods.Softmax(3)
    model = methods.gp_vib(networks.MLP(2, ()), kernels.Cosine(), sites, likelihood)
    return Learner(model, temperature=temperature)


def task(seed: int, shots: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    return rng.normal(0.5, 1.0, (3 * shots, 2)), [c for c in "abc" for _ in range(shots)]


@pytest.mark.parametrize("shots", [1, 3, 40])
def test_predictions_are_the_plain_ones_under_the_temperature_of_the_task(shots):
    """From points and from their memory, whatever order they came in."""
    x, y = task(0, shots)
    at = np.random.default_rng(9).normal(size=(7, 2))
    plain, warm = (learner(T).adapt((x, y)) for T in (PLAIN, WARM))
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [u[i] @ u[j] for i in range(len(u)) for j in range(len(u)) if y[i] != y[j]]
    T = WARM.of(shots, torch.tensor(np.mean(pairs)))
    wanted = tempered(plain.predict(at).probabilities, T)
    torch.testing.assert_close(warm.predict(at).probabilities, wanted, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(wanted, plain.predict(at).probabilities, atol=1e-2)
    later = learner(WARM).adapt((x[::2], y[::2])).update((x[1::2], y[1::2]))
    found = later.predict(at).probabilities[:, [later.classes.index(c) for c in "abc"]]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_many_tasks_have_each_their_own_temperature():
    """Of which points are kept, a memory, or nothing; predicted together as each alone."""
    ours = learner(WARM)
    tasks = {f"task {i}": task(i, shots) for i, shots in enumerate((1, 2, 40, 5))}
    x = np.concatenate([each for each, _ in tasks.values()])
    y = [label for _, labels in tasks.values() for label in labels]
    ids = [id for id, (each, _) in tasks.items() for _ in each]
    many = ours.adapt_many((x, y), tasks=ids)
    assert isinstance(many, Predictors)
    at = np.random.default_rng(9).normal(size=(12, 2))
    asked = [*tasks, "new"] * 2 + ["task 0", "task 2"]
    found = many.predict(at, tasks=asked).probabilities
    for i, id in enumerate(asked):
        if id in tasks:
            alone = ours.adapt(tasks[id]).predict(at[i : i + 1]).probabilities[0]
            torch.testing.assert_close(found[i], alone, rtol=1e-6, atol=1e-9)
        else:
            torch.testing.assert_close(found[i], torch.full((3,), 1 / 3).double(), rtol=0, atol=0.05)
