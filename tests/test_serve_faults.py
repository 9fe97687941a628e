"""The server as a program: killed, stopped, without its store, and beside another one on the same store."""

import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import program
import serving
import tiny
from benchmarks.serve import postgres
from benchmarks.serve.faults import Trial
from metavib.serve.store import Store

ROWS = [{"x": 0.5, "y": 1.0}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return serving.trained(tmp_path_factory.mktemp("runs"), sines=tiny.sinusoid())


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Postgres]:
    if postgres.binaries() is None:
        pytest.skip(postgres.MISSING)
    found = postgres.Postgres()
    yield found
    found.remove()


def test_killed_servers_lose_nothing_and_count_nothing_twice(folders, tmp_path) -> None:
    report = Trial([str(folders["sines"])], f"{tmp_path}/tasks.db", tmp_path).run(8)
    assert report.kills == 8 and report.updates > 20, report
    assert report.lost == report.twice == 0, report
    assert set(report.statuses) <= {200, 503}, report


def test_two_servers_and_a_database_that_restarts_lose_nothing(folders, cluster, tmp_path) -> None:
    """Both servers change the same tasks; PostgreSQL crashes under them, and is started again."""

    def restart(i: int) -> None:
        if i in (1, 3):
            cluster.stop("immediate")
            cluster.start()

    trial = Trial([str(folders["sines"])], cluster.url, tmp_path, servers=2)
    report = trial.run(4, also=restart)
    assert report.kills == 4 and report.updates > 20, report
    assert report.lost == report.twice == 0, report
    assert set(report.statuses) <= {200, 503}, report


def test_a_stop_finishes_what_was_begun(folders, tmp_path) -> None:
    """SIGTERM under load: whoever was answered counts, whoever was not does not, and the program ends by itself."""
    port = serving.free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = ("--store", f"{tmp_path}/tasks.db", "--port", str(port))
    server = serving.Program(str(folders["sines"]), *arguments, log=tmp_path / "log")
    server.ready(address)
    httpx.post(f"{address}/v1/tasks", json={"model": "sines", "name": "t"}).raise_for_status()

    def send(_: int) -> int:
        acknowledged = 0
        with httpx.Client(base_url=address, timeout=20) as http:
            try:
                while True:
                    http.post("/v1/tasks/t/update", json={"points": {"rows": ROWS}}).raise_for_status()
                    acknowledged += 1
            except httpx.TransportError:
                return acknowledged

    with ThreadPoolExecutor(4) as pool:
        senders = [pool.submit(send, i) for i in range(4)]
        serving.until(lambda: httpx.get(f"{address}/v1/tasks/t").json()["points"] > 10)
        assert server.stop() == 0
        acknowledged = sum(s.result() for s in senders)
    log = server.log.read_text()
    assert "open http://localhost" in log and "Traceback" not in log
    store = Store(f"{tmp_path}/tasks.db")
    assert store.entries(["t"])["t"].summary["points"] == acknowledged
    store.close()


def test_a_disk_that_is_full_is_said_and_changes_nothing(folders, tmp_path) -> None:
    """A real one: a file system of one megabyte, where the test may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True)
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.decode().strip()}")
    try:
        with serving.serving(serving.engines(folders), f"{disk}/tasks.db") as found:
            made_tasks, status = 0, 201
            while status == 201 and made_tasks < 2000:
                answer = found.http.post("/v1/tasks", json={"model": "sines", "name": f"t{made_tasks}"})
                status = answer.status_code
                made_tasks += status == 201
            assert status == 507 and "no room" in answer.json()["error"]
            shown = found.http.get("/v1/tasks", params={"limit": 1000}).json()["tasks"]
            assert len(shown) == made_tasks
            body = {"inputs": {"rows": [{"x": 0.0}]}}
            assert found.http.post("/v1/tasks/t0/predict", json=body).status_code == 200
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "no run folder"),
        (["{sines}", "--host", "0.0.0.0"], "token"),
        (["{sines}", "--store", "mysql://u:secret@h/d"], "SQLite or PostgreSQL"),
        (["{sines}", "--store", "postgresql://u:secret@127.0.0.1:1/d"], "store"),
        (["{sines}", "--token", "short"], "16"),
        (["{sines}", "--port", "{port}"], "cannot listen"),
    ],
)
def test_a_server_that_cannot_start_says_why(folders, tmp_path, monkeypatch, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        filled = [a.format(sines=folders["sines"], port=taken.getsockname()[1]) for a in arguments]
        said = program.refused("serve", *filled)
    assert words in said and "secret" not in said, said
