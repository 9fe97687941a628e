"""Pages that are run: their Python is executed, and what it prints and draws stands beneath it.

A page is one session in an empty folder. Blocks of the language `python` are executed in order, in one namespace;
blocks of the language `sh` hold commands, one a line, which are run too: of the program (`metavib ...`), of the
reproduction (`python -m reproduction ...`), or scripts of the folder `examples`, whose source is then shown beneath.
After a block come what it printed and the pictures (`.png`) that it left in the folder; the name of a picture is its
caption. A block that fails ends the build with its traceback.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ["docs/gallery.md", *sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/tutorials/*.md"))]
"""The pages that are run; the longest first."""
WIDTH = 103  # characters of a line of code on the site, at the width of a desk
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def run(text: str, name: str, pictures: Path) -> str:
    """The page with what its blocks print and draw.

    Args:
        text: the page.
        name: what it is called; its pictures go into a folder of this name beside it.
        pictures: that folder.
    """
    import matplotlib

    matplotlib.use("Agg")
    import torch

    torch.set_num_threads(1)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    result, end = [], 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        drawn: set[str] = set()
        for number, block in enumerate(BLOCK.finditer(text), start=1):
            language, source = block.groups()
            try:
                said = _python(source, name, namespace) if language == "python" else _commands(source)
            except BaseException as error:
                raise RuntimeError(f"block {number} of {name} failed:\n{source}\n{traceback.format_exc()}") from error
            result += [text[end : block.end()], _shown(said)]
            end = block.end()
            for picture in sorted(set(os.listdir()) - drawn):
                if picture.endswith(".png"):
                    drawn.add(picture)
                    pictures.mkdir(parents=True, exist_ok=True)
                    (pictures / picture).write_bytes(Path(picture).read_bytes())
                    result.append(f"\n![{caption(picture)}]({pictures.name}/{picture})\n")
            if language == "sh":
                result += [_source(script) for script in re.findall(r"^python (examples/\S+)", source, re.MULTILINE)]
    return "".join([*result, text[end:]])


def caption(picture: str) -> str:
    """`a-band-that-tightens.png` is called "A band that tightens"."""
    words = Path(picture).stem.replace("-", " ")
    return words[:1].upper() + words[1:]


def _python(source: str, name: str, namespace: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, name, "exec"), namespace)
    return out.getvalue()


def _commands(source: str) -> str:
    """What commands print, for each line of a block; a line that ends in a backslash goes on."""
    return "".join(_command(line) for line in source.replace("\\\n", " ").splitlines())


def _command(line: str) -> str:
    arguments = shlex.split(line, comments=True)
    program: Callable[[], Any]
    match arguments:
        case []:
            return ""
        case ["metavib", *_]:
            from metavib.cli import main

            program = main
        case ["python", "-m", *_]:
            return _process(arguments[1:])
        case ["python", script, *_]:
            arguments, program = arguments[1:], partial(runpy.run_path, str(ROOT / script), run_name="__main__")
        case _:
            raise ValueError(f"a block of the language sh holds commands of metavib and of Python; got {line!r}")
    out, before = io.StringIO(), sys.argv
    try:
        sys.argv = arguments
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as errors:
            program()
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"{line!r} ended with status {stop.code}: {errors.getvalue()}") from stop
    finally:
        sys.argv = before
    return out.getvalue()


def _process(arguments: list[str]) -> str:
    """What a process of Python prints; it finds the package and the folders beside it."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(arguments)} ended with status {done.returncode}: {done.stderr}")
    return done.stdout


def _source(script: str) -> str:
    source = (ROOT / script).read_text(encoding="utf-8").rstrip()
    lines = "\n".join(f"    {line}".rstrip() for line in ["```python", *source.splitlines(), "```"])
    return f'\n??? note "{script}"\n\n{lines}\n'


def _shown(said: str) -> str:
    """What was printed, in a block; sentences that are wider than it are wrapped, tables are scrolled."""
    lines = said.rstrip().splitlines()
    said = "\n".join(line if line.startswith("|") else textwrap.fill(line, WIDTH) or line for line in lines)
    return f'\n```text title="Output"\n{said}\n```\n' if said else ""


def run_page(page: Path) -> None:
    """Runs a page of the site where it lies."""
    text = run(page.read_text(encoding="utf-8"), page.name, page.parent / page.stem)
    page.write_text(text, encoding="utf-8")
