"""Write docs/results/standard.md from the runs of the suite `standard`: `python benchmarks/standard.py RUNS [PAGE]`.

The page appears with the first finished rows. Its tables are those of `asd report RUNS/standard`.
"""

import sys
from pathlib import Path

from antishortcut.report.collect import collect
from antishortcut.report.table import ResultTable
from antishortcut.report.text import write_markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "standard.md"
HEAD = """# The standard pair

resnet56 → resnet20 on CIFAR-100: all 50,000 training images, 5,000 of them held out, 30 epochs
(`asd suite run standard`). Made by `python benchmarks/standard.py RUNS`.

"""


def main(runs: Path, page: Path = PAGE) -> None:
    table = ResultTable(collect(runs / "standard"))
    if not table.cells:
        raise SystemExit(f"{runs}/standard has no finished row yet: asd suite run standard")
    write_markdown(table, page)
    page.write_text(HEAD + page.read_text().partition("\n\n")[2])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
