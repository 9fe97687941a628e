"""From a config to a trained model: recipes, the loop, checkpoints, protocols, records.

`run` is all of it in a line: `run(recipe("glyphs", "gp-vib"), Path("runs/mine"))` trains, tests and records.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metavib.training.runs import run as run


def __getattr__(name: str) -> Any:
    """Imports `run` when it is first asked for: `metavib --help` reads configs, and needs no PyTorch."""
    if name == "run":
        from metavib.training.runs import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
