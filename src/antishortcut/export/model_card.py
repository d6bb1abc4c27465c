"""The model card: a README.md as the Hugging Face Hub reads it, from the run's own files alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError, one_line
from antishortcut.evaluation import EVALUATIONS
from antishortcut.export.formats import Written
from antishortcut.export.verify import Opened, short
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory

COST = "cost"  # the evaluation of latency
MARKUP = re.compile(r"[\\`*\[\]~$<]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is none
Scores = Mapping[str, Mapping[str, Any]]


class Row(NamedTuple):
    """One score."""

    set: str
    score: str
    value: float
    images: Any
    source: str


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
        parameters = home.result().get("parameters")
    except (UserError, OSError, KeyError):  # missing or incomplete
        return None
    return Teacher(teacher, parameters if isinstance(parameters, int) else None, size)


def model_card(opened: Opened, written: Written, record: Mapping[str, Any], teacher: Teacher | None) -> str:
    scores = _scores(opened)
    rows = list(_rows(opened, scores))
    title = _title(opened, teacher)
    own = str(opened.folder.result().get("set"))  # the test set that the evaluation `clean` scores
    scored = {*scores, "scenes", *(["clean"] if own in scores else [])}  # scenes are pictures, not scores
    missing = ", ".join(f"`{name}`" for name in EVALUATIONS if name not in scored)
    sections = {
        "Scores": [
            *_table(Row._fields, [(*row[:2], f"{row.value:.4f}", _count(row.images), row.source) for row in rows]),
            "",
            f"Not measured: {missing}. Measure them with `asd evaluate --on`." if missing else "All were measured.",
        ],
        "Size and latency": _cost(opened, record, teacher, scores.get(COST, {})),
        "How to use": [
            "```python", *written.load, *written.use, "```", "", f"Preprocessing is {record['preprocessing']}."
        ],
        "Limits": [f"- {line}" for line in _limits(opened, record)],
        "Licence": [_licence(opened.run)],
    }  # fmt: skip
    lines = ["---", _metadata(opened, written, title, rows).to_yaml(), "---", "", f"# {plain(title)}", ""]
    lines += _table(("", ""), _facts(opened, record, teacher).items())
    for name, section in sections.items():
        lines += ["", f"## {name}", "", *section]
    return "\n".join(lines) + "\n"


def _metadata(opened: Opened, written: Written, title: str, rows: Sequence[Row]) -> ModelCardData:
    """What the Hub reads; each score once, the evaluation's rather than training's."""
    run, task = opened.run, "image-segmentation" if opened.maps else "image-classification"
    data = one_line(short(run.data.name))
    results = [
        EvalResult(
            task_type=task,
            dataset_type=data,
            dataset_name=data,
            dataset_split=one_line(row.set),
            metric_type="mean_iou" if row.score == "miou" else one_line(row.score),
            metric_name=one_line(row.score),
            metric_value=round(row.value, 6),
        )
        for row in {(row.set, row.score): row for row in rows}.values()
    ]
    return ModelCardData(
        library_name=written.library,
        pipeline_tag=task,
        license="unknown",
        tags=["antishortcut", *(["knowledge-distillation", run.method] if run.roles else [])],
        model_name=one_line(title),
        eval_results=results or None,
    )


def _title(opened: Opened, teacher: Teacher | None) -> str:
    run = opened.run
    if run.kind != "distill":
        return f"{run.model.name}, a teacher, state {opened.state}"
    if not run.roles:
        return f"{run.model.name} trained on {short(run.data.name)} ({run.method})"
    return f"{run.model.name} distilled from {teacher.run.model.name if teacher else run.teacher} ({run.method})"


def _facts(opened: Opened, record: Mapping[str, Any], teacher: Teacher | None) -> dict[str, str]:
    run, data, optim, check = opened.run, opened.run.data, opened.run.optim, record["check"]
    shorter, side = record["shorter_side"], record["resized_to"]
    crop = f"; of a file, make the shorter side {shorter} and cut the centre out" if shorter else ", whole scenes"
    resize = f"; resized to {side} × {side} bilinearly" if side else ""
    upsample = ", to be brought to the image's size bilinearly before argmax" if opened.maps else ""
    names = f": {', '.join(opened.names[:12])}{', … (all in export.json)' * (len(opened.names) > 12)}"
    limits = {"train_limit": data.train_limit, "test_limit": data.test_limit}
    settings = {key: value for key, value in {**limits, **data.options}.items() if value is not None}
    facts = {
        "network": f"{run.model.name}, {opened.parameters:,} parameters",
        "input": f"RGB in [0, 1], {record['type']}, {_shape(record['input']['image'])}{crop}",
        "preprocessing": f"{record['preprocessing']}; mean {record['mean']}, std {record['std']}{resize}",
        "output": "; ".join(f"{name} {_shape(shape)}" for name, shape in record["output"].items()) + upsample,
        "classes": f"{opened.classes}{names if opened.names else ''}",
        "data": _listed(short(data.name), settings) + f", fingerprint {run.fingerprint}",
    }
    if run.kind == "distill":
        name = f"{teacher.run.model.name}, {_length(teacher.run)}, " if teacher else ""
        states = ", ".join(f"{role} = {state}" if role != state else role for role, state in run.roles.items())
        facts["teacher"] = f"{name}hash {run.teacher}, states {states or 'none'}" if run.teacher else "none"
        facts["method"] = _listed(run.method, run.options)
    start = ", from pretrained weights" * run.model.pretrained + ", from your own weights" * bool(run.model.weights)
    rate = f"rate {optim.lr:g} ({optim.schedule})"
    return facts | {
        "training": f"{_length(run)}, {optim.name}, {rate}, batch {optim.batch}, augmentation {data.augment}{start}",
        "seeds": f"training {run.seed}, data {data.seed}" + (f", teacher {teacher.run.seed}" if teacher else ""),
        "run": f"{run.suite}/{run.name}-s{run.seed}, hash {run.hash}, state {opened.state}",
        "checked": f"against the original on {check['images']} of {' and '.join(map(_shape, check['sizes']))}: "
        f"the largest difference is {check['largest']:.1e} of the largest value ({check['allowed']:g} is allowed)",
    }


def _listed(name: str, options: Mapping[str, Any]) -> str:
    return ", ".join([name, *(f"{key} {value}" for key, value in options.items())])


def _length(run: Run) -> str:
    return "trained elsewhere" if run.kind == "imported" else run.length


def _scores(opened: Opened) -> dict[str, dict[str, Any]]:
    """The scores of this very state."""
    scores = opened.folder.scores()
    if opened.state == "final":
        return {name: score for name, score in scores.items() if "@" not in name}
    mark = f"@{opened.state}"
    return {name.removesuffix(mark): score for name, score in scores.items() if name.endswith(mark)}


def _rows(opened: Opened, scores: Scores) -> Iterator[Row]:
    """The score at the end of training, then all scores of every set."""
    if opened.state != "final":
        entry = Trajectory(opened.folder).entry(opened.state)
        for name in ("accuracy", "miou"):
            if _is_number(entry.get(name)):
                yield Row("judged", name, entry[name], entry.get("images"), "while training")
    else:
        try:
            name, value = opened.folder.primary_metric()
            result = opened.folder.result()
            yield Row(
                str(result.get("set", "test")), name, value, result["last"].get("images"), "at the end of training"
            )
        except (UserError, KeyError, TypeError, ValueError):  # an incomplete result.json
            pass
    for name, score in scores.items():
        source, reference = str(score.get("source", "the data's own")), score.get("reference")
        source += f", relative to {reference.get('run', '?')}" if isinstance(reference, dict) else ""
        values = score["values"] if name != COST else {}
        for key, value in values.items():
            inner = value if isinstance(value, dict) else {"": value}  # of the mechanism: measures by space
            for measure, number in inner.items():
                if _is_number(number):
                    yield Row(name, f"{key} {measure}".strip(), number, score.get("count"), source)


def _cost(opened: Opened, record: Mapping[str, Any], teacher: Teacher | None, score: Mapping[str, Any]) -> list[str]:
    values = score.get("values", {})
    files = ", ".join(f"{name} {megabytes(size)}" for name, size in record["files"].items())
    rows = [(opened.run.model.name, f"{opened.parameters:,}", files, _ms(values.get("ms")))]
    if teacher:
        name = f"its teacher {teacher.run.model.name}"
        rows.append((name, _count(teacher.parameters), megabytes(teacher.size), _ms(values.get("teacher_ms"))))
    table = _table(("", "parameters", "weights", "one image"), rows)
    if not _is_number(values.get("ms")):
        return [*table, "", "Latency was not measured (`asd evaluate --on cost`)."]
    machine = plain(str(score.get("machine", "an unknown machine")))
    return [*table, "", f"One image at a time, median of {score.get('count', '?')}, PyTorch on {machine}."]


def _limits(opened: Opened, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"It gives {'each pixel' if opened.maps else 'any image'} one of {opened.classes} classes, whatever it shows."
    yield "The scores hold for images like those of the sets they name, and for this run: another seed gives others."
    yield f"It was trained on {'crops' if opened.maps else 'images'} of {opened.side} × {opened.side} pixels."
    if record["note"]:
        yield f"It takes scenes of one size only: {plain(record['note'])}."
    if not opened.names:
        yield "Its data were not available at export: it was checked on noise, and its classes have no names."


def _licence(run: Run) -> str:
    start = f" and the weights it started from ({run.model.name})" if run.model.pretrained or run.model.weights else ""
    return (
        f"The run names none. These weights were learned from {plain(short(run.data.name))}: look up the terms of "
        f"those images{plain(start)}. The program that trained them, antishortcut, is under Apache-2.0."
    )


def plain(text: str) -> str:
    """Text in one line that starts no Markdown and stays in its table cell."""
    text = one_line(text).replace("&", "&amp;")
    escaped = MARKUP.sub(lambda match: f"&#{ord(match[0])};", text)
    return escaped.replace("|", "\\|").replace("://", ":&#47;/")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(map(plain, row)) + " |" for row in (head, ["---"] * len(head), *rows)]


def _shape(shape: Sequence[Any]) -> str:
    return " × ".join(map(str, shape))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _ms(value: Any) -> str:
    return f"{value:.3g} ms" if _is_number(value) else "–"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size / 1e3:.1f} kB"
