"""`python -m benchmarks`: how fast the library is, against others and against the machine.

`python -m benchmarks tables`: how good its predictions are on real tables of many groups (`benchmarks.tables`).
`python -m benchmarks.tables.ablation`: what each part of the prior for tables is worth (`benchmarks.tables.ablation`).
`python -m benchmarks images`: how good they are on folders of pictures, with all defaults (`benchmarks.images`).
`python -m benchmarks embeddings`: new classes by features of a frozen network (`benchmarks.embeddings`).
`python -m benchmarks temperatures`: how two choices about temperatures were made (`benchmarks.temperatures`).
`python -m benchmarks when-not`: where to take something else (`benchmarks.when_not`).
`python -m benchmarks figures`: draws the figures of the documentation from the results (`benchmarks.figures`).
`python -m benchmarks serve`: the service under load, and under faults (`benchmarks.serve`).
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch

from benchmarks.comparisons import comparisons
from benchmarks.speed import measure, summary, table, write


def main(arguments: list[str] | None = None) -> None:
    """Prints the table of ratios, and writes it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", help="of ours on images: float32 on a CPU unless told, bf16 on a GPU")
    parser.add_argument("--only", default="", metavar="TEXT", help="only what has this in its name; writes no files")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure each line, about (10)")
    parser.add_argument("--full", action="store_true", help="a whole training too; needs Omniglot and EMNIST")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU on this machine; use --device cpu.")
    precision = options.precision or ("bf16" if options.device == "cuda" else "float32")
    found = comparisons(options.device, precision, cores=min(2, os.cpu_count() or 1), full=options.full)
    result, paths = None, []
    for result in measure(  # noqa: B007 - the last is wanted
        (c for c in found if options.only in c.what),
        options.device,
        precision,
        seconds=options.seconds,
        tell=lambda what: print(f"measuring: {what}", file=sys.stderr, flush=True),
    ):
        if not options.only:  # after every line: what was measured is not lost with what comes next
            paths = write(result, options.out)
    if result is None:
        parser.error(f"nothing that is measured has {options.only!r} in its name.")
    print(json.dumps(result, indent=2) if options.json else f"\n{summary(result)}\n\n{table(result)}")
    for path in paths:
        print(f"written: {path}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["when-not"]:
        from benchmarks.when_not import main as when_not

        when_not(sys.argv[2:])
    elif sys.argv[1:2] == ["figures"]:
        from benchmarks.figures import main as figures

        figures(sys.argv[2:])
    elif sys.argv[1:2] == ["tables"]:
        from benchmarks.tables.__main__ import main as tables

        tables(sys.argv[2:])
    elif sys.argv[1:2] == ["images"]:
        from benchmarks.images import main as images

        images(sys.argv[2:])
    elif sys.argv[1:2] == ["embeddings"]:
        from benchmarks.embeddings import main as embeddings

        embeddings(sys.argv[2:])
    elif sys.argv[1:2] == ["temperatures"]:
        from benchmarks.temperatures import main as temperatures

        temperatures(sys.argv[2:])
    elif sys.argv[1:2] == ["serve"]:
        from benchmarks.serve.__main__ import main as serve

        serve(sys.argv[2:])
    else:
        main()
