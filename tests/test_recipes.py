"""Recipes: every experiment with every method and shots is a whole config that builds its model."""

import itertools

import pytest
import torch

from metavib.objective import Bound
from metavib.random import seeded
from metavib.tasks.sinusoid import Sinusoids
from metavib.training import build, recipes
from metavib.training.config import (
    BOUND,
    CLASSES,
    CLASSIFICATION,
    EMBEDDINGS,
    EXPERIMENTS,
    METHODS,
    REGRESSION,
    TRANSFER,
    Config,
)
from metavib.training.fields import from_dict, override, to_dict
from metavib.training.protocols import experiment

FITTING = [
    (name, method)
    for name, method in itertools.product(EXPERIMENTS, METHODS)
    if name in CLASSIFICATION or method in BOUND or (name == EMBEDDINGS and method not in recipes.NO_VECTORS)
]


@pytest.mark.parametrize(("name", "method"), FITTING)
def test_every_recipe_survives_json_and_says_what_was_asked(name, method):
    for shots, kernel in itertools.product((None, 1, 5, 10), ("linear", "cosine", "bn-cosine")):
        config = recipes.recipe(name, method, shots=shots, kernel=kernel)
        assert config.model.kernel == kernel
        assert config.tasks.name == name and config.method == method
        ragged = method == CLASSES and config.tasks.min_shots is not None
        assert shots is None or shots == (config.test.shots[0] if ragged else config.tasks.shots)
        assert from_dict(Config, to_dict(config)) == config


@pytest.mark.parametrize(("name", "method"), [f for f in FITTING if f[0] != "images" or f[1] not in TRANSFER])
def test_every_recipe_builds_a_model(name, method):
    """The exceptions are below: the classes of one's own folder are not known beforehand."""
    config = recipes.recipe(name, method)
    model = build.model(config)
    assert sum(p.numel() for p in model.parameters()) > 0
    assert model.dirac == (method in ("maml", *METHODS[len(BOUND) + 1 : -1]))


@pytest.mark.parametrize("method", TRANSFER)
def test_transfer_asks_for_the_number_of_classes(method):
    with pytest.raises(ValueError, match=r"needs model\.classes"):
        build.model(recipes.recipe("images", method))


@pytest.mark.parametrize(("name", "method"), list(itertools.product(REGRESSION, BOUND)))
def test_every_regression_recipe_has_a_finite_bound_and_gradients(name, method):
    config = recipes.recipe(name, method)
    model, world = build.model(config), experiment(config)
    bound = build.objective(config)(model, world.sample((3,), seeded(0)), beta=config.train.beta, noise=seeded(1))
    assert isinstance(bound, Bound) and bound.value.shape == (3,) and bound.value.isfinite().all()
    bound.value.sum().backward()
    learned = [p for p in model.parameters() if p.requires_grad]
    assert learned and all(p.grad is not None and p.grad.isfinite().all() for p in learned)


@pytest.mark.parametrize("name", REGRESSION)
@pytest.mark.parametrize("method", [m for m in METHODS if m not in BOUND])
def test_a_classifier_on_regression_is_refused(name, method):
    with pytest.raises(ValueError, match=f"{method.replace('+', '.')} is a classifier"):
        recipes.recipe(name, method)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"experiment must be one of sinusoid.*got 'sinus'"):
        recipes.recipe("sinus", "gp-vib")
    with pytest.raises(ValueError, match="mamml"):
        recipes.recipe("glyphs", "mamml")


def test_sinusoids_have_the_papers_own_settings():
    """Five tasks of ten points in each of 60,000 steps, no special start, and the longer version's rates and beta."""
    rates = {"gp-vib": (7.5e-4, None, 1.0), "maml": (2e-3, 5e-3, 0.0)}
    rates |= {"stochastic-maml": (5e-4, 0.1, 1e-3), "gp-maml": (2e-3, 1e-4, 0.5)}
    for method, (lr, inner, beta) in rates.items():
        config = recipes.recipe("sinusoid", method)
        assert (config.train.steps, config.train.tasks, config.tasks.shots) == (60_000, 5, 10)
        assert (config.train.lr, config.train.beta, config.model.reach) == (lr, beta, None)
        if inner:
            assert (config.model.inner_rate, config.model.inner_steps) == (inner, 1)
    assert not recipes.recipe("sinusoid", "gp-maml").model.inner_mean  # F, not F / n


def test_the_papers_inner_rate_of_stochastic_maml_does_not_overshoot_at_the_start():
    """One step of it goes the right way on new sinusoids; from the noise and start of MAML it throws them far off."""
    tasks = Sinusoids(shots=10, queries=20).sample((200,), seeded(0))

    def error(**changes: float) -> float:
        config = override(recipes.recipe("sinusoid", "stochastic-maml"), {f"model.{k}": v for k, v in changes.items()})
        torch.manual_seed(0)
        model = build.model(config)
        with torch.no_grad():
            mean, _ = model.likelihood.predict(model(tasks, seeded(1)))
        return float((mean - tasks.query.y).square().mean())

    assert error() < error(inner_steps=0) < 20 < error(noise=0.5, start_variance=2.0)


def test_inner_steps_are_the_papers():
    """Augmented Omniglot: 20 steps of 20 random points and 100 at test, of GP+MAML 5 and 5 on all points, up F."""
    for method in ("maml", "stochastic-maml"):
        config = recipes.recipe("augmented-omniglot", method)
        assert (config.model.inner_steps, config.model.inner_points, config.model.inner_shuffle) == (20, 20, True)
        assert config.test.inner_steps == (100,)
    for kernel in ("linear", "cosine"):
        config = recipes.recipe("augmented-omniglot", "gp-maml", kernel=kernel)
        assert (config.model.inner_steps, config.model.inner_points, config.test.inner_steps) == (5, 0, ())
        assert not config.model.inner_mean and not recipes.recipe("omniglot", "gp-maml", kernel=kernel).model.inner_mean


def test_our_own_recipes_are_apart_from_the_papers():
    for method in BOUND:
        assert recipes.recipe("sinusoid", method) != recipes.improved("sinusoid", method)
    paper, ours = recipes.recipe("sinusoid", "gp-vib"), recipes.improved("sinusoid", "gp-vib")
    demo = recipes.demo()
    assert paper != ours != demo and {c.method for c in (paper, ours, demo)} == {"gp-vib"}
    for config in (ours, demo):
        assert build.model(config).training and from_dict(Config, to_dict(config)) == config


def test_a_recipe_fits_its_own_data():
    """Characters have 20 pictures a class: support and query of any recipe must come out of them."""
    for name in ("omniglot", "omniglot-emnist", "glyphs", "augmented-omniglot"):
        for shots in (1, 5, 10, 15):
            config = recipes.recipe(name, "gp-vib", shots=shots)
            assert config.tasks.shots + config.tasks.queries <= 20, (name, shots)


@pytest.mark.parametrize("name", ["omniglot", "omniglot-emnist", "glyphs", "augmented-omniglot"])
def test_more_shots_than_characters_have_pictures_are_refused_by_name(name):
    for make in (recipes.recipe, recipes.improved) if recipes.has_improved(name, "gp-vib") else (recipes.recipe,):
        with pytest.raises(ValueError, match=f"{name} has 20 pictures of a class.*got 30"):
            make(name, "gp-vib", shots=30)


def test_the_same_seed_gives_the_same_weights_whatever_the_global_generator_did():
    config = recipes.recipe("sinusoid", "gp-vib")
    first = build.model(config).state_dict()
    torch.rand(7)
    before = torch.random.get_rng_state()
    second = build.model(config).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("shots", range(1, 16))
@pytest.mark.parametrize("experiment", ["glyphs", "omniglot-emnist", "cub"])
def test_our_recipe_splits_tasks_of_any_shots_as_often_as_each_image_can_be_support_once(experiment, shots):
    """And asks for no more characters of a class than the twenty there are."""
    config = recipes.improved(experiment, "gp-vib", shots=shots)
    images = config.tasks.shots + config.tasks.queries
    assert config.tasks.shots == shots and config.tasks.queries >= 1
    assert config.train.splits * shots <= images < (config.train.splits + 1) * shots
    assert (config.test.ways or config.tasks.ways) == 5
    if experiment != "cub":
        assert images <= 20 and 90 <= config.tasks.ways * images <= 100


@pytest.mark.parametrize("shots", [1, 5, 7])
@pytest.mark.parametrize("experiment", [*CLASSIFICATION, EMBEDDINGS])
def test_gaussian_classes_learn_from_classes_of_different_sizes_whatever_they_are_tested_on(experiment, shots):
    """Else what they know of sizes would be left to chance; the characters of an alphabet have as many points each."""
    makes = [recipes.recipe]
    makes += [recipes.improved] if recipes.has_improved(experiment, CLASSES) else []
    makes += [recipes.tuned, recipes.frozen] if experiment in CLASSIFICATION else []
    for make in makes:
        config, usual = make(experiment, CLASSES, shots=shots), make(experiment, "proto-net", shots=shots)
        if experiment == "augmented-omniglot":
            assert config.tasks.min_shots is None and config.tasks.shots == shots
            continue
        assert config.tasks.min_shots == 1 < config.tasks.shots and shots in config.test.shots
        if make is not recipes.improved and (experiment, shots) != ("characters", 1):
            images = [c.tasks.shots + c.tasks.queries for c in (config, usual)]
            assert images[0] == images[1] and config.tasks.queries >= 1


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("experiment", ["glyphs", "omniglot-emnist", "cub"])
def test_one_training_of_ours_serves_gaussian_classes_of_any_shots(experiment, shots):
    """Its tasks are those of one shot, but for a second point of some classes in some splits."""
    config = recipes.improved(experiment, CLASSES, shots=shots)
    one = recipes.improved(experiment, "gp-vib", shots=1)
    assert (config.tasks.min_shots, config.tasks.shots, config.test.shots) == (1, 2, (shots,))
    assert (config.tasks.ways, config.test.ways) == (one.tasks.ways, one.test.ways)
    if shots == 1 or experiment != "cub":
        assert config.train.splits == one.train.splits
        assert config.tasks.shots + config.tasks.queries == one.tasks.shots + one.tasks.queries


@pytest.mark.parametrize(
    ("method", "kernel"), [("maml", "linear"), ("stochastic-maml", "linear"), ("gp-vib", "cosine")]
)
def test_the_longer_versions_mini_imagenet_has_its_own_network_steps_and_rates(method, kernel):
    config = recipes.longer(method, shots=5, kernel=kernel)
    assert (config.model.width, config.train.tasks, config.train.steps) == (32, 4, 60_000)
    rates = {"maml": (0.001, 0.0), "stochastic-maml": (5e-4, 1e-4), "gp-vib": (5e-4, 0.005)}
    assert (config.train.lr, config.train.beta) == rates[method]
    if method != "gp-vib":
        assert config.model.inner_steps == 5 and config.test.inner_steps == (10,)
    body = build.model(config).prior.network.body
    assert (body if method == "gp-vib" else body.backbone).features == 800


def test_the_longer_versions_gp_maml_takes_five_inner_steps_on_f():
    config = recipes.longer("gp-maml", shots=1)
    assert (config.model.inner_steps, config.model.inner_rate, config.model.inner_mean) == (5, 0.002, False)
    assert (config.train.lr, config.train.beta) == (0.001, 1e-4)
    with pytest.raises(ValueError, match="the longer version has maml linear"):
        recipes.longer("proto-net")


@pytest.mark.parametrize("name", ["cub", "mini-imagenet", "mini-imagenet-cub", "images"])
def test_sites_start_large_on_photographs_where_from_small_ones_a_training_can_stay_at_chance(name):
    for method, kernel, shots in itertools.product(("gp-vib", "gp-maml"), ("linear", "cosine"), (1, 5)):
        config = recipes.recipe(name, method, shots=shots, kernel=kernel)
        assert (config.model.site_m, config.model.site_s) == (5.0, 0.13)
