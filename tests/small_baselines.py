"""Every baseline with a small network, tasks for it, and what it says of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from metavib.baselines import (
    SGD,
    FullContext,
    baseline_pp,
    dkt_bn_cosine,
    dkt_cosine,
    dkt_linear,
    evidence,
    feature_transfer,
    fine_tuned,
    logistic_regression,
    matching_net,
    nearest_centroids,
    proto_net,
    relation_net,
)
from metavib.likelihoods import Softmax
from metavib.model import Model
from metavib.networks import MLP
from metavib.objective import vib
from metavib.tasks.task import Examples, Task

WAYS, INPUTS, MAP = 3, 4, (2, 3, 3)


def mlp(features: int = 6) -> MLP:
    return MLP(INPUTS, (5, features))


def _pp() -> Model:
    return baseline_pp(mlp(), WAYS)


def _feature_transfer() -> Model:
    return feature_transfer(mlp(), WAYS)


METRIC: dict[str, Callable[[], Model]] = {
    "proto_net": lambda: proto_net(mlp(), WAYS),
    "nearest_centroids": lambda: nearest_centroids(mlp(), WAYS),
    "logistic_regression": lambda: logistic_regression(mlp(), WAYS),
    "matching_net": lambda: matching_net(mlp(), WAYS),
    "matching_net, full context": lambda: matching_net(mlp(), WAYS, context=FullContext(6), scale=10.0),
    "matching_net, two steps": lambda: matching_net(mlp(), WAYS, context=FullContext(6, steps=2), scale=10.0),
    "relation_net": lambda: relation_net(mlp(18), WAYS, map_shape=MAP, norm="transductive"),
    "relation_net, softmax": lambda: relation_net(
        mlp(18), WAYS, map_shape=MAP, norm="support+point", likelihood=Softmax(WAYS)
    ),
}
COMMON = {"feature_transfer": _feature_transfer, "baseline_pp": _pp}
FITTED: dict[str, Callable[[], Model]] = {
    "feature_transfer, fine-tuned": lambda: fine_tuned(_feature_transfer(), WAYS, sgd=SGD(epochs=4)),
    "baseline_pp, fine-tuned": lambda: fine_tuned(_pp(), WAYS, sgd=SGD(epochs=4)),
}
PROCESSES: dict[str, Callable[[], Model]] = {
    "dkt_linear": lambda: dkt_linear(mlp(), WAYS, slots=1),
    "dkt_cosine": lambda: dkt_cosine(mlp(), WAYS, slots=1),
    "dkt_bn_cosine": lambda: dkt_bn_cosine(mlp(), WAYS, norm="transductive", slots=1),
    "dkt_linear, own slots": lambda: dkt_linear(mlp(), WAYS),
}
ALL = METRIC | COMMON | FITTED | PROCESSES


def build(name: str) -> Model:
    """A model in float64 whose every parameter is away from its starting value."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = ALL[name]().double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.2 * torch.randn_like(p))
    return model


def objective(model: Model, task: Task) -> Tensor:
    return (vib(model, task, beta=0.0) if model.dirac else evidence(model, task)).value


def probabilities(model: Model, task: Task) -> Tensor:
    return model.likelihood.predict(model(task))


def make_task(seed: int = 0, *, batch: tuple[int, ...] = (), n: int = 7, v: int = 5) -> Task:
    g = torch.Generator().manual_seed(seed)

    def draw(k: int) -> Examples:
        x = torch.randn(*batch, k, INPUTS, generator=g, dtype=torch.float64)
        y = torch.randint(WAYS, (*batch, k), generator=g)
        y[..., :WAYS] = torch.arange(WAYS)
        return Examples(x, y, torch.ones_like(y, dtype=torch.bool))

    return Task(draw(n), draw(v))


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
