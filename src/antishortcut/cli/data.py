"""asd check: what a data set holds, what is wrong with it, and what training will see of it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import complete
from antishortcut.cli.options import JsonOption, RootOption, SetOption, print_json, table, tell
from antishortcut.errors import UserError, counted, near
from antishortcut.fileio import expanded, near_folder

if TYPE_CHECKING:
    from antishortcut.config.recipe import DataSettings

BAR = 30  # characters of the longest bar
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
PAIRS = {  # a pair to begin with, for classes of images and of pixels
    False: ("timm:resnet50", "timm:mobilenetv3_small_100"),
    True: ("deeplabv3-resnet50", "deeplabv3-mobilenetv2"),
}


def check(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of images, folder:PATH, groups:PATH, a data set or a recipe (asd list).",
            autocompletion=complete.data,
        ),
    ],
    data_root: RootOption = None,
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw images there, as they are and as training sees them: sheet.png.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look before you train: counts, balance, sizes, files that cannot be read, copies of test images, advice.

    Every image is decoded. The exit code is 2 when training would stop at something, and the report still there.
    """
    from antishortcut.data.inspect import (
        advice,
        check_augment,
        contact_sheet,
        look,
        open_finding,
        problems,
        summarise,
        usual_augment,
        usual_side,
    )
    from antishortcut.progress import Watch
    from antishortcut.run_dir import replacing

    if out is not None and out.suffix.lower() not in FORMATS:
        raise UserError(f"--out {out}: name a picture, like sheet.png")
    settings, recipe = _settings(data, set_ or [])
    options = settings.model_dump(
        include={"seed", "train_limit", "test_limit", "val_fraction", "image_size", "options"}
    )
    finding = open_finding(settings.name, data_root, **options)
    if recipe is None and settings.image_size is None:  # as asd distill chooses it
        finding = replace(finding, image_size=usual_side(finding))
    augment = settings.augment if "augment" in settings.model_fields_set else usual_augment(finding)
    check_augment(finding, augment)
    done = itertools.count(1)
    with Watch(f"check {finding.name}", sum(map(len, finding.parts.values()))) as watch:
        looked = {part: look(images, lambda: watch.update(next(done), {})) for part, images in finding.parts.items()}
    facts = summarise(finding, looked)
    if not finding.classes:  # no classes.txt: those of the masks
        finding = replace(finding, classes=tuple(row["class"] for row in facts["masks"]["frequency"]))
        facts["classes"] = len(finding.classes)
    wrong = problems(facts)
    facts |= {
        "augment": augment,
        "problems": wrong,
        "advice": advice(finding, facts, settings.val_fraction),
        "next": _next(settings, recipe, wrong, finding.dense),
        "sheet": out and str(out),
    }
    if out is not None:
        from antishortcut.evaluation.segmentation_scores import palette

        colours = palette(len(finding.classes)) if finding.dense else []
        sheet = contact_sheet(finding, looked["train"], augment, settings.seed, colours)
        with replacing(out) as file:
            sheet.save(file, format=FORMATS[out.suffix.lower()])
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if wrong:
        raise UserError(f"{settings.name}: training would stop: {'; '.join(wrong)}")


def _settings(data: str, overrides: list[str]) -> tuple[DataSettings, str | None]:
    """What is to be looked at, and the recipe that says so. A recipe of a set's own name tells how it is trained on."""
    from antishortcut.config.recipe import (
        DataSettings,
        ModelSettings,
        Recipe,
        TeacherSettings,
        load_recipe,
        shipped_recipes,
    )
    from antishortcut.config.recipe import with_settings as changed
    from antishortcut.data import DATASETS
    from antishortcut.data.readers import FOREIGN, SUFFIXES

    overrides = [text for text in overrides if not text.startswith("method.")]  # as for distill
    if Path(data).is_file() and Path(data).suffix.lower() in SUFFIXES | FOREIGN:
        raise UserError(f"{data} is one image; name the folder that holds the folders of classes")
    if Path(data).is_file() or data.partition("@")[0] in shipped_recipes():
        return load_recipe(data, overrides).data, data
    if data.partition(":")[0] not in DATASETS:
        place = expanded(data)
        if not place.is_dir():
            known = near_folder(data) or near(data, dict.fromkeys([*DATASETS, *shipped_recipes()]))
            raise UserError(f"{data!r} is no folder, data set or recipe{known}")
        data = f"{'groups' if (place / 'metadata.csv').is_file() else 'folder'}:{data}"
    plain = Recipe(
        title="--set",
        epochs=1,
        data=DataSettings(name=data),
        teacher=TeacherSettings(name="none"),
        student=ModelSettings(name="none"),
    )
    return changed(plain, overrides).data, None


def _next(settings: DataSettings, recipe: str | None, wrong: list[str], dense: bool) -> str:
    """The command to run then."""
    from antishortcut.config.recipe import load_recipe, shipped_recipes

    if wrong:
        return "asd check again when that is done"
    if recipe is not None:
        return f"asd distill {recipe}"
    if others := [name for name in shipped_recipes() if load_recipe(name).data.name == settings.name]:
        return f"asd distill {others[0]}" + (f" (on the same images: {', '.join(others[1:])})" if others[1:] else "")
    teacher, student = PAIRS[dense]
    return f"asd distill --data {shlex.quote(settings.name)} --teacher {teacher} --student {student}"


def _show(facts: dict[str, Any]) -> None:
    from antishortcut.data.inspect import SHOWN

    side, augment = facts["image_size"], facts["augment"]
    tell(f"{facts['data']}: {counted(facts['classes'], 'class')}, networks see {side} × {side}, augmentation {augment}")
    parts = [row["part"] for row in facts["parts"]]
    renamed = {"test": f"test ({facts['held']}/)"} if facts["held"] not in ("", "test") else {}
    rows = [row | {"part": renamed.get(row["part"], row["part"])} for row in facts["parts"]]
    table("parts", list(rows[0]), [tuple(row.values()) for row in rows])
    masks = facts.get("masks", {})
    if masks:
        _show_classes("share of labelled pixels by class", masks["frequency"], parts, SHOWN)
    else:
        _show_classes("images by class", facts["balance"], parts, SHOWN)
    for line in _lines(facts):
        tell(line)
    copies = facts["duplicates"]
    lists = {
        "cannot be read": [f"{entry['file']}: {entry['why']}" for entry in facts["unreadable"]],
        "the same image in two parts": [" = ".join(names) for names in copies["across"]],
        "the same image in two classes": [" = ".join(names) for names in copies["two_classes"]],
        "without image or mask": facts["unpaired"],
        "values that are no class": [
            f"{entry['file']}: {', '.join(map(str, entry['values'][:5]))}{', …' * (len(entry['values']) > 5)}"
            for entry in masks.get("strange", [])
        ],
    }
    for title, lines in lists.items():
        more = [f"and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
        for line in [f"{title}:", *(f"  {line}" for line in [*lines[:SHOWN], *more])] if lines else []:
            tell(line)
    for line in facts["advice"]:
        tell(f"- {line}")
    if facts["sheet"]:
        tell(f"contact sheet: {facts['sheet']}")
    tell(f"next: {facts['next']}")


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    sizes, copies = facts["sizes"], facts["duplicates"]
    if sizes:
        small, middle, large = (" × ".join(map(str, sizes[key])) for key in ("smallest", "median", "largest"))
        yield f"sizes: {small} to {large}, median {middle}; {sizes['smaller']:,} below {facts['image_size']}"
    if facts["modes"]:
        yield "pixels: " + ", ".join(f"{count:,} {mode}" for mode, count in facts["modes"].items())
    within = ", ".join(f"{count:,} in {part}" for part, count in copies["within"].items() if count) or "none"
    across = ", ".join(f"{count:,} of {part}" for part, count in copies["leaked"].items() if count) or "none"
    yield f"exact copies: {within}; training images in other parts: {across}"
    if "masks" in facts:
        yield "void: " + ", ".join(f"{share:.1%} of {part}" for part, share in facts["masks"]["void"].items())
    if facts["not_images"]:
        yield "not images: " + ", ".join(f"{count:,} {kind}" for kind, count in facts["not_images"].items())
    if not facts["unreadable"]:
        yield "cannot be read: none"


def _show_classes(title: str, rows: list[dict[str, Any]], parts: list[str], most: int) -> None:
    """Bars of the training images of every class; of many classes the largest and the smallest."""
    ranked = sorted(rows, key=lambda row: -row["train"])
    top = max((row["train"] for row in rows), default=0) or 1
    half = most // 2
    if len(ranked) > most:
        ranked, title = [*ranked[:half], *ranked[-half:]], f"{title}: the {half} largest and the {half} smallest"
    bars = ["█" * round(BAR * row["train"] / top) for row in ranked]
    shown = [(row["class"], *(row[part] for part in parts), bar) for row, bar in zip(ranked, bars, strict=True)]
    table(title, ["class", *parts, ""], shown)
