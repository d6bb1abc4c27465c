"""`asd export`, and its page."""

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.cli.evaluate import FORMATS as OFFERED
from antishortcut.config.recipe import ModelSettings, load_recipe
from antishortcut.deployment import FORMATS
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.training.pipeline import Session, distill
from tests.conftest import Refusal, asd, invoke
from tests.deployment.subjects import everything, photo


def test_command_prints_what_export_json_holds(student: RunDir, tmp_path: Path) -> None:
    assert set(OFFERED) == set(FORMATS)
    shown = asd("export", str(student.path), "--to", "torch", "--out", str(tmp_path / "t"), "--threads", "1")
    teacher = RunDir(student.path.parent.parent / "teachers" / str(student.read()[0].teacher))
    (state,) = [entry for entry in Trajectory(teacher).entries if "100%" in entry["labels"]]
    assert shown["teacher"] == {
        "parameters": teacher.result()["parameters"],
        "bytes": (teacher.snapshots / state["file"]).stat().st_size,
    }
    assert shown["parameters"] == student.result()["parameters"]
    assert shown["files"] == {"model.pt2": (tmp_path / "t" / "model.pt2").stat().st_size}
    assert json.loads((tmp_path / "t" / "export.json").read_text()) == {
        key: value for key, value in shown.items() if key not in ("out", "teacher")
    }
    words = ["export", str(student.path), "--to", "safetensors", "--out", str(tmp_path / "s")]
    text = invoke(*words).stdout
    assert text.splitlines()[-1] == str(tmp_path / "s")
    assert "its teacher cnn-4-16" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--to", "onx"], "did you mean 'onnx'"),
        (["RUN", "--to", "timm"], "cnn-2-16 is not a timm model"),
        (["RUN", "--to", "safetensors", "--embedding"], "--embedding is for onnx and torch"),
        (["RUN", "--to", "onnx", "--out", "x.onnx"], "name a folder, x;"),
        (["RUN", "--to", "onnx", "--state", "15%"], "final state only"),
        (["nothing", "--to", "onnx"], "not a run folder"),
        (["BEGUN", "--to", "onnx"], "is not finished"),
        (["RUN", "--to", "onnx"], "needs onnxruntime: pip install 'antishortcut[export]'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    student: RunDir, here: Path, words: list[str], message: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "begun"):
        shutil.copytree(student.path, here / "r" / "s" / name)
    (here / "r" / "s" / "begun" / "result.json").unlink()
    places = {"RUN": "r/s/run", "BEGUN": "r/s/begun"}
    if "onnxruntime" in message:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    before = everything(here)
    assert message in refusal("export", *(places.get(word, word) for word in words))
    assert everything(here) == before


def test_every_block_of_the_docs_page_runs(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "py", "py", "toml", "sh"]
    monkeypatch.chdir(tmp_path)
    few = ["epochs=1", "teacher.epochs=1", "data.options.count=64", "data.options.test_count=16", "teacher.keep=[15]"]
    here = Session(Path("runs"), execution=session.execution, quiet=True)
    run = distill(load_recipe("cues", few), here, method="asd", seed=1, suite="cues")
    Path("more-photos").mkdir()
    photo(Path("photo.jpg")), photo(Path("more-photos/1.jpg"))
    names: dict[str, Any] = {}
    for kind, block in blocks:
        if kind == "py":
            exec(compile(block, "docs/export.md", "exec"), names)
            assert tuple(names["logits"].shape) == (3, 10)
        elif kind == "toml":
            model = ModelSettings.model_validate(tomllib.loads(block)["student"])
            weights = build_model(model, 10, 32).state_dict()
            saved = load_file(RunDir(run.folder(Path("runs"))).student)
            assert all(torch.equal(weights[key], value) for key, value in saved.items())
        else:
            for line in block.replace("<hash>", str(run.teacher)).splitlines():
                invoke(*shlex.split(line, comments=True)[1:])
    assert tuple(names["embedding"].shape) == (3, 64)
    assert "Size and latency" in Path("runs/cues/table.md").read_text()
