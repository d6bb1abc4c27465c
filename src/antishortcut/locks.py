"""One process at a time in a folder, and who it is. No torch.

The lock is `flock` on the file .lock, which goes with its process, however that ends; the file says who holds it. Where
a file system has no flock, or keeps it to one machine, the holder is whom the file .held names: on this machine for as
long as that process lives, on another one for as long as it touches the file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

BEAT, STALE = 20.0, 120.0  # seconds: how often a holder touches .held, and after which silence it counts as gone
LONGEST = 4_000  # characters of what a holder says of itself
NO_FLOCK = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
LOCAL = {"nfs": ("nolock", "local_lock=all", "local_lock=flock"), "lustre": ("localflock",), "fuse.sshfs": ("",)}


@dataclass(frozen=True)
class Holder:
    """A process, known also when its number has been given to another."""

    pid: int = 0
    host: str = ""
    since: str = ""
    born: int = 0  # ticks between the machine's start and the process's

    def __str__(self) -> str:
        if not self.pid:
            return "?"
        words = (str(self.pid), self.host and f"on {self.host}", self.since and f"since {self.since}")
        return " ".join(word for word in words if word)


class Held(Exception):
    """Another process is there."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


def me() -> Holder:
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return Holder(os.getpid(), socket.gethostname(), now, born(os.getpid()))


def born(pid: int) -> int:
    """When a process was started, 0 where that cannot be known."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def alive(holder: Holder) -> bool:
    """Whether a process of this machine is still there, and is no other of the same number."""
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return not (holder.born and (now := born(holder.pid)) and now != holder.born)


@contextmanager
def only_one(folder: Path, wait: bool = False, everywhere: bool | None = None) -> Iterator[int]:
    """Be the only one in a folder, or `wait` to be; else Held says by whom. Yields the inode of .lock.

    `everywhere`: whether other machines see a flock here; found out unless said.
    """
    with (folder / ".lock").open("a+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            carried = seen_everywhere(folder) if everywhere is None else everywhere
        except BlockingIOError:
            file.seek(0)
            raise Held(_read(file.read(LONGEST))) from None
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            carried = False
        with _claimed(folder / ".held", wait) if not carried else nullcontext():
            with suppress(OSError):  # a full disk: who holds it is then not told, but held it is
                file.truncate(0)
                os.write(file.fileno(), json.dumps(asdict(me())).encode())  # a buffer would be tried again at the end
            yield os.fstat(file.fileno()).st_ino


@contextmanager
def _claimed(path: Path, wait: bool) -> Iterator[None]:
    """As a file that only one can make, and that tells by its age whether its maker is still there."""
    mine = json.dumps(asdict(me()))
    while not _made(path, mine):
        holder = _holder(path)
        if holder is None:
            continue
        if _stale(holder, path):
            _taken_away(path, holder)
        elif wait:
            time.sleep(0.5)
        else:
            raise Held(holder)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with suppress(OSError):
                os.utime(path)

    threading.Thread(target=beat, daemon=True, name="lock").start()
    try:
        yield
    finally:
        over.set()
        if _holder(path) == _read(mine):
            path.unlink(missing_ok=True)


def _made(path: Path, text: str) -> bool:
    """Linked to its name when it is whole: a reader sees no half-written holder."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".held.") as file:
        try:
            os.write(file.fileno(), text.encode())
            os.link(file.name, path)
        except FileExistsError:
            return False
        except OSError as error:
            error.filename = error.filename or str(path)  # a full disk names no file
            raise
        return True


def _holder(path: Path) -> Holder | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _read(file.read(LONGEST))
    except FileNotFoundError:
        return None


def _read(text: str) -> Holder:
    """Of what was written; nobody in particular when it cannot be read, or names what is no process."""
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            holder = Holder(int(found["pid"]), str(found["host"]), str(found["since"]), int(found["born"]))
        else:
            holder = Holder(int(found))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Holder()
    return holder if 0 < holder.pid < 2**31 else Holder()


def _stale(holder: Holder, path: Path) -> bool:
    """Whether its holder is gone. Of another machine's only silence tells, by the clock of the disk itself."""
    if holder.host == socket.gethostname():
        return not alive(holder)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".held.") as now:
            return os.stat(now.name).st_mtime - path.stat().st_mtime > STALE
    except FileNotFoundError:
        return False  # let go meanwhile: looked at again


def _taken_away(path: Path, holder: Holder) -> None:
    """Removed, unless it is another's by now."""
    aside = path.with_name(f".held.{os.getpid()}.{threading.get_ident()}")
    with suppress(FileNotFoundError):
        os.rename(path, aside)
        if _holder(aside) != holder:
            with suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink(missing_ok=True)


def seen_everywhere(folder: Path) -> bool:
    """Whether a flock in this folder is seen by all machines that have it mounted, by what /proc says of the mount."""
    try:
        return carries(folder.resolve(), Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return True


def carries(folder: Path, mounts: str) -> bool:
    """The same for a table of mounts: device, place, type, options on each line."""
    rows = [line.split() for line in mounts.splitlines() if len(line.split()) >= 4]
    inside = [row for row in rows if folder.is_relative_to(row[1].replace("\\040", " "))]
    if not inside:
        return True
    _, _, kind, options, *_ = max(reversed(inside), key=lambda row: len(row[1]))  # of equal places the last is on top
    named = {"", *options.split(",")}
    return not any(option in named for option in LOCAL.get("nfs" if kind.startswith("nfs") else kind, ()))
