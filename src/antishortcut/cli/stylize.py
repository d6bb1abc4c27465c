"""asd stylize: copies of a test set in other textures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import complete
from antishortcut.cli.options import (
    DeviceOption,
    DownloadOption,
    JsonOption,
    RootOption,
    RunsOption,
    ThreadsOption,
    print_json,
    table,
    tell,
    use_threads,
    workshop,
)
from antishortcut.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from antishortcut.folder import Folder
    from antishortcut.run import DataSettings, Recipe, Run
    from antishortcut.stylize.nets import Stylizer
    from antishortcut.stylize.training import Training
    from antishortcut.workflow import Workshop

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
    train: Annotated[bool, typer.Option("--train", help="Train a stylizer on these data when there is none.")] = False,
    vgg: Annotated[FileOption, typer.Option(help="Public weights: vgg_normalised.pth.")] = None,
    decoder: Annotated[FileOption, typer.Option(help="Public weights: decoder.pth.")] = None,
    magnify: Annotated[int, typer.Option(help="With public weights: enlarge images so many times meanwhile.")] = 1,
    stylizer: Annotated[FileOption, typer.Option(help="A trained one: its folder or its hash.")] = None,
    encoder: Annotated[FileOption, typer.Option(help="A trained vgg8 or vgg13: run folder or weights.")] = None,
    styles: Annotated[FileOption, typer.Option(help="Pictures [default: training images of other classes].")] = None,
    alpha: Annotated[float, typer.Option(help="0 keeps the image, 1 gives it all of the style.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the choice of styles.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Stylise so many images, balanced over classes.")] = None,
    set_name: Annotated[str | None, typer.Option(help="Which test set [default: the first].")] = None,
    model: Annotated[str, typer.Option(help="The encoder to train: vgg8 or vgg13.")] = "vgg8",
    epochs: Annotated[int, typer.Option(help="Of the encoder's training.")] = 12,
    steps: Annotated[int, typer.Option(help="Of the decoder's training.")] = 2000,
    depth: Annotated[
        int | None, typer.Option(help="Stages of the encoder, 1 to 4: more change more [default: by image size].")
    ] = None,
    train_limit: Annotated[int | None, typer.Option(help="Train on so many images.")] = None,
    files: Annotated[bool, typer.Option("--files", help="Write PNGs to OUT/images/<class> too.")] = False,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: DownloadOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write stylised copies of a test set: shapes stay, textures change. All methods see the same images."""
    from antishortcut.stylize import check_request, write_stylized

    use_threads(threads)
    shop = workshop(runs, data_root, download, device=device, precision="32-true", threads=threads, workers=0)
    settings, place = _data(data), _place(device)
    request: dict[str, Any] = {"which": set_name, "styles": styles, "alpha": alpha, "seed": seed, "limit": limit}
    check_request(shop.sets(settings), out, **request)  # what cannot be is said before a stylizer is trained
    made = _given(runs, vgg, decoder, magnify, stylizer)
    if made is None:
        from antishortcut.stylize.training import Training

        training = Training(steps=steps, depth=depth)
        recipe = _recipe(settings, shop, model, epochs, train_limit)
        made = _own(recipe, shop, encoder, training, train, place)
    copies = write_stylized(made.to(place), shop.sets(settings), out, files=files, **request)
    _show(out, dict(copies.facts), copies.fingerprint, as_json)


def _place(device: str) -> str:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {device}: not here; use cpu")
    return "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")


def _given(runs: Path, vgg: Path | None, decoder: Path | None, magnify: int, stylizer: Path | None) -> Stylizer | None:
    """The stylizer that was named: public weights, or one of ours by folder or hash."""
    from antishortcut.stylize.weights import load, reference

    if (vgg is None) != (decoder is None):
        raise UserError("public weights are two files: give --vgg and --decoder")
    if vgg is not None and decoder is not None:
        return reference(vgg, decoder, magnify)
    if magnify != 1:
        raise UserError(
            "--magnify goes with public weights (--vgg, --decoder); our own are trained at the images' size"
        )
    if stylizer is None:
        return None
    return load(stylizer if stylizer.is_dir() else runs / "stylizers" / stylizer)


def _data(name: str) -> DataSettings:
    """The data of a recipe, or a data set by name; a name that is both means the same."""
    from antishortcut.run import DataSettings, load_recipe, shipped_recipes

    if name.endswith(".toml") or name.partition("@")[0] in shipped_recipes():
        return load_recipe(name).data
    return DataSettings(name=name)


def _recipe(data: DataSettings, shop: Workshop, model: str, epochs: int, train_limit: int | None) -> Recipe:
    """The training of the encoder as a classifier of the same images. Images are not mirrored: some are chiral."""
    from antishortcut.run import ModelSettings, OptimSettings, Recipe, TeacherSettings
    from antishortcut.stylize.weights import NAMES

    if model not in NAMES:
        raise UserError(f"--model {model}: an encoder is one of {', '.join(NAMES)}")
    if not 1 <= epochs <= 10**9 or (train_limit is not None and not 1 <= train_limit <= 10**9):
        raise UserError("--epochs and --train-limit must be at least 1, and within reason")
    large = shop.sets(data).image_size > 64
    fewer = {} if train_limit is None else {"train_limit": train_limit}
    return Recipe(
        epochs=epochs,
        data=data.model_copy(update={"augment": "imagenet" if large else "crop"} | fewer),
        teacher=TeacherSettings(name=model, keep=(100,)),
        student=ModelSettings(name=model),
        optim=OptimSettings(nesterov=True),
    )


def _own(
    recipe: Recipe, shop: Workshop, encoder: Path | None, training: Training, train: bool, device: str
) -> Stylizer:
    """The stylizer of these settings, trained when that was asked for."""
    from antishortcut.stylize.training import folder_of, settings_of, train_stylizer
    from antishortcut.stylize.weights import load

    sets = shop.sets(recipe.data)
    network = _network(recipe, shop, encoder, train)
    if network is not None and train:
        return load(train_stylizer(network, sets, shop.runs, training, device=device, quiet=shop.quiet))
    folder = None if network is None else folder_of(shop.runs, settings_of(network, sets, training))
    if folder is None or not (folder / "facts.json").exists():
        there = sorted(path.parent.name for path in shop.runs.glob("stylizers/*/facts.json"))
        more = f", or --stylizer with one that is there ({', '.join(there[:5])})" if there else ""
        raise UserError(
            f"no stylizer with these settings below {shop.runs / 'stylizers'}: train one with --train, "
            f"or give the public weights with --vgg vgg_normalised.pth --decoder decoder.pth{more}"
        )
    return load(folder)


def _network(recipe: Recipe, shop: Workshop, encoder: Path | None, train: bool) -> nn.Module | None:
    """The trained VGG: the one given, the one of this recipe, or None when there is neither."""
    from antishortcut.folder import Folder
    from antishortcut.run import teach_run
    from antishortcut.stylize.weights import network_from
    from antishortcut.workflow import teach

    if encoder is not None:
        if encoder.is_dir():
            run, _ = Folder(encoder).read()
            return network_from(_final(Folder(encoder), run))
        return network_from(encoder)
    run = teach(recipe, shop) if train else teach_run(recipe, shop.sets(recipe.data).fingerprint)
    folder = Folder(run.folder(shop.runs))
    return network_from(_final(folder, run)) if folder.finished else None


def _final(folder: Folder, run: Run) -> Path:
    """The file of a finished run's last weights."""
    from antishortcut.teachers import Trajectory

    if not folder.finished:
        raise UserError(f"{folder.path} is not finished; run its command again to go on with it")
    return folder.snapshots / Trajectory(folder).entry("final")["file"] if run.keep else folder.weights()


def _show(out: Path, facts: dict[str, Any], fingerprint: str, as_json: bool) -> None:
    if as_json:
        print_json({"out": str(out), "sheet": str(out / "contact.png"), "fingerprint": fingerprint, "facts": facts})
        return
    names = ("set", "part", "count", "side", "weights", "styles", "alpha", "seed")
    table("stylised copies", ("", ""), [(name, str(facts[name])) for name in names])
    tell(out / "contact.png")
