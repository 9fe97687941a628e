"""Classes that tasks have in common: the smoothed share as a limit, a known law, and what must hold for every task."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from metavib.adapt.learner import Learner
from metavib.adapt.predictor import Memorised
from metavib.adapt.preparation import ModelSpace
from metavib.estimators import FewShotClassifier
from metavib.groups import learn_shares
from metavib.groups.shares import FLOOR


def people(count=190, each=12, seed=0):
    """Answers that depend on a column, and on who answers: rows, answers, people, and the probabilities behind them."""
    rng = np.random.default_rng(seed)
    who, x = np.repeat(np.arange(count), each), rng.normal(size=(count * each, 2))
    p = 1 / (1 + np.exp(0.8 - 1.2 * rng.normal(size=count)[who] - x[:, 0]))
    return x, np.where(rng.random(len(x)) < p, "yes", "no"), who, p


@pytest.fixture(scope="module")
def learned():
    x, y, who, _ = people()
    return FewShotClassifier(random_state=0).fit(x[who < 40], y[who < 40], tasks=who[who < 40])


@pytest.mark.parametrize("known", [0, 1, 3, 6])
def test_new_tasks_are_predicted_better_than_by_their_smoothed_share(learned, known):
    """The oracle knows the base rate and smooths by two rows; ours knows what the column says as well."""
    x, y, who, p = people()
    base = np.mean(y[who < 40] == "yes")
    ours, shares, truth, bayes = [], [], [], []
    for i in range(40, 190):
        rows = np.flatnonzero(who == i)
        few, rest = rows[:known], rows[6:]
        ours.append(learned.adapt(x[few], y[few]).predict_proba(x[rest])[:, 1])
        shares.append(np.full(len(rest), (np.sum(y[few] == "yes") + 2 * base) / (known + 2)))
        truth.append(y[rest] == "yes")
        bayes.append(p[rest])
    losses = [log_loss(np.concatenate(truth), np.concatenate(q)) for q in (ours, shares, bayes)]
    assert losses[2] < losses[0] < losses[1] - 0.03


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_rows_of_one_class_are_not_certainty_and_more_of_them_say_more(learned, answer):
    x = people()[0]
    column = learned.classes_.tolist().index(answer)
    p = [learned.adapt(x[:n], [answer] * n).predict_proba(np.zeros((1, 2)))[0, column] for n in (0, 1, 3, 9)]
    assert p == sorted(p) and p[-1] <= 1 - FLOOR / 2


def test_without_a_column_that_says_something_it_is_a_smoothed_share():
    """A beta law with mean 1/4: (n_c + λ / 4) / (n + λ), up to what forty tasks know of λ and the mean."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(150), 10)
    yes = rng.random(len(who)) < rng.beta(1, 3, 150)[who]
    x = torch.zeros(len(who), 1, dtype=torch.float64)
    model = learn_shares(x, torch.tensor(yes).long(), who, classes=2, seed=0)
    shares = Learner(model, preparation=ModelSpace(("no", "yes")))
    for n, hits in ((0, 0), (1, 1), (4, 1), (6, 6)):
        labels = ["yes"] * hits + ["no"] * (n - hits)
        found = shares.adapt((x[:n], labels)).predict(x[:1]).probabilities[0, 1]
        assert float(found) == pytest.approx((hits + 1) / (n + 4), abs=0.07)


def test_an_update_is_what_all_rows_at_once_give_and_columns_follow_the_classes(learned):
    x, y, *_ = people()
    whole, parts = learned.adapt(x[:9], y[:9]), learned.adapt(x[:4], y[:4])
    parts.partial_fit(x[4:9], y[4:9])
    np.testing.assert_allclose(parts.predict_proba(x[:20]), whole.predict_proba(x[:20]), atol=1e-9)
    np.testing.assert_array_equal(whole.predict(x[:20]), whole.classes_[whole.predict_proba(x[:20]).argmax(1)])
    assert isinstance(whole.predictor_, Memorised) and whole.predictor_.n == 9


def test_several_common_classes_have_probabilities_that_add_up():
    rng = np.random.default_rng(0)
    who, x = np.repeat(np.arange(30), 15), rng.normal(size=(450, 2))
    y = np.argmax(x @ rng.normal(size=(2, 3)) + 2 * rng.normal(size=(30, 3))[who] + rng.gumbel(size=(450, 3)), 1)
    e = FewShotClassifier(random_state=0).fit(x, y, tasks=who)
    p = e.predict_proba(x[:50])
    assert p.shape == (50, 3) and (p > 0).all() and p.sum(1) == pytest.approx(1)
    here = e.adapt(x[:2], [1, 1], classes=[0, 1])  # a task that is known to have two of them
    assert here.classes_.tolist() == [0, 1] and here.predict_proba(x[:5]).sum(1) == pytest.approx(1)


def test_other_classes_are_refused_and_classes_of_their_own_are_told_apart_by_columns(learned):
    x, y, who, _ = people(count=20)
    with pytest.raises(ValueError, match=r"'no', 'yes' in common; got 'maybe'.*backbone='mlp'"):
        learned.adapt(x[:2], ["maybe", "yes"])
    own = np.array([f"{w}-{label}" for w, label in zip(who, y, strict=True)])
    e = FewShotClassifier(random_state=0).fit(x, own, tasks=who)
    assert e.candidates_ and e.adapt(x[:9], own[:9]).predict_proba(x[:5]).shape == (5, len(set(own[:9])))
    with pytest.raises(ValueError, match="task ids"):
        FewShotClassifier(backbone="hierarchical").fit(x, y)
