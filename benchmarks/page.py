"""Fill the tables of docs/results/speed.md from docs/results/speed: `python benchmarks/page.py`. A test compares them.

A table stands between `<!-- NAME -->` and `<!-- end -->`; what was not measured yet leaves its place empty.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from antishortcut.errors import plural

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, RESULTS = DOCS / "results" / "speed.md", DOCS / "results" / "speed"
Found = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def _pair(name: str, found: Found) -> str:
    teacher, student = re.findall(r"(?:(?:timm|torchvision):)?[^:]+", found["pair"])
    return f"`{teacher}` → `{student}`" if name == found["pair"] else f"{name}: `{teacher}` → `{student}`"


def steps(found: Found) -> str:
    names, ratios = ("plain-kd", "kd", "asd", "asd-cached"), ("asd/plain-kd", "asd/kd", "asd-cached/kd")
    rows = (
        (_pair(name, one), *(f"{one['ms'][n]:.0f}" for n in names), *(f"{one['ratio'][r]:.2f}" for r in ratios))
        for name, one in found.items()
    )
    return table(("pair", *(f"{name}, ms" for name in names), *ratios), rows)


def weak(found: Found) -> str:
    names = ("plain-kd", "kd", "asd", "contrast", "contrast-weak", "contrast+hint", "contrast+hint-cached")
    rows: list[Sequence[object]] = []
    for name, one in found.items():
        rows.append((_pair(name, one), *(f"{one['ms'][n]:.0f}" for n in names)))
        rows.append(("of plain-kd", 1, *(f"{one['ratio'][f'{n}/plain-kd']:.2f}" for n in names[1:])))
    return table(("pair", *(f"{name}, ms" for name in names)), rows)


def forms(found: Found) -> str:
    one = next(iter(found.values()))
    settings = one["machine"]
    teachers = " or ".join(dict.fromkeys(each["machine"]["teacher"] for each in found.values()))
    threads = plural(settings["threads"], "thread")
    return (
        f"{settings['processor']}, {threads}, torch {settings['torch']}, batch {one['batch']}, "
        f"median of {one['rounds']}; teachers {teachers}, student {settings['student']}."
    )


def methods(found: Found) -> str:
    pieces = list(next(iter(found["split"].values())))
    rows = (
        (
            f"`{name}`",
            found["teacher_passes"][name],
            f"{ms:.0f}",
            f"{found['ratio'][f'{name}/kd']:.2f}" if f"{name}/kd" in found["ratio"] else "1",
            *(f"{found['split'][name][part]:.0f}" for part in pieces),
        )
        for name, ms in found["ms"].items()
        if name != "plain-kd"
    )
    return table(("method", "teacher passes", "ms", "of kd", *pieces), rows)


def reference(found: Found) -> str:
    names = ("torchdistill-kd", "plain-kd", "kd", "asd", "asd-cached")
    rows = (
        (_pair(name, {"pair": name}), *(f"{one['ms'][n]:.0f}" for n in names), *(_of(one, n) for n in names[2:]))
        for name, one in found.items()
    )
    return table(("pair", *(f"{name}, ms" for name in names), *(f"{n} of torchdistill's" for n in names[2:])), rows)


def _of(one: Found, name: str) -> str:
    return f"{one['ratio'][f'{name}/torchdistill-kd']:.2f}"


def scaling(found: Found) -> str:
    words = {"B": "batch B", "M": "queue M", "K": "directions K", "D": "width D", "N": "training images N"}
    rows = (
        (words.get(axis, axis), *list(ms)[:1], *list(ms)[-1:], *list(ms.values())[:1], *list(ms.values())[-1:], power)
        for (axis, ms), power in zip(found["ms"].items(), found["exponent"].values(), strict=True)
    )
    return table(("size", "from", "to", "ms", "ms", "exponent"), rows)


def memory(found: Found) -> str:
    rows = ((f"`{name}`", f"{one['peak_mb']:.0f}", f"{one['step_mb']:.0f}") for name, one in found["memory"].items())
    return table(("method", "peak of the process, MB", "of that, the steps"), rows)


def precision(found: Found) -> str:
    rows = []
    for method, one in found["scores"].items():
        single, half, less = one["float32"], one["bfloat16"], one["bfloat16 - float32"]
        means = (f"{way['mean']:.4f} ± {way['std']:.4f}" for way in (single, half))
        rows.append((f"`{method}`", *means, f"{less['difference']:+.4f} ({less['low']:+.4f} … {less['high']:+.4f})"))
    return table(("method", "float32", "bfloat16", "difference, 95 % interval"), rows)


def batches(found: Found) -> str:
    rows = []
    for title, size in (("32 × 32, in memory", found["cifar"]), ("about 500 × 375, JPEG", found["imagenet"])):
        for way, one in size.items():
            if isinstance(one, dict):
                faster = size.get(f"{way}_by_ours")
                message = "" if faster is None else f"{faster:.1f}"
                rows.append((title, way.replace("_", " "), f"{one['images_a_second']:,.0f}", message))
    return table(("images", "made by", "images a second", "times slower than ours"), rows)


MADE: dict[str, tuple[str, Callable[[Found], str]]] = {
    "steps": ("steps", steps),
    "how": ("steps", forms),
    "steps_bfloat16": ("steps_bfloat16", steps),
    "how_bfloat16": ("steps_bfloat16", forms),
    "weak": ("weak", weak),
    "how_weak": ("weak", forms),
    "pairs": ("pairs", steps),
    "depthwise": ("depthwise", steps),
    "larger": ("larger", steps),
    "methods": ("methods", methods),
    "reference": ("reference", reference),
    "scaling": ("scaling", scaling),
    "memory": ("scaling", memory),
    "precision": ("precision", precision),
    "batches": ("batches", batches),
}


def filled(text: str) -> str:
    """The page with every table made anew."""

    def built(mark: re.Match[str]) -> str:
        file, make = MADE[mark[1]]
        path = RESULTS / f"{file}.json"
        body = make(json.loads(path.read_text())) if path.exists() else ""
        return f"<!-- {mark[1]} -->\n{body}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?\n<!-- end -->", built, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
