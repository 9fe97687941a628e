"""What a table's columns become as numbers: learned once, stored as JSON, the same for every form of the same table."""

import warnings
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metavib.data.schema import CYCLES, VALUES, Category, Moment, Number, Schema, Unused, learn, read_rows
from metavib.data.table import in_memory, read, read_cells

N = 12
TABLE = {
    "sky": ["sun", "rain", "fog", "sun"] * 3,
    "open": [True, False, False] * 4,
    "at": [datetime(2024, 1, 1) + timedelta(days=40 * i, hours=i) for i in range(N)],
    "heat": [0.5 * i for i in range(N)],
    "count": list(range(N)),
}
KINDS = {"sky": Category, "open": Category, "at": Moment, "heat": Number, "count": Number}


def written(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return read(path, texts=("sky", "at", "open"))


FORMS = {
    "dictionary": lambda f, _: in_memory(f.to_dict("list")),
    "rows": lambda f, _: in_memory(f.to_dict("records")),
    "pandas": lambda f, _: in_memory(f),
    "pandas, categorical": lambda f, _: in_memory(f.astype({"sky": "category"})),
    "pandas, nullable": lambda f, _: in_memory(f.astype({"count": "Int64", "open": "boolean", "sky": "string"})),
    "polars": lambda f, _: in_memory(pl.DataFrame(f.to_dict("list"))),
    "polars, categorical": lambda f, _: in_memory(
        pl.DataFrame(f.to_dict("list")).with_columns(pl.col("sky").cast(pl.Categorical))
    ),
    "arrow": lambda f, _: in_memory(pa.Table.from_pandas(f)),
    "arrow, dictionary": lambda f, _: in_memory(pa.Table.from_pandas(f.astype({"sky": "category"}))),
    "csv": lambda f, p: written(f, p / "t.csv"),
    "parquet": lambda f, p: written(f, p / "t.parquet"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_gives_the_same_schema_and_the_same_numbers(form, tmp_path):
    frame = pd.DataFrame(TABLE)
    wanted = learn(in_memory(TABLE), list(TABLE))
    assert {column.name: type(column) for column in wanted.columns} == KINDS
    table = FORMS[form](frame, tmp_path)
    assert learn(table, list(TABLE)) == wanted
    np.testing.assert_array_equal(wanted.encode(table), wanted.encode(in_memory(TABLE)))


def slow(name, cells, cell):
    """A cell as numbers, by hand: what the docstrings say, a loop at a time."""
    if name in ("sky", "open"):
        values = sorted({str(c).lower() for c in cells})
        shares = [sum(str(c).lower() == v for c in cells) / len(cells) for v in values]
        found = [float(str(cell).lower() == v) for v in values] if str(cell).lower() in values else shares
        return found[1:] if len(values) == 2 else found
    if name == "at":
        days = (cell - datetime(1970, 1, 1)).total_seconds() / 86400
        return [days] + [f(2 * np.pi * days / length) for length in CYCLES.values() for f in (np.sin, np.cos)]
    return [float(cell)]


def test_numbers_are_those_of_a_slow_encoder():
    schema = learn(in_memory(TABLE), list(TABLE))
    asked = {name: [*cells, cells[0]] for name, cells in TABLE.items()} | {"sky": [*TABLE["sky"], "hail"]}
    wanted = [[v for n in TABLE for v in slow(n, TABLE[n], asked[n][i])] for i in range(N + 1)]
    np.testing.assert_allclose(schema.encode(in_memory(asked)), wanted, atol=1e-7)
    assert schema.names[:5] == ("sky=fog", "sky=rain", "sky=sun", "open=true", "at")
    assert schema.sources[:5] == ("sky", "sky", "sky", "open", "at") and schema.parts[:5] == (0, 0, 0, 1, 2)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1, max_size=6).filter(
    lambda t: t.strip() == t and t.lower() not in ("", "na", "nan", "null", "none", "<na>", "nat")
)


@st.composite
def tables(draw):
    """Columns of all kinds, each row drawn at random, each value there twice."""
    rows = draw(st.integers(1, 5))
    found = {}
    for i in range(draw(st.integers(1, 4))):
        cell = draw(
            st.sampled_from(
                [
                    st.floats(allow_nan=False, allow_infinity=False),
                    TEXT,
                    st.booleans(),
                    st.dates(date(1900, 1, 1), date(2100, 1, 1)),
                    st.sampled_from(["x", "y", None]),
                ]
            )
        )
        column = draw(st.lists(cell, min_size=rows, max_size=rows))
        found[f"c{i}"] = column + column
    return found


@given(tables(), st.randoms())
def test_json_order_of_columns_and_order_of_rows_do_not_matter(table, random):
    """Round trip through JSON; columns by name, others between; each row by itself."""
    try:
        schema = learn(in_memory(table), list(table))
    except ValueError as error:
        assert any(repr(name) in str(error) for name in table)  # says which column
        return
    again = Schema.from_json(schema.to_json())
    assert again == schema
    wanted = schema.encode(in_memory(table))
    assert wanted.shape == (len(table["c0"]), len(schema.names)) and not np.isinf(wanted).any()
    names = [*table, "other"]
    random.shuffle(names)
    shuffled = {name: table.get(name, ["?"] * len(table["c0"])) for name in names}
    np.testing.assert_array_equal(again.encode(in_memory(shuffled)), wanted)
    order = list(range(len(wanted)))
    random.shuffle(order)
    rows = [{name: cells[i] for name, cells in shuffled.items()} for i in order]
    np.testing.assert_array_equal(again.encode(in_memory(rows)), wanted[order])


@given(st.lists(st.sampled_from("abcde"), min_size=2, max_size=30), st.lists(TEXT | st.none(), max_size=8))
def test_known_values_are_told_apart_and_unknown_ones_are_average(seen, asked):
    seen = seen + seen
    (column,) = learn(in_memory({"c": seen}), ["c"]).columns
    found = column.encode(in_memory({"c": seen}))
    assert len({tuple(row) for row in found}) == len(set(seen))
    for i, value in enumerate(asked):
        row = column.encode(in_memory({"c": [value]}))[0]
        if value is None:
            assert np.isnan(row[0]) and not np.isnan(row[1:]).any()
        elif value not in seen:
            np.testing.assert_allclose(row, found.mean(0), err_msg=str(i))  # an average row of training
        else:
            np.testing.assert_array_equal(row, found[seen.index(value)])


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.integers(-12, 12))
def test_a_moment_is_the_same_however_it_is_written(at, hours):
    column = Moment("at", ("day", "week", "year"))
    zone = timezone(timedelta(hours=hours))
    forms = [at, np.datetime64(at), at.isoformat(), at.isoformat(sep=" "), pd.Timestamp(at), at.replace(tzinfo=UTC)]
    forms += [at.replace(tzinfo=UTC).isoformat(), at.replace(tzinfo=UTC).astimezone(zone).isoformat()]
    found = [column.encode(in_memory({"at": np.array([form], dtype=object)}))[0] for form in forms]
    for row in found[1:]:
        np.testing.assert_allclose(row, found[0], atol=1e-6)
    assert found[0][0] == pytest.approx((at - datetime(1970, 1, 1)).total_seconds() / 86400)


def test_times_of_day_durations_and_years_first():
    assert Moment("t", ()).encode(in_memory({"t": ["8:30", time(8, 30), "08:30:00"]})).tolist() == [[8.5 / 24]] * 3
    assert (
        Moment("t", ()).encode(in_memory({"t": ["1970/1/3", "1970-01-03 00:00", date(1970, 1, 3)]})).tolist()
        == [[2.0]] * 3
    )
    table = in_memory(pd.DataFrame({"d": pd.to_timedelta(["1h", "2h"])}))
    assert learn(table, ["d"]).encode(table).tolist() == [[3600.0], [7200.0]]


def test_cycles_are_those_that_the_rows_cover():
    def cycles(*cells):
        (column,) = learn(in_memory({"t": list(cells)}), ["t"]).columns
        return column.cycles

    assert cycles("2024-01-01", "2024-01-02", "2024-01-03") == ()
    assert cycles("2024-01-01 08:00", "2024-01-01 09:00") == ("day",)
    assert cycles("2024-01-01", "2024-02-01") == ("week",)
    assert cycles("2024-01-01", "2025-02-01 12:00") == ("day", "week", "year")


def test_rare_values_of_a_large_category_count_as_unknown():
    cells = [f"v{i:03d}" for i in range(VALUES + 5) for _ in range(2 + (i < VALUES))]
    (column,) = learn(in_memory({"c": cells}), ["c"]).columns
    assert column.values == tuple(f"v{i:03d}" for i in range(VALUES))
    np.testing.assert_allclose(column.encode(in_memory({"c": [f"v{VALUES}"]})), [column.shares])


def test_codes_are_categories_where_they_are_said_to_be():
    table = in_memory({"zip": [8001, 8002, 8001], "x": [1, 2, 3]})
    assert learn(table, ["zip", "x"]).names == ("zip", "x")
    schema = learn(table, ["zip", "x"], categories=["zip"])
    assert schema.columns[0].values == ("8001", "8002")
    for same in ([8002], [8002.0], ["8002"], [Decimal(8002)]):
        assert schema.encode(in_memory({"zip": same, "x": [0]})).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match="'town' is to be a category and is none of the inputs"):
        learn(table, ["zip", "x"], categories=["town"])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([1, 2, "three"], "row 3, column 'c': 'three' is no finite number. .* make it one of categories"),
        (["2024-01-01", "2024-01-02", "soon"], "row 3, column 'c': 'soon' is no date like 2024-02-29"),
        (["2024-01-01", "2024-13-02", "2024-02-02"], "row 2, column 'c': '2024-13-02' is no date"),
        (["1,5", "2,5", "2,5"], "row 1, column 'c': '1,5' is no finite number. Write numbers as 1234.5"),
        (["1,234.5", "2,000", "900"], "row 1, column 'c': '1,234.5' is no finite number. Write numbers as 1234.5"),
        ([[1, 2], [3, 4], [5, 6]], "column 'c' must have one value a row"),
        (np.array([1j, 2j]), "column 'c' must hold real numbers; got complex ones"),
    ],
)
def test_cells_that_do_not_belong_are_refused_with_their_place(cells, message):
    with pytest.raises(ValueError, match=message):
        table = in_memory({"c": cells})
        learn(table, ["c"]).encode(table)


@pytest.mark.parametrize(
    ("cells", "groups"),
    [
        (["Ann", "Bob", "Eve", "Joe"], None),
        (["CHE", "CHE", "FRA", "FRA"], ["Switzerland", "Switzerland", "France", "France"]),
        ([None, None, None, None], ["a", "a", "b", "b"]),
    ],
)
def test_a_column_that_can_say_nothing_of_new_groups_is_not_used(cells, groups):
    """Texts that come once, a second id of the groups, nothing at all; texts that groups share are indicators."""
    table = in_memory({"c": cells, "x": [1, 2, 3, 4]})
    with pytest.warns(UserWarning, match="column 'c' is not used"):
        schema = learn(table, ["x", "c"], groups=groups)
    assert schema.columns[1] == Unused("c") and schema.names == ("x",) and schema.used.features == ("x",)
    assert Schema.from_json(schema.to_json()) == schema and schema.encode(table).shape == (4, 1)
    shared = in_memory({"c": ["low", "high", "low", "high"], "x": [1, 2, 3, 4]})
    assert learn(shared, ["c"], groups=["a", "a", "b", "b"]).names == ("c=low",)


@pytest.mark.parametrize(
    "line", ["", "{}", "[1]", '{"kind": "number"}', '{"kind": "moment", "name": "a", "cycles": ["x"]}']
)
def test_what_is_no_schema_is_refused(line):
    with pytest.raises(ValueError, match="what a column becomes is not understood"):
        Schema.from_json([line])


# Files


def test_a_column_that_counts_the_rows_is_no_input(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "y": [3.0, 4.0]}, index=[5, 6])
    frame.to_csv(tmp_path / "t.csv")
    assert read(tmp_path / "t.csv").names == ("a", "y")
    pd.read_csv(tmp_path / "t.csv").to_csv(tmp_path / "again.csv", index=False)  # its name is now "Unnamed: 0"
    assert read_rows(tmp_path / "again.csv", target="y").names == ("a",)
    frame.to_parquet(tmp_path / "t.parquet")
    found = read_rows(tmp_path / "t.parquet", target="y")
    assert found.names == ("a",) and found.y.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("name", "cells", "counts"),
    [
        ("rownames", [1, 2, 3], True),
        ("rownames", ["Mazda RX4", "Datsun 710", "Fiat 128"], True),
        ("X", [1, 2, 3], True),
        ("index", [0, 1, 2], True),
        ("index", [101.5, 99.0, 102.0], False),
        ("X", [1, 2, 4], False),
        ("day", [1, 2, 3], False),
    ],
)
def test_columns_that_other_programs_write_beside_the_rows_are_no_inputs(tmp_path, name, cells, counts):
    """R's row names, and a count of the rows under a usual name; numbers under such a name that do not count stay."""
    frame = pd.DataFrame({name: cells, "a": [1.0, 2.0, 2.0], "y": [3.0, 4.0, 5.0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_rows(tmp_path / "t.csv", target="y").names == (("a",) if counts else (name, "a"))
    assert read(tmp_path / "t.csv").index == ((name,) if counts else ())


@pytest.mark.parametrize(
    ("separator", "decimal"),
    [(",", "."), (";", ","), (";", "."), ("\t", ".")],
    ids=["usual", "Europe", "mixed", "tabs"],
)
def test_cells_may_be_separated_as_a_spreadsheet_does_it(tmp_path, separator, decimal):
    """Semicolons with commas in numbers, as Excel writes them in much of Europe, and tabs: the same table."""
    frame = pd.DataFrame({"shop": ["a", "a", "b; c"], "price, net": [1.5, -2.25, 1e6], "y": [1, 2, 3]})
    frame.to_csv(tmp_path / "t.csv", index=False, sep=separator, decimal=decimal)
    found = read_rows(tmp_path / "t.csv", target="y", task="shop")
    assert found.names == ("price, net",) and found.tasks.tolist() == ["a", "a", "b; c"]
    np.testing.assert_array_equal(found.x[:, 0], frame["price, net"])
    assert [row["price, net"] for row in read_cells(tmp_path / "t.csv")] == ["1.5", "-2.25", "1000000.0"]


@pytest.mark.parametrize("cell", [[1, 2], {"a": 1}, np.zeros(2)])
def test_cells_that_are_no_values_are_refused(cell):
    cells = np.empty(3, dtype=object)
    cells[:] = ["a", cell, "a"]
    with pytest.raises(ValueError, match="column 'c' must have one value a row; row 2 has a"):
        in_memory(pd.DataFrame({"c": cells}))


def test_a_lazy_frame_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"got a lazy frame: pass frame.collect\(\)"):
        in_memory(pl.DataFrame({"a": [1]}).lazy())


def test_two_columns_name_a_task_together(tmp_path):
    cells = {"school": ["A,B", "A", "A", "B"], "year": ["1", "B,1", "01", "01"], "x": [1, 2, 3, 4]}
    pd.DataFrame(cells).to_csv(tmp_path / "t.csv", index=False)
    found = read_rows(tmp_path / "t.csv", task="school,year")
    assert found.names == ("x",) and len(set(found.tasks)) == 4 and found.tasks[2] == "A,01"
    assert read(tmp_path / "t.csv", texts=["year"]).ids("year") == ["1", "B,1", "01", "01"]
    with pytest.raises(ValueError, match="no column 'town'. It has school, year, x"):
        read_rows(tmp_path / "t.csv", task="school,town")


def test_what_is_no_parquet_is_refused_by_name(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"t\.parquet: this is no Parquet file"):
        read(tmp_path / "t.parquet")
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "e.parquet")
    assert not len(read(tmp_path / "e.parquet"))  # which training refuses, and adapting takes
    pq.write_table(pa.table({"heat": [1.0]}), tmp_path / "f.parquet")
    with pytest.raises(ValueError, match=r"f\.parquet: there is no column 'heart'. Did you mean 'heat'"):
        read(tmp_path / "f.parquet", columns=["heart"])


def test_features_are_chosen_and_dropped_by_name():
    table = in_memory({"a": [1], "b": [2], "t": [3], "y": [4]})
    assert table.features(beside=("t", "y")) == ("a", "b")
    assert table.features(drop=("a",), beside=("t", "y")) == ("b",)
    assert table.features(("b", "a")) == ("b", "a")
    with pytest.raises(ValueError, match="no column 'c'"):
        table.features(drop=("c",))
    assert table.features(drop=("a", "b"), beside=("t", "y")) == ()


def test_of_no_rows_at_all_nothing_is_said_to_be_useless():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learn(in_memory({"c": np.zeros(0)}), ["c"]).names == ()
