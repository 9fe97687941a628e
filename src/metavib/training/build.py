"""From a config to the model and the objective it describes."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from metavib import baselines, groups, methods
from metavib.encoders import Descent, ExactSites, FullSites, GeneralSites, SimplifiedSites, SiteEncoder
from metavib.kernels import RBF, BNCosine, Cosine, ExplicitKernel, Kernel, Linear, Matern32, Matern52
from metavib.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson, Softmax, StudentT
from metavib.model import Model
from metavib.networks import MLP, Backbone, Conv4, ResNet12, StridedConv4, repeats
from metavib.networks.embedded import Embedded
from metavib.networks.tuned import Tuned
from metavib.networks.weights import Network
from metavib.objective import Objective, predictive, vib
from metavib.training.config import AUTO, BOUND, CLASSES, HIERARCHICAL, TRANSFER, Config, ModelConfig
from metavib.training.engine import allocator
from metavib.training.resplit import OverSplits

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float64": torch.float64, "bf16": torch.float32}


def objective(config: Config) -> Objective:
    """What training maximises: the bound, its predictive form, or the marginal likelihood where the method is DKT."""
    if config.method == "dkt":
        return baselines.evidence
    of_a_split = predictive if config.train.objective == "predictive" else vib
    if config.train.splits == 1:
        return of_a_split
    return OverSplits(of_a_split, config.train.splits, config.tasks.min_shots)


def model(config: Config, *, weight_samples: int = 1) -> Model:
    """The model, its weights drawn from the config's seed; all repeats of it in one where there are several.

    Args:
        config: what to build.
        weight_samples: weights that stochastic MAML, or gp-maml with a Gaussian over weights, draws at every pass.
    """
    seeds = range(config.seed, config.seed + config.repeats)
    if config.repeats > 1:
        alone = [replace(config, repeats=1, seed=seed) for seed in seeds]
        return repeats.stack([model(one, weight_samples=weight_samples) for one in alone])
    with torch.random.fork_rng(devices=[]):  # PyTorch's initialisers draw from the global generator
        torch.manual_seed(config.seed)
        phi = backbone(config)
        if config.method == CLASSES:
            built = _classes(config, phi)
        else:
            built = _bound(config, phi, weight_samples) if config.method in BOUND else _baseline(config, phi)
        return in_precision(built, config.precision)


def like(config: Config, state: Mapping[str, Tensor]) -> Model:
    """The model of a config, of the shape that saved tensors have where the config does not decide it.

    Args:
        config: of the run that saved them.
        state: the tensors by name.
    """
    if config.method != HIERARCHICAL:
        return model(config)
    return groups.like_shares(state) if "likelihood.base" in state else groups.like(state)


def in_precision(built: Model, precision: str) -> Model:
    """The model with weights of a precision, and networks that compute in bfloat16 where that is asked for."""
    for module in built.modules():
        if isinstance(module, Network):
            module.bf16 = precision == "bf16"
    return built.to(DTYPES[precision])


def at_test(trained: Model, config: Config, *, inner_steps: int | None = None, ways: int | None = None) -> Model:
    """The same weights under test-time settings: inner steps, more draws of the weights, other ways, a new head.

    Args:
        trained: a model built from `config`.
        config: its own.
        inner_steps: of the gradient encoders; as in training where None.
        ways: classes of a task; as in training where None.
    """
    if config.method == HIERARCHICAL:
        return deepcopy(trained).eval()
    options, tasks = config.model, replace(config.tasks, ways=ways or config.tasks.ways)
    if inner_steps is not None:
        options = replace(options, inner_steps=inner_steps)
    tested = model(replace(config, model=options, tasks=tasks), weight_samples=config.test.weight_samples)
    tested.to(next(trained.parameters()).device)
    _take_weights(tested, trained, config, tasks.ways)
    if config.method in TRANSFER:
        sgd = baselines.SGD(epochs=options.head_epochs)
        tested = baselines.fine_tuned(tested, tasks.ways, sgd=sgd)
    return tested.eval()


def of_ways(trained: Model, config: Config, ways: int) -> Model:
    """The very weights of a model, which go on changing with it, for tasks of another number of classes."""
    other = model(replace(config, tasks=replace(config.tasks, ways=ways))).to(next(trained.parameters()).device)
    _take_weights(other, trained, config, ways, share=True)
    return other.eval()


def _take_weights(model: Model, trained: Model, config: Config, ways: int, *, share: bool = False) -> None:
    try:
        model.load_state_dict(trained.state_dict(), assign=share)
    except RuntimeError as error:
        raise ValueError(
            f"{config.method} has weights for {config.tasks.ways} ways and cannot be tested with {ways}."
        ) from error


def _bound(config: Config, phi: Backbone, weight_samples: int) -> Model:
    options, p_y = config.model, likelihood(config)
    descent = Descent(
        steps=options.inner_steps,
        rate=options.inner_rate,
        first_order=options.first_order,
        recompute=options.recompute,
        points=options.inner_points,
        shuffle=options.inner_shuffle,
    )
    if config.method == "maml":
        return methods.maml(phi, p_y, descent=descent)
    if config.method == "stochastic-maml":
        return methods.stochastic_maml(
            phi,
            p_y,
            descent=descent,
            variance=options.weight_variance,
            samples=weight_samples,
        )
    k, q = kernel(options, phi.features), sites(options, phi.features)
    if options.sites == "exact" and not isinstance(p_y, Gaussian):
        raise ValueError(
            f"model.sites = exact needs the gaussian likelihood; for {options.likelihood} take simplified or full"
            f"{', or general' * (p_y.latents == 1)}."
        )
    if options.sites == "general" and p_y.latents != 1:
        raise ValueError(f"model.sites = general encodes one latent value; {options.likelihood} has {p_y.latents}.")
    if config.method == "gp-vib":
        return methods.gp_vib(phi, k, q, p_y)
    inner: Any = {"descent": descent, "beta": config.train.beta, "mean": options.inner_mean}
    if config.train.beta_psi is None:
        return methods.gp_maml(phi, k, q, p_y, **inner)
    own: Any = {"beta_psi": config.train.beta_psi, "variance": options.weight_variance, "samples": weight_samples}
    return methods.stochastic_gp_maml(phi, k, q, p_y, **inner, **own)


def _classes(config: Config, phi: Backbone) -> Model:
    """A scale of embeddings would be one of their variance, which is learned."""
    space = kernel(replace(config.model, bias=False, learn_scale=False, scale=1.0), phi.features)
    if not isinstance(space, ExplicitKernel):
        raise ValueError(
            f"{CLASSES} lie in a space of features: model.kernel must be cosine, linear or bn-cosine; got "
            f"{config.model.kernel!r}."
        )
    if isinstance(space, Cosine):  # to which no gain of features makes a difference: its gradient is rounding alone
        for part in (each for each in phi.modules() if isinstance(each, Embedded)):
            part.log_gain.requires_grad_(False)
    return methods.gaussian_classes(phi, space, config.tasks.ways)


def _baseline(config: Config, phi: Backbone) -> Model:
    options, ways = config.model, config.tasks.ways
    if config.method == "proto-net":
        return baselines.proto_net(phi, ways)
    if config.method == "nearest-centroids":
        return baselines.nearest_centroids(phi, ways)
    if config.method == "logistic-regression":
        return baselines.logistic_regression(phi, ways)
    if config.method == "matching-net":
        context = baselines.FullContext(phi.features) if options.context else None
        return baselines.matching_net(phi, ways, context=context)
    if config.method == "relation-net":
        side = round((phi.features / options.width) ** 0.5)
        return baselines.relation_net(phi, ways, map_shape=(options.width, side, side), norm=options.norm)
    if config.method == "dkt":
        named = {
            "linear": lambda: baselines.dkt_linear(phi, ways),
            "cosine": lambda: baselines.dkt_cosine(phi, ways),
            "bn-cosine": lambda: baselines.dkt_bn_cosine(phi, ways, norm=options.norm),
        }
        return _choose("model.kernel", options.kernel, named)()
    if options.classes < 2:
        raise ValueError(f"{config.method} needs model.classes, the number of training classes; got {options.classes}.")
    make = baselines.feature_transfer if config.method == "feature-transfer" else baselines.baseline_pp
    return make(phi, options.classes)


def backbone(config: Config) -> Backbone:
    """The network that makes the features phi, as `model.backbone` names it."""
    options, tasks = config.model, config.tasks
    conv: Any = {"width": options.width, "norm": options.norm}
    named = {
        "mlp": lambda: MLP(tasks.inputs, options.widths, reach=options.reach, variance=options.start_variance),
        "conv4": lambda: Conv4(tasks.channels, tasks.size, extra=options.extra, poolings=options.poolings, **conv),
        "strided-conv4": lambda: StridedConv4(tasks.channels, extra=options.extra, **conv),
        "embedded": lambda: Embedded(tasks.inputs, options.widths, dropout=options.dropout),
        "resnet12": lambda: ResNet12(tasks.channels, norm=options.norm),
        "tuned": lambda: Tuned(tasks.channels, options.widths, view=options.view, mirror=options.mirror),
    }
    return _choose("model.backbone", options.backbone, named)()


def likelihood(config: Config) -> Likelihood:
    """p(y | f), as `model.likelihood` names it."""
    options = config.model
    gaussian = partial(Gaussian, options.noise, floor=options.noise_floor, learn=options.learn_noise)
    named = {
        "gaussian": gaussian,
        AUTO: gaussian,  # of a table whose file has not been looked at yet
        "student-t": lambda: StudentT(options.noise, floor=options.noise_floor),
        "poisson": Poisson,
        "bernoulli": Bernoulli,
        "softmax": lambda: Softmax(config.tasks.ways, samples=options.samples),
    }
    return _choose("model.likelihood", options.likelihood, named)()


def kernel(options: ModelConfig, features: int) -> Kernel:
    """The kernel on features of a given length, as `model.kernel` names it."""
    shared: Any = {"bias": options.bias, "learn_scale": options.learn_scale, "scale": options.scale}
    named = {
        "linear": lambda: Linear(**shared),
        "cosine": lambda: Cosine(**shared),
        "bn-cosine": lambda: BNCosine(features, norm=options.norm, **shared),
        "rbf": lambda: RBF(**shared),
        "matern32": lambda: Matern32(**shared),
        "matern52": lambda: Matern52(**shared),
    }
    return _choose("model.kernel", options.kernel, named)()


def sites(options: ModelConfig, features: int) -> SiteEncoder:
    """How support points become sites, as `model.sites` names it."""
    start = {"m": options.site_m, "s": options.site_s}
    named = {
        "exact": ExactSites,
        "simplified": lambda: SimplifiedSites(**start),
        "full": lambda: FullSites(features, **start),
        "general": lambda: GeneralSites(features),
    }
    return _choose("model.sites", options.sites, named)()


def set_torch(config: Config) -> None:
    """PyTorch's settings for the whole process, as a program that runs one config has them."""
    allocator.keep_freed_memory()
    if config.device == "cpu" and config.threads:
        torch.set_num_threads(config.threads)
    torch.backends.cudnn.benchmark = True  # shapes never change, so the fastest algorithm is worth finding
    torch.backends.cudnn.allow_tf32 = config.precision == "tf32"  # convolutions only: the GP algebra stays float32


def _choose(option: str, name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}; got {name!r}.")
    return known[name]
