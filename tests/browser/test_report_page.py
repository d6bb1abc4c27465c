"""The page in a real browser: offline and silent, for keyboard and screen reader, phone and desktop, light and dark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from antishortcut.report import make_report
from tests.browser.conftest import CHROMIUM, DESKTOP, PHONE, Opened, opened, serious_faults
from tests.browser.fake_runs import SCRIPT, full

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ViewportSize

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
expect = sync_api.expect
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on this machine")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything a report reads, hostile names among it; and the report on it."""
    suite = full(tmp_path_factory.mktemp("page"))
    make_report(suite)
    return suite


@pytest.fixture(scope="module")
def desktop(browser: Browser, runs: Path) -> Opened:
    return opened(browser, (runs / "report.html").as_uri(), DESKTOP)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_opens_silently_and_fits(
    browser: Browser, runs: Path, size: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    address = (runs / "report.html").as_uri()
    result = opened(browser, address, size, scheme)
    page = result.page
    assert result.said == []
    assert [url for url in result.asked if url != address and not url.startswith("data:")] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, .toggles, svg')"
    wide += " && e.getClientRects().length"
    assert page.evaluate(f"{wide} && e.getBoundingClientRect().right > innerWidth + 1).length") == 0
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    charts = "[...document.querySelectorAll('.chart')].filter(e => !e.closest('details:not([open])'))"
    assert page.evaluate(f"{charts}.every(e => e.querySelector('svg.marks').getBoundingClientRect().width > 150)")
    page.context.close()


def test_axe_finds_no_serious_fault(browser: Browser, runs: Path) -> None:
    result = opened(browser, (runs / "report.html").as_uri(), DESKTOP)
    assert serious_faults(result.page, without=".chart svg") == []
    result.page.context.close()


@pytest.mark.slow
def test_axe_finds_no_serious_fault_in_any_chart(browser: Browser, runs: Path) -> None:
    result = opened(browser, (runs / "report.html").as_uri(), DESKTOP)
    result.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    drawn = "[...document.querySelectorAll('.chart')].every(each => each.querySelector('svg.marks'))"
    result.page.wait_for_function(drawn)
    assert serious_faults(result.page) == []
    result.page.context.close()


def test_headings_images_and_regions_have_names(desktop: Opened) -> None:
    page = desktop.page
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4, h5')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.locator("img").count() == 16 + 3  # eight directions, two ends; three test images
    assert page.evaluate("[...document.images].every(e => e.alt.length > 20 && e.naturalWidth >= 32)")
    assert page.evaluate("[...document.querySelectorAll('[role=img], [role=region], nav')].every(e => e.ariaLabel)")
    assert page.evaluate("[...document.querySelectorAll('table')].every(e => e.querySelector('th[scope]'))")
    links = page.evaluate("[...document.querySelectorAll('nav a')].map(e => e.getAttribute('href'))")
    assert len(links) == 9
    assert all(page.locator(link).count() == 1 for link in links)


def test_a_method_goes_and_comes_by_keyboard(desktop: Opened) -> None:
    page = desktop.page
    rows = page.locator("#results tbody tr:visible")
    bars = page.locator("#leaning .chart").first.locator("path[aria-roledescription=bar]")
    assert (rows.count(), bars.count()) == (4, 4)
    box = page.get_by_role("checkbox", name="asd", exact=True)
    box.focus()
    page.keyboard.press("Space")
    expect(bars).to_have_count(3)
    assert rows.count() == 3
    assert not box.is_checked()
    page.keyboard.press("Space")
    expect(bars).to_have_count(4)
    page.get_by_role("button", name="none", exact=True).press("Enter")
    assert rows.count() == 0
    assert page.locator("#mechanism .teacher .chart:visible").count() > 3  # a teacher belongs to no method
    page.get_by_role("button", name="all", exact=True).press("Enter")
    expect(bars).to_have_count(4)
    assert desktop.said == []


def test_an_answer_shows_where_its_network_looks(desktop: Opened) -> None:
    page = desktop.page
    card = page.locator(".card").first
    assert card.locator(".answer").count() == 2 + 4  # two teachers, four students

    def shown() -> list[str]:
        bright = "a => getComputedStyle(a.querySelector('.map')).opacity === '1'"
        names = f"answers => answers.filter({bright}).map(a => a.querySelector('.who').innerText)"
        return list(card.locator(".answer").evaluate_all(names))

    page.mouse.move(0, 0)
    assert shown() == ["T_early"]
    card.locator(".answer", has_text="T_final").click()
    page.mouse.move(0, 0)
    expect(card.locator(".answer", has_text="T_final").locator(".map")).to_have_css("opacity", "1")
    assert shown() == ["T_final"]
    over = card.locator(".answer", has_text="T_final").locator(".map").bounding_box()
    assert over == card.locator(".look span").bounding_box()  # it lies on the second picture
    cut = (
        "e => { const own = e.textContent; e.textContent = '100 %'; const cut = e.scrollWidth > e.clientWidth;"
        " e.textContent = own; return cut; }"
    )
    assert not card.locator(".sure").first.evaluate(cut)
    assert not card.locator(".who").last.evaluate(cut.replace("100 %", "contrast+hint"))
    assert not card.locator(".said").last.evaluate(cut.replace("100 %", "✗ sweet pepper"))
    card.locator("img").click()  # the next one
    assert shown() == ["ce"]
    card.locator(".answer", has_text="asd").hover()
    expect(card.locator(".answer", has_text="ce").locator(".map")).to_have_css("opacity", "0")
    assert shown() == ["asd"]
    page.mouse.move(0, 0)
    card.get_by_role("radio").nth(1).check()
    page.mouse.move(0, 0)
    card.get_by_role("radio").nth(1).focus()
    page.keyboard.press("ArrowUp")
    expect(card.locator(".answer", has_text="T_early").locator(".map")).to_have_css("opacity", "1")
    assert "T_early: " in (card.get_by_role("radio").nth(0).get_attribute("aria-label") or "")
    assert desktop.said == []


@pytest.mark.parametrize("size", [PHONE, {"width": 1280, "height": 800}], ids=["phone", "laptop"])
def test_images_answers_and_maps_are_in_view_and_follow_a_finger(
    browser: Browser, runs: Path, size: ViewportSize
) -> None:
    page = browser.new_context(viewport=size, has_touch=True, reduced_motion="reduce").new_page()
    page.goto((runs / "report.html").as_uri())
    card = page.locator(".card").first
    for part in (card.locator("img"), card.locator(".look span"), card.locator(".answer").nth(2)):
        expect(part).to_be_in_viewport(ratio=1)
    expect(card.locator(".map").first).to_have_css("opacity", "1")
    card.locator("img").tap()
    expect(card.locator(".map").nth(1)).to_have_css("opacity", "1")
    page.context.close()


def test_a_word_is_explained_by_keyboard(desktop: Opened) -> None:
    page = desktop.page
    term = page.get_by_role("button", name="T_early", exact=True)
    meaning = page.locator(f"#{term.get_attribute('popovertarget')}")
    expect(meaning).to_be_hidden()
    term.press("Enter")
    expect(meaning).to_contain_text("the easy cues")
    expect(meaning).to_be_in_viewport(ratio=1)
    page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()
    assert page.get_by_role("button", name="T_early", exact=True).count() == 1


def test_a_table_is_sorted_by_its_heads(desktop: Opened) -> None:
    page = desktop.page
    head = page.locator("#results th", has_text="mCE").first
    cells = "[...document.querySelectorAll('#results tbody tr')].map(r => Number(r.cells[n].dataset.value))"
    column = head.evaluate("e => e.cellIndex")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    values = page.evaluate(cells.replace("n]", f"{column}]"))
    assert values == sorted(values, reverse=True)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.evaluate(cells.replace("n]", f"{column}]")) == sorted(values)
    name = page.locator("#results th", has_text="method").first
    name.get_by_role("button").click()
    assert (name.get_attribute("aria-sort"), head.get_attribute("aria-sort")) == ("ascending", "none")


def test_folded_parts_are_drawn_when_opened(desktop: Opened) -> None:
    page = desktop.page
    assert page.locator("details[open] summary").all_inner_texts() == ["Teacher beside kd", "Teacher beside asd"]
    part = page.locator("details", has=page.locator("summary", has_text=f"Teacher beside {SCRIPT}"))
    assert part.locator("svg.marks").count() == 0
    part.locator("summary").press("Enter")
    expect(part.locator("svg.marks")).to_have_count(2)
    box = part.locator("svg.marks").first.bounding_box()
    assert box is not None
    assert box["width"] > 300
    assert desktop.said == []


def test_numbers_are_told_where_one_points(desktop: Opened) -> None:
    page = desktop.page
    bar = page.locator("#leaning .chart path[aria-roledescription=bar]").first
    bar.scroll_into_view_if_needed()
    bar.hover(force=True)
    tooltip = page.locator("#vg-tooltip-element.visible")
    expect(tooltip).to_contain_text("accuracy")
