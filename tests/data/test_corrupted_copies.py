"""Corrupted copies on disk: written, resumed and refused; opened in the released layouts; and the command."""
# N images, S side

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.data import DATASETS, derived
from antishortcut.data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    VERSION,
    clean_chunk,
    corrupt,
    find_copies,
    open_copies,
    write_copies,
)
from antishortcut.data.synthetic import CLASSES, make_cues
from antishortcut.data.synthetic_segmentation import make_scenes
from antishortcut.errors import UserError
from antishortcut.types import AnySet, FileSet, ImageSet
from tests.conftest import asd, invoke
from tests.data.official import paths_of

TWO = ("contrast", "gaussian_noise")
N = 12


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return make_cues("iid", N, seed=0)


def write(images: AnySet, out: Path, names: tuple[str, ...] = TWO, **settings: Any) -> None:
    write_copies(images, settings.pop("side", 32), out, names=names, quiet=True, **settings)


def pixels(images: AnySet) -> np.ndarray[Any, np.dtype[np.uint8]]:
    assert isinstance(images, ImageSet)
    return np.ascontiguousarray(images.image.permute(0, 2, 3, 1).numpy())


def test_layout_of_the_written_folder(tmp_path: Path, images: ImageSet) -> None:
    write(images, tmp_path, seed=3, facts={"set": "cues", "test": "iid"})
    assert {path.name for path in tmp_path.iterdir()} - {".lock"} == {
        "contrast.npy", "gaussian_noise.npy", "labels.npy", "facts.json",
    }  # fmt: skip
    for name in TWO:
        array = np.load(tmp_path / f"{name}.npy")
        assert array.shape == (5 * N, 32, 32, 3)
        assert array.dtype == np.uint8
        for severity in SEVERITIES:
            part = array[(severity - 1) * N : severity * N]
            assert np.array_equal(part, corrupt(pixels(images), name, severity, seed=3))
    assert np.load(tmp_path / "labels.npy").tolist() == images.label.tolist() * 5
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert len(facts.pop("fingerprint")) == 16
    assert facts == {
        "kind": "corruptions", "source": "generated", "version": VERSION, "seed": 3, "side": 32,
        "frost": "procedural-2", "constants": 32, "count": N, "set": "cues", "test": "iid",
        "names": ["gaussian_noise", "contrast"],
    }  # fmt: skip


def test_the_size_of_copies_is_announced_and_finished_ones_are_not_written_again(
    tmp_path: Path, images: ImageSet, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> tuple[bool, str]:
        written = write_copies(images, 32, tmp_path / "copies", names=("fog", "contrast"))
        return written, " ".join(capsys.readouterr().err.split())

    written, text = said()
    assert written
    assert f"writing corrupted copies of {N} test images, {2 * 5 * N * 32 * 32 * 3 / 1e6:.0f} MB:" in text
    assert said() == (False, "")


def test_the_same_bytes_from_two_processes(tmp_path: Path) -> None:
    many = make_cues("iid", 520, seed=0)  # three chunks
    names = ("shot_noise", "elastic_transform")
    write(many, tmp_path / "one", names, processes=1)
    write(many, tmp_path / "two", names, processes=2)
    for name in (*(f"{name}.npy" for name in names), "labels.npy", "facts.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_files_are_cropped_as_in_evaluation(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (90, 70, 3), dtype=np.uint8)).save(paths[-1])
    files = FileSet(tuple(paths), torch.tensor([0, 1, 2]))
    write(files, tmp_path / "out", ("fog",), side=48)
    clean = clean_chunk(files, 48, 0)
    assert clean.shape == (3, 48, 48, 3)
    assert np.array_equal(np.load(tmp_path / "out" / "fog.npy")[3:6], corrupt(clean, "fog", 2))
    assert json.loads((tmp_path / "out" / "facts.json").read_text())["constants"] == 64


def test_a_killed_run_leaves_no_partial_file(tmp_path: Path, images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def dies(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > 7:  # in the second corruption
            raise KeyboardInterrupt
        real(*_)

    real = derived.fill
    monkeypatch.setattr("antishortcut.data.corruptions.copies.fill", dies)
    with pytest.raises(KeyboardInterrupt):
        write(images, tmp_path)
    files = [".lock", "gaussian_noise.npy", "labels.npy", "making.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    with pytest.raises(UserError, match="not finished; run asd corrupt again"):
        open_copies(tmp_path, 10, needed=TWO)

    counted = MagicMock(side_effect=real)
    monkeypatch.setattr("antishortcut.data.corruptions.copies.fill", counted)
    written = (tmp_path / "gaussian_noise.npy").stat().st_mtime_ns
    write(images, tmp_path)
    assert counted.call_count == 5  # contrast alone
    assert (tmp_path / "gaussian_noise.npy").stat().st_mtime_ns == written
    assert open_copies(tmp_path, 10, needed=TWO).names == ("gaussian_noise", "contrast")
    assert not (tmp_path / "making.json").exists()


def test_a_truncated_file_is_written_again(tmp_path: Path, images: ImageSet) -> None:
    write(images, tmp_path)
    whole = (tmp_path / "contrast.npy").read_bytes()
    (tmp_path / "contrast.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"contrast\.npy is damaged or cut short") as error:
        open_copies(tmp_path, 10, needed=TWO)
    assert "\n" not in str(error.value)
    write(images, tmp_path)
    assert (tmp_path / "contrast.npy").read_bytes() == whole


def test_corruptions_can_be_added(tmp_path: Path, images: ImageSet) -> None:
    write(images, tmp_path, ("contrast",))
    first = open_copies(tmp_path, 10, needed=("contrast",))
    write(images, tmp_path, ("fog",))
    both = open_copies(tmp_path, 10, needed=("contrast", "fog"))
    assert both.names == ("fog", "contrast")
    again = open_copies(tmp_path, 10, needed=("contrast",))
    assert again.fingerprint == first.fingerprint != both.fingerprint  # of the bytes that are needed, not of others
    assert both.facts["names"] == ["fog", "contrast"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"side": 64}, "side 32 there, 64 here"),
        ({"facts": {"set": "other"}}, "set None there, other here"),
        ({"images": make_cues("iid", N, seed=1)}, "fingerprint"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, images: ImageSet, change: dict[str, Any], message: str) -> None:
    write(images, tmp_path, ("contrast",))
    before = (tmp_path / "contrast.npy").read_bytes()
    settings: dict[str, Any] = {"images": images, "out": tmp_path, "names": ("contrast",)} | change
    with pytest.raises(UserError, match=message) as error:
        write(**settings)
    assert "\n" not in str(error.value)
    assert (tmp_path / "contrast.npy").read_bytes() == before


def test_released_files_are_not_written_over(tmp_path: Path, images: ImageSet) -> None:
    np.save(tmp_path / "fog.npy", pixels(images))
    with pytest.raises(UserError, match="not made here; give another folder"):
        write(images, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("contrst",)}, "did you mean 'contrast'"),
        ({"names": ()}, "no corruption is named"),
        ({"side": 8}, "too small"),
        ({"frost": Path("nowhere")}, "no folder nowhere"),
        ({"images": make_scenes("iid", 2, seed=0)}, "one label for an image"),
    ],
)
def test_bad_arguments(tmp_path: Path, images: ImageSet, options: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"images": images, "out": tmp_path} | options
    with pytest.raises(UserError, match=message):
        write(**settings)


def test_own_frost_pictures(tmp_path: Path, images: ImageSet) -> None:
    folder = tmp_path / "ice"
    folder.mkdir()
    with pytest.raises(UserError, match="no pictures"):
        write(images, tmp_path / "out", ("frost",), frost=folder)
    for number in range(6):
        Image.new("RGB", (200, 180), (40 * number, 0, 200)).save(folder / f"frost{number}.png")
    write(images, tmp_path / "out", ("frost",), frost=folder)
    built = open_copies(tmp_path / "out", 10, needed=("frost",))
    assert len(built.facts["frost"]) == 16
    shades = {0.2 * 40 * number for number in range(5)}  # the sixth is never drawn, as in the scripts
    added = pixels(built.part("frost", 1))[..., 0].astype(int) - pixels(images)[..., 0]
    dim = pixels(images)[..., 0] < 200
    assert set(added[dim].tolist()) <= {int(shade + 1e-4) for shade in shades}
    with pytest.raises(UserError, match="frost"):
        write(images, tmp_path / "out", ("frost",))
    Image.new("RGB", (100, 100)).save(folder / "frost0.png")
    with pytest.raises(UserError, match=r"frost0\.png is too small"):
        write(images, tmp_path / "other", ("frost",), frost=folder)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(DATASETS["cues"], options={"rho": 0.9, "count": 10, "test_count": 40})
    monkeypatch.setitem(DATASETS, "cues", small)
    out = tmp_path / "cues-c"
    printed = asd("corrupt", "cues", out, "--names", "fog,contrast", "--limit", 20, "--set-name", "conflict")
    assert (printed["folder"], printed["sheet"]) == (str(out), str(out / "contact.png"))
    assert [printed["facts"][key] for key in ("set", "test", "count")] == ["cues", "conflict", 20]
    assert (out / "contact.png").exists()
    words = ("corrupt", "cues", out, "--names", "fog,contrast", "--limit", 20, "--set-name", "conflict")
    assert "already finished" in invoke(*words, "--workers", 1).stderr
    assert open_copies(out, 10, needed=("fog",)).label.bincount().tolist() == [2] * 10  # balanced
    for wrong, message in (
        (["cuse"], "unknown data set 'cuse'"),
        (["cues", "--names", "fgo"], "no corruption 'fgo'"),
        (["cues", "--set-name", "confict"], "did you mean 'conflict'"),
        (["cues", "--limit", "0"], "--limit must be at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            invoke("corrupt", wrong[0], tmp_path / "other", *wrong[1:])


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory, images: ImageSet) -> Path:
    """A folder as CIFAR-100-C is released: nineteen arrays, of which fifteen count, labels of one byte, no facts."""
    folder = tmp_path_factory.mktemp("released") / "CIFAR-100-C"
    folder.mkdir()
    for name in (*CORRUPTIONS, "speckle_noise", "gaussian_blur", "saturate", "spatter"):
        np.save(folder / f"{name}.npy", np.concatenate([clean_chunk(images, 32, 0)] * 5))
    np.save(folder / "labels.npy", np.tile(images.label.numpy(), 5).astype(np.uint8))
    return folder


def test_released_arrays_open(official: Path, images: ImageSet) -> None:
    copies = find_copies(official, CLASSES)
    assert (copies.source, copies.count, copies.side, copies.names) == ("official", N, 32, CORRUPTIONS)
    assert torch.equal(copies.label, images.label)
    part = copies.part("fog", 5)
    assert isinstance(part, ImageSet)
    assert torch.equal(part.image, images.image)
    assert torch.equal(part.label, images.label)
    assert len(copies.fingerprint) == 16
    with pytest.raises(UserError, match="no corruption 'speckle_noise'"):
        copies.part("speckle_noise", 1)


def _drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _save(name: str, make: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, make(np.load(folder / name)))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_drop("labels.npy"), "labels lie beside the images"),
        (_drop("fog.npy"), "lacks fog; fetch or make them"),
        (lambda folder: [(folder / f"{name}.npy").unlink() for name in CORRUPTIONS], "none of the corruptions"),
        (_save("fog.npy", lambda array: array[:-1]), r"fog\.npy has shape \(59, 32, 32, 3\), expected \(60"),
        (_save("fog.npy", lambda array: array[:, :16]), "square"),
        (_save("fog.npy", lambda array: array.astype(float)), "float64"),
        (_save("labels.npy", lambda label: label[:-1]), "does not repeat the same labels 5 times"),
        (_save("labels.npy", lambda label: label + 1), "labels from 1 to 10, the student has 10 classes"),
        (_save("labels.npy", np.sort), "does not repeat the same labels"),
        (lambda folder: (folder / "fog.npy").write_bytes(b"\x93NUMPY half"), "damaged or cut short"),
        (lambda folder: (folder / "facts.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "facts.json").write_text('{"kind": "stylized"}'), "is not about corruptions"),
        (
            lambda folder: (folder / "facts.json").write_text('{"kind": "corruptions", "count": 9}'),
            "12 labels, facts.json says 9",
        ),
    ],
)
def test_errors_are_one_line(official: Path, tmp_path: Path, harm: Callable[[Path], Any], message: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(official, folder)
    harm(folder)
    with pytest.raises(UserError, match=message) as error:
        find_copies(folder, CLASSES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("grouped", [False, True], ids=["tiny-imagenet-c", "imagenet-c"])
def test_released_folders_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            for wnid in ("n01", "n02", "n03"):
                home = tmp_path / ("noise" if grouped else "") / name / str(severity) / wnid
                home.mkdir(parents=True)
                Image.new("RGB", (64, 64), (severity, 0, 0)).save(home / f"{wnid}_1.JPEG")
    classes = ("n03", "n09", "n01")
    copies = find_copies(tmp_path, classes)
    assert (copies.source, copies.count, copies.side, copies.names) == ("official", 2, 64, CORRUPTIONS)
    assert copies.label.tolist() == [0, 2]  # n02 is none of ours
    part = copies.part("fog", 3)
    first, *_ = paths = paths_of(part)
    assert [path.relative_to(tmp_path).parts[-4:] for path in paths] == [
        ("fog", "3", "n03", "n03_1.JPEG"), ("fog", "3", "n01", "n01_1.JPEG"),
    ]  # fmt: skip
    assert part.label.tolist() == [0, 2]
    first.write_bytes(first.read_bytes()[::-1])
    changed = find_copies(tmp_path, classes)
    assert (changed.hashed, copies.hashed) == ("content", "content")
    assert changed.fingerprint != copies.fingerprint
    monkeypatch.setattr("antishortcut.data.corruptions.copies.CONTENT", 0)
    assert find_copies(tmp_path, classes).hashed.startswith("names, sizes, times ")
    first.rename(first.with_name("other.JPEG"))
    with pytest.raises(UserError, match="has other images than gaussian_noise"):
        copies.part("fog", 3)
    with pytest.raises(UserError, match="no images in folders named as the classes"):
        find_copies(tmp_path, ("cat",))
    shutil.rmtree(first.parent.parent)
    with pytest.raises(UserError, match="expected one for each severity"):
        find_copies(tmp_path, classes)
    with pytest.raises(UserError, match="no folder"):
        find_copies(tmp_path / "nowhere", classes)
