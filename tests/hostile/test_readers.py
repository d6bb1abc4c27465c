"""Damaged files, read by every reader: a result, or an error of one printable line."""

import hashlib
import io
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from antishortcut.config.recipe import load_recipe, shipped_recipes
from antishortcut.data import readers as layouts
from antishortcut.data import segmentation as scenes
from antishortcut.data.derived import read_images
from antishortcut.data.groups import list_groups
from antishortcut.data.image_io import read
from antishortcut.data.shifts import read_mapping
from antishortcut.errors import LONGEST, UserError, printable
from antishortcut.models.weights import read_weights
from antishortcut.run_dir import RunDir
from antishortcut.teachers.snapshots import Snapshots
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.checkpoint import Checkpoints
from tests.browser.fake_runs import student

TRIES = 60
TOKENS = (
    b"1e999", b"NaN", b"null", b"-1", b"9" * 400, b'"\\ud800"', b"\x1b[2J", b"\r\n", b"\0", b"\xff\xfe", b"../../x",
    b"", b"[" * 1_500, b'{"a":' * 1_500, b"{}", b"[]", b'""', b"=", b"[[x]]", b"import:os:system",
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A file as it should be, where it lies, and what reads it."""

    good: bytes
    path: Path
    read: Callable[[], object]


def _saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    root = tmp_path_factory.mktemp("readers")
    run = student(root / "kd-s1", "kd", 1, 0.5)
    saved = Snapshots(run.path, 1)
    saved(torch.nn.Linear(2, 2), 1)
    state = {"body.weight": torch.ones(2, 3)}
    resumed = _saved({"model": state, "step": 1, "run": ""})
    picture, array = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.arange(324, dtype=np.uint8).reshape(9, 12, 3)).save(picture, "PNG")
    np.save(array, np.zeros((2, 8, 8, 3), np.uint8))
    cifar = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [1]}, 2)
    table = b"img_id,img_filename,y,split,place\n1,a.jpg,0,0,1\n2,b.jpg,1,0,0\n3,c.jpg,1,2,0\n"
    (root / "groups").mkdir()
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (root / "groups" / name).write_bytes(b"x")
    digest = hashlib.sha256(resumed).hexdigest()[:16]
    recipe = next(iter(shipped_recipes().values())).read_bytes()
    mapping = b'cat = ["cat"]\ndog = ["dog"]\n'

    def file(name: str, good: bytes, read_it: Callable[[Path], object]) -> Reader:
        return Reader(good, root / name, lambda: read_it(root / name))

    return {
        "recipe": file("recipe.toml", recipe, lambda path: load_recipe(str(path))),
        "run.json": file("kd-s1/run.json", (run.path / "run.json").read_bytes(), lambda _: run.read()),
        "result.json": file(
            "kd-s1/result.json", (run.path / "result.json").read_bytes(), lambda _: run.primary_metric()
        ),
        "metrics.jsonl": file("kd-s1/metrics.jsonl", b'{"step": 1}\n{"step": 2}\n', lambda _: run.history()),
        "manifest.json": file(
            "kd-s1/manifest.json",
            (run.path / "manifest.json").read_bytes(),
            lambda _: Trajectory(RunDir(run.path)).weights("final"),
        ),
        "resume state": file(
            f"resume/000000001-{digest}.pt", resumed, lambda path: Checkpoints(RunDir(path.parents[1]), "").load()
        ),
        "weights.pt": file("weights.pt", _saved(state), read_weights),
        "weights.safetensors": file("weights.safetensors", save(state), read_weights),
        "CIFAR": file("train", cifar, lambda path: layouts._cifar_split(path)),
        "images.npy": file("images.npy", array.getvalue(), read_images),
        "image": file("image.png", picture.getvalue(), lambda path: read(path, at_least=8)),
        "metadata.csv": file("groups/metadata.csv", table, lambda path: list_groups(path.parent)),
        "classes.json": file("named/classes.json", b'["sky", "road"]', lambda path: scenes.names_in(path.parent)),
        "mapping": file("mapping.toml", mapping, lambda path: read_mapping(path, ("cat", "dog"))),
    }


NAMES = (
    "recipe", "run.json", "result.json", "metrics.jsonl", "manifest.json", "resume state", "weights.pt",
    "weights.safetensors", "CIFAR", "images.npy", "image", "metadata.csv", "classes.json", "mapping",
)  # fmt: skip


def wrong_files(good: bytes, seed: int) -> Iterator[bytes]:
    """Something else, cut short, with bytes changed, with a token put in the middle."""
    chance = random.Random(seed)
    yield from TOKENS
    for _ in range(TRIES):
        start, end = sorted(chance.choices(range(len(good) + 1), k=2))
        changed = bytearray(good)
        changed[chance.randrange(len(good))] = chance.randrange(256)
        yield from (good[:start], bytes(changed), good[:start] + chance.choice(TOKENS) + good[start:])
        yield good[:start] + chance.choice(TOKENS) + good[min(end, start + 20) :]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_files_are_one_line(readers: dict[str, Reader], name: str) -> None:
    reader = readers[name]
    reader.path.parent.mkdir(exist_ok=True)
    reader.path.write_bytes(reader.good)
    reader.read()
    for data in wrong_files(reader.good, len(name)):
        reader.path.write_bytes(data)
        try:
            reader.read()
        except UserError as error:
            message = str(error)
            assert message, data
            assert printable(message) == message, data
            assert "\n" not in message, data
            assert len(message) <= LONGEST, data
    reader.path.write_bytes(reader.good)
