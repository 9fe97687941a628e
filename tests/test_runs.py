"""Many runs: what is done is skipped, what was killed goes on, what failed says why and takes nobody with it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import processes
import tiny
from metavib.files import read_json
from metavib.training import checkpoint, run, run_folder
from metavib.training import loop as train
from metavib.training.fields import to_dict
from metavib.training.runs import retest
from reproduction import queue as runs
from reproduction import shared_gpu as mps


def test_results_of_another_config_do_not_count_as_finished(here, tmp_path):
    """A recipe that has changed since is not passed off as done: the run refuses, and says why."""
    runs.run_all({"a": tiny.sinusoid()}, tmp_path, quiet=True)
    with pytest.raises(runs.RunFailed, match=r"(?s)the run a failed:.*another config"):
        runs.run_all({"a": tiny.sinusoid(train__lr=0.5)}, tmp_path, quiet=True)
    assert read_json(tmp_path / "a" / "config.json") == to_dict(tiny.sinusoid())


def test_a_run_that_fails_is_named_with_its_last_words(here, tmp_path):
    good, bad = tiny.sinusoid(), tiny.sinusoid(model__kernel="rbg")
    with pytest.raises(runs.RunFailed, match=r"(?s)the run bad failed:.*model\.kernel must be one of"):
        runs.run_all({"good": good, "bad": bad}, tmp_path, jobs=1, quiet=True)
    assert (tmp_path / "good" / "record.json").exists()  # what was done before stays
    runs.run_all({"good": good}, tmp_path, quiet=True)
    assert len(here) == 2


def test_failures_take_no_other_run_with_them_and_are_told_at_the_end(here, tmp_path):
    """Five of six runs fail, the first among them: the sixth is finished, three say why, the others are named."""
    configs = {f"part/bad{i}": tiny.sinusoid(model__kernel="rbg", seed=i) for i in range(5)}
    finished = []
    with pytest.raises(runs.RunFailed) as failure:
        runs.run_all({**configs, "good": tiny.sinusoid()}, tmp_path, jobs=1, quiet=True, done=finished.append)
    text = str(failure.value)
    assert finished == ["good"] and text.startswith("5 of 6 runs failed.")
    assert text.count("model.kernel must be one of") == 3 and "part/bad3, part/bad4; their logs are in" in text


def test_a_call_that_is_stopped_says_what_had_failed(here, tmp_path, monkeypatch):
    def interrupted(seconds: float) -> None:
        if len(here) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.time, "sleep", interrupted)
    configs = {"bad": tiny.sinusoid(model__kernel="rbg"), "good": tiny.sinusoid()}
    with pytest.raises(train.Interrupted, match="0 of 2 runs finished; the same command goes on. bad failed; the logs"):
        runs.run_all(configs, tmp_path, jobs=1, quiet=True)


def test_each_run_is_handed_over_as_soon_as_it_is_finished(here, tmp_path):
    """Not at the end: a call that is killed has lost nothing that was finished. What was there before counts too."""
    configs = {name: tiny.sinusoid(seed=i, train__steps=2) for i, name in enumerate("abc")}
    runs.run_all({"b": configs["b"]}, tmp_path, quiet=True)
    seen = []

    def done(name: str) -> None:
        seen.append((name, len(here)))

    runs.run_all(configs, tmp_path, jobs=1, quiet=True, done=done)
    assert seen == [("b", 1), ("a", 2), ("c", 3)]


def test_a_run_that_somebody_is_at_work_on_is_waited_for(here, tmp_path, monkeypatch):
    """Whoever works on a run holds its lock; the others of the list go first, and it is looked at again later."""
    configs = {name: tiny.sinusoid(seed=i, train__steps=2) for i, name in enumerate("ab")}
    lock = open(tmp_path / "a.lock", "wb")
    assert runs._locked(lock)
    polls = []

    def sleep(seconds: float) -> None:
        polls.append(len(here))
        if len(polls) == 3:
            lock.close()

    monkeypatch.setattr(runs.time, "sleep", sleep)
    finished = []
    runs.run_all(configs, tmp_path, quiet=True, done=finished.append)
    assert polls == [1, 1, 1, 2] and finished == ["b", "a"]


def test_a_trained_model_is_tested_otherwise_without_training_it_again(here, tmp_path, monkeypatch):
    """The record of the second test is what a run of its own would have had, and its folder holds no checkpoint."""
    first, again = tiny.sinusoid(), tiny.sinusoid(test__shots=[1, 2, 4])
    runs.run_all({"first": first}, tmp_path, quiet=True)
    runs.run_all({"again": again}, tmp_path, quiet=True, trained={"again": tmp_path / "first"})
    runs.run_all({"whole": again}, tmp_path, quiet=True)
    result, whole = (read_json(tmp_path / name / "record.json") for name in ("again", "whole"))
    assert result["evaluation"] == whole["evaluation"] and result["config"] == to_dict(again)
    assert [row["shots"] for row in result["evaluation"]["rows"]] == [1, 2, 4]
    assert not (tmp_path / "again" / run_folder.LAST).exists()
    run_folder.pack(tmp_path / "first", tmp_path / "packed")  # which has no lines of its training any more
    packed = retest(again, tmp_path / "of-packed", tmp_path / "packed", quiet=True)
    assert packed["training_seconds"] == result["training_seconds"] and packed["validation"] == result["validation"]
    known = run_folder.chosen(tmp_path / "first")
    on_a_gpu = known._replace(config=replace(known.config, device="cuda"))
    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "chosen", lambda folder: on_a_gpu)
        elsewhere = retest(again, tmp_path / "from-a-gpu", tmp_path / "first", quiet=True)
    assert elsewhere["evaluation"] == result["evaluation"] and elsewhere["config"]["device"] == "cpu"
    other = tiny.sinusoid(train__lr=0.5)
    with pytest.raises(runs.RunFailed, match="trained under another config"):
        runs.run_all({"other": other}, tmp_path, quiet=True, trained={"other": tmp_path / "first"})


def test_no_more_runs_at_a_time_than_asked_for(tmp_path, monkeypatch):
    alive, most = set(), []

    class Slow(processes.Here):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            alive.add(self)
            most.append(len(alive))
            self.polls = 0

        def poll(self):
            self.polls += 1
            if self.polls < 3:
                return None
            alive.discard(self)
            return self.returncode

    monkeypatch.setattr(runs, "subprocess", processes.instead(Slow))
    monkeypatch.setattr(runs, "POLL", 0.0)
    configs = {f"r{seed}": tiny.sinusoid(seed=seed, train__steps=2) for seed in range(5)}
    runs.run_all(configs, tmp_path, jobs=2, quiet=True)
    assert max(most) == 2 and all((tmp_path / name / "record.json").exists() for name in configs)


def test_a_run_waits_for_the_compiled_code_of_its_twin(tmp_path, monkeypatch):
    """Of two trainings that differ in their seed the second starts once the first has taken a step; others at once."""
    events = []

    class Compiling:
        returncode = 0

        def __init__(self, command, **options) -> None:
            self.folder, self.polls = Path(command[command.index("--resume") + 1]), 0
            events.append(f"{self.folder.name} starts")

        def poll(self) -> int | None:
            self.polls += 1
            if self.polls == 3:
                self.folder.mkdir()
                (self.folder / "metrics.jsonl").write_text('{"step": 100}\n')
                events.append(f"{self.folder.name} steps")
            return 0 if self.polls == 9 else None

    monkeypatch.setattr(runs, "subprocess", processes.instead(Compiling))
    monkeypatch.setattr(runs, "POLL", 0.0)
    monkeypatch.setattr(runs, "compiles", lambda config: config.train.steps >= 12)
    twins = {f"a{seed}": tiny.sinusoid(seed=seed) for seed in range(2)}
    short = {f"s{seed}": tiny.sinusoid(seed=seed, train__steps=2) for seed in range(2)}
    runs.run_all({**twins, "b": tiny.sinusoid(train__lr=0.5), **short}, tmp_path, jobs=9, quiet=True)
    assert events[:4] == ["a0 starts", "b starts", "s0 starts", "s1 starts"]  # what is not compiled never waits
    assert events.index("a0 steps") < events.index("a1 starts")


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setattr(runs, "POLL", 0.05)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(real, tmp_path):
    """A real process, killed in the middle; the same call again finishes it. The record is that of the whole run."""
    config = tiny.sinusoid(train__steps=400, train__save_every=40, train__log_every=10, train__validate_every=0)
    process = runs._start(config, tmp_path / "runs" / "a")
    while process.poll() is None and not (tmp_path / "runs" / "a" / run_folder.LAST).exists():
        time.sleep(0.01)
    assert runs._start(config, tmp_path / "runs" / "a") is None  # it holds the lock of its run
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    stopped = checkpoint.load(tmp_path / "runs" / "a" / run_folder.LAST).step
    assert 0 < stopped < 400
    runs.run_all({"a": config}, tmp_path / "runs", quiet=True)
    run(config, tmp_path / "whole", resume=False, quiet=True)
    assert tiny.same_state(tmp_path / "runs" / "a" / run_folder.LAST, tmp_path / "whole" / run_folder.LAST)
    first, second = (read_json(folder / "record.json") for folder in (tmp_path / "runs" / "a", tmp_path / "whole"))
    assert first["evaluation"] == second["evaluation"]


def test_stopping_the_reproduction_stops_its_runs_and_keeps_their_state(real, tmp_path, monkeypatch):
    """SIGTERM in the parent: each child is asked to stop, saves, and can be resumed; none is left behind."""
    config = tiny.sinusoid(train__steps=100_000, train__save_every=100_000, train__log_every=10)
    children, popen, pause = [], subprocess.Popen, time.sleep

    def watched(*args, **kwargs):
        children.append(popen(*args, **kwargs))
        return children[-1]

    def interrupted(seconds: float) -> None:
        pause(0.05)
        if run_folder.read_metrics(tmp_path / "a"):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(runs, "subprocess", processes.instead(watched))
    monkeypatch.setattr(runs.time, "sleep", interrupted)
    with pytest.raises(train.Interrupted, match="0 of 1 runs finished; the same command goes on"):
        runs.run_all({"a": config}, tmp_path, quiet=True)
    assert [child.poll() for child in children] == [130]
    assert 0 < checkpoint.load(tmp_path / "a" / run_folder.LAST).step < 100_000
    assert "continue with --resume" in (tmp_path / "a.log").read_text()


# A shared GPU


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A stand-in for NVIDIA's program, which notes what it is asked for and in which folder; those notes."""
    program, notes = tmp_path / "bin" / mps.CONTROL, tmp_path / "notes"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nif [ "$1" = -d ]; then echo start $CUDA_MPS_PIPE_DIRECTORY >> {notes}\n'
                       f'else read word; echo $word $CUDA_MPS_PIPE_DIRECTORY >> {notes}; fi\n')  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv(mps.PIPES, raising=False)
    return notes


def test_the_gpu_is_shared_while_the_block_lasts(daemon):
    with mps.shared_gpu() as variables:
        folder = variables[mps.PIPES]
        assert daemon.read_text() == f"start {folder}\n" and os.path.isdir(folder)
    assert daemon.read_text() == f"start {folder}\nquit {folder}\n" and not os.path.exists(folder)


def test_the_daemon_ends_even_if_its_owner_is_killed(daemon):
    code = "from reproduction.shared_gpu import shared_gpu\nwith shared_gpu():\n print('up', flush=True)\n input()"
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"up\n"
    owner.kill()
    owner.communicate()
    until = time.monotonic() + 20
    while "quit" not in daemon.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert [line.split()[0] for line in daemon.read_text().splitlines()] == ["start", "quit"]


def test_a_daemon_that_is_there_or_does_not_start_is_left_alone(daemon, monkeypatch):
    (daemon.parent / "bin" / mps.CONTROL).write_text("#!/bin/sh\necho no driver; exit 1\n")
    with (
        pytest.warns(RuntimeWarning, match="did not start .no driver.: processes take turns"),
        mps.shared_gpu() as none,
    ):
        assert none == {}
    monkeypatch.setenv(mps.PIPES, "somewhere")
    with mps.shared_gpu() as none:
        assert none == {} and not daemon.exists()


@pytest.mark.parametrize(("device", "count", "shared"), [("cuda", 2, True), ("cuda", 1, False), ("cpu", 2, False)])
def test_several_runs_on_a_gpu_share_it_and_no_others(device, count, shared, daemon, tmp_path, monkeypatch):
    """They find the daemon in their environment, eight of them at a time; it is ended even though they fail."""
    alive, most, environments = [], [], []

    class Refused(processes.Here):
        def __init__(self, command, env, **options) -> None:
            alive.append(self)
            most.append(len(alive))
            environments.append(env)
            self.returncode = 1

        def poll(self) -> int:
            alive.clear()
            return 1

    monkeypatch.setattr(runs, "subprocess", processes.instead(Refused))
    monkeypatch.setattr(runs, "POLL", 0.0)
    monkeypatch.setattr(runs, "GPU_JOBS", 8)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    configs = {f"r{seed}": tiny.sinusoid(seed=seed, device=device) for seed in range(10 if count > 1 else 1)}
    with pytest.raises(runs.RunFailed):
        runs.run_all(configs, tmp_path, quiet=True)
    assert all((mps.PIPES in environment) == shared for environment in environments)
    assert max(most) == {"cuda": 8, "cpu": 3}[device] if count > 1 else 1
    assert daemon.exists() == shared and (not shared or daemon.read_text().split()[::2] == ["start", "quit"])
