"""What a hyperparameter search searches: the paper's ranges, and ranges of one's own.

The paper lists the values it tried for the outer learning rate, the inner one and beta. Numbers of a list have an
order, which a search can use: it sees their places in the list, not so many unrelated names.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from metavib.training.config import BOUND, DIRAC, GRADIENT, Config
from metavib.training.fields import override

if TYPE_CHECKING:
    from optuna.trial import Trial

OUTER = (1e-4, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 2.5e-3, 5e-3, 7.5e-3, 0.01, 0.025, 0.05, 0.075, 0.1)
INNER = (1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0)
DROPOUT = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
BETA = (1e-7, 1e-6, 1e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 2.5e-3, 5e-3, 7.5e-3, 0.01, 0.1, 0.5, 1.0)

Value = float | int | str | bool | None


@final
@dataclass(frozen=True)
class Choices:
    """Some values of a field; numbers in ascending order.

    Args:
        values: at least one.

    Example:
        >>> from metavib.tune.ranges import Choices
        >>> str(Choices((0.001, 0.01))), 0.01 in Choices((0.001, 0.01))
        ('0.001, 0.01', True)
    """

    values: tuple[Value, ...]

    @property
    def ordered(self) -> bool:
        """Whether the values are numbers, so that their places in the list say which are near each other."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)

    def suggest(self, trial: "Trial", field: str) -> Value:
        """The value a trial is to try."""
        if self.ordered:
            return self.values[trial.suggest_int(field, 0, len(self.values) - 1)]
        return trial.suggest_categorical(field, self.values)

    def stored(self, value: Value) -> Any:
        """A value as the study stores it: a number by its place in the list."""
        return self.values.index(value) if self.ordered else value

    def value(self, stored: Any) -> Value:
        """The value that the study stores so."""
        return self.values[stored] if self.ordered else stored

    def __contains__(self, value: Value) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in self.values)


@final
@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, by their logarithm where `low` is positive; whole ones where both ends are.

    Example:
        >>> from metavib.tune.ranges import Interval
        >>> str(Interval(1e-4, 0.1)), 0.5 in Interval(1e-4, 0.1)
        ('0.0001..0.1', False)
    """

    low: float | int
    high: float | int

    def suggest(self, trial: "Trial", field: str) -> Value:
        """The value a trial is to try."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(field, self.low, self.high, log=self.low > 0)
        return trial.suggest_float(field, self.low, self.high, log=self.low > 0)

    def stored(self, value: Value) -> Any:
        """A value as the study stores it: itself."""
        return value

    def value(self, stored: Any) -> Value:
        """The value that the study stores so."""
        return stored

    def __contains__(self, value: Value) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


Range = Choices | Interval
Space = dict[str, Range]


def paper(method: str, *, dropout: bool = False) -> Space:
    """The ranges the paper searched, those of them that a method has.

    Args:
        method: what is trained.
        dropout: whether its inputs are embeddings, some numbers of which are dropped before an MLP.

    Example:
        >>> from metavib.tune.ranges import paper
        >>> list(paper("gp-maml"))
        ['train.lr', 'model.inner_rate', 'train.beta']
    """
    space: Space = {"train.lr": Choices(OUTER)}
    if dropout:
        space["model.dropout"] = Choices(DROPOUT)
    if method in GRADIENT:
        space["model.inner_rate"] = Choices(INNER)
    if method in BOUND and method not in DIRAC:
        space["train.beta"] = Choices(BETA)
    return space


def parse(text: str, config: Config) -> tuple[str, Range]:
    """A field and its range, from `FIELD=A,B,C` or `FIELD=LOW..HIGH`.

    Args:
        text: such as `train.lr=1e-4,1e-3` or `train.lr=1e-4..0.1`.
        config: which has the field; every value is checked against it.

    Example:
        >>> from metavib.training.recipes import recipe
        >>> from metavib.tune.ranges import parse
        >>> parse("train.lr=1e-4..0.1", recipe("sinusoid", "gp-vib"))
        ('train.lr', Interval(low=0.0001, high=0.1))
    """
    field, _, values = (part.strip() for part in text.partition("="))
    if not field or not values:
        raise ValueError(f"--range takes FIELD=A,B,C or FIELD=LOW..HIGH, such as train.lr=1e-4..0.1; got {text!r}.")
    if ".." in values:
        low, high = (_value(config, field, end) for end in values.split("..", 1))
        if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)) or not low < high:
            raise ValueError(f"--range {field}: expected two numbers LOW..HIGH with LOW below HIGH; got {values!r}.")
        return field, Interval(low, high)
    found = dict.fromkeys(_value(config, field, value) for value in values.split(","))
    choices = Choices(tuple(found))
    return field, Choices(tuple(sorted(found))) if choices.ordered else choices


def value_of(config: Config, field: str) -> Any:
    """The value of a dotted field."""
    value: Any = config
    for name in field.split("."):
        value = getattr(value, name)
    return value


def _value(config: Config, field: str, text: str) -> Any:
    value = value_of(override(config, {field: text.strip()}), field)
    if not isinstance(value, int | float | str | None):
        raise ValueError(f"--range {field}: only fields that hold one value can be searched; this one holds {value!r}.")
    return value
