r"""Classes that all groups have in common: how probable each of them is, from what other groups and a few rows say.

The indicator of a class, 1 for its rows and 0 for the others, is a real output like any other. Under the hierarchical
prior of `metavib.groups` (THEORY.md, section 12) its predictive mean is the best linear predictor of the indicator, and
so an estimate of the class's probability that shrinks towards what is usual: with no rows of a group it is what the
columns say in all groups, with n rows and no columns it is the smoothed share

$$P(y = c) = \frac{n_c + \lambda\, \bar p_c}{n + \lambda}, \qquad \lambda = \sigma^2 / \tau^2,$$

with $\sigma^2$ the variance of the indicator within groups and $\tau^2$ that between them. Rows of one class never mean
certainty.

Of two classes one has an indicator, and the model is GP-VIB with one latent function: what is known of a group has a
memory of constant size. Of more classes each has a prior of its own, and the points of a group are kept.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from metavib.encoders import GPEncoder, SiteEncoder
from metavib.encoders.encoder import Encoder
from metavib.groups.learning import draft
from metavib.groups.prior import like
from metavib.likelihoods import ClassLikelihood, Likelihood
from metavib.marginals import Marginals, Nodes, Normal
from metavib.model import Model
from metavib.posteriors.memory import Sites
from metavib.posteriors.posterior import Encoding, Posterior
from metavib.random import Noise
from metavib.tasks import scaling as scalings
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

FLOOR = 0.02  # no probability is smaller, or than half of the class's share of the rows learned from


@final
class Shares(ClassLikelihood):
    """Probabilities that are the values of functions themselves, kept away from 0 and 1, and made to add up to 1.

    The latent functions are the standardised indicators of the classes: of the second one where there are two, of each
    where there are more. Labels are the places of the classes, and mean the same in every group.

    Args:
        mean: of each indicator over the rows learned from, `(c,)`.
        scale: standard deviation of each.
        noise: variance of each around a group's own function, once standardised.
        floor: the smallest probability of each class, `(N,)`.

    Example:
        One person in four says yes, and no probability is to be below 0.1.

        >>> likelihood = Shares(*torch.tensor([[0.25], [0.5], [0.8]]), torch.tensor([0.1, 0.1]))
        >>> likelihood.predict(Normal(torch.tensor([[0.0], [1.6]]), torch.ones(2, 1)))
        tensor([[0.7500, 0.2500],
                [0.0870, 0.9130]])
    """

    mean: Tensor
    scale: Tensor
    noise: Tensor
    floor: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, noise: Tensor, floor: Tensor) -> None:
        super().__init__()
        self.latents, self.classes = len(mean), len(floor)
        for name, values in (("mean", mean), ("scale", scale), ("noise", noise), ("floor", floor)):
            self.register_buffer(name, values)

    def targets(self, y: Tensor) -> Tensor:
        """The standardised indicators."""
        first = self.classes - self.latents  # of two classes the second has the only one
        columns = torch.arange(first, self.classes, device=y.device)
        return ((y.unsqueeze(-1) == columns).to(self.mean.dtype) - self.mean) / self.scale

    def nodes(self, q: Marginals, noise: Noise = None) -> Nodes:
        """One node, the mean of q: an indicator's probability is its expectation."""
        return Nodes(q.mean[None], q.mean.new_zeros(1))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the label's probability."""
        index = y.expand(f.shape[:-1]).unsqueeze(-1)
        return self.probabilities(f).log().gather(-1, index).squeeze(-1)

    def probabilities(self, f: Tensor) -> Tensor:
        """The indicators in their own units, none below its floor."""
        p = f * self.scale + self.mean
        p = torch.cat([1 - p, p], -1) if self.latents == 1 else p
        p = p.maximum(self.floor)
        return p / p.sum(-1, keepdim=True)


@final
class IndicatorSites(SiteEncoder):
    """The standardised indicator of a class itself, with its noise: the exact posterior.

    Args:
        column: which of the likelihood's indicators.
    """

    def __init__(self, column: int = 0) -> None:
        super().__init__()
        self.column = column

    def sites(self, phi: Tensor, y: Tensor, likelihood: Likelihood) -> Sites:
        """An observation for each point."""
        assert isinstance(likelihood, Shares)
        m = likelihood.targets(y)[..., self.column : self.column + 1]
        return Sites(m.to(phi.dtype), likelihood.noise[self.column].to(phi.dtype))


class ClassPriors(nn.Module):
    """Priors over functions, one for the indicator of each class.

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
    """The exact posterior of each class's indicator, under a prior of its own.

    Args:
        classes: how many there are.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.columns = nn.ModuleList(GPEncoder(IndicatorSites(column)) for column in range(classes))

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


def learn_shares(
    x: Float[Tensor, "rows d"],
    y: Int[Tensor, " rows"],
    group: np.ndarray,
    *,
    classes: int,
    seed: int,
    weight: Float[Tensor, " rows"] | None = None,
) -> Model:
    """Learns how probable common classes are in a new group.

    Args:
        x: standardised columns, in float64.
        y: the class of each row, numbered from 0.
        group: the group of each row, numbered from 0.
        classes: how many there are, some of which may have no row.
        seed: of samples and folds.
        weight: by which the noise variance of each row is divided, above zero; one where None.

    Example:
        People who say yes each with a frequency of their own, about one in four in the mean.

        >>> from metavib.tasks.task import Task, examples
        >>> random = np.random.default_rng(0)
        >>> person, x = np.repeat(np.arange(40), 8), torch.tensor(random.normal(size=(320, 1)))
        >>> yes = torch.tensor(random.random(320) < random.beta(1, 3, 40)[person]).long()
        >>> model = learn_shares(x, yes, person, classes=2, seed=0)
        >>> def p(n):  # the probability of a yes after n of them
        ...     task = Task(examples(x[:n], torch.ones(n).long()), examples(x[:1], yes[:1]))
        ...     return float(model.likelihood.predict(model(task))[0, 1])
        >>> 0.1 < p(0) < 0.4, p(0) < p(1) < p(5) < 0.99
        (True, True)
    """
    counts = np.maximum(np.bincount(y.numpy(), minlength=classes), 0.5)
    floor = torch.tensor(np.minimum(FLOOR, counts / counts.sum() / 2))
    models, scales = [], []
    for number in range(classes) if classes > 2 else (1,):
        indicator = (y == number).double()
        scales.append(scalings.outputs(indicator.numpy()))
        models.append(draft(x, scales[-1].standardise(indicator), group, seed=seed, weight=weight).refined.model)
    noise = [float(model.likelihood.noise()) for model in models]  # type: ignore[operator]
    likelihood = Shares(
        torch.stack([s.mean for s in scales]),
        torch.stack([s.scale for s in scales]),
        torch.tensor(noise).double(),
        floor,
    )
    return _model([model.prior for model in models], likelihood)


def like_shares(state: Mapping[str, Tensor]) -> Model:
    """A model of the shape that the tensors of a saved one have, before these are loaded into it.

    Args:
        state: the tensors by name, as `state_dict` gives them.

    Example:
        >>> import numpy as np, torch
        >>> from metavib.groups import learn_shares, like_shares
        >>> x, person = torch.linspace(-1, 1, 60).double()[:, None], np.repeat(np.arange(20), 3)
        >>> saved = learn_shares(x, (torch.arange(60) % 5 == 0).long(), person, classes=2, seed=0).state_dict()
        >>> like_shares(saved).load_state_dict(saved)
        <All keys matched successfully>
    """
    sizes = {}
    for name in ("mean", "scale", "noise", "floor"):
        if state[f"likelihood.{name}"].ndim != 1:
            raise ValueError(f"likelihood.{name} is no list of numbers")
        sizes[name] = len(state[f"likelihood.{name}"])
    classes, latents = sizes["floor"], sizes["mean"]
    if classes < 2 or latents != (1 if classes == 2 else classes):
        raise ValueError(f"there are {latents} functions for {classes} classes")
    parts = []
    for n in range(latents):
        prefix = "prior." if latents == 1 else f"prior.parts.{n}."
        part = {f"prior.{k.removeprefix(prefix)}": t for k, t in state.items() if k.startswith(prefix)}
        parts.append(like(part).prior)
    blank = (torch.zeros(size, dtype=torch.float64) for size in sizes.values())
    return _model(parts, Shares(*blank))


def _model(priors: Sequence[nn.Module], likelihood: Shares) -> Model:
    if len(priors) == 1:
        return _ready(Model(priors[0], GPEncoder(IndicatorSites()), likelihood))
    return _ready(Model(ClassPriors(priors), EachClass(len(priors)), likelihood))


def _ready(model: Model) -> Model:
    return model.double().requires_grad_(False).eval()
