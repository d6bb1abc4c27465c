"""What the site needs beyond mkdocs.yml: cards in the navigation, links to files elsewhere, notebook, examples."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

CARDS = "methods/*"
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
NOTEBOOK = re.compile(r"^<!-- notebook: (\S+) -->$", re.MULTILINE)
EXAMPLE = re.compile(r"^<!-- code: (\S+) -->$", re.MULTILINE)
UPWARD = re.compile(r"(?<=\]\()(?:\.\./)+[^)\s#]*")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A card joins by its line in methods/index.md, which a method has anyway; its first heading names it."""
    config.nav = [_with_cards(entry, Path(config.docs_dir)) for entry in config.nav or []]
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Any) -> str:
    """Links that leave docs/ lead to the repository; broken ones stay as they are, for mkdocs to complain of.

    And `a\\|b` in a table: GitHub wants the pipe escaped inside code too, Python-Markdown would show the backslash.
    """
    source = Path(page.file.abs_src_path or "")
    docs = Path(config.docs_dir).resolve()

    def address(link: re.Match[str]) -> str:
        target = (source.parent / link[0]).resolve()
        if target.is_relative_to(docs) or not (target.exists() and target.is_relative_to(docs.parent)):
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{target.relative_to(docs.parent).as_posix()}"

    def shown(text: str) -> str:
        return CODE.sub(lambda code: code[0].replace("\\|", "|"), UPWARD.sub(address, text))

    markdown = with_files(markdown, source.parent)
    parts = FENCE.split(markdown)  # text and code in turns: code is shown as it is
    return "".join(part if number % 2 else shown(part) for number, part in enumerate(parts))


def with_files(markdown: str, folder: Path) -> str:
    """A page with the notebooks and Python files that it names in a comment."""
    markdown = NOTEBOOK.sub(lambda mark: notebook_markdown(folder / mark[1]), markdown)
    return EXAMPLE.sub(lambda mark: f"```python\n{(folder / mark[1]).read_text(encoding='utf-8')}```", markdown)


def notebook_markdown(path: Path) -> str:
    """Text, code and printed output of a notebook; its title is the page's, and bars are left out."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"^# .*\n*", "", source))
            continue
        parts.append(f"```python\n{source}\n```")
        streams = [output.get("text") or output["data"].get("text/plain", "") for output in cell["outputs"]]
        shown = [text for output, text in zip(cell["outputs"], streams, strict=True) if _is_text(output)]
        text = "\n".join("".join(lines).rstrip("\n") for lines in shown)
        parts += [f"```\n{text}\n```"] if text else []
    return "\n\n".join(parts)


def _is_text(output: dict[str, Any]) -> bool:
    return output["output_type"] in ("stream", "execute_result")


def _with_cards(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    if CARDS not in entry.values():
        return {title: [_with_cards(e, docs) for e in v] if isinstance(v, list) else v for title, v in entry.items()}
    index = (docs / "methods" / "index.md").read_text(encoding="utf-8")
    cards = dict.fromkeys(["index.md", *re.findall(r"\((\w+\.md)\)", index)])
    return {title: [f"methods/{card}" for card in cards] for title in entry}
