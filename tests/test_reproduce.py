"""Reproductions: named runs to tables; what is done is skipped, what was killed goes on, what failed says why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import tiny
from metavib import checkpoint, cli, paper, recipes, records, reproduce, runs, tables, train
from metavib.config import Config
from metavib.files import read_json, write_json
from metavib.strict import override, to_dict


class Here:
    """A process that is none: the command runs in this one, at once, and its output goes to the log."""

    started: list[list[str]] = []

    def __init__(self, command, stdout, stderr, env) -> None:
        assert command[1:3] == ["-m", "metavib"] and env["OMP_NUM_THREADS"] == "1"
        Here.started.append(command)
        arguments, before = sys.argv, (sys.stdout, sys.stderr)
        with open(stdout.name, "w") as log:
            sys.argv, sys.stdout, sys.stderr = ["metavib", *command[3:]], log, log
            try:
                cli.main()
                self.returncode = 0
            except SystemExit as end:
                self.returncode = end.code or 0
            finally:
                sys.argv, (sys.stdout, sys.stderr) = arguments, before

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None: ...

    def wait(self) -> int:
        return self.returncode


def processes(start) -> SimpleNamespace:
    """What `metavib.runs` sees of the module `subprocess`; the rest of the program sees the real one."""
    return SimpleNamespace(Popen=start, STDOUT=subprocess.STDOUT)


def smaller(config: Config) -> Config:
    """Any run of a reproduction, made tiny."""
    sizes = {k: v for k, v in tiny._SINUSOID.items() if not k.startswith("test.shots")}
    return override(config, sizes | {"repeats": min(2, config.repeats)})


@pytest.fixture
def here(monkeypatch):
    """Reproductions in this process, tiny; what was started."""
    monkeypatch.setattr(runs, "subprocess", processes(Here))
    monkeypatch.setattr(runs, "POLL", 0.0)
    monkeypatch.setattr(reproduce, "quick", smaller)
    monkeypatch.setattr(Here, "started", [])
    return Here.started


def test_table_1_has_every_row_with_the_papers_numbers_beside_ours(here, tmp_path):
    text = reproduce.reproduce("table-1", tmp_path, fast=True, quiet=True)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    header, body = rows[0], {row[0]: row for row in rows[2:]}
    assert header == ["method", "K = 5", "paper", "K = 10", "paper", "K = 20", "paper"]
    assert {"MAML, 1 step", "MAML, 5 steps", "MAML, 10 steps", "stochastic MAML, 1 step", "GP-VIB"} <= set(body)
    for (method, steps), numbers in paper.TABLE_1.items():
        row = body[tables._label(method, method, steps)]
        assert row[2::2] == [f"{numbers[k][0]} ± {numbers[k][1]}" for k in (5, 10, 20)]
    folder = tmp_path / "table-1-quick"
    assert text.strip() == (folder / "README.md").read_text().strip()
    for name in reproduce.REPRODUCTIONS["table-1"].configs():
        record = read_json(folder / f"{name}.json")
        mse = record["evaluation"]["rows"][0]["metrics"]["mse"]
        assert len(mse["repeats"]) == 2 and f"{mse['mean']:.4f} ± {mse['ci95_over_repeats']:.4f}" in text
    assert "95% interval over 2 trainings" in text


def test_a_second_call_does_only_what_is_missing(here, tmp_path):
    first = reproduce.reproduce("figure-2", tmp_path, fast=True, quiet=True)
    assert len(here) == 1 and (tmp_path / "figure-2-quick" / "figure-2.png").exists()
    assert reproduce.reproduce("figure-2", tmp_path, fast=True, quiet=True) == first
    assert len(here) == 1  # nothing was started again


def test_the_ablation_over_beta_has_a_row_and_a_point_a_beta(here, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "BETAS", (1e-3, 1.0))
    text = reproduce.reproduce("beta", tmp_path, fast=True, quiet=True)
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][2:] == ["0.001", "1"]
    assert (tmp_path / "beta-quick" / "beta.png").exists() and len(here) == 2


def test_quick_is_the_same_run_with_fewer_steps():
    for name, entry in reproduce.REPRODUCTIONS.items():
        for config in entry.configs().values():
            fast = reproduce.quick(config)
            assert fast.train.steps < config.train.steps and fast.method == config.method, name
            assert fast.train.lr == config.train.lr and fast.repeats <= config.repeats


def test_there_are_the_reproductions_promised():
    assert {"table-1", "figure-2", "beta"} <= set(reproduce.REPRODUCTIONS)
    configs = reproduce.REPRODUCTIONS["table-1"].configs()
    assert {c.method for c in configs.values()} == set(tiny.REGRESSORS)
    assert {c.repeats for c in configs.values()} == {10}
    assert configs["gp-vib"].train == recipes.recipe("sinusoid", "gp-vib").train
    betas = [c.train.beta for c in reproduce.REPRODUCTIONS["beta"].configs().values()]
    assert betas == sorted(betas) and betas[-1] == 1.0


def test_an_unknown_reproduction_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="no 'table-7' to reproduce; there are table-1"):
        reproduce.reproduce("table-7", tmp_path)
    assert not list(tmp_path.iterdir())


# Many runs


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
    assert (tmp_path / "good" / "evaluation.json").exists()  # what was done before stays
    runs.run_all({"good": good}, tmp_path, quiet=True)
    assert len(here) == 2


def test_no_more_runs_at_a_time_than_asked_for(tmp_path, monkeypatch):
    alive, most = set(), []

    class Slow(Here):
        def __init__(self, command, stdout, stderr, env) -> None:
            super().__init__(command, stdout, stderr, env)
            alive.add(self)
            most.append(len(alive))
            self.polls = 0

        def poll(self):
            self.polls += 1
            if self.polls < 3:
                return None
            alive.discard(self)
            return self.returncode

    monkeypatch.setattr(runs, "subprocess", processes(Slow))
    monkeypatch.setattr(runs, "POLL", 0.0)
    configs = {f"r{seed}": tiny.sinusoid(seed=seed, train__steps=2) for seed in range(5)}
    runs.run_all(configs, tmp_path, jobs=2, quiet=True)
    assert max(most) == 2 and all((tmp_path / name / "evaluation.json").exists() for name in configs)


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setattr(runs, "POLL", 0.05)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(real, tmp_path):
    """A real process, killed in the middle; the same call again finishes it. The record is that of the whole run."""
    config = tiny.sinusoid(train__steps=400, train__save_every=40, train__log_every=10, train__validate_every=0)
    process = runs._start(config, tmp_path / "runs" / "a")
    while process.poll() is None and not (tmp_path / "runs" / "a" / train.LAST).exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    stopped = checkpoint.load(tmp_path / "runs" / "a" / train.LAST).step
    assert 0 < stopped < 400
    runs.run_all({"a": config}, tmp_path / "runs", quiet=True)
    cli.run(config, tmp_path / "whole", resume=False, quiet=True)
    assert tiny.same_state(tmp_path / "runs" / "a" / train.LAST, tmp_path / "whole" / train.LAST)
    first, second = (read_json(folder / "evaluation.json") for folder in (tmp_path / "runs" / "a", tmp_path / "whole"))
    assert first == second


def test_stopping_the_reproduction_stops_its_runs_and_keeps_their_state(real, tmp_path, monkeypatch):
    """Ctrl-C in the parent: each child is asked to stop, saves, and can be resumed; none is left behind."""
    config = tiny.sinusoid(train__steps=100_000, train__save_every=100_000, train__log_every=10)
    children, popen = [], subprocess.Popen

    def watched(*args, **kwargs):
        children.append(popen(*args, **kwargs))
        return children[-1]

    def interrupted(seconds: float) -> None:
        if train.read_metrics(tmp_path / "a"):
            raise KeyboardInterrupt

    monkeypatch.setattr(runs, "subprocess", processes(watched))
    monkeypatch.setattr(runs.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs.run_all({"a": config}, tmp_path, quiet=True)
    assert [child.poll() for child in children] == [130]
    assert 0 < checkpoint.load(tmp_path / "a" / train.LAST).step < 100_000
    assert "continue with --resume" in (tmp_path / "a.log").read_text()


# Tables


def test_a_table_reads_as_plain_text_and_as_markdown():
    text = tables.markdown(["a", "long header"], [["1", "2"], ["three", "4"]])
    lines = text.splitlines()
    assert lines[0] == "| a     | long header |" and lines[1] == "| ----- | ----------- |"
    assert len({len(line) for line in lines}) == 1


def test_the_spread_printed_is_over_trainings_where_there_are_several():
    metric = {"mean": 0.12345, "ci95_over_tasks": 0.5}
    assert tables.plus_minus(metric) == "0.123 ± 0.500"
    assert tables.plus_minus(metric | {"ci95_over_repeats": 0.25}, 4) == "0.1235 ± 0.2500"
    assert tables.plus_minus({"mean": 1.0, "ci95_over_tasks": None}) == "1.000"


def test_a_record_holds_what_is_needed_to_do_it_again(tmp_path):
    config = tiny.sinusoid()
    record = records.record(config, {"rows": []}, [{"step": 1, "seconds": 1.234, "validation": {"score": 0.5}}])
    write_json(tmp_path / "r.json", record)
    again = read_json(tmp_path / "r.json")
    assert again == record and again["config"] == to_dict(config) and again["training_seconds"] == 1.2
    assert {"commit", "machine", "versions"} <= set(again) and {"torch", "python", "numpy"} <= set(again["versions"])
    assert Path(records.__file__).exists() and (again["commit"] is None or len(again["commit"]) >= 40)
