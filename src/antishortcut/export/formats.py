"""The formats: ONNX, torch.export, safetensors, a folder that timm loads. Each comes with lines that use it."""
# B batch, H × W pixels

from __future__ import annotations

import copy
import importlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.export.verify import SMALLEST, Exported, Opened, Outputs, as_tuple, reworded
from antishortcut.models import FeatureExtractor, build, load_weights
from antishortcut.teachers.trajectory import cpu_tensors

EXTRA = {"onnx": ("onnx", "onnxscript", "onnxruntime")}  # modules of antishortcut[export], by format
Shapes = dict[str, dict[int, Any]]  # which dimensions of the input are free
OTHER = "--to safetensors gives its weights"


@dataclass(frozen=True)
class Written:
    """A network in a folder."""

    run: Exported  # the network as read from the files
    load: tuple[str, ...]  # lines of Python that load it
    use: tuple[str, ...]  # lines that then use it on an `image`
    preprocessing: str  # whether resizing and normalisation are part of it
    library: str  # needed to use it
    recipe: Mapping[str, Any] = field(default_factory=dict)  # the student of a recipe that starts from it
    note: str = ""  # why it takes scenes of one size only


def to_onnx(opened: Opened, place: Path, embedding: bool) -> Written:
    """model.onnx, any batch size; of segmentation any image size."""
    onnxruntime = require("onnx")["onnxruntime"]
    names = outputs(embedding)

    def trace(shapes: Shapes) -> Any:
        return torch.onnx.export(
            Outputs(opened.network, embedding),
            (opened.traced(),),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=["image"],
            output_names=names,
            verbose=False,
        )

    program, note = _traced(opened, trace)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # paths of source files on this machine
    path = place / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with reworded(f"ONNX Runtime does not load {opened.run.model.name}", OTHER):
        program.save(path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    return Written(
        run=lambda image: [torch.from_numpy(output) for output in session.run(names, {"image": image.numpy()})],
        load=(
            "import numpy as np, onnxruntime",
            'student = onnxruntime.InferenceSession("model.onnx")',
        ),
        use=(
            f"image = np.random.rand(1, 3, {opened.side}, {opened.side}).astype(np.float32)  # yours: RGB in [0, 1]",
            f'{", ".join(names)}{"" if embedding else ","} = student.run({json.dumps(names)}, {{"image": image}})',
            "print(logits.argmax(1))",
        ),
        preprocessing="inside: it takes raw images",
        library="onnx",
        note=note,
    )


def to_torch(opened: Opened, place: Path, embedding: bool) -> Written:
    """model.pt2, a torch.export program that needs nothing but torch."""

    def trace(shapes: Shapes) -> Any:
        return torch.export.export(
            Outputs(opened.network, embedding), (opened.traced(),), dynamic_shapes=shapes, strict=False
        )

    program, note = _traced(opened, trace)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of source files on this machine
    with reworded(f"torch.export does not keep {opened.run.model.name}", OTHER), _quiet():
        torch.export.save(program, data := io.BytesIO())
        (place / "model.pt2").write_bytes(data.getbuffer())  # on a full disk torch would abort the process
        loaded = torch.export.load(place / "model.pt2").module()
    return Written(
        run=lambda image: as_tuple(loaded(image)),
        load=("import torch", 'student = torch.export.load("model.pt2").module()'),
        use=(
            f"image = torch.rand(1, 3, {opened.side}, {opened.side})  # yours: RGB in [0, 1]",
            f"{', '.join(outputs(embedding))} = student(image)",
            "print(logits.argmax(1))",
        ),
        preprocessing="inside: it takes raw images",
        library="torch",
        note=note,
    )


def to_safetensors(opened: Opened, place: Path, embedding: bool) -> Written:
    """model.safetensors: the bare network's weights under its own names, as timm or torchvision have them."""
    _no_embedding(embedding, "safetensors", "the network loaded gives both")
    with reworded(f"safetensors does not keep {opened.run.model.name}", "nothing was written"):
        data = save(cpu_tensors(_bare(opened)), metadata={"format": "pt"})
    (place / "model.safetensors").write_bytes(data)  # the library's own writer hides errors of the disk
    model = opened.run.model
    network = build(model.name, opened.classes, image_size=opened.side, **model.build_options).eval()
    load_weights(network, place / "model.safetensors")
    options = "".join(f", {key}={json.dumps(value)}" for key, value in model.build_options.items())
    return Written(
        run=lambda image: [network(image).logits],
        load=(
            "from antishortcut.models import build, load_weights",
            f"student = build({json.dumps(model.name)}, {opened.classes}, image_size={opened.side}{options}).eval()",
            'load_weights(student, "model.safetensors")',
        ),
        use=(
            "import torch",
            f"logits = student(torch.rand(1, 3, {opened.side}, {opened.side})).logits  # yours: RGB in [0, 1]",
        ),
        preprocessing="inside the network these lines make; weights loaded otherwise want mean and std applied first",
        library="antishortcut",
        recipe={"name": model.name, **model.build_options, "weights": "model.safetensors"},
    )


def to_timm(opened: Opened, place: Path, embedding: bool) -> Written:
    """config.json and model.safetensors, as timm keeps its own models."""
    name = opened.run.model.name
    if not name.startswith("timm:"):
        raise UserError(f"{name} is not a timm model, so timm cannot load it: --to onnx, torch or safetensors will do")
    _no_embedding(embedding, "timm", "its forward_features and forward_head give it")
    import timm
    from timm.models import save_for_hf

    network = opened.network
    module = copy.deepcopy(_bare(opened)).to(memory_format=torch.contiguous_format)  # as safetensors wants them
    known = getattr(module, "pretrained_cfg", {})
    settings = {key: known[key] for key in ("first_conv", "classifier") if known.get(key) is not None}
    side = network.size or opened.side
    settings |= {
        "num_classes": opened.classes,
        "input_size": [3, side, side],
        "fixed_input_size": bool(known.get("fixed_input_size")),  # then timm makes it for that size
        "interpolation": "bilinear",
        "crop_pct": round(1 / opened.margin, 3),
        "crop_mode": "center",
        "mean": channels(network.mean),
        "std": channels(network.std),
    }
    labels = {"label_names": list(opened.names)} if opened.names else {}
    with reworded(f"timm does not load what it saved of {name}", OTHER):
        save_for_hf(module, str(place), model_config=labels | {"pretrained_cfg": settings}, safe_serialization=True)
        (place / "model.safetensors").chmod((place / "config.json").stat().st_mode)  # the library makes it private
        loaded = timm.create_model(f"local-dir:{place}", pretrained=True).eval()

    return Written(
        run=lambda image: [loaded((network.resized(image) - network.mean) / network.std)],
        load=("import timm, torch", 'student = timm.create_model("local-dir:.", pretrained=True).eval()'),
        use=(
            f"image = torch.rand(1, 3, {side}, {side})  # yours: RGB in [0, 1]",
            'mean, std = (torch.tensor(student.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))',
            "print(student((image - mean) / std).argmax(1))",
        ),
        preprocessing="not inside: apply mean and std first",
        library="timm",
    )


FORMATS: dict[str, Callable[[Opened, Path, bool], Written]] = {
    "onnx": to_onnx,
    "safetensors": to_safetensors,
    "torch": to_torch,
    "timm": to_timm,
}


def require(form: str) -> dict[str, Any]:
    """The modules a format needs besides the package, imported."""
    modules = {}
    for name in EXTRA.get(form, ()):
        try:
            modules[name] = importlib.import_module(name)
        except ImportError as error:
            why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
            needs = f"--to {form} needs {error.name or name}, which {why}"
            raise UserError(f"{needs}: pip install 'antishortcut[export]'") from None
    return modules


def outputs(embedding: bool) -> list[str]:
    return ["logits", "embedding"] if embedding else ["logits"]


def channels(value: Tensor) -> list[float]:
    """One number a channel."""
    return [round(float(number), 6) for number in value.flatten()]


def _traced(opened: Opened, trace: Callable[[Shapes], Any]) -> tuple[Any, str]:
    """A network traced for any batch size, and one for segmentation for any height and width, or a note why not."""
    batch = {0: torch.export.Dim("batch", min=1)}
    sides = {at: torch.export.Dim(side, min=SMALLEST) for at, side in ((2, "height"), (3, "width"))}
    name, note = opened.run.model.name, ""
    if opened.maps:
        try:
            with reworded(f"torch.export cannot follow {name} for any height and width", ""), _quiet():
                opened.network(opened.tried(any_size=True)[-1])  # a network of one size would be traced all the same
                return trace({"image": batch | sides}), ""
        except UserError as error:
            note = str(error).removesuffix("; ")
    with reworded(f"torch.export cannot follow {name} for any batch size", OTHER), _quiet():
        return trace({"image": batch}), note


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _no_embedding(embedding: bool, form: str, instead: str) -> None:
    if embedding:
        raise UserError(f"--embedding is for onnx and torch; with {form}, {instead}")


def _bare(opened: Opened) -> nn.Module:
    """The network without our wrapper."""
    body = opened.network.body
    return body.module if isinstance(body, FeatureExtractor) else body
