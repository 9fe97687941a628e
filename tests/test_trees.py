"""Boosted trees as a column: against brute force and scikit-learn, and where groups held out are for them."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from metavib.groups import learn_shares, like_shares, logistic, trees
from metavib.groups.trees import Trees, WithTrees, grow, grow_folds
from metavib.tasks.task import Task, examples


def crossed(rows, seed=0, size=3.0):
    """A yes where one of two columns of three is above zero and not both, mostly; and its log-odds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    odds = size * np.where((x[:, 0] > 0) != (x[:, 1] > 0.3), 1, -1)
    return x, (rng.random(rows) < expit(odds)).astype(float), odds


def test_the_first_split_is_the_best_of_all():
    """Every threshold between two values of every column, one by one."""
    rng = np.random.default_rng(1)
    x, r, h = rng.integers(0, 6, (80, 3)).astype(float), rng.normal(size=80), rng.uniform(0.1, 0.25, 80)

    def worth(side):
        return r[side].sum() ** 2 / (h[side].sum() + 1)

    tried = {(j, t): worth(x[:, j] <= t) + worth(x[:, j] > t) for j in range(3) for t in np.arange(5) + 0.5}
    cuts = [trees._cuts(column) for column in x.T]
    bins = np.stack([np.searchsorted(cut, column) for cut, column in zip(cuts, x.T, strict=True)], 1)
    columns, places, at = trees._tree(bins, r, h)
    assert (columns[0], cuts[columns[0]][places[0]]) == max(tried, key=tried.__getitem__)
    assert (at >= 4).tolist() == (x[:, columns[0]] > cuts[columns[0]][places[0]]).tolist()


def test_they_predict_as_scikit_learn_does():
    x, y, _ = crossed(3000)
    grown, base = grow(torch.tensor(x[:1000]), torch.tensor(y[:1000])), np.log(y[:1000].mean() / (1 - y[:1000].mean()))
    peer = HistGradientBoostingClassifier(max_depth=3, l2_regularization=1.0, early_stopping=False)
    theirs = log_loss(y[1000:], peer.fit(x[:1000], y[:1000]).predict_proba(x[1000:]))
    ours = log_loss(y[1000:], expit(base + grown(torch.tensor(x[1000:])).numpy()))
    assert ours < theirs + 0.01 < 0.45 < log_loss(y[1000:], np.full(2000, 0.5))


def test_a_row_of_weight_two_is_the_row_twice(monkeypatch):
    """Where every tree is grown on all rows, and bins are those of the same values."""
    monkeypatch.setattr(trees, "DRAWN", 1.0)
    x, y, _ = crossed(60)
    x, y = torch.tensor(x).sign(), torch.tensor(y)
    once = grow(x, y, 1 + (torch.arange(60) < 20).double())
    twice = grow(torch.cat([x, x[:20]]), torch.cat([y, y[:20]]))
    torch.testing.assert_close(once(x), twice(x))


def test_the_column_of_a_fold_knows_nothing_of_its_labels():
    x, y, _ = crossed(120)
    x, y, fold = torch.tensor(x), torch.tensor(y), np.arange(120) % 3
    other = torch.where(torch.as_tensor(fold == 1), 1 - y, y)
    one, two = (grow_folds(x, labels, torch.ones(120).double(), fold) for labels in (y, other))
    assert torch.equal(one.without[1].leaf, two.without[1].leaf)
    assert not torch.equal(one.without[0].leaf, two.without[0].leaf)
    mine = torch.as_tensor(fold == 1)
    torch.testing.assert_close(one.column[mine], one.without[1](x[mine]))
    assert float(one.column.mean()) == pytest.approx(0, abs=1e-9) and float(
        one.column.std(correction=0)
    ) == pytest.approx(1)


def test_constant_columns_and_labels_make_a_constant():
    constant = grow(torch.ones(9, 2).double(), torch.tensor([0.0, 1, 1, 0, 1, 0, 0, 0, 1]).double())
    alike = grow(torch.randn(9, 2).double(), torch.ones(9).double())
    for found in (constant, alike):
        assert len(found(torch.randn(7, 2).double()).unique()) == 1


def test_regressions_that_are_compared_are_scikit_learns():
    x, y, _ = crossed(200)
    peer = LogisticRegression(C=1.0).fit(x[:, :2], y)
    z = torch.tensor(np.c_[x[:, :2], np.full(200, 1e3)])  # a column so large that its penalty is none: the intercept
    ours = logistic._regression(z, torch.tensor(y), torch.ones(200).double())
    p = peer.predict_proba(x[:, :2])[np.arange(200), y.astype(int)]
    np.testing.assert_allclose(ours.numpy(), -np.log(p), atol=1e-3)


@pytest.fixture(scope="module")
def learned():
    x, _, odds = crossed(30 * 15, size=2.5)
    who, rng = np.repeat(np.arange(30), 15), np.random.default_rng(2)
    y = rng.random(len(who)) < expit(odds + 0.7 * rng.normal(size=30)[who])
    return learn_shares(torch.tensor(x), torch.tensor(y).long(), who, classes=2, seed=0).model


def test_groups_held_out_are_for_trees_where_columns_cross(learned):
    """New groups are predicted almost as by the law itself, and lines have nothing to say."""
    assert isinstance(learned.prior.network.body, WithTrees)
    x, y, odds = crossed(1500, seed=5, size=2.5)
    nothing = examples(torch.zeros(0, 3).double(), torch.zeros(0).long())
    p = learned.likelihood.predict(learned(Task(nothing, examples(torch.tensor(x), torch.tensor(y).long()))))[:, 1]
    lines = LogisticRegression().fit(x, y).predict_proba(x)[:, 1]
    assert log_loss(y, expit(odds)) < log_loss(y, p) < log_loss(y, expit(odds)) + 0.12 < log_loss(y, lines) - 0.1


def test_lines_need_no_trees():
    rng = np.random.default_rng(0)
    who, x = np.repeat(np.arange(30), 10), torch.tensor(rng.normal(size=(300, 2)))
    y = torch.tensor(rng.random(300) < expit(x[:, 0].numpy() + rng.normal(size=30)[who])).long()
    assert not any("trees" in name for name in learn_shares(x, y, who, classes=2, seed=0).model.state_dict())


def test_trees_are_saved_and_read(learned):
    state = learned.state_dict()
    again = like_shares(state)
    again.load_state_dict(state)
    x, y, _ = crossed(30, seed=7)
    task = Task(*(examples(torch.tensor(x[part]), torch.tensor(y[part]).long()) for part in (slice(5), slice(5, None))))
    assert torch.equal(again.likelihood.predict(again(task)), learned.likelihood.predict(learned(task)))
    name = "prior.network.body.trees.column"
    with pytest.raises(ValueError, match="not among the 3 of the table"):
        like_shares(state | {name: state[name] + 3})


def test_trees_of_many_tasks_at_once_are_those_of_each():
    x, y, _ = crossed(200)
    found = grow(torch.tensor(x), torch.tensor(y))
    batch = torch.tensor(x[:24]).reshape(2, 3, 4, 3)
    torch.testing.assert_close(found(batch).flatten(), found(torch.tensor(x[:24])))
    assert found(batch[..., :0, :]).shape == (2, 3, 0) and Trees(0)(batch).eq(0).all()
