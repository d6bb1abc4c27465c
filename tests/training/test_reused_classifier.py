"""A student that ends in its teacher's classifier, from training to export: one network, wherever a run is opened."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from antishortcut.config.recipe import Recipe, with_settings
from antishortcut.deployment import export
from antishortcut.errors import UserError
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.models import Network
from antishortcut.models.reused_classifier import ReusedClassifier
from antishortcut.report.collect import collect
from antishortcut.report.model_cost import size_table
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory, build_saved
from antishortcut.training.pipeline import Session, distill, teach
from tests.conftest import CPU, Refusal, assert_same_run, same_weights, stop_after, tiny_session
from tests.deployment.subjects import close, images, runtime
from tests.processes import asd

SMALL = ["data.options.count=128", "data.options.test_count=64"]  # 4 steps an epoch, 8 in all
Taught = tuple[Recipe, Session]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    recipe, session = tiny_session(tmp_path_factory.mktemp("taught"), *SMALL)
    teach(recipe, session)
    return recipe, session


@pytest.fixture(scope="module")
def student(taught: Taught) -> RunDir:
    recipe, session = taught
    run = distill(recipe, session, method="simkd", seed=1, suite="s")
    return RunDir(run.folder(session.runs))


def opened(folder: RunDir, classes: int = 10) -> Network:
    network = build_saved(folder, classes, 32)
    network.load_state_dict(load_file(folder.student))
    return network.eval()


def teachers_head(folder: RunDir, session: Session) -> dict[str, Any]:
    """The classifier in the final weights of a run's teacher."""
    weights = Trajectory(RunDir(session.runs / "teachers" / str(folder.read()[0].teacher))).weights("final")
    return {key.rpartition(".")[2]: value for key, value in weights.items() if key.startswith("body.head.")}


def assert_reused(folder: RunDir, session: Session) -> None:
    own, expected = load_file(folder.student), teachers_head(folder, session)
    assert expected.keys() == {"weight", "bias"}
    assert all(torch.equal(own[f"body.head.{key}"], value) for key, value in expected.items())


def test_the_saved_network_is_whole_and_scores_as_in_training(taught: Taught, student: RunDir) -> None:
    _, session = taught
    result = student.result()
    assert_reused(student, session)
    network = opened(student)
    assert isinstance(network.body, ReusedClassifier)
    assert [path for path, module in network.named_modules() if isinstance(module, nn.Linear)] == ["body.head"]
    assert result["parameters"] == sum(p.numel() for p in network.parameters())
    assert not student.method.exists()  # the projector is the student's
    sets = session.sets(student.read()[0].data)
    scores = evaluate(student, EvalContext(sets, session.runs), ["clean", "mechanism", "cost"])
    assert scores[result["set"]]["values"]["accuracy"] == result["last"]["accuracy"]
    assert scores["cost"]["values"]["parameters"] == result["parameters"]
    assert "raw" in scores["mechanism"]["values"]  # its embedding is in the teacher's space
    image = images(student, session, 4)
    features = network(image)
    body = network.body
    trunk = body.trunk((image - network.mean) / network.std)
    by_hand = body.projector(trunk.last).mean(dim=(2, 3)) @ body.head.weight.T + body.head.bias
    torch.testing.assert_close(features.logits, by_hand)


def test_a_moved_folder_is_exported_by_itself(taught: Taught, student: RunDir, tmp_path: Path) -> None:
    _, session = taught
    shutil.copytree(student.path, tmp_path / "away")
    moved = RunDir(tmp_path / "away")  # no teacher and no data near
    image, network = images(student, session, 5), opened(moved)
    exported = export(moved, "onnx", None, out=tmp_path / "o")
    (logits,) = runtime(exported.place).run(["logits"], {"image": image.numpy()})
    close(logits, network(image).logits)
    card = (exported.place / "README.md").read_text()
    assert "| classifier | its teacher's, used at inference: the student's last map → projector → mean" in card
    assert "its teacher, whose classifier is among them" in card
    record = json.loads((exported.place / "export.json").read_text())
    assert (record["classes"], record["parameters"]) == (10, student.result()["parameters"])
    assert record["teachers_classifier"] == json.loads((moved.path / "run.json").read_text())["classifier"]


def test_weights_are_exported_with_lines_that_load_them(student: RunDir, tmp_path: Path) -> None:
    exported = export(student, "safetensors", None, out=tmp_path / "s")
    record = exported.record
    assert record["recipe"] is None  # a recipe's student begins with a classifier of its own
    names: dict[str, Any] = {}
    exec("\n".join(record["load"]).replace("model.safetensors", str(exported.place / "model.safetensors")), names)
    image = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(names["student"](image).logits, opened(student)(image).logits)


def test_timm_cannot_load_it(taught: Taught, tmp_path: Path) -> None:
    recipe, session = taught
    short = with_settings(recipe, ["student.name=timm:resnet10t", "epochs=1"])
    run = distill(short, session, method="simkd", seed=1, suite="timm")
    folder = RunDir(run.folder(session.runs))
    assert_reused(folder, session)
    assert not any(".fc." in key for key in load_file(folder.student))
    with pytest.raises(UserError, match="ends in its teacher's classifier here, so timm cannot load it"):
        export(folder, "timm", None, out=tmp_path / "t")
    export(folder, "torch", None, out=tmp_path / "t")


def test_the_report_counts_it_as_a_network_of_its_own(taught: Taught, student: RunDir) -> None:
    recipe, session = taught
    distill(recipe, session, method="kd", seed=1, suite="s")
    table = size_table(collect(session.runs / "s"))
    assert table is not None
    rows = {row.network: row.parameters for row in table.rows if row.role == "student"}
    assert rows["cnn-2-16 + its teacher's classifier"] == student.result()["parameters"]
    assert rows["cnn-2-16"] == 1364


def test_averaged_weights_and_a_resumed_run_keep_the_classifier(taught: Taught, tmp_path: Path) -> None:
    recipe, session = taught
    recipe = with_settings(recipe, ["optim.ema=0.9", "optim.accumulate=3", "optim.clip=1.0"])
    (here := Session(tmp_path / "runs", execution=CPU, quiet=True)).runs.mkdir()
    shutil.copytree(session.runs / "teachers", here.runs / "teachers")
    for step in (3, 4, 6):
        with stop_after(step):
            distill(recipe, here, method="transplant", seed=1, suite="parts")
    parts = distill(recipe, here, method="transplant", seed=1, suite="parts")
    whole = distill(recipe, here, method="transplant", seed=1, suite="whole")
    folders = [RunDir(run.folder(here.runs)) for run in (parts, whole)]
    assert_same_run(*folders)
    assert_reused(folders[0], here)


def test_lambda_one_trains_the_student_of_simkd(taught: Taught, student: RunDir) -> None:
    recipe, session = taught
    run = distill(recipe, session, method="transplant", seed=1, suite="s", options={"factor": 1.0}, name="one")
    assert same_weights(RunDir(run.folder(session.runs)).student, student.student)


def test_a_chain_hands_the_classifier_down(taught: Taught) -> None:
    """Each learns the map of the one before, and all end in the first teacher's classifier."""
    recipe, session = taught
    run = distill(recipe, session, method="simkd", seed=1, suite="s", via=["cnn-3-12"])
    folder = RunDir(run.folder(session.runs))
    assert_reused(folder, session)
    assistant = RunDir(session.runs / "teachers" / str(run.teacher))
    assert assistant.classifier() is not None
    first = RunDir(session.runs / "teachers" / str(assistant.read()[0].teacher))
    own, other = load_file(folder.student), Trajectory(first).weights("final")
    assert torch.equal(own["body.head.weight"], other["body.head.weight"])
    export(assistant, "safetensors", None, state="50%")


def test_a_link_of_the_chain_can_be_rewound(taught: Taught) -> None:
    recipe, session = taught
    recipe = with_settings(recipe, ["teacher.early=rewind", "teacher.rewind_epochs=1", "epochs=1"])
    run = distill(recipe, session, method="transplant", seed=1, suite="s", name="rewound", via=["cnn-3-12"])
    rewound = RunDir(session.runs / "teachers" / run.roles["early"].partition("/")[0])
    assert rewound.classifier() is not None
    assert_reused(RunDir(run.folder(session.runs)), session)


def test_its_weights_alone_are_no_teacher(taught: Taught, student: RunDir, tmp_path: Path) -> None:
    recipe, _ = taught
    given = [f"teacher.final={student.student}", "teacher.name=cnn-2-16"]
    with pytest.raises(UserError, match=r"of a student that ends in its teacher's classifier.* use --via") as caught:
        distill(with_settings(recipe, given), Session(tmp_path, quiet=True), method="kd", seed=1, suite="s")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [1, "x", {"source": 3}, {"width": 10**9}, {"width": 2, "side": [4096, 4096]}, [1]])
def test_a_damaged_record_is_one_line(student: RunDir, tmp_path: Path, value: Any) -> None:
    shutil.copytree(student.path, tmp_path / "damaged")
    path = tmp_path / "damaged" / "run.json"
    content = json.loads(path.read_text())
    kept = content["classifier"]
    content["classifier"] = kept | value if "width" in (value if isinstance(value, dict) else ()) else value
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"run\.json: damaged or edited \(wrong checksum\)"):
        export(RunDir(tmp_path / "damaged"), "safetensors", None, out=tmp_path / "o")
    del content["sum"]  # as one does who edits it
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"run\.json: damaged \(classifier\)") as caught:
        export(RunDir(tmp_path / "damaged"), "safetensors", None, out=tmp_path / "o")
    assert "\n" not in str(caught.value)


NETWORKS = """
from torch import nn

class Cosine(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU())
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(self.trunk(x).mean((2, 3))).tanh()

class Both(Cosine):
    def forward(self, x):
        embedding = self.trunk(x).mean((2, 3))
        return {"logits": self.fc(embedding), "embedding": embedding}

class Split(Cosine):
    def forward(self, x):
        first, second = self.fc(self.trunk(x).mean((2, 3))).split((4, 6), dim=1)
        return __import__("torch").cat([first, second], dim=1)
"""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["teacher.name=import:odd:Cosine"], "the teacher's logits must be one linear layer of its embedding"),
        (["student.name=import:odd:Both"], "the layer that computes the student's logits is not known"),
        (["student.name=import:odd:Split"], "the student does not run without its own classifier"),
    ],
)
def test_networks_that_cannot_work_are_refused_before_a_teacher_is_trained(
    here: Path, refusal: Refusal, tiny: Path, settings: list[str], message: str
) -> None:
    (here / "odd.py").write_text(NETWORKS)
    sys.modules.pop("odd", None)
    words = [word for text in settings for word in ("--set", text)]
    assert message in refusal("distill", tiny, "--method", "simkd", *words)


@pytest.mark.slow
def test_a_compiled_student_is_saved_as_any_other(taught: Taught) -> None:
    recipe, session = taught
    here = Session(session.runs, execution=CPU.model_copy(update={"compile": True}), quiet=True)
    run = distill(recipe, here, method="simkd", seed=1, suite="compiled")
    folder, eager = RunDir(run.folder(session.runs)), distill(recipe, session, method="simkd", seed=1, suite="eager")
    assert_reused(folder, session)
    one, two = (load_file(each.student) for each in (folder, RunDir(eager.folder(session.runs))))
    assert all(torch.allclose(one[key].float(), two[key].float(), atol=1e-3) for key in one)


@pytest.mark.slow
def test_two_processes_train_and_resume(tmp_path: Path, tiny: Path) -> None:
    """Killed inside the second epoch and resumed, in two processes, it ends in the same bits; both have one student."""
    words = [str(tiny), "--method", "simkd", "--devices", "2"]
    whole = json.loads(asd(tmp_path, "distill", *words, "--runs", "whole"))
    shutil.copytree(tmp_path / "whole" / "teachers", tmp_path / "parts" / "teachers")
    code = (
        "import os, signal, sys, antishortcut.training.trainer as loop\n"
        "step = loop.Trainer._train_step\n"
        "def stopping(self, batch):\n"
        "    if self.done == 10 and self.fabric.is_global_zero: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return step(self, batch)\n"
        "loop.Trainer._train_step = stopping\n"
    )
    (tmp_path / "stop.py").write_text(code + "from antishortcut.cli import main\nmain()\n")
    arguments = ["distill", *words, "--runs", "parts", "--device", "cpu", "--threads", "1"]
    stopped = subprocess.run(
        [sys.executable, "stop.py", *arguments], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    folder = tmp_path / "parts" / "tiny" / "simkd-s1"
    assert [*(folder / "resume").glob("*.pt")]
    parts = json.loads(asd(tmp_path, "distill", *words, "--runs", "parts"))
    assert parts["last"] == whole["last"]
    assert same_weights(
        tmp_path / "whole" / "tiny" / "simkd-s1" / "student.safetensors", folder / "student.safetensors"
    )
