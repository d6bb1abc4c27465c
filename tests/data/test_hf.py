"""hf: on data sets that `datasets` saved here: Arrow, Parquet, an image folder; the hub's path, offline."""

import builtins
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from antishortcut.data import Loader, open_sets
from antishortcut.data.inspect import look, open_finding, summarise
from antishortcut.data.planted import parse
from antishortcut.errors import UserError
from antishortcut.types import AnySet, FileSet, PackedImage
from tests.conftest import asd

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cache of `datasets` is a folder of this test, and nothing is asked of the hub."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def png(number: int) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "PNG")
    return out.getvalue()


def rows(count: int, first: int = 0, label: Any = None, **columns: Sequence[Any]) -> Any:
    """A table of images of two classes, and further columns."""
    features = {"img": datasets.Image(), "kind": label or datasets.ClassLabel(names=["ape", "bat"])}
    values = {"img": [{"bytes": png(first + at), "path": None} for at in range(count)]}
    table = datasets.Dataset.from_dict(
        values | {"kind": [at % 2 for at in range(count)]}, features=datasets.Features(features)
    )
    for name, column in columns.items():
        table = table.add_column(name, column)
    return table


def save(folder: Path, form: str) -> str:
    """The same 12 training and 6 test images in one of the forms; its name."""
    splits = {"train": rows(12), "test": rows(6, first=100)}
    if form == "arrow":
        datasets.DatasetDict(splits).save_to_disk(str(folder / "set"))
    for split, table in splits.items():
        (folder / "set" / split).mkdir(parents=True, exist_ok=True)
        if form == "parquet":
            table.to_parquet(str(folder / "set" / f"{split}-00000-of-00001.parquet"))
        for at in range(len(table)) if form == "imagefolder" else ():
            path = folder / "set" / split / ("ape", "bat")[at % 2] / f"{at}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(png(at if split == "train" else 100 + at))
    return f"hf:{folder / 'set'}"


def bytes_of(images: AnySet) -> list[bytes]:
    assert isinstance(images, FileSet)
    return [path.read() if isinstance(path, PackedImage) else path.read_bytes() for path in images.paths]


def refused(name: str) -> str:
    with pytest.raises(UserError) as caught:
        open_sets(name, None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("form", ["arrow", "parquet", "imagefolder"])
def test_forms_on_disk(tmp_path: Path, form: str) -> None:
    sets = open_sets(save(tmp_path, form), None)
    assert sets.classes == ("ape", "bat")
    for images, first, count in ((sets.train, 0, 12), (sets.tests["test"], 100, 6)):
        expected = {(png(first + at), at % 2) for at in range(count)}
        assert {*zip(bytes_of(images), images.label.tolist(), strict=True)} == expected
    assert sets.hashed == "content"
    assert open_sets(f"hf:{tmp_path / 'set'}", None).fingerprint == sets.fingerprint


def test_batches_are_those_of_files_with_and_without_workers(tmp_path: Path) -> None:
    table = open_sets(save(tmp_path, "arrow"), None).train
    assert isinstance(table, FileSet)
    paths = [tmp_path / f"{at}.png" for at in range(12)]
    for at, path in enumerate(paths):
        path.write_bytes(png(at))

    def batches(images: FileSet, workers: int) -> list[torch.Tensor]:
        loader = Loader(images, batch=4, seed=1, image_size=48, augment="imagenet", workers=workers)
        return [batch.image for epoch in (0, 1) for batch in loader.epoch(epoch)]

    expected = batches(FileSet(tuple(paths), table.label), 0)
    for workers in (0, 2):
        assert all(map(torch.equal, batches(table, workers), expected))


def test_one_table_and_one_file_hold_out_a_tenth(tmp_path: Path) -> None:
    rows(20).save_to_disk(str(tmp_path / "one"))
    rows(20).to_parquet(str(tmp_path / "one.parquet"))
    for name in ("one", "one.parquet"):
        sets = open_sets(f"hf:{tmp_path / name}", None)
        assert (len(sets.train), len(sets.tests["test"])) == (18, 2)


def test_splits_and_hidden_labels(tmp_path: Path) -> None:
    hidden = rows(4).map(lambda row: {"kind": -1})
    splits = {"train": rows(12), "validation": rows(6, 50), "test": hidden, "extra": rows(2, 90)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "set"))
    sets = open_sets(f"hf:{tmp_path / 'set'}", None)
    assert (len(sets.train), sets.val, len(sets.tests["test"])) == (12, None, 6)
    datasets.DatasetDict(splits | {"test": rows(4, 70)}).save_to_disk(str(tmp_path / "all"))
    sets = open_sets(f"hf:{tmp_path / 'all'}", None)
    assert sets.val is not None
    assert (len(sets.val), len(sets.tests["test"])) == (6, 4)
    datasets.DatasetDict({"a": rows(2), "b": rows(2)}).save_to_disk(str(tmp_path / "none"))
    assert "no rows to train on; its splits are a, b" in refused(f"hf:{tmp_path / 'none'}")


def test_columns_are_chosen_by_type_or_by_name(tmp_path: Path) -> None:
    whole = datasets.Value("int64")
    rows(6, label=whole, words=["x", "y", "y"] * 2).rename_column("kind", "label").save_to_disk(str(tmp_path / "whole"))
    assert open_sets(f"hf:{tmp_path / 'whole'}", None).classes == ("0", "1")
    assert open_sets(f"hf:{tmp_path / 'whole'}?label=words", None).classes == ("x", "y")
    two = rows(6).add_column("fine", [0, 1, 2] * 2).cast_column("fine", datasets.ClassLabel(names=["c", "b", "a"]))
    two.save_to_disk(str(tmp_path / "two"))
    line = refused(f"hf:{tmp_path / 'two'}")
    assert f"several columns of labels (kind, fine); name one, like hf:{tmp_path / 'two'}?label=kind" in line
    assert open_sets(f"hf:{tmp_path / 'two'}?label=fine&image=img", None).classes == ("c", "b", "a")
    assert "no column 'nothing'" in refused(f"hf:{tmp_path / 'two'}?label=nothing")
    assert "the column fine has no images" in refused(f"hf:{tmp_path / 'two'}?label=kind&image=fine")
    assert "did you mean 'label'" in refused(f"hf:{tmp_path / 'two'}?lable=kind")
    rows(4, label=whole, other=[0, 1, 5, 5]).save_to_disk(str(tmp_path / "gap"))
    assert "no column of labels" in refused(f"hf:{tmp_path / 'gap'}")
    assert "labels reach 5, but no training image has 2" in refused(f"hf:{tmp_path / 'gap'}?label=other")


def test_bad_rows_are_one_line(tmp_path: Path) -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(touch marker) run\n"
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})

    def table(name: str, third: Any, label: int | None = 0) -> str:
        images = [{"bytes": png(0), "path": None}, {"bytes": png(1), "path": None}, third]
        built = datasets.Dataset.from_dict({"image": images, "label": [0, 1, label]}, features=features)
        built.save_to_disk(str(tmp_path / name))
        return f"hf:{tmp_path / name}"

    name = table("eps", {"bytes": postscript, "path": "x.png"})
    with pytest.raises(UserError, match=r"cannot read the image train/2 \(none of JPEG, PNG"):
        open_sets(name, None, image_size=32)
    finding = open_finding(name, None)
    assert len(summarise(finding, {key: look(images) for key, images in finding.splits.items()})["unreadable"]) == 1
    assert "row 2 of train has no image" in refused(table("none", None))
    assert "an image of train has no label" in refused(table("unlabelled", {"bytes": png(2), "path": None}, None))


def test_damaged_and_missing_sets_are_one_line(tmp_path: Path) -> None:
    save(tmp_path, "arrow")
    (file,) = (tmp_path / "set" / "train").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:100])
    assert f"cannot read {tmp_path / 'set'}" in refused(f"hf:{tmp_path / 'set'}")
    (tmp_path / "x.parquet").write_text("I am a table.")
    assert "cannot read" in refused(f"hf:{tmp_path / 'x.parquet'}")
    (tmp_path / "x.zip").touch()
    assert "a file is .parquet or .arrow" in refused(f"hf:{tmp_path / 'x.zip'}")
    assert "no folder" in refused(f"hf:{tmp_path / 'nothing'}")


def test_the_package_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **options: Any) -> Any:
        if name == "datasets":
            raise ModuleNotFoundError("No module named 'datasets'", name="datasets")
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refused("hf:uoft-cs/cifar100") == "hf:uoft-cs/cifar100 needs datasets: pip install 'antishortcut[hf]'"


def test_the_package_is_imported_by_hf_alone(tmp_path: Path) -> None:
    code = "import sys; from antishortcut.data import open_sets; open_sets('cues', None, options={'count': 8}); "
    code += "print([name for name in ('datasets', 'pyarrow', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


def test_a_name_of_the_hub_without_a_network_is_one_line(tmp_path: Path) -> None:
    """The hub is really asked; here it is told to be offline, as without a network."""
    words = [sys.executable, "-m", "antishortcut", "check", "hf:someone/something"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "someone/something is no folder here, and not to be had from the hub (Couldn't reach" in line


def test_a_shortcut_in_a_set_with_settings() -> None:
    expected = ("hf:me/birds?label=kind", "tint", 0.8)
    assert parse("hf:me/birds?label=kind&kind=tint&rho=0.8") == expected
    assert parse("hf:me/birds?label=kind?kind=tint&rho=0.8") == expected
    assert parse("hf:me/birds") == ("hf:me/birds", "patch", 0.9)
    with pytest.raises(UserError, match="unknown setting 'label'"):
        parse("cifar100?label=fine")


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = save(tmp_path, "parquet")
    monkeypatch.chdir(tmp_path)
    facts = asd("check", name, "--out", "sheet.png")
    assert [row["images"] for row in facts["splits"]] == [12, 6]
    words = ["--teacher", "cnn-2-8", "--student", "cnn-2-8", "--method", "ce", "--epochs", "1", "--device", "cpu"]
    result = asd("distill", "--data", name, *words, "--set", "optim.batch=4", "--threads", "1", "--suite", "s")
    assert json.loads(Path("runs/s/ce-s1/run.json").read_text())["hash"] == result["hash"]
    assert asd("evaluate", "runs/s/ce-s1", "--on", "clean", "--device", "cpu")
