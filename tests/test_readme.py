"""What the README promises is tried: its Python runs, its numbers are those of the records."""

import re
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("name", ["table-1", "omniglot-emnist", "glyphs"])
def test_the_tables_shown_are_those_of_the_records(name) -> None:
    """Every row of a results table that the README shows stands in that results folder's own table."""
    shown = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert shown, f"the README shows no {name}"
    recorded = (ROOT / "results" / name / "README.md").read_text(encoding="utf-8")
    rows = [line for line in shown.group(1).splitlines() if line.startswith("|")]
    assert rows
    assert all(row in recorded.splitlines() for row in rows)
