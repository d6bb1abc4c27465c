"""An int8 copy of model.onnx by ONNX Runtime's static quantisation, and what it costs: accuracy, latency, size."""
# N images, B batch

import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from antishortcut.data import Loader
from antishortcut.data.splits import limited
from antishortcut.deployment.formats import onnx_session, require
from antishortcut.deployment.verify import OpenedRun, library_errors
from antishortcut.evaluation import latency
from antishortcut.hardware import processor
from antishortcut.tasks import build_task
from antishortcut.types import AnySet, DataSplits, Features, Task

MODELS = {"float": "model.onnx", "int8": "model.int8.onnx"}
CALIBRATION, SEED, BATCH = 512, 0, 32  # training images, as many of every class as of any other; their draw; a batch
ERRORS = 2.0  # standard errors by which a loss must exceed the one on the first test set to be called larger
Run = Callable[[Tensor], Tensor]  # raw images → logits


def add_int8(
    opened: OpenedRun, place: Path, sets: DataSplits, more: Mapping[str, AnySet] | None = None
) -> dict[str, Any]:
    """Write model.int8.onnx beside model.onnx and compare the two on every test set of the data, and on `more` sets."""
    count = _quantize(opened, place, sets.train)
    runs = {form: partial(_logits, onnx_session(place / name, 1)) for form, name in MODELS.items()}
    side, task = sets.image_size, build_task(sets)
    scores = {name: compare(runs, images, side, task) for name, images in {**sets.tests, **(more or {})}.items()}
    image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    times = latency.interleaved({form: partial(run, image) for form, run in runs.items()})
    runtime = f"ONNX Runtime {require('onnx')['onnxruntime'].__version__}"
    return {
        "calibration": {"images": count, "seed": SEED},
        "metric": task.primary_metric,
        "sets": scores,
        "ms": {form: 1e3 * median(values) for form, values in times.items()},
        "rounds": len(times["int8"]),
        "machine": f"{processor()}, 1 thread, {runtime}",
        "bytes": {form: (place / name).stat().st_size for form, name in MODELS.items()},
        "warning": larger_losses(scores),
    }


def _quantize(opened: OpenedRun, place: Path, train: AnySet) -> int:
    """Weights per channel and activations in 8 bits; how many images calibrated it."""
    onnx = require("onnx")["onnx"]
    few = limited(train, CALIBRATION, SEED)
    loader = Loader.in_order(few, BATCH, opened.side, workers=0)
    what = f"ONNX Runtime cannot quantise {opened.run.model.name}"
    with library_errors(what, "leave --int8 out"), _quiet(), tempfile.TemporaryDirectory() as folder:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Images(CalibrationDataReader):  # type: ignore[misc]
            batches = loader.epoch(0)

            def get_next(self) -> dict[str, Any] | None:
                batch = next(self.batches, None)
                return None if batch is None else {"image": batch.image.numpy()}

        plain, folded = place / MODELS["float"], Path(folder) / "folded.onnx"
        quant_pre_process(plain, folded, skip_symbolic_shape=True)  # torch has written the shapes already
        quantize_static(
            folded,
            place / MODELS["int8"],
            Images(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,  # weights of 7 bits: sums of products overflow on CPUs without VNNI, and scores change
        )
        model = onnx.load(place / MODELS["int8"])
        onnx.helper.set_model_props(model, {each.key: each.value for each in onnx.load(plain).metadata_props})
        onnx.save(model, place / MODELS["int8"])
    return len(few)


@torch.no_grad()
def compare(runs: Mapping[str, Run], images: AnySet, side: int, task: Task) -> dict[str, Any]:
    """Scores of `float` and `int8` on a set, the share of equal predictions, and the standard error of the loss.

    That error is of the difference on the same images, from those that only one of the two gets right; None for maps.
    """
    counts: dict[str, Tensor] = {}
    same, only = 0.0, dict.fromkeys(runs, 0)  # images, or their shares, of one prediction; images one alone gets right
    for batch in Loader.in_order(images, task.eval_batch_size, side).epoch(0):
        logits = {form: run(batch.image) for form, run in runs.items()}
        for form, each in logits.items():
            counted = task.counts(Features(each, each), batch.label)
            counts[form] = counts[form] + counted if form in counts else counted
        one, other = (each.argmax(dim=1) for each in logits.values())  # (B,), or maps
        same += float((one == other).flatten(1).double().mean(dim=1).sum() if one.ndim > 1 else (one == other).sum())
        if not task.dense:
            right = [each == batch.label for each in (one, other)]
            only["float"] += int((right[0] & ~right[1]).sum())
            only["int8"] += int((right[1] & ~right[0]).sum())
    values = {form: task.scores(counted)[task.primary_metric] for form, counted in counts.items()}
    number, lost = len(images), only["float"] - only["int8"]
    error = None if task.dense else math.sqrt(sum(only.values()) - lost**2 / number) / number
    return {"images": number, **values, "same": same / number, "error": error}


def larger_losses(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """A sentence, if int8 loses more on another set than on the first by more than chance explains; else nothing."""
    (first, clean), *rest = scores.items()
    larger = []
    for name, score in rest:
        if score["error"] is not None:
            excess = score["float"] - score["int8"] - (clean["float"] - clean["int8"])
            if excess > ERRORS * math.hypot(score["error"], clean["error"]):
                larger.append(f"{score['float'] - score['int8']:.3f} on {name}")
    if not larger:
        return ""
    loss = clean["float"] - clean["int8"]
    return f"int8 loses {', '.join(larger)}, but {loss:.3f} on {first}: quantisation may have brought a shortcut back."


def table_rows(int8: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Head and rows of the comparison: every set, latency, size."""
    scores = int8["sets"].items()
    rows = [[f"{name}, {int8['metric']}", score["float"], score["int8"], score["same"]] for name, score in scores]
    rows.append(["ms an image", *int8["ms"].values(), None])
    rows.append(["MB", *(size / 1e6 for size in int8["bytes"].values()), None])
    return ["", *MODELS, "same prediction"], rows


def _logits(session: Any, image: Tensor) -> Tensor:
    return torch.from_numpy(session.run(["logits"], {"image": image.numpy()})[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's advice to people who call it themselves."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)
