"""What the README promises is tried: its Python runs, its numbers are those of the records."""

import re
from pathlib import Path

import pytest
import torch

from reproduction import store
from reproduction.reproduce import REPRODUCTIONS, recorded

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs_and_learns(capsys) -> None:
    """As written, from a clean namespace: the error it prints is that of a model that has learned."""
    (source,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        exec(compile(source, "README.md", "exec"), {})
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    error, inside = re.fullmatch(r"mean squared error (\S+), inside the 95% interval (\S+)%\n", printed).groups()
    assert float(error) < 1.0  # predicting zero gives 4.3
    assert float(inside) > 80


def test_the_example_is_twenty_lines() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in source.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("name", ["table-1", "table-2", "glyphs"])
def test_the_tables_shown_are_those_of_the_records(name) -> None:
    """Every row of a results table that the README shows stands in that results folder's own table."""
    shown = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert shown, f"the README shows no {name}"
    recorded = (ROOT / "results" / name / "README.md").read_text(encoding="utf-8")
    rows = [line for line in shown.group(1).splitlines() if line.startswith("|")]
    assert rows
    assert all(row in recorded.splitlines() for row in rows)


def records_of(name: str) -> store.Records:
    """The records of a reproduction: its own, or those of the one it shows the records of."""
    return store.read(store.FOLDER / f"{REPRODUCTIONS[name].of or name}.jsonl")


def on_record() -> list[str]:
    """What is made from records alone, where there are any."""
    return [name for name, entry in REPRODUCTIONS.items() if records_of(name) and not entry.weights]


@pytest.mark.parametrize("name", on_record())
def test_the_results_on_record_are_those_of_the_recipes(name, tmp_path) -> None:
    """Each record's config is the one its command would run today, and the table beside it is made from the records."""
    found, configs = records_of(name), REPRODUCTIONS[name].every()
    assert found and set(found) <= set(configs)
    assert all(recorded(found, key, configs[key]) for key in found)
    text = REPRODUCTIONS[name].show({key: found[key] for key in configs if key in found}, tmp_path)
    assert (ROOT / "results" / name / "README.md").read_text(encoding="utf-8") == text + "\n"


def test_the_speeds_told_are_those_on_record():
    """Milliseconds and ratios in the README's table of speeds stand in a committed table of ratios."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Speed\n") : text.index("\n## How it is built\n")]
    cells = [cell for line in section.splitlines() for cell in line.split("|") if re.search("[0-9](×|, | ms)", cell)]
    told = {n for cell in cells if "Conv4" not in cell for n in re.findall(r"\d+\.?\d*", cell)}
    tables = (ROOT / "benchmarks" / "results").glob("speed-*.md")
    known = {n for path in tables for n in re.findall(r"\d+\.?\d*", path.read_text(encoding="utf-8"))}
    assert len(told) == 17 and told <= known, told - known
