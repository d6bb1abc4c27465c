"""The audit: a planted direction is measured and shown; a mistake is one line and leaves nothing behind."""

import base64
import hashlib
import html
import json
import math
import re
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from antishortcut.analysis.audit import audit, notes
from antishortcut.analysis.directions import fate
from antishortcut.analysis.features import sample
from antishortcut.analysis.moments import folds
from antishortcut.config.recipe import Recipe
from antishortcut.errors import UserError
from antishortcut.models import Network, build
from antishortcut.report.audit_page import drawn, render, write_page
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import DataSplits, Features, ImageSet
from tests.conftest import Refusal, asd, invoke

CLASSES = ("red", "green", "blue")
HOSTILE = "<img src=x onerror=alert(1)>"
PLANTED = 4  # the channel that final states lose


class Quadrants(nn.Module):
    """Features: the mean colours of an image's quadrants, each times a factor; logits: the first three."""

    factors: Tensor

    def __init__(self, factors: Tensor, classes: int = 3) -> None:
        super().__init__()
        self.register_buffer("factors", factors)
        self.head = nn.Linear(len(factors), classes)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(classes, len(factors)))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Features:
        means = nn.functional.adaptive_avg_pool2d(x, 2).flatten(2).transpose(1, 2).flatten(1)  # (B, 4 · 3)
        embedding = means[:, : len(self.factors)] * self.factors
        return Features(self.head(embedding), embedding)


def network(width: int = 12, classes: int = 3, **factors: float) -> Network:
    """`c4=0.0` makes channel 4 disappear."""
    scale = torch.ones(width)
    for name, value in factors.items():
        scale[int(name[1:])] = value
    return Network(Quadrants(scale, classes), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def colours(count: int, seed: int = 0) -> ImageSet:
    """Images of four quadrants, each of one colour; the class is the strongest colour of the first."""
    drawn = torch.randint(0, 256, (count, 3, 2, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    image = drawn.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)  # (N, 3, 16, 16)
    return ImageSet(image, drawn[:, :, 0, 0].long().argmax(dim=1))


def sets_of(count: int = 60, classes: tuple[str, ...] = CLASSES) -> DataSplits:
    return DataSplits(
        "colours", classes, 16, colours(80, 1), None, {"test": colours(count), "other": colours(9, 2)}, "f"
    )


def rows_of(net: Network, images: ImageSet) -> Tensor:
    outputs: Features = net(images.image.float() / 255)
    return outputs.embedding.detach().double()


def audited(tmp_path: Path, final: Network, early: Network, count: int = 60, **more: Any) -> dict[str, Any]:
    result = audit(final, {"early": early}, sets_of(count), tmp_path, **more)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert all(line["name"] and line["value"] and line["means"] for line in result["findings"])
    return result


def paged(found: dict[str, Any], folder: Path) -> str:
    found = found | {"model": "m", "files": {"final": "f"}}
    return render(found, drawn(found), folder)


def test_a_planted_direction_is_measured_and_shown(tmp_path: Path) -> None:
    early, final = network(), network(c4=0.0)
    result = audited(tmp_path, final, early)
    h = rows_of(early, colours(60))
    share = float(h[:, PLANTED].square().sum() / h.square().sum())
    high, low = (h[:, PLANTED].argsort(descending=way, stable=True).tolist()[:12] for way in (True, False))
    for kind in ("displaced", "abandoned"):
        (one,) = result["directions"][kind]  # nothing else moved
        assert one["energy_early"] == pytest.approx(share, rel=1e-5)
        assert one["energy_final"] == pytest.approx(0, abs=1e-12)
        assert one["kept"] == pytest.approx(0, abs=1e-12)
        assert one["fate"] == "abandoned"
        assert one["images_high"] == high
        assert one["images_low"] == low
        for end in ("high", "low"):
            strip = np.asarray(Image.open(tmp_path / one[end]))
            assert strip.shape == (48, 12 * 48 + 11 * 2, 3)
            for at, number in enumerate(one[f"images_{end}"]):
                tile = strip[:, at * 50 : at * 50 + 48]
                assert (tile[::3, ::3] == colours(60).image[number].permute(1, 2, 0).numpy()).all()
    size = float(h[:, PLANTED].square().sum() / rows_of(final, colours(60)).square().sum())
    assert result["moved"]["size"] == pytest.approx(size, rel=1e-5)
    assert [row["accuracy"] for row in result["energy"]] == [1.0, 1.0]
    assert [row["shortcut"] > 0.01 for row in result["energy"]] == [True, False]
    assert result["overlap"]["variance_displaced"] == pytest.approx(0, abs=1e-9)
    assert result["overlap"]["displaced_abandoned"]["mean"] == pytest.approx(0, abs=1e-3)
    assert result["notes"] == ["The features moved along 1 of the 4 requested directions, and along no other."]
    assert result["head"]["share"]["frobenius"] == pytest.approx(0, abs=1e-9)  # the head reads the first three alone


def test_a_direction_is_named_by_what_goes_along_with_it(tmp_path: Path) -> None:
    level = torch.randint(0, 256, (100, 1, 1, 1), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    grey = ImageSet(level.expand(-1, 3, 16, 16).contiguous(), torch.zeros(100, dtype=torch.int64))
    sets = DataSplits("grey", CLASSES, 16, grey, None, {"test": grey}, "f")
    result = audit(network(c4=0.0), {"early": network()}, sets, tmp_path)
    named = [line for line in result["findings"] if line["part"] == "named"]
    assert [line["name"] for line in named] == ["displaced direction 1 is", "abandoned direction 1 is"]
    for line in named:
        assert re.match(r"(border )?brightness \(r −?1\.00\), ", line["value"])
        assert line["beside"] == "R² of all 1.00"
    assert f"Is {named[0]['value']}; R² 1.00." in paged(result, tmp_path)
    few = audited(tmp_path / "few", network(c4=0.0), network())  # 60 images
    assert not [line for line in few["findings"] if line["part"] == "named"]


def test_what_training_gave_up_in_words(tmp_path: Path) -> None:
    """T_early judges by the first quadrant's colour, which is the class; to T_final green is brighter."""
    label, first = colours(60).label, colours(60).image[:, :, 0, 0].float()
    answer = (first * torch.tensor([1, 3, 1])).argmax(dim=1)
    lost = float((answer != label).double().mean())
    result = audited(tmp_path, network(c1=3.0), network())
    assert result["answers"] == pytest.approx({"differ": lost, "gained": 0, "given_up": lost})
    assert result["sentences"] == [
        f"T_early is right in 100 % of 60 images, T_final in {100 - 100 * lost:.0f} %.",
        f"Training gained 0 % of the images and gave up {100 * lost:.0f} %: right early, wrong now.",
        "Of the 1 direction in which features moved most, training strengthened 1.",
        "Only 60 images: a sign, not a proof.",
    ]
    same = audited(tmp_path, network(), network(), student=network())
    assert same["sentences"][1:3] == ["They answer every image alike.", "The student is right in 100 %."]
    other = audit(network(classes=5), {"e": network(classes=5, c4=0.0)}, sets_of(), tmp_path)
    assert "cannot be compared" in other["sentences"][0]
    text = re.sub(r"<span popover.*?</span>|</?button.*?>", "", html.unescape(paged(result, tmp_path))).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert all(line in text for line in result["sentences"])
    assert text.index(result["sentences"][0]) < text.index("<table")
    assert "No images here: Grad-CAM needs a network with feature maps" in text


def test_limits_of_fates() -> None:
    assert [fate(remaining) for remaining in (0.0, 0.499, 0.5, 1.0, 2.0, 2.001)] == [
        *("abandoned", "abandoned", "reused", "reused", "reused", "grown")
    ]
    assert fate(None) is None
    assert fate(math.nan) is None


def test_candidates_are_measured_on_the_other_half(tmp_path: Path) -> None:
    states = {"a": network(c4=2.0), "b": network(c5=3.0)}
    result = audit(network(), states, sets_of(), tmp_path, early="b")
    assert result["early"] == "b"
    assert [row["state"] for row in result["candidates"]] == ["a", "b"]
    assert [row["state"] for row in result["energy"]] == ["a", "b", "final"]
    _, half = folds(60, 2)
    for row, channel in zip(result["candidates"], (4, 5), strict=True):
        for state, net in (("early", states[row["state"]]), ("final", network())):
            h = rows_of(net, colours(60))[half]
            share = sum(float(one[channel] ** 2 / (one**2).sum()) for one in h) / len(h)
            assert row["displaced"][state] == pytest.approx(share, rel=1e-5)
        assert row["displaced"]["explained"] == pytest.approx(1)


def test_a_student_of_the_same_width_is_measured_unchanged(tmp_path: Path) -> None:
    result = audited(tmp_path, network(c4=0.5), network(), student=network(c4=2.0))
    held = result["student"]
    assert held["view"] == "raw"
    h = rows_of(network(c4=2.0), colours(60))
    slow = sum(float(one[PLANTED].abs() / one.norm()) for one in h) / len(h)
    assert held["projections"]["raw"]["displaced"] == pytest.approx(slow, rel=1e-5)
    assert held["projections"]["raw"]["random"] == pytest.approx(math.sqrt(1 / 12))
    # a linear map can undo the factor: aligned, the student is T_final
    aligned, final = held["projections"]["aligned"]["displaced"], held["projections"]["final"]["displaced"]
    assert aligned == pytest.approx(final, rel=0.05)
    assert [point["projection"] for point in held["paper"]] == [0.21, 0.07]
    assert held["accuracy"] == 1.0


def test_a_student_of_another_width_is_measured_through_the_linear_map(tmp_path: Path) -> None:
    result = audited(tmp_path, network(c4=0.5), network(), student=network(width=6))
    assert result["student"]["view"] == "aligned"
    assert set(result["student"]["projections"]) == {"aligned", "final", "early"}
    assert "projection, raw" not in {line["name"] for line in result["findings"]}


def test_equal_states(tmp_path: Path) -> None:
    net = network()
    result = audited(tmp_path, net, net, student=net)
    assert result["directions"] == {"displaced": [], "abandoned": []}
    assert result["moved"]["size"] == 0
    assert result["angles"]["shortcut_final"]["mean"] is None
    assert "nothing moved" in result["notes"][0]
    assert "nothing moved" in paged(result, tmp_path)


def test_a_final_state_without_features(tmp_path: Path) -> None:
    zero = network()
    zero.body.factors.zero_()  # type: ignore[operator]
    result = audited(tmp_path, zero, network(), student=network())
    assert result["moved"]["size"] is None
    assert {one["fate"] for one in result["directions"]["displaced"]} == {None}
    assert "are zero for all these images" in paged(result, tmp_path)


def test_no_more_features_than_directions(tmp_path: Path) -> None:
    result = audited(tmp_path, network(4, c1=0.5, c2=3.0), network(4))
    assert "whole space" in paged(result, tmp_path)


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_images_than_directions(tmp_path: Path, count: int) -> None:
    early = network(c0=2.0, c1=3.0, c2=4.0, c3=5.0, c4=6.0)
    result = audited(tmp_path, network(), early, count, limit=count, student=network(width=6))
    assert any(f"Only {count} image" in note for note in result["notes"])
    assert len(result["directions"]["displaced"]) <= count
    assert len(result["candidates"]) == (count > 1)
    assert len(result["directions"]["displaced"][0]["images_high"]) == count
    if count == 1:
        assert "Two images are the least" in paged(result, tmp_path)


def test_features_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="features of 'early' are not finite"):
        audit(network(), {"early": network(c4=math.nan)}, sets_of(), tmp_path)
    with pytest.raises(UserError, match="features of 'student' are not finite"):
        audit(network(), {"early": network(c4=0.0)}, sets_of(), tmp_path, student=network(c1=math.inf))


def test_notes_on_wrong_files(tmp_path: Path) -> None:
    swapped = audited(tmp_path, network(c0=0.0), network())
    assert "Check first mean and std (mean 0 0 0, std 1 1 1;" in swapped["notes"][0]
    assert "files were swapped" in swapped["notes"][0]
    poor = audited(tmp_path, network(c0=-1.0, c1=-1.0, c2=-1.0), network(c0=-1.0, c1=-1.0, c2=-1.0, c4=0.0))
    assert "hardly better than chance (33.3 %). Check first mean and std" in poor["notes"][0]
    for accuracy, noticed in ((0.43, True), (0.44, False)):  # of many images too, where 0.43 is no chance
        many = poor | {"count": 4000, "energy": [row | {"accuracy": accuracy} for row in poor["energy"]]}
        assert any("hardly better than chance" in note for note in notes(many)) is noticed
    other = audit(network(classes=5), {"e": network(classes=5, c4=0.0)}, sets_of(), tmp_path)
    assert [row["accuracy"] for row in other["energy"]] == [None, None]
    assert "outputs are not the data’s classes" in other["notes"][0]


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="different widths"):
        audit(network(), {"early": network(8)}, sets_of(), tmp_path)
    with pytest.raises(UserError, match="no early state 'erly'; did you mean 'early'"):
        audit(network(), {"early": network()}, sets_of(), tmp_path, early="erly")
    with pytest.raises(UserError, match="no test set 'othr'; did you mean 'other'"):
        audit(network(), {"early": network()}, sets_of(), tmp_path, set_name="othr")
    with pytest.raises(UserError, match="--limit must be at least 1"):
        audit(network(), {"early": network()}, sets_of(), tmp_path, limit=0)


def test_another_set_and_a_limit(tmp_path: Path) -> None:
    result = audited(tmp_path, network(c4=0.0), network(), set_name="other", limit=6)
    assert (result["set"], result["count"], result["training_images"]) == ("other", 6, 6)
    images, numbers = sample(colours(9, 2), 6)
    assert isinstance(images, ImageSet)
    assert (images.image == colours(9, 2).image[torch.tensor(numbers)]).all()
    assert set(result["directions"]["displaced"][0]["images_high"]) == set(numbers)


def test_the_page_is_one_file_and_escapes_names(tmp_path: Path) -> None:
    states = {"2%": network(c4=4.0, c5=2.0), HOSTILE: network(c4=3.0, c6=2.0)}
    sets = sets_of(classes=(HOSTILE, "a&b", '"><b>'))
    result = audit(network(), states, sets, tmp_path, early=HOSTILE, student=network())
    write_page(result | {"model": HOSTILE, "files": {HOSTILE: HOSTILE}}, tmp_path)
    text = (tmp_path / "audit.html").read_text()
    assert "<img src=x" not in text + (tmp_path / "figures" / "course.svg").read_text()
    elements = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!#|data:)', elements)  # nothing is fetched
    assert text.count('src="data:image/png;base64,') == 8  # two kinds of two directions with two ends
    policy = html.unescape(re.findall(r'Content-Security-Policy"[^>]*content="([^"]*)"', text)[0])
    scripts = re.findall(r'<script(?: type="module")?>(.*?)</script>', text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 2
    assert all(f"'sha256-{known}'" in policy for known in hashes)
    assert policy.startswith("default-src 'none'; ")
    names = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert names == {"course", "directions", "student", "angles", "spectrum", "steadiness"}


def test_an_audit_needs_the_report_libraries(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.delitem(sys.modules, "antishortcut.report.audit_page")
    assert "an audit needs altair: pip install 'antishortcut[report]'" in refusal("audit")


@pytest.fixture
def own(here: Path) -> Path:
    """A folder data set of two classes, in the current folder."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 6)):
        for name in ("ape", HOSTILE.replace("/", "")):
            folder = here / "own" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return here


def saved(path: Path, model: str, zeroed: int | None = None, classes: int = 2) -> Path:
    """Weights of a network of seed 0; `zeroed` is a channel of its embedding without values."""
    torch.manual_seed(0)
    net = build(model, classes, image_size=16)
    state = net.state_dict()
    if zeroed is not None:
        last = max(key for key in state if key.endswith("last.1.weight"))
        for key in (last, last.replace("weight", "bias")):
            state[key][zeroed] = 0
    torch.save(state, path)
    return path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures as files cost a second each; one test draws them."""
    monkeypatch.setattr("antishortcut.report.audit_page.draw_all", lambda figure, folder: None)


OWN = ("--data", "folder:own", "--image-size", "16", "--threads", "1")


def test_audit_of_files(own: Path) -> None:
    early, final = saved(own / "e.pt", "cnn-2-8"), saved(own / "f.pt", "cnn-2-8", zeroed=5)
    student = ("--student", str(saved(own / "s.pt", "cnn-2-4")), "--student-model", "cnn-2-4", *OWN)
    words = ("--final", str(final), "--early", f"start={early}", "--early", str(final), "--model", "cnn-2-8", *student)
    results = asd("audit", *words)
    assert (results["early"], results["out"], results["page"]) == ("start", "audit", "audit/audit.html")
    assert [row["state"] for row in results["candidates"]] == ["start", "f"]
    (one,) = results["directions"]["displaced"]
    assert one["fate"] == "abandoned"
    assert results["student"]["view"] == "aligned"
    assert results["sentences"][0].startswith("T_early is right in")
    assert sorted(one["images_high"]) == list(range(12))  # small images are held in memory: places in the set
    remaining = json.loads((own / "audit" / "audit.json").read_text())
    assert remaining == {key: value for key, value in results.items() if key not in ("out", "page")}
    text = (own / "audit" / "audit.html").read_text()
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror" in text
    assert text.count('<fieldset class="card"') == 12  # each with T_early, T_final and the student, and their maps
    assert text.count('<label class="answer">') == text.count('class="map"') == 36
    assert {path.name for path in (own / "audit").iterdir()} == {"audit.json", "audit.html", "figures", "pictures"}
    result = invoke("audit", *words)  # again, into the same folder
    assert "displaced directions that training abandoned: 1 of 1" in result.stdout
    assert result.stdout.rstrip().endswith("\n".join([*results["sentences"], "audit/audit.html"]))
    assert not [path for path in own.iterdir() if path.name.startswith(".")]


@pytest.mark.usefixtures("undrawn")
def test_images_are_prepared_as_everywhere_and_the_audit_says_how(own: Path, refusal: Refusal) -> None:
    (own / "auditnets.py").write_text(
        "from torch import nn\n"
        "def net(num_classes):\n"
        "    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), *head)\n"
    )
    for number, name in enumerate(("e.pt", "f.pt")):
        torch.manual_seed(number)
        torch.save(build("auditnets:net", 2).body.module.state_dict(), own / name)  # type: ignore[union-attr]
    words = ("--final", "f.pt", "--early", "e.pt", "--model", "auditnets:net", "--data", "folder:own", "--threads", "1")
    result = asd("audit", *words)
    assert result["pixels"] == asd("check", "folder:own")["image_size"] == 32  # not 224
    assert (result["mean"], result["std"]) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])  # ImageNet's
    assert "32 × 32 pixels" in (own / "audit" / "audit.html").read_text()
    shown = invoke("audit", *words, "--mean", "0.5,0.4,0.3", "--std", "0.2,0.2,0.2", "--set", "data.image_size=24")
    assert "images: 24 × 24 pixels (mean 0.5 0.4 0.3, std 0.2 0.2 0.2)" in shown.stdout
    by_set = asd("audit", *words, "--set", "teacher.mean=[0.5, 0.4, 0.3]", "--image-size", "24")
    assert (by_set["mean"], by_set["pixels"]) == ([0.5, 0.4, 0.3], 24)
    for message, more in {
        "teacher.mean.0: Input should be a valid number": ("--mean", "a,b,c"),
        "teacher.std.2: Field required": ("--std", "1,1"),
        "unknown setting 'teacher.means'": ("--set", "teacher.means=[1, 1, 1]"),
        "--set optim.lr: an audit has data.KEY": ("--set", "optim.lr=1"),
    }.items():
        assert message in refusal("audit", *words, *more)


@pytest.mark.usefixtures("undrawn")
def test_audit_of_a_timm_model(own: Path) -> None:
    early = saved(own / "e.pt", "timm:test_resnet")
    state = torch.load(early, weights_only=True)
    torch.save({key: 2 * value if value.ndim > 3 else value for key, value in state.items()}, own / "f.pt")
    result = asd("audit", "--final", "f.pt", "--early", "e.pt", "--model", "timm:test_resnet", *OWN)
    head = build("timm:test_resnet", 2, image_size=16).head
    assert head is not None
    assert (result["width"], result["head"]["share"]["directions"]) == (head.in_features, 4)
    assert result["moved"]["size"] > 0


@pytest.mark.usefixtures("undrawn")
def test_audit_of_a_teacher_folder_and_its_student(recipe: Recipe, session: Session, refusal: Refusal) -> None:
    teacher = teach(recipe, session)
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    home = str(teacher.folder(session.runs))
    result = asd(
        "audit", "--teacher", home, "--student", str(run.folder(session.runs)), "--out", "here", "--threads", "1"
    )
    states = [row["state"] for row in result["candidates"]]  # 10 % and 15 % are one, called as asked for
    assert states == ["2%", "15%", "20%", "30%", "50%", "75%"]
    assert [row["state"] for row in result["energy"]] == [*states, "final"]
    assert result["early"] == "15%"
    assert result["student"]["view"] == "raw"
    with np.load("here/pictures/maps.npz", allow_pickle=False) as maps:
        assert maps["network"].tolist() == ["early", "final", "own"]
        assert result["answers"]["given_up"] > 0
        assert maps["why"].tolist()[0] == "T_early right, T_final wrong"  # beside a student, too
    assert set(result["explained"]) == {"displaced", "abandoned"}
    assert "texture" in result["directions"]["displaced"][0]["explained"]["early"]
    assert result["notes"] == [note for note in result["notes"] if "fingerprints" not in note]
    assert asd("audit", "--teacher", teacher.hash, "--early", "50%", "--limit", "30")["early"] == "50%"
    for words, message in (
        ((home, "--early", "16%"), "has no state '16%'; did you mean"),
        ((home, "--early", "100%"), "cannot be the early one too"),
        ((home, "--model", "cnn-2-8"), "--teacher brings its own model and data"),
        ((run.folder(session.runs),), "is not a finished teacher"),
        ((home, "--student", home), "is not a finished student"),
    ):
        assert message in refusal("audit", "--teacher", *words)


@pytest.mark.usefixtures("undrawn")
def test_audit_of_the_folder_of_a_teacher_that_was_given(
    recipe: Recipe, session: Session, here: Path, refusal: Refusal
) -> None:
    """Its early state is called early, not 15%."""
    files = [saved(here / "e.pt", "cnn-4-16", classes=10), saved(here / "f.pt", "cnn-4-16", zeroed=5, classes=10)]
    given = {"final": str(files[1]), "early": str(files[0])}
    teacher = teach(recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update=given)}), session)
    result = asd("audit", "--teacher", teacher.folder(session.runs), "--limit", "50", "--threads", "1")
    assert result["early"] == "early"
    given["early"] = "weak"
    teacher = teach(recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update=given)}), session)
    assert "has its final state alone" in refusal("audit", "--teacher", teacher.folder(session.runs))


class Code:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return (open, ("opened", "w"))


def test_errors_are_one_line(own: Path, refusal: Refusal) -> None:
    good = saved(own / "e.pt", "cnn-2-8")
    saved(own / "more.pt", "cnn-2-8", classes=5)
    state = torch.load(good, weights_only=True)
    torch.save({key: each * math.nan if each.is_floating_point() else each for key, each in state.items()}, "nan.pt")
    torch.save({"model": Code()}, "code.pt")
    Path("text.pt").write_text("no weights")
    Path("full").mkdir()
    Path("full/mine.txt").touch()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("socket")  # neither file nor folder
    for message, words in {
        "an audit needs --final, --early, --model and --data": ("--final", "e.pt"),
        "no weights at gone.pt": ("--final", "gone.pt", "--early", "e.pt"),
        "no weights at gone.safetensors": ("--final", "e.pt", "--early", "x=gone.safetensors"),
        "code.pt holds no plain tensors": ("--final", "code.pt", "--early", "e.pt"),
        "text.pt holds no plain tensors": ("--final", "text.pt", "--early", "e.pt"),
        "folder:own has 2 classes: where the model has other outputs": ("--final", "more.pt", "--early", "e.pt"),
        "nan.pt holds NaN in": ("--final", "e.pt", "--early", "nan.pt"),
        "'e' cannot name this state, or names another": ("--final", "e.pt", "--early", "e.pt", "--early", "e.pt"),
        "'final' cannot name this state": ("--final", "e.pt", "--early", "final=e.pt"),
        "--out full holds other things": ("--final", "e.pt", "--early", "e.pt", "--out", "full"),
        "--out socket holds other things": ("--final", "e.pt", "--early", "e.pt", "--out", "socket"),
        "a file of weights needs --student-model": ("--final", "e.pt", "--early", "e.pt", "--student", "e.pt"),
        "--student-model needs --student": ("--final", "e.pt", "--early", "e.pt", "--student-model", "cnn-2-8"),
        "no run.json": ("--final", "e.pt", "--early", "e.pt", "--student", "full"),
    }.items():  # fmt: skip
        usual = () if message.startswith("an audit needs") else ("--model", "cnn-2-8", *OWN)
        assert message in refusal("audit", *words, *usual)
