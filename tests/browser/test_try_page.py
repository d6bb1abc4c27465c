"""`asd try` in a real browser: drop an image, move a slider, look for disagreement, save a case; all stays here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from antishortcut.training.pipeline import distill
from tests.browser.conftest import CHROMIUM, DESKTOP, PHONE, opened, serious_faults
from tests.conftest import tiny_session
from tests.data.official import picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
pytest.importorskip("gradio", reason="gradio is not installed: pip install '.[app]'")
expect = sync_api.expect
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on this machine")
CARDS = ".cards article"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher and a student, hardly trained, so they disagree."""
    recipe, session = tiny_session(tmp_path_factory.mktemp("try"))
    return distill(recipe, session, method="kd", seed=1, suite="demo").folder(session.runs).parent


@pytest.fixture(scope="module")
def address(suite: Path) -> Iterator[str]:
    """The command as a shell starts it, behind a proxy that leads nowhere; Ctrl-C ends it."""
    environment = os.environ | {"http_proxy": "http://127.0.0.1:9", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "antishortcut", "try", str(suite / "kd-s1"), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:\d+/)", server.stdout.readline())
        assert found is not None
        yield found[1]
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 128 + signal.SIGINT


def test_a_person_tries_the_networks(browser: Browser, suite: Path, address: str, tmp_path: Path) -> None:
    result = opened(browser, address, DESKTOP, ready=CARDS)
    page, cards = result.page, result.page.locator(CARDS)
    assert page.locator(f"{CARDS} h2").all_inner_texts() == ["The image", "T_final", "T_early", "kd-s1"]
    assert cards.nth(1).locator("li").count() == 5
    assert serious_faults(page) == []

    picture(tmp_path / "own.png", size=(50, 40))
    page.set_input_files("#drop input[type=file]", tmp_path / "own.png")
    expect(cards.first).to_contain_text("An image of yours")
    answer = "document.querySelector('.cards ol').innerHTML"
    before = page.evaluate(answer)
    blur = page.get_by_role("slider", name="Blur:")
    blur.focus()
    page.keyboard.press("End")
    page.wait_for_function(f"before => {answer} !== before", arg=before)

    page.get_by_role("button", name="Show me images where they disagree").click()
    expect(page.locator("#note")).to_contain_text("with different answers")
    expect(page.locator(".said")).to_contain_text("different answers")
    expect(blur).to_have_value("0")  # answers as the search saw them

    page.get_by_role("button", name="Save this case").click()
    expect(page.locator("#note")).to_contain_text("cases/1")
    case = json.loads((suite / "cases" / "1" / "case.json").read_text())
    assert [each["network"] for each in case["answers"]] == ["T_final", "T_early", "kd-s1"]
    assert len({each["top"][0][0] for each in case["answers"]}) > 1

    (tmp_path / "bad.png").write_text("no image")
    page.set_input_files("#drop input[type=file]", tmp_path / "bad.png")
    expect(page.get_by_text("cannot read the image bad.png")).to_be_visible()
    page.set_input_files("#drop input[type=file]", tmp_path / "own.png")  # there is room for the next
    expect(cards.first).to_contain_text("An image of yours")
    assert [line for line in result.said if line.startswith("error")] == []
    assert {url.split("/")[2] for url in result.asked if url.startswith("http")} == {address.split("/")[2]}
    page.context.close()


def test_on_a_phone_the_answers_stay_in_view(browser: Browser, address: str) -> None:
    result = opened(browser, address, PHONE, "dark", ready=CARDS)
    page = result.page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious_faults(page) == []
    page.get_by_role("slider", name="Hue").scroll_into_view_if_needed()
    page.mouse.wheel(0, 2000)
    expect(page.locator(".said")).to_be_in_viewport()
    page.context.close()
