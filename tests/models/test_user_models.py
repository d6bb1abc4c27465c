"""`package.module:factory`: what a factory may take and return, and what is said when somebody's code fails."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from antishortcut.config.recipe import ModelSettings, load_recipe
from antishortcut.deployment.verify import open_run
from antishortcut.errors import UserError
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.models import FeatureExtractor, build, feature_shapes
from antishortcut.models.external import code_of
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import build_model
from antishortcut.training.pipeline import Session, distill, teach
from tests.conftest import CPU, stop_after
from tests.models import one_thread as one_thread

NETS = """
import torch
from torch import nn

def frozen(classes):
    return Net(classes).requires_grad_(False)

class Net(nn.Module):
    def __init__(self, classes, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))

    @staticmethod
    def make(num_classes):
        return Net(num_classes)

class Scene(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.fc = nn.Conv2d(4, num_classes, 1)
        self.side = nn.Conv2d(4, num_classes, 1)

    def forward(self, x):
        maps = torch.relu(self.conv(x))
        whole = nn.functional.interpolate(self.fc(maps), x.shape[2:], mode="bilinear")
        return {"out": whole, "aux": self.side(maps)}

class Extra(Net):
    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state

def told(num_classes):
    net = Extra(num_classes)
    net.extra = {"version": 2}
    return net

def small(num_classes):
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), *pool, nn.Linear(4, num_classes))

def quantised(num_classes):
    return torch.ao.quantization.quantize_dynamic(small(num_classes), {nn.Linear})

ready = Net(6)
same = Net(6)
number = 3

def by_num_classes(num_classes): return Net(num_classes)
def by_classes(classes): return Net(classes)
def by_anything(**options): return Net(options["num_classes"])
def by_nothing(): return Net(6)
def with_more(num_classes, width=8): return Net(num_classes, width)
def ten(): return Net(10)
def needy(num_classes, width): return Net(num_classes, width)
def wrong(num_classes): return 3
def always_the_same(): return same

def fails(num_classes):
    return deeper(num_classes)

def exits(num_classes):
    raise SystemExit(2)  # as argparse does

class Detached(Net):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)

def deeper(count):
    raise ValueError(f"no net for {count}\\nand more")

def sized(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 7), nn.Linear(7, num_classes))
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("code")
    (folder / "ownnets.py").write_text(NETS)
    (folder / "ownsyntax.py").write_text("import torch\ndef net(:\n")
    (folder / "ownlacks.py").write_text("import torch\nimport nobody_has_this_package\n")
    (folder / "ownraises.py").write_text("x = 1\ny = x / 0\n")
    (folder / "ownexits.py").write_text("import sys\nsys.exit(1)\n")
    yield folder
    for name in [name for name in sys.modules if name.startswith("own")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def here(nets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nets)


@pytest.mark.parametrize(
    "name",
    ["Net", "Net.make", "by_num_classes", "by_classes", "by_anything", "by_nothing", "ready"],
)
@pytest.mark.parametrize("before", ["", "import:"])
def test_factories(name: str, before: str) -> None:
    network = build(f"{before}ownnets:{name}", 6)
    assert feature_shapes(network, 32) == feature_shapes(build("ownnets:Net", 6), 32)
    assert network.head is not None
    assert network.head.out_features == 6
    assert isinstance(network.body, FeatureExtractor)
    assert network.body.summary == "embedding: input of fc; stages: conv"
    torch.testing.assert_close(network.mean.flatten(), torch.tensor([0.485, 0.456, 0.406]))


def test_a_network_in_place_of_a_factory_is_copied() -> None:
    one, other = build("ownnets:ready", 6), build("ownnets:ready", 6)
    assert not {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}
    assert len(list(build("ownnets:with_more", 6).parameters())) == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ownnets:needy", "with num_classes, with classes or without arguments: missing .*'width'"),
        ("ownnets:wrong", "returned int; expected a torch.nn.Module"),
        ("ownnets:number", "must be callable with num_classes, .* 3 is not a callable object"),
        ("ownnets:tenn", r"'ownnets' has no function 'tenn'; did you mean 'ten'"),
        ("ownnets:Net.mak", r"has no function 'Net\.mak'; did you mean 'make'"),
        ("ownnets:ten", "10 logits, but there are 6 classes; let its factory take num"),
        ("ownnets:fails", r"failed with \{'num_classes': 6\}: ValueError: no net for 6 \(ownnets\.py line \d+\)"),
        ("ownnets:exits", "ownnets:exits failed with .*SystemExit: 2"),
        ("ownnets:quantised", r"_packed_params.* only plain tensors can be trained and saved"),
        ("ownnets:told", r"_extra_state in its state_dict is dict; only plain tensors can be"),
        ("ownsyntax:net", r"cannot be imported: SyntaxError: .*ownsyntax\.py, line 2"),
        ("ownlacks:net", r"cannot be imported: ModuleNotFoundError: .*nobody_has_this.*\(ownlacks\.py line 2\)"),
        ("ownraises:net", r"cannot be imported: ZeroDivisionError.*\(ownraises\.py line 2\)"),
        ("ownexits:net", r"cannot be imported: SystemExit: 1"),
        ("ownets:net", r"cannot import 'ownets' .* there is no 'ownets' in .* or installed; write timm:NAME"),
        ("ownnets:a:b", "write package.module:factory"),
        ("import:ownnets", "write package.module:factory"),
        ("imports:ownnets:Net", "write package.module:factory"),
        ("ownnets:sized", r"cannot read images of 32 pixels: .*size = … beside its name"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning", "ignore:.*quantized:UserWarning")
def test_what_is_wrong_is_one_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build(name, 6)
    assert "\n" not in str(caught.value)


def test_import_of_a_module_does_not_change_initial_weights() -> None:
    drawn = []
    for known in (False, True):  # imported by now or not, as it is where a teacher was trained in the same process
        if not known:
            sys.modules.pop("ownnets", None)
        torch.manual_seed(1)
        weights = [build("ownnets:Net", 6).state_dict(), build("ownnets:ready", 6).state_dict()]
        drawn.append([value for state in weights for value in state.values()] + [torch.rand(1)])
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
    sys.modules.pop("ownnets")
    torch.manual_seed(2)
    ready = build("ownnets:ready", 6).state_dict()  # the same network for all seeds
    assert all(torch.equal(value, ready[key]) for key, value in weights[1].items())


def test_pretrained_is_for_hubs() -> None:
    with pytest.raises(UserError, match="loads its own weights; leave pretrained off"):
        build("ownnets:Net", 6, pretrained=True)


def test_a_factory_that_gives_the_same_network_twice() -> None:
    build("ownnets:always_the_same", 6)
    with pytest.raises(UserError, match="the same network as before"):
        build("ownnets:always_the_same", 6)


def test_settings_of_size_and_normalisation_reach_the_network() -> None:
    settings = ModelSettings(name="ownnets:sized", size=28, mean=(0.0, 0.5, 1.0), std=(1.0, 2.0, 4.0), embedding="1")
    network = build_model(settings, 6, 32)
    assert network.size == 28
    assert network.mean.flatten().tolist() == [0.0, 0.5, 1.0]
    assert network.std.flatten().tolist() == [1.0, 2.0, 4.0]
    assert feature_shapes(network, 32).embedding == 7
    stages = build_model(ModelSettings(name="ownnets:Net", stages=("conv",)), 6, 32)
    assert feature_shapes(stages, 32).stages == ((4, 16, 16),)
    with pytest.raises(UserError, match=r"the network has no module 'conf'; did you mean 'conv'"):
        build_model(ModelSettings(name="ownnets:Net", stages=("conf",)), 6, 32)
    with pytest.raises(UserError, match=r"'fc' gives no map .* stages = … \(maps: conv\)"):
        build_model(ModelSettings(name="ownnets:Net", stages=("conv", "fc")), 6, 32)
    for wrong in ("student.mean=[0.5]", "student.std=[1, 1, 0]", "student.size=2", "student.stages=[]"):
        with pytest.raises(UserError, match=wrong.partition("=")[0]):
            load_recipe("cues", [wrong])
    assert load_recipe("cues", ["student.mean=[0, 0, 0]"]).student.build_options == {"mean": (0.0, 0.0, 0.0)}


SMALL = [
    "iterations=2", "data.image_size=32", "data.options.count=20", "data.options.test_count=10", "optim.batch=8",
    "teacher.name=dense-4-8", "student.name=ownnets:Scene", "task.samples=64", "methods.asd.warmup=1",
]  # fmt: skip


def test_an_own_network_for_maps_learns_from_a_teacher(session: Session) -> None:
    run = distill(load_recipe("cues-seg", SMALL), session, method="asd", seed=1, suite="own")
    folder = RunDir(run.folder(session.runs))
    assert folder.result()["steps"] == 2
    terms = [row["terms"] for row in folder.history() if "terms" in row]
    assert all({"task", "aux", "tc"} <= set(each) for each in terms)  # its own auxiliary head takes part
    assert run.model.name == "ownnets:Scene"
    with pytest.raises(UserError, match="has a class for every pixel, but the student network gives one vector"):
        distill(
            load_recipe("cues-seg", [*SMALL, "student.name=ownnets:Net"]), session, method="asd", seed=1, suite="no"
        )


def test_a_student_that_cannot_learn_is_refused(session: Session) -> None:
    few = ["epochs=1", "teacher.epochs=1", "data.options.count=64", "data.options.test_count=16"]
    with pytest.raises(UserError, match="ownnets:frozen has no trainable weights"):
        distill(load_recipe("cues", [*few, "student.name=ownnets:frozen"]), session, method="asd", seed=1, suite="own")
    with pytest.raises(UserError, match=r"carry no gradient: remove torch\.no_grad"):
        distill(load_recipe("cues", [*few, "student.name=ownnets:Detached"]), session, method="ce", seed=1, suite="own")


@pytest.fixture
def edit(here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A network in two files; `edit` changes one of them, as if the next command ran in a new process."""
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "two")
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("owntwo.py").write_text("from ownlayers import Net\n\ndef net(num_classes):\n    return Net(num_classes)\n")
    Path("ownlayers.py").write_text(NETS)

    def forget() -> None:
        for name in ("owntwo", "ownlayers"):
            sys.modules.pop(name, None)

    def change(file: str) -> None:
        Path(file).write_text(Path(file).read_text() + "# another line\n")
        forget()

    forget()
    yield change
    forget()


def test_a_run_whose_code_changed_resumes_only_by_force(
    tiny: Path, session: Session, edit: Callable[[str], None]
) -> None:
    recipe = load_recipe(str(tiny), ["teacher.name=import:owntwo:net"])

    def student() -> RunDir:
        return RunDir(distill(recipe, session, method="kd", seed=1, suite="own").folder(session.runs))

    for train, file in ((lambda: teach(recipe, session), "ownlayers.py"), (student, "owntwo.py")):
        with stop_after(2):
            train()
        edit(file)
        session.execution = CPU
        with pytest.raises(UserError, match=rf"{file} has changed since .* was started; .* --force"):
            train()
        session.execution = CPU.model_copy(update={"force": True})
        train()  # the student's own network is not of these files, its teacher's is
    folder = student()
    assert folder.code().keys() == {"owntwo", "ownlayers"}
    assert RunDir(session.runs / "teachers" / str(folder.read()[0].teacher)).code().keys() == folder.code().keys()


def test_the_code_of_a_network_is_that_in_and_beside_its_package(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer").mkdir()
    monkeypatch.chdir(tmp_path / "outer")
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("ownpackage/models").mkdir(parents=True)
    Path("ownpackage/blocks.py").write_text("from torch import nn\n\nBlock = nn.ReLU\n")
    Path("ownbeside.py").write_text("WIDTH = 8\n")
    text = "from ownbeside import WIDTH\nfrom ownpackage.blocks import Block\n\ndef make(): ...\n"
    Path("ownpackage/models/net.py").write_text(text)
    files = {"ownbeside", "ownpackage.blocks", "ownpackage.models.net"}
    assert code_of("ownpackage.models.net:make").keys() == files


def test_a_finished_run_whose_code_changed_is_used_with_a_line(
    tiny: Path, session: Session, edit: Callable[[str], None]
) -> None:
    recipe = load_recipe(str(tiny), ["student.name=owntwo:net"])
    folder = RunDir(distill(recipe, session, method="ce", seed=1, suite="own").folder(session.runs))
    context = EvalContext(session.sets(recipe.data), session.runs)
    edit("ownlayers.py")
    for use in (
        lambda: evaluate(folder, context, ["clean"]),
        lambda: open_run(folder, None),
        lambda: distill(recipe, session, method="ce", seed=1, suite="own"),
    ):
        with pytest.warns(UserWarning, match=r"ownlayers\.py has changed since .*own/ce-s1 was trained"):
            use()
    words = ["distill", str(tiny), "--set", "student.name=owntwo:net", "--method", "ce", "--suite", "own"]
    command = [sys.executable, "-m", "antishortcut", *words, "--runs", str(session.runs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    expected = f"Note: {Path('ownlayers.py').absolute()} has changed since {folder.path} was trained"
    assert expected in done.stderr.splitlines()
    assert "Warning" not in done.stderr


def test_the_code_of_a_network_is_that_which_was_imported(edit: Callable[[str], None]) -> None:
    first = code_of("owntwo:net", "cnn-4", "timm:resnet18")
    assert first.keys() == {"owntwo", "ownlayers"}
    Path("ownlayers.py").write_text("edited while this process runs")
    assert code_of("import:owntwo:net") == first
    edit("owntwo.py")
    Path("ownlayers.py").write_text(NETS)
    assert [name for name, sha in code_of("owntwo:net").items() if first[name] != sha] == ["owntwo"]
    assert code_of("torch.nn:Linear").keys() == {"torch.nn"}  # not everything that is installed beside it
