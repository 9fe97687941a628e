"""The test of a regressor: every number against slow NumPy, the same tasks for every method, honest intervals."""

import json
from math import sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

import tiny
from metavib.encoders import ExactSites
from metavib.kernels import RBF
from metavib.likelihoods import Gaussian
from metavib.methods import gp_vib
from metavib.networks import Pointwise, repeats
from metavib.random import seeded
from metavib.tasks.task import select
from metavib.training import build
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.loop import train
from metavib.training.protocols import Regression, experiment
from metavib.training.protocols.regression import summarise
from metavib.training.recipes import recipe


def gaussian(**changes) -> Config:
    """Tasks from a known process, tested on some."""
    sizes = {"model.widths": [8, 8], "test.tasks": 40, "test.queries": 20, "test.shots": [4]}
    return override(recipe("gaussian", "gp-vib"), sizes | {k.replace("__", "."): v for k, v in changes.items()})


def rows(result):
    return {(row["shots"], row.get("inner_steps")): row["metrics"] for row in result["rows"]}


def slow_scores(mean, var, y):
    """Squared error, log density and coverage of one task, a point at a time; Gaussian predictions."""
    found = {"mse": [], "log_density": [], "coverage_50": [], "coverage_90": [], "coverage_95": []}
    for m, v, t in zip(mean, var, y, strict=True):
        p = stats.norm(m, sqrt(v))
        found["mse"].append((m - t) ** 2)
        found["log_density"].append(p.logpdf(t))
        for level in (50, 90, 95):
            low, high = p.interval(level / 100)
            found[f"coverage_{level}"].append(low <= t <= high)
    return {name: np.mean(values) for name, values in found.items()}


@pytest.mark.parametrize("method", ["gp-vib", "maml", "gp-maml"])
def test_an_evaluation_is_what_a_loop_over_tasks_and_points_gives(method):
    """Each task alone through the model, each point alone through SciPy."""
    config = tiny.sinusoid(method, precision="float64", test__tasks=5, test__shots=[2, 6])
    model, world = build.model(config), Regression(config)
    found = rows(world.evaluate(model, quiet=True))
    tested = build.at_test(model, config)
    for shots in (2, 6):
        tasks = world.test_tasks(shots).to(torch.float64)
        scores = []
        for t in range(5):
            one = select(tasks, t)
            with torch.no_grad():
                mean, var = tested.likelihood.predict(tested(one))
            scores.append(slow_scores(mean.numpy(), var.numpy(), one.query.y.numpy()))
        steps = {k[1] for k in found}
        assert steps == ({None} if method == "gp-vib" else set(config.test.inner_steps or (1,)))
        for name, values in ((n, [s[n] for s in scores]) for n in scores[0]):
            row = found[shots, None if method == "gp-vib" else 1][name]
            assert row["mean"] == pytest.approx(np.mean(values), rel=1e-9)
            assert row["ci95_over_tasks"] == pytest.approx(1.96 * np.std(values, ddof=1) / sqrt(5), rel=1e-9)


def test_stochastic_maml_is_scored_by_its_mixture():
    """Weights are drawn; the predictive distribution is the average over them, by hand here."""
    config = tiny.sinusoid("stochastic-maml", precision="float64", test__tasks=3, test__shots=[4])
    model, world = build.at_test(build.model(config), config), Regression(config)
    tasks = world.test_tasks(4).to(torch.float64)
    with torch.no_grad():
        f = model(tasks, seeded(config.test.seed, 30)).nodes().f[..., 0].numpy()  # (samples, tasks, v)
    noise, y = float(model.likelihood.noise().detach()), tasks.query.y.numpy()
    assert len(f) == config.test.weight_samples
    found = world.score(model, tasks)
    np.testing.assert_allclose(found["mse"][0], ((f.mean(0) - y) ** 2).mean(-1), rtol=1e-9)
    density = (logsumexp(stats.norm.logpdf(y, f, sqrt(noise)), 0) - np.log(len(f))).mean(-1)
    np.testing.assert_allclose(found["log_density"][0], density, rtol=1e-9)
    pit = stats.norm.cdf(y, f, sqrt(noise)).mean(0)
    np.testing.assert_allclose(found["coverage_90"][0], ((pit > 0.05) & (pit < 0.95)).mean(-1))


def test_test_tasks_are_the_same_for_every_method_and_change_with_the_test_seed():
    """They depend on the test seed and the sizes alone: not on method, training seed or training tasks."""
    base = Regression(tiny.sinusoid()).test_tasks(5)
    same = [tiny.sinusoid(m) for m in tiny.REGRESSORS]
    same += [tiny.sinusoid(seed=3), tiny.sinusoid(tasks__shots=9, tasks__min_shots=2), tiny.sinusoid(train__tasks=7)]
    for config in same:
        assert torch.equal(Regression(config).test_tasks(5).query.x, base.query.x)
        assert torch.equal(Regression(config).test_tasks(5).support.y, base.support.y)
        assert Regression(config).test_tasks(5).support.mask.all()
    other = Regression(tiny.sinusoid(test__seed=1)).test_tasks(5)
    assert not torch.equal(other.query.x, base.query.x)


def test_streams_of_training_validation_and_test_share_nothing():
    world = Regression(tiny.sinusoid(test__tasks=4, test__queries=5))
    trained = world.sample((4,), seeded(0, 10, 0)).support.x
    assert not torch.equal(trained, world.test_tasks(5).support.x)
    assert not torch.equal(trained, world.source.sample((4,), seeded(20)).support.x)


def test_an_evaluation_is_repeatable_and_plain_json():
    config = tiny.sinusoid("stochastic-maml", test__inner_steps=[0, 2])
    model = build.model(config)
    a, b = (experiment(config).evaluate(model, quiet=True) for _ in range(2))
    assert a == b == json.loads(json.dumps(a, allow_nan=False))
    assert set(rows(a)) == {(k, s) for k in (3, 5) for s in (0, 2)}


@pytest.mark.parametrize("method", tiny.REGRESSORS)
def test_repeats_are_evaluated_as_each_would_be_alone(method):
    """The numbers of a stack of three, against each of the three models by itself."""
    changes = {"precision": "float64", "test__tasks": 8}
    config = tiny.sinusoid(method, repeats=3, **changes)
    stacked = build.model(config)
    found = rows(Regression(config).evaluate(stacked, quiet=True))
    single = tiny.sinusoid(method, **changes)
    alone = [rows(Regression(single).evaluate(repeats.unstack(stacked, i), quiet=True)) for i in range(3)]
    stochastic = method == "stochastic-maml"  # draws weights: the same in distribution, not in numbers
    for key, metrics in found.items():
        for name, summary in metrics.items():
            each = [a[key][name]["mean"] for a in alone]
            if not stochastic:
                assert summary["repeats"] == pytest.approx(each, rel=1e-8, abs=1e-12)
            assert summary["mean"] == pytest.approx(np.mean(summary["repeats"]))
            assert summary["ci95_over_repeats"] == pytest.approx(
                1.96 * np.std(summary["repeats"], ddof=1) / sqrt(3), abs=1e-12
            )
            assert "repeats" not in alone[0][key][name] and "ci95_over_repeats" not in alone[0][key][name]


def test_the_two_spreads_are_named_apart_and_computed_over_their_own_axis():
    values = torch.tensor([[1.0, 2.0, 6.0], [3.0, 4.0, 8.0]])
    found = summarise(values)
    assert found["mean"] == 4.0
    assert found["ci95_over_repeats"] == pytest.approx(1.96 * np.std([3.0, 5.0], ddof=1) / sqrt(2))
    assert found["ci95_over_tasks"] == pytest.approx(1.96 * np.std([2.0, 3.0, 7.0], ddof=1) / sqrt(3))
    alone = summarise(values[:1])
    assert set(alone) == {"mean", "ci95_over_tasks"}
    assert summarise(values[:, :1])["ci95_over_tasks"] is None  # one task has no spread, and JSON no infinity


def test_the_gap_to_the_optimum_is_positive_for_an_untrained_model_and_zero_for_the_process_itself():
    config = gaussian(precision="float64", test__tasks=200)
    world = Regression(config)
    untrained = rows(world.evaluate(build.model(config), quiet=True))[4, None]
    assert untrained["gap_to_optimum"]["mean"] > 3 * untrained["gap_to_optimum"]["ci95_over_tasks"]
    exact = world.score(process(config), world.test_tasks(4))
    assert exact["gap_to_optimum"].abs().max() < 1e-6
    difference = untrained["optimal_log_density"]["mean"] - untrained["log_density"]["mean"]
    assert untrained["gap_to_optimum"]["mean"] == pytest.approx(difference, abs=1e-6)


def process(config: Config):
    """GP-VIB whose features are the inputs themselves: the exact posterior of the process the tasks come from."""
    identity = Pointwise(torch.nn.Linear(1, 1, bias=False), 1)
    torch.nn.init.ones_(identity.module.weight)
    kernel = RBF(config.tasks.lengthscale)
    return gp_vib(identity, kernel, ExactSites(), Gaussian(config.tasks.noise, floor=1e-6)).double().eval()


def test_the_exact_process_covers_what_it_says():
    """Its central intervals hold 50, 90 and 95% of 20,000 outputs of 1000 tasks, within four standard errors."""
    config = gaussian(precision="float64", test__tasks=1000, test__queries=20)
    world = Regression(config)
    scores = world.score(process(config), world.test_tasks(4))
    for level in (50, 90, 95):
        covered = scores[f"coverage_{level}"][0]
        error = float(covered.std()) / sqrt(1000)  # points of a task are not independent: between tasks
        assert abs(float(covered.mean()) - level / 100) < 4 * error < 0.05


def test_overconfidence_shows_in_the_coverage():
    config = gaussian(precision="float64", test__tasks=300, tasks__noise=0.2)
    world, model = Regression(config), process(gaussian(tasks__noise=0.02))
    scores = world.score(model, world.test_tasks(4))
    assert scores["coverage_95"].mean() < 0.85 and scores["gap_to_optimum"].mean() > 0.1


def test_validation_is_on_the_same_tasks_every_time():
    config = tiny.sinusoid()
    model = build.model(config)
    first, again = Regression(config).validate(model), Regression(config).validate(model)
    assert first == again and set(first) == {"mse", "log_density", "score"} and first["score"] == -first["mse"]
    assert Regression(tiny.sinusoid(seed=5)).validate(model) == first


def test_more_shots_than_in_training_and_none_at_all():
    config = tiny.sinusoid(test__shots=[0, 1, 50])
    found = rows(Regression(config).evaluate(build.model(config), quiet=True))
    assert {k for k, _ in found} == {0, 1, 50}
    assert all(np.isfinite(m["mean"]) for metrics in found.values() for m in metrics.values())


def test_no_shots_named_means_those_of_training():
    config = tiny.sinusoid(test__shots=[])
    assert {row["shots"] for row in Regression(config).evaluate(build.model(config), quiet=True)["rows"]} == {5}


@pytest.mark.parametrize("likelihood", ["softmax", "bernoulli"])
def test_a_likelihood_of_classes_is_refused(likelihood):
    with pytest.raises(ValueError, match="sinusoid needs a likelihood of real outputs"):
        Regression(tiny.sinusoid(model__likelihood=likelihood, model__sites="full"))


def test_student_t_trains_and_tests(tmp_path):
    config = tiny.sinusoid(model__likelihood="student-t", model__sites="full")
    model = train(config, tmp_path / "run", quiet=True)
    found = rows(Regression(config).evaluate(model, quiet=True))
    assert all(np.isfinite(m["mean"]) for metrics in found.values() for m in metrics.values())
