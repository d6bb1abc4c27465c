"""asd check, plant, corrupt, stylize: look at a data set, plant a shortcut in it, alter copies of its test images."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from antishortcut.cli import options
from antishortcut.cli.options import JsonOption, RootOption, SeedOption, print_json, table, tell
from antishortcut.config.recipe import DataSettings, Recipe, load_recipe, shipped_recipes, with_settings
from antishortcut.errors import UserError, plural, suggest
from antishortcut.fileio import atomic_write, expanded, near_folder
from antishortcut.progress import ProgressBar

if TYPE_CHECKING:
    from antishortcut.evaluation.adain import Stylizer

BAR = 30  # characters of the longest bar
PAIR = "--teacher timm:resnet50 --student timm:mobilenetv3_small_100"  # to begin with
DENSE_PAIR = "--teacher deeplabv3-resnet50 --student deeplabv3-mobilenetv2"
DATA = "A folder of images, folder:PATH, groups:PATH, a data set or a recipe (asd list)."
DataArg = Annotated[str, Argument(help=DATA, autocompletion=options.data)]


def check(
    data: DataArg,
    data_root: RootOption = None,
    set_: options.SetOption = None,
    out: Annotated[Path | None, Option(help="Draw images as they are and as training sees them: sheet.png.")] = None,
    threads: options.ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Look before you train: counts, balance, sizes, unreadable files, copies of test images, advice.

    Every image is decoded. The exit code is 2 if training would fail; the report is printed anyway.
    """
    from antishortcut.data import inspect

    if out is not None and out.suffix.lower() != ".png":
        raise UserError(f"--out {out}: name a PNG file, like sheet.png")
    options.use_hardware("cpu", threads)
    settings, recipe = data_settings(data, set_ or [])
    keys = {"seed", "train_limit", "test_limit", "val_fraction", "image_size", "options"}
    finding = inspect.open_finding(settings.name, data_root, **settings.model_dump(include=keys))
    if recipe is None and settings.image_size is None:  # as asd distill chooses it
        finding = replace(finding, image_size=inspect.usual_side(finding))
    augment = settings.augment if "augment" in settings.model_fields_set else inspect.usual_augment(finding)
    inspect.check_augment(finding, augment)
    done = itertools.count(1)
    with ProgressBar(f"check {finding.name}", sum(map(len, finding.splits.values()))) as bar:
        looked = partial(inspect.look, tell=lambda: bar.update(next(done), {}))
        scans = {name: looked(images) for name, images in finding.splits.items()}
    facts = inspect.summarise(finding, scans)
    problems = inspect.problems(facts)
    pair = f"--data {shlex.quote(settings.name)} {DENSE_PAIR if finding.dense else PAIR}"
    facts |= {
        "augment": augment,
        "problems": problems,
        "advice": inspect.advice(finding, facts, settings.val_fraction),
        "next": "asd check again when that is fixed" if problems else f"asd distill {recipe or pair}",
        "sheet": out and str(out),
    }
    if out is not None:
        from antishortcut.evaluation.segmentation_scores import palette

        colours = palette(len(finding.classes)) if finding.dense else []
        sheet = inspect.contact_sheet(finding, scans["train"], augment, settings.seed, colours)
        with atomic_write(out) as file:
            sheet.save(file, format="PNG")
    if as_json:
        print_json(facts)
    else:
        _show_check(facts, inspect.SHOWN)
    if problems:
        raise UserError(f"{settings.name}: training would stop: {'; '.join(problems)}")


def plant(
    data: DataArg,
    out: Annotated[Path, Option(help="The contact sheet to write.")] = Path("plant.png"),
    rho: Annotated[float, Option(help="Share of images whose planted cue agrees with their class.")] = 0.9,
    data_root: RootOption = None,
    set_: options.SetOption = None,
    threads: options.ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """See your images with a planted shortcut of every kind, and how to train on them.

    A self-test of your pipeline: if a student is much worse on `conflict`, where the cue lies, it was passed on.
    """
    from antishortcut.data import planted
    from antishortcut.data.datasets import find

    if out.suffix.lower() != ".png":
        raise UserError(f"--out {out}: name a PNG file, like plant.png")
    options.use_hardware("cpu", threads)
    settings, _ = data_settings(data, set_ or [])
    if settings.name.startswith(planted.PREFIX) or "rho" in settings.options:
        raise UserError(f"{data}: name the set without a shortcut, and how often it agrees as --rho")
    names = {kind: f"shortcut:{settings.name}?kind={kind}&rho={rho:g}" for kind in planted.KINDS}
    keys = {"seed", "image_size", "options"}
    raw = [find(name, data_root, **settings.model_dump(include=keys))[0] for name in names.values()]
    sheet = planted.contact_sheet(dict(zip(names, raw, strict=True)), settings.seed)
    with atomic_write(out) as file:
        sheet.save(file, format="PNG")
    if as_json:
        print_json({"sheet": str(out), "names": names})
        return
    tell(f"contact sheet: {out}")
    for name in names.values():
        tell(f"  {name}")
    tell(f"next: asd distill --data {shlex.quote(names['patch'])} {PAIR}")


def data_settings(data: str, overrides: Sequence[str] = ()) -> tuple[DataSettings, str | None]:
    """The data settings of a recipe, a data set or a folder; and the recipe, if it is one. Recipes come first."""
    from antishortcut.data.datasets import DATASETS, WITH_PATH

    overrides = [text for text in overrides if not text.startswith("method.")]  # as for distill
    if Path(data).is_file() or data.partition("@")[0] in shipped_recipes():
        return load_recipe(data, overrides).data, data
    if data in WITH_PATH or data.partition(":")[0] not in DATASETS:  # "unlabelled" without a path is a folder's name
        folder = expanded(data)
        if not folder.is_dir():
            hint = near_folder(data) or suggest(data, dict.fromkeys([*DATASETS, *shipped_recipes()]))
            raise UserError(f"{data!r} is no folder, data set or recipe{hint}")
        data = f"{'groups' if (folder / 'metadata.csv').is_file() else 'folder'}:{data}"
    sections = {"data": {"name": data}, "teacher": {"name": "none"}, "student": {"name": "none"}}
    recipe = Recipe.model_validate({"title": "--set", "epochs": 1, **sections})
    return with_settings(recipe, overrides).data, None


def _show_check(facts: dict[str, Any], most: int) -> None:
    side, augment, masks = facts["image_size"], facts["augment"], facts.get("masks", {})
    tell(f"{facts['data']}: {plural(facts['classes'], 'class')}, networks see {side} × {side}, augmentation {augment}")
    names = [row["split"] for row in facts["splits"]]
    renamed = {"test": f"test ({facts['held']}/)"} if facts["held"] not in ("", "test") else {}
    rows = [row | {"split": renamed.get(row["split"], row["split"])} for row in facts["splits"]]
    table("splits", ["split", *list(rows[0])[1:]], [tuple(row.values()) for row in rows])
    title, rows = ("share of labelled pixels", masks["frequency"]) if masks else ("images", facts["balance"])
    ranked, half = sorted(rows, key=lambda row: -row["train"]), most // 2
    longest = max((row["train"] for row in rows), default=0) or 1
    if len(ranked) > most:
        ranked, title = [*ranked[:half], *ranked[-half:]], f"{title}: the {half} largest and the {half} smallest"
    ranked = [row | {"bar": "█" * round(BAR * row["train"] / longest)} for row in ranked]
    table(f"{title} by class", {"class": "class", **dict(zip(names, names, strict=True)), "bar": ""}, ranked)
    for line in _summary(facts):
        tell(line)
    duplicates = facts["duplicates"]
    lists = {
        "cannot be used": facts["unreadable"],
        "the same image in two splits": [" = ".join(names) for names in duplicates["across"]],
        "the same image in two classes": [" = ".join(names) for names in duplicates["two_classes"]],
    }
    for title, lines in lists.items():
        more = [f"and {len(lines) - most:,} more"] if len(lines) > most else []
        if lines:
            tell("\n  ".join([f"{title}:", *lines[:most], *more]))
    for line in facts["advice"]:
        tell(f"- {line}")
    if facts["sheet"]:
        tell(f"contact sheet: {facts['sheet']}")
    tell(f"next: {facts['next']}")


def _summary(facts: dict[str, Any]) -> Iterator[str]:
    if sizes := facts["sizes"]:
        small, middle, large = (" × ".join(map(str, sizes[key])) for key in ("smallest", "median", "largest"))
        yield f"sizes: {small} to {large}, median {middle}; {sizes['smaller']:,} below {facts['image_size']}"
    leaked = [f"{count:,} of {name}" for name, count in facts["duplicates"]["leaked"].items() if count]
    yield f"training images in other splits: {', '.join(leaked) or 'none'}"
    if "masks" in facts:
        yield "void: " + ", ".join(f"{share:.1%} of {name}" for name, share in facts["masks"]["void"].items())
    if not facts["unreadable"]:
        yield "cannot be used: none"
    yield f"changes to the images are detected by their {facts['hashed']}"


# --- asd corrupt ---


def corrupt(
    data: Annotated[str, Argument(help="asd list datasets, or folder:PATH.", autocompletion=options.datasets)],
    out: Annotated[Path, Argument(help="Where the copies go: <corruption>.npy, labels.npy, facts.json.")],
    names: Annotated[str | None, Option(help="Corruptions, comma-separated [default: the fifteen].")] = None,
    seed: SeedOption = 0,
    frost: Annotated[Path | None, Option(help="Folder of frost pictures [default: drawn crystals].")] = None,
    data_root: RootOption = None,
    set_name: options.TestSetOption = None,
    limit: Annotated[int | None, Option(help="At most so many images, balanced over the classes.")] = None,
    workers: Annotated[int | None, Option(min=1, help="Processes [default: a core each, one for small sets].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Corrupted copies of a test set: 15 corruptions × 5 severities. Run it again to resume."""
    from antishortcut.data import corruptions, open_sets
    from antishortcut.data.splits import limited

    chosen = options.split_names(names) if names is not None else list(corruptions.CORRUPTIONS)
    for name in chosen:
        if name not in corruptions.CORRUPTIONS:  # before the data set is opened, which may take a while
            raise UserError(f"no corruption {name!r}{suggest(name, corruptions.CORRUPTIONS)}")
    sets = open_sets(data, data_root)
    test = next(iter(sets.tests)) if set_name is None else set_name
    if test not in sets.tests:
        raise UserError(f"{sets.name} has no test set {test!r}{suggest(test, sets.tests)}")
    images = limited(sets.tests[test], limit, 0, "--limit")
    facts = {"set": data, "test": test}
    choice: dict[str, Any] = {"names": chosen, "seed": seed, "frost": frost, "processes": workers, "facts": facts}
    if not corruptions.write_copies(images, sets.image_size, out, **choice):
        tell(f"{out}: already finished", file=sys.stderr)
    copies = corruptions.open_copies(out, len(sets.classes), needed=chosen)
    clean = corruptions.clean_chunk(images, copies.side, 0)  # (B, S, S, 3)
    sheet = copies.folder / "contact.png"
    with atomic_write(sheet) as file:
        corruptions.contact_sheet(copies, clean[0]).save(file, format="PNG")
    if as_json:
        print_json({"folder": str(copies.folder), "sheet": str(sheet), "facts": dict(copies.facts)})
    else:
        tell(f"{copies.count:,} images of {copies.side} × {copies.side} under {plural(len(chosen), 'corruption')}")
        tell(f"{copies.folder}, contact sheet {sheet}")


# --- asd stylize ---


def stylize(
    data: DataArg,
    out: Annotated[Path, Argument(help="The folder to write.")],
    vgg: Annotated[Path | None, Option(help="Public weights: vgg_normalised.pth.")] = None,
    decoder: Annotated[Path | None, Option(help="Public weights: decoder.pth.")] = None,
    magnify: Annotated[int, Option(help="With public weights: enlarge the images so many times meanwhile.")] = 1,
    stylizer: Annotated[Path | None, Option(help="A folder that scripts/train_stylizer.py wrote.")] = None,
    styles: Annotated[Path | None, Option(help="Pictures [default: training images of other classes].")] = None,
    alpha: Annotated[float, Option(help="0 keeps the image, 1 applies the whole style.")] = 1.0,
    seed: SeedOption = 0,
    limit: Annotated[int | None, Option(help="Stylise so many images, balanced over classes.")] = None,
    set_name: options.TestSetOption = None,
    files: Annotated[bool, Option("--files", help="Write PNGs to OUT/images/<class> too.")] = False,
    data_root: RootOption = None,
    download: options.DownloadOption = False,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write stylised copies of a test set: shapes stay, textures change."""
    from antishortcut.evaluation.stylize import write_stylized
    from antishortcut.training.pipeline import Session

    device, before = options.use_hardware(device, threads), (out / "facts.json").exists()
    network = _stylizer(vgg, decoder, magnify, stylizer).to(device)
    sets = Session(Path("runs"), data_root, download=download).sets(data_settings(data)[0])
    choice: dict[str, Any] = {"which": set_name, "styles": styles, "alpha": alpha, "seed": seed}
    copies = write_stylized(network, sets, out, **choice, limit=limit, files=files)
    if before:
        tell(f"{out}: already finished", file=sys.stderr)
    sheet, facts = out / "contact.png", dict(copies.facts)
    if as_json:
        print_json({"out": str(out), "sheet": str(sheet), "fingerprint": copies.fingerprint, "facts": facts})
        return
    names = ("set", "part", "count", "side", "weights", "styles", "alpha", "seed")
    table("stylised copies", ("", ""), [(name, str(facts[name])) for name in names])
    tell(sheet)


def _stylizer(vgg: Path | None, decoder: Path | None, magnify: int, stylizer: Path | None) -> Stylizer:
    """The public weights, or a trained stylizer."""
    from antishortcut.evaluation.adain import load, reference

    if vgg is not None and decoder is not None:
        return reference(vgg, decoder, magnify)
    if magnify != 1:
        raise UserError("--magnify goes with public weights (--vgg, --decoder)")
    if stylizer is None or vgg is not None or decoder is not None:
        raise UserError("give public weights, --vgg vgg_normalised.pth --decoder decoder.pth, or a trained --stylizer")
    return load(stylizer)
