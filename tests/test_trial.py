"""asd try without its page: the networks' answers, what changes an image, disagreement, saved cases, refusals."""

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from antishortcut.api import trial as trying
from antishortcut.api.trial import PROBES, UNCHANGED, Trial
from antishortcut.data import Loader
from antishortcut.data.corruptions import corrupt
from antishortcut.errors import UserError
from antishortcut.evaluation import probes
from antishortcut.report import make_report
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.pipeline import distill
from tests.conftest import Refusal, tiny_session
from tests.data.official import make_camvid, picture


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe, session = tiny_session(tmp_path_factory.mktemp("try"))
    return distill(recipe, session, method="kd", seed=1, suite="demo").folder(session.runs)


@pytest.fixture(scope="module")
def trial(student: Path) -> Trial:
    return trying.open_runs([student], {}, None, None, "cpu")


def test_a_student_stands_beside_its_teacher(trial: Trial, student: Path) -> None:
    assert list(trial.networks) == ["T_final", "T_early", "kd-s1"]
    assert next(iter(trial.sets)) == "iid"
    teacher = trying.open_runs([next((student.parent.parent / "teachers").iterdir())], {}, None, None, "cpu")
    image = trying.image_of(trial, "iid", 3)
    one, two = trying.answers(trial, image.pixels), trying.answers(teacher, image.pixels)
    assert [each.network for each in two] == ["T_final", "T_early"]
    assert one[:2] == two


def test_two_checkpoints_need_no_student(trial: Trial, student: Path, tmp_path: Path) -> None:
    folder = RunDir(next((student.parent.parent / "teachers").iterdir()))
    run, _ = folder.read()
    files = [str(folder.snapshots / Trajectory(folder).entry(state)["file"]) for state in ("final", run.early)]
    picture(tmp_path / "sketch" / trial.classes[2] / "0.png")
    own = {"sketch": tmp_path / "sketch"}
    opened = trying.open_files(Path(files[0]), files[1:], run.model.name, "cues", own, None, "cpu")
    assert list(opened.networks) == ["T_final", "T_early"]
    image = trying.image_of(opened, "sketch", -1)
    assert (image.index, image.label) == (0, trial.classes[2])
    assert trying.answers(opened, image.pixels) == trying.answers(trial, image.pixels)[:2]


def test_images_are_prepared_as_in_evaluation(trial: Trial, tmp_path: Path) -> None:
    loader = Loader(trial.sets["iid"], batch=8, seed=0, image_size=trial.image_size, augment="none", shuffle=False)
    batch = next(iter(loader.epoch(0)))
    image = trying.image_of(trial, "iid", 5)
    assert torch.equal(image.pixels[0], batch.image[5])
    assert image.label == trial.classes[int(batch.label[5])]
    (tmp_path / "own.png").write_bytes(trying.picture(image.pixels))
    dropped = trying.dropped_image(trial, tmp_path / "own.png")
    assert torch.equal(dropped.pixels, image.pixels)
    assert (dropped.of, dropped.label) == (None, None)


def test_changes_are_those_of_the_evaluations(trial: Trial) -> None:
    image = trying.image_of(trial, "iid", 7)
    pixels, index = image.pixels, torch.tensor([7])
    assert torch.equal(trying.changed(image, UNCHANGED), pixels)
    for name in PROBES:
        strength = {"shuffle": 4, "blur": 3, "edges": 3, "grey": 100, "hue": 120}.get(name, 25)
        expected = probes.PROBES[f"{name}-{strength}"](pixels, index)
        assert torch.equal(trying.changed(image, UNCHANGED | {name: strength}), expected)
    raw = (pixels * 255).round().byte().permute(0, 2, 3, 1).numpy()
    foggy = torch.from_numpy(corrupt(raw, "fog", 5)).permute(0, 3, 1, 2) / 255
    both = trying.changed(image, UNCHANGED | {"corruption": "fog", "severity": 5, "grey": 100})
    assert torch.equal(both, probes.grey(foggy, index, 100))


@pytest.mark.parametrize("where", trying.WHERE)
def test_an_answer_has_five_classes_and_a_map(trial: Trial, where: str) -> None:
    image = trying.image_of(trial, "iid", 0)
    for one in trying.answers(trial, image.pixels, where):
        share = trial.networks[one.network](image.pixels).logits.softmax(dim=1)[0]
        top = share.argsort(descending=True)[:5].tolist()
        assert [name for name, _ in one.top] == [trial.classes[at] for at in top]
        assert [value for _, value in one.top] == pytest.approx(share[top].tolist())
        assert one.heat is not None
        assert one.heat.shape == image.pixels.shape[2:]
        assert float(one.heat.max()) == pytest.approx(1)


def test_disagreement_is_found_where_it_is(trial: Trial) -> None:
    different: dict[int, int] = {}
    for at in range(len(trial.sets["iid"])):
        said = {one.top[0][0] for one in trying.answers(trial, trying.image_of(trial, "iid", at).pixels)}
        different |= {at: len(said)} if len(said) > 1 else {}
    found = trying.disagreements(trial, "iid")
    assert set(found) == set(different)
    assert [different[at] for at in found] == sorted(different.values(), reverse=True)


def test_a_saved_case_is_in_the_report(trial: Trial, student: Path) -> None:
    cases = student.parent / "cases"
    (cases / "1").mkdir(parents=True)  # a process was killed before it wrote case.json
    image = trying.image_of(trial, "iid", 4)
    place = trying.save_case(trial, image, UNCHANGED | {"grey": 100})
    assert place == cases / "2"
    case = json.loads((place / "case.json").read_text())
    assert (case["set"], case["index"], case["label"], case["settings"]) == ("iid", 4, image.label, {"grey": 100})
    with (
        Image.open(place / "image.png", formats=["PNG"]) as seen,
        Image.open(place / "original.png", formats=["PNG"]) as was,
    ):
        assert seen.tobytes() != was.tobytes()
    said = {one["network"]: [tuple(each) for each in one["top"]] for one in case["answers"]}
    expected = trying.answers(trial, probes.grey(image.pixels, torch.tensor([4]), 100))
    assert said == {one.network: one.top for one in expected}
    foggy = UNCHANGED | {"corruption": "fog"}
    assert json.loads((trying.save_case(trial, image, foggy) / "case.json").read_text())["settings"]["severity"] == 3
    (cases / "2" / "case.json").write_text("{")
    page = Path(make_report(student.parent)["page"]).read_text()
    assert "cases/3: iid, image 5; corruption fog, severity 3" in page
    assert "cases/2: " not in page
    assert "cases/2" in page  # among what could not be read


def test_nothing_is_saved_through_a_link(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cases").symlink_to(tmp_path / "elsewhere")
    linked = Trial(trial.networks, trial.classes, trial.image_size, trial.sets, "", tmp_path)
    with pytest.raises(UserError, match="is a link"):
        trying.save_case(linked, trying.image_of(trial, "iid", 0), UNCHANGED)
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "cases").unlink()
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "1").symlink_to(tmp_path / "elsewhere")
    assert trying.save_case(linked, trying.image_of(trial, "iid", 0), UNCHANGED).name == "2"


def test_names_of_classes_are_words_on_the_page(trial: Trial) -> None:
    page = pytest.importorskip("antishortcut.api.trial_page", reason="needs antishortcut[app]")
    hostile = tuple(f"<script>{name}</script>" for name in trial.classes)
    renamed = Trial(trial.networks, hostile, trial.image_size, trial.sets, "", trial.folder)
    shown = page.html(renamed, trying.image_of(renamed, "iid", 0), UNCHANGED, "nothing")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_refusals_are_one_line(student: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio", reason="needs antishortcut[app]")
    assert "needs run folders, or --final, --early, --model and --data" in refusal("try")
    assert "leave out --final" in refusal("try", student, "--final", "last.pt")
    assert "is not a run folder" in refusal("try", student.parent)
    assert "no such folder" in refusal("try", student, "--on", "sketch=nowhere")
    files = ("try", "--final", "last.pt", "--early", "e.pt", "--model", "cnn-4-16", "--data")
    assert "no weights at e.pt" in refusal(*files, "cues")
    monkeypatch.setattr(trying, "MOST", 2)
    assert "up to 2 networks side by side, not 3" in refusal("try", student)
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "antishortcut.api.trial_page", raising=False)
    assert refusal("try", student) == "asd: asd try needs gradio: pip install 'antishortcut[app]'"


def test_segmentation_is_refused(tmp_path: Path) -> None:
    make_camvid(tmp_path / "camvid")
    with pytest.raises(UserError, match="asd try needs one label for every image"):
        trying.open_files(Path("last.pt"), ["e.pt"], "dense-2", "camvid", {}, tmp_path, "cpu")


def test_an_image_that_viewers_turn_is_shown_as_networks_read_it(trial: Trial, tmp_path: Path) -> None:
    page = pytest.importorskip("antishortcut.api.trial_page", reason="needs antishortcut[app]")
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: a quarter turn
    Image.linear_gradient("L").convert("RGB").save(tmp_path / "phone.png", exif=exif)
    image = trying.dropped_image(trial, tmp_path / "phone.png")
    assert image.turned
    assert image.pixels[0, 0, 0].mean() < image.pixels[0, 0, -1].mean()  # dark above, as stored
    said = page.html(trial, image, dict(UNCHANGED), "Grad-CAM")
    assert "training does not turn images by EXIF" in said


def test_a_map_with_nothing_on_it_says_so(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    page = pytest.importorskip("antishortcut.api.trial_page", reason="needs antishortcut[app]")
    image = trying.image_of(trial, "iid", 0)
    assert "speaks for this answer" not in page.html(trial, image, dict(UNCHANGED), page.NOWHERE)
    monkeypatch.setitem(trying.WHERE, "Grad-CAM", lambda network, image, label: image[:, 0] * 0)
    assert page.html(trial, image, dict(UNCHANGED), "Grad-CAM").count("nothing it sees speaks for this") == 3


def test_an_image_that_cannot_be_read_is_one_line(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no image")
    with pytest.raises(UserError, match=r"^cannot read the image bad\.png \(none of [^)]*\)$"):
        trying.dropped_image(trial, tmp_path / "bad.png")
