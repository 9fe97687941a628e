"""Pictures in the classifier: the very model of `metavib train images`, of pictures in every form, and its file."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from metavib import FewShotClassifier, FewShotRegressor, Learner
from metavib.data.folder import read_classes
from metavib.estimators import pictures as training
from metavib.estimators.pictures import are_pictures, said_fields
from metavib.tasks.task import Task
from metavib.training import recipes, run_folder
from metavib.training.stopping import Interrupted
from program import done


def drawn(c: int, i: int) -> np.ndarray:
    """A white bar on black whose place and direction are the class's."""
    pixels, at, shake = np.full((30, 36), 10, np.uint8), 3 + 5 * (c // 2), np.random.default_rng(31 * c + i).integers(3)
    pixels[(slice(at, at + 3), slice(shake, 25)) if c % 2 else (slice(shake, 25), slice(at, at + 3))] = 230
    return pixels


CLASSES, EACH = 10, 6
NAMES = np.repeat([f"bar {c}" for c in range(CLASSES)], EACH)
PIXELS = np.stack([drawn(c, i) for c in range(CLASSES) for i in range(EACH)])
NEW, KINDS = np.stack([drawn(c, 50 + i) for c in (10, 11) for i in range(3)]), np.repeat(["new", "other"], 3)
SAID = {"n_steps": 4, "random_state": 3}


@pytest.fixture(scope="module")
def small():
    """The recipe with a small network and few tasks, for the program and the estimator alike."""
    patch = pytest.MonkeyPatch()
    options = {"model.width": 4, "model.samples": 8, "train.validation_tasks": 3, "test.tasks": 4, "test.queries": 3}
    for field, value in options.items():
        patch.setitem(recipes._CALIBRATED, field, value)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("album")
    paths = [root / name / f"{i % EACH}.png" for i, name in enumerate(NAMES)]
    for path, pixels in zip(paths, PIXELS, strict=True):
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return paths


@pytest.fixture(scope="module")
def fitted(small):
    return FewShotClassifier(**SAID).fit(PIXELS, NAMES)


def test_the_estimator_and_the_program_are_the_same_model_to_the_last_bit(fitted, files, tmp_path, monkeypatch):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    done("train", "images", "--root", files[0].parents[1], "--steps", "4", "--seed", "3", "--out", run, "--quiet")
    saved = run_folder.chosen(run)
    assert fitted.run_.tensors.keys() == {name for name in saved.tensors if name.startswith("model/")}
    assert all(torch.equal(t, saved.tensors[name]) for name, t in fitted.run_.tensors.items())
    assert fitted.run_.temperature == saved.temperature and not saved.temperature.plain
    curve = [(line["step"], line["validation"]["score"]) for line in run_folder.read_metrics(run)]
    assert fitted.history_.scores == tuple(curve) and fitted.n_iter_ == 4
    rows = json.loads((run / "record.json").read_text())["evaluation"]["rows"]
    assert fitted.report_.row(1)["nll"] == rows[0]["metrics"]["nll"]
    learner = Learner.from_run(run).adapt((NEW, KINDS.tolist()))
    mine = fitted.adapt(NEW, KINDS)
    np.testing.assert_array_equal(mine.predict_proba(NEW), learner.predict(NEW).probabilities.numpy())
    assert mine.classes_.tolist() == ["new", "other"] and fitted.classes_.tolist() == sorted(set(NAMES))


def test_behind_the_network_of_photographs_it_is_the_program_s_model_too(small, tmp_path, monkeypatch):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (CLASSES, 1, 40, 40, 3)) + rng.normal(0, 20, (CLASSES, EACH, 40, 40, 3))
    pictures = colours.clip(0, 255).astype(np.uint8).reshape(-1, 40, 40, 3)
    for name, i, pixels in zip(NAMES, range(len(NAMES)), pictures, strict=True):
        (tmp_path / "album" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "album" / name / f"{i % EACH}.png")
    monkeypatch.setitem(recipes._FROZEN, "test.tasks", 4)
    monkeypatch.setitem(recipes._FROZEN, "train.validation_tasks", 3)
    mine = FewShotClassifier(backbone="photographs", **SAID).fit(pictures, NAMES)
    options = ["--backbone", "photographs", "--frozen", "--steps", "4", "--seed", "3"]
    done("train", "images", "--root", tmp_path / "album", *options, "--out", tmp_path / "run", "--quiet")
    saved = run_folder.chosen(tmp_path / "run")
    assert mine.run_.config.frozen and mine.run_.temperature.values == pytest.approx(saved.temperature.values)
    for name, t in mine.run_.tensors.items():
        torch.testing.assert_close(t, saved.tensors[name], rtol=1e-5, atol=1e-6)
    mine.save(tmp_path / "model.safetensors")
    again = FewShotClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(pictures[:3]), mine.predict_proba(pictures[:3]))


def test_pictures_are_read_once_for_each_form_that_is_tried(small, monkeypatch):
    """What says where training starts from is also trained on."""
    forms = []

    def counted(classes, form, **options):
        forms.append(form)
        return read_classes(classes, form, **options)

    def stopped(*given, **options):
        raise Interrupted("here")

    monkeypatch.setattr(training, "read_classes", counted)
    monkeypatch.setattr(training.loop, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        FewShotClassifier(**SAID).fit(PIXELS, NAMES)
    assert len(forms) == len(set(forms)) == 2


def test_a_picture_is_the_same_in_every_form(fitted, files):
    expected = fitted.adapt(PIXELS[:12], NAMES[:12]).predict_proba(PIXELS[:3])
    forms = {
        "floats": PIXELS / 255.0,
        "channels last": PIXELS[..., None],
        "channels first": PIXELS[:, None],
        "colours": np.repeat(PIXELS[..., None], 3, axis=-1),
        "a tensor": torch.as_tensor(PIXELS),
        "images": [Image.fromarray(pixels) for pixels in PIXELS],
        "paths": files,
        "names of files": [str(path) for path in files],
        "bytes": [path.read_bytes() for path in files],
    }
    for name, pictures in forms.items():
        assert are_pictures(pictures), name
        found = fitted.adapt(pictures[:12], NAMES[:12]).predict_proba(pictures[:3])
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_paths_of_pictures_are_learned_from_as_their_pixels_are(fitted, files):
    again = FewShotClassifier(**SAID).fit(files, NAMES)
    assert all(torch.equal(t, again.run_.tensors[name]) for name, t in fitted.run_.tensors.items())


def test_a_file_holds_the_network_the_report_and_the_task(fitted, tmp_path):
    for estimator in (fitted, fitted.adapt(NEW, KINDS)):
        estimator.save(tmp_path / "e.safetensors")
        again = FewShotClassifier.load(tmp_path / "e.safetensors")
        np.testing.assert_array_equal(again.predict_proba(NEW), estimator.predict_proba(NEW))
        assert str(again.report_) == str(fitted.report_) and again.history_ == fitted.history_
        assert again.get_params() == fitted.get_params() and again.run_.config == fitted.run_.config
        np.testing.assert_array_equal(
            again.adapt(PIXELS[:9], NAMES[:9]).predict_proba(NEW),
            fitted.adapt(PIXELS[:9], NAMES[:9]).predict_proba(NEW),
        )


def test_tasks_of_pictures_grow_merge_and_forget(fitted):
    whole = fitted.adapt(NEW, KINDS).predict_proba(NEW)
    odd, even = fitted.adapt(NEW[1::2], KINDS[1::2]), fitted.adapt(NEW[::2], KINDS[::2])
    np.testing.assert_allclose(odd.merge(even).predict_proba(NEW), whole, atol=1e-6)
    more = fitted.adapt(np.concatenate([NEW, PIXELS[:1]]), [*KINDS, "new"]).forget(PIXELS[:1], ["new"])
    np.testing.assert_allclose(more.predict_proba(NEW), whole, atol=1e-6)
    odd.partial_fit(NEW[::2], KINDS[::2])
    np.testing.assert_allclose(odd.predict_proba(NEW), whole, atol=1e-6)
    many = fitted.adapt(NEW, KINDS, tasks=["here"] * len(NEW))
    np.testing.assert_allclose(many.predict_proba(NEW, tasks=["here"] * len(NEW)), whole, atol=1e-6)
    assert 0 <= fitted.score(PIXELS, NAMES, tasks=["all"] * len(NAMES), shots=2) <= 1


def test_a_fit_on_rows_forgets_that_there_were_pictures(small):
    estimator = FewShotClassifier(**SAID).fit(PIXELS, NAMES)
    rows = np.random.default_rng(0).normal(size=(len(NAMES), 3))
    assert estimator.fit(rows, NAMES).predict(rows).shape == (len(NAMES),)
    assert estimator.run_ is None and not hasattr(estimator, "report_")


@pytest.mark.parametrize(
    ("options", "pictures", "labels", "message"),
    [
        ({"hidden": (9,)}, PIXELS, NAMES, "has no hidden: it has kernel, ways"),
        ({"shots": (1, 5)}, PIXELS, NAMES, "shots is one number"),
        ({}, PIXELS, NAMES[1:], "59 of 60"),
        ({}, PIXELS * 3.0, NAMES, r"60 of 60 pictures cannot be read(?s:.*)before any normalisation"),
        ({}, PIXELS[:12], NAMES[:12], "needs 6 classes at least"),
        ({}, ["nowhere.png"] * 60, NAMES, r"there is no picture nowhere\.png(?s:.*)Leave them out of X"),
        ({}, PIXELS, np.linspace(0, 1, 60), "continuous"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_before_any_work(small, options, pictures, labels, message):
    with pytest.raises(ValueError, match=message):
        FewShotClassifier(**SAID | options).fit(pictures, labels)


def test_pictures_have_no_tasks_and_come_in_lists(fitted, files):
    with pytest.raises(ValueError, match="leave out tasks"):
        FewShotClassifier(**SAID).fit(PIXELS, NAMES, tasks=NAMES)
    with pytest.raises(TypeError, match="expected a list of pictures"):
        fitted.predict(str(files[0]))


def test_a_device_that_is_not_there_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    pictures = np.zeros((40, 8, 8), dtype=np.uint8)
    with pytest.raises(ValueError, match="PyTorch sees no GPU"):
        FewShotClassifier(device="cuda").fit(pictures, np.arange(40) % 8)
    rows, y, ids = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 8, np.arange(40) % 10
    for estimator, tasks in ((FewShotClassifier, None), (FewShotClassifier, ids), (FewShotRegressor, ids)):
        labels = y if tasks is None else np.arange(40) // 10 % 2
        with pytest.raises(ValueError, match="rows are learned from on the CPU.*device='cuda'.*backbone='mlp'"):
            estimator(device="cuda").fit(rows, labels, tasks=tasks)
        with pytest.raises(ValueError, match="PyTorch sees no GPU"):
            estimator(device="cuda", backbone="mlp").fit(rows, labels, tasks=tasks)


@pytest.mark.parametrize("estimator", [FewShotClassifier, FewShotRegressor])
def test_networks_of_rows_are_trained_on_the_device_and_used_on_the_cpu(estimator, monkeypatch):
    """Every tensor of a step is asked to come there; the processor under another name gives the same numbers."""
    rng = np.random.default_rng(0)
    rows, y, ids = rng.normal(size=(60, 3)), np.arange(60) % 3, np.arange(60) % 10
    moved = []
    monkeypatch.setattr(Task, "to", lambda task, *to: (moved.append(to), task)[1])
    options = {"backbone": "mlp", "hidden": (8,), "n_steps": 4, "random_state": 0}
    here, there = (estimator(device=device, **options).fit(rows, y, tasks=ids) for device in ("cpu", "cpu:0"))
    assert {to for to in moved} == {("cpu",), ("cpu:0",)} and moved.count(("cpu:0",)) > 4
    few = np.flatnonzero(ids == 0)
    np.testing.assert_array_equal(*(e.adapt(rows[few], y[few]).predict(rows[:5]) for e in (here, there)))


def test_a_device_is_that_of_the_training_and_of_the_estimator():
    options = FewShotClassifier(device="cuda:1").get_params(deep=False)
    assert said_fields(options, FewShotClassifier().get_params(deep=False)) == {"device": "cuda:1"}
