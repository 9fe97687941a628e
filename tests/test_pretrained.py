"""Models that come with the package: found by their names everywhere, whole, small, and good on what they never saw."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from metavib import Learner
from metavib.adapt.file import run_of
from metavib.data.embeddings import read_vectors
from metavib.files import read_tensors
from metavib.training import bundled, run_folder
from program import done, predicted, refused

STYLES = {"ink": ("white", "black"), "chalk": ((30, 60, 50), (235, 235, 230)), "felt": ((250, 240, 200), (190, 40, 40))}

LARGEST = {"characters": 2**20, "photographs": 5 * 2**20}  # bytes


def drawing(c: int, i: int, style: str) -> Image.Image:
    """A shape of three strokes, drawn by a hand that shakes, somewhere on a page."""
    strokes = np.random.default_rng(c).uniform(0, 70, (3, 3, 2))
    hand = np.random.default_rng([c, i])
    paper, ink = STYLES[style]
    page = Image.new("RGB", (200, 150), paper)
    place = hand.uniform(10, 60, 2)
    for stroke in strokes + hand.normal(0, 3, strokes.shape):
        width = int(hand.integers(3, 7))
        ImageDraw.Draw(page).line([tuple(p) for p in (stroke + place).tolist()], fill=ink, width=width)
    return page


@pytest.fixture
def folders(tmp_path):
    for c in range(4):
        for i, part in ((0, "support"), (1, "support"), (2, "more"), (3, "query")):
            (tmp_path / part / f"shape {c}").mkdir(parents=True, exist_ok=True)
            drawing(c, i, list(STYLES)[i % 3]).save(tmp_path / part / f"shape {c}" / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("name", bundled.names())
def test_a_model_is_a_whole_run_with_a_card_and_is_small(name):
    folder, card = bundled.folder_of(name), bundled.about(name)
    assert {"what", "trained on", "tested on", "limits", "made by"} <= card.keys() and all(card.values())
    assert sum(file.stat().st_size for file in folder.iterdir()) < LARGEST[name]
    assert run_folder.read_record(folder)["evaluation"]["rows"] and run_folder.is_run(folder)
    tensors, _ = read_tensors(folder / run_folder.BEST)
    assert all(t.isfinite().all() for t in tensors.values())
    assert json.loads((folder / run_folder.CONFIG).read_text())["tasks"]["root"] is None


@pytest.mark.parametrize("name", bundled.names())
def test_a_card_says_what_the_record_says(name):
    card, rows = bundled.about(name), run_folder.read_record(bundled.folder_of(name))
    for row in rows["evaluation"]["rows"]:
        tested = row["metrics"]
        assert f"{100 * tested['accuracy']['mean']:.1f} %" in card["tested on"]
        assert f"ECE {100 * tested['ece']:.1f} %" in card["tested on"]


def test_drawings_in_styles_it_never_saw_are_told_apart():
    """Two pictures of each of four shapes, in two styles; others in a third."""
    learner = Learner.from_pretrained("characters")
    right = total = 0
    for first in range(0, 40, 4):
        classes = range(first, first + 4)
        task = learner.adapt({c: [drawing(c, 0, "ink"), drawing(c, 1, "chalk")] for c in classes})
        found = task.predict([drawing(c, i, "felt") for c in classes for i in (2, 3)])
        right += sum(label == c for label, c in zip(found.labels, np.repeat(classes, 2), strict=True))
        total += 8
    assert right / total > 0.85


def scene(c: int, i: int) -> Image.Image:
    """A thing of one colour and texture on another, somewhere near the middle of a picture with other light."""
    thing, taken = np.random.default_rng([7, c]), np.random.default_rng([7, c, i])
    colours, waves = thing.uniform(30, 225, (2, 3)), thing.uniform(0.05, 0.6, 2)
    y, x = np.mgrid[:90, :120] + taken.uniform(-8, 8, (2, 1, 1))
    inside = (x - 60) ** 2 + (y - 45) ** 2 < 30**2
    stripes = np.sin(waves[0] * x + waves[1] * y)[..., None]
    picture = np.where(inside[..., None], colours[0] + 60 * stripes, colours[1]) * taken.uniform(0.7, 1.2)
    return Image.fromarray((picture + taken.normal(0, 8, picture.shape)).clip(0, 255).astype(np.uint8))


def test_things_it_never_saw_are_told_apart_in_colour():
    learner = Learner.from_pretrained("photographs")
    task = learner.adapt({c: [scene(c, 0), scene(c, 1)] for c in range(5)})
    found = task.predict([scene(c, i) for c in range(5) for i in (2, 3)])
    assert np.mean([label == c for label, c in zip(found.labels, np.repeat(range(5), 2), strict=True)]) >= 0.8
    assert found.probabilities.shape == (10, 5) and (found.probabilities < 1).all()


def test_a_name_stands_for_a_run_in_every_command(folders, monkeypatch):
    monkeypatch.chdir(folders)
    assert "shape 3" in done("adapt", "characters", "--support", "support", "--out", "task.safetensors")
    found = predicted(folders / "task.safetensors", folders / "query")
    assert [row["class"] for row in found] == [f"shape {c}" for c in range(4)]
    assert "12 points" in done("update", "task.safetensors", "--points", "more")
    assert "characters" in done("show", "characters") and "characters" in done("models")
    assert "Omniglot" in done("models", "characters") and json.loads(done("models", "--json"))["characters"]["what"]
    assert "there is no model called 'letters'" in refused("models", "letters")
    assert "method" in done("config", bundled.folder_of("characters"))


def test_a_task_file_names_the_model_and_not_where_it_lies(folders):
    done("adapt", "characters", "--support", folders / "support", "--out", folders / "task.safetensors")
    assert run_of(folders / "task.safetensors") == bundled.folder_of("characters")
    assert str(bundled.MODELS) not in (folders / "task.safetensors").read_bytes().decode("latin-1")


def test_a_folder_of_ones_own_comes_before_a_model_of_the_same_name(tmp_path, monkeypatch):
    shutil.copytree(bundled.folder_of("characters"), tmp_path / "characters")
    monkeypatch.chdir(tmp_path)
    assert bundled.folder("characters").absolute() == tmp_path / "characters"
    assert bundled.name_of(tmp_path / "characters") is None
    assert bundled.folder("elsewhere").name == "elsewhere"


def test_probabilities_are_calibrated_by_the_temperature_of_so_many_pictures_and_of_the_picture():
    """By hand from those without a temperature; the same from a task by itself and from many side by side."""
    learner = Learner.from_pretrained("characters")
    plain = Learner(learner.trained.model, preparation=learner.preparation)
    known, query = learner.trained.temperature, [drawing(0, 9, "chalk"), drawing(1, 9, "felt")]
    factor = known.factor(learner.trained.all_features(learner.preparation.inputs(query)))
    assert (factor != 1).all() and factor[0] != factor[1]
    for shots in (1, 5):
        support = {c: [drawing(c, i, "ink") for i in range(shots)] for c in range(3)}
        p, raw = (t.adapt(support).predict(query).probabilities for t in (learner, plain))
        warm = raw.log() / (known.at(shots) * factor)
        torch.testing.assert_close(p, warm.softmax(-1))
        points = [one for pictures in support.values() for one in pictures], np.repeat(list(support), shots)
        many = learner.adapt_many(points, ["a"] * len(points[1]))
        torch.testing.assert_close(many.predict(query, ["a", "a"]).probabilities, p)


def test_a_model_embeds_a_folder_by_its_name(folders, monkeypatch):
    """Features are those that its own learner has of the same pictures, brought to ink as they are there."""
    monkeypatch.chdir(folders)
    done("embed", "characters", "images", "--root", "support", "--no-split", "--out", "new.npz")
    found, learner = read_vectors("new.npz"), Learner.from_pretrained("characters")
    files = [f"support/shape {c}/{i}.png" for c in range(4) for i in range(2)]
    wanted = learner.trained.all_features(learner.preparation.inputs(files))
    torch.testing.assert_close(found.images, wanted.float(), rtol=2e-3, atol=2e-3)  # stored in half precision


def test_pictures_of_many_tasks_go_through_the_network_once(monkeypatch):
    """Those to predict are one pass, whatever asks for their features: the posterior, or their temperature."""
    learner = Learner.from_pretrained("characters")
    ids = ["first", "first", "second", "second"]
    many = learner.adapt_many(([drawing(c, 0, "ink") for c in range(4)], [0, 1, 0, 1]), ids)
    seen, features = [], type(learner.trained).all_features
    monkeypatch.setattr(
        type(learner.trained), "all_features", lambda self, x: (seen.append(len(x)), features(self, x))[1]
    )
    found = many.predict([drawing(c, 1, "chalk") for c in (3, 0, 2)], ["second", "first", "second"])
    assert learner.trained.temperature.slope and seen.count(3) == 1 and sum(seen) <= 3 + 4
    alone = learner.adapt(([drawing(2, 0, "ink"), drawing(3, 0, "ink")], [0, 1])).predict([drawing(3, 1, "chalk")])
    torch.testing.assert_close(found.probabilities[0], alone.probabilities[0], atol=1e-5, rtol=1e-4)
