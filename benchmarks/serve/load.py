"""Closed-loop load on loopback: latency, throughput, processor time and memory at 1 to 100,000 stored tasks.

Clients send the next request when the last one is answered. Each measurement is bounded in count and in time, and the
two servers take turns, so that whatever else the machine does meanwhile it does to both. Processor time is the
server's alone and does not depend on what else runs; latency does.
"""

import base64
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import torch
from PIL import Image

from benchmarks.serve import alternative
from benchmarks.serve.nursery import ROOT, free_port, ready
from metavib.adapt.learner import Learner

POINTS = 10  # that a task has learned from before
QUERIES = {"1 row": [{"x": 0.3}], "100 rows": [{"x": round(0.1 * i - 5, 1)} for i in range(100)]}
PICTURE, UPDATE = "1 picture", "update"
NEW = [{"x": 0.5, "y": 1.0}]


class Cell(NamedTuple):
    """One measurement.

    Args:
        server: whose.
        tasks: that were stored.
        clients: at a time.
        what: was asked.
        requests: that were answered.
        p50: milliseconds within which half of them were answered.
        p95: milliseconds for 95 of 100.
        p99: milliseconds for 99 of 100.
        rate: answers a second.
        cpu: milliseconds of processor time of the server for each.
    """

    server: str
    tasks: int
    clients: int
    what: str
    requests: int
    p50: float
    p95: float
    p99: float
    rate: float
    cpu: float


class Line:
    """A connection that is kept, and asks with bytes that were made before: the load itself costs little."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        self._socket.sendall(request)
        status, length = int(self._file.readline().split()[1]), 0
        while (line := self._file.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, self._file.read(length)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def post(path: str, body: Any, **headers: str) -> bytes:
    """A request as it goes over the wire."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()] + [f"Content-Length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode() + content


@final
class Ours:
    """`metavib serve`, on SQLite."""

    name = "metavib serve"

    def __init__(self, curves: Path, characters: Path, folder: Path, *, cache: float = 64.0) -> None:
        self.port = free_port()
        arguments = ["metavib", "serve", f"curves={curves}", f"characters={characters}"]
        arguments += ["--store", f"{folder}/tasks.db", "--cache", str(cache), "--port", str(self.port)]
        self.process = _started(arguments, folder / "ours.log")
        ready(f"http://127.0.0.1:{self.port}")
        line, (content, labels) = Line(self.port), pictures()
        points = {"pictures": [base64.b64encode(c).decode() for c in content], "labels": labels}
        status, said = line.ask(post("/v1/tasks", {"model": "characters", "name": PICTURE, "points": points}))
        assert status == 201, said
        line.close()
        self._picture = post(f"/v1/tasks/{quote(PICTURE)}/predict", {"inputs": {"pictures": points["pictures"][:1]}})

    def store(self, start: int, stop: int) -> None:
        """Makes tasks, in batches."""
        line, rng = Line(self.port), random.Random(start)
        for first in range(start, stop, 256):
            names = map(task_name, range(first, min(first + 256, stop)))
            make = {"verb": "make", "model": "curves"}
            calls = [{**make, "name": name, "points": {"rows": _points(rng)}} for name in names]
            status, _ = line.ask(post("/v1/batch", {"calls": calls}))
            assert status == 200, status
        line.close()

    def request(self, what: str, name: str) -> bytes:
        """What a client sends."""
        if what == PICTURE:
            return self._picture
        if what == UPDATE:
            return post(f"/v1/tasks/{name}/update", {"points": {"rows": NEW}}, **{"Idempotency-Key": uuid4().hex})
        return post(f"/v1/tasks/{name}/predict", {"inputs": {"rows": QUERIES[what]}})


@final
class Pickles:
    """A handler that unpickles a scikit-learn model of each task (`benchmarks.serve.alternative`)."""

    name = "FastAPI and pickles"

    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder / "pickles"
        self._folder.mkdir()
        arguments = ["benchmarks.serve.alternative", str(self._folder), str(self.port)]
        self.process = _started(arguments, folder / "pickles.log")
        ready(f"http://127.0.0.1:{self.port}", path="/docs")

    def store(self, start: int, stop: int) -> None:
        """Writes the files, of a hundred different models: what is in them makes no difference to their cost."""
        rng = random.Random(start)
        contents = [alternative.model(_points(rng)) for _ in range(min(100, stop - start))]
        for i in range(start, stop):
            (self._folder / task_name(i)).write_bytes(contents[i % len(contents)])

    def request(self, what: str, name: str) -> bytes:
        """What a client sends."""
        if what == UPDATE:
            return post(f"/tasks/{name}/update", {"rows": NEW})
        return post(f"/tasks/{name}/predict", {"rows": QUERIES[what]})


Server = Ours | Pickles


def task_name(i: int) -> str:
    return f"task-{i:06d}"


def pictures() -> tuple[list[bytes], list[str]]:
    """Five characters of 28 x 28 pixels as PNG files, and their names."""
    rng, files = np.random.default_rng(0), []
    for _ in range(5):
        file = io.BytesIO()
        Image.fromarray(np.where(rng.random((28, 28)) < 0.2, 0, 255).astype(np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    return files, list("abcde")


def _points(rng: random.Random) -> list[dict[str, float]]:
    return [{"x": round(rng.uniform(-5, 5), 3), "y": round(rng.uniform(-3, 3), 3)} for _ in range(POINTS)]


def _started(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as out:
        return subprocess.Popen([sys.executable, "-m", *arguments], stdout=out, stderr=out, env=environment)


@contextmanager
def stopped(*servers: Server) -> Iterator[None]:
    """Stops servers in the end."""
    try:
        yield
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait(60)


def measured(server: Server, tasks: int, clients: int, what: str, *, count: int, seconds: float) -> list[float]:
    """Seconds of each request of a closed loop, to tasks drawn at random."""
    end = time.perf_counter() + seconds
    found: list[list[float]] = [[] for _ in range(clients)]
    failures: list[int] = []

    def client(times: list[float], seed: int) -> None:
        rng, line = random.Random(seed), Line(server.port)
        for _ in range(count // clients):
            request = server.request(what, task_name(rng.randrange(tasks)))
            begun = time.perf_counter()
            status, _ = line.ask(request)
            times.append(time.perf_counter() - begun)
            if status != 200:
                failures.append(status)
            if time.perf_counter() > end:
                break
        line.close()

    threads = [threading.Thread(target=client, args=(times, i)) for i, times in enumerate(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, f"{server.name} answered {set(failures)}"
    return [t for times in found for t in times]


def cell(servers: Sequence[Server], tasks: int, clients: int, what: str, *, count: int, seconds: float) -> list[Cell]:
    """One measurement of each server, in turns."""
    rounds = 3
    times: dict[str, list[float]] = {server.name: [] for server in servers}
    walls, cpus = dict.fromkeys(times, 0.0), dict.fromkeys(times, 0.0)
    for server in servers:  # connections, caches and the first compilation of handlers are not measured
        measured(server, min(tasks, 100), clients, what, count=20 * clients, seconds=seconds / 4)
    for _ in range(rounds):
        for server in servers:
            begun, cpu = time.perf_counter(), cpu_seconds(server.process.pid)
            times[server.name] += measured(
                server, tasks, clients, what, count=count // rounds, seconds=seconds / rounds
            )
            walls[server.name] += time.perf_counter() - begun
            cpus[server.name] += cpu_seconds(server.process.pid) - cpu
    found = []
    for server in servers:
        own = sorted(times[server.name])
        p50, p95, p99 = (1e3 * own[min(len(own) - 1, int(q * len(own)))] for q in (0.5, 0.95, 0.99))
        rate, cpu = len(own) / walls[server.name], 1e3 * cpus[server.name] / len(own)
        found.append(Cell(server.name, tasks, clients, what, len(own), p50, p95, p99, rate, cpu))
    return found


def in_process(curves: Path, characters: Path, *, seconds: float) -> dict[str, float]:
    """Milliseconds of the same calls without a server, medians: the floor of any service."""
    torch.set_num_threads(1)
    predictor: Any = Learner.from_run(curves).adapt(_points(random.Random(0)))
    drawn = pictures()
    known: Any = Learner.from_run(characters).adapt(drawn)
    calls: dict[str, Callable[[], Any]] = {
        "1 row": lambda: predictor.predict(QUERIES["1 row"]).interval(0.95),
        "100 rows": lambda: predictor.predict(QUERIES["100 rows"]).interval(0.95),
        PICTURE: lambda: known.predict(drawn[0][:1]).probabilities,
        UPDATE: lambda: predictor.update(NEW),
    }
    found = {}
    for what, call in calls.items():
        times, end = [], time.perf_counter() + seconds / len(calls)
        while time.perf_counter() < end:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
        found[what] = 1e3 * statistics.median(times)
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Megabytes of memory that a process holds."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
