"""The service over HTTP: every verb and every example; what it answers is what `Learner` says."""

import base64
import random
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import serving
from metavib.adapt.learner import Learner
from metavib.serve.engine import Engine
from serving import ROWS, drawing, make, predict, update

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


def test_metrics_are_what_prometheus_reads(http) -> None:
    make(http)
    text = http.get("/metrics").text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0
    assert 'metavib_requests_total{method="POST",route="/v1/tasks",status="201"}' in text
    assert "metavib_tasks " in text and "metavib_cache_bytes " in text
