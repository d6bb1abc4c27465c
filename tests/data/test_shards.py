"""wds: on real tar files, whole and damaged, on disk and on a server; trainings on them equal those on a folder."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from antishortcut.config.recipe import load_recipe
from antishortcut.data import Loader, open_sets, shards
from antishortcut.data.inspect import look, open_finding, summarise
from antishortcut.data.shards import expand_braces
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.training.auto_recipe import PairRequest
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import AnySet, DataSplits, FileSet, PackedImage
from tests.conftest import CPU, asd, assert_same_run
from tests.data.official import in_memory
from tests.hostile.test_images import WRONG
from tests.processes import asd as asd_process
from tests.training.test_two_processes import NETWORK

Member = tuple[str, bytes]
BOTH = (("wds", "shards"), ("folder", "folder"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache is a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "antishortcut" / "shards"


def image(number: int, size: tuple[int, int] = (80, 72)) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "PNG")
    return out.getvalue()


def write_tar(path: Path, members: Sequence[Member], **options: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as tar:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def sample(key: str, number: int, label: object) -> list[Member]:
    return [(f"{key}.cls", str(label).encode()), (f"{key}.png", image(number))]


def write_set(folder: Path, train: int = 24, test: int = 12) -> None:
    """The same images as train-{0..2}.tar and val-{0..1}.tar and, in the same order, as folders of classes."""
    for split, count, files, first in (("train", train, 3, 0), ("val", test, 2, 1000)):
        rows = sorted((f"{at % 2}/{at:04d}", at, ("ape", "bat")[at % 2]) for at in range(count))
        bounds = [count * at // files for at in range(files + 1)]
        for at, (low, high) in enumerate(pairwise(bounds)):
            members = [one for key, number, name in rows[low:high] for one in sample(key, first + number, name)]
            write_tar(folder / "shards" / f"{split}-{at}.tar", members)
        for key, number, name in rows:
            path = folder / "folder" / split / name / f"{key[2:]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image(first + number))


def refused(pattern: object) -> str:
    with pytest.raises(UserError) as caught:
        open_sets(f"wds:{pattern}", None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(images: AnySet) -> list[str]:
    assert isinstance(images, FileSet)
    return [path.name for path in images.paths]


def bytes_of(images: AnySet) -> list[bytes]:
    assert isinstance(images, FileSet)
    return [path.read() if isinstance(path, PackedImage) else path.read_bytes() for path in images.paths]


# --- Reading ---


def test_shards_hold_what_the_folder_holds(tmp_path: Path) -> None:
    write_set(tmp_path)
    packed, plain = (open_sets(f"{kind}:{tmp_path / place}", None) for kind, place in BOTH)
    assert packed.classes == plain.classes == ("ape", "bat")
    for one, two in ((packed.train, plain.train), (packed.tests["test"], plain.tests["test"])):
        assert bytes_of(one) == bytes_of(two)
        assert torch.equal(one.label, two.label)
    assert packed.hashed == "content"
    small = [open_sets(f"{kind}:{tmp_path / place}", tmp_path, image_size=32) for kind, place in BOTH]
    assert torch.equal(in_memory(small[0].train).image, in_memory(small[1].train).image)


@pytest.mark.parametrize("pattern", ["shards/train-{0..2}.tar", "shards/train-*.tar", "shards/train-{0,1,2}.tar"])
def test_patterns_without_a_test_split_hold_out_a_tenth(tmp_path: Path, pattern: str) -> None:
    write_set(tmp_path)
    sets = open_sets(f"wds:{tmp_path / pattern}", None)
    assert (len(sets.train), len(sets.tests["test"])) == (22, 2)
    assert not set(names(sets.train)) & set(names(sets.tests["test"]))


def test_braces_count_alternate_and_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(expand_braces("a/{train-{08..10},val}.tar")) == [
        f"a/{name}.tar" for name in ("train-08", "train-09", "train-10", "val")
    ]
    assert len(list(expand_braces("s-{000..127}.tar"))) == 128
    for wrong in ("s-{0..2.tar", "s-{a..c}.tar", "s-{3..1}.tar", "s-{1}.tar"):
        assert "{000..127}" in refused(wrong)
    monkeypatch.setattr(shards, "MOST", 99)
    assert "more than 99 shards" in refused("{0..99999}-{0..99999}.tar")


def test_splits_are_named_by_file_or_folder(tmp_path: Path) -> None:
    for at, name in enumerate(("x-train-0", "x-validation-0", "testing/0", "train/1")):
        write_tar(tmp_path / f"{name}.tar", [one for label in (0, 1) for one in sample(f"{at}{label}", at, label)])
    sets = open_sets(f"wds:{tmp_path}", None)
    assert names(sets.train) == ["30.png", "31.png", "00.png", "01.png"]
    assert sets.val is not None
    assert (names(sets.val), names(sets.tests["test"])) == (["10.png", "11.png"], ["20.png", "21.png"])
    assert "none to train on" in refused(tmp_path / "x-validation-0.tar")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_forms_of_tar_long_names_and_other_members(tmp_path: Path, form: int) -> None:
    """Long names are headers of their own, JSON labels, further members, and files that are no samples."""
    folder = "deep/" * 12
    rows = [
        ("__meta__", b"x"), ("._0.png", b"macOS"),
        (f"{folder}0.jpg", image(0)), (f"{folder}0.json", b'{"label": 1, "caption": "two"}'),
        (f"{folder}0.seg.png", image(5)),
        *sample("1", 1, "0\n"), ("2.PNG", image(2)), ("2.cls", "\ufeff1".encode()), ("2.txt", b""),
    ]  # fmt: skip
    sets = open_sets(f"wds:{write_tar(tmp_path / 'a.tar', [*rows, *sample('3', 3, 0)], format=form)}", None)
    everything = {*zip(names(sets.train), sets.train.label.tolist(), bytes_of(sets.train), strict=True)}
    test = sets.tests["test"]
    everything |= {*zip(names(test), test.label.tolist(), bytes_of(test), strict=True)}
    assert everything == {
        (f"{folder}0.jpg", 1, image(0)),
        ("1.png", 0, image(1)),
        ("2.PNG", 1, image(2)),
        ("3.png", 0, image(3)),
    }


def test_classes_are_those_of_classes_txt(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", [*sample("0", 0, 2), *sample("1", 1, 0), *sample("2", 2, 0)])
    assert "no training image has 1; name all classes in classes.txt" in refused(tmp_path / "train.tar")
    (tmp_path / "classes.txt").write_text("ape\nbat\ncat\n")
    assert open_sets(f"wds:{tmp_path / 'train.tar'}", None).classes == ("ape", "bat", "cat")
    write_tar(tmp_path / "train.tar", [*sample("0", 0, "cat"), *sample("1", 1, "ape"), *sample("2", 2, "ape")])
    assert sorted(open_sets(f"wds:{tmp_path / 'train.tar'}", None).train.label.tolist()) == [0, 2]
    write_tar(tmp_path / "train.tar", [*sample("0", 0, "dog"), *sample("1", 1, "ape")])
    assert "'dog', but the classes are ape, bat, cat" in refused(tmp_path / "train.tar")
    for wrong in ("3", "-1", "1" * 5000):
        write_tar(tmp_path / "train.tar", [*sample("0", 0, wrong), *sample("1", 1, 0)])
        assert f"'{wrong[:60]}', but the classes" in refused(tmp_path / "train.tar")


def test_the_index_is_read_from_the_cache_until_a_shard_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path)
    pattern = f"wds:{tmp_path / 'shards'}"
    before = open_sets(pattern, None)
    assert len(list(cache.iterdir())) == 5
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("read again"))
        assert open_sets(pattern, None).fingerprint == before.fingerprint
    for saved in cache.iterdir():
        saved.write_text('{"version": 1, "samples": [[1]]}')
    assert open_sets(pattern, None).fingerprint == before.fingerprint
    write_tar(tmp_path / "shards" / "val-1.tar", [*sample("new", 7, "ape"), *sample("more", 8, "bat")])
    after = open_sets(pattern, None)
    assert names(after.tests["test"])[-2:] == ["new.png", "more.png"]
    assert after.fingerprint != before.fingerprint
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder, so nothing can be saved
    assert open_sets(pattern, None).fingerprint == after.fingerprint


def test_the_fingerprint_follows_images_labels_and_names_not_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*sample("0", 0, 0), *sample("1", 1, 1), *sample("2", 2, 0), *sample("3", 3, 1)]

    def mark(place: str, members: Sequence[Member]) -> str:
        return open_sets(f"wds:{write_tar(tmp_path / place, members)}", None).fingerprint

    first = mark("a/x.tar", rows)
    assert mark("b/x.tar", rows) == first
    others = [rows[:6], [*rows[:-1], ("3.png", image(9))], [("0.cls", b"1"), *rows[1:]], rows[2:] + rows[:2]]
    assert len({mark("a/x.tar", other) for other in others} | {first}) == 5
    monkeypatch.setattr("antishortcut.data.splits.CONTENT", 100)
    write_tar(tmp_path / "a/x.tar", rows)
    sets = [open_sets(f"wds:{tmp_path / place}/x.tar", None) for place in "ab"]
    assert sets[0].fingerprint == sets[1].fingerprint
    assert [one.hashed[:19] for one in sets] == ["names, sizes, times"] * 2


# --- Odd shards ---


def truncated(path: Path, size: int) -> None:
    os.truncate(path, size)


def with_member(kind: bytes, name: str = "9.png", target: str = "0.png", size: int = 0) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with tarfile.open(path, "a") as tar:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, size
            tar.addfile(info)

    return change


def with_byte(at: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 0xFF
        path.write_bytes(content)

    return change


def with_members(*members: Member) -> Callable[[Path], object]:
    return lambda path: write_tar(path, [*sample("0", 0, 0), *sample("1", 1, 1), *members])


ODD: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "in the last image": (partial(truncated, size=30_000), "unexpected end of data"),
    "between two members": (partial(truncated, size=1024), "cut short after 1,024 bytes"),
    "in a header": (partial(truncated, size=1024 + 100), "cut short after 1,024 bytes"),
    "empty": (partial(truncated, size=0), "damaged (empty"),
    "a header changed": (with_byte(1024 + 10), "cut short after 1,024 bytes"),
    "the first header changed": (with_byte(10), "no plain tar file"),
    "a symbolic link": (with_member(tarfile.SYMTYPE, target="/etc/passwd"), "'9.png' is a link"),
    "a hard link": (with_member(tarfile.LNKTYPE), "'9.png' is a link"),
    "a pipe": (with_member(tarfile.FIFOTYPE), "no plain file"),
    "a device": (with_member(tarfile.CHRTYPE), "no plain file"),
    "a sparse file": (with_member(tarfile.GNUTYPE_SPARSE), "no plain file"),
    "more than there is": (with_member(tarfile.REGTYPE, size=2**40), "unexpected end of data"),
    "an absolute name": (with_members(*sample("/etc/9", 9, 0)), "'/etc/9.cls' leads out of it"),
    "a name upwards": (with_members(*sample("a/../../9", 9, 0)), "leads out of it"),
    "no label": (with_members(("9.png", image(9))), "'9' has 9.png; a sample is"),
    "no image": (with_members(("9.cls", b"1")), "'9' has 9.cls; a sample is"),
    "two images": (with_members(*sample("9", 9, 0), ("9.jpg", image(8))), "a sample is"),
    "an image twice": (with_members(*sample("9", 9, 0), ("9.png", image(8))), "a sample is"),
    "an empty label": (with_members(("9.png", image(9)), ("9.cls", b" ")), "'9.cls' has no label"),
    "a label of bytes": (with_members(("9.png", image(9)), ("9.cls", b"\xff\xfe")), "'9.cls' has no label"),
    "no JSON": (with_members(("9.png", image(9)), ("9.json", b"{")), "'9.json' has no label"),
    "JSON without it": (with_members(("9.png", image(9)), ("9.json", b'{"caption": 1}')), "'9.json' has no label"),
    "a list": (with_members(("9.png", image(9)), ("9.json", b'{"label": [1]}')), "'9.json' has no label"),
    "a large label": (with_members(("9.png", image(9)), ("9.cls", b"1" * (2**20 + 1))), "'9.cls' has 1,048,577 bytes"),
    "a text": (lambda path: path.write_text("I am a tar file. " * 100), "no plain tar file"),
    "no tar": (lambda path: path.write_bytes(bytes(10240)), "has no images"),
    "compressed": (lambda path: path.write_bytes(gzip.compress(path.read_bytes())), "no plain tar file"),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_odd_shards_are_one_line(tmp_path: Path, cache: Path, odd: str) -> None:
    path = write_tar(tmp_path / "x.tar", [*sample("0", 0, 0), *sample("1", 1, 1)])
    change, message = ODD[odd]
    change(path)
    line = refused(path)
    assert message in line
    assert str(path) in line
    assert not cache.exists()  # nothing is saved of a damaged one
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.tar"]


def test_a_huge_image_is_refused_before_it_is_read(tmp_path: Path) -> None:
    size = shards.LARGEST_IMAGE + 1
    with (tmp_path / "x.tar").open("wb") as file:
        for name, length in (("0.cls", 1), ("0.png", size)):
            info = tarfile.TarInfo(name)
            info.size = length
            file.write(info.tobuf())
            file.write(b"0") if length == 1 else None
            file.seek((length - (length == 1) + 511) // 512 * 512 + (511 if length == 1 else 0), os.SEEK_CUR)
        file.write(bytes(1024))
    assert f"'0.png' has {size:,} bytes" in refused(tmp_path / "x.tar")


@pytest.mark.parametrize("what", WRONG)
def test_bad_images_in_shards_are_one_line(tmp_path: Path, what: str) -> None:
    path = write_tar(
        tmp_path / "x.tar", [*sample("0", 0, 0), *sample("1", 1, 1), ("9.cls", b"0"), ("9.png", WRONG[what])]
    )
    with pytest.raises(UserError, match=r"cannot read the image .*x\.tar/9\.png") as caught:
        open_sets(f"wds:{path}", None, image_size=32)
    assert "\n" not in str(caught.value)
    finding = open_finding(f"wds:{path}", None)
    facts = summarise(finding, {split: look(images) for split, images in finding.splits.items()})
    assert len(facts["unreadable"]) == 1
    assert not (tmp_path / "marker").exists()


def test_missing_shards_and_other_places_are_one_line(tmp_path: Path) -> None:
    write_tar(tmp_path / "x-0.tar", [*sample("0", 0, 0), *sample("1", 1, 1)])
    assert f"no shard {tmp_path / 'x-1.tar'} (No such file" in refused(tmp_path / "x-{0..1}.tar")
    assert "there is no such shard" in refused(tmp_path / "y-*.tar")
    assert "runs a command" in refused(f"pipe:touch {tmp_path / 'marker'}")
    assert not (tmp_path / "marker").exists()
    for other in ("s3://bucket/x.tar", "file:///etc/passwd", "ftp://host/x.tar"):
        assert "http:// or https://" in refused(other)
    (tmp_path / "empty").mkdir()
    assert "no shards (*.tar)" in refused(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe.tar")
    assert "not a plain file" in refused(tmp_path / "pipe.tar")
    with pytest.raises(UserError, match=f"it has .tar files: write wds:{tmp_path}"):
        open_sets(f"folder:{tmp_path}", None)


@pytest.mark.parametrize(
    "change",
    [
        partial(truncated, size=2000),
        lambda path: write_tar(path, [*sample("0", 2, 1), *sample("1", 0, 0), *sample("2", 1, 1)]),
    ],
    ids=["cut short", "in another order"],
)
def test_a_shard_that_changed_since_it_was_opened_is_one_line(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """In another order, an image of the same size may lie where one of another class lay."""
    path = write_tar(tmp_path / "x.tar", [*sample("0", 0, 0), *sample("1", 1, 1), *sample("2", 2, 1)])
    sets = open_sets(f"wds:{path}", None)
    change(path)
    with pytest.raises(UserError, match=r"x\.tar has changed since it was opened; give the same command again"):
        list(Loader(sets.train, batch=2, seed=0, image_size=64, augment="imagenet", workers=0).epoch(0))


# --- On a server ---


@dataclass
class Server:
    """A web server of a folder, which understands Range; `faults` are given instead of answers, in turn."""

    address: str
    requests: list[str] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)  # status codes; 0: half of the answer
    whole: bool = False  # as servers without Range


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(shards, "WAIT", 0.01)
    state = Server("")

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            state.requests.append(f"{self.path} {asked}")
            path = tmp_path / self.path.partition("?")[0].lstrip("/")
            fault = state.faults.pop(0) if state.faults else None
            if fault or not path.is_file():
                self.send_error(fault or 404)
                return
            content, (low, high) = path.read_bytes(), map(int, asked.removeprefix("bytes=").split("-"))
            part = content if state.whole else content[low : high + 1]
            self.send_response(200 if state.whole else 206)
            self.send_header("Content-Range", f"bytes {low}-{high}/{len(content)}")
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(part[: len(part) // 2] if fault == 0 else part)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    state.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield state
    http.shutdown()
    http.server_close()


def batches(sets: DataSplits) -> list[torch.Tensor]:
    loader = Loader(sets.train, batch=8, seed=3, image_size=64, augment="imagenet", workers=0)
    return [batch.image for epoch in range(2) for batch in loader.epoch(epoch)]


def test_shards_on_a_server_are_those_on_disk(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path)
    near = open_sets(f"wds:{tmp_path / 'shards'}", None)
    pattern = f"wds:{server.address}/shards/{{train-{{0..2}},val-{{0..1}}}}.tar?signature=1"
    far = open_sets(pattern, None)
    assert (far.classes, bytes_of(far.train)) == (near.classes, bytes_of(near.train))
    assert all(map(torch.equal, batches(far), batches(near)))
    assert far.hashed.startswith("names, sizes, times")
    server.requests.clear()
    again = open_sets(pattern.replace("signature=1", "signature=2"), None)
    assert again.fingerprint == far.fingerprint
    assert len(server.requests) == 6  # the size of every shard, and classes.txt: the index is saved, no image is read
    small = [in_memory(open_sets(name, None, image_size=32).train) for name in (pattern, f"wds:{tmp_path / 'shards'}")]
    assert torch.equal(small[0].image, small[1].image)


def test_the_classes_on_a_server(tmp_path: Path, server: Server) -> None:
    write_tar(tmp_path / "x.tar", [*sample("0", 0, 2), *sample("1", 1, 0), *sample("2", 2, 0)])
    (tmp_path / "classes.txt").write_text("ape\nbat\ncat\n")
    assert open_sets(f"wds:{server.address}/x.tar", None).classes == ("ape", "bat", "cat")


def test_a_server_that_fails_for_a_moment_is_asked_again(tmp_path: Path, server: Server) -> None:
    write_set(tmp_path)
    sets = open_sets(f"wds:{server.address}/shards/train-{{0..2}}.tar", None)
    expected = bytes_of(sets.train)
    server.faults += [503, 0, 429, 500]
    assert bytes_of(sets.train) == expected
    assert not server.faults


def test_what_servers_refuse_is_one_line(tmp_path: Path, server: Server) -> None:
    write_set(tmp_path)
    pattern = f"{server.address}/shards/train-{{0..2}}.tar"
    assert "train-3.tar (404 Not Found)" in refused(pattern.replace("..2", "..3"))
    sets = open_sets(f"wds:{pattern}", None)
    server.faults += [503] * 500  # requests are made at once, and each several times
    with pytest.raises(UserError, match=r"503 .*; check the address and the network"):
        batches(sets)
    server.faults.clear()
    write_tar(tmp_path / "shards" / "train-0.tar", [one for at in range(99) for one in sample(str(at), at, "ape")])
    with pytest.raises(UserError, match="has changed on its server"):
        batches(sets)
    server.whole = True
    assert "no Range requests" in refused(pattern)
    assert "cannot read http://127.0.0.1:9/x.tar" in refused("http://127.0.0.1:9/x.tar")


# --- Training ---

RECIPE = """
epochs = 2
[data]
name = "{name}"
image_size = 72
augment = "imagenet"
[teacher]
name = "cnn-4-16"
[student]
name = "cnn-2-16"
[optim]
batch = 8
"""


KILLS = """
import os, signal

replace, saved = os.replace, []

def counting(source, target, **more):
    replace(source, target, **more)
    if "/s/kd-s1/resume/" in str(os.path.abspath(target)):
        saved.append(target)
        if len(saved) == 4:
            os.kill(os.getpid(), signal.SIGKILL)

os.replace = counting
"""


def write_recipe(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.toml"
    path.write_text(RECIPE.format(name={"wds": f"wds:{folder}/shards", "folder": f"folder:{folder}/folder"}[kind]))
    return path


def student(folder: Path, place: str) -> Path:
    return folder / place / "student.safetensors"


def test_a_killed_and_resumed_run_on_shards_is_that_on_a_folder(tmp_path: Path) -> None:
    """Killed without a warning when it has saved its fourth step, the first of the second epoch."""
    write_set(tmp_path)
    settings = CPU.model_copy(update={"save_every": 0.0, "workers": 2})

    def train(kind: str, runs: str) -> RunDir:
        session = Session(tmp_path / runs, execution=settings, quiet=True)
        recipe = load_recipe(str(write_recipe(tmp_path, kind)))
        return RunDir(distill(recipe, session, method="kd", seed=1, suite="s").folder(session.runs))

    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(KILLS)
    words = ["distill", str(write_recipe(tmp_path, "wds")), "--method", "kd", "--suite", "s", "--runs", "killed"]
    words += ["--workers", "2", "--save-every", "0", "--device", "cpu", "--threads", "1"]
    paths = os.pathsep.join([str(tmp_path / "hook"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "antishortcut", *words], cwd=tmp_path, capture_output=True, timeout=600, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "killed" / "s" / "kd-s1"
    assert not student(folder, "").exists()
    assert [*(folder / "resume").iterdir()]
    resumed, whole = train("wds", "killed"), train("wds", "whole")
    assert [row["step"] for row in resumed.history() if "terms" in row] == [1, 2, 3, 4, 5, 6]
    assert_same_run(resumed, whole)
    assert_same_run(resumed, train("folder", "folder"))


@pytest.mark.slow
def test_two_processes_equal_one_on_shards(tmp_path: Path) -> None:
    write_set(tmp_path, train=25)
    write_recipe(tmp_path, "wds")
    (tmp_path / "bare.py").write_text(NETWORK.replace("108", "768"))
    words = ["--method", "ce", "--set", "student.name=import:bare:net", "--set", "optim.lr=0.02"]
    one = json.loads(asd_process(tmp_path, "distill", "wds.toml", *words, "--runs", "one"))
    two = json.loads(asd_process(tmp_path, "distill", "wds.toml", *words, "--runs", "two", "--devices", "2"))
    assert one["hash"] == two["hash"]
    assert one["last"] == pytest.approx(two["last"], abs=0.01)
    weights = [load_file(student(tmp_path, f"{runs}/wds/ce-s1")) for runs in ("one", "two")]
    for key, value in weights[0].items():
        assert torch.allclose(value, weights[1][key], atol=2e-4, rtol=1e-3), key


def test_two_ranks_see_every_sample_once(tmp_path: Path) -> None:
    """Each opens the shards itself, as its own process does."""
    write_set(tmp_path, train=26, test=13)
    seen: dict[str, list[list[str]]] = {"train": [], "test": []}
    for rank in range(2):
        sets = open_sets(f"wds:{tmp_path / 'shards'}", None)
        for part, images in (("train", sets.train), ("test", sets.tests["test"])):
            options: dict[str, Any] = {"shuffle": part == "train", "rank": rank, "world": 2, "workers": 0}
            epoch = Loader(images, batch=8, seed=5, image_size=64, augment="imagenet", **options).epoch(1)
            seen[part].append([names(images)[at] for batch in epoch for at in batch.index.tolist()])
    assert [len(first) + len(second) for first, second in seen.values()] == [26, 13]
    assert all(first and second and not set(first) & set(second) for first, second in seen.values())


# --- Commands ---


def test_check_plant_and_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path)
    monkeypatch.chdir(tmp_path)
    facts = asd("check", "wds:shards", "--out", "sheet.png")
    assert [row["images"] for row in facts["splits"]] == [24, 12]
    assert (tmp_path / "sheet.png").stat().st_size > 1000
    assert asd("plant", "wds:shards")["names"]["patch"] == "shortcut:wds:shards?kind=patch&rho=0.9"
    pair = ["--teacher", "cnn-4-16", "--student", "cnn-2-16"]
    planned = asd("distill", "--data", "wds:shards/train-{0..2}.tar", *pair, "--dry-run")
    assert (planned["data"]["name"], planned["data"]["image_size"]) == ("wds:shards/train-{0..2}.tar", 64)


def test_the_folder_of_runs_is_named_after_the_shards() -> None:
    pairs = {"wds:a/photos-{000..127}.tar": "photos", "wds:a/photos": "photos", "hf:me/birds?label=kind": "birds"}
    for data, folder in pairs.items():
        assert PairRequest(data, "timm:resnet50", "cnn-2-16").name == f"{folder}-resnet50-cnn-2-16"
