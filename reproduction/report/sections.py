"""What the report says, before anybody decides how it looks: a section a reproduction, from its records alone."""

from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from metavib.files import read_json
from reproduction import store
from reproduction.compare import ABOVE, AT, BELOW, NOT_RUN, Cell
from reproduction.displays import DISPLAYS, Display
from reproduction.grids import Grid

NOTES = "notes.json"


class Picture(NamedTuple):
    """A figure of the report: its path below the results folder, what it shows, and how to make it.

    `draw` is None where the file in the results folder is taken as it is.
    """

    path: str
    caption: str
    draw: Callable[[], Figure] | None


class Note(NamedTuple):
    """What is known about some cells."""

    about: str
    text: str


class Entry(NamedTuple):
    """A cell with its place: the label of its row and the head of its column."""

    where: str
    cell: Cell
    note: str | None


class Section(NamedTuple):
    """A reproduction: `name` is that of the command, `records` those it is made from."""

    name: str
    title: str
    about: str
    grids: list[Grid]
    pictures: list[Picture]
    entries: list[Entry]
    records: dict[str, Any]

    @property
    def counts(self) -> Counter[str]:
        """Cells by verdict."""
        return Counter(entry.cell.verdict for entry in self.entries)

    @property
    def notes(self) -> list[Note]:
        """Each note once, with the cells it is about."""
        about: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.note:
                about.setdefault(entry.note, []).append(entry.where)
        return [Note("; ".join(where), text) for text, where in about.items()]


def below(sections: list[Section]) -> Iterator[tuple[Section, Entry, str]]:
    """Every cell that is worse than the paper's, and why where that is known; an explanation is given once."""
    first: dict[str, str] = {}
    for section in sections:
        for entry in section.entries:
            if entry.cell.verdict != BELOW:
                continue
            explanation = entry.note or "No explanation yet."
            if entry.note and first.setdefault(entry.note, entry.where) != entry.where:
                explanation = f"As for {first[entry.note]}."
            yield section, entry, explanation


VERDICTS = {
    ABOVE: "better than the paper by two standard errors or more",
    AT: "within two standard errors of the paper",
    BELOW: "worse than the paper by two standard errors or more",
    NOT_RUN: "not run",
}


def collect(records: Path, results: Path) -> list[Section]:
    """Every section, from a folder of records with the notes beside them, and the figures in a results folder."""
    notes = read_notes(records / NOTES)
    return [_section(name, display, records, results, notes.get(name, {})) for name, display in DISPLAYS.items()]


def read_notes(path: Path) -> dict[str, dict[str, str]]:
    """Explanations by reproduction and cell; in the file, `{"table-2": {"cub/maml-1,cub/dkt-*": "text"}}`.

    Cells are named by patterns, separated by commas as those of `--only` are; `*` stands for anything.
    """
    if not path.exists():
        return {}
    notes = read_json(path)
    fits = isinstance(notes, dict) and all(
        isinstance(cells, dict) and all(isinstance(text, str) for text in cells.values()) for cells in notes.values()
    )
    if not fits:
        raise ValueError(f'{path}: expected {{"reproduction": {{"cell": "text"}}}}; got {notes!r:.200}.')
    unknown = sorted(set(notes) - set(DISPLAYS))
    if unknown:
        raise ValueError(f"{path}: there is no reproduction {unknown[0]!r}; there are {', '.join(DISPLAYS)}.")
    return {
        name: {pattern: text for patterns, text in cells.items() for pattern in patterns.split(",")}
        for name, cells in notes.items()
    }


def _section(name: str, display: Display, records: Path, results: Path, notes: dict[str, str]) -> Section:
    found = _in_order(store.read(records / f"{display.of or name}.jsonl"), display.order)
    grids = display.grids(found) if found or display.empty else []
    drawings = display.drawings(found) if found else []
    pictures = [
        Picture(f"{name}/{drawing.file}", drawing.caption, drawing.draw)
        for drawing in drawings
        if drawing.draw is not None or (results / name / drawing.file).exists()
    ]
    entries = _entries(grids, notes)
    keys = [entry.cell.key for entry in entries]
    for pattern in notes:
        if not any(fnmatchcase(key, pattern) for key in keys):
            some = ", ".join(keys[:5]) or "none"
            raise ValueError(
                f"{NOTES}: {name} has no cell {pattern!r}; it has {some} and {max(0, len(keys) - 5)} more."
            )
    return Section(name, display.title, display.about, grids, pictures, entries, found)


def _in_order(found: dict[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    return {name: found[name] for name in names}


def _entries(grids: list[Grid], notes: dict[str, str]) -> list[Entry]:
    """Every cell that the paper has a number for or we have run, with its note."""
    entries = []
    for grid in grids:
        for row in grid.rows:
            for head, cell in zip(grid.header[1:], row.cells, strict=True):
                if isinstance(cell, Cell) and (cell.paper or cell.ours):
                    where = ", ".join(filter(None, (grid.title, row.label, head)))
                    said = [text for pattern, text in notes.items() if fnmatchcase(cell.key, pattern)]
                    entries.append(Entry(where, cell, " ".join(said) or None))
    return entries
