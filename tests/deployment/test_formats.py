"""Exported files give the outputs of the student, and only a checked export is written."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antishortcut.deployment import export, formats
from antishortcut.deployment.verify import difference
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir, write_json
from antishortcut.teachers.trajectory import Trajectory, build_model, cpu_tensors
from antishortcut.training.pipeline import Session, teach
from tests.deployment.subjects import TIMM, close, fresh, images, original, runtime, small, without_package


def test_onnx_runtime_gives_the_outputs_of_the_student(student: RunDir, session: Session, tmp_path: Path) -> None:
    exported = export(student, "onnx", session.sets(student.read()[0].data), out=tmp_path / "o", embedding=True)
    model, network = runtime(exported.place), original(student, session)
    assert [(i.name, i.shape) for i in model.get_inputs()] == [("image", ["batch", 3, 32, 32])]
    assert [o.name for o in model.get_outputs()] == ["logits", "embedding"]
    for count in (1, 5, 7):
        image = images(student, session, count)
        features = network(image)
        logits, embedding = model.run(None, {"image": image.numpy()})
        close(logits, features.logits)
        close(embedding, features.embedding)
    assert exported.record["output"] == {"logits": ["batch", 10], "embedding": ["batch", 16]}
    check = exported.record["check"]
    assert 0 < check["largest"] <= check["allowed"] == 1e-4
    assert (check["images"], check["batches"]) == ("5 images of the iid set of cues", (1, 2, 5))
    assert b"antishortcut/" not in (exported.place / "model.onnx").read_bytes()  # no paths of this machine


def test_segmentation_takes_images_of_any_size(dense: RunDir, session: Session) -> None:
    exported = export(dense, "onnx", session.sets(dense.read()[0].data))
    assert exported.place == dense.path / "export" / "onnx"
    model, network = runtime(exported.place), original(dense, session)
    assert model.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    for shape in ((1, 3, 32, 32), (3, 3, 41, 52), (2, 3, 96, 17)):
        image = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        (logits,) = model.run(["logits"], {"image": image.numpy()})
        close(logits, network(image).logits)
    card = (exported.place / "README.md").read_text()
    assert "image-segmentation" in card
    assert "brought to the image's size bilinearly before argmax" in card
    assert exported.record["check"]["sizes"] == ((32, 32), (29, 27))


def test_a_torch_program_needs_only_torch(student: RunDir, session: Session, tmp_path: Path) -> None:
    exported = export(student, "torch", None, out=tmp_path / "t", embedding=True)
    image, network = images(student, session, 4), original(student, session)
    torch.save(image, tmp_path / "image.pt")
    code = (
        "import torch; student = torch.export.load('t/model.pt2').module(); image = torch.load('image.pt')\n"
        "torch.save([student(image), student(image[:1])], 'out.pt')"
    )
    without_package(code, tmp_path)
    whole, one = torch.load(tmp_path / "out.pt")
    close(whole[0], network(image).logits)
    close(whole[1], network(image).embedding)
    close(one[0], network(image[:1]).logits)
    with zipfile.ZipFile(exported.place / "model.pt2") as archive:
        assert not [name for name in archive.namelist() if b"antishortcut/" in archive.read(name)]


def test_safetensors_and_timm_load_into_the_bare_network(of_timm: RunDir, session: Session, tmp_path: Path) -> None:
    sets = session.sets(of_timm.read()[0].data)
    place = export(of_timm, "safetensors", sets, out=tmp_path / "s").place
    bare = timm.create_model(TIMM.removeprefix("timm:"), num_classes=10).eval()
    bare.load_state_dict(load_file(place / "model.safetensors"))
    image, record = images(of_timm, session, 3), json.loads((place / "export.json").read_text())
    expected = original(of_timm, session)(image).logits
    mean, std = (torch.tensor(record[key]).view(3, 1, 1) for key in ("mean", "std"))
    close(bare((image - mean) / std).detach(), expected)
    assert (record["model"], record["classes"], record["image_size"]) == (TIMM, 10, 40)
    assert record["names"] == list(sets.classes)

    place = export(of_timm, "timm", sets, out=tmp_path / "t").place
    assert len({path.stat().st_mode for path in place.iterdir()}) == 1  # the library makes weights private
    loaded = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    config: Any = loaded.pretrained_cfg
    assert (config["input_size"], config["crop_pct"], config["interpolation"]) == ([3, 40, 40], 1.0, "bilinear")
    assert config["label_names"] == list(sets.classes)
    close(loaded((image - mean) / std).detach(), expected)


def test_without_its_data_the_run_tells_the_classes(
    of_timm: RunDir, dense: RunDir, session: Session, tmp_path: Path
) -> None:
    """Runs of before kept no names: their classes are counted from the weights."""
    for folder, classes in ((of_timm, 10), (dense, 11)):
        record = export(folder, "safetensors", None, out=tmp_path / folder.path.parent.name).record
        names = list(session.sets(folder.read()[0].data).classes)
        assert (record["classes"], record["names"]) == (classes, names)
        assert record["check"]["images"] == "5 images of noise"
        old = RunDir(Path(shutil.copytree(folder.path, tmp_path / "old" / folder.path.parent.name)))
        write_json(old.path / "result.json", {key: value for key, value in old.result().items() if key != "classes"})
        record = export(old, "safetensors", None).record
        assert (record["classes"], record["names"]) == (classes, None)


def test_saved_states_of_a_teacher_are_exported(session: Session) -> None:
    folder = RunDir(teach(small(), session).folder(session.runs))
    trajectory = Trajectory(folder)
    for state, place in (("final", "safetensors"), ("15%", "safetensors@15%")):
        exported = export(folder, "safetensors", None, state=state)
        assert exported.place == folder.path / "export" / place
        weights = load_file(exported.place / "model.safetensors")
        expected = trajectory.weights(state)
        assert all(torch.equal(value, weights[key.removeprefix("body.")]) for key, value in expected.items())
    card = (exported.place / "README.md").read_text()
    assert f"| evaluated | accuracy | {trajectory.entry('15%')['accuracy']:.4f} |" in card
    with pytest.raises(UserError, match=r"has no state '30%'"):
        export(folder, "safetensors", None, state="30%")


def test_difference_is_relative_to_the_largest_value() -> None:
    expected = torch.tensor([[1.0, -4.0]])
    assert difference(expected, expected + torch.tensor([[0.0, 0.02]])) == pytest.approx(0.005)
    assert difference(expected, expected.T) == float("inf")
    assert difference(torch.zeros(1, 2), torch.zeros(1, 2)) == 0
    assert difference(expected, torch.tensor([[1.0, float("nan")]])) == float("inf")


def test_a_network_that_differs_from_the_original_is_not_written(
    student: RunDir, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(module: nn.Module) -> dict[str, Tensor]:
        return {key: value + 0.01 * (key == "head.bias") for key, value in cpu_tensors(module).items()}

    with monkeypatch.context() as patch:
        patch.setattr(formats, "cpu_tensors", spoiled)
        with pytest.raises(UserError, match=r"differs from the original by 0\.\d+ of its largest value on 1 of 5 ima"):
            export(student, "safetensors", None, out=tmp_path / "s")
    with pytest.raises(UserError, match="fingerprints differ"):
        export(student, "safetensors", session.sets(small("data.seed=1").data), out=tmp_path / "o")
    assert not list(tmp_path.iterdir())


def test_a_damaged_student_is_one_line(student: RunDir, tmp_path: Path) -> None:
    copy = RunDir(Path(shutil.copytree(student.path, tmp_path / "s" / "kd-s3")))
    weights = load_file(student.student)
    save_file({key: value for key, value in weights.items() if "head" not in key}, copy.student)
    with pytest.raises(UserError, match=r"student.safetensors: damaged"):
        export(copy, "safetensors", None)
    copy.finish(copy.result())  # with the checksum of the new file
    with pytest.raises(UserError, match=r"missing \(body\.head\.weight"):
        export(copy, "safetensors", None)
    weights["body.head.bias"][0] = float("inf")
    save_file(weights, copy.student)
    copy.finish(copy.result())
    with pytest.raises(UserError, match="not finite"):
        export(copy, "safetensors", None)
    assert not (copy.path / "export").exists()


def test_errors_of_other_libraries_are_one_line(
    student: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("\nno kernel for it\nmore")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", fails)
    with pytest.raises(UserError, match=r"^the network or its export fails on 1 of 5 .* \(no kernel for it\); noth"):
        export(student, "onnx", None, out=tmp_path / "o")
    monkeypatch.setattr("timm.models.save_for_hf", fails)
    with pytest.raises(UserError, match=r"timm does not load what it saved .* \(no kernel for it\); --to safetensors"):
        export(fresh(tmp_path / "run", TIMM, 32), "timm", None, out=tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize("side", [24, 176])
def test_a_network_of_one_size_resizes_its_input(side: int, tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run", "timm:test_vit", side, embedding="blocks.2")
    exported = export(folder, "onnx", None, out=tmp_path / "o", embedding=True)
    assert (exported.record["image_size"], exported.record["resized_to"]) == (side, 160)
    assert runtime(exported.place).get_inputs()[0].shape == ["batch", 3, side, side]
    assert exported.record["output"]["embedding"] == ["batch", 64]
    place = export(folder, "timm", None, out=tmp_path / "t").place
    config: Any = timm.create_model(f"local-dir:{place}", pretrained=True).pretrained_cfg
    assert (config["input_size"], config["fixed_input_size"]) == ([3, 160, 160], True)
    card = (place / "README.md").read_text()
    assert "resized to 160 × 160 bilinearly" in card
    assert f"the shorter side {side if side == 24 else 201}" in card  # 256/224 of it, of files
    assert "/x" not in card  # the path of the image folder


@pytest.mark.parametrize(("model", "size"), [("timm:test_vit", 96), ("cnn-2-16", 40)])
def test_model_settings_are_part_of_the_export(model: str, size: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"size": size, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    folder = fresh(tmp_path / "run", model, 32, **settings)
    exported = export(folder, "safetensors", None, out=tmp_path / "s")
    assert json.loads((exported.place / "export.json").read_text())["recipe"]["student"] == {
        "name": model, "weights": "model.safetensors", "size": size, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]
    }  # fmt: skip
    names: dict[str, Any] = {}
    exec("\n".join(exported.record["load"]).replace('"model.', f'"{exported.place}/model.'), names)
    network = build_model(folder.read()[0].model, 3, 32)
    network.load_state_dict(load_file(folder.student))
    image = torch.rand(2, 3, 32, 32)
    close(names["student"](image).logits.detach(), network.eval()(image).logits)
    if model.startswith("timm:"):
        place = export(folder, "timm", None, out=tmp_path / "t").place
        config: Any = timm.create_model(f"local-dir:{place}", pretrained=True).pretrained_cfg
        assert (config["input_size"], config["mean"]) == ([3, size, size], pytest.approx([0.1, 0.2, 0.3]))


class Untraceable(nn.Module):
    """Reads values out of tensors, which no trace can follow."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(dim=(2, 3))  # (B, 3)
        logits: Tensor = self.head(pooled if float(pooled.sum()) > 0 else -pooled)
        return logits


def test_a_network_that_cannot_be_traced_is_one_line(tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run", "tests.deployment.test_formats:Untraceable", 32)
    for form in ("onnx", "torch"):
        with pytest.raises(
            UserError, match=r"cannot follow tests.deployment.test_formats:Untraceable for any batch"
        ) as error:
            export(folder, form, None, out=tmp_path / form)
        assert "\n" not in str(error.value)
    export(folder, "safetensors", None, out=tmp_path / "s")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "s"}
