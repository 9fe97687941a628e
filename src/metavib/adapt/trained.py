"""A trained model as predictors use it: points of one task in, their memory or predictions out."""

from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metavib.adapt import state as states
from metavib.adapt.prediction import ClassPrediction, RealPrediction
from metavib.adapt.state import Labels, State
from metavib.baselines.embedding import Embedding
from metavib.encoders import FullSites, GPEncoder, SimplifiedSites
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import Bernoulli, ClassLikelihood, Likelihood, RealLikelihood, Softmax
from metavib.marginals import Marginals, Normal
from metavib.model import Model
from metavib.networks.norm import TaskNorm
from metavib.posteriors import Memory, Primal, Sites, memorise
from metavib.priors import FunctionPrior, WeightPrior
from metavib.random import Noise, seeded
from metavib.tasks.inputs import Inputs
from metavib.tasks.task import Examples, examples

Data = Examples | tuple[Any, Any]
"""Examples, or a pair (x, y) of anything array-like; a classifier's y may hold labels of any hashable kind."""

STREAM = 40  # name of the random stream, apart from those of training and test by construction
SAMPLES = 1000  # the standard error of a probability is at most 0.5 / sqrt(1000) = 1.6 %
PASS = 2**21  # numbers that go through the network at a time


@dataclass(frozen=True, eq=False)
class TaskPoints:
    """Points of one task: inputs, real outputs (zeros for classes), labels (none for real outputs)."""

    x: Tensor
    y: Tensor
    labels: list[Hashable]

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])


@final
class Trained:
    """A model that learns no more.

    Args:
        model: it is copied, so that what happens to it later changes nothing here.
        samples: base samples of predictive class probabilities.
    """

    def __init__(self, model: Model, *, samples: int = SAMPLES) -> None:
        _check_single(model)
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.samples = samples
        self.decoder = deepcopy(self.model.likelihood).double()  # for predictions, which are in float64
        first = next(iter(self.model.state_dict().values()))
        self.device, self.dtype = first.device, first.dtype
        self.fingerprint = states.fingerprint(self.model)
        self.obstacle = _obstacle(self.model)
        """Why points cannot be added to what was learned; None where they can."""

    @property
    def classifies(self) -> bool:
        """Whether outputs are classes."""
        return isinstance(self.model.likelihood, ClassLikelihood)

    # Points

    def points(self, data: Data, event: tuple[int, ...] | None = None) -> TaskPoints:
        """Checked points of one task, on the model's device and in its precision, without padding.

        Args:
            data: as a user hands it over.
            event: the shape an input must have, where one is known.
        """
        x, y, mask = data if isinstance(data, Examples) else (*data, None)
        if isinstance(y, Tensor | np.ndarray):
            _check_one_task(y.shape)
        if mask is not None:
            x, y = x[mask], y[mask]
        labels = plain_labels(y) if self.classifies else []
        x, y, _ = examples(x, np.zeros(len(labels)) if self.classifies else y).to(self.device, self.dtype)
        _check_one_task(y.shape)
        points = TaskPoints(x, y if y.is_floating_point() else y.to(self.dtype), labels)
        _check_event(points.event, event)
        if not self.classifies:
            self.model.likelihood.check(y)
        return points

    def inputs(self, x: Any, event: tuple[int, ...]) -> Tensor:
        """Checked inputs `(v, *event)`."""
        x = torch.as_tensor(x)
        if not x.ndim:
            raise ValueError(f"predict takes inputs (v, *event) with event {event}; got a single number.")
        x = examples(x, torch.zeros(len(x)), name="inputs").x.to(self.device, self.dtype)
        _check_event(tuple(x.shape[1:]), event)
        return x

    def classes(self, labels: list[Hashable], given: Sequence[Hashable] | None) -> Labels:
        """The classes of a new task: those given, or those that occur."""
        likelihood = self.model.likelihood
        if not isinstance(likelihood, ClassLikelihood):
            if given is not None:
                raise ValueError(f"{type(likelihood).__name__} has no classes; got {list(given)[:9]}.")
            return ()
        known = distinct(labels) if given is None else tuple(plain_labels(given))
        if len(set(known)) != len(known):
            raise ValueError(f"each class has one label; got {list(known)}.")
        strange = [k for k in labels if k not in set(known)]
        if strange:
            raise ValueError(f"a point has the label {strange[0]!r}, which is not among the classes {list(known)}.")
        if isinstance(likelihood, Bernoulli):
            known = (0, 1) if given is None and set(known) <= {0, 1} else known
            if len(known) != 2:
                raise ValueError(f"a binary likelihood needs two labels, classes=(no, yes); got {list(known)}.")
        elif not self._any_ways and len(known) != likelihood.classes:
            raise ValueError(
                f"this model has weights for {likelihood.classes} classes; got {len(known)}: {list(known)[:9]}. "
                "Name those without points too, classes=..., or train for that many."
            )
        return known

    @property
    def _any_ways(self) -> bool:
        """Whether no weight of the model knows how many classes there are."""
        return isinstance(self.model.likelihood, Softmax) and isinstance(self.model.prior, FunctionPrior | Embedding)

    def outputs(self, points: TaskPoints, classes: Labels) -> Tensor:
        """Real outputs, or the columns of the labels."""
        if not self.classifies:
            return points.y
        column = {k: i for i, k in enumerate(classes)}
        return torch.tensor([column[k] for k in points.labels], dtype=torch.long, device=self.device)

    # Their memory

    def blank(self, classes: Labels, event: tuple[int, ...], device: torch.device | str) -> State:
        """The state of no points."""
        if self.obstacle is not None:
            raise TypeError(f"this model keeps no memory of constant size: {self.obstacle}.")
        likelihood, (_, kernel, features) = self.model.likelihood, self._gp()
        if (isinstance(likelihood, Bernoulli) and len(classes) != 2) or (classes and not self.classifies):
            raise ValueError(f"{type(likelihood).__name__} has no room for the classes {list(classes)[:9]}")
        M = kernel.embed(torch.zeros(1, features, device=self.device, dtype=self.dtype)).shape[-1]
        return states.empty(M, len(classes) if isinstance(likelihood, Softmax) else 1, classes, event, device)

    @torch.no_grad()
    def memory(self, points: TaskPoints, classes: Labels) -> State:
        """The state of some points alone."""
        total, y = self.blank(classes, points.event, self.device), self.outputs(points, classes)
        _, kernel, _ = self._gp()
        for part in _parts(points.x) if len(points.x) else ():
            phi, mask = self.features(points.x[part]), _all_real(points.x[part])
            sites = self._sites(phi, y[part], mask, len(classes))
            A, b, c, l, n = memorise(kernel.embed(phi.double()), mask, sites)  # noqa: E741 - the paper's letter
            memory = Memory((A + A.mT) / 2, b, c, l, n)  # exactly symmetric, and so are sums of them
            counts = torch.bincount(y[part], minlength=len(classes)).double() if classes else total.counts
            total = total + State(memory, counts, classes, points.event)
        return total

    def features(self, x: Tensor) -> Tensor:
        """Phi, point by point."""
        prior, kernel, _ = self._gp()
        inputs = Inputs(x, _all_real(x), 0)
        return kernel.prepare(prior.network(inputs), inputs)

    def posterior(self, state: State) -> Primal:
        """q(f | D_t) of a state."""
        posterior = Primal(self._gp()[1], state.signed())
        if not bool(posterior.w.isfinite().all()):  # where a failed factorisation does not raise by itself: on a GPU
            raise ValueError("A + I could not be factorised: the memory is not that of any points. Adapt anew.")
        return posterior

    def _gp(self) -> tuple[FunctionPrior, ExplicitKernel, int]:
        prior = self.model.prior
        assert isinstance(prior, FunctionPrior) and isinstance(prior.kernel, ExplicitKernel)
        features = prior.network.body.features
        assert isinstance(features, int)
        return prior, prior.kernel, features

    def _sites(self, phi: Tensor, y: Tensor, mask: Tensor, classes: int) -> Sites:
        """Sites in float64; with a column a class, a point's only one that is not zero is that of its own class."""
        encoder, likelihood = self.model.encoder, self.model.likelihood
        assert isinstance(encoder, GPEncoder)
        if not isinstance(likelihood, Softmax):
            m, s = encoder.sites(phi, y, mask, likelihood)
            return Sites(m.double(), s.double())
        m, s = encoder.sites(phi, torch.zeros_like(y), mask, Softmax(2))  # column 0 is m~ for a point of class 0
        return Sites(m[..., :1].double() * F.one_hot(y, classes), s.double())

    # Predictions

    @torch.no_grad()
    def marginals(self, posterior: Primal, x: Tensor) -> Normal:
        """q(f) at some inputs."""
        q = [posterior.marginals(self.features(x[part]).double()) for part in _parts(x)]
        return Normal(*(torch.cat(column) for column in zip(*q, strict=True)))

    def sized(self, likelihood: Likelihood, classes: Labels) -> Likelihood:
        """A likelihood for as many classes as the task has."""
        softmax = isinstance(likelihood, Softmax)
        return Softmax(max(2, len(classes)), samples=self.samples) if softmax else likelihood

    def base_samples(self, classes: Labels) -> Tensor:
        """Common random numbers `(samples, 1, N)`: a column a label, drawn from a stream that the label names."""

        def column(label: Hashable) -> Tensor:
            stream = seeded(STREAM, *sha256(repr(label).encode()).digest())
            return torch.randn(self.samples, generator=stream, dtype=torch.float64)

        return torch.stack([column(k) for k in classes], -1).unsqueeze(1).to(self.device)

    @torch.no_grad()
    def prediction(self, q: Marginals, classes: Labels, noise: Noise = None) -> RealPrediction | ClassPrediction:
        """Predictions from marginals in float64."""
        likelihood = self.sized(self.decoder, classes)
        if isinstance(likelihood, RealLikelihood):
            return RealPrediction(q, likelihood, *likelihood.predict(q))
        assert isinstance(likelihood, ClassLikelihood)
        shared = q.mean.shape[-1] != len(classes)  # two classes, one latent value
        best = (q.mean[..., 0] > 0).long() if shared else q.mean.argmax(-1)
        p = torch.cat([likelihood.predict(_at(q, part), noise) for part in _parts(q.mean, copies=self.samples)])
        return ClassPrediction(p / p.sum(-1, keepdim=True), best, classes)  # weights of nodes sum to 1 up to rounding


def plain_labels(y: Any) -> list[Hashable]:
    """Labels as plain Python values: those of tensors and arrays by value, so that 3 is 3 wherever it came from."""
    labels = [k.item() if isinstance(k, np.generic) or (isinstance(k, Tensor) and not k.ndim) else k for k in y]
    for k in labels:
        if not isinstance(k, Hashable) or isinstance(k, Tensor) or k != k:  # NaN is no label
            raise ValueError(f"class labels must be hashable, and not NaN; got {k!r} of type {type(k).__name__}.")
    return labels


def distinct(labels: list[Hashable]) -> Labels:
    """Distinct labels, sorted; in order of appearance where they cannot be compared."""
    found = tuple(dict.fromkeys(labels))
    try:
        return tuple(sorted(found))  # type: ignore[type-var]
    except TypeError:
        return found


def _obstacle(model: Model) -> str | None:
    """Why points cannot be added to a memory under this model; None where they can (THEORY.md, section 5)."""
    if not isinstance(model.encoder, GPEncoder) or not isinstance(model.prior, FunctionPrior):
        name = type(model.encoder).__name__
        return f"{name} encodes all support points together, and a new one changes what became of the old"
    kernel, sites = model.prior.kernel, model.encoder.sites
    if not isinstance(kernel, ExplicitKernel):
        return f"the kernel {type(kernel).__name__} has no explicit feature map, so no memory of constant size exists"
    norms = [part.encoding for part in model.modules() if isinstance(part, TaskNorm) and not part.pointwise]
    if norms:
        return f"under batch-norm {norms[0]!r} the features of old points change with new ones"
    if not model.prior.network.body.pointwise:
        return "the network's features of a point depend on the other points"
    if isinstance(model.likelihood, ClassLikelihood) and not isinstance(model.likelihood, Bernoulli):
        if not isinstance(model.likelihood, Softmax) or not isinstance(sites, SimplifiedSites | FullSites):
            names = f"{type(sites).__name__} for {type(model.likelihood).__name__}"
            return f"{names} are not known to be +1 and -1 times the same number for every class"
    return None


def _check_single(model: Model) -> None:
    prior = model.prior
    if isinstance(prior, FunctionPrior | WeightPrior | Embedding) and any(
        p.ndim > prior.network.ranks[name] for name, p in prior.network.theta().items()
    ):
        raise ValueError(
            "this model is several repeats of a training: take one of them, metavib.networks.repeats.unstack."
        )


def _check_one_task(shape: Sequence[int]) -> None:
    if len(shape) != 1:
        raise ValueError(f"a learner adapts to one task, y (n,); got y {tuple(shape)}. Adapt to each alone.")


def _check_event(event: tuple[int, ...], wanted: tuple[int, ...] | None) -> None:
    if wanted is not None and event != wanted:
        raise ValueError(f"an input of this task has the shape {wanted}; got {event}.")


def _all_real(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.bool, device=x.device)


def _parts(x: Tensor, *, copies: int = 1) -> Iterator[slice]:
    """Slices of points, small enough that memory stays bounded; one, if there are no points."""
    size = max(1, min(8192, PASS // max(1, x[:1].numel() * copies)))
    return (slice(start, start + size) for start in range(0, max(1, len(x)), size))


def _at(q: Marginals, part: slice) -> Marginals:
    return Normal(q.mean[part], q.var[part]) if isinstance(q, Normal) else type(q)(q.f[..., part, :])
