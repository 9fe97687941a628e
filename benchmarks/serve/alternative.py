"""The obvious other way to serve many small models: a FastAPI handler that unpickles a scikit-learn model of each task.

One file a task: a Gaussian process regression with a fixed kernel, and the points it was fitted on. To predict is to
unpickle it; to update is to append the point, to fit again and to write the file, with a lock so that updates of one
process do not overwrite each other, and with fsync so that what is acknowledged is on disk, as with ours. What it
lacks: several processes, retries that count once, versions, limits, and safety, since a pickle may run any code.
"""

import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF


class Points(BaseModel):
    """Rows to learn from or to predict at."""

    rows: list[dict[str, float]]


def model(points: list[dict[str, float]]) -> bytes:
    """The content of a file: a model that was fitted on these points, and the points."""
    found = GaussianProcessRegressor(4.0 * RBF(1.5), alpha=0.01, optimizer=None)
    found.fit(np.array([[p["x"]] for p in points]), np.array([p["y"] for p in points]))
    return pickle.dumps((found, points))


def write(path: Path, content: bytes) -> None:
    """Writes a file in one step, and waits until it is on disk."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def application(folder: Path) -> FastAPI:
    """The service over the files of a folder."""
    app, lock = FastAPI(), threading.Lock()

    @app.post("/tasks/{task}/predict")
    def predict(task: str, body: Points) -> list[dict[str, float]]:
        found, _ = pickle.loads((folder / task).read_bytes())
        mean, sd = found.predict(np.array([[row["x"]] for row in body.rows]), return_std=True)
        return [{"mean": m, "sd": s, "low": m - 1.96 * s, "high": m + 1.96 * s} for m, s in zip(mean, sd, strict=True)]

    @app.post("/tasks/{task}/update")
    def update(task: str, body: Points) -> dict[str, Any]:
        with lock:
            _, points = pickle.loads((folder / task).read_bytes())
            points += body.rows
            write(folder / task, model(points))
        return {"task": task, "points": len(points)}

    return app


if __name__ == "__main__":
    uvicorn.run(application(Path(sys.argv[1])), port=int(sys.argv[2]), log_level="warning", access_log=False)
