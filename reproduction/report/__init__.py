"""The report: every table and figure with the paper's numbers beside ours, from the records alone."""

from pathlib import Path

from metavib.files import write_atomically
from metavib.show import plots
from reproduction.report import markdown, page
from reproduction.report.sections import collect

RESULTS = Path(__file__).parents[2] / "results"


def report(records: Path, out: Path, *, results: Path = RESULTS) -> list[Path]:
    """Writes `RESULTS.md`, `results/report.html` and the figures they show below `out`; returns the first two.

    Args:
        records: the folder of the records.
        out: the folder to write below.
        results: the folder of the figures that are taken as they are.
    """
    if not records.is_dir():
        raise FileNotFoundError(f"{records} is no folder of records: run `metavib reproduce` first, or name another.")
    sections = collect(records, results)
    if not any(section.records for section in sections):
        raise ValueError(f"nothing is on record in {records}: run `metavib reproduce` first, or name another folder.")
    figures = {}
    for picture in (picture for section in sections for picture in section.pictures):
        path = out / "results" / picture.path
        if picture.draw is not None:
            plots.save(picture.draw(), path)
        elif path.resolve() != (results / picture.path).resolve():
            content = (results / picture.path).read_bytes()
            write_atomically(path, lambda p, content=content: p.write_bytes(content))  # type: ignore[misc]
        figures[picture.path] = path.read_bytes()
    texts = {
        out / "RESULTS.md": markdown.document(sections),
        out / "results" / "report.html": page.document(sections, figures),
    }
    for path, text in texts.items():
        write_atomically(path, lambda p, text=text: p.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    return list(texts)
