"""From a config to a model: every choice is what it says, and test-time settings keep the weights."""

import pytest
import torch

import tiny
from metavib.baselines import evidence
from metavib.encoders import ExactSites, FullSites, GeneralSites, SimplifiedSites
from metavib.kernels import RBF, BNCosine, Cosine, Linear, Matern32, Matern52
from metavib.likelihoods import Bernoulli, Gaussian, Poisson, Softmax, StudentT
from metavib.networks import repeats
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks.sinusoid import Sinusoids
from metavib.training import build
from metavib.training.config import METHODS, Config
from metavib.training.fields import override


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("linear", Linear),
        ("cosine", Cosine),
        ("bn-cosine", BNCosine),
        ("rbf", RBF),
        ("matern32", Matern32),
        ("matern52", Matern52),
    ],
)
def test_kernels_by_name(name, cls):
    config = tiny.sinusoid(model__kernel=name, model__learn_scale=True)
    kernel = build.model(config).prior.kernel
    assert type(kernel) is cls and "log_scale" in learned(kernel)
    assert "log_scale" not in learned(build.kernel(tiny.sinusoid(model__kernel=name).model, 8))


def learned(module: torch.nn.Module) -> set[str]:
    return {name.rpartition(".")[2] for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("name", "cls"),
    [("exact", ExactSites), ("simplified", SimplifiedSites), ("full", FullSites), ("general", GeneralSites)],
)
def test_sites_by_name(name, cls):
    assert type(build.model(tiny.sinusoid(model__sites=name)).encoder.sites) is cls


def test_sites_start_where_the_config_says():
    sites = build.sites(tiny.sinusoid(model__sites="simplified", model__site_m=5.0, model__site_s=0.13).model, 8)
    assert sites.m.item() == 5.0 and sites.s().item() == pytest.approx(0.13)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("gaussian", Gaussian),
        ("student-t", StudentT),
        ("poisson", Poisson),
        ("bernoulli", Bernoulli),
        ("softmax", Softmax),
    ],
)
def test_likelihoods_by_name(name, cls):
    assert type(build.likelihood(override(Config(), {"model.likelihood": name}))) is cls


def test_the_noise_is_what_the_config_says():
    likelihood = build.likelihood(tiny.sinusoid(model__noise=0.3, model__noise_floor=0.1, model__learn_noise=False))
    assert float(likelihood.noise()) == pytest.approx(0.3) and likelihood.noise.floor == 0.1
    assert not any(p.requires_grad for p in likelihood.parameters())


def test_only_dkt_trains_on_its_evidence():
    for method in METHODS:
        assert build.objective(tiny.glyphs(method)) is (evidence if method == "dkt" else vib)


def test_precision_is_the_dtype_of_every_parameter():
    for precision, dtype in (("float32", torch.float32), ("tf32", torch.float32), ("float64", torch.float64)):
        model = build.model(tiny.sinusoid(precision=precision))
        assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize("method", tiny.REGRESSORS)
def test_repeats_are_the_models_of_consecutive_seeds(method):
    stacked = build.model(tiny.sinusoid(method, seed=4, repeats=3))
    for i in range(3):
        alone = build.model(tiny.sinusoid(method, seed=4 + i))
        assert tiny.same_tensors(repeats.unstack(stacked, i).state_dict(), alone.state_dict())


def test_seeds_differ_in_weights():
    a, b = (build.model(tiny.sinusoid(seed=seed)).state_dict() for seed in (0, 1))
    assert not tiny.same_tensors(a, b)


@pytest.mark.parametrize("method", tiny.REGRESSORS)
def test_test_time_settings_keep_the_weights_and_leave_the_trained_model_alone(method):
    config = tiny.sinusoid(method, model__inner_steps=1, test__weight_samples=9)
    trained = build.model(config).train()
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    tested = build.at_test(trained, config, inner_steps=4)
    assert tiny.same_tensors(tested.state_dict(), before) and tiny.same_tensors(trained.state_dict(), before)
    assert not tested.training and trained.training
    if method != "gp-vib":
        assert tested.encoder.descent.steps == 4 and trained.encoder.descent.steps == 1
    if method == "stochastic-maml":
        assert tested.encoder.samples == 9 and trained.encoder.samples == 1
    with torch.no_grad():  # the copy owns its weights
        next(tested.parameters()).add_(1.0)
    assert tiny.same_tensors(trained.state_dict(), before)


def test_inner_steps_at_test_are_more_steps_of_the_same_descent():
    """k steps at test are what a model trained with k steps would do from the same weights."""
    config = tiny.sinusoid("maml")
    trained = build.model(config)
    task = Sinusoids(shots=5, queries=4).sample((3,), seeded(0))
    for steps in (0, 1, 5):
        other = build.model(override(config, {"model.inner_steps": steps}))
        other.load_state_dict(trained.state_dict())
        expected = other.likelihood.predict(other(task))[0]
        tested = build.at_test(trained, config, inner_steps=steps)
        assert torch.equal(tested.likelihood.predict(tested(task))[0], expected)


@pytest.mark.parametrize("method", ["maml", "stochastic-maml", "dkt"])
def test_a_model_with_weights_a_way_refuses_other_ways(method):
    config = tiny.glyphs(method)
    with pytest.raises(ValueError, match=f"{method} has weights for 3 ways and cannot be tested with 4"):
        build.at_test(build.model(config), config, ways=4)


@pytest.mark.parametrize(
    "method", ["gp-vib", "gp-maml", "proto-net", "matching-net", "relation-net", "feature-transfer", "baseline++"]
)
def test_the_others_take_any_ways(method):
    config = tiny.glyphs(method)
    tested = build.at_test(build.model(config), config, ways=5)
    assert tested.likelihood.classes == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.kernel": "rbf"}, r"model\.kernel must be one of linear, cosine, bn-cosine; got 'rbf'"),
        ({"model.backbone": "mlpp"}, r"model\.backbone must be one of mlp"),
        ({"model.norm": "layer"}, "layer"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(changes, message):
    with pytest.raises(ValueError, match=message):
        build.model(override(tiny.glyphs("dkt"), changes))


@pytest.mark.parametrize("sites", ["exact", "general"])
def test_sites_that_cannot_serve_the_likelihood_are_refused(sites):
    with pytest.raises(ValueError, match=rf"model\.sites = {sites}"):
        build.model(tiny.glyphs(model__sites=sites))
