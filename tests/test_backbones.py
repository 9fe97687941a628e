"""Layers and backbones: sizes, starts, weights a task or a repeat, and every method on a small Conv4."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from metavib import methods
from metavib.encoders import Descent, SimplifiedSites
from metavib.fast.activations import _Rectify
from metavib.kernels import BNCosine
from metavib.kernels import Linear as LinearKernel
from metavib.likelihoods import Softmax
from metavib.model import Model
from metavib.networks import MLP, Backbone, Conv4, Pointwise, ResNet12, StridedConv4
from metavib.networks.conv import NORMS
from metavib.networks.embedded import Embedded
from metavib.networks.layers import Conv2d, Linear
from metavib.networks.norm import ENCODINGS, UNION, TaskNorm
from metavib.networks.repeats import stack, unstack
from metavib.networks.tuned import Tuned
from metavib.networks.whitened import Whitened, WithUnits
from metavib.objective import vib
from metavib.tasks.inputs import Inputs
from metavib.tasks.task import Examples, Task, select

SIDE = 16
CASES: dict[str, Callable[[str], Backbone]] = {
    "Conv4": lambda norm: Conv4(2, SIDE, width=3, norm=norm),
    "Conv4 deeper": lambda norm: Conv4(2, SIDE, width=3, norm=norm, extra=1),
    "Conv4 two poolings": lambda norm: Conv4(2, SIDE, width=3, norm=norm, poolings=2),
    "StridedConv4": lambda norm: StridedConv4(2, width=3, norm=norm),
    "ResNet12": lambda norm: ResNet12(2, widths=(2, 3, 3, 4), norm=norm),
    "Pointwise": lambda norm: Pointwise(nn.Sequential(nn.Flatten(), nn.Linear(2 * SIDE**2, 4), nn.Tanh()), 4),
    "MLP": lambda norm: Flat(MLP(2 * SIDE**2, (5, 4))),
    "Embedded": lambda norm: Flat(Embedded(2 * SIDE**2, (4,))),
    "Tuned": lambda norm: Tuned(2, (2, 3, 3, 4), view=20, mirror=True),
    "Whitened": lambda norm: Flat(Whitened(2 * SIDE**2, rank=4, reach=3.0)),
    "WithUnits": lambda norm: Flat(WithUnits(2 * SIDE**2, units=3, rank=4, reach=3.0)),
}
PLAIN = ("Pointwise", "MLP", "Embedded", "Tuned", "Whitened", "WithUnits")
ONE_PASS = [norm for norm in NORMS if norm != UNION]  # a union takes sets of its own: tests/test_union.py
ALL = [(name, norm) for name in CASES for norm in (ONE_PASS if name not in PLAIN else ["none"])]


class Flat(Backbone):
    """A network of rows on flattened images, so that all cases take the same inputs."""

    pointwise = True

    def __init__(self, body: Backbone) -> None:
        super().__init__()
        self.body, self.features = body, body.features

    def forward(self, inputs: Inputs) -> Tensor:
        return self.body(inputs._replace(x=inputs.x.flatten(-3)))


def build(name: str, norm: str = "none", seed: int = 0) -> Backbone:
    torch.manual_seed(seed)
    network = CASES[name](norm).double()
    for module in network.modules():  # off the start, where batch-norm's scale and shift are trivial
        if isinstance(module, TaskNorm):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.3)
            nn.init.normal_(module.running_mean, 0, 0.3)
    return network


def images(*shape: int, n: int = 3, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, 2, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return Inputs(x, torch.ones(shape, dtype=torch.bool), n)


def at(inputs: Inputs, index: int | tuple[int, ...]) -> Inputs:
    return Inputs(inputs.x[index], inputs.mask[index], inputs.n)


def own_weights(network: nn.Module, *lead: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: p.detach() + 0.2 * torch.randn(*lead, *p.shape, generator=generator, dtype=p.dtype)
        for name, p in network.named_parameters()
    }


def test_no_backbone_is_missing_from_the_cases() -> None:
    """Of the networks: the features of a hierarchical prior, which are not trained, are in tests/test_groups.py."""
    tested = {type(m) for name in CASES for m in CASES[name]("none").modules()}
    assert {c for c in Backbone.__subclasses__() if c.__module__.startswith("metavib.networks")} <= tested


# --- contracts, for every backbone ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_features_have_the_size_announced_and_gradients_reach_every_parameter(name: str, norm: str) -> None:
    network, inputs = build(name, norm), images(2, 5)
    phi = network(inputs)
    assert phi.shape == (2, 5, network.features)
    (phi * torch.randn_like(phi)).sum().backward()
    # A bias that batch-norm takes away again has a gradient too, zero but for rounding.
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())


@pytest.mark.parametrize(("name", "norm"), ALL)
@pytest.mark.parametrize("training", [True, False])
def test_pointwise_says_whether_a_point_sees_the_others(name: str, norm: str, training: bool) -> None:
    network, inputs = build(name, norm).train(training), images(6)
    alone = torch.cat([network(Inputs(inputs.x[i : i + 1], inputs.mask[i : i + 1], 0)) for i in range(6)])
    assert network.pointwise is torch.allclose(network(inputs), alone, atol=1e-10)


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_batched_tasks_are_tasks_one_by_one(name: str, norm: str) -> None:
    network, inputs = build(name, norm), images(2, 2, 5)
    phi = network(inputs)
    for index in ((0, 0), (0, 1), (1, 0), (1, 1)):
        torch.testing.assert_close(phi[index], network(at(inputs, index)))


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_masked_points_change_nothing(name: str, norm: str) -> None:
    network, inputs = build(name, norm), images(6)
    mask = torch.tensor([True, False, True, True, True, False])
    phi = network(Inputs(inputs.x, mask, 3))
    torch.testing.assert_close(phi[mask], network(Inputs(inputs.x[mask], mask[mask], 2)))


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_weights_of_its_own_for_each_task_are_each_tasks_weights(name: str, norm: str) -> None:
    """Also with samples of weights before the tasks, `(samples, tasks, ...)`, over inputs shared by the samples."""
    network, inputs = build(name, norm), images(3, 5)
    weights = own_weights(network, 3)
    phi = functional_call(network, weights, (inputs,))
    for t in range(3):
        own = {key: w[t] for key, w in weights.items()}
        torch.testing.assert_close(phi[t], functional_call(network, own, (at(inputs, t),)))
    drawn = own_weights(network, 2, 3)
    copies = Inputs(inputs.x.expand(2, *inputs.x.shape), inputs.mask.expand(2, 3, 5), inputs.n)
    phi = functional_call(network, drawn, (copies,))
    for s in range(2):
        own = {key: w[s] for key, w in drawn.items()}
        torch.testing.assert_close(phi[s], functional_call(network, own, (inputs,)))


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_weights_a_repeat_serve_all_its_tasks(name: str, norm: str) -> None:
    network, inputs = build(name, norm), images(2, 3, 5)
    weights = own_weights(network, 2, 1)
    phi = functional_call(network, weights, (inputs,))
    for r in range(2):
        own = {key: w[r, 0] for key, w in weights.items()}
        torch.testing.assert_close(phi[r], functional_call(network, own, (at(inputs, r),)))


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_second_order_gradients_are_those_of_finite_differences(name: str, norm: str) -> None:
    """One inner step on a network with weights a task, differentiated through, along a random direction."""
    network, inputs = build(name, norm), images(2, 4)
    # Off the start: with all biases 0, patches of dead units lie exactly on the kink of ReLU.
    theta = {key: w[0] for key, w in own_weights(network, 1).items()}
    generator = torch.Generator().manual_seed(2)
    direction = {key: torch.randn(p.shape, generator=generator, dtype=p.dtype) for key, p in theta.items()}
    target = torch.randn(2, 4, network.features, generator=generator, dtype=torch.float64)

    def loss(psi: dict[str, Tensor]) -> Tensor:
        return (functional_call(network, psi, (inputs,)) - target).square().mean()

    def outer(step: Tensor) -> Tensor:
        psi = {key: (p + step * direction[key]).expand(2, *p.shape) for key, p in theta.items()}
        slope = torch.func.grad(loss)(psi)
        return loss({key: psi[key] - 0.01 * slope[key] for key in psi})

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (analytic,) = torch.autograd.grad(outer(step), step)
    h = 1e-7  # small, lest ReLU's kinks come between
    numeric = (outer(torch.tensor(h, dtype=torch.float64)) - outer(torch.tensor(-h, dtype=torch.float64))) / (2 * h)
    torch.testing.assert_close(analytic, numeric, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_bfloat16_autocast_is_near_float32(name: str, norm: str) -> None:
    network, inputs = build(name, norm).float(), images(6)
    inputs = inputs._replace(x=inputs.x.float())
    exact = network(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        phi = network(inputs)
    phi.float().sum().backward()
    assert bool(all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None))
    assert float((phi.float() - exact).detach().norm() / exact.detach().norm()) < 0.15


@pytest.mark.parametrize(("name", "norm"), ALL)
def test_nothing_depends_on_values_but_values(name: str, norm: str) -> None:
    """On the meta device, where there are none to look at: so the host need never wait for an accelerator."""
    network = build(name, norm).to("meta")
    inputs = images(2, 5)
    phi = network(Inputs(inputs.x.to("meta"), inputs.mask.to("meta"), inputs.n))
    phi.sum().backward()
    assert phi.is_meta and phi.shape == (2, 5, network.features)


# --- one encoding, a whole network ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Conv4", "StridedConv4", "ResNet12"])
def test_support_and_point_is_one_network_a_query(name: str) -> None:
    """All queries at once, or one network call for each of them beside the support: the same features."""
    network, inputs = build(name, "support+point"), images(7)
    phi = network(inputs)
    support = Inputs(inputs.x[:3], inputs.mask[:3], 3)
    torch.testing.assert_close(phi[:3], network(support))
    for i in range(3, 7):
        rows = [0, 1, 2, i]
        torch.testing.assert_close(phi[i], network(Inputs(inputs.x[rows], inputs.mask[rows], 3))[-1])


def test_conv4_support_and_point_against_a_slow_network() -> None:
    """Conv4 written out with explicit statistics, one query at a time beside the support."""
    network, inputs = build("Conv4", "support+point"), images(6)
    assert isinstance(network, Conv4)
    phi = network(inputs)

    def normalise(h: Tensor, values: Tensor, norm: TaskNorm) -> Tensor:
        mean = values.mean((0, 2, 3), keepdim=True)
        var = (values - mean).square().mean((0, 2, 3), keepdim=True)
        scale, shift = norm.weight[:, None, None], norm.bias[:, None, None]  # type: ignore[index]
        return (h - mean) / (var + norm.eps).sqrt() * scale + shift

    for i in range(3, 6):
        s, q = inputs.x[:3], inputs.x[i : i + 1]
        for layer in network.layers:
            s, q = (F.conv2d(h, layer.conv.weight, layer.conv.bias, padding=1) for h in (s, q))
            s, q = normalise(s, s, layer.norm), normalise(q, torch.cat([s, q]), layer.norm)
            s, q = (F.max_pool2d(h.relu(), 2) for h in (s, q))
        torch.testing.assert_close(phi[i], q.flatten())
        torch.testing.assert_close(phi[:3], s.flatten(1))


@pytest.mark.parametrize(("name", "poolings"), [("Conv4", 4), ("Conv4 two poolings", 2)])
def test_conv4_is_the_plain_network_of_pytorch(name: str, poolings: int) -> None:
    """In training and at test, with running averages, under `running`."""
    network = build(name, "running")
    assert isinstance(network, Conv4)
    plain = nn.Sequential()
    for i, layer in enumerate(network.layers):
        conv = nn.Conv2d(layer.conv.weight.shape[1], 3, 3, padding=1, bias=False).double()
        norm = nn.BatchNorm2d(3).double()
        conv.load_state_dict(layer.conv.state_dict())
        norm.load_state_dict(layer.norm.state_dict(), strict=False)
        plain.extend([conv, norm, nn.ReLU(), *([nn.MaxPool2d(2)] if i < poolings else [])])
    plain.append(nn.Flatten())
    inputs = images(6)
    torch.testing.assert_close(network(inputs), plain(inputs.x))
    torch.testing.assert_close(network.eval()(inputs), plain.eval()(inputs.x))


# --- sizes and starts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "side", "features", "parameters"),
    [
        (lambda: Conv4(3, 84), 84, 1600, 113_088 - 4 * 64),
        (lambda: Conv4(1, 28), 28, 64, 111_936 - 4 * 64),
        (lambda: Conv4(1, 28, poolings=2), 28, 64 * 7**2, 111_936 - 4 * 64),
        (lambda: Conv4(3, 84, width=32), 84, 800, 28_896 - 4 * 32),
        (lambda: StridedConv4(1), 28, 64, 111_936 - 4 * 64),
        (lambda: Conv4(1, 28, norm="none"), 28, 64, 111_424),
        (lambda: Conv4(1, 28, norm="none", extra=1), 28, 64, 111_424 + 4 * 36_928),
        (lambda: ResNet12(3), 84, 512, 7_996_800),
    ],
)
def test_sizes_are_those_of_the_literature(
    network: Callable[[], Backbone], side: int, features: int, parameters: int
) -> None:
    """Conv4's less its biases, which batch-norm would take away."""
    backbone = network()
    channels = next(backbone.parameters()).shape[1]
    with torch.no_grad():
        phi = backbone(Inputs(torch.zeros(2, channels, side, side), torch.ones(2, dtype=torch.bool), 1))
    assert phi.shape == (2, features) and backbone.features == features
    assert sum(p.numel() for p in backbone.parameters()) == parameters


def test_convolutions_start_as_the_protocol_says() -> None:
    torch.manual_seed(0)
    for layer, kernel_size, outputs in ((Conv2d(64, 64), 3, 64), (Conv2d(128, 256, 1), 1, 256)):
        expected = sqrt(2 / (kernel_size**2 * outputs))
        assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.02)
        assert abs(float(layer.weight.detach().mean())) < 0.02 * expected
        assert layer.bias is not None and not layer.bias.any()


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3), (2, 1), (1, 3)])
@pytest.mark.parametrize("bias_lead", [(), (3,), (2, 1)])
def test_layers_broadcast_weights_against_tasks(lead: tuple[int, ...], bias_lead: tuple[int, ...]) -> None:
    """Any leading dimensions of weight, bias and points that broadcast, against a loop over the batch."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weight, bias, x = draw(*lead, 4, 2, 3, 3), draw(*bias_lead, 4), draw(2, 3, 5, 2, 6, 6)
    conv = Conv2d(2, 4, stride=2, padding=1).double()
    y = functional_call(conv, {"weight": weight, "bias": bias}, (x,))
    linear = Linear(18, 4).double()
    z = functional_call(linear, {"weight": weight.flatten(-3), "bias": bias}, (x.flatten(3)[..., :18],))
    for r in range(2):
        for t in range(3):
            w, b = weight.expand(2, 3, 4, 2, 3, 3)[r, t], bias.expand(2, 3, 4)[r, t]
            torch.testing.assert_close(y[r, t], F.conv2d(x[r, t], w, b, stride=2, padding=1))
            torch.testing.assert_close(z[r, t], F.linear(x[r, t].flatten(1)[:, :18], w.flatten(1), b))


def test_layers_take_no_points() -> None:
    """An empty support is a task like any other, with shared weights and with weights a task."""
    conv, linear = Conv2d(2, 4), Linear(7, 4)
    assert conv(torch.zeros(3, 0, 2, 6, 6)).shape == (3, 0, 4, 4, 4)
    assert linear(torch.zeros(3, 0, 7)).shape == (3, 0, 4)
    for layer, x, shape in ((conv, torch.zeros(3, 0, 2, 6, 6), (4, 4, 4)), (linear, torch.zeros(3, 0, 7), (4,))):
        weights = {name: p.expand(3, *p.shape) for name, p in layer.named_parameters()}
        assert functional_call(layer, weights, (x,)).shape == (3, 0, *shape)


@pytest.mark.parametrize("variance", [2.0, 1 / 3])
def test_an_mlp_starts_with_weights_of_a_variance(variance: float) -> None:
    torch.manual_seed(0)
    for layer in MLP(50, (400, 400), variance=variance).layers:
        assert float(layer.weight.detach().var() * layer.weight.shape[-1]) == pytest.approx(variance, rel=0.05)
    with pytest.raises(ValueError, match="must be positive; got 0"):
        MLP(50, variance=0.0)


def test_dropout_acts_while_training_only() -> None:
    torch.manual_seed(0)
    network = MLP(10, (200,), dropout=0.5)
    x = torch.randn(30, 10)
    inputs = Inputs(x, torch.ones(30, dtype=torch.bool), 3)
    kept = network.eval()(inputs)
    torch.testing.assert_close(kept, network.layers[0](x).relu())
    dropped = network.train()(inputs)
    active = kept > 0
    assert float((dropped[active] == 0).float().mean()) == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(dropped[dropped > 0], 2 * kept[dropped > 0])


def test_batch_norm_inside_a_given_module_never_mixes_points() -> None:
    body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(4))
    body(torch.zeros(2, 2, SIDE, SIDE))
    network = Pointwise(body, 4).double().train()
    averages = network.module[1].running_mean.clone()
    inputs = images(4)
    torch.testing.assert_close(network(inputs)[:2], network(Inputs(inputs.x[:2], inputs.mask[:2], 0)))
    assert torch.equal(network.module[1].running_mean, averages) and network.module[0].training


def test_errors_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match="at least 16 pixels a side; got 12"):
        Conv4(1, 12)
    with pytest.raises(ValueError, match="poolings must be between 0 and the 4 layers; got 5"):
        Conv4(1, 28, poolings=5)
    with pytest.raises(ValueError, match="none, running, transductive, support\\+point, union; got 'batch'"):
        Conv4(1, 28, norm="batch")
    with pytest.raises(ValueError, match="0 or more; got -1"):
        StridedConv4(1, extra=-1)
    with pytest.raises(ValueError, match=r"must turn 4 points .* into \(4, 9\); the module gave \(4, 512\)"):
        Pointwise(nn.Flatten(), 9)(images(4))


# --- through the methods ----------------------------------------------------------------------------------------------

METHODS: dict[str, Callable[[Backbone, str], Model]] = {
    "gp_vib": lambda b, norm: methods.gp_vib(b, LinearKernel(bias=True), SimplifiedSites(), Softmax(3, samples=4)),
    "gp_vib bncosine": lambda b, norm: methods.gp_vib(
        b, BNCosine(b.features, norm=norm), SimplifiedSites(), Softmax(3, samples=4)
    ),
    "maml": lambda b, norm: methods.maml(b, Softmax(3), descent=Descent(steps=2, rate=0.05)),
    "maml first order": lambda b, norm: methods.maml(
        b, Softmax(3), descent=Descent(steps=2, rate=0.05, first_order=True)
    ),
    "stochastic_maml": lambda b, norm: methods.stochastic_maml(
        b, Softmax(3), descent=Descent(steps=1, rate=0.05), samples=2
    ),
    "gp_maml": lambda b, norm: methods.gp_maml(
        b,
        LinearKernel(bias=True),
        SimplifiedSites(),
        Softmax(3, samples=4),
        descent=Descent(steps=1, rate=0.05),
        beta=0.1,
    ),
}


def task(*lead: int, seed: int = 0) -> Task:
    generator = torch.Generator().manual_seed(seed)

    def part(size: int) -> Examples:
        x = torch.randn(*lead, size, 1, SIDE, SIDE, generator=generator)
        y = torch.arange(size).remainder(3).expand(*lead, size)
        return Examples(x, y, torch.ones(*lead, size, dtype=torch.bool))

    return Task(part(3), part(6))


def bound(model: Model, task: Task, noise: Tensor | torch.Generator) -> Tensor:
    return vib(model, task, beta=0.0 if model.dirac else 0.1, noise=noise).value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", ENCODINGS)
def test_every_method_learns_under_every_encoding(method: str, norm: str) -> None:
    """The bound is finite, so are all gradients, and running averages learn where there are any."""
    torch.manual_seed(0)
    model = METHODS[method](Conv4(1, SIDE, width=4, norm=norm), norm)
    value = bound(model, task(2), torch.Generator().manual_seed(0))
    value.sum().backward()
    assert value.shape == (2,) and bool(value.isfinite().all())
    for name, p in model.named_parameters():
        assert p.grad is not None and bool(p.grad.isfinite().all()), name
    averages = [b for name, b in model.named_buffers() if name.endswith("running_mean")]
    assert averages and all(bool(b.any()) is (norm == "running") for b in averages)


@pytest.mark.parametrize("method", ["gp_vib", "maml", "gp_maml"])
@pytest.mark.parametrize("norm", ENCODINGS)
def test_tasks_in_a_batch_have_their_own_bounds(method: str, norm: str) -> None:
    torch.manual_seed(0)
    model = METHODS[method](Conv4(1, SIDE, width=4, norm=norm), norm).double()
    tasks = task(3).to(torch.float64)
    noise = torch.randn(4, 1, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = bound(model, tasks, noise)
    for t in range(3):
        torch.testing.assert_close(together[t], bound(model, select(tasks, t), noise[:, 0]))


@pytest.mark.parametrize("method", ["gp_vib bncosine", "maml", "gp_maml"])
@pytest.mark.parametrize("norm", ENCODINGS)
def test_stacked_repeats_train_as_each_alone(method: str, norm: str) -> None:
    """Bounds, gradients and running averages of two repeats side by side."""
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(METHODS[method](Conv4(1, SIDE, width=4, norm=norm), norm).double())
    stacked = stack(models)
    tasks = task(2, 3).to(torch.float64)
    noise = torch.randn(4, 1, 1, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = bound(stacked, tasks, noise)
    together.sum().backward()
    for r, model in enumerate(models):
        alone = bound(model, select(tasks, r), noise[:, 0])
        alone.sum().backward()
        torch.testing.assert_close(together[r], alone)
        for (name, p), q in zip(model.named_parameters(), stacked.parameters(), strict=True):
            torch.testing.assert_close(q.grad[r, 0], p.grad, rtol=1e-6, atol=1e-8, msg=name)  # type: ignore[index]
        for (name, p), q in zip(model.named_buffers(), unstack(stacked, r).buffers(), strict=True):
            torch.testing.assert_close(q, p, msg=name)


@pytest.mark.parametrize(("norm", "depends"), [("running", False), ("support+point", False), ("transductive", True)])
@pytest.mark.parametrize("method", ["gp_vib", "maml", "gp_maml"])
def test_predictions_at_test_depend_on_other_queries_under_transductive_only(
    method: str, norm: str, depends: bool
) -> None:
    torch.manual_seed(0)
    model = METHODS[method](Conv4(1, SIDE, width=4, norm=norm), norm).double().eval()
    first = task().to(torch.float64)
    second = first._replace(query=Examples(*(t.clone() for t in first.query)))
    second.query.x[1:] += 1
    before, after = (model(t, torch.Generator().manual_seed(0)).mean[0] for t in (first, second))
    assert torch.allclose(before, after, atol=1e-10) is not depends


def test_rectify_is_relu_with_its_derivatives() -> None:
    """The form for a compiler: values, gradient, and the gradient of a gradient's norm."""
    x = torch.randn(50, dtype=torch.float64)
    x[:5] = 0.0
    found = []
    for function in (_Rectify.apply, torch.relu):
        z = x.clone().requires_grad_()
        y = function(z)
        (first,) = torch.autograd.grad((y**3).sum(), z, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), z)
        found.append((y, first, second))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
