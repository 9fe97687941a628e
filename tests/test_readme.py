"""What the README promises is tried: its Python runs, its numbers are those of the records."""

import re
from pathlib import Path

import pytest
import torch

from metavib.files import read_json
from metavib.reproduce import REPRODUCTIONS, recorded

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


@pytest.mark.parametrize("name", ["table-1", "improved-sinusoid", "beta", "glyphs", "table-2"])
def test_the_results_on_record_are_those_of_the_recipes(name, tmp_path) -> None:
    """Each record's config is the one its command would run today, and the table beside it is made from the records."""
    folder, reproduction = ROOT / "results" / name, REPRODUCTIONS[name]
    configs = {key: config for key, config in reproduction.configs().items() if (folder / f"{key}.json").exists()}
    on_record = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.json"))
    assert {str(path) for path in on_record if path.parts[0] != "runs"} == set(configs)
    assert all(recorded(folder / f"{key}.json", config) for key, config in configs.items())
    text = reproduction.show({key: read_json(folder / f"{key}.json") for key in configs}, tmp_path)
    assert (folder / "README.md").read_text(encoding="utf-8") == text + "\n"
