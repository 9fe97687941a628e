"""Shared by all tests: shapes checked at every call, property tests that draw the same examples everywhere."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from beartype import BeartypeConf, beartype
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as in PEP 484

# Shapes are checked at every call of the modules that state them. METAVIB_TYPECHECK=0 turns that off (to profile, say).
# The hook must be in place before the first import of metavib, which is why it stands at the top of this file.
if os.environ.get("METAVIB_TYPECHECK", "1") != "0":
    source = Path(__file__).parents[1] / "src"
    files = [f for f in (source / "metavib").rglob("*.py") if "from jaxtyping import" in f.read_text()]
    install_import_hook([".".join(f.relative_to(source).with_suffix("").parts) for f in files], f"{__name__}.checked")

settings.register_profile(
    "metavib",
    derandomize=True,  # the same examples on every machine: a red test is red everywhere
    database=None,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("metavib")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded_weights() -> None:
    """Networks born in a test have the same weights whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    """A freshly seeded generator."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs in this process; the commands that were started."""
    import processes  # metavib may be imported only once its shapes are checked
    from reproduction import queue as runs

    monkeypatch.setattr(runs, "subprocess", processes.instead(processes.Here))
    monkeypatch.setattr(runs, "POLL", 0.0)
    monkeypatch.setattr(processes.Here, "started", [])
    return processes.Here.started


# Servers of tiny models, for the tests of the service


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of three tiny models, by name."""
    import serving
    import tiny

    configs = {"sines": tiny.sinusoid(), "maml": tiny.sinusoid("maml"), "glyphs": serving.glyph_config()}
    return serving.trained(tmp_path_factory.mktemp("runs"), **configs)


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> list[Any]:
    """These models as they are served."""
    import serving

    return serving.engines(folders)


@pytest.fixture(scope="module")
def server(engines: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of these models, in this process."""
    import serving

    with serving.serving(engines, f"{tmp_path_factory.mktemp('store')}/tasks.db") as found:
        yield found


@pytest.fixture
def http(server: Any) -> Any:
    """A client of that server, whose store is without tasks."""
    for entry in server.service.store.listed(limit=10_000):
        server.service.delete(entry.name)
    return server.http
