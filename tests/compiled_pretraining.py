"""A short supervised stage, with a teacher, as written and on the fast path; prints how far apart they end.

A process of its own, since the checks of shapes that all other tests run under cannot be compiled. Called as
`python compiled_pretraining.py BACKEND DEVICE`.
"""

import json
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

import tiny
from metavib.data.labelled import Labelled, Splits
from metavib.files import read_tensors
from metavib.training import pretrain, run_folder
from metavib.training.engine import compile as engine
from metavib.training.fields import override

SMALL = {
    "widths": [4, 6, 6, 8],
    "sides": [16, 20],
    "batch": 8,
    "epochs": 3,
    "lr": 1e-3,  # at a large rate training is chaotic, and rounding grows to anything
    "episodes": 5,
    "dropout": 0.2,
    "precision": "float64",
    "tasks.ways": 3,
    "tasks.size": 20,
}


def colours(name: str, seed: int) -> Labelled:
    data = tiny.images(name, 6, size=28, seed=seed)
    return data._replace(images=data.images.repeat(1, 3, 1, 1))


def main(backend: str, device: str) -> None:
    """Prints a JSON object."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend=backend)  # type: ignore[assignment]
    config = override(pretrain.pretraining("cub"), SMALL | {"device": device})
    splits = Splits(*(colours(name, i) for i, name in enumerate(Splits._fields)))
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain, fast, teacher = (Path(place) / name for name in ("plain", "fast", "teacher.safetensors"))
        torch.manual_seed(0)
        network = pretrain.Network(pretrain.ResNet12(3, widths=config.widths))
        pretrain.save_backbone(teacher, config, network, step=0)
        config = override(config, {"teacher": str(teacher)})
        with patch.object(pretrain, "replayed", lambda step, device, streams: step):
            pretrain.pretrain(config, plain, quiet=True, splits=splits)
        with patch.dict(engine.WORTH, {device: 0}):
            pretrain.pretrain(config, fast, quiet=True, splits=splits)
        (one, _), (other, _) = (read_tensors(folder / run_folder.LAST) for folder in (plain, fast))
        losses = [[line["loss"] for line in run_folder.read_metrics(folder)] for folder in (plain, fast)]
    same = torch.equal(one.pop("stream"), other.pop("stream")) and one.keys() == other.keys()
    gaps = {
        "state": max(float(((a - other[k]).abs() / a.abs().max().clamp(min=1)).max()) for k, a in one.items()),
        "loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
    }
    failed = [str(w.message) for w in caught if "cannot be" in str(w.message)]
    print(json.dumps({"gaps": gaps, "same streams": same, "failed": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
