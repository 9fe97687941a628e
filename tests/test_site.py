"""The documentation: pages, formulas, links between theory and code, and formats that another language could read."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import griffe
import markdown
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from docs.tools import formulas, pages, reference, sessions
from docs.tools.docstrings import cited, everything, linked
from metavib import Learner, encoders, kernels, likelihoods, methods, networks
from metavib.training import bundled
from serving import until

ROOT = Path(__file__).parents[1]
THEORY = (ROOT / "THEORY.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    return reference.package(ROOT / "src")


def html(text: str) -> str:
    fences = {"custom_fences": [{"name": "math", "class": "math", "format": formulas.fence}]}
    extensions = ["tables", "pymdownx.superfences", formulas.Formulas()]
    return markdown.markdown(text, extensions=extensions, extension_configs={"pymdownx.superfences": fences})


def test_workers_of_a_build_that_is_killed_end_with_it() -> None:
    """The program hands out a job that never ends, says which process has it, and is killed the hard way."""
    program = "import os, time; from docs.tools.__main__ import workers\nif __name__ == '__main__':\n"
    program += (
        "  with workers() as pool: print(pool.submit(os.getpid).result(), flush=True); pool.submit(time.sleep, 600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as build:
        assert build.stdout is not None
        worker = int(build.stdout.readline())
        build.kill()
    until(lambda: not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2])


def test_formulas_become_mathml_and_code_stays_code() -> None:
    found = html("The mean $\\mu_*$ of `$HOME` costs 5 $ or $6, and $$x^2$$\n\n| $a \\mid b$ |\n| --- |\n| $c_1$ |")
    assert found.count("<math") == 4 and "<code>$HOME</code>" in found and "5 $ or $6" in found


def test_an_equation_has_its_number() -> None:
    found = html("```math\nx = y \\tag{22a}\n```\n")
    assert '<a class="number" href="#eq-22a">(22a)</a>' in found and "tag" not in found


def test_a_formula_that_cannot_be_converted_stops_the_build() -> None:
    with pytest.raises(ValueError, match="cannot be converted"):
        html("$\\frac{1}$")


def test_every_formula_of_the_theory_converts() -> None:
    found = html(THEORY)
    assert found.count('class="equation"') == THEORY.count("```math") + THEORY.count("$$") // 2
    assert "\\mathrm" not in re.sub("<code>.*?</code>", "", found)


def test_every_equation_is_cited_by_the_code_and_every_citation_is_an_equation(package) -> None:
    numbers = re.findall(r"\\tag\{(\w+)\}", THEORY)
    assert len(set(numbers)) == len(numbers) > 30
    assert set(reference.computing(package)) == set(numbers)
    sections = set(re.findall(r"^## (\d+)\. ", THEORY, re.MULTILINE))
    texts = [obj.docstring.value for obj in everything(package) if obj.docstring]
    assert {n for text in texts for n in re.findall(r"THEORY\.md, sections? (\d+)", text)} <= sections


def test_ranges_of_equations_are_counted_out() -> None:
    assert cited("see eqs. 22g to 22i, eq. 4 and (eq. 20a)") == ["22g", "22h", "22i", "4", "20a"]
    assert cited("eqs. 5a and 5b; eq. 2") == ["5a", "5b", "2"]


def test_citations_and_names_become_links(package) -> None:
    assert linked("by (eq. 9)", package) == "by ([eq. 9][eq-9])"
    assert linked("see `metavib.kernels.Linear`", package) == "see [`metavib.kernels.Linear`][metavib.kernels.Linear]"
    there = "metavib.networks.backbone.MLP"  # where it is defined, whatever name it is reached by
    assert linked("`metavib.networks.MLP`", package) == f"[`metavib.networks.MLP`][{there}]"
    assert linked("`metavib.nothing.Here`", package) == "`metavib.nothing.Here`"
    file = "`src/metavib/model.py:Model.encode`"
    assert linked(file, package) == f"[{file}][metavib.model.Model.encode]"
    assert linked("`src/metavib/model.py:Nothing`", package) == "`src/metavib/model.py:Nothing`"


def test_the_theory_on_the_site_links_its_equations_and_the_code(package) -> None:
    found = pages.theory(THEORY, reference.computing(package))
    assert "\n[](){#eq-9}\n" in found and "[(9)](#eq-9)" in found
    assert "[`Dual.kl`][metavib.posteriors.functions.Dual.kl]" in found
    assert "[](){#section-4}\n\n## 4. GP-VIB" in found and "[section 8](#section-8)" in found
    assert found.count("```math") == THEORY.count("```math")


def test_links_move_with_their_pages() -> None:
    assert pages.moved("[a](../THEORY.md#x) ![b](figures/b.png) [c](https://x.y)", "docs/speed.md") == (
        "[a](theory.md#x) ![b](figures/b.png) [c](https://x.y)"
    )
    assert pages.moved("[a](docs/config.md)", "CHANGELOG.md") == "[a](config.md)"
    assert pages.moved("[a](../../RESULTS.md)", "docs/tutorials/x.md") == "[a](../results.md)"
    assert pages.moved("[a](../src/metavib/data/ink.py) [b](../src/metavib/kernels.py)", "docs/x.md") == (
        "[a](reference/metavib.data.md#metavib.data.ink) [b](reference/metavib.md#metavib.kernels)"
    )
    assert pages.moved("`b` ([`a`](../THEORY.md); `c`)", "docs/x.md") == "`b` ([`a`](theory.md); `c`)"
    assert pages.moved("`[a](../b.md)`", "docs/speed.md") == "`[a](../b.md)`"


def test_wide_figures_are_scrolled_on_a_phone(tmp_path) -> None:
    for name, width in (("panels", 1200), ("one", 1199)):
        Image.new("L", (width, 4)).save(tmp_path / f"{name}.png")
    text = "![A [b] c](panels.png)\n\n![d](one.png)\n\n```\n![e](none.png)\n```\n"
    assert pages.scrolled(text, tmp_path) == text.replace("panels.png)", "panels.png){ .wide }")


def test_every_module_has_a_page_in_the_navigation(package) -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    rooms = reference.rooms(package)
    shown = {module.path for modules in rooms.values() for module in modules}
    source = ROOT / "src"
    names = {".".join(f.relative_to(source).with_suffix("").parts) for f in source.rglob("*.py")}
    assert {name.removesuffix(".__init__") for name in names} - {"metavib.__main__"} == shown
    for room in rooms:
        name = "metavib" if room == reference.ROOT else f"metavib.{room}"
        assert f"reference/{name}.md" in config, f"{name} is missing from the navigation in mkdocs.yml"


def test_the_overview_of_the_reference_names_what_exists(package) -> None:
    found = linked(reference.overview_page(package), package)
    for name in reference.NEEDED:
        assert f"[`{name}`][metavib." in found
    assert all(f"](metavib.{room}.md)" in found for room in reference.rooms(package) if room != reference.ROOT)


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert [page for page in found if f"{page}\n" not in config] == []


def test_every_public_name_is_documented(package) -> None:
    def public(obj: griffe.Object) -> bool:
        return not any(part.startswith("_") for part in obj.path.split("."))

    wanted = [obj for obj in everything(package) if public(obj) and not obj.is_attribute]
    assert len(wanted) > 700
    protocols = {"metavib.objective.Encodes", "metavib.objective.Objective"}  # their members are told by the class
    bare = [obj.path for obj in wanted if not obj.docstring and obj.parent.path not in protocols]
    assert bare == []


def test_every_name_that_a_room_offers_has_an_example(package) -> None:
    """Those that the root and the rooms of the package name; `test_docstrings.py` runs them."""
    rooms = [module for name, module in package.modules.items() if name != "__main__"]
    found = {m.final_target.path if m.is_alias else m.path for room in [package, *rooms] for m in _names(room)}
    bare = [path for path in found if ">>>" not in package[path.removeprefix("metavib.")].docstring.value]
    assert len(found) > 150
    assert sorted(bare) == []


def test_the_citation_is_of_this_version_and_names_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software" and citation["message"]
    assert citation["title"].startswith(project["name"]) and citation["authors"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    paper = citation["preferred-citation"]
    assert paper["type"] == "conference-paper" and paper["year"] == 2021 and paper["url"].endswith("2009.03228")
    assert [author["family-names"] for author in paper["authors"]][0] == "Titsias"


def _names(module: griffe.Module) -> list[griffe.Object]:
    """The public classes and functions of a module, or those that a folder's `__init__` names."""
    named = [m for name, m in module.members.items() if not name.startswith("_")]
    if not module.is_init_module:  # what it imports is not its own
        named = [m for m in named if not m.is_alias]
    own = [m for m in named if (m.target_path if m.is_alias else m.path).startswith("metavib.")]
    return [m for m in own if m.is_class or m.is_function]


def test_every_command_and_option_is_on_its_page() -> None:
    found = reference.commands_page()
    assert "## metavib adapt" in found and "| `--resume RUN` | Go on with the run in this folder" in found
    assert not re.search(r"\| *\|$", found, re.MULTILINE), "an option without a help text"
    assert "\n$ metavib adapt runs/table-gp-vib-0 --support new.csv" in found  # examples are blocks of their own


def test_every_bundled_model_has_its_card() -> None:
    found = reference.models_page()
    assert bundled.names()
    for name in bundled.names():
        assert f"## {name}" in found
    for part in ("**Trained on**", "licence", "**Tested on**", "ECE", "**Limits**"):
        assert part in found


def test_a_page_shows_what_its_blocks_print_and_draw(tmp_path) -> None:
    draw = "import matplotlib.pyplot as plt\nplt.figure()\nplt.savefig('a-flat-line.png')\nplt.close()\n"
    text = f"Hello\n\n```python\nx = 2\nprint(x)\n```\n\n```python\n{draw}print(x + 1)\n```\nend\n"
    found = sessions.run(text, "page.md", tmp_path / "page")
    assert found.index("\n2\n") < found.index("\n3\n") < found.index("![A flat line](page/a-flat-line.png)")
    assert (tmp_path / "page" / "a-flat-line.png").read_bytes().startswith(b"\x89PNG")
    assert found.startswith("Hello\n") and found.endswith("end\n")


def test_a_page_that_fails_says_where(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="block 2 of page.md failed"):
        sessions.run("```python\nx = 1\n```\n\n```python\nx / 0\n```\n", "page.md", tmp_path)


def test_commands_in_a_page_are_run(tmp_path) -> None:
    found = sessions.run("```sh\nmetavib config train.beta\n```\n", "page.md", tmp_path)
    assert "Weight of the KL" in found
    with pytest.raises(RuntimeError, match="no-such-field"):
        sessions.run("```sh\nmetavib config no-such-field\n```\n", "page.md", tmp_path)


def safetensors(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """As docs/formats.md describes it, with nothing but NumPy and JSON."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata, kinds = header.pop("__metadata__"), {"F64": "<f8", "F32": "<f4", "I64": "<i8"}
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        data = content[8 + length + start : 8 + length + end]
        arrays[name] = np.frombuffer(data, kinds[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata


def test_a_task_file_can_be_read_and_predicted_from_without_this_library() -> None:
    """By the formulas on the page of file formats: the mean and variance of the function follow from A and b."""
    torch.manual_seed(0)
    parts = encoders.ExactSites(), likelihoods.Gaussian(noise=0.1)
    learner = Learner(methods.gp_vib(networks.MLP(3, ()), kernels.Linear(scale=3.0), *parts))
    x, y = torch.randn(20, 3), torch.randn(20)
    task, new = learner.adapt((x, y)), torch.randn(4, 3)
    arrays, metadata = safetensors(task.to_bytes(form="memory"))
    assert metadata["format"] == "metavib-task-2" and json.loads(metadata["batches"]) == [None]
    A = np.zeros((3, 3))
    A[np.tril_indices(3)] = arrays["A"][0]
    A = A + np.tril(A, -1).T
    z = new.numpy().astype(float)  # the features are the inputs, and scale / M is one
    mean = z @ np.linalg.solve(A + np.eye(3), arrays["b"])[:, 0]
    variance = np.sum(z * np.linalg.solve(A + np.eye(3), z.T).T, axis=1)
    found = task.predict(new)
    np.testing.assert_allclose(found.mean.detach(), mean, rtol=1e-5)
    np.testing.assert_allclose(found.variance.detach(), variance + 0.1, rtol=1e-5)
    assert arrays["n"].tolist() == [20] and arrays["counts"].size == 0


def test_classes_in_a_task_file_follow_the_page_of_file_formats() -> None:
    torch.manual_seed(0)
    parts = encoders.SimplifiedSites(m=2.0), likelihoods.Softmax(3)
    learner = Learner(methods.gp_vib(networks.MLP(2, ()), kernels.Linear(scale=2.0), *parts))
    x, labels = torch.randn(12, 2), ["a", "b", "c"] * 4
    task, new = learner.adapt((x, labels)), torch.randn(5, 2)
    arrays, metadata = safetensors(task.to_bytes(form="memory"))
    assert json.loads(metadata["classes"]) == [["a", "b", "c"]] and arrays["counts"].tolist() == [4, 4, 4]
    a, d, e = arrays["A"][0]
    A, g = np.array([[a, d], [d, e]]), arrays["b"]
    b = 2 * g - g.sum(1, keepdims=True)
    mean = new.numpy().astype(float) @ np.linalg.solve(A + np.eye(2), b)
    assert [task.predict(new).labels[i] for i in range(5)] == ["abc"[k] for k in mean.argmax(1)]
