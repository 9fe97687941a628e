"""A hundred kills: trainings and updates that die at random moments leave readable files and lose no finished work.

One Python starts, imports everything, and forks a child for every attempt, so that a kill costs milliseconds.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import tiny
from metavib.adapt.learner import Learner
from metavib.training import checkpoint, run_folder
from metavib.training import loop as train

# Steps that are no multiples of each other: saving, logging and validating all happen at different times.
CADENCE = {"train__steps": 17, "train__save_every": 2, "train__log_every": 3, "train__validate_every": 5}
RUNS = {
    "gp-vib": tiny.sinusoid(train__select="best", train__schedule="cosine", **CADENCE),
    "maml": tiny.sinusoid("maml", **CADENCE),
}
TRAINING, UPDATES = 70, 30  # kills of each

BEGIN = """
import gc, os, random, signal, sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
import test_kill
from metavib.training import run_folder
from metavib.training import loop as train

root, rng = Path(sys.argv[1]), random.Random(0)

def attempt(work, seconds):
    "Whether some work ended before it was killed."
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
    else:
        _, status = os.waitpid(child, 0)
    assert status == 0, status
    return True
"""

TRAIN = """
for name, config in test_kill.RUNS.items():
    train.train(config, root / "whole" / name, quiet=True)  # and all that Python imports late is here
    began = time.monotonic()
    train.train(config, root / "again" / name, quiet=True)
    whole = time.monotonic() - began
    kills, number = 0, 0
    while kills < {kills}:
        folder, number = root / name / str(number), number + 1
        resume = lambda: train.train(config, folder, resume=True, quiet=True)
        while kills < {kills}:
            # Lives of a fraction of the run, so that a run is killed several times before it ends.
            if attempt(resume, rng.uniform(0, 0.4 * whole)):
                break
            kills += 1
            test_kill.check_readable(folder, config)
        attempt(resume, None)
    print(name, kills, flush=True)
"""

UPDATE = """
from metavib import cli

state = root / "task.safetensors"
sys.argv = ["metavib", "update", str(state), "--points", str(root / "points.csv")]

def update():
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, end

def forever():
    while True:
        update()

sys.stdout, out = open(os.devnull, "w"), sys.stdout
update()
began = time.monotonic()
update()
one = time.monotonic() - began
gc.freeze()  # or a child's first garbage collection would touch, and so copy, all that its parent has
kills, seen, learner = 0, set(), test_kill.Learner.from_run(root / "run")
while kills < {kills} or (len(seen) < 3 and kills < 10 * {kills}):  # a busy machine gets less done before a kill
    assert not attempt(forever, rng.uniform(0.0, 3 * one))
    kills += 1
    seen.add(test_kill.check_state(state, learner))
print(kills, len(seen), file=out, flush=True)
"""


def check_readable(folder: Path, config) -> None:
    """Whatever is there after a kill is whole: nothing but temporary names may hold half a file."""
    if (folder / run_folder.CONFIG).exists():
        run_folder.prepare(config, folder, resume=True)
    for name in (run_folder.LAST, run_folder.BEST):
        if (folder / name).exists():
            saved = checkpoint.load(folder / name)
            assert saved.config == config and 0 < saved.step <= config.train.steps
            assert all(bool(t.isfinite().all()) for t in checkpoint.restore_model(saved).state_dict().values())
    steps = [line["step"] for line in run_folder.read_metrics(folder)]
    assert steps == sorted(steps)


POINTS = np.array([[-1.0, 0.3], [0.5, -0.2], [2.0, 0.9]])


def check_state(path: Path, learner: Learner) -> int:
    """The state in a file is that of some whole number of updates, as the API makes it; returns how many."""
    found = learner.load(path)
    k, rest = divmod(found.n, len(POINTS))
    assert k >= 1 and rest == 0
    one = learner.adapt((POINTS[:, :1], POINTS[:, 1])).memory.sums
    for a, b in zip(found.memory.sums, one, strict=True):
        assert torch.allclose(a, k * b, rtol=1e-12, atol=0)  # sums of the same points over and over
    return k


def run(script: str, folder: Path) -> str:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.format(paths=paths) + script, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_seventy_kills_of_trainings_change_nothing_of_what_they_end_with(tmp_path):
    """After every kill all files are readable; every run, gone on with, ends with the weights of an untouched one."""
    each = -(-TRAINING // len(RUNS))
    out = run(TRAIN.format(kills=each), tmp_path)
    kills = {name: int(count) for name, count in (line.split() for line in out.splitlines())}
    assert kills.keys() == RUNS.keys() and sum(kills.values()) >= TRAINING
    for name in RUNS:
        whole, ended = tmp_path / "whole" / name, sorted((tmp_path / name).iterdir())
        assert ended
        for folder in ended:
            assert tiny.same_state(folder / run_folder.LAST, whole / run_folder.LAST)
            assert tiny.same_state(folder / run_folder.BEST, whole / run_folder.BEST)
            lines, wanted = ([{**x, "seconds": 0} for x in run_folder.read_metrics(f)] for f in (folder, whole))
            assert lines == wanted
            left = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
            assert left == {p.name for p in whole.iterdir()}


def test_thirty_kills_of_the_program_while_it_updates_a_state_lose_no_update(tmp_path):
    """`metavib update` over and over, killed: the file holds the points of a whole number of updates."""
    train.train(tiny.sinusoid(), tmp_path / "run", quiet=True)
    learner = Learner.from_run(tmp_path / "run")
    learner.adapt((POINTS[:, :1], POINTS[:, 1])).save(tmp_path / "task.safetensors", run=tmp_path / "run")
    (tmp_path / "points.csv").write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in POINTS))
    kills, different = map(int, run(UPDATE.format(kills=UPDATES), tmp_path).split())
    assert kills >= UPDATES and different >= 3
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".task.safetensors.")}
    assert left == {"run", "task.safetensors", "points.csv"}
