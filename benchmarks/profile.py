"""Where the time of a training step goes: `python -m benchmarks.profile [EXPERIMENT] [--device D] [--precision P]`.

Times a step in its fastest form, a validation and a test, on noise for images, and lists what the device was busy with.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import ours
from benchmarks.measure import clocked
from metavib.training import build
from metavib.training.fields import override
from metavib.training.protocols.classification import Classification
from metavib.training.recipes import recipe

STEPS, LINES = 200, 25


def milliseconds(call: Callable[[], Any], times: int, device: str) -> float:
    """Mean time of a call, the device's work included."""
    for _ in range(max(5, times // 10)):  # what is compiled and recorded is so by then
        call()
    return clocked(call, times, device) / times * 1e3


def busy(call: Callable[[], Any], device: str, *, times: int = 10) -> str:
    """The longest of what a device does in a call, in microseconds."""
    cuda = device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        for _ in range(times):
            call()
        if cuda:
            torch.cuda.synchronize()
    spent = {e: (e.self_device_time_total if cuda else e.self_cpu_time_total) / times for e in found.key_averages()}
    lines = [f"{sum(e.count for e in spent) / times:.0f} kernels, busy for {sum(spent.values()) / 1e3:.3f} ms"]
    for event in sorted(spent, key=lambda e: -spent[e])[:LINES]:
        lines.append(f"{spent[event]:9.1f} µs {event.count / times:5.1f} × {event.key[:100]}")
    return "\n".join(lines)


def main() -> None:
    """Prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("experiment", nargs="?", default="omniglot-emnist", choices=list(ours.PICTURES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32", help="float32, tf32 or bf16")
    parser.add_argument("--shots", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=1, help="tasks a step")
    given = parser.parse_args()
    changes = {"device": given.device, "precision": given.precision, "train.tasks": given.tasks}
    config = override(recipe(given.experiment, "gp-vib", shots=given.shots), changes)
    build.set_torch(config)
    cuda = given.device.startswith("cuda")
    world = ours.world_of(config, ours.random_pictures(*ours.PICTURES[given.experiment]))
    assert isinstance(world, Classification)
    step, model = ours.our_step(config, world), build.model(config).to(given.device)
    print(f"step: {milliseconds(step, STEPS if cuda else 10, given.device):.3f} ms")
    print(busy(step, given.device))
    if cuda:  # minutes on a CPU
        print(f"validation: {milliseconds(lambda: world.validate(model), 10, given.device):.2f} ms")
        test = milliseconds(lambda: world.evaluate(model.eval(), quiet=True), 1, given.device)
        print(f"test: {config.test.tasks / test * 1e3:,.0f} episodes a second")


if __name__ == "__main__":
    main()
