"""Scenes of a finished run: distinct colours, both test sets, and the sampled locations of the t-SNE."""

import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.analysis.features import first_of_classes
from antishortcut.config.recipe import Execution, load_recipe
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.evaluation.segmentation_scores import EACH, PER_IMAGE, locations, oklab, palette
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import FileSet, ImageSet
from tests.data.official import mask

SMALL = [
    "iterations=2", "data.image_size=32", "data.options.count=40", "data.options.test_count=20", "optim.batch=8",
    "teacher.name=dense-4-8", "student.name=dense-2-8", 'teacher.keep=["0%", 15]',
]  # fmt: skip


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> EvaluatedRun:
    """A student of cues-seg, whose test sets are iid, conflict and uncorrelated."""
    execution = Execution(accelerator="cpu", threads=1, save_every=1e9)
    session = Session(tmp_path_factory.mktemp("runs"), execution=execution, quiet=True)
    run = distill(load_recipe("cues-seg", SMALL), session, method="kd", seed=1, suite="s")
    return EvaluatedRun(RunDir(run.folder(session.runs)), EvalContext(session.sets(run.data), session.runs))


def bytes_of(colours: list[str]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array([list(bytes.fromhex(colour[1:])) for colour in colours])


@pytest.mark.parametrize(("classes", "least"), [(11, 0.20), (50, 0.10), (254, 0.05)])
def test_colours_are_distinct(classes: int, least: float) -> None:
    """In Oklab black has lightness 0 and white 1; a distance of 0.02 is just visible."""
    place = oklab(bytes_of(["#000000", "#ffffff", *palette(classes)]))
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(place, 2)) >= least


def test_oklab_of_known_colours() -> None:
    """Ottosson's own numbers for white, red and blue."""
    result = oklab(np.array([[255, 255, 255], [255, 0, 0], [0, 0, 255], [0, 0, 0]]))
    known = np.array([[1, 0, 0], [0.628, 0.2249, 0.1258], [0.452, -0.0325, -0.3115], [0, 0, 0]])
    assert np.allclose(result, known, atol=1e-3)


def test_scenes_of_both_sets(evaluated: EvaluatedRun) -> None:
    folder, context = evaluated.folder, evaluated.context
    score = evaluate(folder, context, ["scenes"])["scenes"]
    assert set(score["values"]) == {"agreement", "conflict_agreement"}
    assert score["of"] == "iid"
    for stem, name in (("scenes", "iid"), ("scenes-conflict", "conflict")):
        artifact = json.loads((folder.path / "artifacts" / f"{stem}.json").read_text())
        assert (artifact["set"], artifact["scenes"], artifact["colours"]) == (name, 16, palette(11))
        place = folder.path / "artifacts" / stem
        assert len(list(place.iterdir())) == 80  # input, truth, T_final, T_early, student
        shown = torch.linspace(0, 19, 16).round().long()
        truth = torch.stack([torch.tensor(np.asarray(Image.open(place / f"{n:02d}-truth.png"))) for n in range(16)])
        assert torch.equal(truth.long(), context.sets.tests[name].label[shown].long())
    (folder.path / "artifacts" / "scenes-conflict.json").unlink()
    evaluate(folder, context, ["scenes"])
    assert (folder.path / "artifacts" / "scenes-conflict.json").exists()


def test_locations_come_from_many_images(evaluated: EvaluatedRun) -> None:
    images = evaluated.context.first_test[1]
    rows = locations(evaluated, evaluated.teachers("scenes").network("final"), images)
    assert len({len(result) for result in rows.values()}) == 1
    assert max(Counter(zip(rows["label"].tolist(), rows["image"].tolist(), strict=True)).values()) == PER_IMAGE
    shown = first_of_classes(rows["label"], each=EACH)
    ground = rows["image"][shown][rows["label"][shown] == 0].tolist()  # of the class that is in every image
    assert len(ground) == EACH
    assert len(set(ground)) > EACH // 2  # drawn, not the first


def test_locations_do_not_depend_on_the_batch_size(evaluated: EvaluatedRun, tmp_path: Path) -> None:
    """Images on disk come one by one, those in memory in batches."""
    images = evaluated.context.first_test[1]
    assert isinstance(images, ImageSet)
    whole = locations(evaluated, evaluated.teachers("scenes").network("final"), images)
    files, masks = [], []
    for at, (image, label) in enumerate(zip(images.image, images.label, strict=True)):
        files.append(tmp_path / f"{at:02d}.png")
        masks.append(tmp_path / f"{at:02d}-mask.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(files[-1])
        mask(masks[-1], label.numpy())
    on_disk = FileSet(tuple(files), torch.zeros(len(files), dtype=torch.int64), masks=tuple(masks))
    single = locations(evaluated, evaluated.teachers("scenes").network("final"), on_disk)
    for role in ("label", "image"):
        assert torch.equal(whole[role], single[role])
    for role in ("teacher", "student"):
        assert torch.allclose(whole[role], single[role], atol=1e-4)
