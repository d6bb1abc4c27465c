"""Size and latency of students beside their teachers."""

import json
import shutil
from pathlib import Path

import pytest

from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.evaluation.latency import interleaved
from antishortcut.report import make_report
from antishortcut.report.collect import collect
from antishortcut.report.model_cost import size_table
from antishortcut.run_dir import RunDir, write_json
from antishortcut.training.pipeline import Session
from tests.conftest import invoke


def test_latency_is_measured_alternately() -> None:
    """A clock by hand: the slow call takes 3, the fast 1; what disturbs a round disturbs both."""
    now, order = [0.0], list[str]()

    def call(name: str, seconds: float) -> None:
        order.append(name)
        now[0] += seconds

    calls = {"slow": lambda: call("slow", 3.0), "fast": lambda: call("fast", 1.0)}
    taken = interleaved(calls, rounds=4, warm=2, seconds=1e9, clock=lambda: now[0])
    assert taken == {"slow": [3.0] * 4, "fast": [1.0] * 4}
    assert order == ["slow", "fast", "fast", "slow"] * 3
    assert {
        len(each) for each in interleaved(calls, rounds=60, warm=1, seconds=0.0, clock=lambda: now[0]).values()
    } == {5}


def test_cost_is_measured_once_per_machine(
    student: RunDir, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = RunDir(shutil.copytree(student.path, tmp_path / "kd-s3"))
    teacher = RunDir(session.runs / "teachers" / str(student.read()[0].teacher))
    values = student.scores()["cost"]["values"]
    assert values["parameters"] == student.result()["parameters"]
    assert values["teacher_parameters"] == teacher.result()["parameters"]
    assert values["bytes"] == (student.path / "student.safetensors").stat().st_size
    assert 0 < values["ms"] < 1e3 * 60
    assert values["times_faster"] > 0
    context = EvalContext(session.sets(student.read()[0].data), session.runs)
    assert evaluate(student, context, ["cost"])["cost"]["values"] == values  # not again
    monkeypatch.setattr("antishortcut.evaluation.latency.processor", lambda: "another")
    assert evaluate(student, context, ["cost"])["cost"]["machine"].startswith("another, 1 thread, cpu, float32, torch ")
    single = evaluate(teacher, context, ["cost"])["cost"]["values"]
    assert set(single) == {"ms", "parameters", "bytes"}
    assert single["parameters"] == values["teacher_parameters"]


def test_report_shows_size_and_latency(student: RunDir, session: Session, tmp_path: Path) -> None:
    """One run measured, one not, on one machine; the teacher stands before its students."""
    suite = tmp_path / "runs" / "s"
    shutil.copytree(student.path, suite / "kd-s3")
    shutil.copytree(session.runs / "teachers", tmp_path / "runs" / "teachers")
    run, _ = student.read()
    other = RunDir(suite / "asd-s3")
    other.begin(run.model_copy(update={"name": "asd"}), {}, {})
    other.finish(student.result())
    cost = student.scores()["cost"]
    teacher, own = make_report(suite)["sizes"]
    values = cost["values"]
    assert teacher == {
        "network": "cnn-4-16", "role": "teacher", "parameters": values["teacher_parameters"], "faster": None,
        "ms": values["teacher_ms"], "bytes": values["teacher_bytes"], "smaller": None, "runs": 1,
        "machine": cost["machine"],
    }  # fmt: skip
    assert (own["role"], own["ms"], own["faster"], own["runs"]) == ("student", values["ms"], values["times_faster"], 1)
    assert own["smaller"] == pytest.approx(values["teacher_parameters"] / values["parameters"])
    lines = invoke("report", suite).stdout.splitlines()
    assert any(line.startswith("ms: milliseconds for one image") for line in lines)
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    page, text = (suite / "report.html").read_text(), (suite / "table.md").read_text()
    assert '<section id="sizes"><h2>Size and latency</h2>' in page
    assert f"| cnn-2-16 | student | {values['parameters']:,} |" in text
    assert "cost ms" not in text  # no score of its answers
    (suite / "kd-s3" / "scores" / "cost.json").unlink()
    for row in make_report(suite)["sizes"]:  # parameters are known without
        assert (row["ms"], row["bytes"], row["machine"]) == (None, None, None)
        assert row["parameters"] > 0
    assert "asd evaluate --on cost" in (suite / "table.md").read_text()


def test_report_names_several_machines(student: RunDir, session: Session, tmp_path: Path) -> None:
    suite = tmp_path / "runs" / "s"
    shutil.copytree(session.runs / "teachers", tmp_path / "runs" / "teachers")
    for seed, machine in ((3, "one"), (4, "one"), (5, "another")):
        shutil.copytree(student.path, suite / f"kd-s{seed}")
        known = json.loads((suite / f"kd-s{seed}" / "run.json").read_text())
        known.pop("sum", None)  # as one who edits it does
        write_json(suite / f"kd-s{seed}" / "run.json", known | {"run": known["run"] | {"seed": seed}})
        score = student.scores()["cost"]
        changed = {"machine": machine, "values": score["values"] | {"ms": float(seed)}}
        write_json(suite / f"kd-s{seed}" / "scores" / "cost.json", score | changed)
    held = size_table(collect(suite))
    assert held is not None
    assert held.head()[-2:] == ["runs", "on"]
    rows = [(row[1], row[4], *row[-2:]) for row in held.texts() if row[1] == "student"]
    assert rows == [("student", "3.5 ± 0.71", "2", "one"), ("student", "5", "1", "another")]
    assert held.explanation().endswith("Measured on one; another.")
