"""The commands that make files of runs and images, killed at any moment: the same again ends in the same files.

    python -m torture.writers --kills 2 --seed 1

Each runs once uninterrupted, which tells how long it takes, and is then killed at moments drawn from that time. After
every kill a file under a real name is the one from before or the whole new one; at the end all are as without kills.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from torture.forks import Command, descendants, part_main, progress, ready
from torture.kills import EXECUTION, TINY, contents, differences, wait_until_ended

GROWING = ("metrics.jsonl", "manifest.json", "*.rows")  # files that grow with a training: whole, but not the last ones
RUNS = ["--runs", "{runs}"]


@dataclass(frozen=True)
class Writer:
    """A command whose files all lie below {runs}."""

    title: str
    words: list[str]
    first: list[str] | None = None  # runs before, so that there is something to replace


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
        Writer("check", ["check", recipe, "--out", "{runs}/sheet.png"]),
        Writer("corrupt", corrupt),
        Writer("stylize", ["stylize", "cues", "{runs}/out", *weights, "--limit", "20", "--threads", "1", "--files"]),
        Writer("rewind", ["rewind", there, "--epochs", "2", *EXECUTION, *RUNS]),
        Writer("distill with a cache", ["distill", recipe, "--method", "asd", "--cache-teachers", *EXECUTION, *RUNS]),
    ]


def try_writer(writer: Writer, before: Path, kills: int, chance: Random) -> dict[str, Any]:
    place = before.parent
    whole, torn, log = place / "whole", place / "torn", place / "log"
    prepare(writer, before, whole)
    began = time.monotonic()
    assert _start(writer.words, whole, log).wait() == 0, log.read_text()
    seconds, expected = time.monotonic() - began, contents(whole)
    result: dict[str, Any] = {"command": writer.title, "kills": 0, "missed": 0, "half": [], "differ": []}
    while result["kills"] < kills and result["missed"] < 3 * kills:
        prepare(writer, before, torn)
        was = contents(torn)
        for _ in range(chance.randint(1, 3)):
            if not kill_after(_start(writer.words, torn, log), chance.uniform(0.0, 1.05) * seconds):
                result["missed"] += 1
                break
            result["kills"] += 1
            for name, content in contents(torn).items():
                if not temporary(name) and content not in (was.get(name), expected.get(name)):
                    result["half"].append(name)
        code = _start(writer.words, torn, log).wait()
        # temporary files outside run folders stay after a kill (docs/reliability.md, not promised)
        changed = [name for name in differences(whole, torn) if "/" in name or not name.endswith(".part")]
        result["differ"] += [f"exit code {code}: {log.read_text()[-500:]}"] if code else changed
    result["identical"] = not result["half"] and not result["differ"]
    return result | {"seconds": round(seconds, 2)}


def temporary(name: str) -> bool:
    """Whether a file is known not to be a result: being written, kept to go on from, or growing."""
    path = Path(name)
    hidden = any(name.startswith(".") for name in path.parts)
    return hidden or "resume" in path.parts or any(path.match(pattern) for pattern in GROWING)


def kill_after(command: Command, after: float) -> bool:
    """Whether it was still there to be killed."""
    end = time.monotonic() + after
    while time.monotonic() < end and command.poll() is None:
        time.sleep(0.0005)
    if command.poll() is not None:
        return False
    family = list(descendants(command.pid))
    command.kill()
    wait_until_ended(family)
    return command.code == -9


def prepare(writer: Writer, before: Path, runs: Path) -> None:
    shutil.rmtree(runs, ignore_errors=True)
    shutil.copytree(before, runs)
    if writer.first:
        assert _start(writer.first, runs, before.parent / "first.log").wait() == 0, writer.title


def _start(words: list[str], runs: Path, log: Path) -> Command:
    return Command([word.replace("{runs}", str(runs)) for word in words], log)


def torment(kills: int = 2, seed: int = 1, only: str = "") -> dict[str, Any]:
    """So many kills of every command, or of those in `only` (semicolon-separated)."""
    ready()
    import torch

    from antishortcut.evaluation.adain import reference_decoder, reference_vgg

    place, chance = Path(tempfile.mkdtemp(prefix="torture-")), Random(seed)
    recipe, before = place / "tiny.toml", place / "before"
    recipe.write_text(TINY)
    torch.save(reference_vgg().state_dict(), place / "vgg.pth")
    torch.save(reference_decoder().state_dict(), place / "decoder.pth")
    words = ["distill", str(recipe), "--method", "kd", *EXECUTION, "--runs", str(before)]
    assert Command(words, place / "before.log").wait() == 0, (place / "before.log").read_text()
    results = []
    for writer in writers(next((before / "teachers").iterdir()).name, str(recipe)):
        if not only or writer.title in only.split(";"):
            results.append(try_writer(writer, before, kills, chance))
            progress(results[-1])
    identical = all(each["identical"] for each in results)
    if identical:
        shutil.rmtree(place)
    return {"seed": seed, "kills": sum(each["kills"] for each in results), "identical": identical, "cases": results}


if __name__ == "__main__":
    part_main(torment)
