"""asd corrupt: corrupted copies of a test set, as CIFAR-C and ImageNet-C have them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antishortcut.cli import complete
from antishortcut.cli.options import JsonOption, RootOption, print_json, table, tell
from antishortcut.errors import UserError, near

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
    from antishortcut.run_dir import replacing

    chosen = [name.strip() for name in names.split(",") if name.strip()] if names is not None else [*CORRUPTIONS]
    chosen = list(dict.fromkeys([*chosen, *(EXTRA if extra else ())]))
    for name in chosen:
        if name not in ALL:  # before the data set is opened, which may take a while
            raise UserError(f"no corruption {name!r}{near(name, ALL)}")
    sets = open_sets(data, data_root)
    test = next(iter(sets.tests)) if set_name is None else set_name
    if test not in sets.tests:
        raise UserError(f"{sets.name} has no test set {test!r}{near(test, sets.tests)}")
    images = limited(sets.tests[test], limit, 0, "--limit")
    facts = {"set": data, "test": test}
    write_copies(images, sets.image_size, out, names=chosen, seed=seed, frost=frost, facts=facts)
    copies = open_copies(out, len(sets.classes), needed=chosen)
    clean = clean_chunk(images, copies.side, 0)  # (B, S, S, 3)
    sheet, shown = copies.folder / SHEET, striking(clean)
    with replacing(sheet) as file:
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
