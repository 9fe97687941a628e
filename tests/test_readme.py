"""What the README promises is tried: its Python runs, its numbers are those of the records."""

import re
from pathlib import Path

import pytest
import torch

from reproduction import store
from reproduction.make import recorded
from reproduction.report import readme_table
from reproduction.studies import STUDIES
from reproduction.study import SEEDS

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


def test_the_table_of_results_shown_is_that_of_the_records() -> None:
    """Where the README has one, between its marks."""
    shown = re.search(r"<!-- results -->\n(.*?)\n<!-- end -->", README, re.DOTALL)
    assert shown is None or shown.group(1) == readme_table()


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if not study.models])
def test_the_results_on_record_are_those_of_the_recipes(name) -> None:
    """Each record's config and variant are those its command would run today."""
    study = STUDIES[name]
    found, runs = store.read(store.FOLDER / study.book), study.runs(SEEDS)
    assert found and set(found) <= set(runs)
    assert all(recorded(found, key, runs[key].config) and found[key]["variant"] == runs[key].variant for key in found)


def test_the_speeds_told_are_those_on_record():
    """Milliseconds and ratios in the README's table of speeds stand in a committed table of ratios."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Speed\n") : text.index("\n## More\n")]
    cells = [cell for line in section.splitlines() for cell in line.split("|") if re.search("[0-9](×|, | ms)", cell)]
    told = {n for cell in cells if "Conv4" not in cell for n in re.findall(r"\d+\.?\d*", cell)}
    tables = (ROOT / "benchmarks" / "results").glob("speed-*.md")
    known = {n for path in tables for n in re.findall(r"\d+\.?\d*", path.read_text(encoding="utf-8"))}
    assert len(told) == 14 and told <= known, told - known
