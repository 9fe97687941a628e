"""The pages of the repository, collected into one folder with links that hold there.

The root's Markdown files and those of `docs` lie beside each other on the site, so that a link is moved with its
target: `../THEORY.md` in `docs/config.md` is `theory.md` there. The theory gets what only the site can have: anchors at
its equations, links from "(9)" to equation 9, and beneath each equation the code that computes it.
"""

import posixpath
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

FROM_ROOT = ("THEORY.md", "RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS = ("docs", "benchmarks", "reproduction")
KINDS = {".md", ".png", ".svg", ".css"}

MODULE = re.compile(r"src/metavib/([\w/]+)\.py")  # shown in the reference
LINK = re.compile(r"`[^`\n]+`|(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(```.*?^\s*```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"^!\[.*\]\(([^)\s]+\.png)\)$", re.MULTILINE)
WIDE = 1200  # pixels from which on a figure has several panels, too small to read in the width of a phone
EQUATION = re.compile(r"^```math\n.*?\\tag\{(\w+)\}.*?^```\n", re.DOTALL | re.MULTILINE)


def place(path: str) -> str:
    """Where a file of the repository stands on the site."""
    if path in FROM_ROOT:
        return path.lower()
    if module := MODULE.fullmatch(path):
        room, inside, _ = module[1].partition("/")
        return f"reference/metavib.{room}.md" if inside else "reference/metavib.md"
    return path.removeprefix("docs/")


def moved(text: str, path: str) -> str:
    """A page with the links to other files of the repository as they hold on the site."""

    def link(m: re.Match[str]) -> str:  # code in backticks is matched too, and stays
        before, target, fragment, after = m[1], m[2], m[3] or "", m[4]
        if not before or "://" in target or target.startswith(("mailto:", "/")):
            return m[0]
        repository = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if module := MODULE.fullmatch(repository):
            fragment = "#" + f"metavib.{module[1]}".replace("/", ".").removesuffix(".__init__")
        here = posixpath.dirname(place(path))
        return f"{before}{posixpath.relpath(place(repository), here or '.')}{fragment}{after}"

    return outside_fences(text, lambda part: LINK.sub(link, part))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """A page changed everywhere but in its code."""
    return "".join(part if i % 2 else change(part) for i, part in enumerate(CODE.split(text)))


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """A page changed everywhere but in its blocks of code; in words in backticks too."""
    return "".join(part if i % 2 else change(part) for i, part in enumerate(FENCE.split(text)))


def collect(root: Path, pages: Path) -> None:
    """Copies pages and pictures; what a former build left is gone."""
    shutil.rmtree(pages, ignore_errors=True)
    files = [root / name for name in FROM_ROOT]
    for folder in FOLDERS:
        files += [f for f in sorted((root / folder).rglob("*")) if f.suffix in KINDS and "tools" not in f.parts]
    for file in files:
        path = file.relative_to(root).as_posix()
        target = pages / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            target.write_text(moved(file.read_text(encoding="utf-8"), path), encoding="utf-8")
        else:
            shutil.copyfile(file, target)


def scrolled(text: str, folder: Path) -> str:
    """A page of a folder with its wide figures marked as such: on a phone they are scrolled rather than shrunk."""

    def marked(m: re.Match[str]) -> str:
        width = int.from_bytes((folder / m[1]).read_bytes()[16:20], "big")  # where a PNG file has it
        return m[0] + "{ .wide }" * (width >= WIDE)

    return outside_fences(text, lambda part: FIGURE.sub(marked, part))


def theory(text: str, computing: Mapping[str, list[str]]) -> str:
    """The page of the theory with anchors, links between equations, and links to the code."""
    numbers = set(re.findall(r"\\tag\{(\w+)\}", text))

    def anchored(m: re.Match[str]) -> str:
        code = ", ".join(f"[`{_short(name)}`][{name}]" for name in computing.get(m[1], ()))
        return f"\n[](){{#eq-{m[1]}}}\n\n{m[0]}\n" + (f"In the code: {code}\n{{ .computed }}\n\n" if code else "")

    def equation(m: re.Match[str]) -> str:
        return f"[({m[1]})](#eq-{m[1]})" if m[1] in numbers else m[0]

    text = outside_code(text, lambda part: re.sub(r"(?<![\w\]$])\((\d+[a-i]?)\)", equation, part))
    text = outside_code(text, lambda part: re.sub(r"\bsection (\d+)\b", r"[section \1](#section-\1)", part))
    text = EQUATION.sub(anchored, text)
    return re.sub(r"^## (\d+)\. (.*)$", r"[](){#section-\1}\n\n## \1. \2", text, flags=re.MULTILINE)


def _short(name: str) -> str:
    """A name as people say it: of a module without the package, of anything else from its class on."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part[:1].isupper()), None)
    return ".".join(parts[first:]) if first is not None else ".".join(parts[-2:])
