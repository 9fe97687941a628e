"""The records of all runs: one line of JSON for each run, in one file for each study.

A line holds the name of the run, its variant (empty for the paper's recipe), its config, its test, its validation
curve, and on which machine, by which commit and from which data it was made. Two things keep a line short, and
readable whatever becomes of the code:

* The config is stored as its difference from the *frozen* defaults in `records/defaults.json`, those of the day the
  records were first written in this form. Defaults in the code may change; the meaning of a record does not.
* A config field that was renamed since is found under its new name (`RENAMES`). A field that was dropped since stays
  in the record as it was; if its value was not the default, the record is of a config that exists no more. Such a
  record is shown like any other, and only counts for no run of today.

Whoever adds a field to the config adds it to `defaults.json` too, with the value that does what the code did before.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metavib.files import read_json, write_atomically
from metavib.training.config import Config
from metavib.training.fields import from_dict, to_dict

Record = dict[str, Any]
Records = dict[str, Record]

FOLDER = Path(__file__).parent / "records"
DEFAULTS = FOLDER / "defaults.json"
RENAMES: dict[str, str] = {}
"""Config fields that have another name today: the old name with its section, such as `model.site_m`, to the new one."""
NEEDED = {"name", "variant", "config", "evaluation", "training_seconds", "validation", "machine"}


def read(path: Path) -> Records:
    """Reads the records of a study, by the name of the run and in alphabetical order; none where there is no file.

    In each of them `config` is complete: the stored difference, laid over the frozen defaults.
    """
    if not path.exists():
        return {}
    defaults, found = _defaults(), {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: this is not JSON ({error}).") from error
        if not isinstance(line, dict) or not set(line) >= NEEDED:
            raise ValueError(
                f"{path}, line {number} is not the record of a run, which has at least {', '.join(sorted(NEEDED))}."
            )
        config = _nested(defaults | _flat(line["config"]))
        found[line["name"]] = line | {"config": config, "validation": _pairs(line["validation"])}
    return {name: found[name] for name in sorted(found)}


def add(path: Path, records: Iterable[Record]) -> None:
    """Adds records to the file of a study; one of the same name is replaced.

    Several processes may do so at once: each waits for the others, and a reader sees the file before or after.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent / ".lock"):
        merged = read(path) | {record["name"]: record for record in records}
        text = "".join(f"{line(merged[name])}\n" for name in sorted(merged))
        write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def line(record: Record) -> str:
    """The line of a record: its config as the difference from the frozen defaults, its validations without steps."""
    defaults = _defaults()
    differs = {key: value for key, value in _flat(record["config"]).items() if defaults.get(key, ...) != value}
    first = {"name": record["name"], "variant": record["variant"], "config": _nested(differs)}
    rest = {key: value for key, value in record.items() if key not in (*first, "validation", "evaluation")}
    last = {"validation": _rule(record["validation"]), "evaluation": record["evaluation"]}
    return json.dumps(first | rest | last, separators=(",", ":"))


def config(record: Record) -> Config | None:
    """The config of a record as the code of today has it; None where it exists no more.

    A field that was dropped since counts for nothing as long as it has the frozen default: what the code did then is
    all that it does today.
    """
    defaults, today = _defaults(), _flat(to_dict(Config()))
    values = {key: v for key, v in _flat(record["config"]).items() if key in today or defaults.get(key, ...) != v}
    try:
        return from_dict(Config, _nested(values))
    except ValueError:
        return None


def _defaults() -> dict[str, Any]:
    return _flat(read_json(DEFAULTS))


def _flat(values: dict[str, Any], section: str = "") -> dict[str, Any]:
    """The fields of a config by their names of today, with their sections: `{"model.width": 64}`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{section}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, dict) else {RENAMES.get(name, name): value}
    return found


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """The same fields, each section a dictionary of its own."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return nested


def _rule(pairs: list[list[float]]) -> Any:
    """A validation curve as its scores and where they were taken: every so many steps, and after the last one."""
    if not pairs:
        return pairs
    rule = {"every": pairs[0][0], "last": pairs[-1][0], "scores": [score for _, score in pairs]}
    return rule if _pairs(rule) == pairs else pairs


def _pairs(rule: Any) -> list[list[float]]:
    """A validation curve as pairs of a step and a score."""
    if isinstance(rule, list):
        return rule
    return [[min(rule["every"] * i, rule["last"]), score] for i, score in enumerate(rule["scores"], 1)]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits until nobody else holds the lock, and holds it for the block."""
    import fcntl  # POSIX alone, as the queue of runs is

    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
