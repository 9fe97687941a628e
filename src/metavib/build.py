"""From a config to what it describes: task source and model."""

from dataclasses import replace

import torch

from metavib import methods, repeats
from metavib.backbones import MLP
from metavib.config import Config, ModelConfig, TasksConfig
from metavib.encoders import Descent, ExactSites, FullSites, GeneralSites, SimplifiedSites, SiteEncoder
from metavib.kernels import RBF, BNCosine, Cosine, Kernel, Linear, Matern32, Matern52
from metavib.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson, StudentT
from metavib.model import Model
from metavib.tasks.gaussian import GaussianTasks
from metavib.tasks.sinusoid import Sinusoids
from metavib.tasks.source import TaskSource

DTYPES = {"float32": torch.float32, "float64": torch.float64, "tf32": torch.float32, "bf16": torch.float32}


def source(tasks: TasksConfig) -> TaskSource:
    """The distribution tasks are drawn from."""
    sizes = {"shots": tasks.shots, "queries": tasks.queries, "min_shots": tasks.min_shots}
    if tasks.name == "sinusoid":
        return Sinusoids(**sizes)  # type: ignore[arg-type]
    if tasks.name == "gaussian":
        return GaussianTasks(kernel=tasks.kernel, lengthscale=tasks.lengthscale, noise=tasks.noise, **sizes)  # type: ignore[arg-type]
    raise ValueError(f"tasks.name must be sinusoid or gaussian; got {tasks.name!r}.")


def model(config: Config) -> Model:
    """The model, its weights drawn from the config's seed; all repeats of it in one where there are several."""
    seeds = range(config.seed, config.seed + config.repeats)
    if config.repeats > 1:
        return repeats.stack([model(replace(config, repeats=1, seed=seed)) for seed in seeds])
    with torch.random.fork_rng(devices=[]):  # PyTorch's initialisers draw from the global generator
        torch.manual_seed(config.seed)
        return _model(config).to(DTYPES[config.precision])


def _model(config: Config) -> Model:
    options = config.model
    backbone, p_y = MLP(1, options.widths, reach=options.reach), likelihood(options)
    if config.method == "maml":
        return methods.maml(backbone, p_y, descent=descent(options))
    if config.method == "stochastic-maml":
        return methods.stochastic_maml(
            backbone,
            p_y,
            descent=descent(options),
            variance=options.weight_variance,
            separate_prior=options.prior_variance,
            samples=options.weight_samples,
        )
    k, q = kernel(options, backbone.features), sites(options, backbone.features)
    if config.method == "gp-vib":
        return methods.gp_vib(backbone, k, q, p_y)
    return methods.gp_maml(backbone, k, q, p_y, descent=descent(options), beta=config.train.beta)


def descent(options: ModelConfig) -> Descent:
    """The gradient encoders' descent."""
    return Descent(steps=options.inner_steps, rate=options.inner_rate, first_order=options.first_order)


def likelihood(options: ModelConfig) -> Likelihood:
    """p(y | f)."""
    named = {
        "gaussian": lambda: Gaussian(options.noise, floor=options.noise_floor, learn=options.learn_noise),
        "student-t": lambda: StudentT(options.noise, floor=options.noise_floor),
        "poisson": Poisson,
        "bernoulli": Bernoulli,
    }
    return _choose("model.likelihood", options.likelihood, named)()  # type: ignore[operator]


def kernel(options: ModelConfig, features: int) -> Kernel:
    """k on features of a given length."""
    named = {"linear": Linear, "cosine": Cosine, "rbf": RBF, "matern32": Matern32, "matern52": Matern52}
    if options.kernel == "bn-cosine":
        return BNCosine(features, bias=options.bias, learn_scale=options.learn_scale)
    kind = _choose("model.kernel", options.kernel, {**named, "bn-cosine": BNCosine})
    return kind(bias=options.bias, learn_scale=options.learn_scale)  # type: ignore[operator]


def sites(options: ModelConfig, features: int) -> SiteEncoder:
    """How support points become sites."""
    start = {"m": options.site_m, "s": options.site_s}
    named = {
        "exact": ExactSites,
        "simplified": lambda: SimplifiedSites(**start),
        "full": lambda: FullSites(features, **start),
        "general": lambda: GeneralSites(features),
    }
    return _choose("model.sites", options.sites, named)()  # type: ignore[operator]


def _choose(option: str, name: str, known: dict[str, object]) -> object:
    if name not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}; got {name!r}.")
    return known[name]
