"""Tables from records: every cell is where its run says, trainings are put together, and nothing depends on order."""

import copy
import random
from math import isfinite
from statistics import fmean, stdev

import pytest

from reproduction import grids, plots, tables
from reproduction import published as paper
from reproduction.compare import Cell
from reproduction.grids.grid import MAIN_TABLE, base, read_name, title


def image(accuracy: float = 0.75, *, shots: int = 1, experiment: str = "omniglot-emnist", beta: float = 1e-3, **more):
    """A record of an image run, as short as one can be; `more` goes into its one test."""
    mean = {"episode_ci95": 0.004, "episodes": 3000}
    curve = {"confidence": [None, 0.5, 0.9], "accuracy": [None, 0.4, 0.95], "points": [0.0, 10.0, 30.0]}
    metrics = {"accuracy": {"mean": accuracy, **mean}, "nll": {"mean": 1 - accuracy, **mean}}
    metrics |= {"brier": {"mean": 0.3, **mean}, "ece": 0.05, "reliability": curve}
    row = {"ways": 5, "shots": shots, "episodes": 3000, "metrics": metrics, **more}
    return {
        "config": {"seed": 0, "model": {"extra": 0, "norm": "none"}, "train": {"beta": beta}},
        "evaluation": {"experiment": experiment, "rows": [row]},
        "training_seconds": 60.0,
        "machine": "a machine",
    }


def varying(varied: str, accuracies: dict[int, float]) -> dict:
    """A record with a test for each value of what is varied."""
    record = image()
    (row,) = record["evaluation"]["rows"]
    rows = []
    for value, accuracy in accuracies.items():
        rows.append(copy.deepcopy(row) | {varied: value})
        rows[-1]["metrics"]["accuracy"]["mean"] = accuracy
    record["evaluation"]["rows"] = rows
    return record


def cells(made: list[grids.Grid]) -> dict[str, Cell]:
    return {cell.key: cell for grid in made for cell in grid.cells}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("cub/gp-vib-linear-5-seed2", ("cub", "gp-vib-linear", 5, 2)),
        ("baseline++-1", (None, "baseline++", 1, None)),
        ("gp-maml-cosine", (None, "gp-maml-cosine", None, None)),
        ("omniglot-emnist/beta-1e-07-5-seed0", ("omniglot-emnist", "beta-1e-07", 5, 0)),
        ("a/gp-vib-linear-improved-unaugmented-1-seed10", ("a", "gp-vib-linear-improved-unaugmented", 1, 10)),
    ],
)
def test_the_name_of_a_run_says_what_it_is(name, parts):
    assert read_name(name) == parts


def test_a_recipe_of_ours_is_named_apart_and_compared_with_what_it_varies():
    assert title("gp-vib-linear-improved") == "GP-VIB linear, improved" and title("unheard-of") == "unheard-of"
    assert base("gp-vib-linear-improved", MAIN_TABLE) == "gp-vib-linear" and base("gp-vibes", MAIN_TABLE) is None
    found = cells(grids.table_2({"cub/gp-vib-cosine-improved-5-seed0": image(0.8, shots=5, experiment="cub")}))
    assert found["cub/gp-vib-cosine-improved-5"].paper.mean == 78.35


def test_table_2_has_all_eight_columns_and_every_method_without_any_record():
    found = cells(grids.table_2({}))
    assert set(found) == {f"{e}/{row}-{k}" for e, k in paper.TABLE_2_COLUMNS for row in MAIN_TABLE}
    for key, cell in found.items():
        name = read_name(key)
        assert cell.ours is None and cell.text == "not run"
        assert (cell.paper.mean, cell.paper.sd) == paper.table_2(name.row, name.experiment, name.shots)


def test_seeds_share_a_cell():
    values = [0.75, 0.77, 0.76]
    records = {f"omniglot-emnist/maml-1-seed{i}": image(v) for i, v in enumerate(values)}
    ours = cells(grids.table_2(records))["omniglot-emnist/maml-1"].ours
    assert ours.mean == pytest.approx(100 * fmean(values)) and ours.sd == pytest.approx(100 * stdev(values))
    assert ours.trainings == 3 and "(3 trainings)" in tables.table_2(records)


def test_rows_that_differ_in_a_number_stand_by_its_size():
    rows = ["gp-vib-linear-10000-steps", "gp-vib-linear-300-steps", "gp-vib-linear", "gp-vib-linear-1000-steps"]
    found = grids.grid.ordered(rows, list(grids.grid.MAIN_TABLE))
    assert found == [rows[2], rows[1], rows[3], rows[0]]


def test_the_order_of_the_records_changes_no_table():
    names = [
        f"cub/{row}-{k}-seed{s}" for row in (*MAIN_TABLE, "gp-vib-linear-improved") for k in (1, 5) for s in (0, 1)
    ]
    records = {n: image(0.5 + i / 100, shots=read_name(n).shots, experiment="cub") for i, n in enumerate(names)}
    mixed = list(records.items())
    random.Random(0).shuffle(mixed)
    for table in (tables.table_2, tables.calibration, tables.images):
        assert table(dict(mixed)) == table(records)


def test_who_is_first_is_said_of_ours_and_of_the_paper():
    records = {
        "cub/maml-1-seed0": image(0.55, experiment="cub"),
        "cub/proto-net-1-seed0": image(0.66, experiment="cub"),
    }
    note = next(grid.note for grid in grids.table_2(records) if grid.title == "CUB")
    assert "Best at 1 shot: ProtoNet with 66.00; in the paper's column DKT cosine with 63.37." in note
    assert "5 shots" not in note  # nothing was run there


def test_omniglot_has_accuracy_and_nll_beside_the_papers():
    found = cells(grids.omniglot({"gp-vib-linear-5-seed0": image(0.99, shots=5, experiment="omniglot")}))
    cell, nll = found["gp-vib-linear-5"], found["gp-vib-linear-5-nll"]
    assert cell.paper.mean == 99.776 and cell.paper.interval == pytest.approx(0.019) and cell.difference < 0
    assert nll.paper.mean == 0.012 and nll.difference is None and nll.ours.mean == pytest.approx(0.01)
    assert len(found) == 24 and sum(c.ours is not None for c in found.values()) == 2


def test_augmented_omniglot_compares_what_was_tested_with_as_many_points_as_the_paper():
    record = varying("shots", {15: 0.70, 100: 0.80})
    found = cells(grids.augmented_omniglot({"gp-vib-linear-15-seed0": record}))
    few, many = found["gp-vib-linear-15"], found["gp-vib-linear-100"]
    assert few.paper is None and few.ours.mean == pytest.approx(70) and many.ours.mean == pytest.approx(80)
    assert many.paper.mean == 80.73


@pytest.mark.parametrize(("norm", "theirs"), [("none", 86.29), ("running", 86.62)])
def test_a_deeper_network_is_compared_with_the_papers_deeper_network(norm, theirs):
    record = varying("shots", {15: 0.70, 100: 0.86})
    record["config"]["model"] = {"extra": 1, "norm": norm}
    cell = cells(grids.augmented_omniglot({"gp-vib-linear-deeper-15-seed0": record}))["gp-vib-linear-deeper-100"]
    assert cell.paper.mean == theirs and cell.difference is None  # no spread is published


def test_table_1_has_every_row_of_the_paper_without_any_record():
    (grid,) = grids.table_1({})
    assert len(grid.rows) == len(paper.TABLE_1) and {cell.text for cell in grid.cells} == {"not run"}
    by_key = cells([grid])
    assert by_key["maml-10/20"].paper.mean == 0.043 and by_key["gp-vib/5"].paper_text == "0.020 ± 0.014"


def test_beta_has_a_row_a_beta_and_a_column_a_score_and_shots():
    records = {
        f"omniglot-emnist/beta-{beta:g}-{k}-seed{seed}": image(0.5 + k / 20 - beta / 10, shots=k, beta=beta)
        for beta in (1.0, 1e-3)
        for k in (5, 1)
        for seed in (0, 1)
    }
    (grid,) = grids.beta(records)
    assert grid.header == ("beta", "accuracy %, K = 1", "accuracy %, K = 5", "NLL, K = 1", "NLL, K = 5")
    assert [row.label for row in grid.rows] == ["0.001", "1"]
    assert grid.rows[1].cells[:2] == ("45.00 ± 0.00", "65.00 ± 0.00")


@pytest.mark.parametrize(("varied", "made"), [("shots", grids.shots), ("inner_steps", grids.inner_steps)])
def test_curves_over_tests_have_a_row_a_value_and_a_column_a_method(varied, made):
    records = {
        "maml-1-seed0": varying(varied, {1: 0.5, 2: 0.6}),
        "gp-vib-linear-1-seed0": varying(varied, {1: 0.7, 3: 0.8}),
        "maml-5-seed0": varying(varied, {1: 0.55}),
    }
    first, second = made(records)
    assert first.title.endswith("trained with K = 1") and second.title.endswith("trained with K = 5")
    assert first.header[1:] == ("MAML", "GP-VIB linear") and [row.label for row in first.rows] == ["1", "2", "3"]
    assert first.rows[1].cells == ("60.00 ± 0.40", "not run") and second.rows[0].cells == ("55.00 ± 0.40",)


def test_progress_has_the_validation_of_each_third_of_a_training_and_its_best():
    record = image(experiment="cub") | {"validation": [[step, step / 1000] for step in range(10, 301, 10)]}
    record["config"]["train"]["steps"] = 300
    (grid,) = grids.progress({"cub/gp-vib-cosine-start-seed0": record})
    assert grid.header == ("run", "after 100 steps", "after 200 steps", "after 300 steps", "best")
    assert grid.rows == (grids.Row("GP-VIB cosine, start", ("9.5", "19.0", "28.5", "30.0")),)
    assert "over trainings" not in grid.note


def test_progress_of_several_trainings_is_their_mean():
    records = {}
    for seed, scores in enumerate(((0.1, 0.2, 0.6), (0.3, 0.8, 0.4))):
        record = image(experiment="cub") | {"validation": [[100 * (i + 1), score] for i, score in enumerate(scores)]}
        record["config"]["train"]["steps"] = 300
        records[f"cub/gp-vib-linear-start-seed{seed}"] = record
    (grid,) = grids.progress(records)
    assert grid.rows == (grids.Row("GP-VIB linear, start", ("20.0", "50.0", "50.0", "70.0")),)
    assert "over trainings" in grid.note


def test_calibration_shows_a_fitted_temperature_as_a_row_of_its_own():
    cooled = copy.deepcopy(image()["evaluation"]["rows"][0]["metrics"]) | {"ece": 0.01}
    records = {"cub/maml-1-seed0": image(experiment="cub", temperature=2.0, tempered_metrics=cooled)}
    (grid,) = grids.calibration(records)
    assert [row.label for row in grid.rows] == ["MAML", "MAML, with a temperature"]
    assert [row.cells[2] for row in grid.rows] == ["5.00", "1.00"]


# Figures from the same records


def lines(ax) -> dict[str, list]:
    return {line.get_label(): line.get_xydata().tolist() for line in ax.lines if not line.get_label().startswith("_")}


def test_shots_are_drawn_with_their_bands_a_panel_a_training():
    records = {
        "maml-1-seed0": varying("shots", {1: 0.5, 2: 0.6}),
        "gp-vib-linear-1-seed0": varying("shots", {1: 0.7, 2: 0.8}),
        "maml-5-seed0": varying("shots", {1: 0.55, 2: 0.7}),
    }
    left, right = plots.shots_curve(records).axes
    assert lines(left) == {
        "MAML": [[1, 50], [2, 60]],
        "GP-VIB linear": [[1, 70], [2, pytest.approx(80)]],
    }
    assert left.lines[0].get_color() == right.lines[0].get_color()  # the same method
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(49.6) and band.max() == pytest.approx(60.4)


def test_half_the_errors_are_as_far_up_anywhere_among_inner_steps():
    record = varying("inner_steps", {0: 0.2, 1: 0.8, 2: 0.9, 3: 0.98, 4: 0.99, 5: 1.0})
    (ax,) = plots.inner_steps_curve({"maml-1-seed0": record}).axes
    at = [ax.transData.transform(point)[1] for point in lines(ax)["MAML"]]
    assert at == sorted(at) and all(isfinite(y) for y in at)
    assert at[2] - at[1] == pytest.approx(at[4] - at[3])


def test_the_comparison_draws_only_columns_that_were_run():
    records = {"cub/maml-1-seed0": image(0.5, experiment="cub")}
    (ax,) = plots.comparison(grids.table_2(records)).axes
    assert ax.get_title() == "CUB, 1-shot accuracy %"
    assert [text.get_text() for text in ax.get_yticklabels()] == [title(row) for row in MAIN_TABLE]


def test_reliability_has_a_panel_a_cell_and_a_line_a_training():
    records = {"maml-1-seed0": image(), "maml-1-seed1": image(), "proto-net-1-seed0": image()}
    first, second = plots.reliability(records).axes
    assert [ax.get_title().partition("\n")[0] for ax in (first, second)] == ["ProtoNet, 1-shot", "MAML, 1-shot"]
    assert len(first.lines) == 2 and len(second.lines) == 3  # and the diagonal
    assert second.lines[1].get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.95]]  # empty bins are left out
