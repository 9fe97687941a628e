"""The benchmark of the service: its alternative computes what it says, and what was measured becomes tables."""

import asyncio
from typing import Any

import httpx
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from benchmarks.serve import alternative
from benchmarks.serve.__main__ import faults_table, load_table
from benchmarks.serve.load import Cell

ROWS = [{"x": 0.0, "y": 1.0}, {"x": 1.0, "y": -0.5}]


def test_the_alternative_is_a_gaussian_process_on_all_points_of_the_task(tmp_path) -> None:
    alternative.write(tmp_path / "a", alternative.model(ROWS[:1]))

    async def asked() -> tuple[Any, Any]:
        transport = httpx.ASGITransport(alternative.application(tmp_path))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            learned = (await http.post("/tasks/a/update", json={"rows": ROWS[1:]})).json()
            return learned, (await http.post("/tasks/a/predict", json={"rows": [{"x": 0.4}]})).json()

    learned, (found,) = asyncio.run(asked())
    assert learned == {"task": "a", "points": 2}
    oracle = GaussianProcessRegressor(4.0 * RBF(1.5), alpha=0.01, optimizer=None)
    oracle.fit(np.array([[0.0], [1.0]]), np.array([1.0, -0.5]))
    mean, sd = oracle.predict(np.array([[0.4]]), return_std=True)
    np.testing.assert_allclose((found["mean"], found["sd"]), (mean[0], sd[0]), rtol=1e-10)
    np.testing.assert_allclose(found["high"] - found["low"], 2 * 1.96 * sd[0], rtol=1e-10)


def test_what_was_measured_is_in_the_tables() -> None:
    cells = [Cell(s, 100_000, 10, "1 row", 50, 1.5, 2.5, 3.5, 400, 1.2) for s in ("metavib serve", "pickles")]
    found = {"machine": "a machine", "in_process_ms": {"1 row": 0.5}, "cells": [c._asdict() for c in cells]}
    found["memory"] = [{"tasks": 100_000, "made_per_second": 900, "megabytes": {"metavib serve": 420, "pickles": 200}}]
    text = load_table(found)
    assert "| 100,000 | 10 | predict 1 row | 1.5 / 2.5 / 3.5 | 400 | 1.2 | 1.5 / 2.5 / 3.5 | 400 | 1.2 |" in text
    assert "| 100,000 | 900 | 420 MB | 200 MB |" in text and "| predict 1 row | 0.50 | 1.50 | 3.0 |" in text
    report = {"kills": 100, "restarts": 9, "updates": 1234, "retries": 5, "unsure": 4, "counted": 3}
    assert "| SQLite | 100 | 9 | 1,234 | 5 | 4, 3 | 0 | 0 |" in faults_table(
        {"reports": {"SQLite": {**report, "lost": 0, "twice": 0}}}
    )
