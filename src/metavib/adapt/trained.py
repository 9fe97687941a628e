"""A trained model as predictors use it: points of one task in, what they have to say and predictions out."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from functools import lru_cache
from hashlib import sha256
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavib.adapt.points import Batch, Support, distinct, plain_labels
from metavib.adapt.preparation import Preparation
from metavib.baselines.embedding import Embedding
from metavib.encoders import AdditiveEncoder
from metavib.groups import Shares
from metavib.groups.shares import EachClass
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import Bernoulli, ClassLikelihood, Likelihood, RealLikelihood, Softmax, ordered
from metavib.likelihoods.prediction import ClassPrediction, Prediction, RealPrediction
from metavib.marginals import Marginals, Normal, Point, Student
from metavib.model import Model
from metavib.networks.norm import TaskNorm
from metavib.posteriors.classes import GaussianClasses
from metavib.posteriors.functions import Primal
from metavib.posteriors.memory import Labels, TaskMemory, empty_memory, likeness
from metavib.priors import FunctionPrior, WeightPrior
from metavib.random import Noise, seeded
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples, examples
from metavib.training.temperature import PLAIN, Temperature, tempered

STREAM = 40  # name of the random stream, apart from those of training and test by construction
SAMPLES = 1000  # the standard error of a probability is at most 0.5 / sqrt(1000) = 1.6 %
PASS = 2**21  # numbers that go through the network at a time


@final
class Trained:
    """A model that learns no more.

    Args:
        model: it is copied, so that what happens to it later changes nothing here.
        preparation: what is done to a user's data before the model sees it.
        samples: base samples of predictive class probabilities.
        temperature: of these probabilities, which become $p_n^{1/T}$, normalised.
    """

    def __init__(
        self, model: Model, preparation: Preparation, *, samples: int = SAMPLES, temperature: Temperature = PLAIN
    ) -> None:
        _check_single(model)
        self.preparation, self.temperature = preparation, temperature
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.samples = samples
        self.decoder = deepcopy(self.model.likelihood).double()  # for predictions, which are in float64
        first = next(iter(self.model.state_dict().values()))
        self.device, self.dtype = first.device, first.dtype
        self.fingerprint = fingerprint(self.model)
        self.obstacle = self.model.encoder.obstacle(self.model.prior, self.model.likelihood)
        """Why points cannot be added to what was learned; None where they can."""
        self._bytes: dict[int, int] = {}

    @property
    def classifies(self) -> bool:
        """Whether outputs are classes."""
        return isinstance(self.model.likelihood, ClassLikelihood)

    # Points

    def points(self, data: Any, event: tuple[int, ...] | None = None, weight: Any = None) -> Batch:
        """Checked points of one task, on the model's device and in its precision, without padding.

        Args:
            data: as a user hands it over, or what this made of it before.
            event: the shape an input must have, where one is known.
            weight: how many points each counts as; one where None.
        """
        if isinstance(data, Batch):
            _check_event(data.event, event)
            return data
        x, y = self.preparation.points(data)
        if isinstance(y, Tensor | np.ndarray):
            _check_one_task(y.shape)
        labels = plain_labels(y) if self.classifies else []
        x, y, _ = examples(x, np.zeros(len(labels)) if self.classifies else y).to(self.device, self.dtype)
        _check_one_task(y.shape)
        y = y if y.is_floating_point() else y.to(self.dtype)
        # Copies: what the user does to an array later changes no predictor.
        counted = None if weight is None else self._weight(weight, len(y))
        points = Batch(x.clone(memory_format=torch.contiguous_format), y.clone(), labels, counted)
        _check_event(points.event, event)
        if not self.classifies:
            self.model.likelihood.check(y)
        return points

    def _weight(self, weight: Any, points: int) -> Tensor:
        """Checked weights of points, which divide the variances of their sites."""
        encoder = self.model.encoder
        if not isinstance(encoder, AdditiveEncoder | EachClass):
            raise ValueError(
                f"points have weights where each has a site of its own, as under GP-VIB; {type(encoder).__name__} has "
                "none. Leave the weights out, or repeat points."
            )
        found = torch.as_tensor(weight, dtype=torch.float64, device=self.device).clone()
        if found.shape != (points,) or not bool((found.isfinite() & (found > 0)).all()):
            raise ValueError(
                f"weights must be one finite number above zero for each of the {points} points, ({points},); got "
                f"{tuple(found.shape)}{f' with a smallest of {float(found.min()):g}' if found.numel() else ''}. Leave "
                "points of weight zero out."
            )
        return found

    def inputs(self, data: Any, event: tuple[int, ...] | None) -> Tensor:
        """Checked inputs `(v, *event)`."""
        x = torch.as_tensor(self.preparation.inputs(data))
        if not x.ndim:
            raise ValueError(f"predict takes inputs (v, *event) with event {event}; got a single number.")
        x = examples(x, torch.zeros(len(x)), name="inputs").x.to(self.device, self.dtype)
        _check_event(tuple(x.shape[1:]), event)
        return x

    @property
    def common(self) -> Labels:
        """Labels of the classes that the model itself knows, by the order of its outputs; none where classes are new.

        A model that has learned how probable each of some classes is means these very ones in every task.
        """
        if not isinstance(self.model.likelihood, Shares):
            return ()
        return self.preparation.classes or tuple(range(self.model.likelihood.classes))

    def classes(self, labels: list[Hashable], given: Sequence[Hashable] | None) -> Labels:
        """The classes of a new task: those that the user names, those of the run, or those that its labels are."""
        if self.common:
            wanted = self.common if given is None else plain_labels(given)
            return self._of_common(wanted, labels)
        if not self.classifies:
            if given is not None:
                name = type(self.model.likelihood).__name__
                raise ValueError(f"{name} has no classes; got {list(given)[:9]}.")
            return ()
        given = self.preparation.classes if given is None else given
        known = distinct(labels) if given is None else tuple(plain_labels(given))
        if len(set(known)) != len(known):
            raise ValueError(f"each class has one label; got {list(known)}.")
        strange = [k for k in labels if k not in set(known)]
        if strange:
            raise ValueError(f"a point has the label {strange[0]!r}, which is not among the classes {list(known)}.")
        if isinstance(self.model.likelihood, Bernoulli):
            known = (0, 1) if given is None and set(known) <= {0, 1} else known
            if len(known) != 2:
                raise ValueError(f"a binary likelihood needs two labels, classes=(no, yes); got {list(known)}.")
        self._check_ways(known)
        return known

    def more_classes(self, known: Labels, labels: list[Hashable]) -> Labels:
        """The classes of a task after points that may be of new ones."""
        if self.common:
            return self._of_common([*known, *labels], labels)
        new = [k for k in distinct(labels) if k not in set(known)]
        if new and isinstance(self.model.likelihood, Bernoulli):
            raise ValueError(
                f"a binary likelihood has two classes, here {list(known)}; got {new[0]!r} too. Train with a softmax "
                "likelihood for tasks whose classes may grow."
            )
        self._check_ways((*known, *new))
        return (*known, *new)

    def _of_common(self, wanted: Sequence[Hashable], labels: list[Hashable]) -> Labels:
        """Some of the classes that the model knows, in its order; the labels must be among them."""
        common = self.common
        if new := [k for k in distinct([*wanted, *labels]) if k not in set(common)]:
            raise ValueError(
                f"tasks have the classes {', '.join(map(repr, common))} in common; got {', '.join(map(repr, new))}. "
                "For classes that are new in each task take a network (backbone='mlp', --method gp-vib)."
            )
        if others := [k for k in distinct(labels) if k not in set(wanted)]:
            raise ValueError(f"a point has the label {others[0]!r}, which is not among the classes {list(wanted)}.")
        return common if len(common) == 2 else tuple(k for k in common if k in set(wanted))

    @property
    def any_ways(self) -> bool:
        """Whether a task may have any number of classes: no weight of the model knows how many there are."""
        return isinstance(self.model.likelihood, Softmax) and isinstance(self.model.prior, FunctionPrior | Embedding)

    def _check_ways(self, known: Labels) -> None:
        likelihood = self.model.likelihood
        if isinstance(likelihood, ClassLikelihood) and not self.any_ways and len(known) != likelihood.classes:
            raise ValueError(
                f"this model has weights for {likelihood.classes} classes; got {len(known)}: {list(known)[:9]}. "
                "Name those without points too, classes=..., or train for that many."
            )

    def outputs(self, points: Batch, classes: Labels) -> Tensor:
        """Real outputs, or the columns of the labels as the model has them."""
        return self.places(points, self.common or classes)

    def places(self, points: Batch, classes: Labels) -> Tensor:
        """Real outputs, or the places of the labels among some classes."""
        if not self.classifies:
            return points.y
        column = {k: i for i, k in enumerate(classes)}
        return torch.tensor([column[k] for k in points.labels], dtype=torch.long, device=self.device)

    def seen(self, points: Batch, classes: Labels) -> list[bool]:
        """Which columns of latent values speak of points: those of classes without any do not."""
        if self.model.likelihood.latents == 1 or self.common:
            return [True] * self.model.likelihood.latents  # one latent value, or one of a class that is known anyway
        labels = set(points.labels)
        return [k in labels for k in classes]

    # Their memory

    def blank(self, classes: Labels, event: tuple[int, ...], device: torch.device | str) -> TaskMemory:
        """The memory of no points; on the device "meta", its shapes alone."""
        if self.obstacle is not None:
            raise TypeError(f"this model keeps no memory of constant size: {self.obstacle}.")
        likelihood, (prior, kernel) = self.model.likelihood, self._gp()
        shared = self.classifies and likelihood.latents == 1
        if (shared and len(classes) != 2) or (classes and not self.classifies):
            raise ValueError(f"{type(likelihood).__name__} has no room for the classes {list(classes)[:9]}")
        features = prior.network.body.features
        assert isinstance(features, int)
        M = kernel.embed(torch.zeros(1, features, device=self.device, dtype=self.dtype)).shape[-1]
        return empty_memory(M, len(classes) if isinstance(likelihood, Softmax) else 1, classes, event, device)

    def memory_bytes(self, classes: int) -> int:
        """Bytes of a memory of so many classes."""
        if classes not in self._bytes:
            self._bytes[classes] = self.blank(tuple(range(classes)), (), "meta").nbytes
        return self._bytes[classes]

    @torch.no_grad()
    def memory(self, points: Batch, classes: Labels) -> TaskMemory:
        """The memory of some points alone; memories add up."""
        blank, y = self.blank(classes, points.event, self.device), self.outputs(points, classes)
        if not len(y):
            return blank
        encoder, likelihood = self.model.encoder, self.sized(self.model.likelihood, classes)
        assert isinstance(encoder, AdditiveEncoder)
        support, softmax = Examples(points.x, y, _all_real(points.x)), isinstance(likelihood, Softmax)
        options: Any = {"part": _at_once(points.x), "dtype": torch.float64, "by_class": softmax}
        options |= {"weight": points.weight}
        sums = encoder.memory(support, self._gp()[0], likelihood, **options).symmetric()
        if softmax:  # which has two columns at least, of which one class needs one
            sums = sums._replace(b=sums.b[..., : len(classes)], c=sums.c[..., : len(classes)])
        counts = torch.bincount(y, minlength=len(classes)).double() if classes else blank.counts
        return TaskMemory(sums, counts, classes, points.event)

    def remembered(self, support: Support, classes: Labels) -> TaskMemory:
        """What a support has to say, batch by batch: to the last bit what these added up to when they came."""
        total = self.blank(classes, support.event, self.device)
        for batch in support.batches:
            total = total + self.memory(batch, classes)
        return total

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """The features phi(x) of each point, where no point depends on the others."""
        prior = self.model.prior
        assert isinstance(prior, FunctionPrior)
        return prior.features_of(Points(x, _all_real(x)))

    def posterior(self, memory: TaskMemory) -> Primal | GaussianClasses:
        """q(Z | D_t) of a memory."""
        encoder = self.model.encoder
        assert isinstance(encoder, AdditiveEncoder)
        posterior = encoder.recall(self._gp()[1], memory)
        if not posterior.finite:  # where a failed factorisation does not raise by itself: on a GPU
            raise ValueError("the memory could not be factorised: it is not that of any points. Adapt anew.")
        return posterior

    def _gp(self) -> tuple[FunctionPrior, ExplicitKernel]:
        prior = self.model.prior
        assert isinstance(prior, FunctionPrior) and isinstance(prior.kernel, ExplicitKernel)
        return prior, prior.kernel

    # Predictions

    def marginals(self, posterior: Primal | GaussianClasses, x: Tensor, seen: Sequence[bool] = ()) -> Marginals:
        """q(f) at some inputs; that of a class without points is its prior."""
        return self.marginals_at(posterior, self.all_features(x), seen)

    @torch.no_grad()
    def marginals_at(self, posterior: Primal | GaussianClasses, phi: Tensor, seen: Sequence[bool] = ()) -> Marginals:
        """q(f) at inputs with some features."""
        _, kernel = self._gp()

        def of(phi: Tensor) -> Marginals:
            q = posterior.marginals(phi)
            if all(seen) or isinstance(q, Point):  # which has the classes without points in it
                return q
            var = kernel.diagonal(kernel.embed(phi)).unsqueeze(-1)
            whole = _completed(q, Normal(var.new_zeros(*var.shape[:-1], len(seen)), var), seen)
            assert isinstance(whole, Normal)
            return whole

        q = [of(phi[part].double()) for part in _parts(phi)]
        return type(q[0])(*(torch.cat(column) for column in zip(*q, strict=True)))

    @property
    def batches(self) -> bool:
        """Whether tasks are encoded side by side: functions of features that each point has by itself."""
        return isinstance(self.model.encoder, AdditiveEncoder) and self.model.prior.mixing is None

    @torch.no_grad()
    def all_features(self, x: Tensor) -> Tensor:
        """Phi of any number of points, of which only some go through the network at a time."""
        return torch.cat([self.features(x[part]) for part in _parts(x)])

    @torch.no_grad()
    def warmth(self, known: TaskMemory | Batch, phi: Tensor | None = None) -> Tensor:
        """The temperature of a task's predictions, before that of each point: one number.

        Args:
            known: the points of the task, or their memory.
            phi: features of the points, where they are at hand and the temperature depends on how alike classes are.
        """
        if isinstance(known, TaskMemory):
            counts, alike = known.counts, known.likeness if self.temperature.likeness else None
        else:
            counts = torch.tensor(list(Counter(known.labels).values()))
            alike = self._likeness(known, phi) if self.temperature.likeness else None
        nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        shots = float(counts.sum()) / max(1, int((counts > 0).sum()))
        return self.temperature.of(shots, nothing if alike is None else alike)

    def _likeness(self, points: Batch, phi: Tensor | None) -> Tensor:
        """How alike the classes of some points are, as the kernel compares them."""
        if not points.labels:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        z = self._gp()[1].embed((self.all_features(points.x) if phi is None else phi).double())
        classes = distinct(points.labels)
        w = z.new_ones(len(z)) if points.weight is None else points.weight
        Y = F.one_hot(self.places(points, classes), len(classes)) * w.unsqueeze(-1)
        square = (w * z.square().sum(-1)).sum() / w.sum().clamp(min=torch.finfo(w.dtype).tiny)
        return likeness(Y.mT @ z / Y.sum(0).unsqueeze(-1), square, Y.sum(0) > 0)

    def kind_of(self, x: Tensor) -> Tensor | None:
        """Phi of points that are predicted, where their temperature depends on it; None elsewhere."""
        return self.all_features(x) if self.temperature.slope else None

    @torch.no_grad()
    def encoded(self, points: Batch, classes: Labels, x: Tensor) -> tuple[Marginals, Noise]:
        """q(f) at some inputs by the model's own encoder, and the noise that it was given.

        A class without points is what the encoder makes of a task without points: its prior.
        """
        likelihood = self.sized(self.model.likelihood, classes)
        query = Points(x, _all_real(x))

        def encode(points: Batch) -> tuple[Marginals, Noise]:
            noise: Noise = seeded(STREAM, device=self.device)
            if isinstance(likelihood, Softmax) and isinstance(self.model.prior, FunctionPrior):
                noise = self.base_samples(classes).to(self.dtype)
            support = Examples(points.x, self.outputs(points, classes), _all_real(points.x))
            weighted = {} if points.weight is None else {"weight": points.weight.to(self.dtype)}
            q = self.model.encoder(support, query, self.model.prior, likelihood, noise, **weighted).marginals(noise)
            return _columns(_double(q), list(range(len(seen)))), noise

        seen = self.seen(points, classes)
        q, noise = encode(points)
        if not all(seen):
            prior, _ = encode(Batch(points.x[:0], points.y[:0], []))
            q = _completed(_columns(q, [i for i, s in enumerate(seen) if s]), prior, seen)
        return q, noise.double() if isinstance(noise, Tensor) else noise

    def sized(self, likelihood: Likelihood, classes: Labels) -> Likelihood:
        """A likelihood for as many classes as the task has."""
        softmax = isinstance(likelihood, Softmax)
        return Softmax(max(2, len(classes)), samples=self.samples) if softmax else likelihood

    def base_samples(self, classes: Labels) -> Tensor:
        """Common random numbers `(samples, 1, N)`: a column a label, drawn from a stream that the label names."""
        columns = [_base_samples(sha256(repr(label).encode()).digest(), self.samples) for label in classes]
        return torch.stack(columns, -1).unsqueeze(1).to(self.device)

    @torch.no_grad()
    def prediction(
        self,
        q: Marginals,
        classes: Labels,
        noise: Noise = None,
        *,
        warmth: Tensor | None = None,
        phi: Tensor | None = None,
    ) -> Prediction:
        """Predictions from marginals in float64.

        Args:
            q: the marginals.
            classes: labels of the columns.
            noise: base samples.
            warmth: the temperature of the task (`warmth`), for each prediction or for all.
            phi: features of the points that are predicted; needed where the temperature depends on them (`kind_of`).
        """
        likelihood = self.sized(self.decoder, classes)
        if isinstance(likelihood, RealLikelihood):
            return RealPrediction(q, likelihood, *likelihood.predict(q))
        assert isinstance(likelihood, ClassLikelihood)
        if self.common:
            p = likelihood.predict(q)[:, [self.common.index(k) for k in classes]]
            return ClassPrediction(p / p.sum(-1, keepdim=True), p.argmax(-1), classes)
        shared = q.mean.shape[-1] != len(classes)  # two classes, one latent value
        best = (q.mean[..., 0] > 0).long() if shared else q.mean.argmax(-1)
        p = torch.cat([likelihood.predict(_at(q, part), noise) for part in _parts(q.mean, copies=self.samples)])
        p = ordered(q, p / p.sum(-1, keepdim=True))  # weights of nodes sum to 1 up to rounding
        if not self.temperature.plain:
            T = p.new_tensor([self.temperature.at(1.0)]) if warmth is None else warmth.reshape(-1)
            felt = self.temperature.factor(phi.to(p.dtype)) if self.temperature.slope and phi is not None else 1.0
            p = tempered(p, T.unsqueeze(-1) * felt)
        if isinstance(q, Normal) and not shared and q.var.shape[-1] > 1:
            best = p.argmax(-1)  # the most probable class is that of the largest mean where all share their variance
        return ClassPrediction(p, best, classes)


def fingerprint(model: nn.Module) -> str:
    """What tells a model from another: a hash of its parts' names and classes, and of its weights.

    Weights are hashed as float32, so that a model is the same one on any device, and in float64 as in float32;
    settings without weights (samples, number of ways) do not count.
    """
    digest = sha256()
    for name, part in model.named_modules():
        encoding = part.encoding if isinstance(part, TaskNorm) else ""
        digest.update(f"{name}:{type(part).__name__}{encoding};".encode())
    for name, t in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(t.shape)};".encode())
        values = t.detach().cpu()
        digest.update(values.double().numpy().astype("<f4" if t.is_floating_point() else "<i8").tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _base_samples(name: bytes, samples: int) -> Tensor:
    return torch.randn(samples, generator=seeded(STREAM, *name), dtype=torch.float64)


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


def _at_once(x: Tensor, *, copies: int = 1) -> int:
    """How many points are worked on at a time, so that memory stays bounded."""
    return max(1, min(8192, PASS // max(1, x[:1].numel() * copies)))


def _parts(x: Tensor, *, copies: int = 1) -> Iterator[slice]:
    """Slices of points; one, if there are no points."""
    size = _at_once(x, copies=copies)
    return (slice(start, start + size) for start in range(0, max(1, len(x)), size))


# Marginals by their columns and points


def joined(parts: Sequence[Marginals], order: Tensor) -> Marginals:
    """Marginals of several sets of points as one, the points in a given order."""
    if isinstance(parts[0], Normal | Student):
        return type(parts[0])(*(torch.cat(column)[order] for column in zip(*parts, strict=True)))
    return type(parts[0])(torch.cat([q.f for q in parts], -2)[..., order, :])  # type: ignore[union-attr]


def _completed(q: Marginals, prior: Marginals, seen: Sequence[bool]) -> Marginals:
    """The columns of q where points were seen, and the prior's in between."""

    def put(own: Tensor, other: Tensor) -> Tensor:
        whole = other.expand(*other.shape[:-1], len(seen)).clone()
        whole[..., list(seen)] = own
        return whole

    if isinstance(q, Normal):
        assert isinstance(prior, Normal)
        return Normal(put(q.mean, prior.mean), put(q.var, prior.var))
    assert not isinstance(q, Student) and not isinstance(prior, Normal | Student)
    return type(q)(put(q.f, prior.f))


def _columns(q: Marginals, which: Sequence[int]) -> Marginals:
    if isinstance(q, Student):  # of one latent value
        return q
    if not isinstance(q, Normal):
        return type(q)(q.f[..., which])
    return Normal(q.mean[..., which], q.var if q.var.shape[-1] == 1 else q.var[..., which])


def _at(q: Marginals, part: slice) -> Marginals:
    assert not isinstance(q, Student)
    return Normal(q.mean[part], q.var[part]) if isinstance(q, Normal) else type(q)(q.f[..., part, :])


def _double(q: Marginals) -> Marginals:
    return type(q)(*(t.double() for t in q))
