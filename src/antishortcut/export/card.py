"""The model card: what the run's own files say of it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from antishortcut.errors import printable
from antishortcut.export.family import Family
from antishortcut.export.formats import Written
from antishortcut.export.opened import Opened
from antishortcut.run import Run
from antishortcut.teachers import Trajectory

MECHANISM, COST = "mechanism", "cost"
LEANS = {  # set → what of its scores says so, in which words
    "conflict": ("where shape and texture say different classes", ("shape_bias", "by_shape", "by_texture")),
    "cue-conflict": ("where shape and texture say different classes", ("shape_bias", "by_shape", "by_texture")),
    "groups": ("group by group", ("worst_group", "mean_group")),
    "hard": ("images the early teacher gets wrong, and right", ("hard_accuracy", "easy_accuracy")),
    "stylized": ("with the texture of a painting", ("accuracy", "clean_accuracy")),
}
MEASURES = ("cos_final", "cos_early", "projection", "projection_random")
VIEWS = ("aligned", "raw")
SHOWN = 12  # names of classes


def card(opened: Opened, written: Written, record: Mapping[str, Any], family: Family) -> str:
    scores = _scores(opened)
    parts = [
        [f"# {_title(opened, family)}", "", *_grid(("", ""), _facts(opened, record, family))],
        ["## Scores", "", *_grid(("set", "score", "value", "images", "source"), _rows(opened, scores))],
        ["## What it leans on", "", *(_leaning(scores) or ["Not measured."])],
        ["## Size and latency", "", *_cost(opened, record, family, scores)],
        ["## How to use", "", *_use(opened, written, record)],
        ["## Licence", "", _licence(opened.run)],
    ]
    head = ["---", f"library_name: {written.library}", f"pipeline_tag: {_task(opened)}", "---", ""]
    return "\n".join([*head, *("\n".join(part) + "\n" for part in parts)])


def _task(opened: Opened) -> str:
    return "image-segmentation" if opened.maps else "image-classification"


def _title(opened: Opened, family: Family) -> str:
    run = opened.run
    if run.kind != "distill":
        return plain(f"{run.model.name}, a teacher, state {opened.state}")
    if not run.roles:
        return plain(f"{run.model.name} trained on {_data(run)} ({run.method})")
    teacher = family.run.model.name if family.run else run.teacher
    return plain(f"{run.model.name} distilled from {teacher} ({run.method})")


def _facts(opened: Opened, record: Mapping[str, Any], family: Family) -> Iterator[tuple[str, str]]:
    run = opened.run
    yield "network", f"{run.model.name}, {opened.parameters:,} parameters"
    yield "input", f"RGB in [0, 1], {_shape(record['input']['image'])}{_cut(opened)}"
    yield "preprocessing", f"{record['preprocessing']}; mean {record['mean']}, std {record['std']}{_resized(record)}"
    yield "output", "; ".join(f"{name} {_shape(shape)}" for name, shape in record["output"].items()) + _upsample(opened)
    yield "classes", f"{opened.classes}{': ' if opened.names else ''}{_few(opened.names)}"
    limits = (run.data.train_limit, "training images at most"), (run.data.test_limit, "test images at most")
    options = [f"{key} {value:g}" for key, value in run.data.options.items()]
    more = [f"{value:,} {words}" for value, words in limits if value] + options
    yield "data", ", ".join([_data(run), *more, f"fingerprint {run.fingerprint}"])
    if run.kind == "distill":
        yield "teacher", _teacher(run, family)
        yield "method", ", ".join([run.method, *(f"{key} {value}" for key, value in run.options.items())])
    began = ["pretrained weights"] * run.model.pretrained + ["weights of one's own"] * (run.model.weights is not None)
    optim = f"{run.optim.name}, rate {run.optim.rate:g} ({run.optim.schedule}), batch {run.optim.batch}"
    yield "training", ", ".join([run.length, optim, f"augmentation {run.data.augment}", *(f"from {b}" for b in began)])
    seeds = [f"training {run.seed}", f"data {run.data.seed}"]
    yield "seeds", ", ".join(seeds + ([f"teacher {family.run.seed}"] if family.run else []))
    yield "run", f"{run.suite}/{run.name}-s{run.seed}, hash {run.hash}, state {opened.state}"
    yield "checked", _checked(record["check"])


def _data(run: Run) -> str:
    """The data's name; of a folder not where it lies."""
    kind, colon, path = run.data.name.partition(":")
    return f"{kind}{colon}{Path(path).name}"


def _checked(check: Mapping[str, Any]) -> str:
    return (
        f"against the original on {check['images']}, in batches of {' and '.join(map(str, check['batches']))}: "
        f"the largest difference is {check['largest']:.1e} of the largest value ({check['allowed']:g} was allowed)"
    )


def _shape(shape: Sequence[Any]) -> str:
    return " × ".join(map(str, shape))


def _cut(opened: Opened) -> str:
    if opened.maps:
        return ", whole scenes"
    shorter = round(opened.margin * opened.side)
    return f"; of a file, make the shorter side {shorter} and cut the centre out"


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
        told = [f"{family.run.model.name}, {family.run.length}, {told[0]}"]
        told += [f"{family.headline[0]} {family.headline[1]:.4f} after training"] if family.headline else []
    states = [f"{role} = {state}" if role != state else role for role, state in run.roles.items()]
    return ", ".join([*told, f"states {', '.join(states)}" if states else "compared with, not learned from"])


def _scores(opened: Opened) -> dict[str, dict[str, Any]]:
    """Those of this very state."""
    mark = "" if opened.state == "final" else f"@{opened.state}"
    return {
        name.removesuffix(mark) if mark else name: score
        for name, score in opened.folder.scores().items()
        if (name.endswith(mark) if mark else "@" not in name)
    }


def _rows(opened: Opened, scores: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    if opened.state == "final":
        result = opened.folder.result()
        headline, _ = opened.folder.headline()
        last = result["last"]  # these weights; the best state is not kept
        yield (
            str(result["set"]),
            headline,
            f"{last[headline]:.4f}",
            _count(last.get("images")),
            "at the end of training",
        )
    else:
        entry = Trajectory(opened.folder).entry(opened.state)
        for headline in ("accuracy", "miou"):
            if headline in entry:
                yield "judged", headline, f"{entry[headline]:.4f}", _count(entry.get("images")), "while training"
    for name, score in scores.items():
        if name in (MECHANISM, COST):
            continue
        source = str(score.get("source", "the data's own"))
        reference = score.get("reference")
        source += f", relative to {reference.get('run', '?')}" if isinstance(reference, dict) else ""
        for key, value in score["values"].items():
            if _number(value):
                yield name, str(key), f"{value:.4f}", _count(score.get("count")), source


def _leaning(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for name, (words, keys) in LEANS.items():
        values = scores.get(name, {}).get("values", {})
        told = [f"{key} {values[key]:.3f}" for key in keys if _number(values.get(key))]
        lines += [f"- {name}, {words}: {', '.join(told)}."] if told else []
    views = scores.get(MECHANISM, {}).get("values", {})
    view = next((each for each in VIEWS if isinstance(views.get(each), dict)), None)
    told = [f"{key} {views[view][key]:.3f}" for key in MEASURES if view and _number(views[view].get(key))]
    words = "features beside the teacher's, and their length on its shortcut directions beside a random direction's"
    return lines + ([f"- {MECHANISM}, {words} ({view}): {', '.join(told)}."] if told else [])


def _cost(
    opened: Opened, record: Mapping[str, Any], family: Family, scores: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    found = scores.get(COST, {})
    values = found.get("values", {})
    files = ", ".join(f"{name} {megabytes(size)}" for name, size in record["files"].items())
    rows = [(opened.run.model.name, f"{opened.parameters:,}", files, _ms(values.get("ms")))]
    if family.run is not None:
        size = "–" if family.size is None else megabytes(family.size)
        rows.append(
            (f"its teacher {family.run.model.name}", _count(family.parameters), size, _ms(values.get("teacher_ms")))
        )
    lines = _grid(("", "parameters", "weights", "one image"), rows)
    if not values:
        return [*lines, "", "Latency was not measured (`asd evaluate --on cost`)."]
    where = plain(str(found.get("machine", "a machine unknown")))
    return [*lines, "", f"One image at a time, the median of {found.get('count', '?')}, on {where}."]


def _use(opened: Opened, written: Written, record: Mapping[str, Any]) -> list[str]:
    return ["```python", *written.load, *written.use, "```", "", f"Preprocessing is {record['preprocessing']}."]


def _licence(run: Run) -> str:
    start = f" and the weights it started from ({run.model.name})" if run.model.pretrained or run.model.weights else ""
    return (
        f"The run names none. These weights were learned from {plain(_data(run))}: the terms of those images{start} "
        "are yours to look up. The program that trained them, antishortcut, is under Apache-2.0."
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _ms(value: Any) -> str:
    return f"{value:.3g} ms" if _number(value) else "–"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size / 1e3:.1f} kB"


def _grid(head: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> list[str]:
    every = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in every]


def plain(text: str) -> str:
    """Names from outside stay in their cell and start no markup: no element, link, picture or code."""
    text = printable(" ".join(text.split())).replace("&", "&amp;").replace("\\", "&#92;").replace("<", "&lt;")
    return text.replace("[", "&#91;").replace("`", "&#96;").replace("|", "\\|")
