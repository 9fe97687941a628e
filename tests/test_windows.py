"""The first layer in one product: what convolution, batch-norm and max-pooling one after the other give."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from metavib.fast import windows
from metavib.fast.activations import max_pool
from metavib.networks.conv import NORMS, ConvNorm
from metavib.networks.norm import UNION
from metavib.tasks.inputs import Inputs


def of_each_task(layer: nn.Module, tasks: int) -> None:
    """Gives every task weights of its own."""
    for module in layer.modules():
        for name, p in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.randn(tasks, *p.shape, dtype=p.dtype)))


def everything(layer: ConvNorm, x: Tensor, inputs: Inputs, *, in_windows: bool) -> list[Tensor]:
    """Outputs, their derivative, a derivative of that, and running averages."""
    if layer.norm is not None:
        layer.norm.running_mean.zero_(), layer.norm.running_var.fill_(1)
    y = layer.pooled(x, inputs) if in_windows else max_pool(layer(x, inputs))
    parameters = list(layer.parameters())
    weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).cos()
    first = torch.autograd.grad((weights * y.square()).sum(), parameters, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), parameters)
    return [y, *first, *second, *(b.clone() for b in layer.buffers())]


@given(
    norm=st.sampled_from(NORMS),
    channels=st.integers(1, windows.CHANNELS),
    half=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    tasks=st.sampled_from([None, 1, 3]),
    own=st.booleans(),
    training=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_the_layers_one_after_the_other(
    norm: str, channels: int, half: tuple[int, int], tasks: int | None, own: bool, training: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = ConvNorm(channels, 5, norm=norm).double().train(training)
    for p in layer.parameters():
        nn.init.normal_(p)  # scales of both signs
    if own and tasks:
        of_each_task(layer, tasks)
    lead = () if tasks is None else (tasks,)
    x = 2 + torch.randn(*lead, 6, channels, 2 * half[0], 2 * half[1], dtype=torch.float64)
    mask = torch.ones(*lead, 6, dtype=torch.bool)
    mask[..., -1] = False
    inputs = Inputs(x, mask, 5 if norm == UNION else 3)  # a union is of the support with one query point
    assert windows.suit(x, layer.conv.weight)
    ours = everything(layer, x, inputs, in_windows=True)
    for mine, theirs in zip(ours, everything(layer, x, inputs, in_windows=False), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-7)


def test_flat_paper_does_not_cancel() -> None:
    """Characters are faint next to the white they are on: in float32 their variance must survive."""
    torch.manual_seed(0)
    x = 1000 + torch.randn(4, 1, 12, 12)
    layer = ConvNorm(1, 8, norm="running").train()
    layer.conv.weight.data -= layer.conv.weight.data.mean((-1, -2), keepdim=True)  # blind to paper, but at the border
    inner = x[..., 2:-2, 2:-2]
    a, w = windows.windows(inner), windows.placed(layer.conv.weight)
    _, var = windows.moments(a, w)
    exact = torch.nn.functional.conv2d(inner.double(), layer.conv.weight.double(), padding=1)
    np.testing.assert_allclose(var.detach(), exact.detach().var((-1, -2), correction=0), rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "side"), [((4, 5, 8, 8), 3), ((4, 1, 7, 8), 3), ((4, 1, 8, 9), 3), ((4, 1, 8, 8), 5)]
)
@pytest.mark.parametrize("training", [True, False])
def test_leaves_alone_what_it_cannot_do(shape: tuple[int, ...], side: int, training: bool) -> None:
    x = torch.randn(*shape)
    layer = ConvNorm(shape[-3], 4, side, norm="running").train(training)
    assert layer.norm is not None
    layer.norm.running_mean.normal_(), layer.norm.running_var.uniform_(0.5, 2)
    assert not windows.suit(x, layer.conv.weight)
    inputs = Inputs(x, torch.ones(4, dtype=torch.bool), 2)
    torch.testing.assert_close(layer.pooled(x, inputs), max_pool(layer(x, inputs)))


def test_images_that_want_a_gradient_go_the_usual_way() -> None:
    x = torch.randn(4, 1, 8, 8, requires_grad=True)
    layer = ConvNorm(1, 4, norm="running").train()
    layer.pooled(x, Inputs(x, torch.ones(4, dtype=torch.bool), 2)).sum().backward()
    assert x.grad is not None
