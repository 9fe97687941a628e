"""Servers for tests: tiny trained models, in this process or in one of their own."""

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import uvicorn
from PIL import Image

import tiny
from benchmarks.serve.nursery import free_port as free_port
from metavib.serve.app import application
from metavib.serve.engine import Engine
from metavib.serve.service import Limits, Service
from metavib.serve.store import Store
from metavib.training import runs
from metavib.training.config import Config

TOKEN = "a-token-of-some-length"


def trained(folder: Path, **configs: Config) -> dict[str, Path]:
    """Run folders by name."""
    for name, config in configs.items():
        runs.run(config, folder / name, resume=False, quiet=True)
    return {name: folder / name for name in configs}


def glyph_config(**changes: Any) -> Config:
    """Characters of 28 x 28 pixels, learned well enough to tell strokes apart."""
    small = {"tasks__size": 28, "model__width": 16, "train__steps": 100, "model__kernel": "cosine"}
    small |= {"model__site_m": 10.0, "model__site_s": 0.05}
    return tiny.glyphs(**{**small, **changes})


def engines(folders: dict[str, Path]) -> list[Engine]:
    return [Engine.from_run(name, folder) for name, folder in folders.items()]


class Serving(NamedTuple):
    """A server in this process, in threads of its own."""

    address: str
    service: Service
    http: httpx.Client


@contextmanager
def serving(
    models: Sequence[Engine], url: str, *, port: int = 0, limits: Limits | None = None, token: str | None = None
) -> Iterator[Serving]:
    service = Service(models, Store(url), limits)
    app = application(service, token=token, threads=8)
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    address = f"http://localhost:{bound.getsockname()[1]}"
    with httpx.Client(base_url=address, timeout=30) as http:
        try:
            yield Serving(address, service, http)
        finally:
            server.should_exit = True
            thread.join(30)
            bound.close()


class Program:
    """`metavib serve` as a process."""

    def __init__(self, *arguments: str, log: Path, **environment: str) -> None:
        source = str(Path(__file__).parents[1] / "src")
        self.log = log
        environ = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **environment}
        with open(log, "w") as out:
            command = [sys.executable, "-m", "metavib", "serve", *arguments]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)

    def ready(self, address: str) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return httpx.get(f"{address}/healthz").status_code == 200
            except httpx.TransportError:
                return False

        until(answers, seconds=60)

    def stop(self, sign: int = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        return self.process.wait(60)


def until(true: Any, *, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "this did not happen in time"
        time.sleep(0.02)


# Requests

ROWS = [{"x": -1.0, "y": 0.5}, {"x": 2.0, "y": -1.5}, {"x": 0.25, "y": 1.0}]


def make(http: httpx.Client, name: str = "t", model: str = "sines", rows=ROWS, **more) -> httpx.Response:
    points = {} if rows is None else {"points": {"rows": rows}}
    return http.post("/v1/tasks", json={"model": model, "name": name, **points, **more})


def update(http: httpx.Client, rows, name: str = "t", **headers: str) -> httpx.Response:
    return http.post(f"/v1/tasks/{name}/update", json={"points": {"rows": rows}}, headers=headers)


def predict(http: httpx.Client, xs, name: str = "t", **more) -> httpx.Response:
    body = {"inputs": {"rows": [{"x": x} for x in xs]}, **more}
    return http.post(f"/v1/tasks/{name}/predict", json=body)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def drawing(seed: int, size: int = 28) -> bytes:
    rng = np.random.default_rng(seed)
    pixels = np.full((size, size), 255)
    for _ in range(2):
        a, b = rng.integers(4, size - 4, 2)
        pixels[a : a + 2, 4:-4] = 0
        pixels[4:-4, b : b + 2] = 0
    return png(pixels)
