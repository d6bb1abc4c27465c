"""Images that are bombs, torn, or no images at all; folders with loops and pipes in them; names that are no text."""

import io
import os
import resource
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, PngImagePlugin

from antishortcut.config.recipe import DataSettings
from antishortcut.data import open_sets
from antishortcut.data.image_io import read, size_of
from antishortcut.data.inspect import advice, look, open_finding, summarise
from antishortcut.data.readers import images_below
from antishortcut.data.segmentation import read_values
from antishortcut.errors import UserError, printable
from antishortcut.fileio import IMAGE_FORMATS
from antishortcut.run_dir import read_json, write_json
from antishortcut.training.pipeline import Session

NAMES = (
    b"new\nline.png", b"\x1b[31mred\x07.png", b"not-\xff\xfe-text.png", "\u202egnp.exe.png".encode(), b"-rf.png",
    b"<img src=x onerror=alert(1)>.png", b"$(touch marker).png", b"a;b|c&d.png", b" space .png", b"%s%n{0}.png",
)  # fmt: skip


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG whose head says this size, whatever its rows are."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def saved(mode: str, kind: str, size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(out, kind, **options)
    return out.getvalue()


WRONG = {
    "0 bytes": b"",
    "a text": b"I am a picture of a cat.\n" * 50,
    "half a JPEG": saved("RGB", "JPEG")[:600],
    "half a PNG": saved("RGB", "PNG")[:600],
    "a bomb of 20,000 × 20,000": png(20_000, 20_000, b"\0" * 10_000_000),
    "2³¹ pixels wide": png(2**31 - 1, 2**31 - 1),
    "0 pixels wide": png(0, 5),
    "a head that lies": png(3_000, 3_000, b"\0" * 10),
    "a bomb that Pillow only warns of": png(12_000, 9_000, b"\0" * 100),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(touch marker) run\n",
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_images_are_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(WRONG[what])
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for read_it in (read, read_values):
        with pytest.raises(UserError, match=r"cannot read the (image|mask) .*x\.png") as caught:
            read_it(path)
        assert str(caught.value) == printable(str(caught.value))
    assert time.process_time() - begin < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 2**10  # kilobytes
    if "bomb" in what or "2³¹" in what:
        with pytest.raises(UserError, match=r"pixels|exceeds"):
            size_of(path)


def test_postscript_runs_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name says PNG; Pillow would hand it to Ghostscript, whose picture is grey where its head says colour."""
    calls: list[object] = []

    def ghostscript(*words: object, **options: object) -> object:
        calls.append(words)
        return Image.new("L", (9, 9)).im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    path = tmp_path / "000.png"
    path.write_bytes(WRONG["PostScript"] + b"%%EndComments\n%%EOF\n")
    for read_it in (read, read_values, size_of):
        with pytest.raises(UserError, match=r"000\.png \(none of JPEG, PNG, "):
            read_it(path)
    assert not calls


def test_the_mode_is_read_after_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = PngImagePlugin.PngImageFile.load

    def turn_grey(self: PngImagePlugin.PngImageFile) -> object:
        result = load(self)
        self.im, self._mode = self.im.convert("L"), "L"
        return result

    path = tmp_path / "x.png"
    path.write_bytes(saved("RGB", "PNG"))
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", turn_grey)
    assert read(path).mode == "RGB"
    assert read_values(path).shape == (30, 40)


@pytest.mark.parametrize("kind", [*IMAGE_FORMATS, "MPO"])  # MPO: JPEGs of cameras with a preview in them
def test_formats_that_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.png"  # names do not matter
    path.write_bytes(saved("RGB", kind))
    assert (read(path).mode, read(path).size) == ("RGB", (40, 30))


def folder_of(root: Path, names: tuple[bytes, ...] = (b"0.png", b"1.png")) -> Path:
    for part in ("train", "val"):
        for label in ("ape", "bat"):
            (root / part / label).mkdir(parents=True)
            for at, name in enumerate(names):
                with open(os.fsencode(root / part / label) + b"/" + name, "wb") as file:
                    file.write(saved("RGB", "PNG", (12 + at, 12)))
    return root


def test_loops_of_links(tmp_path: Path) -> None:
    """Two links back to their folder: without care 2⁴⁰ folders."""
    root = folder_of(tmp_path / "data")
    for name in ("again", "more"):
        (root / "train" / "ape" / name).symlink_to(root / "train" / "ape")
    (root / "train" / "ape" / "self").symlink_to("self")
    (root / "train" / "ape" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert [path.name for path in images_below(root / "train" / "ape")] == ["0.png", "1.png", "gone.png"]
    with pytest.raises(UserError, match=r"gone\.png"):
        open_sets(f"folder:{root}", None, image_size=8)


@pytest.mark.parametrize("link", ["train/ape/up", "train/cow"])
@pytest.mark.parametrize("target", ["/", "..", ".", "train"])
def test_a_link_upwards_is_refused(tmp_path: Path, link: str, target: str) -> None:
    """It would make the whole machine, or the whole data set, one class."""
    root = folder_of(tmp_path / "data")
    (root / link).symlink_to((root / target).resolve())
    with pytest.raises(UserError, match=rf"{link} is a link to /.*, above it: .* remove the link$") as line:
        open_sets(f"folder:{root}", None, image_size=8)
    assert "\n" not in str(line.value)


def test_links_out_of_the_folder_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder and a file elsewhere, and two links that stay inside."""
    root, other = folder_of(tmp_path / "data"), folder_of(tmp_path / "other")
    (root / "train" / "ape" / "more").symlink_to(other / "train" / "ape")
    (root / "train" / "bat" / "one.png").symlink_to(other / "val" / "bat" / "0.png")
    (root / "train" / "bat" / "same.png").symlink_to("0.png")
    (root / "train" / "bat" / "nested").symlink_to(root / "val" / "bat")
    (root / "up").symlink_to("/")  # no class: not followed
    line = f"links that lead out of the data folder: 2, such as train/ape/more → {other / 'train' / 'ape'}"
    finding = open_finding(f"folder:{root}", None)
    assert line in advice(finding, summarise(finding, {name: look(each) for name, each in finding.splits.items()}), 0)
    session, data = Session(tmp_path / "runs"), DataSettings(name=f"folder:{root}", image_size=8)
    for _ in range(2):
        session.sets(data)
    assert capsys.readouterr().err.count(line) == 1
    assert open_sets(f"folder:{other}", None, image_size=8).note == ""


def test_a_pipe_and_a_folder_named_like_an_image(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "data")
    (root / "train" / "ape" / "2.png").mkdir()
    assert len(images_below(root / "train" / "ape")) == 2
    os.mkfifo(root / "train" / "ape" / "3.png")
    for size in (8, 224):  # decoded, and hashed: reading it would wait forever
        with pytest.raises(UserError, match="not a plain file"):
            open_sets(f"folder:{root}", None, image_size=size)


def test_file_names_that_are_not_text(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "data", NAMES)
    for part in ("train", "val"):
        (root / part / "bat").rename(os.fsdecode(os.fsencode(root / part) + b"/b\xff\x1b[31m<b>\n"))
    sets = open_sets(f"folder:{root}", None, image_size=8)
    assert len(sets.train) == 2 * len(NAMES)
    assert sets.fingerprint == open_sets(f"folder:{root}", None, image_size=8).fingerprint
    write_json(tmp_path / "names.json", list(sets.classes))
    assert read_json(tmp_path / "names.json") == list(sets.classes)
