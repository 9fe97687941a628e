"""Supports longer than what goes through a network at once: streamed into the memory, or shown to steps in turn."""

import pytest
import torch

import cases
import tiny
from metavib import encoders, methods
from metavib.encoders import Descent, SimplifiedSites
from metavib.kernels import RBF, BNCosine, Cosine, Linear
from metavib.likelihoods import Softmax
from metavib.networks import Conv4
from metavib.tasks.task import Examples, Task
from metavib.training import build
from metavib.training.protocols.classification import Classification

WAYS, QUERIES = 3, 5
KERNELS = {
    "linear": lambda: Linear(bias=True),
    "cosine": lambda: Cosine(bias=True),
    "bn-cosine": lambda: BNCosine(4, norm="running"),
    "rbf": RBF,
}


def episodes(shots: int, *, tasks: int = 2) -> Task:
    """Images of 16 x 16, class by class."""
    g = torch.Generator().manual_seed(0)

    def side(each: int) -> Examples:
        x = torch.randn(tasks, WAYS * each, 1, 16, 16, generator=g, dtype=torch.float64)
        y = torch.arange(WAYS).repeat_interleave(each).expand(tasks, -1)
        return Examples(x, y, torch.ones_like(y, dtype=torch.bool))

    task = side(shots), side(QUERIES)
    task[0].mask[0, -2:] = False  # ragged: masked points must drop out of a part as they do of the whole
    return Task(*task)


def network(norm: str = "running") -> Conv4:
    return Conv4(1, 16, width=4, norm=norm)


@pytest.fixture
def seen(monkeypatch):
    """Parts of 7 points; how many points of a task went through each convolution."""
    sizes = []
    monkeypatch.setattr(encoders.additive, "PART", 7)
    plain = Conv4.forward

    def forward(self, inputs):
        sizes.append(inputs.x.shape[-4])
        return plain(self, inputs)

    monkeypatch.setattr(Conv4, "forward", forward)
    return sizes


@pytest.mark.parametrize("kernel", ["linear", "cosine", "bn-cosine"])
@pytest.mark.parametrize("steps", [None, 2])
def test_a_long_support_is_streamed_and_says_the_same(kernel, steps, seen):
    """GP-VIB and GP+MAML: no more than a part of the support at a time, and the marginals of the whole."""
    parts = (network(), KERNELS[kernel](), SimplifiedSites(), Softmax(WAYS))
    if steps is None:
        model = methods.gp_vib(*parts)
    else:
        model = methods.gp_maml(*parts, descent=Descent(steps=steps, rate=0.1, points=WAYS), beta=0.1)
    model = model.double().eval()
    task = episodes(9)
    whole = model(task, torch.Generator().manual_seed(1))  # with gradients, hence at once
    assert max(seen) >= 27
    seen.clear()
    with torch.no_grad():
        streamed = model(task, torch.Generator().manual_seed(1))
    assert max(seen) <= max(7, WAYS * QUERIES) and len(seen) >= 4
    for q, p in zip(streamed, whole, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("kernel", "norm"), [("rbf", "running"), ("linear", "transductive")])
def test_what_has_no_memory_takes_the_support_at_once(kernel, norm, seen):
    """A kernel without a feature map, or features that depend on other points."""
    model = methods.gp_vib(network(norm), KERNELS[kernel](), SimplifiedSites(), Softmax(WAYS)).double().eval()
    with torch.no_grad():
        model(episodes(9))
    assert seen == [27 + WAYS * QUERIES]


def test_the_steps_of_a_descent_go_through_the_support_and_see_each_class_alike():
    """15 shots, a point a class and step: 15 steps have seen every point once, the 16th begins to see some again."""
    n = WAYS * 15
    x = torch.arange(n, dtype=torch.float64)[:, None].expand(2, n, 1)
    y = torch.arange(WAYS).repeat_interleave(15).expand(2, n)
    support = Examples(x, y, torch.ones_like(y, dtype=torch.bool))
    descent = Descent(points=WAYS)
    parts = [descent.part(support, i) for i in range(15)]
    assert sorted(int(k) for part in parts for k in part.x[0, :, 0]) == list(range(n))
    assert all(part.y.tolist() == [[0, 1, 2]] * 2 and part.mask.all() for part in parts)
    assert set(descent.part(support, 15).x.flatten().tolist()) <= set(x.flatten().tolist())
    for whole in (Descent(), Descent(points=n), Descent(points=n + 1)):
        assert whole.part(support, 3) is support


def test_shuffled_steps_see_every_point_once_in_a_pass_in_an_order_of_each_tasks_own():
    """45 points, three a step: 15 steps are a pass, and the next pass has another order."""
    n = WAYS * 15
    x = torch.arange(n, dtype=torch.float64)[:, None].expand(2, n, 1)
    support = Examples(x, torch.arange(n).expand(2, n), torch.ones(2, n, dtype=torch.bool))
    descent = Descent(steps=20, points=WAYS, shuffle=True)
    orders = descent.orders(support, torch.Generator().manual_seed(0))
    parts = [descent.part(support, i, orders) for i in range(20)]
    for part in parts:
        assert part.x.shape == (2, WAYS, 1) and torch.equal(part.x.squeeze(-1), part.y.double()) and part.mask.all()
    for task in range(2):
        seen = [part.y[task].tolist() for part in parts]
        assert sorted(k for some in seen[:15] for k in some) == list(range(n)) and seen[:5] != seen[15:]
    assert parts[0].y[0].tolist() != parts[0].y[1].tolist()
    again, other = (descent.orders(support, torch.Generator().manual_seed(s)) for s in (0, 1))
    assert torch.equal(orders, again) and not torch.equal(orders, other)
    assert Descent(points=n, shuffle=True).orders(support, None) is None  # all points in every step


def test_shuffled_steps_want_to_be_told_what_to_draw_from():
    """A stream; base samples of the likelihood's say nothing of an order, which is then always the same."""
    descent = Descent(steps=3, rate=0.1, points=2, shuffle=True)
    model = methods.maml(cases.backbone(), cases.gaussian(), descent=descent).double()
    task = cases.tasks(model.likelihood, (2,))
    with pytest.raises(ValueError, match="pass noise"):
        model(task)
    base = torch.zeros(1, 1, 1, 1)
    assert torch.equal(model(task, base).mean, model(task, base).mean)
    one, other = (model(task, torch.Generator().manual_seed(s)).mean for s in (0, 1))
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("recompute", [False, True])
def test_steps_on_few_points_are_gradient_steps_on_those_points(recompute):
    """MAML with two points a step against plain autograd, one step after the other, and so are its meta-gradients."""
    options = dict(steps=3, rate=0.1, points=2, recompute=recompute)
    model = methods.maml(cases.backbone(), cases.gaussian(), descent=Descent(**options)).double()
    task = cases.tasks(model.likelihood, seed=4)
    task = Task(Examples(*(t[:4] for t in task.support)), task.query)
    theta = dict(model.prior.network.theta())

    def log_p(psi, s):
        f = torch.func.functional_call(model.prior.network.body, psi, (cases.inputs(s),))
        return model.likelihood.log_prob(f, s.y).mean()

    psi = dict(theta)
    for places in ([0, 2], [1, 3], [2, 0]):
        part = Examples(*(t[places] for t in task.support))
        slopes = torch.autograd.grad(log_p(psi, part), list(psi.values()), create_graph=True)
        psi = {name: p + 0.1 * g for (name, p), g in zip(psi.items(), slopes, strict=True)}
    expected = log_p(psi, task.query)
    found = model.likelihood.log_prob(model(task).mean, task.query.y).mean()
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(v, list(theta.values())) for v in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_negative_number_of_points_is_refused():
    with pytest.raises(ValueError, match="at all for 0; got points=-1"):
        Descent(points=-1)


def test_a_test_with_more_shots_than_pictures_streams_augmented_draws_of_them(seen):
    """Augmented Omniglot in small: trained with 2 shots, tested with 2 and with 9, of classes with 8 pictures each."""
    changes = dict(tasks__alphabets=True, tasks__augment=True, tasks__augment_test=True, test__shots=[2, 9])
    world = Classification(tiny.glyphs(**changes), tiny.splits())
    model = build.model(world.config)
    seen.clear()
    result = world.evaluate(model, quiet=True)
    assert [row["shots"] for row in result["rows"]] == [2, 9]
    assert set(seen[1:]) == {7, 9, 6}  # 27 points in parts of 7, and the 9 query points
    source = world._episodes(world.splits.test, ways=3, shots=9, queries=1)
    support = source.sample((), torch.Generator().manual_seed(0)).support
    assert len(support.x.flatten(1).unique(dim=0)) == 27 and (source.shots, source.pictures) == (9, 2)


def test_images_of_validation_and_test_move_only_where_that_is_asked_for():
    """Two draws of the same episodes differ under `augment_test`, and training images are augmented either way."""
    for moves in (False, True):
        config = tiny.glyphs(tasks__augment=True, tasks__augment_test=moves)
        world = Classification(config, tiny.splits())
        source = world._episodes(world.splits.test, ways=3, shots=2, queries=3)
        assert source.random == moves and world.source.random
