"""Dataclasses from dictionaries and from `--set`: what is read as what, and what is refused."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metavib.training.fields import from_dict, override, to_dict


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    count: int = 3
    name: str = "a"
    flag: bool = False
    sizes: tuple[int, ...] = (1, 2)
    maybe: float | None = None
    folder: str | None = None


@dataclass(frozen=True)
class Outer:
    seed: int = 0
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (("rate", "2e-3"), 2e-3),
        (("rate", "1"), 1.0),
        (("rate", 2), 2.0),
        (("count", "7"), 7),
        (("count", "1e3"), 1000),
        (("flag", "true"), True),
        (("flag", "false"), False),
        (("sizes", "[5, 10, 20]"), (5, 10, 20)),
        (("sizes", "4"), (4,)),
        (("sizes", []), ()),
        (("maybe", "none"), None),
        (("maybe", "None"), None),
        (("maybe", "null"), None),
        (("maybe", "0.5"), 0.5),
        (("maybe", "2"), 2.0),
        (("name", "rbf"), "rbf"),
        (("name", '"rbf"'), "rbf"),
        (("name", "none"), "none"),  # a name, where there is no None
        (("name", "12"), "12"),
        (("name", "true"), "true"),
        (("folder", "2024"), "2024"),  # a folder, not a number
        (("folder", "none"), None),
        (("folder", "/data/x"), "/data/x"),
    ],
)
def test_text_is_read_as_the_type_of_its_field(assignment, expected):
    name, value = assignment
    found = getattr(override(Outer(), {f"inner.{name}": value}).inner, name)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "type_"),
    [
        ("rate", "fast", "float"),
        ("rate", "true", "float"),
        ("rate", "none", "float"),
        ("count", "2.5", "int"),
        ("count", "true", "int"),
        ("count", "Infinity", "int"),
        ("flag", "1", "bool"),
        ("flag", "yes", "bool"),
        ("sizes", "[1, 2.5]", "int"),
        ("sizes", "[true]", "int"),
        ("sizes", "[[1]]", "int"),
        ("maybe", "some", "float"),
        ("name", 3, "str"),
    ],
)
def test_a_wrong_type_is_refused_with_field_expectation_and_value(name, value, type_):
    with pytest.raises(ValueError, match=rf"inner\.{name}: expected {type_}; got"):
        override(Outer(), {f"inner.{name}": value})


def test_an_unknown_key_gets_a_suggestion_or_the_list():
    with pytest.raises(ValueError, match=r"unknown option 'inner\.rat'\. Did you mean 'inner\.rate'\?"):
        from_dict(Outer, {"inner": {"rat": 1.0}})
    with pytest.raises(ValueError, match=r"unknown option 'zzzzzz'\. Known: inner, seed"):
        override(Outer(), {"zzzzzz": 1})


@pytest.mark.parametrize("dotted", ["outer.rate", "inner.rate.x", "seed.x", "inner.sizes.0", ""])
def test_an_unknown_section_is_refused(dotted):
    with pytest.raises(ValueError, match="unknown option"):
        override(Outer(), {dotted: "1"})


@pytest.mark.parametrize("values", [[], "x", 3, None, {"inner": 5}, {"inner": None}])
def test_what_is_no_table_is_refused(values):
    with pytest.raises(ValueError, match="expected a table of"):
        from_dict(Outer, values)


def test_override_leaves_the_original_alone():
    config = Outer()
    assert override(config, {"inner.count": 9}).inner.count == 9
    assert config == Outer()


@given(
    inner=st.builds(
        Inner,
        rate=st.floats(allow_nan=False, allow_infinity=False),
        count=st.integers(),
        name=st.text(),
        flag=st.booleans(),
        sizes=st.lists(st.integers()).map(tuple),
        maybe=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        folder=st.none() | st.text(),
    ),
    seed=st.integers(),
)
def test_a_dictionary_and_back_is_the_same(inner, seed):
    config = Outer(seed, inner)
    assert from_dict(Outer, to_dict(config)) == config


@given(text=st.text())
def test_any_text_survives_as_a_string(text):
    """Unless it is itself a quoted JSON string, which is unquoted."""
    assume_plain = not (text.strip().startswith('"') and text.strip().endswith('"'))
    if assume_plain:
        assert override(Outer(), {"inner.name": text}).inner.name == text
