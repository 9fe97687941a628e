"""The report: RESULTS.md and its figures, from the records alone; the same bytes from the same records.

Tables come before explanations. Each study has a section with its tables and figures; what is known about its cells
(`records/notes.toml`) follows behind the last table. The end of the file, `difference.md`, is written by hand; so is
`findings.md`, to which notes refer: the questions that were answered once, and what is particular about the data.
"""

import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from metavib.files import naming, write_atomically
from metavib.show import plots
from metavib.show.tables import markdown
from reproduction import published as paper
from reproduction import store
from reproduction.compare import ABOVE, AT, BELOW, NOT_RUN, Cell
from reproduction.studies import STUDIES, find
from reproduction.study import Study
from reproduction.tables import EXPERIMENTS, Grid

NOTES = "notes.toml"
DIFFERENCE = Path(__file__).parent / "difference.md"
FIGURES = Path("docs/figures")  # below the folder of RESULTS.md
RUNS = Path("runs/reproduction")  # where a figure finds its trained model, if that is there
INTRODUCTION = """
Our numbers beside those of Titsias, Ruiz, Nikoloutsopoulos, Galashov: Information Theoretic Meta Learning with
Gaussian Processes (2021). This file is made by `python -m reproduction report` from the records in
`reproduction/records`, and each section names the command that makes its runs. The difference counts standard errors
([how](#what-the-difference-is)): ▲ is better and ▼ worse than the paper by two or more. Recipes of our own stand beside
the paper's number of the same method without a mark, since they are not made as it was. Cells without a run say so.
[Explanations](#explanations) follow behind the tables; [findings](reproduction/findings.md) has the experiments behind
them, and what is particular about the data.
"""


class Note(NamedTuple):
    """Something that is known.

    Args:
        about: what it is about, in a few words.
        text: a paragraph.
        cells: patterns of the names of the cells that it explains, separated by commas; `*` stands for anything.

    Example:
        >>> Note("GP-VIB on CUB", "It learns slowly.", "cub/gp-vib-linear-?, cub/gp-vib-cosine-?").patterns
        ['cub/gp-vib-linear-?', 'cub/gp-vib-cosine-?']
    """

    about: str
    text: str
    cells: str = ""

    @property
    def patterns(self) -> list[str]:
        """The patterns of its cells, one by one."""
        return [pattern.strip() for pattern in self.cells.split(",") if pattern.strip()]


class Entry(NamedTuple):
    """A cell with its place in words: the title of its table, the label of its row and the head of its column."""

    where: str
    cell: Cell


class Section(NamedTuple):
    """A study with its records, its tables, their cells, and what is known about them."""

    study: Study
    records: store.Records
    grids: list[Grid]
    entries: list[Entry]
    notes: list[Note]


def report(records: Path, out: Path) -> list[Path]:
    """Writes RESULTS.md and its figures; returns their paths.

    Args:
        records: the folder of the records, with the notes beside them.
        out: the folder to write below. A figure that takes a trained model which is not there is left as it is.
    """
    if not records.is_dir():
        raise FileNotFoundError(f"{records} is no folder of records: run a study first, or name another folder.")
    sections = collect(records)
    if not any(section.records for section in sections):
        raise ValueError(f"nothing is on record in {records}: run a study first, or name another folder.")
    written = [out / "RESULTS.md"]
    for section in sections:
        for drawing, figure in section.study.figures(section.records, out / RUNS / section.study.name):
            if figure is not None:
                written.append(out / FIGURES / drawing.file)
                plots.save(figure, written[-1])
    text = document(sections, figures={path.name for path in (out / FIGURES).glob("*")})
    write_atomically(written[0], lambda p: p.write_text(text, encoding="utf-8"))
    return written


def collect(records: Path) -> list[Section]:
    """Every study with its records and tables; a note about a cell that does not exist is an error."""
    notes, sections = read_notes(records / NOTES), []
    for study in STUDIES.values():
        found = store.read(records / study.book)
        grids = study.tables(found) if found or study.empty else []
        section = Section(study, found, grids, _entries(grids), notes.get(study.name, []))
        keys = [entry.cell.key for entry in section.entries]
        for pattern in (pattern for note in section.notes for pattern in note.patterns):
            if not any(fnmatchcase(key, pattern) for key in keys):
                some = f"{', '.join(keys[:5]) or 'none'} and {max(0, len(keys) - 5)} more"
                raise ValueError(f"{records / NOTES}: {study.name} has no cell {pattern!r}; it has {some}.")
        sections.append(section)
    return sections


def read_notes(path: Path) -> dict[str, list[Note]]:
    """The notes on each study; none where there is no file."""
    if not path.exists():
        return {}
    found = {}
    with naming(path):
        for name, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
            find(name)
            try:
                found[name] = [Note(**entry) for entry in entries]
            except TypeError as error:
                raise ValueError(f"expected [[{name}]] with about, text and cells ({error}).") from error
    return found


def _entries(grids: list[Grid]) -> list[Entry]:
    """Every cell that the paper has a number for or we have run."""
    return [
        Entry(", ".join(filter(None, (grid.title, row.label, head))), cell)
        for grid in grids
        for row in grid.rows
        for head, cell in zip(grid.header[1:], row.cells, strict=True)
        if isinstance(cell, Cell) and (cell.paper or cell.ours)
    ]


def document(sections: list[Section], figures: set[str]) -> str:
    """RESULTS.md.

    Args:
        sections: what it says.
        figures: the files in the folder of the figures; others are not referred to.
    """
    parts = ["# Results", _paragraph(INTRODUCTION), "## At a glance", _glance(sections)]
    for section in sections:
        parts += _section(section, figures)
    parts.append("## Explanations")
    for section in sections:
        parts += _explanations(section)
    return "\n\n".join([*parts, DIFFERENCE.read_text(encoding="utf-8")])


def _glance(sections: list[Section]) -> str:
    """How many cells of each study are above the paper, at it, and below it."""
    rows = []
    for study, records, _, entries, _ in sections:
        counts = Counter(entry.cell.verdict for entry in entries)
        numbers = [len(records), *(counts[verdict] for verdict in (ABOVE, AT, BELOW, NOT_RUN))]
        rows.append([f"[{study.title}](#{anchor(study.title)})", *map(str, numbers)])
    return markdown(("section", "runs", "above ▲", "at", "below ▼", "not run"), rows)


def _section(section: Section, figures: set[str]) -> list[str]:
    """The tables and figures of a study."""
    study = section.study
    parts = [f"## {study.title}", _paragraph(f"`python -m reproduction {study.name}`. {study.about}")]
    parts += [grid.markdown() for grid in section.grids] or ["not run"]
    if section.records:
        parts += [f"![{d.caption}]({(FIGURES / d.file).as_posix()})" for d in study.drawings if d.file in figures]
    return parts


def _explanations(section: Section) -> list[str]:
    """What is known about the cells of a study, and which cells below the paper nobody has explained."""
    study, records, _, entries, notes = section
    parts = [_paragraph(f"**{note.about}.** {note.text}") for note in notes if records]
    patterns = [pattern for note in notes for pattern in note.patterns]
    below = [entry for entry in entries if entry.cell.verdict == BELOW]
    if unexplained := [e.where for e in below if not any(fnmatchcase(e.cell.key, pattern) for pattern in patterns)]:
        parts.append(_paragraph(f"Below the paper, without an explanation yet: {'; '.join(unexplained)}."))
    return [f"### About {study.title[0].lower()}{study.title[1:]}", *parts] if parts else []


def anchor(title: str) -> str:
    """The name that GitHub gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _paragraph(text: str) -> str:
    return fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def readme_table(records: Path = store.FOLDER) -> str:
    """The small table of the README: GP-VIB with the paper's recipe and with ours, beside the paper's numbers."""
    found: dict[str, Cell] = {}
    for study in (STUDIES["table-1"], STUDIES["table-2"]):
        found |= {cell.key: cell for grid in study.tables(store.read(records / study.book)) for cell in grid.cells}
    lines = {"sinusoids, K = 5 / 10 / 20": [(f"gp-vib/{k}", f"gp-vib-improved/{k}") for k in paper.TABLE_1_SHOTS]}
    for experiment, k in paper.TABLE_2_COLUMNS:
        row = f"{experiment}/gp-vib-cosine"
        lines.setdefault(EXPERIMENTS[experiment], []).append((f"{row}-{k}", f"{row}-improved-{k}"))
    rows = []
    for title, keys in lines.items():
        theirs, ours = ([found.get(key) for key in side] for side in zip(*keys, strict=True))
        numbers = [_means(theirs), _means(ours), " / ".join(cell.paper_text.split()[0] for cell in theirs if cell)]
        rows.append([title, *numbers])
    return markdown(("GP-VIB on", "paper's recipe, here", "our recipe", "the paper"), rows)


def _means(cells: list[Cell | None]) -> str:
    """Means without their spread, side by side."""
    return " / ".join(cell.text.split()[0] if cell and cell.ours else "not run" for cell in cells)
