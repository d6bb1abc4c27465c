"""asd bench: what a training step costs."""

from __future__ import annotations

from typing import Annotated

import typer

from antishortcut.cli.options import DeviceOption, JsonOption, ThreadsOption, print_json, table, use_threads
from antishortcut.errors import UserError


def bench(
    pair: Annotated[str, typer.Option(help="TEACHER:STUDENT.")] = "wrn-40-2:wrn-16-2",
    methods: Annotated[str, typer.Option(help="Comma-separated.")] = "kd,asd,contrast",
    batch: Annotated[int, typer.Option(min=2, help="Images a step.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each method that are counted.")] = 20,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    compile: Annotated[
        str, typer.Option("--teacher-compile", help="on, off; auto: compile, and keep what is faster.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Milliseconds of a training step by method, interleaved, with ratios and where the time goes."""
    import torch

    from antishortcut.bench import PARTS
    from antishortcut.bench import bench as measure
    from antishortcut.console import Watch

    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not names:
        raise UserError("--methods names none; asd list methods shows them")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device {device}: not here; use cpu")
    if compile not in ("on", "off", "auto"):
        raise UserError(f"--teacher-compile {compile}: on, off or auto")
    use_threads(threads)
    with Watch(f"bench {pair}", rounds + 2) as watch:
        found = measure(
            pair, names, batch=batch, rounds=rounds, device=device, compile=compile, tell=lambda n: watch.update(n, {})
        )
    if as_json:
        print_json(found)
        return
    rows = [
        (name, found["teacher_passes"][name], ms, *found["split"][name].values()) for name, ms in found["ms"].items()
    ]
    table(f"ms a step, {pair}, batch {batch}, median of {rounds}", ("method", "teacher passes", "step", *PARTS), rows)
    table("ratios, round by round", ("", "ratio"), list(found["ratio"].items()))
