r"""How the prior of new groups is learned: the evidence of the groups sets the kernels, the groups set the covariance.

1. The parameters $\theta$ of the features, and the noise, maximise the evidence of the groups (times a weak prior), by
   L-BFGS: `fit_features`. With few groups that is all that can be known. The evidence also says whether skewed columns
   enter by their logarithms, and whether outputs do, or by their square roots, or shares by their logits: with $z =
   t(y)$ it is $\log p(z) + \sum_j \log t'(y_j)$, a density of the outputs in every case, so that the largest is the
   best: `choose`.
2. The covariance $\Sigma$ of a group's own weights, which the kernels say is I, has an inverse Wishart prior around
   that: $\Sigma \mid v_{1..G}$ has the mode $(c\,q\,I + \sum_i E[v_i v_i^\top]) / (c\,q + G)$. Many groups end at the
   covariance they have, whatever the kernels said; c, how much the kernels count, is the one under which groups held
   out have the highest density: `refine`.
3. Groups held out say what a group's inputs tell of it before its first row (`metavib.groups.start`), how wide the
   prior is in truth and how heavy its tails are (`metavib.groups.tails`), and how good its predictions are
   (`metavib.groups.report`). Kernels and covariance are learned anew without them: parameters that have seen a group
   follow it, and predict it better than a new one.

Rows may have weights, as in weighted least squares: a row of weight w has the noise variance $\sigma^2 / w$. So
features, outputs and residuals are multiplied by $\sqrt w$ wherever blocks of rows are made, and the noise is
$\sigma^2$ again. (To count such a row as w rows instead, that agree to the last digit, would be to say that there is no
noise.)

What it costs is bounded: parameters are learned from some rows of some groups, and sums over groups are made block by
block, so that memory does not grow with the number of groups.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from metavib import linalg
from metavib.groups.evidence import Group, Said, Shared, log_evidence, said, shared
from metavib.groups.features import NEAR, VALUES, Features, layout, skewed, spread_over
from metavib.groups.prior import hierarchical, lifted, logarithms, widened
from metavib.groups.report import Held, Report, lift, report
from metavib.groups.rows import Block, blocks, members
from metavib.groups.start import begin
from metavib.groups.tails import tails
from metavib.model import Model
from metavib.tasks.scaling import Edge, Link, Outputs, as_they_are, banded, edged, rooted

ITERATIONS = 40  # of L-BFGS
FIRST, FIRST_ROWS = 15, 300  # iterations and rows that the best of several ways is chosen by
CONVINCING = 3.0  # nats of evidence that anything else in the place of columns, or of outputs, must bring
ANSCOMBE = 0.375  # by which counts are larger under a square root
EVIDENCE_ROWS, EVIDENCE_EACH = 2000, 40  # rows of all groups, and of each, that set the kernels' parameters
REFINE_ROWS, REFINE_EACH = 15_000, 60  # those that set the covariance
SHARED_ROWS, SHARED_EACH = 100_000, 500  # those that set the shared function
OWN = 30  # q, directions of a group's own function
STRENGTHS = (inf, 2.0, 0.5, 0.12, 0.03)  # c
ENOUGH = 16  # groups at least before their covariance is asked for: either half of fewer says nothing of it
STEPS = 8  # of expectation and maximisation
FOLDS = 4
MANY = 100  # with more groups than this one fold says enough
REACH = 12.0  # of the logarithms of parameters from where they start: no further can algebra bear
NOISE = 3e-4  # smallest noise variance, of outputs of variance 1


class Learned(NamedTuple):
    """What was learned from groups: the model of a new one, and how good its predictions of groups held out are.

    Example:
        >>> from metavib.groups import Learned
        >>> Learned._fields  # what `learn` returns
        ('model', 'report')
    """

    model: Model
    report: Report


def learn(
    x: Float[Tensor, "rows d"],
    y: Float[Tensor, " rows"],
    group: np.ndarray,
    *,
    seed: int,
    links: Sequence[Link] = (),
    weight: Float[Tensor, " rows"] | None = None,
) -> Learned:
    """Learns the prior of a new group from the rows of many.

    Args:
        x: standardised columns, in float64.
        y: outputs of mean 0 and variance 1.
        group: the group of each row, numbered from 0.
        seed: of samples and folds.
        links: what outputs may become before they are Gaussian (`links`).
        weight: by which the noise variance of each row is divided, above zero; one where None.

    Example:
        Groups that are lines of their own, around a line that all share.

        >>> random = np.random.default_rng(0)
        >>> group, x = np.repeat(np.arange(30), 6), random.normal(size=180)
        >>> y = x + random.normal(size=(30, 2))[group, 0] * 0.3
        >>> model, report = learn(torch.tensor(x)[:, None], torch.tensor((y - y.mean()) / y.std()), group, seed=0)
        >>> report.rows[1].rmse < 0.5 * report.rows[0].rmse  # one row known, and none
        True
    """
    return validated(draft(x, y, group, seed=seed, links=links, weight=weight), as_they_are())


class Draft(NamedTuple):
    """What rows say before any group is held out, and all that it takes to hold some out."""

    x: Tensor
    y: Tensor
    weight: Tensor
    sets: list[np.ndarray]
    chosen: "Chosen"
    refined: "Refined"
    random: np.random.Generator


def draft(
    x: Float[Tensor, "rows d"],
    y: Float[Tensor, " rows"],
    group: np.ndarray,
    *,
    seed: int,
    links: Sequence[Link] = (),
    weight: Float[Tensor, " rows"] | None = None,
) -> Draft:
    """The first half of `learn`, which knows all but how wide predictions of new groups are in truth."""
    random, sets = np.random.default_rng(seed), members(group)
    weight = torch.ones_like(y) if weight is None else weight
    chosen = choose(x, y, group, links, random, weight=weight)
    refined = refine(chosen.features, x, chosen.z(y), sets, chosen.noise, random, weight=weight, link=chosen.link)
    return Draft(x, y, weight, sets, chosen, refined, random)


class Aside(NamedTuple):
    """Rows that are left out of learning, with the numbers of their groups."""

    x: Tensor
    y: Tensor
    weight: Tensor
    group: np.ndarray


def validated(draft: Draft, units: Outputs, aside: Aside | None = None) -> Learned:
    """The second half of `learn`: groups held out say how wide predictions must be, and how good they are.

    Args:
        draft: the first half.
        units: those of the outputs, of which the report is.
        aside: rows that it does without, since they cannot be right.
    """
    x, y, weight, sets, (features, noise, link, _), refined, random = draft
    without = [np.zeros(0, dtype=np.int64)] * len(sets)
    if aside is not None:
        without = [len(y) + np.flatnonzero(aside.group == i) for i in range(len(sets))]
        x, y, weight = (torch.cat(both) for both in ((x, aside.x), (y, aside.y), (weight, aside.weight)))
    z, fold = draft.chosen.z(y), random.permutation(np.arange(len(sets)) % min(FOLDS, len(sets)))
    held = []
    for k in range(folds(len(sets))):
        rest = [rows for rows, f in zip(sets, fold, strict=True) if f != k]
        its = features.learned_from(x[torch.as_tensor(np.concatenate(rest))])
        some = sample(rest, EVIDENCE_ROWS, EVIDENCE_EACH, random)
        noise_k = fit_features(its, x, z, some, noise, weight=weight, iterations=ITERATIONS // 3).noise
        options: Any = {"weight": weight, "strength": refined.strength, "link": link}
        model = refine(its, x, z, rest, noise_k, random, **options).model
        mine = np.flatnonzero(fold == k)
        held.append(Held(model, [sets[i] for i in mine], [without[i] for i in mine]))
    held = begin(refined.model, held, x, y, weight)
    factor, of_groups, of_rows, louder = tails(held, x, y, weight, 0)
    models = [*(each.model for each in held), refined.model]
    for model in models:
        widened(model, factor, (of_groups, of_rows), noise=louder)
    if isinstance(link, Edge):
        best = lift(held, x, y, weight, units)
        for model in models:
            lifted(model, best)
    found = report(held, x, y, weight, random, units)._replace(logarithms=logarithms(refined.model))
    return Learned(refined.model, found)


def folds(groups: int) -> int:
    """How many times a fold of the groups is held out: once where there are many of them, never where there is one."""
    return 0 if groups < 2 else min(FOLDS, groups) if groups <= MANY else 1


def sample(sets: Sequence[np.ndarray], rows: int, each: int, random: np.random.Generator) -> list[np.ndarray]:
    """Some of the groups, and of their rows: as many as fit into a number of rows, in random order."""
    found, count = [], 0
    for i in random.permutation(len(sets)):
        mine = sets[i] if len(sets[i]) <= each else random.permutation(sets[i])[:each]
        found.append(mine)
        count += len(mine)
        if count >= rows:
            break
    return found


def _within(y: Tensor, group: np.ndarray) -> float:
    """Where the noise variance starts: a third of the variance within groups."""
    values, counts = y.numpy(), np.bincount(group)
    means = np.bincount(group, values) / counts
    return max(0.3 * float(np.sum((values - means[group]) ** 2)) / max(len(values) - len(counts), 1), 1e-3)


# Columns and outputs: themselves, or their logarithms, square roots or logits


class Chosen(NamedTuple):
    """Features, the noise variance, what outputs become before they are Gaussian, and the evidence for it all."""

    features: Features
    noise: float
    link: Link | None
    evidence: float

    @property
    def changes(self) -> int:
        """How many of the two are something else than themselves: columns, and outputs."""
        return (self.features.sizes.warped > 0) + (self.link is not None)

    def z(self, y: Tensor) -> Tensor:
        """Outputs as they enter: themselves, or what the link makes of them."""
        return y if self.link is None else self.link.standardise(y)


def edges(y: Float[Tensor, " rows"], zero: float) -> list[float]:
    """Edges that outputs may have where none of them is below zero: one further away, and zero itself.

    Where some outputs are zero, as counts are, the edge lies as far below as the smallest other one lies above, which
    is the logarithm of 1 + y for counts. The one further away, by the distance of the median, makes less of small ones.

    Args:
        y: outputs.
        zero: where the zero of their own units lies.

    Example:
        >>> edges(torch.tensor([0.0, 1, 1, 2, 3, 5, 7]), 0.0), edges(torch.tensor([-1.0, 0, 1, 2, 3, 4]), 0.0)
        ([-4.0, -1.0], [])
    """
    if float(y.min()) < zero or len(torch.unique(y)) <= VALUES:
        return []
    low = zero - (step(y, zero) if float(y.min()) == zero else 0.0)
    return [low - (float(y.median()) - low), low]


def step(y: Float[Tensor, " rows"], zero: float) -> float:
    """How far the smallest output above zero lies from it; not so little that it would be an error of rounding."""
    above = y[y > zero] - zero
    return max(float(above.min()), NEAR * float(above.median()))


def links(y: Float[Tensor, " rows"], zero: float, one: float = inf) -> list[Link]:
    """What outputs may become before they are Gaussian: logits, square roots, logarithms of distances from edges.

    Outputs may be shares where none is below zero or above one, and some reach the upper half. (Where none does, logits
    are logarithms all but exactly, and outputs may be amounts that have no upper end.) Square roots are those of the
    outputs themselves or, where some are zero, of outputs that are larger by 3/8 of the smallest other one, under which
    counts of a Poisson law have the same variance wherever they are (Anscombe 1948).

    Args:
        y: outputs.
        zero: where the zero of their own units lies.
        one: where the one of their own units lies.

    Example:
        >>> amounts, shares = torch.tensor([1.0, 2, 3, 5, 7, 9]), torch.tensor([0.0, 0.1, 0.3, 0.5, 0.8, 0.9])
        >>> [[type(link).__name__ for link in links(y, 0.0, 1.0)] for y in (amounts, shares)]
        [['Root', 'Edge', 'Edge'], ['Band', 'Root', 'Edge', 'Edge']]
    """
    logs = [edged(y, edge) for edge in edges(y, zero)]
    if not logs:
        return []
    below = ANSCOMBE * step(y, zero) if float(y.min()) == zero else 0.0
    share = (zero + one) / 2 < float(y.max()) <= one
    return [*([banded(y, zero, one)] if share else []), rooted(y, zero - below), *logs]


def choose(
    x: Tensor,
    y: Tensor,
    group: np.ndarray,
    links: Sequence[Link],
    random: np.random.Generator,
    *,
    weight: Tensor | None = None,
) -> Chosen:
    """The features that the evidence of the groups is for, with columns and outputs as they are or not.

    Each way is followed for a few steps, and the best of them to its end. Columns and outputs as they are, each, are
    given up only for `CONVINCING` more.

    Args:
        x: rows `(rows, d)`.
        y: their outputs `(rows,)`.
        group: the group of each row.
        links: what outputs may become before they are Gaussian.
        random: decides on samples.
        weight: by which the noise variance of each row is divided; one where None.
    """
    columns, sets = layout(x.numpy(), y.numpy(), group), members(group)
    uneven, start = skewed(x, columns.curved), _within(y, group)
    of_columns = [spread_over(x, columns, random)]
    of_columns += [spread_over(x, columns, random, uneven)] if uneven else []
    ways = [Chosen(features, start, link, -inf) for link in (None, *links) for features in of_columns]
    best, iterations = ways[0], ITERATIONS
    if len(ways) > 1:
        some = sample(sets, FIRST_ROWS, EVIDENCE_EACH, random)
        ways = [follow(way, x, y, weight, some, FIRST) for way in ways]
        best = max(ways, key=lambda way: way.evidence - CONVINCING * way.changes)
        iterations = ITERATIONS - FIRST
    return follow(best, x, y, weight, sample(sets, EVIDENCE_ROWS, EVIDENCE_EACH, random), iterations)


def follow(
    way: Chosen, x: Tensor, y: Tensor, weight: Tensor | None, sets: Sequence[np.ndarray], iterations: int
) -> Chosen:
    """A way after some more iterations, with the evidence for it: that of what outputs become, and their slopes."""
    features, rows = deepcopy(way.features), torch.as_tensor(np.concatenate(sets))
    noise, evidence = fit_features(features, x, way.z(y), sets, way.noise, weight=weight, iterations=iterations)
    slopes = 0.0 if way.link is None else float(way.link.log_slope(y[rows]).sum())
    return Chosen(features, noise, way.link, evidence + slopes)


# The kernels


class Fit(NamedTuple):
    """The noise variance, and the logarithm of the evidence times the prior."""

    noise: float
    evidence: float


def fit_features(
    features: Features,
    x: Tensor,
    y: Tensor,
    sets: Sequence[np.ndarray],
    noise: float,
    *,
    weight: Tensor | None = None,
    iterations: int = ITERATIONS,
) -> Fit:
    """Moves the features' parameters, in place, to where the evidence of the groups is highest.

    Args:
        features: start and result.
        x: rows `(rows, d)`.
        y: their outputs `(rows,)`, of mean 0 and variance 1.
        sets: the rows of each group.
        noise: variance to start at.
        weight: by which the noise variance of each row is divided; one where None.
        iterations: of L-BFGS, at most.
    """
    log_noise = torch.tensor([log(noise)], dtype=x.dtype, requires_grad=True)
    parameters = [*features.requires_grad_().parameters(), log_noise]
    root = torch.ones_like(y) if weight is None else weight.sqrt()
    taken = [(b.take(x), b.take(root * y), b.take(root)) for b in blocks(sets)]
    rows = sum(len(s) for s in sets)

    def value() -> Tensor:
        groups = [
            Group(
                features.shared(xs) * r.unsqueeze(-1),
                features.own(xs) * r.unsqueeze(-1),
                ys,
                torch.where(r > 0, log_noise.exp() + NOISE, 1.0),
            )
            for xs, ys, r in taken
        ]
        prior = features.log_prior() - 0.5 * ((log_noise - log(0.1)) / 3).square().sum()
        return log_evidence(groups, rows) + prior

    found = maximise(value, parameters, iterations)
    features.requires_grad_(False)
    return Fit(float(log_noise.detach().exp() + NOISE), found)


def maximise(value: Callable[[], Tensor], parameters: Sequence[Tensor], iterations: int) -> float:
    """Moves parameters, in place, to where a value of them is highest, by L-BFGS; returns it."""
    from scipy.optimize import minimize

    def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
        _set(parameters, theta)
        found = -value()
        slopes = torch.autograd.grad(found, parameters)
        return float(found.detach()), torch.cat([g.flatten() for g in slopes]).numpy()

    start = torch.cat([p.detach().flatten() for p in parameters]).numpy()
    bounds = [(low - REACH, low + REACH) for low in start]
    found = minimize(negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations})
    _set(parameters, found.x)
    return -float(found.fun)


def _set(parameters: Sequence[Tensor], values: np.ndarray) -> None:
    """Puts numbers into parameters, one after another."""
    at = 0
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.as_tensor(values[at : at + p.numel()]).reshape(p.shape))
            at += p.numel()


# The covariance of a group's own weights


class Spread(NamedTuple):
    r"""$\Sigma$ of a group's own weights, and the noise variance."""

    sigma: Tensor
    noise: float


class Residuals(NamedTuple):
    r"""Groups of a block, less the shared function: features $\psi$ and residuals r, and which rows are real.

    Both are multiplied by the square root of the row's weight.
    """

    psi: Float[Tensor, "b n q"]
    r: Float[Tensor, "b n"]
    mask: Float[Tensor, "b n"]


class Refined(NamedTuple):
    """The model of a new group, and the strength c that was chosen."""

    model: Model
    strength: float


@torch.no_grad()
def refine(
    features: Features,
    x: Tensor,
    y: Tensor,
    sets: Sequence[np.ndarray],
    noise: float,
    random: np.random.Generator,
    *,
    weight: Tensor | None = None,
    strength: float | None = None,
    link: Link | None = None,
) -> Refined:
    """The model of a new group: the covariance of groups, and the posterior of w.

    Args:
        features: with their parameters.
        x: rows `(rows, d)`.
        y: their outputs `(rows,)`.
        sets: the rows of each group.
        noise: variance to start at.
        random: decides on samples.
        weight: by which the noise variance of each row is divided; one where None.
        strength: c, where it is known; chosen by groups held out where None.
        link: what made y of the outputs, where that is not the outputs themselves.
    """
    some = sample(sets, REFINE_ROWS, REFINE_EACH, random)
    sampled = x[torch.as_tensor(np.concatenate(some)[:4000])]
    basis = directions(features.own(sampled))
    spread = Spread(torch.eye(basis.shape[1], dtype=x.dtype), noise)
    parts = list(blocks(some))
    root = torch.ones_like(y) if weight is None else weight.sqrt()

    def posterior(spread: Spread, of: Iterable[Block] | None = None) -> Shared:
        own = basis @ linalg.cholesky(spread.sigma, what="Sigma")
        of = blocks(sample(sets, SHARED_ROWS, SHARED_EACH, random)) if of is None else of
        return shared(total(said(_group(b, features, own, x, y, root, spread.noise)) for b in of))

    def residuals(w: Tensor) -> list[Residuals]:
        found = []
        for b in parts:
            xs, r = b.take(x), b.take(root)
            psi = (features.own(xs) @ basis) * r.unsqueeze(-1)
            found.append(Residuals(psi, (b.take(y) - features.shared(xs) @ w) * r, b.mask))
        return found

    if strength is None:
        strength = inf if len(some) < ENOUGH else _strength(spread, residuals(posterior(spread, parts).w))
    if strength < inf:
        for _ in range(2):
            spread = steps(spread, residuals(posterior(spread, parts).w), strength)
    w = posterior(spread)
    own = basis @ linalg.cholesky(spread.sigma, what="Sigma")
    return Refined(hierarchical(features, w, own, spread.noise, sampled, link), strength)


def steps(spread: Spread, data: Sequence[Residuals], strength: float) -> Spread:
    r"""Steps of expectation and maximisation towards the best $\Sigma$ and noise.

    With $v_i \mid y_i \sim N(m_i, P_i)$, $P_i = (\Sigma^{-1} + \Psi_i^\top \Psi_i / \sigma^2)^{-1}$, the expectations
    are $E[v_i v_i^\top] = m_i m_i^\top + P_i$ and, of a row's squared noise, $e^2 + \psi^\top P_i \psi$.
    """
    prior = strength * len(spread.sigma)
    count, rows = sum(len(d.r) for d in data), float(sum(d.mask.sum() for d in data))
    identity = linalg.identity_like(spread.sigma)
    for _ in range(STEPS):
        sigma, noise = spread
        inverse = torch.cholesky_inverse(linalg.cholesky(sigma, what="Sigma"))
        total, squares = torch.zeros_like(sigma), 0.0
        for psi, r, mask in data:
            P = torch.cholesky_inverse(linalg.cholesky(inverse + psi.mT @ psi / noise, what="Sigma^-1 + Psi^T Psi"))
            m = (P @ (psi.mT @ r.unsqueeze(-1)) / noise).squeeze(-1)
            total += P.sum(0) + m.mT @ m
            e = (r - (psi @ m.unsqueeze(-1)).squeeze(-1)) * mask
            squares += float(e.square().sum() + ((psi @ P) * psi).sum())
        spread = Spread((prior * identity + total) / (prior + count), max(squares / rows, NOISE))
    return spread


def log_density(spread: Spread, data: Sequence[Residuals]) -> float:
    r"""$\sum_i \log N(r_i \mid 0, \Psi_i \Sigma \Psi_i^\top + \sigma^2 I)$ but for a constant."""
    found = 0.0
    for psi, r, mask in data:
        s = torch.where(mask > 0, spread.noise, 1.0)
        L = linalg.cholesky(psi @ spread.sigma @ psi.mT + torch.diag_embed(s), what="Psi Sigma Psi^T + S")
        deviation = torch.linalg.solve_triangular(L, r.unsqueeze(-1), upper=False).square().sum()
        found -= float(0.5 * deviation + L.diagonal(dim1=-2, dim2=-1).log().sum())
    return found


def _strength(spread: Spread, data: Sequence[Residuals]) -> float:
    """The strength under which either half of the groups is most likely, given the other half."""
    halves = [[Residuals(*(t[k::2] for t in d)) for d in data if len(d.r) > k] for k in (0, 1)]

    def score(strength: float) -> float:
        found = 0.0
        for mine, others in (halves, halves[::-1]):
            given = spread if strength == inf else steps(spread, others, strength)
            found += log_density(given, mine)
        return found

    return max(STRENGTHS, key=score)


def _group(b: Block, features: Features, own: Tensor, x: Tensor, y: Tensor, root: Tensor, noise: float) -> Group:
    xs, r = b.take(x), b.take(root).unsqueeze(-1)
    s = torch.where(b.mask > 0, noise, 1.0)
    return Group(features.shared(xs) * r, (features.own(xs) @ own) * r, b.take(root * y), s)


def directions(psi: Tensor) -> Tensor:
    """The leading directions of a group's own function over some rows, at most `OWN`."""
    values, vectors = torch.linalg.eigh(psi.mT @ psi / len(psi))
    return vectors[:, values > 1e-7 * values[-1]][:, -OWN:]


def total(parts: Iterable[Said]) -> Said:
    """What all groups say of w, block by block."""
    found = None
    for part in parts:
        found = part if found is None else found + part
    assert found is not None
    return found
