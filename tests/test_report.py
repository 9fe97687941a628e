"""The report: made from the records alone, the same from the same records, and honest about what is missing."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from metavib.files import write_json
from metavib.training import runs as records
from metavib.training.config import TableConfig, TasksConfig
from reproduction import store
from reproduction.__main__ import app
from reproduction.displays import DISPLAYS
from reproduction.report import page, report, sections
from reproduction.reproduce import REPRODUCTIONS

ROOT = Path(__file__).parents[1]


def copied(folder: Path, *names: str) -> Path:
    """Some of the records, and nothing but records, as a fresh clone has them."""
    for path in store.FOLDER.glob("*.jsonl"):
        found = [r for name, r in store.read(path).items() if f"{path.stem}/{name}".startswith(names)]
        if found:
            store.add(folder / path.name, found)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The report of the repository's own records, written elsewhere by the program."""
    out = tmp_path_factory.mktemp("report")
    ran = CliRunner().invoke(app, ["report", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert ran.output.split() == [str(out / "RESULTS.md"), str(out / "results" / "report.html")]
    return out


def test_the_committed_results_are_those_of_the_records(whole):
    """Byte for byte: `metavib report` on a fresh clone changes nothing."""
    assert (whole / "RESULTS.md").read_bytes() == (ROOT / "RESULTS.md").read_bytes()


def test_the_committed_page_is_that_of_the_records_but_for_how_figures_are_drawn(whole):
    """Pixels depend on matplotlib's version; every word and number does not."""
    pages = ((folder / "results" / "report.html").read_text(encoding="utf-8") for folder in (ROOT, whole))
    committed, made = (re.sub(r'src="data:[^"]+"', "", text) for text in pages)
    assert committed == made


def test_every_figure_the_results_refer_to_is_committed_and_whole(whole):
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "RESULTS.md").read_text(encoding="utf-8"))
    assert len(figures) >= 5
    for figure in figures:
        for folder in (ROOT, whole):
            with Image.open(folder / figure) as image:
                image.load()


def test_the_results_name_no_place_and_no_day(whole):
    """Nothing of the machine the report was made on gets in."""
    text = (whole / "RESULTS.md").read_text(encoding="utf-8")
    assert str(ROOT) not in text and str(whole) not in text
    assert not re.search(r"\b20[2-9]\d-\d\d|\d\d:\d\d", text)


class Page(HTMLParser):
    """What a page is made of: tags that are closed in order, identifiers, links and sources."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.sources += [found["src"]] if "src" in found else []
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself(whole):
    """No scripts, no address but its own sections, figures inside; every tag is closed."""
    text = (whole / "results" / "report.html").read_text(encoding="utf-8")
    made = Page(text)
    assert not made.open and "script" not in made.tags and "link" not in made.tags
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert made.sources and all(source.startswith("data:image/png;base64,") for source in made.sources)
    assert len(set(made.ids)) == len(made.ids) and {link.removeprefix("#") for link in made.links} <= set(made.ids)
    assert {*DISPLAYS, "data", "difference", "below", "records"} <= {link.removeprefix("#") for link in made.links}
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert len(text) < 5_000_000


def test_every_reproduction_has_its_section():
    assert set(DISPLAYS) == set(REPRODUCTIONS)


def test_a_cell_has_our_number_the_papers_and_the_difference_in_both_forms(tmp_path):
    out = tmp_path / "out"
    report(copied(tmp_path / "records", "table-2/omniglot-emnist/dkt-linear-1-seed0"), out)
    line = next(x for x in (out / "RESULTS.md").read_text().splitlines() if x.startswith("| DKT linear"))
    text = (out / "results" / "report.html").read_text()
    for part in ("73.70 ± 0.38 (1 training)", "75.97 ± 0.70", "−2.7"):
        assert part in (out / "RESULTS.md").read_text() and part in text
    assert "not run" in line  # CUB's, the first such line
    assert '<td class="below"><b>73.70' in text


def test_what_was_not_run_says_so(tmp_path):
    """With table 1 alone on record every other section says that it was not run, and no figure is promised."""
    found = sections.collect(copied(tmp_path / "records", "table-1"), tmp_path / "no-figures")
    by_name = {section.name: section for section in found}
    assert by_name["table-2"].counts == {"not run": 88} and by_name["shots"].grids == []
    assert not any(section.pictures for section in found)
    report(tmp_path / "records", tmp_path / "out")
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    assert "## Shots\n\n`metavib reproduce shots`. Accuracy against the number of shots at test.\n\nnot run\n" in text


def test_cells_below_the_paper_are_listed_with_their_explanation(tmp_path):
    folder = copied(
        tmp_path / "records", "table-2/omniglot-emnist/maml-shorter-1", "table-2/omniglot-emnist/dkt-linear-1-seed0"
    )
    write_json(folder / "notes.json", {"table-2": {"*/proto-net-1,*/maml-shorter-1": "It was <trained> for `a` step."}})
    report(folder, tmp_path / "out")
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    below = text.partition("### Below the paper")[2].partition("\n## ")[0].strip().splitlines()
    assert len(below) == 2
    assert "DKT linear" in below[0] and below[0].endswith("No explanation yet.")
    assert "MAML" in below[1] and below[1].endswith("It was <trained> for `a` step.")
    page = (tmp_path / "out" / "results" / "report.html").read_text()
    assert "It was &lt;trained&gt; for <code>a</code> step." in page


def test_an_explanation_of_several_cells_is_given_once(tmp_path):
    folder = copied(
        tmp_path / "records", "table-2/omniglot-emnist/maml-shorter-1", "table-2/omniglot-emnist/dkt-linear-1-seed0"
    )
    write_json(folder / "notes.json", {"table-2": {"omniglot-emnist/*-1": "One reason for both."}})
    report(folder, tmp_path / "out")
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    first, second = text.partition("### Below the paper")[2].partition("\n## ")[0].strip().splitlines()
    assert first.endswith("One reason for both.")
    assert "MAML" in second and second.endswith("As for Omniglot → EMNIST, DKT linear, 1-shot accuracy %.")


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ({"table-9": {}}, "no reproduction 'table-9'; there are table-2"),
        ({"table-1": {"maml/7": "x"}}, "table-1 has no cell 'maml/7'; it has maml-1/5"),
        ({"table-1": {"gp-vib/5,maml/7": "x"}}, "table-1 has no cell 'maml/7'; it has"),
        ({"table-1": "x"}, 'expected {"reproduction": {"cell": "text"}}'),
        ([], 'expected {"reproduction": {"cell": "text"}}'),
    ],
)
def test_a_note_about_nothing_is_refused(tmp_path, notes, message):
    folder = copied(tmp_path / "records", "table-1/gp-vib")
    write_json(folder / "notes.json", notes)
    with pytest.raises(ValueError, match=re.escape(message)):
        report(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()  # before any work is done


def test_without_records_there_is_no_report(tmp_path):
    with pytest.raises(FileNotFoundError, match="run `metavib reproduce` first"):
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
    with pytest.raises(ValueError, match=r"table-1\.jsonl, line 3 is not the record of a run"):
        report(folder, tmp_path / "out")


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


@pytest.mark.parametrize(
    ("found", "text"),
    [({}, "not recorded"), ({"data": None}, "not recorded"), ({"data": "generated"}, "generated")]
    + [({"data": {"a.npz": "0123456789abcdef"}}, "a.npz 0123456789ab")],
)
def test_records_without_checksums_stay_readable_and_say_so(found, text):
    assert page.data(found) == text
