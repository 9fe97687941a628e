"""Hyperparameter search over the paper's ranges, or ranges of one's own, on Optuna."""

try:
    import optuna as _optuna  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "metavib tune searches with Optuna, which is not installed: pip install metavib[tune], or pip install optuna."
    ) from error

from metavib.tune.ranges import Choices as Choices
from metavib.tune.ranges import Interval as Interval
from metavib.tune.ranges import Range as Range
from metavib.tune.ranges import Space as Space
from metavib.tune.ranges import paper as paper
from metavib.tune.ranges import parse as parse
from metavib.tune.search import Result as Result
from metavib.tune.search import Search as Search
from metavib.tune.search import tune as tune
from metavib.tune.search import with_curve as with_curve
from metavib.tune.study import Trial as Trial
