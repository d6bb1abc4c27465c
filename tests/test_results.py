"""Pages of results that can be made again from the runs that are kept with them."""

import runpy
import shutil
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/results"


def test_tables_of_results_are_those_of_the_kept_runs(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks/results.py"))
    with tarfile.open(PAGES / "runs.tar.xz") as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    made = tmp_path / "results"
    made.mkdir()
    for page in PAGES.glob("*.md"):
        shutil.copy(page, made)
    shutil.copy(PAGES.with_suffix(".md"), tmp_path)
    script["write_pages"](tmp_path / "runs", made)
    for page in (*made.rglob("*.md"), made.with_suffix(".md")):
        assert page.read_text() == (ROOT / "docs" / page.relative_to(tmp_path)).read_text(), page.name
