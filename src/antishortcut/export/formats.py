"""A network as files of others: ONNX, torch.export, safetensors, a folder that timm loads. Each says how to use it."""
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
from antishortcut.export.check import Again, Alone, as_tuple, saying
from antishortcut.export.opened import SMALLEST, Opened
from antishortcut.models import FeatureExtractor, build, load_weights
from antishortcut.teachers import tensors_of

EXTRA = {"onnx": ("onnx", "onnxscript", "onnxruntime")}  # what antishortcut[export] brings, by format
Shapes = dict[str, dict[int, Any]]  # which dimensions of the input are free
OTHER = "--to safetensors gives its weights"


@dataclass(frozen=True)
class Written:
    """What was put into a folder."""

    again: Again  # reads it from there
    load: tuple[str, ...]  # lines of Python that load it
    use: tuple[str, ...]  # and that go on to use it on an `image`
    inside: str  # whether resizing and normalisation are part of it
    library: str  # what is needed to use it
    recipe: Mapping[str, Any] = field(default_factory=dict)  # a student of another recipe that begins with it
    note: str = ""  # where it takes scenes of one size alone, why


def to_onnx(opened: Opened, place: Path, embedding: bool) -> Written:
    """model.onnx, any batch size; of segmentation any image size."""
    onnxruntime = require("onnx")["onnxruntime"]
    names = outputs(embedding)

    def trace(shapes: Shapes) -> Any:
        return torch.onnx.export(
            Alone(opened.network, embedding),
            (opened.traced(),),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=["image"],
            output_names=names,
            verbose=False,
        )

    program, note = _followed(opened, trace)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # where every line of source lies on this machine
    path = place / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with saying(f"ONNX Runtime does not load {opened.run.model.name}", OTHER):
        program.save(path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def again(image: Tensor) -> list[Tensor]:
        return [torch.from_numpy(given) for given in session.run(names, {"image": image.numpy()})]

    return Written(
        again=again,
        load=(
            "import numpy as np, onnxruntime",
            'student = onnxruntime.InferenceSession("model.onnx")',
        ),
        use=(
            f"image = np.random.rand({example(opened)}).astype(np.float32)  # yours: RGB in [0, 1]",
            f'{", ".join(names)}{"" if embedding else ","} = student.run({json.dumps(names)}, {{"image": image}})',
            "print(logits.argmax(1))",
        ),
        inside="inside: it takes raw images",
        library="onnx",
        note=note,
    )


def to_torch(opened: Opened, place: Path, embedding: bool) -> Written:
    """model.pt2, a torch.export program that needs nothing but torch."""

    def trace(shapes: Shapes) -> Any:
        return torch.export.export(
            Alone(opened.network, embedding), (opened.traced(),), dynamic_shapes=shapes, strict=False
        )

    program, note = _followed(opened, trace)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where every line of source lies on this machine
    with saying(f"torch.export does not keep {opened.run.model.name}", OTHER), _quiet():
        torch.export.save(program, data := io.BytesIO())
        (place / "model.pt2").write_bytes(data.getbuffer())  # on a full disk torch would abort the process
        loaded = torch.export.load(place / "model.pt2").module()
    return Written(
        again=lambda image: as_tuple(loaded(image)),
        load=("import torch", 'student = torch.export.load("model.pt2").module()'),
        use=(
            f"image = torch.rand({example(opened)})  # yours: RGB in [0, 1]",
            f"{', '.join(outputs(embedding))} = student(image)",
            "print(logits.argmax(1))",
        ),
        inside="inside: it takes raw images",
        library="torch",
        note=note,
    )


def to_safetensors(opened: Opened, place: Path, embedding: bool) -> Written:
    """model.safetensors: the bare network's weights under its own names, as timm or torchvision have them."""
    _no_embedding(embedding, "safetensors", "the network loaded gives both")
    with saying(f"safetensors does not keep {opened.run.model.name}", "nothing was written"):
        data = save(_plain(_bare(opened)), metadata={"format": "pt"})
    (place / "model.safetensors").write_bytes(data)  # the library's error would not be one of the disk
    model = opened.run.model
    network = build(model.name, opened.classes, image_size=opened.side, **model.given).eval()
    load_weights(network, place / "model.safetensors")
    options = "".join(f", {key}={json.dumps(value)}" for key, value in model.given.items())
    return Written(
        again=lambda image: [network(image).logits],
        load=(
            "from antishortcut.models import build, load_weights",
            f"student = build({json.dumps(model.name)}, {opened.classes}, image_size={opened.side}{options}).eval()",
            'load_weights(student, "model.safetensors")',
        ),
        use=(
            "import torch",
            f"logits = student(torch.rand({example(opened)})).logits  # yours: RGB in [0, 1]",
        ),
        inside="inside the network these lines make; weights loaded otherwise want mean and std applied first",
        library="antishortcut",
        recipe={"name": model.name, **model.given, "weights": "model.safetensors"},
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
        "mean": colour(network.mean),
        "std": colour(network.std),
    }
    labels = {"label_names": list(opened.names)} if opened.names else {}
    with saying(f"timm does not load what it saved of {name}", OTHER):
        save_for_hf(module, str(place), model_config=labels | {"pretrained_cfg": settings}, safe_serialization=True)
        loaded = timm.create_model(f"local-dir:{place}", pretrained=True).eval()

    def again(image: Tensor) -> list[Tensor]:
        return [loaded((network.resized(image) - network.mean) / network.std)]

    return Written(
        again=again,
        load=("import timm, torch", 'student = timm.create_model("local-dir:.", pretrained=True).eval()'),
        use=(
            f"image = torch.rand(1, 3, {side}, {side})  # yours: RGB in [0, 1]",
            'mean, std = (torch.tensor(student.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))',
            "print(student((image - mean) / std).argmax(1))",
        ),
        inside="not inside: apply mean and std first",
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
    found = {}
    for name in EXTRA.get(form, ()):
        try:
            found[name] = importlib.import_module(name)
        except ImportError as error:
            why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
            needs = f"--to {form} needs {error.name or name}, which {why}"
            raise UserError(f"{needs}: pip install 'antishortcut[export]'") from None
    return found


def outputs(embedding: bool) -> list[str]:
    return ["logits", "embedding"] if embedding else ["logits"]


def example(opened: Opened) -> str:
    """The size of an image of one's own."""
    return f"1, 3, {opened.side}, {opened.side}"


def colour(value: Tensor) -> list[float]:
    """One number a channel, as a person writes it."""
    return [round(float(one), 6) for one in value.flatten()]


def _followed(opened: Opened, trace: Callable[[Shapes], Any]) -> tuple[Any, str]:
    """A network traced for any batch size; where it gives maps for any height and width too, or a note that it is not.

    A network of somebody's own may be one that cannot be followed, in any way.
    """
    batch = {0: torch.export.Dim("batch", min=1)}
    sides = {at: torch.export.Dim(side, min=SMALLEST) for at, side in ((2, "height"), (3, "width"))}
    name, note = opened.run.model.name, ""
    if opened.maps:
        try:
            with saying(f"torch.export cannot follow {name} for any height and width", ""), _quiet():
                opened.network(opened.tried(free=True)[-1])  # one that takes no other size would be traced all the same
                return trace({"image": batch | sides}), ""
        except UserError as error:
            note = str(error).removesuffix("; ")
    with saying(f"torch.export cannot follow {name} for any batch size", OTHER), _quiet():
        return trace({"image": batch}), note


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tracer's talk."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _no_embedding(wanted: bool, form: str, instead: str) -> None:
    if wanted:
        raise UserError(f"--embedding is for onnx and torch; with {form}, {instead}")


def _bare(opened: Opened) -> nn.Module:
    """The network without what we put around it."""
    body = opened.network.body
    return body.module if isinstance(body, FeatureExtractor) else body


def _plain(module: nn.Module) -> dict[str, Tensor]:
    return tensors_of(module)
