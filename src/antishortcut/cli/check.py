"""asd check: what a data set holds, what is wrong with it, and what training will see of it."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import complete
from antishortcut.cli.options import JsonOption, RootOption, SetOption, print_json, table, tell
from antishortcut.errors import UserError, counted, near
from antishortcut.files import expanded, near_folder

if TYPE_CHECKING:
    from antishortcut.data.checks import Finding, Seen
    from antishortcut.run import DataSettings

BAR = 30  # characters of the longest bar
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
    from antishortcut.data.checks import advice, contact_sheet, open_finding, problems, summarise, usual_side

    if out is not None and out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UserError(f"--out {out}: name a picture, like sheet.png")
    settings, recipe = _settings(data, set_ or [])
    options = settings.model_dump(
        include={"seed", "train_limit", "test_limit", "val_fraction", "image_size", "options"}
    )
    finding = open_finding(settings.name, data_root, **options)
    if recipe is None and settings.image_size is None:  # as asd distill takes them
        finding = replace(finding, image_size=usual_side(finding))
    augment = _augment(finding, settings)
    looked = _look(finding)
    facts = summarise(finding, looked)
    if not finding.classes:  # nobody named them: those that masks have
        finding = replace(finding, classes=tuple(row["class"] for row in facts["masks"]["frequency"]))
        facts["classes"] = len(finding.classes)
    wrong = problems(facts)
    told = advice(finding, facts, settings.val_fraction)
    following = _next(settings, recipe, wrong, finding.dense)
    if out is not None:
        _draw(contact_sheet(finding, looked["train"], augment, settings.seed, _colours(facts)), out)
    more = {"augment": augment, "problems": wrong, "advice": told, "next": following, "sheet": out and str(out)}
    if as_json:
        print_json(facts | more)
    else:
        _show(facts | more)
    if wrong:
        raise UserError(f"{settings.name}: training would stop: {'; '.join(wrong)}")


def _settings(data: str, overrides: list[str]) -> tuple[DataSettings, str | None]:
    """What is to be looked at, and the recipe that says so. A recipe of a set's own name tells how it is trained on."""
    from antishortcut.data import DATASETS
    from antishortcut.data.layouts import FOREIGN, SUFFIXES
    from antishortcut.run import DataSettings, ModelSettings, Recipe, TeacherSettings, load_recipe, shipped_recipes
    from antishortcut.run import with_settings as changed

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


def _augment(finding: Finding, settings: DataSettings) -> str:
    from antishortcut.data.checks import check_augment, usual_augment

    if "augment" not in settings.model_fields_set:
        return usual_augment(finding)
    check_augment(finding, settings.augment)
    return settings.augment


def _look(finding: Finding) -> dict[str, list[Seen]]:
    from antishortcut.console import Watch
    from antishortcut.data.checks import look

    done = itertools.count(1)
    with Watch(f"check {finding.name}", sum(map(len, finding.parts.values()))) as watch:
        return {part: look(images, lambda: watch.update(next(done), {})) for part, images in finding.parts.items()}


def _colours(facts: dict[str, Any]) -> list[str]:
    if "masks" not in facts:
        return []
    from antishortcut.evaluate.scenes import palette

    return palette(len(facts["masks"]["frequency"]))


def _draw(picture: Any, out: Path) -> None:
    from antishortcut.folder import replacing

    with replacing(out) as file:
        picture.save(file, format={".png": "PNG", ".webp": "WEBP"}.get(out.suffix.lower(), "JPEG"))


def _next(settings: DataSettings, recipe: str | None, wrong: list[str], dense: bool) -> str:
    """The command to run then."""
    from antishortcut.run import load_recipe, shipped_recipes

    if wrong:
        return "asd check again when that is done"
    if recipe is not None:
        return f"asd distill {recipe}"
    if others := [name for name in shipped_recipes() if load_recipe(name).data.name == settings.name]:
        return f"asd distill {others[0]}" + (f" (on the same images: {', '.join(others[1:])})" if others[1:] else "")
    teacher, student = PAIRS[dense]
    return f"asd distill --data {shlex.quote(settings.name)} --teacher {teacher} --student {student}"


def _show(facts: dict[str, Any]) -> None:
    from antishortcut.data.checks import SHOWN

    side, augment = facts["image_size"], facts["augment"]
    tell(f"{facts['data']}: {counted(facts['classes'], 'class')}, networks see {side} × {side}, augmentation {augment}")
    shown = [row | {"part": f"test ({facts['held']}/)"} if _is_held(facts, row) else row for row in facts["parts"]]
    table("parts", list(shown[0]), [tuple(row.values()) for row in shown])
    parts = [row["part"] for row in facts["parts"]]
    if "masks" in facts:
        _show_classes("share of labelled pixels by class", facts["masks"]["frequency"], parts, SHOWN)
    else:
        _show_classes("images by class", facts["balance"], parts, SHOWN)
    for title, value in _lines(facts):
        tell(f"{title}: {value}")
    _listed("cannot be read", [f"{entry['file']}: {entry['why']}" for entry in facts["unreadable"]], SHOWN)
    _listed("the same image in two parts", [" = ".join(names) for names in facts["duplicates"]["across"]], SHOWN)
    _listed("the same image in two classes", [" = ".join(names) for names in facts["duplicates"]["two_classes"]], SHOWN)
    _listed("without image or mask", facts["unpaired"], SHOWN)
    strange = facts.get("masks", {}).get("strange", [])
    _listed("values that are no class", [f"{entry['file']}: {_few(entry['values'])}" for entry in strange], SHOWN)
    for line in facts["advice"]:
        tell(f"- {line}")
    if facts["sheet"]:
        tell(f"contact sheet: {facts['sheet']}")
    tell(f"next: {facts['next']}")


def _is_held(facts: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether it is the part that a folder has under another name."""
    return row["part"] == "test" and facts["held"] not in ("", "test")


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    sizes, copies = facts["sizes"], facts["duplicates"]
    lines = []
    if sizes:
        small, middle, large = (" × ".join(map(str, sizes[key])) for key in ("smallest", "median", "largest"))
        below = f"{sizes['smaller']:,} below {facts['image_size']}"
        lines.append(("sizes", f"{small} to {large}, median {middle}; {below}"))
    if facts["modes"]:
        lines.append(("pixels", ", ".join(f"{count:,} {mode}" for mode, count in facts["modes"].items())))
    within = ", ".join(f"{count:,} in {part}" for part, count in copies["within"].items() if count) or "none"
    across = ", ".join(f"{count:,} of {part}" for part, count in copies["leaked"].items() if count) or "none"
    lines.append(("exact copies", f"{within}; training images in other parts: {across}"))
    if "masks" in facts:
        void = facts["masks"]["void"]
        lines.append(("void", ", ".join(f"{share:.1%} of {part}" for part, share in void.items())))
    if facts["not_images"]:
        lines.append(("not images", ", ".join(f"{count:,} {kind}" for kind, count in facts["not_images"].items())))
    if not facts["unreadable"]:
        lines.append(("cannot be read", "none"))
    return lines


def _show_classes(title: str, rows: list[dict[str, Any]], parts: list[str], most: int) -> None:
    """Bars of what every class has in training; of many classes the largest and the smallest."""
    ranked = sorted(rows, key=lambda row: -row["train"])
    half = most // 2
    if len(ranked) > most:
        ranked, title = [*ranked[:half], *ranked[-half:]], f"{title}: the {half} largest and the {half} smallest"
    top = max((row["train"] for row in rows), default=0)
    shown = [(row["class"], *(row[part] for part in parts), _bar(row["train"], top)) for row in ranked]
    table(title, ["class", *parts, ""], shown)


def _bar(value: float, top: float) -> str:
    return "█" * round(BAR * value / top) if top else ""


def _listed(title: str, lines: list[str], most: int) -> None:
    if not lines:
        return
    tell(f"{title}:")
    for line in lines[:most]:
        tell(f"  {line}")
    if len(lines) > most:
        tell(f"  and {len(lines) - most:,} more")


def _few(values: list[int]) -> str:
    return ", ".join(map(str, values[:5])) + (", …" if len(values) > 5 else "")
