"""Run folders written by hand, without training: everything a report reads, in the forms evaluations write."""

import io
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from antishortcut.config.recipe import DataSettings, ModelSettings, OptimSettings, Run
from antishortcut.report.table import CORRUPTION_KINDS as KINDS
from antishortcut.run_dir import RunDir, write_json

SCRIPT = "<script>alert(1)</script>"
HOSTILE = "</script><b>x|\"'&"
TEACHER = "9afbc38ecad2403f"
LETTERS = "ABCDEFGHIJ"


def begun(place: Path, name: str, seed: int, **more: Any) -> RunDir:
    """A run of two epochs that has not logged anything yet."""
    settings = {"kind": "distill", "suite": "P2", "epochs": 2, "data": DataSettings(), "fingerprint": "f"}
    settings |= {"optim": OptimSettings(), "model": ModelSettings(name="cnn-8-64")}
    folder = RunDir(place)
    run = Run(name=name, seed=seed, **(settings | more))
    folder.begin(run, {"accelerator": "cpu", "threads": 1}, {"python": "3.11.7", "torch": "2.6.0"})
    return folder


def student(place: Path, name: str, seed: int, last: float, **more: Any) -> RunDir:
    """A finished student."""
    folder = begun(place, name, seed, **({"method": "kd"} | more))
    for epoch, accuracy in ((1.0, last - 0.1), (2.0, last)):
        terms = {"task": 2 / epoch, "kd": 1 / epoch}
        folder.log({"step": int(epoch), "epoch": epoch, "lr": 0.1, "loss": 3 / epoch, "terms": terms})
        folder.log({"step": int(epoch), "epoch": epoch, "set": "iid", "scores": {"accuracy": accuracy}})
    scores = {"accuracy": last, "epoch": 2}
    folder.finish({"set": "iid", "last": scores, "best": scores | {"accuracy": last + 0.01}, "seconds": 1.5})
    return folder


def score(folder: RunDir, name: str, values: dict[str, Any], **more: Any) -> None:
    saved = {"set": name, "state": "final", "fingerprint": "f", "count": 900, "values": values}
    write_json(folder.path / "scores" / f"{name}.json", saved | more)


def scores(folder: RunDir, level: float, chance: random.Random, classes: str = LETTERS) -> None:
    """Every score file; `level` in [0, 1] says how little the student leans on shortcuts."""
    shift = chance.uniform(-0.01, 0.01)
    score(folder, "iid", {"accuracy": 0.9 + 0.02 * level + shift})
    shape, texture = 0.03 + 0.3 * level, 0.85 - 0.4 * level
    bias = {"by_shape": shape, "by_texture": texture, "shape_bias": shape / (shape + texture)}
    score(folder, "conflict", {"accuracy": shape} | bias)
    score(folder, "uncorrelated", {"accuracy": 0.14 + 0.3 * level + shift})
    styled = {"accuracy": 0.3 + 0.2 * level, "clean_accuracy": 0.9, "gap": 0.6 - 0.2 * level, "by_style": 0.2}
    score(folder, "stylized", styled, source="generated")
    decided = {"decided": shape + texture, "neither": 1 - shape - texture}
    score(folder, "cue-conflict", bias | decided, source="official")
    renditions = {"accuracy": 0.2 + 0.1 * level, "accuracy_overlap": 0.3 + 0.1 * level}
    score(folder, "imagenet-r", renditions, source="official")
    score(folder, "attack", {"clean": 0.9, "1/255": 0.6 + 0.1 * level, "2/255": 0.4, "4/255": 0.2, "8/255": 0.05})
    corruptions(folder, level, chance)
    kept = {"whole": 0.9, "shuffle-4": 0.5 - 0.2 * level, "grey-100": 0.8}
    probed = {role: {probe: {"accuracy": max(0.0, value - lost)} for probe, value in kept.items()}
              for role, lost in (("own", 0.0), ("early", 0.3), ("final", 0.1))}  # fmt: skip
    score(folder, "probes", {"needs_colour": 0.1, "texture_share": 0.6 - 0.2 * level}, networks=probed)
    groups = {
        f"{name}, texture {fact}": {"accuracy": min(1, start + at / 90), "count": 90}
        for at, name in enumerate(classes)
        for fact, start in (("agrees", 0.97), ("differs", 0.1 + 0.4 * level))
    }
    accuracies = [each["accuracy"] for each in groups.values()]
    values = {"worst_group": min(accuracies), "mean_group": sum(accuracies) / len(accuracies), "adjusted": 0.9}
    score(folder, "groups", values, groups=groups)


def corruptions(folder: RunDir, level: float, chance: random.Random) -> None:
    hard = {"texture": 0.35, "noise": 0.75, "blur": 0.55, "weather": 0.3}
    errors = {
        name: [
            min(1.0, (0.1 + hard[kind] * s / 5) * (1.05 - 0.2 * level) + chance.uniform(0, 0.03)) for s in range(1, 6)
        ]
        for kind, names in KINDS.items()
        for name in names
    }
    values = {"mce": sum(e[-1] for e in errors.values()) / 15, "mce_all": sum(sum(e) for e in errors.values()) / 75}
    for kind, names in KINDS.items():
        values[kind] = sum(errors[name][-1] for name in names) / len(names)
        values[f"{kind}_all"] = sum(sum(errors[name]) for name in names) / 5 / len(names)
    score(
        folder,
        "corruptions",
        values | {"clean_error": 0.08, "mce_relative": 0.97 - level / 9},
        errors=errors,
        reference={"run": "runs/P2/kd-s1", "hash": "0"},
        source="generated",
    )


def mechanism(folder: RunDir, level: float, chance: random.Random, classes: list[str]) -> None:
    """scores/mechanism.json in three views, and artifacts/mechanism.json."""
    view = {
        "cos_final": 0.6 + 0.3 * level, "cos_early": 0.6, "closer_final": 0.8, "signed_cosine": -0.3 * level,
        "signed_above": 0.5 - 0.4 * level, "projection": 0.7 - 0.2 * level, "projection_random": 0.25,
        "robust_projection": 0.5 + 0.2 * level, "robust_random": 0.354, "hinge_share": 0.2, "infonce_binary": 0.5,
        "infonce_full": 1.1,
    }  # fmt: skip
    views = {"aligned": view, "raw": view | {"cos_final": 0.5}, "projector": view | {"cos_final": 0.9}}
    score(folder, "mechanism", views)
    edges = [-1 + at / 20 for at in range(41)]
    histograms = {
        what: {
            "edges": edges,
            "counts": [round(900 * math.exp(-(((e + 0.025 - mean) / 0.15) ** 2))) for e in edges[:-1]],
        }
        for what, mean in (("cos_final", 0.6 + 0.3 * level), ("cos_early", 0.6), ("signed_cosine", -0.3 * level))
    }
    label = [at % len(classes) for at in range(200)]
    planes = [
        [
            [round(chance.gauss(8 * math.cos(at), spread), 3), round(chance.gauss(8 * math.sin(at), spread), 3)]
            for at in label
        ]
        for spread in (1.0, 2.2 - level)
    ]
    embedding = {"method": "t-SNE", "label": label, "classes": classes, "teacher": planes[0], "student": planes[1]}
    tree = {"views": {view: {"histograms": histograms} for view in views}, "embedding": embedding}
    write_json(folder.path / "artifacts" / "mechanism.json", tree)


def maps(folder: RunDir, own: list[int], classes: list[str], early: list[int], final: list[int]) -> None:
    """artifacts/maps.npz: the answers of student, T_early and T_final; image n is of class 0, and named n."""
    count, data, ends = len(own), bytearray(), []
    for at in range(count):
        file = io.BytesIO()
        Image.new("RGB", (32, 32), (250, 20 * at, 250)).save(file, format="JPEG")
        data += file.getvalue()
        ends.append(len(data))
    top = np.array([own, early, final], np.int32)[..., None]
    heat = np.zeros((3, count, 32, 32), np.uint8)
    heat[..., 8:16, 8:16] = 255
    path = folder.path / "artifacts" / "maps.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        name=np.array([str(at) for at in range(count)]),
        why=np.array(["any"] * count),
        label=np.zeros(count, np.int64),
        classes=np.array(classes),
        network=np.array(["own", "early", "final"]),
        jpeg=np.frombuffer(bytes(data), np.uint8),
        jpeg_end=np.array(ends),
        top=top,
        confidence=np.full(top.shape, 0.75, np.float32),
        grad_cam=heat,
        integrated_gradients=heat,
    )


def directions(teacher: Path, classes: list[str], key: str = "a1b2", early: str = "15%") -> Path:
    """artifacts/directions-<key>.json of a teacher, with strips of pictures."""
    artifacts = teacher / "artifacts"
    each = {
        kind: [_direction(artifacts, f"directions-{key}", kind, number, classes) for number in range(1, 5)]
        for kind in ("displaced", "abandoned")
    }
    pooled = {kind: entries[0]["explained"] for kind, entries in each.items()}
    tree = {
        "early": early, "count": 5000, "width": 64, "K": 4,
        "angles": {
            "shortcut_final": {"mean": 38.6, "each": [10.1, 30.2, 50.0, 64.1]},
            "shortcut_early": {"mean": 30.0, "each": [8.0, 20.0, 40.0, 52.0]},
            "final_early": {"mean": 65.3, "each": [40.0, 60.0, 78.0, 83.2]},
            "random": 75.2,
        },
        "spectrum": {
            "uncentred": [4.79 * 0.8**at for at in range(32)], "centred": [3.1 * 0.82**at for at in range(32)],
            "eigengap": {"uncentred": {"absolute": 0.059}, "centred": {"absolute": 0.04}},
        },
        "bootstrap": {"mean": 32.6, "std": 1.6, "pairs": 45, "parts": 10, "random": 75.2},
        "batches": [{"batch": 64 * 2**at, "to_whole": 63 - at * 8, "between": 75 - at * 8} for at in range(4)],
        "batches_random": 75.2,
        "energy": [
            {"state": f"{s}%", "epoch": s / 7, "shortcut": 0.5 - s / 700, "robust": 0.2 + s / 250, "accuracy": s / 120}
            for s in (2, 5, 10, 15, 20, 30, 50, 75, 100)
        ],
        "energy_random": 0.0625, "directions": each, "explained": pooled,
    }  # fmt: skip
    path = artifacts / f"directions-{key}.json"
    write_json(path, tree)
    return path


def _direction(artifacts: Path, folder: str, kind: str, number: int, classes: list[str]) -> dict[str, Any]:
    shares = {"early": {"texture": 0.98, "shape": 0.01}, "final": {"texture": 0.15, "shape": 0.79}}
    if kind == "abandoned":
        shares = {"early": {"texture": 0.99, "shape": 0.0}, "final": {"texture": 0.02, "shape": 0.01}}
    entry: dict[str, Any] = {
        "number": number,
        "energy_early": 0.2 / number,
        "statistics": {"r": {"edges": -0.79}, "r2": 0.7, "name": "edges (r −0.79)" if number == 1 else ""},
        "energy_final": 0.1 / number,
        "explained": shares,
    }
    for end in ("high", "low"):
        name = f"{folder}/{kind}-{number}-{end}.png"
        picture(artifacts / name, number * (40 if end == "high" else 60))
        entry |= {end: name, f"classes_{end}": classes[:8]}
    return entry


def picture(path: Path, tone: int, count: int = 8, side: int = 32) -> None:
    """A strip of square pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    strip = Image.new("RGB", (count * (side + 2), side), "white")
    for at in range(count):
        tile = Image.new("RGB", (side, side), (tone % 256, (tone * 3 + 25 * at) % 256, 140))
        tile.paste((250, 250, 250), (6 + at, 8, 16 + at, 24))
        strip.paste(tile, (at * (side + 2), 0))
    strip.save(path)


def teacher_run(place: Path, last: float = 0.95) -> None:
    """A finished teacher's run.json and result.json."""
    model = ModelSettings(name="cnn-32-64")
    folder = begun(place, model.name, 0, kind="teach", suite="teachers", epochs=14, model=model, keep=(15, 100))
    folder.finish({"set": "iid", "last": {"accuracy": last}, "best": {"accuracy": last + 0.01}, "seconds": 2})


def unfinished(place: Path, epoch: int = 3, epochs: int = 12) -> RunDir:
    """A run that goes on."""
    folder = begun(place, "crd", 1, epochs=epochs, teacher=TEACHER)
    for at in range(1, epoch + 1):
        folder.log({"step": at, "epoch": float(at), "terms": {"task": 1 / at}})
        folder.log({"step": at, "epoch": float(at), "set": "iid", "scores": {"accuracy": 0.5 + 0.4 * at / epochs}})
    return folder


def full(root: Path, names: tuple[str, ...] = ("ce", "kd", "asd", SCRIPT)) -> Path:
    """A suite with all that a report reads, an unfinished run, a damaged one, and hostile names. Returns its folder."""
    chance = random.Random(0)
    suite = root / "P2"
    classes = [SCRIPT, *LETTERS[1:]]
    for number, name in enumerate(names):
        for seed in (1, 2):
            level = number / len(names) + chance.uniform(0, 0.1)
            place = suite / f"{'hostile' if name == SCRIPT else name}-s{seed}"
            folder = student(place, name, seed, 0.9 + level / 50, teacher=TEACHER)
            scores(folder, level, chance)
            mechanism(folder, level, chance, classes)
            maps(folder, [number, 1, 0], classes, early=[0, 1, 0], final=[1, 1, 0])
    directions(root / "teachers" / TEACHER, classes)
    teacher_run(root / "teachers" / TEACHER)
    unfinished(suite / "crd-s1")
    (suite / "broken").mkdir(parents=True)
    (suite / "broken" / "run.json").write_text("{")
    return suite
