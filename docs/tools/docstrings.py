"""Docstrings as mkdocstrings shows them: examples as code, equations and names of the package as links.

A griffe extension, named in `mkdocs.yml`. What is rewritten:

* `Example:` is a section of examples, as `Examples:` is.
* The arguments of a `NamedTuple` are its attributes.
* "eq. 9" and "eqs. 1 to 4" link to the equations of the theory, "THEORY.md, section 4" to its sections.
* A full name in backticks, `metavib.objective.vib`, links to its place in the reference, and so does the name of a file
  with that of an object in it, `src/metavib/objective.py:vib`.
"""

import re
from typing import Any

import griffe

CITATION = re.compile(r"\beqs?\.\s+(\d+[a-i]?)(?:\s+(to|and)\s+(\d+[a-i]?))?")
PATH = re.compile(r"(?<![\[`])`(src/(metavib(?:/\w+)*)\.py:([\w.]+))`(?![\]`])")
NAME = re.compile(r"(?<![\[`])`(metavib(?:\.\w+)+)`(?![\]`])")
ARGUMENTS = re.compile(r"^Args:$", re.MULTILINE)
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


def linked(text: str, package: griffe.Module) -> str:
    """A docstring or a page with the links named above, in the syntax of mkdocs-autorefs."""
    text = CITATION.sub(lambda m: f"[{m[0]}][eq-{m[1]}]", text)
    text = re.sub(r"THEORY\.md, sections? (\d+)", lambda m: f"[{m[0].replace('.md', '')}][section-{m[1]}]", text)
    text = PATH.sub(lambda m: f"[`{m[1]}`][{target}]" if (target := shown(package, _dotted(m))) else m[0], text)
    return NAME.sub(lambda m: f"[`{m[1]}`][{target}]" if (target := shown(package, m[1])) else m[0], text)


def _dotted(path: re.Match[str]) -> str:
    """The full name of an object from a match of `PATH`: its module's file and its name there."""
    return f"{path[2].replace('/', '.').removesuffix('.__init__')}.{path[3]}"


def shown(package: griffe.Module, name: str) -> str | None:
    """Where the reference shows the object of this full name, if it does: it has to be public and documented."""
    try:
        found = package[name.removeprefix("metavib.")]
    except KeyError:
        return None
    found = found.final_target if found.is_alias else found
    private = any(part.startswith("_") for part in found.path.split("."))
    return None if private or found.docstring is None else found.path


class Docstrings(griffe.Extension):
    """Rewrites every docstring of a package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """All objects of the package, whose names are known by now."""
        for obj in everything(pkg):
            if obj.docstring is not None:
                text = EXAMPLE.sub("Examples:", obj.docstring.value)
                if obj.is_class and any(str(base) == "NamedTuple" for base in obj.bases):
                    text = ARGUMENTS.sub("Attributes:", text)
                obj.docstring.value = linked(text, pkg)


def everything(obj: Any) -> Any:
    """An object and all that it holds, without what it imports."""
    yield obj
    for member in obj.members.values():
        if not member.is_alias:
            yield from everything(member)


def cited(text: str) -> list[str]:
    """The equations that a text cites, ranges included: "eqs. 22g to 22i" are three."""
    found: list[str] = []
    for first, word, last in CITATION.findall(text):
        found += _range(first, last) if word == "to" else [first, *filter(None, [last])]
    return found


def _range(first: str, last: str) -> list[str]:
    if first.isdigit() and last.isdigit():
        return [str(n) for n in range(int(first), int(last) + 1)]
    stem = first.rstrip("abcdefghi")
    letters = "abcdefghi"
    return [stem + letter for letter in letters[letters.index(first[-1]) : letters.index(last[-1]) + 1]]
