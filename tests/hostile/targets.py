"""Every reader of a file that somebody may bring: a name, files it takes, and what is called with a wrong one.

A reader returns or raises a UserError of one printable line; within a second of its process's time, and without taking
much memory. `Bench` says of each input what else happened.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import resource
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from antishortcut.cache import Rows
from antishortcut.data import layouts, scenes
from antishortcut.data.copies import read_images, read_labels
from antishortcut.data.corruptions.places import differences
from antishortcut.data.corruptions.places import read_facts as corruption_facts
from antishortcut.data.groups import list_groups
from antishortcut.data.masks import read_values
from antishortcut.data.pictures import _cached, read
from antishortcut.data.stimuli import read_mapping
from antishortcut.errors import LONGEST, UserError, printable
from antishortcut.export import _ours
from antishortcut.folder import Folder, read_json, write_json
from antishortcut.given import _digest, states_of
from antishortcut.models.weights import read as read_weights
from antishortcut.models.weights import strip
from antishortcut.report.collect import collect
from antishortcut.report.directions import read_directions
from antishortcut.report.reading import Notes, curve, history, terms
from antishortcut.report.scores import read_embedding, read_histograms
from antishortcut.report.serve import HOST, Show, _Handler, _Server
from antishortcut.report.table import Table
from antishortcut.resume import load_state as load_resume
from antishortcut.run import TeacherSettings, load_recipe, shipped_recipes, teach_run
from antishortcut.snapshots import Snapshots
from antishortcut.snapshots import load_state as load_snapshot
from antishortcut.stylize.reading import open_stylized
from antishortcut.stylize.weights import load as load_stylizer
from antishortcut.teachers import Trajectory, keep_steps
from tests.browser.fake_runs import TEACHER, full
from tests.browser.fake_runs import student as make_student
from tests.data.official import make_ade, make_camvid, make_tiny

SECOND = 1.0  # of the process's own time for one input
MEMORY = 512 * 2**10  # kilobytes that one input may add to the most there has been
CLASSES = ("cat", "dog", "plane")

Reader = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    name: str
    seeds: tuple[bytes, ...]
    read: Reader


@dataclass
class Bench:
    """Readers tried on inputs, and what they did that they must not."""

    failures: dict[str, str] = field(default_factory=dict)  # what and where → how it came about
    slowest: float = 0.0
    inputs: int = 0

    def attempt(self, target: Target, data: bytes) -> str | None:
        """Why this input fails, None when all is well."""
        before, begin = _memory(), time.process_time()
        wrong = None
        try:
            target.read(data)
        except UserError as error:
            text = str(error)
            if "\n" in text or printable(text) != text or not 0 < len(text) <= LONGEST:
                wrong = f"an error that is not one printable line: {text[:200]!r}"
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:200]!r}"
        took = time.process_time() - begin
        if wrong is None and took > SECOND:
            wrong = f"took {took:.1f} s"
        if wrong is None and _memory() - before > MEMORY:
            wrong = f"took {(_memory() - before) >> 10} MB"
        self.inputs, self.slowest = self.inputs + 1, max(self.slowest, took)
        if wrong is not None:
            self.failures.setdefault(wrong.partition(": ")[0], f"{wrong}; input {data[:300]!r}")
        return wrong


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def targets(root: Path) -> dict[str, Target]:
    """All readers, with a folder to work in."""
    made = [*_settings(root), *_runs(root), *_report(root), *_lists(root), *_copies(root), *_weights(root)]
    made += [*_pictures(root), *_server(root)]
    return {target.name: target for target in made}


def at(path: Path, read_it: Callable[[], object]) -> Reader:
    """A reader of a file that is written anew each time."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def once(data: bytes) -> object:
        path.write_bytes(data)
        return read_it()

    return once


def _settings(root: Path) -> Iterable[Target]:
    path = root / "recipe.toml"
    recipes = tuple(each.read_bytes() for each in shipped_recipes().values())

    def recipe() -> object:
        found = load_recipe(str(path))
        keep_steps(found.teacher.keep, 10, 1000)
        return teach_run(found.model_copy(update={"teacher": found.teacher.model_copy(update={"weights": None})}), "f")

    yield Target("recipe (TOML)", recipes[:6], at(path, recipe))
    plain = root / "plain.toml"
    plain.write_bytes(recipes[0])

    def override(data: bytes) -> object:
        return load_recipe(str(plain), data.decode("utf-8", "surrogateescape").split("\n")[:4])

    words = (b"optim.rate=0.1", b"epochs=10\ndata.options.rho=0.5", b"methods.asd.queue=[1, 2]", b'student.name="vgg8"')
    yield Target("overrides by --set", words, override)


def _runs(root: Path) -> Iterable[Target]:
    suite = full(root / "runs", ("kd",))
    folder = Folder(suite / "kd-s1")
    one = Folder(root / "one")
    for name in ("run.json", "result.json"):
        (one.path).mkdir(exist_ok=True)
        (one.path / name).write_bytes((folder.path / name).read_bytes())

    def run() -> object:
        found, _ = one.read()
        return found.hash, found.folder(root), one.check(found)

    def log() -> object:
        one.cut(10**6)
        rows = history(one.metrics)
        return one.history(), curve(rows, "iid"), terms(rows, 2)

    def manifest() -> object:
        found = Trajectory(one)
        states = ("final", "15%", "chosen", "epoch:3")
        told = [_told(lambda state=state: found.weights(state)) for state in states]  # type: ignore[misc]
        return told, found.trained, found.candidates

    states = root / "states"
    model = torch.nn.Linear(2, 2)
    for kept in (Snapshots(states, 4), Snapshots(one.path, 4)):
        for step in range(1, 5):
            kept(model, step)
    found = json.loads((states / "manifest.json").read_text())
    for entry in found["states"]:
        entry["information"] = {"total": 1.5}
    listed = json.dumps(found).encode()
    yield Target("run.json", ((one.path / "run.json").read_bytes(),), at(one.path / "run.json", run))
    yield Target(
        "result.json",
        ((one.path / "result.json").read_bytes(),),
        at(one.path / "result.json", lambda: (one.result(), one.headline())),
    )
    yield Target("metrics.jsonl", (folder.metrics.read_bytes(),), at(one.metrics, log))
    yield Target("manifest.json of a teacher", (listed,), at(one.path / "manifest.json", manifest))
    yield Target(
        "manifest.json of a loop", (listed,), at(states / "manifest.json", lambda: load_snapshot(states, "final"))
    )
    yield Target("states of a teacher from elsewhere", (listed,), at(root / "given" / "manifest.json", _given(root)))
    scored = tuple(path.read_bytes() for path in sorted((folder.path / "scores").glob("*.json")))
    yield Target("scores/<set>.json", scored, at(one.path / "scores" / "groups.json", one.scores))
    record = root / "export" / "export.json"
    yield Target(
        "export.json", (b'{"files": ["model.onnx"], "form": "onnx"}',), at(record, lambda: _ours(record.parent))
    )
    rows = Rows(root / "cache", {"seed": 1}, 4, 3)
    rows.begin()
    rows.write(0, np.arange(4), np.ones((4, 3), np.float16))
    key, view = rows.path / "key.json", rows.path / "view-00000.rows"
    yield Target("key.json of teachers' outputs", (key.read_bytes(),), at(key, rows.begin))

    def outputs() -> object:
        fresh = Rows(root / "cache", {"seed": 1}, 4, 3)
        return fresh.read(0, np.arange(4))

    yield Target("teachers' outputs", (view.read_bytes(),), at(view, outputs))


def _told(read_it: Callable[[], object]) -> object:
    try:
        return read_it()
    except UserError as error:
        return str(error)


def _given(root: Path) -> Callable[[], object]:
    """As `given.bring` takes states, without their weights."""
    teacher = TeacherSettings(name="vgg8", final=str(root / "given"))

    def states() -> object:
        found = states_of(teacher)
        return [(state.step / found[-1].step, f"{state.step:08d}", _digest(state.file)) for state in found]

    return states


def _report(root: Path) -> Iterable[Target]:
    student, teacher = root / "runs" / "P2" / "kd-s1", root / "runs" / "teachers" / TEACHER
    few = make_student(root / "few" / "kd-s1", "kd", 1, 0.5)
    for name in ("corruptions", "groups"):
        write_json(few.path / "scores" / f"{name}.json", read_json(student / "scores" / f"{name}.json"))

    def whole() -> object:
        return Table.of(collect(few.path)).rows()

    for name in ("run.json", "result.json", "metrics.jsonl", "scores/corruptions.json", "scores/groups.json"):
        yield Target(f"report: {name}", ((few.path / name).read_bytes(),), _back(few.path / name, whole))

    def mechanism() -> object:
        return read_histograms(student, "kd", Notes()), read_embedding(student, "kd", Notes())

    path = student / "artifacts" / "mechanism.json"
    small = json.loads(path.read_text())
    for plane in ("label", "teacher", "student"):
        small["embedding"][plane] = small["embedding"][plane][:5]
    yield Target("report: artifacts/mechanism.json", (json.dumps(small).encode(),), _back(path, mechanism))
    run, _ = Folder(student).read()
    path = teacher / "artifacts" / "directions-a1b2.json"
    yield Target(
        "report: artifacts/directions.json",
        (path.read_bytes(),),
        _back(path, lambda: read_directions([(student, run)], Notes())),
    )


def _back(path: Path, read_it: Callable[[], object]) -> Reader:
    """As `at`, of a file that others read too: it is put back."""
    kept = path.read_bytes()

    def once(data: bytes) -> object:
        path.write_bytes(data)
        try:
            return read_it()
        finally:
            path.write_bytes(kept)

    return once


def _lists(root: Path) -> Iterable[Target]:
    groups = root / "groups"
    groups.mkdir()
    for name in ("a.jpg", "b.jpg"):
        (groups / name).write_bytes(b"x")
    table = b"img_id,img_filename,y,split,place\n1,a.jpg,0,0,1\n2,b.jpg,1,0,0\n3,a.jpg,0,0,1\n4,b.jpg,1,2,0\n"
    (groups / "metadata.csv").write_bytes(table)
    yield Target("metadata.csv", (table,), at(groups / "metadata.csv", lambda: list_groups(groups)))
    named = root / "named"
    yield Target("classes.txt", (b"sky\nroad\n",), at(named / "classes.txt", lambda: scenes.names_in(named)))
    listed = root / "listed"
    yield Target("classes.json", (b'["sky", "road"]',), at(listed / "classes.json", lambda: scenes.names_in(listed)))
    camvid = make_camvid(root / "camvid")
    names = "\n".join(scenes.CAMVID).encode()
    yield Target("classes.txt of CamVid", (names,), at(camvid / "classes.txt", lambda: scenes._camvid_names(camvid)))
    ade = make_ade(root) / scenes.ADE / "objectInfo150.txt"
    yield Target("objectInfo150.txt of ADE20K", (ade.read_bytes(),), at(ade, lambda: scenes._ade_names(ade)))
    tiny = make_tiny(root) / layouts.TINY
    for name in ("wnids.txt", "words.txt", "val/val_annotations.txt"):
        yield Target(
            f"{name} of TinyImageNet",
            ((tiny / name).read_bytes(),),
            _back(tiny / name, lambda: layouts.list_tiny_imagenet(root)),
        )
    mapping = root / "mapping.toml"
    toml = b'cat = ["cat"]\ndog = ["dog"]\nairplane = ["plane"]\n'
    yield Target("mapping of cue conflict (TOML)", (toml,), at(mapping, lambda: read_mapping(mapping, CLASSES)))


def _copies(root: Path) -> Iterable[Target]:
    facts = {"kind": "corruptions", "count": 3, "seed": 0, "source": "generated", "constants": {"fog": [1, 2]}}
    path = root / "copies" / "facts.json"
    path.parent.mkdir()

    def corrupted() -> object:
        found = corruption_facts(path)
        return found and differences(found, facts)

    yield Target("facts.json of corruptions", (json.dumps(facts).encode(),), at(path, corrupted))
    styled = root / "styled"
    styled.mkdir()
    np.save(styled / "stylized.npy", np.zeros((2, 8, 8, 3), np.uint8))
    np.save(styled / "labels.npy", np.array([0, 1]))
    said = json.dumps({"kind": "stylized", "count": 2, "styles": "paintings", "alpha": 1.0}).encode()
    yield Target("facts.json of stylised copies", (said,), at(styled / "facts.json", lambda: open_stylized(styled, 2)))
    own = root / "stylizer"
    settings = {"encoder": "vgg8", "depth": 3, "steps": 4}
    kept = {"kind": "stylizer", "version": 1, "digests": {"encoder": "0", "decoder": "0"}, "settings": settings}
    yield Target(
        "facts.json of a stylizer", (json.dumps(kept).encode(),), at(own / "facts.json", lambda: load_stylizer(own))
    )
    images = (styled / "stylized.npy").read_bytes()
    labels = (styled / "labels.npy").read_bytes()
    array = root / "images.npy"
    yield Target("images (.npy)", (images, labels), at(array, lambda: read_images(array)))
    other = root / "labels.npy"
    yield Target("labels (.npy)", (labels, images), at(other, lambda: read_labels(other, 2)))
    decoded = root / "decoded.npy"
    yield Target("decoded images (.npy)", (images,), at(decoded, lambda: _cached(decoded, (2, 8, 8, 3))))
    cifar = {"data": np.zeros((1, 3072), np.uint8), "fine_labels": [1]}
    meta = {b"fine_label_names": ["a", "b"]}
    path = root / "train"
    pickles = tuple(pickle.dumps(each, protocol) for each in (cifar, meta) for protocol in (2, 4, 5))
    yield Target("CIFAR's pickles", pickles, at(path, lambda: layouts._cifar_part(path, 2)))


def _weights(root: Path) -> Iterable[Target]:
    state = {"body.weight": torch.ones(2, 3), "body.bias": torch.zeros(2)}
    whole: dict[str, object] = {"model": state, "optimizer": {"lr": 0.1}, "last": {"accuracy": 0.5}, "seconds": 1.0}
    old, new, resumed = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save(state, old, _use_new_zipfile_serialization=False)
    torch.save(state, new)
    torch.save(whole, resumed)
    path, tensors = root / "weights.pt", root / "weights.safetensors"

    def weights() -> object:
        return strip(read_weights(path))

    yield Target("weights (.pt)", (new.getvalue(),), at(path, weights))
    yield Target("weights (.pt, old form)", (old.getvalue(),), at(path, weights))
    yield Target("weights (.safetensors)", (save(state),), at(tensors, lambda: strip(read_weights(tensors))))
    parts = root / "parts"
    index = {"metadata": {"total_size": 32}, "weight_map": dict.fromkeys(state, "one.safetensors")}
    parts.mkdir()
    (parts / "one.safetensors").write_bytes(save(state))
    listed = parts / "model.safetensors.index.json"
    yield Target(
        "weights in parts (.index.json)", (json.dumps(index).encode(),), at(listed, lambda: strip(read_weights(listed)))
    )
    place = root / "resume"
    place.mkdir()

    def resume(data: bytes) -> object:
        for each in place.iterdir():
            each.unlink()
        (place / f"000000001-{hashlib.sha256(data).hexdigest()[:16]}.pt").write_bytes(data)
        return load_resume(place)

    yield Target("resume state", (resumed.getvalue(), new.getvalue()), resume)


def _pictures(root: Path) -> Iterable[Target]:
    files = []
    pixels = np.arange(12 * 9 * 3, dtype=np.uint8).reshape(9, 12, 3)
    kinds = "RGB PNG, RGB JPEG, P GIF, L PNG, CMYK TIFF, RGB WEBP, RGB BMP, RGB PPM"
    for mode, kind in (each.split() for each in kinds.split(", ")):
        out = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(out, kind)
        files.append(out.getvalue())
    picture, mask = root / "picture.png", root / "mask.png"
    yield Target("image file", tuple(files), at(picture, lambda: read(picture, at_least=8)))
    yield Target("mask file", tuple(files), at(mask, lambda: read_values(mask)))
    tree = root / "any.json"
    yield Target("any JSON", (b'{"a": [1, {"b": null}], "c": "d"}',), at(tree, lambda: read_json(tree)))


def _server(root: Path) -> Iterable[Target]:
    """Requests as bytes. Whatever they say, the answer is one of few kinds, and no file of another folder is in it."""
    secret = root / "runs" / "secret.txt"
    secret.write_text("SECRET")
    show = Show(root / "runs" / "P2", page=b"<html></html>", policy="default-src 'none'")
    show.files = {"table.md": root / "runs" / "P2" / "table.md"}
    server = _Server((HOST, 0), show)
    name = f"{HOST}:{server.server_address[1]}"
    server.socket.close()  # only its names are needed: each request comes through a pair of sockets

    def ask(data: bytes) -> object:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            here.send(data[:60_000])
            here.shutdown(socket.SHUT_WR)
            try:
                _Handler(there, ("127.0.0.1", 1), server)
            except (BrokenPipeError, ConnectionResetError):
                return None
            there.shutdown(socket.SHUT_WR)
            here.setblocking(True)
            answer = b"".join(iter(lambda: here.recv(65536), b""))
        if answer.startswith(b"HTTP/") and b"Content-Security-Policy" not in answer:
            raise RuntimeError(f"an answer without a policy: {answer[:80]!r}")
        if b"SECRET" in answer or b"run.json" in answer or b"Traceback" in answer:
            raise RuntimeError(f"it gives away: {answer[:80]!r}")
        return answer

    lines = ["GET / HTTP/1.1", "GET /table.md HTTP/1.0", "HEAD /../secret.txt HTTP/1.1", "POST /news HTTP/1.1"]
    lines += ["GET /%2e%2e/secret.txt HTTP/1.1"]
    yield Target("request to the server", tuple(f"{line}\r\nHost: {name}\r\n\r\n".encode() for line in lines), ask)
