"""The maps of a run: which images, what is written, and on the embedded images how much falls on the glyph."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.analysis.answers import RULES, SIDE, STATES, choose, grad_cam, integrated_gradients, share_inside
from antishortcut.data.splits import limited
from antishortcut.evaluation import EVALUATIONS, evaluate
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.evaluation.maps import ARTIFACT
from antishortcut.run_dir import RunDir
from antishortcut.types import ImageSet


def test_images_are_chosen_by_rule_and_mostly_by_the_teacher() -> None:
    maker = torch.Generator().manual_seed(0)
    label, early, final, own, other = torch.randint(0, 3, (5, 200), generator=maker)
    chosen = choose({"own": own, "early": early, "final": final}, label)
    assert [why for _, why in chosen[:12]] == [rule for rule, count in RULES.items() for _ in range(count)]
    assert [why for _, why in chosen[12:]] == ["student and T_final differ"] * 2
    assert len({at for at, _ in chosen}) == 14
    for at, why in chosen:
        assert {
            "T_early and T_final differ": early[at] != final[at],
            "both teachers right": early[at] == final[at] == label[at],
            "both teachers wrong": early[at] == final[at] != label[at],
            "student and T_final differ": own[at] != final[at],
        }[why]
    assert choose({"own": other, "early": early, "final": final}, label)[:12] == chosen[:12]  # shared
    agreed = choose({"own": label, "early": label, "final": label}, label)  # nobody errs
    assert [why for _, why in agreed] == ["both teachers right"] * 3 + ["any"] * 9
    assert choose({"own": other, "early": label, "final": label}, label)[:12] == agreed
    states = choose({"early": early, "final": final}, label)  # no student: what training gave up comes first
    assert [sum(why == rule for _, why in states) for rule in STATES] == [3, 5, 2, 2]
    assert all(early[at] == label[at] != final[at] for at, _ in states[:3])
    alone = choose({"own": own}, label)
    assert [why for _, why in alone] == ["right"] * 6 + ["wrong"] * 6
    assert len(choose({"own": own[:5]}, label[:5])) == 5


def test_what_is_written(folder: RunDir, context: EvalContext) -> None:
    score = evaluate(folder, context, ["maps"])["maps"]
    path = folder.path / ARTIFACT
    assert path.stat().st_size < 150_000
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    count = len(arrays["name"])
    assert score["count"] == count
    assert 12 <= count <= 14
    assert arrays["network"].tolist() == ["own", "early", "final"]
    assert arrays["classes"].tolist() == list(context.sets.classes)
    images = context.first_test[1]
    assert isinstance(images, ImageSet)
    at = torch.tensor([int(name) for name in arrays["name"]])
    assert arrays["label"].tolist() == images.label[at].tolist()
    raw, evaluated = images.image[at] / 255, EvaluatedRun(folder, context)
    with torch.no_grad():
        probability = evaluated.network(raw).logits.softmax(1)
    assert arrays["top"].shape == arrays["confidence"].shape == (3, count, 5)
    assert arrays["top"][0, :, 0].tolist() == probability.argmax(1).tolist()
    assert np.allclose(arrays["confidence"][0, :, 0], probability.amax(1), atol=1e-4)
    answer = probability.argmax(1)
    expected = {
        "grad_cam": grad_cam(evaluated.network, raw, answer),
        "integrated_gradients": integrated_gradients(evaluated.network, raw, answer).abs(),
    }
    for key, heat in expected.items():
        assert arrays[key].shape == (3, count, SIDE, SIDE)
        assert arrays[key].dtype == np.uint8
        largest = heat.amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)
        assert np.abs(arrays[key][0] - (255 * heat / largest).numpy()).max() < 2
    start = 0
    for end, pixels in zip(arrays["jpeg_end"], images.image[at], strict=True):
        with Image.open(io.BytesIO(arrays["jpeg"][start:end].tobytes())) as picture:
            assert picture.size == (32, 32)
            assert np.abs(np.asarray(picture).transpose(2, 0, 1).astype(float) - pixels.numpy()).mean() < 25
        start = int(end)
    before = path.read_bytes()
    path.unlink()
    evaluate(folder, context, ["maps"])
    assert path.read_bytes() == before  # the score alone is not enough, and the file is the same


def test_the_share_on_the_glyph(folder: RunDir, context: EvalContext) -> None:
    values = evaluate(folder, context, ["maps"])["maps"]["values"]
    assert values.keys() <= EVALUATIONS["maps"].metrics.keys()
    evaluated = EvaluatedRun(folder, context)
    images = context.sets.tests["conflict"]
    assert isinstance(images, ImageSet)
    assert images.cover is not None
    cover = images.cover
    assert values["glyph_area"] == pytest.approx(float(cover.mean()))
    raw = images.image / 255
    answer = evaluated.network(raw).logits.argmax(1)
    gradients = integrated_gradients(evaluated.network, raw, answer)
    assert values["glyph_share_ig"] == pytest.approx(float(share_inside(gradients, cover).mean()), abs=1e-3)
    cam = share_inside(grad_cam(evaluated.network, raw, answer), cover)
    assert values["glyph_share_cam"] == pytest.approx(float(cam.nanmean()), abs=1e-3)
    few = limited(images, 30, 0)
    assert isinstance(few, ImageSet)
    assert few.cover is not None
    part = few.cover
    places = [int((images.image == one).flatten(1).all(1).nonzero()[0]) for one in few.image]
    assert torch.equal(cover[places], part)
