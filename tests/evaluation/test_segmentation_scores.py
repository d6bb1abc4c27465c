"""Scenes of a finished run: colours that can be told apart, both sets, and where the dots of the plane come from."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.analysis.features import places
from antishortcut.config.recipe import Execution, load_recipe
from antishortcut.evaluation import EvalContext, EvaluatedRun, evaluate
from antishortcut.evaluation.segmentation_scores import EACH, SAME, locations, oklab, palette
from antishortcut.evaluation.shift_scores import compared
from antishortcut.models import Network
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import FileSet, ImageSet
from tests.data.official import mask

SMALL = [
    "iterations=2", "data.image_size=32", "data.options.count=40", "data.options.test_count=20", "optim.batch=8",
    "teacher.name=dense-4-8", "student.name=dense-2-8", 'teacher.keep=["0%", 15]',
]  # fmt: skip


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> EvaluatedRun:
    """A student of cues-seg, whose test sets are iid, conflict and uncorrelated."""
    execution = Execution(accelerator="cpu", threads=1, save_every=1e9)
    session = Session(tmp_path_factory.mktemp("runs"), execution=execution, quiet=True)
    run = distill(load_recipe("cues-seg", SMALL), session, method="kd", seed=1, suite="s")
    return EvaluatedRun(RunDir(run.folder(session.runs)), EvalContext(session.sets(run.data), session.runs))


def bytes_of(colours: list[str]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array([list(bytes.fromhex(colour[1:])) for colour in colours])


@pytest.mark.parametrize(("classes", "least"), [(11, 0.20), (21, 0.14), (50, 0.10), (150, 0.06), (254, 0.05)])
def test_colours_can_be_told_apart(classes: int, least: float) -> None:
    """Oklab has black at lightness 0 and white at 1; 0.02 is about what can just be seen."""
    place = oklab(bytes_of(["#000000", "#ffffff", *palette(classes)]))
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(place, 2)) >= least


def test_colours_of_few_classes_are_the_first_of_many() -> None:
    assert palette(150)[:11] == palette(11)
    assert palette(1) == palette(2)[:1]


def test_oklab_of_known_colours() -> None:
    """Ottosson's own numbers for white, red and blue."""
    result = oklab(np.array([[255, 255, 255], [255, 0, 0], [0, 0, 255], [0, 0, 0]]))
    known = np.array([[1, 0, 0], [0.628, 0.2249, 0.1258], [0.452, -0.0325, -0.3115], [0, 0, 0]])
    assert np.allclose(result, known, atol=1e-3)


def test_scenes_of_the_conflict_set_too(subject: EvaluatedRun) -> None:
    folder, bench = subject.folder, subject.bench
    score = evaluate(folder, bench, ["scenes"])["scenes"]
    assert set(score["values"]) == {"agreement", "conflict_agreement"}
    assert score["of"] == "iid"
    for stem, name in (("scenes", "iid"), ("scenes-conflict", "conflict")):
        built = json.loads((folder.path / "artifacts" / f"{stem}.json").read_text())
        assert (built["set"], built["scenes"], built["colours"]) == (name, 16, palette(11))
        place = folder.path / "artifacts" / stem
        assert len(list(place.iterdir())) == 64
        shown = torch.linspace(0, 19, 16).round().long()
        truth = torch.stack([torch.tensor(np.asarray(Image.open(place / f"{n:02d}-truth.png"))) for n in range(16)])
        assert torch.equal(truth.long(), bench.sets.tests[name].label[shown].long())
    (folder.path / "artifacts" / "scenes-conflict.json").unlink()  # then it is not finished
    evaluate(folder, bench, ["scenes"])
    assert (folder.path / "artifacts" / "scenes-conflict.json").exists()


def taught(subject: EvaluatedRun) -> Network:
    return compared(subject).network("final")


def test_dots_come_from_many_images_and_no_image_has_many(subject: EvaluatedRun) -> None:
    images = subject.bench.primary_metric[1]
    rows = locations(subject, taught(subject), images)
    assert len({len(result) for result in rows.values()}) == 1
    assert max(Counter(zip(rows["label"].tolist(), rows["image"].tolist(), strict=True)).values()) == SAME
    shown = places(rows["label"], each=EACH)
    ground = rows["image"][shown][rows["label"][shown] == 0].tolist()  # of the class that is in every image
    assert len(ground) == EACH
    assert len(set(ground)) > EACH // 2  # drawn, not the first


def test_dots_do_not_depend_on_the_length_of_batches(subject: EvaluatedRun, tmp_path: Path) -> None:
    """Images on disk come one by one, those in memory in batches."""
    images = subject.bench.primary_metric[1]
    assert isinstance(images, ImageSet)
    whole = locations(subject, taught(subject), images)
    files, masks = [], []
    for at, (image, label) in enumerate(zip(images.image, images.label, strict=True)):
        files.append(tmp_path / f"{at:02d}.png")
        masks.append(tmp_path / f"{at:02d}-mask.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(files[-1])
        mask(masks[-1], label.numpy())
    on_disk = FileSet(tuple(files), torch.zeros(len(files), dtype=torch.int64), masks=tuple(masks))
    single = locations(subject, taught(subject), on_disk)
    for role in ("label", "image"):
        assert torch.equal(whole[role], single[role])
    for role in ("teacher", "student"):
        assert torch.allclose(whole[role], single[role], atol=1e-4)
