"""A real browser, pages in it with what they say and ask for, and axe-core, which finds faults of accessibility."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
WAIT = 60_000  # milliseconds; a machine may be busy
PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}


@dataclass
class Opened:
    """A page, what its console said, and what it asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module", name="browser")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT)
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


def opened(
    browser: Browser,
    address: str,
    size: ViewportSize,
    scheme: Literal["light", "dark"] = "light",
    ready: str = "body[data-drawn]",
) -> Opened:
    page = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce").new_page()
    page.set_default_timeout(WAIT)
    result = Opened(page)
    page.on("console", lambda message: result.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: result.said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: result.said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: result.asked.append(request.url))
    page.goto(address)
    page.wait_for_selector(ready)
    return result


def serious_faults(page: Page, without: str | None = None) -> list[str]:
    """What axe-core finds serious or critical on a page as it is now, without the elements of a selector."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed: pip install '.[dev]'")
    page.evaluate(files(package).joinpath("axe.min.js").read_text(encoding="utf-8"))
    faults = page.evaluate("without => axe.run({exclude: without ? [[without]] : []})", without)["violations"]
    return [
        f"{fault['id']}: {[node['html'][:200] for node in fault['nodes']]}"
        for fault in faults
        if fault["impact"] in ("serious", "critical")
    ]
