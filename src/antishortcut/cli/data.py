"""asd check: what a data set holds, what is wrong with it, and what training will see of it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import options as complete
from antishortcut.cli.options import (
    DeviceOption,
    DownloadOption,
    JsonOption,
    RootOption,
    SetOption,
    ThreadsOption,
    print_json,
    table,
    tell,
    use_threads,
)
from antishortcut.errors import UserError, plural, suggest
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
    from antishortcut.fileio import atomic_write
    from antishortcut.progress import ProgressBar

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
    with ProgressBar(f"check {finding.name}", sum(map(len, finding.parts.values()))) as watch:
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
        with atomic_write(out) as file:
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
            known = near_folder(data) or suggest(data, dict.fromkeys([*DATASETS, *shipped_recipes()]))
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
    if rest := [name for name in shipped_recipes() if load_recipe(name).data.name == settings.name]:
        return f"asd distill {rest[0]}" + (f" (on the same images: {', '.join(rest[1:])})" if rest[1:] else "")
    teacher, student = PAIRS[dense]
    return f"asd distill --data {shlex.quote(settings.name)} --teacher {teacher} --student {student}"


def _show(facts: dict[str, Any]) -> None:
    from antishortcut.data.inspect import SHOWN

    side, augment = facts["image_size"], facts["augment"]
    tell(f"{facts['data']}: {plural(facts['classes'], 'class')}, networks see {side} × {side}, augmentation {augment}")
    pieces = [row["part"] for row in facts["parts"]]
    renamed = {"test": f"test ({facts['held']}/)"} if facts["held"] not in ("", "test") else {}
    rows = [row | {"part": renamed.get(row["part"], row["part"])} for row in facts["parts"]]
    table("parts", list(rows[0]), [tuple(row.values()) for row in rows])
    masks = facts.get("masks", {})
    if masks:
        _show_classes("share of labelled pixels by class", masks["frequency"], pieces, SHOWN)
    else:
        _show_classes("images by class", facts["balance"], pieces, SHOWN)
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


# --- asd corrupt: corrupted copies of a test set, as CIFAR-C and ImageNet-C have them ---

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from antishortcut.data.corruptions import Copies

SHEET = "contact.png"


def corrupt(
    data: Annotated[
        str,
        typer.Argument(help="A data set (asd list datasets), or folder:PATH.", autocompletion=complete.datasets),
    ],
    out: Annotated[Path, typer.Argument(help="Where the copies go: <corruption>.npy, labels.npy, facts.json.")],
    names: Annotated[
        str | None, typer.Option(help="Which corruptions, comma-separated [default: the fifteen].")
    ] = None,
    extra: Annotated[bool, typer.Option("--extra", help="The four extra corruptions too.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the corruptions.")] = 0,
    frost: Annotated[Path | None, typer.Option(help="Folder of frost pictures [default: crystals made here].")] = None,
    data_root: RootOption = None,
    set_name: Annotated[str | None, typer.Option(help="Which test set [default: the first].")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many images, balanced over the classes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Corrupted copies of a test set: 15 corruptions × 5 severities. Run it again to go on where it was stopped."""
    from antishortcut.data import open_sets
    from antishortcut.data.corruptions import (
        ALL,
        CORRUPTIONS,
        EXTRA,
        clean_chunk,
        contact_sheet,
        open_copies,
        striking,
        write_copies,
    )
    from antishortcut.data.splits import limited
    from antishortcut.fileio import atomic_write

    chosen = [name.strip() for name in names.split(",") if name.strip()] if names is not None else [*CORRUPTIONS]
    chosen = list(dict.fromkeys([*chosen, *(EXTRA if extra else ())]))
    for name in chosen:
        if name not in ALL:  # before the data set is opened, which may take a while
            raise UserError(f"no corruption {name!r}{suggest(name, ALL)}")
    sets = open_sets(data, data_root)
    test = next(iter(sets.tests)) if set_name is None else set_name
    if test not in sets.tests:
        raise UserError(f"{sets.name} has no test set {test!r}{suggest(test, sets.tests)}")
    images = limited(sets.tests[test], limit, 0, "--limit")
    facts = {"set": data, "test": test}
    write_copies(images, sets.image_size, out, names=chosen, seed=seed, frost=frost, facts=facts)
    copies = open_copies(out, len(sets.classes), needed=chosen)
    clean = clean_chunk(images, copies.side, 0)  # (B, S, S, 3)
    sheet, shown = copies.folder / SHEET, striking(clean)
    with atomic_write(sheet) as file:
        contact_sheet(copies, clean[shown], shown).save(file, format="PNG")
    rows = [{"name": name, "change": _changes(copies, name, clean)} for name in chosen]
    if as_json:
        print_json({"folder": str(copies.folder), "sheet": str(sheet), "facts": dict(copies.facts), "rows": rows})
        return
    title = f"{copies.count:,} images of {copies.side} × {copies.side}: mean change of a value out of 255, by severity"
    table(title, ("corruption", "1", "2", "3", "4", "5"), [(row["name"], *row["change"]) for row in rows])
    tell(f"{copies.folder}, contact sheet {sheet}")


def _changes(copies: Copies, name: str, clean: NDArray[np.uint8]) -> list[float]:
    """Mean of |corrupted − clean| over the first chunk, for each severity."""
    import numpy as np

    from antishortcut.data.corruptions import SEVERITIES
    from antishortcut.types import ImageSet

    changes = []
    for severity in SEVERITIES:
        part = copies.part(name, severity)
        assert isinstance(part, ImageSet)
        corrupted = part.image[: len(clean)].permute(0, 2, 3, 1).numpy()
        changes.append(round(float(np.abs(corrupted.astype(np.int16) - clean).mean()), 2))
    return changes


# --- asd stylize: copies of a test set in other textures ---

if TYPE_CHECKING:
    from antishortcut.config.recipe import DataSettings
    from antishortcut.evaluation.stylize.adain import Stylizer

DataArg = Annotated[
    str,
    typer.Argument(
        help="A data set (asd list datasets), or a recipe whose data are meant.", autocompletion=complete.data
    ),
]
OutArg = Annotated[Path, typer.Argument(help="The folder to write.")]
FileOption = Path | None


def stylize(
    data: DataArg,
    out: OutArg,
    vgg: Annotated[FileOption, typer.Option(help="Public weights: vgg_normalised.pth.")] = None,
    decoder: Annotated[FileOption, typer.Option(help="Public weights: decoder.pth.")] = None,
    magnify: Annotated[int, typer.Option(help="With public weights: enlarge images so many times meanwhile.")] = 1,
    stylizer: Annotated[FileOption, typer.Option(help="A folder that scripts/train_stylizer.py wrote.")] = None,
    styles: Annotated[FileOption, typer.Option(help="Pictures [default: training images of other classes].")] = None,
    alpha: Annotated[float, typer.Option(help="0 keeps the image, 1 gives it all of the style.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the choice of styles.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Stylise so many images, balanced over classes.")] = None,
    set_name: Annotated[str | None, typer.Option(help="Which test set [default: the first].")] = None,
    files: Annotated[bool, typer.Option("--files", help="Write PNGs to OUT/images/<class> too.")] = False,
    data_root: RootOption = None,
    download: DownloadOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write stylised copies of a test set: shapes stay, textures change. All methods see the same images."""
    from antishortcut.cli.evaluate import device_of
    from antishortcut.evaluation.stylize import write_stylized
    from antishortcut.training.pipeline import Session

    use_threads(threads)
    network = _stylizer(vgg, decoder, magnify, stylizer).to(device_of(device))
    sets = Session(Path("runs"), data_root, download=download).sets(data_settings(data))
    copies = write_stylized(
        network, sets, out, which=set_name, styles=styles, alpha=alpha, seed=seed, limit=limit, files=files
    )
    sheet, facts = out / "contact.png", dict(copies.facts)
    if as_json:
        print_json({"out": str(out), "sheet": str(sheet), "fingerprint": copies.fingerprint, "facts": facts})
        return
    names = ("set", "part", "count", "side", "weights", "styles", "alpha", "seed")
    table("stylised copies", ("", ""), [(name, str(facts[name])) for name in names])
    tell(sheet)


def _stylizer(vgg: Path | None, decoder: Path | None, magnify: int, stylizer: Path | None) -> Stylizer:
    """The public weights, or a stylizer that was trained."""
    from antishortcut.evaluation.stylize.adain import load, reference

    if vgg is not None and decoder is not None:
        return reference(vgg, decoder, magnify)
    if magnify != 1:
        raise UserError("--magnify goes with public weights (--vgg, --decoder)")
    if stylizer is None or vgg is not None or decoder is not None:
        raise UserError("give public weights, --vgg vgg_normalised.pth --decoder decoder.pth, or a trained --stylizer")
    return load(stylizer)


def data_settings(name: str) -> DataSettings:
    """The data of a recipe, or a data set by name; a name that is both means the same."""
    from antishortcut.config.recipe import DataSettings, load_recipe, shipped_recipes

    if name.endswith(".toml") or name.partition("@")[0] in shipped_recipes():
        return load_recipe(name).data
    return DataSettings(name=name)
