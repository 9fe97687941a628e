"""The page in a real Chromium: drawing, teaching, forgetting, reloading, a server that goes away and comes back."""

import csv
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import serving
import tiny
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.protocols.table import resolve
from metavib.training.recipes import recipe
from serving import Serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
SHOTS = os.environ.get("METAVIB_SHOTS")  # a folder for pictures of the page, to be looked at

HOUSE = [[(0.25, 0.8), (0.25, 0.45), (0.5, 0.2), (0.75, 0.45), (0.75, 0.8), (0.25, 0.8)]]
CROSS = [[(0.2, 0.2), (0.8, 0.8)], [(0.8, 0.2), (0.2, 0.8)]]


def table(folder: Path, target: str = "demand", *, words: bool = False) -> Config:
    """Demand of cities by the hour, or whether it is high, learned from a few rows; with the weather in a word."""
    rng = np.random.default_rng(0)
    rows = []
    for c in range(12):
        for h in rng.uniform(0, 24, 8):
            demand = round(100 + 10 * c + 20 * math.sin(h / 4 + c), 1)
            value = demand if target == "demand" else "high" if math.sin(h / 4 + c) > 0 else "low"
            rows.append([f"city{c}", round(h, 2), *([str(rng.choice(["dry", "wet"]))] * words), value])
    with open(folder / f"{target}.csv", "w", newline="") as file:
        csv.writer(file).writerows([["city", "hour", *(["weather"] * words), target], *rows])
    small = {"tasks.table.csv": str(folder / f"{target}.csv"), "tasks.table.task": "city", "tasks.table.target": target}
    small |= {"model.widths": [8, 8], "train.steps": 20, "train.validate_every": 10, "train.save_every": 20}
    small |= {"tasks.shots": 4, "tasks.queries": 4, "test.tasks": 4}
    return resolve(override(recipe("table", "gp-vib"), small))


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    configs = {"sines": tiny.sinusoid(), "other-sines": tiny.sinusoid(seed=1)}
    configs |= {"glyphs": serving.glyph_config(), "demand": table(folder)}
    return serving.engines(serving.trained(folder, **configs))


@pytest.fixture(scope="module")
def server(engines, tmp_path_factory) -> Iterator[Serving]:
    with serving.serving(engines, f"{tmp_path_factory.mktemp('store')}/tasks.db") as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    found = watched(context)
    yield found
    context.close()
    assert not found.problems, found.problems


def watched(context):
    """A page that remembers what went wrong in it, and what it asked of other servers."""
    found = context.new_page()
    found.problems = []
    found.on("pageerror", lambda error: found.problems.append(str(error)))
    elsewhere = re.compile(r"^(?!http://localhost:|data:|blob:)")
    found.on("request", lambda r: found.problems.append(r.url) if elsewhere.match(r.url) else None)
    return found


def check(page, name: str):
    """What one of the functions of page_checks.js finds."""
    return page.evaluate(f"{(Path(__file__).parent / 'page_checks.js').read_text()}.{name}()")


def wait(page, expression: str) -> None:
    """Until an expression is true; asked from outside, since the page's own policy lets nothing be evaluated in it."""
    serving.until(lambda: page.evaluate(expression))


def shot(page, name: str) -> None:
    if SHOTS:
        page.wait_for_timeout(400)  # what moves has come to rest
        page.screenshot(path=f"{SHOTS}/{name}.png")


def draw(page, strokes) -> None:
    box = page.locator("#pad").bounding_box()
    for (x, y), *rest in strokes:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.down()
        for x, y in rest:
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=3)
        page.mouse.up()


def teach(page, strokes, name: str) -> None:
    draw(page, strokes)
    page.fill("#name", name)
    page.press("#name", "Enter")
    wait(page, "!document.querySelector('#name').value")


def classes(page, text: str) -> None:
    """Waits until a class stands in the list with some text beside it."""
    page.locator("#classes li").filter(has_text=re.compile(text)).first.wait_for()


def counts(server: Serving, prefix: str = "page-characters") -> dict[str, int]:
    """What the newest task of the page knows, asked of the server."""
    tasks = [t for t in server.http.get("/v1/tasks?limit=1000").json()["tasks"] if t["task"].startswith(prefix)]
    assert len(tasks) == 1
    return {c["label"]: c["points"] for c in tasks[0]["classes"]}


@pytest.fixture(autouse=True)
def _no_tasks(server) -> None:
    for entry in server.service.store.listed(limit=1000):
        server.service.delete(entry.name)


def open_characters(page, server: Serving) -> None:
    page.goto(f"{server.address}/#characters")
    page.wait_for_selector("#pad")


def test_a_character_is_drawn_named_and_recognised(page, server) -> None:
    open_characters(page, server)
    assert "know nothing" in page.inner_text("#verdict")
    teach(page, HOUSE, "house")
    classes(page, r"house\s*1 drawing")
    draw(page, HOUSE)
    classes(page, "%")
    wait(page, "!/^…/.test(document.querySelector('#verdict').innerText)")
    shares = (
        "[...document.querySelectorAll('#classes .share')].map(e => parseFloat(e.innerText.replace(/[^0-9.]/g, '')))"
    )
    wait(page, f"(([house, other]) => house > other)({shares})")  # the very drawing that was taught
    assert "house" in page.inner_text("#verdict")
    shot(page, "characters-one")
    page.click("#clear")
    teach(page, CROSS, "cross")
    classes(page, r"cross\s*1 drawing")
    draw(page, CROSS)
    page.get_by_role("button", name="Teach this drawing as cross").click()
    classes(page, r"cross\s*2 drawings")
    assert {k: n for k, n in counts(server).items() if k != "something else"} == {"house": 1, "cross": 2}
    draw(page, CROSS)
    classes(page, "%")
    shot(page, "characters")


def test_a_drawing_is_forgotten(page, server) -> None:
    open_characters(page, server)
    teach(page, HOUSE, "house")
    teach(page, CROSS, "cross")
    classes(page, r"cross\s*1 drawing")
    page.click("#undo")
    wait(page, "document.querySelectorAll('#classes li').length === 1")
    assert "cross" not in counts(server)
    page.get_by_role("button", name="Forget drawing 1 of house").click()
    wait(page, "!document.querySelectorAll('#classes li').length")
    assert set(counts(server)) == {"something else"}
    assert page.is_disabled("#undo")


def test_a_page_that_is_loaded_again_goes_on(page, server) -> None:
    open_characters(page, server)
    teach(page, HOUSE, "house")
    classes(page, r"house\s*1 drawing")
    page.reload()
    page.wait_for_selector("#pad")
    classes(page, r"house\s*1 drawing")
    assert page.locator("#classes .shot").count() == 1
    page.get_by_role("button", name="Forget drawing 1 of house").click()
    wait(page, "!document.querySelectorAll('#classes li').length")
    assert set(counts(server)) == {"something else"}


def test_what_was_learned_is_exported_and_imported(page, server, tmp_path) -> None:
    open_characters(page, server)
    teach(page, HOUSE, "house")
    classes(page, r"house\s*1 drawing")
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "characters.safetensors")
    page.click("#restart")
    wait(page, "!document.querySelectorAll('#classes li').length")
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files(tmp_path / "characters.safetensors")
    classes(page, "1 learned elsewhere")
    draw(page, HOUSE)
    classes(page, "%")
    (tmp_path / "nonsense.safetensors").write_bytes(b"nonsense")
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files(tmp_path / "nonsense.safetensors")
    wait(page, "/no task file/.test(document.querySelector('#characters .problem').innerText)")


def test_what_is_taught_while_the_server_is_away_counts_once_it_is_back(page, engines, tmp_path) -> None:
    port = serving.free_port()
    url = f"{tmp_path}/tasks.db"
    with serving.serving(engines, url, port=port) as found:
        open_characters(page, found)
        teach(page, HOUSE, "house")
        classes(page, r"house\s*1 drawing")
    teach(page, CROSS, "cross")
    page.wait_for_selector("#connection:not([hidden])")
    assert "does not answer" in page.inner_text("#connection")
    shot(page, "connection")
    with serving.serving(engines, url, port=port) as found:
        classes(page, r"cross\s*1 drawing")
        page.wait_for_selector("#connection", state="hidden")
        assert counts(found)["cross"] == counts(found)["house"] == 1


def test_everything_can_be_done_with_keys(page, server) -> None:
    open_characters(page, server)
    page.focus("#pad")
    for key in ("Space", *["ArrowRight"] * 4, *["ArrowDown"] * 4, "Space"):
        page.keyboard.press(key)
    page.keyboard.press("Tab")
    page.keyboard.type("corner")
    page.keyboard.press("Enter")
    classes(page, r"corner\s*1 drawing")
    page.focus("#tab-characters")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#curves svg")
    assert page.evaluate("document.activeElement.id") == "tab-curves"
    page.locator("#curves svg").first.focus()
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    wait(page, "/^1 point/.test(document.querySelector('#curve-said').innerText)")
    page.keyboard.press("Backspace")
    wait(page, "/^Nothing seen/.test(document.querySelector('#curve-said').innerText)")


def test_nothing_of_a_plane_can_be_touched_before_it_knows_its_points(page, server) -> None:
    held = []

    def hold(route) -> None:
        held.append(route) if route.request.method == "GET" else route.continue_()

    page.route(re.compile(r"/v1/tasks/[^/]+$"), hold)
    page.goto(f"{server.address}/#curves")
    serving.until(lambda: page.evaluate("true") and len(held) == 2)  # asked how many points each model has seen
    assert page.locator("#curves svg, #curves button").count() == 0
    for route in held:
        route.continue_()
    page.wait_for_selector("#curves svg")


def test_points_tighten_the_bands_of_both_models(page, server) -> None:
    page.goto(f"{server.address}/#curves")
    page.wait_for_selector("#curves .mean", state="attached")
    assert page.locator("#curves svg").count() == 2
    box = page.locator("#curves svg").first.bounding_box()
    for i, (x, y) in enumerate(((0.3, 0.4), (0.6, 0.6))):
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
        wait(page, f"document.querySelectorAll('#curves .dot').length === {2 * (i + 1)}")
    serving.until(lambda: [t["points"] for t in server.http.get("/v1/tasks").json()["tasks"]] == [2, 2])
    page.wait_for_timeout(300)
    shot(page, "curves")
    before = page.get_attribute("#curves .band >> nth=0", "d")
    page.evaluate("level.value = 60; level.dispatchEvent(new Event('input'))")
    wait(page, f"document.querySelector('#curves .band').getAttribute('d') !== {before!r}")
    page.reload()
    wait(page, "document.querySelectorAll('#curves .dot').length === 4")
    wait(page, "document.querySelectorAll('#curves .mean').length === 2")  # all is drawn in its place
    page.mouse.click(*check(page, "dot"))
    wait(page, "document.querySelectorAll('#curves .dot').length === 2")
    serving.until(lambda: [t["points"] for t in server.http.get("/v1/tasks").json()["tasks"]] == [1, 1])


def test_a_table_is_dropped_and_one_value_changes_the_others(page, server, tmp_path) -> None:
    rows = "hour,demand\n1.5,110\n3,\n12.25,\n20,131.5\n"
    (tmp_path / "new.csv").write_text(rows)
    page.goto(f"{server.address}/#collections")
    page.select_option("#collection-model", "demand")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a file").click()
    chooser.value.set_files(tmp_path / "new.csv")
    page.wait_for_selector("#rows")
    assert "2 of 4 rows learned" in page.inner_text("#table-said")
    before = page.locator("#rows tbody tr").nth(2).locator("td").nth(1).inner_text()
    page.get_by_label("demand of row 2").fill("300")
    page.get_by_label("demand of row 2").press("Enter")
    wait(page, "/3 of 4 rows/.test(document.querySelector('#table-said').innerText)")
    wait(page, f"document.querySelectorAll('#rows tbody tr')[2].children[1].innerText !== {before!r}")
    shot(page, "table")
    page.get_by_label("demand of row 2").fill("")
    page.get_by_label("demand of row 2").press("Enter")
    wait(page, "/2 of 4 rows/.test(document.querySelector('#table-said').innerText)")
    (tmp_path / "wrong.csv").write_text("a,b\n1,2\n")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a file").click()
    chooser.value.set_files(tmp_path / "wrong.csv")
    wait(page, "/no column hour/.test(document.querySelector('#collections .problem').innerText)")


def test_rows_that_are_left_out_are_shown_as_such(page, tmp_path) -> None:
    """In a table, and as a point of a plane; neither is forgotten with the others, since it was never learned."""
    rng = np.random.default_rng(0)
    rows = [
        f"{c},{h:.2f},{100 + 10 * c + h + 0.1 * rng.normal():.2f}" for c in range(12) for h in rng.uniform(0, 24, 8)
    ]
    (tmp_path / "demand.csv").write_text("\n".join(["city,hour,demand", *rows]))
    named = {
        "tasks.table.csv": str(tmp_path / "demand.csv"),
        "tasks.table.task": "city",
        "tasks.table.target": "demand",
    }
    config = resolve(override(recipe("table", "hierarchical"), named))
    engines = serving.engines(serving.trained(tmp_path / "runs", demand=config))
    (tmp_path / "new.csv").write_text("hour,demand\n1.5,141.5\n3,1000000\n\n12.25,152.25\n20,\n")
    (tmp_path / "gap.csv").write_text("hour,demand\n1.5,110\n\n,111\n")
    with serving.serving(engines, f"{tmp_path}/tasks.db") as found:
        page.goto(f"{found.address}/#collections")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose a file").click()
        chooser.value.set_files(tmp_path / "new.csv")
        page.wait_for_selector("#rows")
        said = page.inner_text("#table-said")
        assert "2 of 4 rows learned" in said and "cannot be right there beside all other rows: row 2." in said
        assert "1000000 left out" in page.locator("#rows tbody tr").nth(1).inner_text()
        shot(page, "left-out")
        page.get_by_label("demand of row 2").fill("143")
        page.get_by_label("demand of row 2").press("Enter")
        wait(page, "/3 of 4 rows learned/.test(document.querySelector('#table-said').innerText)")
        assert "left out" not in page.inner_text("#collections") and not page.inner_text("#collections .problem")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose a file").click()
        chooser.value.set_files(tmp_path / "gap.csv")
        wait(
            page,
            "/Line 4 has no value in the column hour/.test(document.querySelector('#collections .problem').innerText)",
        )
        page.click("#tab-curves")
        page.wait_for_selector("#curves .mean", state="attached")
        plane = page.locator("#curves svg").first
        box = plane.bounding_box()
        for x, y, known in [(0.4, 0.5, 1), (0.45, 0.5, 2), (0.6, 0.1, 2)]:
            plane.click(position={"x": x * box["width"], "y": y * box["height"]}, force=True)
            serving.until(lambda known=known: points(found, "page-curves") == [known])
        wait(page, "document.querySelectorAll('#curves .dot.out').length === 1")
        assert "3 points, 1 left out" in page.inner_text("#curve-said") and points(found, "page-curves") == [2]
        shot(page, "left-out-point")
        page.reload()
        wait(page, "document.querySelectorAll('#curves .dot.out').length === 1")
        page.click("#curve-undo")
        wait(page, "document.querySelectorAll('#curves .dot').length === 2")
        assert points(found, "page-curves") == [2] and not page.inner_text("#curves .problem")


def points(server: Serving, beginning: str) -> list[int]:
    """How many points are known of the tasks whose names begin so."""
    tasks = server.http.get("/v1/tasks").json()["tasks"]
    return [task["points"] for task in tasks if task["task"].startswith(beginning)]


def test_columns_and_classes_may_be_words(page, tmp_path) -> None:
    configs = {"demand": table(tmp_path, words=True), "level": table(tmp_path, "level", words=True)}
    engines = serving.engines(serving.trained(tmp_path / "runs", **configs))
    (tmp_path / "new.csv").write_text("hour,weather,level\n1.5,dry,high\n3,wet,\n20,dry,low\n")
    with serving.serving(engines, f"{tmp_path}/tasks.db") as found:
        page.goto(f"{found.address}/#curves")
        page.wait_for_selector("#curves .mean", state="attached")
        before = page.get_attribute("#curves .band", "d")
        page.get_by_label("weather").select_option("wet")
        wait(page, f"document.querySelector('#curves .band').getAttribute('d') !== {before!r}")
        page.click("#tab-collections")
        page.select_option("#collection-model", "level")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose a file").click()
        chooser.value.set_files(tmp_path / "new.csv")
        page.wait_for_selector("#rows")
        assert "2 of 3 rows learned" in page.inner_text("#table-said")
        assert page.locator("#rows tbody tr").nth(1).locator("td").nth(2).inner_text() in ("high", "low")
        page.get_by_label("level of row 2").fill("high")
        page.get_by_label("level of row 2").press("Enter")
        wait(page, "/3 of 3 rows/.test(document.querySelector('#table-said').innerText)")
        assert counts(found, "page-tables") == {"high": 2, "low": 1}


def test_a_visit_leaves_no_tasks_behind(page, server, tmp_path) -> None:
    """A task is made when a file is dropped, not before, and the next file of the same tab replaces it."""
    (tmp_path / "new.csv").write_text("hour,demand\n1.5,110\n3,\n")
    for _ in range(3):
        page.goto(f"{server.address}/#collections")
        page.select_option("#collection-model", "demand")
        page.select_option("#collection-model", "glyphs")
        page.select_option("#collection-model", "demand")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose a file").click()
        chooser.value.set_files(tmp_path / "new.csv")
        page.wait_for_selector("#rows")
        page.reload()

    def names() -> list[str]:
        return [t["task"] for t in server.http.get("/v1/tasks").json()["tasks"]]

    serving.until(lambda: len(names()) == 1 and names()[0].startswith("page-tables"))


def test_a_folder_of_pictures_is_learned_and_one_correction_reaches_the_rest(page, server, tmp_path) -> None:
    def stroke(path: Path, upright: bool, at: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((28, 28), 255, np.uint8)
        pixels[(slice(4, -4), slice(at, at + 3)) if upright else (slice(at, at + 3), slice(4, -4))] = 0
        Image.fromarray(pixels).save(path)

    for i in range(2):
        stroke(tmp_path / f"known/upright/{i}.png", True, 10 + 5 * i)
        stroke(tmp_path / f"known/lying/{i}.png", False, 10 + 5 * i)
        stroke(tmp_path / f"open/u{i}.png", True, 8 + 9 * i)
        stroke(tmp_path / f"open/l{i}.png", False, 8 + 9 * i)
    page.goto(f"{server.address}/#collections")
    page.select_option("#collection-model", "glyphs")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a folder").click()
    chooser.value.set_files(tmp_path / "known")
    wait(page, "/4 pictures learned/.test(document.querySelector('#pictures-said').innerText)")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose pictures").click()
    chooser.value.set_files(sorted((tmp_path / "open").glob("*.png")))
    wait(page, "/4 learned, 4 to classify/.test(document.querySelector('#pictures-said').innerText)")
    labels = {name: page.get_by_label(f"Class of {name}.png").input_value() for name in ("u0", "u1", "l0", "l1")}
    assert set(labels.values()) <= {"upright", "lying"}
    shot(page, "pictures")
    page.get_by_label("Class of u0.png").fill("post")
    page.get_by_label("Class of u0.png").press("Enter")
    wait(page, "/5 learned, 3 to classify/.test(document.querySelector('#pictures-said').innerText)")
    page.get_by_label("Class of u0.png").fill("pole")
    page.get_by_label("Class of u0.png").press("Enter")
    serving.until(lambda: set(counts(server, "page-pictures")) == {"upright", "lying", "pole"})


def test_a_token_is_asked_for_once(browser, engines, tmp_path) -> None:
    context = browser.new_context()
    with serving.serving(engines, f"{tmp_path}/t.db", token=serving.TOKEN) as found:
        page = watched(context)
        page.goto(f"{found.address}/#characters")
        page.wait_for_selector("dialog[open] input")
        page.fill("dialog input", serving.TOKEN)
        page.get_by_role("button", name="Continue").click()
        page.wait_for_selector("#pad")
        teach(page, HOUSE, "house")
        classes(page, r"house\s*1 drawing")
        page.reload()
        classes(page, r"house\s*1 drawing")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_can_be_read_and_every_control_has_a_name(browser, server, scheme) -> None:
    size = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    context = browser.new_context(color_scheme=scheme, **size)
    page = watched(context)
    open_characters(page, server)
    check(page, "touch")
    page.fill("#name", "stroke")
    page.tap("#teach")
    classes(page, r"stroke\s*1 drawing")
    for name in ("characters", "curves", "collections"):
        page.tap(f"#tab-{name}")
        page.wait_for_selector(f"#{name} :is(#pad, .mean, #drop)", state="attached")
        assert check(page, "fits"), name
        assert not check(page, "nameless"), name
        assert not check(page, "faint"), name
        shot(page, f"phone-{name}-{scheme}")
    page.goto(f"{server.address}/docs")
    page.wait_for_selector("article")
    assert check(page, "fits") and not check(page, "faint") and not page.problems
    context.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: apt-get install curl")
def test_the_commands_of_the_documentation_work_as_pasted(page, server) -> None:
    page.goto(f"{server.address}/docs")
    page.wait_for_selector("article")
    shot(page, "docs")
    page.evaluate(
        "window.said = []; Object.defineProperty(navigator, 'clipboard', { value: { writeText: t => said.push(t) } })"
    )
    for button in page.locator("article button").all():
        button.click()
    commands = page.evaluate("said")
    assert len(commands) > 25 and all(c.startswith("curl ") for c in commands)
    made = [c for c in commands if c.startswith(f"curl -X POST '{server.address}/v1/tasks' ")]
    others = [c for c in commands if "/update'" in c or "/predict'" in c]
    for command in (*made, *others):
        done = subprocess.run(f"{command} --silent --fail-with-body", shell=True, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout)
