"""The program in this process, and small tables to run it on."""

import csv
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from metavib import cli


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def metavib(*arguments: object) -> Ended:
    """The program in this process: arguments to status and output."""
    out, err, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["metavib", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
    torch.set_num_threads(threads)
    return Ended(status, out.getvalue(), err.getvalue())


def done(*arguments: object) -> str:
    ended = metavib(*arguments)
    assert ended.status == 0, ended.err
    return ended.out


def refused(*arguments: object) -> str:
    """The message of a command that ends with status 2 and one error, no traceback, nothing on standard output."""
    ended = metavib(*arguments)
    assert ended.status == 2 and ended.out == "" and "Traceback" not in ended.err, ended
    assert ended.err.startswith("error: ")
    return ended.err


def settings(**changes: Any) -> list[str]:
    small = {"train.tasks": 2, "train.validate_every": 10, "train.validation_tasks": 4, "test.tasks": 3} | changes
    return [item for k, v in small.items() for item in ("--set", f"{k}={json.dumps(v)}")]


def write(path: Path, header: list[str], rows: Any) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


# Tables of each kind of output: real numbers far from zero, counts, heavy tails, 0 and 1.

HEADER = ["city", "hour", "temperature", "demand"]
OUTPUTS = {
    "gaussian": lambda rng, f: 5000 + 300 * f + rng.normal(0, 10),
    "student-t": lambda rng, f: 5000 + 300 * f + 10 * rng.standard_t(2.5),
    "poisson": lambda rng, f: rng.poisson(np.exp(1 + f)),
    "bernoulli": lambda rng, f: int(rng.random() < 1 / (1 + np.exp(-3 * f))),
}


def task_rows(kind: str, seed: int, n: int = 12) -> list[list[Any]]:
    """Rows of one city: demand over the hour, with an amplitude of its own."""
    rng = np.random.default_rng(seed)
    amplitude = rng.normal(1.0, 0.3)
    rows = []
    for _ in range(n):
        hour, temperature = float(rng.uniform(0, 24)), float(rng.normal(280, 5))
        f = amplitude * np.sin(hour / 4) + 0.05 * (temperature - 280)
        rows.append([f"city {seed}", hour, temperature, OUTPUTS[kind](rng, f)])
    return rows


def train_table(place: Path, kind: str) -> Path:
    """A run on a table of one kind of output, both in this folder."""
    data = write(place / "data.csv", HEADER, [row for seed in range(12) for row in task_rows(kind, seed)])
    table = ["--csv", data, "--task", "city", "--target", "demand", "--likelihood", kind]
    options = settings(**{"model.widths": [8, 8], "test.shots": [3]})
    done("train", "table", "--method", "gp-vib", *table, "--steps", 20, "--out", place / "run", "--quiet", *options)
    return place / "run"


def predicted(state: Path, query: Path, *more: object) -> list[dict[str, Any]]:
    return json.loads(done("predict", state, "--query", query, "--json", *more))


def values(rows: list[dict[str, Any]]) -> np.ndarray:
    """The numbers that were predicted."""
    names = [k for k in rows[0] if k in ("mean", "sd", "entropy") or k.startswith(("low ", "high ", "p("))]
    return np.array([[row[name] for name in names] for row in rows])


def alone(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was predicted, without the rows' own cells."""
    return [{k: v for k, v in row.items() if k not in (*HEADER, "note")} for row in rows]
