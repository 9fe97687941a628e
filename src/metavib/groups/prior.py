r"""The prior of a new group, given the groups learned from: a Gaussian process with a mean and an explicit kernel.

Every group is $f_i = g + h_i$ (THEORY.md, section 12), with $g(x) = \phi(x)^\top w$ common to all and $h_i(x) =
\psi(x)^\top v_i$ its own. After many groups w is known up to a Gaussian, $w \sim N(\hat w, V)$, and the weights of a
group up to their covariance, $v_i \sim N(0, \Sigma)$. So a new group has the prior

$$f \sim GP(\phi(x)^\top \hat w,\; z(x)^\top z(x')), \qquad
z(x) = [\phi(x),\, \psi(x)]\, R, \qquad R R^\top = \begin{pmatrix} V & \\ & \Sigma \end{pmatrix}.$$

This is eq. 33. In the one bound this is a choice of prior alone: encoder (exact sites) and likelihood (Gaussian, or
Gaussian in what a link makes of the outputs) are those of GP-VIB, and a posterior given some rows is that of
`metavib.posteriors`, primal or dual, of constant size and additive. No rows give the prior, which is what is known of a
group before its first row.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from metavib.encoders import ExactSites
from metavib.groups.evidence import Shared
from metavib.groups.features import Features, Sizes, squared_distances
from metavib.kernels import Given
from metavib.likelihoods import Gaussian, LogitNormal, LogNormal, RootNormal, Warped
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import Backbone
from metavib.networks.layers import Positive
from metavib.priors import FunctionPrior
from metavib.tasks.inputs import Inputs
from metavib.tasks.scaling import Band, Edge, Link, Root

NEGLIGIBLE = 1e-5  # directions that add less than this share of the noise variance to a prediction are left out of z
BODY = "prior.network.body."  # where the tensors of a `Hierarchy` stand among those of its model
FREEDOM, START = "prior.kernel.degrees", "prior.kernel.start"
LENGTH = 1.5  # of the kernel between inputs and anchors, of columns of variance 1
FLOOR = 1e-6  # of the noise variance, of outputs of variance 1
Law = type[LogNormal] | type[LogitNormal] | type[RootNormal]
LINKED: dict[type[Link], Law] = {Edge: LogNormal, Band: LogitNormal, Root: RootNormal}


class Hierarchy(Backbone):
    r"""What a row becomes under the prior of a new group: $z(x)$ and, last, the mean $\phi(x)^\top \hat w$.

    Where there are anchors U, d(x) comes between the two: what is added to the mean as long as no row is known
    (`metavib.groups.start`).

    Args:
        sizes: of the features.
        rank: length of z.
        anchors: number of U.

    Example:
        >>> import torch
        >>> from metavib.groups.features import Sizes
        >>> prior = Hierarchy(Sizes(1, 0, 1, 0, 0, 0), rank=2)  # a line that all share, a line of each
        >>> prior(Inputs(torch.zeros(5, 1, dtype=torch.float64), torch.ones(5, dtype=torch.bool), 0)).shape
        torch.Size([5, 3])
    """

    pointwise = True
    w: Tensor
    root: Tensor

    anchors: Tensor
    weights: Tensor
    share: Tensor

    def __init__(self, sizes: Sizes, rank: int, anchors: int = 0) -> None:
        super().__init__()
        self.phi = Features(sizes)
        self.features = rank + 1 + bool(anchors)
        if anchors:
            self.register_buffer("anchors", torch.zeros(anchors, sizes.columns, dtype=torch.float64))
            self.register_buffer("weights", torch.zeros(anchors, dtype=torch.float64))
            self.register_buffer("share", torch.ones((), dtype=torch.float64))
        shared, own = self.phi.widths
        self.register_buffer("w", torch.zeros(shared, dtype=torch.float64))
        self.register_buffer("root", torch.zeros(shared + own, rank, dtype=torch.float64))

    def forward(self, inputs: Inputs) -> Tensor:
        """z, d where there is one, and the mean at inputs `(..., p, d)`."""
        phi, psi = self.phi.shared(inputs.x), self.phi.own(inputs.x)
        parts, g = [torch.cat([phi, psi], -1) @ self.root], phi @ self.w
        if "anchors" in self._buffers:
            d = across(self.phi.columns(inputs.x), self.anchors) @ self.weights - (1 - self.share) * g
            parts.append(d.unsqueeze(-1))
        return torch.cat([*parts, g.unsqueeze(-1)], -1)


def across(x: Float[Tensor, "*b n d"], anchors: Float[Tensor, "k d"]) -> Float[Tensor, "*b n k"]:
    r"""A Gaussian kernel over all columns, $e^{-|x - u|^2 / 2 d \ell^2}$."""
    return torch.exp(-squared_distances(x, anchors) / (2 * x.shape[-1] * LENGTH**2))


def empty(
    sizes: Sizes, rank: int, link: Link | None = None, *, freedom: Tensor | None = None, anchors: int = 0
) -> Model:
    """A model of the shape that `hierarchical` makes, before anything is known."""
    kernel = Given(freedom, torch.ones((), dtype=torch.float64) if anchors else None)
    return gp_vib(Hierarchy(sizes, rank, anchors), kernel, ExactSites(), likelihood(1.0, link)).double()


def likelihood(noise: float, link: Link | None) -> Gaussian | Warped:
    """The noise of a group's outputs: Gaussian, as they are or in what a link makes of them."""
    noise = max(noise, 2 * FLOOR)
    if link is None:
        return Gaussian(noise, floor=FLOOR).double()
    found = LINKED[type(link)](noise, floor=FLOOR).double()
    for name, value in link._asdict().items():
        found.get_buffer(name).copy_(value)
    return found


def link_of(model: Model) -> Link | None:
    """What a model's outputs become, where that is not the outputs themselves."""
    found = model.likelihood
    if not isinstance(found, Warped):
        return None
    kind = next(kind for kind, law in LINKED.items() if isinstance(found, law))
    return kind(*(found.get_buffer(name) for name in kind._fields))


def like(state: Mapping[str, Tensor]) -> Model:
    """A model of the shape that the tensors of a saved one have, before these are loaded into it.

    Args:
        state: the tensors by name, as `state_dict` gives them.

    Raises:
        ValueError: they are of no hierarchical prior.

    Example:
        >>> from metavib.groups import like
        >>> from metavib.groups.features import Sizes
        >>> from metavib.groups.prior import empty
        >>> saved = empty(Sizes(1, 0, 1, 0, 0, 0), rank=2).state_dict()
        >>> model = like(saved)
        >>> model.load_state_dict(saved)
        <All keys matched successfully>
    """

    def shape(name: str, dimensions: int = 1) -> tuple[int, ...]:
        if name not in state or state[name].ndim != dimensions:
            raise ValueError(f"a hierarchical prior has {name} of {dimensions} dimension(s), which is not there")
        return tuple(state[name].shape)

    def indices(name: str) -> int:
        (count,) = shape(f"{BODY}phi.{name}")
        places = state[f"{BODY}phi.{name}"]
        if places.is_floating_point() or bool(((places < 0) | (places >= columns)).any()):
            raise ValueError(f"{name} names columns that are not among the {columns} of the table")
        return count

    (columns,) = shape(f"{BODY}phi.length")
    curved, varying, own_curved = (indices(name) for name in ("curved", "varying", "own_curved"))
    warped = indices("warped") if f"{BODY}phi.warped" in state else 0
    points, own_points = (shape(f"{BODY}phi.{name}", 2)[0] for name in ("points", "own_points"))
    bounded = f"{BODY}phi.ends" in state
    if bounded and shape(f"{BODY}phi.ends", 2) != (2, columns):
        raise ValueError(f"the ends of inputs are not two of each of the {columns} columns of the table")
    sizes = Sizes(columns, curved, varying, own_curved, points, own_points, warped, int(bounded))
    kinds = (kind for kind in LINKED if all(f"likelihood.{name}" in state for name in kind._fields))
    kind = next(kinds, None)
    link = None if kind is None else kind(*torch.ones(len(kind._fields), dtype=torch.float64))
    freedom = None
    if FREEDOM in state:
        if shape(FREEDOM) != (2,) or not bool((state[FREEDOM] > 2).all()):
            raise ValueError(f"{FREEDOM} is not two numbers above 2")
        freedom = torch.ones(2, dtype=torch.float64)
    anchors = 0
    if f"{BODY}anchors" in state:
        anchors, width = shape(f"{BODY}anchors", 2)
        if not anchors or width != columns or shape(f"{BODY}weights") != (anchors,):
            raise ValueError("what is predicted before the first row has no anchors, or is not of the table's columns")
        for name in (f"{BODY}share", START):
            shape(name, 0)
    return empty(sizes, shape(f"{BODY}root", 2)[1], link, freedom=freedom, anchors=anchors)


@torch.no_grad()
def hierarchical(
    features: Features,
    shared: Shared,
    own: Float[Tensor, "m q"],
    noise: float,
    sample: Float[Tensor, "rows d"],
    link: Link | None = None,
) -> Model:
    r"""GP-VIB under the prior of a new group.

    Args:
        features: $\phi$ and $\psi$.
        shared: the posterior of w.
        own: $\Sigma^{1/2}$.
        noise: variance of the outputs around a group's function.
        sample: inputs over which a direction must matter to be kept in z.
        link: what outputs become before they are Gaussian around the function, where that is not themselves.

    Example:
        A constant of 2 that all groups share, all but known, and a level and a line of each group.

        >>> import torch
        >>> from metavib.groups import hierarchical
        >>> from metavib.groups.evidence import Shared
        >>> from metavib.groups.features import Features, Sizes
        >>> from metavib.tasks import examples, task
        >>> x = torch.linspace(-1, 1, 5).double()[:, None]
        >>> known = Shared(torch.tensor([1.0, 0.0]).double(), 100 * torch.eye(2).double())
        >>> model = hierarchical(Features(Sizes(1, 0, 1, 0, 0, 0)), known, torch.eye(3).double(), 0.04, x)
        >>> def mean(n):  # at x = 0, after n rows with outputs of 3
        ...     rows = task(examples(x[:n], torch.full((n,), 3.0).double()), examples(x[2:3], torch.zeros(1).double()))
        ...     return round(model.likelihood.predict(model(rows))[0].item(), 1)
        >>> mean(0), mean(1), mean(5)
        (2.0, 2.8, 3.0)
    """
    L_phi = torch.linalg.solve_triangular(shared.L, features.shared(sample).mT, upper=False)  # (Phi V^1/2)^T
    z = torch.cat([L_phi.mT, features.own(sample) @ own], -1)
    values, vectors = torch.linalg.eigh(z.mT @ z / len(sample))
    kept = vectors[:, values > NEGLIGIBLE * noise]
    upper = torch.linalg.solve_triangular(shared.L.mT, kept[: len(shared.w)], upper=True)
    root = torch.cat([upper, own @ kept[len(shared.w) :]])
    model = empty(features.sizes, root.shape[1])
    backbone = _hierarchy(model)
    backbone.phi.load_state_dict(features.state_dict())
    backbone.w.copy_(shared.w)
    backbone.root.copy_(root)
    model.likelihood = likelihood(noise, link)
    return model.requires_grad_(False).eval()


@torch.no_grad()
def widened(model: Model, factor: float, freedom: tuple[float, float] | None = None, *, noise: float = 1.0) -> Model:
    """The same model with all variances, of functions and of the noise, larger by a factor: no function changes.

    Args:
        model: of a new group.
        factor: by which they are larger.
        freedom: degrees of freedom with which they are known, in a group and in a row (`metavib.kernels.Given`); as
            they were where None.
        noise: by which the noise alone is larger still, so that functions follow the rows less closely.
    """
    backbone, before = _hierarchy(model), model.likelihood.noise
    assert isinstance(before, Positive)
    backbone.root.mul_(factor**0.5)
    model.likelihood = likelihood(factor * noise * float(before()), link_of(model))
    kernel = model.prior.kernel
    assert isinstance(kernel, Given)
    if freedom is not None:
        model.prior.kernel = Given(torch.tensor(freedom, dtype=torch.float64), kernel.start)
    return model.requires_grad_(False).eval()


@torch.no_grad()
def started(
    model: Model, anchors: Float[Tensor, "k d"], weights: Float[Tensor, " k"], factor: float, share: float = 1.0
) -> Model:
    """The same model with something to add to the mean as long as no row is known.

    Args:
        model: of a new group.
        anchors: U, whose columns are as they enter.
        weights: of the kernel functions at U.
        factor: of the variance of a prediction then.
        share: of the mean that is kept then.
    """
    old, kernel = _hierarchy(model), model.prior.kernel
    assert isinstance(kernel, Given)
    found = empty(old.phi.sizes, old.root.shape[1], anchors=len(anchors))
    added = {"anchors": anchors, "weights": weights, "share": torch.tensor(share, dtype=torch.float64)}
    _hierarchy(found).load_state_dict({**old.state_dict(), **added})
    found.prior.kernel = Given(kernel.degrees, torch.tensor(factor, dtype=torch.float64))
    model.prior = found.prior
    return model.requires_grad_(False).eval()


@torch.no_grad()
def lifted(model: Model, lift: float) -> Model:
    """The same model, whose predicted outputs lie elsewhere between those at the function's median and the mean."""
    assert isinstance(model.likelihood, LogNormal)
    model.likelihood.lift.fill_(lift)
    return model


def columns_of(model: Model, x: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
    """Rows as they enter a model: the columns themselves, or their logarithms."""
    return _hierarchy(model).phi.columns(x)


def logarithms(model: Model) -> str:
    """Of what logarithms, square roots and logits are taken, in a sentence each; nothing where of none."""
    sizes, link = _hierarchy(model).phi.sizes, link_of(model)
    of = ["the outputs"] if isinstance(link, Edge) else []
    of += [f"{sizes.warped} of {sizes.columns} columns"] if sizes.warped else []
    said = [f"Logarithms are taken of {' and of '.join(of)}."] if of else []
    said += ["Square roots are taken of the outputs."] if isinstance(link, Root) else []
    said += ["Logits are taken of the outputs, which lie between 0 and 1."] if isinstance(link, Band) else []
    return " ".join(said)


def _hierarchy(model: Model) -> Hierarchy:
    assert isinstance(model.prior, FunctionPrior) and isinstance(model.prior.network.body, Hierarchy)
    return model.prior.network.body
