"""Steps that are recorded and replayed: what holds on a GPU, with a stand-in for one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from metavib.training import build
from metavib.training.engine.graph import WARM_UP, Replayed, replayed
from metavib.training.protocols import classification


class Graph:
    """Does again what was recorded, from the memory it was recorded with and into it, as a CUDA graph does."""

    recording: "Graph | None" = None
    made: "list[Graph]" = []

    def __init__(self) -> None:
        self.work: Callable[[], tuple[Tensor, ...]] | None = None
        self.outputs: tuple[Tensor, ...] = ()
        self.replays = 0
        Graph.made.append(self)

    def register_generator_state(self, generator: torch.Generator) -> None: ...

    def replay(self) -> None:
        assert self.work is not None
        self.replays += 1
        for held, new in zip(self.outputs, self.work(), strict=True):
            held.copy_(new)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @contextmanager
    def graph(of: Graph) -> Iterator[None]:
        Graph.recording = of
        try:
            yield
        finally:
            Graph.recording = None

    class Stream:
        def wait_stream(self, other: Any) -> None: ...

    for name, what in {"CUDAGraph": Graph, "graph": graph, "Stream": Stream, "current_stream": Stream}.items():
        monkeypatch.setattr(torch.cuda, name, what)
    monkeypatch.setattr(torch.cuda, "stream", lambda side: nullcontext())
    Graph.made.clear()
    yield


def recordable(step: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """While recording nothing is computed: outputs hold nothing until the first replay."""

    def noted(*inputs: Tensor) -> tuple[Tensor, ...]:
        if Graph.recording is None:
            return step(*inputs)
        graph = Graph.recording
        graph.work = lambda: step(*inputs)
        graph.outputs = tuple(torch.full_like(t, torch.nan) for t in step(*(t.clone() for t in inputs)))
        return graph.outputs

    return noted


def test_every_call_is_the_step_of_its_own_inputs() -> None:
    """Written, recorded and replayed ones, and those of another size in between."""
    step = Replayed(recordable(lambda a, b: (a @ b, a.sum(-1))), [])
    sizes = [4] * (WARM_UP + 4) + [3, 4, 1, 4]
    for size in sizes:
        a, b = torch.randn(size, 2), torch.randn(2, 5)
        product, total = step(a, b)
        torch.testing.assert_close(product, a @ b)
        torch.testing.assert_close(total, a.sum(-1))
    (graph,) = Graph.made
    assert graph.replays == len(sizes) - WARM_UP - 2


def test_inputs_are_left_alone_and_outputs_are_the_same_memory() -> None:
    """The caller's tensors are copied from; what a step returned is overwritten by the next."""
    step = Replayed(recordable(lambda a: (2 * a,)), [])
    given = [torch.full((2,), float(i)) for i in range(WARM_UP + 3)]
    found = [step(a)[0] for a in given]
    assert [float(a[0]) for a in given] == list(range(len(given)))
    assert [float(t[0]) for t in found[:WARM_UP]] == [2.0 * i for i in range(WARM_UP)]
    assert found[-1] is found[WARM_UP] and float(found[-1][0]) == 2.0 * (len(given) - 1)


def test_a_step_without_inputs_moves_its_own_state() -> None:
    """As a training step does: once a call, the recorded one included."""
    state = torch.zeros(())

    def step() -> tuple[Tensor]:
        return (state.add_(1).clone(),)

    def noted() -> tuple[Tensor, ...]:
        if Graph.recording is None:
            return step()
        Graph.recording.work, Graph.recording.outputs = step, (torch.zeros(()),)
        return Graph.recording.outputs

    take = Replayed(noted, [])
    assert [float(take()[0]) for _ in range(WARM_UP + 4)] == [float(i + 1) for i in range(WARM_UP + 4)]


def test_what_cannot_be_recorded_runs_as_written_and_says_so_once() -> None:
    """One warning, and the right numbers all along."""

    def step(a: Tensor) -> tuple[Tensor]:
        if Graph.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return (a + 1,)

    take = Replayed(step, [])
    for i in range(WARM_UP):
        assert float(take(torch.tensor(float(i)))[0]) == i + 1
    with pytest.warns(UserWarning, match="cannot be recorded as a CUDA graph and runs as written: operation not"):
        assert float(take(torch.tensor(5.0))[0]) == 6
    assert float(take(torch.tensor(7.0))[0]) == 8


def test_a_recorded_test_is_the_written_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has its own probabilities, a last and smaller one too."""
    config = tiny.glyphs("proto-net", precision="float64", test__tasks=16)
    monkeypatch.setattr(classification, "CHUNK", {"cpu": 3})
    model, world = build.model(config), classification.Classification(config)
    written = world.evaluate(model, quiet=True)
    monkeypatch.setattr(classification, "replayed", lambda step, device, streams: Replayed(recordable(step), streams))
    assert world.evaluate(model, quiet=True) == written
    (graph,) = Graph.made
    assert graph.replays == 5 - WARM_UP


def test_on_a_cpu_a_step_is_itself() -> None:
    """Nothing to record."""

    def step() -> tuple[Tensor, ...]:
        return ()

    assert replayed(step, "cpu", []) is step
