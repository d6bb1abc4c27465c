"""Stylised copies: AdaIN, both sources of weights, choice of styles, files, the command."""
# B batch, C channels, H × W places, N images

import itertools
import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from antishortcut.data import open_sets
from antishortcut.errors import UserError
from antishortcut.evaluation.adain import (
    Stylizer,
    adain,
    blend,
    encoder_from,
    load,
    own_decoder,
    reference,
    statistics,
)
from antishortcut.evaluation.stylize import another_class, any_style, open_stylized, write_stylized
from antishortcut.models import build
from antishortcut.types import DataSplits, FileSet
from tests.conftest import Refusal, asd, invoke
from tests.data.official import picture

TRAINING = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "train_stylizer.py"))


def slow_statistics(maps: Tensor, eps: float) -> tuple[list[list[float]], list[list[float]]]:
    means, deviations = [], []
    for image in maps.double():
        rows = [channel.flatten().tolist() for channel in image]
        mean = [sum(row) / len(row) for row in rows]
        var = [sum((x - m) ** 2 for x in row) / (len(row) - 1) for row, m in zip(rows, mean, strict=True)]
        means.append(mean)
        deviations.append([(v + eps) ** 0.5 for v in var])
    return means, deviations


def slow_adain(content: Tensor, style: Tensor, eps: float) -> Tensor:
    (cm, cs), (sm, ss) = slow_statistics(content, eps), slow_statistics(style, eps)
    out = torch.empty(content.shape, dtype=torch.float64)
    for b, c, i, j in np.ndindex(*content.shape):
        out[b, c, i, j] = (content[b, c, i, j].item() - cm[b][c]) / cs[b][c] * ss[b][c] + sm[b][c]
    return out


def test_adain_equals_a_loop() -> None:
    content, style = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 3, 6) * 3 + 1  # the maps may differ in size
    assert torch.allclose(adain(content, style, 1e-3).double(), slow_adain(content, style, 1e-3), atol=1e-5)


def test_adain_properties() -> None:
    content, style = torch.randn(3, 4, 8, 8), torch.randn(3, 4, 8, 8) * 2 - 1
    built = adain(content, style)
    for one, two in zip(statistics(built), statistics(style), strict=True):
        assert torch.allclose(one, two, atol=1e-4)  # the style's statistics
    turned = content.flip(3)  # the same statistics in another arrangement
    assert torch.allclose(adain(content, turned), content, atol=1e-5)
    assert torch.equal(blend(content, style, 0.0), content)
    assert torch.allclose(blend(content, style, 0.25), 0.75 * content + 0.25 * built, atol=1e-6)
    flat = torch.full((1, 1, 4, 4), 2.0)
    assert torch.isfinite(adain(flat, flat)).all()  # a dead channel divides by nothing


# what naoto0804/pytorch-AdaIN writes: number of the layer in its nn.Sequential → widths in and out
VGG = {0: (3, 3), 2: (3, 64), 5: (64, 64), 9: (64, 128), 12: (128, 128), 16: (128, 256), 19: (256, 256),
       22: (256, 256), 25: (256, 256), 29: (256, 512), 32: (512, 512), 35: (512, 512), 38: (512, 512),
       42: (512, 512), 45: (512, 512), 48: (512, 512), 51: (512, 512)}  # fmt: skip
POOLED = (9, 16, 29)  # convolutions that follow a pooling
DECODER = {1: (512, 256), 5: (256, 256), 8: (256, 256), 11: (256, 256), 14: (256, 128), 18: (128, 128), 21: (128, 64),
           25: (64, 64), 28: (64, 3)}  # fmt: skip
RAISED = (5, 18, 25)  # convolutions that follow an upsampling


def random_state(table: dict[int, tuple[int, int]]) -> dict[str, Tensor]:
    state = {}
    for number, (c_in, c_out) in table.items():
        side = 1 if number == 0 else 3
        state[f"{number}.weight"] = torch.randn(c_out, c_in, side, side) * (2 / (c_in * side**2)) ** 0.5
        state[f"{number}.bias"] = torch.rand(c_out) * 0.1
    return state


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("public")
    torch.save(random_state(VGG), folder / "vgg_normalised.pth")
    torch.save(random_state(DECODER), folder / "decoder.pth")
    return folder / "vgg_normalised.pth", folder / "decoder.pth"


def twin(image: Tensor, style: Tensor, vgg: dict[str, Tensor], decoder: dict[str, Tensor]) -> Tensor:
    """The reference's stylisation, written down again from its table of layers."""
    codes = []
    for x in (image, style):
        for number in [n for n in VGG if n < 31]:
            x = F.max_pool2d(x, 2, ceil_mode=True) if number in POOLED else x
            x = F.pad(x, (1, 1, 1, 1), mode="reflect") if number else x
            x = F.conv2d(x, vgg[f"{number}.weight"], vgg[f"{number}.bias"])
            x = x.relu() if number else x
        codes.append(x)
    x = slow_adain(codes[0], codes[1], 1e-5).float()
    for number in DECODER:
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3) if number in RAISED else x
        x = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), decoder[f"{number}.weight"], decoder[f"{number}.bias"])
        x = x.relu() if number != 28 else x
    return x.clamp(0, 1)


def test_the_reference_stylizer_equals_its_layers(public: tuple[Path, Path]) -> None:
    stylizer = reference(*public)
    content, style = torch.rand(2, 3, 24, 24), torch.rand(2, 3, 24, 24)
    states = [torch.load(path, weights_only=True) for path in public]
    assert torch.allclose(stylizer(content, style), twin(content, style, *states), atol=1e-4)
    assert stylizer.facts["weights"] == "reference"
    assert len(stylizer.facts["digests"]["encoder"]) == 64
    odd = stylizer(torch.rand(1, 3, 20, 20), torch.rand(1, 3, 20, 20))  # no multiple of 8
    assert odd.shape == (1, 3, 20, 20)
    assert reference(*public, magnify=2)(content[:1], style[:1]).shape == (1, 3, 24, 24)


def test_wrong_reference_weights_are_one_line(public: tuple[Path, Path], tmp_path: Path) -> None:
    vgg, decoder = public
    with pytest.raises(UserError, match="of another network"):
        reference(decoder, vgg)
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(UserError, match="no plain tensors"):
        reference(vgg, tmp_path / "text.pth")
    save_file(random_state(DECODER) | {"28.bias": torch.zeros(4)}, tmp_path / "four.safetensors")
    with pytest.raises(UserError, match=r"28\.bias \(4,\) for \(3,\)"):
        reference(vgg, tmp_path / "four.safetensors")


def test_styles_are_of_another_class_and_all_are_drawn() -> None:
    rng = np.random.default_rng(0)
    label, train = rng.integers(0, 5, 3000), rng.integers(0, 5, 40)
    place = np.arange(3000)
    style = another_class(label, place, train, seed=3)
    assert (train[style] != label).all()
    for number in range(5):
        drawn = np.bincount(style[label == number], minlength=40)
        assert ((drawn > 0) == (train != number)).all()  # each of the others, and none of its own
    assert (another_class(label, place, train, seed=4) != style).any()
    some = rng.permutation(3000)[:50]
    assert (another_class(label[some], place[some], train, seed=3) == style[some]).all()  # a part is like the whole
    assert set(any_style(np.arange(2000), 20, seed=0).tolist()) == set(range(20))
    with pytest.raises(UserError, match="one class"):
        another_class(np.zeros(3, dtype=np.int64), place[:3], np.zeros(9, dtype=np.int64), seed=0)


@pytest.fixture(scope="module")
def sets() -> DataSplits:
    """Embedded images of 16 × 16, so that everything takes a second."""
    return open_sets("cues", None, image_size=16, options={"count": 200, "test_count": 60})


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(0)
    return build("vgg8", 10).eval()


@pytest.fixture(scope="module")
def folder(network: Any, sets: DataSplits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stylizer as scripts/train_stylizer.py saves it."""
    torch.set_num_threads(1)
    out, encoder = tmp_path_factory.mktemp("stylizer"), encoder_from(network, 2)
    TRAINING["save_stylizer"](out, encoder, TRAINING["train_decoder"](encoder, sets.train, 16, 4), "vgg8", 4)
    return out


@pytest.fixture(scope="module")
def stylizer(folder: Path) -> Stylizer:
    return load(folder)


@pytest.fixture(scope="module")
def copies(stylizer: Stylizer, sets: DataSplits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stylized(stylizer, sets, tmp_path_factory.mktemp("copies"), limit=20, quiet=True).folder


def test_own_encoder_equals_the_stages_of_the_classifier() -> None:
    whole = build("vgg8", 10).eval()
    image = torch.rand(2, 3, 32, 32)
    encoder = encoder_from(whole, 3)
    maps = encoder(image)
    assert len(maps) == 3
    for ours, stage in zip(maps, whole(image).stages, strict=False):
        inner = (..., slice(4, -4), slice(4, -4)) if stage.shape[-1] > 8 else (..., slice(3, -3), slice(3, -3))
        assert torch.allclose(ours[inner], stage[inner], atol=1e-5)  # the frame differs: reflection, not zeros
    flat = encoder(torch.full((1, 3, 32, 32), 0.3))
    assert all(m.std(dim=(2, 3)).max() < 1e-5 for m in flat)  # a plain image has no frame
    assert all(m.padding_mode == "zeros" for m in whole.modules() if isinstance(m, torch.nn.Conv2d))  # left alone
    assert own_decoder([m.shape[1] for m in maps])(maps[-1]).shape == image.shape


def test_a_stylizer_is_loaded_and_checked(folder: Path, tmp_path: Path) -> None:
    content, style = torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)
    opened = load(folder)
    assert torch.equal(opened(content, style, 0.0), opened.decoder(opened.encoder(content)[-1]).clamp(0, 1))
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    (damaged / "decoder.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError, match="damaged"):
        load(damaged)
    facts = json.loads((folder / "facts.json").read_text())
    code = {"settings": facts["settings"] | {"encoder": "import:mine:network"}}  # imports nothing
    for change, message in (({"version": 0}, "not of a stylizer of this version"), (code, "must be a vgg8 or vgg13")):
        (damaged / "facts.json").write_text(json.dumps(facts | change))
        with pytest.raises(UserError, match=message):
            load(damaged)
    with pytest.raises(UserError, match="no stylizer"):
        load(tmp_path)
    with pytest.raises(UserError, match="vgg8 or vgg13"):
        encoder_from(build("cnn-4", 10), 2)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_copies_are_complete_and_deterministic(stylizer: Stylizer, sets: DataSplits, tmp_path: Path) -> None:
    copies = write_stylized(stylizer, sets, tmp_path / "a", quiet=True)
    write_stylized(stylizer, sets, tmp_path / "b", quiet=True)
    files = {"stylized.npy", "labels.npy", "style.npy", "style_label.npy", "contact.png", "facts.json"}
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert names(tmp_path / "a") == files
    images, style, style_label = (
        np.load(tmp_path / "a" / name) for name in ("stylized.npy", "style.npy", "style_label.npy")
    )
    assert (images.shape, images.dtype) == ((60, 16, 16, 3), np.uint8)
    assert (sets.train.label.numpy()[style] == style_label).all()
    assert (style_label != sets.tests["iid"].label.numpy()).all()  # of another class, for every image
    assert copies.style_label is not None
    assert copies.style_label.tolist() == style_label.tolist()
    assert copies.images.label.tolist() == sets.tests["iid"].label.tolist()
    facts = {"kind": "stylized", "source": "generated", "weights": "own", "alpha": 1.0, "seed": 0, "styles": "train",
             "count": 60, "side": 16, "set": "cues", "part": "iid", "fingerprint": sets.fingerprint}  # fmt: skip
    assert facts.items() <= dict(copies.facts).items()
    assert len(copies.fingerprint) == 16


def test_finished_copies_are_reused_and_other_folders_refused(
    stylizer: Stylizer, sets: DataSplits, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = write_stylized(stylizer, sets, out, limit=20, quiet=True)
    stamp = (out / "stylized.npy").stat().st_mtime_ns
    again = write_stylized(stylizer, sets, out, limit=20, files=True, quiet=True)  # files can be added later
    assert (out / "stylized.npy").stat().st_mtime_ns == stamp
    assert again.fingerprint == first.fingerprint
    for change in ({"alpha": 0.5}, {"which": "conflict"}):
        with pytest.raises(UserError, match="other settings"):
            write_stylized(stylizer, sets, out, **({"limit": 20} | change), quiet=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for place, message in (("full", r"not empty \(thesis.tex\)"), ("full/thesis.tex", "is a file")):
        with pytest.raises(UserError, match=message):
            write_stylized(stylizer, sets, tmp_path / place, quiet=True)
    whole, paths = sets.tests["iid"].label, sorted((out / "images").rglob("*.png"), key=lambda path: path.stem)
    assert {path.name for path in (out / "images").iterdir()} == set(sets.classes)
    for path, image in zip(paths, again.images.image, strict=True):
        assert path.parent.name == sets.classes[int(whole[int(path.stem)])]
        assert (np.asarray(Image.open(path)) == image.permute(1, 2, 0).numpy()).all()


def test_styles_from_a_folder(stylizer: Stylizer, sets: DataSplits, tmp_path: Path) -> None:
    styles = tmp_path / "styles"
    for name, size in (("0", (40, 30)), ("more/1", (20, 50)), ("more/2", (16, 16))):  # any size and shape
        picture(styles / f"{name}.png", size=size)
    copies = write_stylized(stylizer, sets, tmp_path / "out", styles=styles, quiet=True)
    assert (copies.style_label, copies.facts["style_count"]) == (None, 3)
    assert "style_label.npy" not in names(tmp_path / "out")
    assert set(np.load(tmp_path / "out" / "style.npy").tolist()) == {0, 1, 2}
    (styles / "more" / "2.png").unlink()
    with pytest.raises(UserError, match=r"styles: .* there"):
        write_stylized(stylizer, sets, tmp_path / "out", styles=styles, quiet=True)


def test_large_images_stay_on_disk(network: Any, tmp_path: Path) -> None:
    for part, name, number in itertools.product(("train", "val"), ("cat", "dog"), range(2)):
        picture(tmp_path / "data" / part / name / f"{number}.png", size=(80, 90))
    sets = open_sets(f"folder:{tmp_path / 'data'}", None, image_size=70)
    assert isinstance(sets.tests["test"], FileSet)
    stylizer = Stylizer(encoder_from(network, 3), own_decoder((64, 128, 256)), {"weights": "own"})
    copies = write_stylized(stylizer, sets, tmp_path / "out", quiet=True)
    assert copies.images.image.shape == (4, 3, 70, 70)  # poolings round 70 up to 72; the copies are 70 again
    assert copies.style_label is not None
    assert (copies.style_label != copies.images.label).all()
    assert copies.facts["set"] == "folder"


def test_an_interrupt_leaves_no_half_written_copies(
    stylizer: Stylizer, sets: DataSplits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stops:
        facts, device, calls = stylizer.facts, stylizer.device, 0

        def __call__(self, *arguments: Any) -> Tensor:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return stylizer(*arguments)

    monkeypatch.setattr("antishortcut.evaluation.stylize.PIXELS", 16 * 16 * 8)  # chunks of eight images
    with pytest.raises(KeyboardInterrupt):
        write_stylized(Stops(), sets, tmp_path, quiet=True)  # type: ignore[arg-type]
    assert names(tmp_path) == set()
    write_stylized(stylizer, sets, tmp_path, quiet=True)
    assert len(open_stylized(tmp_path, 10).images) == 60


CUT = "cut short"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("facts.json", None, "no finished stylised copies"),
        ("facts.json", b"{}", "not of stylised copies"),
        ("facts.json", b"{", "cannot be read as JSON"),
        ("stylized.npy", CUT, "cut short"),
        ("stylized.npy", None, "no file"),
        ("labels.npy", [0, 1, 2], "3 labels for 20 images"),
        ("style_label.npy", [0, 1, 2], "3 labels for 20 images"),
    ],
)
def test_damaged_copies_are_one_line(copies: Path, tmp_path: Path, name: str, data: Any, message: str) -> None:
    path = Path(shutil.copytree(copies, tmp_path / "damaged")) / name
    if data is None:
        path.unlink()
    elif data == CUT:
        path.write_bytes(path.read_bytes()[:5000])
    elif isinstance(data, bytes):
        path.write_bytes(data)
    else:
        np.save(path, np.array(data))
    with pytest.raises(UserError, match=message) as caught:
        open_stylized(tmp_path / "damaged", 10)
    assert "\n" not in str(caught.value)


SMALL = """
epochs = 1
[data]
name = "cues"
image_size = 16
options = {count = 128, test_count = 40}
[teacher]
name = "cnn-4-16"
[student]
name = "cnn-2-16"
"""


@pytest.fixture
def small(here: Path) -> Path:
    (here / "small.toml").write_text(SMALL)
    return here


def test_the_command(small: Path, public: tuple[Path, Path], folder: Path) -> None:
    few = ["--limit", "20", "--threads", "1"]
    first = asd("stylize", "small.toml", "out", "--stylizer", str(folder), *few, "--files")
    assert (first["facts"]["weights"], first["facts"]["count"]) == ("own", 20)
    assert Path(first["sheet"]).is_file()
    assert len(list((small / "out/images").rglob("*.png"))) == 20
    vgg, decoder = (str(path) for path in public)
    ref = asd("stylize", "small.toml", "ref", "--vgg", vgg, "--decoder", decoder, "--limit", "3", "--threads", "1")
    assert ref["facts"]["weights"] == "reference"
    words = ["stylize", "small.toml", "out", "--stylizer", str(folder), *few]
    again = invoke(*words)
    assert "stylised copies" in again.stdout
    assert "already finished" in again.stderr


def test_the_training_script(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train_stylizer.py", "small.toml", "stylizer", "--epochs", "1", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", words)
    TRAINING["main"]()
    assert load(small / "stylizer").facts["steps"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give public weights"),
        (["--vgg", "v.pth", "--decoder", "d.pth"], "no weights at v.pth"),
        (["--stylizer", "OWN", "--magnify", "2"], "public weights"),
        (["--stylizer", "abc"], "no stylizer"),
        (["--stylizer", "OWN", "--alpha", "2"], "between 0"),
        (["--stylizer", "OWN", "--styles", "nowhere"], "no pictures in nowhere"),
        (["--stylizer", "OWN", "--styles", "."], "no pictures in"),
        (["--stylizer", "OWN", "--set-name", "conflct"], "did you mean 'conflict'"),
        (["--stylizer", "OWN", "--limit", "0"], "--limit"),
    ],
)
@pytest.mark.usefixtures("small")
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, words: list[str], message: str, refusal: Refusal) -> None:
    assert message in refusal("stylize", "small.toml", "out", *(folder if word == "OWN" else word for word in words))
