"""The site in a real browser, from disk: filters, charts, themes, phone, print, and what axe-core finds."""

from __future__ import annotations

import importlib.resources
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install 'cameraready[test]'")
pytest.importorskip("axe_playwright_python", reason="pip install 'cameraready[test]'")
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGES = (
    "index.html",
    "methods/qkmeans.html",
    "methods/wildcat.html",
    "methods/max_kernel.html",
    "methods/hostile.html",
)
AXE = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield running
        running.close()


class Visit:
    """Opens pages of the site, and keeps what they complain about and ask for."""

    def __init__(self, browser: Browser, site: Path) -> None:
        self.browser, self.site = browser, site
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.kept: dict[str, Page] = {}

    def fresh(self, name: str, *, scheme: Literal["light", "dark"] = "light") -> Page:
        """A page for a test that clicks, types or folds."""
        context = self.browser.new_context(
            color_scheme=scheme, viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
        )
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto((self.site / name).as_uri())
        if name != "index.html":
            page.wait_for_selector("html[data-charts=drawn]", timeout=20_000)
        return page

    def __call__(self, name: str, *, scheme: Literal["light", "dark"] = "light", width: int = 1280) -> Page:
        """A page for a test that only looks: loaded once, unfolded, then turned to a scheme and a width.

        Of the charts' tables, which are all alike and long, the first is unfolded.
        """
        if name not in self.kept:
            self.kept[name] = self.fresh(name)
            self.kept[name].evaluate(
                "for (const it of document.querySelectorAll('details:not(.numbers)')) it.open = true;"
                "document.querySelector('.numbers')?.setAttribute('open', '')"
            )
        page = self.kept[name]
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "[...document.querySelectorAll('.canvas')].every(canvas => canvas.dataset.width == canvas.clientWidth"
            " && canvas.querySelector('svg').getAttribute('width') <= canvas.clientWidth)"
        )
        return page


@pytest.fixture(scope="module")
def visits(browser: Browser, site: Path) -> Visit:
    return Visit(browser, site)


@pytest.fixture
def visit(visits: Visit) -> Iterator[Visit]:
    yield visits
    assert visits.complaints == []
    assert all(url.startswith(("file://", "data:")) for url in visits.requests)


def shown(page: Page) -> list[str]:
    return page.locator("#cards > .card:visible h2").all_inner_texts()


def test_the_filters_and_the_search_narrow_the_cards_and_say_how_many_are_left(visit: Visit) -> None:
    page = visit.fresh("index.html")
    count = page.get_by_role("status")
    expect(count).to_have_text("4 methods")
    page.get_by_label("Field", exact=True).select_option("clustering")
    assert shown(page) == ["k-means seeding for thousands of clusters"]
    expect(count).to_have_text("1 of 4 methods")
    page.get_by_role("button", name="Clear").click()
    expect(count).to_have_text("4 methods")
    page.get_by_label("Verdict", exact=True).select_option("skipped")
    assert shown(page) == ["Kernels over groups of actions"]
    page.get_by_label("Verdict", exact=True).select_option("supported")
    assert len(shown(page)) == 2
    page.get_by_label("Search").fill("Decoding GPU")  # words of a claim
    assert shown(page) == ["Attention in near-linear time by weighted coresets"]
    page.get_by_label("Search").fill("no such thing")
    assert shown(page) == []
    expect(page.get_by_text("No method fits these filters.")).to_be_visible()


def test_the_index_can_be_used_with_the_keyboard_alone(visit: Visit) -> None:
    page = visit.fresh("index.html")
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.innerText.trim()"))
        outline = page.evaluate(
            "[getComputedStyle(document.activeElement), getComputedStyle(document.activeElement, '::after')]"
            ".some(style => style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2)"
        )
        assert outline, f"nothing shows that {reached[-1]!r} has the focus"
    assert reached[0] == "Skip to the content"
    assert reached[3:7] == ["What the verdicts mean", "words", "field", "verdict"]
    page.keyboard.press("Enter")
    page.wait_for_url("**/methods/qkmeans.html")


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_draws_its_marks_at_the_width_of_its_place(visit: Visit, width: int) -> None:
    for name in ("methods/qkmeans.html", "methods/wildcat.html", "methods/hostile.html"):
        page = visit(name, width=width)
        drawn = page.evaluate(
            """[...document.querySelectorAll(".canvas")].map(canvas => ({
                marks: canvas.querySelectorAll("svg [class*=mark-symbol] path, svg .mark-rect path").length,
                svg: +canvas.querySelector("svg").getAttribute("width"), box: canvas.clientWidth}))"""
        )
        assert len(drawn) >= 3
        for chart in drawn:
            assert chart["marks"] >= 3
            assert 0.75 * chart["box"] <= chart["svg"] <= chart["box"]


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_in_light_and_no_weak_contrast_in_dark(visit: Visit, name: str) -> None:
    page = visit(name)
    page.evaluate(AXE)
    rules = {"light": "{}", "dark": "{runOnly: ['color-contrast']}"}  # only colours depend on the scheme
    grave = []
    for scheme, options in rules.items():
        visit(name, scheme=scheme)  # type: ignore[arg-type]
        found = page.evaluate(f"axe.run({{preload: false, resultTypes: ['violations'], ...{options}}})")
        assert len(found["passes"]) >= 1
        grave += [
            f"{scheme} {violation['id']}: {node['html']} {node['failureSummary']}"
            for violation in found["violations"]
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"]
        ]
    assert grave == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_does_not_scroll_sideways(visit: Visit, name: str) -> None:
    page = visit(name, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    beyond = page.evaluate(
        """[...document.querySelectorAll("main *")].filter(it => !it.closest(".scroll, pre, .hush, .canvas"))
        .filter(it => it.getBoundingClientRect().right > innerWidth + 1).map(it => it.outerHTML)"""
    )
    assert beyond == []


def test_the_theme_button_changes_page_and_charts_and_is_remembered(visit: Visit) -> None:
    page = visit.fresh("methods/qkmeans.html")
    colors = """["body", ".canvas svg .mark-symbol path"].map(it => getComputedStyle(document.querySelector(it)))
        .map(style => [style.backgroundColor, style.fill])"""
    light = page.evaluate(colors)
    page.get_by_role("button", name="Dark theme").click()
    dark = page.evaluate(colors)
    assert light[0][0] == "rgb(250, 249, 246)"
    assert dark[0][0] == "rgb(20, 22, 26)"
    assert light[1][1] != dark[1][1]
    page.get_by_role("link", name="All methods").click()
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark[0][0]


def test_names_with_markup_run_nothing(visit: Visit) -> None:
    for name in ("index.html", "methods/hostile.html"):
        assert visit(name).evaluate("window.pwned") is None


def test_print_shows_charts_and_folded_parts_on_white_without_navigation(visit: Visit) -> None:
    page = visit.fresh("methods/qkmeans.html", scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("details:not([open])").count() == 0
    expect(page.get_by_text("accepted = scan(batch")).to_be_visible()
    expect(page.locator(".contents")).to_be_hidden()
    expect(page.locator("#theme")).to_be_hidden()
    for canvas in page.locator(".canvas svg").all():
        expect(canvas).to_be_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


def test_without_scripts_the_verdicts_and_numbers_are_there(browser: Browser, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    assert page.locator(".card:visible").count() == 4
    expect(page.locator("#filters")).to_be_hidden()
    page.goto((site / "methods/qkmeans.html").as_uri())
    expect(page.locator(".forest").first).to_be_visible()
    page.locator(".numbers summary").first.click()
    expect(page.locator(".numbers table").first).to_be_visible()
    context.close()
