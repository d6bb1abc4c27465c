"""What cannot be exported, or in one way only, is said in a line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antishortcut.cli import main
from antishortcut.errors import UserError
from antishortcut.export import export
from antishortcut.run_dir import RunDir, write_json
from antishortcut.teachers.trajectory import build_model, cpu_tensors
from antishortcut.training.pipeline import Session, distill
from tests.export.subjects import TIMM, close, fresh, runtime, small


def test_what_disagrees_is_refused(
    student: RunDir, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that loses a bias, one that returns another shape, a student that is not finite."""
    from antishortcut.export import formats

    def spoiled(module: nn.Module) -> dict[str, Tensor]:
        return {key: value + 0.01 * (key == "head.bias") for key, value in cpu_tensors(module).items()}

    monkeypatch.setattr(formats, "tensors_of", spoiled)
    with pytest.raises(UserError, match=r"differs from the original by 0\.\d+ of its largest value on 1 of 5 images"):
        export(student, "safetensors", None, out=tmp_path / "s")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    copy = tmp_path / "runs" / "s" / "kd-s3"
    shutil.copytree(student.path, copy)
    weights = load_file(copy / "student.safetensors")
    weights["body.head.bias"][0] = float("inf")
    save_file(weights, copy / "student.safetensors")
    RunDir(copy).finish(RunDir(copy).result())  # with their checksum
    with pytest.raises(UserError, match="not finite"):
        export(RunDir(copy), "safetensors", None)
    assert not (copy / "export").exists()


def test_a_damaged_student_is_one_line(student: RunDir, tmp_path: Path) -> None:
    copy = RunDir(Path(shutil.copytree(student.path, tmp_path / "s" / "kd-s3")))
    other = {key: value for key, value in load_file(student.student).items() if "head" not in key}
    save_file(other, copy.student)
    with pytest.raises(UserError, match=r"student.safetensors: damaged"):
        export(copy, "safetensors", None)
    write_json(copy.path / "result.json", {**copy.result(), "sha256": None})  # as an older version wrote it
    with pytest.raises(UserError, match=r"missing \(body\.head\.weight"):
        export(copy, "safetensors", None)
    shutil.copy(student.student, copy.student)
    write_json(copy.path / "result.json", {})  # finished, as far as is known
    assert "at the end of training" not in (export(copy, "safetensors", None).place / "README.md").read_text()


def test_what_others_raise_is_said_in_a_line(student: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> None:
        raise RuntimeError("\nno kernel for it\nmore")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", fails)
    with pytest.raises(
        UserError, match=r"^what was exported does not run on 1 of 5 images .* \(no kernel for it\); nothing"
    ):
        export(student, "onnx", None, out=tmp_path / "o")
    small_one = fresh(tmp_path / "run", TIMM, 32)
    monkeypatch.setattr("timm.models.save_for_hf", fails)
    with pytest.raises(UserError, match=r"timm does not load what it saved .* \(no kernel for it\); --to safetensors"):
        export(small_one, "timm", None, out=tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize("side", [24, 176])
def test_a_network_of_one_size_resizes_by_itself(side: int, tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run", "timm:test_vit", side, embedding="blocks.2")
    built = export(folder, "onnx", None, out=tmp_path / "o", embedding=True)
    assert (built.record["image_size"], built.record["resized_to"]) == (side, 160)
    assert runtime(built.place).get_inputs()[0].shape == ["batch", 3, side, side]
    assert built.record["output"]["embedding"] == ["batch", 64]
    loaded = export(folder, "timm", None, out=tmp_path / "t")
    model = timm.create_model(f"local-dir:{loaded.place}", pretrained=True)
    config: Any = model.pretrained_cfg
    assert (config["input_size"], config["fixed_input_size"]) == ([3, 160, 160], True)
    card = (loaded.place / "README.md").read_text()
    assert "resized to 160 × 160 bilinearly" in card
    assert f"the shorter side {side if side == 24 else 201}" in card  # 256/224 of it, of files
    assert "/x" not in card  # where the folder of images lies


@pytest.mark.parametrize(("model", "size"), [("timm:test_vit", 96), (TIMM, 40), ("cnn-2-16", 40)])
def test_what_a_recipe_says_of_a_network_is_kept(model: str, size: int, tmp_path: Path) -> None:
    """Its size, which a transformer is made for, and the colours it wants to see."""
    more: dict[str, Any] = {"size": size, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    folder = fresh(tmp_path / "run", model, 32, **more)
    built = export(folder, "safetensors", None, out=tmp_path / "s")
    assert json.loads((built.place / "export.json").read_text())["recipe"]["student"] == {
        "name": model, "weights": "model.safetensors", "size": size, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]
    }  # fmt: skip
    names: dict[str, Any] = {}
    exec("\n".join(built.record["load"]).replace('"model.', f'"{built.place}/model.'), names)
    image = torch.rand(2, 3, 32, 32)
    required = build_model(folder.read()[0].model, 3, 32)
    required.load_state_dict(load_file(folder.student))
    required.eval()
    close(names["student"](image).logits.detach(), required(image).logits)
    if model.startswith("timm:"):
        place = export(folder, "timm", None, out=tmp_path / "t").place
        config: Any = timm.create_model(f"local-dir:{place}", pretrained=True).pretrained_cfg
        assert (config["input_size"], config["mean"]) == ([3, size, size], pytest.approx([0.1, 0.2, 0.3]))


class OneSize(nn.Module):
    """Gives maps of scenes of 32 × 32 pixels, and of no others."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.head(x.reshape(x.shape[0], 3, 32, 32))
        return maps


def test_scenes_of_one_size_alone_are_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fresh(tmp_path / "run", "import:tests.export.test_odd_networks:OneSize", 32, classes=5)
    monkeypatch.setattr("antishortcut.export.verify._noise", lambda side, maps: (torch.rand(5, 3, 32, 32), "noise"))
    monkeypatch.setattr(sys, "argv", ["asd", "export", str(folder.path), "--to", "onnx"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    line, place = capsys.readouterr().out.strip().splitlines()[-2:]
    text = "torch.export cannot follow import:tests.export.test_odd_networks:OneSize for any height and width ("
    assert line.startswith(f"takes scenes of 32 × 32 alone: {text}")
    assert runtime(Path(place)).get_inputs()[0].shape == ["batch", 3, 32, 32]
    assert "It takes scenes of one size only" in (Path(place) / "README.md").read_text()


class Stubborn(nn.Module):
    """Asks for the numbers themselves, which no trace can follow."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(dim=(2, 3))  # (B, 3)
        logits: Tensor = self.head(pooled if float(pooled.sum()) > 0 else -pooled)
        return logits


def test_a_network_that_cannot_be_traced_is_said_in_a_line(session: Session, tmp_path: Path) -> None:
    run = distill(
        small("student.name=import:tests.export.test_odd_networks:Stubborn"),
        session,
        method="ce",
        seed=1,
        suite="stubborn",
    )
    folder = RunDir(run.folder(session.runs))
    for form in ("onnx", "torch"):
        with pytest.raises(UserError, match=r"cannot follow import:tests.export.test_odd_networks:Stubborn") as message:
            export(folder, form, None, out=tmp_path / form)
        assert "\n" not in str(message.value)
    export(folder, "safetensors", None, out=tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_data_of_another_run_are_refused(student: RunDir, session: Session, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fingerprints differ"):
        export(student, "safetensors", session.sets(small("data.seed=1").data), out=tmp_path / "o")
