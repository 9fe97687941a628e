"""How the benchmarks measure: time as a median of repetitions, memory and work by counting.

Time is noisy and belongs in tables and figures. Memory and work are counted operation by operation, the same on every
machine, and belong in tests too.
"""

import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from metavib.training.runs import commit, machine

Call = Callable[[], Any]


class Timing(NamedTuple):
    """Seconds a call took: the median of the repetitions, and the fastest and slowest of them."""

    median: float
    fastest: float
    slowest: float


def timing(call: Call, *, repeats: int = 15, warm_up: int = 3, at_least: float = 2e-3, device: str = "cpu") -> Timing:
    """How long a call takes.

    Args:
        call: what is timed.
        repeats: how many times.
        warm_up: calls before that, which do not count.
        at_least: seconds; a repetition is as many calls in a row as take this long, so that the clock can see them.
        device: where the work is done; a GPU is waited for.
    """
    for _ in range(warm_up):
        call()
    inner = max(1, round(at_least / max(clocked(call, 1, device), 1e-9)))
    found = [clocked(call, inner, device) / inner for _ in range(repeats)]
    return Timing(statistics.median(found), min(found), max(found))


def once(call: Call, *, device: str = "cpu") -> Timing:
    """How long a call takes that is too long to be made twice."""
    seconds = clocked(call, 1, device)
    return Timing(seconds, seconds, seconds)


def side_by_side(
    calls: Mapping[str, Call],
    *,
    seconds: float = 10.0,
    warm_up: int = 3,
    at_least: float = 2e-2,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """How long each of several calls takes, in turns: whatever else the machine does meanwhile, it does to all of them.

    Args:
        calls: what is compared, by name.
        seconds: about how long to measure; there are between 5 and 100 rounds.
        warm_up: calls of each before that, which do not count; fewer on a CPU where they take long.
        at_least: seconds; a turn is as many calls in a row as take this long.
        device: where the work is done; a GPU is waited for.
        clock: that of the wall, or `time.process_time`, which stands still while another process has the core.
    """
    times = {}
    for name, call in calls.items():
        begun = time.perf_counter()
        for _ in range(warm_up):
            call()
            if (
                device == "cpu" and time.perf_counter() - begun > seconds / 2
            ):  # warm enough; a GPU's graph needs them all
                break
        times[name] = max(1, round(at_least / max(clocked(call, 1, device), 1e-9)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    start, rounds = time.perf_counter(), 0
    while rounds < 5 or (rounds < 100 and time.perf_counter() - start < seconds):
        for name, call in calls.items():
            found[name].append(clocked(call, times[name], device, clock) / times[name])
        rounds += 1
    return {name: Timing(statistics.median(f), min(f), max(f)) for name, f in found.items()}


def clocked(call: Call, times: int, device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that some calls in a row take, the device's work included."""
    _wait(device)
    start = clock()
    for _ in range(times):
        call()
    _wait(device)
    return clock() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


class Counted(TorchDispatchMode):
    """While it is on, counts the bytes of tensors that operations make, in all and at most at one time, and FLOPs.

    Memory that was there before (weights, data) does not count; memory that is given back stops counting at once. What
    an operation uses inside itself (a convolution's workspace) is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = self.live = self.peak = self.flops = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage()._cdata for t in _tensors((args, kwargs or {}))}
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in _FLOPS:
            self.flops += _FLOPS[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in before or key in self._known:  # a view, or written in place
                continue
            self._known.add(key)
            self.written += size
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._freed, key, size).atexit = False
        return out

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def peak_bytes(call: Call, *, device: str = "cpu") -> int:
    """The most bytes of tensors that a call holds at one time, beyond what was there before it.

    On a GPU this is what PyTorch's allocator handed out, workspaces included.
    """
    if device.startswith("cuda"):
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    with Counted() as counted:
        call()
    return counted.peak


class Cost(NamedTuple):
    """Work and memory of a call, counted: the same numbers on every machine.

    Args:
        flops: of products, convolutions, factorisations and triangular solves; a multiplication and an addition are 2.
        written: bytes of all tensors it made.
        peak: the most of them that lived at one time.
    """

    flops: int
    written: int
    peak: int


def cost(call: Call) -> Cost:
    """The cost of a call."""
    with Counted() as counted:
        call()
    return Cost(counted.flops, counted.written, counted.peak)


def _cholesky_flops(A: tuple[int, ...], *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return prod(A) * A[-1] // 3


def _triangular_flops(A: tuple[int, ...], B: tuple[int, ...], *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    left = kwargs.get("left", True)
    return prod(out_shape) * out_shape[-2 if left else -1]


# PyTorch's own formulas, and what they leave out. (Its counter cannot look inside an inner loop's gradient.)
_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten.linalg_cholesky_ex: shape_wrapper(_cholesky_flops),
    torch.ops.aten.linalg_solve_triangular: shape_wrapper(_triangular_flops),
}


def description(device: str = "cpu") -> dict[str, Any]:
    """What a result must say of where it comes from."""
    return {"machine": machine(device), "torch": torch.__version__, "commit": commit()}
