"""A run that was interrupted, however and whenever, ends bit-identical to one that never was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest
import torch

import program
import tiny
from metavib.files import write_json
from metavib.training import checkpoint, recipes, run_folder, runs
from metavib.training import loop as train
from metavib.training.config import Config
from metavib.training.fields import override, to_dict
from metavib.training.protocols import experiment
from metavib.training.protocols.classification import Classification
from worlds import Around

# Steps that are no multiples of each other: saving, logging and validating all happen at different times.
CADENCE = {"train__steps": 20, "train__save_every": 7, "train__log_every": 3, "train__validate_every": 5}

RUNS: dict[str, Config] = {
    **{method: tiny.sinusoid(method, **CADENCE) for method in tiny.REGRESSORS},
    "repeats": tiny.sinusoid(repeats=2, **CADENCE),
    "cosine": tiny.sinusoid(train__schedule="cosine", tasks__min_shots=1, **CADENCE),
    # Running averages of batch-norm, Monte Carlo noise, two learning rates, the best on validation.
    "conv4": tiny.glyphs(**CADENCE | {"train__site_lr": 1e-2}),
}


def world(config: Config):
    """The experiment of a config; tiny images in the place of the glyphs."""
    return Classification(config, tiny.splits()) if config.tasks.name == "glyphs" else experiment(config)


@pytest.fixture(autouse=True)
def tiny_images(monkeypatch):
    monkeypatch.setattr(train, "experiment", world)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Each run without any interruption, made when first asked for."""
    root, made = tmp_path_factory.mktemp("whole"), {}

    def make(name: str) -> Path:
        if name not in made:
            train.train(RUNS[name], root / name, quiet=True)
            made[name] = root / name
        return made[name]

    return make


def assert_same(a: Path, b: Path) -> None:
    """The same weights, optimiser, random streams and best model to the last bit; the same metrics but for the time."""
    assert tiny.same_state(a / run_folder.LAST, b / run_folder.LAST)
    assert (a / run_folder.BEST).exists() == (b / run_folder.BEST).exists()
    if (a / run_folder.BEST).exists():
        assert tiny.same_state(a / run_folder.BEST, b / run_folder.BEST)
    first, second = ([{**line, "seconds": 0} for line in run_folder.read_metrics(f)] for f in (a, b))
    steps = [line["step"] for line in first]
    assert first == second and steps == sorted(set(steps))
    assert {entry.name for entry in a.iterdir()} == {entry.name for entry in b.iterdir()}  # no litter


class Signals(Around):
    """A world in which a signal arrives while a given batch of tasks is drawn."""

    def __init__(self, inner, call: int, number: int) -> None:
        super().__init__(inner)
        self.call, self.number, self.calls = call, number, 0

    def sample(self, shape, generator):
        self.calls += 1
        if self.calls == self.call:
            os.kill(os.getpid(), self.number)
        return super().sample(shape, generator)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_between_steps_and_the_resumed_run_ends_the_same(tmp_path, monkeypatch, whole, name, number):
    """Twice in a row: after step 4, which is neither saved nor logged by itself, and four steps later."""
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(train, "experiment", lambda config: Signals(world(config), 4, number))
        for stopped in (4, 8):
            with pytest.raises(train.Interrupted, match=f"stopped after {stopped} of 20 steps; continue with --resume"):
                train.train(RUNS[name], tmp_path / "run", resume=True, quiet=True)
            assert checkpoint.load(tmp_path / "run" / run_folder.LAST).step == stopped
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    train.train(RUNS[name], tmp_path / "run", resume=True, quiet=True)
    assert_same(tmp_path / "run", whole(name))


def test_a_signal_in_the_last_step_is_too_late(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(train, "experiment", lambda config: Signals(world(config), 20, signal.SIGINT))
    train.train(RUNS["gp-vib"], tmp_path / "run", quiet=True)
    assert_same(tmp_path / "run", whole("gp-vib"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_first_step_is_compiled_stops_at_once(tmp_path, monkeypatch, whole, number):
    """A compiler takes its time, and nothing is lost: what was there before is what the run goes on from."""

    def struck(step, config):
        def compiling():
            os.kill(os.getpid(), number)
            raise AssertionError("the signal should have ended this")

        return compiling

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for done in (0, 4):
        with monkeypatch.context() as patch:
            patch.setattr(train, "compiles", lambda config: True)
            patch.setattr(train, "fastest", struck)
            with pytest.raises(train.Interrupted, match=f"stopped after {done} of 20 steps; continue with --resume"):
                train.train(RUNS["gp-vib"], tmp_path / "run", resume=True)
        if not done:
            with monkeypatch.context() as patch:
                patch.setattr(train, "experiment", lambda config: Signals(world(config), 4, number))
                with pytest.raises(train.Interrupted):
                    train.train(RUNS["gp-vib"], tmp_path / "run", resume=True, quiet=True)
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    train.train(RUNS["gp-vib"], tmp_path / "run", resume=True, quiet=True)
    assert_same(tmp_path / "run", whole("gp-vib"))


def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch, whole):
    class Twice(Signals):
        def sample(self, shape, generator):
            if self.calls == 8:
                os.kill(os.getpid(), signal.SIGINT)
            return super().sample(shape, generator)

    with monkeypatch.context() as patch:
        patch.setattr(train, "experiment", lambda config: Twice(world(config), 9, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train.train(RUNS["gp-vib"], tmp_path / "run", quiet=True)
    train.train(RUNS["gp-vib"], tmp_path / "run", resume=True, quiet=True)  # from the checkpoint of step 7
    assert_same(tmp_path / "run", whole("gp-vib"))


def test_resuming_a_finished_run_changes_nothing(tmp_path, whole):
    before = {entry.name: entry.read_bytes() for entry in whole("gp-vib").iterdir()}
    model = train.train(RUNS["gp-vib"], whole("gp-vib"), resume=True, quiet=True)
    assert before == {entry.name: entry.read_bytes() for entry in whole("gp-vib").iterdir()}
    assert tiny.same_tensors(model.state_dict(), checkpoint.load(whole("gp-vib") / run_folder.LAST).part("model"))


def test_resume_on_a_new_folder_starts_from_the_beginning(tmp_path, whole):
    train.train(RUNS["gp-vib"], tmp_path / "run", resume=True, quiet=True)
    assert_same(tmp_path / "run", whole("gp-vib"))


@pytest.mark.parametrize("leftover", ["config.json", ".config.json.x7", "metrics.jsonl"])
def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, whole, leftover):
    """Whatever of the first files was there; a metrics line that a kill cut short is dropped."""
    folder = tmp_path / "run"
    folder.mkdir()
    if leftover != ".config.json.x7":
        (folder / "config.json").write_bytes((whole("gp-vib") / "config.json").read_bytes())
    if leftover == ".config.json.x7":
        (folder / leftover).write_text('{"meth')
    if leftover == "metrics.jsonl":
        (folder / leftover).write_text('{"step": 3, "seconds": 0.1, "value": 0.0}\n{"step": 5, "sec')
    train.train(RUNS["gp-vib"], folder, resume=True, quiet=True)
    (folder / ".config.json.x7").unlink(missing_ok=True)
    assert_same(folder, whole("gp-vib"))


# The real thing: processes that are killed. One Python starts, and forks a child for every attempt.

HARNESS = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import test_resume
from metavib.training import run_folder
from metavib.training import loop as train
train.experiment = test_resume.world
root, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
for name, config in test_resume.LONGER.items():
    train.train(config, root / "whole" / name, quiet=True)  # uninterrupted; and all that Python imports late is here
    kills = 0
    while True:
        child = os.fork()
        if not child:
            try:
                train.train(config, root / name, resume=True, quiet=True)
            except BaseException as error:
                print(name, repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        # Short lives first, then longer ones, so that a run always ends.
        time.sleep(rng.uniform(0.0, 0.05 * (1 + kills)))
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    print(name, "kills", kills, "status", status, flush=True)
"""

LONGER = {name: override(config, {"train.steps": 40, "train.save_every": 3}) for name, config in RUNS.items()}


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_a_run_killed_at_any_moment_ends_the_same(tmp_path):
    """SIGKILL at random moments, several times a run: in a step, in a write, between a write and its rename."""
    script = HARNESS.format(tests=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), "0"], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kills = {}
    for line in done.stdout.splitlines():
        name, _, count, _, status = line.split()
        assert status == "0", done.stdout
        kills[name] = int(count)
    assert kills.keys() == LONGER.keys() and all(kills.values())
    for name in LONGER:
        for leftover in (tmp_path / name).glob(".*"):  # what a kill cut short in the middle of a write
            leftover.unlink()
        assert_same(tmp_path / name, tmp_path / "whole" / name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_program_stops_on_a_signal_and_resumes(tmp_path, number):
    """Status 130 and a message, no traceback; what it kept is as if the loop itself had stopped there."""
    config = override(tiny.sinusoid(), {"train.steps": 3000, "train.log_every": 10, "train.validate_every": 0})
    write_json(tmp_path / "c.json", to_dict(config))
    command = [sys.executable, "-m", "metavib", "train", "sinusoid", "--config", str(tmp_path / "c.json")]
    command += ["--out", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    while process.poll() is None and not run_folder.read_metrics(tmp_path / "run"):
        time.sleep(0.02)
    process.send_signal(number)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 130, messages
    assert "continue with --resume" in messages and "Traceback" not in messages
    stopped = checkpoint.load(tmp_path / "run" / run_folder.LAST).step
    assert 0 < stopped < 3000 and not (tmp_path / "run" / "record.json").exists()
    # Going on in this process, for a few steps, is enough to compare: the rest is tested above.
    short = override(config, {"train.steps": stopped})
    reference = train.train(short, tmp_path / "whole", quiet=True).state_dict()
    assert tiny.same_tensors(reference, checkpoint.load(tmp_path / "run" / run_folder.LAST).part("model"))


def test_threads_other_than_the_main_one_can_train(tmp_path, whole):
    """Signals belong to the main thread; elsewhere the loop leaves them alone."""
    thread = Thread(target=train.train, args=(RUNS["gp-vib"], tmp_path / "run"), kwargs={"quiet": True})
    thread.start()
    thread.join()
    assert_same(tmp_path / "run", whole("gp-vib"))


def test_every_kind_of_state_is_in_the_comparison(whole):
    """The runs above do hold what could be lost: moments, streams, running averages."""
    tensors = checkpoint.load(whole("conv4") / run_folder.LAST).tensors
    assert any("running" in name or "mean" in name for name in tensors if name.startswith("model/"))
    assert any(name.endswith("exp_avg_sq") for name in tensors) and "streams/noise" in tensors
    assert all(torch.is_tensor(t) for t in tensors.values())


class Struck(Around):
    """A world in whose test somebody presses Ctrl-C."""

    def evaluate(self, *arguments, **options):
        raise KeyboardInterrupt


def test_ctrl_c_outside_the_loop_says_how_to_go_on(tmp_path, monkeypatch):
    """While data are read nothing is there yet; in the test the training is done, and resuming tests it."""
    config, folder = tiny.sinusoid(), tmp_path / "run"

    def read(config: Config):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "experiment", read)
    with pytest.raises(train.Interrupted, match="before the first step: the same command starts again"):
        runs.run(config, folder, quiet=True)
    monkeypatch.setattr(runs, "experiment", lambda config: Struck(world(config)))
    with pytest.raises(train.Interrupted, match=f"stopped; continue with --resume {folder}"):
        runs.run(config, folder, quiet=True)
    monkeypatch.setattr(runs, "experiment", world)
    assert runs.run(config, folder, resume=True, quiet=True)["evaluation"]["rows"]


def test_a_run_that_goes_on_names_what_would_change_it_even_where_the_change_makes_no_sense(tmp_path):
    """Five shots do not go with splits that were made for one: what was asked for is named, and what may grow."""
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / run_folder.CONFIG, to_dict(recipes.recipe("images", "gp-vib")))
    message = program.refused("train", "--resume", tmp_path / "run", "--shots", 5)
    assert "tasks.shots would change it" in " ".join(message.split()) and "--minutes may grow" in message
