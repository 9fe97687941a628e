"""CONTRIBUTING.md names files and functions that exist, and every folder of the package; other pages run."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w./]+\.py):([\w.]+)`", PAGE)))


def definitions(path: Path) -> set[str]:
    """Functions, classes, methods (`Class.method`) and variables of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{file}:{name}" for file, name in NAMED])
def test_what_the_walks_name_is_there(file: str, name: str) -> None:
    assert name in definitions(ROOT / file), f"{file} defines no {name}; CONTRIBUTING.md says it does."


def test_the_walks_name_something() -> None:
    """Three walks of several steps each, and what to add where."""
    assert len(NAMED) > 40 and len(re.findall(r"^### ", PAGE, re.M)) == 3


def test_files_and_folders_that_are_named_exist() -> None:
    for path in re.findall(r"`((?:src|tests|reproduction|docs|benchmarks|examples)/[\w./-]*)`", PAGE):
        if "<" not in path:
            assert (ROOT / path).exists(), path


def test_every_room_is_in_the_list() -> None:
    """A folder or module of the package that the layout does not mention is one that nobody will find."""
    package = ROOT / "src" / "metavib"
    rooms = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    layout = PAGE.partition("## Layout")[2].partition("## Three walks")[0]
    assert {name for name in rooms | modules if f"`{name}`" not in layout} == set()


def test_training_from_python_as_the_page_shows_it(tmp_path, monkeypatch, capsys) -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(source, "training.md", "exec"), names)
    assert [line.split(" points: ")[0] for line in capsys.readouterr().out.splitlines()] == ["5", "10"]
    assert (tmp_path / "runs" / "mine" / "record.json").exists() and names["record"]["training_seconds"] > 0
    files = re.findall(r"^\| `([\w.]+)` \|", page, re.M)
    assert {entry.name for entry in (tmp_path / "runs" / "mine").iterdir()} <= set(files)
