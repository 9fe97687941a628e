"""The supervised stage: its loss, its schedule, what it leaves behind, and that it goes on where it was stopped."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import program
import tiny
from metavib.data import Splits
from metavib.data.embeddings import read_embeddings
from metavib.files import write_tensors
from metavib.networks import ResNet12
from metavib.random import seeded
from metavib.training import pretrain, run_folder
from metavib.training.config import CLASSIFICATION
from metavib.training.embedding import View, embedded, features, nearest_centroids
from metavib.training.fields import override
from metavib.training.pretrain import Pretraining, Supervised, Teacher, load_backbone, loss_of, pretraining
from metavib.training.protocols import seen
from metavib.training.recipes import recipe

SMALL = {
    "widths": [4, 6, 6, 8],
    "tasks.ways": 3,
    "tasks.size": 16,
    "tasks.augment": False,
    "sides": [16],
    "batch": 12,
    "epochs": 4,
    "episodes": 20,
    "validate_every": 2,
    "save_every": 1,
}


def small(**changes) -> Pretraining:
    return override(pretraining("glyphs"), SMALL | {name.replace("__", "."): value for name, value in changes.items()})


def lines(folder: Path) -> list[dict]:
    return run_folder.read_metrics(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    pretrain.pretrain(small(), folder, quiet=True, splits=tiny.splits())
    return folder


def colour(config: Pretraining, side: int, *, turns: float) -> Pretraining:
    tasks = replace(recipe("cub", "gp-vib").tasks, size=side, augment=False)
    return replace(config, tasks=tasks, sides=(side,), turns=turns)


@pytest.mark.parametrize("experiment", CLASSIFICATION)
def test_every_experiment_with_images_has_a_supervised_stage(experiment):
    config = pretraining(experiment)
    assert config.tasks == replace(
        recipe(experiment, "gp-vib").tasks, crop=config.tasks.crop, augment=config.tasks.augment
    )


def test_the_loss_is_smoothed_cross_entropy_of_scaled_cosines_plus_that_of_the_turns():
    """Against NumPy, with the network's features taken as given."""
    config = colour(small(smoothing=0.2), 16, turns=0.5)
    model = Supervised(ResNet12(3, widths=config.widths), 5, scale=7.0).double().train()
    images, labels = torch.randint(0, 256, (9, 3, 16, 16), dtype=torch.uint8), torch.arange(9) % 5
    config = replace(config, precision="float64")
    hit, loss = loss_of(config, 16)(model, [seeded(3)], images, labels)

    x = seen.evaluation_transform(config.tasks)(images, seeded(3)).double()
    quarters = pretrain.QuarterTurns(0.5).draw(x, seeded(3))
    x = torch.stack([torch.rot90(image, int(k), (-2, -1)) for image, k in zip(x, quarters, strict=True)])
    phi = model.network(pretrain.Inputs(x, torch.ones(9, dtype=torch.bool), 0)).detach().numpy()
    rows, weight, bias = (t.detach().numpy() for t in (model.rows, model.turns.weight, model.turns.bias))
    unit = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    scores = 7 * unit @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T

    def log_softmax(a):
        return a - np.log(np.exp(a).sum(1, keepdims=True))

    target = 0.8 * np.eye(5)[labels] + 0.2 / 5
    of_class = -(target * log_softmax(scores)).sum(1).mean()
    of_turn = -log_softmax(phi @ weight.T + bias)[np.arange(9), quarters].mean()
    assert loss.item() == pytest.approx(of_class + of_turn, rel=1e-6)
    assert hit.item() == pytest.approx((scores.argmax(1) == labels.numpy()).mean())
    assert len(set(quarters.tolist())) > 1


def test_without_turns_the_loss_is_that_of_the_classes_alone():
    config = colour(small(), 16, turns=0.0)
    model = Supervised(ResNet12(3, widths=config.widths), 5, scale=7.0).train()
    images, labels = torch.randint(0, 256, (9, 3, 16, 16), dtype=torch.uint8), torch.arange(9) % 5
    _, loss = loss_of(config, 16)(model, [seeded(3)], images, labels)
    classes, _ = model(seen.evaluation_transform(config.tasks)(images, seeded(3)))
    torch.testing.assert_close(loss, F.cross_entropy(classes, labels, label_smoothing=config.smoothing))
    loss.backward()
    assert model.turns.weight.grad is None


def test_with_a_teacher_part_of_the_loss_is_how_far_the_pupil_is_from_it(trained):
    """Against NumPy: T times KL at the temperature T, of scaled cosines to the classes' mean directions."""
    data = tiny.splits().train
    teacher = Teacher(load_backbone(trained).network, data, small().tasks).double()
    config = small(smoothing=0.0, taught=0.7, softness=3.0, precision="float64")
    model = Supervised(ResNet12(1, widths=config.widths), data.classes, scale=7.0).double().train()
    images, labels = data.images[:9], data.labels[:9]
    _, loss = loss_of(config, 16, teacher)(model, [seeded(3)], images, labels)

    x = seen.evaluation_transform(config.tasks)(images, seeded(3)).double()
    everything = features(teacher.network.float(), data.images, config.tasks, View(16)).numpy().astype(float)
    unit = everything / np.linalg.norm(everything, axis=1, keepdims=True)
    means = np.stack([unit[data.labels.numpy() == k].sum(0) for k in range(data.classes)])
    cosines = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T

    def log_softmax(a):
        return a - np.log(np.exp(a).sum(1, keepdims=True))

    def likelihood(scale):
        return log_softmax(scale * cosines)[np.arange(len(cosines)), data.labels.numpy()].mean()

    scale = max(Teacher.SCALES, key=likelihood)
    assert float(teacher.scale) == pytest.approx(scale)
    scores = model(x)[0].detach().numpy()
    wanted, found = (log_softmax(a / 3.0) for a in (scale * cosines[:9], scores))
    apart = 3.0 * (np.exp(wanted) * (wanted - found)).sum(1).mean()
    of_label = -log_softmax(scores)[np.arange(9), labels.numpy()].mean()
    assert loss.item() == pytest.approx(0.3 * of_label + 0.7 * apart, rel=1e-5)


def test_a_taught_network_learns_and_leaves_its_teacher_alone(trained, tmp_path):
    before = (trained / pretrain.BACKBONE).read_bytes()
    pretrain.pretrain(small(teacher=str(trained), epochs=10), tmp_path / "run", quiet=True, splits=tiny.splits())
    found = lines(tmp_path / "run")
    assert found[-1]["loss"] < found[0]["loss"] and found[-1]["validation"]["5-shot"] > 0.6  # of 3
    assert (trained / pretrain.BACKBONE).read_bytes() == before


def test_dropped_features_have_no_say_in_the_classes():
    """With all but two of them dropped the scores are those of the two alone; the turns see all."""
    model = Supervised(ResNet12(1, widths=(4, 6, 6, 8)), 5, scale=7.0).double().eval()
    x, kept = torch.randn(3, 1, 16, 16, dtype=torch.float64), torch.zeros(3, 8, dtype=torch.bool)
    kept[:, [1, 4]] = True
    phi = pretrain._phi(model.network, x)
    classes, turns = model(x, kept)
    two = F.normalize(phi[:, [1, 4]], dim=-1) @ F.normalize(model.rows, dim=-1)[:, [1, 4]].mT
    torch.testing.assert_close(classes, 7 * two)
    torch.testing.assert_close(turns, model.turns(phi))


def test_the_network_is_the_literatures_resnet12():
    """Values and gradients against PyTorch's own layers."""
    model = Supervised(ResNet12(3, widths=(4, 6, 6, 8)), 5, scale=7.0).double().train()
    x = torch.randn(7, 3, 21, 21, dtype=torch.float64)

    def layer(part, x):
        y = F.conv2d(x, part.conv.weight, padding=part.conv.padding)
        return F.batch_norm(y, None, None, part.norm.weight, part.norm.bias, training=True)

    y = x
    for block in model.network.body.blocks:
        z = F.leaky_relu(layer(block.layers[1], F.leaky_relu(layer(block.layers[0], y), 0.1)), 0.1)
        y = F.max_pool2d(F.leaky_relu(layer(block.layers[2], z) + layer(block.shortcut, y), 0.1), 2)
    wanted = y.mean((-2, -1))
    found = model.network(pretrain.Inputs(x, torch.ones(7, dtype=torch.bool), 0))
    torch.testing.assert_close(found, wanted)
    weights = list(model.network.parameters())
    of_ours, of_theirs = (torch.autograd.grad(phi.square().sum(), weights) for phi in (found, wanted))
    torch.testing.assert_close(of_ours, of_theirs)


def test_training_learns_to_tell_the_classes_apart(trained):
    """The patterns of the tiny pictures are plain: the batch is soon right, and new classes are better than chance."""
    found = lines(trained)
    assert [line["step"] for line in found] == [4, 8, 12, 16]
    assert found[-1]["loss"] < found[0]["loss"]
    assert found[-1]["accuracy"] > 0.5  # of 6 classes
    assert found[-1]["validation"]["1-shot"] > 0.6  # of 3
    assert "validation" not in found[0] and "validation" in found[1]


def test_the_rate_rises_and_falls_to_zero(monkeypatch, tmp_path):
    """Linear over the first epoch, then half a cosine; for matrices and for the rest alike."""
    rates = []
    real = torch.optim.SGD.step

    def step(self, closure=None):
        rates.append([group["lr"] for group in self.param_groups])
        return real(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    pretrain.pretrain(small(lr=0.2, warm_up=1.0), tmp_path / "run", quiet=True, splits=tiny.splits())
    t = np.arange(16)
    wanted = 0.2 * np.minimum(1, (t + 1) / 4) * 0.5 * (1 + np.cos(np.pi * t / 16))
    np.testing.assert_allclose(np.array(rates), np.stack([wanted, wanted], 1))


def test_only_matrices_decay():
    model = Supervised(ResNet12(1, widths=(4, 4, 4, 4)), 3, scale=2.0)
    decayed, free = pretrain.sgd(model, small()).param_groups
    assert {p.ndim for p in decayed["params"]} == {2, 4} and {p.ndim for p in free["params"]} == {0, 1}
    assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))


def test_crops_grow_in_equal_shares_of_the_training(tmp_path):
    pretrain.pretrain(small(sides=[16, 20]), tmp_path / "run", quiet=True, splits=splits_of(20))
    assert [line["side"] for line in lines(tmp_path / "run")] == [16, 16, 20, 20]


def splits_of(size: int) -> Splits:
    """Six classes of pictures of some size in each part."""
    return Splits(*(tiny.images(name, 6, size=size, seed=i) for i, name in enumerate(Splits._fields)))


def test_a_time_limit_ends_training_with_its_schedule(monkeypatch, tmp_path):
    """A clock that ticks a second a look: the rate is down to nothing when the time is over, whatever the epochs."""
    now = iter(range(10_000))
    monkeypatch.setattr(pretrain.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(pretrain, "LOOK", 1)
    last = pretrain.pretrain(small(epochs=500, seconds=20.0), tmp_path / "run", quiet=True, splits=tiny.splits())
    assert last["step"] < 500 and last["seconds"] >= 20 and "validation" in last
    assert (tmp_path / "run" / pretrain.BACKBONE).exists()


def test_a_stopped_run_goes_on_to_the_same_numbers(monkeypatch, trained, tmp_path):
    """Stopped at any look at the clock: weights, momentum, random stream, metrics are those of one that was not."""
    monkeypatch.setattr(pretrain, "LOOK", 3)
    folder, turn = tmp_path / "run", iter(range(100))

    class Stop:
        asked = property(lambda self: next(turn) % 3 == 2)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(pretrain, "Stop", Stop)
    stops = 0
    while True:
        try:
            pretrain.pretrain(small(), folder, resume=True, quiet=True, splits=tiny.splits())
            break
        except pretrain.Interrupted as stop:
            assert "--resume" in str(stop)
            stops += 1
    assert stops >= 2
    assert tiny.same_tensors(*(pretrain.read_tensors(place / run_folder.LAST)[0] for place in (folder, trained)))
    assert tiny.same_state(folder / pretrain.BACKBONE, trained / pretrain.BACKBONE)
    for found, wanted in zip(lines(folder), lines(trained), strict=True):
        assert {**found, "seconds": 0} == {**wanted, "seconds": 0}


def test_a_finished_run_is_not_trained_again(trained):
    before = (trained / run_folder.LAST).read_bytes()
    last = pretrain.pretrain(small(), trained, resume=True, quiet=True, splits=tiny.splits())
    assert (trained / run_folder.LAST).read_bytes() == before and last == lines(trained)[-1]


def test_the_kept_network_gives_the_features_it_was_chosen_for(trained):
    """Up to the rounding of its matrices to half precision."""
    pretrained, data = load_backbone(trained), tiny.splits().validation
    phi = features(pretrained.network, data.images, pretrained.config.tasks, View(16))
    sizes = {"ways": 3, "queries": 3, "episodes": 20, "seed": 20_000}
    found = float(nearest_centroids(data._replace(images=phi), shots=1, **sizes).mean())
    best = max(line["validation"]["1-shot"] for line in lines(trained) if "validation" in line)
    assert found == pytest.approx(best, abs=0.02)
    assert pretrained.config == small()
    assert {p.dtype for p in pretrained.network.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": 1.0},
        {"smoothing": -0.1},
        {"momentum": 1.0},
        {"lr": 0.0},
        {"scale": -1.0},
        {"sides": [15]},
        {"widths": []},
        {"widths": [4, 0]},
        {"batch": 0},
        {"epochs": 0},
        {"episodes": 1},
        {"seconds": 0.0},
        {"weight_decay": -1.0},
        {"precision": "half"},
    ],
)
def test_configs_that_make_no_sense_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes)) if "sides" not in changes else "sides of at least 16"):
        small(**changes)


def test_what_cannot_be_trained_is_refused_before_any_file(tmp_path):
    with pytest.raises(ValueError, match="batch must be at most the 48"):
        pretrain.pretrain(small(batch=49), tmp_path / "a", quiet=True, splits=tiny.splits())
    few = tiny.splits()._replace(validation=tiny.images("few", 4, each=5))
    with pytest.raises(ValueError, match="at least 6 pictures"):
        pretrain.pretrain(small(), tmp_path / "b", quiet=True, splits=few)
    with pytest.raises(ValueError, match="no GPU"):
        pretrain.pretrain(small(device="cuda"), tmp_path / "c", quiet=True, splits=tiny.splits())
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_else_is_left_alone(trained, tmp_path):
    with pytest.raises(FileExistsError, match="--resume"):
        pretrain.pretrain(small(), trained, quiet=True, splits=tiny.splits())
    with pytest.raises(ValueError, match="another config"):
        pretrain.pretrain(small(lr=0.3), trained, resume=True, quiet=True, splits=tiny.splits())
    (tmp_path / "letter").touch()
    with pytest.raises(FileExistsError, match="is no run"):
        pretrain.pretrain(small(), tmp_path, quiet=True, splits=tiny.splits())


def test_files_of_others_are_no_networks(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match="metavib pretrain"):
        load_backbone(tmp_path / "nothing")
    write_tensors(tmp_path / "other", {"x": torch.ones(1)}, {"format": "other"})
    with pytest.raises(ValueError, match="expected format"):
        load_backbone(tmp_path / "other")
    tensors, header = pretrain.read_tensors(trained / pretrain.BACKBONE)
    tensors.pop(next(iter(tensors)))
    write_tensors(tmp_path / "short", tensors, header)
    with pytest.raises(ValueError, match="do not fit"):
        load_backbone(tmp_path / "short")
    (tmp_path / "cut").write_bytes((trained / pretrain.BACKBONE).read_bytes()[:1000])
    with pytest.raises(ValueError, match="truncated"):
        load_backbone(tmp_path / "cut")


# What it sees


def test_a_mirrored_view_is_the_mean_of_both_and_large_pictures_are_brought_to_size_first(trained):
    network, tasks = load_backbone(trained).network, load_backbone(trained).config.tasks
    images = tiny.images("x", 3, size=16).images
    plain, mirrored = (features(network, images, tasks, View(16, mirror)) for mirror in (False, True))
    flipped = features(network, images.flip(-1), tasks, View(16))
    torch.testing.assert_close(mirrored, (plain + flipped) / 2)
    every = [features(network, images.rot90(k, (-2, -1)), tasks, View(16)) for k in range(4)]
    torch.testing.assert_close(features(network, images, tasks, View(16, turns=True)), sum(every) / 4)
    large = tiny.images("x", 3, size=40).images
    stored = seen.stored_size(tasks)
    x = F.interpolate(large / 255, size=(stored, stored), mode="bilinear", antialias=True)
    around = round((stored - 16) / 2)
    x = x[..., around : around + 16, around : around + 16]
    x = F.interpolate(x, size=(24, 24), mode="bilinear", antialias=True)
    x = (x - 0.485) / 0.229
    wanted = network(pretrain.Inputs(x, torch.ones(len(x), dtype=torch.bool), 0))
    torch.testing.assert_close(features(network, large, tasks, View(24)), wanted.detach())


def test_features_need_a_network_that_treats_pictures_one_by_one():
    network = pretrain.Network(ResNet12(1, widths=(2, 2, 2, 2), norm="transductive"))
    with pytest.raises(ValueError, match="running or none"):
        features(network, tiny.images("x", 2).images, small().tasks, View(16))


def test_nearest_centroids_are_scikit_learns():
    """On the episodes that a meta-trained model would be tested on."""
    from sklearn.neighbors import KNeighborsClassifier

    from metavib.tasks.episodes import Episodes, fixed

    data = tiny.images("x", 6, each=9)
    data = data._replace(images=torch.randn(54, 5) + torch.nn.functional.one_hot(data.labels % 5, 5))
    sizes = {"ways": 4, "shots": 3, "queries": 5}
    found = nearest_centroids(data, **sizes, episodes=12, seed=7)
    unit = data._replace(images=F.normalize(data.images, dim=-1))
    wanted = []
    for task in fixed(Episodes(unit, **sizes), count=12, seed=7, batch=1):
        (x,), (y,), (xv,), (yv,) = (t.numpy() for t in (task.support.x, task.support.y, task.query.x, task.query.y))
        means = np.stack([x[y == c].mean(0) for c in range(4)])
        means /= np.linalg.norm(means, axis=1, keepdims=True)  # on the sphere the nearest has the largest cosine
        wanted.append((KNeighborsClassifier(1).fit(means, np.arange(4)).predict(xv) == yv).mean())
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_view_is_chosen_on_validation_and_the_test_classes_decide_nothing(trained):
    network, tasks = load_backbone(trained).network, small().tasks
    data = tiny.splits()
    views = [View(16), View(24), View(16, True)]
    parts, scores = embedded(network, data, tasks, views, episodes=30)
    means = [np.mean([s["mean"] for s in each["centroids"].values()]) for each in scores["validation"]]
    chosen = views[int(np.argmax(means))]
    assert scores["view"] == chosen._asdict()
    torch.testing.assert_close(parts.test.images, features(network, data.test.images, tasks, chosen))
    other = data._replace(test=tiny.images("test", 5, seed=9))
    assert embedded(network, other, tasks, views, episodes=30)[1]["view"] == scores["view"]


# The program


def test_pretrain_then_embed_from_the_command_line(monkeypatch, tmp_path):
    monkeypatch.setattr(seen, "load", lambda tasks: splits_of(28))
    options = [
        item for key, value in (SMALL | {"epochs": 2}).items() for item in ("--set", f"{key}={json.dumps(value)}")
    ]
    folder, file = tmp_path / "run", tmp_path / "features.npz"
    program.done("pretrain", "glyphs", "--out", folder, "--quiet", *options)
    again = json.loads(program.done("pretrain", "glyphs", "--out", folder, "--resume", "--json", *options))
    assert again["step"] == 8 and again["validation"].keys() == {"1-shot", "5-shot", "score"}
    place = ["--out", file, "--episodes", 20]
    scores = json.loads(
        program.done("embed", folder, "glyphs", *place, "--size", 28, "--size", 36, "--mirror", "--json")
    )
    assert scores == json.loads(file.with_suffix(".json").read_text())
    assert scores["view"]["mirror"] and {each["size"] for each in scores["validation"]} == {28, 36}
    parts = read_embeddings(file)
    assert [part.images.shape for part in parts] == [(48, 8)] * 3
    assert [part.names for part in parts] == [part.names for part in splits_of(28)]
    program.done("embed", folder / pretrain.BACKBONE, "glyphs", *place)
    assert json.loads(file.with_suffix(".json").read_text())["view"] == View(28)._asdict()
    program.done("embed", folder, "glyphs", *place, "--turns")
    tried = json.loads(file.with_suffix(".json").read_text())["validation"]
    assert [each["turns"] for each in tried] == [False, True]
