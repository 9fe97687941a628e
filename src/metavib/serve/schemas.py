"""What requests and answers look like: the types, and examples that work as pasted.

Points and inputs come in one of three forms, whichever the model takes (`GET /v1/models` says which):

* `rows`: table rows by column name, in the units of the table; points have the target's column too;
* `pictures`: PNG, JPEG, WebP or BMP files in base64, with or without `data:image/png;base64,` before it;
* `arrays`: numbers: the columns of each row in the model's order, or the pixels of each picture (0 to 255).
"""

import binascii
from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from metavib.serve.engine import Data

NAME = r"^[^/\\\x00-\x1f\x7f]+$"


def _name(text: str) -> str:
    if text in (".", ".."):  # browsers and proxies would take these out of an address
        raise ValueError("a name is not made of dots alone")
    return text


def _unpacked(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError("a picture is a string of base64")
    data = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("a picture is a string of base64, and this is none") from error


Name = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME), AfterValidator(_name)]
Label = Annotated[
    Annotated[str, Field(min_length=1, max_length=200, strict=True)]
    | Annotated[int, Field(ge=-(2**53), le=2**53, strict=True)],
    Field(union_mode="left_to_right"),
]
Cell = float | Annotated[str, Field(max_length=1000)] | bool | None
Key = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
Picture = Annotated[bytes, BeforeValidator(_unpacked), WithJsonSchema({"type": "string", "contentEncoding": "base64"})]
Arrays = Annotated[
    list[Any],
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "array"}]}}),
]


class Body(BaseModel):
    """What every body has in common: a field that is not known is an error, and so are infinities."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Inputs(Body):
    """Inputs to predict at, in exactly one of the three forms."""

    rows: list[dict[str, Cell]] | None = Field(None, description="Table rows by column name, in their own units.")
    pictures: list[Picture] | None = Field(None, description="Picture files in base64.")
    arrays: Arrays | None = Field(None, description="Columns of rows in the model's order, or pixels.")

    @model_validator(mode="after")
    def _one_form(self) -> "Inputs":
        if sum(form is not None for form in (self.rows, self.pictures, self.arrays)) != 1:
            raise ValueError("give exactly one of rows, pictures and arrays")
        return self

    def data(self) -> Data:
        """The same, as a model takes it."""
        if self.rows is not None:
            return Data("rows", self.rows)
        return Data("pictures", self.pictures) if self.pictures is not None else Data("arrays", self.arrays or [])


class Points(Inputs):
    """Inputs with their outputs, to learn from or to forget; rows have the column of the target."""

    labels: list[Label] | None = Field(None, description="The class of each picture or array.")
    outputs: list[float] | None = Field(None, description="The real output of each array.")

    @model_validator(mode="after")
    def _one_output(self) -> "Points":
        if self.rows is not None and (self.labels is not None or self.outputs is not None):
            raise ValueError("rows have their outputs in the target's column; labels and outputs are for other forms")
        given = [values for values in (self.labels, self.outputs) if values is not None]
        if self.rows is None and len(given) != 1:
            raise ValueError("give the labels of pictures or arrays, or the outputs of arrays")
        inputs = self.pictures if self.pictures is not None else self.arrays
        if given and inputs is not None and len(given[0]) != len(inputs):
            raise ValueError(f"there are {len(inputs)} inputs and {len(given[0])} labels or outputs")
        return self

    def data(self) -> Data:
        """The same, as a model takes it."""
        return super().data()._replace(outputs=self.labels if self.labels is not None else self.outputs)


class Make(Body):
    """A new task."""

    model: str = Field(max_length=200, description="Which model it belongs to, by name.")
    name: Name | None = Field(
        None, description="What to call it; an opaque string. One is made up where none is given."
    )
    points: Points | None = Field(None, description="Points to begin with.")
    classes: list[Label] | None = Field(None, description="Classes to begin with, those without points included.")


class Update(Body):
    """Points to add."""

    points: Points


class Forget(Body):
    """Points to take away, which must be among those that were learned."""

    points: Points


class Merge(Body):
    """Another task, whose points are added; it stays as it is. No point may be in both."""

    other: Name = Field(description="The name of the other task.")


class Predict(Body):
    """Where to predict."""

    inputs: Inputs
    level: float = Field(0.95, gt=0, lt=1, description="The probability of the interval, for real outputs.")


class MakeCall(Make):
    """Makes a task."""

    verb: Literal["make"]
    name: Name
    key: Key | None = None


class UpdateCall(Update):
    """Adds points."""

    verb: Literal["update"]
    task: Name
    key: Key | None = None


class ForgetCall(Forget):
    """Takes points away."""

    verb: Literal["forget"]
    task: Name
    key: Key | None = None


class MergeCall(Merge):
    """Adds another task."""

    verb: Literal["merge"]
    task: Name
    key: Key | None = None


class PredictCall(Predict):
    """Predicts."""

    verb: Literal["predict"]
    task: Name


class Batch(Body):
    """Many calls: changes are made first, in their order, and then predictions."""

    calls: list[
        Annotated[
            MakeCall | UpdateCall | ForgetCall | MergeCall | PredictCall,
            Field(discriminator="verb"),
        ]
    ] = Field(max_length=256)


# Answers


class ClassCount(BaseModel):
    """A class of a task."""

    label: str | int | float | bool | None
    points: int = Field(description="How many points of it were learned.")


class Task(BaseModel):
    """A task as it is now, or as a change left it."""

    task: str
    model: str | None = Field(description="The model's name; null where this server does not have it.")
    version: int = Field(description="How many changes made it what it is. The ETag says the same.")
    points: int
    classes: list[ClassCount] | None = Field(None, description="Where outputs are classes.")
    left_out: list[int] | None = Field(
        None,
        description="Points of the last change that were left out, since their outputs lie more than eight standard "
        "deviations from what all others say of them; numbered from 1 in the order in which they came.",
    )
    repeated: bool | None = Field(None, description="Whether an earlier request with this key had done it already.")


class Tasks(BaseModel):
    """A page of tasks."""

    tasks: list[Task]
    next: str | None = Field(description="Pass it as `after` for the next page; null on the last one.")


class RealValue(BaseModel):
    """A real output: mean, standard deviation and interval, in the units of the table."""

    mean: float
    sd: float
    low: float
    high: float


class ClassValue(BaseModel):
    """A class: the best one, the probability of each, and the entropy of these in nats."""

    label: str | int | float | bool | None
    probabilities: list[float] = Field(description="In the order of `classes`.")
    entropy: float


class Predictions(BaseModel):
    """What a task expects at some inputs."""

    task: str
    model: str
    version: int
    points: int
    level: float | None = None
    classes: list[str | int | float | bool | None] | None = None
    predictions: list[RealValue] | list[ClassValue]


class Problem(BaseModel):
    """Why something was not done: a sentence."""

    error: str


class CallProblem(Problem):
    """Why a call of a batch was not done, and the status it would have had alone."""

    status: int


class Answers(BaseModel):
    """An answer to each call, in their order."""

    answers: list[Task | Predictions | CallProblem]


class Column(BaseModel):
    """A column of a table: where most of its numbers lie, or values it may have where these are no numbers."""

    name: str
    low: float | None = None
    high: float | None = None
    values: list[str] | None = None


class ModelAbout(BaseModel):
    """A model, and what it takes."""

    name: str
    fingerprint: str
    outputs: Literal["real", "classes"]
    form: Literal["rows", "pictures", "arrays"] = Field(description="The form its inputs come in.")
    columns: list[Column] | None = Field(None, description="Of rows.")
    target: Column | None = Field(None, description="Of rows: the column of the outputs.")
    size: int | None = Field(None, description="Of pictures: they are brought to this many pixels a side.")
    channels: int | None = Field(None, description="Of pictures: 1 for grey, 3 for colour.")
    shape: list[int] = Field(description="Of one input, as the network takes it.")
    constant_size: bool = Field(description="Whether a task takes the same room however many points it has learned.")
    experiment: str
    method: str


class Models(BaseModel):
    """The models of this server."""

    models: list[ModelAbout]
