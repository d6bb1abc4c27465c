"""Image files to class names: asd predict, antishortcut.predict, and the lines of the ONNX card."""

import json
import re
from pathlib import Path

import onnx
import pytest
import torch
from typer.testing import CliRunner

from antishortcut import load, predict
from antishortcut.cli import app
from antishortcut.data.image_io import fit, pixels, read
from antishortcut.deployment import export
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir, write_json
from antishortcut.training.pipeline import Session
from tests.deployment.subjects import fresh, photo, without_package

NAMES = ["ant", "bee", "a cat"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Of images that are cut out of larger ones."""
    folder = fresh(tmp_path_factory.mktemp("large") / "run", "cnn-2-16", 96)
    write_json(folder.path / "result.json", folder.result() | {"classes": NAMES})
    return folder


@pytest.fixture(scope="module")
def in_onnx(large: RunDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(large, "onnx", None, out=tmp_path_factory.mktemp("onnx") / "o").place


@pytest.mark.parametrize(("width", "height"), [(150, 110), (60, 201)])
def test_the_onnx_card_pasted_names_what_is_on_a_jpeg(
    large: RunDir, in_onnx: Path, width: int, height: int, capfd: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (in_onnx / "README.md").read_text(), re.DOTALL)
    picture = photo(in_onnx / "photo.jpg", width, height)
    without_package(block, in_onnx)
    printed = capfd.readouterr().out.splitlines()
    for model in (large.path, in_onnx / "model.onnx"):
        (answer,) = predict(model, picture)
        assert printed == [f"{each['class']} {each['confidence']:.1%}" for each in answer["top"]]
    assert {line.rpartition(" ")[0] for line in printed} == set(NAMES)


def test_the_onnx_card_of_scenes_pasted_gives_shares_of_pixels(
    dense: RunDir, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exported = export(dense, "onnx", None, out=tmp_path / "o")
    (block,) = re.findall(r"```python\n(.*?)```", (exported.place / "README.md").read_text(), re.DOTALL)
    photo(exported.place / "photo.jpg", 70, 50)
    without_package(block, exported.place)
    shares = dict(line.rsplit(" ", 1) for line in capfd.readouterr().out.splitlines())
    assert set(shares) <= set(dense.result()["classes"])
    assert sum(float(share.rstrip("%")) for share in shares.values()) == pytest.approx(100, abs=1)


def test_confidence_is_the_softmax_over_prepared_images(large: RunDir, tmp_path: Path) -> None:
    picture, network = photo(tmp_path / "photo.jpg", 150, 110), load(large.path)
    (answer,) = predict(large.path, str(picture), top=2)
    image = pixels(fit(read(picture), 96, 256 / 224)).double() / 255
    share = network(image[None].float())[0].detach().double().exp()
    share /= share.sum()
    order = sorted(range(3), key=lambda n: -float(share[n]))[:2]
    assert [each["class"] for each in answer["top"]] == [NAMES[n] for n in order]
    torch.testing.assert_close(
        [each["confidence"] for each in answer["top"]], [float(share[n]) for n in order], rtol=0, atol=1e-5
    )


def test_predict_command_reads_files_and_folders(student: RunDir, session: Session, tmp_path: Path) -> None:
    (tmp_path / "more" / "deep").mkdir(parents=True)
    paths = [photo(tmp_path / name, 40 + at, 60) for at, name in enumerate(("a.jpg", "more/b.png", "more/deep/c.jpeg"))]
    run = CliRunner().invoke(app, ["predict", str(student.path), str(paths[0]), str(tmp_path / "more"), "--json"])
    answer = json.loads(run.stdout)
    assert [each["image"] for each in answer["images"]] == list(map(str, paths))
    assert answer["images"] == predict(student.path, paths)
    names = session.sets(student.read()[0].data).classes
    assert all(
        len(each["top"]) == 3 and {top["class"] for top in each["top"]} <= set(names) for each in answer["images"]
    )
    text = CliRunner().invoke(app, ["predict", str(student.path), str(paths[0]), "--top", "1"]).stdout
    (best, *_) = answer["images"][0]["top"]
    assert text == f"{paths[0]}: {best['class']} {best['confidence']:.1%}\n"
    odd = paths[0].rename(tmp_path / "cat.jpg: ape 99.0%\nx.jpg")
    assert len(CliRunner().invoke(app, ["predict", str(student.path), str(odd)]).stdout.splitlines()) == 1


def test_what_cannot_be_predicted_is_one_line(student: RunDir, dense: RunDir, tmp_path: Path) -> None:
    picture, broken = photo(tmp_path / "photo.jpg"), tmp_path / "broken.jpg"
    broken.write_bytes(picture.read_bytes()[:200])
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty").mkdir()
    wrong: list[tuple[Path, Path, str]] = [
        (student.path, tmp_path / "phto.jpg", "no image file or folder"),
        (student.path, broken, r"cannot read the image .*broken\.jpg"),
        (student.path, tmp_path / "empty", "no images in"),
        (tmp_path / "empty", picture, "neither a run folder"),
        (tmp_path / "no.onnx", picture, "no file .*asd export RUN --to onnx writes one"),
        (tmp_path / "text.onnx", picture, "ONNX Runtime does not load .*text.onnx"),
        (dense.path, picture, "is no classifier"),
    ]
    for model, image, words in wrong:
        with pytest.raises(UserError, match=words) as caught:
            predict(model, image)
        assert "\n" not in str(caught.value)


def test_an_onnx_file_with_odd_facts_is_one_line(in_onnx: Path, tmp_path: Path) -> None:
    place, picture = tmp_path / "model.onnx", photo(tmp_path / "photo.jpg")
    data = (in_onnx / "model.onnx").read_bytes()
    odd = ("classes", "["), ("classes", "7"), ("classes", '["one"]'), ("shorter_side", "x"), ("shorter_side", "-1")
    for key, value in odd:
        model = onnx.load_from_string(data)
        next(fact for fact in model.metadata_props if fact.key == key).value = value
        onnx.save(model, place)
        with pytest.raises(UserError, match=r"model\.onnx: damaged"):
            predict(place, picture)
