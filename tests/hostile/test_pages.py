"""Names that are markup, code or terminal commands: pages, tables and terminals show them as words."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from antishortcut.cli.options import print_json, table, tell
from antishortcut.errors import UserError, one_line, printable
from antishortcut.progress import ProgressBar
from antishortcut.report import make_report
from antishortcut.report.text import plain
from tests.browser.conftest import CHROMIUM, DESKTOP, Opened, chromium, opened  # noqa: F401 (chromium is a fixture)
from tests.browser.fake_runs import TEACHER, directions, mechanism, score, scores, student, teacher_run
from tests.conftest import Ended

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = (
    "<script>window.ran=1</script>",
    '<img src=x onerror="window.ran=1">',
    '"><svg onload=window.ran=1>',
    "</script><script>window.ran=1</script>",
    "'-window.ran=1-'",
    "javascript:window.ran=1",
    "<!--<script>",
    "{{7*7}}{% raw %}",
    "&lt;b&gt;<b id=injected>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "a|b\nc\r\nd\\|e",
    "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066",
    "![x](https://evil.example/x.png) [y](javascript:1) `code`",
    "=cmd|'/C calc'!A0",
    "\ud800 lone",
)
SHOWN = (0, 3, 11, 12)  # as the names of runs
DRAWN = {"svg", "g", "path", "text", "tspan", "rect", "line", "defs", "clipPath", "linearGradient", "stop"}
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each hostile name, which is also that of a class, a group, a term, a set, an option and a machine."""
    root = tmp_path_factory.mktemp("hostile")
    chance = random.Random(0)
    classes = list(HOSTILE)[:10]
    for number, raw in enumerate(HOSTILE[at] for at in SHOWN):
        name = raw.encode("utf-8", "replace").decode()  # a run's name is UTF-8, says pydantic
        folder = student(root / "P2" / f"run-{number}-s1", name, 1, 0.5, teacher=TEACHER, options={name: name})
        folder.log({"step": 3, "epoch": 2.0, "lr": 0.1, "loss": 1.0, "terms": {raw: 1.0}})
        if number == 0:
            scores(folder, 0.5, chance)
            mechanism(folder, 0.5, chance, classes)
        grouped = {each: {"accuracy": 0.5, "count": each} for each in HOSTILE}
        score(folder, "groups", {raw: 0.5, "worst_group": 0.1}, groups=grouped)
        named = dict.fromkeys(HOSTILE, 0.5)
        score(folder, "clean", named, source=raw, fingerprint=raw, classes=named, machine=raw)
    teacher_run(root / "teachers" / TEACHER)
    directions(root / "teachers" / TEACHER, classes)
    for number, raw in enumerate(HOSTILE[:13]):
        broken = root / "P2" / raw.replace("/", "∕")[:100]
        broken.mkdir()
        (broken / "run.json").write_text(json.dumps({"schema": raw, "run": {}, "execution": {}}) if number % 2 else "{")
    return root / "P2"


@pytest.fixture(scope="module")
def made(runs: Path) -> dict[str, Any]:
    return make_report(runs)


INJECTED = (
    "[...document.querySelectorAll('#injected, base, [onerror], [onload], meta[http-equiv=refresh], iframe, object,"
    ' a[href^=javascript], main img:not([src^="data:"])\')].length'
)


def shown(browser: Browser, path: Path) -> Opened:
    """A page that ran nothing and has no element of theirs."""
    result = opened(browser, path.as_uri(), DESKTOP)
    result.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert result.said == []
    assert result.page.evaluate("window.ran === undefined")
    assert result.page.evaluate(INJECTED) == 0
    return result


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on this machine")
def test_the_report_runs_nothing_and_has_no_element_of_theirs(
    browser: Browser, runs: Path, made: dict[str, Any]
) -> None:
    result = shown(browser, runs / "report.html")
    page, address = result.page, (runs / "report.html").as_uri()
    assert page.locator("script").count() == 3
    assert [url for url in result.asked if url != address and not url.startswith("data:")] == []
    assert page.locator("th", has_text="onerror").count() > 0  # they are there, as words
    page.context.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on this machine")
def test_the_audit_runs_nothing_and_has_no_element_of_theirs(browser: Browser, tmp_path: Path) -> None:
    from antishortcut.analysis.audit import audit
    from antishortcut.report.audit_page import write_page
    from tests.analysis.test_audit import network, sets_of

    for names in (HOSTILE[:3], (HOSTILE[3], HOSTILE[8], HOSTILE[11])):
        states = {names[0]: network(c4=4.0, c5=2.0), names[1]: network(c4=3.0)}
        results = audit(network(), states, sets_of(classes=names), tmp_path, early=names[0], student=network())
        write_page(results | {"model": names[2], "files": {names[0]: names[1]}}, tmp_path)
        shown(browser, tmp_path / "audit.html").page.context.close()


def test_markdown_keeps_names_in_their_cells(runs: Path, made: dict[str, Any]) -> None:
    for name in ("table.md", "classes.md"):
        text = (runs / name).read_text()
        assert not STEERS.search(text)
        assert not re.search(r"<(?!/?(sub|sup)\b)[a-zA-Z!/]", text)
        assert not re.search(r"\[[^\]]*\]\(", text)  # links and pictures
        blocks = [block.splitlines() for block in re.split(r"\n\s*\n", text) if block.startswith("|")]
        assert blocks
        for block in blocks:
            cells = {len(re.split(r"(?<!\\)\|", line)) for line in block}
            assert len(cells) == 1, block


def test_the_page_steers_no_terminal_or_editor(runs: Path, made: dict[str, Any]) -> None:
    names = {entry["run"] for entry in made["unfinished"]}
    assert any(r"\x1b[2J" in name for name in names)  # folders are named so, and are listed
    for name in ("report.html", "table.tex"):
        assert not re.search(r"\x1b|[\u202a-\u202e\u2066-\u2069]", (runs / name).read_text()), name


def test_figures_hold_no_element_of_theirs(runs: Path, made: dict[str, Any]) -> None:
    figures = list((runs / "figures").glob("*.svg"))
    assert figures
    for path in figures:
        for element in ElementTree.fromstring(path.read_text()).iter():
            assert element.tag.rpartition("}")[2] in DRAWN, path
            assert not [name for name in element.attrib if name.startswith("on")], path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_markdown(name: str) -> None:
    text = plain(name)
    assert "\n" not in text
    assert not STEERS.search(text)
    assert not re.search(r"<|(?<!\\)\||\[|`", text)
    assert not re.search(r"\\(?!\|)", text)  # a backslash of theirs would unmask ours


def test_terminals_are_not_steered(runs: Path, ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for words in ([], ["--json"]):
        out, error, code = ended("report", runs, *words)
        assert not code
        assert not STEERS.search(out + error)
    assert json.loads(out)["runs"] == len(SHOWN)


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_prints_a_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table(name, ["a", name], [(name, 1.0), (None, 2)])
    tell(name)
    print_json({name: [name]})
    ProgressBar(name, 3).say(name)
    message = capsys.readouterr()
    assert not STEERS.search(message.out + message.err)
    assert json.loads(message.out[message.out.index("{\n") :]) == {name: [name]}
    error = UserError(f"no file {name}")
    assert "\n" not in str(error)
    assert not STEERS.search(str(error))


def test_words_of_other_languages_stay_as_they_are() -> None:
    for text in ("Ärger – 日本語 ± −0.5 « кот »", "naïve\u00a0café"):
        assert printable(text) == text
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("x" * 10_000).count("x") < 2_000
