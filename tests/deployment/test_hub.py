"""Hub folders load with timm or antishortcut.load and give the student's logits; --push sends them to the Hub."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import ModelCard
from PIL import Image
from torch import nn

import antishortcut
from antishortcut.deployment import export
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir, write_json
from antishortcut.teachers.trajectory import build_model
from antishortcut.training.pipeline import Session, distill
from tests.conftest import Refusal
from tests.deployment.fake_hub import FakeHub
from tests.deployment.subjects import close, fresh, images, original, small

FILES = {"README.md", "config.json", "export.json", "model.safetensors"}


def hub_folder(folder: RunDir, place: Path, session: Session | None = None) -> Path:
    sets = session.sets(folder.read()[0].data) if session else None
    return export(folder, "hub-folder", sets, out=place).place


def test_timm_loads_a_timm_student_with_its_preprocessing(of_timm: RunDir, session: Session, tmp_path: Path) -> None:
    """Files are read by Pillow and timm's own transform, as somebody without this package does."""
    place = hub_folder(of_timm, tmp_path / "h", session)
    assert {path.name for path in place.iterdir()} == FILES
    assert ModelCard.load(place / "README.md").data.library_name == "timm"
    loaded: Any = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    data: Any = timm.data
    transform = data.create_transform(**data.resolve_data_config(model=loaded))
    raw = images(of_timm, session, 4)
    pictures = [Image.fromarray(np.asarray((255 * each).byte().permute(1, 2, 0))) for each in raw]
    expected = original(of_timm, session)(raw).logits
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(torch.stack([transform(each) for each in pictures])), expected, atol=1e-5, rtol=0
        )
    names = session.sets(of_timm.read()[0].data).classes
    assert loaded.pretrained_cfg["label_names"] == list(names)
    ours = antishortcut.load(place)
    assert ours.classes == names
    torch.testing.assert_close(ours(raw), expected, atol=1e-5, rtol=0)


def test_run_folders_and_exports_load_as_plain_modules(student: RunDir, session: Session, tmp_path: Path) -> None:
    raw, names = images(student, session, 3), session.sets(student.read()[0].data).classes
    expected = original(student, session)(raw).logits
    sources = [student.path, hub_folder(student, tmp_path / "h", session)]
    sources.append(export(student, "safetensors", None, out=tmp_path / "s").place)  # its names are the run's
    for source in sources:
        model = antishortcut.load(str(source))
        assert isinstance(model, nn.Module)
        assert not model.training
        assert (model.classes, model.image_size) == (names, 32)
        torch.testing.assert_close(model(raw), expected, atol=1e-5, rtol=0)
        model(raw).sum().backward()  # it can be trained further
        assert all(parameter.grad is not None for parameter in model.parameters())
    config = json.loads((tmp_path / "h" / "config.json").read_text())
    assert (config["architecture"], config["label_names"]) == ("cnn-2-16", list(names))
    assert config["pretrained_cfg"]["input_size"] == [3, 32, 32]
    assert ModelCard.load(tmp_path / "h" / "README.md").data.library_name == "antishortcut"


def test_states_of_a_teacher_load(student: RunDir) -> None:
    home = student.path.parent.parent / "teachers" / str(student.read()[0].teacher)
    image = torch.rand(2, 3, 32, 32)
    early, final = (antishortcut.load(home, state) for state in ("15%", "final"))
    assert not torch.allclose(early(image), final(image))
    assert early.classes == final.classes
    assert len(early.classes) == 10


def test_segmentation_loads_and_takes_any_size(dense: RunDir, session: Session, tmp_path: Path) -> None:
    model, network = antishortcut.load(hub_folder(dense, tmp_path / "h")), original(dense, session)
    image = torch.rand(1, 3, 41, 52)
    close(model(image).detach(), network(image).logits)
    assert len(model.classes) == 11


def test_a_student_with_its_teachers_classifier_loads(session: Session, tmp_path: Path) -> None:
    """Of timm too: its trunk alone is timm's, so `load` reads the folder."""
    recipe = small("student.name=timm:test_resnet", "data.image_size=32")
    folder = RunDir(distill(recipe, session, method="simkd", seed=1, suite="hub").folder(session.runs))
    image = torch.rand(2, 3, 32, 32)
    expected = antishortcut.load(folder.path)(image)
    model = antishortcut.load(hub_folder(folder, tmp_path / "h"))
    torch.testing.assert_close(model(image), expected, atol=1e-5, rtol=0)
    assert json.loads((tmp_path / "h" / "config.json").read_text())["architecture"] == "timm:test_resnet"


class Pooled(nn.Sequential):
    """A user's network."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("torchvision:squeezenet1_1", {}),
        ("tests.deployment.test_hub:Pooled", {}),
        ("cnn-2-16", {"size": 40, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}),
        ("timm:test_vit", {"size": 96}),
        ("dense-2", {}),
    ],
)
def test_every_kind_of_network_comes_back(model: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder, image = fresh(tmp_path / "run", model, 64, **options), torch.rand(2, 3, 64, 64)
    loaded = antishortcut.load(hub_folder(folder, tmp_path / "h"))
    assert (loaded.classes, loaded.image_size) == (("0", "1", "2"), 64)
    network = build_model(folder.read()[0].model, 3, 64)
    network.load_state_dict(antishortcut.load(folder.path).network.state_dict())
    torch.testing.assert_close(loaded(image), network.eval()(image).logits, atol=1e-5, rtol=0)


def test_what_cannot_be_loaded_is_one_line(student: RunDir, tmp_path: Path) -> None:
    place = hub_folder(student, tmp_path / "h")
    with pytest.raises(UserError, match=r"neither a run folder \(run.json\) nor an export"):
        antishortcut.load(tmp_path)
    with pytest.raises(UserError, match=f"did you mean {student.path}"):
        antishortcut.load(student.path.parent)
    with pytest.raises(UserError, match=r"nor an export \(export.json\) with a state 15%"):
        antishortcut.load(place, "15%")
    with pytest.raises(UserError, match="holds the format torch, which its own library reads"):
        antishortcut.load(export(student, "torch", None, out=tmp_path / "t").place)
    lost = Path(shutil.copytree(place, tmp_path / "lost"))
    (lost / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no weights at .*lost/model\.safetensors"):
        antishortcut.load(lost)
    known = json.loads((place / "export.json").read_text())
    for change, message in (
        ({"model": "missing_nets:make"}, "cannot import 'missing_nets' for missing_nets:make"),
        ({"model": "cnn-4-16"}, r"h/model.safetensors are of another network"),
        ({"mean": None, "options": None}, "export.json: damaged"),
        ({"options": {"colour": 1}}, "export.json: damaged"),
        ({"names": ["one name"]}, "export.json: damaged"),
        *(({key: size}, "export.json: damaged") for key in ("classes", "image_size") for size in (-1, 10**19, 1e999)),
    ):
        write_json(place / "export.json", known | change)
        with pytest.raises(UserError, match=message):
            antishortcut.load(place)
    begun = Path(shutil.copytree(student.path, tmp_path / "begun"))
    (begun / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        antishortcut.load(begun)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def environment(url: str, home: Path) -> dict[str, str]:
    return os.environ | {"HF_ENDPOINT": url, "HF_TOKEN": "hf_none", "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}


def command(folder: Path, place: Path, url: str) -> "subprocess.CompletedProcess[str]":
    words = ["export", folder, "--to", "hub-folder", "--out", place, "--threads", "1", "--push", "me/x"]
    run = [sys.executable, "-m", "antishortcut", *map(str, words)]
    return subprocess.run(run, env=environment(url, place.parent), check=False, capture_output=True, text=True)


def test_a_pushed_student_comes_back_from_the_hub(student: RunDir, hub: FakeHub, tmp_path: Path) -> None:
    done = command(student.path, tmp_path / "h", hub.url)
    assert done.returncode == 0, done.stderr
    assert f"{hub.url}/me/x (a new repository is private" in done.stdout
    assert (hub.created["name"], hub.created.get("visibility", "private")) == ("x", "private")
    assert hub.files == {path.name: path.read_bytes() for path in (tmp_path / "h").iterdir()}
    code = "import antishortcut; print(*antishortcut.load('hf://me/x').classes)"
    run = [sys.executable, "-c", code]
    env = environment(hub.url, tmp_path)
    loaded = subprocess.run(run, env=env, check=True, capture_output=True, text=True)
    assert loaded.stdout.split() == list(antishortcut.load(student.path).classes)


@pytest.mark.parametrize("reason", ["403", pytest.param("refused", marks=pytest.mark.slow)])
def test_a_refused_or_unreachable_push_is_one_line_and_keeps_the_folder(
    student: RunDir, hub: FakeHub, tmp_path: Path, reason: str
) -> None:
    hub.refuses = True
    nobody_listens = "http://127.0.0.1:9"
    done = command(student.path, tmp_path / "h", hub.url if reason == "403" else nobody_listens)
    assert (done.returncode, done.stdout) == (2, "")
    line = done.stderr.splitlines()[-1]
    assert line.startswith("asd: cannot push to me/x (")
    assert reason in line
    assert line.endswith(f"hf upload me/x {tmp_path / 'h'}")
    assert "Traceback" not in done.stderr
    assert {path.name for path in (tmp_path / "h").iterdir()} == FILES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "hub-folder", "--push", "a/b/c"], "name it OWNER/NAME"),
        (["--to", "onnx", "--push", "me/x"], "--push is for --to hub-folder"),
        (["--to", "torch", "--int8"], "--int8 is for --to onnx, not torch"),
        (["--to", "hub-folder", "--embedding"], "--embedding is for onnx and torch"),
    ],
)
def test_wrong_options_are_one_line(student: RunDir, refusal: Refusal, words: list[str], message: str) -> None:
    assert message in refusal("export", student.path, *words)
