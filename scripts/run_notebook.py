"""Run a notebook in an empty folder and write its outputs back: scripts/run_notebook.py examples/quickstart.ipynb

Needs nbclient and ipykernel. Outputs above LARGEST, like a whole report page, are left out of the file.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

LARGEST = 20_000  # characters of an output that is kept in the file
SECONDS = 600  # a cell may take


def run(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of a run in this folder."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def slim(notebook: Any) -> None:
    """Without large outputs, times and ids, so that two runs differ in their numbers alone."""
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.clear()
        for output in cell.get("outputs", []):
            output.pop("metadata", None) if output.output_type == "stream" else output.metadata.clear()
            for kind in [kind for kind, text in output.get("data", {}).items() if len(text) > LARGEST]:
                del output.data[kind]
    notebook.metadata = {"language_info": {"name": "python"}}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as empty:
        result = run(place, Path(empty))
    slim(result)
    nbformat.write(result, place)  # type: ignore[no-untyped-call]
