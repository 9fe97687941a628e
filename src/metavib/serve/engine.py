"""One trained model as the service uses it: what users have comes in, states are bytes, plain values come out."""

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metavib.adapt.believed import Judged
from metavib.adapt.learner import Learner, Predictor
from metavib.adapt.points import Batch
from metavib.adapt.predictor import Memorised
from metavib.adapt.preparation import Pictures, Rows
from metavib.data.archive import FORMATS
from metavib.data.schema import Number
from metavib.likelihoods.prediction import ClassPrediction, Prediction
from metavib.training import run_folder
from metavib.training.config import TABLE, Config, read

MEMORY = 2**18  # bytes up to which the memory of a task is stored although its points would take less
PIXELS = 16_000_000
RANGES = {"sinusoid": ((-5.0, 5.0), (-5.0, 5.0)), "gaussian": ((-2.0, 2.0), (-3.0, 3.0))}  # of x and y


class Data(NamedTuple):
    """Points or inputs as a user has them.

    Args:
        kind: "rows", "pictures" or "arrays".
        values: a row, the content of a picture file, or nested lists of numbers for each.
        outputs: labels or numbers for each; rows have theirs among their columns.
    """

    kind: str
    values: Sequence[Any]
    outputs: Sequence[Any] | None = None


class Ask(NamedTuple):
    """A prediction that is wanted: of which task, at which inputs, with which interval."""

    engine: "Engine"
    predictor: Predictor
    x: Tensor
    level: float


@final
class Engine:
    """A model that is served.

    Args:
        name: what clients call it.
        learner: the model, with the preparation of its run.
        config: of the run.
        pixels: of the largest picture it takes.
    """

    def __init__(self, name: str, learner: Learner, config: Config, *, pixels: int = PIXELS) -> None:
        if not isinstance(learner.preparation, Rows | Pictures):
            raise TypeError(f"{name} has no preparation of rows or pictures, so nothing could be sent to it.")
        self.name, self._trained, self._learner, self._config = name, learner.trained, learner, config
        self._preparation: Rows | Pictures = learner.preparation
        self._form = "rows" if isinstance(self._preparation, Rows) else "pictures"
        self._pixels = pixels
        self._event = tuple(self._preparation.inputs(self._plain(self._example_inputs())).shape[1:])

    @classmethod
    def from_run(cls, name: str, folder: Path, *, pixels: int = PIXELS) -> "Engine":
        """The model of a run folder."""
        return cls(name, Learner.from_run(folder), read(folder / run_folder.CONFIG), pixels=pixels)

    @property
    def fingerprint(self) -> str:
        """What tells the model from others."""
        return self._learner.fingerprint

    # What it is

    def about(self) -> dict[str, Any]:
        """What it is and what it takes."""
        about: dict[str, Any] = {"name": self.name, "fingerprint": self.fingerprint, "form": self._form}
        about |= {"outputs": "classes" if self._trained.classifies else "real", "shape": list(self._event)}
        about |= {"constant_size": self._trained.obstacle is None}
        about |= {"experiment": self._config.tasks.name, "method": self._config.method}
        if isinstance(self._preparation, Pictures):
            return {**about, "size": self._config.tasks.size, "channels": self._preparation.channels}
        *columns, target = self._columns()
        return {**about, "columns": columns, "target": target}

    def examples(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Points to begin with, points to learn later, and inputs to predict at, as JSON has them."""
        first: dict[str, Any]
        if self._form == "pictures":
            upright, lying, lower = (self._drawing(i) for i in range(3))
            first = {"pictures": [upright, lying], "labels": ["upright", "lying"]}
            return first, {"pictures": [lower], "labels": ["lying"]}, {"pictures": [upright]}
        first = {"rows": [self._row(0.3, known=True), self._row(0.6, known=True)]}
        return first, {"rows": [self._row(0.8, known=True)]}, {"rows": [self._row(0.5, known=False)]}

    def _example_inputs(self) -> Data:
        if self._form == "rows":
            return Data("rows", [self._row(0.5, known=False)])
        return Data("pictures", [base64.b64decode(self._drawing(0))])

    def _columns(self) -> Iterator[dict[str, Any]]:
        """Each column, the target last: where most of its numbers lie, or values that it may have."""
        assert isinstance(self._preparation, Rows)
        schema, target, scaling = self._preparation.schema, self._preparation.target, self._preparation.scaling
        if self._config.tasks.name != TABLE:
            for name, (low, high) in zip((*schema.features, target), RANGES[self._config.tasks.name], strict=True):
                yield {"name": name, "low": low, "high": high}
            return
        start = 0
        for column in schema.columns:
            if isinstance(column, Number):
                yield _range(column.name, float(scaling.x.mean[start]), float(scaling.x.scale[start]))
            else:
                yield {"name": column.name, "values": list(column.examples(float(scaling.x.mean[start])))}
            start += len(column.names)
        if self._preparation.classes:
            yield {"name": target, "values": list(map(str, self._preparation.classes))}
        else:
            yield _range(target, float(scaling.y.mean), float(scaling.y.scale))

    def _row(self, share: float, *, known: bool) -> dict[str, Any]:
        """A row that lies so far from the low end of each column to its high end."""
        *columns, target = self._columns()
        found = {column["name"]: _between(column, share) for column in columns}
        if not known:
            return found
        value = _between(target, share)
        if "values" not in target:
            low = max(0.0, target["low"])
            value = float(share > 0.5) if self._trained.classifies else round(low + share * (target["high"] - low))
        return found | {target["name"]: value}

    def _drawing(self, which: int) -> str:
        """A small picture in base64: a stroke that stands, one that lies, one that lies lower."""
        assert isinstance(self._preparation, Pictures)
        pixels = np.full((28, 28), 255, np.uint8)
        middle = 14 + 4 * (which == 2)
        along, across = slice(4, -4), slice(middle - 1, middle + 1)
        pixels[(along, across) if which == 0 else (across, along)] = 0
        file = io.BytesIO()
        Image.fromarray(pixels).convert("L" if self._preparation.channels == 1 else "RGB").save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode()

    # Data

    def points(self, data: Data) -> Batch:
        """Points as the model takes them."""
        plain = self._plain(data)
        if data.kind != "rows" and data.outputs is None:
            raise ValueError("points need their labels or outputs.")
        return self._trained.points(plain if data.kind == "rows" else (plain, list(data.outputs or ())), self._event)

    def inputs(self, data: Data) -> Tensor:
        """Inputs as the model takes them."""
        if not len(data.values):
            raise ValueError("there are no inputs to predict at.")
        return self._trained.inputs(self._plain(data), self._event)

    def _plain(self, data: Data) -> Any:
        """Values in a form that preparations take; never a string, which they would take for the path of a file."""
        if data.kind not in (self._form, "arrays"):
            raise ValueError(f"the model {self.name} takes {self._form} or arrays; got {data.kind}.")
        if data.kind == "rows":
            assert isinstance(self._preparation, Rows)
            empty: dict[str, list[Any]] = {name: [] for name in (*self._preparation.features, self._preparation.target)}
            return list(data.values) or empty
        if data.kind == "pictures":
            for i, content in enumerate(data.values):
                self._check_picture(content, i)
            return list(data.values)
        try:
            arrays = [np.asarray(value) for value in data.values]
            return arrays if self._form == "pictures" else np.stack(arrays) if arrays else np.zeros((0, *self._event))
        except ValueError as error:
            raise ValueError("arrays must be numbers, and all of one shape.") from error

    def _check_picture(self, content: bytes, i: int) -> None:
        """Refuses a picture by the size it says it has, before it is decoded."""
        try:
            width, height = Image.open(io.BytesIO(content), formats=FORMATS).size
        except Exception:  # not a picture at all: whoever decodes it says so
            return
        if width * height > self._pixels:
            raise ValueError(f"picture {i + 1} has {width} x {height} pixels; {self._pixels} are allowed.")

    # States

    def judge(self, data: Data | None) -> Judged:
        """The first points of a task, and which of them cannot be right."""
        form = "rows" if self._form == "rows" else "pictures"
        return self._learner.judge(self.points(data or Data(form, [], [])))

    def adapt(self, judged: Judged, classes: Sequence[Any] | None) -> Predictor:
        """What is known of a task after its first points."""
        return self._learner.adapt(judged, classes=classes)

    def load(self, content: bytes) -> Predictor:
        """The predictor of a state, ready to predict."""
        predictor = self._learner.from_bytes(content)
        if isinstance(predictor, Memorised):
            predictor.posterior  # noqa: B018 - factorised by the thread that asks, not by one that works for all
        return predictor

    def dump(self, predictor: Predictor) -> bytes:
        """The state of a predictor: a memory where it is small, which needs no network to be read again."""
        small = isinstance(predictor, Memorised) and predictor.memory.nbytes <= MEMORY
        return predictor.to_bytes(form="memory" if small else "smaller")

    def reads(self, content: bytes) -> bool:
        """Whether a task file says that it is of this model."""
        return self.fingerprint.encode() in content[: 8 + int.from_bytes(content[:8], "little")]

    def summary(self, predictor: Predictor) -> dict[str, Any]:
        """What the list of tasks says of it."""
        if not self._trained.classifies:
            return {"points": predictor.n}
        classes = zip(predictor.classes, predictor.counts, strict=True)
        return {"points": predictor.n, "classes": [{"label": label, "points": n} for label, n in classes]}

    # Predictions

    def predict(self, asks: Sequence[Ask]) -> list[Prediction | Exception]:
        """What several tasks expect, each at inputs of its own, after one pass of the network."""
        together = [ask for ask in asks if isinstance(ask.predictor, Memorised)]
        phi: Iterator[Tensor] = iter(())
        if together:
            whole = self._trained.all_features(torch.cat([ask.x for ask in together]))
            phi = iter(whole.split([len(ask.x) for ask in together]))
        found: list[Prediction | Exception] = []
        for ask in asks:
            try:
                if isinstance(ask.predictor, Memorised):
                    found.append(ask.predictor.predict_from(next(phi)))
                else:
                    found.append(ask.predictor.predict_prepared(ask.x))
            except (ValueError, TypeError) as error:
                found.append(error)
        return found

    def rows(self, prediction: Prediction, *, level: float) -> dict[str, Any]:
        """A prediction as plain values."""
        if isinstance(prediction, ClassPrediction):
            found = zip(prediction.labels, prediction.probabilities.tolist(), prediction.entropy.tolist(), strict=True)
            rows = [{"label": k, "probabilities": p, "entropy": e} for k, p, e in found]
            return {"classes": list(prediction.classes), "predictions": rows}
        low, high = prediction.interval(level)
        values = torch.stack((prediction.mean, prediction.variance.sqrt(), low, high), -1).tolist()
        rows = [dict(zip(("mean", "sd", "low", "high"), row, strict=True)) for row in values]
        return {"level": level, "predictions": rows}


def _range(name: str, mean: float, scale: float) -> dict[str, Any]:
    return {"name": name, "low": mean - 2 * scale, "high": mean + 2 * scale}


def _between(column: dict[str, Any], share: float) -> Any:
    """A value so far from the low end of a column to its high end, or from the first of its values to the last."""
    if "values" in column:
        return column["values"][round(share * (len(column["values"]) - 1))]
    return round(column["low"] + share * (column["high"] - column["low"]), 3)
