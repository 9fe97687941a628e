"""Servers are killed at random moments under concurrent updates: every acknowledged update counts, and counts once.

Threads send updates of one point each to a few tasks, with a key each. Most repeat a request until it is acknowledged,
as `Client` does; some give up at the first failure, so that nobody knows whether their update counted. Meanwhile
servers are killed (SIGKILL) and started again, and the database may be restarted too. In the end what was given up is
sent once more with its old key. Then every update was acknowledged, so a task must hold exactly as many points as
updates were sent to it: one fewer was lost, one more was counted twice.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final
from uuid import uuid4

import httpx

from benchmarks.serve.nursery import Nursery, free_port, ready

PASSING = (408, 502, 503, 504, 507)


@dataclass
class Report:
    """What happened.

    Args:
        kills: servers that were killed.
        restarts: of the database.
        updates: that were sent.
        retries: requests that were repeated.
        unsure: updates that were given up, and of these
        counted: had been counted all the same.
        lost: acknowledged updates that are not in their task.
        twice: updates that are in it more than once.
    """

    kills: int = 0
    restarts: int = 0
    updates: int = 0
    retries: int = 0
    unsure: int = 0
    counted: int = 0
    lost: int = 0
    twice: int = 0
    statuses: dict[int, int] = field(default_factory=dict)


@final
class Trial:
    """Updates under fire.

    Args:
        models: run folders; the first one's tasks are updated.
        store: address of the store.
        folder: for logs.
        servers: at a time, on one store.
        threads: that send updates.
        tasks: that they are sent to.
    """

    def __init__(
        self, models: list[str], store: str, folder: Path, *, servers: int = 1, threads: int = 6, tasks: int = 3
    ) -> None:
        self.models, self.store, self.threads = models, store, threads
        self.nursery = Nursery(folder / "servers.log")
        self.ports = [free_port() for _ in range(servers)]
        self.names = [f"task-{i}" for i in range(tasks)]
        self.report, self._lock, self._end = Report(), threading.Lock(), threading.Event()
        self._sent: dict[str, int] = dict.fromkeys(self.names, 0)
        self._unsure: list[tuple[str, str, dict[str, Any]]] = []
        self._versions: dict[str, set[int]] = {name: set() for name in self.names}

    def run(self, kills: int, *, seconds: float = 0.4, also: Callable[[int], None] | None = None) -> Report:
        """Kills servers so many times.

        Args:
            kills: how often.
            seconds: that a server lives after it has answered, at most.
            also: something else to do before the i-th kill, such as restarting the database.
        """
        processes = [self._start(port) for port in self.ports]
        senders = [threading.Thread(target=self._send, args=(i,)) for i in range(self.threads)]
        try:
            for port in self.ports:
                ready(self._address(port))
            with httpx.Client(base_url=self._address(self.ports[0])) as http:
                for name in self.names:
                    http.post("/v1/tasks", json={"model": Path(self.models[0]).name, "name": name}).raise_for_status()
            for sender in senders:
                sender.start()
            self._fire(processes, kills, seconds, also)
            self._end.set()
            for sender in senders:
                sender.join()
            self._settle()
        finally:
            self._end.set()
            self.nursery.close()
        return self.report

    def _fire(self, processes: list[int], kills: int, seconds: float, also: Callable[[int], None] | None) -> None:
        rng = random.Random(0)
        for i in range(kills):
            which = rng.randrange(len(processes))
            time.sleep(rng.uniform(0, seconds))
            if also is not None:
                also(i)
            with suppress(ProcessLookupError):
                os.kill(processes[which], signal.SIGKILL)
                while True:  # it may be writing to the disk, and dies only then
                    os.kill(processes[which], 0)
                    time.sleep(0.005)
            self.report.kills += 1
            processes[which] = self._start(self.ports[which])
            ready(self._address(self.ports[which]))

    def _start(self, port: int) -> int:
        return self.nursery.serve(self.models, self.store, port)

    def _address(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def _send(self, thread: int) -> None:
        rng = random.Random(thread)
        with httpx.Client(base_url=self._address(self.ports[thread % len(self.ports)]), timeout=20) as http:
            while not self._end.is_set():
                name, key = rng.choice(self.names), uuid4().hex
                body = {"points": {"rows": [{"x": rng.uniform(-5, 5), "y": rng.uniform(-5, 5)}]}}
                with self._lock:
                    self._sent[name] += 1
                    self.report.updates += 1
                gives_up = rng.random() < 0.3
                while not self._acknowledged(http, name, key, body):
                    if gives_up:
                        with self._lock:
                            self._unsure.append((name, key, body))
                        break
                    with self._lock:
                        self.report.retries += 1
                    time.sleep(0.05)

    def _acknowledged(self, http: httpx.Client, name: str, key: str, body: dict[str, Any]) -> bool:
        try:
            answer = http.post(f"/v1/tasks/{name}/update", json=body, headers={"idempotency-key": key})
        except httpx.TransportError:
            return False
        with self._lock:
            self.report.statuses[answer.status_code] = self.report.statuses.get(answer.status_code, 0) + 1
        if answer.status_code in PASSING:
            return False
        answer.raise_for_status()
        found = answer.json()
        with self._lock:
            assert found["version"] not in self._versions[name], "two updates were acknowledged with one version"
            self._versions[name].add(found["version"])
        return True

    def _settle(self) -> None:
        """Sends what was given up once more, and counts."""
        with httpx.Client(base_url=self._address(self.ports[0]), timeout=20) as http:
            for name, key, body in self._unsure:
                answer = http.post(f"/v1/tasks/{name}/update", json=body, headers={"idempotency-key": key})
                answer.raise_for_status()
                self.report.unsure += 1
                self.report.counted += answer.json()["repeated"]
            for name in self.names:
                difference = http.get(f"/v1/tasks/{name}").json()["points"] - self._sent[name]
                self.report.lost += max(0, -difference)
                self.report.twice += max(0, difference)
