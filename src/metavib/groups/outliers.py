r"""Rows that cannot be right: gross errors, which Gaussian noise would let move all predictions of their group.

What the *other* rows of a group and the prior say of row i is a Gaussian too. With $C = Z Z^\top + \sigma^2 I$ of the
rows of the group and r what they are above the prior mean, the row lies

$$u_i = \frac{[C^{-1} r]_i}{\sqrt{[C^{-1}]_{ii}}}$$

standard deviations from it. The row furthest off, where that is further than `FAR`, is set aside and the others are
looked at again, until none is: one wrong row makes right ones look wrong, but never as wrong as itself. Under Gaussian
noise one row in $10^{15}$ is so far off, so that a table without gross errors loses nothing.

In learning, standard deviations are those that the middle half of all rows shows: wrong rows make the noise that is
learned from them larger, and so look better than they are. A new group is another matter. Where more than half of its
rows are so far off, and a single one is, it is the group that is unlike all others (one state has ten times the murders
of the rest), and its rows are believed: `believable`. The tails of its predictions then say how little is known of it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from metavib import linalg
from metavib.groups.learning import NOISE, Aside, Learned, draft, links, validated
from metavib.groups.rows import Block, blocks, members
from metavib.likelihoods import Gaussian, RealLikelihood, Warped
from metavib.marginals import Marginals, Student
from metavib.model import Model
from metavib.priors import FunctionPrior
from metavib.tasks.inputs import Points
from metavib.tasks.scaling import Outputs, within_reach

FAR = 8.0  # standard deviations
HALF = 0.6744897501960817  # standard deviations that half of all numbers of a Gaussian are within
TOGETHER = 60  # rows of a group that are held against each other, at most
AT_ONCE = 2**15  # rows that are held against others at the same time, at most: memory does not grow with a table
USUAL = 50_000  # rows that say how far rows usually are from others, about
ASIDE = 1e8  # by which the noise variance of a row set aside is larger: it says nothing any more
ALONE = 5.0  # deviations, by the quartiles, from the median: rows that a first training does without
PASSES = 3  # trainings, of which each finds what the one before was misled by


class Rest(NamedTuple):
    """A block of groups as they differ from the prior mean: features Z, residuals r, their noise, which are real."""

    block: Block
    z: Tensor
    r: Tensor
    noise: Tensor
    real: Tensor

    def off(self, aside: Tensor) -> Tensor:
        """|u|, how far each row is from what the others say, those `aside` left out; zero for these and for padding."""
        s = torch.where(self.real & ~aside, self.noise, self.noise * ASIDE)
        inverse = torch.cholesky_inverse(linalg.cholesky(self.z @ self.z.mT + torch.diag_embed(s), what="Z Z^T + S"))
        u = (inverse @ self.r.unsqueeze(-1)).squeeze(-1) / inverse.diagonal(dim1=-2, dim2=-1).sqrt()
        return u.abs().masked_fill(aside | ~self.real, 0.0)


@torch.no_grad()
def outliers(
    model: Model,
    x: Float[Tensor, "rows d"],
    y: Float[Tensor, " rows"],
    group: np.ndarray,
    weight: Float[Tensor, " rows"] | None = None,
    *,
    far: float = FAR,
) -> np.ndarray:
    """Which rows cannot be right, as a mask.

    Args:
        model: of a new group (`metavib.groups.hierarchical`).
        x: standardised columns, in float64.
        y: standardised outputs.
        group: the group of each row, numbered from 0.
        weight: by which the noise variance of each row is divided; one where None.
        far: standard deviations from which on a row cannot be right.
    """
    wrong = np.zeros(len(y), dtype=bool)
    assert isinstance(model.prior, FunctionPrior)
    if (freedom := model.prior.kernel.freedom()) is not None:  # deviations of rows with tails
        far *= float((freedom[1] / (freedom[1] - 2)).sqrt())
    for rest in _rests(model, x, y, members(group), weight):
        aside = torch.zeros_like(rest.real)
        for _ in range(rest.real.shape[-1]):
            u = rest.off(aside)
            furthest = torch.zeros_like(aside).scatter(-1, u.argmax(-1, keepdim=True), True) & (u > far)
            if not furthest.any():
                break
            aside |= furthest
        wrong[rest.block.places[aside].numpy()] = True
    return wrong


def believable(far: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Which rows are of groups of which more than half of the rows are far off, as a mask.

    Example:
        >>> believable(np.array([True, True, False, True, True, False]), np.array([0, 1, 1, 2, 2, 2]))
        array([ True, False, False,  True,  True,  True])
    """
    counts, rows = np.bincount(group, far), np.bincount(group)
    return (2 * counts > rows)[group]


@torch.no_grad()
def usual(
    model: Model, x: Float[Tensor, "rows d"], y: Float[Tensor, " rows"], group: np.ndarray, weight: Tensor
) -> float:
    """How far rows usually are from what the others say, in standard deviations: by the median, and 1 at most.

    A model that has learned from wrong rows takes all rows for noisier than they are. Their median tells. But no table
    is believed to have less noise than a model may have: without any, rounding would be far from what others say.
    """
    sets = members(group)[:: max(1, len(y) // USUAL)]  # a median is known from some
    found = [rest.off(~rest.real)[rest.real] for rest in _rests(model, x, y, sets, weight)]
    assert isinstance(model.likelihood, Gaussian | Warped)
    least = (NOISE / float(model.likelihood.noise())) ** 0.5
    return min(1.0, max(least, float(torch.cat(found).median()) / HALF))


def _rests(model: Model, x: Tensor, y: Tensor, sets: Sequence[np.ndarray], weight: Tensor | None) -> Iterator[Rest]:
    """Some groups, each given by its rows, block by block."""
    weight = torch.ones_like(y) if weight is None else weight
    prior, likelihood = model.prior, model.likelihood
    assert isinstance(prior, FunctionPrior) and isinstance(likelihood, Gaussian | Warped)
    for block in blocks(_parts(sets), rows=AT_ONCE):
        real = block.mask > 0
        phi = prior.features_of(Points(block.take(x), real))
        z = prior.kernel.embed(phi) * block.mask.unsqueeze(-1)
        r = (likelihood.targets(block.take(y)).squeeze(-1) - phi[..., -1]) * block.mask
        noise = likelihood.noise() / (block.take(weight) + 1 - block.mask)
        yield Rest(block, z, r, noise, real)


def beyond_reach(
    q: Marginals, y: Float[Tensor, " v"], likelihood: RealLikelihood, weight: Float[Tensor, " v"]
) -> Tensor:
    """Which outputs lie further than `FAR` from what is predicted of them, as a mask.

    Args:
        q: of a group's function, at the rows.
        y: standardised outputs.
        likelihood: of the model.
        weight: by which the noise variance of each row is divided.
    """
    assert isinstance(likelihood, Gaussian | Warped)
    off, noise = (likelihood.targets(y) - q.mean).squeeze(-1), likelihood.noise() / weight
    if isinstance(q, Student):
        noise = noise * (q.ratio * q.df / (q.df - 2)).squeeze(-1)
    return off.abs() > FAR * (q.var.squeeze(-1) + noise).sqrt()


def learn_from_right_rows(
    x: Float[Tensor, "rows d"],
    y: Float[Tensor, " rows"],
    group: np.ndarray,
    *,
    seed: int,
    units: Outputs,
    weight: Float[Tensor, " rows"] | None = None,
) -> tuple[Learned, np.ndarray]:
    """Learns the prior of a new group as `metavib.groups.learn` does, and again without rows that cannot be right.

    Outputs may have an edge where none is below zero, and be shares (`metavib.groups.learning.links`).

    Args:
        x: standardised columns, in float64.
        y: standardised outputs.
        group: the group of each row, numbered from 0.
        seed: of samples and folds.
        units: how outputs were standardised.
        weight: by which the noise variance of each row is divided; one where None.

    Returns what was learned, and the rows that were left out, as a mask.

    Example:
        >>> from metavib.tasks.scaling import as_they_are
        >>> random = np.random.default_rng(0)
        >>> group, x = np.repeat(np.arange(30), 6), torch.tensor(random.normal(size=(180, 1)))
        >>> y = torch.tensor(random.normal(size=30)[group] + 0.1 * random.normal(size=180))
        >>> y[7] = 50.0
        >>> np.flatnonzero(learn_from_right_rows(x, y / y.std(), group, seed=0, units=as_they_are())[1])
        array([7])
    """
    # A first training does not see the rows furthest from all others: a kernel would bend towards one wrong row, or
    # take all rows for as noisy, and that row for right. What it learns then says whether they are wrong.
    weight = torch.ones_like(y) if weight is None else weight
    zero, one = units.standardise(torch.tensor([0.0, 1.0], dtype=y.dtype)).tolist()
    wrong = _alone(y.numpy())
    for link in links(y, zero, one):  # skewed outputs are far from others by themselves, and not by their logarithms
        wrong &= _alone(link.standardise(y).numpy())
    for _ in range(PASSES):
        without, kept = wrong, torch.as_tensor(np.flatnonzero(~wrong))
        number = np.unique(group[~wrong], return_inverse=True)[1]
        found = draft(x[kept], y[kept], number, seed=seed, links=links(y[kept], zero, one), weight=weight[kept])
        model = found.refined.model
        wrong = outliers(model, x, y, group, weight, far=FAR * usual(model, x, y, group, weight))
        if (wrong == without).all():
            break
    groups = np.unique(group[~without])
    rows = np.flatnonzero(without & np.isin(group, groups))
    i = torch.as_tensor(rows)
    aside = Aside(x[i], y[i], weight[i], np.searchsorted(groups, group[rows]))
    return validated(found, units, aside), without


def _alone(y: np.ndarray) -> np.ndarray:
    """Which numbers are far from most others, as a mask."""
    return within_reach(y, ALONE) != y


def _parts(sets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Groups of many rows in parts, of as many rows each as are held against each other."""
    found: list[np.ndarray] = []
    for rows in sets:
        found += np.array_split(rows, max(1, -(-len(rows) // TOGETHER)))
    return found
