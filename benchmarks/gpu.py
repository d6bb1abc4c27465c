"""Write docs/results/gpu/index.md from the files of `asd selftest` beside it: `python benchmarks/gpu.py`."""

import json
from pathlib import Path
from typing import Any

from page import table

from antishortcut.experiments.selftest import FORMAT, rows

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results" / "gpu"
HEAD = """# GPUs

What `asd selftest --device cuda` (or `make gpu`) found on real cards: correctness against the CPU, resume, several
processes, speed, memory. To contribute yours, copy its JSON file to `docs/results/gpu`, run `python benchmarks/gpu.py`,
and open a pull request with both files. This page is generated from the files.
"""
NONE = "No GPU results have been contributed yet."


def page(results: dict[str, dict[str, Any]]) -> str:
    """The page of these files, by name."""
    return "\n".join(
        [HEAD, *(_section(name, result) for name, result in results.items())] if results else [HEAD, NONE, ""]
    )


def _section(name: str, result: dict[str, Any]) -> str:
    if result.get("format") != FORMAT:
        raise SystemExit(f"{name}: not a file of this version's asd selftest; make it again")
    machine = result["machine"]
    cards = f"{machine['cards']} × " if machine["cards"] > 1 else ""
    ours = result["versions"]["antishortcut"]
    how = f"{result['made']}, {machine['processor']}, torch {machine['torch']}, antishortcut {ours}"
    quick = ", `--quick`" if result["quick"] else ""
    body = table(("part", "", ""), ((part, passed, line.replace("|", "/")) for part, passed, line in rows(result)))
    return f"## {cards}{machine['device']}\n\n{how}{quick} ([file]({name})).\n\n{body}\n"


def main() -> None:
    results = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    (FOLDER / "index.md").write_text(page(results))


if __name__ == "__main__":
    main()
