"""bf16: networks compute in half precision, weights and the GP algebra do not."""

import pytest
import torch

import tiny
from metavib.adapt.learner import Learner
from metavib.data.labelled import Labelled
from metavib.objective import vib
from metavib.random import seeded
from metavib.training import build
from metavib.training.loop import train
from metavib.training.protocols.classification import Classification


@pytest.mark.parametrize("method", ["gp-vib", "maml", "stochastic-maml", "gp-maml", "proto-net"])
def test_bf16_is_float32_to_the_precision_of_bfloat16(method) -> None:
    """Same weights, same task: outputs are float32, close, and not the same; gradients reach every weight."""
    full, half = (tiny.glyphs(method, precision=precision) for precision in ("float32", "bf16"))
    model, halved = build.model(full), build.model(half)
    halved.load_state_dict(model.state_dict())
    task = Classification(full, splits=tiny.splits()).sample((2,), seeded(0))
    one, other = (vib(m, task, beta=c.train.beta, noise=seeded(1)) for m, c in ((model, full), (halved, half)))
    assert other.fit.dtype == torch.float32
    assert not torch.equal(one.fit, other.fit)
    torch.testing.assert_close(other.fit, one.fit, rtol=0.1, atol=0.1)
    other.value.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in halved.parameters() if p.requires_grad)
    assert all(p.dtype == torch.float32 for p in halved.parameters())


def test_a_bf16_run_is_used_in_float32_and_float64(tmp_path, monkeypatch) -> None:
    """Trained in bf16, a run's learner computes in full precision, the same in float32 and float64."""
    config = tiny.glyphs("gp-vib", precision="bf16")
    monkeypatch.setattr("metavib.training.protocols.classification.load", lambda tasks: tiny.splits())
    train(config, tmp_path / "run", quiet=True)
    data: Labelled = tiny.splits().test
    x, y = data.images[:12].float() / 255, data.labels[:12].tolist()
    single, double = (Learner.from_run(tmp_path / "run", precision=p) for p in (None, "float64"))
    p, q = (learner.adapt((x, y)).predict(x).probabilities for learner in (single, double))
    torch.testing.assert_close(p.double(), q, rtol=1e-4, atol=1e-5)
