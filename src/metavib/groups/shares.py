r"""Classes that all groups have in common: how probable each of them is, from what other groups and a few rows say.

The log-odds of a class, against all others, are a function of the columns: one that all groups share, and one of each
group's own, under the hierarchical prior of `metavib.groups` (THEORY.md, section 12). With no rows of a group its
probability is what the columns say in all groups; each row moves it, by as much as groups differ from each other, so
that rows of one class never mean certainty. Without columns it is close to the smoothed share

$$P(y = c) = \frac{n_c + \lambda\, \bar p_c}{n + \lambda}.$$

Rows become Gaussian sites by expectation propagation (`metavib.groups.logistic`), in learning and in new groups. Of two
classes one has a function, of more each has one, and probabilities are made to add up to 1.

The site of a row depends on the other rows of its group, so that the points of a group are kept (`MatchedSites`). Where
two classes are as frequent in one group as in another, up to log-odds of variance 2, what the others add is next to
nothing: sites are matched under the prior alone, and what is known of a group is a sum over its rows, of constant size
(`PriorSites`).

Log-odds of groups need not be Gaussian. Where people always say yes or never do, one row says more than a Gaussian
makes of it. So each row of a new group counts as some number of rows, its likelihood to that power; how many is chosen
by groups held out (`metavib.groups.counting`).

Steps, and columns that matter only together, are found by boosted trees of all rows. What these say becomes a column
(`metavib.groups.trees`) where it takes away 2 % of the log loss of groups held out, before their first row and after.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from metavib.encoders import GPEncoder, SiteEncoder
from metavib.encoders.encoder import Encoder
from metavib.groups.class_report import ClassReport, report
from metavib.groups.counting import choose_count
from metavib.groups.learning import FOLDS, folds
from metavib.groups.logistic import (
    WORTH,
    Logit,
    learn_given,
    learn_logistic,
    learn_with_trees,
    log_odds,
    prior_given,
)
from metavib.groups.prior import BODY, like
from metavib.groups.rows import members
from metavib.groups.sites import Natural, matched, towards
from metavib.groups.trees import Trees, with_trees
from metavib.kernels import Kernel
from metavib.likelihoods import Bernoulli, ClassLikelihood, Likelihood
from metavib.marginals import Marginals, Nodes, Normal
from metavib.model import Model
from metavib.posteriors.functions import posterior
from metavib.posteriors.memory import Sites
from metavib.posteriors.posterior import Encoding, Posterior
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

ALIKE = 2.0  # variance of a new group's log-odds up to which sites are matched under the prior alone
NARROW = 0.5  # of that variance: what it is taken for when these are matched
SWEEPS = 8  # over the sites of a new group's rows
COMPARED = 4000  # rows at which that variance is asked for, at most
COUNT = "likelihood.count"
TREES = f"{BODY}trees."
COLUMN = f"{TREES}column"
KERNELS = 4  # of so many classes, the most frequent ones; of more, one for all others together
SAMPLES = 200  # of the functions of several classes, where an expectation has no closed form


@final
class Shares(ClassLikelihood):
    """Logistic functions of latent ones: of the second class where there are two, of each where there are more.

    Labels are the places of the classes, and mean the same in every group. Of more than two classes the logistic
    functions are divided by their sum.

    Args:
        base: log-odds of each of these classes among all rows learned from, which are added to the latent functions.
        count: how many rows each row of a new group counts as; one where None.

    Example:
        One person in four says yes; of another it is known that they say it more often, how often is not.

        >>> likelihood = Shares(torch.tensor([1 / 3]).log())
        >>> likelihood.predict(Normal(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [1.0]])))
        tensor([[0.7500, 0.2500],
                [0.3211, 0.6789]])
    """

    base: Tensor
    count: Tensor | None

    def __init__(self, base: Tensor, count: Tensor | None = None) -> None:
        super().__init__()
        self.latents, self.classes = len(base), max(2, len(base))
        self.register_buffer("base", base)
        self.register_buffer("count", count)

    def targets(self, y: Tensor) -> Tensor:
        """+1 in the columns of a row's own class, -1 in the others."""
        first = self.classes - self.latents  # of two classes the second has the only column
        columns = torch.arange(first, self.classes, device=y.device)
        return 2 * (y.unsqueeze(-1) == columns).to(self.base.dtype) - 1

    def nodes(self, q: Marginals, noise: Noise = None) -> Nodes:
        """Draws of several functions; quadrature of one."""
        if isinstance(q, Normal) and self.latents > 1:
            return q.monte_carlo(SAMPLES, noise)
        return super().nodes(q, noise)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the label's probability."""
        index = y.expand(f.shape[:-1]).unsqueeze(-1)
        return self.probabilities(f).log().gather(-1, index).squeeze(-1)

    def probabilities(self, f: Tensor) -> Tensor:
        """Logistic functions, which add up to 1."""
        return self._together(torch.sigmoid(f + self.base))

    def predict(self, q: Marginals, noise: Noise = None) -> Tensor:
        """The expected logistic function of each class, in closed form; divided by their sum."""
        if not isinstance(q, Normal):
            return super().predict(q, noise)
        mean, var = q.mean + self.base, q.var.expand(q.mean.shape)
        yes = torch.ones(mean.shape[:-1], dtype=torch.int64, device=mean.device)
        columns = zip(mean.split(1, -1), var.split(1, -1), strict=True)
        each = [Bernoulli().log_predictive(Normal(m, v), yes) for m, v in columns]
        return self._together(torch.stack(each, -1).exp())

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """The logarithm of what `predict` has for a label."""
        return self.predict(q, noise).log().gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def _together(self, p: Tensor) -> Tensor:
        return torch.cat([1 - p, p], -1) if self.latents == 1 else p / p.sum(-1, keepdim=True)


@final
class PriorSites(SiteEncoder):
    r"""Sites of rows of the second of two classes, and of the first, each matched under the prior alone.

    The site of a row depends on no other row, and sites of disjoint rows add up. A site that is matched where f may be
    anywhere is wrong once other rows say where f is. So the variance it is matched under lies between that before all
    rows and that after many: half of the first. What is lost is known where groups have a level $N(0, v)$ and nothing
    else: beyond the log loss of the exact posterior, less than 0.001 after 10 rows and 0.003 after 200 where v is at
    most 2; but 0.002 and 0.006 where v = 4, and 0.012 and 0.03 where v = 16. (Under the whole variance it would be
    0.001, 0.004, 0.005, 0.013, 0.04 and 0.07.)
    """

    alone: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alone", torch.ones(()))  # tells a file of these from one of `MatchedSites`

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """+1 for rows of the class and -1 for others, of variance 1: what sites are matched to."""
        return _signs(phi, y, likelihood, 0)

    def under(
        self,
        kernel: Kernel,
        phi: Tensor,
        y: Tensor,
        mask: Tensor,
        likelihood: Likelihood,
        weight: Tensor | None = None,
    ) -> Sites:
        """Sites of f less its mean."""
        group = _Group(kernel, phi, mask, likelihood, 0, weight)
        narrow = Normal(group.before.mean, NARROW * group.before.var)
        return group.observed(group.match(self(phi, y, mask, likelihood), narrow))


@final
class MatchedSites(SiteEncoder):
    """Sites of rows of a class, and of others, by expectation propagation.

    Args:
        column: which of the likelihood's functions.
    """

    together = "how much a row of a common class says depends on the other rows of its group, which are kept"

    def __init__(self, column: int = 0) -> None:
        super().__init__()
        self.column = column

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """+1 for rows of the class and -1 for others, of variance 1: what sites are matched to."""
        return _signs(phi, y, likelihood, self.column)

    def under(
        self,
        kernel: Kernel,
        phi: Tensor,
        y: Tensor,
        mask: Tensor,
        likelihood: Likelihood,
        weight: Tensor | None = None,
    ) -> Sites:
        """Sites of f less its mean, matched again and again until they agree with each other."""
        group, signs = _Group(kernel, phi, mask, likelihood, self.column, weight), self(phi, y, mask, likelihood)
        site = group.match(signs)
        for _ in range(SWEEPS - 1):
            under_all = posterior(kernel, phi, mask, group.observed(site)).marginals(phi)
            site = towards(site, group.match(signs, Normal(under_all.mean, under_all.var), site))
        return group.observed(site)


def _signs(phi: Tensor, y: Tensor, likelihood: Likelihood, column: int) -> Sites:
    m = likelihood.targets(y)[..., column : column + 1].to(phi.dtype)
    return Sites(m, m.new_ones(()))


class _Group:
    """The rows of a group under the prior of one function: what its sites are matched and observed by."""

    def __init__(
        self, kernel: Kernel, phi: Tensor, mask: Tensor, likelihood: Likelihood, column: int, weight: Tensor | None
    ) -> None:
        assert isinstance(likelihood, Shares)
        one = torch.ones_like(phi[..., 0])
        self.counted = one if weight is None else torch.where(mask, weight.to(phi.dtype), one)
        self.counted = self.counted if likelihood.count is None else self.counted * likelihood.count
        mean = kernel.mean(phi)
        assert mean is not None
        self.mean, self.mask, self.base = mean, mask, likelihood.base[column]
        self.before = Normal(mean, kernel.diagonal(kernel.embed(phi)).unsqueeze(-1))

    def match(self, signs: Sites, q: Normal | None = None, site: Natural | None = None) -> Natural:
        """The sites of all rows where f has the marginals q, under sites; under the prior where there are none."""
        sign = signs.m.squeeze(-1)
        q, site = q or self.before, site or Natural(torch.zeros_like(sign), torch.zeros_like(sign))
        return matched(sign, q.mean.squeeze(-1) + self.base, q.var.squeeze(-1), site, self.counted)

    def observed(self, site: Natural) -> Sites:
        """The same as observations of f less its mean."""
        m, s = (site.m - self.base).unsqueeze(-1) - self.mean, 1 / (self.counted * site.tau)
        return Sites(m.masked_fill(~self.mask.unsqueeze(-1), 0.0), s.masked_fill(~self.mask, 1.0))


class ClassPriors(nn.Module):
    """Priors over functions, one for the log-odds of each class.

    Args:
        parts: the prior of each.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)


class ClassPosteriors(Posterior):
    """Posteriors of functions, one for each class."""

    def __init__(self, parts: Sequence[Encoding]) -> None:
        self.parts = list(parts)

    def kl(self) -> Tensor:
        """The sum over the classes, whose functions are independent."""
        return torch.stack([part.kl() for part in self.parts]).sum(0)

    def marginals(self, x: Points, noise: Noise = None) -> Normal:
        """Means and variances of all classes, `(..., v, N)`; the points are those that were encoded."""
        found = [part.marginals(noise) for part in self.parts]
        assert all(isinstance(q, Normal) for q in found)
        return Normal(*(torch.cat(column, -1) for column in zip(*found, strict=True)))


@final
class EachClass(Encoder):
    """The posterior of each class's log-odds, under a prior of its own.

    Args:
        classes: how many there are.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.columns = nn.ModuleList(GPEncoder(MatchedSites(column)) for column in range(classes))

    def forward(
        self,
        support: Examples,
        query: Points,
        prior: ClassPriors,
        likelihood: Likelihood,
        noise: Noise = None,
        *,
        weight: Tensor | None = None,
    ) -> Encoding:
        """The posteriors of all classes; `weight` as in `GPEncoder`."""
        both = zip(self.columns, prior.parts, strict=True)
        found = [encode(support, query, part, likelihood, weight=weight) for encode, part in both]
        return Encoding(ClassPosteriors(found), query)

    def obstacle(self, prior: ClassPriors, likelihood: Likelihood) -> str | None:
        """Why points are kept: several priors have no memory in common."""
        return "each of several classes has a prior of its own, and no memory serves them all"


class LearnedShares(NamedTuple):
    """What was learned from groups: the model of a new one, and how good its predictions of groups held out are.

    Example:
        >>> import numpy as np, torch
        >>> from metavib.groups import learn_shares
        >>> person, yes = np.repeat(np.arange(20), 5), torch.arange(100) % 3 == 0
        >>> learned = learn_shares(torch.zeros(100, 0).double(), yes.long(), person, classes=2, seed=0)
        >>> [row.known for row in learned.report.rows]
        [0, 1, 3]
    """

    model: Model
    report: ClassReport


def learn_shares(
    x: Float[Tensor, "rows d"],
    y: Int[Tensor, " rows"],
    group: np.ndarray,
    *,
    classes: int,
    seed: int,
    weight: Float[Tensor, " rows"] | None = None,
) -> LearnedShares:
    """Learns how probable common classes are in a new group.

    Args:
        x: standardised columns, in float64.
        y: the class of each row, numbered from 0.
        group: the group of each row, numbered from 0.
        classes: how many there are, some of which may have no row.
        seed: of samples.
        weight: how many rows each counts as, above zero; one where None.

    Example:
        People who say yes each with a frequency of their own, about one in four in the mean.

        >>> from metavib.tasks.task import Task, examples
        >>> random = np.random.default_rng(0)
        >>> person, x = np.repeat(np.arange(40), 8), torch.tensor(random.normal(size=(320, 1)))
        >>> yes = torch.tensor(random.random(320) < random.beta(1, 3, 40)[person]).long()
        >>> model, report = learn_shares(x, yes, person, classes=2, seed=0)
        >>> def p(n):  # the probability of a yes after n of them
        ...     task = Task(examples(x[:n], torch.ones(n).long()), examples(x[:1], yes[:1]))
        ...     return float(model.likelihood.predict(model(task))[0, 1])
        >>> 0.1 < p(0) < 0.4, p(0) < p(1) < p(5) < 0.99
        (True, True)
        >>> report.rows[3].log_loss < report.rows[0].log_loss  # after five rows, of people held out
        True
    """
    weight = torch.ones(len(x), dtype=x.dtype) if weight is None else weight
    sets = members(group)
    fold = np.random.default_rng(seed).permutation(np.arange(len(sets)) % min(FOLDS, len(sets)))
    plain = _each(x, y, group, classes, seed=seed, weight=weight)
    frequent = _frequent(y, classes)
    grown = [
        learn_with_trees(logit, group, fold, seed=seed, weight=weight) if number in frequent else logit
        for number, logit in plain.items()
    ]
    ways = [_way(logits, x, weight) for logits in (list(plain.values()), grown)]
    if all(logit.grown is None for logit in grown):
        way, found = ways[0], choose_count(ways[0].without, x, y, weight, sets, fold, folds(len(sets)), seed=seed)
    else:
        count = int(fold.max()) + 1
        tried = [choose_count(way.without, x, y, weight, sets, fold, count, seed=seed) for way in ways]
        better = tried[1].loss < (1 - WORTH) * tried[0].loss
        way, found = ways[better], tried[better]
    return LearnedShares(way.model(found.best), report(found.held, x, y, weight))


def _each(x: Tensor, y: Tensor, group: np.ndarray, classes: int, *, seed: int, weight: Tensor) -> dict[int, Logit]:
    """What is learned of each class that has a function, by its number.

    Kernels are learned for the most frequent classes. Of many more each has a few rows, which say nothing of kernels:
    they have those of all of them together.
    """
    numbers, frequent = range(classes) if classes > 2 else (1,), _frequent(y, classes)
    yes = {number: (y == number).double() for number in numbers}
    base = {number: log_odds(yes[number], weight) for number in numbers}
    found = {n: learn_logistic(x, yes[n], group, base[n], seed=seed, weight=weight) for n in numbers if n in frequent}
    if rest := [n for n in numbers if n not in frequent]:
        any_of = torch.stack([yes[n] for n in rest]).sum(0)
        features = learn_logistic(x, any_of, group, log_odds(any_of, weight), seed=seed, weight=weight).features
        found |= {n: learn_given(features, x, yes[n], group, base[n], seed=seed, weight=weight) for n in rest}
    return {n: found[n] for n in numbers}


def _frequent(y: Tensor, classes: int) -> set[int]:
    """The most frequent classes, by their numbers: all where there are few."""
    counts = torch.bincount(y, minlength=classes)
    return set(
        range(classes) if classes <= KERNELS + 1 else counts.argsort(descending=True, stable=True)[:KERNELS].tolist()
    )


class Way(NamedTuple):
    """What was learned of each class, and the sites that go with it: one way to predict new groups."""

    logits: Sequence[Logit]
    sites: type[PriorSites] | type[MatchedSites]
    weight: Tensor

    def model(self, count: float, priors: Sequence[nn.Module] | None = None) -> Model:
        """The model of a new group, of which each row counts so often; under the priors of all groups where None."""
        base = torch.tensor([logit.base for logit in self.logits], dtype=torch.float64)
        likelihood = Shares(base, torch.tensor(count, dtype=torch.float64))
        return _model(priors or [logit.prior for logit in self.logits], likelihood, self.sites)

    def without(self, rest: Sequence[np.ndarray], k: int) -> Callable[[float], Model]:
        """The model for each count, given some groups alone, none of which is of a fold."""
        return partial(self.model, priors=[prior_given(logit, self.weight, rest, k) for logit in self.logits])


def _way(logits: Sequence[Logit], x: Tensor, weight: Tensor) -> Way:
    alike = len(logits) == 1 and _variance(logits[0].prior, x) <= ALIKE
    return Way(logits, PriorSites if alike else MatchedSites, weight)


@torch.no_grad()
def _variance(prior: nn.Module, x: Tensor) -> float:
    """The variance of the log-odds of a new group at some rows, in the mean."""
    assert isinstance(prior, FunctionPrior)
    phi = prior.features_of(Points(x[:COMPARED], torch.ones(len(x[:COMPARED]), dtype=torch.bool)))
    return float(prior.kernel.diagonal(prior.kernel.embed(phi)).mean())


def like_shares(state: Mapping[str, Tensor]) -> Model:
    """A model of the shape that the tensors of a saved one have, before these are loaded into it.

    Args:
        state: the tensors by name, as `state_dict` gives them.

    Example:
        >>> import numpy as np, torch
        >>> from metavib.groups import learn_shares, like_shares
        >>> x, person = torch.linspace(-1, 1, 60).double()[:, None], np.repeat(np.arange(20), 3)
        >>> saved = learn_shares(x, (torch.arange(60) % 5 == 0).long(), person, classes=2, seed=0).model.state_dict()
        >>> like_shares(saved).load_state_dict(saved)
        <All keys matched successfully>
    """
    if state["likelihood.base"].ndim != 1:
        raise ValueError("likelihood.base is no list of numbers")
    latents = len(state["likelihood.base"])
    if latents < 1 or latents == 2:
        raise ValueError(f"there are {latents} functions, and of two classes one has a function")
    parts = []
    for n in range(latents):
        prefix = "prior." if latents == 1 else f"prior.parts.{n}."
        part = {f"prior.{k.removeprefix(prefix)}": t for k, t in state.items() if k.startswith(prefix)}
        parts.append(_like_prior(part))
    sites = PriorSites if "encoder.sites.alone" in state else MatchedSites
    count = None
    if COUNT in state:  # files from before rows were counted have none
        if state[COUNT].ndim or not bool(state[COUNT] > 0):
            raise ValueError(f"{COUNT} is no number above zero")
        count = torch.ones((), dtype=torch.float64)
    return _model(parts, Shares(torch.zeros(latents, dtype=torch.float64), count), sites)


def _like_prior(state: Mapping[str, Tensor]) -> nn.Module:
    """A prior of the shape of a saved one, with trees where it has some."""
    if COLUMN not in state:
        return like(state).prior
    trees, columns = state[COLUMN], state[f"{BODY}inner.phi.length"]
    if trees.ndim != 2 or trees.is_floating_point() or bool(((trees < 0) | (trees >= len(columns) - 1)).any()):
        raise ValueError(f"{COLUMN} names columns that are not among the {len(columns) - 1} of the table")
    inner = like({k.replace(f"{BODY}inner.", BODY): t for k, t in state.items() if not k.startswith(TREES)})
    return with_trees(inner.prior, Trees(len(trees)))


def _model(priors: Sequence[nn.Module], likelihood: Shares, sites: type[PriorSites] | type[MatchedSites]) -> Model:
    if len(priors) == 1:
        return _ready(Model(priors[0], GPEncoder(sites()), likelihood))
    return _ready(Model(ClassPriors(priors), EachClass(len(priors)), likelihood))


def _ready(model: Model) -> Model:
    return model.double().requires_grad_(False).eval()
