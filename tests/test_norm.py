"""Batch-norm encodings against their definitions, point by point, and against PyTorch's batch-norm."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from metavib.networks.norm import ENCODINGS, TaskNorm
from metavib.tasks.inputs import Inputs


def make(encoding: str, channels: int = 3, *, seed: int = 0, affine: bool = True) -> TaskNorm:
    norm = TaskNorm(channels, encoding=encoding, affine=affine).double()
    generator = torch.Generator().manual_seed(seed)
    for t in (*norm.parameters(), norm.running_mean):
        t.data = torch.randn(t.shape, generator=generator, dtype=t.dtype)
    norm.running_var = torch.rand(channels, generator=generator, dtype=torch.float64) + 0.5
    return norm


def draw(*shape: int, seed: int = 1) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 3


def full(x: Tensor, batch: int, n: int) -> Inputs:
    return Inputs(x, torch.ones(x.shape[: batch + 1], dtype=torch.bool), n)


def definition(norm: TaskNorm, x: np.ndarray, mask: np.ndarray, n: int) -> np.ndarray:
    """One task `(p, channels, *positions)`, a real point and channel at a time, in the words of the module."""
    y = np.zeros_like(x)
    for i in np.flatnonzero(mask):
        for c in range(x.shape[1]):
            if norm.encoding == "running" and not norm.training:
                mean, var = norm.running_mean[c].item(), norm.running_var[c].item()
            else:
                chosen = [j for j in range(len(x)) if mask[j]]
                if norm.encoding == "support+point":
                    chosen = [j for j in chosen if j < n] + ([i] if i >= n else [])
                values = np.concatenate([x[j, c].ravel() for j in chosen])
                mean, var = values.mean(), values.var()
            y[i, c] = (x[i, c] - mean) / np.sqrt(var + norm.eps)
            if norm.weight is not None and norm.bias is not None:
                y[i, c] = y[i, c] * norm.weight[c].item() + norm.bias[c].item()
    return y


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("training", [True, False])
@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(0, 4),
    v=st.integers(1, 4),
    positions=st.lists(st.integers(1, 3), max_size=3),
    affine=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_each_encoding_is_its_definition(
    encoding: str, training: bool, n: int, v: int, positions: list[int], affine: bool, seed: int
) -> None:
    """Any number of support and query points, some masked, and any number of positions, none included."""
    norm = make(encoding, affine=affine).train(training)
    x = draw(n + v, 3, *positions, seed=seed)
    mask = torch.rand(n + v, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[-1] = True
    real = mask.numpy()
    expected = definition(norm, x.numpy(), real, n)
    actual = norm(x, Inputs(x, mask, n)).detach().numpy()
    np.testing.assert_allclose(actual[real], expected[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("encoding", "training", "depends"),
    [
        ("running", True, True),
        ("running", False, False),
        ("transductive", True, True),
        ("transductive", False, True),
        ("support+point", True, False),
        ("support+point", False, False),
    ],
)
def test_a_query_point_depends_on_the_others_only_where_the_encoding_says(
    encoding: str, training: bool, depends: bool
) -> None:
    norm = make(encoding).train(training)
    x = draw(6, 3, 2, 2)
    changed = x.clone()
    changed[4:] = draw(2, 3, 2, 2, seed=9)
    before, after = norm(x, full(x, 0, 3))[:4], norm(changed, full(changed, 0, 3))[:4]
    assert torch.equal(before, after) is not depends
    assert norm.pointwise is (encoding == "running" and not training)


def test_without_support_a_point_is_normalised_by_itself() -> None:
    norm = make("support+point", affine=False)
    x = draw(4, 3, 5, 5)
    torch.testing.assert_close(norm(x, full(x, 0, 0)), nn.InstanceNorm2d(3)(x))


def test_running_is_batch_norm_of_pytorch_for_one_task() -> None:
    """Outputs, gradients and running averages over several steps of training, then outputs at test."""
    ours, theirs = TaskNorm(3, encoding="running").double(), nn.BatchNorm2d(3).double()
    for step in range(4):
        x = draw(7, 3, 4, 4, seed=step).requires_grad_()
        y, z = ours(x, full(x, 0, 2)), theirs(x)
        torch.testing.assert_close(y, z)
        weights = draw(*y.shape, seed=50 + step)
        for a, b in zip(
            torch.autograd.grad((y * weights).sum(), (x, *ours.parameters())),
            torch.autograd.grad((z * weights).sum(), (x, *theirs.parameters())),
            strict=True,
        ):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
    x = draw(7, 3, 4, 4)
    torch.testing.assert_close(ours.eval()(x, full(x, 0, 2)), theirs.eval()(x))


def test_float32_statistics_survive_a_large_mean() -> None:
    """The variance is taken about the mean, so an offset a thousand times the spread costs little precision."""
    norm = TaskNorm(3, encoding="transductive", affine=False)
    x = torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm(x + 1000, full(x, 0, 4)), norm(x, full(x, 0, 4)), atol=2e-3, rtol=0)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tasks_in_a_batch_are_tasks_one_by_one(encoding: str) -> None:
    norm = make(encoding)
    x = draw(2, 3, 5, 3, 2, 2)
    mask = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(3)) < 0.8
    mask[..., 0] = mask[..., -1] = True
    together = norm(x, Inputs(x, mask, 2))
    for r in range(2):
        for t in range(3):
            torch.testing.assert_close(together[r, t], norm(x[r, t], Inputs(x[r, t], mask[r, t], 2)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_masked_points_might_as_well_not_be_there(encoding: str) -> None:
    norm = make(encoding)
    x = draw(7, 3, 2, 2)
    mask = torch.tensor([True, True, False, True, False, True, True])
    alone = norm(x[mask], full(x[mask], 0, 2))
    torch.testing.assert_close(norm(x, Inputs(x, mask, 3))[mask], alone)


def test_masked_points_are_left_out_of_running_averages() -> None:
    a, b = make("running"), make("running")
    x = draw(7, 3, 2, 2)
    mask = torch.tensor([True, True, False, True, False, True, True])
    a(x, Inputs(x, mask, 3))
    b(x[mask], full(x[mask], 0, 2))
    torch.testing.assert_close(a.running_mean, b.running_mean)
    torch.testing.assert_close(a.running_var, b.running_var)


def test_running_averages_take_the_mean_over_tasks() -> None:
    batched = make("running")
    x = draw(4, 5, 3, 2, 2)
    batched(x, full(x, 1, 2))
    alone = []
    for t in range(4):
        alone.append(make("running"))
        alone[-1](x[t], full(x[t], 0, 2))
    torch.testing.assert_close(batched.running_mean, torch.stack([a.running_mean for a in alone]).mean(0))
    torch.testing.assert_close(batched.running_var, torch.stack([a.running_var for a in alone]).mean(0))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("training", [True, False])
def test_stacked_repeats_are_repeats_one_by_one(encoding: str, training: bool) -> None:
    """Parameters and averages `(repeats, 1, channels)`: outputs and what the averages learn."""
    norms = [make(encoding, seed=r).train(training) for r in range(2)]
    stacked = make(encoding).train(training)
    for name in ("weight", "bias"):
        setattr(stacked, name, nn.Parameter(torch.stack([getattr(m, name).detach() for m in norms]).unsqueeze(1)))
    for name in ("running_mean", "running_var"):
        setattr(stacked, name, torch.stack([getattr(m, name) for m in norms]).unsqueeze(1))
    x = draw(2, 3, 5, 3, 2, 2)
    y = stacked(x, full(x, 2, 2))
    for r, norm in enumerate(norms):
        torch.testing.assert_close(y[r], norm(x[r], full(x[r], 1, 2)))
        torch.testing.assert_close(stacked.running_mean[r, 0], norm.running_mean)
        torch.testing.assert_close(stacked.running_var[r, 0], norm.running_var)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_task_may_have_its_own_scale_and_shift(encoding: str) -> None:
    norm = make(encoding)
    x, weights = draw(4, 5, 3, 2, 2), {"weight": draw(4, 3, seed=2), "bias": draw(4, 3, seed=3)}
    y = functional_call(norm, weights, (x, full(x, 1, 2)))
    for t in range(4):
        alone = functional_call(norm, {name: w[t] for name, w in weights.items()}, (x[t], full(x[t], 0, 2)))
        torch.testing.assert_close(y[t], alone)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("positions", [(), (2,)])
def test_first_and_second_derivatives_are_those_of_finite_differences(
    encoding: str, positions: tuple[int, ...]
) -> None:
    norm = make(encoding)
    mask = torch.tensor([True, False, True, True])
    x = draw(4, 3, *positions).requires_grad_()
    assert norm.weight is not None and norm.bias is not None

    def normalise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional_call(norm, {"weight": weight, "bias": bias}, (x, Inputs(x, mask, 2)))

    arguments = (x, norm.weight, norm.bias)
    assert torch.autograd.gradcheck(normalise, arguments)
    assert torch.autograd.gradgradcheck(normalise, arguments)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_formula_for_compilers_is_the_same(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = make(encoding), draw(5, 3, 2, 2).requires_grad_()
    weights = draw(5, 3, 2, 2, seed=4)

    def outcome() -> tuple[Tensor, Tensor]:
        y = norm(x, full(x, 0, 2))
        (gradient,) = torch.autograd.grad((y * weights).square().sum(), x)
        return y, gradient

    lean = outcome()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(outcome(), lean)


def test_running_averages_learn_outside_transforms_only() -> None:
    """The inner steps of a gradient encoder run inside `torch.func.grad`; only its final pass counts."""
    norm = make("running")
    x = draw(5, 3, 2, 2)
    mean, var = norm.running_mean.clone(), norm.running_var.clone()

    def inner(weight: Tensor) -> Tensor:
        return functional_call(norm, {"weight": weight}, (x, full(x, 0, 5))).square().sum()

    torch.func.grad(inner)(norm.weight)
    assert torch.equal(norm.running_mean, mean) and torch.equal(norm.running_var, var)
    inner(norm.weight)
    assert not torch.equal(norm.running_mean, mean) and not torch.equal(norm.running_var, var)
    assert not norm.running_mean.requires_grad


def test_running_averages_rest_at_test_and_under_the_other_encodings() -> None:
    for norm in (make("running").eval(), make("transductive"), make("support+point")):
        mean, var = norm.running_mean.clone(), norm.running_var.clone()
        x = draw(5, 3, 2, 2)
        norm(x, full(x, 0, 2))
        assert torch.equal(norm.running_mean, mean) and torch.equal(norm.running_var, var)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_half_precision_activations_have_float32_statistics(encoding: str) -> None:
    norm = TaskNorm(3, encoding=encoding)
    x = draw(6, 3, 4, 4).bfloat16().requires_grad_()
    y = norm(x, full(x, 0, 3))
    mean = norm.running_mean.clone()
    norm.running_mean.zero_()
    exact = norm(x.float(), full(x, 0, 3))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, exact.bfloat16())
    torch.testing.assert_close(mean, norm.running_mean, rtol=0, atol=0)
    y.square().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16 and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_memory_format_is_kept(encoding: str) -> None:
    norm = make(encoding)
    x = draw(6, 3, 4, 5)
    y = norm(x.to(memory_format=torch.channels_last), full(x, 0, 3))
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, norm(x, full(x, 0, 3)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_one_value_a_channel_or_no_point_at_all_is_finite(encoding: str) -> None:
    norm = make(encoding)
    for x, mask in (
        (draw(1, 3), torch.tensor([True])),
        (draw(2, 3, 1, 1), torch.tensor([False, False])),
        (draw(0, 3, 2, 2), torch.zeros(0, dtype=torch.bool)),
    ):
        y = norm(x, Inputs(x, mask, 0))
        assert y.shape == x.shape and bool(y.isfinite().all())
    assert bool(norm.running_mean.isfinite().all()) and bool(norm.running_var.isfinite().all())


def test_an_unknown_encoding_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="running, transductive, support\\+point, union; got 'batch'"):
        TaskNorm(3, encoding="batch")
