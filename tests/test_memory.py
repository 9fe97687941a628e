"""Memory, measured as the peak of live tensor bytes: inner steps and Monte Carlo samples; and that numbers stay."""

from collections.abc import Callable

import pytest
import torch
from benchmarks.measure import Counted, peak_bytes
from torch import Tensor, nn
from torch.testing import assert_close

import cases
import tiny
from metavib import build, kernels, marginals
from metavib.backbones import MLP, Conv4
from metavib.encoders import Descent, ExactSites, SimplifiedSites
from metavib.encoders.recompute import recomputed
from metavib.inputs import join, points
from metavib.likelihoods import Gaussian, Softmax
from metavib.marginals import Normal
from metavib.methods import gp_maml, gp_vib, maml, stochastic_maml
from metavib.model import Model
from metavib.noise import Drawn, Noted, Portion, seeded
from metavib.norm import ENCODINGS
from metavib.objective import vib
from metavib.tasks import Task, examples, task
from metavib.train import train

MB = 2**20


def images(tasks: int, *, ways: int = 5, shots: int = 1, queries: int = 1, size: int = 28, dtype=torch.float32) -> Task:
    """Tasks of random images."""
    generator = seeded(0)

    def draw(each: int):
        x = torch.randn(tasks, ways * each, 1, size, size, generator=generator, dtype=dtype)
        return examples(x, torch.arange(ways).repeat(each).expand(tasks, -1))

    return task(draw(shots), draw(queries))


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
    return peak_bytes(ascent(conv_maml(2), images(1)))


def test_twenty_recomputed_steps_take_less_than_three_times_the_memory_of_two(two_steps) -> None:
    """Second-order MAML on Conv4, 64 channels; kept, the steps take several times as much."""
    two, twenty = (peak_bytes(ascent(conv_maml(k, recompute=True), images(1))) for k in (2, 20))
    assert twenty < 3 * two
    assert two < two_steps and twenty < 3 * two_steps
    five = peak_bytes(ascent(conv_maml(5), images(1)))
    assert 2 * (five - two_steps) > two_steps  # what is measured does grow where steps are kept


def test_first_order_memory_does_not_grow_with_the_steps() -> None:
    one, two, twenty = (peak_bytes(ascent(conv_maml(k, first_order=True), images(1))) for k in (1, 2, 20))
    assert one == two == twenty


def test_memory_at_test_does_not_grow_with_the_steps() -> None:
    """No gradient of the bound, nothing to keep."""
    with torch.no_grad():
        two, twenty = (peak_bytes(lambda k=k: conv_maml(k).eval()(images(1))) for k in (2, 20))
    assert twenty == two


def test_memory_at_test_grows_by_the_weights_of_a_draw_alone() -> None:
    """A pass through the network is much larger than its weights, and lives once whatever the draws."""

    def peak(samples: int) -> int:
        torch.manual_seed(0)
        model = stochastic_maml(
            Conv4(1, 28, width=8, norm="transductive"), Softmax(5), descent=Descent(), samples=samples
        ).eval()
        tasks = images(4, shots=5, queries=15)

        def predict() -> None:
            with torch.no_grad():
                model(tasks, seeded(1))

        return peak_bytes(predict)

    assert peak(20) < 1.2 * peak(1)


def gradient_models(norm: str, recompute: bool) -> dict[str, Model]:
    """Every method with inner steps on Conv4, in float64."""
    descent = Descent(steps=3, rate=0.05, recompute=recompute)

    def phi() -> Conv4:
        torch.manual_seed(0)
        return Conv4(1, 16, width=4, norm=norm)

    models = {
        "maml": maml(phi(), Softmax(3), descent=descent),
        "stochastic-maml": stochastic_maml(phi(), Softmax(3), descent=descent, variance=0.01, samples=2),
        "gp-maml": gp_maml(
            phi(), kernels.Cosine(bias=True), SimplifiedSites(), Softmax(3, samples=9), descent=descent, beta=0.1
        ),
        "gp-maml bn-cosine": gp_maml(
            phi(), kernels.BNCosine(4, norm=norm), SimplifiedSites(), Softmax(3, samples=9), descent=descent, beta=0.1
        ),
    }
    return {name: model.double().train() for name, model in models.items()}


@pytest.mark.parametrize("norm", ENCODINGS)
@pytest.mark.parametrize("method", ["maml", "stochastic-maml", "gp-maml", "gp-maml bn-cosine"])
def test_recomputed_steps_give_the_same_bound_gradients_averages_and_stream(method, norm) -> None:
    """The steps of GP+MAML draw from a generator: drawn anew in the backward pass, gradients would differ."""
    tasks = images(2, ways=3, shots=2, queries=2, size=16, dtype=torch.float64)
    found = []
    for recompute in (False, True):
        model, noise = gradient_models(norm, recompute)[method], seeded(3)
        bound = vib(model, tasks, beta=0.0 if model.dirac else 0.3, noise=noise)
        bound.value.mean().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        found.append((bound.value, gradients, dict(model.named_buffers()), noise.get_state()))
    (value, gradients, averages, stream), (again, gradients_again, averages_again, stream_again) = found
    assert torch.equal(value, again)
    assert tiny.same_tensors(averages, averages_again)  # learned from once
    assert torch.equal(stream, stream_again)
    for name, gradient in gradients.items():
        assert gradient is not None and gradients_again[name] is not None, name
        assert_close(gradients_again[name], gradient, rtol=1e-10, atol=1e-13)
    assert sum(float(g.abs().sum()) for g in gradients.values()) > 0


@pytest.mark.parametrize("case", [c for c in cases.MODELS if "maml" in c.name and "first" not in c.name], ids=repr)
def test_recomputed_steps_with_every_likelihood(case) -> None:
    """Noises, scales and sites that the inner objective contains get their gradient too, and so do the inputs."""
    model = cases.build(case, seed=3)
    tasks, noise = cases.tasks(model.likelihood, (2,), seed=1), cases.base_samples(model, (2,))
    x = tasks.support.x.requires_grad_()

    def gradients() -> tuple[Tensor, ...]:
        value = vib(model, tasks, beta=0.0 if model.dirac else 0.7, noise=noise).value.sum()
        return torch.autograd.grad(value, [x, *model.parameters()])

    plain = gradients()
    model.encoder.descent.recompute = True
    for a, b in zip(plain, gradients(), strict=True):
        assert_close(b, a, rtol=1e-9, atol=1e-12)


def test_recomputed_steps_meet_the_same_dropout() -> None:
    descent = Descent(steps=2, rate=0.1)
    model = maml(MLP(cases.INPUTS, (12,), dropout=0.5), Gaussian(0.3), descent=descent).double().train()
    tasks = cases.tasks(model.likelihood, (2,), seed=1)
    found = []
    for recompute in (False, True):
        descent.recompute = recompute
        torch.manual_seed(5)
        value = vib(model, tasks, beta=0.0).value.sum()
        found.append((*torch.autograd.grad(value, list(model.parameters())), torch.rand(3)))
    for a, b in zip(*found, strict=True):
        assert_close(b, a)


def test_recomputed_steps_meet_the_same_noise_however_it_comes() -> None:
    """From a generator, with a note of it, drawn beforehand, or a portion of it: the same gradients."""
    tasks = images(2, ways=3, size=16, dtype=torch.float64)
    model = gradient_models("transductive", True)["gp-maml"]
    noted = Noted(seeded(3))
    streams = [seeded(3), noted, Portion(seeded(3), axis=1, index=0, count=1)]
    found = []
    for i in range(4):
        if i == 3:  # as compiled code takes it
            draws = noted.calls[: len(noted.calls) // 2 + 1]  # the steps were noted twice, the end once
            generator = seeded(3)
            streams.append(Drawn([f(*a, **o, generator=generator) for f, a, o in draws], generator.device))
        value = vib(model, tasks, beta=0.3, noise=streams[i]).value.mean()
        found.append(torch.autograd.grad(value, list(model.parameters())))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert_close(b, a)


def test_what_the_objective_is_not_said_to_depend_on_is_a_constant_and_a_second_derivative_is_refused() -> None:
    a, b = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    w = torch.tensor(5.0, requires_grad=True)
    step = recomputed(lambda weights: {"w": weights["w"] ** 2 * a * b}, depends_on=[a])
    (out,) = step({"w": w}).values()
    found = torch.autograd.grad(out, (w, a, b), allow_unused=True, retain_graph=True)
    assert found[:2] == (60.0, 75.0) and found[2] is None
    with pytest.raises(RuntimeError, match="recompute=False"):
        torch.autograd.grad(out, w, create_graph=True)


@pytest.mark.parametrize("method", ["maml", "gp-maml"])
def test_a_config_with_recompute_trains_to_the_same_weights(method, tmp_path) -> None:
    """And is one field: `--set model.recompute=true`."""
    trained = []
    for recompute in (False, True):
        config = tiny.sinusoid(
            method, model__recompute=recompute, model__inner_steps=3, precision="float64", train__validate_every=0
        )
        assert build.model(config).encoder.descent.recompute is recompute
        trained.append(train(config, tmp_path / str(recompute), quiet=True).state_dict())
    for name, weights in trained[0].items():
        assert_close(trained[1][name], weights, rtol=1e-9, atol=1e-10)


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
    tasks = images(1, ways=ways, shots=shots, queries=queries)
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
        monkeypatch.setattr(marginals, "AT_ONCE", at_once)
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
    monkeypatch.setattr(marginals, "AT_ONCE", 1)
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
    monkeypatch.setattr(marginals, "AT_ONCE", 1)
    with torch.no_grad():
        parts = q.over_draws(lambda nodes: nodes.f, k, generator)
    assert torch.equal(torch.cat(parts), expected.f)
    assert torch.equal(generator.get_state(), once.get_state())
    assert len(parts) == max(1, k // 16)


@pytest.mark.parametrize("name", ["expected_log_prob", "log_predictive", "predict"])
def test_memory_of_the_samples_does_not_grow_with_their_number(name, monkeypatch) -> None:
    """A training step's, and a prediction's: 32 at once here, of 64 or of 1024."""
    q, y = normal((50, 5), torch.float32)
    monkeypatch.setattr(marginals, "AT_ONCE", 32 * q.mean.numel())

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
    monkeypatch.setattr(marginals, "AT_ONCE", 1)
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
