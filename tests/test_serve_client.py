"""The client of the service has the verbs of the learner, and repeats what got no answer."""

import io

import httpx
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import serving
from metavib.adapt.learner import Learner
from metavib.serve import Client, ServiceError
from serving import ROWS, drawing


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
