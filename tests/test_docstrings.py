"""The examples in docstrings run, and print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import metavib

SOURCE = Path(metavib.__file__).parent
MODULES = sorted(
    ".".join(("metavib", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_run(module) -> None:
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testmod(importlib.import_module(module), optionflags=options)
    assert found.attempted and not found.failed
