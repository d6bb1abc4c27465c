"""The command: results on standard output, everything else on standard error, errors in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from antishortcut import __version__
from antishortcut.cli.data import data_settings
from antishortcut.cli.options import table
from antishortcut.errors import UserError
from antishortcut.methods import METHODS
from antishortcut.report import summarise
from tests.conftest import Refusal, asd, invoke


def test_titles_of_tables_are_not_folded_to_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    table("kd on folder:photos, test set, 72 images", ("", "epoch"), [("last", 2)])
    assert capsys.readouterr().out.splitlines()[0] == "kd on folder:photos, test set, 72 images"


def test_a_folder_called_like_a_kind_of_data_is_a_folder(here: Path) -> None:
    Path("unlabelled").mkdir()
    assert data_settings("unlabelled")[0].name == "folder:unlabelled"


def test_teach_distill_evaluate_report_and_rewind(here: Path, tiny: Path) -> None:
    taught = asd("teach", str(tiny), "--threads", "1")
    assert taught["states"][-1]["labels"] == ["100%"]
    for seed in ("1", "2"):
        for method in ("kd", "asd"):
            result = asd("distill", str(tiny), "--method", method, "--seed", seed, "--threads", "1")
            assert result["run"] == f"runs/tiny/{method}-s{seed}"
            assert 0 <= result["last"]["accuracy"] <= result["best"]["accuracy"] <= 1
    assert "already finished" in invoke("teach", tiny, "--threads", "1").stderr
    finished = invoke("distill", tiny, "--method", "kd", "--threads", "1")
    again = " ".join(finished.stderr.split())
    assert "runs/tiny/kd-s1: already finished" in again
    assert "kd on cues, iid set, 100 images\n" in finished.stdout  # how many images a score is of
    assert re.search(r"│ teacher +│ +2 │ +0\.\d{3} │\n│ chance +│ +– │ +0\.100 │", finished.stdout)
    assert "next: asd evaluate runs/tiny/kd-s1 --on clean,hard,mechanism,cost,maps,probes" in again
    short = asd("distill", tiny, "--method", "kd", "--epochs", "1", "--suite", "short", "--threads", "1")
    assert short["last"]["epoch"] == 1
    assert [path.name for path in Path("runs/teachers").iterdir()] == [taught["hash"]]  # of two epochs, as it was
    kept = {path.name for path in Path("runs/teachers", taught["hash"], "snapshots").iterdir()}
    assert {"2%.safetensors", "50%.safetensors"} < kept  # as Snapshots names them, by the first label of a step
    folders = sorted(str(path) for path in Path("runs/tiny").iterdir())
    scored = asd("evaluate", *folders, "--on", "clean,mechanism")
    assert [entry["run"] for entry in scored["runs"]] == folders
    for entry in scored["runs"]:
        assert set(entry["scores"]) == {"iid", "conflict", "uncorrelated", "mechanism"}
        assert set(entry["scores"]["mechanism"]["values"]) == {"raw", "aligned"}
    shown = invoke("evaluate", *folders, "--on", "clean").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "projection" not in shown  # which was scored, and not asked for
    assert "conflict (100 images)" in shown
    assert all(f"│ {Path(folder).name} " in shown for folder in folders)  # runs are rows
    teacher, chance = (re.findall(rf"│ {name} .*?│ +([\d.]+)", shown) for name in ("teacher", "chance"))
    known = scored["teachers"][taught["hash"]]
    assert teacher == [f"{known[name]['values']['accuracy']:.3f}" for name in ("conflict", "iid", "uncorrelated")]
    assert chance == ["0.100"] * 3
    report = asd("report", "runs/tiny")
    assert {row["method"] for row in report["rows"]} == {"kd", "asd"}
    assert all(row["seeds"] == 2 for row in report["rows"])
    assert Path(report["page"]).is_file()
    assert (here / "runs/tiny/table.md").is_file()
    everything = [str(path) for path in Path("runs/tiny").iterdir()]  # the report's files too, as a shell's * has them
    assert "left out" not in invoke("evaluate", *everything, "--on", "clean").stderr
    with pytest.raises(UserError, match=r"no finished run in runs/tiny/table\.md, runs/tiny/figures; asd distill"):
        invoke("evaluate", "runs/tiny/table.md", "runs/tiny/figures")
    rewound = asd("rewind", taught["hash"], "--threads", "1")
    assert rewound["states"][-1]["epoch"] == 1  # not ten, for a teacher of two
    again = asd(
        "distill", str(tiny), "--method", "asd", "--set", f"teacher.early={rewound['hash']}/final", "--name", "rewound"
    )
    assert again["run"] == "runs/tiny/rewound-s1"
    ablation = asd("distill", str(tiny), "--method", "asd", "--set", "method.ss=0.0", "--name", "no-ss")
    assert ablation["hash"] != again["hash"]


def test_demo_has_a_row_for_each_method(here: Path) -> None:
    few = ("epochs=1", "teacher.epochs=2", "teacher.name=cnn-8-64", "data.options.count=256")
    small = [word for text in (*few, "data.options.test_count=100") for word in ("--set", text)]
    story = asd("demo", *small, "--threads", "1")
    assert [row["method"] for row in story["rows"]] == ["teacher", "early teacher", "ce", "kd", "asd", "contrast+hint"]
    for row in story["rows"]:
        assert all(0 <= row[key] <= 1 for key in ("iid", "conflict", "uncorrelated"))
    for row in story["rows"][2:]:
        assert {"cos_final", "cos_early", "projection", "projection_random", "cos_final_aligned"} <= row.keys()
    assert story["out"] == "runs/demo"
    shown = invoke("demo", *small)  # again: nothing is repeated
    assert "What the students lean on" in shown.stdout
    assert "chance" in shown.stdout
    assert "conflict" in shown.stdout
    lines = summarise(here / "runs" / "demo")
    assert lines[-1] == "One seed: a sign, not a proof."
    assert "when the texture lies" in lines[0]
    assert " ".join(lines) in " ".join(shown.stdout.split())
    assert 'class="answer"' in (here / story["report"]).read_text()


def test_shares_have_bars_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["kd", 0.5, 1.0, 3], ["a longer name", 0.0, None, 4]]
    for width, marks in ((80, "████"), (36, "")):
        monkeypatch.setenv("COLUMNS", str(width))
        table("scores", ["run", "one", "two", "count"], rows, bars=True)
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= width for line in lines)
        kd = next(line for line in lines if "kd" in line)
        assert [cell.strip() for cell in kd.split("│")[1:-1]] == [
            "kd",
            f"0.500 {marks}".strip(),
            f"1.000 {2 * marks}".strip(),
            "3",
        ]
    table("scores", ["run", "one", "two", "count"], rows)
    assert "█" not in capsys.readouterr().out


def test_lists(here: Path) -> None:
    methods = {row["name"]: row for row in asd("list", "methods")}
    assert methods["asd"]["teacher states"] == "final, early"
    assert methods.keys() == METHODS.keys()
    models = {row["name"]: row for row in asd("list", "models")}
    assert (models["wrn-40-2"]["parameters"], models["wrn-40-2"]["embedding"]) == (2_255_156, 128)
    assert {"cifar100", "tiny-imagenet", "imagenet100", "folder", "cues"} <= {
        row["name"] for row in asd("list", "datasets")
    }
    assert {"P1", "P10", "cues"} <= {row["name"] for row in asd("list", "recipes")}
    assert "wrn-40-2" in invoke("list", "models").stdout


def test_init_writes_a_recipe_once(here: Path) -> None:
    invoke("init")
    assert (here / "recipe.toml").is_file()
    with pytest.raises(UserError, match="exists"):
        invoke("init")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["distill", "P2x"], "did you mean 'P2'"),
        (["distill", "cues", "--method", "asdf"], "did you mean 'asd'"),
        (["distill", "cues", "--set", "method.tcc=1"], "did you mean 'tc'"),
        (["distill", "cues", "--set", "method.tc=high"], "must be of type float"),
        (["distill", "cues", "--set", "method.subspace=\"sphere\"", "--method", "asd"], "sphere"),
        (["distill", "cues", "--name", "../up"], "cannot name a folder"),
        (["distill", "cues", "--precision", "64"], "--precision"),
        (["teach", "P2", "--data-root", "nowhere"], "nowhere"),
        (["teach", "cues", "--set", "teacher.name=resnet"], "resnet"),
        (["teach", "cues", "--set", "data.options.rho=7"], "rho"),
        (["distill", "cues", "--method", "ce", "--generations", "100000"], "Invalid value for '--generations'"),
        (["evaluate", "nothing"], "not a run folder"),
        (["report", "nothing"], "nothing"),
        (["rewind", "nothing"], "not a run folder"),
        (["distil"], "'distill'"),
        (["distill", "cues", "--metod", "kd"], "--method"),
        (["list", "sutes"], "'suites'"),
        (["check", "camvod"], "'camvid'"),
        (["evaluate", "x", "--at", "cleen=."], "'clean'"),
        (["distill", "cues", "--set", "data.augmet=none"], "'augment'"),
        (["distill", "cues", "--set", "data.name=cue"], "'cues'"),
        (["bench", "--pair", "cnn16:cnn-8-64", "--rounds", "1"], "'cnn-16'"),
        (["bench", "--pair", "camvid"], "is not measured here"),
        (["bench", "--methods", "kdd"], "unknown method 'kdd'"),
        (["bench", "--methods", ","], "--methods names none"),
        (["bench", "--device", "tpu"], "--device tpu"),
        (["demo", "--threads", "-1"], "--threads"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(refusal: Refusal, words: list[str], message: str) -> None:
    assert message in refusal(*words)


def test_version(here: Path) -> None:
    assert invoke("--version").output == f"asd {__version__}\n"


def test_help_and_suite_show_import_nothing_heavy() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from antishortcut.cli import app\n"
        "result = CliRunner().invoke(app, ['--help']); assert 'distill' in result.output, result.output\n"
        "result = CliRunner().invoke(app, ['suite', 'show', 'beyond-cues'])\n"
        "assert result.exit_code == 0 and 'contrast-1' in result.output, result.output\n"
        "heavy = {'torch', 'numpy', 'lightning_fabric', 'timm', 'polars'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
