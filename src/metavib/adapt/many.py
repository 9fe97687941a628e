"""Many tasks at once: what is known of each, by its id, and predictions for rows of all of them in one call."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from metavib.adapt import believed
from metavib.adapt.file import Kept, TaskFile, write
from metavib.adapt.points import Batch, Support, distinct, plain_labels
from metavib.adapt.predictor import FORMS, Predictor, predictor
from metavib.adapt.trained import Trained, joined
from metavib.encoders import AdditiveEncoder
from metavib.likelihoods import Softmax
from metavib.likelihoods.prediction import ClassPrediction, Prediction
from metavib.marginals import Marginals, Normal, Point, Student
from metavib.posteriors.memory import Labels, TaskMemory
from metavib.priors import FunctionPrior
from metavib.random import Noise

SIDE_BY_SIDE = 2**22
"""Numbers in the matrices of tasks that are worked on at a time: 32 MB of them."""

CELLS = 2**27
"""Probabilities in one prediction: 1 GB of them."""


class _Group(NamedTuple):
    """Tasks that are predicted together: they have the same classes, and points of every class or not."""

    classes: Labels
    complete: bool


class _Asked(NamedTuple):
    """A task of which predictions are asked for: what is kept of it, and the rows that are its own."""

    what: Support | TaskMemory
    rows: list[int]


@final
class Predictors(Mapping[Hashable, Predictor]):
    """What is known of many tasks, by their ids: a mapping to the predictor of each, which never changes.

    Of a task its points are kept, or the memory they add up to where that is smaller. Rows of any number of tasks are
    predicted together: all points go through the network once, and the algebra of tasks of about as many points is done
    side by side. A task that is not known is predicted from the prior, as any task is before its first point
    (`points_of` tells). Ids that print alike are one: 3 is "3", as in a CSV file.

    Args:
        trained: the model.
        tasks: what is kept of each.
        classes: labels of a classifier's classes, the same in all tasks; those that occur in each where None.
        column: what the ids are called: the column of a table; that of the run where None.

    Example:
        >>> import metavib
        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> parts = encoders.ExactSites(), likelihoods.Gaussian(noise=0.1)
        >>> learner = metavib.Learner(methods.gp_vib(networks.MLP(1, ()), kernels.Linear(), *parts))
        >>> towns = learner.adapt_many(([[1.0], [2.0], [1.0]], [1.0, 2.0, -3.0]), tasks=["Bern", "Bern", "Basel"])
        >>> towns.predict([[1.0], [1.0], [1.0]], tasks=["Bern", "Basel", "Biel"]).mean.round(decimals=1)
        tensor([ 1.0000, -2.7000,  0.0000], dtype=torch.float64)
        >>> towns.points_of(["Bern", "Basel", "Biel"])
        [2, 1, 0]
    """

    def __init__(
        self,
        trained: Trained,
        tasks: Mapping[Any, Kept],
        *,
        classes: Sequence[Hashable] | None = None,
        column: str | None = None,
    ) -> None:
        classes = trained.preparation.classes if classes is None else classes
        self._trained, self._given = trained, None if classes is None else tuple(plain_labels(classes))
        self.column = column or trained.preparation.column or "task"
        self._tasks = {str(id): kept for id, kept in tasks.items()}

    # A mapping

    def __getitem__(self, id: Hashable) -> Predictor:
        kept = self._tasks[str(id)]
        return predictor(self._trained, kept.what, kept.classes)

    def __contains__(self, id: object) -> bool:
        return str(id) in self._tasks

    def __iter__(self) -> Iterator[Hashable]:
        return (kept.id for kept in self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def n(self) -> int:
        """How many points it has learned from, of all tasks together."""
        return sum(kept.what.n for kept in self._tasks.values())

    def points_of(self, ids: Sequence[Hashable]) -> list[int]:
        """How many points are known of the task of each id; 0 where it is not known."""
        sizes = {key: kept.what.n for key, kept in self._tasks.items()}
        return [sizes.get(str(id), 0) for id in ids]

    @cached_property
    def classes(self) -> Labels:
        """Labels of a classifier's classes, those of all tasks together; none for real outputs."""
        known = dict.fromkeys(kept.classes for kept in self._tasks.values())
        if self._trained.common:
            return self._trained.common
        if not known and self._given:
            return self._given
        return next(iter(known)) if len(known) == 1 else distinct([label for classes in known for label in classes])

    @property
    def event(self) -> tuple[int, ...] | None:
        """Shape of one input; None while nothing is known."""
        for kept in self._tasks.values():
            return kept.what.event
        return None

    # Learning on

    def update(self, points: Any, tasks: Any = None, *, weight: Any = None) -> "Predictors":
        """The predictors that have also seen these points; tasks and classes may be new.

        Args:
            points: of any of the tasks, as for `Learner.adapt`.
            tasks: the task of each point, or the column that names it; the same as before where None.
            weight: how many points each counts as; one where None.

        Under a hierarchical prior points that cannot be right are left out with a warning (`metavib.adapt.believed`).
        """
        column = tasks if isinstance(tasks, str) else self.column
        changed = dict(self._tasks)
        for id, batch in self._batches(points, tasks, weight, learning=True).items():
            changed[str(id)] = self._updated(changed.get(str(id)), id, batch)
        return self._with(changed, column)

    def forget(self, points: Any, tasks: Any = None, *, weight: Any = None) -> "Predictors":
        """The predictors that have never seen these points, which must be among those learned, with their weights."""
        changed = dict(self._tasks)
        for id, batch in self._batches(points, tasks, weight).items():
            if id not in self:
                raise ValueError(f"nothing was learned of the task {id!r}, so that nothing of it can be forgotten.")
            rest = self[id]._forget(batch)
            # Classes that all tasks have stay, even where their last point is gone.
            classes, what = changed[str(id)].classes if self._given else rest.classes, rest._kept("smaller")
            what = what.with_classes(classes) if isinstance(what, TaskMemory) else what
            changed[str(id)] = Kept(what, classes, changed[str(id)].id)
        return self._with(changed, self.column)

    def merge(self, other: "Predictors") -> "Predictors":
        """The predictors that know what both know; of no task may both have seen the same points."""
        changed = dict(self._tasks)
        for key, kept in other._tasks.items():
            if key not in changed:
                changed[key] = kept
            else:
                both = self[kept.id].merge(other[kept.id])
                changed[key] = Kept(both._kept("smaller"), both.classes, changed[key].id)
        return self._with(changed, self.column)

    def save(self, path: str | Path, *, form: str = "smaller", run: Path | None = None) -> None:
        """Writes all of it into one task file, atomically; `Learner.load_many` reads it. As `Predictor.save`."""
        if not self._tasks:
            raise ValueError("nothing is known of any task: there is nothing to save.")
        write(Path(path), self.file(form=form), self._trained, run=run)

    def file(self, *, form: str = "smaller") -> TaskFile:
        """What `save` writes; it may be of no task yet."""
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}; got {form!r}.")
        tasks = list(self._tasks.values())
        if form != "smaller":
            tasks = [Kept(self[kept.id]._kept(form), kept.classes, kept.id) for kept in tasks]
        return TaskFile(tasks, self.column, self._given)

    @classmethod
    def of_file(cls, trained: Trained, file: TaskFile) -> "Predictors":
        """The predictors that a task file holds."""
        tasks = {task.id: task for task in file.tasks}
        return cls(trained, tasks, classes=file.classes, column=file.column)

    def _with(self, tasks: dict[str, Kept], column: str) -> "Predictors":
        return Predictors(self._trained, tasks, classes=self._given, column=column)

    def _updated(self, kept: Kept | None, id: Hashable, batch: Batch) -> Kept:
        trained = self._trained
        if kept is None:
            classes = trained.classes(batch.labels, self._given)
            return self._smaller(Kept(Support((batch,)), classes, id))
        classes = trained.more_classes(kept.classes, batch.labels)
        if isinstance(kept.what, TaskMemory):
            return Kept(kept.what + trained.memory(batch, classes), classes, kept.id)
        return self._smaller(Kept(kept.what + Support((batch,)), classes, kept.id))

    def _smaller(self, kept: Kept) -> Kept:
        """The same, as a memory where the points have outgrown it."""
        trained, support = self._trained, kept.what
        assert isinstance(support, Support)
        if trained.obstacle is not None or support.nbytes < trained.memory_bytes(len(kept.classes)):
            return kept
        return kept._replace(what=trained.remembered(support, kept.classes))

    def _batches(self, data: Any, tasks: Any, weight: Any, *, learning: bool = False) -> dict[Hashable, Batch]:
        """Points by their task; those that are to be learned from without such as cannot be right."""
        points = self._trained.points(data, self.event, weight)
        places = _by_id(self._ids(data, tasks, len(points.x)))
        if learning:
            wrong = self._wrong(points, places)
            believed.tell(wrong, data, self._trained.preparation)
            places = {id: [i for i in rows if not wrong[i]] for id, rows in places.items()}
        order = [i for rows in places.values() for i in rows]
        points = points.select(order)
        start, found = 0, {}
        for id, rows in places.items():
            part = slice(start, start := start + len(rows))
            own = None if points.weight is None else points.weight[part]
            found[id] = Batch(points.x[part], points.y[part], points.labels[part], own)
        return found

    def _wrong(self, points: Batch, places: dict[Hashable, list[int]]) -> np.ndarray:
        """Which of some new points cannot be right, as a mask: beside what is known of their task, or each other."""
        wrong = np.zeros(len(points.x), dtype=bool)
        if not believed.looks(self._trained):
            return wrong
        kept = {id: self._tasks[str(id)].what for id in places if id in self}
        old = [_Asked(kept[id], rows) for id, rows in places.items() if id in kept and kept[id].n]
        new = [rows for id, rows in places.items() if id not in kept or not kept[id].n]
        order, group = [i for rows in new for i in rows], np.repeat(np.arange(len(new)), [len(rows) for rows in new])
        wrong[order] = believed.wrong_together(self._trained, points.select(order), group)
        if old:
            at, found = self._predicted((), old, points.x)
            known = np.zeros(len(points.x), dtype=np.int64)
            for what, rows in old:
                known[rows] = what.n
            of = points.select(at.tolist())
            wrong[at.numpy()] = believed.wrong_beside(self._trained, of, found, known[at.numpy()])
        return wrong

    def _ids(self, data: Any, tasks: Any, rows: int) -> list[Hashable]:
        if tasks is None or isinstance(tasks, str):
            rows_of = data[0] if isinstance(data, tuple) else data
            ids = self._trained.preparation.ids(rows_of, tasks or self.column)
        else:
            ids = plain_labels(tasks)
        if len(ids) != rows:
            raise ValueError(f"tasks must name the task of each row: {rows} of them; got {len(ids)}.")
        return ids

    # Predictions

    def predict(self, x: Any, tasks: Any = None) -> Prediction:
        """The distribution of the outputs at inputs of any of the tasks, in the order of the inputs.

        A classifier's columns are the classes of all tasks; those that are not of a row's own task have probability 0.

        Args:
            x: inputs, as for `Predictor.predict`.
            tasks: the task of each, or the column that names it.
        """
        trained = self._trained
        inputs = trained.inputs(x, self.event)
        if trained.classifies and not self.classes:
            raise ValueError("nothing is known of any class yet: adapt or update with labelled points first.")
        unknown = Kept(Support((Batch(inputs[:0], inputs.new_zeros(0), []),)), self.classes)
        asked = _by_id(self._ids(x, tasks, len(inputs)))
        groups: dict[_Group, list[_Asked]] = {}
        for id, rows in asked.items() or [(None, [])]:  # without rows, the prediction of none
            kept = self._tasks.get(str(id), unknown) if rows else unknown
            groups.setdefault(self._group(kept), []).append(_Asked(kept.what, rows))
        found = [self._predicted(group.classes, tasks, inputs) for group, tasks in groups.items()]
        return trained.preparation.restore(self._joined(found, len(inputs)) if trained.classifies else found[0][1])

    def _group(self, kept: Kept) -> "_Group":
        what = kept.what
        seen = what.seen if isinstance(what, TaskMemory) else self._trained.seen(what.whole, kept.classes)
        return _Group(kept.classes, all(seen))

    def _predicted(self, classes: Labels, asked: list[_Asked], inputs: Tensor) -> tuple[Tensor, Prediction]:
        """Rows of a group of tasks, in order, and their predictions."""
        trained = self._trained
        points = [(task.what.whole, task.rows) for task in asked if isinstance(task.what, Support)]
        memories = [(task.what, task.rows) for task in asked if isinstance(task.what, TaskMemory)]
        asked_of: list[tuple[TaskMemory | Batch, list[int]]] = [*memories, *points]
        order = torch.tensor([i for _, rows in asked_of for i in rows], dtype=torch.long)
        noise: Noise = None
        phi: Tensor | None = None
        known: Sequence[Tensor | None] = [None] * len(asked_of)  # features of points of each task
        q: list[Marginals]
        if trained.batches:
            noise = trained.base_samples(classes) if isinstance(trained.model.likelihood, Softmax) else None
            phi = trained.all_features(inputs[order])  # one pass of the network for all of it
            *each, rest = phi.split([*(len(rows) for _, rows in memories), sum(len(rows) for _, rows in points)])
            at_memories = zip(memories, each, strict=True)
            q = [trained.marginals_at(trained.posterior(of), part, of.seen) for (of, _), part in at_memories]
            if points:
                batches, sizes = [batch for batch, _ in points], [len(rows) for _, rows in points]
                phi_t = trained.all_features(Support(tuple(batches)).whole.x)
                known = [*[None] * len(memories), *phi_t.split([len(batch.x) for batch in batches])]
                q.append(side_by_side(trained, batches, classes, phi_t, rest, sizes))
        else:
            encoded = [trained.encoded(batch, classes, inputs[rows]) for batch, rows in points]
            q, noise = [part for part, _ in encoded], encoded[0][1]
        back = order.argsort().to(inputs.device)
        at = order.sort().values
        kind = trained.kind_of(inputs[at]) if phi is None else phi[back]
        warmth = None
        if not trained.temperature.plain:
            of_task = [trained.warmth(what, own) for (what, _), own in zip(asked_of, known, strict=True)]
            rows_of = torch.tensor([len(rows) for _, rows in asked_of], device=back.device)
            warmth = torch.stack(of_task).repeat_interleave(rows_of)[back]
        return at, trained.prediction(joined(q, back), classes, noise, warmth=warmth, phi=kind)

    def _joined(self, found: list[tuple[Tensor, Prediction]], rows: int) -> ClassPrediction:
        """One prediction over the classes of all tasks."""
        if rows * len(self.classes) > CELLS:
            raise ValueError(
                f"{rows} rows with probabilities of the {len(self.classes)} classes of all tasks together are too many "
                "for one table: predict fewer rows at a time, or each task by itself."
            )
        column = {label: i for i, label in enumerate(self.classes)}
        device = self._trained.device
        p = torch.zeros(rows, len(self.classes), dtype=torch.float64, device=device)
        best = torch.zeros(rows, dtype=torch.long, device=device)
        for places, part in found:
            assert isinstance(part, ClassPrediction)
            columns = torch.tensor([column[label] for label in part.classes], device=device)
            at = places.to(device)
            p[at.unsqueeze(-1), columns] = part.probabilities
            best[at] = columns[part.best]
        return ClassPrediction(p, best, self.classes)


def _by_id(ids: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """The rows of each task, by the first of the ids that print alike."""
    names: dict[str, Hashable] = {}
    rows: dict[Hashable, list[int]] = {}
    for i, id in enumerate(ids):
        rows.setdefault(names.setdefault(str(id), id), []).append(i)
    return rows


# Tasks side by side


@torch.no_grad()
def side_by_side(
    trained: Trained,
    supports: Sequence[Batch],
    classes: Labels,
    phi_t: Tensor,
    phi_v: Tensor,
    sizes: Sequence[int],
) -> Normal | Student | Point:
    """q(f) at inputs of many tasks with the same classes, in a few passes.

    Tasks of about as many points are conditioned side by side, the shorter ones padded.

    Args:
        trained: the model, which `batches`.
        supports: points of each task.
        classes: of all of them.
        phi_t: features of the points of the first task, then of those of the second, and so on.
        phi_v: features of the inputs of the first task, then of those of the second, and so on.
        sizes: how many inputs each task has.
    """
    encoder, prior = trained.model.encoder, trained.model.prior
    assert isinstance(encoder, AdditiveEncoder) and isinstance(prior, FunctionPrior)
    kernel, likelihood = prior.kernel, trained.sized(trained.model.likelihood, classes)
    points = Support(tuple(supports)).whole
    y = trained.outputs(points, classes)
    seen = torch.tensor([trained.seen(support, classes) for support in supports], device=trained.device)
    parts: list[Marginals] = []
    places = []
    n, n_from = _offsets([len(support.x) for support in supports], trained.device)
    v, v_from = _offsets(sizes, trained.device)
    for chunk in _chunks(n.tolist(), v.tolist(), features=phi_t.shape[-1]):
        of = torch.tensor(chunk, device=trained.device)
        index, mask = _padded(n_from[of], n[of])
        q_index, q_mask = _padded(v_from[of], v[of])
        query = phi_v[q_index].double()
        weight = None if points.weight is None else points.weight[index]
        options: Any = {"dtype": torch.float64, "weight": weight}
        q = encoder.condition(phi_t[index], y[index], mask, prior, likelihood, **options).marginals(query)
        if isinstance(q, Normal):
            alone = ~seen[of].unsqueeze(-2)  # classes without points are their prior
            var = torch.where(alone, kernel.diagonal(kernel.embed(query)).unsqueeze(-1), q.var)
            q = Normal(q.mean[..., : seen.shape[-1]].masked_fill(alone, 0.0), var)
        elif isinstance(q, Point):  # which has the classes without points in it
            q = Point(q.f[..., : seen.shape[-1]])
        parts.append(type(q)(*(t[q_mask] for t in q)))
        places.append(q_index[q_mask])
    whole = joined(parts, torch.cat(places).argsort())
    assert isinstance(whole, Normal | Student | Point)
    if not isinstance(whole, Normal) or not bool(seen.all()):
        return whole
    return Normal(whole.mean, whole.var[..., :1])  # shared by classes that have points


def _offsets(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sizes, and where each task begins in a list of all points."""
    count = torch.tensor(sizes, dtype=torch.long, device=device)
    return count, count.cumsum(0) - count


def _padded(start: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Places `(tasks, largest size)` of each task's points in a list of all, and which of them are real."""
    steps = torch.arange(int(size.max()), device=size.device)
    mask = steps < size.unsqueeze(-1)
    return (start.unsqueeze(-1) + steps) * mask, mask


def _chunks(n: list[int], v: list[int], *, features: int) -> Iterator[list[int]]:
    """Tasks by their places, in chunks of about as many points each that are not too large when padded."""
    chunk: list[int] = []
    tall = wide = 0
    for i in sorted(range(len(n)), key=lambda i: (n[i], v[i])):
        tall, wide = max(tall, n[i]), max(wide, v[i])
        if chunk and (len(chunk) + 1) * (tall + wide) * (tall + features) > SIDE_BY_SIDE:
            yield chunk
            chunk, tall, wide = [], n[i], v[i]
        chunk.append(i)
    if chunk:
        yield chunk
