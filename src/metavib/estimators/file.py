"""Estimator files: a fitted estimator, with the task or the tasks it is adapted to, in one safetensors file.

Nothing in it is ever unpickled, and what is read is believed only once it was checked. A loaded estimator predicts what
the saved one did, to the last bit.

Metadata (strings; all but the first two are JSON), format `metavib-estimator-1`:

| name      | content                                                                                              |
| --------- | ---------------------------------------------------------------------------------------------------- |
| format    | `metavib-estimator-1`                                                                                |
| estimator | `FewShotRegressor` or `FewShotClassifier`                                                            |
| params    | the arguments it was made with; a random state that is no number is null                             |
| inputs    | `event`, the shape of an input; `names` of the columns or null; `schema`, a text for each column of a |
|           | data frame (as in a run's config) or null                                                            |
| model     | `hierarchical`, `shares` (its form for common classes), `columns` (of new classes), `network`, as     |
|           | `params` describe it, or `pictures`                                                                  |
| run       | of a training on pictures: its `config`, the step, the best score and the `temperature` by shots, and |
|           | its `evaluation`; null otherwise, and absent before 0.2                                              |
| classes   | of a classifier: `labels`, their NumPy type `dtype`, and `common`, those that every task has, or null |
| fitted    | `n_iter`, `history` (steps, kept step, scores) or null, `report` (a list for each row of it) or null, |
|           | `candidates` (kernel, reach or null for an infinite one, log loss, units; the best first) or null,    |
|           | `mean_weight` of the rows; `temperature`, at which shots and its values, or null (absent before 0.2)  |
| outputs   | of a regressor of several outputs, and of no other: a list of the name and the metadata of each (all |
|           | from `inputs` on), in place of the metadata from `inputs` on                                         |

Tensors: `model/...` as PyTorch names them, `scaling/...` (means and scales of inputs and outputs, which columns have an
indicator of missing values, and whether outputs are whole numbers), and, where it is adapted, `task` or `tasks`: the
bytes of a task file. Those of the first of several outputs have names that begin with `output/0/`, and so on.
"""

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from metavib.adapt.file import read, to_bytes
from metavib.adapt.learner import Learner, Predictors
from metavib.adapt.preparation import ModelSpace
from metavib.data.schema import Schema
from metavib.estimators.columns import Candidate, like_columns
from metavib.estimators.pictures import Evaluation
from metavib.estimators.training import History
from metavib.files import read_tensors, to_json, with_numbers, write_tensors
from metavib.groups import ClassReport, Hierarchy, Report, Shares, like, like_shares
from metavib.groups.class_report import ClassRow
from metavib.groups.prior import logarithms
from metavib.groups.report import Row
from metavib.model import Model
from metavib.networks.backbone import Backbone
from metavib.networks.embedded import Embedded
from metavib.networks.whitened import Whitened, WithUnits
from metavib.priors import FunctionPrior
from metavib.tasks import scaling as scalings
from metavib.training import checkpoint
from metavib.training.checkpoint import filled
from metavib.training.temperature import PLAIN, Temperature

FORMAT = "metavib-estimator-1"
LABELS = "biufUO"  # kinds of NumPy types that labels may have: truth values, numbers, texts


def save(estimator: Any, path: Path) -> None:
    """Writes a fitted estimator, atomically."""
    params = estimator.get_params(deep=False)
    if isinstance(params["backbone"], Backbone):
        raise TypeError(
            f"the network {type(params['backbone']).__name__} is your own, and no file of numbers can make it again: "
            "save the weights of estimator.model_ with safetensors, beside the code of the network."
        )
    if not isinstance(params["random_state"], int | np.integer | None):
        params["random_state"] = None
    tensors, header = _of_several(estimator) if hasattr(estimator, "estimators_") else _of_one(estimator)
    header["params"] = params
    texts = {"format": FORMAT, "estimator": type(estimator).__name__}
    write_tensors(path, tensors, texts | {name: to_json(value, default=_plain) for name, value in header.items()})


def _of_several(estimator: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of the regressors of several outputs, one after another."""
    tensors: dict[str, Tensor] = {}
    headers = []
    for i, (name, one) in enumerate(estimator.estimators_.items()):
        its, header = _of_one(one)
        tensors |= {f"output/{i}/{key}": tensor for key, tensor in its.items()}
        headers.append([name, header])
    return tensors, {"outputs": headers}


def _of_one(estimator: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of an estimator of one output, all but its arguments."""
    model, learner, run = estimator.model_, estimator.learner_, estimator.run_
    report, history = getattr(estimator, "report_", None), estimator.history_
    tried = getattr(estimator, "candidates_", None) if _kind(model) == "columns" else None
    names, warmth = getattr(estimator, "feature_names_in_", None), learner.trained.temperature
    header: dict[str, Any] = {
        "inputs": {
            "event": None if run else estimator._event,
            "names": None if names is None else list(names),
            "schema": None if estimator.schema_ is None else estimator.schema_.to_json(),
        },
        "model": "pictures" if run else _kind(model),
        "run": None if run is None else _run_header(run, estimator.report_),
        "classes": None,
        "fitted": {
            "n_iter": estimator.n_iter_,
            "mean_weight": estimator.mean_weight_,
            "history": None if history is None else list(history),
            "report": None if report is None or run else [list(row) for row in report.rows],
            "candidates": None if tried is None else [[k, None if r == inf else r, *rest] for k, r, *rest in tried],
            "temperature": None if warmth.plain or run else [warmth.shots, warmth.values],
        },
    }
    if (classes := getattr(estimator, "classes_", None)) is not None:
        common = learner.preparation.classes
        header["classes"] = {"labels": classes.tolist(), "dtype": classes.dtype.str, "common": common}
    tensors = dict(run.tensors) if run else {f"model/{name}": t for name, t in model.state_dict().items()}
    tensors |= {} if run else {f"scaling/{name}": t for name, t in estimator.scaling_.state().items()}
    if (one := getattr(estimator, "predictor_", None)) is not None:
        tensors["task"] = _bytes(one.to_bytes())
    if (many := getattr(estimator, "predictors_", None)) is not None:
        tensors["tasks"] = _bytes(to_bytes(many.file(), learner.trained))
    return tensors, header


def load(cls: type, path: Path) -> Any:
    """Reads a fitted estimator of a class.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no estimator file, of another estimator, or damaged.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and no estimator file; a run is read by metavib.Learner.from_run.")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    tensors, texts = read_tensors(path)
    if texts.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no estimator file: expected the format {FORMAT!r}, got {texts.get('format')!r}. An estimator's "
            "`save` writes one; a run is read by metavib.Learner.from_run, and a task file by a learner's `load`."
        )
    if texts.get("estimator") != cls.__name__:
        raise ValueError(f"{path} holds a {texts.get('estimator')}: read it by {texts.get('estimator')}.load.")
    try:
        params = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(texts["params"]).items()}
        if "outputs" in texts:
            return _restored_several(cls(**params), tensors, json.loads(texts["outputs"]))
        header = {name: json.loads(texts[name]) for name in HEADER}
        return _restored(cls(**params), tensors, header | {"run": json.loads(texts.get("run", "null"))})
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}. Save the estimator again.") from error


HEADER = ("inputs", "model", "classes", "fitted")


def _restored_several(estimator: Any, tensors: dict[str, Tensor], headers: list[Any]) -> Any:
    """A regressor of several outputs, out of that of each."""
    if not headers or len({name for name, _ in headers}) != len(headers):
        raise ValueError("its outputs have no names of their own")
    found = {
        name: _restored(clone(estimator), _part(tensors, f"output/{i}"), header)
        for i, (name, header) in enumerate(headers)
    }
    return estimator._of_each(found)


def _restored(estimator: Any, tensors: dict[str, Tensor], header: dict[str, Any]) -> Any:
    inputs, fitted, classes = header["inputs"], with_numbers(header["fitted"]), header["classes"]
    estimator.run_, estimator.schema_ = None, None
    if header["model"] == "pictures":
        _restore_pictures(estimator, tensors, header["run"])
    else:
        _restore_inputs(estimator, tensors, inputs)
        _restore_model(estimator, _part(tensors, "model"), header)
    estimator.n_iter_, estimator.mean_weight_ = fitted["n_iter"], float(fitted.get("mean_weight", 1.0))
    if not 0 < estimator.mean_weight_ < inf:
        raise ValueError("the mean weight of its rows is no number above zero")
    estimator.history_ = None
    if fitted["history"] is not None:
        steps, step, scores = fitted["history"]
        estimator.history_ = History(steps, step, tuple((at, score) for at, score in scores))
    if fitted["report"] is not None:
        rows = fitted["report"]
        estimator.report_ = (
            Report([Row(*row) for row in rows], logarithms(estimator.model_))
            if classes is None
            else ClassReport([ClassRow(*row) for row in rows])
        )
    if classes is not None:
        dtype = np.dtype(classes["dtype"])
        if dtype.kind not in LABELS:
            raise ValueError(f"labels have the type {dtype}")
        estimator.classes_ = np.array(classes["labels"], dtype=dtype)
    if "task" in tensors:
        estimator.predictor_ = estimator.learner_.from_bytes(tensors["task"].numpy().tobytes())
    if "tasks" in tensors:
        trained = estimator.learner_.trained
        estimator.predictors_ = Predictors.of_file(trained, read(tensors["tasks"].numpy().tobytes(), trained))
    return estimator


def _run_header(run: checkpoint.Checkpoint, report: Evaluation) -> dict[str, Any]:
    found: dict[str, Any] = dict(checkpoint.header(run.config, run.step, run.best, run.temperature))
    return found | {"evaluation": report.found}


def _restore_pictures(estimator: Any, tensors: dict[str, Tensor], run: dict[str, Any]) -> None:
    """The network of a training on pictures, and what it does to a picture."""
    weights = {name: t for name, t in tensors.items() if name.startswith("model/")}
    estimator.run_, estimator.report_ = checkpoint.described(weights, run), Evaluation(run["evaluation"])
    estimator.learner_ = Learner.of(estimator.run_)
    estimator.model_ = estimator.learner_.trained.model


def _restore_inputs(estimator: Any, tensors: dict[str, Tensor], inputs: dict[str, Any]) -> None:
    """What rows look like, and how they are standardised."""
    estimator._event = tuple(int(size) for size in inputs["event"])
    estimator.n_features_in_ = estimator._event[0] if inputs["schema"] is None else len(inputs["schema"])
    if inputs["names"] is not None:
        estimator.feature_names_in_ = np.array(inputs["names"], dtype=object)
    estimator.schema_ = None if inputs["schema"] is None else Schema.from_json(inputs["schema"])
    estimator.scaling_ = scalings.from_state(_part(tensors, "scaling"))
    _check_scaling(estimator.scaling_, estimator._event)


def _restore_model(estimator: Any, state: dict[str, Tensor], header: dict[str, Any]) -> None:
    """The model of rows, in float64."""
    fitted, classes = header["fitted"], header["classes"]
    if fitted["candidates"] is not None:
        estimator.candidates_ = [Candidate(k, inf if r is None else r, *rest) for k, r, *rest in fitted["candidates"]]
    makes = {
        "hierarchical": lambda: like(state),
        "shares": lambda: like_shares(state),
        "columns": lambda: like_columns(state, estimator.candidates_[0].kernel),
        "network": estimator._blank,
    }
    model = filled(makes[header["model"]], state, what="file").double().requires_grad_(False).eval()
    common = None if classes is None else classes["common"]
    warmth = fitted.get("temperature")
    temperature = PLAIN if warmth is None else Temperature(*(tuple(part) for part in warmth))
    estimator.model_ = model
    estimator.learner_ = Learner(model, preparation=ModelSpace(common), temperature=temperature)


def _kind(model: Model) -> str:
    if isinstance(model.likelihood, Shares):
        return "shares"
    assert isinstance(model.prior, FunctionPrior)
    names = {Hierarchy: "hierarchical", Whitened: "columns", WithUnits: "columns", Embedded: "columns"}
    return names.get(type(model.prior.network.body), "network")  # type: ignore[call-overload]


def _check_scaling(scaling: scalings.Scaling, event: tuple[int, ...]) -> None:
    wanted = event if len(event) == 1 else (event[0], *(1,) * (len(event) - 1))
    flags = scaling.x.flags
    if scaling.x.mean.shape != wanted or scaling.x.scale.shape != wanted or any(t.ndim for t in scaling.y):
        raise ValueError("its standardisation is not that of its inputs")
    if flags.ndim != 1 or flags.is_floating_point() or bool(((flags < 0) | (flags >= event[0])).any()):
        raise ValueError("its indicators of missing values are of columns that are not there")


def _part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _plain(value: Any) -> Any:
    """NumPy's numbers as JSON has them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a file holds no {type(value).__name__}, got {value!r}: name labels by texts or numbers.")
