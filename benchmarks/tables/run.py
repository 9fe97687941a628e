"""Runs every method on every split of every table, and keeps what came out: only what changed is run again."""

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import benchmarks.tables.data as data
from benchmarks.tables import classification, ours, protocol, regression

OURS = "metavib"
SOURCES = (
    "estimators",
    "priors.py",
    "kernels.py",
    "marginals.py",
    "groups",
    "tasks",
    "posteriors",
    "encoders",
    "likelihoods",
)


def methods(kind: str) -> dict[str, Callable[[], Any]]:
    """What is tried on a kind of table, metavib first."""
    if kind == "real":
        return {OURS: ours.Regressor, **regression.METHODS}
    return {OURS: ours.Classifier, **(classification.GROUPS if kind == "classes" else classification.NEW)}


def measure(
    names: Iterable[str],
    cache: Path,
    *,
    only: str = "",
    splits: int = 5,
    tell: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """A record for each table, split and method, from the cache where nothing has changed since.

    Args:
        names: of the tables.
        cache: folder of the records, one a file.
        only: run the methods alone that have this in their names; others count where the cache has them.
        splits: how many of the divisions of the groups to try, from the first.
        tell: shows what is being run.
    """
    found = []
    for name in names:
        kind = data.EVERY[name].kind
        table: data.Table | None = None
        for seed in range(splits):
            for method, make in methods(kind).items():
                path = cache / name / f"{seed}-{method.replace(' ', '_').replace(',', '')}.json"
                key = version(make)
                kept = json.loads(path.read_text()) if path.exists() else None
                if kept is not None and (kept["version"] == key or only not in method):
                    found.append(kept)
                    continue
                if only not in method:
                    continue
                table = table if table is not None else data.load(name)
                tell(f"{name}, split {seed}: {method}")
                record = {"table": name, "kind": kind, "split": seed, "method": method, "version": key}
                record |= run(table, seed, make)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(record))
                found.append(record)
    return found


def run(table: data.Table, seed: int, make: Callable[[], Any]) -> dict[str, Any]:
    """One method on one split: scores at each K, seconds to fit and to predict."""
    rows, trials = (protocol.split_classes if table.kind == "new" else protocol.split)(table, seed)
    score = protocol.score_real if table.kind == "real" else protocol.score_classes
    start = time.perf_counter()
    model = make().fit(rows)
    fitted = time.perf_counter()
    scores = {str(known): score(groups, model.predict(groups)) for known, groups in trials}
    done = time.perf_counter()
    predicted = sum(len(groups) for _, groups in trials)
    return {"scores": scores, "fit_s": fitted - start, "predict_s": done - fitted, "groups": predicted}


def version(make: Callable[[], Any]) -> str:
    """What tells one state of a method's code from another: its classes, or all that metavib's defaults rest on."""
    classes = [c for c in inspect.getmro(make) if c.__module__.startswith("benchmarks")]  # type: ignore[arg-type]
    sources = [inspect.getsource(c) for c in classes]
    if make in (ours.Regressor, ours.Classifier):
        root = Path(__file__).parents[2] / "src" / "metavib"
        for part in SOURCES:
            files = sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]
            sources += [f.read_text() for f in files if f.exists()]
    return hashlib.sha256("".join(sources).encode()).hexdigest()[:12]
