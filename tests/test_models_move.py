"""Models move: trained on another device or in another precision, and used here to the same predictions."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from metavib.adapt.learner import Learner
from metavib.adapt.predictor import Predictor
from metavib.adapt.trained import fingerprint
from metavib.files import read_json, read_tensors, write_tensors
from metavib.likelihoods.prediction import ClassPrediction
from metavib.networks import repeats
from metavib.training import build, checkpoint, protocols, run_folder
from metavib.training import loop as train
from metavib.training.config import Config
from metavib.training.fields import override, to_dict
from metavib.training.protocols import experiment
from metavib.training.protocols.classification import Classification
from program import metavib

CONFIGS: dict[str, Config] = {
    "sines": tiny.sinusoid(),
    "cosine": tiny.sinusoid(model__kernel="cosine", model__bias=True),
    "repeats": tiny.sinusoid(repeats=2),
    "maml": tiny.sinusoid("maml"),
    "rbf": tiny.sinusoid(model__kernel="rbf"),
    "images": tiny.glyphs(),
    "proto-net": tiny.glyphs("proto-net"),
}
MEMORISED = ("sines", "cosine", "repeats", "images")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind, trained in float32."""
    root, patch = tmp_path_factory.mktemp("runs"), pytest.MonkeyPatch()
    patch.setattr(train, "experiment", world)
    for name, config in CONFIGS.items():
        train.train(config, root / name, quiet=True)
    patch.undo()
    return root


def world(config: Config):
    return Classification(config, tiny.splits()) if config.tasks.name == "glyphs" else experiment(config)


def data(name: str):
    """Support and query inputs of a new task."""
    if CONFIGS[name].tasks.name == "glyphs":
        pictures = tiny.images("new", 3, 4, seed=9)
        x = pictures.images
        return (x[::2], [f"class {c}" for c in pictures.labels[::2].tolist()]), x[1::2]
    x = torch.linspace(-4, 4, 12).unsqueeze(-1)
    return (x, x.squeeze(-1).sin()), x[::3] + 0.1


def numbers(task: Predictor, x) -> torch.Tensor:
    found = task.predict(x)
    return found.probabilities if isinstance(found, ClassPrediction) else torch.stack([found.mean, found.variance], -1)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_saved_in_float32_predicts_the_same_in_float64(runs, name):
    support, x = data(name)
    single, double = (Learner.from_run(runs / name, precision=p) for p in ("float32", "float64"))
    assert (single.trained.dtype, double.trained.dtype) == (torch.float32, torch.float64)
    a, b = (numbers(learner.adapt(support), x) for learner in (single, double))
    assert a.dtype == b.dtype == torch.float64 and torch.allclose(a, b, rtol=1e-3, atol=1e-4)
    assert not torch.equal(a, b)  # it did compute in another precision


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_the_same_one_in_either_precision_and_after_another_saving(runs, tmp_path, name):
    """The fingerprint depends on the weights as float32: not on precision, nor on the file they came from."""
    single, double = (Learner.from_run(runs / name, precision=p) for p in ("float32", "float64"))
    assert single.fingerprint == double.fingerprint
    saved = run_folder.chosen(runs / name)
    checkpoint.save(tmp_path / run_folder.LAST, override(saved.config, {"train.select": "last"}), 1, 0.0,
                    checkpoint.restore_model(saved).double())  # fmt: skip
    assert Learner.from_run(tmp_path).fingerprint == single.fingerprint
    assert Learner.from_run(runs / ("maml" if name != "maml" else "sines")).fingerprint != single.fingerprint


@pytest.mark.parametrize("name", MEMORISED)
@pytest.mark.parametrize("order", [("float32", "float64"), ("float64", "float32")])
def test_a_state_made_in_one_precision_goes_on_in_the_other(runs, tmp_path, name, order):
    """Saved by one, loaded by the other: the same numbers to its precision, and it learns on there."""
    (inputs, outputs), x = data(name)
    here, there = (Learner.from_run(runs / name, precision=p) for p in order)
    task = here.adapt((inputs[1:], outputs[1:]))
    task.save(tmp_path / "t.safetensors")
    moved = there.load(tmp_path / "t.safetensors")
    assert torch.allclose(numbers(moved, x), numbers(task, x), rtol=1e-3, atol=1e-4)
    last = (inputs[:1], outputs[:1])
    assert torch.allclose(numbers(moved.update(last), x), numbers(task.update(last), x), rtol=1e-3, atol=1e-4)


def narrowed(source: Path, target: Path, dtype: torch.dtype) -> None:
    """The checkpoint as a run whose weights are of a narrower type would save it."""
    for name in (run_folder.LAST, run_folder.BEST):
        if (source / name).exists():
            tensors, header = read_tensors(source / name)
            narrow = {
                k: t.to(dtype) if k.startswith("model/") and t.is_floating_point() else t for k, t in tensors.items()
            }
            write_tensors(target / name, narrow, header)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CONFIGS)
def test_weights_in_half_precision_load_into_float32(runs, tmp_path, name, dtype):
    """Nothing but the rounding of the weights is lost: the model is the one whose weights were rounded by hand."""
    narrowed(runs / name, tmp_path, dtype)
    raw = (tmp_path / run_folder.LAST).read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    types = {v["dtype"] for k, v in header.items() if k.startswith("model/") and "batches" not in k}
    assert {"BF16", "F16"} & types
    support, x = data(name)
    learner = Learner.from_run(tmp_path)
    assert learner.trained.dtype == torch.float32
    rounded = checkpoint.restore_model(run_folder.chosen(runs / name))
    rounded.load_state_dict({k: t.to(dtype).to(t.dtype) for k, t in rounded.state_dict().items()})
    by_hand = build.at_test(rounded, CONFIGS[name])
    if CONFIGS[name].repeats > 1:
        by_hand = repeats.unstack(by_hand, 0)
    hand = Learner(by_hand, preparation=learner.preparation)
    assert torch.equal(numbers(learner.adapt(support), x), numbers(hand.adapt(support), x))
    assert (
        learner.fingerprint
        == Learner(by_hand).fingerprint
        == Learner.from_run(tmp_path, precision="float64").fingerprint
    )
    assert learner.fingerprint != Learner.from_run(runs / name).fingerprint  # rounded weights are other weights


def test_a_learner_in_bfloat16_knows_itself_in_float32(runs):
    """The definition covers narrower types too: all of them are numbers of float32."""
    model = build.at_test(checkpoint.restore_model(run_folder.chosen(runs / "sines")), CONFIGS["sines"]).bfloat16()
    assert fingerprint(model) == fingerprint(model.float()) == fingerprint(model.double())


# Runs of a machine with a GPU


def from_gpu(source: Path, target: Path, precision: str = "tf32") -> None:
    """The run as a GPU machine would have left it: its config says cuda, in every file."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            tensors, header = read_tensors(path)
            config = json.loads(header["config"]) | {"device": "cuda", "precision": precision}
            write_tensors(target / path.name, tensors, header | {"config": json.dumps(config)})
        elif path.name == "config.json":
            (target / path.name).write_text(json.dumps(read_json(path) | {"device": "cuda", "precision": precision}))
        else:
            (target / path.name).write_bytes(path.read_bytes())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_of_a_gpu_is_used_on_a_cpu(runs, tmp_path, name):
    from_gpu(runs / name, tmp_path / "run")
    learner, here = Learner.from_run(tmp_path / "run"), Learner.from_run(runs / name)
    assert learner.device.type == "cpu" and run_folder.chosen(tmp_path / "run").config.device == "cuda"
    support, x = data(name)
    assert torch.equal(numbers(learner.adapt(support), x), numbers(here.adapt(support), x))
    assert learner.fingerprint == here.fingerprint
    assert next(run_folder.selected(tmp_path / "run").parameters()).device.type == "cpu"


@pytest.mark.parametrize("name", ["sines", "repeats", "images"])
def test_a_run_of_a_gpu_is_evaluated_and_shown_on_a_cpu(runs, tmp_path, monkeypatch, name):
    """As if it had been trained here: the same numbers, whatever its config says of devices."""
    monkeypatch.setattr(protocols, "experiment", world)
    from_gpu(runs / name, tmp_path / "run")

    def said(*arguments: str):
        ended = metavib(*arguments, "--json")
        assert ended.err == ""
        return json.loads(ended.out)

    here, moved = (said("evaluate", str(folder)) for folder in (runs / name, tmp_path / "run"))
    assert here == moved and here["rows"]
    assert said("show", str(tmp_path / "run"))["config"] == to_dict(CONFIGS[name]) | {
        "device": "cuda",
        "precision": "tf32",
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_training_on_a_gpu_that_is_not_there_is_refused_and_the_run_stays(runs, tmp_path):
    from_gpu(runs / "sines", tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    config = checkpoint.load(tmp_path / "run" / run_folder.LAST).config
    with pytest.raises(ValueError, match="PyTorch sees no GPU"):
        train.train(config, tmp_path / "run", resume=True, quiet=True)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}


def test_a_state_says_nothing_of_devices(runs, tmp_path):
    """Its file holds the same whether its run says cuda or cpu: float64 numbers, labels and a fingerprint."""
    from_gpu(runs / "sines", tmp_path / "run")
    support, _ = data("sines")
    for place, folder in (("a", runs / "sines"), ("b", tmp_path / "run")):
        Learner.from_run(folder).adapt(support).save(tmp_path / place, form="memory")
    assert tiny.same_state(tmp_path / "a", tmp_path / "b")
    tensors, _ = read_tensors(tmp_path / "a")
    assert {t.dtype for t in tensors.values()} == {torch.float64} and np.isfinite(tensors["A"].numpy()).all()
