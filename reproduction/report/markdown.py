"""The report as Markdown: the same bytes from the same records, whatever the machine."""

from metavib.show.tables import markdown
from reproduction.compare import ABOVE, AT, BELOW, NOT_RUN
from reproduction.report import words
from reproduction.report.data import FACTS
from reproduction.report.sections import Section, below
from reproduction.tables import grid


def document(sections: list[Section]) -> str:
    """RESULTS.md; figures are referred to by their path from its folder."""
    parts = [
        f"# {words.TITLE}",
        words.INTRODUCTION,
        "## At a glance",
        _glance(sections),
        "### Below the paper",
        _below(sections),
        "## What the difference is",
        *words.DIFFERENCE,
        "## About the data",
        "\n".join(f"- **{fact.dataset}.** {fact.text}" for fact in FACTS),
    ]
    for section in sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _glance(sections: list[Section]) -> str:
    rows = []
    for section in sections:
        counts = [str(section.counts[verdict]) for verdict in (ABOVE, AT, BELOW, NOT_RUN)]
        rows.append([f"[{section.title}](#{anchor(section.title)})", str(len(section.records)), *counts])
    return markdown(("section", "runs", "above ▲", "at", "below ▼", "not run"), rows)


def _below(sections: list[Section]) -> str:
    """Every cell that is worse than the paper's, and why where that is known."""
    lines = [
        f"- {entry.where}: {entry.cell.text}, paper {entry.cell.paper_text}, {entry.cell.difference_text}. "
        f"{explanation}"
        for _, entry, explanation in below(sections)
    ]
    return "\n".join(lines) or "No cell is."


def _section(section: Section) -> list[str]:
    parts = [f"## {section.title}", f"`metavib reproduce {section.name}`. {section.about}"]
    parts += [f"![{picture.caption}](results/{picture.path})" for picture in section.pictures]
    parts += map(grid, section.grids)
    if not section.grids:
        parts.append("not run")
    if section.notes:
        parts.append("\n".join(f"- {note.about}: {note.text}" for note in section.notes))
    return parts


def anchor(title: str) -> str:
    """The name GitHub gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
