"""Adapt, update, merge, forget: equal to adapting with all points at once, refused where theory forbids it."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch.testing import assert_close

import cases
import tiny
from learners import DTYPES, WAYS, model, points, same, softmax
from metavib import kernels, likelihoods
from metavib.adapt.learner import Learner
from metavib.adapt.predictor import Conditioned, Memorised, Predictor
from metavib.baselines import dkt_linear, proto_net
from metavib.encoders import FullSites, GeneralSites, SimplifiedSites
from metavib.methods import gp_vib, maml
from metavib.model import Model
from metavib.networks import Conv4
from metavib.networks.repeats import stack
from metavib.tasks import Examples, Task, examples
from metavib.tasks.inputs import Points
from metavib.training import build, checkpoint, run_folder
from metavib.training import loop as train
from metavib.training.fields import override

SOFTMAX_SITES = {"simplified": lambda: SimplifiedSites(m=1.3, s=0.5), "full": lambda: FullSites(cases.FEATURES)}


def rounding(dtype: torch.dtype) -> float:
    """What two passes over the same points may differ by: features, not sums, are in the model's precision."""
    return 1e-4 if dtype == torch.float32 else 1e-10


# Learning on


KINDS = {
    "gaussian": lambda dtype: model(dtype=dtype),
    "general student-t": lambda dtype: model(
        likelihoods.StudentT(0.4), sites=GeneralSites(cases.FEATURES, hidden=5), dtype=dtype
    ),
    "cosine bernoulli": lambda dtype: model(
        likelihoods.Bernoulli(), sites=FullSites(cases.FEATURES), kernel=kernels.Cosine(), dtype=dtype
    ),
    "softmax simplified": lambda dtype: softmax(dtype=dtype),
    "softmax full": lambda dtype: softmax(FullSites(cases.FEATURES), dtype=dtype),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 30), max_size=5))
def test_streamed_merged_and_forgotten_equal_adapting_once(kind, dtype, seed, cuts) -> None:
    """Whatever the chunks (empty ones too), the order of arrival and the places that learned: only the points count."""
    learner = Learner(KINDS[kind](dtype), samples=50)
    classes = {"softmax": WAYS, "cosine": 2}.get(kind.split()[0], 0)
    x, y = points(30, seed=seed, classes=classes)
    bounds = [0, *sorted(cuts), 30]
    chunks = [(x[a:b], y[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    at_once = learner.adapt((x, y))

    streamed = learner.adapt(chunks[0])
    for chunk in chunks[1:]:
        streamed = streamed.update(chunk)
    same(streamed, at_once, tol=rounding(dtype))

    backwards = learner.adapt((x[:0], y[:0]))
    for chunk in reversed(chunks):
        backwards = learner.adapt(chunk).merge(backwards)
    same(backwards, at_once, tol=rounding(dtype))

    more = points(7, seed=seed + 1, classes=classes)
    same(at_once.update(more).forget(more), at_once, tol=rounding(dtype))
    assert at_once.update(more).forget(more).classes == at_once.classes


@pytest.mark.parametrize("sites", SOFTMAX_SITES)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_new_classes_equal_classes_known_from_the_start(sites, before) -> None:
    """Classes that appear in an update, after none, one, two (where b alone would have lost the sum) or three."""
    learner = Learner(softmax(SOFTMAX_SITES[sites]()))
    x, y = points(40, classes=WAYS + 2)
    old = y < before
    grown = learner.adapt((x[old], y[old])).update((x[~old], y[~old]))
    at_once = learner.adapt((x, y))
    assert grown.classes == at_once.classes == tuple(range(WAYS + 2))
    same(grown, at_once)
    # The latent functions too, against sites that knew all classes: the encoder itself, N columns of +1 and -1.
    trained = learner.trained
    full = Model(trained.model.prior, trained.model.encoder, likelihoods.Softmax(WAYS + 2))
    x_v, _ = points(5, seed=9)
    task = Task(examples(x, y), examples(x_v, torch.zeros(5, dtype=torch.long)))
    expected = full(task)
    found = trained.marginals(grown.posterior, x_v)
    assert_close(found.mean, expected.mean)
    assert_close(found.var, expected.var)
    encoding = full.encode(task.support, Points(x_v, torch.ones(5, dtype=torch.bool)))
    assert_close(grown.posterior.kl(), encoding.kl())
    assert_close(grown.posterior.log_evidence(), encoding.posterior.log_evidence())


def test_a_class_without_points_is_one_that_was_declared() -> None:
    """Merging with an empty place that knows of one more class = declaring it at the start."""
    learner, (x, y) = Learner(softmax()), points(20, classes=2)
    declared = learner.adapt((x, y), classes=(0, 1, "rare"))
    merged = learner.adapt((x, y)).merge(learner.adapt((x[:0], []), classes=("rare",)))
    assert declared.classes == merged.classes == (0, 1, "rare")
    same(declared, merged)
    # No point spoke for it or against it: its function is the prior's, the others' are what they were without it.
    trained = learner.trained
    q, two = trained.marginals(declared.posterior, x, declared.memory.seen), learner.adapt((x, y))
    assert_close(q.mean[:, 2], torch.zeros(20, dtype=torch.float64))
    assert_close(q.var[:, 2], trained.model.prior.kernel.embed(trained.features(x).double()).square().sum(-1))
    assert_close(q.mean[:, :2], trained.marginals(two.posterior, x).mean)


def one_class(kernel=None, sites=None) -> Learner:
    return Learner(softmax(sites or SimplifiedSites(m=3.0, s=0.5), kernel=kernel or kernels.Cosine()), samples=20_000)


@pytest.mark.parametrize("kernel", [kernels.Cosine, kernels.RBF])
def test_rows_of_one_class_leave_the_others_possible(kernel) -> None:
    """However often a point is seen, p = E sigmoid(m - f) with f ~ N(0, k) of the class without points, by SciPy."""
    (x, _), learner = points(1), one_class(kernel())
    for n in (1, 10, 1000):
        task = learner.adapt((x.expand(n, -1), ["no"] * n), classes=("no", "yes"))
        assert isinstance(task, Conditioned if kernel is kernels.RBF else Memorised)
        found = task.predict(x).probabilities[0]
        k, s = 1.0, 0.5 / n
        mean, var = 3.0 * k / (k + s), k - k * k / (k + s) + k
        expected = stats.norm.expect(special.expit, loc=mean, scale=var**0.5)
        assert float(found[0]) == pytest.approx(expected, abs=0.01) and 0.6 < float(found[0]) < 0.95
    # It takes a point of the other class to know better, and then both are as if they had been there from the start.
    both = task.update((-x, ["yes"]))
    same(both, learner.adapt((torch.cat([x.expand(1000, -1), -x]), ["no"] * 1000 + ["yes"])), tol=1e-6)
    assert float(both.predict(x).probabilities[0, 0]) > float(found[0])


def test_a_class_without_points_is_what_a_method_says_without_points() -> None:
    """MAML, whose classes are columns of its weights: those of the class without points are the meta-learned ones."""
    built = maml(cases.backbone(), likelihoods.Softmax(3), descent=cases.descent()).double()
    learner, (x, y) = Learner(built), points(8, classes=2)
    found = learner.adapt((x, y), classes=(0, 1, 2)).predict(x).probabilities
    mask = torch.ones(8, dtype=torch.bool)
    with torch.no_grad():
        adapted, untouched = (
            built.encode(Examples(x[:n], y[:n], mask[:n]), Points(x, mask)).marginals().f for n in (8, 0)
        )
    assert_close(found, torch.cat([adapted[:, :2], untouched[:, 2:]], -1).softmax(-1))


def test_permuted_classes_permute_the_probabilities_exactly() -> None:
    learner, (x, y) = Learner(softmax()), points(25, classes=3)
    names = ["cat", "dog", "eel"]
    labels = [names[i] for i in y]
    first = learner.adapt((x, labels))
    other = learner.adapt((x, labels), classes=("eel", "cat", "dog"))
    assert first.classes == ("cat", "dog", "eel")
    assert_close(first.predict(x).probabilities, other.predict(x).probabilities[:, [1, 2, 0]], rtol=1e-12, atol=1e-12)
    assert first.predict(x).labels == other.predict(x).labels


def test_labels_are_values_wherever_they_come_from() -> None:
    """3 is 3 as an int, in a tensor or in an array; labels that cannot be compared keep the order of appearance."""
    learner, (x, y) = Learner(softmax()), points(12, classes=3)
    ints, arrays = learner.adapt((x, y.tolist())), learner.adapt((x.numpy(), y.numpy()))
    same(ints, arrays.merge(learner.adapt((x[:0], []))))
    same(learner.adapt(Examples(x, y, torch.ones(12, dtype=torch.bool))), ints)
    assert all(type(k) is int for k in arrays.classes)
    mixed = learner.adapt((x, [("b", 1) if i == 2 else i.item() for i in y]))
    assert set(mixed.classes) == {0, 1, ("b", 1)}
    # Bernoulli: any two labels, in the order no, yes.
    binary = Learner(model(likelihoods.Bernoulli()))
    zero_one = binary.adapt((x, (y > 0).long()))
    assert zero_one.classes == (0, 1)
    named = binary.adapt((x, ["yes" if k else "no" for k in y > 0]))
    assert named.classes == ("no", "yes")
    assert_close(named.predict(x).probabilities, zero_one.predict(x).probabilities)
    same(binary.adapt((x[:1], y[:1] * 0)).update((x[1:], (y[1:] > 0).long())), binary.adapt((x, [0, *(y[1:] > 0)])))


def test_predictors_never_change() -> None:
    learner, (x, y) = Learner(softmax()), points(10, classes=3)
    first = learner.adapt((x, y))
    before = first.predict(x).probabilities.clone()
    kept = [t.clone() for t in (*first.memory.sums, first.memory.counts)]
    first.update((x, y)).forget((x[:3], y[:3]))
    first.merge(learner.adapt((x, [9] * 10)))
    assert torch.equal(first.predict(x).probabilities, before)
    assert all(torch.equal(a, b) for a, b in zip(kept, (*first.memory.sums, first.memory.counts), strict=True))
    assert (first.n, first.classes) == (10, (0, 1, 2))


def test_the_learner_keeps_the_model_it_was_given() -> None:
    """Training on leaves it alone; it is in evaluation mode whatever the model was in, and asks for no gradients."""
    original = model()
    learner, (x, y) = Learner(original.train()), points(8)
    before = learner.adapt((x, y)).predict(x).mean
    with torch.no_grad():
        for p in original.parameters():
            p.add_(1.0)
    assert torch.equal(learner.adapt((x, y)).predict(x).mean, before)
    assert original.training and not before.requires_grad


# Forgetting


def test_forgetting_everything_is_the_prior_to_the_last_bit() -> None:
    learner, (x, y) = Learner(model(dtype=torch.float32)), points(10)
    gone, never = learner.adapt((x, y)).forget((x, y)), learner.adapt((x[:0], y[:0]))
    assert gone.n == 0
    assert torch.equal(gone.predict(x).mean, never.predict(x).mean)
    assert torch.equal(gone.predict(x).variance, never.predict(x).variance)


def test_a_class_is_forgotten_with_its_last_point() -> None:
    learner, (x, y) = Learner(softmax()), points(20, classes=3)
    left = learner.adapt((x, y)).forget((x[y == 1], y[y == 1]))
    assert left.classes == (0, 2)
    same(left, learner.adapt((x[y != 1], y[y != 1])))
    # A class that was declared, and never had points to lose, stays.
    declared = learner.adapt((x, y), classes=(0, 1, 2, 3)).forget((x[y == 1], y[y == 1]))
    assert declared.classes == (0, 2, 3)


def test_forgetting_what_was_not_learned_is_refused() -> None:
    learner, (x, y) = Learner(model()), points(5)
    five = learner.adapt((x, y))
    with pytest.raises(ValueError, match="6 points cannot be forgotten where only 5 were learned"):
        five.forget((torch.cat([x, x[:1]]), torch.cat([y, y[:1]])))
    with pytest.raises(ValueError, match="not all among those learned.*negative eigenvalues"):
        five.forget((100 * x[:1], y[:1]))
    classifier, labels = Learner(softmax()), [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="3 points of class 1 cannot be forgotten of 2 learned"):
        classifier.adapt((x, labels)).forget((x[:3], [1, 1, 1]))
    with pytest.raises(ValueError, match="class 'x' were never learned"):
        classifier.adapt((x, labels)).forget((x[:1], ["x"]))


# Models without a memory


def conv(norm: str) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        phi = Conv4(1, 16, width=4, norm=norm)
        return gp_vib(phi, kernels.Cosine(bias=True), SimplifiedSites(), likelihoods.Softmax(3)).double()


def test_batch_norm_decides_whether_points_can_be_added() -> None:
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(9, 1, 16, 16)))
    y = torch.arange(9) % 3
    running = Learner(conv("running"))
    same_memory = running.adapt((x[:4], y[:4])).update((x[4:], y[4:]))
    assert isinstance(same_memory, Memorised)
    assert_close(same_memory.predict(x).probabilities, running.adapt((x, y)).predict(x).probabilities)

    point = Learner(conv("support+point")).adapt((x[:6], y[:6]))
    together = point.predict(x[6:]).probabilities
    alone = torch.cat([point.predict(x[i : i + 1]).probabilities for i in range(6, 9)])
    assert_close(together, alone, rtol=1e-9, atol=1e-9)
    across = Learner(conv("transductive")).adapt((x[:6], y[:6]))
    assert not torch.allclose(across.predict(x[6:]).probabilities[0], across.predict(x[6:7]).probabilities[0])
    for norm in ("support+point", "transductive"):
        learner = Learner(conv(norm))
        assert f"under batch-norm '{norm}' the features of old points change" in str(learner.trained.obstacle)
        grown = learner.adapt((x[:4], y[:4])).update((x[4:6], y[4:6]))
        assert isinstance(grown, Conditioned) and not grown.constant_size and same_memory.constant_size
        at_once = learner.adapt((x[:6], y[:6])).predict(x[6:]).probabilities
        assert torch.equal(grown.predict(x[6:]).probabilities, at_once)


def without_memory() -> dict[str, tuple[Model, str]]:
    by_name = {repr(case): case for case in cases.MODELS}
    found = {
        name: (cases.build(by_name[name]), reason)
        for name, reason in {
            "maml Gaussian": "GradientEncoder encodes all support points together",
            "stochastic-maml Gaussian": "GaussianGradientEncoder encodes all",
            "gp-maml Gaussian": "ComposedEncoder encodes all",
            "gp-vib RBF": "the kernel RBF has no explicit feature map",
            "gp-vib BNCosine": "under batch-norm 'support.point'",
        }.items()
    }
    return found | {
        "proto-net": (proto_net(cases.backbone(), 3).double(), "PrototypeEncoder encodes all"),
        "dkt": (dkt_linear(cases.backbone(), 3).double(), "RegressionEncoder encodes all"),
    }


def numbers(predictor: Predictor) -> torch.Tensor:
    found = predictor.predict(points(4, seed=1)[0])
    return found.probabilities if hasattr(found, "probabilities") else torch.stack([found.mean, found.variance])


@pytest.mark.parametrize("name", without_memory())
def test_models_without_a_memory_learn_on_by_keeping_their_points(name, tmp_path) -> None:
    """Every verb is the same as adapting to the points that are left of it, to the last bit; and so is a file."""
    built, reason = without_memory()[name]
    learner, classes = Learner(built), 3 if name in ("proto-net", "dkt") else 0
    x, y = points(12, classes=classes)
    y[:3] = torch.arange(3)  # of every class
    assert re.search(reason, str(learner.trained.obstacle))
    whole = learner.adapt((x, y))
    assert isinstance(whole, Conditioned) and not whole.constant_size and whole.n == 12
    expected = numbers(whole)
    assert torch.equal(numbers(whole), expected)  # always the same
    grown = learner.adapt((x[:6], y[:6])).update((x[6:7], y[6:7])).update((x[7:], y[7:]))
    assert torch.equal(numbers(grown), expected) and grown.n == 12
    named = {"classes": (0, 1, 2)} if classes else {}
    both = learner.adapt((x[:6], y[:6]), **named).merge(learner.adapt((x[6:], y[6:]), **named))
    assert torch.equal(numbers(both), expected)
    more = points(3, seed=5, classes=classes)
    assert torch.equal(numbers(grown.update(more).forget(more)), expected)
    assert torch.equal(numbers(grown.forget((x[7:9], y[7:9]))), numbers(learner.adapt((x[left], y[left]))))
    grown.save(tmp_path / "task")
    assert torch.equal(numbers(learner.load(tmp_path / "task")), expected)
    with pytest.raises(ValueError, match="not all among those learned: 1 of 2 are not"):
        whole.forget((torch.stack([x[0], x[0] + 1]), y[[0, 1]]))
    with pytest.raises(TypeError, match=f"no memory of constant size: {reason}"):
        whole.save(tmp_path / "memory", form="memory")
    assert not (tmp_path / "memory").exists()


left = [0, 1, 2, 3, 4, 5, 6, 9, 10, 11]


def test_a_point_learned_twice_is_forgotten_once() -> None:
    learner, (x, y) = Learner(model(kernel=kernels.RBF())), points(4)
    twice = learner.adapt((x, y)).update((x[:1], y[:1]))
    assert_close(numbers(twice.forget((x[:1], y[:1]))), numbers(learner.adapt((x, y))), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="not all among those learned"):
        twice.forget((x[:1].expand(3, -1), y[:1].expand(3)))


def test_what_a_user_does_to_an_array_later_changes_no_predictor() -> None:
    for kernel in (kernels.Linear(), kernels.RBF()):
        learner, (x, y) = Learner(model(kernel=kernel)), points(5)
        task = learner.adapt((x, y))
        before = numbers(task)
        x.zero_()
        y.zero_()
        assert torch.equal(numbers(task), before)


def test_the_number_of_classes_is_free_unless_weights_know_it() -> None:
    x, y = points(24, classes=6)
    assert Learner(softmax()).adapt((x, y)).predict(x).probabilities.shape == (24, 6)
    assert Learner(proto_net(cases.backbone(), 3).double()).adapt((x, y)).predict(x).probabilities.shape == (24, 6)
    headed = Learner(maml(cases.backbone(), likelihoods.Softmax(3), descent=cases.descent()).double())
    with pytest.raises(ValueError, match="weights for 3 classes; got 6"):
        headed.adapt((x, y))
    assert headed.adapt((x[y < 2], y[y < 2]), classes=(0, 1, 2)).predict(x).probabilities.shape == (24, 3)


# What is refused


def test_wrong_data_is_refused_by_name() -> None:
    (x, y), regressor, classifier = points(4), Learner(model()), Learner(softmax())
    task = regressor.adapt((x, y))
    with pytest.raises(ValueError, match=r"an input of this task has the shape \(2,\); got \(3,\)"):
        task.update((torch.zeros(1, 3), [0.0]))
    with pytest.raises(ValueError, match=r"shape \(2,\); got \(3,\)"):
        task.predict(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="NaN"):
        task.predict(torch.full((1, 2), torch.nan))
    with pytest.raises(ValueError, match="single number"):
        task.predict(1.0)
    with pytest.raises(ValueError, match="adapts to one task"):
        regressor.adapt((x.expand(3, 4, 2), y.expand(3, 4)))
    with pytest.raises(ValueError, match=r"adapts to one task, y \(n,\); got y \(3, 4\)"):
        classifier.adapt(examples(x.expand(3, 4, 2), torch.zeros(3, 4, dtype=torch.long)))
    with pytest.raises(ValueError, match="Gaussian has no classes"):
        regressor.adapt((x, y), classes=(1, 2))
    with pytest.raises(ValueError, match="hashable, and not NaN"):
        classifier.adapt((x, [1.0, float("nan"), 2.0, 1.0]))
    with pytest.raises(ValueError, match="hashable, and not NaN; got .* of type list"):
        classifier.adapt((x, [[1], [2], [3], [4]]))
    with pytest.raises(ValueError, match="label 3, which is not among the classes"):
        classifier.adapt((x, [0, 1, 2, 3]), classes=(0, 1, 2))
    with pytest.raises(ValueError, match="each class has one label"):
        classifier.adapt((x, [0, 1, 0, 1]), classes=(0, 1, 1))
    with pytest.raises(ValueError, match="nothing is known of any class yet"):
        classifier.adapt((x[:0], [])).predict(x)
    with pytest.raises(ValueError, match="counts"):
        Learner(model(likelihoods.Poisson())).adapt((x, y - 10))
    binary = Learner(model(likelihoods.Bernoulli()))
    with pytest.raises(ValueError, match="needs two labels"):
        binary.adapt((x, ["a", "a", "a", "a"]))
    with pytest.raises(ValueError, match="two classes, here .*got 'c' too"):
        binary.adapt((x, ["a", "b", "a", "b"])).update((x[:1], ["c"]))
    with pytest.raises(ValueError, match="of different models"):
        task.merge(Learner(model(kernel=kernels.Cosine(bias=True))).adapt((x, y)))
    with pytest.raises(ValueError, match="inputs of the two tasks differ"):
        task.merge(regressor.adapt((torch.zeros(0, 3), [])))
    with pytest.raises(ValueError, match="several repeats"):
        Learner(stack([model(), model()]))


# From a run


def test_from_run_uses_the_selected_checkpoint(tmp_path) -> None:
    """On any device it was trained on, in either precision, and one of several repeats."""
    config = tiny.sinusoid(repeats=2)
    trained = train.train(config, tmp_path / "run", quiet=True)
    x, y = torch.linspace(-2, 2, 9), torch.linspace(-2, 2, 9).sin()
    for repeat in (0, 1):
        found = Learner.from_run(tmp_path / "run", repeat=repeat).adapt((x, y)).predict(x)
        support = Examples(*(t.expand(2, 1, *t.shape) for t in examples(x, y)))
        with torch.no_grad():
            mean, var = trained.likelihood.predict(trained(Task(support, support)))
        assert_close(found.mean.float(), mean[repeat, 0], rtol=1e-3, atol=1e-4)
        assert_close(found.variance.float(), var[repeat, 0], rtol=1e-3, atol=1e-4)
    double = Learner.from_run(tmp_path / "run", precision="float64")
    assert double.trained.dtype == torch.float64
    assert double.fingerprint == Learner.from_run(tmp_path / "run").fingerprint
    assert double.fingerprint != Learner.from_run(tmp_path / "run", repeat=1).fingerprint
    with pytest.raises(ValueError, match="repeats 0 to 1; got 2"):
        Learner.from_run(tmp_path / "run", repeat=2)
    with pytest.raises(ValueError, match="precision must be one of"):
        Learner.from_run(tmp_path / "run", precision="float8")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        Learner.from_run(tmp_path / "elsewhere")


def test_a_run_of_a_gpu_machine_is_used_on_a_cpu(tmp_path) -> None:
    """The config says cuda; here there may be none, and nobody asked for it. The best on validation is taken."""
    config = override(tiny.sinusoid(), {"device": "cuda", "train.select": "best"})
    model = build.model(config)
    checkpoint.save(tmp_path / run_folder.LAST, config, 4, 0.0, model)
    with torch.no_grad():
        model.likelihood.noise.raw.add_(1.0)
    checkpoint.save(tmp_path / run_folder.BEST, config, 2, 0.0, model)
    learner = Learner.from_run(tmp_path)
    assert learner.device == torch.device("cpu")
    assert torch.equal(learner.trained.model.likelihood.noise.raw, model.likelihood.noise.raw)
    assert learner.fingerprint == Learner(model).fingerprint
