"""Few-shot learning with scikit-learn's conventions: `FewShotRegressor` and `FewShotClassifier`."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "the estimators of metavib follow scikit-learn's conventions and need it: pip install metavib[sklearn]."
    ) from error

from metavib.estimators.base import adapt as adapt
from metavib.estimators.classifier import FewShotClassifier as FewShotClassifier
from metavib.estimators.regressor import FewShotRegressor as FewShotRegressor
