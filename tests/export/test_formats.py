"""Export: what others read gives what the student gives, from files alone."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file

from antishortcut.errors import UserError
from antishortcut.export import export
from antishortcut.export.verify import difference
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.pipeline import Session, teach
from tests.export.subjects import TIMM, close, elsewhere, images, original, runtime, small


def test_onnx_runtime_gives_what_the_student_gives(student: RunDir, session: Session, tmp_path: Path) -> None:
    built = export(student, "onnx", session.sets(student.read()[0].data), out=tmp_path / "o", embedding=True)
    model, network = runtime(built.place), original(student, session)
    assert [(i.name, i.shape) for i in model.get_inputs()] == [("image", ["batch", 3, 32, 32])]
    assert [o.name for o in model.get_outputs()] == ["logits", "embedding"]
    for count in (1, 5, 7):
        image = images(student, session, count)
        outputs = network(image)
        for inputs, required in zip(
            model.run(None, {"image": image.numpy()}), (outputs.logits, outputs.embedding), strict=True
        ):
            close(inputs, required)
    assert built.record["output"] == {"logits": ["batch", 10], "embedding": ["batch", 16]}
    assert 0 < built.record["check"]["largest"] <= built.record["check"]["allowed"] == 1e-4
    assert built.record["check"]["images"] == "5 images of the iid set of cues"
    assert built.record["check"]["batches"] == (1, 2, 5)
    assert b"antishortcut/" not in (built.place / "model.onnx").read_bytes()  # no paths of this machine


def test_scenes_of_any_size(dense: RunDir, session: Session) -> None:
    built = export(dense, "onnx", session.sets(dense.read()[0].data))
    assert built.place == dense.path / "export" / "onnx"
    model, network = runtime(built.place), original(dense, session)
    assert model.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    for shape in ((1, 3, 32, 32), (3, 3, 41, 52), (2, 3, 96, 17)):
        image = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        (logits,) = model.run(["logits"], {"image": image.numpy()})
        close(logits, network(image).logits)
    card = (built.place / "README.md").read_text()
    assert "image-segmentation" in card
    assert built.record["check"]["sizes"] == ((32, 32), (29, 27))
    assert "brought to the image's size bilinearly before argmax" in card


def test_a_torch_program_needs_no_package_of_ours(student: RunDir, session: Session, tmp_path: Path) -> None:
    built = export(student, "torch", None, out=tmp_path / "t", embedding=True)
    image, network = images(student, session, 4), original(student, session)
    torch.save(image, tmp_path / "image.pt")
    code = (
        "import torch; student = torch.export.load('t/model.pt2').module(); image = torch.load('image.pt')\n"
        "torch.save([student(image), student(image[:1])], 'out.pt')"
    )
    elsewhere(code, tmp_path)
    whole, one = torch.load(tmp_path / "out.pt")
    close(whole[0], network(image).logits)
    close(whole[1], network(image).embedding)
    close(one[0], network(image[:1]).logits)
    with zipfile.ZipFile(built.place / "model.pt2") as archive:
        assert not [name for name in archive.namelist() if b"antishortcut/" in archive.read(name)]


def test_safetensors_hold_the_bare_networks_weights(of_timm: RunDir, session: Session, tmp_path: Path) -> None:
    built = export(of_timm, "safetensors", session.sets(of_timm.read()[0].data), out=tmp_path / "s")
    bare = timm.create_model(TIMM.removeprefix("timm:"), num_classes=10).eval()
    bare.load_state_dict(load_file(built.place / "model.safetensors"))
    image, record = images(of_timm, session, 3), json.loads((built.place / "export.json").read_text())
    mean, std = (torch.tensor(record[key]).view(3, 1, 1) for key in ("mean", "std"))
    close(bare((image - mean) / std).detach(), original(of_timm, session)(image).logits)
    assert (record["model"], record["classes"], record["image_size"]) == (TIMM, 10, 40)
    assert record["names"] == list(session.sets(of_timm.read()[0].data).classes)
    assert len(record["load"]) == 3


def test_timm_loads_its_folder(of_timm: RunDir, session: Session, tmp_path: Path) -> None:
    built = export(of_timm, "timm", session.sets(of_timm.read()[0].data), out=tmp_path / "t")
    assert len({path.stat().st_mode for path in built.place.iterdir()}) == 1  # the library makes weights private
    loaded = timm.create_model(f"local-dir:{built.place}", pretrained=True).eval()
    from timm.data.config import resolve_data_config

    required: Any = resolve_data_config({}, model=loaded)  # type: ignore[no-untyped-call]
    assert (required["input_size"], required["crop_pct"], required["interpolation"]) == ([3, 40, 40], 1.0, "bilinear")
    config: Any = loaded.pretrained_cfg
    assert config["label_names"] == list(session.sets(of_timm.read()[0].data).classes)
    image = images(of_timm, session, 3)
    mean, std = (torch.tensor(required[key]).view(3, 1, 1) for key in ("mean", "std"))
    close(loaded((image - mean) / std).detach(), original(of_timm, session)(image).logits)


def test_without_its_data_a_run_is_still_exported(of_timm: RunDir, dense: RunDir, tmp_path: Path) -> None:
    """The weights tell how many classes there are."""
    for folder, classes in ((of_timm, 10), (dense, 11)):
        record = export(folder, "safetensors", None, out=tmp_path / folder.path.parent.name).record
        assert (record["classes"], record["names"]) == (classes, None)
        assert record["check"]["images"] == "5 images of noise"


def test_states_of_a_teacher(session: Session, student: RunDir) -> None:
    folder = RunDir(teach(small(), session).folder(session.runs))
    trajectory = Trajectory(folder)
    for state, place in (("final", "safetensors"), ("15%", "safetensors@15%")):
        built = export(folder, "safetensors", None, state=state)
        assert built.place == folder.path / "export" / place
        written = load_file(built.place / "model.safetensors")
        assert all(
            torch.equal(value, written[key.removeprefix("body.")]) for key, value in trajectory.weights(state).items()
        )
    card = (built.place / "README.md").read_text()
    assert f"| judged | accuracy | {trajectory.entry('15%')['accuracy']:.4f} |" in card
    with pytest.raises(UserError, match=r"kept no state '30%'"):
        export(folder, "safetensors", None, state="30%")
    with pytest.raises(UserError, match="final state alone"):
        export(student, "safetensors", None, state="15%")


def test_differences() -> None:
    required = torch.tensor([[1.0, -4.0]])
    assert difference(required, required + torch.tensor([[0.0, 0.02]])) == pytest.approx(0.005)
    assert difference(required, required.T) == float("inf")
    assert difference(torch.zeros(1, 2), torch.zeros(1, 2)) == 0
    assert difference(required, torch.tensor([[1.0, float("nan")]])) == float("inf")
