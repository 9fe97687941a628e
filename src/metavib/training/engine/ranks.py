"""Training on several processes (ranks): the tasks of a step are shared out, and nothing else changes.

`torchrun` starts the processes; each draws the tasks of the whole step from the same random stream, which is cheap, and
keeps its own share of them: that share is its stream of tasks. So a run does not depend on how many ranks there are:
with any number it is the run of one process up to rounding, and a run that was stopped goes on with another number. The
first rank writes the run folder and validates; the others wait for it.
"""

import gc
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, final

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # which keeps the group for ever that it finds when it is first imported
from torch import Generator, Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from metavib.model import Model
from metavib.networks.norm import TaskNorm
from metavib.objective import Bound, Objective
from metavib.random import Noise, Portion
from metavib.tasks.task import Task, select
from metavib.training.stopping import FirstFailed, RankLost

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = timedelta(hours=12)  # for the first rank's validations; a rank that dies is noticed at once all the same


class Ranks(ABC):
    """The processes that train one model together, as one of them sees it.

    Example:
        >>> from metavib.training.engine.ranks import ALONE
        >>> ALONE.count, ALONE.first, ALONE.on_first(max, 1, 2)
        (1, True, 2)
    """

    index: int
    count: int

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and reports."""
        return self.index == 0

    @abstractmethod
    def on_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a function returns to the first rank, the only one to call it; its error is an error on every rank."""

    @abstractmethod
    def sharded(self, objective: Objective, model: Model, tasks: int) -> Objective:
        """The objective on this rank's share of a step's tasks, its gradients averaged over all ranks.

        Args:
            objective: takes the tasks of the whole step and the noise stream of all of them.
            model: the one and only model it will be called with; every rank starts from the first one's weights.
            tasks: how many tasks a step has.
        """

    @abstractmethod
    def gathered(self, bound: Bound) -> Bound:
        """The terms of all tasks of a step, from those of each rank's share."""

    @abstractmethod
    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank; the same answer on all of them."""


@final
class Alone(Ranks):
    """One process that trains by itself.

    Example:
        >>> from metavib.training.engine.ranks import ALONE
        >>> ALONE.any(True)
        True
    """

    index, count = 0, 1

    def on_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function: this process is the first."""
        return function(*args, **kwargs)

    def sharded(self, objective: Objective, model: Model, tasks: int) -> Objective:
        """The objective as it is, since there is nobody to share tasks with."""
        return objective

    def gathered(self, bound: Bound) -> Bound:
        """The terms as they are: those of all tasks."""
        return bound

    def any(self, flag: bool) -> bool:
        """The flag of this process."""
        return flag


ALONE = Alone()


@final
class Together(Ranks):
    """Processes of a `torch.distributed` group, which must be up; `joined` makes one.

    Example:
        >>> from metavib.training.engine.ranks import joined
        >>> with joined("cpu") as ranks:  # of several processes under torchrun
        ...     print(ranks.count)
        1
    """

    def __init__(self) -> None:
        self.index, self.count = dist.get_rank(), dist.get_world_size()

    def on_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function on the first rank and sends the others its result, or has them raise `FirstFailed`."""
        result: T | None = None
        failure: Exception | None = None
        if self.first:
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                failure = error
        message = [result, None if failure is None else str(failure)]
        dist.broadcast_object_list(message, device=torch.device("cpu"))
        if failure is not None:
            raise failure
        if message[1] is not None:
            raise FirstFailed(f"the first process of this run failed: {message[1]}")
        return cast(T, message[0])

    def sharded(self, objective: Objective, model: Model, tasks: int) -> Objective:
        """The objective under `DistributedDataParallel`, which averages gradients while they are computed.

        Running averages of batch-norm are averaged too: they are linear in the tasks, so that those of all ranks are
        those of all tasks.
        """
        self.on_first(check_even, tasks, self.count)
        return _Sharded(self, DistributedDataParallel(_Forward(objective, model)), list(_running_averages(model)))

    def gathered(self, bound: Bound) -> Bound:
        """The terms of all tasks, in the order in which one process has them."""
        own = torch.stack(torch.broadcast_tensors(*bound))
        parts = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(parts, own.contiguous())
        return Bound(*torch.cat(parts, -1))

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank. Travels between hosts alone: no GPU is waited for."""
        flags = torch.tensor([flag], dtype=torch.uint8)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)


@final
class _Sharded:
    """The objective on one rank's share of the tasks; the model is that of its replica, whichever is handed over."""

    def __init__(self, ranks: Ranks, replica: DistributedDataParallel, averages: list[Tensor]) -> None:
        self.ranks, self.replica, self.averages = ranks, replica, averages

    def __call__(self, model: Any, task: Task, *, beta: float, noise: Noise = None) -> Bound:
        bound = self.replica(self._share(task), beta=beta, noise=self._noise(noise, task))
        self._average_over_ranks()
        return bound

    def _share(self, task: Task) -> Task:
        size = task.batch_shape[-1] // self.ranks.count
        here = slice(size * self.ranks.index, size * (self.ranks.index + 1))
        return select(task, (*(slice(None),) * (len(task.batch_shape) - 1), here))

    def _noise(self, noise: Noise, task: Task) -> Noise:
        if not isinstance(noise, Generator):
            return noise
        return Portion(noise, axis=len(task.batch_shape), index=self.ranks.index, count=self.ranks.count)

    @torch.no_grad()
    def _average_over_ranks(self) -> None:
        if not self.averages:
            return
        flat = torch.cat([t.flatten() for t in self.averages])
        dist.all_reduce(flat)
        sizes = [t.numel() for t in self.averages]
        for t, mean in zip(self.averages, (flat / self.ranks.count).split(sizes), strict=True):
            t.copy_(mean.view_as(t))


class _Forward(nn.Module):
    """An objective of a model as the forward pass of a module, which is what DDP watches.

    It shows the model's parameters alone: DDP would overwrite the running averages of all ranks by the first one's.
    """

    def __init__(self, objective: Objective, model: Model) -> None:
        super().__init__()
        self.parameters_of_model = nn.ParameterList(model.parameters())
        self.objective = partial(objective, model)  # no module, so that none of the model's buffers is registered

    def forward(self, task: Task, *, beta: float, noise: Noise) -> Bound:
        return self.objective(task, beta=beta, noise=noise)


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The ranks that `torchrun` started together with this process; this process alone where it started no others.

    On a GPU each rank of a machine takes the one of its own number. Collectives use gloo on a CPU, NCCL on a GPU.

    Args:
        device: where the model will be, cpu or cuda.

    Raises:
        RankLost: where another rank ends before this one leaves.
    """
    if _launched() == 1:
        yield ALONE
        return
    if device == "cuda":
        _take_gpu(int(os.environ["LOCAL_RANK"]))
    elif device != "cpu":
        raise ValueError(f"device must be cpu or cuda for several processes, one GPU each; got {device!r}.")
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=PATIENCE)
    ranks = Together()
    try:
        yield ranks
    except Exception as error:
        _outlive_sigterm()
        # gloo has no type for its errors, but signs them with the name of its source file.
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            raise RankLost(
                f"another process of this run ended, and rank {ranks.index} of {ranks.count} cannot go on without it. "
                "The last checkpoint is whole: continue with --resume, with any number of processes."
            ) from error  # and the group is broken: waiting for its work to end might take for ever
        _leave()
        raise
    _leave()


def _leave() -> None:
    """Ends the group and its threads.

    These end with the last reference to the group. One that is left may still have to let go of a tensor, and where
    Python is ending by then the process aborts instead of ending well.
    """
    group = dist.group.WORLD  # held to the end: this reference can be dropped while a thread waits for Python
    dist.destroy_process_group()
    gc.collect()  # replicas hold the group, and themselves in cycles
    del group


def first() -> bool:
    """Whether this process is the one to report: the only one, or the first that `torchrun` started."""
    return _launched() == 1 or int(os.environ["RANK"]) == 0


def check_even(tasks: int, count: int) -> None:
    """Refuses tasks that cannot be shared out evenly."""
    if tasks % count:
        near = max(tasks // count, 1) * count
        raise ValueError(
            f"train.tasks must be a multiple of the number of processes, so that each has as many; got {tasks} tasks a "
            f"step and {count} processes. Start another number of them, or take --set train.tasks={near}."
        )


def _launched() -> int:
    """How many processes torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _outlive_sigterm() -> None:
    """Once a rank has ended, torchrun sends the others a SIGTERM, which would cut short what they have to say."""
    if threading.current_thread() is threading.main_thread():  # no other may
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _take_gpu(local: int) -> None:
    there = torch.cuda.device_count()
    if local >= there:
        raise ValueError(
            f"each process needs a GPU of its own, but this is process {local + 1} on a machine where PyTorch sees "
            f"{there}. Start fewer with --nproc-per-node, or use --device cpu."
        )
    torch.cuda.set_device(local)


def _running_averages(model: nn.Module) -> Iterable[Tensor]:
    for module in model.modules():
        if isinstance(module, TaskNorm) and module.encoding == "running":
            yield from (module.running_mean, module.running_var)
