"""The functions of a notebook: names, modules and data sets as they are; what they return; their one-line errors."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import antishortcut
from antishortcut import Student, audit, distill, evaluate, export
from antishortcut.api.arguments import words_of
from antishortcut.api.student import HtmlPage
from antishortcut.config.recipe import load_recipe
from antishortcut.data import open_sets
from antishortcut.data.from_torch import write_folder
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.models.user_models import live_copy, register
from antishortcut.training.signals import stop_signals
from tests.conftest import Refusal, invoke, same_weights, stop_after
from tests.data.official import make_folder

FAST: dict[str, Any] = {"device": "cpu", "threads": 1, "quiet": True, "pretrained": None, "epochs": 1}
SMALL: dict[str, Any] = {"data.image_size": 32, "optim.batch": 8}


class DictNet(nn.Module):
    """Returns a dict, as many a home-made network does."""

    def __init__(self, classes: int = 2, width: int = 8) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, width, 3, stride=2), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        embedding = torch.relu(self.conv(x)).mean((2, 3))
        return {"logits": self.fc(embedding), "embedding": embedding}


class Pictures(Dataset[Image.Image]):
    """Without labels."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> Image.Image:
        return Coloured()[at][0]


class Coloured(Dataset[tuple[Image.Image, int]]):
    """The class is the colour; names are not in alphabetical order."""

    classes = ("red", "green", "blue")

    def __init__(self, count: int = 30) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Image.Image, int]:
        pixels = np.random.default_rng(at).integers(0, 60, (32, 32, 3), np.uint8)
        pixels[..., at % 3] += 150
        return Image.fromarray(pixels), at % 3


def seeded(build: Any, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return build(**options)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Student:
    """Trained once from names, on a folder of images."""
    place = tmp_path_factory.mktemp("names")
    photos = make_folder(place / "photos", per_class=6)
    return distill(data=photos, teacher="cnn-4", student="cnn-2-8", runs=place / "runs", set=SMALL, **FAST)


def test_a_student_is_a_module_with_scores_and_a_page(student: Student) -> None:
    assert isinstance(student.model, nn.Module)
    assert not student.model.training
    logits = student.model(torch.rand(2, 3, 32, 32))
    assert logits.shape == (2, len(student.classes))
    assert 0 <= student.scores["test"]["accuracy"] <= 1
    assert "parameters" in student.scores["cost"]
    page = student.report()
    assert isinstance(page, HtmlPage)
    assert page.path == student.path.parent / "report.html"
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!')
    assert "accuracy" in repr(student)
    assert "<table>" in student._repr_html_()


def test_half_without_labels_a_final_checkpoint_alone_and_a_folder_that_is_feared(here: Path) -> None:
    """The teacher is of the labelled images alone; it and the weak reference are scored beside the student."""
    photos, more = make_folder(here / "photos", per_class=8), make_folder(here / "more", held=None, per_class=8)
    torch.save(build("cnn-4", 2, image_size=32).state_dict(), here / "last.pt")
    mixed = SMALL | {"data.unlabelled": str(more)}
    words: dict[str, Any] = {"teacher": "cnn-4", "student": "cnn-2-8", "final": "last.pt", "set": mixed}
    student = distill(data=photos, also={"grey": photos / "train"}, **words, **FAST)
    assert student.run.roles["early"].partition("/")[2].startswith("weak-")
    assert [row["network"] for row in student.also] == ["student", "teacher", "weak reference", "chance"]
    assert {"test", "hard", "probes"} <= student.scores.keys()
    compared = student.export("onnx", int8=True, also={"grey": photos / "train"}).record["int8"]["sets"]
    assert compared["grey"]["float"] == pytest.approx(student.also[0]["accuracy"])  # images are prepared alike
    with pytest.raises(UserError, match="for --int8 to be compared on"):
        student.export("onnx", also={"grey": photos / "train"})
    assert student.report().path.is_file()
    assert "maps.json" not in student.report().path.read_text()  # pictures alone are no damaged score


def test_the_run_is_that_of_the_command(student: Student) -> None:
    """Same words, same hash: the command finds it finished."""
    recipe = student.path.parent / "recipe.toml"
    before = (student.path / "result.json").read_bytes()
    invoke("distill", recipe, "--runs", student.session.runs, "--device", "cpu")
    assert (student.path / "result.json").read_bytes() == before
    again = distill(recipe, runs=student.session.runs, device="cpu", quiet=True)
    assert again.run.hash == student.run.hash


def test_evaluate_and_export_take_students_and_paths(student: Student, tmp_path: Path) -> None:
    assert evaluate(student.path, on=["clean"], device="cpu") == student.evaluate("clean", device="cpu")
    written = student.export("safetensors")
    assert (written.place / "export.json").is_file()
    assert student.export("safetensors").place == written.place  # a cell is run again
    with pytest.raises(UserError, match="exists"):
        export(student.path, "safetensors", force=False)
    with pytest.raises(UserError, match="unknown evaluation"):
        student.evaluate("cleen", device="cpu")
    with pytest.raises(UserError, match="is not a run folder"):
        Student(tmp_path)


def test_an_audit_shows_its_page(student: Student, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    teacher = student.session.runs / "teachers" / str(student.run.teacher)
    result = audit(teacher=teacher, student=student, out=tmp_path / "audit", device="cpu")
    assert result.path == tmp_path / "audit" / "audit.html"
    assert result.result["findings"]
    assert "<iframe" in result._repr_html_()


def test_an_audit_takes_modules(here: Path) -> None:
    pytest.importorskip("altair")
    final, early = (seeded(DictNet, seed, classes=3) for seed in (1, 2))
    result = audit(final=final, early=early, data=(Coloured(30), Coloured(12)), image_size=32, device="cpu")
    assert result.result["model"].startswith("live:DictNet-")
    assert result.result["count"] == 12


def test_other_threads_cannot_handle_signals_and_need_not() -> None:
    def use() -> bool:
        with stop_signals() as request:
            return request.number == 0

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(use).result()


def test_settings_are_a_dict_or_words() -> None:
    assert words_of({"optim.lr": 0.1, "teacher.early": "rewind", "data.train_limit": None}) == [
        "optim.lr=0.1",
        'teacher.early="rewind"',
    ]
    recipe = load_recipe("cues", words_of({"teacher.keep": (15, 100), "optim.nesterov": True, "data.name": "cues"}))
    assert (recipe.teacher.keep, recipe.optim.nesterov) == ((15.0, 100.0), True)
    assert words_of(["epochs=1"]) == ["epochs=1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"teacher": "cnn-4", "student": "cnn-2", "data": "cues", "treads": 1}, "distill takes no 'treads'; did you"),
        ({"teacher": "cnn-4", "student": "cnn-2", "data": "cues", "epoch": 1}, "did you mean 'epochs'"),
        ({"teacher": DictNet, "student": "cnn-2", "data": "cues"}, "teacher is the class DictNet; pass an nn.Module"),
        ({"teacher": "cnn-4", "student": "cnn-2"}, "name a recipe"),
        ({"recipe": "cues", "student": "cnn-2"}, "stand for a recipe"),
        ({"teacher": "cnn-4", "student": "cnn-2", "data": [1, 2, 3]}, "data: a name, a folder, a Dataset"),
    ],
)
def test_bad_arguments_are_one_line(here: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        distill(**words, quiet=True)


def test_names_are_found_in_any_order() -> None:
    """Without torch until one is used; importing a room does not replace a function."""
    code = (
        "import sys, antishortcut; assert 'torch' not in sys.modules; from antishortcut.deployment import FORMATS;"
        "from antishortcut import export, distill, evaluate, audit; assert callable(export) and FORMATS"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert set(antishortcut.__all__) <= set(dir(antishortcut))


# --- Modules ---


def test_modules_teach_and_learn(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dict outputs, an early state that is a module; resumed by the same objects, opened again in another session."""
    photos = make_folder(here / "photos", per_class=6)
    teacher, early, learner = (seeded(DictNet, seed, width=width) for seed, width in ((1, 8), (2, 8), (3, 4)))
    words: dict[str, Any] = {"data": photos, "teacher": teacher, "early": early, "set": SMALL, **FAST}
    student = distill(student=learner, **words)
    assert student.run.model.name.startswith("live:DictNet-")
    weights = student.model.state_dict()
    before = learner.state_dict()
    assert any(not torch.equal(before[key], weights[f"network.body.module.{key}"]) for key in before)
    assert distill(student=seeded(DictNet, 3, width=4), **words).path == student.path  # the same weights: the same run
    assert distill(student=seeded(DictNet, 4, width=4), **words).path != student.path
    monkeypatch.setattr("antishortcut.models.user_models._objects", {})  # as in another session
    with pytest.raises(UserError, match="was a Python object, which is not here: give it again"):
        _ = Student(student.path).model
    reopened = Student(student.path, student=DictNet(width=4), teacher=teacher)
    image = torch.rand(2, 3, 32, 32)
    assert torch.equal(reopened.model(image), student.model(image))


def test_a_stopped_run_of_modules_goes_on_bit_for_bit(here: Path) -> None:
    photos = make_folder(here / "photos", per_class=12)
    whole = FAST | {"data": photos, "teacher": "cnn-4", "method": "ce", "set": SMALL, "epochs": 2}
    expected = distill(student=seeded(DictNet), **whole)
    with stop_after(4):
        distill(student=seeded(DictNet), **whole, runs="stopped")
    resumed = distill(student=seeded(DictNet), **whole, runs="stopped")
    assert same_weights(expected.path / "student.safetensors", resumed.path / "student.safetensors")


def hugging_face() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**shape, image_size=32, patch_size=8, num_labels=2)
    module: nn.Module = transformers.ViTForImageClassification(config)
    return module


def vision_transformer() -> nn.Module:
    module: nn.Module = timm.create_model("test_vit", num_classes=2)
    return module


@pytest.mark.parametrize("build", [hugging_face, vision_transformer])
def test_a_transformer_can_teach(build: Any, here: Path) -> None:
    photos = make_folder(here / "photos", per_class=4)
    words: dict[str, Any] = {"data": photos, "student": "cnn-2-8", "method": "kd", "set": SMALL, **FAST}
    student = distill(teacher=seeded(build), early="rewind", **words)
    assert student.scores["test"]["accuracy"] >= 0


def image_tower() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPVisionConfig(**shape, image_size=32, patch_size=8)
    module: nn.Module = transformers.CLIPVisionModel(config)
    return module


def test_an_image_tower_teaches_with_labelled_images_which_score_the_student(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = make_folder(here / "photos", per_class=4)
    words = FAST | {"quiet": False, "data": photos, "student": "cnn-2-8", "set": SMALL}
    student = distill(teacher=seeded(image_tower), **words)
    assert student.run.method == "features"
    assert "the student learns its embedding and the classes only score it" in " ".join(capsys.readouterr().err.split())
    assert {"knn", "linear", "teacher_knn", "teacher_linear"} == student.scores["embedding"].keys()
    assert "cosine" in student.scores["test"]
    assert student.classes == ()
    with pytest.raises(UserError, match="which 'kd' does not teach; use features"):
        distill(teacher=seeded(image_tower), **words, method="kd", suite="other")


def test_modules_and_a_dataset_without_labels(here: Path) -> None:
    """A classifier counts its classes itself, and a backbone has none."""
    images = Pictures()
    words: dict[str, Any] = FAST | {"data": images, "unlabelled": True, "student": "cnn-2-8", "set": SMALL}
    student = distill(teacher=seeded(DictNet, classes=5), **words, method="kd")
    assert student.run.data.options == {"classes": 5}
    backbone = timm.create_model("test_resnet", num_classes=0)
    assert distill(teacher=backbone, **words).run.method == "features"
    with pytest.raises(UserError, match="images without labels are one Dataset or DataLoader"):
        distill(teacher=backbone, **words | {"data": (images, images)})


def test_a_teacher_of_other_classes_is_one_line(here: Path) -> None:
    photos = make_folder(here / "photos", per_class=4)
    with pytest.raises(UserError, match=r"none of them with 2 columns; .* that only embeds: data.options.classes = 0"):
        distill(data=photos, teacher=DictNet(classes=5), student="cnn-2-8", set=SMALL, **FAST)


def test_the_name_of_a_module_has_its_weights_and_its_code() -> None:
    one, same, other = (register(seeded(DictNet, seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert register(seeded(DictNet, 1), weights=False) == register(seeded(DictNet, 2), weights=False)

    names = set()
    codes = [("x", "super().forward(x)"), ("x", "super().forward(2 * x)"), ("x", "super().forward(3 * x)")]
    for prepare, code in [*codes, ("x * 2", "super().forward(self.prepare(x))"), ("x * 3", "super().forward(x)")]:
        scope: dict[str, Any] = {"DictNet": DictNet}  # without a file, as in a notebook
        functions = f"    def prepare(self, x): return {prepare}\n    def forward(self, x): return {code}"
        exec(f"class Typed(DictNet):\n{functions}", scope)
        names.add(register(seeded(scope["Typed"], 1)))
    for scale in (1.0, 2.0):  # an attribute that is neither a layer nor a weight
        network = seeded(DictNet, 1)
        network.scale = scale
        names.add(register(network))
    assert len(names) == 7
    network = seeded(DictNet, 1)
    name = register(network)
    with torch.no_grad():
        network.fc.weight.zero_()
    assert live_copy(name).get_parameter("fc.weight").abs().sum() > 0  # as it was when it was given
    quantised: Any = torch.ao.nn.quantized
    quantised = quantised.dynamic.Linear(2, 2)
    with pytest.raises(UserError, match="only plain tensors"):
        register(quantised)


def test_the_command_cannot_build_an_object(here: Path, refusal: Refusal) -> None:
    line = refusal("distill", "cues", "--set", "student.name=live:Net-0123456789")
    assert "was a Python object, which is not here" in line


def test_the_normalisation_of_an_object_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: dict[str, Any] = FAST | {"quiet": False, "data": make_folder(here / "photos", per_class=4), "method": "ce"}
    distill(teacher="cnn-4", student=seeded(DictNet), set=SMALL, **words)
    said = capsys.readouterr().err
    assert "student DictNet: images are normalised by ImageNet's mean and std" in said
    assert re.search(r"train live:DictNet-\w+ from labels alone for \d+ epochs?, from the weights it has", said)
    own = {"student.mean": [0.0, 0.0, 0.0], "student.std": [1.0, 1.0, 1.0]}
    student = distill(teacher="cnn-4", student=seeded(DictNet), set=SMALL | own, suite="own", **words)
    assert "normalised by" not in capsys.readouterr().err
    assert student.run.model.mean == (0.0, 0.0, 0.0)


# --- Data sets ---


def test_a_dataset_is_copied_to_a_folder(tmp_path: Path) -> None:
    folder = write_folder((Coloured(30), Coloured(6)), tmp_path, quiet=True)
    sets = open_sets(f"folder:{folder}", None, image_size=32)
    assert sets.classes == ("0-red", "1-green", "2-blue")  # in the order of its labels
    assert (len(sets.train), len(sets.tests["test"])) == (30, 6)
    assert torch.equal(sets.train.label.bincount(), torch.tensor([10, 10, 10]))
    first = torch.from_numpy(np.array(Coloured()[0][0])).permute(2, 0, 1)
    assert torch.equal(sets.train.image[0], first)  # type: ignore[union-attr]
    assert write_folder((Coloured(30), Coloured(6)), tmp_path, quiet=True) == folder
    assert write_folder((Coloured(27), Coloured(6)), tmp_path, quiet=True) != folder
    assert len(list(tmp_path.iterdir())) == 2  # nothing else is left there


def test_another_process_may_write_the_same_images_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def overtaken(source: Path, target: Path) -> None:
        shutil.copytree(source, target)
        replace(source, target)

    monkeypatch.setattr("antishortcut.data.from_torch.os.replace", overtaken)
    folder = write_folder(Coloured(9), tmp_path, quiet=True)
    assert len(list(folder.rglob("*.png"))) == 9
    assert list(tmp_path.iterdir()) == [folder]


def test_loaders_tensors_and_dicts_are_the_same_images(tmp_path: Path) -> None:
    pixels = torch.stack([torch.from_numpy(np.array(Coloured()[at][0])).permute(2, 0, 1) for at in range(12)])
    labels = torch.arange(12) % 3
    whole = write_folder(TensorDataset(pixels, labels), tmp_path, quiet=True)
    floats = TensorDataset(pixels / 255, labels)
    assert write_folder(DataLoader(floats, batch_size=5, shuffle=True), tmp_path, quiet=True) == whole
    rows = [{"image": np.asarray(Coloured()[at][0]), "label": at % 3} for at in range(12)]
    rows_folder = write_folder({"train": Subset(rows, range(12))}, tmp_path, quiet=True)  # type: ignore[arg-type]
    assert rows_folder.name.split("-")[1] == whole.name.split("-")[1]
    some = SubsetRandomSampler([5, 4, 3])
    for part in (DataLoader(floats, sampler=some), DataLoader(floats, batch_sampler=BatchSampler(some, 2, False))):
        assert len(list(write_folder(part, tmp_path, quiet=True).rglob("*.png"))) == 3
    balanced = WeightedRandomSampler([1.0] * 12, 100)
    assert write_folder(DataLoader(floats, sampler=balanced), tmp_path, quiet=True) == whole


def test_a_sampler_that_may_leave_images_out_is_refused(tmp_path: Path) -> None:
    """Two loaders of one data set, each with its own indices, would train on the test images."""
    images = Coloured(12)
    train, test = (DataLoader(images, sampler=indices) for indices in ([0, 1, 2, 3, 4, 5], [6, 7, 8]))
    with pytest.raises(UserError, match="which images a list draws is not known"):
        write_folder((train, test), tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def cut_short() -> Image.Image:
    """Opened, not yet decoded."""
    data = BytesIO()
    Image.new("RGB", (64, 64)).save(data, format="BMP")
    return Image.open(BytesIO(data.getvalue()[:3000]))


def test_pictures_of_sixteen_bits_keep_their_shades(tmp_path: Path) -> None:
    deep = np.arange(0, 2**16, 256, dtype=np.uint16).reshape(16, 16)  # Pillow's convert() would make them white
    items: Any = [(Image.fromarray(deep), 0), (Image.new("L", (16, 16)), 1)]
    folder = write_folder(Subset(items, [0, 1]), tmp_path, quiet=True)
    saved = np.asarray(Image.open(folder / "0" / "0000000.png"))
    assert np.array_equal(saved, np.repeat((deep >> 8)[..., None], 3, axis=2))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(Image.new("F", (8, 8)), 0)], "item 0 has mode F, of no fixed range; make it L or RGB"),
        ([(cut_short(), 0)], "the image of item 0 cannot be read: image file is truncated"),
        ([torch.rand(3, 8, 8)], r"item 0 is a Tensor; each item is wanted as \(image, class number\)"),
        ([(torch.randn(3, 8, 8) * 3, 0)], "leave Normalize out of the transform"),
        ([(torch.rand(3, 8, 8), -1)], "the label of item 0 is -1, not a class number"),
        ([(torch.rand(3, 8, 8), torch.rand(4))], "not a class number"),
        ([{"picture": torch.rand(3, 8, 8), "target": 0}], "item 0 has picture, target; each item is wanted as"),
        ([(torch.rand(5, 8, 8), 0)], r"shape \(5, 8, 8\)"),
        ([(torch.rand(3, 8, 8), 0), (torch.rand(3, 8, 8), 2)], "no training image of class 1"),
        ([(torch.rand(3, 8, 8), 0), (torch.rand(3, 8, 8), 10**30)], "no training image of class 1;"),
        ([], "the train set has no images"),
    ],
)
def test_items_that_are_no_images_with_classes(items: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        write_folder(Subset(items, range(len(items))), tmp_path, quiet=True)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


class Endless(IterableDataset[tuple[Image.Image, int]]):
    def __iter__(self) -> Iterator[tuple[Image.Image, int]]:
        pixels = [Image.new("RGB", (2, 2), (at, 0, 0)) for at in range(9)]
        yield from ((pixels[at % 9], at % 3) for at in itertools.count())


class Longer(Endless):
    def __len__(self) -> int:
        return 5


class Failing(Coloured):
    def __getitem__(self, at: int) -> tuple[Image.Image, int]:
        raise RuntimeError("the disk is gone")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (Endless(), "Endless gives more than 1,000 images .9 different ones, and it has no length.; does it end"),
        (Longer(), "Longer gives more than 5 images"),
        (Failing(), "item 0 of Failing cannot be read: RuntimeError: the disk is gone"),
    ],
)
def test_data_sets_that_do_not_end_or_fail(images: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        write_folder(images, tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_dataset_trains_a_student_that_needs_it_no_more(here: Path) -> None:
    words: dict[str, Any] = {"teacher": "cnn-4", "student": "cnn-2-8", "set": {"optim.batch": 8}, **FAST}
    student = distill(data=(Coloured(30), Coloured(12)), **words)
    assert student.classes == ("0-red", "1-green", "2-blue")
    scores = json.loads(invoke("evaluate", student.path, "--on", "clean", "--device", "cpu", "--json").stdout)
    assert scores["runs"][0]["scores"]["test"]["count"] == 12
