"""Builds the site: `python -m docs.tools`. With `--fast`, without running tutorials and gallery (for writing)."""

import argparse
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from docs.tools import formulas, pages, reference, sessions
from docs.tools.docstrings import linked
from docs.tools.pages import place

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"


def workers() -> ProcessPoolExecutor:
    """Processes that run pages, as many as there are cores; none of them outlives this one, however it ends."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(os.cpu_count(), mp_context=spawn, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Has a process look every second whether the one that started it is still there, and end where it is not."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def assemble(*, run: bool) -> None:
    """Everything that MkDocs reads, in `build/pages`."""
    package = reference.package(ROOT / "src")
    pages.collect(ROOT, PAGES)
    computing = reference.computing(package)
    theory = PAGES / "theory.md"
    theory.write_text(pages.theory(theory.read_text(encoding="utf-8"), computing), encoding="utf-8")
    if run:
        with workers() as pool:
            for done in [pool.submit(sessions.run_page, PAGES / place(page)) for page in sessions.PAGES]:
                done.result()
    folder = PAGES / "reference"
    folder.mkdir(exist_ok=True)
    (folder / "index.md").write_text(reference.overview_page(package), encoding="utf-8")
    (folder / "commands.md").write_text(reference.commands_page(), encoding="utf-8")
    (folder / "models.md").write_text(reference.models_page(), encoding="utf-8")
    for page in PAGES.rglob("*.md"):
        text = pages.scrolled(page.read_text(encoding="utf-8"), page.parent)
        page.write_text(pages.outside_fences(text, lambda part: linked(part, package)), encoding="utf-8")
    for name, modules in reference.rooms(package).items():
        file = "metavib" if name == reference.ROOT else f"metavib.{name}"
        (folder / f"{file}.md").write_text(reference.room_page(name, modules), encoding="utf-8")
    formulas.font(PAGES / "assets" / "STIXTwoMath.woff")


def build() -> None:
    """MkDocs, strictly: a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    quiet = {"NO_MKDOCS_2_WARNING": "1"}  # a word about the future of Material, not about this site
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | quiet)


def main() -> None:
    """Assembles and builds."""
    parser = argparse.ArgumentParser(prog="python -m docs.tools", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="run neither tutorials nor gallery")
    options = parser.parse_args()
    start = time.monotonic()
    assemble(run=not options.fast)
    assembled = time.monotonic()
    build()
    print(f"build/site is made: pages in {assembled - start:.0f} s, site in {time.monotonic() - assembled:.0f} s")


if __name__ == "__main__":
    main()
