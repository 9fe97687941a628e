r"""p(Z): a Gaussian process on deep features, or a distribution over network weights. Priors own $\theta$."""

from torch import Tensor, nn

from metavib.kernels import Kernel
from metavib.networks import Backbone
from metavib.networks.layers import Linear
from metavib.networks.norm import UNION, TaskNorm
from metavib.networks.weights import Network, Variances, Weights
from metavib.tasks.inputs import Inputs, Points, join, join_each
from metavib.tasks.task import Examples


class FunctionPrior(nn.Module):
    r"""$f \sim GP(m, k)$ with k, and the mean m where the kernel has one, on the features $\phi(x; \theta)$.

    Args:
        backbone: $\phi$.
        kernel: k.
        variance: starting value of s in the prior $\psi \sim N(\theta, \mathrm{diag}(s))$ over the network's weights,
            where a task has a distribution over these too; None where it has not.

    Example:
        >>> from metavib import kernels, networks, priors
        >>> from metavib.tasks import examples
        >>> from metavib.tasks.inputs import points
        >>> prior = priors.FunctionPrior(networks.MLP(2, (8,)), kernels.Linear())
        >>> support, query = examples([[0.0, 1.0]] * 5, [1.0] * 5), examples([[1.0, 1.0]] * 3, [0.0] * 3)
        >>> [tuple(phi.shape) for phi in prior.features(support, points(query))]
        [(5, 8), (3, 8)]
    """

    def __init__(self, backbone: Backbone, kernel: Kernel, *, variance: float | None = None) -> None:
        super().__init__()
        self.network = Network(backbone)
        self.kernel = kernel
        self.variances = None if variance is None else Variances(self.network, variance)

    def features(self, support: Examples, query: Points, weights: Weights | None = None) -> tuple[Tensor, Tensor]:
        r"""$\phi$ of the support `(..., n, m)` and of the query `(..., v, m)`, in one pass over all points of a task.

        Where the support's features depend on the query point (`each_point`), `(v, ..., n, m)` and `(v, ..., 1, m)`.

        Args:
            support: of each task.
            query: of each task.
            weights: stand in for $\theta$ where given, a set for each task.
        """
        inputs = (join_each if self.each_point else join)(support, query)
        phi = self.kernel.prepare(self.network(inputs, weights), inputs)
        if self.each_point:
            phi = phi.unflatten(-2, (inputs.sets, -1)).movedim(-3, 0)
        return phi[..., : inputs.n, :], phi[..., inputs.n :, :]

    @property
    def each_point(self) -> bool:
        """Whether the support has features of its own for each query point: `features` then lead with these."""
        return joins_each(self)

    def features_of(self, points: Points, weights: Weights | None = None) -> Tensor:
        r"""$\phi$ of some points by themselves; what `features` has for them where nothing is `mixing`."""
        inputs = Inputs(points.x, points.mask, 0)
        return self.kernel.prepare(self.network(inputs, weights), inputs)

    @property
    def mixing(self) -> str | None:
        """Why the features of a point depend on the other points of its task; None where they do not."""
        norms = [part.encoding for part in self.modules() if isinstance(part, TaskNorm) and not part.pointwise]
        if norms:
            return f"under batch-norm {norms[0]!r} the features of old points change with new ones"
        body: Backbone = self.network.body  # type: ignore[assignment]
        return None if body.pointwise else "the network's features of a point depend on the other points"


class WeightPrior(nn.Module):
    r"""$\psi \sim N(\theta, \mathrm{diag}(s))$ over all weights of a network that ends in c outputs.

    Args:
        backbone: the network up to its last hidden layer.
        outputs: c.
        variance: starting value of s; None where the encoder is a Dirac and no prior is needed.

    Example:
        >>> from metavib import networks, priors
        >>> prior = priors.WeightPrior(networks.MLP(1, (40, 40)), outputs=1, variance=1e-4)
        >>> sum(weights.numel() for weights in prior.network.theta().values())
        1761
    """

    def __init__(self, backbone: Backbone, outputs: int, *, variance: float | None = None) -> None:
        super().__init__()
        self.network = Network(Headed(backbone, outputs))
        self.variances = None if variance is None else Variances(self.network, variance)

    def inputs(self, support: Examples, query: Points) -> Inputs:
        """What the network must be shown to predict the query: the support too, unless it treats points one by one."""
        headed: Headed = self.network.body  # type: ignore[assignment]
        if headed.backbone.pointwise:
            return Inputs(query.x, query.mask, 0)
        return (join_each if joins_each(self) else join)(support, query)

    def decode(self, psi: Weights, inputs: Inputs) -> Tensor:
        r"""$f(x; \psi)$ at the query points, `(..., v, c)`."""
        f = self.network(inputs, psi).unflatten(-2, (inputs.sets, -1))
        return f[..., inputs.n :, :].flatten(-3, -2)


def joins_each(prior: nn.Module) -> bool:
    """Whether batch-norm takes each query point together with the support, and no other query point.

    Example:
        >>> from metavib import networks, priors
        >>> priors.joins_each(priors.WeightPrior(networks.MLP(1, (8,)), outputs=1))  # no batch-norm
        False
    """
    return any(isinstance(part, TaskNorm) and part.encoding == UNION for part in prior.modules())


class Headed(nn.Module):
    """A backbone with a linear layer to c outputs on top.

    Example:
        >>> from metavib import networks, priors
        >>> priors.Headed(networks.MLP(1, (40, 40)), outputs=5).head.weight.shape
        torch.Size([5, 40])
    """

    def __init__(self, backbone: Backbone, outputs: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = Linear(backbone.features, outputs)

    def forward(self, inputs: Inputs) -> Tensor:
        """Outputs `(..., p, c)`."""
        return self.head(self.backbone(inputs))
