"""A training's whole state in one file, written atomically: weights, optimiser, random streams, step."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from metavib.files import read_tensors, write_tensors
from metavib.model import Model
from metavib.training import build
from metavib.training.config import Config, from_saved
from metavib.training.fields import to_dict
from metavib.training.temperature import PLAIN, Temperature

FORMAT = "metavib-checkpoint-2"
BEFORE = "metavib-checkpoint-1"  # the variance s of simplified sites was 0.001 + softplus(a), and is softplus(a) now
SLOPE, LIKENESS, SEEN = "slope", "likeness", "seen"  # of a temperature, among its values at numbers of shots
MOMENTS = {"step": False, "exp_avg": True, "exp_avg_sq": True}  # of Adam: whether one has the parameter's shape


class Checkpoint(NamedTuple):
    """What a checkpoint file holds: the config, the step, the best validation score so far, and tensors by name.

    Example:
        >>> import torch
        >>> from metavib.training.checkpoint import Checkpoint
        >>> from metavib.training.config import Config
        >>> saved = Checkpoint(Config(), 100, 0.9, {"model/weight": torch.zeros(2), "streams/noise": torch.zeros(3)})
        >>> list(saved.part("model"))
        ['weight']
    """

    config: Config
    step: int
    best: float
    tensors: dict[str, Tensor]
    temperature: Temperature = PLAIN

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of one part: model, optimiser or streams."""
        return {key.removeprefix(f"{name}/"): t for key, t in self.tensors.items() if key.startswith(f"{name}/")}


def save(
    path: Path,
    config: Config,
    step: int,
    best: float,
    model: Model,
    optimiser: Optimizer | None = None,
    streams: Mapping[str, Generator] | None = None,
    *,
    temperature: Temperature = PLAIN,
) -> None:
    """Writes the state after `step` steps: all of it, or the model's alone; and the temperature of its predictions."""
    tensors = {f"model/{name}": t for name, t in model.state_dict().items()}
    for index, state in (optimiser.state_dict()["state"] if optimiser else {}).items():
        tensors |= {f"optimiser/{index}/{key}": t for key, t in state.items()}
    tensors |= {f"streams/{name}": stream.get_state() for name, stream in (streams or {}).items()}
    write_tensors(path, tensors, header(config, step, best, temperature))


def header(config: Config, step: int, best: float, temperature: Temperature) -> dict[str, str]:
    """What stands beside the tensors of a checkpoint."""
    found = {"format": FORMAT, "step": str(step), "best": repr(best), "config": json.dumps(to_dict(config))}
    known: dict[str, Any] = dict(zip(map(str, temperature.shots), temperature.values, strict=True))
    known |= {SLOPE: temperature.slope} if temperature.slope else {}
    known |= {LIKENESS: temperature.likeness, SEEN: temperature.seen} if temperature.likeness else {}
    return found if temperature.plain else found | {"temperature": json.dumps(known)}


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint; anything else is refused with a message that names the file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}: is that folder a run, and has it saved once?")
    tensors, metadata = read_tensors(path)
    if metadata.get("format") == BEFORE:
        tensors = _of_today(tensors)
    elif metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no checkpoint of this version of metavib: expected format {FORMAT!r}, "
            f"got {metadata.get('format')!r}."
        )
    try:
        return described(tensors, metadata)
    except (KeyError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} has a damaged header: {error}") from error


def described(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> Checkpoint:
    """The checkpoint of some tensors, of which `header` has written the rest."""
    config = from_saved(json.loads(metadata["config"]))
    known = json.loads(metadata.get("temperature", "{}"))
    slope = tuple(map(float, known.pop(SLOPE, ())))
    likeness = tuple((float(b), float(c)) for b, c in known.pop(LIKENESS, ()))
    low, high = map(float, known.pop(SEEN, PLAIN.seen))
    at = {int(shots): float(value) for shots, value in known.items()}
    temperature = Temperature(tuple(at), tuple(at.values()), slope, likeness, (low, high)) if at else PLAIN
    return Checkpoint(config, int(metadata["step"]), float(metadata["best"]), tensors, temperature)


def _of_today(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of an older checkpoint, such that its model predicts as it did.

    Sites with a network of their own for s, full and general ones, come out 0.001 smaller than they were.
    """

    def shifted(a: Tensor) -> Tensor:
        s = 1e-3 + torch.nn.functional.softplus(a.double())
        return (s + torch.log(-torch.expm1(-s))).to(a.dtype)  # the inverse of softplus

    return {name: shifted(t) if name.endswith("sites.s.raw") else t for name, t in tensors.items()}


def restore_model(checkpoint: Checkpoint, config: Config | None = None) -> Model:
    """The model of a checkpoint, rebuilt from its config (or one that differs in what holds no weights)."""
    config, state = config or checkpoint.config, checkpoint.part("model")
    return filled(lambda: build.like(config, state), state)


def filled(make: Callable[[], Model], state: dict[str, Tensor], *, what: str = "checkpoint") -> Model:
    """A model with saved tensors in it, which are refused where they are not those of such a model.

    Args:
        make: a new model.
        state: the tensors by name.
        what: they come from, for messages.
    """
    try:
        with torch.device("meta"):  # shapes alone: a config that asks for more memory than the file holds is refused
            wanted = make().state_dict()
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"the {what}'s config describes no model: {error}") from error
    problems = [f"lacks {name}" for name in wanted.keys() - state.keys()]
    problems += [f"has a foreign {name}" for name in state.keys() - wanted.keys()]
    problems += [
        f"has {name} of shape {tuple(state[name].shape)}, not {tuple(wanted[name].shape)}"
        for name in wanted.keys() & state.keys()
        if state[name].shape != wanted[name].shape
    ]
    problems += [
        f"has {name} of type {state[name].dtype}"
        for name in wanted.keys() & state.keys()
        if state[name].is_floating_point() != wanted[name].is_floating_point() or state[name].is_complex()
    ]
    if problems:
        raise ValueError(f"the {what} does not fit its own config: it {'; '.join(sorted(problems)[:3])}.")
    model = make()
    model.load_state_dict(state)
    return model


def restore_training(checkpoint: Checkpoint, optimiser: Optimizer, streams: dict[str, Generator]) -> None:
    """Puts optimiser and random streams back as they were; a checkpoint of the model alone is refused."""
    moments: dict[int, dict[str, Tensor]] = {}
    for key, t in checkpoint.part("optimiser").items():
        index, _, name = key.partition("/")
        moments.setdefault(int(index) if index.isdecimal() else -1, {})[name] = t
    states = checkpoint.part("streams")
    if not moments or states.keys() != streams.keys():
        raise ValueError("the checkpoint holds no whole training state (optimiser, random streams) to go on from.")
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for place, state in moments.items():
        fits = 0 <= place < len(parameters) and state.keys() == MOMENTS.keys()
        if not fits or any(t.shape != (parameters[place].shape if MOMENTS[k] else ()) for k, t in state.items()):
            raise ValueError(f"the checkpoint's optimiser state {place} does not fit the model.")
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    for name, stream in streams.items():
        try:
            stream.set_state(states[name].to(torch.uint8))
        except RuntimeError as error:
            raise ValueError(f"the checkpoint's random stream {name!r} is damaged: {error}") from error
