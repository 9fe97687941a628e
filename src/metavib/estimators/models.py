"""The model behind an estimator: GP-VIB on a network that fits the inputs."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from metavib.likelihoods import Likelihood
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import MLP, Backbone, Conv4
from metavib.training import build
from metavib.training.config import ModelConfig

REACH = 2.0  # standardised inputs lie within about two standard deviations
SITES = {
    "gaussian": "exact",
    "student-t": "general",
    "poisson": "general",
    "bernoulli": "full",
    "softmax": "simplified",
}
WIDE = 100  # numbers in a row from which on it is an embedding: a network before has done the work
BACKBONES = ("auto", "hierarchical", "mlp", "identity", "conv4")


def build_model(
    event: tuple[int, ...],
    likelihood: Likelihood,
    *,
    name: str,
    backbone: Any,
    hidden: tuple[int, ...],
    kernel: str,
    seed: int,
) -> Model:
    """GP-VIB in float32, its weights drawn from a seed.

    Args:
        event: shape of an input: `(d,)`, or `(C, H, W)` for images.
        likelihood: p(y | f).
        name: of the likelihood, which decides the sites.
        backbone: one of `BACKBONES`, or a `Backbone` of one's own, which is copied.
        hidden: hidden units of the MLP.
        kernel: as in a config; auto for linear.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):  # PyTorch's initialisers draw from the global generator
        torch.manual_seed(seed)
        phi = _backbone(event, backbone, hidden)
        kernel = "linear" if kernel == "auto" else kernel
        options = ModelConfig(kernel=kernel, bias=True, learn_scale=True, sites=SITES[name])
        return gp_vib(phi, build.kernel(options, phi.features), build.sites(options, phi.features), likelihood).float()


def _backbone(event: tuple[int, ...], wanted: Any, hidden: tuple[int, ...]) -> Backbone:
    if isinstance(wanted, Backbone):
        return deepcopy(wanted)
    if isinstance(wanted, nn.Module):
        raise TypeError("a module of one's own becomes a backbone by metavib.networks.Pointwise(module, features=M).")
    if wanted not in BACKBONES:
        raise ValueError(f"backbone must be one of {', '.join(BACKBONES)}, or a metavib Backbone; got {wanted!r}.")
    images = len(event) == 3
    if wanted == "auto":
        wanted = "conv4" if images else "mlp"
    if (wanted == "conv4") != images or len(event) not in (1, 3):
        raise ValueError(
            f"rows (n, d) go with the backbones mlp and identity, images (n, C, H, W) with conv4; "
            f"got inputs (n, {', '.join(map(str, event))}) and backbone {wanted!r}."
        )
    if images:
        channels, height, width = event
        if height != width:
            raise ValueError(f"conv4 takes square images; got {height} x {width} pixels. Crop or resize them.")
        return Conv4(channels, height)
    return MLP(event[0], hidden if wanted == "mlp" else (), reach=REACH)
