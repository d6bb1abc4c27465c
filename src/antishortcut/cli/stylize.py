"""asd stylize: copies of a test set in other textures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antishortcut.cli import complete
from antishortcut.cli.options import (
    DeviceOption,
    DownloadOption,
    JsonOption,
    RootOption,
    ThreadsOption,
    print_json,
    table,
    tell,
    use_threads,
)
from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.config.recipe import DataSettings
    from antishortcut.evaluation.stylize.nets import Stylizer

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
    from antishortcut.training.pipeline import Workshop

    use_threads(threads)
    network = _stylizer(vgg, decoder, magnify, stylizer).to(device_of(device))
    sets = Workshop(Path("runs"), data_root, download=download).sets(data_settings(data))
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
    from antishortcut.evaluation.stylize.weights import load, reference

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
