"""The report as one HTML page that needs nothing else: style and figures are inside, and there are no scripts."""

import io
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from PIL import Image

from reproduction.compare import ABOVE, AT, BELOW, NOT_RUN, Cell
from reproduction.displays import DISPLAYS
from reproduction.grids import Grid
from reproduction.report import words
from reproduction.report.data import FACTS
from reproduction.report.sections import VERDICTS, Section, below

COLOURS = 64  # of an inlined figure: lines and bands need no more, and the page stays small


def document(sections: list[Section], figures: Mapping[str, bytes]) -> str:
    """The page.

    Args:
        sections: what it says.
        figures: the PNG files of the sections' pictures, by path.
    """
    style = files("reproduction.report").joinpath("style.css").read_text(encoding="utf-8")
    parts = {
        "glance": ("At a glance", _glance(sections)),
        "below": ("Below the paper", _below(sections)),
        "difference": ("What the difference is", "".join(_paragraph(text) for text in words.DIFFERENCE)),
        "data": ("About the data", _data()),
        **{section.name: (section.title, _section(section, figures)) for section in sections},
        "records": ("Records", _records(sections)),
    }
    contents = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, (title, _) in parts.items())
    body = "".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>{text}</section>' for name, (title, text) in parts.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>metavib: {words.TITLE}</title><style>\n{style}</style></head>\n<body><header><h1>{words.TITLE}</h1>"
        f"{_paragraph(words.INTRODUCTION)}<nav><strong>Contents</strong><ol>{contents}</ol></nav></header>"
        f"<main>{body}</main></body></html>\n"
    )


def _glance(sections: list[Section]) -> str:
    rows = []
    for section in sections:
        counts = [(verdict, section.counts[verdict]) for verdict in (ABOVE, AT, BELOW, NOT_RUN)]
        cells = "".join(f'<td class="{_class(v) if n else ""}">{n or ""}</td>' for v, n in counts)
        link = f'<a href="#{section.name}">{escape(section.title)}</a>'
        rows.append(f"<tr><th>{link}</th><td>{len(section.records)}</td>{cells}</tr>")
    head = ("section", "runs", "above ▲", "at", "below ▼", "not run")
    overview = next((section for section in sections if section.name == "table-2"), None)
    return (
        f'<p class="legend">{_legend()}</p>'
        + _table(head, rows, "compact")
        + (f"<h3>Table 2, our accuracy in %</h3>{_overview(overview.grids)}" if overview else "")
    )


def _legend() -> str:
    return "".join(f'<span class="{_class(verdict)}">{escape(text)}</span>' for verdict, text in VERDICTS.items())


def _overview(grids: list[Grid]) -> str:
    """Every column of table 2 in one small table, coloured, each cell our number alone."""
    labels = list(dict.fromkeys(row.label for grid in grids for row in grid.rows))
    heads = [f"{grid.title}, {head.partition(' ')[0]}" for grid in grids for head in grid.header[1:]]
    rows = []
    for label in labels:
        cells = []
        for grid in grids:
            found = next((row.cells for row in grid.rows if row.label == label), ("",) * (len(grid.header) - 1))
            for cell in found:
                ours = cell.ours if isinstance(cell, Cell) else None
                verdict = cell.verdict if isinstance(cell, Cell) else NOT_RUN
                cells.append(f'<td class="{_class(verdict)}">{f"{ours.mean:.1f}" if ours else "–"}</td>')
        rows.append(f"<tr><th>{escape(label)}</th>{''.join(cells)}</tr>")
    return _table(("method", *heads), rows, "compact")


def _below(sections: list[Section]) -> str:
    """Every cell that is worse than the paper's, and why where that is known."""
    rows = []
    for section, (where, cell, _), explanation in below(sections):
        link = f'<a href="#{section.name}">{escape(where)}</a>'
        rows.append(f"<tr><th>{link}</th>{_cell(cell)}<td>{_prose(explanation)}</td></tr>")
    return _table(("cell", "ours and the paper's", "explanation"), rows) if rows else _paragraph("No cell is.")


def _data() -> str:
    return "".join(f"<p><strong>{escape(fact.dataset)}.</strong> {_prose(fact.text)}</p>" for fact in FACTS)


def _section(section: Section, figures: Mapping[str, bytes]) -> str:
    parts = [_paragraph(f"`metavib reproduce {section.name}`. {section.about}")]
    for path, caption, _ in section.pictures:
        parts.append(
            f'<figure><div class="scroll"><img alt="{escape(caption)}" src="{_inline(figures[path])}"></div>'
            f"<figcaption>{escape(caption)}.</figcaption></figure>"
        )
    parts.append(f'<div class="grids">{"".join(map(_grid, section.grids)) or NOT_RUN}</div>')
    if section.notes:
        notes = (f"<li><strong>{escape(about)}:</strong> {_prose(text)}</li>" for about, text in section.notes)
        parts.append(f"<h3>Notes</h3><ul>{''.join(notes)}</ul>")
    return "".join(parts)


def _grid(grid: Grid) -> str:
    title = f"<h3>{escape(grid.title)}</h3>" if grid.title else ""
    rows = [f"<tr><th>{escape(row.label)}</th>{''.join(map(_cell, row.cells))}</tr>" for row in grid.rows]
    note = f'<p class="note">{escape(grid.note)}</p>' if grid.note else ""
    return f"<div>{title}{_table(grid.header, rows)}{note}</div>"


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"<td{_not_run(cell)}>{escape(cell)}</td>"
    ours = f"<b>{escape(cell.text)}</b>" if cell.ours else "not run"
    paper = f"<small>paper {escape(cell.paper_text)}</small>" if cell.paper else ""
    d, _, mark = cell.difference_text.partition(" ")
    far = f'<small class="d">{d} se {mark}</small>' if d else ""
    return f'<td class="{_class(cell.verdict)}">{ours}{paper}{far}</td>'


def _not_run(text: str) -> str:
    return ' class="not-run"' if text == "not run" else ""


def _records(sections: list[Section]) -> str:
    parts = [_paragraph(words.RECORDS)]
    for section in sections:
        if not section.records or DISPLAYS[section.name].of:  # none, or listed where they belong
            continue
        rows = [_record(name, record) for name, record in section.records.items()]
        head = ("run", "seed", "training", "machine", "commit", "torch", "data (SHA-256)")
        summary = f"<summary>{escape(section.title)}: {len(rows)} runs</summary>"
        parts.append(f"<details>{summary}{_table(head, rows)}</details>")
    return "".join(parts)


def _record(name: str, record: dict[str, Any]) -> str:
    cells = (
        record["config"]["seed"],
        f"{record['training_seconds']:.0f} s",
        record["machine"],
        (record["commit"] or "not recorded")[:12],
        record["versions"].get("torch") or "not recorded",
        data(record),
    )
    return f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def data(record: Mapping[str, Any]) -> str:
    """What a record says of its data; old ones and those whose files had gone say nothing."""
    found = record.get("data")
    if isinstance(found, dict):
        return "; ".join(f"{file} {checksum[:12]}" for file, checksum in found.items())
    return found or "not recorded"


def _table(head: Iterable[str], rows: Iterable[str], kind: str = "") -> str:
    heads = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _paragraph(text: str) -> str:
    return f"<p>{_prose(text)}</p>"


def _prose(text: str) -> str:
    """Plain text, `code` in it as such."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def _inline(png: bytes) -> str:
    """A figure as the address of itself, in few colours."""
    with Image.open(io.BytesIO(png)) as image:
        small = image.convert("RGB").quantize(COLOURS)
    buffer = io.BytesIO()
    small.save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")
