r"""DKT (Patacchiola et al. 2020): deep kernel transfer, a GP regression on +1 / -1 labels for each class.

$$f_n \sim GP(c_n, a_n k), \qquad Y_{jn} = f_n(x_j) + \epsilon, \quad \epsilon \sim N(0, 0.1)$$

Not an instance of the bound (THEORY.md, section 10): network and hyperparameters maximise the log marginal likelihood
of the labels of support *and* query jointly (`evidence`), so that nothing in training is told apart as support. A new
task is predicted as GP-VIB predicts it: the posterior given its support, from sites m = Y - c and s = 0.1.

In DKT's code every class slot is a GP with hyperparameters of its own, although classes are dealt to slots at random.
Here they come in `slots` sets: as many as there are classes, as in their code, or 1, shared by all. Sharing makes one
factorisation serve all classes, makes predictions independent of how the classes are numbered, and allows other ways
at test. Tensors carry the slots in a dimension before points: embeddings `(..., slots, n, M)`, targets `(..., slots,
n, ways/slots)`.

References:
    Patacchiola, Turner, Crowley, O'Boyle, Storkey. Bayesian Meta-Learning for the Few-Shot Setting via Deep Kernels.
    arXiv 1910.05199.
"""

from math import log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from metavib.encoders.encoder import Encoder
from metavib.kernels import BNCosine, Cosine, ExplicitKernel, Linear
from metavib.likelihoods import ClassLikelihood, Likelihood, Softmax
from metavib.marginals import Marginals, Nodes, Normal
from metavib.model import Model
from metavib.networks import Backbone
from metavib.networks.layers import lift
from metavib.objective import Bound
from metavib.posteriors.functions import Dual, Primal, posterior
from metavib.posteriors.memory import Sites
from metavib.posteriors.posterior import Encoding, Posterior
from metavib.priors import FunctionPrior
from metavib.random import Noise
from metavib.tasks.inputs import Inputs, Points, points
from metavib.tasks.task import Examples, Task

GPYTORCH_START = log(2.0)
"""softplus(0), where GPyTorch starts an output scale and a variance."""


@final
class Slots(ExplicitKernel):
    """A kernel with a scale for each slot: $a_n k(x, x')$.

    DKT's linear kernel has two scales, an output scale and a variance, of which only the product matters: $a_n$.

    Args:
        kernel: k, with its own scale fixed.
        slots: how many there are.
        scale: where each $a_n$ starts.

    Example:
        >>> from metavib.baselines.dkt import Slots
        >>> from metavib.kernels import Linear
        >>> Slots(Linear(learn_scale=False), 5, scale=2.0).log_scale.shape
        torch.Size([5])
    """

    def __init__(self, kernel: ExplicitKernel, slots: int, *, scale: float) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"the starting scale of the kernel must be positive; got {scale}.")
        self.kernel = kernel
        self.log_scale = nn.Parameter(torch.full((slots,), scale).log())

    def prepare(self, phi: Tensor, inputs: Inputs) -> Tensor:
        """The embedding of k itself, before features are dealt to the slots: the same in all of them."""
        return self.kernel.embed(self.kernel.prepare(phi, inputs))

    def embed(self, phi: Tensor) -> Tensor:
        r"""$\sqrt{a_n}\, z$ for prepared features z, `(..., slots, n, M)`."""
        return phi * (lift(self.log_scale, 2) / 2).exp()


@final
class ClassProcesses(nn.Module):
    r"""The prior of DKT: $f_n \sim GP(c_n, a_n k)$ on deep features, one process for each class or one set for all.

    Args:
        backbone: $\phi$.
        kernel: k and the scales $a_n$.

    Example:
        >>> from metavib.baselines.dkt import ClassProcesses, Slots
        >>> from metavib.kernels import Linear
        >>> from metavib.networks import MLP
        >>> ClassProcesses(MLP(2, (4,)), Slots(Linear(learn_scale=False), 5, scale=1.0)).slots
        5
    """

    def __init__(self, backbone: Backbone, kernel: Slots) -> None:
        super().__init__()
        self.functions = FunctionPrior(backbone, kernel)
        self.mean = nn.Parameter(torch.zeros_like(kernel.log_scale))

    @property
    def kernel(self) -> Slots:
        """The kernel k with its scales."""
        kernel = self.functions.kernel
        assert isinstance(kernel, Slots)
        return kernel

    def features(self, support: Examples, query: Points) -> tuple[Tensor, Tensor]:
        """Embeddings under k of the support and of the query."""
        return self.functions.features(support, query)

    @property
    def slots(self) -> int:
        """How many sets of hyperparameters there are."""
        return self.mean.shape[-1]

    def each(self, z: Float[Tensor, "*b n M"]) -> Float[Tensor, "*b slots n M"]:
        """The same embeddings, repeated for every class slot."""
        return z.unsqueeze(-3).expand(*z.shape[:-2], self.slots, *z.shape[-2:])

    def slotted(self, targets: Float[Tensor, "*b n ways"]) -> Float[Tensor, "*b slots n each"]:
        """Targets with their columns dealt to the slots, in a dimension before the points."""
        return targets.unflatten(-1, (self.slots, -1)).movedim(-2, -3)

    def condition(
        self, phi: Float[Tensor, "*b n m"], data: Examples, likelihood: Likelihood, noise: float
    ) -> Dual | Primal:
        """The posterior of all slots given some examples."""
        Y = self.slotted(likelihood.targets(data.y).to(phi.dtype))
        mask = data.mask.unsqueeze(-2).expand(Y.shape[:-1])
        m = (Y - lift(self.mean, 2)).masked_fill(~mask.unsqueeze(-1), 0.0)
        s = torch.full_like(m[..., 0], noise).masked_fill(~mask, 1.0)
        return posterior(self.kernel, self.each(phi), mask, Sites(m, s))


@final
class SlotPosterior(Posterior):
    """The posterior of the processes: means and variances put back from slots to classes.

    Args:
        prior: the processes.
        centred: their posterior with the prior mean taken off.

    Example:
        >>> import torch
        >>> from metavib.baselines import dkt_linear
        >>> from metavib.networks import MLP
        >>> from metavib.tasks import examples, task
        >>> model = dkt_linear(MLP(2, (4,)), ways=3)
        >>> support, query = (examples(torch.randn(n, 2), torch.arange(n) % 3) for n in (6, 4))
        >>> mean, variance = model(task(support, query))
        >>> mean.shape, variance.shape
        (torch.Size([4, 3]), torch.Size([4, 3]))
    """

    def __init__(self, prior: ClassProcesses, centred: Dual | Primal) -> None:
        self.prior, self.centred = prior, centred

    def marginals(self, x: Float[Tensor, "*b v m"], noise: Noise = None) -> Normal:
        r"""$c_n + \mu_n$ and $v_n$ at features x."""
        q = self.centred.marginals(self.prior.each(x))
        mean = q.mean + lift(self.prior.mean, 2)
        return Normal(*(t.movedim(-3, -2).flatten(-2) for t in (mean, q.var)))

    def kl(self) -> Tensor:
        """KL from the posterior to the prior, summed over the classes."""
        return self.centred.kl().sum(-1)


@final
class RegressionEncoder(Encoder):
    """The exact posterior of the class regressions given the support, from sites $m = Y - c$ of one fixed variance.

    Args:
        noise: that variance.

    Example:
        >>> from metavib.baselines.dkt import RegressionEncoder
        >>> RegressionEncoder(noise=0.2).noise
        0.2
    """

    def __init__(self, *, noise: float = 0.1) -> None:
        super().__init__()
        if not noise > 0:
            raise ValueError(f"the noise variance must be positive; got {noise}.")
        self.noise = noise

    def forward(
        self, support: Examples, query: Points, prior: ClassProcesses, likelihood: Likelihood, noise: Noise = None
    ) -> Encoding:
        """The posterior over the classes' functions."""
        phi_t, phi_v = prior.features(support, query)
        return Encoding(SlotPosterior(prior, prior.condition(phi_t, support, likelihood, self.noise)), phi_v)


@final
class MeanSoftmax(ClassLikelihood):
    """Class probabilities as the softmax of the posterior means, whatever their variances: how DKT is calibrated.

    Args:
        classes: N, the ways of the task.

    Example:
        >>> import torch
        >>> from metavib.baselines.dkt import MeanSoftmax
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.zeros(1, 2), torch.full((1, 2), 9.0))
        >>> MeanSoftmax(2).predict(q)
        tensor([[0.5000, 0.5000]])
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = self.latents = classes
        self.softmax = Softmax(classes)

    def targets(self, y: Tensor) -> Tensor:
        """+1 in the column of a point's class, -1 in the others."""
        return self.softmax.targets(y)

    def nodes(self, q: Marginals, noise: Noise = None) -> Nodes:
        """One node, the mean of q: its variance does not count."""
        return Nodes(q.mean[None], q.mean.new_zeros(1))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$f_y - \log \sum_n e^{f_n}$."""
        return self.softmax.log_prob(f, y)

    def probabilities(self, f: Tensor) -> Tensor:
        """Softmax over the classes."""
        return self.softmax.probabilities(f)


def evidence(model: Model, task: Task, *, beta: float = 0.0, noise: Noise = None) -> Bound:
    r"""DKT's objective in the place of the bound: $\sum_n \log N(Y_n \mid c_n, a_n K + 0.1 I)$ over support and query.

    Args:
        model: made by `dkt`.
        task: one task or a batch of them.
        beta: must be 0: there is no encoding of the support alone, hence no KL to weigh. Here, as `noise` is, so that
            `evidence` can be called as `vib` is.
        noise: not used.

    Returns:
        `fit` and `value` the log marginal likelihood (eq. 29), `rate` zero, one number a task.

    Example:
        >>> import torch
        >>> from metavib import baselines, networks
        >>> from metavib.tasks import examples, task
        >>> model = baselines.dkt_cosine(networks.MLP(2, (8,)), ways=2)
        >>> pairs = examples(torch.randn(3, 4, 2), [[0, 0, 1, 1]] * 3)  # three tasks
        >>> baselines.evidence(model, task(pairs, pairs)).value.shape
        torch.Size([3])
    """
    if beta:
        raise ValueError(f"the marginal likelihood has no KL term to weigh; got beta = {beta}. Set beta = 0.")
    prior, encoder = model.prior, model.encoder
    if not isinstance(prior, ClassProcesses) or not isinstance(encoder, RegressionEncoder):
        raise TypeError(f"evidence is the objective of a DKT model; got an encoder {type(encoder).__name__}. Use vib.")
    phi = torch.cat(prior.features(task.support, points(task.query)), -2)
    axis = task.query.y.ndim - 1
    both = Examples(*(torch.cat([t, v], axis) for t, v in zip(task.support, task.query, strict=True)))
    log_evidence = prior.condition(phi, both, model.likelihood, encoder.noise).log_evidence().sum(-1)
    return Bound(log_evidence, torch.zeros_like(log_evidence), log_evidence)


def dkt(
    backbone: Backbone,
    ways: int,
    *,
    kernel: ExplicitKernel,
    scale: float = GPYTORCH_START,
    slots: int | None = None,
    noise: float = 0.1,
) -> Model:
    """DKT (Patacchiola et al. 2020): train with `evidence` in the place of `vib`.

    Args:
        backbone: the network.
        ways: classes of a task.
        kernel: an explicit kernel with its own scale fixed (`dkt_linear`, `dkt_cosine` and `dkt_bn_cosine` choose one).
        scale: starting value of each slot's scale.
        slots: sets of hyperparameters: one a class where None, as in DKT's code; 1 to share them.
        noise: variance of the regression's noise, fixed.
    """
    slots = ways if slots is None else slots
    if slots not in (1, ways):
        raise ValueError(f"slots must be 1 (shared by all classes) or ways = {ways} (one a class); got {slots}.")
    prior = ClassProcesses(backbone, Slots(kernel, slots, scale=scale))
    return Model(prior, RegressionEncoder(noise=noise), MeanSoftmax(ways))


def dkt_linear(backbone: Backbone, ways: int, *, slots: int | None = None, noise: float = 0.1) -> Model:
    r"""DKT with a linear kernel, which starts where DKT's does: $(\log 2)^2 \phi \cdot \phi'$.

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.dkt_linear(networks.Conv4(1, 28), ways=5)
        >>> type(model.encoder).__name__, model.dirac
        ('RegressionEncoder', False)
    """
    scale = GPYTORCH_START**2 * backbone.features  # metavib's linear kernel divides by M, theirs does not
    return dkt(backbone, ways, kernel=Linear(learn_scale=False), scale=scale, slots=slots, noise=noise)


def dkt_cosine(backbone: Backbone, ways: int, *, slots: int | None = None, noise: float = 0.1) -> Model:
    """DKT with the cosine kernel ("CosSim").

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.dkt_cosine(networks.Conv4(1, 28), ways=5)
        >>> type(model.encoder).__name__, model.dirac
        ('RegressionEncoder', False)
    """
    return dkt(backbone, ways, kernel=Cosine(learn_scale=False), slots=slots, noise=noise)


def dkt_bn_cosine(
    backbone: Backbone, ways: int, *, norm: str = "running", slots: int | None = None, noise: float = 0.1
) -> Model:
    """DKT with batch-norm before the cosine kernel ("BNCosSim").

    Example:
        >>> from metavib import baselines, networks
        >>> model = baselines.dkt_bn_cosine(networks.Conv4(1, 28), ways=5)
        >>> type(model.encoder).__name__, model.dirac
        ('RegressionEncoder', False)
    """
    return dkt(
        backbone, ways, kernel=BNCosine(backbone.features, norm=norm, learn_scale=False), slots=slots, noise=noise
    )
