r"""The methods, as choices of prior, encoder and likelihood (THEORY.md, section 3).

| method          | Z               | encoder                     | prior          |
| --------------- | --------------- | --------------------------- | -------------- |
| MAML            | weights         | Dirac at theta + Delta      | none, beta = 0 |
| stochastic MAML | weights         | N(theta + Delta, diag(s))   | N(theta, diag(s)) |
| GP-VIB          | functions       | GP posterior from sites     | GP(0, k)       |
| GP+MAML         | weights, functions | Dirac times GP posterior | GP(0, k_psi)   |
| stochastic GP+MAML | weights, functions | Gaussian times GP posterior | N(theta, diag(s)), GP(0, k_psi) |
| Gaussian classes | class means    | exact Gaussian posterior    | N(0, sigma^2 / kappa) |
"""

from metavib.encoders import (
    ClassEncoder,
    ComposedEncoder,
    Descent,
    GaussianComposedEncoder,
    GaussianGradientEncoder,
    GPEncoder,
    GradientEncoder,
    SiteEncoder,
)
from metavib.kernels import ExplicitKernel, Kernel
from metavib.likelihoods import Likelihood, Softmax
from metavib.model import Model
from metavib.networks import Backbone
from metavib.networks.weights import Variances
from metavib.priors import FunctionPrior, WeightPrior


def gp_vib(backbone: Backbone, kernel: Kernel, sites: SiteEncoder, likelihood: Likelihood) -> Model:
    """GP-VIB, the paper's own method.

    Example:
        >>> import torch
        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> from metavib.tasks import examples, task
        >>> _ = torch.manual_seed(0)
        >>> parts = networks.MLP(1, (8,)), kernels.Linear(), encoders.ExactSites(), likelihoods.Gaussian(0.1)
        >>> model = methods.gp_vib(*parts)
        >>> support = examples([[0.0], [1.0]], [0.5, -0.5])
        >>> query = examples([[2.0]], [-1.0])
        >>> model(task(support, query)).mean.shape  # of one query point, one latent value
        torch.Size([1, 1])
    """
    return Model(FunctionPrior(backbone, kernel), GPEncoder(sites), likelihood)


def gaussian_classes(backbone: Backbone, kernel: ExplicitKernel, ways: int) -> Model:
    r"""Classes that are Gaussian in the space of a kernel's embeddings (THEORY.md, section 14): our own method.

    The classes of a task may have any numbers of points, and its predictions say what these are worth.

    Args:
        backbone: the network.
        kernel: makes embeddings of its features; one that brings all to the same length suits best.
        ways: classes of a task.

    Example:
        >>> import torch
        >>> from metavib import kernels, methods, networks
        >>> from metavib.tasks import examples, task
        >>> model = methods.gaussian_classes(networks.MLP(2, ()), kernels.Cosine(learn_scale=False), ways=2)
        >>> support = examples([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], [0, 0, 1])
        >>> f = model(task(support, examples([[1.0, 0.2]], [0]))).f
        >>> f.argmax(-1).tolist()
        [0]
    """
    return Model(FunctionPrior(backbone, kernel), ClassEncoder(), Softmax(ways))


def maml(backbone: Backbone, likelihood: Likelihood, *, descent: Descent) -> Model:
    """MAML (Finn et al. 2017): train with beta = 0.

    Example:
        >>> from metavib import encoders, likelihoods, methods, networks
        >>> descent = encoders.Descent(steps=5, rate=0.01)
        >>> methods.maml(networks.MLP(1, (40, 40)), likelihoods.Gaussian(), descent=descent).dirac  # hence beta = 0
        True
    """
    return Model(WeightPrior(backbone, likelihood.latents), GradientEncoder(descent), likelihood)


def stochastic_maml(
    backbone: Backbone,
    likelihood: Likelihood,
    *,
    descent: Descent,
    variance: float = 1e-4,
    separate_prior: float | None = None,
    samples: int = 1,
) -> Model:
    """Stochastic MAML: a Gaussian around MAML's weights.

    Args:
        backbone: the network up to its last hidden layer.
        likelihood: decides the number of outputs.
        descent: how Delta is made.
        variance: starting value of s, shared by prior and posterior.
        separate_prior: starting value of a variance of the prior's own; s is then the posterior's alone.
        samples: weights drawn a task and step.

    Example:
        >>> from metavib import encoders, likelihoods, methods, networks
        >>> descent = encoders.Descent(steps=5, rate=0.01)
        >>> methods.stochastic_maml(networks.MLP(1, (40, 40)), likelihoods.Gaussian(), descent=descent).dirac
        False
    """
    if separate_prior is None:
        prior = WeightPrior(backbone, likelihood.latents, variance=variance)
        return Model(prior, GaussianGradientEncoder(descent, samples=samples), likelihood)
    prior = WeightPrior(backbone, likelihood.latents, variance=separate_prior)
    own = Variances(prior.network, variance)
    return Model(prior, GaussianGradientEncoder(descent, samples=samples, variances=own), likelihood)


def gp_maml(
    backbone: Backbone,
    kernel: Kernel,
    sites: SiteEncoder,
    likelihood: Likelihood,
    *,
    descent: Descent,
    beta: float,
    mean: bool = False,
) -> Model:
    """GP+MAML: gradient steps for the features, as in MAML, and GP-VIB on top.

    Args:
        backbone: the network up to its last hidden layer.
        kernel: on its features.
        sites: how support points become sites.
        likelihood: p(y | f).
        descent: how the features' weights are adapted.
        beta: the weight of the KL in the inner objective.
        mean: whether inner steps ascend the bound of a point instead of that of the whole support.

    Example:
        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> parts = networks.MLP(1, (40, 40)), kernels.Linear(), encoders.ExactSites(), likelihoods.Gaussian(0.1)
        >>> model = methods.gp_maml(*parts, descent=encoders.Descent(steps=1, rate=0.01), beta=1.0)
        >>> type(model.encoder).__name__
        'ComposedEncoder'
    """
    encoder = ComposedEncoder(descent, GPEncoder(sites), beta=beta, mean=mean)
    return Model(FunctionPrior(backbone, kernel), encoder, likelihood)


def stochastic_gp_maml(
    backbone: Backbone,
    kernel: Kernel,
    sites: SiteEncoder,
    likelihood: Likelihood,
    *,
    descent: Descent,
    beta: float,
    beta_psi: float,
    variance: float = 1e-4,
    mean: bool = False,
    samples: int = 1,
) -> Model:
    r"""GP+MAML with a Gaussian over the features' weights, whose KL has a weight of its own (eq. 6a).

    Args:
        backbone: the network up to its last hidden layer.
        kernel: on its features.
        sites: how support points become sites.
        likelihood: p(y | f).
        descent: how the features' weights are adapted.
        beta: the weight of the functions' KL, in the inner objective and in the bound: train with the same beta.
        beta_psi: the weight of the weights' KL in that bound.
        variance: starting value of s, shared by prior and posterior.
        mean: whether inner steps ascend the bound of a point instead of that of the whole support.
        samples: weights drawn for each task.

    Example:
        >>> from metavib import encoders, kernels, likelihoods, methods, networks
        >>> parts = networks.MLP(1, (40, 40)), kernels.Linear(), encoders.ExactSites(), likelihoods.Gaussian(0.1)
        >>> descent = encoders.Descent(steps=1, rate=0.01)
        >>> model = methods.stochastic_gp_maml(*parts, descent=descent, beta=1.0, beta_psi=0.1)
        >>> type(model.encoder).__name__
        'GaussianComposedEncoder'
    """
    if beta_psi and not beta:
        raise ValueError(f"beta_psi = {beta_psi} is a part of the KL that beta weighs, and needs beta above 0; got 0.")
    composed = ComposedEncoder(descent, GPEncoder(sites), beta=beta, mean=mean)
    encoder = GaussianComposedEncoder(composed, samples=samples, charge=beta_psi / beta if beta_psi else 0.0)
    return Model(FunctionPrior(backbone, kernel, variance=variance), encoder, likelihood)
