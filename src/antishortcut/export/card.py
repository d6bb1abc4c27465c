"""The model card: what the run's own files say of it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antishortcut.export.family import Family
from antishortcut.export.formats import Written
from antishortcut.export.markdown import front, grid, plain
from antishortcut.export.measured import (
    COST,
    EVALUATIONS,
    Row,
    Score,
    counted,
    is_number,
    leaning,
    mechanism,
    rows,
    scores_of,
    unmeasured,
)
from antishortcut.export.opened import Opened, short
from antishortcut.run import Run

SHOWN = 12  # names of classes
COLUMNS = ("set", "score", "value", "images", "source")
TYPES = {"miou": "mean_iou"}  # scores that the Hub calls otherwise


def card(opened: Opened, written: Written, record: Mapping[str, Any], family: Family) -> str:
    scores = scores_of(opened)
    found = list(rows(opened, scores))
    title = _title(opened, family)
    parts = [
        [*front(_front(opened, written, title, found)), "", f"# {plain(title)}"],
        grid(("", ""), _facts(opened, record, family)),
        ["## Scores", "", *grid(COLUMNS, [row.texts() for row in found]), "", _missing(opened, scores)],
        ["## What it leans on", "", *_leaning(scores)],
        ["## Size and latency", "", *_cost(opened, record, family, scores)],
        ["## How to use", "", *_use(written, record)],
        ["## Limits", "", *(f"- {line}" for line in _limits(opened, record))],
        ["## Licence", "", _licence(opened.run)],
    ]
    return "\n".join("\n".join(part) + "\n" for part in parts)


def _front(opened: Opened, written: Written, title: str, found: Sequence[Row]) -> dict[str, Any]:
    """What the Hugging Face Hub reads of a card; each score once, the evaluation's rather than training's."""
    run, task = opened.run, "image-segmentation" if opened.maps else "image-classification"
    each = {(row.set, row.score): row for row in found}.values()
    results = [
        {
            "task": {"type": task},
            "dataset": {"type": short(run.data.name), "name": short(run.data.name), "split": row.set},
            "metrics": [{"type": TYPES.get(row.score, row.score), "value": round(row.value, 6), "name": row.score}],
        }
        for row in each
    ]
    tags = ["antishortcut", *(["knowledge-distillation", run.method] if run.roles else [])]
    facts = {"library_name": written.library, "pipeline_tag": task, "license": "unknown", "tags": tags}
    return facts | ({"model-index": [{"name": title, "results": results}]} if results else {})


def _title(opened: Opened, family: Family) -> str:
    run = opened.run
    if run.kind != "distill":
        return f"{run.model.name}, a teacher, state {opened.state}"
    if not run.roles:
        return f"{run.model.name} trained on {short(run.data.name)} ({run.method})"
    teacher = family.run.model.name if family.run else run.teacher
    return f"{run.model.name} distilled from {teacher} ({run.method})"


def _facts(opened: Opened, record: Mapping[str, Any], family: Family) -> Iterator[tuple[str, str]]:
    run = opened.run
    yield "network", f"{run.model.name}, {opened.parameters:,} parameters"
    yield "input", f"RGB in [0, 1], {record['type']}, {_shape(record['input']['image'])}{_cut(record)}"
    yield "preprocessing", f"{record['preprocessing']}; mean {record['mean']}, std {record['std']}{_resized(record)}"
    yield "output", "; ".join(f"{name} {_shape(shape)}" for name, shape in record["output"].items()) + _upsample(opened)
    yield "classes", f"{opened.classes}{': ' if opened.names else ''}{_few(opened.names)}"
    limits = (run.data.train_limit, "training images at most"), (run.data.test_limit, "test images at most")
    options = [f"{key} {value:g}" for key, value in run.data.options.items()]
    more = [f"{value:,} {words}" for value, words in limits if value] + options
    yield "data", ", ".join([short(run.data.name), *more, f"fingerprint {run.fingerprint}"])
    if run.kind == "distill":
        yield "teacher", _teacher(run, family)
        yield "method", ", ".join([run.method, *(f"{key} {value}" for key, value in run.options.items())])
    began = ["pretrained weights"] * run.model.pretrained + ["weights of one's own"] * (run.model.weights is not None)
    optim = f"{run.optim.name}, rate {run.optim.rate:g} ({run.optim.schedule}), batch {run.optim.batch}"
    how = [_length(run), optim, f"augmentation {run.data.augment}", *(f"from {one}" for one in began)]
    yield "training", ", ".join(how)
    seeds = [f"training {run.seed}", f"data {run.data.seed}"]
    yield "seeds", ", ".join(seeds + ([f"teacher {family.run.seed}"] if family.run else []))
    yield "run", f"{run.suite}/{run.name}-s{run.seed}, hash {run.hash}, state {opened.state}"
    yield "checked", _checked(record["check"])


def _checked(check: Mapping[str, Any]) -> str:
    *most, last = map(str, check["batches"])
    sizes = " and ".join(f"{height} × {width}" for height, width in check["sizes"])
    return (
        f"against the original on {check['images']} of {sizes}, in batches of {', '.join(most)} and {last}: "
        f"the largest difference is {check['largest']:.1e} of the largest value ({check['allowed']:g} was allowed)"
    )


def _shape(shape: Sequence[Any]) -> str:
    return " × ".join(map(str, shape))


def _cut(record: Mapping[str, Any]) -> str:
    shorter = record["shorter_side"]
    return f"; of a file, make the shorter side {shorter} and cut the centre out" if shorter else ", whole scenes"


def _resized(record: Mapping[str, Any]) -> str:
    side = record["resized_to"]
    return f"; resized to {side} × {side} bilinearly" if side else ""


def _upsample(opened: Opened) -> str:
    return ", to be brought to the image's size bilinearly before argmax, as it was scored" if opened.maps else ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", … (all in export.json)" if len(names) > SHOWN else "")


def _teacher(run: Run, family: Family) -> str:
    if run.teacher is None:
        return "none"
    told = [f"hash {run.teacher}"]
    if family.run is not None:
        told = [f"{family.run.model.name}, {_length(family.run)}, {told[0]}"]
        told += [f"{family.headline[0]} {family.headline[1]:.4f} after training"] if family.headline else []
    states = [f"{role} = {state}" if role != state else role for role, state in run.roles.items()]
    return ", ".join([*told, f"states {', '.join(states)}" if states else "compared with, not learned from"])


def _length(run: Run) -> str:
    return "trained elsewhere" if run.kind == "given" else run.length


def _missing(opened: Opened, scores: Mapping[str, Score]) -> str:
    names = unmeasured(opened, scores)
    told = "; ".join(f"{EVALUATIONS[name]} (`{name}`)" for name in names)
    return f"Not measured: {told}. `asd evaluate --on` takes these names." if names else "All that can be was measured."


def _leaning(scores: Mapping[str, Score]) -> list[str]:
    lines, (head, measures) = [plain(line) for line in leaning(scores)], mechanism(scores)
    if not lines and not measures:
        return ["Not measured."]
    return [*lines, *(["", *grid(head, measures)] if measures else [])]


def _cost(opened: Opened, record: Mapping[str, Any], family: Family, scores: Mapping[str, Score]) -> list[str]:
    found = scores.get(COST, {})
    values = found.get("values", {})
    files = ", ".join(f"{name} {megabytes(size)}" for name, size in record["files"].items())
    lines = [(opened.run.model.name, f"{opened.parameters:,}", files, _ms(values.get("ms")))]
    if family.run is not None:
        size = "–" if family.size is None else megabytes(family.size)
        name = f"its teacher {family.run.model.name}"
        lines.append((name, counted(family.parameters), size, _ms(values.get("teacher_ms"))))
    table = grid(("", "parameters", "weights", "one image"), lines)
    if not is_number(values.get("ms")):
        return [*table, "", "Latency was not measured (`asd evaluate --on cost`)."]
    where = plain(str(found.get("machine", "a machine unknown")))
    return [*table, "", f"One image at a time, the median of {found.get('count', '?')}, as PyTorch runs it on {where}."]


def _use(written: Written, record: Mapping[str, Any]) -> list[str]:
    return ["```python", *written.load, *written.use, "```", "", f"Preprocessing is {record['preprocessing']}."]


def _limits(opened: Opened, record: Mapping[str, Any]) -> Iterator[str]:
    said = "each pixel" if opened.maps else "any image"
    yield f"It knows {opened.classes} classes, and gives {said} one of them, whatever it shows."
    yield "The scores hold for images like those of the sets they name, and for this run: another seed gives others."
    if opened.maps:
        yield "Scenes much larger or smaller than those it learned from were not scored."
    else:
        yield f"It learned from images of {opened.side} × {opened.side} pixels, and was scored on such."
    if record["note"]:
        yield f"It takes scenes of one size alone: {plain(record['note'])}."
    if not opened.names:
        yield "Its data were not at hand when it was exported: it was checked on noise, and its classes have no names."
    yield "What it leans on is known only as far as it was measured above."


def _licence(run: Run) -> str:
    start = f" and the weights it started from ({run.model.name})" if run.model.pretrained or run.model.weights else ""
    return (
        f"The run names none. These weights were learned from {plain(short(run.data.name))}: the terms of those images"
        f"{plain(start)} are yours to look up. The program that trained them, antishortcut, is under Apache-2.0."
    )


def _ms(value: Any) -> str:
    return f"{value:.3g} ms" if is_number(value) else "–"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size / 1e3:.1f} kB"
