"""Inner steps that are made again in the backward pass: the same numbers as steps that are kept.

What it saves is in `test_memory.py`.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import cases
import tiny
from metavib import kernels
from metavib.encoders import Descent, SimplifiedSites
from metavib.fast.recompute import recomputed
from metavib.likelihoods import Gaussian, Softmax
from metavib.methods import gp_maml, maml, stochastic_maml
from metavib.model import Model
from metavib.networks import MLP, Conv4
from metavib.networks.norm import ENCODINGS
from metavib.objective import vib
from metavib.random import Drawn, Noted, Portion, seeded
from metavib.training import build
from metavib.training.loop import train


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
    tasks = tiny.picture_tasks(2, ways=3, shots=2, queries=2, size=16, dtype=torch.float64)
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
    tasks = tiny.picture_tasks(2, ways=3, size=16, dtype=torch.float64)
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
