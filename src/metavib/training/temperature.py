r"""How sure predictions of classes are: their temperature, what it depends on, and how it is fitted.

Under a temperature T probabilities become $p_n^{1/T}$, normalised (`tempered`): T = 1 leaves them as they are, and a
larger T makes them less sure. A `Temperature` may depend on the number of shots, on how alike the classes of a task
are, and on the point that is predicted. It is fitted on validation, and kept with the model for every prediction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isfinite, log, sqrt
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from torch import Tensor

PAIRS = 6  # of classes, that the temperature 1 counts for
REACH = 0.5  # of the logarithm of a temperature, by which a point's own may differ
AT = "temperature at "  # a number of shots: among the numbers of a temperature, as a validation reports it
LIKENESS, SQUARE = "likeness at ", "squared likeness at "  # a number of shots: b and c
SEEN = "least likeness", "largest likeness"
RIDGE = 1e-6  # of b and c beside the mean NLL: it decides where all tasks are equally alike, and hardly elsewhere


class Warmth(NamedTuple):
    r"""The temperature at one number of shots: $T \exp(b r + c r^2)$, r being how alike the classes of a task are.

    Args:
        T: the temperature where classes have nothing in common, r = 0.
        b: how it changes with r.
        c: how that changes with r.

    Example:
        >>> import torch
        >>> from metavib.training.temperature import Warmth
        >>> Warmth(2.0).of(torch.tensor([0.0, 0.5]))
        tensor([2., 2.])
    """

    T: float
    b: float = 0.0
    c: float = 0.0

    def of(self, likeness: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The temperature of each task, by how alike its classes are."""
        return self.T * (likeness * (self.b + self.c * likeness)).exp()

    def to_the(self, power: float) -> "Warmth":
        """A power of the temperature, whatever r is."""
        return Warmth(self.T**power, self.b * power, self.c * power)


@final
@dataclass(frozen=True)
class Temperature:
    r"""The temperature of class probabilities, by what is known of a task and of the point that is predicted.

    **How many points.** A model can be too sure with many points of a class and right with few. So a temperature is
    fitted for each of some numbers of shots, by the points that a class of the task has on average; between them it is
    linear in the logarithm of their number, and beyond them it is constant.

    **How alike the classes are.** Classes that resemble each other, species of birds say, are harder to tell apart than
    those of training, and all pictures out of focus resemble each other. So the temperature at K shots may be
    $T_K \exp(b_K r + c_K r^2)$, where r is the likeness of the task's classes as its support shows it
    (`metavib.posteriors.likeness`), a number from -1 to 1 that is near 0 for classes as different as those of training.
    Beyond all r that it was fitted on it is constant.

    **Which point.** A model can also be too sure of pictures of one kind, scans of handwriting say, and not sure enough
    of another. Where the features of the point that is predicted tell kinds apart, its temperature is multiplied by
    $\exp(b^\top \phi + b_0)$, kept within `REACH` (a temperature that depends on the input: Tomani et al., ECCV 2022).

    Args:
        shots: at which numbers temperatures are known, in ascending order.
        values: the temperature at each; 1 leaves probabilities as they are.
        slope: b, a number for each feature, and then $b_0$; none where the temperature is the same for all points.
        likeness: $(b_K, c_K)$ at each of these numbers; none where it is the same for all tasks.
        seen: the least and the largest r that they were fitted on.

    Example:
        >>> from metavib.training.temperature import Temperature
        >>> known = Temperature((1, 4), (1.0, 2.0))
        >>> [round(known.at(shots), 3) for shots in (0, 1, 2, 4, 100)]
        [1.0, 1.0, 1.5, 2.0, 2.0]
    """

    shots: tuple[int, ...] = (1,)
    values: tuple[float, ...] = (1.0,)
    slope: tuple[float, ...] = ()
    likeness: tuple[tuple[float, float], ...] = ()
    seen: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise((0, *self.shots)))
        if len(self.shots) != len(self.values) or not self.shots or not ascending:
            raise ValueError(f"expected a temperature at each of some ascending numbers of shots; got {self}")
        if not all(0 < value < inf for value in self.values):
            raise ValueError(f"a temperature must be positive; got {self.values}")
        if self.likeness and len(self.likeness) != len(self.shots):
            raise ValueError(f"expected two numbers of likeness at each number of shots; got {self.likeness}")
        low, high = self.seen
        if not all(map(isfinite, (*self.slope, *self.seen, *sum(self.likeness, ())))) or low > high:
            raise ValueError("the slopes of a temperature must be finite numbers, and likeness seen from a to b.")

    def at(self, shots: float) -> float:
        """The temperature for tasks with so many points of a class on average, of classes with nothing in common."""
        return self._at(shots, self.values)

    def warmth(self, shots: float) -> Warmth:
        """The same by how alike the classes are."""
        return Warmth(self.at(shots), *(self._at(shots, each) for each in zip(*self.likeness, strict=True)))

    def of(self, shots: float, likeness: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The temperature of tasks with so many points of a class on average, by how alike the classes of each are."""
        return self.warmth(shots).of(likeness.clamp(*self.seen))

    def factor(self, phi: Float[Tensor, "*b v m"]) -> Float[Tensor, "*b v 1"]:
        """What the temperature of each point is multiplied by, from its features."""
        *b, offset = self.slope
        return (phi @ phi.new_tensor(b) + offset).clamp(-REACH, REACH).exp().unsqueeze(-1)

    @property
    def of_features(self) -> bool:
        """Whether it depends on features, those of the support or of the point that is predicted."""
        return bool(self.slope or self.likeness)

    @property
    def plain(self) -> bool:
        """Whether probabilities are left as they are."""
        return all(value == 1.0 for value in self.values) and not self.slope and not self.likeness

    def numbers(self) -> dict[str, float]:
        """All but the slope by name, as a validation reports them.

        Example:
            >>> from metavib.training.temperature import Temperature
            >>> Temperature((1, 5), (1.2, 1.5)).numbers()
            {'temperature at 1': 1.2, 'temperature at 5': 1.5}
        """
        found = {f"{AT}{k}": T for k, T in zip(self.shots, self.values, strict=True)}
        for k, (b, c) in zip(self.shots, self.likeness, strict=False):
            found |= {f"{LIKENESS}{k}": b, f"{SQUARE}{k}": c}
        return found | (dict(zip(SEEN, self.seen, strict=True)) if self.likeness else {})

    @staticmethod
    def of_numbers(numbers: Mapping[str, float]) -> "Temperature":
        """The temperature of these numbers, others beside them; `PLAIN` where there are none."""
        shots = tuple(sorted(int(name.removeprefix(AT)) for name in numbers if name.startswith(AT)))
        if not shots:
            return PLAIN
        values = tuple(numbers[f"{AT}{k}"] for k in shots)
        if SEEN[0] not in numbers:
            return Temperature(shots, values)
        likeness = tuple((numbers[f"{LIKENESS}{k}"], numbers[f"{SQUARE}{k}"]) for k in shots)
        low, high = (numbers[name] for name in SEEN)
        return Temperature(shots, values, likeness=likeness, seen=(low, high))

    def _at(self, shots: float, values: Sequence[float]) -> float:
        return float(np.interp(log(max(shots, 1e-9)), [log(k) for k in self.shots], values))


PLAIN = Temperature()
"""Leaves probabilities as they are."""


def tempered(p: Float[Tensor, "*b v N"], temperature: float | Tensor) -> Float[Tensor, "*b v N"]:
    r"""$p_n^{1/T}$, normalised: the softmax of logits over T where p is the softmax of logits.

    Args:
        p: probabilities.
        temperature: T; or one for each point, `(..., v, 1)`.
    """
    return (p.clamp(min=torch.finfo(p.dtype).tiny).log() / temperature).softmax(-1)


# What is best on validation


def fit_temperature(
    p: Float[Tensor, "*b v N"],
    y: Int[Tensor, "*b v"],
    mask: Bool[Tensor, "*b v"] | None = None,
    *,
    cautious: bool = False,
) -> float:
    r"""The T that minimises the NLL of `tempered(p, T)`, to be fitted on validation and used on test.

    The NLL is convex in 1/T, so that it has one minimum on $\log T \in [\log 0.01, \log 100]$, which golden sections
    find to five digits. A minimum at an end (perfect or hopeless predictions) is that end.

    Args:
        p: predicted probabilities.
        y: labels.
        mask: which points are real.
        cautious: count one label in n + 2 as wrong, as the rule of succession does. Where all n predictions are right,
            certainty is then that of n trials, and not boundless.
    """
    p, y = (p.flatten(0, -2), y.flatten()) if mask is None else (p[mask], y[mask])
    log_p, share = _checked(p, y, cautious=cautious)

    def loss(log_t: float) -> float:
        return _loss(log_p * exp(-log_t), y, share).item()

    low, high = log(0.01), log(100.0)
    ratio = (sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(a), loss(b)
    while high - low > 1e-6:
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(b)
    return exp((low + high) / 2)


class Outcomes(NamedTuple):
    """Predictions of some tasks and what is true: `p (t, v, N)`, `y (t, v)`, `mask (t, v)`, and `likeness (t,)`.

    Args:
        p: probabilities.
        y: labels.
        mask: which points are real.
        likeness: how alike the classes of each task are; None where the temperature is not to depend on it.

    Example:
        >>> import torch
        >>> from metavib.training.temperature import Outcomes
        >>> Outcomes(torch.ones(2, 3, 1), torch.zeros(2, 3).long(), torch.ones(2, 3).bool()).r
        tensor([0., 0.], dtype=torch.float64)
    """

    p: Tensor
    y: Tensor
    mask: Tensor
    likeness: Tensor | None = None

    @property
    def r(self) -> Tensor:
        """The likeness, which is 0 where it is not known."""
        return self.p.new_zeros(len(self.p), dtype=torch.float64) if self.likeness is None else self.likeness


def fit_warmth(tasks: Outcomes) -> Warmth:
    r"""The $T \exp(b r + c r^2)$ that minimises the NLL of tasks whose classes are alike by r; T where none is known.

    One label in n + 2 counts as wrong, as `fit_temperature` has it where it is cautious.

    Example:
        Where classes are alike half of the points are right, elsewhere all; the model is 80 % sure of each.

        >>> import torch
        >>> from metavib.training.temperature import Outcomes, fit_warmth
        >>> p, mask = torch.tensor([0.8, 0.2]).expand(2, 100, 2), torch.ones(2, 100, dtype=torch.bool)
        >>> y, likeness = torch.stack([torch.zeros(100), torch.arange(100) % 2]).long(), torch.tensor([0.0, 0.5])
        >>> fit_warmth(Outcomes(p, y, mask, likeness)).of(likeness).log().sign().tolist()  # surer, and less sure
        [-1.0, 1.0]
    """
    plain = fit_temperature(tasks.p, tasks.y, tasks.mask, cautious=True)
    if tasks.likeness is None:
        return Warmth(plain)
    p, y = tasks.p[tasks.mask], tasks.y[tasks.mask]
    r = tasks.r.double().unsqueeze(-1).expand(tasks.mask.shape)[tasks.mask]
    log_p, share = _checked(p, y, cautious=True)

    def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(numbers, device=r.device, requires_grad=True)
        log_t = x[0] + r * (x[1] + x[2] * r)
        value = _loss(log_p * (-log_t).exp().unsqueeze(-1), y, share) + RIDGE * x[1:].square().sum()
        return value.item(), torch.autograd.grad(value, x)[0].cpu().numpy()

    with torch.enable_grad():
        start = np.array([log(plain), 0.0, 0.0])
        log_t, b, c = minimize(loss, start, jac=True, method="L-BFGS-B").x.tolist()
    return Warmth(exp(log_t), b, c)


def fitted(tasks: Mapping[int, Outcomes], *, power: float = 1.0) -> Temperature:
    """The temperature that is best for tasks of some numbers of shots, at each of them.

    Args:
        tasks: by their shots.
        power: to which it is taken then (`trust`).

    Example:
        Nine of ten predictions are right, and the model is 60 % sure of each.

        >>> import torch
        >>> from metavib.training.temperature import Outcomes, fitted, tempered
        >>> p, y = torch.tensor([0.6, 0.4]).expand(1, 100, 2), (torch.arange(100) >= 90).long().unsqueeze(0)
        >>> found = fitted({1: Outcomes(p, y, torch.ones(1, 100, dtype=torch.bool))})
        >>> round(float(tempered(p, found.at(1))[0, 0, 0]), 2)
        0.89
    """
    shots = tuple(sorted(tasks))
    parts = [tasks[k] for k in shots]
    best = [fit_warmth(part).to_the(power) for part in parts]
    values = tuple(found.T for found in best)
    alike = [part.likeness for part in parts if part.likeness is not None]
    if not alike:
        return Temperature(shots, values)
    low, high = torch.cat(alike).aminmax()
    likeness = tuple((found.b, found.c) for found in best)
    return Temperature(shots, values, likeness=likeness, seen=(float(low), float(high)))


def trust(classes: int, *, counts: float = PAIRS) -> float:
    r"""To which power a temperature is taken that was fitted on tasks of C classes: $P / (P + 6)$, less than 1.

    Tasks are hard where classes are confused with each other, so that evidence comes in pairs of classes,
    $P = C (C - 1) / 2$, however many tasks are drawn from them. A model that was trained by likelihood needs T = 1
    where new classes are like those of training; this counts for the six pairs of four classes more. With 3 and 6
    classes to validate on, the ECE on other classes goes from 3.8 and 1.5 % to 2.7 and 1.3 % by it, and the NLL from
    0.350 and 0.256 to 0.346 and 0.255; three pairs do as well (2.4 and 1.3 %), many more do not. For ProtoNet and DKT,
    whose scale means nothing, it only does harm (`python -m benchmarks temperatures few-classes`).

    Args:
        classes: C.
        counts: of how many pairs of classes the temperature 1 counts as the evidence.

    Example:
        >>> from metavib.training.temperature import trust
        >>> [round(0.5 ** trust(classes), 3) for classes in (1, 3, 12, 1000)]
        [1.0, 0.794, 0.53, 0.5]
    """
    pairs = classes * (classes - 1) / 2
    return pairs / (pairs + counts)


def _checked(p: Tensor, y: Tensor, *, cautious: bool) -> tuple[Tensor, float]:
    """Logarithms of the probabilities of some points, and the share of labels that is counted as wrong."""
    if not len(y):
        raise ValueError("a temperature needs at least one point to be fitted to; got none.")
    return p.double().clamp(min=torch.finfo(p.dtype).tiny).log(), 1 / (len(y) + 2) if cautious else 0.0


def _loss(logits: Tensor, y: Tensor, wrong: float) -> Tensor:
    """Mean NLL, where a share of the labels is any of the other classes."""
    logs = logits.log_softmax(-1)
    right = logs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    if not wrong:
        return -right.mean()
    others = (logs.sum(-1) - right) / max(1, logs.shape[-1] - 1)
    return -((1 - wrong) * right + wrong * others).mean()
