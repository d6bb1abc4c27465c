"""Files from elsewhere: every reader, fed every kind of wrong file, returns a result or raises one printable line."""

import hashlib
import io
import json
import os
import pickle
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from antishortcut.config.recipe import load_recipe, shipped_recipes
from antishortcut.data import readers as layouts
from antishortcut.data import segmentation as scenes
from antishortcut.data.derived import read_images, read_labels
from antishortcut.data.groups import list_groups
from antishortcut.data.image_io import read
from antishortcut.data.shifts import read_mapping
from antishortcut.errors import LONGEST, UserError, of_disk, printable
from antishortcut.evaluation.adain import reference
from antishortcut.models.weights import read_weights
from antishortcut.run_dir import RunDir, write_json
from antishortcut.teachers.snapshots import load_state
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.checkpoint import Checkpoints
from tests.browser.fake_runs import student
from tests.hostile.payloads import FORMS, array, in_torch_zip, pickles, text
from tests.hostile.test_bounds import memory_limit
from tests.hostile.test_images import png

SECONDS = 5.0  # of one wrong file
MANY, DEEP, HUGE = 5_000, 20_000, 10**15


@dataclass(frozen=True)
class Reader:
    """A file as it should be, where it lies, and what reads it."""

    good: bytes
    path: Path
    read: Callable[[Path], object]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()


def resumed(path: Path) -> object:
    """A state's name holds its checksum."""
    for old in path.parent.glob("0*"):
        old.unlink()
    path.rename(path.with_name(f"000000001-{digest(path)[:16]}.pt"))
    return Checkpoints(RunDir(path.parents[1]), "").load()


def listed(path: Path) -> Path:
    """The folder of a snapshot, with a manifest that holds its checksum."""
    entry = {"labels": ["100%"], "step": 4, "file": path.name, "sha256": digest(path)}
    write_json(path.parents[1] / "manifest.json", {"states": [entry]})
    return path.parents[1]


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def safetensors(head: object, length: int | None = None) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * 8


def tensor(shape: list[int], end: int = 8) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    root = tmp_path_factory.mktemp("readers")
    run = student(root / "kd-s1", "kd", 1, 0.5)
    weights = {"body.weight": torch.ones(2, 3)}
    manifest = {"states": [{"labels": ["100%"], "step": 4, "file": "none.safetensors", "sha256": "0" * 64}]}
    picture = io.BytesIO()
    Image.fromarray(np.arange(324, dtype=np.uint8).reshape(9, 12, 3)).save(picture, "PNG")
    table = b"img_id,img_filename,y,split,place\n1,a.jpg,0,0,1\n2,b.jpg,1,0,0\n3,c.jpg,1,2,0\n"
    cifar = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [1]}, 2)
    recipe = next(iter(shipped_recipes().values())).read_bytes()
    values = {"values": {"accuracy": 0.5}}
    (root / "groups").mkdir()
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (root / "groups" / name).write_bytes(b"x")
    files: dict[str, tuple[bytes, Callable[[Path], object]]] = {
        "recipe.toml": (recipe, lambda path: load_recipe(str(path))),
        "kd-s1/run.json": ((run.path / "run.json").read_bytes(), lambda _: run.read()),
        "kd-s1/result.json": ((run.path / "result.json").read_bytes(), lambda _: run.primary_metric()),
        "kd-s1/metrics.jsonl": (b'{"step": 1}\n{"step": 2}\n', lambda _: run.history()),
        "kd-s1/scores/clean.json": (json.dumps(values).encode(), lambda _: run.score("clean")),
        "listed/manifest.json": (json.dumps(manifest).encode(), lambda path: Trajectory(RunDir(path.parent)).entries),
        "teacher/snapshots/step-4.safetensors": (
            save(weights), lambda path: Trajectory(RunDir(listed(path))).weights("final")),
        "loop/snapshots/final.safetensors": (save(weights), lambda path: load_state(listed(path))),
        "resume/state.pt": (saved({"model": weights, "step": 1, "run": ""}), resumed),
        "weights.pt": (saved(weights), read_weights),
        "weights.safetensors": (save(weights), read_weights),
        "encoder.pt": (b"", lambda path: reference(path, path)),
        "train": (cifar, lambda path: layouts._cifar_split(path, "fine_labels")),
        "images.npy": (array("(2, 8, 8, 3)", b"\0" * 384), read_images),
        "labels.npy": (array("(2,)", b"\0\1"), lambda path: read_labels(path, 10)),
        "image.png": (picture.getvalue(), lambda path: read(path, at_least=8)),
        "groups/metadata.csv": (table, lambda path: list_groups(path.parent)),
        "tiny-imagenet-200/wnids.txt": (b"n01\nn02\n", lambda path: layouts.tiny_wnids(path.parents[1])),
        "named/classes.json": (b'["sky", "road"]', lambda path: scenes.names_in(path.parent)),
        "mapping.toml": (b'cat = ["cat"]\ndog = ["dog"]\n', lambda path: read_mapping(path, ("cat", "dog"))),
    }  # fmt: skip
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    return {name: Reader(good, root / name, read_it) for name, (good, read_it) in files.items()}


WEIGHTS = (".pt", ".safetensors")  # read by their content, whatever their ending
REFUSING = (*WEIGHTS, ".npy", ".png", "")  # readers that take nothing but their own format


def damaged(good: bytes) -> Iterable[bytes]:
    """Cut short, or with a bit flipped, in every region."""
    for at in range(0, len(good), len(good) // 16 + 1):
        yield good[:at]
        yield good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :]


def many_keys() -> Iterable[bytes]:
    keys = [f"key{number}" for number in range(MANY)]
    pairs = b"".join(text(key.encode()) + b"K\1" for key in keys)
    yield json.dumps(dict.fromkeys(keys, 1)).encode()
    yield b'{"step": 1}\n' * MANY
    yield "\n".join(f"{key} = 1" for key in keys).encode()
    yield "\n".join(f"[{key}]" for key in keys).encode()
    yield (",".join(keys) + "\n").encode() * 2
    yield b"\x80\x02}(" + pairs + b"u."
    yield in_torch_zip(b"\x80\x02}(" + pairs + b"u.")
    yield saved(dict.fromkeys(keys, torch.ones(1)))
    yield safetensors(dict.fromkeys(keys, tensor([0], 0)))


def deep_nesting() -> Iterable[bytes]:
    nested = b"\x80\x02" + (b"}" + text(b"model")) * DEEP + b"N" + b"s" * DEEP + b"."
    itself = b"\x80\x02}q\0" + text(b"state_dict") + b"h\0s."
    yield from (b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP, b"a = " + b"[" * DEEP, b"a = " + b"{a=" * DEEP)
    yield b"[" + b"a." * 200 + b"a]\nb = 1"
    for inner in (nested, itself, b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b"."):
        yield from (inner, in_torch_zip(inner))
    yield array("(" * DEEP, b"")


def huge_counts() -> Iterable[bytes]:
    number = str(HUGE).encode()
    for value in (number, b"9" * 5_000, b"1e999", b"-1", b"NaN", b"null", b'"\\ud800"', b"true", b"{}", b"[]"):
        yield value
        yield b"a = " + value
        yield b'{"schema": %b, "step": %b, "states": %b, "values": {"accuracy": %b}, "last": %b}' % ((value,) * 5)
        yield b"img_id,img_filename,y,split,place\n" + value + b",a.jpg," + b",".join([value] * 3)
    yield from (array(f"({HUGE}, 8, 8, 3)", b""), array(f"({HUGE},)", b"", "<i8"), array("(2,)", b"", f"|S{HUGE}"))
    yield from (safetensors({"a": tensor([2])}, 2**62), safetensors({"a": tensor([HUGE], 4 * HUGE)}))
    yield from (safetensors({"a": tensor([HUGE, HUGE])}), safetensors({"a": tensor([2], 4)}), safetensors({}, 2**20))
    yield from (png(2**31 - 1, 2**31 - 1), png(60_000, 60_000), png(0, 1))
    for size in (b"\x8d" + struct.pack("<Q", HUGE), b"\x8e" + struct.pack("<Q", HUGE), b"r\xff\xff\xff\xff"):
        yield from (b"\x80\x04N" + size + b".", in_torch_zip(b"\x80\x04N" + size + b"."))


def returned(reader: Reader) -> bool:
    """Whether it returned a result; an error must be one printable line, soon and without much memory."""
    began = time.process_time()
    try:
        with memory_limit(2**29):
            reader.read(reader.path)
    except (UserError, OSError) as error:
        message = of_disk(error) if isinstance(error, OSError) else str(error)
        assert message
        assert printable(message) == message
        assert "\n" not in message
        assert len(message) <= LONGEST
        return False
    finally:
        assert time.process_time() - began < SECONDS, reader.path
    return True


def test_right_files_are_read(readers: dict[str, Reader]) -> None:
    for reader in readers.values():
        reader.path.write_bytes(reader.good)
        assert returned(reader) or not reader.good, reader.path


GENERATORS: dict[str, Callable[[Reader], Iterable[bytes]]] = {
    "damaged": lambda reader: damaged(reader.good),
    "many keys": lambda _: many_keys(),
    "deep nesting": lambda _: deep_nesting(),
    "huge counts": lambda _: huge_counts(),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_wrong_files_are_one_line(readers: dict[str, Reader], kind: str) -> None:
    for reader in readers.values():
        for data in GENERATORS[kind](reader):
            reader.path.write_bytes(data)
            returned(reader)


def test_files_of_every_other_format_are_one_line(readers: dict[str, Reader]) -> None:
    for reader, other in product(readers.values(), repeat=2):
        kinds = reader.path.suffix, other.path.suffix
        reader.path.write_bytes(other.good)
        result = returned(reader)
        assert not result or kinds[0] not in REFUSING or kinds[0] == kinds[1] or set(kinds) <= set(WEIGHTS), kinds


def test_the_pickles_would_run_code_if_they_were_trusted(tmp_path: Path) -> None:
    pickle.loads(pickles(tmp_path / "marker")["os.system"])
    assert (tmp_path / "marker").exists()


def test_no_pickle_runs_code(readers: dict[str, Reader], tmp_path: Path) -> None:
    for reader, form in product(readers.values(), FORMS.values()):
        for name, inner in pickles(tmp_path / "marker").items():
            reader.path.write_bytes(form(inner))
            assert not (returned(reader) and reader.path.suffix in REFUSING), (reader.path, name)
            assert not (tmp_path / "marker").exists(), (reader.path, name)


def test_links_pipes_and_devices_are_one_line(readers: dict[str, Reader], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for reader in readers.values():
        for target in (reader.path, tmp_path / "nowhere", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
            reader.path.unlink(missing_ok=True)
            reader.path.symlink_to(target)
            returned(reader)
        reader.path.unlink(missing_ok=True)
