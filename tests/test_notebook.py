"""examples/quickstart.ipynb runs from start to end, and what is committed is the output of such a run."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_committed_notebook_has_outputs_and_no_machine_in_them() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    code = cells(json.loads(text))
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert all(cell["outputs"] for cell in code[1:])
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]
    printed = ["".join(output["text"]) for cell in code for output in cell["outputs"] if "text" in output]
    assert len("".join(printed).splitlines()) < 40  # a bar is one output that changes, not a line for every step


def test_the_site_shows_code_and_output() -> None:
    pytest.importorskip("mkdocs")
    shown = runpy.run_path(str(ROOT / "theme" / "hooks.py"))["notebook_markdown"](NOTEBOOK)
    assert "```python\nfrom antishortcut import distill\n" in shown
    assert "'model.onnx'" in shown
    assert "<progress" not in shown
    assert not re.search(r"^# ", re.sub(r"```.*?```", "", shown, flags=re.DOTALL), re.MULTILINE)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel", "onnx", "altair"):
        pytest.importorskip(name)
    script = runpy.run_path(str(ROOT / "scripts" / "run_notebook.py"))
    notebook = script["run"](NOTEBOOK, tmp_path)
    code = cells(notebook)
    bars = [output for output in code[1]["outputs"] if "<progress" in output.get("data", {}).get("text/html", "")]
    assert 0 < len(bars) < 10
    assert not [output for cell in code for output in cell["outputs"] if output.get("name") == "stderr"]
    page = next(output for output in code[-2]["outputs"] if "data" in output)
    assert page["data"]["text/html"].startswith("<iframe srcdoc=")
    committed = cells(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    assert [cell["source"] for cell in code] == ["".join(cell["source"]) for cell in committed]
    script["slim"](notebook)
    assert len(json.dumps(notebook)) < 300_000
