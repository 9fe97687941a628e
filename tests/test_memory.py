"""Memory, measured as the peak of live tensor bytes: inner steps and Monte Carlo samples, whose numbers stay."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import cases
import tiny
from benchmarks.measure import Counted, peak_bytes
from metavib import kernels
from metavib.encoders import Descent, ExactSites, SimplifiedSites
from metavib.fast import draws
from metavib.likelihoods import Gaussian, Softmax
from metavib.marginals import Normal
from metavib.methods import gp_maml, gp_vib, maml, stochastic_maml
from metavib.model import Model
from metavib.networks import MLP, Conv4
from metavib.networks.norm import ENCODINGS
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks import Task
from metavib.tasks.inputs import join, points

MB = 2**20


def ascent(model: Model, tasks: Task, *, beta: float = 0.0) -> Callable[[], None]:
    """A training step's forward and backward pass."""

    def step() -> None:
        model.zero_grad()
        vib(model.train(), tasks, beta=beta, noise=seeded(1)).value.mean().backward()

    return step


# The measure itself ---------------------------------------------------------------------------------------------------


def test_the_peak_is_of_tensors_that_live_at_one_time() -> None:
    """Counted by hand: views and in-place operations are free, what is dropped is given back."""
    old = torch.zeros(1000)

    def call() -> None:
        a = old + 1  # 1 live
        b = a * 2  # 2
        del a  # 1
        c = b.reshape(10, 100).T  # a view
        c.add_(1)
        d = torch.cat([b, b])  # 1 + 2
        del b, c, d
        torch.zeros(500)

    with Counted() as counted:
        call()
    assert (counted.peak, counted.live, counted.written) == (3 * 4000, 0, 4 * 4000 + 2000)


def test_the_peak_sees_what_autograd_keeps() -> None:
    """n squarings in a row keep n tensors for the backward pass; without a graph two live at once."""
    x = torch.ones(1000, requires_grad=True)

    def call() -> None:
        y = x
        for _ in range(10):
            y = y * y
        if y.requires_grad:
            y.sum().backward()

    kept = peak_bytes(call)
    with torch.no_grad():
        assert peak_bytes(call) == 2 * 4000
    assert 10 * 4000 <= kept <= 14 * 4000


# Inner steps ----------------------------------------------------------------------------------------------------------


def conv_maml(steps: int, **options: bool) -> Model:
    torch.manual_seed(0)
    descent = Descent(steps=steps, rate=0.01, **options)
    return maml(Conv4(1, 28, norm="transductive"), Softmax(5), descent=descent)


@pytest.fixture(scope="module")
def two_steps() -> int:
    return peak_bytes(ascent(conv_maml(2), tiny.picture_tasks(1)))


def test_twenty_recomputed_steps_take_less_than_three_times_the_memory_of_two(two_steps) -> None:
    """Second-order MAML on Conv4, 64 channels; kept, the steps take several times as much."""
    two, twenty = (peak_bytes(ascent(conv_maml(k, recompute=True), tiny.picture_tasks(1))) for k in (2, 20))
    assert twenty < 3 * two
    assert two < two_steps and twenty < 3 * two_steps
    five = peak_bytes(ascent(conv_maml(5), tiny.picture_tasks(1)))
    assert 2 * (five - two_steps) > two_steps  # what is measured does grow where steps are kept


def test_first_order_memory_does_not_grow_with_the_steps() -> None:
    one, two, twenty = (peak_bytes(ascent(conv_maml(k, first_order=True), tiny.picture_tasks(1))) for k in (1, 2, 20))
    assert one == two == twenty


def test_memory_at_test_does_not_grow_with_the_steps() -> None:
    """No gradient of the bound, nothing to keep."""
    with torch.no_grad():
        two, twenty = (peak_bytes(lambda k=k: conv_maml(k).eval()(tiny.picture_tasks(1))) for k in (2, 20))
    assert twenty == two


def test_memory_at_test_grows_by_the_weights_of_a_draw_alone() -> None:
    """A pass through the network is much larger than its weights, and lives once whatever the draws."""

    def peak(samples: int) -> int:
        torch.manual_seed(0)
        model = stochastic_maml(
            Conv4(1, 28, width=8, norm="transductive"), Softmax(5), descent=Descent(), samples=samples
        ).eval()
        tasks = tiny.picture_tasks(4, shots=5, queries=15)

        def predict() -> None:
            with torch.no_grad():
                model(tasks, seeded(1))

        return peak_bytes(predict)

    assert peak(20) < 1.2 * peak(1)


# Monte Carlo ----------------------------------------------------------------------------------------------------------


class Supervised(nn.Module):
    """A plain classifier: the same network, a linear layer, cross-entropy over all images."""

    def __init__(self, model: Model, ways: int) -> None:
        super().__init__()
        self.network, self.head = model.prior.network, nn.LazyLinear(ways)

    def step(self, tasks: Task) -> None:
        scores = self.head(self.network(join(tasks.support, points(tasks.query))))
        y = torch.cat([tasks.support.y, tasks.query.y], -1)
        nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten()).backward()


@pytest.mark.parametrize("norm", ENCODINGS)
@pytest.mark.parametrize(("ways", "shots", "queries"), [(5, 1, 3), (20, 1, 1)])
def test_gp_vib_takes_no_more_than_a_supervised_step_and_its_samples(ways, shots, queries, norm) -> None:
    """On the same images; dual at one shot. The samples: 200 numbers a query point and class."""
    tasks = tiny.picture_tasks(1, ways=ways, shots=shots, queries=queries)
    model = gp_vib(Conv4(1, 28, width=32, norm=norm), kernels.Linear(bias=True), SimplifiedSites(), Softmax(ways))
    supervised = Supervised(model, ways)
    supervised.step(tasks)  # makes the lazy layer and the .grad of each parameter
    plain = peak_bytes(lambda: supervised.step(tasks))
    samples = 4 * 200 * ways * tasks.query.size
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def step() -> None:
        (-vib(model, tasks, beta=1e-3, noise=seeded(0)).value.mean()).backward()

    assert plain > 4 * MB
    assert peak_bytes(step) <= plain + samples


def normal(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Normal, Tensor]:
    *lead, c = shape
    q = Normal(
        torch.randn(shape, generator=seeded(0), dtype=dtype), torch.rand(*lead, 1, generator=seeded(1)).to(dtype)
    )
    q.var[..., :1, :] = 0.0  # a point without variance
    return Normal(*(t.requires_grad_() for t in q)), torch.randint(c, lead, generator=seeded(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", [False, True], ids=["generator", "samples"])
@pytest.mark.parametrize("name", ["expected_log_prob", "log_predictive"])
def test_samples_in_parts_are_the_same_samples(name, given, dtype, monkeypatch) -> None:
    """Value, gradient and the state of the stream: to rounding what all samples at once give."""
    q, y = normal((3, 7, 5), dtype)
    likelihood = Softmax(5, samples=75)
    found = []
    for at_once in (2**23, 16 * 105, 1):
        monkeypatch.setattr(draws, "AT_ONCE", at_once)
        generator = seeded(4)
        noise = torch.randn(75, 7, 5, generator=generator, dtype=dtype) if given else generator
        value = getattr(likelihood, name)(q, y, noise)
        weights = torch.linspace(-1, 1, y.numel(), dtype=dtype).reshape(y.shape)  # another slope for each point
        found.append((value, *torch.autograd.grad((weights * value).sum(), q), torch.rand(2, generator=generator)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert_close(b, a)
    with torch.no_grad():
        plain = getattr(likelihood, name)(q, y, torch.randn(75, 7, 5, generator=seeded(4), dtype=dtype))
        assert_close(getattr(likelihood, name)(q, y, noise) if given else plain, plain)


def test_probabilities_in_parts_are_the_same(monkeypatch) -> None:
    q, _ = normal((3, 7, 5), torch.float64)
    likelihood, noise = Softmax(5, samples=75), torch.randn(75, 3, 7, 5, generator=seeded(4), dtype=torch.float64)
    whole = likelihood.predict(q, noise)
    monkeypatch.setattr(draws, "AT_ONCE", 1)
    (slope,) = torch.autograd.grad(likelihood.predict(q, noise)[..., 0].sum(), q.mean)  # still differentiable
    assert float(slope.abs().sum()) > 0
    with torch.no_grad():
        assert_close(likelihood.predict(q, noise), whole)


@pytest.mark.parametrize("shape", [(1, 2), (3, 5), (7, 11, 5)])
@pytest.mark.parametrize("k", [200, 33, 31, 16, 3])
def test_a_generator_draws_the_same_numbers_in_parts(shape, k, monkeypatch) -> None:
    """To the last bit, and leaves the stream where it would be: what is on record can be computed again."""
    q, _ = normal(shape, torch.float32)
    once, generator = seeded(1), seeded(1)
    expected = q.monte_carlo(k, once)
    monkeypatch.setattr(draws, "AT_ONCE", 1)
    with torch.no_grad():
        parts = draws.in_parts(lambda nodes: nodes.f, q, k, generator)
    assert torch.equal(torch.cat(parts), expected.f)
    assert torch.equal(generator.get_state(), once.get_state())
    assert len(parts) == max(1, k // 16)


@pytest.mark.parametrize("name", ["expected_log_prob", "log_predictive", "predict"])
def test_memory_of_the_samples_does_not_grow_with_their_number(name, monkeypatch) -> None:
    """A training step's, and a prediction's: 32 at once here, of 64 or of 1024."""
    q, y = normal((50, 5), torch.float32)
    monkeypatch.setattr(draws, "AT_ONCE", 32 * q.mean.numel())

    def peak(k: int) -> int:
        likelihood = Softmax(5, samples=k)

        def call() -> None:
            if name == "predict":
                with torch.no_grad():
                    likelihood.predict(q, seeded(0))
            else:
                getattr(likelihood, name)(q, y, seeded(0)).sum().backward()

        return peak_bytes(call)

    few, many = peak(64), peak(1024)
    one_copy = 4 * 1024 * q.mean.numel()
    assert many < one_copy / 2
    assert many - few < one_copy / 8  # the derivative of each part, and its value


def test_a_large_softmax_inside_inner_steps_is_still_differentiated_twice(monkeypatch) -> None:
    """GP+MAML's inner objective needs second derivatives, which parts do not give: there all samples are kept."""
    model = gp_maml(
        cases.backbone(),
        kernels.Linear(),
        SimplifiedSites(),
        Softmax(3, samples=40),
        descent=Descent(steps=2),
        beta=0.1,
    ).double()
    tasks = cases.tasks(model.likelihood, (2,), seed=1)
    noise = torch.randn(40, 1, 1, 3, generator=seeded(0), dtype=torch.float64)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(vib(model, tasks, beta=0.1, noise=noise).value.sum(), list(model.parameters()))

    whole = gradients()
    monkeypatch.setattr(draws, "AT_ONCE", 1)
    for a, b in zip(whole, gradients(), strict=True):
        assert_close(b, a)
    q, y = normal((7, 3), torch.float64)
    value = model.likelihood.expected_log_prob(q, y, noise[:, 0]).sum()
    with pytest.raises(RuntimeError, match="AT_ONCE"):  # elsewhere a second derivative is refused, not wrong
        torch.autograd.grad(value, q, create_graph=True)


def test_exact_gp_regression_takes_no_more_than_its_network_and_the_gram_matrix() -> None:
    """No samples at all: the bound of sines costs the network's pass and a few n x n matrices."""
    model = gp_vib(MLP(cases.INPUTS, (64, 64)), kernels.Linear(), ExactSites(), Gaussian(0.3))
    tasks = cases.tasks(model.likelihood, n=20, v=20, dtype=torch.float32)

    def network_alone() -> None:
        model.prior.network(cases.inputs(tasks.support)).sum().backward()

    gram = 4 * 20 * 20
    assert peak_bytes(ascent(model, tasks, beta=1.0)) < 4 * peak_bytes(network_alone) + 20 * gram
