"""Training and using models on embeddings: what is taken from the training classes, and what refuses what."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from metavib.adapt.learner import Learner
from metavib.data.embeddings import write_embeddings
from metavib.data.labelled import Labelled, Splits
from metavib.networks.embedded import Embedded
from metavib.tasks.inputs import Inputs
from metavib.training import recipes, run_folder, runs
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.protocols import embeddings

WIDTH = 12
SHORT: dict[str, Any] = {
    "train.steps": 6,
    "train.tasks": 2,
    "train.validate_every": 3,
    "train.validation_tasks": 5,
    "train.log_every": 2,
    "test.tasks": 20,
    "test.queries": 5,
    "tasks.queries": 5,
    "model.samples": 20,
}


def clouds(name: str, classes: int, each: int = 12, *, seed: int = 0) -> Labelled:
    """Vectors around one centre a class; they vary most along the first two axes, which tell no classes apart."""
    g = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(classes, 1, WIDTH, generator=g) + 2.0
    spread = torch.tensor([6.0, 6.0, *[1.0] * (WIDTH - 2)])
    x = (centres + spread * torch.randn(classes, each, WIDTH, generator=g)).flatten(0, 1)
    return Labelled(x, torch.arange(classes).repeat_interleave(each), tuple(f"{name} {c}" for c in range(classes)))


def splits() -> Splits:
    return Splits(clouds("train", 12), clouds("validation", 8, seed=1), clouds("test", 8, seed=2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_embeddings(tmp_path / "clouds.npz", splits())
    return tmp_path / "clouds.npz"


def config(file: Path, method: str = "gp-vib", *, ours: bool = True, **changes: Any) -> Config:
    made = (recipes.improved if ours else recipes.recipe)("embeddings", method, kernel="cosine")
    return embeddings.resolve(override(made, SHORT | {"tasks.features": [str(file)], **changes}))


def inputs(x: torch.Tensor) -> Inputs:
    return Inputs(x, torch.ones(len(x), dtype=torch.bool), 0)


@given(st.floats(-1.0, 2.0), st.floats(-3.0, 3.0), st.floats(-1.0, 3.0))
def test_features_are_centred_and_whitened_as_the_formula_says(share, log_ridge, log_gain):
    """Against a slow reading of it: the symmetric root of the inverse of W + lambda, up to a rotation."""
    data = splits().train
    phi = Embedded(WIDTH)
    phi.look(data.images, data.labels)
    with torch.no_grad():
        phi.share.fill_(share)
        phi.log_ridge.fill_(log_ridge)
        phi.log_gain.fill_(log_gain)
        z = phi(inputs(data.images)).double().numpy()
    u = data.images.double().numpy()
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    own = u - np.stack([u[data.labels.numpy() == c].mean(0) for c in range(data.classes)])[data.labels.numpy()]
    within = own.T @ own
    within *= WIDTH / np.trace(within)
    ridge = np.exp(log_ridge)
    x = u - share * u.mean(0)
    wanted = np.exp(2 * log_gain) * x @ np.linalg.inv((within + ridge * np.eye(WIDTH)) / (1 + ridge)) @ x.T
    np.testing.assert_allclose(z @ z.T, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


def test_before_it_has_seen_vectors_only_their_length_is_lost():
    x = torch.randn(5, WIDTH)
    z = Embedded(WIDTH)(inputs(x))
    torch.testing.assert_close(z, WIDTH**0.5 * x / x.norm(dim=-1, keepdim=True))


def test_classes_of_one_vector_each_say_nothing_of_how_classes_vary():
    with pytest.raises(ValueError, match="a training class with two different vectors"):
        Embedded(WIDTH).look(torch.randn(3, WIDTH), torch.arange(3))


def test_numbers_are_dropped_in_training_alone():
    phi = Embedded(WIDTH, (8,), dropout=0.5)
    x = inputs(torch.randn(4, WIDTH))
    assert not torch.equal(phi(x), phi(x))
    phi.eval()
    assert torch.equal(phi(x), phi(x))


METHODS = ("gp-vib", "proto-net", "matching-net", "dkt", "nearest-centroids", "logistic-regression")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_better_than_chance_after_a_few_steps(tmp_path, file, method):
    """Eight classes 3 apart with a spread of 1 (6 along two axes): one shot suffices once these count for little."""
    record = runs.run(config(file, method), tmp_path / "run", quiet=True)
    row = record["evaluation"]["rows"][0]
    assert row["metrics"]["accuracy"]["mean"] > 0.5 and "tempered_metrics" in row
    assert record["data"] == {"clouds.npz": record["config"]["tasks"]["digests"][0]}


@pytest.mark.parametrize("method", ["gp-vib", "maml", "stochastic-maml", "gp-maml", "proto-net"])
def test_the_longer_versions_mlp_trains_and_is_selected(tmp_path, file, method):
    record = runs.run(config(file, method, ours=False), tmp_path / "run", quiet=True)
    assert record["config"]["model"]["widths"] == [128, 128] and record["config"]["tasks"]["inputs"] == WIDTH
    assert 0 < record["evaluation"]["rows"][0]["metrics"]["accuracy"]["mean"] <= 1


def test_logistic_regression_is_that_of_scikit_learn(tmp_path, file):
    """A trained run, used on a task of its own, against a solver of its own on the same features."""
    made = config(file, "logistic-regression")
    runs.run(made, tmp_path / "run", quiet=True)
    learner = Learner.from_run(tmp_path / "run")
    test = splits().test
    support = [int((test.labels == c).nonzero()[i]) for c in range(5) for i in range(2)]
    query = [int((test.labels == c).nonzero()[4]) for c in range(5)]
    found = learner.adapt((test.images[support], test.labels[support].tolist())).predict(test.images[query])
    model = run_folder.selected(tmp_path / "run").eval()
    phi, strength = model.prior.network.body, model.encoder.log_strength.exp().item()
    with torch.no_grad():
        u = {
            part: phi(inputs(test.images[part_rows])).double().numpy()
            for part, part_rows in (("s", support), ("q", query))
        }
    u = {part: x / np.linalg.norm(x, axis=1, keepdims=True) for part, x in u.items()}
    known = LogisticRegression(C=strength, fit_intercept=False, tol=1e-8, max_iter=1000)
    wanted = known.fit(u["s"], test.labels[support].numpy()).predict_proba(u["q"])
    np.testing.assert_allclose(found.probabilities.numpy(), wanted, atol=2e-3)


def test_a_trained_run_takes_vectors_in_every_form(tmp_path, file):
    runs.run(config(file), tmp_path / "run", quiet=True)
    learner = Learner.from_run(tmp_path / "run")
    test = splits().test
    x, y = test.images[:36].numpy(), [test.names[i] for i in test.labels[:36].tolist()]
    np.savez(tmp_path / "mine.npz", features=x, labels=test.labels[:36].numpy(), names=np.array(test.names[:3]))
    forms = {
        "pair": (x, y),
        "dictionary": {name: x[np.array(y) == name] for name in dict.fromkeys(y)},
        "file": tmp_path / "mine.npz",
    }
    found = {form: learner.adapt(data).predict(x[:5]).probabilities for form, data in forms.items()}
    for probabilities in found.values():
        torch.testing.assert_close(probabilities, found["pair"], atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match=r"vectors of 12 numbers, \(n, 12\); got \(2, 3\)"):
        learner.adapt((np.zeros((2, 3)), [0, 1]))
    with pytest.raises(ValueError, match="infinite or NaN"):
        learner.adapt((np.full((2, 12), np.nan), [0, 1]))
    with pytest.raises(TypeError, match="a pair of vectors and labels"):
        learner.adapt(7)


def test_resolving_twice_changes_nothing_and_other_files_are_refused(tmp_path, file):
    made = config(file)
    assert embeddings.resolve(made) == made and made.tasks.inputs == WIDTH
    write_embeddings(file, Splits(*(part._replace(images=part.images + 1) for part in splits())))
    for read in (lambda: embeddings.resolve(made), lambda: embeddings.load(made.tasks)):
        with pytest.raises(ValueError, match=r"clouds.npz: not what this config was made with"):
            read()
    with pytest.raises(FileNotFoundError, match="`metavib embed` makes one"):
        embeddings.resolve(override(made, {"tasks.features": [str(tmp_path / "none.npz")], "tasks.digests": []}))
    with pytest.raises(ValueError, match="pass --features FILE"):
        embeddings.resolve(recipes.recipe("embeddings", "gp-vib"))


def test_a_surprise_needs_a_second_file(file):
    with pytest.raises(ValueError, match=r"for two files, the second of which is a surprise; got 1\."):
        config(file, **{"tasks.unseen": True})


@pytest.mark.parametrize("method", recipes.NO_VECTORS)
def test_methods_of_pictures_are_refused(method):
    with pytest.raises(ValueError, match="learns from pictures"):
        recipes.recipe("embeddings", method)


def test_networks_of_pictures_and_of_vectors_are_not_mixed_up(tmp_path, file):
    with pytest.raises(ValueError, match="must be embedded or mlp on embeddings; got 'conv4'"):
        runs.run(config(file, **{"model.backbone": "conv4"}), tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match="model.backbone = embedded takes vectors"):
        runs.run(
            override(recipes.recipe("glyphs", "gp-vib"), {"model.backbone": "embedded"}), tmp_path / "b", quiet=True
        )


def test_the_page_about_embeddings_runs(tmp_path, monkeypatch, capsys):
    """Its Python, as written, in a folder of its own."""
    page = (Path(__file__).parents[1] / "docs" / "embeddings.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    exec(compile("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "embeddings.md", "exec"), {})
    assert "tensor([[" in capsys.readouterr().out
