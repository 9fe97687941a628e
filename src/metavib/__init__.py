"""Few-shot learning with honest uncertainty: one variational information bottleneck, every encoder.

The few names that most people need are here; the rest is reached through modules. All of them are imported when they
are first asked for, so that `import metavib` takes no time:

* `metavib.Learner`: a trained model in use (adapt, update, merge, forget, predict).
* `metavib.FewShotRegressor`, `metavib.FewShotClassifier`: the same in scikit-learn's conventions, training included.
* `metavib.vib`: the bound, a function of any model and tasks.
* `metavib.methods`, `kernels`, `encoders`, `likelihoods`, `networks`, `priors`, `tasks`: what models are made of.

Example:
    >>> import metavib
    >>> metavib.kernels.Linear(bias=True)
    Linear()
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metavib.adapt.learner import Learner as Learner
    from metavib.estimators import FewShotClassifier as FewShotClassifier
    from metavib.estimators import FewShotRegressor as FewShotRegressor
    from metavib.objective import vib as vib

    __version__: str

__all__ = ["FewShotClassifier", "FewShotRegressor", "Learner", "__version__", "vib"]

_HOMES = {
    "FewShotClassifier": "metavib.estimators",
    "FewShotRegressor": "metavib.estimators",
    "Learner": "metavib.adapt.learner",
    "vib": "metavib.objective",
}


def __getattr__(name: str) -> Any:
    """A name of the list above, or a module of the package, when it is first asked for."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("metavib")
    elif not name.startswith("_") and find_spec(f"metavib.{name}") is not None:
        return import_module(f"metavib.{name}")
    else:
        raise AttributeError(f"module 'metavib' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
