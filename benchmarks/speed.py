"""Every measurement of docs/results/speed.md, one after the other, on an idle machine.

`python benchmarks/speed.py [--out docs/results/speed] [--only steps,methods,…]` writes a JSON file for each, then fills
the page's tables from them. Two threads, about an hour on two cores; `reference` makes a venv for torchdistill first.
steps and steps_bfloat16 are one measurement on two kinds of processor; this one's is made.
precision wants CIFAR-100 below --data-root, and keeps its runs in --runs.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from antishortcut.teachers.frozen import fastest_precision

HERE = Path(__file__).resolve().parent
PAIRS = ("wrn-40-2:wrn-16-2", "resnet32x4:resnet8x4")
OTHERS = ("P1", "P4", "P5", "P6", "P7", "P8", "P9", "P10")
LARGER = ("P11", "P12", "P13")  # of larger images: all methods of a batch of 64 at once want more than 24 GB
UNCOMPILED = ("--teacher-compile", "off")


def asked_of(*words: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE).stdout
    )
    return result


def bench(pair: str, methods: str, rounds: int, *more: str) -> dict[str, Any]:
    words = ("--pair", pair, "--methods", methods, "--rounds", str(rounds), "--threads", "2", "--json", *more)
    return asked_of("-m", "antishortcut", "bench", *words)


def steps() -> dict[str, Any]:
    return {pair: bench(pair, "kd,asd", 30) for pair in PAIRS}


def script(name: str, *words: str) -> dict[str, Any]:
    return asked_of(str(HERE / f"{name}.py"), *words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "speed")
    parser.add_argument("--only")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--data-root", default="data")
    requested = parser.parse_args()
    place = ("--runs", requested.runs, "--data-root", requested.data_root)
    pieces: dict[str, Callable[[], Any]] = {
        "steps": steps,
        "steps_bfloat16": steps,
        "pairs": lambda: {pair: bench(pair, "kd,asd", 5, *UNCOMPILED) for pair in OTHERS},
        "larger": lambda: {pair: bench(pair, "kd,asd", 3, *UNCOMPILED, "--batch", "8") for pair in LARGER},
        "methods": lambda: bench(PAIRS[0], "all", 10, *UNCOMPILED),
        "reference": lambda: {pair: script("torchdistill_reference", "--pair", pair) for pair in PAIRS},
        "scaling": lambda: script("scaling"),
        "batches": lambda: script("batches"),
        "precision": lambda: script("precision", *place),
    }
    other = "steps" if fastest_precision(torch.device("cpu")) == "bfloat16" else "steps_bfloat16"
    chosen = requested.only.split(",") if requested.only else [name for name in pieces if name != other]
    requested.out.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        print(name, file=sys.stderr)
        (requested.out / f"{name}.json").write_text(json.dumps(pieces[name](), indent=1) + "\n")
    subprocess.run([sys.executable, str(HERE / "page.py")], check=True)


if __name__ == "__main__":
    main()
