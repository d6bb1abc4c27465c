"""The formats: ONNX, torch.export, safetensors, folders for timm and the Hub. Each comes with lines that use it."""
# B batch, H × W pixels

import copy
import importlib
import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from antishortcut.deployment.verify import SMALLEST, Exported, ExportModule, OpenedRun, as_tuple, library_errors
from antishortcut.errors import UserError
from antishortcut.models import build, load_weights, reuse_classifier
from antishortcut.models.reused_classifier import reused
from antishortcut.run_dir import write_json
from antishortcut.teachers.trajectory import cpu_tensors

EXTRA = {"onnx": ("onnx", "onnxscript", "onnxruntime")}  # modules of antishortcut[export], by format
INSTEAD = "--to safetensors gives its weights"


@dataclass(frozen=True)
class WrittenModel:
    """A network in a folder."""

    run: Exported  # the network as read from the files
    load: tuple[str, ...]  # lines of Python that load it
    use: tuple[str, ...]  # lines that then use it on an `image`
    library: str  # needed to use it
    preprocessing: str = "inside: it takes raw images"  # whether resizing and normalisation are part of it
    recipe: Mapping[str, Any] = field(default_factory=dict)  # the student of a recipe that starts from it


NAMES = 'json.load(open("export.json"))["names"]'  # of classes, in lines of Python for the card


def to_onnx(opened: OpenedRun, place: Path, embedding: bool) -> WrittenModel:
    """model.onnx, any batch size; of segmentation any image size."""
    names = output_names(opened, embedding)
    settings = {"dynamo": True, "input_names": ["image"], "output_names": names, "verbose": False}
    program = _traced(opened, embedding, torch.onnx.export, **settings)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # paths of source files on this machine
    if opened.names:
        program.model.metadata_props["classes"] = json.dumps(opened.names)
    program.model.metadata_props["shorter_side"] = str(opened.shorter_side)
    with library_errors(f"ONNX Runtime does not load {opened.run.model.name}", INSTEAD):
        program.save(place / "model.onnx")
        session = onnx_session(place / "model.onnx", torch.get_num_threads())
    return WrittenModel(
        run=lambda image: [torch.from_numpy(output) for output in session.run(names, {"image": image.numpy()})],
        load=(
            "import json, numpy as np, onnxruntime",
            "from PIL import Image, ImageOps",
            'student = onnxruntime.InferenceSession("model.onnx")',
        ),
        use=_onnx_use(opened, names),
        library="onnx",
    )


def _picture(opened: OpenedRun) -> tuple[str, ...]:
    """Lines that prepare a file of the user's as the images were that it was scored on."""
    side, shorter = opened.side, opened.shorter_side
    crop = (
        f"picture = ImageOps.cover(picture, ({shorter}, {shorter}), Image.Resampling.BILINEAR)  # its shorter side",
        f"left, top = (picture.width - {side}) // 2, (picture.height - {side}) // 2",
        f"picture = picture.crop((left, top, left + {side}, top + {side}))",
    )
    return (
        'picture = Image.open("photo.jpg").convert("RGB")  # yours',
        *(() if opened.maps else crop),
        "image = np.asarray(picture, np.float32).transpose(2, 0, 1)[None] / 255  # (1, 3, H, W), RGB in [0, 1]",
    )


def _torch_use(opened: OpenedRun, call: Sequence[str], names: str = NAMES, bare: bool = False) -> tuple[str, ...]:
    """From a file of the user's to names of classes. call: lines from image to logits; names: where the classes are.

    bare: a network without our wrapper, which resizes images where it takes one size alone.
    """
    size = opened.network.size or opened.side
    resize = f"image = torch.nn.functional.interpolate(image, ({size}, {size}), mode='bilinear', antialias=True)"
    show: tuple[str, ...] = ("print(embedding.shape)",)
    if opened.classes:
        show = (f"names = {names if opened.names else f'[str(number) for number in range({opened.classes})]'}",)
    if opened.classes and opened.maps:
        show += ("for number, pixels in zip(*logits.argmax(1).unique(return_counts=True)):",)
        show += ('    print(f"{names[number]} {pixels / logits[0, 0].numel():.1%}")',)
    elif opened.classes:
        show += ("top = logits[0].softmax(0).topk(min(3, len(names)))",)
        show += ("for confidence, number in zip(top.values.tolist(), top.indices.tolist()):",)
        show += ('    print(f"{names[number]} {confidence:.1%}")',)
    return (
        *(("import json",) if opened.names and names == NAMES else ()),
        "import numpy as np",
        "from PIL import Image, ImageOps",
        *_picture(opened),
        "image = torch.from_numpy(image)",
        *((resize,) if bare and size != opened.side and not opened.maps else ()),
        *call,
        *show,
    )


def _onnx_use(opened: OpenedRun, outputs: list[str]) -> tuple[str, ...]:
    """The same without torch."""
    known = 'json.loads(student.get_modelmeta().custom_metadata_map["classes"])'
    classes = (f"names = {known if opened.names else f'[str(number) for number in range({opened.classes})]'}",)
    show: tuple[str, ...] = ("print(embedding.shape)",)
    if opened.maps:
        show = (*classes, "for number, pixels in zip(*np.unique(logits.argmax(1), return_counts=True)):")
        show += ('    print(f"{names[number]} {pixels / logits[0, 0].size:.1%}")',)
    elif opened.classes:
        show = (*classes, "confidence = np.exp(logits[0] - logits[0].max())", "confidence /= confidence.sum()")
        show += ("for number in confidence.argsort()[:-4:-1]:",)
        show += ('    print(f"{names[number]} {confidence[number]:.1%}")',)
    return (
        *_picture(opened),
        f'{", ".join(outputs)}{"," * (len(outputs) == 1)} = student.run({json.dumps(outputs)}, {{"image": image}})',
        *show,
    )


def onnx_session(path: Path, threads: int) -> Any:
    """ONNX Runtime on the CPU."""
    onnxruntime = require("onnx")["onnxruntime"]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def to_torch(opened: OpenedRun, place: Path, embedding: bool) -> WrittenModel:
    """model.pt2, a torch.export program that needs nothing but torch."""
    program = _traced(opened, embedding, torch.export.export, strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of source files on this machine
    with (
        library_errors(f"torch.export does not save {opened.run.model.name}", INSTEAD),
        warnings.catch_warnings(action="ignore"),
    ):
        torch.export.save(program, data := io.BytesIO())
        (place / "model.pt2").write_bytes(data.getbuffer())  # on a full disk torch would abort the process
        loaded = torch.export.load(place / "model.pt2").module()
    return WrittenModel(
        run=lambda image: as_tuple(loaded(image)),
        load=("import torch", 'student = torch.export.load("model.pt2").module()'),
        use=_torch_use(opened, [f"{', '.join(output_names(opened, embedding))} = student(image)"]),
        library="torch",
    )


def to_safetensors(opened: OpenedRun, place: Path, embedding: bool) -> WrittenModel:
    """model.safetensors: the bare network's weights under its own names, as timm or torchvision have them."""
    if embedding:
        raise UserError("--embedding is for onnx and torch; with safetensors, the loaded network gives both")
    with library_errors(f"safetensors does not save {opened.run.model.name}", "nothing was written"):
        data = save(cpu_tensors(opened.bare), metadata={"format": "pt"})
    (place / "model.safetensors").write_bytes(data)  # the library's own writer hides errors of the disk
    model, classifier = opened.run.model, reused(opened.network)
    output = output_names(opened, False)[0]
    network = build(model.name, opened.classes, image_size=opened.side, **model.build_options)
    options = "".join(f", {key}={json.dumps(value)}" for key, value in model.build_options.items())
    recipe = {"name": model.name, **model.build_options, "weights": "model.safetensors"}
    load = [
        "from antishortcut.models import build, load_weights",
        f"student = build({json.dumps(model.name)}, {opened.classes}, image_size={opened.side}{options}).eval()",
    ]
    if classifier is not None:
        network, recipe = reuse_classifier(network, opened.classes, classifier), {}  # a recipe's has its own classifier
        load += [
            "from antishortcut.models.reused_classifier import ClassifierSettings, reuse_classifier",
            f"student = reuse_classifier(student, {opened.classes}, {classifier!r}).eval()",
        ]
    load_weights(network.eval(), place / "model.safetensors")
    return WrittenModel(
        run=lambda image: [getattr(network(image), output)],
        load=(*load, 'load_weights(student, "model.safetensors")'),
        use=("import torch", *_torch_use(opened, [f"{output} = student(image).{output}"])),
        library="antishortcut",
        preprocessing="inside the network these lines make; weights loaded otherwise want mean and std applied first",
        recipe=recipe,
    )


def to_timm(opened: OpenedRun, place: Path, embedding: bool) -> WrittenModel:
    """config.json and model.safetensors, as timm saves its own models."""
    name, network = opened.run.model.name, opened.network
    if not name.startswith("timm:"):
        raise UserError(f"{name} is not a timm model, so timm cannot load it: --to onnx, torch or safetensors will do")
    if reused(network) is not None:
        raise UserError(f"{name} ends in its teacher's classifier here, so timm cannot load it: use another --to")
    if embedding:
        raise UserError("--embedding is for onnx and torch; with timm, use forward_features and forward_head")
    import timm
    from timm.models import save_for_hf

    module = copy.deepcopy(opened.bare).to(memory_format=torch.contiguous_format)  # as safetensors wants them
    known = getattr(module, "pretrained_cfg", {})
    config = {key: known[key] for key in ("first_conv", "classifier") if known.get(key) is not None}
    config |= _pretrained_cfg(opened) | {"fixed_input_size": bool(known.get("fixed_input_size"))}  # built for that size
    with library_errors(f"timm does not load what it saved of {name}", INSTEAD):
        save_for_hf(
            module, str(place), model_config=_labels(opened) | {"pretrained_cfg": config}, safe_serialization=True
        )
        (place / "model.safetensors").chmod((place / "config.json").stat().st_mode)  # the library makes it private
        loaded = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    return WrittenModel(
        run=lambda image: [loaded((network.resized(image) - network.mean) / network.std)],
        load=("import timm, torch", 'student = timm.create_model("local-dir:.", pretrained=True).eval()'),
        use=_torch_use(
            opened,
            (
                'mean, std = (torch.tensor(student.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))',
                f"{output_names(opened, False)[0]} = student((image - mean) / std)",
            ),
            'student.pretrained_cfg["label_names"]',
            bare=True,
        ),
        library="timm",
        preprocessing="not inside: apply mean and std first",
    )


def to_hub(opened: OpenedRun, place: Path, embedding: bool) -> WrittenModel:
    """config.json and model.safetensors as the Hugging Face Hub has them, for timm if the network is its, or `load`."""
    if embedding:
        raise UserError("--embedding is for onnx and torch; of a hub folder, load(...).network gives both")
    name = opened.run.model.name
    if name.startswith("timm:") and reused(opened.network) is None:
        return to_timm(opened, place, embedding)
    written = to_safetensors(opened, place, embedding)
    config = {"architecture": name, "num_classes": opened.classes, "pretrained_cfg": _pretrained_cfg(opened)}
    write_json(place / "config.json", config | _labels(opened))
    return replace(
        written,
        load=("import antishortcut, torch", 'student = antishortcut.load(".")'),
        use=_torch_use(opened, [f"{output_names(opened, False)[0]} = student(image)"], "student.classes"),
        preprocessing="inside what antishortcut.load gives; weights loaded otherwise want mean and std applied first",
    )


def _pretrained_cfg(opened: OpenedRun) -> dict[str, Any]:
    """The preprocessing, as timm writes it down."""
    side = opened.network.size or opened.side
    return {
        "num_classes": opened.classes,
        "input_size": [3, side, side],
        "interpolation": "bilinear",
        "crop_pct": round(1 / opened.margin, 3),
        "crop_mode": "center",
        "mean": channels(opened.network.mean),
        "std": channels(opened.network.std),
    }


def _labels(opened: OpenedRun) -> dict[str, list[str]]:
    return {"label_names": list(opened.names)} if opened.names else {}


Writer = Callable[[OpenedRun, Path, bool], WrittenModel]
FORMATS: dict[str, Writer] = {
    "onnx": to_onnx,
    "safetensors": to_safetensors,
    "torch": to_torch,
    "timm": to_timm,
    "hub-folder": to_hub,
}


def require(form: str) -> dict[str, Any]:
    """The modules a format needs besides the package, imported."""
    try:
        return {name: importlib.import_module(name) for name in EXTRA.get(form, ())}
    except ImportError as error:
        raise UserError(f"--to {form} needs {error.name}: pip install 'antishortcut[export]'") from None


def output_names(opened: OpenedRun, embedding: bool) -> list[str]:
    """A network without a classifier gives its embedding alone."""
    if not opened.classes:
        return ["embedding"]
    return ["logits", "embedding"] if embedding else ["logits"]


def channels(value: Tensor) -> list[float]:
    """One number per channel."""
    return [round(float(number), 6) for number in value.flatten()]


def _traced(opened: OpenedRun, embedding: bool, trace: Callable[..., Any], **settings: Any) -> Any:
    """A network traced for any batch size; for segmentation also for any height and width."""
    sizes = {0: torch.export.Dim("batch", min=1)}
    if opened.maps:
        sizes |= {at: torch.export.Dim(side, min=SMALLEST) for at, side in ((2, "height"), (3, "width"))}
    what = "batch size, height and width" if opened.maps else "batch size"
    module, example = ExportModule(opened.network, embedding), (opened.images[:2],)
    with (
        library_errors(f"torch.export cannot follow {opened.run.model.name} for any {what}", INSTEAD),
        warnings.catch_warnings(action="ignore"),
        torch.no_grad(),
    ):
        return trace(module, example, dynamic_shapes={"image": sizes}, **settings)
