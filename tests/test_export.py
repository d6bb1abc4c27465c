"""Export: what others read gives what the student gives, from files alone, or nothing is written."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from antishortcut.cli import app, main
from antishortcut.cli.export import FORMATS as OFFERED
from antishortcut.errors import UserError
from antishortcut.evaluate import EVALUATIONS, Bench, evaluate
from antishortcut.evaluate.latency import interleaved
from antishortcut.export import FORMATS, destination, export
from antishortcut.export.check import difference
from antishortcut.export.markdown import plain
from antishortcut.export.measured import EVALUATIONS as KNOWN
from antishortcut.export.whole import placing
from antishortcut.folder import UMASK, Folder, write_json
from antishortcut.models import Network
from antishortcut.report import make_report
from antishortcut.report.collect import collect
from antishortcut.report.sizes import size_table
from antishortcut.run import DataSettings, Execution, ModelSettings, OptimSettings, Recipe, Run, load_recipe
from antishortcut.teachers import Trajectory, network_of, save_weights
from antishortcut.workflow import Workshop, distill, teach
from tests.hostile.test_disks import disk as disk
from tests.hostile.test_disks import filled, killed, killing_before
from tests.test_dense_runs import SMALL

TIMM = "timm:mobilenetv3_small_050"  # of few parameters, with batch norm and squeezed channels


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    torch.set_num_threads(1)
    execution = Execution(accelerator="cpu", threads=1, save_every=1e9)
    return Workshop(tmp_path_factory.mktemp("export") / "runs", execution=execution, quiet=True)


def small(*more: str) -> Recipe:
    few = ["epochs=1", "teacher.epochs=1", "data.options.count=96", "data.options.test_count=40", "optim.batch=32"]
    networks = ["teacher.name=cnn-4-16", "student.name=cnn-2-16", "teacher.keep=[15]"]
    return load_recipe("cues", [*few, *networks, *more])


@pytest.fixture(scope="module")
def student(shop: Workshop) -> Folder:
    """A student and its teacher, scored."""
    run = distill(small(), shop, method="kd", seed=3, suite="s")
    folder = Folder(run.folder(shop.runs))
    evaluate(folder, Bench(shop.sets(run.data), shop.runs), ["clean", "mechanism", "cost"])
    return folder


@pytest.fixture(scope="module")
def of_timm(shop: Workshop) -> Folder:
    """A timm student that leans on nobody: its weights are as they began, its batch norm's means are not."""
    run = distill(small(f"student.name={TIMM}", "data.image_size=40"), shop, method="ce", seed=1, suite="timm")
    return Folder(run.folder(shop.runs))


@pytest.fixture(scope="module")
def dense(shop: Workshop) -> Folder:
    run = distill(load_recipe("cues-seg", [*SMALL, "iterations=2"]), shop, method="kd", seed=1, suite="dense")
    return Folder(run.folder(shop.runs))


def original(folder: Folder, shop: Workshop) -> Network:
    """The student as the run left it, opened without the code under test."""
    run, _ = folder.read()
    sets = shop.sets(run.data)
    network = network_of(run.model, len(sets.classes), sets.image_size)
    network.load_state_dict(load_file(folder.student))
    return network.eval()


def images(folder: Folder, shop: Workshop, count: int) -> Tensor:
    """The first of its own test images."""
    held: Any = next(iter(shop.sets(folder.read()[0].data).tests.values()))
    return torch.as_tensor(held.image[:count]).float() / 255


def close(given: Any, wanted: Tensor) -> None:
    wanted = wanted.detach()
    torch.testing.assert_close(torch.as_tensor(given), wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def runtime(place: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(place / "model.onnx", options)


def elsewhere(code: str, place: Path) -> None:
    """Run lines of Python in a folder, where the package cannot be imported."""
    lost = "import sys; sys.modules['antishortcut'] = None\n"
    subprocess.run([sys.executable, "-W", "ignore", "-c", lost + code], cwd=place, check=True)


def fresh(place: Path, model: str, side: int, classes: int = 3, **more: Any) -> Folder:
    """A finished run whose student is as it began, written by hand, of data that are not here."""
    settings = {"model": ModelSettings(name=model, **more), "data": DataSettings(name="folder:/x/y", image_size=side)}
    run = Run(
        kind="distill",
        name="kd",
        seed=1,
        suite="s",
        epochs=1,
        method="kd",
        fingerprint="f",
        optim=OptimSettings(),
        **settings,
    )
    folder = Folder(place)
    folder.begin(run, {}, {})
    torch.manual_seed(0)
    save_weights(folder.student, network_of(run.model, classes, side))
    folder.finish({"set": "test", "last": {"accuracy": 0.5}})
    return folder


def everything(place: Path) -> set[Path]:
    return set(place.rglob("*"))


def test_onnx_runtime_gives_what_the_student_gives(student: Folder, shop: Workshop, tmp_path: Path) -> None:
    made = export(student, "onnx", shop.sets(student.read()[0].data), out=tmp_path / "o", embedding=True)
    session, network = runtime(made.place), original(student, shop)
    assert [(i.name, i.shape) for i in session.get_inputs()] == [("image", ["batch", 3, 32, 32])]
    assert [o.name for o in session.get_outputs()] == ["logits", "embedding"]
    for count in (1, 5, 7):
        image = images(student, shop, count)
        seen = network(image)
        for given, wanted in zip(
            session.run(None, {"image": image.numpy()}), (seen.logits, seen.embedding), strict=True
        ):
            close(given, wanted)
    assert made.record["output"] == {"logits": ["batch", 10], "embedding": ["batch", 16]}
    assert 0 < made.record["check"]["largest"] <= made.record["check"]["allowed"] == 1e-4
    assert made.record["check"]["images"] == "5 images of the iid set of cues"
    assert made.record["check"]["batches"] == (1, 2, 5)
    assert b"antishortcut/" not in (made.place / "model.onnx").read_bytes()  # no paths of this machine


def test_scenes_of_any_size(dense: Folder, shop: Workshop) -> None:
    made = export(dense, "onnx", shop.sets(dense.read()[0].data))
    assert made.place == dense.path / "export" / "onnx"
    session, network = runtime(made.place), original(dense, shop)
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    for shape in ((1, 3, 32, 32), (3, 3, 41, 52), (2, 3, 96, 17)):
        image = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        (logits,) = session.run(["logits"], {"image": image.numpy()})
        close(logits, network(image).logits)
    card = (made.place / "README.md").read_text()
    assert "image-segmentation" in card
    assert made.record["check"]["sizes"] == ((32, 32), (29, 27))
    assert "brought to the image's size bilinearly before argmax" in card


def test_a_torch_program_needs_no_package_of_ours(student: Folder, shop: Workshop, tmp_path: Path) -> None:
    made = export(student, "torch", None, out=tmp_path / "t", embedding=True)
    image, network = images(student, shop, 4), original(student, shop)
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
    with zipfile.ZipFile(made.place / "model.pt2") as archive:
        assert not [name for name in archive.namelist() if b"antishortcut/" in archive.read(name)]


def test_safetensors_hold_the_bare_networks_weights(of_timm: Folder, shop: Workshop, tmp_path: Path) -> None:
    made = export(of_timm, "safetensors", shop.sets(of_timm.read()[0].data), out=tmp_path / "s")
    bare = timm.create_model(TIMM.removeprefix("timm:"), num_classes=10).eval()
    bare.load_state_dict(load_file(made.place / "model.safetensors"))
    image, record = images(of_timm, shop, 3), json.loads((made.place / "export.json").read_text())
    mean, std = (torch.tensor(record[key]).view(3, 1, 1) for key in ("mean", "std"))
    close(bare((image - mean) / std).detach(), original(of_timm, shop)(image).logits)
    assert (record["model"], record["classes"], record["image_size"]) == (TIMM, 10, 40)
    assert record["names"] == list(shop.sets(of_timm.read()[0].data).classes)
    assert len(record["load"]) == 3
    assert stat.S_IMODE((made.place / "model.safetensors").stat().st_mode) == 0o666 & ~UMASK  # not private


def test_weights_begin_another_recipe(student: Folder, shop: Workshop, tmp_path: Path) -> None:
    """What export.json says of the student goes into a recipe as it is, but for where the file lies."""
    made = export(student, "safetensors", None, out=tmp_path / "s")
    wanted = made.record["recipe"]["student"]
    assert wanted == {"name": "cnn-2-16", "weights": "model.safetensors"}
    overrides = [f"student.name={wanted['name']}", f"student.weights={made.place / wanted['weights']}"]
    recipe = small(*overrides, "optim.rate=1e-12")  # nothing is learned
    again = Folder(distill(recipe, shop, method="ce", seed=1, suite="again").folder(shop.runs))
    for (name, ours), theirs in zip(
        original(student, shop).named_parameters(), original(again, shop).parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_timm_loads_its_folder(of_timm: Folder, shop: Workshop, tmp_path: Path) -> None:
    made = export(of_timm, "timm", shop.sets(of_timm.read()[0].data), out=tmp_path / "t")
    loaded = timm.create_model(f"local-dir:{made.place}", pretrained=True).eval()
    from timm.data.config import resolve_data_config

    wanted: Any = resolve_data_config({}, model=loaded)  # type: ignore[no-untyped-call]
    assert (wanted["input_size"], wanted["crop_pct"], wanted["interpolation"]) == ([3, 40, 40], 1.0, "bilinear")
    config: Any = loaded.pretrained_cfg
    assert config["label_names"] == list(shop.sets(of_timm.read()[0].data).classes)
    image = images(of_timm, shop, 3)
    mean, std = (torch.tensor(wanted[key]).view(3, 1, 1) for key in ("mean", "std"))
    close(loaded((image - mean) / std).detach(), original(of_timm, shop)(image).logits)


@pytest.mark.parametrize("form", FORMATS)
def test_the_lines_of_the_card_run_where_it_lies(
    form: str, student: Folder, of_timm: Folder, shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = of_timm if form == "timm" else student
    made = export(folder, form, None, out=tmp_path / form)
    (block,) = re.findall(r"```python\n(.*?)```", (made.place / "README.md").read_text(), re.DOTALL)
    assert len(block.splitlines()) == 5
    assert block.splitlines()[: len(made.record["load"])] == made.record["load"]
    monkeypatch.chdir(made.place)
    if made.record["recipe"] is None:  # others need no package of ours
        monkeypatch.setitem(sys.modules, "antishortcut", None)
    names: dict[str, Any] = {}
    exec(compile(block, form, "exec"), names)
    if "logits" in names:
        assert tuple(names["logits"].shape) == (1, 10)
    assert not [path for path in made.place.parent.iterdir() if path.name.startswith(".")]


def test_the_card_says_what_the_files_say(student: Folder, shop: Workshop, tmp_path: Path) -> None:
    run, _ = student.read()
    made = export(student, "safetensors", shop.sets(run.data), out=tmp_path / "c")
    card = (made.place / "README.md").read_text()
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
    assert f"shape_bias {scores['conflict']['values']['shape_bias']:.3f}" in card
    assert f"projection {scores['mechanism']['values']['aligned']['projection']:.3f}" in card
    (size,) = [row for row in rows if row[0] == "cnn-2-16"]
    assert size[3] == f"{scores['cost']['values']['ms']:.3g} ms"
    assert "## Licence" in card
    for score in (student.path / "scores").iterdir():  # what is not there is not said
        shutil.move(score, tmp_path / score.name)
    try:
        bare = export(student, "safetensors", None, out=tmp_path / "bare")
    finally:
        for score in tmp_path.glob("*.json"):
            shutil.move(score, student.path / "scores" / score.name)
    card = (bare.place / "README.md").read_text()
    assert "Not measured." in card
    assert "Latency was not measured" in card
    assert "by_shape" not in card
    assert "(`clean`)" in card
    assert "it was checked on noise" in card


def test_the_card_as_the_hub_reads_it(student: Folder, dense: Folder, shop: Workshop, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    made = export(student, "torch", None, out=tmp_path / "t")
    held = ModelCard.load(made.place / "README.md").data
    assert (held.library_name, held.pipeline_tag) == ("torch", "image-classification")
    assert held.tags == ["antishortcut", "knowledge-distillation", "kd"]
    found = {(each.dataset_split, each.metric_name): each.metric_value for each in held.eval_results}
    scores = student.scores()
    assert found["conflict", "shape_bias"] == pytest.approx(scores["conflict"]["values"]["shape_bias"], abs=1e-6)
    assert found["iid", "accuracy"] == pytest.approx(scores["iid"]["values"]["accuracy"], abs=1e-6)
    made = export(dense, "safetensors", None, out=tmp_path / "d")
    held = ModelCard.load(made.place / "README.md").data
    assert [each.metric_type for each in held.eval_results] == ["mean_iou"]


def test_the_card_names_every_evaluation_there_was_not(student: Folder, tmp_path: Path) -> None:
    assert set(KNOWN) == set(EVALUATIONS) - {"scenes"}  # which are looked at
    card = (export(student, "safetensors", None, out=tmp_path / "c").place / "README.md").read_text()
    (line,) = [line for line in card.splitlines() if line.startswith("Not measured: ")]
    measured = {"clean", "mechanism", "cost"}
    assert set(re.findall(r"\(`(.*?)`\)", line)) == set(KNOWN) - measured
    for view in ("aligned", "raw"):
        for name, value in student.scores()["mechanism"]["values"][view].items():
            assert f"{value:.3f}" in next(row for row in card.splitlines() if row.startswith(f"| {name} |"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("![x](http://e.vil/p.png)", "!&#91;x&#93;(http:&#47;/e.vil/p.png)"),
        ("a|b\n# c", "a\\|b # c"),
        ("`rm` *b* _c_ d_e", "&#96;rm&#96; &#42;b&#42; &#95;c&#95; d_e"),
        ("<b>&amp;", "&#60;b>&amp;amp;"),
        ("right\u202eleft\x1b[31m", "rightleft&#91;31m"),
        ("北京 ärger", "北京 ärger"),
    ],
)
def test_names_start_no_markup(name: str, shown: str) -> None:
    assert plain(name) == shown


def test_a_hostile_name_stays_in_its_cell(student: Folder, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / "s" / "kd-s3"
    shutil.copytree(student.path, copy)
    known = json.loads((copy / "run.json").read_text())
    known["run"]["name"] = "a|b<script>\n# c"
    known.pop("sum", None)  # as one who edits it does
    write_json(copy / "run.json", known)
    write_json(copy / "scores" / "odd.json", {"values": {"x": "words", "y": None, "z": 1.5}, "source": "<b>"})
    card = (export(Folder(copy), "safetensors", None).place / "README.md").read_text()
    assert "<script>" not in card
    assert "a\\|b&#60;script> # c" in card
    assert "| odd | z | 1.5000 | – | &#60;b> |" in card
    assert "words" not in card
    assert "its teacher" not in card  # its folder is not beside this copy


def test_without_its_data_a_run_is_still_exported(of_timm: Folder, dense: Folder, tmp_path: Path) -> None:
    """The weights tell how many classes there are."""
    for folder, classes in ((of_timm, 10), (dense, 11)):
        record = export(folder, "safetensors", None, out=tmp_path / folder.path.parent.name).record
        assert (record["classes"], record["names"]) == (classes, None)
        assert record["check"]["images"] == "5 images of noise"


def test_states_of_a_teacher(shop: Workshop, student: Folder) -> None:
    folder = Folder(teach(small(), shop).folder(shop.runs))
    trajectory = Trajectory(folder)
    for state, place in (("final", "safetensors"), ("15%", "safetensors@15%")):
        made = export(folder, "safetensors", None, state=state)
        assert made.place == folder.path / "export" / place
        written = load_file(made.place / "model.safetensors")
        assert all(
            torch.equal(value, written[key.removeprefix("body.")]) for key, value in trajectory.weights(state).items()
        )
    card = (made.place / "README.md").read_text()
    assert f"| judged | accuracy | {trajectory.entry('15%')['accuracy']:.4f} |" in card
    with pytest.raises(UserError, match=r"kept no state '30%'"):
        export(folder, "safetensors", None, state="30%")
    with pytest.raises(UserError, match="final state alone"):
        export(student, "safetensors", None, state="15%")


def test_what_disagrees_is_refused(
    student: Folder, shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that loses a bias, one that returns another shape, a student that is not finite."""
    from antishortcut.export import formats

    plain = formats._plain

    def spoiled(module: nn.Module) -> dict[str, Tensor]:
        return {key: value + 0.01 * (key == "head.bias") for key, value in plain(module).items()}

    before = everything(tmp_path)
    monkeypatch.setattr(formats, "_plain", spoiled)
    with pytest.raises(UserError, match=r"differs from the original by 0\.\d+ of its largest value on 1 of 5 images"):
        export(student, "safetensors", None, out=tmp_path / "deep" / "s")
    assert everything(tmp_path) == before
    monkeypatch.undo()
    copy = tmp_path / "runs" / "s" / "kd-s3"
    shutil.copytree(student.path, copy)
    weights = load_file(copy / "student.safetensors")
    weights["body.head.bias"][0] = float("nan")
    save_file(weights, copy / "student.safetensors")
    Folder(copy).finish(Folder(copy).result())  # with their checksum
    with pytest.raises(UserError, match="not finite"):
        export(Folder(copy), "safetensors", None)
    assert not (copy / "export").exists()


def test_a_student_that_is_damaged_is_said_in_a_line(student: Folder, tmp_path: Path) -> None:
    copy = Folder(tmp_path / "s" / "kd-s3")
    shutil.copytree(student.path, copy.path)
    whole = copy.student.read_bytes()
    before = everything(tmp_path)
    copy.student.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"student.safetensors: damaged \(not what was saved\); restore it"):
        export(copy, "safetensors", None)
    write_json(copy.path / "result.json", {**copy.result(), "sha256": None})  # as an older version wrote it
    with pytest.raises(UserError, match="holds no plain tensors"):
        export(copy, "safetensors", None)
    other = {key: value for key, value in load_file(student.student).items() if "head" not in key}
    save_file(other, copy.student)
    with pytest.raises(UserError, match=r"missing \(body\.head\.weight"):
        export(copy, "safetensors", None)
    assert everything(tmp_path) == before
    copy.student.write_bytes(whole)
    write_json(copy.path / "result.json", {})  # finished, as far as is known
    assert "at the end of training" not in (export(copy, "safetensors", None).place / "README.md").read_text()


def test_what_others_raise_is_said_in_a_line(student: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Smaller and larger images than it takes; its embedding is named elsewhere."""
    folder = fresh(tmp_path / "run", "timm:test_vit", side, embedding="blocks.2")
    made = export(folder, "onnx", None, out=tmp_path / "o", embedding=True)
    assert (made.record["image_size"], made.record["resized_to"]) == (side, 160)
    assert runtime(made.place).get_inputs()[0].shape == ["batch", 3, side, side]
    assert made.record["output"]["embedding"] == ["batch", 64]
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
    made = export(folder, "safetensors", None, out=tmp_path / "s")
    assert json.loads((made.place / "export.json").read_text())["recipe"]["student"] == {
        "name": model, "weights": "model.safetensors", "size": size, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]
    }  # fmt: skip
    names: dict[str, Any] = {}
    exec("\n".join(made.record["load"]).replace('"model.', f'"{made.place}/model.'), names)
    image = torch.rand(2, 3, 32, 32)
    wanted = network_of(folder.read()[0].model, 3, 32)
    wanted.load_state_dict(load_file(folder.student))
    wanted.eval()
    close(names["student"](image).logits.detach(), wanted(image).logits)
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
    folder = fresh(tmp_path / "run", "import:tests.test_export:OneSize", 32, classes=5)
    monkeypatch.setattr("antishortcut.export.opened._noise", lambda side, maps: ((torch.rand(3, 32, 32),) * 5, "noise"))
    monkeypatch.setattr(sys, "argv", ["asd", "export", str(folder.path), "--to", "onnx"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    line, place = capsys.readouterr().out.strip().splitlines()[-2:]
    said = "torch.export cannot follow import:tests.test_export:OneSize for any height and width ("
    assert line.startswith(f"takes scenes of 32 × 32 alone: {said}")
    assert runtime(Path(place)).get_inputs()[0].shape == ["batch", 3, 32, 32]
    assert "It takes scenes of one size alone" in (Path(place) / "README.md").read_text()


def test_differences() -> None:
    wanted = torch.tensor([[1.0, -4.0]])
    assert difference(wanted, wanted + torch.tensor([[0.0, 0.02]])) == pytest.approx(0.005)
    assert difference(wanted, wanted.T) == float("inf")
    assert difference(torch.zeros(1, 2), torch.zeros(1, 2)) == 0
    assert not difference(wanted, torch.tensor([[1.0, float("nan")]])) <= 1e9


def test_only_exports_are_replaced_and_only_when_told(student: Folder, tmp_path: Path) -> None:
    place = tmp_path / "s"
    export(student, "safetensors", None, out=place)
    first = (place / "export.json").stat().st_ino
    with pytest.raises(UserError, match="--force"):
        export(student, "safetensors", None, out=place)
    export(student, "safetensors", None, out=place, force=True)
    assert (place / "export.json").stat().st_ino != first
    (place / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="other things"):
        export(student, "safetensors", None, out=place, force=True)
    assert (place / "mine.txt").read_text() == "mine"
    with pytest.raises(UserError, match="is a file"):
        export(student, "safetensors", None, out=_file(tmp_path), force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"s", "file"}


def test_a_folder_that_is_there_stays_there(student: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shell stands, another disk, a link to it: its files change, all or none."""
    place = tmp_path / "here"
    place.mkdir()
    (tmp_path / "link").symlink_to(place)
    inode = place.stat().st_ino
    monkeypatch.chdir(place)
    export(student, "safetensors", None, out=Path())
    made = {path.name: path.read_bytes() for path in place.iterdir()}
    assert set(made) == {"README.md", "export.json", "model.safetensors"}
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target == place / "model.safetensors" and source.parent.name == "new":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"cannot write .*here \(No space left on device\); name another folder"):
        export(student, "safetensors", None, out=tmp_path / "link", force=True)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == made
    monkeypatch.undo()
    export(student, "torch", None, out=tmp_path / "link", force=True)
    assert {path.name for path in place.iterdir()} == {"README.md", "export.json", "model.pt2"}
    assert (place.stat().st_ino, (tmp_path / "link").is_symlink()) == (inode, True)


FORM = "safetensors"
MOVES = 7  # of an exchange: three files go, the old ones are let go of, three come


def written(work: Path, content: str) -> None:
    for name in ("model.safetensors", "README.md"):
        (work / name).write_text(content)
    (work / "export.json").write_text(json.dumps({"files": {"model.safetensors": 3}, "made": content}))


def kill_inside(place: Path, moves: int | None) -> None:
    """An export killed before so many of its moves, or, None, while it writes."""

    def work() -> None:
        os.replace = killing_before(moves or 0)
        with placing(place, "export") as work:
            written(work, "new")
            if moves is None:
                os.kill(os.getpid(), signal.SIGKILL)

    killed(work)


@pytest.mark.parametrize("moves", [None, *range(MOVES)])
def test_a_killed_export_leaves_the_old_or_the_new_whole(student: Folder, tmp_path: Path, moves: int | None) -> None:
    place = tmp_path / "s"
    with placing(place, "export") as work:
        written(work, "old")
    kill_inside(place, moves)
    assert any(path.name.startswith(".s.export-") for path in place.iterdir())
    with pytest.raises(UserError, match="is there already; --force"):
        destination(student, FORM, "final", place, force=False)
    assert {path.name for path in place.iterdir()} == {"model.safetensors", "README.md", "export.json"}
    new = moves is not None and moves > 3
    assert [(place / name).read_text() for name in ("model.safetensors", "README.md")] == ["new" if new else "old"] * 2
    assert json.loads((place / "export.json").read_text())["made"] == ("new" if new else "old")
    export(student, FORM, None, out=place, force=True)
    assert {path.name for path in place.iterdir()} == {"model.safetensors", "README.md", "export.json"}


@pytest.mark.parametrize("there", [False, True])
def test_what_a_killed_first_export_left_is_swept(student: Folder, tmp_path: Path, there: bool) -> None:
    place = tmp_path / "s"
    if there:
        place.mkdir()
    mine = tmp_path / ".s.mine"
    mine.mkdir()
    kill_inside(place, None)
    left = [path for path in everything(tmp_path) if path.name.startswith(".s.export-")]
    assert len(left) == 1
    export(student, FORM, None, out=place)
    assert {path.name for path in place.iterdir()} == {"model.safetensors", "README.md", "export.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"s", ".s.mine"}


@pytest.mark.parametrize("there", [False, True])
def test_an_export_at_work_is_left_alone(student: Folder, tmp_path: Path, there: bool) -> None:
    place = tmp_path / "s"
    if there:
        place.mkdir()
    with placing(place, "export") as work:
        written(work, "first")
        if there:
            with pytest.raises(UserError, match=r"s: another export is being written there; wait"):
                export(student, FORM, None, out=place)
        else:
            assert destination(student, FORM, "final", place, force=False) == place
        assert (work / "README.md").read_text() == "first"
    assert (place / "README.md").read_text() == "first"


def test_where_nothing_can_be_written(student: Folder, tmp_path: Path) -> None:
    """A run folder that is read alone, as a file in the way is to one that may write everywhere."""
    copy = tmp_path / "s" / "kd-s3"
    shutil.copytree(student.path, copy)
    (copy / "export").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*export/safetensors \(.*\); name another folder as --out"):
        export(Folder(copy), "safetensors", None)
    assert export(Folder(copy), "safetensors", None, out=tmp_path / "o").place.is_dir()


def test_data_of_another_run_are_refused(student: Folder, shop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fingerprints differ"):
        export(student, "safetensors", shop.sets(small("data.seed=1").data), out=tmp_path / "o")


def _file(place: Path) -> Path:
    (place / "file").write_text("x")
    return place / "file"


def asd(*words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command(student: Folder, tmp_path: Path) -> None:
    assert set(OFFERED) == set(FORMATS)
    told = asd("export", str(student.path), "--to", "torch", "--out", str(tmp_path / "t"), "--threads", "1")
    teacher = Folder(student.path.parent.parent / "teachers" / str(student.read()[0].teacher))
    (state,) = [entry for entry in Trajectory(teacher).entries if "100%" in entry["labels"]]
    assert told["teacher"] == {
        "parameters": teacher.result()["parameters"],
        "bytes": (teacher.snapshots / state["file"]).stat().st_size,
    }
    assert told["parameters"] == student.result()["parameters"]
    assert told["files"] == {"model.pt2": (tmp_path / "t" / "model.pt2").stat().st_size}
    assert json.loads((tmp_path / "t" / "export.json").read_text()) == {
        key: value for key, value in told.items() if key not in ("out", "teacher")
    }
    words = ["export", str(student.path), "--to", "safetensors", "--out", str(tmp_path / "s")]
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert shown.splitlines()[-1] == str(tmp_path / "s")
    assert "its teacher cnn-4-16" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUN", "--to", "onx"], "did you mean 'onnx'"),
        (["RUN", "--to", "timm"], "cnn-2-16 is not a timm model"),
        (["RUN", "--to", "safetensors", "--embedding"], "--embedding is for onnx and torch"),
        (["RUN", "--to", "onnx", "--out", "x.onnx"], "name a folder, x;"),
        (["RUN", "--to", "onnx", "--state", "15%"], "final state alone"),
        (["nothing", "--to", "onnx"], "not a run folder"),
        (["BEGUN", "--to", "onnx"], "is not finished"),
        (["RUN", "--to", "onnx"], "needs onnxruntime, which is not installed: pip install 'antishortcut[export]'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    student: Folder, tmp_path: Path, words: list[str], said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shutil.copytree(student.path, tmp_path / "r" / "s" / "run")
    shutil.copytree(student.path, tmp_path / "r" / "s" / "begun")
    (tmp_path / "r" / "s" / "begun" / "result.json").unlink()
    places = {"RUN": "r/s/run", "BEGUN": "r/s/begun"}
    if "onnxruntime" in said:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    before = everything(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asd", "export", *(places.get(word, word) for word in words)])
    with pytest.raises(SystemExit) as caught:
        main()
    captured = capsys.readouterr()
    assert (caught.value.code, captured.out) == (2, "")
    line = captured.err.strip().splitlines()[-1]
    assert line.startswith("asd: ")
    assert said in line
    assert "Traceback" not in captured.err
    assert everything(tmp_path) == before


class Stubborn(nn.Module):
    """Asks for the numbers themselves, which no trace can follow."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(dim=(2, 3))  # (B, 3)
        logits: Tensor = self.head(pooled if float(pooled.sum()) > 0 else -pooled)
        return logits


def test_a_network_that_cannot_be_traced_is_said_in_a_line(shop: Workshop, tmp_path: Path) -> None:
    run = distill(small("student.name=import:tests.test_export:Stubborn"), shop, method="ce", seed=1, suite="stubborn")
    folder = Folder(run.folder(shop.runs))
    for form in ("onnx", "torch"):
        with pytest.raises(UserError, match=r"cannot follow import:tests.test_export:Stubborn") as told:
            export(folder, form, None, out=tmp_path / form)
        assert "\n" not in str(told.value)
    export(folder, "safetensors", None, out=tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_latency_is_measured_in_turns() -> None:
    """A clock by hand: the slow call takes 3, the fast 1; what disturbs a round disturbs both."""
    now, order = [0.0], list[str]()

    def call(name: str, seconds: float) -> None:
        order.append(name)
        now[0] += seconds

    calls = {"slow": lambda: call("slow", 3.0), "fast": lambda: call("fast", 1.0)}
    taken = interleaved(calls, rounds=4, warm=2, seconds=1e9, clock=lambda: now[0])
    assert taken == {"slow": [3.0] * 4, "fast": [1.0] * 4}
    assert order == ["slow", "fast", "fast", "slow"] * 3
    assert {
        len(each) for each in interleaved(calls, rounds=60, warm=1, seconds=0.0, clock=lambda: now[0]).values()
    } == {5}


def test_cost_is_scored_once_on_a_machine(student: Folder, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = Folder(shop.runs / "teachers" / str(student.read()[0].teacher))
    values = student.scores()["cost"]["values"]
    assert values["parameters"] == student.result()["parameters"]
    assert values["teacher_parameters"] == teacher.result()["parameters"]
    assert values["bytes"] == (student.path / "student.safetensors").stat().st_size
    assert 0 < values["ms"] < 1e3 * 60
    assert values["times_faster"] > 0
    bench = Bench(shop.sets(student.read()[0].data), shop.runs)
    assert evaluate(student, bench, ["cost"])["cost"]["values"] == values  # not again
    monkeypatch.setattr("antishortcut.evaluate.latency.processor", lambda: "another")
    assert evaluate(student, bench, ["cost"])["cost"]["machine"].startswith("another, 1 thread, cpu, float32, torch ")
    alone = evaluate(teacher, bench, ["cost"])["cost"]["values"]
    assert set(alone) == {"ms", "parameters", "bytes"}
    assert alone["parameters"] == values["teacher_parameters"]


def test_the_report_shows_size_and_latency(student: Folder, shop: Workshop, tmp_path: Path) -> None:
    """One run measured, one not, on one machine; the teacher stands before its students."""
    suite = tmp_path / "runs" / "s"
    shutil.copytree(student.path, suite / "kd-s3")
    shutil.copytree(shop.runs / "teachers", tmp_path / "runs" / "teachers")
    run, _ = student.read()
    other = Folder(suite / "asd-s3")
    other.begin(run.model_copy(update={"name": "asd"}), {}, {})
    other.finish(student.result())
    cost = student.scores()["cost"]
    teacher, own = make_report(suite)["sizes"]
    values = cost["values"]
    assert teacher == {
        "network": "cnn-4-16", "role": "teacher", "parameters": values["teacher_parameters"], "faster": None,
        "ms": values["teacher_ms"], "bytes": values["teacher_bytes"], "smaller": None, "runs": 1,
        "machine": cost["machine"],
    }  # fmt: skip
    assert (own["role"], own["ms"], own["faster"], own["runs"]) == ("student", values["ms"], values["times_faster"], 1)
    assert own["smaller"] == pytest.approx(values["teacher_parameters"] / values["parameters"])
    page, text = (suite / "report.html").read_text(), (suite / "table.md").read_text()
    assert '<section id="sizes"><h2>Size and latency</h2>' in page
    assert f"| cnn-2-16 | student | {values['parameters']:,} |" in text
    assert "cost ms" not in text  # no score of its answers
    (suite / "kd-s3" / "scores" / "cost.json").unlink()
    for row in make_report(suite)["sizes"]:  # parameters are known without
        assert (row["ms"], row["bytes"], row["machine"]) == (None, None, None)
        assert row["parameters"] > 0
    assert "asd evaluate --on cost" in (suite / "table.md").read_text()


def test_the_report_names_machines_by_letters_where_there_are_several(
    student: Folder, shop: Workshop, tmp_path: Path
) -> None:
    suite = tmp_path / "runs" / "s"
    shutil.copytree(shop.runs / "teachers", tmp_path / "runs" / "teachers")
    for seed, machine in ((3, "one"), (4, "one"), (5, "another")):
        shutil.copytree(student.path, suite / f"kd-s{seed}")
        known = json.loads((suite / f"kd-s{seed}" / "run.json").read_text())
        known.pop("sum", None)  # as one who edits it does
        write_json(suite / f"kd-s{seed}" / "run.json", known | {"run": known["run"] | {"seed": seed}})
        score = student.scores()["cost"]
        changed = {"machine": machine, "values": score["values"] | {"ms": float(seed)}}
        write_json(suite / f"kd-s{seed}" / "scores" / "cost.json", score | changed)
    held = size_table(collect(suite))
    assert held is not None
    assert held.head()[-2:] == ["runs", "on"]
    rows = [(row[1], row[4], *row[-2:]) for row in held.texts() if row[1] == "student"]
    assert rows == [("student", "3.5 ± 0.71", "2", "A"), ("student", "5", "1", "B")]
    assert held.told().endswith("Measured on A: one; B: another.")


def test_every_block_of_the_page_runs(shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent / "docs" / "export.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "py", "py", "toml", "sh"]
    monkeypatch.chdir(tmp_path)
    few = ["epochs=1", "teacher.epochs=1", "data.options.count=64", "data.options.test_count=16", "teacher.keep=[15]"]
    here = Workshop(Path("runs"), execution=shop.execution, quiet=True)
    run = distill(load_recipe("cues", few), here, method="asd", seed=1, suite="cues")
    names: dict[str, Any] = {}
    for kind, block in blocks:
        if kind == "py":
            exec(compile(block, "docs/export.md", "exec"), names)
            assert tuple(names["logits"].shape) == (3, 10)
        elif kind == "toml":
            model = ModelSettings.model_validate(tomllib.loads(block)["student"])
            weights = network_of(model, 10, 32).state_dict()
            kept = load_file(Folder(run.folder(Path("runs"))).student)
            assert all(torch.equal(weights[key], value) for key, value in kept.items())
        else:
            for line in block.replace("<hash>", str(run.teacher)).splitlines():
                words = shlex.split(line, comments=True)[1:]
                result = CliRunner().invoke(app, words, catch_exceptions=False)
                assert result.exit_code == 0, result.output
    assert tuple(names["embedding"].shape) == (3, 64)
    assert "Size and latency" in Path("runs/cues/table.md").read_text()


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_full_disk_is_said_to_be_one(student: Folder, disk: Path, form: str) -> None:
    """Where torch itself cannot write the last of an archive, it aborts the process."""
    filled(disk)
    with pytest.raises(UserError) as caught:
        export(student, form, None, out=disk / "new")
    assert str(caught.value) == f"cannot write {disk / 'new'} (No space left on device); name another folder as --out"
    assert [path.name for path in disk.iterdir()] == ["rest"]
