"""Disks that fill up, turn read-only, vanish, or flip a bit: a run ends identical or in one line, never otherwise.

    python -m torture.disk

Needs the right to mount a tmpfs, as root has it; without it only damaged files are tried.
"""

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from torture.forks import Command, part_main, progress, ready
from torture.kills import EXECUTION, TINY, differences
from torture.moments import reached

LONG = ["--set", "epochs=6", "--set", "teacher.epochs=2"]  # 48 steps of a student


class Setup:
    """A place with a taught teacher, a finished student, and one stopped in the middle."""

    def __init__(self, place: Path) -> None:
        self.place, self.log, self._number = place, place / "disk.log", 0
        self.recipe = place / "tiny.toml"
        self.recipe.write_text(TINY)
        self.whole = place / "whole"
        self.taught = place / "taught"
        assert self.run(self.whole) == 0, self.log.read_text()
        self.taught.mkdir()
        shutil.copytree(self.whole / "teachers", self.taught / "teachers")
        self.half = place / "half"
        shutil.copytree(self.taught, self.half)
        self.meanwhile(self.half, 9, lambda command: command.kill())

    def words(self, runs: Path) -> list[str]:
        words = ["distill", str(self.recipe), "--method", "asd", "--cache-teachers", "--runs", str(runs)]
        return [*words, *LONG, *EXECUTION]

    def run(self, runs: Path) -> int:
        """The command's exit code; anything else than success must be one line, and no traceback."""
        return self.ended(Command(self.words(runs), self.fresh()))

    def fresh(self) -> Path:
        self._number += 1
        self.log = self.place / f"disk-{self._number}.log"
        return self.log

    def ended(self, command: Command) -> int:
        code = command.wait()
        text = self.log.read_text(errors="replace")
        assert not re.search(r'File ".*/antishortcut/', text), text  # a traceback of ours, not of TensorBoard's thread
        assert code in (0, 2), f"exit code {code}: {text}"
        if code == 2:
            assert len([line for line in text.splitlines() if line.startswith("asd: ")]) == 1, text
        return code

    def meanwhile(self, runs: Path, step: int, act: Callable[[Command], object]) -> Command:
        """Start it and do something after this step."""
        command, folder = Command(self.words(runs), self.fresh()), runs / "tiny" / "asd-s1"
        while reached(folder) < step:
            assert command.poll() is None, self.log.read_text()
            time.sleep(0.001)
        act(command)
        return command

    def differences(self, runs: Path) -> list[str]:
        """Files other than undisturbed, but for the teachers' cache, of which a fault may leave any part."""
        return [name for name in differences(self.whole, runs) if "/cache/" not in name and name != "filler"]

    def same(self, runs: Path) -> None:
        if wrong := self.differences(runs):
            raise AssertionError(f"other than undisturbed: {wrong}; see {self.log}")


def damaged(setup: Setup, places: int, seed: int) -> dict[str, int]:
    """Bits flipped and ends cut off, in every region of every file that a run goes on from, one at a time."""
    chance, result = Random(seed), {"tries": 0, "identical": 0, "refused": 0}
    names = [str(path.relative_to(setup.half)) for path in _files(setup.half) if _counts(path)]
    for name in names:
        size = (setup.half / name).stat().st_size
        newest = name.endswith(".pt")
        for number in range(places if newest else max(places // 4, 1)):
            runs = setup.place / "damaged"
            shutil.rmtree(runs, ignore_errors=True)
            shutil.copytree(setup.half, runs)
            at = int((number + chance.random()) * size / places) if newest else chance.randrange(max(size, 1))
            _spoil(runs / name, at, "cut" if number % 3 == 2 else "flip", chance)
            code = setup.run(runs)
            result["tries"] += 1
            result["refused" if code else "identical"] += 1
            if code == 0:  # all but the damaged file itself: logs have no checksum, and some files are not read again
                wrong = [each for each in setup.differences(runs) if each != name]
                assert not wrong, f"{name} damaged, and {wrong} other than undisturbed"
    return result | {"files": len(names)}


def _files(runs: Path) -> list[Path]:
    return [path for path in sorted(runs.rglob("*")) if path.is_file()]


def _counts(path: Path) -> bool:
    """Files that are read again: not locks, curves, nor the older of two states."""
    states = sorted(path.parent.glob("*.pt"))
    older = path.suffix == ".pt" and path != states[-1]
    return not (older or "tensorboard" in path.parts or path.name == ".lock" or path.suffix == ".part")


def _spoil(path: Path, at: int, kind: str, chance: Random) -> None:
    data = bytearray(path.read_bytes())
    if kind == "cut" or not data:
        path.write_bytes(data[:at])
    else:
        data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def may_mount() -> bool:
    with tempfile.TemporaryDirectory() as place:
        try:
            with mounted(Path(place), "-t", "tmpfs", "-o", "size=1m", "none"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@contextmanager
def mounted(place: Path, *words: str) -> Iterator[Path]:
    _mount(*words, str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


@contextmanager
def small_disk(setup: Setup) -> Iterator[Path]:
    """A disk of its own with the teacher on it."""
    place = setup.place / "disk"
    place.mkdir(exist_ok=True)
    with mounted(place, "-t", "tmpfs", "-o", "size=256m", "none"):
        shutil.copytree(setup.taught / "teachers", place / "teachers")
        yield place


def _resize(place: Path, size: str) -> None:
    _mount("-o", f"remount,size={size}", str(place))


def full(setup: Setup, sizes: int) -> dict[str, int]:
    """A disk too small by every amount: it ends in one line; with more room the same command ends identical."""
    need = sum(path.stat().st_size for path in _files(setup.whole)) // 1024 + 4 * len(_files(setup.whole))
    result = {"tries": 0, "refused": 0, "identical": 0}
    for number in range(sizes):
        with small_disk(setup) as disk:
            used = shutil.disk_usage(disk).used // 1024
            _resize(disk, f"{used + (number + 1) * max(need - used, 64) // sizes}k")
            code = setup.run(disk)
            result["tries"] += 1
            result["refused"] += code == 2
            _resize(disk, "256m")
            assert setup.run(disk) == 0, setup.log.read_text()
            setup.same(disk)
            result["identical"] += 1
    return result


def full_for_a_while(setup: Setup) -> dict[str, int]:
    """Training goes on while nothing can be saved, says so, and ends identical once there is room again."""
    with small_disk(setup) as disk:

        def fill(command: Command) -> None:
            command.send(signal.SIGSTOP)  # it would be done before the disk is full
            with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(b"0" * 65536)
            command.send(signal.SIGCONT)
            end = time.monotonic() + 120
            while "could not be saved" not in setup.log.read_text():
                assert time.monotonic() < end, "no word of a state that could not be saved"
                assert command.poll() is None, setup.log.read_text()
                time.sleep(0.005)
            (disk / "filler").unlink()

        code = setup.ended(setup.meanwhile(disk, 5, fill))
        assert code == 0, setup.log.read_text()
        setup.same(disk)
    return {"tries": 1, "identical": 1}


def read_only(setup: Setup) -> dict[str, int]:
    """From the start, and turned so in the middle of a run, which is what a failing disk does."""
    with small_disk(setup) as disk:
        _mount("-o", "remount,ro", str(disk))
        assert setup.run(disk) == 2
        _mount("-o", "remount,rw", str(disk))
        assert setup.run(disk) == 0, setup.log.read_text()
        setup.same(disk)
    return {"tries": 1, "refused": 1, "identical": 1}


def vanished(setup: Setup) -> dict[str, int]:
    """Unmounted in the middle of a run: nothing is written to the empty place, and mounted again it goes on."""
    real, place = setup.place / "real", setup.place / "mount"
    shutil.rmtree(real, ignore_errors=True)
    shutil.copytree(setup.taught, real)
    place.mkdir(exist_ok=True)
    with mounted(place, "--bind", str(real)):

        def unmount(command: Command) -> None:
            subprocess.run(["umount", "-l", str(place)], check=True)

        code = setup.ended(setup.meanwhile(place, 9, unmount))
        assert code == 2, "a run whose folder is gone must not end well"
        left = [str(path.relative_to(place)) for path in place.rglob("*")]
        assert not left, f"written where nothing is mounted: {left}"
    with mounted(place, "--bind", str(real)):
        assert setup.run(place) == 0, setup.log.read_text()
        setup.same(place)
    return {"tries": 1, "refused": 1, "identical": 1}


def torment(places: int = 8, sizes: int = 4, seed: int = 1) -> dict[str, Any]:
    ready()
    place = Path(tempfile.mkdtemp(prefix="torture-"))
    setup = Setup(place)
    faults = {"damaged": damaged(setup, places, seed)}
    if may_mount():
        faults["full"] = full(setup, sizes)
        for name, fault in (("full for a while", full_for_a_while), ("read-only", read_only), ("vanished", vanished)):
            faults[name] = fault(setup)
    progress(faults)
    shutil.rmtree(place)
    return {"seed": seed, "identical": True, "faults": faults}


if __name__ == "__main__":
    part_main(torment)
