"""Training without labels: by a teacher that classifies, by one that only embeds, and beside labelled images."""
# B batch, C classes

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from antishortcut.config.recipe import Recipe, recipe_from, teach_run, with_settings
from antishortcut.errors import UserError
from antishortcut.methods import METHODS
from antishortcut.methods.feature_distillation import FeatureDistillation
from antishortcut.models import build, load_weights
from antishortcut.run_dir import RunDir, read_json
from antishortcut.tasks import EmbeddingAgreement, PartlyLabelled, TeacherAgreement
from antishortcut.training.pipeline import Session, distill, feasible, teach
from antishortcut.types import Batch, Features, ImageSet, Shape, Sizes
from tests.conftest import CPU, Ended, Refusal, asd, assert_same_run, stop_after

COLOURS = {"blue": (60, 60, 200), "green": (60, 200, 60), "red": (200, 60, 60)}


def make_colours(root: Path, each: int, layout: str) -> Path:
    """Noisy squares of three colours; `layout` places them: {name} is the colour, {at} a number."""
    rng = np.random.default_rng(each)
    for name, colour in COLOURS.items():
        for at in range(each):
            pixels = np.clip(np.array(colour) + rng.normal(0, 40, (16, 16, 3)), 0, 255).astype(np.uint8)
            path = root / layout.format(name=name, at=at)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled and loose images, and two states of a teacher that was trained on the labelled ones."""
    folder = tmp_path_factory.mktemp("unlabelled")
    make_colours(folder / "photos", 16, "{name}/{at}.png")
    make_colours(folder / "more", 20, "{at}-{name}.png")
    torch.manual_seed(0)
    teacher = build("cnn-4-16", 3, image_size=16)
    torch.save(teacher.state_dict(), folder / "early.pt")
    optimizer = torch.optim.SGD(teacher.parameters(), lr=0.05, momentum=0.9)
    images = [np.asarray(Image.open(path)) for path in sorted((folder / "photos").rglob("*.png"))]
    image = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(teacher(image).logits, torch.arange(3).repeat_interleave(16))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    torch.save(teacher.state_dict(), folder / "final.pt")
    return folder


def recipe_for(place: Path, *settings: str) -> Recipe:
    text = f"""
epochs = 2
[data]
name = "unlabelled:{place}/more"
image_size = 16
augment = "crop"
options = {{classes = 3}}
[teacher]
name = "cnn-4-16"
final = "{place}/final.pt"
early = "{place}/early.pt"
[student]
name = "cnn-2-16"
[optim]
batch = 16
[methods.asd]
warmup = 1.0
[methods."contrast+tc"]
warmup = 1.0
"""
    return with_settings(recipe_from(text, place), settings)


def labelled(place: Path) -> tuple[str, ...]:
    return (f"data.name=folder:{place}/photos", "data.options={}")


def student(recipe: Recipe, session: Session, method: str, suite: str = "s", **options: Any) -> RunDir:
    run = distill(recipe, session, method=method, seed=1, suite=suite, options=options)
    return RunDir(run.folder(session.runs))


def outputs(name: str, classes: int, weights: Path, image: Tensor) -> Features:
    network = build(name, classes, image_size=16)
    load_weights(network, weights)
    with torch.no_grad():
        return network.eval()(image)  # type: ignore[no-any-return]


def test_targets_alone_and_agreement_by_hand(place: Path, session: Session) -> None:
    recipe = recipe_for(place)
    folder = student(recipe, session, "contrast")
    assert {name for row in folder.history() for name in row.get("terms", {})} == {"contrast"}
    test = session.sets(recipe.data).tests["test"]
    assert isinstance(test, ImageSet)
    image = test.image.float() / 255
    one = outputs("cnn-2-16", 3, folder.student, image).logits
    two = outputs("cnn-4-16", 3, place / "final.pt", image).logits
    same = float((one.argmax(1) == two.argmax(1)).float().mean())
    divergence = sum(
        float(q) * (float(q.log()) - float(p.log()))
        for row_p, row_q in zip(one.softmax(1), two.softmax(1), strict=True)
        for p, q in zip(row_p, row_q, strict=True)
    )
    result = folder.result()
    assert (result["primary_metric"], result["set"]) == ("agreement", "test")
    assert result["last"]["agreement"] == pytest.approx(same)
    assert result["last"]["kl"] == pytest.approx(divergence / len(image), rel=1e-3)
    scores = asd("evaluate", folder.path)["runs"][0]["scores"]["test"]["values"]
    assert scores == pytest.approx({"agreement": same, "kl": divergence / len(image)}, rel=1e-3)
    states = read_json(session.runs / "teachers" / str(folder.read()[0].teacher) / "manifest.json")["states"]
    assert [state["agreement"] for state in states][-1] == 1.0
    assert states[0]["agreement"] < 1


def test_a_student_learns_the_classes_from_images_alone(place: Path, session: Session) -> None:
    """Not one label is read, and the student knows the labelled images' classes nearly as the teacher does."""
    recipe = recipe_for(place, "epochs=12", "optim.lr=0.1", "data.augment=none")
    folder = student(recipe, session, "kd")
    assert folder.result()["last"]["agreement"] > 0.8
    probe = session.sets(recipe_for(place, *labelled(place)).data).train
    assert isinstance(probe, ImageSet)
    image = probe.image.float() / 255
    right = [
        float((outputs(name, 3, path, image).logits.argmax(1) == probe.label).float().mean())
        for name, path in (("cnn-2-16", folder.student), ("cnn-4-16", place / "final.pt"))
    ]
    assert right[0] > 0.8 * right[1] > 0.6


def test_a_copy_of_the_teacher_agrees_with_it(place: Path, session: Session) -> None:
    recipe = recipe_for(place, "student.name=cnn-4-16", f"student.weights={place}/final.pt", "optim.lr=1e-12")
    last = student(with_settings(recipe, ["optim.warmup=2"]), session, "kd").result()["last"]
    assert last["agreement"] == 1
    assert last["kl"] < 0.1  # batch statistics moved


def test_cross_entropy_is_over_labelled_rows() -> None:
    torch.manual_seed(0)
    logits, label = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.tensor([2, -1, 0, -1, -1])
    batch = Batch(torch.rand(5, 3, 8, 8), label, torch.arange(5))
    for smoothing in (0.0, 0.3):
        log_p = logits.detach().log_softmax(1)
        rows = [(1 - smoothing) * log_p[at, label[at]] + smoothing * log_p[at].mean() for at in (0, 2)]
        task = PartlyLabelled(label_smoothing=smoothing)
        loss = task.loss(Features(logits, logits), batch)["task"]
        assert float(loss) == pytest.approx(-float(sum(rows)) / 2)
        assert int(task.weight(batch)) == 2
        bare = task.loss(Features(logits, logits), Batch(batch.image, torch.full((5,), -1), batch.index))["task"]
        (gradient,) = torch.autograd.grad(bare, logits)
        assert float(bare) == 0
        assert not gradient.any()


def test_labelled_and_unlabelled_images_in_one_run(place: Path, session: Session) -> None:
    """Scored by accuracy on labelled images; the teacher is trained on labelled images alone, so it is the same one."""
    alone = with_settings(recipe_for(place, *labelled(place)), ["teacher.early=15%"])
    alone = alone.model_copy(update={"teacher": alone.teacher.model_copy(update={"final": None})})
    both = alone.model_copy(update={"data": alone.data.model_copy(update={"unlabelled": str(place / "more")})})
    teacher = teach(alone, session)
    folder = student(both, session, "asd")
    run = folder.read()[0]
    assert run.teacher == teacher.hash
    assert run.hash != student(alone, session, "asd", "other").read()[0].hash
    result = folder.result()
    assert (result["primary_metric"], result["last"]["images"]) == ("accuracy", 5)
    assert result["steps"] == 2 * -(-(43 + 60) // 16)
    assert {"task", "kd", "tc", "ss"} <= {name for row in folder.history() for name in row.get("terms", {})}


def test_runs_without_the_setting_keep_their_hash(place: Path) -> None:
    run = teach_run(recipe_for(place, *labelled(place)), "data")
    text = json.dumps(run.model_dump(mode="json"))
    assert '"unlabelled": null' in text
    assert run.hash != run.model_copy(update={"data": run.data.model_copy(update={"unlabelled": "more"})}).hash


@pytest.mark.parametrize("method", ["kd", "contrast+tc", "asd", "features"])
def test_resume_is_bit_identical(place: Path, session: Session, method: str) -> None:
    recipe = recipe_for(place, *(["data.options.classes=0"] if method == "features" else []))
    _resumes(recipe, session, method)


def test_a_mixed_run_resumes_bit_identically(place: Path, session: Session) -> None:
    _resumes(recipe_for(place, *labelled(place), f"data.unlabelled={place}/more"), session, "contrast+tc")


def _resumes(recipe: Recipe, session: Session, method: str) -> None:
    for step in (2, 4, 5):
        with stop_after(step):
            student(recipe, session, method, "parts")
    assert_same_run(student(recipe, session, method, "parts"), student(recipe, session, method, "whole"))


def test_micro_batches_and_cache_work_as_with_labels(place: Path, tmp_path: Path) -> None:
    recipe = recipe_for(place, "optim.accumulate=2", "data.augmentation_cycle=1")
    plain, cached = (
        Session(tmp_path / name, execution=CPU.model_copy(update={"cache_teachers": name == "cached"}), quiet=True)
        for name in ("plain", "cached")
    )
    values = [student(recipe, each, "kd").result()["last"]["kl"] for each in (plain, cached)]
    assert values[0] == pytest.approx(values[1], rel=0.05)


# --- What is refused, before anything is written ---

NEEDS_CLASSES = ("dkd", "dkd+ls", "crd", "crd+kd", "crd-queue", "jtt+kd", "lff+kd", "transplant", "ckptkd", "byot")
FROM_LABELS = ("ce",)
GROUPS = ("groupdro+kd", "dfr+kd")
WITHOUT_LOGITS = (
    "rkd", "pkt", "sp", "cc", "fitnets", "at", "vid", "nst", "kdsvd", "ab", "fsp", "ft", "ofd", "reviewkd",
)  # fmt: skip


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session that only says whether a run can work: the images are read once."""
    return Session(tmp_path_factory.mktemp("asked") / "runs", execution=CPU, quiet=True)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_works_without_labels_or_says_why_not(place: Path, asked: Session, method: str) -> None:
    recipe = recipe_for(place, "student.name=cnn-4-16")
    reasons = dict.fromkeys(NEEDS_CLASSES, "goes by the class of every image")
    reasons |= dict.fromkeys(FROM_LABELS, "learns from labels alone") | dict.fromkeys(GROUPS, "needs groups")
    mixed = reasons.copy()
    reasons |= dict.fromkeys(WITHOUT_LOGITS, "nothing would train the student's classifier")
    reasons["features"] = "nothing would train the student's classifier"
    beside = recipe_for(place, *labelled(place), f"data.unlabelled={place}/more", "student.name=cnn-4-16")
    for each, known in ((recipe, reasons), (beside, mixed)):
        each = with_settings(each, ["epochs=50"])  # longer than any initial phase
        if method in known:
            with pytest.raises(UserError, match=known[method]):
                feasible(each, asked, method)
        elif method not in ("afdcd", "ufd", "snapshot"):  # of which states and stages are another matter
            feasible(each, asked, method)
    assert not asked.runs.exists() or not list(asked.runs.iterdir())


@pytest.mark.parametrize(
    ("settings", "method", "says"),
    [
        (["optim.mixup=0.4"], "kd", "mix labels, and some images have none"),
        (["methods.contrast.guard=true"], "contrast", "goes by the class of every image"),
        (["methods.contrast.beta=2.0"], "contrast", "goes by the class of every image"),
        (["methods.asd.kd=0.0"], "asd", "nothing would train the student's classifier"),
        (["methods.fitnets+kd.kd=0.0"], "fitnets+kd", "nothing would train the student's classifier"),
        (["teacher.early=rewind"], "asd", "a teacher cannot be rewound on it"),
        (["data.options.classes=0"], "kd", "a student learns embeddings, which 'kd' does not teach; use features"),
        (["data.options.classes=0"], "rkd", "use features"),
        (["data.options.classes=4"], "kd", "they are for 3 classes"),
        (["student.name=dense-4"], "kd", "the student network gives maps"),
    ],
)
def test_what_cannot_work_is_one_line(place: Path, asked: Session, settings: list[str], method: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        feasible(recipe_for(place, *settings), asked, method)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_teacher_cannot_be_trained(place: Path, session: Session) -> None:
    recipe = recipe_for(place, "teacher.early=15%")
    recipe = recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update={"final": None})})
    for attempt in (lambda: teach(recipe, session), lambda: student(recipe, session, "kd")):
        with pytest.raises(UserError, match="has no labels, so a teacher cannot be trained on it; name its weights"):
            attempt()


# --- Teachers that only embed ---

BACKBONE = """
import torch
from torch import nn

class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 24, 3, stride=2), nn.ReLU())
    def forward(self, x):
        return self.layers(x).mean(dim=(2, 3))

def backbone():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Backbone()
"""


def test_an_embedding_is_distilled_into_a_student_without_a_classifier(
    place: Path, here: Path, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole story in one command: your own backbone, its own weights, cosine, neighbours and probe, export."""
    (here / "own_backbone.py").write_text(BACKBONE)
    words: tuple[Any, ...] = ("distill", "--data", place / "more", "--unlabelled")
    words += ("--teacher", "own_backbone:backbone", "--student", "cnn-4-16", "--epochs", 15, "--suite", "s")
    words += ("--set", "data.image_size=16", "--set", "optim.lr=0.01")
    out, err, code = ended(*words, "--method", "features", "--json")
    assert code == 0, err
    assert "no labels, 54 images to train on, 6 held out" in err
    run = here / json.loads(out)["run"]
    assert 'final = "pretrained"' in (here / "runs/s/recipe.toml").read_text()
    rows = [row["scores"]["cosine"] for row in RunDir(run).history() if "scores" in row]
    assert rows[-1] > max(rows[0], 0.5)
    weights = load_file(run / "student.safetensors")
    assert not any("head" in key for key in weights)
    method = FeatureDistillation(Sizes(0, 54, Shape(16), {"final": Shape(24)}))
    method.load_state_dict(load_file(run / "method.safetensors"))
    test = Session(here / "runs").sets(RunDir(run).read()[0].data).tests["test"]
    assert isinstance(test, ImageSet)
    image = test.image.float() / 255
    with torch.no_grad():
        rows_s = method.eval().project(outputs("cnn-4-16", 0, run / "student.safetensors", image).embedding)
        rows_t = build("own_backbone:backbone", 0, image_size=16).eval()(image).embedding
    cosine = float(torch.nn.functional.cosine_similarity(rows_s, rows_t).mean())
    assert json.loads((run / "scores" / "test.json").read_text())["values"]["cosine"] == pytest.approx(cosine, abs=1e-4)
    scores = asd("evaluate", run, "--on", "embedding", "--at", f"embedding={place / 'photos'}")["runs"][0]["scores"]
    assert set(scores["embedding"]["values"]) == {"knn", "linear", "teacher_knn", "teacher_linear"}
    assert min(scores["embedding"]["values"].values()) > 0.5
    record = asd("export", run, "--to", "torch", "--out", here / "exported")
    assert record["output"] == {"embedding": ["batch", 16]}
    program = torch.export.load(here / "exported" / "model.pt2").module()
    torch.testing.assert_close(
        program(image[:2]), outputs("cnn-4-16", 0, run / "student.safetensors", image[:2]).embedding
    )
    assert ended("distill", here / "runs/s/recipe.toml", "--method", "kd")[2] == 2  # it has no logits
    assert ended("report", here / "runs/s")[2] == 0


def test_a_library_network_without_published_weights_teaches_from_a_file(place: Path, session: Session) -> None:
    torch.manual_seed(3)
    torch.save(build("timm:test_vit", 0, image_size=32).state_dict(), place / "vit.pt")
    settings = ["teacher.name=timm:test_vit", f"teacher.final={place}/vit.pt", "teacher.early=15%"]
    recipe = recipe_for(place, *settings, "data.options.classes=0", "data.image_size=32", "epochs=1")
    result = student(recipe, session, "features").result()
    assert result["primary_metric"] == "cosine"


def test_published_weights_come_from_the_hub(place: Path, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own code path, which without a network ends in one line and leaves nothing behind."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    settings = ["teacher.name=timm:vit_small_patch14_dinov2.lvd142m", "teacher.final=pretrained", "teacher.early=15%"]
    recipe = recipe_for(place, *settings, "data.options.classes=0", "data.image_size=32", "epochs=1")
    with pytest.raises(UserError, match=r"cannot download the weights of timm:vit_small_patch14_dinov2\.lvd142m"):
        student(recipe, session, "features")
    assert not list((session.runs / "teachers").rglob("run.json"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--teacher", "cnn-4-16"), "has no labels to train a teacher with; name its weights: --final FILE"),
        (("--teacher", "cnn-4-16", "--final", "none.pt"), "no weights at none.pt"),
        (("--teacher", "cnn-4-16", "--final", "final.pt", "--method", "contrast"), "to train a weak reference with"),
        (("--teacher", "cnn-4-16", "--final", "final.pt", "--method", "ce"), "learns from labels alone"),
        (("--teacher", "cnn-4-16", "--final", "pretrained"), "nobody publishes weights for cnn-4-16"),
        (("--teacher", "cnn-4-16", "--early", "rewind"), "name its weights: --final FILE"),
    ],
)
def test_mistakes_on_the_command_line(
    place: Path, here: Path, refusal: Refusal, words: tuple[str, ...], says: str
) -> None:
    (here / "final.pt").write_bytes((place / "final.pt").read_bytes())
    assert says in refusal("distill", "--data", place / "more", "--unlabelled", "--student", "cnn-2", *words)


def test_the_flag_goes_with_a_folder(refusal: Refusal, place: Path) -> None:
    assert "stand for a recipe" in refusal("distill", "cues", "--unlabelled")
    pair = ("--teacher", "cnn-4", "--student", "cnn-2", "--unlabelled")
    assert "takes a folder of images" in refusal("distill", "--data", "groups:x", *pair)
    assert "no folder nowhere" in refusal("distill", "--data", "nowhere", *pair)


def test_the_plan_counts_the_teachers_classes(place: Path, here: Path, ended: Ended) -> None:
    words: tuple[Any, ...] = ("distill", "--data", f"folder:{place / 'more'}", "--unlabelled")
    words += ("--teacher", "cnn-4-16")
    words += ("--final", place / "final.pt", "--student", "cnn-2", "--method", "kd", "--dry-run", "--json")
    plan = json.loads(ended(*words)[0])
    assert plan["data"]["name"] == f"unlabelled:{place / 'more'}"
    assert plan["data"]["options"] == {"classes": 3}
    assert json.loads(ended(*words, "--set", "data.options.classes=3")[0])["data"]["options"] == {"classes": 3}


def test_agreement_of_tasks_by_hand() -> None:
    one, two = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [3.0, 1.0]])
    classes = TeacherAgreement()
    scores = classes.scores(classes.agreement(Features(one, one), Features(two, two)))
    p, q = one.double().softmax(1), two.double().softmax(1)
    assert scores == pytest.approx({"agreement": 0.5, "kl": float((q * (q / p).log()).sum() / 2)})
    embeds, none = EmbeddingAgreement(), torch.empty(2, 0)
    assert embeds.scores(embeds.agreement(Features(none, one), Features(none, two))) == pytest.approx(
        {"cosine": (1 + 1 / 10**0.5) / 2}
    )
