"""The commands that README and docs show do run, in the order of their page, on small stand-ins.

A shell reads the lines as they stand there, with its loops and patterns. What differs: words of SMALL are replaced,
settings of FEW are added, so that little is trained, and files, weights and data sets are made up (NEEDED). Lines that
cannot run here are in NOT, with the reason, and with the test that runs the command where there is one.
"""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import nn
from typer.testing import CliRunner

from antishortcut.cli import app
from antishortcut.data import readers as layouts
from antishortcut.teachers.snapshots import Snapshots
from tests.data.official import make_ade, make_camvid, make_cifar, picture
from tests.data.test_shards import write_tar
from tests.evaluation.test_stylize import DECODER, VGG, random_state
from tests.test_docs import IDS, PAGES, ROOT, blocks

FAST = ("README.md", "docs/contrast.md", "docs/corruptions.md", "docs/own-data.md", "docs/quickstart.md",
        "docs/runs.md", "docs/shifts.md")  # fmt: skip
ELSEWHERE = {"docs/export.md": "tests/deployment/test_command.py::test_every_block_of_the_docs_page_runs"}
# words of a line → why it is not run here, and file::test where one runs that command
NOT = {
    "make ": "a Makefile's, which installs and runs these tests",
    "pip install": "installs",
    "ray start": "tests/experiments/test_ray_engine.py::nodes",
    "--engine ray": "a cluster: tests/experiments/test_ray_engine.py::test_a_node_dies_and_every_run_ends_once",
    "torchrun --nnodes": "tests/training/test_two_processes.py::test_two_machines_equal_two_processes_of_one",
    "selftest --device cuda": "a CPU: tests/experiments/test_selftest.py::test_the_whole_quick_run_passes",
    "distill P1 --devices 4": "two ranks: tests/training/test_two_processes.py::test_two_processes_equal_one",
    "#SBATCH": "Slurm, which has not been tried",
    "python examples/": "tests/test_examples.py::test_an_example_runs",
    "torchrun --nproc-per-node 2 examples": "tests/test_examples.py::test_two_processes",
    "dinov2": "downloads: tests/training/test_unlabelled_runs.py::test_published_weights_come_from_the_hub",
    "asd try": "waits: tests/browser/test_try_page.py::test_a_person_tries_the_networks",
    "benchmarks/speed.py": "an hour, and it rewrites a page",
}
SMALL = {
    "resnet50": "test_resnet",
    "timm:mobilenetv3_small_100": "cnn-2-16",
    "mobilenetv3_small_100": "cnn-2-16",
    "--model resnet34": "--model timm:test_resnet",
    "--student-model resnet18": "--student-model timm:test_resnet",
    "/shared/data": "data",
    "/shared/runs": "shared",
    "~/data": "data",
    " /data/": " data/",
    ":/data/": ":data/",
    "=/data/": "=data/",
    "-root DATA": "-root data",
    "path/to/images": "photos",
    "--epochs 3 --steps 2000": "--epochs 1 --steps 2",
    "$SLURM_ARRAY_TASK_ID": "1",
    " RUN": " runs/P2/kd-s1",
}
ONE = ["epochs=1", "teacher.epochs=1"]
NETS = ["teacher.name=cnn-4-16", "student.name=cnn-2-16"]
CUES = [*ONE, "data.options.count=128", "data.options.test_count=20"]
DENSE = ["iterations=2", "optim.batch=2", "data.image_size=32", "teacher.name=dense-4", "student.name=dense-2"]
SCENES = [*DENSE, "data.options.count=8", "data.options.test_count=4"]
OWN = [*ONE, "data.image_size=32", "optim.batch=8"]
# a word of a line → settings of what it trains
FEW = {
    "cues": [*CUES, *NETS],
    "beyond-cues": CUES,
    "desk-cues": [*CUES, *NETS],
    "P1": [*ONE, *NETS, "teacher.keep=[15]"],
    "P2": [*ONE, *NETS],
    "P11": [*OWN, *NETS, "data.name=folder:data/wnids"],
    "table1": [*ONE, *NETS, "teacher.keep=[15]"],
    "desk": [*ONE, *NETS, "optim.batch=2"],  # so many steps that the early state is another than the last
    "beyond-cifar": [*ONE, *NETS, "optim.batch=2"],
    "camvid": DENSE,
    "desk-dense": DENSE,
    "table4": [*DENSE, "teacher.pretrained=false", "student.pretrained=false"],
    "--task": SCENES,
    "cues-seg": SCENES,
    "recipe.toml": [*OWN, "student.name=cnn-2-16"],
    "runs/photos-test_resnet-cnn-2-16/recipe.toml": OWN,
    "--data": OWN,
}
# the beginning of a line → further words, before its own, which win
MORE = {
    "distill --data": ["--no-pretrained"],
    "suite run beyond-cues": ["--only", "beyond-cues/kd", "--seeds", "1"],
    "suite run beyond-cifar": ["--only", "beyond-cifar/kd", "--seeds", "1"],
    "suite run desk-dense": ["--only", "desk-camvid/kd", "--seeds", "1"],
    "suite run desk": ["--only", "desk*/kd", "--seeds", "1"],
    "suite run table4": ["--only", "*18/kd", "--seeds", "1"],
    "suite run": ["--only", "P1*/kd", "--seeds", "1"],
    "suite show table1 --measure": ["--only", "P1/kd", "--seeds", "1"],
    "bench": ["--rounds", "1", "--batch", "2", "--teacher-compile", "off"],
    "stylize imagenet100": ["--limit", "2"],
}
MINE = [
    f"asd distill cues --method contrast --suite mine --name by-{each} --set data.val_fraction=0.1 "
    f"--set method.strength={each}"
    for each in ("0.5", "1.0")
]
# what a line names and nothing before it made → the lines that make it
NEEDED = {
    "runs/demo": ["asd distill cues --method kd --suite demo", "asd distill cues --method asd --suite demo"],
    "runs/P1": ["asd distill P1 --method kd"],
    "runs/P2": ["asd distill P2 --method kd", "asd distill P2 --method asd"],
    "runs/P11": ["asd distill P11 --method kd"],
    "runs/desk-cues-seg": ["asd distill cues-seg --method kd --suite desk-cues-seg"],
    "runs/mine": MINE,
    "=stylized": [
        "python scripts/train_stylizer.py cifar100 stylizer --epochs 3 --steps 2000",
        "asd stylize cifar100 stylized --stylizer stylizer",
    ],
}
# a page → lines that its reader has run before
BEFORE = {
    "docs/report.md": [
        "asd evaluate runs/P2/* --on clean,corruptions",
        *MINE,
        "asd evaluate runs/mine/* --on clean,hard",
    ],
}


def lines(page: Path) -> list[str]:
    """Commands of a page: lines, with those that go on and loops as one."""
    text = re.sub(r"\\\n\s*", " ", "\n".join(blocks(page, "sh")))
    loops = re.sub(r"^for [^\n]*do\n.*?^done$", lambda loop: loop[0].replace("\n", "\v"), text, flags=re.M | re.S)
    return [line.replace("\v", "\n") for line in loops.split("\n") if line.strip()]


def is_run(line: str) -> bool:
    return not any(word in line for word in NOT)


def read_by_shell(line: str) -> list[list[str]]:
    """The words of every call in a line, as a shell gives them."""
    message = "".join(f'{name}() {{ printf "%s\\037" {name} "$@"; echo; }}\n' for name in ("asd", "python"))
    done = subprocess.run(["bash", "-ec", message + line], capture_output=True, text=True, check=True)
    return [call.split("\037")[:-1] for call in done.stdout.splitlines()]


def few(words: list[str]) -> list[str]:
    """Words with those that make it small right after the command."""
    text = " ".join(words)
    trains = words[0] in ("teach", "distill", "demo") or text.startswith("suite run") or "--measure" in words
    sets = next((FEW[word] for word in words if word in FEW), FEW["cues"]) if trains else []
    more = next((MORE[start] for start in MORE if text.startswith(start)), [])
    at = 2 if words[0] == "suite" else 1
    return [*words[:at], *more, *(word for each in sets for word in ("--set", each)), *words[at:]]


def carry_out(line: str) -> int:
    """Run a line of a page, and before it what makes the things it names; how many calls it had."""
    for word, replacement in SMALL.items():
        line = line.replace(word, replacement)
    for thing, built in NEEDED.items():
        if re.search(rf"{thing}\b(?!-)", line) and not Path(thing.strip("=")).exists():
            for each in built:
                carry_out(each)
    teachers = sorted(Path("runs/teachers").glob("*"))
    calls = read_by_shell(re.sub("HASH|<hash>", teachers[0].name if teachers else "none", line))
    for program, *words in calls:
        if program == "python":
            script(ROOT / words[0], words)
        else:
            done = CliRunner().invoke(app, few(words))
            assert done.exit_code == 0, f"{line}\n{few(words)}\n{done.output}\n{done.exception!r}"
    return len(calls)


def script(path: Path, words: list[str]) -> None:
    before, sys.argv = sys.argv, words
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTISHORTCUT_DATA", "data")
    make_cifar(tmp_path / "data", per_class=4)
    for folder in ("photos", "data/birds"):
        for at in range(18):
            picture(tmp_path / folder / ("ape", "bee", "cat")[at % 3] / f"{at}.png", size=(40, 36))
    for at in range(2):
        picture(tmp_path / "wikiart" / f"{at}.png")
        picture(tmp_path / "frost-pictures" / f"{at}.png", size=(300, 300))
    teacher: nn.Module = timm.create_model("test_resnet", num_classes=3)
    states = Snapshots(tmp_path / "teacher-states", total_steps=100)
    early = ("epoch5.pt", "epoch15.pth", "e05.pth", "e15.pth")
    for step, files in ((15, early), (100, ("last.pt", "last.pth", "kd.pth"))):
        with torch.no_grad():
            for weight in teacher.parameters():
                weight.add_(0.02 * torch.randn_like(weight))
        for file in files:
            torch.save({"state_dict": teacher.state_dict()}, file)
        states(teacher, step)
    return tmp_path


def further(name: str) -> None:
    """What one page alone speaks of."""
    for line in BEFORE.get(name, ()):
        carry_out(line)
    if name == "docs/own-model.md":  # whose Python writes the network
        exec(compile(blocks(ROOT / name, "python")[0], name, "exec"), {})
    if name == "docs/own-data.md":
        assert CliRunner().invoke(app, ["init"]).exit_code == 0
        recipe = Path("recipe.toml")
        text = recipe.read_text(encoding="utf-8")
        for word, replacement in SMALL.items():
            text = text.replace(word, replacement)
        recipe.write_text(text, encoding="utf-8")
        photos = sorted(Path("photos").rglob("*.png"))
        for at in range(3):
            write_tar(
                Path(f"shards/photos-{at:03d}.tar"),
                [
                    member
                    for path in photos[at::3]
                    for member in ((path.name, path.read_bytes()), (f"{path.stem}.cls", path.parent.name.encode()))
                ],
            )
        datasets = pytest.importorskip("datasets")
        table = datasets.Dataset.from_dict(
            {"image": [str(path) for path in photos], "label": [at % 3 for at in range(18)]}
        )
        table = table.cast_column("image", datasets.Image())
        table.cast_column("label", datasets.ClassLabel(names=["ape", "bee", "cat"])).save_to_disk("saved")
    if name == "docs/unlabelled.md":
        for at in range(20):
            picture(Path("more", str(at % 3), f"{at}.png"), size=(40, 36))
    if name == "docs/results/beyond.md":  # which asks for a score of images held out, easy and hard ones
        shutil.rmtree(Path("data") / layouts.CIFAR)
        make_cifar(Path("data"), per_class=40)
    if name in ("docs/results/dense.md", "docs/segmentation.md"):
        make_camvid(Path("data/camvid"))
        make_ade(Path("data"))
    if name == "docs/stylized.md":
        torch.save(random_state(VGG), "vgg_normalised.pth")
        torch.save(random_state(DECODER), "decoder.pth")
        for wnid in layouts.class_list("imagenet100"):
            for part in ("train", "val"):
                picture(Path("data/imagenet100", part, wnid, "0.JPEG"))
    if name == "docs/shifts.md":
        cat, bird = "n02123045", "n01530575"
        for wnid in (cat, bird):
            for folder in ("wnids/train", "wnids/val", "imagenet-r", "imagenet-a", "renditions"):
                for at in range(4):
                    picture(Path("data", folder, wnid, f"{at}.jpg"))
        picture(Path("data/texture-vs-shape/stimuli/style-transfer-preprocessed-512/cat/cat1-bird2.png"))
        for folder in ("sketches", "rainy"):
            for name in ("A", "e", "zebra", cat):  # of cues, in small letters, of no student; of P11
                picture(Path(folder, name, "0.png"))
    if name == "README.md":
        picture(Path("sketches/bee/0.png"))


def test_every_line_that_is_not_run_is_on_a_page_and_its_test_is_there() -> None:
    shown = "\n".join(line for page in PAGES for line in lines(page))
    assert all(words in shown for words in NOT)
    for why in (*NOT.values(), *ELSEWHERE.values()):
        for file, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", why):
            assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8")


PARAMETERS = [
    pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow])
    for name, page in zip(IDS, PAGES, strict=True)
    if any(map(is_run, lines(page))) and name not in ELSEWHERE
]


@pytest.mark.parametrize("name", PARAMETERS)
def test_commands_run_as_they_are_shown(name: str, place: Path) -> None:
    shown = [line for line in lines(ROOT / name) if is_run(line)]
    if any("--to onnx" in line for line in shown):
        pytest.importorskip("onnx")
    further(name)
    assert sum(map(carry_out, shown))
