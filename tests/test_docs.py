"""README and docs say what is true: their Python runs, their commands exist, their links lead somewhere."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

from antishortcut.cli import app
from antishortcut.config.recipe import shipped_recipes
from antishortcut.evaluation import EVALUATIONS
from antishortcut.methods import METHODS, method_options

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_block_escapes_by_its_name(page: Path) -> None:
    """Python and commands are run; layouts have no language; tests/deployment/test_command.py runs export.md's."""
    kinds = set(re.findall(r"^ *```(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert kinds <= {"python", "sh"} | ({"py", "toml"} if page.name == "export.md" else set())


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_exist_with_these_options(page: Path) -> None:
    group = typer.main.get_command(app)
    for line in "\n".join(blocks(page, "sh")).splitlines():
        for call in re.findall(r"(?:^|&&|;|do)\s*(asd [^&;#|]*)", line):
            words = shlex.split(call.replace("$seed", "1").replace("$method", "kd"))[1:]
            command = group.commands[words[0]]  # type: ignore[attr-defined]
            if hasattr(command, "commands"):  # asd suite run
                command = command.commands[words[1]]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            assert not {word for word in words if word.startswith("--")} - known - {"--help"}, line


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_card_that_names_its_settings(name: str) -> None:
    file = getattr(METHODS[name], "func", METHODS[name]).__module__.split(".")[-1]  # named variants share a card
    card = ROOT / "docs" / "methods" / f"{file}.md"
    assert card.exists(), f"write {card}"
    assert f"`{name}`" in card.read_text(encoding="utf-8"), f"{card.name} does not name {name}"
    index = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert f"`{name}`" in index, f"index.md does not name {name}"
    assert f"({file}.md)" in index
    for setting in method_options(name, {}):
        assert f"`{setting}" in card.read_text(encoding="utf-8"), f"{card.name} does not name {setting}"


def test_the_errors_on_corruptions_are_explained_by_the_names_that_tables_show() -> None:
    text = (ROOT / "docs" / "corruptions.md").read_text(encoding="utf-8")
    for key in ("mce", "mce_all", "mce_relative"):
        assert f"`{key}`" in text
    assert EVALUATIONS["corruptions"].metrics["mce"][0] in text  # error at severity 5 (mCE)


def test_the_docs_speak_of_recipes_that_exist() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"asd (?:teach|distill) (P\d+)", text)) <= set(shipped_recipes())


@pytest.mark.parametrize("page", ["desk", "dense"])
def test_a_page_of_results_shows_what_the_report_made(page: str) -> None:
    """No row typed by hand: each is in a table that `asd report` wrote, kept under docs/results."""
    built = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/results" / page).glob("*.md"))
    rows = [
        line
        for line in (ROOT / f"docs/results/{page}.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    assert len(rows) > 12
    assert [row for row in rows if row not in built.splitlines()] == []


def test_kept_results_name_no_place_of_the_machine_they_were_made_on() -> None:
    for path in (ROOT / "docs/results").rglob("*.json"):
        named = json.loads(path.read_text(encoding="utf-8")).get("page", "")
        assert not Path(named).is_absolute(), path


def test_the_page_of_gpus_shows_the_contributed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    built = runpy.run_path(str(ROOT / "benchmarks" / "gpu.py"))
    files = {path.name: json.loads(path.read_text()) for path in sorted(built["FOLDER"].glob("*.json"))}
    assert (built["FOLDER"] / "index.md").read_text() == built["page"](files), "python benchmarks/gpu.py"


def test_the_page_of_speed_shows_what_was_measured() -> None:
    page = ROOT / "docs/results/speed.md"
    built = runpy.run_path(str(ROOT / "benchmarks" / "page.py"))
    text = page.read_text(encoding="utf-8")
    assert built["filled"](text) == text, "python benchmarks/page.py"
    assert {file for file, _ in built["MADE"].values()} == {
        path.stem for path in (ROOT / "docs/results/speed").iterdir()
    }


@pytest.mark.parametrize("page", ["docs/reliability.md", "SECURITY.md"])
def test_every_promise_names_tests_that_exist(page: str) -> None:
    tables = re.findall(r"^\| promise \| tested by \|\n.*\n((?:\|.*\n)+)", (ROOT / page).read_text(), re.MULTILINE)
    for row in "".join(tables).splitlines():
        named = re.findall(r"`(torture\.\w+|[\w/]+\.py::\w+)`", row.split(" | ")[-1])
        assert named, row
        for name in named:
            file, _, test = name.partition("::")
            place = ROOT / "tests" / file if test else ROOT / f"{file.replace('.', '/')}.py"
            assert f"\ndef {test or 'torment'}(" in place.read_text(), name
    assert len(tables) == (ROOT / page).read_text().count("| promise |") > 0
