r"""LaTeX to MathML while a page is built: no script runs in the browser and nothing is fetched from elsewhere.

A Python-Markdown extension for `$...$` and `$$...$$`, and `fence` for blocks of the language `math`. `\tag{9}` becomes
a number at the right that links to itself, so that an equation can be pointed at. A formula that cannot be converted
stops the build. The font, STIX Two Math, comes from the package ziamath.

Example:
    >>> mathml("x^2", block=False)
    '<math><msup><mi>x</mi><mn>2</mn></msup></math>'
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from math_core import LatexError, LatexToMathML

TAG = re.compile(r"\\tag\{(\w+)\}")
INLINE = r"(?<![\\$\w])\$(?![\s$])([^$]+?)(?<!\s)\$(?![\w$])"
BLOCK = r"\$\$(.+?)\$\$"

_CONVERTER = LatexToMathML(fancy_error=False)


def mathml(latex: str, *, block: bool) -> str:
    """A formula as MathML, on a line of its own or within one."""
    try:
        return _CONVERTER.convert_with_local_state(latex.strip(), displaystyle=block)
    except LatexError as error:
        raise ValueError(f"a formula cannot be converted to MathML: {error}\n{latex}") from None


def display(latex: str) -> str:
    """A displayed formula, with its number if it has one."""
    tag = TAG.search(latex)
    number = f'<a class="number" href="#eq-{tag[1]}">({tag[1]})</a>' if tag else ""
    return f'<div class="equation"><div class="formula">{mathml(TAG.sub("", latex), block=True)}</div>{number}</div>'


def fence(source: str, language: str, css_class: str, options: Any, md: Markdown, **attributes: Any) -> str:
    """A fenced block of the language `math`, as superfences asks for it."""
    return display(source)


class _Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, convert: Callable[[str], str]) -> None:
        super().__init__(pattern, md)
        self.convert = convert

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[ElementTree.Element | str, int, int]:
        return self.md.htmlStash.store(self.convert(m.group(1))), m.start(0), m.end(0)


class Formulas(Extension):
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Python-Markdown's name
        """Code comes before formulas, so that a dollar in backticks stays one; formulas before everything else."""
        md.inlinePatterns.register(_Formula(BLOCK, md, lambda latex: display(latex)), "formula-block", 188)
        md.inlinePatterns.register(_Formula(INLINE, md, lambda latex: mathml(latex, block=False)), "formula", 187)


def makeExtension(**kwargs: Any) -> Formulas:  # noqa: N802 - Python-Markdown's name
    """Called by Python-Markdown."""
    return Formulas(**kwargs)


def font(target: Path) -> None:
    """Writes the mathematical font, with the characters that formulas use, in a form for browsers."""
    from importlib.util import find_spec

    from fontTools import subset

    found = find_spec("ziamath")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the font of the formulas comes with ziamath: pip install -r requirements.txt")
    source = Path(found.origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"
    options = subset.Options(flavor="woff", layout_features=["*"])
    loaded = subset.load_font(str(source), options)
    ranges = [(0x20, 0x7E), (0xA0, 0xFF), (0x2B0, 0x36F), (0x370, 0x3FF), (0x2000, 0x23FF), (0x27C0, 0x2AFF)]
    maths = [(0x1D400, 0x1D7FF)]
    reduced = subset.Subsetter(options)
    reduced.populate(unicodes=[code for first, last in ranges + maths for code in range(first, last + 1)])
    reduced.subset(loaded)
    target.parent.mkdir(parents=True, exist_ok=True)
    subset.save_font(loaded, str(target), options)
