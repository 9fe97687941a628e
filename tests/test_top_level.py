"""What `import metavib` gives: a few names and all modules, none of them before it is asked for."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import metavib

ROOT = Path(__file__).parents[1]


def said(code: str) -> str:
    """What a new Python prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, metavib; print([m for m in ('torch', 'numpy', 'sklearn', 'typer') if m in sys.modules])"
    assert said(code) == "[]"


def test_the_version_is_the_projects_and_needs_no_torch() -> None:
    code = "import sys, metavib; print(metavib.__version__, 'torch' in sys.modules)"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert said(code) == f"{version} False"


OPTIONAL = {"estimators": {"sklearn"}, "tune": {"optuna", "sqlalchemy"}, "data": {"pyarrow"}, "cli": {"pyarrow"}}
OPTIONAL |= {"serve": {"sqlalchemy", "httpx", "fastapi", "pydantic", "python_multipart", "starlette", "uvicorn"}}


def test_what_is_imported_is_installed_with_the_package() -> None:
    """Or belongs to an extra, and is imported in the folder that the extra is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[<>=;\[]", one)[0] for one in project["dependencies"]} | {"PIL", "metavib"}
    for path in (ROOT / "src" / "metavib").rglob("*.py"):
        folder = path.relative_to(ROOT / "src" / "metavib").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
            assert roots <= required | OPTIONAL.get(folder, set()), path


def test_names_and_modules_are_there_when_asked_for() -> None:
    code = (
        "import metavib; print(metavib.Learner.__module__, metavib.vib.__name__, metavib.FewShotRegressor.__name__, "
        "metavib.FewShotClassifier.__name__, metavib.kernels.Linear.__name__, metavib.methods.gp_vib.__name__)"
    )
    assert said(code) == "metavib.adapt.learner vib FewShotRegressor FewShotClassifier Linear gp_vib"


def test_a_star_import_brings_the_names_and_dir_lists_them() -> None:
    assert set(metavib.__all__) <= set(dir(metavib))
    assert said("from metavib import *; print(Learner.__name__, vib.__name__)") == "Learner vib"


@pytest.mark.parametrize("name", ["Lerner", "__wrapped__", "nothing"])
def test_other_names_are_no_attributes(name) -> None:
    with pytest.raises(AttributeError, match=f"module 'metavib' has no attribute '{name}'"):
        getattr(metavib, name)
    with pytest.raises(ImportError):
        exec(f"from metavib import {name}")
