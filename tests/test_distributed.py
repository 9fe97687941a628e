"""Several processes train as one: real ranks, over gloo, on the CPU.

One Python starts, imports everything, and forks the ranks of every scenario, so that a rank costs milliseconds.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from metavib.files import read_json, read_tensors
from metavib.random import Portion, seeded, standard_normal
from metavib.training import checkpoint, run_folder
from metavib.training import loop as train
from metavib.training.config import BASELINES, Config
from metavib.training.engine import ranks as distributed
from metavib.training.protocols import experiment
from metavib.training.protocols.classification import Classification
from worlds import Around

# Steps that are no multiples of each other: saving, logging and validating all happen at different times. In float64,
# since Adam makes steps of one size from gradients of any, rounding errors among them.
CADENCE = {"train__steps": 11, "train__save_every": 4, "train__log_every": 3, "train__validate_every": 5}
TASKS = {"train__tasks": 6, "precision": "float64"}

RUNS: dict[str, Config] = {
    **{method: tiny.sinusoid(method, **CADENCE, **TASKS) for method in tiny.REGRESSORS},
    "repeats": tiny.sinusoid("stochastic-maml", repeats=2, **CADENCE, **TASKS),
    "recomputed": tiny.sinusoid("maml", model__inner_steps=2, model__recompute=True, **CADENCE, **TASKS),
    "ragged": tiny.sinusoid(tasks__min_shots=1, train__schedule="cosine", **CADENCE, **TASKS),
    # Running averages of batch-norm, Monte Carlo noise, the best on validation.
    "conv4": tiny.glyphs(**CADENCE, **TASKS),
    **{method: tiny.glyphs(method, train__steps=2, **TASKS) for method in BASELINES},
}

HARNESS = """
import json, os, shutil, signal, sys
from pathlib import Path
sys.path[:0] = {paths!r}
import torch
import torch._dynamo  # DDP imports it, which would take each rank seconds
torch.set_num_threads(1)
import test_distributed as tests
from metavib.training.engine import ranks as distributed
from metavib.training import run_folder
from metavib.training import loop as train
from metavib.files import write_tensors
train.experiment = tests.world

def ranks(count, work):
    "How each of some processes ended that do some work together; a killed one by the negative number of its signal."
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(tests.free_port()), WORLD_SIZE=str(count))
    children = []
    for rank in range(count):
        child = os.fork()
        if not child:
            os.environ["RANK"] = str(rank)
            try:
                with distributed.joined("cpu") as joined:
                    work(joined)
                assert not Path("/proc/self/task").exists() or len(os.listdir("/proc/self/task")) == 1  # as it began
            except BaseException as error:
                os.write(1, f"{{rank}} {{type(error).__name__}} {{error}}\\n".encode())  # a line at once
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

def training(name, folder, world=None):
    "The work of a training."
    config = tests.RUNS[name]
    return lambda joined: train.train(
        config, root / folder, resume=True, quiet=True, world=world(joined) if world else None, ranks=joined
    )

for line in sys.stdin:
    script, root = json.loads(line)
    root = Path(root)
    exec(script)
    print("played", flush=True)
"""


def world(config: Config):
    """The experiment of a config; tiny images in the place of the glyphs."""
    return Classification(config, tiny.splits()) if config.tasks.name == "glyphs" else experiment(config)


class Struck(Around):
    """A world in which a signal strikes one rank while a given batch of tasks is drawn."""

    def __init__(self, config: Config, joined: distributed.Ranks, *, rank: int, call: int, number: int) -> None:
        super().__init__(world(config))
        self.left, self.number = call if joined.index == rank else 0, number

    def sample(self, shape, generator):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        return super().sample(shape, generator)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def play():
    """Plays scenarios, one after the other: of each, the script and the folder; returns the errors of its ranks."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HARNESS.format(paths=paths)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:

        def one(script: str, folder: Path) -> list[str]:
            process.stdin.write(json.dumps([script, str(folder)]) + "\n")
            process.stdin.flush()
            errors: list[str] = []
            for line in process.stdout:
                if line == "played\n":
                    return errors
                errors.append(line.rstrip("\n"))
            raise AssertionError(f"the scenario failed, with these errors of its ranks: {errors}")

        yield one
        process.stdin.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each run by one process, made when first asked for."""
    root, made = tmp_path_factory.mktemp("alone"), {}

    def make(name: str) -> Path:
        if name not in made:
            train.train(RUNS[name], root / name, quiet=True, world=world(RUNS[name]))
            made[name] = root / name
        return made[name]

    return make


def assert_close(a: Path, b: Path) -> None:
    """The same run up to rounding: weights, running averages, moments, metrics; random streams to the last bit."""
    assert {entry.name for entry in a.iterdir()} == {entry.name for entry in b.iterdir()}
    for name in (run_folder.LAST, run_folder.BEST):
        if not (a / name).exists():
            continue
        one, other = checkpoint.load(a / name), checkpoint.load(b / name)
        assert one.step == other.step and one.config == other.config and one.best == pytest.approx(other.best)
        assert one.tensors.keys() == other.tensors.keys()
        for key, t in one.tensors.items():
            exact = key.startswith("streams/")
            torch.testing.assert_close(t, other.tensors[key], rtol=0 if exact else 1e-6, atol=0 if exact else 1e-7)
    lines, others = run_folder.read_metrics(a), run_folder.read_metrics(b)
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    for line, other in zip(lines, others, strict=True):
        assert numbers(line) == pytest.approx(numbers(other), rel=1e-6, abs=1e-7)


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """Those of a line of metrics but for the time; JSON has a None for an infinite one."""
    flat = {**line, **line.get("validation", {})}
    return {k: inf if v is None else v for k, v in flat.items() if k not in ("seconds", "validation")}


def test_any_number_of_ranks_trains_as_one_process_does(play, tmp_path, alone):
    """Every method, with repeats and ragged tasks and batch-norm: the same tasks, the same noise, the same result."""
    play(
        """
for name in tests.RUNS:
    assert ranks(2, training(name, f"two/{name}")) == [0, 0], name
assert ranks(3, training("stochastic-maml", "three")) == [0, 0, 0]
""",
        tmp_path,
    )
    for name in RUNS:
        assert_close(tmp_path / "two" / name, alone(name))
    assert_close(tmp_path / "three", alone("stochastic-maml"))


def test_all_ranks_hold_the_same_model_in_the_end(play, tmp_path):
    """To the last bit; and it is the one that was best on validation."""
    play(
        """
def work(joined):
    model = training("conv4", "run")(joined)
    write_tensors(root / str(joined.index), model.state_dict(), {})
    assert not model.training
assert ranks(2, work) == [0, 0]
""",
        tmp_path,
    )
    (first, _), (second, _) = (read_tensors(tmp_path / str(i)) for i in (0, 1))
    assert tiny.same_tensors(first, second)
    assert tiny.same_tensors(first, checkpoint.load(tmp_path / "run" / run_folder.BEST).part("model"))


def test_a_signal_to_any_rank_stops_all_at_the_same_step_and_any_number_goes_on(play, tmp_path, alone):
    """The same number of ranks ends the same to the last bit, another number up to rounding."""
    errors = play(
        """
def struck(rank, number):
    return lambda joined: tests.Struck(tests.RUNS["conv4"], joined, rank=rank, call=3, number=number)

assert ranks(2, training("conv4", "whole")) == [0, 0]
assert ranks(2, training("conv4", "run", struck(1, signal.SIGTERM))) == [1, 1]
assert ranks(2, training("conv4", "run", struck(0, signal.SIGINT))) == [1, 1]
shutil.copytree(root / "run", root / "other")
assert ranks(2, training("conv4", "run")) == [0, 0]
assert ranks(3, training("conv4", "other", struck(2, signal.SIGINT))) == [1, 1, 1]
""",
        tmp_path,
    )
    places = ((3, "run"), (6, "run"), (9, "other"))
    stopped = [f"Interrupted stopped after {n} of 11 steps; continue with --resume {tmp_path / at}" for n, at in places]
    assert [line[2:] for line in errors] == [stopped[0]] * 2 + [stopped[1]] * 2 + [stopped[2]] * 3
    assert tiny.same_state(tmp_path / "run" / run_folder.LAST, tmp_path / "whole" / run_folder.LAST)
    assert checkpoint.load(tmp_path / "other" / run_folder.LAST).step == 9
    train.train(RUNS["conv4"], tmp_path / "other", resume=True, quiet=True, world=world(RUNS["conv4"]))
    assert_close(tmp_path / "other", alone("conv4"))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_ends_the_run_on_all_and_leaves_a_good_checkpoint(play, tmp_path, alone, victim):
    errors = play(
        f"""
def struck(joined):
    return tests.Struck(tests.RUNS["gp-vib"], joined, rank={victim}, call=7, number=signal.SIGKILL)

ended = ranks(3, training("gp-vib", "run", struck))
assert ended.pop({victim}) == -signal.SIGKILL and ended == [1, 1]
""",
        tmp_path,
    )
    assert len(errors) == 2
    assert all("RankLost another process of this run ended" in line and "--resume" in line for line in errors)
    assert checkpoint.load(tmp_path / "run" / run_folder.LAST).step == 4
    train.train(RUNS["gp-vib"], tmp_path / "run", resume=True, quiet=True)
    assert_close(tmp_path / "run", alone("gp-vib"))


def test_what_the_first_rank_refuses_ends_all_and_only_it_says_why(play, tmp_path):
    """Tasks that cannot be shared out, a folder in use, an error of its own: before there is a file."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    errors = play(
        """
def fail():
    raise OSError("the disk is full")

assert ranks(4, training("gp-vib", "new")) == [1] * 4
assert ranks(2, training("gp-vib", "taken")) == [1] * 2
assert ranks(2, lambda joined: joined.on_first(fail)) == [1] * 2
assert not (root / "new").exists()
""",
        tmp_path,
    )
    assert sum("FirstFailed" in line for line in errors) == 3 + 1 + 1
    uneven, taken, full = (line for line in errors if "FirstFailed" not in line)
    assert uneven.startswith("0 ValueError train.tasks must be a multiple of the number of processes")
    assert taken.startswith("0 FileExistsError") and full == "0 OSError the disk is full"


def test_an_error_of_a_rank_is_its_own_and_no_loss_of_another(play, tmp_path):
    """A RuntimeError that has nothing to do with the others stays what it is."""
    errors = play(
        """
def work(joined):
    if joined.index == 1:
        raise RuntimeError("out of memory")
    joined.any(False)
assert ranks(2, work) == [1, 1]
""",
        tmp_path,
    )
    lost, own = sorted(errors)
    assert lost.startswith("0 RankLost another process") and own == "1 RuntimeError out of memory"


def test_alone_nothing_is_changed():
    ranks = distributed.ALONE
    objective, bound = object(), object()
    assert ranks.first and ranks.count == 1
    assert ranks.sharded(objective, None, 5) is objective and ranks.gathered(bound) is bound
    assert ranks.any(True) and not ranks.any(False) and ranks.on_first(max, 1, 2, key=abs) == 2


@pytest.mark.parametrize("axis", [1, 2])
def test_portions_of_noise_are_those_of_the_whole(axis):
    """Whatever the dimension of the tasks; and every portion leaves the generator where the whole leaves it."""
    shape, like = [5, 6, 6, 7], torch.zeros((), dtype=torch.float64)
    whole = standard_normal(tuple(shape), g := seeded(3), like=like)
    shape[axis] = 2
    generators = [seeded(3) for _ in range(3)]
    parts = [
        standard_normal(tuple(shape), Portion(generators[i], axis=axis, index=i, count=3), like=like) for i in range(3)
    ]
    assert torch.equal(torch.cat(parts, axis), whole)
    assert all(torch.equal(h.get_state(), g.get_state()) for h in generators)


@pytest.mark.parametrize(("tasks", "count", "near"), [(5, 2, 4), (3, 4, 4), (7, 3, 6)])
def test_uneven_shares_are_refused_with_a_number_that_fits(tasks, count, near):
    with pytest.raises(ValueError, match=rf"got {tasks} tasks a step and {count} processes.*train.tasks={near}\."):
        distributed.check_even(tasks, count)
    distributed.check_even(near, count)


def test_one_process_of_torchrun_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with distributed.joined("cuda") as ranks:
        assert ranks is distributed.ALONE and distributed.first()


def test_a_device_that_ranks_cannot_share_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="device must be cpu or cuda for several processes.*'cuda:1'"):
        with distributed.joined("cuda:1"):
            pass


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": "100", "RANK": "99", "LOCAL_RANK": "99"}.items():
        monkeypatch.setenv(name, value)
    assert not distributed.first()
    with pytest.raises(ValueError, match="process 100 on a machine where PyTorch sees .* Start fewer"):
        with distributed.joined("cuda"):
            pass


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch):
    """By one process, as a reader would try it first."""
    page = (Path(__file__).parents[1] / "docs" / "several-processes.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(source, "several-processes.md", "exec"), names)
    saved = checkpoint.load(tmp_path / "runs/mine" / run_folder.LAST)
    assert saved.step == 300 and tiny.same_tensors(names["model"].state_dict(), saved.part("model"))


def test_the_program_under_torchrun_survives_the_death_of_a_rank(tmp_path):
    """Two processes, one of which is killed; a single one then ends the run."""
    folder = tmp_path / "run"
    arguments = ["-m", "metavib", "train", "sinusoid", "--resume", str(folder), "--quiet", "--steps", "400"]
    for option in ("tasks=4", "log_every=5", "save_every=20", "validate_every=0"):
        arguments += ["--set", f"train.{option}"]
    arguments += ["--set", "test.tasks=20"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*launch, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    while process.poll() is None and not (folder / run_folder.LAST).exists():
        time.sleep(0.02)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(ranks[1]), 9)
    out, messages = process.communicate(timeout=60)
    assert process.returncode and not out, messages
    assert "error: another process of this run ended" in messages and "continue with --resume" in messages
    assert 0 < checkpoint.load(folder / run_folder.LAST).step < 400

    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert checkpoint.load(folder / run_folder.LAST).step == 400 and read_json(folder / "record.json")
