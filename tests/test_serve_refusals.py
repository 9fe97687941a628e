"""What the service refuses, and how: bodies, addresses, pictures, limits, tokens, and whatever a fuzzer thinks of."""

import json
import shutil
import struct
import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import serving
from metavib.serve import Client, ServiceError
from metavib.serve.server import check_token, resolve
from metavib.serve.service import Limits, Service
from metavib.serve.store import Store
from metavib.training import bundled
from serving import ROWS, drawing, make, predict, update


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/tasks", {"model": "nothing"}, 404, "sines"),
        ("/v1/tasks", {"model": "sines", "name": "a/b"}, 422, "name"),
        ("/v1/tasks", {"model": "sines", "name": ".."}, 422, "dots"),
        ("/v1/tasks", {"model": "sines", "name": ""}, 422, "name"),
        ("/v1/tasks", {"model": "sines", "name": "x" * 200}, 422, "name"),
        ("/v1/tasks", {"model": "sines", "surprise": 1}, 422, "surprise"),
        ("/v1/tasks", {"model": "sines", "classes": ["a"]}, 422, "no classes"),
        ("/v1/tasks", {"model": "sines", "name": "t"}, 409, "exists"),
        ("/v1/tasks/t/update", {"points": {}}, 422, "exactly one of rows"),
        ("/v1/tasks/t/update", {"points": {"rows": [{"x": 1}]}}, 422, "column"),
        ("/v1/tasks/t/update", {"points": {"rows": [{"x": "a", "y": 1}]}}, 422, "no finite number"),
        ("/v1/tasks/t/update", {"points": {"rows": [], "labels": []}}, 422, "target"),
        ("/v1/tasks/t/update", {"points": {"pictures": ["AAAA"], "labels": ["a"]}}, 422, "takes rows"),
        ("/v1/tasks/t/update", {"points": {"pictures": ["?"], "labels": ["a"]}}, 422, "base64"),
        ("/v1/tasks/t/update", {"points": {"arrays": [[1, 2]], "outputs": [1]}}, 422, "must be (n, 1)"),
        ("/v1/tasks/t/update", {"points": {"arrays": [[1]], "outputs": [1, 2]}}, 422, "1 inputs and 2"),
        ("/v1/tasks/t/update", {"points": {"arrays": [["a"]], "outputs": [1]}}, 422, "numbers"),
        ("/v1/tasks/t/forget", {"points": {"rows": [{"x": 9, "y": 9}]}}, 422, "among those learned"),
        ("/v1/tasks/t/merge", {"other": "t"}, 422, "itself"),
        ("/v1/tasks/t/merge", {"other": "nothing"}, 404, "no task"),
        ("/v1/tasks/t/merge", {"other": "glyphs"}, 422, "different models"),
        ("/v1/tasks/t/predict", {"inputs": {"rows": []}}, 422, "no inputs"),
        ("/v1/tasks/t/predict", {"inputs": {"rows": [{"x": 1}]}, "level": 1.5}, 422, "level"),
        ("/v1/tasks/glyphs/predict", {"inputs": {"pictures": ["AAAA"]}}, 422, "cannot be read"),
        ("/v1/tasks/nothing/predict", {"inputs": {"rows": [{"x": 1}]}}, 404, "no task"),
        ("/v1/nothing", {}, 404, "/docs"),
    ],
)
def test_refusals_are_sentences(http, path, body, status, words) -> None:
    make(http)
    http.post("/v1/tasks", json={"model": "glyphs", "name": "glyphs"})
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"] and answer.json()["error"].endswith(".")
    assert "/tmp" not in answer.text and "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"points": {"rows": [{"x": NaN, "y": 1}]}}', "application/json", 422),
        (b'{"points": {"rows": [{"x": 1e999, "y": 1}]}}', "application/json", 422),
        (b'{"points": {"rows": [{"x": 1, "y": 1' + b"0" * 5000 + b"}]}}", "application/json", 400),
        (b'{"points": {"rows": [{"\\ud800": 1, "y": 1}]}}', "application/json", 400),
        (b"x=1", "application/x-www-form-urlencoded", 415),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"", "multipart/form-data", 422),
        (b"", "multipart/form-data; boundary=x", 422),
        (
            b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--x--\r\n",
            "multipart/form-data; boundary=x",
            422,
        ),
        (b"--x\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\n1", "multipart/form-data; boundary=x", 422),
    ],
)
def test_bodies_that_are_none_are_refused(http, content, kind, status) -> None:
    make(http)
    answer = http.post("/v1/tasks/t/update", content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"].endswith(".")
    assert http.get("/v1/tasks/t").json()["version"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/tasks/..%2f..%2fetc%2fpasswd",
        "/v1/tasks/%00",
        "/v1/tasks/%ff%fe",
        "/v1/tasks/" + "x" * 5000,
        "/v1/tasks?after=%00&limit=5",
        "/page/..%2f__init__.py",
        "/page/__init__.py",
        "/page/%2e%2e/server.py",
        "/v1/tasks?limit=0",
        "/v1/tasks?limit=99999999999999999999",
        "/v1/tasks?after=%ed%a0%80",
    ],
)
def test_addresses_that_are_tricks_find_nothing(http, path) -> None:
    answer = http.get(path)
    assert answer.status_code in (200, 404, 422) and "import" not in answer.text
    if answer.status_code == 200:
        assert answer.json() == {"tasks": [], "next": None}


def test_a_task_may_have_any_name(http) -> None:
    for name in ("Käse 🧀", "a'; DROP TABLE tasks; --", "%2e%2e", "<script>", "..."):
        with Client(str(http.base_url)) as client:
            assert client.adapt("sines", ROWS, name=name).name == name
            assert client.task(name).n == 3
    assert len(http.get("/v1/tasks").json()["tasks"]) == 5


def bomb(side: int) -> bytes:
    """A PNG of a few kilobytes that says it has `side` squared pixels, and would unpack to them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    packed = zlib.compress(b"\0" * min(side * (side + 1), 2**24), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [5_000, 60_000, 2**31 - 1])
def test_pictures_that_unpack_to_too_much_are_refused_before_they_do(http, side) -> None:
    http.post("/v1/tasks", json={"model": "glyphs", "name": "t"})
    begun = time.monotonic()
    answer = http.post("/v1/tasks/t/update", files={"a": ("bomb.png", bomb(side))})
    assert answer.status_code == 422 and "picture 1" in answer.json()["error"]
    assert time.monotonic() - begun < 10  # not a timing: unpacking gigabytes takes minutes


@settings(max_examples=40)
@given(data=st.data())
def test_damaged_pictures_are_refused_or_read(server, data) -> None:
    """Real pictures with random bytes changed: never an error of the server's."""
    content = bytearray(drawing(0))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    server.http.post("/v1/tasks", json={"model": "glyphs", "name": "fuzzed"})
    answer = server.http.post("/v1/tasks/fuzzed/update", files={"a": ("x.png", bytes(content))})
    assert answer.status_code in (200, 422), answer.text


# Limits, tokens, other pages ----------------------------------------------------------------------------------------


def test_limits_are_kept(engines, tmp_path) -> None:
    limits = Limits(body=4096, points=5, classes=3, calls=2, tasks=2, state=40_000)
    with serving.serving(engines, f"{tmp_path}/t.db", limits=limits) as found:
        http = found.http
        make(http)
        too_many = update(http, [{"x": i, "y": 0} for i in range(6)])
        assert too_many.status_code == 413 and "5 points" in too_many.json()["error"]
        large = http.post("/v1/tasks/t/update", content=b"x" * 5000, headers={"content-type": "application/json"})
        assert large.status_code == 413 and "4096 bytes" in large.json()["error"]

        def parts():
            for _ in range(10):
                yield b"x" * 1000

        streamed = http.post("/v1/tasks/t/update", content=parts(), headers={"content-type": "application/json"})
        assert streamed.status_code == 413
        calls = [{"verb": "predict", "task": "t", "inputs": {"rows": [{"x": 0}]}}] * 3
        assert http.post("/v1/batch", json={"calls": calls}).status_code == 413
        classes = http.post("/v1/tasks", json={"model": "glyphs", "name": "g", "classes": list("abcd")})
        assert classes.status_code == 422 and "3 classes" in classes.json()["error"]
        assert http.post("/v1/tasks", json={"model": "glyphs", "name": "g"}).status_code == 201
        for label in "abc":
            http.post("/v1/tasks/g/update", files={label: ("x.png", drawing(1))})
        fourth = http.post("/v1/tasks/g/update", files={"d": ("x.png", drawing(1))})
        assert fourth.status_code == 422 and "3 classes" in fourth.json()["error"]
        found.service._counted = (-1e9, 0)
        full = make(http, "third")
        assert full.status_code == 507 and "2 tasks" in full.json()["error"]


def test_a_token_is_asked_for(engines, tmp_path) -> None:
    with serving.serving(engines, f"{tmp_path}/t.db", token=serving.TOKEN) as found:
        http = found.http
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {serving.TOKEN}"}):
            for path in ("/v1/models", "/metrics", "/v1/tasks/..", "/v1/nothing"):
                answer = http.get(path, headers=headers)
                assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert (
            http.get("/healthz").status_code
            == http.get("/").status_code
            == http.get("/openapi.json").status_code
            == 200
        )
        assert http.get("/v1/models", headers={"authorization": f"bearer {serving.TOKEN}"}).status_code == 200
        assert http.get("/v1/models", headers={"authorization": b"Bearer \xff\xfe"}).status_code == 401
        with Client(found.address, token=serving.TOKEN) as client:
            assert client.adapt("sines", ROWS).n == 3
        with Client(found.address, token="not the token at all") as client, pytest.raises(ServiceError, match="token"):
            client.models()


def test_pages_of_other_servers_are_refused(http) -> None:
    """A page elsewhere may neither post a form here, nor pass for this machine under a name of its own."""
    foreign = http.post("/v1/tasks", json={"model": "sines"}, headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    own = str(http.base_url).rstrip("/")
    assert http.post("/v1/tasks", json={"model": "sines"}, headers={"origin": own}).status_code == 201
    assert http.get("/").headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "::"])
def test_others_need_a_token(host) -> None:
    with pytest.raises(ValueError, match="token"):
        check_token(host, None)
    check_token(host, serving.TOKEN)
    with pytest.raises(ValueError, match="16"):
        check_token(host, "short")
    for local in ("127.0.0.1", "localhost", "::1"):
        check_token(local, None)


def test_words_of_the_command_line_are_models(folders, tmp_path) -> None:
    assert [engine.name for engine in resolve(str(folders["sines"]), pixels=1)] == ["sines"]
    assert [engine.name for engine in resolve(f"other={folders['sines']}", pixels=1)] == ["other"]
    with pytest.raises(FileNotFoundError, match="no run folder"):
        resolve(str(tmp_path / "nothing"), pixels=1)


def test_a_bundled_model_is_served_by_its_name(folders, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bundled, "MODELS", tmp_path)
    shutil.copytree(folders["sines"], tmp_path / "bundled")
    (tmp_path / "bundled" / bundled.ABOUT).write_text("{}")
    for word, name in (("bundled", "bundled"), ("other=bundled", "other")):
        assert [engine.name for engine in resolve(word, pixels=1)] == [name]
    with pytest.raises(FileNotFoundError, match="these come with the package: bundled"):
        resolve("nothing", pixels=1)


def test_a_model_is_served_once(engines, tmp_path) -> None:
    with pytest.raises(ValueError, match="once"):
        Service([engines[0], engines[0]], Store(f"{tmp_path}/t.db"))


def test_tasks_of_a_model_that_is_gone_are_kept_and_named(engines, tmp_path) -> None:
    with serving.serving(engines, f"{tmp_path}/t.db") as found:
        make(found.http)
    with serving.serving(engines[1:], f"{tmp_path}/t.db") as found:
        assert found.http.get("/v1/tasks/t").json()["model"] is None
        answer = predict(found.http, [0.0])
        assert answer.status_code == 409 and "not served here" in answer.json()["error"]
        assert found.http.delete("/v1/tasks/t").status_code == 204


def test_what_goes_wrong_inside_is_not_told(engines, tmp_path, monkeypatch, caplog) -> None:
    with serving.serving(engines, f"{tmp_path}/t.db") as found:
        make(found.http)
        monkeypatch.setattr(found.service.store, "entries", lambda names: 1 / 0)
        with caplog.at_level("INFO", "metavib.serve"):
            answer = predict(found.http, [0.0])
        monkeypatch.undo()
        assert answer.status_code == 500 and "division" not in answer.text
        assert answer.headers["x-request-id"] in answer.json()["error"]
    record = next(r for r in caplog.records if r.levelname == "ERROR")
    assert "ZeroDivisionError" in record.fields["trace"]


def test_a_damaged_row_is_a_sentence_and_can_be_replaced(http, server) -> None:
    make(http)
    make(http, "u")
    content = http.get("/v1/tasks/u/file").content
    with server.service.store._writing.begin() as connection:
        connection.exec_driver_sql("UPDATE metavib_tasks_1 SET state = x'00', version = 5 WHERE name = 't'")
    for answer in (predict(http, [0.0]), update(http, ROWS[:1]), http.get("/v1/tasks/t/file")):
        assert answer.status_code == 500 and "not what was written" in answer.json()["error"]
    assert predict(http, [0.0], "u").status_code == 200
    headers = {"if-match": "*", "content-type": "application/octet-stream"}
    assert http.put("/v1/tasks/t/file", content=content, headers=headers).json()["points"] == 3


def test_a_store_that_does_not_answer_is_said(http, server, monkeypatch) -> None:
    from metavib.serve.store import Full, Unreachable

    make(http)
    for error, status in ((Unreachable("the store does not answer."), 503), (Full("no room."), 507)):

        def fail(changes, error=error):
            raise error

        monkeypatch.setattr(server.service.store, "change", fail)
        answer = update(http, ROWS[:1])
        assert answer.status_code == status and answer.json()["error"] == str(error)
        monkeypatch.undo()
    assert update(http, ROWS[:1]).status_code == 200


def test_the_log_is_lines_of_json() -> None:
    import logging

    from metavib.serve.guard import JsonLines

    record = logging.LogRecord("metavib.serve", logging.INFO, "", 0, "request", (), None)
    record.fields = {"status": 200, "route": "/v1/tasks/{task}"}
    line = json.loads(JsonLines().format(record))
    assert line["event"] == "request" and line["status"] == 200 and line["time"].endswith("Z")


# Fuzz ---------------------------------------------------------------------------------------------------------------


def test_any_request_of_the_document_is_answered_and_never_by_an_error_of_ours(server) -> None:
    """Schemathesis: requests that fit the document and requests that do not, at every address."""
    import schemathesis
    from hypothesis import HealthCheck
    from schemathesis import Case

    server.http.post("/v1/tasks", json={"model": "sines", "name": "example-sines"})
    schema = schemathesis.openapi.from_dict(server.http.get("/openapi.json").json())
    seen = set()

    def check(operation) -> None:
        modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)

        @settings(max_examples=15, suppress_health_check=list(HealthCheck))
        @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes)))
        def asked(case: Case) -> None:
            answer = case.call(base_url=server.address)
            seen.add((operation.label, answer.status_code))
            assert answer.status_code < 500, (operation.label, answer.text)
            if answer.status_code >= 400:
                assert answer.json()["error"]

        asked()

    for found in schema.get_all_operations():
        check(found.ok())
    assert len({label for label, _ in seen}) >= 12
