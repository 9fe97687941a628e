"""Each baseline against a slow version of itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

from metavib.baselines import AllWay, RelationScores, baseline_pp, feature_transfer, fine_tuned, proto_net, relation_net
from metavib.baselines.matching import LSTMCell, attend
from metavib.baselines.relation import RelationModule
from metavib.baselines.transfer import CosineHead, LinearHead
from metavib.data.labelled import Labelled
from metavib.marginals import Point
from metavib.model import Model
from metavib.networks import MLP
from metavib.tasks.inputs import Inputs, points
from metavib.tasks.task import Examples, Task
from small_baselines import COMMON, FITTED, MAP, WAYS, build, close, make_task, mlp, objective, probabilities

# ProtoNet -----------------------------------------------------------------------------------------------------------


def features(model: Model, task: Task) -> tuple[np.ndarray, np.ndarray]:
    t, v = model.prior.features(task.support, points(task.query))
    return t.detach().numpy(), v.detach().numpy()


def softmax(f: np.ndarray) -> np.ndarray:
    e = np.exp(f - f.max())
    return e / e.sum()


def agrees(model: Model, task: Task, p: np.ndarray) -> None:
    """The model predicts p, and its bound is the log likelihood of the query under p."""
    np.testing.assert_allclose(probabilities(model, task).detach(), p, rtol=1e-6, atol=1e-9)
    y = task.query.y.numpy()
    log_likelihood = sum(np.log(p[j, y[j]]) for j in range(len(y)))
    assert objective(model, task).item() == pytest.approx(log_likelihood, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_proto_net_equals_loops(seed: int) -> None:
    model, task = build("proto_net"), make_task(seed)
    phi_t, phi_v = features(model, task)
    y = task.support.y.numpy()
    p = []
    for x in phi_v:
        f = []
        for n in range(WAYS):
            c = np.mean([phi_t[j] for j in range(len(y)) if y[j] == n], 0)
            f.append(-np.sum((x - c) ** 2))
        p.append(softmax(np.array(f)))
    agrees(model, task, np.array(p))


# Nearest centroids and logistic regression ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_nearest_centroids_equal_loops(seed: int) -> None:
    model, task = build("nearest_centroids"), make_task(seed)
    phi_t, phi_v = features(model, task)
    y, gamma = task.support.y.numpy(), model.encoder.log_gamma.exp().item()
    p = []
    for x in phi_v:
        f = []
        for n in range(WAYS):
            c = np.mean([phi_t[j] / np.linalg.norm(phi_t[j]) for j in range(len(y)) if y[j] == n], 0)
            f.append(gamma * (x @ c) / np.linalg.norm(x) / np.linalg.norm(c))
        p.append(softmax(np.array(f)))
    agrees(model, task, np.array(p))


@pytest.mark.parametrize("strength", [1e-2, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("seed", range(2))
def test_logistic_regression_is_that_of_scikit_learn(seed: int, strength: float) -> None:
    model, task = build("logistic_regression"), make_task(seed, n=9)
    with torch.no_grad():
        model.encoder.log_strength.fill_(np.log(strength))
    u_t, u_v = (phi / np.linalg.norm(phi, axis=-1, keepdims=True) for phi in features(model, task))
    theirs = LogisticRegression(C=strength, fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(u_t, task.support.y.numpy())
    np.testing.assert_allclose(probabilities(model, task).detach(), theirs.predict_proba(u_v), atol=2e-5)


def test_the_derivative_of_logistic_regression_is_that_of_its_solution() -> None:
    """Although one step of many is differentiated: compared with solutions for a slightly other penalty."""
    model, task = build("logistic_regression"), make_task(1)
    strength = model.encoder.log_strength
    objective(model, task).backward()
    with torch.no_grad():
        values = [objective(model, task).item() for step in (-1e-5, 2e-5) if strength.add_(step) is strength]
    assert strength.grad.item() == pytest.approx((values[1] - values[0]) / 2e-5, rel=1e-6)


# MatchingNet --------------------------------------------------------------------------------------------------------


def match(f: np.ndarray, g: np.ndarray, y: np.ndarray, scale: float) -> np.ndarray:
    p = np.full((len(f), WAYS), 1e-6)
    for i, x in enumerate(f):
        cosines = np.array([x @ z / np.linalg.norm(x) / np.linalg.norm(z) for z in g])
        for j, a in enumerate(softmax(scale * np.maximum(cosines, 0))):
            p[i, y[j]] += a
    return p / p.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", range(3))
def test_matching_net_equals_loops(seed: int) -> None:
    model, task = build("matching_net"), make_task(seed)
    phi_t, phi_v = features(model, task)
    agrees(model, task, match(phi_v, phi_t, task.support.y.numpy(), 100.0))


@pytest.mark.parametrize(("name", "steps"), [("matching_net, full context", 7), ("matching_net, two steps", 2)])
def test_full_context_equals_loops(name: str, steps: int) -> None:
    model, task = build(name), make_task(2)
    phi_t, phi_v = features(model, task)
    context = model.encoder.context

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    def lstm(cell: LSTMCell, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        W, b = cell.gates.weight.detach().numpy(), cell.gates.bias.detach().numpy()
        i, f, g, o = np.split(W @ np.concatenate([x, h]) + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    g = phi_t.copy()
    for cell, order in ((context.forwards, range(7)), (context.backwards, range(6, -1, -1))):
        h = c = np.zeros(6)
        for j in order:
            h, c = lstm(cell, phi_t[j], h, c)
            g[j] += h
    f = []
    for x in phi_v:
        h, c = x, np.zeros(6)
        for _ in range(steps):
            r = softmax(g @ h) @ g
            h, c = lstm(context.attention, np.concatenate([x, r]), h, c)
            h = h + x
        f.append(h)
    agrees(model, task, match(np.array(f), g, task.support.y.numpy(), 10.0))


def test_the_lstm_cell_is_pytorchs() -> None:
    cell, theirs = LSTMCell(3, 4).double(), nn.LSTMCell(3, 4).double()
    with torch.no_grad():
        cell.gates.weight.copy_(torch.cat([theirs.weight_ih, theirs.weight_hh], 1))
        cell.gates.bias.copy_(theirs.bias_ih + theirs.bias_hh)
    x, h, c = (torch.randn(5, k, dtype=torch.float64) for k in (3, 4, 4))
    for ours, their in zip(cell(x, h, c), theirs(x, (h, c)), strict=True):
        close(ours, their)


def test_attention_to_nothing_is_zero() -> None:
    scores = torch.randn(2, 3, 4, requires_grad=True)
    mask = torch.tensor([[True, True, False, True], [False] * 4])
    a = attend(scores, mask)
    close(a[0].sum(-1), torch.ones(3), 1e-6)
    assert (a[1] == 0).all() and (a[0, :, 2] == 0).all()
    a.square().sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()


# RelationNet --------------------------------------------------------------------------------------------------------


def conv(x: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A 3 x 3 convolution padded by one, by loops: x (C, h, w)."""
    _, h, w = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    y = np.zeros((len(W), h, w))
    for o, i, j in np.ndindex(*y.shape):
        y[o, i, j] = np.sum(W[o] * padded[:, i : i + 3, j : j + 3]) + b[o]
    return y


def pool(x: np.ndarray) -> np.ndarray:
    C, h, w = x.shape
    a, b = (2 if h > 1 else 1), (2 if w > 1 else 1)
    y = np.zeros((C, h // a, w // b))
    for o, i, j in np.ndindex(*y.shape):
        y[o, i, j] = x[o, a * i : a * i + a, b * j : b * j + b].max()
    return y


def test_relation_net_equals_loops_over_pairs() -> None:
    """Concatenated maps of every pair, batch-norm over all pairs of the task, the squared error to one-hot labels."""
    model, task = build("relation_net"), make_task(1)
    phi = np.concatenate(features(model, task))
    n, y = 7, task.support.y.numpy()
    module = {k: p.detach().numpy() for k, p in model.encoder.module.state_dict().items()}
    maps = phi.reshape(-1, *MAP)
    means = [np.mean([maps[j] for j in range(n) if y[j] == k], 0) for k in range(WAYS)]
    W1 = np.concatenate([module["conv_class.weight"], module["conv_point.weight"]], 1)
    pairs = [np.concatenate([c, x]) for x in maps for c in means]

    def finish(all_maps: list[np.ndarray], layer: str) -> list[np.ndarray]:
        stacked = np.array(all_maps)
        mu = stacked.mean((0, 2, 3), keepdims=True)
        var = stacked.var((0, 2, 3), keepdims=True)
        scale, shift = (module[f"{layer}.{k}"].reshape(1, -1, 1, 1) for k in ("weight", "bias"))
        normed = (stacked - mu) / np.sqrt(var + 1e-5) * scale + shift
        return [pool(np.maximum(x, 0)) for x in normed]

    pairs = finish([conv(x, W1, module["conv_point.bias"]) for x in pairs], "norm_pair")
    pairs = finish([conv(x, module["conv.weight"], module["conv.bias"]) for x in pairs], "norm")
    f = []
    for x in pairs:
        h = np.maximum(module["fc.weight"] @ x.ravel() + module["fc.bias"], 0)
        f.append(float(module["score.weight"][0] @ h + module["score.bias"][0]))
    r = 1 / (1 + np.exp(-np.array(f).reshape(-1, WAYS)[n:]))
    np.testing.assert_allclose(probabilities(model, task).detach(), r / r.sum(1, keepdims=True), rtol=1e-8)
    label = task.query.y.numpy()
    loss = sum((r[j, k] - (label[j] == k)) ** 2 for j in range(len(label)) for k in range(WAYS))
    assert objective(model, task).item() == pytest.approx(-loss, rel=1e-8)


@pytest.mark.parametrize(("shape", "left"), [((8, 1, 1), 8), ((8, 5, 5), 8), ((2, 19, 19), 18)])
def test_relation_module_fits_the_maps_of_conv4(shape: tuple[int, int, int], left: int) -> None:
    """1 x 1 from images of 28, 5 x 5 from images of 84; 19 x 19 is Conv4 with its last two poolings left out."""
    module = RelationModule(shape)
    assert module.fc.weight.shape[-1] == left
    phi = torch.randn(6, int(np.prod(shape)))
    scores = module(torch.randn(3, phi.shape[1]), Inputs(phi, torch.ones(6, dtype=torch.bool), 2))
    assert scores.shape == (6, 3)


@pytest.mark.parametrize(
    ("norm", "training", "alone"),
    [
        ("support+point", True, True),
        ("support+point", False, True),
        ("running", False, True),
        ("none", True, True),
        ("running", True, False),
        ("transductive", False, False),
    ],
)
def test_relation_net_sees_other_queries_only_where_its_batch_norm_does(norm: str, training: bool, alone: bool) -> None:
    model, task = relation_net(mlp(18), WAYS, map_shape=MAP, norm=norm).double().train(training), make_task(6)
    other = task.query._replace(x=torch.cat([task.query.x[:1], 2 * task.query.x[1:] + 1]))
    before, after = probabilities(model, task)[0], probabilities(model, task._replace(query=other))[0]
    assert torch.allclose(before, after, rtol=1e-9) == alone


def test_relation_net_refuses_features_that_are_no_map() -> None:
    model = relation_net(mlp(6), WAYS, map_shape=MAP).double()
    with pytest.raises(ValueError, match="18 features; the backbone gives 6"):
        model(make_task())


def test_relation_scores_predictive_density_is_that_of_its_probabilities() -> None:
    likelihood, f = RelationScores(WAYS), torch.randn(5, WAYS, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1])
    p = likelihood.predict(Point(f))
    close(p, f.sigmoid() / f.sigmoid().sum(-1, keepdim=True))
    close(likelihood.log_predictive(Point(f), y), p.gather(-1, y[:, None])[:, 0].log())


# Feature Transfer and Baseline++ ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMON)
def test_phase_one_is_cross_entropy_over_all_classes(name: str) -> None:
    model, task = build(name), make_task(3)
    _, phi = features(model, task)
    w = {k: v.detach().numpy() for k, v in model.encoder.weights.items()}
    p = []
    for x in phi:
        if name == "feature_transfer":
            f = np.array([w["weight"][n] @ x + w["bias"][n] for n in range(WAYS)])
        else:
            cosines = [w["v"][n] @ x / np.linalg.norm(w["v"][n]) / np.linalg.norm(x) for n in range(WAYS)]
            f = 2.0 * w["g"] * np.array(cosines)
        p.append(softmax(f))
    agrees(model, task, np.array(p))


@pytest.mark.parametrize(("n", "steps"), [(7, 8), (4, 4), (3, 4)])
@pytest.mark.parametrize("name", FITTED)
def test_the_fitted_head_is_that_of_torch_sgd(name: str, n: int, steps: int) -> None:
    """4 epochs of 7 points in batches of 4 are 8 steps; each follows the whole support's gradient."""
    model, task = build(name), make_task(5, n=n)
    phi_t, phi_v = (torch.as_tensor(phi) for phi in features(model, task))
    head = model.encoder.head
    weights = {k: w.double().clone().requires_grad_() for k, w in head.fresh(WAYS).items()}
    optimiser = torch.optim.SGD(weights.values(), lr=0.01, momentum=0.9, dampening=0.9, weight_decay=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(head(phi_t, weights), task.support.y).backward()
        optimiser.step()
    agrees(model, task, head(phi_v, weights).softmax(-1).detach().numpy())


def test_a_new_task_starts_from_equal_probabilities() -> None:
    phi = torch.randn(4, 6)
    for head in (LinearHead(6), CosineHead(6)):
        close(head(phi, head.fresh(5)).softmax(-1), torch.full((4, 5), 0.2), 1e-6)


def test_fine_tuning_learns_and_leaves_the_network_alone() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(5).repeat_interleave(5)
    x = 3 * torch.eye(5)[y] + 0.1 * torch.randn(25, 5, generator=g)
    points_ = Examples(x, y, torch.ones(25, dtype=torch.bool))
    for phase_one in (feature_transfer, baseline_pp):
        trained = phase_one(MLP(5, ()), 300)
        model = fine_tuned(trained, 5)
        before = {k: p.clone() for k, p in trained.state_dict().items()}
        p = probabilities(model, Task(points_, points_))
        assert (p.argmax(-1) == y).all() and not p.requires_grad
        assert all(torch.equal(before[k], p) for k, p in trained.state_dict().items())
        assert torch.equal(p, probabilities(fine_tuned(trained, 5), Task(points_, points_)))
    assert model.encoder.head.scale == 2.0 and trained.encoder.head.scale == 10.0


def test_fine_tuning_refuses_other_models() -> None:
    with pytest.raises(TypeError, match="feature_transfer or baseline_pp"):
        fine_tuned(proto_net(mlp(), WAYS), WAYS)


def test_all_way_draws_labelled_images_without_support() -> None:
    images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1).expand(6, 1, 2, 2).contiguous()
    data = Labelled(images, torch.tensor([0, 1, 2, 0, 1, 2]), ("a", "b", "c"))
    source = AllWay(data, batch_size=50)
    task = source.sample((2, 3), torch.Generator().manual_seed(0))
    assert source.classes == 3
    assert task.support.x.shape == (2, 3, 0, 1, 2, 2) and task.query.x.shape == (2, 3, 50, 1, 2, 2)
    drawn = (255 * task.query.x[..., 0, 0, 0]).round().long()
    assert torch.equal(task.query.y, data.labels[drawn])
    assert drawn.unique().numel() == 6 and task.query.mask.all()
    again = source.sample((2, 3), torch.Generator().manual_seed(0))
    assert torch.equal(task.query.x, again.query.x)
    with pytest.raises(ValueError, match="batch_size"):
        AllWay(data, batch_size=0)
