"""The service over HTTP: every verb, every example, every refusal; what it answers is what `Learner` says."""

import base64
import io
import json
import random
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import serving
import tiny
from metavib.adapt.learner import Learner
from metavib.serve import Client, ServiceError
from metavib.serve.engine import Engine
from metavib.serve.server import check_token, resolve
from metavib.serve.service import Limits, Service
from metavib.serve.store import Store
from metavib.training import bundled
from serving import Serving

ROWS = [{"x": -1.0, "y": 0.5}, {"x": 2.0, "y": -1.5}, {"x": 0.25, "y": 1.0}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    configs = {"sines": tiny.sinusoid(), "maml": tiny.sinusoid("maml"), "glyphs": serving.glyph_config()}
    return serving.trained(tmp_path_factory.mktemp("runs"), **configs)


@pytest.fixture(scope="module")
def engines(folders) -> list[Engine]:
    return serving.engines(folders)


@pytest.fixture(scope="module")
def server(engines, tmp_path_factory) -> Iterator[Serving]:
    with serving.serving(engines, f"{tmp_path_factory.mktemp('store')}/tasks.db") as found:
        yield found


@pytest.fixture
def http(server) -> httpx.Client:
    """The client, and a store without tasks."""
    for entry in server.service.store.listed(limit=10_000):
        server.service.delete(entry.name)
    return server.http


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


# What it answers ----------------------------------------------------------------------------------------------------


def test_the_service_says_what_the_learner_says(http, folders) -> None:
    """Made, updated, merged and forgotten from over HTTP; the same points in process."""
    learner = Learner.from_run(folders["sines"])

    def points(rows):
        return torch.tensor([[r["x"]] for r in rows]), torch.tensor([r["y"] for r in rows])

    make(http)
    more, other = [{"x": 3.0, "y": 0.2}], [{"x": -4.0, "y": 1.1}, {"x": 1.0, "y": 0.1}]
    make(http, "u", rows=other)
    update(http, more)
    http.post("/v1/tasks/t/merge", json={"other": "u"})
    answer = http.post("/v1/tasks/t/forget", json={"points": {"rows": ROWS[:1]}}).json()
    assert answer == {"task": "t", "model": "sines", "version": 4, "points": 5, "repeated": False}
    expected = learner.adapt(points(ROWS[1:] + more + other))
    xs = [-3.0, 0.0, 0.5, 4.0]
    found = predict(http, xs, level=0.8).json()
    p = expected.predict(torch.tensor(xs)[:, None])
    low, high = p.interval(0.8)
    for key, values in {"mean": p.mean, "sd": p.variance.sqrt(), "low": low, "high": high}.items():
        np.testing.assert_allclose([row[key] for row in found["predictions"]], values.numpy(), rtol=1e-4, atol=1e-5)


def test_methods_without_a_memory_learn_on_too(http, folders) -> None:
    """MAML keeps its points: update, forget, merge and export are the same verbs."""
    make(http, "t", "maml", rows=ROWS[:2])
    make(http, "u", "maml", rows=[{"x": 9.0, "y": 9.0}])
    update(http, ROWS[2:])
    assert http.post("/v1/tasks/t/merge", json={"other": "u"}).json()["points"] == 4
    http.post("/v1/tasks/t/forget", json={"points": {"rows": [{"x": 9.0, "y": 9.0}]}})
    learner = Learner.from_run(folders["maml"])
    x, y = torch.tensor([[r["x"]] for r in ROWS]), torch.tensor([r["y"] for r in ROWS])
    expected = learner.adapt((x, y)).predict(torch.tensor([[0.5]])).mean
    found = predict(http, [0.5]).json()["predictions"][0]["mean"]
    np.testing.assert_allclose(found, expected.numpy()[0], rtol=1e-5, atol=1e-6)


def test_pictures_in_every_form_are_the_same_pictures(http) -> None:
    """Base64, data URLs and forms; labels as strings or integers; a class that comes later."""
    first, second, third = drawing(0), drawing(1), drawing(2)
    coded = [base64.b64encode(p).decode() for p in (first, second, third)]
    body = {"model": "glyphs", "name": "t", "points": {"pictures": coded[:2], "labels": ["a", 7]}}
    assert http.post("/v1/tasks", json=body).status_code == 201
    later = {"points": {"pictures": ["data:image/png;base64," + coded[2]], "labels": ["c"]}}
    answer = http.post("/v1/tasks/t/update", json=later).json()
    assert answer["classes"] == [{"label": k, "points": 1} for k in ("a", 7, "c")]
    by_form = http.post("/v1/tasks/t/predict", files=[("picture", ("p.png", first)), ("picture", ("q.png", third))])
    by_json = http.post("/v1/tasks/t/predict", json={"inputs": {"pictures": [coded[0], coded[2]]}})
    assert by_form.status_code == 200 and by_form.json() == by_json.json()
    for row in by_json.json()["predictions"]:
        assert abs(sum(row["probabilities"]) - 1) < 1e-9
    assert by_json.json()["classes"] == ["a", 7, "c"]
    http.post("/v1/tasks/t/update", files=[("d/ä", ("p.png", second))])
    assert http.get("/v1/tasks/t").json()["classes"][-1] == {"label": "d/ä", "points": 1}
    gone = http.post("/v1/tasks/t/forget", files=[("d/ä", ("p.png", second))]).json()
    assert [c["label"] for c in gone["classes"]] == ["a", 7, "c"]


def test_a_class_without_points_says_how_likely_something_new_is(http) -> None:
    coded = [base64.b64encode(drawing(i)).decode() for i in range(2)]
    body = {"model": "glyphs", "name": "t", "classes": ["new"], "points": None}
    assert http.post("/v1/tasks", json=body).json()["classes"] == [{"label": "new", "points": 0}]
    http.post("/v1/tasks/t/update", json={"points": {"pictures": coded[:1], "labels": ["a"]}})
    found = http.post("/v1/tasks/t/predict", json={"inputs": {"pictures": coded}}).json()
    assert found["classes"] == ["new", "a"]
    new, a = found["predictions"][0]["probabilities"]
    assert 0 < new < a


def test_arrays_are_taken_as_the_network_takes_them(http) -> None:
    body = {"arrays": [[-1.0], [2.0], [0.25]], "outputs": [0.5, -1.5, 1.0]}
    http.post("/v1/tasks", json={"model": "sines", "name": "t", "points": body})
    make(http, "u")
    a, b = (predict(http, [0.3, 1.0], name).json()["predictions"] for name in "tu")
    assert a == b


def test_predictions_of_many_requests_at_once_are_those_of_each_alone(server, http) -> None:
    names = [f"t{i}" for i in range(12)]
    for i, name in enumerate(names):
        make(http, name, rows=[{"x": 0.5 * i - 3, "y": 0.1 * i}])
    alone = {name: predict(http, [0.1 * i], name).json()["predictions"] for i, name in enumerate(names)}
    with ThreadPoolExecutor(12) as pool:
        many = list(
            pool.map(lambda i: (names[i % 12], predict(http, [0.1 * (i % 12)], names[i % 12]).json()), range(96))
        )
    for name, found in many:
        for a, b in zip(alone[name], found["predictions"], strict=True):
            np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=1e-5, atol=1e-7)
    assert "metavib_predictions_together_count" in http.get("/metrics").text


def test_a_batch_makes_changes_in_order_and_then_predicts(http) -> None:
    calls = [
        {"verb": "predict", "task": "a", "inputs": {"rows": [{"x": 0.0}]}},
        {"verb": "make", "name": "a", "model": "sines", "points": {"rows": ROWS}},
        {"verb": "make", "name": "b", "model": "sines"},
        {"verb": "update", "task": "b", "points": {"rows": ROWS[:1]}, "key": "once"},
        {"verb": "update", "task": "b", "points": {"rows": ROWS[:1]}, "key": "once"},
        {"verb": "forget", "task": "a", "points": {"rows": ROWS[:1]}},
        {"verb": "merge", "task": "b", "other": "nothing"},
        {"verb": "update", "task": "b", "points": {"rows": [{"x": "three", "y": 1}]}},
    ]
    answers = http.post("/v1/batch", json={"calls": calls}).json()["answers"]
    assert answers[0]["points"] == 2 and len(answers[0]["predictions"]) == 1
    assert [a["version"] for a in answers[1:4]] == [1, 1, 2]
    assert answers[4]["repeated"] and answers[4]["version"] == 2
    assert answers[5]["points"] == 2
    assert answers[6]["status"] == 404 and answers[7]["status"] == 422 and "no finite number" in answers[7]["error"]


# Versions and keys --------------------------------------------------------------------------------------------------


def test_every_answer_has_the_version_as_its_tag(http) -> None:
    tags = [make(http).headers["etag"], update(http, ROWS[:1]).headers["etag"]]
    assert predict(http, [0.0]).headers["etag"] == tags[1] != tags[0]
    assert http.get("/v1/tasks/t").headers["etag"] == http.get("/v1/tasks/t/file").headers["etag"] == tags[1]
    stale = update(http, ROWS[:1], **{"if-match": tags[0]})
    assert stale.status_code == 412 and "version 2" in stale.json()["error"]
    body = {"inputs": {"rows": [{"x": 0.0}]}}
    assert http.post("/v1/tasks/t/predict", json=body, headers={"if-match": tags[0]}).status_code == 412
    assert http.delete("/v1/tasks/t", headers={"if-match": tags[0]}).status_code == 412
    assert http.delete("/v1/tasks/t", headers={"if-match": tags[1]}).status_code == 204
    assert http.delete("/v1/tasks/t").status_code == 404


def test_a_repeated_request_counts_once(http) -> None:
    key = {"idempotency-key": "k1"}
    first = http.post("/v1/tasks", json={"model": "sines"}, headers=key)
    again = http.post("/v1/tasks", json={"model": "sines"}, headers=key)
    name = first.json()["task"]
    assert again.json() == {**first.json(), "repeated": True} and again.headers["etag"] == first.headers["etag"]
    for _ in range(3):
        answer = update(http, ROWS, name, **{"idempotency-key": "k2"})
        assert answer.json()["points"] == 3
    other = update(http, ROWS[:1], name, **{"idempotency-key": "k2"})
    assert other.status_code == 422 and "key" in other.json()["error"]
    assert http.get(f"/v1/tasks/{name}").json()["version"] == 2


def test_a_form_that_is_sent_again_is_the_same_request(http) -> None:
    """Its boundary is random, and not part of what was asked."""
    http.post("/v1/tasks", json={"model": "glyphs", "name": "t"})
    for _ in range(2):
        http.post("/v1/tasks/t/update", files={"a": ("x.png", drawing(0))}, headers={"idempotency-key": "k"})
    assert http.get("/v1/tasks/t").json()["points"] == 1


def test_concurrent_updates_of_one_task_all_count(http) -> None:
    make(http, rows=None)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda i: update(http, [{"x": 0.01 * i, "y": 1.0}]).json(), range(60)))
    assert sorted(a["version"] for a in answers) == list(range(2, 62))
    assert http.get("/v1/tasks/t").json()["points"] == 60
    together = http.get("/metrics").text
    count = int(
        next(line.split()[1] for line in together.splitlines() if line.startswith("metavib_changes_together_c"))
    )
    assert count < 61 + server_changes_before(together)


def server_changes_before(text: str) -> int:
    """Changes that this server made in all; groups are fewer."""
    return int(
        float(next(line.split()[1] for line in text.splitlines() if line.startswith("metavib_changes_together_s")))
    )


# Files --------------------------------------------------------------------------------------------------------------


def test_an_export_is_a_task_file_and_can_be_imported(http, folders, tmp_path) -> None:
    make(http)
    content = http.get("/v1/tasks/t/file").content
    (tmp_path / "task.safetensors").write_bytes(content)
    found = Learner.from_run(folders["sines"]).load(tmp_path / "task.safetensors")
    assert found.n == 3
    kind = {"content-type": "application/octet-stream"}
    assert http.put("/v1/tasks/u/file", content=content, headers=kind).json()["points"] == 3
    assert predict(http, [0.4], "u").json()["predictions"] == predict(http, [0.4]).json()["predictions"]
    assert http.put("/v1/tasks/u/file", content=content, headers=kind).status_code == 409
    update(http, ROWS[:1], "u")
    replaced = http.put("/v1/tasks/u/file", content=content, headers={**kind, "if-match": "*"}).json()
    assert replaced["points"] == 3 and replaced["version"] == 3


@pytest.mark.parametrize("change", ["empty", "cut", "noise", "flip", "other model", "huge header", "claims more"])
def test_damaged_files_are_refused_with_a_sentence(http, change) -> None:
    make(http)
    content = http.get("/v1/tasks/t/file").content
    rng = random.Random(0)
    damaged = {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "noise": bytes(rng.randrange(256) for _ in range(500)),
        "flip": content[:-100] + bytes(255 for _ in range(100)),
        "other model": content.replace(b'"fingerprint":"', b'"fingerprint":"0', 1),
        "huge header": struct.pack("<Q", 2**62) + content[8:],
        "claims more": content.replace(b'"batches":"[null]"', b'"batches":"[[9]]"'),
    }[change]
    answer = http.put("/v1/tasks/u/file", content=damaged, headers={"content-type": "application/octet-stream"})
    assert answer.status_code == 422 and answer.json()["error"].endswith(".")
    assert http.get("/v1/tasks/u").status_code == 404


# The document -------------------------------------------------------------------------------------------------------


def test_every_example_works_as_pasted(http) -> None:
    document = http.get("/openapi.json").json()
    asked = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tasks = {p["name"]: p.get("examples", {}) for p in operation.get("parameters", ())}.get("task", {})
            bodies = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples")
            for name, example in (bodies or {}).items():
                model = name if name in tasks else name.removesuffix("-2")
                address = path.replace("{task}", tasks[model]["value"]) if tasks else path
                answer = http.request(method, address, json=example["value"])
                assert answer.status_code in (200, 201), (path, name, answer.text)
                asked += 1
    assert asked >= 3 * 7
    for task in tasks.values():
        assert http.get(f"/v1/tasks/{task['value']}/file").status_code == 200


def test_the_document_describes_what_is_answered(http) -> None:
    """Answers have exactly the fields of their schema."""
    components = http.get("/openapi.json").json()["components"]["schemas"]
    make(http)
    about = {
        "Task": http.get("/v1/tasks/t").json(),
        "Predictions": predict(http, [0.0]).json(),
        "Tasks": http.get("/v1/tasks").json(),
        "Models": http.get("/v1/models").json(),
        "Problem": http.get("/v1/tasks/nothing").json(),
    }
    for name, answer in about.items():
        assert set(answer) <= set(components[name]["properties"]), name
        assert set(components[name].get("required", ())) <= set(answer), name


# Refusals -----------------------------------------------------------------------------------------------------------


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


# Combining ----------------------------------------------------------------------------------------------------------


def test_the_event_loop_is_not_blocked_by_numerics(engines, tmp_path, monkeypatch) -> None:
    """While a prediction takes seconds, the server goes on answering."""
    release = threading.Event()
    real = Engine.predict

    def slow(self, asks):
        assert release.wait(20)
        return real(self, asks)

    monkeypatch.setattr(Engine, "predict", slow)
    with serving.serving(engines, f"{tmp_path}/t.db") as found:
        make(found.http)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(predict, found.http, [0.0])
            serving.until(lambda: found.service._asks._working)
            assert found.http.get("/healthz").status_code == 200
            assert update(found.http, ROWS[:1]).status_code == 200
            assert not waiting.done()
            release.set()
            assert waiting.result().status_code == 200


def test_many_requests_at_once_go_through_the_network_in_few_passes(engines, tmp_path, monkeypatch) -> None:
    passes, release, real = [], threading.Event(), Engine.predict

    def counted(self, asks):
        if not passes:
            passes.append(len(asks))
            assert release.wait(20)
            return real(self, asks)
        passes.append(len(asks))
        return real(self, asks)

    monkeypatch.setattr(Engine, "predict", counted)
    with serving.serving(engines, f"{tmp_path}/t.db") as found:
        names = [f"t{i}" for i in range(8)]
        for name in names:
            make(found.http, name)
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(predict, found.http, [0.0], name) for name in names]
            serving.until(lambda: len(found.service._asks._row) == 8 - passes[0] if passes else False)
            release.set()
            assert all(w.result().status_code == 200 for w in waiting)
    assert len(passes) <= 2 and sum(passes) == 8


def test_the_network_runs_once_for_many_tasks(engines, monkeypatch) -> None:
    """Features are asked for once; the answers are those of each task alone."""
    from metavib.adapt.trained import Trained
    from metavib.serve.engine import Ask, Data

    engine, calls, real = engines[0], [], Trained.all_features
    rows = [{"x": 0.3 * i, "y": 0.1 * i} for i in range(5)]
    predictors = [engine.adapt(engine.judge(Data("rows", [row])), None) for row in rows]
    asks = [Ask(engine, p, engine.inputs(Data("rows", [{"x": 1.0}, {"x": 2.0}])), 0.95) for p in predictors]
    alone = [p.predict(ask.x) for p, ask in zip(predictors, asks, strict=True)]
    monkeypatch.setattr(Trained, "all_features", lambda self, x: calls.append(len(x)) or real(self, x))
    together = engine.predict(asks)
    assert calls == [10]
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(a.variance, b.variance, rtol=1e-5, atol=1e-7)


# The client ---------------------------------------------------------------------------------------------------------


def test_the_client_has_the_verbs_of_the_learner(http, folders, tmp_path) -> None:
    with Client(str(http.base_url)) as client:
        task = client.adapt("sines", pd.DataFrame(ROWS), name="t")
        assert (task.n, task.version, task.model) == (3, 1, "sines")
        task = task.update((np.array([[1.5]]), np.array([0.5])))
        other = client.adapt("sines", [{"x": 1.0, "y": 1.0}])
        task = task.merge(other).forget([{"x": 1.5, "y": 0.5}])
        assert task.n == 4 and task.refresh() == task
        found = task.predict([{"x": 0.0}, {"x": 1.0}], level=0.5)
        assert found.mean.shape == (2,) and bool((found.low < found.mean).all())
        task.save(tmp_path / "task.safetensors")
        learner = Learner.from_run(folders["sines"]).load(tmp_path / "task.safetensors")
        np.testing.assert_allclose(learner.predict([[0.0], [1.0]]).mean.numpy(), found.mean, rtol=1e-5, atol=1e-6)
        again = client.load(tmp_path / "task.safetensors", name="again")
        assert again.n == 4 and client.load(tmp_path / "task.safetensors", name="again", replace=True).version == 2
        assert sorted(t.name for t in client.tasks()) == sorted(["t", "again", other.name])
        assert {m["name"] for m in client.models()} == {"sines", "maml", "glyphs"}
        stale = task
        task = task.update([{"x": 2.0, "y": 0.0}])
        with pytest.raises(ServiceError, match="version") as error:
            stale.update([{"x": 2.0, "y": 0.0}], unchanged=True)
        assert error.value.status == 412
        task.delete()
        with pytest.raises(ServiceError, match="no task"):
            task.refresh()


def test_the_client_sends_pictures_as_people_have_them(http, tmp_path) -> None:
    (tmp_path / "a.png").write_bytes(drawing(0))
    image = Image.open(io.BytesIO(drawing(1)))
    with Client(str(http.base_url)) as client:
        task = client.adapt("glyphs", ([tmp_path / "a.png", image], ["a", "b"]), name="t")
        task = task.update(([drawing(2)], ["c"]))
        assert task.counts == {"a": 1, "b": 1, "c": 1} and task.classes == ("a", "b", "c")
        found = task.predict([str(tmp_path / "a.png")])
        assert found.probabilities.shape == (1, 3) and found.labels[0] in "abc" and len(found.entropy) == 1


def test_the_client_speaks_of_many_tasks_at_once(http) -> None:
    with Client(str(http.base_url)) as client:
        for i in range(3):
            client.adapt("sines", name=f"t{i}")
        points = {f"t{i}": [{"x": float(i), "y": 1.0}] for i in range(4)}
        found = client.update(points | {"t0": (np.array([[0.0]]), [1.0])})
        assert [found[f"t{i}"].n for i in range(3)] == [1, 1, 1]
        assert isinstance(found["t3"], ServiceError) and found["t3"].status == 404
        predictions = client.predict({f"t{i}": [{"x": 0.0}] for i in range(3)})
        assert all(p.mean.shape == (1,) for p in predictions.values())


def test_the_client_repeats_what_got_no_answer_and_it_counts_once(http) -> None:
    """Every other answer is lost on its way back, and some requests on their way there."""

    class Lossy(httpx.BaseTransport):
        def __init__(self) -> None:
            self.inner, self.count = httpx.HTTPTransport(), 0

        def handle_request(self, request):
            self.count += 1
            if self.count % 3 == 0:
                raise httpx.ConnectError("lost on its way there")
            answer = self.inner.handle_request(request)
            if self.count % 3 == 1:
                answer.read()
                raise httpx.ReadError("lost on its way back")
            return answer

        def close(self) -> None:
            self.inner.close()

    with Client(str(http.base_url), transport=Lossy()) as client:
        task = client.adapt("sines", name="t")
        for i in range(8):
            task = task.update([{"x": 0.1 * i, "y": 0.0}])
        assert task.n == 8 and task.version == 9
        task.delete()
    assert http.get("/v1/tasks/t").status_code == 404


def test_the_client_gives_up_in_the_end() -> None:
    with (
        Client(f"http://127.0.0.1:{serving.free_port()}", patience=0.2) as client,
        pytest.raises(ServiceError) as error,
    ):
        client.models()
    assert error.value.status == 0


def test_metrics_are_what_prometheus_reads(http) -> None:
    make(http)
    text = http.get("/metrics").text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0
    assert 'metavib_requests_total{method="POST",route="/v1/tasks",status="201"}' in text
    assert "metavib_tasks " in text and "metavib_cache_bytes " in text
