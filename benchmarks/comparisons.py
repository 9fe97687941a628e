"""What is measured, against what, and what is asked of it."""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks import ours
from benchmarks.floors import Work, work
from benchmarks.measure import Call, Timing, once
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.loop import train
from metavib.training.pretrain import pretraining
from metavib.training.protocols import experiment
from metavib.training.recipes import recipe, tuned
from metavib.training.run_folder import read_metrics


@dataclass(frozen=True)
class Reference:
    """The same work by other means.

    Args:
        name: whose.
        make: builds it; a package that is not installed is a `ModuleNotFoundError`.
        target: how many times faster ours is to be.
    """

    name: str
    make: Callable[[], Call]
    target: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A piece of work, ours and others'.

    Args:
        what: in words.
        make: builds ours.
        references: what it is compared with, in turns.
        target: the most milliseconds it may take.
        threads: of PyTorch on a CPU, for all of them.
        units: how many of what is said a call does; times are divided by it.
        work: counts what ours must do.
        clock: how ours is timed, where not in turns with the references.
    """

    what: str
    make: Callable[[], Call]
    references: tuple[Reference, ...] = ()
    target: float | None = None
    threads: int = 1
    units: int = 1
    work: Callable[[], Work] | None = None
    clock: Callable[[Call], Timing] | None = None


def comparisons(device: str, precision: str, *, cores: int, full: bool = False) -> Iterator[Comparison]:
    """All of them, for a device: each is built when it is its turn.

    Args:
        device: cpu or cuda.
        precision: of ours on images; the references are in PyTorch's default.
        cores: threads for the images; the sines are fastest with one, ours and the references'.
        full: whether to train to the end, which needs the data of Omniglot and EMNIST.
    """
    yield from _characters(device, precision, cores)
    yield from _photographs(device, precision, cores)
    if device.startswith("cuda"):
        yield _tuned(device, precision)
    else:
        yield from _sines()
        yield _groups()
        yield Comparison(
            "import of the package, after torch's own", lambda: ours.fresh_import, target=1000.0, clock=_own_clock
        )
    if full:
        yield _training(device, precision)


def _characters(device: str, precision: str, cores: int) -> Iterator[Comparison]:
    cuda = device.startswith("cuda")
    pictures = ours.random_pictures(*ours.PICTURES["omniglot-emnist"])
    config = _images("omniglot-emnist", device, precision)
    step = "step, Conv4 28×28, 5-way 1-shot 16 query, one task"
    yield _steps(f"GP-VIB {step}", config, pictures, cores, ratio=80.0 if cuda else 3.0, most=0.5 if cuda else None)
    if not cuda:
        yield _in_bf16(f"GP-VIB {step}", config, pictures, cores)
    yield _steps(f"DKT {step}", _images("omniglot-emnist", device, precision, method="dkt"), pictures, cores)
    yield Comparison(
        "GP-VIB adapt and predict, Conv4 28×28, 5 images in, 80 out",
        lambda: ours.our_use(config, ours.world_of(config, pictures)),
        target=20.0,
        threads=cores,
    )
    episodes = 3000 if cuda else 50
    yield Comparison(
        "GP-VIB test, Conv4 28×28, 5-way 1-shot 15 query, an episode",
        lambda: ours.our_test(config, pictures, episodes=episodes),
        target=0.2 if cuda else None,
        threads=cores,
        units=episodes,
    )


def _photographs(device: str, precision: str, cores: int) -> Iterator[Comparison]:
    cuda = device.startswith("cuda")
    pictures = ours.random_pictures(*ours.PICTURES["cub"])
    step = "GP-VIB step, Conv4 84×84, 5-way 1-shot 16 query, one task"
    config = _images("cub", device, precision)
    plain = override(config, {"tasks.augment": False})
    yield _steps(step, plain, pictures, cores, ratio=25.0 if cuda else 3.0, most=1.5 if cuda else None)
    if not cuda:
        yield _in_bf16(step, plain, pictures, cores)
    yield Comparison(
        f"{step}, augmented",
        lambda: ours.our_step(config, ours.world_of(config, pictures)),
        target=1.5 if cuda else None,
        threads=cores,
        work=partial(_work, config, pictures),
    )


def _tuned(device: str, precision: str, *, widths: tuple[int, ...] = (64, 160, 320, 640), side: int = 84) -> Comparison:
    """GP-VIB from pictures to its bound, beside telling classes apart, with the same network on as many pictures."""
    pictures = ours.random_pictures(100, 60, 3, round(1.15 * side))
    same = {"device": device, "precision": precision, "tasks.size": side}
    config = override(tuned("cub", "gp-vib", shots=1), {**same, "model.widths": widths, "model.pretrained": "any"})
    tasks, count = config.tasks, config.train.tasks * config.tasks.ways * (config.tasks.shots + config.tasks.queries)
    stage = override(
        pretraining("cub"), {**same, "widths": widths, "batch": count, "tasks.crop": tasks.crop, "smoothing": 0.0}
    )
    return Comparison(
        f"GP-VIB step, ResNet-12 {side}×{side}, {config.train.tasks} tasks, {count} pictures, augmented",
        partial(_our_step, config, pictures),
        (Reference("a supervised step on as many pictures", partial(ours.supervised_step, stage, pictures), 1 / 1.3),),
    )


def _steps(
    what: str, config: Config, pictures: Tensor, cores: int, *, ratio: float | None = None, most: float | None = None
) -> Comparison:
    """Our step on images against DKT's."""

    def dkt(*, evaluates: bool) -> Call:
        from benchmarks.references.dkt import DKT

        return DKT(pictures, size=config.tasks.size, evaluates=evaluates, device=config.device).step

    references = (
        Reference("DKT with GPyTorch", partial(dkt, evaluates=True), target=ratio),
        Reference("DKT with GPyTorch, not evaluating", partial(dkt, evaluates=False)),
    )
    make = partial(_our_step, config, pictures)
    return Comparison(what, make, references, target=most, threads=cores, work=partial(_work, config, pictures))


def _in_bf16(what: str, config: Config, pictures: Tensor, cores: int) -> Comparison:
    """Convolutions in bfloat16, which some CPUs have instructions for; floors are those of float32, so none here."""
    comparison = _steps(f"{what}, bf16", replace(config, precision="bf16"), pictures, cores, ratio=3.0)
    return replace(comparison, work=None)


def _sines() -> Iterator[Comparison]:
    def maml(name: str, package: str) -> Call:
        from benchmarks.references import maml

        if package:
            __import__(package)
        return getattr(maml, name)().step

    def gp(name: str) -> Call:
        from benchmarks.references import gp_loop

        return getattr(gp_loop, name)().step

    config = recipe("sinusoid", "maml")
    yield Comparison(
        "MAML step, sinusoids, second order, 25 tasks, one inner step",
        partial(_our_step, config),
        (
            Reference("higher", partial(maml, "HigherMAML", "higher"), target=20.0),
            Reference("torchopt", partial(maml, "TorchOptMAML", "torchopt"), target=10.0),
            Reference("torch.func.vmap, eager", partial(maml, "VmapMAML", "")),
        ),
        work=partial(_work, config),
    )
    config = recipe("sinusoid", "gp-vib")
    yield Comparison(
        "GP-VIB step, sinusoids, 5 tasks",
        partial(_our_step, config),
        (
            Reference("GPyTorch, a loop over marginal likelihoods", partial(gp, "EvidenceLoop"), target=10.0),
            Reference("GPyTorch, a loop over the same bound", partial(gp, "BoundLoop"), target=10.0),
        ),
        work=partial(_work, config),
    )
    yield Comparison(
        "GP-VIB adapt and predict, a sine, 10 points in, 10 out",
        lambda: ours.our_use(config, ours.world_of(config)),
        target=1.0,
    )


def _groups(count: int = 1000) -> Comparison:
    groups = ours.Groups(count)
    return Comparison(
        "GP-VIB adapt to and predict 1,000 groups, 5 rows in, 3 out, a group",
        lambda: groups.at_once,
        (
            Reference("one group at a time", lambda: groups.one_by_one),
            Reference("scikit-learn, a ridge of each group", lambda: groups.ridges),
        ),
        units=count,
    )


def _training(device: str, precision: str) -> Comparison:
    """From a config and images in memory to the selected model: compiling, steps, validations, checkpoints."""
    config = _images("omniglot-emnist", device, precision)

    def make() -> Call:
        world = experiment(config)

        def run() -> Any:
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) / "run"
                train(config, folder, quiet=True, world=world)
                begun, *_, done = ((line["step"], line["seconds"]) for line in read_metrics(folder))
            print(f"{begun[0]} steps after {begun[1]:.1f} s, {done[0]:,} after {done[1]:.1f} s", file=sys.stderr)

        return run

    return Comparison(
        "GP-VIB training, Omniglot to EMNIST, 5-way 1-shot: 60,000 steps, 600 validations",
        make,
        target=60_000.0 if device.startswith("cuda") else None,
        clock=partial(once, device=device),
    )


def _images(experiment: str, device: str, precision: str, *, method: str = "gp-vib") -> Config:
    return replace(recipe(experiment, method, shots=1), device=device, precision=precision)


def _own_clock(call: Call, *, repeats: int = 5) -> Timing:
    """For a call that returns its own seconds."""
    found = [call() for _ in range(repeats)]
    return Timing(statistics.median(found), min(found), max(found))


def _our_step(config: Config, pictures: Tensor | None = None) -> Call:
    return ours.our_step(config, ours.world_of(config, pictures))


def _work(config: Config, pictures: Tensor | None = None) -> Work:
    """Counted on the CPU, whatever device the step is for: the numbers are the same."""
    counted = replace(config, device="cpu", precision="float32")
    return work(*ours.plain_step(counted, ours.world_of(counted, pictures)), config.precision)
