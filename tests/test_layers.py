"""Imports flow one way, along the flow of the data (task -> features -> encoder -> bound -> training)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# Each layer may import from those before it, and from itself as long as no circle closes. The longest name that fits
# a module is its place: `tasks.gaussian` has one of its own, the rest of `tasks` is found at `tasks.*`.
LAYERS: list[tuple[str, ...]] = [
    ("files", "progress", "random", "linalg", "quadrature", "fast", "fast.*"),  # what everything stands on
    ("data", "data.*"),  # from files to arrays
    ("tasks", "tasks.*"),  # what is a task?
    ("networks", "networks.*", "kernels"),  # what makes phi, and what compares it?
    ("marginals", "fast.draws", "likelihoods", "likelihoods.*", "tasks.gaussian"),  # q(f), p(y | f)
    ("posteriors", "posteriors.*", "priors", "objective"),  # q(Z | D_t), p(Z), the bound
    ("encoders", "encoders.*", "model", "methods", "baselines", "baselines.*"),  # from a support set to q(Z | D_t)
    ("unsupervised",),  # the same for tasks without inputs
    ("groups", "groups.*"),  # what many groups of rows share
    ("training", "training.*"),  # from a config to a trained model
    ("adapt", "adapt.*", "show", "show.*"),  # how is it used, and what do people see?
    ("estimators", "estimators.*", "tune", "tune.*", "serve", "serve.*"),
    ("cli", "cli.*", "__main__", ""),  # the program; and the package's own __init__, which re-exports from anywhere
]


def modules() -> dict[str, Path]:
    """Every module of the package by its name, `metavib` left out."""
    found = {}
    for path in (SOURCE / "metavib").rglob("*.py"):
        parts = path.relative_to(SOURCE / "metavib").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path, names: dict[str, Path]) -> Iterator[str]:
    """The package's modules a file imports, anywhere in it: `from metavib import linalg` counts as `linalg`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (_own(a.name) for a in node.names if a.name.split(".")[0] == "metavib")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write imports from the package's root, not relative ones."
            if node.module and node.module.split(".")[0] == "metavib":
                base = _own(node.module)
                submodules = [f"{base}.{a.name}".lstrip(".") for a in node.names]
                yield from (s if s in names else base for s in submodules)


def _own(module: str) -> str:
    return module.removeprefix("metavib").lstrip(".")


def layer(module: str) -> int:
    """The place of a module: that of the longest name that fits it."""
    fits = [
        (len(pattern), i)
        for i, names in enumerate(LAYERS)
        for pattern in names
        if pattern == module or (pattern.endswith(".*") and module.startswith(pattern[:-1]))
    ]
    if not fits:
        raise AssertionError(f"metavib.{module} has no place in the flow of imports: add it to LAYERS in {__file__}.")
    return max(fits)[1]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_its_own_layer_and_earlier_ones(module) -> None:
    """A module that is not on the list fails here, with a message that says so."""
    place = layer(module)
    late = [other for other in imports(MODULES[module], MODULES) if layer(other) > place]
    assert not late, f"metavib.{module} (layer {LAYERS[place]}) imports {late}, which come later in the flow."


def test_no_circle_closes_inside_a_layer() -> None:
    """Importing any module needs no module that needs it in turn.

    A package's __init__ re-exports its modules, which are imported through it: that pair is no circle.
    """
    graph = {m: {o for o in imports(p, MODULES) if o != m} for m, p in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, f"imports in a circle: {' -> '.join([*path[path.index(module) :], module])}"
        if module in done:
            return
        for other in graph[module]:
            visit(other, [*path, module])
        done.add(module)

    for module in graph:
        visit(module, [])


def test_a_module_without_a_place_is_named() -> None:
    with pytest.raises(AssertionError, match=r"metavib\.unheard_of has no place .* add it to LAYERS"):
        layer("unheard_of")


def test_imports_are_read_in_every_form(tmp_path) -> None:
    """The reader is itself tested: a form it missed would let a wrong import pass."""
    path = tmp_path / "m.py"
    path.write_text(
        "import metavib.cli\nimport metavib.cli as c\nfrom metavib import linalg, train as t\n"
        "from metavib.tasks import task\nfrom metavib.tasks.task import Task\nimport torch\n"
        "def f():\n    from metavib.model import Model\n"
    )
    names = dict.fromkeys(["cli", "linalg", "train", "tasks", "tasks.task", "model"], path)
    found = sorted(imports(path, names))
    assert found == sorted(["cli", "cli", "linalg", "train", "tasks.task", "tasks.task", "model"])
