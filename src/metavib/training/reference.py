"""What each field of a config means, where it counts, and which recipes set it.

The meanings stand in the docstrings of `metavib.training.config`; docs/config.md is made from them by
`metavib config --markdown`.
"""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from metavib.training.config import (
    AUTO,
    BOUND,
    CLASSES,
    CLASSIFICATION,
    EMBEDDINGS,
    EXPERIMENTS,
    GRADIENT,
    HIERARCHICAL,
    METHODS,
    SPLIT_ANEW,
    TABLE,
    TRANSFER,
    Config,
    TableConfig,
)
from metavib.training.fields import leaves
from metavib.training.recipes import NO_VECTORS, has_improved, improved, recipe

IMPROVED = "--improved"


WITHOUT_STEPS = (
    "method",
    "seed",
    "device",
    "threads",
    "tasks.name",
    "tasks.inputs",
    "tasks.table.",
    "model.likelihood",
) + (
    "test.shots",
    "test.tasks",
    "test.queries",
    "test.seed",
)
"""Fields that count for the method hierarchical; of `tasks.table`, all."""


class Field(NamedTuple):
    """A field of a config: its dotted name, its type in words, its default and its meaning.

    Example:
        >>> from metavib.training.reference import fields
        >>> fields()["train.lr"]
        Field(name='train.lr', kind='float', default=0.001, meaning="Adam's learning rate.")
    """

    name: str
    kind: str
    default: Any
    meaning: str


class Place(NamedTuple):
    """Where some fields count: in words, as a test of a config, and for which fields.

    Example:
        >>> from metavib.training.recipes import recipe
        >>> from metavib.training.reference import where
        >>> place = where("model.inner_steps")
        >>> place.words, place.holds(recipe("sinusoid", "gp-vib"))
        ('maml, stochastic-maml and gp-maml', False)
    """

    words: str
    holds: Callable[[Config], bool]
    fields: tuple[str, ...]


PLACES = (
    Place(
        "experiments with classes: images and embeddings",
        lambda c: c.tasks.name in (*CLASSIFICATION, EMBEDDINGS),
        ("tasks.ways", "test.min_shots", "test.ways", "test.temperature", "test.unknown"),
    ),
    Place(
        "the experiment images",
        lambda c: c.tasks.name == "images",
        ("tasks.fit", "tasks.held_out", "tasks.skip_broken"),
    ),
    Place(
        "experiments with images",
        lambda c: c.tasks.name in CLASSIFICATION,
        ("tasks.channels", "tasks.size", "tasks.augment", "tasks.crop", "tasks.jitter")
        + ("tasks.kind", "tasks.ink", "tasks.alphabets", "tasks.alike")
        + ("tasks.augment_test", "train.calibrate", "test.shifts"),
    ),
    Place(
        "experiments with images or embeddings from files",
        lambda c: c.tasks.name in (*CLASSIFICATION, EMBEDDINGS) and c.tasks.name != "glyphs",
        ("tasks.root",),
    ),
    Place(
        "the experiment embeddings",
        lambda c: c.tasks.name == EMBEDDINGS,
        ("tasks.features", "tasks.digests", "tasks.unseen"),
    ),
    Place(
        "the experiment embeddings and the backbone tuned",
        lambda c: c.tasks.name == EMBEDDINGS or c.model.backbone == "tuned",
        ("tasks.learn_from",),
    ),
    Place("the experiments table and embeddings", lambda c: c.tasks.name in (TABLE, EMBEDDINGS), ("tasks.inputs",)),
    Place("the experiment omniglot-emnist", lambda c: c.tasks.name == "omniglot-emnist", ("tasks.rotations",)),
    Place("the experiment omniglot", lambda c: c.tasks.name == "omniglot", ("tasks.shuffled",)),
    Place(
        "the experiment gaussian",
        lambda c: c.tasks.name == "gaussian",
        ("tasks.kernel", "tasks.lengthscale", "tasks.noise"),
    ),
    Place(
        "the experiment table",
        lambda c: c.tasks.name == TABLE,
        ("tasks.table.csv", "tasks.table.task", "tasks.table.target", "tasks.table.features")
        + ("tasks.table.drop", "tasks.table.others", "tasks.table.categories", "tasks.table.columns")
        + (
            "tasks.table.classes",
            "tasks.table.missing",
            "tasks.table.digest",
            "tasks.table.mean",
            "tasks.table.scale",
            "tasks.table.flags",
        )
        + (
            "tasks.table.y_mean",
            "tasks.table.y_scale",
            "tasks.table.y_step",
            "tasks.table.y_low",
            "tasks.table.y_high",
        ),
    ),
    Place("the backbone mlp", lambda c: c.model.backbone == "mlp", ("model.reach", "model.start_variance")),
    Place(
        "the backbones mlp, embedded and tuned",
        lambda c: c.model.backbone in ("mlp", "embedded", "tuned"),
        ("model.widths",),
    ),
    Place(
        "the backbone tuned",
        lambda c: c.model.backbone == "tuned",
        ("model.view", "model.mirror", "train.network_lr", "tasks.spoilt"),
    ),
    Place(
        "the backbone tuned and the experiment images",
        lambda c: c.model.backbone == "tuned" or c.tasks.name == "images",
        ("model.pretrained",),
    ),
    Place("the backbone embedded", lambda c: c.model.backbone == "embedded", ("model.dropout",)),
    Place(
        "the backbones conv4 and strided-conv4",
        lambda c: c.model.backbone in ("conv4", "strided-conv4"),
        ("model.width", "model.extra"),
    ),
    Place("the backbone conv4", lambda c: c.model.backbone == "conv4", ("model.poolings",)),
    Place(
        "networks of images and the kernel bn-cosine",
        lambda c: c.model.backbone not in ("mlp", "embedded", "tuned") or c.model.kernel == "bn-cosine",
        ("model.norm",),
    ),
    Place(
        "feature-transfer and baseline++",
        lambda c: c.method in TRANSFER,
        ("model.classes", "model.head_epochs"),
    ),
    Place("matching-net", lambda c: c.method == "matching-net", ("model.context",)),
    Place(
        "gp-vib, gp-maml, dkt and gaussian-classes",
        lambda c: c.method in ("gp-vib", "gp-maml", "dkt", CLASSES),
        ("model.kernel",),
    ),
    Place(
        "gp-vib and gp-maml",
        lambda c: c.method in ("gp-vib", "gp-maml"),
        ("model.bias", "model.learn_scale", "model.scale", "model.sites"),
    ),
    Place(
        "gp-vib, gp-maml and gaussian-classes",
        lambda c: c.method in ("gp-vib", "gp-maml", CLASSES),
        ("train.site_lr",),
    ),
    Place(
        "simplified and full sites",
        lambda c: c.method in ("gp-vib", "gp-maml") and c.model.sites in ("simplified", "full"),
        ("model.site_m", "model.site_s"),
    ),
    Place(", ".join(SPLIT_ANEW), lambda c: c.method in SPLIT_ANEW, ("train.splits",)),
    Place(
        "methods that are instances of the bound (gp-vib, maml, stochastic-maml, gp-maml, hierarchical)",
        lambda c: c.method in (*BOUND, HIERARCHICAL),
        ("model.likelihood",),
    ),
    Place(
        "the likelihoods gaussian and student-t",
        lambda c: c.method in BOUND and c.model.likelihood in (AUTO, "gaussian", "student-t"),
        ("model.noise", "model.noise_floor"),
    ),
    Place(
        "the likelihood gaussian",
        lambda c: c.method in BOUND and c.model.likelihood in (AUTO, "gaussian"),
        ("model.learn_noise",),
    ),
    Place(
        "the likelihood softmax",
        lambda c: c.method in BOUND and c.model.likelihood in (AUTO, "softmax"),
        ("model.samples",),
    ),
    Place(
        "maml, stochastic-maml and gp-maml",
        lambda c: c.method in GRADIENT,
        ("model.inner_steps", "model.inner_rate", "model.first_order", "model.inner_points")
        + ("model.inner_shuffle", "model.recompute", "test.inner_steps"),
    ),
    Place("gp-maml", lambda c: c.method == "gp-maml", ("model.inner_mean", "train.beta_psi")),
    Place(
        "stochastic-maml, and gp-maml with train.beta_psi",
        lambda c: c.method == "stochastic-maml" or c.train.beta_psi is not None,
        ("model.weight_variance", "test.weight_samples"),
    ),
)


def fields() -> dict[str, Field]:
    """Every field of a config by its dotted name, in the order in which they are written down."""
    return {field.name: field for field in _fields(Config, "")}


def where(name: str) -> Place | None:
    """Where a field counts; None for everywhere."""
    return next((place for place in PLACES if name in place.fields), None)


def check_counts(names: dict[str, str], config: Config) -> None:
    """Refuses fields that somebody set although they do nothing in this config.

    Args:
        names: for each field that was set, what it was set by, e.g. {"tasks.table.csv": "--csv"}.
        config: the config that came of it.
    """
    for name, option in names.items():
        if config.method == HIERARCHICAL and not name.startswith(WITHOUT_STEPS):
            raise ValueError(
                f"{option} does nothing for {HIERARCHICAL}, which takes no steps and has no network: leave it out, or "
                "train a network (--method gp-vib)."
            )
        place = where(name)
        if place is not None and not place.holds(config):
            raise ValueError(
                f"{option} does nothing for {config.method} on {config.tasks.name}: {name} is for {place.words}. "
                "Leave it out."
            )


def set_by(name: str) -> dict[str, list[str]]:
    """The recipes that give a field another value than the default: for each value, `experiment method` of each."""
    default = leaves(Config())[name]
    found: dict[str, list[str]] = {}
    if name in ("method", "tasks.name"):  # these say which recipe it is
        return found
    for label, values in _recipes():
        if values[name] != default:
            found.setdefault(shown(values[name]), []).append(label)
    return found


def explain(name: str) -> str:
    """All there is to say about one field, in Markdown."""
    field = fields()[_full_name(name)]
    place, setters = where(field.name), set_by(field.name)
    lines = [f"**{field.name}** ({field.kind}, default {shown(field.default)})", "", _sentence(field.meaning)]
    if place is not None:
        lines += ["", f"It counts for {place.words}."]
    if setters:
        lines += ["", "Recipes that set it:", ""]
        lines += [f"* {value}: {_summary(labels)}" for value, labels in setters.items()]
    return "\n".join([*lines, "", f"Set it with `--set {field.name}=VALUE`."])


def page() -> str:
    """docs/config.md: every field in a table."""
    lines = [
        "# The config of a run, field by field",
        "",
        "<!-- Made by `metavib config --markdown`; do not edit. -->",
        "",
        "A config decides everything a run depends on. It comes from a recipe (`metavib train EXPERIMENT --method",
        "METHOD`) or from a file (`--config FILE`, JSON or TOML), and `--set FIELD=VALUE` changes any field of it.",
        "`metavib config EXPERIMENT --method METHOD` prints a recipe's config, `metavib config RUN` that of a run, and",
        "`metavib config FIELD` explains one field, with the values that recipes give it. The last column of each",
        "table names the experiments and methods whose recipes set a field to something else than its default.",
    ]
    for title, section, cls in _sections():
        lines += ["", f"## {title}", "", _first_sentence(cls), ""]
        lines += ["| field | meaning | default | type | set by recipes of |", "| --- | --- | --- | --- | --- |"]
        for field in _fields(cls, section, deep=False):
            place = where(field.name)
            meaning = _sentence(field.meaning) + (f" For {place.words}." if place and cls is not TableConfig else "")
            labels = [label for found in set_by(field.name).values() for label in found]
            cells = (f"`{field.name}`", meaning, shown(field.default), field.kind, _summary(labels))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """A value as `--set` reads it and TOML nearly does."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def _sections(cls: Any = Config, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Each dataclass with a title and the prefix of its fields, the outermost first."""
    yield path.rstrip(".") or "The run", path, cls
    for name, hint in get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            yield from _sections(hint, f"{path}{name}.")


def _fields(cls: Any, path: str, *, deep: bool = True) -> Iterator[Field]:
    meanings, hints = _meanings(cls), get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if not dataclasses.is_dataclass(hint):
            yield Field(f"{path}{field.name}", _kind(hint), field.default, meanings[field.name])
        elif deep:
            yield from _fields(hint, f"{path}{field.name}.")


def _meanings(cls: type) -> dict[str, str]:
    """What the `Args` of a docstring say of each name."""
    text = inspect.getdoc(cls) or ""
    block = text.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", block, re.M | re.S)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def _first_sentence(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _sentence(meaning: str) -> str:
    return f"{meaning[0].upper()}{meaning[1:]}" + ("" if meaning.endswith(".") else ".")


def _kind(hint: Any) -> str:
    options = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join("none" if option is type(None) else _kind(option) for option in options)
    if get_origin(hint) is tuple:
        return f"list of {_kind(options[0])}"
    return {str: "text", bool: "true or false"}.get(hint, hint.__name__)


def _full_name(name: str) -> str:
    """The dotted name of a field from that or from its last part, where that is clear."""
    known = fields()
    if name in known:
        return name
    ends = [field for field in known if field.rpartition(".")[2] == name]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ValueError(f"{name!r} is the name of several fields: {', '.join(ends)}; say which.")
    raise ValueError(f"there is no field {name!r}; docs/config.md lists them all.")


@cache
def _recipes() -> tuple[tuple[str, dict[str, Any]], ...]:
    """Every recipe, by `experiment method`, with all its fields."""
    found = []
    for experiment in EXPERIMENTS:
        for method in _methods_of(experiment):
            found.append((f"{experiment} {method}", leaves(recipe(experiment, method))))
            if has_improved(experiment, method):
                found.append((f"{experiment} {method} {IMPROVED}", leaves(improved(experiment, method))))
    return tuple(found)


def _methods_of(experiment: str) -> tuple[str, ...]:
    if experiment == EMBEDDINGS:
        return tuple(method for method in METHODS if method not in NO_VECTORS)
    if experiment == TABLE:
        return (*BOUND, HIERARCHICAL)
    return METHODS if experiment in CLASSIFICATION else BOUND


def _summary(labels: list[str]) -> str:
    """Recipes in few words: an experiment alone stands for all its methods that take steps, "all images" for theirs."""
    by_experiment: dict[str, list[str]] = {}
    for label in labels:
        experiment, _, method = label.partition(" ")
        by_experiment.setdefault(experiment, []).append(method)
    groups: dict[str, list[str]] = {}
    for experiment, methods in by_experiment.items():
        named = [m for m in methods if m.removesuffix(f" {IMPROVED}") not in methods or not m.endswith(IMPROVED)]
        words = "" if set(_methods_of(experiment)) - {HIERARCHICAL} <= set(named) else f"{', '.join(named)} on "
        groups.setdefault(words, []).append(experiment)
    parts = []
    for words, experiments in groups.items():
        rest = [name for name in experiments if name not in CLASSIFICATION]
        if len(experiments) - len(rest) == len(CLASSIFICATION):
            experiments = [*rest, "all images"]
        parts.append(words + ", ".join(experiments))
    return "; ".join(parts)
