"""Files of estimators: what was saved predicts the same to the last bit, and what is no such file is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from metavib.estimators import FewShotClassifier, FewShotRegressor
from metavib.files import read_tensors
from metavib.networks import MLP

RNG = np.random.default_rng(0)
SHOP, X = np.repeat(np.arange(12), 8), RNG.normal(size=(96, 2))
SOLD = 50 + 10 * RNG.normal(size=12)[SHOP] + 5 * X[:, 0] + RNG.normal(size=96)
FRAME = pd.DataFrame({"heat": X[:, 0], "sky": RNG.choice(["sun", "rain"], 96)})
SHORT = {"n_steps": 3, "random_state": 0}

FITS = {
    "hierarchical": lambda: FewShotRegressor(random_state=0).fit(X, SOLD, tasks=SHOP),
    "frame": lambda: FewShotRegressor(random_state=0, missing="mean").fit(
        FRAME.where(RNG.random(FRAME.shape) > 0.1, None), SOLD, tasks=SHOP
    ),
    "network": lambda: FewShotRegressor(backbone="mlp", hidden=(7,), **SHORT).fit(X, SOLD, tasks=SHOP),
    "one task": lambda: FewShotRegressor(kernel="rbf", **SHORT).fit(X, SOLD),
    "counts": lambda: FewShotRegressor(likelihood="poisson", **SHORT).fit(X, SOLD.round(), tasks=SHOP),
    "two classes": lambda: FewShotClassifier(random_state=0).fit(X, np.where(SOLD > 50, "much", "little"), tasks=SHOP),
    "three classes": lambda: FewShotClassifier(random_state=0).fit(X, SOLD.round() % 3, tasks=SHOP),
    "new classes": lambda: FewShotClassifier(backbone="mlp", **SHORT).fit(X, SHOP),
    "by columns": lambda: FewShotClassifier(random_state=0).fit(X, SHOP),
    "bernoulli": lambda: FewShotClassifier(backbone="mlp", likelihood="bernoulli", **SHORT).fit(X, SOLD > 50),
}


def said(estimator, inputs, **tasks):
    if isinstance(estimator, FewShotClassifier):
        return estimator.predict_proba(inputs, **tasks)
    return np.concatenate([*estimator.predict(inputs, return_std=True, **tasks)])


@pytest.mark.parametrize("name", FITS)
def test_what_was_saved_predicts_the_same_to_the_last_bit(name, tmp_path):
    fitted = FITS[name]()
    inputs = FRAME if name == "frame" else X
    y = fitted.classes_[[0, 1, 0, 1, 0]] if hasattr(fitted, "classes_") else SOLD[:5].round()
    for estimator in (fitted, fitted.adapt(inputs[:5], y)):
        estimator.save(tmp_path / "e.safetensors")
        again = type(estimator).load(tmp_path / "e.safetensors")
        np.testing.assert_array_equal(said(again, inputs), said(estimator, inputs))
        assert getattr(again, "candidates_", None) == getattr(estimator, "candidates_", None)
        assert again.get_params() == estimator.get_params() and again.n_features_in_ == 2
        assert again.history_ == estimator.history_ and str(getattr(again, "report_", "")) == str(
            getattr(estimator, "report_", "")
        )
        if hasattr(estimator, "classes_"):
            assert again.classes_.tolist() == estimator.classes_.tolist()
            assert again.classes_.dtype.kind == estimator.classes_.dtype.kind
        more = again.adapt(inputs[5:8], y[:3])
        np.testing.assert_array_equal(said(more, inputs), said(estimator.adapt(inputs[5:8], y[:3]), inputs))
        again.partial_fit(inputs[8:10], y[:2])
    if name == "frame":
        assert again.feature_names_in_.tolist() == ["heat", "sky"]
        with pytest.raises(ValueError, match="feature names"):
            again.predict(FRAME.rename(columns={"heat": "cold"}))


def test_many_tasks_are_in_the_file(tmp_path):
    many = FITS["hierarchical"]().adapt(X[:20], SOLD[:20], tasks=SHOP[:20])
    many.save(tmp_path / "e.safetensors")
    again = FewShotRegressor.load(tmp_path / "e.safetensors")
    np.testing.assert_array_equal(again.predict(X, tasks=SHOP), many.predict(X, tasks=SHOP))
    assert list(again.predictors_) == ["0", "1", "2"]


def test_what_is_no_file_of_this_estimator_is_refused(tmp_path):
    fitted, path = FITS["hierarchical"](), tmp_path / "e.safetensors"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        FewShotRegressor.load(path)
    with pytest.raises(ValueError, match=r"is a folder, .* read by metavib.Learner.from_run"):
        FewShotRegressor.load(tmp_path)
    path.write_bytes(b"\x80\x04}q\x00.")  # a pickle
    with pytest.raises(ValueError, match="no safetensors file"):
        FewShotRegressor.load(path)
    fitted.predictor_.save(path)
    with pytest.raises(ValueError, match=r"is no estimator file.*`save` writes one"):
        FewShotRegressor.load(path)
    fitted.save(path)
    with pytest.raises(ValueError, match="holds a FewShotRegressor: read it by FewShotRegressor.load"):
        FewShotClassifier.load(path)
    with pytest.raises(TypeError, match="the network MLP is your own"):
        FewShotRegressor(backbone=MLP(2, (4,)), **SHORT).fit(X, SOLD, tasks=SHOP).save(path)


def test_a_damaged_file_is_refused_whatever_was_changed(tmp_path):
    path = tmp_path / "e.safetensors"
    FITS["hierarchical"]().save(path)
    tensors, texts = read_tensors(path)
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["format"] == "metavib-estimator-1"
    changes = [
        (tensors, {"inputs": json.dumps({"event": [3], "names": None, "schema": None})}),
        (tensors, {"params": json.dumps({"unknown": 1})}),
        (tensors, {"params": "["}),
        (tensors, {"model": json.dumps("shares")}),
        (tensors, {"model": json.dumps("network")}),
        (tensors | {"scaling/x.mean": tensors["scaling/x.mean"][:1]}, {}),
        (tensors | {"scaling/x.flags": tensors["scaling/x.flags"].new_tensor([9])}, {}),
        ({name: t for name, t in tensors.items() if name != "model/prior.network.body.w"}, {}),
        (tensors | {"task": tensors["task"][:-30].contiguous()}, {}),
    ]
    for changed, said in changes:
        save_file(changed, path, metadata=texts | said)
        with pytest.raises(ValueError, match="is damaged"):
            FewShotRegressor.load(path)
