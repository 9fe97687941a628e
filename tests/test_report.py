"""The report: made from the records alone, the same from the same records, and honest about what is missing."""

import re
from pathlib import Path
from statistics import fmean

import pytest
from PIL import Image
from typer.testing import CliRunner

from metavib.training import runs as records
from metavib.training.config import TableConfig, TasksConfig
from reproduction import report as reports
from reproduction import store
from reproduction.__main__ import app
from reproduction.report import report
from reproduction.studies import STUDIES

ROOT = Path(__file__).parents[1]
RESULTS = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
FINDINGS = (ROOT / "reproduction" / "findings.md").read_text(encoding="utf-8")


def copied(folder: Path, *names: str) -> Path:
    """Some of the records, and nothing but records."""
    for path in store.FOLDER.glob("*.jsonl"):
        found = [r for name, r in store.read(path).items() if f"{path.stem}/{name}".startswith(names)]
        if found:
            store.add(folder / path.name, found)
    return folder


def noted(folder: Path, study: str, cells: str, text: str) -> None:
    """A note beside the records of a folder."""
    (folder / "notes.toml").write_text(f"[[{study}]]\nabout = 'These'\ncells = '{cells}'\ntext = '{text}'\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The report of the repository's own records, written elsewhere by the program.

    Figure 2, which takes a trained model, is there already, as it is in a clone.
    """
    out = tmp_path_factory.mktemp("report")
    (out / reports.FIGURES).mkdir(parents=True)
    (out / reports.FIGURES / "figure-2.png").write_bytes((ROOT / reports.FIGURES / "figure-2.png").read_bytes())
    ran = CliRunner().invoke(app, ["report", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    written = [Path(line) for line in ran.output.split()]
    assert written[0] == out / "RESULTS.md" and all(path.exists() for path in written)
    drawn = {drawing.file for study in STUDIES.values() for drawing in study.drawings if drawing.draw}
    assert {path.name for path in written[1:]} == drawn
    return out


def test_the_committed_results_are_those_of_the_records(whole):
    """Byte for byte: `python -m reproduction report` on a fresh clone changes nothing."""
    assert (whole / "RESULTS.md").read_bytes() == (ROOT / "RESULTS.md").read_bytes()


def test_every_figure_the_results_refer_to_is_committed_and_whole(whole):
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", RESULTS)
    assert len(figures) >= 5
    for figure in figures:
        for folder in (ROOT, whole):
            with Image.open(folder / figure) as image:
                image.load()


def test_no_figure_is_committed_that_nothing_refers_to():
    texts = "".join(path.read_text(encoding="utf-8") for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))
    assert all(path.name in texts for path in (ROOT / reports.FIGURES).iterdir())


def test_the_results_name_no_place_and_no_day(whole):
    """Nothing of the machine the report was made on gets in."""
    text = (whole / "RESULTS.md").read_text(encoding="utf-8")
    assert str(ROOT) not in text and str(whole) not in text
    assert not re.search(r"\b20[2-9]\d-\d\d|\d\d:\d\d", text)


def test_every_link_of_the_results_leads_to_one_of_its_headings():
    headings = [line.lstrip("# ") for line in RESULTS.splitlines() if line.startswith("#")]
    anchors = [reports.anchor(heading) for heading in headings]
    links = re.findall(r"\]\(#([^)]+)\)", RESULTS)
    assert len(links) > len(STUDIES) and set(links) <= set(anchors) and len(set(anchors)) == len(anchors)


def test_every_link_to_a_finding_leads_to_one_of_its_headings():
    """Also those of the findings among themselves."""
    anchors = [reports.anchor(line.lstrip("# ")) for line in FINDINGS.splitlines() if line.startswith("#")]
    links = re.findall(r"\]\(reproduction/findings\.md#([^)]+)\)", RESULTS)
    assert len(links) > 3 and set(links) | set(re.findall(r"\]\(#([^)]+)\)", FINDINGS)) <= set(anchors)


def test_every_study_has_its_section():
    assert all(f"\n## {study.title}\n\n`python -m reproduction {name}`. " in RESULTS for name, study in STUDIES.items())


def test_a_cell_has_our_number_the_papers_and_the_difference(tmp_path):
    report(copied(tmp_path / "records", "table-2/omniglot-emnist/dkt-linear-1-seed0"), tmp_path / "out")
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    first, *_ = lines = [line for line in text.splitlines() if line.startswith("| DKT linear")]
    assert "not run" in first  # CUB's
    (line,) = (line for line in lines if "73.70 ± 0.38 (1 training)" in line)
    assert "75.97 ± 0.70" in line and "−2.7 ▼" in line


def test_what_was_not_run_says_so(tmp_path):
    """With table 1 alone on record every other section says that it was not run, and no figure is promised."""
    report(copied(tmp_path / "records", "table-1"), tmp_path / "out")
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    assert re.search(r"^\| \[Table 2.* 0 +\| 0 +\| 0 +\| 0 +\| 144 +\|$", text, re.MULTILINE)
    section = text.partition("## Shots\n")[2].partition("\n## ")[0]
    assert section.rstrip().endswith("\n\nnot run") and "![" not in text


def test_cells_below_the_paper_are_explained_or_said_to_be_not(tmp_path):
    folder = copied(
        tmp_path / "records", "table-2/omniglot-emnist/maml-shorter-1", "table-2/omniglot-emnist/dkt-linear-1-seed0"
    )
    noted(folder, "table-2", "*/proto-net-1, */maml-shorter-1", "It was <trained> for `a` step.")
    report(folder, tmp_path / "out")
    section = (tmp_path / "out" / "RESULTS.md").read_text().partition("### About table 2")[2].partition("\n## ")[0]
    assert "**These.** It was <trained> for `a` step." in section
    *_, last = section.strip().split("\n\n")
    assert " ".join(last.split()) == (
        "Below the paper, without an explanation yet: Omniglot → EMNIST, the paper's recipe, DKT linear, 1-shot "
        "accuracy %."
    )


def test_an_explanation_of_several_cells_is_given_once(tmp_path):
    folder = copied(
        tmp_path / "records", "table-2/omniglot-emnist/maml-shorter-1", "table-2/omniglot-emnist/dkt-linear-1-seed0"
    )
    noted(folder, "table-2", "omniglot-emnist/*-1", "One reason for both.")
    report(folder, tmp_path / "out")
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    assert text.count("One reason for both.") == 1 and "without an explanation yet" not in text


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ("[[table-9]]", "notes.toml: there is no study 'table-9'; there are table-1"),
        ("[[table-1]]\nabout='a'\ntext='t'\ncells='maml/7'", "table-1 has no cell 'maml/7'; it has maml-1/5"),
        ("[[table-1]]\nabout='a'\ntext='t'\ncells='gp-vib/5,maml/7'", "table-1 has no cell 'maml/7'; it has"),
        ("[[table-1]]\nabout='a'", "notes.toml: expected [[table-1]] with about, text and cells"),
        ("table-1 = 7", "notes.toml: expected [[table-1]] with about, text and cells"),
        ("[[table-1", "notes.toml: "),
    ],
)
def test_a_note_about_nothing_is_refused(tmp_path, notes, message):
    folder = copied(tmp_path / "records", "table-1/gp-vib")
    (folder / "notes.toml").write_text(notes)
    with pytest.raises(ValueError, match=re.escape(message)):
        report(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()  # before any work is done


def test_without_records_there_is_no_report(tmp_path):
    with pytest.raises(FileNotFoundError, match="run a study first"):
        report(tmp_path / "none", tmp_path)
    with pytest.raises(ValueError, match="nothing is on record"):
        report(tmp_path, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_config_that_exists_no_more_is_shown_all_the_same(tmp_path):
    """A field that was dropped from the config costs no number of the report."""
    folder = copied(tmp_path / "records", "table-1/gp-vib")
    before, after = tmp_path / "before", tmp_path / "after"
    report(folder, before)
    found = store.read(folder / "table-1.jsonl")["gp-vib"]
    found["config"]["model"]["dropped_long_ago"] = 7
    store.add(folder / "table-1.jsonl", [found])
    again = store.read(folder / "table-1.jsonl")["gp-vib"]
    assert store.config(again) is None and again["config"]["model"]["dropped_long_ago"] == 7
    report(folder, after)
    assert (after / "RESULTS.md").read_bytes() == (before / "RESULTS.md").read_bytes()


def test_a_line_that_is_no_record_is_named(tmp_path):
    folder = copied(tmp_path, "table-1/gp-vib")
    with open(folder / "table-1.jsonl", "a") as file:
        file.write('{"rows": []}\n')
    with pytest.raises(ValueError, match=r"table-1\.jsonl, line 4 is not the record of a run"):
        report(folder, tmp_path / "out")


# Questions answered once, whose tables are written by hand


def cells_of(text: str) -> list[list[str]]:
    """The lines of all tables in a text."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(
    ("study", "title"),
    [
        ("improved-photographs", "What helps on photographs"),
        ("starts", "How photographs begin"),
        ("crops", "Crops of small photographs"),
        ("rates", "How GP+MAML begins on Augmented Omniglot"),
    ],
)
def test_validation_accuracies_are_those_on_record(study, title):
    """Means over trainings and over the validations of the last tenth of each third of the steps, and the best."""
    section = FINDINGS.partition(f"## {title}\n")[2].partition("\n## ")[0]
    shown = sorted(row[1:] for row in cells_of(section) if re.fullmatch(r"\d+\.\d", row[1]))
    runs: dict[tuple[str, ...], list[list[list[float]]]] = {}
    for record in store.read(store.FOLDER / f"{study}.jsonl").values():
        config = record["config"]
        line = (config["tasks"]["name"], config["method"], config["model"]["kernel"], record["variant"])
        runs.setdefault(line, []).append(record["validation"])
    expected = []
    for curves in runs.values():
        last = max(step for curve in curves for step, _ in curve)
        ends = [last // 3, 2 * last // 3, last]
        means = [fmean(100 * v for c in curves for step, v in c if 0.9 * end <= step <= end) for end in ends]
        expected.append([f"{x:.1f}" for x in (*means, fmean(100 * max(v for _, v in curve) for curve in curves))])
    assert shown == sorted(expected)


def test_the_lengths_of_omniglot_are_those_on_record():
    section = FINDINGS.partition("## How long Omniglot takes\n")[2].partition("\n## ")[0]
    shown = sorted(row[1:] for row in cells_of(section) if "±" in row[1])
    expected = []
    for record in store.read(store.FOLDER / "lengths.jsonl").values():
        metrics = record["evaluation"]["rows"][0]["metrics"]
        mean, half = 100 * metrics["accuracy"]["mean"], 100 * metrics["accuracy"]["episode_ci95"]
        nll, ece = metrics["nll"]["mean"], 100 * metrics["ece"]
        expected.append([f"{mean:.2f} ± {half:.2f} (1 training)", f"{nll:.3f}", f"{ece:.2f}"])
    assert shown == sorted(expected)


def test_the_changes_of_our_recipe_for_sinusoids_are_those_on_record():
    section = FINDINGS.partition("## What our recipe for sinusoids changed\n")[2].partition("\n## ")[0]
    shown = sorted(row[1::3] for row in cells_of(section) if row[0].startswith("GP-VIB"))
    expected = []
    for record in store.read(store.FOLDER / "improved-sinusoid.jsonl").values():
        errors = [row["metrics"]["mse"] for row in record["evaluation"]["rows"]]
        assert [row["shots"] for row in record["evaluation"]["rows"]] == [5, 10, 20]
        expected.append([f"{e['mean']:.4f} ± {e['ci95_over_repeats']:.4f}" for e in errors])
    assert shown == sorted(expected)


# Data checksums


@pytest.mark.parametrize("name", ["sinusoid", "gaussian", "glyphs"])
def test_data_that_the_seed_makes_has_no_checksum(name):
    assert records.data(TasksConfig(name=name)) == "generated"


def test_the_files_read_are_recorded_by_their_checksums(tmp_path):
    """The same as sha256sum gives; which form of a dataset is read decides which files."""
    for file in ("omniglot_28.npz", "omniglot_105.npz", "emnist_62x200.npz"):
        (tmp_path / file).write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    root = str(tmp_path)
    assert records.data(TasksConfig(name="omniglot", root=root)) == {"omniglot_28.npz": abc}
    assert records.data(TasksConfig(name="omniglot-emnist", root=root)) == {
        "omniglot_105.npz": abc,  # what is cropped is read at full size
        "emnist_62x200.npz": abc,
    }


def test_a_folder_of_images_has_one_checksum_that_its_names_and_contents_decide(tmp_path):
    def checksum() -> str:
        return records.data(TasksConfig(name="images", root=str(tmp_path)))[tmp_path.name]

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"1")
    first = checksum()
    (tmp_path / "a" / "1.png").touch()
    assert checksum() == first
    (tmp_path / "a" / "1.png").rename(tmp_path / "a" / "2.png")
    second = checksum()
    (tmp_path / "a" / "2.png").write_bytes(b"2")
    assert len({first, second, checksum()}) == 3


def test_files_that_went_away_cost_no_record(tmp_path):
    assert records.data(TasksConfig(name="cub", root=str(tmp_path))) is None


def test_a_table_is_recorded_by_the_digest_its_config_holds():
    tasks = TasksConfig(name="table", table=TableConfig(csv="some/where.csv", digest="d1"))
    assert records.data(tasks) == {"where.csv": "d1"}
