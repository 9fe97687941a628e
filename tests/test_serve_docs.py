"""docs/serve.md is tried: commands and Python run, tables are those measured, the container can be built."""

import io
import json
import re
import shlex
import subprocess
import sys
import zipfile
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest

import serving
import tiny
from benchmarks.serve.__main__ import faults_table, load_table

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
STEPS = re.findall(r"^([A-Z]+) ((?:.*\\\n)*.*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    engines = serving.engines(serving.trained(folder, demo=tiny.sinusoid()))
    with serving.serving(engines, f"{folder}/tasks.db") as found:
        yield found


def test_the_python_of_the_page_runs(server, tmp_path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    said = io.StringIO()
    with chdir(tmp_path), redirect_stdout(said):
        exec(compile(source.replace("http://localhost:8000", server.address), "serve.md", "exec"), {})
    assert re.fullmatch(r"-?\d+\.\d, between -?\d+\.\d and -?\d+\.\d\n", said.getvalue())
    assert (tmp_path / "sensor.safetensors").exists()
    assert not server.http.get("/v1/tasks").json()["tasks"]


def test_the_requests_of_the_page_are_answered(server) -> None:
    """As curl would send them: it need not be installed."""
    (source,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    answers = []
    for line in source.replace("\\\n", " ").splitlines():
        _, address, *options = shlex.split(line)
        headers = dict(h.split(": ") for o, h in zip(options, options[1:], strict=False) if o == "-H")
        body = options[options.index("-d") + 1]
        answers.append(server.http.post(address.removeprefix("http://localhost:8000"), content=body, headers=headers))
        assert answers[-1].is_success, answers[-1].text
    assert answers[1].json()["points"] == 3
    assert set(answers[2].json()["predictions"][0]) == {"mean", "sd", "low", "high"}


@pytest.mark.parametrize(("name", "table"), [("load", load_table), ("faults", faults_table)])
def test_the_tables_of_the_page_are_those_measured(name, table) -> None:
    (shown,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    found = json.loads((RESULTS / f"serve-{name}.json").read_text(encoding="utf-8"))
    assert shown.strip() == table(found).strip()


def test_the_container_installs_what_the_program_needs(tmp_path) -> None:
    """The steps of the Dockerfile, as far as they go without one: the wheel of what it copies holds the page too."""
    assert [name for name, _ in STEPS][0] == "FROM" and {"USER", "HEALTHCHECK", "ENTRYPOINT"} <= {n for n, _ in STEPS}
    for name, words in STEPS:
        if name == "COPY":
            *sources, target = words.split()
            place = tmp_path / target.strip("/")
            place.mkdir(parents=True, exist_ok=True)
            for source in sources:
                whole = ROOT / source
                subprocess.run(["cp", "-r", f"{whole}/." if whole.is_dir() else str(whole), str(place)], check=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(tmp_path / "source"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and re.search("hatchling|connection", done.stderr):
        pytest.skip("a wheel cannot be built here: hatchling is not to be had.")
    assert not done.returncode, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    needed = [*(source / "metavib/serve/page").glob("*.*"), *(source / "metavib/models").rglob("*.*")]
    assert {str(file.relative_to(source)) for file in needed if file.suffix != ".pyc"} <= names


def test_the_command_of_the_container_is_one_of_the_program(tmp_path) -> None:
    entry, models = (json.loads(words) for name, words in STEPS if name in ("ENTRYPOINT", "CMD"))
    assert entry[:2] == ["metavib", "serve"]
    port = serving.free_port()
    arguments = [a.replace("/data", str(tmp_path)) for a in entry[2:]]
    token = {"METAVIB_TOKEN": serving.TOKEN}
    program = serving.Program(*arguments, *models, "--port", str(port), log=tmp_path / "log", **token)
    try:
        program.ready(f"http://127.0.0.1:{port}")
        (health,) = [words for name, words in STEPS if name == "HEALTHCHECK"]
        check = json.loads(health[health.index("[") :])
        source = check[2].replace(":8000", f":{port}")
        assert check[:2] == ["python", "-c"]
        subprocess.run([sys.executable, "-c", source], check=True)
    finally:
        assert program.stop() == 0
