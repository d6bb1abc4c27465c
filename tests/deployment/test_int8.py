"""model.int8.onnx: close to the float model, compared with it on every set, and refused where it cannot be made."""

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from antishortcut.deployment import export
from antishortcut.deployment.int8 import compare, larger_losses
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.tasks import Classification, Segmentation
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import ImageSet
from tests.conftest import asd, invoke
from tests.deployment.subjects import images, small

FILES = {"float": "model.onnx", "int8": "model.int8.onnx"}


@pytest.fixture(scope="module")
def trained(session: Session) -> RunDir:
    """A student that has learned something, so that a broken copy of it scores lower."""
    more = ("epochs=3", "data.options.count=1024", "data.options.test_count=200", "student.name=cnn-8-64")
    return RunDir(distill(small(*more), session, method="ce", seed=1, suite="int8").folder(session.runs))


def test_int8_is_close_to_float_and_compared_with_it(trained: RunDir, session: Session, tmp_path: Path) -> None:
    record = asd("export", trained.path, "--to", "onnx", "--int8", "--out", tmp_path / "o", "--threads", "1")
    int8, accuracy = record["int8"], trained.result()["last"]["accuracy"]
    assert accuracy > 0.3  # of ten classes
    assert list(int8["sets"]) == list(session.sets(trained.read()[0].data).tests)
    for score in int8["sets"].values():
        assert abs(score["float"] - score["int8"]) <= 0.05
        assert 0.9 <= score["same"] <= 1
        assert score["images"] == 200
    assert int8["sets"]["iid"]["float"] == pytest.approx(accuracy)
    assert int8["calibration"] == {"images": 512, "seed": 0}
    assert int8["bytes"] == {name: record["files"][file] for name, file in FILES.items()}
    assert int8["bytes"]["int8"] < int8["bytes"]["float"]
    assert all(ms > 0 for ms in int8["ms"].values())
    model = onnx.load(tmp_path / "o" / "model.int8.onnx")
    weights = [each for each in model.graph.initializer if each.name.endswith("_quantized") and len(each.dims) == 4]
    assert weights
    assert {each.data_type for each in weights} == {onnx.TensorProto.INT8}
    image = images(trained, session, 3)
    for file in FILES.values():
        loaded = onnxruntime.InferenceSession(tmp_path / "o" / file)
        assert loaded.run(["logits"], {"image": image.numpy()})[0].shape == (3, 10)
        names = json.loads(loaded.get_modelmeta().custom_metadata_map["classes"])
        assert names == list(session.sets(trained.read()[0].data).classes)
    card = (tmp_path / "o" / "README.md").read_text()
    assert f"| conflict, accuracy | {int8['sets']['conflict']['float']:.4g} |" in card
    assert "calibrated on 512 training images" in card


def test_the_command_prints_the_comparison(dense: RunDir, tmp_path: Path) -> None:
    """Of segmentation, with its own score; maps have no binomial error."""
    text = invoke("export", dense.path, "--to", "onnx", "--int8", "--out", tmp_path / "o", "--threads", "1").stdout
    int8 = json.loads((tmp_path / "o" / "export.json").read_text())["int8"]
    assert all(f"{name}, miou" in text for name in int8["sets"])
    assert "ms an image" in text
    assert {score["error"] for score in int8["sets"].values()} == {None}
    assert int8["warning"] == ""


def by_table(table: list[int]) -> Any:
    """Predicts the class that a table has for the first pixel's value."""

    def run(image: Tensor) -> Tensor:
        return torch.eye(3)[torch.tensor(table)[(255 * image[:, 0, 0, 0]).round().long()]]

    return run


def test_scores_agreement_and_error_by_hand() -> None:
    label = torch.tensor([0, 0, 1, 1, 2, 2])
    image = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 3, 2, 2).contiguous()
    runs = {"float": by_table([0, 0, 1, 1, 2, 0]), "int8": by_table([0, 1, 1, 0, 2, 2])}
    score = compare(runs, ImageSet(image, label), 2, Classification())
    assert (score["float"], score["int8"], score["same"]) == pytest.approx((5 / 6, 4 / 6, 3 / 6))
    # float alone is right on two, int8 alone on one: the variance of a difference in {−1, 0, 1} with mean 1/6
    assert score["error"] == pytest.approx(((3 / 6 - (1 / 6) ** 2) / 6) ** 0.5)


def test_agreement_of_maps_is_by_pixel() -> None:
    def run(classes: list[int]) -> Any:
        return lambda image: torch.eye(2)[torch.tensor(classes).view(1, 2, 2).expand(len(image), 2, 2)].permute(
            0, 3, 1, 2
        )

    scenes = ImageSet(torch.zeros(3, 3, 2, 2, dtype=torch.uint8), torch.tensor([[0, 1], [1, 0]]).expand(3, 2, 2).byte())
    score = compare({"float": run([0, 1, 1, 0]), "int8": run([0, 1, 1, 1])}, scenes, 2, Segmentation(2))
    assert (score["float"], score["same"], score["error"]) == (1.0, 0.75, None)
    assert score["int8"] == pytest.approx((1 / 2 + 2 / 3) / 2)  # intersection over union of each class


def test_a_larger_loss_on_another_set_is_a_sentence() -> None:
    clean = {"float": 0.9, "int8": 0.89, "error": 0.005}
    feared = {"float": 0.8, "int8": 0.7, "error": 0.01}
    assert larger_losses({"iid": clean, "conflict": feared, "other": clean}) == (
        "int8 loses 0.100 on conflict, but 0.010 on iid: quantisation may have brought a shortcut back."
    )
    assert larger_losses({"iid": clean, "conflict": feared | {"error": 0.05}}) == ""  # two errors are 0.1005
    assert larger_losses({"iid": clean}) == ""
    assert larger_losses({"iid": clean | {"error": None}, "conflict": feared | {"error": None}}) == ""


def test_without_training_images_there_is_no_int8(student: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--int8 is calibrated on training images, which are not here"):
        export(student, "onnx", None, out=tmp_path / "o", int8=True)
    assert not list(tmp_path.iterdir())


def test_a_network_that_cannot_be_quantised_is_one_line(
    student: RunDir, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no int8 kernel\nmore")

    monkeypatch.setattr("onnxruntime.quantization.quantize_static", fails)
    with pytest.raises(
        UserError, match=r"^ONNX Runtime cannot quantise cnn-2-16 \(no int8 kernel\); leave --int8 out$"
    ):
        export(student, "onnx", session.sets(student.read()[0].data), out=tmp_path / "o", int8=True)
    assert not list(tmp_path.iterdir())
