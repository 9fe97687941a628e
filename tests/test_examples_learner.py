"""The examples of the learner run, and say what they promise."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stream_learns_in_constant_memory(tmp_path, capsys) -> None:
    """Twenty thousand points: a plot, a state as large as at first, and a smaller error."""
    out = tmp_path / "docs" / "stream.png"
    load("stream").main(["--points", "20000", "--steps", "300", "--out", str(out)])
    said = capsys.readouterr().out
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in out.parent.iterdir()] == ["stream.png"]
    first, last = re.search(r"state: (\d+) bytes at first, (\d+) at last", said).groups()
    assert first == last
    start, end = map(float, re.search(r"mean ([\d.]+), then ([\d.]+);", said).groups())
    assert end < start


def test_two_places_merge_to_what_one_would_have_learned(capsys) -> None:
    load("two_places").main(["--points", "40", "--steps", "60"])
    said = capsys.readouterr().out
    assert re.search(r"here alone +40 points, knows common, odd:", said)
    assert re.search(r"merged +80 points, knows common, odd, rare:", said)
    assert float(re.search(r"in one place by ([\d.e+-]+);", said)[1]) < 1e-4
