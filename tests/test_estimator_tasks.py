"""Estimators of many tasks at once: what each is alone, in pipelines, under scorers, brought together and forgotten."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metavib.estimators import FewShotClassifier, FewShotRegressor, adapt

RNG = np.random.default_rng(0)
WHO, X = np.repeat(np.arange(16), 8), RNG.normal(size=(128, 2))
REAL = 50 + 10 * RNG.normal(size=16)[WHO] + 5 * X[:, 0] + RNG.normal(size=128)
YES = np.where(REAL > 50, "yes", "no")
GRADE = np.digitize(REAL, [45, 55])
KNOWN = np.tile(np.arange(8) < 3, 16)


@pytest.fixture(scope="module", params=["real", "yes", "grade", "new"])
def learned(request):
    """Of real outputs, two common classes, three of them, and classes that are new in each task."""
    y = {"real": REAL, "yes": YES, "grade": GRADE, "new": WHO * 10 + (X[:, 0] > 0)}[request.param]
    if request.param == "real":
        return FewShotRegressor(random_state=0).fit(X, y, tasks=WHO), y
    options = {"backbone": "mlp", "n_steps": 2} if request.param == "new" else {}
    return FewShotClassifier(random_state=0, **options).fit(X, y, tasks=WHO), y


def said(estimator, x, **tasks):
    return (estimator.predict_proba if hasattr(estimator, "classes_") else estimator.predict)(x, **tasks)


def test_many_tasks_in_one_call_are_what_each_is_alone(learned):
    """Ids in two columns name the same tasks; a task that is not known is predicted as one without rows."""
    e, y = learned
    ids = pd.DataFrame({"school": WHO // 4, "year": WHO % 4})
    many = e.adapt(X[KNOWN], y[KNOWN], tasks=ids[KNOWN])
    found = said(many, X[~KNOWN], tasks=ids[~KNOWN])
    for who in range(16):
        mine = KNOWN & (WHO == who)
        alone = e.adapt(X[mine], y[mine])
        at = WHO[~KNOWN] == who
        wanted = said(alone, X[~KNOWN][at])
        if hasattr(e, "classes_"):
            columns = np.searchsorted(many.classes_, alone.classes_)
            np.testing.assert_allclose(found[at][:, columns], wanted, atol=1e-6)
            assert found[at].sum(1) == pytest.approx(1)
            labels = many.predict(X[~KNOWN], tasks=ids[~KNOWN])[at]
            assert np.mean(labels == alone.predict(X[~KNOWN][at])) > 0.7 and labels.dtype == y.dtype
        else:
            np.testing.assert_allclose(found[at], wanted, atol=1e-6)
    if len(getattr(e, "classes_", ())) < 4:  # the prior knows the classes
        other = pd.DataFrame({"school": [99], "year": [0]})
        np.testing.assert_allclose(said(many, X[:1], tasks=other), said(e, X[:1]), atol=1e-9)
    for wrong in (lambda: said(many, X), lambda: said(e.adapt(X[:3], y[:3]), X, tasks=WHO)):
        with pytest.raises(ValueError, match="task"):
            wrong()
    with pytest.raises(ValueError, match="estimator.merge"):
        many.partial_fit(X[:1], y[:1])


def test_estimators_are_brought_together_and_forget(learned):
    e, y = learned
    whole, first, rest = e.adapt(X[:8], y[:8]), e.adapt(X[:4], y[:4]), e.adapt(X[4:8], y[4:8])
    np.testing.assert_allclose(said(first.merge(rest), X), said(whole, X), atol=1e-6)
    some = y[:8] if hasattr(e, "classes_") and len(set(y[:4])) != len(set(y[:8])) else None
    if some is None:
        np.testing.assert_allclose(said(whole.forget(X[4:8], y[4:8]), X), said(first, X), atol=1e-6)
    halves = [e.adapt(X[k], y[k], tasks=WHO[k]) for k in (KNOWN, ~KNOWN)]
    both, all_rows = halves[0].merge(halves[1]), e.adapt(X, y, tasks=WHO)
    np.testing.assert_allclose(said(both, X, tasks=WHO), said(all_rows, X, tasks=WHO), atol=1e-5)
    with pytest.raises(ValueError, match="one task and the other of many"):
        both.merge(whole)
    with pytest.raises(ValueError, match="not all among those learned|never learned|cannot be forgotten"):
        first.forget(X[90:93] + 50, y[:3])


def test_a_pipeline_adapts_to_one_task_and_to_many(learned):
    e, y = learned
    step = type(e).__name__.lower()
    pipeline = make_pipeline(StandardScaler(), type(e)(**e.get_params())).fit(X, y, **{f"{step}__tasks": WHO})
    one = adapt(pipeline, X[:3], y[:3])
    assert len(said(one[-1], one[:-1].transform(X))) == len(one.predict(X)) == 128
    many = adapt(pipeline, X[KNOWN], y[KNOWN], tasks=WHO[KNOWN])
    np.testing.assert_array_equal(many.predict(X, tasks=WHO), many[-1].predict(many[:-1].transform(X), tasks=WHO))


@pytest.mark.parametrize(
    ("estimator", "y", "scorer"),
    [
        (FewShotRegressor(random_state=0), REAL, "neg_mean_absolute_error"),
        (FewShotClassifier(random_state=0), YES, "neg_log_loss"),
        (FewShotClassifier(random_state=0), YES, "roc_auc"),
    ],
)
def test_any_scorer_works_in_cross_validation_over_groups(estimator, y, scorer):
    found = cross_val_score(estimator, X, y, cv=GroupKFold(2), groups=WHO, scoring=scorer, params={"tasks": WHO})
    assert np.isfinite(found).all()


def test_no_rows_texts_and_missing_labels_are_clear():
    e = FewShotClassifier(random_state=0).fit(X, YES, tasks=WHO)
    np.testing.assert_allclose(e.adapt(X[:0], YES[:0]).predict_proba(X[:4]), e.predict_proba(X[:4]))
    with pytest.raises(ValueError, match="y is missing .* the first of them row 2"):
        e.adapt(X[:2], np.array(["yes", None], dtype=object))
    with pytest.raises(ValueError, match="Pass a data frame"):
        e.adapt(np.array([["a", "b"]], dtype=object), ["yes"])
