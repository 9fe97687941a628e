"""DKT against GPyTorch: one ExactGP a class, its marginal likelihood and its posterior, and loops in NumPy."""

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from metavib.baselines import dkt, dkt_bn_cosine, dkt_cosine, dkt_linear, evidence, proto_net
from metavib.baselines.dkt import MeanSoftmax
from metavib.kernels import Linear
from metavib.marginals import Normal
from metavib.model import Model
from metavib.networks import MLP
from metavib.objective import vib
from metavib.tasks.inputs import points
from metavib.tasks.task import Examples, Task

with warnings.catch_warnings():  # GPyTorch still scripts functions as it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import gpytorch

WAYS, INPUTS = 4, 5
KINDS = {"linear": dkt_linear, "cosine": dkt_cosine, "bn_cosine": dkt_bn_cosine}


def build(kind: str, slots: int | None = None, widths: tuple[int, ...] = (6,)) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = KINDS[kind](MLP(INPUTS, widths), WAYS, slots=slots).double()
        with torch.no_grad():  # hyperparameters of the slots apart from each other
            model.prior.mean.add_(0.3 * torch.randn_like(model.prior.mean))
            model.prior.kernel.log_scale.add_(0.5 * torch.randn_like(model.prior.mean))
    return model


def make_task(seed: int, n: int = 8, v: int = 6) -> Task:
    g = torch.Generator().manual_seed(seed)

    def draw(k: int) -> Examples:
        y = torch.randint(WAYS, (k,), generator=g)
        x = torch.randn(k, INPUTS, generator=g, dtype=torch.float64)
        return Examples(x, y, torch.ones(k, dtype=torch.bool))

    return Task(draw(n), draw(v))


class ClassGP(gpytorch.models.ExactGP):
    """The GP of one class slot as DKT writes it: constant mean, output scale x variance x z.z'."""

    def __init__(self, z: Tensor, targets: Tensor, mean: Tensor, scale: Tensor) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = 0.1
        super().__init__(z, targets, likelihood)
        self.mean_module = gpytorch.means.ConstantMean().double()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.LinearKernel()).double()
        self.mean_module.constant = mean
        self.covar_module.outputscale = scale / 0.7  # only the product of the two scales matters
        self.covar_module.base_kernel.variance = 0.7

    def forward(self, z: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(z), self.covar_module(z))


def class_gps(model: Model, z: Tensor, y: Tensor) -> list[ClassGP]:
    prior = model.prior
    mean, scale = (t.detach().expand(WAYS) for t in (prior.mean, prior.kernel.log_scale.exp()))
    return [ClassGP(z, 2.0 * (y == n).double() - 1.0, mean[n], scale[n]) for n in range(WAYS)]


@pytest.mark.parametrize("slots", [None, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [8, 1])
def test_the_objective_is_gpytorchs_marginal_likelihood_of_support_and_query(
    kind: str, slots: int | None, n: int
) -> None:
    """8 + 6 points on 6 features use the primal form, 1 + 3 points the dual."""
    model, task = build(kind, slots), make_task(1, n=n, v=6 if n > 1 else 3)
    with torch.no_grad():
        ours = evidence(model, task)
        z = torch.cat(model.prior.features(task.support, points(task.query)))
    y = torch.cat([task.support.y, task.query.y])
    theirs = 0.0
    for gp in class_gps(model, z, y):
        gp.train()
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(gp.likelihood, gp)
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
            theirs += float(mll(gp(z), gp.train_targets)) * len(y)  # theirs is a mean over points
    assert float(ours.fit) == pytest.approx(theirs, rel=1e-6)
    assert float(ours.value) == float(ours.fit) and float(ours.rate) == 0.0


@pytest.mark.parametrize("slots", [None, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_gpytorchs_posterior_means(kind: str, slots: int | None) -> None:
    model, task = build(kind, slots), make_task(2)
    model.eval()
    with torch.no_grad():
        q = model(task)
        z_t, z_v = model.prior.features(task.support, points(task.query))
    for n, gp in enumerate(class_gps(model, z_t, task.support.y)):
        gp.eval()
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
            theirs = gp(z_v)
        torch.testing.assert_close(q.mean[:, n], theirs.mean, rtol=1e-6, atol=1e-6)
        var = q.var.expand_as(q.mean)[:, n]
        torch.testing.assert_close(var, theirs.variance, rtol=1e-5, atol=1e-5)
    p = model.likelihood.predict(q)
    assert torch.equal(p.argmax(-1), q.mean.sigmoid().argmax(-1))
    torch.testing.assert_close(p, q.mean.softmax(-1))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_objective_equals_a_dense_gaussian(kind: str) -> None:
    """Also at the start, where DKT's kernels have scale log 2 (cosine) and (log 2)^2 (linear, no 1/M)."""
    model = KINDS[kind](MLP(INPUTS, ()), WAYS).double()
    task = make_task(3)
    x = torch.cat([task.support.x, task.query.x]).numpy()
    y = torch.cat([task.support.y, task.query.y]).numpy()
    k = np.log(2) ** 2 * x @ x.T
    if kind == "cosine":
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        k = np.log(2) * unit @ unit.T
    K = k + 0.1 * np.eye(len(x))
    total = 0.0
    for n in range(WAYS):
        t = np.where(y == n, 1.0, -1.0)
        total += -0.5 * (t @ np.linalg.solve(K, t) + np.linalg.slogdet(K)[1] + len(t) * np.log(2 * np.pi))
    assert evidence(model, task).fit.item() == pytest.approx(total, rel=1e-5)


def test_bn_cosine_normalises_support_and_query_together_in_training() -> None:
    model, task = build("bn_cosine"), make_task(4)
    phi = model.prior.functions.network.body
    with torch.no_grad():
        z = torch.cat(model.prior.features(task.support, points(task.query)))
        x = torch.cat([task.support.x, task.query.x])
        raw = torch.relu(phi.layers[0](x))
    normed = (raw - raw.mean(0)) / (raw.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(z, normed / normed.norm(dim=-1, keepdim=True))


def test_relabelling_permutes_predictions_when_the_slots_move_along() -> None:
    """Slots with hyperparameters of their own are not exchangeable: DKT's predictions depend on the numbering."""
    model, task = build("linear"), make_task(5)
    renamed = torch.tensor([2, 0, 3, 1])
    other = Task(*(Examples(e.x, renamed[e.y], e.mask) for e in task))
    with torch.no_grad():
        before = model(task).mean
        assert not torch.allclose(model(other).mean[:, renamed], before)
        for p in (model.prior.mean, model.prior.kernel.log_scale):
            p[renamed] = p.clone()
        torch.testing.assert_close(model(other).mean[:, renamed], before)


def test_shared_hyperparameters_serve_any_number_of_classes() -> None:
    """The same means and scale under a likelihood of more classes."""
    model = build("cosine", 1)
    model.likelihood = MeanSoftmax(WAYS + 3)
    task = make_task(6)
    assert model(task).mean.shape == (6, WAYS + 3)
    assert model(task).var.shape == (6, 1)


def test_the_kl_is_finite_and_zero_without_support() -> None:
    """DKT's posterior is a density: only its objective is not the bound."""
    model, task = build("linear"), make_task(7)
    assert 0 < vib(model, task, beta=1.0).rate < torch.inf
    empty = Task(Examples(*(t[:0] for t in task.support)), task.query)
    assert vib(model, empty, beta=1.0).rate.item() == pytest.approx(0.0, abs=1e-12)


def test_mean_softmax_ignores_the_variance() -> None:
    mean = torch.randn(3, WAYS)
    p = MeanSoftmax(WAYS).predict(Normal(mean, torch.full((3, 1), 7.0)))
    torch.testing.assert_close(p, mean.softmax(-1))


def test_evidence_refuses_what_it_is_not_for() -> None:
    task = make_task(8)
    with pytest.raises(ValueError, match="no KL"):
        evidence(build("linear"), task, beta=0.1)
    with pytest.raises(TypeError, match="Use vib"):
        evidence(proto_net(MLP(INPUTS, (6,)), WAYS).double(), task)
    with pytest.raises(ValueError, match="slots must be 1"):
        dkt(MLP(INPUTS, (6,)), WAYS, kernel=Linear(learn_scale=False), slots=2)
