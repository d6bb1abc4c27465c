"""Pages of results that can be made again from the runs that are kept with them."""

import runpy
import shutil
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/results/shortcuts"


def test_tables_of_planted_shortcuts_are_those_of_the_kept_runs(tmp_path: Path) -> None:
    with tarfile.open(PAGES / "runs.tar.xz") as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    made = tmp_path / "results" / "shortcuts"
    made.mkdir(parents=True)
    for page in (PAGES.with_suffix(".md"), PAGES.parent.with_suffix(".md")):
        shutil.copy(page, tmp_path / page.relative_to(ROOT / "docs"))
    runpy.run_path(str(ROOT / "benchmarks/shortcuts.py"))["write_pages"](tmp_path / "runs", made)
    for page in (*made.iterdir(), made.with_suffix(".md"), made.parent.with_suffix(".md")):
        assert page.read_text() == (ROOT / "docs" / page.relative_to(tmp_path)).read_text(), page.name
