"""The service from Python, with the verbs of `metavib.adapt.learner.Learner`.

Every change is sent with a key of its own and repeated, with the same key, until the server has answered: so it counts
once, however often the connection breaks or the server is restarted meanwhile.
"""

import base64
import io
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final
from urllib.parse import quote
from uuid import uuid4

import httpx
import numpy as np
from numpy.typing import NDArray

FILE = "application/octet-stream"
PASSING = (408, 429, 502, 503, 504)  # statuses that say: ask again
TOGETHER = 256  # tasks of one batch


class ServiceError(Exception):
    """What the server did not do, and why.

    Args:
        reason: the server's sentence.
        status: of HTTP; 0 where no answer came.

    Example:
        >>> from metavib.serve import ServiceError
        >>> error = ServiceError("there is no task named 'a'", 404)
        >>> str(error), error.status
        ("there is no task named 'a'", 404)
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class RealValues:
    """Predictions of real outputs at v inputs, in the units of the table: `mean`, `sd`, `low` and `high`, `(v,)` each.

    `low` and `high` are the ends of the interval that was asked for.
    """

    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class ClassValues:
    """Predictions of classes at v inputs.

    Args:
        labels: the most probable class of each.
        classes: what the columns of the probabilities stand for.
        probabilities: `(v, N)`.
        entropy: of the probabilities, in nats, `(v,)`.
    """

    labels: list[Any]
    classes: list[Any]
    probabilities: NDArray[np.float64]
    entropy: NDArray[np.float64]


@final
@dataclass(frozen=True)
class Task:
    """A task on the server, as it was at one version. To learn is to get another one.

    Args:
        name: of the task.
        model: that it belongs to.
        version: how many changes had made it what it was.
        n: how many points it had learned from.
        counts: points of each class; empty for real outputs.
        tag: what tells this state of the task from every other, the ETag of HTTP.
        client: that made it.
        left_out: points of the change that made it which were left out, since they cannot be right; numbered from 1.

    Example:
        A server that runs is asked by `Client.adapt` and `Client.task`, which make these.

        >>> from metavib.serve import Client, Task
        >>> with Client("http://localhost:8000") as client:
        ...     task = Task("mara", "characters", version=2, n=3, counts={"a": 2, "b": 1}, tag="2", client=client)
        >>> task.classes
        ('a', 'b')
    """

    name: str
    model: str | None
    version: int
    n: int
    counts: dict[Any, int]
    tag: str
    client: "Client" = field(repr=False)
    left_out: tuple[int, ...] = ()

    @property
    def classes(self) -> tuple[Any, ...]:
        """Labels of its classes; none for real outputs."""
        return tuple(self.counts)

    def update(self, points: Any, *, unchanged: bool = False) -> "Task":
        """The task after it has also seen these points.

        Args:
            points: rows, or a pair of inputs and outputs.
            unchanged: refuse (status 412) where the task has changed since this object was made.
        """
        return self._change("update", {"points": self.client._points(points, self.model)}, unchanged)

    def forget(self, points: Any, *, unchanged: bool = False) -> "Task":
        """The task as if it had never seen these points."""
        return self._change("forget", {"points": self.client._points(points, self.model)}, unchanged)

    def merge(self, other: "Task | str", *, unchanged: bool = False) -> "Task":
        """The task after it has taken in what is known of another one, which stays; no point may be in both."""
        name = other.name if isinstance(other, Task) else other
        return self._change("merge", {"other": name}, unchanged)

    def predict(self, inputs: Any, *, level: float = 0.95) -> RealValues | ClassValues:
        """The distribution of the outputs at some inputs, with the interval of a given probability."""
        body = {"inputs": self.client._inputs(inputs), "level": level}
        return _values(self.client._ask("POST", f"{self._path}/predict", json=body).json())

    def save(self, path: str | Path) -> None:
        """Writes a task file, which `Learner.load` and the command line read."""
        from metavib.files import write_atomically

        content = self.client._ask("GET", f"{self._path}/file").content
        write_atomically(Path(path), lambda p: p.write_bytes(content))

    def refresh(self) -> "Task":
        """The task as it is now."""
        return self.client.task(self.name)

    def delete(self) -> None:
        """Deletes it, with all that is known of it."""
        self.client._ask("DELETE", self._path, missing_ok=True)

    @property
    def _path(self) -> str:
        return _path(self.name)

    def _change(self, verb: str, body: dict[str, Any], unchanged: bool) -> "Task":
        headers = {"if-match": self.tag} if unchanged else {}
        return self.client._task(self.client._ask("POST", f"{self._path}/{verb}", json=body, headers=headers))


@final
class Client:
    """A connection to a server (`metavib serve`).

    Points come as people have them: rows as dictionaries or a data frame, with the target among their columns; or a
    pair of inputs and outputs, where inputs are picture files (paths, bytes or PIL images), or arrays as the model
    takes them.

    Args:
        url: of the server.
        token: that it asks for.
        patience: seconds for which a request is repeated while no answer comes.
        transport: another way to reach the server, for tests.

    Example:
        >>> client = Client("http://localhost:8000")
        >>> task = client.adapt("sines", [{"x": 0.5, "y": 1.2}])  # doctest: +SKIP
        >>> task = task.update([{"x": 1.0, "y": 2.1}])  # doctest: +SKIP
        >>> task.predict([{"x": 0.7}]).mean  # doctest: +SKIP
        >>> client.close()
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        patience: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        timeout = httpx.Timeout(40.0, connect=5.0)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)
        self._patience = patience
        self._outputs: dict[str | None, str] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def models(self) -> list[dict[str, Any]]:
        """The server's models, and what each takes."""
        found: list[dict[str, Any]] = self._ask("GET", "/v1/models").json()["models"]
        return found

    def adapt(
        self, model: str, points: Any = None, *, name: str | None = None, classes: Sequence[Any] | None = None
    ) -> Task:
        """Makes a task.

        Args:
            model: which it belongs to, by name.
            points: to begin with; none where None.
            name: of the task, an opaque string; the server makes one up where None.
            classes: labels to begin with, those without points included.
        """
        body: dict[str, Any] = {"model": model}
        if points is not None:
            body["points"] = self._points(points, model)
        body |= {} if name is None else {"name": name}
        body |= {} if classes is None else {"classes": list(classes)}
        return self._task(self._ask("POST", "/v1/tasks", json=body))

    def load(self, path: str | Path, *, name: str, replace: bool = False) -> Task:
        """Makes a task from a task file.

        Args:
            path: the file, as `save`, `metavib adapt` or the server's export wrote it.
            name: of the task.
            replace: whether a task of that name is replaced; refused (status 409) otherwise.
        """
        headers = {"content-type": FILE} | ({"if-match": "*"} if replace else {})
        return self._task(self._ask("PUT", f"{_path(name)}/file", content=Path(path).read_bytes(), headers=headers))

    def task(self, name: str) -> Task:
        """A task as it is now."""
        return self._task(self._ask("GET", _path(name)))

    def tasks(self, model: str | None = None) -> Iterator[Task]:
        """All tasks in the order of their names, or those of one model."""
        query: dict[str, Any] = {"limit": 1000} | ({} if model is None else {"model": model})
        while True:
            page = self._ask("GET", "/v1/tasks", params=query).json()
            yield from (self._shown(entry, "") for entry in page["tasks"])
            if page["next"] is None:
                return
            query["after"] = page["next"]

    def update(self, points: Mapping[str, Any]) -> dict[str, Task | ServiceError]:
        """Adds points to many tasks in few calls.

        Args:
            points: of each task, by its name.
        """
        outputs = {name: task for name, task in self._described(points).items()}
        calls = [
            {"verb": "update", "task": name, "key": uuid4().hex, "points": self._points(some, outputs.get(name))}
            for name, some in points.items()
        ]
        return {a["task"]: a["found"] for a in self._batch(calls, lambda answer: self._shown(answer, ""))}

    def predict(
        self, inputs: Mapping[str, Any], *, level: float = 0.95
    ) -> dict[str, RealValues | ClassValues | ServiceError]:
        """Predictions of many tasks in few calls.

        Args:
            inputs: of each task, by its name.
            level: the probability of intervals.
        """
        calls = [
            {"verb": "predict", "task": name, "inputs": self._inputs(some), "level": level}
            for name, some in inputs.items()
        ]
        return {a["task"]: a["found"] for a in self._batch(calls, _values)}

    def _batch(self, calls: list[dict[str, Any]], read: Any) -> Iterator[dict[str, Any]]:
        for start in range(0, len(calls), TOGETHER):
            part = calls[start : start + TOGETHER]
            answers = self._ask("POST", "/v1/batch", json={"calls": part}).json()["answers"]
            for call, answer in zip(part, answers, strict=True):
                failed = ServiceError(answer["error"], answer["status"]) if "error" in answer else None
                yield {"task": call["task"], "found": failed or read(answer)}

    def _described(self, points: Mapping[str, Any]) -> dict[str, str | None]:
        """The models of tasks, where their points are pairs: whether outputs are classes is not seen from these."""
        pairs = [name for name, some in points.items() if isinstance(some, tuple)]
        return {name: self.task(name).model for name in pairs}

    # Requests

    def _ask(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, missing_ok: bool = False, **body: Any
    ) -> httpx.Response:
        sent = {"idempotency-key": uuid4().hex, **(headers or {})}
        until, wait, asked = time.monotonic() + self._patience, 0.05, 0
        while True:
            asked += 1
            try:
                answer = self._http.request(method, path, headers=sent, **body)
                if answer.status_code not in PASSING:
                    break
                failure = ServiceError(_reason(answer), answer.status_code)
            except httpx.TransportError as error:
                failure = ServiceError(f"the server did not answer ({error}).", 0)
            if time.monotonic() + wait > until:
                raise failure
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, 2.0)
        if answer.is_error and not (missing_ok and answer.status_code == 404 and asked > 1):
            raise ServiceError(_reason(answer), answer.status_code)
        return answer

    def _task(self, answer: httpx.Response) -> Task:
        return self._shown(answer.json(), answer.headers.get("etag", ""))

    def _shown(self, entry: dict[str, Any], tag: str) -> Task:
        counts = {c["label"]: c["points"] for c in entry.get("classes") or ()}
        left_out = tuple(entry.get("left_out") or ())
        return Task(entry["task"], entry["model"], entry["version"], entry["points"], counts, tag, self, left_out)

    # Data

    def _points(self, points: Any, model: str | None) -> dict[str, Any]:
        if not isinstance(points, tuple):
            return {"rows": _rows(points)}
        x, y = points
        found = self._inputs(x)
        kind = "labels" if "pictures" in found or self._kind(model) == "classes" else "outputs"
        return {**found, kind: [v.item() if isinstance(v, np.generic) else v for v in y]}

    def _kind(self, model: str | None) -> str:
        if model not in self._outputs:
            self._outputs = {about["name"]: about["outputs"] for about in self.models()}
        return self._outputs.get(model, "real")

    def _inputs(self, inputs: Any) -> dict[str, Any]:
        if hasattr(inputs, "to_dict") or (len(inputs) and isinstance(inputs[0], Mapping)):
            return {"rows": _rows(inputs)}
        if isinstance(inputs, Sequence) and len(inputs) and (picture := _picture(inputs[0])) is not None:
            return {"pictures": [picture, *(_picture(one) for one in inputs[1:])]}
        return {"arrays": np.asarray(inputs).tolist()}


def _path(name: str) -> str:
    return f"/v1/tasks/{quote(name, safe='')}"


def _rows(rows: Any) -> list[dict[str, Any]]:
    """Rows of a data frame, or dictionaries, with plain values; what is missing is null."""
    found = rows.to_dict("records") if hasattr(rows, "to_dict") else rows

    def plain(value: Any) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        return None if isinstance(value, float) and value != value else value

    return [{str(name): plain(value) for name, value in row.items()} for row in found]


def _picture(one: Any) -> str | None:
    """A picture file in base64: a path, the content of a file, or a PIL image; None for anything else."""
    if isinstance(one, str | Path):
        one = Path(one).read_bytes()
    elif hasattr(one, "save") and hasattr(one, "mode"):
        file = io.BytesIO()
        one.save(file, "PNG")
        one = file.getvalue()
    return base64.b64encode(one).decode() if isinstance(one, bytes) else None


def _values(answer: dict[str, Any]) -> RealValues | ClassValues:
    rows = answer["predictions"]
    if answer.get("classes") is None:
        return RealValues(*(np.array([row[name] for row in rows]) for name in ("mean", "sd", "low", "high")))
    probabilities = np.array([row["probabilities"] for row in rows])
    entropy = np.array([row["entropy"] for row in rows])
    return ClassValues([row["label"] for row in rows], answer["classes"], probabilities, entropy)


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status_code}."
