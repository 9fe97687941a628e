"""`python -m benchmarks tables`: metavib on real tables of many groups, beside what one would pick instead."""

import argparse
import sys
from pathlib import Path

from benchmarks.tables.data import BENCHMARK, DEVELOPMENT, EVERY, RESERVE
from benchmarks.tables.protocol import SPLITS
from benchmarks.tables.report import report
from benchmarks.tables.run import OURS, measure

RESULTS = Path(__file__).parents[1] / "results"


def main(arguments: list[str] | None = None) -> None:
    """Prints the report, and writes it where all tables were tried."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables", description=__doc__)
    parser.add_argument("--tables", nargs="*", metavar="NAME", help="only these tables; writes no report")
    lists = parser.add_mutually_exclusive_group()
    lists.add_argument("--reserve", action="store_true", help="the tables that no default was made on")
    lists.add_argument("--development", action="store_true", help="the tables that defaults are chosen on")
    parser.add_argument("--only", default="", metavar="TEXT", help="run only methods with this in their name")
    parser.add_argument(
        "--splits", type=int, default=SPLITS, help="the first of the divisions of groups; writes no report"
    )
    parser.add_argument("--kind", default="", choices=("", "real", "classes", "new"), help="tables of this kind only")
    parser.add_argument("--cache", type=Path, default=RESULTS / "tables-cache", help="folder of what has been run")
    options = parser.parse_args(arguments)
    sources, ending = BENCHMARK, ""
    if options.reserve:
        sources, ending = RESERVE, "-reserve"
    elif options.development:
        sources, ending = DEVELOPMENT, "-development"
    names = options.tables or [n for n, s in sources.items() if options.kind in ("", s.kind)]
    if unknown := [name for name in names if name not in EVERY]:
        parser.error(f"there is no table {', '.join(unknown)}; there are {', '.join(EVERY)}")
    records = measure(
        names,
        options.cache,
        only=options.only,
        splits=options.splits,
        tell=lambda what: print(what, file=sys.stderr, flush=True),
    )
    text = report(records, OURS)
    print(text)
    if not options.tables and not options.kind and options.splits == SPLITS:
        (RESULTS / f"tables{ending}.md").write_text(text)


if __name__ == "__main__":
    main()
