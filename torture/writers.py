"""The commands that make files of runs and images, killed at any moment: the same again ends in the same files.

    python -m torture.writers --kills 6 --seed 1

Each is carried out once alone, which tells how long it takes, then killed at moments drawn from that time. After every
kill a file under a real name is the one from before or the whole new one; at the end all are as if there had been none.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from torture.forks import Command, descendants, ready
from torture.kills import HOW, TINY, contents, gone, unlike

GROWING = ("metrics.jsonl", "manifest.json", "*.rows")  # files that grow with a training: whole, but not the last ones
RUNS = ["--runs", "{runs}"]


@dataclass(frozen=True)
class Writer:
    """A command whose files all lie below {runs}."""

    title: str
    words: list[str]
    first: list[str] | None = None  # carried out before, so that there is something to replace


def writers(teacher: str, recipe: str) -> list[Writer]:
    student, there = "{runs}/tiny/kd-s1", "{runs}/teachers/" + teacher
    report = ["report", "{runs}/tiny"]
    export = ["export", student, "--threads", "1", "--out", "{runs}/out", "--force", "--to"]
    audit = ["audit", "--teacher", there, "--early", "15%", "--limit", "64", "--threads", "1", "--out", "{runs}/out"]
    corrupt = ["corrupt", "cues", "{runs}/out", "--limit", "20", "--names", "fog,contrast,pixelate"]
    weights = ["--vgg", str(Path(recipe).with_name("vgg.pth")), "--decoder", str(Path(recipe).with_name("decoder.pth"))]
    return [
        Writer("report", report),
        Writer("report, again", [*report, "--columns", "last"], report),
        Writer("export", [*export, "torch"]),
        Writer("export, again", [*export, "safetensors"], [*export, "torch"]),
        Writer("audit", audit),
        Writer("audit, again", [*audit, "--student", student], audit),
        Writer("check", ["check", "cues", "--out", "{runs}/sheet.png"]),
        Writer("corrupt", corrupt),
        Writer("stylize", ["stylize", "cues", "{runs}/out", *weights, "--limit", "20", "--threads", "1", "--files"]),
        Writer("rewind", ["rewind", there, "--epochs", "2", *HOW, *RUNS]),
        Writer("distill with a cache", ["distill", recipe, "--method", "asd", "--cache-teachers", *HOW, *RUNS]),
    ]


def carried_out(writer: Writer, before: Path, kills: int, chance: Random) -> dict[str, Any]:
    place = before.parent
    whole, torn, log = place / "whole", place / "torn", place / "log"
    prepared(writer, before, whole)
    began = time.monotonic()
    assert _started(writer.words, whole, log).wait() == 0, log.read_text()
    seconds, required = time.monotonic() - began, contents(whole)
    message: dict[str, Any] = {"command": writer.title, "kills": 0, "missed": 0, "half": [], "differ": []}
    while message["kills"] < kills and message["missed"] < 3 * kills:
        prepared(writer, before, torn)
        was = contents(torn)
        for _ in range(chance.randint(1, 3)):
            if not struck(_started(writer.words, torn, log), chance.uniform(0.0, 1.05) * seconds):
                message["missed"] += 1
                break
            message["kills"] += 1
            for name, content in contents(torn).items():
                if not temporary(name) and content not in (was.get(name), required.get(name)):
                    message["half"].append(name)
        code = _started(writer.words, torn, log).wait()
        message["differ"] += [f"exit code {code}: {log.read_text()[-500:]}"] if code else unlike(whole, torn)
    message["identical"] = not message["half"] and not message["differ"]
    return message | {"seconds": round(seconds, 2)}


def temporary(name: str) -> bool:
    """Whether a file is known not to be a result: being written, kept to go on from, or growing."""
    path = Path(name)
    hidden = any(part.startswith(".") for part in path.parts)
    return hidden or "resume" in path.parts or any(path.match(pattern) for pattern in GROWING)


def struck(command: Command, after: float) -> bool:
    """Whether it was still there to be killed."""
    end = time.monotonic() + after
    while time.monotonic() < end and command.poll() is None:
        time.sleep(0.0005)
    if command.poll() is not None:
        return False
    family = list(descendants(command.pid))
    command.kill()
    gone(family)
    return command.code == -9


def prepared(writer: Writer, before: Path, runs: Path) -> None:
    shutil.rmtree(runs, ignore_errors=True)
    shutil.copytree(before, runs)
    if writer.first:
        assert _started(writer.first, runs, before.parent / "first.log").wait() == 0, writer.title


def _started(words: list[str], runs: Path, log: Path) -> Command:
    return Command([word.replace("{runs}", str(runs)) for word in words], log)


def torment(kills: int, seed: int, only: list[str] | None, say: Callable[[str], object]) -> dict[str, Any]:
    ready()
    import torch

    from antishortcut.evaluation.stylize.adain import reference_decoder, reference_vgg

    place, chance = Path(tempfile.mkdtemp(prefix="torture-")), Random(seed)
    recipe, before = place / "tiny.toml", place / "before"
    recipe.write_text(TINY)
    torch.save(reference_vgg().state_dict(), place / "vgg.pth")
    torch.save(reference_decoder().state_dict(), place / "decoder.pth")
    built = Command(["distill", str(recipe), "--method", "kd", *HOW, "--runs", str(before)], place / "before.log")
    assert built.wait() == 0, (place / "before.log").read_text()
    message = []
    for writer in writers(next((before / "teachers").iterdir()).name, str(recipe)):
        if only is None or writer.title in only:
            message.append(carried_out(writer, before, kills, chance))
            say(json.dumps(message[-1]))
    good = all(each["identical"] for each in message)
    if good:
        shutil.rmtree(place)
    else:
        say(f"kept for a look: {place}")
    return {"seed": seed, "kills": sum(each["kills"] for each in message), "identical": good, "cases": message}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--kills", type=int, default=6, help="of each command")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--only", help="commands, semicolon-separated")
    requested = words.parse_args()
    only = requested.only.split(";") if requested.only else None
    message = torment(requested.kills, requested.seed, only, lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(message, indent=1))
    sys.exit(not message["identical"])


if __name__ == "__main__":
    main()
