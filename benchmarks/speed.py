"""Runs the comparisons and puts their rows into a table and two files."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.comparisons import Comparison
from benchmarks.floors import Rates, rates
from benchmarks.measure import Call, Timing, description, side_by_side
from metavib.files import write_atomically, write_json
from metavib.training.engine.allocator import keep_freed_memory


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds, medians.

    Args:
        what: was done.
        threads: of PyTorch, on a CPU.
        ours: how long ours took.
        range: its fastest and slowest.
        reference: whose other way it is compared with.
        theirs: how long that took; None where its package is not installed.
        ratio: theirs over ours.
        target: what is asked: at least so many times faster, or at most so many milliseconds.
        met: whether it is so.
        floor: the least time that operations and bytes allow.
        limit: which of the two it is.
        to_floor: ours over the floor.
    """

    what: str
    threads: int | None
    ours: float
    range: tuple[float, float]
    reference: str | None = None
    theirs: float | None = None
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None
    floor: float | None = None
    limit: str | None = None
    to_floor: float | None = None


def measure(
    found: Iterable[Comparison], device: str, precision: str, *, seconds: float, tell: Callable[[str], Any]
) -> Iterator[dict[str, Any]]:
    """The rows so far, and what a result must say of where it comes from; again after every comparison.

    Args:
        found: what to compare.
        device: cpu or cuda.
        precision: of the floors on a GPU.
        seconds: how long to measure each comparison, about.
        tell: is told what is being measured.
    """
    load = os.getloadavg()[0]
    keep_freed_memory()  # as the program does, and for the references too
    known: dict[int, Rates] = {}
    rows: list[Row] = []
    for comparison in found:
        tell(comparison.what)
        if not device.startswith("cuda"):
            torch.set_num_threads(comparison.threads)
        if comparison.work and comparison.threads not in known:
            known[comparison.threads] = rates(device, precision)
        rows += _rows(comparison, device, seconds=seconds, machine=known.get(comparison.threads))
        yield {
            **description(device),
            "device": device,
            "precision": precision,
            "load_at_start": round(load, 2),
            "rates": {str(threads): machine._asdict() for threads, machine in known.items()},
            "rows": [asdict(row) for row in rows],
        }


def _rows(comparison: Comparison, device: str, *, seconds: float, machine: Rates | None) -> list[Row]:
    calls, missing = {"": comparison.make()}, []
    for reference in comparison.references:
        try:
            calls[reference.name] = reference.make()
        except ModuleNotFoundError:
            missing.append(reference.name)
    times = _times(comparison, calls, device, seconds)
    scale = 1e3 / comparison.units
    ours = times[""].median * scale
    shared: dict[str, Any] = {
        "what": comparison.what,
        "threads": None if device.startswith("cuda") else comparison.threads,
        "ours": ours,
        "range": (times[""].fastest * scale, times[""].slowest * scale),
    }
    if comparison.work and machine:
        work = comparison.work()
        floor = work.seconds(machine) * 1e3
        shared |= {"floor": floor, "limit": work.limit(machine), "to_floor": ours / floor}
    rows = []
    if comparison.target is not None or not comparison.references:
        most = comparison.target
        promise = {} if most is None else {"target": f"≤ {most:,g} ms", "met": ours <= most}
        rows.append(Row(**shared, **promise))
    for reference in comparison.references:
        if reference.name in missing:
            rows.append(Row(**shared, reference=f"{reference.name} (not installed)"))
            continue
        theirs = times[reference.name].median * scale
        ratio, least = theirs / ours, reference.target
        promise = {} if least is None else {"target": f"≥ {least:g}×", "met": ratio >= least}
        rows.append(Row(**shared, reference=reference.name, theirs=theirs, ratio=ratio, **promise))
    return rows


def _times(comparison: Comparison, calls: dict[str, Call], device: str, seconds: float) -> dict[str, Timing]:
    if comparison.clock is not None:
        return {"": comparison.clock(calls[""])}
    # One thread on a shared machine: the processor's clock stands still while somebody else has the core.
    alone = comparison.threads == 1 and not device.startswith("cuda")
    clock = time.process_time if alone else time.perf_counter
    return side_by_side(calls, seconds=seconds, warm_up=5 if comparison.units == 1 else 1, device=device, clock=clock)


COLUMNS = ("what", "ours (ms)", "reference", "its (ms)", "ratio", "target", "", "floor (ms)", "ours / floor")


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown, which also reads well in a terminal."""
    lines = [COLUMNS, *(_cells(row) for row in result["rows"])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = tuple("-" * max(3, width) for width in widths)
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (lines[0], rule, *lines[1:])
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    met = {None: "", True: "met", False: "missed"}[row["met"]]
    ratio = "" if row["ratio"] is None else f"{_digits(row['ratio'])}×"
    floor = "" if row["floor"] is None else f"{_digits(row['floor'])} ({row['limit']})"
    return (
        row["what"],
        _digits(row["ours"]),
        row["reference"] or "",
        _digits(row["theirs"]),
        ratio,
        row["target"] or "",
        met,
        floor,
        _digits(row["to_floor"]),
    )


def _digits(number: float | None) -> str:
    """Three digits, and no exponents."""
    if number is None:
        return ""
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}" if number >= 1e-4 else f"{number:.6f}"


def name(result: dict[str, Any]) -> str:
    """The machine in a word: cpu, or the GPU's own, as in h200."""
    return "cpu" if result["device"] == "cpu" else result["machine"].split()[-1].lower()


def write(result: dict[str, Any], folder: Path) -> list[Path]:
    """`speed-<machine>.json` and the same as a table, `.md`."""
    stem = f"speed-{name(result)}"
    paths = [folder / f"{stem}.json", folder / f"{stem}.md"]
    write_json(paths[0], result)
    text = f"# Speed on {result['machine']}\n\n{summary(result)}\n\n{table(result)}\n"
    write_atomically(paths[1], lambda path: path.write_text(text, encoding="utf-8"))
    return paths


def summary(result: dict[str, Any]) -> str:
    """Where the numbers come from, in a sentence or two."""
    peaks = "; ".join(
        f"{rate['operations'] / 1e9:,.0f} G operations/s and {rate['bytes'] / 1e9:,.0f} GB/s"
        + (f" with {threads} thread{'s' * (threads != '1')}" if result["device"] == "cpu" else "")
        for threads, rate in result["rates"].items()
    )
    return (
        f"PyTorch {result['torch']}, {result['precision']}, commit {str(result['commit'])[:12]}; medians, ours and "
        f"references in turns; load of the machine at the start {result['load_at_start']}. "
        + (f"Measured for the floors: {peaks}." if peaks else "")
    ).rstrip()
