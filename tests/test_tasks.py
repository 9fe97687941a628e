"""Where data enters: what is accepted, what it becomes, and what is refused with which words."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import cases
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks import Examples, Task, examples, pad, select, stack, task
from metavib.tasks.sinusoid import Sinusoids

X, Y = np.zeros((4, 2)), np.zeros(4)


# Accepted -----------------------------------------------------------------------------------------------------------


def test_scalar_inputs_get_a_feature_dimension() -> None:
    s = examples([1.0, 2.0], [3.0, 4.0])
    assert s.x.tolist() == [[1.0], [2.0]] and s.y.tolist() == [3.0, 4.0] and bool(s.mask.all())
    assert s.size == 2 and s.batch_shape == ()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integer_inputs_become_floats(dtype) -> None:
    s = examples(torch.ones(3, 2, dtype=dtype), torch.arange(3))
    assert s.x.dtype == torch.get_default_dtype() and s.y.dtype == torch.int64
    assert bool((s.x == 1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_keep_their_dtype(dtype) -> None:
    s = examples(torch.zeros(3, 2, dtype=dtype), torch.zeros(3, dtype=dtype))
    assert s.x.dtype == s.y.dtype == dtype


def test_inputs_of_any_event_shape() -> None:
    s = examples(torch.zeros(2, 3, 4, 8, 8), torch.zeros(2, 3))
    assert s.batch_shape == (2,) and s.size == 3 and s.x.shape == (2, 3, 4, 8, 8)


def test_an_empty_support_is_a_task() -> None:
    t = task(examples(np.zeros((0, 2)), np.zeros(0)), examples(X, Y))
    assert t.support.size == 0 and t.batch_shape == ()


def test_what_is_masked_may_be_anything() -> None:
    s = examples([np.nan, 1.0], [np.inf, 2.0], [False, True])
    assert s.x.tolist() == [[0.0], [1.0]] and s.y.tolist() == [0.0, 2.0] and s.mask.tolist() == [False, True]


def test_to_moves_floats_and_leaves_labels() -> None:
    t = task(examples(X, np.arange(4)), examples(X, np.arange(4))).to(torch.float32)
    assert t.support.x.dtype == torch.float32 and t.query.y.dtype == torch.int64
    assert t.to("cpu").query.x.device.type == "cpu"
    assert t.to("cpu", torch.float64).query.x.dtype == torch.float64


# Refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("letter", ["x", "y"])
def test_values_that_are_not_finite_are_counted_and_refused(bad, letter) -> None:
    x, y = X.copy(), Y.copy()
    (x if letter == "x" else y)[1] = bad
    with pytest.raises(
        ValueError, match=rf"my data: {letter} has \d NaN or infinite values? among \d; remove or impute"
    ):
        examples(x, y, name="my data")


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((3, 2)), np.zeros(4)),  # lengths differ
        (np.zeros(3), np.zeros(4)),
        (np.zeros((5, 4, 2)), np.zeros(4)),  # x carries tasks, y does not
        (np.zeros(4), np.zeros((4, 1))),  # y as a column
        (np.zeros((4, 2)), np.zeros((4, 1))),
        (np.zeros((2, 4, 1)), np.zeros((3, 4))),
    ],
)
def test_shapes_that_do_not_fit_are_named(x, y) -> None:
    with pytest.raises(ValueError, match=r"x must be \(\.\.\., n, \*features\) and y .* got x \(.*\) and y \("):
        examples(x, y)


def test_a_scalar_output_is_refused() -> None:
    with pytest.raises(ValueError, match="y must have at least one dimension"):
        examples(1.0, 2.0)


@pytest.mark.parametrize("letter", ["x", "y"])
def test_complex_numbers_are_refused(letter) -> None:
    parts = {"x": X, "y": Y}
    parts[letter] = parts[letter].astype(complex)
    with pytest.raises(TypeError, match="must be real; got .*complex128"):
        examples(**parts)


@pytest.mark.parametrize("mask", [[1, 1, 0, 0], [1.0, 1.0, 0.0, 0.0], [True, False], [[True] * 4]])
def test_a_mask_must_be_boolean_and_fit(mask) -> None:
    with pytest.raises(ValueError, match=r"mask must be boolean with y's shape \(4,\); got torch"):
        examples(X, Y, mask)


@pytest.mark.parametrize("query", [examples(np.zeros((0, 2)), np.zeros(0)), examples(X, Y, [False] * 4)])
def test_an_empty_query_is_refused(query) -> None:
    with pytest.raises(ValueError, match="at least one query point; got a task with an empty query set"):
        task(examples(X, Y), query)


def test_support_and_query_must_belong_together() -> None:
    with pytest.raises(ValueError, match=r"same leading \(task\) dimensions; got \(2,\) and \(\)"):
        task(examples(np.zeros((2, 4, 2)), np.zeros((2, 4))), examples(X, Y))
    with pytest.raises(ValueError, match=r"same shape per point; got \(2,\) and \(3,\)"):
        task(examples(X, Y), examples(np.zeros((4, 3)), Y))


def test_no_tasks_cannot_be_stacked() -> None:
    with pytest.raises(ValueError, match="at least one task; got none"):
        stack([])


# Batches ------------------------------------------------------------------------------------------------------------


def random(n: int, v: int, seed: int) -> Task:
    rng = np.random.default_rng(seed)

    def draw(k: int) -> Examples:
        return examples(rng.normal(size=(k, 2)), rng.normal(size=k))

    return task(draw(n), draw(v))


def test_stacking_pads_and_masks() -> None:
    tasks = [random(3, 2, 0), random(0, 4, 1), random(5, 1, 2)]
    batch = stack(tasks)
    assert batch.batch_shape == (3,) and batch.support.size == 5 and batch.query.size == 4
    for i, t in enumerate(tasks):
        for whole, part in ((batch.support, t.support), (batch.query, t.query)):
            k = part.size
            assert whole.mask[i].tolist() == [True] * k + [False] * (whole.size - k)
            assert_close(whole.x[i, :k], part.x)
            assert_close(whole.y[i, :k], part.y)
            assert not bool(whole.x[i, k:].any()) and not bool(whole.y[i, k:].any())


def test_stacking_equal_tasks_pads_nothing_and_selecting_gives_them_back() -> None:
    tasks = [random(3, 2, s) for s in range(4)]
    batch = stack(tasks)
    assert bool(batch.support.mask.all())
    for i, t in enumerate(tasks):
        for a, b in zip((*select(batch, i).support, *select(batch, i).query), (*t.support, *t.query), strict=True):
            assert_close(a, b)
    assert select(batch, slice(1, 3)).batch_shape == (2,)


def test_batches_can_be_stacked_again() -> None:
    batch = stack([stack([random(3, 2, 0), random(1, 2, 1)]), stack([random(2, 4, 2), random(2, 1, 3)])])
    assert batch.batch_shape == (2, 2) and batch.support.size == 3 and batch.query.size == 4
    assert batch.query.mask.sum().item() == 2 + 2 + 4 + 1


def test_padding_images_keeps_their_shape() -> None:
    s = pad([examples(np.ones((n, 3, 4, 4)), np.zeros(n, dtype=int)) for n in (1, 2)])
    assert s.x.shape == (2, 2, 3, 4, 4) and s.y.dtype == torch.int64


# Sinusoids ----------------------------------------------------------------------------------------------------------


def test_sinusoids_are_finns() -> None:
    """y = A sin(x - p) with A in [0.1, 5], p in [0, pi], x in [-5, 5]; A and p found back by least squares."""
    t = Sinusoids(shots=10, queries=10).sample((200,), seeded(0))
    x, y = torch.cat([t.support.x, t.query.x], 1).double().squeeze(-1), torch.cat([t.support.y, t.query.y], 1).double()
    assert x.min() >= -5 and x.max() <= 5 and x.min() < -4.9 and x.max() > 4.9
    basis = torch.stack([x.sin(), x.cos()], -1)  # A sin(x - p) = A cos p sin x - A sin p cos x
    w = torch.linalg.lstsq(basis, y.unsqueeze(-1)).solution.squeeze(-1)
    assert_close((basis @ w.unsqueeze(-1)).squeeze(-1), y, rtol=0, atol=1e-5)
    amplitude, phase = w.norm(dim=-1), torch.atan2(-w[:, 1], w[:, 0])
    assert amplitude.min() > 0.09 and amplitude.max() < 5.01 and amplitude.max() > 4.8
    assert phase.min() > -1e-3 and phase.max() < np.pi + 1e-3 and phase.max() > 3.0


def test_sinusoids_repeat_from_a_seed_and_fill_any_shape() -> None:
    source = Sinusoids(shots=3, queries=4)
    a, b = source.sample((2, 5), seeded(1)), source.sample((2, 5), seeded(1))
    assert a.support.x.shape == (2, 5, 3, 1) and a.query.y.shape == (2, 5, 4)
    for one, other in zip((*a.support, *a.query), (*b.support, *b.query), strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert not torch.equal(a.support.x, source.sample((2, 5), seeded(2)).support.x)


def test_sinusoids_of_varying_shots_are_masked() -> None:
    t = Sinusoids(shots=6, queries=2, min_shots=1).sample((300,), seeded(0))
    counts = t.support.mask.sum(-1)
    assert set(counts.tolist()) == {1, 2, 3, 4, 5, 6}
    assert not bool(t.support.x[~t.support.mask].any()) and not bool(t.support.y[~t.support.mask].any())
    assert bool(t.query.mask.all())


def test_a_sampled_batch_passes_the_checks_of_examples() -> None:
    """What sources build without checks is what the checks would let through."""
    t = Sinusoids(shots=3, queries=4).sample((2,), seeded(0))
    for s in (t.support, t.query):
        for a, b in zip(examples(*s), s, strict=True):
            assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"shots": -1}, {"queries": 0}, {"shots": 3, "min_shots": 4}, {"min_shots": -1}])
def test_impossible_sinusoids_are_refused(options) -> None:
    with pytest.raises(ValueError, match="got"):
        Sinusoids(**options)


def test_sinusoids_train_a_model() -> None:
    """A few steps of the bound on sines: the numbers go up."""
    model = cases.build(next(c for c in cases.MODELS if c.name == "gp-vib ExactSites Gaussian"), dtype=torch.float32)
    model.prior.network.body.layers[0] = type(model.prior.network.body.layers[0])(1, cases.WIDTHS[0])
    source, optimiser = Sinusoids(), torch.optim.Adam(model.parameters(), lr=1e-2)
    values = []
    for step in range(60):
        optimiser.zero_grad()
        value = vib(model, source.sample((8,), seeded(0, step)), beta=1.0).value.mean()
        (-value).backward()
        optimiser.step()
        values.append(value.item())
    assert np.mean(values[-10:]) > np.mean(values[:10]) + 10
