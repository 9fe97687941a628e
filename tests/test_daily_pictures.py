"""Daily use through the program itself: a folder of pictures in, a run, a task's state, classes out."""

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from metavib.adapt.learner import Learner
from metavib.adapt.preparation import of_run
from metavib.files import read_tensors
from metavib.training import build, run_folder
from program import done, metavib, predicted, refused, settings, train_table, values


def picture(path: Path, c: int, i: int, side: int = 20) -> None:
    """A bright bar, whose place and direction are the class's, on noise."""
    rng = np.random.default_rng(100 * c + i)
    pixels = rng.integers(0, 60, (side, side + 4, 3), dtype=np.uint8)
    at = 2 + 3 * (c // 2)
    pixels[(slice(at, at + 3), slice(None)) if c % 2 else (slice(None), slice(at, at + 3))] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    """A run on a folder of nine classes of pictures, and classes of a new task."""
    root = tmp_path_factory.mktemp("album")
    patch = pytest.MonkeyPatch()
    patch.setenv("METAVIB_CACHE", str(root / "cache"))
    for c in range(9):
        for i in range(6):
            picture(root / "pictures" / f"class {c}" / f"{i}.png", c, i)
    for c, name in ((0, "ant"), (1, "bee")):
        for i in range(3):
            picture(root / "support" / name / f"{i}.png", c, 50 + i)
    for i in range(4):
        picture(root / "more" / "cat" / f"{i}.jpg", 6, 70 + i)
    for c in (0, 1, 6):
        picture(root / "query" / "deeper" / f"{c}.png", c, 90)
    (root / "query" / "notes.txt").write_text("no picture")
    options = {"tasks.ways": 2, "tasks.queries": 3, "tasks.size": 16, "tasks.augment": False, "model.width": 8}
    options |= {"train.save_every": 10, "train.lr": 5e-3, "tasks.fit": "centre"}
    options |= {"model.poolings": 4}
    train = ["train", "images", "--root", root / "pictures", "--shots", 2, "--steps", 30, "--out", root / "run"]
    ended = metavib(*train, "--quiet", *settings(**options | {"test.queries": 3}))
    assert ended.status == 0 and f"`metavib adapt {root / 'run'} --support FOLDER`" in ended.err.replace("\n", " ")
    done("adapt", root / "run", "--support", root / "support", "--out", root / "task.safetensors")
    yield root
    patch.undo()


def test_pictures_are_told_apart_by_the_names_of_their_folders(album):
    found = predicted(album / "task.safetensors", album / "query")
    assert [row["query"] for row in found] == ["deeper/0.png", "deeper/1.png", "deeper/6.png"]
    assert list(found[0]) == ["query", "class", "entropy", "p(ant)", "p(bee)"]
    assert [row["class"] for row in found][:2] == ["ant", "bee"]
    for row in found:
        assert row["p(ant)"] + row["p(bee)"] == pytest.approx(1) and 0 <= row["entropy"] <= np.log(2) + 1e-9
    (one,) = predicted(album / "task.safetensors", album / "query" / "deeper" / "1.png")
    assert (one["query"], one["class"]) == ("1.png", "bee")
    np.testing.assert_allclose(values([one]), values(found[1:2]), atol=1e-6)  # alone as among others
    text = done("predict", album / "task.safetensors", "--query", album / "query", "--csv")
    assert [row["class"] for row in csv.DictReader(io.StringIO(text))] == [row["class"] for row in found]


def test_the_picture_path_is_the_python_api_on_pixels_by_hand(album):
    """Central square, resized to 1.15 times the network's side, central crop, ImageNet's mean and deviation."""

    def pixels(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            w, h = image.size
            square = image.crop(((w - h) // 2, 0, (w - h) // 2 + h, h)).resize((18, 18), Image.Resampling.BILINEAR)
        x = np.asarray(square, dtype=np.float64)[1:17, 1:17].transpose(2, 0, 1) / 255
        mean, sd = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        return (x - mean[:, None, None]) / sd[:, None, None]

    paths = sorted((album / "support").rglob("*.png"))
    temperature = run_folder.chosen(album / "run").temperature  # three pictures of each class
    bare = Learner(
        Learner.from_run(album / "run").trained.model, temperature=temperature
    )  # takes what the network takes
    task = bare.adapt((np.stack([pixels(p) for p in paths]).astype(np.float32), [p.parent.name for p in paths]))
    said = task.predict(np.stack([pixels(p) for p in sorted((album / "query").rglob("*.png"))]).astype(np.float32))
    found = predicted(album / "task.safetensors", album / "query")
    wanted = torch.cat([said.entropy[:, None], said.probabilities], -1).numpy()
    np.testing.assert_allclose(values(found), wanted, atol=1e-5)


FORMS = {
    "paths": lambda paths: paths,
    "text": lambda paths: [str(p) for p in paths],
    "bytes": lambda paths: [p.read_bytes() for p in paths],
    "pillow": lambda paths: [Image.open(p) for p in paths],
    "rgba": lambda paths: [Image.open(p).convert("RGBA") for p in paths],
    "uint8 (H, W, C)": lambda paths: [np.asarray(Image.open(p)) for p in paths],
    "uint8 (C, H, W)": lambda paths: [np.asarray(Image.open(p)).transpose(2, 0, 1) for p in paths],
    "uint8 (n, H, W, C)": lambda paths: np.stack([np.asarray(Image.open(p)) for p in paths]),
    "uint8 (n, C, H, W)": lambda paths: np.stack([np.asarray(Image.open(p)).transpose(2, 0, 1) for p in paths]),
    "tensor": lambda paths: torch.tensor(np.stack([np.asarray(Image.open(p)).transpose(2, 0, 1) for p in paths])),
    "int64": lambda paths: np.stack([np.asarray(Image.open(p)) for p in paths]).astype(np.int64),
    "float32 in 0..1": lambda paths: np.stack([np.asarray(Image.open(p)) for p in paths]).astype(np.float32) / 255,
    "float64 in 0..1": lambda paths: [np.asarray(Image.open(p)) / 255 for p in paths],
    "nested lists": lambda paths: [np.asarray(Image.open(p)).tolist() for p in paths],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_pictures_gives_the_same_predictions(album, form):
    """As support and as query, to the last bit what the folders give."""
    learner, paths = Learner.from_run(album / "run"), sorted((album / "support").rglob("*.png"))
    task = learner.adapt(album / "support")
    wanted = task.predict(album / "query").probabilities
    queries = FORMS[form](sorted((album / "query").rglob("*.png")))
    found = learner.adapt((FORMS[form](paths), [p.parent.name for p in paths]))
    assert torch.equal(found.predict(queries).probabilities, wanted) and found.classes == task.classes
    by_name = learner.adapt({k: FORMS[form]([p for p in paths if p.parent.name == k]) for k in ("ant", "bee")})
    assert torch.equal(by_name.predict(queries).probabilities, wanted)
    for one, p in zip(queries, wanted, strict=True):
        alone = task.predict([one] if isinstance(one, list) else one).probabilities[0]
        torch.testing.assert_close(alone, p, rtol=0, atol=1e-6)


def test_grey_pictures_come_in_their_own_forms():
    """A run of one channel: (H, W), (n, H, W), (n, 1, H, W) and colour files of grey pictures are the same pixels."""
    config = tiny.glyphs()
    learner = Learner(build.model(config), preparation=of_run(config))
    pixels = tiny.images("new", 3, 4, seed=9).images.numpy()
    wanted = learner.preparation.inputs(pixels)
    assert wanted.shape == (12, 1, 16, 16)
    torch.testing.assert_close(wanted * 0.229 + 0.485, torch.tensor(pixels) / 255)
    for form in (pixels[:, 0], [p[0] for p in pixels], pixels / 255, [Image.fromarray(p[0]) for p in pixels],
                 [Image.fromarray(p[0]).convert("RGB") for p in pixels], pixels[..., None][:, 0]):  # fmt: skip
        assert torch.equal(learner.preparation.inputs(form), wanted)
    assert torch.equal(learner.preparation.inputs(pixels[0, 0]), wanted[:1])
    assert torch.equal(learner.preparation.inputs(pixels[0]), wanted[:1])
    assert torch.equal(learner.preparation.inputs(pixels > 127), learner.preparation.inputs((pixels > 127) * 255))
    assert learner.adapt((pixels[:0], [])).n == 0


WRONG = {
    "normalised": (lambda p: p / 128.0 - 1, "before any normalisation; got float64 from -1"),
    "too large": (lambda p: p.astype(np.int32) * 2, "from 0 to 255"),
    "not finite": (lambda p: p * np.nan, "floats from 0 to 1"),
    "complex": (lambda p: p * 1j, "floats from 0 to 1"),
    "ambiguous": (lambda p: p[:3, 0], "3 grey pictures, or one of 3 channels"),
    "two channels": (lambda p: [np.stack([p[0, 0]] * 2)], "1, 3 or 4 channels"),
    "five dimensions": (lambda p: p[None], "expected pictures"),
    "no pictures": (lambda p: 7, "expected pictures"),
    "no such file": (lambda p: ["nowhere.png"], "there is no picture nowhere.png"),
    "no picture": (lambda p: [b"hello"], "picture 1 cannot be read"),
    "below zero": (lambda p: [Image.fromarray(-1 - p[0, 0].astype(np.int32))], "picture 1: pixels of type I"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_picture_is_refused(case):
    config = tiny.glyphs()
    make, message = WRONG[case]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        of_run(config).inputs(make(tiny.images("new", 3, 4).images.numpy()))
    with pytest.raises(TypeError, match="a folder of class folders; got int"):
        of_run(config).points(7)


def test_a_new_class_joins_by_an_update_and_leaves_by_forgetting(album, tmp_path):
    state = tmp_path / "task.safetensors"
    shutil.copy(album / "task.safetensors", state)
    before = predicted(state, album / "query")
    assert "10 points, classes ant, bee, cat" in done("update", state, "--points", album / "more")
    after = predicted(state, album / "query")
    assert list(after[0])[3:] == ["p(ant)", "p(bee)", "p(cat)"]
    assert [row["class"] for row in after] == ["ant", "bee", "cat"]
    done("update", state, "--points", album / "more", "--forget")
    again = predicted(state, album / "query")
    assert [list(row) for row in again] == [list(row) for row in before]
    np.testing.assert_allclose(values(again), values(before), atol=1e-3)


def test_a_class_that_is_named_and_has_no_pictures_stays_possible(album, tmp_path):
    state = tmp_path / "task.safetensors"
    (tmp_path / "one").mkdir()
    shutil.copytree(album / "support" / "ant", tmp_path / "one" / "ant")
    assert "3 points, classes ant, bee" in done(
        "adapt", album / "run", "--support", tmp_path / "one", "--classes", "ant, bee", "--out", state
    )
    ant, *others = predicted(state, album / "query")
    for row in (ant, *others):
        assert 0 < row["p(bee)"] < 1 and row["p(ant)"] + row["p(bee)"] == pytest.approx(1)
    assert all(max(ant["p(bee)"], 0.001) < row["p(bee)"] for row in others)  # which are unlike the pictures of ants
    done("adapt", album / "run", "--support", tmp_path / "one", "--out", state)
    assert {row["p(ant)"] for row in predicted(state, album / "query")} == {1.0}  # there is nothing else it could be


def test_pictures_that_cannot_be_read_are_named_and_the_state_stays(album, tmp_path):
    state = tmp_path / "task.safetensors"
    shutil.copy(album / "task.safetensors", state)
    before = state.read_bytes()
    (tmp_path / "bad" / "dog").mkdir(parents=True)
    (tmp_path / "bad" / "dog" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n no picture")
    for command in (["update", state, "--points", tmp_path / "bad"], ["predict", state, "--query", tmp_path / "bad"]):
        assert "broken.png cannot be read" in refused(*command)
    (tmp_path / "empty").mkdir()
    assert "no sub-folders" in refused("update", state, "--points", tmp_path / "empty")
    assert "no pictures found" in refused("predict", state, "--query", tmp_path / "empty")
    assert "is not a folder" in refused("update", state, "--points", album / "query" / "deeper" / "0.png")
    assert state.read_bytes() == before


def test_a_run_shows_what_it_is_and_how_good(album, tmp_path):
    table = train_table(tmp_path, "poisson")
    for run, words in (
        (table, ("table", "gp-vib", "memory of constant size")),
        (album / "run", ("images", "accuracy")),
    ):
        text = done("show", run)
        assert all(word in text for word in words)
        tensors, _ = read_tensors(run / run_folder.BEST)
        parameters = sum(t.numel() for k, t in tensors.items() if "running" not in k and "batches" not in k)
        shown = int(text.split(" parameters")[0].split()[-1].replace(",", ""))
        assert 0 < shown <= parameters
