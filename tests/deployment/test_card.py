"""The model card holds what the run folder holds."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from antishortcut import predict
from antishortcut.deployment import FORMATS, export
from antishortcut.evaluation import EVALUATIONS
from antishortcut.run_dir import RunDir, write_json
from antishortcut.training.pipeline import Session
from tests.deployment.subjects import photo

MECHANISM = {"cos_final", "cos_early", "projection", "projection_random"}


@pytest.mark.parametrize("form", FORMATS)
def test_code_of_the_card_runs(
    form: str,
    student: RunDir,
    of_timm: RunDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = of_timm if form == "timm" else student
    exported = export(folder, form, None, out=tmp_path / form)
    (block,) = re.findall(r"```python\n(.*?)```", (exported.place / "README.md").read_text(), re.DOTALL)
    assert block.splitlines()[: len(exported.record["load"])] == exported.record["load"]
    monkeypatch.chdir(exported.place)
    photo(Path("photo.jpg"))
    (answer,) = predict(folder.path, "photo.jpg")
    if exported.record["recipe"] is None:  # others need no package of ours
        monkeypatch.setitem(sys.modules, "antishortcut", None)
    names: dict[str, Any] = {}
    exec(compile(block, form, "exec"), names)
    assert capsys.readouterr().out.splitlines() == [f"{top['class']} {top['confidence']:.1%}" for top in answer["top"]]
    if "logits" in names:
        assert tuple(names["logits"].shape) == (1, 10)


def test_card_holds_scores_settings_and_sizes(student: RunDir, session: Session, tmp_path: Path) -> None:
    run, _ = student.read()
    exported = export(student, "safetensors", session.sets(run.data), out=tmp_path / "c")
    card = (exported.place / "README.md").read_text()
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in card.splitlines() if line[:1] == "|"]
    scores = student.scores()
    for name in ("iid", "conflict", "uncorrelated"):
        assert (name, "accuracy", f"{scores[name]['values']['accuracy']:.4f}", "40", "the data's own") in rows
    last = student.result()["last"]
    assert ("iid", "accuracy", f"{last['accuracy']:.4f}", "40", "at the end of training") in rows
    facts = {row[0]: row[1] for row in rows if len(row) == 2}
    assert facts["teacher"].startswith(f"cnn-4-16, 1 epoch, hash {run.teacher}")
    assert facts["teacher"].endswith("states final")
    assert facts["method"].startswith("kd, ")
    assert facts["seeds"] == "training 3, data 0, teacher 0"
    assert run.hash in facts["run"]
    assert ("conflict", "shape_bias") in {row[:2] for row in rows}
    (size,) = [row for row in rows if row[0] == "cnn-2-16"]
    assert size[3] == f"{scores['cost']['values']['ms']:.3g} ms"
    assert "## Licence" in card
    (line,) = [line for line in card.splitlines() if line.startswith("Not measured: ")]
    assert {*re.findall(r"`(\S+)`", line)} == set(EVALUATIONS) - {"clean", "mechanism", "cost", "scenes", "folder"}
    mechanism = {name: value for name, value in scores["mechanism"]["values"]["aligned"].items() if name in MECHANISM}
    assert [row[1:3] for row in rows if row[0] == "mechanism"] == [
        (f"aligned {name}", f"{value:.4f}") for name, value in mechanism.items()
    ]  # a few of them, in one space
    assert "mean [0.5071, 0.4867, 0.4408]" in card  # brackets as they are
    assert "&#" not in card
    assert facts["classes"].startswith("10: A, E, H")
    for score in (student.path / "scores").iterdir():  # what is not there is not said
        shutil.move(score, tmp_path / score.name)
    try:
        bare = export(student, "safetensors", None, out=tmp_path / "bare")
    finally:
        for score in tmp_path.glob("*.json"):
            shutil.move(score, student.path / "scores" / score.name)
    card = (bare.place / "README.md").read_text()
    for words in ("Latency was not measured", "`clean`", "it was checked on noise"):
        assert words in card
    assert "shape_bias" not in card


def test_errors_on_corruptions_say_at_which_severity(student: RunDir, tmp_path: Path) -> None:
    copy = shutil.copytree(student.path, tmp_path / "runs" / "s" / "kd-s3")
    values = {"mce": 0.75, "mce_all": 0.5}
    write_json(copy / "scores" / "corruptions.json", {"values": values, "count": 40, "source": "generated"})
    card = (export(RunDir(copy), "safetensors", None).place / "README.md").read_text()
    assert "| corruptions | error at severity 5 (mCE) | 0.7500 | 40 | generated |" in card
    assert "| corruptions | error over all severities | 0.5000 | 40 | generated |" in card
    assert "| mce" not in card


def test_huggingface_hub_reads_the_card(student: RunDir, dense: RunDir, session: Session, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    exported = export(student, "torch", None, out=tmp_path / "t")
    held = ModelCard.load(exported.place / "README.md").data
    assert (held.library_name, held.pipeline_tag) == ("torch", "image-classification")
    assert held.tags == ["antishortcut", "knowledge-distillation", "kd"]
    result = {(each.dataset_split, each.metric_name): each.metric_value for each in held.eval_results}
    scores = student.scores()
    assert result["conflict", "shape_bias"] == pytest.approx(scores["conflict"]["values"]["shape_bias"], abs=1e-6)
    assert result["iid", "accuracy"] == pytest.approx(scores["iid"]["values"]["accuracy"], abs=1e-6)
    exported = export(dense, "safetensors", None, out=tmp_path / "d")
    held = ModelCard.load(exported.place / "README.md").data
    assert [each.metric_type for each in held.eval_results] == ["mean_iou"]


def test_hostile_names_stay_in_their_cell(student: RunDir, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / "s" / "kd-s3"
    shutil.copytree(student.path, copy)
    known = json.loads((copy / "run.json").read_text())
    known["run"]["name"] = "a|b<script>\n# c"
    known.pop("sum", None)  # as one who edits it does
    write_json(copy / "run.json", known)
    write_json(copy / "scores" / "odd.json", {"values": {"x": "words", "y": None, "z": 1.5}, "source": "<b>"})
    card = (export(RunDir(copy), "safetensors", None).place / "README.md").read_text()
    assert "<script>" not in card
    assert "a\\|b&lt;script&gt; # c" in card
    assert "| odd | z | 1.5000 | – | &lt;b&gt; |" in card
    assert "words" not in card
    assert "its teacher" not in card  # its folder is not beside this copy
