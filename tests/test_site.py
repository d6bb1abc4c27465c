"""The site of the docs: built strictly, then crawled as it lies on disk, and opened in a browser from there."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

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
    "img", "li", "nav", "ol", "p", "path", "pre", "span", "strong", "sub", "sup", "svg", "table", "tbody", "td", "th",
    "thead", "tr", "ul",
}  # fmt: skip


@dataclass
class Seen:
    """What a crawler needs to know of a page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)  # href of <a>
    loaded: list[str] = field(default_factory=list)  # what opening the page fetches
    menu: list[str] = field(default_factory=list)  # links of the main navigation
    tags: list[str] = field(default_factory=list)  # inside the article
    alts: list[str] = field(default_factory=list)
    title: str = ""
    text: str = ""  # of the article, code left out


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.open = Seen(), list[tuple[str, str]]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        inputs = {name: value or "" for name, value in attrs}
        self.seen.ids |= {inputs["id"]} if "id" in inputs else set()
        if tag == "a" and "href" in inputs:
            (self.seen.menu if self.within("nav", "md-nav--primary") else self.seen.links).append(inputs["href"])
        elif tag == "link" and inputs.get("rel") not in ("prev", "next", "canonical"):
            self.seen.loaded.append(inputs["href"])
        elif tag == "object":
            self.seen.loaded.append(inputs["data"])
        elif "src" in inputs:
            self.seen.loaded.append(inputs["src"])
        if tag == "img":
            self.seen.alts.append(inputs.get("alt", ""))
        if self.within("article"):
            self.seen.tags.append(tag)
        if tag not in VOID:
            self.open.append((tag, inputs.get("class", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            while self.open.pop()[0] != tag:  # </li> and </p> may be left out
                pass

    def handle_data(self, data: str) -> None:
        if self.within("title") and not self.within("svg"):
            self.seen.title += data
        if self.within("article") and not self.within("code") and not self.within("a", "headerlink"):
            self.seen.text += data

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
def pages(site: Path) -> dict[str, Seen]:
    def read(path: Path) -> Seen:
        reader = Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        return reader.seen

    return {path.relative_to(site).as_posix(): read(path) for path in site.rglob("*.html")}


def place(site: Path, page: str, link: str) -> tuple[str, str]:
    """File and anchor, relative to the site, that a link of a page leads to."""
    split = urlsplit(link)
    path = unquote(split.path)
    start = site if path.startswith("/") else (site / page).parent  # 404.html counts from the root
    target = (start / path.lstrip("/")).resolve() if path else site / page
    target = target / "index.html" if target.is_dir() else target
    return os.path.relpath(target, site), unquote(split.fragment)


def foreign(link: str) -> bool:
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def test_every_page_is_in_the_navigation(site: Path, pages: dict[str, Seen]) -> None:
    menu = [place(site, "index.html", link)[0] for link in pages["index.html"].menu]
    listed = [name for name in dict.fromkeys(menu) if name in SOURCES]
    assert set(listed) == set(SOURCES) == set(pages) - {"404.html"}
    assert listed[:3] == ["index.html", "quickstart.html", "own-data.html"]
    cards = {getattr(method, "func", method).__module__.split(".")[-1] for method in METHODS.values()}
    assert {f"methods/{card}.html" for card in cards} <= set(listed)


def test_a_new_card_joins_by_its_line_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "index.md").write_text("| `new` | [card](new.md) |\n| `kd` | [card](kd.md) | [asd](asd.md)")
    with_cards = runpy.run_path(str(ROOT / "theme" / "hooks.py"))["_with_cards"]
    assert with_cards({"Methods": "methods/*"}, tmp_path) == {
        "Methods": ["methods/index.md", "methods/new.md", "methods/kd.md", "methods/asd.md"]
    }
    assert with_cards({"Home": "index.md"}, tmp_path) == {"Home": "index.md"}


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[str, Seen]) -> None:
    broken, reached = [], {"index.html", "404.html"}
    for page, outputs in pages.items():
        for link in [*outputs.links, *outputs.menu, *outputs.loaded]:
            if foreign(link):
                continue
            name, anchor = place(site, page, link)
            if not (site / name).is_file() or (anchor and anchor not in pages[name].ids):
                broken.append(f"{page}: {link}")
            elif link in outputs.links and name != page:
                reached.add(name)
    assert broken == []
    assert set(pages) - reached == set(), "only the navigation leads there"


def test_links_that_leave_the_docs_lead_to_the_repository(pages: dict[str, Seen]) -> None:
    home = "https://github.com/antishortcut/antishortcut"
    result = {link for outputs in pages.values() for link in outputs.links if link.startswith(home + "/")}
    assert f"{home}/blob/main/examples/plain_loop.py" in result
    assert f"{home}/tree/main/src/antishortcut/methods" in result
    for link in result:
        kind, branch, path = link.removeprefix(home + "/").split("/", 2)
        assert (kind, branch) in (("blob", "main"), ("tree", "main")), link
        assert (ROOT / path).is_dir() == (kind == "tree"), link
        assert (ROOT / path).exists(), link


def test_pages_fetch_nothing_from_elsewhere(site: Path, pages: dict[str, Seen]) -> None:
    assert {link for outputs in pages.values() for link in outputs.loaded if foreign(link)} == set()
    assert 'data-md-component="source"' not in (site / "index.html").read_text(encoding="utf-8")  # asks api.github.com
    styles = "\n".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", styles)


def test_pages_have_titles_and_images_have_words(pages: dict[str, Seen]) -> None:
    titles = [outputs.title.strip() for name, outputs in pages.items() if name != "404.html"]
    assert all(titles)
    assert sorted(titles) == sorted(set(titles))
    assert all(pages[name].tags.count("h1") == 1 for name in SOURCES)
    assert sum(len(outputs.alts) for outputs in pages.values()) >= 10
    assert [name for name, outputs in pages.items() if not all(len(alt) > 10 for alt in outputs.alts)] == []


@pytest.mark.parametrize("name", SOURCES)
def test_markdown_came_through(pages: dict[str, Seen], name: str) -> None:
    """Python-Markdown is stricter than GitHub; what it does not take for a list, a table or code would stay text."""
    source = SOURCES[name].read_text(encoding="utf-8")
    outputs = pages[name]
    assert set(outputs.tags) <= WORDS, "a <word> outside code is a tag: put it into `backticks`"
    prose = re.sub(r"^```.*?^```\n", "", source, flags=re.MULTILINE | re.DOTALL)
    formulas = re.findall(r"(?:\A|\n)\n((?:    .*\n|\n(?=    ))+)", prose)
    assert outputs.tags.count("pre") == len(re.findall(r"^```\w*\n", source, re.MULTILINE)) // 2 + len(formulas)
    assert outputs.tags.count("table") == len(re.findall(r"^\|[ :|-]*---[ :|-]*\|$", prose, re.MULTILINE))
    assert outputs.tags.count("li") >= len(re.findall(r"^(?:- |\d+\. )", prose, re.MULTILINE))
    assert not re.search(r"^(?:```|\||#+ |- |\d+\. )|\*\*|\]\(|`", outputs.text, re.MULTILINE)
    assert not re.search(r"\$[^$\n]+\$|```mermaid", prose), "nothing here draws formulas or graphs: write Unicode"


def test_answers_have_links_and_numbers_of_other_pages() -> None:
    faq = (DOCS / "faq.md").read_text(encoding="utf-8")
    pages = [ROOT / "README.md", *(path for name, path in SOURCES.items() if name != "faq.html")]
    rest = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert {number for number in re.findall(r"\d+\.\d+", faq) if number not in rest} == set()
    outputs = re.split(r"^### .*\n", re.sub(r"^## .*\n", "", faq, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    assert len(outputs) > 20
    assert [answer for answer in outputs if ".md" not in answer] == []


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
def test_it_works_from_disk(browser: Browser, site: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    """Silent, nothing fetched from elsewhere, no page wider than the window, and search answers."""
    page = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme).new_page()
    page.set_default_timeout(30_000)
    text, requested = list[str](), list[str]()
    page.on("console", lambda message: text.append(message.text))
    page.on("pageerror", lambda error: text.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    for name in ("dense.html", "methods/asd.html", "faq.html", "index.html"):
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
