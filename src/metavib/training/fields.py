"""Frozen dataclasses to and from plain dictionaries; unknown keys and wrong types are errors that name them."""

import dataclasses
import difflib
import json
from collections.abc import Iterator
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as a dictionary that JSON can hold; nested ones as nested dictionaries."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def to_toml(config: Any) -> str:
    """A dataclass as TOML, nested ones as sections; TOML has no none, so that such fields are comments."""
    return "\n".join(_toml(to_dict(config), "")).strip()


def from_dict(cls: type[T], values: Any, *, path: str = "") -> T:
    """Builds a dataclass from a dictionary, field by field.

    Args:
        cls: a dataclass, possibly with dataclasses for fields.
        values: what to build it from; fields left out keep their defaults.
        path: where in a larger dictionary this one stands, for error messages.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{path or 'the config'}: expected a table of {cls.__name__} fields; got {values!r}.")
    hints = get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), sorted(known), n=1)
            hint = f" Did you mean {path + close[0]!r}?" if close else f" Known: {', '.join(sorted(known))}."
            raise ValueError(f"unknown option {path + str(key)!r}.{hint}")
    return cls(**{k: _convert(hints[k], v, f"{path}{k}") for k, v in values.items()})


def override(config: T, assignments: dict[str, Any]) -> T:
    """The config with dotted fields replaced, e.g. {"train.lr": "1e-3"}; strings are read as JSON where they can be."""
    values = to_dict(config)
    for dotted, value in assignments.items():
        *parents, last = dotted.split(".")
        node = values
        for parent in parents:
            node = node.get(parent)  # type: ignore[assignment]
            if not isinstance(node, dict):
                raise ValueError(f"unknown option {dotted!r}: there is no section {parent!r}.")
        node[last] = _parse(value, _options(type(config), dotted)) if isinstance(value, str) else value
    return from_dict(type(config), values)


def leaves(config: Any) -> dict[str, Any]:
    """Every field that is no section, by its dotted name, e.g. {"seed": 0, "train.lr": 0.001}."""
    return dict(_leaves(to_dict(config), ""))


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """The fields in which two configs of one type differ, by dotted name, with both values."""
    first, second = leaves(old), leaves(new)
    return {name: (value, second[name]) for name, value in first.items() if value != second[name]}


def _toml(values: dict[str, Any], path: str) -> Iterator[str]:
    for name, value in values.items():
        if value is None:
            yield f"# {name} = none"
        elif not isinstance(value, dict):
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in values.items():
        if isinstance(value, dict):
            yield f"\n[{path}{name}]"
            yield from _toml(value, f"{path}{name}.")


def _leaves(values: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _options(cls: Any, dotted: str) -> tuple[Any, ...]:
    """The types a field may have; none where there is no such field."""
    for name in dotted.split("."):
        cls = get_type_hints(cls).get(name) if dataclasses.is_dataclass(cls) else None
    return (tuple, *get_args(cls)) if get_origin(cls) is tuple else get_args(cls) or (cls,)


def _parse(text: str, options: tuple[Any, ...]) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None if text.lower() == "none" else text
    if isinstance(value, list) and tuple in options:
        return value
    # Where a string is wanted, a folder called 2024 is no number, and batch-norm called none is a name.
    fits = value is None and type(None) in options
    return text if str in options and not isinstance(value, str) and not fits else value


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if origin is Union or str(origin) == "<class 'types.UnionType'>":
        options = [o for o in get_args(hint) if o is not type(None)]
        if value is None and type(None) in get_args(hint):
            return None
        for option in options:
            try:
                return _convert(option, value, path)
            except ValueError as error:
                failure = error
        raise failure
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, path=f"{path}.")  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, list | tuple):
            value = [value]
        return tuple(_convert(get_args(hint)[0], v, path) for v in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{path}: {str(value)[:20]}... is too large for a float.") from error
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ValueError(f"{path}: expected {getattr(hint, '__name__', hint)}; got {value!r}.")
