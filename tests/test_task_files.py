"""Task files: the same predictions to the last bit, of constant size or smaller, and nothing foreign gets in."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import cases
from metavib import kernels, likelihoods
from metavib.adapt.file import run_of
from metavib.adapt.learner import Learner
from metavib.adapt.predictor import Predictor
from metavib.adapt.trained import fingerprint
from metavib.encoders import ExactSites, FullSites, SimplifiedSites
from metavib.files import read_tensors, write_tensors
from metavib.likelihoods.prediction import RealPrediction
from metavib.methods import gp_vib
from metavib.model import Model
from metavib.networks import MLP, Conv4


def model(likelihood=None, *, seed: int = 0, kernel=kernels.Linear, dtype=torch.float32) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sites = SimplifiedSites() if likelihood else ExactSites()
        return gp_vib(cases.backbone(), kernel(bias=True), sites, likelihood or likelihoods.Gaussian(0.3)).to(dtype)


LIKELIHOODS = {
    "gaussian": (None, lambda rng, n: rng.normal(size=n)),
    "poisson": (likelihoods.Poisson(), lambda rng, n: rng.poisson(2.0, n)),
    "bernoulli": (likelihoods.Bernoulli(), lambda rng, n: rng.choice(["no", "yes"], n)),
    "softmax": (
        likelihoods.Softmax(5),
        lambda rng, n: [[3, "sea", -1.5, True, None][i] for i in rng.integers(0, 5, n)],
    ),
}
INPUTS = np.random.default_rng(5).normal(size=(6, cases.INPUTS))


def learned(learner: Learner, outputs, n: int = 30) -> Predictor:
    rng = np.random.default_rng(0)
    return learner.adapt((rng.normal(size=(n, cases.INPUTS)), outputs(rng, n)))


def numbers(predictor: Predictor) -> torch.Tensor:
    found = predictor.predict(INPUTS)
    return torch.stack([found.mean, found.variance]) if isinstance(found, RealPrediction) else found.probabilities


@pytest.fixture
def saved(tmp_path):
    """A learner of four classes, what it learned, and the file of it."""
    learner = Learner(model(likelihoods.Softmax(5)))
    task = learned(learner, lambda rng, n: rng.integers(0, 4, n))
    task.save(tmp_path / "task.safetensors", form="memory")
    return learner, task, tmp_path / "task.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_saved_state_predicts_the_same_to_the_last_bit(tmp_path, name, dtype) -> None:
    """Labels of every kind that a file holds come back as they were; and what is loaded learns on."""
    likelihood, outputs = LIKELIHOODS[name]
    learner = Learner(model(likelihood, dtype=dtype))
    task = learned(learner, outputs)
    task.save(tmp_path / "task.safetensors")
    back = learner.load(str(tmp_path / "task.safetensors"))
    assert torch.equal(numbers(back), numbers(task))
    assert back.classes == task.classes and [type(k) for k in back.classes] == [type(k) for k in task.classes]
    assert back.n == 30
    assert all(torch.equal(a, b) for a, b in zip(back.memory.sums, task.memory.sums, strict=True))
    rng = np.random.default_rng(1)
    more = rng.normal(size=(4, cases.INPUTS)), outputs(rng, 4)
    assert torch.equal(numbers(back.update(more)), numbers(task.update(more)))


def test_a_state_of_nothing_is_a_state(tmp_path) -> None:
    learner = Learner(model(likelihoods.Softmax(5)))
    learner.adapt((np.zeros((0, 2)), [])).save(tmp_path / "s")
    back = learner.load(tmp_path / "s")
    assert (back.n, back.classes) == (0, ())


def test_the_file_is_as_large_after_ten_points_as_after_ten_thousand(tmp_path) -> None:
    learner = Learner(model())
    sizes = []
    for n in (10, 10_000):
        learned(learner, LIKELIHOODS["gaussian"][1], n).save(tmp_path / "s", form="memory")
        sizes.append((tmp_path / "s").stat().st_size)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_few_points_are_kept_themselves_and_add_up_to_the_same_last_bit(tmp_path, name, dtype) -> None:
    """However they came: in batches, merged from two places, some of them forgotten again."""
    likelihood, outputs = LIKELIHOODS[name]
    learner, rng = Learner(wide(likelihood, dtype=dtype)), np.random.default_rng(3)
    named = {"classes": ("no", "yes")} if name == "bernoulli" else {}

    def some(n: int):
        return rng.normal(size=(n, cases.INPUTS)), outputs(rng, n)

    first, gone = some(7), some(2)
    task = learner.adapt(first, **named).update(some(1)).update(some(4)).update(gone)
    other = learner.adapt(some(3), **named).update(some(2))
    for known in (task, task.merge(other), other.merge(task), task.forget(gone), task.forget(gone).update(some(2))):
        for form in ("smaller", "points", "memory"):
            known.save(tmp_path / form, form=form)
            back = learner.load(tmp_path / form)
            assert torch.equal(numbers(back), numbers(known)) and back.classes == known.classes and back.n == known.n
            assert all(torch.equal(a, b) for a, b in zip(back.memory.sums, known.memory.sums, strict=True))
        more = some(3)
        assert torch.equal(numbers(learner.load(tmp_path / "points").update(more)), numbers(known.update(more)))
        sizes = {form: (tmp_path / form).stat().st_size for form in ("smaller", "points", "memory")}
        assert sizes["smaller"] == sizes["points"] < sizes["memory"]


def wide(likelihood=None, *, dtype=torch.float32) -> Model:
    """Of so many features that a memory is larger than a handful of points."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sites = SimplifiedSites() if likelihood else ExactSites()
        phi = MLP(cases.INPUTS, (30,))
        return gp_vib(phi, kernels.Linear(bias=True), sites, likelihood or likelihoods.Gaussian(0.3)).to(dtype)


def test_a_file_never_grows_beyond_the_memory(tmp_path) -> None:
    learner, sizes = Learner(wide()), []
    for n in (0, 10, 100, 10_000):
        learned(learner, LIKELIHOODS["gaussian"][1], n).save(tmp_path / "s")
        sizes.append((tmp_path / "s").stat().st_size)
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3] < 6000


def test_twenty_five_pictures_take_no_more_room_than_their_pixels(tmp_path) -> None:
    """Conv4 of 64 channels on 84 x 84 pixels has 1,601 features: a memory of 10 MB."""
    torch.manual_seed(0)
    built = gp_vib(Conv4(3, 84), kernels.Cosine(bias=True), SimplifiedSites(), likelihoods.Softmax(5))
    learner, x = Learner(built), torch.randn(25, 3, 84, 84)
    task = learner.adapt((x, torch.arange(25) % 5))
    task.save(tmp_path / "s")
    assert (tmp_path / "s").stat().st_size < 4 * x.numel() + 2000
    assert torch.equal(learner.load(tmp_path / "s").predict(x[:3]).probabilities, task.predict(x[:3]).probabilities)


def test_files_of_the_old_format_are_read(saved) -> None:
    """metavib-state-1: one memory, without a dimension for the tasks, and a flat list of classes."""
    learner, task, path = saved
    tensors, header = read_tensors(path)
    old = {k: t[0] if k in ("A", "l", "n") else t for k, t in tensors.items()}
    kept = {"fingerprint": header["fingerprint"], "event": header["event"], "run": "/somewhere"}
    write_tensors(path, old, {**kept, "format": "metavib-state-1", "classes": json.dumps(task.classes)})
    back = learner.load(path)
    assert torch.equal(numbers(back), numbers(task)) and back.classes == task.classes and back.n == 30
    assert run_of(path) == Path("/somewhere")


def test_a_run_is_found_from_wherever_the_file_lies(tmp_path, monkeypatch) -> None:
    """Moved with its file it is found beside it; left where it was, there; a relative name is no hindrance."""
    task, place = learned(Learner(model()), LIKELIHOODS["gaussian"][1]), tmp_path / "a"
    (place / "runs" / "one").mkdir(parents=True)
    monkeypatch.chdir(place)
    task.save("task", run=Path("runs/one"))
    monkeypatch.chdir(tmp_path)
    assert run_of(Path("a/task")) == place / "runs" / "one"
    (tmp_path / "b").mkdir()
    shutil.copy(place / "task", tmp_path / "b" / "task")
    assert run_of(tmp_path / "b" / "task") == place / "runs" / "one"
    place.rename(tmp_path / "c")
    assert run_of(Path("c/task")) == tmp_path / "c" / "runs" / "one"
    task.save("alone")
    with pytest.raises(ValueError, match="does not say which run"):
        run_of(Path("alone"))


def test_a_state_belongs_to_a_model_whatever_its_precision(tmp_path, saved) -> None:
    """float32 weights in float64 are the same weights; so are those of a copy, and other samples or ways."""
    _, task, path = saved
    double = Learner(model(likelihoods.Softmax(9), dtype=torch.float64), samples=300_000)
    found = double.load(path).predict(INPUTS).probabilities
    few = Learner(model(likelihoods.Softmax(5)), samples=300_000)
    assert torch.allclose(found, few.load(path).predict(INPUTS).probabilities, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        lambda: model(likelihoods.Softmax(5), seed=1),
        lambda: model(likelihoods.Softmax(5), kernel=kernels.Cosine),  # the same weights, another kernel
        lambda: model(),
        lambda: gp_vib(cases.backbone(), kernels.Linear(bias=True), FullSites(cases.FEATURES), likelihoods.Softmax(5)),
    ],
)
def test_a_state_of_another_model_is_refused(saved, other) -> None:
    with pytest.raises(ValueError, match=r"task.safetensors was made with another model .* Load that model, or adapt"):
        Learner(other()).load(saved[2])


def test_one_changed_weight_is_another_model() -> None:
    one, other = model(), model()
    assert fingerprint(one) == fingerprint(other)
    with torch.no_grad():
        other.prior.network.body.layers[0].weight[0, 0] *= 1.000001
    assert fingerprint(one) != fingerprint(other)


def test_the_batch_norm_encoding_is_part_of_the_model() -> None:
    """It has no weights, and decides what the features are."""
    prints = set()
    for norm in ("running", "transductive", "support+point"):
        kernel = kernels.BNCosine(cases.FEATURES, norm=norm)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            prints.add(fingerprint(gp_vib(cases.backbone(), kernel, ExactSites(), likelihoods.Gaussian(0.3))))
    assert len(prints) == 3


# Files that are no states


def test_what_cannot_be_saved_leaves_no_file(tmp_path) -> None:
    learner = Learner(model(likelihoods.Softmax(5)))
    with pytest.raises(ValueError, match=r"strings, numbers or None; got \('a', 1\) of type tuple"):
        learner.adapt((INPUTS, [("a", 1)] * 6)).save(tmp_path / "s")
    with pytest.raises(ValueError, match="form must be one of smaller, points, memory; got 'tiny'"):
        learner.adapt((INPUTS, [1] * 6)).save(tmp_path / "s", form="tiny")
    many = learned(learner, lambda rng, n: rng.integers(0, 4, n), 1000)
    with pytest.raises(ValueError, match="of the 1000 points only the memory is left"):
        many.save(tmp_path / "s", form="points")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_state(saved, monkeypatch) -> None:
    learner, task, path = saved
    before = path.read_bytes()

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("metavib.files.os.replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        task.update((INPUTS, [0] * 6)).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_missing_and_foreign_files_are_named(tmp_path, saved) -> None:
    learner, _, _ = saved
    with pytest.raises(FileNotFoundError, match="no task file .*nowhere"):
        learner.load(tmp_path / "nowhere")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="text is truncated or no safetensors file"):
        learner.load(tmp_path / "text")
    save_file({"w": torch.zeros(2)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="weights is no task file: expected the format 'metavib-task-2', got None"):
        learner.load(tmp_path / "weights")


@pytest.mark.parametrize("form", ["points", "memory"])
@given(at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_bytes_are_refused_or_harmless(tmp_path, form, at, value, cut) -> None:
    """A byte changed or the end cut off: a ValueError that names the file, or a state that predicts finite numbers."""
    learner = Learner(wide(likelihoods.Softmax(5)))
    path = tmp_path / "task.safetensors"
    learned(learner, lambda rng, n: rng.integers(0, 4, n)).save(path, form=form)
    whole = bytearray(path.read_bytes())
    at %= len(whole)
    if cut:
        whole = whole[:at]
    else:
        whole[at] = value
    path.write_bytes(whole)
    try:
        found = learner.load(path)
    except ValueError as error:
        assert "task.safetensors" in str(error)
        return
    try:
        assert bool(found.predict(INPUTS).probabilities.isfinite().all())
    except ValueError as error:  # numbers of no points at all: the factorisation says so
        assert "Cholesky of A + I failed" in str(error)


CHANGES = {
    "classes twice": ({"classes": "[[1, 1, 2, 3]]"}, "damaged header"),
    "classes nested": ({"classes": "[[[1], 2, 3, 4]]"}, "damaged header"),
    "classes flat": ({"classes": "[1, 2, 3, 4]"}, "damaged header"),
    "classes nan": ({"classes": "[[NaN, 2, 3, 4]]"}, "damaged header"),
    "classes deep": ({"classes": "[" * 100_000}, "damaged header"),
    "classes no list": ({"classes": "{}"}, "damaged header"),
    "classes more": ({"classes": "[[1, 2, 3, 4, 5]]"}, "should be float64"),
    "event": ({"event": "[-1]"}, "damaged header"),
    "event no json": ({"event": "("}, "damaged header"),
    "no tasks": ({"ids": "[]", "classes": "[]", "batches": "[]"}, "damaged header"),
    "more ids": ({"ids": "[1, 2]"}, "damaged header"),
    "batches no list": ({"batches": "7"}, "damaged header"),
    "points where there are none": ({"batches": "[[3, 4]]"}, "should hold"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_hostile_headers_are_refused(saved, change) -> None:
    learner, _, path = saved
    tensors, header = read_tensors(path)
    changed, message = CHANGES[change]
    write_tensors(path, tensors, header | changed)
    with pytest.raises(ValueError, match=f"task.safetensors .*{message}"):
        learner.load(path)
    del header["event"]
    write_tensors(path, tensors, header)
    with pytest.raises(ValueError, match="task.safetensors has a damaged header"):
        learner.load(path)


TENSORS = {
    "name": (lambda t: t | {"extra": torch.zeros(1)}, "should hold"),
    "missing": (lambda t: {k: v for k, v in t.items() if k != "l"}, "should hold"),
    "dtype": (lambda t: t | {"b": t["b"].float()}, r"b should be float64 \(5, 4\), and is F32"),
    "shape": (lambda t: t | {"A": torch.zeros(7, dtype=torch.float64)}, "A should be float64"),
    "nan": (lambda t: t | {"b": t["b"] * torch.nan}, "no sums over points"),
    "negative": (lambda t: t | {"n": -t["n"]}, "no sums over points"),
    "fraction": (lambda t: t | {"n": t["n"] + 0.5}, "no sums over points"),
    "counts": (lambda t: t | {"counts": t["counts"] + 1}, "its classes hold 34 points, 30 in all"),
}


@pytest.mark.parametrize("change", TENSORS)
def test_tensors_that_no_points_could_make_are_refused(saved, change) -> None:
    learner, _, path = saved
    tensors, header = read_tensors(path)
    make, message = TENSORS[change]
    write_tensors(path, make(tensors), header)
    with pytest.raises(ValueError, match=f"task.safetensors is damaged: .*{message}"):
        learner.load(path)


POINTS = {
    "nan": (lambda t, h: (t | {"x": t["x"] * torch.nan}, h), "NaN or infinite"),
    "no class": (lambda t, h: (t | {"y": t["y"] + 3}, h), "is of none of the classes"),
    "no place": (lambda t, h: (t | {"y": t["y"].float()}, h), "y should be int64"),
    "fewer": (lambda t, h: (t | {"x": t["x"][1:]}, h), "x should be"),
    "other shape": (lambda t, h: (t, h | {"event": "[3]"}), "x should be"),
    "more batches": (lambda t, h: (t, h | {"batches": "[[30, 5]]"}), "x should be"),
    "a memory besides": (lambda t, h: (t | {"A": torch.zeros(1)}, h), "should hold"),
    "negative": (lambda t, h: (t, h | {"batches": "[[31, -1]]"}), "damaged header"),
}


@pytest.mark.parametrize("change", POINTS)
def test_points_that_nobody_learned_from_are_refused(tmp_path, change) -> None:
    learner, path = Learner(wide(likelihoods.Softmax(5))), tmp_path / "task.safetensors"
    learned(learner, lambda rng, n: rng.integers(0, 4, n)).save(path, form="points")
    make, message = POINTS[change]
    write_tensors(path, *make(*read_tensors(path)))
    with pytest.raises(ValueError, match=f"task.safetensors .*{message}"):
        learner.load(path)


def test_counts_that_are_no_counts_are_refused(tmp_path) -> None:
    learner, path = Learner(wide(likelihoods.Poisson())), tmp_path / "task.safetensors"
    learned(learner, lambda rng, n: rng.poisson(2.0, n)).save(path, form="points")
    tensors, header = read_tensors(path)
    write_tensors(path, tensors | {"y": tensors["y"] - 10}, header)
    with pytest.raises(ValueError, match="task.safetensors is damaged: Poisson outputs must be counts"):
        learner.load(path)


def test_sizes_a_header_claims_are_checked_before_anything_is_read(saved) -> None:
    """A header that claims a terabyte is refused: it does not fit the file, nor the model."""
    learner, _, path = saved
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header["b"]["shape"] = [2**18, 2**19]
    header["b"]["data_offsets"] = [0, 2**40]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    with pytest.raises(ValueError, match=r"task\.safetensors"):
        learner.load(path)
    path.write_bytes(struct.pack("<Q", 2**62) + raw[8:])
    with pytest.raises(ValueError, match=r"task\.safetensors"):
        learner.load(path)


def test_a_model_without_a_memory_loads_no_state(saved) -> None:
    """It cannot have made one: the fingerprint is another's."""
    kept = Learner(gp_vib(cases.backbone(), kernels.RBF(), ExactSites(), likelihoods.Gaussian(0.3)))
    with pytest.raises(ValueError, match="made with another model"):
        kept.load(saved[2])
    with pytest.raises(TypeError, match="keeps no memory of constant size: the kernel RBF"):
        kept.trained.blank((), (2,), "cpu")


KILLED = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
sys.path[:0] = {paths!r}
from test_task_files import INPUTS, learned, model, numbers
from metavib import likelihoods
from metavib.adapt.learner import Learner

path, learner = sys.argv[1], Learner(model(likelihoods.Softmax(5)))
task = learned(learner, lambda rng, n: rng.integers(0, 4, n))
task.save(path)
random.seed(0)
seen, kills = set(), 0
while kills < 100 or len(seen) < 10:  # however slow the disk, some writers get somewhere
    child = os.fork()
    if not child:
        while True:
            task = task.update((INPUTS, [0, 1, 2, 3, 0, 1]))
            task.save(path)
    time.sleep(random.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    task = learner.load(path)
    assert bool(numbers(task).isfinite().all()) and (task.n - 30) % 6 == 0
    seen.add(task.n)
    kills += 1
print(kills)
"""


def test_a_hundred_kills_never_leave_an_unreadable_state(tmp_path) -> None:
    """A writer killed at random moments, a hundred times over: the file is always one whole state or the next."""
    here = Path(__file__).parent
    script = KILLED.format(paths=[str(here), str(here.parent / "src")])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "task.safetensors")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 100
