"""A network of somebody else's, by the name of the Python function that builds it (`imported`)."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from metavib.networks.backbone import Pointwise
from metavib.networks.weights import Network

NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_name(text: str) -> bool:
    """Whether a text is the name of a function in a module, `package.module:function`."""
    return NAME.fullmatch(text) is not None


def imported(name: str, weights: Path | None = None) -> nn.Module:
    """The module that a function returns, with weights from a file if there is one.

    The function takes no arguments; any class without required arguments is such a function too. Its code runs as it
    would on `import`: name only what you trust. Modules in the working directory are found.

    Args:
        name: `package.module:function`.
        weights: a safetensors file with exactly the module's tensors, by their names.

    Example:
        >>> from metavib.networks.imported import imported
        >>> imported("torch.nn:Flatten")
        Flatten(start_dim=1, end_dim=-1)
    """
    module = _function(name)()
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name} must return a torch.nn.Module; it returned {type(module).__name__}.")
    if weights is not None:
        _load(module, weights)
    return module


def embedding(name: str, weights: Path | None = None, *, channels: int = 3, size: int = 84) -> Network:
    """The same as a network from pictures to features, whose number is found by showing it a black picture.

    Args:
        name: `package.module:function`.
        weights: a safetensors file.
        channels: of the pictures.
        size: the side of the pictures, in pixels.

    Example:
        >>> from metavib.networks.imported import embedding
        >>> embedding("torch.nn:Flatten", channels=1, size=8).body.features
        64
    """
    module, picture = imported(name, weights).eval(), torch.zeros(1, channels, size, size)
    try:
        with torch.no_grad():
            features = module(picture)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"{name} cannot look at a picture {tuple(picture.shape)}: {error}. Say the side it wants with --size."
        ) from error
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != 1:
        found = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        raise ValueError(
            f"{name} must turn pictures (n, {channels}, {size}, {size}) into features (n, M); got {found}."
        )
    return Network(Pointwise(module, features.shape[-1]))


def _function(name: str) -> Callable[[], object]:
    if not is_name(name):
        raise ValueError(f"expected the name of a function, package.module:function; got {name!r}.")
    place, _, path = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:  # as `python -m` has it
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{name}: there is no module {error.name!r}, neither installed nor in {Path.cwd()}."
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{name}: {place} has no {path}.")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is no function: it must return the network when it is called without arguments.")
    return found


def _load(module: nn.Module, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"there is no file of weights {path}.")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no safetensors file ({error}); write one with safetensors.torch.save_file."
        ) from error
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:  # it names every tensor that is missing, left over, or of another shape
        raise ValueError(f"{path} does not hold the weights of this network. {error}") from error
