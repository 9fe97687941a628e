"""The built site in a real Chromium, at the width of a desk and of a phone."""

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SITE = Path(__file__).parents[1] / "build" / "site"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SHOTS = os.environ.get("METAVIB_SHOTS")  # a folder for pictures of the pages, to be looked at
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html") if page.name != "404.html")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(not PAGES, reason="the site is not built: make docs"),
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_every_page_is_whole(browser, address, width) -> None:
    """No errors in the console, nothing asked of other servers, nothing wider than the screen, no picture missing."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith((address, "data:", "blob:")) else None)
    found: dict[str, list[str]] = {}
    for name in PAGES:
        page.goto(f"{address}/{name}")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        broken = page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
        if SHOTS:
            page.screenshot(path=f"{SHOTS}/{width}-{name.replace('/', '-')}.png")
        problems += [f"{wide} pixels too wide"] * (wide > 0) + broken
        if problems:
            found[name] = list(problems)
            problems.clear()
    page.close()
    assert found == {}


def test_formulas_are_drawn_in_their_own_font(browser, address) -> None:
    page = browser.new_page()
    page.goto(f"{address}/theory.html")
    sizes = page.evaluate("[...document.querySelectorAll('math')].map(m => m.getBoundingClientRect().width)")
    assert len(sizes) > 300 and min(sizes) > 2
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.fonts.check('16px \"STIX Two Math\"')")
    page.close()


def test_the_search_finds_a_word_of_the_theory(browser, address) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/index.html")
    page.locator("[data-md-component=search-query]").first.fill("Woodbury")
    page.locator(".md-search-result__link").first.wait_for()
    assert "theory.html" in page.locator(".md-search-result__link").first.get_attribute("href")
    page.close()
