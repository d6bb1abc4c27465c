"""Probes: each equals a loop over pixels, takes away what it says, and its scores are what a loop counts."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.config.recipe import load_recipe
from antishortcut.data import Loader, open_sets
from antishortcut.data.rng import PROBE, mix
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS, evaluate
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.evaluation.probes import (
    PROBES,
    WHOLE,
    blur,
    centre,
    edges,
    grey,
    hue,
    probe_scores,
    reliance,
    shuffle,
    surround,
)
from antishortcut.metrics import accuracy
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from tests.conftest import CPU


def some(count: int = 3, height: int = 12, width: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    maker = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, height, width, generator=maker, dtype=torch.float64), torch.arange(5, 5 + count)


def slow_shuffle(image: Tensor, index: Tensor, grid: int) -> Tensor:
    result = image.clone()
    height, width = image.shape[2] // grid, image.shape[3] // grid
    for at, number in enumerate(index.tolist()):
        cycle = sorted(range(grid**2), key=lambda patch: int(mix(0, PROBE, number, patch)))
        for position, patch in enumerate(cycle):
            place = cycle[(position + 1) % len(cycle)]  # the patch goes to the place of the next one
            for y in range(height):
                for x in range(width):
                    source = image[at, :, patch // grid * height + y, patch % grid * width + x]
                    result[at, :, place // grid * height + y, place % grid * width + x] = source
    return result


def mirrored(at: int, side: int) -> int:
    at = abs(at)
    return 2 * (side - 1) - at if at >= side else at


def slow_blur(image: Tensor, percent: float) -> Tensor:
    _, _, height, width = image.shape
    sigma = percent / 100 * min(height, width)
    reach = math.ceil(3 * sigma)
    weight = {step: math.exp(-(step**2) / (2 * sigma**2)) for step in range(-reach, reach + 1)}
    total = sum(weight.values())
    result = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            for dy, wy in weight.items():
                for dx, wx in weight.items():
                    pixel = image[:, :, mirrored(y + dy, height), mirrored(x + dx, width)]
                    result[:, :, y, x] += wy * wx / total**2 * pixel
    return result


def slow_edges(image: Tensor, percent: float) -> Tensor:
    luma = 0.299 * image[:, 0] + 0.587 * image[:, 1] + 0.114 * image[:, 2]
    luma = slow_blur(luma[:, None], percent)[:, 0]
    count, height, width = luma.shape
    result = torch.empty_like(image)
    for at in range(count):

        def value(y: int, x: int, plane: Tensor = luma[at]) -> float:
            return float(plane[min(max(y, 0), height - 1), min(max(x, 0), width - 1)])

        lengths = torch.empty(height, width, dtype=torch.float64)
        for y in range(height):
            for x in range(width):
                across = sum(w * (value(y + d, x + 1) - value(y + d, x - 1)) for d, w in ((-1, 1), (0, 2), (1, 1)))
                down = sum(w * (value(y + 1, x + d) - value(y - 1, x + d)) for d, w in ((-1, 1), (0, 2), (1, 1)))
                lengths[y, x] = math.hypot(across, down)
        result[at] = 1 - lengths / lengths.max()
    return result


def slow_cut(image: Tensor, percent: float, inside: bool) -> Tensor:
    """centre-P, or with inside False surround-P."""
    _, _, height, width = image.shape
    area = percent / 100 if inside else 1 - percent / 100
    gaps = [round(side * (1 - math.sqrt(area)) / 2) for side in (height, width)]
    result = image.clone()
    for one, out in zip(image, result, strict=True):
        middle = {(y, x) for y in range(gaps[0], height - gaps[0]) for x in range(gaps[1], width - gaps[1])}
        left = [place for y in range(height) for x in range(width) if ((place := (y, x)) in middle) == inside]
        mean = sum(one[:, y, x] for y, x in left) / len(left)
        for y in range(height):
            for x in range(width):
                if (y, x) not in left:
                    out[:, y, x] = mean
    return result


@pytest.mark.parametrize("side", [(12, 12), (11, 14)])
def test_every_probe_equals_a_loop_over_pixels(side: tuple[int, int]) -> None:
    image, index = some(2, *side)
    for grid in (2, 4):
        assert torch.equal(shuffle(image, index, grid), slow_shuffle(image, index, grid))
    for percent in (3, 9):
        assert torch.allclose(blur(image, index, percent), slow_blur(image, percent), atol=1e-10)
    for percent in (1, 9):
        assert torch.allclose(edges(image, index, percent), slow_edges(image, percent), atol=1e-10)
    for percent in (25, 50):
        assert torch.allclose(centre(image, index, percent), slow_cut(image, percent, True), atol=1e-10)
        assert torch.allclose(surround(image, index, percent), slow_cut(image, percent, False), atol=1e-10)
    luma = 0.299 * image[:, 0] + 0.587 * image[:, 1] + 0.114 * image[:, 2]
    for channel in range(3):
        assert torch.allclose(grey(image, index, 100)[:, channel], luma, atol=1e-7)
        assert torch.allclose(grey(image, index, 50)[:, channel], (luma + image[:, channel]) / 2, atol=1e-7)


def test_hues() -> None:
    """By 120° red becomes green, green blue, blue red; greys stay; by 180° a colour becomes 2 · mean − itself."""
    image, index = some()
    assert torch.allclose(hue(image, index, 120), image.roll(1, dims=1), atol=1e-6)
    assert torch.allclose(hue(image, index, 240), image.roll(2, dims=1), atol=1e-6)
    plain = image[:, :1].expand_as(image)
    assert torch.allclose(hue(plain, index, 77), plain, atol=1e-6)
    mild = 0.5 + 0.1 * image
    # R(180°) = 2 n nᵀ − 1 with n the grey axis
    assert torch.allclose(hue(mild, index, 180), 2 * mild.mean(dim=1, keepdim=True) - mild, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(sorted(PROBES)), st.integers(16, 70), st.integers(16, 70), st.integers(0, 1000))
def test_probes_keep_shape_range_and_input_and_do_not_depend_on_the_batch(
    name: str, height: int, width: int, seed: int
) -> None:
    image, index = some(3, height, width, seed)
    image, before = image.float(), image.float().clone()
    result = PROBES[name](image, index)
    assert torch.equal(image, before)
    assert (result.shape, result.dtype) == (image.shape, image.dtype)
    assert 0 <= float(result.min()) <= float(result.max()) <= 1 + 1e-6
    assert not torch.equal(result, image)
    turned = torch.tensor([2, 0, 1])
    assert torch.allclose(PROBES[name](image[turned], index[turned]), result[turned], atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from((2, 4, 8)), st.integers(1, 4), st.integers(0, 10_000))
def test_shuffling_moves_every_patch_and_loses_none(grid: int, side: int, first: int) -> None:
    number = torch.arange(grid**2, dtype=torch.float32).view(1, 1, grid, grid) / grid**2
    image = number.repeat_interleave(side, 2).repeat_interleave(side, 3).expand(4, 3, -1, -1)
    result = shuffle(image, torch.arange(first, first + 4), grid)
    assert (result != image).all()
    assert torch.equal(result.flatten(1).sort().values, image.flatten(1).sort().values)
    assert torch.equal(shuffle(image, torch.arange(first, first + 4), grid), result)
    assert not torch.equal(shuffle(image, torch.arange(first, first + 4), grid, seed=1), result)


def test_strengths_are_relative_to_the_side() -> None:
    """A picture four times as large, probed, is the probed picture four times as large."""
    small = some(2, 32, 32)[0].float()
    smooth = torch.nn.functional.interpolate(small[:, :, :8, :8], 32, mode="bilinear")
    large = smooth.repeat_interleave(4, 2).repeat_interleave(4, 3)  # 128 × 128
    index = torch.arange(2)
    for name in ("shuffle-4", "grey-100", "centre-25", "surround-50", "blur-6"):
        small_probed, large_probed = PROBES[name](smooth, index), PROBES[name](large, index)
        again = torch.nn.functional.avg_pool2d(large_probed, 4)
        assert float((again - small_probed).abs().mean()) < 0.01, name
    plain = torch.full((1, 3, 16, 16), 0.3)
    assert torch.allclose(edges(plain, index[:1], 1), torch.ones_like(plain))  # no edge anywhere


def test_scores_by_hand() -> None:
    label = torch.tensor([0, 1, 2, 0])
    answers = dict.fromkeys(PROBES, torch.tensor([0, 1, 2, 1]))
    answers[WHOLE] = torch.tensor([0, 1, 2, 1])  # three right
    answers["grey-100"] = torch.tensor([0, 0, 0, 0])  # keeps one of the three, and gets the fourth right
    scores = probe_scores(answers, label)
    assert scores[WHOLE] == {"accuracy": 0.75}
    assert scores["grey-100"] == {"accuracy": 0.5, "agreement": 0.25}
    assert scores["hue-120"] == {"accuracy": 0.75, "agreement": 1.0}
    values = reliance(answers, label)
    assert values == {"needs_colour": pytest.approx(2 / 3), "texture_share": 0.5, "surround_share": 0.5}
    answers["shuffle-2"] = answers["shuffle-4"] = torch.tensor([1, 2, 0, 0])  # nothing kept of two of three strengths
    answers["centre-25"] = torch.tensor([0, 1, 0, 1])  # two of three kept, at one of two strengths
    values = reliance(answers, label)
    assert values["texture_share"] == pytest.approx((1 / 3) / (1 / 3 + 1))
    assert values["surround_share"] == pytest.approx(1 / (1 + 5 / 6))
    answers |= {name: (label + 1) % 3 for name in PROBES if name.startswith(("surround", "centre"))}
    assert "surround_share" not in reliance(answers, label)  # nothing kept of either
    assert reliance(dict.fromkeys(answers, label + 1), label) == {}  # never right


def test_the_score_equals_a_loop_and_teachers_are_scored_once(folder: RunDir, context: EvalContext) -> None:
    score = evaluate(folder, context, ["probes"])["probes"]
    run = EvaluatedRun(folder, context)
    teachers, images = run.teachers("probes"), context.first_test[1]
    networks = {"own": run.network, "early": teachers.network("early"), "final": teachers.network("final")}
    (batch,) = Loader(images, batch=100, seed=0, image_size=32, augment="none", shuffle=False).epoch(0)
    for role, network in networks.items():
        with torch.no_grad():
            whole = network(batch.image).logits.argmax(1)
            for name, probe in PROBES.items():
                answer = network(probe(batch.image, batch.index)).logits.argmax(1)
                found = score["networks"][role][name]
                assert found["accuracy"] == pytest.approx(float((answer == batch.label).double().mean()), abs=0.011)
                assert found["agreement"] == pytest.approx(float((answer == whole).double().mean()), abs=0.011)
    assert (score["count"], score["chance"], score["majority"]) == (100, 0.1, 0.1)
    assert score["values"].keys() <= EVALUATIONS["probes"].metrics.keys()
    assert "needs_colour_final" in score["values"]
    teacher = RunDir(context.runs / "teachers" / str(run.run.teacher))
    saved = {path.name: path.stat().st_mtime_ns for path in (teacher.path / "scores").glob("probes*")}
    assert saved.keys() == {"probes.json", f"probes@{run.run.early}.json"}
    (folder.path / "scores" / "probes.json").unlink()
    assert evaluate(folder, context, ["probes"])["probes"] == score
    assert saved == {path.name: path.stat().st_mtime_ns for path in (teacher.path / "scores").glob("probes*")}


@pytest.mark.parametrize("name", ["probes", "maps"])
def test_images_with_masks_are_refused(name: str, tmp_path: Path) -> None:
    scenes = open_sets("cues-seg", tmp_path, options={"count": 4, "test_count": 2})
    with pytest.raises(UserError, match=f"{name}.*label"):
        list(EVALUATIONS[name].run(EvalContext(scenes, tmp_path)))


@pytest.mark.slow  # a quarter of an hour: three teachers and nine students
def test_on_known_shortcuts_the_texture_share_orders_networks_as_accuracy_under_conflict_does(tmp_path: Path) -> None:
    """How well: docs/results/diagnostics.md. T_final is another architecture than its students, read it with care."""
    session = Session(tmp_path / "runs", execution=CPU, quiet=True)
    texture, conflict = (dict.fromkeys(("kd", "asd", "contrast", "early", "final"), 0.0) for _ in range(2))
    for seed in (1, 2, 3):
        recipe = load_recipe("cues", [f"teacher.seed={seed}"])
        context = EvalContext(session.sets(recipe.data), session.runs)
        for method in ("kd", "asd", "contrast"):
            folder = RunDir(distill(recipe, session, method=method, seed=seed, suite="cues").folder(session.runs))
            scores = evaluate(folder, context, ["clean", "probes"])
            texture[method] += scores["probes"]["values"]["texture_share"] / 3
            conflict[method] += scores["conflict"]["values"]["accuracy"] / 3
        run, images = EvaluatedRun(folder, context), context.sets.tests["conflict"]
        for role in ("early", "final"):
            texture[role] += scores["probes"]["values"][f"texture_share_{role}"] / 3
            logits, _ = run.outputs(images, run.teachers("probes").network(role))
            conflict[role] += dict(accuracy(logits, images.label))["accuracy"] / 3
    for low in ("kd", "asd"):  # hardly apart
        assert conflict["early"] < conflict[low] < conflict["contrast"] < conflict["final"]
        assert texture["early"] > texture[low] > texture["contrast"]
    assert texture["kd"] > texture["final"]  # which is within a hundredth of contrast, on either side
