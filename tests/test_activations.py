"""Max-pooling from whole-tensor comparisons is PyTorch's own, to the last bit."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from metavib.fast.activations import max_pool_by_comparison as max_pool


def with_ties(seed: int, *shape: int) -> Tensor:
    """Small whole numbers, so that windows with several largest entries are common."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).double()


@given(seed=st.integers(0, 2**31), h=st.integers(2, 9), w=st.integers(2, 9))
def test_values_and_gradients_are_pytorchs_even_at_ties_and_odd_edges(seed: int, h: int, w: int) -> None:
    x = with_ties(seed, 2, 3, h, w).requires_grad_()
    g = torch.randn(2, 3, h // 2, w // 2, dtype=torch.float64)
    mine, theirs = max_pool(x), F.max_pool2d(x, 2)
    assert torch.equal(mine, theirs)
    assert torch.equal(*(torch.autograd.grad(y, x, g)[0] for y in (mine, theirs)))
    assert torch.equal(max_pool(x.detach()), theirs)


@pytest.mark.parametrize("size", [(4, 6), (5, 7)])
def test_second_derivatives_are_right(size: tuple[int, int]) -> None:
    """What second-order MAML needs: pooling is linear in the gradient it hands on."""
    x = torch.randn(2, *size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(max_pool, x)
    assert torch.autograd.gradgradcheck(lambda x: max_pool(x).square(), x)


def test_inside_a_transform_too() -> None:
    """`torch.func.grad` of a gradient, as the inner loop takes it; ties are broken there as elsewhere."""
    x = with_ties(0, 3, 5, 6)

    def norm_of_gradient(pool, x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: pool(x).pow(3).sum())(x).square().sum()

    mine, theirs = (
        torch.func.grad(lambda x, p=pool: norm_of_gradient(p, x))(x)
        for pool in (max_pool, lambda x: F.max_pool2d(x, 2))
    )
    torch.testing.assert_close(mine, theirs)


def test_any_leading_dimensions() -> None:
    x = torch.randn(2, 1, 3, 4, 6, 8)
    assert torch.equal(max_pool(x), F.max_pool2d(x.flatten(0, 2), 2).reshape(2, 1, 3, 4, 3, 4))
