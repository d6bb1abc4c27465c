"""The model card: a README.md as the Hugging Face Hub reads it, from the run's own files alone."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from antishortcut.config.recipe import Run
from antishortcut.deployment.formats import WrittenModel
from antishortcut.deployment.int8 import table_rows
from antishortcut.deployment.verify import OpenedRun, short_name
from antishortcut.errors import UserError, one_line, plural
from antishortcut.evaluation import EVALUATIONS, FOLDER
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory

COST, CORRUPTIONS = "cost", "corruptions"  # evaluations: of latency, and with errors for scores
Scores = Mapping[str, Mapping[str, Any]]
CardScore = tuple[str, str, float, Any, str]
MECHANISM, SHOWN = "mechanism", ("cos_final", "cos_early", "projection", "projection_random")
KINDS = {"miou": "mean_iou"}  # as the Hub calls metrics
REUSED = (
    "its teacher's, used at inference: the student's last map → projector → mean → the teacher's linear layer, frozen; "
    "projector and classifier are part of this network and of its parameters"
)
HEAD = ("set", "score", "value", "images", "source")  # of a CardScore


@dataclass(frozen=True)
class Teacher:
    """A student's teacher, where its folder is available."""

    run: Run
    parameters: int | None
    size: int  # bytes of its final weights


def find_teacher(folder: RunDir, run: Run, runs: Path | None = None) -> Teacher | None:
    """`runs`: the folder that has teachers/, by default two levels above the run."""
    if run.teacher is None:
        return None
    home = RunDir((runs or folder.path.resolve().parent.parent) / "teachers" / run.teacher)
    try:
        teacher, _ = home.read()
        size = (home.snapshots / Trajectory(home).entry("final")["file"]).stat().st_size
        return Teacher(teacher, home.result().get("parameters"), size)
    except (UserError, OSError, KeyError):  # missing or incomplete
        return None


def model_card(opened: OpenedRun, written: WrittenModel, record: Mapping[str, Any], teacher: Teacher | None) -> str:
    run, model = opened.run, opened.run.model
    title = f"{model.name}, a teacher, state {opened.state}"
    if run.kind == "distill":
        start = f"trained on {short_name(run.data.name)}"
        start = f"distilled from {teacher.run.model.name if teacher else run.teacher}" if run.roles else start
        title = f"{model.name} {start} ({run.method})"
    scores = _scores(opened)
    rows = list(_rows(opened, scores))
    own = str(opened.folder.result()["set"])  # the test set that the evaluation `clean` scores
    scored = {*scores, "scenes", *(["clean"] if own in scores else [])}  # scenes are pictures, not scores
    scored.add(FOLDER)  # which folders there might be is not known
    missing = ", ".join(f"`{name}`" for name in EVALUATIONS if name not in scored)
    begun = f" and the weights it started from ({model.name})" if model.pretrained or model.weights else ""
    begun += " and its teacher, whose classifier is among them" if record["teachers_classifier"] else ""
    gives = f"{'each pixel' if opened.maps else 'any image'} one of {opened.classes} classes, whatever it shows"
    limits = [
        f"It gives {gives if opened.classes else 'an embedding of any image, and no class'}.",
        "The scores hold for images like those of the sets they name, and for this run: another seed gives others.",
        f"It was trained on {'crops' if opened.maps else 'images'} of {opened.side} × {opened.side} pixels.",
    ]
    if opened.sets is None:
        limits.append("Its data were not available at export: it was checked on noise.")
    if opened.classes and not opened.names and not run.data.name.startswith("unlabelled:"):
        limits.append("The names of its classes are not known.")
    sections = {
        "Scores": [
            *_table(HEAD, [(row[0], _label(*row[:2]), f"{row[2]:.4f}", _number(row[3], ","), row[4]) for row in rows]),
            "",
            f"Not measured: {missing}. Measure them with `asd evaluate --on`." if missing else "All were measured.",
        ],
        "Size and latency": _cost(opened, record, teacher, scores.get(COST, {})),
        **({"int8": _int8(record["int8"])} if "int8" in record else {}),
        "How to use": [
            "```python", *written.load, *written.use, "```", "", f"Preprocessing is {record['preprocessing']}."
        ],
        "Limits": [f"- {line}" for line in limits],
        "Licence": [
            f"The run names none. These weights were learned from {plain(short_name(run.data.name))}: look up the "
            f"terms of those images{plain(begun)}. The program that trained them, antishortcut, is under Apache-2.0."
        ],
    }  # fmt: skip
    lines = ["---", _metadata(opened, written, title, rows).to_yaml(), "---", "", f"# {plain(title)}", ""]
    lines += _table(("", ""), _facts(opened, record, teacher).items())
    for name, section in sections.items():
        lines += ["", f"## {name}", "", *section]
    return "\n".join(lines) + "\n"


def _metadata(opened: OpenedRun, written: WrittenModel, title: str, rows: Sequence[CardScore]) -> ModelCardData:
    """What the Hub reads; each score once, the evaluation's rather than training's."""
    run, task = opened.run, "image-segmentation" if opened.maps else "image-classification"
    data = one_line(short_name(run.data.name))
    metrics = {row[:2]: round(row[2], 6) for row in rows}
    results = [
        EvalResult(task, data, data, KINDS.get(name, one_line(name)), value, dataset_split=split, metric_name=name)
        for (split, name), value in ((tuple(map(one_line, key)), value) for key, value in metrics.items())
    ]
    return ModelCardData(
        library_name=written.library,
        pipeline_tag=task,
        license="unknown",
        tags=["antishortcut", *(["knowledge-distillation", run.method] if run.roles else [])],
        model_name=one_line(title),
        eval_results=results or None,
    )


def _facts(opened: OpenedRun, record: Mapping[str, Any], teacher: Teacher | None) -> dict[str, str]:
    run, data, optim, check = opened.run, opened.run.data, opened.run.optim, record["check"]
    shorter, side = record["shorter_side"], record["resized_to"]
    crop = f"; of a file, make the shorter side {shorter} and cut the centre out" if shorter else ", whole scenes"
    resize = f"; resized to {side} × {side} bilinearly" if side else ""
    upsample = ", to be brought to the image's size bilinearly before argmax" if opened.maps else ""
    names = f": {', '.join(opened.names[:12])}{', … (all in export.json)' * (len(opened.names) > 12)}"
    limits = {"train_limit": data.train_limit, "test_limit": data.test_limit}
    settings = {key: value for key, value in {**limits, **data.options}.items() if value is not None}
    start = ", from pretrained weights" * run.model.pretrained + ", from your own weights" * bool(run.model.weights)
    facts = {
        "network": f"{run.model.name}, {record['parameters']:,} parameters",
        **({"classifier": REUSED} if record["teachers_classifier"] else {}),
        "input": f"RGB in [0, 1], {record['type']}, {_shape(record['input']['image'])}{crop}",
        "preprocessing": f"{record['preprocessing']}; mean {record['mean']}, std {record['std']}{resize}",
        "output": "; ".join(f"{name} {_shape(shape)}" for name, shape in record["output"].items()) + upsample,
        "classes": f"{opened.classes}{names if opened.names else ''}",
        "data": f"{_with_settings(short_name(data.name), settings)}, fingerprint {run.fingerprint}",
    }
    if run.kind == "distill":
        name = f"{teacher.run.model.name}, {_length(teacher.run)}, " if teacher else ""
        states = ", ".join(f"{role} = {state}" if role != state else role for role, state in run.roles.items())
        facts["teacher"] = f"{name}hash {run.teacher}, states {states or 'none'}" if run.teacher else "none"
        facts["method"] = _with_settings(run.method, run.options)
    return facts | {
        "training": f"{_length(run)}, {optim.name}, learning rate {optim.lr:g} ({optim.schedule}), "
        f"batch {optim.batch}, augmentation {data.augment}{start}",
        "seeds": f"training {run.seed}, data {data.seed}" + (f", teacher {teacher.run.seed}" if teacher else ""),
        "run": f"{run.suite}/{run.name}-s{run.seed}, hash {run.hash}, state {opened.state}",
        "checked": f"against the original on {check['images']} of {' and '.join(map(_shape, check['sizes']))}: "
        f"the largest difference is {check['largest']:.1e} of the largest value ({check['allowed']:g} is allowed)",
    }


def _with_settings(name: str, settings: Mapping[str, Any]) -> str:
    return ", ".join([name, *(f"{key} {value}" for key, value in settings.items())])


def _length(run: Run) -> str:
    return "trained elsewhere" if run.kind == "imported" else run.length


def _scores(opened: OpenedRun) -> Scores:
    """The scores of this very state."""
    scores, mark = opened.folder.scores(), "" if opened.state == "final" else f"@{opened.state}"
    return {name.removesuffix(mark): scores[name] for name in scores if "".join(name.partition("@")[1:]) == mark}


def _rows(opened: OpenedRun, scores: Scores) -> Iterator[CardScore]:
    """The score at the end of training, then all scores of every set."""
    if opened.state != "final":
        entry = Trajectory(opened.folder).entry(opened.state)
        for metric in (metric for metric in ("accuracy", "miou") if metric in entry):
            yield "evaluated", metric, entry[metric], entry.get("images"), "while training"
    else:
        result = opened.folder.result()
        name, value = opened.folder.primary_metric()
        yield str(result["set"]), name, value, result["last"].get("images"), "at the end of training"
    for name, score in scores.items():
        source, reference = str(score.get("source", "the data's own")), score.get("reference")
        source += f", relative to {reference.get('run', '?')}" if isinstance(reference, dict) else ""
        values = score["values"] if name != COST else {}
        if name == MECHANISM:  # the report has all
            space = next((space for space in ("aligned", "raw") if space in values), "")
            values = {space: {key: value for key, value in values.get(space, {}).items() if key in SHOWN}}
        for key, value in values.items():
            inner = value if isinstance(value, dict) else {"": value}  # of the mechanism: measures by space
            for measure, number in inner.items():
                if _is_number(number):
                    yield name, f"{key} {measure}".strip(), number, score.get("count"), source


def _label(name: str, score: str) -> str:
    """Errors on corruptions say at which severity."""
    return EVALUATIONS[CORRUPTIONS].metrics.get(score, (score, None))[0] if name == CORRUPTIONS else score


def _cost(opened: OpenedRun, record: Mapping[str, Any], teacher: Teacher | None, score: Mapping[str, Any]) -> list[str]:
    values = score.get("values", {})
    files = ", ".join(f"{name} {megabytes(size)}" for name, size in record["files"].items())
    rows = [(opened.run.model.name, record["parameters"], files, values.get("ms"))]
    if teacher:
        name = f"its teacher {teacher.run.model.name}"
        rows.append((name, teacher.parameters, megabytes(teacher.size), values.get("teacher_ms")))
    cells = [(name, _number(count, ","), size, _number(ms, ".3g", " ms")) for name, count, size, ms in rows]
    text = "Latency was not measured (`asd evaluate --on cost`)."
    if _is_number(values.get("ms")):
        text = f"One image at a time, median of {score['count']}, PyTorch on {plain(score['machine'])}."
    return [*_table(("", "parameters", "weights", "one image"), cells), "", text]


def _int8(int8: Mapping[str, Any]) -> list[str]:
    """What the quantised copy costs, set by set."""
    head, rows = table_rows(int8)
    cells = [[name, *(_number(value, ".4g") for value in values)] for name, *values in rows]
    text = (
        f"`model.int8.onnx` takes the same images. It was quantised statically (weights per channel) and calibrated on "
        f"{plural(int8['calibration']['images'], 'training image')}. One image at a time, median of {int8['rounds']}, "
        f"{plain(int8['machine'])}."
    )
    return [*_table(head, cells), "", text, *(["", plain(int8["warning"])] if int8["warning"] else [])]


def plain(text: str) -> str:
    """Text in one line that stays in its table cell and is no HTML."""
    return html.escape(one_line(text), quote=False).replace("|", "\\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(map(plain, row)) + " |" for row in (head, ["---"] * len(head), *rows)]


def _shape(shape: Sequence[Any]) -> str:
    return " × ".join(map(str, shape))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if _is_number(value) else "–"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size / 1e3:.1f} kB"
