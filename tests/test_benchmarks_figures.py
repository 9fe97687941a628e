"""The figures of the documentation are drawn from results that are there, and say what these say."""

import json

import numpy as np
import pytest
from matplotlib import pyplot as plt
from PIL import Image

from benchmarks import figures, images, when_not


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_figure_is_drawn_from_the_committed_results(name):
    drawn = figures.FIGURES[name]()
    assert drawn.axes and (figures.ROOT / "docs" / "figures" / f"{name}.png").exists()
    plt.close("all")


def test_the_page_on_tables_quotes_the_report_of_the_benchmark():
    page, report = (
        path.read_text(encoding="utf-8")
        for path in (figures.ROOT / "docs" / "tables.md", figures.RESULTS / "tables.md")
    )
    quoted = page[: page.index("## How long it takes")].splitlines()
    lines = [line for line in quoted if line.startswith(("| ", "metavib's "))]
    assert len(lines) > 100 and not [line for line in lines if line not in report.splitlines()]


def test_a_table_of_a_page_is_read_as_it_stands():
    page = (figures.RESULTS / "tables.md").read_text(encoding="utf-8")
    columns, lines = figures.read_table(page, "RMSE over the best, geometric mean")
    shown = next(line for line in page.split("RMSE over the best")[1].splitlines() if line.startswith("| metavib |"))
    assert [float(cell) for cell in shown.split("|")[2:-1]] == lines["metavib"]
    assert columns == ["K = 0", "K = 1", "K = 3", "K = 5", "K = 10"]
    with pytest.raises(ValueError, match="no table with the title 'nothing'"):
        figures.read_table(page, "nothing")


def test_what_is_said_of_when_not_to_use_it_is_what_was_measured():
    """The page quotes these means."""
    page = (figures.ROOT / "docs" / "how-good.md").read_text(encoding="utf-8")
    rows = json.loads((figures.RESULTS / "when-not.json").read_text())["rows"]
    said = {("few groups", 2): 0.46, ("few groups", 64): 0.20, ("one big task", 4000): 0.41}
    said |= {("many labels each", 100): 0.25, ("many labels each", 300): 0.17, ("a strong pooled signal", 0.5): 0.43}
    for (situation, size), number in said.items():
        assert round(when_not.mean(rows, situation, size, when_not.OURS), 2) == number and f"{number:.2f}" in page


def test_handwriting_is_written_as_a_user_would_have_it(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (50, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "scans.npz", images=pixels, label=np.repeat([0, 1], 25))
    images.write_emnist(tmp_path / "scans", tmp_path / "scans.npz")
    files = {folder.name: sorted(folder.iterdir()) for folder in (tmp_path / "scans").iterdir()}
    assert {name: len(found) for name, found in files.items()} == {"00": 20, "01": 20}
    with Image.open(tmp_path / "scans" / "01" / "3.png") as picture:
        assert np.array_equal(np.asarray(picture), pixels[28])


def test_a_mixed_model_and_trees_learn_what_they_are_for():
    """In the situation of each, with data enough, its error is small: none of them is a straw man."""
    rng = np.random.default_rng(0)
    for make, size, method, bound in (
        (when_not.few_groups, 64, when_not.mixed, 0.3),
        (when_not.one_task, 4000, when_not.boosting, 0.2),
        (when_not.many_labels, 100, when_not.alone, 0.4),
    ):
        train, new, rows = make(size, rng)
        new = when_not.Groups(*(a[:3] for a in new))
        known, rest = new.split(rows)
        error = np.sqrt(np.mean((method(train, known, rest.x) - rest.f) ** 2)) / rest.f.std()
        assert error < bound, method
