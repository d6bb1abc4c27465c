"""From networks to directions: planted ones are described and drawn; a teacher is examined once for all students."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.analysis.directions import (
    describe,
    displaced_and_abandoned,
    explain,
    read_by_head,
    strip,
)
from antishortcut.analysis.features import features, first_of_classes, tsne
from antishortcut.analysis.moments import Moments
from antishortcut.config.recipe import Recipe
from antishortcut.data.synthetic import make_cues
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import FileSet, ImageSet
from tests.conftest import asd
from tests.hostile.test_disks import disk as disk
from tests.hostile.test_disks import filled

N, D = 600, 12


def planted() -> dict[str, torch.Tensor]:
    """Training forgets coordinate 0 (abandoned), reuses coordinate 1 (its sign turns), keeps the rest."""
    rng = torch.Generator().manual_seed(0)
    rest = torch.randn(N, D, generator=rng, dtype=torch.float64)
    early, final = rest.clone(), rest.clone()
    early[:, 0], final[:, 0] = 5 * rest[:, 0], 0.05 * rest[:, 0]
    early[:, 1], final[:, 1] = 4 * rest[:, 1], -4 * rest[:, 1]
    return {"early": early, "final": final, "halfway": (early + final) / 2}


IMAGES = ImageSet(torch.zeros(N, 3, 8, 8, dtype=torch.uint8), torch.arange(N) % 3)


def test_planted_directions_are_separated(tmp_path: Path) -> None:
    pool = planted()
    moments = Moments(pool["final"], pool["early"])
    bases = displaced_and_abandoned(moments)
    displaced = bases["displaced"].abs()
    assert displaced[:2].square().sum(dim=0)[:2].tolist() == pytest.approx([1, 1], abs=1e-6)  # 0 and 1, in some order
    assert displaced[1, 0] > 0.99  # the coordinate that changes sign moves farthest
    assert bases["abandoned"].abs()[0, 0] > 0.99
    result = describe(moments, pool["early"], IMAGES, range(N), ["a", "b", "c"], tmp_path)
    first, second = result["displaced"][:2]
    assert first["kept"] > 1  # reused: it holds a larger share of the smaller final energy
    assert second["kept"] < 0.1  # abandoned; the sample correlates a little
    assert result["abandoned"][0]["kept"] < 0.1


def test_a_picture_on_a_full_disk_is_an_error(disk: Path) -> None:
    filled(disk)
    pool = planted()
    with pytest.raises(OSError, match=r"No space left on device: '.*/pictures/displaced-1-high.png'"):
        describe(
            Moments(pool["final"], pool["early"]), pool["early"], IMAGES, range(N), ["a", "b", "c"], disk / "pictures"
        )
    assert not any((disk / "pictures").iterdir())  # not half of one


def test_factors_that_explain_a_direction() -> None:
    texture, shape = torch.arange(N) % 4, torch.arange(N) // 4 % 5
    pool = planted()
    moments = Moments(pool["final"], pool["early"])
    u = displaced_and_abandoned(moments)["displaced"][:, :1].T  # (1, D)
    rows = {"early": texture[:, None] * u, "final": shape[:, None] * u}
    directions: dict[str, list[dict[str, object]]] = {kind: [{}, {}] for kind in ("displaced", "abandoned")}
    images = ImageSet(IMAGES.image, shape, {"texture": texture})
    pooled = explain(directions, moments, rows, images)
    expected = {
        "early": {"texture": pytest.approx(1), "shape": pytest.approx(0, abs=0.02)},
        "final": {"texture": pytest.approx(0, abs=0.02), "shape": pytest.approx(1)},
    }
    assert directions["displaced"][0]["explained"] == pooled["displaced"] == expected


def test_strips_show_the_images(tmp_path: Path) -> None:
    image = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    drawn = np.asarray(strip(ImageSet(image, torch.zeros(3))))
    assert drawn.shape == (48, 3 * 48 + 2 * 2, 3)  # enlarged three times, two pixels between
    assert np.array_equal(drawn[::3, :48:3], image[0].permute(1, 2, 0).numpy())
    Image.fromarray(np.full((300, 200, 3), 7, np.uint8)).save(tmp_path / "a.png")
    drawn = np.asarray(strip(FileSet((tmp_path / "a.png",), torch.zeros(1))))
    assert drawn.shape == (96, 96, 3)
    assert (drawn == 7).all()


def test_features_equal_the_networks() -> None:
    images = make_cues("iid", 300, seed=0)
    torch.manual_seed(0)
    nets = {"a": build("cnn-4-16", 10).eval(), "b": build("cnn-4-8", 10).eval()}
    outputs = features(nets, images, 32)
    with torch.no_grad():
        for role, net in nets.items():
            assert torch.allclose(outputs[role], net(images.image.float() / 255).embedding, atol=1e-5)


def test_tsne_draws_the_same_images_in_both_planes() -> None:
    label = torch.arange(200) % 4
    rows = torch.nn.functional.one_hot(label, 8).float() * 10 + torch.randn(200, 8)
    result = tsne({"teacher": rows, "student": rows[:, :5]}, label, ["a", "b", "c", "d"])
    assert result is not None
    assert (
        len(result["label"]) == len(result["teacher"]) == len(result["student"]) == len(first_of_classes(label)) == 200
    )
    at = np.array(result["teacher"])
    middle = np.stack([at[np.array(result["label"]) == each].mean(axis=0) for each in range(4)])
    near = ((at[:, None] - middle) ** 2).sum(axis=2).argmin(axis=1)
    assert (near == np.array(result["label"])).mean() > 0.95  # classes far apart stay apart
    assert tsne({"teacher": rows[:3]}, label[:3], ["a", "b", "c", "d"]) is None


def test_the_head_of_another_width_is_not_read() -> None:
    network = build("resnet8", 7)
    result = read_by_head(network, torch.eye(64)[:, :4])
    assert result is not None
    assert result["share"]["directions"] == 4
    assert read_by_head(network, torch.eye(63)[:, :4]) is None


def test_a_teacher_is_examined_once(recipe: Recipe, session: Session) -> None:
    context = EvalContext(session.sets(recipe.data), session.runs)
    for method in ("kd", "asd"):
        folder = RunDir(distill(recipe, session, method=method, seed=1, suite="s").folder(session.runs))
        evaluate(folder, context, ["mechanism"])
        artifact = json.loads((folder.path / "artifacts" / "mechanism.json").read_text())
        assert sum(artifact["views"]["raw"]["histograms"]["cos_final"]["counts"]) == 100
        assert len(artifact["embedding"]["teacher"]) == 100
        (path,) = (session.runs / "teachers").glob("*/artifacts/directions-15.json")
        if method == "kd":
            first = path.stat().st_mtime_ns
    assert path.stat().st_mtime_ns == first
    result = json.loads(path.read_text())
    assert result["early"] == "15%"
    assert [row["state"] for row in result["energy"]][-1] == "100%"
    assert [row["epoch"] for row in result["energy"]] == sorted(row["epoch"] for row in result["energy"])
    for kind in ("displaced", "abandoned"):
        for direction in result["directions"][kind]:
            assert set(direction["explained"]["early"]) == {"texture", "shape"}
            for end in ("high", "low"):
                with Image.open(path.parent / direction[end]) as picture:
                    assert picture.size[1] == 64  # 32 pixels, doubled


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_displaced_directions_are_reused_and_abandoned_ones_lost(seed: int, tmp_path: Path) -> None:
    """What held on the demo's teachers of three seeds (docs/results/demo.md), with margin."""
    teacher = asd("teach", "cues", "--set", f"teacher.seed={seed}", "--runs", tmp_path / "runs")["teacher"]
    message = asd("audit", "--teacher", teacher, "--out", tmp_path / "audit")["explained"]
    displaced, abandoned = message["displaced"], message["abandoned"]
    assert displaced["early"]["texture"] > 0.6 > 0.1 > displaced["early"]["shape"]
    assert displaced["final"]["shape"] > 0.4 > 0.3 > displaced["final"]["texture"]  # reused
    assert abandoned["early"]["texture"] > 0.6 > 0.1 > abandoned["early"]["shape"]
    assert max(abandoned["final"].values()) < 0.2  # left
