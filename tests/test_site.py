"""The site of the docs: built strictly, then crawled as it lies on disk, and opened in a browser from there."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest

from antishortcut.methods import METHODS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[docs]'")
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCES = {path.relative_to(DOCS).with_suffix(".html").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
WORDS = {
    "a", "abbr", "article", "blockquote", "br", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "hr",
    "img", "li", "nav", "ol", "p", "path", "pre", "small", "span", "strong", "sub", "sup", "svg", "table", "tbody",
    "td", "th", "thead", "tr", "ul",
}  # fmt: skip


class Page(HTMLParser):
    """What the tests need to know of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.loaded, self.tags, self.alts = (list[str]() for _ in range(4))  # tags: inside the article
        self.title = self.text = ""  # text: of the article, without code
        self.open = list[tuple[str, str]]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag == "link" and attributes.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(attributes["href"])
        elif "src" in attributes:
            self.loaded.append(attributes["src"])
        if tag == "img":
            self.alts.append(attributes.get("alt", ""))
        if self.within("article"):
            self.tags.append(tag)
        if tag not in VOID:
            self.open.append((tag, attributes.get("class", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            while self.open.pop()[0] != tag:  # </li> and </p> may be left out
                pass

    def handle_data(self, data: str) -> None:
        if self.within("title") and not self.within("svg"):
            self.title += data
        if self.within("article") and not self.within("code") and not self.within("a", "headerlink"):
            self.text += data

    def within(self, tag: str, kind: str = "") -> bool:
        return any(tag == name and kind in classes for name, classes in self.open)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """mkdocs itself, run strictly, checks links, anchors, and that the navigation has every page."""
    return {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_source_and_method_has_a_page(pages: dict[str, Page]) -> None:
    assert set(SOURCES) == set(pages) - {"404.html", "commands.html", "settings.html"}  # made from the code
    cards = {getattr(method, "func", method).__module__.split(".")[-1] for method in METHODS.values()}
    assert {f"methods/{card}.html" for card in cards} <= set(pages)


def test_a_new_card_joins_the_navigation(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "index.md").write_text("| `new` | [card](new.md) |\n| `kd` | [card](kd.md) | [asd](asd.md)")
    with_cards = runpy.run_path(str(ROOT / "theme" / "hooks.py"))["_with_cards"]
    assert with_cards({"Methods": "methods/*"}, tmp_path) == {
        "Methods": ["methods/index.md", "methods/new.md", "methods/kd.md", "methods/asd.md"]
    }
    assert with_cards({"Home": "index.md"}, tmp_path) == {"Home": "index.md"}
    nested = with_cards({"Reference": ["runs.md", {"Methods": "methods/*"}]}, tmp_path)["Reference"]
    assert nested == ["runs.md", with_cards({"Methods": "methods/*"}, tmp_path)]


def test_links_out_of_the_docs_lead_to_the_repository(pages: dict[str, Page]) -> None:
    home = "https://github.com/antishortcut/antishortcut"
    links = {link for page in pages.values() for link in page.links if link.startswith(home + "/")}
    assert f"{home}/blob/main/examples/plain_loop.py" in links
    assert f"{home}/tree/main/src/antishortcut/methods" in links
    for link in links:
        kind, branch, path = link.removeprefix(home + "/").split("/", 2)
        assert (kind, branch) in (("blob", "main"), ("tree", "main")), link
        assert (ROOT / path).is_dir() == (kind == "tree"), link
        assert (ROOT / path).exists(), link


def test_pages_load_nothing_from_other_hosts(site: Path, pages: dict[str, Page]) -> None:
    assert not [
        link for page in pages.values() for link in page.loaded if urlsplit(link).scheme or urlsplit(link).netloc
    ]
    assert 'data-md-component="source"' not in (site / "index.html").read_text(encoding="utf-8")  # asks api.github.com
    styles = "\n".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", styles)


def test_pages_have_titles_and_images_have_alt_text(pages: dict[str, Page]) -> None:
    titles = [page.title.strip() for name, page in pages.items() if name != "404.html"]
    assert all(titles)
    assert sorted(titles) == sorted(set(titles))
    assert all(pages[name].tags.count("h1") == 1 for name in SOURCES)
    assert sum(len(page.alts) for page in pages.values()) >= 10
    assert [name for name, page in pages.items() if not all(len(alt) > 10 for alt in page.alts)] == []


def source_of(path: Path) -> str:
    """The source of a page, with the notebooks, examples and tables that the site puts in the place of marks."""
    hooks, reference = (runpy.run_path(str(ROOT / "theme" / f"{name}.py")) for name in ("hooks", "reference"))
    text = hooks["with_files"](path.read_text(encoding="utf-8"), path.parent)
    return str(reference["complete"](text, path.relative_to(DOCS).as_posix()))


@pytest.mark.parametrize("name", SOURCES)
def test_markdown_is_rendered(pages: dict[str, Page], name: str) -> None:
    """Python-Markdown is stricter than GitHub; what it does not take for a list, a table or code would stay text."""
    source = source_of(SOURCES[name])
    page = pages[name]
    assert set(page.tags) <= WORDS, "a <word> outside code is a tag: put it into `backticks`"
    if "\n::: " in source:
        return  # the rest comes from docstrings
    prose = re.sub(r"^```.*?^```\n", "", source, flags=re.MULTILINE | re.DOTALL)
    formulas = re.findall(r"(?:\A|\n)\n((?:    .*\n|\n(?=    ))+)", prose)
    assert page.tags.count("pre") == len(re.findall(r"^```\w*\n", source, re.MULTILINE)) // 2 + len(formulas)
    assert page.tags.count("table") == len(re.findall(r"^\|[ :|-]*---[ :|-]*\|$", prose, re.MULTILINE))
    assert page.tags.count("li") >= len(re.findall(r"^(?:- |\d+\. )", prose, re.MULTILINE))
    assert not re.search(r"^(?:```|\||#+ |- |\d+\. )|\*\*|\]\(|`", page.text, re.MULTILINE)
    assert not re.search(r"\$[^$\n]+\$|```mermaid", prose), "nothing here draws formulas or graphs: write Unicode"


def test_scores_in_short_are_those_of_the_pages_of_results() -> None:
    measured = "\n".join(
        (DOCS / "results" / f"{n}.md").read_text(encoding="utf-8") for n in ("desk", "shortcuts", "speed")
    )
    text = re.sub(r"^```.*?^```\n|`[^`\n]*`", "", (DOCS / "choose.md").read_text(encoding="utf-8"), flags=re.M | re.S)
    numbers = set(re.findall(r"\b\d\.\d+", text.replace("Apache-2.0", "")))
    assert numbers
    assert {number for number in numbers if number not in measured} == set()


def test_rows_of_the_readme_are_those_of_the_tables_that_the_report_made() -> None:
    rows = {
        "`ce`": ("desk/desk-cues.md", "ce"),
        "`kd`": ("desk/desk-cues.md", "kd"),
        "`asd`": ("desk/desk-cues.md", "asd"),
        "recommended": ("shortcuts/cues.md", "contrast+hint"),
        "no early": ("shortcuts/weak.md", "contrast+hint-weak"),
    }
    shown = dict(re.findall(r"^\| student, (.*?) \|(.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M))
    for word, (table, method) in rows.items():
        (found,) = [scores for name, scores in shown.items() if word in name]
        made = re.search(
            rf"^\| {re.escape(method)} \| 5 \|(.*)$", (DOCS / "results" / table).read_text(encoding="utf-8"), re.M
        )
        assert made
        numbers = [[float(number) for number in re.findall(r"\d\.\d+", line)] for line in (found, made[1])]
        assert len(numbers[0]) == 6
        assert numbers[0] == pytest.approx(numbers[1][:6], abs=0.0055), method


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    if CHROMIUM is None:
        pytest.skip("no chromium or google-chrome on this machine")
    with sync_api.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_site_works_from_disk(browser: Browser, site: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    """Silent, nothing fetched from elsewhere, no page wider than the window, and search answers."""
    page = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme).new_page()
    page.set_default_timeout(30_000)
    text, requested = list[str](), list[str]()
    page.on("console", lambda message: text.append(message.text))
    page.on("pageerror", lambda error: text.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    for name in ("results/dense.html", "methods/asd.html", "choose.html", "index.html"):
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert page.evaluate("[...document.images].every(e => e.complete && e.naturalWidth > 0)"), name
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    if width < 500:
        page.locator("label.md-header__button[for=__search]").click()
    page.locator("input[name=query]").click()
    page.keyboard.type("suppression")
    result = page.locator(".md-search-result__link")
    result.first.wait_for()
    assert any("methods/asd.html" in str(link.get_attribute("href")) for link in result.all())
    assert text == []
    assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == []
    page.context.close()
