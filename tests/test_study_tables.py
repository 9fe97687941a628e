"""Tables from records: every cell is where its run says, trainings are put together, and nothing depends on order."""

import copy
import random
from functools import partial
from itertools import product
from math import isfinite, sqrt
from statistics import fmean, stdev

import pytest

from metavib.training import recipes
from reproduction import curves, figures, tables
from reproduction import published as paper
from reproduction.compare import Cell
from reproduction.tables import MAIN_TABLE, ROWS, title


def image(
    accuracy: float = 0.75,
    row: str = "maml",
    variant: str = "",
    *,
    shots: int = 1,
    experiment: str = "omniglot-emnist",
    beta: float = 1e-3,
    seed: int = 0,
    **more,
):
    """A record of an image run, as short as one can be; `more` goes into its one test."""
    mean = {"episode_ci95": 0.004, "episodes": 3000}
    curve = {"confidence": [None, 0.5, 0.9], "accuracy": [None, 0.4, 0.95], "points": [0.0, 10.0, 30.0]}
    metrics = {"accuracy": {"mean": accuracy, **mean}, "nll": {"mean": 1 - accuracy, **mean}}
    metrics |= {"brier": {"mean": 0.3, **mean}, "ece": 0.05, "reliability": curve}
    test = {"ways": 5, "shots": shots, "episodes": 3000, "metrics": metrics, **more}
    model = {"kernel": ROWS[row].kernel, "extra": 0, "norm": "none"}
    tasks = {"name": experiment, "shots": shots}
    return {
        "variant": variant,
        "config": {"method": ROWS[row].method, "seed": seed, "tasks": tasks, "model": model, "train": {"beta": beta}},
        "evaluation": {"experiment": experiment, "rows": [test]},
        "training_seconds": 60.0,
        "machine": "a machine",
    }


def varying(varied: str, accuracies: dict[int, float], *args, **options) -> dict:
    """A record with a test for each value of what is varied."""
    record = image(0.75, *args, **options)
    (test,) = record["evaluation"]["rows"]
    rows = []
    for value, accuracy in accuracies.items():
        rows.append(copy.deepcopy(test) | {varied: value})
        rows[-1]["metrics"]["accuracy"]["mean"] = accuracy
    record["evaluation"]["rows"] = rows
    return record


def named(*records: dict) -> dict[str, dict]:
    """Records under names that say nothing: a record has its place from its config and its variant."""
    return {f"run {i}": record for i, record in enumerate(records)}


def cells(made: list[tables.Grid]) -> dict[str, Cell]:
    return {cell.key: cell for grid in made for cell in grid.cells}


@pytest.mark.parametrize("row", ROWS)
def test_the_config_of_a_run_says_which_row_it_belongs_to(row):
    """On sinusoids a method has one row, whatever its kernel; on images one for each kernel it can have."""
    sinusoid = row in ("gp-vib", "gp-maml", "stochastic-maml")
    assert tables.row(image(row=row, experiment="sinusoid" if sinusoid else "cub")) == row


def test_a_recipe_of_ours_is_named_apart_and_compared_with_what_it_varies():
    assert title("gp-vib-linear", "improved-wide") == "GP-VIB linear, improved wide"
    assert title("unheard-of") == "unheard-of"
    found = cells(tables.table_2(named(image(0.8, "gp-vib-cosine", "improved", shots=5, experiment="cub"))))
    assert found["cub/gp-vib-cosine-improved-5"].paper.mean == 78.35


def test_table_2_has_all_eight_columns_and_every_method_without_any_record():
    found = cells(tables.table_2({}))
    assert len(MAIN_TABLE) == 11 and len(paper.TABLE_2_COLUMNS) == 8
    ours = [f"{row}-improved" for row in tables.LIKE_WITH_LIKE]
    assert set(found) == {f"{e}/{row}-{k}" for e, k in paper.TABLE_2_COLUMNS for row in (*MAIN_TABLE, *ours)}
    for (row, experiment, k), number in paper.TABLE_2.items():
        cell = found[f"{experiment}/{row}-{k}"]
        assert cell.ours is None and cell.text == "not run" and cell.paper == number
    assert found["mini-imagenet-cub/gp-vib-cosine-5"].paper_text == "56.70 ± 0.62"


def test_like_is_compared_with_like_in_a_block_of_its_own():
    """Every method that has our recipe stands there, run or not; what varies the paper's recipe does not."""
    made = image(0.6, "gp-vib-cosine", "improved", experiment="cub"), image(0.5, "maml", "shorter", experiment="cub")
    first, second = (grid for grid in tables.table_2(named(*made)) if grid.title.startswith("CUB"))
    assert "MAML, shorter" in {row.label for row in first.rows}
    assert [row.label for row in second.rows] == [title(row, "improved") for row in tables.LIKE_WITH_LIKE]
    assert {cell.text for cell in second.cells if cell.key != "cub/gp-vib-cosine-improved-1"} == {"not run"}
    for column, row in product(("cub", "mini-imagenet", "omniglot-emnist", "mini-imagenet-cub"), tables.LIKE_WITH_LIKE):
        assert recipes.has_improved(column, ROWS[row].method)


def test_seeds_share_a_cell():
    values = [0.75, 0.77, 0.76]
    records = named(*(image(v, seed=seed) for seed, v in enumerate(values)))
    ours = cells(tables.table_2(records))["omniglot-emnist/maml-1"].ours
    assert ours.mean == pytest.approx(100 * fmean(values)) and ours.sd == pytest.approx(100 * stdev(values))
    assert ours.trainings == 3
    assert any("(3 trainings)" in grid.markdown() for grid in tables.table_2(records))


def test_rows_that_differ_in_a_number_stand_by_its_size():
    variants = ["10000-steps", "300-steps", "", "1000-steps"]
    found = tables.by_line(named(*(image(0.75, "gp-vib-linear", variant) for variant in variants)))
    assert [variant for _, variant in found] == ["", "300-steps", "1000-steps", "10000-steps"]


def test_the_order_of_the_records_changes_no_table():
    lines = [*((row, "") for row in MAIN_TABLE), ("gp-vib-linear", "improved")]
    every = [
        image(0.5 + (7 * i + 3 * k + s) / 200, *line, shots=k, experiment="cub", seed=s)
        for i, line in enumerate(lines)
        for k in (1, 5)
        for s in (0, 1)
    ]
    mixed = every[:]
    random.Random(0).shuffle(mixed)
    for table in (tables.table_2, partial(tables.quality, scores=("accuracy", "nll", "brier", "ece"))):
        first, second = table(named(*every)), table(named(*mixed))
        assert [grid.markdown() for grid in first] == [grid.markdown() for grid in second]


def test_who_is_first_is_said_of_ours_and_of_the_paper():
    records = named(image(0.55, "maml", experiment="cub"), image(0.66, "proto-net", experiment="cub"))
    note = next(grid.note for grid in tables.table_2(records) if grid.title == "CUB, the paper's recipe")
    assert "Best at 1 shot: ProtoNet with 66.00; in the paper's column DKT cosine with 63.37." in note
    assert "5 shots" not in note  # nothing was run there


def test_omniglot_has_accuracy_and_nll_beside_the_papers():
    found = cells(tables.further(named(image(0.99, "gp-vib-linear", shots=5, experiment="omniglot")), "omniglot"))
    cell, nll = found["gp-vib-linear-5"], found["gp-vib-linear-5-nll"]
    assert cell.paper.mean == 99.776 and cell.paper.interval == pytest.approx(0.019) and cell.difference < 0
    assert nll.paper_text == "0.012 ± 0.001" and nll.ours.mean == pytest.approx(0.01)
    own, theirs = 0.004 / 1.96, 0.001 / 1.96  # of one training of ours, and of the mean over ten of the paper's
    assert nll.difference == pytest.approx((0.01 - 0.012) / sqrt(own**2 + 10 * theirs**2 + theirs**2))
    assert len(found) == 24 and sum(c.ours is not None for c in found.values()) == 2


def test_augmented_omniglot_compares_what_was_tested_with_as_many_points_as_the_paper():
    record = varying("shots", {15: 0.70, 100: 0.80}, "gp-vib-linear", shots=15, experiment="augmented-omniglot")
    found = cells(tables.further(named(record), "augmented-omniglot"))
    few, many = found["gp-vib-linear-15"], found["gp-vib-linear-100"]
    assert few.paper is None and few.ours.mean == pytest.approx(70) and many.ours.mean == pytest.approx(80)
    assert many.paper.mean == 80.73


@pytest.mark.parametrize(("norm", "theirs", "interval"), [("none", 86.29, 0.84), ("running", 86.62, 1.3)])
def test_a_deeper_network_is_compared_with_the_papers_deeper_network(norm, theirs, interval):
    options = {"shots": 15, "experiment": "augmented-omniglot"}
    record = varying("shots", {15: 0.70, 100: 0.86}, "gp-vib-linear", "deeper", **options)
    record["config"]["model"] |= {"extra": 1, "norm": norm}
    found = cells(tables.further(named(record), "augmented-omniglot"))
    cell = found["gp-vib-linear-deeper-100"]
    assert cell.paper.mean == theirs and cell.paper.interval == pytest.approx(interval) and cell.difference < 0
    assert found["gp-vib-linear-deeper-100-nll"].paper is None  # which is not published


def test_table_1_has_every_row_of_the_paper_without_any_record():
    (grid,) = tables.table_1({})
    assert len(grid.rows) == 8 and len(grid.cells) == len(paper.TABLE_1) == 24
    assert {cell.text for cell in grid.cells} == {"not run"}
    by_key = cells([grid])
    assert by_key["maml-10/20"].paper.mean == 0.043 and by_key["gp-vib/5"].paper_text == "0.020 ± 0.014"


def test_beta_has_a_row_a_beta_and_a_column_a_score_and_shots():
    records = named(
        *(
            image(0.5 + k / 20 - beta / 10, "gp-vib-linear", shots=k, beta=beta, seed=seed)
            for beta in (1.0, 1e-3)
            for k in (5, 1)
            for seed in (0, 1)
        )
    )
    (grid,) = curves.beta(records)
    assert grid.header == ("beta", "accuracy %, K = 1", "accuracy %, K = 5", "NLL, K = 1", "NLL, K = 5")
    assert [row.label for row in grid.rows] == ["0.001", "1"]
    assert grid.rows[1].cells[:2] == ("45.00 ± 0.00", "65.00 ± 0.00")


@pytest.mark.parametrize("varied", ["shots", "inner_steps"])
def test_curves_over_tests_have_a_row_a_value_and_a_column_a_method(varied):
    records = named(
        varying(varied, {1: 0.5, 2: 0.6}),
        varying(varied, {1: 0.7, 3: 0.8}, "gp-vib-linear"),
        varying(varied, {1: 0.55}, shots=5),
    )
    first, second = curves.tested(records, varied, "at test")
    assert first.title.endswith("trained with K = 1") and second.title.endswith("trained with K = 5")
    assert first.header[1:] == ("MAML", "GP-VIB linear") and [row.label for row in first.rows] == ["1", "2", "3"]
    assert first.rows[1].cells == ("60.00 ± 0.40", "not run") and second.rows[0].cells == ("55.00 ± 0.40",)


def test_calibration_shows_a_fitted_temperature_as_a_row_of_its_own():
    cooled = copy.deepcopy(image()["evaluation"]["rows"][0]["metrics"]) | {"ece": 0.01}
    records = named(image(experiment="cub", temperature=2.0, tempered_metrics=cooled))
    (grid,) = tables.quality(records, scores=("nll", "brier", "ece"))
    assert [row.label for row in grid.rows] == ["MAML", "MAML, with a temperature"]
    assert [row.cells[2] for row in grid.rows] == ["5.00", "1.00"]


# Figures from the same records


def lines(ax) -> dict[str, list]:
    return {line.get_label(): line.get_xydata().tolist() for line in ax.lines if not line.get_label().startswith("_")}


def test_shots_are_drawn_with_their_bands_a_panel_a_training():
    records = named(
        varying("shots", {1: 0.5, 2: 0.6}),
        varying("shots", {1: 0.7, 2: 0.8}, "gp-vib-linear"),
        varying("shots", {1: 0.55, 2: 0.7}, shots=5),
    )
    left, right = figures.tested_shots(records).axes
    assert lines(left) == {
        "MAML": [[1, 50], [2, 60]],
        "GP-VIB linear": [[1, 70], [2, pytest.approx(80)]],
    }
    assert left.lines[0].get_color() == right.lines[0].get_color()  # the same method
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(49.6) and band.max() == pytest.approx(60.4)


def test_half_the_errors_are_as_far_up_anywhere_among_inner_steps():
    record = varying("inner_steps", {0: 0.2, 1: 0.8, 2: 0.9, 3: 0.98, 4: 0.99, 5: 1.0})
    (ax,) = figures.inner_steps(named(record)).axes
    at = [ax.transData.transform(point)[1] for point in lines(ax)["MAML"]]
    assert at == sorted(at) and all(isfinite(y) for y in at)
    assert at[2] - at[1] == pytest.approx(at[4] - at[3])


def test_the_comparison_draws_only_columns_that_were_run():
    (ax,) = figures.comparison(named(image(0.5, experiment="cub"))).axes
    assert ax.get_title() == "CUB, the paper's recipe, 1-shot accuracy %"
    assert [text.get_text() for text in ax.get_yticklabels()] == [title(row) for row in MAIN_TABLE]


def test_reliability_has_a_panel_a_cell_and_a_line_a_training():
    records = named(image(), image(seed=1), image(row="proto-net"))
    first, second = figures.reliability(records).axes
    assert [ax.get_title().partition("\n")[0] for ax in (first, second)] == ["ProtoNet, 1-shot", "MAML, 1-shot"]
    assert len(first.lines) == 2 and len(second.lines) == 3  # and the diagonal
    assert second.lines[1].get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.95]]  # empty bins are left out
