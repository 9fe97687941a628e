"""The page of the service: plain HTML, CSS and JavaScript, read once and served from memory."""

from functools import cache
from hashlib import sha256
from importlib.resources import files as resources
from typing import NamedTuple

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class File(NamedTuple):
    """A file of the page."""

    content: bytes
    type: str
    tag: str


@cache
def files() -> dict[str, File]:
    """Every file of the page by its name."""
    found = {}
    for file in resources(__package__).iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = File(content, kind, f'"{sha256(content).hexdigest()[:16]}"')
    return found
