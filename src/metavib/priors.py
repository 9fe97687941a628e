r"""p(Z): a Gaussian process on deep features, or a distribution over network weights. Priors own $\theta$."""

from torch import Tensor, nn

from metavib.kernels import Kernel
from metavib.networks import Backbone
from metavib.networks.layers import Linear
from metavib.networks.norm import TaskNorm
from metavib.networks.weights import Network, Variances, Weights
from metavib.tasks.inputs import Inputs, Points, join
from metavib.tasks.task import Examples


class FunctionPrior(nn.Module):
    r"""$f \sim GP(0, k)$ with k on the features $\phi(x; \theta)$.

    Args:
        backbone: $\phi$.
        kernel: k.
    """

    def __init__(self, backbone: Backbone, kernel: Kernel) -> None:
        super().__init__()
        self.network = Network(backbone)
        self.kernel = kernel

    def features(self, support: Examples, query: Points, weights: Weights | None = None) -> tuple[Tensor, Tensor]:
        r"""$\phi$ of the support and of the query, in one pass over all points of each task.

        `weights` stand in for $\theta$ where given, a set a task.
        """
        inputs = join(support, query)
        phi = self.kernel.prepare(self.network(inputs, weights), inputs)
        return phi[..., : inputs.n, :], phi[..., inputs.n :, :]

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
    """

    def __init__(self, backbone: Backbone, outputs: int, *, variance: float | None = None) -> None:
        super().__init__()
        self.network = Network(Headed(backbone, outputs))
        self.variances = None if variance is None else Variances(self.network, variance)

    def inputs(self, support: Examples, query: Points) -> Inputs:
        """What the network must be shown to predict the query: the support too, unless it treats points one by one."""
        headed: Headed = self.network.body  # type: ignore[assignment]
        return Inputs(query.x, query.mask, 0) if headed.backbone.pointwise else join(support, query)

    def decode(self, psi: Weights, inputs: Inputs) -> Tensor:
        r"""$f(x; \psi)$ at the query points, `(..., v, c)`."""
        return self.network(inputs, psi)[..., inputs.n :, :]


class Headed(nn.Module):
    """A backbone with a linear layer to c outputs on top."""

    def __init__(self, backbone: Backbone, outputs: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = Linear(backbone.features, outputs)

    def forward(self, inputs: Inputs) -> Tensor:
        """Outputs `(..., p, c)`."""
        return self.head(self.backbone(inputs))
