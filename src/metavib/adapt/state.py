r"""What is known of a task, in constant size, and its file.

The memory (A, b, c, l, n) of eq. 11, in float64 whatever the model's precision: a sum over a million points in float32
would lose what the last ones say. Every entry is a sum over points, so states of disjoint points add up and points
leave by subtraction.

**Classes that come later.** With N classes the sites are $m_{jn} = Y_{jn} \tilde m_j$, where $Y_{jn} = +1$ in the
column of the point's own class and $-1$ elsewhere ($\tilde m_j$ a learned scalar, or a function of $x_j$). Kept here
are the sums over the points of each class alone,
$$g_n = \sum_{j: y_j = n} z_j \tilde m_j / s_j, \qquad
b_n = \sum_j z_j Y_{jn} \tilde m_j / s_j = 2 g_n - \sum_{n'} g_{n'},$$
from which b follows. A class that had no points so far is a column $g_n = 0$, hence
$b_n = -\sum_j z_j \tilde m_j / s_j$ over all old points, exactly as if it had been there from the start; without the
points, and without an extra number. (b alone would not do: with two classes $b_1 = -b_2$, and the sum is lost.) And
$c_n = \sum_j \tilde m_j^2 / s_j$ is the same for all classes, since $Y^2 = 1$.
"""

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from metavib.files import write_tensors
from metavib.networks.norm import TaskNorm
from metavib.posteriors import Memory

FORMAT = "metavib-state-1"
P_co = TypeVar("P_co", covariant=True)
Labels = tuple[Hashable, ...]
"""What the classes of a task are called, in the order of their columns."""


@dataclass(frozen=True, eq=False)
class State:
    """The memory of a task's points, and the classes its columns stand for.

    Args:
        memory: float64; for several classes a column of `b` and `c` is the sum over the points of its class alone.
        counts: points of each class, `(N,)`; of length 0 where outputs are no classes.
        classes: their labels.
        event: shape of one input.
    """

    memory: Memory
    counts: Tensor
    classes: Labels
    event: tuple[int, ...]

    @property
    def n(self) -> int:
        """How many points are remembered."""
        return int(self.memory.n)

    @property
    def column_a_class(self) -> bool:
        """Whether each class has a column of its own; two classes may share one (Bernoulli), and real outputs do."""
        return self.memory.b.shape[-1] == len(self.classes)

    def to(self, device: torch.device) -> "State":
        """The same on another device."""
        memory = Memory(*(t.to(device) for t in self.memory))
        return State(memory, self.counts.to(device), self.classes, self.event)

    def signed(self) -> Memory:
        r"""The memory under targets +1 and -1: $b_n = 2 g_n - \sum g$, and the same c for all."""
        if not self.column_a_class:
            return self.memory
        A, g, c, l, n = self.memory  # noqa: E741 - the paper's letter
        return Memory(A, 2 * g - g.sum(-1, keepdim=True), c.sum(-1, keepdim=True).expand_as(c), l, n)

    def with_classes(self, classes: Labels) -> "State":
        """The same points with classes in a given order, among them all of this state's; new ones have no points."""
        if classes == self.classes:
            return self
        if not self.column_a_class:
            raise ValueError(f"this task's classes are {list(self.classes)} and stay so; got {list(classes)}.")
        A, g, c, l, n = self.memory  # noqa: E741
        place = torch.tensor([classes.index(k) for k in self.classes], dtype=torch.long, device=g.device)
        wide = (t.new_zeros(*t.shape[:-1], len(classes)).index_copy(-1, place, t) for t in (g, c, self.counts))
        g, c, counts = wide
        return State(Memory(A, g, c, l, n), counts, classes, self.event)

    def __add__(self, other: "State") -> "State":
        """What both sets of points, which have none in common, have to say."""
        classes = union(self.classes, other.classes)
        mine, its = self.with_classes(classes), other.with_classes(classes)
        return State(mine.memory + its.memory, mine.counts + its.counts, classes, self.event)

    def without(self, other: "State", *, tolerance: float) -> "State":
        """What is left without some of the points; a class that loses its last point is forgotten with it.

        Args:
            other: the state of those points alone.
            tolerance: how far below zero rounding may take the eigenvalues of A, relative to A's largest entry.
        """
        unknown = [k for k in other.classes if k not in self.classes]
        if unknown:
            raise ValueError(f"points of class {unknown[0]!r} were never learned and cannot be forgotten.")
        if other.n > self.n:
            raise ValueError(f"{other.n} points cannot be forgotten where only {self.n} were learned.")
        its = other.with_classes(self.classes)
        counts, memory = self.counts - its.counts, self.memory - its.memory
        for label, left, had in zip(self.classes, counts.tolist(), self.counts.tolist(), strict=True):
            if left < 0:
                raise ValueError(
                    f"{had - left:.0f} points of class {label!r} cannot be forgotten of {had:.0f} learned."
                )
        if not memory.n:  # what rounding left of the sums is nothing but rounding
            memory = Memory(*(torch.zeros_like(t) for t in memory))
        else:
            _check_semidefinite(memory.A, tolerance * float(self.memory.A.diagonal().max()))
        rest = State(memory, counts, self.classes, self.event)
        return rest._kept((counts > 0) | (self.counts == 0)) if self.column_a_class else rest

    def _kept(self, keep: Tensor) -> "State":
        A, g, c, l, n = self.memory  # noqa: E741
        classes = tuple(k for k, kept in zip(self.classes, keep.tolist(), strict=True) if kept)
        return State(Memory(A, g[..., keep], c[..., keep], l, n), self.counts[keep], classes, self.event)


def empty(M: int, columns: int, classes: Labels, event: tuple[int, ...], device: torch.device | str = "cpu") -> State:
    """The state of no points: the prior."""
    sizes = ((M, M), (M, columns), (columns,), (), (), (len(classes),))
    *memory, counts = (torch.zeros(size, dtype=torch.float64, device=device) for size in sizes)
    return State(Memory(*memory), counts, classes, event)


def union(first: Labels, second: Sequence[Hashable]) -> Labels:
    """The classes of both, those of the first in their places."""
    return (*first, *(k for k in second if k not in set(first)))


def _check_semidefinite(A: Tensor, slack: float) -> None:
    shifted = A + slack * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    if int(torch.linalg.cholesky_ex(shifted).info):
        raise ValueError(
            "these points are not all among those learned: without them A = Z' S^-1 Z would have negative eigenvalues, "
            "and no set of points has such an A. Forget exactly the points that were learned, each once."
        )


# The file


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


class Remembers(Protocol):
    """What `save` asks of a predictor."""

    @property
    def state(self) -> State: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102


class Resumes(Protocol[P_co]):
    """What `load` asks of a learner."""

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    @property
    def device(self) -> torch.device: ...  # noqa: D102

    def blank(self, classes: Labels, event: tuple[int, ...], device: torch.device | str) -> State: ...  # noqa: D102

    def resume(self, state: State) -> P_co: ...  # noqa: D102


def save(predictor: Remembers, path: str | Path, *, run: str = "") -> None:
    """Writes what a predictor has learned of its task, atomically; the file's size does not depend on how many points.

    Labels must be strings, numbers or None to be written.

    Args:
        predictor: of the task.
        path: the file.
        run: the folder of the run it was made with, for whoever finds the file; nothing here reads it.
    """
    state = predictor.state
    for label in state.classes:
        if label is not None and not isinstance(label, str | int | float):
            raise ValueError(
                f"a state file holds labels that are strings, numbers or None; got {label!r} of type "
                f"{type(label).__name__}. Name the classes by strings."
            )
    A, b, c, l, n = state.memory  # noqa: E741
    rows, columns = torch.tril_indices(*A.shape)
    tensors = {"A": A[rows, columns], "b": b, "c": c, "l": l, "n": n, "counts": state.counts}
    header = {"classes": json.dumps(state.classes, allow_nan=False), "event": json.dumps(state.event)}
    write_tensors(Path(path), tensors, {"format": FORMAT, "fingerprint": predictor.fingerprint, "run": run, **header})


def run_of(path: str | Path) -> Path:
    """The folder of the run that a state file names."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no state file {path}.")
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{path} is truncated or no safetensors file ({error}).") from error
    if header.get("format") != FORMAT or not header.get("run"):
        raise ValueError(f"{path} does not say which run it was made with; name it with --run.")
    return Path(header["run"])


def load(path: str | Path, learner: Resumes[P_co]) -> P_co:
    """The predictor whose state a file holds; its predictions are those of the one saved, to the last bit.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no state file, is damaged, or was made with another model.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no state file {path}.")
    try:
        with safe_open(path, "pt") as file:
            state = _read(file, path, learner)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{path} is truncated or no safetensors file ({error}).") from error
    return learner.resume(state)


def _read(file: Any, path: Path, learner: Resumes[Any]) -> State:
    header = file.metadata() or {}
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no state of a task: expected format {FORMAT!r}, got {header.get('format')!r}. States are "
            "written by metavib.adapt.state.save."
        )
    if header.get("fingerprint") != learner.fingerprint:
        raise ValueError(
            f"{path} was made with another model (fingerprint {str(header.get('fingerprint'))[:12]}, this model's is "
            f"{learner.fingerprint[:12]}): what it says of features means nothing here. Load that model, or adapt anew."
        )
    try:
        blank = learner.blank(_labels(header["classes"]), _event(header["event"]), "meta")  # shapes alone
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a damaged header: {error}.") from error
    M = blank.memory.A.shape[-1]
    A, *others = blank.memory
    wanted = {"A": (M * (M + 1) // 2,), "counts": tuple(blank.counts.shape)}
    wanted |= {name: tuple(t.shape) for name, t in zip("bcln", others, strict=True)}
    # Shapes first: nothing is read that does not fit the model, however large the file says it is.
    if set(file.keys()) != set(wanted):
        raise ValueError(f"{path} is damaged: it should hold {sorted(wanted)} and holds {sorted(file.keys())[:9]}.")
    for name, shape in wanted.items():
        entry = file.get_slice(name)
        if tuple(entry.get_shape()) != shape or entry.get_dtype() != "F64":
            raise ValueError(
                f"{path} is damaged: {name} should be float64 {shape}, and is {entry.get_dtype()} {entry.get_shape()}."
            )
    # Clones lie aligned in memory as the originals did: the same instructions run, to the same last bit.
    tensors = {name: file.get_tensor(name).clone() for name in wanted}
    counts, n = tensors["counts"], tensors["n"]
    negative = any(bool((t < 0).any()) for t in (counts, n, tensors["c"]))
    if not all(bool(t.isfinite().all()) for t in tensors.values()) or negative or bool((n != n.round()).any()):
        raise ValueError(f"{path} is damaged: its numbers are no sums over points.")
    if len(counts) and float(counts.sum()) != float(n):
        raise ValueError(
            f"{path} is damaged: its classes hold {float(counts.sum()):.0f} points, {float(n):.0f} in all."
        )
    rows, columns = torch.tril_indices(M, M)
    lower = torch.zeros(M, M, dtype=torch.float64)
    lower[rows, columns] = tensors["A"]
    lower[columns, rows] = tensors["A"]
    if int(
        torch.linalg.cholesky_ex(lower + torch.eye(M, dtype=torch.float64)).info
    ):  # what every prediction factorises
        raise ValueError(f"{path} is damaged: its A = Z' S^-1 Z has negative eigenvalues, as no set of points has.")
    memory = Memory(lower, *(tensors[name] for name in "bcln"))
    return State(memory, counts, blank.classes, blank.event).to(learner.device)


def _labels(text: str) -> Labels:
    labels = json.loads(text)
    if not isinstance(labels, list) or not all(k is None or isinstance(k, str | int | float) for k in labels):
        raise ValueError("the classes are no list of strings and numbers")
    if any(isinstance(k, float) and isnan(k) for k in labels) or len(set(labels)) != len(labels):
        raise ValueError("a class stands there twice, or is NaN")
    return tuple(labels)


def _event(text: str) -> tuple[int, ...]:
    event = json.loads(text)
    if not isinstance(event, list) or not all(isinstance(k, int) and k >= 0 for k in event):
        raise ValueError("the shape of an input is no list of sizes")
    return tuple(event)
