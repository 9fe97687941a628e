"""Every encoder, site encoder, kernel, likelihood, prior and posterior once: what the contract tests run over.

A case is a class and a way to build it. A new final class goes in here, or `test_contracts.py` fails and says so.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib import kernels, likelihoods
from metavib.encoders import (
    ClassEncoder,
    ComposedEncoder,
    Descent,
    ExactSites,
    FullSites,
    GaussianComposedEncoder,
    GaussianGradientEncoder,
    GeneralSites,
    GPEncoder,
    GradientEncoder,
    SimplifiedSites,
    UnitSites,
)
from metavib.methods import gaussian_classes, gp_maml, gp_vib, maml, stochastic_gp_maml, stochastic_maml
from metavib.model import Model
from metavib.networks import MLP
from metavib.posteriors import DiagonalNormal, Dirac, Dual, DualClasses, EachPoint, Joint, Primal, PrimalClasses
from metavib.priors import FunctionPrior, WeightPrior
from metavib.tasks import Examples, Task, examples, task
from metavib.tasks.inputs import Inputs

INPUTS, WIDTHS, CLASSES, SAMPLES = 2, (6, 4), 3, 7
FEATURES = WIDTHS[-1]


class Case(NamedTuple):
    """A class, and how to build one of it; tests are named after `name`."""

    name: str
    cls: type
    build: Callable[[], Any]

    def __repr__(self) -> str:
        return self.name


def case(cls: type, build: Callable[[], Any] | None = None, name: str | None = None) -> Case:
    return Case(name or cls.__name__, cls, build or cls)


# Embeddings of FEATURES features; with the bias feature where a kernel has one.
KERNELS = [
    case(kernels.Linear, lambda: kernels.Linear(bias=True)),
    case(kernels.Cosine, lambda: kernels.Cosine(bias=True)),
    case(kernels.BNCosine, lambda: kernels.BNCosine(FEATURES, norm="support+point", bias=True)),
    case(kernels.RBF, lambda: kernels.RBF(0.8)),
    case(kernels.Matern32, lambda: kernels.Matern32(0.8)),
    case(kernels.Matern52, lambda: kernels.Matern52(0.8)),
    case(kernels.Given),
]

LIKELIHOODS = [
    case(likelihoods.Gaussian, lambda: likelihoods.Gaussian(0.3)),
    case(likelihoods.LogNormal, lambda: likelihoods.LogNormal(0.3, edge=(-6.0, 1.6, 0.2, 80.0))),
    case(likelihoods.RootNormal, lambda: likelihoods.RootNormal(0.3, root=(-9.0, 4.0, 0.5, 0.1))),
    case(likelihoods.LogitNormal, lambda: likelihoods.LogitNormal(0.3, band=(-6.0, 8.0, -0.3, 0.4, -6.0, 8.0))),
    case(likelihoods.StudentT, lambda: likelihoods.StudentT(0.4, df=4.0)),
    case(likelihoods.Poisson),
    case(likelihoods.Bernoulli),
    case(likelihoods.Softmax, lambda: likelihoods.Softmax(CLASSES, samples=SAMPLES)),
]

SITES = [
    case(ExactSites),
    case(UnitSites),
    case(SimplifiedSites, lambda: SimplifiedSites(m=1.3, s=0.5)),
    case(FullSites, lambda: FullSites(FEATURES)),
    case(GeneralSites, lambda: GeneralSites(FEATURES, hidden=5)),
]


def descent(steps: int = 2, rate: float = 0.1, *, first_order: bool = False) -> Descent:
    return Descent(steps=steps, rate=rate, first_order=first_order)


def backbone() -> MLP:
    return MLP(INPUTS, WIDTHS)


def gaussian() -> likelihoods.Gaussian:
    return likelihoods.Gaussian(0.3)


def _linear() -> kernels.Linear:
    return kernels.Linear(bias=True)


def allowed(sites: type, likelihood: type) -> bool:
    """Whether a site encoder serves a likelihood."""
    if sites is ExactSites:
        return likelihood is likelihoods.Gaussian or issubclass(likelihood, likelihoods.Warped)
    return not (sites is GeneralSites and likelihood is likelihoods.Softmax)


def _models() -> list[Case]:
    """Each kernel, each pair of site encoder and likelihood, each gradient encoder with each likelihood, once."""
    found = []
    for k in KERNELS:
        found.append(
            case(GPEncoder, lambda k=k: gp_vib(backbone(), k.build(), ExactSites(), gaussian()), f"gp-vib {k}")
        )
    for s in SITES:
        for p in LIKELIHOODS:
            if allowed(s.cls, p.cls):
                build = lambda s=s, p=p: gp_vib(backbone(), _linear(), s.build(), p.build())  # noqa: E731
                found.append(case(GPEncoder, build, f"gp-vib {s} {p}"))
    for p in LIKELIHOODS:
        found += [
            case(GradientEncoder, lambda p=p: maml(backbone(), p.build(), descent=descent()), f"maml {p}"),
            case(
                GaussianGradientEncoder,
                lambda p=p: stochastic_maml(backbone(), p.build(), descent=descent(), variance=0.02, samples=SAMPLES),
                f"stochastic-maml {p}",
            ),
            case(
                ComposedEncoder,
                lambda p=p: gp_maml(
                    backbone(), _linear(), SimplifiedSites(), p.build(), descent=descent(rate=0.02), beta=0.5
                ),
                f"gp-maml {p}",
            ),
        ]
    found += [
        *(
            case(
                GaussianComposedEncoder,
                lambda p=p: stochastic_gp_maml(
                    *(backbone(), _linear(), SimplifiedSites(), p.build()),
                    **{"descent": descent(rate=0.02), "beta": 0.5, "beta_psi": 0.1, "variance": 0.02, "samples": 3},
                ),
                f"stochastic gp-maml {p}",
            )
            for p in LIKELIHOODS
        ),
        case(
            GPEncoder,
            lambda: gp_vib(backbone(), kernels.BNCosine(FEATURES, norm="union"), SimplifiedSites(), gaussian()),
            "gp-vib union",
        ),
        case(
            GaussianGradientEncoder,
            lambda: stochastic_maml(
                backbone(), gaussian(), descent=descent(), variance=0.02, separate_prior=0.1, samples=SAMPLES
            ),
            "stochastic-maml separate prior",
        ),
        case(
            ComposedEncoder,
            lambda: gp_maml(
                backbone(), kernels.Matern52(), ExactSites(), gaussian(), descent=descent(rate=0.02), beta=1.0
            ),
            "gp-maml Matern52 ExactSites",
        ),
        case(
            GradientEncoder,
            lambda: maml(backbone(), gaussian(), descent=descent(first_order=True)),
            "maml first order",
        ),
        case(
            ClassEncoder,
            lambda: gaussian_classes(backbone(), kernels.Cosine(bias=True), CLASSES),
            "gaussian-classes",
        ),
    ]
    return found


MODELS = _models()
ENCODERS = {m.cls for m in MODELS}
PRIORS = {FunctionPrior, WeightPrior}
POSTERIORS = {Dual, Primal, DualClasses, PrimalClasses, EachPoint, Dirac, DiagonalNormal, Joint}


def build(model: Case, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Model:
    """A model with random weights, the same for the same seed, leaving the global generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model.build().to(dtype)


def outputs(likelihood: likelihoods.Likelihood, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """Outputs this likelihood gives a probability to."""
    if isinstance(likelihood, likelihoods.ClassLikelihood):
        return torch.as_tensor(rng.integers(0, likelihood.classes, shape))
    if isinstance(likelihood, likelihoods.Poisson):
        return torch.as_tensor(rng.poisson(2.0, shape))
    return torch.as_tensor(rng.normal(size=shape))


def tasks(
    likelihood: likelihoods.Likelihood,
    batch: tuple[int, ...] = (),
    *,
    n: int = 5,
    v: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Task:
    """Random tasks, n support and v query points each, with outputs that suit the likelihood."""
    rng = np.random.default_rng(seed)

    def draw(size: int) -> Examples:
        x = torch.as_tensor(rng.normal(size=(*batch, size, INPUTS)))
        return examples(x, outputs(likelihood, (*batch, size), rng)).to(dtype)

    return task(draw(n), draw(v))


def inputs(s: Examples) -> Inputs:
    """The inputs of some examples as a network of single points takes them."""
    return Inputs(s.x, s.mask, 0)


def base_samples(
    model: Model, batch: tuple[int, ...] = (), *, seed: int = 0, dtype: torch.dtype | None = None
) -> Tensor:
    """Base samples that suit this model on tasks of any size: a draw a weight, or a latent value, shared by points."""
    rng = np.random.default_rng(seed)
    dtype = dtype or next(model.parameters()).dtype
    if isinstance(model.encoder, GaussianGradientEncoder):
        network = model.prior.network
        sizes = [p.shape[p.ndim - network.ranks[name] :].numel() for name, p in network.theta().items()]
        shape = (SAMPLES, *batch, sum(sizes))
    else:
        shape = (SAMPLES, *(1,) * len(batch), 1, model.likelihood.latents)
    return torch.as_tensor(rng.normal(size=shape), dtype=dtype)
