"""The fast path: what is compiled (and on a GPU recorded) computes what is written."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metavib.objective import Bound
from metavib.random import draw, seeded
from metavib.training import build
from metavib.training.config import BOUND, METHODS
from metavib.training.engine import compile as compiled
from metavib.training.engine import compiles, fastest
from metavib.training.engine.compile import Compiled
from metavib.training.engine.graph import Replayed
from metavib.training.fields import override
from metavib.training.recipes import recipe
from metavib.training.step import Step, backward

HERE = Path(__file__).parent
# In double precision, but for the tasks, which are drawn in single.
TIGHT = {"bounds": 1e-6, "state": 1e-6, "gradients": 1e-5, "predictions": 1e-9, "test": 1e-9, "again": 0.0}
AGAIN_ON_GPU = 1e-10  # sums there do not always add up in the same order
# What is drawn in single precision is rounded otherwise on a GPU once it is compiled; GP+MAML's gradients, of second
# order and through a factorisation, show it most.
GRADIENTS_ON_GPU = {"gp-maml": 1e-4}


def printed(script: str, *arguments: str) -> dict[str, Any]:
    """What a script beside this file prints in its last line, run in a process of its own."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(name: str, method: str, backend: str, device: str) -> None:
    found = printed("compiled_steps.py", name, method, backend, device)
    assert not found["failed"]
    assert found["same streams"]
    tight = dict(TIGHT)
    if device != "cpu":
        tight |= {"again": AGAIN_ON_GPU, "gradients": GRADIENTS_ON_GPU.get(method, TIGHT["gradients"])}
    assert all(gap <= tight[what] for what, gap in found["gaps"].items()), found


@pytest.mark.parametrize("method", BOUND)
def test_compiled_steps_are_the_written_ones_on_sinusoids(method: str) -> None:
    """Bounds, gradients, weights and random streams after three steps; and the same again from the same seed."""
    check("sinusoid", method, "inductor", "cpu")


COMPILED = ("gp-vib", "proto-net", "relation-net", "dkt")  # on a CPU; on a GPU all are, below


@pytest.mark.parametrize("method", COMPILED)
def test_compiled_steps_are_the_written_ones_on_images(method: str) -> None:
    """The same with convolutions, batch-norm, pooling and Monte Carlo samples, and a prediction."""
    check("glyphs", method, "inductor", "cpu")


@pytest.mark.parametrize("method", [method for method in METHODS if method not in COMPILED])
def test_other_steps_on_images_can_be_compiled(method: str) -> None:
    """Traced as a whole, and run without the compiler's own code, which takes minutes here; sinusoids have that."""
    check("glyphs", method, "aot_eager", "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_are_the_written_ones_on_a_gpu(method: str) -> None:
    """Compiled and recorded as a CUDA graph, for every method."""
    check("glyphs", method, "inductor", "cuda")


GPU = pytest.param("inductor", "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize(("backend", "device"), [("aot_eager", "cpu"), GPU])
def test_a_compiled_supervised_stage_is_the_written_one(backend: str, device: str) -> None:
    """Weights, momentum, random stream and losses at its end; with crops of two sizes, so two programs."""
    found = printed("compiled_pretraining.py", backend, device)
    assert not found["failed"] and found["same streams"]
    assert max(found["gaps"].values()) < 1e-5, found


@pytest.mark.parametrize(("backend", "device"), [("aot_eager", "cpu"), GPU])
def test_gradients_of_compiled_inner_steps_are_finite_in_half_precision(backend: str, device: str) -> None:
    """A derivative that looks for a rounded maximum among numbers that were not rounded would be 0 / 0."""
    found = printed("compiled_in_bfloat16.py", backend, device)
    assert np.isfinite(found["bounds"]).all() and 0 < found["length"] < np.inf, found


def test_short_work_is_not_compiled() -> None:
    """It would not win back the time of compiling."""

    def work(model, streams):
        return (model(torch.ones(1)),)

    assert compiled.compiled(work, "cpu", times=compiled.WORTH["cpu"] - 1) is work


def test_many_inner_steps_are_not_compiled_in_a_short_training() -> None:
    """Twenty of them would take a compiler longer than the 5,000 steps of Augmented Omniglot take as written."""
    twenty, none = (recipe("augmented-omniglot", method) for method in ("maml", "gp-vib"))
    assert (twenty.unrolled, none.unrolled) == (20, 1) and twenty.train.steps == none.train.steps
    assert compiles(replace(none, device="cuda")) and not compiles(replace(twenty, device="cuda"))


def test_without_a_compiler_nothing_is_compiled(monkeypatch) -> None:
    """A machine without one trains all the same, and says nothing."""
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)

    def work(model, streams):
        return (model(torch.ones(1)),)

    assert compiled.compiled(work, "cpu", times=10**6) is work


def _refuse(function, **options):
    def fail(*args):
        raise RuntimeError("no such thing")

    return fail


def test_what_cannot_be_compiled_runs_as_written_and_says_so(monkeypatch) -> None:
    """The numbers are those of the work itself, streams included."""
    monkeypatch.setattr(torch, "compile", _refuse)

    def work(model, streams):
        (stream,) = streams
        return (model(draw(torch.rand, 3, 2, stream=stream)).sum(),)

    model, stream = torch.nn.Linear(2, 1), seeded(3)
    fast = Compiled(work)
    with pytest.warns(UserWarning, match="runs as written: no such thing"):
        first = fast(model, [stream])
    expected = seeded(3)
    for found in (first, fast(model, [stream])):
        torch.testing.assert_close(found, work(model, [expected]))
    assert torch.equal(stream.get_state(), expected.get_state())


@pytest.mark.parametrize(("name", "together"), [("sinusoid", True), ("glyphs", False)])
def test_bound_and_gradient_are_compiled_together_where_nothing_is_pooled(name: str, together: bool) -> None:
    """And apart on a GPU, whatever the network."""
    config = override(recipe(name, "gp-vib"), {"train.steps": compiled.WORTH["cpu"]})

    def step() -> Step:
        return Step(build.model(config), fail, None, None, [], shape=(1,), beta=0.0)

    def fail(*args, **options):
        raise AssertionError("nothing is computed yet")

    on_cpu, on_gpu = step(), step()
    assert fastest(on_cpu, config) is on_cpu
    assert (isinstance(on_cpu.gradient, Compiled), isinstance(on_cpu.bound, Compiled)) == (together, not together)
    assert isinstance(fastest(on_gpu, replace(config, device="cuda")), Replayed)
    assert isinstance(on_gpu.bound, Compiled) and not isinstance(on_gpu.gradient, Compiled)


def test_a_gradient_that_cannot_be_compiled_is_the_written_one(monkeypatch) -> None:
    """Work that differentiates itself leaves its gradient in `grad` all the same, and once."""
    monkeypatch.setattr(torch, "compile", _refuse)

    def work(model, streams):
        value = model(draw(torch.rand, 3, 2, stream=streams[0])).squeeze(-1)
        return backward(Bound(value, value, value))

    model = torch.nn.Linear(2, 1)
    with pytest.warns(UserWarning, match="runs as written"):
        value = Compiled(work)(model, [seeded(3)])[-1]
    x = torch.rand(3, 2, generator=seeded(3))
    torch.testing.assert_close(value, (x @ model.weight.mT + model.bias).squeeze(-1).detach())
    torch.testing.assert_close(model.weight.grad, -x.mean(0, keepdim=True))
    torch.testing.assert_close(model.bias.grad, -torch.ones(1))
