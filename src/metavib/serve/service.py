"""The verbs of the service, as plain functions that many threads may call at once.

Each verb asks the store for the task, checks what it was given against the task's model, and then joins others that
want the same at this moment (`metavib.serve.combine`): changes are written in one transaction, predictions go through
the network in one pass.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from secrets import token_hex
from typing import Any, NamedTuple, final

from metavib.adapt.believed import Judged
from metavib.serve.combine import Combiner
from metavib.serve.engine import Ask, Data, Engine
from metavib.serve.metrics import SIZES, Metrics
from metavib.serve.store import Change, Done, Entry, Next, Refused, Store, Stored

Answer = dict[str, Any]
"""What a verb answers: plain values, ready for JSON; `tag` is the task's ETag."""


class Limits(NamedTuple):
    """What one server gives to one request, and to all of them.

    Args:
        body: bytes of a request.
        pixels: of one picture, counted before it is decoded.
        points: of one call.
        classes: of one task.
        calls: of one batch.
        tasks: in the store.
        state: bytes that may be known of one task.
        seconds: until a request is given up.
        waiting: requests at a time.
        cache: bytes of factorised posteriors that are kept at hand.
    """

    body: int = 16 * 2**20
    pixels: int = 16_000_000
    points: int = 10_000
    classes: int = 1_000
    calls: int = 256
    tasks: int = 1_000_000
    state: int = 32 * 2**20
    seconds: float = 30.0
    waiting: int = 256
    cache: int = 256 * 2**20


class Call(NamedTuple):
    """One verb of a batch: what to do with which task."""

    verb: str
    task: str
    arguments: dict[str, Any]


@final
class Service:
    """Tasks of several models, in one store.

    Args:
        engines: the models.
        store: where tasks are kept.
        limits: what a request may ask for.
        metrics: where things are counted.
    """

    def __init__(
        self, engines: Sequence[Engine], store: Store, limits: Limits | None = None, metrics: Metrics | None = None
    ) -> None:
        self.limits, self.metrics, self.store = limits or Limits(), metrics or Metrics(), store
        self.engines = {engine.name: engine for engine in engines}
        self._by_fingerprint = {engine.fingerprint: engine for engine in engines}
        if len(self._by_fingerprint) != len(engines) or len(self.engines) != len(engines):
            names = ", ".join(engine.name for engine in engines)
            raise ValueError(f"each model is served once, under a name of its own; got {names}.")
        self._cache = Cache(self.limits.cache, self.metrics)
        patience = self.limits.seconds
        self._changes = Combiner(self._change_all, patience=patience)
        self._asks = Combiner(self._predict_all, patience=patience)
        self._counted = (-1e9, 0)
        self.metrics.gauge("metavib_tasks", "Tasks in the store, counted every ten seconds at most.", self._count)

    # What there is

    def models(self) -> list[Answer]:
        """The models, and what they take."""
        return [engine.about() for engine in self.engines.values()]

    def tasks(self, *, after: str, limit: int, model: str | None) -> list[Answer]:
        """Tasks in the order of their names, of all models or of one."""
        fingerprint = None if model is None else self._engine(model).fingerprint
        return [self._shown(entry) for entry in self.store.listed(after=after, limit=limit, model=fingerprint)]

    def task(self, name: str) -> Answer:
        """One task."""
        return self._shown(self._entry(name))

    # What changes a task

    def make(
        self, model: str, name: str | None, data: Data | None, classes: Sequence[Any] | None, *, key: str | None = None
    ) -> Answer:
        """Makes a task, from points or from none."""
        # A name of our own follows from the key: a repeated request finds the task that the first one made.
        name = name or f"task-{sha256(key.encode()).hexdigest()[:20] if key else token_hex(10)}"
        return self._finish(self._making(model, name, data, classes, key=key))

    def update(self, name: str, data: Data, *, key: str | None = None, expected: str | None = None) -> Answer:
        """Adds points to what is known of a task."""
        return self._finish(self._learning("update", name, data, key=key, expected=expected))

    def forget(self, name: str, data: Data, *, key: str | None = None, expected: str | None = None) -> Answer:
        """Takes points away from what is known of a task."""
        return self._finish(self._learning("forget", name, data, key=key, expected=expected))

    def merge(self, name: str, other: str, *, key: str | None = None, expected: str | None = None) -> Answer:
        """Adds what is known of another task, which stays as it is."""
        return self._finish(self._merging(name, other, key=key, expected=expected))

    def replace(self, name: str, file: bytes, *, key: str | None = None, expected: str | None = None) -> Answer:
        """Makes a task from a task file; one that is there already is replaced only where a tag is given."""
        with _sentences():
            engine = next((e for e in self.engines.values() if e.reads(file)), None)
            if engine is None:
                raise ValueError("this is no task file of any model served here; GET /v1/models lists these.")
            predictor = engine.load(file)

        def apply(old: Stored | None) -> Next:
            if old is not None and expected is None:
                raise Refused("a task of this name exists; it is replaced only where If-Match says so.", 409)
            if old is None:
                self._check_room()
            return self._next(engine, predictor)

        return self._finish(Change(name, key or token_hex(16), _digest("replace", file), expected, apply))

    def delete(self, name: str, *, expected: str | None = None) -> None:
        """Forgets a task altogether."""

        def apply(old: Stored | None) -> None:
            if old is None:
                raise _missing()

        self._changes(Change(name, token_hex(16), b"", expected, apply))

    # What asks a task

    def predict(self, name: str, data: Data, *, level: float = 0.95, expected: str | None = None) -> Answer:
        """Predictions at new inputs."""
        with self._asks.coming():
            entry, ask = self._asking(name, data, level=level, expected=expected)
        return self._predicted(entry, ask, self._asks(ask))

    def export(self, name: str) -> tuple[bytes, str]:
        """A task file that the command line and `Learner.load` read, and the task's tag."""
        stored = self._stored(name)
        engine = self._engine_of(stored.entry)
        return engine.dump(self._predictor(engine, stored)), stored.entry.tag

    def batch(self, calls: Sequence[Call]) -> list[Answer | Exception]:
        """Many calls at once: changes in their order, all of them on disk before the first prediction is made."""
        answers: list[Answer | Exception] = [Refused("this was not done.", 500)] * len(calls)
        changes: list[tuple[int, Change]] = []
        planned: dict[str, Engine] = {}  # tasks that this very batch makes
        for i, call in enumerate(calls):
            if call.verb != "predict":
                try:
                    changes.append((i, self._change_of(call, planned)))
                except Exception as error:
                    answers[i] = error
        for start in range(0, len(changes), 64):
            part = changes[start : start + 64]
            for (i, _), outcome in zip(part, self._change_all([change for _, change in part]), strict=True):
                answers[i] = outcome if isinstance(outcome, Exception) else self._answered(outcome)
        asks = []
        for i, call in enumerate(calls):
            if call.verb == "predict":
                try:
                    asks.append((i, *self._asking(call.task, **call.arguments)))
                except Exception as error:
                    answers[i] = error
        for (i, entry, ask), outcome in zip(asks, self._predict_all([ask for _, _, ask in asks]), strict=True):
            answers[i] = outcome if isinstance(outcome, Exception) else self._predicted(entry, ask, outcome)
        return answers

    # Changes

    def _change_of(self, call: Call, planned: dict[str, Engine]) -> Change:
        if call.verb == "make":
            planned[call.task] = self._engine(call.arguments["model"])
            return self._making(name=call.task, **call.arguments)
        if call.verb == "merge":
            return self._merging(call.task, **call.arguments)
        return self._learning(call.verb, call.task, engine=planned.get(call.task), **call.arguments)

    def _making(
        self, model: str, name: str, data: Data | None, classes: Sequence[Any] | None, *, key: str | None
    ) -> Change:
        engine = self._engine(model)
        with self._changes.coming(), _sentences():
            self._check_size(data, classes)
            judged = engine.judge(data)
            predictor = engine.adapt(judged, classes)

        def apply(old: Stored | None) -> Next:
            if old is not None:
                raise Refused("a task of this name exists: choose another name, update it, or delete it first.", 409)
            self._check_room()
            return self._next(engine, predictor, **_left_out(judged))

        return Change(name, key or token_hex(16), _digest("make", engine.fingerprint, data, classes), None, apply)

    def _learning(
        self,
        verb: str,
        name: str,
        data: Data,
        *,
        key: str | None = None,
        expected: str | None = None,
        engine: Engine | None = None,
    ) -> Change:
        with self._changes.coming():
            engine = engine or self._engine_of(self._entry(name))
            with _sentences():
                self._check_size(data)
                points = engine.points(data)

        def apply(old: Stored | None) -> Next:
            predictor = self._current(engine, old)
            with _sentences():
                if verb == "forget":
                    return self._next(engine, predictor.forget(points))
                judged = predictor.judge(points)
                return self._next(engine, predictor.update(judged), **_left_out(judged))

        return Change(name, key or token_hex(16), _digest(verb, data), expected, apply)

    def _merging(self, name: str, other: str, *, key: str | None = None, expected: str | None = None) -> Change:
        if name == other:
            raise Refused("a task cannot be merged with itself: every point would count twice.", 422)
        engine, source = self._engine_of(self._entry(name)), self._stored(other)
        its = self._predictor(self._engine_of(source.entry), source)

        def apply(old: Stored | None) -> Next:
            predictor = self._current(engine, old)
            with _sentences():
                return self._next(engine, predictor.merge(its), merged={"task": other, "tag": source.entry.tag})

        return Change(name, key or token_hex(16), _digest("merge", other), expected, apply)

    def _current(self, engine: Engine, old: Stored | None) -> Any:
        if old is None:
            raise _missing()
        if old.entry.model != engine.fingerprint:
            raise Refused("the task was replaced by one of another model meanwhile.", 409)
        return old.value or self._predictor(engine, old)

    def _next(self, engine: Engine, predictor: Any, **more: Any) -> Next:
        if len(predictor.classes) > self.limits.classes:
            raise Refused(f"a task may have {self.limits.classes} classes here; got {len(predictor.classes)}.", 422)
        state = engine.dump(predictor)
        if len(state) > self.limits.state:
            raise Refused(f"{len(state)} bytes would be kept of this task; {self.limits.state} are allowed.", 413)
        return Next(engine.fingerprint, state, {**engine.summary(predictor), **more}, predictor)

    def _finish(self, change: Change) -> Answer:
        return self._answered(self._changes(change))

    def _answered(self, done: Done) -> Answer:
        engine = self._by_fingerprint.get(done.answer["model"])
        if engine is not None and done.value is not None:
            self._cache.put(done.answer["tag"], done.value, done.value.nbytes)
        return {**done.answer, "model": None if engine is None else engine.name, "repeated": done.repeated}

    def _change_all(self, changes: list[Change]) -> list[Done | Exception]:
        self.metrics.observe("metavib_changes_together", "Changes of one transaction.", len(changes), SIZES)
        return self.store.change(changes)

    # Predictions

    def _asking(self, name: str, data: Data, *, level: float, expected: str | None = None) -> tuple[Entry, Ask]:
        entry = self._entry(name)
        predictor = self._cache.get(entry.tag)
        if predictor is None:
            stored = self._stored(name)
            entry = stored.entry
            predictor = self._predictor(self._engine_of(entry), stored)
        if expected not in (None, "*", entry.tag):
            raise Refused(f"the task is at version {entry.version}, which is not the one that If-Match names.", 412)
        engine = self._engine_of(entry)
        with _sentences():
            self._check_size(data)
            return entry, Ask(engine, predictor, engine.inputs(data), level)

    def _predict_all(self, asks: list[Ask]) -> list[Any]:
        found: list[Any] = [None] * len(asks)
        for engine in {id(ask.engine): ask.engine for ask in asks}.values():
            places = [i for i, ask in enumerate(asks) if ask.engine is engine]
            self.metrics.observe("metavib_predictions_together", "Requests of one pass.", len(places), SIZES)
            for i, outcome in zip(places, engine.predict([asks[i] for i in places]), strict=True):
                found[i] = outcome
        return found

    def _predicted(self, entry: Entry, ask: Ask, prediction: Any) -> Answer:
        with _sentences():
            found = ask.engine.rows(prediction, level=ask.level)
        about = {"task": entry.name, "version": entry.version, "tag": entry.tag, "model": ask.engine.name}
        return {**about, "points": ask.predictor.n, **found}

    # Lookups

    def _engine(self, model: str) -> Engine:
        if model not in self.engines:
            raise Refused(f"no model of this name is served here; there are {', '.join(self.engines)}.", 404)
        return self.engines[model]

    def _engine_of(self, entry: Entry) -> Engine:
        engine = self._by_fingerprint.get(entry.model)
        if engine is None:
            raise Refused(
                f"this task was learned with a model (fingerprint {entry.model[:12]}) that is not served here: start "
                "the server with it, or delete the task.",
                409,
            )
        return engine

    def _entry(self, name: str) -> Entry:
        found = self.store.entries([name])
        if name not in found:
            raise _missing()
        return found[name]

    def _stored(self, name: str) -> Stored:
        found = self.store.read([name])
        if name not in found:
            raise _missing()
        return found[name]

    def _predictor(self, engine: Engine, stored: Stored) -> Any:
        predictor = self._cache.get(stored.entry.tag)
        if predictor is None:
            predictor = engine.load(stored.state)
            self._cache.put(stored.entry.tag, predictor, predictor.nbytes)
        return predictor

    def _shown(self, entry: Entry) -> Answer:
        engine = self._by_fingerprint.get(entry.model)
        about = {"task": entry.name, "version": entry.version, "tag": entry.tag}
        return {**about, "model": None if engine is None else engine.name, **entry.summary}

    # Limits

    def _check_size(self, data: Data | None, classes: Sequence[Any] | None = None) -> None:
        if data is not None and len(data.values) > self.limits.points:
            raise Refused(f"a call may have {self.limits.points} points here; got {len(data.values)}.", 413)
        if classes is not None and len(classes) > self.limits.classes:
            raise Refused(f"a task may have {self.limits.classes} classes here; got {len(classes)}.", 422)

    def _check_room(self) -> None:
        if self._count() >= self.limits.tasks:
            raise Refused(f"the {self.limits.tasks} tasks that this server may keep are all taken.", 507)

    def _count(self) -> float:
        """How many tasks there are, or were up to ten seconds ago: the limit is there to be safe, not to be exact."""
        at, count = self._counted
        if time.monotonic() - at > 10:
            count = self.store.count()
            self._counted = (time.monotonic(), count)
        return count


@final
class Cache:
    """Predictors that were used lately, so that their posteriors need not be factorised again.

    Args:
        room: bytes of all of them.
        metrics: where hits and misses are counted.
    """

    def __init__(self, room: int, metrics: Metrics) -> None:
        self._room, self._metrics, self._used = room, metrics, 0
        self._kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        metrics.gauge("metavib_cache_bytes", "Bytes of factorised posteriors at hand.", lambda: self._used)

    def get(self, tag: str) -> Any:
        """The predictor of a tag, or None."""
        with self._lock:
            found = self._kept.get(tag)
            if found is not None:
                self._kept.move_to_end(tag)
        outcome = "miss" if found is None else "hit"
        self._metrics.count("metavib_cache_total", "Predictors looked for in the cache.", outcome=outcome)
        return None if found is None else found[0]

    def put(self, tag: str, value: Any, nbytes: int) -> None:
        """Keeps a predictor, and lets go of those that were not used for longest."""
        if nbytes > self._room:
            return
        with self._lock:
            self._used += nbytes - self._kept.pop(tag, (None, 0))[1]
            self._kept[tag] = (value, nbytes)
            while self._used > self._room:
                _, (_, gone) = self._kept.popitem(last=False)
                self._used -= gone


@contextmanager
def _sentences() -> Iterator[None]:
    """What a model says of data that it cannot take, is for whoever sent it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise Refused(str(error), 422) from error


def _left_out(judged: Judged) -> dict[str, list[int]]:
    """What the answer says of points that cannot be right; nothing where all can."""
    return {"left_out": judged.left_out} if judged.left_out else {}


def _missing() -> Refused:
    return Refused("there is no task of this name; GET /v1/tasks lists those there are.", 404)


def _digest(*parts: Any) -> bytes:
    """What tells a request from another, whatever way it was written down."""
    digest = sha256()
    for part in parts:
        pieces: Sequence[Any] = (part.kind, *part.values, part.outputs) if isinstance(part, Data) else (part,)
        for piece in pieces:
            content = piece if isinstance(piece, bytes) else repr(piece).encode("utf-8", "backslashreplace")
            digest.update(f"{len(content)}:".encode())
            digest.update(content)
    return digest.digest()
