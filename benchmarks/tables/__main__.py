"""`python -m benchmarks tables`: metavib on real tables of many groups, beside what one would pick instead."""

import argparse
import sys
from pathlib import Path

from benchmarks.tables.lists import BENCHMARK, DEVELOPMENT, EVERY, RESERVE
from benchmarks.tables.report import report
from benchmarks.tables.run import OURS, measure
from metavib.training.runs import machine

RESULTS = Path(__file__).parents[1] / "results"
LISTS = {"benchmark": (BENCHMARK, 5), "development": (DEVELOPMENT, 2), "reserve": (RESERVE, 2)}
"""Tables, and the divisions of their groups that a report is of."""


def main(arguments: list[str] | None = None) -> None:
    """Prints the report, and writes it where all tables of a list were tried."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables", description=__doc__)
    parser.add_argument("--tables", nargs="*", metavar="NAME", help="only these tables; writes no report")
    lists = parser.add_mutually_exclusive_group()
    for name, what in (("reserve", "no default was made on"), ("development", "defaults are chosen on")):
        lists.add_argument(f"--{name}", dest="list", action="store_const", const=name, help=f"the tables that {what}")
    parser.add_argument("--only", default="", metavar="TEXT", help="run only methods with this in their name")
    parser.add_argument(
        "--splits", type=int, help="the first so many divisions of the groups, instead of 5 (or 2); writes no report"
    )
    parser.add_argument("--kind", default="", choices=("", "real", "classes", "new"), help="tables of this kind only")
    parser.add_argument("--cache", type=Path, default=RESULTS / "tables-cache", help="folder of what has been run")
    options = parser.parse_args(arguments)
    chosen = options.list or "benchmark"
    sources, splits = LISTS[chosen]
    names = options.tables or [n for n, s in sources.items() if options.kind in ("", s.kind)]
    if unknown := [name for name in names if name not in EVERY]:
        parser.error(f"there is no table {', '.join(unknown)}; there are {', '.join(EVERY)}")
    records = measure(
        names,
        options.cache,
        only=options.only,
        splits=options.splits or splits,
        tell=lambda what: print(what, file=sys.stderr, flush=True),
    )
    command = " ".join(["python -m benchmarks tables", *([f"--{chosen}"] if options.list else [])])
    text = report(records, OURS, f"`{command}`, {options.splits or splits} divisions of each table, {machine('cpu')}.")
    print(text)
    if not options.tables and not options.kind and options.splits is None:
        ending = f"-{chosen}" if options.list else ""
        (RESULTS / f"tables{ending}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
