"""Servers that start in a fraction of a second: one process imports everything, and forks a server when told to.

`Nursery` starts this file as a program, which reads an order (JSON) from each line of its standard input.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import httpx

ROOT = Path(__file__).parents[2]


@final
class Nursery:
    """Starts servers, each a process of its own.

    Args:
        log: where they write.
    """

    def __init__(self, log: Path) -> None:
        paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self._log = open(log, "ab")  # noqa: SIM115 - closed with the nursery
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serve.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )

    def serve(self, models: list[str], store: str, port: int, **options: Any) -> int:
        """Starts a server and returns its process, which may not answer yet."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(
            json.dumps({"models": models, "store": store, "port": port, **options}).encode() + b"\n"
        )
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the nursery; servers that still run are killed with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def ready(address: str, *, path: str = "/healthz", seconds: float = 60.0) -> None:
    """Waits until a server answers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if httpx.get(f"{address}{path}", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{address} does not answer.")


def free_port() -> int:
    """A port that nobody listens at, and that no outgoing connection will get while a server is down.

    Those have ports above 32768; a client that asks for such a port again and again ends up connected to itself.
    """
    while True:
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
            return int(found.getsockname()[1])


def main() -> None:
    """Forks a server for every line of standard input."""
    from metavib.serve.server import resolve, serve

    children: list[int] = []
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        order = json.loads(line)
        if not children:  # what the first model makes Python import is then there for all
            resolve(order["models"][0], pixels=1)
        child = os.fork()
        if not child:
            os.dup2(2, 1)
            try:
                serve(order.pop("models"), **order)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
            os._exit(0)
        children.append(child)
        print(child, flush=True)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
