"""What grows with what: calls of growing size, each with the growth that the theory says.

The GP algebra is measured on given features, forward and backward as in a training step: the network before it costs
the same for every form of the posterior. THEORY.md, sections 4 to 7, has the derivations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.measure import Call
from metavib.adapt.learner import Learner
from metavib.encoders import Descent, ExactSites
from metavib.kernels import Linear
from metavib.likelihoods import Gaussian, Softmax
from metavib.methods import gp_vib, maml
from metavib.networks import MLP, Conv4
from metavib.objective import bound, vib
from metavib.posteriors import Dual, Encoding, Primal, Sites, memorise, posterior
from metavib.random import seeded
from metavib.tasks import examples, task

FEATURES, POINTS, QUERIES = 64, 64, 16
"""M, n and v where they do not vary."""


class Line(NamedTuple):
    """One way to do something.

    Args:
        name: of the line.
        call: what is done at a size.
        work: the power of the size that operations grow with, at most.
        memory: the power that the peak of memory grows with, at most.
    """

    name: str
    call: Callable[[int], Call]
    work: float
    memory: float


class Curve(NamedTuple):
    """Lines over the same sizes.

    Args:
        name: of the curve.
        size: what varies, in words.
        sizes: its values, each at least the one before.
        lines: the ways compared.
    """

    name: str
    size: str
    sizes: tuple[int, ...]
    lines: tuple[Line, ...]


def gp_step(make: Callable[..., Any], *, n: int, M: int, N: int = 0, tasks: tuple[int, ...] = ()) -> Call:
    """Bound and gradient of tasks whose features are there.

    Args:
        make: the posterior of a kernel, features, mask and sites.
        n: support points.
        M: features.
        N: classes, by softmax with 200 samples; 0 for real outputs.
        tasks: the batch.
    """
    generator = seeded(0)
    kernel, likelihood = Linear(), Softmax(N) if N else Gaussian(0.1)
    phi_t, phi_v = (torch.randn(*tasks, p, M, generator=generator).requires_grad_() for p in (n, QUERIES))
    sites = Sites(torch.randn(*tasks, n, N or 1, generator=generator), torch.full((*tasks, n), 0.1))
    mask = torch.ones(*tasks, n, dtype=torch.bool)
    y = torch.randint(N, (*tasks, QUERIES)) if N else torch.randn(*tasks, QUERIES, generator=generator)
    query = examples(phi_v.detach(), y)

    def call() -> None:
        encoding = Encoding(make(kernel, phi_t, mask, sites), phi_v)
        value = bound(encoding, likelihood, query, beta=1.0, noise=generator).value.sum()
        torch.autograd.grad(value, (phi_t, phi_v))

    return call


def dual(kernel: Linear, phi: Any, mask: Any, sites: Sites) -> Dual:
    return Dual(kernel, kernel.embed(phi), mask, sites)


def primal(kernel: Linear, phi: Any, mask: Any, sites: Sites) -> Primal:
    return Primal(kernel, memorise(kernel.embed(phi), mask, sites))


def stream_step(act: Callable[[Any, Any, Any], Any]) -> Callable[[int], Call]:
    """Something done with 16 points by a learner that has seen many."""

    def at(points: int) -> Call:
        torch.manual_seed(0)
        learner = Learner(gp_vib(MLP(1, (40, FEATURES)), Linear(), ExactSites(), Gaussian(0.1)))
        x = torch.linspace(-5, 5, points).unsqueeze(-1)
        seen = learner.adapt((x, x[:, 0].sin()))
        new = torch.linspace(-1, 1, QUERIES).unsqueeze(-1)
        return lambda: act(seen, new, new[:, 0].sin())

    return at


def maml_step(**options: bool) -> Callable[[int], Call]:
    """Second-order MAML on Conv4, 28 x 28, 5-way 1-shot, one query image a class."""

    def at(steps: int) -> Call:
        torch.manual_seed(0)
        model = maml(Conv4(1, 28, norm="transductive"), Softmax(5), descent=Descent(steps=steps, **options)).train()
        images = examples(torch.randn(5, 1, 28, 28, generator=seeded(0)), torch.arange(5))
        parameters = list(model.parameters())

        def call() -> None:
            torch.autograd.grad(vib(model, task(images, images), beta=0.0).value, parameters)

        return call

    return at


CURVES = (
    Curve(
        "support",
        f"support points n (M = {FEATURES})",
        (8, 16, 32, 64, 128, 256, 512, 1024),
        (
            Line("dual", lambda n: gp_step(dual, n=n, M=FEATURES), work=3, memory=2),
            Line("primal", lambda n: gp_step(primal, n=n, M=FEATURES), work=1, memory=1),
            Line("the cheaper, as chosen", lambda n: gp_step(posterior, n=n, M=FEATURES), work=3, memory=2),
        ),
    ),
    Curve(
        "features",
        f"features M (n = {POINTS})",
        (8, 16, 32, 64, 128, 256, 512, 1024),
        (
            Line("dual", lambda M: gp_step(dual, n=POINTS, M=M), work=1, memory=1),
            Line("primal", lambda M: gp_step(primal, n=POINTS, M=M), work=3, memory=2),
            Line("the cheaper, as chosen", lambda M: gp_step(posterior, n=POINTS, M=M), work=3, memory=2),
        ),
    ),
    Curve(
        "ways",
        f"ways N (n = {POINTS}, softmax)",
        (2, 4, 8, 16, 32, 64, 128),
        (Line("bound and gradient", lambda N: gp_step(posterior, n=POINTS, M=FEATURES, N=N), work=1, memory=1),),
    ),
    Curve(
        "tasks",
        "tasks a batch (n = 10, M = 40)",
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
        (Line("bound and gradient", lambda B: gp_step(posterior, n=10, M=40, tasks=(B,)), work=1, memory=1),),
    ),
    Curve(
        "stream",
        f"points seen before (M = {FEATURES})",
        (10, 100, 1_000, 10_000, 100_000),
        (
            Line("update by 16 points", stream_step(lambda seen, x, y: seen.update((x, y))), work=0, memory=0),
            Line(
                "update, predict 16", stream_step(lambda seen, x, y: seen.update((x, y)).predict(x)), work=0, memory=0
            ),
        ),
    ),
    Curve(
        "inner steps",
        "MAML's inner steps k (Conv4)",
        (1, 2, 5, 10, 20),
        (
            Line("kept", maml_step(), work=1, memory=1),
            Line("recomputed", maml_step(recompute=True), work=1, memory=1),
            Line("first order", maml_step(first_order=True), work=1, memory=0),
        ),
    ),
)
