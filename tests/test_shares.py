"""Classes that tasks have in common: the smoothed share as a limit, a known law, and what must hold for every task."""

import numpy as np
import pytest
import torch
from scipy.special import expit, gammaln, log_expit, logsumexp, softmax
from sklearn.metrics import log_loss

from metavib.adapt.learner import Learner
from metavib.adapt.preparation import ModelSpace
from metavib.encoders import GPEncoder
from metavib.estimators import FewShotClassifier
from metavib.groups import counting, hierarchical, learn_shares, like_shares
from metavib.groups.evidence import Group, Shared, marginals, said_by, shared, whiten
from metavib.groups.features import Features, Sizes
from metavib.groups.shares import MatchedSites, PriorSites, Shares
from metavib.groups.sites import Natural, matched
from metavib.marginals import Normal
from metavib.model import Model
from metavib.tasks.inputs import points
from metavib.tasks.task import Task, examples


def people(count=190, each=12, seed=0, spread=1.2):
    """Answers that depend on a column, and on who answers: rows, answers, people, and the probabilities behind them."""
    rng = np.random.default_rng(seed)
    who, x = np.repeat(np.arange(count), each), rng.normal(size=(count * each, 2))
    p = 1 / (1 + np.exp(0.8 - spread * rng.normal(size=count)[who] - x[:, 0]))
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


def test_the_report_says_how_good_predictions_of_new_tasks_are(tmp_path, capsys):
    """Beside predictions of people who were never seen, and shares that are counted here once more."""
    x, y, who, _ = people()
    learned = FewShotClassifier(random_state=0, verbose=True).fit(x, y, tasks=who)
    assert str(learned.report_) in capsys.readouterr().out
    assert [row.known for row in learned.report_.rows] == [0, 1, 3, 5, 10]
    base = np.mean(y == "yes")
    x, y, who, _ = people(seed=1)
    for known, groups, loss, accuracy, usual, smoothed in learned.report_.rows[:4]:  # after ten, two rows are left
        few = np.arange(len(x)) % 12 < known
        ours = learned.adapt(x[few], y[few], tasks=who[few]).predict_proba(x[~few], tasks=who[~few])[:, 1]
        counts = np.bincount(who[few], y[few] == "yes", minlength=190)
        plain, truth = ((counts + 2 * base) / (known + 2))[who[~few]], y[~few] == "yes"
        found = [log_loss(truth, p) for p in (ours, np.full(len(truth), base), plain)]
        np.testing.assert_allclose([loss, usual, smoothed], found, atol=0.05)
        assert abs(accuracy - np.mean((ours > 0.5) == truth)) < 0.05 and groups > 30
    learned.save(tmp_path / "learned.safetensors")
    assert FewShotClassifier.load(tmp_path / "learned.safetensors").report_ == learned.report_


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_rows_of_one_class_are_not_certainty_and_more_of_them_say_more(learned, answer):
    x = people()[0]
    column = learned.classes_.tolist().index(answer)
    p = [learned.adapt(x[:n], [answer] * n).predict_proba(np.zeros((1, 2)))[0, column] for n in (0, 1, 3, 9)]
    assert p == sorted(p) and p[-1] < 0.99


def test_without_a_column_that_says_something_it_is_a_smoothed_share():
    """A beta law with mean 1/4: (n_c + λ / 4) / (n + λ), up to what forty tasks know of λ and the mean."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(150), 10)
    yes = rng.random(len(who)) < rng.beta(1, 3, 150)[who]
    x = torch.zeros(len(who), 1, dtype=torch.float64)
    model = learn_shares(x, torch.tensor(yes).long(), who, classes=2, seed=0).model
    shares = Learner(model, preparation=ModelSpace(("no", "yes")))
    for n, hits in ((0, 0), (1, 1), (4, 1), (6, 6)):
        labels = ["yes"] * hits + ["no"] * (n - hits)
        found = shares.adapt((x[:n], labels)).predict(x[:1]).probabilities[0, 1]
        assert float(found) == pytest.approx((hits + 1) / (n + 4), abs=0.07)


@pytest.mark.parametrize(("spread", "constant"), [(0.8, True), (3.0, False)])
def test_an_update_is_what_all_rows_at_once_give_and_columns_follow_the_classes(spread, constant):
    """Of people who differ strongly the rows are kept, of others a memory."""
    x, y, who, _ = people(30, spread=spread)
    learned = FewShotClassifier(random_state=0).fit(x, y, tasks=who)
    whole, parts = learned.adapt(x[:9], y[:9]), learned.adapt(x[:4], y[:4])
    parts.partial_fit(x[4:9], y[4:9])
    np.testing.assert_allclose(parts.predict_proba(x[:20]), whole.predict_proba(x[:20]), atol=1e-9)
    np.testing.assert_array_equal(whole.predict(x[:20]), whole.classes_[whole.predict_proba(x[:20]).argmax(1)])
    assert whole.predictor_.n == 9 and whole.predictor_.constant_size == constant


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("mean", "var"), [(0.0, 0.1), (1.5, 4.0), (-6.0, 2.0), (4.0, 60.0)])
def test_a_matched_site_has_the_moments_of_the_likelihood_itself(sign, mean, var):
    """By numbers: the moments of sigma(+-f) N(f | m, v); the site that was there before is taken out first."""
    f = torch.linspace(-120, 120, 240_001).double()
    p = torch.nn.functional.logsigmoid(sign * f) - (f - mean).square() / (2 * var)
    p = p.softmax(0)
    wanted = (p * f).sum(), (p * (f - (p * f).sum()).square()).sum()
    before = Natural(torch.tensor([0.1]).double(), torch.tensor([-0.2]).double())
    precision = 1 / var + before.tau
    posterior = (mean / var + before.nu) / precision, 1 / precision
    tau, nu = matched(torch.tensor([sign]).double(), *posterior, before)
    found = 1 / (1 / var + tau)
    assert float(found) == pytest.approx(float(wanted[1]), rel=2e-3)
    assert float(found * (mean / var + nu)) == pytest.approx(float(wanted[0]), abs=2e-3 * var**0.5)


def test_functions_at_the_rows_of_all_groups_are_those_of_one_large_gaussian():
    random = torch.Generator().manual_seed(0)
    phi, psi, y = (torch.randn(3, 4, k, generator=random).double() for k in (2, 2, 1))
    s = 0.5 + torch.rand(3, 4, generator=random).double()
    group = Group(phi, psi, y.squeeze(-1), s)
    L, white = whiten(group)
    mean, var = marginals(group, L, white, shared(said_by(L, white)))
    flat = phi.reshape(12, 2)
    K = flat @ flat.mT + torch.block_diag(*(p @ p.mT for p in psi))
    gain = K @ torch.linalg.inv(K + torch.diag(s.flatten()))
    torch.testing.assert_close(mean.flatten(), gain @ y.flatten())
    torch.testing.assert_close(var.flatten(), (K - gain @ K).diagonal())


def level(sd, base=-0.5, sites=MatchedSites):
    """People with log-odds of their own and no columns that matter: N(0, sd^2), all but known, beyond the base."""
    known = Shared(torch.zeros(2).double(), 1e4 * torch.eye(2).double())
    own = torch.diag(torch.tensor([sd / 0.2**0.5, 0.0, 0.0]).double())
    x = torch.zeros(5, 1).double()
    prior = hierarchical(Features(Sizes(1, 0, 1, 0, 0, 0)), known, own, 1.0, x).prior
    likelihood = Shares(torch.tensor([base]).double())
    return Model(prior, GPEncoder(sites()), likelihood).double().requires_grad_(False).eval()


@pytest.mark.parametrize("sd", [0.5, 1.5, 4.0])
@pytest.mark.parametrize(("yes", "no"), [(0, 0), (1, 0), (0, 3), (5, 2), (200, 10)])
def test_probabilities_are_those_of_the_exact_posterior(sd, yes, no):
    """One integral over a person's log-odds, by numbers, for a few rows as for many."""
    f = torch.linspace(-40, 40, 80_001).double()
    logs = -f.square() / (2 * sd**2)
    for sign, count in ((1, yes), (-1, no)):
        logs = logs + count * torch.nn.functional.logsigmoid(sign * (f - 0.5))
    exact = float((logs.softmax(0) * torch.sigmoid(f - 0.5)).sum())
    x, y = torch.zeros(yes + no, 1).double(), torch.tensor([1] * yes + [0] * no, dtype=torch.long)
    model = level(sd)
    found = model.likelihood.predict(
        model(Task(examples(x, y), examples(torch.zeros(1, 1).double(), torch.zeros(1).long())))
    )
    assert float(found[0, 1]) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(
    ("sd", "rows", "least", "most"),
    [
        (0.5, 10, 0, 5e-5),
        (1.414, 10, 0, 1e-3),
        (1.414, 200, 0, 3e-3),
        (2.0, 10, 1e-3, 2e-3),
        (2.0, 200, 5e-3, 6.5e-3),
        (4.0, 10, 0.01, 0.0125),
        (4.0, 200, 0.025, 0.031),
    ],
)
def test_what_sites_under_the_prior_alone_cost(sd, rows, least, most):
    """The log loss beyond that of the exact posterior, over all counts of yes, by their law: Gauss-Hermite nodes."""
    f, weight = np.polynomial.hermite_e.hermegauss(99)
    f, weight = sd * f - 0.5, weight / weight.sum()
    yes = np.arange(rows + 1)
    logs = yes[:, None] * log_expit(f) + (rows - yes)[:, None] * log_expit(-f) + np.log(np.maximum(weight, 1e-300))
    evidence = np.exp(logsumexp(logs, 1) + gammaln(rows + 1) - gammaln(yes + 1) - gammaln(rows - yes + 1))
    exact = softmax(logs, 1) @ expit(f)
    x = torch.zeros(rows + 1, rows, 1).double()
    y = (torch.arange(rows) < torch.arange(rows + 1)[:, None]).long()
    model = level(sd, sites=PriorSites)
    query = examples(torch.zeros(rows + 1, 1, 1).double(), torch.zeros(rows + 1, 1).long())
    found = model.likelihood.predict(model(Task(examples(x, y), query)))[:, 0, 1].numpy()
    cost = exact * np.log(exact / found) + (1 - exact) * np.log((1 - exact) / (1 - found))
    assert evidence.sum() == pytest.approx(1) and least <= float(evidence @ cost) < most


def test_groups_that_are_alike_have_a_memory_of_constant_size():
    """It adds up, points are forgotten from it, and the tensors of a file say that there is one."""
    rng = np.random.default_rng(0)
    who, x = np.repeat(np.arange(40), 8), torch.tensor(rng.normal(size=(320, 1)))
    y = torch.tensor(rng.random(320) < expit(0.5 * rng.normal(size=40)[who] + x[:, 0].numpy())).long()
    model = learn_shares(x, y, who, classes=2, seed=0).model
    learner = Learner(model, preparation=ModelSpace((0, 1)))
    few, more = (x[:9], y[:9]), (x[9:30], y[9:30])
    first, rest, whole = (learner.adapt(points) for points in (few, more, (x[:30], y[:30])))
    for same in (first.merge(rest), first.update(more)):
        assert same.constant_size and same.memory.nbytes == first.memory.nbytes
        torch.testing.assert_close(same.predict(x[:20]).probabilities, whole.predict(x[:20]).probabilities)
    less = whole.forget(more)
    torch.testing.assert_close(less.predict(x[:20]).probabilities, first.predict(x[:20]).probabilities)
    again = like_shares(model.state_dict())
    again.load_state_dict(model.state_dict())
    found = Learner(again, preparation=ModelSpace((0, 1))).adapt(few)
    assert found.constant_size
    assert torch.equal(found.predict(x[:20]).probabilities, first.predict(x[:20]).probabilities)


def test_a_row_of_weight_three_is_the_row_three_times(learned):
    x, y, *_ = people()
    once = learned.adapt(x[:4], y[:4], sample_weight=[3.0, 1.0, 1.0, 2.0])
    often = learned.adapt(x[[0, 0, 0, 1, 2, 3, 3]], y[[0, 0, 0, 1, 2, 3, 3]])
    np.testing.assert_allclose(once.predict_proba(x[:20]), often.predict_proba(x[:20]), atol=1e-9)


def test_how_much_people_differ_is_found(learned):
    """The log-odds of people vary by 1.2^2 in truth, which forty of them say up to a factor."""
    phi = learned.model_.prior.features_of(points(examples(torch.zeros(1, 2).double(), torch.zeros(1))))
    assert 0.7 < float(phi[..., :-1].square().sum()) < 3.0


def test_many_columns_do_not_take_the_place_of_the_level():
    """Twelve rows of each of fifty groups that differ by a level alone, and fifteen columns that matter in none."""
    rng = np.random.default_rng(0)
    who, x = np.repeat(np.arange(50), 12), torch.tensor(rng.integers(0, 2, (600, 15)).astype(float) * 2 - 1)
    yes = torch.tensor(rng.random(600) < 1 / (1 + np.exp(-rng.normal(size=50)[who])))
    features = learn_shares(x, yes.long(), who, classes=2, seed=0).model.prior.network.body.phi
    own = features.own(x)
    level = own.mean(0)  # of features that are products with a column of mean zero nothing is left
    assert float((own - level).square().sum(-1).mean()) < 0.7 * float(level.square().sum())


def test_a_dozen_groups_say_more_of_new_ones_than_shares_do():
    """Three grades of demand, by the hour and by the level of a town; fifty towns that nothing was learned from."""
    rng = np.random.default_rng(0)
    town, hour = np.repeat(np.arange(62), 9), rng.uniform(-1, 1, 62 * 9)
    y = np.digitize(rng.normal(size=62)[town] + hour + 0.05 * rng.normal(size=len(town)), [-0.5, 0.8])
    e = FewShotClassifier(random_state=0).fit(hour[town < 12, None], y[town < 12], tasks=town[town < 12])
    usual = np.bincount(y[town < 12]) / np.sum(town < 12)
    new = town >= 12
    for known in (0, 1):
        few, rest = (new & (np.arange(len(town)) % 9 < known), new & (np.arange(len(town)) % 9 >= 3))
        adapted = e.adapt(hour[few, None], y[few], tasks=town[few]) if known else e
        ours = adapted.predict_proba(hour[rest, None], *([town[rest]] if known else []))
        counts = np.stack([np.bincount(y[few & (town == t)], minlength=3) for t in town[rest]])
        shares = (counts + 2 * usual) / (known + 2)
        assert log_loss(y[rest], ours) < log_loss(y[rest], shares) - 0.05 * (known > 0)


def test_many_tasks_at_once_are_each_by_itself(learned):
    x, y, who, _ = people()
    some, rest = np.flatnonzero((who >= 40) & (who < 43))[::2], np.flatnonzero((who >= 40) & (who < 43))[1::2]
    together = learned.adapt(x[some], y[some], tasks=who[some]).predict_proba(x[rest], tasks=who[rest])
    for i in range(40, 43):
        mine, at = some[who[some] == i], rest[who[rest] == i]
        alone = learned.adapt(x[mine], y[mine]).predict_proba(x[at])
        np.testing.assert_allclose(together[who[rest] == i], alone, atol=1e-9)


def test_functions_of_several_classes_become_probabilities():
    likelihood = Shares(torch.tensor([-1.0, 0.0, 0.5]).double())
    f = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    sure = likelihood.predict(Normal(f, torch.full((4, 3), 1e-12).double()))
    torch.testing.assert_close(sure, likelihood.probabilities(f), atol=1e-5, rtol=0)
    torch.testing.assert_close(sure.sum(-1), torch.ones(4).double())
    y = torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(
        likelihood.log_predictive(Normal(f, f.square()), y).exp(),
        likelihood.predict(Normal(f, f.square()))[torch.arange(4), y],
    )


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


def test_loss_of_groups_held_out_is_that_of_each_by_itself():
    """One by one and by scikit-learn; groups too small for the rows known are passed over."""
    rng = np.random.default_rng(0)
    x, y = torch.zeros(40, 1).double(), torch.tensor(rng.random(40) < 0.4).long()
    sets, weight, model = np.split(rng.permutation(40), [3, 15, 38]), torch.tensor(rng.uniform(1, 3, 40)), level(1.5)
    wanted = 0.0
    for rows in sets[1:3]:
        few, asked = rows[:5], rows[5 : 5 + counting.QUERIES]
        query = points(examples(x[asked], y[asked]))
        q = model.encoder(examples(x[few], y[few]), query, model.prior, model.likelihood, weight=weight[few])
        p = model.likelihood.predict(q.marginals())
        wanted += log_loss(y[asked], p, labels=[0, 1], sample_weight=weight[asked])
    assert counting.loss(model, x, y, weight, sets, 5) == pytest.approx(wanted)
    assert counting.loss(model, x, y, weight, sets, 30) == 0


@pytest.mark.parametrize("always", [True, False])
def test_a_row_counts_for_more_where_groups_are_one_way_or_the_other(always):
    """Two kinds of people, 97 % yes and 3 %: after one yes it is 94 %, by Bayes. Of Gaussian ones a row counts once."""
    rng = np.random.default_rng(1)
    who = np.repeat(np.arange(60), 8)
    log_odds = 3.5 * rng.choice([-1, 1], 60) if always else 1.5 * rng.normal(size=60)
    y = torch.tensor(rng.random(len(who)) < expit(log_odds[who])).long()
    x = torch.zeros(len(who), 1).double()
    model = learn_shares(x, y, who, classes=2, seed=0).model
    count = float(model.likelihood.count)
    assert 1.4 <= count if always else 0.7 <= count <= 1.4
    if always:
        once = Model(model.prior, model.encoder, Shares(model.likelihood.base))
        after = Task(examples(x[:1], torch.ones(1).long()), examples(x[:1], y[:1]))
        p, plain = (float(m.likelihood.predict(m(after))[0, 1]) for m in (model, once))
        assert plain < p < 0.94 + 0.02


def test_files_from_before_rows_were_counted_are_read():
    x, who = torch.linspace(-1, 1, 60).double()[:, None], np.repeat(np.arange(20), 3)
    state = dict(learn_shares(x, (torch.arange(60) % 5 == 0).long(), who, classes=2, seed=0).model.state_dict())
    with pytest.raises(ValueError, match="no number above zero"):
        like_shares(state | {"likelihood.count": torch.tensor(-1.0)})
    del state["likelihood.count"]
    old = like_shares(state)
    old.load_state_dict(state)
    assert old.likelihood.count is None


def test_classes_that_most_rows_have_are_common_though_others_are_rare():
    """Three classes in every task, and ten that come in one of forty each; classes of each task's own are new ones."""
    ids = np.repeat(np.arange(40), 8)
    y = np.tile([0, 1, 2, 0, 1, 2, 0, 1], 40)
    y[::32] = 3 + np.arange(10)
    e = FewShotClassifier()
    e._event, e.classes_ = (2,), np.unique(y)
    assert e._common(ids, y, ids)
    e.classes_ = np.arange(30)  # some without a row
    assert e._common(ids, y, ids)
    own = 2 * (ids % 10) + y % 2  # two classes of its own for each of ten kinds of tasks
    e.classes_ = np.unique(own)
    assert not e._common(ids, own, ids)


def test_rare_common_classes_have_kernels_together():
    """Eight classes, whose frequencies a Dirichlet law draws for each group: the oracle is the law's own prediction."""
    rng = np.random.default_rng(0)
    law = 6 * np.array([0.3, 0.25, 0.15, 0.15, 0.05, 0.05, 0.03, 0.02])
    who = np.repeat(np.arange(90), 8)
    y = np.array([rng.choice(8, p=p) for p in rng.dirichlet(law, 90)[who]])
    x, base = rng.normal(size=(len(y), 1)), who < 30
    learnt = FewShotClassifier(random_state=0).fit(x[base], y[base], tasks=who[base])
    known, rest = ~base & (np.arange(len(y)) % 8 < 3), ~base & (np.arange(len(y)) % 8 >= 3)
    p = learnt.adapt(x[known], y[known], tasks=who[known]).predict_proba(x[rest], tasks=who[rest])
    counts = np.stack([np.bincount(y[known & (who == i)], minlength=8) for i in who[rest]])
    ours, bayes, before = (
        log_loss(y[rest], q, labels=range(8))
        for q in (p, (counts + law) / (3 + law.sum()), np.tile(law / law.sum(), (rest.sum(), 1)))
    )
    assert learnt.classes_.tolist() == list(range(8)) and bayes < ours < before
